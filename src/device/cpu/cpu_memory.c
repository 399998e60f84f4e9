#include "device/cpu/cpu_memory.h"

#include <assert.h>

#include "base/alloc.h"

uint64_t mgl_graph_kv_bytes_per_token(const mgl_graph *graph) {
  uint64_t bytes = 0;
  for (size_t i = 0; i < graph->tensor_count; i++) {
    const mgl_tensor *tensor = &graph->tensors[i];
    if (tensor->placement == MGL_PLACE_KV) {
      bytes += 2 * (uint64_t)tensor->dims[0].number * tensor->dims[1].number *
               mgl_dtype_bytes(tensor->dtype);
    }
  }
  return bytes;
}

static mgl_status map_kv(mgl_cpu_memory *memory, const mgl_topology *topology, mgl_error *err) {
  const mgl_graph *graph = memory->weights->graph;
  uint64_t tokens = (uint64_t)memory->options.page_count * memory->options.page_tokens;
  uint64_t bytes = mgl_graph_kv_bytes_per_token(graph) * tokens;
  if (bytes == 0) {
    return MGL_OK;
  }
  MGL_TRY(mgl_pages_map((size_t)bytes, "KV cache", &memory->kv_pages, err));
  memory->kv_bytes = (size_t)bytes;
  mgl_topology_interleave(topology, memory->kv_pages, memory->kv_bytes);
  unsigned char *at = memory->kv_pages;
  for (size_t i = 0; i < graph->tensor_count; i++) {
    const mgl_tensor *tensor = &graph->tensors[i];
    if (tensor->placement == MGL_PLACE_KV) {
      size_t half = (size_t)tokens * tensor->dims[0].number * tensor->dims[1].number *
                    mgl_dtype_bytes(tensor->dtype);
      memory->kv[i] = (mgl_kv_layer){.k = at,
                                     .v = at + half,
                                     .dtype = tensor->dtype,
                                     .page_tokens = memory->options.page_tokens,
                                     .kv_head_count = tensor->dims[0].number,
                                     .head_dim = tensor->dims[1].number,
                                     .k_scale = tensor->k_scale,
                                     .v_scale = tensor->v_scale,
                                     .page_count = memory->options.page_count};
      at += 2 * half;
    }
  }
  return MGL_OK;
}

mgl_status mgl_cpu_memory_create(const mgl_cpu_weights *weights,
                                 const mgl_cpu_memory_options *options,
                                 const mgl_topology *topology, mgl_cpu_memory **out,
                                 mgl_error *err) {
  assert(options->workers >= 1);
  *out = NULL;
  mgl_cpu_memory *memory = mgl_alloc_zeroed(1, sizeof *memory);
  if (memory == NULL) {
    return mgl_error_set(err, MGL_ERR_MEMORY, "out of memory for the memory of a program");
  }
  *memory = (mgl_cpu_memory){
      .options = *options,
      .weights = weights,
      .kv = mgl_alloc_zeroed(weights->graph->tensor_count, sizeof *memory->kv),
      .pulses = mgl_alloc_zeroed(options->workers, MGL_CPU_PULSE_WORDS * sizeof *memory->pulses),
  };
  if (memory->kv == NULL || memory->pulses == NULL) {
    mgl_cpu_memory_destroy(memory);
    return mgl_error_set(err, MGL_ERR_MEMORY, "out of memory for the memory of a program");
  }
  mgl_status status = mgl_cpu_loads_create(weights, &memory->loads, err);
  if (status == MGL_OK) {
    status = map_kv(memory, topology, err);
  }
  if (status != MGL_OK) {
    mgl_cpu_memory_destroy(memory);
    return status;
  }
  *out = memory;
  return MGL_OK;
}

void mgl_cpu_memory_destroy(mgl_cpu_memory *memory) {
  if (memory == NULL) {
    return;
  }
  mgl_pages_unmap(memory->kv_pages, memory->kv_bytes);
  if (memory->options.rank_count == 0) {
    mgl_pages_unmap(memory->activations, memory->activation_bytes);
  }
  mgl_pages_unmap(memory->scratch, memory->scratch_bytes * memory->options.workers);
  mgl_free(memory->best_logits);
  mgl_free(memory->logit_notes);
  mgl_cpu_loads_destroy(&memory->loads);
  mgl_free(memory->pulses);
  mgl_free(memory->kv);
  mgl_free(memory);
}

uint64_t mgl_cpu_memory_pulses(const mgl_cpu_memory *memory) {
  uint64_t sum = 0;
  for (uint32_t worker = 0; worker < memory->options.workers; worker++) {
    sum += mgl_load_relaxed(&memory->pulses[(size_t)worker * MGL_CPU_PULSE_WORDS]);
  }
  return sum;
}

