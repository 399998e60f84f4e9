// Cases: configurations, tokenizers and chat templates that contradict themselves or the weights.
#include <string.h>

#include "hostile/hostile.h"

typedef struct edit {
  const char *key;
  const char *values[16];  // up to the first NULL
} edit;

static void refuse_edits(const char *file, hostile_command command, const edit *edits,
                         size_t count) {
  for (size_t i = 0; i < count; i++) {
    for (const char *const *value = edits[i].values; *value != NULL; value++) {
      FILE *out = hostile_create(file);
      (void)fputs(hostile_edit(hostile_original(file)->data, edits[i].key, *value), out);
      hostile_refused(out, command, "%s: \"%s\": %.80s", file, edits[i].key, *value);
    }
  }
}

// --- config.json and generation_config.json ------------------------------------------------------

void hostile_configs(void) {
  // Each is told by the configuration alone.
  static const edit alone[] = {
      {"hidden_size",
       {"0", "-1", "1.5", "\"256\"", "null", "[256]", "{}", "true", "1073741824", "9e99",
        "9223372036854775807", "99999999999999999999"}},
      {"intermediate_size", {"0", "-5", "\"x\"", "null", "4294967296", "true", "768.0"}},
      {"num_hidden_layers", {"0", "-1", "1000000000", "2.5", "\"8\"", "null", "[]", "9", "7"}},
      {"num_attention_heads", {"0", "-1", "\"4\"", "null", "1000000000", "3"}},
      {"num_key_value_heads", {"0", "3", "-2", "\"2\"", "5", "99999"}},
      {"head_dim", {"0", "-64", "63", "1000000", "\"64\"", "[64]"}},
      {"vocab_size", {"0", "-1", "\"1024\"", "null", "99999999999", "[1]"}},
      {"max_position_embeddings", {"0", "-1", "\"512\"", "1e400", "99999999999"}},
      {"rms_norm_eps", {"0", "-1", "\"x\"", "[]", "1e400"}},
      {"hidden_act", {"\"gelu\"", "5", "[]", "\"silu\\u0000\""}},
      {"architectures",
       {"[5]", "\"Qwen3ForCausalLM\"", "[\"GPT2LMHeadModel\"]", "[\"Qwen3ForCausalLM\\u0000\"]",
        "{}", "7"}},
      {"tie_word_embeddings", {"\"yes\"", "1", "[]"}},
      {"layer_types", {"[]", "5", "\"full_attention\"", "[1,2,3,4,5,6,7,8]"}},
      {"rope_parameters",
       {"5", "[]", "\"x\"", "{\"rope_type\":\"magic\"}", "{\"rope_type\":5}",
        "{\"rope_theta\":-1,\"rope_type\":\"default\"}",
        "{\"rope_theta\":\"x\",\"rope_type\":\"default\"}",
        "{\"rope_type\":\"linear\",\"factor\":0,\"rope_theta\":1e4}",
        "{\"rope_type\":\"llama3\",\"rope_theta\":1e4}"}},
      {"quantization_config", {"{}", "{\"quant_method\":\"gptq\"}", "7"}},
      {"bos_token_id", {"99999", "\"x\""}},
      {"rope_scaling", {"7", "{\"type\":\"magic\"}", "[1]"}},
  };
  // These need the weights too.
  static const edit with_weights[] = {
      {"hidden_size", {"128", "512"}},     {"intermediate_size", {"767", "1024"}},
      {"num_attention_heads", {"2", "8"}}, {"num_key_value_heads", {"1", "4"}},
      {"head_dim", {"32", "128"}},         {"vocab_size", {"1023", "2048"}},
  };
  static const edit generation[] = {
      {"eos_token_id", {"[99999]", "\"x\"", "[\"x\"]", "{}", "1.5", "[[1]]", "99999999999"}},
      {"temperature", {"-1", "\"x\"", "1e400", "[]"}},
      {"top_p", {"-1", "2", "\"x\"", "[]"}},
      {"top_k", {"-1", "\"x\"", "1.5", "99999999999"}},
      {"do_sample", {"5", "\"yes\""}},
      {"repetition_penalty", {"0", "-1", "\"x\"", "1e300"}},
      {"max_new_tokens", {"\"x\"", "-7", "1.5"}},
  };
  refuse_edits("config.json", HOSTILE_PLAN, alone, sizeof alone / sizeof *alone);
  refuse_edits("config.json", HOSTILE_SCORE, with_weights,
               sizeof with_weights / sizeof *with_weights);
  refuse_edits("generation_config.json", HOSTILE_RUN, generation,
               sizeof generation / sizeof *generation);
  // The largest model that passes: what is planned or compiled of it stays within the bounds.
  static const char *const large =
      "{\"architectures\":[\"Qwen3ForCausalLM\"],\"hidden_size\":65536,"
      "\"intermediate_size\":262144,\"num_hidden_layers\":1024,"
      "\"num_attention_heads\":512,\"num_key_value_heads\":512,"
      "\"head_dim\":128,\"vocab_size\":1000000,"
      "\"max_position_embeddings\":1000000,\"rms_norm_eps\":1e-6}";
  for (int command = HOSTILE_SCORE; command <= HOSTILE_COMPILE; command++) {
    if (command != HOSTILE_TOKENIZE) {
      FILE *out = hostile_create("config.json");
      (void)fputs(large, out);
      hostile_survived(out, (hostile_command)command, "the largest config, command %d", command);
    }
  }
}

