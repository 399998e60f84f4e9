#include "runtime/cuda_skeleton.h"

#include <string.h>
#include <time.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/text.h"
#include "runtime/protocol_check.h"

enum {
  DEVICE_ALIGNMENT = 256,
  POLL_NS = 50 * 1000,                // between two looks at a running launch
  ABORT_NS = 2 * 1000 * 1000 * 1000,  // a launch that was told to stop must end within this
};

// Offsets of the parts of the state block: what every launch starts afresh.
typedef struct state_layout {
  size_t run, workers, scheduler_queues, slots, counters, tokens, times, bytes;
  uint64_t jit_size, scheduler_size;  // slots of a queue
} state_layout;

// What of a task graph lies on the device.
typedef struct device_graph {
  mgl_cu_ptr tasks, events, aot_start, aot_tasks, ops, activations;
} device_graph;

struct mgl_cuda_skeleton {
  const mgl_cuda_device *device;
  mgl_cuda_skeleton_options options;
  const mgl_task_graph *graphs[MGL_MAX_GRAPHS];
  device_graph on_device[MGL_MAX_GRAPHS];
  uint32_t workers;
  uint32_t staging_bytes;  // of the widest row, as f32
  void *module;
  void *kernel;
  void *stream;         // the launch's
  void *abort_stream;   // for telling a running launch to stop
  mgl_cu_ptr *weights;  // [tensor_count]
  mgl_cu_ptr *blocks;   // everything allocated on the device
  size_t block_count, block_capacity;
  mgl_cu_ptr state;
  mgl_cu_ptr stream_buffer;
  state_layout layout;
  unsigned char *image;  // [layout.bytes] the state block on the host
  bool lost;             // a launch did not end: its memory must stay
};

// --- device memory -------------------------------------------------------------------------------

static mgl_status device_alloc(mgl_cuda_skeleton *s, size_t bytes, mgl_cu_ptr *out,
                               mgl_error *err) {
  void *blocks = s->blocks;
  mgl_status status =
      mgl_grow(&blocks, &s->block_capacity, s->block_count + 1, sizeof *s->blocks, err);
  s->blocks = blocks;
  MGL_TRY(status);
  const mgl_cuda_driver *driver = &s->device->driver;
  if (driver->memory_alloc(out, bytes > 0 ? bytes : 1) != 0) {
    size_t free_bytes = 0;
    size_t total_bytes = 0;
    (void)driver->memory_info(&free_bytes, &total_bytes);
    return mgl_error_set(err, MGL_ERR_MEMORY, "the GPU has no %zu bytes: %zu of %zu are free",
                         bytes, free_bytes, total_bytes);
  }
  s->blocks[s->block_count++] = *out;
  return MGL_OK;
}

static mgl_status upload(mgl_cuda_skeleton *s, const void *from, size_t bytes, mgl_cu_ptr *out,
                         mgl_error *err) {
  MGL_TRY(device_alloc(s, bytes, out, err));
  if (bytes > 0) {
    MGL_CUDA_TRY(&s->device->driver, copy_to_device, err, *out, from, bytes);
  }
  return MGL_OK;
}

static void *device_pointer(mgl_cu_ptr address) {
  return (void *)(uintptr_t)address;
}

// --- binding -------------------------------------------------------------------------------------

static mgl_status upload_weights(mgl_cuda_skeleton *s, mgl_error *err) {
  const mgl_graph *program = s->options.program;
  static const mgl_dim_values none = {0};
  for (size_t i = 0; i < program->tensor_count; i++) {
    const mgl_tensor *tensor = &program->tensors[i];
    if (tensor->placement != MGL_PLACE_WEIGHT) {
      continue;
    }
    if (tensor->rank == 2 && tensor->dtype != MGL_DTYPE_BF16) {
      return mgl_error_set(err, MGL_ERR_UNSUPPORTED, "weight \"%s\" is %s; matrices must be bf16",
                           tensor->name, mgl_dtype_name(tensor->dtype));
    }
    size_t bytes = (size_t)mgl_tensor_elements(tensor, &none) *
                   (tensor->rank == 2 ? sizeof(mgl_bf16) : sizeof(float));
    MGL_TRY(upload(s, s->options.weights[i], bytes, &s->weights[i], err));
  }
  return MGL_OK;
}

