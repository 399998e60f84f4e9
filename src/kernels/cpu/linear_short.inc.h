// Linear layers of few tokens whose weights are short rows (kernels/cpu/short_rows.h): the bits of
// linear_vector.inc.h, for these decode to the weights that it reads, and are summed in its order.
//
// One token: a group's 16 rows go side by side, as many of them at once as accumulators fit into
// registers; a level with fewer registers keeps the others in memory between blocks. Blocks with
// patches, of which there are few, go through a buffer. As many lines as a row has may be fetched
// ahead of it in the group's stream: decoding takes more instructions a line than some cores look
// ahead, and then their prefetchers fall behind (docs/log/316).
//
// More tokens, which are packed: a tile is all of them and two or four rows, which are decoded
// between the products of those before. A chunk of 1024 elements of x, 16 KiB of 8 tokens, stays in
// the L1 cache while the rows of the group pass over it, and the next chunk is fetched into L2, a
// little by each step: rows of a tile lie apart, and leave prefetchers no stream to follow.
// Rejected (docs/log/312): rows decoded into L1 for several tiles of tokens, more than 8 tokens.
//
// Included by linear_packed.inc.h, in front of `linear`, and behind single_bf16_bf16 and
// packed_bf16_bf16, which take plain groups.

// Fetches a row's lines, before what follows is loaded: lines are to be asked for as they ascend.
INLINE void short_fetch(const char *from) {
  UNROLL for (size_t i = 0; i < MGL_SHORT_BLOCK_BYTES; i += line_bytes) {
    FETCH_L1(from + i);
  }
  __asm__ volatile("" : : : "memory");
}

// A block of SHORT_AT_ONCE rows that has no patches. Rows one after the other, where all that is
// read of x stays in registers; else steps. ahead: what is fetched, from the row on; 0: nothing.
INLINE void short_rows_block(vec *acc, const char *from, const uint16_t *bases, const char *x,
                             size_t ahead) {
  enum { step = 2 * vec_lanes, steps = MGL_SHORT_BLOCK / step };
  if (SHORT_AT_ONCE > linear_rows) {
    vec values[steps];
    UNROLL for (size_t s = 0; s < steps; s++) {
      values[s] = vec_load_pairs(x + s * step * sizeof(mgl_bf16));
    }
    UNROLL for (size_t r = 0; r < SHORT_AT_ONCE; r++, from += MGL_SHORT_BLOCK_BYTES) {
      const short_base base = vec_short_base(bases[r]);
      if (ahead != 0) {
        short_fetch(from + ahead);
      }
      UNROLL for (size_t s = 0; s < steps; s++) {
        acc[r] = vec_dot_pairs(acc[r], values[s], vec_short_pairs(from, s * step, base));
      }
    }
    return;
  }
  UNROLL for (size_t r = 0; r < SHORT_AT_ONCE && ahead != 0; r++) {
    short_fetch(from + r * MGL_SHORT_BLOCK_BYTES + ahead);
  }
  UNROLL for (size_t s = 0; s < steps; s++) {
    vec value = vec_load_pairs(x + s * step * sizeof(mgl_bf16));
    UNROLL for (size_t r = 0; r < SHORT_AT_ONCE; r++) {
      const short_base base = vec_short_base(bases[r]);
      vec w = vec_short_pairs(from + r * MGL_SHORT_BLOCK_BYTES, s * step, base);
      acc[r] = vec_dot_pairs(acc[r], value, w);
    }
  }
}

