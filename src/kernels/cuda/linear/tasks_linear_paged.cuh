// The linears of an iteration of one token, of weights of codes, where pages come by bulk copies,
// dense ones and, where activations carry their readiness, those of experts: a page is two warps',
// page p of a batch those of warps p % 4 and p % 4 + 4. So what is done once a page, waiting,
// releasing and adding up, is done by two warps instead of by eight that have a share of it each,
// which was half of all instructions (docs/log/221, 222). Sums are those of tasks_linear_coded.cuh,
// in its order, so the bits are the same.
//
// x is staged in shared memory, since a warp needs half of all the panels that it meets: each warp
// makes operands of its share of x, as there. The columns of a product are the shares of a panel
// (of f16), or both pieces of four of them (of whole numbers), so what is wanted of a share's
// products is in the lanes of one column. These parts of rows g and g + 8 go to scratch; behind a
// barrier a thread adds up those of its output, share by share in the order of panels, then the
// shares.
//
// A warp skips phases of a page's mbarriers. Parity does not tell a phase that has ended from one
// that is two behind (docs/log/181), so it first waits until its page's predecessor in the same
// place is released. Of that phase parity does tell: its own predecessor was released before the
// loader asked for it, which it did before it asked for the page that this warp had last.
#ifndef MGL_KERNELS_CUDA_LINEAR_TASKS_LINEAR_PAGED_CUH
#define MGL_KERNELS_CUDA_LINEAR_TASKS_LINEAR_PAGED_CUH

#include "kernels/cuda/linear/coded_rows.cuh"
#include "kernels/cuda/linear/tasks_linear_coded.cuh"

enum {
  MGL_PAGED_WARPS = 2,                                            // of a page
  MGL_PAGED_AT_ONCE = MGL_CUDA_CONSUMER_WARPS / MGL_PAGED_WARPS,  // pages
  MGL_PAGED_SHARES = MGL_CUDA_CONSUMER_WARPS / MGL_PAGED_WARPS,   // of a panel that a warp has
  MGL_PAGED_BLOCKS = MGL_CUDA_CONSUMERS / MGL_CUDA_BLOCK_ROWS,    // of a batch, at most: outputs
  MGL_PAGED_X_BYTES = 2 * MGL_PANEL_K,                            // of a panel's x
  MGL_PAGED_SHARE_BYTES = MGL_PAGED_X_BYTES / MGL_CUDA_CONSUMER_WARPS,
  MGL_PAGED_CHUNK_BYTES = MGL_PAGED_SHARE_BYTES / MGL_SHARE_CHUNKS,
  MGL_PAGED_PART_BYTES = MGL_CUDA_CONSUMERS * 2,  // of a panel: a float for each share and row
  MGL_PAGED_SQUARES_BYTES = MGL_CUDA_CONSUMER_WARPS * 32 * 4,
  MGL_PAGED_SQUARES_AT = MGL_CUDA_SCRATCH_BYTES - MGL_PAGED_SQUARES_BYTES,
};

static_assert(MGL_SHARE_K * MGL_CUDA_CONSUMER_WARPS == MGL_PANEL_K, "eight shares");
static_assert(MGL_PAGED_SHARES == 4, "lanes of a column");
static_assert(!MGL_TARGET_COPIES ||
                  MGL_PAGED_AT_ONCE * MGL_PAGE_BYTES <= MGL_CUDA_MAX_PAGES * MGL_CUDA_PAGE_BYTES,
              "the last page of a warp is no successor of its next one's predecessor");

// Whether dense linears of codes of one token take pages by two warps. Where pages do not come by
// bulk copies, a block may have fewer of them than are read at once; and where a share has several
// sums, its part of a row is none that could be added up later.
MGL_DEVICE constexpr bool mgl_one_is_paged() {
  return MGL_TARGET_COPIES && MGL_SHARE_SUMS == 1;
}

// Whether dense linears of a packing have bodies that know what becomes of the sums. Of whole
// numbers such a body's loop over panels has 172 instructions for 167, since it makes anew which of
// a panel's shares is a lane's, and eight layers took 0.587 ms for 0.583 (docs/log/311).
MGL_DEVICE constexpr bool mgl_one_codes_know(uint32_t packing) {
  return mgl_one_is_paged() && !mgl_packing_is_whole(packing);
}

