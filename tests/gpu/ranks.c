// One model on several GPUs of this host: its tokens and the largest logits of each beside those of
// one GPU, the same bits on all ranks and from run to run, and a rank that is killed. Prompts come
// in chunks. With gpus=1 all ranks share a GPU, which gives them its time in turn: as slow as that
// is, it shows on one GPU that the ranks understand each other.
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/hash.h"
#include "compile/shard.h"
#include "gpu/gpu_bench.h"

enum {
  REQUESTS = 11,
  GENERATE = 24,
  LONG = 900,  // tokens of requests that a lost rank ends
  TOP = 8,
  PAGES = 128,
  MOST_TOKENS = 16,
  PROMPT = 61,        // tokens of the longest prompt
  LONG_PROMPT = 701,  // where there are iterations of more than 64 tokens
  SEQUENCES = 8,
};

#define MOST_ERROR 2e-2  // of logits, as in smoke.c: sums over the ranks round in another order
#define MOST_GAP 0.15    // of two logits that may change places

typedef struct heard {
  int32_t tokens[REQUESTS][GENERATE];
  mgl_cuda_logprobs logprobs[REQUESTS][GENERATE];
  uint32_t counts[REQUESTS];
  pid_t victim;  // that is killed at the third token; 0: nobody
} heard;

// One rank of a model, or all of it.
typedef struct side {
  gpu_bench *bench;
  gpu_model model;
  mgl_ranks *ranks;
  pid_t *pids;  // [MGL_MAX_RANKS] shared
  mgl_cuda_program *program;
  uint32_t most_prompt;
  bool one_gpu;
} side;

static mgl_cuda_program_options options_of(uint32_t tokens) {
  return (mgl_cuda_program_options){.sizes.limits.tokens = tokens,
                                    .sizes.sequences = SEQUENCES < tokens ? SEQUENCES : tokens,
                                    .sizes.limits.pages_per_sequence = PAGES,
                                    .poison = true};
}

static void on_token(void *context, const mgl_cuda_token *token) {
  heard *h = context;
  uint32_t *count = &h->counts[token->request];
  if (*count < GENERATE) {
    h->tokens[token->request][*count] = token->token;
    if (token->logprobs != NULL) {
      h->logprobs[token->request][*count] = *token->logprobs;
    }
  }
  ++*count;
  if (h->victim != 0 && *count == 3) {
    (void)kill(h->victim, SIGKILL);
  }
}

// Prompts of 1 to 61, or 701, tokens, which do not fit into an iteration together. A request alone
// has the longest one.
static mgl_status generate(side *s, uint32_t count, bool draws, heard *out, mgl_error *err) {
  mgl_cuda_request requests[REQUESTS] = {0};
  static int32_t prompts[REQUESTS][LONG_PROMPT];
  const uint32_t step = s->most_prompt == PROMPT ? 12 : 130;
  pid_t victim = out->victim;
  for (uint32_t i = 0; i < count; i++) {
    for (uint32_t j = 0; j < s->most_prompt; j++) {
      prompts[i][j] = gpu_model_token(&s->model, i * 64 + j);
    }
    requests[i] = (mgl_cuda_request){
        .prompt = prompts[i],
        .prompt_count = count == 1 ? s->most_prompt : 1 + i * step % s->most_prompt,
        .max_new_tokens = out->victim != 0 ? LONG : GENERATE};
    if (out->victim == 0) {
      requests[i].rule.flags = MGL_SAMPLING_LOGPROBS;
      requests[i].rule.top_logprobs = TOP;
    }
    if (draws) {
      mgl_sampling_rule *rule = &requests[i].rule;
      rule->flags |= MGL_SAMPLING_DRAWS;
      rule->seed = i;
      rule->top_p = 0.9f;
      rule->top_k = 20;
      rule->inverse = 1;
      rule->least = -(float)MGL_WEIGHT_REACH;
    }
  }
  mgl_cuda_generate job = {
      .requests = requests, .request_count = count, .on_token = on_token, .context = out};
  memset(out, 0, sizeof *out);
  out->victim = victim;
  return mgl_cuda_program_generate(s->program, &job, err);
}

// The bits of the last linear_add's results in a graph, as the latest launch left them.
static uint64_t hash_of_sums(side *s, uint32_t graph) {
  mgl_error err = {0};
  const mgl_graph *program = mgl_cuda_program_fused(s->program);
  const mgl_task_graph *g = mgl_cuda_program_graph(s->program, graph);
  uint64_t hash = 0;
  for (size_t i = 0; i < program->op_count; i++) {
    const mgl_op *op = &program->ops[i];
    const mgl_tensor *t = &program->tensors[op->output];
    if (op->kind != MGL_OP_LINEAR_ADD) {
      continue;
    }
    size_t elements = (size_t)mgl_tensor_row_elements(t) * g->tokens;
    float *values = gpu_must_alloc(elements, sizeof *values);
    gpu_must(mgl_cuda_program_read(s->program, graph, t->name, values, elements, &err), &err);
    hash = hash * 31 + mgl_hash_bytes(values, elements * sizeof *values).low;
    mgl_free(values);
  }
  return hash;
}

