// Linear layers whose weights are codes with scales for groups (base/form.h): floats, here E4M3 and
// E2M1. Integers are linear_whole.inc.h's.
//
// A dot product sums value(code) * x over a group, in the order of linear_vector.inc.h, and adds
// that sum's lanes, times the group's scale, to the accumulator's lanes; what offsets take away
// comes last, as one dot product of the row's offsets and the groups' sums of x. So scales stand on
// f32 sums, codes are exact, and the bits of a result are those of its row of x and its row of
// weights alone.
//
// One token decodes as it goes. Several share what is decoded: four rows of a chunk of K go to a
// buffer in the L1 cache, and tiles of tokens read it from there. Rejected: a register tile that
// decodes for itself, which repeats the decoding for every tile of tokens.
//
// Included by kernels_vector.inc.h, behind linear_vector.inc.h.

enum {
  codes_ahead = 2,     // blocks of rows between a prefetch and its use
  codes_chunk = 2048,  // elements of K that are decoded at a time, if a group is not longer
  codes_most = 4096,   // MGL_FORM_MAX_GROUP
  codes_tokens = 64,   // of a pass over the weights
  codes_sums = 16384,  // sums of x of a pass, at most, unless a token alone has more groups
};

// How groups lie to the steps of K: this decides where sums are scaled.
typedef enum grouping {
  grouping_16,      // a step of 16 codes, or a half or two of them
  grouping_32,      // every 32 codes
  grouping_blocks,  // at the end of some blocks
  grouping_row,     // at the end of the row
  grouping_count,
} grouping;

INLINE grouping grouping_of(const mgl_linear_args *args) {
  return args->w_group >= args->k         ? grouping_row
         : args->w_group == 16            ? grouping_16
         : args->w_group % MGL_CODE_BLOCK ? grouping_32
                                          : grouping_blocks;
}

// Four rows of codes; rows from n_end on are copies of the last.
typedef struct code_rows {
  const char *codes[linear_rows];
  const char *scales[linear_rows];
} code_rows;

INLINE code_rows find_code_rows(const mgl_linear_args *args, size_t n, size_t n_end) {
  mgl_row_layout layout = mgl_row_layout_of(mgl_linear_form(args), args->k);
  code_rows rows;
  UNROLL for (size_t r = 0; r < linear_rows; r++) {
    rows.codes[r] = (const char *)args->w + (n + r < n_end ? n + r : n_end - 1) * layout.bytes;
    rows.scales[r] = rows.codes[r] + layout.scales;
  }
  return rows;
}

INLINE float load_scale(const char *scales, size_t group) {
  float scale;
  memcpy(&scale, scales + group * sizeof scale, sizeof scale);
  return scale;
}

INLINE vec codes_load(const char *from, size_t e, mgl_dtype code, operand x) {
  return x == operand_bf16_pairs ? vec_codes_pairs(from, e, code) : vec_codes(from, e, code);
}

// The scales of the lanes of a step that begins at element i, with groups of 16.
INLINE vec scales_of_16(const char *scales, size_t i, size_t k, size_t step) {
  size_t group = i / 16;
  if (step <= 16 || i + 16 >= k) {
    return vec_set(load_scale(scales, group));
  }
  return vec_set_halves(load_scale(scales, group), load_scale(scales, group + 1));
}

// The scales of the lanes of a step that begins at element i, which is a group's first or in it.
INLINE vec scale_at(const char *scales, size_t i, const mgl_linear_args *args, size_t step,
                    grouping groups) {
  if (groups == grouping_row) {
    return vec_set(load_scale(scales, 0));
  }
  if (groups == grouping_16) {
    return scales_of_16(scales, i, args->k, step);
  }
  return vec_set(load_scale(scales, args->w_group == 32 ? i / 32 : (uint32_t)i / args->w_group));
}

INLINE void add_scaled(vec *acc, vec *sum, vec scale) {
  *acc = vec_fma(*sum, scale, *acc);
  *sum = vec_zero();
}

// x from element i of K on, zeros behind K.
INLINE vec x_load(const char *x, size_t i, size_t k, bool whole, operand kind) {
  if (whole) {
    return operand_load(x + i * operand_bytes(kind), kind);
  }
  size_t step = step_of((kinds){kind, kind});
  size_t count = i >= k ? 0 : k - i < step ? k - i : step;
  return operand_load_partial(x + (i < k ? i : 0) * operand_bytes(kind), count, kind);
}

