// The requests of `megalith bench throughput` (256, of 100 to 1024 tokens each way, greedy), on one
// GPU and on several: what they give, token by token.
//
// Large iterations split reductions, so their bits depend on what else is in them, on one GPU too.
// The yardstick is therefore one GPU that gets the same requests in reverse order. Of each request
// tokens count up to the first other one, since what follows continues another text. Up to it
// distributions are compared, by the logits that a launch tells: KL over the 20 likeliest tokens and
// all others as one, which is at most the whole, and how far apart two logits of a token lie.
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "batch/sampling.h"
#include "compile/shard.h"
#include "gpu/gpu_bench.h"

enum {
  MOST_REQUESTS = 256,
  LEAST_TOKENS = 100,  // of a prompt, and to generate
  MOST_TOKENS = 1024,
  DRAW_INPUT = 1,  // streams of random numbers, as of app/random_work.c
  DRAW_OUTPUT = 2,
  DRAW_TOKEN = 4,
};

#define MOST_RATIO 2  // of mean KL and of the largest difference of logits, to the yardstick's

typedef struct work_side {
  gpu_bench *bench;
  gpu_model model;
  mgl_ranks *ranks;
  uint32_t requests;
  uint64_t pages;
  mgl_cuda_program *one, *several;
  int32_t *prompts;  // [requests, MOST_TOKENS]
} work_side;

// What a run told.
typedef struct told {
  bool reversed;
  uint32_t requests;
  double seconds;
  uint32_t counts[MOST_REQUESTS];
  int32_t *tokens;              // [requests, MOST_TOKENS]
  mgl_cuda_logprobs *logprobs;  // [requests, MOST_TOKENS]
} told;

static uint32_t draw_length(int stream, uint32_t request) {
  double u = mgl_sampling_uniform((uint64_t)stream << 56, request);
  return LEAST_TOKENS + (uint32_t)(u * (MOST_TOKENS - LEAST_TOKENS + 1));
}

static void make_prompts(work_side *s) {
  s->prompts = gpu_must_alloc((size_t)s->requests * MOST_TOKENS, sizeof *s->prompts);
  for (uint32_t i = 0; i < s->requests; i++) {
    for (uint32_t j = 0; j < MOST_TOKENS; j++) {
      uint64_t at = (i + UINT64_C(1)) << 24 | j;
      double u = mgl_sampling_uniform((uint64_t)DRAW_TOKEN << 56, at);
      s->prompts[(size_t)i * MOST_TOKENS + j] = (int32_t)(u * s->model.config.vocab_size);
    }
    s->pages += (draw_length(DRAW_INPUT, i) + draw_length(DRAW_OUTPUT, i)) / GPU_PAGE_TOKENS + 1;
  }
}

static void on_token(void *context, const mgl_cuda_token *token) {
  told *t = context;
  uint32_t request = t->reversed ? t->requests - 1 - token->request : token->request;
  size_t at = (size_t)request * MOST_TOKENS + t->counts[request]++;
  t->tokens[at] = token->token;
  t->logprobs[at] = *token->logprobs;
}

static told *generate(work_side *s, mgl_cuda_program *program, bool reversed) {
  mgl_error err = {0};
  told *t = gpu_must_alloc(1, sizeof *t);
  mgl_cuda_request *requests = gpu_must_alloc(s->requests, sizeof *requests);
  *t = (told){.reversed = reversed, .requests = s->requests};
  t->tokens = gpu_must_alloc((size_t)s->requests * MOST_TOKENS, sizeof *t->tokens);
  t->logprobs = gpu_must_alloc((size_t)s->requests * MOST_TOKENS, sizeof *t->logprobs);
  for (uint32_t i = 0; i < s->requests; i++) {
    uint32_t of = reversed ? s->requests - 1 - i : i;
    requests[i] = (mgl_cuda_request){
        .prompt = s->prompts + (size_t)of * MOST_TOKENS,
        .prompt_count = draw_length(DRAW_INPUT, of),
        .max_new_tokens = draw_length(DRAW_OUTPUT, of),
        .rule = {.flags = MGL_SAMPLING_LOGPROBS, .top_logprobs = MGL_MAX_TOP_LOGPROBS}};
  }
  uint64_t start = mgl_clock_ns();
  gpu_must(mgl_cuda_program_generate(program,
                                     &(mgl_cuda_generate){.requests = requests,
                                                          .request_count = s->requests,
                                                          .on_token = on_token,
                                                          .context = t},
                                     &err),
           &err);
  t->seconds = (double)(mgl_clock_ns() - start) / 1e9;
  mgl_free(requests);
  return t;
}

