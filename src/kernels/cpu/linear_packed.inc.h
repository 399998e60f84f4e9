// Linear layers for many tokens: x is packed, so that a register tile reads it as one stream, and
// weights are used in place.
//
// The same chains of additions as in linear_vector.inc.h, so the same bits; what differs is what
// stays where. A panel of rows of weights, 256 KiB or what mgl_linear_way says, stays in the L2
// cache while all tiles of tokens pass over it; a tile's chunk of x, 12 KiB, stays in the L1 cache
// while the rows of the panel pass over it. Where a product of pairs is one instruction, and tokens
// are not few, a chunk is as long as L2 has room for: to park accumulators between chunks of K
// costs more than to read x from there (docs/log/261). The next panel is fetched into L2 meanwhile,
// a little by each tile. Rejected (docs/log/092, 095, 098): blocks of rows that stay in L1 while x
// passes, prefetching weights into L1, packed weights, and lanes that are rows, which would save
// the sums over lanes, but change the order of summation.
//
// Packed x: tile after tile of about the same number of tokens, linear_tokens at most; in a tile,
// step after step of K; in a step, one vector of each token, filled up with zeros behind K. Split
// x: in a step the odd elements of each token, then the even ones, so that a product of pairs is
// two of f32 (in the order of VDPBF16PS), and x need not be widened again for each block of rows.
//
// Included by kernels_vector.inc.h, behind linear_vector.inc.h.

enum {
  packed_panel_bytes = 256 * 1024,
  packed_least_rows = 16,
  packed_most_rows = 128,          // of a panel
  packed_chunked_rows = 64,        // of a panel with several chunks: its accumulators are 24 KiB
  packed_chunk_steps = 32,         // of K, with few tokens
  packed_chunk_bytes = 96 * 1024,  // of a tile of x, with more
  packed_state = packed_chunked_rows * linear_tokens,
};

typedef struct packed_tiles {
  size_t tokens, count;
} packed_tiles;

INLINE packed_tiles tiles_of(size_t tokens) {
  return (packed_tiles){tokens, (tokens + linear_tokens - 1) / linear_tokens};
}

// First token of a tile; of the tile behind the last, the number of tokens.
INLINE size_t tile_start(const packed_tiles *tiles, size_t tile) {
  return tile * tiles->tokens / tiles->count;
}

// Vectors of a token in a step.
INLINE size_t vectors_of(kinds kind) {
  return kind.x == operand_bf16_split ? 2 : 1;
}

INLINE void pack_of(const mgl_pack_args *args, operand kind, bool split) {
  size_t step = step_of((kinds){kind, kind}), bytes = operand_bytes(kind), k = args->k;
  packed_tiles tiles = tiles_of(args->token_count);
  float *out = args->out;
  for (size_t tile = 0; tile < tiles.count; tile++) {
    size_t first = tile_start(&tiles, tile), end = tile_start(&tiles, tile + 1);
    for (size_t i = 0; i < k; i += step) {
      for (size_t t = first; t < end; t++, out += vec_lanes) {
        const char *x = (const char *)args->x + (t * k + i) * bytes;
        vec value = k - i < step ? operand_load_partial(x, k - i, kind) : operand_load(x, kind);
        vec_store(out, split ? vec_pairs_odd(value) : value);
        if (split) {
          vec_store(out + (end - first) * vec_lanes, vec_pairs_even(value));
        }
      }
      out += split ? (end - first) * vec_lanes : 0;
    }
  }
}

static void pack(const mgl_pack_args *args) {
  assert(args->dtype == MGL_DTYPE_BF16 || (args->dtype == MGL_DTYPE_F32 && !args->split));
  if (args->whole) {
    pack_whole(args);
  } else if (args->dtype == MGL_DTYPE_F32) {
    pack_of(args, operand_f32, false);
  } else if (args->split) {
    pack_of(args, operand_bf16_pairs, true);
  } else {
    pack_of(args, operand_bf16_pairs, false);
  }
}

// One step of K, or what is left of it (`partial` elements), for all accumulators; x: the step's
// vectors.
INLINE void packed_step(vec acc[][linear_rows], const float *x, const sources *from, size_t i,
                        size_t partial, size_t tokens, kinds kind) {
  bool split = kind.x == operand_bf16_split;
  UNROLL for (size_t half = 0; half < vectors_of(kind); half++) {
    vec weights[linear_rows];
    UNROLL for (size_t r = 0; r < linear_rows; r++) {
      const char *w = from->w[r] + i * operand_bytes(kind.w);
      weights[r] = partial > 0 ? operand_load_partial(w, partial, kind.w) : operand_load(w, kind.w);
      if (split) {
        weights[r] = half == 0 ? vec_pairs_odd(weights[r]) : vec_pairs_even(weights[r]);
      }
    }
    UNROLL for (size_t j = 0; j < tokens; j++) {
      vec value = vec_load(x + (half * tokens + j) * vec_lanes);
      UNROLL for (size_t r = 0; r < linear_rows; r++) {
        acc[j][r] = operand_dot(acc[j][r], value, weights[r], kind.x);
      }
    }
  }
}

