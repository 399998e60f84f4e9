// Modes of plain kernels on the fake GPU, which runs the device's own source: all of them compute
// the same bits, launch what they say (counted by the driver's table), and pad as they should; and
// which kernels run codes and experts in the modes of fused ones.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/alloc.h"
#include "device/compilation.h"
#include "engine/engine.h"
#include "engine/runner.h"
#include "support/fake_cuda.h"
#include "support/fake_cuda_calls.h"
#include "support/plan_feed.h"
#include "support/poisoned_model.h"
#include "support/programs.h"
#include "support/temp_folder.h"

enum { VOCAB = 300, CONTEXT = 64, SEQUENCES = 14, TOKENS = 40, LAYERS = 2 };

static mgl_cuda_device device;
static mgl_cuda_options cuda;

static void read_compilation(mgl_compilation *c, const char *json) {
  mgl_compilation_init(c);
  MUST(mgl_compilation_read(c, "test", json, &err));
  MUST(mgl_compilation_check(c, NULL, &err));
}

static bool is_mixture;

// A dense model, or a mixture.
static mgl_config config_of(void) {
  mgl_config config = is_mixture ? small_mixture_config() : small_config(MGL_FAMILY_QWEN3);
  config.vocab_size = VOCAB;
  return config;
}

// What is told while sizes are captured.
typedef struct told {
  uint64_t calls, done, total;
} told;

static told captures;

static void tell(void *context, uint64_t done, uint64_t total) {
  told *t = context;
  assert_true(done > t->done && done <= total);
  *t = (told){t->calls + 1, done, total};
}

// The compilation lives until the next runner is made.
static mgl_runner *make_runner_of(const char *json, mgl_config config, uint32_t logit_rows) {
  static mgl_compilation c;
  const mgl_model_folder folder = {.config = config};
  mgl_runner *runner = NULL;
  read_compilation(&c, json);
  device = fake_cuda_device();
  fake.graph_bytes = 3 << 19;
  cuda = (mgl_cuda_options){.device = &device, .get_code = fake_cuda_code};
  const mgl_build build = {.iteration_tokens = TOKENS,
                           .sequences = SEQUENCES,
                           .sequence_tokens = CONTEXT,
                           .logit_rows = logit_rows,
                           .weights = MGL_WEIGHTS_DUMMY,
                           .seed = 5,
                           .compilation = &c,
                           .captures = {.report = tell, .context = &captures},
                           .cuda = &cuda};
  captures = (told){0};
  MUST(mgl_runner_create(&folder, &build, &runner, &err));
  return runner;
}

static mgl_runner *make_runner(const char *json) {
  return make_runner_of(json, config_of(), TOKENS);
}

static const plan_step steps[] = {
    {3, 5, 2, MGL_LOGITS_LAST}, {3, 1, 0, MGL_LOGITS_LAST},  {13, 1, 0, MGL_LOGITS_LAST},
    {2, 1, 9, MGL_LOGITS_ALL},  {14, 1, 0, MGL_LOGITS_NONE}, {14, 2, 7, MGL_LOGITS_LAST},
    {1, 1, 0, MGL_LOGITS_LAST},
};
enum { STEPS = sizeof steps / sizeof *steps };

static plan_feed *make_feed(mgl_runner *runner) {
  return plan_feed_create(mgl_runner_limits(runner), VOCAB, SEQUENCES, CONTEXT);
}

