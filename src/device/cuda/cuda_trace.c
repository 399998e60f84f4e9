// The device's spans as Chrome trace JSON: a track per multiprocessor and role.
//
// Spans have the low halves of their multiprocessor's clock. The halves are completed by where the
// iteration of the span began, which the device records in nanoseconds: right as long as a task
// begins within a second of that. Nanoseconds follow from the pairs of both clocks that each
// multiprocessor takes every few microseconds, on a line from one to the next. Two pairs, at the
// start and at the end, are not enough: each part of the GPU has a clock of its own, whose
// frequency follows the load by a percent and more (docs/log/048).
#include <inttypes.h>

#include "base/alloc.h"
#include "device/cuda/cuda_program_parts.h"

static const char *const role_names[MGL_CUDA_TRACE_ROLES] = {
    [MGL_CUDA_TRACE_WAIT] = "wait",
    [MGL_CUDA_TRACE_COMPUTE] = "compute",
    [MGL_CUDA_TRACE_LOAD] = "load",
    [MGL_CUDA_TRACE_TRIGGER] = "trigger",
};

typedef struct tracks {
  mgl_cuda_trace *workers;  // [workers]
  mgl_cuda_span *spans;     // [workers, roles, capacity]
  mgl_cuda_mark *marks;     // [workers, MGL_CUDA_TRACE_MARKS], rings
  uint64_t *iteration_ns;   // [iteration_count] when each began; 0: it did not
  size_t iteration_count;
  uint32_t worker_count, capacity;
  uint64_t origin_ns;  // when the first iteration began
} tracks;

// A span with everything completed.
typedef struct span {
  double begin_ns, end_ns;  // since the first iteration began
  double starved_ns;        // of COMPUTE: waiting for weights
  uint32_t iteration, graph, task;
} span;

static mgl_status read_tracks(mgl_cuda_program *p, tracks *t, mgl_error *err) {
  const mgl_cuda_driver *driver = &p->device->driver;
  const mgl_cuda_state_layout *state = &p->layout.state;
  mgl_cu_ptr memory = p->memory[MGL_CUDA_MEMORY_TRACE];
  t->capacity = p->trace_spans;
  t->worker_count = p->workers;
  t->iteration_count = p->layout.iteration_capacity;
  size_t kept = (size_t)t->worker_count * t->capacity;
  size_t marks = (size_t)t->worker_count * MGL_CUDA_TRACE_MARKS;
  t->workers = mgl_alloc_zeroed(t->worker_count, sizeof *t->workers);
  t->spans = mgl_alloc_zeroed(kept * MGL_CUDA_TRACE_ROLES, sizeof *t->spans);
  t->marks = mgl_alloc_zeroed(marks, sizeof *t->marks);
  t->iteration_ns = mgl_alloc_zeroed(t->iteration_count, sizeof *t->iteration_ns);
  if (t->workers == NULL || t->spans == NULL || t->marks == NULL || t->iteration_ns == NULL) {
    return mgl_error_set(err, MGL_ERR_MEMORY, "out of memory for a trace of %u spans a role",
                         t->capacity);
  }
  MGL_CUDA_TRY(driver, copy_to_host, err, t->workers, mgl_cuda_state_at(p, state->traces),
               t->worker_count * sizeof *t->workers);
  MGL_CUDA_TRY(driver, copy_to_host, err, t->spans, memory,
               kept * MGL_CUDA_TRACE_ROLES * sizeof *t->spans);
  MGL_CUDA_TRY(driver, copy_to_host, err, t->marks, memory + state->trace_marks,
               marks * sizeof *t->marks);
  MGL_CUDA_TRY(driver, copy_to_host, err, t->iteration_ns,
               mgl_cuda_state_at(p, state->iteration_ns),
               t->iteration_count * sizeof *t->iteration_ns);
  // If no iteration began, any time that is near will do.
  t->origin_ns = t->iteration_ns[0] != 0 ? t->iteration_ns[0] : t->marks[0].ns;
  return MGL_OK;
}

// --- times ---------------------------------------------------------------------------------------

static uint32_t mark_count(const tracks *t, uint32_t worker) {
  uint32_t count = t->workers[worker].mark_count;
  return count < MGL_CUDA_TRACE_MARKS ? count : MGL_CUDA_TRACE_MARKS;
}

