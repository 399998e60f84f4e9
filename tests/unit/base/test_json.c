// JSON: what the parser refuses, and the typed readers.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <malloc.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/json.h"
#include "support/temp_folder.h"

static json_t *parse(const char *text) {
  json_t *root = NULL;
  mgl_error err = {0};
  if (mgl_json_parse(text, strlen(text), "x.json", &root, &err) != MGL_OK) {
    fail_msg("%s", err.text);
  }
  return root;
}

static void nested(char *text, size_t depth) {
  memset(text, '[', depth);
  memset(text + depth, ']', depth);
  text[2 * depth] = 0;
}

static void test_parse_refused(void **state) {
  (void)state;
  static const char *const cases[] = {
      "",
      " ",
      "{",
      "[1,]",
      "{\"a\":1,}",
      "{\"a\":1,\"a\":2}",
      "[1] 2",
      "{a:1}",
      "nul",
      "\"\xff\"",
      "\"\xc0\x80\"",
      "[1e999]",
      "[99999999999999999999]",
      "[NaN]",
      "'a'",
      "{\"a\\u0000\":1}",
      "[\"\n\"]",
      "[01]",
      "\"\\ud800\"",
  };
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    json_t *root = NULL;
    mgl_error err = {0};
    int64_t live = mgl_alloc_live();
    mgl_status status = mgl_json_parse(cases[i], strlen(cases[i]), "x.json", &root, &err);
    if (status != MGL_ERR_FORMAT || strstr(err.text, "x.json: expected JSON") != err.text) {
      fail_msg("case %zu: status %d \"%s\"", i, status, err.text);
    }
    assert_null(root);
    assert_int_equal(mgl_alloc_live(), live);
  }
}

static void test_depth(void **state) {
  (void)state;
  static char text[400002];
  json_t *root = NULL;
  mgl_error err = {0};
  nested(text, MGL_JSON_DEPTH);
  root = parse(text);
  json_decref(root);
  nested(text, MGL_JSON_DEPTH + 1);
  assert_int_equal(mgl_json_parse(text, strlen(text), "x", &root, &err), MGL_ERR_LIMIT);
  assert_non_null(strstr(err.text, "nested deeper than 64"));
  nested(text, 200000);  // must not reach a recursive parser
  assert_int_equal(mgl_json_parse(text, strlen(text), "x", &root, &err), MGL_ERR_LIMIT);
  // Brackets in strings do not nest, and an escaped quote does not end one.
  memset(text, '[', 1000);
  memcpy(text, "[\"\\\"\\\\", 6);
  memcpy(text + 1000, "\"]", 3);
  root = parse(text);
  assert_int_equal(json_string_length(json_array_get(root, 0)), 996);
  json_decref(root);
}

// What a text takes is known before, and never less than what jansson then takes.
static void check_memory(const char *element, size_t count) {
  size_t bytes = strlen(element);
  char *text = malloc(bytes * count + 3);
  assert_non_null(text);
  text[0] = '[';
  for (size_t i = 0; i < count; i++) {
    memcpy(text + 1 + i * bytes, element, bytes);
  }
  memcpy(text + bytes * count, "]", 2);  // in the place of the last comma
  uint64_t expected = mgl_json_count(text, strlen(text)).memory;
  size_t before = mallinfo2().uordblks + mallinfo2().hblkhd;
  json_t *root = parse(text);
  uint64_t taken = mallinfo2().uordblks + mallinfo2().hblkhd - before;
  json_decref(root);
  free(text);
#ifndef MGL_TEST_SANITIZED  // where mallinfo2 tells nothing
  if (taken > expected || expected > 2 * taken) {
    fail_msg("%s: expected at most %llu bytes, found %llu", element, (unsigned long long)expected,
             (unsigned long long)taken);
  }
#endif
  (void)taken;
  (void)expected;
}

