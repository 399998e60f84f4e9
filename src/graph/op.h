// What op.def says of the kinds of ops: one source for host and device.
//
// Whoever asks what an op is (a linear?), what one of its inputs is (a norm's weight?) or what its
// tiles are made of asks here. So a row of op.def tells it to the compiler, to both devices and to
// the planner of memory, and no place outside graph/ lists kinds to find it out.
#ifndef MGL_GRAPH_OP_H
#define MGL_GRAPH_OP_H

#include <stdbool.h>
#include <stdint.h>

typedef enum mgl_attr {
#define MGL_ATTR(enum_name, name, optional) MGL_ATTR_##enum_name,
#include "graph/op.def"
  MGL_ATTR_COUNT
} mgl_attr;

typedef enum mgl_role {
#define MGL_ROLE(enum_name) MGL_ROLE_##enum_name,
#include "graph/op.def"
  MGL_ROLE_COUNT
} mgl_role;

typedef enum mgl_unit {
#define MGL_UNIT(enum_name) MGL_UNIT_##enum_name,
#include "graph/op.def"
  MGL_UNIT_COUNT
} mgl_unit;

typedef enum mgl_op_kind {
#define MGL_OP(enum_name, ...) MGL_OP_##enum_name,
#include "graph/op.def"
  MGL_OP_COUNT
} mgl_op_kind;

#ifdef __CUDACC__
#define MGL_OP_FN static __device__ __forceinline__
#else
#define MGL_OP_FN static inline
#endif

// True for ops that multiply rows of x with matrices.
MGL_OP_FN bool mgl_op_kind_is_linear(uint32_t kind) {
  return false
#define MGL_OP(enum_name, name, unit, ...) \
  || (MGL_UNIT_##unit == MGL_UNIT_COLUMN && kind == MGL_OP_##enum_name)
#include "graph/op.def"
      ;
}

// True for ops that read what all ranks have made of one of their inputs.
MGL_OP_FN bool mgl_op_kind_is_exchange(uint32_t kind) {
  return kind == MGL_OP_ALL_REDUCE || kind == MGL_OP_REDUCE_SCATTER || kind == MGL_OP_ALL_GATHER;
}

#ifndef __CUDACC__

enum { MGL_OP_MAX_INPUTS = 8 };

// What op.def says of an op.
typedef struct mgl_op_info {
  const char *name;
  mgl_unit unit;
  uint32_t cpu_grain, cuda_grain;    // units that stay together
  uint8_t roles[MGL_OP_MAX_INPUTS];  // mgl_role of each input
  uint32_t input_count;              // required
  uint32_t optional_count;           // may follow
  mgl_role updates;                  // of the input that is written too; MGL_ROLE_NONE: none is
  bool in_place;                     // the output takes over the storage of input 0
  uint32_t attributes;               // bit (1 << mgl_attr) for each attribute
} mgl_op_info;

const mgl_op_info *mgl_op_info_of(mgl_op_kind kind);
const char *mgl_attr_name(mgl_attr attr);
bool mgl_attr_is_optional(mgl_attr attr);

#endif
#endif
