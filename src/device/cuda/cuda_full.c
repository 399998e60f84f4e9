#include "device/cuda/cuda_full.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "device/cuda/cuda_faster.h"
#include "device/cuda/cuda_program_parts.h"
#include "device/cuda/cuda_variant.h"
#include "device/debug_dump.h"
#include "lower/packed.h"
#include "lower/schedule.h"
#include "task/tile.h"
#include "twin/op_launch.h"

_Static_assert(MGL_CUDA_FULL_LONG % 2 == 0, "it begins and ends with the same plan");

// Linears of one token share a multiprocessor, as those of a few do (cuda_variant.c), where their
// blocks have at most so many pages to go through.
enum { SHARED_PAGES_1 = 32 };

// Pages behind the ring that wait in the L2, of linears of one token that share: where the memory
// has nothing else to do while an op waits, during attention.
enum { EARLY_GATE_UP = 12, EARLY_QKV_PROJ = 4 };

// Clocks between two of them: about what the memory takes for a page of every multiprocessor.
enum { L2_CLOCKS = 1200 };

// Pages on their way, where the launch's options do not say it. The more rows of x come from the
// L2, the more it matters that they do not queue behind pages: from 16 rows on, but less for blocks
// of LONG_PAGES and more.
enum { IN_FLIGHT = 6, IN_FLIGHT_16 = 2, IN_FLIGHT_LONG = 4, LONG_PAGES = 12, IN_FLIGHT_AHEAD = 2 };

enum { LEAST_PAGES = 2 };  // of a ring

// A turn of the planner beside logits takes two to four times as long as beside attention, since
// its loads queue behind pages, so logits hide it only where they have so many weights
// (docs/log/158).
enum { HIDING_LOGITS_MIB = 400 };

// What is baked into the graphs.
typedef struct settings {
  uint32_t in_flight, in_flight_ahead;
  uint32_t prefetch;     // 0 or 1
  uint32_t first, last;  // ops of the program that are computed
} settings;

typedef enum graph_kind { GRAPH_EVEN, GRAPH_ODD, GRAPH_LONG, GRAPH_KINDS } graph_kind;

// Of what is captured.
typedef struct graph_shape {
  uint32_t graph;
  bool long_context;  // attention's kernel for one token
  bool calm;          // all sequences decode, and the host knows of the next plan
  mgl_cuda_full_how how;
} graph_shape;

// A part of an iteration: steps of its schedule.
typedef struct part {
  uint32_t first, last;
  void *graph;  // executable; NULL: steps are launched one by one
} part;

typedef struct chain {
  mgl_schedule *schedule;  // NULL: not made yet
  uint64_t hash;           // of it
  part *parts;             // [count]
  uint32_t count;
} chain;

struct mgl_cuda_full {
  void *module;
  void *kernels[MGL_FULL_KERNELS];
  uint32_t half_bytes;  // of shared memory, for one of two blocks of a multiprocessor
  void *capture_stream;
  uint64_t *host_plan;  // pinned: what the device planned last (twin/op_launch.h)
  mgl_cu_ptr host_plan_at;
  mgl_cu_ptr firsts;  // mgl_cuda_op_launch.firsts
  // By graph, by what launches them, and the second ones are for long contexts.
  chain chains[MGL_CUDA_MAX_PROGRAM_GRAPHS][MGL_CUDA_FULL_HOWS][2][GRAPH_KINDS];
  settings settings;
  bool logits_hide_plan;
  mgl_cuda_graph_counts counts;
  mgl_cuda_faster faster;
  // Of the present launch.
  mgl_cuda_full_how how, mixed_how;
  uint64_t queued;  // iterations
  uint64_t ran;     // hash of the schedule of the latest one; 0: none yet
  uint32_t most_iterations;
  bool single;
};

// --- kernels -------------------------------------------------------------------------------------

static uint32_t block_bytes(const mgl_cuda_program *p, uint32_t scratch_bytes, uint32_t pages) {
  return MGL_CUDA_BLOCK_BYTES + scratch_bytes + pages * p->page_bytes;
}

// Whether some linear is computed by the megakernel's bodies; else there is no such kernel.
static bool needs_tasks(const mgl_cuda_program *p) {
  return p->packings >> 1 != 0 || p->model.experts.count != 0;
}

static mgl_status read_sizes(mgl_cuda_program *p, mgl_error *err) {
  const mgl_cuda_driver *driver = &p->device->driver;
  int all = 0;
  int reserved = 0;
  MGL_CUDA_TRY(driver, device_attribute, err, &all, MGL_CU_ATTRIBUTE_SMEM_PER_SM,
               p->device->device);
  MGL_CUDA_TRY(driver, device_attribute, err, &reserved, MGL_CU_ATTRIBUTE_SMEM_RESERVED,
               p->device->device);
  p->full->half_bytes = all / 2 > reserved ? (uint32_t)(all / 2 - reserved) : 0;
  return MGL_OK;
}

