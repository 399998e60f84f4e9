// A mixture is known by the table of its gate matrices, which all programs of a model share. One
// task of it notes an iteration, so that a count has one writer at a time; readers may be late.
#include "device/cpu/cpu_loads.h"

#include <string.h>

#include "base/alloc.h"
#include "base/dtype.h"

struct mgl_cpu_load {
  const void *gate;
  uint32_t experts, slots;
  uint64_t expert_bytes;  // of gate, up and down of one
  mgl_word *rows;         // [experts]
  mgl_word runs, reads;
};

static void add(mgl_word *word, uint64_t amount) {
  mgl_store_relaxed(word, mgl_load_relaxed(word) + amount);
}

// Whether data choose experts of the op: not of one that all tokens have.
static bool is_mixture(const mgl_graph *graph, const mgl_op *op) {
  return op->kind == MGL_OP_EXPERT_GATE_UP &&
         mgl_tensor_experts(mgl_graph_input(graph, op, MGL_ROLE_EXPERTS)) > 1;
}

static uint64_t bytes_of_one(const mgl_graph *graph, const mgl_op *op) {
  const mgl_op_range matrices = mgl_op_inputs(op, MGL_ROLE_EXPERTS);
  uint64_t bytes = 0;
  for (uint32_t i = 0; i < matrices.count; i++) {
    bytes += mgl_tensor_row_bytes(&graph->tensors[op->inputs[matrices.first + i]]);
  }
  return bytes;
}

static mgl_status start(const mgl_cpu_weights *weights, size_t op_idx, mgl_cpu_load *out,
                        mgl_error *err) {
  const mgl_graph *graph = weights->graph;
  const mgl_op *op = &graph->ops[op_idx];
  const uint32_t gate = mgl_op_input(op, MGL_ROLE_EXPERTS);
  *out = (mgl_cpu_load){.gate = weights->data[gate],
                        .experts = mgl_tensor_experts(&graph->tensors[gate]),
                        .slots = mgl_op_slots(graph, op),
                        .expert_bytes = bytes_of_one(graph, op)};
  for (size_t i = op_idx; i < graph->op_count; i++) {  // the down that reads its result
    if (graph->ops[i].kind == MGL_OP_EXPERT_DOWN &&
        mgl_op_input(&graph->ops[i], MGL_ROLE_X) == op->output) {
      out->expert_bytes += bytes_of_one(graph, &graph->ops[i]);
    }
  }
  out->rows = mgl_alloc_zeroed(out->experts, sizeof *out->rows);
  return out->rows != NULL ? MGL_OK
                           : mgl_error_set(err, MGL_ERR_MEMORY,
                                           "out of memory for counts of %u experts", out->experts);
}

mgl_status mgl_cpu_loads_create(const mgl_cpu_weights *weights, mgl_cpu_loads *out,
                                mgl_error *err) {
  const mgl_graph *graph = weights->graph;
  uint32_t count = 0;
  *out = (mgl_cpu_loads){0};
  for (size_t i = 0; i < graph->op_count; i++) {
    count += is_mixture(graph, &graph->ops[i]);
  }
  if (count == 0) {
    return MGL_OK;
  }
  out->loads = mgl_alloc_zeroed(count, sizeof *out->loads);
  if (out->loads == NULL) {
    return mgl_error_set(err, MGL_ERR_MEMORY, "out of memory for the loads of %u mixtures", count);
  }
  for (size_t i = 0; i < graph->op_count; i++) {
    if (is_mixture(graph, &graph->ops[i])) {
      mgl_status status = start(weights, i, &out->loads[out->count], err);
      if (status != MGL_OK) {
        mgl_cpu_loads_destroy(out);
        return status;
      }
      out->count++;
    }
  }
  return MGL_OK;
}

void mgl_cpu_loads_destroy(mgl_cpu_loads *loads) {
  for (uint32_t i = 0; i < loads->count; i++) {
    mgl_free(loads->loads[i].rows);
  }
  mgl_free(loads->loads);
  *loads = (mgl_cpu_loads){0};
}

