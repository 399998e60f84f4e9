// The small tasks of experts in large iterations: who has which, sorting rows, and adding up what
// experts made of them (twin/wide_experts.h). All consumers of a block work on a unit together.
#ifndef MGL_KERNELS_CUDA_SMALL_WIDE_EXPERTS_CUH
#define MGL_KERNELS_CUDA_SMALL_WIDE_EXPERTS_CUH

#include "kernels/cuda/common/expert_choice.cuh"
#include "kernels/cuda/small/wide_tasks.cuh"

enum {
  MGL_WIDE_UNIT_SLOTS = MGL_WIDE_ROUTED * MGL_EXPERT_SLOTS,
  MGL_WIDE_WARP_ROWS = MGL_WIDE_ROUTED / MGL_WIDE_CONSUMER_WARPS,
  // In the memory of staged output, as words: of route how many rows of a unit have each expert,
  // and a row's routes for each warp; of sorting each expert's rows, those of the units before,
  // where they begin, and their first tile; then the unit's experts and places, and its rows'
  // factors.
  MGL_WIDE_COUNTS_AT = 0,
  MGL_WIDE_ROUTES_AT = (MGL_EXPERTS + 1) / 2 * 2,
  MGL_WIDE_TOTALS_AT = 0,
  MGL_WIDE_BEFORE_AT = MGL_EXPERTS,
  MGL_WIDE_BEGIN_AT = 2 * MGL_EXPERTS,
  MGL_WIDE_FIRST_TILE_AT = 3 * MGL_EXPERTS,
  MGL_WIDE_USED_TILES_AT = 4 * MGL_EXPERTS,
  MGL_WIDE_UNIT_EXPERTS_AT = MGL_WIDE_USED_TILES_AT + 1,
  MGL_WIDE_UNIT_PLACES_AT = MGL_WIDE_UNIT_EXPERTS_AT + MGL_WIDE_UNIT_SLOTS,
  MGL_WIDE_UNIT_FACTORS_AT = MGL_WIDE_UNIT_PLACES_AT + MGL_WIDE_UNIT_SLOTS,
};

static_assert((MGL_WIDE_UNIT_FACTORS_AT + MGL_WIDE_ROUTED) * 4 <= MGL_WIDE_STAGED_BYTES &&
                  (MGL_WIDE_ROUTES_AT + MGL_WIDE_CONSUMER_WARPS * MGL_EXPERT_SLOTS * 2) * 4 <=
                      MGL_WIDE_STAGED_BYTES,
              "room for a unit");
static_assert(!MGL_HAS_EXPERTS ||
                  (MGL_WIDE_UNIT_SLOTS <= MGL_WIDE_CONSUMERS && MGL_EXPERT_SLOTS <= 32),
              "a thread for each slot of a unit, a lane for each of a row");

// --- route ---------------------------------------------------------------------------------------

// A warp: the experts of a row, into its routes and the unit's counts.
MGL_DEVICE void mgl_wide_route_row(const mgl_wide_worker *w, const mgl_wide_slot *slot,
                                   uint32_t row) {
  const uint32_t counts = mgl_shared_address(w->staged);
  const uint32_t routes_at = counts + (MGL_WIDE_ROUTES_AT + w->warp * MGL_EXPERT_SLOTS * 2) * 4;
  const uint32_t *from = (const uint32_t *)slot->op.x + (size_t)row * MGL_EXPERTS;
  uint32_t logits[MGL_EXPERT_LANE_LOGITS];
#pragma unroll
  for (uint32_t i = 0; i < MGL_EXPERT_LANE_LOGITS; i++) {
    const uint32_t expert = i * 32 + w->lane;
    logits[i] = MGL_EXPERTS % 32 == 0 || expert < MGL_EXPERTS ? from[expert] : 0xff800000u;
  }
  mgl_expert_choose(logits, routes_at);
  __syncwarp();
  if (w->lane < MGL_EXPERT_SLOTS) {
    const uint32_t at = routes_at + w->lane * MGL_EXPERT_ROUTE_BYTES;
    const uint32_t expert = mgl_load_shared_word(at);
    asm volatile("red.shared.add.u32 [%0], 1;" ::"r"(counts + expert * 4) : "memory");
    slot->with.experts.routes[(size_t)row * MGL_EXPERT_SLOTS + w->lane] = {
        expert, __uint_as_float(mgl_load_shared_word(at + 4))};
  }
  __syncwarp();
}

