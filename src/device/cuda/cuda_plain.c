#include "device/cuda/cuda_plain.h"
#include "device/cuda/cuda_plain_look.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "device/cpu/cpu_check.h"
#include "device/cpu/cpu_layout.h"
#include "device/cpu/cpu_loads.h"
#include "device/cpu/cpu_memory.h"
#include "device/cpu/cpu_weights.h"
#include "device/cuda/cuda_ceiling.h"
#include "device/cuda/cuda_custom.h"
#include "device/cuda/cuda_layout.h"
#include "device/cuda/cuda_plain_norms.h"
#include "lower/schedule.h"
#include "twin/plain_op.h"

_Static_assert((int)MGL_PLAIN_MAX_INPUTS == (int)MGL_OP_MAX_INPUTS, "a launch has all inputs");
// As kernels/cuda/plain/plain_experts.cuh has them.
_Static_assert((int)MGL_MAX_EXPERTS == 1024 && (int)MGL_SCORES_SOFTMAX == 0 &&
                   (int)MGL_SCORES_SOFTMAX_OF_CHOSEN == 1 && (int)MGL_SCORES_SIGMOID == 2,
               "kernels and configs have the same experts");

enum {
  BLOCKS_EACH = 16,     // of a launch, at most, for each multiprocessor
  CODE_VALUES = 256,    // of a table of codes
  SPARE = 1,            // KV pages, and rows of block tables, of what only pads an iteration
  MOST_HEAD_DIM = 512,  // that attention's shared memory has room for
};

// Kinds of memory, an allocation each.
typedef enum memory_kind { WEIGHTS, KV, ACTIVATIONS, STATE, KINDS } memory_kind;

// What a plan hands to kernels, one after the other in STATE and in its image on the host.
typedef enum plan_input {
  INPUT_TOKENS,
  INPUT_POSITIONS,
  INPUT_LENGTHS,
  INPUT_SLOTS,
  INPUT_LOGIT_ROWS,
  INPUT_SEQUENCES,     // which row of the block tables a token's sequence has
  INPUT_BLOCK_TABLES,  // last: the only one that is not a number a token
  INPUT_COUNT,
} plan_input;

static const char *const input_names[INPUT_COUNT] = {
    [INPUT_TOKENS] = "tokens",         [INPUT_POSITIONS] = "positions",
    [INPUT_LENGTHS] = "rope_lengths",  [INPUT_SLOTS] = "slots",
    [INPUT_LOGIT_ROWS] = "logit_rows", [INPUT_BLOCK_TABLES] = "block_tables"};

struct mgl_cuda_plain {
  const mgl_cuda_device *device;
  const mgl_graph *program;
  mgl_sizes sizes;
  mgl_schedule *schedule;
  mgl_cuda_code_function *get_code;
  void *module;
  void *ceiling_module;         // NULL until it is measured
  void *kernels[MGL_OP_COUNT];  // NULL: the program has no such op, or a custom one
  mgl_cuda_customs *customs;
  mgl_cu_ptr memory[KINDS];
  uint64_t bytes[KINDS];
  uint64_t *tensors;                // [tensor_count] offset in its kind of memory
  uint64_t *values;                 // [op_count] offset of an op's values in STATE
  uint32_t share_sums;              // mgl_plain_op.share_sums
  uint32_t *norms;                  // [op_count] of cuda_plain_norms.h; NULL: sums as on the CPU
  uint64_t codes[MGL_DTYPE_COUNT];  // offset of a code's values in STATE
  uint64_t inputs[INPUT_COUNT];     // offset in STATE
  uint32_t *image;                  // of STATE's inputs, from the first on
  uint32_t vocab;
  uint32_t first, last;  // ops that are launched
  bool live;             // a plan is on the device: between stage and fetch
  uint64_t step_bytes;
  char note[MGL_CUDA_NOTE_BYTES];
};

// --- what has a kernel ---------------------------------------------------------------------------

static const char *const kernel_names[MGL_OP_COUNT] = {
#define MGL_PLAIN(enum_name, name) [MGL_OP_##enum_name] = "mgl_plain_kernel_" #name,
#include "twin/plain.def"
};

mgl_status mgl_cuda_plain_check(const mgl_graph *program, mgl_error *err) {
  uint32_t logits = mgl_graph_find(program, "logits");
  for (size_t i = 0; i < program->op_count; i++) {
    const mgl_op *op = &program->ops[i];
    const mgl_tensor *out = &program->tensors[op->output];
    if (op->custom != NULL) {
      MGL_TRY(mgl_cuda_custom_check(op, out->name, err));
      continue;
    }
    if (kernel_names[op->kind] == NULL) {
      return mgl_error_set(err, MGL_ERR_UNSUPPORTED,
                           "cuda: op %s (\"%s\") has neither a fused task nor a plain kernel; try "
                           "--device cpu",
                           mgl_op_info_of(op->kind)->name, out->name);
    }
    if (mgl_op_info_of(op->kind)->unit == MGL_UNIT_HEAD &&
        out->dims[out->rank - 1].number > MOST_HEAD_DIM) {
      return mgl_error_set(err, MGL_ERR_UNSUPPORTED,
                           "cuda: expected a head dim of at most %d, found %u in \"%s\"; try "
                           "--device cpu",
                           MOST_HEAD_DIM, out->dims[out->rank - 1].number, out->name);
    }
  }
  return logits != MGL_NO_TENSOR && program->tensors[logits].dtype == MGL_DTYPE_F32
             ? MGL_OK
             : mgl_error_set(err, MGL_ERR_UNSUPPORTED,
                             "cuda: the program computes no f32 \"logits\"; try --device cpu");
}

