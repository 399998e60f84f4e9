// Tiles of every op against hand-written regions, and properties of random programs: the tiles of
// an op write its output exactly once, whatever the cut.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/text.h"
#include "graph/balance.h"
#include "support/expert_owner.h"
#include "support/programs.h"
#include "support/random_program.h"
#include "task/tile.h"

// T = 4. D = 32, H = 4, HKV = 2, HD = 16, F = 48, V = 40.
static const char program_text[] =
    "program tiles\n"
    "input tokens i32[T]\n"
    "input positions i32[T]\n"
    "input slots i32[T]\n"
    "input tables i32[R]\n"
    "input rows i32[L]\n"
    "weight table bf16[40,32]\n"
    "weight norm bf16[32]\n"
    "weight hnorm bf16[16]\n"
    "weight wq bf16[64,32]\n"
    "weight wk bf16[32,32]\n"
    "weight wv bf16[32,32]\n"
    "weight bq bf16[64]\n"
    "weight bk bf16[32]\n"
    "weight bv bf16[32]\n"
    "weight wo bf16[32,64]\n"
    "weight wg bf16[48,32]\n"
    "weight wu bf16[48,32]\n"
    "weight wd bf16[32,48]\n"
    "kv kv0 bf16[2,16]\n"
    "kv kv1 bf16[2,16]\n"
    "angles = rope_angles(positions) values=[1,0.316228,0.1,0.001,0.001,0.001,0.001,0.001] : "
    "f32[T,8,2]\n"
    "x0 = embed(tokens, table) : f32[T,32]\n"
    "n = rmsnorm(x0, norm) eps=0.001 : bf16[T,32]\n"
    "q = linear(n, wq, bq) : f32[T,4,16]\n"
    "k = linear(n, wk) : f32[T,2,16]\n"
    "v = linear(n, wv) : f32[T,2,16]\n"
    "qn = rmsnorm(q, hnorm) eps=0.001 : f32[T,4,16]\n"
    "qr = rope(qn, angles) : f32[T,4,16]\n"
    "kv0 = kv_write(k, v, slots)\n"
    "att = attention(qr, kv0, positions, tables) scale=0.25 : bf16[T,4,16]\n"
    "x1 = linear_add(x0, att, wo) : f32[T,32]\n"
    "qkv = qkv_proj(x1, norm, wq, wk, wv, bq, bk, bv) eps=0.001 : f32[T,8,16]\n"
    "att2 = attend(qkv, kv1, angles, positions, slots, tables, hnorm, hnorm) eps=0.001 scale=0.25 "
    ": "
    "bf16[T,4,16]\n"
    "x2 = linear_add(x1, att2, wo) : f32[T,32]\n"
    "g = linear(x2, wg) : f32[T,48]\n"
    "u = linear(x2, wu) : f32[T,48]\n"
    "a = silu_mul(g, u) : bf16[T,48]\n"
    "d = linear(a, wd) : f32[T,32]\n"
    "x3 = add(x2, d) : f32[T,32]\n"
    "gu = gate_up(x3, norm, wg, wu) eps=0.001 : bf16[T,48]\n"
    "x4 = linear_add(x3, gu, wd) : f32[T,32]\n"
    "last = rmsnorm(x4, norm, rows) eps=0.001 : bf16[L,32]\n"
    "l0 = linear(last, table) : f32[L,40]\n"
    "l1 = logits(x4, norm, rows, table) eps=0.001 : f32[L,40]\n"
    "output l0\n"
    "output l1\n";

