// The driver's streams, events, launches and graphs, and the thread that does what is queued on them.
//
// A stream is a list of items, done in order. The first item of a stream may begin as far as the
// NULL stream allows: its items wait for what was queued before on streams that were not made
// non-blocking, and these wait for it. A launch that says that it may begin before the one before
// it ends (a programmatic dependent launch) does so once that one is released. Launches that have
// begun take turns of STEPS steps.
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "emulator/driver.h"

enum { STEPS = 4096, NAME_BYTES = 64 };

typedef struct event {
  uint32_t pending;  // marks that are queued
  double ms;         // when the latest one was passed
} event;

typedef enum item_kind { LAUNCH, COPY, SET, MARK } item_kind;

typedef struct item {
  struct item *next;
  item_kind kind;
  uint64_t number;  // of all that were queued
  // LAUNCH
  const emu_kernel *kernel;
  unsigned grid[3], block[3];
  unsigned shared_bytes;
  uint32_t most_blocks;  // at once
  bool programmatic;
  uint8_t *parameters;  // one after the other, each at a multiple of 16
  emu_launch *running;
  double begin_ms;
  // COPY, SET
  void *to;
  const void *from;
  void *staged;  // what `from` points to, where the host may change it at once
  size_t bytes;
  unsigned char value;
  event *mark;
} item;

typedef struct list {
  item *first, *last;
} list;

typedef struct stream {
  struct stream *next;
  int device;
  bool non_blocking;
  list items;
  list *capture;  // NULL: nothing is captured
} stream;

static stream null_streams[EMU_MOST_GPUS];
static stream *streams;
static mgl_cu_result failures[EMU_MOST_GPUS];
static uint64_t queued, launches;
static pthread_cond_t work = PTHREAD_COND_INITIALIZER, done = PTHREAD_COND_INITIALIZER;
static pthread_mutex_t sleeping = PTHREAD_MUTEX_INITIALIZER;
static uint64_t changes;  // of what can be waited for; guarded by sleeping

static double now_ms(void) {
  struct timespec now;
  (void)clock_gettime(CLOCK_MONOTONIC, &now);
  return (double)now.tv_sec * 1e3 + (double)now.tv_nsec * 1e-6;
}

// --- items ---------------------------------------------------------------------------------------

static void append(list *to, item *i) {
  i->next = NULL;
  if (to->first == NULL) {
    to->first = i;
  } else {
    to->last->next = i;
  }
  to->last = i;
}

static void free_item(item *i) {
  if (i->running != NULL) {
    emu_launch_destroy(i->running);
  }
  free(i->parameters);
  free(i->staged);
  free(i);
}

static void free_list(list *l) {
  while (l->first != NULL) {
    item *next = l->first->next;
    free_item(l->first);
    l->first = next;
  }
}

static void pop(stream *s) {
  item *i = s->items.first;
  s->items.first = i->next;
  if (i->kind == MARK) {
    i->mark->ms = now_ms();
    i->mark->pending--;
  }
  free_item(i);
}

static size_t parameter_bytes(const emu_kernel *kernel) {
  size_t bytes = 16;
  for (uint32_t i = 0; i < emu_kernel_describe(kernel).parameter_count; i++) {
    bytes += (emu_kernel_parameter_bytes(kernel, i) + 15) / 16 * 16;
  }
  return bytes;
}

static item *copy_item(const item *from) {
  item *i = malloc(sizeof *i);
  if (i != NULL) {
    *i = *from;
    if (i->kind == LAUNCH) {
      size_t bytes = parameter_bytes(i->kernel);
      i->parameters = malloc(bytes);
      if (i->parameters == NULL) {
        free(i);
        return NULL;
      }
      memcpy(i->parameters, from->parameters, bytes);
    }
  }
  return i;
}

// --- the thread ----------------------------------------------------------------------------------

static void fail(int device, const item *i, const char *why) {
  (void)fprintf(stderr, "emulator: %s: %s\n", emu_kernel_describe(i->kernel).name, why);
  failures[device] = EMU_LAUNCH_FAILED;
}