// Where a tensor lies on the device. Inputs are the plan's words in the state block.
static mgl_status tensor_address(const mgl_cuda_skeleton *s, uint32_t graph, uint32_t tensor_idx,
                                 mgl_cu_ptr *out, mgl_error *err) {
  const mgl_tensor *tensor = &s->options.program->tensors[tensor_idx];
  mgl_cu_ptr run = s->state + s->layout.run;
  switch (tensor->placement) {
    case MGL_PLACE_WEIGHT: *out = s->weights[tensor_idx]; return MGL_OK;
    case MGL_PLACE_ACTIVATION:
      *out = s->on_device[graph].activations + s->graphs[graph]->activation_offsets[tensor_idx];
      return MGL_OK;
    case MGL_PLACE_INPUT:
      if (tensor->dims[0].symbol == MGL_DIM_LOGIT_ROWS) {
        *out = run + offsetof(mgl_cuda_run, logit_row);
        return MGL_OK;
      }
      if (strcmp(tensor->name, "tokens") == 0) {
        *out = run + offsetof(mgl_cuda_run, token);
        return MGL_OK;
      }
      break;
    case MGL_PLACE_KV: break;
  }
  return mgl_error_set(err, MGL_ERR_UNSUPPORTED,
                       "tensor \"%s\": the skeleton knows no such input, and no KV cache",
                       tensor->name);
}

// The input of a product op that is its matrix; UINT32_MAX for other ops.
static uint32_t matrix_input(mgl_op_kind kind) {
  switch (kind) {
    case MGL_OP_LINEAR: return 1;
    case MGL_OP_LINEAR_ADD:
    case MGL_OP_GATE_UP: return 2;
    case MGL_OP_LOGITS: return 3;
    default: return UINT32_MAX;
  }
}

static bool is_known(mgl_op_kind kind) {
  return matrix_input(kind) != UINT32_MAX || kind == MGL_OP_EMBED || kind == MGL_OP_RMSNORM ||
         kind == MGL_OP_SILU_MUL || kind == MGL_OP_ADD;
}

static mgl_status bind_op(const mgl_cuda_skeleton *s, uint32_t graph, const mgl_op *op,
                          mgl_cuda_op *out, mgl_error *err) {
  const mgl_graph *program = s->options.program;
  const mgl_tensor *result = &program->tensors[op->output];
  if (!is_known(op->kind)) {
    return mgl_error_set(err, MGL_ERR_UNSUPPORTED, "\"%s\" is made by %s, which the skeleton lacks",
                         result->name, mgl_op_info_of(op->kind)->name);
  }
  uint32_t matrix = matrix_input(op->kind);
  uint32_t x = op->kind == MGL_OP_LINEAR_ADD ? 1 : 0;
  *out = (mgl_cuda_op){.kind = (uint32_t)op->kind,
                       .columns = (uint32_t)mgl_tensor_row_elements(result),
                       .rows = 1,
                       .x_bf16 = program->tensors[op->inputs[x]].dtype == MGL_DTYPE_BF16,
                       .out_bf16 = result->dtype == MGL_DTYPE_BF16,
                       .is_argmax = result->is_output && matrix != UINT32_MAX,
                       .eps = (float)op->attrs[MGL_ATTR_EPS]};
  out->width =
      matrix != UINT32_MAX ? program->tensors[op->inputs[matrix]].dims[1].number : out->columns;
  if (matrix != UINT32_MAX && (out->width % 8 != 0 || out->width > MGL_CUDA_MAX_WIDTH)) {
    return mgl_error_set(err, MGL_ERR_LIMIT,
                         "\"%s\" sums %u elements; the skeleton wants a multiple of 8 up to %d",
                         result->name, out->width, MGL_CUDA_MAX_WIDTH);
  }
  mgl_cu_ptr address = 0;
  for (uint32_t i = 0; i < op->input_count; i++) {
    MGL_TRY(tensor_address(s, graph, op->inputs[i], &address, err));
    out->inputs[i] = device_pointer(address);
  }
  MGL_TRY(tensor_address(s, graph, op->output, &address, err));
  out->output = device_pointer(address);
  return MGL_OK;
}

