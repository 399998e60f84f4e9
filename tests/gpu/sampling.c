// Sampling on the GPU against the host's sampler, and what it costs.
//
// A job generates with the parameters of a table. Then every sequence is computed once more as a
// plan of its own, whose logits come back: they have the same bits (the contract), so the host's
// sampler must choose the same token at each position, and find the same log probabilities.
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "batch/sampling.h"
#include "engine/sampler.h"
#include "gpu/gpu_bench.h"

enum {
  SEQUENCES = 16,
  PROMPT = 30,
  NEW = 34,  // prompt and these are one plan
  PAGES = 5,
  STOPS = 2,
  BIASES = 40,
  ALLOWED = 50,
  BAD_RUNS = 20,
  SEEDS = 3,
  MOST_TIMES = 512,
};

static const mgl_sampling cases[] = {
    {.top_p = 1},
    {.temperature = 1, .top_p = 1},
    {.temperature = 0.4, .top_p = 1},
    {.temperature = 100, .top_p = 1},
    {.temperature = 1, .top_p = 1, .top_k = 5},
    {.temperature = 2, .top_p = 1, .top_k = 300},
    {.temperature = 1, .top_p = 0.9},
    {.temperature = 50, .top_p = 0.97},
    {.temperature = 1.3, .top_k = 40, .top_p = 0.8},
    {.temperature = 1, .top_p = 1, .min_p = 0.05},
    {.temperature = 3, .top_k = 60, .top_p = 0.95, .min_p = 0.01},
    {.temperature = 1, .top_p = 1e-6},
    {.top_p = 1, .repetition_penalty = 1.3},
    {.top_p = 1, .presence_penalty = 1.1, .frequency_penalty = 0.4},
    {.temperature = 0.9, .top_p = 1, .repetition_penalty = 0.8},
    {.temperature = 0.9, .top_p = 0.9, .frequency_penalty = -0.3},
    {.top_p = 1, .bias_count = BIASES},
    {.temperature = 1, .top_k = 20, .top_p = 1, .bias_count = BIASES},
    {.top_p = 1, .min_tokens = 20},
    {.temperature = 1.1, .top_p = 0.95, .min_tokens = NEW},
    {.temperature = 1.2,
     .top_k = 90,
     .top_p = 0.93,
     .min_p = 0.002,
     .repetition_penalty = 1.17,
     .presence_penalty = 0.6,
     .frequency_penalty = 0.3,
     .bias_count = BIASES,
     .min_tokens = 10},
    // The same with log probabilities.
    {.top_p = 1, .logprobs = true},
    {.top_p = 1, .logprobs = true, .top_logprobs = 20},
    {.temperature = 1, .top_p = 1, .logprobs = true, .top_logprobs = 5},
    {.temperature = 1, .top_p = 0.9, .logprobs = true, .top_logprobs = 1},
    {.top_p = 1, .repetition_penalty = 1.3, .logprobs = true, .top_logprobs = 20},
    {.top_p = 1, .bias_count = BIASES, .logprobs = true, .top_logprobs = 20},
    {.temperature = 1.2,
     .top_k = 90,
     .top_p = 0.93,
     .repetition_penalty = 1.1,
     .frequency_penalty = 0.2,
     .bias_count = BIASES,
     .min_tokens = 10,
     .logprobs = true,
     .top_logprobs = 20},
    // Chosen by masks: one for all tokens, and one for each.
    {.top_p = 1, .allowed_count = ALLOWED},
    {.temperature = 1, .top_p = 0.9, .allowed_count = ALLOWED, .logprobs = true, .top_logprobs = 3},
    {.temperature = 5, .top_p = 1, .top_k = 9, .allowed_count = ALLOWED, .bias_count = BIASES},
    {.top_p = 1, .allowed_count = 1},
    {.top_p = 1, .bias_count = BIASES, .bad_runs.count = BAD_RUNS},
    {.temperature = 1.1,
     .top_k = 30,
     .top_p = 0.95,
     .frequency_penalty = 0.2,
     .bias_count = BIASES,
     .bad_runs.count = BAD_RUNS,
     .min_tokens = 5,
     .logprobs = true,
     .top_logprobs = 20},
};