static bool has_before(const stream *s, uint64_t number) {
  return s->items.first != NULL && s->items.first->number < number;
}

static bool may_begin(const stream *s, const item *i) {
  stream *own = &null_streams[s->device];
  if (s != own) {
    return s->non_blocking || !has_before(own, i->number);
  }
  for (const stream *other = streams; other != NULL; other = other->next) {
    if (other->device == s->device && !other->non_blocking && has_before(other, i->number)) {
      return false;
    }
  }
  return true;
}

static void begin(int device, item *i, bool held) {
  enum { MOST_PARAMETERS = 256 };
  void *parameters[MOST_PARAMETERS];
  const uint32_t count = emu_kernel_describe(i->kernel).parameter_count;
  uint8_t *at = i->parameters;
  for (uint32_t p = 0; p < count && p < MOST_PARAMETERS; p++) {
    parameters[p] = at;
    at += (emu_kernel_parameter_bytes(i->kernel, p) + 15) / 16 * 16;
  }
  const uint64_t seed = emu_setting("EMULATED_SEED", 1) * UINT64_C(0x9e3779b97f4a7c15) + launches++;
  i->begin_ms = now_ms();
  i->running = emu_launch_begin(i->kernel, i->grid, i->block, i->shared_bytes, parameters, seed);
  if (i->running == NULL) {
    fail(device, i, "the launch cannot begin");
    return;
  }
  emu_launch_limit(i->running, i->most_blocks);
  emu_launch_hold(i->running, held);
}

static void perform(const item *i) {
  const uint64_t *word = i->from;
  if (i->kind == SET) {
    memset(i->to, i->value, i->bytes);
  } else if (i->kind == COPY && i->bytes == sizeof *word && (uintptr_t)i->to % 8 == 0) {
    uint64_t value;  // a kernel that runs may poll it, and a copy stores words whole
    memcpy(&value, word, sizeof value);
    __atomic_store_n((uint64_t *)i->to, value, __ATOMIC_RELEASE);
  } else if (i->kind == COPY) {
    memcpy(i->to, i->from, i->bytes);
  }
}

// Does what can be done at once, and begins launches; true: something was done.
static bool advance(stream *s) {
  bool any = false;
  item *i;
  while ((i = s->items.first) != NULL && i->kind != LAUNCH && may_begin(s, i)) {
    perform(i);
    pop(s);
    any = true;
  }
  if (i == NULL || failures[s->device] != EMU_OK || !may_begin(s, i)) {
    return any;
  }
  if (i->running == NULL) {
    begin(s->device, i, false);
  }
  while (i->running != NULL && i->next != NULL && i->next->kind == LAUNCH &&
         i->next->programmatic && (i->next->running != NULL || emu_launch_released(i->running))) {
    i = i->next;
    if (i->running == NULL) {
      begin(s->device, i, true);
    }
  }
  return any;
}

static void tell(const item *i) {
  if (emu_setting("EMULATED_LOG", 0) != 0) {
    (void)fprintf(stderr, "emulator: %s of %u x %u blocks of %u threads, %.1f ms\n",
                  emu_kernel_describe(i->kernel).name, i->grid[0], i->grid[1] * i->grid[2],
                  i->block[0] * i->block[1] * i->block[2], now_ms() - i->begin_ms);
  }
}

// A turn of every launch of the stream that runs; without the lock, since only this thread looks at
// running launches, and nobody else takes items away.
static bool step(stream *s, bool *ended) {
  emu_lock();
  const item *first = s->items.first;
  emu_unlock();
  *ended = false;
  if (first == NULL || first->running == NULL) {
    return false;
  }
  *ended = emu_launch_step(first->running, STEPS);
  for (const item *i = first;;) {
    emu_lock();
    i = i->next;
    emu_unlock();
    if (i == NULL || i->running == NULL) {
      return true;
    }
    (void)emu_launch_step(i->running, STEPS);
  }
}