MGL_DEVICE void mgl_wide_choose(mgl_wide_worker *w, const mgl_wide_slot *slot) {
  const uint32_t thread = w->warp * 32 + w->lane;
  const uint32_t counts = mgl_shared_address(w->staged);
  mgl_wide_wait_staged(w);
#pragma unroll 1
  for (uint32_t unit = slot->step.begin; unit < slot->step.end; unit++) {
    mgl_sync_wide_consumers();
    for (uint32_t expert = thread; expert < MGL_EXPERTS; expert += MGL_WIDE_CONSUMERS) {
      mgl_store_shared_word(counts + expert * 4, 0);
    }
    mgl_sync_wide_consumers();
#pragma unroll 1
    for (uint32_t i = 0; i < MGL_WIDE_WARP_ROWS; i++) {
      const uint32_t row = unit * MGL_WIDE_ROUTED + w->warp * MGL_WIDE_WARP_ROWS + i;
      if (row < w->block->token_count) {
        mgl_wide_route_row(w, slot, row);
      }
    }
    mgl_sync_wide_consumers();
    for (uint32_t expert = thread; expert < MGL_EXPERTS; expert += MGL_WIDE_CONSUMERS) {
      slot->with.experts.counts[(size_t)unit * MGL_EXPERTS + expert] =
          mgl_load_shared_word(counts + expert * 4);
    }
  }
}

// --- sorting -------------------------------------------------------------------------------------

// How many rows have each expert, and how many of them are of units before this one.
MGL_DEVICE void mgl_wide_count_rows(const mgl_wide_worker *w, const mgl_wide_slot *slot,
                                    uint32_t unit) {
  constexpr uint32_t batch = 32;  // on their way at once
  const uint32_t at = mgl_shared_address(w->staged);
  const uint32_t units = (w->block->token_count + MGL_WIDE_ROUTED - 1) / MGL_WIDE_ROUTED;
  for (uint32_t expert = w->warp * 32 + w->lane; expert < MGL_EXPERTS;
       expert += MGL_WIDE_CONSUMERS) {
    const uint32_t *counts = slot->with.experts.counts + expert;
    uint32_t total = 0, before = 0;
#pragma unroll 1
    for (uint32_t first = 0; first < units; first += batch) {
      uint32_t v[batch];
#pragma unroll
      for (uint32_t i = 0; i < batch; i++) {
        v[i] = counts[(size_t)mgl_wide_least(first + i, units - 1) * MGL_EXPERTS];
      }
#pragma unroll
      for (uint32_t i = 0; i < batch; i++) {
        total += first + i < units ? v[i] : 0;
        before += first + i < unit ? v[i] : 0;
      }
    }
    mgl_store_shared_word(at + (MGL_WIDE_TOTALS_AT + expert) * 4, total);
    mgl_store_shared_word(at + (MGL_WIDE_BEFORE_AT + expert) * 4, before);
  }
}

MGL_DEVICE uint32_t mgl_wide_tiles_of_rows(uint32_t rows) {
  return (rows + MGL_WIDE_TILE_TOKENS - 1) / MGL_WIDE_TILE_TOKENS;
}

// One warp: where each expert's rows and tiles begin.
MGL_DEVICE void mgl_wide_begin_experts(const mgl_wide_worker *w) {
  const uint32_t at = mgl_shared_address(w->staged);
  uint32_t row = 0, tile = 0;
#pragma unroll 1
  for (uint32_t first = 0; first < MGL_EXPERTS; first += 32) {
    const uint32_t expert = first + w->lane;
    const bool there = expert < MGL_EXPERTS;
    const uint32_t rows = there ? mgl_load_shared_word(at + (MGL_WIDE_TOTALS_AT + expert) * 4) : 0;
    const uint32_t taken = (rows + 7) / 8 * 8, tiles = mgl_wide_tiles_of_rows(rows);
    uint32_t rows_until = taken, tiles_until = tiles;  // of the lanes up to this one
#pragma unroll
    for (uint32_t step = 1; step < 32; step *= 2) {
      const uint32_t other_rows = __shfl_up_sync(0xffffffffu, rows_until, step);
      const uint32_t other_tiles = __shfl_up_sync(0xffffffffu, tiles_until, step);
      rows_until += w->lane >= step ? other_rows : 0;
      tiles_until += w->lane >= step ? other_tiles : 0;
    }
    if (there) {
      mgl_store_shared_word(at + (MGL_WIDE_BEGIN_AT + expert) * 4, row + rows_until - taken);
      mgl_store_shared_word(at + (MGL_WIDE_FIRST_TILE_AT + expert) * 4, tile + tiles_until - tiles);
    }
    row += __shfl_sync(0xffffffffu, rows_until, 31);
    tile += __shfl_sync(0xffffffffu, tiles_until, 31);
  }
  if (w->lane == 0) {
    mgl_store_shared_word(at + MGL_WIDE_USED_TILES_AT * 4, tile);
  }
}

