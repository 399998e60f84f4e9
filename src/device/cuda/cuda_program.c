// Making a GPU program: compile, plan memory, allocate, fill. Nothing is taken on the GPU before it
// is known that everything fits.
#include "device/cuda/cuda_program.h"

#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "device/cuda/cuda_ceiling.h"
#include "device/cuda/cuda_custom.h"
#include "device/cuda/cuda_elements.h"
#include "device/cuda/cuda_program_parts.h"
#include "device/debug_dump.h"
#include "lower/schedule.h"
#include "lower/words.h"
#include "task/protocol_check.h"

_Static_assert(1 << (MGL_CUDA_MAX_PROGRAM_GRAPHS - 1) == MGL_CUDA_MAX_TOKENS,
               "a graph for every token count");

// --- options -------------------------------------------------------------------------------------

static mgl_status check_range(const char *what, uint64_t value, uint64_t least, uint64_t most,
                              mgl_error *err) {
  if (value >= least && value <= most) {
    return MGL_OK;
  }
  return mgl_error_set(err, MGL_ERR_LIMIT, "%s: expected %llu to %llu, found %llu", what,
                       (unsigned long long)least, (unsigned long long)most,
                       (unsigned long long)value);
}

static mgl_status set_sizes(mgl_cuda_program *p, mgl_error *err) {
  mgl_sizes *s = &p->sizes;
  MGL_TRY(
      check_range("tokens of an iteration", s->limits.tokens, 1, MGL_MAX_ITERATION_TOKENS, err));
  MGL_TRY(check_range("sequences", s->sequences, 1, MGL_MAX_SEQUENCES, err));
  MGL_TRY(check_range("KV pages of a sequence", s->limits.pages_per_sequence, 1,
                      MGL_MAX_CONTEXT / MGL_CUDA_KV_PAGE_TOKENS, err));
  uint64_t pages = (uint64_t)s->sequences * s->limits.pages_per_sequence;
  pages = s->page_count == 0 ? pages : s->page_count;
  MGL_TRY(check_range("KV pages", pages, 1, INT32_MAX / MGL_CUDA_KV_PAGE_TOKENS - 1, err));
  s->page_count = (uint32_t)pages;
  if (s->logit_rows == 0) {
    s->logit_rows = s->sequences < s->limits.tokens ? s->sequences : s->limits.tokens;
  }
  MGL_TRY(check_range("rows with logits", s->logit_rows, 1, s->limits.tokens, err));
  mgl_cuda_wide_set_options(p);
  return MGL_OK;
}

static mgl_status set_options(mgl_cuda_program *p, const mgl_cuda_program_options *options,
                              mgl_error *err) {
  const mgl_build *build = &p->build;
  p->options = options;
  p->get_code = options->get_code;
  p->ranks = options->ranks;
  p->build = options->build;
  p->sizes = options->sizes;
  MGL_TRY(set_sizes(p, err));
  if (build->compilation != NULL) {
    mgl_compilation_sizes(build->compilation, p->sizes.limits.tokens, &p->graph_sizes);
  }
  MGL_TRY(check_range("spans of the trace", build->trace_tasks, 0, 1 << 20, err));
  p->trace_spans =
      build->trace_tasks == 0 ? 0 : (uint32_t)mgl_power_of_two_at_least(build->trace_tasks);
  uint32_t sms = p->device->sm_count;
  MGL_TRY(check_range("schedulers", build->schedulers, 0, sms - 1, err));
  uint32_t blocks = mgl_cuda_scheduler_blocks(p);
  MGL_TRY(check_range("workers", p->sizes.workers, 0, sms - blocks, err));
  p->workers = p->sizes.workers == 0 ? sms - blocks : p->sizes.workers;
  p->sizes.workers = p->workers;
  return check_range(
      "schedulers", build->schedulers, 0,
      build->scheduler_warps ? p->workers - 1 : MGL_CUDA_BLOCK_SCHEDULERS * (sms - p->workers),
      err);
}

// --- task graphs ---------------------------------------------------------------------------------

// Whether weights are streamed for a JIT task.
static bool streams_jit(const mgl_task_graph *graph) {
  for (uint32_t i = 0; i < graph->task_count; i++) {
    const mgl_task *task = &graph->tasks[i];
    if ((task->flags & MGL_TASK_JIT) != 0 && mgl_op_kind_is_linear(task->type)) {
      return true;
    }
  }
  return false;
}

