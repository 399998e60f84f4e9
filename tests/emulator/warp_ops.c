// Ops of a warp that are more than a loop over its lanes: memory, atomics, exchanges among lanes,
// matrices, mbarriers, copies. Every address is checked before it is touched.
#include "emulator/warp_state.h"

// --- memory --------------------------------------------------------------------------------------

static void check_lane(emu_state *s, uintptr_t at, uint32_t bytes, uint32_t lane,
                       const char *what) {
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

static void check(emu_state *s, uint32_t lanes, const uintptr_t *at, uint32_t bytes, uint32_t align,
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
static void check_shared(emu_state *s, uint32_t lanes, const uintptr_t *at, uint32_t bytes,
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
static void find_addresses(emu_state *s, emu_row r, bool shared, uint32_t register_bytes,
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

void emu_do_load(emu_state *s, const emu_op *op, uint32_t lanes) {
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

void emu_do_store(emu_state *s, const emu_op *op, uint32_t lanes) {
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
bool emu_is_poll(emu_state *s, const emu_op *op, uint32_t lanes) {
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
void emu_do_load_call(emu_state *s, const emu_op *op, uint32_t lanes) {
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

void emu_do_store_call(emu_state *s, const emu_op *op, uint32_t lanes) {
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

void emu_do_pack(emu_state *s, const emu_op *op, uint32_t lanes) {
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

void emu_do_atomic(emu_state *s, const emu_op *op, uint32_t lanes) {
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

void emu_do_shuffle(emu_state *s, const emu_op *op) {
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

void emu_do_vote(emu_state *s, const emu_op *op) {
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

void emu_do_reduce(emu_state *s, const emu_op *op) {
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

void emu_do_multiply(emu_state *s, const emu_op *op) {
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

void emu_do_move_matrices(emu_state *s, const emu_op *op) {
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

void emu_do_begin_product(emu_state *s, const emu_op *op) {
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

static void must(emu_state *s, const char *why) {
  if (why != NULL) {
    emu_fault(s->l, s->w, s->pc, "%s", why);
  }
}

void emu_do_use_mbarrier(emu_state *s, const emu_op *op, uint32_t lanes) {
  uintptr_t at[32];
  find_addresses(s, op->a, true, 4, op->imm, lanes, 8, 8, "an mbarrier", at);
  FEW(lanes, {
    uint64_t *barrier = (uint64_t *)at[i];
    const uint32_t b = op->b != EMU_NO_ROW ? words(s, op->b)[i] : 0;
    const uint32_t count = op->c != EMU_NO_ROW ? words(s, op->c)[i] : 1;
    must(s, op->code == OP_MBARRIER_INIT     ? emu_mbarrier_init(barrier, b)
            : op->code == OP_MBARRIER_ARRIVE ? emu_mbarrier_arrive(barrier, count, b)
                                             : emu_mbarrier_arrive(barrier, 0, b));
  })
}

// False: the warp waits, and comes back to this op.
bool emu_ask_mbarrier(emu_state *s, const emu_op *op, uint32_t lanes, bool *passed) {
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

void emu_do_copy(emu_state *s, const emu_op *op, uint32_t lanes) {
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

void emu_do_copy_arrive(emu_state *s, const emu_op *op, uint32_t lanes) {
  uintptr_t to[32];
  find_addresses(s, op->a, true, 4, op->imm, lanes, 8, 8, "an mbarrier", to);
  emu_copy *c = emu_copy_add(s->w);
  c->lanes = lanes;
  c->arrives = true;
  FEW(lanes, c->to[i] = (uint8_t *)to[i];)
}

void emu_do_bulk(emu_state *s, const emu_op *op, uint32_t lanes) {
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
