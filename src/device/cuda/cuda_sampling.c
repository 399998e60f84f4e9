// Some requests need memory for sampling beyond their sequence slot: edits on the device, log
// probabilities and masks in pinned memory. It is taken when a launch first needs it, kept and
// grown; every slot has as much as the most demanding request.
//   Rejected: room for every slot's longest sequence from the start, 16 and 176 bytes a token.
//
// Of several ranks each samples for itself, with the same masks and edits. Rank 0 puts a copy into
// shared memory with the command that speaks of it, and the others take theirs from there. What a
// device of theirs may still read is not written over: a slot's requests have two masks in turn,
// and the next mask of a request waits for the token of the one before (cuda_feed.c).
#include <stddef.h>
#include <string.h>

#include "base/alloc.h"
#include "device/cuda/cuda_program_parts.h"

// Edits that a request may come to have: generated tokens may join.
uint32_t mgl_cuda_request_edits(const mgl_cuda_request *r) {
  bool grows = (r->rule.flags & MGL_SAMPLING_COUNTS) != 0;
  return r->edit_count + (grows ? r->max_new_tokens : 0);
}

uint32_t mgl_cuda_request_logprobs(const mgl_cuda_request *r) {
  return (r->rule.flags & MGL_SAMPLING_LOGPROBS) != 0 ? r->max_new_tokens : 0;
}

bool mgl_cuda_program_has_room(const mgl_cuda_program *p, const mgl_cuda_request *r) {
  return mgl_cuda_request_edits(r) <= p->feeding.edit_capacity &&
         mgl_cuda_request_logprobs(r) <= p->feeding.logprob_capacity &&
         (r->mask.words == NULL || p->feeding.masks != NULL);
}

static void release_edits(mgl_cuda_program *p) {
  mgl_cuda_feeding *f = &p->feeding;
  MGL_CUDA_RELEASE(&p->device->driver, memory_free, f->edits);
  MGL_CUDA_RELEASE(&p->device->driver, host_free, f->staged_edits);
  f->edits = 0;
  f->staged_edits = NULL;
  f->edit_capacity = 0;
}

static void release_logprobs(mgl_cuda_program *p) {
  mgl_cuda_feeding *f = &p->feeding;
  MGL_CUDA_RELEASE(&p->device->driver, host_free, f->logprobs);
  f->logprobs = NULL;
  f->logprob_capacity = 0;
}

static void release_masks(mgl_cuda_program *p) {
  MGL_CUDA_RELEASE(&p->device->driver, host_free, p->feeding.masks);
  p->feeding.masks = NULL;
}

static mgl_status take_pinned(mgl_cuda_program *p, size_t bytes, const char *what, void **out,
                              mgl_cu_ptr *out_at, mgl_error *err) {
  const mgl_cuda_driver *driver = &p->device->driver;
  unsigned flags = MGL_CU_HOST_ALLOC_PORTABLE | MGL_CU_HOST_ALLOC_MAPPED;
  *out = NULL;
  if (driver->host_alloc(out, bytes, flags) != 0) {
    *out = NULL;
    return mgl_error_set(err, MGL_ERR_MEMORY,
                         "%zu bytes of memory for %s cannot be had for the GPU", bytes, what);
  }
  return MGL_CUDA_CALL(driver, host_address, err, out_at, *out, 0);
}

static mgl_status grow_edits(mgl_cuda_program *p, uint32_t count, mgl_error *err) {
  mgl_cuda_feeding *f = &p->feeding;
  void *staged = NULL;
  release_edits(p);
  size_t bytes = (size_t)f->slot_count * count * sizeof(mgl_logit_edit);
  if (p->device->driver.memory_alloc(&f->edits, bytes) != 0) {
    f->edits = 0;
    return mgl_error_set(err, MGL_ERR_MEMORY,
                         "the GPU refuses %zu bytes for penalties and biases of the requests",
                         bytes);
  }
  mgl_status status =
      take_pinned(p, bytes, "penalties and biases", &staged, &f->staged_edits_at, err);
  f->staged_edits = staged;
  f->edit_capacity = status == MGL_OK ? count : 0;
  return status;
}

static mgl_status grow_logprobs(mgl_cuda_program *p, uint32_t count, mgl_error *err) {
  mgl_cuda_feeding *f = &p->feeding;
  void *pinned = NULL;
  release_logprobs(p);
  size_t bytes = (size_t)f->slot_count * count * sizeof(mgl_cuda_logprobs);
  mgl_status status = take_pinned(p, bytes, "log probabilities", &pinned, &f->logprobs_at, err);
  f->logprobs = pinned;
  f->logprob_capacity = status == MGL_OK ? count : 0;
  return status;
}

// --- masks ---------------------------------------------------------------------------------------

static size_t mask_words(const mgl_cuda_program *p) {
  return (p->model.vocab + 63) / 64;
}

// Words of a slot: one of its own before those of the mask.
static size_t mask_stride(const mgl_cuda_program *p) {
  return (mask_words(p) + 2) / 2 * 2;
}

static mgl_status take_masks(mgl_cuda_program *p, mgl_error *err) {
  mgl_cuda_feeding *f = &p->feeding;
  void *pinned = NULL;
  const size_t masks = p->ranks != NULL && p->peers.rank != 0 ? 2 : 1;  // of a slot
  size_t bytes = masks * f->slot_count * mask_stride(p) * sizeof *f->masks;
  mgl_status status = take_pinned(p, bytes, "masks of tokens", &pinned, &f->masks_at, err);
  f->masks = pinned;
  if (status != MGL_OK) {
    release_masks(p);
  }
  return status;
}

