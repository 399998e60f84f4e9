#include "app/trace_summary.h"

#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"

// --- iterations ----------------------------------------------------------------------------------

// An iteration as its computing spans show it.
typedef struct iteration {
  uint32_t number;
  uint32_t graph;
  size_t task_count;
  double begin_us, end_us;
  double total_us;
  bool is_whole;
} iteration;

static int compare_spans(const void *a, const void *b) {
  const mgl_trace_span *x = *(const mgl_trace_span *const *)a;
  const mgl_trace_span *y = *(const mgl_trace_span *const *)b;
  if (x->iteration != y->iteration) {
    return x->iteration < y->iteration ? -1 : 1;
  }
  if (x->op != y->op) {
    return x->op < y->op ? -1 : 1;
  }
  return (x->begin_us > y->begin_us) - (x->begin_us < y->begin_us);
}

typedef struct analysis {
  const mgl_trace *trace;
  const mgl_trace_span **tasks;  // [task_count] computing spans by iteration, op and begin
  size_t task_count;
  iteration *iterations;  // [iteration_count] ascending
  size_t iteration_count;
} analysis;

static mgl_status out_of_memory(mgl_error *err) {
  return mgl_error_set(err, MGL_ERR_MEMORY, "out of memory for the summary of a trace");
}

static mgl_status collect_tasks(analysis *a, mgl_error *err) {
  const mgl_trace *t = a->trace;
  a->tasks = mgl_alloc_zeroed(t->span_count, sizeof *a->tasks);
  if (a->tasks == NULL) {
    return out_of_memory(err);
  }
  for (size_t i = 0; i < t->span_count; i++) {
    if (t->spans[i].role == MGL_TRACE_COMPUTE) {
      a->tasks[a->task_count++] = &t->spans[i];
    }
  }
  if (a->task_count == 0) {
    return mgl_error_set(err, MGL_ERR_FORMAT, "expected tasks, found none in the trace");
  }
  qsort(a->tasks, a->task_count, sizeof *a->tasks, compare_spans);
  return MGL_OK;
}

static mgl_status collect_iterations(analysis *a, mgl_error *err) {
  size_t count = 1;
  for (size_t i = 1; i < a->task_count; i++) {
    count += a->tasks[i]->iteration != a->tasks[i - 1]->iteration ? 1 : 0;
  }
  a->iterations = mgl_alloc_zeroed(count, sizeof *a->iterations);
  if (a->iterations == NULL) {
    return out_of_memory(err);
  }
  for (size_t i = 0; i < a->task_count; i++) {
    const mgl_trace_span *s = a->tasks[i];
    if (i == 0 || s->iteration != a->tasks[i - 1]->iteration) {
      a->iterations[a->iteration_count++] = (iteration){
          .number = s->iteration, .graph = s->graph, .begin_us = s->begin_us, .end_us = s->end_us};
    }
    iteration *it = &a->iterations[a->iteration_count - 1];
    it->task_count++;
    it->begin_us = s->begin_us < it->begin_us ? s->begin_us : it->begin_us;
    it->end_us = s->end_us > it->end_us ? s->end_us : it->end_us;
  }
  return MGL_OK;
}

// The first iterations of a trace may have lost spans: a whole one has as many as any of its graph.
static void judge_iterations(analysis *a) {
  for (size_t i = 0; i < a->iteration_count; i++) {
    iteration *it = &a->iterations[i];
    bool has_next = i + 1 < a->iteration_count && it[1].number == it->number + 1;
    it->total_us =
        (has_next && it[1].begin_us > it->begin_us ? it[1].begin_us : it->end_us) - it->begin_us;
    it->is_whole = true;
    for (size_t j = 0; j < a->iteration_count; j++) {
      it->is_whole = it->is_whole && (a->iterations[j].graph != it->graph ||
                                      a->iterations[j].task_count <= it->task_count);
    }
  }
}

static int compare_totals(const void *a, const void *b) {
  const iteration *x = *(const iteration *const *)a;
  const iteration *y = *(const iteration *const *)b;
  if (x->total_us != y->total_us) {
    return x->total_us < y->total_us ? -1 : 1;
  }
  return (x->number > y->number) - (x->number < y->number);
}

static size_t count_graph(const analysis *a, uint32_t graph) {
  size_t count = 0;
  for (size_t i = 0; i < a->iteration_count; i++) {
    count += a->iterations[i].is_whole && a->iterations[i].graph == graph ? 1 : 0;
  }
  return count;
}

