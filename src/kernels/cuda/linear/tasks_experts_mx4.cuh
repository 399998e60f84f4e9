// Products of E2M1 with one token (tasks_experts.cuh): the sums of tasks_linear_coded.cuh in their
// order, so the same bits, for fewer instructions, which decide how fast such codes stream: a page
// of 20 KB has as many products as one of 32 KB of E4M3, and a sum for every 32 columns.
//
// - A code is an operand by two lookups (mgl_e2m1_sizes), each with products of its own: tensor
//   cores have time, and to make one operand of both would take twice as many instructions.
// - Column 2 j + i of a product is piece i of chunk j of the share. The chunks follow each other in
//   one sum of products: to one of them x is 0 in the other columns, so each of the four lanes that
//   have a row holds the sum of one chunk, and makes a float of it, instead of one lane all four.
// - x, which has the zeros, comes from shared memory, where a warp keeps its own: a page is two
//   panels, whose x a lane takes by one load, of its chunk alone; in the operands of other chunks
//   it has zeros for good.
// - How many panels a row has, the compiler knows. Of a last page with one panel one is multiplied.
#ifndef MGL_KERNELS_CUDA_LINEAR_TASKS_EXPERTS_MX4_CUH
#define MGL_KERNELS_CUDA_LINEAR_TASKS_EXPERTS_MX4_CUH

#include "kernels/cuda/common/experts.cuh"
#include "kernels/cuda/linear/tasks_linear_coded.cuh"

// --- codes ---------------------------------------------------------------------------------------

// Of four codes of E2M1, in the lower half of `codes`, operands whose sum is twice their values.
// Where a code has a sign, prmt makes the sign bits of the byte that the other bits choose: none of
// those of the first table, all of those of the second. So codes without a sign become twice their
// value and 1, and -1; those with one 0, and twice their value. There is no code of -0. other: the
// codes with all signs flipped.
MGL_DEVICE uint32_t mgl_e2m1_plus(uint32_t codes) {
  uint32_t out;
  asm("prmt.b32 %0, %1, %2, %3;" : "=r"(out) : "r"(0x04030201u), "r"(0x0d090705u), "r"(codes));
  return out;
}

MGL_DEVICE uint32_t mgl_e2m1_minus(uint32_t other) {
  uint32_t out;
  asm("prmt.b32 %0, %1, %2, %3;" : "=r"(out) : "r"(0xfdfeffffu), "r"(0xf4f8fafcu), "r"(other));
  return out;
}

// --- x -------------------------------------------------------------------------------------------

template <bool UP>
struct mgl_mx4 {
  static constexpr mgl_packing P = MGL_PACKING_MX4;
  static constexpr int K = UP ? MGL_EXPERT_WIDTH : MGL_EXPERT_SLOTS * MGL_EXPERT_FEATURES;
  static constexpr int PANELS = (K + (MGL_PANEL_K - 1)) / MGL_PANEL_K;
  static constexpr int PAGES = (PANELS + 1) / 2;  // of a row block
};

// Where a warp's x lies in scratch: the first one's behind sums of squares, the others' behind the
// routes; and behind these, of each panel, what its products are.
enum {
  MGL_MX4_PAGE_X_BYTES = 512,  // 16 of each lane: its words of the first panel, and of the second
  MGL_MX4_X_BYTES = (mgl_mx4<true>::PAGES > mgl_mx4<false>::PAGES ? mgl_mx4<true>::PAGES
                                                                  : mgl_mx4<false>::PAGES) *
                    MGL_MX4_PAGE_X_BYTES,
  MGL_MX4_DOWN_BYTES = MGL_MX4_X_BYTES / MGL_MX4_PAGE_X_BYTES * 2 * (int)sizeof(float),
  MGL_MX4_FIRST_X_AT = MGL_ONE_SUMS_AT + MGL_LINEAR_SUMS_BYTES,
  MGL_MX4_X_AT =
      MGL_EXPERT_ROUTES_AT + MGL_CUDA_MAX_TOKENS * MGL_EXPERT_SLOTS * MGL_EXPERT_ROUTE_BYTES,
  MGL_MX4_DOWN_AT = MGL_MX4_X_AT + (MGL_CUDA_CONSUMER_WARPS - 1) * MGL_MX4_X_BYTES,
  MGL_MX4_END = MGL_MX4_DOWN_AT + MGL_CUDA_CONSUMER_WARPS * MGL_MX4_DOWN_BYTES,
};

