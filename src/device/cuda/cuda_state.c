// The state block of a launch, built on the host with the device's pointers: all that a launch
// starts afresh, so that nothing of the one before matters.
#include <math.h>
#include <string.h>

#include "device/cuda/cuda_program_parts.h"
#include "twin/page_ring.h"

// Empty queues in the image.
static void make_queues(mgl_cuda_program *p) {
  const mgl_cuda_state_layout *state = &p->layout.state;
  mgl_queue *queues = (mgl_queue *)(void *)(p->image + state->scheduler_queues);
  for (uint32_t i = 0; i < p->build.schedulers; i++) {
    uint64_t offset = state->slots + i * MGL_SCHEDULER_SLOTS * sizeof(mgl_queue_slot);
    mgl_queue_init(&queues[i], (mgl_queue_slot *)(void *)(p->image + offset), MGL_SCHEDULER_SLOTS);
    queues[i].slots = mgl_cuda_pointer(mgl_cuda_state_at(p, offset));
  }
}

// Pages behind the ring, at most: a shorter one holds less of what the memory delivers while nobody
// computes (docs/log/246).
enum { MOST_SUM_PAGES = 2, LEAST_RING_PAGES = 8 };

// Row blocks of a task of the linear of a layer whose tasks have the most on average; an op's tasks
// follow each other.
static uint32_t most_row_blocks(const mgl_task_graph *graph) {
  uint32_t most = 0, op = UINT32_MAX, features = 0, tasks = 0;
  for (uint32_t i = 0; i < graph->task_count; i++) {
    const mgl_task *task = &graph->tasks[i];
    if (!mgl_op_kind_is_linear(task->type) || task->type == MGL_OP_LOGITS) {
      continue;
    }
    features = (task->op == op ? features : 0) + task->end - task->begin;
    tasks = (task->op == op ? tasks : 0) + 1;
    op = task->op;
    bool ends = i + 1 == graph->task_count || graph->tasks[i + 1].op != op;
    uint32_t rows = task->type == MGL_OP_GATE_UP ? MGL_CUDA_HALF_ROWS : MGL_CUDA_BLOCK_ROWS;
    uint32_t mean = ends ? (features + tasks * rows - 1) / (tasks * rows) : 0;
    most = mean > most ? mean : most;
  }
  return most;
}

// Smem pages that weights go through in a graph. Of more than 8 tokens partial sums take some of
// the others, so that the largest task has fewer batches of row blocks, each of which reads all of
// x. (Of up to 8 tokens those in scratch suffice.)
uint32_t mgl_cuda_ring_pages(const mgl_cuda_program *p, const mgl_task_graph *graph) {
  bool codes = p->packings >> 1 != 0;
  if (graph->tokens <= 8 || (graph->tokens > MGL_CUDA_CARRIED_TOKENS && !codes) ||
      p->device->kernels == MGL_CUDA_KERNELS_PORTABLE || p->model.experts.count != 0) {
    return p->smem_pages;
  }
  const uint32_t row_tiles = 2, most = most_row_blocks(graph);
  uint32_t best = 0, least = UINT32_MAX;
  for (uint32_t pages = 0; pages <= MOST_SUM_PAGES && pages + LEAST_RING_PAGES <= p->smem_pages;
       pages++) {
    uint32_t of_batch = mgl_rows_batch_blocks(row_tiles, pages, p->page_bytes);
    uint32_t batches = (most + of_batch - 1) / of_batch;
    if (batches < least) {
      best = pages;
      least = batches;
    }
  }
  return p->smem_pages - best;
}