static void finish(stream *s) {
  item *i = s->items.first;
  const char *why = emu_launch_fault(i->running);
  if (why != NULL) {
    fail(s->device, i, why);
  }
  tell(i);
  pop(s);
  if (s->items.first != NULL && s->items.first->running != NULL) {
    emu_launch_hold(s->items.first->running, false);
  }
}

static void notify(pthread_cond_t *whom) {
  (void)pthread_mutex_lock(&sleeping);
  changes++;
  (void)pthread_cond_broadcast(whom);
  (void)pthread_mutex_unlock(&sleeping);
}

// Waits for a change after that one.
static void await(pthread_cond_t *what, uint64_t since) {
  (void)pthread_mutex_lock(&sleeping);
  while (changes == since) {
    (void)pthread_cond_wait(what, &sleeping);
  }
  (void)pthread_mutex_unlock(&sleeping);
}

static uint64_t changes_now(void) {
  (void)pthread_mutex_lock(&sleeping);
  const uint64_t now = changes;
  (void)pthread_mutex_unlock(&sleeping);
  return now;
}

static bool drop_failed(stream *s) {
  const bool any = failures[s->device] != EMU_OK && s->items.first != NULL;
  while (failures[s->device] != EMU_OK && s->items.first != NULL) {
    pop(s);
  }
  return any;
}

// The i-th stream, the devices' own ones first. Streams are not freed (stream_destroy).
static stream *stream_at(size_t i) {
  if (i < EMU_MOST_GPUS) {
    null_streams[i].device = (int)i;
    return &null_streams[i];
  }
  stream *s = streams;
  for (i -= EMU_MOST_GPUS; s != NULL && i > 0; i--) {
    s = s->next;
  }
  return s;
}

static void *do_work(void *context) {
  (void)context;
  for (;;) {
    const uint64_t since = changes_now();
    bool any = false, running = false, ended = false;
    stream *s;
    emu_lock();
    for (size_t i = 0; (s = stream_at(i)) != NULL; i++) {
      any = advance(s) || any;
      any = drop_failed(s) || any;
    }
    emu_unlock();
    for (size_t i = 0;; i++) {
      emu_lock();
      s = stream_at(i);
      emu_unlock();
      if (s == NULL) {
        break;
      }
      running = step(s, &ended) || running;
      if (ended) {
        emu_lock();
        finish(s);
        (void)drop_failed(s);
        emu_unlock();
        any = true;
      }
    }
    if (any) {
      notify(&done);
    } else if (!running) {
      await(&work, since);
    }
  }
  return NULL;
}

static mgl_cu_result start_working(void) {
  static bool started;
  pthread_t thread;
  if (!started) {
    started = pthread_create(&thread, NULL, do_work, NULL) == 0;
    if (started) {
      (void)pthread_detach(thread);
    }
  }
  return started ? EMU_OK : EMU_OUT_OF_MEMORY;
}

// --- queueing ------------------------------------------------------------------------------------

static stream *stream_of(void *handle) {
  stream *s = handle != NULL ? handle : &null_streams[emu_current_device()];
  if (handle == NULL) {
    s->device = emu_current_device();
  }
  return s;
}

// With the lock. Takes the item over.
static mgl_cu_result queue(stream *s, item *i) {
  mgl_cu_result result = failures[s->device];
  if (result == EMU_OK) {
    result = start_working();
  }
  if (result != EMU_OK) {
    free_item(i);
    return result;
  }
  i->number = ++queued;
  append(s->capture != NULL ? s->capture : &s->items, i);
  if (i->kind == MARK) {
    i->mark->pending++;
  }
  return EMU_OK;
}

static mgl_cu_result queue_one(void *handle, item wanted) {
  item *i = malloc(sizeof *i);
  if (i == NULL) {
    free(wanted.parameters);
    free(wanted.staged);
    return EMU_OUT_OF_MEMORY;
  }
  *i = wanted;
  emu_lock();
  mgl_cu_result result = queue(stream_of(handle), i);
  emu_unlock();
  notify(&work);
  return result;
}

