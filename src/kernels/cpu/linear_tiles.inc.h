// Linear layers of bf16 by tile registers (AMX): 16 rows of weights times up to 16 tokens at once.
//
// A tile of weights is 16 rows of 32 elements, read in place; a tile of x has a pair of elements of
// each token in a row (packed; one token lies so by itself). The instruction sums the products of
// even and of odd elements of the 32, one after the other, adds both sums, and that to the
// accumulator (test_linear_tiles.c has it in C). This order is that of all numbers of tokens: so
// one token goes through tiles too, of which it fills a sixteenth; a KiB of weights takes 16 cycles
// then, and memory takes longer. Tails of K are copied and filled up with zeros.
//
// Up to 16 tokens stream the weights, 16 or 32 rows at a time, from where they lie. More are groups
// of up to 32, in four accumulators: of 32 rows, a chunk of K stays in the L1 cache while all groups
// pass, and the next rows are fetched into L2 meanwhile. Tokens that are not packed are groups of
// one.
//
// Packed x: for 16 tokens (of the last group, what is left), step after step of K; in a step, 16
// rows of a pair of each token.
//
// Included by kernels_amxbf16.c, and by a test over tiles_emulated.h.
#include <assert.h>
#include <stdbool.h>
#include <stdint.h>

#include "kernels/cpu/cpu_kernels.h"
#include "kernels/cpu/vector_words.h"

enum {
  tile_rows = 16,
  tile_elements = 32,  // of K in a step
  tile_row_bytes = 64,
  tile_bytes = 1024,      // of a tile whose 16 rows are full
  tile_sums = 256,        // of an accumulator
  tile_block_rows = 32,   // and tokens of a group
  tile_chunk_steps = 16,  // 32 KiB of weights of a block
  tile_most_groups = 16,  // whose accumulators are kept between chunks
  tile_line = 64,
};

// What the tiles hold: rows of both tiles of weights, tokens of both tiles of x. 0: not used.
typedef struct tile_shape {
  size_t rows[2], tokens[2];
} tile_shape;

// Tiles 0 to 3 are accumulators: rows[0] x tokens[0], rows[0] x tokens[1], rows[1] x tokens[0] ...;
// 4 and 5 have weights, 6 and 7 have x.
static void configure_tiles(tile_shape *present, const tile_shape *wanted) {
  if (memcmp(present, wanted, sizeof *wanted) == 0) {
    return;
  }
  *present = *wanted;
  tile_config config = {.palette = 1};
  for (size_t i = 0; i < 2; i++) {
    for (size_t j = 0; j < 2; j++) {
      bool used = wanted->rows[i] > 0 && wanted->tokens[j] > 0;
      config.rows[2 * i + j] = (unsigned char)(used ? wanted->rows[i] : 0);
      config.row_bytes[2 * i + j] = (uint16_t)(used ? 4 * wanted->tokens[j] : 0);
    }
    config.rows[4 + i] = (unsigned char)wanted->rows[i];
    config.row_bytes[4 + i] = wanted->rows[i] > 0 ? tile_row_bytes : 0;
    config.rows[6 + i] = wanted->tokens[i] > 0 ? tile_rows : 0;
    config.row_bytes[6 + i] = (uint16_t)(4 * wanted->tokens[i]);
  }
  TILE_CONFIGURE(&config);
}

// --- x -------------------------------------------------------------------------------------------

static size_t tile_padded(size_t k) {
  return (k + tile_elements - 1) / tile_elements * tile_elements;
}

// Tokens of a tile that begins with token t.
static size_t tile_tokens_at(size_t t, size_t token_count) {
  size_t left = t < token_count ? token_count - t : 0;
  return left < tile_rows ? left : tile_rows;
}

static void pack_tiles(const mgl_pack_args *args) {
  size_t k = args->k, full = k / tile_elements, row_bytes = k * sizeof(mgl_bf16);
  char *out = args->out;
  for (size_t t = 0, tokens; t < args->token_count; t += tokens) {
    tokens = tile_tokens_at(t, args->token_count);
    const char *x = (const char *)args->x + t * row_bytes;
    for (size_t i = 0; i < full; i++, x += tile_row_bytes, out += tile_row_bytes * tokens) {
      tile_turn(x, row_bytes, tokens, tile_rows, out, 4 * tokens);
    }
    if (k % tile_elements != 0) {
      char tail[tile_bytes] = {0};
      for (size_t j = 0; j < tokens; j++) {
        memcpy(tail + j * tile_row_bytes, x + j * row_bytes, k % tile_elements * sizeof(mgl_bf16));
      }
      tile_turn(tail, tile_row_bytes, tokens, tile_rows, out, 4 * tokens);
      out += tile_row_bytes * tokens;
    }
  }
}

