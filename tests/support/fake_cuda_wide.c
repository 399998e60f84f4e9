// Iterations of the wide class on the fake GPU.
//
// The planner's turns between them are the device's own code. An iteration walks all workers' lists
// of steps, and reads and writes the KV cache as those of the megakernel do; sampling gives the
// same tokens. Of several ranks a thread runs what is queued, since it waits for the other ranks.
#include <pthread.h>
#include <sched.h>
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
  static const char *const few[] = {"mgl_wide_kernel_64", "mgl_wide_kernel_128",
                                    "mgl_wide_kernel_192"};
  for (uint32_t i = 0; i < 3; i++) {
    if (strcmp(function, few[i]) == 0) {
      assert_false(fake.portable);
      return (uint32_t)MGL_WIDE_LEAST_TILE * (i + 1);
    }
  }
  return strcmp(function, "mgl_wide_kernel") == 0 ? (uint32_t)MGL_WIDE_MOST_TILE : 0;
}

static uint32_t most_tile(void) {
  return fake.codes ? MGL_WIDE_MOST_CODED_TILE : MGL_WIDE_MOST_TILE;
}

static const mgl_lanes one_lane = {.lane = 0, .count = 1};

static mgl_cuda_run *wide_of;  // whose iteration is planned; NULL: a plan of the host

// --- the queue of a rank -------------------------------------------------------------------------

enum { QUEUED = 64 };

typedef struct queued {
  enum { PLAN, RUN, SAMPLE } what;
  uint32_t tile_tokens;
  mgl_cu_ptr first, second;  // parameters
  mgl_wide_chain chain;
} queued;

static struct {
  pthread_mutex_t lock;
  pthread_cond_t news;
  bool runs;
  pthread_t thread;
  queued entries[QUEUED];
  uint64_t put, done;
  bool of_ranks;
} queue = {.lock = PTHREAD_MUTEX_INITIALIZER, .news = PTHREAD_COND_INITIALIZER};

static void turn(void **p);
static void iterate(void **p, uint32_t tile_tokens);
static void sample(void **p);

static void run_queued(queued *q) {
  void *planning[] = {&q->first, &q->chain};
  void *others[] = {&q->first, &q->second};
  switch (q->what) {
    case PLAN: turn(planning); break;
    case RUN: iterate(others, q->tile_tokens); break;
    case SAMPLE: sample(others); break;
    default: break;
  }
}

static void *run_queue(void *unused) {
  (void)unused;
  (void)pthread_mutex_lock(&queue.lock);
  while (queue.done < queue.put) {
    queued *q = &queue.entries[queue.done % QUEUED];
    (void)pthread_mutex_unlock(&queue.lock);
    run_queued(q);
    (void)pthread_mutex_lock(&queue.lock);
    queue.done++;
  }
  queue.runs = false;
  (void)pthread_mutex_unlock(&queue.lock);
  return NULL;
}

static void put(queued q) {
  (void)pthread_mutex_lock(&queue.lock);
  assert_true(queue.put - queue.done < QUEUED);
  queue.entries[queue.put++ % QUEUED] = q;
  if (!queue.runs) {
    queue.runs = true;
    assert_int_equal(pthread_create(&queue.thread, NULL, run_queue, NULL), 0);
    (void)pthread_detach(queue.thread);
  }
  (void)pthread_mutex_unlock(&queue.lock);
}

bool fake_cuda_wide_is_busy(void) {
  (void)pthread_mutex_lock(&queue.lock);
  bool busy = queue.runs;
  (void)pthread_mutex_unlock(&queue.lock);
  return busy;
}

void fake_cuda_wide_plan(void **p) {
  const mgl_cuda_run *run = (const mgl_cuda_run *)(uintptr_t) * (const mgl_cu_ptr *)p[0];
  queue.of_ranks = run->protocol.rank_count > 1;
  if (queue.of_ranks) {
    put((queued){
        .what = PLAN, .first = *(mgl_cu_ptr *)p[0], .chain = *(const mgl_wide_chain *)p[1]});
  } else {
    turn(p);
  }
}

void fake_cuda_wide_run(void **p, uint32_t tile_tokens) {
  if (queue.of_ranks) {
    put((queued){.what = RUN, .first = *(mgl_cu_ptr *)p[0], .tile_tokens = tile_tokens});
  } else {
    iterate(p, tile_tokens);
  }
}

void fake_cuda_wide_sample(void **p) {
  if (queue.of_ranks) {
    put((queued){.what = SAMPLE, .first = *(mgl_cu_ptr *)p[0], .second = *(mgl_cu_ptr *)p[1]});
  } else {
    sample(p);
  }
}

// -------------------------------------------------------------------------------------------------

