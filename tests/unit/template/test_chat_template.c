// The chat-template interpreter against Jinja's own results (tests/data/chat_template/cases.json,
// written by tools/make_template_cases.py), its messages, its limits, and failing allocations.
#include "template/chat_template.h"

// cmocka.h wants these first.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/alloc.h"
#include "base/json.h"

static mgl_status render_json(const char *source, size_t bytes, const json_t *context,
                              mgl_text *out, mgl_error *err) {
  mgl_chat_template *parsed = NULL;
  MGL_TRY(mgl_chat_template_parse(source, bytes, "test", &parsed, err));
  mgl_status status = mgl_chat_template_render(parsed, context, out, err);
  mgl_chat_template_destroy(parsed);
  return status;
}

// Renders over a context given as JSON text; both must be well-formed as far as C goes.
static mgl_status render(const char *source, const char *context_text, mgl_text *out,
                         mgl_error *err) {
  json_t *context = NULL;
  MGL_TRY(mgl_json_parse(context_text, strlen(context_text), "context", &context, err));
  mgl_status status = render_json(source, strlen(source), context, out, err);
  json_decref(context);
  return status;
}

static json_t *load_cases(void) {
  json_t *cases = NULL;
  mgl_error err = {0};
  if (mgl_json_read(MGL_TEST_DATA "/chat_template/cases.json", 1 << 20, &cases, &err) != MGL_OK) {
    fail_msg("%s", err.text);
  }
  return cases;
}

// A case's template and context; long templates and the common context are stored once.
static const json_t *resolve(const json_t *cases, const json_t *one, const char *key,
                             const char *table) {
  const json_t *value = json_object_get(one, key);
  if (!json_is_string(value)) {
    return value;
  }
  if (strcmp(key, "context") == 0) {
    return json_object_get(cases, table);
  }
  const json_t *found = json_object_getn(json_object_get(cases, table), json_string_value(value),
                                         json_string_length(value));
  return found != NULL ? found : value;
}

static void check_case(const json_t *cases, const json_t *one) {
  const char *name = json_string_value(json_object_get(one, "name"));
  const json_t *source = resolve(cases, one, "template", "long");
  const json_t *context = resolve(cases, one, "context", "base");
  const json_t *expected = json_object_get(one, "output");
  mgl_text out = {0};
  mgl_error err = {0};
  mgl_text_append_string(&out, "before:");
  mgl_status status =
      render_json(json_string_value(source), json_string_length(source), context, &out, &err);
  if (expected == NULL) {
    if (status == MGL_OK) {
      fail_msg("%s: expected an error, found \"%s\"", name, out.data);
    }
    assert_non_null(strstr(err.text, "test: line "));
    assert_string_equal(out.data, "before:");
  } else if (status != MGL_OK) {
    fail_msg("%s: expected \"%s\", found the error %s", name, json_string_value(expected),
             err.text);
  } else if (out.bytes != json_string_length(expected) + 7 ||
             memcmp(out.data + 7, json_string_value(expected), out.bytes - 7) != 0) {
    fail_msg("%s: expected\n\"%s\"\nfound\n\"%s\"", name, json_string_value(expected),
             out.data + 7);
  }
  if (json_is_true(json_object_get(one, "refused")) && json_object_get(one, "error") == NULL) {
    assert_int_equal(status, status == MGL_ERR_ARGUMENT ? MGL_ERR_ARGUMENT : MGL_ERR_UNSUPPORTED);
  }
  mgl_text_free(&out);
}

static void renders_as_jinja_does(void **state) {
  (void)state;
  int64_t live = mgl_alloc_live();
  json_t *cases = load_cases();
  const json_t *list = json_object_get(cases, "cases");
  assert_true(json_array_size(list) > 200);
  for (size_t i = 0; i < json_array_size(list); i++) {
    check_case(cases, json_array_get(list, i));
  }
  json_decref(cases);
  assert_int_equal(mgl_alloc_live(), live);
}

