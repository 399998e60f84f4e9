#include "support/fake_cuda.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

#include "base/alloc.h"
#include "base/hash.h"
#include "device/cuda/cuda_custom.h"
#include "device/cuda/cuda_plan.h"
#include "graph/graph.h"
#include "model/dummy_weights.h"
#include "support/fake_cuda_parts.h"
#include "twin/full_turn.h"
#include "twin/packing.h"

// --- the driver ----------------------------------------------------------------------------------

fake_cuda fake;

static mgl_cu_result fake_ok(void) {
  return 0;
}

static mgl_cu_result fake_context_set(void *context) {
  (void)context;
  return 0;
}

static mgl_cu_result fake_error_string(mgl_cu_result code, const char **text) {
  (void)code;
  *text = "a fake error";
  return 0;
}

static mgl_cu_result fake_stream_create(void **stream, unsigned flags) {
  (void)flags;
  *stream = &fake;
  return 0;
}

static mgl_cu_result fake_destroy(void *object) {
  (void)object;
  return 0;
}

// The megakernel is a thread.
static pthread_t kernel_id;
static bool launched;
static mgl_word kernel_ended;
static mgl_word polls;  // iterations that may begin: one more for each look of the host
static mgl_word begun;  // iterations
// Turns of a rank other than 0. What its planner has read rank 0 knows by what it computes with it,
// and so this rank's host, which writes there again: an order that lies in another process, where a
// thread sanitizer does not look.
static mgl_word followed;

static mgl_cu_result fake_stream_query(void *stream) {
  (void)stream;
  if (fake_cuda_looks_left > 0) {
    fake_cuda_looks_left--;
    return MGL_CU_NOT_READY;
  }
  (void)mgl_load_acquire(&followed);
  uint64_t may_begin = mgl_load_relaxed(&polls);
  mgl_store_release(&polls, may_begin + (may_begin <= mgl_load_relaxed(&begun) ? 1 : 0));
  if (fake_cuda_wide_is_busy() || (launched && mgl_load_acquire(&kernel_ended) == 0)) {
    return MGL_CU_NOT_READY;
  }
  if (launched) {
    (void)pthread_join(kernel_id, NULL);
    launched = false;
  }
  return fake.hung ? MGL_CU_NOT_READY : fake.launch_result;
}

// An event is the launches before it.
typedef struct fake_event {
  uint32_t graphs, kernels;
} fake_event;

static mgl_cu_result fake_event_create(void **event, unsigned flags) {
  (void)flags;
  *event = fake_cuda_track(calloc(1, sizeof(fake_event)));
  return 0;
}

static mgl_cu_result fake_event_destroy(void *event) {
  fake_cuda_release(event);
  return 0;
}

static mgl_cu_result fake_event_record(void *event, void *stream) {
  (void)stream;
  *(fake_event *)event = (fake_event){fake.graph_launches, fake.loose_launches};
  return 0;
}

static mgl_cu_result fake_event_elapsed(float *ms, void *begin, void *end) {
  const fake_event *from = begin, *to = end;
  *ms = 2 + fake.graph_ms * (float)(to->graphs - from->graphs) +
        fake.kernel_ms * (float)(to->kernels - from->kernels);
  return fake.elapsed_result;
}

static mgl_cu_result fake_module_load(void **module, const void *image) {
  const char *custom = fake_cuda_custom_kernel(image);
  *module = &fake;
  if (custom != NULL) {
    memcpy(module, &custom, sizeof custom);
  }
  return 0;
}

static mgl_cu_result fake_module_function(void **function, void *module, const char *name) {
  memcpy(function, &name, sizeof name);  // a function is its name
  if (module != &fake) {
    assert_string_equal(name, "mgl_custom_kernel");
    *function = module;
  }
  return 0;
}

static mgl_cu_result fake_function_set(void *function, int attribute, int value) {
  (void)function;
  (void)attribute;
  (void)value;
  return 0;
}

static mgl_cu_result fake_blocks_per_sm(int *blocks, void *function, int threads, size_t smem) {
  bool wide = fake_cuda_wide_tile(function) != 0;
  if (wide || strcmp(function, "mgl_megakernel") == 0) {
    const size_t rest = MGL_CUDA_BLOCK_BYTES + MGL_CUDA_SCRATCH_BYTES;
    const size_t most = (size_t)12 * MGL_CUDA_PAGE_BYTES;
    const size_t codes = (size_t)11 * MGL_CUDA_PAGE_BYTES;  // and their scales
    assert_int_equal(threads, wide ? (int)fake_cuda_wide_threads() : (int)MGL_CUDA_THREADS);
    if (wide) {
      assert_int_equal(smem, fake_cuda_wide_smem());
    } else {
      assert_true(fake.codes ? smem > rest + codes && smem < rest + most : smem == rest + most);
    }
  } else {
    assert_memory_equal(function, "mgl_op_", 7);
  }
  *blocks = 1;
  return 0;
}