static mgl_status upload_graph(mgl_cuda_skeleton *s, uint32_t idx, mgl_error *err) {
  const mgl_task_graph *graph = s->graphs[idx];
  const mgl_graph *program = s->options.program;
  device_graph *to = &s->on_device[idx];
  MGL_TRY(upload(s, graph->tasks, graph->task_count * sizeof *graph->tasks, &to->tasks, err));
  MGL_TRY(upload(s, graph->events, graph->event_count * sizeof *graph->events, &to->events, err));
  MGL_TRY(upload(s, graph->aot_start, (graph->worker_count + 1) * sizeof *graph->aot_start,
                 &to->aot_start, err));
  MGL_TRY(upload(s, graph->aot_tasks,
                 graph->aot_start[graph->worker_count] * sizeof *graph->aot_tasks, &to->aot_tasks,
                 err));
  MGL_TRY(device_alloc(s, (size_t)graph->activation_bytes, &to->activations, err));
  // Poisoned, so that a value that no task wrote shows as NaN.
  MGL_CUDA_TRY(&s->device->driver, memory_set, err, to->activations, 0xff,
               graph->activation_bytes > 0 ? (size_t)graph->activation_bytes : 1);
  mgl_cuda_op *ops = mgl_alloc_zeroed(program->op_count, sizeof *ops);
  if (ops == NULL) {
    return mgl_error_set(err, MGL_ERR_MEMORY, "out of memory for %zu ops", program->op_count);
  }
  mgl_status status = MGL_OK;
  for (size_t i = 0; i < program->op_count && status == MGL_OK; i++) {
    status = bind_op(s, idx, &program->ops[i], &ops[i], err);
    uint32_t staging = ops[i].width * (uint32_t)sizeof(float);
    bool staged = matrix_input((mgl_op_kind)ops[i].kind) != UINT32_MAX;
    s->staging_bytes = staged && staging > s->staging_bytes ? staging : s->staging_bytes;
  }
  if (status == MGL_OK) {
    status = upload(s, ops, program->op_count * sizeof *ops, &to->ops, err);
  }
  mgl_free(ops);
  return status;
}

// --- the state of a launch -----------------------------------------------------------------------

// A task graph as the protocol sees it, with the host's pointers.
static mgl_graph_view host_view(const mgl_task_graph *graph) {
  mgl_graph_view view = {.tasks = graph->tasks,
                         .events = graph->events,
                         .aot_start = graph->aot_start,
                         .aot_tasks = graph->aot_tasks,
                         .task_count = graph->task_count,
                         .event_count = graph->event_count,
                         .ready_count = graph->ready_count,
                         .first_dependent = graph->event_count};
  for (uint32_t i = graph->event_count; i-- > 0;) {
    const mgl_event *event = &graph->events[i];
    if (event->type == MGL_EVENT_LAUNCH_DEPENDENT_TASKS &&
        (event->flags & MGL_EVENT_HAS_JIT) != 0) {
      view.first_dependent = i;
    }
  }
  return view;
}

static size_t reserve(state_layout *layout, size_t bytes) {
  size_t at = layout->bytes;
  layout->bytes += (bytes + DEVICE_ALIGNMENT - 1) / DEVICE_ALIGNMENT * DEVICE_ALIGNMENT;
  return at;
}

static void lay_out_state(mgl_cuda_skeleton *s) {
  mgl_graph_view views[MGL_MAX_GRAPHS];
  size_t counters = 0;
  state_layout *layout = &s->layout;
  for (uint32_t i = 0; i < s->options.graph_count; i++) {
    views[i] = host_view(s->graphs[i]);
    counters += views[i].event_count;
  }
  mgl_protocol_queue_sizes(views, s->options.graph_count, &layout->jit_size,
                           &layout->scheduler_size);
  size_t slots =
      (size_t)(layout->jit_size * s->workers + layout->scheduler_size * s->options.schedulers);
  layout->run = reserve(layout, sizeof(mgl_cuda_run));
  layout->workers = reserve(layout, s->workers * sizeof(mgl_worker_shared));
  layout->scheduler_queues = reserve(layout, s->options.schedulers * sizeof(mgl_queue));
  layout->slots = reserve(layout, slots * sizeof(mgl_queue_slot));
  layout->counters = reserve(layout, counters * sizeof(mgl_word));
  layout->tokens = reserve(layout, s->options.max_iterations * sizeof(int32_t));
  layout->times = reserve(layout, (s->options.max_iterations + (size_t)1) * sizeof(uint64_t));
}

