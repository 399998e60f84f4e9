#include "app/token_input.h"

#include <stdbool.h>
#include <stdio.h>

#include "base/alloc.h"

static bool is_blank(char c) {
  return c == ' ' || c == '\t' || c == '\n' || c == '\r';
}

static bool is_digit(char c) {
  return c >= '0' && c <= '9';
}

// A position in the text; at most `bytes`.
typedef struct reader {
  const char *text;
  size_t bytes;
  size_t at;
  const char *where;
} reader;

static void skip_blanks(reader *r) {
  while (r->at < r->bytes && is_blank(r->text[r->at])) {
    r->at++;
  }
}

static mgl_status unexpected(const reader *r, const char *expected, mgl_error *err) {
  if (r->at == r->bytes) {
    return mgl_error_set(err, MGL_ERR_ARGUMENT, "%s: expected %s, found the end", r->where,
                         expected);
  }
  size_t shown = 0;
  while (shown < 20 && r->at + shown < r->bytes && !is_blank(r->text[r->at + shown])) {
    shown++;
  }
  return mgl_error_set(err, MGL_ERR_ARGUMENT, "%s: expected %s, found \"%.*s\" at byte %zu",
                       r->where, expected, (int)shown, r->text + r->at, r->at);
}

static mgl_status parse_id(reader *r, uint32_t vocab_size, mgl_ids *out, mgl_error *err) {
  if (r->at == r->bytes || !is_digit(r->text[r->at])) {
    return unexpected(r, "a token id", err);
  }
  size_t start = r->at;
  uint64_t id = 0;
  for (; r->at < r->bytes && is_digit(r->text[r->at]); r->at++) {
    id = id * 10 + (uint64_t)(r->text[r->at] - '0');
    if (id >= vocab_size) {
      r->at = start;
      char expected[48];
      (void)snprintf(expected, sizeof expected, "an id of 0 to %u", vocab_size - 1);
      return unexpected(r, expected, err);
    }
  }
  void *items = out->ids;
  MGL_TRY(mgl_grow(&items, &out->capacity, out->count + 1, sizeof *out->ids, err));
  out->ids = items;
  out->ids[out->count++] = (int32_t)id;
  return MGL_OK;
}

mgl_status mgl_tokens_parse(const char *text, size_t bytes, const char *where, uint32_t vocab_size,
                            mgl_ids *out, mgl_error *err) {
  reader r = {.text = text, .bytes = bytes, .where = where};
  skip_blanks(&r);
  bool is_array = r.at < r.bytes && r.text[r.at] == '[';
  r.at += is_array;
  skip_blanks(&r);
  bool is_over = r.at == r.bytes || (is_array && r.text[r.at] == ']');
  while (!is_over) {
    MGL_TRY(parse_id(&r, vocab_size, out, err));
    bool has_separator = r.at < r.bytes && is_blank(r.text[r.at]) && !is_array;
    skip_blanks(&r);
    is_over = r.at == r.bytes || (is_array && r.text[r.at] == ']');
    if (!is_over && r.text[r.at] == ',') {
      r.at++;
      skip_blanks(&r);
    } else if (!is_over && !has_separator) {
      return unexpected(&r, is_array ? "a comma or ]" : "a comma or a space", err);
    }
  }
  if (is_array && r.at == r.bytes) {
    return unexpected(&r, "]", err);
  }
  r.at += is_array;
  skip_blanks(&r);
  return r.at == r.bytes ? MGL_OK : unexpected(&r, "nothing behind the array", err);
}
