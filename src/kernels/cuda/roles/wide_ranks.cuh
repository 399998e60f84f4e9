// Workers of the wide class where a model runs on several ranks (wide_run.h): what of a step goes
// to the others. A service warp copies parts of sums, and x behind norms, while the consumers do
// the next steps, and triggers the others' events; the portable kernel's threads do both behind
// each step.
#ifndef MGL_KERNELS_CUDA_ROLES_WIDE_RANKS_CUH
#define MGL_KERNELS_CUDA_ROLES_WIDE_RANKS_CUH

#include "kernels/cuda/common/ranks.cuh"
#include "kernels/cuda/roles/wide_worker.cuh"

MGL_DEVICE bool mgl_wide_is_over(const mgl_cuda_op *op) {
  return MGL_RANKS > 1 && (op->flags & MGL_WIDE_OVER) != 0;
}

// Of the ops whose steps trigger events of other ranks, linear_add: it alone has no norm. (Of the
// others, norms alone may be turned.)
MGL_DEVICE bool mgl_wide_leaves_parts(const mgl_cuda_op *op) {
  return op->norm == nullptr;
}

// The rank that adds up a token's row, of MGL_WIDE_SCATTERS.
MGL_DEVICE uint32_t mgl_wide_owner(uint32_t token) {
  return token / MGL_WIDE_TILE_TOKENS % MGL_RANKS;
}

// How far behind row `number` of an op the row with that turned number is (modulo 2^32).
MGL_DEVICE uint32_t mgl_wide_turned_by(const mgl_wide_worker *w, const mgl_cuda_op *op,
                                       uint32_t number) {
  const uint32_t tile = number / MGL_WIDE_TILE_TOKENS;
  return MGL_RANKS > 1 && (op->flags & MGL_WIDE_TURNED) != 0
             ? (mgl_wide_turned(tile, w->block->rank, MGL_RANKS) - tile) * MGL_WIDE_TILE_TOKENS
             : 0;
}

// Unit `unit` of a turned norm: of each of this rank's own tiles of tokens all ranges of features,
// and of these the tile's tokens by eights. eight: a number among those of all tokens.
struct mgl_wide_own_unit {
  uint32_t eight, range;
};

MGL_DEVICE mgl_wide_own_unit mgl_wide_own_unit_of(const mgl_cuda_op *op, uint32_t unit,
                                                  uint32_t rank) {
  constexpr uint32_t of_tile = MGL_WIDE_TILE_TOKENS / 8;
  const uint32_t ranges = (op->k + MGL_WIDE_NORM_RANGE - 1) / MGL_WIDE_NORM_RANGE;
  const uint32_t line = unit / of_tile;
  mgl_wide_own_unit own;
  own.eight = (line / ranges * MGL_RANKS + rank) * of_tile + unit % of_tile;
  own.range = line % ranges;
  return own;
}

// Thread `thread` of `threads`: its share of what a step of a linear_add has left, to all others
// that add it up. Pieces of 512 bytes are eight tokens of 16 features.
MGL_DEVICE void mgl_wide_send_part(const mgl_wide_worker *w, const mgl_cuda_op *op, uint32_t begin,
                                   uint32_t end, uint32_t thread, uint32_t threads) {
  constexpr int batch = 8;
  const mgl_wide_tile tile = mgl_wide_tile_of(w, op, begin, end);
  const uint32_t pieces = (tile.tokens + 7) / 8 * 32;  // of a row block
  const bool scatters = (op->flags & MGL_WIDE_SCATTERS) != 0;
  const uint32_t owner = mgl_wide_owner(tile.token);
  if (scatters && owner == w->block->rank) {
    return;
  }
  for (uint32_t block = 0; block < tile.blocks && tile.tokens > 0; block++) {
    const uint64_t at = (uint64_t)(tile.first_block + block) * (op->tokens / 8) + tile.token / 8;
    float4 *own = (float4 *)((uint8_t *)op->out + tile.split * op->copy_bytes) + at * 32;
#pragma unroll 1
    for (uint32_t first = thread; first < pieces; first += batch * threads) {
      float4 v[batch];
#pragma unroll
      for (int i = 0; i < batch; i++) {
        v[i] = first + i * threads < pieces ? __ldcg(own + first + i * threads)
                                            : make_float4(0, 0, 0, 0);
      }
#pragma unroll 1
      for (uint32_t to = 0; to < MGL_RANKS; to++) {
        float4 *there = mgl_at_peer(own, w->block->peers[to]);
#pragma unroll
        for (int i = 0; i < batch; i++) {
          if (to != w->block->rank && (!scatters || to == owner) && first + i * threads < pieces) {
            there[first + i * threads] = v[i];
          }
        }
      }
    }
  }
}