static void test_memory(void **state) {
  (void)state;
  check_memory("{},", 65537);  // just behind a doubling of the array's table, the dearest place
  check_memory("[],", 65537);
  check_memory("1,", 65537);
  check_memory("-1.5,", 65537);
  check_memory("\"\",", 65537);
  check_memory("\"some text of a merge\",", 65537);
  check_memory("[\"a\",\"b\"],", 65537);
  check_memory("{\"a\":1},", 65537);
  check_memory("{\"dtype\":\"BF16\",\"shape\":[16,16],\"data_offsets\":[0,512]},", 30000);
  check_memory("{\"a\":1,\"b\":2,\"c\":3,\"d\":4,\"e\":5,\"f\":6,\"g\":7,\"h\":8,\"i\":9},", 9000);
  mgl_json_cost cost = mgl_json_count("[true,false,null]", 17);
  assert_true(cost.memory < 300);
  assert_int_equal(cost.depth, 1);
  assert_int_equal(cost.longest, 5);
  // What ends in the middle is read no further than it goes.
  static const char *const cut[] = {"\"", "\"\\", "[\"a\\\"", "{", "-", "1", "tru", ""};
  for (size_t i = 0; i < sizeof cut / sizeof cut[0]; i++) {
    (void)mgl_json_count(cut[i], strlen(cut[i]));
  }
}

// 77 times the memory of its text: refused by what it would take, before it takes it.
static void test_bomb(void **state) {
  (void)state;
  enum { COUNT = 2 << 20 };
  char *text = malloc(3 * COUNT + 2);
  json_t *root = NULL;
  mgl_error err = {0};
  assert_non_null(text);
  for (size_t i = 0; i < COUNT; i++) {
    memcpy(text + 3 * i, "{},", 3);
  }
  text[0] = '[';
  memcpy(text + 1, "{}", 2);
  for (size_t i = 1; i < COUNT; i++) {
    memcpy(text + 3 * i, ",{}", 3);
  }
  text[3 * COUNT] = ']';
  mgl_alloc_fail_nth(0);
  assert_int_equal(mgl_json_parse(text, 3 * COUNT + 1, "x.json", &root, &err), MGL_ERR_LIMIT);
  assert_non_null(strstr(err.text, "x.json: the values of this JSON would take 5"));
  assert_null(root);
  assert_int_equal(mgl_alloc_count(), 0);
  free(text);
}

// A string or number that no one needs is refused before jansson spends seconds on it.
static void test_long_tokens(void **state) {
  (void)state;
  enum { LONGEST = MGL_JSON_TOKEN_BYTES };
  char *text = malloc(LONGEST + 8);
  json_t *root = NULL;
  mgl_error err = {0};
  assert_non_null(text);
  memset(text, 'x', LONGEST + 4);
  text[0] = '[';
  text[1] = '"';
  memcpy(text + LONGEST, "\"]", 2);  // LONGEST bytes with both quotes
  assert_int_equal(mgl_json_parse(text, LONGEST + 2, "x.json", &root, &err), MGL_OK);
  json_decref(root);
  memcpy(text + LONGEST, "x\"]", 3);
  assert_int_equal(mgl_json_parse(text, LONGEST + 3, "x.json", &root, &err), MGL_ERR_LIMIT);
  assert_non_null(
      strstr(err.text, "x.json: a string or number of 16777217 bytes in JSON: expected at most"));
  assert_null(root);
  memset(text + 1, '1', LONGEST + 1);
  assert_int_equal(mgl_json_parse(text, LONGEST + 3, "x.json", &root, &err), MGL_ERR_LIMIT);
  free(text);
}

static void test_parse_uses_bytes(void **state) {
  (void)state;
  json_t *root = NULL;
  mgl_error err = {0};
  assert_int_equal(mgl_json_parse("[1]garbage", 3, "x", &root, &err), MGL_OK);
  json_decref(root);
  assert_int_equal(mgl_json_parse("[1]\0", 4, "x", &root, &err), MGL_ERR_FORMAT);
  assert_int_equal(mgl_json_parse("[1\0]", 4, "x", &root, &err), MGL_ERR_FORMAT);
  assert_string_equal(err.text, "x: expected JSON, found a NUL byte at byte 2");
}