static void errors_name_the_line(void **state) {
  (void)state;
  static const struct {
    const char *source;
    mgl_status status;
    const char *text;
  } table[] = {
      {"a\n{{ x", MGL_ERR_FORMAT, "test: line 2: expected '}}'"},
      {"\n\n{% if a %}\n{{ b }}\n", MGL_ERR_FORMAT,
       "test: line 4: the template ends within the {% if %} of line 3: expected {% endif %}"},
      {"\n{% for x in y %}", MGL_ERR_FORMAT,
       "test: line 2: the template ends within the {% for %} of line 2: expected {% endfor %}"},
      {"{{ a\n b }}", MGL_ERR_FORMAT, "test: line 2: expected '}}', found 'b'"},
      {"{{ ) }}", MGL_ERR_FORMAT, "test: line 1: ')' closes no bracket of its kind"},
      {"\n{% endfor %}", MGL_ERR_FORMAT,
       "test: line 2: unknown or misplaced statement {% endfor %}"},
      {"\n{% include 'x' %}", MGL_ERR_UNSUPPORTED, "test: line 2: {% include %} is not supported"},
      {"{{ 'x' }}\n{{ 'x'|nope }}", MGL_ERR_UNSUPPORTED, "test: line 2: unknown filter \"nope\""},
      {"\n\n{{ 'x' is nope }}", MGL_ERR_UNSUPPORTED, "test: line 3: unknown test \"nope\""},
      {"\n{{ 'x'.swapcase() }}", MGL_ERR_UNSUPPORTED,
       "test: line 2: method str.swapcase is not supported"},
      {"\n{% block a %}{% endblock %}{% block a %}{% endblock %}", MGL_ERR_FORMAT,
       "test: line 2: the block \"a\" is defined twice"},
      {"{{ self.nope() }}", MGL_ERR_ARGUMENT, "test: line 1: 'nope' is undefined"},
      {"\n{% for x in [1] %}{{ loop([]) }}{% endfor %}", MGL_ERR_ARGUMENT,
       "test: line 2: loop() needs a loop that is marked \"recursive\""},
      {"{{ '{:99999}'.format(1) }}", MGL_ERR_UNSUPPORTED,
       "test: line 1: format: a width or precision beyond 1000 is not supported"},
      {"{{ '%d' % 'x' }}", MGL_ERR_ARGUMENT, "test: line 1: format: a number is needed for a str"},
      {"{{ m(*1, *2) }}", MGL_ERR_FORMAT, "test: line 1: expected arguments in the order"},
      {"\n{{ m.x.y }}", MGL_ERR_ARGUMENT, "test: line 2: 'x' is undefined"},
      {"{% for i in 'a' %}\n{{ i + 1 }}\n{% endfor %}", MGL_ERR_ARGUMENT,
       "test: line 2: + has no meaning for a str and a int"},
      {"\n{{ raise_exception('no ' ~ 'way') }}", MGL_ERR_ARGUMENT,
       "test: line 2: the template refuses the messages: no way"},
      {"a\n\xff", MGL_ERR_FORMAT, "test: line 2: the template is not valid UTF-8"},
      {"\n{{ 9223372036854775808 }}", MGL_ERR_FORMAT, "test: line 2: an integer beyond 64 bits"},
      {"{% break %}", MGL_ERR_FORMAT, "test: line 1: \"break\" outside of a loop"},
  };
  for (size_t i = 0; i < sizeof table / sizeof table[0]; i++) {
    mgl_text out = {0};
    mgl_error err = {0};
    assert_int_equal(render(table[i].source, "{\"m\": {}}", &out, &err), table[i].status);
    if (strncmp(err.text, table[i].text, strlen(table[i].text)) != 0) {
      fail_msg("case %zu: expected \"%s\", found \"%s\"", i, table[i].text, err.text);
    }
    mgl_text_free(&out);
  }
  json_t *list = json_array();
  mgl_text out = {0};
  assert_int_equal(render_json("x", 1, list, &out, NULL), MGL_ERR_ARGUMENT);
  json_decref(list);
}

