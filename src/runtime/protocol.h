// The runtime protocol: how workers and schedulers execute task graphs together. One source for CPU
// threads and GPU warps; everything shared goes through base/atomics.h.
//
// Nothing here blocks. A worker polls for its next task, runs it, and finishes it; a scheduler
// polls for an activated event and queues its JIT tasks. What to do when a poll finds nothing
// (pause, sleep, look for a fault) is the target's business. So the same functions are driven by
// threads, by warps, and by the test that tries all interleavings.
//
// Counters. An event of a graph's k-th run is activated by trigger number trigger_count * k.
// Counters only grow, and nothing is reset between iterations.
//
// Iterations. Whoever handles END_OF_TASK_GRAPH asks for the next plan and publishes iteration i in
// slot i % MGL_ITERATION_SLOTS of a board. A worker enters iteration i when it has passed all its
// AOT tasks of the iterations before. One that has no tasks in an iteration may miss it; it then
// goes to the latest.
//
// Dependent launch. The tasks of a LAUNCH_DEPENDENT_TASKS event run in the iteration after the one
// that activates it, if that runs the same graph; where it does not, and in the first iteration,
// the publisher launches them. So they run once in every iteration of their graph, as early as the
// event allows.
//
// Liveness. Every AOT list ascends in the linear (topological) order, and JIT tasks are ready and
// are served while AOT waits. A worker never waits inside the protocol: a scheduler queue holds all
// events that one iteration can hand to it, and with embedded schedulers a JIT queue holds all JIT
// tasks of an iteration (mgl_protocol_queue_sizes). A dedicated scheduler may find JIT queues full;
// it waits while workers drain them. So the outstanding task with the lowest index can always run:
// it is queued, or at the head of a list, or its worker runs another.
#ifndef MGL_RUNTIME_PROTOCOL_H
#define MGL_RUNTIME_PROTOCOL_H

#include "base/atomics.h"
#include "task/task.h"

enum {
  MGL_ITERATION_SLOTS = 4,
  MGL_MAX_GRAPHS = 16,
  MGL_MAX_PENDING = 256,  // triggers by empty tasks that one activation can set off (verified)
};

// --- queues --------------------------------------------------------------------------------------
//
// Bounded, many producers and consumers. A slot's sequence number says whose turn it is: position p
// may be written when it is p, and read when it is p + 1; reading makes it p + size. So a consumer
// never reads a slot before it is written, and a producer never overwrites one that was not read.

typedef struct mgl_queue_slot {
  mgl_word sequence;
  uint64_t value;  // written by the producer that owns the turn, before it releases `sequence`
} mgl_queue_slot;

typedef struct mgl_queue {
  mgl_word head;  // next position to read; advanced by consumers
  mgl_word tail;  // next position to write; advanced by producers
  mgl_queue_slot *slots;
  uint64_t mask;  // size - 1; size is a power of two
} mgl_queue;

MGL_SHARED_FN void mgl_queue_init(mgl_queue *queue, mgl_queue_slot *slots, uint64_t size) {
  queue->slots = slots;
  queue->mask = size - 1;
  mgl_store_relaxed(&queue->head, 0);
  mgl_store_relaxed(&queue->tail, 0);
  for (uint64_t i = 0; i < size; i++) {
    slots[i].value = 0;
    mgl_store_relaxed(&slots[i].sequence, i);
  }
}

// False when the queue is full.
MGL_SHARED_FN bool mgl_queue_push(mgl_queue *queue, uint64_t value) {
  for (;;) {
    uint64_t position = mgl_load_relaxed(&queue->tail);
    mgl_queue_slot *slot = &queue->slots[position & queue->mask];
    // Acquire, paired with the release in pop: the reader is done with the slot before it is
    // written.
    uint64_t sequence = mgl_load_acquire(&slot->sequence);
    if (sequence == position) {
      if (mgl_cas_acq_rel(&queue->tail, position, position + 1)) {
        slot->value = value;
        mgl_store_release(&slot->sequence, position + 1);
        return true;
      }
    } else if (sequence < position) {
      return false;  // still holds what was pushed one round ago
    }
    // Else another producer took the position: try the next.
  }
}

