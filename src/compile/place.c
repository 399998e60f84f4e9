// Pass 8, place: AOT tasks to workers.
//
// Requires: linearise and label. Ensures: worker[] for every AOT task, and MGL_NO_WORKER for JIT
// tasks; the tasks of one stage are spread over as many workers as there are; bytes are balanced
// over the iteration. Emit lists every worker's tasks in linear order, which liveness needs.
//
// Method: in linear order, a task goes to the worker with the least bytes so far among those that
// got fewest tasks of the present stage; ties go round. So a stage with fewer tasks than workers
// does not always fall to the same ones, and a worker that gets nothing of one stage has time to
// stream the weights of the next. Rejected: every op from worker 0 on, where the last workers idle
// in every stage that does not divide evenly.
#include "compile/tgraph.h"

// Workers in a binary heap: the least loaded first.
typedef struct load {
  uint64_t bytes;
  uint32_t round;  // when it was last given a task; less is longer ago
  uint16_t worker;
} load;

static bool goes_before(const load *a, const load *b) {
  return a->bytes != b->bytes
             ? a->bytes < b->bytes
             : (a->round != b->round ? a->round < b->round : a->worker < b->worker);
}

static void sift_down(load *heap, uint32_t count, uint32_t at) {
  for (;;) {
    uint32_t least = at;
    for (uint32_t child = at * 2 + 1; child <= at * 2 + 2 && child < count; child++) {
      least = goes_before(&heap[child], &heap[least]) ? child : least;
    }
    if (least == at) {
      return;
    }
    load swap = heap[at];
    heap[at] = heap[least];
    heap[least] = swap;
    at = least;
  }
}

static void make_heap(load *heap, uint32_t count) {
  for (uint32_t i = count / 2; i-- > 0;) {
    sift_down(heap, count, i);
  }
}

typedef struct placer {
  load *loads;     // [workers]: a heap of those that may take a task, then those that may not yet
  uint32_t count;  // of the heap
  uint32_t workers;
  uint32_t round;
} placer;

static uint16_t take_least(placer *p, uint64_t cost) {
  if (p->count == 0) {  // everybody has one task more of this stage
    p->count = p->workers;
    make_heap(p->loads, p->count);
  }
  load least = p->loads[0];
  p->loads[0] = p->loads[--p->count];
  least.bytes += cost;
  least.round = ++p->round;
  p->loads[p->count] = least;
  sift_down(p->loads, p->count, 0);
  return least.worker;
}

mgl_status mgl_pass_place(mgl_tgraph *tg, mgl_error *err) {
  uint32_t workers = tg->options->workers;
  placer p = {.workers = workers};
  p.loads = mgl_arena_alloc_zeroed(&tg->arena, workers, sizeof *p.loads);
  tg->worker = mgl_arena_alloc(&tg->arena, tg->task_count * sizeof *tg->worker);
  if (p.loads == NULL || tg->worker == NULL) {
    return mgl_out_of_memory(err);
  }
  for (uint32_t i = 0; i < workers; i++) {
    p.loads[i].worker = (uint16_t)i;
  }
  uint32_t stage = MGL_NO_OP;
  for (uint32_t i = 0; i < tg->task_count + tg->empty_count; i++) {
    uint32_t task = tg->order[i];
    uint32_t op = tg->tasks[task].op;
    if (op == MGL_NO_OP) {
      continue;
    }
    if (tg->op_jit[op] != 0) {
      tg->worker[task] = MGL_NO_WORKER;
      continue;
    }
    if (op != stage) {
      stage = op;
      p.count = workers;
      make_heap(p.loads, p.count);
    }
    tg->worker[task] = take_least(&p, tg->tasks[task].cost);
  }
  for (uint32_t i = 0; i < workers; i++) {
    tg->report.worker_bytes_total += p.loads[i].bytes;
    if (p.loads[i].bytes > tg->report.worker_bytes_max) {
      tg->report.worker_bytes_max = p.loads[i].bytes;
    }
  }
  return MGL_OK;
}