// --- tokenizer.json ------------------------------------------------------------------------------

static void tokenizer_edits(void) {
  static const edit edits[] = {
      {"version", {"\"2.0\"", "1", "[]"}},
      {"added_tokens",
       {"5", "{}", "[5]", "[{}]", "[{\"id\":-1,\"content\":\"x\"}]", "[{\"id\":7}]",
        "[{\"id\":1021,\"content\":5}]", "[{\"id\":9999999,\"content\":\"x\"}]",
        "[{\"id\":1021,\"content\":\"a\"},{\"id\":1021,\"content\":\"b\"}]",
        "[{\"id\":1021,\"content\":\"a\"},{\"id\":1022,\"content\":\"a\"}]",
        "[{\"id\":1021,\"content\":\"a\\u0000\"}]"}},
      {"normalizer",
       {"5", "[]", "{}", "{\"type\":\"Magic\"}", "{\"type\":5}", "{\"type\":\"Sequence\"}",
        "{\"type\":\"Replace\",\"pattern\":{\"String\":\"\"},\"content\":\"x\"}",
        "{\"type\":\"Replace\",\"pattern\":{\"Regex\":\"(a+)+$\"},\"content\":\"x\"}"}},
      {"pre_tokenizer",
       {"5", "{}", "{\"type\":\"Magic\"}", "{\"type\":\"Split\"}", "{\"type\":\"Sequence\"}",
        "{\"type\":\"Sequence\",\"pretokenizers\":[7]}",
        "{\"type\":\"Split\",\"pattern\":{\"Regex\":\"(a+)+$\"},\"behavior\":\"Isolated\"}"}},
      {"post_processor", {"5", "{}", "{\"type\":\"Magic\"}"}},
      {"decoder", {"5", "{\"type\":\"Magic\"}"}},
      {"model", {"5", "{}", "null", "[]", "{\"type\":\"Unigram\"}"}},
      {"vocab",
       {"{}", "5", "[]", "null", "{\"a\":-1}", "{\"a\":\"x\"}", "{\"a\":1.5}", "{\"a\":1e99}",
        "{\"a\":0,\"b\":0}", "{\"a\":99999999}", "{\"a\":2147483648}", "{\"a\":4294967296}"}},
      {"merges",
       {"5", "{}", "[5]", "[\"a\"]", "[\"a b c\"]", "[[\"a\"]]", "[[\"a\",\"b\",\"c\"]]", "[[1,2]]",
        "[[\"no such\",\"token\"]]", "[\" \"]", "[\"\\u0000 a\"]"}},
      {"dropout", {"0.5", "2", "\"x\""}},
      {"byte_fallback", {"5"}},
      {"continuing_subword_prefix", {"\"##\"", "5"}},
  };
  refuse_edits("tokenizer.json", HOSTILE_TOKENIZE, edits, sizeof edits / sizeof *edits);
}

