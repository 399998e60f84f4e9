#include "engine/op_test.h"

#include <assert.h>
#include <ctype.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "device/cpu/cpu_look.h"
#include "device/cpu/cpu_reference.h"
#include "engine/op_parts.h"
#include "graph/family.h"

struct mgl_op_test {
  mgl_runner *runner;
  const mgl_device_look *look;
  void *model;  // the device's
  mgl_op_test_options options;
  const mgl_graph *canonical;
  mgl_graph *fused;  // as the CPU fuses; NULL where nothing is
  mgl_cpu_reference reference;
  mgl_plan *plan;
  int32_t *pages;  // [page_count] of the sequence
  uint32_t page_count;
  bool *ops;               // [canonical->op_count] that the range stands for
  mgl_op_result *results;  // [result_count], at most one an op of the program and one a cache
  uint32_t result_count;
  float *page;  // K and V of a page of any layer
};

mgl_build mgl_op_test_build(const mgl_op_test_options *options) {
  return (mgl_build){.iteration_tokens = options->tokens,
                     .sequences = 1,
                     .sequence_tokens = options->tokens + options->context,
                     .logit_rows = MGL_EVERY_ROW,
                     .look = true};
}

const mgl_graph *mgl_op_test_program(const mgl_op_test *t) {
  return t->fused != NULL ? t->fused : t->canonical;
}

mgl_status mgl_op_test_find(const mgl_op_test *t, const char *text, uint32_t *out, mgl_error *err) {
  const mgl_graph *program = mgl_op_test_program(t);
  char *end = NULL;
  unsigned long number = strtoul(text, &end, 10);
  if (isdigit((unsigned char)text[0]) && *end == 0 && number < program->op_count) {
    *out = (uint32_t)number;
    return MGL_OK;
  }
  for (uint32_t i = 0; i < program->op_count; i++) {
    if (strcmp(program->tensors[program->ops[i].output].name, text) == 0) {
      *out = i;
      return MGL_OK;
    }
  }
  return mgl_error_set(err, MGL_ERR_ARGUMENT,
                       "expected an op of 0 to %zu or the name of its result, found \"%.80s\"",
                       program->op_count - 1, text);
}

// --- values --------------------------------------------------------------------------------------

static uint64_t next_bits(uint64_t *state) {
  *state = *state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
  return *state >> 40;
}

// About normal: the sum of twelve numbers of [0, 1), less six.
static float next_value(uint64_t *state) {
  float sum = -6;
  for (int i = 0; i < 12; i++) {
    sum += (float)next_bits(state) / (1 << 24);
  }
  return sum;
}

// Every tensor has numbers of its own, the same in whatever range it is read.
static uint64_t state_of(const mgl_op_test *t, const char *name) {
  uint64_t state = t->options.seed;
  for (; *name != 0; name++) {
    state = (state ^ (unsigned char)*name) * UINT64_C(0x100000001b3);
  }
  (void)next_bits(&state);
  return state;
}

static const mgl_op_test_value *find_given(const mgl_op_test *t, const char *name) {
  for (uint32_t i = 0; i < t->options.given_count; i++) {
    if (strcmp(t->options.given[i].name, name) == 0) {
      return &t->options.given[i];
    }
  }
  return NULL;
}

// What the user gives, or random values: cosines and sines where it is angles, which nobody could
// read otherwise.
static mgl_status make_values(const mgl_op_test *t, const char *name, bool angles, size_t count,
                              float *out, mgl_error *err) {
  const mgl_op_test_value *given = find_given(t, name);
  uint64_t state = state_of(t, name);
  if (given != NULL && given->count != count) {
    return mgl_error_set(err, MGL_ERR_ARGUMENT,
                         "\"%s\": expected %zu values for %u tokens behind %u, found %zu", name,
                         count, t->options.tokens, t->options.context, given->count);
  }
  for (size_t i = 0; i < count; i++) {
    out[i] = given != NULL ? given->values[i] : next_value(&state);
  }
  for (size_t i = 0; given == NULL && angles && i + 1 < count; i += 2) {
    float angle = out[i];
    out[i] = cosf(angle);
    out[i + 1] = sinf(angle);
  }
  return MGL_OK;
}

