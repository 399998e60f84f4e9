// Normalisation form C: decompose, order the marks, compose.
//
// utf8proc has the tables and the composition. Ordering is ours: utf8proc swaps neighbours, which
// is quadratic in a run of combining marks, and a megabyte of marks is a valid prompt. The text is
// cut into segments that cannot influence each other, and segments below U+0300, where everything
// is its own NFC, are copied.
//
// Models were trained on what the `tokenizers` library makes of a text, and its crate
// unicode-normalization-alignments has the tables of Unicode 9. So the marks that later versions
// added have no class here, and the one composition that they added does not happen.
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

// Combining marks from Unicode 10 to 15.1.
static const mgl_code_range LATE_MARKS[] = {
    {0x7fd, 0x7fd},     {0x898, 0x89f},     {0x8ca, 0x8d3},     {0x9fe, 0x9fe},
    {0xc3c, 0xc3c},     {0xd3b, 0xd3c},     {0xeba, 0xeba},     {0x1715, 0x1715},
    {0x1abf, 0x1ace},   {0x1df6, 0x1dfa},   {0xa82c, 0xa82c},   {0x10d24, 0x10d27},
    {0x10eab, 0x10eac}, {0x10efd, 0x10eff}, {0x10f46, 0x10f50}, {0x10f82, 0x10f85},
    {0x11070, 0x11070}, {0x1133b, 0x1133b}, {0x1145e, 0x1145e}, {0x11839, 0x1183a},
    {0x1193d, 0x1193e}, {0x11943, 0x11943}, {0x119e0, 0x119e0}, {0x11a34, 0x11a34},
    {0x11a47, 0x11a47}, {0x11a99, 0x11a99}, {0x11d42, 0x11d42}, {0x11d44, 0x11d45},
    {0x11d97, 0x11d97}, {0x11f41, 0x11f42}, {0x16ff0, 0x16ff1}, {0x1e08f, 0x1e08f},
    {0x1e130, 0x1e136}, {0x1e2ae, 0x1e2ae}, {0x1e2ec, 0x1e2ef}, {0x1e4ec, 0x1e4ef},
};

// U+11938 is U+11935 U+11930 from Unicode 13 on.
enum { LATE_SECOND = 0x11930, LATE_COMPOSITE = 0x11938 };

static unsigned unicode_class(utf8proc_int32_t code) {
  return (unsigned)utf8proc_get_property(code)->combining_class & (CLASS_COUNT - 1);
}

static unsigned combining_class(utf8proc_int32_t code) {
  unsigned class = unicode_class(code);
  size_t late_count = sizeof LATE_MARKS / sizeof LATE_MARKS[0];
  return class != 0 && mgl_code_in_ranges((uint32_t)code, LATE_MARKS, late_count) ? 0 : class;
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
    if (code == LATE_COMPOSITE) {
      segment->codes[segment->count++] = (utf8proc_int32_t)code;
      continue;
    }
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

// Whether utf8proc's composition would go wrong across the front of this code point. It is a
// starter that composes with nothing in front of it, so it may as well start a part of its own.
// utf8proc 2.8 swallows a U+11A7 behind a Hangul syllable, as if it were an empty final consonant;
// it takes late marks for marks and composes U+11930.
static bool starts_part(utf8proc_int32_t code) {
  return code == HANGUL_BEFORE_FINALS || code == LATE_SECOND ||
         (unicode_class(code) != 0 && combining_class(code) == 0);
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
  size_t start = 0;
  for (size_t i = 1; i < segment->count; i++) {
    if (starts_part(segment->codes[i])) {
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
