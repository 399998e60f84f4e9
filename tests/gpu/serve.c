// Many requests in one launch: each gets, token for token, what it gets alone, while the pool of KV
// pages is tiny (constant preemption) or roomy, with and without the prefix cache, for several
// chunks and numbers of sequences, all at once or arriving while others run, with a third of them
// ended early.
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "batch/page_key.h"
#include "batch/sampling.h"
#include "gpu/gpu_bench.h"

enum {
  REQUESTS = 200,
  MOST_PROMPT = 120,
  MOST_NEW = 60,
  FAMILIES = 9,
  SEQUENCES = 24,
  MANY = 100,  // more than an iteration has rows
  ITERATION = MGL_CUDA_MAX_TOKENS,
  PAGES = (MOST_PROMPT + MOST_NEW + GPU_PAGE_TOKENS - 1) / GPU_PAGE_TOKENS,
  TINY_POOL = PAGES + 8,
  ROOMY_POOL = SEQUENCES * PAGES + 200,
};

typedef struct way {
  uint32_t chunk;
  bool prefix_cache, arrive, end_some, prompts_first;
} way;

static const way ways[] = {
    {.chunk = 0},
    {.chunk = 1, .prefix_cache = true},
    {.chunk = 7, .end_some = true},
    {.chunk = 16, .prefix_cache = true, .arrive = true},
    {.chunk = 33, .arrive = true, .end_some = true},
    {.chunk = 64, .prefix_cache = true, .arrive = true, .end_some = true},
    {.chunk = 13, .prefix_cache = true, .prompts_first = true},
};

enum { WAYS = sizeof ways / sizeof ways[0] };

// A request, what it gives alone, and what it gave in the present launch.
typedef struct served {
  int32_t prompt[MOST_PROMPT];
  mgl_cuda_request request;
  int32_t stop;
  mgl_page_key keys[MOST_PROMPT / GPU_PAGE_TOKENS];
  int32_t alone[MOST_NEW], now[MOST_NEW];
  uint32_t alone_count, now_count;
  uint32_t end_at;  // tokens after which it is ended
  bool ended, over;
} served;

typedef struct serve {
  gpu_bench *bench;
  gpu_model model;
  mgl_cuda_program *program;
  const way *how;
  bool full;      // in mode full
  uint32_t next;  // that is to come
  uint32_t coming;
  uint32_t random;
  mgl_cuda_request request;
  bool alone;
  served requests[REQUESTS];
} serve;

static uint32_t mix(uint32_t a, uint32_t b) {
  uint32_t x = a * 2654435761u ^ (b + 0x9E3779B9u) * 2246822519u;
  x ^= x >> 15;
  return x * 2654435761u >> 8;
}

static uint32_t next_random(serve *s, uint32_t below) {
  s->random = s->random * 1664525u + 1013904223u;
  return (s->random >> 8) % below;
}

// Prompts of a family begin alike.
static void make_request(serve *s, uint32_t i) {
  served *r = &s->requests[i];
  uint32_t count = 1 + mix(i, 1) % (i % 3 == 0 ? MOST_PROMPT : 40);
  uint32_t shared = mix(i, 2) % 110;
  for (uint32_t j = 0; j < count; j++) {
    uint32_t owner = j < shared ? i % FAMILIES : 1000 + i;
    r->prompt[j] = gpu_model_token(&s->model, owner * 1000 + j);
  }
  r->stop = i % 4 == 0 ? gpu_model_token(&s->model, i) : -1;
  r->request = (mgl_cuda_request){.number = i,
                                  .prompt = r->prompt,
                                  .prompt_count = count,
                                  .max_new_tokens = MOST_NEW - mix(i, 4) % (MOST_NEW - 1),
                                  .stop_ids = &r->stop,
                                  .stop_count = r->stop < 0 ? 0 : 1};
  if (i % 2 == 1) {
    mgl_sampling sampling = {.temperature = 1.1,
                             .top_k = i % 4 == 1 ? 40 : 0,
                             .top_p = 0.95,
                             .frequency_penalty = i % 5 == 0 ? 0.2 : 0,
                             .seed = i};
    r->request.rule = mgl_sampling_rule_of(&sampling, count);
  }
  mgl_page_keys_compute(r->prompt, count, GPU_PAGE_TOKENS, NULL, 0, r->keys);
  r->request.keys = r->keys;
  r->request.key_count = count / GPU_PAGE_TOKENS;
}

