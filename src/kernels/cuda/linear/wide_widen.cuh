// Weights of codes made into bf16, as linears of bf16 read them: code times scale, rounded once.
//
// In iterations of many tokens every tile of 128 would decode the same codes again, and scale its
// sums every 128 elements; a tile of bf16 has 256 tokens and neither to do (docs/log/298).
// A panel of codes and what it becomes have the same order: 16 bytes of a lane for every product
// (twin/packing.h), so a warp takes 128 columns of a panel and nobody needs what others have.
#ifndef MGL_KERNELS_CUDA_LINEAR_WIDE_WIDEN_CUH
#define MGL_KERNELS_CUDA_LINEAR_WIDE_WIDEN_CUH

#include "kernels/cuda/linear/wide_decode.cuh"
#include "kernels/cuda/roles/wide_worker.cuh"

#if MGL_TARGET_WGMMA && MGL_PACKINGS > 1 && !defined(MGL_WIDE_TILE)

enum {
  MGL_WIDEN_AHEAD = 3,                                 // panels that a warp has sent to the L2
  MGL_WIDEN_PIECES = MGL_PANEL_K / MGL_PANEL_COLUMNS,  // of a panel
  MGL_WIDEN_HALVES = MGL_GROUPS_OF_32 ? 2 : 1,         // of a piece, with scales of their own
  MGL_WIDEN_QUADS = MGL_WIDE_BLOCK_STAGE_BYTES / 16,   // 16 bytes each that a piece becomes
};

// A warp's piece, 64 columns of a panel: codes, and scales of rows g and g + 8; zero points, if
// there are any.
template <mgl_packing P>
struct mgl_widen_piece {
  uint4 codes[mgl_coded<P>::QUADS];
  float2 scale[MGL_WIDEN_HALVES];
  float2 zero[mgl_coded<P>::ZEROS ? (int)MGL_WIDEN_HALVES : 1];
};

// Where a lane reads on.
struct mgl_widen_cursor {
  const uint8_t *codes;   // its bytes of the next piece
  const uint8_t *scales;  // and of the panel's first group
  uint32_t piece, last;   // the piece's number in its panel; pieces of a row block's last panel
  uint32_t panel, panels, panel_bytes;  // the panel's number in its row block
  uint32_t left;                        // panels behind this one
  uint32_t group_shift;
};

MGL_DEVICE uint4 mgl_widen_load(const uint8_t *from) {
  uint4 v;
  asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0,%1,%2,%3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(from));
  return v;
}

MGL_DEVICE float2 mgl_widen_load_pair(const uint8_t *from) {
  float2 v;
  asm volatile("ld.global.nc.v2.f32 {%0,%1}, [%2];" : "=f"(v.x), "=f"(v.y) : "l"(from));
  return v;
}

// One lane: sends a panel to the L2 that lies so many further on.
MGL_DEVICE void mgl_widen_prefetch(const uint8_t *codes, uint32_t panel_bytes) {
  if (mgl_wide_elect()) {
    mgl_bulk_to_l2(codes + (uint64_t)(MGL_WIDEN_AHEAD - 1) * panel_bytes, panel_bytes);
  }
}

// Asks for the next piece, and sends what comes later to the L2.
template <mgl_packing P>
MGL_DEVICE void mgl_widen_ask(mgl_widen_cursor *at, mgl_widen_piece<P> *out) {
  constexpr uint32_t quads = mgl_coded<P>::QUADS;
#pragma unroll
  for (uint32_t quad = 0; quad < quads; quad++) {
    out->codes[quad] = mgl_widen_load(at->codes + quad * 512);
  }
#pragma unroll
  for (int half = 0; half < MGL_WIDEN_HALVES; half++) {
    const uint32_t group = (at->piece * MGL_PANEL_COLUMNS + half * 32) >> at->group_shift;
    const uint8_t *scales = at->scales + group * mgl_coded<P>::GROUP_BYTES;
    out->scale[half] = mgl_widen_load_pair(scales);
    if (mgl_coded<P>::ZEROS) {
      out->zero[half] = mgl_widen_load_pair(scales + MGL_PANEL_SCALE_BYTES);
    }
  }
  at->codes += quads * 512;
  at->piece++;
  const bool ends = at->panel + 1 == at->panels;
  if (at->piece == (ends ? at->last : (uint32_t)MGL_WIDEN_PIECES)) {
    at->codes += at->panel_bytes - at->piece * (quads * 512);
    at->scales += at->panel_bytes;
    at->panel = ends ? 0 : at->panel + 1;
    at->piece = 0;
    at->left--;
    if (at->left > MGL_WIDEN_AHEAD) {
      mgl_widen_prefetch(at->codes, at->panel_bytes);
    }
  }
}

