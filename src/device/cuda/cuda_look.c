// Working on parts of a GPU program, for tests: leaving ops out, giving them their inputs, looking
// at the KV cache. The launches and the task graphs are those of the whole program.
#include "base/alloc.h"
#include "device/cuda/cuda_elements.h"
#include "device/cuda/cuda_program_parts.h"

static mgl_status synchronise(mgl_cuda_program *p, mgl_error *err) {
  const mgl_cuda_driver *driver = &p->device->driver;
  return mgl_cuda_check(driver, driver->context_synchronize(), "upload", err);
}

static mgl_status clear_activations(mgl_cuda_program *p, mgl_error *err) {
  static const mgl_cuda_memory_kind kinds[] = {MGL_CUDA_MEMORY_ACTIVATIONS,
                                               MGL_CUDA_MEMORY_CARRIED};
  for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
    size_t bytes = (size_t)p->layout.bytes[kinds[i]];
    if (bytes > 0) {
      MGL_CUDA_TRY(&p->device->driver, memory_set, err, p->memory[kinds[i]], 0xff, bytes);
    }
  }
  return MGL_OK;
}

static mgl_status upload_ops(mgl_cuda_program *p, uint32_t graph, const mgl_cuda_op *ops,
                             mgl_error *err) {
  return MGL_CUDA_CALL(&p->device->driver, copy_to_device, err,
                       p->memory[MGL_CUDA_MEMORY_DESCRIPTORS] + p->layout.graphs[graph].ops, ops,
                       p->program->op_count * sizeof *ops);
}

mgl_status mgl_cuda_program_choose(mgl_cuda_program *p, uint32_t first, uint32_t last,
                                   mgl_error *err) {
  size_t count = p->program->op_count;
  mgl_cuda_addresses addresses = {p->program, &p->layout, p->memory, p->sizes.logit_rows};
  mgl_cuda_op *ops = mgl_alloc_zeroed(count, sizeof *ops);
  MGL_TRY(mgl_alloc_check(ops, err, "%zu ops", count));
  mgl_status status = clear_activations(p, err);
  for (uint32_t graph = 0; status == MGL_OK && graph < p->graph_count; graph++) {
    for (uint32_t i = 0; i < count; i++) {
      ops[i] = mgl_cuda_bind_op(&addresses, graph, p->graphs[graph]->tokens, i);
      ops[i].kind = i >= first && i <= last ? ops[i].kind : (uint32_t)MGL_CUDA_OP_EMPTY;
    }
    status = upload_ops(p, graph, ops, err);
  }
  mgl_free(ops);
  p->chosen = first > 0 || last < count - 1;
  p->first_op = first;
  p->last_op = last;
  if (status == MGL_OK) {
    status = mgl_cuda_wide_upload_graphs(p, err);
  }
  return status == MGL_OK ? synchronise(p, err) : status;
}

mgl_status mgl_cuda_program_write(mgl_cuda_program *p, uint32_t graph, const char *name,
                                  const float *values, size_t count, mgl_error *err) {
  mgl_cuda_place place;
  MGL_TRY(mgl_cuda_find_activation(p, graph, name, count, &place, err));
  const mgl_cuda_elements to = {place.at, place.dtype, count};
  MGL_TRY(mgl_cuda_elements_write(&p->device->driver, to, values, err));
  return synchronise(p, err);
}

// --- large iterations ----------------------------------------------------------------------------

// With up to 256 tokens the norm before a linear and the rotation before attention are done by the
// linear before them, so a range cannot begin between the two.
mgl_status mgl_cuda_look_check_large(const mgl_cuda_program *p, uint32_t tokens, mgl_error *err) {
  if (!p->chosen || !p->wide.cut[mgl_cuda_wide_graph_for(&p->wide.layout, tokens)]) {
    return MGL_OK;
  }
  return mgl_error_set(
      err, MGL_ERR_UNSUPPORTED,
      "%u tokens on a GPU: expected a range that begins before \"%s\", whose norm or "
      "rotation belongs to the op before it there, or more than %d tokens",
      tokens, p->program->tensors[p->program->ops[p->first_op].output].name, MGL_WIDE_MOST_TILE);
}

static mgl_status find_large(const mgl_cuda_program *p, uint32_t tokens, const char *name,
                             size_t count, mgl_cuda_wide_value *out, unsigned char **bytes,
                             mgl_error *err) {
  *bytes = NULL;
  if (p->wide.tokens == 0 || tokens > p->wide.tokens ||
      !mgl_cuda_wide_find(p->program, &p->wide.layout, tokens, name, out) ||
      count > (size_t)out->rows * out->columns) {
    return mgl_error_set(err, MGL_ERR_ARGUMENT,
                         "\"%s\" with %zu elements is no activation of iterations of %u tokens",
                         name, count, tokens);
  }
  *bytes = mgl_alloc_zeroed(1, (size_t)out->bytes);
  return mgl_alloc_check(*bytes, err, "%zu elements", count);
}

// Whether an activation is of one piece where the range ends with the op that makes it: sums of
// split linears are added by the op behind them.
static bool is_whole(const mgl_cuda_program *p, const char *name,
                     const mgl_cuda_wide_value *value) {
  const bool ends = p->chosen && p->last_op < p->program->op_count &&
                    p->program->ops[p->last_op].output == mgl_graph_find(p->program, name);
  const bool embedding =
      ends && mgl_op_inputs(&p->program->ops[p->last_op], MGL_ROLE_TABLE).count > 0;
  return value->form != MGL_CUDA_WIDE_QKV &&
         (value->form != MGL_CUDA_WIDE_RESIDUAL || !ends || embedding);
}