static mgl_status set_kernel(mgl_cuda_program *p, mgl_full_kernel kernel, mgl_error *err) {
  const mgl_cuda_driver *driver = &p->device->driver;
  mgl_cuda_full *full = p->full;
  uint32_t bytes = block_bytes(p, MGL_CUDA_SCRATCH_BYTES, p->smem_pages);
  int blocks = 0;
  MGL_CUDA_TRY(driver, module_function, err, &full->kernels[kernel], full->module,
               mgl_full_info_of(kernel)->name);
  void *function = full->kernels[kernel];
  MGL_CUDA_TRY(driver, function_set, err, function, MGL_CU_FUNC_MAX_DYNAMIC_SMEM, (int)bytes);
  // All alike: a multiprocessor that has to divide its memory anew waits until it is empty.
  MGL_CUDA_TRY(driver, function_set, err, function, MGL_CU_FUNC_SMEM_CARVEOUT, 100);
  MGL_CUDA_TRY(driver, blocks_per_sm, err, &blocks, function,
               (int)mgl_full_info_of(kernel)->threads, bytes);
  if (blocks < 1) {
    return mgl_error_set(err, MGL_ERR_UNSUPPORTED,
                         "mode full: a block of %s (%u threads, %u bytes of shared memory) does "
                         "not fit on a multiprocessor of %s",
                         mgl_full_info_of(kernel)->name, mgl_full_info_of(kernel)->threads, bytes,
                         p->device->name);
  }
  return MGL_OK;
}

static bool logits_hide_plan(const mgl_graph *program) {
  uint64_t bytes = 0;
  for (size_t i = 0; i < program->op_count; i++) {
    if (program->ops[i].kind == MGL_OP_LOGITS) {
      mgl_packed_matrices m = mgl_packed_matrices_of(program, &program->ops[i]);
      bytes += m.row_blocks * mgl_packed_row_block_bytes(&m);
    }
  }
  return bytes >> 20 >= HIDING_LOGITS_MIB;
}

static mgl_status open_kernels(mgl_cuda_program *p, mgl_error *err) {
  const mgl_cuda_driver *driver = &p->device->driver;
  mgl_cuda_full *full = p->full;
  void *pinned = NULL;
  unsigned flags = MGL_CU_HOST_ALLOC_PORTABLE | MGL_CU_HOST_ALLOC_MAPPED;
  full->logits_hide_plan = logits_hide_plan(p->program);
  mgl_cuda_module module = {"kernels/cuda/op_kernels.cu", mgl_full_info_of(MGL_FULL_LINEAR_1)->name,
                            &full->module, NULL};
  MGL_TRY(mgl_cuda_load_modules(p, &module, 1, err));
  MGL_TRY(read_sizes(p, err));
  for (uint32_t i = 0; i < MGL_FULL_KERNELS; i++) {
    if (i != MGL_FULL_TASK || needs_tasks(p)) {
      MGL_TRY(set_kernel(p, (mgl_full_kernel)i, err));
    }
  }
  MGL_CUDA_TRY(driver, stream_create, err, &full->capture_stream, MGL_CU_STREAM_NON_BLOCKING);
  MGL_CUDA_TRY(driver, host_alloc, err, &pinned, sizeof *full->host_plan, flags);
  full->host_plan = pinned;
  MGL_CUDA_TRY(driver, host_address, err, &full->host_plan_at, pinned, 0);
  return MGL_CUDA_CALL(driver, memory_alloc, err, &full->firsts,
                       2 * MGL_CUDA_MAX_ITEMS * sizeof(mgl_op_first));
}

static void release_chain(const mgl_cuda_program *p, chain *c) {
  for (uint32_t i = 0; i < c->count; i++) {
    if (c->parts[i].graph != NULL && !p->lost) {
      (void)p->device->driver.graph_release(c->parts[i].graph);
    }
  }
  mgl_free(c->parts);
  mgl_schedule_destroy(c->schedule);
  *c = (chain){0};
}

static void release_chains(mgl_cuda_program *p) {
  chain *all = &p->full->chains[0][0][0][0];
  for (size_t i = 0; i < sizeof p->full->chains / sizeof *all; i++) {
    release_chain(p, &all[i]);
  }
}

void mgl_cuda_full_forget(mgl_cuda_program *p) {
  if (p->full != NULL) {
    release_chains(p);
    mgl_free(p->full);
    p->full = NULL;
  }
}