static void test_integers(void **state) {
  (void)state;
  json_t *root = parse(
      "{\"five\":5,\"minus\":-1,\"real\":5.0,\"text\":\"5\",\"null\":null,"
      "\"large\":9223372036854775807}");
  mgl_json_object o = {root, "x.json"};
  uint64_t value = 77;
  mgl_error err = {0};
  assert_int_equal(mgl_json_u64(o, "five", 5, 5, &value, &err), MGL_OK);
  assert_int_equal(value, 5);
  assert_int_equal(mgl_json_u64(o, "large", 0, UINT64_MAX, &value, &err), MGL_OK);
  assert_true(value == INT64_MAX);
  value = 77;
  assert_int_equal(mgl_json_u64(o, "five", 6, 9, &value, &err), MGL_ERR_FORMAT);
  assert_string_equal(err.text, "x.json: \"five\": expected 6 to 9, found 5");
  assert_int_equal(mgl_json_u64(o, "five", 0, 4, &value, &err), MGL_ERR_FORMAT);
  assert_int_equal(mgl_json_u64(o, "minus", 0, UINT64_MAX, &value, &err), MGL_ERR_FORMAT);
  assert_int_equal(mgl_json_u64(o, "real", 0, 9, &value, &err), MGL_ERR_FORMAT);
  assert_string_equal(err.text, "x.json: \"real\": expected an integer, found a real number");
  assert_int_equal(mgl_json_opt_u64(o, "text", 0, 9, &value, &err), MGL_ERR_FORMAT);
  assert_int_equal(mgl_json_u64(o, "absent", 0, 9, &value, &err), MGL_ERR_FORMAT);
  assert_string_equal(err.text, "x.json: \"absent\" is missing: expected an integer");
  assert_int_equal(mgl_json_u64(o, "null", 0, 9, &value, &err), MGL_ERR_FORMAT);
  assert_int_equal(mgl_json_opt_u64(o, "absent", 0, 9, &value, &err), MGL_OK);
  assert_int_equal(mgl_json_opt_u64(o, "null", 0, 9, &value, &err), MGL_OK);
  assert_int_equal(value, 77);
  json_decref(root);
}

static void test_other_types(void **state) {
  (void)state;
  json_t *root = parse(
      "{\"int\":2,\"real\":0.5,\"yes\":true,\"text\":\"abc\",\"nul\":\"a\\u0000b\","
      "\"object\":{\"inner\":1},\"list\":[],\"null\":null}");
  mgl_json_object o = {root, "x.json"};
  mgl_json_object inner;
  double number = 7;
  bool flag = false;
  const char *text = "before";
  mgl_error err = {0};
  assert_int_equal(mgl_json_opt_double(o, "int", 0, 2, &number, &err), MGL_OK);
  assert_true(number == 2);
  assert_int_equal(mgl_json_opt_double(o, "real", 0, 1, &number, &err), MGL_OK);
  assert_true(number == 0.5);
  assert_int_equal(mgl_json_opt_double(o, "real", 1, 2, &number, &err), MGL_ERR_FORMAT);
  assert_int_equal(mgl_json_opt_double(o, "text", 1, 2, &number, &err), MGL_ERR_FORMAT);
  assert_int_equal(mgl_json_opt_double(o, "null", 1, 2, &number, &err), MGL_OK);
  assert_true(number == 0.5);
  assert_int_equal(mgl_json_opt_bool(o, "yes", &flag, &err), MGL_OK);
  assert_true(flag);
  assert_int_equal(mgl_json_opt_bool(o, "int", &flag, &err), MGL_ERR_FORMAT);
  assert_int_equal(mgl_json_opt_bool(o, "absent", &flag, &err), MGL_OK);
  assert_true(flag);
  assert_int_equal(mgl_json_opt_string(o, "absent", &text, &err), MGL_OK);
  assert_string_equal(text, "before");
  assert_int_equal(mgl_json_opt_string(o, "text", &text, &err), MGL_OK);
  assert_string_equal(text, "abc");
  assert_int_equal(mgl_json_opt_string(o, "list", &text, &err), MGL_ERR_FORMAT);
  assert_int_equal(mgl_json_opt_string(o, "nul", &text, &err), MGL_ERR_FORMAT);
  assert_non_null(strstr(err.text, "NUL byte"));
  assert_string_equal(text, "abc");
  assert_int_equal(mgl_json_opt_object(o, "object", &inner, &err), MGL_OK);
  assert_true(mgl_json_has(inner, "inner"));
  assert_string_equal(inner.where, "x.json");
  assert_int_equal(mgl_json_opt_object(o, "absent", &inner, &err), MGL_OK);
  assert_null(inner.object);
  assert_false(mgl_json_has(inner, "inner"));
  assert_int_equal(mgl_json_opt_object(o, "list", &inner, &err), MGL_ERR_FORMAT);
  assert_true(mgl_json_has(o, "list"));
  assert_false(mgl_json_has(o, "null"));
  json_decref(root);
}

