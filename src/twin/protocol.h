// The runtime protocol: how workers and schedulers execute task graphs together. One source for CPU
// threads and GPU warps; everything shared goes through twin/atomics.h.
//
// Nothing here blocks. A worker polls for its next task, runs it, and finishes it; a scheduler
// polls for an activated event and queues its JIT tasks. What to do when a poll finds nothing
// (pause, sleep, look for a fault) is the target's business. So the same functions are driven by
// threads, by warps, and by the test that tries all interleavings. Whoever stores something that
// another may sleep for calls mgl_notify afterwards.
//
// Iterations. One iteration is live at a time. Every task that is not empty leads to the graph's
// END_OF_TASK_GRAPH through triggers (protocol_check.c), so when that event is activated nothing of
// the iteration is outstanding. Whoever handles it asks for the next plan and publishes it in one
// place. A worker enters the published iteration after its AOT tasks of the one before; one that
// has none may miss iterations and goes to the latest.
//   Rejected: a ring of published iterations. A worker that slept through a turn of the ring found
//   its queued ids stale; with one live iteration there are no stale ids at all.
//
// Counters. An event of a graph's k-th run is activated by trigger number trigger_count * k.
// Counters only grow, and nothing is reset between iterations.
//
// Events that nothing of this iteration waits for: EMPTY, and LAUNCH_DEPENDENT_TASKS, whose tasks
// run in the next run of the graph. Only empty tasks trigger them (a fork: the other branch leads
// to the end). Since an iteration begins after all of the one before, the dependent tasks are ready
// when it does, whatever graphs ran in between: whoever publishes it launches them, and in the
// first run too. These counters are for information; nobody compares them.
//
// Liveness. Every AOT list ascends in the linear (topological) order, and JIT tasks are ready and
// are served while AOT waits. A scheduler queue holds all events that an iteration can hand to it,
// and with embedded schedulers each JIT queue holds all JIT tasks of an iteration
// (mgl_protocol_queue_sizes), so a worker's push never finds a full queue. A dedicated scheduler
// may find all JIT queues full; it keeps its place and tries again while workers drain them. So the
// outstanding task with the lowest index can always run: it is queued, or about to be, or at the
// head of a list, or its worker runs another.
//
// Ranks. Several processes may run the same task graphs, iteration by iteration, each on its part
// of a model. A REMOTE event counts the triggers of all ranks: each of them has a counter of its
// own, to which every rank adds. Nobody runs ahead into the next iteration: next_plan comes back
// only when all ranks are done with the present one.
//
// Limits. Ids carry the low 32 bits of the iteration: enough to check an id against the one live
// iteration, so a run may go on for ever. The run of a graph has 48 bits.
#ifndef MGL_TWIN_PROTOCOL_H
#define MGL_TWIN_PROTOCOL_H

#include "base/limits.h"
#include "twin/atomics.h"
#include "twin/task.h"

enum {
  MGL_MAX_GRAPHS = 16,
  MGL_MAX_PENDING = 256,   // triggers by empty tasks that one activation can set off (checked)
  MGL_ID_INDEX_BITS = 28,  // of a task or event in its graph
};

// --- queues --------------------------------------------------------------------------------------
//
// Bounded, many producers and consumers. A slot's sequence number says whose turn it is: position p
// may be written when it is p, and read when it is p + 1; reading makes it p + size. So a consumer
// never reads a slot before it is written, and a producer never overwrites one that was not read.
// Sizes are powers of two and at least 2: with 1, "read p" and "may write p + 1" would be the same.

typedef struct mgl_queue_slot {
  mgl_word sequence;
  uint64_t value;  // written by the producer that owns the turn, before it releases `sequence`
} mgl_queue_slot;

typedef struct mgl_queue {
  mgl_queue_slot *slots;
  uint64_t mask;  // size - 1
  uint8_t padding_before_head[48];
  mgl_word head;  // next position to read; advanced by consumers
  uint8_t padding_before_tail[56];
  mgl_word tail;  // next position to write; advanced by producers
  uint8_t padding_after_tail[56];
} mgl_queue;