// Renders and expects MGL_ERR_LIMIT within a few seconds.
static void expect_limit(const char *source) {
  mgl_text out = {0};
  mgl_error err = {0};
  clock_t start = clock();
  mgl_status status = render(source, "{\"t\": \"some text\"}", &out, &err);
  if (status != MGL_ERR_LIMIT) {
    fail_msg("%.200s: expected a limit, found %s %s", source, mgl_status_name(status), err.text);
  }
  assert_true((double)(clock() - start) / CLOCKS_PER_SEC < 20);
  mgl_text_free(&out);
}

static void work_is_bounded(void **state) {
  (void)state;
  int64_t live = mgl_alloc_live();
  expect_limit(
      "{% for a in range(99999) %}{% for b in range(99999) %}{% for c in range(99999) %}"
      "{% endfor %}{% endfor %}{% endfor %}");
  expect_limit(
      "{% set ns = namespace(x='ab') %}{% for i in range(99) %}"
      "{% set ns.x = ns.x + ns.x %}{% endfor %}");
  expect_limit(
      "{% set ns = namespace(x=[1]) %}{% for i in range(99) %}"
      "{% set ns.x = ns.x + ns.x %}{% endfor %}");
  expect_limit("{% for i in range(9999) %}{{ 'some longer text' * 1000 }}{% endfor %}");
  expect_limit("{% macro m(x) %}{{ m(x) }}{% endmacro %}{{ m(1) }}");
  expect_limit("{{ 'x' * 4000000000000000000 }}");
  expect_limit("{{ [1] * 4000000000000000000 }}");
  expect_limit(
      "{% set ns = namespace(x=[]) %}{% for i in range(999) %}"
      "{% set ns.x = [ns.x] %}{% endfor %}{{ ns.x }}");
  expect_limit(
      "{% set ns = namespace(x=[]) %}{% for i in range(999) %}"
      "{% set ns.x = [ns.x] %}{% endfor %}{{ ns.x == [ns.x] }}");
  expect_limit("{% set ns = namespace() %}{% set ns.x = ns %}{{ ns }}");
  expect_limit("{% for i in range(99999) %}{{ range(99999)|sort|length }}{% endfor %}");
  // What calls itself, and what grows.
  expect_limit("{% block b %}{{ self.b() }}{% endblock %}");
  expect_limit(
      "{% block a %}{{ self.b() }}{% endblock %}{% block b %}{{ self.a() }}{% endblock %}");
  expect_limit("{% for x in [1] recursive %}{{ loop([1]) }}{% endfor %}");
  expect_limit("{% for x in [1, 1] recursive %}{{ loop([1, 1]) if loop.depth < 40 }}{% endfor %}");
  expect_limit("{% macro m() %}{{ m(*varargs, **kwargs) }}{% endmacro %}{{ m(1, 2, a=3) }}");
  expect_limit(
      "{% for i in range(99999) %}{% set x = range(9999) %}"
      "{% set y = namespace(**dict(a=x | list)) %}{% endfor %}");
  expect_limit("{{ ('x' | center(4000000000)) }}");
  expect_limit("{{ [1] | batch(4000000000000, 'x') | list }}");
  expect_limit("{{ [1] | slice(4000000000000, 'x') | list }}");
  expect_limit(
      "{% for i in range(99999) %}{% set x = '%1000d%1000d%1000d' % (i, i, i) %}{% endfor %}");
  expect_limit(
      "{% for i in range(99999) %}{% set x = '{:>1000}{:>1000}{:>1000}'.format(i, i, i) %}{% "
      "endfor %}");
  expect_limit(
      "{% for i in range(99999) %}{% set x = range(9999) | groupby('x', default=1) %}{% endfor %}");
  expect_limit(
      "{% for i in range(99999) %}{% set x = loop | string %}{% endfor %}"
      "{% for i in range(99999) %}{% for j in range(99999) %}{{ loop }}{% endfor %}{% endfor %}");
  // Cheap steps over long texts.
  static const char *const on_long_texts[] = {
      "x == y",
      "x < y",
      "{x: 1}[y]",
      "x.startswith((y, y, y))",
      "x.rfind('b' ~ x)",
      "x.rsplit(y[:99999] ~ 'b')",
      "x in y",
      "x.count('q')",
      "x|length",
      "x.strip('bcdefghijkl')",
      "x[-1]",
      "x|upper|length",
      "x|tojson|length",
      "[x, y]|join|length",
      "x.split('q')|length",
      "x|e|length",
      "x|striptags|length",
      "('<' ~ x)|striptags|length",
      "x|wordcount",
      "x|truncate(9)",
      "x|truncate(3999999, leeway=0)|length",
      "x.center(4000009)|length",
      "('%s' % x)|length",
      "'{}'.format(x)|length",
  };
  for (size_t i = 0; i < sizeof on_long_texts / sizeof on_long_texts[0]; i++) {
    char source[512];
    (void)snprintf(source, sizeof source,
                   "{%% set x = 'a' * 4000000 %%}{%% set y = 'aa' * 2000000 %%}"
                   "{%% for i in range(99999) %%}{%% set z = %s %%}{%% endfor %%}",
                   on_long_texts[i]);
    expect_limit(source);
  }
  assert_int_equal(mgl_alloc_live(), live);
}

