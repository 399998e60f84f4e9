#include "device/cpu/cpu_reference.h"

#include <math.h>

#include "base/alloc.h"
#include "device/cpu/cpu_look.h"

enum {
  // Additions that an op without a reduction counts as: polynomials of exp, sin and cos.
  USUAL_TERMS = 16,
};

static bool is_activation(const mgl_graph *graph, uint32_t tensor) {
  return graph->tensors[tensor].placement == MGL_PLACE_ACTIVATION;
}

static mgl_status make_values(mgl_cpu_reference *r, const mgl_graph *graph,
                              const mgl_dim_values *largest, mgl_error *err) {
  r->values = mgl_alloc_zeroed(graph->tensor_count, sizeof *r->values);
  bool made = r->values != NULL;
  for (uint32_t i = 0; made && i < graph->tensor_count; i++) {
    if (is_activation(graph, i)) {
      size_t count = (size_t)mgl_tensor_elements(&graph->tensors[i], largest);
      r->values[i] = mgl_alloc_zeroed(count, sizeof **r->values);
      made = r->values[i] != NULL;
    }
  }
  return made ? MGL_OK
              : mgl_error_set(err, MGL_ERR_MEMORY, "out of memory for the values of %zu tensors",
                              graph->tensor_count);
}

mgl_status mgl_cpu_reference_create(const mgl_graph *graph, const mgl_checkpoint *checkpoint,
                                    const mgl_build *build, const mgl_sizes *sizes,
                                    mgl_cpu_reference *out, mgl_error *err) {
  static const mgl_weights_progress silent = {0};
  const mgl_dim_values largest = {sizes->limits.tokens, sizes->logit_rows, sizes->limits.sequences};
  const mgl_cpu_program_options options = {.simd = MGL_SIMD_SCALAR, .largest = largest};
  *out = (mgl_cpu_reference){0};
  mgl_status status = mgl_topology_create(&out->topology, err);
  if (status == MGL_OK) {
    status = mgl_team_create(out->topology, build->threads, &out->team, err);
  }
  if (status == MGL_OK) {
    // It is run once, for which a copy does not pay.
    const mgl_weight_source source =
        build->weights == MGL_WEIGHTS_AUTO ? MGL_WEIGHTS_MAPPED : build->weights;
    status = mgl_cpu_weights_bind(graph, checkpoint, source, build->seed, out->team, out->topology,
                                  &silent, &out->weights, err);
  }
  if (status == MGL_OK) {
    const mgl_cpu_memory_options memory = {.page_tokens = sizes->limits.page_tokens,
                                           .page_count = sizes->page_count,
                                           .workers = mgl_team_size(out->team)};
    status = mgl_cpu_memory_create(&out->weights, &memory, out->topology, &out->memory, err);
  }
  if (status == MGL_OK) {
    status = mgl_cpu_program_create(graph, out->memory, &options, &out->program, err);
  }
  if (status == MGL_OK) {
    status = make_values(out, graph, &largest, err);
  }
  if (status != MGL_OK) {
    mgl_cpu_reference_destroy(out);
  }
  return status;
}

void mgl_cpu_reference_destroy(mgl_cpu_reference *r) {
  for (uint32_t i = 0; r->values != NULL && i < r->weights.graph->tensor_count; i++) {
    mgl_free(r->values[i]);
  }
  mgl_free(r->values);
  mgl_cpu_program_destroy(r->program);
  mgl_cpu_memory_destroy(r->memory);
  mgl_cpu_weights_release(&r->weights);
  mgl_team_destroy(r->team);
  mgl_topology_destroy(r->topology);
  *r = (mgl_cpu_reference){0};
}

// --- moving results ------------------------------------------------------------------------------

// Uniform in [-1, 1).
static float next_random(uint64_t *state) {
  *state = *state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
  return (float)(*state >> 40) / (1 << 23) - 1;
}

// Terms of the longest sum behind an element of the result.
static double terms_of(const mgl_cpu_program *p, const mgl_op *op) {
  const mgl_op_info *info = mgl_op_info_of(op->kind);
  if (info->unit == MGL_UNIT_COLUMN || info->unit == MGL_UNIT_EXPERT) {
    return (double)mgl_tensor_row_elements(mgl_graph_input(p->graph, op, MGL_ROLE_X));
  }
  if (info->unit == MGL_UNIT_HEAD) {
    const mgl_tensor *q = mgl_graph_input(p->graph, op, MGL_ROLE_Q);
    return q->dims[2].number +
           (double)mgl_cpu_plan(p)->limits.pages_per_sequence * mgl_cpu_plan(p)->limits.page_tokens;
  }
  if (info->unit == MGL_UNIT_VECTOR) {
    return mgl_op_vector_elements(p->graph, op);
  }
  return USUAL_TERMS;
}

