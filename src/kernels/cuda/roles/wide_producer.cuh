// The producer of a wide worker's block: it walks the block's list, hands each step over, and fills
// the ring of stages. Where steps or tiles of an op follow each other, all that it needs for the
// next one is known before, so that the ring never waits for a trip to memory (docs/log/300).
#ifndef MGL_KERNELS_CUDA_ROLES_WIDE_PRODUCER_CUH
#define MGL_KERNELS_CUDA_ROLES_WIDE_PRODUCER_CUH

#include "kernels/cuda/roles/wide_worker.cuh"

// Columns [begin, end) of the tile's weights, no more than a stage has.
MGL_DEVICE void mgl_wide_prefetch_weights(const mgl_wide_worker *w, const mgl_wide_source *source,
                                          uint32_t begin, uint32_t end) {
  if (w->lane < source->blocks && begin < end) {
    mgl_bulk_to_l2(mgl_wide_weights_at(source, begin) + (uint64_t)w->lane * source->row_bytes,
                   (end - begin) * source->column_bytes);
  }
}

// Sends keys and values to the L2: pages of each warp's share of the streams, behind those that the
// warp asks for itself.
MGL_DEVICE void mgl_wide_prefetch_pages(const mgl_wide_worker *w, const mgl_wide_attention *a,
                                        uint32_t party) {
  constexpr uint32_t pages = MGL_WIDE_AHEAD_PAGES > 0 ? MGL_WIDE_AHEAD_PAGES : 1;
  constexpr uint32_t bytes = MGL_CUDA_KV_PAGE_TOKENS * MGL_HEAD_DIM * 2;  // of one KV head
  if ((int)w->lane >= (int)MGL_WIDE_AHEAD_PAGES * (int)MGL_WIDE_WARPS) {
    return;
  }
  const mgl_wide_cut *cuts = a->work->stream_cuts + party * MGL_WIDE_WARPS + w->lane / pages;
  const mgl_wide_cut cut = cuts[0];
  if (!mgl_wide_before(&cut, &cuts[1])) {
    return;
  }
  const uint32_t step = cut.step + MGL_WIDE_ATTEND_AHEAD + w->lane % pages;
  if (step < a->work->items[cut.item].steps) {
    const int32_t page = a->block_tables[(size_t)cut.slot * a->block_table_stride + step];
    const size_t at = ((size_t)(uint32_t)page * a->kv_heads + cut.head) * (bytes / 2);
    mgl_bulk_to_l2(a->k_cache + at, bytes);
    mgl_bulk_to_l2(a->v_cache + at, bytes);
  }
}

// Until a stage of the ring is free.
MGL_DEVICE void mgl_wide_wait_stage(mgl_wide_worker *w, uint32_t at) {
  mgl_mbarrier_wait(&w->block->empty[at % MGL_WIDE_STAGES], (at / MGL_WIDE_STAGES & 1) ^ 1);
}

// Whether it is.
MGL_DEVICE bool mgl_wide_has_stage(const mgl_wide_worker *w, uint32_t at) {
  const bool free =
      mgl_mbarrier_test(&w->block->empty[at % MGL_WIDE_STAGES], (at / MGL_WIDE_STAGES & 1) ^ 1);
  return __all_sync(0xffffffffu, free) != 0;
}

// Until the linear's event is activated: asks for weights. Returns the stages of the ring that it
// has asked for, *open: whether the launch goes on.
MGL_DEVICE uint32_t mgl_wide_ask_ahead(mgl_wide_worker *w, const mgl_wide_slot *slot,
                                       const mgl_wide_source *source, uint32_t stages, bool *open) {
  // What is made of codes is not there before the event.
  const bool there = !MGL_HAS_CODES || (slot->op.flags & MGL_WIDE_WIDENED) == 0;
  const uint32_t ring = there ? mgl_wide_least(stages, MGL_WIDE_STAGES) : 0;
  uint32_t asked = 0;                                          // stages of the ring
  uint32_t fetched = ring * MGL_WIDE_COLUMNS - source->lacks;  // columns for the L2 end here
  const uint32_t most = mgl_wide_least(source->columns, fetched + source->ahead);
  uint32_t due = (uint32_t)clock();
  mgl_wide_state state;
  while ((state = mgl_wide_look(w, &slot->step)) == MGL_WIDE_CLOSED) {
    const uint32_t now = __shfl_sync(0xffffffffu, (uint32_t)clock(), 0);
    while (asked < ring && (int32_t)(now - due) >= 0 && mgl_wide_has_stage(w, w->stage + asked)) {
      mgl_wide_load_weights(w, source, w->stage + asked, asked);
      asked++;
      due = now + MGL_WIDE_COLUMNS * source->pace;
    }
    if (asked == ring && fetched < most && (int32_t)(now - due) >= 0) {
      const uint32_t end = mgl_wide_least(most, fetched + MGL_WIDE_COLUMNS);
      mgl_wide_prefetch_weights(w, source, fetched, end);
      fetched = end;
      due = now + MGL_WIDE_COLUMNS * source->pace;
    }
  }
  *open = state == MGL_WIDE_OPEN;
  return asked;
}

