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

// The eight tokens, of this rank's own ones, that unit `unit` of a turned norm has (its units are
// ranges of features first), as a number among all tokens.
MGL_DEVICE uint32_t mgl_wide_own_eight(uint32_t unit, uint32_t ranges, uint32_t rank) {
  constexpr uint32_t of_tile = MGL_WIDE_TILE_TOKENS / 8;
  const uint32_t eight = unit / ranges;
  return (eight / of_tile * MGL_RANKS + rank) * of_tile + eight % of_tile;
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
// ahead of those that leave. sent: pieces so far.
MGL_DEVICE void mgl_wide_bounce_part(const mgl_wide_worker *w, const mgl_cuda_op *op,
                                     uint32_t begin, uint32_t end, uint32_t *sent) {
  constexpr uint32_t ahead = 2, bytes = MGL_WIDE_BOUNCE_BYTES;
  const mgl_wide_tile tile = mgl_wide_tile_of(w, op, begin, end);
  const bool scatters = (op->flags & MGL_WIDE_SCATTERS) != 0;
  const uint32_t owner = mgl_wide_owner(tile.token);
  const uint32_t of_block = (tile.tokens + 7) / 8 * 512;  // bytes
  const uint32_t pieces = (of_block + bytes - 1) / bytes, count = pieces * tile.blocks;
  if (scatters && owner == w->block->rank) {
    return;
  }
  uint8_t *own = (uint8_t *)op->out + tile.split * op->copy_bytes +
                 ((uint64_t)tile.first_block * (op->tokens / 8) + tile.token / 8) * 512;
  mgl_proxy_fence();
#pragma unroll 1
  for (uint32_t i = 0; i < count + ahead && count > 0; i++) {
    if (i < count) {
      const uint32_t at = (*sent + i) % MGL_WIDE_BOUNCES, of = i % pieces * bytes;
      const uint32_t size = mgl_wide_least(of_block - of, bytes);
      // The piece that was there has been read: all but the latest one have.
      asm volatile("cp.async.bulk.wait_group.read 1;" ::: "memory");
      const uint32_t full = mgl_shared_address(&w->block->bounced[at]);
      mgl_mbarrier_expect_at(full, size);
      mgl_bulk_copy_at(mgl_shared_address(w->staged) + at * bytes,
                       own + (uint64_t)(i / pieces) * (op->tokens / 8) * 512 + of, size, full);
    }
    if (i >= ahead) {
      const uint32_t piece = *sent + i - ahead, at = piece % MGL_WIDE_BOUNCES;
      const uint32_t of = (i - ahead) % pieces * bytes;
      uint8_t *from = own + (uint64_t)((i - ahead) / pieces) * (op->tokens / 8) * 512 + of;
      mgl_mbarrier_wait(&w->block->bounced[at], piece / MGL_WIDE_BOUNCES & 1);
#pragma unroll 1
      for (uint32_t to = 0; to < MGL_RANKS; to++) {
        if (to != w->block->rank && (!scatters || to == owner)) {
          asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(
                           mgl_at_peer(from, w->block->peers[to])),
                       "r"(mgl_shared_address(w->staged) + at * bytes),
                       "r"(mgl_wide_least(of_block - of, bytes))
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

#endif

// The same of what a step of a turned norm has made: x and sums of squares, to all others. A unit
// has two columns of eight rows of x, a kilobyte each.
MGL_DEVICE void mgl_wide_send_rows(const mgl_wide_worker *w, const mgl_cuda_op *op, uint32_t begin,
                                   uint32_t end, uint32_t thread, uint32_t threads) {
  constexpr int batch = 4;
  constexpr uint32_t of_column = 8 * MGL_WIDE_ROW_BYTES / 16, of_unit = 2 * of_column;
  const uint32_t ranges = (op->k + MGL_WIDE_NORM_RANGE - 1) / MGL_WIDE_NORM_RANGE;
  const uint32_t count = w->block->token_count, pieces = (end - begin) * of_unit;
#pragma unroll 1
  for (uint32_t first = thread; first < pieces; first += batch * threads) {
    uint4 v[batch];
    uint32_t at[batch];  // UINT32_MAX: nothing is there
#pragma unroll
    for (int i = 0; i < batch; i++) {
      const uint32_t piece = first + i * threads, unit = begin + piece / of_unit;
      const uint32_t column = unit % ranges * 2 + piece % of_unit / of_column;
      const uint32_t eight = mgl_wide_own_eight(unit, ranges, w->block->rank);
      const bool there = piece < pieces && eight * 8 < count && column * MGL_WIDE_K < op->k_padded;
      at[i] = there ? (column * op->row_tiles + eight * 8) * (MGL_WIDE_ROW_BYTES / 16) +
                          piece % of_column
                    : UINT32_MAX;
      v[i] = there ? __ldcg((const uint4 *)op->out + at[i]) : make_uint4(0, 0, 0, 0);
    }
#pragma unroll 1
    for (uint32_t to = 0; to < MGL_RANKS; to++) {
      uint4 *there = mgl_at_peer((uint4 *)op->out, w->block->peers[to]);
#pragma unroll
      for (int i = 0; i < batch; i++) {
        if (to != w->block->rank && at[i] != UINT32_MAX) {
          there[at[i]] = v[i];
        }
      }
    }
  }
#pragma unroll 1
  for (uint32_t i = begin * 8 + thread; i < end * 8; i += threads) {
    const uint32_t eight = mgl_wide_own_eight(i / 8, ranges, w->block->rank);
    float *squares = (float *)op->residual + i / 8 % ranges * op->row_tiles + eight * 8 + i % 8;
    const float own = eight * 8 < count ? __ldcg(squares) : 0;
#pragma unroll 1
    for (uint32_t to = 0; to < MGL_RANKS; to++) {
      if (to != w->block->rank && eight * 8 < count) {
        *mgl_at_peer(squares, w->block->peers[to]) = own;
      }
    }
  }
}

// Sends what a step has made to the others that need it. (Logits are there already.)
MGL_DEVICE void mgl_wide_send_step(const mgl_wide_worker *w, const mgl_cuda_op *op, uint32_t begin,
                                   uint32_t end, uint32_t thread, uint32_t threads) {
  if (mgl_wide_leaves_parts(op)) {
    mgl_wide_send_part(w, op, begin, end, thread, threads);
  } else if ((op->flags & MGL_WIDE_TURNED) != 0) {
    mgl_wide_send_rows(w, op, begin, end, thread, threads);
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
      if (!mgl_wide_leaves_parts(op) || (op->flags & MGL_WIDE_TURNED) == 0) {
        mgl_wide_send_step(w, op, step->begin, step->end, w->lane, 32);
      } else if (w->lane == 0) {
        mgl_wide_bounce_part(w, op, step->begin, step->end, &pieces);
      }
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