// A chunk of K of the tokens t to t + tokens (a tile) and the rows of a block; x: the tile's
// vectors of the chunk. `tokens` and `kind` are constants after inlining.
INLINE void packed_tile(const mgl_linear_args *args, const block *at, const float *x, size_t t,
                        size_t tokens, kinds kind) {
  sources from = find_sources(args, t, at->n, at->n_end, kind);
  size_t step = step_of(kind), i = at->begin, end = at->end, ahead_rows = at->ahead_rows;
  vec acc[linear_tokens][linear_rows];
  UNROLL for (size_t j = 0; j < tokens; j++) {
    UNROLL for (size_t r = 0; r < linear_rows; r++) {
      acc[j][r] = i == 0 ? vec_zero() : at->state[j * linear_rows + r];
    }
  }
  const char *ahead = at->ahead;
  bool split = kind.x == operand_bf16_split;
  uint32_t control = split ? vec_subnormals_begin(acc[0], tokens * linear_rows) : 0;
  for (; i + step <= end; i += step, x += vectors_of(kind) * tokens * vec_lanes) {
    for (size_t r = 0; r < ahead_rows; r++) {
      fetch(ahead, r * from.w_stride, MGL_FETCH_L2);
    }
    ahead += step * operand_bytes(kind.w);
    packed_step(acc, x, &from, i, 0, tokens, kind);
  }
  if (i < end) {
    packed_step(acc, x, &from, i, end - i, tokens, kind);
  }
  if (split) {
    vec_subnormals_end(control, acc[0], tokens * linear_rows);
  }
  UNROLL for (size_t j = 0; j < tokens; j++) {
    if (end < args->k) {
      UNROLL for (size_t r = 0; r < linear_rows; r++) {
        at->state[j * linear_rows + r] = acc[j][r];
      }
    } else {
      store_sums(args, t + j, at->n, at->n_end,
                 vec_sum4(acc[j][0], acc[j][1], acc[j][2], acc[j][3]));
    }
  }
}

// Rows of weights that are computed together, and those that are fetched meanwhile.
typedef struct panel {
  size_t n, n_end;
  const char *ahead;  // rows of K elements
  size_t ahead_rows;
} panel;

// A tile of tokens for a panel: chunk after chunk of K, in each all blocks.
INLINE void compute_panel_tile(const mgl_linear_args *args, const panel *p, size_t chunk,
                               const packed_tiles *tiles, size_t tile, vec *state, kinds kind) {
  size_t step = step_of(kind), k = args->k, row_bytes = k * operand_bytes(kind.w);
  size_t t = tile_start(tiles, tile), tokens = tile_start(tiles, tile + 1) - t;
  size_t step_floats = vectors_of(kind) * vec_lanes;  // of a token
  const float *x = (const float *)args->x + t * ((k + step - 1) / step) * step_floats;
  // This tile's part of the next panel: these of every four rows.
  size_t first = tile * linear_rows / tiles->count;
  size_t count = (tile + 1) * linear_rows / tiles->count - first;
  for (size_t begin = 0; begin < k; begin += chunk, x += chunk / step * tokens * step_floats) {
    for (size_t n = p->n; n < p->n_end; n += linear_rows) {
      size_t row = n - p->n + first;
      block at = {
          .n = n,
          .n_end = p->n_end,
          .begin = begin,
          .end = begin + chunk < k ? begin + chunk : k,
          .state = state + (n - p->n) * linear_tokens,
          .ahead = p->ahead,
      };
      if (args->way->many_fetch && row + count <= p->ahead_rows) {
        at.ahead += row * row_bytes + begin * operand_bytes(kind.w);
        at.ahead_rows = count;
      }
      switch (tokens) {
#if LINEAR_TOKENS > 4
        case 6: packed_tile(args, &at, x, t, 6, kind); break;
        case 5: packed_tile(args, &at, x, t, 5, kind); break;
#endif
#if LINEAR_TOKENS > 2
        case 4: packed_tile(args, &at, x, t, 4, kind); break;
        case 3: packed_tile(args, &at, x, t, 3, kind); break;
#endif
        case 2: packed_tile(args, &at, x, t, 2, kind); break;
        default: packed_tile(args, &at, x, t, 1, kind); break;
      }
    }
  }
}

