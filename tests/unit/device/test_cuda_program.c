// The host side of the GPU without a GPU, over the fake driver of support/fake_cuda.h.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>

#include <cmocka.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "device/cuda/cuda_plan.h"
#include "device/cuda/cuda_program.h"
#include "device/cuda/cuda_program_parts.h"
#include "device/cuda/cuda_steps.h"
#include "device/cuda/cuda_wide.h"
#include "lower/choose.h"
#include "support/fake_cuda.h"
#include "support/fake_model.h"
#include "support/must.h"
#include "twin/wide_items.h"

enum { WORKERS = FAKE_CUDA_WORKERS, NOTHING = FAKE_CUDA_NEVER };

typedef struct heard {
  int32_t tokens[4][128];
  uint32_t counts[4];
  mgl_cuda_sequence_state states[4];
} heard;

static void hear(void *context, const mgl_cuda_token *token) {
  heard *h = context;
  uint32_t request = token->request;
  assert_int_equal(h->states[request] == 0 || h->states[request] == MGL_CUDA_SEQUENCE_RUNNING, 1);
  h->tokens[request][h->counts[request]++] = token->token;
  h->states[request] = token->state;
}

// --- tests ---------------------------------------------------------------------------------------

static void jobs_run_to_their_ends(void **state) {
  (void)state;
  static const mgl_launch launches[] = {MGL_LAUNCH_AOT, MGL_LAUNCH_JIT, MGL_LAUNCH_AUTO};
  mgl_cuda_device device = fake_cuda_device();
  for (size_t i = 0; i < sizeof launches / sizeof launches[0]; i++) {
    mgl_error err = {0};
    heard h = {0};
    mgl_cuda_program_options options = fake_model_usual;
    options.build.launch = launches[i];
    mgl_cuda_program *program = fake_model_program(&device, options);
    int32_t prompt[40];
    for (int32_t j = 0; j < 40; j++) {
      prompt[j] = j;
    }
    int32_t stop = fake_cuda_token(0, 9);
    uint64_t times[64];
    mgl_cuda_request requests[] = {{.prompt = prompt, .prompt_count = 40, .max_new_tokens = 5},
                                   {.prompt = prompt,
                                    .prompt_count = 6,
                                    .max_new_tokens = 50,
                                    .stop_ids = &stop,
                                    .stop_count = 1},
                                   {.prompt = prompt, .prompt_count = 1, .max_new_tokens = 1}};
    mgl_cuda_outcome outcome = {.iteration_ns = times, .iteration_capacity = 64};
    mgl_cuda_generate job = {.requests = requests,
                             .request_count = 3,
                             .on_token = hear,
                             .context = &h,
                             .outcome = &outcome};
    for (int again = 0; again < 2; again++) {
      h = (heard){0};
      if (mgl_cuda_program_generate(program, &job, &err) != MGL_OK) {
        fail_msg("%s", err.text);
      }
      assert_int_equal(h.counts[0], 5);
      assert_int_equal(h.states[0], MGL_CUDA_SEQUENCE_LENGTH);
      assert_int_equal(h.counts[1], 4);
      assert_int_equal(h.states[1], MGL_CUDA_SEQUENCE_STOPPED);
      assert_int_equal(h.counts[2], 1);
      assert_int_equal(h.states[2], MGL_CUDA_SEQUENCE_LENGTH);
      assert_int_equal(h.tokens[0][4], fake_cuda_token(0, 44));
      assert_true(outcome.iterations >= 7 && outcome.iterations < 16);
      assert_int_equal(times[outcome.iterations], 1000 * (outcome.iterations + 1));
    }
    mgl_cuda_program_destroy(program);
    assert_int_equal(fake.live, 0);
  }
}

// --- the wide class ------------------------------------------------------------------------------

enum { CROWD = 30, CROWD_TOKENS = 9, CROWD_SLOTS = 12, STOP_AFTER = 40 };

typedef struct crowd {
  uint32_t counts[CROWD];
  uint32_t heard;
  uint64_t rows;        // that were told of
  uint32_t iterations;  // that were told of
  uint32_t most;        // rows of one
  uint32_t unslept;     // tokens that were heard while sleeps last as long as they are asked to
  bool stops;
} crowd;