static mgl_status check_graph(const mgl_cuda_program *p, const mgl_task_graph *graph,
                              mgl_error *err) {
  MGL_TRY(mgl_protocol_check(graph, err));
  for (uint32_t i = 0; i < graph->task_count; i++) {
    const mgl_task *task = &graph->tasks[i];
    if ((task->flags & MGL_TASK_EMPTY) == 0 &&
        (task->op >= p->program->op_count ||
         task->type != (uint16_t)p->program->ops[task->op].kind)) {
      return mgl_error_set(err, MGL_ERR_INTERNAL, "task %u names op %u of %zu and type %u", i,
                           task->op, p->program->op_count, task->type);
    }
  }
  return MGL_OK;
}

// One from a file: what will run of it is proven from the program.
static mgl_status verify_given(const mgl_cuda_program *p, const mgl_task_graph *graph,
                               mgl_error *err) {
  bool words = !p->build.events_only && !p->build.coarse && mgl_words_carry(p->program, graph);
  mgl_schedule *schedule = NULL;
  MGL_TRY(mgl_lower_graph(p->program, graph, words ? MGL_LOWER_WORDS : MGL_LOWER_TASKS, &schedule,
                          err));
  mgl_status status = mgl_schedule_verify(p->program, schedule, err);
  mgl_schedule_destroy(schedule);
  return status;
}

static mgl_status compile_graphs(mgl_cuda_program *p, mgl_error *err) {
  MGL_TRY(mgl_fuse_ops_cuda(p->options->program, &p->program, err));
  MGL_TRY(mgl_packed_check(p->program, err));
  p->packings = mgl_packed_kinds(p->program);
  p->page_bytes = mgl_packed_page_bytes(p->program);
  MGL_TRY(mgl_cuda_model_of(p->program, &p->model, err));
  char name[64];
  MGL_TRY(mgl_debug_dump_program(&p->build, "fused.txt", p->program, err));
  uint32_t count = mgl_cuda_graph_for(p->sizes.limits.tokens) + 1;
  MGL_TRY(mgl_build_take_given(&p->build, &p->sizes, MGL_TARGET_CUDA, p->program, p->graphs, count,
                               err));
  for (uint32_t i = 0; i < count; i++) {
    mgl_compile_options compile = mgl_build_compile(&p->build, &p->sizes, MGL_TARGET_CUDA, 1u << i);
    const bool is_given = p->graphs[i] != NULL;
    if (!is_given) {
      MGL_TRY(mgl_compile(p->program, &compile, &p->graphs[i], NULL, err));
    }
    p->graph_count = i + 1;
    (void)snprintf(name, sizeof name, "MEGA-%u.graph-0.json", 1u << i);
    MGL_TRY(mgl_debug_dump_graph(&p->build, name, p->program, p->graphs[i], err));
    mgl_status status = check_graph(p, p->graphs[i], err);
    if (status == MGL_OK && is_given) {
      status = verify_given(p, p->graphs[i], err);
    }
    if (status != MGL_OK) {
      mgl_error_prefix(err, "the task graph for %u tokens", 1u << i);
      return status;
    }
    p->has_jit = p->has_jit || mgl_protocol_jit_tasks(p->graphs[i], NULL) > 0;
    p->streams_jit = p->streams_jit || streams_jit(p->graphs[i]);
  }
  if (p->has_jit && (p->packings >> 1 != 0 || p->model.experts.count != 0)) {
    return mgl_error_set(
        err, MGL_ERR_UNSUPPORTED,
        "linears of quantised weights and of experts run in their worker's list on a GPU: leave "
        "out what makes their tasks just-in-time ones");
  }
  return MGL_OK;
}

// --- device code ---------------------------------------------------------------------------------

// Makes a module of the code, which it frees.
static mgl_status load_module(mgl_cuda_program *p, mgl_cuda_code *code, void **module,
                              mgl_cuda_usage *usage, mgl_error *err) {
  const mgl_cuda_driver *driver = &p->device->driver;
  mgl_status status = MGL_CUDA_CALL(driver, module_load, err, module, code->cubin);
  if (usage != NULL) {
    *usage = code->usage;
  }
  if (p->code_note[0] == 0) {
    memcpy(p->code_note, code->note, sizeof p->code_note);
  }
  p->compiled = p->compiled || !code->cached;
  mgl_free(code->cubin);
  return status;
}

