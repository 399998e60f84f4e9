#include "base/form.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>

static const uint8_t code_bits[MGL_DTYPE_COUNT] = {
#define MGL_CODE(enum_name, name, bits) [MGL_DTYPE_##enum_name] = bits,
#include "base/form.def"
};

bool mgl_dtype_is_code(mgl_dtype dtype) {
  return code_bits[dtype] != 0;
}

mgl_status mgl_form_check(mgl_form form, uint32_t k, mgl_error *err) {
  bool is_code = mgl_dtype_is_code(form.dtype);
  bool fits = form.group == 0 && !form.offsets;
  if (is_code) {
    bool in_steps = form.group == 16 || (form.group % 32 == 0 && form.group <= MGL_FORM_MAX_GROUP);
    fits = form.group != 0 && (in_steps || form.group >= k);
  }
  if (fits) {
    return MGL_OK;
  }
  return mgl_error_set(err, MGL_ERR_UNSUPPORTED,
                       "groups of %u elements of %s are not supported: expected 16, a multiple of "
                       "32, or a whole row (of %u)",
                       form.group, mgl_dtype_name(form.dtype), k);
}

static size_t codes_bytes(mgl_dtype code, uint32_t k) {
  size_t blocks = ((size_t)k + MGL_CODE_BLOCK - 1) / MGL_CODE_BLOCK;
  return blocks * MGL_CODE_BLOCK * code_bits[code] / 8;
}

mgl_row_layout mgl_row_layout_of(mgl_form form, uint32_t k) {
  if (form.group == 0) {
    return (mgl_row_layout){.bytes = k * mgl_dtype_bytes(form.dtype)};
  }
  mgl_row_layout layout = {.groups = (k - 1) / form.group + 1,
                           .scales = codes_bytes(form.dtype, k)};
  layout.offsets = layout.scales + layout.groups * sizeof(float);
  layout.bytes = layout.offsets + (form.offsets ? layout.groups * sizeof(float) : 0);
  return layout;
}

float mgl_code_value(mgl_dtype code, unsigned bits) {
  static const float e2m1[8] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6};
  switch (code) {
    case MGL_DTYPE_E4M3: return mgl_e4m3_to_f32((uint8_t)bits);
    case MGL_DTYPE_I8: return (float)(int8_t)bits;
    case MGL_DTYPE_I4: return (float)bits - 8;
    case MGL_DTYPE_U4: return (float)bits;
    case MGL_DTYPE_E2M1: return (bits & 8) != 0 ? -e2m1[bits & 7] : e2m1[bits & 7];
    default: break;
  }
  assert(0 && "a code");
  return 0;
}

// A block of 4-bit codes, a byte each, to words of four.
static void pack_block(const uint8_t codes[MGL_CODE_BLOCK], unsigned char *to) {
  for (size_t i = 0; i < 32; i++) {
    to[2 * i] = (unsigned char)(codes[i] | codes[32 + i] << 4);
    to[2 * i + 1] = (unsigned char)(codes[64 + i] | codes[96 + i] << 4);
  }
}

static void pack_codes(mgl_dtype code, uint32_t k, const uint8_t *codes, unsigned char *to) {
  uint32_t i = 0;
  for (; k - i >= MGL_CODE_BLOCK; i += MGL_CODE_BLOCK, to += MGL_CODE_BLOCK / 2) {
    pack_block(codes + i, to);
  }
  if (i < k) {
    uint8_t last[MGL_CODE_BLOCK];
    memset(last, code == MGL_DTYPE_I4 ? 8 : 0, sizeof last);
    memcpy(last, codes + i, k - i);
    pack_block(last, to);
  }
}

void mgl_row_write(mgl_form form, uint32_t k, const uint8_t *codes, const float *scales,
                   const float *offsets, void *row) {
  mgl_row_layout layout = mgl_row_layout_of(form, k);
  unsigned char *to = row;
  if (code_bits[form.dtype] == 8) {
    memcpy(to, codes, k);
    memset(to + k, 0, layout.scales - k);  // a code of value 0
  } else {
    pack_codes(form.dtype, k, codes, to);
  }
  memcpy(to + layout.scales, scales, layout.groups * sizeof(float));
  if (form.offsets) {
    memcpy(to + layout.offsets, offsets, layout.groups * sizeof(float));
  }
}

unsigned mgl_row_code(mgl_dtype code, const void *row, uint32_t i) {
  const unsigned char *from = row;
  if (code_bits[code] == 8) {
    return from[i];
  }
  unsigned place = i % MGL_CODE_BLOCK / 32;
  unsigned byte = from[i / MGL_CODE_BLOCK * (MGL_CODE_BLOCK / 2) + i % 32 * 2 + place / 2];
  return byte >> 4 * (place % 2) & 15;
}

void mgl_row_widen(mgl_form form, uint32_t k, const void *row, float *out) {
  if (form.group == 0) {
    mgl_widen_f32(form.dtype, row, k, out);
    return;
  }
  mgl_row_layout layout = mgl_row_layout_of(form, k);
  for (uint32_t i = 0; i < k; i++) {
    float scale, offset = 0;
    size_t group = i / form.group * sizeof(float);
    memcpy(&scale, (const char *)row + layout.scales + group, sizeof scale);
    if (form.offsets) {
      memcpy(&offset, (const char *)row + layout.offsets + group, sizeof offset);
    }
    out[i] = scale * mgl_code_value(form.dtype, mgl_row_code(form.dtype, row, i)) - offset;
  }
}

void mgl_form_name(mgl_form form, char out[MGL_FORM_NAME_BYTES]) {
  if (form.group == 0) {
    (void)snprintf(out, MGL_FORM_NAME_BYTES, "%s", mgl_dtype_name(form.dtype));
  } else {
    (void)snprintf(out, MGL_FORM_NAME_BYTES, "%s.%u%s", mgl_dtype_name(form.dtype), form.group,
                   form.offsets ? "o" : "");
  }
}

bool mgl_form_parse(const char *name, mgl_form *out) {
  size_t length = strcspn(name, ".");
  for (int i = 0; i < MGL_DTYPE_COUNT; i++) {
    const char *own = mgl_dtype_name((mgl_dtype)i);
    if (strncmp(name, own, length) != 0 || own[length] != 0) {
      continue;
    }
    *out = mgl_form_plain((mgl_dtype)i);
    if (!mgl_dtype_is_code((mgl_dtype)i)) {
      return name[length] == 0;
    }
    if (i == MGL_DTYPE_KV8 && name[length] == 0) {
      return true;
    }
    char *end = NULL;
    const char *digits = name[length] == '.' ? name + length + 1 : "";
    unsigned long group = strtoul(digits, &end, 10);
    out->group = (uint32_t)group;
    out->offsets = *end == 'o';
    return digits[0] >= '1' && digits[0] <= '9' && group <= INT32_MAX && end[out->offsets] == 0;
  }
  return false;
}