void mgl_cuda_full_destroy(mgl_cuda_program *p) {
  const mgl_cuda_driver *driver = &p->device->driver;
  mgl_cuda_full *full = p->full;
  if (full == NULL) {
    return;
  }
  release_chains(p);
  mgl_cuda_faster_release(&full->faster, driver);
  MGL_CUDA_RELEASE(driver, host_free, full->host_plan);
  MGL_CUDA_RELEASE(driver, memory_free, full->firsts);
  MGL_CUDA_RELEASE(driver, stream_destroy, full->capture_stream);
  MGL_CUDA_RELEASE(driver, module_unload, full->module);
  mgl_free(full);
  p->full = NULL;
}

// --- an iteration's kernels ----------------------------------------------------------------------

// Pages that the block with the most of them goes through in a pass.
static uint32_t pages_of(const mgl_cuda_op_launch *launch) {
  if (launch->blocks == 0) {
    return 0;
  }
  uint32_t of_unit = (launch->ops[0].k_padded + MGL_CUDA_PAGE_K - 1) / MGL_CUDA_PAGE_K;
  return (launch->units + launch->blocks - 1) / launch->blocks * of_unit;
}

static mgl_full_kernel kernel_of(const mgl_cuda_op_launch *launch, graph_shape shape) {
  return mgl_full_kernel_of(&launch->ops[0], (mgl_full_case){.pages = pages_of(launch),
                                                             .long_context = shape.long_context,
                                                             .calm = shape.calm});
}

// Scratch of a block, and pages: as many as fit into a multiprocessor's memory, or into half of it.
static void set_memory(const mgl_cuda_program *p, mgl_full_kernel kernel, bool is_linear,
                       mgl_cuda_op_launch *out) {
  const mgl_cuda_op *op = &out->ops[0];
  bool of_one = mgl_full_info_of(kernel)->scratch == MGL_SCRATCH_ONE;
  bool of_eight = mgl_full_info_of(kernel)->scratch == MGL_SCRATCH_EIGHT;
  bool copies_norm = (op->flags & MGL_CUDA_X_NORMED) != 0 && op->k <= MGL_OP_SCRATCH_MAX_NORM;
  uint32_t half = p->full->half_bytes;
  out->scratch_bytes = MGL_CUDA_SCRATCH_BYTES;
  out->page_count = 0;
  if (!is_linear) {
    return;
  }
  out->page_count = p->smem_pages;
  if (out->in_flight == 0) {
    out->in_flight = op->row_tiles == 1            ? IN_FLIGHT
                     : pages_of(out) >= LONG_PAGES ? IN_FLIGHT_LONG
                                                   : IN_FLIGHT_16;
  }
  if (out->in_flight_ahead == 0) {
    out->in_flight_ahead = IN_FLIGHT_AHEAD;
  }
  if (of_one) {
    out->scratch_bytes = MGL_OP_SCRATCH_ONE + op->k * (uint32_t)sizeof(mgl_bf16);
  } else if (of_eight) {
    out->scratch_bytes = MGL_OP_SCRATCH_EIGHT + (copies_norm ? op->k * (uint32_t)sizeof(float) : 0);
  }
  if (!of_eight && (!of_one || pages_of(out) > SHARED_PAGES_1)) {
    return;
  }
  uint32_t fixed = block_bytes(p, out->scratch_bytes, 0);
  uint32_t pages = half > fixed ? (half - fixed) / p->page_bytes : 0;
  pages = pages < LEAST_PAGES ? LEAST_PAGES : pages;
  out->page_count = pages < p->smem_pages ? pages : p->smem_pages;
  out->early_pages = op->kind == MGL_OP_GATE_UP    ? EARLY_GATE_UP
                     : op->kind == MGL_OP_QKV_PROJ ? EARLY_QKV_PROJ
                                                   : 0;
  out->l2_clocks = L2_CLOCKS;
}

static void bind_op(const mgl_cuda_program *p, uint32_t graph, uint32_t place, uint32_t op_idx,
                    mgl_cuda_op_launch *out) {
  mgl_cuda_addresses addresses = {p->program, &p->layout, p->memory, p->sizes.logit_rows};
  out->ops[place] = mgl_cuda_bind_op(&addresses, graph, p->graphs[graph]->tokens, op_idx);
  out->ops[place].flags &= ~(uint32_t)MGL_CUDA_CARRIED;  // kernels follow each other
  out->ops[place].copy_bytes = 0;
}

// An iteration's launches. The next plan is made where the host waits for it to queue that
// iteration: beside the first launch that leaves most multiprocessors idle; else beside the longest
// one, if it hides that.
static mgl_status lower(const mgl_cuda_program *p, graph_shape shape, mgl_schedule **out,
                        mgl_error *err) {
  const mgl_task_graph *graph = p->graphs[shape.graph];
  // A block of attention without an item keeps the next op's from its multiprocessor.
  const mgl_kernels_options options = {.tokens = graph->tokens,
                                       .logit_rows = graph->logit_rows,
                                       .workers = p->workers,
                                       .strides = mgl_kernels_strides(graph, shape.long_context),
                                       .plan_at_logits = shape.calm && p->full->logits_hide_plan};
  return mgl_lower_kernels(p->program, &options, out, err);
}