mgl_status mgl_cuda_program_read_large(mgl_cuda_program *p, uint32_t tokens, const char *name,
                                       float *out, size_t count, mgl_error *err) {
  const mgl_cuda_driver *driver = &p->device->driver;
  mgl_cuda_wide_value value = {0};
  unsigned char *bytes = NULL;
  MGL_TRY(find_large(p, tokens, name, count, &value, &bytes, err));
  mgl_cu_result code =
      driver->copy_to_host(bytes, p->memory[MGL_CUDA_MEMORY_WIDE] + value.at, (size_t)value.bytes);
  mgl_cuda_wide_unpack(&value, bytes, count, out);
  mgl_free(bytes);
  if (!is_whole(p, name, &value)) {
    return mgl_error_set(err, MGL_ERR_UNSUPPORTED,
                         "\"%s\" of more than %d tokens on a GPU is finished by the op behind it: "
                         "expected a range that ends with attend, gate_up or logits",
                         name, MGL_CUDA_MAX_TOKENS);
  }
  return mgl_cuda_check(driver, code, "copy_to_host", err);
}

mgl_status mgl_cuda_program_write_large(mgl_cuda_program *p, uint32_t tokens, const char *name,
                                        const float *values, size_t count, mgl_error *err) {
  const mgl_cuda_driver *driver = &p->device->driver;
  mgl_cuda_wide_value value = {0};
  unsigned char *bytes = NULL;
  MGL_TRY(find_large(p, tokens, name, count, &value, &bytes, err));
  mgl_cuda_wide_pack(&value, values, count, bytes);
  mgl_cu_result code = driver->copy_to_device(p->memory[MGL_CUDA_MEMORY_WIDE] + value.at, bytes,
                                              (size_t)value.bytes);
  mgl_free(bytes);
  MGL_TRY(mgl_cuda_check(driver, code, "copy_to_device", err));
  return synchronise(p, err);
}

// --- schedules -----------------------------------------------------------------------------------

// By the ops of its graph: the device's turn gives the run those of the one that it chose.
static mgl_status find_wide(const mgl_cuda_program *p, uint64_t *out, mgl_error *err) {
  const mgl_cuda_wide_layout *wide = &p->wide.layout;
  const mgl_cu_ptr block = p->memory[MGL_CUDA_MEMORY_WIDE];
  mgl_wide_run run;
  MGL_CUDA_TRY(&p->device->driver, copy_to_host, err, &run, block + wide->image, sizeof run);
  for (uint32_t i = 0; i < wide->graph_count; i++) {
    *out = run.ops == mgl_cuda_pointer(block + wide->graphs[i].ops) ? p->wide.schedules[i] : *out;
  }
  return MGL_OK;
}

mgl_status mgl_cuda_program_ran(mgl_cuda_program *p, uint64_t *out, mgl_error *err) {
  const uint64_t *runs = mgl_cuda_image_run(p)->protocol.graph_runs;
  uint32_t ran = 0;
  *out = p->ran_full ? mgl_cuda_full_ran(p) : 0;
  for (uint32_t i = 0; !p->ran_full && i < p->graph_count; i++) {
    *out = runs[i] > 0 ? p->schedules[i] : *out;
    ran += runs[i] > 0 ? 1 : 0;
  }
  if (*out == 0 && p->wide.tokens > 0) {
    MGL_TRY(find_wide(p, out, err));
  }
  return *out != 0 && ran <= 1
             ? MGL_OK
             : mgl_error_set(err, MGL_ERR_ARGUMENT,
                             "the latest launch: expected iterations of one schedule, found %s",
                             *out == 0 ? "none" : "several");
}

// --- KV ------------------------------------------------------------------------------------------

// A page of K [HKV, P, HD] and of V [HKV, HD, P], as kernels have them.
static mgl_status find_page(const mgl_cuda_program *p, const char *name, uint32_t number,
                            mgl_cuda_kv_half out[2], mgl_error *err) {
  uint32_t idx = mgl_graph_find(p->program, name);
  if (idx == MGL_NO_TENSOR || p->program->tensors[idx].placement != MGL_PLACE_KV ||
      number >= p->sizes.page_count) {
    return mgl_error_set(err, MGL_ERR_ARGUMENT, "\"%s\" is no KV tensor with a page %u", name,
                         number);
  }
  const size_t tokens = MGL_CUDA_KV_PAGE_TOKENS, dims = p->model.head_dim;
  const size_t count = p->model.kv_heads * dims * tokens;
  const mgl_cu_ptr k =
      p->memory[MGL_CUDA_MEMORY_KV] + p->layout.kv[idx] + number * count * sizeof(mgl_bf16);
  const mgl_cu_ptr v = k + p->layout.kv_half_bytes;
  out[0] = (mgl_cuda_kv_half){{k, MGL_DTYPE_BF16, count}, tokens, dims, false};
  out[1] = (mgl_cuda_kv_half){{v, MGL_DTYPE_BF16, count}, tokens, dims, true};
  return MGL_OK;
}

mgl_status mgl_cuda_program_read_kv(mgl_cuda_program *p, const char *name, uint32_t number,
                                    float *k, float *v, mgl_error *err) {
  mgl_cuda_kv_half from[2];
  MGL_TRY(find_page(p, name, number, from, err));
  return mgl_cuda_kv_read(&p->device->driver, from, k, v, err);
}

mgl_status mgl_cuda_program_write_kv(mgl_cuda_program *p, const char *name, uint32_t number,
                                     const float *k, const float *v, mgl_error *err) {
  mgl_cuda_kv_half to[2];
  MGL_TRY(find_page(p, name, number, to, err));
  MGL_TRY(mgl_cuda_kv_write(&p->device->driver, to, k, v, err));
  return synchronise(p, err);
}