// --- offsets -------------------------------------------------------------------------------------

// Sums of a token's x over the groups.
INLINE void sum_groups(const mgl_linear_args *args, size_t t, float *out, operand x) {
  operand kind = x == operand_bf16_pairs ? operand_bf16 : operand_f32;
  size_t k = args->k, group = args->w_group < k ? args->w_group : k;
  const char *from = (const char *)args->x + t * k * operand_bytes(kind);
  for (size_t begin = 0; begin < k; begin += group) {
    size_t end = begin + group < k ? begin + group : k;
    vec sum = vec_zero();
    for (size_t i = begin; i < end; i += vec_lanes) {
      vec value = i + vec_lanes <= end ? operand_load(from + i * operand_bytes(kind), kind)
                                       : x_load(from, i, end, false, kind);
      sum = vec_add(sum, value);
    }
    *out++ = sum_lanes(sum);
  }
}

// The sums of a row's lanes, less what the row's offsets take away.
INLINE vec subtract_offsets(vec acc, const float *sums, const char *offsets, size_t groups) {
  for (size_t i = 0; i < groups; i += vec_lanes) {
    size_t count = groups - i < vec_lanes ? groups - i : vec_lanes;
    acc = vec_fnma(vec_load_partial(sums + i, count),
                   vec_load_partial(offsets + i * sizeof(float), count), acc);
  }
  return acc;
}

// sums: of the token's x; unused where the form has no offsets.
INLINE void finish_codes(const mgl_linear_args *args, const code_rows *rows, size_t t, size_t n,
                         size_t n_end, vec acc[linear_rows], const float *sums) {
  if (args->w_offsets) {
    mgl_row_layout layout = mgl_row_layout_of(mgl_linear_form(args), args->k);
    for (size_t r = 0; r < linear_rows; r++) {
      acc[r] = subtract_offsets(acc[r], sums, rows->codes[r] + layout.offsets, layout.groups);
    }
  }
  store_sums(args, t, n, n_end, vec_sum4(acc[0], acc[1], acc[2], acc[3]));
}

// --- one token -----------------------------------------------------------------------------------

INLINE size_t codes_bytes_of(size_t count, mgl_dtype code) {
  return mgl_code_is_nibble(code) ? count / 2 : count;
}

// Whether a sum is scaled behind the step that begins at element e of a block.
INLINE bool ends_group(size_t e, size_t step, grouping groups) {
  return (groups == grouping_16 && (e + step) % 16 == 0) ||
         (groups == grouping_32 && (e + step) % 32 == 0);
}

// A step of a block of four rows that begins at element `begin` of K.
INLINE void single_step(const mgl_linear_args *args, const code_rows *rows, size_t begin, size_t e,
                        bool whole, vec acc[linear_rows], vec sum[linear_rows], mgl_dtype code,
                        operand x, grouping groups) {
  size_t step = step_of((kinds){x, x}), at = codes_bytes_of(begin, code);
  vec value = x_load(args->x, begin + e, args->k, whole, x);
  UNROLL for (size_t r = 0; r < linear_rows; r++) {
    sum[r] = operand_dot(sum[r], value, codes_load(rows->codes[r] + at, e, code, x), x);
  }
  // Of the group, not of the step: K may end in a group's first step.
  size_t first = begin + (groups == grouping_32 ? e / 32 * 32 : e / 16 * 16);
  if (ends_group(e, step, groups) && (whole || first < args->k)) {
    UNROLL for (size_t r = 0; r < linear_rows; r++) {
      add_scaled(&acc[r], &sum[r], scale_at(rows->scales[r], first, args, step, groups));
    }
  }
}

// Fetches a block of the rows that come `ahead` bytes behind these: decoding takes so many
// instructions a byte that the processor's own prefetchers fall behind.
INLINE void prefetch_block(const code_rows *rows, size_t i, size_t ahead, mgl_dtype code,
                           grouping groups) {
  size_t at = ahead + codes_bytes_of(i, code);
  for (size_t byte = 0; byte < codes_bytes_of(MGL_CODE_BLOCK, code); byte += 64) {
    UNROLL for (size_t r = 0; r < linear_rows; r++) {
      FETCH_L1(rows->codes[r] + at + byte);
    }
  }
  if (groups != grouping_blocks) {  // else the scales are few, and fetched with the next row
    UNROLL for (size_t r = 0; r < linear_rows; r++) {
      FETCH_L1(rows->scales[r] + ahead + i / (groups == grouping_16 ? 4 : 8));
    }
  }
}