// Most rows of a panel, a multiple of linear_rows.
static size_t panel_rows(const mgl_linear_args *args, size_t row_bytes, bool chunked) {
  size_t most = chunked ? packed_chunked_rows : packed_most_rows;
  size_t rows = args->token_count <= MGL_LINEAR_SOME ? args->way->some_rows : args->way->many_rows;
  size_t least = linear_rows;
  if (rows == 0) {
    rows = packed_panel_bytes / row_bytes;
    least = packed_least_rows;
  }
  rows = rows / linear_rows * linear_rows;
  return rows < least ? least : rows > most ? most : rows;
}

// Elements of K in a chunk, in whole steps.
INLINE size_t packed_chunk(const mgl_linear_args *args, kinds kind) {
  size_t steps = packed_chunk_steps;
  if (args->token_count > MGL_LINEAR_SOME && kind.x == operand_bf16_pairs && VEC_DOT_IS_ONE) {
    steps = packed_chunk_bytes / (linear_tokens * vectors_of(kind) * sizeof(vec));
  }
  return steps * step_of(kind);
}

INLINE void compute_packed(const mgl_linear_args *args, size_t begin, size_t end, kinds kind) {
  vec state[packed_state];
  size_t k = args->k, chunk = packed_chunk(args, kind);
  size_t row_bytes = k * operand_bytes(kind.w), rows = panel_rows(args, row_bytes, k > chunk);
  packed_tiles tiles = tiles_of(args->token_count);
  for (size_t n = begin, n_end; n < end; n = n_end) {
    n_end = n + rows < end ? n + rows : end;
    panel p = {.n = n, .n_end = n_end, .ahead = args->w};
    if (n_end < end) {
      p.ahead += n_end * row_bytes;
      p.ahead_rows = end - n_end;
    } else if (args->next_rows > 0) {
      p.ahead = args->next_w;
      p.ahead_rows = args->next_rows;
    }
    for (size_t tile = 0; tile < tiles.count; tile++) {
      compute_panel_tile(args, &p, chunk, &tiles, tile, state, kind);
    }
  }
}

INLINE void linear_of(const mgl_linear_args *args, size_t begin, size_t end, kinds kind) {
  vec state[linear_state];
  plan p = plan_linear(args, begin, end, kind);
  size_t state_stride = (size_t)args->token_count * linear_rows;  // of a block
  size_t count = (end - begin + linear_rows - 1) / linear_rows * p.chunks;
  for (size_t i = 0; i < count; i++) {
    block at = plan_block(&p, i);
    size_t ahead = args->way->few_ahead;
    block later = plan_block(&p, i + ahead < count ? i + ahead : i);
    at.state = state + (at.n - begin) / linear_rows % p.panel_blocks * state_stride;
    at.ahead = (const char *)args->w + (later.n * p.k + later.begin) * operand_bytes(kind.w);
    compute_block(args, at, ahead > 0, kind);
  }
}

SEPARATE void single_bf16_bf16(const mgl_linear_args *args, size_t begin, size_t end) {
  choose_single(args, begin, end, (kinds){operand_bf16_pairs, operand_bf16_pairs});
}

SEPARATE void linear_bf16_bf16(const mgl_linear_args *args, size_t begin, size_t end) {
  linear_of(args, begin, end, (kinds){operand_bf16_pairs, operand_bf16_pairs});
}

SEPARATE void packed_bf16_bf16(const mgl_linear_args *args, size_t begin, size_t end) {
  compute_packed(args, begin, end, (kinds){operand_bf16_pairs, operand_bf16_pairs});
}

SEPARATE void split_bf16_bf16(const mgl_linear_args *args, size_t begin, size_t end) {
  compute_packed(args, begin, end, (kinds){operand_bf16_split, operand_bf16_pairs});
}

SEPARATE void single_f32_bf16(const mgl_linear_args *args, size_t begin, size_t end) {
  choose_single(args, begin, end, (kinds){operand_f32, operand_bf16});
}

SEPARATE void linear_f32_bf16(const mgl_linear_args *args, size_t begin, size_t end) {
  linear_of(args, begin, end, (kinds){operand_f32, operand_bf16});
}

SEPARATE void packed_f32_bf16(const mgl_linear_args *args, size_t begin, size_t end) {
  compute_packed(args, begin, end, (kinds){operand_f32, operand_bf16});
}

SEPARATE void single_f32_f16(const mgl_linear_args *args, size_t begin, size_t end) {
  choose_single(args, begin, end, (kinds){operand_f32, operand_f16});
}

SEPARATE void linear_f32_f16(const mgl_linear_args *args, size_t begin, size_t end) {
  linear_of(args, begin, end, (kinds){operand_f32, operand_f16});
}

SEPARATE void packed_f32_f16(const mgl_linear_args *args, size_t begin, size_t end) {
  compute_packed(args, begin, end, (kinds){operand_f32, operand_f16});
}

