// mgl_fuse_ops: all families become five fused ops a layer; programs in which a pattern does not
// quite occur keep their ops. (That fused ops compute the same bits is tested in test_cpu_tasks.c.)
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/alloc.h"
#include "compile/compile.h"
#include "graph/act_dtype.h"
#include "support/programs.h"

static mgl_graph *fuse(const mgl_graph *graph) {
  mgl_graph *fused = NULL;
  MUST(mgl_fuse_ops(graph, &fused, &err));
  return fused;
}

static char *print(const mgl_graph *graph) {
  mgl_text text = {0};
  mgl_graph_print(graph, &text);
  MUST(mgl_text_check(&text, &err));
  return text.data;
}

// The names of the ops, each followed by a space.
static const char *op_list(const mgl_graph *graph) {
  static char list[4000];
  size_t used = 0;
  list[0] = 0;
  for (size_t i = 0; i < graph->op_count; i++) {
    used += (size_t)snprintf(list + used, sizeof list - used, "%s ",
                             mgl_op_info_of(graph->ops[i].kind)->name);
    assert_true(used < sizeof list);
  }
  return list;
}

static mgl_graph *build(mgl_family family, mgl_dtype dtype) {
  mgl_config config = small_config(family);
  config.dtype = dtype;
  return build_program(&config);
}

// Printing, parsing and printing again gives the same text; so does fusing again.
static void check_round_trip(const mgl_graph *fused) {
  char *first = print(fused);
  mgl_graph *parsed = parse_program(first);
  char *second = print(parsed);
  assert_string_equal(first, second);
  mgl_graph *again = fuse(parsed);
  char *third = print(again);
  assert_string_equal(first, third);
  mgl_graph_destroy(parsed);
  mgl_graph_destroy(again);
  mgl_free(first);
  mgl_free(second);
  mgl_free(third);
}

static void every_family_becomes_five_ops_a_layer(void **state) {
  (void)state;
  static const mgl_dtype dtypes[] = {MGL_DTYPE_BF16, MGL_DTYPE_F16, MGL_DTYPE_F32};
  int64_t live = mgl_alloc_live();
  for (int family = 0; family < MGL_FAMILY_COUNT; family++) {
    for (int i = 0; i < 3 && family != MGL_FAMILY_PHI; i++) {
      mgl_graph *graph = build((mgl_family)family, dtypes[i]);
      mgl_graph *fused = fuse(graph);
      assert_string_equal(op_list(fused),
                          "rope_angles embed "
                          "qkv_proj attend linear_add gate_up linear_add "
                          "qkv_proj attend linear_add gate_up linear_add logits ");
      assert_string_equal(fused->name, graph->name);
      assert_int_equal(mgl_graph_act_dtype(graph), i == 0 ? MGL_DTYPE_BF16 : MGL_DTYPE_F32);
      assert_int_equal(mgl_graph_act_dtype(fused), mgl_graph_act_dtype(graph));
      check_round_trip(fused);
      mgl_graph_destroy(fused);
      mgl_graph_destroy(graph);
    }
  }
  assert_int_equal(mgl_alloc_live(), live);
}

// Layer norms, biases and a gelu are of no pattern: Phi's ops stay as they are.
static void layer_norms_are_not_fused(void **state) {
  (void)state;
  mgl_config config = small_config(MGL_FAMILY_PHI);
  config.qkv_bias = config.output_bias = config.mlp_bias = config.head_bias = true;
  mgl_graph *graph = build_program(&config);
  mgl_graph *fused = fuse(graph);
  char *text = print(graph);
  char *fused_text = print(fused);
  assert_int_equal(fused->op_count, graph->op_count);
  assert_string_equal(strstr(fused_text, "angles ="), strstr(text, "angles ="));
  assert_non_null(strstr(text, "1.fed_forward = add(1.attended, 1.down)"));
  mgl_free(text);
  mgl_free(fused_text);
  mgl_graph_destroy(fused);
  mgl_graph_destroy(graph);
}

static void check_op(const mgl_graph *graph, size_t op_idx, const char *line) {
  char *text = print(graph);
  const char *at = text;
  size_t op = SIZE_MAX;  // of the line at `at`
  for (; at != NULL && op != op_idx; at = strchr(at, '\n') + 1) {
    const char *equals = strstr(at, " = ");
    op += equals != NULL && equals < strchr(at, '\n');
    if (op == op_idx) {
      break;
    }
  }
  assert_non_null(at);
  char found[1000];
  (void)snprintf(found, sizeof found, "%.*s", (int)strcspn(at, "\n"), at);
  assert_string_equal(found, line);
  mgl_free(text);
}

