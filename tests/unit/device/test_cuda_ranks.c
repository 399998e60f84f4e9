// Ranks on GPUs of one host, over the fake driver of support/fake_cuda.h: processes, memory that
// all map, the feed, and planners that make the same plans. What tasks of several ranks compute is
// tested on GPUs.
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/clock.h"
#include "compile/shard.h"
#include "device/cuda/cuda_program_parts.h"
#include "device/cuda/cuda_ranks.h"
#include "graph/family.h"
#include "lower/packed.h"
#include "support/fake_cuda.h"
#include "support/must.h"

enum { REQUESTS = 40, NEW_TOKENS = 9, PROMPT = 120 };

// Of an iteration of every second run that loses a rank, which must end within two seconds.
#ifdef MGL_TEST_SANITIZED
enum { LOST_TOKENS = 16 };
#else
enum { LOST_TOKENS = 256 };
#endif

static const char config_json[] =
    "{\"architectures\":[\"Qwen3ForCausalLM\"],\"model_type\":\"qwen3\",\"vocab_size\":512,"
    "\"hidden_size\":256,\"intermediate_size\":256,\"num_hidden_layers\":2,\"head_dim\":32,"
    "\"num_attention_heads\":8,\"num_key_value_heads\":4,\"max_position_embeddings\":16384,"
    "\"rms_norm_eps\":1e-6,\"rope_theta\":10000,\"tie_word_embeddings\":true,"
    "\"torch_dtype\":\"bfloat16\",\"hidden_act\":\"silu\"}";

// What all processes see.
typedef struct world {
  mgl_hash hashes[MGL_MAX_RANKS][FAKE_CUDA_HASHES];
  uint64_t choices[MGL_MAX_RANKS];
  uint32_t equal[MGL_MAX_RANKS];  // matrices that are as they should be
  pid_t pids[MGL_MAX_RANKS];
} world;

typedef struct model {
  world *world;
  uint32_t tokens;   // of an iteration
  uint32_t slow;     // rank whose sampling takes long; 0: all are fast
  const char *json;  // of the config; NULL: config_json
  bool launched;     // nobody has forked the other ranks
  mgl_crew *crew;    // of such ones
  mgl_cuda_device device;
  mgl_ranks *ranks;
  mgl_cuda_program *program;
} model;

static mgl_graph *make_whole(const char *json) {
  mgl_config config;
  mgl_generation generation;
  mgl_graph *whole = NULL;
  MUST(mgl_config_parse(json, strlen(json), "test", &config, &generation, &err));
  MUST(mgl_family_build(&config, NULL, &whole, &err));
  return whole;
}

static mgl_graph *make_graph(const char *json, uint32_t ranks) {
  mgl_graph *whole = make_whole(json);
  mgl_graph *cut = NULL;
  MUST(mgl_shard_program(whole, ranks, &cut, &err));
  mgl_graph_destroy(whole);
  return cut;
}

static mgl_status make_program(model *m, mgl_error *err) {
  const uint32_t count = mgl_ranks_count(m->ranks);
  mgl_graph *graph = make_graph(m->json != NULL ? m->json : config_json, count);
  mgl_cuda_program_options options = {.program = graph,
                                      .build = {.seed = 5, .ranks = count},
                                      .sizes.limits.tokens = m->tokens,
                                      .sizes.sequences = 6,
                                      .sizes.limits.pages_per_sequence = 12,
                                      .get_code = fake_cuda_code,
                                      .ranks = m->ranks};
  mgl_status status = mgl_cuda_program_create(&m->device, &options, &m->program, err);
  mgl_graph_destroy(graph);
  return status;
}

// --- weights: each rank's are its part of the whole ones -----------------------------------------

// Rows of codes in groups of 128, whose parts are whole panels or end within one.
#define CODED_JSON(quantization)                                                             \
  "{\"architectures\":[\"Qwen3ForCausalLM\"],\"model_type\":\"qwen3\",\"vocab_size\":512,"   \
  "\"hidden_size\":256,\"intermediate_size\":4096,\"num_hidden_layers\":2,\"head_dim\":128," \
  "\"num_attention_heads\":16,\"num_key_value_heads\":4,\"max_position_embeddings\":16384,"  \
  "\"rms_norm_eps\":1e-6,\"rope_theta\":10000,\"tie_word_embeddings\":true,"                 \
  "\"torch_dtype\":\"bfloat16\",\"hidden_act\":\"silu\"" quantization "}"

