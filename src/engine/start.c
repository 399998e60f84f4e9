#include "engine/start.h"

#include <stdio.h>
#include <string.h>

#include "device/cuda/cuda_program.h"
#include "device/cuda/cuda_ranks.h"

enum {
  TRACE_TASKS = 65536,  // tasks of each worker that a trace keeps
  TRACE_SPANS = 1024,   // on a GPU: spans of each multiprocessor and role
};

// What is made, once the device is known: a runner, or its plan.
typedef struct outcome {
  mgl_runner **runner;  // NULL: only the plan is wanted
  mgl_sizes *plan;
  const char **device;
} outcome;

static void add_note(mgl_site *site, const char *note) {
  const size_t used = strlen(site->note);
  if (note[0] != 0) {
    (void)snprintf(site->note + used, sizeof site->note - used, "%s%s", used > 0 ? "; " : "", note);
  }
}

static mgl_status make(mgl_site *site, const mgl_start *start, const mgl_build *build,
                       const outcome *out, mgl_error *err) {
  if (out->runner == NULL) {
    *out->device = build->cuda != NULL ? site->device.name : "CPU";
    return mgl_runner_measure(start->folder, build, out->plan, err);
  }
  MGL_TRY(mgl_runner_create(start->folder, build, out->runner, err));
  add_note(site, mgl_runner_note(*out->runner));
  return MGL_OK;
}

// --- GPUs ----------------------------------------------------------------------------------------

static mgl_status make_on_opened(mgl_site *site, const mgl_start *start, const mgl_build *wanted,
                                 uint32_t rank, const outcome *out, mgl_error *err) {
  const mgl_cuda_options cuda = {
      .device = &site->device,
      .ranks = site->ranks,
      .launch = start->launch != NULL ? *start->launch : (mgl_cuda_launch_options){0}};
  mgl_build build = *wanted;
  build.cuda = &cuda;
  build.trace_tasks = start->traces ? TRACE_SPANS : 0;
  if (build.logit_rows == MGL_EVERY_ROW && !build.look) {  // only the CPU has so many
    build.logit_rows = 0;
  }
  if (rank != 0) {
    build.progress = build.captures = (mgl_weights_progress){0};
  }
  mgl_cuda_device_choose_code(&site->device, build.compilation);
  return make(site, start, &build, out, err);
}

// Makes the ranks of processes that have come by themselves, each with its GPU. *build becomes what
// rank 0 has said.
static mgl_status join(mgl_site *site, const mgl_start *start, mgl_build *build, mgl_error *err) {
  mgl_crew *crew = build->crew;
  mgl_crew_place ignored;  // processors are not what they compute with
  MGL_TRY(mgl_crew_gather(crew, 1, &ignored, err));
  if (mgl_crew_rank(crew) == 0) {
    MGL_TRY(mgl_crew_tell(crew, build, sizeof *build, -1, err));
  } else {
    mgl_build first;
    int none = -1;
    MGL_TRY(mgl_crew_hear(crew, &first, sizeof first, &none, err));
    *build = mgl_build_of_first(&first, build);
  }
  MGL_TRY(mgl_cuda_ranks_start(build->ranks, crew, &site->ranks, err));
  if (build->weights != MGL_WEIGHTS_DUMMY && start->folder->checkpoint == NULL) {
    return mgl_error_set(err, MGL_ERR_ARGUMENT,
                         "expected the model to have weights, as rank 0's has");
  }
  return mgl_cuda_ranks_apart(&site->device, site->ranks, err);
}

// Rank r of several runs on GPU ordinal + r, or the only one that its launcher shows it.
static mgl_status make_on_gpu(mgl_site *site, const mgl_start *start, uint32_t ordinal,
                              const outcome *out, mgl_error *err) {
  mgl_build build = *start->build;
  const bool is_crew = build.crew != NULL && out->runner != NULL;
  uint32_t rank = 0;
  if (start->not_on_gpu != NULL) {
    return mgl_error_set(err, MGL_ERR_ARGUMENT, "%s", start->not_on_gpu);
  }
  if (is_crew) {
    rank = mgl_crew_rank(build.crew);
    ordinal = mgl_cuda_ranks_ordinal(ordinal, rank, mgl_cuda_device_count());
  } else if (build.ranks > 1 && out->runner != NULL) {  // before anything of CUDA is open
    MGL_TRY(mgl_cuda_ranks_start(build.ranks, NULL, &site->ranks, err));
    rank = mgl_ranks_rank(site->ranks);
    ordinal += rank;
  }
  mgl_status status = mgl_cuda_device_open((int)ordinal, &site->device, err);
  if (status == MGL_OK && is_crew) {
    status = join(site, start, &build, err);
  }
  if (status == MGL_OK) {
    status = make_on_opened(site, start, &build, rank, out, err);
  }
  if (rank != 0 && site->ranks != NULL) {
    mgl_ranks_leave(site->ranks, err);
  }
  if (status != MGL_OK) {
    if (site->ranks != NULL) {
      mgl_ranks_abandon(site->ranks);
    }
    mgl_site_leave(site);
  }
  return status;
}

// -------------------------------------------------------------------------------------------------

// Whether the first GPU runs it, where nobody chose a device; if not, why, in the site's note.
static mgl_status try_gpu(mgl_site *site, const mgl_start *start, const outcome *out, bool *runs,
                          mgl_error *err) {
  mgl_error reason = {0};
  const mgl_status status = make_on_gpu(site, start, 0, out, &reason);
  *runs = status == MGL_OK;
  if (status == MGL_OK) {
    return MGL_OK;
  }
  if (start->not_on_gpu == NULL && !mgl_device_may_fall_back(status)) {
    return mgl_error_set(err, status, "%s", reason.text);
  }
  (void)snprintf(site->note, sizeof site->note, "running on the CPU, not on the GPU: %.*s",
                 (int)mgl_device_reason_bytes(reason.text), reason.text);
  return MGL_OK;
}

static mgl_status make_anywhere(mgl_site *site, const mgl_start *start, const outcome *out,
                                mgl_error *err) {
  const mgl_build *asked = start->build;
  bool runs = false;
  site->note[0] = 0;
  if (start->device.kind == MGL_DEVICE_CUDA) {
    return make_on_gpu(site, start, start->device.ordinal, out, err);
  }
  // Ranks and task graphs are for one kind of device, and the usual one for them is the CPU.
  if (mgl_device_auto_tries(&start->device) && asked->ranks < 2 && asked->given_count == 0) {
    MGL_TRY(try_gpu(site, start, out, &runs, err));
  }
  if (runs) {
    return MGL_OK;
  }
  if (start->not_on_cpu != NULL) {
    return mgl_error_set(err, MGL_ERR_ARGUMENT, "%s", start->not_on_cpu);
  }
  mgl_build build = *asked;
  build.trace_tasks = start->traces ? TRACE_TASKS : 0;
  return make(site, start, &build, out, err);
}

mgl_status mgl_site_start(mgl_site *site, const mgl_start *start, mgl_runner **out,
                          mgl_error *err) {
  *out = NULL;
  return make_anywhere(site, start, &(outcome){.runner = out}, err);
}

mgl_status mgl_site_measure(mgl_site *site, const mgl_start *start, mgl_sizes *out,
                            const char **device, mgl_error *err) {
  return make_anywhere(site, start, &(outcome){.plan = out, .device = device}, err);
}

void mgl_site_leave(mgl_site *site) {
  mgl_ranks_stop(site->ranks);
  site->ranks = NULL;
  mgl_cuda_device_close(&site->device);
}
