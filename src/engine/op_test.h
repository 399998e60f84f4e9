// Testing a range of a model's ops through the whole pipeline: the model's own task graphs, events,
// places and launch, as mode mega has them, in which the tasks of ops outside of the range wait, do
// nothing and trigger; or as mode eager has them. The range gets its inputs, everything else begins
// as NaN; what leaves the range, and the K and V that it writes, is compared with the scalar
// reference interpreter (device/cpu/cpu_reference.h), which runs the ops as the model has them.
//
// Rejected: cutting the program to the range. It would be fused, cut into tasks and laid out in
// another way than what the model runs, and compiler and kernels would have to know of values that
// no op makes.
//
// One thread. A runner that was tested so serves nothing else afterwards.
#ifndef MGL_ENGINE_OP_TEST_H
#define MGL_ENGINE_OP_TEST_H

#include "engine/runner.h"

typedef struct mgl_op_test mgl_op_test;

// What the user says a tensor is, by the name in the program: ids of "tokens", an activation, or
// the cache of a layer, [2, positions, HKV, HD] with K first.
typedef struct mgl_op_test_value {
  const char *name;
  const float *values;  // [count]
  size_t count;
} mgl_op_test_value;

typedef struct mgl_op_test_options {
  uint32_t tokens;                 // of the iteration, all of one sequence: 1 to the device's most
  uint32_t context;                // tokens before them in the cache
  uint64_t seed;                   // of what is not given
  const mgl_op_test_value *given;  // [given_count]
  uint32_t given_count;
  mgl_mode mode;     // mega: fused ops as tasks (of up to 16 tokens and of more on a GPU: other
                     // ones); eager: the ops as the model has them, one by one, on the CPU
  double tolerance;  // the largest error that passes; negative: what the reference's moves say
} mgl_op_test_options;

enum { MGL_OP_TEST_MOVES = 2, MGL_OP_TEST_FACTOR = 2 };

typedef struct mgl_op_result {
  const mgl_op *op;  // that made it
  const char *name;  // of the tensor
  uint32_t rank;     // shape of the values
  uint64_t dims[4];
  size_t count;
  float *values;         // [count] what the device made
  float *expected;       // [count] what the reference made
  double largest, mean;  // absolute errors; a NaN where one is
  size_t worst;          // element of the largest
  // What passes: MGL_OP_TEST_FACTOR times the largest and mean distance that the reference's
  // results go where each of its values is moved by a rounding (the most of MGL_OP_TEST_MOVES
  // runs); or the tolerance of the options, and any mean.
  double largest_bound, mean_bound;
  bool passed;
} mgl_op_result;

// The build of a runner for such tests; the caller adds device, threads and weights. It runs one
// sequence of tokens + context tokens.
mgl_build mgl_op_test_build(const mgl_op_test_options *options);

// Options are copied, but for the values that are given, which are borrowed; runner and folder must
// outlive *out.
mgl_status mgl_op_test_create(mgl_runner *runner, const mgl_model_folder *folder,
                              const mgl_op_test_options *options, mgl_op_test **out,
                              mgl_error *err);
void mgl_op_test_destroy(mgl_op_test *test);  // NULL is fine

// The program whose ops are tested, in the order of `megalith graph`: fused, unless build.plain or
// in mode eager.
const mgl_graph *mgl_op_test_program(const mgl_op_test *test);

// The op of that number, or whose result has that name.
mgl_status mgl_op_test_find(const mgl_op_test *test, const char *text, uint32_t *out,
                            mgl_error *err);

// Runs ops [first, last] and compares. MGL_OK, whether or not they pass. *out is valid until the
// next run.
mgl_status mgl_op_test_run(mgl_op_test *test, uint32_t first, uint32_t last,
                           const mgl_op_result **out, uint32_t *out_count, mgl_error *err);

#endif
