// Pass 3, depend: which tasks each task must come after.
//
// Requires: partition. Ensures: producers[c] holds p exactly if p's op stands before c's, and a
// region that one of them writes overlaps one of the same tensor that the other reads or writes.
// So it holds read after write, write after read (an in-place op comes after all other readers of
// the storage that it takes over; KV) and write after write (KV). A seed-002 event stands for every
// such pair; report.dependent_pairs counts them.
//
// Method: every tensor has the list of ops that touched it, each with its tasks' rectangles in task
// order. A task asks every such op for the tasks that overlap its own rectangle. Where the
// rectangles of an op ascend, two binary searches bound the candidates; and a tile that reads the
// same rectangle as its neighbour (all of x) takes over its answer. Rejected: comparing all pairs
// of tasks, 15 million for an 8B model.
//
// options->coarse, an ablation, widens the answer: all tasks of an op wait for all tasks of every
// op that one of them depends on.
#include <assert.h>

#include "compile/tgraph.h"

typedef struct entry {
  mgl_region region;
  uint32_t task;
} entry;

// A touch is what one op reads, or writes, of one tensor.
typedef struct touch {
  struct touch *next;  // an earlier op's
  const entry *entries;
  uint32_t count;
  bool rows_ascend, columns_ascend;  // both ends do, from entry to entry
} touch;

// By tensor: newest first.
typedef struct history {
  touch *reads;
  touch *writes;
} history;

// The answer to a task's previous question at one place in its list of regions.
typedef struct memo {
  mgl_region region;
  bool valid;
  mgl_task_set tasks;
} memo;

static bool overlaps(const mgl_region *a, const mgl_region *b) {
  return a->row_begin < b->row_end && b->row_begin < a->row_end &&
         a->column_begin < b->column_end && b->column_begin < a->column_end;
}

static bool same_region(const mgl_region *a, const mgl_region *b) {
  return a->tensor == b->tensor && a->row_begin == b->row_begin && a->row_end == b->row_end &&
         a->column_begin == b->column_begin && a->column_end == b->column_end;
}

// --- questions -----------------------------------------------------------------------------------