enum { CASES = sizeof cases / sizeof cases[0] };

// One request and what came of it.
typedef struct drawn {
  mgl_sampling sampling;
  mgl_logit_bias biases[BIASES];
  int32_t stops[STOPS];
  int32_t allowed[ALLOWED];
  int32_t bad_tokens[2 * BAD_RUNS];
  uint32_t bad_ends[BAD_RUNS];
  mgl_sampling_state state;
  bool ended;
  int32_t tokens[PROMPT + NEW];
  uint32_t count;  // of tokens
  mgl_cuda_logprobs logprobs[NEW];
} drawn;

typedef struct sampling_test {
  gpu_bench *bench;
  gpu_model model;
  mgl_cuda_program *program;
  mgl_plan *plan;
  mgl_sampler *sampler;
  float *logits;   // [PROMPT + NEW, V]
  uint64_t *mask;  // [ceil(V / 64)]
  mgl_cuda_request requests[SEQUENCES];
  uint32_t request_count, request_next;
  drawn drawn[SEQUENCES];
  uint64_t tokens, token_differences, logprobs, logprob_differences;
} sampling_test;

static void init_state(const sampling_test *t, drawn *d) {
  mgl_error err = {0};
  mgl_sampling_request request = {.sampling = &d->sampling,
                                  .prompt = d->tokens,
                                  .prompt_count = PROMPT,
                                  .max_new_tokens = NEW,
                                  .stop_ids = d->stops,
                                  .stop_count = STOPS,
                                  .vocab_size = t->model.config.vocab_size};
  gpu_must(mgl_sampling_state_init(&d->state, &request, &err), &err);
}

// Prompts repeat themselves, so that penalties have something to do. Biases make their tokens
// likely or impossible; stop tokens are biased ones, which are likely.
static void make_request(const sampling_test *t, uint32_t case_idx, uint32_t seed, drawn *d) {
  *d = (drawn){.sampling = cases[case_idx], .count = PROMPT};
  uint32_t vocab = t->model.config.vocab_size;
  for (uint32_t i = 0; i < PROMPT; i++) {
    d->tokens[i] = gpu_model_token(&t->model, seed * 100 + case_idx * 7 + i % 20);
  }
  for (uint32_t i = 0; i < BIASES; i++) {
    d->biases[i].token = (int32_t)((i * 37 + seed * 11) % vocab);
    d->biases[i].value = i % 3 == 0 ? 6.5f : i % 3 == 1 ? -100 : 0.25f;
  }
  for (uint32_t i = 0; i < STOPS; i++) {
    d->stops[i] = d->sampling.min_tokens > 0 ? d->biases[i * 3].token : (int32_t)(vocab - 1 - i);
  }
  for (uint32_t i = 0; i < ALLOWED; i++) {
    d->allowed[i] = (int32_t)((i * i * 13 + seed) % vocab);
  }
  for (uint32_t i = 0; i < BAD_RUNS; i++) {  // of likely tokens, one behind the other
    d->bad_tokens[2 * i] = d->biases[i % 5 == 0 ? i : 3].token;
    d->bad_tokens[2 * i + 1] = d->biases[i % 5 == 0 ? 6 : i].token;
    d->bad_ends[i] = 2 * i + 2;
  }
  d->sampling.allowed = d->sampling.allowed_count > 0 ? d->allowed : NULL;
  d->sampling.bad_runs.tokens = d->bad_tokens;
  d->sampling.bad_runs.ends = d->bad_ends;
  d->sampling.biases = d->biases;
  d->sampling.seed = seed * 1000 + case_idx;
  init_state(t, d);
}

// The mask of the next token; words NULL: it has none.
static mgl_cuda_mask next_mask(sampling_test *t, drawn *d) {
  const mgl_sampling_state *state = &d->state;
  bool is_masked = state->allowed != NULL || state->bad_runs.count > 0;
  mgl_sampling_state_count(&d->state, d->tokens, d->count);
  for (uint32_t i = 0; i < (t->model.config.vocab_size + 63) / 64; i++) {
    t->mask[i] = state->allowed != NULL ? state->allowed[i] : UINT64_MAX;
  }
  for (uint32_t i = 0; i < state->barred_count; i++) {
    t->mask[state->barred[i] / 64] &= ~(UINT64_C(1) << state->barred[i] % 64);
  }
  return (mgl_cuda_mask){.words = is_masked ? t->mask : NULL};
}

