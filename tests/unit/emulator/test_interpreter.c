// The interpreter of PTX: small texts, whose results are compared with what C computes, for several
// seeds of the order in which warps run; and what it has to find: accesses of no memory, waits that
// are missing, and those that never end.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "emulator/emulator.h"
#include "emulator/matrix.h"

enum { THREADS = 64, SEEDS = 8, STEPS = 1 << 24, TEXT_BYTES = 16384, FAULT_BYTES = 1024 };

static uint64_t in[4 * THREADS], out[4 * THREADS];
static char fault[FAULT_BYTES];  // of the last run; "": none

static uint64_t draw(void) {
  static uint64_t state = 1;
  state = state * UINT64_C(6364136223846793005) + 1442695040888963407u;
  return state ^ state >> 29;
}

// Runs `body` with %tid in %r0, the addresses of in and out, and of this thread's part of them, in
// %rd0 to %rd3. `before`: what stands in front of the kernel.
static void run_with(const char *before, const char *body, unsigned blocks, unsigned threads,
                     unsigned shared, uint64_t seed) {
  static char text[TEXT_BYTES];
  char why[FAULT_BYTES] = "";
  const unsigned grid[3] = {blocks, 1, 1}, block[3] = {threads, 1, 1};
  void *const addresses[2] = {in, out};
  void *params[2] = {(void *)&addresses[0], (void *)&addresses[1]};
  (void)snprintf(text, sizeof text,
                 ".version 9.0\n.target sm_90a\n.address_size 64\n"
                 ".extern .shared .align 16 .b8 memory[];\n%s\n"
                 ".visible .entry k(.param .u64 k_in, .param .u64 k_out)\n{\n"
                 ".reg .pred %%p<16>;\n.reg .b16 %%rs<16>;\n.reg .b32 %%r<32>;\n"
                 ".reg .b64 %%rd<32>;\n.reg .f32 %%f<16>;\n.reg .f64 %%fd<8>;\n"
                 "mov.u32 %%r0, %%tid.x;\n"
                 "ld.param.u64 %%rd0, [k_in];\nld.param.u64 %%rd1, [k_out];\n"
                 "mul.wide.u32 %%rd2, %%r0, 32;\nadd.s64 %%rd3, %%rd1, %%rd2;\n"
                 "add.s64 %%rd2, %%rd0, %%rd2;\n%s\nret;\n}\n",
                 before, body);
  emu_module *module = emu_module_load(text, why, sizeof why);
  if (module == NULL) {
    fail_msg("%s", why);
  }
  emu_launch *launch =
      emu_launch_begin(emu_module_kernel(module, "k"), grid, block, shared, params, seed);
  const bool ended = emu_launch_step(launch, STEPS);
  const char *found = emu_launch_fault(launch);
  (void)snprintf(fault, sizeof fault, "%s",
                 !ended          ? "it does not end"
                 : found != NULL ? found
                                 : "");
  emu_launch_destroy(launch);
  emu_module_destroy(module);
}

static void run(const char *body, unsigned threads, uint64_t seed) {
  memset(out, 0, sizeof out);
  run_with("", body, 1, threads, 4096, seed);
}

static void must_run(const char *body, unsigned threads, uint64_t seed) {
  run(body, threads, seed);
  if (fault[0] != 0) {
    fail_msg("%s", fault);
  }
}

// --- what a lane does ----------------------------------------------------------------------------

static float as_float(uint64_t bits) {
  return emu_float_of((uint32_t)bits);
}

#define EXPECT(name, result)                                 \
  static uint64_t name(uint64_t a, uint64_t b, uint64_t c) { \
    (void)a, (void)b, (void)c;                               \
    return (uint64_t)(result);                               \
  }
