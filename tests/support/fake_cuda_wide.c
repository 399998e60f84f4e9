// Iterations of the wide class on the fake GPU.
//
// The planner's turns between them are the device's own code. An iteration walks all workers' lists
// of steps, and reads and writes the KV cache as those of the megakernel do; sampling gives the
// same tokens.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "support/fake_cuda.h"
#include "support/fake_cuda_parts.h"
#include "twin/wide_chain.h"

unsigned fake_cuda_wide_threads(void) {
  return fake.portable ? (unsigned)MGL_WIDE_MMA_THREADS : (unsigned)MGL_WIDE_THREADS;
}

size_t fake_cuda_wide_smem(void) {
  return fake.portable ? (size_t)MGL_WIDE_MMA_SMEM_BYTES : (size_t)MGL_WIDE_SMEM_BYTES;
}

uint32_t fake_cuda_wide_tile(const char *function) {
  static const char *const few[] = {"mgl_wide_kernel_64", "mgl_wide_kernel_128"};
  for (uint32_t i = 0; i < 2; i++) {
    if (strcmp(function, few[i]) == 0) {
      assert_false(fake.portable);
      return (uint32_t)MGL_WIDE_LEAST_TILE << i;
    }
  }
  return strcmp(function, "mgl_wide_kernel") == 0 ? MGL_WIDE_MOST_TILE : 0;
}

static const mgl_lanes one_lane = {.lane = 0, .count = 1};

static mgl_cuda_run *wide_of;  // whose iteration is planned; NULL: a plan of the host

static void *pointer_of(const void *parameter) {
  return (void *)(uintptr_t) * (const mgl_cu_ptr *)parameter;
}

void fake_cuda_wide_plan(void **p) {
  const mgl_wide_chain *chain = p[1];
  mgl_cuda_run *run = pointer_of(p[0]);
  fake.wide_ns += 1000;
  mgl_wide_chain_turn(one_lane, run, chain, fake.wide_ns);
  run->planning.planning_ns += 10;
  wide_of = run->planning.wide_runs != 0 ? run : NULL;
  assert_true(wide_of == NULL || chain->plan->token_count > run->iteration_tokens ||
              run->narrow_context != UINT64_MAX);
  for (uint64_t i = 0; i < chain->zero_count && wide_of != NULL; i++) {
    assert_int_equal(chain->zeros[i], 0);
  }
}

// Every worker's list to its end: nobody waits for ever, and nobody is waited for by less or more
// than all.
static void walk_steps(const mgl_wide_run *run) {
  uint32_t at[FAKE_CUDA_WORKERS];
  bool any = true;
  memcpy(at, run->step_start, sizeof at);
  while (any) {
    any = false;
    for (uint32_t w = 0; w < FAKE_CUDA_WORKERS; w++) {
      while (at[w] < run->step_start[w + 1]) {
        const mgl_cuda_step *step = &run->steps[at[w]];
        uint64_t count = step->wait_event == MGL_NO_EVENT
                             ? 0
                             : mgl_load_relaxed(&run->counters[step->wait_event]);
        if (step->wait_event != MGL_NO_EVENT && count < step->wait_count) {
          break;
        }
        assert_true(step->wait_event == MGL_NO_EVENT || count == step->wait_count);
        (void)mgl_add_acq_rel(&run->counters[step->trigger_event], 1);
        at[w]++;
        any = true;
      }
    }
  }
  for (uint32_t w = 0; w < FAKE_CUDA_WORKERS; w++) {
    assert_int_equal(at[w], run->step_start[w + 1]);
  }
}

void fake_cuda_wide_run(void **p, uint32_t tile_tokens) {
  const mgl_wide_run *run = pointer_of(p[0]);
  const mgl_wide_plan *plan = run->plan;
  if (run->steps == NULL) {
    fake.empty_wide_runs += tile_tokens == MGL_WIDE_MOST_TILE ? 1 : 0;
    return;
  }
  if (run->tile_tokens != tile_tokens) {
    return;
  }
  assert_true(tile_tokens == MGL_WIDE_MOST_TILE || plan->token_count <= tile_tokens);
  walk_steps(run);
  for (uint32_t i = 0; i < plan->token_count && wide_of != NULL; i++) {
    fake_cuda_compute_row(wide_of, plan->slots[i], plan->positions[i], plan->tokens[i]);
  }
  if (wide_of != NULL) {
    assert_ptr_equal(run->block_tables, wide_of->block_tables);
  }
  fake.wide_runs++;
  fake.few_wide_runs += tile_tokens == MGL_WIDE_LEAST_TILE ? 1 : 0;
}

void fake_cuda_wide_sample(void **p) {
  const mgl_wide_plan *plan = pointer_of(p[1]);
  const uint64_t long_ago = UINT64_C(1) << 20;  // no iteration that fails
  assert_true(wide_of == pointer_of(p[0]) || plan->logit_row_count == 0);
  for (uint32_t i = 0; i < plan->logit_row_count; i++) {
    uint32_t slot = plan->logit_slots[i];
    assert_int_equal(wide_of->next_rows[slot], UINT32_MAX);
    assert_int_equal(plan->slots[plan->logit_rows[i]], slot);
    fake_cuda_append_token(wide_of, long_ago, slot);
  }
  wide_of = NULL;
}
