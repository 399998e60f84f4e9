// What a failed launch says: one message that names the task, the worker and the event.
#include "runtime/cuda_program_parts.h"

// Appends what a task is: "task 12 (linear_add "3.down", units 16 to 32)".
static void describe_task(const mgl_cuda_program *p, uint32_t graph_idx, uint32_t task_idx,
                          mgl_text *text) {
  if (graph_idx >= p->graph_count || task_idx >= p->graphs[graph_idx]->task_count) {
    mgl_text_format(text, "task %u of graph %u, which does not exist", task_idx, graph_idx);
    return;
  }
  const mgl_task *task = &p->graphs[graph_idx]->tasks[task_idx];
  if (task->op == MGL_NO_OP) {
    mgl_text_format(text, "task %u (empty)", task_idx);
    return;
  }
  const mgl_op *op = &p->program->ops[task->op];
  mgl_text_format(text, "task %u (%s \"%s\", units %u to %u) of the graph for %u tokens", task_idx,
                  mgl_op_info_of(op->kind)->name, p->program->tensors[op->output].name, task->begin,
                  task->end, p->graphs[graph_idx]->tokens);
}

static uint64_t counter_of(const mgl_cuda_program *p, uint32_t graph, uint32_t event) {
  const mgl_cuda_state_layout *state = &p->layout.state;
  const mgl_word *counters = (const mgl_word *)(const void *)(p->image + state->counters);
  return mgl_load_relaxed(&counters[state->counter_start[graph] + event]);
}

static bool is_complete(const mgl_cuda_program *p, uint32_t graph, uint32_t event, uint64_t run) {
  return event == MGL_NO_EVENT ||
         p->graphs[graph]->events[event].type == MGL_EVENT_LAUNCH_DEPENDENT_TASKS ||
         counter_of(p, graph, event) >= p->graphs[graph]->events[event].trigger_count * run;
}

// True if more triggers of an event are missing than its tasks that cannot run yet account for:
// some task that could run did not trigger it.
static bool lacks_a_trigger(const mgl_cuda_program *p, uint32_t graph_idx, uint32_t event,
                            uint64_t missing, uint64_t k) {
  const mgl_task_graph *graph = p->graphs[graph_idx];
  uint64_t held_up = 0;
  for (uint32_t i = 0; i < graph->task_count; i++) {
    held_up += graph->tasks[i].trigger_event == event &&
               !is_complete(p, graph_idx, graph->tasks[i].dependent_event, k);
  }
  return missing > held_up;
}

// Nothing runs and something waits: a task that could run has not triggered its event. The first in
// linear order is named, with what its event has got.
static void describe_lost_trigger(const mgl_cuda_program *p, uint32_t graph_idx, mgl_text *text) {
  if (graph_idx >= p->graph_count) {
    return;
  }
  const mgl_task_graph *graph = p->graphs[graph_idx];
  uint64_t k = mgl_cuda_image_run(p)->protocol.graph_runs[graph_idx];
  for (uint32_t i = 0; i < graph->task_count; i++) {
    const mgl_task *task = &graph->tasks[i];
    if ((task->flags & MGL_TASK_EMPTY) != 0 || is_complete(p, graph_idx, task->trigger_event, k) ||
        !is_complete(p, graph_idx, task->dependent_event, k)) {
      continue;
    }
    const mgl_event *event = &graph->events[task->trigger_event];
    uint64_t missing = event->trigger_count * k - counter_of(p, graph_idx, task->trigger_event);
    if (!lacks_a_trigger(p, graph_idx, task->trigger_event, missing, k)) {
      continue;
    }
    mgl_text_append_string(text, "; ");
    describe_task(p, graph_idx, i, text);
    mgl_text_format(text,
                    "%s could run and did not trigger event %u, which lacks %llu of %u triggers",
                    event->trigger_count > 1 ? " or one beside it" : "", task->trigger_event,
                    (unsigned long long)missing, event->trigger_count);
    return;
  }
}

// The event that a task waits for or triggers; MGL_NO_EVENT where the task does not exist.
static uint32_t event_of(const mgl_cuda_program *p, uint32_t graph, uint32_t task, bool dependent) {
  if (graph >= p->graph_count || task >= p->graphs[graph]->task_count) {
    return MGL_NO_EVENT;
  }
  const mgl_task *t = &p->graphs[graph]->tasks[task];
  return dependent ? t->dependent_event : t->trigger_event;
}

