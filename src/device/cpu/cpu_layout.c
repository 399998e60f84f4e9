#include "device/cpu/cpu_layout.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"

enum {
  RANGE_ALIGNMENT = 128
};  // two cache lines: workers' rows of different tensors never share one

// The life of one piece of storage, to the last step that uses it: an op, or a piece of the program.
typedef struct lifetime {
  size_t last_step;
  size_t bytes;
  uint32_t root;  // the tensor that owns the storage: in-place outputs point at their input's root
} lifetime;

static bool is_activation(const mgl_graph *graph, uint32_t tensor) {
  return graph->tensors[tensor].placement == MGL_PLACE_ACTIVATION;
}

static size_t step_of(const uint32_t *step, size_t op_idx) {
  return step == NULL ? op_idx : step[op_idx];
}

static void find_lifetimes(const mgl_graph *graph, const mgl_dim_values *values,
                           const uint32_t *step, lifetime *lives) {
  for (size_t op_idx = 0; op_idx < graph->op_count; op_idx++) {
    const mgl_op *op = &graph->ops[op_idx];
    for (uint32_t i = 0; i < op->input_count; i++) {
      if (is_activation(graph, op->inputs[i])) {
        lives[lives[op->inputs[i]].root].last_step = step_of(step, op_idx);
      }
    }
    if (!is_activation(graph, op->output)) {
      continue;
    }
    lifetime *life = &lives[op->output];
    if (mgl_op_info_of(op->kind)->in_place) {
      life->root = lives[op->inputs[0]].root;
    } else {
      const mgl_tensor *tensor = &graph->tensors[op->output];
      size_t bytes = (size_t)mgl_tensor_elements(tensor, values) * mgl_dtype_bytes(tensor->dtype);
      bytes = (bytes + RANGE_ALIGNMENT - 1) / RANGE_ALIGNMENT * RANGE_ALIGNMENT;
      *life = (lifetime){.last_step = step_of(step, op_idx), .bytes = bytes, .root = op->output};
    }
    const uint32_t part = mgl_op_input(op, MGL_ROLE_PART);
    if (part != MGL_NO_TENSOR) {
      lives[lives[part].root].last_step = graph->op_count;  // other ranks read it until the end
    }
    if (graph->tensors[op->output].is_output) {
      lives[life->root].last_step = graph->op_count;  // read by the caller after the last op
    }
  }
}

typedef struct block {
  mgl_byte_range range;
  size_t last_step;
} block;

// The lowest offset where `bytes` fit between the live blocks, which are sorted by range. Drops
// blocks whose last use is before first_step.
static size_t first_fit(block *live, size_t *live_count, size_t first_step, size_t bytes) {
  size_t kept = 0;
  for (size_t i = 0; i < *live_count; i++) {
    if (live[i].last_step >= first_step) {
      live[kept++] = live[i];
    }
  }
  *live_count = kept;
  size_t offset = 0;
  for (size_t i = 0; i < kept && live[i].range.begin - offset < bytes; i++) {
    offset = live[i].range.end;
  }
  return offset;
}

static void insert_sorted(block *live, size_t *live_count, block new_block) {
  size_t i = (*live_count)++;
  for (; i > 0 && live[i - 1].range.begin > new_block.range.begin; i--) {
    live[i] = live[i - 1];
  }
  live[i] = new_block;
}

mgl_status mgl_cpu_layout(const mgl_graph *graph, const mgl_dim_values *values,
                          mgl_byte_range *ranges, size_t *out_bytes, mgl_error *err) {
  return mgl_cpu_layout_pieces(graph, values, NULL, ranges, out_bytes, err);
}

mgl_status mgl_cpu_layout_pieces(const mgl_graph *graph, const mgl_dim_values *values,
                                 const uint32_t *step, mgl_byte_range *ranges, size_t *out_bytes,
                                 mgl_error *err) {
  lifetime *lives = mgl_alloc_zeroed(graph->tensor_count, sizeof *lives);
  block *live = mgl_alloc_zeroed(graph->tensor_count, sizeof *live);
  if (lives == NULL || live == NULL) {
    mgl_free(lives);
    mgl_free(live);
    return mgl_error_set(err, MGL_ERR_MEMORY, "out of memory laying out activations");
  }
  find_lifetimes(graph, values, step, lives);
  size_t live_count = 0;
  *out_bytes = 0;
  for (size_t op_idx = 0; op_idx < graph->op_count; op_idx++) {
    uint32_t output = graph->ops[op_idx].output;
    if (!is_activation(graph, output)) {
      continue;
    }
    const lifetime *life = &lives[output];
    if (life->root != output) {
      ranges[output] = ranges[life->root];
      continue;
    }
    size_t begin = first_fit(live, &live_count, step_of(step, op_idx), life->bytes);
    ranges[output] = (mgl_byte_range){begin, begin + life->bytes};
    insert_sorted(live, &live_count, (block){ranges[output], life->last_step});
    *out_bytes = ranges[output].end > *out_bytes ? ranges[output].end : *out_bytes;
  }
  mgl_free(lives);
  mgl_free(live);
  return MGL_OK;
}

// --- barriers ------------------------------------------------------------------------------------

// One access since the last barrier.
typedef struct access {
  uint32_t tensor;
  bool is_write;
} access;

static bool conflicts(const mgl_graph *graph, const mgl_byte_range *ranges, access a, access b) {
  if (!a.is_write && !b.is_write) {
    return false;
  }
  if (is_activation(graph, a.tensor) && is_activation(graph, b.tensor)) {
    return ranges[a.tensor].begin < ranges[b.tensor].end &&
           ranges[b.tensor].begin < ranges[a.tensor].end;
  }
  return a.tensor == b.tensor;  // a KV tensor
}

mgl_status mgl_cpu_find_barriers(const mgl_graph *graph, const mgl_byte_range *ranges,
                                 unsigned char *barrier, mgl_error *err) {
  access *since = mgl_alloc_zeroed(graph->op_count * (MGL_OP_MAX_INPUTS + 1), sizeof *since);
  if (since == NULL) {
    return mgl_error_set(err, MGL_ERR_MEMORY, "out of memory finding barriers");
  }
  size_t since_count = 0;
  for (size_t op_idx = 0; op_idx < graph->op_count; op_idx++) {
    const mgl_op *op = &graph->ops[op_idx];
    access own[MGL_OP_MAX_INPUTS + 1];
    size_t own_count = 0;
    for (uint32_t i = 0; i < op->input_count; i++) {
      mgl_placement placement = graph->tensors[op->inputs[i]].placement;
      if (placement == MGL_PLACE_ACTIVATION || placement == MGL_PLACE_KV) {
        own[own_count++] = (access){op->inputs[i], false};
      }
    }
    own[own_count++] = (access){op->output, true};
    barrier[op_idx] = 0;
    for (size_t i = 0; i < own_count; i++) {
      for (size_t j = 0; j < since_count; j++) {
        if (conflicts(graph, ranges, own[i], since[j])) {
          barrier[op_idx] = 1;
        }
      }
    }
    if (barrier[op_idx] != 0) {
      since_count = 0;
    }
    memcpy(since + since_count, own, own_count * sizeof *own);
    since_count += own_count;
  }
  mgl_free(since);
  return MGL_OK;
}