static void forget(told *t) {
  mgl_free(t->tokens);
  mgl_free(t->logprobs);
  mgl_free(t);
}

// --- comparison ----------------------------------------------------------------------------------

// KL(a || b) of one token's distributions, over the tokens that both tell of and all others as one.
static double kl_of(const mgl_cuda_logprobs *a, const mgl_cuda_logprobs *b, double *largest) {
  double kl = 0;
  double rest_a = 1;
  double rest_b = 1;
  for (uint32_t i = 0; i < MGL_MAX_TOP_LOGPROBS; i++) {
    for (uint32_t j = 0; j < MGL_MAX_TOP_LOGPROBS; j++) {
      if (a->top[i].token == b->top[j].token) {
        double log_a = mgl_logprob(a->top[i].logit, a->largest, a->mass);
        double log_b = mgl_logprob(b->top[j].logit, b->largest, b->mass);
        double apart = fabs((double)a->top[i].logit - (double)b->top[j].logit);
        kl += exp(log_a) * (log_a - log_b);
        rest_a -= exp(log_a);
        rest_b -= exp(log_b);
        *largest = apart > *largest ? apart : *largest;
      }
    }
  }
  return kl + (rest_a > 1e-9 && rest_b > 1e-9 ? rest_a * log(rest_a / rest_b) : 0);
}

// How two runs differ.
typedef struct apart {
  double kl;       // mean
  double largest;  // of differences of logits
} apart;

static apart compare(work_side *s, const char *name, const told *one, const told *other) {
  uint64_t tokens = 0;
  uint64_t same = 0;
  uint64_t compared = 0;
  uint32_t whole = 0;
  double kl = 0;
  double largest = 0;
  double gap = 0;
  bool complete = true;
  for (uint32_t i = 0; i < s->requests; i++) {
    const uint32_t count = draw_length(DRAW_OUTPUT, i);
    uint32_t j = 0;
    complete = complete && one->counts[i] == count && other->counts[i] == count;
    for (bool differs = false; j < count && !differs; j += differs ? 0 : 1) {
      size_t at = (size_t)i * MOST_TOKENS + j;
      kl += kl_of(&one->logprobs[at], &other->logprobs[at], &largest);
      compared++;
      differs = one->tokens[at] != other->tokens[at];
      if (differs) {
        double g = (double)one->logprobs[at].top[0].logit - (double)one->logprobs[at].top[1].logit;
        gap = g > gap ? g : gap;
      }
    }
    tokens += count;
    same += j;
    whole += j == count ? 1 : 0;
  }
  kl /= (double)compared;
  printf("| %s | %.2f | %llu of %llu | %u of %u | %.1e | %.3f | %.3f |\n", name, other->seconds,
         (unsigned long long)same, (unsigned long long)tokens, whole, s->requests, kl, largest,
         gap);
  (void)fflush(stdout);
  gpu_check(s->bench, complete && isfinite(kl), "%s: all requests are whole", name);
  return (apart){kl, largest};
}

// --- ranks ---------------------------------------------------------------------------------------

static mgl_cuda_program_options options_of(const work_side *s) {
  return (mgl_cuda_program_options){
      .sizes.limits.tokens = MGL_MAX_ITERATION_TOKENS,
      .sizes.sequences = s->requests,
      .sizes.page_count = (uint32_t)s->pages,
      .sizes.limits.pages_per_sequence = 2 * MOST_TOKENS / GPU_PAGE_TOKENS + 1};
}