#if MGL_TARGET_WGMMA

// The same by one thread and the copy engine, which has more bytes on their way than a warp's
// registers: pieces come into the memory of staged output and leave it for the other ranks, two
// ahead of those that leave. of: where piece i is, and its bytes (0: nothing is there). owner: who
// gets it, or MGL_RANKS: all others. sent: pieces so far.
template <typename pieces>
MGL_DEVICE void mgl_wide_bounce(const mgl_wide_worker *w, const pieces *of, uint32_t count,
                                uint32_t owner, uint32_t *sent) {
  constexpr uint32_t ahead = 2;
  mgl_proxy_fence();
#pragma unroll 1
  for (uint32_t i = 0; i < count + ahead && count > 0; i++) {
    uint32_t bytes;
    if (i < count) {
      const uint32_t at = (*sent + i) % MGL_WIDE_BOUNCES;
      const uint8_t *from = mgl_wide_piece(of, i, &bytes);
      // The piece that was there has been read: all but the latest one have.
      asm volatile("cp.async.bulk.wait_group.read 1;" ::: "memory");
      const uint32_t full = mgl_shared_address(&w->block->bounced[at]);
      mgl_mbarrier_expect_at(full, bytes);
      if (bytes > 0) {
        mgl_bulk_copy_at(mgl_shared_address(w->staged) + at * MGL_WIDE_BOUNCE_BYTES, from, bytes,
                         full);
      }
    }
    if (i >= ahead) {
      const uint32_t piece = *sent + i - ahead, at = piece % MGL_WIDE_BOUNCES;
      uint8_t *to = mgl_wide_piece(of, i - ahead, &bytes);
      mgl_mbarrier_wait(&w->block->bounced[at], piece / MGL_WIDE_BOUNCES & 1);
#pragma unroll 1
      for (uint32_t rank = 0; rank < MGL_RANKS; rank++) {
        if (rank != w->block->rank && (owner == MGL_RANKS || rank == owner) && bytes > 0) {
          asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(
                           mgl_at_peer(to, w->block->peers[rank])),
                       "r"(mgl_shared_address(w->staged) + at * MGL_WIDE_BOUNCE_BYTES), "r"(bytes)
                       : "memory");
        }
      }
      asm volatile("cp.async.bulk.commit_group;" ::: "memory");
    }
  }
  *sent += count;
  asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
  mgl_proxy_fence();
}

// Of what a step of a linear_add has left: pieces of row blocks.
struct mgl_wide_part_pieces {
  uint8_t *own;
  uint64_t stride;           // from a row block to the next
  uint32_t of_block, count;  // bytes and pieces of a row block
};

MGL_DEVICE uint8_t *mgl_wide_piece(const mgl_wide_part_pieces *p, uint32_t i, uint32_t *bytes) {
  const uint32_t in_block = i % p->count * MGL_WIDE_BOUNCE_BYTES;
  *bytes = mgl_wide_least(p->of_block - in_block, MGL_WIDE_BOUNCE_BYTES);
  return p->own + i / p->count * p->stride + in_block;
}

// To the rank that adds it up, if that is another.
MGL_DEVICE void mgl_wide_bounce_part(const mgl_wide_worker *w, const mgl_cuda_op *op,
                                     uint32_t begin, uint32_t end, uint32_t *sent) {
  const mgl_wide_tile tile = mgl_wide_tile_of(w, op, begin, end);
  const uint32_t owner = mgl_wide_owner(tile.token);
  const uint64_t stride = (uint64_t)(op->tokens / 8) * 512;
  mgl_wide_part_pieces pieces;
  pieces.own = (uint8_t *)op->out + tile.split * op->copy_bytes + tile.first_block * stride +
               tile.token / 8 * 512;
  pieces.stride = stride;
  pieces.of_block = (tile.tokens + 7) / 8 * 512;
  pieces.count = (pieces.of_block + MGL_WIDE_BOUNCE_BYTES - 1) / MGL_WIDE_BOUNCE_BYTES;
  if (owner != w->block->rank) {
    mgl_wide_bounce(w, &pieces, pieces.count * tile.blocks, owner, sent);
  }
}