// Any block of all rows, of which K has `count` elements. Returns the patches that are left.
SEPARATE const uint32_t *short_any_block(vec acc[MGL_SHORT_ROWS], const char *from,
                                         const uint16_t *bases, const uint32_t *patches,
                                         const char *x, size_t count) {
  enum { step = 2 * vec_lanes, steps = MGL_SHORT_BLOCK / step };
  for (size_t r = 0; r < MGL_SHORT_ROWS; r++, from += MGL_SHORT_BLOCK_BYTES) {
    const short_base base = vec_short_base((uint16_t)(bases[r] & ~MGL_SHORT_COUNT));
    vec w[steps];
    UNROLL for (size_t s = 0; s < steps; s++) {
      w[s] = vec_short_pairs(from, s * step, base);
    }
    const size_t patched = bases[r] & MGL_SHORT_COUNT;
    if (patched > 0) {
      mgl_bf16 row[MGL_SHORT_BLOCK];
      memcpy(row, w, sizeof row);
      for (size_t i = 0; i < patched; i++, patches++) {
        row[*patches >> 16] = (mgl_bf16)*patches;
      }
      memcpy(w, row, sizeof row);
    }
    vec sum = acc[r];
    if (count == MGL_SHORT_BLOCK) {
      UNROLL for (size_t s = 0; s < steps; s++) {
        sum = vec_dot_pairs(sum, vec_load_pairs(x + s * step * sizeof(mgl_bf16)), w[s]);
      }
    } else {
      for (size_t s = 0; s * step < count; s++) {
        const char *at = x + s * step * sizeof(mgl_bf16);
        const size_t rest = count - s * step;
        vec value = rest < step ? vec_load_pairs_partial(at, rest) : vec_load_pairs(at);
        sum = vec_dot_pairs(sum, value, w[s]);
      }
    }
    acc[r] = sum;
  }
  return patches;
}

INLINE bool short_has_patches(const uint16_t *bases) {
  uint64_t all[MGL_SHORT_ROWS * sizeof *bases / sizeof(uint64_t)];
  uint64_t any = 0;
  memcpy(all, bases, sizeof all);
  UNROLL for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
    any |= all[i];
  }
  return (any & UINT64_C(0x0001000100010001) * MGL_SHORT_COUNT) != 0;
}

INLINE void short_group(vec acc[MGL_SHORT_ROWS], const char *group, const mgl_short_layout *layout,
                        const char *x, size_t k, size_t ahead) {
  const uint16_t *bases = (const uint16_t *)(const void *)group;
  const uint32_t *patches = mgl_short_patches(group, layout);
  const char *from = group + layout->elements;
  UNROLL for (size_t r = 0; r < MGL_SHORT_ROWS; r++) {
    acc[r] = vec_zero();
  }
  for (size_t i = 0; i < k; i += MGL_SHORT_BLOCK) {
    if (__builtin_expect(short_has_patches(bases) || k - i < MGL_SHORT_BLOCK, 0)) {
      vec state[MGL_SHORT_ROWS];  // so that the accumulators have no address
      UNROLL for (size_t r = 0; r < MGL_SHORT_ROWS; r++) {
        state[r] = acc[r];
      }
      patches = short_any_block(state, from, bases, patches, x,
                                k - i < MGL_SHORT_BLOCK ? k - i : MGL_SHORT_BLOCK);
      UNROLL for (size_t r = 0; r < MGL_SHORT_ROWS; r++) {
        acc[r] = state[r];
      }
    } else {
      UNROLL for (size_t r = 0; r < MGL_SHORT_ROWS; r += SHORT_AT_ONCE) {
        short_rows_block(acc + r, from + r * MGL_SHORT_BLOCK_BYTES, bases + r, x, ahead);
      }
    }
    from += (size_t)MGL_SHORT_ROWS * MGL_SHORT_BLOCK_BYTES;
    bases += MGL_SHORT_ROWS;
    x += MGL_SHORT_BLOCK * sizeof(mgl_bf16);
  }
}

// Features n to n + 3 of the matrix, of which [begin, end) are asked for.
INLINE void short_store(const mgl_linear_args *args, size_t n, size_t begin, size_t end,
                        vec4 sums) {
  const size_t first = args->short_first;
  if (n >= begin && n < end) {
    store_sums(args, 0, n - first, end - first, sums);
  } else if (n < begin) {
    float values[4];
    vec4_store(values, sums);
    for (size_t r = begin; r < n + 4 && r < end; r++) {
      store_sums(args, 0, r - first, r - first + 1, (vec4){values[r - n]});
    }
  }
}

