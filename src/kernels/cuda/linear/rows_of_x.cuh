// How a warp of a linear of 2 to 16 tokens (tasks_linear_rows.cuh, tasks_experts_rows.cuh) gets its
// part of x: where its lanes' rows lie, asking for a group of pages at once, waiting until all
// words are there, and making operands of them.
#ifndef MGL_KERNELS_CUDA_LINEAR_ROWS_OF_X_CUH
#define MGL_KERNELS_CUDA_LINEAR_ROWS_OF_X_CUH

#include "kernels/cuda/linear/coded_rows.cuh"
#include "kernels/cuda/linear/tasks_linear.cuh"

enum {
  MGL_ROWS_PIECES = MGL_GROUP_PAGES * MGL_LINEAR_CHUNKS,  // that a lane has of a row in a group
};

static_assert(MGL_GROUP_PAGES == 2, "pages come in pairs");

// This lane's rows of x, one of each tile: where its first element lies.
template <int TILES>
struct mgl_rows_places {
  const uint8_t *at[TILES];
  bool there[TILES];
  bool all;       // to the compiler: whoever has no row has the first one's
  uint32_t left;  // elements of a row from the first one of this lane on; of codes
};

template <mgl_packing P, int TILES>
MGL_DEVICE void mgl_rows_find(const mgl_worker *w, const mgl_linear *l,
                              mgl_rows_places<TILES> *rows) {
  const uint32_t first = mgl_rows_first<P>(w, 0);
  rows->left = first < l->k ? l->k - first : 0;
  rows->all = l->known && TILES == 2;
#pragma unroll
  for (uint32_t tile = 0; tile < TILES; tile++) {
    uint32_t row = l->first_row + w->lane / 4 + tile * 8;
    rows->there[tile] = rows->all || row < l->rows;
    rows->at[tile] = mgl_linear_x(l, row < l->rows ? row : 0, first);
  }
}

// This lane's part of PIECES pieces of a group, as it lies in memory; bf16 fills only [][][0].
template <int TILES, bool NORMED, int PIECES, mgl_packing P>
struct mgl_rows_raw {
  static constexpr int QUADS = NORMED ? 2 : 1;
  uint4 v[TILES][PIECES][QUADS];
};

// Whether a row has that piece of the group from page first_page on: panels are longer than rows
// may be.
template <mgl_packing P, int TILES>
MGL_DEVICE bool mgl_rows_has(const mgl_rows_places<TILES> *rows, uint32_t first_page, int piece) {
  return P == MGL_PACKING_BF16 ||
         first_page * MGL_CUDA_PAGE_K + mgl_rows_element<P>(piece) < rows->left;
}

// Before it is asked for: open where there is a row, else zeros. Where all lanes ask for something,
// nothing needs it.
template <int TILES, bool NORMED, int PIECES, mgl_packing P>
MGL_DEVICE void mgl_rows_clear(const mgl_rows_places<TILES> *rows, uint32_t first_page, int begin,
                               mgl_rows_raw<TILES, NORMED, PIECES, P> *raw) {
  constexpr int quads = mgl_rows_raw<TILES, NORMED, PIECES, P>::QUADS;
#pragma unroll
  for (int tile = 0; !rows->all && tile < TILES; tile++) {
#pragma unroll
    for (int i = 0; i < PIECES * quads; i++) {
      const bool has = mgl_rows_has<P>(rows, first_page, begin + i / quads);
      const uint32_t word = rows->there[tile] && has ? MGL_CUDA_OPEN : 0;
      raw->v[tile][i / quads][i % quads] = make_uint4(word, word, word, word);
    }
  }
}

// By lanes that want it: `count` of the pieces, which begin with piece `begin` of the group from
// page first_page on. (One condition for all: with one for each, the compiler loads them one behind
// the other.)
template <bool ALL = false, int TILES, bool NORMED, int PIECES, mgl_packing P>
MGL_DEVICE void mgl_rows_ask(const mgl_rows_places<TILES> *rows, bool wanted, uint32_t first_page,
                             int begin, int count, mgl_rows_raw<TILES, NORMED, PIECES, P> *raw) {
  constexpr uint32_t bytes = NORMED ? sizeof(float) : sizeof(uint16_t);
#pragma unroll
  for (int tile = 0; tile < TILES; tile++) {
    const uint8_t *from = rows->at[tile] + (size_t)first_page * (MGL_CUDA_PAGE_K * bytes);
#pragma unroll
    for (int piece = 0; piece < count; piece++) {
#pragma unroll
      for (int quad = 0; quad < mgl_rows_raw<TILES, NORMED, PIECES, P>::QUADS; quad++) {
        if (rows->all && ALL) {
          raw->v[tile][piece][quad] =
              mgl_load_l2(from + mgl_rows_element<P>(begin + piece) * bytes + quad * 16);
          continue;
        }
        mgl_load_l2_if(
            from + mgl_rows_element<P>(begin + piece) * bytes + quad * 16,
            wanted && rows->there[tile] && mgl_rows_has<P>(rows, first_page, begin + piece),
            &raw->v[tile][piece][quad]);
      }
    }
  }
}

