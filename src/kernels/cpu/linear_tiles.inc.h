// Linear layers of bf16 by tile registers (AMX): 16 rows of weights times up to 16 tokens at once.
//
// A tile of weights is 16 rows of 32 elements, read in place; a tile of x has a pair of elements of
// each token in a row (packed; one token lies so by itself). The instruction sums the products of
// even and of odd elements of the 32, one after the other, adds both sums, and that to the
// accumulator (test_linear_tiles.c has it in C). This order is that of all numbers of tokens: so
// one token goes through tiles too, of which it fills a sixteenth; a KiB of weights takes 16 cycles
// then, and memory takes longer. Tails of K are copied and filled up with zeros.
//
// Up to 32 tokens pass over the weights together, with 32 rows in four accumulators. More tokens
// are several groups: a panel of rows stays in the L2 cache while all groups pass, and the next
// panel is fetched meanwhile. Tokens that are not packed are groups of one.
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
  tile_bytes = 1024,           // of a tile whose 16 rows are full
  tile_block_rows = 32,        // and tokens of a group
  tile_panel_bytes = 1 << 18,  // unless a way says how many rows
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

// One token, or one group: a stream that runs its way's bytes ahead.
static tile_fetcher fetch_stream(const mgl_linear_args *args, size_t begin, size_t end) {
  size_t row_bytes = args->k * sizeof(mgl_bf16);
  const char *w = args->w, *next = args->next_w;
  const mgl_single_way *way = mgl_linear_single(args->way, args->k);
  tile_fetcher f = {.into = way->fetch};
  size_t first = begin * row_bytes + way->ahead;
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

// Several groups: the panel behind [n, n_end), spread over the groups.
static tile_fetcher fetch_panel(const mgl_linear_args *args, size_t n, size_t n_end, size_t end,
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

// The last, partial step of `rows` rows, filled up with zeros.
static void copy_tail(const char *w, size_t row_bytes, size_t rows, size_t bytes, char *to) {
  memset(to, 0, tile_bytes);
  for (size_t r = 0; r < rows; r++) {
    memcpy(to + r * tile_row_bytes, w + r * row_bytes + row_bytes - bytes, bytes);
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

// Rows of weights that are computed together.
typedef struct tile_block {
  size_t n, rows[2];
} tile_block;

INLINE void multiply_tiles(const mgl_linear_args *args, const tile_group *g, const tile_block *b,
                           tile_fetcher *fetcher, bool two_rows, bool two_tokens) {
  size_t k = args->k, row_bytes = k * sizeof(mgl_bf16), tail = k % tile_elements;
  const char *w[2] = {(const char *)args->w + b->n * row_bytes, NULL};
  const char *x[2] = {g->x[0], g->x[1]};
  w[1] = two_rows ? w[0] + tile_rows * row_bytes : NULL;
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
  tile_fetcher f = *fetcher;
  for (size_t i = k / tile_elements; i > 0; i--) {
    fetch_lines(&f);
    tile_dots(w, row_bytes, x, g->tokens, two_rows, two_tokens);
    w[0] += tile_row_bytes;
    x[0] += tile_row_bytes * g->tokens[0];
    w[1] += two_rows ? tile_row_bytes : 0;
    x[1] += two_tokens ? tile_row_bytes * g->tokens[1] : 0;
  }
  *fetcher = f;
  if (tail > 0) {
    char copies[2][tile_bytes];
    const char *tails[2] = {copies[0], copies[1]};
    const char *all = (const char *)args->w + b->n * row_bytes;
    copy_tail(all, row_bytes, b->rows[0], tail * sizeof(mgl_bf16), copies[0]);
    if (two_rows) {
      copy_tail(all + tile_rows * row_bytes, row_bytes, b->rows[1], tail * sizeof(mgl_bf16),
                copies[1]);
    }
    tile_dots(tails, tile_row_bytes, g->x_tail, g->tokens, two_rows, two_tokens);
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
  float turned[tile_rows * tile_rows];
  if (tokens == 1) {
    store_tile_sums(args, n, rows, t, 1, sums);
    return;
  }
  tile_turn(sums, 4 * tokens, rows, tokens, turned, 4 * tile_rows);
  store_tile_sums(args, n, rows, t, tokens, turned);
}

static void compute_tile_block(const mgl_linear_args *args, const tile_group *g,
                               const tile_block *b, tile_fetcher *fetcher, tile_shape *present) {
  tile_shape wanted = {{b->rows[0], b->rows[1]}, {g->tokens[0], g->tokens[1]}};
  float sums[4][tile_rows * tile_rows];
  bool two_rows = b->rows[1] > 0, two_tokens = g->tokens[1] > 0;
  configure_tiles(present, &wanted);
  if (two_rows && two_tokens) {
    multiply_tiles(args, g, b, fetcher, true, true);
  } else if (two_rows) {
    multiply_tiles(args, g, b, fetcher, true, false);
  } else if (two_tokens) {
    multiply_tiles(args, g, b, fetcher, false, true);
  } else {
    multiply_tiles(args, g, b, fetcher, false, false);
  }
  TILE_STORE(0, sums[0], 4 * g->tokens[0]);
  if (two_tokens) {
    TILE_STORE(1, sums[1], 4 * g->tokens[1]);
  }
  if (two_rows) {
    TILE_STORE(2, sums[2], 4 * g->tokens[0]);
  }
  if (two_rows && two_tokens) {
    TILE_STORE(3, sums[3], 4 * g->tokens[1]);
  }
  for (size_t i = 0; i < 2; i++) {
    for (size_t j = 0; j < 2; j++) {
      if (b->rows[i] > 0 && g->tokens[j] > 0) {
        store_tile(args, b->n + i * tile_rows, b->rows[i], g->t + j * tile_rows, g->tokens[j],
                   sums[2 * i + j]);
      }
    }
  }
}

// Rows of a panel, a multiple of those of a block.
static size_t tile_panel_rows(const mgl_linear_args *args) {
  size_t rows = args->token_count <= MGL_LINEAR_SOME ? args->way->some_rows : args->way->many_rows;
  rows = rows == 0 ? tile_panel_bytes / (args->k * sizeof(mgl_bf16)) : rows;
  rows = rows / tile_block_rows * tile_block_rows;
  return rows < tile_block_rows ? tile_block_rows : rows;
}

static void linear_tiles(const mgl_linear_args *args, size_t begin, size_t end) {
  assert(args->x_dtype == MGL_DTYPE_BF16 && args->w_dtype == MGL_DTYPE_BF16);
  size_t groups = tile_group_count(args);
  bool one = groups == 1;
  size_t panel_rows = one ? end - begin : tile_panel_rows(args);
  bool in_turn = one && mgl_linear_single(args->way, args->k)->in_turn;
  size_t block_rows = in_turn ? tile_rows : tile_block_rows;
  tile_shape present = {.rows = {0}};
  tile_group group;
  for (size_t n = begin, n_end; n < end; n = n_end) {
    n_end = end - n < panel_rows ? end : n + panel_rows;
    tile_fetcher f =
        one ? fetch_stream(args, begin, end) : fetch_panel(args, n, n_end, end, groups);
    for (size_t i = 0; i < groups; i++) {
      find_tile_group(args, i, &group);
      for (size_t first = n; first < n_end; first += block_rows) {
        size_t rows = n_end - first < block_rows ? n_end - first : block_rows;
        tile_block b = {.n = first, .rows = {rows < tile_rows ? rows : tile_rows, 0}};
        b.rows[1] = rows - b.rows[0];
        f.lines = one && f.at != NULL ? rows : f.lines;
        compute_tile_block(args, &group, &b, &f, &present);
      }
    }
  }
  TILE_RELEASE();
}

// Until the machine was measured.
#define USUAL_WAY_OF_TILES                                                                     \
  {                                                                                            \
    .one = {.fetch = MGL_FETCH_L2, .ahead = 32 << 10}, .pack_tokens = MGL_LINEAR_LEAST_PACKED, \
    .many_fetch = true, .codes_fetch = MGL_FETCH_L2,                                           \
  }
static const mgl_linear_way usual_way_of_tiles = USUAL_WAY_OF_TILES;
