#include "device/cuda/cuda_plain_look.h"

#include "device/cuda/cuda_elements.h"

// --- activations ---------------------------------------------------------------------------------

static mgl_status find_activation(const mgl_cuda_plain *p, const char *name, size_t count,
                                  mgl_cuda_elements *out, mgl_error *err) {
  const mgl_graph *program = mgl_cuda_plain_program(p);
  const mgl_sizes *sizes = mgl_cuda_plain_sizes(p);
  const mgl_dim_values largest = {sizes->limits.tokens, sizes->logit_rows, sizes->limits.sequences};
  uint32_t tensor = 0;
  MGL_TRY(mgl_graph_find_activation(program, name, count, &largest, &tensor, err));
  *out =
      (mgl_cuda_elements){mgl_cuda_plain_address(p, tensor), program->tensors[tensor].dtype, count};
  return MGL_OK;
}

mgl_status mgl_cuda_plain_write(mgl_cuda_plain *p, const char *name, const float *values,
                                size_t count, mgl_error *err) {
  mgl_cuda_elements to = {0};
  MGL_TRY(find_activation(p, name, count, &to, err));
  return mgl_cuda_elements_write(&mgl_cuda_plain_device(p)->driver, to, values, err);
}

mgl_status mgl_cuda_plain_read(const mgl_cuda_plain *p, const char *name, float *out, size_t count,
                               mgl_error *err) {
  mgl_cuda_elements from = {0};
  MGL_TRY(find_activation(p, name, count, &from, err));
  return mgl_cuda_elements_read(&mgl_cuda_plain_device(p)->driver, from, out, err);
}

// --- KV ------------------------------------------------------------------------------------------

// A page of K [HKV, HD, P] and of V [HKV, P, HD], as the CPU has them, too.
static mgl_status find_page(const mgl_cuda_plain *p, const char *name, uint32_t page,
                            mgl_cuda_kv_half out[2], mgl_error *err) {
  const mgl_graph *program = mgl_cuda_plain_program(p);
  const mgl_sizes *sizes = mgl_cuda_plain_sizes(p);
  const uint32_t tensor = mgl_graph_find(program, name);
  if (tensor == MGL_NO_TENSOR || program->tensors[tensor].placement != MGL_PLACE_KV ||
      page >= sizes->page_count) {
    return mgl_error_set(err, MGL_ERR_ARGUMENT,
                         "expected a KV tensor with more than %u pages, found \"%s\"", page, name);
  }
  const mgl_tensor *kv = &program->tensors[tensor];
  const size_t tokens = sizes->limits.page_tokens, dims = kv->dims[1].number;
  const size_t count = kv->dims[0].number * dims * tokens;
  const uint64_t at = (uint64_t)page * count * mgl_dtype_bytes(kv->dtype);
  for (int half = 0; half < 2; half++) {
    mgl_cu_ptr begin =
        half == 0 ? mgl_cuda_plain_address(p, tensor) : mgl_cuda_plain_v_address(p, tensor);
    out[half] = (mgl_cuda_kv_half){{begin + at, kv->dtype, count}, tokens, dims, half == 0};
  }
  return MGL_OK;
}

mgl_status mgl_cuda_plain_write_kv(mgl_cuda_plain *p, const char *name, uint32_t page,
                                   const float *k, const float *v, mgl_error *err) {
  mgl_cuda_kv_half to[2];
  MGL_TRY(find_page(p, name, page, to, err));
  return mgl_cuda_kv_write(&mgl_cuda_plain_device(p)->driver, to, k, v, err);
}

mgl_status mgl_cuda_plain_read_kv(const mgl_cuda_plain *p, const char *name, uint32_t page,
                                  float *k, float *v, mgl_error *err) {
  mgl_cuda_kv_half from[2];
  MGL_TRY(find_page(p, name, page, from, err));
  return mgl_cuda_kv_read(&mgl_cuda_plain_device(p)->driver, from, k, v, err);
}