// Whether a launch computes that op of the program; MGL_NO_OP is none.
static bool computes(const mgl_cuda_program *p, uint32_t op) {
  return op >= p->full->settings.first && op <= p->full->settings.last && op != MGL_NO_OP;
}

static bool has_launch(const mgl_cuda_program *p, const mgl_schedule *s, uint32_t step) {
  const mgl_schedule_op *op = &s->ops[s->steps[step].op];
  return computes(p, op->op) || computes(p, op->with);
}

// What the blocks of a launch share: of linears row blocks. (Experts have those of a token's slots,
// whatever matrices these are of.)
static uint32_t units_of(const mgl_cuda_program *p, const mgl_schedule_op *op) {
  const mgl_packed_matrices matrices = mgl_packed_matrices_of(p->program, &p->program->ops[op->op]);
  const uint32_t columns = mgl_op_info_of(p->program->ops[op->op].kind)->cuda_grain;
  return matrices.count == 0     ? op->units
         : matrices.experts == 0 ? matrices.row_blocks
                                 : (op->units + columns - 1) / columns;
}

// The launch of step `ordinal` of a schedule, of an iteration that reads plan `parity`.
static mgl_cuda_op_launch make_launch(const mgl_cuda_program *p, const mgl_schedule *s,
                                      graph_shape shape, uint32_t parity, uint32_t ordinal) {
  const mgl_cuda_full *full = p->full;
  const mgl_schedule_op *op = &s->ops[s->steps[ordinal].op];
  mgl_cu_ptr plans = mgl_cuda_state_at(p, p->layout.state.plans);
  mgl_packed_matrices matrices = mgl_packed_matrices_of(p->program, &p->program->ops[op->op]);
  mgl_cuda_op_launch out = {
      .run = mgl_cuda_pointer(mgl_cuda_state_at(p, p->layout.state.run)),
      .plan = mgl_cuda_pointer(plans + parity * sizeof(mgl_cuda_plan)),
      .next_plan = mgl_cuda_pointer(plans + (parity ^ 1) * sizeof(mgl_cuda_plan)),
      .host_plan = mgl_cuda_pointer(full->host_plan_at),
      .firsts = mgl_cuda_pointer(full->firsts),
      .graph = shape.graph,
      .parity = parity,
      .ordinal = ordinal,
      .op_launches = s->step_count,
      .units = units_of(p, op),
      .strides = s->strides,
      .in_flight = full->settings.in_flight,
      .in_flight_ahead = full->settings.in_flight_ahead,
      .prefetch = full->settings.prefetch};
  bind_op(p, shape.graph, 0, op->op, &out);
  // Blocks of logits may fill a multiprocessor each: one is left to the planner.
  bool plans_beside = shape.calm && full->logits_hide_plan && op->kind == MGL_OP_LOGITS;
  uint32_t most = plans_beside && p->workers > 1 ? p->workers - 1 : p->workers;
  out.blocks = out.units < most ? out.units : most;
  // A unit of the most, those of logits, has pages in memory.
  assert((uint64_t)out.units * out.blocks <= UINT32_MAX);
  set_memory(p, kernel_of(&out, shape), matrices.count > 0, &out);
  out.ops[1].kind = MGL_OP_COUNT;
  if (!computes(p, op->op)) {
    out.blocks = 0;
  }
  if (computes(p, op->with)) {
    bind_op(p, shape.graph, 1, op->with, &out);
    out.second_units = p->program->ops[op->with].kind == MGL_OP_NEXT_PLAN ? 1 : out.units;
  }
  return out;
}

static mgl_status launch_op(const mgl_cuda_program *p, mgl_full_kernel kernel,
                            const mgl_cuda_op_launch *launch, void *stream, mgl_error *err) {
  mgl_cu_launch_attribute dependent = {.id = MGL_CU_LAUNCH_PROGRAMMATIC, .value = 1};
  mgl_cu_launch_config config = {
      .grid_x = launch->blocks + (launch->ops[1].kind != MGL_OP_COUNT ? 1 : 0),
      .grid_y = 1,
      .grid_z = 1,
      .block_x = mgl_full_info_of(kernel)->threads,
      .block_y = 1,
      .block_z = 1,
      .smem_bytes = block_bytes(p, launch->scratch_bytes, launch->page_count),
      .stream = stream,
      .attributes = &dependent,
      .attribute_count = p->device->kernels != MGL_CUDA_KERNELS_PORTABLE ? 1 : 0};
  mgl_cuda_op_launch copy = *launch;
  void *parameters[] = {&copy};
  return MGL_CUDA_CALL(&p->device->driver, launch_config, err, &config, p->full->kernels[kernel],
                       parameters, NULL);
}

