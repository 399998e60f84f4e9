// Threads around the protocol: set-up, the workers' and schedulers' loops, and the trace. The
// watchdog is in cpu_watchdog.c.
#include "device/cpu/cpu_mega.h"

#include <inttypes.h>
#include <string.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "device/cpu/cpu_mega_parts.h"
#include "device/cpu/cpu_wait.h"
#include "task/protocol_check.h"

_Static_assert((int)MGL_CPU_MEGA_MAX_GRAPHS == (int)MGL_MAX_GRAPHS, "graphs are 4 bits of an id");

mgl_cpu_mega_options mgl_cpu_mega_defaults(void) {
  mgl_cpu_mega_options options = {.fault_ms = 10000};
  return options;
}

const char *mgl_cpu_mega_op_name(const mgl_cpu_mega *mega, uint32_t graph, const mgl_task *task,
                                 char buffer[MGL_OP_NAME_BYTES]) {
  const mgl_cpu_mega_options *o = &mega->options;
  const char *name =
      o->op_name != NULL ? o->op_name(o->context, mega->graphs[graph], task->op) : NULL;
  if (name == NULL) {
    (void)snprintf(buffer, MGL_OP_NAME_BYTES, "op %" PRIu32, task->op);
    return buffer;
  }
  return name;
}

// --- set-up --------------------------------------------------------------------------------------

static mgl_status check_arguments(const mgl_task_graph *const *graphs, uint32_t graph_count,
                                  const mgl_team *team, const mgl_cpu_mega_options *options,
                                  mgl_error *err) {
  if (graph_count < 1 || graph_count > MGL_CPU_MEGA_MAX_GRAPHS) {
    return mgl_error_set(err, MGL_ERR_LIMIT, "task graphs: expected 1 to %d, found %" PRIu32,
                         MGL_CPU_MEGA_MAX_GRAPHS, graph_count);
  }
  if (options->schedulers > MGL_CPU_MEGA_MAX_SCHEDULERS) {
    return mgl_error_set(err, MGL_ERR_LIMIT, "schedulers: expected 0 to %d, found %" PRIu32,
                         MGL_CPU_MEGA_MAX_SCHEDULERS, options->schedulers);
  }
  if (options->trace_tasks > MGL_CPU_MEGA_MAX_TRACE) {
    return mgl_error_set(err, MGL_ERR_LIMIT,
                         "trace: expected at most %d tasks per worker, found %" PRIu32,
                         MGL_CPU_MEGA_MAX_TRACE, options->trace_tasks);
  }
  for (uint32_t i = 0; i < graph_count; i++) {
    mgl_status status = mgl_protocol_check(graphs[i], err);
    if (status == MGL_OK && graphs[i]->worker_count != graphs[0]->worker_count) {
      status = mgl_error_set(err, MGL_ERR_ARGUMENT,
                             "expected %" PRIu32 " workers as in task graph 0, found %" PRIu32,
                             graphs[0]->worker_count, graphs[i]->worker_count);
    }
    if (status != MGL_OK) {
      mgl_error_prefix(err, "task graph %" PRIu32, i);
      return status;
    }
  }
  uint32_t needed = graphs[0]->worker_count + options->schedulers;
  if (mgl_team_size(team) < needed) {
    return mgl_error_set(err, MGL_ERR_ARGUMENT,
                         "expected a team of at least %" PRIu32 " threads for %" PRIu32
                         " workers and %" PRIu32 " schedulers, found %" PRIu32,
                         needed, graphs[0]->worker_count, options->schedulers, mgl_team_size(team));
  }
  return MGL_OK;
}

