// Linear layers whose weights are integer codes (base/form.h), with x packed as whole numbers
// (kernels/cpu/whole.h).
//
// Products of a block of x, or of a group where groups are shorter, are added up as 32-bit
// integers, 16 or 32 products an instruction and exact in any order; such a sum, times the scales
// of weights and x, goes to the accumulator's lanes in ascending order of K. 4-bit codes are taken
// as 0 to 15: what an I4's 8 and what offsets take away comes last, as dot products of the groups'
// sums of x with scales and offsets. So bits of a result are those of its row of x and its row of
// weights alone.
//
// One token decodes as it goes, row after row. Several share what is decoded, as in
// linear_codes.inc.h, which this file builds on.
//
// Included by kernels_vector.inc.h, behind linear_codes.inc.h.

enum {
  whole_step = 2 * vec_lanes,  // elements of K of one product
  // Bytes between a fetch and its use, of one token: twice what a thread reads while memory answers
  // (100 ns at 20 GB/s).
  whole_ahead = 4096,
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

// --- what is taken away --------------------------------------------------------------------------

// Whether results need sums of x by groups.
INLINE bool whole_takes_away(const mgl_linear_args *args, mgl_dtype code) {
  return code == MGL_DTYPE_I4 || args->w_offsets;
}

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

// Stores what four rows give for a token. sums: of its x by groups.
INLINE void finish_whole(const mgl_linear_args *args, const code_rows *rows, size_t t, size_t n,
                         size_t n_end, vec acc[linear_rows], const float *sums, mgl_dtype code) {
  const mgl_row_layout layout = mgl_row_layout_of(mgl_linear_form(args), args->k);
  UNROLL for (size_t r = 0; r < linear_rows; r++) {
    for (size_t i = 0; code == MGL_DTYPE_I4 && i < layout.groups; i += vec_lanes) {
      size_t count = layout.groups - i < vec_lanes ? layout.groups - i : vec_lanes;
      vec eights = vec_mul(vec_set(8), vec_load_partial(sums + i, count));
      acc[r] =
          vec_fnma(eights, vec_load_partial(rows->scales[r] + i * sizeof(float), count), acc[r]);
    }
    if (args->w_offsets) {
      acc[r] = subtract_offsets(acc[r], sums, rows->codes[r] + layout.offsets, layout.groups);
    }
  }
  store_sums(args, t, n, n_end, vec_sum4(acc[0], acc[1], acc[2], acc[3]));
}

// --- one token -----------------------------------------------------------------------------------

// The scales of weights of the lanes of a sum of products that begins at element i.
INLINE vec whole_scale(const char *scales, size_t i, const mgl_linear_args *args, grouping groups) {
  if (groups == grouping_16 && whole_step > 16 && i + 16 < args->k) {
    return vec_set_halves(load_scale(scales, i / 16), load_scale(scales, i / 16 + 1));
  }
  return vec_set(load_scale(scales, groups == grouping_16      ? i / 16
                                    : args->w_group == 32      ? i / 32
                                    : args->w_group >= args->k ? 0
                                                               : (uint32_t)i / args->w_group));
}

// Elements of K whose products are one sum.
INLINE size_t whole_span(grouping groups) {
  return groups == grouping_16   ? (whole_step > 16 ? (size_t)whole_step : 16)
         : groups == grouping_32 ? 32
                                 : (size_t)MGL_CODE_BLOCK;
}

// A row's block of K that begins at element i: the sum of its spans' sums times their scales, but
// for x's. codes: of the block. scale: of all of it where groups are blocks. whole: K does not end
// in it, a constant after inlining.
INLINE vec whole_block(const mgl_linear_args *args, const int16_t *x, const char *codes,
                       const char *scales, size_t i, vec scale, bool whole, mgl_dtype code,
                       grouping groups) {
  const size_t span = whole_span(groups);
  vec part = vec_zero();
  UNROLL for (size_t first = 0; first < MGL_CODE_BLOCK; first += span) {
    ints sum = ints_zero();
    UNROLL for (size_t e = first; e < first + span; e += whole_step) {
      sum = ints_add_products(sum, words_load(x + e), words_of_codes(codes, e, code));
    }
    if (span == MGL_CODE_BLOCK) {
      part = vec_mul(vec_of_ints(sum), scale);
    } else if (whole || i + first < args->k) {
      part = vec_fma(vec_of_ints(sum), whole_scale(scales, i + first, args, groups), part);
    }
  }
  return part;
}

// Where a row's memory is fetched that is read `whole_ahead` bytes later.
typedef struct row_fetch {
  const char *next, *end;
} row_fetch;

// Fetches a little more than a block has: scales and offsets stand behind a row's codes.
INLINE void fetch_block(row_fetch *f, mgl_dtype code) {
  UNROLL for (size_t i = 0; i <= codes_bytes_of(MGL_CODE_BLOCK, code) / 64; i++) {
    if (f->next < f->end) {
      FETCH_L1(f->next);
      f->next += 64;
    }
  }
}

// The sum of row r. Row after row is one stream through memory: four rows side by side read at
// 0.5 to 0.6 of its pace (docs/log/233).
INLINE vec whole_sum_of_row(const mgl_linear_args *args, const whole_row *x, const char *codes,
                            const mgl_row_layout *layout, mgl_dtype code, grouping groups) {
  const size_t k = args->k;
  const char *scales = codes + layout->scales;
  row_fetch f = {codes + whole_ahead, codes + whole_ahead + layout->bytes};
  vec acc = vec_zero();
  for (size_t i = 0; i < k; i += MGL_CODE_BLOCK) {
    fetch_block(&f, code);
    const char *at = codes + codes_bytes_of(i, code);
    const vec of_x = vec_set(x->scales[i / MGL_CODE_BLOCK]);
    vec scale = groups == grouping_blocks ? whole_scale(scales, i, args, groups) : of_x;
    vec part = i + MGL_CODE_BLOCK <= k
                   ? whole_block(args, x->values + i, at, scales, i, scale, true, code, groups)
                   : whole_block(args, x->values + i, at, scales, i, scale, false, code, groups);
    acc = vec_fma(part, of_x, acc);
  }
  return acc;
}

INLINE void whole_single(const mgl_linear_args *args, size_t begin, size_t end, mgl_dtype code,
                         grouping groups) {
  const mgl_row_layout layout = mgl_row_layout_of(mgl_linear_form(args), args->k);
  const whole_row x = find_whole_row(args, 0);
  float sums[codes_sums];
  if (whole_takes_away(args, code)) {
    sum_whole_groups(args, 0, layout.groups, sums);
  }
  for (size_t n = begin; n < end; n += linear_rows) {
    const code_rows rows = find_code_rows(args, n, end);
    vec acc[linear_rows];
    for (size_t r = 0; r < linear_rows; r++) {
      acc[r] = whole_sum_of_row(args, &x, rows.codes[r], &layout, code, groups);
    }
    finish_whole(args, &rows, 0, n, end, acc, sums, code);
  }
}

// --- several tokens ------------------------------------------------------------------------------

// Four rows of a chunk of K, decoded.
typedef struct decoded_words {
  int16_t rows[linear_rows][codes_chunk];
} decoded_words;

INLINE void decode_words(const code_rows *rows, size_t begin, size_t end, decoded_words *out,
                         mgl_dtype code) {
  for (size_t r = 0; r < linear_rows; r++) {
    int16_t *to = out->rows[r];
    for (size_t i = begin; i < end; i += MGL_CODE_BLOCK) {
      const char *from = rows->codes[r] + codes_bytes_of(i, code);
      UNROLL for (size_t e = 0; e < MGL_CODE_BLOCK; e += whole_step, to += whole_step) {
        words_store(to, words_of_codes(from, e, code));
      }
    }
  }
}

// Sums of products of a span of K that begins at element `first` of the chunk w, for all of a tile.
INLINE void whole_sums(const decoded_words *w, const whole_row *x, size_t tokens, size_t at,
                       size_t first, size_t span, ints sum[WHOLE_TOKENS][linear_rows]) {
  UNROLL for (size_t j = 0; j < tokens * linear_rows; j++) {
    sum[j / linear_rows][j % linear_rows] = ints_zero();
  }
  for (size_t i = 0; i < span; i += whole_step) {
    words values[WHOLE_TOKENS];
    UNROLL for (size_t j = 0; j < tokens; j++) {
      values[j] = words_load(x[j].values + at + i);
    }
    UNROLL for (size_t r = 0; r < linear_rows; r++) {
      words weights = words_load(w->rows[r] + first + i);
      UNROLL for (size_t j = 0; j < tokens; j++) {
        sum[j][r] = ints_add_products(sum[j][r], values[j], weights);
      }
    }
  }
}

// A chunk of K, [begin, end): `state` has the tile's accumulators, [tokens, 4]. `tokens` and
// `groups` are constants after inlining.
INLINE void whole_tile(const mgl_linear_args *args, const code_rows *rows, const decoded_words *w,
                       size_t t, size_t tokens, size_t begin, size_t end, vec *state,
                       grouping groups) {
  const size_t span = whole_span(groups);
  whole_row x[WHOLE_TOKENS];
  UNROLL for (size_t j = 0; j < tokens; j++) {
    x[j] = find_whole_row(args, t + j);
  }
  for (size_t i = begin; i < end; i += MGL_CODE_BLOCK) {
    const size_t i_end = i + MGL_CODE_BLOCK < end ? i + MGL_CODE_BLOCK : end;
    vec parts[WHOLE_TOKENS * linear_rows];
    UNROLL for (size_t j = 0; j < tokens * linear_rows; j++) {
      parts[j] = vec_zero();
    }
    for (size_t first = i; first < i_end; first += span) {
      ints sum[WHOLE_TOKENS][linear_rows];
      whole_sums(w, x, tokens, first, first - begin, span, sum);
      UNROLL for (size_t r = 0; r < linear_rows; r++) {
        const vec scale = whole_scale(rows->scales[r], first, args, groups);
        UNROLL for (size_t j = 0; j < tokens; j++) {
          vec *to = &parts[j * linear_rows + r];
          *to = vec_fma(vec_of_ints(sum[j][r]), scale, *to);
        }
      }
    }
    UNROLL for (size_t j = 0; j < tokens; j++) {
      const vec of_x = vec_set(x[j].scales[i / MGL_CODE_BLOCK]);
      UNROLL for (size_t r = 0; r < linear_rows; r++) {
        vec *to = &state[j * linear_rows + r];
        *to = vec_fma(parts[j * linear_rows + r], of_x, *to);
      }
    }
  }
}

INLINE void whole_tiles(const mgl_linear_args *args, const code_rows *rows, const decoded_words *w,
                        size_t first, size_t count, size_t begin, size_t end, vec *state,
                        grouping groups) {
  const size_t tiles = (count + WHOLE_TOKENS - 1) / WHOLE_TOKENS;
  for (size_t i = 0; i < tiles; i++) {
    size_t t = i * count / tiles, tokens = (i + 1) * count / tiles - t;
    vec *own = state + t * linear_rows;
    switch (tokens) {
#if WHOLE_TOKENS > 3
      case 6: whole_tile(args, rows, w, first + t, 6, begin, end, own, groups); break;
      case 5: whole_tile(args, rows, w, first + t, 5, begin, end, own, groups); break;
      case 4: whole_tile(args, rows, w, first + t, 4, begin, end, own, groups); break;
#endif
#if WHOLE_TOKENS > 2
      case 3: whole_tile(args, rows, w, first + t, 3, begin, end, own, groups); break;
#endif
      case 2: whole_tile(args, rows, w, first + t, 2, begin, end, own, groups); break;
      default: whole_tile(args, rows, w, first + t, 1, begin, end, own, groups); break;
    }
  }
}

typedef void decode_words_function(const code_rows *rows, size_t begin, size_t end,
                                   decoded_words *out);

INLINE void whole_pass(const mgl_linear_args *args, size_t begin, size_t end, size_t first,
                       size_t count, decode_words_function *decode, mgl_dtype code,
                       grouping groups) {
  const size_t k = args->k;
  const size_t row_groups = mgl_row_layout_of(mgl_linear_form(args), args->k).groups;
  float sums[codes_sums];
  vec state[codes_tokens * linear_rows];
  decoded_words w;
  for (size_t t = 0; whole_takes_away(args, code) && t < count; t++) {
    sum_whole_groups(args, first + t, row_groups, sums + t * row_groups);
  }
  for (size_t n = begin; n < end; n += linear_rows) {
    const code_rows rows = find_code_rows(args, n, end);
    for (size_t i = 0; i < count * linear_rows; i++) {
      state[i] = vec_zero();
    }
    for (size_t i = 0; i < k; i += codes_chunk) {
      // Whole spans behind K, too: x is zero there.
      size_t i_end = i + codes_chunk < k ? i + codes_chunk : k;
      decode(&rows, i, i_end, &w);
      whole_tiles(args, &rows, &w, first, count, i, i_end, state, groups);
    }
    for (size_t t = 0; t < count; t++) {
      finish_whole(args, &rows, first + t, n, end, state + t * linear_rows, sums + t * row_groups,
                   code);
    }
  }
}

INLINE void whole_several(const mgl_linear_args *args, size_t begin, size_t end,
                          decode_words_function *decode, grouping groups) {
  const size_t row_groups = mgl_row_layout_of(mgl_linear_form(args), args->k).groups;
  size_t most = whole_takes_away(args, args->w_dtype) ? codes_sums / row_groups : codes_tokens;
  most = most < codes_tokens ? most : codes_tokens;
  for (size_t t = 0; t < args->token_count; t += most) {
    size_t count = args->token_count - t < most ? args->token_count - t : most;
    whole_pass(args, begin, end, t, count, decode, args->w_dtype, groups);
  }
}

// --- one function for each kind ------------------------------------------------------------------

#define WHOLE_SINGLE(name, code, groups)                                      \
  SEPARATE void name(const mgl_linear_args *args, size_t begin, size_t end) { \
    whole_single(args, begin, end, MGL_DTYPE_##code, groups);                 \
  }
#define WHOLE_DECODE(name, code)                                                          \
  static void name(const code_rows *rows, size_t begin, size_t end, decoded_words *out) { \
    decode_words(rows, begin, end, out, MGL_DTYPE_##code);                                \
  }
#define WHOLE_SEVERAL(name, groups)                                         \
  SEPARATE void name(const mgl_linear_args *args, size_t begin, size_t end, \
                     decode_words_function *decode) {                       \
    whole_several(args, begin, end, decode, groups);                        \
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
WHOLE_DECODE(whole_decode_bytes, I8)
WHOLE_DECODE(whole_decode_nibbles, U4)
WHOLE_SEVERAL(whole_several_16, grouping_16)
WHOLE_SEVERAL(whole_several_32, grouping_32)
WHOLE_SEVERAL(whole_several_blocks, grouping_blocks)

static void linear_whole(const mgl_linear_args *args, size_t begin, size_t end) {
  static single_function *const singles[][3] = {{whole_i8_16, whole_i8_32, whole_i8_blocks},
                                                {whole_i4_16, whole_i4_32, whole_i4_blocks},
                                                {whole_u4_16, whole_u4_32, whole_u4_blocks}};
  assert(args->packed);
  const bool is_byte = !mgl_code_is_nibble(args->w_dtype);
  const size_t code = is_byte ? 0 : args->w_dtype == MGL_DTYPE_I4 ? 1 : 2;
  // A row that is one group is one of blocks, whose end it never reaches.
  const grouping groups = grouping_of(args);
  if (args->token_count == 1) {
    singles[code][groups == grouping_16 ? 0 : groups == grouping_32 ? 1 : 2](args, begin, end);
    return;
  }
  decode_words_function *decode = is_byte ? whole_decode_bytes : whole_decode_nibbles;
  (groups == grouping_16   ? whole_several_16
   : groups == grouping_32 ? whole_several_32
                           : whole_several_blocks)(args, begin, end, decode);
}
