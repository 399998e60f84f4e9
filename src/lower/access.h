// What the ops and steps of a schedule read and write: the verifier's view of kernels.
#ifndef MGL_LOWER_ACCESS_H
#define MGL_LOWER_ACCESS_H

#include <stdbool.h>
#include <stdint.h>

#include "lower/schedule.h"

enum { MGL_ACCESS_MAX = 40 };

// A rectangle of a buffer, and the value that is read there, or left there. Buffers and values are
// numbers that mean the same in all accesses of a schedule.
typedef struct mgl_access {
  uint32_t buffer;
  uint32_t row_begin, row_end;
  uint32_t column_begin, column_end;
  bool writes;
  uint64_t value;
} mgl_access;

// One more than the largest number of a buffer.
uint32_t mgl_access_buffers(const mgl_graph *program, const mgl_schedule *schedule);

// The value that a buffer holds before the iteration: that of a KV cache, or MGL_ACCESS_NOTHING.
uint64_t mgl_access_first_value(const mgl_graph *program, const mgl_schedule *schedule,
                                uint32_t buffer);
#define MGL_ACCESS_NOTHING UINT64_MAX

// Accesses of units [begin, end) of an op of the schedule: reads first. Returns how many, at most
// MGL_ACCESS_MAX. The op's numbers must have been checked.
uint32_t mgl_schedule_accesses(const mgl_graph *program, const mgl_schedule *schedule,
                               uint32_t op_idx, uint32_t begin, uint32_t end,
                               mgl_access out[MGL_ACCESS_MAX]);

// What the buffer is called in messages.
const char *mgl_access_buffer_name(const mgl_graph *program, const mgl_schedule *schedule,
                                   uint32_t buffer);

#endif
