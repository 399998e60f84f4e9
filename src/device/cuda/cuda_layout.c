#include "device/cuda/cuda_layout.h"

#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/text.h"
#include "lower/words.h"
#include "model/config.h"
#include "task/protocol_check.h"
#include "task/tile.h"
#include "twin/custom_call.h"
#include "twin/variant.h"

enum { ITERATIONS = 1 << 16 };  // that are timed: 512 KiB

static const char *const memory_names[MGL_CUDA_MEMORY_COUNT] = {
    [MGL_CUDA_MEMORY_WEIGHTS] = "weights",
    [MGL_CUDA_MEMORY_TABLE] = "embedding table",
    [MGL_CUDA_MEMORY_VECTORS] = "norms and biases",
    [MGL_CUDA_MEMORY_KV] = "KV cache",
    [MGL_CUDA_MEMORY_ACTIVATIONS] = "activations",
    [MGL_CUDA_MEMORY_CARRIED] = "carried activations",
    [MGL_CUDA_MEMORY_DESCRIPTORS] = "task graphs",
    [MGL_CUDA_MEMORY_STATE] = "state",
    [MGL_CUDA_MEMORY_PLANNER] = "planner",
    [MGL_CUDA_MEMORY_TOKENS] = "tokens",
    [MGL_CUDA_MEMORY_PARTIALS] = "parts of attention",
    [MGL_CUDA_MEMORY_INBOX] = "parts of other ranks",
    [MGL_CUDA_MEMORY_WIDE] = "large iterations",
    [MGL_CUDA_MEMORY_TRACE] = "trace",
    [MGL_CUDA_MEMORY_STAGING] = "staging",
};

const char *mgl_cuda_memory_name(mgl_cuda_memory_kind kind) {
  return memory_names[kind];
}

// Takes `bytes` of a kind of memory and returns where they lie.
static uint64_t take(mgl_cuda_layout *layout, mgl_cuda_memory_kind kind, uint64_t bytes) {
  return mgl_cuda_take(&layout->bytes[kind], bytes);
}

// --- what the megakernel knows -------------------------------------------------------------------

// What the layers with experts have in common.
static mgl_status find_experts(const mgl_graph *program, mgl_cuda_experts *out, mgl_error *err) {
  *out = (mgl_cuda_experts){0};
  for (size_t i = 0; i < program->op_count; i++) {
    const mgl_op *op = &program->ops[i];
    if (op->kind != MGL_OP_EXPERTS_UP) {
      continue;
    }
    const mgl_tensor *w = mgl_graph_input(program, op, MGL_ROLE_EXPERTS);
    const mgl_cuda_experts now = {
        .count = w->dims[0].number,
        .slots = mgl_op_slots(program, op),
        .features = w->dims[1].number,
        .width = w->dims[2].number,
        .softmax_of_all = op->attrs[MGL_ATTR_SCORES] == MGL_SCORES_SOFTMAX,
        .renormalise = op->attrs[MGL_ATTR_RENORMALISE] != 0,
        .biases = mgl_op_input(op, MGL_ROLE_EXPERT_BIAS) != MGL_NO_TENSOR,
        .scale = (float)op->attrs[MGL_ATTR_SCALE],
        .limit = (float)op->attrs[MGL_ATTR_LIMIT]};
    bool same = now.count == out->count && now.slots == out->slots &&
                now.features == out->features && now.width == out->width &&
                now.softmax_of_all == out->softmax_of_all && now.renormalise == out->renormalise &&
                now.scale == out->scale && now.biases == out->biases && now.limit == out->limit;
    if (out->count != 0 && !same) {
      return mgl_error_set(err, MGL_ERR_UNSUPPORTED,
                           "\"%s\" has other experts than the layers before it: on the GPU all "
                           "must be alike; run it on the CPU",
                           program->tensors[op->output].name);
    }
    *out = now;
  }
  return MGL_OK;
}

