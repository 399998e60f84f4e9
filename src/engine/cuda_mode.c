#include "engine/cuda_mode.h"

#include "base/alloc.h"
#include "engine/sampler.h"

struct mgl_cuda_mode {
  mgl_cuda_program *program;
  mgl_cuda_launch_options launch;
  uint32_t vocab;
  float *logits;  // [logit_rows, V]
  uint32_t best[MGL_MAX_ITERATION_TOKENS];
};

static mgl_cuda_program_options program_options(const mgl_cuda_mode_options *options) {
  return (mgl_cuda_program_options){
      .program = options->program,
      .checkpoint = options->checkpoint,
      .seed = options->seed,
      .iteration_tokens = options->limits.tokens,
      .sequences = options->sequences,
      .pages_per_sequence = options->limits.pages_per_sequence,
      .page_count = options->page_count,
      .logit_rows = options->logit_rows,
      .launch = options->launch,
      .overrides = options->overrides,
      .override_count = options->override_count,
      .coarse = options->cuda.coarse,
      .events_only = options->cuda.events_only,
      .schedulers = options->schedulers,
      .scheduler_warps = options->cuda.scheduler_warps,
      .get_code = options->cuda.get_code,
      .trace_spans = options->trace_spans,
      .progress = options->progress->report,
      .progress_context = options->progress->context,
  };
}

mgl_status mgl_cuda_mode_plan_memory(const mgl_cuda_mode_options *options, mgl_memory_plan *out,
                                     mgl_error *err) {
  mgl_cuda_program_options program = program_options(options);
  return mgl_memory_plan_gpu(options->cuda.device, &program, options->limits.page_tokens, out, err);
}

mgl_status mgl_cuda_mode_create(const mgl_cuda_mode_options *options, mgl_cuda_mode **out,
                                mgl_error *err) {
  *out = NULL;
  mgl_cuda_mode *mode = mgl_alloc_zeroed(1, sizeof *mode);
  if (mode == NULL) {
    return mgl_error_set(err, MGL_ERR_MEMORY, "out of memory for a GPU program");
  }
  mode->launch = options->cuda.launch;
  mgl_cuda_program_options program = program_options(options);
  mgl_status status = mgl_cuda_program_create(options->cuda.device, &program, &mode->program, err);
  if (status == MGL_OK) {
    mode->vocab = mgl_cuda_program_describe(mode->program).model.vocab;
    mode->logits =
        mgl_alloc_zeroed((size_t)options->logit_rows * mode->vocab, sizeof *mode->logits);
    if (mode->logits == NULL) {
      status = mgl_error_set(err, MGL_ERR_MEMORY, "out of memory for %u rows of logits",
                             options->logit_rows);
    }
  }
  if (status != MGL_OK) {
    mgl_cuda_mode_destroy(mode);
    return status;
  }
  *out = mode;
  return MGL_OK;
}

void mgl_cuda_mode_destroy(mgl_cuda_mode *mode) {
  if (mode != NULL) {
    mgl_cuda_program_destroy(mode->program);
    mgl_free(mode->logits);
    mgl_free(mode);
  }
}

mgl_cuda_program *mgl_cuda_mode_program(mgl_cuda_mode *mode) {
  return mode->program;
}

static mgl_cuda_launch_options launch_options(const mgl_cuda_mode *mode, bool full) {
  mgl_cuda_launch_options launch = mode->launch;
  launch.full = full;
  return launch;
}

mgl_status mgl_cuda_mode_run(mgl_cuda_mode *mode, bool full, mgl_next_plan_callback *next,
                             void *context, mgl_error *err) {
  mgl_cuda_launch_options launch = launch_options(mode, full);
  const mgl_logits logits = {.rows = mode->logits, .best = mode->best};
  const mgl_plan *plan = next(context, NULL);
  while (plan != NULL) {
    MGL_TRY(mgl_cuda_program_run_plan(mode->program, plan, &launch, mode->logits, err));
    for (uint32_t row = 0; row < plan->logit_row_count; row++) {
      mode->best[row] = mgl_argmax(mode->logits + (size_t)row * mode->vocab, mode->vocab);
    }
    plan = next(context, &logits);
  }
  return MGL_OK;
}

mgl_status mgl_cuda_mode_generate(mgl_cuda_mode *mode, bool full, const mgl_cuda_generate *job,
                                  mgl_error *err) {
  mgl_cuda_generate generate = *job;
  generate.launch = launch_options(mode, full);
  return mgl_cuda_program_generate(mode->program, &generate, err);
}