// Before anyone else sees the queue.
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
        // Release, paired with the acquire in pop.
        mgl_store_release(&slot->sequence, position + 1);
        return true;
      }
    } else if (sequence < position) {
      return false;  // still holds what was pushed one round ago
    }
    // If another producer took the position, the loop tries the next.
  }
}

// False when nothing is ready to be read. A producer that has taken a position but not yet written
// it hides those behind it; it notifies when it has.
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
        // Release, paired with the acquire in push.
        mgl_store_release(&slot->sequence, position + queue->mask + 1);
        return true;
      }
    } else if (sequence <= position) {
      return false;
    }
    // If another consumer took the position, the loop tries the next.
  }
}

// How many values wait, approximately: for choosing a queue, never for correctness.
MGL_SHARED_FN uint64_t mgl_queue_length(const mgl_queue *queue) {
  uint64_t tail = mgl_load_relaxed(&queue->tail);
  uint64_t head = mgl_load_relaxed(&queue->head);
  return tail > head ? tail - head : 0;
}

// --- ids in queues -------------------------------------------------------------------------------

// low bits of the iteration : 32 | graph : 4 | index : 28, of a task or an event.
MGL_SHARED_FN uint64_t mgl_make_id(uint64_t iteration, uint32_t graph, uint32_t index) {
  return iteration << 32 | (uint64_t)graph << MGL_ID_INDEX_BITS | index;
}

MGL_SHARED_FN uint32_t mgl_id_iteration(uint64_t id) {
  return (uint32_t)(id >> 32);
}

MGL_SHARED_FN uint32_t mgl_id_graph(uint64_t id) {
  return (uint32_t)(id >> MGL_ID_INDEX_BITS) & (MGL_MAX_GRAPHS - 1);
}

MGL_SHARED_FN uint32_t mgl_id_index(uint64_t id) {
  return (uint32_t)id & ((1u << MGL_ID_INDEX_BITS) - 1);
}

// --- shared state --------------------------------------------------------------------------------

// A task graph as the protocol sees it. Read-only while running, but for the counters.
typedef struct mgl_graph_view {
  const mgl_task *tasks;
  const mgl_event *events;
  const uint32_t *aot_start;
  const uint32_t *aot_tasks;
  mgl_word *counters;              // [event_count]; added to by whoever triggers
  mgl_word *peers[MGL_MAX_RANKS];  // [rank_count] every rank's `counters`, for REMOTE events
  uint32_t task_count;
  uint32_t event_count;
  uint32_t ready_count;
  uint32_t first_dependent;  // first LAUNCH_DEPENDENT_TASKS event with JIT tasks, or event_count
} mgl_graph_view;

// An mgl_worker_shared is what one worker shares with the others. The worker's own words stand
// apart from those of the queue.
typedef struct mgl_worker_shared {
  mgl_queue jit;      // ready tasks; pushed by schedulers, popped by this worker
  mgl_word current;   // id + 1 of the task that it runs, 0 for none; written by this worker
  mgl_word progress;  // tasks that it finished; written by this worker
  mgl_word waiting;   // id + 1 of the AOT task that it sleeps for; written by its target's loop
  uint8_t padding[40];
} mgl_worker_shared;

// The next plan. Called by one worker or scheduler at a time, after everything of the iterations
// before. Returns the graph to run, or a negative number to stop. May block.
typedef int mgl_next_plan(void *context, uint64_t iteration);

// Why a run failed. All but STUCK are broken invariants.
typedef enum mgl_fault {
  MGL_FAULT_NONE = 0,
  MGL_FAULT_STUCK,       // work is outstanding and no task made progress for the set time
  MGL_FAULT_QUEUE_FULL,  // a queue was smaller than mgl_protocol_queue_sizes says
  MGL_FAULT_PENDING,     // empty tasks cascaded beyond MGL_MAX_PENDING
  MGL_FAULT_STALE_ID,    // a queued id was not of the live iteration
  MGL_FAULT_PLAN,        // next_plan returned a graph that does not exist
} mgl_fault;