// False when nothing is ready to be read.
MGL_SHARED_FN bool mgl_queue_pop(mgl_queue *queue, uint64_t *out_value) {
  for (;;) {
    uint64_t position = mgl_load_relaxed(&queue->head);
    mgl_queue_slot *slot = &queue->slots[position & queue->mask];
    // Acquire, paired with the release in push: the value, and all that its producer saw, is
    // visible.
    uint64_t sequence = mgl_load_acquire(&slot->sequence);
    if (sequence == position + 1) {
      if (mgl_cas_acq_rel(&queue->head, position, position + 1)) {
        *out_value = slot->value;
        mgl_store_release(&slot->sequence, position + queue->mask + 1);
        return true;
      }
    } else if (sequence <= position) {
      return false;
    }
  }
}

// The value that pop would give, left in the queue. For a queue with one consumer, by that
// consumer.
MGL_SHARED_FN bool mgl_queue_peek(const mgl_queue *queue, uint64_t *out_value) {
  uint64_t position = mgl_load_relaxed(&queue->head);
  const mgl_queue_slot *slot = &queue->slots[position & queue->mask];
  // Acquire, as in pop.
  if (mgl_load_acquire(&slot->sequence) != position + 1) {
    return false;
  }
  *out_value = slot->value;
  return true;
}

// How many values wait, approximately: for choosing a queue, never for correctness.
MGL_SHARED_FN uint64_t mgl_queue_length(const mgl_queue *queue) {
  uint64_t tail = mgl_load_relaxed(&queue->tail);
  uint64_t head = mgl_load_relaxed(&queue->head);
  return tail > head ? tail - head : 0;
}

// --- shared state --------------------------------------------------------------------------------

// A task graph as the protocol sees it. Read-only while running, but for the counters.
typedef struct mgl_graph_view {
  const mgl_task *tasks;
  const mgl_event *events;
  const uint32_t *aot_start;
  const uint32_t *aot_tasks;
  mgl_word *counters;  // [event_count]; added to by workers
  uint32_t task_count;
  uint32_t event_count;
  uint32_t ready_count;
} mgl_graph_view;

// An iteration on the board. Written by whoever publishes it, read by all.
typedef struct mgl_iteration_slot {
  mgl_word published;  // iteration + 1; 0 while it is being rewritten
  mgl_word info;       // run << 16 | graph << 1 | stop
} mgl_iteration_slot;

// What one worker shares with the others.
typedef struct mgl_worker_shared {
  mgl_queue jit;       // ready tasks; pushed by schedulers, popped by this worker
  mgl_queue next_jit;  // tasks of the iteration after the present one; the same
  mgl_word progress;   // tasks that it finished; written by this worker
  mgl_word current;    // task id + 1 that it runs now, 0 for none; written by this worker
} mgl_worker_shared;

// Ids in queues: iteration : 32 | graph : 4 | index : 28, of a task or an event.
enum { MGL_ID_INDEX_BITS = 28 };

MGL_SHARED_FN uint64_t mgl_make_id(uint64_t iteration, uint32_t graph, uint32_t index) {
  return iteration << 32 | (uint64_t)graph << MGL_ID_INDEX_BITS | index;
}

MGL_SHARED_FN uint64_t mgl_id_iteration(uint64_t id) {
  return id >> 32;
}

MGL_SHARED_FN uint32_t mgl_id_graph(uint64_t id) {
  return (uint32_t)(id >> MGL_ID_INDEX_BITS) & (MGL_MAX_GRAPHS - 1);
}

MGL_SHARED_FN uint32_t mgl_id_index(uint64_t id) {
  return (uint32_t)id & ((1u << MGL_ID_INDEX_BITS) - 1);
}

// The next plan. Called by one worker or scheduler at a time, after everything of the iterations
// before. Returns the graph to run, or a negative number to stop.
typedef int mgl_next_plan(void *context, uint64_t iteration);