// The i-th pair that is kept, ascending.
static const mgl_cuda_mark *mark_of(const tracks *t, uint32_t worker, uint32_t i) {
  uint32_t first = t->workers[worker].mark_count - mark_count(t, worker);
  return &t->marks[(size_t)worker * MGL_CUDA_TRACE_MARKS + (first + i) % MGL_CUDA_TRACE_MARKS];
}

static double clocks_per_ns(const mgl_cuda_mark *a, const mgl_cuda_mark *b) {
  return (double)(b->clock - a->clock) / (double)(b->ns - a->ns);
}

// The clock of which the low half is known, near the begin of an iteration.
static uint64_t clock_of(const tracks *t, uint32_t worker, uint32_t iteration, uint32_t low) {
  const mgl_cuda_mark *last = mark_of(t, worker, mark_count(t, worker) - 1);
  uint64_t near_ns = iteration < t->iteration_count ? t->iteration_ns[iteration] : 0;
  near_ns = near_ns == 0 ? last->ns : near_ns;
  double clocks =
      (double)(int64_t)(near_ns - last->ns) * clocks_per_ns(mark_of(t, worker, 0), last);
  uint64_t expected = last->clock + (uint64_t)(int64_t)clocks;
  return expected + (uint64_t)(int64_t)(int32_t)(low - (uint32_t)expected);
}

// The number of the last pair before a clock that has one behind it; the first or the last but one
// where the clock lies outside.
static uint32_t find_mark(const tracks *t, uint32_t worker, uint64_t clock) {
  uint32_t low = 0;
  uint32_t high = mark_count(t, worker) - 1;
  while (high - low > 1) {
    uint32_t middle = low + (high - low) / 2;
    if ((int64_t)(clock - mark_of(t, worker, middle)->clock) >= 0) {
      low = middle;
    } else {
      high = middle;
    }
  }
  return low;
}

// Nanoseconds since the first iteration began.
static double time_of(const tracks *t, uint32_t worker, uint64_t clock) {
  uint32_t at = find_mark(t, worker, clock);
  const mgl_cuda_mark *before = mark_of(t, worker, at);
  return (double)(int64_t)(before->ns - t->origin_ns) +
         (double)(int64_t)(clock - before->clock) /
             clocks_per_ns(before, mark_of(t, worker, at + 1));
}

static const mgl_cuda_span *track_of(const tracks *t, uint32_t worker, uint32_t role) {
  return t->spans + ((size_t)worker * MGL_CUDA_TRACE_ROLES + role) * t->capacity;
}

// The spans at place `at` of the rings.
static span complete(const tracks *t, uint32_t worker, uint32_t role, uint32_t at) {
  const mgl_cuda_span *from = &track_of(t, worker, role)[at];
  double rate = clocks_per_ns(mark_of(t, worker, 0), mark_of(t, worker, mark_count(t, worker) - 1));
  span out = {
      .iteration = from->note, .graph = mgl_id_graph(from->id), .task = mgl_id_index(from->id)};
  if (role == MGL_CUDA_TRACE_TRIGGER) {
    out.iteration = track_of(t, worker, MGL_CUDA_TRACE_COMPUTE)[at].note;
  } else if (role == MGL_CUDA_TRACE_COMPUTE) {
    out.starved_ns = track_of(t, worker, MGL_CUDA_TRACE_TRIGGER)[at].note / rate;
  }
  uint64_t begin = clock_of(t, worker, out.iteration, from->begin);
  out.begin_ns = time_of(t, worker, begin);
  out.end_ns = time_of(t, worker, begin + (from->end - from->begin));
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
  uint32_t recorded = t->workers[worker].span_counts[role];
  mgl_text_format(out,
                  ",\n{\"name\":\"thread_name\",\"ph\":\"M\",\"pid\":1,\"tid\":%" PRIu32
                  ",\"args\":{\"name\":\"SM %" PRIu32 " %s\"}}",
                  track, worker, role_names[role]);
  if (mark_count(t, worker) < 2) {
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
  if (p->trace_spans == 0 || p->lost) {
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
  mgl_free(t.marks);
  mgl_free(t.iteration_ns);
  return status;
}