// Everything that a run needs, in arrays of known size.
static bool allocate(mgl_cpu_mega *mega) {
  mgl_protocol *p = &mega->protocol;
  mega->counters = mega->options.rank_count > 0
                       ? mega->options.counters[mega->options.rank]
                       : mgl_alloc_zeroed(mega->counter_count, sizeof *mega->counters);
  p->workers = mgl_alloc_zeroed(p->worker_count, sizeof *p->workers);
  p->scheduler_queues = mgl_alloc_zeroed(p->scheduler_count, sizeof *p->scheduler_queues);
  mega->jit_tasks = mgl_alloc_zeroed(mega->jit_count, sizeof *mega->jit_tasks);
  mega->scheduler_slots =
      mgl_alloc_zeroed(p->scheduler_count, MGL_SCHEDULER_SLOTS * sizeof *mega->scheduler_slots);
  mega->traces = mgl_alloc_zeroed(p->worker_count, sizeof *mega->traces);
  mega->clocks = mgl_alloc_zeroed(p->worker_count, sizeof *mega->clocks);
  mega->spent_ns = mgl_alloc_zeroed(p->worker_count, sizeof *mega->spent_ns);
  if (mega->counters == NULL || p->workers == NULL || p->scheduler_queues == NULL ||
      mega->jit_tasks == NULL || mega->scheduler_slots == NULL || mega->traces == NULL ||
      mega->clocks == NULL || mega->spent_ns == NULL) {
    return false;
  }
  for (uint32_t w = 0; mega->options.trace_tasks > 0 && w < p->worker_count; w++) {
    mega->traces[w].entries =
        mgl_alloc_zeroed(mega->options.trace_tasks, sizeof *mega->traces[w].entries);
    if (mega->traces[w].entries == NULL) {
      return false;
    }
  }
  return true;
}

static void fill_views(mgl_cpu_mega *mega, const mgl_task_graph *const *graphs) {
  for (uint32_t i = 0; i < mega->protocol.graph_count; i++) {
    const mgl_task_graph *graph = graphs[i];
    mgl_graph_view *view = &mega->protocol.graphs[i];
    mega->graphs[i] = graph;
    view->tasks = graph->tasks;
    view->events = graph->events;
    view->aot_start = graph->aot_start;
    view->aot_tasks = graph->aot_tasks;
    view->task_count = graph->task_count;
    view->event_count = graph->event_count;
    view->jit_count = mgl_protocol_jit_tasks(graph, NULL);
    mega->jit_count += view->jit_count;
    mega->counter_count += graph->event_count;
  }
}

mgl_status mgl_cpu_mega_create(const mgl_task_graph *const *graphs, uint32_t graph_count,
                               mgl_team *team, const mgl_cpu_mega_options *options,
                               mgl_cpu_mega **out, mgl_error *err) {
  *out = NULL;
  MGL_TRY(check_arguments(graphs, graph_count, team, options, err));
  mgl_cpu_mega *mega = mgl_alloc_zeroed(1, sizeof *mega);
  if (mega == NULL) {
    return mgl_error_set(err, MGL_ERR_MEMORY, "out of memory for the runtime");
  }
  mgl_protocol *p = &mega->protocol;
  mega->team = team;
  mega->crowded = mgl_team_crowded(team);
  mega->options = *options;
  p->worker_count = graphs[0]->worker_count;
  p->scheduler_count = options->schedulers;
  p->graph_count = graph_count;
  p->rank = options->rank;
  p->rank_count = options->rank_count;
  p->next_plan = options->next_plan;
  p->next_plan_context = options->context;
  fill_views(mega, graphs);
  mgl_watchdog_init(mega);
  if (p->rank_count > 0 && mega->counter_count > options->counter_capacity) {
    mgl_status status = mgl_error_set(
        err, MGL_ERR_LIMIT, "events: expected at most %" PRIu64 " that ranks share, found %" PRIu64,
        options->counter_capacity, mega->counter_count);
    mgl_cpu_mega_destroy(mega);
    return status;
  }
  if (!allocate(mega)) {
    mgl_cpu_mega_destroy(mega);
    return mgl_error_set(err, MGL_ERR_MEMORY, "out of memory for queues and counters");
  }
  mgl_word *counters = mega->counters;
  uint32_t *jit_tasks = mega->jit_tasks;
  for (uint32_t i = 0; i < graph_count; i++) {
    p->graphs[i].counters = counters;
    for (uint32_t rank = 0; rank < p->rank_count; rank++) {
      p->graphs[i].peers[rank] = options->counters[rank] + (counters - mega->counters);
    }
    counters += p->graphs[i].event_count;
    p->graphs[i].jit_tasks = jit_tasks;
    jit_tasks += mgl_protocol_jit_tasks(graphs[i], jit_tasks);
  }
  mgl_status status = mgl_watchdog_start(mega, err);
  if (status != MGL_OK) {
    mgl_cpu_mega_destroy(mega);
    return status;
  }
  *out = mega;
  return MGL_OK;
}