// An empty queue in the image, its slots at *slot_at of the slots part.
static void make_queue(mgl_cuda_skeleton *s, mgl_queue *queue, uint64_t size, size_t *slot_at) {
  size_t offset = s->layout.slots + *slot_at * sizeof(mgl_queue_slot);
  mgl_queue_init(queue, (mgl_queue_slot *)(void *)(s->image + offset), size);
  queue->slots = device_pointer(s->state + offset);
  *slot_at += (size_t)size;
}

// Builds the state block of a launch on the host: what the device will find, with its pointers.
static void make_image(mgl_cuda_skeleton *s, const mgl_cuda_launch *launch) {
  const state_layout *layout = &s->layout;
  memset(s->image, 0, layout->bytes);
  mgl_cuda_run *run = (mgl_cuda_run *)(void *)(s->image + layout->run);
  mgl_protocol *p = &run->protocol;
  p->worker_count = s->workers;
  p->scheduler_count = s->options.schedulers;
  p->graph_count = s->options.graph_count;
  p->workers = device_pointer(s->state + layout->workers);
  p->scheduler_queues = device_pointer(s->state + layout->scheduler_queues);
  size_t counter = 0;
  for (uint32_t i = 0; i < s->options.graph_count; i++) {
    const device_graph *on_device = &s->on_device[i];
    mgl_graph_view view = host_view(s->graphs[i]);
    view.tasks = device_pointer(on_device->tasks);
    view.events = device_pointer(on_device->events);
    view.aot_start = device_pointer(on_device->aot_start);
    view.aot_tasks = device_pointer(on_device->aot_tasks);
    view.counters = device_pointer(s->state + layout->counters + counter * sizeof(mgl_word));
    counter += view.event_count;
    p->graphs[i] = view;
    run->ops[i] = device_pointer(on_device->ops);
  }
  size_t slot = 0;
  mgl_worker_shared *workers = (mgl_worker_shared *)(void *)(s->image + layout->workers);
  mgl_queue *queues = (mgl_queue *)(void *)(s->image + layout->scheduler_queues);
  for (uint32_t i = 0; i < s->workers; i++) {
    make_queue(s, &workers[i].jit, layout->jit_size, &slot);
  }
  for (uint32_t i = 0; i < s->options.schedulers; i++) {
    make_queue(s, &queues[i], layout->scheduler_size, &slot);
  }
  run->iterations = launch->iterations;
  run->scheduler_warps = s->options.scheduler_warps ? 1 : 0;
  run->stall_ns = launch->stall_ns;
  run->injection = (uint32_t)launch->injection;
  run->injection_task = launch->injection_task;
  run->injection_iteration = launch->injection_iteration;
  run->stream = device_pointer(s->stream_buffer);
  run->stream_bytes = s->options.stream_bytes;
  run->stream_pages = launch->stream_pages;
  run->tokens_out = device_pointer(s->state + layout->tokens);
  run->iteration_ns = device_pointer(s->state + layout->times);
  run->token = launch->first_token;
}

// --- create and destroy --------------------------------------------------------------------------

