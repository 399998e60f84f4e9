// Quantised matrices of a checkpoint: which tensors they are made of, and how their rows are read.
//
// Every spelling ends as the same thing: a matrix under the name that the plain one would have, of
// a form that the kernels have (base/form.h), whose rows can be had as codes, scales and offsets.
// Spellings are told apart by names, dtypes and shapes of tensors; packed_weights.c has them in a
// table, packed_rows.c has the reader of each. A tensor whose name says that it belongs to a
// quantised weight, and that no spelling reads, is an error: a scale left out is a wrong answer.
#ifndef MGL_MODEL_PACKED_WEIGHTS_H
#define MGL_MODEL_PACKED_WEIGHTS_H

#include <stddef.h>
#include <stdint.h>

#include "base/form.h"
#include "base/status.h"
#include "model/quantization.h"
#include "model/safetensors.h"

// Some rows of a matrix, as mgl_row_write takes them: codes [rows, k], the others [rows, groups].
typedef struct mgl_code_rows {
  uint8_t *codes;
  float *scales;
  float *offsets;  // untouched where the form has none
} mgl_code_rows;

typedef struct mgl_packed_matrix {
  const char *name;   // "model.layers.0.mlp.up_proj.weight"
  const char *where;  // the file, for messages
  // Reads rows [first, first + count) as they are stored; mgl_packed_read checks them.
  void (*read)(const struct mgl_packed_matrix *matrix, uint64_t first, uint32_t count,
               const mgl_code_rows *out);
  // Instead, of a plain form: makes the rows as they shall lie in memory.
  void (*make)(const struct mgl_packed_matrix *matrix, uint64_t first, uint32_t count, void *out);
  uint64_t rows;
  uint32_t k;
  uint32_t groups;  // of a row
  mgl_form form;
  bool signed_scales;  // scales may be negative
  mgl_stored_tensor codes, scales;
  mgl_stored_tensor zeros;  // with offsets; data NULL: none
  mgl_stored_tensor global;
  uint32_t block_rows;  // rows that share a scale
  uint32_t scale_rows, scale_columns;
  // gpt-oss: row r is stored as row r * row_step + row_first; 0: as row r. It is one column wide,
  // and found as a vector.
  uint32_t row_step, row_first;
  bool is_vector;
  uint32_t zero_shift;  // gptq: added to a stored zero point
  uint32_t bits;        // of a stored code
  // gguf: how its blocks are read (NULL: plain), and rows of a head that are interleaved (0: none).
  const struct mgl_gguf_coding *coding;
  uint32_t turned_rows;
} mgl_packed_matrix;

enum { MGL_PACKED_ROWS = 16 };  // that the readers like to be asked for

// Finds the quantised matrices of a checkpoint and names them in it. Refuses what is left over.
mgl_status mgl_packed_weights_name(const mgl_quantization *quantization, mgl_checkpoint *checkpoint,
                                   mgl_error *err);

// Makes rows [first, first + count) of a tensor that is packed, as base/form.h lays them out.
// Refuses scales and offsets that are not finite, negative scales where they make no sense, and
// codes that are NaN. Thread-safe.
mgl_status mgl_packed_rows(const mgl_stored_tensor *tensor, uint64_t first, uint32_t count,
                           void *out, mgl_error *err);

// The readers, for the table of packed_weights.c.
typedef struct mgl_packed_readers {
  void (*bytes)(const mgl_packed_matrix *, uint64_t, uint32_t, const mgl_code_rows *);
  void (*words)(const mgl_packed_matrix *, uint64_t, uint32_t, const mgl_code_rows *);
  void (*floats)(const mgl_packed_matrix *, uint64_t, uint32_t, const mgl_code_rows *);
  void (*gptq)(const mgl_packed_matrix *, uint64_t, uint32_t, const mgl_code_rows *);
  void (*awq)(const mgl_packed_matrix *, uint64_t, uint32_t, const mgl_code_rows *);
} mgl_packed_readers;
extern const mgl_packed_readers mgl_packed_read_by;

#endif
