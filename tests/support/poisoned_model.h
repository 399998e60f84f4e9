// A small model (f32, without a tokenizer) in which one token's embedding is not a number: a request
// with that token, and no other, gets logits that mean nothing.
#ifndef MGL_TESTS_SUPPORT_POISONED_MODEL_H
#define MGL_TESTS_SUPPORT_POISONED_MODEL_H

#include "support/temp_folder.h"

enum { POISONED_TOKEN = 7 };

// test_data: the folder tests/data. Creates the folder; the caller removes it.
void poisoned_model_write(const char *test_data, temp_folder *folder);

#endif
