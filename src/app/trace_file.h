// Reading a trace: the Chrome trace JSON that `--trace` writes, of the CPU and of a GPU.
//
// The file is mapped and its events are parsed one by one, so that memory grows with the number of
// spans (48 bytes each) and not with the text. Anything that is valid JSON and not a span of a task
// is skipped.
#ifndef MGL_APP_TRACE_FILE_H
#define MGL_APP_TRACE_FILE_H

#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

typedef enum mgl_trace_role {
  MGL_TRACE_COMPUTE,  // a task runs
  MGL_TRACE_WAIT,     // it waits for its event
  MGL_TRACE_LOAD,     // its weights are asked for
  MGL_TRACE_TRIGGER,  // its outputs become visible
  MGL_TRACE_ROLES,
} mgl_trace_role;

typedef struct mgl_trace_span {
  double begin_us, end_us;
  double stream_us;  // of a task that runs: in which it waited for its weights
  uint32_t iteration;
  uint32_t graph;
  uint32_t op;      // index in ops
  uint32_t worker;  // index in workers
  uint32_t role;    // mgl_trace_role
} mgl_trace_span;

enum { MGL_TRACE_NAME_BYTES = 128, MGL_TRACE_MAX_TRACKS = 1 << 14, MGL_TRACE_MAX_NAMES = 1 << 14 };

typedef struct mgl_trace_name {
  char text[MGL_TRACE_NAME_BYTES];
} mgl_trace_name;

typedef struct mgl_trace {
  mgl_trace_span *spans;  // [span_count] in the order of the file
  size_t span_count, span_capacity;
  mgl_trace_name *ops;  // [op_count] names of outputs
  size_t op_count, op_capacity;
  mgl_trace_name *workers;  // [worker_count] "worker 3", "SM 3"
  size_t worker_count, worker_capacity;
  // Of each tid, while reading.
  struct mgl_trace_track *tracks;
  size_t track_count, track_capacity;
} mgl_trace;

// MGL_ERR_FORMAT names the byte at which the file is no JSON, or the event that is no span.
mgl_status mgl_trace_read(const char *path, mgl_trace *out, mgl_error *err);
void mgl_trace_free(mgl_trace *trace);  // of a zeroed one is fine

#endif