static void hear_crowd(void *context, const mgl_cuda_token *token) {
  crowd *c = context;
  uint32_t request = token->request;
  uint32_t prompt = 1 + request * 29 % 110;
  assert_int_equal(token->token, fake_cuda_token((int32_t)request, prompt + c->counts[request]));
  c->counts[request]++;
  c->heard++;
  c->unslept += prctl(PR_GET_TIMERSLACK) == 1000 ? 1 : 0;
}

static void hear_crowd_progress(void *context, const mgl_cuda_progress *progress) {
  crowd *c = context;
  uint32_t rows = progress->prompt_tokens + progress->decode_tokens;
  c->rows += rows;
  c->iterations++;
  c->most = rows > c->most ? rows : c->most;
}

static bool stop_crowd(void *context) {
  const crowd *c = context;
  return c->stops && c->heard >= STOP_AFTER;
}

static void run_crowd(mgl_cuda_program *program, crowd *c, bool full, mgl_cuda_outcome *outcome) {
  static int32_t prompts[CROWD][128];
  mgl_cuda_request requests[CROWD] = {0};
  mgl_error err = {0};
  for (uint32_t i = 0; i < CROWD; i++) {
    prompts[i][0] = (int32_t)i;
    requests[i] = (mgl_cuda_request){
        .prompt = prompts[i], .prompt_count = 1 + i * 29 % 110, .max_new_tokens = CROWD_TOKENS};
  }
  mgl_cuda_generate job = {.requests = requests,
                           .request_count = CROWD,
                           .on_token = hear_crowd,
                           .on_progress = hear_crowd_progress,
                           .should_stop = stop_crowd,
                           .context = c,
                           .launch = {.full = full},
                           .outcome = outcome};
  if (mgl_cuda_program_generate(program, &job, &err) != MGL_OK) {
    fail_msg("%s", err.text);
  }
}

// Launches of both classes take turns as the plans have it.
static void large_iterations_run_in_the_wide_class(void **state) {
  (void)state;
  mgl_cuda_device device = fake_cuda_device();
  mgl_cuda_program_options options = fake_model_usual;
  options.sizes.limits.tokens = 300;
  options.sizes.sequences = CROWD_SLOTS;
  mgl_cuda_program *program = fake_model_program(&device, options);
  uint64_t times[1024];
  for (int again = 0; again < 2; again++) {
    crowd c = {0};
    mgl_cuda_outcome outcome = {.iteration_ns = times, .iteration_capacity = 1024};
    uint64_t rows = 0;
    fake.runs = 0;
    fake.wide_runs = 0;
    fake.empty_wide_runs = 0;
    run_crowd(program, &c, false, &outcome);
    for (uint32_t i = 0; i < CROWD; i++) {
      assert_int_equal(c.counts[i], CROWD_TOKENS);
      rows += 1 + i * 29 % 110 + CROWD_TOKENS - 1;
    }
    assert_true(fake.wide_runs >= 4 && fake.runs >= 2 && fake.runs < fake.wide_runs);
    assert_true(fake.empty_wide_runs >= fake.runs - 1);  // each chain ends behind one
    assert_true(outcome.iterations > fake.wide_runs + CROWD_TOKENS);
    assert_int_equal(fake.run->iteration_tokens, MGL_NARROW_TOKENS);
    assert_true(c.unslept > c.heard * 3 / 4);  // not those behind the last launch
    assert_int_equal(c.iterations, outcome.iterations);
    assert_true(c.rows >= rows);  // and rows of sequences that had ended
    assert_true(c.most > 64 && c.most <= 300);
    assert_false(outcome.stopped);
  }
  crowd c = {.stops = true};
  mgl_cuda_outcome outcome = {0};
  run_crowd(program, &c, false, &outcome);
  assert_true(outcome.stopped && c.heard >= STOP_AFTER && c.heard < CROWD * CROWD_TOKENS);
  // Mode full has no kernels for more than the narrow class.
  fake.wide_runs = 0;
  c = (crowd){0};
  run_crowd(program, &c, true, &outcome);
  assert_int_equal(c.heard, CROWD * CROWD_TOKENS);
  assert_true(fake.wide_runs == 0 && c.most <= 64 && c.most > MGL_NARROW_TOKENS);
  mgl_cuda_program_destroy(program);
  assert_int_equal(fake.live, 0);
}

