// The wide class of a GPU program: making it, and launches of one iteration.
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "runtime/cuda_program_parts.h"

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
                                   .block = p->memory[MGL_CUDA_MEMORY_WIDE]};
}

// --- making it -----------------------------------------------------------------------------------

mgl_status mgl_cuda_wide_prepare(mgl_cuda_program *p, mgl_error *err) {
  const mgl_cuda_program_options *o = &p->options;
  if (o->wide_tokens == 0) {
    return MGL_OK;
  }
  if (p->device->major != 9) {
    return mgl_error_set(
        err, MGL_ERR_UNSUPPORTED,
        "iterations of up to %u tokens: %s has compute capability %u.%u, and there "
        "are kernels for more than %d tokens for 9.0 only; ask for %d at most",
        o->wide_tokens, p->device->name, p->device->major, p->device->minor, MGL_CUDA_MAX_TOKENS,
        MGL_CUDA_MAX_TOKENS);
  }
  if (o->wide_tokens > MGL_WIDE_MAX_TOKENS || o->wide_sequences > MGL_WIDE_MAX_SEQUENCES ||
      o->wide_sequences < 1 || p->workers > MGL_WIDE_MAX_WORKERS) {
    return mgl_error_set(err, MGL_ERR_LIMIT,
                         "large iterations: expected up to %d tokens of 1 to %d sequences on up to "
                         "%d workers, found %u, %u and %u",
                         MGL_WIDE_MAX_TOKENS, MGL_WIDE_MAX_SEQUENCES, MGL_WIDE_MAX_WORKERS,
                         o->wide_tokens, o->wide_sequences, p->workers);
  }
  mgl_cuda_wide_sizes sizes = {.tokens = o->wide_tokens,
                               .sequences = o->wide_sequences,
                               .logit_rows = o->wide_sequences,
                               .pages_per_sequence = o->pages_per_sequence,
                               .workers = p->workers};
  mgl_cuda_wide_lay_out(p->program, &p->model, &sizes, &p->wide.layout);
  p->layout.bytes[MGL_CUDA_MEMORY_WIDE] = p->wide.layout.bytes;
  return MGL_OK;
}

mgl_status mgl_cuda_wide_load(mgl_cuda_program *p, mgl_error *err) {
  const mgl_cuda_driver *driver = &p->device->driver;
  int blocks = 0;
  if (p->options.wide_tokens == 0) {
    return MGL_OK;
  }
  MGL_TRY(mgl_cuda_load_module(p, "kernels/cuda/wide_kernel.cu", "mgl_wide_kernel", &p->wide.module,
                               &p->wide.usage, err));
  MGL_CUDA_TRY(driver, module_function, err, &p->wide.kernel, p->wide.module, "mgl_wide_kernel");
  MGL_CUDA_TRY(driver, function_set, err, p->wide.kernel, MGL_CU_FUNC_MAX_DYNAMIC_SMEM,
               MGL_WIDE_SMEM_BYTES);
  MGL_CUDA_TRY(driver, blocks_per_sm, err, &blocks, p->wide.kernel, MGL_WIDE_THREADS,
               MGL_WIDE_SMEM_BYTES);
  return blocks >= 1 ? MGL_OK
                     : mgl_error_set(err, MGL_ERR_UNSUPPORTED,
                                     "a block of the kernel for large iterations (%d threads, %d "
                                     "bytes of shared memory) does not fit on a multiprocessor of "
                                     "%s",
                                     MGL_WIDE_THREADS, MGL_WIDE_SMEM_BYTES, p->device->name);
}

static mgl_status upload_graph(mgl_cuda_program *p, uint32_t idx, unsigned char *buffer,
                               mgl_error *err) {
  const mgl_cuda_driver *driver = &p->device->driver;
  const mgl_cuda_wide_graph *g = &p->wide.layout.graphs[idx];
  mgl_cuda_wide_addresses a = addresses_of(p);
  uint64_t bytes = g->step_start + (p->workers + UINT64_C(1)) * sizeof(uint32_t) - g->ops;
  mgl_cuda_wide_make_graph(&a, idx, (mgl_wide_op *)(void *)buffer,
                           (mgl_cuda_step *)(void *)(buffer + (g->steps - g->ops)),
                           (uint32_t *)(void *)(buffer + (g->step_start - g->ops)));
  MGL_CUDA_TRY(driver, copy_to_device, err, a.block + g->ops, buffer, (size_t)bytes);
  return MGL_OK;
}

