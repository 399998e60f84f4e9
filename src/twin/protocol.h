// The runtime protocol: how workers and schedulers execute task graphs together. One source for CPU
// threads and GPU warps; everything shared goes through twin/atomics.h.
//
// Nothing here blocks. A worker polls for its next task, runs it, and finishes it; a scheduler
// polls for the end of an iteration and begins the next one. What to do when a poll finds nothing
// (pause, sleep, look for a fault) is the target's business. So the same functions are driven by
// threads, by warps, and by the test that tries all interleavings. Whoever stores something that
// another may sleep for calls mgl_notify afterwards.
//
// AOT and JIT. An AOT task stands in the list of its worker. JIT tasks stand in one list for all,
// in linear order, and a worker takes the next one of them by a ticket: one addition to a counter,
// whoever it is and however many there are. So tasks go to whoever has time, and nobody deals
// them. A worker's next task is the one of its ticket or the head of its AOT list, whichever comes
// first in linear order; it takes a ticket when the JIT task that nobody has yet comes before the
// head of its list. Then it waits for the task's event, as for that of an AOT task.
//   Rejected: a scheduler that gives each ready task to an idle worker. Finding one took 2.3 us a
//   task on a GPU, one task after the other (docs/log/174), and a queue for every worker.
//   Rejected: to run what is ready first, whatever its place. Then no worker knows its next task
//   ahead, and can prepare it (docs/log/174: 1.8 us a stage for the AOT tasks beside JIT ones).
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
// Counters only grow, and nothing is reset between iterations. Nor are tickets: an iteration has
// those that follow the tickets of all iterations before. Who takes one behind an iteration's last
// keeps it, for the next iteration that has JIT tasks.
//
// Events that nothing of this iteration waits for: EMPTY, and LAUNCH_DEPENDENT_TASKS, whose tasks
// run in the next run of the graph. Only empty tasks trigger them (a fork: the other branch leads
// to the end). Since an iteration begins after all of the one before, the dependent tasks are ready
// when it does, whatever graphs ran in between, and in the first run too. These counters are for
// information; nobody compares them.
//
// Liveness. Every worker's tasks ascend in the linear (topological) order: its list does, tickets
// do, and it merges them in that order. So the outstanding task with the lowest index can always
// run. All tasks before it have ended, and with them what its event waits for. An AOT task is the
// next one of its worker: what comes before it is done. A JIT task that was taken is the next one
// of whoever took it, likewise. And a JIT task that nobody has taken is the next ticket: no worker
// has one behind it or has chosen an AOT task behind it, so whoever asks next takes it.
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
  MGL_MAX_PENDING = 256,    // triggers by empty tasks that one activation can set off (checked)
  MGL_ID_INDEX_BITS = 28,   // of a task or event in its graph
  MGL_SCHEDULER_SLOTS = 2,  // of a scheduler's queue, which holds one end at most
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
  const uint32_t *jit_tasks;       // [jit_count] ascending
  uint32_t jit_count;
  uint32_t task_count;
  uint32_t event_count;
} mgl_graph_view;

// An mgl_worker_shared is what one worker tells the others.
typedef struct mgl_worker_shared {
  mgl_word current;   // id + 1 of the task that it runs, 0 for none; written by this worker
  mgl_word progress;  // tasks that it finished; written by this worker
  mgl_word waiting;   // id + 1 of the task that it sleeps for; written by its target's loop
  uint8_t padding[40];
} mgl_worker_shared;

// The next plan. Called by one worker or scheduler at a time, after everything of the iterations
// before. Returns the graph to run, or a negative number to stop. May block.
typedef int mgl_next_plan(void *context, uint64_t iteration);

// Why a run failed. All but STUCK are broken invariants.
typedef enum mgl_fault {
  MGL_FAULT_NONE = 0,
  MGL_FAULT_STUCK,       // work is outstanding and no task made progress for the set time
  MGL_FAULT_QUEUE_FULL,  // a scheduler was handed a second end of an iteration
  MGL_FAULT_PENDING,     // empty tasks cascaded beyond MGL_MAX_PENDING
  MGL_FAULT_STALE_ID,    // a queued id was not of the live iteration
  MGL_FAULT_PLAN,        // next_plan returned a graph that does not exist
} mgl_fault;

