// What one iteration of a trace spent its time on: the share of each role, and the chain of ops.
#ifndef MGL_APP_TRACE_SUMMARY_H
#define MGL_APP_TRACE_SUMMARY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "app/trace_file.h"
#include "base/status.h"

#define MGL_TRACE_MEDIAN UINT64_MAX

// An op of the iteration. Chain: in the order of their first starts, without the ops beside it,
// which are those that a later one overtakes (the plan of the next iteration, say).
typedef struct mgl_trace_op {
  uint32_t op;  // index in mgl_trace.ops
  uint32_t task_count;
  double first_us, last_us;  // earliest start and latest end of its tasks
  double hop_us;             // from the latest end of the op before; negative where they overlap
  bool is_beside;
} mgl_trace_op;

typedef struct mgl_trace_summary {
  uint64_t iteration;
  uint32_t graph;
  size_t iteration_count, whole_count;  // in the trace; whole: no span of it was overwritten
  bool is_whole;
  double begin_us, total_us;  // to the begin of the next iteration, or to its own end
  // Averages over workers, of the time between begin and end.
  double role_us[MGL_TRACE_ROLES];  // in which the role had something to do
  // Add up to total_us. Streaming: a task runs and waits for its weights. Computing: it runs.
  // Waiting: none runs and one waits for its event. Idle: neither.
  double streaming_us, computing_us, waiting_us, idle_us;
  double
      loading_us[3];  // of time in which a task runs, waiting and idle time: with loads under way
  mgl_trace_op *ops;  // [op_count] in the order of their first starts
  size_t op_count;
} mgl_trace_summary;

// wanted: an iteration; MGL_TRACE_MEDIAN takes the one of median duration among the whole ones of
// the graph that ran most often. MGL_ERR_ARGUMENT: the trace has none of that number.
mgl_status mgl_trace_summarise(const mgl_trace *trace, uint64_t wanted, mgl_trace_summary *out,
                               mgl_error *err);
void mgl_trace_summary_free(mgl_trace_summary *summary);

#endif
