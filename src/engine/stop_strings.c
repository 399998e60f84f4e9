// Method: Knuth, Morris and Pratt's automaton for each string. Its state is the length of the
// longest beginning of the string that the text ends with, so the longest of all states is what
// must be held back.
//   Rejected: searching the held text anew with each piece; Aho and Corasick's automaton of all
//   strings together, for the few strings that there are.
#include "engine/stop_strings.h"

#include <string.h>

#include "base/alloc.h"

typedef struct stop_string {
  size_t bytes;
  size_t matched;  // bytes of it that the text ends with
  char text[MGL_MAX_STOP_BYTES];
  uint16_t shorter[MGL_MAX_STOP_BYTES + 1];  // by matched bytes: the next shorter match
} stop_string;

struct mgl_stop_matcher {
  uint32_t count;
  stop_string *strings;  // [count]
  size_t held_bytes;
  char held[MGL_MAX_STOP_BYTES];
};

// How many bytes match behind `matched` of them and one more.
static size_t next_match(const stop_string *s, size_t matched, char byte) {
  while (matched > 0 && s->text[matched] != byte) {
    matched = s->shorter[matched];
  }
  return s->text[matched] == byte ? matched + 1 : 0;
}

static mgl_status set_string(stop_string *s, const char *text, mgl_error *err) {
  s->bytes = strlen(text);
  if (s->bytes < 1 || s->bytes > MGL_MAX_STOP_BYTES) {
    return mgl_error_set(err, MGL_ERR_ARGUMENT, "stop string: expected 1 to %d bytes, found %zu",
                         MGL_MAX_STOP_BYTES, s->bytes);
  }
  memcpy(s->text, text, s->bytes);
  for (size_t i = 1; i < s->bytes; i++) {
    s->shorter[i + 1] = (uint16_t)next_match(s, s->shorter[i], text[i]);
  }
  return MGL_OK;
}

mgl_status mgl_stop_matcher_create(const char *const *strings, uint32_t count,
                                   mgl_stop_matcher **out, mgl_error *err) {
  *out = NULL;
  if (count > MGL_MAX_STOP_STRINGS) {
    return mgl_error_set(err, MGL_ERR_LIMIT, "stop strings: expected at most %d, found %u",
                         MGL_MAX_STOP_STRINGS, count);
  }
  mgl_status status = MGL_OK;
  mgl_stop_matcher *matcher = mgl_alloc_zeroed(1, sizeof *matcher);
  if (matcher != NULL) {
    matcher->count = count;
    matcher->strings = mgl_alloc_zeroed(count + (size_t)1, sizeof *matcher->strings);
  }
  if (matcher == NULL || matcher->strings == NULL) {
    status = mgl_error_set(err, MGL_ERR_MEMORY, "out of memory for %u stop strings", count);
  }
  for (uint32_t i = 0; i < count && status == MGL_OK; i++) {
    status = set_string(&matcher->strings[i], strings[i], err);
  }
  if (status != MGL_OK) {
    mgl_stop_matcher_destroy(matcher);
    return status;
  }
  *out = matcher;
  return MGL_OK;
}

void mgl_stop_matcher_destroy(mgl_stop_matcher *matcher) {
  if (matcher != NULL) {
    mgl_free(matcher->strings);
    mgl_free(matcher);
  }
}

// Moves all states by a byte. *held: the longest state, of strings that are not complete; returns
// the bytes of the longest that is, 0 if none.
static size_t match_byte(mgl_stop_matcher *matcher, char byte, size_t *held) {
  size_t complete = 0;
  *held = 0;
  for (uint32_t i = 0; i < matcher->count; i++) {
    stop_string *s = &matcher->strings[i];
    s->matched = next_match(s, s->matched, byte);
    if (s->matched == s->bytes) {
      complete = s->bytes > complete ? s->bytes : complete;
    } else {
      *held = s->matched > *held ? s->matched : *held;
    }
  }
  return complete;
}

bool mgl_stop_matcher_push(mgl_stop_matcher *matcher, const char *text, size_t bytes,
                           mgl_text *out) {
  for (size_t i = 0; i < bytes; i++) {
    // held: the end of the text before this byte. What the text ends with now is one byte longer at
    // most, so `keep` is at most held_bytes + 1.
    size_t keep = 0;
    size_t complete = match_byte(matcher, text[i], &keep);
    keep = complete > 0 ? complete : keep;
    size_t release = matcher->held_bytes + 1 - keep;
    if (release <= matcher->held_bytes) {
      mgl_text_append(out, matcher->held, release);
      memmove(matcher->held, matcher->held + release, matcher->held_bytes - release);
      matcher->held_bytes -= release;
    } else {
      mgl_text_append(out, matcher->held, matcher->held_bytes);
      mgl_text_append(out, text + i, 1);
      matcher->held_bytes = 0;
    }
    if (keep > 0) {
      matcher->held[matcher->held_bytes++] = text[i];
    }
    if (complete > 0) {
      return true;
    }
  }
  return false;
}

void mgl_stop_matcher_finish(mgl_stop_matcher *matcher, mgl_text *out) {
  mgl_text_append(out, matcher->held, matcher->held_bytes);
  matcher->held_bytes = 0;
}