mgl_status mgl_cuda_load_modules(mgl_cuda_program *p, const mgl_cuda_module *modules, size_t count,
                                 mgl_error *err) {
  mgl_cuda_shape shape = {.head_dim = p->model.head_dim,
                          .group = p->model.group,
                          .trace = p->trace_spans > 0,
                          .packings = p->packings,
                          .groups_of_32 = mgl_packed_has_group(p->program, 32),
                          .groups_of_64 = mgl_packed_has_group(p->program, 64),
                          .page_bytes = p->page_bytes,
                          .experts = p->model.experts,
                          .extras = p->model.extras,
                          .ranks = p->build.ranks};
  mgl_cuda_code_function *get = p->get_code;
  mgl_cuda_code_wish wishes[MGL_CUDA_MAX_CODES];
  mgl_text text = {0};
  mgl_cuda_custom_text(p->program, &text);
  mgl_status status = mgl_text_check(&text, err);
  const mgl_cuda_source customs = {.name = MGL_CUDA_CUSTOM_DISPATCH, .text = text.data};
  shape.custom = text.data != NULL ? &customs : NULL;
  for (size_t i = 0; i < count; i++) {
    wishes[i] = (mgl_cuda_code_wish){.name = modules[i].name, .kernel = modules[i].kernel};
  }
  if (status == MGL_OK) {
    status = mgl_cuda_code_get_all(p->device, &shape, get != NULL ? get : mgl_cuda_code_get, wishes,
                                   count, err);
  }
  mgl_text_free(&text);
  if (status != MGL_OK && shape.custom != NULL) {  // most likely their author's error
    status = status == MGL_ERR_INTERNAL ? MGL_ERR_ARGUMENT : status;
    mgl_error_prefix(err, "with custom ops");
  }
  MGL_TRY(status);
  for (size_t i = 0; i < count; i++) {
    if (status == MGL_OK) {
      status = load_module(p, &wishes[i].code, modules[i].module, modules[i].usage, err);
    } else {
      mgl_free(wishes[i].code.cubin);
    }
  }
  return status;
}

// The smem pages that fit beside the rest of a block.
static mgl_status set_shared_memory(mgl_cuda_program *p, mgl_error *err) {
  const mgl_cuda_driver *driver = &p->device->driver;
  uint32_t fixed = MGL_CUDA_BLOCK_BYTES + MGL_CUDA_SCRATCH_BYTES + p->usage.static_smem_bytes;
  uint32_t all = p->device->smem_per_block_bytes;
  uint32_t pages = all > fixed ? (all - fixed) / p->page_bytes : 0;
  if (pages < 2) {
    return mgl_error_set(err, MGL_ERR_UNSUPPORTED,
                         "%s gives a block %u bytes of shared memory; at least %u are needed",
                         p->device->name, all, fixed + 2 * p->page_bytes);
  }
  p->smem_pages = pages < MGL_CUDA_MAX_PAGES ? pages : MGL_CUDA_MAX_PAGES;
  uint32_t bytes = MGL_CUDA_BLOCK_BYTES + MGL_CUDA_SCRATCH_BYTES + p->smem_pages * p->page_bytes;
  int blocks = 0;
  MGL_CUDA_TRY(driver, function_set, err, p->kernel, MGL_CU_FUNC_MAX_DYNAMIC_SMEM, (int)bytes);
  MGL_CUDA_TRY(driver, blocks_per_sm, err, &blocks, p->kernel, MGL_CUDA_THREADS, bytes);
  if (blocks < 1) {
    return mgl_error_set(err, MGL_ERR_UNSUPPORTED,
                         "a block of the megakernel (%d threads, %u registers each, %u bytes of "
                         "shared memory) does not fit on a multiprocessor of %s",
                         MGL_CUDA_THREADS, p->usage.registers, bytes, p->device->name);
  }
  return MGL_OK;
}