static mgl_status make_ranks(work_side *s, mgl_error *err) {
  mgl_graph *cut = NULL;
  mgl_cuda_program_options options = options_of(s);
  const uint32_t count = mgl_ranks_count(s->ranks);
  MGL_TRY(mgl_cuda_device_open((int)mgl_ranks_rank(s->ranks), &s->bench->device, err));
  MGL_TRY(mgl_shard_program(s->model.program, count, &cut, err));
  options.program = cut;
  options.build.seed = GPU_SEED;
  options.build.ranks = count;
  options.ranks = s->ranks;
  mgl_status status = mgl_cuda_program_create(&s->bench->device, &options, &s->several, err);
  mgl_graph_destroy(cut);
  return status;
}

static _Noreturn void follow(work_side *s) {
  mgl_error err = {0};
  mgl_status status = make_ranks(s, &err);
  if (status == MGL_OK) {
    status = mgl_cuda_program_follow(s->several, &err);
  }
  mgl_ranks_leave(s->ranks, status == MGL_OK ? NULL : &err);
}

// One model in one process, since ranks are started before CUDA is opened.
void gpu_ranks_work_run(gpu_bench *bench, int count, char **arguments) {
  work_side s = {.bench = bench, .requests = MOST_REQUESTS};
  mgl_error err = {0};
  const char *folder = NULL;
  uint32_t ranks = 2;
  for (int i = 0; i < count; i++) {
    const char *equals = strchr(arguments[i], '=');
    uint32_t value = equals != NULL ? (uint32_t)strtoul(equals + 1, NULL, 10) : 0;
    folder = equals == NULL ? arguments[i] : folder;
    ranks = strncmp(arguments[i], "ranks=", 6) == 0 ? value : ranks;
    s.requests = strncmp(arguments[i], "requests=", 9) == 0 ? value : s.requests;
  }
  if (folder == NULL || s.requests < 1 || s.requests > MOST_REQUESTS) {
    gpu_check(bench, false, "ranks_work: expected a model's folder, 1 to %d requests",
              MOST_REQUESTS);
    return;
  }
  gpu_model_open(folder, &s.model);
  make_prompts(&s);
  gpu_must(mgl_cuda_ranks_start(ranks, NULL, &s.ranks, &err), &err);
  if (mgl_ranks_rank(s.ranks) != 0) {
    follow(&s);
  }
  gpu_must(make_ranks(&s, &err), &err);
  s.one = gpu_program(bench, &s.model, options_of(&s));
  printf(
      "\n## %s: %u requests on one %s and on %u\n\n| beside one GPU | s | tokens before the first "
      "other one of a request | whole requests | mean KL | logits differ by at most | largest gap "
      "behind an other token |\n|---|---|---|---|---|---|---|\n",
      s.model.name, s.requests, bench->device.name, ranks);
  told *one = generate(&s, s.one, false);
  told *reversed = generate(&s, s.one, true);
  told *several = generate(&s, s.several, false);
  const apart yardstick = compare(&s, "one GPU, requests reversed", one, reversed);
  const apart found = compare(&s, "several", one, several);
  gpu_check(
      bench,
      found.kl <= MOST_RATIO * yardstick.kl && found.largest <= MOST_RATIO * yardstick.largest,
      "several GPUs: mean KL and the largest difference of logits are at most %d times those "
      "of one GPU with requests reversed (%.2f and %.2f times)",
      MOST_RATIO, found.kl / yardstick.kl, found.largest / yardstick.largest);
  told *all[] = {one, reversed, several};
  for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
    forget(all[i]);
  }
  mgl_cuda_program_destroy(s.one);
  mgl_cuda_program_destroy(s.several);
  mgl_ranks_stop(s.ranks);
  mgl_free(s.prompts);
  gpu_model_close(&s.model);
}