// The logits of all steps; counts: what each launched.
static float *run_steps(const char *json, uint32_t graphs[STEPS], uint32_t kernels[STEPS]) {
  mgl_runner *runner = make_runner(json);
  plan_feed *f = make_feed(runner);
  float *out = calloc((size_t)STEPS * TOKENS * VOCAB, sizeof *out);
  assert_non_null(out);
  for (uint32_t i = 0; i < STEPS; i++) {
    mgl_logits logits = {0};
    plan_feed_fill(f, &steps[i]);
    fake_cuda_calls_clear();
    MUST(mgl_runner_run(runner, mgl_runner_usual_mode(runner), f->plan, &logits, &err));
    memcpy(out + (size_t)i * TOKENS * VOCAB, logits.rows,
           (size_t)f->plan->logit_row_count * VOCAB * sizeof *out);
    graphs[i] = kernels[i] = 0;
    assert_true(fake_cuda_call_count < FAKE_CUDA_CALLS);
    for (uint32_t at = 0; at < fake_cuda_call_count; at++) {
      bool graph = strcmp(fake_cuda_calls[at].name, FAKE_CUDA_GRAPH) == 0;
      graphs[i] += graph;
      kernels[i] += !graph && !fake_cuda_calls[at].in_graph;
    }
  }
  plan_feed_destroy(f);
  mgl_runner_destroy(runner);
  assert_int_equal(fake.live, 0);
  return out;
}

static uint32_t op_count(void) {
  const mgl_config config = config_of();
  mgl_graph *graph = build_program(&config);
  uint32_t count = (uint32_t)graph->op_count;
  mgl_graph_destroy(graph);
  return count;
}

static void check_modes(void) {
  static const struct {
    const char *json;
    uint32_t most;  // tokens of the largest graph
    bool decode_full, mixed_full, decode_pieces, mixed_pieces;
    uint32_t splits;  // ops that split
  } cases[] = {
      {"{\"level\": 0}", 0, 0, 0, 0, 0, 0},
      {"{\"enforce_eager\": true}", 0, 0, 0, 0, 0, 0},
      {"{\"graph_mode\": \"FULL\", \"graph_sizes\": [64]}", 40, 1, 1, 0, 0, 0},
      {"{\"level\": 3}", 40, 0, 0, 1, 1, LAYERS},
      {"{\"graph_mode\": \"PIECEWISE\", \"capture_sizes\": [13, 1]}", 13, 0, 0, 1, 1, LAYERS},
      {"{\"graph_mode\": \"FULL_DECODE_ONLY\"}", 40, 1, 0, 0, 0, 0},
      {"{\"graph_mode\": \"FULL_AND_PIECEWISE\", \"graph_sizes\": [16, 8]}", 16, 1, 0, 0, 1,
       LAYERS},
      {"{\"splitting_ops\": [\"attention\", \"kv_write\"]}", 40, 0, 0, 1, 1, 2 * LAYERS},
  };
  const uint32_t ops = op_count();
  uint32_t graphs[STEPS], kernels[STEPS];
  float *expected = run_steps("{\"level\": 0, \"check_numbers\": true}", graphs, kernels);
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    float *found = run_steps(cases[i].json, graphs, kernels);
    if (memcmp(found, expected, (size_t)STEPS * TOKENS * VOCAB * sizeof *found) != 0) {
      fail_msg("%s: other bits than op by op", cases[i].json);
    }
    for (uint32_t at = 0; at < STEPS; at++) {
      const plan_step *s = &steps[at];
      uint32_t tokens = s->sequences * s->tokens + s->more;
      bool decodes = tokens == s->sequences;
      bool fits = tokens <= (cases[i].most == 40 && strstr(cases[i].json, "sizes") == NULL
                                 ? 32u  // powers of two
                             : cases[i].most == 40 ? 32u
                                                   : cases[i].most);
      bool full = fits && (decodes ? cases[i].decode_full : cases[i].mixed_full);
      bool pieces = fits && (decodes ? cases[i].decode_pieces : cases[i].mixed_pieces);
      // attention and the write before it are neighbours: no piece lies between them.
      uint32_t cuts = cases[i].splits == 2 * LAYERS ? LAYERS : cases[i].splits;
      uint32_t expected_graphs = full ? 1 : pieces ? cuts + 1 : 0;
      uint32_t expected_kernels = full ? 0 : pieces ? cases[i].splits : ops;
      if (!full && !pieces && s->logits == MGL_LOGITS_NONE) {
        expected_kernels = kernels[at] < ops ? kernels[at] : ops;  // those of no row are left out
      }
      if (graphs[at] != expected_graphs || kernels[at] != expected_kernels) {
        fail_msg("%s, %u tokens: expected %u graphs and %u kernels, found %u and %u", cases[i].json,
                 tokens, expected_graphs, expected_kernels, graphs[at], kernels[at]);
      }
    }
    free(found);
  }
  free(expected);
}