// The stages of a linear's tile. known: its event is activated; else weights come ahead of it.
// False: the launch was ended.
MGL_DEVICE bool mgl_wide_produce_tile(mgl_wide_worker *w, const mgl_wide_slot *slot, bool known) {
  const mgl_wide_tile tile = mgl_wide_tile_of(w, slot);
  const mgl_wide_source source = mgl_wide_source_of(slot, &tile);
  const uint32_t count = mgl_wide_ring_stages(source.columns, source.lacks);
  uint32_t ahead = 0;
  if (!known) {
    bool open = true;
    ahead = mgl_wide_ask_ahead(w, slot, &source, count, &open);
    if (!open) {
      return false;
    }
  }
  if (w->lane == 0) {
    mgl_mbarrier_arrive(&w->block->go[w->slot]);
  }
  for (uint32_t i = 0; i < ahead; i++) {
    mgl_wide_load_x(w, &source, w->stage + i, i);
  }
  for (uint32_t i = ahead; i < count; i++) {
    mgl_wide_wait_stage(w, w->stage + i);
    mgl_wide_load_weights(w, &source, w->stage + i, i);
    mgl_wide_load_x(w, &source, w->stage + i, i);
  }
  w->stage += count;
  return true;
}

// Until the next slot is free.
MGL_DEVICE void mgl_wide_wait_slot(mgl_wide_worker *w) {
  mgl_mbarrier_wait(&w->block->stored[w->slot], w->parity ^ 1);
  mgl_mbarrier_wait(&w->block->factored[w->slot], w->parity ^ 1);
}

// Copies what the slot before has into this one, once that is free.
MGL_DEVICE void mgl_wide_repeat_slot(mgl_wide_worker *w) {
  mgl_wide_wait_slot(w);
  if (w->lane < sizeof(mgl_wide_slot) / 16) {
    ((uint4 *)&w->block->slots[w->slot])[w->lane] =
        ((const uint4 *)&w->block->slots[w->slot ^ 1])[w->lane];
  }
  __syncwarp();
}

// What a producer knows of a step of experts: its tiles, each a task of its own. What is handed
// over from one to the next is known before, so that the ring never waits for a trip to memory.
struct mgl_wide_share {
  uint32_t of_features, count;  // tiles of features, and all tiles
  uint32_t number;              // of the present one
  mgl_wide_expert_tile found;   // of lane l: of the l-th tile of 32
};

MGL_DEVICE mgl_wide_share mgl_wide_share_of(const mgl_wide_slot *slot) {
  mgl_wide_share s;
  s.of_features = mgl_wide_feature_tiles(mgl_wide_row_blocks(&slot->op));
  s.count = mgl_wide_uniform(*slot->with.experts.tile_count) * s.of_features;
  s.number = mgl_wide_uniform(slot->step.begin);
  s.found = {0, 0, 0, 0};
  return s;
}

// Tile `i` of the step into the slot.
MGL_DEVICE void mgl_wide_hand_tile(mgl_wide_worker *w, mgl_wide_share *s, uint32_t i) {
  mgl_wide_slot *slot = &w->block->slots[w->slot];
  const uint32_t columns = slot->op.k_padded / MGL_WIDE_K;
  if (i % 32 == 0) {
    const uint32_t own = s->number + w->lane * gridDim.x;
    s->found = own < s->count ? slot->with.experts.tiles[own / s->of_features]
                              : mgl_wide_expert_tile{0, 0, 0, 0};
    s->found.flags |= own < s->count && s->count - own > gridDim.x ? MGL_WIDE_EXPERT_MORE : 0;
  }
  if (w->lane == i % 32) {
    w->block->expert_tiles[w->slot] = s->found;
    slot->step.begin = s->number * columns;
    slot->step.end = (s->number + 1) * columns;
  }
  __syncwarp();
}