// Tokens that pass over weights together.
typedef struct tile_group {
  size_t t, tokens[2];
  const char *x[2];
  const char *x_tail[2];      // the last step, if K has a tail
  char copy[tile_row_bytes];  // of a token that is not packed
} tile_group;

static size_t tile_group_count(const mgl_linear_args *args) {
  size_t count = args->token_count;
  return args->packed ? (count + tile_block_rows - 1) / tile_block_rows : count;
}

static void find_tile_group(const mgl_linear_args *args, size_t index, tile_group *g) {
  size_t k = args->k, full = k / tile_elements, count = args->token_count;
  if (!args->packed) {
    g->t = index;
    g->tokens[0] = 1;
    g->tokens[1] = 0;
    g->x[0] = (const char *)args->x + index * k * sizeof(mgl_bf16);
    g->x[1] = g->x_tail[1] = NULL;
    g->x_tail[0] = g->copy;
    memset(g->copy, 0, sizeof g->copy);
    memcpy(g->copy, g->x[0] + full * tile_row_bytes, k % tile_elements * sizeof(mgl_bf16));
    return;
  }
  g->t = index * tile_block_rows;
  for (size_t i = 0; i < 2; i++) {
    size_t t = g->t + i * tile_rows;
    g->tokens[i] = tile_tokens_at(t, count);
    g->x[i] = g->tokens[i] == 0 ? NULL : (const char *)args->x + t * tile_padded(k) * 2;
    g->x_tail[i] = g->tokens[i] == 0 ? NULL : g->x[i] + full * tile_row_bytes * g->tokens[i];
  }
}

// --- weights -------------------------------------------------------------------------------------

// What is fetched while products are made: lines from `at` on, `lines` of them a step; behind
// `end`, those from `then` on.
typedef struct tile_fetcher {
  const char *at, *end;
  const char *then, *then_end;
  size_t lines;
  mgl_fetch into;
} tile_fetcher;

INLINE void fetch_lines(tile_fetcher *f) {
  size_t lines = f->lines;
  if (f->into == MGL_FETCH_L1) {
    for (size_t i = 0; i < lines; i++) {
      FETCH_L1(f->at + i * tile_line);
    }
  } else {
    for (size_t i = 0; i < lines; i++) {
      FETCH_L2(f->at + i * tile_line);
    }
  }
  f->at += lines * tile_line;
  if (f->at >= f->end) {
    f->at = f->then;
    f->end = f->then_end;
    f->then = f->then_end = NULL;
    f->lines = f->at == NULL ? 0 : lines;
  }
}

// A few tokens: a stream that runs `one_ahead` bytes ahead.
static tile_fetcher fetch_stream(const mgl_linear_args *args, size_t begin, size_t end) {
  size_t row_bytes = args->k * sizeof(mgl_bf16);
  const char *w = args->w, *next = args->next_w;
  tile_fetcher f = {.into = args->way->one_fetch};
  size_t first = begin * row_bytes + args->way->one_ahead;
  if (f.into == MGL_FETCH_NONE) {
    return f;
  }
  if (first < end * row_bytes) {
    f.at = w + first;
    f.end = w + end * row_bytes;
    f.then = args->next_rows > 0 ? next : NULL;
    f.then_end = f.then == NULL ? NULL : next + args->next_rows * row_bytes;
  } else if (args->next_rows > 0) {
    f.at = next;
    f.end = next + args->next_rows * row_bytes;
  }
  return f;
}

// More tokens: the rows behind [n, n_end), spread over the groups.
static tile_fetcher fetch_block(const mgl_linear_args *args, size_t n, size_t n_end, size_t end,
                                size_t groups) {
  size_t row_bytes = args->k * sizeof(mgl_bf16), rows = n_end - n;
  bool is_last = n_end >= end;
  size_t left = is_last ? args->next_rows : end - n_end;
  rows = left < rows ? left : rows;
  tile_fetcher f = {.into = MGL_FETCH_L2};
  if (rows > 0 && args->way->many_fetch) {
    f.at = is_last ? args->next_w : (const char *)args->w + n_end * row_bytes;
    f.end = f.at + rows * row_bytes;
    f.lines = (tile_block_rows + groups - 1) / groups;
  }
  return f;
}