static void on_token(void *context, const mgl_cuda_token *token) {
  sampling_test *t = context;
  drawn *d = &t->drawn[token->request];
  if (token->logprobs != NULL) {
    d->logprobs[d->count - PROMPT] = *token->logprobs;
  }
  d->tokens[d->count++] = token->token;
  d->ended = token->state != MGL_CUDA_SEQUENCE_RUNNING;
  if (t->requests[token->request].masks_all && !d->ended) {
    mgl_cuda_mask mask = next_mask(t, d);
    mgl_cuda_program_mask(t->program, token->request, &mask, d->count);
  }
}

static const mgl_cuda_request *next_request(void *context) {
  sampling_test *t = context;
  if (t->request_next == t->request_count) {
    return NULL;
  }
  mgl_cuda_request *r = &t->requests[t->request_next];
  r->mask = next_mask(t, &t->drawn[t->request_next++]);
  return r;
}

// Open while a mask may have to be sent.
static mgl_feed_end tend(void *context) {
  const sampling_test *t = context;
  bool all_ended = t->request_next == t->request_count;
  for (uint32_t i = 0; i < t->request_count; i++) {
    all_ended = all_ended && t->drawn[i].ended;
  }
  return all_ended ? MGL_FEED_CLOSED : MGL_FEED_OPEN;
}

static void generate(sampling_test *t, uint32_t count) {
  static const mgl_cuda_request_source source = {.next = next_request, .tend = tend};
  mgl_error err = {0};
  mgl_cuda_generate job = {
      .source = &source, .has_masks = true, .on_token = on_token, .context = t};
  for (uint32_t i = 0; i < count; i++) {
    const drawn *d = &t->drawn[i];
    mgl_cuda_request *r = &t->requests[i];
    *r = (mgl_cuda_request){.number = i,
                            .prompt = d->tokens,
                            .prompt_count = PROMPT,
                            .max_new_tokens = NEW,
                            .rule = d->state.rule,
                            .edits = d->state.edits,
                            .edit_count = d->state.edit_count,
                            .stop_ids = d->stops,
                            .stop_count = STOPS,
                            .masks_all = d->state.bad_runs.count > 0};
    uint32_t edits = mgl_cuda_request_edits(r);
    uint32_t logprobs = mgl_cuda_request_logprobs(r);
    job.most_edits = edits > job.most_edits ? edits : job.most_edits;
    job.most_logprobs = logprobs > job.most_logprobs ? logprobs : job.most_logprobs;
  }
  t->request_count = count;
  t->request_next = 0;
  gpu_must(mgl_cuda_program_generate(t->program, &job, &err), &err);
}

// The logits of all positions of a sequence.
static void compute_logits(sampling_test *t, const drawn *d) {
  static const int32_t pages[PAGES] = {0, 1, 2, 3, 4};
  mgl_error err = {0};
  mgl_plan_clear(t->plan);
  mgl_plan_add(t->plan, &(mgl_plan_chunk){.tokens = d->tokens,
                                          .token_count = d->count,
                                          .pages = pages,
                                          .page_count = PAGES,
                                          .logits = MGL_LOGITS_ALL});
  gpu_must(mgl_cuda_program_run_plan(t->program, t->plan, NULL, t->logits, &err), &err);
}

static void compare_logprobs(sampling_test *t, const drawn *d, uint32_t position,
                             const float *logits, uint32_t best) {
  const mgl_cuda_logprobs *found = &d->logprobs[position - PROMPT];
  mgl_token_logprob top[MGL_MAX_TOP_LOGPROBS];
  double logprob = 0;
  uint32_t count = mgl_sample_logprobs(t->sampler, logits, best, (uint32_t)d->tokens[position],
                                       d->sampling.top_logprobs, top, &logprob);
  bool same = mgl_logprob(found->logit, found->largest, found->mass) == logprob;
  for (uint32_t i = 0; i < count; i++) {
    same = same && top[i].token == found->top[i].token &&
           top[i].logprob == mgl_logprob(found->top[i].logit, found->largest, found->mass);
  }
  t->logprobs++;
  t->logprob_differences += same ? 0 : 1;
}