typedef struct mgl_protocol {
  // Read-only while running.
  uint32_t worker_count;
  uint32_t scheduler_count;  // 0: embedded, activated events are scheduled by who activates them
  uint32_t graph_count;
  mgl_graph_view graphs[MGL_MAX_GRAPHS];
  mgl_next_plan *next_plan;
  void *next_plan_context;
  mgl_worker_shared *workers;   // [worker_count]
  mgl_queue *scheduler_queues;  // [scheduler_count] of event ids

  // Written by whoever handles END_OF_TASK_GRAPH; one at a time, ordered by the iterations
  // themselves.
  mgl_iteration_slot board[MGL_ITERATION_SLOTS];
  mgl_word latest;                      // iterations published so far
  uint64_t graph_runs[MGL_MAX_GRAPHS];  // how often each graph was published

  // Written by any worker or scheduler.
  mgl_word fault;  // 0, or what mgl_raise_fault stored; everybody stops
} mgl_protocol;

// --- iterations ----------------------------------------------------------------------------------

typedef struct mgl_iteration_info {
  uint64_t iteration;
  uint64_t run;  // k: this is the graph's k-th run, counted from 1
  uint32_t graph;
  bool stop;
} mgl_iteration_info;

// Reads iteration i from the board. False if it is not published yet, or is not there any more.
MGL_SHARED_FN bool mgl_read_iteration(const mgl_protocol *p, uint64_t iteration,
                                      mgl_iteration_info *out) {
  const mgl_iteration_slot *slot = &p->board[iteration % MGL_ITERATION_SLOTS];
  // Acquire, paired with the release in mgl_publish: the plan and all results before it are
  // visible.
  if (mgl_load_acquire(&slot->published) != iteration + 1) {
    return false;
  }
  // Acquire: the check below must not be read before it.
  uint64_t info = mgl_load_acquire(&slot->info);
  if (mgl_load_acquire(&slot->published) != iteration + 1) {
    return false;  // rewritten between the two loads: `info` may be a later iteration's
  }
  out->iteration = iteration;
  out->run = info >> 16;
  out->graph = (uint32_t)(info >> 1) & 0x7fff;
  out->stop = (info & 1) != 0;
  return true;
}

MGL_SHARED_FN void mgl_publish(mgl_protocol *p, uint64_t iteration, uint32_t graph, bool stop) {
  mgl_iteration_slot *slot = &p->board[iteration % MGL_ITERATION_SLOTS];
  uint64_t run = stop ? 0 : ++p->graph_runs[graph];
  mgl_store_release(&slot->published, 0);
  mgl_store_release(&slot->info, run << 16 | (uint64_t)graph << 1 | (stop ? 1 : 0));
  mgl_store_release(&slot->published, iteration + 1);
  mgl_store_release(&p->latest, iteration + 1);
}

// --- activation ----------------------------------------------------------------------------------

// Which part of an event's tasks a scheduler queues.
MGL_SHARED_FN void mgl_scheduler_share(const mgl_event *event, uint32_t scheduler, uint32_t count,
                                       uint32_t *first, uint32_t *last) {
  uint64_t tasks = event->last_task - event->first_task;
  *first = event->first_task + (uint32_t)(tasks * scheduler / count);
  *last = event->first_task + (uint32_t)(tasks * (scheduler + 1) / count);
}

// Gives a JIT task to an idle worker, else to the one with the shortest queue. Waits while all
// queues are full (see Liveness). False: the run has failed.
MGL_SHARED_FN bool mgl_queue_jit_task(mgl_protocol *p, uint64_t task_id, bool next_iteration) {
  uint32_t hint = mgl_id_index(task_id) % p->worker_count;
  uint32_t best = hint;
  uint64_t best_load = UINT64_MAX;
  for (uint32_t i = 0; i < p->worker_count && best_load > 0; i++) {
    uint32_t worker = (hint + i) % p->worker_count;
    const mgl_worker_shared *shared = &p->workers[worker];
    uint64_t load = mgl_queue_length(next_iteration ? &shared->next_jit : &shared->jit) * 2 +
                    (mgl_load_relaxed(&shared->current) != 0 ? 1 : 0);
    if (load < best_load) {
      best = worker;
      best_load = load;
    }
  }
  for (;;) {
    for (uint32_t i = 0; i < p->worker_count; i++) {
      mgl_worker_shared *shared = &p->workers[(best + i) % p->worker_count];
      if (mgl_queue_push(next_iteration ? &shared->next_jit : &shared->jit, task_id)) {
        mgl_notify();
        return true;
      }
    }
    if (mgl_load_relaxed(&p->fault) != 0) {
      return false;
    }
    mgl_relax();
  }
}