EXPECT(add32, (uint32_t)(a + b))
EXPECT(sub64, a - b)
EXPECT(mad32, (uint32_t)(a *b + c))
EXPECT(wide_signed, (int64_t)(int32_t)a *(int32_t)b)
EXPECT(high, (uint32_t)((uint64_t)(uint32_t)a *(uint32_t)b >> 32))
EXPECT(shift_signed, (uint32_t)((int32_t)a >> ((b & 255) < 31 ? (b & 255) : 31)))
EXPECT(shift_left, (b & 127) < 64 ? a << (b & 127) : 0)
EXPECT(divide_signed, (uint32_t)((int32_t)a / ((int32_t)(b & 1023) + 1)))
EXPECT(remainder64, a % (b | 1))
EXPECT(largest, (int32_t)a > (int32_t)b ? (uint32_t)a : (uint32_t)b)
EXPECT(ones, __builtin_popcountll(a))
EXPECT(leading, (uint32_t)a == 0 ? 32 : __builtin_clz((uint32_t)a))
EXPECT(inserted, ((uint32_t)b & ~0xff0u) | (((uint32_t)a << 4) & 0xff0u))
EXPECT(bytes, (a & 0xff00u) >> 8 | (b & 0xff) << 8 | (a & 0xff) << 16 |
                  ((b >> 31 & 1) != 0 ? 0xff000000u : 0))
EXPECT(less_signed, (int64_t)a < (int64_t)b)
EXPECT(extended, (uint64_t)(int64_t)(int32_t)a)
EXPECT(low_half, a & 0xffff)
EXPECT(sum, emu_bits_of(as_float(a) + as_float(b)))
EXPECT(fused, emu_bits_of(__builtin_fmaf(as_float(a), as_float(b), as_float(c))))
EXPECT(to_integer, (uint32_t)(int32_t)(as_float(a) > 2147483520.0F    ? INT32_MAX
                                       : as_float(a) < -2147483648.0F ? INT32_MIN
                                                                      : (int32_t)as_float(a)))
EXPECT(unordered, !(as_float(a) < as_float(b)))
EXPECT(two_halves, (uint32_t)emu_to_half(EMU_BF16, as_float(a), EMU_NEAREST, false, false) << 16 |
                       emu_to_half(EMU_BF16, as_float(b), EMU_NEAREST, false, false))

#define A32 \
  "ld.global.u32 %r1, [%rd2];\nld.global.u32 %r2, [%rd2+8];\nld.global.u32 %r3, [%rd2+16];\n"
#define A64 "ld.global.v2.u64 {%rd4, %rd5}, [%rd2];\nld.global.u64 %rd6, [%rd2+16];\n"
#define AF \
  "ld.global.f32 %f1, [%rd2];\nld.global.f32 %f2, [%rd2+8];\nld.global.f32 %f3, [%rd2+16];\n"
#define R32 "\ncvt.u64.u32 %rd10, %r10;\n"
#define RF "\nmov.b32 %r10, %f10;" R32
#define RP "\nselp.u64 %rd10, 1, 0, %p1;\n"

static const struct {
  const char *text;
  uint64_t (*expected)(uint64_t a, uint64_t b, uint64_t c);
  bool is_float;
} lane_cases[] = {
    {A32 "add.s32 %r10, %r1, %r2;" R32, add32, false},
    {A64 "sub.s64 %rd10, %rd4, %rd5;", sub64, false},
    {A32 "mad.lo.s32 %r10, %r1, %r2, %r3;" R32, mad32, false},
    {A32 "mul.wide.s32 %rd10, %r1, %r2;", wide_signed, false},
    {A32 "mul.hi.u32 %r10, %r1, %r2;" R32, high, false},
    {A32 "and.b32 %r2, %r2, 255;\nshr.s32 %r10, %r1, %r2;" R32, shift_signed, false},
    {A64 "cvt.u32.u64 %r1, %rd5;\nand.b32 %r1, %r1, 127;\nshl.b64 %rd10, %rd4, %r1;", shift_left,
     false},
    {A32 "and.b32 %r2, %r2, 1023;\nadd.s32 %r2, %r2, 1;\ndiv.s32 %r10, %r1, %r2;" R32,
     divide_signed, false},
    {A64 "or.b64 %rd5, %rd5, 1;\nrem.u64 %rd10, %rd4, %rd5;", remainder64, false},
    {A32 "max.s32 %r10, %r1, %r2;" R32, largest, false},
    {A64 "popc.b64 %r10, %rd4;" R32, ones, false},
    {A32 "clz.b32 %r10, %r1;" R32, leading, false},
    {A32 "bfi.b32 %r10, %r1, %r2, 4, 8;" R32, inserted, false},
    {A32 "prmt.b32 %r10, %r1, %r2, 0xf041;" R32, bytes, false},
    {A64 "setp.lt.s64 %p1, %rd4, %rd5;" RP, less_signed, false},
    {A32 "cvt.s64.s32 %rd10, %r1;", extended, false},
    {A32 "cvt.u16.u32 %rs1, %r1;\ncvt.u64.u16 %rd10, %rs1;", low_half, false},
    {AF "add.rn.f32 %f10, %f1, %f2;" RF, sum, true},
    {AF "fma.rn.f32 %f10, %f1, %f2, %f3;" RF, fused, true},
    {AF "cvt.rzi.s32.f32 %r10, %f1;" R32, to_integer, true},
    {AF "setp.geu.f32 %p1, %f1, %f2;" RP, unordered, true},
    {AF "cvt.rn.bf16x2.f32 %r10, %f1, %f2;" R32, two_halves, true},
};