// A linear: weights ahead, then the event, then the rest. known: it is activated. The list of tiles
// is there before experts_up, whose end experts_down waits for. False: the launch was ended. (One
// loop is for all linears of a mixture, since a second place for a tile would spill; in a dense
// model's kernel the loop itself would.)
MGL_DEVICE bool mgl_wide_produce_linear(mgl_wide_worker *w, const mgl_wide_slot *slot, bool known) {
  if constexpr (!MGL_WIDE_EXPERTS) {
    return mgl_wide_produce_tile(w, slot, known);
  }
  const uint32_t kind = mgl_wide_uniform(slot->op.kind);
  const bool shared = mgl_wide_is_of_experts(kind);
  mgl_wide_share share = {};
  if (mgl_wide_is_up(kind) && !known) {
    if (!mgl_wide_wait_event(w, &slot->step)) {
      return false;
    }
    known = true;
  }
  if (shared) {
    share = mgl_wide_share_of(slot);
  }
#pragma unroll 1
  for (uint32_t i = 0;; i++) {
    if (shared && i > 0) {
      mgl_wide_next_slot(w);
      mgl_wide_repeat_slot(w);
    }
    if (shared) {
      mgl_wide_hand_tile(w, &share, i);
      share.number += gridDim.x;
    }
    if (!mgl_wide_produce_tile(w, &w->block->slots[w->slot], known)) {
      return false;
    }
    if (!shared || share.number >= share.count) {
      return true;
    }
    known = true;
  }
}

// One warp, once in a launch: finds the tiles of tokens with rows whose logits are wanted.
MGL_DEVICE void mgl_wide_find_wanted(const mgl_wide_worker *w) {
  const mgl_wide_plan *plan = w->run->plan;
  static_assert(MGL_MAX_ITERATION_TOKENS <= 32 * MGL_WIDE_TILE_TOKENS, "a bit each");
  uint32_t mask = 0;
  for (uint32_t i = w->lane; i < w->block->logit_rows; i += 32) {
    mask |= 1u << plan->logit_rows[i] / MGL_WIDE_TILE_TOKENS;
  }
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) {
    mask |= __shfl_xor_sync(0xffffffffu, mask, offset);
  }
  if ((mask >> w->lane & 1) != 0) {
    w->block->wanted[__popc(mask & ((1u << w->lane) - 1))] = (uint8_t)w->lane;
  }
  if (w->lane == 0) {
    w->block->wanted_count = (uint32_t)__popc(mask);
    w->block->wanted_bits = mask;
  }
  __syncwarp();
}

// The same out of line.
static __device__ __noinline__ void mgl_wide_find_wanted_apart(const mgl_wide_worker *w) {
  mgl_wide_find_wanted(w);
}

MGL_DEVICE void mgl_wide_find_wanted_once(const mgl_wide_worker *w) {
  if constexpr (MGL_WIDE_WANTED_APART) {
    mgl_wide_find_wanted_apart(w);
  } else {
    mgl_wide_find_wanted(w);
  }
}

// Linears behind the last attention have steps for all tiles of tokens, but few of these are
// wanted. The wanted ones come first in the line of tiles, so that all workers have the same number
// of them, but for one; who has none has nothing to do: its begin is its end.
MGL_DEVICE void mgl_wide_pick_tile(const mgl_wide_block *block, mgl_wide_slot *slot) {
  const mgl_cuda_op *op = &slot->op;
  const bool picks = (op->flags & MGL_WIDE_WANTED) != 0;
  const uint32_t there =
      picks ? block->wanted_count
            : (block->logit_rows + MGL_WIDE_TILE_TOKENS - 1) / MGL_WIDE_TILE_TOKENS;
  const uint32_t tiles = mgl_wide_token_tiles(op);
  const uint32_t k_stages = op->k_padded / MGL_WIDE_K, begin = slot->step.begin;
  const uint32_t number = begin / k_stages;
  if (number >= mgl_wide_feature_tiles(mgl_wide_row_blocks(op)) * there) {
    slot->step.end = begin;
    return;
  }
  const uint32_t token = picks ? block->wanted[number % there] : number % there;
  slot->step.begin = (number / there * tiles + token) * k_stages + begin % k_stages;
  slot->step.end += slot->step.begin - begin;
}

// What the producer knows of its list, so that between two tiles of an op there is no trip to
// memory, in which the ring would run empty.
struct mgl_wide_known {
  uint4 piece;     // of lane l: the l-th 16 bytes of MGL_WIDE_STEPS_AT_ONCE steps
  uint32_t op;     // that the slot before has
  uint32_t event;  // that has been seen activated
};

enum { MGL_WIDE_STEPS_AT_ONCE = 16 };

