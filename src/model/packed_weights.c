// Finding the quantised matrices of a checkpoint.
//
// One pass over the tensors in the order of their names. A tensor that leads a spelling (its suffix
// and dtype are in the table) names its module and with it the tensors that belong to it; shapes
// give rows, columns and groups. What belongs is ticked off; at the end a tensor that sounds like a
// part of a quantised weight and is not ticked off is an error.
#include "model/packed_weights.h"

#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"

typedef struct finder {
  const mgl_quantization *quantization;
  const mgl_checkpoint *checkpoint;
  bool *ticked;               // [tensors]
  mgl_packed_matrix *matrix;  // at hand
  char module[MGL_TENSOR_MAX_NAME_BYTES + 1];
  mgl_error *err;
} finder;

// --- tensors of a module -------------------------------------------------------------------------

static bool has_suffix(const char *name, const char *suffix, size_t *out_stem) {
  size_t bytes = strlen(name), suffix_bytes = strlen(suffix);
  *out_stem = bytes - suffix_bytes;
  return bytes > suffix_bytes && strcmp(name + *out_stem, suffix) == 0;
}

static size_t index_of(const finder *f, const mgl_stored_tensor *tensor) {
  size_t low = 0, high = mgl_checkpoint_tensor_count(f->checkpoint);
  while (low < high) {
    size_t middle = low + (high - low) / 2;
    if (strcmp(mgl_checkpoint_at(f->checkpoint, middle)->name, tensor->name) < 0) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return low;
}

// The module's tensor of that suffix, ticked off; NULL: there is none.
static const mgl_stored_tensor *take(finder *f, const char *suffix) {
  char name[sizeof f->module + 32];
  (void)snprintf(name, sizeof name, "%s%s", f->module, suffix);
  const mgl_stored_tensor *tensor = mgl_checkpoint_raw(f->checkpoint, name);
  if (tensor != NULL) {
    f->ticked[index_of(f, tensor)] = true;
  }
  return tensor;
}

static mgl_status need(finder *f, const char *suffix, mgl_stored_tensor *out) {
  const mgl_stored_tensor *tensor = take(f, suffix);
  if (tensor == NULL) {
    return mgl_error_set(f->err, MGL_ERR_FORMAT,
                         "%s: weight \"%s\" is quantised (%s): expected \"%s%s\" with it, which is "
                         "missing",
                         f->matrix->where, f->matrix->name, f->matrix->codes.stored_dtype,
                         f->module, suffix);
  }
  *out = *tensor;
  return MGL_OK;
}

static mgl_status wrong_shape(const finder *f, const mgl_stored_tensor *tensor,
                              const char *expected) {
  char found[96] = "";
  size_t used = 0;
  for (uint32_t i = 0; i < tensor->rank && i < 3; i++) {
    used += (size_t)snprintf(found + used, sizeof found - used, "%s%" PRIu64, i == 0 ? "" : ", ",
                             tensor->dims[i]);
  }
  return mgl_error_set(f->err, MGL_ERR_FORMAT,
                       "%s: tensor \"%s\": expected %s for a weight [%" PRIu64
                       ", %u], found %s [%s]",
                       f->matrix->where, tensor->name, expected, f->matrix->rows, f->matrix->k,
                       tensor->stored_dtype, found);
}

static bool is_stored_as(const mgl_stored_tensor *tensor, const char *dtypes) {
  const char *at = strstr(dtypes, tensor->stored_dtype);
  char after = at == NULL ? 'x' : at[strlen(tensor->stored_dtype)];
  return (at == dtypes || (at != NULL && at[-1] == ' ')) && (after == 0 || after == ' ');
}

static bool is_shape(const mgl_stored_tensor *tensor, uint64_t rows, uint64_t columns) {
  return tensor->rank == 2 && tensor->dims[0] == rows && tensor->dims[1] == columns;
}

// --- shapes --------------------------------------------------------------------------------------

// The sizes of the matrix, as later code counts with them.
static mgl_status set_size(finder *f, uint64_t rows, uint64_t k) {
  if (rows == 0 || k == 0 || rows > INT32_MAX || k > INT32_MAX) {
    return mgl_error_set(f->err, MGL_ERR_LIMIT,
                         "%s: weight \"%s\": expected 1 to %d rows and columns, found %" PRIu64
                         " and %" PRIu64,
                         f->matrix->where, f->matrix->name, INT32_MAX, rows, k);
  }
  f->matrix->rows = rows;
  f->matrix->k = (uint32_t)k;
  return MGL_OK;
}

static mgl_status wrong_groups(const finder *f, uint64_t found) {
  const mgl_packed_matrix *m = f->matrix;
  return mgl_error_set(f->err, MGL_ERR_FORMAT,
                       "%s: weight \"%s\": expected scales for groups of %u elements (a row has "
                       "%u), found %" PRIu64 " groups",
                       m->where, m->name,
                       f->quantization->group != 0 ? f->quantization->group : m->k, m->k, found);
}

// Groups of a row: the length that config.json says; where it is not sure (several schemes, or none
// that says it), the one that divides.
static mgl_status set_groups(finder *f, uint64_t groups, bool offsets) {
  mgl_packed_matrix *m = f->matrix;
  uint32_t said = f->quantization->group;
  m->form.offsets = offsets;
  m->groups = (uint32_t)groups;
  if (f->quantization->is_sure && groups != (said == 0 ? 1 : (m->k - 1) / said + 1)) {
    return wrong_groups(f, groups);
  }
  if (groups == 1) {
    m->form.group = m->k;
  } else if (said != 0 && (m->k - 1) / said + 1 == groups) {
    m->form.group = said;
  } else if (groups != 0 && groups <= m->k && m->k % groups == 0) {
    m->form.group = (uint32_t)(m->k / groups);
  } else {
    return wrong_groups(f, groups);
  }
  mgl_status status = mgl_form_check(m->form, m->k, f->err);
  if (status != MGL_OK) {
    mgl_error_prefix(f->err, "%s: weight \"%s\"", m->where, m->name);
  }
  return status;
}

// Scales [1] or [] (of the whole matrix), [N], [N, groups], or [blocks of rows, groups].
static mgl_status set_scales(finder *f, const char *dtypes, bool offsets) {
  mgl_packed_matrix *m = f->matrix;
  const mgl_stored_tensor *scales = &m->scales;
  uint64_t rows = scales->rank == 0 ? 1 : scales->dims[0];
  uint64_t columns = scales->rank < 2 ? 1 : scales->dims[1];
  uint32_t block = f->quantization->block_rows;
  bool in_blocks = block > 1 && rows == (m->rows - 1) / block + 1;
  if (scales->rank > 2 || !is_stored_as(scales, dtypes)) {
    return wrong_shape(f, scales, "scales");
  }
  m->block_rows = in_blocks ? block : 1;
  bool in_rows = rows == m->rows || (rows == 1 && columns == 1);
  bool wants_blocks = block > 1 && f->quantization->is_sure;
  if (!in_blocks && (!in_rows || wants_blocks)) {
    return wrong_shape(f, scales, "a scale a tensor, a row, a group or a block");
  }
  m->scale_rows = (uint32_t)rows;
  m->scale_columns = (uint32_t)columns;
  return set_groups(f, columns, offsets);
}

// --- spellings -----------------------------------------------------------------------------------

#define FLOAT_SCALES "F32 F16 BF16"

static mgl_status find_e4m3(finder *f) {
  mgl_packed_matrix *m = f->matrix;
  bool inverse = take(f, ".weight_scale_inv") != NULL;
  MGL_TRY(need(f, inverse ? ".weight_scale_inv" : ".weight_scale", &m->scales));
  MGL_TRY(set_size(f, m->codes.dims[0], m->codes.dims[1]));
  m->form.dtype = MGL_DTYPE_E4M3;
  m->read = mgl_packed_read_by.bytes;
  return set_scales(f, FLOAT_SCALES " F8_E8M0 U8", false);
}

// The zero points beside ".weight_scale"; NULL: there are none, and config.json says of none.
static mgl_status find_zeros(finder *f, const mgl_stored_tensor **out) {
  mgl_stored_tensor zeros;
  *out = take(f, ".weight_zero_point");
  return *out == NULL && f->quantization->has_zeros ? need(f, ".weight_zero_point", &zeros)
                                                    : MGL_OK;
}

static mgl_status find_i8(finder *f) {
  mgl_packed_matrix *m = f->matrix;
  const mgl_stored_tensor *zeros = NULL;
  MGL_TRY(find_zeros(f, &zeros));
  MGL_TRY(need(f, ".weight_scale", &m->scales));
  MGL_TRY(set_size(f, m->codes.dims[0], m->codes.dims[1]));
  m->form.dtype = MGL_DTYPE_I8;
  m->read = mgl_packed_read_by.bytes;
  MGL_TRY(set_scales(f, FLOAT_SCALES, zeros != NULL));
  if (zeros != NULL) {
    m->zeros = *zeros;
    if (!is_stored_as(zeros, "I8") || zeros->bytes != (uint64_t)m->scale_rows * m->scale_columns ||
        m->block_rows != 1) {
      return wrong_shape(f, zeros, "a zero point I8 for each scale");
    }
  }
  return MGL_OK;
}

// The two sizes in "weight_shape".
static mgl_status read_shape(finder *f, uint64_t *out_rows, uint64_t *out_k) {
  mgl_stored_tensor shape;
  uint64_t sizes[2] = {0};
  MGL_TRY(need(f, ".weight_shape", &shape));
  if (shape.rank != 1 || shape.dims[0] != 2 || !is_stored_as(&shape, "I64 I32")) {
    return wrong_shape(f, &shape, "[rows, columns] as I64");
  }
  for (size_t i = 0; i < 2; i++) {
    size_t bytes = shape.bytes / 2;
    for (size_t b = 0; b < bytes; b++) {
      sizes[i] |= (uint64_t)((const unsigned char *)shape.data)[i * bytes + b] << 8 * b;
    }
  }
  *out_rows = sizes[0];
  *out_k = sizes[1];
  return MGL_OK;
}

// Refuses an order of columns other than group after group.
static mgl_status check_order(finder *f, const char *suffix) {
  const mgl_stored_tensor *order = take(f, suffix);
  mgl_packed_matrix *m = f->matrix;
  if (order == NULL) {
    mgl_stored_tensor missing;
    return f->quantization->has_order ? need(f, suffix, &missing) : MGL_OK;
  }
  if (order->rank != 1 || order->dims[0] != m->k || !is_stored_as(order, "I32")) {
    return wrong_shape(f, order, "a group I32 for each column");
  }
  for (uint32_t i = 0; i < m->k; i++) {
    const unsigned char *b = (const unsigned char *)order->data + 4 * (size_t)i;
    uint32_t group = b[0] | (uint32_t)b[1] << 8 | (uint32_t)b[2] << 16 | (uint32_t)b[3] << 24;
    if (group >= m->groups) {
      return mgl_error_set(f->err, MGL_ERR_FORMAT,
                           "%s: tensor \"%s\": column %u: expected a group below %u, found %u",
                           m->where, order->name, i, m->groups, group);
    }
    if (group != i / m->form.group) {
      return mgl_error_set(f->err, MGL_ERR_UNSUPPORTED,
                           "%s: tensor \"%s\": columns are ordered by their activations "
                           "(desc_act, actorder), which is not supported yet: column %u is in "
                           "group %u",
                           m->where, order->name, i, group);
    }
  }
  return MGL_OK;
}

static mgl_status find_words(finder *f) {
  mgl_packed_matrix *m = f->matrix;
  uint64_t rows = 0, k = 0;
  const mgl_stored_tensor *zeros = NULL;
  MGL_TRY(find_zeros(f, &zeros));
  MGL_TRY(need(f, ".weight_scale", &m->scales));
  MGL_TRY(read_shape(f, &rows, &k));
  MGL_TRY(set_size(f, rows, k));
  m->bits = is_shape(&m->codes, rows, (k + 7) / 8) ? 4 : 8;
  if (!is_shape(&m->codes, rows, (k * m->bits + 31) / 32)) {
    return wrong_shape(f, &m->codes, "4 or 8 bits an element");
  }
  m->form.dtype = m->bits == 4 ? MGL_DTYPE_I4 : MGL_DTYPE_I8;
  m->read = mgl_packed_read_by.words;
  MGL_TRY(set_scales(f, FLOAT_SCALES, zeros != NULL));
  if (zeros != NULL) {
    m->zeros = *zeros;
    if (!is_stored_as(zeros, "I32") || m->block_rows != 1 || m->scale_rows != rows ||
        !is_shape(zeros, (rows * m->bits + 31) / 32, m->groups)) {
      return wrong_shape(f, zeros, "zero points packed along the rows, for each scale");
    }
  }
  return check_order(f, ".weight_g_idx");
}

// `global`: suffix of the scale of the whole matrix, NULL: there is none.
static mgl_status find_floats(finder *f, const char *global, const char *scale_dtypes,
                              uint32_t group) {
  mgl_packed_matrix *m = f->matrix;
  if (global != NULL) {
    MGL_TRY(need(f, global, &m->global));
    if (m->global.bytes != sizeof(float) || !is_stored_as(&m->global, "F32")) {
      return wrong_shape(f, &m->global, "one F32");
    }
  }
  MGL_TRY(set_size(f, m->codes.dims[0], 2 * m->codes.dims[1]));
  m->form.dtype = MGL_DTYPE_E2M1;
  m->read = mgl_packed_read_by.floats;
  if (!is_shape(&m->scales, m->rows, (m->k + group - 1) / group)) {
    return wrong_shape(f, &m->scales, group == 16 ? "a scale for 16" : "a scale for 32");
  }
  return set_scales(f, scale_dtypes, false);
}

static mgl_status find_packed_floats(finder *f) {
  mgl_packed_matrix *m = f->matrix;
  MGL_TRY(need(f, ".weight_scale", &m->scales));
  if (is_stored_as(&m->scales, "F8_E4M3")) {
    return find_floats(f, ".weight_global_scale", "F8_E4M3", 16);
  }
  return find_floats(f, NULL, "U8 F8_E8M0", 32);
}

static mgl_status find_modelopt_floats(finder *f) {
  MGL_TRY(need(f, ".weight_scale", &f->matrix->scales));
  return find_floats(f, ".weight_scale_2", "F8_E4M3", 16);
}

// Whether all zero points are the middle, so that they need no offsets.
static bool zeros_are_middle(const mgl_packed_matrix *m) {
  const unsigned char *bytes = m->zeros.data;
  uint32_t middle = (1u << (m->bits - 1)) - m->zero_shift;
  unsigned expected = m->bits == 4 ? middle | middle << 4 : middle;
  for (uint64_t i = 0; i < m->zeros.bytes; i++) {
    if (bytes[i] != expected) {
      return false;
    }
  }
  return true;
}

static mgl_status find_transposed(finder *f) {
  mgl_packed_matrix *m = f->matrix;
  bool is_awq = f->quantization->method == MGL_QUANT_AWQ;
  if (!is_awq && f->quantization->method != MGL_QUANT_GPTQ) {
    return mgl_error_set(f->err, MGL_ERR_UNSUPPORTED,
                         "%s: tensor \"%s\": config.json has no \"quantization_config\" that says "
                         "how it is written: expected \"quant_method\" gptq or awq",
                         m->where, m->codes.name);
  }
  m->bits = f->quantization->bits;
  uint32_t in_word = 32 / m->bits;
  MGL_TRY(need(f, ".qzeros", &m->zeros));
  MGL_TRY(need(f, ".scales", &m->scales));
  MGL_TRY(set_size(f, is_awq ? m->codes.dims[1] * in_word : m->codes.dims[1],
                   is_awq ? m->codes.dims[0] : m->codes.dims[0] * in_word));
  m->form.dtype = m->bits == 4 ? MGL_DTYPE_I4 : MGL_DTYPE_I8;
  m->read = is_awq ? mgl_packed_read_by.awq : mgl_packed_read_by.gptq;
  m->zero_shift = f->quantization->zeros_less_one ? 1 : 0;
  uint64_t groups = m->scales.rank == 2 ? m->scales.dims[0] : 0;
  if (!is_shape(&m->scales, groups, m->rows) || !is_stored_as(&m->scales, FLOAT_SCALES)) {
    return wrong_shape(f, &m->scales, "scales [groups, rows]");
  }
  if (!is_shape(&m->zeros, groups, (m->rows + in_word - 1) / in_word) || m->rows % in_word != 0 ||
      !is_stored_as(&m->zeros, "I32")) {
    return wrong_shape(f, &m->zeros, "zero points I32, packed along the rows, for each scale");
  }
  MGL_TRY(set_groups(f, groups, !zeros_are_middle(m)));
  return check_order(f, ".g_idx");
}

static const struct spelling {
  const char *suffix, *dtype;  // of the tensor that leads
  mgl_status (*find)(finder *f);
} spellings[] = {
    {".weight", "F8_E4M3", find_e4m3},
    {".weight", "I8", find_i8},
    {".weight", "U8", find_modelopt_floats},
    {".weight_packed", "I32", find_words},
    {".weight_packed", "U8", find_packed_floats},
    {".qweight", "I32", find_transposed},
};

static const struct spelling *spelling_of(const mgl_stored_tensor *tensor, size_t *out_stem) {
  for (size_t i = 0; i < sizeof spellings / sizeof *spellings; i++) {
    if (tensor->rank == 2 && strcmp(tensor->stored_dtype, spellings[i].dtype) == 0 &&
        has_suffix(tensor->name, spellings[i].suffix, out_stem)) {
      return &spellings[i];
    }
  }
  return NULL;
}

// --- what is left over ---------------------------------------------------------------------------

// Scales of activations and of a KV cache in 8 bits: weights mean the same without them.
static bool is_of_activations(const char *name) {
  static const char *const suffixes[] = {
      ".input_scale",      ".input_scale_ub", ".input_global_scale",
      ".input_zero_point", ".output_scale",   ".q_scale",
      ".k_scale",          ".v_scale",        ".kv_scale",
      ".prob_scale",       ".q_zero_point",   ".k_zero_point",
      ".v_zero_point"};
  size_t stem = 0;
  for (size_t i = 0; i < sizeof suffixes / sizeof *suffixes; i++) {
    if (has_suffix(name, suffixes[i], &stem)) {
      return true;
    }
  }
  return false;
}

static mgl_status refuse_left_over(const finder *f) {
  static const char *const words[] = {"scale",   "zero",   "g_idx",  "qweight", "_packed",
                                      "_blocks", "absmax", "quant_", "codebook"};
  size_t count = mgl_checkpoint_tensor_count(f->checkpoint);
  for (size_t i = 0; i < count; i++) {
    const char *name = mgl_checkpoint_at(f->checkpoint, i)->name;
    for (size_t w = 0; w < sizeof words / sizeof *words && !f->ticked[i]; w++) {
      if (strstr(name, words[w]) != NULL && !is_of_activations(name)) {
        return mgl_error_set(f->err, MGL_ERR_UNSUPPORTED,
                             "%s: tensor \"%s\" (%s) belongs to a quantised weight in a way that "
                             "is not known; the answer would be wrong without it",
                             mgl_checkpoint_path_of(f->checkpoint, name), name,
                             mgl_checkpoint_at(f->checkpoint, i)->stored_dtype);
      }
    }
  }
  return MGL_OK;
}

// --- all of them ---------------------------------------------------------------------------------

// Counts what leads a spelling, and the bytes of the names.
static size_t count_matrices(const mgl_checkpoint *checkpoint, size_t *out_name_bytes) {
  size_t count = 0, stem = 0;
  *out_name_bytes = 0;
  for (size_t i = 0; i < mgl_checkpoint_tensor_count(checkpoint); i++) {
    if (spelling_of(mgl_checkpoint_at(checkpoint, i), &stem) != NULL) {
      *out_name_bytes += stem + sizeof ".weight";
      count++;
    }
  }
  return count;
}

static mgl_status find_matrices(finder *f, mgl_packed_matrix *matrices, char *names) {
  for (size_t i = 0; i < mgl_checkpoint_tensor_count(f->checkpoint); i++) {
    const mgl_stored_tensor *lead = mgl_checkpoint_at(f->checkpoint, i);
    size_t stem = 0;
    const struct spelling *spelling = spelling_of(lead, &stem);
    if (spelling == NULL) {
      continue;
    }
    f->matrix = matrices++;
    f->ticked[i] = true;
    (void)snprintf(f->module, sizeof f->module, "%.*s", (int)stem, lead->name);
    *f->matrix = (mgl_packed_matrix){
        .name = names,
        .where = mgl_checkpoint_path_of(f->checkpoint, lead->name),
        .codes = *lead,
        .block_rows = 1,
    };
    char *name = names;
    names += sprintf(names, "%s.weight", f->module) + 1;
    const mgl_stored_tensor *plain = mgl_checkpoint_raw(f->checkpoint, name);
    if (plain != NULL && plain != lead) {
      return mgl_error_set(f->err, MGL_ERR_FORMAT,
                           "%s: weight \"%s\" is there twice: expected \"%s\" or \"%s\"",
                           f->matrix->where, name, lead->name, plain->name);
    }
    MGL_TRY(spelling->find(f));
  }
  return MGL_OK;
}

mgl_status mgl_packed_weights_name(const mgl_quantization *quantization, mgl_checkpoint *checkpoint,
                                   mgl_error *err) {
  size_t name_bytes = 0;
  size_t count = count_matrices(checkpoint, &name_bytes);
  size_t tensors = mgl_checkpoint_tensor_count(checkpoint);
  finder f = {.quantization = quantization, .checkpoint = checkpoint, .err = err};
  mgl_packed_matrix *matrices = mgl_alloc(count * sizeof *matrices + name_bytes);
  f.ticked = mgl_alloc_zeroed(tensors, sizeof *f.ticked);
  mgl_status status = MGL_OK;
  if (matrices == NULL || f.ticked == NULL) {
    status = mgl_error_set(err, MGL_ERR_MEMORY, "out of memory for %zu quantised weights", count);
  } else {
    status = find_matrices(&f, matrices, (char *)(matrices + count));
  }
  if (status == MGL_OK) {
    status = refuse_left_over(&f);
  }
  mgl_free(f.ticked);
  if (status != MGL_OK || count == 0) {
    mgl_free(matrices);
    return status;
  }
  return mgl_checkpoint_add_packed(checkpoint, matrices, count, err);
}
