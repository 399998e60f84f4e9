// Linears of bf16 by tile registers (linear_tiles.inc.h): over tiles in C on every processor, and
// the level amx_bf16 where there is AMX, both to the bits of the order that AMX has.
//
// test_linear.c compares the level with a double-precision reference, as all levels.
#include <sys/mman.h>
#include <unistd.h>

#include "tiles_emulated.h"

// The kernel over the tiles of tiles_emulated.h.
#include "kernels/cpu/linear_tiles.inc.h"

typedef struct kernel {
  const char *name;
  void (*pack)(const mgl_pack_args *args);
  void (*linear)(const mgl_linear_args *args, size_t begin, size_t end);
} kernel;

// The order of AMX, without tiles: chains of 16 even and of 16 odd products.
static float expected_sum(const unsigned char *x, const unsigned char *w, size_t k) {
  float sum = 0;
  for (size_t step = 0; step < k; step += 32) {
    float chains[2] = {0, 0};
    for (size_t i = step; i < step + 32; i++) {
      float a = i < k ? element_load(w, MGL_DTYPE_BF16, i) : 0;
      float b = i < k ? element_load(x, MGL_DTYPE_BF16, i) : 0;
      chains[i % 2] = tile_fma(a, b, chains[i % 2]);
    }
    sum = tile_flush(sum + tile_flush(chains[0] + chains[1]));
  }
  return sum;
}

typedef struct problem {
  size_t tokens, rows, k;
  guarded x, w, bias, residual, expected;
} problem;

static void fill_bits(void *data, size_t count, int size) {
  for (size_t i = 0; i < count; i++) {  // about 2^-126 to 2^-95, 1, 2^120
    static const uint16_t exponents[] = {0x0001, 0x1f00, 0x3f80, 0x7b80};
    uint16_t bits = (uint16_t)((random_below(2) << 15 | random_below(0x1000)) + exponents[size]);
    memcpy((char *)data + 2 * i, &bits, sizeof bits);
  }
}

// size: of x, as fill_bits has it; 4: about 1, now and then larger or smaller.
static problem problem_create(size_t tokens, size_t rows, size_t k, int size) {
  problem p = {.tokens = tokens, .rows = rows, .k = k};
  p.x = guarded_create(tokens * k * 2, 2 * random_below(32));
  p.w = guarded_create(rows * k * 2, random_below(64));
  p.bias = guarded_create(rows * sizeof(float), 4);
  p.residual = guarded_create(tokens * rows * sizeof(float), 4);
  p.expected = guarded_create(tokens * rows * sizeof(float), 0);
  fill_random(p.w.data, MGL_DTYPE_BF16, rows * k);
  fill_random(p.bias.data, MGL_DTYPE_F32, rows);
  fill_random(p.residual.data, MGL_DTYPE_F32, tokens * rows);
  if (size < 4) {
    fill_bits(p.x.data, tokens * k, size);
  } else {
    fill_random(p.x.data, MGL_DTYPE_BF16, tokens * k);
  }
  for (size_t t = 0; t < tokens; t++) {
    for (size_t n = 0; n < rows; n++) {
      ((float *)p.expected.data)[t * rows + n] = expected_sum(
          (unsigned char *)p.x.data + t * k * 2, (unsigned char *)p.w.data + n * k * 2, k);
    }
  }
  return p;
}

static void problem_destroy(problem *p) {
  guarded_destroy(&p->x);
  guarded_destroy(&p->w);
  guarded_destroy(&p->bias);
  guarded_destroy(&p->residual);
  guarded_destroy(&p->expected);
}

static mgl_single_way random_single(void) {
  return (mgl_single_way){.in_turn = random_below(2) == 0,
                          .fetch = (mgl_fetch)random_below(MGL_FETCH_COUNT),
                          .ahead = random_below(1 << 16)};
}

static mgl_linear_way random_way(void) {
  static const uint32_t rows[] = {0, 8, 32, 45, 64};
  return (mgl_linear_way){
      .one = random_single(),
      .one_long = random_single(),
      .long_k = random_below(200),
      .pack_tokens = MGL_LINEAR_LEAST_PACKED,
      .many_fetch = random_below(2) == 0,
      .some_rows = rows[random_below(5)],
      .many_rows = rows[random_below(5)],
  };
}

static void check_same(float found, float expected) {
  if (memcmp(&found, &expected, sizeof found) != 0 && !(isnan(found) && isnan(expected))) {
    fail_msg("found %.9g, expected %.9g", (double)found, (double)expected);
  }
}