// units of the op, a tile of it, and what that tile reads and writes: "tensor[rows,columns]".
static const struct {
  const char *output;
  uint32_t strides, units, grain, begin, end;
  const char *reads, *writes;
} cases[] = {
    {"angles", 1, 4, 1, 1, 3, "", "angles[1:3,0:16]"},
    {"x0", 1, 4, 1, 1, 3, "", "x0[1:3,0:32]"},
    {"n", 1, 4, 1, 0, 2, "x0[0:2,0:32]", "n[0:2,0:32]"},
    {"q", 1, 64, 16, 16, 48, "n[0:4,0:32]", "q[0:4,16:48]"},
    {"qn", 1, 16, 1, 2, 3, "q[0:1,32:48]", "qn[0:1,32:48]"},
    {"qn", 1, 16, 1, 4, 12, "q[1:3,0:64]", "qn[1:3,0:64]"},
    {"qn", 1, 16, 1, 3, 13, "q[0:1,48:64] q[1:3,0:64] q[3:4,0:16]",
     "qn[0:1,48:64] qn[1:3,0:64] qn[3:4,0:16]"},
    {"qn", 1, 16, 1, 6, 9, "q[1:2,32:64] q[2:3,0:16]", "qn[1:2,32:64] qn[2:3,0:16]"},
    {"qr", 1, 4, 1, 1, 2, "qn[1:2,0:64] angles[1:2,0:16]", "qn[1:2,0:64] qr[1:2,0:64]"},
    {"kv0", 1, 4, 1, 1, 2, "k[1:2,0:32] v[1:2,0:32]", "kv0[0:2,0:1]"},
    {"att", 2, 4, 1, 1, 2, "qr[0:4,0:32] kv0[0:1,0:1]", "att[0:4,0:32]"},
    {"att", 2, 4, 1, 1, 3, "qr[0:4,0:64] kv0[0:2,0:1]", "att[0:4,0:64]"},
    {"x1", 1, 32, 16, 16, 32, "x0[0:4,16:32] att[0:4,0:64]", "x0[0:4,16:32] x1[0:4,16:32]"},
    {"qkv", 1, 128, 16, 48, 112, "x1[0:4,0:32]", "qkv[0:4,48:112]"},
    {"att2", 1, 2, 1, 1, 2,
     "qkv[0:4,32:64] qkv[0:4,80:96] qkv[0:4,112:128] kv1[1:2,0:1] angles[0:4,0:16]",
     "kv1[1:2,0:1] att2[0:4,32:64]"},
    {"a", 1, 48, 16, 0, 16, "g[0:4,0:16] u[0:4,0:16]", "a[0:4,0:16]"},
    {"x3", 1, 32, 16, 16, 32, "x2[0:4,16:32] d[0:4,16:32]", "x2[0:4,16:32] x3[0:4,16:32]"},
    {"gu", 1, 48, 16, 32, 48, "x3[0:4,0:32]", "gu[0:4,32:48]"},
    {"last", 1, 4, 1, 1, 2, "x4[0:4,0:32]", "last[1:2,0:32]"},
    {"l0", 1, 40, 16, 32, 40, "last[0:4,0:32]", "l0[0:4,32:40]"},
    {"l1", 1, 40, 16, 0, 32, "x4[0:4,0:32]", "l1[0:4,0:32]"},
};

static const mgl_op *find_op(const mgl_graph *g, const char *output) {
  uint32_t tensor = mgl_graph_find(g, output);
  for (size_t i = 0; i < g->op_count; i++) {
    if (g->ops[i].output == tensor) {
      return &g->ops[i];
    }
  }
  fail_msg("no op writes %s", output);
  return NULL;
}

static void print_regions(const mgl_graph *g, const mgl_region *regions, uint32_t count,
                          mgl_text *out) {
  mgl_text_clear(out);
  for (uint32_t i = 0; i < count; i++) {
    const mgl_region *r = &regions[i];
    mgl_text_format(out, "%s%s[%u:%u,%u:%u]", i == 0 ? "" : " ", g->tensors[r->tensor].name,
                    r->row_begin, r->row_end, r->column_begin, r->column_end);
  }
}

static void tiles_touch_the_regions_of_their_op(void **state) {
  (void)state;
  mgl_graph *g = parse_program(program_text);
  mgl_text text = {0};
  mgl_text_append_string(&text, "");
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    const mgl_op *op = find_op(g, cases[i].output);
    mgl_tile_access access;
    assert_int_equal(mgl_tile_units(g, op, 4, cases[i].strides), cases[i].units);
    assert_int_equal(mgl_tile_grain(op, MGL_TARGET_CPU), cases[i].grain);
    mgl_tile_regions(g, op, 4, cases[i].strides, cases[i].begin, cases[i].end, &access);
    print_regions(g, access.reads, access.read_count, &text);
    assert_string_equal(text.data, cases[i].reads);
    print_regions(g, access.writes, access.write_count, &text);
    assert_string_equal(text.data, cases[i].writes);
  }
  mgl_text_free(&text);
  mgl_graph_destroy(g);
}

static void costs_are_the_bytes_moved(void **state) {
  (void)state;
  mgl_graph *g = parse_program(program_text);
  // q, columns 16 to 48: x 4*32 bf16, w 32 rows of 32 bf16, bias 32 bf16, out 4*32 f32.
  const mgl_op *q = find_op(g, "q");
  assert_int_equal(mgl_tile_cost(g, q, 4, 1, 16, 48), 256 + 2048 + 64 + 512);
  assert_int_equal(mgl_tile_weight_bytes(g, q, 4, 1, 16, 48), 2048 + 64);
  // embed: a row of the table and of the result per token.
  assert_int_equal(mgl_tile_cost(g, find_op(g, "x0"), 4, 1, 1, 3), 2 * 32 * 2 + 2 * 32 * 4);
  // qkv_proj, columns 48 to 112: 16 rows of wq, 32 of wk, 16 of wv, with biases; norm; x; out.
  assert_int_equal(mgl_tile_cost(g, find_op(g, "qkv"), 4, 1, 48, 112),
                   64 * 64 + 64 * 2 + 64 + 4 * 32 * 4 + 4 * 64 * 4);
  // attention, one head of one of two strides: 2 sequences of the modelled context; q and result.
  assert_int_equal(mgl_tile_cost(g, find_op(g, "att"), 4, 2, 0, 1),
                   2 * MGL_TILE_MODEL_CONTEXT * 2 * 16 * 2 + 4 * 32 * 4 + 4 * 32 * 2);
  // A layer's weights are counted once by its tiles together.
  const mgl_op *gu = find_op(g, "gu");
  uint64_t norm = 64;
  assert_int_equal(
      mgl_tile_weight_bytes(g, gu, 4, 1, 0, 16) + mgl_tile_weight_bytes(g, gu, 4, 1, 16, 48) - norm,
      mgl_tile_weight_bytes(g, gu, 4, 1, 0, 48));
  mgl_graph_destroy(g);
}

