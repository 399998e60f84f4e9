// A GPU as a device for models that no fused task covers, and for modes that only plain kernels
// have: a kernel for every op (device/cuda/cuda_plain.h), one by one in mode eager, else in graphs
// of all ops or of pieces (device/cuda/cuda_plain_graphs.h). The host plans, and chooses tokens
// from logits that come back to it; so grammars and all sampling parameters work.
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "device/cpu/cpu_memory.h"
#include "device/cuda/cuda_plain.h"
#include "device/cuda/cuda_plain_graphs.h"
#include "device/cuda/cuda_plain_look.h"
#include "device/debug_dump.h"
#include "engine/device_table.h"
#include "engine/engine_parts.h"
#include "engine/sampler.h"

enum { USUAL_ITERATION_TOKENS = 256 };  // logits of every sequence are copied each iteration
#define USUAL_SHARE 0.9

typedef struct plain_model {
  mgl_cuda_options options;
  mgl_cuda_plain *program;
  mgl_cuda_plain_graphs *graphs;
  bool check_numbers;
  char note[MGL_SIZES_NOTE_BYTES];
  uint64_t kv_bytes_per_token;
  uint32_t vocab;
  float *logits;  // [logit_rows, V]
  uint32_t best[MGL_MAX_ITERATION_TOKENS];
} plain_model;

static mgl_status plain_open(const mgl_build *build, void **out, mgl_error *err) {
  if (build->given_count > 0) {
    return mgl_error_set(err, MGL_ERR_UNSUPPORTED,
                         "task graphs from files: expected a model that a GPU's fused tasks cover, "
                         "found one that runs by plain kernels there: use --device cpu");
  }
  plain_model *m = mgl_alloc_zeroed(1, sizeof *m);
  if (m == NULL) {
    return mgl_error_set(err, MGL_ERR_MEMORY, "out of memory for a GPU program");
  }
  m->options = *build->cuda;
  *out = m;
  return MGL_OK;
}

static void plain_defaults(const void *model, const mgl_build *build, const mgl_graph *program,
                           mgl_device_defaults *out) {
  (void)program;
  (void)model, (void)build;
  *out = (mgl_device_defaults){.where = "this GPU",
                               .iteration_tokens = USUAL_ITERATION_TOKENS,
                               .most_tokens = MGL_MAX_ITERATION_TOKENS,
                               .sequences = MGL_USUAL_SEQUENCES,
                               .page_tokens = 0,
                               .share = USUAL_SHARE};
}

// Where fused tasks cover the program, plain kernels have their bits.
static mgl_cuda_plain_options plain_options(const plain_model *m, const mgl_device_job *job) {
  mgl_error ignored = {0};
  return (mgl_cuda_plain_options){
      .program = job->program,
      .checkpoint = job->checkpoint,
      .build = job->build,
      .sizes = *job->sizes,
      .fused_order = mgl_cuda_table.covers(job->program, &ignored) == MGL_OK,
      .get_code = m->options.get_code};
}

static mgl_status plain_measure(void *model, const mgl_device_job *job, mgl_sizes *sizes,
                                mgl_error *err) {
  const plain_model *m = model;
  const mgl_cuda_plain_options options = plain_options(m, job);
  return mgl_cuda_plain_measure(m->options.device, &options, sizes, err);
}

// What was captured, or what the code's note says, which matters more.
static void note_graphs(plain_model *m) {
  const mgl_cuda_graph_counts counts = mgl_cuda_plain_graphs_count(m->graphs);
  (void)snprintf(m->note, sizeof m->note, "%s", mgl_cuda_plain_note(m->program));
  if (m->note[0] == 0) {
    mgl_cuda_capture_note(&counts, m->note, sizeof m->note);
  }
}

static mgl_status plain_create(void *model, const mgl_device_job *job, mgl_error *err) {
  plain_model *m = model;
  uint32_t rows = job->sizes->logit_rows;
  const mgl_cuda_plain_options options = plain_options(m, job);
  MGL_TRY(mgl_debug_dump_program(job->build, "program.txt", job->program, err));
  MGL_TRY(mgl_cuda_plain_create(m->options.device, &options, &m->program, err));
  MGL_TRY(mgl_cuda_plain_graphs_create(m->program, job->build->compilation, &job->build->captures,
                                       &m->graphs, err));
  m->check_numbers = job->build->compilation != NULL && job->build->compilation->check_numbers;
  note_graphs(m);
  m->kv_bytes_per_token = mgl_graph_kv_bytes_per_token(job->program);
  m->vocab = job->program->tensors[mgl_graph_find(job->program, "logits")].dims[1].number;
  m->logits = mgl_alloc_zeroed((size_t)rows * m->vocab, sizeof *m->logits);
  return m->logits != NULL
             ? MGL_OK
             : mgl_error_set(err, MGL_ERR_MEMORY, "out of memory for %u rows of logits", rows);
}

static void plain_destroy(void *model) {
  plain_model *m = model;
  mgl_cuda_plain_graphs_destroy(m->graphs);
  mgl_cuda_plain_destroy(m->program);
  mgl_free(m->logits);
  mgl_free(m);
}