static void describe_stall(const mgl_cuda_program *p, uint64_t stall, mgl_text *text) {
  const mgl_cuda_run *run = mgl_cuda_image_run(p);
  uint32_t graph = mgl_id_graph(stall);
  uint32_t task = mgl_id_index(stall);
  uint32_t worker = (uint32_t)(stall >> 32) & 0xffff;
  switch (stall >> 48) {
    case MGL_CUDA_STALL_RUNNING:
      describe_task(p, graph, task, text);
      mgl_text_format(text, " runs on worker %u and does not end; event %u waits for it", worker,
                      event_of(p, graph, task, false));
      break;
    case MGL_CUDA_STALL_WAITING:
      describe_task(p, graph, task, text);
      mgl_text_format(text, " waits on worker %u for event %u", worker,
                      event_of(p, graph, task, true));
      describe_lost_trigger(p, graph, text);
      break;
    default:
      mgl_text_format(text, "worker %u found nothing that runs", worker);
      describe_lost_trigger(p, (uint32_t)(mgl_load_relaxed(&run->protocol.info) >> 1) & 0x7fff,
                            text);
      break;
  }
}

// The host ended the launch: what each worker is at, as far as the state tells. The first few.
static void describe_workers(const mgl_cuda_program *p, mgl_text *text) {
  const mgl_worker_shared *workers =
      (const mgl_worker_shared *)(const void *)(p->image + p->layout.state.workers);
  uint32_t running = 0;
  for (uint32_t i = 0; i < p->workers; i++) {
    uint64_t current = mgl_load_relaxed(&workers[i].current);
    if (current != 0 && running++ < 2) {
      mgl_text_append_string(text, "; ");
      describe_task(p, mgl_id_graph(current - 1), mgl_id_index(current - 1), text);
      mgl_text_format(text, " is on worker %u", i);
    }
  }
  mgl_text_format(text, "; %u of %u workers run a task", running, p->workers);
  if (running == 0) {
    const mgl_cuda_run *run = mgl_cuda_image_run(p);
    describe_lost_trigger(p, (uint32_t)(mgl_load_relaxed(&run->protocol.info) >> 1) & 0x7fff, text);
  }
}

mgl_status mgl_cuda_describe_fault(const mgl_cuda_program *p, const mgl_cuda_launch_options *launch,
                                   mgl_error *err) {
  static const char *const names[] = {
      [MGL_FAULT_NONE] = "none",
      [MGL_FAULT_STUCK] = "nothing makes progress",
      [MGL_FAULT_QUEUE_FULL] = "a queue is too small",
      [MGL_FAULT_PENDING] = "too many empty tasks follow each other",
      [MGL_FAULT_STALE_ID] = "a queued task is of another iteration",
      [MGL_FAULT_PLAN] = "the plan names a graph that does not exist",
  };
  const mgl_cuda_run *run = mgl_cuda_image_run(p);
  uint64_t fault = mgl_load_relaxed(&run->protocol.fault);
  uint64_t stall = mgl_load_relaxed(&run->stall);
  if (fault == MGL_FAULT_NONE) {
    return MGL_OK;
  }
  uint64_t iteration = mgl_load_relaxed(&run->protocol.published);
  mgl_text text = {0};
  mgl_text_format(&text, "GPU fault in iteration %llu: ",
                  (unsigned long long)(iteration > 0 ? iteration - 1 : 0));
  if (stall >> 48 != MGL_CUDA_STALL_NONE) {
    mgl_text_format(&text, "no progress for %.2f s: ", (double)launch->stall_ns / 1e9);
    describe_stall(p, stall, &text);
  } else if (fault == MGL_FAULT_STUCK) {  // nobody on the device raised it
    mgl_text_format(&text, "the host ended the launch after %.2f s",
                    (double)launch->deadline_ns / 1e9);
    describe_workers(p, &text);
  } else {
    mgl_text_append_string(&text,
                           fault < sizeof names / sizeof names[0] ? names[fault] : "unknown");
  }
  mgl_status status = mgl_text_check(&text, err);
  if (status == MGL_OK) {
    status = mgl_error_set(err, MGL_ERR_INTERNAL, "%s", text.data);
  }
  mgl_text_free(&text);
  return status;
}