// A scale as two bf16, each twice: its sum with what bf16 does not hold of it.
MGL_DEVICE uint2 mgl_widen_parts(float scale) {
  const uint32_t high = mgl_pack_bf16(scale, scale);
  const float rest = scale - __uint_as_float(high << 16);
  return make_uint2(high, mgl_pack_bf16(rest, rest));
}

// Two exact codes times the scale of their row, rounded to bf16. (The product with the lesser part
// is rounded before: that changes the result where it is within 2^-9 of a tie.)
MGL_DEVICE uint32_t mgl_widened_pair(uint32_t exact, uint2 scale) {
  return mgl_bf16_pair_fma(exact, scale.x, mgl_bf16_pair_fma(exact, scale.y, 0x80008000u));
}

template <mgl_packing P>
MGL_DEVICE void mgl_widen_store(const mgl_widen_piece<P> *piece, uint32_t magic, uint4 *to) {
  uint2 scales[2];
#pragma unroll
  for (int step = 0; step < 4; step++) {
    const int half = step / 2 % MGL_WIDEN_HALVES;
    uint2 pair = {};
    if (mgl_coded<P>::ZEROS) {
      const float2 zero = piece->zero[half];
      pair = make_uint2(__float_as_uint(zero.x), __float_as_uint(zero.y));
    }
    if (step % (4 / MGL_WIDEN_HALVES) == 0) {
      scales[0] = mgl_widen_parts(piece->scale[half].x);
      scales[1] = mgl_widen_parts(piece->scale[half].y);
    }
    uint32_t a[4];
    mgl_decode<P>(piece->codes, pair, magic, step, a);
    to[step * 32] =
        make_uint4(mgl_widened_pair(a[0], scales[0]), mgl_widened_pair(a[1], scales[1]),
                   mgl_widened_pair(a[2], scales[0]), mgl_widened_pair(a[3], scales[1]));
  }
}

// Panels [begin, end) of an op, by a warp. While a piece becomes bf16 the next one is on its way,
// as much as registers have room for; so what comes later is sent to the L2.
template <mgl_packing P>
MGL_DEVICE void mgl_widen_panels(const mgl_cuda_op *op, uint32_t begin, uint32_t end, uint32_t lane,
                                 const mgl_wide_block *block) {
  const uint32_t magic = 0x43004300u | op->zero;  // codes.cuh
  const uint32_t panels = mgl_panels_of(op->k), row_pieces = op->k_padded / MGL_PANEL_COLUMNS;
  mgl_widen_cursor at;
  at.panels = panels;
  at.panel_bytes = mgl_op_panel_bytes(op);
  at.group_shift = mgl_op_group_shift(op);
  at.last = row_pieces - (panels - 1) * MGL_WIDEN_PIECES;
  at.panel = begin % panels;
  at.piece = 0;
  at.left = end - begin;
  at.codes = op->weights + (uint64_t)begin * at.panel_bytes;
  at.scales = at.codes + mgl_coded<P>::CODES_BYTES + lane / 4 * 8;
  if (lane < MGL_WIDEN_AHEAD && lane < at.left) {
    mgl_bulk_to_l2(at.codes + (uint64_t)lane * at.panel_bytes, at.panel_bytes);
  }
  at.codes += lane * 16;
  const uint32_t first = begin / panels * row_pieces + at.panel * MGL_WIDEN_PIECES;
  const uint32_t behind = end / panels * row_pieces + end % panels * MGL_WIDEN_PIECES;
  uint4 *to = (uint4 *)op->out + (uint64_t)first * MGL_WIDEN_QUADS + lane;
  uint32_t left = behind - first;  // pieces
  mgl_widen_piece<P> even, odd;
  if (left > 0) {
    mgl_widen_ask<P>(&at, &even);
  }
  if (left > 1) {
    mgl_widen_ask<P>(&at, &odd);
  }
#pragma unroll 1
  for (; left > 1; left -= 2) {
    while (block->rests != 0) {
      mgl_relax();
    }
    mgl_widen_store<P>(&even, magic, to);
    if (left > 2) {
      mgl_widen_ask<P>(&at, &even);
    }
    mgl_widen_store<P>(&odd, magic, to + MGL_WIDEN_QUADS);
    if (left > 3) {
      mgl_widen_ask<P>(&at, &odd);
    }
    to += 2 * MGL_WIDEN_QUADS;
  }
  if (left > 0) {
    mgl_widen_store<P>(&even, magic, to);
  }
}