// The steps of a part.
static mgl_status launch_part(const mgl_cuda_program *p, const mgl_schedule *s, const part *of,
                              graph_shape shape, uint32_t parity, void *stream, mgl_error *err) {
  for (uint32_t i = of->first; i < of->last; i++) {
    if (has_launch(p, s, i)) {
      mgl_cuda_op_launch launch = make_launch(p, s, shape, parity, i);
      MGL_TRY(launch_op(p, kernel_of(&launch, shape), &launch, stream, err));
    }
  }
  return MGL_OK;
}

// --- graphs --------------------------------------------------------------------------------------

// As DOT, for whoever looks for a fault.
static mgl_status dump_graph(const mgl_cuda_program *p, graph_shape shape, graph_kind kind,
                             const part *of, void *captured, mgl_error *err) {
  static const char *const kinds[GRAPH_KINDS] = {"even", "odd", "long"};
  char name[96], path[MGL_DEBUG_DUMP_PATH_BYTES];
  if (p->device->dump_folder[0] == 0) {
    return MGL_OK;
  }
  (void)snprintf(name, sizeof name, "fused-%u-%s%s.steps-%u-%u.dot", p->graphs[shape.graph]->tokens,
                 kinds[kind], shape.long_context ? "-long-context" : "", of->first, of->last);
  MGL_TRY(mgl_debug_dump_path(p->device->dump_folder, name, path, err));
  return MGL_CUDA_CALL(&p->device->driver, graph_print, err, captured, path, 0);
}

static mgl_status capture_part(const mgl_cuda_program *p, const mgl_schedule *s, graph_shape shape,
                               graph_kind kind, part *of, mgl_error *err) {
  const mgl_cuda_driver *driver = &p->device->driver;
  uint32_t count = kind == GRAPH_LONG ? MGL_CUDA_FULL_LONG : 1;
  void *stream = p->full->capture_stream;
  void *captured = NULL;
  MGL_CUDA_TRY(driver, capture_begin, err, stream, MGL_CU_CAPTURE_RELAXED);
  mgl_status status = MGL_OK;
  for (uint32_t i = 0; i < count && status == MGL_OK; i++) {
    status = launch_part(p, s, of, shape, kind == GRAPH_ODD ? 1 : i % 2, stream, err);
  }
  mgl_cu_result code = driver->capture_end(stream, &captured);
  if (status == MGL_OK) {
    status = mgl_cuda_check(driver, code, "capture_end", err);
  }
  if (status == MGL_OK) {
    status = dump_graph(p, shape, kind, of, captured, err);
  }
  if (status == MGL_OK) {
    status = MGL_CUDA_CALL(driver, graph_instantiate, err, &of->graph, captured, 0);
  }
  MGL_CUDA_RELEASE(driver, graph_destroy, captured);
  return status;
}

static bool has_launches(const mgl_cuda_program *p, const mgl_schedule *s, const part *of) {
  bool any = false;
  for (uint32_t i = of->first; i < of->last; i++) {
    any = any || has_launch(p, s, i);
  }
  return any;
}

// Whether a step runs by itself where an iteration is cut into pieces.
static bool splits(const mgl_cuda_program *p, const mgl_schedule *s, mgl_cuda_full_how how,
                   uint32_t step) {
  return how == MGL_CUDA_FULL_PIECES &&
         mgl_tile_is_attention(&p->program->ops[s->ops[s->steps[step].op].op]);
}

static mgl_status cut(const mgl_cuda_program *p, mgl_cuda_full_how how, chain *c, mgl_error *err) {
  const mgl_schedule *s = c->schedule;
  c->parts = mgl_alloc_zeroed(s->step_count, sizeof *c->parts);
  MGL_TRY(mgl_alloc_check(c->parts, err, "graphs"));
  for (uint32_t i = 0; i < s->step_count; i++) {
    if (i == 0 || splits(p, s, how, i) || splits(p, s, how, i - 1)) {
      c->parts[c->count++].first = i;
    }
    c->parts[c->count - 1].last = i + 1;
  }
  return MGL_OK;
}

static mgl_status make_chain(const mgl_cuda_program *p, graph_shape shape, graph_kind kind,
                             chain *c, mgl_error *err) {
  MGL_TRY(lower(p, shape, &c->schedule, err));
  c->hash = mgl_schedule_hash(c->schedule);
  MGL_TRY(cut(p, shape.how, c, err));
  for (uint32_t i = 0; i < c->count && shape.how != MGL_CUDA_FULL_LOOSE; i++) {
    if (!splits(p, c->schedule, shape.how, c->parts[i].first) &&
        has_launches(p, c->schedule, &c->parts[i])) {
      MGL_TRY(capture_part(p, c->schedule, shape, kind, &c->parts[i], err));
      p->full->counts.captured++;
    }
  }
  return MGL_OK;
}

