// A checkpoint: a model's weights as one table of named tensors, whatever files they are in.
//
// safetensors.h and gguf_weights.h open one. Files are mapped read-only, and a tensor that is
// stored as the kernels want it is used where it lies.
#ifndef MGL_MODEL_CHECKPOINT_H
#define MGL_MODEL_CHECKPOINT_H

#include <stddef.h>
#include <stdint.h>

#include "base/dtype.h"
#include "base/status.h"

enum {
  MGL_TENSOR_MAX_RANK = 8,
  MGL_TENSOR_MAX_NAME_BYTES = 512,
  MGL_CHECKPOINT_MAX_TENSORS = 1 << 18,
};

// One tensor of a checkpoint, row-major. Borrowed from its mgl_checkpoint, valid until that closes.
typedef struct mgl_stored_tensor {
  const char *name;
  mgl_dtype dtype;  // F32, F16 or BF16; a tensor of another dtype is an error only when looked up
  const char *stored_dtype;  // as the file names it, e.g. "F8_E4M3"
  // A quantised matrix, which is found under the name of what it stands for: dtype is its code, and
  // data is NULL. Its rows are read by packed_weights.h; row 0 is row first_row of `packed`. So are
  // those of a plain matrix that the file has in another order; dtype is then a plain one.
  const struct mgl_packed_matrix *packed;
  uint64_t first_row;
  uint32_t rank;
  uint64_t dims[MGL_TENSOR_MAX_RANK];
  const void *data;  // aligned only as well as the file has it: 1 byte in the worst case
  uint64_t bytes;
} mgl_stored_tensor;

typedef struct mgl_checkpoint mgl_checkpoint;

void mgl_checkpoint_close(mgl_checkpoint *checkpoint);  // NULL is fine

// Looks a tensor up by name; error if it is missing or of an unsupported dtype.
mgl_status mgl_checkpoint_find(const mgl_checkpoint *checkpoint, const char *name,
                               const mgl_stored_tensor **out, mgl_error *err);
// True if a tensor of that name exists, of whatever dtype.
int mgl_checkpoint_has(const mgl_checkpoint *checkpoint, const char *name);

// Rows [first, first + rows) of a stored matrix of total_rows rows, under a name of their own; or
// of matrices behind each other in one tensor [n,N,K], whose rows are then n * N.
typedef struct mgl_tensor_part {
  const char *matrix;
  const char *name;
  uint64_t first, rows, total_rows;
} mgl_tensor_part;

// Makes parts of matrices found by their names, as if they were stored so. A matrix that is missing
// or has another number of rows is an error; so is a name that is there already.
mgl_status mgl_checkpoint_add_parts(mgl_checkpoint *checkpoint, const mgl_tensor_part *parts,
                                    size_t count, mgl_error *err);

// The i-th tensor in the order of names, of any dtype; and the one of a name, or NULL.
const mgl_stored_tensor *mgl_checkpoint_at(const mgl_checkpoint *checkpoint, size_t i);
const mgl_stored_tensor *mgl_checkpoint_raw(const mgl_checkpoint *checkpoint, const char *name);
// Where a tensor of the checkpoint is, for messages.
const char *mgl_checkpoint_path_of(const mgl_checkpoint *checkpoint, const char *name);

// Takes matrices (one block of mgl_alloc, with their names behind them) and finds each under its
// name from now on, in the place of a tensor that has it.
mgl_status mgl_checkpoint_add_packed(mgl_checkpoint *checkpoint, struct mgl_packed_matrix *matrices,
                                     size_t count, mgl_error *err);

size_t mgl_checkpoint_tensor_count(const mgl_checkpoint *checkpoint);
uint64_t mgl_checkpoint_bytes(const mgl_checkpoint *checkpoint);  // sum over all tensors

#endif
