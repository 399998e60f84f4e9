// A GPU as a device: the model as a GPU program, and modes mega and full to run it.
//
// Requests are served by launches for many iterations (serve_fed.c): the device plans and samples
// by itself. What those cannot do (logits for scoring, a single iteration) runs plan by plan, a
// launch for each.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "device/cpu/cpu_memory.h"
#include "device/cuda/cuda_custom.h"
#include "device/debug_dump.h"
#include "engine/device_table.h"
#include "engine/engine_parts.h"
#include "engine/sampler.h"
#include "lower/choose.h"
#include "lower/packed.h"
#include "twin/wide_items.h"

enum {
  USUAL_ITERATION_TOKENS = MGL_CUDA_MAX_TOKENS,
  // On GPUs with kernels for more (MGL_WIDE_MAX_WORKERS; docs/log/106 has others).
  USUAL_LARGE_ITERATION_TOKENS = MGL_MAX_ITERATION_TOKENS,
  USUAL_LARGE_SEQUENCES = 256,
};
#define USUAL_SHARE 0.9

typedef struct cuda_model {
  mgl_cuda_options options;
  mgl_cuda_program *program;
  uint32_t vocab;
  float *logits;  // [logit_rows, V]
  uint32_t best[MGL_MAX_ITERATION_TOKENS];
  char note[MGL_SIZES_NOTE_BYTES];
} cuda_model;

static mgl_status cuda_open(const mgl_build *build, void **out, mgl_error *err) {
  cuda_model *m = mgl_alloc_zeroed(1, sizeof *m);
  if (m == NULL) {
    return mgl_error_set(err, MGL_ERR_MEMORY, "out of memory for a GPU program");
  }
  m->options = *build->cuda;
  *out = m;
  return MGL_OK;
}

// Whether the kernels of large iterations have all ops of a fused program: of those that fused
// tasks cover, they lack windows, sinks, biases of sums and of experts, experts of codes, and
// custom ops.
static bool has_stages(const mgl_graph *fused) {
  return mgl_stages_run(fused, true) && mgl_cuda_custom_find(fused) == NULL;
}

// The portable ones.
static bool has_portable_stages(const mgl_graph *fused) {
  return mgl_stages_run(fused, false) && mgl_cuda_custom_find(fused) == NULL;
}

// Whether mode full and its like have: they lack windows, sinks, biases of sums, and custom ops.
static bool has_chains(const mgl_graph *fused) {
  mgl_cuda_model model = {0};
  mgl_error ignored = {0};
  return mgl_cuda_custom_find(fused) == NULL &&
         mgl_cuda_model_of(fused, &model, &ignored) == MGL_OK && !model.extras.windows &&
         !model.extras.sinks && !model.extras.sum_biases;
}

// The same of a program that is not fused yet. One that fusing refuses has neither, as the device
// will say when it is made.
static bool will_have(const mgl_graph *program, bool (*has)(const mgl_graph *fused)) {
  mgl_graph *fused = NULL;
  mgl_error ignored = {0};
  if (mgl_fuse_ops_cuda(program, &fused, &ignored) != MGL_OK) {
    return false;
  }
  const bool it_has = has(fused);
  mgl_graph_destroy(fused);
  return it_has;
}

static void cuda_defaults(const void *model, const mgl_build *build, const mgl_graph *program,
                          mgl_device_defaults *out) {
  (void)build;
  const cuda_model *m = model;
  const bool wgmma = m->options.device->kernels == MGL_CUDA_KERNELS_WGMMA;
  bool large = m->options.device->sm_count <= MGL_WIDE_MAX_WORKERS &&
               will_have(program, wgmma ? has_stages : has_portable_stages);
  *out = (mgl_device_defaults){
      .where = "this GPU",
      .iteration_tokens = large ? USUAL_LARGE_ITERATION_TOKENS : USUAL_ITERATION_TOKENS,
      .most_tokens = large ? MGL_MAX_ITERATION_TOKENS : (uint32_t)MGL_CUDA_MAX_TOKENS,
      .sequences = large ? USUAL_LARGE_SEQUENCES : MGL_USUAL_SEQUENCES,
      .page_tokens = MGL_CUDA_KV_PAGE_TOKENS,
      .share = USUAL_SHARE};
}

static mgl_cuda_program_options program_options(const cuda_model *m, const mgl_device_job *job) {
  return (mgl_cuda_program_options){.program = job->program,
                                    .checkpoint = job->checkpoint,
                                    .build = *job->build,
                                    .sizes = *job->sizes,
                                    .get_code = m->options.get_code,
                                    .ranks = m->options.ranks,
                                    .poison = job->build->look,
                                    .keep_activations = job->build->look};
}