// `bytes` of each of so many rows, to rows of tile_row_bytes.
static void copy_tile(const char *w, size_t row_bytes, size_t rows, size_t bytes, char *to) {
  if (bytes == tile_row_bytes) {
    for (size_t r = 0; r < rows; r++) {
      memcpy(to + r * tile_row_bytes, w + r * row_bytes, tile_row_bytes);
    }
    return;
  }
  for (size_t r = 0; r < rows; r++) {
    memcpy(to + r * tile_row_bytes, w + r * row_bytes, bytes);
  }
}

// --- products ------------------------------------------------------------------------------------

// One step of K: `w` of both tiles of weights with their stride, `x` of both tiles of tokens.
// `two_rows` and `two_tokens` are constants after inlining.
INLINE void tile_dots(const char *const w[2], size_t w_stride, const char *const x[2],
                      const size_t tokens[2], bool two_rows, bool two_tokens) {
  TILE_LOAD(4, w[0], w_stride);
  TILE_LOAD(6, x[0], 4 * tokens[0]);
  TILE_DOT(0, 4, 6);
  if (two_rows) {
    TILE_LOAD(5, w[1], w_stride);
    TILE_DOT(2, 5, 6);
  }
  if (two_tokens) {
    TILE_LOAD(7, x[1], 4 * tokens[1]);
    TILE_DOT(1, 4, 7);
    if (two_rows) {
      TILE_DOT(3, 5, 7);
    }
  }
}

// Steps of K of a block of rows and a group of tokens.
typedef struct tile_run {
  const char *w[2];
  size_t w_stride, w_step;  // bytes from a row, and from a step, to the next
  const char *w_tail[2];    // behind the steps a last one, of rows of tile_row_bytes; NULL: none
  const char *x[2];
  const char *x_tail[2];
  size_t steps;
  const size_t *tokens;  // [2]
  const float *begin;    // accumulators before; NULL: zero
  float *end;            // and after: [4][tile_rows * tile_rows]
  tile_fetcher *fetcher;
} tile_run;

INLINE void begin_tiles(const tile_run *r, bool two_rows, bool two_tokens) {
  const float *from = r->begin;
  if (from == NULL) {
    TILE_ZERO(0);
    if (two_tokens) {
      TILE_ZERO(1);
    }
    if (two_rows) {
      TILE_ZERO(2);
    }
    if (two_rows && two_tokens) {
      TILE_ZERO(3);
    }
    return;
  }
  TILE_LOAD(0, from, 4 * r->tokens[0]);
  if (two_tokens) {
    TILE_LOAD(1, from + tile_sums, 4 * r->tokens[1]);
  }
  if (two_rows) {
    TILE_LOAD(2, from + 2 * tile_sums, 4 * r->tokens[0]);
  }
  if (two_rows && two_tokens) {
    TILE_LOAD(3, from + 3 * tile_sums, 4 * r->tokens[1]);
  }
}

INLINE void end_tiles(const tile_run *r, bool two_rows, bool two_tokens) {
  float *to = r->end;
  TILE_STORE(0, to, 4 * r->tokens[0]);
  if (two_tokens) {
    TILE_STORE(1, to + tile_sums, 4 * r->tokens[1]);
  }
  if (two_rows) {
    TILE_STORE(2, to + 2 * tile_sums, 4 * r->tokens[0]);
  }
  if (two_rows && two_tokens) {
    TILE_STORE(3, to + 3 * tile_sums, 4 * r->tokens[1]);
  }
}

INLINE void run_tiles(const tile_run *r, bool two_rows, bool two_tokens) {
  const char *w[2] = {r->w[0], r->w[1]}, *x[2] = {r->x[0], r->x[1]};
  const size_t tokens[2] = {r->tokens[0], r->tokens[1]};
  const size_t w_stride = r->w_stride, w_step = r->w_step;
  tile_fetcher f = *r->fetcher;
  begin_tiles(r, two_rows, two_tokens);
  for (size_t i = r->steps; i > 0; i--) {
    fetch_lines(&f);
    tile_dots(w, w_stride, x, tokens, two_rows, two_tokens);
    w[0] += w_step;
    x[0] += tile_row_bytes * tokens[0];
    w[1] += two_rows ? w_step : 0;
    x[1] += two_tokens ? tile_row_bytes * tokens[1] : 0;
  }
  *r->fetcher = f;
  if (r->w_tail[0] != NULL) {
    tile_dots(r->w_tail, tile_row_bytes, r->x_tail, tokens, two_rows, two_tokens);
  }
  end_tiles(r, two_rows, two_tokens);
}