mgl_status mgl_cuda_wide_upload(mgl_cuda_program *p, mgl_error *err) {
  const mgl_cuda_wide_layout *wide = &p->wide.layout;
  if (p->options.wide_tokens == 0) {
    return MGL_OK;
  }
  // Padding of activations and the counters of attention begin as zeros.
  MGL_CUDA_TRY(&p->device->driver, memory_set, err, p->memory[MGL_CUDA_MEMORY_WIDE], 0,
               (size_t)wide->bytes);
  p->wide.image = mgl_alloc_zeroed(1, (size_t)wide->image_bytes);
  if (p->wide.image == NULL) {
    return mgl_error_set(err, MGL_ERR_MEMORY, "out of memory for the plan of a large iteration");
  }
  for (uint32_t i = 0; i < wide->graph_count; i++) {
    const mgl_cuda_wide_graph *g = &wide->graphs[i];
    unsigned char *buffer = mgl_alloc_zeroed(
        1, (size_t)(g->step_start - g->ops) + (p->workers + (size_t)1) * sizeof(uint32_t));
    if (buffer == NULL) {
      return mgl_error_set(err, MGL_ERR_MEMORY, "out of memory for the steps of a task graph");
    }
    mgl_status status = upload_graph(p, i, buffer, err);
    mgl_free(buffer);
    MGL_TRY(status);
  }
  return MGL_OK;
}

void mgl_cuda_wide_release(mgl_cuda_program *p) {
  if (p->wide.module != NULL) {
    (void)p->device->driver.module_unload(p->wide.module);
  }
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
      p->lost = code != 0;
      mgl_status status = mgl_cuda_check(driver, code, "launch", err);
      if (status != MGL_OK) {
        mgl_error_prefix(err,
                         "the GPU was lost while it computed; the process must be started anew");
      }
      return status;
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

static mgl_status wait_for_end(mgl_cuda_program *p, uint64_t deadline_ns, mgl_error *err) {
  bool ended = false;
  MGL_TRY(wait_for(p, deadline_ns, &ended, err));
  if (ended) {
    return MGL_OK;
  }
  *p->fault_word = MGL_WIDE_FAULT_HOST;
  mgl_cu_ptr fault =
      p->memory[MGL_CUDA_MEMORY_WIDE] + p->wide.layout.image + offsetof(mgl_wide_run, fault);
  MGL_CUDA_TRY(&p->device->driver, copy_to_device_async, err, fault, p->fault_word,
               sizeof *p->fault_word, p->abort_stream);
  MGL_TRY(wait_for(p, ABORT_NS, &ended, err));
  p->lost = !ended;
  return mgl_error_set(
      err, MGL_ERR_INTERNAL, "an iteration of the large class did not end after %.1f s%s",
      (double)deadline_ns / 1e9, ended ? "" : " and does not answer; the process must be ended");
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
  MGL_TRY(mgl_cuda_wide_make_image(&a, plan, p->options.page_count, p->wide.image, err));
  mgl_cu_ptr run = a.block + wide->image;
  MGL_CUDA_TRY(driver, copy_to_device, err, run, p->wide.image, (size_t)wide->image_bytes);
  MGL_CUDA_TRY(driver, memory_set, err, a.block + wide->zeros, 0, (size_t)wide->zero_bytes);
  MGL_CUDA_TRY(driver, context_synchronize, err);
  void *parameters[] = {&run};
  uint64_t start = mgl_clock_ns();
  MGL_CUDA_TRY(driver, launch_cooperative, err, p->wide.kernel, p->workers, 1, 1, MGL_WIDE_THREADS,
               1, 1, MGL_WIDE_SMEM_BYTES, p->stream, parameters);
  mgl_status status = wait_for_end(p, deadline_ns, err);
  p->wide.host_ns = mgl_clock_ns() - start;
  MGL_TRY(status);
  if (logits != NULL && plan->logit_row_count > 0) {
    MGL_CUDA_TRY(driver, copy_to_host, err, logits, a.block + wide->logits,
                 (size_t)plan->logit_row_count * p->model.vocab * sizeof(float));
  }
  return MGL_OK;
}
