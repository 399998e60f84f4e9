// Short rows beside the plain ones: which weights get them, that a program computes the same bits
// with them, and that it does without where there is no memory.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "base/alloc.h"
#include "device/cpu/cpu_eager.h"
#include "device/cpu/cpu_linears.h"
#include "device/cpu/cpu_shorts.h"
#include "support/programs.h"
#include "unit/device/cpu_bed.h"

enum { HIDDEN = 512, VOCABULARY = 66000, PAGE_TOKENS = 16, PAGES = 2, MOST_TOKENS = 8 };

static const mgl_cpu_memory_options memory_options = {
    .page_tokens = PAGE_TOKENS, .page_count = PAGES, .workers = 1};

static mgl_cpu_program_options program_options(uint32_t tokens) {
  return (mgl_cpu_program_options){.simd = mgl_simd_detected(), .largest = {tokens, tokens, 1}};
}

// A model whose output projection alone is above 64 MiB.
static void create(cpu_bed *b, uint32_t tokens) {
  static const int32_t ids[MOST_TOKENS] = {5, 7, 65000, 1, 2, 3, 4, 500}, pages[PAGES] = {0, 1};
  mgl_config config = small_config(MGL_FAMILY_QWEN3);
  config.hidden_size = HIDDEN;
  config.vocab_size = VOCABULARY;
  config.dtype = MGL_DTYPE_BF16;
  const cpu_bed_options options = {.threads = 1,
                                   .memory = memory_options,
                                   .program = program_options(tokens),
                                   .limits = {.tokens = tokens,
                                              .sequences = 1,
                                              .pages_per_sequence = PAGES,
                                              .page_tokens = PAGE_TOKENS}};
  cpu_bed_open(b, build_program(&config), NULL, &options);
  mgl_plan_add(b->plan, &(mgl_plan_chunk){.tokens = ids,
                                          .token_count = tokens,
                                          .pages = pages,
                                          .page_count = PAGES,
                                          .logits = MGL_LOGITS_ALL});
}

static void take_logits(cpu_bed *b, uint32_t tokens, float *out) {
  mgl_cpu_eager_run(b->program, b->team, b->plan);
  const uint32_t logits = mgl_graph_find(b->graph, "logits");
  memcpy(out, mgl_cpu_program_tensor(b->program, logits), tokens * VOCABULARY * sizeof *out);
}

// The same program, bound anew with what its weights have now.
static void bind_again(cpu_bed *b, uint32_t tokens, const mgl_linear_way *way) {
  mgl_cpu_memory_options memory = memory_options;
  const mgl_cpu_program_options program = program_options(tokens);
  memory.way = way;
  mgl_cpu_program_destroy(b->program);
  mgl_cpu_memory_destroy(b->memory);
  MUST(mgl_cpu_memory_create(&b->weights, &memory, b->topology, &b->memory, &err));
  MUST(mgl_cpu_program_create(b->graph, b->memory, &program, &b->program, &err));
}

static bool is_short(const cpu_bed *b, const void *at) {
  const unsigned char *pages = b->weights.short_pages, *from = at;
  return from >= pages && from < pages + b->weights.short_bytes;
}

// Of the linears that have short rows, all that is fetched ahead lies in these.
static void check_fetched(const cpu_bed *b) {
  uint32_t found = 0;
  for (uint32_t i = 0; i < b->graph->op_count; i++) {
    const mgl_op *op = &b->graph->ops[i];
    const void *at = NULL;
    if (op->kind == MGL_OP_LINEAR && b->program->shorts[op->inputs[1]] != NULL) {
      const size_t bytes = mgl_cpu_linear_weights(b->program, i, 16, 40, 64, &at);
      assert_true(bytes > 0 && is_short(b, at) && is_short(b, (const char *)at + bytes - 1));
      found++;
    }
  }
  assert_true(found > 1);
}

static void check_program(uint32_t tokens) {
  static float plain[MOST_TOKENS * VOCABULARY], shorts[MOST_TOKENS * VOCABULARY];
  const size_t logit_bytes = tokens * VOCABULARY * sizeof *plain;
  const mgl_simd simd = mgl_simd_detected();
  cpu_bed b;
  create(&b, tokens);
  take_logits(&b, tokens, plain);
  const size_t bytes = mgl_cpu_shorts_bytes(b.graph, simd);
  assert_int_equal(mgl_cpu_shorts_bytes(b.graph, MGL_SIMD_SCALAR), 0);
  if (bytes == 0) {
    print_message("skipped: this level reads no short rows\n");
    cpu_bed_close(&b);
    return;
  }
  mgl_linear_way way = mgl_cpu_kernels_for(simd)->usual;
  mgl_cpu_shorts_make(&b.weights, simd, b.team, b.topology);
  assert_int_equal(b.weights.short_bytes, bytes);
  const uint64_t saved = mgl_cpu_shorts_saved(&b.weights);
  assert_true(saved > bytes / 4 && saved < bytes / 3);
  for (uint32_t asked = 0; asked <= tokens; asked += tokens) {
    way.short_tokens = asked;
    bind_again(&b, tokens, &way);
    take_logits(&b, tokens, shorts);
    assert_memory_equal(plain, shorts, logit_bytes);
  }
  check_fetched(&b);
  // Without them, the same way reads the plain rows.
  mgl_cpu_shorts_release(&b.weights);
  assert_int_equal(mgl_cpu_shorts_saved(&b.weights), 0);
  bind_again(&b, tokens, &way);
  take_logits(&b, tokens, shorts);
  assert_memory_equal(plain, shorts, logit_bytes);
  const int64_t live = mgl_alloc_live();
  for (uint64_t n = 1; n <= 2; n++) {
    mgl_alloc_fail_nth(n);
    mgl_cpu_shorts_make(&b.weights, simd, b.team, b.topology);
    mgl_alloc_fail_nth(0);
    assert_null(b.weights.shorts);
    assert_int_equal(mgl_alloc_live(), live);
  }
  cpu_bed_close(&b);
}

static void a_program_has_the_same_bits(void **state) {
  (void)state;
  check_program(1);
  check_program(3);
  check_program(MOST_TOKENS);
}

static void small_models_get_none(void **state) {
  (void)state;
  const mgl_config config = small_config(MGL_FAMILY_QWEN3);
  mgl_graph *graph = build_program(&config);
  assert_int_equal(mgl_cpu_shorts_bytes(graph, mgl_simd_detected()), 0);
  mgl_graph_destroy(graph);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(a_program_has_the_same_bits),
      cmocka_unit_test(small_models_get_none),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