static mgl_status cuda_covers(const mgl_graph *program, mgl_error *err) {
  mgl_graph *fused = NULL;
  mgl_cuda_model model;
  MGL_TRY(mgl_fuse_ops_cuda(program, &fused, err));
  mgl_status status = mgl_cuda_model_of(fused, &model, err);
  if (status == MGL_OK) {
    status = mgl_packed_check(fused, err);
  }
  mgl_graph_destroy(fused);
  return status;
}

// Mode mega, and those in which an iteration is a chain of kernels; what is not fused (mode eager)
// is of plain kernels.
static uint32_t modes_with(bool chains) {
  const uint32_t all = (1u << MGL_MODE_COUNT) - 1;
  const mgl_mode eager = mgl_mode_of(MGL_LEVEL_EAGER, MGL_GRAPHS_NONE);
  return chains ? all & ~(1u << eager) : 1u << MGL_MODE_MEGA;
}

static uint32_t cuda_modes_of(const mgl_graph *program) {
  return modes_with(will_have(program, has_chains));
}

static mgl_status cuda_measure(void *model, const mgl_device_job *job, mgl_sizes *sizes,
                               mgl_error *err) {
  const cuda_model *m = model;
  mgl_cuda_program_options options = program_options(m, job);
  mgl_cuda_program_memory memory;
  MGL_TRY(mgl_cuda_program_measure(m->options.device, &options, &memory, err));
  if (m->options.ranks != NULL) {  // all make the same plans, so have as many pages
    MGL_TRY(mgl_ranks_meet(m->options.ranks, memory.free_bytes, &memory.free_bytes, err));
  }
  const uint64_t *bytes = memory.bytes;
  uint64_t all = 0;
  for (uint32_t i = 0; i < MGL_CUDA_MEMORY_COUNT; i++) {
    all += bytes[i];
  }
  sizes->workers = memory.workers;
  sizes->page_count = memory.page_count;
  sizes->free_bytes = memory.free_bytes;
  sizes->weight_bytes = bytes[MGL_CUDA_MEMORY_WEIGHTS] + bytes[MGL_CUDA_MEMORY_TABLE] +
                        bytes[MGL_CUDA_MEMORY_VECTORS];
  sizes->activation_bytes = bytes[MGL_CUDA_MEMORY_ACTIVATIONS] + bytes[MGL_CUDA_MEMORY_PARTIALS] +
                            bytes[MGL_CUDA_MEMORY_WIDE];
  sizes->loading_bytes = bytes[MGL_CUDA_MEMORY_STAGING];
  sizes->kv_bytes_per_token = mgl_graph_kv_bytes_per_token(job->program);
  // The one page that nobody uses is among them.
  sizes->other_bytes = all - sizes->weight_bytes - sizes->activation_bytes - sizes->loading_bytes -
                       mgl_sizes_kv_bytes(sizes);
  return MGL_OK;
}

// What a rank other than 0 does for the rest of its life.
static _Noreturn void follow(cuda_model *m, mgl_status status, mgl_error *err) {
  if (status == MGL_OK) {
    status = mgl_cuda_program_follow(m->program, err);
  }
  mgl_ranks_leave(m->options.ranks, status == MGL_OK ? NULL : err);
}

static mgl_cuda_launch_options launch_options(const cuda_model *m, mgl_mode mode);
static void note_graphs(cuda_model *m, mgl_mode mode);

// Sizes that were asked for are captured before anything runs.
static mgl_status capture_sizes(cuda_model *m, const mgl_build *build, mgl_error *err) {
  const mgl_compilation *c = build->compilation;
  if (c == NULL || c->mode == MGL_MODE_MEGA || c->capture_sizes.count + c->graph_sizes.count == 0) {
    return MGL_OK;
  }
  const mgl_cuda_launch_options launch = launch_options(m, c->mode);
  MGL_TRY(mgl_cuda_full_capture(m->program, &launch, &build->captures, err));
  note_graphs(m, c->mode);
  return MGL_OK;
}

static mgl_status cuda_create(void *model, const mgl_device_job *job, mgl_error *err) {
  cuda_model *m = model;
  uint32_t rows = job->sizes->logit_rows;
  mgl_cuda_program_options options = program_options(m, job);
  mgl_debug_dump_rank(m->options.ranks != NULL ? mgl_ranks_rank(m->options.ranks) : 0);
  mgl_status status = mgl_debug_dump_program(job->build, "program.txt", job->program, err);
  if (status == MGL_OK) {
    status = mgl_cuda_program_create(m->options.device, &options, &m->program, err);
  }
  if (m->options.ranks != NULL && mgl_ranks_rank(m->options.ranks) != 0) {
    follow(m, status, err);
  }
  MGL_TRY(status);
  MGL_TRY(capture_sizes(m, job->build, err));
  m->vocab = mgl_cuda_program_describe(m->program).model.vocab;
  m->logits = mgl_alloc_zeroed((size_t)rows * m->vocab, sizeof *m->logits);
  return m->logits != NULL
             ? MGL_OK
             : mgl_error_set(err, MGL_ERR_MEMORY, "out of memory for %u rows of logits", rows);
}