// ahead: a constant after inlining where it is 0.
INLINE void short_single(const mgl_linear_args *args, size_t begin, size_t end, size_t ahead) {
  const mgl_short_layout layout = mgl_short_layout_of(args->k);
  begin += args->short_first;
  end += args->short_first;
  for (size_t n = begin / MGL_SHORT_ROWS * MGL_SHORT_ROWS; n < end; n += MGL_SHORT_ROWS) {
    const char *group = (const char *)args->w_short + n / MGL_SHORT_ROWS * layout.bytes;
    const size_t first = n < begin ? begin : n;
    const size_t last = n + MGL_SHORT_ROWS < end ? n + MGL_SHORT_ROWS : end;
    if (mgl_short_base(group, 0, 0) == MGL_SHORT_PLAIN) {
      single_bf16_bf16(args, first - args->short_first, last - args->short_first);
      continue;
    }
    vec acc[MGL_SHORT_ROWS];
    short_group(acc, group, &layout, args->x, args->k, ahead);
    UNROLL for (size_t r = 0; r < MGL_SHORT_ROWS; r += 4) {
      short_store(args, n + r, first, last, vec_sum4(acc[r], acc[r + 1], acc[r + 2], acc[r + 3]));
    }
  }
}

SEPARATE void linear_short(const mgl_linear_args *args, size_t begin, size_t end) {
  short_single(args, begin, end, 0);
}

SEPARATE void linear_short_fetched(const mgl_linear_args *args, size_t begin, size_t end) {
  short_single(args, begin, end, args->way->short_ahead);
}

// --- more tokens ---------------------------------------------------------------------------------

enum { short_chunk_blocks = 8 };

// Consecutive blocks of a group's rows.
typedef struct short_blocks {
  const uint16_t *bases;  // of the first block
  const char *from;       // its first row
  size_t count;
  const uint32_t *patches[short_chunk_blocks];  // the first ones of each block
} short_blocks;

// Where the patches of the blocks begin. Returns those of the block behind them.
INLINE const uint32_t *short_find_patches(short_blocks *blocks, const uint32_t *patches) {
  for (size_t b = 0; b < blocks->count; b++) {
    const uint16_t *bases = blocks->bases + b * MGL_SHORT_ROWS;
    blocks->patches[b] = patches;
    for (size_t r = 0; r < MGL_SHORT_ROWS && short_has_patches(bases); r++) {
      patches += bases[r] & MGL_SHORT_COUNT;
    }
  }
  return patches;
}

// Patches of a tile's rows of block b, of which each is MGL_SHORT_BLOCK elements of `out`.
static void short_patch(const short_blocks *blocks, size_t b, size_t row, mgl_bf16 *out) {
  const uint16_t *bases = blocks->bases + b * MGL_SHORT_ROWS;
  const uint32_t *patches = blocks->patches[b];
  for (size_t r = 0; r < row; r++) {
    patches += bases[r] & MGL_SHORT_COUNT;
  }
  for (size_t r = row; r < row + linear_rows && r < MGL_SHORT_ROWS; r++, out += MGL_SHORT_BLOCK) {
    for (size_t i = bases[r] & MGL_SHORT_COUNT; i > 0; i--, patches++) {
      out[*patches >> 16] = (mgl_bf16)*patches;
    }
  }
}

// Row `row` of a group, of which those behind it are copies of its last.
INLINE size_t short_row(size_t row) {
  return row < MGL_SHORT_ROWS ? row : MGL_SHORT_ROWS - 1;
}

// Block b of four rows from `row` on: rows of MGL_SHORT_BLOCK elements.
SEPARATE void short_decode(const short_blocks *blocks, size_t b, size_t row, mgl_bf16 *out) {
  enum { step = 2 * vec_lanes, steps = MGL_SHORT_BLOCK / step };
  for (size_t r = 0; r < linear_rows; r++) {
    const size_t at = short_row(row + r);
    const char *from = blocks->from + (b * MGL_SHORT_ROWS + at) * MGL_SHORT_BLOCK_BYTES;
    const uint16_t word = blocks->bases[b * MGL_SHORT_ROWS + at];
    const short_base base = vec_short_base((uint16_t)(word & ~MGL_SHORT_COUNT));
    UNROLL for (size_t s = 0; s < steps; s++) {
      vec_store((float *)(void *)(out + r * MGL_SHORT_BLOCK + s * step),
                vec_short_pairs(from, s * step, base));
    }
  }
  short_patch(blocks, b, row, out);
}