typedef struct mgl_protocol {
  // Read-only while running.
  uint32_t worker_count;
  uint32_t scheduler_count;  // 0: embedded, who activates an iteration's end begins the next one
  uint32_t graph_count;
  uint32_t rank, rank_count;  // rank_count 0: there are no others
  mgl_graph_view graphs[MGL_MAX_GRAPHS];
  mgl_next_plan *next_plan;
  void *next_plan_context;
  mgl_worker_shared *workers;   // [worker_count]
  mgl_queue *scheduler_queues;  // [scheduler_count] of event ids, MGL_SCHEDULER_SLOTS each
  uint8_t padding_before_published[64];

  // The live iteration. Written by whoever begins it: one at a time, since an iteration's end is
  // activated once and after the next one was published.
  mgl_word published;   // iteration + 1; 0 before the first, and while `info` is being rewritten
  mgl_word info;        // run << 16 | has JIT tasks << 15 | graph << 1 | stop
  mgl_word jit_before;  // where it has JIT tasks: those of all iterations before
  uint64_t graph_runs[MGL_MAX_GRAPHS];  // how often each graph was published; the publisher's only
  uint64_t jit_published;               // JIT tasks of all iterations so far; the publisher's only
  mgl_word planning;                    // 1 while next_plan runs: nothing is outstanding

  // Added to by whoever takes a JIT task; apart from what all read.
  uint8_t padding_before_tickets[64];
  mgl_word tickets;  // that were taken
  uint8_t padding_after_tickets[56];

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

// --- iterations ----------------------------------------------------------------------------------

typedef struct mgl_iteration_info {
  uint64_t iteration;
  uint64_t run;         // k: this is the graph's k-th run, counted from 1
  uint64_t jit_before;  // JIT tasks of all iterations before; where the graph has any
  uint32_t graph;
  bool stop;
} mgl_iteration_info;

enum { MGL_INFO_HAS_JIT = 1 << 15 };

// The graph that mgl_protocol.info names.
MGL_SHARED_FN uint32_t mgl_info_graph(uint64_t info) {
  return (uint32_t)(info >> 1) & 0x3fff;
}

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
  // Likewise.
  uint64_t jit_before = (info & MGL_INFO_HAS_JIT) != 0 ? mgl_load_acquire(&p->jit_before) : 0;
  if (mgl_load_relaxed(&p->published) != published) {
    return false;
  }
  out->iteration = published - 1;
  out->run = info >> 16;
  out->jit_before = jit_before;
  out->graph = mgl_info_graph(info);
  out->stop = (info & 1) != 0;
  return true;
}

MGL_SHARED_FN void mgl_publish(mgl_protocol *p, uint64_t iteration, uint32_t graph, bool stop) {
  uint64_t run = stop ? 0 : ++p->graph_runs[graph];
  uint32_t jit_count = stop ? 0 : p->graphs[graph].jit_count;
  uint64_t has_jit = jit_count > 0 ? MGL_INFO_HAS_JIT : 0;
  mgl_store_relaxed(&p->published, 0);  // ordered before the next store by its release
  mgl_store_release(&p->info, run << 16 | has_jit | (uint64_t)graph << 1 | (stop ? 1 : 0));
  if (jit_count > 0) {
    mgl_store_release(&p->jit_before, p->jit_published);
    p->jit_published += jit_count;
  }
  mgl_store_release(&p->published, iteration + 1);
  mgl_notify();
}

#ifdef __CUDACC__
static __device__ int mgl_ask_next_plan(mgl_protocol *p,
                                        uint64_t iteration);  // role_controller.cuh
#else
MGL_SHARED_FN int mgl_ask_next_plan(mgl_protocol *p, uint64_t iteration) {
  return p->next_plan(p->next_plan_context, iteration);
}
#endif