void mgl_cpu_mega_destroy(mgl_cpu_mega *mega) {
  if (mega == NULL) {
    return;
  }
  mgl_watchdog_stop(mega);
  for (uint32_t w = 0; mega->traces != NULL && w < mega->protocol.worker_count; w++) {
    mgl_free(mega->traces[w].entries);
  }
  mgl_free(mega->traces);
  mgl_free(mega->clocks);
  mgl_free(mega->spent_ns);
  mgl_free(mega->scheduler_slots);
  mgl_free(mega->jit_tasks);
  mgl_free(mega->protocol.scheduler_queues);
  mgl_free(mega->protocol.workers);
  if (mega->options.rank_count == 0) {
    mgl_free(mega->counters);
  }
  mgl_free(mega);
}

// --- the loops -----------------------------------------------------------------------------------

// A worker or a scheduler: what to poll.
typedef struct actor {
  mgl_protocol *protocol;
  const mgl_cpu_mega_options *options;
  mgl_worker_state worker;
  mgl_lookahead lookahead;
  mgl_scheduler_state scheduler;
  bool schedules;
  bool crowded;
} actor;

static mgl_poll_result poll_once(actor *a, mgl_ready_task *ready) {
  return a->schedules ? mgl_scheduler_poll(a->protocol, &a->scheduler)
                      : mgl_worker_poll(a->protocol, &a->worker, ready);
}

// For the watchdog: which task a worker sleeps for.
static void note_waiting(actor *a, bool sleeps) {
  if (a->schedules) {
    return;
  }
  uint32_t task = sleeps ? mgl_worker_waits_for(&a->worker) : MGL_NO_EVENT;
  const mgl_iteration_info *info = &a->worker.info;
  mgl_store_relaxed(&a->protocol->workers[a->worker.index].waiting,
                    task == MGL_NO_EVENT ? 0 : mgl_make_id(info->iteration, info->graph, task) + 1);
}

// Fetches a little of what the worker will need. False if there is nothing to fetch.
static bool look_ahead(actor *a) {
  const mgl_cpu_mega_options *o = a->options;
  const unsigned char *at = NULL;
  if (o->weights == NULL || a->schedules || a->crowded) {
    return false;
  }
  size_t bytes = mgl_lookahead_next(&a->lookahead, a->worker.index, o->weights, o->context, &at);
  for (size_t i = 0; i < bytes; i += 64) {
    __builtin_prefetch(at + i, 0, 2);  // to be read, into the second level
  }
  return bytes > 0;
}

// Polls until there is something to do.
static mgl_poll_result poll_and_wait(actor *a, mgl_ready_task *ready) {
  mgl_poll_result result = poll_once(a, ready);
  while (result == MGL_POLL_NONE && look_ahead(a)) {
    result = poll_once(a, ready);
  }
  if (result != MGL_POLL_NONE) {
    return result;
  }
  mgl_backoff backoff = mgl_backoff_start(a->crowded);
  for (;;) {
    bool spun = mgl_backoff_turn(&backoff);
    mgl_sleep_ticket ticket = spun ? 0 : mgl_sleep_prepare();
    result = poll_once(a, ready);
    if (result != MGL_POLL_NONE) {
      if (!spun) {
        mgl_sleep_cancel();
      }
      return result;
    }
    if (!spun) {
      note_waiting(a, true);
      mgl_sleep(ticket);
      note_waiting(a, false);
      backoff = mgl_backoff_start(a->crowded);
    }
  }
}

static void run_worker(mgl_cpu_mega *mega, actor *a) {
  const mgl_cpu_mega_options *o = &mega->options;
  task_trace *trace = o->trace_tasks > 0 ? &mega->traces[a->worker.index] : NULL;
  mgl_ready_task ready;
  clockid_t clock = 0;
  if (pthread_getcpuclockid(pthread_self(), &clock) == 0) {
    mgl_store_relaxed(&mega->clocks[a->worker.index], (uint64_t)(uint32_t)clock + 1);
  }
  while (poll_and_wait(a, &ready) == MGL_POLL_TASK) {
    const mgl_task_graph *graph = mega->graphs[ready.info.graph];
    if ((graph->tasks[ready.task].flags & MGL_TASK_JIT) == 0) {
      mgl_lookahead_start(&a->lookahead, graph, a->worker.aot_at - 1);
    }
    uint64_t start = trace != NULL ? mgl_clock_ns() : 0;
    o->run_task(o->context, a->worker.index, graph, &graph->tasks[ready.task]);
    if (trace != NULL) {
      trace_entry *entry = &trace->entries[trace->count++ % o->trace_tasks];
      entry->iteration = ready.info.iteration;
      entry->start_ns = start;
      entry->end_ns = mgl_clock_ns();
      entry->graph = ready.info.graph;
      entry->task = ready.task;
    }
    if (!mgl_worker_finish(a->protocol, a->worker.index, &ready)) {
      return;
    }
  }
}