// All lanes together, those of a predicate, and one alone: ops have a way for each.
static void test_lanes(void **unused) {
  static const char *const ways[] = {
      "", "mov.u64 %rd10, 7;\nand.b32 %r20, %r0, 5;\nsetp.ne.s32 %p9, %r20, 0;\n@%p9 bra skip;\n",
      "mov.u64 %rd10, 7;\nsetp.ne.s32 %p9, %r0, 9;\n@%p9 bra skip;\n"};
  (void)unused;
  for (size_t i = 0; i < sizeof lane_cases / sizeof lane_cases[0]; i++) {
    for (int way = 0; way < 3; way++) {
      char body[2048];
      for (size_t j = 0; j < sizeof in / sizeof in[0]; j++) {
        in[j] = !lane_cases[i].is_float ? draw() >> (draw() % 40)
                                        : emu_bits_of((float)((int64_t)draw() >> 20) * 0x1p-12F);
      }
      (void)snprintf(body, sizeof body, "%s%s\nskip:\nst.global.u64 [%%rd3], %%rd10;", ways[way],
                     lane_cases[i].text);
      must_run(body, THREADS, i);
      for (uint32_t t = 0; t < THREADS; t++) {
        const bool skips = (way == 1 && (t & 5) != 0) || (way == 2 && t != 9);
        const uint64_t expected =
            skips ? 7 : lane_cases[i].expected(in[4 * t], in[4 * t + 1], in[4 * t + 2]);
        if (out[4 * t] != expected) {
          fail_msg("%s: lane %u has 0x%llx, not 0x%llx", lane_cases[i].text, t,
                   (unsigned long long)out[4 * t], (unsigned long long)expected);
        }
      }
    }
  }
}

// --- ways of lanes -------------------------------------------------------------------------------

// Loops of other lengths for each lane, with a branch inside: steps of Collatz from tid + 1.
static void test_loops(void **unused) {
  (void)unused;
  for (uint64_t seed = 0; seed < SEEDS; seed++) {
    must_run(
        "mov.u64 %rd10, 0;\nadd.s32 %r1, %r0, 1;\n"
        "loop:\nsetp.eq.s32 %p1, %r1, 1;\n@%p1 bra done;\nadd.s64 %rd10, %rd10, 1;\n"
        "and.b32 %r2, %r1, 1;\nsetp.eq.s32 %p2, %r2, 0;\n@%p2 bra even;\n"
        "mad.lo.s32 %r1, %r1, 3, 1;\nbra.uni loop;\n"
        "even:\nshr.u32 %r1, %r1, 1;\nbra.uni loop;\n"
        "done:\nbar.warp.sync -1;\nst.global.u64 [%rd3], %rd10;",
        THREADS, seed);
    for (uint32_t t = 0; t < THREADS; t++) {
      uint64_t steps = 0;
      for (uint32_t n = t + 1; n != 1; n = n % 2 == 0 ? n / 2 : 3 * n + 1) {
        steps++;
      }
      assert_int_equal(out[4 * t], steps);
    }
  }
}

