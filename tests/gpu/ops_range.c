// Some ops of a model through the whole pipeline, the others left out: the model's own task graphs,
// places, events and launch; tasks of the ops that are left out wait, do nothing and trigger. The
// range gets its inputs from the CPU's run of the ops before it, or random ones, and the K and V of
// earlier tokens from the CPU's cache; everything else is poisoned. From the same inputs the CPU's
// exact twin computes the range, and every result, and the K and V that attention writes, is
// compared with that (gpu_errors).
//
//   gpu_tests ops model=MODEL [from=OP] [to=OP] [tokens=N] [context=N] [alone=1] [inputs=random]
//                 [seed=N] [carried=0]
// OP: an op's number in the fused program of the CPU or the name of its result ("3.gated"); without
// `to`, the op `from` alone; without both, all. tokens: 1 to 64 of one sequence, behind `context`
// tokens. alone=1: each op of the range by itself, so that each one's error is its own. carried=0:
// tasks wait for events only.
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/text.h"
#include "gpu/gpu_bench.h"
#include "gpu/gpu_twin.h"

enum { TOKENS = 64, PAGES = 64, CONTEXT = PAGES * GPU_PAGE_TOKENS - TOKENS, LOOK = 4096 };

typedef struct range_options {
  const char *model, *from, *to;
  uint32_t tokens, context, seed;
  bool alone, random, events_only;
} range_options;

typedef struct range {
  gpu_bench *bench;
  const range_options *options;
  gpu_model model;
  gpu_twin cpu, exact;
  mgl_cuda_program *gpu;
  uint32_t graph;  // of the GPU, for that many tokens
  mgl_plan *plan;
  int32_t pages[PAGES];
  bool *is_input;  // [op_count] the range that runs reads it and does not make it
  double most;     // that the GPU's error may be of the CPU's in it
} range;

// The same values three times.
typedef struct buffers {
  const float *gpu, *cpu, *exact;
  size_t count;
} buffers;

// Attention has what is cached as an input here, so that the CPU rounds little but the result, and
// the GPU Q and the weights of softmax too.
static double most_ratio(const range *r, uint32_t first, uint32_t last) {
  double most = gpu_most_ratio(r->options->tokens);
  for (uint32_t op = first; op <= last; op++) {
    if (r->cpu.fused->ops[op].kind == MGL_OP_ATTEND) {
      return most - sqrt(8.0 / 6) + sqrt(3.0);
    }
  }
  return most;
}

static const mgl_tensor *result_of(const range *r, uint32_t op) {
  return &r->cpu.fused->tensors[r->cpu.fused->ops[op].output];
}

// --- preparation ---------------------------------------------------------------------------------

static void make_plan(range *r, uint32_t position, uint32_t count) {
  int32_t tokens[TOKENS];
  for (uint32_t i = 0; i < count; i++) {
    tokens[i] = gpu_model_token(&r->model, position + i);
  }
  mgl_plan_clear(r->plan);
  mgl_plan_add(r->plan, &(mgl_plan_chunk){.tokens = tokens,
                                          .token_count = count,
                                          .position = position,
                                          .pages = r->pages,
                                          .page_count = PAGES,
                                          .logits = MGL_LOGITS_ALL});
}

static void open_range(range *r) {
  static const mgl_plan_limits limits = {.tokens = TOKENS,
                                         .sequences = 1,
                                         .pages_per_sequence = PAGES,
                                         .page_tokens = GPU_PAGE_TOKENS};
  mgl_error err = {0};
  gpu_model_open(r->options->model, &r->model);
  gpu_twin_open(&r->model, TOKENS, PAGES, &r->cpu);
  gpu_twin_open_exact(&r->model, &r->cpu, &r->exact);
  r->gpu = gpu_program(r->bench, &r->model,
                       (mgl_cuda_program_options){.sizes.limits.tokens = TOKENS,
                                                  .sizes.sequences = 1,
                                                  .sizes.limits.pages_per_sequence = PAGES,
                                                  .sizes.logit_rows = TOKENS,
                                                  .poison = true,
                                                  .build.events_only = r->options->events_only,
                                                  .keep_activations = true});
  gpu_must(mgl_plan_create(&limits, &r->plan, &err), &err);
  for (uint32_t i = 0; i < PAGES; i++) {
    r->pages[i] = (int32_t)(i * 29 % PAGES);  // not neighbours
  }
  r->is_input = gpu_must_alloc(r->cpu.fused->op_count, sizeof *r->is_input);
  while ((1u << r->graph) < r->options->tokens) {
    r->graph++;
  }
}

