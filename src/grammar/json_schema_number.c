// Numbers of a schema: their bounds, as expressions of digits.
//
// A number between two bounds is compared digit by digit, as one reads it: below the first digits
// of a bound anything goes, at them the comparison goes on. Numbers with bounds or a divisor have
// no exponent.
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "grammar/json_schema_parts.h"

enum { DIGITS_BYTES = 64 };

enum { MOST_PLACES = 9 };  // of a divisor, behind the point

typedef struct digits_maker {
  mgl_builder *b;
  const mgl_expression *nothing, *never;
  mgl_multiples *multiples;  // [multiple_count] by places behind the point
  uint32_t multiple_count;   // 0: no divisor
} digits_maker;

static const mgl_expression *digit_range(const digits_maker *d, int low, int high) {
  return low > high ? d->never
                    : mgl_expression_set(d->b, &(mgl_code_range){(uint32_t)low, (uint32_t)high}, 1);
}

static const mgl_expression *any_digits(const digits_maker *d, size_t min, size_t max) {
  return mgl_expression_repeat(d->b, digit_range(d, '0', '9'), min, max);
}

// --- whole numbers -------------------------------------------------------------------------------

// As many digits as `low` has, from it on.
static const mgl_expression *at_least(const digits_maker *d, const char *low) {
  size_t rest = strlen(low);
  if (rest == 0) {
    return d->nothing;
  }
  return MGL_CHOICE(
      d->b, MGL_SEQUENCE(d->b, digit_range(d, low[0] + 1, '9'), any_digits(d, rest - 1, rest - 1)),
      MGL_SEQUENCE(d->b, digit_range(d, low[0], low[0]), at_least(d, low + 1)));
}

static const mgl_expression *at_most(const digits_maker *d, const char *high) {
  size_t rest = strlen(high);
  if (rest == 0) {
    return d->nothing;
  }
  return MGL_CHOICE(
      d->b, MGL_SEQUENCE(d->b, digit_range(d, '0', high[0] - 1), any_digits(d, rest - 1, rest - 1)),
      MGL_SEQUENCE(d->b, digit_range(d, high[0], high[0]), at_most(d, high + 1)));
}

// Of as many digits as both have.
static const mgl_expression *between(const digits_maker *d, const char *low, const char *high) {
  size_t rest = strlen(low);
  if (rest == 0) {
    return d->nothing;
  }
  if (low[0] == high[0]) {
    return MGL_SEQUENCE(d->b, digit_range(d, low[0], low[0]), between(d, low + 1, high + 1));
  }
  return MGL_CHOICE(d->b, MGL_SEQUENCE(d->b, digit_range(d, low[0], low[0]), at_least(d, low + 1)),
                    MGL_SEQUENCE(d->b, digit_range(d, low[0] + 1, high[0] - 1),
                                 any_digits(d, rest - 1, rest - 1)),
                    MGL_SEQUENCE(d->b, digit_range(d, high[0], high[0]), at_most(d, high + 1)));
}

// The whole numbers from low to high, written without leading zeros.
static const mgl_expression *whole(const digits_maker *d, uint64_t low, uint64_t high) {
  const mgl_expression *parts[DIGITS_BYTES];
  size_t count = 0;
  uint64_t first = 0;
  uint64_t last = 9;
  for (int digits = 1; digits <= MGL_JSON_MAX_INTEGER_DIGITS; digits++) {
    uint64_t from = low > first ? low : first;
    uint64_t to = high < last ? high : last;
    if (from <= to) {
      char from_text[DIGITS_BYTES];
      char to_text[DIGITS_BYTES];
      (void)snprintf(from_text, sizeof from_text, "%0*llu", digits, (unsigned long long)from);
      (void)snprintf(to_text, sizeof to_text, "%0*llu", digits, (unsigned long long)to);
      parts[count++] = between(d, from_text, to_text);
    }
    first = last + 1;
    last = last * 10 + 9;
  }
  return mgl_expression_choice(d->b, parts, count);
}

// --- fractions -----------------------------------------------------------------------------------

