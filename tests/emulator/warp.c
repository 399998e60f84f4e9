// Runs a warp for a share of steps: one loop over ops, a case for each; machine.h says how lanes
// part and meet. An op of all 32 lanes is a loop that compilers make vectors of; of few lanes, as in
// the roles that one lane plays, it is done for these alone.
//
// Floats: rounded as IEEE says, NaNs that come out are 0x7fffffff, as a GPU's.
#include <stdlib.h>

#include "emulator/arithmetic.h"

// --- groups of lanes -----------------------------------------------------------------------------

static void park(emu_state *s, uint32_t lanes, uint32_t pc) {
  while (s->m->ops[pc].code == OP_JOIN) {
    pc++;
  }
  FEW(lanes, s->w->pc[i] = pc;)
}

static void choose(emu_state *s, uint32_t lane, uint32_t runnable) {
  emu_warp *w = s->w;
  s->pc = w->pc[lane];
  s->frame = w->frame[lane];
  s->act = 0;
  FEW(runnable, s->act |= w->pc[i] == s->pc && w->frame[i] == s->frame ? 1u << i : 0;)
  s->bases[EMU_FRAME] = w->frames + s->frame;
}

// Takes the group of lanes that goes on: the deepest, of those the earliest.
static void pick(emu_state *s) {
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
static bool gather(emu_state *s, uint32_t need) {
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

static uint32_t masks_of(const emu_state *s, const uint32_t *row_of_masks) {
  uint32_t need = 0;
  FEW(s->act, need |= row_of_masks[i];)
  return need;
}

// --- calls and barriers --------------------------------------------------------------------------

static void call(emu_state *s, const emu_op *op) {
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
static bool go_back(emu_state *s) {
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
static bool block_barrier(emu_state *s, const emu_op *op) {
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

static void end_warp(emu_state *s) {
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
static void part(emu_state *s, uint32_t lanes) {
  if (lanes != s->act) {
    park(s, s->act & ~lanes, s->pc + 1);
    s->act = lanes;
  }
}

uint32_t emu_warp_run(emu_warp *w, uint32_t steps) {
  emu_state s = {.w = w, .l = w->block->launch};
  s.m = s.l->kernel->module;
  s.bases[EMU_CONSTANTS] = s.m->constants;
  s.bases[EMU_SPECIALS] = (uint8_t *)w->specials;
  uint32_t used = 0;
  uint64_t *counts =
      s.m->counts != NULL ? s.m->counts + w->index % EMU_COUNTED_WARPS * s.m->op_count : NULL;
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
    if (counts != NULL) {
      counts[s.pc]++;
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
      case OP_UNPACK: emu_do_pack(&s, op, m); break;
      case OP_LOAD: {
        emu_do_load(&s, op, m);
        if ((op->how & EMU_STRONG) != 0 && emu_is_poll(&s, op, m)) {
          w->asleep_until = emu_steps + 64 + emu_random(s.l) % 128;
          steps = used + 1;
        }
        break;
      }
      case OP_STORE: emu_do_store(&s, op, m); break;
      case OP_LOAD_CALL: emu_do_load_call(&s, op, m); break;
      case OP_STORE_CALL: emu_do_store_call(&s, op, m); break;
      case OP_ATOMIC: emu_do_atomic(&s, op, m); break;
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
          emu_do_shuffle(&s, op);
        } else if (op->code == OP_VOTE) {
          emu_do_vote(&s, op);
        } else if (op->code == OP_REDUX) {
          emu_do_reduce(&s, op);
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
          emu_do_multiply(&s, op);
        } else if (op->code == OP_MOVMATRIX) {
          emu_movmatrix(words(&s, op->d), words(&s, op->a));
        } else if (op->code == OP_WGMMA) {
          emu_do_begin_product(&s, op);
        } else {
          emu_do_move_matrices(&s, op);
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
      case OP_MBARRIER_EXPECT: emu_do_use_mbarrier(&s, op, m); break;
      case OP_MBARRIER_TEST:
      case OP_MBARRIER_TRY: {
        bool passed = false;
        if (!emu_ask_mbarrier(&s, op, m, &passed)) {
          park(&s, s.act, s.pc);
          return used + 1;
        }
        if (!passed) {
          w->asleep_until = emu_steps + 16 + emu_random(s.l) % 64;
          steps = used + 1;
        }
        break;
      }
      case OP_COPY: emu_do_copy(&s, op, m); break;
      case OP_COPY_ARRIVE: emu_do_copy_arrive(&s, op, m); break;
      case OP_COPY_COMMIT: w->copy_group++; break;
      case OP_COPY_WAIT:
        emu_copies_finish(w,
                          op->imm < 0               ? UINT32_MAX
                          : w->copy_group > op->imm ? w->copy_group - (uint32_t)op->imm
                                                    : 0,
                          0);
        break;
      case OP_BULK_IN:
      case OP_BULK_OUT: emu_do_bulk(&s, op, m); break;
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