typedef struct mgl_protocol {
  // Read-only while running.
  uint32_t worker_count;
  uint32_t scheduler_count;  // 0: embedded, activated events are scheduled by who activates them
  uint32_t graph_count;
  uint32_t rank, rank_count;  // rank_count 0: there are no others
  mgl_graph_view graphs[MGL_MAX_GRAPHS];
  mgl_next_plan *next_plan;
  void *next_plan_context;
  mgl_worker_shared *workers;   // [worker_count]
  mgl_queue *scheduler_queues;  // [scheduler_count] of event ids
  uint8_t padding_before_published[64];

  // The live iteration. Written by whoever begins it: one at a time, since an iteration's end is
  // activated once and after the next one was published.
  mgl_word published;  // iteration + 1; 0 before the first, and while `info` is being rewritten
  mgl_word info;       // run << 16 | graph << 1 | stop
  uint64_t graph_runs[MGL_MAX_GRAPHS];  // how often each graph was published; the publisher's only
  mgl_word planning;                    // 1 while next_plan runs: nothing is outstanding

  // Written by any worker, scheduler or watchdog.
  mgl_word fault;  // mgl_fault; everybody stops
} mgl_protocol;

// The first fault stays.
MGL_SHARED_FN void mgl_raise_fault(mgl_protocol *p, mgl_fault fault) {
  (void)mgl_cas_acq_rel(&p->fault, MGL_FAULT_NONE, (uint64_t)fault);
  mgl_notify();
}

MGL_SHARED_FN uint64_t mgl_power_of_two_at_least(uint64_t value) {
  uint64_t power = 2;
  while (power < value) {
    power *= 2;
  }
  return power;
}

// The queue sizes on which liveness relies: every scheduler queue must hold the events that one
// iteration of any graph hands over, and with embedded schedulers every JIT queue its JIT tasks
// (with dedicated ones any size from 2 on is correct).
MGL_SHARED_FN void mgl_protocol_queue_sizes(const mgl_graph_view *views, uint32_t count,
                                            uint64_t *jit_size, uint64_t *scheduler_size) {
  uint64_t most_jit = 0;
  uint64_t most_events = 0;
  for (uint32_t graph = 0; graph < count; graph++) {
    uint64_t jit = 0;
    uint64_t events = 1;  // the end
    for (uint32_t task = 0; task < views[graph].task_count; task++) {
      jit += (views[graph].tasks[task].flags & MGL_TASK_JIT) != 0 ? 1 : 0;
    }
    for (uint32_t event = 0; event < views[graph].event_count; event++) {
      events += (views[graph].events[event].flags & MGL_EVENT_HAS_JIT) != 0 ? 1 : 0;
    }
    most_jit = jit > most_jit ? jit : most_jit;
    most_events = events > most_events ? events : most_events;
  }
  *jit_size = mgl_power_of_two_at_least(most_jit);
  *scheduler_size = mgl_power_of_two_at_least(most_events);
}

// --- iterations ----------------------------------------------------------------------------------

typedef struct mgl_iteration_info {
  uint64_t iteration;
  uint64_t run;  // k: this is the graph's k-th run, counted from 1
  uint32_t graph;
  bool stop;
} mgl_iteration_info;

// Reads the live iteration. False before the first one and while the next is being published (its
// publisher notifies).
MGL_SHARED_FN bool mgl_read_iteration(const mgl_protocol *p, mgl_iteration_info *out) {
  // Acquire, paired with the last release in mgl_publish: the plan and all results before it are
  // visible.
  uint64_t published = mgl_load_acquire(&p->published);
  if (published == 0) {
    return false;
  }
  // Acquire, paired with the release of `info` in mgl_publish: who reads a later iteration's info
  // sees below that `published` has changed.
  uint64_t info = mgl_load_acquire(&p->info);
  if (mgl_load_relaxed(&p->published) != published) {
    return false;
  }
  out->iteration = published - 1;
  out->run = info >> 16;
  out->graph = (uint32_t)(info >> 1) & 0x7fff;
  out->stop = (info & 1) != 0;
  return true;
}