static mgl_status choose(const analysis *a, uint64_t wanted, const iteration **out,
                         mgl_error *err) {
  if (wanted != MGL_TRACE_MEDIAN) {
    for (size_t i = 0; i < a->iteration_count; i++) {
      if (a->iterations[i].number == wanted) {
        *out = &a->iterations[i];
        return MGL_OK;
      }
    }
    return mgl_error_set(err, MGL_ERR_ARGUMENT,
                         "--iteration: expected one of the trace's, %u to %u, found %llu",
                         a->iterations[0].number, a->iterations[a->iteration_count - 1].number,
                         (unsigned long long)wanted);
  }
  const iteration **sorted = mgl_alloc_zeroed(a->iteration_count, sizeof *sorted);
  if (sorted == NULL) {
    return out_of_memory(err);
  }
  uint32_t graph = a->iterations[0].graph;
  for (size_t i = 0; i < a->iteration_count; i++) {
    size_t here = count_graph(a, a->iterations[i].graph);
    size_t best = count_graph(a, graph);
    if (here > best || (here == best && a->iterations[i].graph < graph)) {
      graph = a->iterations[i].graph;
    }
  }
  size_t count = 0;
  for (size_t i = 0; i < a->iteration_count; i++) {
    if (a->iterations[i].is_whole && a->iterations[i].graph == graph) {
      sorted[count++] = &a->iterations[i];
    }
  }
  qsort(sorted, count, sizeof *sorted, compare_totals);
  *out = sorted[(count - 1) / 2];
  mgl_free(sorted);
  return MGL_OK;
}

// --- the chain of ops ----------------------------------------------------------------------------

static int compare_ops(const void *a, const void *b) {
  const mgl_trace_op *x = a;
  const mgl_trace_op *y = b;
  if (x->first_us != y->first_us) {
    return x->first_us < y->first_us ? -1 : 1;
  }
  return (x->last_us > y->last_us) - (x->last_us < y->last_us);
}

static mgl_status find_chain(const analysis *a, mgl_trace_summary *out, mgl_error *err) {
  out->ops = mgl_alloc_zeroed(a->trace->op_count, sizeof *out->ops);
  if (out->ops == NULL) {
    return out_of_memory(err);
  }
  const mgl_trace_span *before = NULL;
  for (size_t i = 0; i < a->task_count; i++) {
    const mgl_trace_span *s = a->tasks[i];
    if (s->iteration != out->iteration) {
      continue;
    }
    if (before == NULL || before->op != s->op) {
      out->ops[out->op_count++] =
          (mgl_trace_op){.op = s->op, .first_us = s->begin_us, .last_us = s->end_us};
    }
    mgl_trace_op *op = &out->ops[out->op_count - 1];
    op->task_count++;
    op->last_us = s->end_us > op->last_us ? s->end_us : op->last_us;
    before = s;
  }
  qsort(out->ops, out->op_count, sizeof *out->ops, compare_ops);
  double least_end = 0;  // of the ops behind
  for (size_t i = out->op_count; i-- > 0;) {
    mgl_trace_op *op = &out->ops[i];
    op->is_beside = i + 1 < out->op_count && least_end < op->last_us;
    least_end = i + 1 == out->op_count || op->last_us < least_end ? op->last_us : least_end;
  }
  double end = 0;
  bool has_before = false;
  for (size_t i = 0; i < out->op_count; i++) {
    mgl_trace_op *op = &out->ops[i];
    if (!op->is_beside) {
      op->hop_us = has_before ? op->first_us - end : 0;
      end = op->last_us;
      has_before = true;
    }
  }
  return MGL_OK;
}

// --- where a worker's time goes ------------------------------------------------------------------

// Begin or end of a span, for a walk along a worker's time.
typedef struct edge {
  double at_us;
  uint32_t worker;
  uint32_t role;
  int change;  // +1 or -1
} edge;

static int compare_edges(const void *a, const void *b) {
  const edge *x = a;
  const edge *y = b;
  if (x->worker != y->worker) {
    return x->worker < y->worker ? -1 : 1;
  }
  return (x->at_us > y->at_us) - (x->at_us < y->at_us);
}

static size_t collect_edges(const mgl_trace *t, double begin, double end, edge *edges) {
  size_t count = 0;
  for (size_t i = 0; i < t->span_count; i++) {
    const mgl_trace_span *s = &t->spans[i];
    double from = s->begin_us > begin ? s->begin_us : begin;
    double to = s->end_us < end ? s->end_us : end;
    if (to > from) {
      edges[count++] = (edge){from, s->worker, s->role, 1};
      edges[count++] = (edge){to, s->worker, s->role, -1};
    }
  }
  return count;
}