// --- memory --------------------------------------------------------------------------------------

static uint64_t take(mgl_cuda_plain *p, memory_kind kind, uint64_t bytes) {
  return mgl_cuda_take(&p->bytes[kind], bytes);
}

static memory_kind kind_of(const mgl_tensor *tensor) {
  switch (tensor->placement) {
    case MGL_PLACE_WEIGHT: return WEIGHTS;
    case MGL_PLACE_KV: return KV;
    case MGL_PLACE_ACTIVATION: return ACTIVATIONS;
    default: return STATE;
  }
}

// Vectors are f32.
static uint64_t weight_bytes(const mgl_tensor *tensor) {
  return tensor->rank == 1 ? tensor->dims[0].number * sizeof(float)
                           : tensor->dims[0].number * mgl_tensor_row_bytes(tensor);
}

// Of K of a layer; V lies behind it. There is a page more, for rows that only pad an iteration.
static uint64_t half_bytes(const mgl_cuda_plain *p, const mgl_tensor *kv) {
  uint64_t half = 0;
  (void)mgl_cuda_take(&half, ((uint64_t)p->sizes.page_count + SPARE) * p->sizes.limits.page_tokens *
                                 kv->dims[0].number * kv->dims[1].number *
                                 mgl_dtype_bytes(kv->dtype));
  return half;
}

static void lay_out_state(mgl_cuda_plain *p) {
  const mgl_plan_limits *l = &p->sizes.limits;
  for (uint32_t i = 0; i < INPUT_COUNT; i++) {
    uint64_t count = i == INPUT_BLOCK_TABLES
                         ? ((uint64_t)l->sequences + SPARE) * l->pages_per_sequence
                         : (uint64_t)l->tokens;
    p->inputs[i] = take(p, STATE, count * sizeof(uint32_t));
  }
  for (size_t i = 0; i < p->program->op_count; i++) {
    p->values[i] = take(p, STATE, p->program->ops[i].value_count * sizeof(float));
  }
  for (uint32_t i = 0; i < MGL_DTYPE_COUNT; i++) {
    if (mgl_dtype_is_code((mgl_dtype)i)) {
      p->codes[i] = take(p, STATE, CODE_VALUES * sizeof(float));
    }
  }
}

static mgl_status lay_out(mgl_cuda_plain *p, mgl_error *err) {
  const mgl_graph *program = p->program;
  const mgl_dim_values largest = {p->sizes.limits.tokens, p->sizes.logit_rows,
                                  p->sizes.limits.sequences};
  size_t activations = 0;
  mgl_byte_range *ranges = mgl_alloc_zeroed(program->tensor_count, sizeof *ranges);
  p->tensors = mgl_alloc_zeroed(program->tensor_count, sizeof *p->tensors);
  p->values = mgl_alloc_zeroed(program->op_count, sizeof *p->values);
  if (ranges == NULL || p->tensors == NULL || p->values == NULL) {
    mgl_free(ranges);
    return mgl_error_set(err, MGL_ERR_MEMORY, "out of memory for a program of %zu ops",
                         program->op_count);
  }
  // What a norm reads stays where it is until the linears behind it have read it, too.
  uint32_t *steps = p->norms == NULL ? NULL : p->norms + program->op_count;
  mgl_status status = mgl_cpu_layout_pieces(program, &largest, steps, ranges, &activations, err);
  p->bytes[ACTIVATIONS] = activations;
  for (size_t i = 0; i < program->tensor_count && status == MGL_OK; i++) {
    const mgl_tensor *tensor = &program->tensors[i];
    switch (kind_of(tensor)) {
      case WEIGHTS: p->tensors[i] = take(p, WEIGHTS, weight_bytes(tensor)); break;
      case KV: p->tensors[i] = take(p, KV, 2 * half_bytes(p, tensor)); break;
      case ACTIVATIONS: p->tensors[i] = ranges[i].begin; break;
      default: break;  // inputs, below
    }
  }
  mgl_free(ranges);
  MGL_TRY(status);
  lay_out_state(p);
  for (uint32_t i = 0; i < INPUT_COUNT; i++) {
    uint32_t tensor =
        input_names[i] == NULL ? MGL_NO_TENSOR : mgl_graph_find(program, input_names[i]);
    if (tensor != MGL_NO_TENSOR) {
      p->tensors[tensor] = p->inputs[i];
    }
  }
  return MGL_OK;
}