static mgl_status load_code(mgl_cuda_program *p, mgl_error *err) {
  const mgl_cuda_driver *driver = &p->device->driver;
  mgl_cuda_module modules[MGL_CUDA_MAX_CODES] = {
      {"kernels/cuda/megakernel.cu", "mgl_megakernel", &p->module, &p->usage},
      {"kernels/cuda/weights.cu", "mgl_pack_weights", &p->weights_module, NULL}};
  size_t count = 2 + mgl_cuda_wide_modules(p, modules + 2);
  MGL_TRY(mgl_cuda_load_modules(p, modules, count, err));
  MGL_CUDA_TRY(driver, module_function, err, &p->kernel, p->module, "mgl_megakernel");
  MGL_TRY(set_shared_memory(p, err));
  MGL_CUDA_TRY(driver, stream_create, err, &p->stream, MGL_CU_STREAM_NON_BLOCKING);
  return MGL_CUDA_CALL(driver, stream_create, err, &p->abort_stream, MGL_CU_STREAM_NON_BLOCKING);
}

// --- memory --------------------------------------------------------------------------------------

static mgl_status plan_memory(mgl_cuda_program *p, uint64_t *out_free_bytes, mgl_error *err) {
  const mgl_sizes *all = &p->sizes;
  uint64_t planner_bytes = 0;
  MGL_TRY(mgl_cuda_feed_limits(p, &planner_bytes, err));
  mgl_cuda_sizes sizes = {
      .graphs = (const mgl_task_graph *const *)p->graphs,
      .graph_count = p->graph_count,
      .workers = p->workers,
      .schedulers = p->build.schedulers,
      .iteration_tokens = all->limits.tokens,
      .sequences = all->sequences < all->limits.tokens ? all->sequences : all->limits.tokens,
      .slots = p->feeding.slot_count,
      .planner_bytes = planner_bytes,
      .pages_per_sequence = all->limits.pages_per_sequence,
      .page_count = all->page_count,
      .trace_spans = p->trace_spans,
      .keep_activations = p->options->keep_activations,
      .events_only = p->build.events_only || p->build.coarse,
      .staging = p->options->checkpoint != NULL || p->build.routing != MGL_ROUTING_UNIFORM,
      .ranks = p->build.ranks};
  size_t free_bytes = 0;
  size_t total_bytes = 0;
  MGL_TRY(mgl_cuda_layout_make(p->program, &p->model, &sizes, &p->layout, err));
  MGL_TRY(mgl_cuda_wide_prepare(p, err));
  MGL_CUDA_TRY(&p->device->driver, memory_info, err, &free_bytes, &total_bytes);
  *out_free_bytes = free_bytes;
  return MGL_OK;
}

// What the other ranks see, in one block: its parts lie at the same offsets on all of them.
static mgl_status allocate_shared(mgl_cuda_program *p, mgl_error *err) {
  uint64_t offsets[MGL_CUDA_MEMORY_COUNT];
  uint64_t bytes = 0;
  for (uint32_t i = 0; i < MGL_CUDA_MEMORY_COUNT; i++) {
    bool is_shared = mgl_cuda_memory_is_shared((mgl_cuda_memory_kind)i);
    offsets[i] = mgl_cuda_take(&bytes, is_shared ? p->layout.bytes[i] : 0);
  }
  MGL_TRY(mgl_cuda_peers_create(p->device, p->ranks, (size_t)bytes, &p->peers, err));
  for (uint32_t i = 0; i < MGL_CUDA_MEMORY_COUNT; i++) {
    if (mgl_cuda_memory_is_shared((mgl_cuda_memory_kind)i)) {
      p->memory[i] = p->peers.at[p->peers.rank] + offsets[i];
    }
  }
  return MGL_OK;
}

static mgl_status allocate(mgl_cuda_program *p, mgl_error *err) {
  const mgl_cuda_driver *driver = &p->device->driver;
  if (p->ranks != NULL) {
    MGL_TRY(allocate_shared(p, err));
  }
  for (uint32_t i = 0; i < MGL_CUDA_MEMORY_COUNT; i++) {
    size_t bytes = (size_t)p->layout.bytes[i];
    if (bytes > 0 && p->memory[i] == 0 && driver->memory_alloc(&p->memory[i], bytes) != 0) {
      p->memory[i] = 0;
      return mgl_error_set(err, MGL_ERR_MEMORY, "the GPU refuses %zu bytes for the %s", bytes,
                           mgl_cuda_memory_name((mgl_cuda_memory_kind)i));
    }
  }
  unsigned flags = MGL_CU_HOST_ALLOC_PORTABLE | MGL_CU_HOST_ALLOC_MAPPED;
  void *pinned = NULL;
  MGL_CUDA_TRY(driver, host_alloc, err, &pinned, sizeof *p->fault_word, flags);
  p->fault_word = pinned;
  // Pinned, as it is copied in both directions wherever the narrow class takes over from the wide
  // one (docs/log/213).
  MGL_CUDA_TRY(driver, host_alloc, err, &pinned, (size_t)p->layout.state.image_bytes, flags);
  p->image = memset(pinned, 0, (size_t)p->layout.state.image_bytes);
  return mgl_cuda_feed_create(p, err);
}