static void compare(sampling_test *t, drawn *d, uint32_t case_idx) {
  uint32_t vocab = t->model.config.vocab_size;
  compute_logits(t, d);
  mgl_sampling_state_reset(&d->state);
  init_state(t, d);
  for (uint32_t position = PROMPT; position < d->count; position++) {
    const float *logits = t->logits + (size_t)(position - 1) * vocab;
    uint32_t best = mgl_argmax(logits, vocab);
    mgl_sampling_state_count(&d->state, d->tokens, position);
    mgl_sample_row row = {.logits = logits, .best = best, .position = position, .state = &d->state};
    uint32_t token = mgl_sample(t->sampler, &row);
    t->tokens++;
    if ((int32_t)token != d->tokens[position] && t->token_differences++ < 5) {
      printf("- case %u, position %u: token %d on the GPU, %u on the host\n", case_idx, position,
             d->tokens[position], token);
    }
    if (d->sampling.logprobs) {
      compare_logprobs(t, d, position, logits, best);
    }
  }
}

static void compare_all(sampling_test *t) {
  uint32_t lengths = 0;
  for (uint32_t i = 0; i < CASES * SEEDS; i += SEQUENCES) {
    uint32_t count = CASES * SEEDS - i < SEQUENCES ? CASES * SEEDS - i : SEQUENCES;
    for (uint32_t j = 0; j < count; j++) {
      make_request(t, (i + j) % CASES, (i + j) / CASES, &t->drawn[j]);
    }
    generate(t, count);
    for (uint32_t j = 0; j < count; j++) {
      uint32_t generated = t->drawn[j].count - PROMPT;
      lengths += generated < t->drawn[j].sampling.min_tokens ? 1 : 0;
      compare(t, &t->drawn[j], (i + j) % CASES);
      mgl_sampling_state_reset(&t->drawn[j].state);
    }
  }
  gpu_check(
      t->bench, t->token_differences == 0 && lengths == 0,
      "%s: %llu tokens of %d ways to sample: %llu are not the host's, %u requests ended early",
      t->model.name, (unsigned long long)t->tokens, CASES, (unsigned long long)t->token_differences,
      lengths);
  gpu_check(t->bench, t->logprob_differences == 0 && t->logprobs > 0,
            "%s: %llu times log probabilities: %llu are not the host's, bit for bit", t->model.name,
            (unsigned long long)t->logprobs, (unsigned long long)t->logprob_differences);
}

// --- what it costs -------------------------------------------------------------------------------

static int by_time(const void *a, const void *b) {
  uint64_t x = *(const uint64_t *)a;
  uint64_t y = *(const uint64_t *)b;
  return x < y ? -1 : x > y ? 1 : 0;
}

// Median time of the iterations that decode, in microseconds.
static double median_us(sampling_test *t, uint32_t batch, const mgl_sampling *sampling) {
  mgl_error err = {0};
  uint64_t times[MOST_TIMES] = {0};
  mgl_cuda_request requests[SEQUENCES];
  for (uint32_t i = 0; i < batch; i++) {
    make_request(t, 0, i, &t->drawn[i]);
    t->drawn[i].sampling = *sampling;
    t->drawn[i].sampling.allowed = sampling->allowed_count > 0 ? t->drawn[i].allowed : NULL;
    init_state(t, &t->drawn[i]);
    requests[i] = (mgl_cuda_request){.prompt = t->drawn[i].tokens,
                                     .prompt_count = PROMPT,
                                     .max_new_tokens = NEW,
                                     .rule = t->drawn[i].state.rule,
                                     .edits = t->drawn[i].state.edits,
                                     .edit_count = t->drawn[i].state.edit_count,
                                     .mask.words = t->drawn[i].state.allowed};
  }
  mgl_cuda_outcome outcome = {.iteration_ns = times, .iteration_capacity = MOST_TIMES};
  mgl_cuda_generate job = {
      .requests = requests, .request_count = batch, .prompts_first = true, .outcome = &outcome};
  gpu_must(mgl_cuda_program_generate(t->program, &job, &err), &err);
  uint32_t first = outcome.iterations - (NEW - 1);
  for (uint32_t i = 0; i < NEW - 1; i++) {
    times[i] = times[first + i + 1] - times[first + i];
  }
  qsort(times, NEW - 1, sizeof *times, by_time);
  for (uint32_t i = 0; i < batch; i++) {
    mgl_sampling_state_reset(&t->drawn[i].state);
  }
  return (double)times[(NEW - 1) / 2] / 1e3;
}

