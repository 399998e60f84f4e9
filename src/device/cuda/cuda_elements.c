#include "device/cuda/cuda_elements.h"

#include "base/alloc.h"

mgl_status mgl_cuda_elements_read(const mgl_cuda_driver *driver, mgl_cuda_elements from, float *out,
                                  mgl_error *err) {
  const size_t bytes = from.count * mgl_dtype_bytes(from.dtype);
  if (from.dtype == MGL_DTYPE_F32) {
    return MGL_CUDA_CALL(driver, copy_to_host, err, out, from.at, bytes);
  }
  void *copy = mgl_alloc(bytes);
  MGL_TRY(mgl_alloc_check(copy, err, "%zu elements", from.count));
  mgl_status status = MGL_CUDA_CALL(driver, copy_to_host, err, copy, from.at, bytes);
  if (status == MGL_OK) {
    mgl_widen_f32(from.dtype, copy, from.count, out);
  }
  mgl_free(copy);
  return status;
}

mgl_status mgl_cuda_elements_write(const mgl_cuda_driver *driver, mgl_cuda_elements to,
                                   const float *values, mgl_error *err) {
  float *copy = mgl_alloc_zeroed(to.count, sizeof *copy);
  MGL_TRY(mgl_alloc_check(copy, err, "%zu elements", to.count));
  for (size_t i = 0; i < to.count; i++) {
    switch (to.dtype) {
      case MGL_DTYPE_BF16: ((mgl_bf16 *)copy)[i] = mgl_f32_to_bf16(values[i]); break;
      case MGL_DTYPE_F16: ((mgl_f16 *)copy)[i] = mgl_f32_to_f16(values[i]); break;
      default: copy[i] = values[i]; break;
    }
  }
  mgl_cu_result code = driver->copy_to_device(to.at, copy, to.count * mgl_dtype_bytes(to.dtype));
  mgl_free(copy);
  return mgl_cuda_check(driver, code, "copy_to_device", err);
}

// Where element i of [HKV, P, HD] is stored.
static size_t place_of(const mgl_cuda_kv_half *half, size_t i) {
  const size_t head = half->tokens * half->dims;
  return half->is_turned ? i / head * head + i % half->dims * half->tokens + i % head / half->dims
                         : i;
}

mgl_status mgl_cuda_kv_read(const mgl_cuda_driver *driver, const mgl_cuda_kv_half halves[2],
                            float *k, float *v, mgl_error *err) {
  float *values = mgl_alloc_zeroed(halves[0].stored.count, sizeof *values);
  mgl_status status = mgl_alloc_check(values, err, "a KV page");
  for (int half = 0; half < 2 && status == MGL_OK; half++) {
    float *out = half == 0 ? k : v;
    status = mgl_cuda_elements_read(driver, halves[half].stored, values, err);
    for (size_t i = 0; status == MGL_OK && i < halves[half].stored.count; i++) {
      out[i] = values[place_of(&halves[half], i)];
    }
  }
  mgl_free(values);
  return status;
}

mgl_status mgl_cuda_kv_write(const mgl_cuda_driver *driver, const mgl_cuda_kv_half halves[2],
                             const float *k, const float *v, mgl_error *err) {
  float *values = mgl_alloc_zeroed(halves[0].stored.count, sizeof *values);
  mgl_status status = mgl_alloc_check(values, err, "a KV page");
  for (int half = 0; half < 2 && status == MGL_OK; half++) {
    for (size_t i = 0; i < halves[half].stored.count; i++) {
      values[place_of(&halves[half], i)] = (half == 0 ? k : v)[i];
    }
    status = mgl_cuda_elements_write(driver, halves[half].stored, values, err);
  }
  mgl_free(values);
  return status;
}