// Notes the k of an op's matrices in mgl_cuda_extras.k.
static void note_k(const mgl_op *op, const mgl_packed_matrices *m, uint32_t k[MGL_KNOWN_COUNT]) {
  const bool normed = mgl_op_input(op, MGL_ROLE_NORM) != MGL_NO_TENSOR;
  const bool coded = m->packing != MGL_PACKING_BF16;
  const bool whole = m->k % (2 * MGL_CUDA_PAGE_K) == 0 || (!coded && mgl_is_cut(m->k));
  if (m->count == 0 || m->experts != 0) {
    return;
  }
  if (coded && normed) {
    uint32_t *all = &k[MGL_KNOWN_CODED_NORMED];
    *all = whole && (*all == 0 || *all == m->k) ? m->k : 1;
  } else if (whole && normed) {
    uint32_t *first = &k[MGL_KNOWN_NORMED];
    *first = *first == 0 ? m->k : *first;
  } else if (whole && mgl_op_input(op, MGL_ROLE_RESIDUAL) != MGL_NO_TENSOR) {
    uint32_t *first = &k[coded ? MGL_KNOWN_CODED_ADDED_1 : MGL_KNOWN_ADDED_1];
    uint32_t *second = &k[coded ? MGL_KNOWN_CODED_ADDED_2 : MGL_KNOWN_ADDED_2];
    uint32_t *added = *first == 0 || *first == m->k ? first : second;
    *added = *added == 0 ? m->k : *added;
  }
}

static mgl_cuda_extras find_extras(const mgl_graph *program) {
  mgl_cuda_extras out = {0};
  for (size_t i = 0; i < program->op_count; i++) {
    const mgl_op *op = &program->ops[i];
    out.windows |= op->kind == MGL_OP_ATTEND && op->attrs[MGL_ATTR_WINDOW] != 0;
    out.sum_biases |= mgl_op_input(op, MGL_ROLE_RESIDUAL) != MGL_NO_TENSOR &&
                      mgl_op_input(op, MGL_ROLE_BIAS) != MGL_NO_TENSOR;
    out.sinks |= mgl_op_input(op, MGL_ROLE_SINKS) != MGL_NO_TENSOR;
    const mgl_packed_matrices m = mgl_packed_matrices_of(program, op);
    out.cut_rows |=
        m.count > 0 && m.experts == 0 && m.packing == MGL_PACKING_BF16 && mgl_is_cut(m.k);
    note_k(op, &m, out.k);
  }
  return out;
}

bool mgl_cuda_makes_logits(const mgl_op *op) {
  return op->kind == MGL_OP_LOGITS || op->kind == MGL_OP_ALL_GATHER;
}

uint32_t mgl_cuda_customs_before(const mgl_graph *program, size_t end) {
  uint32_t count = 0;
  for (size_t i = 0; i < end; i++) {
    count += program->ops[i].custom != NULL ? 1 : 0;
  }
  return count;
}

mgl_status mgl_cuda_model_of(const mgl_graph *program, mgl_cuda_model *out, mgl_error *err) {
  *out = (mgl_cuda_model){0};
  for (size_t i = 0; i < program->op_count; i++) {
    const mgl_op *op = &program->ops[i];
    const mgl_tensor *result = &program->tensors[op->output];
    if (mgl_cuda_makes_logits(op)) {  // the last of them those of all ranks
      out->vocab = result->dims[1].number;
    }
    if (op->kind != MGL_OP_ATTEND) {
      continue;
    }
    const mgl_tensor *kv = mgl_graph_input(program, op, MGL_ROLE_KV);
    mgl_cuda_model now = {.head_dim = kv->dims[1].number,
                          .kv_heads = kv->dims[0].number,
                          .group = result->dims[1].number / kv->dims[0].number,
                          .vocab = out->vocab};
    if (out->head_dim != 0 && (now.head_dim != out->head_dim || now.group != out->group ||
                               now.kv_heads != out->kv_heads)) {
      return mgl_error_set(err, MGL_ERR_UNSUPPORTED,
                           "\"%s\" has other heads than the layers before it: on the GPU all must "
                           "be alike; run it on the CPU",
                           result->name);
    }
    now.experts = out->experts;
    *out = now;
  }
  MGL_TRY(find_experts(program, &out->experts, err));
  out->extras = find_extras(program);
  if (out->head_dim == 0 || out->vocab == 0) {
    return mgl_error_set(err, MGL_ERR_UNSUPPORTED,
                         "the program has no attention or no logits; run it on the CPU");
  }
  return MGL_OK;
}

