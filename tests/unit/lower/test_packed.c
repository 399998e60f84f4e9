// Which weights become packed rows on a GPU: those of a mixture's experts, in every form.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "compile/compile.h"
#include "lower/packed.h"
#include "support/programs.h"

enum { EXPERTS = 24, SLOTS = 8, WIDTH = 1024 };

static mgl_graph *fused_mixture(uint32_t inner, mgl_form form) {
  mgl_config config = small_config(MGL_FAMILY_QWEN3);
  mgl_graph *fused = NULL;
  mgl_error err = {0};
  config.vocab_size = 304;
  config.family = MGL_FAMILY_QWEN3_MOE;
  config.hidden_size = WIDTH;
  config.mixture = (mgl_mixture){.expert_count = EXPERTS,
                                 .slots = SLOTS,
                                 .inner_size = inner,
                                 .renormalise = true,
                                 .scale = 1};
  config.quantization.method = form.dtype == MGL_DTYPE_E2M1
                                   ? MGL_QUANT_MXFP4
                                   : MGL_QUANT_FP8;  // the former of experts alone
  config.quantization.drawn = form;
  mgl_graph *graph = build_program(&config);
  if (mgl_fuse_ops_cuda(graph, &fused, &err) != MGL_OK) {
    fail_msg("%s", err.text);
  }
  mgl_graph_destroy(graph);
  return fused;
}

static const mgl_op *first_of(const mgl_graph *program, mgl_op_kind kind) {
  for (size_t i = 0; i < program->op_count; i++) {
    if (program->ops[i].kind == kind) {
      return &program->ops[i];
    }
  }
  fail_msg("no such op");
  return NULL;
}

// Of experts' down a panel may be put together from several experts' ones, so groups must not go
// over the end of an expert's row.
static void mixtures_of_codes_become_panels(void **state) {
  (void)state;
  static const struct {
    uint32_t inner;
    mgl_form form;
    bool packs;
  } cases[] = {{128, {.dtype = MGL_DTYPE_E4M3, .group = 128}, true},
               {768, {.dtype = MGL_DTYPE_E4M3, .group = 128}, true},
               {768, {.dtype = MGL_DTYPE_I4, .group = 32, .offsets = true}, true},
               {768, {.dtype = MGL_DTYPE_E4M3, .group = 512}, false},
               {768, {.dtype = MGL_DTYPE_I8, .group = MGL_FORM_WHOLE_ROW}, false},
               {320, {.dtype = MGL_DTYPE_E2M1, .group = 32}, true},
               {1024, {.dtype = MGL_DTYPE_I8, .group = MGL_FORM_WHOLE_ROW}, true}};
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    mgl_error err = {0};
    mgl_graph *fused = fused_mixture(cases[i].inner, cases[i].form);
    const mgl_op *ops[] = {first_of(fused, MGL_OP_EXPERTS_UP),
                           first_of(fused, MGL_OP_EXPERTS_DOWN)};
    const mgl_status status = mgl_packed_check(fused, &err);
    if (!cases[i].packs) {
      assert_int_equal(status, MGL_ERR_UNSUPPORTED);
      assert_non_null(strstr(err.text, "mlp.experts."));
      assert_non_null(strstr(err.text, ", of experts whole groups"));
    } else if (status != MGL_OK) {
      fail_msg("%s", err.text);
    }
    for (int j = 0; cases[i].packs && j < 2; j++) {
      const mgl_packed_matrices m = mgl_packed_matrices_of(fused, ops[j]);
      const uint32_t rows = j == 0 ? 2 * cases[i].inner : (uint32_t)WIDTH;
      assert_int_equal(m.experts, EXPERTS);
      assert_int_equal(m.k, j == 0 ? (uint32_t)WIDTH : cases[i].inner);
      assert_int_equal(m.row_blocks, EXPERTS * rows / MGL_CUDA_BLOCK_ROWS);
      assert_int_equal(mgl_packed_row_block_bytes(&m),
                       mgl_panels_of(m.k) * mgl_panel_bytes(m.packing, m.group));
    }
    mgl_graph_destroy(fused);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(mixtures_of_codes_become_panels)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
