// The device's spans as Chrome trace JSON: a track per multiprocessor and role.
//
// Spans have the low halves of their multiprocessor's clock. The halves are completed by where the
// iteration of the span began, which the device records in nanoseconds: right as long as a task
// begins within a second of that. Nanoseconds are a straight line through the pairs of both clocks
// that each multiprocessor took at its start and at its end. If the frequency changes on the way,
// all multiprocessors are displaced alike, so what one waited for another to do stays in order.
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
  mgl_cuda_trace *workers;  // [workers]
  mgl_cuda_span *spans;     // [workers, roles, capacity]
  uint64_t *iteration_ns;   // [iteration_count] when each began; 0: it did not
  size_t iteration_count;
  uint32_t worker_count, capacity;
  uint64_t origin_ns;  // the earliest start of a worker
} tracks;

// A span with everything completed.
typedef struct span {
  double begin_ns, end_ns;  // since the tracks' origin
  double starved_ns;        // of COMPUTE: waiting for weights
  uint32_t iteration, graph, task;
} span;

static mgl_status read_tracks(mgl_cuda_program *p, tracks *t, mgl_error *err) {
  const mgl_cuda_driver *driver = &p->device->driver;
  t->capacity = p->options.trace_spans;
  t->worker_count = p->workers;
  t->iteration_count = p->layout.most_iterations + (size_t)1;
  size_t spans = (size_t)t->worker_count * MGL_CUDA_TRACE_ROLES * t->capacity;
  t->workers = mgl_alloc_zeroed(t->worker_count, sizeof *t->workers);
  t->spans = mgl_alloc_zeroed(spans, sizeof *t->spans);
  t->iteration_ns = mgl_alloc_zeroed(t->iteration_count, sizeof *t->iteration_ns);
  if (t->workers == NULL || t->spans == NULL || t->iteration_ns == NULL) {
    return mgl_error_set(err, MGL_ERR_MEMORY, "out of memory for a trace of %zu spans", spans);
  }
  MGL_CUDA_TRY(driver, copy_to_host, err, t->workers, mgl_cuda_state_at(p, p->layout.state.traces),
               t->worker_count * sizeof *t->workers);
  MGL_CUDA_TRY(driver, copy_to_host, err, t->spans, p->memory[MGL_CUDA_MEMORY_TRACE],
               spans * sizeof *t->spans);
  MGL_CUDA_TRY(driver, copy_to_host, err, t->iteration_ns,
               mgl_cuda_state_at(p, p->layout.state.iteration_ns),
               t->iteration_count * sizeof *t->iteration_ns);
  t->origin_ns = UINT64_MAX;
  for (uint32_t i = 0; i < t->worker_count; i++) {
    t->origin_ns = t->workers[i].ns[0] < t->origin_ns ? t->workers[i].ns[0] : t->origin_ns;
  }
  return MGL_OK;
}

// --- times ---------------------------------------------------------------------------------------

static double clocks_per_ns(const mgl_cuda_trace *worker) {
  return (double)(worker->clock[1] - worker->clock[0]) / (double)(worker->ns[1] - worker->ns[0]);
}

// Since the origin, of a clock of which the low half is known, near the begin of an iteration.
static double time_of(const tracks *t, const mgl_cuda_trace *worker, uint32_t iteration,
                      uint32_t low) {
  double rate = clocks_per_ns(worker);
  uint64_t near_ns = iteration < t->iteration_count ? t->iteration_ns[iteration] : 0;
  near_ns = near_ns == 0 ? worker->ns[1] : near_ns;
  // Signed: the first iteration may begin before a worker has taken its first pair.
  int64_t near = (int64_t)((double)(int64_t)(near_ns - worker->ns[0]) * rate);
  uint32_t expected = (uint32_t)(worker->clock[0] + (uint64_t)near);
  int64_t clocks = near + (int32_t)(low - expected);
  return (double)(worker->ns[0] - t->origin_ns) + (double)clocks / rate;
}

static bool is_timed(const mgl_cuda_trace *worker) {
  return worker->ns[1] > worker->ns[0] && worker->clock[1] > worker->clock[0];
}

