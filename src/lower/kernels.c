// Mode full: an op is a launch, which waits for the launch before it. Two ops of a fused program
// are short and wait for nothing that others of the iteration compute: they share a launch.
//
//   requires  a program that mgl_fuse_ops_cuda made, or one without next_plan: the host plans then,
//             and launches may be plain kernels of any ops (device/cuda/cuda_plain.h)
//   ensures   a step for every launch, in program order; with next_plan, rope_angles is computed
//             beside embed, the next plan beside logits or the first attention
#include "lower/lower_parts.h"
#include "task/tile.h"

static mgl_op_kind host_of(const mgl_kernels_options *options) {
  return options->plan_at_logits ? MGL_OP_LOGITS : MGL_OP_ATTEND;
}

// The only op of a kind, or MGL_NO_OP; *count says how many there are.
static uint32_t find_op(const mgl_graph *program, mgl_op_kind kind, uint32_t *count) {
  uint32_t found = MGL_NO_OP;
  *count = 0;
  for (uint32_t i = 0; i < program->op_count; i++) {
    if (program->ops[i].kind == kind) {
      found = i;
      ++*count;
    }
  }
  return found;
}

mgl_status mgl_lower_kernels(const mgl_graph *program, const mgl_kernels_options *options,
                             mgl_schedule **out, mgl_error *err) {
  uint32_t plans = 0;
  uint32_t angle_ops = 0;
  uint32_t plan = find_op(program, MGL_OP_NEXT_PLAN, &plans);
  uint32_t angles = find_op(program, MGL_OP_ROPE_ANGLES, &angle_ops);
  bool plans_itself = plans > 0;
  if (plans_itself && (plans != 1 || angle_ops != 1)) {
    return mgl_error_set(err, MGL_ERR_UNSUPPORTED,
                         "mode full: expected one op next_plan and one rope_angles, found %u and "
                         "%u",
                         plans, angle_ops);
  }
  uint32_t count = (uint32_t)program->op_count - (plans_itself ? 2 : 0);
  const mgl_schedule sizes = {.lowering = MGL_LOWER_KERNELS,
                              .target = MGL_TARGET_CUDA,
                              .tokens = options->tokens,
                              .logit_rows = options->logit_rows,
                              .worker_count = options->workers,
                              .strides = options->strides,
                              .op_count = count,
                              .step_count = count,
                              .event_count = count};
  mgl_schedule *s = mgl_schedule_create(&sizes);
  *out = s;
  if (s == NULL) {
    return mgl_schedule_out_of_memory(err);
  }
  bool planned = false;
  uint32_t at = 0;
  for (uint32_t i = 0; i < program->op_count; i++) {
    const mgl_op *op = &program->ops[i];
    if (plans_itself && (i == plan || i == angles)) {
      continue;
    }
    uint32_t with = !plans_itself                              ? MGL_NO_OP
                    : op->kind == MGL_OP_EMBED                 ? angles
                    : op->kind == host_of(options) && !planned ? plan
                                                               : MGL_NO_OP;
    planned = planned || (plans_itself && with == plan);
    uint32_t units = mgl_tile_units(program, op, options->tokens, options->strides);
    s->ops[at] = (mgl_schedule_op){.kind = (uint32_t)op->kind,
                                   .op = i,
                                   .with = with,
                                   .stage = at,
                                   .rows = options->tokens,
                                   .units = units,
                                   .splits = 1,
                                   .first_shared = MGL_NOT_SHARED};
    s->steps[at] = (mgl_schedule_step){.op = at,
                                       .end = units,
                                       .worker = MGL_SCHEDULE_ANYONE,
                                       .wait = at == 0 ? MGL_WAIT_NOTHING : MGL_WAIT_KERNEL,
                                       .event = at == 0 ? MGL_NO_EVENT : at - 1,
                                       .trigger = at};
    s->events[at] = (mgl_event){.type = MGL_EVENT_LAUNCH_TASKS, .trigger_count = 1};
    at++;
  }
  mgl_schedule_fill_lists(s);
  return MGL_OK;
}