static mgl_status cuda_check(const void *model, mgl_error *err) {
  mgl_ranks *ranks = ((const cuda_model *)model)->options.ranks;
  return ranks == NULL ? MGL_OK : mgl_ranks_check(ranks, err);
}

static void cuda_destroy(void *model) {
  cuda_model *m = model;
  mgl_cuda_program_destroy(m->program);
  mgl_free(m->logits);
  mgl_free(m);
}

static mgl_status cuda_prepare(void *model, mgl_mode mode, mgl_error *err) {
  (void)model;
  (void)mode;
  (void)err;
  return MGL_OK;  // all is there
}

static mgl_cuda_full_how how_of(mgl_graph_mode graphs) {
  return graphs == MGL_GRAPHS_FULL        ? MGL_CUDA_FULL_WHOLE
         : graphs == MGL_GRAPHS_PIECEWISE ? MGL_CUDA_FULL_PIECES
                                          : MGL_CUDA_FULL_LOOSE;
}

static mgl_cuda_launch_options launch_options(const cuda_model *m, mgl_mode mode) {
  mgl_cuda_launch_options launch = m->options.launch;
  launch.full = mode != MGL_MODE_MEGA;
  launch.how = how_of(mgl_graph_mode_decode(mgl_mode_graphs(mode)));
  launch.mixed_how = mgl_mode_graphs(mode) == MGL_GRAPHS_FULL_AND_PIECEWISE
                         ? MGL_CUDA_FULL_FASTER
                         : how_of(mgl_graph_mode_mixed(mgl_mode_graphs(mode)));
  return launch;
}

// Says which way mixed iterations were found faster, behind what the note has.
static void note_faster(cuda_model *m) {
  uint32_t sizes[MGL_CUDA_WAYS];
  const size_t used = strlen(m->note);
  mgl_cuda_full_faster(m->program, sizes);
  if (sizes[MGL_CUDA_WAY_PIECES] + sizes[MGL_CUDA_WAY_LOOSE] > 0) {
    (void)snprintf(m->note + used, sizeof m->note - used,
                   "%smixed iterations: of %u sizes faster in pieces, of %u op by op",
                   used > 0 ? "; " : "", sizes[MGL_CUDA_WAY_PIECES], sizes[MGL_CUDA_WAY_LOOSE]);
  }
}

// Graphs are captured by the launches that first need them.
static void note_graphs(cuda_model *m, mgl_mode mode) {
  if (mode != MGL_MODE_MEGA) {
    const mgl_cuda_graph_counts counts = mgl_cuda_full_count(m->program);
    mgl_cuda_capture_note(&counts, m->note, sizeof m->note);
    note_faster(m);
  }
}

// Each in a launch of its own.
static mgl_status cuda_run_plans(void *model, mgl_mode mode, mgl_next_plan_callback *next,
                                 void *context, mgl_error *err) {
  cuda_model *m = model;
  mgl_cuda_launch_options launch = launch_options(m, mode);
  const mgl_logits logits = {.rows = m->logits, .best = m->best};
  const mgl_plan *plan = next(context, NULL);
  while (plan != NULL) {
    MGL_TRY(mgl_cuda_program_run_plan(m->program, plan, &launch, m->logits, err));
    for (uint32_t row = 0; row < plan->logit_row_count; row++) {
      m->best[row] = mgl_argmax(m->logits + (size_t)row * m->vocab, m->vocab);
    }
    plan = next(context, &logits);
  }
  note_graphs(m, mode);
  return MGL_OK;
}

mgl_status mgl_device_cuda_generate(void *model, mgl_mode mode, const mgl_cuda_generate *job,
                                    mgl_error *err) {
  cuda_model *m = model;
  mgl_cuda_generate generate = *job;
  generate.launch = launch_options(m, mode);
  mgl_status status = mgl_cuda_program_generate(m->program, &generate, err);
  note_graphs(m, mode);
  return status;
}

mgl_cuda_program *mgl_device_cuda_program(void *model) {
  return ((cuda_model *)model)->program;
}

static mgl_status cuda_read_ceiling(void *model, uint32_t passes, double *out_bytes_per_s,
                                    mgl_error *err) {
  return mgl_cuda_program_read_ceiling(((cuda_model *)model)->program, passes, out_bytes_per_s,
                                       err);
}