static mgl_cu_result fake_device_attribute(int *value, int attribute, int device) {
  (void)device;
  switch (attribute) {
    case MGL_CU_ATTRIBUTE_SMEM_PER_SM: *value = 233472; return 0;
    case MGL_CU_ATTRIBUTE_SMEM_RESERVED: *value = 1024; return 0;
    case MGL_CU_ATTRIBUTE_PCI_DOMAIN:
    case MGL_CU_ATTRIBUTE_PCI_BUS: *value = 1; return 0;
    case MGL_CU_ATTRIBUTE_PCI_SLOT: *value = fake.slot; return 0;
    default: return 1;
  }
}

// Kernels of weights.cu and wide_plan.cu, where one thread does all, and the one of mode full that
// only plans.
static mgl_cu_result fake_launch(void *function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                                 unsigned block_x, unsigned block_y, unsigned block_z,
                                 unsigned smem, void *stream, void **p, void **extra) {
  static const mgl_place alone = {0, 1, 0, 1};
  const char *name = function;
  (void)grid_y, (void)grid_z, (void)block_y, (void)block_z, (void)smem, (void)stream, (void)extra;
  assert_true(grid_x >= 1);
  bool custom = fake_cuda_is_custom(name);
  if ((custom || strncmp(name, "mgl_plain_kernel_", 17) == 0) &&
      fake_cuda_plain_captured(name, grid_x, block_x, p)) {
    return fake.capture_fails ? 1 : 0;
  }
  fake_cuda_note_call(name, grid_x, block_x, false);
  if (custom) {
    fake_cuda_custom_run(name, grid_x, block_x, p[0], false);
    return 0;
  }
  if (fake_cuda_plain_launch(name, grid_x, block_x, p)) {
    return 0;
  }
  if (strcmp(name, "mgl_op_plan") == 0) {
    assert_int_equal(block_x, MGL_OP_PLAN_THREADS);
    fake_cuda_run_plan_kernel(*(mgl_cuda_run **)p[0], *(uint64_t **)p[1], *(mgl_op_first **)p[2]);
  } else if (strcmp(name, "mgl_op_note") == 0) {
    assert_int_equal(block_x, MGL_OP_PLAN_THREADS);
    mgl_full_note_items((mgl_lanes){0, 1}, *(mgl_cuda_run **)p[0], 0, *(mgl_op_first **)p[1]);
  } else if (strcmp(name, "mgl_pack_weights") == 0) {
    assert_int_equal(block_x, MGL_PACK_THREADS);
    mgl_pack_share(alone, *(const uint16_t **)p[0], *(uint32_t *)p[1], *(uint32_t *)p[2],
                   *(uint32_t *)p[3], *(uint32_t *)p[4], *(uint8_t **)p[5]);
  } else if (strcmp(name, "mgl_pack_codes") == 0) {
    assert_int_equal(block_x, MGL_PACK_THREADS);
    mgl_pack_codes_share(alone, (mgl_packing) * (uint32_t *)p[1], *(mgl_code_rows *)p[0],
                         *(uint32_t *)p[2], *(uint32_t *)p[3], *(uint32_t *)p[4],
                         *(uint8_t **)p[5]);
  } else if (strcmp(name, "mgl_dummy_packed") == 0) {
    assert_int_equal(block_x, MGL_PACK_THREADS);
    mgl_dummy_packed_share(alone, *(mgl_dummy_stream *)p[0], *(uint64_t *)p[1], *(uint64_t *)p[2],
                           *(uint32_t *)p[3], *(uint32_t *)p[4], *(uint32_t *)p[5],
                           *(uint32_t *)p[6], *(uint8_t **)p[7]);
  } else if (strcmp(name, "mgl_dummy_rows") == 0) {
    mgl_dummy_rows_share(alone, *(mgl_dummy_stream *)p[0], *(uint64_t *)p[1], *(uint16_t **)p[2]);
  } else if (strcmp(name, "mgl_wide_plan_run") == 0) {
    assert_true(grid_x == 1 && block_x == MGL_CUDA_CONSUMERS && !launched);
    fake_cuda_wide_plan(p);
  } else if (strcmp(name, "mgl_wide_sample_run") == 0) {
    assert_int_equal(block_x, MGL_CUDA_CONSUMERS);
    fake_cuda_wide_sample(p);
  } else {
    assert_string_equal(name, "mgl_read_ceiling");
    assert_int_equal(block_x, MGL_READ_THREADS);
  }
  return 0;
}