static size_t elements_of(const mgl_op_test *t, const mgl_tensor *tensor) {
  const mgl_dim_values values = {t->plan->token_count, t->plan->logit_row_count,
                                 t->plan->sequence_count};
  return (size_t)mgl_tensor_elements(tensor, &values);
}

// --- between a fused value and the reference's parts of it ---------------------------------------

// Copies rows of a value [rows, width] to the parts, or from them.
static void copy_parts(const mgl_op_test *t, const mgl_value_parts *parts, float *values,
                       size_t rows, bool to_parts) {
  for (size_t row = 0; row < rows; row++) {
    for (uint32_t i = 0; i < parts->count; i++) {
      size_t width = (size_t)mgl_tensor_row_elements(&t->canonical->tensors[parts->tensors[i]]);
      float *part = t->reference.values[parts->tensors[i]] + row * width;
      memcpy(to_parts ? part : values, to_parts ? values : part, width * sizeof *part);
      values += width;
    }
  }
}

static size_t rows_of(const mgl_op_test *t, const mgl_tensor *tensor) {
  return elements_of(t, tensor) / (size_t)mgl_tensor_row_elements(tensor);
}

// One value enters the range, on the device and in the reference.
static mgl_status enter(mgl_op_test *t, uint32_t tensor, bool angles, mgl_error *err) {
  const mgl_graph *program = mgl_op_test_program(t);
  const mgl_tensor *value = &program->tensors[tensor];
  size_t count = elements_of(t, value);
  mgl_value_parts parts;
  MGL_TRY(mgl_value_parts_find(t->canonical, program, tensor, &parts, err));
  float *values = mgl_alloc_zeroed(count, sizeof *values);
  if (values == NULL) {
    return mgl_error_set(err, MGL_ERR_MEMORY, "out of memory for %zu values", count);
  }
  mgl_status status = make_values(t, value->name, angles, count, values, err);
  if (status == MGL_OK) {
    status = t->look->write(t->model, t->options.tokens, value->name, values, count, err);
  }
  if (status == MGL_OK) {
    copy_parts(t, &parts, values, rows_of(t, value), true);
  }
  mgl_free(values);
  return status;
}

// All that ops [first, last] read of the ops before them.
static mgl_status enter_all(mgl_op_test *t, uint32_t first, uint32_t last, mgl_error *err) {
  const mgl_graph *program = mgl_op_test_program(t);
  for (uint32_t i = first; i <= last; i++) {
    const mgl_op *op = &program->ops[i];
    for (uint32_t j = 0; j < op->input_count; j++) {
      if (mgl_op_maker(program, op->inputs[j]) < first) {
        bool angles = mgl_op_role(op, j) == MGL_ROLE_ANGLES;
        MGL_TRY(enter(t, op->inputs[j], angles, err));
      }
    }
  }
  return MGL_OK;
}

// --- the cache -----------------------------------------------------------------------------------

// A layer's cache in this range.
typedef struct cache {
  const mgl_tensor *tensor;
  const mgl_op *writer;  // NULL: the range only reads it
  uint32_t filled;       // positions that it begins with
} cache;

// Whether the range reads or writes that tensor as a cache.
static bool find_cache(const mgl_op_test *t, uint32_t tensor, uint32_t first, uint32_t last,
                       cache *out) {
  const mgl_graph *program = mgl_op_test_program(t);
  bool touched = false;
  *out = (cache){.tensor = &program->tensors[tensor]};
  for (uint32_t i = first; i <= last && out->tensor->placement == MGL_PLACE_KV; i++) {
    const mgl_op *op = &program->ops[i];
    for (uint32_t j = 0; j < op->input_count; j++) {
      touched = touched || op->inputs[j] == tensor;
      out->writer = op->inputs[j] == tensor && mgl_op_updates(op, j) ? op : out->writer;
    }
    out->writer = op->output == tensor ? op : out->writer;
  }
  out->filled = t->options.context + (out->writer == NULL ? t->options.tokens : 0);
  return touched || out->writer != NULL;
}

