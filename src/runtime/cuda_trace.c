// The device's spans as Chrome trace JSON: a track per multiprocessor and role.
#include <inttypes.h>

#include "base/alloc.h"
#include "runtime/cuda_program_parts.h"

static const char *const role_names[MGL_CUDA_TRACE_ROLES] = {
    [MGL_CUDA_TRACE_WAIT] = "wait",
    [MGL_CUDA_TRACE_COMPUTE] = "compute",
    [MGL_CUDA_TRACE_LOAD] = "load",
    [MGL_CUDA_TRACE_TRIGGER] = "trigger",
};

typedef struct tracks {
  uint32_t *counts;      // [workers, roles] spans recorded
  mgl_cuda_span *spans;  // [workers, roles, capacity]
  uint32_t track_count, capacity;
} tracks;

static mgl_status read_tracks(mgl_cuda_program *p, tracks *t, mgl_error *err) {
  const mgl_cuda_driver *driver = &p->device->driver;
  t->capacity = p->options.trace_spans;
  t->track_count = p->workers * MGL_CUDA_TRACE_ROLES;
  size_t spans = (size_t)t->track_count * t->capacity;
  t->counts = mgl_alloc_zeroed(t->track_count, sizeof *t->counts);
  t->spans = mgl_alloc_zeroed(spans, sizeof *t->spans);
  if (t->counts == NULL || t->spans == NULL) {
    return mgl_error_set(err, MGL_ERR_MEMORY, "out of memory for a trace of %zu spans", spans);
  }
  MGL_CUDA_TRY(driver, copy_to_host, err, t->counts,
               mgl_cuda_state_at(p, p->layout.state.span_counts),
               t->track_count * sizeof *t->counts);
  MGL_CUDA_TRY(driver, copy_to_host, err, t->spans, p->memory[MGL_CUDA_MEMORY_TRACE],
               spans * sizeof *t->spans);
  return MGL_OK;
}

static void append_span(const mgl_cuda_program *p, uint32_t track, const mgl_cuda_span *span,
                        uint64_t origin_ns, mgl_text *out) {
  // Names are of [A-Za-z0-9_.-] (graph.h): no escapes.
  uint32_t graph = mgl_id_graph(span->task);
  uint32_t task_idx = mgl_id_index(span->task);
  mgl_text_append_string(out, ",\n{\"name\":\"");
  if (graph < p->graph_count && task_idx < p->graphs[graph]->task_count &&
      p->graphs[graph]->tasks[task_idx].op < p->program->op_count) {
    const mgl_task *task = &p->graphs[graph]->tasks[task_idx];
    mgl_text_format(out, "%s [%" PRIu32 ",%" PRIu32 ")",
                    p->program->tensors[p->program->ops[task->op].output].name, task->begin,
                    task->end);
  } else {
    mgl_text_format(out, "task %" PRIu32, task_idx);
  }
  mgl_text_format(out,
                  "\",\"ph\":\"X\",\"pid\":1,\"tid\":%" PRIu32
                  ",\"ts\":%.3f,\"dur\":%.3f,\"args\":{\"graph\":%" PRIu32 ",\"iteration\":%" PRIu32
                  ",\"index\":%" PRIu32 "}}",
                  track, (double)(span->begin_ns - origin_ns) / 1e3,
                  (double)(span->end_ns - span->begin_ns) / 1e3, graph, span->iteration, task_idx);
}

static uint32_t kept(const tracks *t, uint32_t track) {
  return t->counts[track] < t->capacity ? t->counts[track] : t->capacity;
}

static void append_tracks(const mgl_cuda_program *p, const tracks *t, mgl_text *out) {
  uint64_t origin_ns = UINT64_MAX;
  for (uint32_t track = 0; track < t->track_count; track++) {
    for (uint32_t i = 0; i < kept(t, track); i++) {
      uint64_t begin_ns = t->spans[(size_t)track * t->capacity + i].begin_ns;
      origin_ns = begin_ns < origin_ns ? begin_ns : origin_ns;
    }
  }
  for (uint32_t track = 0; track < t->track_count; track++) {
    mgl_text_format(out,
                    ",\n{\"name\":\"thread_name\",\"ph\":\"M\",\"pid\":1,\"tid\":%" PRIu32
                    ",\"args\":{\"name\":\"SM %" PRIu32 " %s\"}}",
                    track, track / MGL_CUDA_TRACE_ROLES, role_names[track % MGL_CUDA_TRACE_ROLES]);
    // A ring: the oldest stands behind the latest.
    uint32_t count = kept(t, track);
    uint32_t first = t->counts[track] > t->capacity ? t->counts[track] % t->capacity : 0;
    for (uint32_t i = 0; i < count; i++) {
      uint32_t at = (first + i) % t->capacity;
      append_span(p, track, &t->spans[(size_t)track * t->capacity + at], origin_ns, out);
    }
  }
}

mgl_status mgl_cuda_program_trace_json(mgl_cuda_program *p, mgl_text *out, mgl_error *err) {
  tracks t = {0};
  if (p->options.trace_spans == 0 || p->lost) {
    return mgl_error_set(err, MGL_ERR_ARGUMENT, "there is a trace only if it was asked for");
  }
  mgl_status status = read_tracks(p, &t, err);
  if (status == MGL_OK) {
    mgl_text_append_string(out,
                           "{\"displayTimeUnit\":\"ns\",\"traceEvents\":[\n"
                           "{\"name\":\"process_name\",\"ph\":\"M\",\"pid\":1,"
                           "\"args\":{\"name\":\"megalith\"}}");
    append_tracks(p, &t, out);
    mgl_text_append_string(out, "\n]}\n");
    status = mgl_text_check(out, err);
  }
  mgl_free(t.counts);
  mgl_free(t.spans);
  return status;
}
