// Linear layers whose weights are integer codes (base/form.h), with x packed as whole numbers
// (kernels/cpu/whole.h).
//
// Products of a group, or of a block of x where groups are longer, are added up as 32-bit integers,
// exact in any order. Such a sum times the scale of its weights is added to those of its block of
// x, and these times x's scale to the result, in ascending order of K; what offsets take away comes
// last, group by group. So bits of a result are those of its row of x and its row of weights alone,
// the same on every level of vectors.
//
// Lanes are rows of weights: a group is scaled once for a vector of rows, and nothing is summed
// over lanes. For this, codes of as many rows as there are lanes are turned, so that a vector has
// two elements of K of each row, and are multiplied with two elements of x. One token decodes and
// turns as it goes; several share a panel of turned words. Rejected: lanes that are elements of K,
// which took three instructions a product where this takes one (docs/log/278).
//
// Included by kernels_vector.inc.h, behind linear_codes.inc.h.

enum {
  whole_at_once = 2,   // vectors of rows of a register tile
  whole_chunk = 2048,  // elements of K of a panel, a multiple of blocks
  whole_pass = 256,    // tokens that share one
  whole_sums = 32768,  // sums of x of a pass, at most, unless a token alone has more groups
  whole_turned = 4 * vec_lanes,  // bytes of a row that are turned at once
  whole_pairs = MGL_CODE_BLOCK / 2,
  whole_most_groups = whole_chunk / MGL_WHOLE_UNIT + 1,  // of a chunk
};

// A packed row of x.
typedef struct whole_row {
  const int16_t *values;
  const float *scales, *sums;
} whole_row;

INLINE whole_row find_whole_row(const mgl_linear_args *args, size_t t) {
  const mgl_whole_layout layout = mgl_whole_layout_of(args->k);
  const char *row = (const char *)args->x + t * layout.bytes;
  return (whole_row){.values = (const void *)row,
                     .scales = (const void *)(row + layout.scales),
                     .sums = (const void *)(row + layout.sums)};
}

// --- packing -------------------------------------------------------------------------------------

INLINE void pack_whole_block(const char *x, size_t count, operand kind, int16_t *values,
                             float *scale, float *sums) {
  vec held[MGL_CODE_BLOCK / vec_lanes];
  vec most = vec_zero(), odd = vec_zero();
  UNROLL for (size_t i = 0; i < MGL_CODE_BLOCK / vec_lanes; i++) {
    size_t from = i * vec_lanes;
    held[i] = from + vec_lanes <= count ? operand_load(x + from * operand_bytes(kind), kind)
              : from < count
                  ? operand_load_partial(x + from * operand_bytes(kind), count - from, kind)
                  : vec_zero();
    most = vec_max(most, vec_max(held[i], vec_sub(vec_zero(), held[i])));
    odd = vec_add(odd, vec_sub(held[i], held[i]));  // NaN where an element is not finite
  }
  float lanes[vec_lanes], largest = 0;
  vec_store(lanes, most);
  for (size_t i = 0; i < vec_lanes; i++) {
    largest = lanes[i] > largest ? lanes[i] : largest;
  }
  const bool finite = !isnan(sum_lanes(odd));
  const uint32_t exponent = mgl_whole_exponent(finite ? largest : 0);
  const vec inverse = vec_set(mgl_whole_inverse(exponent));
  UNROLL for (size_t i = 0; i < MGL_CODE_BLOCK / vec_lanes; i++) {
    vec_store_words(values + i * vec_lanes, vec_mul(held[i], inverse));
  }
  *scale = finite ? mgl_whole_scale(exponent) : NAN;
  mgl_whole_sum(values, *scale, sums);
}

INLINE void pack_whole_of(const mgl_pack_args *args, operand kind) {
  const mgl_whole_layout layout = mgl_whole_layout_of(args->k);
  const size_t k = args->k, bytes = operand_bytes(kind);
  for (size_t t = 0; t < args->token_count; t++) {
    const char *x = (const char *)args->x + t * k * bytes;
    char *row = (char *)args->out + t * layout.bytes;
    float *scales = (void *)(row + layout.scales), *sums = (void *)(row + layout.sums);
    for (size_t b = 0; b < layout.blocks; b++) {
      const size_t first = b * MGL_CODE_BLOCK;
      pack_whole_block(x + first * bytes, k - first, kind, (int16_t *)(void *)row + first,
                       scales + b, sums + b * (MGL_CODE_BLOCK / MGL_WHOLE_UNIT));
    }
  }
}