// Rows of a tile, whose accumulators with all tokens fill registers or, with many, half of them.
#define SHORT_TILE_ROWS(tokens) ((tokens)*4 <= vec_accumulators ? 4 : 2)

// A tile: all tokens and some rows, from `row` of the group on, of a chunk of K.
typedef struct short_part {
  const short_blocks *blocks;
  size_t row;
  size_t n, n_end;    // of the same rows in args->w; from n_end on they are not stored
  size_t begin, end;  // elements of K
  vec *state;         // accumulators between chunks
  const char *ahead;  // what is fetched meanwhile, as many bytes as are read
  bool fetches;
} short_part;

enum { short_tiles = (MGL_LINEAR_MOST_SHORT + linear_tokens - 1) / linear_tokens };

// One step of K: `weights` times all tokens; x: where each tile of packed tokens has its first
// step, of which this is the s-th behind.
INLINE void short_dots(vec *acc, const float *const x[short_tiles], size_t s, const vec *weights,
                       size_t tokens, size_t rows, kinds kind) {
  const packed_tiles tiles = tiles_of(tokens);
  UNROLL for (size_t half = 0; half < vectors_of(kind); half++) {
    vec parts[linear_rows];
    UNROLL for (size_t r = 0; r < rows; r++) {
      parts[r] = kind.x != operand_bf16_split ? weights[r]
                 : half == 0                  ? vec_pairs_odd(weights[r])
                                              : vec_pairs_even(weights[r]);
    }
    UNROLL for (size_t j = 0; j < tokens; j++) {
      const size_t tile = ((j + 1) * tiles.count - 1) / tokens;
      const size_t t = tile_start(&tiles, tile), count = tile_start(&tiles, tile + 1) - t;
      vec value = vec_load(x[tile] + ((s * vectors_of(kind) + half) * count + j - t) * vec_lanes);
      UNROLL for (size_t r = 0; r < rows; r++) {
        acc[j * rows + r] = operand_dot(acc[j * rows + r], value, parts[r], kind.x);
      }
    }
  }
}

INLINE vec4 sum_four(const vec two[2], const vec others[2]) {
  return vec_sum4(two[0], two[1], others[0], others[1]);
}

INLINE void short_tile_end(const mgl_linear_args *args, const short_part *p, vec *acc,
                           size_t tokens, size_t rows) {
  if (p->end < args->k) {
    UNROLL for (size_t j = 0; j < tokens; j++) {
      UNROLL for (size_t r = 0; r < rows; r++) {
        p->state[j * rows + r] = acc[j * rows + r];
      }
    }
  } else if (rows == linear_rows) {
    UNROLL for (size_t j = 0; j < tokens; j++) {
      store_sums(args, j, p->n, p->n_end, sum_four(acc + j * rows, acc + j * rows + 2));
    }
  } else {
    const size_t n_end = p->n + rows < p->n_end ? p->n + rows : p->n_end;
    UNROLL for (size_t j = 0; j < tokens; j += 2) {
      const size_t second = j + 1 < tokens ? j + 1 : j;
      const vec4 sums = sum_four(acc + j * rows, acc + second * rows);
      store_sums(args, j, p->n, n_end, sums);
      store_sums(args, second, p->n, n_end, (vec4){sums[2], sums[3]});
    }
  }
}