static void modes_have_the_same_bits_and_launch_what_they_say(void **state) {
  (void)state;
  check_modes();
}

static void modes_of_a_mixture_do_too(void **state) {
  (void)state;
  is_mixture = true;
  check_modes();
  is_mixture = false;
}

// --- the megakernel ------------------------------------------------------------------------------

static bool count_iteration(void *context, const mgl_iteration *iteration) {
  uint32_t *kinds = context;
  kinds[0] += iteration->prompt_tokens == 0;
  kinds[1] += iteration->prompt_tokens > 0;
  return true;
}

static bool take_token(void *context, const mgl_generated_token *token) {
  (void)context, (void)token;
  return true;
}

// Six requests: iterations of prompts, of decoding sequences and of both.
static void serve_some(const mgl_config *config, const char *json) {
  mgl_compilation c;
  mgl_runner *runner = NULL;
  mgl_engine *engine = NULL;
  uint32_t kinds[2] = {0};
  const mgl_model_folder folder = {.config = *config};
  read_compilation(&c, json);
  device = fake_cuda_device();
  fake.codes = config->quantization.method != MGL_QUANT_NONE;
  cuda = (mgl_cuda_options){.device = &device, .get_code = fake_cuda_code};
  const mgl_build build = {.iteration_tokens = 16,
                           .sequences = 4,
                           .sequence_tokens = 64,
                           .weights = MGL_WEIGHTS_DUMMY,
                           .compilation = &c,
                           .cuda = &cuda};
  MUST(mgl_runner_create(&folder, &build, &runner, &err));
  assert_string_equal(mgl_runner_note(runner), "");  // not by plain kernels, at the least
  MUST(mgl_engine_create(runner, &(mgl_engine_options){.mode = mgl_runner_usual_mode(runner)},
                         &engine, &err));
  for (uint32_t i = 0; i < 6; i++) {
    int32_t prompt[40] = {0};
    uint32_t number = 0;
    const mgl_request request = {.prompt = prompt,
                                 .prompt_count = 1 + 7 * i,
                                 .max_new_tokens = 20,
                                 .sampling = {.top_p = 1}};
    MUST(mgl_engine_submit(engine, &request, &number, &err));
  }
  fake_cuda_calls_clear();
  fake.task_launches = 0;
  MUST(mgl_engine_run(engine, take_token, count_iteration, kinds, &err));
  assert_true(kinds[0] > 10 && kinds[1] > 5);
  mgl_engine_destroy(engine);
  mgl_runner_destroy(runner);
  assert_int_equal(fake.live, 0);
}

// All of them are one launch.
static void check_mega(const mgl_config *config) {
  serve_some(config, "{\"graph_mode\": \"MEGA\"}");
  assert_int_equal(fake_cuda_call_count, 1);
  assert_string_equal(fake_cuda_calls[0].name, "mgl_megakernel");
  assert_int_equal(fake_cuda_calls[0].blocks, FAKE_CUDA_WORKERS);
}

// A mixture whose experts fused tasks take.
static mgl_config fused_mixture(void) {
  mgl_config config = small_config(MGL_FAMILY_QWEN3_MOE);
  config.hidden_size = 1024;
  config.head_count = 8;
  config.vocab_size = 512;
  config.qk_norm = true;
  config.mixture = (mgl_mixture){
      .expert_count = 8, .slots = 2, .inner_size = 1024, .renormalise = true, .scale = 1};
  return config;
}

static void mode_mega_is_one_launch(void **state) {
  (void)state;
  mgl_config dense = small_config(MGL_FAMILY_QWEN3);
  const mgl_config mixture = fused_mixture();
  dense.vocab_size = 512;
  check_mega(&dense);
  check_mega(&mixture);
}