static mgl_status plain_prepare(void *model, mgl_mode mode, mgl_error *err) {
  (void)model, (void)mode, (void)err;
  return MGL_OK;  // all is there
}

static mgl_status plain_run_plans(void *model, mgl_mode mode, mgl_next_plan_callback *next,
                                  void *context, mgl_error *err) {
  plain_model *m = model;
  const mgl_logits logits = {.rows = m->logits, .best = m->best};
  const mgl_plan *plan = next(context, NULL);
  while (plan != NULL) {
    MGL_TRY(m->check_numbers ? mgl_cuda_plain_run(m->program, plan, true, m->logits, err)
                             : mgl_cuda_plain_graphs_run(m->graphs, mgl_mode_graphs(mode), plan,
                                                         m->logits, err));
    for (uint32_t row = 0; row < plan->logit_row_count; row++) {
      m->best[row] = mgl_argmax(m->logits + (size_t)row * m->vocab, m->vocab);
    }
    plan = next(context, &logits);
  }
  return MGL_OK;
}

static mgl_status plain_read_ceiling(void *model, uint32_t passes, double *out_bytes_per_s,
                                     mgl_error *err) {
  return mgl_cuda_plain_read_ceiling(((plain_model *)model)->program, passes, out_bytes_per_s, err);
}

static mgl_status plain_trace(const void *model, mgl_text *out, mgl_error *err) {
  (void)model, (void)out;
  return mgl_error_set(err, MGL_ERR_UNSUPPORTED,
                       "a trace is of fused tasks, and plain kernels run this model");
}

static void plain_describe(const void *model, mgl_device_info *out) {
  const plain_model *m = model;
  *out = (mgl_device_info){.workers = m->options.device->sm_count,
                           .step_bytes = mgl_cuda_plain_step_bytes(m->program),
                           .kv_bytes_per_token = m->kv_bytes_per_token,
                           .gpu = m->options.device,
                           .note = m->note};
  const mgl_cuda_graph_counts counts = mgl_cuda_plain_graphs_count(m->graphs);
  out->launches = (mgl_launch_counts){.iterations = counts.iterations,
                                      .graphs = counts.graphs,
                                      .ops = counts.ops,
                                      .entries = counts.captured};
}

// --- looking at parts of an iteration (device/cuda/cuda_plain_look.h) ----------------------------

static mgl_status plain_take_mode(void *model, mgl_mode mode, mgl_error *err) {
  (void)model;
  if (mode != mgl_mode_of(MGL_LEVEL_EAGER, MGL_GRAPHS_NONE)) {
    return mgl_error_set(err, MGL_ERR_UNSUPPORTED,
                         "parts of an iteration: plain kernels run this model: expected mode "
                         "eager, found %s",
                         mgl_mode_name(mode));
  }
  return MGL_OK;
}

static const mgl_graph *plain_program(const void *model) {
  return mgl_cuda_plain_program(((const plain_model *)model)->program);
}

static mgl_status plain_choose(void *model, uint32_t first, uint32_t last, mgl_error *err) {
  return mgl_cuda_plain_choose(((plain_model *)model)->program, first, last, err);
}

static mgl_status plain_write(void *model, uint32_t tokens, const char *name, const float *values,
                              size_t count, mgl_error *err) {
  (void)tokens;
  return mgl_cuda_plain_write(((plain_model *)model)->program, name, values, count, err);
}

static mgl_status plain_read(void *model, uint32_t tokens, const char *name, float *out,
                             size_t count, mgl_error *err) {
  (void)tokens;
  return mgl_cuda_plain_read(((plain_model *)model)->program, name, out, count, err);
}

static mgl_status plain_write_kv(void *model, const char *name, uint32_t page, const float *k,
                                 const float *v, mgl_error *err) {
  return mgl_cuda_plain_write_kv(((plain_model *)model)->program, name, page, k, v, err);
}

static mgl_status plain_read_kv(void *model, const char *name, uint32_t page, float *k, float *v,
                                mgl_error *err) {
  return mgl_cuda_plain_read_kv(((plain_model *)model)->program, name, page, k, v, err);
}

const mgl_device_table mgl_cuda_plain_table = {
    .hands_out_logits = true,
    // All that need no fused ops.
    .modes = ((1u << MGL_MODE_COUNT) - 1) & ~(1u << MGL_MODE_MEGA | 1u << MGL_MODE_COMPILED),
    .mode_hint =
        "full, eager or one with pieces, since plain kernels run this model; try --device "
        "cpu",
    .covers = mgl_cuda_plain_check,
    .open = plain_open,
    .defaults = plain_defaults,
    .measure = plain_measure,
    .create = plain_create,
    .destroy = plain_destroy,
    .prepare = plain_prepare,
    .run_plans = plain_run_plans,
    .serve = mgl_serve_planned,
    .read_ceiling = plain_read_ceiling,
    .trace = plain_trace,
    .describe = plain_describe,
    .look = {.take_mode = plain_take_mode,
             .program = plain_program,
             .choose = plain_choose,
             .write = plain_write,
             .read = plain_read,
             .write_kv = plain_write_kv,
             .read_kv = plain_read_kv},
};