// Experts of one token, whose bodies also compute dense linears of their packing then, so that a
// layer is less code: what executes of it beyond an SM's 128 KB comes three times as slowly
// (docs/log/296, 311). They have room behind a token's routes.
enum {
  MGL_EXPERTS_PAGED_AT = MGL_EXPERT_ROUTES_AT + MGL_EXPERT_SLOTS * MGL_EXPERT_ROUTE_BYTES,
  MGL_EXPERTS_DOWN_K = MGL_EXPERT_SLOTS * MGL_EXPERT_FEATURES,
  MGL_EXPERTS_MOST_K = (int)MGL_EXPERT_WIDTH > (int)MGL_EXPERTS_DOWN_K ? (int)MGL_EXPERT_WIDTH
                                                                       : (int)MGL_EXPERTS_DOWN_K,
};

MGL_DEVICE constexpr bool mgl_experts_are_paged() {
  return mgl_one_is_paged() && !MGL_EXPERT_BIASES && MGL_EXPERTS_PAGED_AT % 16 == 0 &&
         MGL_EXPERT_WIDTH % MGL_PANEL_K == 0 && MGL_EXPERTS_DOWN_K % MGL_PANEL_K == 0 &&
         MGL_EXPERTS_PAGED_AT +
                 MGL_EXPERTS_MOST_K / MGL_PANEL_K *
                     (MGL_PAGED_X_BYTES + MGL_CUDA_CONSUMER_WARPS * 8 + MGL_PAGED_PART_BYTES) <=
             MGL_PAGED_SQUARES_AT;
}

// Addresses in scratch.
struct mgl_paged_places {
  uint32_t x;      // operands
  uint32_t down;   // [panels][8] what products of a share are multiplied by
  uint32_t sum;    // [panels][8] of zero points: sums of whole numbers of x
  uint32_t parts;  // [blocks][panels] of a batch
  uint32_t most;   // row blocks of a batch
};

// FIRST: where in scratch they begin.
template <mgl_packing P, uint32_t FIRST = 0>
MGL_DEVICE mgl_paged_places mgl_paged_find(const mgl_worker *w, uint32_t panels) {
  constexpr uint32_t numbers = MGL_CUDA_CONSUMER_WARPS * 4;
  mgl_paged_places at;
  at.x = mgl_shared_address(w->scratch) + FIRST;
  at.down = at.x + panels * MGL_PAGED_X_BYTES;
  at.sum = at.down + panels * numbers;
  at.parts = at.sum + (mgl_coded<P>::ZEROS ? panels * numbers : 0);
  const uint32_t room =
      (MGL_PAGED_SQUARES_AT - FIRST - (at.parts - at.x)) / MGL_PAGED_PART_BYTES / panels;
  at.most = room < MGL_PAGED_BLOCKS ? room : (uint32_t)MGL_PAGED_BLOCKS;
  return at;
}

static_assert(MGL_ONE_MAX_K / MGL_PANEL_K *
                      (MGL_PAGED_X_BYTES + MGL_CUDA_CONSUMER_WARPS * 8 + MGL_PAGED_PART_BYTES) <=
                  MGL_PAGED_SQUARES_AT,
              "at least one row block");

MGL_DEVICE void mgl_store_shared_float(uint32_t address, float v) {
  asm volatile("st.shared.f32 [%0], %1;" ::"r"(address), "f"(v) : "memory");
}

MGL_DEVICE float mgl_load_shared_float(uint32_t address) {
  return __uint_as_float(mgl_load_shared_word(address));
}

// --- x -------------------------------------------------------------------------------------------

// Where 16 bytes of x lie: those of lanes 4 i + t, of a chunk of a share of a panel. Neighbouring
// shares, which are read at once, begin in different banks.
MGL_DEVICE uint32_t mgl_paged_x_place(uint32_t panel, uint32_t share, uint32_t chunk, uint32_t t) {
  return panel * MGL_PAGED_X_BYTES + share * MGL_PAGED_SHARE_BYTES +
         (chunk + share) % MGL_SHARE_CHUNKS * MGL_PAGED_CHUNK_BYTES + t * 16;
}

