// Masks against what they mean: a token is allowed if a matcher can take all of its bytes. Random
// grammars, random texts, random vocabularies; and how long a mask takes with 150k tokens.
#include "grammar/mask.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

// cmocka.h needs the headers above.
#include <cmocka.h>

#include "grammar/grammar.h"
#include "support/must.h"

static uint64_t random_state = 1;

static uint32_t draw(uint32_t below) {
  random_state = random_state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
  return (uint32_t)((random_state >> 33) % below);
}

// --- vocabularies --------------------------------------------------------------------------------

// All bytes, some special tokens, and strings that grow out of each other as those of BPE do.
static mgl_vocabulary *random_vocabulary(uint32_t count, uint32_t most_bytes) {
  static const char *const seeds[] = {"a",  "b",   "e",   "t",        " ",        "th", "0",  "1",
                                      "A",  "{",   "}",   "\"",       ",",        ":",  "\\", "\n",
                                      "  ", "\",", "\":", "\xc3\xa9", "\xf0\x9f", "n",  "u",  "-"};
  enum { SEEDS = sizeof seeds / sizeof *seeds, SPECIALS = 5 };
  mgl_vocabulary_token *tokens = calloc(count, sizeof *tokens);
  char *memory = calloc(count, most_bytes);
  mgl_vocabulary *v = NULL;
  for (uint32_t i = 0; i < count; i++) {
    char *text = memory + (size_t)i * most_bytes;
    uint32_t bytes = 0;
    if (i < 256) {
      text[bytes++] = (char)i;
    } else if (i >= count - SPECIALS) {
      tokens[i].is_special = true;
    } else {
      const mgl_vocabulary_token *base = &tokens[draw(2) == 0 ? draw(256) : draw(i)];
      const char *seed = seeds[draw(SEEDS)];
      bytes = (uint32_t)base->count;
      memcpy(text, base->bytes, bytes);
      size_t more = strlen(seed);
      if (bytes + more <= most_bytes) {
        memcpy(text + bytes, seed, more);
        bytes += (uint32_t)more;
      }
    }
    tokens[i].bytes = i % 97 == 96 && i >= 256 ? NULL : text;  // some ids are no tokens
    tokens[i].count = bytes;
    if (tokens[i].bytes == NULL) {
      tokens[i] = (mgl_vocabulary_token){.bytes = i >= 256 ? "x" : text, .count = 1};
    }
  }
  MUST(mgl_vocabulary_create(tokens, count, &v, &err));
  free(tokens);
  free(memory);
  return v;
}

// --- the twin ------------------------------------------------------------------------------------

static mgl_grammar *try_compile(mgl_grammar_kind kind, const char *text, mgl_vocabulary *v,
                                mgl_error *err) {
  mgl_grammar *g = NULL;
  const mgl_grammar_source source = {.kind = kind, .text = text, .bytes = strlen(text)};
  (void)mgl_grammar_compile(&source, v, NULL, &g, err);
  return g;
}

// A matcher where another one is: it takes the same text.
static bool takes(const mgl_automaton *automaton, const char *text, size_t bytes, const char *more,
                  size_t more_bytes) {
  mgl_matcher m;
  bool alive = false;
  MUST(mgl_matcher_init(&m, automaton, &err));
  MUST(mgl_matcher_advance(&m, text, bytes, &alive, &err));
  assert_true(alive);
  MUST(mgl_matcher_advance(&m, more, more_bytes, &alive, &err));
  mgl_matcher_reset(&m);
  return alive;
}

// Follows a text of random allowed tokens; at each place compares the mask with the twin.
static void check_masks(mgl_grammar *g, const char *what, uint32_t most_tokens) {
  const mgl_automaton *automaton = mgl_grammar_automaton(g);
  const mgl_vocabulary *v = mgl_grammar_vocabulary(g);
  uint64_t *mask = calloc(v->mask_words, sizeof *mask);
  char text[8192];
  size_t bytes = 0;
  mgl_matcher m;
  MUST(mgl_matcher_init(&m, automaton, &err));
  for (uint32_t i = 0; i < most_tokens; i++) {
    uint32_t allowed = 0;
    uint32_t chosen = UINT32_MAX;
    MUST(mgl_mask_make(mgl_grammar_masks(g), &m, mask, &err));
    for (uint32_t id = 0; id < v->token_count; id++) {
      size_t count = 0;
      const char *token = mgl_vocabulary_bytes(v, id, &count);
      bool is_in = (mask[id / 64] >> (id % 64) & 1) != 0;
      if (is_in != (count > 0 && takes(automaton, text, bytes, token, count))) {
        fail_msg("%s behind %.*s: token %u (%.*s) is %s", what, (int)bytes, text, id, (int)count,
                 token, is_in ? "allowed" : "not allowed");
      }
      allowed += is_in ? 1 : 0;
      chosen = is_in && draw(allowed) == 0 ? id : chosen;
    }
    assert_true((mask[v->mask_words - 1] >> (v->token_count % 64)) == 0);
    if (chosen == UINT32_MAX) {
      assert_true(mgl_matcher_is_complete(&m));  // with every byte a token, nothing else ends
      break;
    }
    size_t count = 0;
    bool alive = false;
    const char *token = mgl_vocabulary_bytes(v, chosen, &count);
    MUST(mgl_matcher_advance(&m, token, count, &alive, &err));
    assert_true(alive && bytes + count < sizeof text);
    memcpy(text + bytes, token, count);
    bytes += count;
  }
  mgl_matcher_reset(&m);
  free(mask);
}