// --- the megakernel ------------------------------------------------------------------------------

int32_t fake_cuda_token(int32_t first, uint32_t position) {
  return (int32_t)(((uint32_t)first * 31 + position * 7) % 500);
}

// What a worker's clock shows: it begins somewhere, and gets faster and faster.
static uint64_t clock_at(uint32_t worker, uint64_t ns) {
  double seconds = (double)ns / 1e9;
  return (worker * UINT64_C(7) << 33) + ns * FAKE_CUDA_CLOCKS +
         (uint64_t)(seconds * seconds * 20 * worker);
}

static void mark(mgl_cuda_run *run, uint64_t ns) {
  for (uint32_t i = 0; run->marks != NULL && i < FAKE_CUDA_WORKERS; i++) {
    uint32_t at = run->traces[i].mark_count++ % MGL_CUDA_TRACE_MARKS;
    run->marks[(size_t)i * MGL_CUDA_TRACE_MARKS + at] =
        (mgl_cuda_mark){.ns = ns + i, .clock = clock_at(i, ns + i)};
  }
}

static const mgl_lanes one_lane = {.lane = 0, .count = 1};

// What the device does between two iterations.
static void begin_iteration(mgl_cuda_run *run, uint64_t iteration) {
  enum { MARKS = 700 };  // in an iteration
  uint64_t now = fake.iteration_step_ns * (iteration + 1);
  while (mgl_load_acquire(&polls) < iteration) {
    (void)nanosleep(&(struct timespec){.tv_nsec = 1000}, NULL);
  }
  mgl_store_relaxed(&begun, iteration + 1);
  run->iteration_ns[iteration % run->iteration_capacity] = now;
  for (uint32_t i = 0; i < MARKS; i++) {
    mark(run, now + i * fake.iteration_step_ns / MARKS);
  }
}

// As mgl_planner_run of role_planner.cuh.
static uint32_t device_turn(mgl_cuda_run *run, uint64_t iteration) {
  uint32_t tokens = mgl_plan_turn(one_lane, run, iteration);
  if (run->protocol.rank != 0) {
    mgl_store_release(&followed, mgl_load_relaxed(&followed) + 1);
  }
  run->planning.planning_ns += 10;
  if (tokens > 0 && fake.plan_hashes != NULL) {
    const mgl_cuda_plan *plan = &run->plans[iteration & 1];
    const mgl_hash hashes[] = {
        mgl_hash_bytes(plan->positions, plan->token_count * sizeof *plan->positions),
        mgl_hash_bytes(plan->items, plan->item_count * sizeof *plan->items),
        mgl_hash_bytes(run->block_tables, (size_t)run->sequence_slots * run->block_table_stride *
                                              sizeof *run->block_tables)};
    fake.plan_hashes[fake.plans++ % FAKE_CUDA_HASHES] = mgl_hash_bytes(hashes, sizeof hashes);
  }
  if (tokens > 0) {
    run->planning.commands_before = run->planning.commands.own;
    mgl_store_release(&run->announced[iteration & 1],
                      (iteration + 1) << 8 | run->plans[iteration & 1].graph);
  }
  return tokens;
}

static void device_plan(mgl_cuda_run *run, uint64_t iteration) {
  if (run->planner != NULL) {
    mgl_turn_tell_iterations(run, iteration);
    mgl_turn_settle(run, run->planning.commands_before);
    (void)device_turn(run, iteration + 1);
  }
}

// As mgl_planner_await_work. False: the launch is over.
static bool await_work(mgl_cuda_run *run, uint64_t iteration) {
  if (run->planning.wide_tokens != 0) {
    mgl_turn_tell_iterations(run, iteration);
    mgl_turn_settle(run, run->planning.commands_before);
    return false;
  }
  for (;;) {
    mgl_turn_tell_iterations(run, iteration);
    mgl_turn_settle(run, run->planning.commands.own);
    if (mgl_turn_is_over(run)) {
      return false;
    }
    while (!mgl_turn_has_news(run)) {
      if (mgl_load_relaxed(&run->protocol.fault) != MGL_FAULT_NONE) {
        return false;
      }
      fake.idle_looks++;
      (void)nanosleep(&(struct timespec){.tv_nsec = 1000}, NULL);
    }
    if (device_turn(run, iteration) > 0) {
      return true;
    }
    if (run->planning.wide_tokens != 0) {
      return false;
    }
  }
}