// An object with its layout, and nothing taken yet.
static mgl_status begin(const mgl_cuda_device *device, const mgl_cuda_plain_options *options,
                        mgl_cuda_plain **out, mgl_error *err) {
  *out = NULL;
  MGL_TRY(mgl_cuda_plain_check(options->program, err));
  mgl_cuda_plain *p = mgl_alloc_zeroed(1, sizeof *p);
  MGL_TRY(mgl_alloc_check(p, err, "a GPU program"));
  p->device = device;
  p->program = options->program;
  p->get_code = options->get_code != NULL ? options->get_code : mgl_cuda_code_get;
  p->sizes = options->sizes;
  p->last = UINT32_MAX;
  p->sizes.workers = device->sm_count;
  p->vocab = p->program->tensors[mgl_graph_find(p->program, "logits")].dims[1].number;
  p->share_sums = mgl_cuda_plain_share_sums(p->program);
  mgl_status status =
      options->fused_order ? mgl_cuda_plain_find_norms(p->program, &p->norms, err) : MGL_OK;
  if (status == MGL_OK) {
    status = lay_out(p, err);
  }
  if (status != MGL_OK) {
    mgl_cuda_plain_destroy(p);
    return status;
  }
  *out = p;
  return MGL_OK;
}

mgl_status mgl_cuda_plain_measure(const mgl_cuda_device *device,
                                  const mgl_cuda_plain_options *options, mgl_sizes *sizes,
                                  mgl_error *err) {
  mgl_cuda_plain *p = NULL;
  size_t free_bytes = 0;
  size_t total_bytes = 0;
  MGL_CUDA_TRY(&device->driver, memory_info, err, &free_bytes, &total_bytes);
  MGL_TRY(begin(device, options, &p, err));
  sizes->workers = p->sizes.workers;
  sizes->free_bytes = free_bytes;
  sizes->weight_bytes = p->bytes[WEIGHTS];
  sizes->mapped_bytes = 0;
  sizes->activation_bytes = p->bytes[ACTIVATIONS];
  sizes->loading_bytes = 0;
  sizes->kv_bytes_per_token = mgl_graph_kv_bytes_per_token(p->program);
  sizes->other_bytes = p->bytes[STATE];
  mgl_cuda_plain_destroy(p);
  return MGL_OK;
}

static mgl_status allocate(mgl_cuda_plain *p, mgl_error *err) {
  const mgl_cuda_driver *driver = &p->device->driver;
  size_t free_bytes = 0;
  size_t total_bytes = 0;
  uint64_t all = 0;
  MGL_CUDA_TRY(driver, memory_info, err, &free_bytes, &total_bytes);
  for (uint32_t i = 0; i < KINDS; i++) {
    all += p->bytes[i];
  }
  if (all > free_bytes) {
    const double mib = 1 << 20;
    return mgl_error_set(err, MGL_ERR_MEMORY,
                         "the GPU has %.0f MiB free, and the model needs %.0f: weights %.0f, KV "
                         "cache %.0f, activations %.0f; fewer sequences, a shorter context or a "
                         "memory share may help",
                         (double)free_bytes / mib, (double)all / mib,
                         (double)p->bytes[WEIGHTS] / mib, (double)p->bytes[KV] / mib,
                         (double)p->bytes[ACTIVATIONS] / mib);
  }
  for (uint32_t i = 0; i < KINDS; i++) {
    if (p->bytes[i] > 0) {
      MGL_CUDA_TRY(driver, memory_alloc, err, &p->memory[i], (size_t)p->bytes[i]);
    }
  }
  p->image = mgl_alloc_zeroed(
      (size_t)(p->inputs[INPUT_BLOCK_TABLES] / sizeof *p->image) +
          ((size_t)p->sizes.limits.sequences + SPARE) * p->sizes.limits.pages_per_sequence,
      sizeof *p->image);
  return mgl_alloc_check(p->image, err, "plans");
}

// --- what is there before the first iteration ----------------------------------------------------

static mgl_status put(const mgl_cuda_plain *p, memory_kind kind, uint64_t at, const void *from,
                      uint64_t bytes, mgl_error *err) {
  if (bytes > 0) {
    MGL_CUDA_TRY(&p->device->driver, copy_to_device, err, p->memory[kind] + at, from,
                 (size_t)bytes);
  }
  return MGL_OK;
}

