#include "device/cpu/cpu_eager.h"

#include "device/cpu/cpu_check.h"

typedef struct eager_job {
  const mgl_cpu_program *program;
  mgl_team *team;
  size_t op;    // the first, or that runs alone
  size_t last;  // of those that run in order
} eager_job;

static void run_share(const eager_job *job, uint32_t index, size_t op) {
  const mgl_cpu_program *program = job->program;
  size_t begin = 0;
  size_t end = 0;
  mgl_team_share(index, mgl_team_size(job->team), mgl_cpu_op_units(program, op),
                 mgl_cpu_op_grain(program, op), &begin, &end);
  if (begin < end) {
    mgl_cpu_op_run(program, op, index, begin, end);
  }
}

static void eager_worker(void *context, uint32_t index) {
  const eager_job *job = context;
  const mgl_cpu_program *program = job->program;
  for (size_t op = job->op; op <= job->last; op++) {
    if (program->barrier[op] != 0) {
      mgl_team_barrier(job->team);
    }
    run_share(job, index, op);
  }
}

void mgl_cpu_eager_run_ops(mgl_cpu_program *program, mgl_team *team, const mgl_plan *plan,
                           size_t first, size_t last) {
  mgl_cpu_program_set_plan(program, plan);
  eager_job job = {.program = program, .team = team, .op = first, .last = last};
  mgl_team_run(team, eager_worker, &job);
  mgl_cpu_program_end_plan(program);
}

void mgl_cpu_eager_run(mgl_cpu_program *program, mgl_team *team, const mgl_plan *plan) {
  mgl_cpu_eager_run_ops(program, team, plan, 0, program->graph->op_count - 1);
}

static void op_worker(void *context, uint32_t index) {
  const eager_job *job = context;
  run_share(job, index, job->op);
}

mgl_status mgl_cpu_eager_run_checked(mgl_cpu_program *program, mgl_team *team, const mgl_plan *plan,
                                     mgl_error *err) {
  mgl_cpu_program_set_plan(program, plan);
  eager_job job = {.program = program, .team = team};
  mgl_status status = MGL_OK;
  for (; job.op < program->graph->op_count && status == MGL_OK; job.op++) {
    mgl_team_run(team, op_worker, &job);
    status = mgl_cpu_check_op(program, job.op, err);
  }
  mgl_cpu_program_end_plan(program);
  return status;
}