static mgl_status check_options(const mgl_cuda_device *device,
                                const mgl_cuda_skeleton_options *options, mgl_error *err) {
  if (options->graph_count == 0 || options->graph_count > MGL_MAX_GRAPHS ||
      options->max_iterations == 0 || options->max_iterations > MGL_SKELETON_MAX_ITERATIONS) {
    return mgl_error_set(
        err, MGL_ERR_ARGUMENT, "expected 1 to %d graphs and 1 to %d iterations, found %u and %u",
        MGL_MAX_GRAPHS, MGL_SKELETON_MAX_ITERATIONS, options->graph_count, options->max_iterations);
  }
  uint32_t workers = options->graphs[0]->worker_count;
  for (uint32_t i = 0; i < options->graph_count; i++) {
    const mgl_task_graph *graph = options->graphs[i];
    if (graph->worker_count != workers || graph->tokens != 1 ||
        graph->tensor_count != options->program->tensor_count) {
      return mgl_error_set(err, MGL_ERR_ARGUMENT,
                           "graph %u is for %u workers, %u tokens and %u tensors; expected %u, 1 "
                           "and %zu",
                           i, graph->worker_count, graph->tokens, graph->tensor_count, workers,
                           options->program->tensor_count);
    }
    MGL_TRY(mgl_protocol_check(graph, err));
    for (uint32_t j = 0; j < graph->task_count; j++) {
      const mgl_task *task = &graph->tasks[j];
      if ((task->flags & MGL_TASK_EMPTY) == 0 && task->op >= options->program->op_count) {
        return mgl_error_set(err, MGL_ERR_FORMAT, "task %u of graph %u names op %u of %zu", j, i,
                             task->op, options->program->op_count);
      }
    }
  }
  uint32_t blocks = workers + (options->scheduler_warps ? 0 : options->schedulers);
  if (blocks > device->sm_count || (options->scheduler_warps && options->schedulers > workers)) {
    return mgl_error_set(err, MGL_ERR_LIMIT,
                         "%u workers and %u schedulers do not fit on %u multiprocessors", workers,
                         options->schedulers, device->sm_count);
  }
  return MGL_OK;
}

static mgl_status create(mgl_cuda_skeleton *s, const void *cubin, mgl_error *err) {
  const mgl_cuda_driver *driver = &s->device->driver;
  const mgl_graph *program = s->options.program;
  MGL_CUDA_TRY(driver, context_set, err, s->device->context);
  MGL_CUDA_TRY(driver, module_load, err, &s->module, cubin);
  MGL_CUDA_TRY(driver, module_function, err, &s->kernel, s->module, "mgl_megakernel");
  MGL_CUDA_TRY(driver, stream_create, err, &s->stream, MGL_CU_STREAM_NON_BLOCKING);
  MGL_CUDA_TRY(driver, stream_create, err, &s->abort_stream, MGL_CU_STREAM_NON_BLOCKING);
  lay_out_state(s);
  s->image = mgl_alloc(s->layout.bytes);
  s->weights = mgl_alloc_zeroed(program->tensor_count, sizeof *s->weights);
  if (s->image == NULL || s->weights == NULL) {
    return mgl_error_set(err, MGL_ERR_MEMORY, "out of memory for a skeleton of %zu tensors",
                         program->tensor_count);
  }
  MGL_TRY(device_alloc(s, s->layout.bytes, &s->state, err));
  MGL_TRY(upload_weights(s, err));
  for (uint32_t i = 0; i < s->options.graph_count; i++) {
    MGL_TRY(upload_graph(s, i, err));
  }
  if (s->options.stream_bytes > 0) {
    MGL_TRY(device_alloc(s, (size_t)s->options.stream_bytes, &s->stream_buffer, err));
    MGL_CUDA_TRY(driver, memory_set, err, s->stream_buffer, 0x5a, (size_t)s->options.stream_bytes);
  }
  // Copies and fills return before they are done, and launches run on a stream that does not wait
  // for them.
  return mgl_cuda_check(driver, driver->context_synchronize(), "upload", err);
}

mgl_status mgl_cuda_skeleton_create(const mgl_cuda_device *device, const void *cubin,
                                    const mgl_cuda_skeleton_options *options,
                                    mgl_cuda_skeleton **out, mgl_error *err) {
  *out = NULL;
  MGL_TRY(check_options(device, options, err));
  mgl_cuda_skeleton *s = mgl_alloc_zeroed(1, sizeof *s);
  if (s == NULL) {
    return mgl_error_set(err, MGL_ERR_MEMORY, "out of memory for a skeleton");
  }
  s->device = device;
  s->options = *options;
  s->workers = options->graphs[0]->worker_count;
  memcpy(s->graphs, options->graphs, options->graph_count * sizeof *s->graphs);
  mgl_status status = create(s, cubin, err);
  if (status != MGL_OK) {
    mgl_cuda_skeleton_destroy(s);
    return status;
  }
  *out = s;
  return MGL_OK;
}