static void make_graph(mgl_cuda_program *p, uint32_t graph, mgl_cuda_run *run) {
  const mgl_cuda_graph_layout *at = &p->layout.graphs[graph];
  const mgl_cuda_state_layout *state = &p->layout.state;
  mgl_cu_ptr base = p->memory[MGL_CUDA_MEMORY_DESCRIPTORS];
  mgl_graph_view view = mgl_cuda_graph_view(p->graphs[graph]);
  view.tasks = mgl_cuda_pointer(base + at->tasks);
  view.events = mgl_cuda_pointer(base + at->events);
  view.aot_start = mgl_cuda_pointer(base + at->aot_start);
  view.aot_tasks = mgl_cuda_pointer(base + at->aot_tasks);
  view.jit_tasks = mgl_cuda_pointer(base + at->jit_tasks);
  view.counters = mgl_cuda_pointer(
      mgl_cuda_state_at(p, state->counters + state->counter_start[graph] * sizeof(mgl_word)));
  for (uint32_t rank = 0; p->ranks != NULL && rank < p->peers.count; rank++) {
    view.peers[rank] = view.counters + (int64_t)(p->peers.at[rank] - p->peers.at[p->peers.rank]) /
                                           (int64_t)sizeof(mgl_word);
  }
  run->protocol.graphs[graph] = view;
  run->graphs[graph] = (mgl_cuda_graph){.steps = mgl_cuda_pointer(base + at->steps),
                                        .step_start = mgl_cuda_pointer(base + at->step_start),
                                        .ops = mgl_cuda_pointer(base + at->ops),
                                        .jit_below = mgl_cuda_pointer(base + at->jit_below),
                                        .jit_count = view.jit_count,
                                        .tokens = p->graphs[graph]->tokens,
                                        .attention_strides = p->graphs[graph]->attention_strides,
                                        .ring_pages = mgl_cuda_ring_pages(p, p->graphs[graph])};
}

enum { TOKENS_16 = 16 };

// Whether the time of a graph's stages is what reading takes, and not what x takes to come, which
// queues behind pages, the longer the more rows it has. Fits what was measured (docs/log/162):
// 3 pages a stage (no), 11 (up to 4 tokens), 14 and more (up to 8).
static bool is_streaming(uint32_t stage_pages, uint32_t tokens) {
  return tokens < TOKENS_16 && stage_pages >= 8 + tokens / 2;
}

enum {
  MEMORY_LATENCY_NS = 1200,  // from a page's request to its last byte while the memory is busy
  LEAST_COVERING = 2,        // pages, of GPUs that do not say how fast their memory is
  MOST_COVERING = MGL_CUDA_MAX_PAGES / 2,
};

// Pages that a worker must have on their way for the memory to be busy: what it delivers within its
// latency. (By the memory's clock, at two bits a cycle and pin: 2 on an H100, 3 on an H200.)
static uint32_t covering_pages(const mgl_cuda_program *p) {
  double bytes_per_s = 2e3 * p->device->memory_clock_khz * (double)p->device->memory_bus_bits / 8;
  double bytes = bytes_per_s * MEMORY_LATENCY_NS / 1e9 / p->workers;
  double pages = ceil(bytes / MGL_CUDA_PAGE_BYTES);
  return pages < LEAST_COVERING  ? (uint32_t)LEAST_COVERING
         : pages > MOST_COVERING ? (uint32_t)MOST_COVERING
                                 : (uint32_t)pages;
}

// Pages on their way, at most. More than cover the latency queue in the memory system, where flags
// and activations wait behind them; fewer leave it idle (docs/log/183).
static void set_in_flight(const mgl_cuda_program *p, const mgl_cuda_launch_options *launch,
                          mgl_cuda_graph *graph) {
  bool streaming = is_streaming(p->layout.stage_pages, graph->tokens);
  uint32_t covering = covering_pages(p);
  graph->in_flight_long = streaming ? 8 : 4;
  graph->in_flight = streaming ? 8 : graph->tokens == TOKENS_16 ? covering : 4;
  graph->in_flight_ahead = streaming ? covering + 1 : covering;
  // Of pages on their way the loader remembers as many as the ring has.
  if (graph->in_flight > p->smem_pages) {
    graph->in_flight = p->smem_pages;
  }
  if (graph->in_flight_long > p->smem_pages) {
    graph->in_flight_long = p->smem_pages;
  }
  if (launch->in_flight != 0) {
    graph->in_flight = graph->in_flight_long = launch->in_flight;
  }
  if (launch->in_flight_ahead != 0) {
    graph->in_flight_ahead = launch->in_flight_ahead;
  }
}

static void set_launch(const mgl_cuda_program *p, const mgl_cuda_launch_options *launch,
                       mgl_cuda_run *run) {
  for (uint32_t i = 0; i < MGL_MAX_GRAPHS; i++) {
    set_in_flight(p, launch, &run->graphs[i]);
  }
  run->prefetch = launch->no_prefetch ? 0 : 1;
  run->step_batch = launch->step_batch;
  run->stall_ns = launch->stall_ns;
  run->delay = launch->delay_ns;
  run->injection = (uint32_t)launch->injection;
  run->injection_task = launch->injection_task;
  run->injection_iteration = launch->injection_iteration;
}