SEPARATE void single_f32_f32(const mgl_linear_args *args, size_t begin, size_t end) {
  choose_single(args, begin, end, (kinds){operand_f32, operand_f32});
}

SEPARATE void linear_f32_f32(const mgl_linear_args *args, size_t begin, size_t end) {
  linear_of(args, begin, end, (kinds){operand_f32, operand_f32});
}

SEPARATE void packed_f32_f32(const mgl_linear_args *args, size_t begin, size_t end) {
  compute_packed(args, begin, end, (kinds){operand_f32, operand_f32});
}

#include "kernels/cpu/linear_short.inc.h"

static const mgl_linear_way usual_way;

static void linear(const mgl_linear_args *given, size_t begin, size_t end) {
  mgl_linear_args with_way = *given;
  const mgl_linear_args *args = &with_way;
  with_way.way = given->way != NULL ? given->way : &usual_way;
  bool packed = args->packed, one = !packed && args->token_count == 1;
  if (mgl_dtype_is_code(args->w_dtype)) {
    (mgl_code_is_integer(args->w_dtype) ? linear_whole : linear_codes)(args, begin, end);
    return;
  }
  if (args->x_dtype == MGL_DTYPE_BF16) {
    assert(args->w_dtype == MGL_DTYPE_BF16);
    if (args->w_short != NULL) {
      assert((one || packed) && !LEVEL_HAS_TILES);
      (!one                         ? linear_short_packed
       : args->way->short_ahead > 0 ? linear_short_fetched
                                    : linear_short)(args, begin, end);
      return;
    }
    (packed && args->split ? split_bf16_bf16
     : packed              ? packed_bf16_bf16
     : one                 ? single_bf16_bf16
                           : linear_bf16_bf16)(args, begin, end);
    return;
  }
  assert(args->x_dtype == MGL_DTYPE_F32 && !args->split);
  switch (args->w_dtype) {
    case MGL_DTYPE_BF16:
      (packed ? packed_f32_bf16 : one ? single_f32_bf16 : linear_f32_bf16)(args, begin, end);
      break;
    case MGL_DTYPE_F16:
      (packed ? packed_f32_f16 : one ? single_f32_f16 : linear_f32_f16)(args, begin, end);
      break;
    default:
      (packed ? packed_f32_f32 : one ? single_f32_f32 : linear_f32_f32)(args, begin, end);
      break;
  }
}

// Whether split operands give the bits of pairs: numbers of all sizes, subnormals among them, from
// a generator of fixed seed.
static bool splits(void) {
  enum { trials = 256 };
  if (LEVEL_HAS_TILES) {
    return false;  // they have one way to multiply
  }
  uint64_t state = 1;
  uint32_t bits[3][vec_lanes];
  for (int trial = 0; trial < trials; trial++) {
    for (size_t i = 0; i < 3 * vec_lanes; i++) {
      state = state * 6364136223846793005u + 1442695040888963407u;
      // Half of the trials near 1, where every bit of a sum counts.
      uint32_t random = (uint32_t)(state >> 32);
      bits[i / vec_lanes][i % vec_lanes] =
          trial % 2 == 0 ? random : (random & 0x83ff83ffu) | 0x3c003c00u;
    }
    vec sum = vec_load(bits[0]), x = vec_load(bits[1]), w = vec_load(bits[2]);
    vec pairs = vec_dot_pairs(sum, x, w), split = sum;
    uint32_t control = vec_subnormals_begin(&split, 1);
    split = vec_fma(vec_pairs_odd(x), vec_pairs_odd(w), split);
    split = vec_fma(vec_pairs_even(x), vec_pairs_even(w), split);
    vec_subnormals_end(control, &split, 1);
    float a[vec_lanes], b[vec_lanes];
    vec_store(a, pairs);
    vec_store(b, split);
    for (size_t i = 0; i < vec_lanes; i++) {
      bool both_nan = isnan(a[i]) && isnan(b[i]);
      if (!both_nan && memcmp(&a[i], &b[i], sizeof a[i]) != 0) {
        return false;
      }
    }
  }
  return true;
}

// Until the machine was measured. VDPBF16PS is as fast as the others' two products on all
// processors but Intel's, which have it at half the pace; measuring finds that (docs/log/185).
#define USUAL_WAY                                                                        \
  {                                                                                      \
    .one = {.fetch = MGL_FETCH_L1, .ahead = 8 << 10}, .few_ahead = 2, .pack_tokens = 20, \
    .split = !VEC_DOT_IS_ONE, .many_fetch = true, .codes_fetch = MGL_FETCH_L2,           \
  }
static const mgl_linear_way usual_way = USUAL_WAY;