static mgl_status put_weights(mgl_cuda_plain *p, const mgl_cpu_weights *found,
                              const mgl_weights_progress *progress, mgl_error *err) {
  p->step_bytes = found->step_bytes;
  for (size_t i = 0; i < p->program->tensor_count; i++) {
    const mgl_tensor *tensor = &p->program->tensors[i];
    if (tensor->placement != MGL_PLACE_WEIGHT) {
      continue;
    }
    uint64_t bytes = weight_bytes(tensor);
    uint32_t experts = mgl_tensor_experts(tensor);
    if (experts == 0) {
      MGL_TRY(put(p, WEIGHTS, p->tensors[i], found->data[i], bytes, err));
    }
    for (uint32_t e = 0; e < experts; e++) {  // one after the other
      const void *const *matrices = found->data[i];
      uint64_t each = bytes / experts;
      MGL_TRY(put(p, WEIGHTS, p->tensors[i] + e * each, matrices[e], each, err));
    }
    if (progress->report != NULL) {
      progress->report(progress->context, p->tensors[i] + bytes, p->bytes[WEIGHTS]);
    }
  }
  return MGL_OK;
}

// As the CPU has them: matrices in their dtype or codes, vectors as f32.
static mgl_status upload_weights(mgl_cuda_plain *p, const mgl_cuda_plain_options *options,
                                 mgl_error *err) {
  const mgl_build *build = options->build;
  mgl_topology *topology = NULL;
  mgl_team *team = NULL;
  mgl_cpu_weights found = {0};
  mgl_weight_source source = options->checkpoint == NULL ? MGL_WEIGHTS_DUMMY : MGL_WEIGHTS_MAPPED;
  mgl_status status = mgl_topology_create(&topology, err);
  if (status == MGL_OK) {
    status = mgl_team_create(topology, build->threads, &team, err);
  }
  if (status == MGL_OK) {
    status = mgl_cpu_weights_bind(p->program, options->checkpoint, source, build->seed, team,
                                  topology, NULL, &found, err);
  }
  if (status == MGL_OK) {
    if (source == MGL_WEIGHTS_DUMMY) {
      mgl_cpu_route_dummies(&found, build->routing);
    }
    status = put_weights(p, &found, &build->progress, err);
    mgl_cpu_weights_release(&found);
  }
  mgl_team_destroy(team);
  mgl_topology_destroy(topology);
  return status;
}

static mgl_status upload_constants(const mgl_cuda_plain *p, mgl_error *err) {
  for (size_t i = 0; i < p->program->op_count; i++) {
    const mgl_op *op = &p->program->ops[i];
    MGL_TRY(put(p, STATE, p->values[i], op->values, op->value_count * sizeof(float), err));
  }
  for (uint32_t i = 0; i < MGL_DTYPE_COUNT; i++) {
    float values[CODE_VALUES] = {0};
    if (!mgl_dtype_is_code((mgl_dtype)i)) {
      continue;
    }
    for (uint32_t bits = 0; bits < (mgl_code_is_nibble((mgl_dtype)i) ? 16 : CODE_VALUES); bits++) {
      values[bits] = mgl_code_value((mgl_dtype)i, bits);
    }
    MGL_TRY(put(p, STATE, p->codes[i], values, sizeof values, err));
  }
  return MGL_OK;
}

static mgl_status load_module(mgl_cuda_plain *p, const char *source, const char *kernel, void **out,
                              mgl_error *err) {
  const mgl_cuda_driver *driver = &p->device->driver;
  const mgl_cuda_shape any = {.head_dim = 32, .group = 1};  // these sources do not depend on it
  mgl_cuda_code code = {0};
  MGL_TRY(p->get_code(p->device, source, &any, kernel, &code, err));
  mgl_status status = MGL_CUDA_CALL(driver, module_load, err, out, code.cubin);
  if (code.note[0] != 0) {
    (void)snprintf(p->note, sizeof p->note, "%s", code.note);
  }
  mgl_free(code.cubin);
  return status;
}

static mgl_status load_kernels(mgl_cuda_plain *p, mgl_error *err) {
  const char *any = kernel_names[p->program->ops[0].kind];
  MGL_TRY(load_module(p, "kernels/cuda/plain.cu", any, &p->module, err));
  for (size_t i = 0; i < p->program->op_count; i++) {
    mgl_op_kind kind = p->program->ops[i].kind;
    if (p->kernels[kind] == NULL && p->program->ops[i].custom == NULL) {
      MGL_CUDA_TRY(&p->device->driver, module_function, err, &p->kernels[kind], p->module,
                   kernel_names[kind]);
    }
  }
  return mgl_cuda_customs_create(p->device, p->program, p->get_code, p->note, &p->customs, err);
}

static mgl_status make_schedule(mgl_cuda_plain *p, mgl_error *err) {
  const mgl_kernels_options options = {.tokens = p->sizes.limits.tokens,
                                       .logit_rows = p->sizes.logit_rows,
                                       .workers = p->sizes.workers,
                                       .strides = 1};
  return mgl_lower_kernels(p->program, &options, &p->schedule, err);
}

