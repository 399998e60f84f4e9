// Grammars that want too much: each is refused with a message, or works, within limits of time.
#include "grammar/grammar.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// cmocka.h needs the headers above.
#include <cmocka.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/text.h"
#include "support/must.h"

// All bytes, and a few strings.
static mgl_vocabulary *small_vocabulary(void) {
  static const char *const words[] = {"the", "a\"", "\": ", "{\"", "  ", "12"};
  enum { WORDS = sizeof words / sizeof *words };
  static char bytes[256];
  mgl_vocabulary_token tokens[256 + WORDS];
  mgl_vocabulary *v = NULL;
  for (size_t i = 0; i < 256 + WORDS; i++) {
    if (i < 256) {
      bytes[i] = (char)i;
      tokens[i] = (mgl_vocabulary_token){.bytes = &bytes[i], .count = 1};
    } else {
      tokens[i] = (mgl_vocabulary_token){.bytes = words[i - 256], .count = strlen(words[i - 256])};
    }
  }
  MUST(mgl_vocabulary_create(tokens, 256 + WORDS, &v, &err));
  return v;
}

static mgl_status compile(mgl_vocabulary *v, mgl_grammar_kind kind, const char *text, size_t bytes,
                          mgl_grammar **out, mgl_error *err) {
  const mgl_grammar_source source = {.kind = kind, .text = text, .bytes = bytes};
  return mgl_grammar_compile(&source, v, NULL, out, err);
}

// Compiles it, and follows some tokens of it. *message: of a refusal, or of a mask that is too
// ambiguous; "" if all went well. Never longer than a few seconds.
static void try_grammar(mgl_grammar_kind kind, const mgl_text *text, mgl_error *err) {
  enum { MOST_SECONDS = 6 };
  mgl_vocabulary *v = small_vocabulary();
  mgl_grammar *g = NULL;
  uint64_t start_ns = mgl_clock_ns();
  *err = (mgl_error){0};
  mgl_status status = compile(v, kind, text->data, text->bytes, &g, err);
  mgl_matcher m = {0};
  if (status == MGL_OK) {
    status = mgl_matcher_init(&m, mgl_grammar_automaton(g), err);
  }
  for (int i = 0; i < 40 && status == MGL_OK; i++) {
    uint64_t mask[8];
    uint32_t id = 0;
    size_t count = 0;
    bool alive = false;
    status = mgl_mask_make(mgl_grammar_masks(g), &m, mask, err);
    while (id < v->token_count && (mask[id / 64] >> (id % 64) & 1) == 0) {
      id++;
    }
    if (status != MGL_OK || id == v->token_count) {
      break;
    }
    const char *token = mgl_vocabulary_bytes(v, id, &count);
    status = mgl_matcher_advance(&m, token, count, &alive, err);
    assert_true(status != MGL_OK || alive);
  }
  double seconds = (double)(mgl_clock_ns() - start_ns) / 1e9;
  if (status == MGL_OK) {
    *err = (mgl_error){0};
  } else {
    assert_int_not_equal(status, MGL_ERR_INTERNAL);
  }
#ifndef MGL_TEST_SANITIZED
  assert_true(seconds < MOST_SECONDS);
#endif
  print_message("%6.3f s %7zu bytes: %.100s\n", seconds, text->bytes,
                err->text[0] == 0 ? "works" : err->text);
  mgl_matcher_reset(&m);
  mgl_grammar_release(g);
  mgl_vocabulary_release(v);
}

static void repeat(mgl_text *text, const char *part, size_t count) {
  for (size_t i = 0; i < count; i++) {
    mgl_text_append_string(text, part);
  }
}

static void expect(mgl_grammar_kind kind, mgl_text *text, const char *message) {
  mgl_error err = {0};
  try_grammar(kind, text, &err);
  if (strstr(err.text, message) == NULL || (message[0] == 0 && err.text[0] != 0)) {
    fail_msg("%.60s: expected \"%s\", found \"%s\"", text->data, message, err.text);
  }
  mgl_text_free(text);
}

