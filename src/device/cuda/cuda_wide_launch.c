// The wide class of a GPU program: making it, launches of one plan, and the queue of iterations
// that the device plans (twin/wide_chain.h).
#include <string.h>
#include <time.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "device/cuda/cuda_program_parts.h"

enum {
  POLL_NS = 20 * 1000,
  WARMING_NS = 200 * 1000,            // a launch is polled without pauses for so long
  ABORT_NS = 2 * 1000 * 1000 * 1000,  // a launch that was told to stop must end within this
};
#define DEADLINE_NS UINT64_C(10000000000)

static mgl_cuda_wide_addresses addresses_of(const mgl_cuda_program *p) {
  return (mgl_cuda_wide_addresses){.program = p->program,
                                   .model = &p->model,
                                   .layout = &p->layout,
                                   .wide = &p->wide.layout,
                                   .base = p->memory,
                                   .block = p->memory[MGL_CUDA_MEMORY_WIDE],
                                   .peers = p->ranks != NULL ? &p->peers : NULL};
}

// A block's size, which the kernels for wgmma and the portable ones do not have in common.
static int block_threads(const mgl_cuda_program *p) {
  return p->device->kernels == MGL_CUDA_KERNELS_WGMMA ? (int)MGL_WIDE_THREADS
                                                      : (int)MGL_WIDE_MMA_THREADS;
}

static int block_smem_bytes(const mgl_cuda_program *p) {
  return p->device->kernels == MGL_CUDA_KERNELS_WGMMA ? (int)MGL_WIDE_SMEM_BYTES
                                                      : (int)MGL_WIDE_MMA_SMEM_BYTES;
}

// --- making it -----------------------------------------------------------------------------------

void mgl_cuda_wide_set_options(mgl_cuda_program *p) {
  mgl_sizes *o = &p->sizes;
  if (o->limits.tokens > MGL_CUDA_MAX_TOKENS) {
    p->wide.tokens = o->limits.tokens;
    p->wide.rows = o->logit_rows < MGL_MAX_SEQUENCES ? o->logit_rows : (uint32_t)MGL_MAX_SEQUENCES;
    o->limits.tokens = MGL_CUDA_MAX_TOKENS;
    o->logit_rows = o->logit_rows < o->limits.tokens ? o->logit_rows : o->limits.tokens;
  }
}

mgl_status mgl_cuda_wide_prepare(mgl_cuda_program *p, mgl_error *err) {
  const mgl_sizes *o = &p->sizes;
  if (p->wide.tokens == 0) {
    return MGL_OK;
  }
  if (p->workers > MGL_WIDE_MAX_WORKERS) {
    return mgl_error_set(
        err, MGL_ERR_UNSUPPORTED,
        "iterations of up to %u tokens: the kernels for more than %d are for up to "
        "%d multiprocessors, and %s has %u; ask for %d tokens at most",
        p->wide.tokens, MGL_CUDA_MAX_TOKENS, MGL_WIDE_MAX_WORKERS, p->device->name, p->workers,
        MGL_CUDA_MAX_TOKENS);
  }
  mgl_cuda_wide_sizes sizes = {
      .tokens = p->wide.tokens,
      .sequences = o->sequences < p->wide.tokens ? o->sequences : p->wide.tokens,
      .logit_rows = p->wide.rows,
      .pages_per_sequence = o->limits.pages_per_sequence,
      .workers = p->workers,
      .few = p->device->kernels == MGL_CUDA_KERNELS_WGMMA,
      .ranks = p->build.ranks};
  MGL_TRY(mgl_cuda_wide_lay_out(p->program, &p->model, &sizes, &p->wide.layout, err));
  p->layout.bytes[MGL_CUDA_MEMORY_WIDE] = p->wide.layout.bytes;
  p->wide.narrow_tokens = mgl_narrow_tokens(p->program, p->layout.step_bytes, sizes.few);
  p->wide.narrow_context =
      sizes.few ? mgl_narrow_context(p->program, p->layout.step_bytes) : UINT64_MAX;
  return MGL_OK;
}

static const struct {
  const char *source, *kernel;
  uint32_t tile_tokens;
} kernel_names[MGL_WIDE_TILES] = {
    {"kernels/cuda/wide_64.cu", "mgl_wide_kernel_64", MGL_WIDE_LEAST_TILE},
    {"kernels/cuda/wide_128.cu", "mgl_wide_kernel_128", MGL_WIDE_MOST_CODED_TILE},
    {"kernels/cuda/wide_192.cu", "mgl_wide_kernel_192", MGL_WIDE_MIDDLE_TILE},
    {"kernels/cuda/wide_kernel.cu", "mgl_wide_kernel", MGL_WIDE_MOST_TILE}};