// Tensors, attributes and names of the fused ops, in full.
static void fused_ops_have_the_operands_of_what_they_replace(void **state) {
  (void)state;
  mgl_graph *graph = build(MGL_FAMILY_QWEN3, MGL_DTYPE_BF16);
  mgl_graph *fused = fuse(graph);
  check_op(fused, 2,
           "0.v = qkv_proj(embedded, model.layers.0.input_layernorm.weight, "
           "model.layers.0.self_attn.q_proj.weight, model.layers.0.self_attn.k_proj.weight, "
           "model.layers.0.self_attn.v_proj.weight) eps=9.9999999999999995e-07 : f32[T,10,32]");
  check_op(fused, 3,
           "0.attention = attend(0.v, kv.0, angles, positions, slots, block_tables, "
           "model.layers.0.self_attn.q_norm.weight, model.layers.0.self_attn.k_norm.weight) "
           "eps=9.9999999999999995e-07 scale=0.17677669529663687 : bf16[T,6,32]");
  check_op(fused, 4,
           "0.attended = linear_add(embedded, 0.attention, "
           "model.layers.0.self_attn.o_proj.weight) : f32[T,96]");
  check_op(fused, 5,
           "0.gated = gate_up(0.attended, model.layers.0.post_attention_layernorm.weight, "
           "model.layers.0.mlp.gate_proj.weight, model.layers.0.mlp.up_proj.weight) "
           "eps=9.9999999999999995e-07 : bf16[T,128]");
  check_op(fused, 12,
           "logits = logits(1.fed_forward, model.norm.weight, logit_rows, "
           "model.embed_tokens.weight) eps=9.9999999999999995e-07 : f32[L,300]");
  assert_true(fused->tensors[mgl_graph_find(fused, "logits")].is_output);
  mgl_graph_destroy(fused);
  mgl_graph_destroy(graph);

  graph = build(MGL_FAMILY_QWEN2, MGL_DTYPE_F32);
  fused = fuse(graph);
  check_op(fused, 7,
           "1.v = qkv_proj(0.fed_forward, model.layers.1.input_layernorm.weight, "
           "model.layers.1.self_attn.q_proj.weight, model.layers.1.self_attn.k_proj.weight, "
           "model.layers.1.self_attn.v_proj.weight, model.layers.1.self_attn.q_proj.bias, "
           "model.layers.1.self_attn.k_proj.bias, model.layers.1.self_attn.v_proj.bias) "
           "eps=9.9999999999999995e-07 : f32[T,10,32]");
  check_op(fused, 8,
           "1.attention = attend(1.v, kv.1, angles, positions, slots, block_tables) eps=0 "
           "scale=0.17677669529663687 : f32[T,6,32]");
  mgl_graph_destroy(fused);
  mgl_graph_destroy(graph);
}

// --- one pattern at a time -----------------------------------------------------------------------

#define HEADER                                                                         \
  "program p\ninput tokens i32[T]\ninput positions i32[T]\ninput slots i32[T]\n"       \
  "input block_tables i32[R]\ninput logit_rows i32[L]\nweight table bf16[50,8]\n"      \
  "weight norm f32[8]\nweight w bf16[8,8]\nweight w2 bf16[8,8]\nweight wq bf16[8,8]\n" \
  "weight wk bf16[4,8]\nweight wv bf16[4,8]\nweight bias f32[8]\nweight bk f32[4]\n"   \
  "weight head f32[4]\nweight wide bf16[6,8]\nkv kv.0 bf16[1,4]\n"                     \
  "x = embed(tokens, table) : f32[T,8]\n"

#define N "n = rmsnorm(x, norm) eps=1 : bf16[T,8]\n"

typedef struct pattern {
  const char *text;  // after the header
  const char *ops;   // of the fused program after embed
} pattern;