static int device_next_plan(void *context, uint64_t iteration) {
  mgl_cuda_run *run = context;
  uint64_t announced = mgl_load_acquire(&run->announced[iteration & 1]);
  begin_iteration(run, iteration);
  if (announced >> 8 < iteration + 1) {
    bool planned = run->planning.wide_tokens == 0 && device_turn(run, iteration) > 0;
    if (!planned && !await_work(run, iteration)) {
      return -1;
    }
    run->planning.resumed = iteration;
    run->planning.resumed_ns = run->iteration_ns[iteration % run->iteration_capacity];
    announced = mgl_load_acquire(&run->announced[iteration & 1]);
  }
  uint32_t graph = (uint32_t)(announced & 255);
  return iteration < run->most_iterations && graph < run->protocol.graph_count ? (int)graph : -1;
}

// The token before this one joins the edits, and the host hears what it asked for.
static void device_sampling(mgl_cuda_sequence *s, int32_t token) {
  assert_int_equal(s->takes_row, s->rule.flags);
  if ((s->rule.flags & MGL_SAMPLING_COUNTS) != 0 && s->token_count > s->prompt_count) {
    uint32_t i = 0;
    while (i < s->edit_count && s->edits[i].token != s->tokens[s->token_count - 1]) {
      i++;
    }
    if (i == s->edit_count) {
      s->edits[s->edit_count++] = (mgl_logit_edit){.token = s->tokens[s->token_count - 1]};
    }
    s->edits[i].marks += MGL_EDIT_GENERATED;
  }
  if ((s->rule.flags & MGL_SAMPLING_LOGPROBS) != 0) {
    mgl_cuda_logprobs *to = &s->host_logprobs[s->token_count - s->prompt_count];
    *to = (mgl_cuda_logprobs){
        .mass = UINT64_C(2) << MGL_WEIGHT_BITS, .largest = 1, .logit = -(float)token};
    for (uint32_t i = 0; i < s->rule.top_logprobs; i++) {
      to->top[i].token = token + (int32_t)i;
      to->top[i].logit = -(float)i;
    }
  }
}

// The first token from this one on, and round, that the sequence's mask allows.
static int32_t device_mask(const mgl_cuda_run *run, const mgl_cuda_sequence *s, int32_t token) {
  uint32_t at = (uint32_t)token;
  bool is_masked = (s->rule.flags & MGL_SAMPLING_MASKED) != 0;
  assert_true(is_masked == (s->mask != NULL));
  for (uint32_t i = 0; is_masked && (s->mask[1 + at / 64] >> at % 64 & 1) == 0; i++) {
    assert_true(i < run->vocab);
    at = (at + 1) % run->vocab;
  }
  return (int32_t)at;
}

static void send(const mgl_cuda_sequence *s, int32_t token) {
  mgl_word *cells = (mgl_word *)(void *)s->cells;
  mgl_store_release(&cells[s->token_count], UINT64_C(77) << 32 | (uint32_t)token);
}

// What sums over ranks come to: rank 0 has no logits before all others compute the same iteration,
// so before they have made its plan and begin with the next one.
static void await_others(const mgl_cuda_run *run) {
  const bool leads = run->planner != NULL && run->protocol.rank == 0;
  for (uint32_t rank = 1; leads && rank < run->protocol.rank_count; rank++) {
    while (mgl_load_acquire_system(&run->rank_words->seen[rank]) < run->planning.turns &&
           mgl_load_relaxed(&run->protocol.fault) == MGL_FAULT_NONE) {
      (void)nanosleep(&(struct timespec){.tv_nsec = 1000}, NULL);
    }
  }
}

static void note_choice(const mgl_cuda_sequence *s, int32_t token) {
  uint64_t edits = 0;
  for (uint32_t i = 0; i < s->edit_count; i++) {
    edits += (uint64_t)(uint32_t)s->edits[i].token * 64 + s->edits[i].marks;
  }
  const uint64_t parts[] = {(uint64_t)(uint32_t)s->tokens[0], s->token_count,
                            (uint64_t)(uint32_t)token, edits};
  *fake.choices += mgl_hash_bytes(parts, sizeof parts).low;
}