// Clears memory that is read before it is written: results must not depend on who had it before.
static mgl_status clear(mgl_cuda_program *p, mgl_error *err) {
  static const mgl_cuda_memory_kind kinds[] = {
      MGL_CUDA_MEMORY_KV,    MGL_CUDA_MEMORY_ACTIVATIONS, MGL_CUDA_MEMORY_PARTIALS,
      MGL_CUDA_MEMORY_STATE, MGL_CUDA_MEMORY_TOKENS,      MGL_CUDA_MEMORY_PLANNER};
  for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
    bool state = kinds[i] == MGL_CUDA_MEMORY_STATE || kinds[i] == MGL_CUDA_MEMORY_TOKENS ||
                 kinds[i] == MGL_CUDA_MEMORY_PLANNER;
    unsigned char value = p->options->poison && !state ? 0xff : 0;
    if (p->layout.bytes[kinds[i]] > 0) {
      MGL_CUDA_TRY(&p->device->driver, memory_set, err, p->memory[kinds[i]], value,
                   (size_t)p->layout.bytes[kinds[i]]);
    }
  }
  return MGL_OK;
}

static mgl_status copy_descriptors(mgl_cuda_program *p, uint64_t offset, const void *from,
                                   size_t bytes, mgl_error *err) {
  if (bytes > 0) {
    MGL_CUDA_TRY(&p->device->driver, copy_to_device, err,
                 p->memory[MGL_CUDA_MEMORY_DESCRIPTORS] + offset, from, bytes);
  }
  return MGL_OK;
}

static mgl_status upload_customs(mgl_cuda_program *p, uint32_t idx, mgl_error *err) {
  const mgl_cuda_addresses addresses = {p->program, &p->layout, p->memory, p->sizes.logit_rows};
  uint64_t at = p->layout.graphs[idx].customs;
  for (uint32_t i = 0; i < p->program->op_count; i++) {
    if (p->program->ops[i].custom != NULL) {
      mgl_custom_launch launch = mgl_cuda_bind_custom(&addresses, idx, p->graphs[idx]->tokens, i);
      MGL_TRY(copy_descriptors(p, at, &launch, sizeof launch, err));
      at += sizeof launch;
    }
  }
  return MGL_OK;
}

static mgl_status upload_bound(mgl_cuda_program *p, uint32_t idx, mgl_cuda_op *ops,
                               const mgl_cuda_lists *lists, mgl_error *err) {
  const mgl_task_graph *graph = p->graphs[idx];
  const mgl_cuda_graph_layout *at = &p->layout.graphs[idx];
  mgl_cuda_addresses addresses = {p->program, &p->layout, p->memory, p->sizes.logit_rows};
  for (uint32_t i = 0; i < p->program->op_count; i++) {
    ops[i] = mgl_cuda_bind_op(&addresses, idx, graph->tokens, i);
    if (ops[i].kind != MGL_OP_ATTEND) {
      continue;
    }
    ops[i].passes = mgl_cuda_most_units(graph, i);
    if ((ops[i].flags & MGL_CUDA_CARRIED) != 0 && mgl_cuda_units_are_apart(graph, i)) {
      ops[i].flags |= MGL_CUDA_UNITS_APART;
    }
  }
  MGL_TRY(mgl_cuda_make_steps(p->program, graph, p->layout.copy_bytes[idx] != 0, lists, err));
  size_t count = graph->aot_start[graph->worker_count];
  size_t jit_count = mgl_protocol_jit_tasks(graph, NULL);
  size_t starts = graph->worker_count + (size_t)1;
  MGL_TRY(copy_descriptors(p, at->ops, ops, p->program->op_count * sizeof *ops, err));
  MGL_TRY(upload_customs(p, idx, err));
  MGL_TRY(copy_descriptors(p, at->steps, lists->steps, (count + jit_count) * sizeof *lists->steps,
                           err));
  MGL_TRY(copy_descriptors(p, at->step_start, lists->step_start, starts * sizeof(uint32_t), err));
  MGL_TRY(copy_descriptors(p, at->jit_tasks, lists->jit_tasks, jit_count * sizeof(uint32_t), err));
  if (jit_count > 0) {
    MGL_TRY(copy_descriptors(p, at->jit_below, lists->jit_below, count * sizeof(uint32_t), err));
  }
  MGL_TRY(
      copy_descriptors(p, at->tasks, graph->tasks, graph->task_count * sizeof *graph->tasks, err));
  MGL_TRY(copy_descriptors(p, at->events, graph->events, graph->event_count * sizeof *graph->events,
                           err));
  MGL_TRY(copy_descriptors(p, at->aot_start, graph->aot_start, starts * sizeof(uint32_t), err));
  return copy_descriptors(p, at->aot_tasks, graph->aot_tasks, count * sizeof(uint32_t), err);
}