// Blocks with patches, and one that K ends in, go through a buffer. `tokens`, `rows` and `kind` are
// constants after inlining.
INLINE void short_tile(const mgl_linear_args *args, const short_part *p, size_t tokens, size_t rows,
                       kinds kind) {
  enum { step = 2 * vec_lanes, steps = MGL_SHORT_BLOCK / step };
  const packed_tiles tiles = tiles_of(tokens);
  const short_blocks *blocks = p->blocks;
  const char *ahead = p->ahead, *w[linear_rows];
  const size_t all_steps = (args->k + step - 1) / step;
  const size_t lines = (MGL_SHORT_BLOCK_BYTES / line_bytes * rows + steps - 1) / steps;
  const size_t x_vector = vectors_of(kind) * vec_lanes;
  const bool split = kind.x == operand_bf16_split;
  vec acc[MGL_LINEAR_MOST_SHORT * linear_rows];
  const float *x[short_tiles];
  UNROLL for (size_t i = 0; i < tiles.count; i++) {
    const size_t t = tile_start(&tiles, i), count = tile_start(&tiles, i + 1) - t;
    x[i] = (const float *)args->x + (t * all_steps + p->begin / step * count) * x_vector;
  }
  UNROLL for (size_t j = 0; j < tokens; j++) {
    UNROLL for (size_t r = 0; r < rows; r++) {
      acc[j * rows + r] = p->begin == 0 ? vec_zero() : p->state[j * rows + r];
    }
  }
  UNROLL for (size_t r = 0; r < rows; r++) {
    w[r] = blocks->from + short_row(p->row + r) * MGL_SHORT_BLOCK_BYTES;
  }
  uint32_t control = split ? vec_subnormals_begin(acc, tokens * rows) : 0;
  for (size_t b = 0; b < blocks->count; b++) {
    const uint16_t *bases = blocks->bases + b * MGL_SHORT_ROWS;
    const size_t left = p->end - p->begin - b * MGL_SHORT_BLOCK;
    short_base base[linear_rows];
    vec weights[linear_rows];
    uint16_t counts = 0;
    UNROLL for (size_t r = 0; r < rows; r++) {
      counts |= bases[short_row(p->row + r)];
      base[r] = vec_short_base(bases[short_row(p->row + r)]);
    }
    if (__builtin_expect((counts & MGL_SHORT_COUNT) != 0 || left < MGL_SHORT_BLOCK, 0)) {
      mgl_bf16 buffer[linear_rows * MGL_SHORT_BLOCK];
      short_decode(blocks, b, p->row, buffer);
      for (size_t s = 0; s < steps && s * step < left; s++) {
        UNROLL for (size_t r = 0; r < rows; r++) {
          weights[r] = vec_load_pairs(buffer + r * MGL_SHORT_BLOCK + s * step);
        }
        short_dots(acc, x, s, weights, tokens, rows, kind);
      }
    } else {
      UNROLL for (size_t s = 0; s < steps; s++) {
        if (p->fetches) {
          UNROLL for (size_t i = 0; i < lines; i++) {
            fetch(ahead, i * line_bytes, MGL_FETCH_L2);
          }
          ahead += lines * line_bytes;
        }
        UNROLL for (size_t r = 0; r < rows; r++) {
          weights[r] = vec_short_pairs(w[r], s * step, base[r]);
        }
        short_dots(acc, x, s, weights, tokens, rows, kind);
      }
    }
    UNROLL for (size_t r = 0; r < rows; r++) {
      w[r] += MGL_SHORT_ROWS * MGL_SHORT_BLOCK_BYTES;
    }
    UNROLL for (size_t i = 0; i < tiles.count; i++) {
      x[i] += steps * (tile_start(&tiles, i + 1) - tile_start(&tiles, i)) * x_vector;
    }
  }
  if (split) {
    vec_subnormals_end(control, acc, tokens * rows);
  }
  short_tile_end(args, p, acc, tokens, rows);
}

// A function each, which compile in a tenth of the time of one for all.
#define SHORT_TILE(tokens)                                                               \
  SEPARATE void short_pairs_##tokens(const mgl_linear_args *args, const short_part *p) { \
    short_tile(args, p, tokens, SHORT_TILE_ROWS(tokens),                                 \
               (kinds){operand_bf16_pairs, operand_bf16_pairs});                         \
  }                                                                                      \
  SEPARATE void short_split_##tokens(const mgl_linear_args *args, const short_part *p) { \
    short_tile(args, p, tokens, SHORT_TILE_ROWS(tokens),                                 \
               (kinds){operand_bf16_split, operand_bf16_pairs});                         \
  }

SHORT_TILE(2)
SHORT_TILE(3)
SHORT_TILE(4)
SHORT_TILE(5)
SHORT_TILE(6)
SHORT_TILE(7)
SHORT_TILE(8)