// Digits behind the point, at least `least` of them, that are at least (or more than) those given,
// which have no zeros at their end.
static const mgl_expression *fraction_from(const digits_maker *d, const char *low, bool more,
                                           size_t least) {
  mgl_builder *b = d->b;
  size_t most = MGL_JSON_MAX_FRACTION_DIGITS;
  if (low[0] == 0 && !more) {
    return any_digits(d, least, most);
  }
  if (low[0] == 0) {
    return MGL_SEQUENCE(b, mgl_expression_repeat(b, digit_range(d, '0', '0'), 0, most),
                        digit_range(d, '1', '9'), any_digits(d, 0, most));
  }
  return MGL_CHOICE(
      b, MGL_SEQUENCE(b, digit_range(d, low[0] + 1, '9'), any_digits(d, 0, most)),
      MGL_SEQUENCE(b, digit_range(d, low[0], low[0]), fraction_from(d, low + 1, more, 0)));
}

static const mgl_expression *fraction_to(const digits_maker *d, const char *high, bool less,
                                         size_t least) {
  mgl_builder *b = d->b;
  size_t most = MGL_JSON_MAX_FRACTION_DIGITS;
  if (high[0] == 0) {
    return less ? d->never : mgl_expression_repeat(b, digit_range(d, '0', '0'), least, most);
  }
  const mgl_expression *below =
      MGL_SEQUENCE(b, digit_range(d, '0', high[0] - 1), any_digits(d, 0, most));
  const mgl_expression *same =
      MGL_SEQUENCE(b, digit_range(d, high[0], high[0]), fraction_to(d, high + 1, less, 0));
  return least == 0 ? MGL_CHOICE(b, d->nothing, below, same) : MGL_CHOICE(b, below, same);
}

static const mgl_expression *fraction_between(const digits_maker *d, const char *low, bool more,
                                              const char *high, bool less, size_t least) {
  mgl_builder *b = d->b;
  size_t most = MGL_JSON_MAX_FRACTION_DIGITS;
  int first = low[0] == 0 ? '0' : low[0];
  int last = high[0] == 0 ? '0' : high[0];
  const char *low_rest = low + (low[0] != 0);
  const char *high_rest = high + (high[0] != 0);
  if (low[0] == 0 && high[0] == 0) {
    return more || less ? d->never
                        : mgl_expression_repeat(b, digit_range(d, '0', '0'), least, most);
  }
  const mgl_expression *parts[4];
  size_t count = 0;
  if (least == 0 && low[0] == 0 && !more) {
    parts[count++] = d->nothing;
  }
  if (first == last) {
    parts[count++] = MGL_SEQUENCE(b, digit_range(d, first, first),
                                  fraction_between(d, low_rest, more, high_rest, less, 0));
  } else if (first < last) {
    parts[count++] =
        MGL_SEQUENCE(b, digit_range(d, first, first), fraction_from(d, low_rest, more, 0));
    parts[count++] = MGL_SEQUENCE(b, digit_range(d, first + 1, last - 1), any_digits(d, 0, most));
    parts[count++] =
        MGL_SEQUENCE(b, digit_range(d, last, last), fraction_to(d, high_rest, less, 0));
  }
  return mgl_expression_choice(b, parts, count);
}

// --- bounds --------------------------------------------------------------------------------------

// A bound's size, as decimal digits.
typedef struct decimal {
  uint64_t whole;
  char fraction[DIGITS_BYTES];  // without zeros at its end
  bool excluded;                // the number itself
} decimal;

// Every limit that is not given is this.
#define MOST_NUMBER 999999999999999999.0

static decimal decimal_of(double value, bool excluded) {
  decimal out = {.excluded = excluded};
  char text[512];
  value = fabs(value);
  if (value >= MOST_NUMBER) {
    out.whole = 999999999999999999u;
    out.excluded = false;
    return out;
  }
  out.whole = (uint64_t)value;
  // The shortest digits that mean this number, as it was written in the schema.
  for (int digits = 0; digits <= 40; digits++) {
    (void)snprintf(text, sizeof text, "%.*f", digits, value);
    if (strtod(text, NULL) == value) {
      break;
    }
  }
  const char *point = strchr(text, '.');
  (void)snprintf(out.fraction, sizeof out.fraction, "%s", point == NULL ? "" : point + 1);
  for (size_t i = strlen(out.fraction); i > 0 && out.fraction[i - 1] == '0'; i--) {
    out.fraction[i - 1] = 0;
  }
  out.whole = strtoull(text, NULL, 10);
  return out;
}

