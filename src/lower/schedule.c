#include "lower/schedule.h"

#include <inttypes.h>
#include <string.h>

#include "base/alloc.h"
#include "lower/lower_parts.h"
#include "twin/wide_run.h"

static const char *const names[MGL_LOWER_COUNT] = {
    [MGL_LOWER_TASKS] = "tasks",
    [MGL_LOWER_WORDS] = "words",
    [MGL_LOWER_STAGES] = "stages",
    [MGL_LOWER_KERNELS] = "kernels",
};

const char *mgl_lowering_name(mgl_lowering lowering) {
  return names[lowering];
}

mgl_status mgl_schedule_out_of_memory(mgl_error *err) {
  return mgl_error_set(err, MGL_ERR_MEMORY, "out of memory for a schedule");
}

mgl_schedule *mgl_schedule_create(const mgl_schedule *sizes) {
  mgl_schedule *s = mgl_alloc_zeroed(1, sizeof *s);
  if (s == NULL) {
    return NULL;
  }
  *s = *sizes;
  s->arena = (mgl_arena){0};
  s->ops = mgl_arena_alloc_zeroed(&s->arena, s->op_count, sizeof *s->ops);
  s->steps = mgl_arena_alloc_zeroed(&s->arena, s->step_count, sizeof *s->steps);
  s->events = mgl_arena_alloc_zeroed(&s->arena, s->event_count, sizeof *s->events);
  s->list_start =
      mgl_arena_alloc_zeroed(&s->arena, s->worker_count + (size_t)1, sizeof *s->list_start);
  s->list = mgl_arena_alloc_zeroed(&s->arena, s->step_count, sizeof *s->list);
  if (s->ops == NULL || s->steps == NULL || s->events == NULL || s->list_start == NULL ||
      s->list == NULL) {
    mgl_schedule_destroy(s);
    return NULL;
  }
  return s;
}

void mgl_schedule_destroy(mgl_schedule *schedule) {
  if (schedule != NULL) {
    mgl_arena_free(&schedule->arena);
    mgl_free(schedule);
  }
}

void mgl_schedule_fill_lists(mgl_schedule *s) {
  for (uint32_t i = 0; i < s->step_count; i++) {
    if (s->steps[i].worker != MGL_SCHEDULE_ANYONE) {
      s->list_start[s->steps[i].worker + 1]++;
    }
  }
  for (uint32_t w = 0; w < s->worker_count; w++) {
    s->list_start[w + 1] += s->list_start[w];
  }
  for (uint32_t i = 0; i < s->step_count; i++) {
    if (s->steps[i].worker != MGL_SCHEDULE_ANYONE) {
      s->list[s->list_start[s->steps[i].worker]++] = i;
    }
  }
  for (uint32_t w = s->worker_count; w > 0; w--) {  // every start now is the next one's
    s->list_start[w] = s->list_start[w - 1];
  }
  s->list_start[0] = 0;
}

// --- looking at one ------------------------------------------------------------------------------

static uint64_t hash_bytes(uint64_t hash, const void *bytes, size_t count) {
  const unsigned char *at = bytes;
  for (size_t i = 0; i < count; i++) {
    hash = (hash ^ at[i]) * UINT64_C(1099511628211);  // FNV-1a
  }
  return hash;
}

uint64_t mgl_schedule_hash(const mgl_schedule *s) {
  const uint32_t head[] = {(uint32_t)s->lowering, (uint32_t)s->target, s->tokens,
                           s->logit_rows,         s->worker_count,     s->strides,
                           s->tile_tokens,        s->op_count,         s->step_count,
                           s->event_count,        s->shared_tiles};
  uint64_t hash = hash_bytes(UINT64_C(14695981039346656037), head, sizeof head);
  hash = hash_bytes(hash, s->ops, s->op_count * sizeof *s->ops);
  hash = hash_bytes(hash, s->steps, s->step_count * sizeof *s->steps);
  hash = hash_bytes(hash, s->events, s->event_count * sizeof *s->events);
  hash = hash_bytes(hash, s->list_start, (s->worker_count + (size_t)1) * sizeof *s->list_start);
  return hash_bytes(hash, s->list, s->list_start[s->worker_count] * sizeof *s->list);
}