// Tokens of the tiles of kernel `idx`.
static uint32_t tile_tokens_of(uint32_t idx) {
  return kernel_names[idx].tile_tokens;
}

// Whether some graph has the tiles of kernel `idx`.
static bool has_tiles(const mgl_cuda_program *p, uint32_t idx) {
  const mgl_cuda_wide_layout *wide = &p->wide.layout;
  bool any = false;
  for (uint32_t i = 0; i < wide->graph_count; i++) {
    any = any || wide->graphs[i].tile_tokens == tile_tokens_of(idx);
  }
  return any;
}

size_t mgl_cuda_wide_modules(mgl_cuda_program *p, mgl_cuda_module *out) {
  size_t count = 0;
  if (p->wide.tokens == 0) {
    return 0;
  }
  out[count++] = (mgl_cuda_module){"kernels/cuda/wide_plan.cu", "mgl_wide_plan_run",
                                   &p->wide.plan_module, NULL};
  for (uint32_t i = 0; i < MGL_WIDE_TILES; i++) {
    mgl_cuda_wide_kernel *kernel = &p->wide.kernels[i];
    if (has_tiles(p, i)) {
      out[count++] = (mgl_cuda_module){kernel_names[i].source, kernel_names[i].kernel,
                                       &kernel->module, &kernel->usage};
    }
  }
  return count;
}

// A block of it must fit.
static mgl_status load_kernel(mgl_cuda_program *p, uint32_t idx, mgl_error *err) {
  const mgl_cuda_driver *driver = &p->device->driver;
  mgl_cuda_wide_kernel *kernel = &p->wide.kernels[idx];
  int blocks = 0;
  MGL_CUDA_TRY(driver, module_function, err, &kernel->kernel, kernel->module,
               kernel_names[idx].kernel);
  MGL_CUDA_TRY(driver, function_set, err, kernel->kernel, MGL_CU_FUNC_MAX_DYNAMIC_SMEM,
               block_smem_bytes(p));
  MGL_CUDA_TRY(driver, blocks_per_sm, err, &blocks, kernel->kernel, block_threads(p),
               (size_t)block_smem_bytes(p));
  return blocks >= 1 ? MGL_OK
                     : mgl_error_set(err, MGL_ERR_UNSUPPORTED,
                                     "a block of the kernel for large iterations (%d threads, %d "
                                     "bytes of shared memory) does not fit on a multiprocessor of "
                                     "%s",
                                     block_threads(p), block_smem_bytes(p), p->device->name);
}

mgl_status mgl_cuda_wide_load(mgl_cuda_program *p, mgl_error *err) {
  const mgl_cuda_driver *driver = &p->device->driver;
  if (p->wide.tokens == 0) {
    return MGL_OK;
  }
  for (uint32_t i = 0; i < MGL_WIDE_TILES; i++) {
    if (p->wide.kernels[i].module != NULL) {
      MGL_TRY(load_kernel(p, i, err));
    }
  }
  MGL_CUDA_TRY(driver, module_function, err, &p->wide.plan_kernel, p->wide.plan_module,
               "mgl_wide_plan_run");
  return MGL_CUDA_CALL(driver, module_function, err, &p->wide.sample_kernel, p->wide.plan_module,
                       "mgl_wide_sample_run");
}

static mgl_status upload_graph(mgl_cuda_program *p, uint32_t idx, unsigned char *buffer,
                               mgl_error *err) {
  const mgl_cuda_driver *driver = &p->device->driver;
  const mgl_cuda_wide_graph *g = &p->wide.layout.graphs[idx];
  mgl_cuda_wide_addresses a = addresses_of(p);
  uint64_t bytes =
      g->step_start + (MGL_WIDE_LISTS_OF(p->workers) + UINT64_C(1)) * sizeof(uint32_t) - g->ops;
  const mgl_cuda_wide_lists lists = {
      .ops = (mgl_wide_op *)(void *)buffer,
      .steps = (mgl_cuda_step *)(void *)(buffer + (g->steps - g->ops)),
      .step_start = (uint32_t *)(void *)(buffer + (g->step_start - g->ops)),
      .hash = &p->wide.schedules[idx],
      .cut = &p->wide.cut[idx]};
  const mgl_cuda_wide_range all = {0, UINT32_MAX}, chosen = {p->first_op, p->last_op};
  MGL_TRY(mgl_cuda_wide_make_graph(&a, idx, p->chosen ? chosen : all, &lists, err));
  return MGL_CUDA_CALL(driver, copy_to_device, err, a.block + g->ops, buffer, (size_t)bytes);
}

