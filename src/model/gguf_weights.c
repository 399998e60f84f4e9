// Names, forms and rows of a GGUF file's tensors.
#include "model/gguf_weights.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "model/checkpoint_parts.h"
#include "model/gguf_blocks.h"
#include "model/packed_weights.h"

static const struct {
  const char *own, *name;
} whole_names[] = {{"token_embd.weight", "model.embed_tokens.weight"},
                   {"output.weight", "lm_head.weight"},
                   {"output_norm.weight", "model.norm.weight"}};

// Behind "blk.LAYER." and "model.layers.LAYER.", before ".weight" or ".bias".
static const struct {
  const char *own, *name;
} layer_names[] = {{"attn_norm", "input_layernorm"},    {"ffn_norm", "post_attention_layernorm"},
                   {"attn_q", "self_attn.q_proj"},      {"attn_k", "self_attn.k_proj"},
                   {"attn_v", "self_attn.v_proj"},      {"attn_output", "self_attn.o_proj"},
                   {"attn_q_norm", "self_attn.q_norm"}, {"attn_k_norm", "self_attn.k_norm"},
                   {"ffn_gate", "mlp.gate_proj"},       {"ffn_up", "mlp.up_proj"},
                   {"ffn_down", "mlp.down_proj"}};

// What carries no weights of ours: factors of the rope, which the configuration has.
static const char *const other_names[] = {"rope_freqs.weight"};

enum { NAME_BYTES = 96 };  // of the longest name of a folder

typedef struct binder {
  const mgl_gguf *gguf;
  const mgl_config *config;
  mgl_checkpoint *checkpoint;
  mgl_packed_matrix *matrix;  // the next one
  char *names;                // where the next name goes
  mgl_error *err;
} binder;

// --- names ---------------------------------------------------------------------------------------

// "blk.LAYER.PART.weight" to a folder's name; false: it is none.
static bool name_of_layer(mgl_gguf_string own, uint32_t layers, char out[NAME_BYTES]) {
  char text[MGL_GGUF_MAX_NAME_BYTES + 1], part[MGL_GGUF_MAX_NAME_BYTES + 1], end[8];
  char digits[6];
  int used = 0;
  (void)snprintf(text, sizeof text, "%.*s", (int)own.bytes, own.text);
  if (sscanf(text, "blk.%5[0-9].%128[a-z_].%7[a-z]%n", digits, part, end, &used) != 3 ||
      text[used] != 0 || strtoul(digits, NULL, 10) >= layers ||
      (strcmp(end, "weight") != 0 && strcmp(end, "bias") != 0)) {
    return false;
  }
  for (size_t i = 0; i < sizeof layer_names / sizeof *layer_names; i++) {
    if (strcmp(part, layer_names[i].own) == 0) {
      (void)snprintf(out, NAME_BYTES, "model.layers.%lu.%s.%s", strtoul(digits, NULL, 10),
                     layer_names[i].name, end);
      return true;
    }
  }
  return false;
}

static bool name_of(mgl_gguf_string own, uint32_t layers, char out[NAME_BYTES]) {
  for (size_t i = 0; i < sizeof whole_names / sizeof *whole_names; i++) {
    if (mgl_gguf_string_is(own, whole_names[i].own)) {
      (void)snprintf(out, NAME_BYTES, "%s", whole_names[i].name);
      return true;
    }
  }
  return name_of_layer(own, layers, out);
}

static bool is_other(mgl_gguf_string own) {
  for (size_t i = 0; i < sizeof other_names / sizeof *other_names; i++) {
    if (mgl_gguf_string_is(own, other_names[i])) {
      return true;
    }
  }
  return false;
}

static bool ends_with(const char *text, const char *end) {
  size_t bytes = strlen(text), end_bytes = strlen(end);
  return bytes >= end_bytes && strcmp(text + bytes - end_bytes, end) == 0;
}

// Whether the model has a place for it: an extra bias or norm would change the answer.
static bool is_used(const mgl_config *config, const char *name) {
  bool is_bias = ends_with(name, ".bias");
  if (ends_with(name, "q_norm.weight") || ends_with(name, "k_norm.weight")) {
    return config->qk_norm;
  }
  if (is_bias && strstr(name, ".mlp.") != NULL) {
    return config->mlp_bias;
  }
  if (is_bias && strstr(name, ".self_attn.o_proj") != NULL) {
    return config->output_bias;
  }
  return !is_bias || (config->qkv_bias && ends_with(name, "_proj.bias"));
}

// --- rows ----------------------------------------------------------------------------------------