static void print_op(const mgl_graph *program, const mgl_schedule *s, uint32_t index,
                     mgl_text *out) {
  const mgl_schedule_op *op = &s->ops[index];
  const mgl_op *of = &program->ops[op->op];
  const char *name = program->tensors[of->output].name;
  const char *kind = op->kind == (uint32_t)MGL_WIDE_WIDEN
                         ? "widening"
                         : mgl_op_info_of((mgl_op_kind)op->kind)->name;
  mgl_text_format(out, "op %" PRIu32 ": %s", index, kind);
  mgl_text_format(out, op->kind == (uint32_t)of->kind ? " %s" : " before %s", name);
  if (op->with != MGL_NO_OP) {
    const mgl_op *with = &program->ops[op->with];
    mgl_text_format(out, "%s%s",
                    (op->flags & MGL_WIDE_WEIGHS) != 0    ? " with the norm of "
                    : (op->flags & MGL_WIDE_ROTATES) != 0 ? " with the rotation of "
                                                          : " with ",
                    program->tensors[with->output].name);
  }
  mgl_text_format(out, ", stage %" PRIu32 ", %" PRIu32 " units", op->stage, op->units);
  if (op->tiles != 0) {
    mgl_text_format(out, " of %" PRIu32 " tiles", op->tiles);
  }
  if (op->splits > 1) {
    mgl_text_format(out, ", %" PRIu32 " parts", op->splits);
  }
  if ((op->flags & MGL_WIDE_WANTED) != 0) {
    mgl_text_append_string(out, ", of rows with logits");
  }
  const uint32_t others =
      op->flags & ~(uint32_t)(MGL_WIDE_RESUMES | MGL_WIDE_WANTED | MGL_WIDE_WIDENED);
  mgl_text_append_string(out, others == 0 && op->first_shared != MGL_NOT_SHARED && op->splits == 1
                                  ? ", tiles of several steps\n"
                                  : "\n");
}

static void print_step(const mgl_schedule *s, uint32_t index, mgl_text *out) {
  const mgl_schedule_step *step = &s->steps[index];
  mgl_text_format(out, "  %" PRIu32 ":", index);
  if (step->op == MGL_NO_OP) {
    mgl_text_append_string(out, " nothing");
  } else {
    mgl_text_format(out, " op %" PRIu32 " [%" PRIu32 ", %" PRIu32 ")", step->op, step->begin,
                    step->end);
  }
  switch ((mgl_wait)step->wait) {
    case MGL_WAIT_NOTHING: break;
    case MGL_WAIT_WORDS: mgl_text_append_string(out, ", waits for words"); break;
    case MGL_WAIT_EVENT:
    case MGL_WAIT_STAGE:
    case MGL_WAIT_KERNEL:
      mgl_text_format(out, ", waits for %s %" PRIu32,
                      step->wait == MGL_WAIT_EVENT   ? "event"
                      : step->wait == MGL_WAIT_STAGE ? "stage"
                                                     : "launch",
                      step->event);
      break;
  }
  if (step->trigger != MGL_NO_EVENT) {
    mgl_text_format(out, ", triggers %" PRIu32, step->trigger);
  }
  mgl_text_append_string(out, "\n");
}

void mgl_schedule_print(const mgl_graph *program, const mgl_schedule *s, mgl_text *out) {
  mgl_text_format(
      out,
      "schedule of %s: %s for %s, %" PRIu32 " tokens, %" PRIu32 " rows of logits, %" PRIu32
      " workers, %" PRIu32 " ops, %" PRIu32 " steps, %" PRIu32 " events\n",
      program->name, mgl_lowering_name(s->lowering), mgl_target_name(s->target), s->tokens,
      s->logit_rows, s->worker_count, s->op_count, s->step_count, s->event_count);
  for (uint32_t i = 0; i < s->op_count; i++) {
    print_op(program, s, i, out);
  }
  for (uint32_t worker = 0; worker < s->worker_count; worker++) {
    mgl_text_format(out, "worker %" PRIu32 "\n", worker);
    for (uint32_t i = s->list_start[worker]; i < s->list_start[worker + 1]; i++) {
      print_step(s, s->list[i], out);
    }
  }
  if (s->list_start[s->worker_count] < s->step_count) {
    mgl_text_append_string(out, s->lowering == MGL_LOWER_KERNELS ? "launches\n" : "anyone\n");
  }
  for (uint32_t i = 0; i < s->step_count; i++) {
    if (s->steps[i].worker == MGL_SCHEDULE_ANYONE) {
      print_step(s, i, out);
    }
  }
  mgl_text_format(out, "hash %016" PRIx64 "\n", mgl_schedule_hash(s));
}