static_assert(!MGL_HAS_MX4 || (MGL_MX4_END <= MGL_CUDA_SCRATCH_BYTES &&
                               MGL_MX4_FIRST_X_AT + MGL_MX4_X_BYTES <= MGL_EXPERT_ROUTES_AT),
              "x of a task's tokens, one after the other");

struct mgl_mx4_x {
  uint32_t x, down;  // addresses in shared memory: this lane's words of x, and its warp's scales
};

MGL_DEVICE mgl_mx4_x mgl_mx4_find_x(const mgl_worker *w) {
  const uint32_t scratch = mgl_shared_address(w->scratch);
  mgl_mx4_x at;
  at.x = scratch + w->lane * 16 +
         (w->warp == 0 ? (uint32_t)MGL_MX4_FIRST_X_AT
                       : MGL_MX4_X_AT + (w->warp - 1) * MGL_MX4_X_BYTES);
  at.down = scratch + MGL_MX4_DOWN_AT + w->warp * MGL_MX4_DOWN_BYTES;
  return at;
}

// x of this warp's shares, which its lanes have as mgl_one_piece says: lane 4 g + t has group t of
// chunk g / 2 of panel g % 2 of each page. The lane beside has the other panel's, and gives a
// piece.
template <bool UP>
MGL_DEVICE void mgl_mx4_take_x(const mgl_worker *w, const mgl_one_columns<UP> *x,
                               const mgl_mx4_x *to) {
  constexpr mgl_packing P = MGL_PACKING_MX4;
  const bool second = w->lane / 4 % 2 != 0;
#pragma unroll
  for (int page = 0; page < mgl_mx4<UP>::PAGES; page++) {
    const uint4 v = x->v[page];
    uint32_t largest = mgl_largest_of_lanes<2>(mgl_largest_bf16(v, 0));
    largest = max(largest, __shfl_xor_sync(0xffffffffu, largest, 8));
    largest = max(largest, __shfl_xor_sync(0xffffffffu, largest, 16));
    const mgl_x_scale scale = mgl_x_scale_of<P>(largest);
    const uint4 pieces = mgl_x_of_whole(v, scale.up);
    const uint32_t a = __shfl_xor_sync(0xffffffffu, second ? pieces.x : pieces.z, 4);
    const uint32_t b = __shfl_xor_sync(0xffffffffu, second ? pieces.y : pieces.w, 4);
    mgl_store_shared_quad(
        to->x + page * MGL_MX4_PAGE_X_BYTES,
        second ? make_uint4(a, b, pieces.z, pieces.w) : make_uint4(pieces.x, pieces.y, a, b));
    if (w->lane == 0 || w->lane == 4) {
      mgl_store_shared_word(to->down + (2 * page + (second ? 1 : 0)) * (uint32_t)sizeof(float),
                            __float_as_uint(scale.down));
    }
  }
  __syncwarp();
}

// --- products ------------------------------------------------------------------------------------

// Operands b of a page: of each chunk this lane's words of both panels; 0 if its column is another
// chunk's.
struct mgl_mx4_columns {
  uint32_t v[MGL_SHARE_CHUNKS][4];
};

MGL_DEVICE void mgl_mx4_load_x(uint32_t from, uint32_t own_chunk, mgl_mx4_columns *out) {
#pragma unroll
  for (int chunk = 0; chunk < MGL_SHARE_CHUNKS; chunk++) {
    uint32_t *v = out->v[chunk];
    asm volatile(
        "{\n.reg .pred own;\nsetp.eq.u32 own, %4, %6;\n"
        "@own ld.shared.v4.u32 {%0,%1,%2,%3}, [%5];\n}"
        : "+r"(v[0]), "+r"(v[1]), "+r"(v[2]), "+r"(v[3])
        : "r"(own_chunk), "r"(from), "r"((uint32_t)chunk)
        : "memory");
  }
}