static void close_range(range *r) {
  mgl_free(r->is_input);
  mgl_plan_destroy(r->plan);
  mgl_cuda_program_destroy(r->gpu);
  gpu_twin_close(&r->exact);
  gpu_twin_close(&r->cpu);
  gpu_model_close(&r->model);
}

// K and V of the tokens before, by the CPU.
static void make_context(range *r) {
  for (uint32_t at = 0; at < r->options->context; at += TOKENS) {
    uint32_t left = r->options->context - at;
    make_plan(r, at, left < TOKENS ? left : TOKENS);
    gpu_twin_run(&r->cpu, r->plan, 0, UINT32_MAX);
  }
}

// --- inputs --------------------------------------------------------------------------------------

// What ops [first, last] read of the ops before them.
static void find_inputs(range *r, uint32_t first, uint32_t last) {
  const mgl_graph *fused = r->cpu.fused;
  memset(r->is_input, 0, fused->op_count * sizeof *r->is_input);
  for (uint32_t i = first; i <= last; i++) {
    for (uint32_t j = 0; j < fused->ops[i].input_count; j++) {
      uint32_t producer = gpu_twin_producer(&r->cpu, fused->ops[i].inputs[j]);
      if (producer < first) {
        r->is_input[producer] = true;
      }
    }
  }
}

// About normal: the sum of twelve numbers of [0, 1), less six.
static float random_value(uint64_t *state) {
  float sum = -6;
  for (int i = 0; i < 12; i++) {
    *state = *state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    sum += (float)(*state >> 40) / (1 << 24);
  }
  return sum;
}

// The CPU computes ops [first, last] from random inputs instead. (Angles stay what they are.)
static void randomise(range *r, uint32_t first, uint32_t last) {
  gpu_twin *c = &r->cpu;
  for (uint32_t op = 0; op < first; op++) {
    if (!r->is_input[op] || c->fused->ops[op].kind == MGL_OP_ROPE_ANGLES) {
      continue;
    }
    bool halves = result_of(r, op)->dtype == MGL_DTYPE_BF16;
    void *at = mgl_cpu_program_tensor(c->program, c->fused->ops[op].output);
    uint64_t state = r->options->seed * UINT64_C(1000003) + op;
    for (size_t i = 0; i < gpu_twin_elements(c, op); i++) {
      float value = random_value(&state);
      if (halves) {
        ((mgl_bf16 *)at)[i] = mgl_f32_to_bf16(value);
        value = mgl_bf16_to_f32(((mgl_bf16 *)at)[i]);
      } else {
        ((float *)at)[i] = value;
      }
      c->results[op][i] = value;
    }
  }
  gpu_twin_run(c, r->plan, first, last);
}

// The exact twin computes ops [first, last] from what the CPU has.
static void run_exact(range *r, uint32_t first, uint32_t last) {
  gpu_twin *e = &r->exact;
  for (uint32_t op = 0; op < first; op++) {
    if (r->is_input[op]) {
      memcpy(mgl_cpu_program_tensor(e->program, e->fused->ops[op].output), r->cpu.results[op],
             gpu_twin_elements(&r->cpu, op) * sizeof(float));
    }
  }
  for (uint32_t op = first; op <= last; op++) {
    if (e->fused->ops[op].kind == MGL_OP_ATTEND) {
      const mgl_kv_layer *from = &r->cpu.program->kv[r->cpu.fused->ops[op].inputs[1]];
      const mgl_kv_layer *to = &e->program->kv[e->fused->ops[op].inputs[1]];
      size_t count = (size_t)PAGES * GPU_PAGE_TOKENS * from->kv_head_count * from->head_dim;
      mgl_widen_f32(from->dtype, from->k, count, to->k);
      mgl_widen_f32(from->dtype, from->v, count, to->v);
    }
  }
  gpu_twin_run(e, r->plan, first, last);
}

// K and V of a position as the CPU or its exact twin has them: [HKV, HD].
static void read_cpu_kv(const range *r, const mgl_kv_layer *layer, uint32_t position, float *k,
                        float *v) {
  size_t dims = layer->head_dim;
  size_t at = position % GPU_PAGE_TOKENS;
  size_t bytes = mgl_dtype_bytes(layer->dtype);
  for (size_t i = 0; i < layer->kv_head_count * dims; i++) {
    size_t page = (size_t)r->pages[position / GPU_PAGE_TOKENS] * layer->kv_head_count + i / dims;
    size_t k_at = (page * dims + i % dims) * GPU_PAGE_TOKENS + at;
    size_t v_at = (page * GPU_PAGE_TOKENS + at) * dims + i % dims;
    mgl_widen_f32(layer->dtype, (const unsigned char *)layer->k + k_at * bytes, 1, &k[i]);
    mgl_widen_f32(layer->dtype, (const unsigned char *)layer->v + v_at * bytes, 1, &v[i]);
  }
}

