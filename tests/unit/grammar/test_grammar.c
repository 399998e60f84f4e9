// Grammars of every kind, construct by construct: texts that match and texts that do not.
#include "grammar/grammar.h"

#include <limits.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

// cmocka.h needs the headers above.
#include <cmocka.h>

#include "base/alloc.h"
#include "support/must.h"

// A vocabulary of the 256 bytes and two special tokens.
static mgl_vocabulary *byte_vocabulary(void) {
  enum { COUNT = 258 };
  static char bytes[256];
  mgl_vocabulary_token tokens[COUNT];
  mgl_vocabulary *v = NULL;
  for (int i = 0; i < COUNT; i++) {
    if (i < 256) {
      bytes[i] = (char)i;
    }
    tokens[i] = (mgl_vocabulary_token){
        .bytes = i < 256 ? &bytes[i] : "", .count = i < 256 ? 1 : 0, .is_special = i >= 256};
  }
  MUST(mgl_vocabulary_create(tokens, COUNT, &v, &err));
  return v;
}

static mgl_grammar *compile(mgl_grammar_kind kind, const char *text) {
  mgl_grammar *g = NULL;
  mgl_error err = {0};
  mgl_vocabulary *v = byte_vocabulary();
  mgl_status status = mgl_grammar_compile(
      &(mgl_grammar_source){.kind = kind, .text = text, .bytes = strlen(text)}, v, NULL, &g, &err);
  if (status != MGL_OK) {
    print_message("%s\n%s\n", text, err.text);
  }
  assert_int_equal(status, MGL_OK);
  mgl_vocabulary_release(v);
  return g;
}

static bool matches(const mgl_grammar *g, const char *text, size_t bytes) {
  mgl_matcher m;
  bool alive = true;
  MUST(mgl_matcher_init(&m, mgl_grammar_automaton(g), &err));
  MUST(mgl_matcher_advance(&m, text, bytes, &alive, &err));
  bool result = alive && mgl_matcher_accepts(&m);
  mgl_matcher_reset(&m);
  return result;
}

// Texts, with a NULL behind the last one.
typedef struct grammar_case {
  mgl_grammar_kind kind;
  const char *grammar;
  const char *good[24];
  const char *bad[24];
} grammar_case;

static void check_cases(const grammar_case *cases, size_t count) {
  for (size_t i = 0; i < count; i++) {
    mgl_grammar *g = compile(cases[i].kind, cases[i].grammar);
    for (const char *const *text = cases[i].good; *text != NULL; text++) {
      if (!matches(g, *text, strlen(*text))) {
        fail_msg("%s does not match %s", cases[i].grammar, *text);
      }
    }
    for (const char *const *text = cases[i].bad; *text != NULL; text++) {
      if (matches(g, *text, strlen(*text))) {
        fail_msg("%s matches %s", cases[i].grammar, *text);
      }
    }
    mgl_grammar_release(g);
  }
}