// The products of a share: sums of this lane's chunk, of rows g and g + 8, of both pieces.
template <int PANEL>
MGL_DEVICE void mgl_mx4_multiply(const uint4 codes[2], const mgl_mx4_columns *x, int d[4]) {
  d[0] = d[1] = d[2] = d[3] = 0;
#pragma unroll
  for (int chunk = 0; chunk < MGL_SHARE_CHUNKS; chunk++) {
    uint32_t plus[4], minus[4];
#pragma unroll
    for (int i = 0; i < 2; i++) {
      const uint32_t word = mgl_word_of(codes[chunk / 2], chunk % 2 * 2 + i);
      const uint32_t other = word ^ 0x88888888u;
      plus[2 * i] = mgl_e2m1_plus(word);
      plus[2 * i + 1] = mgl_e2m1_plus(word >> 16);
      minus[2 * i] = mgl_e2m1_minus(other);
      minus[2 * i + 1] = mgl_e2m1_minus(other >> 16);
    }
    mgl_mma_s8(d, plus, x->v[chunk][2 * PANEL], x->v[chunk][2 * PANEL + 1]);
    mgl_mma_s8(d, minus, x->v[chunk][2 * PANEL], x->v[chunk][2 * PANEL + 1]);
  }
}

// Adds the sums of a share, chunk after chunk, as mgl_coded_add does. left: columns from the
// share's first to the row's end, behind which there are no scales; x is 0 there.
MGL_DEVICE void mgl_mx4_add(const mgl_worker *w, const int d[4], float x_down,
                            const uint32_t scale[MGL_SHARE_CHUNKS], int left, mgl_one_sums *sums) {
  const float low = mgl_whole_sum(d[0], d[1]) * x_down, high = mgl_whole_sum(d[2], d[3]) * x_down;
#pragma unroll
  for (int j = 0; j < MGL_SHARE_CHUNKS; j++) {
    const int holder = (int)(w->lane & ~3u) + j;
    const uint32_t pair = j * MGL_CHUNK_K < left ? scale[j] : 0;
    mgl_add_scaled(__shfl_sync(0xffffffffu, low, holder), __uint_as_float(pair << 16), &sums->low);
    mgl_add_scaled(__shfl_sync(0xffffffffu, high, holder), __uint_as_float(pair & 0xffff0000u),
                   &sums->high);
  }
}

// --- pages ---------------------------------------------------------------------------------------

// A warp's part of a page.
struct mgl_mx4_page {
  uint4 v[2][2];                        // codes of a panel's share
  uint32_t scale[2][MGL_SHARE_CHUNKS];  // of rows g and g + 8, bf16
};

// Sends a page of so many panels on its way to registers, as mgl_coded_read does.
MGL_DEVICE void mgl_mx4_read(const mgl_worker *w, mgl_coded_ring *ring, int panels,
                             mgl_mx4_page *out) {
  if (!ring->ready) {
    mgl_page_wait_at(w, ring->full, ring->parity);
  }
  const uint32_t share = ring->from + w->warp * (2 * MGL_MX4_BYTES);
  const uint32_t codes = share + w->lane * 16, scales = share + w->lane / 4 * 4;
#pragma unroll
  for (int i = 0; i < 2; i++) {
    if (i >= panels) {
      break;
    }
#pragma unroll
    for (int j = 0; j < 2; j++) {
      const int at = (MGL_PANEL_K / MGL_PANEL_COLUMNS * i + j) * MGL_MX4_BYTES;
      out->v[i][j] = mgl_load_shared(codes + at);
      out->scale[i][2 * j] = mgl_load_shared_word(scales + at + MGL_MX4_CODES_BYTES);
      out->scale[i][2 * j + 1] =
          mgl_load_shared_word(scales + at + MGL_MX4_CODES_BYTES + MGL_MX4_SCALE_BYTES);
    }
  }
  ring->left--;
}

