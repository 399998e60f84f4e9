// Raises a fault when work is outstanding and no task anywhere made progress for a set time.
//
// A thread of its own looks every eighth of that time. Eight looks in a row must find the same run,
// the same number of finished tasks, no sign from inside a task, and no plan being made. Looks are
// counted, not seconds: a process that was stopped, or a machine that was suspended, comes back to
// one look, not to a fault.
//
// Ranks are to end sooner when a task hangs (hang_ms). What tells a hang from honest work is the
// worker's own processor time: kernels give a sign after at most some hundredths of a second of it,
// so a task that computes for far longer without one never ends, however busy the machine is. A
// worker that waits for the disk or for a processor spends none, and has the whole time of a fault.
// Rejected: looking from the waiting workers. A run whose only worker is
// stuck has none.
#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <string.h>
#include <time.h>

#include "base/text.h"
#include "device/cpu/cpu_mega_parts.h"

enum { LOOKS = 8 };

// Sights are compared from look to look.
typedef struct sight {
  uint64_t run;
  uint64_t tasks;
  uint64_t pulses;
  uint64_t published;
} sight;

// --- the message ---------------------------------------------------------------------------------

// Appends to a fixed buffer; too long a text is cut.
__attribute__((format(printf, 2, 3))) static void append(char *message, const char *format, ...) {
  size_t used = strlen(message);
  va_list arguments;
  va_start(arguments, format);
  (void)vsnprintf(message + used, MGL_ERROR_TEXT_BYTES - used, format, arguments);
  va_end(arguments);
}

static void append_task(const mgl_cpu_mega *mega, uint64_t id, char *message) {
  const mgl_task *task = &mega->graphs[mgl_id_graph(id)]->tasks[mgl_id_index(id)];
  char buffer[MGL_OP_NAME_BYTES];
  append(message, "task #%" PRIu32 " (op %s, tile [%" PRIu32 ",%" PRIu32 "))", mgl_id_index(id),
         mgl_cpu_mega_op_name(mega, mgl_id_graph(id), task, buffer), task->begin, task->end);
}

// " event e (k of n triggers)", of the graph's present run.
static void append_event(const mgl_cpu_mega *mega, uint64_t run, uint32_t graph, uint32_t event_idx,
                         char *message) {
  const mgl_graph_view *view = &mega->protocol.graphs[graph];
  uint64_t per_run = mgl_activation_count(&mega->protocol, &view->events[event_idx], 1);
  uint64_t count = mgl_load_relaxed(&view->counters[event_idx]);
  uint64_t before = per_run * (run - 1);
  append(message, "event %" PRIu32 " (%" PRIu64 " of %" PRIu64 " triggers)", event_idx,
         count > before ? count - before : 0, per_run);
}

// Tasks that run are what hangs; those that wait show how far it got. The first three of each.
// Behind what the message says already.
static void describe(const mgl_cpu_mega *mega, char *message) {
  const mgl_protocol *p = &mega->protocol;
  mgl_iteration_info info = {0};
  if (!mgl_read_iteration(p, &info) || info.stop) {
    append(message, " before the next iteration was published");
    return;
  }
  append(message, " in iteration %" PRIu64 " of task graph %" PRIu32, info.iteration, info.graph);
  uint32_t named = 0;
  for (uint32_t w = 0; w < p->worker_count && named < 3; w++) {
    uint64_t current = mgl_load_relaxed(&p->workers[w].current);
    if (current != 0 && mgl_id_graph(current - 1) == info.graph) {
      const mgl_task *task = &p->graphs[info.graph].tasks[mgl_id_index(current - 1)];
      append(message, named == 0 ? ": " : "; ");
      append_task(mega, current - 1, message);
      append(message, " on worker %" PRIu32 " is running, triggers ", w);
      append_event(mega, info.run, info.graph, task->trigger_event, message);
      named++;
    }
  }
  uint32_t running = named;
  for (uint32_t w = 0; w < p->worker_count && named < running + 3; w++) {
    uint64_t waiting = mgl_load_relaxed(&p->workers[w].waiting);
    if (waiting != 0 && mgl_id_graph(waiting - 1) == info.graph) {
      const mgl_task *task = &p->graphs[info.graph].tasks[mgl_id_index(waiting - 1)];
      append(message, named == 0 ? ": " : "; ");
      append_task(mega, waiting - 1, message);
      append(message, " on worker %" PRIu32 ", waits for ", w);
      append_event(mega, info.run, info.graph, task->dependent_event, message);
      named++;
    }
  }
}

// --- the thread ----------------------------------------------------------------------------------

// A worker's processor time, or 0.
static uint64_t spent_ns(const mgl_cpu_mega *mega, uint32_t worker) {
  const uint64_t clock = mgl_load_relaxed(&mega->clocks[worker]);
  struct timespec time = {0};
  return clock != 0 && clock_gettime((clockid_t)(uint32_t)(clock - 1), &time) == 0
             ? (uint64_t)time.tv_sec * 1000000000 + (uint64_t)time.tv_nsec
             : 0;
}