static void run_any_tiles(const tile_run *r, const tile_shape *shape, tile_shape *present) {
  bool two_rows = shape->rows[1] > 0, two_tokens = shape->tokens[1] > 0;
  configure_tiles(present, shape);
  if (two_rows && two_tokens) {
    run_tiles(r, true, true);
  } else if (two_rows) {
    run_tiles(r, true, false);
  } else if (two_tokens) {
    run_tiles(r, false, true);
  } else {
    run_tiles(r, false, false);
  }
}

// Sums of rows from n on and tokens from t on, which lie token by token in 16 floats.
static void store_tile_sums(const mgl_linear_args *args, size_t n, size_t rows, size_t t,
                            size_t tokens, const float *sums) {
  for (size_t j = 0; j < tokens; j++, sums += tile_rows) {
    float *out = args->out + (t + j) * args->out_stride + n;
    const float *residual =
        args->residual == NULL ? NULL : args->residual + (t + j) * args->out_stride + n;
    float row[tile_rows];
    memcpy(row, sums, sizeof row);
    if (args->bias != NULL) {
      for (size_t r = 0; r < rows; r++) {
        row[r] += args->bias[n + r];
      }
    }
    if (residual != NULL) {
      for (size_t r = 0; r < rows; r++) {
        row[r] = residual[r] + row[r];
      }
    }
    if (rows == tile_rows) {
      memcpy(out, row, sizeof row);
    } else {
      memcpy(out, row, rows * sizeof *row);
    }
  }
}

// Rows of an accumulator, of `tokens` floats each.
static void store_tile(const mgl_linear_args *args, size_t n, size_t rows, size_t t, size_t tokens,
                       const float *sums) {
  float turned[tile_sums];
  if (tokens == 1) {
    store_tile_sums(args, n, rows, t, 1, sums);
    return;
  }
  tile_turn(sums, 4 * tokens, rows, tokens, turned, 4 * tile_rows);
  store_tile_sums(args, n, rows, t, tokens, turned);
}

static void store_tiles(const mgl_linear_args *args, size_t n, size_t t, const tile_shape *shape,
                        const float *sums) {
  for (size_t i = 0; i < 2; i++) {
    for (size_t j = 0; j < 2; j++, sums += tile_sums) {
      if (shape->rows[i] > 0 && shape->tokens[j] > 0) {
        store_tile(args, n + i * tile_rows, shape->rows[i], t + j * tile_rows, shape->tokens[j],
                   sums);
      }
    }
  }
}

static tile_shape shape_of(size_t rows, const tile_group *g) {
  size_t first = rows < tile_rows ? rows : tile_rows;
  return (tile_shape){{first, rows - first}, {g->tokens[0], g->tokens[1]}};
}

// One group of few tokens: weights stream through, from where they lie.
static void stream_tiles(const mgl_linear_args *args, size_t begin, size_t end,
                         tile_shape *present) {
  size_t row_bytes = args->k * sizeof(mgl_bf16), tail = args->k % tile_elements;
  size_t block_rows = args->way->one_in_turn ? tile_rows : tile_block_rows;
  char copies[2][tile_bytes];
  float sums[4 * tile_sums];
  tile_group g;
  tile_fetcher f = fetch_stream(args, begin, end);
  find_tile_group(args, 0, &g);
  for (size_t n = begin, rows; n < end; n += rows) {
    rows = end - n < block_rows ? end - n : block_rows;
    tile_shape shape = shape_of(rows, &g);
    tile_run r = {.w_stride = row_bytes,
                  .w_step = tile_row_bytes,
                  .x = {g.x[0], g.x[1]},
                  .x_tail = {g.x_tail[0], g.x_tail[1]},
                  .steps = args->k / tile_elements,
                  .tokens = shape.tokens,
                  .end = sums,
                  .fetcher = &f};
    for (size_t i = 0; i < 2 && shape.rows[i] > 0; i++) {
      r.w[i] = (const char *)args->w + (n + i * tile_rows) * row_bytes;
      if (tail > 0) {
        memset(copies[i], 0, tile_bytes);
        copy_tile(r.w[i] + r.steps * tile_row_bytes, row_bytes, shape.rows[i],
                  tail * sizeof(mgl_bf16), copies[i]);
        r.w_tail[i] = copies[i];
      }
    }
    f.lines = f.at == NULL ? 0 : rows;
    run_any_tiles(&r, &shape, present);
    store_tiles(args, n, g.t, &shape, sums);
  }
}

