// A failed launch says one message here, which names the task, the worker and the event.
#include "base/alloc.h"
#include "device/cuda/cuda_program_parts.h"
#include "device/cuda/cuda_steps.h"
#include "lower/words.h"

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

// --- words that were never written ---------------------------------------------------------------

// An activation of a carrying graph as the failed launch left it.
typedef struct words {
  uint32_t op;  // whose output it is; MGL_NO_OP: none
  uint16_t *halves;
  size_t row_halves;
} words;

static bool read_words(const mgl_cuda_program *p, uint32_t graph, uint32_t op, uint32_t rows,
                       words *out) {
  const mgl_tensor *tensor = &p->program->tensors[p->program->ops[op].output];
  size_t row_bytes = (size_t)mgl_tensor_row_elements(tensor) * mgl_dtype_bytes(tensor->dtype);
  uint64_t runs = mgl_cuda_image_run(p)->protocol.graph_runs[graph];
  uint64_t offset = p->layout.activations[graph][p->program->ops[op].output] +
                    (runs % 2 != 0 ? 0 : p->layout.copy_bytes[graph]);
  mgl_free(out->halves);
  out->op = op;
  out->row_halves = row_bytes / sizeof *out->halves;
  out->halves = mgl_alloc(rows * row_bytes);
  return out->halves != NULL &&
         p->device->driver.copy_to_host(out->halves, p->memory[MGL_CUDA_MEMORY_CARRIED] + offset,
                                        rows * row_bytes) == 0;
}

// True if a task's part of it has elements that were not written. Of attention: its KV heads' part,
// which tasks of other strides may share.
static bool is_open(const mgl_cuda_program *p, uint32_t graph, const mgl_task *task, uint32_t rows,
                    const words *w) {
  uint32_t strides = p->graphs[graph]->attention_strides;
  uint32_t head = p->model.group * p->model.head_dim;
  const mgl_op *op = &p->program->ops[task->op];
  mgl_unit unit = mgl_op_info_of(op->kind)->unit;
  size_t scale = mgl_dtype_bytes(p->program->tensors[op->output].dtype) / sizeof *w->halves;
  bool by_rows = unit == MGL_UNIT_ROW;
  size_t begin = by_rows ? 0 : task->begin * scale;
  size_t end = by_rows ? w->row_halves : task->end * scale;
  if (unit == MGL_UNIT_HEAD) {
    begin = (size_t)(task->begin / strides) * head;
    end = (size_t)((task->end - 1) / strides + 1) * head;
  }
  end = end < w->row_halves ? end : w->row_halves;
  for (uint32_t row = by_rows ? task->begin : 0; row < (by_rows ? task->end : rows); row++) {
    for (size_t i = begin; row < rows && i < end; i++) {
      if (w->halves[row * w->row_halves + i] == 0xffff &&
          w->halves[row * w->row_halves + (i ^ 1)] == 0xffff) {
        return true;
      }
    }
  }
  return false;
}

// The first task in linear order that has not written all of its output: what it reads is there.
static bool find_open_task(const mgl_cuda_program *p, uint32_t graph_idx, uint32_t *task_idx) {
  const mgl_task_graph *graph = p->graphs[graph_idx];
  uint64_t published = mgl_load_relaxed(&mgl_cuda_image_run(p)->protocol.published);
  const mgl_cuda_plan *plan = &mgl_cuda_image_plan(p)[(published - 1) & 1];
  uint32_t rows = plan->token_count < graph->tokens ? plan->token_count : graph->tokens;
  words w = {.op = MGL_NO_OP};
  bool found = false;
  for (uint32_t i = 0; i < graph->task_count && rows > 0 && published > 0 && !found; i++) {
    const mgl_task *task = &graph->tasks[i];
    if (!mgl_words_are_written(task)) {
      continue;
    }
    if (task->op != w.op && !read_words(p, graph_idx, task->op, rows, &w)) {
      break;
    }
    if (is_open(p, graph_idx, task, rows, &w)) {
      *task_idx = i;
      found = true;
    }
  }
  mgl_free(w.halves);
  return found;
}

static bool is_carrying(const mgl_cuda_program *p, uint32_t graph) {
  return p->layout.copy_bytes[graph] != 0;
}

// --- events --------------------------------------------------------------------------------------

static uint64_t counter_of(const mgl_cuda_program *p, uint32_t graph, uint32_t event) {
  const mgl_cuda_state_layout *state = &p->layout.state;
  const mgl_word *counters = (const mgl_word *)(const void *)(p->image + state->counters);
  return mgl_load_relaxed(&counters[state->counter_start[graph] + event]);
}