// Numbers from low to high, neither of them negative, that need not be whole.
static const mgl_expression *decimals(const digits_maker *d, const decimal *low,
                                      const decimal *high) {
  mgl_builder *b = d->b;
  const mgl_expression *point = mgl_expression_string(b, ".");
  const mgl_expression *parts[6];
  size_t count = 0;
  if (low->whole > high->whole) {
    return d->never;
  }
  if (high->whole > low->whole + 1) {
    parts[count++] = MGL_SEQUENCE(
        b, whole(d, low->whole + 1, high->whole - 1),
        mgl_expression_optional(
            b, MGL_SEQUENCE(b, point, any_digits(d, 1, MGL_JSON_MAX_FRACTION_DIGITS))));
  }
  const mgl_expression *at_low = whole(d, low->whole, low->whole);
  const mgl_expression *at_high = whole(d, high->whole, high->whole);
  bool low_fits = low->fraction[0] == 0 && !low->excluded;
  bool high_fits = high->fraction[0] != 0 || !high->excluded;
  if (low->whole == high->whole) {
    parts[count++] = MGL_SEQUENCE(
        b, at_low, point,
        fraction_between(d, low->fraction, low->excluded, high->fraction, high->excluded, 1));
    if (low_fits && high_fits) {
      parts[count++] = at_low;
    }
    return mgl_expression_choice(b, parts, count);
  }
  parts[count++] =
      MGL_SEQUENCE(b, at_low, point, fraction_from(d, low->fraction, low->excluded, 1));
  parts[count++] =
      MGL_SEQUENCE(b, at_high, point, fraction_to(d, high->fraction, high->excluded, 1));
  if (low_fits) {
    parts[count++] = at_low;
  }
  if (high_fits) {
    parts[count++] = at_high;
  }
  return mgl_expression_choice(b, parts, count);
}

// Whole numbers in the same way.
static const mgl_expression *integers(const digits_maker *d, const decimal *low,
                                      const decimal *high) {
  uint64_t from = low->whole + (low->fraction[0] != 0 || low->excluded);
  bool leaves_out = high->excluded && high->fraction[0] == 0;
  if (leaves_out && high->whole == 0) {
    return d->never;
  }
  return whole(d, from, high->whole - (leaves_out ? 1 : 0));
}

// --- multiples -----------------------------------------------------------------------------------

// A bound without its point, `places` digits behind it kept, as far as there are whole numbers for
// it. *is_exact: nothing was cut off.
static uint64_t scale(const decimal *d, uint32_t places, bool *is_exact) {
  const uint64_t most = 999999999999999999u;
  uint64_t value = d->whole;
  size_t digits = strlen(d->fraction);
  for (uint32_t i = 0; i < places; i++) {
    uint64_t digit = i < digits ? (uint64_t)(d->fraction[i] - '0') : 0;
    value = value > (most - digit) / 10 ? most : value * 10 + digit;
  }
  *is_exact = digits <= places;
  return value;
}

static const mgl_expression *multiples(const digits_maker *d, const decimal *low,
                                       const decimal *high) {
  const mgl_expression *parts[MOST_PLACES + 1];
  size_t count = 0;
  for (uint32_t places = 0; places < d->multiple_count; places++) {
    bool is_exact = false;
    uint64_t from = scale(low, places, &is_exact);
    from += !is_exact || low->excluded ? 1 : 0;
    uint64_t to = scale(high, places, &is_exact);
    bool leaves_out = is_exact && high->excluded;
    if (to >= (leaves_out ? 1 : 0) && from <= to - leaves_out) {
      parts[count++] = mgl_multiples_between(&d->multiples[places], from, to - leaves_out);
    }
  }
  return mgl_expression_choice(d->b, parts, count);
}

static uint64_t common_divisor(uint64_t a, uint64_t b) {
  while (b != 0) {
    uint64_t rest = a % b;
    a = b;
    b = rest;
  }
  return a;
}