// The first entry in [low, high) whose end (of rows or columns) lies behind `begin`.
static uint32_t first_behind(const touch *t, bool rows, uint32_t begin, uint32_t low,
                             uint32_t high) {
  while (low < high) {
    uint32_t middle = low + (high - low) / 2;
    const mgl_region *r = &t->entries[middle].region;
    if ((rows ? r->row_end : r->column_end) <= begin) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return low;
}

// The first entry in [low, high) that begins at `end` or behind it.
static uint32_t first_from(const touch *t, bool rows, uint32_t end, uint32_t low, uint32_t high) {
  while (low < high) {
    uint32_t middle = low + (high - low) / 2;
    const mgl_region *r = &t->entries[middle].region;
    if ((rows ? r->row_begin : r->column_begin) < end) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return low;
}

static bool ask(const touch *t, const mgl_region *region, mgl_span_list *out) {
  for (; t != NULL; t = t->next) {
    uint32_t low = 0;
    uint32_t high = t->count;
    if (t->rows_ascend) {
      low = first_behind(t, true, region->row_begin, low, high);
      high = first_from(t, true, region->row_end, low, high);
    }
    if (t->columns_ascend) {
      low = first_behind(t, false, region->column_begin, low, high);
      high = first_from(t, false, region->column_end, low, high);
    }
    for (uint32_t i = low; i < high; i++) {
      if (overlaps(&t->entries[i].region, region) &&
          !mgl_span_list_add(out, t->entries[i].task, t->entries[i].task + 1)) {
        return false;
      }
    }
  }
  return true;
}

// Adds the tasks of earlier ops that a task with this region must come after.
static bool collect(mgl_tgraph *tg, const history *histories, memo *m, const mgl_region *region,
                    bool is_write, mgl_span_list *out) {
  if (!m->valid || !same_region(&m->region, region)) {
    const history *h = &histories[region->tensor];
    m->valid = ask(h->writes, region, &tg->scratch) &&
               (!is_write || ask(h->reads, region, &tg->scratch)) &&
               mgl_span_list_take(&tg->scratch, &tg->arena, &m->tasks);
    m->region = *region;
    if (!m->valid) {
      return false;
    }
  }
  return mgl_span_list_add_set(out, m->tasks);
}

static bool find_producers(mgl_tgraph *tg, const history *histories, uint32_t op_idx,
                           mgl_span_list *list) {
  const mgl_op *op = &tg->program->ops[op_idx];
  memo reads[MGL_TILE_MAX_REGIONS] = {0};
  memo writes[MGL_TILE_MAX_REGIONS] = {0};
  for (uint32_t task = tg->op_first[op_idx]; task < tg->op_first[op_idx + 1]; task++) {
    mgl_tile_access access;
    mgl_tile_regions(tg->program, op, tg->options->tokens, tg->strides, tg->tasks[task].begin,
                     tg->tasks[task].end, &access);
    for (uint32_t i = 0; i < access.read_count; i++) {
      if (!collect(tg, histories, &reads[i], &access.reads[i], false, list)) {
        return false;
      }
    }
    for (uint32_t i = 0; i < access.write_count; i++) {
      if (!collect(tg, histories, &writes[i], &access.writes[i], true, list)) {
        return false;
      }
    }
    if (!mgl_span_list_take(list, &tg->arena, &tg->producers[task])) {
      return false;
    }
  }
  return true;
}

// --- answers -------------------------------------------------------------------------------------

static void note_order(touch *t) {
  t->rows_ascend = true;
  t->columns_ascend = true;
  for (uint32_t i = 1; i < t->count; i++) {
    const mgl_region *a = &t->entries[i - 1].region;
    const mgl_region *b = &t->entries[i].region;
    t->rows_ascend &= a->row_begin <= b->row_begin && a->row_end <= b->row_end;
    t->columns_ascend &= a->column_begin <= b->column_begin && a->column_end <= b->column_end;
  }
}

// Files what the tasks of an op read or write of one tensor.
static bool file_tensor(mgl_tgraph *tg, history *histories, uint32_t op_idx, uint32_t tensor,
                        bool is_write) {
  const mgl_op *op = &tg->program->ops[op_idx];
  uint32_t first = tg->op_first[op_idx];
  uint32_t last = tg->op_first[op_idx + 1];
  touch *t = mgl_arena_alloc_zeroed(&tg->arena, 1, sizeof *t);
  // No input is listed in more than three rectangles, and a result in one a rank.
  size_t most = (size_t)(last - first) * (mgl_op_kind_is_exchange(op->kind) ? MGL_MAX_RANKS : 3);
  entry *entries = mgl_arena_alloc(&tg->arena, most * sizeof *entries);
  if (t == NULL || entries == NULL) {
    return false;
  }
  for (uint32_t task = first; task < last; task++) {
    mgl_tile_access access;
    mgl_tile_regions(tg->program, op, tg->options->tokens, tg->strides, tg->tasks[task].begin,
                     tg->tasks[task].end, &access);
    uint32_t count = is_write ? access.write_count : access.read_count;
    const mgl_region *regions = is_write ? access.writes : access.reads;
    for (uint32_t i = 0; i < count; i++) {
      if (regions[i].tensor == tensor) {
        assert(t->count < most);
        entries[t->count++] = (entry){regions[i], task};
      }
    }
  }
  t->entries = entries;
  note_order(t);
  touch **list = is_write ? &histories[tensor].writes : &histories[tensor].reads;
  t->next = *list;
  *list = t;
  return true;
}

static bool file_op(mgl_tgraph *tg, history *histories, uint32_t op_idx) {
  const mgl_op *op = &tg->program->ops[op_idx];
  for (uint32_t i = 0; i < op->input_count; i++) {
    mgl_placement placement = tg->program->tensors[op->inputs[i]].placement;
    bool seen = placement != MGL_PLACE_ACTIVATION && placement != MGL_PLACE_KV;
    for (uint32_t j = 0; j < i; j++) {
      seen |= op->inputs[j] == op->inputs[i];
    }
    bool is_write = mgl_op_updates(op, i);
    if (!seen && (!file_tensor(tg, histories, op_idx, op->inputs[i], false) ||
                  (is_write && !file_tensor(tg, histories, op_idx, op->inputs[i], true)))) {
      return false;
    }
  }
  return file_tensor(tg, histories, op_idx, op->output, true);
}

// --- the pass ------------------------------------------------------------------------------------

// The ablation: whole ops instead of tasks, and the same for all tasks of an op.
static bool coarsen(mgl_tgraph *tg, uint32_t op_idx, mgl_span_list *list) {
  size_t op_count = tg->program->op_count;
  mgl_task_set all;
  for (uint32_t task = tg->op_first[op_idx]; task < tg->op_first[op_idx + 1]; task++) {
    for (uint32_t i = 0; i < tg->producers[task].span_count; i++) {
      mgl_span span = tg->producers[task].spans[i];
      uint32_t first = mgl_op_of_task(tg->op_first, op_count, span.first);
      uint32_t last = mgl_op_of_task(tg->op_first, op_count, span.last - 1);
      if (!mgl_span_list_add(list, tg->op_first[first], tg->op_first[last + 1])) {
        return false;
      }
    }
  }
  if (!mgl_span_list_take(list, &tg->arena, &all)) {
    return false;
  }
  for (uint32_t task = tg->op_first[op_idx]; task < tg->op_first[op_idx + 1]; task++) {
    tg->producers[task] = all;
  }
  return true;
}

// The longest path of dependent stages.
static bool measure_chain(mgl_tgraph *tg) {
  size_t op_count = tg->program->op_count;
  uint32_t *depth = mgl_arena_alloc_zeroed(&tg->arena, op_count, sizeof *depth);
  if (depth == NULL) {
    return false;
  }
  for (uint32_t op = 0; op < op_count; op++) {
    const mgl_task_set *previous = NULL;
    for (uint32_t task = tg->op_first[op]; task < tg->op_first[op + 1]; task++) {
      const mgl_task_set *set = &tg->producers[task];
      tg->report.dependent_pairs += mgl_task_set_size(*set);
      if (previous != NULL && mgl_task_set_equal(*previous, *set)) {
        continue;
      }
      previous = set;
      for (uint32_t i = 0; i < set->span_count; i++) {
        uint32_t before = mgl_op_of_task(tg->op_first, op_count, set->spans[i].first);
        for (; before < op && tg->op_first[before] < set->spans[i].last; before++) {
          depth[op] = depth[before] > depth[op] ? depth[before] : depth[op];
        }
      }
    }
    depth[op]++;
    tg->report.stage_count += tg->op_first[op + 1] > tg->op_first[op];
    if (depth[op] > tg->report.chain_length) {
      tg->report.chain_length = depth[op];
    }
  }
  return true;
}

mgl_status mgl_pass_depend(mgl_tgraph *tg, mgl_error *err) {
  const mgl_graph *program = tg->program;
  history *histories = mgl_arena_alloc_zeroed(&tg->arena, program->tensor_count, sizeof *histories);
  tg->producers = mgl_arena_alloc_zeroed(&tg->arena, tg->task_count, sizeof *tg->producers);
  if (histories == NULL || tg->producers == NULL) {
    return mgl_out_of_memory(err);
  }
  mgl_span_list list = {0};
  bool ok = true;
  for (uint32_t op = 0; ok && op < program->op_count; op++) {
    ok = find_producers(tg, histories, op, &list) && file_op(tg, histories, op) &&
         (!tg->options->coarse || coarsen(tg, op, &list));
  }
  mgl_span_list_free(&list);
  return ok && measure_chain(tg) ? MGL_OK : mgl_out_of_memory(err);
}