// One unit in the last place of a bf16 of that size.
static float bf16_step(float value) {
  int exponent = 0;
  (void)frexpf(value, &exponent);
  return ldexpf(1, exponent - 8);
}

// Moves rows [count / width, width]: of bf16, each element by one unit in its last place up, down
// or not; of f32, by up to what so many additions may come to (a random walk), of the element or of
// the row's root of the mean square, since terms may cancel each other.
static void move(float *values, size_t count, size_t width, mgl_dtype dtype, double terms,
                 uint64_t *state) {
  float walk = 0x1p-23f * (float)sqrt(terms);
  for (size_t first = 0; first < count; first += width) {
    double squares = 0;
    for (size_t i = first; i < first + width; i++) {
      squares += (double)values[i] * values[i];
    }
    float usual = (float)sqrt(squares / (double)width);
    for (size_t i = first; i < first + width; i++) {
      float random = next_random(state);
      values[i] += dtype == MGL_DTYPE_BF16 ? rintf(1.5f * random) * bf16_step(values[i])
                                           : random * walk * fmaxf(fabsf(values[i]), usual);
    }
  }
}

// --- running -------------------------------------------------------------------------------------

typedef struct op_share {
  const mgl_cpu_reference *reference;
  uint32_t op;
} op_share;

static void run_share(void *context, uint32_t worker) {
  const op_share *share = context;
  const mgl_cpu_program *p = share->reference->program;
  size_t begin = 0;
  size_t end = 0;
  mgl_team_share(worker, mgl_team_size(share->reference->team), mgl_cpu_op_units(p, share->op),
                 mgl_cpu_op_grain(p, share->op), &begin, &end);
  if (begin < end) {
    mgl_cpu_op_run(p, share->op, worker, begin, end);
  }
}

static size_t elements_of(const mgl_cpu_reference *r, uint32_t tensor) {
  return (size_t)mgl_cpu_program_elements(r->program, tensor);
}

// What goes into the cache is rounded there, where only attention sees it: its inputs are moved.
static void move_cached(mgl_cpu_reference *r, const mgl_op *op, uint64_t *state) {
  mgl_dtype dtype = r->program->graph->tensors[op->output].dtype;
  for (uint32_t i = 0; i < op->input_count; i++) {
    if (is_activation(r->program->graph, op->inputs[i])) {
      size_t count = elements_of(r, op->inputs[i]);
      move(mgl_cpu_program_tensor(r->program, op->inputs[i]), count, count, dtype, 1, state);
    }
  }
}

mgl_status mgl_cpu_reference_run(mgl_cpu_reference *r, const mgl_plan *plan, const bool *ops,
                                 uint64_t seed, mgl_error *err) {
  mgl_cpu_program *p = r->program;
  const mgl_graph *graph = p->graph;
  uint64_t state = seed;
  mgl_cpu_program_set_plan(p, plan);
  for (uint32_t i = 0; i < graph->op_count; i++) {
    const mgl_op *op = &graph->ops[i];
    const mgl_tensor *output = &graph->tensors[op->output];
    if (!ops[i]) {
      continue;
    }
    for (uint32_t j = 0; j < op->input_count; j++) {
      uint32_t input = op->inputs[j];
      if (is_activation(graph, input)) {
        MGL_TRY(mgl_cpu_write_activation(p, graph->tensors[input].name, r->values[input],
                                         elements_of(r, input), err));
      }
    }
    if (seed != 0 && output->placement == MGL_PLACE_KV) {
      move_cached(r, op, &state);
    }
    mgl_team_run(r->team, run_share, &(op_share){.reference = r, .op = i});
    if (output->placement != MGL_PLACE_ACTIVATION) {
      continue;
    }
    float *values = r->values[op->output];
    size_t count = elements_of(r, op->output);
    MGL_TRY(mgl_cpu_read_activation(p, output->name, values, count, err));
    if (seed != 0) {
      move(values, count, (size_t)mgl_tensor_row_elements(output), output->dtype, terms_of(p, op),
           &state);
    }
  }
  mgl_cpu_program_end_plan(p);
  return MGL_OK;
}
