#include "kernels/cpu/cpu_variant.h"

#include <string.h>

#include "base/text.h"

static const char *const names[MGL_CPU_VARIANT_COUNT] = {
#define MGL_VARIANT_NAME(name) [MGL_CPU_VARIANT_##name] = #name,
    MGL_CPU_VARIANTS(MGL_VARIANT_NAME)
#undef MGL_VARIANT_NAME
};

uint32_t mgl_cpu_variant_find(const char *op) {
  uint32_t i = 0;
  while (i < MGL_CPU_VARIANT_COUNT && strcmp(names[i], op) != 0) {
    i++;
  }
  return i;
}

const char *mgl_cpu_variant_name(uint32_t op) {
  return names[op];
}

static bool is_same_kernel(uint32_t op, const mgl_cpu_kernels *a, const mgl_cpu_kernels *b) {
  switch (op) {
#define MGL_VARIANT_SAME(name) \
  case MGL_CPU_VARIANT_##name: return a->name == b->name;
    MGL_CPU_VARIANTS(MGL_VARIANT_SAME)
#undef MGL_VARIANT_SAME
    default: return false;
  }
}

mgl_simd mgl_cpu_variant_owner(uint32_t op, mgl_simd level) {
  int owner = 0;
  while (owner < (int)level &&
         !is_same_kernel(op, mgl_cpu_kernels_for((mgl_simd)owner), mgl_cpu_kernels_for(level))) {
    owner++;
  }
  return (mgl_simd)owner;
}

// Of a processor with more than one level: whether they have one kernel between them.
static bool is_shared_by_all(uint32_t op) {
  int level = 1;
  while (level <= (int)mgl_simd_detected() &&
         mgl_cpu_variant_owner(op, (mgl_simd)level) == MGL_SIMD_SCALAR) {
    level++;
  }
  return level > 1 && level > (int)mgl_simd_detected();
}

static mgl_status refuse_op(const char *op, mgl_error *err) {
  mgl_text all = {0};
  for (uint32_t i = 0; i < MGL_CPU_VARIANT_COUNT; i++) {
    mgl_text_format(&all, "%s%s", i == 0 ? "" : ", ", names[i]);
  }
  mgl_status status = mgl_text_check(&all, err);
  if (status == MGL_OK) {
    status = mgl_error_set(err, MGL_ERR_ARGUMENT,
                           "expected an op of %s, found \"%.40s\"; MEGALITH_SIMD lowers the level "
                           "of all, linears too",
                           all.data, op);
  }
  mgl_text_free(&all);
  return status;
}

static mgl_status refuse_kernel(const char *op, const char *name, mgl_error *err) {
  mgl_text all = {0};
  for (int level = 0; level <= (int)mgl_simd_detected(); level++) {
    mgl_text_format(&all, "%s%s", level == 0 ? "" : ", ", mgl_simd_name((mgl_simd)level));
  }
  mgl_status status = mgl_text_check(&all, err);
  if (status == MGL_OK) {
    status = mgl_error_set(err, MGL_ERR_ARGUMENT,
                           "%s: expected a kernel that this processor runs, of %s, found \"%.40s\"",
                           op, all.data, name);
  }
  mgl_text_free(&all);
  return status;
}

mgl_status mgl_cpu_variants_set(mgl_cpu_variants *variants, const char *text, size_t bytes,
                                mgl_error *err) {
  char op[64], name[64];
  const char *equals = memchr(text, '=', bytes);
  size_t op_bytes = equals != NULL ? (size_t)(equals - text) : bytes;
  size_t name_bytes = equals != NULL ? bytes - op_bytes - 1 : 0;
  if (equals == NULL || op_bytes >= sizeof op || name_bytes >= sizeof name) {
    return mgl_error_set(err, MGL_ERR_ARGUMENT,
                         "expected OP=NAME, such as attention=scalar, found \"%.*s\"",
                         (int)(bytes < 80 ? bytes : 80), text);
  }
  memcpy(op, text, op_bytes);
  op[op_bytes] = 0;
  memcpy(name, equals + 1, name_bytes);
  name[name_bytes] = 0;
  uint32_t found = mgl_cpu_variant_find(op);
  if (found == MGL_CPU_VARIANT_COUNT) {
    return refuse_op(op, err);
  }
  if (is_shared_by_all(found)) {
    return mgl_error_set(
        err, MGL_ERR_ARGUMENT,
        "%s: expected an op with more than one kernel, found one whose only kernel "
        "all levels of this processor share",
        op);
  }
  int level = 0;
  while (level <= (int)mgl_simd_detected() && strcmp(mgl_simd_name((mgl_simd)level), name) != 0) {
    level++;
  }
  if (level > (int)mgl_simd_detected()) {
    return refuse_kernel(op, name, err);
  }
  variants->asked[found] = (uint8_t)(level + 1);
  return MGL_OK;
}

mgl_cpu_kernels mgl_cpu_variants_apply(const mgl_cpu_variants *variants, mgl_simd usual) {
  mgl_cpu_kernels table = *mgl_cpu_kernels_for(usual);
#define MGL_VARIANT_TAKE(op)                                                                   \
  if (variants->asked[MGL_CPU_VARIANT_##op] != 0) {                                            \
    table.op = mgl_cpu_kernels_for((mgl_simd)(variants->asked[MGL_CPU_VARIANT_##op] - 1))->op; \
  }
  MGL_CPU_VARIANTS(MGL_VARIANT_TAKE)
#undef MGL_VARIANT_TAKE
  return table;
}