// Queues the JIT tasks in [first, last) for `iteration`.
MGL_SHARED_FN bool mgl_queue_jit_tasks(mgl_protocol *p, uint64_t iteration, uint32_t graph,
                                       uint32_t first, uint32_t last, bool next_iteration) {
  const mgl_graph_view *view = &p->graphs[graph];
  for (uint32_t task = first; task < last; task++) {
    if ((view->tasks[task].flags & MGL_TASK_JIT) != 0 &&
        !mgl_queue_jit_task(p, mgl_make_id(iteration, graph, task), next_iteration)) {
      return false;
    }
  }
  return true;
}

// Queues the JIT tasks of an activated event that fall to `scheduler` of `count`.
MGL_SHARED_FN bool mgl_schedule_event(mgl_protocol *p, uint64_t iteration, uint32_t graph,
                                      uint32_t event_idx, uint32_t scheduler, uint32_t count) {
  const mgl_event *event = &p->graphs[graph].events[event_idx];
  bool dependent = event->type == MGL_EVENT_LAUNCH_DEPENDENT_TASKS;
  uint32_t first = event->first_task;
  uint32_t last = event->last_task;
  if (event->type == MGL_EVENT_LAUNCH_MASSIVE_TASKS) {
    mgl_scheduler_share(event, scheduler, count, &first, &last);
  }
  return mgl_queue_jit_tasks(p, dependent ? iteration + 1 : iteration, graph, first, last,
                             dependent);
}

// Publishes iteration `iteration` with the next plan's graph, or the stop, and queues what is ready
// in it. previous_graph: that of the iteration before, or MGL_MAX_GRAPHS. Also starts a run, with
// iteration 0.
MGL_SHARED_FN bool mgl_begin_iteration(mgl_protocol *p, uint64_t iteration,
                                       uint32_t previous_graph) {
  int next = p->next_plan(p->next_plan_context, iteration);
  uint32_t graph = next < 0 ? 0 : (uint32_t)next;
  mgl_publish(p, iteration, graph, next < 0);
  mgl_notify();
  if (next < 0) {
    // Dedicated schedulers leave at this id; all events of the iterations before have been handled.
    for (uint32_t i = 0; i < p->scheduler_count; i++) {
      (void)mgl_queue_push(&p->scheduler_queues[i], UINT64_MAX);
    }
    return true;
  }
  const mgl_graph_view *view = &p->graphs[graph];
  if (!mgl_queue_jit_tasks(p, iteration, graph, 0, view->ready_count, false)) {
    return false;
  }
  for (uint32_t event = 0; graph != previous_graph && event < view->event_count; event++) {
    if (view->events[event].type == MGL_EVENT_LAUNCH_DEPENDENT_TASKS &&
        !mgl_queue_jit_tasks(p, iteration, graph, view->events[event].first_task,
                             view->events[event].last_task, true)) {
      return false;
    }
  }
  return true;
}

// Hands an activated event to whoever schedules it.
MGL_SHARED_FN bool mgl_hand_to_schedulers(mgl_protocol *p, uint64_t iteration, uint32_t graph,
                                          uint32_t event_idx) {
  const mgl_event *event = &p->graphs[graph].events[event_idx];
  if (p->scheduler_count == 0) {
    return event->type == MGL_EVENT_END_OF_TASK_GRAPH
               ? mgl_begin_iteration(p, iteration + 1, graph)
               : mgl_schedule_event(p, iteration, graph, event_idx, 0, 1);
  }
  bool massive = event->type == MGL_EVENT_LAUNCH_MASSIVE_TASKS;
  uint32_t first = massive ? 0 : event_idx % p->scheduler_count;
  uint32_t last = massive ? p->scheduler_count : first + 1;
  for (uint32_t i = first; i < last; i++) {
    while (!mgl_queue_push(&p->scheduler_queues[i], mgl_make_id(iteration, graph, event_idx))) {
      if (mgl_load_relaxed(&p->fault) != 0) {
        return false;
      }
      mgl_relax();
    }
  }
  mgl_notify();
  return true;
}