// Lane 0 waits for a word that lane 1 of its warp writes, later in the code.
static void test_lanes_that_wait_for_others(void **unused) {
  (void)unused;
  for (uint64_t seed = 0; seed < SEEDS; seed++) {
    must_run(
        "setp.ne.s32 %p1, %r0, 0;\n@%p1 bra writes;\n"
        "spin:\nld.volatile.global.u64 %rd10, [%rd1+64];\nsetp.eq.s64 %p2, %rd10, 0;\n"
        "@%p2 bra spin;\nst.global.u64 [%rd1], %rd10;\nbra.uni end;\n"
        "writes:\nsetp.ne.s32 %p1, %r0, 1;\n@%p1 bra end;\nst.global.u64 [%rd1+64], 5;\nend:\n",
        32, seed);
    assert_int_equal(out[0], 5);
  }
}

static void test_shuffles(void **unused) {
  static const char *const kinds[] = {"bfly.b32 %r10|%p1, %r1, 5, 31", "up.b32 %r10|%p1, %r1, 3, 0",
                                      "down.b32 %r10|%p1, %r1, 3, 0x181f",
                                      "idx.b32 %r10|%p1, %r1, 2, 0x181f"};
  (void)unused;
  for (uint32_t kind = 0; kind < 4; kind++) {
    char body[512];
    (void)snprintf(body, sizeof body,
                   "mul.lo.s32 %%r1, %%r0, 10;\nshfl.sync.%s, -1;\ncvt.u64.u32 %%rd10, %%r10;\n"
                   "st.global.u64 [%%rd3], %%rd10;\nselp.u64 %%rd11, 1, 0, %%p1;\n"
                   "st.global.u64 [%%rd3+8], %%rd11;",
                   kinds[kind]);
    must_run(body, 32, 0);
    for (uint32_t t = 0; t < 32; t++) {
      const uint32_t eight = t & ~7u;  // segments of 8 lanes
      const uint32_t from[] = {t ^ 5, t - 3, t + 3, eight + 2};
      const bool there[] = {true, t >= 3, (t & 7) + 3 < 8, true};
      assert_int_equal(out[4 * t], 10 * (there[kind] ? from[kind] : t));
      assert_int_equal(out[4 * t + 1], there[kind]);
    }
  }
}

static void test_votes(void **unused) {
  (void)unused;
  must_run(
      "setp.gt.u32 %p1, %r0, 20;\nvote.sync.ballot.b32 %r1, %p1, -1;\n"
      "vote.sync.any.pred %p2, %p1, -1;\nvote.sync.all.pred %p3, %p1, -1;\n"
      "redux.sync.min.u32 %r2, %r0, -1;\nadd.s32 %r3, %r0, 7;\nredux.sync.max.u32 %r3, %r3, -1;\n"
      "elect.sync _|%p4, 0xfffffff0;\nselp.u32 %r4, 1, 0, %p2;\nselp.u32 %r5, 2, 0, %p3;\n"
      "selp.u32 %r6, 4, 0, %p4;\nor.b32 %r4, %r4, %r5;\nor.b32 %r4, %r4, %r6;\n"
      "st.global.v2.u32 [%rd3], {%r1, %r2};\nst.global.v2.u32 [%rd3+8], {%r3, %r4};",
      32, 0);
  for (uint32_t t = 0; t < 32; t++) {
    assert_int_equal(out[4 * t], 0xffe00000);
    assert_int_equal(out[4 * t + 1], 38 | (uint64_t)(t == 4 ? 5 : 1) << 32);
  }
}