// Of the x of a step of a turned norm: of each of the two columns of a range the rows of so many
// units as a bounce has room for, and fewer where the step begins or ends.
struct mgl_wide_row_pieces {
  const mgl_wide_block *block;
  const mgl_cuda_op *op;
  uint32_t begin, end, tokens, rank;
};

enum { MGL_WIDE_BOUNCE_UNITS = MGL_WIDE_BOUNCE_BYTES / (8 * MGL_WIDE_ROW_BYTES) };

MGL_DEVICE uint8_t *mgl_wide_piece(const mgl_wide_row_pieces *p, uint32_t i, uint32_t *bytes) {
  const uint32_t run = (p->begin / MGL_WIDE_BOUNCE_UNITS + i / 2) * MGL_WIDE_BOUNCE_UNITS;
  const uint32_t first = run < p->begin ? p->begin : run;
  const uint32_t behind = mgl_wide_least(p->end, run + MGL_WIDE_BOUNCE_UNITS);
  const mgl_wide_own_unit unit = mgl_wide_own_unit_of(p->op, first, p->rank);
  const uint32_t column = unit.range * 2 + i % 2;
  const uint32_t there = p->tokens > unit.eight * 8 ? (p->tokens + 7) / 8 - unit.eight : 0;
  *bytes =
      column * MGL_WIDE_K < p->op->k_padded && mgl_wide_is_wanted(p->block, p->op, unit.eight * 8)
          ? mgl_wide_least(behind - first, there) * 8 * MGL_WIDE_ROW_BYTES
          : 0;
  return (uint8_t *)p->op->out +
         ((uint64_t)column * p->op->row_tiles + unit.eight * 8) * MGL_WIDE_ROW_BYTES;
}

// To all others.
MGL_DEVICE void mgl_wide_bounce_rows(const mgl_wide_worker *w, const mgl_cuda_op *op,
                                     uint32_t begin, uint32_t end, uint32_t *sent) {
  mgl_wide_row_pieces pieces;
  pieces.block = w->block;
  pieces.op = op;
  pieces.begin = begin;
  pieces.end = end;
  pieces.tokens = w->block->token_count;
  pieces.rank = w->block->rank;
  const uint32_t runs =
      (end + MGL_WIDE_BOUNCE_UNITS - 1) / MGL_WIDE_BOUNCE_UNITS - begin / MGL_WIDE_BOUNCE_UNITS;
  mgl_wide_bounce(w, &pieces, runs * 2, MGL_RANKS, sent);
}

#else

// Of what a step of a turned norm has made, x, to all others. A unit has two columns of eight rows,
// a kilobyte each.
MGL_DEVICE void mgl_wide_send_rows(const mgl_wide_worker *w, const mgl_cuda_op *op, uint32_t begin,
                                   uint32_t end, uint32_t thread, uint32_t threads) {
  constexpr uint32_t of_column = 8 * MGL_WIDE_ROW_BYTES / 16, of_unit = 2 * of_column;
#pragma unroll 1
  for (uint32_t piece = thread; piece < (end - begin) * of_unit; piece += threads) {
    const mgl_wide_own_unit unit =
        mgl_wide_own_unit_of(op, begin + piece / of_unit, w->block->rank);
    const uint32_t column = unit.range * 2 + piece % of_unit / of_column;
    const uint32_t at =
        (column * op->row_tiles + unit.eight * 8) * (MGL_WIDE_ROW_BYTES / 16) + piece % of_column;
    if (unit.eight * 8 < w->block->token_count && column * MGL_WIDE_K < op->k_padded &&
        mgl_wide_is_wanted(w->block, op, unit.eight * 8)) {
      const uint4 v = __ldcg((const uint4 *)op->out + at);
#pragma unroll 1
      for (uint32_t to = 0; to < MGL_RANKS; to++) {
        if (to != w->block->rank) {
          mgl_at_peer((uint4 *)op->out, w->block->peers[to])[at] = v;
        }
      }
    }
  }
}

#endif

