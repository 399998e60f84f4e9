// How tasks share the experts of a mixture (graph/balance.h): shares cut the line of experts, every
// balance computes the same bits for any cut, batch, skew and order of tasks, and what tasks really
// write is checked: planted errors are found.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/simd.h"
#include "base/text.h"
#include "base/topology.h"
#include "compile/compile.h"
#include "device/cpu/cpu_eager.h"
#include "device/cpu/cpu_loads.h"
#include "device/cpu/cpu_regions.h"
#include "device/cpu/cpu_tasks.h"
#include "graph/balance.h"
#include "graph/graph_text.h"
#include "support/must.h"
#include "task/tile.h"
#include "unit/device/cpu_bed.h"

enum { D = 40, F = 88, VOCABULARY = 64, MOST_TOKENS = 70, MOST_WORKERS = 7, GRAIN = 16 };

// --- shares --------------------------------------------------------------------------------------

static uint32_t next_number(uint64_t *state, uint32_t below) {
  *state = *state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
  return (uint32_t)((*state >> 33) % below);
}

// Tasks i of `tasks` that cut `columns` at multiples of the grain.
static uint32_t cut(uint32_t columns, uint32_t tasks, uint32_t i) {
  const uint32_t grains = (columns + GRAIN - 1) / GRAIN;
  const uint32_t at = grains * i / tasks * GRAIN;
  return at < columns ? at : columns;
}

// Whatever the cut, each column of each matrix is of one task, and shares are equal to a grain or so
// for each matrix that a task has part of.
static void shares_cut_the_line(void **state) {
  (void)state;
  uint64_t random = 7;
  for (int round = 0; round < 2000; round++) {
    const uint32_t columns = 1 + next_number(&random, 200);
    const uint32_t count = 1 + next_number(&random, 9);
    const uint32_t tasks = 1 + next_number(&random, (columns + GRAIN - 1) / GRAIN);
    for (int balance = MGL_BALANCE_COLUMNS; balance < MGL_BALANCE_COUNT; balance++) {
      for (uint32_t place = 0; place < count; place++) {
        uint32_t next = 0;
        for (uint32_t i = 0; i < tasks; i++) {
          const mgl_expert_share share =
              mgl_expert_share_of((mgl_balance)balance, columns, cut(columns, tasks, i),
                                  cut(columns, tasks, i + 1), place, count);
          assert_true(share.begin <= share.end && share.end <= columns);
          if (share.begin < share.end) {
            assert_int_equal(share.begin, next);
            assert_true(share.begin % GRAIN == 0);
            next = share.end;
          }
        }
        assert_int_equal(next, columns);
      }
    }
  }
}

static void names_are_read(void **state) {
  (void)state;
  mgl_error err = {0};
  for (uint32_t i = 0; i < MGL_BALANCE_COUNT; i++) {
    mgl_balance found = MGL_BALANCE_COUNT;
    assert_int_equal(mgl_balance_parse(mgl_balance_name(i), &found, &err), MGL_OK);
    assert_int_equal(found, i);
  }
  mgl_balance found = MGL_BALANCE_COLUMNS;
  assert_null(mgl_balance_name(MGL_BALANCE_COUNT));
  assert_int_equal(mgl_balance_parse("even", &found, &err), MGL_ERR_ARGUMENT);
  assert_string_equal(err.text, "expected columns, static, dynamic or hybrid, found \"even\"");
}

// --- a mixture in tasks --------------------------------------------------------------------------

typedef struct experts_case {
  const char *name;
  uint32_t experts, slots;
  bool same_token;  // all tokens choose the same experts
  mgl_routing routing;
} experts_case;

static const experts_case cases[] = {
    {"uniform", 16, 3, false, MGL_ROUTING_UNIFORM}, {"skewed", 16, 3, false, MGL_ROUTING_SKEWED},
    {"one", 16, 3, false, MGL_ROUTING_ONE},         {"the same", 16, 3, true, MGL_ROUTING_UNIFORM},
    {"all experts", 5, 5, false, MGL_ROUTING_ONE},  {"one expert", 1, 1, false, MGL_ROUTING_ONE},
    {"many", 512, 8, false, MGL_ROUTING_UNIFORM},
};