static mgl_status cuda_trace(const void *model, mgl_text *out, mgl_error *err) {
  return mgl_cuda_program_trace_json(((const cuda_model *)model)->program, out, err);
}

static void cuda_describe(const void *model, mgl_device_info *out) {
  const cuda_model *m = model;
  const char *code_note = mgl_cuda_program_note(m->program);  // which matters more
  mgl_cuda_program_info info = mgl_cuda_program_describe(m->program);
  *out = (mgl_device_info){.workers = info.workers,
                           .step_bytes = info.step_bytes,
                           .kv_bytes_per_token = info.kv_bytes_per_token,
                           .gpu = m->options.device,
                           .note = code_note[0] != 0 ? code_note : m->note};
  const mgl_cuda_graph_counts counts = mgl_cuda_full_count(m->program);
  out->launches = (mgl_launch_counts){.iterations = counts.iterations,
                                      .graphs = counts.graphs,
                                      .ops = counts.ops,
                                      .entries = counts.captured};
}

// --- looking at parts of an iteration (device/cuda/cuda_look.c) ----------------------------------

static uint32_t graph_of(uint32_t tokens) {
  uint32_t graph = 0;
  while (1u << graph < tokens) {
    graph++;
  }
  return graph;
}

static mgl_status cuda_take_mode(void *model, mgl_mode mode, mgl_error *err) {
  const cuda_model *m = model;
  const mgl_graph *fused = mgl_cuda_program_fused(m->program);
  if ((modes_with(has_chains(fused)) >> mode & 1) == 0) {
    return mgl_error_set(err, MGL_ERR_UNSUPPORTED,
                         "parts of an iteration: expected a mode of fused kernels on a GPU, such "
                         "as mega or full, found %s",
                         mgl_mode_name(mode));
  }
  return MGL_OK;
}

static const mgl_graph *cuda_fused(const void *model) {
  return mgl_cuda_program_fused(((const cuda_model *)model)->program);
}

static mgl_status cuda_choose(void *model, uint32_t first, uint32_t last, mgl_error *err) {
  return mgl_cuda_program_choose(((cuda_model *)model)->program, first, last, err);
}

static mgl_status cuda_write(void *model, uint32_t tokens, const char *name, const float *values,
                             size_t count, mgl_error *err) {
  mgl_cuda_program *p = ((cuda_model *)model)->program;
  return tokens > MGL_CUDA_MAX_TOKENS
             ? mgl_cuda_program_write_large(p, tokens, name, values, count, err)
             : mgl_cuda_program_write(p, graph_of(tokens), name, values, count, err);
}

static mgl_status cuda_read(void *model, uint32_t tokens, const char *name, float *out,
                            size_t count, mgl_error *err) {
  mgl_cuda_program *p = ((cuda_model *)model)->program;
  return tokens > MGL_CUDA_MAX_TOKENS
             ? mgl_cuda_program_read_large(p, tokens, name, out, count, err)
             : mgl_cuda_program_read(p, graph_of(tokens), name, out, count, err);
}

static mgl_status cuda_write_kv(void *model, const char *name, uint32_t page, const float *k,
                                const float *v, mgl_error *err) {
  return mgl_cuda_program_write_kv(((cuda_model *)model)->program, name, page, k, v, err);
}

static mgl_status cuda_read_kv(void *model, const char *name, uint32_t page, float *k, float *v,
                               mgl_error *err) {
  return mgl_cuda_program_read_kv(((cuda_model *)model)->program, name, page, k, v, err);
}

const mgl_device_table mgl_cuda_table = {.modes = (1u << MGL_MODE_COUNT) - 1,
                                         .mode_hint =
                                             "mega or full on a GPU, compiled or one with pieces; "
                                             "try --device cpu",
                                         .modes_of = cuda_modes_of,
                                         .covers = cuda_covers,
                                         .otherwise = &mgl_cuda_plain_table,
                                         .open = cuda_open,
                                         .defaults = cuda_defaults,
                                         .measure = cuda_measure,
                                         .create = cuda_create,
                                         .destroy = cuda_destroy,
                                         .check = cuda_check,
                                         .prepare = cuda_prepare,
                                         .run_plans = cuda_run_plans,
                                         .serve = mgl_serve_fed,
                                         .read_ceiling = cuda_read_ceiling,
                                         .trace = cuda_trace,
                                         .describe = cuda_describe,
                                         .look = {.take_mode = cuda_take_mode,
                                                  .program = cuda_fused,
                                                  .choose = cuda_choose,
                                                  .write = cuda_write,
                                                  .read = cuda_read,
                                                  .write_kv = cuda_write_kv,
                                                  .read_kv = cuda_read_kv}};