// The chain of that shape, made at its first use, which runs next.
static mgl_status find_chain(mgl_cuda_program *p, graph_shape shape, graph_kind kind,
                             const chain **out, mgl_error *err) {
  mgl_cuda_full *full = p->full;
  chain *c = &full->chains[shape.graph][shape.how][shape.long_context ? 1 : 0][kind];
  *out = c;
  if (c->schedule != NULL) {
    full->ran = c->hash;
    return MGL_OK;
  }
  const mgl_cuda_capture since = mgl_cuda_capture_begin(&p->device->driver);
  mgl_status status = make_chain(p, shape, kind, c, err);
  if (status != MGL_OK) {
    release_chain(p, c);
    return status;
  }
  mgl_cuda_capture_end(&p->device->driver, since, &full->counts);
  full->ran = c->hash;
  return MGL_OK;
}

static bool has_long_context(const mgl_cuda_program *p) {
  const mgl_cuda_feeding *f = &p->feeding;
  bool found = false;
  for (uint32_t i = 0; i < f->slot_count; i++) {
    found = found || (f->slots[i].state == MGL_CUDA_SLOT_BUSY &&
                      f->slots[i].seen >= MGL_KERNELS_LONG_CONTEXT);
  }
  return found;
}

// The size that an iteration is padded to; 0: it has none.
static uint32_t padded_tokens(const mgl_cuda_program *p, uint32_t tokens) {
  const mgl_size_list *sizes = &p->graph_sizes;
  uint32_t i = 0;
  while (i < sizes->count && sizes->items[i] < tokens) {
    i++;
  }
  return i < sizes->count ? sizes->items[i] : sizes->count == 0 ? tokens : 0;
}

// Above the largest size kernels are launched one by one.
static mgl_cuda_full_how how_of(const mgl_cuda_program *p, uint32_t tokens, bool decodes) {
  const mgl_cuda_full_how how = decodes ? p->full->how : p->full->mixed_how;
  return padded_tokens(p, tokens) != 0 ? how : MGL_CUDA_FULL_LOOSE;
}

static mgl_status queue_chain(mgl_cuda_program *p, const chain *c, graph_shape shape,
                              uint32_t parity, mgl_error *err) {
  mgl_cuda_full *full = p->full;
  for (uint32_t i = 0; i < c->count; i++) {
    const part *of = &c->parts[i];
    if (of->graph != NULL) {
      MGL_CUDA_TRY(&p->device->driver, graph_launch, err, of->graph, p->stream);
      full->counts.graphs++;
    } else {
      MGL_TRY(launch_part(p, c->schedule, of, shape, parity, p->stream, err));
      full->counts.ops += of->last - of->first;
    }
  }
  return MGL_OK;
}

// Queues the next iteration, or the next MGL_CUDA_FULL_LONG.
static mgl_status queue_graph(mgl_cuda_program *p, uint32_t tokens, mgl_cuda_full_how how,
                              bool is_long, mgl_error *err) {
  mgl_cuda_full *full = p->full;
  const mgl_cuda_driver *driver = &p->device->driver;
  const uint32_t padded = padded_tokens(p, tokens);
  graph_shape shape = {.calm = is_long, .how = how};
  shape.graph = mgl_cuda_graph_for(padded != 0 ? padded : tokens);
  shape.long_context = shape.graph == 0 && has_long_context(p);
  uint32_t parity = (uint32_t)(full->queued % 2);
  graph_kind kind = is_long ? GRAPH_LONG : parity == 0 ? GRAPH_EVEN : GRAPH_ODD;
  const chain *c = NULL;
  bool timed = false;
  if (how == MGL_CUDA_FULL_FASTER) {
    mgl_cuda_way way = MGL_CUDA_WAY_PIECES;
    MGL_TRY(mgl_cuda_faster_take(&full->faster, driver, shape.graph, &way, &timed, err));
    shape.how = way == MGL_CUDA_WAY_PIECES ? MGL_CUDA_FULL_PIECES : MGL_CUDA_FULL_LOOSE;
  }
  MGL_TRY(find_chain(p, shape, kind, &c, err));
  if (timed) {
    MGL_TRY(mgl_cuda_faster_begin(&full->faster, driver, p->stream, err));
  }
  MGL_TRY(queue_chain(p, c, shape, parity, err));
  if (timed) {
    MGL_TRY(mgl_cuda_faster_end(&full->faster, driver, p->stream, err));
  }
  full->queued += is_long ? MGL_CUDA_FULL_LONG : 1;
  full->counts.iterations += is_long ? MGL_CUDA_FULL_LONG : 1;
  return MGL_OK;
}