void mgl_cuda_skeleton_destroy(mgl_cuda_skeleton *s) {
  if (s == NULL) {
    return;
  }
  const mgl_cuda_driver *driver = &s->device->driver;
  // A kernel that did not end may still use its memory; freeing would wait for it for ever.
  if (!s->lost) {
    for (size_t i = 0; i < s->block_count; i++) {
      (void)driver->memory_free(s->blocks[i]);
    }
    if (s->stream != NULL) {
      (void)driver->stream_destroy(s->stream);
    }
    if (s->abort_stream != NULL) {
      (void)driver->stream_destroy(s->abort_stream);
    }
    if (s->module != NULL) {
      (void)driver->module_unload(s->module);
    }
  }
  mgl_free(s->blocks);
  mgl_free(s->weights);
  mgl_free(s->image);
  mgl_free(s);
}

// --- faults --------------------------------------------------------------------------------------

// Appends what a task is: "task 12 (linear "3.down", units 16 to 32)".
static void describe_task(const mgl_cuda_skeleton *s, uint32_t graph_idx, uint32_t task_idx,
                          mgl_text *text) {
  const mgl_task *task = &s->graphs[graph_idx]->tasks[task_idx];
  if (task->op == MGL_NO_OP) {
    mgl_text_format(text, "task %u (empty)", task_idx);
    return;
  }
  const mgl_op *op = &s->options.program->ops[task->op];
  mgl_text_format(text, "task %u (%s \"%s\", units %u to %u)", task_idx,
                  mgl_op_info_of(op->kind)->name, s->options.program->tensors[op->output].name,
                  task->begin, task->end);
}

static uint64_t counter_of(const mgl_cuda_skeleton *s, uint32_t graph, uint32_t event) {
  size_t at = event;
  for (uint32_t i = 0; i < graph; i++) {
    at += s->graphs[i]->event_count;
  }
  const mgl_word *counters = (const mgl_word *)(const void *)(s->image + s->layout.counters);
  return mgl_load_relaxed(&counters[at]);
}

static bool is_complete(const mgl_cuda_skeleton *s, uint32_t graph, uint32_t event, uint64_t run) {
  return event == MGL_NO_EVENT ||
         s->graphs[graph]->events[event].type == MGL_EVENT_LAUNCH_DEPENDENT_TASKS ||
         counter_of(s, graph, event) >= s->graphs[graph]->events[event].trigger_count * run;
}

// Nothing runs and something waits: a task that could run has not triggered its event. The first in
// linear order is named, with what its event has got.
static void describe_lost_trigger(const mgl_cuda_skeleton *s, uint32_t graph_idx, mgl_text *text) {
  const mgl_task_graph *graph = s->graphs[graph_idx];
  const mgl_cuda_run *run = (const mgl_cuda_run *)(const void *)(s->image + s->layout.run);
  uint64_t k = run->protocol.graph_runs[graph_idx];
  for (uint32_t i = 0; i < graph->task_count; i++) {
    const mgl_task *task = &graph->tasks[i];
    if ((task->flags & MGL_TASK_EMPTY) != 0 || is_complete(s, graph_idx, task->trigger_event, k) ||
        !is_complete(s, graph_idx, task->dependent_event, k)) {
      continue;
    }
    const mgl_event *event = &graph->events[task->trigger_event];
    uint64_t missing = event->trigger_count * k - counter_of(s, graph_idx, task->trigger_event);
    mgl_text_append_string(text, "; ");
    describe_task(s, graph_idx, i, text);
    mgl_text_format(text,
                    "%s could run and did not trigger event %u, which lacks %llu of %u triggers",
                    event->trigger_count > 1 ? " or one beside it" : "", task->trigger_event,
                    (unsigned long long)missing, event->trigger_count);
    return;
  }
}

