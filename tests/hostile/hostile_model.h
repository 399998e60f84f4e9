// Small models for cases, whose config and weights are made from nothing; everything else of their
// folder is the demo model's.
#ifndef MGL_TESTS_HOSTILE_MODEL_H
#define MGL_TESTS_HOSTILE_MODEL_H

#include <stdbool.h>
#include <stdint.h>

#include "base/text.h"

typedef struct hostile_model {
  mgl_text header;  // of the safetensors file, without its closing brace
  mgl_text data;    // what callers append
} hostile_model;

// Names the data from byte `begin` on; the shape as JSON.
void hostile_model_tensor(hostile_model *model, const char *name, const char *dtype,
                          const char *shape, uint64_t begin);
// Makes the folder of the next case of it, and frees it.
void hostile_model_write(hostile_model *model, const char *config);

bool hostile_ends_with(const char *text, const char *end);

#endif
