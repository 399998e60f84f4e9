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

// Of a step of stages, for their order (stages_order.c).
typedef struct mgl_step_pace {
  uint32_t turn;   // among steps of a layer that may run: the least is taken first
  uint64_t time;   // that it takes, an estimate: a stage of k of the largest tiles takes 1024
  uint64_t bytes;  // that it sends to each other rank, if it sends anything
  bool opens;      // its op is the first one of a layer
  bool backwards;  // steps of its op are taken from the last one on: who begins a unit of attention
                   // may wait for who goes on with it
} mgl_step_pace;

mgl_step_pace mgl_schedule_pace(const mgl_graph *program, const mgl_schedule *schedule,
                                const mgl_schedule_step *step);

#endif