static mgl_status describe_fault(const mgl_cuda_skeleton *s, const mgl_cuda_launch *launch,
                                 mgl_error *err) {
  static const char *const names[] = {
      [MGL_FAULT_NONE] = "none",
      [MGL_FAULT_STUCK] = "nothing makes progress",
      [MGL_FAULT_QUEUE_FULL] = "a queue is too small",
      [MGL_FAULT_PENDING] = "too many empty tasks follow each other",
      [MGL_FAULT_STALE_ID] = "a queued task is of another iteration",
      [MGL_FAULT_PLAN] = "the plan names a graph that does not exist",
  };
  const mgl_cuda_run *run = (const mgl_cuda_run *)(const void *)(s->image + s->layout.run);
  uint64_t fault = mgl_load_relaxed(&run->protocol.fault);
  uint64_t stall = mgl_load_relaxed(&run->stall);
  if (fault == MGL_FAULT_NONE) {
    return MGL_OK;
  }
  uint32_t graph = mgl_id_graph(stall);
  uint32_t task = mgl_id_index(stall);
  uint32_t worker = (uint32_t)(stall >> 32) & 0xffff;
  uint64_t iteration = mgl_load_relaxed(&run->protocol.published);
  mgl_text text = {0};
  const char *name = fault < sizeof names / sizeof names[0] ? names[fault] : "unknown";
  mgl_text_format(&text, "GPU fault in iteration %llu: ",
                  (unsigned long long)(iteration > 0 ? iteration - 1 : 0));
  if (stall >> 48 != MGL_CUDA_STALL_NONE) {
    mgl_text_format(&text, "no progress for %.2f s: ", (double)launch->stall_ns / 1e9);
  } else if (fault == MGL_FAULT_STUCK) {  // nobody on the device raised it
    mgl_text_format(&text, "the host ended the launch after %.2f s, while tasks made progress",
                    (double)launch->deadline_ns / 1e9);
  } else {
    mgl_text_append_string(&text, name);
  }
  switch (stall >> 48) {
    case MGL_CUDA_STALL_RUNNING:
      describe_task(s, graph, task, &text);
      mgl_text_format(&text, " runs on worker %u and does not end; event %u waits for it", worker,
                      s->graphs[graph]->tasks[task].trigger_event);
      break;
    case MGL_CUDA_STALL_WAITING:
      describe_task(s, graph, task, &text);
      mgl_text_format(&text, " waits on worker %u for event %u", worker,
                      s->graphs[graph]->tasks[task].dependent_event);
      describe_lost_trigger(s, graph, &text);
      break;
    case MGL_CUDA_STALL_IDLE:
      mgl_text_format(&text, "worker %u found nothing that runs", worker);
      describe_lost_trigger(s, (uint32_t)(mgl_load_relaxed(&run->protocol.info) >> 1) & 0x7fff,
                            &text);
      break;
    default: break;
  }
  mgl_status status = mgl_text_check(&text, err);
  if (status == MGL_OK) {
    status = mgl_error_set(err, MGL_ERR_INTERNAL, "%s", text.data);
  }
  mgl_text_free(&text);
  return status;
}

// --- launching -----------------------------------------------------------------------------------

static mgl_status wait_until(mgl_cuda_skeleton *s, uint64_t end_ns, bool *ended, mgl_error *err) {
  const mgl_cuda_driver *driver = &s->device->driver;
  for (;;) {
    mgl_cu_result code = driver->stream_query(s->stream);
    if (code != MGL_CU_NOT_READY) {
      *ended = true;
      return mgl_cuda_check(driver, code, "launch", err);
    }
    if (mgl_clock_ns() > end_ns) {
      *ended = false;
      return MGL_OK;
    }
    (void)nanosleep(&(struct timespec){.tv_nsec = POLL_NS}, NULL);
  }
}

// Waits for the launch; past its deadline, raises the fault from outside and waits once more.
static mgl_status wait_for_end(mgl_cuda_skeleton *s, const mgl_cuda_launch *launch,
                               mgl_error *err) {
  bool ended = false;
  MGL_TRY(wait_until(s, mgl_clock_ns() + launch->deadline_ns, &ended, err));
  if (ended) {
    return MGL_OK;
  }
  static const uint64_t stuck = MGL_FAULT_STUCK;
  mgl_cu_ptr fault =
      s->state + s->layout.run + offsetof(mgl_cuda_run, protocol) + offsetof(mgl_protocol, fault);
  MGL_CUDA_TRY(&s->device->driver, copy_to_device_async, err, fault, &stuck, sizeof stuck,
               s->abort_stream);
  MGL_TRY(wait_until(s, mgl_clock_ns() + (uint64_t)ABORT_NS, &ended, err));
  if (!ended) {
    s->lost = true;
    return mgl_error_set(err, MGL_ERR_INTERNAL,
                         "the megakernel did not end after %.1f s and does not answer; the process "
                         "must be ended",
                         (double)launch->deadline_ns / 1e9);
  }
  return MGL_OK;
}