static void *pointer_of(const void *parameter) {
  return (void *)(uintptr_t) * (const mgl_cu_ptr *)parameter;
}

static void turn(void **p) {
  const mgl_wide_chain *chain = p[1];
  mgl_cuda_run *run = pointer_of(p[0]);
  fake.wide_ns += 1000;
  mgl_wide_chain_turn(one_lane, run, chain, fake.wide_ns);
  mgl_wide_chain_cut(one_lane, chain);
  run->planning.planning_ns += 10;
  wide_of = run->planning.wide_runs != 0 ? run : NULL;
  if (wide_of != NULL && fake.plan_hashes != NULL) {
    const mgl_hash hashes[] = {
        mgl_hash_bytes(chain->plan->positions,
                       chain->plan->token_count * sizeof *chain->plan->positions),
        mgl_hash_bytes(chain->plan->tokens,
                       chain->plan->token_count * sizeof *chain->plan->tokens)};
    fake.plan_hashes[fake.plans++ % FAKE_CUDA_HASHES] = mgl_hash_bytes(hashes, sizeof hashes);
  }
  assert_true(wide_of == NULL || chain->plan->token_count > run->iteration_tokens ||
              run->narrow_context != UINT64_MAX);
  for (uint64_t i = 0; i < chain->zero_count && wide_of != NULL; i++) {
    assert_int_equal(chain->zeros[i], 0);
  }
}

// A step over ranks has ended for the others, too.
static void trigger_others(const mgl_wide_run *run, const mgl_cuda_step *step) {
  const mgl_wide_op *op = &run->ops[step->op];
  if ((op->op.flags & (MGL_WIDE_OVER | MGL_WIDE_WEIGHS)) != MGL_WIDE_OVER) {
    return;
  }
  for (uint32_t rank = 0; rank < run->rank_count; rank++) {
    if (rank != run->rank) {
      void *counter = (unsigned char *)&run->counters[step->trigger_event] + run->peers[rank];
      (void)mgl_add_acq_rel(counter, 1);
    }
  }
}

// Every worker's list to its end: nobody waits for ever, and nobody is waited for by less or more
// than all.
static void walk_steps(const mgl_wide_run *run) {
  enum { LISTS = MGL_WIDE_LISTS_OF(FAKE_CUDA_WORKERS) };
  uint32_t at[LISTS];
  bool any = true;
  const bool waits = wide_of != NULL && wide_of->protocol.rank_count > 1;  // for other ranks
  memcpy(at, run->step_start, sizeof at);
  while (any) {
    any = false;
    for (uint32_t w = 0; w < (uint32_t)LISTS; w++) {
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
        trigger_others(run, step);
        at[w]++;
        any = true;
      }
      any = any || (waits && at[w] < run->step_start[w + 1] &&
                    mgl_load_relaxed(&run->fault) == (uint64_t)MGL_WIDE_FAULT_NONE);
    }
    if (waits) {
      (void)sched_yield();
    }
  }
  if (mgl_load_relaxed(&run->fault) != (uint64_t)MGL_WIDE_FAULT_NONE) {
    return;
  }
  for (uint32_t w = 0; w < (uint32_t)LISTS; w++) {
    assert_int_equal(at[w], run->step_start[w + 1]);
  }
}

static void iterate(void **p, uint32_t tile_tokens) {
  const mgl_wide_run *run = pointer_of(p[0]);
  const mgl_wide_plan *plan = run->plan;
  if (run->steps == NULL) {
    fake.empty_wide_runs += tile_tokens == most_tile() ? 1 : 0;
    return;
  }
  if (run->tile_tokens != tile_tokens) {
    return;
  }
  if (fake.codes && plan->token_count > MGL_WIDE_WIDEN_TOKENS / 2) {
    assert_int_equal(tile_tokens, MGL_WIDE_MOST_TILE);
    fake.widened_runs++;
  } else {
    assert_true(tile_tokens == most_tile() || plan->token_count <= MGL_WIDE_MOST_TILE);
  }
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

static void sample(void **p) {
  const mgl_wide_plan *plan = pointer_of(p[1]);
  const uint64_t long_ago = UINT64_C(1) << 20;  // no iteration that fails
  assert_true(wide_of == pointer_of(p[0]) || plan->logit_row_count == 0);
  for (uint32_t i = 0; i < plan->logit_row_count; i++) {
    uint32_t slot = plan->logit_slots[i];
    assert_int_equal(wide_of->next_rows[slot], UINT32_MAX);
    assert_int_equal(plan->slots[plan->logit_rows[i]], slot);
    assert_true(plan->takes_rows != 0 || wide_of->sequences[slot].takes_row == 0);
    fake_cuda_append_token(wide_of, long_ago, slot);
  }
  wide_of = NULL;
}