// No iteration runs, so notes of earlier ones need not be kept.
static mgl_status reserve_notes(mgl_cpu_memory *memory, uint32_t logit_rows, mgl_error *err) {
  if (logit_rows <= memory->logit_rows) {
    return MGL_OK;
  }
  mgl_logit_note *notes =
      mgl_alloc_zeroed((size_t)memory->options.workers * logit_rows, sizeof *notes);
  uint32_t *best = mgl_alloc_zeroed(logit_rows, sizeof *best);
  if (notes == NULL || best == NULL) {
    mgl_free(notes);
    mgl_free(best);
    return mgl_error_set(err, MGL_ERR_MEMORY, "out of memory for %u rows of logits", logit_rows);
  }
  mgl_free(memory->logit_notes);
  mgl_free(memory->best_logits);
  memory->logit_notes = notes;
  memory->best_logits = best;
  memory->logit_rows = logit_rows;
  return MGL_OK;
}

mgl_status mgl_cpu_memory_reserve(mgl_cpu_memory *memory, size_t activation_bytes,
                                  size_t scratch_bytes, uint32_t logit_rows, mgl_error *err) {
  MGL_TRY(reserve_notes(memory, logit_rows, err));
  scratch_bytes = (scratch_bytes + MGL_CPU_SCRATCH_ALIGNMENT - 1) / MGL_CPU_SCRATCH_ALIGNMENT *
                  MGL_CPU_SCRATCH_ALIGNMENT;
  if (memory->options.rank_count > 0) {
    if (activation_bytes > memory->options.shared_bytes) {
      return mgl_error_set(
          err, MGL_ERR_LIMIT,
          "activations: expected at most the %zu bytes that ranks share, found %zu",
          memory->options.shared_bytes, activation_bytes);
    }
    memory->activations = memory->options.shared[memory->options.rank];
    memory->activation_bytes = memory->options.shared_bytes;
  }
  if (activation_bytes > memory->activation_bytes) {
    void *block = NULL;
    MGL_TRY(mgl_pages_map(activation_bytes, "activations", &block, err));
    mgl_pages_unmap(memory->activations, memory->activation_bytes);
    memory->activations = block;
    memory->activation_bytes = activation_bytes;
  }
  if (scratch_bytes > memory->scratch_bytes) {
    void *block = NULL;
    MGL_TRY(mgl_pages_map(scratch_bytes * memory->options.workers, "scratch", &block, err));
    mgl_pages_unmap(memory->scratch, memory->scratch_bytes * memory->options.workers);
    memory->scratch = block;
    memory->scratch_bytes = scratch_bytes;
  }
  return MGL_OK;
}

// The tensor of the bound program that has this one's name, placement, shape and dtype.
static mgl_status find(const mgl_cpu_memory *memory, const mgl_tensor *tensor, uint32_t *out,
                       mgl_error *err) {
  const mgl_graph *graph = memory->weights->graph;
  *out = mgl_graph_find(graph, tensor->name);
  if (*out == MGL_NO_TENSOR) {
    return mgl_error_set(err, MGL_ERR_ARGUMENT, "the model has no tensor \"%s\" for this program",
                         tensor->name);
  }
  const mgl_tensor *bound = &graph->tensors[*out];
  const bool same = bound->placement == tensor->placement &&
                    mgl_form_same(mgl_tensor_form(bound), mgl_tensor_form(tensor)) &&
                    mgl_tensor_same_shape(bound, tensor) && bound->k_scale == tensor->k_scale &&
                    bound->v_scale == tensor->v_scale;
  if (!same) {
    return mgl_error_set(err, MGL_ERR_ARGUMENT,
                         "tensor \"%s\" of this program has another shape or dtype than the "
                         "model's",
                         tensor->name);
  }
  return MGL_OK;
}

mgl_status mgl_cpu_memory_find_weight(const mgl_cpu_memory *memory, const mgl_tensor *tensor,
                                      const void **out, mgl_error *err) {
  uint32_t idx = 0;
  MGL_TRY(find(memory, tensor, &idx, err));
  *out = memory->weights->data[idx];
  return MGL_OK;
}

const void *mgl_cpu_memory_find_short(const mgl_cpu_memory *memory, const mgl_tensor *tensor) {
  const uint32_t idx = mgl_graph_find(memory->weights->graph, tensor->name);
  return memory->weights->shorts == NULL || idx == MGL_NO_TENSOR ? NULL
                                                                 : memory->weights->shorts[idx];
}

mgl_status mgl_cpu_memory_find_kv(const mgl_cpu_memory *memory, const mgl_tensor *tensor,
                                  mgl_kv_layer *out, mgl_error *err) {
  uint32_t idx = 0;
  MGL_TRY(find(memory, tensor, &idx, err));
  *out = memory->kv[idx];
  return MGL_OK;
}