uint64_t mgl_cuda_full_ran(const mgl_cuda_program *p) {
  return p->full != NULL ? p->full->ran : 0;
}

mgl_cuda_graph_counts mgl_cuda_full_count(const mgl_cuda_program *p) {
  return p->full != NULL ? p->full->counts : (mgl_cuda_graph_counts){0};
}

void mgl_cuda_full_faster(const mgl_cuda_program *p, uint32_t out[MGL_CUDA_WAYS]) {
  mgl_cuda_faster_count(p->full != NULL ? &p->full->faster : &(mgl_cuda_faster){0}, out);
}

// Queues a turn of the planner. Iterations that were queued behind the last plan were of nothing:
// the next one is number `iteration`.
static mgl_status queue_plan(mgl_cuda_program *p, uint64_t iteration, mgl_error *err) {
  mgl_cu_ptr run = mgl_cuda_state_at(p, p->layout.state.run);
  void *parameters[] = {&run, &p->full->host_plan_at, &p->full->firsts};
  MGL_CUDA_TRY(&p->device->driver, launch, err, p->full->kernels[MGL_FULL_PLAN], 1, 1, 1,
               MGL_OP_PLAN_THREADS, 1, 1, 0, p->stream, parameters, NULL);
  p->full->queued = iteration;
  return MGL_OK;
}

// --- a launch ------------------------------------------------------------------------------------

// With what a launch has baked into its graphs.
static mgl_status open_full(mgl_cuda_program *p, const mgl_cuda_launch_options *options,
                            mgl_error *err) {
  settings now = {.in_flight = options->in_flight,
                  .in_flight_ahead = options->in_flight_ahead,
                  .prefetch = options->no_prefetch ? 0 : 1,
                  .first = p->chosen ? p->first_op : 0,
                  .last = p->chosen ? p->last_op : UINT32_MAX};
  if (p->full == NULL) {
    p->full = mgl_alloc_zeroed(1, sizeof *p->full);
    MGL_TRY(mgl_alloc_check(p->full, err, "mode full"));
    mgl_status status = open_kernels(p, err);
    if (status != MGL_OK) {
      mgl_cuda_full_destroy(p);
      return status;
    }
  }
  if (memcmp(&now, &p->full->settings, sizeof now) != 0) {
    release_chains(p);
    p->full->settings = now;
  }
  return MGL_OK;
}

// All graphs of a size that iterations launched in that way may need.
static mgl_status capture_size(mgl_cuda_program *p, uint32_t size, mgl_cuda_full_how how,
                               bool decodes, mgl_error *err) {
  const chain *unused = NULL;
  for (uint32_t kind = 0; kind < GRAPH_KINDS; kind++) {
    const bool is_long = kind == GRAPH_LONG;
    const graph_shape shape = {.graph = mgl_cuda_graph_for(size), .calm = is_long, .how = how};
    if (!is_long || (how == MGL_CUDA_FULL_WHOLE && decodes)) {
      MGL_TRY(find_chain(p, shape, (graph_kind)kind, &unused, err));
    }
  }
  return MGL_OK;
}

mgl_status mgl_cuda_full_capture(mgl_cuda_program *p, const mgl_cuda_launch_options *options,
                                 const mgl_weights_progress *progress, mgl_error *err) {
  const mgl_size_list *sizes = &p->graph_sizes;
  mgl_cuda_full_how hows[2] = {options->mixed_how, options->how};
  uint64_t done = 0, total = 0;
  for (int decodes = 0; decodes < 2; decodes++) {  // of the faster way only pieces are captured
    hows[decodes] = hows[decodes] == MGL_CUDA_FULL_FASTER ? MGL_CUDA_FULL_PIECES : hows[decodes];
    total += hows[decodes] != MGL_CUDA_FULL_LOOSE ? sizes->count : 0;
  }
  MGL_TRY(open_full(p, options, err));
  for (uint32_t i = sizes->count; i-- > 0;) {
    for (int decodes = 0; decodes < 2; decodes++) {
      if (hows[decodes] == MGL_CUDA_FULL_LOOSE) {
        continue;
      }
      MGL_TRY(capture_size(p, sizes->items[i], hows[decodes], decodes != 0, err));
      done++;
      if (progress->report != NULL) {
        progress->report(progress->context, done, total);
      }
    }
  }
  return MGL_OK;
}