MGL_SHARED_FN void mgl_publish(mgl_protocol *p, uint64_t iteration, uint32_t graph, bool stop) {
  uint64_t run = stop ? 0 : ++p->graph_runs[graph];
  mgl_store_relaxed(&p->published, 0);  // ordered before the next store by its release
  mgl_store_release(&p->info, run << 16 | (uint64_t)graph << 1 | (stop ? 1 : 0));
  mgl_store_release(&p->published, iteration + 1);
  mgl_notify();
}

// --- launching JIT tasks -------------------------------------------------------------------------

// JIT tasks that are ready and not yet queued: those among [next, last), then those of the
// dependent events from `dependent` on. A scheduler's private state.
typedef struct mgl_launch_list {
  uint64_t iteration;
  uint32_t graph;
  uint32_t next;
  uint32_t last;
  uint32_t dependent;  // event_count: none
} mgl_launch_list;

// Gives a JIT task to an idle worker, else to the one with the shortest queue. False: all are full.
MGL_SHARED_FN bool mgl_queue_jit_task(mgl_protocol *p, uint64_t task_id) {
  uint32_t hint = mgl_id_index(task_id) % p->worker_count;
  uint32_t best = hint;
  uint64_t best_load = UINT64_MAX;
  for (uint32_t i = 0; i < p->worker_count && best_load > 0; i++) {
    uint32_t worker = (hint + i) % p->worker_count;
    const mgl_worker_shared *shared = &p->workers[worker];
    uint64_t load =
        mgl_queue_length(&shared->jit) * 2 + (mgl_load_relaxed(&shared->current) != 0 ? 1 : 0);
    if (load < best_load) {
      best = worker;
      best_load = load;
    }
  }
  for (uint32_t i = 0; i < p->worker_count; i++) {
    if (mgl_queue_push(&p->workers[(best + i) % p->worker_count].jit, task_id)) {
      return true;
    }
  }
  return false;
}

// Queues what the list holds. False: queues are full; call again.
MGL_SHARED_FN bool mgl_launch_tasks(mgl_protocol *p, mgl_launch_list *list) {
  const mgl_graph_view *view = &p->graphs[list->graph];
  bool queued = false;
  bool full = false;
  while (!full) {
    for (; list->next < list->last; list->next++) {
      if ((view->tasks[list->next].flags & MGL_TASK_JIT) == 0) {
        continue;
      }
      if (!mgl_queue_jit_task(p, mgl_make_id(list->iteration, list->graph, list->next))) {
        full = true;
        break;
      }
      queued = true;
    }
    if (full || list->dependent >= view->event_count) {
      break;
    }
    const mgl_event *event = &view->events[list->dependent++];
    if (event->type == MGL_EVENT_LAUNCH_DEPENDENT_TASKS) {
      list->next = event->first_task;
      list->last = event->last_task;
    }
  }
  if (queued) {
    mgl_notify();
  }
  return !full;
}

// Which part of an event's tasks `scheduler` of `count` queues: all of them go to one, or each has
// its share of a massive event. The list is empty if there is no JIT task in it.
MGL_SHARED_FN void mgl_event_share(const mgl_protocol *p, uint64_t iteration, uint32_t graph,
                                   uint32_t event_idx, uint32_t scheduler, uint32_t count,
                                   mgl_launch_list *out) {
  const mgl_graph_view *view = &p->graphs[graph];
  const mgl_event *event = &view->events[event_idx];
  uint64_t tasks = event->last_task - event->first_task;
  out->iteration = iteration;
  out->graph = graph;
  out->dependent = view->event_count;
  if (event->type == MGL_EVENT_LAUNCH_MASSIVE_TASKS) {
    out->next = event->first_task + (uint32_t)(tasks * scheduler / count);
    out->last = event->first_task + (uint32_t)(tasks * (scheduler + 1) / count);
  } else {
    bool mine = event_idx % count == scheduler;
    out->next = event->first_task;
    out->last = mine ? event->last_task : event->first_task;
  }
  while (out->next < out->last && (view->tasks[out->next].flags & MGL_TASK_JIT) == 0) {
    out->next++;
  }
}

