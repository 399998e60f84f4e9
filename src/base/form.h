// Weight forms: how a row of a matrix lies in memory.
//
// A matrix of a plain dtype is rows of its elements. A quantised one has codes (form.def), and for
// every group of elements of a row a scale, and maybe an offset:
//   weight[k] = scale[k / group] * value(code[k]) - offset[k / group]
// A row in memory is its codes, then its scales, then its offsets, both f32, so that any range of
// rows is one piece of memory and a matrix stays one operand of an op. Zero points of all kinds are
// offsets (scale times zero): one rule for kernels, and an offset costs them one sum of x a group.
// Scales are f32 whatever the checkpoint has, so that no format's scales are rounded.
//
// 8-bit codes lie in order. 4-bit codes lie in blocks of MGL_CODE_BLOCK: element e of a block is
// bits 4 * (e / 32) to + 3 of 16-bit word e % 32, so that one shift makes 32 elements in order. A
// row's last block is filled up with codes of value 0.
#ifndef MGL_BASE_FORM_H
#define MGL_BASE_FORM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/dtype.h"
#include "base/status.h"

enum {
  MGL_CODE_BLOCK = 128,
  MGL_FORM_MAX_GROUP = 4096,       // but for whole rows
  MGL_FORM_WHOLE_ROW = INT32_MAX,  // a group that no row is longer than
};

typedef struct mgl_form {
  mgl_dtype dtype;
  uint32_t group;  // elements of a row that share a scale (mgl_form_check); 0: a plain dtype
  bool offsets;
} mgl_form;

// Where a row's parts lie, in bytes.
typedef struct mgl_row_layout {
  uint32_t groups;  // of a row; 0: plain
  size_t scales, offsets;
  size_t bytes;
} mgl_row_layout;

bool mgl_dtype_is_code(mgl_dtype dtype);

// Whether a code has 4 bits; a constant for a constant, as kernels want it.
static inline bool mgl_code_is_nibble(mgl_dtype code) {
  return code == MGL_DTYPE_I4 || code == MGL_DTYPE_U4 || code == MGL_DTYPE_E2M1;
}

// Whether values of codes are whole numbers; a constant for a constant.
static inline bool mgl_code_is_integer(mgl_dtype code) {
  return code == MGL_DTYPE_I8 || code == MGL_DTYPE_I4 || code == MGL_DTYPE_U4;
}

// Whether elements are exact in bf16: such weights leave activations in bf16.
static inline bool mgl_dtype_fits_bf16(mgl_dtype dtype) {
  return dtype == MGL_DTYPE_BF16 || mgl_dtype_is_code(dtype);
}

static inline mgl_form mgl_form_plain(mgl_dtype dtype) {
  return (mgl_form){.dtype = dtype};
}

static inline bool mgl_form_same(mgl_form a, mgl_form b) {
  return a.dtype == b.dtype && a.group == b.group && a.offsets == b.offsets;
}

// Whether the kernels have rows of k elements in this form: the dtype is plain and group 0, or it
// is a code and the group is 16, a multiple of 32 up to MGL_FORM_MAX_GROUP, or k (more means k).
mgl_status mgl_form_check(mgl_form form, uint32_t k, mgl_error *err);

// Of a form that mgl_form_check takes.
mgl_row_layout mgl_row_layout_of(mgl_form form, uint32_t k);

float mgl_code_value(mgl_dtype code, unsigned bits);

// Writes one row. codes: [k] a byte each, as form.def has them; scales [groups]; offsets [groups],
// or NULL where the form has none.
void mgl_row_write(mgl_form form, uint32_t k, const uint8_t *codes, const float *scales,
                   const float *offsets, void *row);

// Bits of element i of a row.
unsigned mgl_row_code(mgl_dtype code, const void *row, uint32_t i);

// Widens a whole row of any form to f32 [k].
void mgl_row_widen(mgl_form form, uint32_t k, const void *row, float *out);

// "bf16"; "i4.128", with offsets "i4.128o".
enum { MGL_FORM_NAME_BYTES = 32 };
void mgl_form_name(mgl_form form, char out[MGL_FORM_NAME_BYTES]);
// Reads such a name; false: it is none. "e4m3" without a group is that of
// KV caches.
bool mgl_form_parse(const char *name, mgl_form *out);

#endif