// `count` times `unit`, between a start and an end.
static void expect_refused(const char *start, const char *unit, size_t count, const char *end) {
  mgl_text source = {0};
  mgl_text out = {0};
  mgl_error err = {0};
  mgl_text_append_string(&source, start);
  for (size_t i = 0; i < count; i++) {
    mgl_text_append_string(&source, unit);
  }
  mgl_text_append_string(&source, end);
  assert_int_equal(render(source.data, "{}", &out, &err), MGL_ERR_LIMIT);
  assert_non_null(strstr(err.text, "test: "));
  mgl_text_free(&source);
  mgl_text_free(&out);
}

static void nesting_is_bounded(void **state) {
  (void)state;
  expect_refused("{{ ", "(", 200, "");
  expect_refused("{{ ", "(", 100000, "");
  expect_refused("{{ ", "[", 100000, "");
  expect_refused("{{ ", "{1:", 100000, "");
  expect_refused("{{ ", "-", 100000, "1 }}");
  expect_refused("{{ ", "not ", 100000, "1 }}");
  expect_refused("{{ ", "1 if 1 else ", 50000, "1 }}");
  expect_refused("", "{% if 1 %}", 50000, "");
  expect_refused("{{ 1", "+1", 100000, " }}");
  expect_refused("{{ a", "[0]", 100000, " }}");
  expect_refused("{{ 1", "|string", 100000, " }}");
  expect_refused("{% set x", "|string", 100000, " %}{% endset %}");
  expect_refused("", "0123456789abcdef", 65537, "");
}

static void long_flat_templates_are_fine(void **state) {
  (void)state;
  mgl_text source = {0};
  mgl_text out = {0};
  mgl_error err = {0};
  mgl_text_append_string(&source, "{% if 0 %}");
  for (size_t i = 0; i < 2000; i++) {
    mgl_text_append_string(&source, "{% elif 0 %}x");
  }
  mgl_text_append_string(&source, "{% else %}{{ ''");
  for (size_t i = 0; i < 2000; i++) {
    mgl_text_append_string(&source, " ~ 'y'");
  }
  mgl_text_append_string(&source, " }}{% endif %}");
  assert_int_equal(render(source.data, "{}", &out, &err), MGL_OK);
  assert_int_equal(out.bytes, 2000);
  mgl_text_free(&source);
  mgl_text_free(&out);
}