// Steps [first, end) of K of a block's rows, tile after tile: both of a step, then the next step.
static void copy_chunk(const mgl_linear_args *args, size_t n, size_t rows, size_t first, size_t end,
                       char *to) {
  size_t row_bytes = args->k * sizeof(mgl_bf16), at = first * tile_row_bytes;
  const char *w = (const char *)args->w + n * row_bytes;
  for (size_t i = first; i < end; i++, at += tile_row_bytes, to += 2 * tile_bytes) {
    size_t bytes = row_bytes - at < tile_row_bytes ? row_bytes - at : tile_row_bytes;
    if (bytes < tile_row_bytes) {
      memset(to, 0, 2 * tile_bytes);
    }
    copy_tile(w + at, row_bytes, rows, bytes, to);
  }
}

// Groups, `count` from `first` on: a chunk of a block's weights is copied to where it lies
// in one piece, since rows a power of two apart would not stay in L1, and all groups pass over it.
static void multiply_tiles(const mgl_linear_args *args, size_t n, size_t rows, size_t first,
                           size_t count, tile_fetcher *fetcher, tile_shape *present) {
  _Alignas(64) char w[tile_chunk_steps * 2 * tile_bytes];
  float state[tile_most_groups][4 * tile_sums];
  size_t full = args->k / tile_elements, all = tile_padded(args->k) / tile_elements;
  tile_group g;
  for (size_t begin = 0, end; begin < all; begin = end) {
    end = all - begin < tile_chunk_steps ? all : begin + tile_chunk_steps;
    copy_chunk(args, n, rows, begin, end, w);
    for (size_t i = 0; i < count; i++) {
      find_tile_group(args, first + i, &g);
      tile_shape shape = shape_of(rows, &g);
      tile_run r = {.w = {w, w + tile_bytes},
                    .w_stride = tile_row_bytes,
                    .w_step = 2 * tile_bytes,
                    .steps = (end < full ? end : full) - begin,
                    .tokens = shape.tokens,
                    .begin = begin == 0 ? NULL : state[i],
                    .end = state[i],
                    .fetcher = fetcher};
      for (size_t j = 0; j < 2 && g.tokens[j] > 0; j++) {
        r.x[j] = g.x[j] + begin * tile_row_bytes * g.tokens[j];
        r.x_tail[j] = g.x_tail[j];
      }
      if (end > full) {
        r.w_tail[0] = w + r.steps * 2 * tile_bytes;
        r.w_tail[1] = r.w_tail[0] + tile_bytes;
      }
      run_any_tiles(&r, &shape, present);
      if (end == all) {
        store_tiles(args, n, g.t, &shape, state[i]);
      }
    }
  }
}

static void linear_tiles(const mgl_linear_args *args, size_t begin, size_t end) {
  assert(args->x_dtype == MGL_DTYPE_BF16 && args->w_dtype == MGL_DTYPE_BF16);
  size_t groups = tile_group_count(args);
  tile_shape present = {.rows = {0}};
  if (groups == 1 && args->token_count <= tile_rows) {
    stream_tiles(args, begin, end, &present);
    TILE_RELEASE();
    return;
  }
  for (size_t n = begin, rows; n < end; n += rows) {
    rows = end - n < tile_block_rows ? end - n : tile_block_rows;
    tile_fetcher f = fetch_block(args, n, n + rows, end, groups);
    for (size_t i = 0, count; i < groups; i += count) {
      count = groups - i < tile_most_groups ? groups - i : tile_most_groups;
      multiply_tiles(args, n, rows, i, count, &f, &present);
    }
  }
  TILE_RELEASE();
}

// Until the machine was measured.
#define USUAL_WAY_OF_TILES                                                                    \
  {                                                                                           \
    .one_fetch = MGL_FETCH_L2, .one_ahead = 32 << 10, .pack_tokens = MGL_LINEAR_LEAST_PACKED, \
    .many_fetch = true,                                                                       \
  }
static const mgl_linear_way usual_way_of_tiles = USUAL_WAY_OF_TILES;