// Where the file has a row: see the header.
static const unsigned char *row_at(const mgl_packed_matrix *m, uint64_t row) {
  uint64_t bytes = m->codes.bytes / m->rows;
  if (m->turned_rows != 0) {
    uint64_t in_head = row % m->turned_rows, half = m->turned_rows / 2;
    row += (in_head % half * 2 + in_head / half) - in_head;
  }
  return (const unsigned char *)m->codes.data + row * bytes;
}

static void read_blocks(const mgl_packed_matrix *m, uint64_t first, uint32_t count,
                        const mgl_code_rows *out) {
  const mgl_gguf_coding *coding = m->coding;
  const uint32_t groups = coding->block / m->form.group, blocks = m->k / coding->block;
  const uint64_t block_bytes = m->codes.bytes / m->rows / blocks;
  for (uint32_t r = 0; r < count; r++) {
    const unsigned char *row = row_at(m, first + r);
    for (uint32_t b = 0; b < blocks; b++) {
      size_t group = (size_t)r * m->groups + b * groups;
      coding->decode(row + b * block_bytes, out->codes + (size_t)r * m->k + b * coding->block,
                     out->scales + group, out->offsets + group);
    }
  }
}

static void copy_rows(const mgl_packed_matrix *m, uint64_t first, uint32_t count, void *out) {
  const uint64_t bytes = m->codes.bytes / m->rows;
  for (uint32_t r = 0; r < count; r++) {
    memcpy((unsigned char *)out + r * bytes, row_at(m, first + r), bytes);
  }
}

// --- one tensor ----------------------------------------------------------------------------------

static mgl_status refuse(const binder *b, const mgl_gguf_tensor *tensor, const char *why) {
  return mgl_error_set(b->err, MGL_ERR_UNSUPPORTED, "%s: tensor \"%.*s\" (%s)%s", b->gguf->where,
                       (int)tensor->name.bytes, tensor->name.text, tensor->type->name, why);
}

static bool is_plain(const mgl_gguf_type *type, mgl_dtype *out) {
  static const mgl_dtype dtypes[] = {MGL_DTYPE_F32, MGL_DTYPE_F16, MGL_DTYPE_BF16};
  static const char *const names[] = {"F32", "F16", "BF16"};
  for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
    if (strcmp(type->name, names[i]) == 0) {
      *out = dtypes[i];
      return true;
    }
  }
  return false;
}

// Appends a tensor under that name, as it lies in the file.
static mgl_tensor_entry *append(binder *b, const mgl_gguf_tensor *tensor, const char *name) {
  static const mgl_stored_dtype stored = {.name = "GGUF", .supported = true};
  mgl_tensor_entry *entry = &b->checkpoint->entries[b->checkpoint->entry_count++];
  size_t bytes = strlen(name) + 1;
  *entry = (mgl_tensor_entry){.tensor = {.name = b->names,
                                         .stored_dtype = tensor->type->name,
                                         .rank = tensor->rank,
                                         .data = tensor->data,
                                         .bytes = tensor->bytes},
                              .stored = &stored};
  memcpy(entry->tensor.dims, tensor->dims, tensor->rank * sizeof *tensor->dims);
  (void)is_plain(tensor->type, &entry->tensor.dtype);
  memcpy(b->names, name, bytes);
  b->names += bytes;
  return entry;
}

// Makes the entry one of a packed matrix. coding: NULL for a plain type.
static mgl_status pack(binder *b, const mgl_gguf_tensor *tensor, mgl_tensor_entry *entry,
                       const mgl_gguf_coding *coding) {
  const uint64_t rows = tensor->dims[0], k = tensor->dims[1];
  mgl_stored_tensor *stored = &entry->tensor;
  if (rows == 0 || k == 0 || rows > INT32_MAX || k > INT32_MAX) {
    return refuse(b, tensor, ": expected 1 to 2^31 - 1 rows and columns");
  }
  mgl_packed_matrix *m = b->matrix++;
  *m = (mgl_packed_matrix){.name = stored->name,
                           .where = b->checkpoint->where,
                           .rows = rows,
                           .k = (uint32_t)k,
                           .form = mgl_form_plain(stored->dtype),
                           .signed_scales = true,
                           .codes = *stored,
                           .coding = coding};
  if (coding == NULL) {
    m->make = copy_rows;
  } else {
    m->form = coding->form;
    m->groups = m->k / m->form.group;
    m->read = read_blocks;
  }
  stored->packed = m;
  stored->dtype = m->form.dtype;
  stored->data = NULL;
  stored->bytes = 0;
  return MGL_OK;
}