static uint32_t page_tokens_of(const mgl_op_test *t) {
  return mgl_runner_limits(t->runner)->page_tokens;
}

static size_t page_elements(const mgl_op_test *t, const mgl_tensor *kv) {
  return (size_t)page_tokens_of(t) * kv->dims[0].number * kv->dims[1].number;
}

// Copies a position between its place in a page [2, HKV, P, HD] and a row [HKV, HD] of K and of V.
static void copy_position(const mgl_op_test *t, const mgl_tensor *kv, uint32_t position, float *k,
                          float *v, bool to_page) {
  size_t dims = kv->dims[1].number;
  for (size_t head = 0; head < kv->dims[0].number; head++) {
    size_t at = (head * page_tokens_of(t) + position % page_tokens_of(t)) * dims;
    float *page_k = t->page + at;
    float *page_v = t->page + page_elements(t, kv) + at;
    memcpy(to_page ? page_k : k + head * dims, to_page ? k + head * dims : page_k,
           dims * sizeof *k);
    memcpy(to_page ? page_v : v + head * dims, to_page ? v + head * dims : page_v,
           dims * sizeof *v);
  }
}

// Writes [2, filled, HKV, HD] into the pages of device and reference, and NaN behind it.
static mgl_status write_cache(const mgl_op_test *t, const cache *c, float *values, mgl_error *err) {
  size_t row = (size_t)c->tensor->dims[0].number * c->tensor->dims[1].number;
  size_t count = page_elements(t, c->tensor);
  for (uint32_t page = 0; page < t->page_count; page++) {
    memset(t->page, 0xff, 2 * count * sizeof *t->page);
    for (uint32_t i = 0; i < page_tokens_of(t); i++) {
      uint32_t position = page * page_tokens_of(t) + i;
      if (position < c->filled) {
        copy_position(t, c->tensor, position, values + position * row,
                      values + (c->filled + position) * row, true);
      }
    }
    uint32_t number = (uint32_t)t->pages[page];
    MGL_TRY(t->look->write_kv(t->model, c->tensor->name, number, t->page, t->page + count, err));
    MGL_TRY(mgl_cpu_write_kv(t->reference.program, c->tensor->name, number, t->page,
                             t->page + count, err));
  }
  return MGL_OK;
}

static mgl_status enter_caches(const mgl_op_test *t, uint32_t first, uint32_t last,
                               mgl_error *err) {
  const mgl_graph *program = mgl_op_test_program(t);
  for (uint32_t i = 0; i < program->tensor_count; i++) {
    cache c;
    if (!find_cache(t, i, first, last, &c)) {
      continue;
    }
    size_t count = 2 * (size_t)c.filled * c.tensor->dims[0].number * c.tensor->dims[1].number;
    float *values = mgl_alloc_zeroed(count + 1, sizeof *values);
    if (values == NULL) {
      return mgl_error_set(err, MGL_ERR_MEMORY, "out of memory for %zu values", count);
    }
    mgl_status status = make_values(t, c.tensor->name, false, count, values, err);
    if (status == MGL_OK) {
      status = write_cache(t, &c, values, err);
    }
    mgl_free(values);
    MGL_TRY(status);
  }
  return MGL_OK;
}