mgl_status mgl_cuda_plain_create(const mgl_cuda_device *device,
                                 const mgl_cuda_plain_options *options, mgl_cuda_plain **out,
                                 mgl_error *err) {
  mgl_cuda_plain *p = NULL;
  *out = NULL;
  MGL_TRY(begin(device, options, &p, err));
  mgl_status status = make_schedule(p, err);
  if (status == MGL_OK) {
    status = load_kernels(p, err);
  }
  if (status == MGL_OK) {
    status = allocate(p, err);
  }
  if (status == MGL_OK) {
    status = upload_weights(p, options, err);
  }
  if (status == MGL_OK) {
    status = upload_constants(p, err);
  }
  if (status != MGL_OK) {
    mgl_cuda_plain_destroy(p);
    return status;
  }
  *out = p;
  return MGL_OK;
}

void mgl_cuda_plain_destroy(mgl_cuda_plain *p) {
  if (p == NULL) {
    return;
  }
  for (uint32_t i = 0; i < KINDS; i++) {
    MGL_CUDA_RELEASE(&p->device->driver, memory_free, p->memory[i]);
  }
  MGL_CUDA_RELEASE(&p->device->driver, module_unload, p->module);
  MGL_CUDA_RELEASE(&p->device->driver, module_unload, p->ceiling_module);
  mgl_cuda_customs_destroy(p->customs);
  mgl_schedule_destroy(p->schedule);
  mgl_free(p->tensors);
  mgl_free(p->values);
  mgl_free(p->norms);
  mgl_free(p->image);
  mgl_free(p);
}

// --- the plan ------------------------------------------------------------------------------------

static mgl_status check_plan(const mgl_cuda_plain *p, const mgl_plan *plan, mgl_error *err) {
  const mgl_plan_limits *l = &p->sizes.limits;
  if (plan->token_count < 1 || plan->token_count > l->tokens ||
      plan->sequence_count > l->sequences || plan->logit_row_count > p->sizes.logit_rows ||
      plan->limits.page_tokens != l->page_tokens ||
      plan->limits.pages_per_sequence != l->pages_per_sequence) {
    return mgl_error_set(err, MGL_ERR_LIMIT,
                         "a plan of %u tokens, %u sequences and %u rows of logits: the GPU program "
                         "is for up to %u, %u and %u",
                         plan->token_count, plan->sequence_count, plan->logit_row_count, l->tokens,
                         l->sequences, p->sizes.logit_rows);
  }
  for (uint32_t i = 0; i < plan->page_start[plan->sequence_count]; i++) {
    if (plan->pages[i] < 0 || (uint32_t)plan->pages[i] >= p->sizes.page_count) {
      return mgl_error_set(err, MGL_ERR_ARGUMENT, "a plan: expected KV pages of 0 to %u, found %d",
                           p->sizes.page_count - 1, plan->pages[i]);
    }
  }
  return MGL_OK;
}

static uint32_t *image_of(const mgl_cuda_plain *p, plan_input input) {
  return p->image + (p->inputs[input] - p->inputs[0]) / sizeof *p->image;
}

// Rows from the plan's on compute token 0 at position 0 of the spare page, and nobody reads their
// results.
static void pad_plan(mgl_cuda_plain *p, const mgl_dim_values *plan, const mgl_dim_values *padded) {
  const uint32_t pages = p->sizes.limits.pages_per_sequence;
  for (uint32_t row = plan->tokens; row < padded->tokens; row++) {
    image_of(p, INPUT_TOKENS)[row] = 0;
    image_of(p, INPUT_POSITIONS)[row] = 0;
    image_of(p, INPUT_LENGTHS)[row] = 1;
    image_of(p, INPUT_SLOTS)[row] = p->sizes.page_count * p->sizes.limits.page_tokens;
    image_of(p, INPUT_SEQUENCES)[row] = plan->sequences;
  }
  for (uint32_t row = plan->logit_rows; row < padded->logit_rows; row++) {
    image_of(p, INPUT_LOGIT_ROWS)[row] = 0;
  }
  for (uint32_t i = 0; i < pages; i++) {
    image_of(p, INPUT_BLOCK_TABLES)[plan->sequences * pages + i] = p->sizes.page_count;
  }
}

static void fill_plan(mgl_cuda_plain *p, const mgl_plan *plan) {
  const size_t each = sizeof *p->image;
  uint64_t tables = (uint64_t)plan->sequence_count * plan->limits.pages_per_sequence;
  memcpy(image_of(p, INPUT_TOKENS), plan->tokens, plan->token_count * each);
  memcpy(image_of(p, INPUT_POSITIONS), plan->positions, plan->token_count * each);
  memcpy(image_of(p, INPUT_LENGTHS), plan->rope_lengths, plan->token_count * each);
  memcpy(image_of(p, INPUT_SLOTS), plan->slots, plan->token_count * each);
  memcpy(image_of(p, INPUT_LOGIT_ROWS), plan->logit_rows, plan->logit_row_count * each);
  memcpy(image_of(p, INPUT_BLOCK_TABLES), plan->block_tables, tables * each);
  for (uint32_t i = 0; i < plan->sequence_count; i++) {
    for (uint32_t row = plan->query_start[i]; row < plan->query_start[i + 1]; row++) {
      image_of(p, INPUT_SEQUENCES)[row] = i;
    }
  }
}

