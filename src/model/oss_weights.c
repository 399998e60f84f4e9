// One packed matrix for each of gate, up and down of all experts of a layer, and of their biases;
// then the rows of each expert are named as parts of them. Rejected: tensors of a rank of their own
// that the loader would have to know; a packed matrix already is "rows that are made when asked
// for".
#include "model/oss_weights.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "model/expert_weights.h"
#include "model/packed_weights.h"

enum {
  NAME_BYTES = 96,
  PARTS = 3,  // gate, up and down
  MATRICES = 2 * PARTS,
  BLOCK_BYTES = MGL_MXFP4_GROUP / 2,
  ROWS_AT_ONCE = 32,  // neighbours in a stored row, read together
};

typedef struct oss_namer {
  const mgl_config *config;
  mgl_checkpoint *checkpoint;
  mgl_packed_matrix *matrices;  // [layers, MATRICES], behind which their names stand
  char (*names)[NAME_BYTES];
  mgl_error *err;
} oss_namer;

// --- making rows of plain tensors ----------------------------------------------------------------

// Rows of E matrices [N,K], stored as [E,K,N * row_step]: row n is column n * row_step + row_first.
static void make_transposed(const mgl_packed_matrix *m, uint64_t first, uint32_t count, void *out) {
  const size_t bytes = mgl_dtype_bytes(m->form.dtype);
  const uint64_t rows = m->block_rows;  // of an expert
  const uint64_t columns = rows * m->row_step;
  for (uint64_t done = 0, some; done < count; done += some) {
    const uint64_t row = (first + done) % rows, expert = (first + done) / rows;
    some = rows - row < count - done ? rows - row : count - done;
    some = some < ROWS_AT_ONCE ? some : ROWS_AT_ONCE;
    for (uint64_t i = 0; i < m->k; i++) {
      const unsigned char *from = (const unsigned char *)m->codes.data +
                                  ((expert * m->k + i) * columns + m->row_first) * bytes;
      for (uint64_t r = 0; r < some; r++) {
        memcpy((unsigned char *)out + ((done + r) * m->k + i) * bytes,
               from + (row + r) * m->row_step * bytes, bytes);
      }
    }
  }
}

// --- tensors and their shapes --------------------------------------------------------------------

static const mgl_stored_tensor *find(const oss_namer *n, uint32_t layer, const char *name,
                                     char text[NAME_BYTES]) {
  (void)snprintf(text, NAME_BYTES, "model.layers.%u.mlp.experts.%.40s", layer, name);
  return mgl_checkpoint_raw(n->checkpoint, text);
}

// Refuses a tensor that is missing, of another shape, or of another dtype than `dtypes` says.
static mgl_status need(const oss_namer *n, uint32_t layer, const char *name, const char *dtypes,
                       uint32_t rank, const uint64_t *dims, mgl_stored_tensor *out) {
  char text[NAME_BYTES], found[128] = "", expected[128] = "";
  const mgl_stored_tensor *tensor = find(n, layer, name, text);
  if (tensor == NULL) {
    return mgl_error_set(n->err, MGL_ERR_FORMAT, "tensor \"%s\" is missing from %s (%zu tensors)",
                         text, mgl_checkpoint_path_of(n->checkpoint, text),
                         mgl_checkpoint_tensor_count(n->checkpoint));
  }
  bool fits = tensor->rank == rank && strstr(dtypes, tensor->stored_dtype) != NULL;
  for (uint32_t i = 0, used = 0; i < rank; i++) {
    fits = fits && tensor->dims[i] == dims[i];
    used += (uint32_t)snprintf(expected + used, sizeof expected - used, "%s%" PRIu64,
                               i == 0 ? "" : ", ", dims[i]);
  }
  for (uint32_t i = 0, used = 0; i < tensor->rank && i < 4; i++) {
    used += (uint32_t)snprintf(found + used, sizeof found - used, "%s%" PRIu64, i == 0 ? "" : ", ",
                               tensor->dims[i]);
  }
  if (!fits) {
    return mgl_error_set(n->err, MGL_ERR_FORMAT,
                         "%s: tensor \"%s\": config.json expects %s [%s], the file has %s [%s]",
                         mgl_checkpoint_path_of(n->checkpoint, text), text, dtypes, expected,
                         tensor->stored_dtype, found);
  }
  *out = *tensor;
  return MGL_OK;
}