static void pack_whole(const mgl_pack_args *args) {
  if (args->dtype == MGL_DTYPE_F32) {
    pack_whole_of(args, operand_f32);
  } else {
    pack_whole_of(args, operand_bf16);
  }
}

// --- rows of weights -----------------------------------------------------------------------------

// As many rows as a vector has lanes; rows from n_end on are copies of the last.
typedef struct whole_rows {
  const char *at[vec_lanes];
} whole_rows;

INLINE whole_rows find_whole_rows(const mgl_linear_args *args, const mgl_row_layout *layout,
                                  size_t n, size_t n_end) {
  whole_rows rows;
  for (size_t r = 0; r < vec_lanes; r++) {
    rows.at[r] = (const char *)args->w + (n + r < n_end ? n + r : n_end - 1) * layout->bytes;
  }
  return rows;
}

// Vector i of `to`, of `stride` vectors each: element first + i of the rows' scales or offsets,
// which begin `part` bytes behind a row's beginning.
INLINE void turn_floats(const whole_rows *rows, size_t part, size_t first, size_t count, vec *to,
                        size_t stride) {
  for (size_t i = 0; i < count; i += vec_lanes) {
    const size_t some = count - i < vec_lanes ? count - i : vec_lanes;
    ints turned[vec_lanes];
    UNROLL for (size_t r = 0; r < vec_lanes; r++) {
      const char *from = rows->at[r] + part + (first + i) * sizeof(float);
      turned[r] = ints_of_bits(some == vec_lanes ? vec_load(from) : vec_load_partial(from, some));
      if (r % 4 == 3) {
        ints_turn_four(turned + r - 3);
      }
    }
    ints_turn_fours(turned);
    for (size_t c = 0; c < some; c++) {
      to[(i + c) * stride] = bits_of_ints(turned[c]);
    }
  }
}

// The group of element i, counted from that of element `first`.
INLINE size_t whole_group(const mgl_linear_args *args, size_t i, size_t first, grouping groups) {
  return groups == grouping_16      ? i / 16 - first / 16
         : args->w_group == 32      ? i / 32 - first / 32
         : args->w_group >= args->k ? 0
                                    : (uint32_t)i / args->w_group - (uint32_t)first / args->w_group;
}

// Turns the scales of elements [begin, end), the first group's first.
INLINE void turn_scales(const mgl_linear_args *args, const mgl_row_layout *layout,
                        const whole_rows *rows, size_t begin, size_t end, vec *to, size_t stride) {
  const size_t group = args->w_group < args->k ? args->w_group : args->k;
  const size_t first = begin / group;
  turn_floats(rows, layout->scales, first, (end - 1) / group + 1 - first, to, stride);
}

// Pairs of K whose products are one sum.
INLINE size_t whole_span(grouping groups) {
  return groups == grouping_16 ? 8 : groups == grouping_32 ? 16 : (size_t)whole_pairs;
}

// Of one load of a block: vectors of words of each turned vector, and the pair of K of the q-th of
// turned vector i of load h.
INLINE size_t whole_pieces(mgl_dtype code) {
  return mgl_code_is_nibble(code) ? 4 : 2;
}

INLINE size_t whole_loads(mgl_dtype code) {
  return codes_bytes_of(MGL_CODE_BLOCK, code) / whole_turned;
}

INLINE size_t whole_pair(size_t h, size_t i, size_t q, mgl_dtype code) {
  return mgl_code_is_nibble(code) ? 16 * q + h * vec_lanes + i : 2 * (h * vec_lanes + i) + q;
}

INLINE void turn_codes(const whole_rows *rows, size_t at, ints turned[vec_lanes]) {
  UNROLL for (size_t r = 0; r < vec_lanes; r++) {
    turned[r] = ints_load(rows->at[r] + at);
    if (r % 4 == 3) {
      ints_turn_four(turned + r - 3);
    }
  }
  ints_turn_fours(turned);
}

// Fetches, a part at each block of K, the rows that come behind those at hand: rows side by side
// are streams that memory serves at half its pace.
typedef struct row_fetch {
  const char *next;
  size_t lines;  // a block
  mgl_fetch into;
} row_fetch;