static void check_patterns(const pattern *patterns, size_t count) {
  for (size_t i = 0; i < count; i++) {
    char text[4000];
    assert_true((size_t)snprintf(text, sizeof text, "%s%s", HEADER, patterns[i].text) <
                sizeof text);
    mgl_graph *graph = parse_program(text);
    mgl_graph *fused = fuse(graph);
    const char *found = op_list(fused) + strlen("embed ");
    if (strcmp(found, patterns[i].ops) != 0) {
      fail_msg("pattern %zu: expected \"%s\", found \"%s\"", i, patterns[i].ops, found);
    }
    // What was not fused is the program that was given.
    if (fused->op_count == graph->op_count) {
      char *before = print(graph);
      char *after = print(fused);
      assert_string_equal(before, after);
      mgl_free(before);
      mgl_free(after);
    }
    check_round_trip(fused);
    mgl_graph_destroy(fused);
    mgl_graph_destroy(graph);
  }
}

static void linear_add_needs_the_linear_alone(void **state) {
  (void)state;
  static const pattern patterns[] = {
      {N "y = linear(n, w) : f32[T,8]\nz = add(x, y) : f32[T,8]\noutput z\n",
       "rmsnorm linear_add "},
      // The linear as the first operand: its storage would be taken over.
      {N "y = linear(n, w) : f32[T,8]\nz = add(y, x) : f32[T,8]\noutput z\n",
       "rmsnorm linear add "},
      // A bias, another reader, an output in the middle.
      {N "y = linear(n, w, bias) : f32[T,8]\nz = add(x, y) : f32[T,8]\noutput z\n",
       "rmsnorm linear add "},
      {N "y = linear(n, w) : f32[T,8]\nz = add(x, y) : f32[T,8]\n"
         "s = silu_mul(y, y) : f32[T,8]\noutput z\noutput s\n",
       "rmsnorm linear add silu_mul "},
      {N "y = linear(n, w) : f32[T,8]\nz = add(x, y) : f32[T,8]\noutput z\noutput y\n",
       "rmsnorm linear add "},
      // Both operands from linears: the second one is fused.
      {N "y = linear(n, w) : f32[T,8]\nv = linear(n, w2) : f32[T,8]\nz = add(v, y) : f32[T,8]\n"
         "output z\n",
       "rmsnorm linear linear_add "},
      // The input of the linear is taken over before the add, by another add or by this one.
      {"a = embed(tokens, table) : f32[T,8]\nf = linear(a, w) : f32[T,8]\n"
       "b = add(a, x) : f32[T,8]\nc = embed(tokens, table) : f32[T,8]\nz = add(c, f) : f32[T,8]\n"
       "output b\noutput z\n",
       "embed linear add embed add "},
      {"y = linear(x, w) : f32[T,8]\nz = add(x, y) : f32[T,8]\noutput z\n", "linear add "},
      // Other ops in between do not matter.
      {N "y = linear(n, w) : f32[T,8]\nc = embed(tokens, table) : f32[T,8]\n"
         "z = add(x, y) : f32[T,8]\noutput z\noutput c\n",
       "rmsnorm embed linear_add "},
  };
  check_patterns(patterns, sizeof patterns / sizeof patterns[0]);
}