// Adds the time of `length` in which `open` spans of each role are open.
static void add_time(const int *open, double length, mgl_trace_summary *out) {
  double *state = &out->idle_us;
  uint32_t index = 2;
  if (open[MGL_TRACE_COMPUTE] > 0) {
    state = &out->computing_us;
    index = 0;
  } else if (open[MGL_TRACE_WAIT] > 0) {
    state = &out->waiting_us;
    index = 1;
  }
  *state += length;
  out->loading_us[index] += open[MGL_TRACE_LOAD] > 0 ? length : 0;
  for (uint32_t i = 0; i < MGL_TRACE_ROLES; i++) {
    out->role_us[i] += open[i] > 0 ? length : 0;
  }
}

// What tasks waited for their weights between begin and end; of a span that is cut, its share.
static double sum_streaming(const mgl_trace *t, double begin, double end) {
  double sum = 0;
  for (size_t i = 0; i < t->span_count; i++) {
    const mgl_trace_span *s = &t->spans[i];
    double from = s->begin_us > begin ? s->begin_us : begin;
    double to = s->end_us < end ? s->end_us : end;
    if (to > from && s->role == MGL_TRACE_COMPUTE) {
      sum += s->stream_us * (to - from) / (s->end_us - s->begin_us);
    }
  }
  return sum;
}

static mgl_status divide_time(const mgl_trace *t, mgl_trace_summary *out, mgl_error *err) {
  static const int none[MGL_TRACE_ROLES] = {0};
  double end = out->begin_us + out->total_us;
  edge *edges = mgl_alloc_zeroed(t->span_count * 2, sizeof *edges);
  if (edges == NULL) {
    return out_of_memory(err);
  }
  size_t count = collect_edges(t, out->begin_us, end, edges);
  qsort(edges, count, sizeof *edges, compare_edges);
  size_t at = 0;
  for (uint32_t worker = 0; worker < t->worker_count; worker++) {
    int open[MGL_TRACE_ROLES];
    double from = out->begin_us;
    memcpy(open, none, sizeof open);
    for (; at < count && edges[at].worker == worker; at++) {
      add_time(open, edges[at].at_us - from, out);
      from = edges[at].at_us;
      open[edges[at].role] += edges[at].change;
    }
    add_time(none, end - from, out);
  }
  mgl_free(edges);
  out->streaming_us = sum_streaming(t, out->begin_us, end);
  out->computing_us -= out->streaming_us;
  double *const sums[] = {&out->streaming_us,  &out->computing_us,  &out->waiting_us,
                          &out->idle_us,       &out->loading_us[0], &out->loading_us[1],
                          &out->loading_us[2], &out->role_us[0],    &out->role_us[1],
                          &out->role_us[2],    &out->role_us[3]};
  for (size_t i = 0; i < sizeof sums / sizeof sums[0]; i++) {
    *sums[i] /= (double)t->worker_count;
  }
  return MGL_OK;
}

// -------------------------------------------------------------------------------------------------

static mgl_status summarise(analysis *a, uint64_t wanted, mgl_trace_summary *out, mgl_error *err) {
  const iteration *chosen = NULL;
  MGL_TRY(collect_tasks(a, err));
  MGL_TRY(collect_iterations(a, err));
  judge_iterations(a);
  MGL_TRY(choose(a, wanted, &chosen, err));
  out->iteration = chosen->number;
  out->graph = chosen->graph;
  out->is_whole = chosen->is_whole;
  out->begin_us = chosen->begin_us;
  out->total_us = chosen->total_us;
  out->iteration_count = a->iteration_count;
  for (size_t i = 0; i < a->iteration_count; i++) {
    out->whole_count += a->iterations[i].is_whole ? 1 : 0;
  }
  MGL_TRY(find_chain(a, out, err));
  return divide_time(a->trace, out, err);
}

mgl_status mgl_trace_summarise(const mgl_trace *trace, uint64_t wanted, mgl_trace_summary *out,
                               mgl_error *err) {
  analysis a = {.trace = trace};
  *out = (mgl_trace_summary){0};
  mgl_status status = summarise(&a, wanted, out, err);
  mgl_free(a.tasks);
  mgl_free(a.iterations);
  if (status != MGL_OK) {
    mgl_trace_summary_free(out);
  }
  return status;
}

void mgl_trace_summary_free(mgl_trace_summary *summary) {
  mgl_free(summary->ops);
  *summary = (mgl_trace_summary){0};
}
