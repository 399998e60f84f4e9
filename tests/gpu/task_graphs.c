// Task graphs out of files: cut in many ways, written, read and run, they give the bits of the
// graphs that the compiler makes by itself. Logits of every position of a prompt and of tokens
// behind it, alone and among others, and tokens of jobs. Where logits differ, the first op whose
// result does is named.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/text.h"
#include "compile/compile.h"
#include "gpu/gpu_bench.h"

enum {
  ITERATION = 16,
  SEQUENCES = 4,
  PROMPT = 300,  // behind the first border of softmax chunks
  DECODED = 12,
  TOKENS = PROMPT + DECODED,
  PAGES = TOKENS / GPU_PAGE_TOKENS + 4,
  NEW = 40,  // tokens of a job's request
  GRAPHS = 5,
  MOST_CUTS = 3,
};

// Prompt tokens of an iteration.
static const uint32_t chunks[] = {16, 5, 1, 9};

enum { CHUNKS = sizeof chunks / sizeof *chunks };

// A way to cut ops, of a model whose attention has `kv_heads` KV heads or any number (0).
typedef struct cutting {
  const char *name;
  mgl_compile_override cuts[MOST_CUTS];
  uint32_t count;
} cutting;

static const cutting cuttings[] = {
    {"as the compiler cuts", {{0}}, 0},
    {"gate_up=40", {{.op = "gate_up", .grid = {40, 1, 1}}}, 1},
    {"attend=1,1", {{.op = "attend", .grid = {1, 1, 1}}}, 1},
    {"attend=1,2", {{.op = "attend", .grid = {1, 2, 1}}}, 1},
    {"attend=2,3", {{.op = "attend", .grid = {2, 3, 1}}}, 1},
    {"attend=3,5", {{.op = "attend", .grid = {3, 5, 1}}}, 1},
    {"gate_up=40, attend=1,2",
     {{.op = "gate_up", .grid = {40, 1, 1}}, {.op = "attend", .grid = {1, 2, 1}}},
     2},
    {"gate_up=7, qkv_proj=5, linear_add=3",
     {{.op = "gate_up", .grid = {7, 1, 1}},
      {.op = "qkv_proj", .grid = {5, 1, 1}},
      {.op = "linear_add", .grid = {3, 1, 1}}},
     3},
};

enum { CUTTINGS = sizeof cuttings / sizeof *cuttings };

typedef struct job_tokens {
  uint32_t count[SEQUENCES];
  int32_t tokens[SEQUENCES][NEW];
} job_tokens;

typedef struct results {
  float *logits;       // [CHUNKS, TOKENS, V]
  job_tokens jobs[2];  // of one request, of all
} results;

typedef struct part {
  gpu_bench *bench;
  gpu_model model;
  mgl_plan *plan;
  int32_t tokens[SEQUENCES][TOKENS];
  float *rows;
  results wanted, found;
  uint32_t workers;
} part;

// --- graphs --------------------------------------------------------------------------------------

// Compiles for `tokens`, writes, and reads what was written.
static void compile_and_read(const part *p, const mgl_graph *fused, const cutting *c,
                             uint32_t tokens, mgl_given_graph *out) {
  mgl_error err = {0};
  mgl_task_graph *graph = NULL;
  mgl_text text = {0};
  const mgl_compile_options options = {.target = MGL_TARGET_CUDA,
                                       .tokens = tokens,
                                       .workers = p->workers,
                                       .overrides = c->cuts,
                                       .override_count = c->count};
  gpu_must(mgl_compile(fused, &options, &graph, NULL, &err), &err);
  gpu_must(mgl_task_graph_write_json(fused, graph, &text, &err), &err);
  gpu_must(
      mgl_task_graph_read_json(text.data, text.bytes, c->name, &out->program, &out->graph, &err),
      &err);
  mgl_text_free(&text);
  mgl_task_graph_destroy(graph);
}