static void test_read(void **state) {
  (void)state;
  temp_folder folder;
  char path[TEMP_PATH_BYTES];
  json_t *root = NULL;
  mgl_error err = {0};
  temp_folder_create(&folder);
  temp_folder_path(&folder, "x.json", path);
  assert_int_equal(mgl_json_read(path, 100, &root, &err), MGL_ERR_IO);
  temp_folder_write_text(&folder, "x.json", "{\"a\":1}\n");
  assert_int_equal(mgl_json_read(path, 7, &root, &err), MGL_ERR_LIMIT);
  assert_null(root);
  assert_int_equal(mgl_json_read(path, 8, &root, &err), MGL_OK);
  assert_int_equal(json_integer_value(json_object_get(root, "a")), 1);
  json_decref(root);
  temp_folder_write_text(&folder, "x.json", "{\"a\":");
  assert_int_equal(mgl_json_read(path, 100, &root, &err), MGL_ERR_FORMAT);
  assert_true(strstr(err.text, path) == err.text);
  temp_folder_remove(&folder);
}

// Each allocation of a parse fails once: always out of memory, never a leak. The long strings make
// buffers of jansson's lexer grow, whose failure jansson 2.14 swallows: it drops a byte instead.
static void test_injected_failures(void **state) {
  (void)state;
  static const char text[] =
      "{\"name\":\"value\",\"list\":[1,2.5,true,null,{\"deep\":[\"a long string, so that a buffer "
      "has to grow\"]}],\"\\u00e9, a key that is long enough to need a larger buffer\":{}}";
  int64_t live = mgl_alloc_live();
  uint64_t n = 1;
  for (;; n++) {
    json_t *root = NULL;
    mgl_error err = {0};
    mgl_alloc_fail_nth(n);
    mgl_status status = mgl_json_parse(text, sizeof text - 1, "x.json", &root, &err);
    bool reached = mgl_alloc_count() >= n;
    mgl_alloc_fail_nth(0);
    if (!reached) {
      assert_int_equal(status, MGL_OK);
      json_decref(root);
      break;
    }
    assert_int_equal(status, MGL_ERR_MEMORY);
    assert_string_equal(err.text, "x.json: out of memory while parsing JSON");
    assert_null(root);
    assert_int_equal(mgl_alloc_live(), live);
  }
  assert_true(n > 10);  // the failures did reach jansson
  assert_int_equal(mgl_alloc_live(), live);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_parse_refused), cmocka_unit_test(test_depth),
      cmocka_unit_test(test_memory),        cmocka_unit_test(test_bomb),
      cmocka_unit_test(test_long_tokens),   cmocka_unit_test(test_parse_uses_bytes),
      cmocka_unit_test(test_integers),      cmocka_unit_test(test_other_types),
      cmocka_unit_test(test_read),          cmocka_unit_test(test_injected_failures),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