const uint64_t *mgl_cuda_sampling_mask(mgl_cuda_program *p, uint32_t slot,
                                       const mgl_cuda_mask *mask) {
  const mgl_cuda_feeding *f = &p->feeding;
  size_t at = slot * mask_stride(p);
  if (mask->words == NULL) {
    return NULL;
  }
  f->masks[at] = mask->is_plain ? 1 : 0;
  memcpy(&f->masks[at + 1], mask->words, mask_words(p) * sizeof *f->masks);
  return mgl_cuda_pointer(f->masks_at + at * sizeof *f->masks);
}

// --- several ranks -------------------------------------------------------------------------------

static uint64_t edits_in_log(const mgl_cuda_program *p) {
  return p->feeding.bytes + p->feeding.slot_count * mask_stride(p) * sizeof(uint64_t);
}

static mgl_status check_log(const mgl_cuda_program *p, uint64_t edits, mgl_error *err) {
  const uint64_t room = MGL_CUDA_LOG_BYTES - MGL_CUDA_LOG_FEED;
  const uint64_t bytes = edits_in_log(p) + p->feeding.slot_count * edits * sizeof(mgl_logit_edit);
  return p->ranks == NULL || bytes <= room
             ? MGL_OK
             : mgl_error_set(err, MGL_ERR_LIMIT,
                             "penalties and biases of several ranks: expected at most %llu bytes "
                             "for all requests that can be there at once, found %llu; allow fewer "
                             "sequences or generate fewer tokens",
                             (unsigned long long)room, (unsigned long long)bytes);
}

// The slot's mask in the log.
static unsigned char *mask_in_log(const mgl_cuda_program *p, uint32_t slot) {
  return mgl_cuda_log_feed(p->ranks) + p->feeding.bytes + slot * mask_stride(p) * sizeof(uint64_t);
}

static unsigned char *slot_edits_in_log(const mgl_cuda_program *p, uint32_t slot) {
  return mgl_cuda_log_feed(p->ranks) + edits_in_log(p) +
         (uint64_t)slot * p->feeding.edit_capacity * sizeof(mgl_logit_edit);
}

void mgl_cuda_sampling_log(const mgl_cuda_program *p, const mgl_feed_command *command,
                           bool masked) {
  const mgl_cuda_feeding *f = &p->feeding;
  const uint32_t slot = command->slot;
  if (masked) {
    memcpy(mask_in_log(p, slot), f->masks + slot * mask_stride(p),
           mask_stride(p) * sizeof *f->masks);
  }
  if (command->edit_count > 0) {
    memcpy(slot_edits_in_log(p, slot), f->staged_edits + (size_t)slot * f->edit_capacity,
           command->edit_count * sizeof *f->staged_edits);
  }
}

// A command of the launch that comes may be seen at the end of the one before, which has no room
// for it and does not read it; it is taken again then.
void mgl_cuda_sampling_adopt(mgl_cuda_program *p, const mgl_feed_command *command,
                             mgl_cuda_sequence *sequence) {
  mgl_cuda_feeding *f = &p->feeding;
  const uint32_t slot = command->slot;
  const bool submits = command->call == MGL_FEED_SUBMIT;
  if (f->masks != NULL && (!submits || sequence->mask != NULL)) {
    f->slots[slot].second_mask ^= submits;
    const size_t of = slot + (f->slots[slot].second_mask ? f->slot_count : 0);
    const size_t at = of * mask_stride(p);
    memcpy(f->masks + at, mask_in_log(p, slot), mask_stride(p) * sizeof *f->masks);
    sequence->mask = mgl_cuda_pointer(f->masks_at + at * sizeof *f->masks);
  }
  if (submits && sequence->edits != NULL && f->staged_edits != NULL &&
      command->edit_count <= f->edit_capacity) {
    const size_t at = (size_t)slot * f->edit_capacity;
    memcpy(f->staged_edits + at, slot_edits_in_log(p, slot),
           command->edit_count * sizeof *f->staged_edits);
    sequence->edits = mgl_cuda_pointer(f->edits + at * sizeof *f->staged_edits);
  }
}

// -------------------------------------------------------------------------------------------------

mgl_status mgl_cuda_sampling_reserve(mgl_cuda_program *p, uint32_t most_edits,
                                     uint32_t most_logprobs, bool has_masks, mgl_error *err) {
  MGL_TRY(check_log(p, mgl_power_of_two_at_least(most_edits), err));
  if (most_edits > p->feeding.edit_capacity) {
    MGL_TRY(grow_edits(p, (uint32_t)mgl_power_of_two_at_least(most_edits), err));
  }
  if (most_logprobs > p->feeding.logprob_capacity) {
    MGL_TRY(grow_logprobs(p, (uint32_t)mgl_power_of_two_at_least(most_logprobs), err));
  }
  if (has_masks && p->feeding.masks == NULL) {
    MGL_TRY(take_masks(p, err));
  }
  return MGL_OK;
}

void mgl_cuda_sampling_release(mgl_cuda_program *p) {
  release_edits(p);
  release_logprobs(p);
  release_masks(p);
}