static bool takes_file(const temp_folder *folder, const char *name, const char *content) {
  char path[TEMP_PATH_BYTES + 64], text[64] = "";
  (void)snprintf(path, sizeof path, "%s/rank_0/%s", folder->path, name);
  FILE *file = fopen(path, "r");
  if (file != NULL) {
    (void)!fgets(text, sizeof text, file);
    (void)fclose(file);
  }
  return strncmp(text, content, strlen(content)) == 0 && unlink(path) == 0;
}

static void what_was_captured_is_dumped(void **state) {
  (void)state;
  temp_folder folder;
  char json[TEMP_PATH_BYTES + 200];
  temp_folder_create(&folder);
  (void)snprintf(json, sizeof json,
                 "{\"graph_mode\": \"FULL_AND_PIECEWISE\", \"capture_sizes\": [4], "
                 "\"debug_dump_path\": \"%s\"}",
                 folder.path);
  mgl_runner *runner = make_runner(json);
  mgl_runner_destroy(runner);
  assert_true(takes_file(&folder, "program.txt", "program qwen3"));
  assert_true(takes_file(&folder, "FULL-4-4.piece-0.dot", "digraph { "));
  for (uint32_t i = 0; i <= LAYERS; i++) {  // the ops between them have no graph
    (void)snprintf(json, sizeof json, "PIECEWISE-4-4.piece-%u.dot", 2 * i);
    assert_true(takes_file(&folder, json, "digraph { "));
  }
  (void)snprintf(json, sizeof json, "%s/rank_0", folder.path);
  assert_int_equal(rmdir(json), 0);  // there is nothing else
  temp_folder_remove(&folder);
}

// 13 sequences run as 16; sizes are captured before anything runs, the smallest last.
static void sizes_are_captured_before_largest_first(void **state) {
  (void)state;
  mgl_runner *runner = make_runner("{\"graph_mode\": \"FULL\", \"graph_sizes\": [4, 32, 16]}");
  plan_feed *f = make_feed(runner);
  mgl_logits logits;
  assert_int_equal(mgl_runner_launches(runner).entries, 2 * 3 / 2);
  assert_int_equal(fake.captured_rows, 4);
  assert_true(captures.calls == 2 * 3 && captures.done == 6 && captures.total == 6);
  assert_non_null(strstr(mgl_runner_note(runner), "captured 3 graphs in "));
  assert_non_null(strstr(mgl_runner_note(runner), " s, which take 4.5 MiB"));
  plan_feed_fill(f, &steps[2]);
  MUST(mgl_runner_run(runner, MGL_MODE_FULL, f->plan, &logits, &err));
  assert_int_equal(mgl_runner_launches(runner).entries, 3);  // that of 16 was there
  assert_int_equal(mgl_runner_launches(runner).graphs, 1);
  plan_feed_destroy(f);
  mgl_runner_destroy(runner);
}

typedef struct answers {
  int32_t tokens[6][20];
  uint32_t counts[6];
} answers;

static bool keep_token(void *context, const mgl_generated_token *token) {
  answers *a = context;
  a->tokens[token->request][a->counts[token->request]++] = token->token;
  return true;
}

// Six requests through a runner of fused kernels.
static void serve_fused(const char *json, answers *out, mgl_launch_counts *launches,
                        char note[256]) {
  mgl_engine *engine = NULL;
  mgl_config config = small_config(MGL_FAMILY_QWEN3);
  config.vocab_size = 304;
  *out = (answers){0};
  mgl_runner *runner = make_runner_of(json, config, 0);
  launches[0] = mgl_runner_launches(runner);
  (void)snprintf(note, 256, "%s", mgl_runner_note(runner));
  MUST(mgl_engine_create(runner, &(mgl_engine_options){.mode = mgl_runner_usual_mode(runner)},
                         &engine, &err));
  for (uint32_t i = 0; i < 6; i++) {
    int32_t prompt[CONTEXT] = {0};
    uint32_t number = 0;
    const mgl_request request = {.prompt = prompt,
                                 .prompt_count = 1 + 7 * i,
                                 .max_new_tokens = 20,
                                 .sampling = {.top_p = 1}};
    MUST(mgl_engine_submit(engine, &request, &number, &err));
  }
  uint32_t plain = fake.plain_launches;
  MUST(mgl_engine_run(engine, keep_token, NULL, out, &err));
  assert_int_equal(fake.plain_launches, plain);
  launches[1] = mgl_runner_launches(runner);
  mgl_engine_destroy(engine);
  mgl_runner_destroy(runner);
  assert_int_equal(fake.live, 0);
}