// And sums of squares.
MGL_DEVICE void mgl_wide_send_squares(const mgl_wide_worker *w, const mgl_cuda_op *op,
                                      uint32_t begin, uint32_t end, uint32_t thread,
                                      uint32_t threads) {
#pragma unroll 1
  for (uint32_t i = begin * 8 + thread; i < end * 8; i += threads) {
    const mgl_wide_own_unit unit = mgl_wide_own_unit_of(op, i / 8, w->block->rank);
    float *squares = (float *)op->residual + unit.range * op->row_tiles + unit.eight * 8 + i % 8;
    const bool there =
        unit.eight * 8 < w->block->token_count && mgl_wide_is_wanted(w->block, op, unit.eight * 8);
    const float own = there ? __ldcg(squares) : 0;
#pragma unroll 1
    for (uint32_t to = 0; to < MGL_RANKS; to++) {
      if (to != w->block->rank && there) {
        *mgl_at_peer(squares, w->block->peers[to]) = own;
      }
    }
  }
}

// Sends what a step has made to the others that need it, if anybody does. (Logits are there
// already.) sent: of whom the copy engine serves, pieces so far.
MGL_DEVICE void mgl_wide_send_step(const mgl_wide_worker *w, const mgl_cuda_op *op, uint32_t begin,
                                   uint32_t end, uint32_t thread, uint32_t threads,
                                   uint32_t *sent) {
  const bool turned = (op->flags & MGL_WIDE_TURNED) != 0, parts = mgl_wide_leaves_parts(op);
  if (parts && !mgl_wide_has_wanted(w->block, op, begin)) {
    return;
  }
#if MGL_TARGET_WGMMA
  if (turned && thread == 0 && parts) {
    mgl_wide_bounce_part(w, op, begin, end, sent);
  } else if (turned && thread == 0) {
    mgl_wide_bounce_rows(w, op, begin, end, sent);
  }
  const bool left = parts && !turned;
#else
  if (turned && !parts) {
    mgl_wide_send_rows(w, op, begin, end, thread, threads);
  }
  const bool left = parts;
#endif
  if (left) {
    mgl_wide_send_part(w, op, begin, end, thread, threads);
  } else if (turned && !parts) {
    mgl_wide_send_squares(w, op, begin, end, thread, threads);
  }
}

// One thread, behind a barrier of those that have sent: the event is triggered at the other ranks.
MGL_DEVICE void mgl_wide_trigger_others(const mgl_wide_worker *w, uint32_t event) {
  mgl_word *counter = &w->block->counters[event];
  for (uint32_t to = 0; to < MGL_RANKS; to++) {
    if (to != w->block->rank) {
      // Release, paired with the acquire in mgl_wide_look.
      mgl_add_release_system(mgl_at_peer(counter, w->block->peers[to]), 1);
    }
  }
}

#if MGL_TARGET_WGMMA

// Until all steps before number `number` are sent.
MGL_DEVICE void mgl_wide_await_sent(const mgl_wide_worker *w, uint32_t number) {
  const uint32_t at = mgl_shared_address(&w->block->sent);
  uint32_t sent;
  do {
    sent = mgl_shared_load_acquire(at);
  } while (sent < number);
}

// Until step `number` of the block's list is done. False: the launch was ended before it began.
MGL_DEVICE bool mgl_wide_await_finished(const mgl_wide_worker *w, uint32_t number) {
  const uint32_t at = mgl_shared_address(&w->block->finished);
  uint32_t finished;
  do {
    const uint32_t given = w->block->given;
    if (given != 0 && number >= given - 1) {
      return false;
    }
    finished = mgl_shared_load_acquire(at);
  } while (finished <= number);
  return true;
}

// One warp. It takes steps from the list, not from slots: what it sends takes longer than the
// steps that follow, and they would wait for their slots.
MGL_DEVICE void mgl_wide_send(mgl_wide_worker *w) {
  const uint32_t first = w->run->step_start[blockIdx.x], end = w->run->step_start[blockIdx.x + 1];
  const uint32_t sent = mgl_shared_address(&w->block->sent);
  uint32_t pieces = 0;
#pragma unroll 1
  for (uint32_t at = first; at < end; at++) {
    const mgl_cuda_step *step = &w->run->steps[at];
    const mgl_cuda_op *op = &w->run->ops[step->op].op;
    if (step->trigger_kind != MGL_NO_EVENT) {
      if (__any_sync(0xffffffffu, !mgl_wide_await_finished(w, at - first)) != 0) {
        return;
      }
      mgl_wide_send_step(w, op, step->begin, step->end, w->lane, 32, &pieces);
      __syncwarp();
      if (w->lane == 0) {
        mgl_wide_trigger_others(w, step->trigger_kind);
      }
    }
    if (w->lane == 0) {
      mgl_shared_store_release(sent, at + 1);
    }
    __syncwarp();
  }
}

#endif

#endif