// Writes what attention must find between its layers.
static mgl_status clear_attention(mgl_cuda_program *p, mgl_error *err) {
  const mgl_cuda_wide_layout *wide = &p->wide.layout;
  const mgl_cu_ptr block = p->memory[MGL_CUDA_MEMORY_WIDE];
  MGL_CUDA_TRY(&p->device->driver, memory_set, err, block + wide->stream_partials, 0xff,
               (size_t)wide->stream_partial_bytes);
  return MGL_CUDA_CALL(&p->device->driver, memory_set, err, block + wide->merges, 0,
                       (size_t)wide->merge_bytes);
}

// Behind a launch that was ended early, before the next run is uploaded: the word that ended it has
// arrived, and its attention has left nothing half done.
static mgl_status clear_fault(mgl_cuda_program *p, mgl_error *err) {
  if (p->wide.faulted) {
    MGL_CUDA_TRY(&p->device->driver, stream_synchronize, err, p->abort_stream);
    MGL_TRY(clear_attention(p, err));
  }
  p->wide.faulted = false;
  return MGL_OK;
}

// The run of a chain, of which turns change what differs between iterations.
static mgl_status upload_run(mgl_cuda_program *p, mgl_error *err) {
  mgl_cuda_wide_addresses a = addresses_of(p);
  MGL_TRY(clear_fault(p, err));
  mgl_cuda_wide_set_run(&a, 1, NULL, p->wide.image);
  MGL_CUDA_TRY(&p->device->driver, copy_to_device, err, a.block + p->wide.layout.image,
               p->wide.image, sizeof(mgl_wide_run));
  return mgl_cuda_check(&p->device->driver, p->device->driver.context_synchronize(), "upload", err);
}

mgl_status mgl_cuda_wide_upload(mgl_cuda_program *p, mgl_error *err) {
  const mgl_cuda_wide_layout *wide = &p->wide.layout;
  if (p->wide.tokens == 0) {
    return MGL_OK;
  }
  // Padding of activations begins as zeros.
  MGL_CUDA_TRY(&p->device->driver, memory_set, err, p->memory[MGL_CUDA_MEMORY_WIDE], 0,
               (size_t)wide->bytes);
  MGL_TRY(clear_attention(p, err));
  p->wide.image = mgl_alloc_zeroed(1, (size_t)wide->image_bytes);
  MGL_TRY(mgl_alloc_check(p->wide.image, err, "the plan of a large iteration"));
  MGL_TRY(upload_run(p, err));
  return mgl_cuda_wide_upload_graphs(p, err);
}

mgl_status mgl_cuda_wide_upload_graphs(mgl_cuda_program *p, mgl_error *err) {
  const mgl_cuda_wide_layout *wide = &p->wide.layout;
  if (p->chosen && p->wide.tokens > 0) {  // sums of what is left out are added by what is not
    MGL_CUDA_TRY(&p->device->driver, memory_set, err, p->memory[MGL_CUDA_MEMORY_WIDE] + wide->parts,
                 0, (size_t)wide->part_bytes);
  }
  for (uint32_t i = 0; p->wide.tokens > 0 && i < wide->graph_count; i++) {
    const mgl_cuda_wide_graph *g = &wide->graphs[i];
    unsigned char *buffer =
        mgl_alloc_zeroed(1, (size_t)(g->step_start - g->ops) +
                                (MGL_WIDE_LISTS_OF(p->workers) + (size_t)1) * sizeof(uint32_t));
    MGL_TRY(mgl_alloc_check(buffer, err, "the steps of a task graph"));
    mgl_status status = upload_graph(p, i, buffer, err);
    mgl_free(buffer);
    MGL_TRY(status);
  }
  return MGL_OK;
}

void mgl_cuda_wide_release(mgl_cuda_program *p) {
  for (uint32_t i = 0; i < MGL_WIDE_TILES; i++) {
    MGL_CUDA_RELEASE(&p->device->driver, module_unload, p->wide.kernels[i].module);
  }
  MGL_CUDA_RELEASE(&p->device->driver, module_unload, p->wide.plan_module);
}

