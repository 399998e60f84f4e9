#include "device/cpu/cpu_regions.h"

#include <stdio.h>
#include <stdlib.h>

#include "base/alloc.h"
#include "task/tile.h"
#include "twin/atomics.h"

// Results of ops of experts; of other tensors words is NULL.
typedef struct written {
  mgl_word *words;  // [rows][grains] iteration of the latest write
  uint32_t columns, grains;
} written;

struct mgl_cpu_regions {
  size_t tensor_count;
  written tensors[];
};

static bool is_of_experts(const mgl_op *op) {
  return mgl_op_info_of(op->kind)->unit == MGL_UNIT_EXPERT;
}

mgl_status mgl_cpu_regions_create(const mgl_graph *graph, uint32_t tokens, mgl_cpu_regions **out,
                                  mgl_error *err) {
  const mgl_dim_values dims = {tokens, tokens, tokens};
  bool any = false;
  *out = NULL;
  for (size_t i = 0; i < graph->op_count; i++) {
    any |= is_of_experts(&graph->ops[i]);
  }
  if (!any) {
    return MGL_OK;
  }
  mgl_cpu_regions *r = mgl_alloc_zeroed(1, sizeof *r + graph->tensor_count * sizeof r->tensors[0]);
  bool ok = r != NULL;
  for (size_t i = 0; ok && i < graph->op_count; i++) {
    const mgl_tensor *tensor = &graph->tensors[graph->ops[i].output];
    written *w = &r->tensors[graph->ops[i].output];
    r->tensor_count = graph->tensor_count;
    if (is_of_experts(&graph->ops[i])) {
      w->columns = (uint32_t)mgl_tensor_row_elements(tensor);
      w->grains = (w->columns + MGL_SHARE_GRAIN - 1) / MGL_SHARE_GRAIN;
      w->words = mgl_alloc_zeroed((size_t)mgl_dim_value(tensor->dims[0], &dims) * w->grains,
                                  sizeof *w->words);
      ok = w->words != NULL;
    }
  }
  if (!ok) {
    mgl_cpu_regions_destroy(r);
    return mgl_error_set(err, MGL_ERR_MEMORY, "out of memory for a check of regions");
  }
  *out = r;
  return MGL_OK;
}

void mgl_cpu_regions_destroy(mgl_cpu_regions *r) {
  for (size_t i = 0; r != NULL && i < r->tensor_count; i++) {
    mgl_free(r->tensors[i].words);
  }
  mgl_free(r);
}

// --- checks --------------------------------------------------------------------------------------

static bool is_declared(const mgl_cpu_program *p, const mgl_op *op, uint32_t begin, uint32_t end,
                        uint32_t row, mgl_expert_share columns) {
  mgl_tile_access access;
  mgl_tile_regions(p->graph, op, mgl_cpu_plan(p)->token_count, p->strides, begin, end, &access);
  for (uint32_t i = 0; i < access.write_count; i++) {
    const mgl_region *r = &access.writes[i];
    if (r->tensor == op->output && r->row_begin <= row && row < r->row_end &&
        r->column_begin <= columns.begin && columns.end <= r->column_end) {
      return true;
    }
  }
  return false;
}

// What it was last written in.
static uint64_t claim(mgl_word *word, uint64_t iteration) {
  for (;;) {
    const uint64_t was = mgl_load_relaxed(word);
    if (mgl_cas_acq_rel(word, was, iteration)) {
      return was;
    }
  }
}

mgl_status mgl_cpu_regions_check_write(const mgl_cpu_program *p, const mgl_op *op, uint32_t begin,
                                       uint32_t end, uint32_t row, mgl_expert_share columns,
                                       mgl_error *err) {
  const char *name = p->graph->tensors[op->output].name;
  const written *w = &p->regions->tensors[op->output];
  if (!is_declared(p, op, begin, end, row, columns)) {
    return mgl_error_set(err, MGL_ERR_INTERNAL,
                         "%s: expected writes inside of what the tile of units %u to %u declares, "
                         "found one of row %u, columns %u to %u",
                         name, begin, end, row, columns.begin, columns.end);
  }
  if (columns.begin % MGL_SHARE_GRAIN != 0 ||
      (columns.end % MGL_SHARE_GRAIN != 0 && columns.end != w->columns)) {
    return mgl_error_set(err, MGL_ERR_INTERNAL,
                         "%s: expected shares that are cut at multiples of %d, found columns %u to "
                         "%u of %u",
                         name, MGL_SHARE_GRAIN, columns.begin, columns.end, w->columns);
  }
  for (uint32_t at = columns.begin; at < columns.end; at += MGL_SHARE_GRAIN) {
    mgl_word *word = &w->words[(size_t)row * w->grains + at / MGL_SHARE_GRAIN];
    if (claim(word, p->iteration) == p->iteration) {
      return mgl_error_set(err, MGL_ERR_INTERNAL,
                           "%s: expected one task to write row %u, columns %u on, found a second "
                           "one, of units %u to %u",
                           name, row, at, begin, end);
    }
  }
  return MGL_OK;
}

mgl_status mgl_cpu_regions_check_read(const mgl_cpu_program *p, uint32_t tensor, mgl_error *err) {
  const written *w = &p->regions->tensors[tensor];
  const size_t rows =
      w->words == NULL ? 0 : (size_t)mgl_cpu_program_elements(p, tensor) / w->columns;
  for (size_t i = 0; i < rows * w->grains; i++) {
    if (mgl_load_relaxed(&w->words[i]) != p->iteration) {
      return mgl_error_set(err, MGL_ERR_INTERNAL,
                           "%s: expected all of it to be written before it is read, found row %zu, "
                           "columns %zu on left out",
                           p->graph->tensors[tensor].name, i / w->grains,
                           i % w->grains * MGL_SHARE_GRAIN);
    }
  }
  return MGL_OK;
}

// --- for workers ---------------------------------------------------------------------------------

static void must(mgl_status status, const mgl_error *err) {
  if (status != MGL_OK) {
    (void)fprintf(stderr, "megalith: check of regions: %s\n", err->text);
    abort();
  }
}

void mgl_cpu_regions_write(const mgl_cpu_program *p, const mgl_op *op, uint32_t begin, uint32_t end,
                           uint32_t row, mgl_expert_share columns) {
  mgl_error err = {0};
  if (p->regions != NULL) {
    must(mgl_cpu_regions_check_write(p, op, begin, end, row, columns, &err), &err);
  }
}

void mgl_cpu_regions_read(const mgl_cpu_program *p, uint32_t tensor) {
  mgl_error err = {0};
  if (p->regions != NULL) {
    must(mgl_cpu_regions_check_read(p, tensor, &err), &err);
  }
}
