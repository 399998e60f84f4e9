// What the CUDA source of a custom op sees, and what a launch of its kernel gets. One source for
// host and device.
//
// The first half is that of include/megalith.h, by its names: so one function can be compiled for
// the CPU and for a GPU. A host that has megalith.h does not include this
// (tests/unit/api/test_custom_call.c compares the two).
#ifndef MGL_TWIN_CUSTOM_CALL_H
#define MGL_TWIN_CUSTOM_CALL_H

#include <stddef.h>
#include <stdint.h>

enum {
  MEGALITH_MAX_TENSOR_DIMS = 4,
  MEGALITH_MAX_CUSTOM_INPUTS = 8,
  MEGALITH_MAX_CUSTOM_ATTRIBUTES = 4,
};

typedef enum megalith_dtype {
  MEGALITH_F32 = 0,
  MEGALITH_BF16 = 1,
  MEGALITH_F16 = 2,
  MEGALITH_I32 = 3,
} megalith_dtype;

typedef enum megalith_rows {
  MEGALITH_ROWS_FIXED = 0,
  MEGALITH_ROWS_TOKENS = 1,
  MEGALITH_ROWS_LOGITS = 2,
} megalith_rows;

typedef struct megalith_tensor_type {
  megalith_dtype dtype;
  megalith_rows rows;
  uint32_t rank;
  uint32_t dims[MEGALITH_MAX_TENSOR_DIMS];
} megalith_tensor_type;

typedef struct megalith_custom_call {
  size_t size;
  void *context;  // on a GPU NULL
  const double *attributes;
  const megalith_tensor_type *input_types;
  const void *const *inputs;
  const megalith_tensor_type *output_type;
  void *output;
  uint32_t first_row, end_row;
} megalith_custom_call;

// --- a launch ------------------------------------------------------------------------------------

enum { MGL_CUSTOM_THREADS = 256 };  // of a block

// Where an input comes from that a plan has.
enum { MGL_CUSTOM_OF_TOKENS = 1, MGL_CUSTOM_OF_POSITIONS };

typedef struct mgl_custom_launch {
  double attributes[MEGALITH_MAX_CUSTOM_ATTRIBUTES];
  const void *inputs[MEGALITH_MAX_CUSTOM_INPUTS];
  void *output;
  megalith_tensor_type input_types[MEGALITH_MAX_CUSTOM_INPUTS];
  megalith_tensor_type output_type;
  uint32_t rows;       // of the output, under this plan
  uint32_t tile_rows;  // that a block computes at once
  // Of a task, whose plan is made on the device: MGL_CUSTOM_OF_*; 0: inputs has it.
  uint32_t of_plan[MEGALITH_MAX_CUSTOM_INPUTS];
} mgl_custom_launch;

#endif