#ifdef __CUDACC__
static __device__ int mgl_ask_next_plan(mgl_protocol *p,
                                        uint64_t iteration);  // role_controller.cuh
#else
MGL_SHARED_FN int mgl_ask_next_plan(mgl_protocol *p, uint64_t iteration) {
  return p->next_plan(p->next_plan_context, iteration);
}
#endif

// Asks for the next plan (unless stopping without asking) and publishes iteration `iteration`. What
// is ready at its start is left in the list, for the caller to queue.
MGL_SHARED_FN void mgl_begin_iteration(mgl_protocol *p, uint64_t iteration, bool terminate,
                                       mgl_launch_list *out) {
  mgl_store_relaxed(&p->planning, 1);
  int next = terminate ? -1 : mgl_ask_next_plan(p, iteration);
  bool stop = next < 0;
  uint32_t graph = stop ? 0 : (uint32_t)next;
  out->iteration = iteration;
  out->graph = 0;
  out->next = 0;
  out->last = 0;
  out->dependent = p->graphs[0].event_count;
  if (graph >= p->graph_count) {
    mgl_raise_fault(p, MGL_FAULT_PLAN);
    return;
  }
  mgl_publish(p, iteration, graph, stop);
  mgl_store_relaxed(&p->planning, 0);
  if (!stop) {
    out->graph = graph;
    out->last = p->graphs[graph].ready_count;
    out->dependent = p->graphs[graph].first_dependent;
  }
}

MGL_SHARED_FN bool mgl_is_end(const mgl_event *event) {
  return event->type == MGL_EVENT_END_OF_TASK_GRAPH || event->type == MGL_EVENT_TERMINATE;
}

// With embedded schedulers: queues at once; the queues are large enough. False: they were not.
MGL_SHARED_FN bool mgl_launch_all(mgl_protocol *p, mgl_launch_list *list) {
  if (!mgl_launch_tasks(p, list)) {
    mgl_raise_fault(p, MGL_FAULT_QUEUE_FULL);
    return false;
  }
  return true;
}

// --- triggers ------------------------------------------------------------------------------------

// An activated event goes to whoever schedules its JIT tasks or the next iteration. False: failed.
MGL_SHARED_FN bool mgl_hand_to_schedulers(mgl_protocol *p, uint64_t iteration, uint32_t graph,
                                          uint32_t event_idx) {
  const mgl_event *event = &p->graphs[graph].events[event_idx];
  mgl_launch_list list;
  if (p->scheduler_count == 0) {
    if (mgl_is_end(event)) {
      mgl_begin_iteration(p, iteration + 1, event->type == MGL_EVENT_TERMINATE, &list);
    } else {
      mgl_event_share(p, iteration, graph, event_idx, 0, 1, &list);
    }
    return mgl_launch_all(p, &list);
  }
  uint32_t mine = event_idx % p->scheduler_count;
  for (uint32_t i = 0; i < p->scheduler_count; i++) {
    mgl_event_share(p, iteration, graph, event_idx, i, p->scheduler_count, &list);
    // Only who has something to queue gets the event. So the iteration cannot end before it was
    // taken, and no queue collects events of past iterations.
    if (list.next < list.last || (mgl_is_end(event) && i == mine)) {
      if (!mgl_queue_push(&p->scheduler_queues[i], mgl_make_id(iteration, graph, event_idx))) {
        mgl_raise_fault(p, MGL_FAULT_QUEUE_FULL);
        return false;
      }
    }
  }
  mgl_notify();
  return true;
}

#ifdef __CUDACC__
// A GPU has no other ranks so far, and its events stay as cheap as they were.
#define mgl_activation_count(p, event, run) ((event)->trigger_count * (run))
#define mgl_trigger_peers(p, view, event_idx, activated)
#else
// How often an event was triggered once it is activated in a run.
MGL_SHARED_FN uint64_t mgl_activation_count(const mgl_protocol *p, const mgl_event *event,
                                            uint64_t run) {
  uint64_t ranks = (event->flags & MGL_EVENT_REMOTE) != 0 && p->rank_count > 1 ? p->rank_count : 1;
  return event->trigger_count * run * ranks;
}

