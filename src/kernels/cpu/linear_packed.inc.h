// Linear layers for many tokens: x is packed, so that a register tile reads it as one stream, and
// weights are used in place.
//
// The same chains of additions as in linear_vector.inc.h, so the same bits; what differs is what
// stays where. A panel of rows of weights, 256 KiB, stays in the L2 cache while all tiles of tokens
// pass over it; a tile's chunk of x, 12 KiB, stays in the L1 cache while the rows of the panel pass
// over it. The next panel is fetched into L2 meanwhile, a little by each tile. Accumulators are
// parked between chunks of K. Rejected (docs/log/092, 095, 098): blocks of rows that stay in L1
// while x passes, prefetching weights into L1, packed weights, and lanes that are rows, which would
// save the sums over lanes, but change the order of summation.
//
// Packed x: tile after tile of about the same number of tokens, linear_tokens at most; in a tile,
// step after step of K; in a step, one vector of each token, filled up with zeros behind K.
//
// Included by kernels_vector.inc.h, behind linear_vector.inc.h.

enum {
  packed_panel_bytes = 256 * 1024,
  packed_least_rows = 16,
  packed_most_rows = 128,    // of a panel
  packed_chunked_rows = 64,  // of a panel with several chunks: its accumulators are 24 KiB
  packed_chunk_steps = 32,
  packed_state = packed_chunked_rows * linear_tokens,
};

typedef struct packed_tiles {
  size_t tokens, count;
} packed_tiles;

static packed_tiles tiles_of(size_t tokens) {
  return (packed_tiles){tokens, (tokens + linear_tokens - 1) / linear_tokens};
}

// First token of a tile; of the tile behind the last, the number of tokens.
static size_t tile_start(const packed_tiles *tiles, size_t tile) {
  return tile * tiles->tokens / tiles->count;
}

INLINE void pack_of(const mgl_pack_args *args, operand kind) {
  size_t step = step_of((kinds){kind, kind}), bytes = operand_bytes(kind), k = args->k;
  packed_tiles tiles = tiles_of(args->token_count);
  float *out = args->out;
  for (size_t tile = 0; tile < tiles.count; tile++) {
    size_t first = tile_start(&tiles, tile), end = tile_start(&tiles, tile + 1);
    for (size_t i = 0; i < k; i += step) {
      for (size_t t = first; t < end; t++, out += vec_lanes) {
        const char *x = (const char *)args->x + (t * k + i) * bytes;
        vec value = k - i < step ? operand_load_partial(x, k - i, kind) : operand_load(x, kind);
        vec_store(out, value);
      }
    }
  }
}

static void pack(const mgl_pack_args *args) {
  if (args->dtype == MGL_DTYPE_BF16) {
    pack_of(args, operand_bf16_pairs);
  } else {
    assert(args->dtype == MGL_DTYPE_F32);
    pack_of(args, operand_f32);
  }
}