static void test_regex(void **state) {
  static const grammar_case cases[] = {
      {MGL_GRAMMAR_REGEX, "abc", {"abc"}, {"", "ab", "abcd", "xabc"}},
      {MGL_GRAMMAR_REGEX, "^abc$", {"abc"}, {"", "ab", "abcd"}},
      {MGL_GRAMMAR_REGEX, "a|bc|", {"a", "bc", ""}, {"b", "abc"}},
      {MGL_GRAMMAR_REGEX, "(a|b)*c", {"c", "ac", "babac"}, {"", "abab", "cc"}},
      {MGL_GRAMMAR_REGEX, "a+b?", {"a", "aab", "ab"}, {"b", "abb", ""}},
      {MGL_GRAMMAR_REGEX, "a*|b", {"", "aaa", "b"}, {"ab", "bb"}},
      {MGL_GRAMMAR_REGEX, "x{2}y{2,}z{1,3}", {"xxyyz", "xxyyyyzzz"}, {"xyyz", "xxyyzzzz", "xxyz"}},
      {MGL_GRAMMAR_REGEX, "[a-cx]\\d\\D", {"a0x", "x9\xc3\xa9"}, {"d0x", "a00"}},
      {MGL_GRAMMAR_REGEX, "[^a-c]", {"d", "\n", "\xf0\x9f\x98\x80"}, {"a", "\xed\xa0\x80", "\xff"}},
      {MGL_GRAMMAR_REGEX, ".", {"a", "\xe2\x82\xac", "\t"}, {"\n", "\r", "\xe2\x80\xa8", "ab"}},
      {MGL_GRAMMAR_REGEX, "\\w+\\s\\S\\W", {"ab_1 x-", "a\tx "}, {"a x_", " xx-"}},
      {MGL_GRAMMAR_REGEX, "\\x41\\u00e9\\u{1F600}\\t\\.", {"A\xc3\xa9\xf0\x9f\x98\x80\t."}, {"A"}},
      {MGL_GRAMMAR_REGEX, "\\uD83D\\uDE00", {"\xf0\x9f\x98\x80"}, {""}},
      {MGL_GRAMMAR_REGEX, "(?:a|(?<n>b))+?", {"a", "ba"}, {"", "c"}},
      {MGL_GRAMMAR_REGEX, "[\\]\\-\\^.]+", {"]-^."}, {"a"}},
      {MGL_GRAMMAR_REGEX, "[\xc3\xa4-\xc3\xb6]", {"\xc3\xa5"}, {"\xc3\xbf", "a"}},
      {MGL_GRAMMAR_REGEX, "((a|b)*(c|d)*)*", {"", "abcdab"}, {"e"}},
      {MGL_GRAMMAR_REGEX, "(a?){3}b{0}", {"", "aaa"}, {"aaaa", "b"}},
  };
  (void)state;
  check_cases(cases, sizeof cases / sizeof *cases);
}

static void test_choice(void **state) {
  static const grammar_case cases[] = {
      {MGL_GRAMMAR_CHOICE, "[\"yes\", \"no\"]", {"yes", "no"}, {"", "y", "yesno", "noo"}},
      {MGL_GRAMMAR_CHOICE,
       "[\"a\", \"ab\", \"abc\", \"b\", \"a\"]",
       {"a", "ab", "abc", "b"},
       {"", "abcd", "bb"}},
  };
  (void)state;
  check_cases(cases, sizeof cases / sizeof *cases);
}

static void test_ebnf(void **state) {
  static const grammar_case cases[] = {
      {MGL_GRAMMAR_EBNF, "root ::= \"a\" | 'b' x\nx ::= [0-9]+ # end", {"a", "b07"}, {"b", "c"}},
      {MGL_GRAMMAR_EBNF,
       "# sums\nroot ::= term (\"+\" term)*\nterm ::= [0-9]\n  | \"(\" root \")\"",
       {"1", "1+2", "((1+2)+3)+4"},
       {"", "1+", "(1", "1)"}},
      {MGL_GRAMMAR_EBNF, "root ::= \"\" | \"[\" root \"]\"", {"", "[[]]"}, {"[", "]["}},
      {MGL_GRAMMAR_EBNF,
       "root ::= x{2} y{1,} z{0,2}\nx::=\"x\"\ny::=\"y\"\nz::=.",
       {"xxy", "xxyyab"},
       {"xy", "xxyabc"}},
      {MGL_GRAMMAR_EBNF,
       "root ::= \"\\x41\\u00e9\\n\\\"\" [^\\]]?",
       {"A\xc3\xa9\n\"", "A\xc3\xa9\n\"x"},
       {"A\xc3\xa9\n\"]"}},
      {MGL_GRAMMAR_EBNF, "root ::= a-b a_b\na-b ::= \"1\"\na_b ::= \"2\"", {"12"}, {"1"}},
  };
  (void)state;
  check_cases(cases, sizeof cases / sizeof *cases);
}