void mgl_cpu_loads_note(const mgl_cpu_loads *loads, const void *gate, const uint32_t *first) {
  mgl_cpu_load *load = loads->loads;
  while (load < loads->loads + loads->count && load->gate != gate) {
    load++;
  }
  if (load == loads->loads + loads->count) {
    return;  // the expert that all tokens have
  }
  uint64_t reads = 0;
  for (uint32_t e = 0; e < load->experts; e++) {
    const uint32_t rows = first[e + 1] - first[e];
    if (rows != 0) {
      add(&load->rows[e], rows);
      reads++;
    }
  }
  add(&load->reads, reads);
  add(&load->runs, 1);
}

void mgl_cpu_loads_read(const mgl_cpu_loads *loads, mgl_expert_loads *out) {
  *out = (mgl_expert_loads){.mixtures = loads->count};
  for (uint32_t i = 0; i < loads->count; i++) {
    const mgl_cpu_load *load = &loads->loads[i];
    const uint64_t reads = mgl_load_relaxed(&load->reads);
    uint64_t largest = 0, all = 0;
    for (uint32_t e = 0; e < load->experts; e++) {
      const uint64_t rows = mgl_load_relaxed(&load->rows[e]);
      largest = rows > largest ? rows : largest;
      all += rows;
    }
    const double ratio = all == 0 ? 0 : (double)largest * load->experts / (double)all;
    out->experts = load->experts;
    out->rows += all;
    out->runs += mgl_load_relaxed(&load->runs);
    out->reads += reads;
    out->bytes += reads * load->expert_bytes;
    out->step_bytes += load->slots * load->expert_bytes;
    out->largest_over_mean += ratio / loads->count;
    out->most_over_mean = ratio > out->most_over_mean ? ratio : out->most_over_mean;
  }
}

// --- routers of dummy weights --------------------------------------------------------------------

static void scale_row(mgl_dtype dtype, void *row, uint32_t count, float factor) {
  for (uint32_t i = 0; i < count; i++) {
    float value = 0;
    unsigned char *at = (unsigned char *)row + i * mgl_dtype_bytes(dtype);
    mgl_widen_f32(dtype, at, 1, &value);
    value *= factor;
    if (dtype == MGL_DTYPE_F32) {
      memcpy(at, &value, sizeof value);
    } else {
      const uint16_t bits =
          dtype == MGL_DTYPE_BF16 ? mgl_f32_to_bf16(value) : mgl_f32_to_f16(value);
      memcpy(at, &bits, sizeof bits);
    }
  }
}

// Row e of a router spreads its logits by 1 / (1 + 8 e / E) of what row 0 does: the best of them
// come from the first rows. With all of them 0 the logits are alike, and the first experts are
// chosen, or, where there is a bias, those that it prefers.
void mgl_cpu_route_dummy_rows(mgl_routing routing, mgl_dtype dtype, uint32_t experts,
                              uint32_t columns, void *rows) {
  const size_t row_bytes = columns * mgl_dtype_bytes(dtype);
  for (uint32_t e = 0; routing != MGL_ROUTING_UNIFORM && e < experts; e++) {
    const float factor = routing == MGL_ROUTING_ONE ? 0 : 1 / (1 + 8 * (float)e / (float)experts);
    scale_row(dtype, (unsigned char *)rows + e * row_bytes, columns, factor);
  }
}

static void change(const mgl_cpu_weights *weights, uint32_t matrix, mgl_routing routing) {
  const mgl_tensor *w = &weights->graph->tensors[matrix];
  mgl_cpu_route_dummy_rows(routing, w->dtype, w->dims[0].number, w->dims[1].number,
                           (void *)(uintptr_t)weights->data[matrix]);
}

void mgl_cpu_route_dummies(const mgl_cpu_weights *weights, mgl_routing routing) {
  const mgl_graph *graph = weights->graph;
  for (size_t i = 0; routing != MGL_ROUTING_UNIFORM && i < graph->op_count; i++) {
    const mgl_op *route = &graph->ops[i];
    if (route->kind != MGL_OP_ROUTE ||
        mgl_graph_input(graph, route, MGL_ROLE_X)->dims[1].number == 1) {
      continue;
    }
    for (size_t j = 0; j < i; j++) {
      if (graph->ops[j].kind == MGL_OP_LINEAR &&
          graph->ops[j].output == mgl_op_input(route, MGL_ROLE_X)) {
        change(weights, mgl_op_input(&graph->ops[j], MGL_ROLE_MATRIX), routing);
      }
    }
  }
}
