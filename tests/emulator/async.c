// What goes on beside the warps: mbarriers, copies into shared memory and out of it, products of
// warpgroups. Each of them happens at a moment of its own between the instruction and the wait for
// it, as chance has it, so that what does not wait sees the difference (docs/log/266).
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "emulator/machine.h"

// --- mbarriers -----------------------------------------------------------------------------------

// How the 64 bits are used is nobody's business but ours. The marks of the highest bits tell an
// mbarrier from what else may be there.
typedef struct mbarrier {
  uint32_t pending, expected;
  int32_t bytes;  // that are still to come
  uint32_t phase;
} mbarrier;

enum { MARK = 5, MARK_AT = 61, PHASE_AT = 60 };

// Bits: pending 0 to 14, expected 15 to 29, bytes 30 to 59 (as a signed number), phase, mark.
enum { ARRIVALS = 15, BYTES_AT = 30, BYTES_BITS = 30 };

static mbarrier unpack(uint64_t bits) {
  const uint64_t mask = (1u << ARRIVALS) - 1;
  mbarrier b = {.pending = (uint32_t)(bits & mask),
                .expected = (uint32_t)(bits >> ARRIVALS & mask),
                .phase = (uint32_t)(bits >> PHASE_AT & 1)};
  const uint32_t bytes = (uint32_t)(bits >> BYTES_AT & ((1u << BYTES_BITS) - 1));
  b.bytes = (int32_t)(bytes << (32 - BYTES_BITS)) >> (32 - BYTES_BITS);
  return b;
}

static void put(uint64_t *barrier, mbarrier b) {
  if (b.pending == 0 && b.bytes == 0) {
    b.pending = b.expected;
    b.phase ^= 1;
  }
  *barrier = (uint64_t)b.pending | (uint64_t)b.expected << ARRIVALS |
             (uint64_t)((uint32_t)b.bytes & ((1u << BYTES_BITS) - 1)) << BYTES_AT |
             (uint64_t)b.phase << PHASE_AT | (uint64_t)MARK << MARK_AT;
}

const char *emu_mbarrier_check(const uint64_t *barrier) {
  return *barrier >> MARK_AT == MARK ? NULL : "no mbarrier was initialised there";
}

const char *emu_mbarrier_init(uint64_t *barrier, uint32_t count) {
  if (count == 0 || count >= 1u << ARRIVALS) {
    return "an mbarrier of no arrivals, or too many";
  }
  const mbarrier b = {.pending = count, .expected = count};
  put(barrier, b);
  return NULL;
}

const char *emu_mbarrier_arrive(uint64_t *barrier, uint32_t count, uint32_t expected_bytes) {
  const char *why = emu_mbarrier_check(barrier);
  if (why != NULL) {
    return why;
  }
  mbarrier b = unpack(*barrier);
  if (count > b.pending) {
    return "more arrivals at an mbarrier than it expects";
  }
  b.pending -= count;
  b.bytes += (int32_t)expected_bytes;
  put(barrier, b);
  return NULL;
}

const char *emu_mbarrier_complete(uint64_t *barrier, uint32_t bytes) {
  const char *why = emu_mbarrier_check(barrier);
  if (why != NULL) {
    return why;
  }
  mbarrier b = unpack(*barrier);
  b.bytes -= (int32_t)bytes;
  put(barrier, b);
  return NULL;
}

bool emu_mbarrier_passed(const uint64_t *barrier, uint32_t parity) {
  return unpack(*barrier).phase != (parity & 1);
}

// --- copies of lanes -----------------------------------------------------------------------------

static void *grow(void *array, uint32_t count, uint32_t *capacity, size_t bytes) {
  if (count < *capacity) {
    return array;
  }
  *capacity = *capacity == 0 ? 16 : *capacity * 2;
  array = realloc(array, *capacity * bytes);
  if (array == NULL) {
    abort();
  }
  return array;
}

emu_copy *emu_copy_add(emu_warp *w) {
  w->copies = grow(w->copies, w->copy_count, &w->copy_capacity, sizeof *w->copies);
  emu_copy *c = &w->copies[w->copy_count++];
  *c = (emu_copy){.group = w->copy_group};
  return c;
}