// The sum of a share's whole numbers, of which a lane has two chunks; for all of its lanes.
MGL_DEVICE float mgl_paged_sum_x(uint4 a, uint4 b) {
  int sum = mgl_sum_pieces(a.z, a.w, mgl_sum_pieces(a.x, a.y, 0) * 256);
  sum += mgl_sum_pieces(b.z, b.w, mgl_sum_pieces(b.x, b.y, 0) * 256);
#pragma unroll
  for (int bit = 1; bit <= 4; bit *= 2) {
    sum += __shfl_xor_sync(0xffffffffu, sum, bit);
  }
  return (float)sum;
}

// This warp's share of x as operands: lane 4 g + t has groups t of half g % 2 of the share of a
// panel, in each round of the next one of four.
template <bool NORMED, mgl_packing P>
MGL_DEVICE void mgl_paged_stage_x(const mgl_worker *w, const mgl_linear *l,
                                  const mgl_one_columns<NORMED> *x, const mgl_paged_places *at) {
  const uint32_t panels = mgl_coded_panels(l), chunk = w->lane / 4 % 2 * 2;
#pragma unroll
  for (uint32_t round = 0; round < mgl_one_x<NORMED>::ROUNDS / 2; round++) {
    if (round > 0 && round * MGL_CODED_ROUND >= panels) {
      break;
    }
    const uint32_t panel = round * MGL_CODED_ROUND + w->lane / 8;
    const uint32_t number = panel * MGL_CUDA_CONSUMER_WARPS + w->warp;
    const bool there = panel < panels;
    uint4 a = x->v[2 * round], b = x->v[2 * round + 1];
    const uint32_t largest = mgl_largest_of_lanes<4>(mgl_largest_bf16(a, mgl_largest_bf16(b, 0)));
    const mgl_x_scale scale = mgl_x_scale_of<P>(largest);
    a = mgl_coded<P>::WHOLE ? mgl_x_of_whole(a, scale.up) : mgl_x_of_f16(a, scale.up);
    b = mgl_coded<P>::WHOLE ? mgl_x_of_whole(b, scale.up) : mgl_x_of_f16(b, scale.up);
    float sum = 0;
    if (mgl_coded<P>::ZEROS) {
      sum = mgl_paged_sum_x(a, b);
    }
    if (there) {
      mgl_store_shared_quad(at->x + mgl_paged_x_place(panel, w->warp, chunk, w->lane % 4), a);
      mgl_store_shared_quad(at->x + mgl_paged_x_place(panel, w->warp, chunk + 1, w->lane % 4), b);
      if (w->lane % 8 == 0) {
        mgl_store_shared_float(at->down + number * 4, scale.down);
        if (mgl_coded<P>::ZEROS) {
          mgl_store_shared_float(at->sum + number * 4, sum);
        }
      }
    }
  }
}

// --- a panel -------------------------------------------------------------------------------------

// A panel's shares by lanes t: number 0 and 1 of each. Of whole numbers a warp has the shares of
// one number, of f16 those of half of the lanes.
template <mgl_packing P>
MGL_DEVICE uint32_t mgl_paged_share(uint32_t t, uint32_t i) {
  return mgl_coded<P>::WHOLE ? 4 * i + t : 2 * t + i;
}

// A lane's sums of products: of its shares, of rows g and g + 8. Whole numbers until all are there,
// as making floats of them takes long.
template <mgl_packing P>
struct mgl_paged_made {
  static constexpr int SHARES = mgl_coded<P>::WHOLE ? 1 : 2;
  int whole[mgl_coded<P>::WHOLE ? SHARES : 1][2];
  float f16[mgl_coded<P>::WHOLE ? 1 : SHARES][2];
};

// The i-th share of a lane; part: which half of the panel's shares this warp has.
template <mgl_packing P>
MGL_DEVICE uint32_t mgl_paged_own(uint32_t t, uint32_t i, uint32_t part) {
  return mgl_paged_share<P>(t, mgl_coded<P>::WHOLE ? part : i);
}

template <mgl_packing P>
MGL_DEVICE void mgl_paged_read_codes(uint32_t from, uint32_t share, mgl_share<P> *out) {
#pragma unroll
  for (int i = 0; i < mgl_coded<P>::SHARE_QUADS; i++) {
    out->v[i] = mgl_load_shared(from + (share * mgl_coded<P>::SHARE_QUADS + i) * 512);
  }
}