// --- matrices ------------------------------------------------------------------------------------

typedef struct oss_part {
  const char *name, *stored;
  uint32_t row_step, row_first;
  uint64_t rows, k;  // of an expert
} oss_part;

static oss_part part_of(const mgl_config *config, uint32_t part) {
  const uint64_t hidden = config->hidden_size, inner = config->mixture.inner_size;
  static const char *const names[PARTS] = {"gate_proj", "up_proj", "down_proj"};
  const bool is_down = part == 2;
  return (oss_part){.name = names[part],
                    .stored = is_down ? "down_proj" : "gate_up_proj",
                    .row_step = is_down ? 1 : 2,
                    .row_first = is_down ? 0 : part,
                    .rows = is_down ? hidden : inner,
                    .k = is_down ? inner : hidden};
}

static mgl_status set_codes(const oss_namer *n, uint32_t layer, const oss_part *p,
                            mgl_packed_matrix *m) {
  char name[NAME_BYTES];
  if (p->k % MGL_MXFP4_GROUP != 0) {
    return mgl_error_set(n->err, MGL_ERR_UNSUPPORTED,
                         "%s: weights of experts in MXFP4: expected a multiple of %d columns, "
                         "config.json says %" PRIu64,
                         m->where, MGL_MXFP4_GROUP, p->k);
  }
  const uint64_t groups = p->k / MGL_MXFP4_GROUP;
  const uint64_t dims[] = {n->config->mixture.expert_count, p->rows * p->row_step, groups,
                           BLOCK_BYTES};
  (void)snprintf(name, sizeof name, "%s_blocks", p->stored);
  MGL_TRY(need(n, layer, name, "U8", 4, dims, &m->codes));
  (void)snprintf(name, sizeof name, "%s_scales", p->stored);
  MGL_TRY(need(n, layer, name, "U8", 3, dims, &m->scales));
  m->read = mgl_packed_read_by.floats;
  m->form = (mgl_form){.dtype = MGL_DTYPE_E2M1, .group = MGL_MXFP4_GROUP};
  m->bits = 4;
  m->groups = (uint32_t)groups;
  m->block_rows = 1;
  m->scale_rows = (uint32_t)(dims[0] * dims[1]);
  m->scale_columns = (uint32_t)groups;
  return MGL_OK;
}

static mgl_status set_plain(const oss_namer *n, uint32_t layer, const oss_part *p,
                            mgl_packed_matrix *m) {
  const uint64_t dims[] = {n->config->mixture.expert_count, p->k, p->rows * p->row_step};
  MGL_TRY(need(n, layer, p->stored, "BF16 F16 F32", 3, dims, &m->codes));
  m->make = make_transposed;
  m->form = mgl_form_plain(m->codes.dtype);
  m->block_rows = (uint32_t)p->rows;
  return MGL_OK;
}

static mgl_status set_bias(const oss_namer *n, uint32_t layer, const oss_part *p,
                           mgl_packed_matrix *m) {
  const uint64_t dims[] = {n->config->mixture.expert_count, p->rows * p->row_step};
  char name[NAME_BYTES];
  (void)snprintf(name, sizeof name, "%s_bias", p->stored);
  MGL_TRY(need(n, layer, name, "BF16 F16 F32", 2, dims, &m->codes));
  m->make = make_transposed;
  m->form = mgl_form_plain(m->codes.dtype);
  m->block_rows = (uint32_t)p->rows;
  m->k = 1;
  m->is_vector = true;
  return MGL_OK;
}

// Refuses experts that are there both ways.
static mgl_status find_form(const oss_namer *n, uint32_t layer, const oss_part *p,
                            bool *out_codes) {
  char plain[NAME_BYTES], codes[NAME_BYTES], name[NAME_BYTES];
  (void)snprintf(name, sizeof name, "%s_blocks", p->stored);
  const bool has_plain = find(n, layer, p->stored, plain) != NULL;
  *out_codes = find(n, layer, name, codes) != NULL;
  if (has_plain && *out_codes) {
    return mgl_error_set(n->err, MGL_ERR_FORMAT,
                         "%s: weight \"%s\" is there twice: expected it, or \"%s\"",
                         mgl_checkpoint_path_of(n->checkpoint, plain), plain, codes);
  }
  if (!has_plain && n->config->quantization.method == MGL_QUANT_MXFP4) {
    *out_codes = true;  // as config.json says; what is missing is said by that name
  }
  return MGL_OK;
}