// As mgl_append_token of tasks_sample.cuh.
void fake_cuda_append_token(mgl_cuda_run *run, uint64_t iteration, uint32_t slot) {
  mgl_cuda_sequence *s = &run->sequences[slot];
  uint32_t next_row = run->next_rows[slot];
  await_others(run);
  if (fake.sampling_ns > 0) {
    (void)nanosleep(&(struct timespec){.tv_nsec = fake.sampling_ns}, NULL);
  }
  int32_t token = device_mask(run, s, fake_cuda_token(s->tokens[0], s->token_count));
  if (next_row != UINT32_MAX) {
    run->plans[(iteration + 1) & 1].tokens[next_row] = token;
  }
  if (s->state != MGL_CUDA_SEQUENCE_RUNNING) {
    return;
  }
  if ((int)iteration == fake.not_finite_at) {
    s->state = MGL_CUDA_SEQUENCE_NOT_FINITE;
    send(s, MGL_FEED_NOT_FINITE);
    return;
  }
  device_sampling(s, token);
  if (fake.choices != NULL) {
    note_choice(s, token);
  }
  s->tokens[s->token_count] = token;
  send(s, token);
  s->token_count++;
  for (uint32_t j = 0; j < s->stop_count; j++) {
    s->state = s->stop_ids[j] == token ? MGL_CUDA_SEQUENCE_STOPPED : s->state;
  }
  if (s->state == MGL_CUDA_SEQUENCE_RUNNING && s->token_count == s->max_tokens) {
    s->state = MGL_CUDA_SEQUENCE_LENGTH;
  }
}

void fake_cuda_sample(mgl_cuda_run *run, uint64_t iteration) {
  const mgl_cuda_plan *plan = &run->plans[iteration & 1];
  for (uint32_t i = 0; i < plan->logit_row_count; i++) {
    uint32_t slot = plan->logit_slots[i];
    if (slot == UINT32_MAX) {
      continue;
    }
    const mgl_cuda_sequence *s = &run->sequences[slot];
    assert_int_equal(plan->slots[plan->logit_rows[i]], slot);
    assert_true(s->state != MGL_CUDA_SEQUENCE_RUNNING ||
                plan->positions[plan->logit_rows[i]] == s->token_count - 1);
    fake_cuda_append_token(run, iteration, slot);
  }
}

// --- its KV cache
//
// What a page holds of a token is the hash of the sequence up to it. So every read shows whether
// the page is the right one and what it holds was computed.

enum { KV_PAGES = 4096 };

static uint64_t kv[KV_PAGES][MGL_CUDA_KV_PAGE_TOKENS];

static uint64_t *kv_of(const mgl_cuda_run *run, uint32_t slot, uint32_t position) {
  uint32_t page = position / MGL_CUDA_KV_PAGE_TOKENS;
  assert_true(page < run->block_table_stride);
  int32_t number = run->block_tables[(size_t)slot * run->block_table_stride + page];
  assert_in_range(number, 0, KV_PAGES - 1);
  return &kv[number][position % MGL_CUDA_KV_PAGE_TOKENS];
}

void fake_cuda_compute_row(const mgl_cuda_run *run, uint32_t slot, uint32_t position,
                           int32_t token) {
  uint64_t *at = kv_of(run, slot, position);
  if (run->planner == NULL) {
    return;  // plans of the host may begin anywhere
  }
  const int32_t *tokens = run->sequences[slot].tokens;
  bool runs = run->sequences[slot].state == MGL_CUDA_SEQUENCE_RUNNING;
  uint64_t hash = 1;
  for (uint32_t j = 0; j < position; j++) {
    hash = (hash ^ (uint32_t)tokens[j]) * UINT64_C(0x100000001b3);
    assert_true(!runs || *kv_of(run, slot, j) == hash);
  }
  assert_true(!runs || token == tokens[position]);
  *at = (hash ^ (uint32_t)token) * UINT64_C(0x100000001b3);
}

void fake_cuda_compute_rows(const mgl_cuda_run *run, uint64_t iteration) {
  const mgl_cuda_plan *plan = &run->plans[iteration & 1];
  for (uint32_t i = 0; i < plan->token_count; i++) {
    fake_cuda_compute_row(run, plan->slots[i], plan->positions[i], plan->tokens[i]);
  }
}

static bool reads_words(const mgl_task *task) {
  return task->type == MGL_OP_QKV_PROJ || task->type == MGL_OP_ATTEND ||
         task->type == MGL_OP_LINEAR_ADD || task->type == MGL_OP_GATE_UP ||
         task->type == MGL_OP_ROUTER || task->type == MGL_OP_EXPERTS_UP ||
         task->type == MGL_OP_EXPERTS_DOWN || task->type == MGL_OP_LOGITS;
}