mgl_status mgl_cuda_plain_stage(mgl_cuda_plain *p, const mgl_plan *plan,
                                const mgl_dim_values *padded, mgl_error *err) {
  mgl_dim_values values = {0};
  if (plan != NULL) {
    MGL_TRY(check_plan(p, plan, err));
    values = (mgl_dim_values){plan->token_count, plan->logit_row_count, plan->sequence_count};
    fill_plan(p, plan);
  }
  pad_plan(p, &values, padded);
  p->live = true;
  uint64_t tables = ((uint64_t)values.sequences + SPARE) * p->sizes.limits.pages_per_sequence;
  return put(p, STATE, p->inputs[0], p->image,
             p->inputs[INPUT_BLOCK_TABLES] - p->inputs[0] + tables * sizeof *p->image, err);
}

// --- launches ------------------------------------------------------------------------------------

static void *pointer_to(const mgl_cuda_plain *p, memory_kind kind, uint64_t at) {
  return (void *)(uintptr_t)(p->memory[kind] + at);
}

static mgl_plain_tensor bind_tensor(const mgl_cuda_plain *p, uint32_t index,
                                    const mgl_dim_values *values) {
  const mgl_tensor *tensor = &p->program->tensors[index];
  memory_kind kind = kind_of(tensor);
  bool is_vector = kind == WEIGHTS && tensor->rank == 1;
  mgl_plain_tensor out = {.data = pointer_to(p, kind, p->tensors[index]),
                          .dtype = is_vector ? MGL_DTYPE_F32 : (uint32_t)tensor->dtype,
                          .rows = (uint32_t)mgl_dim_value(tensor->dims[0], values),
                          .width = (uint32_t)mgl_tensor_row_elements(tensor),
                          .last = tensor->rank == 1 ? 1 : tensor->dims[tensor->rank - 1].number,
                          .row_bytes = mgl_tensor_row_bytes(tensor)};
  if (mgl_tensor_experts(tensor) != 0) {
    out.rows *= tensor->dims[1].number;
    out.width = out.last;
    out.row_bytes = mgl_tensor_inner_bytes(tensor);
  }
  if (kind == KV) {
    out.v = pointer_to(p, KV, p->tensors[index] + half_bytes(p, tensor));
  }
  if (tensor->group != 0) {
    mgl_row_layout layout = mgl_row_layout_of(mgl_tensor_form(tensor), out.width);
    out.code = pointer_to(p, STATE, p->codes[tensor->dtype]);
    out.group = tensor->group;
    out.scales = (uint32_t)layout.scales;
    out.offsets = tensor->offsets ? (uint32_t)layout.offsets : 0;
  }
  return out;
}

// Of twin/plain_op.h, under a plan.
static uint64_t units_of(const mgl_cuda_plain *p, const mgl_op *op, const mgl_plain_op *bound,
                         const mgl_dim_values *values) {
  uint64_t elements = mgl_tensor_elements(&p->program->tensors[op->output], values);
  switch (mgl_op_info_of(op->kind)->unit) {
    case MGL_UNIT_ROW: return values->tokens;
    case MGL_UNIT_VECTOR: return elements / bound->in[1].rows;  // of as long a norm
    case MGL_UNIT_HEAD: return elements / bound->out.last;
    case MGL_UNIT_EXPERT:
    case MGL_UNIT_COLUMN: return elements == 0 ? 0 : bound->out.width;
    case MGL_UNIT_ELEMENT: return elements;
    default: return 1;
  }
}

static unsigned most_blocks(const mgl_cuda_plain *p) {
  return p->device->sm_count * BLOCKS_EACH;
}

// Blocks that have something to do, as far as that many can run.
static unsigned blocks_of(const mgl_cuda_plain *p, const mgl_op *op, const mgl_plain_op *bound) {
  uint64_t blocks = bound->units;
  uint64_t most = most_blocks(p);
  mgl_unit unit = mgl_op_info_of(op->kind)->unit;
  if (unit == MGL_UNIT_ELEMENT) {
    blocks = (blocks + MGL_PLAIN_THREADS - 1) / MGL_PLAIN_THREADS;
  } else if (unit == MGL_UNIT_COLUMN && bound->fused_order != 0) {
    uint64_t tokens = (bound->in[0].rows + MGL_ORDERED_TOKENS - 1) / MGL_ORDERED_TOKENS;
    blocks = (blocks + MGL_ORDERED_FEATURES - 1) / MGL_ORDERED_FEATURES * tokens;
  } else if (unit == MGL_UNIT_COLUMN) {
    uint64_t tokens = (bound->in[0].rows + MGL_PLAIN_TOKENS - 1) / MGL_PLAIN_TOKENS;
    uint64_t tiles = (blocks + MGL_PLAIN_FEATURES - 1) / MGL_PLAIN_FEATURES * tokens;
    blocks = (tiles + MGL_PLAIN_THREADS / 32 - 1) / (MGL_PLAIN_THREADS / 32);
  } else if (unit == MGL_UNIT_EXPERT) {
    blocks = most;  // data say how many have something to do
  }
  return (unsigned)(blocks < most ? blocks : most);
}