static void test_json(void **state) {
  static const grammar_case cases[] = {
      {MGL_GRAMMAR_JSON_OBJECT,
       "",
       {"{}", "{\"a\":1}", "{\"a\": [1, -2.5e3, null], \"b\": {\"c\": \"x\"}}", "{\n  \"a\": 1\n}",
        "{\"a\":\"\\n\\u00e9\\ud83d\\ude00\xf0\x9f\x98\x80\"}", "{ }"},
       {"", "[]", "{", "{\"a\"}", "{\"a\":1,}", "{\"a\":01}", "{a:1}", "{\"a\":\"\\ud83d\"}",
        "{\"a\":\"\n\"}", "{\"a\":\"\x80\"}", "{\"a\":1.}", "{\"a\":.5}", "{} ", "{\"a\":+1}",
        "{\"a\":\"\\x\"}"}},
      {MGL_GRAMMAR_JSON_SCHEMA, "{}", {"1", "null", "\"x\"", "[]", "{}", "true"}, {"", "nul"}},
      {MGL_GRAMMAR_JSON_SCHEMA, "true", {"1"}, {""}},
      {MGL_GRAMMAR_JSON_SCHEMA,
       "{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"integer\"},\"b\":{\"type\":"
       "\"string\"}},\"required\":[\"a\",\"b\"],\"additionalProperties\":false}",
       {"{\"a\":1,\"b\":\"\"}", "{\"a\": -10, \"b\": \"x\"}"},
       {"{}", "{\"a\":1}", "{\"b\":\"\",\"a\":1}", "{\"a\":1.5,\"b\":\"\"}",
        "{\"a\":1,\"b\":\"\",\"c\":1}"}},
      {MGL_GRAMMAR_JSON_SCHEMA,
       "{\"properties\":{\"a\":{\"const\":1},\"b\":{\"const\":2},\"c\":{\"const\":3}},"
       "\"required\":[\"b\"]}",
       {"{\"b\":2}", "{\"a\":1,\"b\":2}", "{\"b\":2,\"c\":3}", "{\"a\":1,\"b\":2,\"c\":3}"},
       {"{}", "{\"a\":1}", "{\"a\":1,\"c\":3}", "{\"b\":2,\"d\":3}", "{\"b\":2,\"b\":2}"}},
      {MGL_GRAMMAR_JSON_SCHEMA,
       "{\"properties\":{\"a\":{\"const\":1},\"ab\":{\"const\":2}},"
       "\"additionalProperties\":{\"type\":\"boolean\"}}",
       {"{}", "{\"a\":1}", "{\"ab\":2}", "{\"b\":true}",
        "{\"a\":1,\"ab\":2,\"abc\":true,\"\":false}", "{\"aa\":true}"},
       {"{\"a\":true}", "{\"ab\":true}", "{\"b\":1}", "{\"\\u0061\":true}"}},
      {MGL_GRAMMAR_JSON_SCHEMA,
       "{\"type\":\"array\",\"items\":{\"enum\":[1,\"a\",null]},\"minItems\":1,\"maxItems\":3}",
       {"[1]", "[\"a\",null]", "[ 1, 1, 1 ]"},
       {"[]", "[2]", "[1,1,1,1]", "[1,]"}},
      {MGL_GRAMMAR_JSON_SCHEMA,
       "{\"prefixItems\":[{\"const\":1},{\"const\":2}],\"items\":{\"const\":3}}",
       {"[]", "[1]", "[1,2]", "[1,2,3,3]"},
       {"[2]", "[1,3]", "[1,2,4]"}},
      {MGL_GRAMMAR_JSON_SCHEMA,
       "{\"prefixItems\":[{\"const\":1},{\"const\":2}],\"items\":false,\"minItems\":1}",
       {"[1]", "[1,2]"},
       {"[]", "[1,2,3]"}},
      {MGL_GRAMMAR_JSON_SCHEMA,
       "{\"anyOf\":[{\"type\":\"integer\"},{\"type\":\"null\"}]}",
       {"1", "null"},
       {"true", "\"\""}},
      {MGL_GRAMMAR_JSON_SCHEMA,
       "{\"oneOf\":[{\"type\":\"integer\"},{\"type\":[\"null\",\"boolean\"]}]}",
       {"1", "null", "false"},
       {"{}", "1.5"}},
      {MGL_GRAMMAR_JSON_SCHEMA,
       "{\"$defs\":{\"n\":{\"properties\":{\"v\":{\"type\":\"integer\"},\"next\":{\"anyOf\":[{"
       "\"$ref\":\"#/$defs/n\"},{\"type\":\"null\"}]}},\"required\":[\"v\",\"next\"]}},\"$ref\":"
       "\"#/$defs/n\"}",
       {"{\"v\":1,\"next\":null}", "{\"v\":1,\"next\":{\"v\":2,\"next\":null}}"},
       {"{\"v\":1}", "{\"v\":1,\"next\":1}"}},
      {MGL_GRAMMAR_JSON_SCHEMA,
       "{\"allOf\":[{\"properties\":{\"a\":{\"type\":\"number\"}},\"required\":[\"a\"]},"
       "{\"properties\":{\"a\":{\"minimum\":3,\"maximum\":7},\"b\":{\"type\":\"null\"}}}]}",
       {"{\"a\":3}", "{\"a\":7.0,\"b\":null}", "{\"a\":5.25}"},
       {"{}", "{\"a\":2}", "{\"a\":7.5}", "{\"a\":2.99}"}},
      {MGL_GRAMMAR_JSON_SCHEMA, "{\"type\":[\"string\",\"null\"]}", {"\"\"", "null"}, {"1"}},
      {MGL_GRAMMAR_JSON_SCHEMA, "{\"type\":\"string\",\"nullable\":true}", {"null"}, {"1"}},
  };
  (void)state;
  check_cases(cases, sizeof cases / sizeof *cases);
}

