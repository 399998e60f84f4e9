// What the lowerings share among themselves.
#ifndef MGL_LOWER_LOWER_PARTS_H
#define MGL_LOWER_LOWER_PARTS_H

#include "lower/schedule.h"

// A schedule with the numbers of `sizes`, all zero behind them; NULL: out of memory.
mgl_schedule *mgl_schedule_create(const mgl_schedule *sizes);
// The workers' lists, from each step's worker, by counting sort.
void mgl_schedule_fill_lists(mgl_schedule *schedule);
mgl_status mgl_schedule_out_of_memory(mgl_error *err);

#endif