// On the GPU: what the CPU has cached of an attention's earlier tokens, and poison behind them.
static void write_context(range *r, uint32_t op) {
  mgl_error err = {0};
  uint32_t tensor = r->cpu.fused->ops[op].inputs[1];
  const mgl_kv_layer *layer = &r->cpu.program->kv[tensor];
  size_t heads = layer->kv_head_count;
  size_t dims = layer->head_dim;
  size_t count = heads * dims * GPU_PAGE_TOKENS;
  float *page = gpu_must_alloc(2 * count, sizeof *page);
  float *token = gpu_must_alloc(2 * heads * dims, sizeof *token);
  for (uint32_t first = 0; first < r->options->context + r->options->tokens;
       first += GPU_PAGE_TOKENS) {
    for (size_t i = 0; i < 2 * count; i++) {
      page[i] = NAN;
    }
    for (uint32_t i = 0; i < GPU_PAGE_TOKENS && first + i < r->options->context; i++) {
      read_cpu_kv(r, layer, first + i, token, token + heads * dims);
      for (size_t head = 0; head < 2 * heads; head++) {  // K's, then V's
        memcpy(page + (head * GPU_PAGE_TOKENS + i) * dims, token + head * dims,
               dims * sizeof *page);
      }
    }
    gpu_must(mgl_cuda_program_write_kv(r->gpu, r->cpu.fused->tensors[tensor].name,
                                       (uint32_t)r->pages[first / GPU_PAGE_TOKENS], page,
                                       page + count, &err),
             &err);
  }
  mgl_free(page);
  mgl_free(token);
}

// On the GPU: the inputs. All other results are NaN (mgl_cuda_program_choose).
static void write_inputs(range *r) {
  mgl_error err = {0};
  for (uint32_t op = 0; op < r->cpu.fused->op_count; op++) {
    if (r->is_input[op]) {
      gpu_must(mgl_cuda_program_write(r->gpu, r->graph, result_of(r, op)->name, r->cpu.results[op],
                                      gpu_twin_elements(&r->cpu, op), &err),
               &err);
    }
  }
}

// --- results -------------------------------------------------------------------------------------

// One line of the table. Returns whether the GPU's values are good.
static bool judge(range *r, uint32_t op, const char *what, const buffers *b) {
  gpu_errors errors = {0};
  double largest = 0;
  size_t at = 0;
  gpu_errors_add(&errors, b->gpu, b->cpu, b->exact, b->count);
  for (size_t i = 0; i < b->count && !isnan(largest); i++) {
    double difference = fabs((double)b->gpu[i] - (double)b->exact[i]);
    if (!(difference <= largest)) {  // a NaN stays
      largest = difference;
      at = i;
    }
  }
  double ratio = gpu_errors_ratio(&errors);
  bool ok = ratio <= r->most && gpu_error_of_cpu(&errors) < GPU_MOST_CPU_ERROR;
  printf("| %u | %s | %s%s | %zu | %.2e | %.2e | %s%.2f%s | %.2f | %.2e at %zu |\n", op,
         mgl_op_info_of(r->cpu.fused->ops[op].kind)->name, result_of(r, op)->name, what, b->count,
         gpu_error_of_gpu(&errors), gpu_error_of_cpu(&errors), ok ? "" : "**", ratio,
         ok ? "" : "**", r->most, largest, at);
  return ok;
}

static bool compare_result(range *r, uint32_t op) {
  mgl_error err = {0};
  size_t count = gpu_twin_elements(&r->cpu, op);
  float *values = gpu_must_alloc(count, sizeof *values);
  gpu_must(mgl_cuda_program_read(r->gpu, r->graph, result_of(r, op)->name, values, count, &err),
           &err);
  buffers of_result = {values, r->cpu.results[op], r->exact.results[op], count};
  bool ok = judge(r, op, "", &of_result);
  mgl_free(values);
  return ok;
}