static mgl_status set_matrices(const oss_namer *n, uint32_t layer, uint32_t part) {
  const size_t at = (size_t)layer * MATRICES + part;
  const oss_part p = part_of(n->config, part);
  mgl_packed_matrix *m = &n->matrices[at], *bias = &n->matrices[at + PARTS];
  bool is_codes = false;
  (void)snprintf(n->names[at], NAME_BYTES, "model.layers.%u.mlp.experts.%s.weight", layer, p.name);
  (void)snprintf(n->names[at + PARTS], NAME_BYTES, "model.layers.%u.mlp.experts.%s.bias", layer,
                 p.name);
  *m = (mgl_packed_matrix){.name = n->names[at],
                           .where = mgl_checkpoint_path_of(n->checkpoint, n->names[at]),
                           .rows = n->config->mixture.expert_count * p.rows,
                           .k = (uint32_t)p.k,
                           .row_step = p.row_step,
                           .row_first = p.row_first};
  *bias = *m;
  bias->name = n->names[at + PARTS];
  MGL_TRY(find_form(n, layer, &p, &is_codes));
  MGL_TRY(is_codes ? set_codes(n, layer, &p, m) : set_plain(n, layer, &p, m));
  MGL_TRY(set_bias(n, layer, &p, bias));
  m->where = mgl_checkpoint_path_of(n->checkpoint, m->codes.name);
  return MGL_OK;
}

// --- experts -------------------------------------------------------------------------------------

static mgl_status name_experts(const oss_namer *n) {
  const uint32_t experts = n->config->mixture.expert_count, layers = n->config->layer_count;
  const size_t count = (size_t)layers * experts * PARTS;
  mgl_tensor_part *parts = mgl_alloc_zeroed(count, sizeof *parts);
  char(*names)[NAME_BYTES] = mgl_alloc_zeroed(count, sizeof *names);
  mgl_status status = MGL_OK;
  if (parts == NULL || names == NULL) {
    status =
        mgl_error_set(n->err, MGL_ERR_MEMORY, "out of memory for the names of %zu matrices", count);
  }
  for (size_t i = 0; status == MGL_OK && i < count; i++) {
    const uint32_t part = (uint32_t)(i % PARTS), expert = (uint32_t)(i / PARTS % experts);
    const mgl_packed_matrix *m = &n->matrices[i / PARTS / experts * MATRICES + part];
    const uint64_t rows = m->rows / experts;
    mgl_expert_weight_name(m->name, expert, names[i], NAME_BYTES);
    parts[i] = (mgl_tensor_part){.matrix = m->name,
                                 .name = names[i],
                                 .first = expert * rows,
                                 .rows = rows,
                                 .total_rows = m->rows};
  }
  if (status == MGL_OK) {
    status = mgl_checkpoint_add_parts(n->checkpoint, parts, count, n->err);
  }
  mgl_free(parts);
  mgl_free(names);
  return status;
}

mgl_status mgl_oss_weights_name(const mgl_config *config, mgl_checkpoint *checkpoint,
                                mgl_error *err) {
  const size_t count = (size_t)config->layer_count * MATRICES;
  oss_namer n = {.config = config, .checkpoint = checkpoint, .err = err};
  n.matrices = mgl_alloc_zeroed(count, sizeof *n.matrices + NAME_BYTES);
  if (n.matrices == NULL) {
    return mgl_error_set(err, MGL_ERR_MEMORY, "out of memory for the weights of %u layers",
                         config->layer_count);
  }
  n.names = (char(*)[NAME_BYTES])(void *)(n.matrices + count);
  for (uint32_t i = 0; i < config->layer_count * PARTS; i++) {
    mgl_status status = set_matrices(&n, i / PARTS, i % PARTS);
    if (status != MGL_OK) {
      mgl_free(n.matrices);
      return status;
    }
  }
  MGL_TRY(mgl_checkpoint_add_packed(checkpoint, n.matrices, count, err));
  return name_experts(&n);
}