// Whether the converter interleaved its rows.
static bool is_turned(const binder *b, const char *name) {
  return b->config->family == MGL_FAMILY_LLAMA &&
         (ends_with(name, "self_attn.q_proj.weight") || ends_with(name, "self_attn.k_proj.weight"));
}

static mgl_status add_tensor(binder *b, const mgl_gguf_tensor *tensor, const char *name) {
  const mgl_gguf_coding *coding = mgl_gguf_coding_of(tensor->type);
  const bool turned = is_turned(b, name);
  mgl_dtype dtype;
  if (coding == NULL && !is_plain(tensor->type, &dtype)) {
    return refuse(b, tensor,
                  ": its type is not supported: expected F32, F16, BF16, Q8_0, Q4_0, Q4_1, Q5_0, "
                  "Q5_1, Q2_K to Q6_K, IQ4_NL, IQ4_XS or MXFP4");
  }
  if (tensor->rank != 2 && coding != NULL) {
    return refuse(b, tensor, ": expected a quantised tensor to be a matrix");
  }
  mgl_tensor_entry *entry = append(b, tensor, name);
  if (coding == NULL && !(turned && tensor->rank == 2)) {
    return MGL_OK;
  }
  MGL_TRY(pack(b, tensor, entry, coding));
  if (turned && tensor->dims[0] % b->config->head_dim != 0) {
    return refuse(b, tensor, ": expected rows of whole heads");
  }
  b->matrix[-1].turned_rows = turned ? b->config->head_dim : 0;
  return MGL_OK;
}

// --- all of them ---------------------------------------------------------------------------------

static mgl_status add_tensors(binder *b) {
  for (size_t i = 0; i < b->gguf->tensor_count; i++) {
    const mgl_gguf_tensor *tensor = &b->gguf->tensors[i];
    char name[NAME_BYTES];
    if (is_other(tensor->name)) {
      continue;
    }
    if (!name_of(tensor->name, b->config->layer_count, name) || !is_used(b->config, name)) {
      return refuse(b, tensor,
                    " has no place in this model; the answer would be wrong "
                    "without it");
    }
    if (b->config->family == MGL_FAMILY_LLAMA &&
        (ends_with(name, "q_proj.bias") || ends_with(name, "k_proj.bias"))) {
      return refuse(b, tensor, ": biases of q and k are not supported in this architecture");
    }
    MGL_TRY(add_tensor(b, tensor, name));
  }
  return mgl_checkpoint_sort(b->checkpoint, b->err);
}

static mgl_status fill(binder *b) {
  mgl_checkpoint *c = b->checkpoint;
  const size_t most = b->gguf->tensor_count;
  void *entries = NULL;
  MGL_TRY(mgl_grow(&entries, &c->entry_capacity, most, sizeof *c->entries, b->err));
  c->entries = entries;
  c->bytes = b->gguf->data_bytes;
  c->packed = mgl_alloc_zeroed(most, sizeof *c->packed);
  c->files[0].names = mgl_alloc(most * NAME_BYTES);
  b->matrix = c->packed;
  b->names = c->files[0].names;
  if (b->matrix == NULL || b->names == NULL) {
    return mgl_checkpoint_no_memory(c->where, b->err);
  }
  return add_tensors(b);
}

mgl_status mgl_gguf_weights_open(const mgl_gguf *gguf, const mgl_config *config, mgl_file_map *map,
                                 mgl_checkpoint **out, mgl_error *err) {
  binder b = {.gguf = gguf, .config = config, .err = err};
  *out = NULL;
  mgl_status status = mgl_checkpoint_create(gguf->where, &b.checkpoint, err);
  if (status == MGL_OK) {
    status = mgl_checkpoint_append_file(b.checkpoint, gguf->where, err);
  }
  if (status == MGL_OK) {
    b.checkpoint->files[0].map = *map;
    *map = (mgl_file_map){0};
    status = fill(&b);
  }
  if (status != MGL_OK) {
    mgl_file_map_close(map);
    mgl_checkpoint_close(b.checkpoint);
    return status;
  }
  *out = b.checkpoint;
  return MGL_OK;
}

mgl_form mgl_gguf_layer_form(const mgl_gguf *gguf, const mgl_gguf_type **type) {
  const mgl_gguf_tensor *tensor = mgl_gguf_find_tensor(gguf, "blk.0.ffn_gate.weight");
  const mgl_gguf_coding *coding = tensor == NULL ? NULL : mgl_gguf_coding_of(tensor->type);
  *type = tensor == NULL ? NULL : tensor->type;
  return coding == NULL ? mgl_form_plain(MGL_DTYPE_BF16) : coding->form;
}