static void the_clock_is_read(void **state) {
  (void)state;
  char before[32];
  char after[32];
  mgl_text out = {0};
  mgl_error err = {0};
  time_t now = time(NULL);
  assert_true(strftime(before, sizeof before, "[%d %b %Y]", localtime(&now)) > 0);
  assert_int_equal(render("[{{ strftime_now('%d %b %Y') }}]", "{}", &out, &err), MGL_OK);
  now = time(NULL);
  assert_true(strftime(after, sizeof after, "[%d %b %Y]", localtime(&now)) > 0);
  assert_true(strcmp(out.data, before) == 0 || strcmp(out.data, after) == 0);
  mgl_text_free(&out);
}

// A render that uses most of the interpreter; every allocation in it fails once.
static void failing_allocations_leave_nothing(void **state) {
  (void)state;
  json_t *cases = load_cases();
  const json_t *source = json_object_get(json_object_get(cases, "long"), "thinking");
  const json_t *list = json_object_get(cases, "cases");
  const json_t *context = NULL;
  for (size_t i = 0; i < json_array_size(list); i++) {
    const json_t *one = json_array_get(list, i);
    if (strcmp(json_string_value(json_object_get(one, "name")), "thinking: tools") == 0) {
      context = json_object_get(one, "context");
    }
  }
  assert_non_null(context);
  int64_t live = mgl_alloc_live();
  mgl_status status = MGL_ERR_MEMORY;
  uint64_t n = 1;
  for (; status != MGL_OK; n++) {
    mgl_text out = {0};
    mgl_error err = {0};
    assert_true(n < 1000);
    mgl_alloc_fail_nth(n);
    status =
        render_json(json_string_value(source), json_string_length(source), context, &out, &err);
    mgl_alloc_fail_nth(0);
    if (status != MGL_OK) {
      assert_int_equal(status, MGL_ERR_MEMORY);
      assert_int_equal(out.bytes, 0);
    }
    mgl_text_free(&out);
    assert_int_equal(mgl_alloc_live(), live);
  }
  assert_true(n > 8);
  json_decref(cases);
}

static void test_variables(void **state) {
  static const struct {
    const char *source;
    const char *expected;  // with blanks between them, in any order
  } cases[] = {
      {"{% for m in messages %}{{ m.content }}{% endfor %}", "messages"},
      {"{% set x = enable_thinking | default(true) %}{{ x }}", "enable_thinking"},
      {"{% if not date_string is defined %}{% set date_string = 'x' %}{% endif %}", "date_string"},
      {"{% macro m(a, b=c) %}{{ a }}{{ d }}{% endmacro %}{{ m(1) }}{{ raise_exception('') }}",
       "c d"},
      {"{% set ns = namespace(a=1) %}{% set ns.a = e %}{{ loop }}{{ ns.a }}", "e"},
      {"{% with p=q %}{{ p }}{% endwith %}{% for k, v in items %}{{ k }}{{ v }}{% endfor %}",
       "q items"},
      {"text", ""},
  };
  (void)state;
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    mgl_chat_template *parsed = NULL;
    mgl_error err = {0};
    size_t count = 0;
    size_t bytes = 0;
    assert_int_equal(MGL_OK, mgl_chat_template_parse(cases[i].source, strlen(cases[i].source),
                                                     "test", &parsed, &err));
    assert_string_equal(cases[i].source, mgl_chat_template_source(parsed));
    const char *const *names = mgl_chat_template_variables(parsed, &count);
    for (size_t j = 0; j < count; j++) {
      if (strstr(cases[i].expected, names[j]) == NULL) {
        fail_msg("%s: found %s", cases[i].source, names[j]);
      }
      bytes += strlen(names[j]) + 1;
    }
    assert_int_equal(strlen(cases[i].expected), bytes == 0 ? 0 : bytes - 1);
    mgl_chat_template_destroy(parsed);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_variables),       cmocka_unit_test(renders_as_jinja_does),
      cmocka_unit_test(errors_name_the_line), cmocka_unit_test(work_is_bounded),
      cmocka_unit_test(nesting_is_bounded),   cmocka_unit_test(long_flat_templates_are_fine),
      cmocka_unit_test(the_clock_is_read),    cmocka_unit_test(failing_allocations_leave_nothing),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