static mgl_status upload_graph(mgl_cuda_program *p, uint32_t idx, mgl_error *err) {
  const mgl_task_graph *graph = p->graphs[idx];
  mgl_cuda_op *ops = mgl_alloc_zeroed(p->program->op_count, sizeof *ops);
  size_t listed = graph->aot_start[graph->worker_count];
  size_t jit_count = mgl_protocol_jit_tasks(graph, NULL);
  mgl_cuda_lists lists = {
      .steps = mgl_alloc_zeroed(listed + jit_count, sizeof *lists.steps),
      .step_start = mgl_alloc_zeroed(graph->worker_count + (size_t)1, sizeof *lists.step_start),
      .jit_tasks = mgl_alloc_zeroed(jit_count, sizeof *lists.jit_tasks),
      .jit_below = mgl_alloc_zeroed(listed, sizeof *lists.jit_below),
      .hash = &p->schedules[idx]};
  mgl_status status = MGL_OK;
  if (ops == NULL || lists.steps == NULL || lists.step_start == NULL || lists.jit_tasks == NULL ||
      lists.jit_below == NULL) {
    status = mgl_error_set(err, MGL_ERR_MEMORY, "out of memory for the steps of a task graph");
  } else {
    status = upload_bound(p, idx, ops, &lists, err);
  }
  mgl_free(ops);
  mgl_free(lists.steps);
  mgl_free(lists.step_start);
  mgl_free(lists.jit_tasks);
  mgl_free(lists.jit_below);
  return status;
}

// --- create and destroy --------------------------------------------------------------------------

// All that takes nothing on the GPU.
static mgl_status prepare(mgl_cuda_program *p, const mgl_cuda_program_options *options,
                          uint64_t *out_free_bytes, mgl_error *err) {
  MGL_TRY(set_options(p, options, err));
  MGL_TRY(compile_graphs(p, err));
  MGL_CUDA_TRY(&p->device->driver, context_set, err, p->device->context);
  return plan_memory(p, out_free_bytes, err);
}

mgl_status mgl_cuda_program_measure(const mgl_cuda_device *device,
                                    const mgl_cuda_program_options *options,
                                    mgl_cuda_program_memory *out, mgl_error *err) {
  *out = (mgl_cuda_program_memory){0};
  mgl_cuda_program *p = mgl_alloc_zeroed(1, sizeof *p);
  MGL_TRY(mgl_alloc_check(p, err, "a GPU program"));
  p->device = device;
  mgl_status status = prepare(p, options, &out->free_bytes, err);
  if (status == MGL_OK) {
    memcpy(out->bytes, p->layout.bytes, sizeof out->bytes);
    out->page_count = p->sizes.page_count;
    out->workers = p->workers;
  }
  mgl_cuda_program_destroy(p);
  return status;
}