static void check_step(const mgl_schedule *s, uint32_t at, const mgl_cuda_step *step) {
  const mgl_schedule_step *from = &s->steps[s->list[at]];
  assert_int_equal(step->task, s->list[at]);
  assert_int_equal(step->op, from->op);
  assert_int_equal(step->wait_event, from->event);
  assert_int_equal(step->wait_count,
                   from->event == MGL_NO_EVENT ? 0 : s->events[from->event].trigger_count);
  assert_int_equal(step->trigger_event, from->trigger);
}

// The hash of what a job of one iteration has run.
static uint64_t run_once(mgl_cuda_program *p, uint32_t tokens) {
  int32_t prompt[300] = {0};
  uint64_t hash = 0;
  const mgl_cuda_request request = {.prompt = prompt, .prompt_count = tokens, .max_new_tokens = 1};
  const mgl_cuda_generate job = {.requests = &request, .request_count = 1};
  MUST(mgl_cuda_program_generate(p, &job, &err));
  MUST(mgl_cuda_program_ran(p, &hash, &err));
  return hash;
}

// The steps that lie in the GPU's memory are those of the schedules that the compiler prints, and
// the planner takes the one that is printed for so many tokens.
static void what_runs_is_the_schedule(void **state) {
  (void)state;
  mgl_cuda_device device = fake_cuda_device();
  mgl_cuda_program_options options = fake_model_usual;
  options.sizes.limits.tokens = 300;
  options.sizes.limits.pages_per_sequence = 20;
  options.sizes.sequences = 20;
  mgl_cuda_program *p = fake_model_program(&device, options);
  const bool few = p->wide.layout.sizes.few;
  for (uint32_t tokens = 1; tokens <= 300; tokens += 1 + tokens / 2) {
    mgl_schedule *s = NULL;
    bool narrow = tokens <= mgl_narrow_tokens(p->program, p->layout.step_bytes, few);
    mgl_iteration_options wanted = {.few = few,
                                    .compile = {.target = MGL_TARGET_CUDA,
                                                .tokens = tokens,
                                                .logit_rows = narrow ? 0 : 20,
                                                .workers = p->workers}};
    MUST(mgl_lower_iteration(p->program, &wanted, &s, &err));
    MUST(mgl_schedule_verify(p->program, s, &err));
    uint32_t narrow_graph = mgl_cuda_graph_for(tokens);
    uint32_t wide_graph = mgl_cuda_wide_graph_for(&p->wide.layout, tokens);
    mgl_cu_ptr at =
        narrow ? p->memory[MGL_CUDA_MEMORY_DESCRIPTORS] + p->layout.graphs[narrow_graph].steps
               : p->memory[MGL_CUDA_MEMORY_WIDE] + p->wide.layout.graphs[wide_graph].steps;
    const mgl_cuda_step *steps = mgl_cuda_pointer(at);
    assert_int_equal(s->lowering == MGL_LOWER_STAGES, !narrow);
    for (uint32_t i = 0; i < s->list_start[s->worker_count]; i++) {
      check_step(s, i, &steps[i]);
    }
    assert_int_equal(run_once(p, tokens), mgl_schedule_hash(s));
    mgl_schedule_destroy(s);
  }
  mgl_cuda_program_destroy(p);
}

// Those of few tokens in the kernel for them.
static void iterations_find_their_kernel(void **state) {
  (void)state;
  mgl_cuda_device device = fake_cuda_device();
  mgl_cuda_program_options options = fake_model_usual;
  mgl_cuda_outcome outcome = {0};
  crowd c = {0};
  options.sizes.limits.tokens = 300;
  options.sizes.sequences = CROWD_SLOTS;
  fake.wide_runs = 0;
  fake.few_wide_runs = 0;
  mgl_cuda_program *program = fake_model_program(&device, options);
  run_crowd(program, &c, false, &outcome);
  assert_int_equal(c.heard, CROWD * CROWD_TOKENS);
  assert_true(c.most > 256);
  assert_true(fake.few_wide_runs > 0 && fake.few_wide_runs < fake.wide_runs);
  mgl_cuda_program_destroy(program);
  assert_int_equal(fake.live, 0);
}