// All ranks call it together; whether all have the value.
static bool all_have(const side *s, uint64_t value) {
  mgl_error err = {0};
  uint64_t least = 0;
  uint64_t most = 0;
  gpu_must(mgl_ranks_meet(s->ranks, value, &least, &err), &err);
  gpu_must(mgl_ranks_meet(s->ranks, ~value, &most, &err), &err);
  return least == ~most;
}

static void compare_sums(side *s, uint32_t graphs) {
  for (uint32_t graph = 0; graph < graphs; graph++) {
    bool same = all_have(s, hash_of_sums(s, graph));
    if (mgl_ranks_rank(s->ranks) == 0) {
      gpu_check(s->bench, same, "%s: graph of %u tokens: all ranks have the same bits",
                s->model.name, 1u << graph);
    }
  }
}

// Tokens and their likeliest alternatives beside those of one GPU.
// (Of tokens that are drawn, one more or less of the sum of weights may choose another.)
static void compare(side *s, const heard *ranks, const heard *one, bool drawn) {
  double worst = 0;
  uint32_t same = 0;
  uint32_t apart = 0;  // tokens that differ though their logits do not lie close
  for (uint32_t i = 0; i < REQUESTS; i++) {
    for (uint32_t j = 0; j < GENERATE && j < one->counts[i]; j++) {
      const mgl_cuda_logprobs *a = &ranks->logprobs[i][j];
      const mgl_cuda_logprobs *b = &one->logprobs[i][j];
      for (uint32_t k = 0; k < TOP; k++) {
        double error = fabs((double)a->top[k].logit - (double)b->top[k].logit);
        worst = error > worst ? error : worst;
      }
      if (ranks->tokens[i][j] != one->tokens[i][j]) {
        apart += (double)b->top[0].logit - (double)b->top[1].logit > MOST_GAP && !drawn ? 1 : 0;
        break;  // what follows continues other texts
      }
      same++;
    }
  }
  const double scale = fabs((double)one->logprobs[0][0].largest);
  gpu_check(s->bench,
            isfinite(worst) && worst <= MOST_ERROR * (scale > 1 ? scale : 1) && apart == 0 &&
                same >= REQUESTS * GENERATE / 4,
            "%s, %s: %u tokens as on one GPU, %u others without a reason, logits differ by at most "
            "%.3g (of %.3g)",
            s->model.name, drawn ? "drawn" : "greedy", same, apart, worst, scale);
}

// --- what each rank does -------------------------------------------------------------------------

static mgl_status make(side *s, uint32_t tokens, mgl_error *err) {
  mgl_graph *cut = NULL;
  mgl_cuda_program_options options = options_of(tokens);
  const uint32_t count = mgl_ranks_count(s->ranks);
  MGL_TRY(mgl_shard_program(s->model.program, count, &cut, err));
  options.program = cut;
  options.build.seed = GPU_SEED;
  options.build.ranks = count;
  options.ranks = s->ranks;
  mgl_status status = mgl_cuda_program_create(&s->bench->device, &options, &s->program, err);
  mgl_graph_destroy(cut);
  return status;
}

// The others' life: launches, and between them what rank 0 does too.
static _Noreturn void follow(side *s, uint32_t tokens, uint32_t graphs) {
  mgl_error err = {0};
  const int ordinal = s->one_gpu ? 0 : (int)mgl_ranks_rank(s->ranks);
  mgl_status status = mgl_cuda_device_open(ordinal, &s->bench->device, &err);
  if (status == MGL_OK) {
    status = make(s, tokens, &err);
  }
  if (status == MGL_OK) {
    mgl_rank_command command = MGL_RANK_NONE;
    do {
      status = mgl_cuda_program_follow_until(s->program, &command, &err);
      if (status == MGL_OK && command == MGL_RANK_END) {
        compare_sums(s, graphs);
      }
    } while (status == MGL_OK && command == MGL_RANK_END);
  }
  mgl_ranks_leave(s->ranks, status == MGL_OK ? NULL : &err);
}