static void test_json_strings(void **state) {
  static const grammar_case cases[] = {
      {MGL_GRAMMAR_JSON_SCHEMA,
       "{\"type\":\"string\",\"minLength\":2,\"maxLength\":3}",
       {"\"ab\"", "\"\\n\xf0\x9f\x98\x80\xc3\xa9\"", "\"\\ud83d\\ude00x\""},
       {"\"a\"", "\"abcd\"", "\"\""}},
      {MGL_GRAMMAR_JSON_SCHEMA,
       "{\"type\":\"string\",\"pattern\":\"^[a-z\\\"\\\\\\\\]+$\"}",
       {"\"abc\"", "\"\\\"\\\\\""},
       {"\"\"", "\"A\"", "\"\\n\""}},
      {MGL_GRAMMAR_JSON_SCHEMA, "{\"pattern\":\"b\"}", {"\"b\"", "\"abc\""}, {"\"ac\"", "\"\""}},
      {MGL_GRAMMAR_JSON_SCHEMA,
       "{\"format\":\"date\"}",
       {"\"2024-02-29\"", "\"1999-12-31\"", "\"2000-02-29\""},
       {"\"2023-02-29\"", "\"1900-02-29\"", "\"2024-04-31\"", "\"2024-13-01\"", "\"0000-01-01\""}},
      {MGL_GRAMMAR_JSON_SCHEMA,
       "{\"format\":\"date-time\"}",
       {"\"2024-01-31T23:59:59Z\"", "\"2024-01-31T00:00:00.5+01:30\""},
       {"\"2024-01-31\"", "\"2024-01-31T24:00:00Z\""}},
      {MGL_GRAMMAR_JSON_SCHEMA,
       "{\"format\":\"uuid\"}",
       {"\"123e4567-e89b-12d3-a456-426614174000\""},
       {"\"123e4567e89b12d3a456426614174000\""}},
      {MGL_GRAMMAR_JSON_SCHEMA, "{\"format\":\"ipv4\"}", {"\"127.0.0.1\""}, {"\"256.0.0.1\""}},
      {MGL_GRAMMAR_JSON_SCHEMA,
       "{\"format\":\"ipv6\"}",
       {"\"::\"", "\"::1\"", "\"fe80::1:2\"", "\"1:2:3:4:5:6:7:8\"", "\"1::\""},
       {"\"1:2:3\"", "\":::\"", "\"1::2::3\""}},
      {MGL_GRAMMAR_JSON_SCHEMA, "{\"format\":\"email\"}", {"\"a.b@c.de\""}, {"\"a@\"", "\"@b\""}},
      {MGL_GRAMMAR_JSON_SCHEMA,
       "{\"format\":\"duration\"}",
       {"\"P1Y2M3DT4H5M6S\"", "\"PT5M\"", "\"P2W\""},
       {"\"P\"", "\"PT\"", "\"P1Y3D\""}},
      {MGL_GRAMMAR_JSON_SCHEMA,
       "{\"format\":\"hostname\"}",
       {"\"a.b-c.d\""},
       {"\"-a\"", "\"a..b\""}},
      {MGL_GRAMMAR_JSON_SCHEMA,
       "{\"format\":\"uri\"}",
       {"\"https://a.b/c?d=e#f\"", "\"x://y\""},
       {"\"a.b\"", "\"http:// x\""}},
      {MGL_GRAMMAR_JSON_SCHEMA, "{\"format\":\"time\"}", {"\"10:00:00Z\""}, {"\"10:00\""}},
  };
  (void)state;
  check_cases(cases, sizeof cases / sizeof *cases);
}

