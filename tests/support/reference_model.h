// The oracle: small random models and what transformers answers on them (tests/data/reference,
// made by tools/make_reference.py, listed in the README.md there).
//
//   mgl_reference_model m;
//   mgl_reference_model_open(&m, MGL_TEST_DATA "/reference", MGL_REFERENCE_NAMES[i], 1);
//   ... run the prompt, then compare with mgl_reference_divergence and the continuation ...
//   mgl_reference_model_close(&m);
//
// Weights are not stored but drawn by model/dummy_weights.h, as the Python tool drew them.
#ifndef MGL_TESTS_SUPPORT_REFERENCE_MODEL_H
#define MGL_TESTS_SUPPORT_REFERENCE_MODEL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/dtype.h"
#include "base/status.h"
#include "model/model_folder.h"
#include "support/temp_folder.h"

enum { MGL_REFERENCE_COUNT = 52, MGL_REFERENCE_MAX_SHARDS = 99 };

// Every model of tests/data/reference.
extern const char *const MGL_REFERENCE_NAMES[MGL_REFERENCE_COUNT];

typedef struct mgl_reference_tensor {
  char *name;
  bool is_bytes;    // of MXFP4: "u8", drawn by mgl_reference_draw
  mgl_dtype dtype;  // else
  uint32_t rank;    // 1 to 4
  uint64_t dims[4];
} mgl_reference_tensor;

// All pointers are owned; mgl_reference_reset frees them.
typedef struct mgl_reference {
  char *name;
  char *config_json;  // text of config.json
  uint64_t seed;
  mgl_reference_tensor *tensors;  // [tensor_count], in the order of the file
  size_t tensor_count;
  bool router_pairs;   // each second row of a router is the one before it: ties
  uint32_t preferred;  // experts, the first ones, that biases make all tokens choose; 0: none

  int32_t *prompt;  // [prompt_count]
  size_t prompt_count;
  size_t position_count;  // the last position_count prompt positions have logits
  size_t vocab_size;
  float *logits;  // [position_count, vocab_size], transformers in fp32

  // Transformers in bf16 against fp32, over these positions: what Megalith must not exceed.
  double bf16_mean_kl;      // nats
  double bf16_max_kl;       // nats
  double bf16_logit_error;  // max |bf16 logit - fp32 logit|
  double fp32_logit_error;  // max |fp32 logit - float64 logit|: how good the oracle itself is

  // Greedy continuation in fp32. continuation[0] follows the prompt. Where margins[i] (the top
  // logit less the second) is above bf16_logit_error, an engine that was fed continuation[0 .. i)
  // must choose continuation[i].
  int32_t *continuation;  // [continuation_count]
  double *margins;        // [continuation_count]
  size_t continuation_count;
} mgl_reference;

// Reads folder/name.json and folder/name.f32. Zeroes *out first; on failure nothing is held.
mgl_status mgl_reference_load(const char *folder, const char *name, mgl_reference *out,
                              mgl_error *err);
void mgl_reference_reset(mgl_reference *reference);  // a zeroed one is fine

// The tensor's bytes, in fresh memory: drawn by model/dummy_weights.h, or, of bytes, by the top bits
// of its stream; of scales (named "..._scales") 121, 122 or 123, which are 2^-6 to 2^-4.
mgl_status mgl_reference_draw(const mgl_reference *reference, const mgl_reference_tensor *tensor,
                              void **out, size_t *out_bytes, mgl_error *err);

// Writes config.json and the weights into an existing folder: model.safetensors, or, with
// shard_count (1 to MGL_REFERENCE_MAX_SHARDS, at most one per tensor) above 1, shards of whole
// tensors and model.safetensors.index.json.
mgl_status mgl_reference_write_folder(const mgl_reference *reference, const char *folder,
                                      uint32_t shard_count, mgl_error *err);

// A model of the oracle, opened from a folder of its own by the real loaders.
typedef struct mgl_reference_model {
  mgl_reference reference;
  temp_folder folder;
  mgl_model_folder model;  // config and checkpoint; these models have no tokenizer
} mgl_reference_model;

// Ends the test if it fails. data: folder of the oracle, MGL_TEST_DATA "/reference".
void mgl_reference_model_open(mgl_reference_model *out, const char *data, const char *name,
                              uint32_t shard_count);
void mgl_reference_model_close(mgl_reference_model *model);

typedef struct mgl_divergence {
  double mean_kl;          // KL(softmax(reference) || softmax(logits)), nats, mean over positions
  double max_kl;           // largest of one position
  double max_logit_error;  // max |logits - reference|
} mgl_divergence;

// Both are [positions, vocab_size]. Computed in double. A NaN or infinity in `logits` makes the
// results infinite, so that "no larger than" fails.
mgl_divergence mgl_reference_divergence(const float *reference, const float *logits,
                                        size_t positions, size_t vocab_size);

#endif