// --- random grammars -----------------------------------------------------------------------------

static void random_regex(int depth, char *out, size_t *at) {
  static const char *const atoms[] = {"a",
                                      "b",
                                      "[a-e]",
                                      "[^\\n\"]",
                                      "\\d",
                                      "th",
                                      "\\u00e9",
                                      "\\w",
                                      "[^ab]",
                                      " ",
                                      ".",
                                      "\"",
                                      "[^a]",
                                      "{",
                                      "\xf0\x9f\x98\x80",
                                      "\\s",
                                      "[\xc3\xa0-\xd0\x90]"};
  static const char *const suffixes[] = {"", "", "", "*", "+", "?", "{2}", "{1,3}", "{0,40}"};
  uint32_t kind = depth == 0 ? 0 : draw(4);
  if (kind == 0) {
    const char *atom = atoms[draw(sizeof atoms / sizeof *atoms)];
    *at += (size_t)sprintf(out + *at, "%s", strcmp(atom, "{") == 0 ? "\\{" : atom);
    return;
  }
  *at += (size_t)sprintf(out + *at, "(");
  uint32_t parts = 1 + draw(3);
  for (uint32_t i = 0; i < parts; i++) {
    *at += (size_t)sprintf(out + *at, "%s", i > 0 && kind == 1 ? "|" : "");
    random_regex(depth - 1, out, at);
  }
  *at += (size_t)sprintf(out + *at, ")%s", suffixes[draw(sizeof suffixes / sizeof *suffixes)]);
}

static void random_ebnf(char *out) {
  static const char *const atoms[] = {"\"a\"", "\"th\"", "[a-z]", "[^\"]",  "x",       "y",
                                      "(x)",   "y?",     "z*",    "[0-9]+", "\"{\"",   "\"}\"",
                                      "\" \"", "[^ab]",  "x{2}",  "z",      "\"\\n\"", "w"};
  static const char *const names[] = {"root", "x", "y", "z", "w"};
  size_t at = 0;
  for (size_t i = 0; i < 5; i++) {
    at += (size_t)sprintf(out + at, "%s ::=", names[i]);
    uint32_t alternatives = 1 + draw(3);
    for (uint32_t j = 0; j < alternatives; j++) {
      uint32_t parts = j == 0 ? 1 + draw(2) : draw(4);
      at += (size_t)sprintf(out + at, "%s \"%c\"", j > 0 ? " |" : "", 'a' + (int)draw(3));
      for (uint32_t k = 0; k < parts; k++) {
        at += (size_t)sprintf(out + at, " %s", atoms[draw(sizeof atoms / sizeof *atoms)]);
      }
    }
    at += (size_t)sprintf(out + at, "\n");
  }
}