// Every whole number and every decimal of a grid, against the comparison itself.
static void test_json_numbers(void **state) {
  static const double bounds[] = {-130, -25.5, -9, -1, -0.25, 0, 0.1, 0.75, 1, 7, 10, 99.99, 130};
  enum { COUNT = sizeof bounds / sizeof *bounds };
  (void)state;
  for (int form = 0; form < 4; form++) {
    for (int i = 0; i < COUNT; i++) {
      for (int j = i; j < COUNT; j++) {
        char schema[200];
        bool is_integer = form % 2 != 0;
        bool excludes = form >= 2;
        (void)snprintf(schema, sizeof schema, "{\"type\":\"%s\",\"%s\":%g,\"%s\":%g}",
                       is_integer ? "integer" : "number", excludes ? "exclusiveMinimum" : "minimum",
                       bounds[i], excludes ? "exclusiveMaximum" : "maximum", bounds[j]);
        mgl_error err = {0};
        mgl_grammar *g = NULL;
        mgl_vocabulary *v = byte_vocabulary();
        mgl_status status = mgl_grammar_compile(
            &(mgl_grammar_source){MGL_GRAMMAR_JSON_SCHEMA, schema, strlen(schema)}, v, NULL, &g,
            &err);
        mgl_vocabulary_release(v);
        int found = 0;
        for (int k = -14000; k <= 14000; k += k % 100 == 0 ? 1 : 7) {
          char text[32];
          double value = k / 100.0;
          bool is_whole = k % 100 == 0;
          bool fits = excludes ? value > bounds[i] && value < bounds[j]
                               : value >= bounds[i] && value <= bounds[j];
          (void)snprintf(text, sizeof text, is_whole ? "%.0f" : "%.2f", value);
          fits = fits && (is_whole || !is_integer) && strcmp(text, "-0") != 0;
          found += fits ? 1 : 0;
          if (status == MGL_OK && matches(g, text, strlen(text)) != fits) {
            fail_msg("%s and %s", schema, text);
          }
        }
        assert_true(status == MGL_OK || found == 0);
        mgl_grammar_release(g);
      }
    }
  }
}

// Numbers of 0 to 3 places in a grid, with divisors and bounds in thousandths.
static void check_multiples(bool is_integer, int divisor, int low, int high) {
  char schema[200];
  char bounds[100] = "";
  int count = 0;
  if (low != INT_MIN) {
    (void)snprintf(bounds, sizeof bounds, ",\"minimum\":%g,\"exclusiveMaximum\":%g", low / 1000.0,
                   high / 1000.0);
  }
  (void)snprintf(schema, sizeof schema, "{\"type\":\"%s\",\"multipleOf\":%g%s}",
                 is_integer ? "integer" : "number", divisor / 1000.0, bounds);
  mgl_error err = {0};
  mgl_grammar *g = NULL;
  mgl_vocabulary *v = byte_vocabulary();
  mgl_status status = mgl_grammar_compile(
      &(mgl_grammar_source){MGL_GRAMMAR_JSON_SCHEMA, schema, strlen(schema)}, v, NULL, &g, &err);
  mgl_vocabulary_release(v);
  int places = divisor % 1000 == 0 ? 0 : divisor % 100 == 0 ? 1 : divisor % 10 == 0 ? 2 : 3;
  for (int k = -5000; k <= 125000; k += k % 1000 == 0 || k < 1200 ? 1 : 137) {
    bool fits = k % divisor == 0 && (low == INT_MIN || (k >= low && k < high));
    count += fits && (!is_integer || k % 1000 == 0) ? 1 : 0;
    for (int shown = 0, unit = 1000; shown <= 3 && status == MGL_OK; shown++, unit /= 10) {
      char text[32];
      (void)snprintf(text, sizeof text, "%.*f", shown, k / 1000.0);
      bool taken = matches(g, text, strlen(text));
      // As many places as the divisor has, and not -0.
      bool expected =
          k % unit == 0 && fits && shown <= (is_integer ? 0 : places) && (text[0] != '-' || k != 0);
      if (k % unit == 0 && taken != expected) {
        fail_msg("%s and %s: %s", schema, text, taken ? "taken" : "not taken");
      }
    }
  }
  if (status != MGL_OK && count > 0) {
    fail_msg("%s: %s", schema, err.text);
  }
  mgl_grammar_release(g);
}