// A program of graphs from files, of those that options say where `c` is NULL.
static mgl_cuda_program *make(part *p, const cutting *c, bool keeps, mgl_given_graph *given) {
  mgl_error err = {0};
  mgl_graph *fused = NULL;
  gpu_must(mgl_fuse_ops_cuda(p->model.program, &fused, &err), &err);
  for (uint32_t i = 0; c != NULL && i < GRAPHS; i++) {
    compile_and_read(p, fused, c, 1u << i, &given[i]);
  }
  mgl_graph_destroy(fused);
  return gpu_program(p->bench, &p->model,
                     (mgl_cuda_program_options){.sizes.limits.tokens = ITERATION,
                                                .sizes.sequences = SEQUENCES,
                                                .sizes.limits.pages_per_sequence = PAGES,
                                                .sizes.logit_rows = ITERATION,
                                                .build.given = c != NULL ? given : NULL,
                                                .build.given_count = c != NULL ? GRAPHS : 0,
                                                .poison = true,
                                                .keep_activations = keeps});
}

static void drop(mgl_cuda_program *program, mgl_given_graph *given) {
  mgl_cuda_program_destroy(program);
  for (uint32_t i = 0; i < GRAPHS; i++) {
    mgl_graph_destroy(given[i].program);
    mgl_task_graph_destroy(given[i].graph);
    given[i] = (mgl_given_graph){0};
  }
}

// --- plans ---------------------------------------------------------------------------------------

static void add(part *p, uint32_t sequence, uint32_t at, uint32_t count) {
  int32_t pages[PAGES];
  for (uint32_t i = 0; i < PAGES; i++) {  // pages of a sequence are not neighbours
    pages[i] = (int32_t)(i * SEQUENCES + (sequence + i) % SEQUENCES);
  }
  mgl_plan_add(p->plan, &(mgl_plan_chunk){.tokens = &p->tokens[sequence][at],
                                          .token_count = count,
                                          .position = at,
                                          .pages = pages,
                                          .page_count = PAGES,
                                          .logits = MGL_LOGITS_ALL});
}

// Tokens of the iteration that begins at `at`.
static uint32_t step(uint32_t chunk, uint32_t at) {
  const uint32_t wanted = at < PROMPT ? chunk : 1;
  const uint32_t end = at < PROMPT ? PROMPT : TOKENS;
  return end - at < wanted ? end - at : wanted;
}

static void run_iteration(part *p, mgl_cuda_program *program, uint32_t at, uint32_t count,
                          float *logits) {
  mgl_error err = {0};
  mgl_plan_clear(p->plan);
  add(p, 0, at, count);
  gpu_must(mgl_cuda_program_run_plan(program, p->plan, NULL, logits, &err), &err);
}

static void run_prompt(part *p, mgl_cuda_program *program, uint32_t chunk, float *logits) {
  const size_t vocab = p->model.config.vocab_size;
  for (uint32_t at = 0; at < TOKENS;) {
    const uint32_t count = step(chunk, at);
    run_iteration(p, program, at, count, logits + at * vocab);
    at += count;
  }
}

// --- jobs ----------------------------------------------------------------------------------------

static void on_token(void *context, const mgl_cuda_token *token) {
  job_tokens *job = context;
  const uint32_t i = token->request;
  if (job->count[i] < NEW) {
    job->tokens[i][job->count[i]] = token->token;
  }
  job->count[i]++;
}

static void run_job(part *p, mgl_cuda_program *program, uint32_t count, job_tokens *out) {
  mgl_error err = {0};
  mgl_cuda_request requests[SEQUENCES];
  for (uint32_t i = 0; i < count; i++) {
    requests[i] = (mgl_cuda_request){
        .prompt = p->tokens[i], .prompt_count = 4 + 37 * i, .max_new_tokens = NEW};
  }
  const mgl_cuda_generate job = {
      .requests = requests, .request_count = count, .on_token = on_token, .context = out};
  memset(out, 0, sizeof *out);
  gpu_must(mgl_cuda_program_generate(program, &job, &err), &err);
}