// --- a launch ------------------------------------------------------------------------------------

// Until the kernel ends, or `ns` have passed.
static mgl_status wait_for(mgl_cuda_program *p, uint64_t ns, bool *ended, mgl_error *err) {
  const mgl_cuda_driver *driver = &p->device->driver;
  uint64_t begin = mgl_clock_ns();
  for (;;) {
    mgl_cu_result code = driver->stream_query(p->stream);
    *ended = code != MGL_CU_NOT_READY;
    if (*ended) {
      return mgl_cuda_launch_ended(p, code, err);
    }
    uint64_t passed = mgl_clock_ns() - begin;
    if (passed > ns) {
      return MGL_OK;
    }
    if (passed > WARMING_NS) {
      (void)nanosleep(&(struct timespec){.tv_nsec = POLL_NS}, NULL);
    }
  }
}

mgl_status mgl_cuda_wide_abort(mgl_cuda_program *p, mgl_error *err) {
  *p->fault_word = MGL_WIDE_FAULT_HOST;
  p->wide.faulted = true;
  mgl_cu_ptr fault =
      p->memory[MGL_CUDA_MEMORY_WIDE] + p->wide.layout.image + offsetof(mgl_wide_run, fault);
  if (p->ranks != NULL) {  // a turn of the planner may wait for another rank's
    mgl_cu_ptr of_turns = mgl_cuda_state_at(
        p, p->layout.state.run + offsetof(mgl_cuda_run, protocol) + offsetof(mgl_protocol, fault));
    MGL_CUDA_TRY(&p->device->driver, copy_to_device_async, err, of_turns, p->fault_word,
                 sizeof *p->fault_word, p->abort_stream);
  }
  return MGL_CUDA_CALL(&p->device->driver, copy_to_device_async, err, fault, p->fault_word,
                       sizeof *p->fault_word, p->abort_stream);
}

static mgl_status wait_for_end(mgl_cuda_program *p, uint64_t deadline_ns, mgl_error *err) {
  bool ended = false;
  MGL_TRY(wait_for(p, deadline_ns, &ended, err));
  if (ended) {
    return MGL_OK;
  }
  MGL_TRY(mgl_cuda_wide_abort(p, err));
  MGL_TRY(wait_for(p, ABORT_NS, &ended, err));
  p->lost = !ended;
  return mgl_error_set(
      err, MGL_ERR_INTERNAL, "an iteration of the wide class did not end after %.1f s%s",
      (double)deadline_ns / 1e9, ended ? "" : " and does not answer; the process must be ended");
}

// Uploads what a launch must find: its run, and zeros.
static mgl_status upload(mgl_cuda_program *p, size_t image_bytes, mgl_error *err) {
  const mgl_cuda_driver *driver = &p->device->driver;
  const mgl_cuda_wide_layout *wide = &p->wide.layout;
  mgl_cu_ptr block = p->memory[MGL_CUDA_MEMORY_WIDE];
  MGL_TRY(clear_fault(p, err));
  MGL_CUDA_TRY(driver, copy_to_device, err, block + wide->image, p->wide.image, image_bytes);
  MGL_CUDA_TRY(driver, memory_set, err, block + wide->zeros, 0, (size_t)wide->zero_bytes);
  return mgl_cuda_check(driver, driver->context_synchronize(), "upload", err);
}

static mgl_status launch_kernel(mgl_cuda_program *p, uint32_t idx, mgl_error *err) {
  mgl_cu_ptr run = p->memory[MGL_CUDA_MEMORY_WIDE] + p->wide.layout.image;
  void *parameters[] = {&run};
  return MGL_CUDA_CALL(&p->device->driver, launch_cooperative, err, p->wide.kernels[idx].kernel,
                       p->workers, 1, 1, (unsigned)block_threads(p), 1, 1,
                       (unsigned)block_smem_bytes(p), p->stream, parameters);
}