static mgl_graph *make_program(const experts_case *c, mgl_balance balance) {
  mgl_text text = {0};
  mgl_graph *graph = NULL;
  const uint32_t e = c->experts;
  mgl_text_format(&text,
                  "program experts\ninput tokens i32[T]\n"
                  "weight table bf16[%d,%d]\nweight norm bf16[%d]\n"
                  "weight router.gate.weight bf16[%u,%d]\n"
                  "weight l.experts.gate bf16[%u,%d,%d]\nweight l.experts.up bf16[%u,%d,%d]\n"
                  "weight l.experts.down bf16[%u,%d,%d]\n"
                  "x = embed(tokens, table) : f32[T,%d]\n"
                  "n = rmsnorm(x, norm) eps=1e-6 : bf16[T,%d]\n"
                  "logits = linear(n, router.gate.weight) : f32[T,%u]\n"
                  "routes = route(logits) scale=1.5 renormalise=1 : f32[T,%u,2]\n"
                  "h = expert_gate_up(n, routes, l.experts.gate, l.experts.up) : bf16[%uT,%d]\n"
                  "y = expert_down(x, h, routes, l.experts.down) : f32[T,%d]\noutput y\n",
                  VOCABULARY, D, D, e, D, e, F, D, e, F, D, e, D, F, D, D, e, c->slots, c->slots, F,
                  D);
  assert_int_equal(mgl_text_check(&text, NULL), MGL_OK);
  MUST(mgl_graph_parse(text.data, text.bytes, "text", &graph, &err));
  mgl_text_free(&text);
  MUST(mgl_graph_set_balance(graph, balance, &err));
  return graph;
}

static void open_bed(cpu_bed *b, const experts_case *c, mgl_balance balance, uint32_t workers) {
  const mgl_compile_options compile = {.tokens = MOST_TOKENS, .workers = workers, .verify = true};
  const cpu_bed_options options = {
      .threads = 1,
      .memory = {.page_tokens = 16, .page_count = 1, .workers = workers},
      .program = {.simd = mgl_simd_detected(), .check_regions = true},
      .limits = {.tokens = MOST_TOKENS,
                 .sequences = MOST_TOKENS,
                 .pages_per_sequence = 1,
                 .page_tokens = 16}};
  mgl_graph *graph = make_program(c, balance);
  mgl_task_graph *tasks = NULL;
  MUST(mgl_compile(graph, &compile, &tasks, NULL, &err));
  cpu_bed_open(b, graph, tasks, &options);
  mgl_cpu_route_dummies(&b->weights, c->routing);
}

static void set_plan(cpu_bed *b, const experts_case *c, uint32_t tokens) {
  static const int32_t pages[] = {0};
  mgl_plan_clear(b->plan);
  for (uint32_t t = 0; t < tokens; t++) {
    const int32_t token = c->same_token ? 5 : (int32_t)(t * 7 % VOCABULARY);
    mgl_plan_add(b->plan, &(mgl_plan_chunk){.tokens = &token,
                                            .token_count = 1,
                                            .pages = pages,
                                            .page_count = 1,
                                            .logits = MGL_LOGITS_NONE});
  }
  mgl_cpu_program_set_plan(b->program, b->plan);
}

// All tasks of one op after the other, those of an op in an order and on workers drawn at random.
static void run_tasks(const cpu_bed *b, uint32_t workers, uint64_t *random) {
  memset(b->memory->activations, 0xff, b->memory->activation_bytes);
  for (uint32_t op = 0; op < b->graph->op_count; op++) {
    const mgl_task *of[MOST_TOKENS];
    uint32_t count = 0;
    for (uint32_t i = 0; i < b->tasks->task_count; i++) {
      if ((b->tasks->tasks[i].flags & MGL_TASK_EMPTY) == 0 && b->tasks->tasks[i].op == op) {
        assert_true(count < MOST_TOKENS);
        of[count++] = &b->tasks->tasks[i];
      }
    }
    for (; count > 0; count--) {
      const uint32_t pick = next_number(random, count);
      mgl_cpu_task_run(b->program, next_number(random, workers), op, of[pick]->begin,
                       of[pick]->end);
      of[pick] = of[count - 1];
    }
  }
}

static const float *result_of(const cpu_bed *b) {
  return mgl_cpu_program_tensor(b->program, mgl_graph_find(b->graph, "y"));
}

static void every_balance_has_the_same_bits(void **state) {
  (void)state;
  static const uint32_t batches[] = {1, 2, 3, 5, 8, 16, MOST_TOKENS};
  static const uint32_t workers[] = {1, 2, 5, MOST_WORKERS};
  static float expected[sizeof cases / sizeof *cases][MOST_TOKENS * D];
  uint64_t random = 11;
  for (int balance = MGL_BALANCE_COLUMNS; balance < MGL_BALANCE_COUNT; balance++) {
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
      for (size_t w = 0; w < sizeof workers / sizeof *workers; w++) {
        cpu_bed b;
        open_bed(&b, &cases[i], (mgl_balance)balance, workers[w]);
        for (size_t n = 0; n < sizeof batches / sizeof *batches; n++) {
          // The largest first: the first tokens of all batches are alike.
          const uint32_t tokens = batches[sizeof batches / sizeof *batches - 1 - n];
          set_plan(&b, &cases[i], tokens);
          run_tasks(&b, workers[w], &random);
          if (balance == MGL_BALANCE_COLUMNS && w == 0 && n == 0) {
            memcpy(expected[i], result_of(&b), sizeof expected[i]);
          }
          if (memcmp(expected[i], result_of(&b), (size_t)tokens * D * sizeof(float)) != 0) {
            fail_msg("%s, %s, %u workers, %u tokens: other bits",
                     mgl_balance_name((uint32_t)balance), cases[i].name, workers[w], tokens);
          }
        }
        cpu_bed_close(&b);
      }
    }
  }
}