// Asks for the next plan (unless stopping without asking) and publishes iteration `iteration`.
MGL_SHARED_FN void mgl_begin_iteration(mgl_protocol *p, uint64_t iteration, bool terminate) {
  mgl_store_relaxed(&p->planning, 1);
  int next = terminate ? -1 : mgl_ask_next_plan(p, iteration);
  bool stop = next < 0;
  uint32_t graph = stop ? 0 : (uint32_t)next;
  if (graph >= p->graph_count) {
    mgl_raise_fault(p, MGL_FAULT_PLAN);
    return;
  }
  mgl_publish(p, iteration, graph, stop);
  mgl_store_relaxed(&p->planning, 0);
}

MGL_SHARED_FN bool mgl_is_end(const mgl_event *event) {
  return event->type == MGL_EVENT_END_OF_TASK_GRAPH || event->type == MGL_EVENT_TERMINATE;
}

// --- triggers ------------------------------------------------------------------------------------

// The end of an iteration goes to whoever begins the next one. False: failed.
MGL_SHARED_FN bool mgl_end_iteration(mgl_protocol *p, uint64_t iteration, uint32_t graph,
                                     uint32_t event_idx) {
  if (p->scheduler_count == 0) {
    bool terminate = p->graphs[graph].events[event_idx].type == MGL_EVENT_TERMINATE;
    mgl_begin_iteration(p, iteration + 1, terminate);
    return true;
  }
  // The iteration before was begun by who took its end: so no queue has more than one.
  mgl_queue *queue = &p->scheduler_queues[event_idx % p->scheduler_count];
  if (!mgl_queue_push(queue, mgl_make_id(iteration, graph, event_idx))) {
    mgl_raise_fault(p, MGL_FAULT_QUEUE_FULL);
    return false;
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

// Adds a trigger to the other ranks' counters of a REMOTE event. Who waits for it polls its own
// rank's counter, and is woken by whoever makes the last trigger there.
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
    // and passes it on to who waits for the counter.
    uint64_t count = mgl_add_acq_rel(&view->counters[current], 1) + 1;
    if (event->type == MGL_EVENT_EMPTY || event->type == MGL_EVENT_LAUNCH_DEPENDENT_TASKS ||
        count != activated) {
      continue;
    }
    if ((event->flags & (MGL_EVENT_HAS_AOT | MGL_EVENT_HAS_JIT)) != 0) {
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
    if (mgl_is_end(event) && !mgl_end_iteration(p, info->iteration, info->graph, current)) {
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
  uint64_t ticket;  // number + 1 of the JIT task that it took and that is not `next`; 0: none
  uint32_t next;    // the task that comes next; MGL_NO_EVENT: it has not chosen
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
  worker->info.jit_before = 0;
  worker->info.graph = 0;
  worker->info.stop = false;
  worker->iteration = 0;
  worker->ticket = 0;
  worker->next = MGL_NO_EVENT;
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

// Takes a ticket for a worker that has none, if the JIT task that nobody has yet is one of the
// first `below` of the iteration; without a look at that where the worker has no AOT task that a
// later ticket could keep waiting. Returns the number in this iteration of the worker's JIT task;
// `below` or more: it has none of those.
MGL_SHARED_FN uint64_t mgl_take_ticket(mgl_protocol *p, const mgl_iteration_info *info,
                                       uint64_t below, bool has_aot, uint64_t *ticket) {
  // Relaxed, here and where it is taken: a ticket only says whose task it is; what the task reads
  // is ordered by its event. Since all of the iterations before have ended, at least their tickets
  // are seen.
  if (*ticket == 0 && (!has_aot || mgl_load_relaxed(&p->tickets) - info->jit_before < below)) {
    *ticket = mgl_add_relaxed(&p->tickets, 1) + 1;
  }
  return *ticket == 0 ? below : *ticket - 1 - info->jit_before;
}

// JIT tasks of the graph that come before this task.
MGL_SHARED_FN uint32_t mgl_jit_below(const mgl_graph_view *view, uint32_t task) {
  uint32_t first = 0;
  uint32_t last = view->jit_count;
  while (first < last) {
    uint32_t middle = first + (last - first) / 2;
    if (view->jit_tasks[middle] < task) {
      first = middle + 1;
    } else {
      last = middle;
    }
  }
  return first;
}

// The next task of a worker that is in an iteration, in linear order: that of its ticket, or the
// head of its AOT list, which goes on. MGL_NO_EVENT: it has none.
MGL_SHARED_FN uint32_t mgl_next_task(mgl_protocol *p, mgl_worker_state *worker) {
  const mgl_graph_view *view = &p->graphs[worker->info.graph];
  const bool has_aot = worker->aot_at < worker->aot_end;
  const uint32_t aot = has_aot ? view->aot_tasks[worker->aot_at] : MGL_NO_EVENT;
  if (view->jit_count > 0) {
    const uint32_t below = has_aot ? mgl_jit_below(view, aot) : view->jit_count;
    const uint64_t number = mgl_take_ticket(p, &worker->info, below, has_aot, &worker->ticket);
    if (number < below) {
      worker->ticket = 0;
      return view->jit_tasks[number];
    }
  }
  worker->aot_at += has_aot ? 1 : 0;
  return aot;
}

// The AOT or JIT task whose event the worker waits for; MGL_NO_EVENT if it waits for none.
MGL_SHARED_FN uint32_t mgl_worker_waits_for(const mgl_worker_state *worker) {
  return worker->next;
}

// The worker's next task, if its event is activated.
MGL_SHARED_FN mgl_poll_result mgl_worker_poll(mgl_protocol *p, mgl_worker_state *worker,
                                              mgl_ready_task *out) {
  // Relaxed: a fault only makes everybody leave; what it says is read after all have.
  if (mgl_load_relaxed(&p->fault) != MGL_FAULT_NONE) {
    return MGL_POLL_STOP;
  }
  if (worker->begins) {
    worker->begins = false;
    mgl_begin_iteration(p, 0, false);
  }
  while (worker->next == MGL_NO_EVENT) {
    if (!worker->entered && !mgl_enter_iteration(p, worker)) {
      return MGL_POLL_NONE;
    }
    if (worker->info.stop) {
      return MGL_POLL_STOP;
    }
    worker->next = mgl_next_task(p, worker);
    if (worker->next == MGL_NO_EVENT) {
      worker->iteration++;
      worker->entered = false;
    }
  }
  if (!mgl_is_activated(p, &worker->info, worker->next)) {
    return MGL_POLL_NONE;
  }
  out->info = worker->info;
  out->task = worker->next;
  worker->next = MGL_NO_EVENT;
  mgl_store_relaxed(&p->workers[worker->index].current,
                    mgl_make_id(out->info.iteration, out->info.graph, out->task) + 1);
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
  uint32_t index;
  bool begins;  // it begins iteration 0
} mgl_scheduler_state;

MGL_SHARED_FN void mgl_scheduler_init(mgl_scheduler_state *scheduler, uint32_t index) {
  scheduler->index = index;
  scheduler->begins = index == 0;
}

// Takes the end of an iteration, and begins the next one. NONE: there is none.
MGL_SHARED_FN mgl_poll_result mgl_scheduler_poll(mgl_protocol *p, mgl_scheduler_state *scheduler) {
  uint64_t id = 0;
  mgl_iteration_info info;
  if (mgl_load_relaxed(&p->fault) != MGL_FAULT_NONE) {
    return MGL_POLL_STOP;
  }
  if (scheduler->begins) {
    scheduler->begins = false;
    mgl_begin_iteration(p, 0, false);
    return MGL_POLL_TASK;
  }
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
  uint16_t type = p->graphs[graph].events[mgl_id_index(id)].type;
  mgl_begin_iteration(p, info.iteration + 1, type == MGL_EVENT_TERMINATE);
  return MGL_POLL_TASK;
}

#endif