static bool is_idle(const stream *s, int device) {
  return s->device != device || s->items.first == NULL;
}

// Until the stream, or all streams of the device, have nothing left.
static mgl_cu_result wait_for(const stream *one, int device) {
  for (;;) {
    const uint64_t since = changes_now();
    emu_lock();
    bool idle = one != NULL ? one->items.first == NULL : is_idle(&null_streams[device], device);
    for (const stream *s = streams; one == NULL && idle && s != NULL; s = s->next) {
      idle = is_idle(s, device);
    }
    const mgl_cu_result failure = failures[device];
    emu_unlock();
    if (idle) {
      return failure;
    }
    await(&done, since);
  }
}

mgl_cu_result emu_synchronize(int device) {
  return wait_for(NULL, device);
}

// --- streams and events --------------------------------------------------------------------------

EMU_CALL cuStreamCreate(void **out, unsigned flags) {
  stream *s = calloc(1, sizeof *s);
  if (s == NULL) {
    return EMU_OUT_OF_MEMORY;
  }
  s->device = emu_current_device();
  s->non_blocking = (flags & MGL_CU_STREAM_NON_BLOCKING) != 0;
  emu_lock();
  stream **at = &streams;
  while (*at != NULL) {
    at = &(*at)->next;
  }
  *at = s;
  emu_unlock();
  *out = s;
  return EMU_OK;
}

// What is queued on it is still done; it stays in the list, where the thread may be looking at it.
EMU_CALL cuStreamDestroy_v2(void *which) {
  stream *s = which;
  (void)wait_for(s, s->device);
  return EMU_OK;
}

EMU_CALL cuStreamQuery(void *which) {
  emu_lock();
  const stream *s = stream_of(which);
  mgl_cu_result result = failures[s->device];
  if (s->items.first != NULL) {
    result = MGL_CU_NOT_READY;
  }
  emu_unlock();
  return result;
}

EMU_CALL cuStreamSynchronize(void *which) {
  const stream *s = stream_of(which);
  return wait_for(s, s->device);
}

EMU_CALL cuEventCreate(void **out, unsigned flags) {
  (void)flags;
  *out = calloc(1, sizeof(event));
  return *out != NULL ? EMU_OK : EMU_OUT_OF_MEMORY;
}

EMU_CALL cuEventSynchronize(void *which) {
  const event *e = which;
  for (;;) {
    const uint64_t since = changes_now();
    emu_lock();
    const bool passed = e->pending == 0;
    const mgl_cu_result failure = failures[emu_current_device()];
    emu_unlock();
    if (passed) {
      return failure;
    }
    await(&done, since);
  }
}

EMU_CALL cuEventDestroy_v2(void *which) {
  (void)cuEventSynchronize(which);
  free(which);
  return EMU_OK;
}

EMU_CALL cuEventRecord(void *which, void *on) {
  return queue_one(on, (item){.kind = MARK, .mark = which});
}

EMU_CALL cuEventElapsedTime(float *ms, void *from, void *to) {
  const event *a = from, *b = to;
  emu_lock();
  const bool passed = a->pending == 0 && b->pending == 0;
  *ms = (float)(b->ms - a->ms);
  emu_unlock();
  return passed ? EMU_OK : MGL_CU_NOT_READY;
}

// --- copies --------------------------------------------------------------------------------------

// On the NULL stream, and waits. Where that has to wait for nothing, it need not be queued.
static mgl_cu_result now(item wanted) {
  const int device = emu_current_device();
  emu_lock();
  stream *s = &null_streams[device];
  s->device = device;
  wanted.number = queued + 1;
  const mgl_cu_result failure = failures[device];
  const bool free_to_go = s->items.first == NULL && may_begin(s, &wanted);
  if (free_to_go && failure == EMU_OK) {
    perform(&wanted);
  }
  emu_unlock();
  if (free_to_go || failure != EMU_OK) {
    return failure;
  }
  mgl_cu_result result = queue_one(NULL, wanted);
  return result == EMU_OK ? wait_for(s, device) : result;
}