// The same with weights of codes, whose tiles have 128 tokens at most, but in iterations of so many
// tokens that codes become bf16 before.
static void check_codes(uint32_t tokens, uint32_t sequences, bool widened) {
  mgl_cuda_device device = fake_cuda_device();
  mgl_cuda_program_options options = fake_model_usual;
  mgl_cuda_outcome outcome = {0};
  crowd c = {0};
  options.sizes.limits.tokens = tokens;
  options.sizes.sequences = sequences;
  fake.codes = true;
  fake.wide_runs = 0;
  fake.widened_runs = 0;
  mgl_cuda_program *program = fake_model_program(&device, options);
  assert_true(program->packings >> 1 != 0);
  run_crowd(program, &c, false, &outcome);
  assert_int_equal(c.heard, CROWD * CROWD_TOKENS);
  assert_true(fake.wide_runs >= 4 && c.most > MGL_WIDE_MOST_CODED_TILE);
  assert_true(widened == (fake.widened_runs > 0));
  assert_int_equal(fake.run->iteration_tokens, MGL_NARROW_TOKENS);
  assert_int_equal(fake.run->narrow_context, MGL_NARROW_CONTEXT_CODED);
  const mgl_cuda_wide_layout *wide = &program->wide.layout;
  assert_int_equal(wide->graph_count, widened ? 7 : 4);
  assert_true(widened == (wide->widened_bytes > 0));
  for (uint32_t i = 0; i < wide->graph_count; i++) {
    const mgl_cuda_wide_graph *g = &wide->graphs[i];
    assert_true(g->tokens >= MGL_WIDE_WIDEN_TOKENS ? g->tile_tokens == MGL_WIDE_MOST_TILE
                                                   : g->tile_tokens <= MGL_WIDE_MOST_CODED_TILE);
  }
  mgl_cuda_program_destroy(program);
  fake.codes = false;
  assert_int_equal(fake.live, 0);
}

static void large_iterations_run_with_codes(void **state) {
  (void)state;
  check_codes(300, CROWD_SLOTS, false);
  check_codes(1100, CROWD, true);
}

// The same with the portable kernels, on any GPU but one with very many multiprocessors.
static void large_iterations_run_on_other_gpus(void **state) {
  (void)state;
  mgl_cuda_device device = fake_cuda_device();
  mgl_cuda_program_options options = fake_model_usual;
  mgl_cuda_outcome outcome = {0};
  crowd c = {0};
  options.sizes.limits.tokens = 300;
  options.sizes.sequences = CROWD_SLOTS;
  device.major = 8;
  device.kernels = MGL_CUDA_KERNELS_PORTABLE;
  fake.portable = true;
  fake.wide_runs = 0;
  mgl_cuda_program *program = fake_model_program(&device, options);
  run_crowd(program, &c, false, &outcome);
  assert_int_equal(c.heard, CROWD * CROWD_TOKENS);
  assert_true(fake.wide_runs >= 4 && c.most > 64);
  mgl_cuda_program_destroy(program);
  fake.portable = false;
  mgl_error err = {0};
  device.sm_count = MGL_WIDE_MAX_WORKERS + 1;
  mgl_graph *graph = fake_model_graph(NULL);
  options.program = graph;
  options.get_code = fake_cuda_code;
  assert_int_equal(mgl_cuda_program_create(&device, &options, &program, &err), MGL_ERR_UNSUPPORTED);
  assert_non_null(strstr(err.text, "64 tokens at most"));
  mgl_graph_destroy(graph);
  assert_int_equal(fake.live, 0);
}