static const char *const coded_jsons[] = {
    CODED_JSON(""),
    CODED_JSON(",\"quantization_config\":{\"quant_method\":\"fp8\","
               "\"weight_block_size\":[128,128]}"),
    CODED_JSON(",\"quantization_config\":{\"quant_method\":\"compressed-tensors\",\"format\":"
               "\"pack-quantized\",\"ignore\":[\"lm_head\"],\"config_groups\":{\"group_0\":{"
               "\"targets\":[\"Linear\"],\"weights\":{\"type\":\"int\",\"symmetric\":true,"
               "\"num_bits\":4,\"strategy\":\"group\",\"group_size\":128}}}}")};

static const uint8_t *matrices_of(const mgl_cuda_program *p, uint32_t op) {
  return mgl_cuda_pointer(p->memory[MGL_CUDA_MEMORY_WEIGHTS] + p->layout.matrices[op]);
}

// Row blocks of gate_up and of logits are those behind the ranks before; of a linear_add each row
// block is the part of the whole one behind theirs. Returns how many matrices are so.
static uint32_t count_equal(const model *m) {
  mgl_graph *graph = make_whole(m->json);
  mgl_cuda_program_options options = {.program = graph,
                                      .build = {.seed = 5},
                                      .sizes.limits.tokens = m->tokens,
                                      .sizes.sequences = 6,
                                      .sizes.limits.pages_per_sequence = 12,
                                      .get_code = fake_cuda_code};
  mgl_cuda_program *whole = NULL;
  const uint32_t rank = mgl_ranks_rank(m->ranks);
  uint32_t equal = 0;
  MUST(mgl_cuda_program_create(&m->device, &options, &whole, &err));
  for (uint32_t op = 0; op < m->program->program->op_count; op++) {
    const mgl_op *o = &m->program->program->ops[op];
    if (o->kind != MGL_OP_GATE_UP && o->kind != MGL_OP_LOGITS && o->kind != MGL_OP_LINEAR_ADD) {
      continue;
    }
    const mgl_packed_matrices part = mgl_packed_matrices_of(m->program->program, o);
    const mgl_packed_matrices all =
        mgl_packed_matrices_of(whole->program, &whole->program->ops[op]);
    const uint64_t bytes = mgl_packed_row_block_bytes(&part);
    const uint64_t all_bytes = mgl_packed_row_block_bytes(&all);
    const bool by_columns = o->kind == MGL_OP_LINEAR_ADD;
    bool same = true;
    for (uint32_t b = 0; b < part.row_blocks; b++) {
      const uint64_t at = by_columns ? b * all_bytes + rank * bytes
                                     : (rank * part.row_blocks + (uint64_t)b) * all_bytes;
      same = same && memcmp(matrices_of(m->program, op) + b * bytes, matrices_of(whole, op) + at,
                            (size_t)bytes) == 0;
    }
    equal += same ? 1 : 0;
  }
  mgl_cuda_program_destroy(whole);
  mgl_graph_destroy(graph);
  return equal;
}

// Each is another one's orphan, as processes of a launcher are no rank's children. Returns in all.
static void launch_others(model *m, uint32_t count) {
  static int number;
  char name[64];
  uint32_t rank = count;
  mgl_crew_place ignored;
  (void)snprintf(name, sizeof name, "test_cuda_ranks %d %d", (int)getpid(), number++);
  while (--rank > 0) {
    pid_t between = fork();
    if (between == 0 && fork() == 0) {
      break;
    }
    if (between == 0) {
      _exit(0);
    }
    assert_int_equal(waitpid(between, NULL, 0), between);
  }
  const mgl_crew_options options = {.rank = rank, .count = count, .meeting = name};
  MUST(mgl_crew_open(&options, &m->crew, &err));
  MUST(mgl_crew_gather(m->crew, 1, &ignored, &err));
  MUST(mgl_cuda_ranks_start(count, m->crew, &m->ranks, &err));
}