// By the packing of the op's codes.
template <int P>
MGL_DEVICE void mgl_wide_widen_packed(const mgl_cuda_op *op, uint32_t begin, uint32_t end,
                                      uint32_t lane, const mgl_wide_block *block) {
  if constexpr (P < MGL_PACKING_MX4) {  // which dense matrices have not
    if (mgl_op_packing(op) != P) {
      mgl_wide_widen_packed<P + 1>(op, begin, end, lane, block);
    } else if constexpr ((MGL_PACKINGS >> P & 1) != 0) {
      mgl_widen_panels<(mgl_packing)P>(op, begin, end, lane, block);
    }
  }
}

// By the consumers: whether nothing is widened beside their next task. Attention, which has softmax
// beside its products, takes a third longer otherwise, and there is time enough beside linears. A
// task that rests must not wait for what is widened: an event of the stage before attend has none.
MGL_DEVICE void mgl_widen_rest(const mgl_wide_worker *w, bool rests) {
  if (threadIdx.x == 0) {
    w->block->rests = rests;
  }
}

// A step of the consumers.
MGL_DEVICE void mgl_wide_task_widen(const mgl_wide_worker *w, const mgl_wide_slot *slot) {
  const uint32_t count = slot->step.end - slot->step.begin;
  mgl_wide_widen_packed<MGL_PACKING_BF16 + 1>(
      &slot->op, slot->step.begin + count * w->warp / MGL_WIDE_CONSUMER_WARPS,
      slot->step.begin + count * (w->warp + 1) / MGL_WIDE_CONSUMER_WARPS, w->lane, w->block);
}

// One warp beside the consumers: the worker's other list.
MGL_DEVICE void mgl_wide_widen_beside(const mgl_wide_worker *w) {
  const uint32_t list = gridDim.x + blockIdx.x;
  const uint32_t first = w->run->step_start[list], end = w->run->step_start[list + 1];
#pragma unroll 1
  for (uint32_t at = first; at < end; at++) {
    const mgl_cuda_step step = w->run->steps[at];
    const mgl_cuda_op *op = &w->run->ops[step.op].op;
    if (!mgl_wide_wait_event(w, &step)) {
      return;
    }
    mgl_wide_widen_packed<MGL_PACKING_BF16 + 1>(op, step.begin, step.end, w->lane, w->block);
    mgl_proxy_fence();
    __syncwarp();
    if (w->lane == 0) {
      mgl_add_release(&w->block->counters[step.trigger_event], 1);
    }
  }
}

#else

// Where no codes are widened.
MGL_DEVICE void mgl_widen_rest(const mgl_wide_worker *, bool) {}
MGL_DEVICE void mgl_wide_task_widen(const mgl_wide_worker *, const mgl_wide_slot *) {}
MGL_DEVICE void mgl_wide_widen_beside(const mgl_wide_worker *) {}

#endif

#endif