// The products of a panel of f16, in mgl_coded_multiply's order. from: this lane's codes; x: its
// column's operands.
template <mgl_packing P>
MGL_DEVICE void mgl_paged_multiply_f16(uint32_t from, uint32_t x, uint32_t lane, uint32_t part,
                                       mgl_paged_made<P> *out) {
  const uint32_t t = lane % 4, first = part * MGL_PAGED_SHARES;
  mgl_linear_group<1> columns;
#pragma unroll
  for (uint32_t chunk = 0; chunk < MGL_SHARE_CHUNKS; chunk++) {
    columns.x[0][chunk / 2][chunk % 2] =
        mgl_load_shared(x + mgl_paged_x_place(0, lane / 4, chunk, t));
  }
#pragma unroll 2
  for (uint32_t share = first; share < first + MGL_PAGED_SHARES; share += 2) {
#pragma unroll
    for (int j = 0; j < 2; j++) {
      mgl_share<P> codes;
      mgl_rows_made<1, P> made;
      mgl_paged_read_codes<P>(from, share + j, &codes);
      mgl_rows_multiply_f16<1, P>(&columns, &codes, &made);
      const float(*p)[4] = made.f16[0];
#pragma unroll
      for (int half = 0; half < 2; half++) {
        const float value = p[0][2 * half + j] + p[mgl_coded<P>::CHAINS - 1][2 * half + j];
        out->f16[j][half] = t == share / 2 ? value : out->f16[j][half];
      }
    }
  }
}

// Likewise of whole numbers.
template <mgl_packing P>
MGL_DEVICE void mgl_paged_multiply_whole(uint32_t from, uint32_t x, uint32_t lane, uint32_t part,
                                         uint32_t signs, mgl_paged_made<P> *out) {
  const uint32_t t = lane % 4, first = part * MGL_PAGED_SHARES;
  uint2 words[MGL_SHARE_CHUNKS];
#pragma unroll
  for (uint32_t chunk = 0; chunk < MGL_SHARE_CHUNKS; chunk++) {
    const float2 pair = mgl_load_shared_pair(x + mgl_paged_x_place(0, first + lane / 8, chunk, t) +
                                             lane / 4 % 2 * 8);
    words[chunk] = make_uint2(__float_as_uint(pair.x), __float_as_uint(pair.y));
  }
  const uint4 columns[2] = {make_uint4(words[0].x, words[0].y, words[1].x, words[1].y),
                            make_uint4(words[2].x, words[2].y, words[3].x, words[3].y)};
#pragma unroll
  for (uint32_t i = 0; i < MGL_PAGED_SHARES; i++) {
    mgl_share<P> codes;
    int p[mgl_coded<P>::CHAINS][4];
    mgl_paged_read_codes<P>(from, first + i, &codes);
    mgl_coded_multiply<P>(&codes, signs, columns, p);
#pragma unroll
    for (int half = 0; half < 2; half++) {
      const int value = p[0][2 * half] * 256 + p[0][2 * half + 1];
      out->whole[0][half] = t == i ? value : out->whole[0][half];
    }
  }
}

// The scales of a lane's shares, and their zero points.
template <mgl_packing P>
struct mgl_paged_scales {
  float2 scale[mgl_paged_made<P>::SHARES];
  float2 zero[mgl_paged_made<P>::SHARES];
};

template <mgl_packing P>
MGL_DEVICE void mgl_paged_read_scales(uint32_t panel, uint32_t group_shift, uint32_t lane,
                                      uint32_t part, mgl_paged_scales<P> *out) {
  const uint32_t scales = panel + mgl_coded<P>::CODES_BYTES + lane / 4 * 8;
#pragma unroll
  for (uint32_t i = 0; i < mgl_paged_made<P>::SHARES; i++) {
    const uint32_t group = mgl_paged_own<P>(lane % 4, i, part) * MGL_SHARE_K >> group_shift;
    const uint32_t from = scales + group * mgl_coded<P>::GROUP_BYTES;
    out->scale[i] = mgl_load_shared_pair(from);
    if (mgl_coded<P>::ZEROS) {
      out->zero[i] = mgl_load_shared_pair(from + MGL_PANEL_SCALE_BYTES);
    }
  }
}

