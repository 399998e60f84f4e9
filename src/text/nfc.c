// Normalisation form C: decompose, order the marks, compose.
//
// utf8proc has the tables and the composition. Ordering is ours: utf8proc swaps neighbours, which
// is quadratic in a run of combining marks, and a megabyte of marks is a valid prompt. The text is
// cut into segments that cannot influence each other, and segments below U+0300, where everything
// is its own NFC, are copied. Known difference: `tokenizers` 0.23 normalises by the tables of
// Unicode 9, so it leaves unordered the 108 marks that later versions added (listed in
// tools/make_tokenizer_cases.py); we order them as Unicode says.
#include "text/nfc.h"

#include <stdbool.h>
#include <stdint.h>
#include <string.h>
#include <utf8proc.h>

#include "base/alloc.h"
#include "text/unicode.h"

enum {
  DECOMPOSED_MAX = 16,      // room for one code point's canonical decomposition; the longest is 4
  INSERTION_SORT_MAX = 32,  // runs of marks up to here are sorted in place
  CLASS_COUNT = 256,
  HANGUL_BEFORE_FINALS = 0x11a7,
};

// The code points of one segment, and a copy for sorting.
typedef struct nfc_segment {
  utf8proc_int32_t *codes;
  size_t count;
  size_t capacity;
  utf8proc_int32_t *sorted;
  size_t sorted_capacity;
} nfc_segment;

static unsigned combining_class(utf8proc_int32_t code) {
  return (unsigned)utf8proc_get_property(code)->combining_class & (CLASS_COUNT - 1);
}

static mgl_status reserve_codes(utf8proc_int32_t **codes, size_t *capacity, size_t needed,
                                mgl_error *err) {
  void *items = *codes;
  mgl_status status = mgl_grow(&items, capacity, needed, sizeof **codes, err);
  *codes = items;
  return status;
}

static mgl_status decompose(nfc_segment *segment, const char *text, size_t bytes, mgl_error *err) {
  segment->count = 0;
  for (size_t at = 0; at < bytes;) {
    uint32_t code = mgl_utf8_next(text, &at);
    MGL_TRY(
        reserve_codes(&segment->codes, &segment->capacity, segment->count + DECOMPOSED_MAX, err));
    int boundary = 0;
    utf8proc_ssize_t written =
        utf8proc_decompose_char((utf8proc_int32_t)code, segment->codes + segment->count,
                                DECOMPOSED_MAX, UTF8PROC_STABLE | UTF8PROC_COMPOSE, &boundary);
    if (written < 0 || written > DECOMPOSED_MAX) {
      return mgl_error_set(err, MGL_ERR_INTERNAL, "NFC: utf8proc refused U+%04X", (unsigned)code);
    }
    segment->count += (size_t)written;
  }
  return MGL_OK;
}

static void insertion_sort(utf8proc_int32_t *codes, size_t count) {
  for (size_t i = 1; i < count; i++) {
    utf8proc_int32_t moving = codes[i];
    unsigned moving_class = combining_class(moving);
    size_t to = i;
    for (; to > 0 && combining_class(codes[to - 1]) > moving_class; to--) {
      codes[to] = codes[to - 1];
    }
    codes[to] = moving;
  }
}

// Stable counting sort by combining class.
static mgl_status counting_sort(nfc_segment *segment, utf8proc_int32_t *codes, size_t count,
                                mgl_error *err) {
  MGL_TRY(reserve_codes(&segment->sorted, &segment->sorted_capacity, count, err));
  size_t start[CLASS_COUNT + 1] = {0};
  for (size_t i = 0; i < count; i++) {
    start[combining_class(codes[i]) + 1]++;
  }
  for (size_t class = 0; class < CLASS_COUNT; class ++) {
    start[class + 1] += start[class];
  }
  for (size_t i = 0; i < count; i++) {
    segment->sorted[start[combining_class(codes[i])]++] = codes[i];
  }
  memcpy(codes, segment->sorted, count * sizeof *codes);
  return MGL_OK;
}

// Puts each run of marks into canonical order.
static mgl_status order_marks(nfc_segment *segment, mgl_error *err) {
  for (size_t i = 0; i < segment->count;) {
    size_t end = i;
    while (end < segment->count && combining_class(segment->codes[end]) != 0) {
      end++;
    }
    if (end - i > INSERTION_SORT_MAX) {
      MGL_TRY(counting_sort(segment, segment->codes + i, end - i, err));
    } else if (end - i > 1) {
      insertion_sort(segment->codes + i, end - i);
    }
    i = end + 1;
  }
  return MGL_OK;
}

// Composes code points that start with a starter, and appends them.
static void append_composed(utf8proc_int32_t *codes, size_t count, mgl_text *out) {
  utf8proc_ssize_t composed =
      utf8proc_normalize_utf32(codes, (utf8proc_ssize_t)count, UTF8PROC_STABLE | UTF8PROC_COMPOSE);
  for (utf8proc_ssize_t i = 0; i < composed; i++) {
    char encoded[4];
    mgl_text_append(out, encoded, mgl_utf8_encode((uint32_t)codes[i], encoded));
  }
}

static mgl_status normalize_segment(nfc_segment *segment, const char *text, size_t bytes,
                                    mgl_text *out, mgl_error *err) {
  MGL_TRY(decompose(segment, text, bytes, err));
  MGL_TRY(order_marks(segment, err));
  // utf8proc 2.8 swallows a U+11A7 behind a Hangul syllable, as if it were an empty final
  // consonant. It is a starter that composes with nothing, so each one may as well start a part of
  // its own.
  size_t start = 0;
  for (size_t i = 1; i < segment->count; i++) {
    if (segment->codes[i] == HANGUL_BEFORE_FINALS) {
      append_composed(segment->codes + start, i - start, out);
      start = i;
    }
  }
  append_composed(segment->codes + start, segment->count - start, out);
  return MGL_OK;
}

mgl_status mgl_nfc_append(mgl_text *out, const char *text, size_t bytes, mgl_error *err) {
  nfc_segment segment = {0};
  mgl_status status = MGL_OK;
  size_t start = 0;
  while (start < bytes && status == MGL_OK) {
    // A segment ends before a character below U+0300 that follows another one: both are starters
    // and the second never composes with what stands before it.
    bool plain = true;
    bool previous_low = false;
    size_t end = start;
    while (end < bytes) {
      bool low = (unsigned char)text[end] < 0xcc;  // U+0300 is CC 80
      if (low && previous_low && !plain) {
        break;
      }
      size_t next = end;
      (void)mgl_utf8_next(text, &next);
      if (!low && plain) {
        plain = false;
        if (end > start) {
          // What stands before the last low character is finished; that one may still compose.
          size_t last = end - 1;
          while (((unsigned char)text[last] & 0xc0) == 0x80) {
            last--;
          }
          mgl_text_append(out, text + start, last - start);
          start = last;
        }
      }
      previous_low = low;
      end = next;
    }
    if (plain) {
      mgl_text_append(out, text + start, end - start);
    } else {
      status = normalize_segment(&segment, text + start, end - start, out, err);
    }
    start = end;
  }
  mgl_free(segment.codes);
  mgl_free(segment.sorted);
  return status == MGL_OK ? mgl_text_check(out, err) : status;
}