static void *address_of(const mgl_cuda_plain *p, uint32_t tensor) {
  return pointer_to(p, kind_of(&p->program->tensors[tensor]), p->tensors[tensor]);
}

static mgl_status launch_custom(const mgl_cuda_plain *p, uint32_t op_idx,
                                const mgl_dim_values *values, void *stream, mgl_error *err) {
  const mgl_op *op = &p->program->ops[op_idx];
  mgl_custom_launch launch = mgl_cuda_custom_bind(p->program, op, values);
  for (uint32_t i = 0; i < op->input_count; i++) {
    launch.inputs[i] = address_of(p, op->inputs[i]);
  }
  launch.output = address_of(p, op->output);
  return mgl_cuda_custom_launch(p->customs, op_idx, &launch, most_blocks(p), stream, err);
}

// The order of fused tasks, and the norm in front of an op, where it runs too.
static void bind_order(const mgl_cuda_plain *p, uint32_t op_idx, const mgl_dim_values *values,
                       mgl_plain_op *bound) {
  bound->fused_order = p->norms != NULL;
  bound->share_sums = p->share_sums;
  if (p->norms == NULL || p->norms[op_idx] == MGL_CUDA_NO_NORM || p->norms[op_idx] < p->first) {
    return;
  }
  const mgl_op *norm = &p->program->ops[p->norms[op_idx]];
  bound->normed = 1;
  bound->norm_eps = (float)norm->attrs[MGL_ATTR_EPS];
  bound->norm_x = bind_tensor(p, mgl_op_input(norm, MGL_ROLE_X), values);
  bound->norm_weight = bind_tensor(p, mgl_op_input(norm, MGL_ROLE_NORM), values);
  if (mgl_op_input(norm, MGL_ROLE_ROWS) != MGL_NO_TENSOR) {
    bound->norm_rows = bind_tensor(p, mgl_op_input(norm, MGL_ROLE_ROWS), values);
  }
}

mgl_status mgl_cuda_plain_launch(const mgl_cuda_plain *p, uint32_t op_idx,
                                 const mgl_dim_values *values, void *stream, mgl_error *err) {
  const mgl_op *op = &p->program->ops[op_idx];
  assert(p->live);  // an op that runs behind the end of its iteration
  if (op_idx < p->first || op_idx > p->last) {
    return MGL_OK;
  }
  if (op->custom != NULL) {
    return launch_custom(p, op_idx, values, stream, err);
  }
  mgl_plain_op bound = {.out = bind_tensor(p, op->output, values),
                        .input_count = op->input_count,
                        .value_count = op->value_count,
                        .values = pointer_to(p, STATE, p->values[op_idx]),
                        .sequences = pointer_to(p, STATE, p->inputs[INPUT_SEQUENCES]),
                        .table_stride = p->sizes.limits.pages_per_sequence,
                        .page_tokens = p->sizes.limits.page_tokens};
  for (uint32_t i = 0; i < op->input_count; i++) {
    bound.in[i] = bind_tensor(p, op->inputs[i], values);
  }
  memcpy(bound.attrs, op->attrs, sizeof bound.attrs);
  bind_order(p, op_idx, values, &bound);
  bound.units = units_of(p, op, &bound, values);
  if (bound.units == 0) {
    return MGL_OK;  // no rows with logits
  }
  void *parameters[] = {&bound};
  return MGL_CUDA_CALL(&p->device->driver, launch, err, p->kernels[op->kind],
                       blocks_of(p, op, &bound), 1, 1, MGL_PLAIN_THREADS, 1, 1, 0, stream,
                       parameters, NULL);
}

// Level 0's look at what an op computed: it waits for the op.
static mgl_status check_op(const mgl_cuda_plain *p, uint32_t op_idx, const mgl_dim_values *values,
                           mgl_error *err) {
  const mgl_op *op = &p->program->ops[op_idx];
  const mgl_tensor *out = &p->program->tensors[op->output];
  uint64_t count = mgl_tensor_elements(out, values);
  size_t bytes = (size_t)count * mgl_dtype_bytes(out->dtype);
  if (kind_of(out) != ACTIVATIONS || bytes == 0) {
    return MGL_OK;
  }
  void *copy = mgl_alloc(bytes);
  MGL_TRY(mgl_alloc_check(copy, err, "a copy of \"%s\"", out->name));
  const mgl_cuda_driver *driver = &p->device->driver;
  mgl_cu_ptr from = p->memory[ACTIVATIONS] + p->tensors[op->output];
  mgl_status status = MGL_CUDA_CALL(driver, copy_to_host, err, copy, from, bytes);
  if (status == MGL_OK) {
    status = mgl_check_numbers(p->program, op, copy, count, err);
  }
  mgl_free(copy);
  return status;
}