// --- weights and KV ------------------------------------------------------------------------------

static uint64_t elements_of(const mgl_tensor *tensor) {
  static const mgl_dim_values none = {0};
  return mgl_tensor_elements(tensor, &none);
}

static uint64_t take_biases(mgl_cuda_layout *layout, const mgl_graph *program, const mgl_op *op) {
  mgl_op_range biases = mgl_op_inputs(op, MGL_ROLE_BIAS);
  uint64_t features = 0;
  for (uint32_t i = 0; i < biases.count; i++) {
    features += elements_of(&program->tensors[op->inputs[biases.first + i]]);
  }
  return features == 0 ? MGL_CUDA_NOWHERE
                       : take(layout, MGL_CUDA_MEMORY_VECTORS, features * sizeof(float));
}

static void lay_out_ops(const mgl_graph *program, uint32_t workers, mgl_cuda_layout *layout) {
  uint64_t stages = 0;
  uint64_t stage_bytes = 0;
  for (size_t i = 0; i < program->op_count; i++) {
    const mgl_op *op = &program->ops[i];
    mgl_packed_matrices m = mgl_packed_matrices_of(program, op);
    layout->matrices[i] = MGL_CUDA_NOWHERE;
    layout->extras[i] = MGL_CUDA_NOWHERE;
    if (m.count > 0) {
      uint64_t bytes = m.row_blocks * mgl_packed_row_block_bytes(&m);
      layout->matrices[i] = take(layout, MGL_CUDA_MEMORY_WEIGHTS, bytes);
      uint64_t tile = mgl_tile_units(program, op, 1, 1);
      bytes = m.experts == 0 ? bytes : mgl_tile_weight_bytes(program, op, 1, 1, 0, (uint32_t)tile);
      layout->step_bytes += bytes;
      stages += op->kind != MGL_OP_LOGITS;
      stage_bytes += op->kind != MGL_OP_LOGITS ? bytes : 0;
    }
    const mgl_tensor *table = mgl_graph_input(program, op, MGL_ROLE_TABLE);
    if (table != NULL) {
      layout->matrices[i] = take(layout, MGL_CUDA_MEMORY_TABLE, elements_of(table) * 2);
    }
    if (m.count > 0) {
      layout->extras[i] = take_biases(layout, program, op);
    } else if (op->kind == MGL_OP_ROPE_ANGLES) {
      uint64_t half = program->tensors[op->output].dims[1].number;
      layout->extras[i] = take(layout, MGL_CUDA_MEMORY_VECTORS, half * sizeof(float));
    }
  }
  layout->stage_pages =
      stages == 0 ? 0 : (uint32_t)(stage_bytes / (stages * workers * MGL_CUDA_PAGE_BYTES));
}

static void lay_out_tensors(const mgl_graph *program, const mgl_cuda_model *model,
                            const mgl_cuda_sizes *sizes, mgl_cuda_layout *layout) {
  uint64_t page_bytes = (uint64_t)model->kv_heads * model->head_dim * MGL_CUDA_KV_PAGE_TOKENS * 2;
  layout->kv_half_bytes = (sizes->page_count + UINT64_C(1)) * page_bytes;
  for (size_t i = 0; i < program->tensor_count; i++) {
    const mgl_tensor *tensor = &program->tensors[i];
    layout->vectors[i] = MGL_CUDA_NOWHERE;
    layout->kv[i] = MGL_CUDA_NOWHERE;
    if (tensor->placement == MGL_PLACE_WEIGHT && tensor->rank == 1) {
      layout->vectors[i] =
          take(layout, MGL_CUDA_MEMORY_VECTORS, elements_of(tensor) * sizeof(float));
    } else if (tensor->placement == MGL_PLACE_KV) {
      layout->kv[i] = take(layout, MGL_CUDA_MEMORY_KV, 2 * layout->kv_half_bytes);
    }
  }
}

// --- activations ---------------------------------------------------------------------------------