mgl_status mgl_cuda_wide_run_plan(mgl_cuda_program *p, const mgl_plan *plan,
                                  const mgl_cuda_launch_options *options, float *logits,
                                  mgl_error *err) {
  const mgl_cuda_driver *driver = &p->device->driver;
  const mgl_cuda_wide_layout *wide = &p->wide.layout;
  mgl_cuda_wide_addresses a = addresses_of(p);
  uint64_t deadline_ns =
      options != NULL && options->deadline_ns != 0 ? options->deadline_ns : DEADLINE_NS;
  if (p->lost) {
    return mgl_error_set(err, MGL_ERR_INTERNAL,
                         "an earlier launch did not end; the process must be ended");
  }
  MGL_TRY(mgl_cuda_look_check_large(p, plan->token_count, err));
  p->feeding.planner_lost = true;  // its cached pages may be overwritten
  MGL_TRY(mgl_cuda_wide_make_image(&a, plan, p->sizes.page_count, p->wide.image, err));
  MGL_TRY(upload(p, (size_t)wide->image_bytes, err));
  const mgl_cuda_wide_graph *g = &wide->graphs[mgl_cuda_wide_graph_for(wide, plan->token_count)];
  uint32_t kernel = 0;
  while (tile_tokens_of(kernel) < g->tile_tokens) {
    kernel++;
  }
  uint64_t start = mgl_clock_ns();
  MGL_TRY(launch_kernel(p, kernel, err));
  mgl_status status = wait_for_end(p, deadline_ns, err);
  p->wide.host_ns = mgl_clock_ns() - start;
  MGL_TRY(status);
  if (logits != NULL && plan->logit_row_count > 0) {
    MGL_CUDA_TRY(driver, copy_to_host, err, logits, a.block + wide->logits,
                 (size_t)plan->logit_row_count * p->model.vocab * sizeof(float));
  }
  return MGL_OK;
}

// --- of a job ------------------------------------------------------------------------------------

mgl_status mgl_cuda_wide_begin(mgl_cuda_program *p, mgl_error *err) {
  mgl_store_relaxed(&p->feeding.feed->wide, 0);
  p->wide.queued = 0;
  return p->wide.faulted ? upload_run(p, err) : MGL_OK;
}

// A turn of the planner, the iteration that it begins, and its sampling. Of the kernels all but the
// one whose tiles the turn chooses find nothing to do.
static mgl_status queue_iteration(mgl_cuda_program *p, mgl_error *err) {
  const mgl_cuda_driver *driver = &p->device->driver;
  const mgl_cuda_wide_layout *wide = &p->wide.layout;
  mgl_cuda_wide_addresses a = addresses_of(p);
  mgl_wide_chain chain = mgl_cuda_wide_make_chain(&a);
  mgl_cu_ptr run = mgl_cuda_state_at(p, p->layout.state.run);
  mgl_cu_ptr plan = a.block + wide->image + wide->plan;
  mgl_cu_ptr best = a.block + wide->best;
  mgl_cu_ptr logits = a.block + wide->logits;
  void *planning[] = {&run, &chain};
  void *sampling[] = {&run, &plan, &best, &logits};
  MGL_CUDA_TRY(driver, launch, err, p->wide.plan_kernel, 1, 1, 1, MGL_CUDA_CONSUMERS, 1, 1, 0,
               p->stream, planning, NULL);
  for (uint32_t i = 0; i < MGL_WIDE_TILES; i++) {
    if (p->wide.kernels[i].module != NULL) {
      MGL_TRY(launch_kernel(p, i, err));
    }
  }
  unsigned blocks = p->wide.rows < p->workers ? p->wide.rows : p->workers;
  MGL_CUDA_TRY(driver, launch, err, p->wide.sample_kernel, blocks, 1, 1, MGL_CUDA_CONSUMERS, 1, 1,
               MGL_CUDA_BLOCK_BYTES + MGL_CUDA_SCRATCH_BYTES, p->stream, sampling, NULL);
  p->wide.queued++;
  return MGL_OK;
}

mgl_status mgl_cuda_wide_queue(mgl_cuda_program *p, bool *over, mgl_error *err) {
  // Acquire, paired with the release of mgl_wide_chain_turn; nothing else of it is read here.
  uint64_t word = mgl_load_acquire_system(&p->feeding.feed->wide);
  *over = mgl_wide_word_over(word);
  while (!*over && p->wide.queued <= mgl_wide_word_turns(word)) {
    MGL_TRY(queue_iteration(p, err));
  }
  return MGL_OK;
}

mgl_status mgl_cuda_wide_end(mgl_cuda_program *p, mgl_error *err) {
  mgl_cuda_planning *planning = &mgl_cuda_image_run(p)->planning;
  return MGL_CUDA_CALL(&p->device->driver, copy_to_host, err, planning,
                       mgl_cuda_state_at(p, p->layout.state.run + offsetof(mgl_cuda_run, planning)),
                       sizeof *planning);
}