// The kind by which the device computes a task.
static uint32_t computed_as(const mgl_task *task) {
  switch (task->type) {
    case MGL_OP_ROUTER: return MGL_OP_QKV_PROJ;
    case MGL_OP_EXPERTS_UP: return MGL_OP_GATE_UP;
    case MGL_OP_EXPERTS_DOWN: return MGL_OP_LINEAR_ADD;
    case MGL_OP_CUSTOM_UPDATE: return MGL_OP_CUSTOM;
    default: return task->type;
  }
}

// The step that stands for a task says the same as the task; or, in a carrying graph, leaves
// out what words of activations stand for: waits of tasks that read such words, and triggers for
// which only such tasks wait.
static void check_step(const mgl_cuda_run *run, uint32_t worker, const mgl_worker_state *state,
                       const mgl_ready_task *ready) {
  const mgl_cuda_graph *graph = &run->graphs[ready->info.graph];
  const mgl_graph_view *view = &run->protocol.graphs[ready->info.graph];
  const mgl_task *task = &view->tasks[ready->task];
  const mgl_event *trigger = &view->events[task->trigger_event];
  const uint32_t number = mgl_jit_below(view, ready->task);
  const bool is_jit = (task->flags & MGL_TASK_JIT) != 0;
  const uint32_t at =
      is_jit ? graph->step_start[run->protocol.worker_count] + number : state->aot_at - 1;
  const mgl_cuda_step *step = &graph->steps[at];
  const mgl_cuda_op *op = &graph->ops[step->op];
  bool carrying = op->copy_bytes != 0;
  bool only_words = trigger->type == MGL_EVENT_LAUNCH_TASKS;
  for (uint32_t i = trigger->first_task; i < trigger->last_task; i++) {
    only_words = only_words && reads_words(&view->tasks[i]);
  }
  assert_int_equal(graph->step_start[worker], view->aot_start[worker]);
  assert_int_equal(graph->jit_count, view->jit_count);
  assert_true(is_jit || graph->jit_count == 0 || graph->jit_below[at] == number);
  assert_int_equal(step->task, ready->task);
  assert_int_equal(step->op, task->op);
  assert_true(op->kind == computed_as(task) || op->kind == MGL_CUDA_OP_EMPTY);
  assert_int_equal(op->zero, 0);
  assert_int_equal((op->flags & MGL_CUDA_CARRIED) != 0, carrying && reads_words(task));
  assert_int_equal(step->trigger_event,
                   carrying && only_words ? MGL_NO_EVENT : task->trigger_event);
  assert_int_equal(step->wait_event,
                   carrying && reads_words(task) ? MGL_NO_EVENT : task->dependent_event);
  if (step->wait_event != MGL_NO_EVENT) {
    const mgl_event *waits = &view->events[step->wait_event];
    const uint32_t ranks = (waits->flags & MGL_EVENT_REMOTE) != 0 ? run->protocol.rank_count : 1;
    assert_int_equal(step->wait_count, waits->trigger_count * ranks);
    assert_true(mgl_load_relaxed(&view->counters[step->wait_event]) >=
                step->wait_count * ready->info.run);
  }
  assert_int_equal(step->trigger_kind >> 16, trigger->type);
}

static void device_task(mgl_cuda_run *run, const mgl_ready_task *ready) {
  const mgl_task *task = &run->protocol.graphs[ready->info.graph].tasks[ready->task];
  if (task->type == MGL_OP_LOGITS) {
    const mgl_cuda_op *op = &run->graphs[ready->info.graph].ops[task->op];
    uint32_t rows = run->plans[ready->info.iteration & 1].logit_row_count;
    uint32_t end = task->end < op->n ? task->end : op->n;
    for (uint32_t row = 0; row < rows; row++) {
      memset((float *)op->out + (size_t)row * op->n + task->begin, 0,
             (end - task->begin) * sizeof(float));
    }
  } else if (task->type == MGL_OP_EMBED) {
    if (task->begin == 0) {
      fake_cuda_compute_rows(run, ready->info.iteration);
    }
  } else if (task->type == MGL_OP_CUSTOM || task->type == MGL_OP_CUSTOM_UPDATE) {
    fake_cuda_custom_task(&run->graphs[ready->info.graph].ops[task->op],
                          &run->plans[ready->info.iteration & 1], task->begin, task->end);
  } else if (task->type == MGL_OP_NEXT_PLAN) {
    device_plan(run, ready->info.iteration);
  } else if (task->type == MGL_OP_SAMPLE && task->begin == 0) {
    fake_cuda_sample(run, ready->info.iteration);
  }
}