static void a_plan_runs_once(void **state) {
  (void)state;
  static const mgl_plan_limits limits = {
      .tokens = 16, .sequences = 4, .pages_per_sequence = 8, .page_tokens = 16};
  static const int32_t tokens[] = {3, 4, 5};
  static const int32_t pages[] = {7, 2};
  mgl_error err = {0};
  mgl_cuda_device device = fake_cuda_device();
  mgl_cuda_program *program = fake_model_program(&device, fake_model_usual);
  mgl_plan *plan = NULL;
  float *logits = mgl_alloc_zeroed(512, sizeof *logits);
  assert_int_equal(mgl_plan_create(&limits, &plan, &err), MGL_OK);
  mgl_plan_add(plan, &(mgl_plan_chunk){.tokens = tokens,
                                       .token_count = 3,
                                       .position = 15,
                                       .pages = pages,
                                       .page_count = 2,
                                       .logits = MGL_LOGITS_LAST});
  assert_int_equal(mgl_cuda_program_run_plan(program, plan, NULL, logits, &err), MGL_OK);
  assert_int_equal(fake.run->block_tables[0], 7);
  assert_int_equal(fake.run->block_tables[1], 2);
  assert_int_equal(fake.run->block_tables[2], 32);  // the spare page
  assert_int_equal(fake.run->plans[0].logit_rows[0], 2);
  assert_int_equal(fake.run->plans[0].positions[2], 17);
  assert_int_equal(mgl_load_relaxed(&fake.run->announced[1]), 2u << 8 | 255);
  plan->tokens[1] = 512;
  assert_int_equal(mgl_cuda_program_run_plan(program, plan, NULL, logits, &err), MGL_ERR_ARGUMENT);
  plan->tokens[1] = 4;
  plan->block_tables[1] = 32;
  assert_int_equal(mgl_cuda_program_run_plan(program, plan, NULL, logits, &err), MGL_ERR_ARGUMENT);
  double rate = 0;
  assert_int_equal(mgl_cuda_program_read_ceiling(program, 2, &rate, &err), MGL_OK);
  assert_true(rate > 0);
  mgl_plan_destroy(plan);
  mgl_free(logits);
  mgl_cuda_program_destroy(program);
  assert_int_equal(fake.live, 0);
}

// A model with next to no weights: reading them is not what its stages take.
static void pages_in_flight_are_bounded(void **state) {
  (void)state;
  mgl_error err = {0};
  mgl_cuda_device device = fake_cuda_device();
  mgl_cuda_program *program = fake_model_program(&device, fake_model_usual);
  uint32_t pages = mgl_cuda_program_describe(program).smem_pages;
  assert_int_equal(fake_model_run(program, 6, (mgl_cuda_launch_options){0}, &err), MGL_OK);
  for (uint32_t i = 0; i < 5; i++) {
    const mgl_cuda_graph *graph = &fake.run->graphs[i];
    assert_int_equal(graph->tokens, 1u << i);
    assert_int_equal(graph->in_flight, graph->tokens == 16 ? 2 : 4);
    assert_int_equal(graph->in_flight_long, 4);
    assert_int_equal(graph->in_flight_ahead, 2);
  }
  mgl_cuda_launch_options wanted = {.in_flight = 3, .in_flight_ahead = pages + 1};
  assert_int_equal(fake_model_run(program, 6, wanted, &err), MGL_OK);
  for (uint32_t i = 0; i < 5; i++) {
    const mgl_cuda_graph *graph = &fake.run->graphs[i];
    assert_int_equal(graph->in_flight, 3);
    assert_int_equal(graph->in_flight_long, 3);
    assert_int_equal(graph->in_flight_ahead, pages);
  }
  mgl_cuda_program_destroy(program);
  assert_int_equal(fake.live, 0);
}