// All tokens in calls of some, in ranges of rows, packed or not.
static void check_kernel(const kernel *k, const problem *p, bool bias, bool residual) {
  guarded out = guarded_create(p->tokens * p->rows * sizeof(float), 4 * random_below(16));
  for (size_t t = 0, count; t < p->tokens; t += count) {
    count = random_below(2) == 0 ? p->tokens - t : 1 + random_below((uint32_t)(p->tokens - t));
    mgl_linear_way way = random_way();
    mgl_linear_args args = {
        .x = (char *)p->x.data + t * p->k * 2,
        .x_dtype = MGL_DTYPE_BF16,
        .w = p->w.data,
        .w_dtype = MGL_DTYPE_BF16,
        .bias = bias ? p->bias.data : NULL,
        .residual = residual ? (float *)p->residual.data + t * p->rows : NULL,
        .token_count = (uint32_t)count,
        .k = (uint32_t)p->k,
        .out = (float *)out.data + t * p->rows,
        .out_stride = (uint32_t)p->rows,
        .way = &way,
    };
    guarded packed = {0};
    if (random_below(3) != 0) {
      packed = guarded_create(mgl_packed_bytes((uint32_t)count, args.k, MGL_DTYPE_BF16), 0);
      k->pack(&(mgl_pack_args){.x = args.x,
                               .dtype = MGL_DTYPE_BF16,
                               .token_count = (uint32_t)count,
                               .k = args.k,
                               .out = packed.data});
      args.x = packed.data;
      args.packed = true;
    }
    for (size_t n = 0, end; n < p->rows; n = end) {
      end = random_below(2) == 0 ? p->rows : n + 1 + random_below((uint32_t)(p->rows - n));
      args.next_w = random_below(2) == 0 ? p->w.data : NULL;
      args.next_rows = args.next_w == NULL ? 0 : (uint32_t)p->rows;
      k->linear(&args, n, end);
    }
    if (args.packed) {
      guarded_destroy(&packed);
    }
  }
  for (size_t t = 0; t < p->tokens; t++) {
    for (size_t n = 0; n < p->rows; n++) {
      size_t at = t * p->rows + n;
      volatile float sum = ((float *)p->expected.data)[at];
      sum = bias ? sum + ((float *)p->bias.data)[n] : sum;
      sum = residual ? ((float *)p->residual.data)[at] + sum : sum;
      check_same(((float *)out.data)[at], sum);
    }
  }
  guarded_destroy(&out);
}

static void check_shapes(const kernel *k) {
  static const size_t ks[] = {1, 2, 31, 32, 33, 64, 95, 200};
  static const size_t tokens[] = {1, 2, 5, 16, 17, 31, 32, 33, 50, 70};
  static const size_t rows[] = {1, 15, 16, 17, 32, 33, 70, 100};
  for (size_t i = 0; i < sizeof ks / sizeof *ks; i++) {
    for (size_t j = 0; j < sizeof tokens / sizeof *tokens; j++) {
      if (takes_case()) {
        problem p = problem_create(tokens[j], rows[random_below(8)], ks[i], 4);
        check_kernel(k, &p, random_below(2) == 0, random_below(2) == 0);
        problem_destroy(&p);
      }
    }
  }
  for (int size = 0; size < 4; size++) {
    problem p = problem_create(18, 21, 330, size);
    check_kernel(k, &p, false, false);
    problem_destroy(&p);
  }
}

static const kernel emulated = {"tiles in C", pack_tiles, linear_tiles};

static void tiles_in_c_have_the_order_of_amx(void **state) {
  (void)state;
  check_shapes(&emulated);
}

static void amx_has_the_order_of_amx(void **state) {
  (void)state;
#if defined(__x86_64__)
  if (mgl_simd_detected() >= MGL_SIMD_AMX_BF16) {
    const mgl_cpu_kernels *level = mgl_cpu_kernels_for(MGL_SIMD_AMX_BF16);
    check_shapes(&(kernel){level->name, level->pack, level->linear});
    return;
  }
#endif
  print_message("this processor or system has no AMX for bf16: tested over tiles in C only\n");
  skip();
}

// Weights and x end where their page ends, and the next page cannot be read.
static void tiles_read_nothing_behind_the_end(void **state) {
  (void)state;
  size_t page = (size_t)sysconf(_SC_PAGESIZE);
  char *pages = mmap(NULL, 6 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  assert_true(pages != MAP_FAILED);
  assert_int_equal(mprotect(pages + 2 * page, page, PROT_NONE), 0);
  assert_int_equal(mprotect(pages + 5 * page, page, PROT_NONE), 0);
  for (int i = 0; i < 20; i++) {
    problem p = problem_create(1 + random_below(3), 1 + random_below(19), 1 + random_below(100), 4);
    problem moved = p;
    moved.w.data = memcpy(pages + 2 * page - p.w.bytes, p.w.data, p.w.bytes);
    moved.x.data = memcpy(pages + 5 * page - p.x.bytes, p.x.data, p.x.bytes);
    check_kernel(&emulated, &moved, false, false);
    problem_destroy(&p);
  }
  munmap(pages, 6 * page);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(tiles_in_c_have_the_order_of_amx),
      cmocka_unit_test(amx_has_the_order_of_amx),
      cmocka_unit_test(tiles_read_nothing_behind_the_end),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