// Ranks whose triggers an event counts.
static uint32_t ranks_of(const mgl_cuda_program *p, uint32_t graph, uint32_t event) {
  const uint32_t flags = p->graphs[graph]->events[event].flags;
  return p->ranks != NULL && (flags & MGL_EVENT_REMOTE) != 0 ? p->peers.count : 1;
}

static bool is_complete(const mgl_cuda_program *p, uint32_t graph, uint32_t event, uint64_t run) {
  return event == MGL_NO_EVENT ||
         p->graphs[graph]->events[event].type == MGL_EVENT_LAUNCH_DEPENDENT_TASKS ||
         (is_carrying(p, graph) && mgl_words_replace_event(p->graphs[graph], event)) ||
         counter_of(p, graph, event) >=
             p->graphs[graph]->events[event].trigger_count * run * ranks_of(p, graph, event);
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
  uint32_t open = 0;
  if (is_carrying(p, graph_idx) && find_open_task(p, graph_idx, &open)) {
    mgl_text_append_string(text, "; ");
    describe_task(p, graph_idx, open, text);
    mgl_text_append_string(text, " could run and did not write all of its output");
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
    uint64_t missing = event->trigger_count * k * ranks_of(p, graph_idx, task->trigger_event) -
                       counter_of(p, graph_idx, task->trigger_event);
    if (!lacks_a_trigger(p, graph_idx, task->trigger_event, missing, k)) {
      continue;
    }
    mgl_text_append_string(text, "; ");
    describe_task(p, graph_idx, i, text);
    for (uint32_t j = i + 1; j < graph->task_count; j++) {  // another op triggers the same event
      if (graph->tasks[j].trigger_event == task->trigger_event &&
          graph->tasks[j].op != graph->tasks[j - 1].op) {
        mgl_text_append_string(text, ", or ");
        describe_task(p, graph_idx, j, text);
      }
    }
    mgl_text_format(text,
                    "%s could run and did not trigger event %u, which lacks %llu of %u triggers",
                    event->trigger_count > 1 ? " or one beside it" : "", task->trigger_event,
                    (unsigned long long)missing, event->trigger_count);
    return;
  }
}

// Of a linear_add over ranks: whose parts of its first column are not there, and what of them came
// last.
static void describe_parts(const mgl_cuda_program *p, uint32_t graph, uint32_t task_idx,
                           mgl_text *text) {
  if (p->ranks == NULL || graph >= p->graph_count || task_idx >= p->graphs[graph]->task_count) {
    return;
  }
  const mgl_task *task = &p->graphs[graph]->tasks[task_idx];
  const uint64_t exchange = task->op == MGL_NO_OP ? 0 : mgl_cuda_exchange_of(p->program, task->op);
  const uint64_t published = mgl_load_relaxed(&mgl_cuda_image_run(p)->protocol.published);
  if (exchange == 0 || published == 0) {
    return;
  }
  const uint64_t number = (published - 1) * p->layout.exchanges + exchange - 1;
  for (uint32_t rank = 0; rank < p->peers.count; rank++) {
    uint64_t word = 0;
    uint64_t at = ((number & 1) * p->peers.count + rank) * p->layout.inbox_stride + task->begin;
    if (p->device->driver.copy_to_host(&word, p->memory[MGL_CUDA_MEMORY_INBOX] + at * sizeof word,
                                       sizeof word) != 0 ||
        word >> 32 == (uint32_t)(number + 1)) {
      continue;
    }
    mgl_text_format(text, "; the part of rank %u is not there", rank);
    if (word >> 32 != 0) {
      const uint64_t before = (word >> 32) - 1;
      mgl_text_format(text, ", its last one in this place was sum %llu of iteration %llu",
                      (unsigned long long)(before % p->layout.exchanges),
                      (unsigned long long)(before / p->layout.exchanges));
    }
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
      describe_parts(p, graph, task, text);
      break;
    case MGL_CUDA_STALL_WAITING:
      describe_task(p, graph, task, text);
      mgl_text_format(text, " waits on worker %u for ", worker);
      if (graph < p->graph_count && is_carrying(p, graph)) {
        mgl_text_append_string(text, "what it reads");
      } else {
        mgl_text_format(text, "event %u", event_of(p, graph, task, true));
      }
      describe_lost_trigger(p, graph, text);
      break;
    default:
      mgl_text_format(text, "worker %u found nothing that runs", worker);
      describe_lost_trigger(p, mgl_info_graph(mgl_load_relaxed(&run->protocol.info)), text);
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
      describe_parts(p, mgl_id_graph(current - 1), mgl_id_index(current - 1), text);
    }
  }
  mgl_text_format(text, "; %u of %u workers run a task", running, p->workers);
  if (running == 0) {
    const mgl_cuda_run *run = mgl_cuda_image_run(p);
    describe_lost_trigger(p, mgl_info_graph(mgl_load_relaxed(&run->protocol.info)), text);
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