// The K and V of the iteration's tokens, [2, tokens, HKV, HD].
static mgl_status read_cache(const mgl_op_test *t, const mgl_tensor *kv, bool of_device, float *out,
                             mgl_error *err) {
  size_t row = (size_t)kv->dims[0].number * kv->dims[1].number;
  float *v = t->page + page_elements(t, kv);
  for (uint32_t i = 0; i < t->options.tokens; i++) {
    uint32_t position = t->options.context + i;
    uint32_t number = (uint32_t)t->pages[position / page_tokens_of(t)];
    if (i == 0 || position % page_tokens_of(t) == 0) {
      MGL_TRY(of_device ? t->look->read_kv(t->model, kv->name, number, t->page, v, err)
                        : mgl_cpu_read_kv(t->reference.program, kv->name, number, t->page, v, err));
    }
    copy_position(t, kv, position, out + i * row, out + (t->options.tokens + i) * row, false);
  }
  return MGL_OK;
}

// --- results -------------------------------------------------------------------------------------

static void forget_results(mgl_op_test *t) {
  for (uint32_t i = 0; i < t->result_count; i++) {
    mgl_free(t->results[i].values);
    mgl_free(t->results[i].expected);
  }
  t->result_count = 0;
}

static mgl_status add_result(mgl_op_test *t, mgl_op_result result, mgl_error *err) {
  result.values = mgl_alloc_zeroed(result.count, sizeof *result.values);
  result.expected = mgl_alloc_zeroed(result.count, sizeof *result.expected);
  t->results[t->result_count++] = result;
  return result.values != NULL && result.expected != NULL
             ? MGL_OK
             : mgl_error_set(err, MGL_ERR_MEMORY, "out of memory for %zu results", result.count);
}

// Whether a value that the range makes is read behind it, or is a result of the model.
static bool leaves(const mgl_graph *program, uint32_t tensor, uint32_t last) {
  bool found = program->tensors[tensor].is_output;
  for (uint32_t i = last + 1; i < program->op_count; i++) {
    for (uint32_t j = 0; j < program->ops[i].input_count; j++) {
      found = found || program->ops[i].inputs[j] == tensor;
    }
  }
  return found && program->tensors[tensor].placement == MGL_PLACE_ACTIVATION;
}

static mgl_status list_results(mgl_op_test *t, uint32_t first, uint32_t last, mgl_error *err) {
  const mgl_graph *program = mgl_op_test_program(t);
  for (uint32_t i = first; i <= last; i++) {
    const mgl_tensor *tensor = &program->tensors[program->ops[i].output];
    if (!leaves(program, program->ops[i].output, last)) {
      continue;
    }
    mgl_op_result result = {.op = &program->ops[i],
                            .name = tensor->name,
                            .rank = tensor->rank,
                            .dims = {rows_of(t, tensor)},
                            .count = elements_of(t, tensor)};
    for (uint32_t j = 1; j < tensor->rank; j++) {
      result.dims[j] = tensor->dims[j].number;
    }
    MGL_TRY(add_result(t, result, err));
  }
  for (uint32_t i = 0; i < program->tensor_count; i++) {
    cache c;
    if (find_cache(t, i, first, last, &c) && c.writer != NULL) {
      uint64_t heads = c.tensor->dims[0].number;
      uint64_t dims = c.tensor->dims[1].number;
      MGL_TRY(add_result(t,
                         (mgl_op_result){.op = c.writer,
                                         .name = c.tensor->name,
                                         .rank = 4,
                                         .dims = {2, t->options.tokens, heads, dims},
                                         .count = (size_t)(2 * t->options.tokens * heads * dims)},
                         err));
    }
  }
  return MGL_OK;
}

static mgl_status read_device(mgl_op_test *t, const mgl_op_result *r, mgl_error *err) {
  const mgl_graph *program = mgl_op_test_program(t);
  const mgl_tensor *tensor = &program->tensors[mgl_graph_find(program, r->name)];
  return tensor->placement == MGL_PLACE_KV
             ? read_cache(t, tensor, true, r->values, err)
             : t->look->read(t->model, t->options.tokens, r->name, r->values, r->count, err);
}