static void random_schema(int depth, char *out, size_t *at) {
  static const char *const leaves[] = {
      "{\"type\":\"string\"}",
      "{\"type\":\"integer\"}",
      "{\"type\":\"number\"}",
      "{\"type\":\"string\",\"maxLength\":6}",
      "{\"type\":\"string\",\"minLength\":3,\"maxLength\":50}",
      "{\"enum\":[\"a\",\"ab\",1,null]}",
      "{\"type\":\"boolean\"}",
      "{}",
      "{\"type\":\"integer\",\"minimum\":-3,\"maximum\":120}",
      "{\"pattern\":\"^[a-z]+\\\\d\"}",
      "{\"format\":\"date\"}",
      "{\"type\":\"array\",\"items\":{\"type\":\"integer\"}}",
      "{\"type\":\"object\",\"additionalProperties\":{\"type\":\"null\"}}",
      "{\"$ref\":\"#\"}"};
  uint32_t kind = depth == 0 ? 0 : draw(4);
  if (kind == 0) {
    *at += (size_t)sprintf(out + *at, "%s", leaves[draw(sizeof leaves / sizeof *leaves)]);
  } else if (kind == 1) {
    *at += (size_t)sprintf(out + *at, "{\"type\":\"array\",\"maxItems\":3,\"items\":");
    random_schema(depth - 1, out, at);
    *at += (size_t)sprintf(out + *at, "}");
  } else if (kind == 2) {
    *at += (size_t)sprintf(out + *at, "{\"anyOf\":[{\"type\":\"null\"},");
    random_schema(depth - 1, out, at);
    *at += (size_t)sprintf(out + *at, "]}");
  } else {
    *at += (size_t)sprintf(out + *at, "{\"type\":\"object\",\"properties\":{");
    uint32_t count = 1 + draw(3);
    for (uint32_t i = 0; i < count; i++) {
      *at += (size_t)sprintf(out + *at, "%s\"%c%s\":", i > 0 ? "," : "", 'a' + (int)i,
                             draw(2) == 0 ? "" : "th");
      random_schema(depth - 1, out, at);
    }
    *at += (size_t)sprintf(out + *at, "}%s}", draw(3) == 0 ? ",\"additionalProperties\":true" : "");
  }
}

static void test_twin(void **state) {
#ifdef MGL_TEST_SANITIZED
  enum { GRAMMARS = 60 };
#else
  enum { GRAMMARS = 400 };
#endif
  uint32_t compiled = 0;
  (void)state;
  for (uint32_t i = 0; i < GRAMMARS; i++) {
    char text[16384];
    size_t at = 0;
    mgl_error err = {0};
    mgl_vocabulary *v = random_vocabulary(400 + draw(400), 12);
    mgl_grammar_kind kinds[] = {MGL_GRAMMAR_REGEX, MGL_GRAMMAR_EBNF, MGL_GRAMMAR_JSON_SCHEMA};
    mgl_grammar_kind kind = kinds[i % 3];
    if (kind == MGL_GRAMMAR_REGEX) {
      random_regex(3, text, &at);
    } else if (kind == MGL_GRAMMAR_EBNF) {
      random_ebnf(text);
    } else {
      random_schema(3, text, &at);
    }
    mgl_grammar *g = try_compile(kind, text, v, &err);
    if (g != NULL) {
      check_masks(g, text, 12);
      compiled++;
    } else if (strstr(err.text, "no text matches") == NULL &&
               strstr(err.text, "recursion on the left") == NULL) {
      fail_msg("%s: %s", text, err.text);
    }
    mgl_grammar_release(g);
    mgl_vocabulary_release(v);
  }
  print_message("%u random grammars\n", compiled);
  assert_true(compiled > GRAMMARS * 3 / 4);
}

// Special tokens are allowed only where a grammar names one.
static void test_special_tokens(void **state) {
  (void)state;
  enum { SPECIAL = 300 };
  mgl_vocabulary *v = random_vocabulary(SPECIAL + 5, 8);
  mgl_error error = {0};
  uint64_t mask[8];
  mgl_grammar *g = try_compile(MGL_GRAMMAR_REGEX, "[^\\n]*", v, &error);
  mgl_matcher m;
  MUST(mgl_matcher_init(&m, mgl_grammar_automaton(g), &err));
  MUST(mgl_mask_make(mgl_grammar_masks(g), &m, mask, &err));
  for (uint32_t id = SPECIAL; id < SPECIAL + 5; id++) {
    assert_int_equal(0, mask[id / 64] >> (id % 64) & 1);
  }
  mgl_matcher_reset(&m);
  mgl_grammar_release(g);
  mgl_vocabulary_release(v);
}

// --- time ----------------------------------------------------------------------------------------

