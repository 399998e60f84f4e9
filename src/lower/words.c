// Task graphs as schedules: by their events, or by words.
//
//   requires  a verified task graph of the program; for words, one that mgl_words_carry takes
//   ensures   op i of the schedule is op i of the program; step i is task i of the graph; lists are
//             the graph's. By words: a linear or attend waits for no event, and an event that only
//             such tasks wait for is neither awaited nor triggered. What the words order is what
//             the regions of the tasks say, which are all that these tasks read.
#include "lower/words.h"

#include <string.h>

#include "lower/lower_parts.h"
#include "lower/packed.h"
#include "task/tile.h"
#include "twin/device_run.h"

static bool waits_for_words(const mgl_task *task) {
  return (task->flags & MGL_TASK_EMPTY) == 0 && mgl_kind_waits_for_words(task->type);
}

bool mgl_words_replace_event(const mgl_task_graph *graph, uint32_t event_idx) {
  const mgl_event *event = &graph->events[event_idx];
  if (event->type != MGL_EVENT_LAUNCH_TASKS) {
    return false;
  }
  for (uint32_t i = event->first_task; i < event->last_task; i++) {
    if (!waits_for_words(&graph->tasks[i])) {
      return false;
    }
  }
  return true;
}

bool mgl_words_are_written(const mgl_task *task) {
  return (task->flags & MGL_TASK_EMPTY) == 0 && mgl_kind_writes_words(task->type);
}

static bool reads_result(const mgl_graph *program, uint32_t reader, uint32_t op) {
  for (uint32_t i = 0; i < program->ops[reader].input_count; i++) {
    if (program->ops[reader].inputs[i] == program->ops[op].output) {
      return true;
    }
  }
  return false;
}

// Whether words say all that an event says: what waits for it reads the words of what triggers it.
// They do not where it orders accesses to a KV cache that two attends share, or where an empty task
// passes on what other tasks have done.
static bool words_say_event(const mgl_graph *program, const mgl_task_graph *graph,
                            const mgl_task *task) {
  const mgl_event *event = &graph->events[task->trigger_event];
  if ((task->flags & MGL_TASK_EMPTY) != 0) {
    return false;
  }
  for (uint32_t i = event->first_task; i < event->last_task; i++) {
    bool same = i > event->first_task && graph->tasks[i].op == graph->tasks[i - 1].op;
    if (!same && !reads_result(program, graph->tasks[i].op, task->op)) {
      return false;
    }
  }
  return true;
}

static bool words_say_events(const mgl_graph *program, const mgl_task_graph *graph) {
  const mgl_task *last = NULL;  // that was looked at; its neighbours are alike
  for (uint32_t i = 0; i < graph->task_count; i++) {
    const mgl_task *task = &graph->tasks[i];
    bool alike = last != NULL && last->op == task->op && last->flags == task->flags &&
                 last->trigger_event == task->trigger_event;
    if (!alike && mgl_words_replace_event(graph, task->trigger_event) &&
        !words_say_event(program, graph, task)) {
      return false;
    }
    last = task;
  }
  return true;
}

bool mgl_words_carry(const mgl_graph *program, const mgl_task_graph *graph) {
  if (graph->tokens > MGL_CUDA_CARRIED_TOKENS || !words_say_events(program, graph)) {
    return false;
  }
  for (uint32_t i = 0; i < graph->task_count; i++) {
    const mgl_task *task = &graph->tasks[i];
    bool known = (task->flags & MGL_TASK_EMPTY) != 0 || waits_for_words(task) ||
                 mgl_words_are_written(task) || task->type == MGL_OP_NEXT_PLAN ||
                 task->type == MGL_OP_SAMPLE || task->type == MGL_OP_ALL_GATHER;
    if (!known || (task->flags & MGL_TASK_JIT) != 0) {
      return false;
    }
  }
  for (uint32_t worker = 0; worker < graph->worker_count; worker++) {
    bool covered = true;
    for (uint32_t i = graph->aot_start[worker]; i < graph->aot_start[worker + 1]; i++) {
      const mgl_task *task = &graph->tasks[graph->aot_tasks[i]];
      covered = !mgl_words_replace_event(graph, task->trigger_event) ||
                (covered && !mgl_words_are_written(task));
    }
    if (!covered) {
      return false;
    }
  }
  return true;
}

static mgl_schedule_step step_of(const mgl_task_graph *graph, const mgl_task *task) {
  mgl_schedule_step step = {.op = task->op,
                            .begin = task->begin,
                            .end = task->end,
                            .worker = MGL_SCHEDULE_ANYONE,
                            .wait = MGL_WAIT_NOTHING,
                            .event = MGL_NO_EVENT,
                            .trigger = task->trigger_event};
  if (task->worker != MGL_NO_WORKER) {
    step.worker = task->worker;
  }
  // What waits for a dependent launch is of the iteration before, which has ended.
  if (task->dependent_event != MGL_NO_EVENT &&
      graph->events[task->dependent_event].type != MGL_EVENT_LAUNCH_DEPENDENT_TASKS) {
    step.wait = MGL_WAIT_EVENT;
    step.event = task->dependent_event;
  }
  return step;
}

static void use_words(const mgl_task_graph *graph, mgl_schedule *s) {
  for (uint32_t i = 0; i < s->event_count; i++) {
    if (mgl_words_replace_event(graph, i)) {
      s->events[i].trigger_count = 0;
    }
  }
  for (uint32_t i = 0; i < s->step_count; i++) {
    mgl_schedule_step *step = &s->steps[i];
    if (waits_for_words(&graph->tasks[i])) {
      step->wait = MGL_WAIT_WORDS;
      step->event = MGL_NO_EVENT;
    }
    if (s->events[step->trigger].trigger_count == 0) {
      step->trigger = MGL_NO_EVENT;
    }
  }
}

mgl_status mgl_lower_graph(const mgl_graph *program, const mgl_task_graph *graph,
                           mgl_lowering lowering, mgl_schedule **out, mgl_error *err) {
  const mgl_schedule sizes = {.lowering = lowering,
                              .target = graph->target,
                              .tokens = graph->tokens,
                              .logit_rows = graph->logit_rows,
                              .worker_count = graph->worker_count,
                              .strides = graph->attention_strides,
                              .op_count = (uint32_t)program->op_count,
                              .step_count = graph->task_count,
                              .event_count = graph->event_count};
  mgl_schedule *s = mgl_schedule_create(&sizes);
  *out = s;
  if (s == NULL) {
    return mgl_schedule_out_of_memory(err);
  }
  for (uint32_t i = 0; i < s->op_count; i++) {
    s->ops[i] = (mgl_schedule_op){
        .kind = (uint32_t)program->ops[i].kind,
        .op = i,
        .with = MGL_NO_OP,
        .rows = graph->tokens,
        .units = mgl_tile_units(program, &program->ops[i], graph->tokens, graph->attention_strides),
        .splits = 1,
        .first_shared = MGL_NOT_SHARED};
  }
  for (uint32_t i = 0; i < s->step_count; i++) {
    s->steps[i] = step_of(graph, &graph->tasks[i]);
  }
  memcpy(s->events, graph->events, s->event_count * sizeof *s->events);
  memcpy(s->list_start, graph->aot_start, (s->worker_count + (size_t)1) * sizeof *s->list_start);
  memcpy(s->list, graph->aot_tasks, graph->aot_start[s->worker_count] * sizeof *s->list);
  if (lowering == MGL_LOWER_WORDS) {
    use_words(graph, s);
  }
  return MGL_OK;
}