static mgl_status create(mgl_cuda_program *p, const mgl_cuda_program_options *options,
                         mgl_error *err) {
  const mgl_cuda_driver *driver = &p->device->driver;
  uint64_t free_bytes = 0;
  MGL_TRY(prepare(p, options, &free_bytes, err));
  // Before the code, which may take the compiler a minute.
  MGL_TRY(mgl_cuda_layout_check(&p->layout, free_bytes, err));
  MGL_TRY(load_code(p, err));
  MGL_TRY(mgl_cuda_wide_load(p, err));
  MGL_TRY(allocate(p, err));
  MGL_TRY(clear(p, err));
  for (uint32_t i = 0; i < p->graph_count; i++) {
    MGL_TRY(upload_graph(p, i, err));
  }
  MGL_TRY(mgl_cuda_wide_upload(p, err));
  MGL_TRY(mgl_cuda_upload_weights(p, options->checkpoint, err));
  // Copies and fills return before they are done, and launches run on a stream that does not wait
  // for them.
  MGL_TRY(mgl_cuda_check(driver, driver->context_synchronize(), "upload", err));
  if (p->memory[MGL_CUDA_MEMORY_STAGING] != 0) {
    (void)driver->memory_free(p->memory[MGL_CUDA_MEMORY_STAGING]);
    p->memory[MGL_CUDA_MEMORY_STAGING] = 0;
  }
  p->options = NULL;
  p->build.overrides = NULL;
  return MGL_OK;
}

mgl_status mgl_cuda_program_create(const mgl_cuda_device *device,
                                   const mgl_cuda_program_options *options, mgl_cuda_program **out,
                                   mgl_error *err) {
  *out = NULL;
  mgl_cuda_program *p = mgl_alloc_zeroed(1, sizeof *p);
  MGL_TRY(mgl_alloc_check(p, err, "a GPU program"));
  p->device = device;
  mgl_status status = create(p, options, err);
  if (status != MGL_OK) {
    mgl_cuda_program_destroy(p);
    return status;
  }
  *out = p;
  return MGL_OK;
}

static void free_device_side(mgl_cuda_program *p) {
  const mgl_cuda_driver *driver = &p->device->driver;
  mgl_cuda_full_destroy(p);
  for (uint32_t i = 0; i < MGL_CUDA_MEMORY_COUNT; i++) {
    const bool shared = p->ranks != NULL && mgl_cuda_memory_is_shared((mgl_cuda_memory_kind)i);
    if (p->memory[i] != 0 && !shared) {
      (void)driver->memory_free(p->memory[i]);
    }
  }
  mgl_cuda_peers_destroy(p->device, &p->peers);
  mgl_cuda_feed_destroy(p);
  MGL_CUDA_RELEASE(driver, host_free, p->fault_word);
  MGL_CUDA_RELEASE(driver, host_free, p->image);
  mgl_cuda_sampling_release(p);
  mgl_cuda_wide_release(p);
  MGL_CUDA_RELEASE(driver, stream_destroy, p->stream);
  MGL_CUDA_RELEASE(driver, stream_destroy, p->abort_stream);
  MGL_CUDA_RELEASE(driver, module_unload, p->module);
  MGL_CUDA_RELEASE(driver, module_unload, p->weights_module);
}

void mgl_cuda_program_destroy(mgl_cuda_program *p) {
  if (p == NULL) {
    return;
  }
  // A kernel that did not end may still use its memory; freeing would wait for it for ever.
  if (!p->lost) {
    free_device_side(p);
  }
  for (uint32_t i = 0; i < MGL_CUDA_MAX_PROGRAM_GRAPHS; i++) {
    mgl_task_graph_destroy(p->graphs[i]);
  }
  mgl_cuda_layout_free(&p->layout);
  mgl_graph_destroy(p->program);
  mgl_free(p->wide.image);
  mgl_free(p->feeding.slots);
  mgl_cuda_full_forget(p);  // of a GPU that was lost; else it is gone
  mgl_free(p);
}

// --- looking in ----------------------------------------------------------------------------------

const mgl_graph *mgl_cuda_program_fused(const mgl_cuda_program *p) {
  return p->program;
}

const mgl_task_graph *mgl_cuda_program_graph(const mgl_cuda_program *p, uint32_t graph) {
  return graph < p->graph_count ? p->graphs[graph] : NULL;
}

