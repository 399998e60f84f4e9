#include "base/words.h"

#include <ctype.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

enum { SHORT_WORD_BYTES = 3, LEAST_PREFIX_BYTES = 2 };

// Levenshtein distance of two words of at most MGL_MAX_WORD_BYTES.
static size_t edit_distance(const char *a, const char *b) {
  size_t a_bytes = strlen(a);
  size_t b_bytes = strlen(b);
  size_t row[MGL_MAX_WORD_BYTES + 1];
  for (size_t j = 0; j <= b_bytes; j++) {
    row[j] = j;
  }
  for (size_t i = 1; i <= a_bytes; i++) {
    size_t diagonal = row[0];
    row[0] = i;
    for (size_t j = 1; j <= b_bytes; j++) {
      size_t above = row[j];
      size_t best = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      best = above + 1 < best ? above + 1 : best;
      best = row[j - 1] + 1 < best ? row[j - 1] + 1 : best;
      row[j] = best;
      diagonal = above;
    }
  }
  return row[b_bytes];
}

static bool begins(const char *start, const char *word) {
  size_t bytes = strlen(start);
  return bytes >= LEAST_PREFIX_BYTES && strncmp(start, word, bytes) == 0;
}

// Whether every part of `few` between dashes is one of `many`.
static bool has_parts(const char *few, const char *many) {
  while (*few != 0) {
    size_t bytes = strcspn(few, "-");
    const char *at = many;
    while (*at != 0 && !(strcspn(at, "-") == bytes && strncmp(at, few, bytes) == 0)) {
      at += strcspn(at, "-");
      at += *at == '-';
    }
    if (*at == 0 || bytes < LEAST_PREFIX_BYTES) {
      return false;
    }
    few += bytes;
    few += *few == '-';
  }
  return true;
}

// The rules in their order; `mistakes` is what RULE_MISTAKES looks for.
enum { RULE_SAME, RULE_BEGINS, RULE_MISTAKES, RULE_IS_BEGUN, RULE_PARTS, RULE_IS_PART, RULE_COUNT };

static bool is_likely(int rule, const char *word, const char *candidate, size_t mistakes) {
  switch (rule) {
    case RULE_SAME: return strcmp(word, candidate) == 0;
    case RULE_BEGINS: return begins(word, candidate);
    case RULE_MISTAKES: return edit_distance(word, candidate) == mistakes;
    case RULE_IS_BEGUN: return begins(candidate, word);
    case RULE_PARTS: return has_parts(candidate, word);
    default: return has_parts(word, candidate);
  }
}

// How many candidates a rule finds; `out` has the first ones.
static size_t find(int rule, const char *word, const char *const *candidates, size_t count,
                   size_t mistakes, const char *out[MGL_MAX_LIKELY_WORDS]) {
  size_t found = 0;
  for (size_t i = 0; i < count; i++) {
    if (strlen(candidates[i]) <= MGL_MAX_WORD_BYTES && strlen(candidates[i]) > mistakes &&
        is_likely(rule, word, candidates[i], mistakes)) {
      if (found < MGL_MAX_LIKELY_WORDS) {
        out[found] = candidates[i];
      }
      found++;
    }
  }
  return found;
}

size_t mgl_words_likely(const char *word, const char *const *candidates, size_t count,
                        const char *out[MGL_MAX_LIKELY_WORDS]) {
  char plain[MGL_MAX_WORD_BYTES + 1];
  size_t bytes = strlen(word);
  if (bytes == 0 || bytes > MGL_MAX_WORD_BYTES) {
    return 0;
  }
  for (size_t i = 0; i <= bytes; i++) {
    plain[i] = word[i] == '_' ? '-' : (char)tolower((unsigned char)word[i]);
  }
  size_t most = bytes <= SHORT_WORD_BYTES ? 1 : 2;
  for (int rule = 0; rule < RULE_COUNT; rule++) {
    size_t found = 0;
    for (size_t m = 1; m <= (rule == RULE_MISTAKES ? most : 1) && found == 0; m++) {
      found = find(rule, plain, candidates, count, rule == RULE_MISTAKES ? m : 0, out);
    }
    if (found > 0) {
      return found <= MGL_MAX_LIKELY_WORDS ? found : 0;
    }
  }
  return 0;
}

void mgl_words_ask(const char *dashes, const char *word, const char *const *candidates,
                   size_t count, char out[MGL_MEANT_BYTES]) {
  const char *likely[MGL_MAX_LIKELY_WORDS];
  size_t found = mgl_words_likely(word, candidates, count, likely);
  size_t used = 0;
  out[0] = 0;
  for (size_t i = 0; i < found; i++) {
    const char *before = i == 0 ? " (did you mean " : i + 1 == found ? " or " : ", ";
    used += (size_t)snprintf(out + used, MGL_MEANT_BYTES - used, "%s%s%s%s", before, dashes,
                             likely[i], i + 1 == found ? "?)" : "");
  }
}