// The list of tiles.
MGL_DEVICE void mgl_wide_list_tiles(const mgl_wide_worker *w, const mgl_wide_slot *slot) {
  const mgl_wide_experts *e = &slot->with.experts;
  const uint32_t at = mgl_shared_address(w->staged), thread = w->warp * 32 + w->lane;
  for (uint32_t expert = thread; expert < MGL_EXPERTS; expert += MGL_WIDE_CONSUMERS) {
    const uint32_t rows = mgl_load_shared_word(at + (MGL_WIDE_TOTALS_AT + expert) * 4);
    const uint32_t begin = mgl_load_shared_word(at + (MGL_WIDE_BEGIN_AT + expert) * 4);
    const uint32_t first = mgl_load_shared_word(at + (MGL_WIDE_FIRST_TILE_AT + expert) * 4);
    for (uint32_t i = 0; i < mgl_wide_tiles_of_rows(rows); i++) {
      const uint32_t done = i * MGL_WIDE_TILE_TOKENS;
      e->tiles[first + i] = {expert, begin + done,
                             mgl_wide_least(rows - done, MGL_WIDE_TILE_TOKENS),
                             rows <= MGL_WIDE_TILE_TOKENS ? (uint32_t)MGL_WIDE_EXPERT_ALONE : 0};
    }
  }
  if (thread == 0) {
    *e->tile_count = mgl_load_shared_word(at + MGL_WIDE_USED_TILES_AT * 4);
  }
}

// The unit's rows: their experts and factors, by the threads that count fewest rows.
MGL_DEVICE void mgl_wide_take_unit(const mgl_wide_worker *w, const mgl_wide_slot *slot,
                                   uint32_t unit) {
  constexpr uint32_t batch = 16;  // ranges on their way at once
  const mgl_wide_experts *e = &slot->with.experts;
  const uint32_t at = mgl_shared_address(w->staged);
  const uint32_t thread = MGL_WIDE_CONSUMERS - 1 - (w->warp * 32 + w->lane);
  const uint32_t row = unit * MGL_WIDE_ROUTED + thread / MGL_EXPERT_SLOTS;
  if (thread < MGL_WIDE_UNIT_SLOTS) {
    const bool there = row < w->block->token_count;
    const uint32_t expert =
        there ? e->routes[(size_t)unit * MGL_WIDE_UNIT_SLOTS + thread].expert : MGL_EXPERTS;
    mgl_store_shared_word(at + (MGL_WIDE_UNIT_EXPERTS_AT + thread) * 4, expert);
  }
  if (thread < MGL_WIDE_ROUTED) {
    const uint32_t ranges = (slot->op.k + MGL_WIDE_NORM_RANGE - 1) / MGL_WIDE_NORM_RANGE;
    const float *from = e->squares + unit * MGL_WIDE_ROUTED + thread;
    float squares = 0;
#pragma unroll 1
    for (uint32_t first = 0; first < ranges; first += batch) {
      float v[batch];
#pragma unroll
      for (uint32_t i = 0; i < batch; i++) {
        v[i] = from[(size_t)mgl_wide_least(first + i, ranges - 1) * slot->op.tokens];
      }
#pragma unroll
      for (uint32_t i = 0; i < batch; i++) {
        squares += first + i < ranges ? v[i] : 0;
      }
    }
    mgl_store_shared_word(at + (MGL_WIDE_UNIT_FACTORS_AT + thread) * 4,
                          __float_as_uint(mgl_wide_factor(&slot->op, squares)));
  }
}