static void device_hang(mgl_cuda_run *run, uint32_t worker, const mgl_ready_task *ready) {
  uint64_t id = mgl_make_id(0, ready->info.graph, ready->task);
  if (fake.ignore_deadline || run->stall_ns > 1000000) {
    fake.hung = true;  // until the host loses patience
    return;
  }
  mgl_store_relaxed(&run->stall,
                    (uint64_t)MGL_CUDA_STALL_RUNNING << 48 | (uint64_t)worker << 32 | id);
  mgl_raise_fault(&run->protocol, MGL_FAULT_STUCK);
}

// --- its trace

static void record(mgl_cuda_run *run, uint32_t worker, mgl_cuda_trace_role role, uint64_t begin_ns,
                   uint64_t end_ns, uint32_t note, uint32_t id) {
  uint32_t at = run->traces[worker].span_counts[role]++ & (run->span_count - 1);
  uint32_t track = worker * MGL_CUDA_TRACE_ROLES + role;
  run->spans[(size_t)track * run->span_count + at] =
      (mgl_cuda_span){.begin = (uint32_t)clock_at(worker, begin_ns),
                      .end = (uint32_t)clock_at(worker, end_ns),
                      .note = note,
                      .id = id};
}

// number: of the task among the worker's in its iteration.
static void trace_task(mgl_cuda_run *run, uint32_t worker, uint32_t number,
                       const mgl_ready_task *ready) {
  const uint64_t all = FAKE_CUDA_TASK_NS;
  uint32_t iteration = (uint32_t)ready->info.iteration;
  uint32_t id = (uint32_t)mgl_make_id(0, ready->info.graph, ready->task);
  uint64_t go = run->iteration_ns[iteration] + number * all;
  if (run->spans == NULL) {
    return;
  }
  record(run, worker, MGL_CUDA_TRACE_WAIT, go - all / 4, go, iteration, id);
  record(run, worker, MGL_CUDA_TRACE_LOAD, go - all / 4, go, iteration, id);
  record(run, worker, MGL_CUDA_TRACE_COMPUTE, go, go + all / 2, iteration, id);
  record(run, worker, MGL_CUDA_TRACE_TRIGGER, go + all / 2, go + all / 2 + all / 10,
         FAKE_CUDA_TASK_NS * FAKE_CUDA_CLOCKS / 4, id);
}

static void run_megakernel(mgl_cuda_run *run) {
  mgl_protocol *p = &run->protocol;
  uint64_t iteration_of[FAKE_CUDA_WORKERS] = {0};
  uint32_t number[FAKE_CUDA_WORKERS] = {0};  // tasks of that iteration
  mgl_worker_state workers[FAKE_CUDA_WORKERS];
  uint32_t ended = 0;
  p->next_plan = device_next_plan;
  p->next_plan_context = run;
  assert_int_equal(p->worker_count, FAKE_CUDA_WORKERS);
  mark(run, 500);
  for (uint32_t i = 0; i < FAKE_CUDA_WORKERS; i++) {
    mgl_worker_init(p, &workers[i], i);
  }
  while (ended < FAKE_CUDA_WORKERS) {
    ended = 0;
    for (uint32_t i = 0; i < FAKE_CUDA_WORKERS; i++) {
      mgl_ready_task ready;
      mgl_poll_result result = mgl_worker_poll(p, &workers[i], &ready);
      ended += result == MGL_POLL_STOP ? 1 : 0;
      if (result != MGL_POLL_TASK) {
        continue;
      }
      if ((int)ready.info.iteration == fake.hang_at && ready.task > 20) {
        device_hang(run, i, &ready);
        return;
      }
      check_step(run, i, &workers[i], &ready);
      number[i] = ready.info.iteration == iteration_of[i] ? number[i] + 1 : 1;
      iteration_of[i] = ready.info.iteration;
      trace_task(run, i, number[i], &ready);
      device_task(run, &ready);
      bool fine = mgl_worker_finish(p, i, &ready);
      assert_true(fine || p->rank_count > 1);
    }
  }
  // (Of several ranks, another one may be lost.)
  assert_true(p->rank_count > 1 || mgl_load_relaxed(&p->fault) == MGL_FAULT_NONE);
}

// --- its launch ----------------------------------------------------------------------------------

static void *kernel_thread(void *run) {
  run_megakernel(run);
  mgl_store_release(&kernel_ended, 1);
  return NULL;
}