static mgl_status read_reference(mgl_op_test *t, const mgl_op_result *r, float *out,
                                 mgl_error *err) {
  const mgl_graph *program = mgl_op_test_program(t);
  uint32_t tensor = mgl_graph_find(program, r->name);
  mgl_value_parts parts;
  if (program->tensors[tensor].placement == MGL_PLACE_KV) {
    return read_cache(t, &program->tensors[tensor], false, out, err);
  }
  MGL_TRY(mgl_value_parts_find(t->canonical, program, tensor, &parts, err));
  copy_parts(t, &parts, out, (size_t)r->dims[0], false);
  return MGL_OK;
}

typedef struct distance {
  double largest, mean;
  size_t worst;
} distance;

// A NaN on either side is the largest distance.
static distance distance_of(const float *a, const float *b, size_t count) {
  distance d = {0};
  double sum = 0;
  for (size_t i = 0; i < count; i++) {
    double difference = fabs((double)a[i] - (double)b[i]);
    sum += difference;
    if (!isnan(d.largest) && !(difference <= d.largest)) {
      d.largest = difference;
      d.worst = i;
    }
  }
  d.mean = count == 0 ? 0 : sum / (double)count;
  return d;
}

// --- the run -------------------------------------------------------------------------------------

// How far the reference's results go when its values are moved: the bounds.
static mgl_status measure_bounds(mgl_op_test *t, mgl_error *err) {
  for (uint64_t seed = 1; seed <= MGL_OP_TEST_MOVES; seed++) {
    MGL_TRY(mgl_cpu_reference_run(&t->reference, t->plan, t->ops, seed, err));
    for (uint32_t i = 0; i < t->result_count; i++) {
      mgl_op_result *r = &t->results[i];
      MGL_TRY(read_reference(t, r, r->values, err));
      distance d = distance_of(r->values, r->expected, r->count);
      r->largest_bound = fmax(r->largest_bound, MGL_OP_TEST_FACTOR * d.largest);
      r->mean_bound = fmax(r->mean_bound, MGL_OP_TEST_FACTOR * d.mean);
    }
  }
  return MGL_OK;
}

static mgl_status run_reference(mgl_op_test *t, mgl_error *err) {
  MGL_TRY(mgl_cpu_reference_run(&t->reference, t->plan, t->ops, 0, err));
  for (uint32_t i = 0; i < t->result_count; i++) {
    MGL_TRY(read_reference(t, &t->results[i], t->results[i].expected, err));
  }
  return t->options.tolerance >= 0 ? MGL_OK : measure_bounds(t, err);
}

static void judge(const mgl_op_test *t, mgl_op_result *r) {
  distance d = distance_of(r->values, r->expected, r->count);
  r->largest = d.largest;
  r->mean = d.mean;
  r->worst = d.worst;
  if (t->options.tolerance >= 0) {
    r->largest_bound = t->options.tolerance;
    r->mean_bound = INFINITY;
  }
  r->passed = r->largest <= r->largest_bound && r->mean <= r->mean_bound;
}

// The device's op with the same result; its program may have more.
static mgl_status find_on_device(const mgl_op_test *t, uint32_t op, uint32_t *out, mgl_error *err) {
  const mgl_graph *program = mgl_op_test_program(t);
  const mgl_graph *own = t->look->program(t->model);
  const char *name = program->tensors[program->ops[op].output].name;
  uint32_t tensor = mgl_graph_find(own, name);
  for (*out = 0; *out < own->op_count; (*out)++) {
    const mgl_op *found = &own->ops[*out];
    if (found->output == tensor && found->kind == program->ops[op].kind) {
      return MGL_OK;
    }
  }
  return mgl_error_set(err, MGL_ERR_UNSUPPORTED,
                       "op %u (%s): the device has fused it in another way: expected a range "
                       "between other ops",
                       op, name);
}