// Sizes of one's own have graphs of fused kernels, where these cover the model: 13 tokens run as 16
// do, those above the largest size op by op, and nothing is captured while requests run.
static void sizes_of_fused_kernels_are_captured_before(void **state) {
  (void)state;
  static const struct {
    const char *json;
    uint32_t captured, told;
    bool loose;  // kernels are launched by themselves, too
  } cases[] = {
      // By iterations of even and of odd number, and by many of them; of pieces L + 1 each.
      {"{\"graph_mode\": \"FULL\", \"graph_sizes\": [32, 4, 40]}", 9, 6, false},
      {"{\"graph_mode\": \"FULL\", \"capture_sizes\": [3, 16]}", 6, 4, true},
      {"{\"graph_mode\": \"FULL_DECODE_ONLY\", \"capture_sizes\": [8]}", 3, 1, true},
      {"{\"graph_mode\": \"PIECEWISE\", \"graph_sizes\": [40, 8]}", 2 * 2 * (LAYERS + 1), 4, true},
      {"{\"graph_mode\": \"FULL_AND_PIECEWISE\", \"graph_sizes\": [40, 8]}",
       2 * 3 + 2 * 2 * (LAYERS + 1), 4, true},
  };
  answers expected, found;
  mgl_launch_counts launches[2];
  char note[256];
  serve_fused("{\"graph_mode\": \"FULL\"}", &expected, launches, note);
  assert_int_equal(launches[0].entries, 0);
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    serve_fused(cases[i].json, &found, launches, note);
    assert_memory_equal(&found, &expected, sizeof found);
    if (launches[0].entries != cases[i].captured || launches[1].entries != cases[i].captured ||
        captures.total != cases[i].told || captures.done != captures.total ||
        (launches[1].ops > 0) != cases[i].loose || launches[1].graphs == 0 ||
        strstr(note, "captured ") == NULL) {
      fail_msg(
          "%s: expected %u graphs of %u sizes, found %u before and %u in all, %u sizes, %u ops "
          "and the note \"%s\"",
          cases[i].json, cases[i].captured, cases[i].told, (uint32_t)launches[0].entries,
          (uint32_t)launches[1].entries, (uint32_t)captures.total, (uint32_t)launches[1].ops, note);
    }
  }
}

static void a_failed_capture_is_an_error(void **state) {
  (void)state;
  mgl_runner *runner = make_runner("{\"graph_mode\": \"PIECEWISE\", \"capture_sizes\": [4, 1]}");
  plan_feed *f = make_feed(runner);
  mgl_error err = {0};
  mgl_logits logits;
  fake.capture_fails = true;
  plan_feed_fill(f, &(plan_step){1, 3, 0, MGL_LOGITS_LAST});  // one row of logits: not captured yet
  mgl_status status = mgl_runner_run(runner, MGL_MODE_PIECEWISE, f->plan, &logits, &err);
  assert_int_equal(status, MGL_ERR_IO);
  fake.capture_fails = false;
  plan_feed_destroy(f);
  mgl_runner_destroy(runner);
  assert_int_equal(fake.live, 0);
}