static void read_gpu_kv(range *r, const mgl_kv_layer *layer, const char *name, float *k, float *v) {
  mgl_error err = {0};
  size_t heads = layer->kv_head_count;
  size_t dims = layer->head_dim;
  size_t count = heads * dims * GPU_PAGE_TOKENS;
  float *page = gpu_must_alloc(2 * count, sizeof *page);
  for (uint32_t i = 0; i < r->options->tokens; i++) {
    uint32_t position = r->options->context + i;
    uint32_t number = (uint32_t)r->pages[position / GPU_PAGE_TOKENS];
    if (i == 0 || position % GPU_PAGE_TOKENS == 0) {
      gpu_must(mgl_cuda_program_read_kv(r->gpu, name, number, page, page + count, &err), &err);
    }
    for (size_t head = 0; head < heads; head++) {
      size_t from = (head * GPU_PAGE_TOKENS + position % GPU_PAGE_TOKENS) * dims;
      memcpy(k + (i * heads + head) * dims, page + from, dims * sizeof *k);
      memcpy(v + (i * heads + head) * dims, page + count + from, dims * sizeof *v);
    }
  }
  mgl_free(page);
}

static bool compare_kv(range *r, uint32_t op) {
  const mgl_op *attend = &r->cpu.fused->ops[op];
  const mgl_kv_layer *layer = &r->cpu.program->kv[attend->inputs[1]];
  const mgl_kv_layer *exact_layer = &r->exact.program->kv[r->exact.fused->ops[op].inputs[1]];
  size_t row = (size_t)layer->kv_head_count * layer->head_dim;
  size_t count = r->options->tokens * row;
  float *cpu = gpu_must_alloc(2 * count, sizeof *cpu);
  float *gpu = gpu_must_alloc(2 * count, sizeof *gpu);
  float *exact = gpu_must_alloc(2 * count, sizeof *exact);
  for (uint32_t i = 0; i < r->options->tokens; i++) {
    uint32_t position = r->options->context + i;
    read_cpu_kv(r, layer, position, cpu + i * row, cpu + count + i * row);
    read_cpu_kv(r, exact_layer, position, exact + i * row, exact + count + i * row);
  }
  read_gpu_kv(r, layer, r->cpu.fused->tensors[attend->inputs[1]].name, gpu, gpu + count);
  buffers of_k = {gpu, cpu, exact, count};
  buffers of_v = {gpu + count, cpu + count, exact + count, count};
  bool ok = judge(r, op, ", its K", &of_k);
  ok = judge(r, op, ", its V", &of_v) && ok;
  mgl_free(cpu);
  mgl_free(gpu);
  mgl_free(exact);
  return ok;
}

// Results outside of the range are what they were: poison, or the inputs. Returns how many are not.
static uint32_t count_touched(range *r, uint32_t first, uint32_t last) {
  mgl_error err = {0};
  uint32_t touched = 0;
  for (uint32_t op = 0; op < r->cpu.fused->op_count; op++) {
    size_t count = gpu_twin_elements(&r->cpu, op);
    count = count < LOOK ? count : LOOK;
    if (op >= first && op <= last) {
      continue;
    }
    float values[LOOK];
    gpu_must(mgl_cuda_program_read(r->gpu, r->graph, result_of(r, op)->name, values, count, &err),
             &err);
    bool same = true;
    for (size_t i = 0; i < count; i++) {
      same = same && (r->is_input[op] ? values[i] == r->cpu.results[op][i] : isnan(values[i]));
    }
    touched += same ? 0 : 1;
  }
  return touched;
}

// --- the run -------------------------------------------------------------------------------------

// In the GPU's fused program, which has more ops.
static uint32_t gpu_op(const range *r, uint32_t op) {
  const mgl_graph *fused = mgl_cuda_program_fused(r->gpu);
  uint32_t tensor = mgl_graph_find(fused, result_of(r, op)->name);
  for (uint32_t i = 0; i < fused->op_count; i++) {
    if (fused->ops[i].output == tensor) {
      return i;
    }
  }
  mgl_error err = {0};
  gpu_must(mgl_error_set(&err, MGL_ERR_INTERNAL, "the GPU's program has no \"%s\"",
                         result_of(r, op)->name),
           &err);
  return UINT32_MAX;
}

// True if ops [first, last] of the GPU are as good as the CPU's.
static bool run_range(range *r, uint32_t first, uint32_t last) {
  mgl_error err = {0};
  bool ok = true;
  r->most = most_ratio(r, first, last);
  find_inputs(r, first, last);
  if (r->options->random) {
    randomise(r, first, last);
  }
  run_exact(r, first, last);
  gpu_must(mgl_cuda_program_choose(r->gpu, gpu_op(r, first), gpu_op(r, last), &err), &err);
  write_inputs(r);
  for (uint32_t op = first; op <= last; op++) {
    if (r->cpu.fused->ops[op].kind == MGL_OP_ATTEND) {
      write_context(r, op);
    }
  }
  gpu_must(mgl_cuda_program_run_plan(r->gpu, r->plan, NULL, NULL, &err), &err);
  for (uint32_t op = first; op <= last; op++) {
    ok = compare_result(r, op) && ok;
    if (r->cpu.fused->ops[op].kind == MGL_OP_ATTEND) {
      ok = compare_kv(r, op) && ok;
    }
  }
  uint32_t touched = count_touched(r, first, last);
  if (touched > 0) {
    gpu_check(r->bench, false, "ops %u to %u: %u results of other ops have changed", first, last,
              touched);
  }
  return ok && touched == 0;
}