static void run_all(part *p, mgl_cuda_program *program, results *out) {
  const size_t vocab = p->model.config.vocab_size;
  for (size_t i = 0; i < CHUNKS; i++) {
    run_prompt(p, program, chunks[i], out->logits + i * TOKENS * vocab);
  }
  run_job(p, program, 1, &out->jobs[0]);
  run_job(p, program, SEQUENCES, &out->jobs[1]);
}

// --- comparing -----------------------------------------------------------------------------------

// First element of those that differs; UINT32_MAX: none.
static uint32_t first_difference(const float *found, const float *wanted, size_t count) {
  for (size_t i = 0; i < count; i++) {
    if (memcmp(&found[i], &wanted[i], sizeof *found) != 0) {
      return (uint32_t)i;
    }
  }
  return UINT32_MAX;
}

// After the same iteration of both programs: the first op with another result. False: there is none.
static bool name_op(part *p, mgl_cuda_program *programs[2], uint32_t at, uint32_t count) {
  mgl_error err = {0};
  const mgl_graph *fused = mgl_cuda_program_fused(programs[0]);
  uint32_t graph = 0;
  while (1u << graph < count) {
    graph++;
  }
  for (size_t i = 0; i < fused->op_count; i++) {
    const mgl_op *op = &fused->ops[i];
    const mgl_tensor *result = &fused->tensors[op->output];
    const mgl_dim_values dims = {.tokens = count, .logit_rows = count, .sequences = count};
    if (op->kind == MGL_OP_NEXT_PLAN || op->kind == MGL_OP_SAMPLE ||
        result->placement != MGL_PLACE_ACTIVATION) {
      continue;
    }
    const size_t elements = (size_t)mgl_tensor_elements(result, &dims);
    const size_t columns = (size_t)mgl_tensor_row_elements(result);
    float *values[2];
    for (uint32_t side = 0; side < 2; side++) {
      values[side] = gpu_must_alloc(elements, sizeof *values[side]);
      gpu_must(
          mgl_cuda_program_read(programs[side], graph, result->name, values[side], elements, &err),
          &err);
    }
    const uint32_t first = first_difference(values[0], values[1], elements);
    if (first != UINT32_MAX) {
      printf(
          "  - the first op with other bits: %s %s, token %u, element %u of %zu: %g, wanted %g "
          "(iteration of %u tokens at %u)\n",
          mgl_op_name(op), result->name, (uint32_t)(first / columns), (uint32_t)(first % columns),
          columns, (double)values[1][first], (double)values[0][first], count, at);
    }
    mgl_free(values[0]);
    mgl_free(values[1]);
    if (first != UINT32_MAX) {
      return true;
    }
  }
  (void)p;
  return false;
}

// Runs the chunks again on programs that keep activations, up to the first difference.
static void locate(part *p, const cutting *c, uint32_t chunk) {
  mgl_given_graph given[GRAPHS] = {{0}};
  mgl_given_graph none[GRAPHS] = {{0}};
  mgl_cuda_program *programs[2] = {make(p, NULL, true, none), make(p, c, true, given)};
  bool found = false;
  for (uint32_t at = 0; at < TOKENS && !found;) {
    const uint32_t count = step(chunk, at);
    run_iteration(p, programs[0], at, count, p->rows);
    run_iteration(p, programs[1], at, count, p->rows);
    found = name_op(p, programs, at, count);
    at += count;
  }
  if (!found) {
    printf("  - no op has other bits where all activations have storage of their own\n");
  }
  (void)fflush(stdout);
  drop(programs[0], none);
  drop(programs[1], given);
}