static void gate_up_needs_one_norm_for_two_linears(void **state) {
  (void)state;
#define GATE "g = linear(n, w) : f32[T,8]\n"
#define UP "u = linear(n, w2) : f32[T,8]\n"
#define GATED "s = silu_mul(g, u) : bf16[T,8]\n"
  static const pattern patterns[] = {
      {N GATE UP GATED "output s\n", "gate_up "},
      {N UP GATE GATED "output s\n", "gate_up "},
      {N GATE UP GATED "output s\noutput n\n", "rmsnorm linear linear silu_mul "},
      {N GATE UP GATED "output s\noutput g\n", "rmsnorm linear linear silu_mul "},
      {N GATE UP GATED "e = linear(n, w) : f32[T,8]\noutput s\noutput e\n",
       "rmsnorm linear linear silu_mul linear "},
      {N "g = linear(n, w, bias) : f32[T,8]\n" UP GATED "output s\n",
       "rmsnorm linear linear silu_mul "},
      {N GATE "s = silu_mul(g, g) : bf16[T,8]\noutput s\n", "rmsnorm linear silu_mul "},
      // Two norms; a norm of some rows; a norm of another dtype than the program's act.
      {N "m = rmsnorm(x, norm) eps=1 : bf16[T,8]\n" GATE "u = linear(m, w2) : f32[T,8]\n" GATED
         "output s\n",
       "rmsnorm rmsnorm linear linear silu_mul "},
      {"n = rmsnorm(x, norm, logit_rows) eps=1 : bf16[L,8]\ng = linear(n, w) : f32[L,8]\n"
       "u = linear(n, w2) : f32[L,8]\ns = silu_mul(g, u) : bf16[L,8]\noutput s\n",
       "rmsnorm linear linear silu_mul "},
      {"n = rmsnorm(x, norm) eps=1 : f32[T,8]\n" GATE UP GATED "output s\n",
       "rmsnorm linear linear silu_mul "},
      // Of heads.
      {N "g = linear(n, w) : f32[T,2,4]\nu = linear(n, w2) : f32[T,2,4]\n"
         "s = silu_mul(g, u) : bf16[T,2,4]\noutput s\n",
       "rmsnorm linear linear silu_mul "},
      // x is taken over before silu_mul; or after it.
      {N GATE UP "c = embed(tokens, table) : f32[T,8]\nz = add(x, c) : f32[T,8]\n" GATED
                 "output s\noutput z\n",
       "rmsnorm linear linear embed add silu_mul "},
      {N GATE UP GATED "c = embed(tokens, table) : f32[T,8]\nz = add(x, c) : f32[T,8]\n"
                       "output s\noutput z\n",
       "gate_up embed add "},
  };
  check_patterns(patterns, sizeof patterns / sizeof patterns[0]);
}

static void logits_need_a_norm_of_rows(void **state) {
  (void)state;
#define ROWS "n = rmsnorm(x, norm, logit_rows) eps=1 : bf16[L,8]\n"
  static const pattern patterns[] = {
      {ROWS "l = linear(n, wide) : f32[L,6]\noutput l\n", "logits "},
      {N "l = linear(n, wide) : f32[T,6]\noutput l\n", "rmsnorm linear "},
      {ROWS "l = linear(n, w, bias) : f32[L,8]\noutput l\n", "rmsnorm linear "},
      {ROWS "l = linear(n, wide) : f32[L,6]\noutput l\noutput n\n", "rmsnorm linear "},
      {ROWS "l = linear(n, wide) : f32[L,2,3]\noutput l\n", "rmsnorm linear "},
      {ROWS "l = linear(n, wide) : f32[L,6]\nm = linear(n, w) : f32[L,8]\noutput l\noutput m\n",
       "rmsnorm linear linear "},
      {"n = rmsnorm(x, norm, logit_rows) eps=1 : f32[L,8]\nl = linear(n, wide) : f32[L,6]\n"
       "output l\n",
       "rmsnorm linear "},
      // Of two patterns that share a linear, the one that ends first.
      {ROWS "m = rmsnorm(x, norm, logit_rows) eps=2 : bf16[L,8]\nr = linear(m, w) : f32[L,8]\n"
            "l = linear(n, w) : f32[L,8]\nz = add(r, l) : f32[L,8]\noutput z\n",
       "logits logits add "},
  };
  check_patterns(patterns, sizeof patterns / sizeof patterns[0]);
}

#define ANGLES "a = rope_angles(positions) values=[1,0.01] : f32[T,2,2]\n"
#define QKV                                                          \
  "q = linear(n, wq) : f32[T,2,4]\nk = linear(n, wk) : f32[T,1,4]\n" \
  "v = linear(n, wv) : f32[T,1,4]\n"
#define ROPE "qr = rope(q, a) : f32[T,2,4]\nkr = rope(k, a) : f32[T,1,4]\n"
#define WRITE "kv.0 = kv_write(kr, v, slots)\n"
#define ATTENTION "t = attention(qr, kv.0, positions, block_tables) scale=0.5 : bf16[T,2,4]\n"
#define PLAIN "rope_angles rmsnorm linear linear linear rope rope kv_write attention "