mgl_status mgl_cuda_full_begin(mgl_cuda_program *p, const mgl_cuda_launch_options *options,
                               uint32_t most_iterations, bool single, mgl_error *err) {
  MGL_TRY(open_full(p, options, err));
  mgl_cuda_full *full = p->full;
  for (uint32_t i = 0; i < p->graph_count; i++) {
    mgl_cuda_image_run(p)->protocol.graph_runs[i] = 1;  // activations have their first copies
  }
  // An iteration's first kernel says when it begins.
  mgl_cuda_image_run(p)->planning.resumed = UINT64_MAX;
  full->how = options->how;
  full->mixed_how = options->mixed_how;
  full->queued = 0;
  full->ran = 0;
  full->most_iterations = most_iterations;
  full->single = single;
  // The device plans first, unless the host did.
  *(volatile uint64_t *)full->host_plan =
      mgl_host_plan_make(0, 0, 0, single ? mgl_cuda_image_plan(p)->token_count : 0);
  return MGL_OK;
}

// Without a plan: a turn of the planner, where it may find something to do or has to tell of what
// has ended.
static mgl_status go_on(mgl_cuda_program *p, uint64_t word, mgl_cuda_full_state *out,
                        mgl_error *err) {
  const mgl_cuda_feeding *f = &p->feeding;
  bool told = mgl_host_plan_has(word, MGL_HOST_PLAN_TOLD);
  if (told && mgl_host_plan_has(word, MGL_HOST_PLAN_OVER)) {
    *out = MGL_CUDA_FULL_ENDED;
    return MGL_OK;
  }
  // Acquire is more than needed: nothing is read but how far the device has read.
  bool news = mgl_load_acquire_system(&f->feed->commands.tail) != f->commands.own;
  if (!told || news || mgl_host_plan_has(word, MGL_HOST_PLAN_AGAIN)) {
    *out = MGL_CUDA_FULL_SOON;
    return queue_plan(p, mgl_host_plan_iteration(word), err);
  }
  *out = MGL_CUDA_FULL_RUNS;
  return MGL_OK;
}

// Of a launch for one iteration.
static mgl_status queue_single(mgl_cuda_program *p, uint32_t tokens, bool idle,
                               mgl_cuda_full_state *out, mgl_error *err) {
  if (p->full->queued == 0 && tokens > 0) {
    mgl_cu_ptr run = mgl_cuda_state_at(p, p->layout.state.run);
    void *parameters[] = {&run, &p->full->firsts};
    MGL_CUDA_TRY(&p->device->driver, launch, err, p->full->kernels[MGL_FULL_NOTE], 1, 1, 1,
                 MGL_OP_PLAN_THREADS, 1, 1, 0, p->stream, parameters, NULL);
    *out = MGL_CUDA_FULL_SOON;
    const mgl_cuda_plan *plan = mgl_cuda_image_plan(p);
    bool decodes = plan->sequence_count == plan->token_count;
    return queue_graph(p, tokens, how_of(p, tokens, decodes), false, err);
  }
  *out = idle ? MGL_CUDA_FULL_ENDED : MGL_CUDA_FULL_RUNS;
  return MGL_OK;
}

mgl_status mgl_cuda_full_queue(mgl_cuda_program *p, bool idle, mgl_cuda_full_state *out,
                               mgl_error *err) {
  mgl_cuda_full *full = p->full;
  // Written by the device in one store; nothing else of the plan is read.
  uint64_t word = *(const volatile uint64_t *)full->host_plan;
  uint64_t planned = mgl_host_plan_iteration(word);
  uint32_t tokens = mgl_host_plan_tokens(word);
  if (full->single) {
    return queue_single(p, tokens, idle, out, err);
  }
  *out = MGL_CUDA_FULL_RUNS;
  if (tokens == 0) {
    return idle ? go_on(p, word, out, err) : MGL_OK;
  }
  uint64_t end = planned + 1;
  uint64_t most = end;
  if (mgl_host_plan_has(word, MGL_HOST_PLAN_CALM)) {
    most = planned + mgl_host_plan_left(word) + 1;
    most = most < full->most_iterations ? most : full->most_iterations;
    end = most < planned + MGL_CUDA_FULL_LONG ? most : planned + MGL_CUDA_FULL_LONG;
  }
  // Iterations behind a calm one decode as it does.
  mgl_cuda_full_how how = how_of(p, tokens, mgl_host_plan_has(word, MGL_HOST_PLAN_DECODES));
  while (full->queued < end) {
    bool is_long = how == MGL_CUDA_FULL_WHOLE && full->queued % 2 == 0 &&
                   most - full->queued >= MGL_CUDA_FULL_LONG;
    MGL_TRY(queue_graph(p, tokens, how, is_long, err));
  }
  *out = full->queued < planned + 2 ? MGL_CUDA_FULL_SOON : MGL_CUDA_FULL_RUNS;
  return MGL_OK;
}
