// Linear layers of a vector level: out[t][n] = x[t] . w[n], in register tiles of tokens x rows.
// This file has what few tokens need, linear_packed.inc.h what many need.
//
// Every dot product has one accumulator vector that takes K in ascending steps, the last step with
// a partial load; vec_sum4 then adds its lanes. Tiles only decide how many of these independent
// chains run at once, and chunks of K only park the accumulators in memory meanwhile, so that the
// bits of out[t][n] are the same in each of them. Which tiles, and what is fetched ahead of its
// use, mgl_linear_way says. Weights are used in place, row-major: a packed layout was measured and
// is not worth it (docs/log/014).
//
// Included by kernels_vector.inc.h.

// Functions of their own: all tiles in one function have too many loops for the compiler to
// allocate registers loop by loop (gcc: ira-max-loops-num), which cost the levels without VDPBF16PS
// a third.
#define SEPARATE static __attribute__((noinline))

enum {
  linear_tokens =
      LINEAR_TOKENS,  // tiles of linear_tokens x linear_rows accumulators fill registers
  linear_rows = 4,
  linear_chunk_bytes = 2048,  // of a row of weights
  linear_panel = 8,           // blocks
  line_bytes = 64,            // of a cache
  linear_state = 4 * 64,      // accumulators kept between chunks
};

// How the elements of an operand are held in a register.
typedef enum operand {
  operand_f32,
  operand_f16,
  operand_bf16,
  operand_bf16_pairs,
  operand_bf16_split,  // of packed x: a register of odd elements, one of even ones, as f32
} operand;

INLINE size_t operand_bytes(operand kind) {
  return kind == operand_f32 ? 4 : 2;
}

INLINE vec operand_load(const char *from, operand kind) {
  switch (kind) {
    case operand_f16: return vec_load_f16(from);
    case operand_bf16: return vec_load_bf16(from);
    case operand_bf16_pairs: return vec_load_pairs(from);
    default: return vec_load(from);
  }
}

INLINE vec operand_load_partial(const char *from, size_t count, operand kind) {
  switch (kind) {
    case operand_f16: return vec_load_f16_partial(from, count);
    case operand_bf16: return vec_load_bf16_partial(from, count);
    case operand_bf16_pairs: return vec_load_pairs_partial(from, count);
    default: return vec_load_partial(from, count);
  }
}

INLINE vec operand_dot(vec acc, vec x, vec w, operand kind) {
  return kind == operand_bf16_pairs ? vec_dot_pairs(acc, x, w) : vec_fma(x, w, acc);
}

typedef struct kinds {
  operand x, w;
} kinds;

// Elements of K in one step.
INLINE size_t step_of(kinds kind) {
  return kind.w == operand_bf16_pairs ? 2 * vec_lanes : vec_lanes;
}

// Adds bias and residual to the sums of rows n to n + 3 and stores those below n_end.
INLINE void store_sums(const mgl_linear_args *args, size_t t, size_t n, size_t n_end, vec4 sums) {
  float *out = args->out + t * args->out_stride;
  const float *residual = args->residual != NULL ? args->residual + t * args->out_stride : NULL;
  if (n + 4 <= n_end) {
    if (args->bias != NULL) {
      sums += vec4_load(args->bias + n);
    }
    if (residual != NULL) {
      sums += vec4_load(residual + n);
    }
    vec4_store(out + n, sums);
    return;
  }
  float values[4];
  vec4_store(values, sums);
  for (size_t r = n; r < n_end; r++) {
    float sum = args->bias != NULL ? values[r - n] + args->bias[r] : values[r - n];
    out[r] = residual != NULL ? residual[r] + sum : sum;
  }
}

// Up to 4 rows, one chunk of K: what a tile of tokens computes on, and what it prefetches.
typedef struct block {
  size_t n, n_end;    // rows from n_end on are computed as copies of the last and not stored
  size_t begin, end;  // elements of K
  vec *state;         // [T, 4]: accumulators between chunks; unused with a single chunk
  const char *ahead;  // prefetch `ahead_rows` rows from here on
  size_t ahead_rows;
} block;

// Where the rows of a tile begin.
typedef struct sources {
  const char *x, *w[linear_rows];
  size_t x_stride, w_stride;  // bytes of a row
} sources;

INLINE sources find_sources(const mgl_linear_args *args, size_t t, size_t n, size_t n_end,
                            kinds kind) {
  sources from = {
      .x_stride = args->k * operand_bytes(kind.x),
      .w_stride = args->k * operand_bytes(kind.w),
  };
  from.x = (const char *)args->x + t * from.x_stride;
  UNROLL for (size_t r = 0; r < linear_rows; r++) {
    from.w[r] = (const char *)args->w + (n + r < n_end ? n + r : n_end - 1) * from.w_stride;
  }
  return from;
}