static mgl_status lay_out_activations(const mgl_graph *program, const mgl_cuda_sizes *sizes,
                                      uint32_t graph, mgl_cuda_layout *layout, mgl_error *err) {
  const mgl_task_graph *g = sizes->graphs[graph];
  const mgl_dim_values largest = {g->tokens, g->tokens, g->tokens};
  uint64_t *offsets = mgl_alloc_zeroed(program->tensor_count, sizeof *offsets);
  bool carrying = !sizes->events_only && mgl_words_carry(program, g);
  bool own_storage = sizes->keep_activations || carrying;
  mgl_cuda_memory_kind kind = carrying ? MGL_CUDA_MEMORY_CARRIED : MGL_CUDA_MEMORY_ACTIVATIONS;
  uint64_t start = carrying ? layout->bytes[kind] : 0;
  uint64_t bytes = g->activation_bytes;
  layout->activations[graph] = offsets;
  MGL_TRY(mgl_alloc_check(offsets, err, "%zu tensors", program->tensor_count));
  if (own_storage) {
    bytes = start;
  } else if (program->tensor_count > 0) {
    memcpy(offsets, g->activation_offsets, program->tensor_count * sizeof *offsets);
  }
  for (size_t i = 0; i < program->tensor_count; i++) {
    const mgl_tensor *tensor = &program->tensors[i];
    if (tensor->placement != MGL_PLACE_ACTIVATION) {
      continue;
    }
    if (own_storage) {
      uint64_t own = mgl_tensor_elements(tensor, &largest) * mgl_dtype_bytes(tensor->dtype);
      offsets[i] = mgl_cuda_take(&bytes, own);
    }
    if (offsets[i] % 16 != 0) {  // the kernels read 16 bytes at once
      return mgl_error_set(err, MGL_ERR_INTERNAL,
                           "activation \"%s\" lies at %llu, expected a "
                           "multiple of 16",
                           tensor->name, (unsigned long long)offsets[i]);
    }
  }
  if (carrying) {
    layout->copy_bytes[graph] = bytes - start;
    bytes += bytes - start;
  }
  layout->bytes[kind] = bytes > layout->bytes[kind] ? bytes : layout->bytes[kind];
  return MGL_OK;
}

// --- task graphs and state -----------------------------------------------------------------------

mgl_graph_view mgl_cuda_graph_view(const mgl_task_graph *graph) {
  mgl_graph_view view = {.tasks = graph->tasks,
                         .events = graph->events,
                         .aot_start = graph->aot_start,
                         .aot_tasks = graph->aot_tasks,
                         .task_count = graph->task_count,
                         .event_count = graph->event_count,
                         .jit_count = mgl_protocol_jit_tasks(graph, NULL)};
  return view;
}

static void lay_out_graph(const mgl_graph *program, const mgl_task_graph *graph,
                          mgl_cuda_layout *layout, mgl_cuda_graph_layout *out) {
  const mgl_cuda_memory_kind kind = MGL_CUDA_MEMORY_DESCRIPTORS;
  uint64_t list = graph->aot_start[graph->worker_count];
  uint64_t starts = graph->worker_count + UINT64_C(1);
  uint64_t jit = mgl_protocol_jit_tasks(graph, NULL);
  out->tasks = take(layout, kind, graph->task_count * sizeof(mgl_task));
  out->events = take(layout, kind, graph->event_count * sizeof(mgl_event));
  out->aot_start = take(layout, kind, starts * sizeof(uint32_t));
  out->aot_tasks = take(layout, kind, list * sizeof(uint32_t));
  out->jit_tasks = take(layout, kind, jit * sizeof(uint32_t));
  out->jit_below = take(layout, kind, jit > 0 ? list * sizeof(uint32_t) : 0);
  out->steps = take(layout, kind, (list + jit) * sizeof(mgl_cuda_step));
  out->step_start = take(layout, kind, starts * sizeof(uint32_t));
  out->ops = take(layout, kind, program->op_count * sizeof(mgl_cuda_op));
  out->customs =
      take(layout, kind,
           mgl_cuda_customs_before(program, program->op_count) * sizeof(mgl_custom_launch));
}