// A function with local memory, called at two places by lanes that went apart.
static void test_calls(void **unused) {
  static const char function[] =
      ".func (.param .b64 func_retval0) f(.param .b32 f_param_0, .param .b64 f_param_1)\n{\n"
      ".local .align 8 .b8 depot[16];\n.reg .b64 %x<8>;\n.reg .b32 %y<4>;\n.reg .pred %q;\n"
      "mov.u64 %x1, depot;\ncvta.local.u64 %x2, %x1;\nld.param.u32 %y1, [f_param_0];\n"
      "ld.param.u64 %x3, [f_param_1];\nst.local.u32 [%x1+4], %y1;\nst.u64 [%x2+8], %x3;\n"
      "ld.u32 %y2, [%x2+4];\nld.local.u64 %x4, [%x1+8];\ncvt.u64.u32 %x5, %y2;\n"
      "mad.lo.s64 %x6, %x4, 1000, %x5;\nst.param.b64 [func_retval0+0], %x6;\nret;\n}\n";
  static const char body[] =
      "and.b32 %r1, %r0, 1;\nsetp.eq.s32 %p1, %r1, 0;\n@%p1 bra other;\n"
      "{ .param .b32 param0;\nst.param.b32 [param0+0], %r0;\n.param .b64 param1;\n"
      "st.param.b64 [param1+0], 1;\n.param .b64 retval0;\ncall.uni (retval0),\nf,\n(\nparam0,\n"
      "param1\n);\nld.param.b64 %rd10, [retval0+0];\n}\nbra.uni end;\nother:\n"
      "{ .param .b32 param0;\nst.param.b32 [param0+0], %r0;\n.param .b64 param1;\n"
      "st.param.b64 [param1+0], 2;\n.param .b64 retval0;\ncall.uni (retval0), f, (param0, "
      "param1);\n"
      "ld.param.b64 %rd10, [retval0+0];\n}\nend:\nst.global.u64 [%rd3], %rd10;";
  (void)unused;
  for (uint64_t seed = 0; seed < SEEDS; seed++) {
    run_with(function, body, 1, THREADS, 0, seed);
    assert_string_equal(fault, "");
    for (uint32_t t = 0; t < THREADS; t++) {
      assert_int_equal(out[4 * t], t % 2 != 0 ? 1000 + t : 2000 + t);
    }
  }
}

// --- blocks --------------------------------------------------------------------------------------

#define EXCHANGE                                                                              \
  "shl.b32 %r1, %r0, 2;\nmov.u32 %r2, memory;\nadd.s32 %r3, %r2, %r1;\nst.shared.u32 [%r3], " \
  "%r0;\n"                                                                                    \
  "%s\nsub.s32 %r4, 252, %r1;\nadd.s32 %r4, %r4, %r2;\nld.shared.u32 %r10, [%r4];"            \
  "\ncvt.u64.u32 %rd10, %r10;\nst.global.u64 [%rd3], %rd10;"

// Whether every thread finds what the last but one wrote, for all seeds.
static uint32_t count_good(const char *format, const char *wait) {
  char body[2048];
  uint32_t good = 0;
  (void)snprintf(body, sizeof body, "%s", "");
  const char *at = strstr(format, "%s");
  (void)snprintf(body, sizeof body, "%.*s%s%s", (int)(at - format), format, wait, at + 2);
  for (uint64_t seed = 0; seed < 4 * (uint64_t)SEEDS; seed++) {
    bool all = true;
    must_run(body, THREADS, seed);
    for (uint32_t t = 0; t < THREADS; t++) {
      all = all && out[4 * t] == THREADS - 1 - t;
    }
    good += all ? 1 : 0;
  }
  return good;
}

static void test_barriers(void **unused) {
  (void)unused;
  assert_int_equal(count_good(EXCHANGE, "bar.sync 0;"), 4 * SEEDS);
  assert_int_equal(count_good(EXCHANGE, "bar.sync 3, 64;"), 4 * SEEDS);
  assert_true(count_good(EXCHANGE, "") < 4 * SEEDS);
}