// 0 once these loads have arrived; those of codes have when their products were made.
template <mgl_packing P>
MGL_DEVICE uint32_t mgl_paged_arrived(const mgl_paged_scales<P> *scales, uint32_t zero) {
  uint32_t bits = 0;
#pragma unroll
  for (int i = 0; i < mgl_paged_made<P>::SHARES; i++) {
    bits |= __float_as_uint(scales->scale[i].x);
    if (mgl_coded<P>::ZEROS) {
      bits |= __float_as_uint(scales->zero[i].x);
    }
  }
  return bits & zero;
}

// Where a lane's parts lie among a panel's: of row g + 8 u 8 bytes behind 8 u. (Those that threads
// of neighbouring rows read at once lie in different banks.)
MGL_DEVICE uint32_t mgl_paged_part_place(uint32_t g, uint32_t t) {
  return (g * 4 + (t ^ g / 2)) * 16;
}

// The parts of one panel: of each share and row, the sum of products times its scale.
template <mgl_packing P>
MGL_DEVICE void mgl_paged_add_up(const mgl_worker *w, const mgl_paged_places *at, uint32_t number,
                                 uint32_t part, const mgl_paged_made<P> *made,
                                 const mgl_paged_scales<P> *scales, uint32_t to) {
  constexpr uint32_t own = mgl_paged_made<P>::SHARES;
  const uint32_t t = w->lane % 4;
  float parts[own][2];
#pragma unroll
  for (uint32_t i = 0; i < own; i++) {
    const uint32_t share = number * MGL_CUDA_CONSUMER_WARPS + mgl_paged_own<P>(t, i, part);
    const float down = mgl_load_shared_float(at->down + share * 4);
    float x_sum = 0;
    if (mgl_coded<P>::ZEROS) {
      x_sum = mgl_load_shared_float(at->sum + share * 4);
    }
#pragma unroll
    for (uint32_t half = 0; half < 2; half++) {
      float value = made->f16[mgl_coded<P>::WHOLE ? 0 : i][half];
      if (mgl_coded<P>::WHOLE) {
        value = (float)made->whole[mgl_coded<P>::WHOLE ? i : 0][half];
      }
      if (mgl_coded<P>::ZEROS) {
        const float2 zero = scales->zero[i];
        value = mgl_less_zero(value, half == 0 ? zero.x : zero.y, x_sum);
      }
      const float2 scale = scales->scale[i];
      parts[i][half] = value * down * (half == 0 ? scale.x : scale.y);
    }
  }
  to += mgl_paged_part_place(w->lane / 4, t);
  if (mgl_coded<P>::WHOLE) {
    mgl_store_shared_float(to + part * 4, parts[0][0]);
    mgl_store_shared_float(to + part * 4 + 8, parts[0][1]);
  } else if (t / 2 == part) {
    mgl_store_shared(to,
                     make_float4(parts[0][0], parts[own - 1][0], parts[0][1], parts[own - 1][1]));
  }
}

// --- pages ---------------------------------------------------------------------------------------

// How a warp goes through the pages of a batch; known before x is there, as divisions take long.
struct mgl_paged_walk {
  uint32_t of_block;             // pages of a row block
  uint32_t number, part;         // which of the warps' pages it begins with; of that, its part
  uint32_t block, page;          // the first one of this warp
  uint32_t blocks_on, pages_on;  // to its next one
};

// known: `panels` is, to the compiler, to whom nothing is hidden then.
template <mgl_packing P>
MGL_DEVICE mgl_paged_walk mgl_paged_plan(const mgl_worker *w, uint32_t panels, bool known) {
  constexpr uint32_t most = mgl_coded<P>::PANELS;
  mgl_paged_walk walk;
  walk.of_block = (panels + (most - 1)) / most;
  walk.number = w->warp % MGL_PAGED_AT_ONCE;
  walk.part = w->warp / MGL_PAGED_AT_ONCE;
  walk.block = walk.number / walk.of_block;
  walk.block = known ? walk.block : mgl_kept(walk.block);
  walk.page = walk.number - walk.block * walk.of_block;
  walk.page = known ? walk.page : mgl_kept(walk.page);
  walk.blocks_on = MGL_PAGED_AT_ONCE / walk.of_block;
  walk.blocks_on = known ? walk.blocks_on : mgl_kept(walk.blocks_on);
  walk.pages_on = MGL_PAGED_AT_ONCE - walk.blocks_on * walk.of_block;
  return walk;
}