static void attention_is_fused_as_a_whole_or_not_at_all(void **state) {
  (void)state;
  static const pattern patterns[] = {
      {ANGLES N QKV ROPE WRITE ATTENTION "output t\n", "rope_angles qkv_proj attend "},
      // Another order of independent ops.
      {N "v = linear(n, wv) : f32[T,1,4]\nk = linear(n, wk) : f32[T,1,4]\n" ANGLES
         "kr = rope(k, a) : f32[T,1,4]\n" WRITE "q = linear(n, wq) : f32[T,2,4]\n"
         "qr = rope(q, a) : f32[T,2,4]\n" ATTENTION "output t\n",
       "rope_angles qkv_proj attend "},
      // Outputs in the middle.
      {ANGLES N QKV ROPE WRITE ATTENTION "output t\noutput n\n", PLAIN},
      {ANGLES N QKV ROPE WRITE ATTENTION "output t\noutput v\n", PLAIN},
      {ANGLES N QKV ROPE WRITE ATTENTION "output t\noutput qr\n", PLAIN},
      // Other readers.
      {ANGLES N QKV ROPE WRITE ATTENTION "e = linear(n, w) : f32[T,8]\noutput t\noutput e\n",
       PLAIN "linear "},
      {ANGLES N QKV ROPE WRITE ATTENTION "e = silu_mul(v, v) : f32[T,1,4]\noutput t\noutput e\n",
       PLAIN "silu_mul "},
      {ANGLES N QKV ROPE WRITE ATTENTION
       "t2 = attention(qr, kv.0, positions, block_tables) scale=0.5 : bf16[T,2,4]\n"
       "output t\noutput t2\n",
       PLAIN "attention "},
      // A later reader of the cache is no obstacle: it finds what was written.
      {ANGLES N QKV ROPE WRITE ATTENTION
       "m = rmsnorm(x, norm) eps=1 : bf16[T,8]\nq2 = linear(m, wq) : f32[T,2,4]\n"
       "t2 = attention(q2, kv.0, positions, block_tables) scale=0.5 : bf16[T,2,4]\n"
       "output t\noutput t2\n",
       "rope_angles qkv_proj attend rmsnorm linear attention "},
      // Something touches the cache between kv_write and attention.
      {ANGLES N QKV ROPE WRITE
       "m = rmsnorm(x, norm) eps=1 : bf16[T,8]\nq2 = linear(m, wq) : f32[T,2,4]\n"
       "t2 = attention(q2, kv.0, positions, block_tables) scale=0.5 : bf16[T,2,4]\n" ATTENTION
       "output t\noutput t2\n",
       "rope_angles rmsnorm linear linear linear rope rope kv_write rmsnorm linear attention "
       "attention "},
      // No kv_write.
      {ANGLES N QKV ROPE ATTENTION "e = silu_mul(kr, v) : f32[T,1,4]\noutput t\noutput e\n",
       "rope_angles rmsnorm linear linear linear rope rope attention silu_mul "},
      // Some biases; all of them.
      {ANGLES N "q = linear(n, wq, bias) : f32[T,2,4]\nk = linear(n, wk) : f32[T,1,4]\n"
                "v = linear(n, wv) : f32[T,1,4]\n" ROPE WRITE ATTENTION "output t\n",
       PLAIN},
      {ANGLES N "q = linear(n, wq, bias) : f32[T,2,4]\nk = linear(n, wk, bk) : f32[T,1,4]\n"
                "v = linear(n, wv, bk) : f32[T,1,4]\n" ROPE WRITE ATTENTION "output t\n",
       "rope_angles qkv_proj attend "},
      // Angles of two kinds; v rotated instead of k.
      {ANGLES "a2 = rope_angles(positions) values=[1,0.1] : "
              "f32[T,2,2]\n" N QKV
              "qr = rope(q, a) : f32[T,2,4]\nkr = rope(k, a2) : f32[T,1,4]\n" WRITE ATTENTION
              "output t\n",
       "rope_angles rope_angles rmsnorm linear linear linear rope rope kv_write attention "},
      {ANGLES N QKV "qr = rope(q, a) : f32[T,2,4]\nvr = rope(v, a) : f32[T,1,4]\n"
                    "kv.0 = kv_write(k, vr, slots)\n" ATTENTION "output t\n",
       PLAIN},
      // Two norms of x.
      {ANGLES N
       "m = rmsnorm(x, norm) eps=1 : bf16[T,8]\nq = linear(n, wq) : f32[T,2,4]\n"
       "k = linear(n, wk) : f32[T,1,4]\nv = linear(m, wv) : f32[T,1,4]\n" ROPE WRITE ATTENTION
       "output t\n",
       "rope_angles rmsnorm rmsnorm linear linear linear rope rope kv_write attention "},
      // x is taken over between the norm and the last linear; or behind it.
      {ANGLES N
       "c = embed(tokens, table) : f32[T,8]\nz = add(x, c) : f32[T,8]\n" QKV ROPE WRITE ATTENTION
       "output t\noutput z\n",
       "rope_angles rmsnorm embed add linear linear linear rope rope kv_write attention "},
      {ANGLES N QKV ROPE
       "c = embed(tokens, table) : f32[T,8]\nz = add(x, c) : f32[T,8]\n" WRITE ATTENTION
       "output t\noutput z\n",
       "rope_angles qkv_proj embed add attend "},
  };
  check_patterns(patterns, sizeof patterns / sizeof patterns[0]);
}

