#include "engine/memory_plan.h"

#include "base/alloc.h"
#include "device/cpu/cpu_memory.h"
#include "device/cpu/cpu_program.h"

uint64_t mgl_memory_plan_kv_bytes(const mgl_memory_plan *plan) {
  return (uint64_t)plan->page_count * plan->page_tokens * plan->kv_bytes_per_token;
}

// All but the KV pages.
static uint64_t fixed_bytes(const mgl_memory_plan *plan) {
  return plan->weight_bytes + plan->mapped_bytes + plan->activation_bytes + plan->other_bytes;
}

uint64_t mgl_memory_plan_total(const mgl_memory_plan *plan) {
  return fixed_bytes(plan) + mgl_memory_plan_kv_bytes(plan);
}

// --- the CPU -------------------------------------------------------------------------------------

static uint64_t descriptor_bytes(const mgl_task_graph *graph) {
  return graph->task_count * sizeof *graph->tasks + graph->event_count * sizeof *graph->events +
         graph->aot_start[graph->worker_count] * sizeof *graph->aot_tasks;
}

// Activations and scratch are shared by all programs of a model: the largest of each counts. Task
// graphs for fewer tokens need no more than the one for the most.
static mgl_status plan_programs(const mgl_graph *program, const mgl_memory_plan_options *options,
                                const mgl_graph *fused, const mgl_task_graph *tasks,
                                mgl_memory_plan *out, mgl_error *err) {
  mgl_cpu_program_options eager = {.largest = {.tokens = options->limits.tokens,
                                               .logit_rows = options->logit_rows,
                                               .sequences = options->limits.sequences}};
  mgl_cpu_program_options mega = {.task_graph = tasks};
  mgl_cpu_program_sizes sizes[2];
  MGL_TRY(mgl_cpu_program_measure(program, &eager, &sizes[0], err));
  MGL_TRY(mgl_cpu_program_measure(fused, &mega, &sizes[1], err));
  for (size_t i = 1; i < 2; i++) {
    if (sizes[i].activation_bytes > sizes[0].activation_bytes) {
      sizes[0].activation_bytes = sizes[i].activation_bytes;
    }
    if (sizes[i].scratch_bytes > sizes[0].scratch_bytes) {
      sizes[0].scratch_bytes = sizes[i].scratch_bytes;
    }
  }
  uint64_t threads = (uint64_t)options->workers + options->schedulers;
  out->activation_bytes = sizes[0].activation_bytes + sizes[0].scratch_bytes * threads;
  return MGL_OK;
}

mgl_status mgl_memory_plan_cpu(const mgl_graph *program, const mgl_memory_plan_options *options,
                               mgl_memory_plan *out, mgl_error *err) {
  mgl_graph *fused = NULL;
  mgl_task_graph *tasks = NULL;
  mgl_cpu_weight_sizes weights = mgl_cpu_weights_measure(program);
  bool mapped = options->weights == MGL_WEIGHTS_MAPPED;
  *out = (mgl_memory_plan){
      .free_bytes = mgl_memory_available(),
      .weight_bytes = weights.vector_bytes + (mapped ? weights.code_bytes : weights.matrix_bytes),
      .mapped_bytes = mapped ? weights.matrix_bytes - weights.code_bytes : 0,
      .kv_bytes_per_token = mgl_graph_kv_bytes_per_token(program),
      .page_tokens = options->limits.page_tokens,
      .page_count = options->page_count,
      .workers = options->workers,
  };
  uint32_t graphs = 1;
  uint32_t tokens = 1;
  for (; tokens < options->limits.tokens; tokens *= 2) {
    graphs++;
  }
  mgl_compile_options compile = {.tokens = tokens,
                                 .logit_rows = options->logit_rows,
                                 .workers = options->workers,
                                 .launch = options->launch,
                                 .overrides = options->overrides,
                                 .override_count = options->override_count};
  mgl_status status = mgl_fuse_ops(program, &fused, err);
  if (status == MGL_OK) {
    status = mgl_compile(fused, &compile, &tasks, NULL, err);
  }
  if (status == MGL_OK) {
    status = plan_programs(program, options, fused, tasks, out, err);
  }
  if (status == MGL_OK) {
    out->other_bytes = graphs * descriptor_bytes(tasks);
  }
  mgl_task_graph_destroy(tasks);
  mgl_graph_destroy(fused);
  return status;
}

// --- a GPU ---------------------------------------------------------------------------------------

mgl_status mgl_memory_plan_gpu(const mgl_cuda_device *device,
                               const mgl_cuda_program_options *options, uint32_t page_tokens,
                               mgl_memory_plan *out, mgl_error *err) {
  mgl_cuda_program_memory memory;
  MGL_TRY(mgl_cuda_program_measure(device, options, &memory, err));
  const uint64_t *bytes = memory.bytes;
  *out = (mgl_memory_plan){
      .free_bytes = memory.free_bytes,
      .weight_bytes = bytes[MGL_CUDA_MEMORY_WEIGHTS] + bytes[MGL_CUDA_MEMORY_TABLE] +
                      bytes[MGL_CUDA_MEMORY_VECTORS],
      .activation_bytes = bytes[MGL_CUDA_MEMORY_ACTIVATIONS] + bytes[MGL_CUDA_MEMORY_PARTIALS] +
                          bytes[MGL_CUDA_MEMORY_WIDE],
      .loading_bytes = bytes[MGL_CUDA_MEMORY_STAGING],
      .kv_bytes_per_token = mgl_graph_kv_bytes_per_token(options->program),
      .page_tokens = page_tokens,
      .page_count = memory.page_count,
      .workers = memory.workers,
  };
  uint64_t all = 0;
  for (uint32_t i = 0; i < MGL_CUDA_MEMORY_COUNT; i++) {
    all += bytes[i];
  }
  // The one page that nobody uses is among them.
  out->other_bytes = all - out->weight_bytes - out->activation_bytes - out->loading_bytes -
                     mgl_memory_plan_kv_bytes(out);
  return MGL_OK;
}

// -------------------------------------------------------------------------------------------------

static double mib(double bytes) {
  return bytes / (1 << 20);
}

mgl_status mgl_memory_plan_share(mgl_memory_plan *plan, double share, mgl_error *err) {
  double page_bytes = (double)plan->kv_bytes_per_token * plan->page_tokens;
  double fixed = (double)fixed_bytes(plan);
  double wanted = (double)plan->free_bytes * share;
  double while_loading = (double)plan->free_bytes - (double)plan->loading_bytes;
  double budget = (wanted < while_loading ? wanted : while_loading) - fixed;
  double pages = budget / page_bytes;
  if (!(pages >= 1)) {
    return mgl_error_set(err, MGL_ERR_MEMORY,
                         "no memory for a KV page: weights take %.0f MiB, activations and the rest "
                         "%.0f MiB, a page %.2f MiB, and %.0f MiB are %.3g of what is free; a "
                         "larger memory share or fewer sequences may help",
                         mib((double)(plan->weight_bytes + plan->mapped_bytes)),
                         mib((double)(plan->activation_bytes + plan->other_bytes)), mib(page_bytes),
                         mib(wanted), share);
  }
  if (pages < plan->page_count) {
    plan->page_count = (uint32_t)pages;
  }
  return MGL_OK;
}
