// Runs a warp for a share of steps: one loop over ops, a case for each; machine.h says how lanes
// part and meet. An op of all 32 lanes is a loop that compilers make vectors of; of few lanes, as in
// the roles that one lane plays, it is done for these alone.
//
// Floats: rounded as IEEE says, NaNs that come out are 0x7fffffff, as a GPU's.
#include <fenv.h>
#include <stdlib.h>
#include <string.h>

#include "emulator/machine.h"

// --- arithmetic that C does not have -------------------------------------------------------------

typedef uint16_t u16;
typedef int16_t s16;
typedef uint32_t u32;
typedef int32_t s32;
typedef float f32;
typedef uint64_t u64;
typedef int64_t s64;
typedef double f64;

static int64_t divide(int64_t a, int64_t b, bool remainder) {
  if (b == 0 || b == -1) {
    return b == 0 ? (remainder ? a : -1) : remainder ? 0 : (int64_t)(0 - (uint64_t)a);
  }
  return remainder ? a % b : a / b;
}

static uint32_t reverse(uint32_t a) {
  uint32_t r = 0;
  for (int i = 0; i < 32; i++) {
    r = r << 1 | (a >> i & 1);
  }
  return r;
}

static uint32_t permute(uint32_t a, uint32_t b, uint32_t selector) {
  const uint64_t bytes = (uint64_t)b << 32 | a;
  uint32_t r = 0;
  for (uint32_t i = 0; i < 4; i++) {
    const uint32_t s = selector >> (4 * i) & 15;
    uint32_t byte = (uint32_t)(bytes >> (8 * (s & 7))) & 255;
    byte = s < 8 ? byte : byte >> 7 ? 255 : 0;
    r |= byte << (8 * i);
  }
  return r;
}

static uint32_t funnel(uint32_t a, uint32_t b, uint32_t by) {
  return (uint32_t)(((uint64_t)b << 32 | a) << by >> 32);
}

static uint32_t funnel_right(uint32_t a, uint32_t b, uint32_t by) {
  return (uint32_t)(((uint64_t)b << 32 | a) >> by);
}

static uint32_t extract(uint32_t a, uint32_t at, uint32_t length) {
  at &= 255;
  length &= 255;
  const uint64_t mask = length < 32 ? ((uint64_t)1 << length) - 1 : UINT32_MAX;
  return at < 32 ? (uint32_t)(a >> at & mask) : 0;
}

static uint64_t insert(uint64_t a, uint64_t b, uint32_t at, uint32_t length, uint32_t bits) {
  at &= 255;
  length &= 255;
  if (at >= bits || length == 0) {
    return b;
  }
  length = length < bits - at ? length : bits - at;
  const uint64_t mask = (length < 64 ? ((uint64_t)1 << length) - 1 : UINT64_MAX) << at;
  return (b & ~mask) | (a << at & mask);
}

static float least(float a, float b) {
  return a != a ? b : b != b ? a : a == b ? (__builtin_signbit(a) ? a : b) : a < b ? a : b;
}

static float most(float a, float b) {
  return a != a ? b : b != b ? a : a == b ? (__builtin_signbit(a) ? b : a) : a > b ? a : b;
}

static float flush(float a) {
  return __builtin_fabsf(a) < 0x1p-126f ? __builtin_copysignf(0, a) : a;
}

static double rough(double a) {
  uint64_t bits;
  memcpy(&bits, &a, sizeof bits);
  bits &= 0xffffffff00000000;
  memcpy(&a, &bits, sizeof a);
  return a;
}

__attribute__((noinline)) static float fma_down(float a, float b, float c) {
  volatile float x = a, y = b, z = c;
  (void)fesetround(FE_DOWNWARD);
  volatile float r = __builtin_fmaf(x, y, z);
  (void)fesetround(FE_TONEAREST);
  return r;
}

static int64_t whole(double a, int64_t lowest, int64_t highest) {
  return a != a ? 0 : a < (double)lowest ? lowest : a > (double)highest ? highest : (int64_t)a;
}

static uint64_t whole_long(double a) {
  return a != a ? (uint64_t)1 << 63 : a < 0 ? 0 : a >= 0x1p64 ? UINT64_MAX : (uint64_t)a;
}

static uint32_t halves(emu_half kind, float high, float low, bool saturate) {
  return (uint32_t)emu_to_half(kind, high, EMU_NEAREST, saturate, false) << 16 |
         emu_to_half(kind, low, EMU_NEAREST, saturate, false);
}

static uint16_t eights(emu_eight kind, float high, float low) {
  return (uint16_t)(emu_to_eight(kind, high, false) << 8 | emu_to_eight(kind, low, false));
}

static uint32_t halves_of_eights(emu_eight kind, uint16_t bits) {
  return halves(EMU_F16, emu_from_eight(kind, (uint8_t)(bits >> 8)),
                emu_from_eight(kind, (uint8_t)bits), false);
}

// Rounds once: what a sum of doubles loses, and a float behind it, stays in the lowest bit.
static uint16_t fma_half(uint16_t a, uint16_t b, uint16_t c) {
  const double product = (double)emu_from_bf16(a) * (double)emu_from_bf16(b);  // exact
  const double addend = (double)emu_from_bf16(c);
  double sum = product + addend;
  const double back = sum - product, lost = (product - (sum - back)) + (addend - back);
  uint64_t bits;
  if (sum != sum || __builtin_isinf(sum)) {
    return emu_to_half(EMU_BF16, (float)sum, EMU_NEAREST, false, false);
  }
  memcpy(&bits, &sum, sizeof bits);
  if (lost != 0 && (bits & 1) == 0) {
    bits += (lost > 0) == (sum > 0) ? 1 : UINT64_MAX;
    memcpy(&sum, &bits, sizeof bits);
  }
  float value = (float)sum;
  if ((double)value != sum && !__builtin_isinf(value)) {
    uint32_t low;
    memcpy(&low, &value, sizeof low);
    low -= __builtin_fabs((double)value) > __builtin_fabs(sum) ? 1 : 0;  // to zero, then odd
    low |= 1;
    memcpy(&value, &low, sizeof value);
  }
  return emu_to_half(EMU_BF16, value, EMU_NEAREST, false, false);
}

static uint32_t fma_halves(uint32_t a, uint32_t b, uint32_t c) {
  return fma_half((uint16_t)a, (uint16_t)b, (uint16_t)c) |
         (uint32_t)fma_half((uint16_t)(a >> 16), (uint16_t)(b >> 16), (uint16_t)(c >> 16)) << 16;
}

