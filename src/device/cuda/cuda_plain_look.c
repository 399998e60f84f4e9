#include "device/cuda/cuda_plain_look.h"

#include "base/alloc.h"

// Elements that are stored one behind the other.
typedef struct stored {
  mgl_cu_ptr at;
  mgl_dtype dtype;
  size_t count;
} stored;

static mgl_status out_of_memory(size_t count, mgl_error *err) {
  return mgl_error_set(err, MGL_ERR_MEMORY, "out of memory for %zu elements", count);
}

static mgl_status load(const mgl_cuda_plain *p, stored from, float *out, mgl_error *err) {
  const mgl_cuda_driver *driver = &mgl_cuda_plain_device(p)->driver;
  const size_t bytes = from.count * mgl_dtype_bytes(from.dtype);
  void *copy = mgl_alloc(bytes);
  if (copy == NULL) {
    return out_of_memory(from.count, err);
  }
  mgl_cu_result code = driver->copy_to_host(copy, from.at, bytes);
  mgl_widen_f32(from.dtype, copy, from.count, out);
  mgl_free(copy);
  return mgl_cuda_check(driver, code, "copy_to_host", err);
}

static mgl_status store(const mgl_cuda_plain *p, stored to, const float *values, mgl_error *err) {
  const mgl_cuda_driver *driver = &mgl_cuda_plain_device(p)->driver;
  const size_t bytes = to.count * mgl_dtype_bytes(to.dtype);
  float *copy = mgl_alloc_zeroed(to.count, sizeof *copy);
  if (copy == NULL) {
    return out_of_memory(to.count, err);
  }
  for (size_t i = 0; i < to.count; i++) {
    switch (to.dtype) {
      case MGL_DTYPE_BF16: ((mgl_bf16 *)copy)[i] = mgl_f32_to_bf16(values[i]); break;
      case MGL_DTYPE_F16: ((mgl_f16 *)copy)[i] = mgl_f32_to_f16(values[i]); break;
      default: copy[i] = values[i]; break;
    }
  }
  mgl_cu_result code = driver->copy_to_device(to.at, copy, bytes);
  mgl_free(copy);
  return mgl_cuda_check(driver, code, "copy_to_device", err);
}

// --- activations ---------------------------------------------------------------------------------

static mgl_status find_activation(const mgl_cuda_plain *p, const char *name, size_t count,
                                  stored *out, mgl_error *err) {
  const mgl_graph *program = mgl_cuda_plain_program(p);
  const mgl_sizes *sizes = mgl_cuda_plain_sizes(p);
  const mgl_dim_values largest = {sizes->limits.tokens, sizes->logit_rows, sizes->limits.sequences};
  uint32_t tensor = 0;
  MGL_TRY(mgl_graph_find_activation(program, name, count, &largest, &tensor, err));
  *out = (stored){mgl_cuda_plain_address(p, tensor), program->tensors[tensor].dtype, count};
  return MGL_OK;
}

mgl_status mgl_cuda_plain_write(mgl_cuda_plain *p, const char *name, const float *values,
                                size_t count, mgl_error *err) {
  stored to = {0};
  MGL_TRY(find_activation(p, name, count, &to, err));
  return store(p, to, values, err);
}

mgl_status mgl_cuda_plain_read(const mgl_cuda_plain *p, const char *name, float *out, size_t count,
                               mgl_error *err) {
  stored from = {0};
  MGL_TRY(find_activation(p, name, count, &from, err));
  return load(p, from, out, err);
}

// --- KV ------------------------------------------------------------------------------------------

// A page of K [HKV, HD, P] and of V [HKV, P, HD], as the CPU has them, too.
static mgl_status find_page(const mgl_cuda_plain *p, const char *name, uint32_t page, stored out[2],
                            float **values, mgl_error *err) {
  const mgl_graph *program = mgl_cuda_plain_program(p);
  const mgl_sizes *sizes = mgl_cuda_plain_sizes(p);
  const uint32_t tensor = mgl_graph_find(program, name);
  if (tensor == MGL_NO_TENSOR || program->tensors[tensor].placement != MGL_PLACE_KV ||
      page >= sizes->page_count) {
    return mgl_error_set(err, MGL_ERR_ARGUMENT,
                         "expected a KV tensor with more than %u pages, found \"%s\"", page, name);
  }
  const mgl_tensor *kv = &program->tensors[tensor];
  const size_t count = (size_t)kv->dims[0].number * kv->dims[1].number * sizes->limits.page_tokens;
  const uint64_t at = (uint64_t)page * count * mgl_dtype_bytes(kv->dtype);
  out[0] = (stored){mgl_cuda_plain_address(p, tensor) + at, kv->dtype, count};
  out[1] = (stored){mgl_cuda_plain_v_address(p, tensor) + at, kv->dtype, count};
  *values = mgl_alloc_zeroed(count, sizeof **values);
  return *values != NULL ? MGL_OK : out_of_memory(count, err);
}

// Where K of a page has element i of [HKV, P, HD].
static size_t place_in_k(const mgl_cuda_plain *p, const char *name, size_t i) {
  const mgl_graph *program = mgl_cuda_plain_program(p);
  const size_t dims = program->tensors[mgl_graph_find(program, name)].dims[1].number;
  const size_t tokens = mgl_cuda_plain_sizes(p)->limits.page_tokens;
  return (i / (tokens * dims) * dims + i % dims) * tokens + i / dims % tokens;
}

mgl_status mgl_cuda_plain_write_kv(mgl_cuda_plain *p, const char *name, uint32_t page,
                                   const float *k, const float *v, mgl_error *err) {
  stored to[2];
  float *values = NULL;
  MGL_TRY(find_page(p, name, page, to, &values, err));
  for (size_t i = 0; i < to[0].count; i++) {
    values[place_in_k(p, name, i)] = k[i];
  }
  mgl_status status = store(p, to[0], values, err);
  mgl_free(values);
  return status == MGL_OK ? store(p, to[1], v, err) : status;
}

mgl_status mgl_cuda_plain_read_kv(const mgl_cuda_plain *p, const char *name, uint32_t page,
                                  float *k, float *v, mgl_error *err) {
  stored from[2];
  float *values = NULL;
  MGL_TRY(find_page(p, name, page, from, &values, err));
  mgl_status status = load(p, from[0], values, err);
  for (size_t i = 0; status == MGL_OK && i < from[0].count; i++) {
    k[i] = values[place_in_k(p, name, i)];
  }
  mgl_free(values);
  return status == MGL_OK ? load(p, from[1], v, err) : status;
}