static void head_norms_must_agree(void **state) {
  (void)state;
#define NORMED_ROPE "qr = rope(qn, a) : f32[T,2,4]\nkr = rope(kn, a) : f32[T,1,4]\n"
#define PLAIN_NORMED \
  "rope_angles rmsnorm linear linear linear rmsnorm rmsnorm rope rope kv_write attention "
  static const pattern patterns[] = {
      {ANGLES N QKV "qn = rmsnorm(q, head) eps=2 : f32[T,2,4]\n"
                    "kn = rmsnorm(k, head) eps=2 : f32[T,1,4]\n" NORMED_ROPE WRITE ATTENTION
                    "output t\n",
       "rope_angles qkv_proj attend "},
      {ANGLES N QKV "qn = rmsnorm(q, head) eps=2 : f32[T,2,4]\n"
                    "kn = rmsnorm(k, head) eps=3 : f32[T,1,4]\n" NORMED_ROPE WRITE ATTENTION
                    "output t\n",
       PLAIN_NORMED},
      {ANGLES N QKV "qn = rmsnorm(q, head) eps=2 : f32[T,2,4]\nqr = rope(qn, a) : f32[T,2,4]\n"
                    "kr = rope(k, a) : f32[T,1,4]\n" WRITE ATTENTION "output t\n",
       "rope_angles rmsnorm linear linear linear rmsnorm rope rope kv_write attention "},
      {ANGLES N QKV "qn = rmsnorm(q, head) eps=2 : f32[T,2,4]\n"
                    "kn = rmsnorm(k, head) eps=2 : f32[T,1,4]\n"
                    "e = silu_mul(k, v) : f32[T,1,4]\n" NORMED_ROPE
                    "kv.0 = kv_write(kr, e, slots)\n" ATTENTION "output t\n",
       "rope_angles rmsnorm linear linear linear rmsnorm rmsnorm silu_mul rope rope kv_write "
       "attention "},
  };
  check_patterns(patterns, sizeof patterns / sizeof patterns[0]);
}

static void every_failed_allocation_is_reported(void **state) {
  (void)state;
  mgl_graph *graph = build(MGL_FAMILY_QWEN3, MGL_DTYPE_BF16);
  int64_t live = mgl_alloc_live();
  uint64_t failures = 0;
  for (uint64_t n = 1;; n++) {
    mgl_error err = {0};
    mgl_graph *fused = NULL;
    mgl_alloc_fail_nth(n);
    mgl_status status = mgl_fuse_ops(graph, &fused, &err);
    mgl_alloc_fail_nth(0);
    if (status == MGL_OK) {
      mgl_graph_destroy(fused);
      break;
    }
    // mgl_graph_op reports a list of ops that cannot grow as a limit.
    assert_true(status == MGL_ERR_MEMORY || status == MGL_ERR_LIMIT);
    assert_null(fused);
    assert_true(strlen(err.text) > 0);
    assert_int_equal(mgl_alloc_live(), live);
    failures++;
  }
  assert_true(failures > 50);
  assert_int_equal(mgl_alloc_live(), live);
  mgl_graph_destroy(graph);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(every_family_becomes_five_ops_a_layer),
      cmocka_unit_test(layer_norms_are_not_fused),
      cmocka_unit_test(fused_ops_have_the_operands_of_what_they_replace),
      cmocka_unit_test(linear_add_needs_the_linear_alone),
      cmocka_unit_test(gate_up_needs_one_norm_for_two_linears),
      cmocka_unit_test(logits_need_a_norm_of_rows),
      cmocka_unit_test(attention_is_fused_as_a_whole_or_not_at_all),
      cmocka_unit_test(head_norms_must_agree),
      cmocka_unit_test(every_failed_allocation_is_reported),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