INLINE void codes_single(const mgl_linear_args *args, size_t begin, size_t end, mgl_dtype code,
                         operand x, grouping groups) {
  size_t step = step_of((kinds){x, x}), k = args->k;
  float sums[codes_sums];
  if (args->w_offsets) {
    sum_groups(args, 0, sums, x);
  }
  size_t ahead =
      codes_ahead * linear_rows * mgl_row_layout_of(mgl_linear_form(args), args->k).bytes;
  for (size_t n = begin; n < end; n += linear_rows) {
    code_rows rows = find_code_rows(args, n, end);
    vec acc[linear_rows], sum[linear_rows];
    UNROLL for (size_t r = 0; r < linear_rows; r++) {
      acc[r] = sum[r] = vec_zero();
    }
    size_t i = 0, group_end = args->w_group;
    for (; i < k; i += MGL_CODE_BLOCK) {
      prefetch_block(&rows, i, ahead, code, groups);
      if (i + MGL_CODE_BLOCK <= k) {
        UNROLL for (size_t e = 0; e < MGL_CODE_BLOCK; e += step) {
          single_step(args, &rows, i, e, true, acc, sum, code, x, groups);
        }
      } else {
        for (size_t e = 0; e < MGL_CODE_BLOCK; e += step) {
          single_step(args, &rows, i, e, false, acc, sum, code, x, groups);
        }
      }
      bool ends = i + MGL_CODE_BLOCK >= k;
      if (groups == grouping_blocks && (ends || i + MGL_CODE_BLOCK == group_end)) {
        UNROLL for (size_t r = 0; r < linear_rows; r++) {
          add_scaled(&acc[r], &sum[r], scale_at(rows.scales[r], i, args, step, groups));
        }
        group_end += args->w_group;
      }
    }
    finish_codes(args, &rows, 0, n, end, acc, sums);
  }
}

// --- several tokens ------------------------------------------------------------------------------

// Four rows of a chunk of K, decoded.
typedef struct decoded {
  vec rows[linear_rows][codes_most / vec_lanes];
} decoded;

INLINE void decode_rows(const code_rows *rows, size_t begin, size_t end, decoded *out,
                        mgl_dtype code, operand x) {
  size_t step = step_of((kinds){x, x});
  for (size_t r = 0; r < linear_rows; r++) {
    vec *to = out->rows[r];
    for (size_t i = begin; i < end; i += MGL_CODE_BLOCK) {
      const char *from = rows->codes[r] + codes_bytes_of(i, code);
      UNROLL for (size_t e = 0; e < MGL_CODE_BLOCK; e += step) {
        *to++ = codes_load(from, e, code, x);
      }
    }
  }
}

// A chunk of K, [begin, end): `state` has the tile's accumulators, [tokens, 4]. `tokens`, `x` and
// `groups` are constants after inlining.
INLINE void codes_tile(const mgl_linear_args *args, const code_rows *rows, const decoded *w,
                       size_t t, size_t tokens, size_t begin, size_t end, vec *state, operand x,
                       grouping groups) {
  size_t step = step_of((kinds){x, x}), k = args->k, x_stride = k * operand_bytes(x);
  const char *from = (const char *)args->x + t * x_stride;
  size_t span = groups == grouping_16       ? (step > 16 ? step : 16)
                : groups == grouping_32     ? 32
                : groups == grouping_blocks ? args->w_group
                                            : end - begin;
  for (size_t first = begin; first < end; first += span) {
    size_t last = first + span < end ? first + span : end;
    vec sum[linear_tokens][linear_rows];
    UNROLL for (size_t j = 0; j < tokens; j++) {
      UNROLL for (size_t r = 0; r < linear_rows; r++) {
        sum[j][r] = groups == grouping_row && first != 0 ? state[j * linear_rows + r] : vec_zero();
      }
    }
    for (size_t i = first; i < last; i += step) {
      vec weights[linear_rows];
      UNROLL for (size_t r = 0; r < linear_rows; r++) {
        weights[r] = w->rows[r][(i - begin) / step];
      }
      UNROLL for (size_t j = 0; j < tokens; j++) {
        vec value = x_load(from + j * x_stride, i, k, i + step <= k, x);
        UNROLL for (size_t r = 0; r < linear_rows; r++) {
          sum[j][r] = operand_dot(sum[j][r], value, weights[r], x);
        }
      }
    }
    UNROLL for (size_t r = 0; r < linear_rows; r++) {
      bool scales = groups != grouping_row || end == k;
      vec scale = scale_at(rows->scales[r], first, args, step, groups);
      UNROLL for (size_t j = 0; j < tokens; j++) {
        vec before = groups == grouping_row || first == 0 ? vec_zero() : state[j * linear_rows + r];
        state[j * linear_rows + r] = scales ? vec_fma(sum[j][r], scale, before) : sum[j][r];
      }
    }
  }
}