static void run_thread(void *context, uint32_t index) {
  mgl_cpu_mega *mega = context;
  mgl_protocol *p = &mega->protocol;
  actor a = {.protocol = p,
             .options = &mega->options,
             .schedules = index >= p->worker_count,
             .crowded = mega->crowded};
  if (!a.schedules) {
    mgl_worker_init(p, &a.worker, index);
    run_worker(mega, &a);
  } else if (index < p->worker_count + p->scheduler_count) {
    mgl_scheduler_init(&a.scheduler, index - p->worker_count);
    mgl_ready_task unused;
    while (poll_and_wait(&a, &unused) == MGL_POLL_TASK) {
    }
  }
}

// All shared words as before the first iteration. Visible to the threads when the team starts.
static void reset(mgl_cpu_mega *mega) {
  mgl_protocol *p = &mega->protocol;
  for (uint64_t i = 0; i < mega->counter_count; i++) {
    mgl_store_relaxed(&mega->counters[i], 0);
  }
  for (uint32_t w = 0; w < p->worker_count; w++) {
    mgl_worker_shared *worker = &p->workers[w];
    mgl_store_relaxed(&worker->current, 0);
    mgl_store_relaxed(&worker->progress, 0);
    mgl_store_relaxed(&worker->waiting, 0);
    mgl_store_relaxed(&mega->clocks[w], 0);
    mega->traces[w].count = 0;
  }
  for (uint32_t s = 0; s < p->scheduler_count; s++) {
    mgl_queue_init(&p->scheduler_queues[s], &mega->scheduler_slots[s * MGL_SCHEDULER_SLOTS],
                   MGL_SCHEDULER_SLOTS);
  }
  memset(p->graph_runs, 0, sizeof p->graph_runs);
  p->jit_published = 0;
  mgl_store_relaxed(&p->jit_before, 0);
  mgl_store_relaxed(&p->tickets, 0);
  mgl_store_relaxed(&p->published, 0);
  mgl_store_relaxed(&p->info, 0);
  mgl_store_relaxed(&p->planning, 1);  // until the first plan, nothing is outstanding
  mgl_store_relaxed(&p->fault, MGL_FAULT_NONE);
}

static const char *const fault_texts[] = {
    [MGL_FAULT_NONE] = "no fault",
    [MGL_FAULT_STUCK] = "no task made progress",
    [MGL_FAULT_QUEUE_FULL] = "a scheduler was handed a second end of an iteration",
    [MGL_FAULT_PENDING] = "empty tasks cascaded beyond the limit that was checked",
    [MGL_FAULT_STALE_ID] = "a queued id was not of the live iteration",
    [MGL_FAULT_PLAN] = "next_plan returned a task graph that does not exist",
};

mgl_status mgl_cpu_mega_run(mgl_cpu_mega *mega, mgl_error *err) {
  mgl_protocol *p = &mega->protocol;
  (void)pthread_mutex_lock(&mega->watch.lock);
  reset(mega);
  mega->watch.active = true;
  mega->watch.run++;
  mega->watch.message[0] = '\0';
  (void)pthread_mutex_unlock(&mega->watch.lock);
  mgl_team_run(mega->team, run_thread, mega);
  (void)pthread_mutex_lock(&mega->watch.lock);
  mega->watch.active = false;
  (void)pthread_mutex_unlock(&mega->watch.lock);
  uint64_t fault = mgl_load_acquire(&p->fault);
  if (fault == MGL_FAULT_NONE) {
    return MGL_OK;
  }
  return mgl_error_set(err, MGL_ERR_INTERNAL, "%s",
                       mega->watch.message[0] != '\0' ? mega->watch.message : fault_texts[fault]);
}

bool mgl_cpu_mega_faulted(const mgl_cpu_mega *mega) {
  return mgl_load_relaxed(&mega->protocol.fault) != MGL_FAULT_NONE;
}