// This warp's pages of a batch.
template <mgl_packing P>
MGL_DEVICE void mgl_paged_batch(mgl_worker *w, const mgl_linear *l, const mgl_paged_places *at,
                                const mgl_paged_walk *walk, uint32_t group_shift) {
  constexpr uint32_t step = MGL_PAGED_AT_ONCE, most = mgl_coded<P>::PANELS;
  const uint32_t panels = mgl_coded_panels(l);
  const uint32_t count = l->blocks * walk->of_block;
  const uint32_t signs = mgl_kept(0x80808080u + l->zero);  // codes.cuh
  uint32_t block = walk->block, page = walk->page;
  uint32_t place = w->page + walk->number, parity = w->page_parity;
#pragma unroll 1
  for (uint32_t i = walk->number; i < count; i += step) {
    parity ^= place >= w->page_count ? 1 : 0;
    place -= place >= w->page_count ? w->page_count : 0;
    const uint32_t full = mgl_one_barrier(w, place);
    mgl_mbarrier_wait_at(full + MGL_ONE_FREE, parity ^ 1);
    mgl_page_wait_at(w, full, parity);
    mgl_paged_scales<P> scales;
#pragma unroll 1
    for (uint32_t j = 0; j < most; j++) {
      const uint32_t number = page * most + j;
      if (most > 1 && number == panels) {
        break;
      }
      const uint32_t panel = l->page_at + place * MGL_PAGE_BYTES + j * l->panel_bytes;
      const uint32_t x = at->x + number * MGL_PAGED_X_BYTES;
      mgl_paged_made<P> made = {};
      mgl_paged_read_scales<P>(panel, group_shift, w->lane, walk->part, &scales);
      if constexpr (mgl_coded<P>::WHOLE) {
        mgl_paged_multiply_whole<P>(panel + w->lane * 16, x, w->lane, walk->part, signs, &made);
      } else {
        mgl_paged_multiply_f16<P>(panel + w->lane * 16, x, w->lane, walk->part, &made);
      }
      mgl_paged_add_up<P>(w, at, number, walk->part, &made, &scales,
                          at->parts + (block * panels + number) * MGL_PAGED_PART_BYTES);
    }
    const uint32_t released = full + MGL_ONE_FREE + mgl_paged_arrived<P>(&scales, l->zero);
    __syncwarp();
    if (w->lane == 0) {  // for all warps
      asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0], %1;" ::"r"(released),
                   "n"(MGL_CUDA_CONSUMER_WARPS / MGL_PAGED_WARPS)
                   : "memory");
    }
    place += step;
    page += walk->pages_on;
    block += walk->blocks_on + (page >= walk->of_block ? 1 : 0);
    page -= page >= walk->of_block ? walk->of_block : 0;
  }
  for (w->page += count; w->page >= w->page_count; w->page -= w->page_count) {
    w->page_parity ^= 1;
  }
}

// --- outputs -------------------------------------------------------------------------------------

// The sum of this thread's output: shares in their order, each over the panels.
template <mgl_packing P>
MGL_DEVICE float mgl_paged_total(const mgl_worker *w, const mgl_linear *l,
                                 const mgl_paged_places *at) {
  const uint32_t panels = mgl_coded_panels(l);
  const uint32_t block = w->thread / MGL_CUDA_BLOCK_ROWS, row = w->thread % MGL_CUDA_BLOCK_ROWS;
  if (block >= l->blocks) {
    return 0;
  }
  uint32_t from = at->parts + block * panels * MGL_PAGED_PART_BYTES + row / 8 * 8;
  float shares[MGL_CUDA_CONSUMER_WARPS] = {};
#pragma unroll 2
  for (uint32_t i = 0; i < panels; i++, from += MGL_PAGED_PART_BYTES) {
#pragma unroll
    for (uint32_t t = 0; t < 4; t++) {
      const float2 pair = mgl_load_shared_pair(from + mgl_paged_part_place(row % 8, t));
      shares[mgl_paged_share<P>(t, 0)] += pair.x;
      shares[mgl_paged_share<P>(t, 1)] += pair.y;
    }
  }
  float total = 0;
#pragma unroll
  for (uint32_t i = 0; i < MGL_CUDA_CONSUMER_WARPS; i++) {
    total += shares[i];
  }
  return total;
}