// Adds one trigger to an event of the graph's run k, and if it is the last one, does what the
// activation asks for. Empty tasks are resolved here, without a queue: their own triggers are added
// in turn. False: the run has failed.
MGL_SHARED_FN bool mgl_trigger(mgl_protocol *p, const mgl_iteration_info *info,
                               uint32_t event_idx) {
  const mgl_graph_view *view = &p->graphs[info->graph];
  uint32_t pending[MGL_MAX_PENDING];  // events that still get a trigger
  uint32_t pending_count = 0;
  pending[pending_count++] = event_idx;
  while (pending_count > 0) {
    uint32_t current = pending[--pending_count];
    const mgl_event *event = &view->events[current];
    // Acquire and release: the last trigger has seen what the tasks behind all the others wrote,
    // and passes it on to who waits for the counter or pops the event's tasks.
    uint64_t count = mgl_add_acq_rel(&view->counters[current], 1) + 1;
    if (count != event->trigger_count * info->run) {
      continue;
    }
    if ((event->flags & MGL_EVENT_HAS_AOT) != 0) {
      mgl_notify();
    }
    for (uint32_t task = event->first_task;
         (event->flags & MGL_EVENT_HAS_EMPTY) != 0 && task < event->last_task; task++) {
      if ((view->tasks[task].flags & MGL_TASK_EMPTY) != 0) {
        pending[pending_count++] = view->tasks[task].trigger_event;
      }
    }
    if (((event->flags & MGL_EVENT_HAS_JIT) != 0 || event->type == MGL_EVENT_END_OF_TASK_GRAPH) &&
        !mgl_hand_to_schedulers(p, info->iteration, info->graph, current)) {
      return false;
    }
  }
  return true;
}

// --- workers -------------------------------------------------------------------------------------

// What a worker knows by itself.
typedef struct mgl_worker_state {
  uint32_t index;
  uint64_t iteration;  // the one that it is in, or enters next
  bool entered;        // info below is that iteration's
  mgl_iteration_info info;
  uint32_t aot_at;  // position in aot_tasks, up to aot_end
  uint32_t aot_end;
} mgl_worker_state;

typedef enum mgl_poll_result {
  MGL_POLL_TASK,  // something was found
  MGL_POLL_NONE,  // nothing yet
  MGL_POLL_STOP,  // the run is over, or has failed
} mgl_poll_result;

// A task together with the iteration that it belongs to.
typedef struct mgl_ready_task {
  mgl_iteration_info info;
  uint32_t task;
} mgl_ready_task;

MGL_SHARED_FN void mgl_worker_init(mgl_worker_state *worker, uint32_t index) {
  worker->index = index;
  worker->iteration = 0;
  worker->entered = false;
  worker->aot_at = 0;
  worker->aot_end = 0;
}

// True if a task of this iteration may run: it waits for nothing, or its event is activated.
MGL_SHARED_FN bool mgl_is_activated(const mgl_protocol *p, const mgl_iteration_info *info,
                                    uint32_t task) {
  const mgl_graph_view *view = &p->graphs[info->graph];
  uint32_t event = view->tasks[task].dependent_event;
  if (event == MGL_NO_EVENT) {
    return true;
  }
  // Acquire, paired with the triggers' releases: what the tasks before wrote is visible.
  return mgl_load_acquire(&view->counters[event]) >= view->events[event].trigger_count * info->run;
}

// Enters the worker's next iteration if it is published. A worker that missed some goes to the
// latest.
MGL_SHARED_FN bool mgl_enter_iteration(mgl_protocol *p, mgl_worker_state *worker) {
  if (!mgl_read_iteration(p, worker->iteration, &worker->info)) {
    uint64_t latest = mgl_load_acquire(&p->latest);
    if (latest > worker->iteration + 1) {
      worker->iteration = latest - 1;
    }
    return false;
  }
  worker->entered = true;
  if (!worker->info.stop) {
    const mgl_graph_view *view = &p->graphs[worker->info.graph];
    worker->aot_at = view->aot_start[worker->index];
    worker->aot_end = view->aot_start[worker->index + 1];
  }
  return true;
}