// The step at element i of K, or what is left of it (`partial` elements), for all accumulators.
INLINE void tile_step(vec acc[][linear_rows], const sources *from, size_t i, size_t partial,
                      size_t tokens, kinds kind) {
  vec weights[linear_rows];
  UNROLL for (size_t r = 0; r < linear_rows; r++) {
    const char *w = from->w[r] + i * operand_bytes(kind.w);
    weights[r] = partial > 0 ? operand_load_partial(w, partial, kind.w) : operand_load(w, kind.w);
  }
  UNROLL for (size_t j = 0; j < tokens; j++) {
    const char *x = from->x + j * from->x_stride + i * operand_bytes(kind.x);
    vec value = partial > 0 ? operand_load_partial(x, partial, kind.x) : operand_load(x, kind.x);
    UNROLL for (size_t r = 0; r < linear_rows; r++) {
      acc[j][r] = operand_dot(acc[j][r], value, weights[r], kind.x);
    }
  }
}

// Tokens t to t + tokens of a block. `tokens` and `kind` are constants after inlining.
INLINE void compute_tile(const mgl_linear_args *args, const block *at, size_t t, size_t tokens,
                         kinds kind) {
  sources from = find_sources(args, t, at->n, at->n_end, kind);
  size_t step = step_of(kind), i = at->begin, end = at->end, ahead_rows = at->ahead_rows;
  vec acc[linear_tokens][linear_rows], *state = at->state + t * linear_rows;
  UNROLL for (size_t j = 0; j < tokens; j++) {
    UNROLL for (size_t r = 0; r < linear_rows; r++) {
      acc[j][r] = i == 0 ? vec_zero() : state[j * linear_rows + r];
    }
  }
  const char *ahead = at->ahead;
  for (; i + step <= end; i += step, ahead += step * operand_bytes(kind.w)) {
    for (size_t r = 0; r < ahead_rows; r++) {
      FETCH_L1(ahead + r * from.w_stride);
    }
    tile_step(acc, &from, i, 0, tokens, kind);
  }
  if (i < end) {
    tile_step(acc, &from, i, end - i, tokens, kind);
  }
  UNROLL for (size_t j = 0; j < tokens; j++) {
    if (end < args->k) {
      UNROLL for (size_t r = 0; r < linear_rows; r++) {
        state[j * linear_rows + r] = acc[j][r];
      }
    } else {
      store_sums(args, t + j, at->n, at->n_end,
                 vec_sum4(acc[j][0], acc[j][1], acc[j][2], acc[j][3]));
    }
  }
}

// A block for all tokens, in tiles of about the same size. Each tile prefetches its share of the
// block at at.ahead; this block is in the L1 cache because an earlier one did the same.
INLINE void compute_block(const mgl_linear_args *args, block at, bool fetches, kinds kind) {
  size_t count = args->token_count, tiles = (count + linear_tokens - 1) / linear_tokens;
  const char *ahead = at.ahead;
  for (size_t i = 0, t = 0, t_end; i < tiles; i++, t = t_end) {
    size_t first = i * linear_rows / tiles;
    t_end = (i + 1) * count / tiles;
    at.ahead = ahead + first * args->k * operand_bytes(kind.w);
    at.ahead_rows = fetches ? (i + 1) * linear_rows / tiles - first : 0;
    switch (t_end - t) {
#if LINEAR_TOKENS > 4
      case 6: compute_tile(args, &at, t, 6, kind); break;
      case 5: compute_tile(args, &at, t, 5, kind); break;
#endif
#if LINEAR_TOKENS > 2
      case 4: compute_tile(args, &at, t, 4, kind); break;
      case 3: compute_tile(args, &at, t, 3, kind); break;
#endif
      case 2: compute_tile(args, &at, t, 2, kind); break;
      default: compute_tile(args, &at, t, 1, kind); break;
    }
  }
}

// How the rows of a call are cut: panels of up to 8 blocks; in a panel, chunk after chunk of K for
// all its blocks. Then the chunk of x that a panel uses stays in the L1 cache.
typedef struct plan {
  size_t begin, end;  // rows
  size_t k, chunk;    // elements of K
  size_t chunks;
  size_t panel_blocks;
} plan;

static plan plan_linear(const mgl_linear_args *args, size_t begin, size_t end, kinds kind) {
  size_t k = args->k, step = step_of(kind);
  size_t chunks = (k * operand_bytes(kind.w) + linear_chunk_bytes / 2) / linear_chunk_bytes;
  size_t panel_blocks = linear_state / (linear_rows * (size_t)args->token_count);
  chunks = chunks < 1 ? 1 : chunks;
  if (panel_blocks < 1) {
    chunks = panel_blocks = 1;  // more tokens than the state has room for
  }
  size_t chunk = ((k + chunks - 1) / chunks + step - 1) / step * step;
  plan p = {
      .begin = begin,
      .end = end,
      .k = k,
      .chunk = chunk,
      .chunks = (k + chunk - 1) / chunk,
      .panel_blocks = panel_blocks < linear_panel ? panel_blocks : linear_panel,
  };
  return p;
}