// --- the task ------------------------------------------------------------------------------------

template <bool NORMED, mgl_packing P, uint32_t K, mgl_makes MAKES>
MGL_DEVICE void mgl_task_linear_paged(mgl_worker *w) {
  const mgl_slot *slot = mgl_task_slot(w);
  mgl_linear l;
  mgl_linear_init(w, slot, slot->rows, true, &l);
  constexpr bool EXPERTS = MAKES == MGL_MAKES_EXPERTS;
  mgl_linear_know<NORMED && !EXPERTS ? MGL_K_CODED_NORMED : 0>(&l);
  mgl_linear_know_all<K, MAKES>(&l);
  l.rows = MAKES == MGL_MAKES_ANY ? l.rows : 1;
  const uint32_t begin = slot->begin;
  const uint32_t end = slot->end;
  mgl_one_norm norm;
  mgl_one_x<NORMED> mine = {};
  // All loads from the L2 are on their way before anything is waited for.
  if (l.carried) {
    mgl_one_ask<NORMED, P>(w, &l, l.x, mgl_one_polls_all(&l) ? mgl_one_rounds<P>(&l) : 1, &mine);
  }
  if (NORMED) {
    mgl_one_load_norm<P>(w, &l, &norm);
  }
  const mgl_paged_places at = mgl_paged_find < P,
                         EXPERTS ? MGL_EXPERTS_PAGED_AT : 0 > (w, mgl_coded_panels(&l));
  const mgl_paged_walk walk = mgl_paged_plan<P>(w, mgl_coded_panels(&l), K != 0);
  mgl_one_output output;
  l.block = begin;
  l.blocks = end - begin < at.most ? end - begin : at.most;
  mgl_one_aim(w, &l, &output);
  l.page_at = mgl_shared_address(w->pages);
  l.panel_bytes = mgl_op_panel_bytes(&slot->op);
  const uint32_t group_shift = mgl_op_group_shift(&slot->op);
  if (!mgl_mbarrier_wait_or_stop(w->block, &w->block->go[w->slot], w->slot_parity)) {
    return;  // the run has stopped before
  }
  if (!l.carried) {  // now there is a residual
    mgl_one_aim(w, &l, &output);
  }
  mgl_one_await<NORMED, P>(w, &l, &mine);
  {
    mgl_one_columns<NORMED> x = {};
    mgl_one_squares<NORMED> squares = {};
    mgl_one_round<NORMED, P>(&l, &mine, &norm, &x, &squares);
    mgl_task_began(w);
    mgl_paged_stage_x<NORMED, P>(w, &l, &x, &at);
    mgl_sync_consumers();
    mgl_one_share_squares<NORMED, P, MGL_PAGED_SQUARES_AT>(w, &l, &squares);
  }
  uint64_t best = 0;
#pragma unroll 1
  for (;;) {
    mgl_paged_batch<P>(w, &l, &at, &walk, group_shift);
    mgl_sync_consumers();
    if (w->warp * (32 / MGL_CUDA_BLOCK_ROWS) < l.blocks) {
      mgl_one_put<NORMED, MGL_PAGED_SQUARES_AT, EXPERTS>(w, &l, &output,
                                                         mgl_paged_total<P>(w, &l, &at), &best);
    }
    if (l.block + l.blocks == end) {
      break;
    }
    l.block += l.blocks;
    l.blocks = end - l.block < at.most ? end - l.block : at.most;
    mgl_one_aim(w, &l, &output);
    mgl_sync_consumers();  // the batch before has been read
  }
  mgl_one_share_best<MGL_CUDA_CONSUMERS>(w, &l, best);
}

template <bool NORMED, mgl_packing P, uint32_t K = 0, mgl_makes MAKES = MGL_MAKES_ANY>
MGL_DEVICE void mgl_task_linear_of_one(mgl_worker *w) {
  if constexpr (MAKES != MGL_MAKES_ANY && (K == 0 || !MGL_CARRIES || !mgl_one_codes_know(P))) {
    return;  // not chosen
  } else if constexpr (mgl_one_is_paged()) {
    mgl_task_linear_paged<NORMED, P, K, MAKES>(w);
  } else {
    mgl_task_linear_coded<NORMED, P>(w);
  }
}

#endif
