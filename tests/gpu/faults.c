// Tasks that hang or lose their trigger: found within the stall time, named by op, and the next
// launch is whole.
#include <stdio.h>
#include <string.h>

#include "gpu/gpu_bench.h"

enum { PROMPT = 5, GENERATE = 24, PAGES = 4, ITERATION = 6, FEW_WORKERS = 20 };

#define STALL_NS UINT64_C(500000000)
#define DEADLINE_NS UINT64_C(5000000000)

static mgl_status run(mgl_cuda_program *program, const gpu_model *model,
                      mgl_cuda_launch_options launch, uint64_t *host_ns, mgl_error *err) {
  int32_t prompt[PROMPT];
  for (uint32_t i = 0; i < PROMPT; i++) {
    prompt[i] = gpu_model_token(model, i);
  }
  mgl_cuda_request request = {.prompt = prompt, .prompt_count = PROMPT, .max_new_tokens = GENERATE};
  mgl_cuda_outcome outcome = {0};
  launch.stall_ns = STALL_NS;
  launch.deadline_ns = DEADLINE_NS;
  mgl_cuda_generate job = {
      .requests = &request, .request_count = 1, .launch = launch, .outcome = &outcome};
  mgl_status status = mgl_cuda_program_generate(program, &job, err);
  *host_ns = outcome.host_ns;
  return status;
}

// The middle task of the middle op of that kind, in the graph for one token; false: there is none.
static bool find_task(const mgl_cuda_program *program, mgl_op_kind kind, uint32_t *out) {
  const mgl_task_graph *graph = mgl_cuda_program_graph(program, 0);
  uint32_t count = 0;
  for (uint32_t i = 0; i < graph->task_count; i++) {
    count += graph->tasks[i].type == (uint16_t)kind ? 1 : 0;
  }
  uint32_t wanted = count / 2;
  for (uint32_t i = 0; i < graph->task_count; i++) {
    if (graph->tasks[i].type == (uint16_t)kind && wanted-- == 0) {
      *out = i;
      return true;
    }
  }
  return false;
}

static void inject(gpu_bench *bench, mgl_cuda_program *program, const gpu_model *model,
                   mgl_op_kind kind, mgl_cuda_injection injection) {
  mgl_error err = {0};
  uint32_t task = 0;
  uint64_t host_ns = 0;
  if (!find_task(program, kind, &task)) {
    return;
  }
  const mgl_graph *fused = mgl_cuda_program_fused(program);
  uint32_t op = mgl_cuda_program_graph(program, 0)->tasks[task].op;
  char named[MGL_GRAPH_MAX_NAME_BYTES + 64];
  (void)snprintf(named, sizeof named, "(%s \"%s\"", mgl_op_info_of(kind)->name,
                 fused->tensors[fused->ops[op].output].name);
  mgl_cuda_launch_options launch = {
      .injection = injection, .injection_task = task, .injection_iteration = ITERATION};
  mgl_status status = run(program, model, launch, &host_ns, &err);
  gpu_check(bench,
            status == MGL_ERR_INTERNAL && strstr(err.text, named) != NULL &&
                host_ns < UINT64_C(2000000000),
            "%s, task %u %s: after %.2f s: %s", mgl_op_info_of(kind)->name, task,
            injection == MGL_INJECT_HANG ? "hangs" : "loses its trigger", (double)host_ns / 1e9,
            status == MGL_OK ? "no fault was raised" : err.text);
  err = (mgl_error){0};
  status = run(program, model, (mgl_cuda_launch_options){0}, &host_ns, &err);
  gpu_check(bench, status == MGL_OK, "%s: the launch after it ends by itself%s%s",
            mgl_op_info_of(kind)->name, status == MGL_OK ? "" : ": ",
            status == MGL_OK ? "" : err.text);
}

void gpu_faults_run(gpu_bench *bench, int count, char **arguments) {
  static const mgl_op_kind kinds[] = {MGL_OP_EMBED,      MGL_OP_QKV_PROJ, MGL_OP_ATTEND,
                                      MGL_OP_LINEAR_ADD, MGL_OP_GATE_UP,  MGL_OP_LOGITS,
                                      MGL_OP_NEXT_PLAN,  MGL_OP_SAMPLE};
  mgl_error err = {0};
  gpu_model model;
  uint64_t host_ns = 0;
  gpu_model_open(count > 0 ? arguments[0] : "tiny", &model);
  // With few workers every one has a task of the logits, and activations carry their readiness;
  // with all of them the small models' tasks wait for events. At last all tasks are taken by
  // tickets.
  static const struct {
    uint32_t workers;
    mgl_launch launch;
  } programs[] = {{FEW_WORKERS, MGL_LAUNCH_AUTO}, {0, MGL_LAUNCH_AUTO}, {0, MGL_LAUNCH_JIT}};
  for (size_t at = 0; at < sizeof programs / sizeof programs[0]; at++) {
    mgl_cuda_program *program =
        gpu_program(bench, &model,
                    (mgl_cuda_program_options){.sizes.limits.tokens = 8,
                                               .sizes.sequences = 1,
                                               .sizes.limits.pages_per_sequence = PAGES,
                                               .sizes.workers = programs[at].workers,
                                               .build.launch = programs[at].launch});
    printf("\n## Faults: %s, %u workers%s (stall after %.1f s)\n\n", model.name,
           mgl_cuda_program_describe(program).workers,
           programs[at].launch == MGL_LAUNCH_JIT ? ", all JIT" : "", (double)STALL_NS / 1e9);
    gpu_must(run(program, &model, (mgl_cuda_launch_options){0}, &host_ns, &err), &err);
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
      inject(bench, program, &model, kinds[i], MGL_INJECT_HANG);
      inject(bench, program, &model, kinds[i], MGL_INJECT_LOSE);
    }
    mgl_cuda_program_destroy(program);
  }
  gpu_model_close(&model);
}
