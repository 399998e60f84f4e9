// Plain kernels on the fake GPU: the device's own source, compiled as C, with blocks of one thread,
// one after the other. So all of them is run but for how threads of a block share the work.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "kernels/cuda/plain/plain_attention.cuh"
#include "kernels/cuda/plain/plain_linear.cuh"
#include "kernels/cuda/plain/plain_ordered_experts.cuh"
#include "kernels/cuda/plain/plain_rows.cuh"
#include "support/fake_cuda_parts.h"

typedef void body_function(const mgl_plain_op *op, mgl_plain_place at);

static const struct {
  const char *name;
  body_function *body;
} kernels[] = {
#define MGL_PLAIN(enum_name, name) {"mgl_plain_kernel_" #name, mgl_plain_##name},
#include "twin/plain.def"
};

bool fake_cuda_plain_launch(const char *name, unsigned blocks, unsigned threads, void **p) {
  for (size_t i = 0; i < sizeof kernels / sizeof *kernels; i++) {
    if (strcmp(kernels[i].name, name) != 0) {
      continue;
    }
    const mgl_plain_op *op = p[0];
    assert_int_equal(threads, MGL_PLAIN_THREADS);
    assert_true(op->units > 0);
    for (uint32_t block = 0; block < blocks; block++) {
      kernels[i].body(op, (mgl_plain_place){.block = block, .blocks = blocks, .threads = 1});
    }
    fake.plain_launches++;
    return true;
  }
  return false;
}
