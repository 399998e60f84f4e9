// Tiles and graphs that iterations of a model on a GPU have.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "lower/choose.h"
#include "lower/stages.h"
#include "support/bench_model.h"

// Small models have smaller tiles than large ones, whose weights would be read from the L2 more
// often, and no graph of 192 tokens; several ranks add up whole tiles of tokens.
static void tiles_suit_the_model(void **state) {
  (void)state;
  static const struct {
    const char *name;
    uint32_t of_128, of_256;
  } models[] = {{"qwen3-0.6b", 64, 128}, {"llama-3.2-1b", 128, 256}, {"qwen3-8b", 128, 256}};
  const mgl_stages_graphs of = {true, 256, 132};
  for (size_t m = 0; m < sizeof models / sizeof models[0]; m++) {
    mgl_graph *program = fused_model(models[m].name);
    assert_int_equal(mgl_stages_tile_tokens(program, 64, 64, &of), 64);
    assert_int_equal(mgl_stages_tile_tokens(program, 128, 256, &of), models[m].of_128);
    assert_int_equal(mgl_stages_tile_tokens(program, 256, 256, &of), models[m].of_256);
    assert_in_range(mgl_stages_tile_tokens(program, 256, 128, &of), 64, 128);
    assert_int_equal(mgl_stages_tile_tokens(program, 512, 256, &of), 256);
    assert_true(mgl_stages_has_middle(program, &of) == (m > 0));
    mgl_graph_destroy(program);
  }
  mgl_graph *canonical = bench_model("qwen3-0.6b");
  mgl_graph *part = fused_part(canonical, 2);
  assert_int_equal(mgl_stages_tile_tokens(part, 256, 256, &of), 256);
  mgl_graph_destroy(part);
  mgl_graph_destroy(canonical);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(tiles_suit_the_model),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