// Adds a trigger to the other ranks' counters of a REMOTE event. All of its tasks are AOT, so who
// waits for it polls its own rank's counter, and is woken by whoever makes the last trigger there.
MGL_SHARED_FN void mgl_trigger_peers(mgl_protocol *p, const mgl_graph_view *view,
                                     uint32_t event_idx, uint64_t activated) {
  for (uint32_t rank = 0; rank < p->rank_count; rank++) {
    // Release, paired with the acquire in mgl_is_activated: what this rank wrote is visible.
    if (rank != p->rank && mgl_add_acq_rel(&view->peers[rank][event_idx], 1) + 1 == activated) {
      mgl_notify_rank(rank);
    }
  }
}
#endif

// Adds one trigger to an event, and if it is the last one of this run, does what the activation
// asks for. Empty tasks are resolved here, without a queue: their own triggers are added in turn.
// False: the run has failed.
MGL_SHARED_FN bool mgl_trigger(mgl_protocol *p, const mgl_iteration_info *info,
                               uint32_t event_idx) {
  const mgl_graph_view *view = &p->graphs[info->graph];
  uint32_t pending[MGL_MAX_PENDING];  // events that still get a trigger
  uint32_t pending_count = 0;
  pending[pending_count++] = event_idx;
  while (pending_count > 0) {
    uint32_t current = pending[--pending_count];
    const mgl_event *event = &view->events[current];
    const uint64_t activated = mgl_activation_count(p, event, info->run);
    if ((event->flags & MGL_EVENT_REMOTE) != 0) {
      mgl_trigger_peers(p, view, current, activated);
    }
    // Acquire and release: the last trigger has seen what the tasks behind all the others wrote,
    // and passes it on to who waits for the counter or pops the event's tasks.
    uint64_t count = mgl_add_acq_rel(&view->counters[current], 1) + 1;
    if (event->type == MGL_EVENT_EMPTY || event->type == MGL_EVENT_LAUNCH_DEPENDENT_TASKS ||
        count != activated) {
      continue;
    }
    if ((event->flags & MGL_EVENT_HAS_AOT) != 0) {
      mgl_notify();
    }
    for (uint32_t task = event->first_task;
         (event->flags & MGL_EVENT_HAS_EMPTY) != 0 && task < event->last_task; task++) {
      if ((view->tasks[task].flags & MGL_TASK_EMPTY) == 0) {
        continue;
      }
      if (pending_count == MGL_MAX_PENDING) {
        mgl_raise_fault(p, MGL_FAULT_PENDING);
        return false;
      }
      pending[pending_count++] = view->tasks[task].trigger_event;
    }
    if (((event->flags & MGL_EVENT_HAS_JIT) != 0 || mgl_is_end(event)) &&
        !mgl_hand_to_schedulers(p, info->iteration, info->graph, current)) {
      return false;
    }
  }
  return true;
}

// --- workers -------------------------------------------------------------------------------------

// An mgl_worker_state is what a worker knows by itself; no other reads it.
typedef struct mgl_worker_state {
  mgl_iteration_info info;  // of the iteration that it is in
  uint64_t iteration;       // that one, or the least that it enters next
  uint32_t index;
  uint32_t aot_at;  // position in aot_tasks, up to aot_end
  uint32_t aot_end;
  bool entered;  // it is in `info`
  bool begins;   // it begins iteration 0
} mgl_worker_state;

typedef enum mgl_poll_result {
  MGL_POLL_TASK,  // something was found
  MGL_POLL_NONE,  // nothing yet; whoever changes that notifies
  MGL_POLL_STOP,  // the run is over, or has failed
} mgl_poll_result;

// A task together with the iteration that it belongs to.
typedef struct mgl_ready_task {
  mgl_iteration_info info;
  uint32_t task;
} mgl_ready_task;