// All that is given is read in this range, so that a mistyped name is no random value.
static mgl_status check_given(const mgl_op_test *t, uint32_t first, uint32_t last, mgl_error *err) {
  const mgl_graph *program = mgl_op_test_program(t);
  for (uint32_t i = 0; i < t->options.given_count; i++) {
    const char *name = t->options.given[i].name;
    bool found = strcmp(name, "tokens") == 0;
    for (uint32_t j = first; j <= last; j++) {
      const mgl_op *op = &program->ops[j];
      for (uint32_t k = 0; k <= op->input_count && !found; k++) {
        uint32_t tensor = k < op->input_count ? op->inputs[k] : op->output;
        bool is_cache = program->tensors[tensor].placement == MGL_PLACE_KV;
        found = strcmp(program->tensors[tensor].name, name) == 0 &&
                (is_cache || mgl_op_maker(program, tensor) < first);
      }
    }
    if (!found) {
      return mgl_error_set(err, MGL_ERR_ARGUMENT,
                           "expected an input of ops %u to %u, found \"%.80s\", which is none",
                           first, last, name);
    }
  }
  return MGL_OK;
}

mgl_status mgl_op_test_run(mgl_op_test *t, uint32_t first, uint32_t last, const mgl_op_result **out,
                           uint32_t *out_count, mgl_error *err) {
  uint32_t own_first = 0;
  uint32_t own_last = 0;
  mgl_logits logits;
  assert(first <= last && last < mgl_op_test_program(t)->op_count);
  forget_results(t);
  MGL_TRY(check_given(t, first, last, err));
  MGL_TRY(find_on_device(t, first, &own_first, err));
  MGL_TRY(find_on_device(t, last, &own_last, err));
  MGL_TRY(mgl_op_parts_find(t->canonical, mgl_op_test_program(t), first, last, t->ops, err));
  MGL_TRY(list_results(t, first, last, err));
  MGL_TRY(t->look->choose(t->model, own_first, own_last, err));
  MGL_TRY(enter_all(t, first, last, err));
  MGL_TRY(enter_caches(t, first, last, err));
  MGL_TRY(run_reference(t, err));
  MGL_TRY(mgl_runner_run(t->runner, t->options.mode, t->plan, &logits, err));
  for (uint32_t i = 0; i < t->result_count; i++) {
    MGL_TRY(read_device(t, &t->results[i], err));
    judge(t, &t->results[i]);
  }
  *out = t->results;
  *out_count = t->result_count;
  return MGL_OK;
}

// --- making it -----------------------------------------------------------------------------------

// One sequence, whose pages are no neighbours in the order of the pool.
static mgl_status make_plan(mgl_op_test *t, mgl_error *err) {
  const mgl_op_test_options *o = &t->options;
  const mgl_op_test_value *given = find_given(t, "tokens");
  uint64_t state = state_of(t, "tokens");
  int32_t *tokens = mgl_alloc_zeroed(o->tokens, sizeof *tokens);
  t->page_count = (o->context + o->tokens - 1) / page_tokens_of(t) + 1;
  t->pages = mgl_alloc_zeroed(t->page_count, sizeof *t->pages);
  mgl_status status = MGL_OK;
  if (tokens == NULL || t->pages == NULL) {
    status = mgl_error_set(err, MGL_ERR_MEMORY, "out of memory for a plan");
  } else if (given != NULL && given->count != o->tokens) {
    status = mgl_error_set(err, MGL_ERR_ARGUMENT, "\"tokens\": expected %u ids, found %zu",
                           o->tokens, given->count);
  }
  for (uint32_t i = 0; status == MGL_OK && i < o->tokens; i++) {
    uint32_t vocab = mgl_runner_vocab_size(t->runner);
    float id = given != NULL ? given->values[i] : (float)(next_bits(&state) % vocab);
    if (!(id >= 0 && id < (float)vocab)) {
      status = mgl_error_set(err, MGL_ERR_ARGUMENT, "\"tokens\": expected ids of 0 to %u, found %g",
                             vocab - 1, (double)id);
      break;
    }
    tokens[i] = (int32_t)id;
  }
  for (uint32_t i = 0; status == MGL_OK && i < t->page_count; i++) {
    t->pages[i] = (int32_t)(t->page_count - 1 - i);
  }
  if (status == MGL_OK) {
    status = mgl_plan_create(mgl_runner_limits(t->runner), &t->plan, err);
  }
  if (status == MGL_OK) {
    mgl_plan_add(t->plan, &(mgl_plan_chunk){.tokens = tokens,
                                            .token_count = o->tokens,
                                            .position = o->context,
                                            .pages = t->pages,
                                            .page_count = t->page_count,
                                            .logits = MGL_LOGITS_ALL});
  }
  mgl_free(tokens);
  return status;
}