static void test_deep(void **state) {
  enum { DEEP = 60000 };
  mgl_text text = {0};
  (void)state;
  repeat(&text, "{\"items\":", DEEP);
  repeat(&text, "{}", 1);
  repeat(&text, "}", DEEP);
  expect(MGL_GRAMMAR_JSON_SCHEMA, &text, "deep");
  repeat(&text, "(", DEEP);
  repeat(&text, ")", DEEP);
  expect(MGL_GRAMMAR_REGEX, &text, "groups within each other");
  repeat(&text, "root ::= ", 1);
  repeat(&text, "(", DEEP);
  repeat(&text, ")", DEEP);
  expect(MGL_GRAMMAR_EBNF, &text, "parentheses within each other");
  // Rules in rules, as many as there may be; a text gets only so deep.
  for (int i = 0; i < 10000; i++) {
    mgl_text_format(&text, "r%d ::= \"(\" r%d \")\"\n", i, i + 1);
  }
  repeat(&text, "r10000 ::= \"x\"\nroot ::= r0", 1);
  expect(MGL_GRAMMAR_EBNF, &text, "");
  // Merging a schema with itself has no end.
  repeat(&text, "{\"properties\":{\"a\":{\"$ref\":\"#\",\"minProperties\":0}}}", 1);
  expect(MGL_GRAMMAR_JSON_SCHEMA, &text, "\"minProperties\" is not supported");
  repeat(&text, "{\"properties\":{\"a\":{\"$ref\":\"#\",\"required\":[\"a\"]}}}", 1);
  expect(MGL_GRAMMAR_JSON_SCHEMA, &text, "within each other");
  repeat(&text,
         "{\"$defs\":{\"a\":{\"$ref\":\"#/$defs/b\",\"type\":\"null\"},\"b\":{\"$ref\":"
         "\"#/$defs/a\",\"type\":\"null\"}},\"$ref\":\"#/$defs/a\"}",
         1);
  expect(MGL_GRAMMAR_JSON_SCHEMA, &text, "in a circle");
}

// What is refused says which keyword and where.
static void test_divisors(void **state) {
  static const char *const divisors[][2] = {
      {"0", "expected a number above 0"}, {"-3", "above 0"},           {"\"x\"", "above 0"},
      {"9.99", "at most 512 remainders"}, {"1031", "found 1031"},      {"1e9", "below 1e9"},
      {"1e-10", "at most 9 places"},      {"1.0000000001", "9 places"}};
  mgl_text text = {0};
  (void)state;
  for (size_t i = 0; i < sizeof divisors / sizeof *divisors; i++) {
    for (size_t part = 0; part < 2; part++) {
      mgl_text_format(&text, "{\"properties\":{\"a\":{\"type\":\"number\",\"multipleOf\":%s}}}",
                      divisors[i][0]);
      expect(MGL_GRAMMAR_JSON_SCHEMA, &text,
             part == 0 ? "schema at /properties/a: \"multipleOf\": expected" : divisors[i][1]);
    }
  }
}

static void test_large(void **state) {
  mgl_text text = {0};
  (void)state;
  repeat(&text, "(((a{1000}){1000}){1000}){1000}", 1);
  expect(MGL_GRAMMAR_REGEX, &text, "262144 states");
  repeat(&text, "[^a]{60000}", 1);
  expect(MGL_GRAMMAR_REGEX, &text, "262144 states");
  repeat(&text, "a{65537}", 1);
  expect(MGL_GRAMMAR_REGEX, &text, "at most 65536 repetitions");
  repeat(&text, "{\"type\":\"string\",\"maxLength\":60000}", 1);
  expect(MGL_GRAMMAR_JSON_SCHEMA, &text, "262144 states");
  repeat(&text, "{\"type\":\"string\",\"maxLength\":4000}", 1);
  expect(MGL_GRAMMAR_JSON_SCHEMA, &text, "");
  repeat(&text, "a", (1 << 20) + 1);
  expect(MGL_GRAMMAR_REGEX, &text, "at most 1048576 bytes");
  // A list of 40000 texts that begin alike.
  repeat(&text, "[", 1);
  for (int i = 0; i < 40000; i++) {
    mgl_text_format(&text, "%s\"number %d\"", i == 0 ? "" : ",", i);
  }
  repeat(&text, "]", 1);
  expect(MGL_GRAMMAR_CHOICE, &text, "");
  repeat(&text, "{\"enum\":[", 1);
  for (int i = 0; i < 40000; i++) {
    mgl_text_format(&text, "%s%d", i == 0 ? "" : ",", i * 7919);
  }
  repeat(&text, "]}", 1);
  expect(MGL_GRAMMAR_JSON_SCHEMA, &text, "");
  for (int required = 0; required < 2; required++) {
    repeat(&text, "{\"properties\":{", 1);
    for (int i = 0; i < 3000; i++) {
      mgl_text_format(&text, "%s\"p%d\":{\"type\":\"integer\"}", i == 0 ? "" : ",", i);
    }
    repeat(&text, "},\"required\":[", 1);
    for (int i = 0; i < 3000 && required == 1; i++) {
      mgl_text_format(&text, "%s\"p%d\"", i == 0 ? "" : ",", i);
    }
    repeat(&text, "]}", 1);
    expect(MGL_GRAMMAR_JSON_SCHEMA, &text, required == 1 ? "" : "too ambiguous");
  }
}