// The team's threads at once, under the thread sanitizer too.
static void threads_share_as_well(void **state) {
  (void)state;
  float expected[MOST_TOKENS * D];
  for (int balance = MGL_BALANCE_COLUMNS; balance < MGL_BALANCE_COUNT; balance++) {
    cpu_bed b;
    mgl_team *team = NULL;
    open_bed(&b, &cases[0], (mgl_balance)balance, 3);
    MUST(mgl_team_create(b.topology, 3, &team, &err));
    mgl_cpu_program *eager = NULL;
    const mgl_cpu_program_options options = {.simd = mgl_simd_detected(),
                                             .largest = {MOST_TOKENS, MOST_TOKENS, MOST_TOKENS},
                                             .check_regions = true};
    MUST(mgl_cpu_program_create(b.graph, b.memory, &options, &eager, &err));
    set_plan(&b, &cases[0], MOST_TOKENS);
    for (int run = 0; run < 20; run++) {
      mgl_cpu_eager_run(eager, team, b.plan);
      const float *y = mgl_cpu_program_tensor(eager, mgl_graph_find(b.graph, "y"));
      if (balance == MGL_BALANCE_COLUMNS && run == 0) {
        memcpy(expected, y, sizeof expected);
      }
      assert_memory_equal(expected, y, sizeof expected);
    }
    mgl_cpu_program_destroy(eager);
    mgl_team_destroy(team);
    cpu_bed_close(&b);
  }
}

// --- the compiler --------------------------------------------------------------------------------

// Dynamic tasks are JIT, others not; a tile that shares by data declares all of the result, others
// their columns; a wrong balance is refused.
static void the_compiler_knows_balances(void **state) {
  (void)state;
  for (int balance = MGL_BALANCE_COLUMNS; balance < MGL_BALANCE_COUNT; balance++) {
    cpu_bed b;
    open_bed(&b, &cases[0], (mgl_balance)balance, 3);
    uint32_t found = 0;
    for (uint32_t i = 0; i < b.tasks->task_count; i++) {
      const mgl_task *task = &b.tasks->tasks[i];
      const bool experts = (task->flags & MGL_TASK_EMPTY) == 0 &&
                           mgl_op_info_of((mgl_op_kind)task->type)->unit == MGL_UNIT_EXPERT;
      if ((task->flags & MGL_TASK_EMPTY) == 0) {
        assert_int_equal((task->flags & MGL_TASK_JIT) != 0,
                         experts && balance == MGL_BALANCE_DYNAMIC);
      }
      if (experts && task->type == MGL_OP_EXPERT_GATE_UP) {
        mgl_tile_access access;
        mgl_tile_regions(b.graph, &b.graph->ops[task->op], 4, 1, task->begin, task->end, &access);
        assert_int_equal(access.write_count, 1);
        const bool whole = balance != MGL_BALANCE_COLUMNS;
        assert_int_equal(access.writes[0].column_begin, whole ? 0 : task->begin);
        assert_int_equal(access.writes[0].column_end, whole ? F : task->end);
        assert_int_equal(access.writes[0].row_end, 4 * cases[0].slots);
        found++;
      }
    }
    assert_int_equal(found, 3);
    cpu_bed_close(&b);
  }
}

// --- what is really written ----------------------------------------------------------------------

static uint32_t op_of(const cpu_bed *b, mgl_op_kind kind) {
  uint32_t op = 0;
  while (b->graph->ops[op].kind != kind) {
    op++;
  }
  return op;
}

// All ops up to the gates and ups of experts.
static void run_until_experts(const cpu_bed *b) {
  for (uint32_t op = 0; op < op_of(b, MGL_OP_EXPERT_GATE_UP); op++) {
    mgl_cpu_task_run(b->program, 0, op, 0,
                     mgl_tile_units(b->graph, &b->graph->ops[op], MOST_TOKENS, 1));
  }
}