static mgl_status launch_kernel(mgl_cuda_skeleton *s, const mgl_cuda_launch *launch,
                                mgl_error *err) {
  const mgl_cuda_driver *driver = &s->device->driver;
  uint32_t smem = s->staging_bytes + launch->stream_pages * MGL_CUDA_STREAM_PAGE_BYTES;
  unsigned blocks = s->workers + (s->options.scheduler_warps ? 0 : s->options.schedulers);
  mgl_cu_ptr run = s->state + s->layout.run;
  void *parameters[] = {&run};
  MGL_CUDA_TRY(driver, function_set, err, s->kernel, MGL_CU_FUNC_MAX_DYNAMIC_SMEM, (int)smem);
  MGL_CUDA_TRY(driver, launch_cooperative, err, s->kernel, blocks, 1, 1, MGL_CUDA_THREADS, 1, 1,
               smem, s->stream, parameters);
  return MGL_OK;
}

mgl_status mgl_cuda_skeleton_run(mgl_cuda_skeleton *s, const mgl_cuda_launch *launch,
                                 mgl_cuda_outcome *outcome, mgl_error *err) {
  const mgl_cuda_driver *driver = &s->device->driver;
  const state_layout *layout = &s->layout;
  if (launch->iterations == 0 || launch->iterations > s->options.max_iterations ||
      launch->stream_pages > MGL_CUDA_MAX_STREAM_PAGES ||
      (launch->stream_pages > 0 && s->options.stream_bytes < MGL_CUDA_STREAM_PAGE_BYTES) ||
      s->lost) {
    return mgl_error_set(err, MGL_ERR_ARGUMENT,
                         "a launch of %u iterations (up to %u) with %u stream pages cannot be made",
                         launch->iterations, s->options.max_iterations, launch->stream_pages);
  }
  make_image(s, launch);
  MGL_CUDA_TRY(driver, copy_to_device, err, s->state, s->image, layout->bytes);
  MGL_TRY(mgl_cuda_check(driver, driver->context_synchronize(), "upload", err));
  uint64_t start = mgl_clock_ns();
  MGL_TRY(launch_kernel(s, launch, err));
  MGL_TRY(wait_for_end(s, launch, err));
  outcome->host_ns = mgl_clock_ns() - start;
  MGL_CUDA_TRY(driver, copy_to_host, err, s->image, s->state, layout->bytes);
  MGL_TRY(describe_fault(s, launch, err));
  const mgl_cuda_run *run = (const mgl_cuda_run *)(const void *)(s->image + layout->run);
  memcpy(outcome->tokens, s->image + layout->tokens, launch->iterations * sizeof(int32_t));
  memcpy(outcome->iteration_ns, s->image + layout->times,
         (launch->iterations + (size_t)1) * sizeof(uint64_t));
  outcome->streamed_bytes = mgl_load_relaxed(&run->streamed_pages) * MGL_CUDA_STREAM_PAGE_BYTES;
  return MGL_OK;
}

mgl_status mgl_cuda_skeleton_read(mgl_cuda_skeleton *s, uint32_t graph, const char *name,
                                  float *out, size_t count, mgl_error *err) {
  uint32_t tensor = mgl_graph_find(s->options.program, name);
  if (tensor == MGL_NO_TENSOR || graph >= s->options.graph_count ||
      s->options.program->tensors[tensor].placement != MGL_PLACE_ACTIVATION ||
      s->options.program->tensors[tensor].dtype != MGL_DTYPE_F32) {
    return mgl_error_set(err, MGL_ERR_ARGUMENT, "\"%s\" is no f32 activation", name);
  }
  mgl_cu_ptr address = 0;
  MGL_TRY(tensor_address(s, graph, tensor, &address, err));
  MGL_CUDA_TRY(&s->device->driver, copy_to_host, err, out, address, count * sizeof *out);
  return MGL_OK;
}