static mgl_cu_result fake_launch_cooperative(void *function, unsigned grid_x, unsigned grid_y,
                                             unsigned grid_z, unsigned block_x, unsigned block_y,
                                             unsigned block_z, unsigned smem, void *stream,
                                             void **parameters) {
  (void)grid_y, (void)grid_z, (void)block_y, (void)block_z, (void)stream;
  uint32_t tile_tokens = fake_cuda_wide_tile(function);
  fake_cuda_note_call(function, grid_x, block_x, false);
  if (tile_tokens != 0) {
    assert_true(grid_x == FAKE_CUDA_WORKERS && block_x == fake_cuda_wide_threads());
    assert_true(smem == fake_cuda_wide_smem() && !launched);
    fake_cuda_wide_run(parameters, tile_tokens);
    return 0;
  }
  assert_string_equal((const char *)function, "mgl_megakernel");
  assert_int_equal(grid_x, FAKE_CUDA_WORKERS);
  assert_int_equal(block_x, MGL_CUDA_THREADS);
  fake.run = (mgl_cuda_run *)(uintptr_t) * (mgl_cu_ptr *)parameters[0];
  fake.runs++;
  mgl_store_relaxed(&kernel_ended, 0);
  mgl_store_relaxed(&polls, 0);
  mgl_store_relaxed(&begun, 0);
  launched = true;
  return (mgl_cu_result)pthread_create(&kernel_id, NULL, kernel_thread, fake.run);
}

mgl_status fake_cuda_code(const mgl_cuda_device *device, const char *name,
                          const mgl_cuda_shape *shape, const char *kernel, mgl_cuda_code *out,
                          mgl_error *err) {
  const char *image = "";
  (void)device, (void)kernel;
  if (shape->custom != NULL && strcmp(name, "kernels/cuda/weights.cu") != 0) {
    bool tasks = strcmp(shape->custom->name, MGL_CUDA_CUSTOM_DISPATCH) == 0;
    assert_string_equal(name, tasks ? "kernels/cuda/megakernel.cu" : "kernels/cuda/custom.cu");
    const char *compiled = fake_cuda_custom_compile(shape->custom->name, shape->custom->text);
    image = tasks ? "" : compiled;
  }
  size_t bytes = strlen(image) + 1;
  *out = (mgl_cuda_code){.cubin = mgl_alloc(bytes), .bytes = bytes, .usage = {.registers = 168}};
  if (out->cubin == NULL) {
    return mgl_error_set(err, MGL_ERR_MEMORY, "out of memory for device code");
  }
  memcpy(out->cubin, image, bytes);
  return MGL_OK;
}

mgl_cuda_device fake_cuda_device(void) {
  mgl_cuda_device device = {.name = "Fake", .sm_count = FAKE_CUDA_WORKERS, .major = 9};
  device.kernels = MGL_CUDA_KERNELS_WGMMA;
  device.smem_per_block_bytes = 232448;
  mgl_cuda_driver *d = &device.driver;
  d->error_string = fake_error_string;
  d->context_set = fake_context_set;
  d->context_synchronize = fake_ok;
  fake_cuda_memory_driver(d);
  d->stream_create = fake_stream_create;
  d->stream_destroy = fake_destroy;
  d->stream_query = fake_stream_query;
  d->event_create = fake_event_create;
  d->event_destroy = fake_event_destroy;
  d->event_record = fake_event_record;
  d->event_synchronize = fake_destroy;
  d->event_elapsed = fake_event_elapsed;
  d->module_load = fake_module_load;
  d->module_unload = fake_destroy;
  d->module_function = fake_module_function;
  d->function_set = fake_function_set;
  d->blocks_per_sm = fake_blocks_per_sm;
  d->launch = fake_launch;
  d->launch_cooperative = fake_launch_cooperative;
  d->device_attribute = fake_device_attribute;
  d->stream_synchronize = fake_destroy;
  fake_cuda_full_driver(d);
  fake.free_bytes = (size_t)1 << 32;
  fake.hang_at = FAKE_CUDA_NEVER;
  fake.not_finite_at = FAKE_CUDA_NEVER;
  fake.iteration_step_ns = 1000;
  fake.ignore_deadline = false;
  fake.launch_result = 0;
  fake.access_result = 0;
  fake.hung = false;
  fake.capture_fails = false;
  fake.graph_bytes = 0;
  fake.graph_ms = fake.kernel_ms = 0;
  fake.elapsed_result = 0;
  return device;
}
