// megalith trace: where the time of an iteration went, from a file that --trace wrote.
//
// Two views of one iteration. Workers: how long one waits for weights, computes, waits for events,
// or has nothing to do, averaged over all. Chain: the ops in the order in which they start, each a
// hop (from the last end of the op before to the first start of this one) and a stage (from there
// to its last end); hops and stages add up to the iteration. What a hop leaves exposed is what no
// overlap hides.
#include <inttypes.h>
#include <string.h>

#include "app/commands.h"
#include "app/output.h"
#include "app/trace_file.h"
#include "app/trace_summary.h"
#include "base/alloc.h"

// Ops of one kind: the name behind the layer's number ("3.gated" is of kind gated).
typedef struct kind {
  const char *name;
  uint32_t count;
  uint32_t task_count;
  double hop_us, stage_us, exposed_us;  // sums
} kind;

static const char *kind_of(const char *name) {
  const char *dot = strrchr(name, '.');
  return dot != NULL && dot[1] != 0 ? dot + 1 : name;
}

static void append_workers(const mgl_trace *trace, const mgl_trace_summary *s, mgl_text *out) {
  static const char *const roles[MGL_TRACE_ROLES] = {"compute", "wait", "load", "trigger"};
  const struct {
    const char *name;
    double us;
    double loading_us;
  } states[] = {{"streaming: it needs weights", s->streaming_us, s->streaming_us},
                {"computing", s->computing_us, s->loading_us[0] - s->streaming_us},
                {"waiting for an event", s->waiting_us, s->loading_us[1]},
                {"idle", s->idle_us, s->loading_us[2]}};
  mgl_text_format(out, "\na worker's time (mean of %zu)        us  share   with loads, us\n",
                  trace->worker_count);
  for (size_t i = 0; i < sizeof states / sizeof states[0]; i++) {
    mgl_text_format(out, "  %-28s %9.2f %5.1f%% %15.2f\n", states[i].name, states[i].us,
                    states[i].us * 100 / s->total_us,
                    states[i].loading_us > 0 ? states[i].loading_us : 0.0);
  }
  mgl_text_append_string(out, "busy roles, side by side\n");
  for (size_t i = 0; i < MGL_TRACE_ROLES; i++) {
    mgl_text_format(out, "  %-28s %9.2f %5.1f%%\n", roles[i], s->role_us[i],
                    s->role_us[i] * 100 / s->total_us);
  }
}

static void add_op(const mgl_trace *trace, const mgl_trace_op *op, kind *kinds, size_t *count) {
  const char *name = kind_of(trace->ops[op->op].text);
  size_t at = 0;
  while (at < *count && strcmp(kinds[at].name, name) != 0) {
    at++;
  }
  if (at == *count) {
    kinds[(*count)++] = (kind){.name = name};
  }
  kinds[at].count++;
  kinds[at].task_count += op->task_count;
  kinds[at].hop_us += op->hop_us;
  kinds[at].stage_us += op->last_us - op->first_us;
  kinds[at].exposed_us += op->hop_us > 0 ? op->hop_us : 0;
}

static void append_kind(const kind *k, double total_us, mgl_text *out) {
  double us = k->hop_us + k->stage_us;
  mgl_text_format(out, "  %-22s %5" PRIu32 " %7.1f %9.2f %9.2f %10.2f %5.1f%% %11.2f\n", k->name,
                  k->count, (double)k->task_count / k->count, k->hop_us / k->count,
                  k->stage_us / k->count, us, us * 100 / total_us, k->exposed_us);
}