static void regions_are_checked(void **state) {
  (void)state;
  mgl_error error = {0};
  cpu_bed b;
  open_bed(&b, &cases[0], MGL_BALANCE_COLUMNS, 2);
  set_plan(&b, &cases[0], 4);
  const mgl_op *up = &b.graph->ops[op_of(&b, MGL_OP_EXPERT_GATE_UP)];
  const mgl_expert_share share = {16, 32};
  MUST(mgl_cpu_regions_check_write(b.program, up, 16, 48, 3, share, &err));
  MUST(mgl_cpu_regions_check_write(b.program, up, 16, 48, 2, share, &err));
  assert_int_equal(mgl_cpu_regions_check_write(b.program, up, 16, 48, 3, share, &error),
                   MGL_ERR_INTERNAL);
  assert_string_equal(error.text,
                      "h: expected one task to write row 3, columns 16 on, found a second one, of "
                      "units 16 to 48");
  assert_int_equal(
      mgl_cpu_regions_check_write(b.program, up, 16, 48, 3, (mgl_expert_share){32, 64}, &error),
      MGL_ERR_INTERNAL);
  assert_string_equal(
      error.text,
      "h: expected writes inside of what the tile of units 16 to 48 declares, found "
      "one of row 3, columns 32 to 64");
  assert_int_equal(mgl_cpu_regions_check_write(b.program, up, 0, F, 12, share, &error),
                   MGL_ERR_INTERNAL);  // there are 4 * 3 rows
  assert_int_equal(
      mgl_cpu_regions_check_write(b.program, up, 0, F, 3, (mgl_expert_share){40, 48}, &error),
      MGL_ERR_INTERNAL);
  assert_non_null(strstr(error.text, "cut at multiples of 16"));
  assert_int_equal(mgl_cpu_regions_check_read(b.program, up->output, &error), MGL_ERR_INTERNAL);
  assert_string_equal(error.text,
                      "h: expected all of it to be written before it is read, found row 0, columns "
                      "0 on left out");
  // Of the next iteration nothing is written.
  set_plan(&b, &cases[0], 4);
  MUST(mgl_cpu_regions_check_write(b.program, up, 16, 48, 3, share, &err));
  cpu_bed_close(&b);
}

typedef enum planted { NOTHING, OVERLAP, GAP, TOO_EARLY, PLANTED_COUNT } planted;

// In a child: tasks that are not the compiler's. Does not return.
static void run_planted(mgl_balance balance, planted what) {
  cpu_bed b;
  open_bed(&b, &cases[0], balance, 2);
  set_plan(&b, &cases[0], 9);
  run_until_experts(&b);
  const uint32_t up = op_of(&b, MGL_OP_EXPERT_GATE_UP);
  const uint32_t middle = 48;
  if (what != TOO_EARLY) {
    mgl_cpu_task_run(b.program, 0, up, 0, middle);
  }
  mgl_cpu_task_run(b.program, 1, up, what == OVERLAP ? 32 : what == GAP ? 64 : middle, F);
  mgl_cpu_task_run(b.program, 0, op_of(&b, MGL_OP_EXPERT_DOWN), 0, D);
  _exit(0);
}

// Overlaps, gaps and tasks that come too early end the process with a message, whatever the routes
// make of the tiles; dynamic tasks find what is left wherever it is, so there all of them are right.
static void planted_errors_are_found(void **state) {
  (void)state;
  static const char *const messages[PLANTED_COUNT] = {"", "found a second one", "left out",
                                                      "left out"};
  for (int balance = MGL_BALANCE_COLUMNS; balance < MGL_BALANCE_COUNT; balance++) {
    for (int what = NOTHING; what < PLANTED_COUNT; what++) {
      int pipe_ends[2];
      char text[1024] = "";
      int status = 0;
      assert_int_equal(pipe(pipe_ends), 0);
      (void)fflush(NULL);
      const pid_t child = fork();
      if (child == 0) {
        (void)dup2(pipe_ends[1], STDERR_FILENO);
        run_planted((mgl_balance)balance, (planted)what);
      }
      assert_true(child > 0);
      (void)close(pipe_ends[1]);
      const ssize_t bytes = read(pipe_ends[0], text, sizeof text - 1);
      (void)close(pipe_ends[0]);
      assert_int_equal(waitpid(child, &status, 0), child);
      const bool right = what == NOTHING || balance == MGL_BALANCE_DYNAMIC;
      if (right ? !WIFEXITED(status) || WEXITSTATUS(status) != 0
                : !WIFSIGNALED(status) || bytes <= 0 || strstr(text, messages[what]) == NULL) {
        fail_msg("%s, error %d: status %d, \"%s\"", mgl_balance_name((uint32_t)balance), what,
                 status, text);
      }
    }
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(shares_cut_the_line),
      cmocka_unit_test(names_are_read),
      cmocka_unit_test(every_balance_has_the_same_bits),
      cmocka_unit_test(threads_share_as_well),
      cmocka_unit_test(the_compiler_knows_balances),
      cmocka_unit_test(regions_are_checked),
      cmocka_unit_test(planted_errors_are_found),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