// The i-th block in the order of computation; the caller adds state and prefetch.
static block plan_block(const plan *p, size_t i) {
  size_t panel_units = p->panel_blocks * p->chunks, panel = i / panel_units;
  size_t first = p->begin + panel * p->panel_blocks * linear_rows;
  size_t blocks = (p->end - first + linear_rows - 1) / linear_rows;
  blocks = blocks < p->panel_blocks ? blocks : p->panel_blocks;
  i -= panel * panel_units;
  size_t chunk = i / blocks, in_panel = i % blocks;
  block b = {
      .n = first + in_panel * linear_rows,
      .n_end = p->end,
      .begin = chunk * p->chunk,
      .end = chunk + 1 == p->chunks ? p->k : (chunk + 1) * p->chunk,
  };
  return b;
}

// The line `ahead` bytes behind `from`.
INLINE void fetch(const char *from, size_t ahead, mgl_fetch into) {
  if (into == MGL_FETCH_L1) {
    FETCH_L1(from + ahead);
  } else if (into == MGL_FETCH_L2) {
    FETCH_L2(from + ahead);
  }
}

// Steps [i, i + steps) of `rows` rows of weights, for one token.
INLINE void single_steps(vec *acc, const sources *from, size_t i, size_t steps, size_t rows,
                         kinds kind) {
  size_t step = step_of(kind);
  UNROLL for (size_t s = 0; s < steps; s++, i += step) {
    vec x = operand_load(from->x + i * operand_bytes(kind.x), kind.x);
    UNROLL for (size_t r = 0; r < rows; r++) {
      acc[r] = operand_dot(acc[r], x, operand_load(from->w[r] + i * operand_bytes(kind.w), kind.w),
                           kind.x);
    }
  }
}

// One token streams through the weights. Rows one after the other are one stream, which some
// processors' own prefetchers follow best; four side by side hide the latency of the sums, which
// counts where a row is longer than what a processor looks ahead. Either way, a turn of the loop
// takes four vectors of weights, and fetches as many bytes, of one ascending stream.
INLINE void compute_single(const mgl_linear_args *args, size_t begin, size_t end, kinds kind,
                           bool in_turn, mgl_fetch into) {
  size_t k = args->k, step = step_of(kind), width = operand_bytes(kind.w);
  size_t at_once = in_turn ? 1 : linear_rows, steps = linear_rows / at_once;
  size_t turn_bytes = linear_rows * step * width, block_bytes = at_once * k * width;
  size_t distance = mgl_linear_single(args->way, args->k)->ahead;
  distance = in_turn ? distance : (distance + block_bytes - 1) / block_bytes * block_bytes;
  for (size_t n = begin; n < end; n += linear_rows) {
    vec acc[linear_rows];
    UNROLL for (size_t first = 0; first < linear_rows; first += at_once) {
      sources from = find_sources(args, 0, n + first, end, kind);
      const char *ahead = from.w[0] + distance;
      size_t i = 0;
      UNROLL for (size_t r = first; r < first + at_once; r++) {
        acc[r] = vec_zero();
      }
      for (; i + steps * step <= k; i += steps * step, ahead += turn_bytes) {
        UNROLL for (size_t line = 0; line < turn_bytes; line += line_bytes) {
          fetch(ahead, line, into);
        }
        single_steps(acc + first, &from, i, steps, at_once, kind);
      }
      for (; i + step <= k; i += step) {
        single_steps(acc + first, &from, i, 1, at_once, kind);
      }
      if (i < k) {
        vec x = operand_load_partial(from.x + i * operand_bytes(kind.x), k - i, kind.x);
        UNROLL for (size_t r = 0; r < at_once; r++) {
          vec w = operand_load_partial(from.w[r] + i * width, k - i, kind.w);
          acc[first + r] = operand_dot(acc[first + r], x, w, kind.x);
        }
      }
    }
    store_sums(args, 0, n, end, vec_sum4(acc[0], acc[1], acc[2], acc[3]));
  }
}

INLINE void choose_single(const mgl_linear_args *args, size_t begin, size_t end, kinds kind) {
  const mgl_single_way *way = mgl_linear_single(args->way, args->k);
  switch (way->fetch + (way->in_turn ? MGL_FETCH_COUNT : 0)) {
    case MGL_FETCH_L1: compute_single(args, begin, end, kind, false, MGL_FETCH_L1); return;
    case MGL_FETCH_L2: compute_single(args, begin, end, kind, false, MGL_FETCH_L2); return;
    case MGL_FETCH_COUNT + MGL_FETCH_NONE:
      compute_single(args, begin, end, kind, true, MGL_FETCH_NONE);
      return;
    case MGL_FETCH_COUNT + MGL_FETCH_L1:
      compute_single(args, begin, end, kind, true, MGL_FETCH_L1);
      return;
    case MGL_FETCH_COUNT + MGL_FETCH_L2:
      compute_single(args, begin, end, kind, true, MGL_FETCH_L2);
      return;
    default: compute_single(args, begin, end, kind, false, MGL_FETCH_NONE);
  }
}