static void test_json_multiples(void **state) {
  static const int divisors[] = {1,    10,   100, 250,   500,   1500,  1000,  2000,  3000,
                                 5000, 7000, 990, 10000, 12000, 30000, 60000, 100000};
  static const int bounds[][2] = {{INT_MIN, 0},   {0, 1000},      {-4500, 99}, {1, 100000},
                                  {-3000, -1000}, {9000, 120001}, {500, 500}};
  static const grammar_case cases[] = {
      {MGL_GRAMMAR_JSON_SCHEMA,
       "{\"multipleOf\":360}",
       {"0", "-360", "720", "360000", "999999999999999720"},
       {"1", "36", "00", "361", "1e2", "360.0"}},
      {MGL_GRAMMAR_JSON_SCHEMA,
       "{\"multipleOf\":1000000,\"maximum\":3000000}",
       {"0", "1000000", "3000000", "-900000000000000000"},
       {"4000000", "100000", "00", "000000"}},
      {MGL_GRAMMAR_JSON_SCHEMA,
       "{\"type\":\"object\",\"properties\":{\"price\":{\"type\":\"number\",\"minimum\":0,"
       "\"multipleOf\":0.01}},\"required\":[\"price\"]}",
       {"{\"price\":19.99}", "{\"price\": 19.9}", "{\"price\": 20}", "{\"price\":0.01}"},
       {"{\"price\":19.999}", "{\"price\":-1}", "{\"price\":.5}", "{\"price\":01}"}},
  };
  (void)state;
  check_cases(cases, sizeof cases / sizeof *cases);
  for (size_t i = 0; i < sizeof divisors / sizeof *divisors; i++) {
    for (size_t j = 0; j < sizeof bounds / sizeof *bounds; j++) {
      check_multiples(false, divisors[i], bounds[j][0], bounds[j][1]);
      check_multiples(true, divisors[i], bounds[j][0], bounds[j][1]);
    }
  }
}

static void test_parts(void **state) {
  static const grammar_case cases[] = {
      {MGL_GRAMMAR_PARTS,
       "{\"sequence\":[{\"text\":\"<t>\"},{\"schema\":{\"type\":\"integer\"}},{\"text\":\"</"
       "t>\"}]}",
       {"<t>12</t>"},
       {"<t></t>", "12"}},
      {MGL_GRAMMAR_PARTS,
       "{\"sequence\":[{\"text_without\":\"abab\"},{\"text\":\"!\"}]}",
       {"!", "aba!", "abaab!", "abbabaa!", "\xc3\xa9 x!", "a!!"},
       {"abab!", "xababx!", "aabab!", "ababab!"}},
      {MGL_GRAMMAR_PARTS,
       "{\"repeat\":{\"any_of\":[{\"regex\":\"[ab]\"},{\"choice\":[\"x\"]},{\"grammar\":\"root ::= "
       "\\\"y\\\"\"}]},\"min\":1,\"max\":2}",
       {"a", "xb", "yy"},
       {"", "aaa"}},
      {MGL_GRAMMAR_PARTS, "{\"json_object\":true}", {"{}"}, {"[]"}},
  };
  (void)state;
  check_cases(cases, sizeof cases / sizeof *cases);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_regex),          cmocka_unit_test(test_choice),
      cmocka_unit_test(test_ebnf),           cmocka_unit_test(test_json),
      cmocka_unit_test(test_json_strings),   cmocka_unit_test(test_json_numbers),
      cmocka_unit_test(test_json_multiples), cmocka_unit_test(test_parts),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