// All tokens of a pass for four rows.
INLINE void codes_tiles(const mgl_linear_args *args, const code_rows *rows, const decoded *w,
                        size_t first, size_t count, size_t begin, size_t end, vec *state, operand x,
                        grouping groups) {
  size_t tiles = (count + linear_tokens - 1) / linear_tokens;
  for (size_t i = 0; i < tiles; i++) {
    size_t t = i * count / tiles, tokens = (i + 1) * count / tiles - t;
    vec *own = state + t * linear_rows;
    switch (tokens) {
#if LINEAR_TOKENS > 4
      case 6: codes_tile(args, rows, w, first + t, 6, begin, end, own, x, groups); break;
      case 5: codes_tile(args, rows, w, first + t, 5, begin, end, own, x, groups); break;
#endif
#if LINEAR_TOKENS > 2
      case 4: codes_tile(args, rows, w, first + t, 4, begin, end, own, x, groups); break;
      case 3: codes_tile(args, rows, w, first + t, 3, begin, end, own, x, groups); break;
#endif
      case 2: codes_tile(args, rows, w, first + t, 2, begin, end, own, x, groups); break;
      default: codes_tile(args, rows, w, first + t, 1, begin, end, own, x, groups); break;
    }
  }
}

typedef void decode_function(const code_rows *rows, size_t begin, size_t end, decoded *out);

INLINE void codes_pass(const mgl_linear_args *args, size_t begin, size_t end, size_t first,
                       size_t count, decode_function *decode, operand x, grouping groups) {
  size_t k = args->k, row_groups = mgl_row_layout_of(mgl_linear_form(args), args->k).groups;
  size_t chunk = groups != grouping_blocks     ? (size_t)codes_chunk
                 : args->w_group > codes_chunk ? args->w_group
                                               : codes_chunk / args->w_group * args->w_group;
  float sums[codes_sums];
  vec state[codes_tokens * linear_rows];
  decoded w;
  for (size_t t = 0; args->w_offsets && t < count; t++) {
    sum_groups(args, first + t, sums + t * row_groups, x);
  }
  for (size_t n = begin; n < end; n += linear_rows) {
    code_rows rows = find_code_rows(args, n, end);
    for (size_t i = 0; i < k; i += chunk) {
      size_t i_end = i + chunk < k ? i + chunk : k;
      decode(&rows, i, i_end, &w);
      codes_tiles(args, &rows, &w, first, count, i, i_end, state, x, groups);
    }
    for (size_t t = 0; t < count; t++) {
      finish_codes(args, &rows, first + t, n, end, state + t * linear_rows, sums + t * row_groups);
    }
  }
}

INLINE void codes_several(const mgl_linear_args *args, size_t begin, size_t end,
                          decode_function *decode, operand x, grouping groups) {
  size_t most = codes_tokens;
  if (args->w_offsets) {
    size_t row_groups = mgl_row_layout_of(mgl_linear_form(args), args->k).groups;
    most = codes_sums / row_groups < most ? codes_sums / row_groups : most;
  }
  for (size_t t = 0; t < args->token_count; t += most) {
    size_t count = args->token_count - t < most ? args->token_count - t : most;
    codes_pass(args, begin, end, t, count, decode, x, groups);
  }
}

// --- one function for each kind ------------------------------------------------------------------