// Copies a step and its op into the slot, once that is free.
MGL_DEVICE const mgl_wide_slot *mgl_wide_fill_slot(mgl_wide_worker *w, uint32_t first, uint32_t at,
                                                   uint32_t end, mgl_wide_known *known) {
  mgl_wide_slot *slot = &w->block->slots[w->slot];
  const uint32_t op_pieces = sizeof(mgl_wide_op) / 16;
  const uint32_t in_known = (at - first) % MGL_WIDE_STEPS_AT_ONCE * 2;
  static_assert(sizeof(mgl_wide_op) % 16 == 0 && sizeof(mgl_cuda_step) == 32, "16-byte pieces");
  static_assert(sizeof(mgl_wide_slot) == sizeof(mgl_wide_op) + 32, "one behind the other");
  static_assert(op_pieces <= 32 && MGL_WIDE_STEPS_AT_ONCE * 2 == 32, "a lane copies one");
  if (in_known == 0 && at * 2 + w->lane < end * 2) {
    known->piece = ((const uint4 *)w->run->steps)[at * 2 + w->lane];
  }
  const uint32_t op = __shfl_sync(0xffffffffu, known->piece.y, in_known);
  const uint4 *from = op == known->op ? (const uint4 *)&w->block->slots[w->slot ^ 1]
                                      : (const uint4 *)&w->run->ops[op];
  known->op = op;
  mgl_wide_wait_slot(w);
  if (w->lane < op_pieces) {
    ((uint4 *)slot)[w->lane] = from[w->lane];
  }
  if (w->lane - in_known < 2) {
    ((uint4 *)&slot->step)[w->lane - in_known] = known->piece;
  }
  __syncwarp();
  if (MGL_RANKS == 1 && !MGL_WIDE_WANTED_FIRST && w->block->wanted_count == 0 &&
      (slot->op.flags & MGL_WIDE_WANTED) != 0) {
    mgl_wide_find_wanted_once(w);
  }
  if (w->lane == 0) {
    slot->step.task = at;  // its number in the list
    const bool linear = mgl_op_kind_is_linear(slot->op.kind);
    const bool picks = (slot->op.flags & MGL_WIDE_WANTED) != 0;
    if (MGL_RANKS == 1 && linear && (picks || mgl_wide_is_logits(&slot->op))) {
      mgl_wide_pick_tile(w->block, slot);
    } else if (MGL_RANKS > 1 && linear && picks &&
               !mgl_wide_has_wanted(w->block, &slot->op, slot->step.begin)) {
      slot->step.end = slot->step.begin;
    }
  }
  if (w->lane == 0 && mgl_wide_has_attention(&slot->op)) {
    slot->with.attention.block_tables = w->run->block_tables;  // the plan's
  }
  __syncwarp();
  return slot;
}

// A task that is none of a linear. False: the launch was ended.
MGL_DEVICE bool mgl_wide_produce_other(mgl_wide_worker *w, const mgl_wide_slot *slot) {
  const bool early = mgl_wide_begins_early(slot->op.kind);
  const uint32_t before = w->slot ^ 1;
  if (mgl_wide_takes_ring(slot->op.kind)) {
    mgl_wide_prefetch_pages(w, &slot->with.attention, slot->step.begin);
    __syncwarp();
  }
  if (early) {  // nobody reads the ring any more
    mgl_mbarrier_wait(&w->block->done[before], before == 0 ? w->parity : w->parity ^ 1);
  } else if (!mgl_wide_wait_event(w, &slot->step)) {
    return false;
  }
  if (w->lane == 0) {
    mgl_mbarrier_arrive(&w->block->go[w->slot]);
  }
  if (mgl_wide_takes_ring(slot->op.kind)) {
    mgl_mbarrier_wait(&w->block->stored[w->slot], w->parity);
    mgl_proxy_fence();
  }
  return true;
}

MGL_DEVICE void mgl_wide_produce(mgl_wide_worker *w) {
  const uint32_t first = mgl_wide_uniform(w->run->step_start[blockIdx.x]);
  const uint32_t end = mgl_wide_uniform(w->run->step_start[blockIdx.x + 1]);
  uint32_t at = first;
  mgl_wide_known known = {{0, 0, 0, 0}, UINT32_MAX, MGL_NO_EVENT};
  bool ok = true;
  for (; at < end && ok; at++) {
    const mgl_wide_slot *slot = mgl_wide_fill_slot(w, first, at, end, &known);
    const uint32_t event = mgl_wide_uniform(slot->step.wait_event);
    ok = mgl_op_kind_is_linear(mgl_wide_uniform(slot->op.kind))
             ? mgl_wide_produce_linear(w, slot, event == known.event)
             : mgl_wide_produce_other(w, slot);
    known.event = mgl_wide_begins_early(mgl_wide_uniform(slot->op.kind)) ? known.event : event;
    mgl_wide_next_slot(w);
  }
  __syncwarp();
  if (w->lane == 0) {
    w->block->given = at - first + (ok ? 1 : 0);
    w->block->stop = 1;
  }
}

#endif