uint64_t mgl_cpu_mega_iterations(const mgl_cpu_mega *mega) {
  uint64_t runs = 0;
  for (uint32_t i = 0; i < mega->protocol.graph_count; i++) {
    runs += mega->protocol.graph_runs[i];
  }
  return runs;
}

uint64_t mgl_cpu_mega_tasks(const mgl_cpu_mega *mega) {
  return mgl_protocol_progress(&mega->protocol);
}

// --- trace ---------------------------------------------------------------------------------------

static void append_json_string(mgl_text *out, const char *string) {
  mgl_text_append(out, "\"", 1);
  for (; *string != '\0'; string++) {
    if (*string == '"' || *string == '\\') {
      mgl_text_format(out, "\\%c", *string);
    } else if ((unsigned char)*string < 0x20) {
      mgl_text_format(out, "\\u%04x", (unsigned char)*string);
    } else {
      mgl_text_append(out, string, 1);
    }
  }
  mgl_text_append(out, "\"", 1);
}

// previous_end_ns: of the worker's entry before, or of its own start if there is none.
static void append_entry(const mgl_cpu_mega *mega, uint32_t worker, const trace_entry *entry,
                         uint64_t previous_end_ns, uint64_t origin_ns, mgl_text *out) {
  const mgl_task *task = &mega->graphs[entry->graph]->tasks[entry->task];
  char buffer[MGL_OP_NAME_BYTES];
  mgl_text name = {0};
  mgl_text_format(&name, "%s [%" PRIu32 ",%" PRIu32 ")",
                  mgl_cpu_mega_op_name(mega, entry->graph, task, buffer), task->begin, task->end);
  mgl_text_append_string(out, ",\n{\"name\":");
  append_json_string(out, name.data != NULL ? name.data : "");
  out->failed = out->failed || name.failed;
  mgl_text_free(&name);
  mgl_text_format(out,
                  ",\"ph\":\"X\",\"pid\":1,\"tid\":%" PRIu32
                  ",\"ts\":%.3f,\"dur\":%.3f,\"args\":{"
                  "\"graph\":%" PRIu32 ",\"iteration\":%" PRIu64 ",\"index\":%" PRIu32
                  ",\"wait_us\":%.3f}}",
                  worker, (double)(entry->start_ns - origin_ns) / 1e3,
                  (double)(entry->end_ns - entry->start_ns) / 1e3, entry->graph, entry->iteration,
                  entry->task, (double)(entry->start_ns - previous_end_ns) / 1e3);
}

mgl_status mgl_cpu_mega_trace_json(const mgl_cpu_mega *mega, mgl_text *out, mgl_error *err) {
  uint64_t capacity = mega->options.trace_tasks;
  uint64_t origin_ns = UINT64_MAX;
  for (uint32_t w = 0; w < mega->protocol.worker_count; w++) {
    const task_trace *trace = &mega->traces[w];
    uint64_t first = trace->count > capacity ? trace->count - capacity : 0;
    if (trace->count > 0 && trace->entries[first % capacity].start_ns < origin_ns) {
      origin_ns = trace->entries[first % capacity].start_ns;
    }
  }
  mgl_text_append_string(out,
                         "{\"displayTimeUnit\":\"ns\",\"traceEvents\":[\n"
                         "{\"name\":\"process_name\",\"ph\":\"M\",\"pid\":1,"
                         "\"args\":{\"name\":\"megalith\"}}");
  for (uint32_t w = 0; w < mega->protocol.worker_count; w++) {
    const task_trace *trace = &mega->traces[w];
    mgl_text_format(out,
                    ",\n{\"name\":\"thread_name\",\"ph\":\"M\",\"pid\":1,\"tid\":%" PRIu32
                    ",\"args\":{\"name\":\"worker %" PRIu32 "\"}}",
                    w, w);
    uint64_t first = trace->count > capacity ? trace->count - capacity : 0;
    uint64_t previous_end_ns = trace->count > 0 ? trace->entries[first % capacity].start_ns : 0;
    for (uint64_t i = first; i < trace->count; i++) {
      const trace_entry *entry = &trace->entries[i % capacity];
      append_entry(mega, w, entry, previous_end_ns, origin_ns, out);
      previous_end_ns = entry->end_ns;
    }
  }
  mgl_text_append_string(out, "\n]}\n");
  return mgl_text_check(out, err);
}