INLINE row_fetch fetch_rows_behind(const char *rows, size_t count, const mgl_row_layout *layout,
                                   size_t k, mgl_fetch into) {
  const size_t blocks = (k + MGL_CODE_BLOCK - 1) / MGL_CODE_BLOCK, bytes = count * layout->bytes;
  return (row_fetch){
      .next = rows + bytes, .lines = (bytes / 64 + blocks - 1) / blocks, .into = into};
}

INLINE void fetch_some(row_fetch *f) {
  for (size_t i = 0; i < f->lines; i++, f->next += 64) {
    fetch(f->next, 0, f->into);
  }
}

// --- what is taken away --------------------------------------------------------------------------

INLINE void sum_whole_groups(const mgl_linear_args *args, size_t t, size_t groups, float *out) {
  const whole_row x = find_whole_row(args, t);
  const size_t units = (args->k + MGL_WHOLE_UNIT - 1) / MGL_WHOLE_UNIT;
  const size_t of_group = groups == 1 ? units : args->w_group / MGL_WHOLE_UNIT;
  for (size_t g = 0; g < groups; g++) {
    float sum = 0;
    for (size_t i = g * of_group; i < (g + 1) * of_group && i < units; i++) {
      sum += x.sums[i];
    }
    out[g] = sum;
  }
}

// What some groups' offsets take from the sums of some tokens: chains side by side.
INLINE void take_some(const float *sums, size_t groups, const vec *offsets, size_t count,
                      vec *state, size_t stride, size_t tokens) {
  vec acc[4];
  UNROLL for (size_t j = 0; j < tokens; j++) {
    acc[j] = state[j * stride];
  }
  for (size_t i = 0; i < count; i++) {
    UNROLL for (size_t j = 0; j < tokens; j++) {
      acc[j] = vec_fnma(vec_set(sums[j * groups + i]), offsets[i], acc[j]);
    }
  }
  UNROLL for (size_t j = 0; j < tokens; j++) {
    state[j * stride] = acc[j];
  }
}

// Takes from the sums of `tokens` tokens, [tokens, stride], what offsets do. sums: of their x by
// groups, [tokens, groups].
INLINE void take_offsets(const mgl_row_layout *layout, const whole_rows *rows, size_t tokens,
                         const float *sums, vec *state, size_t stride) {
  enum { some = 64 };
  vec offsets[some];
  for (size_t g = 0; g < layout->groups; g += some) {
    const size_t count = layout->groups - g < some ? layout->groups - g : some;
    turn_floats(rows, layout->offsets, g, count, offsets, 1);
    size_t t = 0;
    for (; t + 4 <= tokens; t += 4) {
      take_some(sums + t * layout->groups + g, layout->groups, offsets, count, state + t * stride,
                stride, 4);
    }
    for (; t < tokens; t++) {
      take_some(sums + t * layout->groups + g, layout->groups, offsets, count, state + t * stride,
                stride, 1);
    }
  }
}

// Adds bias and residual to the sums of a vector of rows and stores those below n_end.
INLINE void store_whole(const mgl_linear_args *args, size_t t, size_t n, size_t n_end, vec sums) {
  const size_t count = n_end - n < vec_lanes ? n_end - n : vec_lanes;
  const size_t at = t * args->out_stride + n;
  if (args->bias != NULL) {
    sums = vec_add(sums, vec_load_partial(args->bias + n, count));
  }
  if (args->residual != NULL) {
    sums = vec_add(vec_load_partial(args->residual + at, count), sums);
  }
  vec_store_partial(args->out + at, count, sums);
}

// --- one token -----------------------------------------------------------------------------------

// A sum of a span times its scales, added to those of the block.
INLINE vec add_span(vec part, ints sum, const mgl_linear_args *args, const vec *scales,
                    size_t first, size_t i, grouping groups) {
  return vec_fma(vec_of_ints(sum), scales[whole_group(args, i, first, groups)], part);
}