static const mgl_cuda_span *track_of(const tracks *t, uint32_t worker, uint32_t role) {
  return t->spans + ((size_t)worker * MGL_CUDA_TRACE_ROLES + role) * t->capacity;
}

// The spans at place `at` of the rings.
static span complete(const tracks *t, uint32_t worker, uint32_t role, uint32_t at) {
  const mgl_cuda_trace *w = &t->workers[worker];
  const mgl_cuda_span *from = &track_of(t, worker, role)[at];
  span out = {
      .iteration = from->note, .graph = mgl_id_graph(from->id), .task = mgl_id_index(from->id)};
  if (role == MGL_CUDA_TRACE_TRIGGER) {
    out.iteration = track_of(t, worker, MGL_CUDA_TRACE_COMPUTE)[at].note;
  } else if (role == MGL_CUDA_TRACE_COMPUTE) {
    out.starved_ns = track_of(t, worker, MGL_CUDA_TRACE_TRIGGER)[at].note / clocks_per_ns(w);
  }
  out.begin_ns = time_of(t, w, out.iteration, from->begin);
  out.end_ns = out.begin_ns + (from->end - from->begin) / clocks_per_ns(w);
  return out;
}

// --- text ----------------------------------------------------------------------------------------

static void append_span(const mgl_cuda_program *p, uint32_t track, const span *s, mgl_text *out) {
  // Names are of [A-Za-z0-9_.-] (graph.h): no escapes.
  mgl_text_append_string(out, ",\n{\"name\":\"");
  if (s->graph < p->graph_count && s->task < p->graphs[s->graph]->task_count &&
      p->graphs[s->graph]->tasks[s->task].op < p->program->op_count) {
    const mgl_task *task = &p->graphs[s->graph]->tasks[s->task];
    mgl_text_format(out, "%s [%" PRIu32 ",%" PRIu32 ")",
                    p->program->tensors[p->program->ops[task->op].output].name, task->begin,
                    task->end);
  } else {
    mgl_text_format(out, "task %" PRIu32, s->task);
  }
  mgl_text_format(out,
                  "\",\"ph\":\"X\",\"pid\":1,\"tid\":%" PRIu32
                  ",\"ts\":%.3f,\"dur\":%.3f,\"args\":{\"graph\":%" PRIu32 ",\"iteration\":%" PRIu32
                  ",\"index\":%" PRIu32,
                  track, s->begin_ns / 1e3, (s->end_ns - s->begin_ns) / 1e3, s->graph, s->iteration,
                  s->task);
  if (s->starved_ns > 0) {
    mgl_text_format(out, ",\"stream_us\":%.3f", s->starved_ns / 1e3);
  }
  mgl_text_append_string(out, "}}");
}

static void append_track(const mgl_cuda_program *p, const tracks *t, uint32_t worker, uint32_t role,
                         mgl_text *out) {
  uint32_t track = worker * MGL_CUDA_TRACE_ROLES + role;
  uint32_t recorded = t->workers[worker].counts[role];
  mgl_text_format(out,
                  ",\n{\"name\":\"thread_name\",\"ph\":\"M\",\"pid\":1,\"tid\":%" PRIu32
                  ",\"args\":{\"name\":\"SM %" PRIu32 " %s\"}}",
                  track, worker, role_names[role]);
  if (!is_timed(&t->workers[worker])) {
    return;  // it did not come to its end
  }
  // A ring: the oldest stands behind the latest.
  uint32_t count = recorded < t->capacity ? recorded : t->capacity;
  for (uint32_t i = 0; i < count; i++) {
    span s = complete(t, worker, role, (recorded - count + i) % t->capacity);
    append_span(p, track, &s, out);
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
    for (uint32_t worker = 0; worker < t.worker_count; worker++) {
      for (uint32_t role = 0; role < MGL_CUDA_TRACE_ROLES; role++) {
        append_track(p, &t, worker, role, out);
      }
    }
    mgl_text_append_string(out, "\n]}\n");
    status = mgl_text_check(out, err);
  }
  mgl_free(t.workers);
  mgl_free(t.spans);
  mgl_free(t.iteration_ns);
  return status;
}