static mgl_status append_chain(const mgl_trace *trace, const mgl_trace_summary *s, mgl_text *out,
                               mgl_error *err) {
  kind *kinds = mgl_alloc_zeroed(s->op_count, sizeof *kinds);
  kind all = {.name = "all"};
  size_t count = 0;
  if (kinds == NULL) {
    return mgl_error_set(err, MGL_ERR_MEMORY, "out of memory for the summary of a trace");
  }
  mgl_text_append_string(out,
                         "\nchain of ops             count   tasks   hop, us stage, us  total, us"
                         "  share exposed, us\n");
  for (size_t i = 0; i < s->op_count; i++) {
    if (!s->ops[i].is_beside) {
      add_op(trace, &s->ops[i], kinds, &count);
    }
  }
  for (size_t i = 0; i < count; i++) {
    append_kind(&kinds[i], s->total_us, out);
    all.count += kinds[i].count;
    all.task_count += kinds[i].task_count;
    all.hop_us += kinds[i].hop_us;
    all.stage_us += kinds[i].stage_us;
    all.exposed_us += kinds[i].exposed_us;
  }
  append_kind(&all, s->total_us, out);
  for (size_t i = 0; i < s->op_count; i++) {
    const mgl_trace_op *op = &s->ops[i];
    if (op->is_beside) {
      mgl_text_format(out, "  beside it: %s, %" PRIu32 " task%s, %.2f us from %.2f us on\n",
                      trace->ops[op->op].text, op->task_count, op->task_count == 1 ? "" : "s",
                      op->last_us - op->first_us, op->first_us - s->begin_us);
    }
  }
  mgl_free(kinds);
  return MGL_OK;
}

static mgl_status append_summary(const mgl_trace *trace, uint64_t iteration, mgl_text *out,
                                 mgl_error *err) {
  mgl_trace_summary s;
  MGL_TRY(mgl_trace_summarise(trace, iteration, &s, err));
  mgl_text_format(out,
                  "%zu workers, %zu iterations, %zu of them whole\n"
                  "iteration %" PRIu64 "%s: %.2f us, graph for up to %llu tokens%s\n",
                  trace->worker_count, s.iteration_count, s.whole_count, s.iteration,
                  iteration == MGL_TRACE_MEDIAN ? " (median)" : "", s.total_us,
                  s.graph < 32 ? 1ull << s.graph : 0ull,
                  s.is_whole ? "" : "; NOT WHOLE: some of its spans were overwritten");
  append_workers(trace, &s, out);
  mgl_status status = append_chain(trace, &s, out, err);
  mgl_trace_summary_free(&s);
  return status;
}

static mgl_status trace_command(const mgl_arguments *arguments, mgl_error *err) {
  mgl_trace trace;
  mgl_text out = {0};
  if (arguments->positional == NULL) {
    return mgl_error_set(err, MGL_ERR_ARGUMENT,
                         "expected a FILE that --trace wrote: see megalith trace --help");
  }
  MGL_TRY(mgl_trace_read(arguments->positional, &trace, err));
  mgl_status status = append_summary(
      &trace, mgl_arguments_u64(arguments, "iteration", MGL_TRACE_MEDIAN), &out, err);
  if (status == MGL_OK) {
    status = mgl_output_text(&out, err);
  } else if (status == MGL_ERR_FORMAT) {
    mgl_error_prefix(err, "%s", arguments->positional);
  }
  mgl_text_free(&out);
  mgl_trace_free(&trace);
  return status;
}

static const mgl_option options[] = {
    {.name = "summary",
     .type = MGL_OPTION_FLAG,
     .help = "print where the time of an iteration went [what it does anyway]"},
    {.name = "iteration",
     .value_name = "N",
     .type = MGL_OPTION_U64,
     .u64_min = 0,
     .u64_max = UINT32_MAX,
     .help = "the iteration to look at [the one of median duration]"},
};

const mgl_command mgl_command_trace = {
    .name = "trace",
    .summary = "where the time of an iteration went, from a file that --trace wrote",
    .positional = "FILE",
    .takes_file = true,
    .description =
        "Prints how long a worker's tasks wait for weights (streaming), compute, wait for events,\n"
        "or how long it has nothing to do, averaged over all, and how much of it is with weights\n"
        "under way; then the chain of ops, by kind: the hop from the last end of the op before to\n"
        "the first start, the stage from there to the last end, their sum in the iteration, and\n"
        "what of the hops nothing hides.",
    .examples =
        "megalith bench --mode mega --trace trace.json && megalith trace --summary trace.json\n"
        "megalith trace trace.json --iteration 12",
    .options = options,
    .option_count = sizeof options / sizeof *options,
    .run = trace_command,
};