static void repeat(FILE *out, const char *text, size_t count) {
  for (size_t i = 0; i < count; i++) {
    (void)fputs(text, out);
  }
}

static void write_tokenizer(FILE *out, size_t vocab, const char *merge, size_t merges) {
  (void)fputs(
      "{\"version\":\"1.0\",\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0,\"b\":1,\"ab\":2", out);
  for (size_t i = 3; i < vocab; i++) {
    (void)fprintf(out, ",\n      \"t%zu\": %zu", i, i);
  }
  (void)fputs("\n},\"merges\":[\"a b\"", out);
  repeat(out, merge, merges);
  (void)fputs("]}}", out);
}

static void large_tokenizers(void) {
  static const char pretty[] = ",\n      [\n        \"a\",\n        \"b\"\n      ]";
  if (!hostile_large()) {
    return;
  }
  FILE *out = hostile_create("tokenizer.json");
  write_tokenizer(out, 1 << 20, ",\"a b\"", 0);
  hostile_valid(out, HOSTILE_TOKENIZE, "a tokenizer.json with a vocabulary of 2^20");
  out = hostile_create("tokenizer.json");
  write_tokenizer(out, (1 << 20) + 1, "", 0);
  hostile_refused(out, HOSTILE_TOKENIZE, "a vocabulary of 2^20 + 1");
  hostile_valid(NULL, HOSTILE_RUN, NULL);
  out = hostile_create("tokenizer.json");
  write_tokenizer(out, 8, ",[\"a\",\"b\"]", 5500000);
  hostile_refused(out, HOSTILE_TOKENIZE, "60 MB of merges without spaces");
  out = hostile_create("tokenizer.json");
  write_tokenizer(out, 8, ",{}", 20 << 20);
  hostile_refused(out, HOSTILE_TOKENIZE, "60 MB of {} among merges");
  out = hostile_create("tokenizer.json");
  (void)fputs("{\"added_tokens\":[{}", out);
  repeat(out, ",{}", 20 << 20);
  (void)fputs("]}", out);
  hostile_refused(out, HOSTILE_RUN, "60 MB of {} as added tokens");
  // As large as may be, and as a library writes it; then as much memory as the budget allows.
  out = hostile_create("tokenizer.json");
  write_tokenizer(out, 8, pretty, (60 << 20) / (sizeof pretty - 1));
  hostile_valid(out, HOSTILE_TOKENIZE, "a tokenizer.json of 60 MiB");
  out = hostile_create("tokenizer.json");
  write_tokenizer(out, 8, ",   {}                     ", (60 << 20) / 27);
  hostile_refused(out, HOSTILE_TOKENIZE, "60 MiB of JSON just below the budget");
  hostile_valid(NULL, HOSTILE_RUN, NULL);
}

void hostile_tokenizers(void) {
  static const edit config[] = {
      {"bos_token", {"5", "[]", "{\"content\":5}", "true", "\"a\\u0000\""}},
      {"eos_token", {"5", "[]", "{\"content\":[]}"}},
      {"chat_template",
       {"5", "[5]", "{}", "true", "\"a\\u0000b\"", "[{\"name\":\"x\",\"template\":\"y\"}]",
        "[{\"name\":\"default\",\"template\":7}]", "\"\\ud800\""}},
  };
  tokenizer_edits();
  refuse_edits("tokenizer_config.json", HOSTILE_RUN, config, sizeof config / sizeof *config);
  FILE *out = hostile_create("tokenizer.json");
  write_tokenizer(out, 8, "", 0);
  hostile_survived(out, HOSTILE_RUN, "a tokenizer of 8 tokens beside a model of 1024");
  large_tokenizers();
}

// --- chat templates ------------------------------------------------------------------------------

static void refuse_template(const char *source) {
  FILE *out = hostile_create("chat_template.jinja");
  (void)fputs(source, out);
  hostile_refused(out, HOSTILE_RUN, "template: %.100s", source);
}

