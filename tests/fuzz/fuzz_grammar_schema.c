// Fuzz target: arbitrary bytes as a JSON Schema.
#include "grammar_fuzzing.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes) {
  return fuzz_grammar(MGL_GRAMMAR_JSON_SCHEMA, data, bytes);
}