static void set_memory(const mgl_cuda_program *p, mgl_cuda_run *run) {
  const mgl_cuda_state_layout *state = &p->layout.state;
  run->block_tables = mgl_cuda_pointer(mgl_cuda_state_at(p, state->block_tables));
  run->block_table_stride = p->sizes.limits.pages_per_sequence;
  run->sequences = mgl_cuda_pointer(mgl_cuda_state_at(p, state->sequences));
  run->next_rows = mgl_cuda_pointer(mgl_cuda_state_at(p, state->next_rows));
  run->plans = mgl_cuda_pointer(mgl_cuda_state_at(p, state->plans));
  run->partials = mgl_cuda_pointer(p->memory[MGL_CUDA_MEMORY_PARTIALS]);
  run->merges = mgl_cuda_pointer(mgl_cuda_state_at(p, state->merges));
  run->iteration_ns = mgl_cuda_pointer(mgl_cuda_state_at(p, state->iteration_ns));
  run->iteration_capacity = p->layout.iteration_capacity;
  run->traces = mgl_cuda_pointer(mgl_cuda_state_at(p, state->traces));
  run->span_count = p->trace_spans;
  if (p->trace_spans > 0) {
    run->spans = mgl_cuda_pointer(p->memory[MGL_CUDA_MEMORY_TRACE]);
    run->marks = mgl_cuda_pointer(p->memory[MGL_CUDA_MEMORY_TRACE] + state->trace_marks);
  }
}

static void set_ranks(const mgl_cuda_program *p, mgl_cuda_run *run) {
  const mgl_cuda_peers *peers = &p->peers;
  if (p->ranks == NULL) {
    return;
  }
  run->protocol.rank = peers->rank;
  run->protocol.rank_count = peers->count;
  run->inbox = mgl_cuda_pointer(p->memory[MGL_CUDA_MEMORY_INBOX]);
  run->inbox_stride = p->layout.inbox_stride;
  run->exchange_count = p->layout.exchanges;
  run->rank_words = mgl_cuda_pointer(mgl_cuda_state_at(p, p->layout.state.rank_words));
  for (uint32_t rank = 0; rank < peers->count; rank++) {
    run->peers[rank] = (int64_t)(peers->at[rank] - peers->at[peers->rank]);
  }
}

void mgl_cuda_make_image(mgl_cuda_program *p, const mgl_cuda_start *start) {
  mgl_cuda_run *run = mgl_cuda_image_run(p);
  p->iterations_past += mgl_load_relaxed(&run->protocol.published) + 1;
  memset(p->image, 0, (size_t)p->layout.state.image_bytes);
  run->protocol.worker_count = p->workers;
  run->protocol.scheduler_count = p->build.schedulers;
  run->protocol.graph_count = p->graph_count;
  run->protocol.workers = mgl_cuda_pointer(mgl_cuda_state_at(p, p->layout.state.workers));
  run->protocol.scheduler_queues =
      mgl_cuda_pointer(mgl_cuda_state_at(p, p->layout.state.scheduler_queues));
  for (uint32_t i = 0; i < p->graph_count; i++) {
    make_graph(p, i, run);
  }
  make_queues(p);
  set_memory(p, run);
  set_launch(p, start->launch, run);
  set_ranks(p, run);
  run->kv_heads = p->model.kv_heads;
  run->group = p->model.group;
  run->head_parts = mgl_cuda_head_parts(&p->model);
  run->vocab = p->model.vocab;
  run->op_count = (uint32_t)p->program->op_count;
  run->iterations_past = p->iterations_past;
  run->page_count = p->smem_pages;
  run->tells_loader = p->streams_jit ? 1 : 0;
  run->scheduler_warps = p->build.scheduler_warps ? 1 : 0;
  run->most_iterations = start->most_iterations;
  bool wide = p->wide.tokens > 0 && !start->launch->full;
  run->iteration_tokens = wide ? p->wide.narrow_tokens : p->sizes.limits.tokens;
  bool chosen = start->launch->narrow_context == 0;
  run->long_tokens = chosen ? MGL_LONG_TOKENS : 0;
  run->narrow_context = !wide    ? UINT64_MAX
                        : chosen ? p->wide.narrow_context
                                 : start->launch->narrow_context;
  run->sequence_slots = p->feeding.slot_count;
  // No plan exists yet.
  mgl_cuda_plan_clear(mgl_cuda_image_plan(p));
  mgl_cuda_plan *second = mgl_cuda_image_plan(p) + 1;  // of which the image has the head
  second->graph = UINT32_MAX;
}
