#include "device/cpu/cpu_eager.h"

typedef struct eager_job {
  const mgl_cpu_program *program;
  mgl_team *team;
} eager_job;

static void eager_worker(void *context, uint32_t index) {
  const eager_job *job = context;
  const mgl_cpu_program *program = job->program;
  for (size_t op = 0; op < program->graph->op_count; op++) {
    size_t begin = 0;
    size_t end = 0;
    if (program->barrier[op] != 0) {
      mgl_team_barrier(job->team);
    }
    mgl_team_share(index, mgl_team_size(job->team), mgl_cpu_op_units(program, op),
                   mgl_cpu_op_grain(program, op), &begin, &end);
    if (begin < end) {
      mgl_cpu_op_run(program, op, index, begin, end);
    }
  }
}

void mgl_cpu_eager_run(mgl_cpu_program *program, mgl_team *team, const mgl_plan *plan) {
  mgl_cpu_program_set_plan(program, plan);
  eager_job job = {program, team};
  mgl_team_run(team, eager_worker, &job);
}