EMU_CALL cuMemsetD8_v2(mgl_cu_ptr memory, unsigned char value, size_t bytes) {
  return now((item){.kind = SET, .to = (void *)(uintptr_t)memory, .value = value, .bytes = bytes});
}

EMU_CALL cuMemcpyHtoD_v2(mgl_cu_ptr to, const void *from, size_t bytes) {
  return now((item){.kind = COPY, .to = (void *)(uintptr_t)to, .from = from, .bytes = bytes});
}

EMU_CALL cuMemcpyDtoH_v2(void *to, mgl_cu_ptr from, size_t bytes) {
  return now((item){.kind = COPY, .to = to, .from = (const void *)(uintptr_t)from, .bytes = bytes});
}

// From pinned memory when the stream comes to it; of other memory the driver makes a copy first.
EMU_CALL cuMemcpyHtoDAsync_v2(mgl_cu_ptr to, const void *from, size_t bytes, void *on) {
  item wanted = {.kind = COPY, .to = (void *)(uintptr_t)to, .from = from, .bytes = bytes};
  emu_lock();
  const bool pinned = emu_is_pinned(from);
  emu_unlock();
  if (!pinned) {
    wanted.staged = malloc(bytes > 0 ? bytes : 1);
    if (wanted.staged == NULL) {
      return EMU_OUT_OF_MEMORY;
    }
    memcpy(wanted.staged, from, bytes);
    wanted.from = wanted.staged;
  }
  return queue_one(on, wanted);
}

EMU_CALL cuMemcpyDtoHAsync_v2(void *to, mgl_cu_ptr from, size_t bytes, void *on) {
  const item wanted = {
      .kind = COPY, .to = to, .from = (const void *)(uintptr_t)from, .bytes = bytes};
  emu_lock();
  const bool pinned = emu_is_pinned(to);
  emu_unlock();
  mgl_cu_result result = queue_one(on, wanted);
  return result == EMU_OK && !pinned ? cuStreamSynchronize(on) : result;
}

// --- launches ------------------------------------------------------------------------------------

static mgl_cu_result launch(emu_function *f, item wanted, bool cooperative, void *on,
                            void **parameters) {
  const emu_kernel_facts facts = emu_kernel_describe(f->kernel);
  const uint32_t threads = wanted.block[0] * wanted.block[1] * wanted.block[2];
  const uint64_t blocks = (uint64_t)wanted.grid[0] * wanted.grid[1] * wanted.grid[2];
  wanted.kernel = f->kernel;
  wanted.most_blocks =
      emu_blocks_per_sm(f, threads, wanted.shared_bytes) * emu_setting("EMULATED_SMS", 4);
  if (blocks == 0 || threads == 0 || wanted.most_blocks == 0) {
    return EMU_INVALID_VALUE;
  }
  if (cooperative && blocks > wanted.most_blocks) {
    return EMU_TOO_LARGE;
  }
  wanted.parameters = calloc(1, parameter_bytes(f->kernel));
  if (wanted.parameters == NULL) {
    return EMU_OUT_OF_MEMORY;
  }
  uint8_t *at = wanted.parameters;
  for (uint32_t i = 0; i < facts.parameter_count; i++) {
    const size_t bytes = emu_kernel_parameter_bytes(f->kernel, i);
    memcpy(at, parameters[i], bytes);
    at += (bytes + 15) / 16 * 16;
  }
  return queue_one(on, wanted);
}

EMU_CALL cuLaunchKernel(void *function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                        unsigned block_x, unsigned block_y, unsigned block_z, unsigned smem_bytes,
                        void *on, void **parameters, void **extra) {
  (void)extra;
  const item wanted = {.kind = LAUNCH,
                       .grid = {grid_x, grid_y, grid_z},
                       .block = {block_x, block_y, block_z},
                       .shared_bytes = smem_bytes};
  return launch(function, wanted, false, on, parameters);
}

