// Multiples: numbers whose digits, read as one whole number, are divided by another one.
//
// What matters of the digits read so far is the remainder that they leave, so there is a rule for
// each number of digits that are left and each remainder: a multiple of 7 of at most 18 digits
// takes 126 rules. Digits that a bound still decides on are written out one by one.
//   Rejected: one rule for each remainder, calling each other: such a number could go on for ever.
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "grammar/json_schema_parts.h"

enum { DIGITS_BYTES = 32 };

mgl_multiples mgl_multiples_make(mgl_builder *b, uint64_t divisor, uint32_t places) {
  mgl_multiples m = {.b = b, .divisor = divisor, .places = places};
  while (places == 0 && m.divisor % 10 == 0) {
    m.divisor /= 10;
    m.zeros++;
  }
  return m;
}

static const mgl_expression *end(const mgl_multiples *m, uint64_t remainder) {
  return remainder == 0 ? mgl_expression_sequence(m->b, NULL, 0)
                        : mgl_expression_choice(m->b, NULL, 0);
}

// The point, where so many digits are left; else nothing.
static const mgl_expression *point(const mgl_multiples *m, size_t left) {
  return mgl_expression_string(m->b, m->places > 0 && left == m->places ? "." : "");
}

// Any `left` digits that make a multiple behind digits that leave this remainder.
static const mgl_expression *free_digits(mgl_multiples *m, size_t left, uint64_t remainder) {
  mgl_builder *b = m->b;
  const mgl_expression *parts[10];
  size_t count = 0;
  if (left == 0 || mgl_builder_failed(b)) {
    return end(m, remainder);
  }
  if (m->rules == NULL) {
    m->rules =
        mgl_builder_alloc(b, (MGL_JSON_MAX_INTEGER_DIGITS + 1) * m->divisor, sizeof *m->rules);
    if (m->rules == NULL) {
      return NULL;
    }
  }
  uint32_t *known = &m->rules[left * m->divisor + remainder];
  if (*known == 0) {
    uint32_t rule = mgl_rule_add(b, "multipleOf");
    *known = rule + 1;
    for (uint64_t first = 0; first < 10 && first < m->divisor; first++) {
      mgl_code_range same[10];  // digits with one remainder
      size_t same_count = 0;
      for (uint64_t digit = first; digit < 10; digit += m->divisor) {
        same[same_count++] = (mgl_code_range){'0' + (uint32_t)digit, '0' + (uint32_t)digit};
      }
      parts[count++] =
          MGL_SEQUENCE(b, mgl_expression_set(b, same, same_count),
                       free_digits(m, left - 1, (remainder * 10 + first) % m->divisor));
    }
    mgl_rule_set(b, rule, MGL_SEQUENCE(b, point(m, left), mgl_expression_choice(b, parts, count)));
  }
  return *known == 0 ? NULL : mgl_expression_rule(b, *known - 1);
}

// As many digits as are left of `low` and `high`: from low on if at_low, up to high if at_high.
static const mgl_expression *bounded_digits(mgl_multiples *m, const char *low, bool at_low,
                                            const char *high, bool at_high, uint64_t remainder) {
  const mgl_expression *parts[10];
  size_t count = 0;
  size_t left = strlen(low);
  if (left == 0 || (!at_low && !at_high)) {
    return free_digits(m, left, remainder);
  }
  for (int digit = at_low ? low[0] : '0'; digit <= (at_high ? high[0] : '9'); digit++) {
    const mgl_code_range one = {(uint32_t)digit, (uint32_t)digit};
    uint64_t next = (remainder * 10 + (uint64_t)(digit - '0')) % m->divisor;
    parts[count++] = MGL_SEQUENCE(m->b, mgl_expression_set(m->b, &one, 1),
                                  bounded_digits(m, low + 1, at_low && digit == low[0], high + 1,
                                                 at_high && digit == high[0], next));
  }
  return MGL_SEQUENCE(m->b, point(m, left), mgl_expression_choice(m->b, parts, count));
}

const mgl_expression *mgl_multiples_between(mgl_multiples *m, uint64_t low, uint64_t high) {
  mgl_builder *b = m->b;
  const mgl_expression *parts[MGL_JSON_MAX_INTEGER_DIGITS + 1];
  size_t count = 0;
  char zeros[DIGITS_BYTES] = "";
  if (m->zeros > 0 && low == 0) {
    parts[count++] = mgl_expression_string(b, "0");
    low = 1;
  }
  for (uint32_t i = 0; i < m->zeros; i++) {
    zeros[i] = '0';
    low = low / 10 + (low % 10 != 0);
    high /= 10;
  }
  // Without leading zeros, but for the one in front of a point.
  uint64_t first = 0;
  uint64_t last = 9;
  for (uint32_t digits = 1; digits + m->zeros <= MGL_JSON_MAX_INTEGER_DIGITS; digits++) {
    uint64_t from = low > first ? low : first;
    uint64_t to = high < last ? high : last;
    if (digits > m->places && from <= to) {
      char from_text[DIGITS_BYTES];
      char to_text[DIGITS_BYTES];
      (void)snprintf(from_text, sizeof from_text, "%0*" PRIu64, (int)digits, from);
      (void)snprintf(to_text, sizeof to_text, "%0*" PRIu64, (int)digits, to);
      parts[count++] = MGL_SEQUENCE(b, bounded_digits(m, from_text, true, to_text, true, 0),
                                    mgl_expression_string(b, zeros));
    }
    first = digits > m->places ? last + 1 : 0;
    last = last * 10 + 9;
  }
  return mgl_expression_choice(b, parts, count);
}