// Copies and kernels share the default stream, so each waits for those before it.
mgl_status mgl_cuda_plain_run(mgl_cuda_plain *p, const mgl_plan *plan, bool check_numbers,
                              float *logits, mgl_error *err) {
  const mgl_schedule *s = p->schedule;
  const mgl_dim_values values = {plan->token_count, plan->logit_row_count, plan->sequence_count};
  MGL_TRY(mgl_cuda_plain_stage(p, plan, &values, err));
  for (uint32_t i = 0; i < s->step_count; i++) {
    MGL_TRY(mgl_cuda_plain_launch(p, s->ops[s->steps[i].op].op, &values, NULL, err));
    if (check_numbers) {
      MGL_TRY(check_op(p, s->ops[s->steps[i].op].op, &values, err));
    }
  }
  return mgl_cuda_plain_fetch(p, plan, logits, err);
}

// The iteration is over: what the plan handed to kernels becomes what no plan has, so that a graph
// which is launched behind its end does not read another iteration's.
static mgl_status forget_plan(mgl_cuda_plain *p, mgl_error *err) {
  p->live = false;
#ifndef NDEBUG
  const uint64_t begin = p->inputs[0], tables = p->inputs[INPUT_BLOCK_TABLES];
  const mgl_plan_limits *l = &p->sizes.limits;
  MGL_CUDA_TRY(
      &p->device->driver, memory_set, err, p->memory[STATE] + begin, 0xff,
      (size_t)(tables - begin +
               ((uint64_t)l->sequences + SPARE) * l->pages_per_sequence * sizeof *p->image));
#endif
  return MGL_OK;
}

mgl_status mgl_cuda_plain_fetch(mgl_cuda_plain *p, const mgl_plan *plan, float *logits,
                                mgl_error *err) {
  const mgl_cuda_driver *driver = &p->device->driver;
  if (plan == NULL || plan->logit_row_count == 0) {
    MGL_CUDA_TRY(driver, context_synchronize, err);
    return forget_plan(p, err);
  }
  uint64_t at = p->tensors[mgl_graph_find(p->program, "logits")];
  MGL_CUDA_TRY(driver, copy_to_host, err, logits, p->memory[ACTIVATIONS] + at,
               (size_t)plan->logit_row_count * p->vocab * sizeof *logits);
  return forget_plan(p, err);
}

mgl_status mgl_cuda_plain_choose(mgl_cuda_plain *p, uint32_t first, uint32_t last, mgl_error *err) {
  const mgl_cuda_driver *driver = &p->device->driver;
  p->first = first;
  p->last = last;
  MGL_CUDA_TRY(driver, memory_set, err, p->memory[ACTIVATIONS], 0xff,
               (size_t)p->bytes[ACTIVATIONS]);
  return mgl_cuda_check(driver, driver->context_synchronize(), "memory_set", err);
}

mgl_cu_ptr mgl_cuda_plain_address(const mgl_cuda_plain *p, uint32_t tensor) {
  return p->memory[kind_of(&p->program->tensors[tensor])] + p->tensors[tensor];
}

mgl_cu_ptr mgl_cuda_plain_v_address(const mgl_cuda_plain *p, uint32_t tensor) {
  return mgl_cuda_plain_address(p, tensor) + half_bytes(p, &p->program->tensors[tensor]);
}

const mgl_cuda_device *mgl_cuda_plain_device(const mgl_cuda_plain *p) {
  return p->device;
}

const mgl_graph *mgl_cuda_plain_program(const mgl_cuda_plain *p) {
  return p->program;
}

const mgl_sizes *mgl_cuda_plain_sizes(const mgl_cuda_plain *p) {
  return &p->sizes;
}

// -------------------------------------------------------------------------------------------------

uint64_t mgl_cuda_plain_step_bytes(const mgl_cuda_plain *p) {
  return p->step_bytes;
}

const char *mgl_cuda_plain_note(const mgl_cuda_plain *p) {
  return p->note;
}

mgl_status mgl_cuda_plain_read_ceiling(mgl_cuda_plain *p, uint32_t passes, double *out_bytes_per_s,
                                       mgl_error *err) {
  *out_bytes_per_s = 0;
  if (p->ceiling_module == NULL) {
    MGL_TRY(load_module(p, "kernels/cuda/weights.cu", "mgl_read_ceiling", &p->ceiling_module, err));
  }
  const mgl_cuda_ceiling ceiling = {.device = p->device,
                                    .module = p->ceiling_module,
                                    .memory = p->memory[WEIGHTS],
                                    .bytes = p->bytes[WEIGHTS],
                                    .out = p->memory[ACTIVATIONS]};  // free between iterations
  return mgl_cuda_ceiling_measure(&ceiling, passes, out_bytes_per_s, err);
}