mgl_status mgl_cuda_find_activation(const mgl_cuda_program *p, uint32_t graph, const char *name,
                                    size_t count, mgl_cuda_place *out, mgl_error *err) {
  uint32_t idx = mgl_graph_find(p->program, name);
  const mgl_tensor *tensor = idx == MGL_NO_TENSOR ? NULL : &p->program->tensors[idx];
  if (tensor == NULL || graph >= p->graph_count || tensor->placement != MGL_PLACE_ACTIVATION ||
      (tensor->dtype != MGL_DTYPE_F32 && tensor->dtype != MGL_DTYPE_BF16)) {
    return mgl_error_set(err, MGL_ERR_ARGUMENT, "\"%s\" is no f32 or bf16 activation of graph %u",
                         name, graph);
  }
  mgl_cuda_memory_kind kind = mgl_cuda_activation_memory(&p->layout, graph);
  uint64_t offset = p->layout.activations[graph][idx];
  if (count > (p->layout.bytes[kind] - offset) / mgl_dtype_bytes(tensor->dtype)) {
    return mgl_error_set(err, MGL_ERR_ARGUMENT, "\"%s\" has no %zu elements", name, count);
  }
  *out = (mgl_cuda_place){.at = p->memory[kind] + offset, .tensor = idx, .dtype = tensor->dtype};
  return MGL_OK;
}

// Returns where the latest run of a graph left an activation, or the first one finds it, from its
// first copy on. Logits have one copy.
static uint64_t latest_copy(const mgl_cuda_program *p, uint32_t graph, uint32_t tensor) {
  uint64_t runs = mgl_cuda_image_run(p)->protocol.graph_runs[graph];
  for (size_t i = 0; i < p->program->op_count; i++) {
    const mgl_op *op = &p->program->ops[i];
    if (op->output == tensor && mgl_cuda_makes_logits(op)) {
      return 0;
    }
  }
  return runs == 0 || runs % 2 != 0 ? 0 : p->layout.copy_bytes[graph];
}

mgl_status mgl_cuda_program_read(mgl_cuda_program *p, uint32_t graph, const char *name, float *out,
                                 size_t count, mgl_error *err) {
  mgl_cuda_place place;
  MGL_TRY(mgl_cuda_find_activation(p, graph, name, count, &place, err));
  const mgl_cuda_elements from = {place.at + latest_copy(p, graph, place.tensor), place.dtype,
                                  count};
  return mgl_cuda_elements_read(&p->device->driver, from, out, err);
}

mgl_status mgl_cuda_program_read_ceiling(mgl_cuda_program *p, uint32_t passes,
                                         double *out_bytes_per_s, mgl_error *err) {
  const mgl_cuda_ceiling ceiling = {.device = p->device,
                                    .module = p->weights_module,
                                    .stream = p->stream,
                                    .memory = p->memory[MGL_CUDA_MEMORY_WEIGHTS],
                                    .bytes = p->layout.bytes[MGL_CUDA_MEMORY_WEIGHTS],
                                    // Free between launches.
                                    .out = p->memory[MGL_CUDA_MEMORY_PARTIALS]};
  *out_bytes_per_s = 0;
  if (p->lost) {
    return mgl_error_set(err, MGL_ERR_INTERNAL, "an earlier launch did not end");
  }
  return mgl_cuda_ceiling_measure(&ceiling, passes, out_bytes_per_s, err);
}

const char *mgl_cuda_program_note(const mgl_cuda_program *p) {
  return p->code_note;
}

mgl_cuda_program_info mgl_cuda_program_describe(const mgl_cuda_program *p) {
  mgl_cuda_program_info info = {.step_bytes = p->layout.step_bytes,
                                .model = p->model,
                                .usage = p->usage,
                                .workers = p->workers,
                                .smem_pages = p->smem_pages,
                                .compiled = p->compiled,
                                .graph_count = p->graph_count,
                                .task_count = p->graphs[0]->task_count,
                                .event_count = p->graphs[0]->event_count,
                                .max_tokens = p->layout.tokens_per_sequence};
  memcpy(info.memory, p->layout.bytes, sizeof info.memory);
  info.memory[MGL_CUDA_MEMORY_STAGING] = 0;
  for (size_t i = 0; i < p->program->op_count; i++) {
    info.layer_count += p->program->ops[i].kind == MGL_OP_ATTEND ? 1 : 0;
  }
  info.kv_bytes_per_token =
      (uint64_t)info.layer_count * p->model.kv_heads * p->model.head_dim * 2 * sizeof(mgl_bf16);
  return info;
}