MGL_SHARED_FN void mgl_worker_init(const mgl_protocol *p, mgl_worker_state *worker,
                                   uint32_t index) {
  worker->info.iteration = 0;
  worker->info.run = 0;
  worker->info.graph = 0;
  worker->info.stop = false;
  worker->iteration = 0;
  worker->index = index;
  worker->aot_at = 0;
  worker->aot_end = 0;
  worker->entered = false;
  worker->begins = index == 0 && p->scheduler_count == 0;
}

// True if a task of this iteration may run: it waits for nothing, or its event is activated.
MGL_SHARED_FN bool mgl_is_activated(const mgl_protocol *p, const mgl_iteration_info *info,
                                    uint32_t task) {
  const mgl_graph_view *view = &p->graphs[info->graph];
  uint32_t event_idx = view->tasks[task].dependent_event;
  if (event_idx == MGL_NO_EVENT) {
    return true;
  }
  const mgl_event *event = &view->events[event_idx];
  if (event->type == MGL_EVENT_LAUNCH_DEPENDENT_TASKS) {
    return true;  // of the iteration before, which has ended
  }
  // Acquire, paired with the triggers' releases: what the tasks before wrote is visible.
  return mgl_load_acquire(&view->counters[event_idx]) >= mgl_activation_count(p, event, info->run);
}

// Enters the live iteration if the worker has not been in it.
MGL_SHARED_FN bool mgl_enter_iteration(mgl_protocol *p, mgl_worker_state *worker) {
  if (!mgl_read_iteration(p, &worker->info) || worker->info.iteration < worker->iteration) {
    return false;
  }
  // Iterations in between were missed: none of their tasks was this worker's, or they would not
  // have ended.
  worker->iteration = worker->info.iteration;
  worker->entered = true;
  worker->aot_at = 0;
  worker->aot_end = 0;
  if (!worker->info.stop) {
    const mgl_graph_view *view = &p->graphs[worker->info.graph];
    worker->aot_at = view->aot_start[worker->index];
    worker->aot_end = view->aot_start[worker->index + 1];
  }
  return true;
}

// A JIT task for this worker, if there is one.
MGL_SHARED_FN bool mgl_poll_jit(mgl_protocol *p, uint32_t worker, mgl_ready_task *out) {
  uint64_t id = 0;
  if (!mgl_queue_pop(&p->workers[worker].jit, &id)) {
    return false;
  }
  if (p->scheduler_count != 0) {
    mgl_notify();  // one may wait for room in the queue
  }
  // Its iteration cannot end before this task has: it is the live one.
  if (!mgl_read_iteration(p, &out->info) || (uint32_t)out->info.iteration != mgl_id_iteration(id) ||
      out->info.graph != mgl_id_graph(id)) {
    mgl_raise_fault(p, MGL_FAULT_STALE_ID);
    return false;
  }
  out->task = mgl_id_index(id);
  return true;
}

// The AOT task whose event the worker waits for; MGL_NO_EVENT if it waits for none.
MGL_SHARED_FN uint32_t mgl_worker_waits_for(const mgl_protocol *p, const mgl_worker_state *worker) {
  bool waits = worker->entered && worker->aot_at < worker->aot_end;
  return waits ? p->graphs[worker->info.graph].aot_tasks[worker->aot_at] : MGL_NO_EVENT;
}

// The worker's next task: JIT first, since it is ready; else the head of its AOT list if activated.
MGL_SHARED_FN mgl_poll_result mgl_worker_poll(mgl_protocol *p, mgl_worker_state *worker,
                                              mgl_ready_task *out) {
  // Relaxed: a fault only makes everybody leave; what it says is read after all have.
  if (mgl_load_relaxed(&p->fault) != MGL_FAULT_NONE) {
    return MGL_POLL_STOP;
  }
  if (worker->begins) {
    mgl_launch_list list;
    worker->begins = false;
    mgl_begin_iteration(p, 0, false, &list);
    if (!mgl_launch_all(p, &list)) {
      return MGL_POLL_STOP;
    }
  }
  mgl_worker_shared *shared = &p->workers[worker->index];
  if (mgl_poll_jit(p, worker->index, out)) {
    mgl_store_relaxed(&shared->current,
                      mgl_make_id(out->info.iteration, out->info.graph, out->task) + 1);
    return MGL_POLL_TASK;
  }
  for (;;) {
    if (!worker->entered && !mgl_enter_iteration(p, worker)) {
      return MGL_POLL_NONE;
    }
    if (worker->info.stop) {
      return MGL_POLL_STOP;
    }
    if (worker->aot_at < worker->aot_end) {
      break;
    }
    worker->iteration++;
    worker->entered = false;
  }
  uint32_t task = p->graphs[worker->info.graph].aot_tasks[worker->aot_at];
  if (!mgl_is_activated(p, &worker->info, task)) {
    return MGL_POLL_NONE;
  }
  worker->aot_at++;
  out->info = worker->info;
  out->task = task;
  mgl_store_relaxed(&shared->current, mgl_make_id(out->info.iteration, out->info.graph, task) + 1);
  return MGL_POLL_TASK;
}

