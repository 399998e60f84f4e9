#include "support/fake_cuda_calls.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "device/cuda/cuda_custom.h"
#include "kernels/cuda/custom/custom_tiles.cuh"
#include "support/fake_cuda_parts.h"

fake_cuda_call fake_cuda_calls[FAKE_CUDA_CALLS];
uint32_t fake_cuda_call_count;
fake_cuda_custom_launch fake_cuda_custom_launches[FAKE_CUDA_CUSTOM_LAUNCHES];
uint32_t fake_cuda_custom_launch_count;

void fake_cuda_calls_clear(void) {
  fake_cuda_call_count = fake_cuda_custom_launch_count = 0;
}

void fake_cuda_note_call(const char *name, unsigned blocks, unsigned threads, bool in_graph) {
  if (fake_cuda_call_count < FAKE_CUDA_CALLS) {
    fake_cuda_calls[fake_cuda_call_count++] = (fake_cuda_call){name, blocks, threads, in_graph};
  }
}

// --- custom ops ----------------------------------------------------------------------------------

static struct {
  char kernel[80];  // "custom NAME", which is also what a module and a function of it are
  fake_cuda_custom_body *body;
  char *source;
  uint32_t compilations;
} customs[FAKE_CUDA_CUSTOMS];

// Where the kernel of that name is, or would be.
static size_t place_of(const char *kernel) {
  size_t i = 0;
  while (i < FAKE_CUDA_CUSTOMS && customs[i].kernel[0] != 0 &&
         strcmp(customs[i].kernel, kernel) != 0) {
    i++;
  }
  assert_true(i < FAKE_CUDA_CUSTOMS);
  return i;
}

static size_t place_of_op(const char *name) {
  char kernel[sizeof customs[0].kernel];
  (void)snprintf(kernel, sizeof kernel, "custom %.64s", name);
  size_t i = place_of(kernel);
  memcpy(customs[i].kernel, kernel, sizeof kernel);
  return i;
}

void fake_cuda_custom_set(const char *name, fake_cuda_custom_body *body) {
  customs[place_of_op(name)].body = body;
}

const char *fake_cuda_custom_source(const char *name) {
  return customs[place_of_op(name)].source;
}

uint32_t fake_cuda_custom_compilations(const char *name) {
  return customs[place_of_op(name)].compilations;
}

const char *fake_cuda_custom_compile(const char *name, const char *source) {
  size_t i = place_of_op(name);
  free(customs[i].source);
  customs[i].source = strdup(source);
  customs[i].compilations++;
  return customs[i].kernel;
}

const char *fake_cuda_custom_kernel(const void *image) {
  const char *text = image;
  return strncmp(text, "custom ", 7) == 0 ? customs[place_of(text)].kernel : NULL;
}

bool fake_cuda_is_custom(const char *kernel) {
  return strncmp(kernel, "custom ", 7) == 0;
}

static void note_launch(const fake_cuda_custom_launch *launch) {
  if (fake_cuda_custom_launch_count < FAKE_CUDA_CUSTOM_LAUNCHES) {
    fake_cuda_custom_launches[fake_cuda_custom_launch_count++] = *launch;
  }
}

// Which function that is, the source of the dispatch says that the megakernel was compiled with.
static size_t place_of_number(uint32_t number) {
  char begin[64], name[64] = "";
  const char *source = fake_cuda_custom_source(MGL_CUDA_CUSTOM_DISPATCH);
  (void)snprintf(begin, sizeof begin, "    case %u: mgl_custom_%u::", number, number);
  const char *at = source != NULL ? strstr(source, begin) : NULL;
  assert_non_null(at);
  (void)snprintf(name, sizeof name, "%.*s", (int)strcspn(at + strlen(begin), "("),
                 at + strlen(begin));
  return place_of_op(name);
}

void fake_cuda_custom_task(const mgl_cuda_op *op, const mgl_cuda_plan *plan, uint32_t begin,
                           uint32_t end) {
  const size_t i = place_of_number(op->k);
  mgl_custom_launch launch;
  megalith_custom_call call;
  memcpy(&launch, op->weights, sizeof launch);
  mgl_custom_set_plan(&launch, plan->token_count, plan->logit_row_count, plan->tokens,
                      plan->positions);
  assert_non_null(customs[i].body);
  assert_ptr_equal(launch.output, op->out);
  for (uint32_t row = begin; mgl_custom_rows(&launch, row, end, &call); row = call.end_row) {
    customs[i].body(&call);
  }
  note_launch(
      &(fake_cuda_custom_launch){customs[i].kernel + 7, 1, MGL_CUSTOM_THREADS, false, launch});
}

void fake_cuda_custom_run(const char *kernel, unsigned blocks, unsigned threads,
                          const mgl_custom_launch *launch, bool in_graph) {
  size_t i = place_of(kernel);
  megalith_custom_call call;
  assert_non_null(customs[i].body);
  assert_true(blocks >= 1);
  for (uint64_t block = 0; block < blocks; block++) {
    for (uint64_t tile = block; mgl_custom_tile(launch, tile, &call); tile += blocks) {
      customs[i].body(&call);
    }
  }
  note_launch(&(fake_cuda_custom_launch){kernel + 7, blocks, threads, in_graph, *launch});
}