// What "multipleOf" means for numbers of so many places behind the point, or fewer than it has.
static void read_divisor(mgl_schema_reader *r, const json_t *schema, bool is_integer,
                         digits_maker *d, const mgl_schema_place *place) {
  const json_t *value = json_object_get(schema, "multipleOf");
  double number = json_number_value(value);
  uint64_t sum = 0;
  if (value == NULL) {
    return;
  }
  if (!json_is_number(value) || !(number > 0)) {
    (void)mgl_schema_fail(r, place, MGL_ERR_ARGUMENT, "\"multipleOf\": expected a number above 0");
    return;
  }
  decimal divisor = decimal_of(number, false);
  uint32_t most = (uint32_t)strlen(divisor.fraction);
  bool is_exact = most <= MOST_PLACES && divisor.whole < 1000000000;
  uint64_t whole = is_exact ? scale(&divisor, most, &is_exact) : 0;
  uint64_t shift = 1;
  for (uint32_t i = most + 1; i > 0 && is_exact; i--, shift *= 10) {
    // With fewer places, the digits are that many zeros short.
    d->multiples[i - 1] = mgl_multiples_make(r->b, whole / common_divisor(whole, shift), i - 1);
    sum += i == 1 || !is_integer ? d->multiples[i - 1].divisor : 0;
  }
  d->multiple_count = is_integer ? 1 : most + 1;
  if (!is_exact || sum > MGL_JSON_MAX_DIVISOR) {
    (void)mgl_schema_fail(r, place, MGL_ERR_UNSUPPORTED,
                          "\"multipleOf\": expected a number below 1e9 of at most %d places behind "
                          "the point, with at most %d remainders, found %g",
                          MOST_PLACES, MGL_JSON_MAX_DIVISOR, number);
  }
}

// --- a schema ------------------------------------------------------------------------------------

typedef struct bounds {
  double low, high;
  bool low_excluded, high_excluded;
} bounds;

static void take_bound(mgl_schema_reader *r, const json_t *schema, const char *keyword, bounds *out,
                       bool is_low, bool excluded, const mgl_schema_place *place) {
  const json_t *value = json_object_get(schema, keyword);
  double number = json_number_value(value);
  if (value != NULL && !json_is_number(value)) {
    (void)mgl_schema_fail(r, place, MGL_ERR_ARGUMENT, "\"%s\": expected a number", keyword);
  } else if (value != NULL && number != 0 && fabs(number) < 1e-15) {
    (void)mgl_schema_fail(r, place, MGL_ERR_UNSUPPORTED,
                          "\"%s\": expected 0 or a number of at least 1e-15", keyword);
  } else if (value != NULL && is_low && (number > out->low || (excluded && number == out->low))) {
    out->low = number;
    out->low_excluded = excluded;
  } else if (value != NULL && !is_low &&
             (number < out->high || (excluded && number == out->high))) {
    out->high = number;
    out->high_excluded = excluded;
  }
}

const mgl_expression *mgl_schema_number(mgl_schema_reader *r, const json_t *schema, bool is_integer,
                                        const mgl_schema_place *place) {
  mgl_builder *b = r->b;
  mgl_multiples by_places[MOST_PLACES + 1];
  digits_maker d = {.b = b,
                    .nothing = mgl_expression_sequence(b, NULL, 0),
                    .never = mgl_expression_choice(b, NULL, 0),
                    .multiples = by_places};
  bounds range = {.low = -INFINITY, .high = INFINITY};
  take_bound(r, schema, "minimum", &range, true, false, place);
  take_bound(r, schema, "exclusiveMinimum", &range, true, true, place);
  take_bound(r, schema, "maximum", &range, false, false, place);
  take_bound(r, schema, "exclusiveMaximum", &range, false, true, place);
  read_divisor(r, schema, is_integer, &d, place);
  if (isinf(range.low) && isinf(range.high) && d.multiple_count == 0) {
    return is_integer ? r->rules->integer : r->rules->number;
  }
  if (mgl_builder_failed(b) || range.low > range.high) {
    return d.never;
  }
  const mgl_expression *(*make)(const digits_maker *, const decimal *, const decimal *) =
      d.multiple_count > 0 ? multiples
      : is_integer         ? integers
                           : decimals;
  const mgl_expression *parts[2];
  size_t count = 0;
  const decimal zero = {.excluded = false};
  const decimal above_zero = {.excluded = true};
  decimal low = decimal_of(range.low, range.low_excluded);
  decimal high = decimal_of(range.high, range.high_excluded);
  if (range.high >= 0) {
    parts[count++] = make(&d, range.low < 0 ? &zero : &low, &high);
  }
  if (range.low < 0) {  // the sizes of negative numbers; 0 has no sign
    bool is_below = range.high < 0;
    parts[count++] = MGL_SEQUENCE(b, mgl_expression_string(b, "-"),
                                  make(&d, is_below ? &high : &above_zero, &low));
  }
  return mgl_expression_choice(b, parts, count);
}
