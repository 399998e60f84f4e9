#include "app/output.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <poll.h>
#include <string.h>
#include <unistd.h>

#include "app/interrupt.h"
#include "text/unicode.h"

static bool reader_gone;  // set by the thread that writes, read by it at the end

void mgl_output_init(void) {
  // The lowest free descriptor is the one that open gives: 0, then 1, then 2. The wrong direction
  // makes reads and writes fail with EBADF, as they would on the closed descriptor.
  static const int flags[] = {O_WRONLY, O_RDONLY, O_RDWR};
  for (int fd = 0; fd <= 2; fd++) {
    if (fcntl(fd, F_GETFD) < 0) {
      (void)open("/dev/null", flags[fd]);
    }
  }
}

bool mgl_output_reader_gone(void) {
  return reader_gone;
}

mgl_status mgl_output_write(const char *data, size_t bytes, mgl_error *err) {
  size_t done = 0;
  while (done < bytes) {
    ssize_t n = write(STDOUT_FILENO, data + done, bytes - done);
    if (n >= 0) {
      done += (size_t)n;
    } else if (errno == EAGAIN) {
      struct pollfd wait = {.fd = STDOUT_FILENO, .events = POLLOUT};
      (void)poll(&wait, 1, -1);
    } else if (errno != EINTR) {
      reader_gone = errno == EPIPE;
      return mgl_error_set(err, MGL_ERR_IO, "cannot write to standard output: %s", strerror(errno));
    }
    if (done < bytes && mgl_interrupt_seen()) {
      return mgl_error_set(err, MGL_ERR_IO, "interrupted while writing to standard output");
    }
  }
  return MGL_OK;
}

mgl_status mgl_output_text(const mgl_text *text, mgl_error *err) {
  MGL_TRY(mgl_text_check(text, err));
  return mgl_output_write(text->data, text->bytes, err);
}

mgl_status mgl_input_read(size_t max_bytes, mgl_text *out, mgl_error *err) {
  char chunk[16384];
  for (;;) {
    ssize_t n = read(STDIN_FILENO, chunk, sizeof chunk);
    if (n < 0 && errno == EINTR) {
      continue;
    }
    if (n < 0) {
      return mgl_error_set(err, MGL_ERR_IO, "cannot read standard input: %s", strerror(errno));
    }
    if (n == 0) {
      return mgl_text_check(out, err);
    }
    if ((size_t)n > max_bytes || out->bytes > max_bytes - (size_t)n) {
      return mgl_error_set(err, MGL_ERR_LIMIT,
                           "standard input: expected at most %zu bytes, found more", max_bytes);
    }
    mgl_text_append(out, chunk, (size_t)n);
    MGL_TRY(mgl_text_check(out, err));
  }
}

void mgl_json_append_string(mgl_text *out, const char *text, size_t bytes) {
  mgl_text valid = {0};
  mgl_utf8_append_lossy(&valid, text, bytes);
  out->failed = out->failed || valid.failed;
  mgl_text_append(out, "\"", 1);
  for (size_t i = 0; i < valid.bytes; i++) {
    char c = valid.data[i];
    if (c == '"' || c == '\\') {
      mgl_text_format(out, "\\%c", c);
    } else if ((unsigned char)c < 0x20) {
      mgl_text_format(out, "\\u%04x", (unsigned)c);
    } else {
      mgl_text_append(out, &c, 1);
    }
  }
  mgl_text_append(out, "\"", 1);
  mgl_text_free(&valid);
}

void mgl_json_append_double(mgl_text *out, double value) {
  if (isfinite(value)) {
    mgl_text_format(out, "%.10g", value);
  } else {
    mgl_text_append_string(out, "null");
  }
}