// The places of a unit's slots: behind those of units and rows before.
MGL_DEVICE void mgl_wide_place_slots(const mgl_wide_worker *w, const mgl_wide_slot *slot,
                                     uint32_t unit) {
  const mgl_wide_experts *e = &slot->with.experts;
  const uint32_t at = mgl_shared_address(w->staged), thread = w->warp * 32 + w->lane;
  const uint32_t in_unit = thread / MGL_EXPERT_SLOTS;
  const uint32_t row = unit * MGL_WIDE_ROUTED + in_unit;
  const bool there = thread < MGL_WIDE_UNIT_SLOTS && row < w->block->token_count;
  const size_t of_slot = (size_t)unit * MGL_WIDE_UNIT_SLOTS + thread;
  if (there) {
    const mgl_wide_route route = e->routes[of_slot];
    uint32_t place = mgl_load_shared_word(at + (MGL_WIDE_BEGIN_AT + route.expert) * 4) +
                     mgl_load_shared_word(at + (MGL_WIDE_BEFORE_AT + route.expert) * 4);
#pragma unroll 8
    for (uint32_t i = 0; i < in_unit * MGL_EXPERT_SLOTS; i++) {
      const uint32_t other = mgl_load_shared_word(at + (MGL_WIDE_UNIT_EXPERTS_AT + i) * 4);
      place += other == route.expert ? 1 : 0;
    }
    const uint32_t factor = mgl_load_shared_word(at + (MGL_WIDE_UNIT_FACTORS_AT + in_unit) * 4);
    mgl_store_shared_word(at + (MGL_WIDE_UNIT_PLACES_AT + thread) * 4, place);
    e->places[of_slot] = place;
    e->rows[place] = {__uint_as_float(factor), route.weight};
  }
}

// A warp: a row's x to all its places.
MGL_DEVICE void mgl_wide_copy_row(const mgl_wide_worker *w, const mgl_wide_slot *slot, uint32_t row,
                                  uint32_t in_unit) {
  constexpr uint32_t batch = 8;  // chunks of a lane on their way at once
  const uint32_t places =
      mgl_shared_address(w->staged) + (MGL_WIDE_UNIT_PLACES_AT + in_unit * MGL_EXPERT_SLOTS) * 4;
  const uint8_t *x = (const uint8_t *)slot->op.x;
  uint8_t *out = (uint8_t *)slot->op.out;
  const uint32_t chunks = slot->op.k_padded / 8;
#pragma unroll 1
  for (uint32_t first = w->lane; first < chunks; first += batch * 32) {
    uint4 v[batch];
#pragma unroll
    for (uint32_t i = 0; i < batch; i++) {
      const uint32_t chunk = mgl_wide_least(first + i * 32, chunks - 1);
      v[i] = *(const uint4 *)(x + mgl_wide_x_chunk(slot->op.tokens, row, chunk));
    }
#pragma unroll 1
    for (uint32_t slot_idx = 0; slot_idx < MGL_EXPERT_SLOTS; slot_idx++) {
      const uint32_t place = mgl_load_shared_word(places + slot_idx * 4);
#pragma unroll
      for (uint32_t i = 0; i < batch; i++) {
        const uint32_t chunk = first + i * 32;
        if (chunk < chunks) {
          *(uint4 *)(out + mgl_wide_x_chunk(slot->with.experts.sorted_rows, place, chunk)) = v[i];
        }
      }
    }
  }
}

MGL_DEVICE void mgl_wide_sort(mgl_wide_worker *w, const mgl_wide_slot *slot) {
  mgl_wide_wait_staged(w);
#pragma unroll 1
  for (uint32_t unit = slot->step.begin; unit < slot->step.end; unit++) {
    mgl_sync_wide_consumers();
    mgl_wide_take_unit(w, slot, unit);
    mgl_wide_count_rows(w, slot, unit);
    mgl_sync_wide_consumers();
    if (w->warp == 0) {
      mgl_wide_begin_experts(w);
    }
    mgl_sync_wide_consumers();
    if (unit == 0) {
      mgl_wide_list_tiles(w, slot);
    }
    mgl_wide_place_slots(w, slot, unit);
    mgl_sync_wide_consumers();
#pragma unroll 1
    for (uint32_t i = 0; i < MGL_WIDE_WARP_ROWS; i++) {
      const uint32_t in_unit = w->warp * MGL_WIDE_WARP_ROWS + i;
      const uint32_t row = unit * MGL_WIDE_ROUTED + in_unit;
      if (row < w->block->token_count) {
        mgl_wide_copy_row(w, slot, row, in_unit);
      }
    }
  }
}

// --- add -----------------------------------------------------------------------------------------

// A unit is eight tokens by MGL_WIDE_NORM_RANGE features, of which a lane has eight of one token.
// So a warp adds up a few tokens at once, and what all their slots have is on its way together.
enum {
  MGL_WIDE_ADD_LANES = MGL_WIDE_NORM_RANGE / 8,                          // of a token
  MGL_WIDE_ADD_TOKENS = 32 / MGL_WIDE_ADD_LANES,                         // at a time
  MGL_WIDE_ADD_TIMES = MGL_HAS_EXPERTS && MGL_EXPERT_SLOTS > 8 ? 1 : 2,  // times at once
  MGL_WIDE_ADD_PLACES = (8 * MGL_EXPERT_SLOTS + 31) / 32,  // of a lane, of all the unit's slots
};