static mgl_status make_buffers(mgl_op_test *t, mgl_error *err) {
  const mgl_graph *program = mgl_op_test_program(t);
  size_t most = 1;
  for (uint32_t i = 0; i < program->tensor_count; i++) {
    const mgl_tensor *tensor = &program->tensors[i];
    if (tensor->placement == MGL_PLACE_KV && page_elements(t, tensor) > most) {
      most = page_elements(t, tensor);
    }
  }
  t->page = mgl_alloc_zeroed(2 * most, sizeof *t->page);
  t->ops = mgl_alloc_zeroed(t->canonical->op_count, sizeof *t->ops);
  t->results = mgl_alloc_zeroed(program->op_count + program->tensor_count, sizeof *t->results);
  return t->page != NULL && t->ops != NULL && t->results != NULL
             ? MGL_OK
             : mgl_error_set(err, MGL_ERR_MEMORY, "out of memory for a test of ops");
}

mgl_status mgl_op_test_create(mgl_runner *runner, const mgl_model_folder *folder,
                              const mgl_op_test_options *options, mgl_op_test **out,
                              mgl_error *err) {
  const mgl_build *build = mgl_runner_build(runner);
  *out = NULL;
  mgl_op_test *t = mgl_alloc_zeroed(1, sizeof *t);
  if (t == NULL) {
    return mgl_error_set(err, MGL_ERR_MEMORY, "out of memory for a test of ops");
  }
  assert(build->look);
  t->runner = runner;
  t->look = &mgl_runner_table(runner)->look;
  t->model = mgl_runner_model(runner);
  t->options = *options;
  t->canonical = mgl_runner_program(runner);
  mgl_status status = t->look->take_mode(t->model, options->mode, err);
  if (status == MGL_OK) {
    status = mgl_runner_prepare(runner, options->mode, err);
  }
  if (status == MGL_OK && !build->plain && options->mode != MGL_MODE_EAGER) {
    status = mgl_fuse_ops(t->canonical, &t->fused, err);
  }
  if (status == MGL_OK) {
    const mgl_checkpoint *checkpoint =
        build->weights == MGL_WEIGHTS_DUMMY ? NULL : folder->checkpoint;
    status = mgl_cpu_reference_create(t->canonical, checkpoint, build, mgl_runner_sizes(runner),
                                      &t->reference, err);
  }
  if (status == MGL_OK) {
    status = make_plan(t, err);
  }
  if (status == MGL_OK) {
    status = make_buffers(t, err);
  }
  if (status != MGL_OK) {
    mgl_op_test_destroy(t);
    return status;
  }
  *out = t;
  return MGL_OK;
}

void mgl_op_test_destroy(mgl_op_test *t) {
  if (t == NULL) {
    return;
  }
  forget_results(t);
  mgl_free(t->results);
  mgl_free(t->ops);
  mgl_free(t->page);
  mgl_free(t->pages);
  mgl_plan_destroy(t->plan);
  mgl_cpu_reference_destroy(&t->reference);
  mgl_graph_destroy(t->fused);
  mgl_free(t);
}