// Exponential and worse where somebody made it deterministic first, or looked back.
static void test_ambiguous(void **state) {
  mgl_text text = {0};
  (void)state;
  repeat(&text, "(a|b)*a(a|b){200}", 1);
  expect(MGL_GRAMMAR_REGEX, &text, "");
  repeat(&text, "((a+)+)+b", 1);
  expect(MGL_GRAMMAR_REGEX, &text, "");
  repeat(&text, "(a?){500}a{500}", 1);
  expect(MGL_GRAMMAR_REGEX, &text, "");
  repeat(&text, "(\\w*\\d*)*@", 1);
  expect(MGL_GRAMMAR_REGEX, &text, "");
  repeat(&text, "([a-z]*[b-y]{0,50}){50}!", 1);
  expect(MGL_GRAMMAR_REGEX, &text, "");
  repeat(&text, "root ::= x x x x x\nx ::= \"\" | \"a\" | \"a\" x | x2 x2\nx2 ::= \"a\" x x", 1);
  expect(MGL_GRAMMAR_EBNF, &text, "too ambiguous");
  repeat(&text, "root ::= s\ns ::= \"a\" | \"a\" s s | \"a\" s s s | \"a\" s", 1);
  expect(MGL_GRAMMAR_EBNF, &text, "too ambiguous");
}

static void test_no_end(void **state) {
  static const struct {
    mgl_grammar_kind kind;
    const char *text, *message;
  } cases[] = {
      {MGL_GRAMMAR_EBNF, "root ::= \"a\" root", "rule root: no text matches it"},
      {MGL_GRAMMAR_EBNF, "root ::= a\na ::= b | \"x\"\nb ::= a \"y\"", "recursion on the left"},
      {MGL_GRAMMAR_EBNF, "root ::= e root \"a\" | \"b\"\ne ::= \"\"", "recursion on the left"},
      {MGL_GRAMMAR_JSON_SCHEMA, "{\"properties\":{\"a\":{\"$ref\":\"#\"}},\"required\":[\"a\"]}",
       "no text matches it"},
      {MGL_GRAMMAR_JSON_SCHEMA, "{\"$ref\":\"#\"}", "no text matches it"},
      {MGL_GRAMMAR_JSON_SCHEMA, "false", "no text matches it"},
      {MGL_GRAMMAR_JSON_SCHEMA, "{\"type\":\"integer\",\"minimum\":5,\"maximum\":4}",
       "no text matches it"},
      {MGL_GRAMMAR_REGEX, "a[]", "no text matches it"},
      // What can end of it stays.
      {MGL_GRAMMAR_JSON_SCHEMA, "{\"properties\":{\"a\":{\"$ref\":\"#\"}}}", ""},
      {MGL_GRAMMAR_EBNF, "root ::= \"a\" root | \"b\" | \"c\" x\nx ::= \"d\" x", ""},
  };
  (void)state;
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    mgl_text text = {0};
    repeat(&text, cases[i].text, 1);
    expect(cases[i].kind, &text, cases[i].message);
  }
}

// --- without memory ------------------------------------------------------------------------------

static const char whole_schema[] =
    "{\"type\":\"object\",\"properties\":{\"a\":{\"allOf\":[{\"type\":\"string\"},{\"pattern\":"
    "\"^a+$\"}]},\"b\":{\"enum\":[1,2]},\"c\":{\"$ref\":\"#/$defs/x\"}},\"required\":[\"b\"],"
    "\"additionalProperties\":{\"type\":\"number\",\"minimum\":0.5},\"$defs\":{\"x\":{\"type\":"
    "\"array\",\"items\":{\"$ref\":\"#/$defs/x\"}}}}";

static mgl_status use_grammar(void *context, mgl_error *err) {
  mgl_vocabulary *v = context;
  mgl_grammar *g = NULL;
  uint64_t mask[8];
  bool alive = false;
  MGL_TRY(compile(v, MGL_GRAMMAR_JSON_SCHEMA, whole_schema, strlen(whole_schema), &g, err));
  mgl_matcher m;
  mgl_status status = mgl_matcher_init(&m, mgl_grammar_automaton(g), err);
  if (status == MGL_OK) {
    status = mgl_matcher_advance(&m, "{\"a\":\"", 6, &alive, err);
  }
  if (status == MGL_OK) {
    status = mgl_mask_make(mgl_grammar_masks(g), &m, mask, err);
  }
  mgl_matcher_reset(&m);
  mgl_grammar_release(g);
  return status;
}

// Each allocation fails in turn: it says so, or, of what only makes masks faster, does without.
static void test_memory(void **state) {
  mgl_vocabulary *v = small_vocabulary();
  int64_t live = mgl_alloc_live();
  uint64_t failed = 0;
  bool reached = true;
  (void)state;
  for (uint64_t n = 1; reached; n++) {
    mgl_error err = {0};
    mgl_alloc_fail_nth(n);
    mgl_status status = use_grammar(v, &err);
    reached = mgl_alloc_count() >= n;
    mgl_alloc_fail_nth(0);
    assert_int_equal(live, mgl_alloc_live());
    assert_true(status == MGL_ERR_MEMORY || status == MGL_OK);
    failed += status != MGL_OK ? 1 : 0;
  }
  print_message("%d failures of allocations were told\n", (int)failed);
  assert_true(failed > 30);
  mgl_vocabulary_release(v);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_deep),   cmocka_unit_test(test_divisors),
      cmocka_unit_test(test_large),  cmocka_unit_test(test_ambiguous),
      cmocka_unit_test(test_no_end), cmocka_unit_test(test_memory),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