// Codes of 8 bits are summed over lanes: widened where they stand, which is fewer instructions than
// to turn them. A vector of them has two groups of 16 on some levels.
INLINE vec whole_block_of_bytes(const mgl_linear_args *args, const whole_rows *rows,
                                const int16_t *x, const vec *scales, size_t first, size_t i,
                                size_t left, grouping groups) {
  const size_t step = 2 * vec_lanes, span = 2 * whole_span(groups);
  vec part = vec_zero();
  UNROLL for (size_t e = 0; e < MGL_CODE_BLOCK; e += span < step ? step : span) {
    ints fours[vec_lanes / 4];
    UNROLL for (size_t f = 0; f < vec_lanes / 4; f++) {
      ints sum[4];
      UNROLL for (size_t r = 0; r < 4; r++) {
        const char *codes = rows->at[4 * f + r] + i + e;
        sum[r] = ints_zero();
        UNROLL for (size_t s = 0; s < (span < step ? step : span); s += step) {
          sum[r] = ints_add_products(sum[r], words_load(x + e + s), words_of_bytes(codes + s));
        }
      }
      fours[f] = ints_sum_four(sum[0], sum[1], sum[2], sum[3]);
    }
    if (e < left && span < step) {
      ints halves[2];
      ints_sum_fours_halves(fours, halves);
      part = add_span(part, halves[0], args, scales, first, i + e, groups);
      if (e + span < left) {
        part = add_span(part, halves[1], args, scales, first, i + e + span, groups);
      }
    } else if (e < left) {
      part = add_span(part, ints_sum_fours(fours), args, scales, first, i + e, groups);
    }
  }
  return part;
}

// Codes of 4 bits are turned, as for several tokens: a vector of them is four of words. eights:
// what an I4's 8 gives in each span of the block, less than nothing; NULL for U4.
INLINE vec whole_block_of_nibbles(const mgl_linear_args *args, const whole_rows *rows,
                                  const int16_t *x, const int32_t *eights, const vec *scales,
                                  size_t first, size_t i, size_t left, mgl_dtype code,
                                  grouping groups) {
  const size_t span = whole_span(groups), spans = whole_pairs / span;
  const size_t each = spans == 1 ? 8 : 1;  // chains of a span's sum, which do not wait for others
  ints sum[whole_pairs / 8][8];
  UNROLL for (size_t c = 0; c < spans * each; c++) {
    sum[c / each][c % each] = ints_zero();
  }
  UNROLL for (size_t h = 0; h < whole_loads(code); h++) {
    ints turned[vec_lanes];
    turn_codes(rows, codes_bytes_of(i, code) + h * whole_turned, turned);
    UNROLL for (size_t j = 0; j < vec_lanes; j++) {
      UNROLL for (size_t q = 0; q < whole_pieces(code); q++) {
        const size_t pair = whole_pair(h, j, q, code);
        // Those of odd q, which are 16 times too large, apart.
        const size_t chain = spans > 1 ? 0 : j % (each / 2) * 2 + q % 2;
        ints *to = &sum[pair / span][chain];
        *to = ints_add_products(*to, words_set_pair(x + 2 * pair), words_of_nibbles(turned[j], q));
      }
    }
  }
  vec part = vec_zero();
  UNROLL for (size_t s = 0; s < spans; s++) {
    const size_t q = s * span / 16;
    if (s * span * 2 < left) {
      ints all = code == MGL_DTYPE_I4 ? ints_set(eights[s]) : ints_zero();
      UNROLL for (size_t c = 0; c < each; c++) {
        const bool is_large = spans > 1 ? q % 2 == 1 : c % 2 == 1;
        all = ints_add(all, is_large ? ints_sixteenth(sum[s][c]) : sum[s][c]);
      }
      part = add_span(part, all, args, scales, first, i + s * span * 2, groups);
    }
  }
  return part;
}

// A block of K of a vector of rows: the sum of its spans' sums times their scales, but for x's.
// left: elements of K from the block on.
INLINE vec whole_block(const mgl_linear_args *args, const whole_rows *rows, const int16_t *x,
                       const int32_t *eights, const vec *scales, size_t first, size_t i,
                       size_t left, mgl_dtype code, grouping groups) {
  return mgl_code_is_nibble(code)
             ? whole_block_of_nibbles(args, rows, x, eights, scales, first, i, left, code, groups)
             : whole_block_of_bytes(args, rows, x, scales, first, i, left, groups);
}

// -8 times the sums of x by spans of so many elements.
INLINE void sum_eights(const int16_t *x, size_t k, size_t span, int32_t *out) {
  for (size_t i = 0; i < (k + MGL_CODE_BLOCK - 1) / MGL_CODE_BLOCK * MGL_CODE_BLOCK; i += span) {
    int32_t sum = 0;
    for (size_t e = 0; e < span; e++) {
      sum += x[i + e];
    }
    *out++ = -8 * sum;
  }
}

