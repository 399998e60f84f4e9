// Which iterations make bf16 of codes, and that their schedules compute the program. (What of such
// a schedule must not be changed, test_schedule.c tries.)
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "lower/choose.h"
#include "lower/stages.h"
#include "support/must.h"
#include "support/programs.h"
#include "twin/wide_run.h"

// With the largest tiles of so many tokens, and the smallest.
static void check_stages(const mgl_graph *program, uint32_t tokens, uint32_t workers) {
  const uint32_t most = tokens < MGL_WIDE_MOST_TILE ? tokens : (uint32_t)MGL_WIDE_MOST_TILE;
  for (uint32_t tile = MGL_WIDE_LEAST_TILE; tile <= most; tile *= 2) {
    const mgl_stages_options options = {tokens, tile, 64, workers};
    mgl_schedule *schedule = NULL;
    MUST(mgl_lower_stages(program, &options, &schedule, &err));
    MUST(mgl_schedule_verify(program, schedule, &err));
    mgl_schedule_destroy(schedule);
  }
}

// What the first linear needs all workers make in the first stage. All else is made beside, as soon
// as who read the region before has done so: of the first layer at once.
static void check_beside(const mgl_graph *program, const mgl_schedule *s) {
  uint32_t read[MGL_WIDENED_COUNT];
  bool first = true;
  for (uint32_t i = 0; i < MGL_WIDENED_COUNT; i++) {
    read[i] = MGL_NO_EVENT;
  }
  for (uint32_t i = 0; i < s->step_count; i++) {
    const mgl_schedule_step *step = &s->steps[i];
    const mgl_schedule_op *op = &s->ops[step->op];
    const mgl_widened region = mgl_stages_widened(program, &program->ops[op->op]);
    if (op->kind == (uint32_t)MGL_WIDE_WIDEN) {
      first = first && op->stage == 0;
      assert_int_equal(op->flags, first ? 0 : MGL_WIDE_BESIDE);
      assert_int_equal(step->event, first ? MGL_NO_EVENT : read[region]);
    } else if ((op->flags & MGL_WIDE_WIDENED) != 0) {
      read[region] = step->trigger;
    }
  }
}

enum { GRAPHS = 10 };  // of 64 to 2048 tokens

// Of tiles of many tokens codes become bf16 before, each op's once; of tiles of few, and of the
// last linear, they do not.
static void schedules_of_codes_are_right(void **state) {
  (void)state;
  mgl_graph *program = coded_program(1152, 2304);
  const mgl_stages_graphs of = {true, MGL_STAGES_USUAL_ROWS, 132};
  for (uint32_t graph = 0; graph < GRAPHS; graph++) {
    const mgl_stages_options options = mgl_stages_options_of(program, &of, graph);
    const uint32_t tokens = options.tokens;
    check_stages(program, tokens, 132);
    check_stages(program, tokens, 7);
    mgl_schedule *schedule = NULL;
    MUST(mgl_lower_stages(program, &options, &schedule, &err));
    uint32_t widened = 0;
    for (uint32_t i = 0; i < schedule->op_count; i++) {
      widened += schedule->ops[i].kind == (uint32_t)MGL_WIDE_WIDEN ? 1 : 0;
    }
    const bool many = tokens >= MGL_WIDE_WIDEN_TOKENS;
    assert_int_equal(widened, many ? 3 * 4 : 0);
    assert_true(many == (schedule->widened_bytes > 0));
    assert_true(many == (options.tile_tokens == MGL_WIDE_MOST_TILE));
    check_beside(program, schedule);
    mgl_schedule_destroy(schedule);
  }
  for (uint32_t i = 0; i < program->op_count; i++) {
    if (program->ops[i].kind == MGL_OP_LOGITS) {
      mgl_tensor *head = &program->tensors[program->ops[i].inputs[3]];
      head->dtype = MGL_DTYPE_I8;
      head->group = 64;
    }
  }
  const mgl_stages_options options = mgl_stages_options_of(program, &of, GRAPHS - 1);
  assert_int_equal(options.tile_tokens, MGL_WIDE_MOST_CODED_TILE);
  check_stages(program, 64, 132);
  mgl_graph_destroy(program);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(schedules_of_codes_are_right),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