// Whether a worker has computed in its task for too long since the latest progress.
static bool hangs(mgl_cpu_mega *mega, bool progress) {
  bool found = false;
  for (uint32_t w = 0; mega->watch.active && w < mega->protocol.worker_count; w++) {
    const uint64_t now_ns = spent_ns(mega, w);
    const bool works = mgl_load_relaxed(&mega->protocol.workers[w].current) != 0;
    if (progress || !works || now_ns == 0 || mega->spent_ns[w] == 0) {
      mega->spent_ns[w] = now_ns;
    }
    found |= now_ns - mega->spent_ns[w] >= (uint64_t)mega->options.hang_ms * 1000000;
  }
  return found;
}

// True if work is outstanding and nothing has changed since the last look.
static bool look(const mgl_cpu_mega *mega, sight *last) {
  const mgl_protocol *p = &mega->protocol;
  sight now = {
      .run = mega->watch.run,
      .tasks = mgl_protocol_progress(p),
      .pulses = mega->options.pulses != NULL ? mega->options.pulses(mega->options.context) : 0,
      .published = mgl_load_relaxed(&p->published),
  };
  bool same = memcmp(&now, last, sizeof now) == 0;
  *last = now;
  return same && mega->watch.active && mgl_load_relaxed(&p->planning) == 0 &&
         mgl_load_relaxed(&p->fault) == MGL_FAULT_NONE;
}

static void *watch(void *argument) {
  mgl_cpu_mega *mega = argument;
  watchdog *w = &mega->watch;
  sight last = {0};
  uint32_t looks = 0;
  const uint32_t hang_ms = mega->options.hang_ms;
  const uint32_t shorter_ms =
      hang_ms != 0 && hang_ms < mega->options.fault_ms ? hang_ms : mega->options.fault_ms;
  const uint64_t step_ns = (uint64_t)shorter_ms * 1000000 / LOOKS;
  const uint32_t most_looks = (uint32_t)((uint64_t)mega->options.fault_ms * LOOKS / shorter_ms);
  (void)pthread_mutex_lock(&w->lock);
  while (!w->quit) {
    struct timespec until;
    (void)clock_gettime(CLOCK_MONOTONIC, &until);
    uint64_t ns = (uint64_t)until.tv_nsec + step_ns;
    until.tv_sec += (time_t)(ns / 1000000000);
    until.tv_nsec = (long)(ns % 1000000000);
    int code = 0;
    while (!w->quit && code != ETIMEDOUT) {
      code = pthread_cond_timedwait(&w->wake, &w->lock, &until);
    }
    looks = !w->quit && look(mega, &last) ? looks + 1 : 0;
    const bool hung = hang_ms != 0 && hangs(mega, looks == 0) && looks > 0;
    if (looks == most_looks || hung) {
      looks = 0;
      w->message[0] = '\0';
      append(w->message,
             hung ? "a task has computed for %g s without an end or a sign"
                  : "no task made progress for %g s",
             (double)(hung ? hang_ms : mega->options.fault_ms) / 1000);
      describe(mega, w->message);
      if (mega->options.on_fault != NULL) {
        mega->options.on_fault(mega->options.context, w->message);
      }
      mgl_raise_fault(&mega->protocol, MGL_FAULT_STUCK);
    }
  }
  (void)pthread_mutex_unlock(&w->lock);
  return NULL;
}

void mgl_cpu_mega_fail(mgl_cpu_mega *mega, const char *why) {
  watchdog *w = &mega->watch;
  (void)pthread_mutex_lock(&w->lock);
  if (w->active && mgl_load_relaxed(&mega->protocol.fault) == MGL_FAULT_NONE) {
    w->message[0] = '\0';
    append(w->message, "%s", why);
    describe(mega, w->message);
    mgl_raise_fault(&mega->protocol, MGL_FAULT_STUCK);
  }
  (void)pthread_mutex_unlock(&w->lock);
}

void mgl_watchdog_init(mgl_cpu_mega *mega) {
  watchdog *w = &mega->watch;
  pthread_condattr_t attributes;
  (void)pthread_mutex_init(&w->lock, NULL);
  (void)pthread_condattr_init(&attributes);
  (void)pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
  (void)pthread_cond_init(&w->wake, &attributes);
  (void)pthread_condattr_destroy(&attributes);
}

mgl_status mgl_watchdog_start(mgl_cpu_mega *mega, mgl_error *err) {
  watchdog *w = &mega->watch;
  if (mega->options.fault_ms == 0) {
    return MGL_OK;
  }
  int code = pthread_create(&w->thread, NULL, watch, mega);
  if (code != 0) {
    return mgl_error_set(err, MGL_ERR_MEMORY, "could not start the watchdog thread: %s",
                         strerror(code));
  }
  w->started = true;
  return MGL_OK;
}

void mgl_watchdog_stop(mgl_cpu_mega *mega) {
  watchdog *w = &mega->watch;
  if (w->started) {
    (void)pthread_mutex_lock(&w->lock);
    w->quit = true;
    (void)pthread_cond_signal(&w->wake);
    (void)pthread_mutex_unlock(&w->lock);
    (void)pthread_join(w->thread, NULL);
    w->started = false;
  }
  (void)pthread_cond_destroy(&w->wake);
  (void)pthread_mutex_destroy(&w->lock);
}