INLINE void whole_single(const mgl_linear_args *args, size_t begin, size_t end, mgl_dtype code,
                         grouping groups) {
  const size_t k = args->k;
  const mgl_row_layout layout = mgl_row_layout_of(mgl_linear_form(args), args->k);
  const whole_row x = find_whole_row(args, 0);
  float sums[codes_sums];
  int32_t eights[codes_sums];
  vec scales[whole_most_groups];
  if (code == MGL_DTYPE_I4) {
    sum_eights(x.values, k, 2 * whole_span(groups), eights);
  }
  if (args->w_offsets) {
    sum_whole_groups(args, 0, layout.groups, sums);
  }
  for (size_t n = begin; n < end; n += vec_lanes) {
    const whole_rows rows = find_whole_rows(args, &layout, n, end);
    row_fetch f = fetch_rows_behind(rows.at[0], vec_lanes, &layout, k, args->way->codes_fetch);
    vec acc = vec_zero();
    for (size_t i = 0; i < k; i += MGL_CODE_BLOCK) {
      const size_t first = i / whole_chunk * whole_chunk;
      if (i == first) {
        turn_scales(args, &layout, &rows, i, k - i < whole_chunk ? k : i + whole_chunk, scales, 1);
      }
      fetch_some(&f);
      const vec part = whole_block(args, &rows, x.values + i, eights + i / (2 * whole_span(groups)),
                                   scales, first, i, k - i, code, groups);
      acc = vec_fma(part, vec_set(x.scales[i / MGL_CODE_BLOCK]), acc);
    }
    if (args->w_offsets) {
      take_offsets(&layout, &rows, 1, sums, &acc, 1);
    }
    store_whole(args, 0, n, end, acc);
  }
}

// --- several tokens ------------------------------------------------------------------------------

// A chunk of K of the rows of a register tile, turned: pair after pair of K, of each a vector of
// words for each vector of rows; scales group after group likewise.
typedef struct whole_panel {
  int16_t words[whole_chunk / 2 * whole_at_once * 2 * vec_lanes];
  vec scales[whole_most_groups * whole_at_once];
} whole_panel;

INLINE void turn_panel(const whole_rows *rows, size_t begin, size_t end, size_t r,
                       whole_panel *panel, row_fetch *f, mgl_dtype code) {
  const size_t width = 2 * vec_lanes;
  for (size_t i = begin; i < end; i += MGL_CODE_BLOCK) {
    int16_t *to = panel->words + ((i - begin) / 2 * whole_at_once + r) * width;
    fetch_some(f);
    for (size_t h = 0; h < whole_loads(code); h++) {
      ints turned[vec_lanes];
      turn_codes(rows, codes_bytes_of(i, code) + h * whole_turned, turned);
      UNROLL for (size_t j = 0; j < vec_lanes; j++) {
        UNROLL for (size_t q = 0; q < whole_pieces(code); q++) {
          const words w = words_of_turned(turned[j], q, code);
          words_store(to + whole_pair(h, j, q, code) * whole_at_once * width,
                      code == MGL_DTYPE_I4 ? words_less(w, 8) : w);
        }
      }
    }
  }
}