// Partial sums of a task's row blocks with 16 tokens lie in scratch as far as there is room, four of
// them, and then in up to two pages that leave the ring, two a page: as many as make a layer's
// largest task fewer batches, whose tasks have so many features here. With 8 tokens, and in portable
// kernels, the ring stays whole.
static void partial_sums_take_pages(void **state) {
  (void)state;
  mgl_error err = {0};
  static const struct {
    uint32_t portable, blocks, pages;
  } cases[] = {{0, 4, 0}, {0, 5, 1},  {0, 6, 1},  {0, 7, 2}, {0, 8, 2},
               {0, 9, 1}, {0, 12, 1}, {0, 13, 2}, {1, 8, 0}};
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    mgl_cuda_device device = fake_cuda_device();
    device.kernels = cases[i].portable ? MGL_CUDA_KERNELS_PORTABLE : MGL_CUDA_KERNELS_WGMMA;
    mgl_cuda_program *program = fake_model_program(&device, fake_model_usual);
    uint32_t pages = mgl_cuda_program_describe(program).smem_pages;
    assert_int_equal(fake_model_run(program, 6, (mgl_cuda_launch_options){0}, &err), MGL_OK);
    for (uint32_t j = 0; j < 4; j++) {
      assert_int_equal(fake.run->graphs[j].ring_pages, pages);
    }
    mgl_task_graph *graph = program->graphs[4];
    mgl_task tasks[3] = {{.type = MGL_OP_QKV_PROJ, .op = 1, .end = 32},
                         {.type = MGL_OP_GATE_UP, .op = 2, .end = cases[i].blocks * 8},
                         {.type = MGL_OP_LOGITS, .op = 3, .end = 1000}};
    mgl_task_graph given = *graph;
    given.tasks = tasks;
    given.task_count = 3;
    assert_int_equal(pages - mgl_cuda_ring_pages(program, &given), cases[i].pages);
    mgl_cuda_program_destroy(program);
  }
  assert_int_equal(fake.live, 0);
}

// By what a data sheet says of an H100's and an H200's memory, a worker's share of it as on a GPU of
// 132 multiprocessors; and where the driver says nothing, or far too much.
static void pages_in_flight_follow_the_memory(void **state) {
  (void)state;
  enum { SMS = 132 };
  mgl_error err = {0};
  static const struct {
    uint32_t clock_khz, bus_bits, pages;
  } cases[] = {{0, 0, 2}, {2619000, 5120, 2}, {3201000, 6144, 3}, {4000000000, 8192, 6}};
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    mgl_cuda_device device = fake_cuda_device();
    device.memory_clock_khz = cases[i].clock_khz;
    device.memory_bus_bits = cases[i].bus_bits * FAKE_CUDA_WORKERS / SMS;
    mgl_cuda_program *program = fake_model_program(&device, fake_model_usual);
    assert_int_equal(fake_model_run(program, 6, (mgl_cuda_launch_options){0}, &err), MGL_OK);
    for (uint32_t j = 0; j < 5; j++) {
      const mgl_cuda_graph *graph = &fake.run->graphs[j];
      assert_int_equal(graph->in_flight, graph->tokens == 16 ? cases[i].pages : 4);
      assert_int_equal(graph->in_flight_ahead, cases[i].pages);
    }
    mgl_cuda_program_destroy(program);
  }
  assert_int_equal(fake.live, 0);
}

static void faults_are_named(void **state) {
  (void)state;
  mgl_error err = {0};
  mgl_cuda_device device = fake_cuda_device();
  mgl_cuda_program *program = fake_model_program(&device, fake_model_usual);
  mgl_cuda_launch_options quick = {.stall_ns = 1000000};
  fake.hang_at = 2;
  assert_int_equal(fake_model_run(program, 6, quick, &err), MGL_ERR_INTERNAL);
  assert_non_null(strstr(err.text, "GPU fault in iteration 2: no progress for 0.00 s: task "));
  assert_non_null(strstr(err.text, "runs on worker"));
  fake.hang_at = NOTHING;
  assert_int_equal(fake_model_run(program, 6, quick, &err), MGL_OK);
  // A launch that the device does not end itself.
  fake.hang_at = 2;
  mgl_cuda_launch_options patient = {.stall_ns = 1000000000, .deadline_ns = 300000000};
  assert_int_equal(fake_model_run(program, 6, patient, &err), MGL_ERR_INTERNAL);
  assert_non_null(strstr(err.text, "the host ended the launch"));
  fake.hang_at = NOTHING;
  assert_int_equal(fake_model_run(program, 6, quick, &err), MGL_OK);
  fake.not_finite_at = 3;
  assert_int_equal(fake_model_run(program, 6, quick, &err), MGL_ERR_FORMAT);
  assert_non_null(strstr(err.text, "not finite (NaN or infinity) at position 5 of request 0"));
  mgl_cuda_program_destroy(program);
  assert_int_equal(fake.live, 0);
}

// --- requests while a launch runs ----------------------------------------------------------------

enum { FED = 30 };