static void lay_out_state(const mgl_cuda_model *model, const mgl_cuda_sizes *sizes,
                          mgl_cuda_layout *layout) {
  const mgl_cuda_memory_kind kind = MGL_CUDA_MEMORY_STATE;
  mgl_cuda_state_layout *state = &layout->state;
  mgl_graph_view views[MGL_MAX_GRAPHS];
  uint64_t counters = 0;
  for (uint32_t i = 0; i < sizes->graph_count; i++) {
    views[i] = mgl_cuda_graph_view(sizes->graphs[i]);
    state->counter_start[i] = counters;
    counters += views[i].event_count;
  }
  uint64_t slots = MGL_SCHEDULER_SLOTS * (uint64_t)sizes->schedulers;
  uint64_t items = (uint64_t)sizes->iteration_tokens * MGL_CUDA_MAX_CHUNKS;
  state->run = take(layout, kind, sizeof(mgl_cuda_run));
  state->rank_words = take(layout, kind, sizes->ranks > 1 ? sizeof(mgl_rank_words) : 0);
  state->workers = take(layout, kind, sizes->workers * sizeof(mgl_worker_shared));
  state->scheduler_queues = take(layout, kind, sizes->schedulers * sizeof(mgl_queue));
  state->slots = take(layout, kind, slots * sizeof(mgl_queue_slot));
  state->counters = take(layout, kind, counters * sizeof(mgl_word));
  state->block_tables =
      take(layout, kind, (uint64_t)sizes->sequences * sizes->pages_per_sequence * sizeof(int32_t));
  state->merges = take(layout, kind, items * model->kv_heads * sizeof(uint32_t));
  state->plans = take(layout, kind, 2 * sizeof(mgl_cuda_plan));
  state->image_bytes = state->plans + sizeof(mgl_cuda_plan) + offsetof(mgl_cuda_plan, items);
  uint64_t keys = (uint64_t)sizes->slots * sizes->pages_per_sequence;
  layout->iteration_capacity = ITERATIONS;
  state->iteration_ns = take(layout, kind, ITERATIONS * sizeof(uint64_t));
  state->sequences = take(layout, kind, sizes->slots * sizeof(mgl_cuda_sequence));
  state->keys = take(layout, kind, keys * sizeof(mgl_page_key));
  state->next_rows = take(layout, kind, sizes->slots * sizeof(uint32_t));
  state->pending = take(layout, kind, sizes->slots * sizeof(mgl_feed_command));
  state->places = take(layout, kind, sizes->slots * sizeof(mgl_cuda_entry_place));
  take(layout, MGL_CUDA_MEMORY_PLANNER, sizes->planner_bytes);
  state->traces = take(layout, kind, sizes->workers * sizeof(mgl_cuda_trace));
  take(layout, MGL_CUDA_MEMORY_PARTIALS,
       items * model->kv_heads * MGL_CUDA_QUERY_COLUMNS * (model->head_dim + UINT64_C(2)) *
           sizeof(uint64_t));
  if (sizes->trace_spans > 0) {
    take(layout, MGL_CUDA_MEMORY_TRACE,
         (uint64_t)sizes->workers * MGL_CUDA_TRACE_ROLES * sizes->trace_spans *
             sizeof(mgl_cuda_span));
    state->trace_marks =
        take(layout, MGL_CUDA_MEMORY_TRACE,
             (uint64_t)sizes->workers * MGL_CUDA_TRACE_MARKS * sizeof(mgl_cuda_mark));
  }
}

uint64_t mgl_cuda_exchange_of(const mgl_graph *program, uint32_t op) {
  uint64_t number = 0;
  for (uint32_t i = 0; i <= op; i++) {
    number += program->ops[i].attrs[MGL_ATTR_OVER] > 0 ? 1 : 0;
  }
  return program->ops[op].attrs[MGL_ATTR_OVER] > 0 ? number : 0;
}

static void lay_out_inbox(const mgl_graph *program, const mgl_cuda_sizes *sizes,
                          mgl_cuda_layout *layout) {
  uint64_t stride = 0;
  for (size_t i = 0; i < program->op_count; i++) {
    const mgl_op *op = &program->ops[i];
    if (op->attrs[MGL_ATTR_OVER] > 0) {
      uint64_t columns = mgl_tensor_row_elements(&program->tensors[op->output]);
      uint64_t words = columns * sizes->graphs[sizes->graph_count - 1]->tokens;
      stride = words > stride ? words : stride;
      layout->exchanges++;
    }
  }
  layout->inbox_stride = (uint32_t)stride;
  take(layout, MGL_CUDA_MEMORY_INBOX, 2 * sizes->ranks * stride * sizeof(uint64_t));
}