// Writes of the output, tile by tile, into a map of its elements. Where data say what a tile writes of
// the union that it declares, by routes that `seed` draws.
static void count_writes(const mgl_graph *g, const mgl_op *op, uint32_t tokens, uint32_t strides,
                         uint32_t step, uint64_t seed, unsigned char *map) {
  const bool by_data = mgl_op_shares_by_data(op);
  expert_owner owner;
  if (by_data) {
    expert_owner_init(&owner, g, op, tokens, seed);
  }
  uint64_t columns = mgl_tensor_row_elements(&g->tensors[op->output]);
  uint32_t units = mgl_tile_units(g, op, tokens, strides);
  for (uint32_t begin = 0; begin < units; begin += step) {
    uint32_t end = begin + step < units ? begin + step : units;
    mgl_tile_access access;
    mgl_tile_regions(g, op, tokens, strides, begin, end, &access);
    for (uint32_t i = 0; i < access.write_count; i++) {
      const mgl_region *r = &access.writes[i];
      for (uint32_t row = r->row_begin; r->tensor == op->output && row < r->row_end; row++) {
        for (uint32_t column = r->column_begin; column < r->column_end; column++) {
          const uint32_t unit = by_data ? expert_owner_unit(&owner, row, column) : begin;
          if (begin <= unit && unit < end) {
            map[row * columns + column]++;
          }
        }
      }
    }
  }
}

static void tiles_write_every_element_once(void **state) {
  (void)state;
  uint32_t by_data = 0;
  for (uint64_t seed = 0; seed < 40; seed++) {
    random_source random = {seed};
    mgl_graph *g = random_program(seed, 25);
    for (size_t i = 0; i < g->op_count; i++) {
      const mgl_op *op = &g->ops[i];
      uint32_t tokens = 1 + random_below(&random, 9);
      const mgl_dim_values dims = {tokens, tokens, tokens};
      uint64_t elements = mgl_tensor_elements(&g->tensors[op->output], &dims);
      if (g->tensors[op->output].placement != MGL_PLACE_ACTIVATION) {
        continue;
      }
      unsigned char *map = calloc(elements, 1);
      assert_non_null(map);
      const uint32_t step = 1 + random_below(&random, 40);
      count_writes(g, op, tokens, 1, step, seed, map);
      by_data += mgl_op_shares_by_data(op);
      for (uint64_t e = 0; e < elements; e++) {
        assert_int_equal(map[e], 1);
      }
      free(map);
    }
    mgl_graph_destroy(g);
  }
  assert_true(by_data > 10);
}

// What a tile is said to have of the line of experts is what the inverse says, whatever the routes.
static void shares_are_those_of_their_owners(void **state) {
  (void)state;
  uint32_t looked = 0;
  for (uint64_t seed = 0; seed < 60; seed++) {
    random_source random = {seed};
    mgl_graph *g = random_program(seed, 25);
    for (size_t i = 0; i < g->op_count; i++) {
      const mgl_op *op = &g->ops[i];
      const mgl_balance balance = mgl_op_balance(op);
      if (!mgl_op_shares_by_data(op) || balance == MGL_BALANCE_DYNAMIC) {
        continue;
      }
      expert_owner owner;
      const uint32_t tokens = 1 + random_below(&random, 9);
      expert_owner_init(&owner, g, op, tokens, seed);
      const uint32_t step = 16 * (1 + random_below(&random, 3));
      const bool all = balance == MGL_BALANCE_STATIC;
      for (uint32_t begin = 0; begin < owner.columns; begin += step) {
        const uint32_t end = begin + step < owner.columns ? begin + step : owner.columns;
        for (uint32_t row = 0; row < tokens * owner.slots; row++) {
          const uint32_t expert = expert_owner_expert(&owner, row);
          const mgl_expert_share share = mgl_expert_share_of(balance, owner.columns, begin, end,
                                                             all ? expert : owner.place[expert],
                                                             all ? owner.experts : owner.chosen);
          for (uint32_t column = 0; column < owner.columns; column++) {
            const uint32_t unit = expert_owner_unit(&owner, row, column);
            assert_int_equal(share.begin <= column && column < share.end,
                             begin <= unit && unit < end);
            looked++;
          }
        }
      }
    }
    mgl_graph_destroy(g);
  }
  assert_true(looked > 10000);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(tiles_touch_the_regions_of_their_op),
      cmocka_unit_test(costs_are_the_bytes_moved),
      cmocka_unit_test(tiles_write_every_element_once),
      cmocka_unit_test(shares_are_those_of_their_owners),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