MGL_DEVICE void mgl_wide_add_pair(float *sums, uint32_t pair) {
  sums[0] += __uint_as_float(pair << 16);
  sums[1] += __uint_as_float(pair & 0xffff0000u);
}

// A warp: the sums of tokens of a unit, of which there are so many, from `first` on, into shared
// memory in the form of the residual stream. places: as the lanes have them; rows: of the range.
MGL_DEVICE void mgl_wide_sum_slots(const mgl_wide_worker *w, const uint16_t *rows, uint32_t row,
                                   const uint32_t (&places)[MGL_WIDE_ADD_PLACES], uint32_t tokens,
                                   uint32_t first, uint32_t at) {
  uint4 v[MGL_WIDE_ADD_TIMES][MGL_EXPERT_SLOTS];
  const uint32_t feature = w->lane % MGL_WIDE_ADD_LANES * 8;
#pragma unroll
  for (uint32_t time = 0; time < MGL_WIDE_ADD_TIMES; time++) {
    const uint32_t token = first + time * MGL_WIDE_ADD_TOKENS + w->lane / MGL_WIDE_ADD_LANES;
#pragma unroll
    for (uint32_t i = 0; i < MGL_EXPERT_SLOTS; i++) {
      const uint32_t number = token * MGL_EXPERT_SLOTS + i;
      uint32_t place = 0;
#pragma unroll
      for (uint32_t j = 0; j < MGL_WIDE_ADD_PLACES; j++) {
        const uint32_t other = __shfl_sync(0xffffffffu, places[j], number % 32);
        place = number / 32 == j ? other : place;
      }
      v[time][i] = *(const uint4 *)(rows + (size_t)place * row + feature);
    }
  }
#pragma unroll
  for (uint32_t time = 0; time < MGL_WIDE_ADD_TIMES; time++) {
    const uint32_t token = first + time * MGL_WIDE_ADD_TOKENS + w->lane / MGL_WIDE_ADD_LANES;
    float sums[8] = {0, 0, 0, 0, 0, 0, 0, 0};
#pragma unroll
    for (uint32_t i = 0; i < MGL_EXPERT_SLOTS; i++) {
      mgl_wide_add_pair(sums, v[time][i].x);
      mgl_wide_add_pair(sums + 2, v[time][i].y);
      mgl_wide_add_pair(sums + 4, v[time][i].z);
      mgl_wide_add_pair(sums + 6, v[time][i].w);
    }
#pragma unroll
    for (uint32_t i = 0; i < 8; i++) {
      mgl_store_shared_word(at + (uint32_t)mgl_wide_residual_offset(8, token, feature + i),
                            __float_as_uint(token < tokens ? sums[i] : 0));
    }
  }
}

// A warp's memory for the sums of a unit.
MGL_DEVICE uint32_t mgl_wide_sums_at(const mgl_wide_worker *w) {
  static_assert(MGL_WIDE_CONSUMER_WARPS * 8 * MGL_WIDE_NORM_RANGE * 4 <= MGL_WIDE_STAGED_BYTES,
                "room for all warps");
  return mgl_shared_address(w->staged) + w->warp * (8 * MGL_WIDE_NORM_RANGE * 4);
}

// Places of the slots of a unit of so many tokens, of a lane; else the first row.
MGL_DEVICE void mgl_wide_take_places(const mgl_wide_worker *w, const mgl_wide_slot *slot,
                                     uint32_t unit, uint32_t tokens,
                                     uint32_t (&places)[MGL_WIDE_ADD_PLACES]) {
  const uint32_t *from = slot->with.experts.places + (size_t)unit * 8 * MGL_EXPERT_SLOTS;
#pragma unroll
  for (uint32_t j = 0; j < MGL_WIDE_ADD_PLACES; j++) {
    const uint32_t number = j * 32 + w->lane;
    places[j] = number < tokens * MGL_EXPERT_SLOTS ? from[number] : 0;
  }
}