static void print_costs(sampling_test *t) {
  static const struct {
    const char *name;
    mgl_sampling sampling;
  } kinds[] = {
      {"greedy", {.top_p = 1}},
      {"temperature 1", {.temperature = 1, .top_p = 1}},
      {"top-p 0.95", {.temperature = 1, .top_p = 0.95}},
      {"top-k 50, top-p 0.95", {.temperature = 1, .top_k = 50, .top_p = 0.95}},
      {"min-p 0.05", {.temperature = 1, .top_p = 1, .min_p = 0.05}},
      {"greedy, repetition penalty", {.top_p = 1, .repetition_penalty = 1.1}},
      {"top-p 0.95, all penalties",
       {.temperature = 1,
        .top_p = 0.95,
        .repetition_penalty = 1.1,
        .presence_penalty = 0.1,
        .frequency_penalty = 0.1}},
      {"greedy, 50 allowed", {.top_p = 1, .allowed_count = ALLOWED}},
      {"greedy, log probabilities", {.top_p = 1, .logprobs = true}},
      {"greedy, 20 log probabilities", {.top_p = 1, .logprobs = true, .top_logprobs = 20}},
  };
  printf("\nMedian time of an iteration that decodes, us (vocabulary of %u):\n\n",
         t->model.config.vocab_size);
  printf("| sampling | batch 1 | batch %d |\n|---|---|---|\n", SEQUENCES);
  for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
    (void)median_us(t, 1, &kinds[i].sampling);  // the first launch of a kind grows buffers
    printf("| %s | %.1f | %.1f |\n", kinds[i].name, median_us(t, 1, &kinds[i].sampling),
           median_us(t, SEQUENCES, &kinds[i].sampling));
    (void)fflush(stdout);
  }
  printf("\n");
}

static void run(gpu_bench *bench, const char *name) {
  static const mgl_plan_limits limits = {.tokens = PROMPT + NEW,
                                         .sequences = SEQUENCES,
                                         .pages_per_sequence = PAGES,
                                         .page_tokens = GPU_PAGE_TOKENS};
  mgl_error err = {0};
  sampling_test *t = gpu_must_alloc(1, sizeof *t);
  t->bench = bench;
  printf("\n## Sampling: %s\n\n", name);
  (void)fflush(stdout);
  gpu_model_open(name, &t->model);
  uint32_t vocab = t->model.config.vocab_size;
  t->program = gpu_program(bench, &t->model,
                           (mgl_cuda_program_options){.sizes.limits.tokens = PROMPT + NEW,
                                                      .sizes.sequences = SEQUENCES,
                                                      .sizes.limits.pages_per_sequence = PAGES,
                                                      .sizes.logit_rows = PROMPT + NEW});
  gpu_must(mgl_plan_create(&limits, &t->plan, &err), &err);
  gpu_must(mgl_sampler_create(vocab, &t->sampler, &err), &err);
  t->logits = gpu_must_alloc((size_t)(PROMPT + NEW) * vocab, sizeof *t->logits);
  t->mask = gpu_must_alloc((vocab + 63) / 64, sizeof *t->mask);
  compare_all(t);
  print_costs(t);
  mgl_free(t->mask);
  mgl_free(t->logits);
  mgl_sampler_destroy(t->sampler);
  mgl_plan_destroy(t->plan);
  mgl_cuda_program_destroy(t->program);
  gpu_model_close(&t->model);
  mgl_free(t);
}

void gpu_sampling_run(gpu_bench *bench, int count, char **arguments) {
  static const char *const small[] = {"tiny", "wide", "bias"};
  for (int i = 0; i < (count == 0 ? 3 : count); i++) {
    run(bench, count == 0 ? small[i] : arguments[i]);
  }
}