EMU_CALL cuLaunchCooperativeKernel(void *function, unsigned grid_x, unsigned grid_y,
                                   unsigned grid_z, unsigned block_x, unsigned block_y,
                                   unsigned block_z, unsigned smem_bytes, void *on,
                                   void **parameters) {
  const item wanted = {.kind = LAUNCH,
                       .grid = {grid_x, grid_y, grid_z},
                       .block = {block_x, block_y, block_z},
                       .shared_bytes = smem_bytes};
  return launch(function, wanted, true, on, parameters);
}

EMU_CALL cuLaunchKernelEx(const mgl_cu_launch_config *how, void *function, void **parameters,
                          void **extra) {
  item wanted = {.kind = LAUNCH,
                 .grid = {how->grid_x, how->grid_y, how->grid_z},
                 .block = {how->block_x, how->block_y, how->block_z},
                 .shared_bytes = how->smem_bytes};
  (void)extra;
  for (unsigned i = 0; i < how->attribute_count; i++) {
    if (how->attributes[i].id != MGL_CU_LAUNCH_PROGRAMMATIC) {
      return EMU_INVALID_VALUE;
    }
    wanted.programmatic = how->attributes[i].value != 0;
  }
  return launch(function, wanted, false, how->stream, parameters);
}

// --- graphs: lists of items, captured from one stream --------------------------------------------

EMU_CALL cuStreamBeginCapture_v2(void *which, int mode) {
  stream *s = which;
  (void)mode;
  if (s == NULL || s->capture != NULL) {
    return EMU_INVALID_VALUE;
  }
  s->capture = calloc(1, sizeof *s->capture);
  return s->capture != NULL ? EMU_OK : EMU_OUT_OF_MEMORY;
}

EMU_CALL cuStreamEndCapture(void *which, void **graph) {
  stream *s = which;
  *graph = s->capture;
  s->capture = NULL;
  return *graph != NULL ? EMU_OK : EMU_INVALID_VALUE;
}

EMU_CALL cuGraphDestroy(void *graph) {
  free_list(graph);
  free(graph);
  return EMU_OK;
}

EMU_CALL cuGraphExecDestroy(void *graph) {
  return cuGraphDestroy(graph);
}

EMU_CALL cuGraphDebugDotPrint(void *graph, const char *path, unsigned flags) {
  const list *l = graph;
  FILE *file = fopen(path, "w");
  uint32_t node = 0;
  (void)flags;
  if (file == NULL) {
    return EMU_INVALID_VALUE;
  }
  (void)fprintf(file, "digraph emulated {\n");
  for (const item *i = l->first; i != NULL; i = i->next, node++) {
    (void)fprintf(file, "  n%u [label=\"%.*s\"];\n", node, NAME_BYTES,
                  i->kind == LAUNCH ? emu_kernel_describe(i->kernel).name : "copy");
    if (node > 0) {
      (void)fprintf(file, "  n%u -> n%u;\n", node - 1, node);
    }
  }
  (void)fprintf(file, "}\n");
  return fclose(file) == 0 ? EMU_OK : EMU_INVALID_VALUE;
}

EMU_CALL cuGraphInstantiateWithFlags(void **out, void *graph, unsigned long long flags) {
  const list *from = graph;
  list *to = calloc(1, sizeof *to);
  (void)flags;
  for (const item *i = from->first; to != NULL && i != NULL; i = i->next) {
    item *copy = copy_item(i);
    if (copy == NULL) {
      (void)cuGraphDestroy(to);
      return EMU_OUT_OF_MEMORY;
    }
    append(to, copy);
  }
  *out = to;
  return to != NULL ? EMU_OK : EMU_OUT_OF_MEMORY;
}

EMU_CALL cuGraphLaunch(void *graph, void *on) {
  const list *l = graph;
  mgl_cu_result result = EMU_OK;
  emu_lock();
  for (const item *i = l->first; i != NULL && result == EMU_OK; i = i->next) {
    item *copy = copy_item(i);
    result = copy != NULL ? queue(stream_of(on), copy) : EMU_OUT_OF_MEMORY;
  }
  emu_unlock();
  notify(&work);
  return result;
}