static void check_cutting(part *p, const cutting *c) {
  const size_t vocab = p->model.config.vocab_size;
  mgl_given_graph given[GRAPHS] = {{0}};
  uint32_t unlike = 0;
  mgl_cuda_program *program = make(p, c, false, given);
  memset(p->found.logits, 0xff, CHUNKS * TOKENS * vocab * sizeof *p->found.logits);
  run_all(p, program, &p->found);
  drop(program, given);
  for (size_t i = 0; i < CHUNKS; i++) {
    const size_t from = i * TOKENS * vocab;
    const uint32_t first =
        first_difference(p->found.logits + from, p->wanted.logits + from, TOKENS * vocab);
    if (first != UINT32_MAX) {
      printf("- chunks of %u: position %u, logit %u: %g, wanted %g\n", chunks[i],
             (uint32_t)(first / vocab), (uint32_t)(first % vocab),
             (double)p->found.logits[from + first], (double)p->wanted.logits[from + first]);
      (void)fflush(stdout);
      unlike++;
      if (unlike == 1) {
        locate(p, c, chunks[i]);
      }
    }
  }
  const bool one = memcmp(&p->found.jobs[0], &p->wanted.jobs[0], sizeof p->found.jobs[0]) == 0;
  const bool all = memcmp(&p->found.jobs[1], &p->wanted.jobs[1], sizeof p->found.jobs[1]) == 0;
  gpu_check(p->bench, unlike == 0 && one && all,
            "%s, task graphs from files, %s: logits of %d positions in chunks of 16, 5, 1 and 9 "
            "(%u of 4 other), tokens of a job of 1 request (%s) and of %d (%s)",
            p->model.name, c->name, TOKENS, unlike, one ? "the same" : "OTHER", SEQUENCES,
            all ? "the same" : "OTHER");
}

static void check_model(gpu_bench *bench, const char *name, const char *only) {
  static const mgl_plan_limits limits = {.tokens = ITERATION,
                                         .sequences = SEQUENCES,
                                         .pages_per_sequence = PAGES,
                                         .page_tokens = GPU_PAGE_TOKENS};
  mgl_error err = {0};
  mgl_given_graph none[GRAPHS] = {{0}};
  part *p = gpu_must_alloc(1, sizeof *p);
  p->bench = bench;
  gpu_model_open(name, &p->model);
  printf("\n## Task graphs from files: %s\n\n", p->model.name);
  const size_t vocab = p->model.config.vocab_size;
  gpu_must(mgl_plan_create(&limits, &p->plan, &err), &err);
  p->rows = gpu_must_alloc(ITERATION * vocab, sizeof *p->rows);
  p->wanted.logits = gpu_must_alloc(CHUNKS * TOKENS * vocab, sizeof *p->wanted.logits);
  p->found.logits = gpu_must_alloc(CHUNKS * TOKENS * vocab, sizeof *p->found.logits);
  for (uint32_t s = 0; s < SEQUENCES; s++) {
    for (uint32_t i = 0; i < TOKENS; i++) {
      p->tokens[s][i] = gpu_model_token(&p->model, s * 100003 + i);
    }
  }
  mgl_cuda_program *program = make(p, NULL, false, none);
  p->workers = mgl_cuda_program_describe(program).workers;
  run_all(p, program, &p->wanted);
  drop(program, none);
  for (size_t i = 0; i < CUTTINGS; i++) {
    if (only == NULL || strstr(cuttings[i].name, only) != NULL) {
      check_cutting(p, &cuttings[i]);
    }
  }
  mgl_plan_destroy(p->plan);
  mgl_free(p->rows);
  mgl_free(p->wanted.logits);
  mgl_free(p->found.logits);
  gpu_model_close(&p->model);
  mgl_free(p);
}

void gpu_task_graphs_run(gpu_bench *bench, int count, char **arguments) {
  static const char *const small[] = {"tiny", "wide", "whole"};
  const char *only = NULL;
  int models = 0;
  for (int i = 0; i < count; i++) {
    only = strncmp(arguments[i], "only=", 5) == 0 ? arguments[i] + 5 : only;
  }
  for (int i = 0; i < count; i++) {
    if (strncmp(arguments[i], "only=", 5) != 0) {
      check_model(bench, arguments[i], only);
      models++;
    }
  }
  for (size_t i = 0; models == 0 && i < sizeof small / sizeof *small; i++) {
    check_model(bench, small[i], only);
  }
}