static void run_short_tile(const mgl_linear_args *args, const short_part *p) {
  switch (args->token_count + (args->split ? MGL_LINEAR_MOST_SHORT : 0)) {
    case 2: short_pairs_2(args, p); break;
    case 3: short_pairs_3(args, p); break;
    case 4: short_pairs_4(args, p); break;
    case 5: short_pairs_5(args, p); break;
    case 6: short_pairs_6(args, p); break;
    case 7: short_pairs_7(args, p); break;
    case 8: short_pairs_8(args, p); break;
    case MGL_LINEAR_MOST_SHORT + 2: short_split_2(args, p); break;
    case MGL_LINEAR_MOST_SHORT + 3: short_split_3(args, p); break;
    case MGL_LINEAR_MOST_SHORT + 4: short_split_4(args, p); break;
    case MGL_LINEAR_MOST_SHORT + 5: short_split_5(args, p); break;
    case MGL_LINEAR_MOST_SHORT + 6: short_split_6(args, p); break;
    case MGL_LINEAR_MOST_SHORT + 7: short_split_7(args, p); break;
    default: short_split_8(args, p); break;
  }
}

// Rows [first, last) of a group; `first` is row n of args->w.
typedef struct short_rows {
  const char *group;
  size_t first, last;
  size_t n;
} short_rows;

static void short_packed_group(const mgl_linear_args *args, const short_rows *rows,
                               const mgl_short_layout *layout, vec *state) {
  const size_t at_once = SHORT_TILE_ROWS(args->token_count), k = args->k;
  const uint32_t *patches = mgl_short_patches(rows->group, layout);
  short_blocks blocks = {.bases = (const uint16_t *)(const void *)rows->group,
                         .from = rows->group + layout->elements};
  for (size_t done = 0; done < layout->blocks; done += blocks.count) {
    blocks.count = layout->blocks - done;
    blocks.count = blocks.count < short_chunk_blocks ? blocks.count : (size_t)short_chunk_blocks;
    patches = short_find_patches(&blocks, patches);
    const size_t bytes = blocks.count * MGL_SHORT_ROWS * MGL_SHORT_BLOCK_BYTES;
    const size_t begin = done * MGL_SHORT_BLOCK, end = begin + blocks.count * MGL_SHORT_BLOCK;
    short_part part = {
        .blocks = &blocks,
        .n_end = rows->n + (rows->last - rows->first),
        .begin = begin,
        .end = end < k ? end : k,
        .state = state,
        .fetches = args->way->many_fetch,
    };
    // The next chunk, or the next group's first one.
    const char *next = blocks.from + bytes;
    next += done + blocks.count == layout->blocks ? layout->elements : 0;
    for (size_t row = rows->first; row < rows->last; row += at_once) {
      part.row = row;
      part.n = rows->n + (row - rows->first);
      part.ahead = next + row * (bytes / MGL_SHORT_ROWS);
      run_short_tile(args, &part);
      part.state += at_once * args->token_count;
    }
    blocks.bases += blocks.count * MGL_SHORT_ROWS;
    blocks.from += bytes;
  }
}

SEPARATE void linear_short_packed(const mgl_linear_args *args, size_t begin, size_t end) {
  const mgl_short_layout layout = mgl_short_layout_of(args->k);
  vec state[(MGL_SHORT_ROWS + linear_rows) * MGL_LINEAR_MOST_SHORT];
  assert(args->token_count >= 2 && args->token_count <= MGL_LINEAR_MOST_SHORT);
  for (size_t n = begin, n_end; n < end; n = n_end) {
    const size_t at = n + args->short_first, row = at % MGL_SHORT_ROWS;
    const char *group = (const char *)args->w_short + at / MGL_SHORT_ROWS * layout.bytes;
    n_end = end - n < MGL_SHORT_ROWS - row ? end : n + MGL_SHORT_ROWS - row;
    if (mgl_short_base(group, 0, 0) == MGL_SHORT_PLAIN) {
      (args->split ? split_bf16_bf16 : packed_bf16_bf16)(args, n, n_end);
      continue;
    }
    if (args->way->many_fetch) {  // the next group's bases and patches
      for (size_t i = 0; i < layout.elements; i += line_bytes) {
        fetch(group + layout.bytes, i, MGL_FETCH_L2);
      }
    }
    const short_rows rows = {.group = group, .first = row, .last = row + (n_end - n), .n = n};
    short_packed_group(args, &rows, &layout, state);
  }
}