static void check_numbers(side *s, const heard *one, const heard *one_drawn, uint32_t graphs) {
  mgl_error err = {0};
  heard *first = gpu_must_alloc(1, sizeof *first);
  heard *again = gpu_must_alloc(1, sizeof *again);
  gpu_must(generate(s, 1, false, first, &err), &err);
  gpu_must(generate(s, 1, false, again, &err), &err);
  gpu_check(s->bench,
            memcmp(first->tokens, again->tokens, sizeof first->tokens) == 0 &&
                memcmp(first->logprobs, again->logprobs, sizeof first->logprobs) == 0,
            "%s: a request alone, again: the same bits", s->model.name);
  gpu_must(generate(s, REQUESTS, false, first, &err), &err);
  compare(s, first, one, false);
  gpu_must(mgl_ranks_post(s->ranks, MGL_RANK_END, NULL, &err), &err);
  compare_sums(s, graphs);
  if (s->most_prompt == PROMPT) {  // of larger iterations bits depend on what else is in them
    gpu_must(generate(s, REQUESTS, false, again, &err), &err);
    gpu_check(s->bench,
              memcmp(first->tokens, again->tokens, sizeof first->tokens) == 0 &&
                  memcmp(first->logprobs, again->logprobs, sizeof first->logprobs) == 0,
              "%s: run again: the same bits", s->model.name);
  }
  gpu_must(generate(s, REQUESTS, true, again, &err), &err);
  compare(s, again, one_drawn, true);
  mgl_free(first);
  mgl_free(again);
}

static void check_end(side *s) {
  mgl_error err = {0};
  heard *h = gpu_must_alloc(1, sizeof *h);
  h->victim = s->pids[1];
  uint64_t start = mgl_clock_ns();
  mgl_status status = generate(s, REQUESTS, false, h, &err);
  double seconds = (double)(mgl_clock_ns() - start) / 1e9;
  gpu_check(
      s->bench, status == MGL_ERR_INTERNAL && seconds < 2 && strstr(err.text, "rank 1") != NULL,
      "%s: a rank that is killed ends the run in %.2f s: %s", s->model.name, seconds, err.text);
  mgl_free(h);
}

static void run_model(gpu_bench *bench, const char *name, uint32_t count, uint32_t tokens,
                      bool one_gpu) {
  mgl_error err = {0};
  uint32_t graphs = 1;
  side s = {.bench = bench, .one_gpu = one_gpu};
  side one = {.bench = bench};
  s.most_prompt = one.most_prompt = tokens > MGL_CUDA_MAX_TOKENS ? LONG_PROMPT : PROMPT;
  while (1u << (graphs - 1) < tokens && 1u << (graphs - 1) < MGL_CUDA_MAX_TOKENS) {
    graphs++;
  }
  gpu_model_open(name, &s.model);
  gpu_model_open(name, &one.model);
  s.pids = mmap(NULL, MGL_MAX_RANKS * sizeof *s.pids, PROT_READ | PROT_WRITE,
                MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  gpu_must(mgl_cuda_ranks_start(count, NULL, &s.ranks, &err), &err);
  s.pids[mgl_ranks_rank(s.ranks)] = getpid();
  if (mgl_ranks_rank(s.ranks) != 0) {
    follow(&s, tokens, graphs);
  }
  gpu_must(mgl_cuda_device_open(0, &bench->device, &err), &err);
  gpu_must(make(&s, tokens, &err), &err);
  printf("\n%s, %u ranks, iterations of up to %u tokens\n", s.model.name, count, tokens);
  (void)fflush(stdout);
  heard *greedy = gpu_must_alloc(1, sizeof *greedy);
  heard *drawn = gpu_must_alloc(1, sizeof *drawn);
  one.program = gpu_program(bench, &one.model, options_of(tokens));
  gpu_must(generate(&one, REQUESTS, false, greedy, &err), &err);
  gpu_must(generate(&one, REQUESTS, true, drawn, &err), &err);
  check_numbers(&s, greedy, drawn, graphs);
  check_end(&s);
  mgl_cuda_program_destroy(one.program);
  mgl_cuda_program_destroy(s.program);
  mgl_ranks_stop(s.ranks);
  mgl_free(greedy);
  mgl_free(drawn);
  gpu_model_close(&s.model);
  gpu_model_close(&one.model);
}

// One model in one process, since ranks are started before CUDA is opened.
void gpu_ranks_run(gpu_bench *bench, int count, char **arguments) {
  uint32_t ranks = 2;
  uint32_t tokens = MOST_TOKENS;
  bool one_gpu = false;
  const char *name = "cut";
  for (int i = 0; i < count; i++) {
    if (strncmp(arguments[i], "ranks=", 6) == 0) {
      ranks = (uint32_t)atoi(arguments[i] + 6);
    } else if (strncmp(arguments[i], "tokens=", 7) == 0) {
      tokens = (uint32_t)atoi(arguments[i] + 7);
    } else if (strncmp(arguments[i], "gpus=1", 7) == 0) {
      one_gpu = true;
    } else {
      name = arguments[i];
    }
  }
  run_model(bench, name, ranks, tokens, one_gpu);
}