// The norm behind: of a unit of the residual stream what mgl_wide_weigh_whole makes of it.
MGL_DEVICE void mgl_wide_weigh_added(const mgl_wide_worker *w, const mgl_wide_slot *slot,
                                     uint32_t unit, uint32_t range,
                                     const float4 (&v)[MGL_WIDE_NORM_RANGE / 16]) {
  constexpr uint32_t columns = MGL_WIDE_NORM_RANGE / 16;
  const mgl_wide_reach here = {nullptr, {true, true}};
  const mgl_wide_experts *e = &slot->with.experts;
  const float *norm = slot->op.norm + range * MGL_WIDE_NORM_RANGE + w->lane / 4;
  float weights[2 * columns];
  float sums[2] = {0, 0};
#pragma unroll
  for (uint32_t i = 0; i < 2 * columns; i++) {
    weights[i] = __ldg(norm + 8 * i);
  }
#pragma unroll
  for (uint32_t i = 0; i < columns; i++) {
    sums[0] += v[i].x * v[i].x + v[i].z * v[i].z;
    sums[1] += v[i].y * v[i].y + v[i].w * v[i].w;
  }
#pragma unroll
  for (uint32_t i = 0; i < columns; i += 2) {
    mgl_wide_store_chunk(&here, e->x, slot->op.tokens, unit, (range * columns + i) / 2, w->lane,
                         v[i], v[i + 1], weights + 2 * i);
  }
  mgl_wide_store_squares(&here, e->squares, slot->op.tokens, unit, range, w->lane, sums);
}

// Units as those of norms.
MGL_DEVICE void mgl_wide_task_add(mgl_wide_worker *w, const mgl_wide_slot *slot) {
  constexpr uint32_t columns = MGL_WIDE_NORM_RANGE / 16;
  const mgl_cuda_op *op = &slot->op;
  const uint32_t of_range = op->tokens / 8, count = w->block->token_count;
  const uint32_t at = mgl_wide_sums_at(w);
  mgl_wide_wait_staged(w);
#pragma unroll 1
  for (uint32_t i = slot->step.begin + w->warp; i < slot->step.end; i += MGL_WIDE_CONSUMER_WARPS) {
    const uint32_t unit = i % of_range, range = i / of_range, first = range * columns;
    if (unit * 8 >= count) {
      continue;
    }
    float4 *to = (float4 *)op->out + mgl_wide_column(op->tokens, unit, first, w->lane);
    const uint64_t next = mgl_wide_column(op->tokens, 0, 1, 0);
    uint32_t places[MGL_WIDE_ADD_PLACES];
    float4 before[columns];
    const uint32_t tokens = mgl_wide_least(count - unit * 8, 8);
    mgl_wide_take_places(w, slot, unit, tokens, places);
#pragma unroll
    for (uint32_t column = 0; column < columns; column++) {
      before[column] = to[(first + column) * 16 < op->n ? column * next : 0];
    }
    const uint16_t *rows = (const uint16_t *)op->x + range * MGL_WIDE_NORM_RANGE;
    const bool there = range * MGL_WIDE_NORM_RANGE + w->lane % MGL_WIDE_ADD_LANES * 8 < op->n;
    __syncwarp();
#pragma unroll 1
    for (uint32_t token = 0; token < 8; token += MGL_WIDE_ADD_TIMES * MGL_WIDE_ADD_TOKENS) {
      mgl_wide_sum_slots(w, rows, there ? op->n : 0, places, tokens, token, at);
    }
    __syncwarp();
#pragma unroll
    for (uint32_t column = 0; column < columns; column++) {
      const uint4 v = mgl_load_shared(at + (column * 32 + w->lane) * 16);
      before[column] =
          mgl_wide_plus(before[column], make_float4(__uint_as_float(v.x), __uint_as_float(v.y),
                                                    __uint_as_float(v.z), __uint_as_float(v.w)));
      if ((first + column) * 16 < op->n) {
        to[column * next] = before[column];
      }
    }
    if ((op->flags & MGL_WIDE_WEIGHS) != 0) {
      mgl_wide_weigh_added(w, slot, unit, range, before);
    }
  }
}

// Whether the op is one of this file's.
MGL_DEVICE bool mgl_wide_is_around_experts(uint32_t kind) {
  return kind == MGL_OP_ROUTE || kind == MGL_OP_ADD;
}

MGL_DEVICE void mgl_wide_task_experts(mgl_wide_worker *w, const mgl_wide_slot *slot) {
  if (slot->op.kind == MGL_OP_ADD) {
    mgl_wide_task_add(w, slot);
  } else if ((slot->op.flags & MGL_WIDE_GATHERS) != 0) {
    mgl_wide_sort(w, slot);
  } else {
    mgl_wide_choose(w, slot);
  }
}

#endif