// An op by number or name.
static uint32_t find_op(const range *r, const char *text) {
  uint32_t count = (uint32_t)r->cpu.fused->op_count;
  char *end = NULL;
  unsigned long number = strtoul(text, &end, 10);
  uint32_t found = *end == 0 && end != text && number < count ? (uint32_t)number : count;
  for (uint32_t i = 0; i < count && found == count; i++) {
    found = strcmp(result_of(r, i)->name, text) == 0 ? i : count;
  }
  if (found == count) {
    mgl_error err = {0};
    gpu_must(mgl_error_set(&err, MGL_ERR_ARGUMENT,
                           "expected an op of 0 to %u or the name of its result, found \"%s\"",
                           count - 1, text),
             &err);
  }
  return found;
}

static void compare_range(gpu_bench *bench, const range_options *o) {
  range r = {.bench = bench, .options = o};
  open_range(&r);
  uint32_t first = o->from != NULL ? find_op(&r, o->from) : 0;
  uint32_t last = o->to != NULL     ? find_op(&r, o->to)
                  : o->from != NULL ? first
                                    : (uint32_t)r.cpu.fused->op_count - 1;
  printf("\n## Ops %u to %u of %s%s: %u tokens behind %u, %s inputs\n\n", first, last, r.model.name,
         o->alone ? ", each alone" : "", o->tokens, o->context, o->random ? "random" : "the CPU's");
  printf("| op | kind | result | elements | error | CPU's error | ratio | at most | largest |\n");
  printf("|---|---|---|---|---|---|---|---|---|\n");
  (void)fflush(stdout);
  make_context(&r);
  make_plan(&r, o->context, o->tokens);
  gpu_twin_run(&r.cpu, r.plan, 0, UINT32_MAX);
  bool ok = true;
  for (uint32_t op = first; op <= last && o->alone; op++) {
    ok = run_range(&r, op, op) && ok;
  }
  if (!o->alone) {
    ok = run_range(&r, first, last);
  }
  printf("\n");
  gpu_check(bench, ok && first <= last, "ops %u to %u of %s, %u tokens behind %u", first, last,
            r.model.name, o->tokens, o->context);
  close_range(&r);
}

void gpu_ops_range(gpu_bench *bench, int count, char **arguments) {
  range_options o = {.model = "tiny", .tokens = 1, .seed = 1};
  const char *inputs = "cpu";
  uint32_t alone = 0;
  uint32_t carried = 1;
  const struct {
    const char *key;
    const char **text;
    uint32_t *number;
  } keys[] = {
      {"model=", &o.model, NULL}, {"from=", &o.from, NULL},     {"to=", &o.to, NULL},
      {"inputs=", &inputs, NULL}, {"tokens=", NULL, &o.tokens}, {"context=", NULL, &o.context},
      {"seed=", NULL, &o.seed},   {"alone=", NULL, &alone},     {"carried=", NULL, &carried}};
  mgl_error err = {0};
  for (int i = 0; i < count; i++) {
    bool known = false;
    for (size_t j = 0; j < sizeof keys / sizeof keys[0]; j++) {
      size_t length = strlen(keys[j].key);
      if (strncmp(arguments[i], keys[j].key, length) == 0) {
        known = true;
        if (keys[j].text != NULL) {
          *keys[j].text = arguments[i] + length;
        } else {
          *keys[j].number = (uint32_t)strtoul(arguments[i] + length, NULL, 10);
        }
      }
    }
    if (!known) {
      gpu_must(mgl_error_set(&err, MGL_ERR_ARGUMENT, "unknown argument %s", arguments[i]), &err);
    }
  }
  o.alone = alone != 0;
  o.events_only = carried == 0;
  o.random = strcmp(inputs, "random") == 0;
  if (o.tokens < 1 || o.tokens > TOKENS || o.context > CONTEXT) {
    gpu_must(mgl_error_set(&err, MGL_ERR_ARGUMENT,
                           "expected 1 to %d tokens behind 0 to %d, found %u behind %u", TOKENS,
                           CONTEXT, o.tokens, o.context),
             &err);
  }
  compare_range(bench, &o);
}