void hostile_templates(void) {
  static const char *const sources[] = {
      "{% for %}",
      "{% if %}",
      "{{",
      "{{ }}",
      "{%",
      "{#",
      "{{ 1 +",
      "{{ 'x",
      "{% endfor %}",
      "{% for m in messages %}",
      "{% if true %}x{% endfor %}",
      "{{ messages[ }}",
      "{{ (1 }}",
      "{{ 1 | nosuchfilter }}",
      "{{ nosuch() }}",
      "{{ messages.nosuch.deeper }}",
      "{{ 1 / 0 }}",
      "{{ 1 // 0 }}",
      "{{ 1 % 0 }}",
      "{{ 'a' + 1 }}",
      "{{ raise_exception('no') }}",
      "{{ raise_exception('two\nlines \033[31m and colour') }}",
      "{% include 'x' %}",
      "{% import 'x' as y %}",
      "{% extends 'x' %}",
      "{% unknown %}",
      "{{ messages | sort(attribute=5) | nosuch }}",
      "{{ 'x' * 1000000000 }}",
      "{{ 'x' * 9223372036854775807 }}",
      "{{ [0] * 1000000000 }}",
      "{{ range(1000000000) | list }}",
      "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
      "{% for i in range(99999) %}{{ 'some longer text' * 1000 }}{% endfor %}",
      "{{ 'x' * 60000000 }}",
      "{% set ns = namespace(s='x') %}{% for i in range(99) %}{% set ns.s = ns.s + ns.s %}{% "
      "endfor "
      "%}{{ ns.s }}",
      "{% set ns = namespace(l=[1]) %}{% for i in range(99) %}{% set ns.l = ns.l + ns.l %}{% "
      "endfor "
      "%}{{ ns.l }}",
      "{% macro m(x) %}{{ m(x) }}{% endmacro %}{{ m(1) }}",
      "{% macro m(x) %}{{ m(x) }}{{ m(x) }}{% endmacro %}{{ m(1) }}",
      "{% set ns = namespace() %}{% set ns.x = ns %}{{ ns }}",
      "{% for i in range(99999) %}{{ range(99999)|sort|length }}{% endfor %}",
      "{{ ('x' * 1000000).replace('x', 'y' * 1000000) }}",
      "{{ (['x' * 100000] * 100000) | join }}",
      "{{ 'x' | indent(1000000000) }}{{ nosuch.x }}",
      "{{ range(99999)|map('string')|join(' ' * 10000) }}",
      "{{ messages|tojson(indent=1000000000) }}{{ nosuch.x }}",
  };
  for (size_t i = 0; i < sizeof sources / sizeof *sources; i++) {
    refuse_template(sources[i]);
  }
  static const char *const deep[] = {"((((", "[[[[", "{% if 1 %}", "{{ -", "not ", "{{ a.b["};
  for (size_t i = 0; i < sizeof deep / sizeof *deep; i++) {
    FILE *out = hostile_create("chat_template.jinja");
    (void)fputs(i == 4 ? "{{ " : i < 2 ? "{{ " : "", out);
    repeat(out, deep[i], 50000);
    hostile_refused(out, HOSTILE_RUN, "template: %s 50000 times", deep[i]);
  }
  FILE *out = hostile_create("chat_template.jinja");
  repeat(out, "x", (1 << 20) + 1);
  hostile_refused(out, HOSTILE_RUN, "template: a source of 1 MiB and a byte");
  out = hostile_create("chat_template.jinja");
  (void)fputs("a\377b\300", out);
  hostile_survived(out, HOSTILE_RUN, "template: no UTF-8");
  out = hostile_create("chat_template.jinja");
  (void)fwrite("a\0b{{", 1, 5, out);
  hostile_refused(out, HOSTILE_RUN, "template: a NUL byte");
  out = hostile_create("chat_template.jinja");
  (void)fputs("{{ 'a ' * 8000000 }}", out);
  hostile_refused(out, HOSTILE_RUN, "template: 16 MB, more than the context takes");
}
