// A warp that runs, its registers as rows of values, and ops that are more than a loop over lanes:
// warp.c has the loop over ops, warp_ops.c those.
#ifndef TESTS_EMULATOR_WARP_STATE_H
#define TESTS_EMULATOR_WARP_STATE_H

#include <string.h>

#include "emulator/machine.h"

typedef uint16_t u16;
typedef int16_t s16;
typedef uint32_t u32;
typedef int32_t s32;
typedef float f32;
typedef uint64_t u64;
typedef int64_t s64;
typedef double f64;

typedef uint32_t row_u16, row_s16, row_u32, row_s32, row_f32;
typedef uint64_t row_u64, row_s64, row_f64;

static inline u16 get_u16(uint32_t x) {
  return (u16)x;
}
static inline s16 get_s16(uint32_t x) {
  return (s16)x;
}
static inline u32 get_u32(uint32_t x) {
  return x;
}
static inline s32 get_s32(uint32_t x) {
  return (s32)x;
}
static inline f32 get_f32(uint32_t x) {
  f32 value;
  memcpy(&value, &x, sizeof value);
  return value;
}
static inline u64 get_u64(uint64_t x) {
  return x;
}
static inline s64 get_s64(uint64_t x) {
  return (s64)x;
}
static inline f64 get_f64(uint64_t x) {
  f64 value;
  memcpy(&value, &x, sizeof value);
  return value;
}
static inline uint32_t put_u16(u16 x) {
  return x;
}
static inline uint32_t put_s16(s16 x) {
  return (u16)x;
}
static inline uint32_t put_u32(u32 x) {
  return x;
}
static inline uint32_t put_s32(s32 x) {
  return (u32)x;
}
static inline uint32_t put_f32(f32 x) {
  uint32_t bits;
  memcpy(&bits, &x, sizeof bits);
  return x == x ? bits : 0x7fffffff;
}
static inline uint64_t put_u64(u64 x) {
  return x;
}
static inline uint64_t put_s64(s64 x) {
  return (u64)x;
}
static inline uint64_t put_f64(f64 x) {
  uint64_t bits;
  memcpy(&bits, &x, sizeof bits);
  return x == x ? bits : 0x7fffffffffffffff;
}

#define ALL UINT32_MAX
// Lanes do not depend on each other: gcc shall make vectors of them. Clang may find that by itself.
#ifdef __clang__
#define EACH_LANE_ALONE
#else
#define EACH_LANE_ALONE _Pragma("GCC ivdep")
#endif
// Does it for the lanes of a mask, lane by lane or all at once.
#define EACH(mask, ...)                                           \
  do {                                                            \
    if ((mask) == ALL) {                                          \
      EACH_LANE_ALONE for (uint32_t i = 0; i < 32; i++) {         \
        __VA_ARGS__                                               \
      }                                                           \
    } else {                                                      \
      for (uint32_t left = (mask); left != 0; left &= left - 1) { \
        const uint32_t i = (uint32_t)__builtin_ctz(left);         \
        __VA_ARGS__                                               \
      }                                                           \
    }                                                             \
  } while (0)
#define FEW(mask, ...)                                        \
  for (uint32_t left = (mask); left != 0; left &= left - 1) { \
    const uint32_t i = (uint32_t)__builtin_ctz(left);         \
    __VA_ARGS__                                               \
  }

// A warp that runs: the group of lanes that does, and where.
typedef struct emu_state {
  emu_warp *w;
  emu_launch *l;
  const emu_module *m;
  uint32_t act, pc, frame;
  uint8_t *bases[EMU_BASES];
} emu_state;

static inline uint8_t *row(const emu_state *s, emu_row r) {
  return s->bases[r & 3] + (r & ~3u);
}

static inline uint32_t *words(const emu_state *s, emu_row r) {
  return (uint32_t *)(void *)row(s, r);
}

static inline uint64_t *longs(const emu_state *s, emu_row r) {
  return (uint64_t *)(void *)row(s, r);
}

static inline uint32_t first_lane(uint32_t mask) {
  return (uint32_t)__builtin_ctz(mask);
}

static inline void set_predicate(emu_state *s, emu_row r, uint32_t lanes, uint32_t value) {
  uint32_t *predicate = words(s, r);
  *predicate = (*predicate & ~lanes) | (value & lanes);
}

// --- warp_ops.c ----------------------------------------------------------------------------------

void emu_do_load(emu_state *s, const emu_op *op, uint32_t lanes);
void emu_do_store(emu_state *s, const emu_op *op, uint32_t lanes);
bool emu_is_poll(emu_state *s, const emu_op *op, uint32_t lanes);
void emu_do_load_call(emu_state *s, const emu_op *op, uint32_t lanes);
void emu_do_store_call(emu_state *s, const emu_op *op, uint32_t lanes);
void emu_do_pack(emu_state *s, const emu_op *op, uint32_t lanes);
void emu_do_atomic(emu_state *s, const emu_op *op, uint32_t lanes);
void emu_do_shuffle(emu_state *s, const emu_op *op);
void emu_do_vote(emu_state *s, const emu_op *op);
void emu_do_reduce(emu_state *s, const emu_op *op);
void emu_do_multiply(emu_state *s, const emu_op *op);
void emu_do_move_matrices(emu_state *s, const emu_op *op);
void emu_do_begin_product(emu_state *s, const emu_op *op);
void emu_do_use_mbarrier(emu_state *s, const emu_op *op, uint32_t lanes);
bool emu_ask_mbarrier(emu_state *s, const emu_op *op, uint32_t lanes, bool *passed);
void emu_do_copy(emu_state *s, const emu_op *op, uint32_t lanes);
void emu_do_copy_arrive(emu_state *s, const emu_op *op, uint32_t lanes);
void emu_do_bulk(emu_state *s, const emu_op *op, uint32_t lanes);

#endif