#define CODES_SINGLE(name, code, x, groups)                                   \
  SEPARATE void name(const mgl_linear_args *args, size_t begin, size_t end) { \
    codes_single(args, begin, end, code, x, groups);                          \
  }
#define CODES_SINGLES(name, code, groups)                                         \
  CODES_SINGLE(single_pairs_##name, MGL_DTYPE_##code, operand_bf16_pairs, groups) \
  CODES_SINGLE(single_f32_##name, MGL_DTYPE_##code, operand_f32, groups)
#define CODES_DECODE(name, code, x)                                                 \
  static void name(const code_rows *rows, size_t begin, size_t end, decoded *out) { \
    decode_rows(rows, begin, end, out, MGL_DTYPE_##code, x);                        \
  }
#define CODES_SEVERAL(name, x, groups)                                      \
  SEPARATE void name(const mgl_linear_args *args, size_t begin, size_t end, \
                     decode_function *decode) {                             \
    codes_several(args, begin, end, decode, x, groups);                     \
  }

CODES_DECODE(decode_pairs_e4m3, E4M3, operand_bf16_pairs)
CODES_DECODE(decode_f32_e4m3, E4M3, operand_f32)
CODES_DECODE(decode_pairs_e2m1, E2M1, operand_bf16_pairs)
CODES_DECODE(decode_f32_e2m1, E2M1, operand_f32)

// What models have; other pairs of a code and a grouping take the way of several tokens, with the
// same bits.
CODES_SINGLES(e4m3_blocks, E4M3, grouping_blocks)
CODES_SINGLES(e2m1_32, E2M1, grouping_32)
CODES_SINGLES(e2m1_16, E2M1, grouping_16)

CODES_SEVERAL(several_pairs_16, operand_bf16_pairs, grouping_16)
CODES_SEVERAL(several_pairs_32, operand_bf16_pairs, grouping_32)
CODES_SEVERAL(several_pairs_blocks, operand_bf16_pairs, grouping_blocks)
CODES_SEVERAL(several_pairs_row, operand_bf16_pairs, grouping_row)
CODES_SEVERAL(several_f32_16, operand_f32, grouping_16)
CODES_SEVERAL(several_f32_32, operand_f32, grouping_32)
CODES_SEVERAL(several_f32_blocks, operand_f32, grouping_blocks)
CODES_SEVERAL(several_f32_row, operand_f32, grouping_row)

typedef void single_function(const mgl_linear_args *args, size_t begin, size_t end);
typedef void several_function(const mgl_linear_args *args, size_t begin, size_t end,
                              decode_function *decode);

static single_function *find_single(const mgl_linear_args *args, grouping groups, bool pairs) {
#define SINGLE(code, name, groups) \
  [MGL_DTYPE_##code][groups] = { single_f32_##name, single_pairs_##name }
  static single_function *const singles[MGL_DTYPE_COUNT][grouping_count][2] = {
      SINGLE(E4M3, e4m3_blocks, grouping_blocks),
      SINGLE(E2M1, e2m1_32, grouping_32),
      SINGLE(E2M1, e2m1_16, grouping_16),
  };
#undef SINGLE
  // A row that is one group ends as a group of blocks does.
  return singles[args->w_dtype][groups == grouping_row ? grouping_blocks : groups][pairs];
}

static void linear_codes(const mgl_linear_args *args, size_t begin, size_t end) {
  static decode_function *const decodes[2][2] = {{decode_f32_e4m3, decode_pairs_e4m3},
                                                 {decode_f32_e2m1, decode_pairs_e2m1}};
  static several_function *const several[grouping_count][2] = {
      [grouping_16] = {several_f32_16, several_pairs_16},
      [grouping_32] = {several_f32_32, several_pairs_32},
      [grouping_blocks] = {several_f32_blocks, several_pairs_blocks},
      [grouping_row] = {several_f32_row, several_pairs_row},
  };
  assert(!args->packed);
  bool pairs = args->x_dtype == MGL_DTYPE_BF16;
  grouping groups = grouping_of(args);
  single_function *single = args->token_count == 1 ? find_single(args, groups, pairs) : NULL;
  if (single != NULL) {
    single(args, begin, end);
  } else {
    several[groups][pairs](args, begin, end, decodes[mgl_code_is_nibble(args->w_dtype)][pairs]);
  }
}