static void lay_out_tokens(const mgl_cuda_sizes *sizes, mgl_cuda_layout *layout) {
  layout->tokens_per_sequence = sizes->pages_per_sequence * MGL_CUDA_KV_PAGE_TOKENS;
  uint64_t tokens = (uint64_t)layout->tokens_per_sequence * sizes->slots;
  take(layout, MGL_CUDA_MEMORY_TOKENS, tokens * sizeof(int32_t));
}

mgl_status mgl_cuda_layout_make(const mgl_graph *program, const mgl_cuda_model *model,
                                const mgl_cuda_sizes *sizes, mgl_cuda_layout *out, mgl_error *err) {
  *out = (mgl_cuda_layout){0};
  out->matrices = mgl_alloc_zeroed(program->op_count, sizeof *out->matrices);
  out->extras = mgl_alloc_zeroed(program->op_count, sizeof *out->extras);
  out->vectors = mgl_alloc_zeroed(program->tensor_count, sizeof *out->vectors);
  out->kv = mgl_alloc_zeroed(program->tensor_count, sizeof *out->kv);
  mgl_status status = MGL_OK;
  if (out->matrices == NULL || out->extras == NULL || out->vectors == NULL || out->kv == NULL) {
    status =
        mgl_error_set(err, MGL_ERR_MEMORY, "out of memory for %zu tensors", program->tensor_count);
    goto fail;
  }
  lay_out_ops(program, sizes->workers, out);
  lay_out_tensors(program, model, sizes, out);
  for (uint32_t i = 0; i < sizes->graph_count; i++) {
    status = lay_out_activations(program, sizes, i, out, err);
    if (status != MGL_OK) {
      goto fail;
    }
    lay_out_graph(program, sizes->graphs[i], out, &out->graphs[i]);
  }
  lay_out_inbox(program, sizes, out);
  lay_out_tokens(sizes, out);
  lay_out_state(model, sizes, out);
  if (sizes->staging || mgl_packed_kinds(program) >> 1 != 0) {
    uint64_t staging = MGL_CUDA_STAGING_BYTES;
    for (size_t i = 0; i < program->op_count; i++) {
      mgl_packed_matrices m = mgl_packed_matrices_of(program, &program->ops[i]);
      // No rows of codes are longer than those of bf16.
      uint64_t block = m.count == 0 ? 0 : (uint64_t)m.k * 2 * MGL_CUDA_BLOCK_ROWS;
      staging = block > staging ? block : staging;
    }
    take(out, MGL_CUDA_MEMORY_STAGING, staging);
  }
  return MGL_OK;
fail:
  mgl_cuda_layout_free(out);
  return status;
}

void mgl_cuda_layout_free(mgl_cuda_layout *layout) {
  mgl_free(layout->matrices);
  mgl_free(layout->extras);
  mgl_free(layout->vectors);
  mgl_free(layout->kv);
  for (uint32_t i = 0; i < MGL_MAX_GRAPHS; i++) {
    mgl_free(layout->activations[i]);
  }
  *layout = (mgl_cuda_layout){0};
}

static double gib(uint64_t bytes) {
  return (double)bytes / (double)(UINT64_C(1) << 30);
}

mgl_status mgl_cuda_layout_check(const mgl_cuda_layout *layout, uint64_t free_bytes,
                                 mgl_error *err) {
  uint64_t total = 0;
  char parts[512] = "";
  size_t used = 0;
  for (uint32_t i = 0; i < MGL_CUDA_MEMORY_COUNT; i++) {
    total += layout->bytes[i];
    if (layout->bytes[i] > 0 && used < sizeof parts) {
      used += (size_t)snprintf(parts + used, sizeof parts - used, "%s%s %.2f",
                               used == 0 ? "" : ", ", memory_names[i], gib(layout->bytes[i]));
    }
  }
  if (total <= free_bytes) {
    return MGL_OK;
  }
  return mgl_error_set(err, MGL_ERR_MEMORY,
                       "the program needs %.2f GiB, %.2f GiB are free on the GPU (GiB: %s); fewer "
                       "sequences or shorter ones need less",
                       gib(total), gib(free_bytes), parts);
}
