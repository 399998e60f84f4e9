// The compiler: tensor program to task graph, pass by pass.
//
// The list below is the pipeline. Each pass is one file, whose head states what it requires and
// ensures. Every pass has a check of its contract (check.c; options->verify) and a dump (dump.c;
// options->dump). All that a compilation allocates but its result lies in one arena.
#include "compile/compile.h"

#include <string.h>

#include "base/clock.h"
#include "compile/tgraph.h"

typedef mgl_status pass_function(mgl_tgraph *tg, mgl_error *err);

static mgl_status fuse_again(mgl_tgraph *tg, mgl_error *err);
static mgl_status fuse_first(mgl_tgraph *tg, mgl_error *err);

static const struct {
  const char *name;
  pass_function *run;
} passes[] = {
    // 1 fuse ops: mgl_fuse_ops_for, before and apart, since mode eager runs the CPU's result too
    {"partition", mgl_pass_partition},  // 2  op -> tasks
    {"depend", mgl_pass_depend},        // 3  every pair of tasks whose regions overlap
    {"fuse_events", fuse_first},        // 4  as few events as say the same
    {"prune", mgl_pass_prune},          // 4b without what other dependencies imply ...
    {"fuse_pruned", fuse_again},        //    ... which makes more events equal
    {"widen", mgl_pass_widen},          // 4c one event where exact ones would fork too often
    {"normalise", mgl_pass_normalise},  // 5  one dependent and one trigger event a task
    {"linearise", mgl_pass_linearise},  // 6  an event's tasks are consecutive
    {"label", mgl_pass_label},          // 7  AOT or JIT
    {"place", mgl_pass_place},          // 8  AOT tasks to workers
    // 9 pack weights: not on the CPU, where rows as stored measured as fast; for a GPU they are
    // packed at upload (device/cuda/cuda_upload.c), which needs no graph
    {"lay_out", mgl_pass_lay_out},  // 10 activations in reused memory
    {"emit", NULL},                 // 11 descriptors; mgl_pass_emit has a result
};

enum { PASS_COUNT = sizeof passes / sizeof passes[0] };

const char *mgl_pass_name(uint32_t index) {
  return index < PASS_COUNT ? passes[index].name : NULL;
}

static mgl_status fuse_first(mgl_tgraph *tg, mgl_error *err) {
  MGL_TRY(mgl_pass_fuse_events(tg, err));
  tg->report.fused_events = tg->event_count;
  return MGL_OK;
}

static mgl_status fuse_again(mgl_tgraph *tg, mgl_error *err) {
  MGL_TRY(mgl_pass_fuse_events(tg, err));
  tg->report.pruned_events = tg->event_count;
  return MGL_OK;
}

mgl_status mgl_out_of_memory(mgl_error *err) {
  return mgl_error_set(err, MGL_ERR_MEMORY, "out of memory while compiling a task graph");
}

static mgl_status run_passes(mgl_tgraph *tg, mgl_task_graph **out, mgl_error *err) {
  const mgl_compile_options *options = tg->options;
  for (uint32_t i = 0; i < PASS_COUNT; i++) {
    MGL_TRY(passes[i].run != NULL ? passes[i].run(tg, err) : mgl_pass_emit(tg, out, err));
    if (options->verify) {
      MGL_TRY(mgl_check_pass(tg, passes[i].name, err));
    }
    if (options->dump != NULL && (strcmp(options->dump, passes[i].name) == 0 ||
                                  strcmp(options->dump, MGL_ALL_PASSES) == 0)) {
      mgl_dump_pass(tg, passes[i].name, options->dump_text);
      MGL_TRY(mgl_text_check(options->dump_text, err));
    }
  }
  return options->verify ? mgl_task_graph_verify(tg->program, *out, err) : MGL_OK;
}

static mgl_status check_dump(const mgl_compile_options *options, mgl_error *err) {
  if (options->dump == NULL || strcmp(options->dump, MGL_ALL_PASSES) == 0) {
    return MGL_OK;
  }
  for (uint32_t i = 0; i < PASS_COUNT; i++) {
    if (strcmp(options->dump, passes[i].name) == 0) {
      return MGL_OK;
    }
  }
  mgl_text names = {0};
  for (uint32_t i = 0; i < PASS_COUNT; i++) {
    mgl_text_format(&names, "%s%s", i == 0 ? "" : ", ", passes[i].name);
  }
  mgl_status status = mgl_error_set(err, MGL_ERR_ARGUMENT, "dump \"%.64s\": expected one of %s",
                                    options->dump, names.data == NULL ? "" : names.data);
  mgl_text_free(&names);
  return status;
}

mgl_status mgl_compile(const mgl_graph *program, const mgl_compile_options *options,
                       mgl_task_graph **out, mgl_compile_report *report, mgl_error *err) {
  uint64_t start = mgl_clock_ns();
  mgl_tgraph tg = {.program = program, .options = options};
  *out = NULL;
  MGL_TRY(check_dump(options, err));
  mgl_status status = run_passes(&tg, out, err);
  mgl_arena_free(&tg.arena);
  mgl_span_list_free(&tg.scratch);
  if (status != MGL_OK) {
    mgl_task_graph_destroy(*out);
    *out = NULL;
    return status;
  }
  tg.report.ms = (double)(mgl_clock_ns() - start) / 1e6;
  if (report != NULL) {
    *report = tg.report;
  }
  return MGL_OK;
}