// One step of K, or what is left of it (`partial` elements), for all accumulators; x: the step's
// vectors.
INLINE void packed_step(vec acc[][linear_rows], const float *x, const sources *from, size_t i,
                        size_t partial, size_t tokens, kinds kind) {
  vec weights[linear_rows];
  UNROLL for (size_t r = 0; r < linear_rows; r++) {
    const char *w = from->w[r] + i * operand_bytes(kind.w);
    weights[r] = partial > 0 ? operand_load_partial(w, partial, kind.w) : operand_load(w, kind.w);
  }
  UNROLL for (size_t j = 0; j < tokens; j++) {
    vec value = vec_load(x + j * vec_lanes);
    UNROLL for (size_t r = 0; r < linear_rows; r++) {
      acc[j][r] = operand_dot(acc[j][r], value, weights[r], kind.x);
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
  for (; i + step <= end; i += step, x += tokens * vec_lanes) {
    for (size_t r = 0; r < ahead_rows; r++) {
      _mm_prefetch(ahead + r * from.w_stride, _MM_HINT_T1);
    }
    ahead += step * operand_bytes(kind.w);
    packed_step(acc, x, &from, i, 0, tokens, kind);
  }
  if (i < end) {
    packed_step(acc, x, &from, i, end - i, tokens, kind);
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
  const float *x = (const float *)args->x + t * ((k + step - 1) / step) * vec_lanes;
  // This tile's part of the next panel: these of every four rows.
  size_t first = tile * linear_rows / tiles->count;
  size_t count = (tile + 1) * linear_rows / tiles->count - first;
  for (size_t begin = 0; begin < k; begin += chunk, x += chunk / step * tokens * vec_lanes) {
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
      if (row + count <= p->ahead_rows) {
        at.ahead += row * row_bytes + begin * operand_bytes(kind.w);
        at.ahead_rows = count;
      }
      switch (tokens) {
#if defined(__AVX512F__)
        case 6: packed_tile(args, &at, x, t, 6, kind); break;
        case 5: packed_tile(args, &at, x, t, 5, kind); break;
#endif
        case 4: packed_tile(args, &at, x, t, 4, kind); break;
        case 3: packed_tile(args, &at, x, t, 3, kind); break;
        case 2: packed_tile(args, &at, x, t, 2, kind); break;
        default: packed_tile(args, &at, x, t, 1, kind); break;
      }
    }
  }
}

INLINE void compute_packed(const mgl_linear_args *args, size_t begin, size_t end, kinds kind) {
  vec state[packed_state];
  size_t k = args->k, chunk = packed_chunk_steps * step_of(kind);
  size_t row_bytes = k * operand_bytes(kind.w);
  size_t most = k > chunk ? packed_chunked_rows : packed_most_rows;
  size_t rows = packed_panel_bytes / row_bytes / linear_rows * linear_rows;
  rows = rows < packed_least_rows ? packed_least_rows : rows > most ? most : rows;
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
  if (args->token_count == 1) {
    compute_single(args, begin, end, kind);
    return;
  }
  vec state[linear_state];
  plan p = plan_linear(args, begin, end, kind);
  size_t state_stride = (size_t)args->token_count * linear_rows;  // of a block
  size_t count = (end - begin + linear_rows - 1) / linear_rows * p.chunks;
  for (size_t i = 0; i < count; i++) {
    block at = plan_block(&p, i);
    block later = plan_block(&p, i + linear_ahead < count ? i + linear_ahead : i);
    at.state = state + (at.n - begin) / linear_rows % p.panel_blocks * state_stride;
    at.ahead = (const char *)args->w + (later.n * p.k + later.begin) * operand_bytes(kind.w);
    compute_block(args, at, kind);
  }
}

SEPARATE void linear_bf16_bf16(const mgl_linear_args *args, size_t begin, size_t end) {
  linear_of(args, begin, end, (kinds){operand_bf16_pairs, operand_bf16_pairs});
}

SEPARATE void packed_bf16_bf16(const mgl_linear_args *args, size_t begin, size_t end) {
  compute_packed(args, begin, end, (kinds){operand_bf16_pairs, operand_bf16_pairs});
}

SEPARATE void linear_f32_bf16(const mgl_linear_args *args, size_t begin, size_t end) {
  linear_of(args, begin, end, (kinds){operand_f32, operand_bf16});
}

SEPARATE void packed_f32_bf16(const mgl_linear_args *args, size_t begin, size_t end) {
  compute_packed(args, begin, end, (kinds){operand_f32, operand_bf16});
}

SEPARATE void linear_f32_f16(const mgl_linear_args *args, size_t begin, size_t end) {
  linear_of(args, begin, end, (kinds){operand_f32, operand_f16});
}

SEPARATE void packed_f32_f16(const mgl_linear_args *args, size_t begin, size_t end) {
  compute_packed(args, begin, end, (kinds){operand_f32, operand_f16});
}

SEPARATE void linear_f32_f32(const mgl_linear_args *args, size_t begin, size_t end) {
  linear_of(args, begin, end, (kinds){operand_f32, operand_f32});
}

SEPARATE void packed_f32_f32(const mgl_linear_args *args, size_t begin, size_t end) {
  compute_packed(args, begin, end, (kinds){operand_f32, operand_f32});
}

static void linear(const mgl_linear_args *args, size_t begin, size_t end) {
  bool packed = args->packed;
  if (mgl_dtype_is_code(args->w_dtype)) {
    linear_codes(args, begin, end);
    return;
  }
  if (args->x_dtype == MGL_DTYPE_BF16) {
    assert(args->w_dtype == MGL_DTYPE_BF16);
    (packed ? packed_bf16_bf16 : linear_bf16_bf16)(args, begin, end);
    return;
  }
  assert(args->x_dtype == MGL_DTYPE_F32);
  switch (args->w_dtype) {
    case MGL_DTYPE_BF16: (packed ? packed_f32_bf16 : linear_f32_bf16)(args, begin, end); break;
    case MGL_DTYPE_F16: (packed ? packed_f32_f16 : linear_f32_f16)(args, begin, end); break;
    default: (packed ? packed_f32_f32 : linear_f32_f32)(args, begin, end); break;
  }
}