// A chunk of K, [begin, end), for `tokens` tokens: `state` has the tile's accumulators, [tokens,
// whole_at_once]. `tokens` and `groups` are constants after inlining.
INLINE void whole_tile(const mgl_linear_args *args, const whole_panel *panel, size_t t,
                       size_t tokens, size_t begin, size_t end, vec *state, grouping groups) {
  const size_t span = whole_span(groups), stride = mgl_whole_layout_of(args->k).bytes;
  const whole_row row = find_whole_row(args, t);
  const char *x = (const void *)(row.values + begin);
  const char *of_x = (const void *)(row.scales + begin / MGL_CODE_BLOCK);
  const int16_t *w = panel->words;
  for (size_t i = begin; i < end; i += MGL_CODE_BLOCK, of_x += sizeof(float)) {
    vec part[WHOLE_TOKENS][whole_at_once];
    UNROLL for (size_t j = 0; j < tokens * whole_at_once; j++) {
      part[j / whole_at_once][j % whole_at_once] = vec_zero();
    }
    for (size_t s = i; s < i + MGL_CODE_BLOCK && s < end; s += 2 * span) {
      ints sum[WHOLE_TOKENS][whole_at_once];
      UNROLL for (size_t j = 0; j < tokens * whole_at_once; j++) {
        sum[j / whole_at_once][j % whole_at_once] = ints_zero();
      }
      for (size_t pair = 0; pair < span; pair++) {
        words weights[whole_at_once];
        UNROLL for (size_t r = 0; r < whole_at_once; r++, w += 2 * vec_lanes) {
          weights[r] = words_load(w);
        }
        UNROLL for (size_t j = 0; j < tokens; j++) {
          const words values = words_set_pair((const void *)(x + j * stride));
          UNROLL for (size_t r = 0; r < whole_at_once; r++) {
            sum[j][r] = ints_add_products(sum[j][r], values, weights[r]);
          }
        }
        x += 2 * sizeof(int16_t);
      }
      const vec *scales = panel->scales + whole_group(args, s, begin, groups) * whole_at_once;
      UNROLL for (size_t j = 0; j < tokens; j++) {
        UNROLL for (size_t r = 0; r < whole_at_once; r++) {
          part[j][r] = vec_fma(vec_of_ints(sum[j][r]), scales[r], part[j][r]);
        }
      }
    }
    UNROLL for (size_t j = 0; j < tokens; j++) {
      const vec scale = vec_set(load_scale(of_x + j * stride, 0));
      UNROLL for (size_t r = 0; r < whole_at_once; r++) {
        vec *to = &state[j * whole_at_once + r];
        *to = vec_fma(part[j][r], scale, *to);
      }
    }
  }
}

INLINE void whole_tiles(const mgl_linear_args *args, const whole_panel *panel, size_t first,
                        size_t count, size_t begin, size_t end, vec *state, grouping groups) {
  const size_t tiles = (count + WHOLE_TOKENS - 1) / WHOLE_TOKENS;
  for (size_t i = 0; i < tiles; i++) {
    size_t t = i * count / tiles, tokens = (i + 1) * count / tiles - t;
    vec *own = state + t * whole_at_once;
    switch (tokens) {
#if WHOLE_TOKENS > 3
      case 6: whole_tile(args, panel, first + t, 6, begin, end, own, groups); break;
      case 5: whole_tile(args, panel, first + t, 5, begin, end, own, groups); break;
      case 4: whole_tile(args, panel, first + t, 4, begin, end, own, groups); break;
#endif
#if WHOLE_TOKENS > 2
      case 3: whole_tile(args, panel, first + t, 3, begin, end, own, groups); break;
#endif
      case 2: whole_tile(args, panel, first + t, 2, begin, end, own, groups); break;
      default: whole_tile(args, panel, first + t, 1, begin, end, own, groups); break;
    }
  }
}

typedef void turn_panel_function(const whole_rows *rows, size_t begin, size_t end, size_t r,
                                 whole_panel *panel, row_fetch *f);

// The rows of a register tile for `count` tokens. sums: of their x by groups.
INLINE void whole_several_rows(const mgl_linear_args *args, const mgl_row_layout *layout, size_t n,
                               size_t n_end, size_t first, size_t count, const float *sums,
                               turn_panel_function *turn, grouping groups) {
  const size_t k = args->k;
  whole_panel panel;
  whole_rows rows[whole_at_once];
  vec state[whole_pass * whole_at_once];
  for (size_t r = 0; r < whole_at_once; r++) {
    rows[r] = find_whole_rows(args, layout, n + r * vec_lanes, n_end);
  }
  for (size_t i = 0; i < count * whole_at_once; i++) {
    state[i] = vec_zero();
  }
  row_fetch f = fetch_rows_behind(rows[0].at[0], whole_at_once * vec_lanes, layout,
                                  whole_at_once * k, MGL_FETCH_L2);
  for (size_t i = 0; i < k; i += whole_chunk) {
    const size_t i_end = i + whole_chunk < k ? i + whole_chunk : k;
    for (size_t r = 0; r < whole_at_once; r++) {
      turn(&rows[r], i, i_end, r, &panel, &f);
      turn_scales(args, layout, &rows[r], i, i_end, panel.scales + r, whole_at_once);
    }
    whole_tiles(args, &panel, first, count, i, i_end, state, groups);
  }
  for (size_t r = 0; r < whole_at_once && n + r * vec_lanes < n_end; r++) {
    if (args->w_offsets) {
      take_offsets(layout, &rows[r], count, sums, state + r, whole_at_once);
    }
    for (size_t t = 0; t < count; t++) {
      store_whole(args, first + t, n + r * vec_lanes, n_end, state[t * whole_at_once + r]);
    }
  }
}