static uint16_t most_half(uint16_t a, uint16_t b) {
  const float x = emu_from_bf16(a), y = emu_from_bf16(b);
  return x != x || y != y ? 0x7fff : x > y || (x == y && (a >> 15) == 0) ? a : b;
}

static uint32_t most_halves(uint32_t a, uint32_t b) {
  return most_half((uint16_t)a, (uint16_t)b) |
         (uint32_t)most_half((uint16_t)(a >> 16), (uint16_t)(b >> 16)) << 16;
}

static uint32_t add_bytes(uint32_t a, uint32_t b, uint32_t c) {
  for (uint32_t i = 0; i < 32; i += 8) {
    c += (uint32_t)((int8_t)(a >> i) * (int8_t)(b >> i));
  }
  return c;
}

// --- rows ----------------------------------------------------------------------------------------

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
// Does it for the lanes of a mask, lane by lane or all at once.
#define EACH(mask, ...)                                           \
  do {                                                            \
    if ((mask) == ALL) {                                          \
      _Pragma("GCC ivdep") for (uint32_t i = 0; i < 32; i++) {    \
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

typedef struct state {
  emu_warp *w;
  emu_launch *l;
  const emu_module *m;
  uint32_t act, pc, frame;
  uint8_t *bases[EMU_BASES];
} state;

static inline uint8_t *row(const state *s, emu_row r) {
  return s->bases[r & 3] + (r & ~3u);
}

static inline uint32_t *words(const state *s, emu_row r) {
  return (uint32_t *)(void *)row(s, r);
}

static inline uint64_t *longs(const state *s, emu_row r) {
  return (uint64_t *)(void *)row(s, r);
}

static inline uint32_t first_lane(uint32_t mask) {
  return (uint32_t)__builtin_ctz(mask);
}

// --- groups of lanes -----------------------------------------------------------------------------

static void park(state *s, uint32_t lanes, uint32_t pc) {
  while (s->m->ops[pc].code == OP_JOIN) {
    pc++;
  }
  FEW(lanes, s->w->pc[i] = pc;)
}

static void choose(state *s, uint32_t lane, uint32_t runnable) {
  emu_warp *w = s->w;
  s->pc = w->pc[lane];
  s->frame = w->frame[lane];
  s->act = 0;
  FEW(runnable, s->act |= w->pc[i] == s->pc && w->frame[i] == s->frame ? 1u << i : 0;)
  s->bases[EMU_FRAME] = w->frames + s->frame;
}

// Takes the group of lanes that goes on: the deepest, of those the earliest.
static void pick(state *s) {
  emu_warp *w = s->w;
  const uint32_t runnable = w->live & ~w->waiting;
  if (runnable == 0) {
    const uint32_t lane = first_lane(w->live);
    emu_fault(s->l, w, w->pc[lane], "lanes %#x wait for others of their warp, which do not come",
              w->live);
  }
  uint32_t best = first_lane(runnable);
  FEW(runnable, {
    if (w->depth[i] > w->depth[best] || (w->depth[i] == w->depth[best] && w->pc[i] < w->pc[best])) {
      best = i;
    }
  })
  choose(s, best, runnable);
}

// All lanes of `need` are there (others, which arrived before, join), or these wait for them.
static bool gather(state *s, uint32_t need) {
  emu_warp *w = s->w;
  if ((need & w->live & ~s->act) == 0) {
    return true;
  }
  uint32_t merged = s->act;
  FEW(w->waiting, merged |= w->pc[i] == s->pc && w->frame[i] == s->frame ? 1u << i : 0;)
  if ((need & w->live & ~merged) != 0) {
    park(s, s->act, s->pc);
    w->waiting |= s->act;
    return false;
  }
  w->waiting &= ~merged;
  s->act = merged;
  return true;
}

static uint32_t masks_of(const state *s, const uint32_t *row_of_masks) {
  uint32_t need = 0;
  FEW(s->act, need |= row_of_masks[i];)
  return need;
}

// --- memory --------------------------------------------------------------------------------------

static void check_lane(state *s, uintptr_t at, uint32_t bytes, uint32_t lane, const char *what) {
  const emu_warp *w = s->w;
  const uintptr_t shared = (uintptr_t)w->block->shared, locals = (uintptr_t)w->locals;
  const uintptr_t parameters = (uintptr_t)s->l->parameters;
  if ((at >= shared + EMU_SHARED_BASE && at + bytes <= shared + w->block->shared_end) ||
      (at >= locals && at + bytes <= locals + (size_t)32 * EMU_LOCAL_BYTES) ||
      (at >= parameters && at + bytes <= parameters + s->l->kernel->code.parameter_bytes)) {
    return;
  }
  emu_range range;
  if (!emu_memory_find(s->l, at, bytes, &range)) {
    emu_fault(s->l, w, s->pc, "%s of %u bytes at 0x%llx, which is no memory, by lane %u", what,
              bytes, (unsigned long long)at, lane);
  }
  s->w->near = range;
}

static void check(state *s, uint32_t lanes, const uintptr_t *at, uint32_t bytes, uint32_t align,
                  const char *what) {
  uintptr_t low = UINTPTR_MAX, high = 0, all = 0;
  EACH(lanes, {
    low = at[i] < low ? at[i] : low;
    high = at[i] > high ? at[i] : high;
    all |= at[i];
  });
  if ((all & (align - 1)) != 0) {
    emu_fault(s->l, s->w, s->pc, "%s of %u bytes at 0x%llx, or another lane's, is not aligned",
              what, bytes, (unsigned long long)low);
  }
  const emu_range *near = &s->w->near;
  if (low >= near->begin && high < near->end && bytes <= near->end - high) {
    return;
  }
  FEW(lanes, check_lane(s, at[i], bytes, i, what);)
}

// Of shared memory by 32 bits.
static void check_shared(state *s, uint32_t lanes, const uintptr_t *at, uint32_t bytes,
                         uint32_t align, const char *what) {
  const uintptr_t begin = (uintptr_t)s->w->block->shared;
  const uintptr_t low = begin + EMU_SHARED_BASE, high = begin + s->w->block->shared_end;
  FEW(lanes, {
    if (at[i] < low || at[i] + bytes > high || (at[i] & (align - 1)) != 0) {
      emu_fault(s->l, s->w, s->pc,
                "%s of %u bytes at %#llx of %#x bytes of shared memory, by lane %u", what, bytes,
                (unsigned long long)(at[i] - begin), s->w->block->shared_end, i);
    }
  })
}

// Addresses of an operand, checked.
static void find_addresses(state *s, emu_row r, bool shared, uint32_t register_bytes,
                           int64_t offset, uint32_t lanes, uint32_t bytes, uint32_t align,
                           const char *what, uintptr_t *at) {
  if (shared) {
    const uintptr_t base = (uintptr_t)s->w->block->shared;
    if (register_bytes == 8) {
      const uint64_t *from = longs(s, r);
      EACH(lanes, at[i] = base + (uint32_t)(from[i] + (uint64_t)offset););
    } else {
      const uint32_t *from = words(s, r);
      EACH(lanes, at[i] = base + (uint32_t)(from[i] + (uint32_t)offset););
    }
    check_shared(s, lanes, at, bytes, align, what);
  } else {
    const uint64_t *from = longs(s, r);
    EACH(lanes, at[i] = from[i] + (uint64_t)offset;);
    check(s, lanes, at, bytes, align, what);
  }
}

static uint64_t read_bytes(uintptr_t at, uint32_t bytes) {
  uint64_t value = 0;
  switch (bytes) {
    case 1: value = *(const volatile uint8_t *)at; break;
    case 2: value = *(const volatile uint16_t *)at; break;
    case 4: value = *(const volatile uint32_t *)at; break;
    default: value = *(const volatile uint64_t *)at; break;
  }
  return value;
}

static uint64_t extend(uint64_t value, uint32_t bytes) {
  return bytes == 1   ? (uint64_t)(int64_t)(int8_t)value
         : bytes == 2 ? (uint64_t)(int64_t)(int16_t)value
         : bytes == 4 ? (uint64_t)(int64_t)(int32_t)value
                      : value;
}

static void load(state *s, const emu_op *op, uint32_t lanes) {
  uintptr_t at[32];
  const uint32_t bytes = op->bytes, all = bytes * op->count;
  find_addresses(s, op->a, op->space == EMU_SHARED, op->e, op->imm, lanes, all, all, "a load", at);
  const emu_row *list = &s->m->lists[op->list];
  const bool is_signed = (op->how & EMU_SIGNED) != 0;
  for (uint32_t k = 0; k < op->count; k++) {
    const uint32_t offset = k * bytes;
    if (bytes == 4 && op->width == 4) {
      uint32_t *d = words(s, list[k]);
      EACH(lanes, d[i] = *(const volatile uint32_t *)(at[i] + offset););
    } else if (bytes == 8) {
      uint64_t *d = longs(s, list[k]);
      EACH(lanes, d[i] = *(const volatile uint64_t *)(at[i] + offset););
    } else if (bytes == 16) {
      uint8_t *d = row(s, list[k]);
      FEW(lanes, memcpy(d + i * 16, (const void *)(at[i] + offset), 16);)
    } else {
      uint32_t *d = words(s, list[k]);
      uint64_t *wide = longs(s, list[k]);
      FEW(lanes, {
        uint64_t value = read_bytes(at[i] + offset, bytes);
        value = is_signed ? extend(value, bytes) : value;
        if (op->width == 8) {
          wide[i] = value;
        } else {
          d[i] = op->width == 2 ? (uint16_t)value : (uint32_t)value;
        }
      })
    }
  }
}

static void store(state *s, const emu_op *op, uint32_t lanes) {
  uintptr_t at[32];
  const uint32_t bytes = op->bytes, all = bytes * op->count;
  find_addresses(s, op->a, op->space == EMU_SHARED, op->e, op->imm, lanes, all, all, "a store", at);
  const emu_row *list = &s->m->lists[op->list];
  for (uint32_t k = 0; k < op->count; k++) {
    const uint32_t offset = k * bytes;
    const uint32_t *v = words(s, list[k]);
    const uint64_t *wide = longs(s, list[k]);
    const bool is_wide = op->width == 8;
    switch (bytes) {
      case 1:
        FEW(lanes, *(volatile uint8_t *)(at[i] + offset) = (uint8_t)(is_wide ? wide[i] : v[i]);)
        break;
      case 2:
        FEW(lanes, *(volatile uint16_t *)(at[i] + offset) = (uint16_t)(is_wide ? wide[i] : v[i]);)
        break;
      case 4:
        FEW(lanes, *(volatile uint32_t *)(at[i] + offset) = (uint32_t)(is_wide ? wide[i] : v[i]);)
        break;
      case 8: FEW(lanes, *(volatile uint64_t *)(at[i] + offset) = wide[i];) break;
      default: FEW(lanes, memcpy((void *)(at[i] + offset), row(s, list[k]) + i * 16, 16);) break;
    }
  }
}

// A load that finds what it found before is one that waits: others should run.
static bool is_poll(state *s, const emu_op *op, uint32_t lanes) {
  emu_warp *w = s->w;
  const uint32_t lane = first_lane(lanes);
  const uintptr_t at = op->space == EMU_SHARED ? words(s, op->a)[lane] : longs(s, op->a)[lane];
  const uint64_t value = op->width == 8 ? longs(s, s->m->lists[op->list])[lane]
                                        : words(s, s->m->lists[op->list])[lane];
  const bool again = w->poll_pc == s->pc && w->poll_at == at && w->poll_value == value;
  w->poll_pc = s->pc;
  w->poll_at = at;
  w->poll_value = value;
  return again;
}

// Words that a call passes lie behind this function's frame, those that it was passed at its begin.
static void load_call(state *s, const emu_op *op, uint32_t lanes) {
  for (uint32_t k = 0; k < op->count; k++) {
    const uint32_t at = (uint32_t)op->imm + k * op->bytes;
    const uint32_t *low = words(s, op->e + at / 4 * 128),
                   *high = words(s, op->e + at / 4 * 128 + 128);
    const emu_row to = s->m->lists[op->list + k];
    uint32_t *d = words(s, to);
    uint64_t *wide = longs(s, to);
    FEW(lanes, {
      uint64_t value = low[i] >> (at % 4 * 8);
      value = op->bytes == 8   ? value | (uint64_t)high[i] << 32
              : op->bytes == 2 ? (uint16_t)value
              : op->bytes == 1 ? (uint8_t)value
                               : value;
      value = (op->how & EMU_SIGNED) != 0 ? extend(value, op->bytes) : value;
      if (op->width == 8) {
        wide[i] = value;
      } else {
        d[i] = op->width == 2 ? (uint16_t)value : (uint32_t)value;
      }
    })
  }
}

static void store_call(state *s, const emu_op *op, uint32_t lanes) {
  for (uint32_t k = 0; k < op->count; k++) {
    const uint32_t at = (uint32_t)op->imm + k * op->bytes;
    uint32_t *low = words(s, op->e + at / 4 * 128), *high = words(s, op->e + at / 4 * 128 + 128);
    const emu_row from = s->m->lists[op->list + k];
    const uint32_t *v = words(s, from);
    const uint64_t *wide = longs(s, from);
    FEW(lanes, {
      if (op->bytes == 8) {
        low[i] = (uint32_t)wide[i];
        high[i] = (uint32_t)(wide[i] >> 32);
      } else {
        low[i] = v[i];
      }
    })
  }
}

static void pack(state *s, const emu_op *op, uint32_t lanes) {
  uint8_t *whole_row = row(s, op->code == OP_PACK ? op->d : op->a);
  const uint32_t stride = op->width <= 4 ? 4 : op->width;
  const uint32_t part_stride = op->bytes <= 4 ? 4 : op->bytes;
  for (uint32_t k = 0; k < op->count; k++) {
    uint8_t *part = row(s, s->m->lists[op->list + k]);
    FEW(lanes, {
      uint8_t *at = whole_row + i * stride + k * op->bytes;
      if (op->code == OP_PACK) {
        memcpy(at, part + i * part_stride, op->bytes);
      } else {
        uint64_t value = 0;
        memcpy(&value, at, op->bytes);
        memcpy(part + i * part_stride, &value, part_stride);
      }
    })
  }
}

// --- atomics -------------------------------------------------------------------------------------

static uint64_t change(uint32_t what, uint64_t old, uint64_t b, uint64_t c, uint32_t bytes) {
  const int64_t so = bytes == 4 ? (int32_t)old : (int64_t)old;
  const int64_t sb = bytes == 4 ? (int32_t)b : (int64_t)b;
  switch (what) {
    case EMU_ADD: return old + b;
    case EMU_EXCH: return b;
    case EMU_CAS: return old == b ? c : old;
    case EMU_AND: return old & b;
    case EMU_OR: return old | b;
    case EMU_XOR: return old ^ b;
    case EMU_INC: return old >= b ? 0 : old + 1;
    case EMU_DEC: return old == 0 || old > b ? b : old - 1;
    case EMU_MIN_U: return old < b ? old : b;
    case EMU_MAX_U: return old > b ? old : b;
    case EMU_MIN_S: return so < sb ? old : b;
    case EMU_MAX_S: return so > sb ? old : b;
    default: return put_f32(get_f32((uint32_t)old) + get_f32((uint32_t)b));
  }
}

static uint64_t exchange(uintptr_t at, uint32_t what, uint64_t b, uint64_t c, uint32_t bytes) {
  if (bytes == 4) {
    uint32_t *word = (uint32_t *)at, old = __atomic_load_n(word, __ATOMIC_RELAXED);
    while (!__atomic_compare_exchange_n(word, &old, (uint32_t)change(what, old, b, c, 4), false,
                                        __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST)) {
    }
    return old;
  }
  uint64_t *word = (uint64_t *)at, old = __atomic_load_n(word, __ATOMIC_RELAXED);
  while (!__atomic_compare_exchange_n(word, &old, change(what, old, b, c, 8), false,
                                      __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST)) {
  }
  return old;
}

static void atomic(state *s, const emu_op *op, uint32_t lanes) {
  uintptr_t at[32];
  const bool is_long = op->bytes == 8;
  find_addresses(s, op->a, op->space == EMU_SHARED, op->e, op->imm, lanes, op->bytes, op->bytes,
                 "an atomic operation", at);
  FEW(lanes, {
    const uint64_t b = is_long ? longs(s, op->b)[i] : words(s, op->b)[i];
    const uint64_t c = op->c == EMU_NO_ROW ? 0 : is_long ? longs(s, op->c)[i] : words(s, op->c)[i];
    const uint64_t old = exchange(at[i], op->how, b, c, op->bytes);
    if (op->d != EMU_NO_ROW && is_long) {
      longs(s, op->d)[i] = old;
    } else if (op->d != EMU_NO_ROW) {
      words(s, op->d)[i] = (uint32_t)old;
    }
  })
}

// --- among lanes ---------------------------------------------------------------------------------

static void shuffle(state *s, const emu_op *op) {
  const uint32_t *a = words(s, op->a), *b = words(s, op->b), *c = words(s, op->c);
  uint32_t *d = words(s, op->d), result[32], good = 0;
  FEW(s->act, {
    const uint32_t bound = c[i] & 31, segments = c[i] >> 8 & 31, by = b[i] & 31;
    const uint32_t least_lane = i & segments, most_lane = least_lane | (bound & ~segments);
    uint32_t from = 0;
    bool in = false;
    switch (op->how) {
      case EMU_UP:
        from = i - by;
        in = (int32_t)from >= (int32_t)most_lane;
        break;
      case EMU_DOWN:
        from = i + by;
        in = from <= most_lane;
        break;
      case EMU_BFLY:
        from = i ^ by;
        in = from <= most_lane;
        break;
      default:
        from = least_lane | (by & ~segments);
        in = from <= most_lane;
        break;
    }
    from = in ? from : i;
    if ((s->act >> from & 1) == 0) {
      emu_fault(s->l, s->w, s->pc, "lane %u asks lane %u, which does not take part", i, from);
    }
    result[i] = a[from];
    good |= in ? 1u << i : 0;
  })
  FEW(s->act, d[i] = result[i];)
  if (op->e != EMU_NO_ROW) {
    uint32_t *predicate = words(s, op->e);
    *predicate = (*predicate & ~s->act) | good;
  }
}

static void set_predicate(state *s, emu_row r, uint32_t lanes, uint32_t value) {
  uint32_t *predicate = words(s, r);
  *predicate = (*predicate & ~lanes) | (value & lanes);
}

static void vote(state *s, const emu_op *op) {
  const uint32_t value = (op->width != 0 ? ~*words(s, op->a) : *words(s, op->a)) & s->act;
  const uint32_t *masks = words(s, op->b);
  if (op->how == EMU_BALLOT) {
    uint32_t *d = words(s, op->d);
    FEW(s->act, d[i] = value & masks[i];)
    return;
  }
  uint32_t result = 0;
  FEW(s->act, {
    const uint32_t of = masks[i] & s->act, in = value & of;
    const bool yes = op->how == EMU_ANY   ? in != 0
                     : op->how == EMU_ALL ? in == of
                                          : in == of || in == 0;
    result |= yes ? 1u << i : 0;
  })
  set_predicate(s, op->d, s->act, result);
}

static void reduce(state *s, const emu_op *op) {
  const uint32_t *a = words(s, op->a), *masks = words(s, op->b);
  uint32_t *d = words(s, op->d), result[32];
  FEW(s->act, {
    const uint32_t of = masks[i] & s->act;
    uint64_t value = a[first_lane(of)];
    for (uint32_t rest = of & (of - 1); rest != 0; rest &= rest - 1) {
      value = change(op->how, (uint32_t)value, a[first_lane(rest)], 0, 4);
    }
    result[i] = (uint32_t)value;
  })
  FEW(s->act, d[i] = result[i];)
}

// --- matrices ------------------------------------------------------------------------------------

static void multiply(state *s, const emu_op *op) {
  enum { MOST = 14 };
  uint32_t *p[MOST];
  const emu_row *list = &s->m->lists[op->list];
  const bool k8 = op->imm == EMU_MMA_BF16_K8 || op->imm == EMU_MMA_F16_K8;
  const uint32_t a = 4, b = a + (k8 ? 2 : 4), c = b + (k8 ? 1 : 2);
  for (uint32_t i = 0; i < c + 4; i++) {
    p[i] = words(s, list[i]);
  }
  const uint32_t *const *in = (const uint32_t *const *)p;
  switch (op->imm) {
    case EMU_MMA_BF16: emu_mma_m16n8k16(EMU_BF16, p, in + a, in + b, in + c); break;
    case EMU_MMA_F16: emu_mma_m16n8k16(EMU_F16, p, in + a, in + b, in + c); break;
    case EMU_MMA_BF16_K8: emu_mma_m16n8k8(EMU_BF16, p, in + a, in + b, in + c); break;
    case EMU_MMA_F16_K8: emu_mma_m16n8k8(EMU_F16, p, in + a, in + b, in + c); break;
    default: emu_mma_m16n8k32_s8(p, in + a, in + b, in + c); break;
  }
}

static void move_matrices(state *s, const emu_op *op) {
  uintptr_t at[32] = {0};
  uint8_t *rows[32] = {NULL};
  uint32_t *d[4];
  const uint32_t lanes = op->count == 4 ? ALL : (1u << (8 * op->count)) - 1;
  find_addresses(s, op->a, true, 4, op->imm, lanes, 16, 16, "a row of a matrix", at);
  FEW(lanes, rows[i] = (uint8_t *)at[i];)
  for (uint32_t i = 0; i < op->count; i++) {
    d[i] = words(s, s->m->lists[op->list + i]);
  }
  if (op->code == OP_LDMATRIX) {
    emu_ldmatrix(op->count, op->how == EMU_TRANSPOSED, d, (const uint8_t *const *)rows);
  } else {
    emu_stmatrix(op->count, op->how == EMU_TRANSPOSED, rows, (const uint32_t *const *)d);
  }
}

static void begin_product(state *s, const emu_op *op) {
  const uint32_t lane = first_lane(s->act);
  emu_product_due *p = emu_product_add(s->w);
  p->op = op;
  p->pc = s->pc;
  p->frame = s->frame;
  p->a = op->a == EMU_NO_ROW ? 0 : longs(s, op->a)[lane];
  p->b = longs(s, op->b)[lane];
  p->add = (*words(s, op->c) >> lane & 1) != 0;
  if (emu_random(s->l) % 4 == 0) {
    emu_products_finish(s->w, UINT32_MAX, 0);
  }
}

// --- mbarriers and copies ------------------------------------------------------------------------

static void must(state *s, const char *why) {
  if (why != NULL) {
    emu_fault(s->l, s->w, s->pc, "%s", why);
  }
}

static void use_mbarrier(state *s, const emu_op *op, uint32_t lanes) {
  uintptr_t at[32];
  find_addresses(s, op->a, true, 4, op->imm, lanes, 8, 8, "an mbarrier", at);
  FEW(lanes, {
    uint64_t *barrier = (uint64_t *)at[i];
    const uint32_t b = op->b != EMU_NO_ROW ? words(s, op->b)[i] : 0;
    must(s, op->code == OP_MBARRIER_INIT     ? emu_mbarrier_init(barrier, b)
            : op->code == OP_MBARRIER_ARRIVE ? emu_mbarrier_arrive(barrier, 1, b)
                                             : emu_mbarrier_arrive(barrier, 0, b));
  })
}

// False: the warp waits, and comes back to this op.
static bool ask_mbarrier(state *s, const emu_op *op, uint32_t lanes, bool *passed) {
  emu_warp *w = s->w;
  uintptr_t at[32];
  const uint32_t *parity = words(s, op->b);
  uint32_t result = 0;
  find_addresses(s, op->a, true, 4, op->imm, lanes, 8, 8, "an mbarrier", at);
  FEW(lanes, {
    must(s, emu_mbarrier_check((const uint64_t *)at[i]));
    result |= emu_mbarrier_passed((const uint64_t *)at[i], parity[i]) ? 1u << i : 0;
  })
  const uint32_t failed = lanes & ~result;
  const bool alone = (w->live & ~w->waiting & ~s->act) == 0;
  *passed = failed == 0;
  if (op->code == OP_MBARRIER_TRY && failed != 0 && !w->tried && alone) {
    const uint32_t lane = first_lane(failed);
    w->tried = true;
    w->blocked = EMU_AT_MBARRIER;
    w->mbarrier = (const uint64_t *)at[lane];
    w->parity = parity[lane];
    w->tries_until = emu_steps + 2000 + emu_random(s->l) % 2000;
    return false;
  }
  w->tried = false;
  set_predicate(s, op->d, lanes, result);
  return true;
}

static void copy(state *s, const emu_op *op, uint32_t lanes) {
  uintptr_t to[32], from[32];
  find_addresses(s, op->a, true, 4, op->imm, lanes, op->bytes, op->bytes, "a copy's target", to);
  emu_copy *c = emu_copy_add(s->w);
  uint32_t reads = 0;
  c->lanes = lanes;
  c->bytes = op->bytes;
  FEW(lanes, {
    c->to[i] = (uint8_t *)to[i];
    c->from_bytes[i] = op->c == EMU_NO_ROW ? op->bytes : words(s, op->c)[i];
    c->from_bytes[i] = c->from_bytes[i] < op->bytes ? c->from_bytes[i] : op->bytes;
    reads |= c->from_bytes[i] != 0 ? 1u << i : 0;
  })
  if (reads != 0) {
    find_addresses(s, op->b, false, 8, 0, reads, op->bytes, op->bytes, "a copy's source", from);
  }
  FEW(reads, c->from[i] = (const uint8_t *)from[i];)
  FEW(lanes & ~reads, c->from[i] = c->to[i];)
}

static void copy_arrive(state *s, const emu_op *op, uint32_t lanes) {
  uintptr_t to[32];
  find_addresses(s, op->a, true, 4, op->imm, lanes, 8, 8, "an mbarrier", to);
  emu_copy *c = emu_copy_add(s->w);
  c->lanes = lanes;
  c->arrives = true;
  FEW(lanes, c->to[i] = (uint8_t *)to[i];)
}

static void bulk(state *s, const emu_op *op, uint32_t lanes) {
  const bool in = op->code == OP_BULK_IN;
  uintptr_t to[32], from[32], at[32];
  const uint32_t *bytes = words(s, op->c);
  FEW(lanes, {
    if (bytes[i] == 0 || bytes[i] % 16 != 0) {
      emu_fault(s->l, s->w, s->pc, "a bulk copy of %u bytes", bytes[i]);
    }
    const uint32_t one = 1u << i;
    find_addresses(s, op->a, in, in ? 4 : 8, 0, one, bytes[i], 16, "a bulk copy's target", to);
    find_addresses(s, op->b, !in, in ? 8 : 4, 0, one, bytes[i], 16, "a bulk copy's source", from);
    if (in) {
      find_addresses(s, op->e, true, 4, 0, one, 8, 8, "a bulk copy's mbarrier", at);
      must(s, emu_mbarrier_check((const uint64_t *)at[i]));
    }
    // What was there goes at once, or keeps standing, or is already what comes.
    const uint64_t chance = emu_random(s->l) % 3;
    if (chance == 0) {
      memset((void *)to[i], 0xff, bytes[i]);
    } else if (chance == 1) {
      memcpy((void *)to[i], (const void *)from[i], bytes[i]);
    }
    emu_bulk *b = emu_bulk_add(s->l);
    b->to = (uint8_t *)to[i];
    b->from = (const uint8_t *)from[i];
    b->bytes = bytes[i];
    b->mbarrier = in ? (uint64_t *)at[i] : NULL;
    b->block = s->w->block;
    b->warp = s->w;
    b->lane = i;
    b->group = s->w->bulk_group[i];
  })
}

// --- calls and barriers --------------------------------------------------------------------------

static void call(state *s, const emu_op *op) {
  emu_warp *w = s->w;
  const uint32_t frame = s->frame + op->d;
  if ((uint64_t)frame + op->c + 4096 > EMU_FRAMES_BYTES) {
    emu_fault(s->l, w, s->pc, "calls need too many registers");
  }
  FEW(s->act, {
    if (w->depth[i] == EMU_MAX_DEPTH || w->local[i] + op->a + op->e > EMU_LOCAL_BYTES) {
      emu_fault(s->l, w, s->pc, "calls are too deep");
    }
    w->returns[i][w->depth[i]++] = (emu_return){s->pc + 1, s->frame, w->local[i]};
    w->frame[i] = frame;
    w->local[i] += op->a;
  })
  s->frame = frame;
  s->bases[EMU_FRAME] = w->frames + frame;
  s->pc = (uint32_t)op->imm;
}

// All lanes that return; true: they go on together.
static bool go_back(state *s) {
  emu_warp *w = s->w;
  const uint32_t first = first_lane(s->act);
  bool together = s->act == w->live;
  if (w->product_first < w->product_count) {
    emu_products_finish(w, UINT32_MAX, 0);  // their registers go
  }
  FEW(s->act, {
    const emu_return *r = &w->returns[i][--w->depth[i]];
    w->frame[i] = r->frame;
    w->local[i] = r->local;
    w->pc[i] = r->pc;
    together = together && r->pc == w->pc[first] && r->frame == w->frame[first];
  })
  if (together) {
    s->pc = w->pc[first];
    s->frame = w->frame[first];
    s->bases[EMU_FRAME] = w->frames + s->frame;
  }
  return together;
}

// False: the warp waits, and comes back to this op.
static bool block_barrier(state *s, const emu_op *op) {
  emu_warp *w = s->w;
  emu_block *block = w->block;
  const uint32_t lane = first_lane(s->act);
  if (w->released) {
    w->released = false;
    if (op->code == OP_BARRIER_REDUCE) {
      set_predicate(s, op->d, s->act, w->barrier_result ? ALL : 0);
    }
    return true;
  }
  const uint32_t id = words(s, op->a)[lane];
  const uint32_t threads = op->b == EMU_NO_ROW ? 0 : words(s, op->b)[lane];
  if (id >= EMU_NAMED_BARRIERS || threads % 32 != 0) {
    emu_fault(s->l, w, s->pc, "barrier %u of %u threads", id, threads);
  }
  emu_named_barrier *b = &block->barriers[id];
  if (b->arrived > 0 && b->expected != threads) {
    emu_fault(s->l, w, s->pc, "barrier %u has %u threads here, and %u elsewhere", id, threads,
              b->expected);
  }
  if (b->arrived == 0) {
    *b = (emu_named_barrier){.expected = threads, .all = true};
  }
  b->arrived += 32;
  if (op->code == OP_BARRIER_REDUCE) {
    const uint32_t value = *words(s, op->c) & s->act;
    b->any = b->any || value != 0;
    b->all = b->all && value == s->act;
    b->result_is_all = op->how == EMU_ALL;
  }
  const bool waits = op->code != OP_BARRIER_ARRIVE;
  if (waits) {
    b->warps |= 1u << w->index;
    w->blocked = EMU_AT_BARRIER;
    w->barrier = id;
  }
  emu_barrier_try(block, id);
  return !waits;
}

// --- the loop ------------------------------------------------------------------------------------

static void end_warp(state *s) {
  emu_warp *w = s->w;
  emu_products_finish(w, UINT32_MAX, 0);
  emu_copies_finish(w, UINT32_MAX, 0);
  for (uint32_t lane = 0; lane < 32; lane++) {
    emu_bulks_finish(s->l, w, lane, UINT32_MAX);
  }
  w->blocked = EMU_ENDED;
}

// A step of the warp beside its own code.
static void let_things_happen(emu_warp *w) {
  emu_launch *l = w->block->launch;
  if (w->copy_first < w->copy_count && emu_random(l) % 4 == 0) {
    emu_copies_finish(w, 0, 1 + (uint32_t)(emu_random(l) % (w->copy_count - w->copy_first)));
  }
  if (w->product_first < w->product_count && emu_random(l) % 2 == 0) {
    emu_products_finish(w, 0,
                        1 + (uint32_t)(emu_random(l) % (w->product_count - w->product_first)));
  }
}

#define LANE1(name, D, A, result)                                 \
  case OP_##name: {                                               \
    row_##D *d = (row_##D *)(void *)row(&s, op->d);               \
    const row_##A *ra = (const void *)row(&s, op->a);             \
    EACH(m, const A a = get_##A(ra[i]); d[i] = put_##D(result);); \
    break;                                                        \
  }
#define LANE2(name, D, A, B, result)                                                          \
  case OP_##name: {                                                                           \
    row_##D *d = (row_##D *)(void *)row(&s, op->d);                                           \
    const row_##A *ra = (const void *)row(&s, op->a);                                         \
    const row_##B *rb = (const void *)row(&s, op->b);                                         \
    EACH(m, const A a = get_##A(ra[i]); const B b = get_##B(rb[i]); d[i] = put_##D(result);); \
    break;                                                                                    \
  }
#define LANE3(name, D, A, B, C, result)                                                         \
  case OP_##name: {                                                                             \
    row_##D *d = (row_##D *)(void *)row(&s, op->d);                                             \
    const row_##A *ra = (const void *)row(&s, op->a);                                           \
    const row_##B *rb = (const void *)row(&s, op->b);                                           \
    const row_##C *rc = (const void *)row(&s, op->c);                                           \
    EACH(m, const A a = get_##A(ra[i]); const B b = get_##B(rb[i]); const C c = get_##C(rc[i]); \
         d[i] = put_##D(result););                                                              \
    break;                                                                                      \
  }
#define TEST(name, A, result)                                       \
  case OP_##name: {                                                 \
    const row_##A *ra = (const void *)row(&s, op->a);               \
    const row_##A *rb = (const void *)row(&s, op->b);               \
    uint32_t bits = 0;                                              \
    EACH(m, const A a = get_##A(ra[i]); const A b = get_##A(rb[i]); \
         bits |= (uint32_t)(result) << i;);                         \
    set_predicate(&s, op->d, m, bits);                              \
    break;                                                          \
  }

// The ops of a group that parts here: those lanes go on, the others behind this op later.
static void part(state *s, uint32_t lanes) {
  if (lanes != s->act) {
    park(s, s->act & ~lanes, s->pc + 1);
    s->act = lanes;
  }
}

uint32_t emu_warp_run(emu_warp *w, uint32_t steps) {
  state s = {.w = w, .l = w->block->launch};
  s.m = s.l->kernel->module;
  s.bases[EMU_CONSTANTS] = s.m->constants;
  s.bases[EMU_SPECIALS] = (uint8_t *)w->specials;
  uint32_t used = 0;
  let_things_happen(w);
  const uint32_t runnable = w->live & ~w->waiting;
  if (runnable != 0 && w->blocked == EMU_RUNS && emu_random(s.l) % 8 == 0) {
    // Now and then others than the first: a lane may wait for one that comes later in the code.
    const uint32_t from = (uint32_t)(emu_random(s.l) % 32);
    const uint32_t turned = runnable >> from | (from > 0 ? runnable << (32 - from) : 0);
    choose(&s, (first_lane(turned) + from) % 32, runnable);
  } else {
    pick(&s);
  }
  for (;; used++) {
    const emu_op *op = &s.m->ops[s.pc];
    if (used >= steps) {
      break;
    }
    uint32_t m = s.act;
    if (op->guard != EMU_NO_ROW) {
      const uint32_t value = *words(&s, op->guard);
      m &= op->guard_not ? ~value : value;
      if (m == 0) {
        s.pc++;
        continue;
      }
    }
    switch (op->code) {
#include "emulator/lanes.def"
      case OP_JOIN:
        if ((w->live & ~w->waiting) != s.act) {
          park(&s, s.act, s.pc + 1);
          pick(&s);
          continue;
        }
        break;
      case OP_BRANCH:
        if (m == s.act) {
          s.pc = (uint32_t)op->imm;
        } else {
          park(&s, s.act & ~m, s.pc + 1);
          park(&s, m, (uint32_t)op->imm);
          pick(&s);
        }
        continue;
      case OP_CALL:
        part(&s, m);
        call(&s, op);
        continue;
      case OP_RETURN:
        part(&s, m);
        if (!go_back(&s)) {
          pick(&s);
        }
        continue;
      case OP_EXIT:
        park(&s, s.act & ~m, s.pc + 1);
        w->live &= ~m;
        w->waiting = 0;
        if (w->live == 0) {
          end_warp(&s);
          return used + 1;
        }
        pick(&s);
        continue;
      case OP_TRAP: emu_fault(s.l, w, s.pc, "trap");
      case OP_NOTHING: break;
      case OP_MOV_PRED: set_predicate(&s, op->d, m, *words(&s, op->a)); break;
      case OP_NOT_PRED: set_predicate(&s, op->d, m, ~*words(&s, op->a)); break;
      case OP_AND_PRED: set_predicate(&s, op->d, m, *words(&s, op->a) & *words(&s, op->b)); break;
      case OP_OR_PRED: set_predicate(&s, op->d, m, *words(&s, op->a) | *words(&s, op->b)); break;
      case OP_XOR_PRED: set_predicate(&s, op->d, m, *words(&s, op->a) ^ *words(&s, op->b)); break;
      case OP_SELECT_32: {
        uint32_t *d = words(&s, op->d);
        const uint32_t *a = words(&s, op->a), *b = words(&s, op->b), c = *words(&s, op->c);
        EACH(m, d[i] = (c >> i & 1) != 0 ? a[i] : b[i];);
        break;
      }
      case OP_SELECT_64: {
        uint64_t *d = longs(&s, op->d);
        const uint64_t *a = longs(&s, op->a), *b = longs(&s, op->b);
        const uint32_t c = *words(&s, op->c);
        EACH(m, d[i] = (c >> i & 1) != 0 ? a[i] : b[i];);
        break;
      }
      case OP_BFI_32: {
        uint32_t *d = words(&s, op->d);
        const uint32_t *a = words(&s, op->a), *b = words(&s, op->b);
        const uint32_t *c = words(&s, op->c), *e = words(&s, op->e);
        FEW(m, d[i] = (uint32_t)insert(a[i], b[i], c[i], e[i], 32);)
        break;
      }
      case OP_BFI_64: {
        uint64_t *d = longs(&s, op->d);
        const uint64_t *a = longs(&s, op->a), *b = longs(&s, op->b);
        const uint32_t *c = words(&s, op->c), *e = words(&s, op->e);
        FEW(m, d[i] = insert(a[i], b[i], c[i], e[i], 64);)
        break;
      }
      case OP_CLOCK: {
        const uint64_t now = (emu_steps + used) / 4;
        if (op->bytes == 8) {
          FEW(m, longs(&s, op->d)[i] = now;)
        } else {
          FEW(m, words(&s, op->d)[i] = (uint32_t)now;)
        }
        break;
      }
      case OP_LOCAL: {
        const uintptr_t locals = (uintptr_t)w->locals + (uintptr_t)op->imm;
        FEW(m, longs(&s, op->d)[i] = locals + i * EMU_LOCAL_BYTES + w->local[i];)
        break;
      }
      case OP_PARAMETERS: {
        const uintptr_t at = (uintptr_t)s.l->parameters + (uintptr_t)op->imm;
        uint64_t *d = longs(&s, op->d);
        EACH(m, d[i] = at;);
        break;
      }
      case OP_TO_SHARED:
      case OP_FROM_SHARED: {
        const uintptr_t shared = (uintptr_t)w->block->shared;
        uint64_t *d = longs(&s, op->d);
        const uint64_t *a = longs(&s, op->a);
        const uint64_t by = op->code == OP_TO_SHARED ? 0 - shared : shared;
        EACH(m, d[i] = a[i] + by;);
        break;
      }
      case OP_PACK:
      case OP_UNPACK: pack(&s, op, m); break;
      case OP_LOAD: {
        load(&s, op, m);
        if ((op->how & EMU_STRONG) != 0 && is_poll(&s, op, m)) {
          w->asleep_until = emu_steps + 64 + emu_random(s.l) % 128;
          steps = used + 1;
        }
        break;
      }
      case OP_STORE: store(&s, op, m); break;
      case OP_LOAD_CALL: load_call(&s, op, m); break;
      case OP_STORE_CALL: store_call(&s, op, m); break;
      case OP_ATOMIC: atomic(&s, op, m); break;
      case OP_SHUFFLE:
      case OP_VOTE:
      case OP_ELECT:
      case OP_REDUX:
      case OP_WARP_SYNC: {
        const emu_row masks = op->code == OP_SHUFFLE                        ? s.m->lists[op->list]
                              : op->code == OP_VOTE || op->code == OP_REDUX ? op->b
                                                                            : op->a;
        part(&s, m);
        if (!gather(&s, masks_of(&s, words(&s, masks)))) {
          pick(&s);
          continue;
        }
        if (op->code == OP_SHUFFLE) {
          shuffle(&s, op);
        } else if (op->code == OP_VOTE) {
          vote(&s, op);
        } else if (op->code == OP_REDUX) {
          reduce(&s, op);
        } else if (op->code == OP_ELECT) {
          set_predicate(&s, op->d, s.act, 1u << first_lane(s.act & *words(&s, op->a)));
        }
        break;
      }
      case OP_ACTIVE: FEW(m, words(&s, op->d)[i] = s.act;) break;
      case OP_MMA:
      case OP_LDMATRIX:
      case OP_STMATRIX:
      case OP_MOVMATRIX:
      case OP_WGMMA:
        part(&s, m);
        if (!gather(&s, ALL)) {
          pick(&s);
          continue;
        }
        if (op->code == OP_MMA) {
          multiply(&s, op);
        } else if (op->code == OP_MOVMATRIX) {
          emu_movmatrix(words(&s, op->d), words(&s, op->a));
        } else if (op->code == OP_WGMMA) {
          begin_product(&s, op);
        } else {
          move_matrices(&s, op);
        }
        break;
      case OP_WGMMA_COMMIT: w->product_group++; break;
      case OP_WGMMA_WAIT:
        emu_products_finish(
            w, w->product_group > op->imm ? w->product_group - (uint32_t)op->imm : 0, 0);
        break;
      case OP_BARRIER:
      case OP_BARRIER_ARRIVE:
      case OP_BARRIER_REDUCE:
        part(&s, m);
        if (!gather(&s, ALL)) {
          pick(&s);
          continue;
        }
        if (!block_barrier(&s, op)) {
          park(&s, s.act, s.pc);
          return used + 1;
        }
        break;
      case OP_MBARRIER_INIT:
      case OP_MBARRIER_ARRIVE:
      case OP_MBARRIER_EXPECT: use_mbarrier(&s, op, m); break;
      case OP_MBARRIER_TEST:
      case OP_MBARRIER_TRY: {
        bool passed = false;
        if (!ask_mbarrier(&s, op, m, &passed)) {
          park(&s, s.act, s.pc);
          return used + 1;
        }
        if (!passed) {
          w->asleep_until = emu_steps + 16 + emu_random(s.l) % 64;
          steps = used + 1;
        }
        break;
      }
      case OP_COPY: copy(&s, op, m); break;
      case OP_COPY_ARRIVE: copy_arrive(&s, op, m); break;
      case OP_COPY_COMMIT: w->copy_group++; break;
      case OP_COPY_WAIT:
        emu_copies_finish(w,
                          op->imm < 0               ? UINT32_MAX
                          : w->copy_group > op->imm ? w->copy_group - (uint32_t)op->imm
                                                    : 0,
                          0);
        break;
      case OP_BULK_IN:
      case OP_BULK_OUT: bulk(&s, op, m); break;
      case OP_BULK_COMMIT: FEW(m, w->bulk_group[i]++;) break;
      case OP_BULK_WAIT:
        FEW(m,
            emu_bulks_finish(
                s.l, w, i, w->bulk_group[i] > op->imm ? w->bulk_group[i] - (uint32_t)op->imm : 0);)
        break;
      case OP_SLEEP:
        w->asleep_until = emu_steps + 32 + emu_random(s.l) % 64;
        steps = used + 1;
        break;
      case OP_WAIT_LAUNCH:
        if (s.l->held) {
          park(&s, s.act, s.pc);
          w->blocked = EMU_AT_LAUNCH;
          return used + 1;
        }
        break;
      case OP_LET_LAUNCH:
        if (!w->block->lets_launch) {
          w->block->lets_launch = true;
          s.l->lets++;
        }
        break;
      default: emu_fault(s.l, w, s.pc, "no such op");
    }
    s.pc++;
  }
  park(&s, s.act, s.pc);
  return used;
}