static void on_token(void *context, const mgl_cuda_token *token) {
  serve *s = context;
  served *r = &s->requests[token->request];
  uint32_t *count = s->alone ? &r->alone_count : &r->now_count;
  int32_t *tokens = s->alone ? r->alone : r->now;
  if (*count < MOST_NEW) {
    tokens[*count] = token->token;
  }
  ++*count;
  r->over = token->state != MGL_CUDA_SEQUENCE_RUNNING;
}

static const mgl_cuda_request *next(void *context) {
  serve *s = context;
  if (s->next >= s->coming) {
    return NULL;
  }
  s->request = s->requests[s->next++].request;
  s->request.key_count = s->how->prefix_cache ? s->request.key_count : 0;
  return &s->request;
}

// Between looks: some come, and some are ended.
static mgl_feed_end tend(void *context) {
  serve *s = context;
  if (s->alone) {
    return MGL_FEED_CLOSED;
  }
  if (!s->how->arrive) {
    s->coming = REQUESTS;
  } else if (s->coming < REQUESTS && next_random(s, 4) == 0) {
    s->coming++;
  }
  for (uint32_t i = 0; i < s->next && s->how->end_some; i += 3) {
    served *r = &s->requests[i];
    if (!r->over && !r->ended && r->now_count >= r->end_at) {
      mgl_cuda_program_end(s->program, i);
      r->ended = true;
    }
  }
  return s->next < REQUESTS ? MGL_FEED_OPEN : MGL_FEED_CLOSED;
}

static const mgl_cuda_request_source source = {.next = next, .tend = tend};

static mgl_status launch(serve *s, mgl_error *err) {
  mgl_cuda_generate job = {.source = &source,
                           .most_edits = 2 * MOST_NEW,
                           .on_token = on_token,
                           .context = s,
                           .chunk_tokens = s->how->chunk,
                           .prompts_first = s->how->prompts_first,
                           .launch = {.full = s->full}};
  return mgl_cuda_program_generate(s->program, &job, err);
}

static void expect(serve *s) {
  static const way plain = {.chunk = 0};
  mgl_error err = {0};
  s->how = &plain;
  s->alone = true;
  for (uint32_t i = 0; i < REQUESTS; i++) {
    s->next = i;
    s->coming = i + 1;
    gpu_must(launch(s, &err), &err);
  }
  s->alone = false;
}