// 150k tokens as a large vocabulary has them: words with and without a blank in front, in other
// cases, syllables, runs of digits and signs, pieces of code, words of other scripts, and parts of
// characters.
static mgl_vocabulary *large_vocabulary(uint32_t count) {
  enum { MOST_BYTES = 64 };
  static const char *const parts[] = {"a",    "e",   "i",   "o",    "u",   "in",   "er",  "on",
                                      "an",   "re",  "st",  "en",   "th",  "al",   "ti",  "co",
                                      "de",   "pro", "con", "ment", "ing", "tion", "ble", "ly",
                                      "ness", "ful", "est", "com",  "pre"};
  static const char *const signs[] = {"\"",   "\",",  "\":",  "{\"", "\"}", "()", ");",  "\\n",
                                      "\n",   "\n\n", "    ", "\t",  "//",  "==", "->",  "'s",
                                      ".",    ",",    ":",    "[",   "]",   "}",  " \"", "\": \"",
                                      "\\\"", "</",   ">",    "_",   "-"};
  enum { PARTS = sizeof parts / sizeof *parts, SIGNS = sizeof signs / sizeof *signs };
  mgl_vocabulary_token *tokens = calloc(count, sizeof *tokens);
  char *memory = calloc(count, MOST_BYTES);
  mgl_vocabulary *v = NULL;
  for (uint32_t i = 0; i < count; i++) {
    char *text = memory + (size_t)i * MOST_BYTES;
    size_t bytes = 0;
    uint32_t kind = draw(100);
    if (i < 256) {
      text[bytes++] = (char)i;
    } else if (kind < 62) {  // a word
      uint32_t syllables = 1 + draw(5);
      bytes += draw(2) == 0 ? (size_t)sprintf(text, " ") : 0;
      for (uint32_t j = 0; j < syllables; j++) {
        bytes += (size_t)sprintf(text + bytes, "%s", parts[draw(PARTS)]);
        if (j > 0 && draw(8) == 0) {
          text[bytes - 1] = (char)('A' + draw(26));
        }
      }
      size_t first = text[0] == ' ' ? 1 : 0;
      if (draw(4) == 0 && text[first] >= 'a' && text[first] <= 'z') {
        text[first] = (char)(text[first] - 32);
      }
    } else if (kind < 84) {  // of another script, sometimes cut within a character
      uint32_t letters = 1 + draw(5);
      uint32_t script = draw(3);
      for (uint32_t j = 0; j < letters; j++) {
        uint32_t code = script == 0   ? 0x430 + draw(32)
                        : script == 1 ? 0x4e00 + draw(3000)
                                      : 0xe0 + draw(30);
        if (code < 0x800) {
          text[bytes++] = (char)(0xc0 | code >> 6);
        } else {
          text[bytes++] = (char)(0xe0 | code >> 12);
          text[bytes++] = (char)(0x80 | (code >> 6 & 0x3f));
        }
        text[bytes++] = (char)(0x80 | (code & 0x3f));
      }
      bytes -= draw(12) == 0 ? 1 : 0;
    } else {  // signs and code
      uint32_t pieces = 1 + draw(3);
      for (uint32_t j = 0; j < pieces; j++) {
        const char *piece = draw(3) == 0 ? parts[draw(PARTS)] : signs[draw(SIGNS)];
        bytes += (size_t)sprintf(text + bytes, "%s", piece);
      }
    }
    tokens[i] = (mgl_vocabulary_token){.bytes = text, .count = bytes};
  }
  MUST(mgl_vocabulary_create(tokens, count, &v, &err));
  free(tokens);
  free(memory);
  return v;
}