typedef struct fed {
  mgl_cuda_program *program;
  mgl_cuda_request request;
  int32_t prompt[6];
  uint32_t next, counts[FED];
  uint32_t over, ended;
  uint64_t iterations;
} fed;

static const mgl_cuda_request *next_fed(void *context) {
  fed *f = context;
  if (f->next == FED) {
    return NULL;
  }
  f->prompt[0] = (int32_t)f->next;
  f->request = (mgl_cuda_request){.number = 100 + f->next,
                                  .prompt = f->prompt,
                                  .prompt_count = 6,
                                  .max_new_tokens = f->next % 5 == 0 ? 40 : 5 + f->next % 7};
  f->next++;
  return &f->request;
}

// Every fifth, which are long ones, ends when its second token has been heard of.
static mgl_feed_end tend_fed(void *context) {
  fed *f = context;
  for (uint32_t i = 0; i < f->next; i += 5) {
    if (f->counts[i] >= 2 && f->counts[i] < 1000) {
      mgl_cuda_program_end(f->program, 100 + i);
      f->counts[i] += 1000;
      f->ended++;
    }
  }
  mgl_cuda_program_end(f->program, 7);  // there is none
  return f->next < FED ? MGL_FEED_OPEN : MGL_FEED_CLOSED;
}

static void hear_fed(void *context, const mgl_cuda_token *token) {
  fed *f = context;
  uint32_t i = token->request - 100;
  assert_true(f->counts[i] < 1000);
  assert_int_equal(token->sampled_ns, 77);
  assert_int_equal(token->token, fake_cuda_token((int32_t)i, 6 + f->counts[i]));
  f->counts[i]++;
  if (token->state != MGL_CUDA_SEQUENCE_RUNNING) {
    f->counts[i] += 1000;
    f->over++;
  }
}

static void hear_progress(void *context, const mgl_cuda_progress *progress) {
  fed *f = context;
  assert_int_equal(progress->iteration, f->iterations++);
  assert_true(progress->prompt_tokens + progress->decode_tokens > 0);
}

static void requests_are_fed_and_ended(void **state) {
  (void)state;
  static const mgl_cuda_request_source source = {.next = next_fed, .tend = tend_fed};
  mgl_error err = {0};
  mgl_cuda_device device = fake_cuda_device();
  mgl_cuda_program *program = fake_model_program(&device, fake_model_usual);
  fed f = {.program = program};
  mgl_cuda_generate job = {
      .source = &source, .on_token = hear_fed, .on_progress = hear_progress, .context = &f};
  if (mgl_cuda_program_generate(program, &job, &err) != MGL_OK) {
    fail_msg("%s", err.text);
  }
  assert_int_equal(f.over + f.ended, FED);
  assert_true(f.ended >= 3);
  mgl_cuda_progress progress = mgl_cuda_program_progress(program);
  assert_int_equal(progress.iteration + 1, f.iterations);
  assert_int_equal(progress.pages_used + progress.running + progress.waiting, 0);
  // What a request asks of sampling.
  static const mgl_logit_edit edit = {.token = 600};
  int32_t prompt[] = {1, 2};
  mgl_cuda_request r = {.prompt = prompt, .prompt_count = 2, .max_new_tokens = 9};
  assert_true(mgl_cuda_program_has_room(program, &r));
  r.rule.flags = MGL_SAMPLING_COUNTS | MGL_SAMPLING_LOGPROBS;
  assert_int_equal(mgl_cuda_request_edits(&r), 9);
  assert_int_equal(mgl_cuda_request_logprobs(&r), 9);
  assert_false(mgl_cuda_program_has_room(program, &r));
  assert_int_equal(mgl_cuda_program_check(program, &r, &err), MGL_OK);
  r.edits = &edit;
  r.edit_count = 1;
  assert_int_equal(mgl_cuda_program_check(program, &r, &err), MGL_ERR_ARGUMENT);
  r.edit_count = 0;
  r.key_count = 1;
  assert_int_equal(mgl_cuda_program_check(program, &r, &err), MGL_ERR_ARGUMENT);
  r.key_count = 0;
  mgl_cuda_generate one = {.requests = &r, .request_count = 1};
  assert_int_equal(mgl_cuda_program_generate(program, &one, &err), MGL_OK);
  assert_true(mgl_cuda_program_has_room(program, &r));
  mgl_cuda_program_destroy(program);
  assert_int_equal(fake.live, 0);
}

