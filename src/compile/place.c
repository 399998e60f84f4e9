// Pass 8, place: AOT tasks to workers.
//
// Requires: linearise and label. Ensures: worker[] for every AOT task, and MGL_NO_WORKER for JIT
// tasks; the tasks of one stage are spread over as many workers as there are; bytes are balanced
// over the iteration. Emit lists every worker's tasks in linear order, which liveness needs.
//
// Method: stage by stage, in the order of their first tasks; within a stage the task with most
// bytes first. A task goes to the worker with the least bytes so far among those that got fewest
// tasks of its stage; ties go round. So a stage with fewer tasks than workers does not always fall
// to the same ones, a worker that gets nothing of one stage has time to stream the weights of the
// next, and tiles of unequal size even out over the iteration. Rejected: every op from worker 0 on,
// where the last workers idle in every stage that does not divide evenly; and a stage's tasks in
// linear order, whose first is a small one in every stage, so that the least loaded worker stayed
// behind for ever (0.75 of the mean bytes on 132 workers).
//
// On a GPU that computes one token, what decides a stage is the worker that ended the one before
// last, and goes through its next task with nobody to wait for (docs/log/238). So who is late at a
// stage comes last there, and gets none of its tasks where it has few: late are those with a task
// of the latest stage that had tasks for some workers only. Of attention, which has tasks for all,
// these are the ones with a unit of the first strides, where the items of one sequence are.
#include <stdlib.h>

#include "compile/tgraph.h"

// Workers in a binary heap: the least loaded first.
typedef struct load {
  uint64_t bytes;
  uint32_t round;  // when it was last given a task; less is longer ago
  uint16_t worker;
  bool late;  // at the stage at hand
} load;

static bool goes_before(const load *a, const load *b) {
  if (a->late != b->late) {
    return b->late;
  }
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
  bool *late;  // [workers]
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

// A task of the stage at hand.
typedef struct stage_task {
  uint64_t cost;
  uint32_t stride;  // of attention of one token
  uint32_t task;
} stage_task;

static int compare_costs(const void *a, const void *b) {
  const stage_task *x = a;
  const stage_task *y = b;
  if (x->cost != y->cost) {
    return (x->cost < y->cost) - (x->cost > y->cost);
  }
  return x->stride != y->stride ? (x->stride > y->stride) - (x->stride < y->stride)
                                : (x->task > y->task) - (x->task < y->task);
}

static bool is_attention_of_one(const mgl_tgraph *tg, uint32_t op) {
  return tg->options->target == MGL_TARGET_CUDA && tg->options->tokens == 1 &&
         mgl_tile_is_attention(&tg->program->ops[op]);
}

// Whether a worker with this task of attention is late behind it.
static bool attends_first(const mgl_tgraph *tg, const mgl_tg_task *task) {
  return task->begin % tg->strides < tg->strides / 2;
}

// Whether it matters who is late at the stage of `op`, and who is late behind it.
static bool is_for_some(const mgl_tgraph *tg, const placer *p, uint32_t op) {
  const uint32_t count = tg->op_first[op + 1] - tg->op_first[op];
  return is_attention_of_one(tg, op) ||
         (tg->options->target == MGL_TARGET_CUDA && tg->options->tokens == 1 && count > 1 &&
          count * 4 < p->workers * 3);
}

// Who is late behind the stage of `op`. A stage for all leaves it as it was.
static void find_late(const mgl_tgraph *tg, placer *p, uint32_t op) {
  const uint32_t first = tg->op_first[op];
  const uint32_t end = tg->op_first[op + 1];
  const bool attends = is_attention_of_one(tg, op);
  if (!is_for_some(tg, p, op)) {
    return;
  }
  for (uint32_t i = 0; i < p->workers; i++) {
    p->late[i] = false;
  }
  for (uint32_t task = first; task < end; task++) {
    bool *late = &p->late[tg->worker[task]];
    *late = *late || !attends || attends_first(tg, &tg->tasks[task]);
  }
}

static void place_stage(mgl_tgraph *tg, placer *p, uint32_t op, stage_task *stage) {
  uint32_t first = tg->op_first[op];
  uint32_t count = tg->op_first[op + 1] - first;
  const bool attends = is_attention_of_one(tg, op);
  const bool matters = is_for_some(tg, p, op);
  for (uint32_t i = 0; i < count; i++) {
    const mgl_tg_task *task = &tg->tasks[first + i];
    stage[i] = (stage_task){task->cost, attends ? task->begin % tg->strides : 0, first + i};
  }
  qsort(stage, count, sizeof *stage, compare_costs);
  for (uint32_t i = 0; i < p->workers; i++) {
    p->loads[i].late = matters && p->late[p->loads[i].worker];
  }
  p->count = p->workers;
  make_heap(p->loads, p->count);
  for (uint32_t i = 0; i < count; i++) {
    tg->worker[stage[i].task] = take_least(p, stage[i].cost);
  }
  find_late(tg, p, op);
}

mgl_status mgl_pass_place(mgl_tgraph *tg, mgl_error *err) {
  uint32_t workers = tg->options->workers;
  size_t op_count = tg->program->op_count;
  placer p = {.workers = workers};
  p.loads = mgl_arena_alloc_zeroed(&tg->arena, workers, sizeof *p.loads);
  p.late = mgl_arena_alloc_zeroed(&tg->arena, workers, sizeof *p.late);
  tg->worker = mgl_arena_alloc(&tg->arena, tg->task_count * sizeof *tg->worker);
  stage_task *stage = mgl_arena_alloc(&tg->arena, tg->task_count * sizeof *stage);
  unsigned char *placed = mgl_arena_alloc_zeroed(&tg->arena, op_count, 1);
  if (p.loads == NULL || p.late == NULL || tg->worker == NULL || stage == NULL || placed == NULL) {
    return mgl_out_of_memory(err);
  }
  for (uint32_t i = 0; i < workers; i++) {
    p.loads[i].worker = (uint16_t)i;
  }
  for (uint32_t i = 0; i < tg->task_count + tg->empty_count; i++) {
    uint32_t op = tg->tasks[tg->order[i]].op;
    if (op == MGL_NO_OP) {
      continue;
    }
    if (tg->op_jit[op] != 0) {
      tg->worker[tg->order[i]] = MGL_NO_WORKER;
    } else if (placed[op] == 0) {
      placed[op] = 1;
      place_stage(tg, &p, op, stage);
    }
  }
  for (uint32_t i = 0; i < workers; i++) {
    tg->report.worker_bytes_total += p.loads[i].bytes;
    if (p.loads[i].bytes > tg->report.worker_bytes_max) {
      tg->report.worker_bytes_max = p.loads[i].bytes;
    }
  }
  return MGL_OK;
}