// Of this thread: others that run on the machine do not count.
static uint64_t thread_ns(void) {
  struct timespec now;
  (void)clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static int by_size(const void *a, const void *b) {
  uint64_t x = *(const uint64_t *)a;
  uint64_t y = *(const uint64_t *)b;
  return (x > y) - (x < y);
}

// Texts of a grammar, token by token; each place's mask is timed. Returns how many.
static size_t time_masks(mgl_grammar *g, uint64_t *times, size_t most) {
  const mgl_vocabulary *v = mgl_grammar_vocabulary(g);
  uint64_t *mask = calloc(v->mask_words, sizeof *mask);
  size_t count = 0;
  while (count < most) {
    mgl_matcher m;
    MUST(mgl_matcher_init(&m, mgl_grammar_automaton(g), &err));
    for (int i = 0; i < 400 && count < most; i++) {
      uint64_t start_ns = thread_ns();
      MUST(mgl_mask_make(mgl_grammar_masks(g), &m, mask, &err));
      times[count++] = thread_ns() - start_ns;
      // A random token, but rarely one of many: else strings would go on for ever.
      uint32_t chosen = UINT32_MAX;
      uint32_t seen = 0;
      for (uint32_t id = 0; id < v->token_count; id++) {
        size_t bytes = 0;
        const char *token = mgl_vocabulary_bytes(v, id, &bytes);
        bool is_in = (mask[id / 64] >> (id % 64) & 1) != 0;
        uint32_t weight = is_in && bytes > 0 && memchr(token, '"', bytes) != NULL ? 200 : 1;
        seen += is_in ? weight : 0;
        chosen = is_in && draw(seen) < weight ? id : chosen;
      }
      if (chosen == UINT32_MAX) {
        break;
      }
      size_t bytes = 0;
      bool alive = false;
      const char *token = mgl_vocabulary_bytes(v, chosen, &bytes);
      MUST(mgl_matcher_advance(&m, token, bytes, &alive, &err));
      assert_true(alive);
    }
    mgl_matcher_reset(&m);
  }
  free(mask);
  return count;
}

static void test_time(void **state) {
  static const struct {
    mgl_grammar_kind kind;
    const char *name, *text;
  } grammars[] = {
      {MGL_GRAMMAR_JSON_OBJECT, "any object", ""},
      {MGL_GRAMMAR_JSON_SCHEMA, "schema",
       "{\"type\":\"object\",\"properties\":{\"name\":{\"type\":\"string\"},\"title\":{\"type\":"
       "\"string\"},\"city\":{\"type\":\"string\",\"maxLength\":20},\"kind\":{\"enum\":[\"one\","
       "\"other\"]},\"when\":{\"type\":\"string\",\"format\":\"date-time\"},\"size\":{\"type\":"
       "\"number\"},\"count\":{\"type\":\"integer\",\"minimum\":0,\"maximum\":1000},\"tags\":{"
       "\"type\":\"array\",\"items\":{\"type\":\"string\"}},\"parts\":{\"type\":\"array\","
       "\"items\":{\"type\":\"object\",\"properties\":{\"id\":{\"type\":\"string\",\"pattern\":"
       "\"^[a-z]+-[0-9]{3}$\"},\"note\":{\"type\":[\"string\",\"null\"],\"maxLength\":200}},"
       "\"required\":[\"id\",\"note\"],\"additionalProperties\":false}},\"rest\":{}},\"required\":["
       "\"name\",\"title\",\"city\",\"kind\",\"when\",\"size\",\"count\",\"tags\",\"parts\","
       "\"rest\"],\"additionalProperties\":false}"},
      {MGL_GRAMMAR_REGEX, "regex", "([A-Z][a-z]+ ){2,8}\\d{3}-\\w+@[a-z.]+"},
      {MGL_GRAMMAR_EBNF, "EBNF",
       "root ::= statement+\nstatement ::= name \" = \" sum \"\\n\"\nsum ::= term ((\" + \" | \" - "
       "\") term)*\nterm ::= name | number | \"(\" sum \")\"\nname ::= [a-z_] [a-z0-9_]*\nnumber "
       "::= [0-9]{1,9}"},
  };
#ifdef MGL_TEST_SANITIZED
  enum { TOKENS = 20000, MASKS = 100 };
#else
  enum { TOKENS = 150000, MASKS = 3000 };
#endif
  static uint64_t times[MASKS * 4];
  uint64_t start_ns = thread_ns();
  mgl_vocabulary *v = large_vocabulary(TOKENS);
  size_t all = 0;
  (void)state;
  print_message("%u tokens in %.0f ms\n", TOKENS, (double)(thread_ns() - start_ns) / 1e6);
  for (size_t i = 0; i < sizeof grammars / sizeof *grammars; i++) {
    mgl_error err = {0};
    start_ns = thread_ns();
    mgl_grammar *g = try_compile(grammars[i].kind, grammars[i].text, v, &err);
    double compile_ms = (double)(thread_ns() - start_ns) / 1e6;
    if (g == NULL) {
      fail_msg("%s: %s", grammars[i].name, err.text);
    }
    uint64_t *mine = times + all;
    size_t count = time_masks(g, mine, MASKS);
    all += count;
    qsort(mine, count, sizeof *mine, by_size);
    print_message("%-10s compiled in %6.2f ms; masks: p50 %7.1f us, p99 %7.1f us, max %7.1f us\n",
                  grammars[i].name, compile_ms, (double)mine[count / 2] / 1e3,
                  (double)mine[count * 99 / 100] / 1e3, (double)mine[count - 1] / 1e3);
    mgl_grammar_release(g);
  }
  qsort(times, all, sizeof *times, by_size);
  double p99_ms = (double)times[all * 99 / 100] / 1e6;
  print_message("%zu masks: p99 %.3f ms\n", all, p99_ms);
#ifndef MGL_TEST_SANITIZED
  // What is promised of a machine of today; a slow one may take five times as long.
  assert_true(p99_ms <= (getenv("MGL_TEST_LONG") != NULL ? 0.2 : 1.0));
#endif
  mgl_vocabulary_release(v);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_twin),
      cmocka_unit_test(test_special_tokens),
      cmocka_unit_test(test_time),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
