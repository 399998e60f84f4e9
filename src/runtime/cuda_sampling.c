// What sampling needs of memory beyond a sequence slot, which most jobs do not: edits on the
// device, and log probabilities in pinned memory. Taken when a job first asks for it, kept and
// grown.
//   Rejected: room for every slot's longest sequence from the start, 16 and 176 bytes a token.
#include <stddef.h>

#include "base/alloc.h"
#include "runtime/cuda_program_parts.h"

// Edits that a request may come to have: generated tokens may join.
static size_t edits_of(const mgl_cuda_request *r) {
  bool grows = (r->rule.flags & MGL_SAMPLING_COUNTS) != 0;
  return r->edit_count + (grows ? (size_t)r->max_new_tokens : 0);
}

static size_t logprobs_of(const mgl_cuda_request *r) {
  return (r->rule.flags & MGL_SAMPLING_LOGPROBS) != 0 ? r->max_new_tokens : 0;
}

static void release_edits(mgl_cuda_program *p) {
  if (p->edits != 0) {
    (void)p->device->driver.memory_free(p->edits);
  }
  p->edits = 0;
  p->edit_capacity = 0;
}

static void release_logprobs(mgl_cuda_program *p) {
  if (p->logprobs != NULL) {
    (void)p->device->driver.host_free(p->logprobs);
  }
  p->logprobs = NULL;
  p->logprob_capacity = 0;
}

static mgl_status grow_edits(mgl_cuda_program *p, size_t count, mgl_error *err) {
  const mgl_cuda_driver *driver = &p->device->driver;
  if (count <= p->edit_capacity) {
    return MGL_OK;
  }
  release_edits(p);
  size_t bytes = count * sizeof(mgl_logit_edit);
  if (driver->memory_alloc(&p->edits, bytes) != 0) {
    p->edits = 0;
    return mgl_error_set(err, MGL_ERR_MEMORY,
                         "the GPU refuses %zu bytes for penalties and biases of the requests",
                         bytes);
  }
  p->edit_capacity = count;
  return MGL_OK;
}

static mgl_status grow_logprobs(mgl_cuda_program *p, size_t count, mgl_error *err) {
  const mgl_cuda_driver *driver = &p->device->driver;
  if (count <= p->logprob_capacity) {
    return MGL_OK;
  }
  release_logprobs(p);
  void *pinned = NULL;
  size_t bytes = count * sizeof(mgl_cuda_logprobs);
  if (driver->host_alloc(&pinned, bytes, MGL_CU_HOST_ALLOC_PORTABLE | MGL_CU_HOST_ALLOC_MAPPED) !=
      0) {
    return mgl_error_set(err, MGL_ERR_MEMORY,
                         "%zu bytes of memory for log probabilities cannot be had for the GPU",
                         bytes);
  }
  p->logprobs = pinned;
  p->logprob_capacity = count;
  MGL_CUDA_TRY(driver, host_address, err, &p->logprobs_at, pinned, 0);
  return MGL_OK;
}

mgl_status mgl_cuda_sampling_prepare(mgl_cuda_program *p, const mgl_cuda_generate *job,
                                     mgl_error *err) {
  size_t edits = 0;
  size_t logprobs = 0;
  for (uint32_t i = 0; i < job->request_count; i++) {
    edits += edits_of(&job->requests[i]);
    logprobs += logprobs_of(&job->requests[i]);
  }
  MGL_TRY(grow_edits(p, edits, err));
  MGL_TRY(grow_logprobs(p, logprobs, err));
  edits = 0;
  logprobs = 0;
  for (uint32_t i = 0; i < job->request_count; i++) {
    const mgl_cuda_request *r = &job->requests[i];
    mgl_cuda_sequence *s = &mgl_cuda_image_sequences(p)[i];
    mgl_cu_ptr at = p->edits + edits * sizeof(mgl_logit_edit);
    s->rule = r->rule;
    s->takes_row = r->rule.flags;
    p->first_logprobs[i] = logprobs;
    if (edits_of(r) > 0) {
      s->edits = mgl_cuda_pointer(at);
      s->edit_count = r->edit_count;
    }
    if (r->edit_count > 0) {
      MGL_CUDA_TRY(&p->device->driver, copy_to_device, err, at, r->edits,
                   r->edit_count * sizeof(mgl_logit_edit));
    }
    if (logprobs_of(r) > 0) {
      s->host_logprobs = mgl_cuda_pointer(p->logprobs_at + logprobs * sizeof(mgl_cuda_logprobs));
    }
    edits += edits_of(r);
    logprobs += logprobs_of(r);
  }
  return MGL_OK;
}

void mgl_cuda_sampling_release(mgl_cuda_program *p) {
  release_edits(p);
  release_logprobs(p);
}
