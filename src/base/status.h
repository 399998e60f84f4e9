// Status codes and error text: how every fallible function of Megalith reports.
//
// Functions that can fail return mgl_status and take an mgl_error that they fill with one message:
// what was expected, what was found, where, and a hint. Only app/ prints such a message or exits.
// Programmer errors assert instead. Rejected: errno-style globals (lost between threads) and
// message codes (the text is the product).
#ifndef MGL_BASE_STATUS_H
#define MGL_BASE_STATUS_H

typedef enum mgl_status {
  MGL_OK = 0,
  MGL_ERR_ARGUMENT,     // a caller's or user's value is out of its stated range
  MGL_ERR_FORMAT,       // a file's content contradicts its format
  MGL_ERR_UNSUPPORTED,  // well-formed, but a feature that Megalith does not have
  MGL_ERR_IO,           // the operating system refused to open, read, write or map
  MGL_ERR_MEMORY,       // an allocation failed or would not fit
  MGL_ERR_LIMIT,        // a stated limit of Megalith was exceeded
  MGL_ERR_INTERNAL,     // a fault of Megalith itself (a stuck task, a broken invariant)
} mgl_status;

enum { MGL_ERROR_TEXT_BYTES = 1024 };

typedef struct mgl_error {
  mgl_status status;
  char text[MGL_ERROR_TEXT_BYTES];  // one message without a trailing newline, always terminated
} mgl_error;

// Fills *err (which may be NULL) from a printf format and returns `status`, so that a caller writes
// `return mgl_error_set(err, MGL_ERR_FORMAT, "...")`. Too long a text loses its middle, where a
// long path has its least interesting part; the explanation behind it stays. Made printable.
mgl_status mgl_error_set(mgl_error *err, mgl_status status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

// Puts "prefix: " before the text of an error that is being forwarded ("model.safetensors: ...").
void mgl_error_prefix(mgl_error *err, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

// Replaces by '?' what could steer a terminal or garble a line, in place: control characters (of
// ASCII and of Unicode's C1) and bytes that are not UTF-8. For names that come from files and
// users.
void mgl_string_make_printable(char *text);

// Short English name of a status ("out of memory"), for logs and tests.
const char *mgl_status_name(mgl_status status);

// Forwards a failure. Use only where the function owns nothing yet; otherwise go to its fail label.
#define MGL_TRY(expr)                \
  do {                               \
    mgl_status try_status_ = (expr); \
    if (try_status_ != MGL_OK) {     \
      return try_status_;            \
    }                                \
  } while (0)

#endif