static void a_nan_is_found_where_it_is_made(void **state) {
  (void)state;
  temp_folder folder;
  mgl_model_folder model;
  mgl_compilation c;
  mgl_runner *runner = NULL;
  mgl_plan *plan = NULL;
  mgl_logits logits;
  mgl_error err = {0};
  const int32_t page = 0, token = POISONED_TOKEN;
  poisoned_model_write(MGL_TEST_DATA, &folder);
  assert_int_equal(mgl_model_folder_open(folder.path, MGL_NEED_WEIGHTS, &model, &err), MGL_OK);
  read_compilation(&c, "{\"level\": 0, \"check_numbers\": true}");
  device = fake_cuda_device();
  cuda = (mgl_cuda_options){.device = &device, .get_code = fake_cuda_code};
  const mgl_build build = {.iteration_tokens = 4,
                           .sequences = 1,
                           .sequence_tokens = 16,
                           .compilation = &c,
                           .cuda = &cuda};
  assert_int_equal(mgl_runner_create(&model, &build, &runner, &err), MGL_OK);
  assert_int_equal(mgl_plan_create(mgl_runner_limits(runner), &plan, &err), MGL_OK);
  mgl_plan_add(plan, &(mgl_plan_chunk){.tokens = &token,
                                       .token_count = 1,
                                       .pages = &page,
                                       .page_count = 1,
                                       .logits = MGL_LOGITS_LAST});
  assert_int_equal(mgl_runner_run(runner, MGL_MODE_EAGER, plan, &logits, &err), MGL_ERR_FORMAT);
  if (strstr(err.text, "op embed computed a NaN in \"embedded\", row 0") == NULL) {
    fail_msg("%s", err.text);
  }
  mgl_plan_destroy(plan);
  mgl_runner_destroy(runner);
  mgl_model_folder_close(&model);
  temp_folder_remove(&folder);
}

// What mode full has no kernels of its own for is computed by the megakernel's bodies, a launch an
// op: two of each layer of a mixture, and four of codes, which have no logits here.
static void codes_and_experts_have_all_modes(void **state) {
  (void)state;
  static const char *const ways[] = {
      "{\"level\": 2}", "{\"graph_mode\": \"PIECEWISE\"}", "{\"graph_mode\": \"FULL\"}",
      "{\"graph_mode\": \"FULL_DECODE_ONLY\"}", "{\"preset\": \"fastest-graphs\"}"};
  mgl_config coded = fused_mixture();
  coded.family = MGL_FAMILY_QWEN3;
  coded.mixture = (mgl_mixture){0};
  coded.quantization =
      (mgl_quantization){.method = MGL_QUANT_COMPRESSED, .drawn = {MGL_DTYPE_I8, 32, false}};
  const mgl_config mixture = fused_mixture();
  for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
    serve_some(&mixture, ways[i]);
    assert_true(fake.task_launches > 0 && fake.task_launches % (2 * mixture.layer_count) == 0);
    serve_some(&coded, ways[i]);
    assert_true(fake.task_launches > 0 && fake.task_launches % (4 * coded.layer_count) == 0);
  }
  fake.codes = false;  // of those that follow
}

// Fused tasks of a model with windows have mode mega only: who asks for mode full, or another of
// graphs, gets it by plain kernels, and not mode mega without a word.
static void check_mode_full(const mgl_config *config) {
  static const struct {
    const char *json, *note;
    mgl_mode mode;
  } cases[] = {
      {"{\"graph_mode\": \"MEGA\"}", "", MGL_MODE_MEGA},
      {"{\"graph_mode\": \"FULL\"}",
       "mode full runs the model by plain kernels, which are slow: fused tasks have no such "
       "graphs of it",
       MGL_MODE_FULL},
      {"{\"preset\": \"fastest-graphs\"}",
       "mode full-and-piecewise runs the model by plain kernels, which are slow: fused tasks have "
       "no such graphs of it",
       MGL_MODE_FULL_AND_PIECEWISE}};
  const mgl_model_folder folder = {.config = *config};
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    mgl_compilation c;
    mgl_runner *runner = NULL;
    read_compilation(&c, cases[i].json);
    device = fake_cuda_device();
    cuda = (mgl_cuda_options){.device = &device, .get_code = fake_cuda_code};
    const mgl_build build = {.iteration_tokens = 8,
                             .sequences = 2,
                             .sequence_tokens = 32,
                             .weights = MGL_WEIGHTS_DUMMY,
                             .compilation = &c,
                             .cuda = &cuda};
    MUST(mgl_runner_create(&folder, &build, &runner, &err));
    assert_string_equal(mgl_runner_note(runner), cases[i].note);
    assert_int_equal(mgl_runner_usual_mode(runner), cases[i].mode);
    mgl_runner_destroy(runner);
    assert_int_equal(fake.live, 0);
  }
}