static void test_barrier_that_reduces(void **unused) {
  (void)unused;
  must_run(
      "setp.eq.s32 %p1, %r0, 40;\nbar.red.or.pred %p2, 1, 64, %p1;\n"
      "setp.ne.s32 %p1, %r0, 40;\nbar.red.and.pred %p3, 1, 64, %p1;\n"
      "selp.u32 %r1, 1, 0, %p2;\nselp.u32 %r2, 1, 0, %p3;\nst.global.v2.u32 [%rd3], {%r1, %r2};",
      THREADS, 3);
  for (uint32_t t = 0; t < THREADS; t++) {
    assert_int_equal(out[4 * t], 1);
  }
}

#define BULK                                                                                       \
  "mov.u32 %r2, memory;\nadd.s32 %r3, %r2, 1024;\nsetp.ne.s32 %p1, %r0, 0;\n@%p1 bra all;\n"       \
  "mbarrier.init.shared::cta.b64 [%r3], 1;\n"                                                      \
  "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r3], 512;\n"                                     \
  "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r2], [%rd0], 512, [%r3];\n" \
  "all:\nbar.sync 0;\n%s\nsub.s32 %r4, 63, %r0;\nshl.b32 %r4, %r4, 3;\nadd.s32 %r4, %r4, %r2;\n"   \
  "ld.shared.u64 %rd10, [%r4];\nst.global.u64 [%rd3], %rd10;"

static void test_bulk_copies(void **unused) {
  static const char wait[] =
      "wait:\nmbarrier.try_wait.parity.shared::cta.b64 %p2, [%r3], 0;\n@!%p2 bra wait;\n";
  static const char test[] =
      "wait:\nmbarrier.test_wait.parity.shared::cta.b64 %p2, [%r3], 0;\n@!%p2 bra wait;\n";
  (void)unused;
  for (uint32_t i = 0; i < THREADS; i++) {
    in[i] = i;
  }
  assert_int_equal(count_good(BULK, wait), 4 * SEEDS);
  assert_int_equal(count_good(BULK, test), 4 * SEEDS);
  assert_true(count_good(BULK, "") < 4 * SEEDS);
}

#define COPIES                                                                                  \
  "mov.u32 %r2, memory;\nand.b32 %r5, %r0, 31;\nshl.b32 %r1, %r5, 4;\nadd.s32 %r3, %r2, %r1;\n" \
  "cvt.u64.u32 %rd4, %r1;\nadd.s64 %rd4, %rd4, %rd0;\n"                                         \
  "cp.async.cg.shared.global [%r3], [%rd4], 16;\ncp.async.commit_group;\n%s\nbar.sync 0;\n"     \
  "sub.s32 %r4, 63, %r0;\nshl.b32 %r4, %r4, 3;\nadd.s32 %r4, %r4, %r2;\n"                       \
  "ld.shared.u64 %rd10, [%r4];\nst.global.u64 [%rd3], %rd10;"

static void test_copies(void **unused) {
  (void)unused;
  for (uint32_t i = 0; i < THREADS; i++) {
    in[i] = i;
  }
  assert_int_equal(count_good(COPIES, "cp.async.wait_group 0;"), 4 * SEEDS);
  assert_int_equal(count_good(COPIES, "cp.async.wait_all;"), 4 * SEEDS);
  assert_true(count_good(COPIES, "cp.async.wait_group 1;") < 4 * SEEDS);
}

static void test_atomics(void **unused) {
  (void)unused;
  memset(out, 0, sizeof out);
  run_with("",
           "atom.global.add.u64 %rd4, [%rd1], 3;\nred.relaxed.gpu.global.max.u64 [%rd1+8], %rd4;\n"
           "atom.acq_rel.gpu.global.inc.u32 %r1, [%rd1+16], 9;\nmov.u32 %r2, memory;\n"
           "retry:\nld.relaxed.gpu.global.u32 %r3, [%rd1+24];\nadd.s32 %r4, %r3, 1;\n"
           "atom.global.cas.b32 %r5, [%rd1+24], %r3, %r4;\nsetp.ne.s32 %p1, %r5, %r3;\n"
           "@%p1 bra retry;\n",
           7, THREADS, 64, 5);
  assert_string_equal(fault, "");
  assert_int_equal(out[0], 3 * 7 * THREADS);
  assert_int_equal(out[1], 3 * (7 * THREADS - 1));
  assert_int_equal(out[2], 7 * THREADS % 10);
  assert_int_equal(out[3], 7 * THREADS);
}

