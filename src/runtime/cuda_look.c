// Working on parts of a GPU program, for tests: leaving ops out, giving them their inputs, looking
// at the KV cache. The launches and the task graphs are those of the whole program.
#include "base/alloc.h"
#include "runtime/cuda_program_parts.h"

static mgl_status synchronise(mgl_cuda_program *p, mgl_error *err) {
  const mgl_cuda_driver *driver = &p->device->driver;
  return mgl_cuda_check(driver, driver->context_synchronize(), "upload", err);
}

// A task of an op that is left out waits for its event, does nothing and triggers: loaders stream
// for linears only, and consumers know no such kind.
mgl_status mgl_cuda_program_choose(mgl_cuda_program *p, uint32_t first, uint32_t last,
                                   mgl_error *err) {
  size_t count = p->program->op_count;
  mgl_cuda_op *ops = mgl_alloc_zeroed(count, sizeof *ops);
  mgl_status status = MGL_OK;
  if (ops == NULL) {
    return mgl_error_set(err, MGL_ERR_MEMORY, "out of memory for %zu ops", count);
  }
  mgl_cuda_addresses addresses = {p->program, &p->layout, p->memory, p->options.logit_rows};
  for (uint32_t graph = 0; status == MGL_OK && graph < p->graph_count; graph++) {
    for (uint32_t i = 0; i < count; i++) {
      ops[i] = mgl_cuda_bind_op(&addresses, graph, p->graphs[graph]->tokens, i);
      ops[i].kind = i >= first && i <= last ? ops[i].kind : (uint32_t)MGL_OP_COUNT;
    }
    status =
        mgl_cuda_check(&p->device->driver,
                       p->device->driver.copy_to_device(
                           p->memory[MGL_CUDA_MEMORY_DESCRIPTORS] + p->layout.graphs[graph].ops,
                           ops, count * sizeof *ops),
                       "copy_to_device", err);
  }
  mgl_free(ops);
  return status == MGL_OK ? synchronise(p, err) : status;
}

mgl_status mgl_cuda_program_write(mgl_cuda_program *p, uint32_t graph, const char *name,
                                  const float *values, size_t count, mgl_error *err) {
  mgl_cu_ptr at = 0;
  mgl_dtype dtype = MGL_DTYPE_F32;
  MGL_TRY(mgl_cuda_find_activation(p, graph, name, count, &at, &dtype, err));
  const void *from = values;
  mgl_bf16 *rounded = NULL;
  if (dtype == MGL_DTYPE_BF16) {
    rounded = mgl_alloc_zeroed(count, sizeof *rounded);
    if (rounded == NULL) {
      return mgl_error_set(err, MGL_ERR_MEMORY, "out of memory for %zu elements", count);
    }
    for (size_t i = 0; i < count; i++) {
      rounded[i] = mgl_f32_to_bf16(values[i]);
    }
    from = rounded;
  }
  const mgl_cuda_driver *driver = &p->device->driver;
  mgl_status status =
      mgl_cuda_check(driver, driver->copy_to_device(at, from, count * mgl_dtype_bytes(dtype)),
                     "copy_to_device", err);
  mgl_free(rounded);
  return status == MGL_OK ? synchronise(p, err) : status;
}

mgl_status mgl_cuda_program_read_kv(mgl_cuda_program *p, const char *name, uint32_t page, float *k,
                                    float *v, mgl_error *err) {
  const mgl_cuda_driver *driver = &p->device->driver;
  uint32_t idx = mgl_graph_find(p->program, name);
  if (idx == MGL_NO_TENSOR || p->program->tensors[idx].placement != MGL_PLACE_KV ||
      page >= p->options.page_count) {
    return mgl_error_set(err, MGL_ERR_ARGUMENT, "\"%s\" is no KV tensor with a page %u", name,
                         page);
  }
  size_t head_dim = p->model.head_dim;
  size_t head = head_dim * MGL_CUDA_KV_PAGE_TOKENS;
  size_t count = p->model.kv_heads * head;
  mgl_bf16 *stored = mgl_alloc_zeroed(2 * count, sizeof *stored);
  if (stored == NULL) {
    return mgl_error_set(err, MGL_ERR_MEMORY, "out of memory for a KV page");
  }
  mgl_cu_ptr at = p->memory[MGL_CUDA_MEMORY_KV] + p->layout.kv[idx] + page * count * sizeof *stored;
  mgl_status status = mgl_cuda_check(
      driver, driver->copy_to_host(stored, at, count * sizeof *stored), "copy_to_host", err);
  if (status == MGL_OK) {
    status = mgl_cuda_check(
        driver,
        driver->copy_to_host(stored + count, at + p->layout.kv_half_bytes, count * sizeof *stored),
        "copy_to_host", err);
  }
  for (size_t i = 0; status == MGL_OK && i < count; i++) {
    size_t token = i % head / head_dim;
    size_t dim = i % head_dim;
    k[i] = mgl_bf16_to_f32(stored[i]);
    v[i] = mgl_bf16_to_f32(stored[count + i / head * head + dim * MGL_CUDA_KV_PAGE_TOKENS + token]);
  }
  mgl_free(stored);
  return status;
}