// --- limits --------------------------------------------------------------------------------------

static void what_does_not_fit_is_refused(void **state) {
  (void)state;
  mgl_error err = {0};
  mgl_cuda_device device = fake_cuda_device();
  mgl_graph *graph = fake_model_graph(NULL);
  mgl_cuda_program *program = NULL;
  mgl_cuda_program_options options = fake_model_usual;
  options.program = graph;
  options.get_code = fake_cuda_code;
  fake.free_bytes = 1 << 20;
  assert_int_equal(mgl_cuda_program_create(&device, &options, &program, &err), MGL_ERR_MEMORY);
  assert_non_null(strstr(err.text, "GiB are free on the GPU"));
  assert_non_null(strstr(err.text, "KV cache"));
  fake.free_bytes = (size_t)1 << 32;
  options.sizes.sequences = MGL_MAX_SEQUENCES + 1;
  assert_int_equal(mgl_cuda_program_create(&device, &options, &program, &err), MGL_ERR_LIMIT);
  options.sizes.sequences = 4;
  options.sizes.workers = WORKERS + 1;
  assert_int_equal(mgl_cuda_program_create(&device, &options, &program, &err), MGL_ERR_LIMIT);
  mgl_graph_destroy(graph);
  assert_int_equal(fake.live, 0);

  static const int32_t prompt[] = {1, 2, 600};
  program = fake_model_program(&device, fake_model_usual);
  mgl_cuda_request r = {.prompt = prompt, .prompt_count = 3, .max_new_tokens = 5};
  mgl_cuda_generate job = {.requests = &r, .request_count = 1};
  assert_int_equal(mgl_cuda_program_generate(program, &job, &err), MGL_ERR_ARGUMENT);
  r.prompt_count = 2;
  r.max_new_tokens = 127;
  assert_int_equal(mgl_cuda_program_generate(program, &job, &err), MGL_ERR_LIMIT);
  r.max_new_tokens = 126;
  assert_int_equal(mgl_cuda_program_generate(program, &job, &err), MGL_OK);
  mgl_cuda_program_destroy(program);
}

// Up to four a block, and all other blocks are workers.
static void schedulers_share_blocks(void **state) {
  (void)state;
  static const struct {
    uint32_t schedulers, workers;
    bool warps;
  } cases[] = {{0, WORKERS, false},     {1, WORKERS - 1, false}, {4, WORKERS - 1, false},
               {5, WORKERS - 2, false}, {5, WORKERS, true},      {6, 0, false}};
  mgl_error err = {0};
  mgl_cuda_device device = fake_cuda_device();
  mgl_graph *graph = fake_model_graph(NULL);
  mgl_cuda_program_options options = fake_model_usual;
  options.program = graph;
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    mgl_cuda_program_memory memory = {0};
    options.build.schedulers = cases[i].schedulers;
    options.build.scheduler_warps = cases[i].warps;
    assert_int_equal(mgl_cuda_program_measure(&device, &options, &memory, &err),
                     cases[i].workers == 0 ? MGL_ERR_LIMIT : MGL_OK);
    assert_int_equal(memory.workers, cases[i].workers);
  }
  mgl_graph_destroy(graph);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(jobs_run_to_their_ends),
      cmocka_unit_test(large_iterations_run_in_the_wide_class),
      cmocka_unit_test(what_runs_is_the_schedule),
      cmocka_unit_test(iterations_find_their_kernel),
      cmocka_unit_test(large_iterations_run_with_codes),
      cmocka_unit_test(large_iterations_run_on_other_gpus),
      cmocka_unit_test(a_plan_runs_once),
      cmocka_unit_test(pages_in_flight_are_bounded),
      cmocka_unit_test(partial_sums_take_pages),
      cmocka_unit_test(pages_in_flight_follow_the_memory),
      cmocka_unit_test(faults_are_named),
      cmocka_unit_test(requests_are_fed_and_ended),
      cmocka_unit_test(what_does_not_fit_is_refused),
      cmocka_unit_test(schedulers_share_blocks),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