static void serve_way(serve *s, const way *how, uint32_t seed, const char *pool) {
  mgl_error err = {0};
  mgl_cuda_progress before = mgl_cuda_program_progress(s->program);
  uint32_t unlike = 0, ended = 0;
  uint64_t tokens = 0;
  s->how = how;
  s->next = 0;
  s->coming = how->arrive ? 1 : REQUESTS;
  s->random = seed;
  for (uint32_t i = 0; i < REQUESTS; i++) {
    served *r = &s->requests[i];
    r->now_count = 0;
    r->ended = false;
    r->over = false;
    r->end_at = mix(i, seed) % 20;
  }
  uint64_t start = mgl_clock_ns();
  mgl_status status = launch(s, &err);
  double ms = (double)(mgl_clock_ns() - start) / 1e6;
  for (uint32_t i = 0; i < REQUESTS; i++) {
    const served *r = &s->requests[i];
    bool whole = r->ended ? r->now_count <= r->alone_count : r->now_count == r->alone_count;
    bool same = whole && memcmp(r->now, r->alone, r->now_count * sizeof *r->now) == 0;
    if (!same && unlike++ < 3) {
      gpu_check(s->bench, false, "request %u (ended: %d): %u tokens, alone %u, and not the same", i,
                r->ended, r->now_count, r->alone_count);
    }
    ended += r->ended ? 1 : 0;
    tokens += r->now_count;
  }
  mgl_cuda_progress after = mgl_cuda_program_progress(s->program);
  printf("| %s | %s | %u | %s | %s | %u | %llu | %llu | %llu | %llu | %.1f | %.1f |\n",
         s->full ? "full" : "mega", pool, how->chunk, how->prefix_cache ? "yes" : "no",
         how->arrive ? "one by one" : "at once", ended, (unsigned long long)tokens,
         (unsigned long long)(after.iteration + 1),
         (unsigned long long)(after.counts.preemptions - before.counts.preemptions),
         (unsigned long long)(after.counts.prefix_hit_tokens - before.counts.prefix_hit_tokens), ms,
         (double)(after.planning_ns - before.planning_ns) / 1e3 / (double)(after.iteration + 1));
  (void)fflush(stdout);
  if (status != MGL_OK || unlike > 0) {
    gpu_check(s->bench, false,
              "mode %s, %s pool, chunks of %u: %u requests gave something else; %s",
              s->full ? "full" : "mega", pool, how->chunk, unlike,
              status != MGL_OK ? err.text : "no error");
  }
}

static void serve_model(gpu_bench *bench, const char *name) {
  serve *s = gpu_must_alloc(1, sizeof *s);
  int failures = bench->failures;
  s->bench = bench;
  gpu_model_open(name, &s->model);
  printf(
      "\n## Serve: %s, %d requests\n\n| mode | pool | chunk | prefix cache | requests come | ended "
      "| "
      "tokens "
      "| iterations | preemptions | tokens found | ms | us a turn |\n"
      "|---|---|---|---|---|---|---|---|---|---|---|---|\n",
      s->model.name, REQUESTS);
  for (uint32_t i = 0; i < REQUESTS; i++) {
    make_request(s, i);
  }
  static const struct {
    const char *name;
    uint32_t sequences, pages;
  } pools[] = {{"roomy", SEQUENCES, ROOMY_POOL},
               {"tiny", SEQUENCES, TINY_POOL},
               {"many", MANY, MANY * PAGES + 200}};
  for (uint32_t pool = 0; pool < 3; pool++) {
    bool tiny = pools[pool].pages == TINY_POOL;
    s->program = gpu_program(bench, &s->model,
                             (mgl_cuda_program_options){.sizes.limits.tokens = ITERATION,
                                                        .sizes.sequences = pools[pool].sequences,
                                                        .sizes.limits.pages_per_sequence = PAGES,
                                                        .sizes.page_count = pools[pool].pages,
                                                        .poison = true});
    s->full = false;
    if (pool == 0) {
      expect(s);
    }
    // Each mode twice: what the cache holds outlives launches.
    for (uint32_t i = 0; i < 4 * WAYS; i++) {
      s->full = i >= 2 * WAYS;
      serve_way(s, &ways[i % WAYS], i, pools[pool].name);
    }
    mgl_cuda_progress progress = mgl_cuda_program_progress(s->program);
    gpu_check(bench,
              progress.counts.prefix_hit_tokens > 0 && progress.pages_used == 0 &&
                  (progress.counts.preemptions > 0) == tiny,
              "%s pool: prefixes were found, pages are free again, and %llu preemptions",
              pools[pool].name, (unsigned long long)progress.counts.preemptions);
    mgl_cuda_program_destroy(s->program);
  }
  printf("\n");
  gpu_check(bench, bench->failures == failures,
            "%s: every request gave token for token what it gives alone", s->model.name);
  gpu_model_close(&s->model);
  mgl_free(s);
}

void gpu_serve_run(gpu_bench *bench, int count, char **arguments) {
  if (count == 0) {
    serve_model(bench, "tiny");
    serve_model(bench, "wide");
  }
  for (int i = 0; i < count; i++) {
    serve_model(bench, arguments[i]);
  }
}
