// Pass 10, lay out: where activations lie in their block.
//
// Requires: prune (ancestors). Ensures: an in-place op's output has its input's offset; two
// activations share bytes only where every task that touches the one comes before every task that
// first writes the other, in this iteration. The next iteration starts when END_OF_TASK_GRAPH is
// activated, which all tasks come before. What the caller reads stays until then.
//
// Method: in program order, first fit between the pieces that are not free for this one. "Comes
// before" is the final task graph's and not program order, so pieces of parallel branches never
// share. A piece stays on the list until it is free for all later ops: until its users are among
// the tasks that every later op comes after.
//
// options->offsets takes its place: a piece (compile/split.h) has its activations where all pieces
// of the program have them. The verifier proves that of the piece alone.
#include <string.h>

#include "compile/tgraph.h"

enum { ALIGNMENT = 128 };  // two cache lines: workers' parts of different tensors never share one

typedef struct piece {
  uint64_t begin, end;
  uint32_t root;
} piece;

typedef struct layouter {
  mgl_tgraph *tg;
  const mgl_storage *storages;
  piece *pieces;  // sorted by begin
  uint32_t count;
} layouter;

static void drop_settled(layouter *l, uint32_t op) {
  uint32_t kept = 0;
  for (uint32_t i = 0; i < l->count; i++) {
    const mgl_storage *s = &l->storages[l->pieces[i].root];
    if (s->is_output || l->tg->op_first[s->last_op + 1] > l->tg->settled[op]) {
      l->pieces[kept++] = l->pieces[i];
    }
  }
  l->count = kept;
}

// The lowest offset where `bytes` fit between the pieces that are not free for `root`.
static uint64_t first_fit(const layouter *l, uint32_t root, uint64_t bytes) {
  uint64_t offset = 0;
  for (uint32_t i = 0; i < l->count; i++) {
    const piece *p = &l->pieces[i];
    if (p->end <= offset || mgl_storage_is_free(&l->storages[p->root], &l->storages[root],
                                                l->tg->op_first, l->tg->before)) {
      continue;
    }
    if (p->begin >= offset + bytes) {
      break;
    }
    offset = p->end;
  }
  return offset;
}

static void insert_sorted(layouter *l, piece p) {
  uint32_t i = l->count++;
  for (; i > 0 && l->pieces[i - 1].begin > p.begin; i--) {
    l->pieces[i] = l->pieces[i - 1];
  }
  l->pieces[i] = p;
}

static void take_given(mgl_tgraph *tg, const mgl_storage *storages) {
  for (size_t i = 0; i < tg->program->tensor_count; i++) {
    tg->offsets[i] = storages[i].root == MGL_NO_TENSOR ? 0 : tg->options->offsets[i];
  }
  tg->activation_bytes = tg->report.activation_bytes = tg->options->offset_bytes;
}

mgl_status mgl_pass_lay_out(mgl_tgraph *tg, mgl_error *err) {
  layouter l = {.tg = tg};
  const mgl_dim_values dims = mgl_compile_dims(tg->options);
  mgl_storage *storages = NULL;
  tg->offsets = mgl_arena_alloc_zeroed(&tg->arena, tg->program->tensor_count, sizeof *tg->offsets);
  l.pieces = mgl_arena_alloc(&tg->arena, tg->program->op_count * sizeof *l.pieces);
  if (tg->offsets == NULL || l.pieces == NULL ||
      !mgl_find_storages(tg->program, &dims, &tg->arena, &storages)) {
    return mgl_out_of_memory(err);
  }
  l.storages = storages;
  if (tg->options->offsets != NULL) {
    take_given(tg, storages);
    return MGL_OK;
  }
  for (uint32_t op = 0; op < tg->program->op_count; op++) {
    uint32_t output = tg->program->ops[op].output;
    uint32_t root = storages[output].root;
    if (root == MGL_NO_TENSOR) {
      continue;
    }
    if (root != output) {
      tg->offsets[output] = tg->offsets[root];
      continue;
    }
    drop_settled(&l, op);
    uint64_t bytes = (storages[root].bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    tg->offsets[root] = first_fit(&l, root, bytes);
    uint64_t end = tg->offsets[root] + bytes;
    insert_sorted(&l, (piece){tg->offsets[root], end, root});
    tg->activation_bytes = end > tg->activation_bytes ? end : tg->activation_bytes;
  }
  tg->report.activation_bytes = tg->activation_bytes;
  return MGL_OK;
}