INLINE void whole_several(const mgl_linear_args *args, size_t begin, size_t end,
                          turn_panel_function *turn, grouping groups) {
  const mgl_row_layout layout = mgl_row_layout_of(mgl_linear_form(args), args->k);
  size_t most = args->w_offsets ? whole_sums / layout.groups : whole_pass;
  most = most < whole_pass ? most : whole_pass;
  float sums[whole_sums];
  for (size_t first = 0; first < args->token_count; first += most) {
    const size_t count = args->token_count - first < most ? args->token_count - first : most;
    for (size_t t = 0; args->w_offsets && t < count; t++) {
      sum_whole_groups(args, first + t, layout.groups, sums + t * layout.groups);
    }
    for (size_t n = begin; n < end; n += (size_t)whole_at_once * vec_lanes) {
      whole_several_rows(args, &layout, n, end, first, count, sums, turn, groups);
    }
  }
}

// --- one function for each kind ------------------------------------------------------------------

#define WHOLE_SINGLE(name, code, groups)                                      \
  SEPARATE void name(const mgl_linear_args *args, size_t begin, size_t end) { \
    whole_single(args, begin, end, MGL_DTYPE_##code, groups);                 \
  }
#define WHOLE_TURN(name, code)                                                                     \
  static void name(const whole_rows *rows, size_t begin, size_t end, size_t r, whole_panel *panel, \
                   row_fetch *f) {                                                                 \
    turn_panel(rows, begin, end, r, panel, f, MGL_DTYPE_##code);                                   \
  }
#define WHOLE_SEVERAL(name, groups)                                         \
  SEPARATE void name(const mgl_linear_args *args, size_t begin, size_t end, \
                     turn_panel_function *turn) {                           \
    whole_several(args, begin, end, turn, groups);                          \
  }

WHOLE_SINGLE(whole_i8_blocks, I8, grouping_blocks)
WHOLE_SINGLE(whole_i8_32, I8, grouping_32)
WHOLE_SINGLE(whole_i8_16, I8, grouping_16)
WHOLE_SINGLE(whole_i4_blocks, I4, grouping_blocks)
WHOLE_SINGLE(whole_i4_32, I4, grouping_32)
WHOLE_SINGLE(whole_i4_16, I4, grouping_16)
WHOLE_SINGLE(whole_u4_blocks, U4, grouping_blocks)
WHOLE_SINGLE(whole_u4_32, U4, grouping_32)
WHOLE_SINGLE(whole_u4_16, U4, grouping_16)
WHOLE_TURN(whole_turn_i8, I8)
WHOLE_TURN(whole_turn_i4, I4)
WHOLE_TURN(whole_turn_u4, U4)
WHOLE_SEVERAL(whole_several_16, grouping_16)
WHOLE_SEVERAL(whole_several_32, grouping_32)
WHOLE_SEVERAL(whole_several_blocks, grouping_blocks)

static void linear_whole(const mgl_linear_args *args, size_t begin, size_t end) {
  static single_function *const singles[][3] = {{whole_i8_16, whole_i8_32, whole_i8_blocks},
                                                {whole_i4_16, whole_i4_32, whole_i4_blocks},
                                                {whole_u4_16, whole_u4_32, whole_u4_blocks}};
  static turn_panel_function *const turns[] = {whole_turn_i8, whole_turn_i4, whole_turn_u4};
  assert(args->packed);
  const size_t code = args->w_dtype == MGL_DTYPE_I8 ? 0 : args->w_dtype == MGL_DTYPE_I4 ? 1 : 2;
  // A row that is one group is one of blocks, whose end it never reaches.
  const grouping groups = grouping_of(args);
  if (args->token_count == 1) {
    singles[code][groups == grouping_16 ? 0 : groups == grouping_32 ? 1 : 2](args, begin, end);
    return;
  }
  (groups == grouping_16   ? whole_several_16
   : groups == grouping_32 ? whole_several_32
                           : whole_several_blocks)(args, begin, end, turns[code]);
}