// Once it is in registers the loader may fill its place again.
MGL_DEVICE void mgl_mx4_release(const mgl_worker *w, const mgl_linear *l, mgl_coded_ring *ring,
                                const mgl_mx4_page *page) {
  uint32_t bits = 0;
#pragma unroll
  for (int i = 0; i < 2; i++) {
    bits |= page->v[i][0].x | page->v[i][1].x;
#pragma unroll
    for (int j = 0; j < MGL_SHARE_CHUNKS; j++) {
      bits |= page->scale[i][j];
    }
  }
  mgl_coded_leave(w, l, ring, ring->full + MGL_ONE_FREE + (bits & l->zero));
}

// Page `number` of a row block: its products, and meanwhile the next page is asked for, which is
// there in *page at the end.
template <bool UP>
MGL_DEVICE void mgl_mx4_step(const mgl_worker *w, const mgl_linear *l, const mgl_mx4_x *from,
                             int number, mgl_mx4_columns *x, mgl_mx4_page *page,
                             mgl_coded_ring *ring, mgl_one_sums *sums) {
  constexpr int K = mgl_mx4<UP>::K, PANELS = mgl_mx4<UP>::PANELS, PAGES = mgl_mx4<UP>::PAGES;
  const bool two = PANELS % 2 == 0 || number + 1 < PAGES;
  const bool next_has_two = PANELS % 2 == 0 || (number + 1) % PAGES + 1 < PAGES;
  int d[2][4];
  mgl_mx4_load_x(from->x + number * MGL_MX4_PAGE_X_BYTES, w->lane / 8, x);
  const float2 down = mgl_load_shared_pair(from->down + number * 2 * (uint32_t)sizeof(float));
  mgl_mx4_multiply<0>(page->v[0], x, d[0]);
  if (two) {
    mgl_mx4_multiply<1>(page->v[1], x, d[1]);
  }
  uint32_t scale[2][MGL_SHARE_CHUNKS];
#pragma unroll
  for (int j = 0; j < MGL_SHARE_CHUNKS; j++) {
    scale[0][j] = page->scale[0][j];
    scale[1][j] = page->scale[1][j];
  }
  const bool more = ring->left > 0;
  if (more) {
    mgl_mx4_read(w, ring, next_has_two ? 2 : 1, page);
  }
  // Only the last panel of a row may be cut.
  const int left = K - number * 2 * MGL_PANEL_K - (int)w->warp * MGL_SHARE_K;
  const bool cuts = K % MGL_PANEL_K != 0 && number + 1 == PAGES;
  const int cut[2] = {cuts && PANELS % 2 != 0 ? left : (int)MGL_SHARE_K,
                      cuts && PANELS % 2 == 0 ? left - MGL_PANEL_K : (int)MGL_SHARE_K};
  mgl_mx4_add(w, d[0], down.x, scale[0], cut[0], sums);
  if (two) {
    mgl_mx4_add(w, d[1], down.y, scale[1], cut[1], sums);
  }
  if (more) {
    mgl_mx4_release(w, l, ring, page);
  }
}

// This warp's part of a batch; *page is the first one.
template <bool UP>
MGL_DEVICE void mgl_mx4_batch(const mgl_worker *w, const mgl_linear *l, const mgl_mx4_x *from,
                              float *partial, mgl_mx4_page *page, mgl_coded_ring *ring) {
  constexpr int PAGES = mgl_mx4<UP>::PAGES;
  constexpr int UNROLLED = PAGES <= 2 ? PAGES : PAGES % 2 == 0 ? 2 : 1;
  float *to = partial + w->warp * MGL_ONE_WARP_FLOATS + w->lane / 4;
  mgl_mx4_columns x = {};
#pragma unroll 1
  for (uint32_t block = 0; block < l->blocks; block++) {
    mgl_one_sums sums = {0, 0};
#pragma unroll UNROLLED
    for (int number = 0; number < PAGES; number++) {
      mgl_mx4_step<UP>(w, l, from, number, &x, page, ring, &sums);
    }
    if (w->lane % 4 == 0) {
      to[0] = sums.low;
      to[MGL_CUDA_HALF_ROWS] = sums.high;
    }
    to += MGL_CUDA_BLOCK_ROWS;
  }
}

#endif
