#include "app/output.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <string.h>
#include <unistd.h>

#include "app/interrupt.h"

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