static void finish_copy(emu_warp *w, const emu_copy *c) {
  for (uint32_t left = c->lanes; left != 0; left &= left - 1) {
    const int lane = __builtin_ctz(left);
    if (c->arrives) {
      const char *why = emu_mbarrier_arrive((uint64_t *)(void *)c->to[lane], 1, 0);
      if (why != NULL) {
        emu_fault(w->block->launch, w, UINT32_MAX, "cp.async.mbarrier.arrive: %s", why);
      }
    } else {
      memcpy(c->to[lane], c->from[lane], c->from_bytes[lane]);
      memset(c->to[lane] + c->from_bytes[lane], 0, c->bytes - c->from_bytes[lane]);
    }
  }
}

void emu_copies_finish(emu_warp *w, uint32_t group, uint32_t count) {
  while (w->copy_first < w->copy_count && (count > 0 || w->copies[w->copy_first].group < group)) {
    count -= count > 0 ? 1 : 0;
    finish_copy(w, &w->copies[w->copy_first++]);
  }
  if (w->copy_first == w->copy_count) {
    w->copy_first = w->copy_count = 0;
  }
}

// --- products ------------------------------------------------------------------------------------

emu_product_due *emu_product_add(emu_warp *w) {
  w->products = grow(w->products, w->product_count, &w->product_capacity, sizeof *w->products);
  emu_product_due *p = &w->products[w->product_count++];
  *p = (emu_product_due){.group = w->product_group};
  return p;
}

static void finish_product(emu_warp *w, const emu_product_due *p) {
  enum { MOST_SUMS = 128 };
  uint32_t *d[MOST_SUMS];
  const uint32_t *a[4];
  char why[128] = "";
  emu_launch *l = w->block->launch;
  const emu_row *list = &l->kernel->module->lists[p->op->list];
  const uint32_t sums = (uint32_t)p->op->imm / 2;
  uint8_t *frame = w->frames + p->frame;
  for (uint32_t i = 0; i < sums; i++) {
    d[i] = (uint32_t *)(void *)(frame + list[i]);
  }
  const bool in_registers = p->op->a == EMU_NO_ROW;
  for (uint32_t i = 0; in_registers && i < 4; i++) {
    a[i] = (const uint32_t *)(const void *)(frame + list[sums + i]);
  }
  const emu_wgmma what = {.kind = (emu_half)p->op->how,
                          .n = (uint32_t)p->op->imm,
                          .warp = w->index % 4,
                          .a = in_registers ? a : NULL,
                          .a_descriptor = p->a,
                          .b_descriptor = p->b,
                          .add = p->add,
                          .shared = w->block->shared,
                          .shared_bytes = w->block->shared_end};
  if (!emu_wgmma_warp(&what, d, why, sizeof why)) {
    emu_fault(l, w, p->pc, "%s", why);
  }
}

void emu_products_finish(emu_warp *w, uint32_t group, uint32_t count) {
  while (w->product_first < w->product_count &&
         (count > 0 || w->products[w->product_first].group < group)) {
    count -= count > 0 ? 1 : 0;
    finish_product(w, &w->products[w->product_first++]);
  }
  if (w->product_first == w->product_count) {
    w->product_first = w->product_count = 0;
  }
}

// --- bulk copies ---------------------------------------------------------------------------------

emu_bulk *emu_bulk_add(emu_launch *l) {
  l->bulks = grow(l->bulks, l->bulk_count, &l->bulk_capacity, sizeof *l->bulks);
  emu_bulk *b = &l->bulks[l->bulk_count++];
  *b = (emu_bulk){.due = emu_steps + emu_random(l) % 4096};
  return b;
}

void emu_bulk_finish(emu_launch *l, uint32_t index) {
  const emu_bulk b = l->bulks[index];
  l->bulks[index] = l->bulks[--l->bulk_count];
  memcpy(b.to, b.from, b.bytes);
  if (b.mbarrier != NULL) {
    const char *why = emu_mbarrier_complete(b.mbarrier, b.bytes);
    if (why != NULL) {
      emu_fault(l, b.warp, UINT32_MAX, "the mbarrier of a bulk copy: %s", why);
    }
  }
}

void emu_bulks_finish(emu_launch *l, const emu_warp *w, uint32_t lane, uint32_t group) {
  for (uint32_t i = 0; i < l->bulk_count;) {
    const emu_bulk *b = &l->bulks[i];
    if (b->warp == w && b->mbarrier == NULL && b->lane == lane && b->group < group) {
      emu_bulk_finish(l, i);
    } else {
      i++;
    }
  }
}