// Says whether one of the first `count` pieces has an open word, which is the largest of all.
template <int TILES, bool NORMED, int PIECES, mgl_packing P>
MGL_DEVICE bool mgl_rows_is_open(const mgl_rows_raw<TILES, NORMED, PIECES, P> *raw, int count) {
  uint32_t largest = 0;
#pragma unroll
  for (int tile = 0; tile < TILES; tile++) {
#pragma unroll
    for (int piece = 0; piece < count; piece++) {
#pragma unroll
      for (int quad = 0; quad < mgl_rows_raw<TILES, NORMED, PIECES, P>::QUADS; quad++) {
        uint4 v = raw->v[tile][piece][quad];
        largest = max(max(largest, max(v.x, v.y)), max(v.z, v.w));
      }
    }
  }
  return largest == MGL_CUDA_OPEN;
}

// Until all of it is there, asked for again by those lanes that miss something: of a whole group
// only first pieces, as long as these are open, since many rows asked for by all SMs again and
// again fill the L2's queues. When the run stops it gives up, and the task is mute.
template <int TILES, bool NORMED, int PIECES, mgl_packing P>
MGL_DEVICE void mgl_rows_await(const mgl_worker *w, const mgl_linear *l,
                               const mgl_rows_places<TILES> *rows, uint32_t first_page, int begin,
                               mgl_rows_raw<TILES, NORMED, PIECES, P> *raw) {
  while (l->carried) {
    bool open = mgl_rows_is_open(raw, PIECES);
    if (!__any_sync(0xffffffffu, open) || w->block->stop != 0) {
      return;
    }
    if (PIECES == MGL_ROWS_PIECES && __any_sync(0xffffffffu, mgl_rows_is_open(raw, 1))) {
      mgl_rows_ask(rows, open, first_page, begin, 1, raw);
    } else {
      mgl_rows_ask(rows, open, first_page, begin, PIECES, raw);
    }
  }
}

// The norm's weights of this warp into the L1: the caches forget them between iterations.
template <mgl_packing P>
MGL_DEVICE void mgl_rows_fetch_norm(const mgl_worker *w, const mgl_linear *l) {
  const uint32_t pages = (l->pages + (MGL_GROUP_PAGES - 1)) / MGL_GROUP_PAGES * MGL_GROUP_PAGES;
  const uint32_t pieces = (P == MGL_PACKING_BF16 ? l->pages : pages) * MGL_LINEAR_CHUNKS;
  for (uint32_t piece = w->lane / 4; piece < pieces; piece += 8) {
    const uint32_t first = mgl_rows_first<P>(w, 0) + mgl_rows_element<P>((int)piece);
    if (P != MGL_PACKING_BF16 && first >= l->k) {
      continue;
    }
    const float *from = l->norm + first;
    float a, b;
    asm volatile("ld.global.nc.f32 %0, [%1];" : "=f"(a) : "l"(from));
    asm volatile("ld.global.nc.f32 %0, [%1];" : "=f"(b) : "l"(from + 4));
  }
}

// The norm's weights, whose address is read where it is needed: between, in registers, it would be
// spilled.
MGL_DEVICE const float *mgl_rows_norm(const mgl_worker *w) {
  uint64_t norm;
  asm volatile("ld.shared.u64 %0, [%1];"
               : "=l"(norm)
               : "r"(mgl_shared_address(&mgl_task_slot(w)->op.norm)));
  return (const float *)norm;
}

template <int TILES, bool NORMED, int PIECES, mgl_packing P>
MGL_DEVICE void mgl_rows_convert(const mgl_worker *w, const mgl_rows_places<TILES> *rows,
                                 uint32_t first_page, int begin,
                                 const mgl_rows_raw<TILES, NORMED, PIECES, P> *raw,
                                 mgl_linear_group<TILES> *x, float squares[TILES]) {
  const float *weights = NORMED ? mgl_rows_norm(w) : nullptr;
#pragma unroll
  for (int i = 0; i < PIECES; i++) {
    const int piece = begin + i;
    float4 norm[2];
    if (!mgl_rows_has<P>(rows, first_page, piece)) {
#pragma unroll
      for (int tile = 0; tile < TILES; tile++) {
        x->x[tile][piece / MGL_LINEAR_CHUNKS][piece % MGL_LINEAR_CHUNKS] = make_uint4(0, 0, 0, 0);
      }
      continue;
    }
    if (NORMED) {
      const float *from = weights + mgl_rows_first<P>(w, first_page) + mgl_rows_element<P>(piece);
      norm[0] = __ldg((const float4 *)from);
      norm[1] = __ldg((const float4 *)(from + 4));
    }
#pragma unroll
    for (int tile = 0; tile < TILES; tile++) {
      const uint4 *v = raw->v[tile][i];
      x->x[tile][piece / MGL_LINEAR_CHUNKS][piece % MGL_LINEAR_CHUNKS] =
          NORMED ? mgl_linear_normed(v, norm, &squares[tile]) : v[0];
    }
  }
}

#endif