// A JIT task for this worker, if there is one.
MGL_SHARED_FN bool mgl_poll_jit(mgl_protocol *p, mgl_worker_state *worker, mgl_ready_task *out) {
  mgl_worker_shared *shared = &p->workers[worker->index];
  uint64_t id = 0;
  // Its iteration cannot end before this task has, so it is on the board.
  if (mgl_queue_pop(&shared->jit, &id) && mgl_read_iteration(p, mgl_id_iteration(id), &out->info)) {
    out->task = mgl_id_index(id);
    return true;
  }
  // Tasks of the next iteration wait until it is published; those of another graph than it runs are
  // void.
  while (mgl_queue_peek(&shared->next_jit, &id) &&
         mgl_read_iteration(p, mgl_id_iteration(id), &out->info)) {
    (void)mgl_queue_pop(&shared->next_jit, &id);
    if (!out->info.stop && out->info.graph == mgl_id_graph(id)) {
      out->task = mgl_id_index(id);
      return true;
    }
  }
  return false;
}

// The worker's next task: JIT first, since it is ready; else the head of its AOT list if activated.
MGL_SHARED_FN mgl_poll_result mgl_worker_poll(mgl_protocol *p, mgl_worker_state *worker,
                                              mgl_ready_task *out) {
  if (mgl_load_relaxed(&p->fault) != 0) {
    return MGL_POLL_STOP;
  }
  if (mgl_poll_jit(p, worker, out)) {
    return MGL_POLL_TASK;
  }
  if (!worker->entered && !mgl_enter_iteration(p, worker)) {
    return MGL_POLL_NONE;
  }
  if (worker->info.stop) {
    return MGL_POLL_STOP;
  }
  if (worker->aot_at == worker->aot_end) {
    worker->iteration++;
    worker->entered = false;
    return MGL_POLL_NONE;
  }
  uint32_t task = p->graphs[worker->info.graph].aot_tasks[worker->aot_at];
  if (!mgl_is_activated(p, &worker->info, task)) {
    return MGL_POLL_NONE;
  }
  worker->aot_at++;
  out->info = worker->info;
  out->task = task;
  return MGL_POLL_TASK;
}

// After a task's work: counts it and triggers its event. False: the run has failed.
MGL_SHARED_FN bool mgl_worker_finish(mgl_protocol *p, uint32_t worker, const mgl_ready_task *done) {
  uint32_t event = p->graphs[done->info.graph].tasks[done->task].trigger_event;
  mgl_worker_shared *shared = &p->workers[worker];
  mgl_store_relaxed(&shared->progress, mgl_load_relaxed(&shared->progress) + 1);
  return event == MGL_NO_EVENT || mgl_trigger(p, &done->info, event);
}

// --- dedicated schedulers ------------------------------------------------------------------------

// Handles one activated event of scheduler `index`.
MGL_SHARED_FN mgl_poll_result mgl_scheduler_poll(mgl_protocol *p, uint32_t index) {
  uint64_t id = 0;
  if (mgl_load_relaxed(&p->fault) != 0) {
    return MGL_POLL_STOP;
  }
  if (!mgl_queue_pop(&p->scheduler_queues[index], &id)) {
    return MGL_POLL_NONE;
  }
  if (id == UINT64_MAX) {
    return MGL_POLL_STOP;
  }
  uint64_t iteration = mgl_id_iteration(id);
  uint32_t graph = mgl_id_graph(id);
  uint32_t event = mgl_id_index(id);
  bool ok = p->graphs[graph].events[event].type == MGL_EVENT_END_OF_TASK_GRAPH
                ? mgl_begin_iteration(p, iteration + 1, graph)
                : mgl_schedule_event(p, iteration, graph, event, index, p->scheduler_count);
  return ok ? MGL_POLL_TASK : MGL_POLL_STOP;
}

#endif