// Returns in rank 0 only.
static void open_model(model *m, uint32_t count, uint32_t tokens) {
  m->tokens = tokens;
  m->world =
      mmap(NULL, sizeof *m->world, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  assert_true(m->world != MAP_FAILED);
  if (m->launched) {
    launch_others(m, count);
  } else {
    MUST(mgl_cuda_ranks_start(count, NULL, &m->ranks, &err));
  }
  const uint32_t rank = mgl_ranks_rank(m->ranks);
  m->world->pids[rank] = getpid();
  m->device = fake_cuda_device();
  fake.slot = (int)rank;
  fake.plan_hashes = m->world->hashes[rank];
  fake.choices = &m->world->choices[rank];
  fake.sampling_ns = rank != 0 && rank == m->slow ? 100000 : 0;
  if (rank != 0) {
    mgl_error reason = {0};
    if (mgl_cuda_ranks_apart(&m->device, m->ranks, &reason) == MGL_OK &&
        make_program(m, &reason) == MGL_OK) {
      m->world->equal[rank] = m->json != NULL ? count_equal(m) : 0;
      (void)mgl_cuda_program_follow(m->program, &reason);
    }
    mgl_ranks_leave(m->ranks, &reason);
  }
  MUST(mgl_cuda_ranks_apart(&m->device, m->ranks, &err));
  MUST(make_program(m, &err));
}

static void close_model(model *m) {
  mgl_cuda_program_destroy(m->program);
  mgl_ranks_stop(m->ranks);
  mgl_crew_close(m->crew);
  assert_int_equal(fake.live, 0);
  assert_int_equal(fake.handles, 0);
  assert_int_equal(fake.maps, 0);
  assert_int_equal(waitpid(-1, NULL, WNOHANG), -1);  // nobody is left
  (void)munmap(m->world, sizeof *m->world);
  fake.plan_hashes = NULL;
  fake.choices = NULL;
  fake.sampling_ns = 0;
}

// --- a crowd of requests, which come in bursts ---------------------------------------------------

typedef struct crowd {
  int32_t prompts[REQUESTS][PROMPT];
  mgl_cuda_request request;
  mgl_cuda_program *program;
  uint32_t given, heard, ended;
  uint32_t counts[REQUESTS];
  uint32_t kill_at;  // tokens; 0: nobody is killed
  pid_t victim;
} crowd;

static uint32_t prompt_of(uint32_t request) {
  return 1 + request * 29 % PROMPT;
}

static bool is_cut_short(uint32_t request) {
  return request % 7 == 3;
}

static const mgl_cuda_request *next(void *context) {
  crowd *c = context;
  if (c->given == REQUESTS || (c->given % 8 == 0 && c->given > 0 && c->ended < c->given)) {
    return NULL;  // a burst of eight when all before have ended: the device idles between
  }
  uint32_t request = c->given++;
  c->prompts[request][0] = (int32_t)request;
  c->request = (mgl_cuda_request){.number = request,
                                  .prompt = c->prompts[request],
                                  .prompt_count = prompt_of(request),
                                  .max_new_tokens = NEW_TOKENS};
  return &c->request;
}

static mgl_feed_end tend(void *context) {
  const crowd *c = context;
  return c->given == REQUESTS ? MGL_FEED_CLOSED : MGL_FEED_OPEN;
}

static void hear(void *context, const mgl_cuda_token *token) {
  crowd *c = context;
  const uint32_t request = token->request;
  assert_int_equal(token->token,
                   fake_cuda_token((int32_t)request, prompt_of(request) + c->counts[request]));
  c->counts[request]++;
  c->heard++;
  if (token->state != MGL_CUDA_SEQUENCE_RUNNING) {
    c->ended++;
  } else if (is_cut_short(request) && c->counts[request] == 4) {
    mgl_cuda_program_end(c->program, request);
    c->ended++;
  }
  if (c->heard == c->kill_at) {
    (void)kill(c->victim, SIGKILL);
  }
}

static mgl_status run_crowd(model *m, crowd *c, mgl_error *err) {
  static const mgl_cuda_request_source source = {.next = next, .tend = tend};
  c->program = m->program;
  const mgl_cuda_generate job = {.source = &source, .on_token = hear, .context = c};
  return mgl_cuda_program_generate(m->program, &job, err);
}

// --- tests ---------------------------------------------------------------------------------------

// Iterations of up to `tokens` tokens, of which all ranks make the same plans.
static void make_plans(uint32_t tokens, bool launched) {
  for (uint32_t count = 2; count <= 4; count *= 2) {
    model m = {.launched = launched};
    open_model(&m, count, tokens);
    for (uint32_t launch = 0; launch < 2; launch++) {  // planners outlive launches
      crowd c = {0};
      memset(m.world->hashes, 0, sizeof m.world->hashes);
      MUST(run_crowd(&m, &c, &err));
      for (uint32_t i = 0; i < REQUESTS; i++) {
        assert_true(c.counts[i] == NEW_TOKENS || (is_cut_short(i) && c.counts[i] >= 4));
      }
      MUST(mgl_ranks_wait(m.ranks, &err));
      uint32_t plans = 0;
      for (uint32_t i = 0; i < FAKE_CUDA_HASHES; i++) {
        for (uint32_t rank = 1; rank < count; rank++) {
          assert_memory_equal(&m.world->hashes[rank][i], &m.world->hashes[0][i], sizeof(mgl_hash));
        }
        plans += memcmp(&m.world->hashes[0][i], &(mgl_hash){0}, sizeof(mgl_hash)) != 0;
      }
      assert_true(plans > 40);
    }
    assert_true(tokens <= MGL_CUDA_MAX_TOKENS || fake.wide_runs > 10);
    close_model(&m);
  }
}

static void ranks_make_the_same_plans(void **state) {
  (void)state;
  make_plans(16, false);
}

// Chains of large iterations, between which launches of small ones go on.
static void ranks_make_the_same_large_plans(void **state) {
  (void)state;
  make_plans(256, false);
}

static void launched_ranks_make_the_same_plans(void **state) {
  (void)state;
  make_plans(16, true);
  make_plans(256, true);
}

// Two ranks whose GPUs are in the same slot hear of it both; their numbers may well be the same.
static void two_ranks_on_one_gpu_are_refused(void **state) {
  (void)state;
  assert_int_equal(mgl_cuda_ranks_ordinal(0, 3, 8), 3);
  assert_int_equal(mgl_cuda_ranks_ordinal(2, 1, 8), 3);
  assert_int_equal(mgl_cuda_ranks_ordinal(0, 3, 1), 0);
  assert_int_equal(mgl_cuda_ranks_ordinal(1, 3, 1), 4);  // which the driver has not
  model m = {0};
  mgl_error why = {0};
  uint64_t least = 0;
  launch_others(&m, 4);
  const uint32_t rank = mgl_ranks_rank(m.ranks);
  m.device = fake_cuda_device();
  fake.slot = rank == 3 ? 1 : (int)rank;
  const bool refused =
      mgl_cuda_ranks_apart(&m.device, m.ranks, &why) == MGL_ERR_ARGUMENT &&
      strstr(why.text, "a GPU for each of 4 ranks, found ranks 1 and 3 on the same (Fake)") != NULL;
  MUST(mgl_ranks_meet(m.ranks, refused ? 1 : 0, &least, &err));
  if (rank != 0) {
    mgl_ranks_leave(m.ranks, NULL);
  }
  assert_int_equal(least, 1);
  mgl_ranks_abandon(m.ranks);
  mgl_ranks_stop(m.ranks);
  mgl_crew_close(m.crew);
}

static void weights_are_parts_of_the_whole(void **state) {
  (void)state;
  for (size_t i = 0; i < sizeof coded_jsons / sizeof *coded_jsons; i++) {
    model m = {0};
    m.json = coded_jsons[i];
    fake.codes = i > 0;
    open_model(&m, 2, 16);
    assert_true((m.program->packings >> 1 != 0) == (i > 0));
    assert_int_equal(count_equal(&m), 2 * 3 + 1);
    MUST(mgl_ranks_wait(m.ranks, &err));
    assert_int_equal(m.world->equal[1], 2 * 3 + 1);
    close_model(&m);
    fake.codes = false;
  }
}

// --- masks and edits -----------------------------------------------------------------------------

enum { CHOOSERS = 30, CHOSEN = 12, VOCAB = 512 };

// Of every three requests one has a mask for each token, that allows one token only, one has
// penalties and biases, and one nothing.
typedef struct choosers {
  model *m;
  uint64_t mask[VOCAB / 64];
  mgl_logit_edit edits[4];
  int32_t prompt[2];
  mgl_cuda_request request;
  uint32_t given, heard;
  uint32_t counts[CHOOSERS];
} choosers;

static int32_t only_choice(uint32_t request, uint32_t count) {
  return (int32_t)((request * 37 + count * 11 + 5) % VOCAB);
}

static mgl_cuda_mask make_mask(choosers *c, uint32_t request, uint32_t count) {
  const uint32_t token = (uint32_t)only_choice(request, count);
  memset(c->mask, 0, sizeof c->mask);
  c->mask[token / 64] |= UINT64_C(1) << token % 64;
  return (mgl_cuda_mask){.words = c->mask};
}

static const mgl_cuda_request *next_chooser(void *context) {
  choosers *c = context;
  if (c->given == CHOOSERS) {
    return NULL;
  }
  const uint32_t number = c->given++;
  c->prompt[0] = (int32_t)number;
  c->request = (mgl_cuda_request){
      .number = number, .prompt = c->prompt, .prompt_count = 2, .max_new_tokens = CHOSEN};
  if (number % 3 == 0) {
    c->request.mask = make_mask(c, number, 0);
    c->request.masks_all = true;
  } else if (number % 3 == 1) {
    for (uint32_t i = 0; i < 4; i++) {
      c->edits[i] = (mgl_logit_edit){.token = (int32_t)(number * 8 + i), .bias = 1};
    }
    c->request.edits = c->edits;
    c->request.edit_count = 1 + number % 4;
    c->request.rule.flags = MGL_SAMPLING_COUNTS;
  }
  return &c->request;
}

static mgl_feed_end tend_choosers(void *context) {
  const choosers *c = context;
  return c->heard == CHOOSERS * CHOSEN ? MGL_FEED_CLOSED : MGL_FEED_OPEN;  // masks are commands
}

static void hear_chooser(void *context, const mgl_cuda_token *token) {
  choosers *c = context;
  const uint32_t request = token->request;
  const uint32_t count = c->counts[request]++;
  c->heard++;
  assert_int_equal(token->token, request % 3 == 0 ? only_choice(request, count)
                                                  : fake_cuda_token((int32_t)request, 2 + count));
  if (request % 3 == 0 && token->state == MGL_CUDA_SEQUENCE_RUNNING) {
    const mgl_cuda_mask mask = make_mask(c, request, count + 1);
    mgl_cuda_program_mask(c->m->program, request, &mask, 2 + count + 1);
  }
}

// All ranks choose the same tokens and count the same ones, whichever of them is late.
static void masks_and_edits_are_those_of_all_ranks(void **state) {
  (void)state;
  static const mgl_cuda_request_source source = {.next = next_chooser, .tend = tend_choosers};
  for (uint32_t slow = 0; slow < 3; slow++) {
    model m = {.slow = slow};
    open_model(&m, 4, 16);
    for (uint32_t launch = 0; launch < 2; launch++) {
      choosers c = {.m = &m};
      const mgl_cuda_generate job = {.source = &source,
                                     .most_edits = 4 + CHOSEN * (1 + launch),  // room grows
                                     .has_masks = true,
                                     .on_token = hear_chooser,
                                     .context = &c};
      memset(m.world->choices, 0, sizeof m.world->choices);
      MUST(mgl_cuda_program_generate(m.program, &job, &err));
      assert_int_equal(c.heard, CHOOSERS * CHOSEN);
      MUST(mgl_ranks_wait(m.ranks, &err));
      assert_true(m.world->choices[0] != 0);
      for (uint32_t rank = 1; rank < 4; rank++) {
        assert_true(m.world->choices[rank] == m.world->choices[0]);
      }
    }
    close_model(&m);
  }
}

static void the_end_of_a_rank_is_named_soon(void **state) {
  (void)state;
  for (uint32_t turn = 0; turn < 12; turn++) {
    const uint32_t kill_at = 1 + turn / 2 * 37;
    model m = {.launched = turn % 2 != 0};
    mgl_error err = {0};
    open_model(&m, 2, kill_at % 2 == 0 ? 16 : LOST_TOKENS);
    crowd c = {.kill_at = kill_at, .victim = m.world->pids[1]};
    uint64_t start = mgl_clock_ns();
    assert_int_equal(run_crowd(&m, &c, &err), MGL_ERR_INTERNAL);
    assert_true(mgl_clock_ns() - start < UINT64_C(2000000000));
    assert_non_null(strstr(err.text, m.launched ? "rank 1 of 2 ended: without a message"
                                                : "rank 1 of 2 was ended by signal 9"));
    close_model(&m);
  }
}

static void memory_that_cannot_be_mapped_is_refused(void **state) {
  (void)state;
  model m = {0};
  MUST(mgl_cuda_ranks_start(2, NULL, &m.ranks, &err));
  mgl_error err = {0};
  m.tokens = 16;
  m.device = fake_cuda_device();
  const bool first = mgl_ranks_rank(m.ranks) == 0;
  fake.access_result = first ? 0 : 1;
  mgl_status status = make_program(&m, &err);
  if (!first) {
    mgl_ranks_leave(m.ranks, &err);
  }
  assert_int_equal(status, MGL_ERR_INTERNAL);
  assert_non_null(strstr(err.text, "rank 1 of 2 ended: CUDA memory_access"));
  mgl_ranks_abandon(m.ranks);
  mgl_ranks_stop(m.ranks);
  assert_int_equal(fake.live + fake.handles + fake.maps, 0);
}

static void check_refused(const char *wanted) {
  model m = {.tokens = 16};
  MUST(mgl_cuda_ranks_start(2, NULL, &m.ranks, &err));
  mgl_error err = {0};
  m.device = fake_cuda_device();
  mgl_status status = make_program(&m, &err);
  if (mgl_ranks_rank(m.ranks) != 0) {
    mgl_ranks_leave(m.ranks, &err);
  }
  assert_int_not_equal(status, MGL_OK);
  assert_non_null(strstr(err.text, wanted));
  mgl_ranks_abandon(m.ranks);
  mgl_ranks_stop(m.ranks);
}

// The library is support/preload/fake_nvshmem.c.
static void memory_can_be_of_nvshmem(void **state) {
  (void)state;
  model m = {0};
  crowd c = {0};
  assert_int_equal(setenv("MEGALITH_TRANSPORT", "pigeons", 1), 0);
  check_refused("MEGALITH_TRANSPORT: expected vmm or nvshmem, found \"pigeons\"");
  assert_int_equal(setenv("MEGALITH_TRANSPORT", "nvshmem", 1), 0);
  open_model(&m, 4, 16);
  assert_string_equal(getenv("NVSHMEM_DISABLE_NVLS"), "1");
  MUST(run_crowd(&m, &c, &err));
  for (uint32_t i = 0; i < REQUESTS; i++) {
    assert_true(c.counts[i] == NEW_TOKENS || (is_cut_short(i) && c.counts[i] >= 4));
  }
  close_model(&m);
  check_refused("a process can have one model over several GPUs");
  assert_int_equal(unsetenv("MEGALITH_TRANSPORT"), 0);
  assert_int_equal(fake.live + fake.handles + fake.maps, 0);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(ranks_make_the_same_plans),
      cmocka_unit_test(ranks_make_the_same_large_plans),
      cmocka_unit_test(launched_ranks_make_the_same_plans),
      cmocka_unit_test(two_ranks_on_one_gpu_are_refused),
      cmocka_unit_test(weights_are_parts_of_the_whole),
      cmocka_unit_test(masks_and_edits_are_those_of_all_ranks),
      cmocka_unit_test(the_end_of_a_rank_is_named_soon),
      cmocka_unit_test(memory_that_cannot_be_mapped_is_refused),
      cmocka_unit_test(memory_can_be_of_nvshmem),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