// After a task's work: counts it and triggers its event. False: the run has failed.
MGL_SHARED_FN bool mgl_worker_finish(mgl_protocol *p, uint32_t worker, const mgl_ready_task *done) {
  mgl_worker_shared *shared = &p->workers[worker];
  mgl_store_relaxed(&shared->current, 0);
  mgl_store_relaxed(&shared->progress, mgl_load_relaxed(&shared->progress) + 1);
  return mgl_trigger(p, &done->info, p->graphs[done->info.graph].tasks[done->task].trigger_event);
}

// --- dedicated schedulers ------------------------------------------------------------------------

// An mgl_scheduler_state is what a scheduler knows by itself; no other reads it.
typedef struct mgl_scheduler_state {
  mgl_launch_list list;  // what it has still to queue, while `launching`
  uint32_t index;
  bool launching;
  bool begins;  // it begins iteration 0
} mgl_scheduler_state;

MGL_SHARED_FN void mgl_scheduler_init(mgl_scheduler_state *scheduler, uint32_t index) {
  scheduler->list.iteration = 0;
  scheduler->list.graph = 0;
  scheduler->list.next = 0;
  scheduler->list.last = 0;
  scheduler->list.dependent = 0;
  scheduler->index = index;
  scheduler->launching = false;
  scheduler->begins = index == 0;
}

// Takes one activated event, or continues with the one before. NONE: there is no event, or all JIT
// queues are full.
MGL_SHARED_FN mgl_poll_result mgl_scheduler_poll(mgl_protocol *p, mgl_scheduler_state *scheduler) {
  uint64_t id = 0;
  mgl_iteration_info info;
  if (mgl_load_relaxed(&p->fault) != MGL_FAULT_NONE) {
    return MGL_POLL_STOP;
  }
  if (scheduler->begins) {
    scheduler->begins = false;
    mgl_begin_iteration(p, 0, false, &scheduler->list);
    scheduler->launching = true;
  } else if (!scheduler->launching) {
    bool popped = mgl_queue_pop(&p->scheduler_queues[scheduler->index], &id);
    bool live = mgl_read_iteration(p, &info);
    if (!popped) {
      return live && info.stop ? MGL_POLL_STOP : MGL_POLL_NONE;
    }
    uint32_t graph = mgl_id_graph(id);
    if (!live || (uint32_t)info.iteration != mgl_id_iteration(id) || info.graph != graph) {
      mgl_raise_fault(p, MGL_FAULT_STALE_ID);
      return MGL_POLL_STOP;
    }
    const mgl_event *event = &p->graphs[graph].events[mgl_id_index(id)];
    if (mgl_is_end(event)) {
      mgl_begin_iteration(p, info.iteration + 1, event->type == MGL_EVENT_TERMINATE,
                          &scheduler->list);
    } else {
      mgl_event_share(p, info.iteration, graph, mgl_id_index(id), scheduler->index,
                      p->scheduler_count, &scheduler->list);
    }
    scheduler->launching = true;
  }
  uint32_t before = scheduler->list.next;
  scheduler->launching = !mgl_launch_tasks(p, &scheduler->list);
  return scheduler->launching && scheduler->list.next == before ? MGL_POLL_NONE : MGL_POLL_TASK;
}

#endif