// A dense model of which every other layer has a window.
static mgl_config windows_in_turn(void) {
  mgl_config config = small_config(MGL_FAMILY_LLAMA);
  config.vocab_size = 512;
  config.window_tokens = 16;
  config.window_layers[0] = 1;
  return config;
}

static void mode_full_is_never_replaced(void **state) {
  (void)state;
  const mgl_config windows = windows_in_turn();
  check_mode_full(&windows);
}

// Without kernels for large iterations, the engine's are as large as fused tasks take them.
static void iterations_of_windows_are_small(void **state) {
  (void)state;
  const mgl_config windows = windows_in_turn();
  const mgl_model_folder folder = {.config = windows};
  device = fake_cuda_device();
  cuda = (mgl_cuda_options){.device = &device, .get_code = fake_cuda_code};
  mgl_build build = {
      .sequences = 2, .sequence_tokens = 32, .weights = MGL_WEIGHTS_DUMMY, .cuda = &cuda};
  mgl_runner *runner = NULL;
  MUST(mgl_runner_create(&folder, &build, &runner, &err));
  const uint32_t tokens = mgl_runner_limits(runner)->tokens;
  assert_in_range(tokens, 1, MGL_CUDA_MAX_TOKENS);
  mgl_runner_destroy(runner);
  check_mega(&windows);
}

static void what_a_gpu_lacks_is_refused_with_the_reason(void **state) {
  (void)state;
  static const struct {
    const char *json, *message;
  } cases[] = {
      {"{\"level\": 2}", "mode compiled: expected a model of fused kernels: cuda: expected a"},
      {"{\"level\": 3, \"use_graphs\": false}", "mode compiled: expected a model of fused kernels"},
      {"{\"graph_mode\": \"FULL\", \"capture_sizes\": [41]}", "capture_sizes: expected at most"},
      {"{\"splitting_ops\": [\"attend\"]}", "splitting_ops: \"attend\" is neither"},
  };
  device = fake_cuda_device();
  cuda = (mgl_cuda_options){.device = &device, .get_code = fake_cuda_code};
  const mgl_model_folder folder = {.config = config_of()};
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    mgl_compilation c;
    mgl_error err = {0};
    mgl_runner *runner = NULL;
    read_compilation(&c, cases[i].json);
    const mgl_build build = {.iteration_tokens = TOKENS,
                             .sequences = SEQUENCES,
                             .sequence_tokens = CONTEXT,
                             .weights = MGL_WEIGHTS_DUMMY,
                             .compilation = &c,
                             .cuda = &cuda};
    assert_int_not_equal(mgl_runner_create(&folder, &build, &runner, &err), MGL_OK);
    if (strstr(err.text, cases[i].message) == NULL) {
      fail_msg("%s: expected \"%s\", found \"%s\"", cases[i].json, cases[i].message, err.text);
    }
    assert_int_equal(fake.live, 0);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(modes_have_the_same_bits_and_launch_what_they_say),
      cmocka_unit_test(modes_of_a_mixture_do_too),
      cmocka_unit_test(mode_mega_is_one_launch),
      cmocka_unit_test(sizes_are_captured_before_largest_first),
      cmocka_unit_test(sizes_of_fused_kernels_are_captured_before),
      cmocka_unit_test(what_was_captured_is_dumped),
      cmocka_unit_test(a_failed_capture_is_an_error),
      cmocka_unit_test(a_nan_is_found_where_it_is_made),
      cmocka_unit_test(codes_and_experts_have_all_modes),
      cmocka_unit_test(mode_full_is_never_replaced),
      cmocka_unit_test(iterations_of_windows_are_small),
      cmocka_unit_test(what_a_gpu_lacks_is_refused_with_the_reason),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