// --- what is wrong -------------------------------------------------------------------------------

static void test_faults(void **unused) {
  static const struct {
    const char *body, *said;
  } cases[] = {
      {"ld.global.u32 %r1, [%rd0+1048576];", "a load of 4 bytes"},
      {"mov.u64 %rd4, 64;\nst.u64 [%rd4], %rd4;", "a store of 8 bytes at 0x40, which is no memory"},
      {"ld.global.v2.u64 {%rd4, %rd5}, [%rd2+8];", "is not aligned"},
      {"mov.u32 %r1, memory;\nld.shared.u32 %r2, [%r1+4096];", "of shared memory"},
      {"mov.u32 %r1, 0;\nst.shared.u32 [%r1], %r1;", "a store of 4 bytes at 0 of"},
      {"mov.u32 %r1, memory;\nmbarrier.arrive.shared::cta.b64 _, [%r1];", "no mbarrier"},
      {"mov.u32 %r1, memory;\nsetp.ne.s32 %p1, %r0, 0;\n@%p1 bra end;\n"
       "mbarrier.init.shared::cta.b64 [%r1], 1;\n"
       "wait:\nmbarrier.try_wait.parity.shared::cta.b64 %p2, [%r1], 0;\n@!%p2 bra wait;\nend:",
       "it does not end"},
      {"setp.gt.u32 %p1, %r0, 31;\n@%p1 bra end;\nbar.sync 1, 64;\nend:", "no warp can go on"},
      {"bar.sync 1, 48;", "barrier 1 of 48 threads"},
      {"setp.gt.u32 %p1, %r0, 3;\n@%p1 bra end;\nbar.warp.sync 15;\nshfl.sync.idx.b32 %r1, %r0, 9, "
       "31, "
       "15;\nend:",
       "asks lane 9"},
      {"setp.gt.u32 %p1, %r0, 3;\n@%p1 bra other;\nbar.warp.sync -1;\nbra.uni end;\n"
       "other:\nbar.warp.sync -1;\nend:",
       "which do not come"},
      {"trap;", "trap"},
  };
  (void)unused;
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    run(cases[i].body, THREADS, i);
    if (strstr(fault, cases[i].said) == NULL) {
      fail_msg("%s: \"%s\" says nothing of \"%s\"", cases[i].body, fault, cases[i].said);
    }
  }
}

static void test_unknown(void **unused) {
  char why[FAULT_BYTES] = "";
  (void)unused;
  assert_null(
      emu_module_load(".version 9.0\n.visible .entry k()\n{\n.reg .b32 %r<2>;\n"
                      "frobnicate.u32 %r0, %r1;\nret;\n}\n",
                      why, sizeof why));
  assert_non_null(strstr(why, "PTX line 5"));
  assert_null(
      emu_module_load(".version 9.0\n.visible .entry k()\n{\nbra nowhere;\n}\n", why, sizeof why));
  assert_non_null(strstr(why, "no label nowhere"));
}

static int add_memory(void **unused) {
  (void)unused;
  emu_memory_add(in, sizeof in);
  emu_memory_add(out, sizeof out);
  return 0;
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_lanes),
      cmocka_unit_test(test_loops),
      cmocka_unit_test(test_lanes_that_wait_for_others),
      cmocka_unit_test(test_shuffles),
      cmocka_unit_test(test_votes),
      cmocka_unit_test(test_calls),
      cmocka_unit_test(test_barriers),
      cmocka_unit_test(test_barrier_that_reduces),
      cmocka_unit_test(test_bulk_copies),
      cmocka_unit_test(test_copies),
      cmocka_unit_test(test_atomics),
      cmocka_unit_test(test_faults),
      cmocka_unit_test(test_unknown),
  };
  return cmocka_run_group_tests(tests, add_memory, NULL);
}
