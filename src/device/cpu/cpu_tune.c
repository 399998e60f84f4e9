#include "device/cpu/cpu_tune.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/form.h"
#include "base/text.h"
#include "device/cpu/cpu_shorts.h"
#include "device/cpu/way_cache.h"
#include "graph/act_dtype.h"

enum {
  WAYS_VERSION = 10,  // of ways and of the kernels that walk them; another one measures anew
  MOST_SHAPES = 2,    // widths of rows that are measured, those with most bytes
  MOST_WAYS = 12,     // that are compared at a time
  ROUNDS = 6,
  MOST_ROUNDS = 15,   // of one token, whose ways differ least
  LEAST_ROUNDS = 3,   // else there is no result
  MOST_TOKENS = 128,  // the usual iteration; with fewer, panels look good whose x leaves L2
  SOME_TOKENS = 16,   // fewer wait for the memory with any panel (docs/log/189)
  FEW_TOKENS = 4,
  // Of weights, that a worker reads in a pass: long enough for a stream to get going, short beside
  // a time slice of the system.
  STREAM_BYTES = 2 << 20,
  LONG_STREAM_BYTES = 8 << 20,
  PRODUCT_BYTES = 256 << 10,
  LEAST_ROWS = 64,
  SHORT_AHEAD = 6 << 10,  // of short rows, where fetching is tried: two blocks of a group
};

// --- what is measured ----------------------------------------------------------------------------

// All matrices of linears whose rows have this width and form.
typedef struct shape {
  uint32_t k;
  mgl_form form;
  size_t row_bytes;
  uint64_t bytes;
  uint32_t most_features;  // of a matrix
  size_t op;               // of the matrix that the next piece is taken from
  uint32_t row;            // of it
} shape;

// Shapes by bytes, the largest first; one more while they are collected.
typedef struct shapes {
  shape all[MOST_SHAPES + 1];
  uint32_t count;
  uint64_t bytes;  // of all matrices
} shapes;

typedef struct tuner {
  mgl_cpu_weights *weights;
  const mgl_tune_options *options;
  const mgl_cpu_kernels *kernels;
  mgl_dtype act;
  shapes plain, codes;  // of integer codes
  shapes *measured;     // one of them
  uint64_t deadline_ns;
  size_t stream_bytes;    // of a pass of few tokens
  bool measures_shorts;   // else plain rows are read, whatever a way says
  unsigned char *memory;  // [workers] of x, packed x and out
  size_t x_bytes, packed_bytes, worker_bytes;
} tuner;

static const mgl_tensor *matrix_of(const mgl_graph *graph, size_t op_idx) {
  const mgl_op *op = &graph->ops[op_idx];
  const mgl_tensor *w = op->kind == MGL_OP_LINEAR ? &graph->tensors[op->inputs[1]] : NULL;
  bool is_matrix = w != NULL && w->placement == MGL_PLACE_WEIGHT && w->rank == 2 &&
                   w->dims[0].number >= LEAST_ROWS;
  return is_matrix && (w->dtype == MGL_DTYPE_BF16 || w->dtype == MGL_DTYPE_F16 ||
                       w->dtype == MGL_DTYPE_F32 || mgl_code_is_integer(w->dtype))
             ? w
             : NULL;
}

static mgl_form form_of(const mgl_tensor *w) {
  return (mgl_form){.dtype = w->dtype, .group = w->group, .offsets = w->offsets};
}

static bool same_form(mgl_form a, mgl_form b) {
  return a.dtype == b.dtype && a.group == b.group && a.offsets == b.offsets;
}

static void collect_matrix(const mgl_tensor *w, shapes *out) {
  const mgl_form form = form_of(w);
  const size_t row_bytes = mgl_row_layout_of(form, w->dims[1].number).bytes;
  const uint64_t bytes = (uint64_t)w->dims[0].number * row_bytes;
  uint32_t at = 0;
  while (at < out->count &&
         (out->all[at].k != w->dims[1].number || !same_form(out->all[at].form, form))) {
    at++;
  }
  if (at == out->count) {
    out->count += at < MOST_SHAPES ? 1 : 0;
    out->all[at] = (shape){.k = w->dims[1].number, .form = form, .row_bytes = row_bytes};
  }
  out->all[at].bytes += bytes;
  out->bytes += bytes;
  if (w->dims[0].number > out->all[at].most_features) {
    out->all[at].most_features = w->dims[0].number;
  }
  for (; at > 0 && out->all[at].bytes > out->all[at - 1].bytes; at--) {
    shape more = out->all[at];
    out->all[at] = out->all[at - 1];
    out->all[at - 1] = more;
  }
}

static void collect_shapes(tuner *t) {
  const mgl_graph *graph = t->weights->graph;
  for (size_t i = 0; i < graph->op_count; i++) {
    const mgl_tensor *w = matrix_of(graph, i);
    if (w != NULL) {
      collect_matrix(w, mgl_code_is_integer(w->dtype) ? &t->codes : &t->plain);
    }
  }
  t->measured = &t->plain;
}

// Rows of a matrix from `row` on.
typedef struct piece {
  const unsigned char *w;
  const void *shorts;  // of the matrix; NULL: none
  uint32_t row;
} piece;

// The next `rows` rows of the shape; the matrices are walked through in turn, so that none is in a
// cache.
static piece next_piece(const tuner *t, shape *s, uint32_t rows) {
  const mgl_graph *graph = t->weights->graph;
  for (;;) {
    const mgl_tensor *w = matrix_of(graph, s->op);
    if (w != NULL && w->dims[1].number == s->k && same_form(form_of(w), s->form) &&
        s->row + rows <= w->dims[0].number) {
      const uint32_t tensor = graph->ops[s->op].inputs[1];
      const unsigned char *data = t->weights->data[tensor];
      s->row += rows;
      return (piece){.w = data + (s->row - rows) * s->row_bytes,
                     .shorts = t->weights->shorts == NULL ? NULL : t->weights->shorts[tensor],
                     .row = s->row - rows};
    }
    s->op = (s->op + 1) % graph->op_count;
    s->row = 0;
  }
}

// --- a pass --------------------------------------------------------------------------------------

typedef struct pass {
  const tuner *t;
  const mgl_linear_way *way;
  const shape *s;
  uint32_t tokens, rows;
  piece *pieces;  // [workers]
  uint64_t *ns;   // [workers]
} pass;

static unsigned touch_pages(const unsigned char *at, size_t bytes) {
  unsigned sum = 0;
  for (size_t i = 0; i < bytes; i += 4096) {
    sum += ((const volatile unsigned char *)at)[i];
  }
  return sum;
}

static void run_share(void *context, uint32_t index) {
  const pass *p = context;
  const tuner *t = p->t;
  const bool reads_shorts = t->measures_shorts && mgl_linear_reads_shorts(p->way, p->tokens);
  unsigned char *x = t->memory + index * t->worker_bytes;
  mgl_linear_args args = {
      .x = x,
      .x_dtype = t->act,
      .w = p->pieces[index].w,
      .w_short = reads_shorts ? p->pieces[index].shorts : NULL,
      .short_first = p->pieces[index].row,
      .w_dtype = p->s->form.dtype,
      .w_group = p->s->form.group,
      .w_offsets = p->s->form.offsets,
      .token_count = p->tokens,
      .k = p->s->k,
      .out = (float *)(void *)(x + t->x_bytes + t->packed_bytes),
      .out_stride = p->rows,
      .packed = mgl_linear_packs(p->way, p->tokens, p->rows),
      .way = p->way,
  };
  const bool whole = mgl_code_is_integer(p->s->form.dtype);
  args.packed = args.packed || whole || (args.w_short != NULL && p->tokens > 1);
  args.split = args.packed && !whole && p->way->split && t->act == MGL_DTYPE_BF16;
  if (t->options->mapped) {
    (void)touch_pages(args.w, (size_t)p->rows * p->s->row_bytes);
  }
  mgl_team_barrier(t->options->team);
  uint64_t begin_ns = mgl_clock_ns();
  if (args.packed) {
    mgl_pack_args pack = {.x = x,
                          .dtype = t->act,
                          .split = args.split,
                          .whole = whole,
                          .token_count = p->tokens,
                          .k = p->s->k,
                          .out = x + t->x_bytes};
    t->kernels->pack(&pack);
    args.x = pack.out;
  }
  t->kernels->linear(&args, 0, p->rows);
  p->ns[index] = mgl_clock_ns() - begin_ns;
}

static int compare_ns(const void *a, const void *b) {
  uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
  return x < y ? -1 : x > y;
}

// Nanoseconds for a byte of weights, of the worker in the middle: one that had to wait for others
// who use the machine says nothing of the way.
static double run_pass(const tuner *t, shape *s, const mgl_linear_way *way, uint32_t tokens,
                       pass *p) {
  size_t rows = (tokens < MOST_TOKENS ? t->stream_bytes : PRODUCT_BYTES) / s->row_bytes / 16 * 16;
  rows = rows < LEAST_ROWS ? LEAST_ROWS : rows;
  uint32_t workers = mgl_team_size(t->options->team);
  p->t = t;
  p->way = way;
  p->s = s;
  p->tokens = tokens;
  p->rows = rows < s->most_features ? (uint32_t)rows : s->most_features;
  for (uint32_t i = 0; i < workers; i++) {
    p->pieces[i] = next_piece(t, s, p->rows);
  }
  mgl_team_run(t->options->team, run_share, p);
  qsort(p->ns, workers, sizeof *p->ns, compare_ns);
  const uint32_t median = (workers - 1) / 2;
  return (double)p->ns[median] / (double)(s->row_bytes * p->rows);
}

static int compare(const void *a, const void *b) {
  double x = *(const double *)a, y = *(const double *)b;
  return x < y ? -1 : x > y;
}

static double median_of(double *values, size_t count) {
  qsort(values, count, sizeof *values, compare);
  return values[count / 2];
}

// Nanoseconds for a byte of this shape, of each way. What counts is a way's time beside the way in
// the middle of its round, in the middle of all rounds: the pace of memory may change by half from
// one round to the next, which then is every way's. False: time ran out.
static bool measure_shape(tuner *t, pass *p, shape *s, const mgl_linear_way *ways, size_t count,
                          uint32_t tokens, double *costs) {
  double shares[MOST_WAYS][MOST_ROUNDS], middles[MOST_ROUNDS];
  size_t most = tokens == 1 ? MOST_ROUNDS : ROUNDS, rounds = 0;
  for (; rounds < most && mgl_clock_ns() < t->deadline_ns; rounds++) {
    double round[MOST_WAYS];
    for (size_t i = 0; i < count; i++) {
      round[i] = run_pass(t, s, &ways[i], tokens, p);
      shares[i][rounds] = round[i];
    }
    middles[rounds] = median_of(round, count);
    for (size_t i = 0; i < count; i++) {
      shares[i][rounds] /= middles[rounds];
    }
  }
  if (rounds < LEAST_ROUNDS) {
    return false;
  }
  double middle = median_of(middles, rounds);
  for (size_t i = 0; i < count; i++) {
    costs[i] = median_of(shares[i], rounds) * middle;
  }
  return true;
}

// The same of all shapes, weighted by the bytes that each has of the model.
static bool measure(tuner *t, pass *p, const mgl_linear_way *ways, size_t count, uint32_t tokens,
                    double *costs) {
  double of_shape[MOST_WAYS];
  memset(costs, 0, count * sizeof *costs);
  for (uint32_t s = 0; s < t->measured->count; s++) {
    if (!measure_shape(t, p, &t->measured->all[s], ways, count, tokens, of_shape)) {
      return false;
    }
    for (size_t i = 0; i < count; i++) {
      costs[i] += of_shape[i] * (double)t->measured->all[s].bytes;
    }
  }
  return true;
}

// The cheapest way replaces the first one, the present one, where it is cheaper by enough.
static size_t cheapest(const double *costs, size_t count) {
  size_t best = 0;
  for (size_t i = 1; i < count; i++) {
    double least = best == 0 ? costs[0] * (1 - MGL_TUNE_LEAST_GAIN) : costs[best];
    best = costs[i] < least ? i : best;
  }
  return best;
}

static bool choose(tuner *t, pass *p, const mgl_linear_way *ways, size_t count, uint32_t tokens,
                   mgl_linear_way *out) {
  double costs[MOST_WAYS];
  if (!measure(t, p, ways, count, tokens, costs)) {
    return false;
  }
  *out = ways[cheapest(costs, count)];
  return true;
}

// --- the choices, one after the other ------------------------------------------------------------

// The cheapest of the ways of one token for one width of rows. What is ahead of the present way in
// short passes must be so in long ones, too: where memory is slow, all ways are close, and how a
// stream begins counts more than in a matrix (docs/log/288).
static bool choose_single(tuner *t, pass *p, shape *s, const mgl_linear_way *ways, size_t count,
                          mgl_single_way *out) {
  double costs[MOST_WAYS];
  if (!measure_shape(t, p, s, ways, count, 1, costs)) {
    return false;
  }
  const size_t best = cheapest(costs, count);
  const mgl_linear_way two[] = {ways[0], ways[best]};
  t->stream_bytes = LONG_STREAM_BYTES;
  const bool done = best == 0 || measure_shape(t, p, s, two, 2, 1, costs);
  t->stream_bytes = STREAM_BYTES;
  *out = ways[best != 0 && cheapest(costs, 2) == 0 ? 0 : best].one;
  return done;
}

// Each width of rows by itself: a long row leaves the processor less to do at once where rows are
// taken in turn.
static bool choose_one_token(tuner *t, pass *p, mgl_linear_way *way) {
  static const mgl_single_way tried[] = {
      {false, MGL_FETCH_NONE, 0},      {false, MGL_FETCH_L1, 4 << 10},
      {false, MGL_FETCH_L1, 16 << 10}, {false, MGL_FETCH_L2, 16 << 10},
      {false, MGL_FETCH_L2, 48 << 10}, {true, MGL_FETCH_NONE, 0},
      {true, MGL_FETCH_L1, 4 << 10},   {true, MGL_FETCH_L2, 8 << 10},
      {true, MGL_FETCH_L2, 16 << 10},  {false, MGL_FETCH_L2, 128 << 10},
      {true, MGL_FETCH_L2, 64 << 10},
  };
  mgl_linear_way ways[MOST_WAYS] = {*way};
  mgl_single_way best[MOST_SHAPES];
  size_t count = 1;
  ways[0].long_k = 0;  // all walk so
  for (size_t i = 0; i < sizeof tried / sizeof *tried; i++, count++) {
    ways[count] = ways[0];
    ways[count].one = tried[i];
  }
  shape *all = t->plain.all;
  for (uint32_t s = 0; s < t->plain.count; s++) {
    ways[0].one = *mgl_linear_single(way, all[s].k);
    if (!choose_single(t, p, &all[s], ways, count, &best[s])) {
      return false;
    }
  }
  uint32_t wide = t->plain.count > 1 && all[1].k > all[0].k ? 1 : 0;
  uint32_t narrow = t->plain.count > 1 && all[1].k < all[0].k ? 1 : 0;
  way->one = best[narrow];
  way->one_long = best[wide];
  way->long_k = wide == narrow ? 0 : all[wide].k;
  return true;
}

// Up to how many tokens read short rows, in passes that are long beside a group: as many as gain
// with each number that is tried, from one on. (That more tokens gain says nothing of one: where
// plain rows of eight are slow, a processor may fall behind with the short rows of one.)
static bool choose_short_tokens(tuner *t, pass *p, mgl_linear_way *way) {
  static const uint32_t tried[] = {1, 2, 4, MGL_LINEAR_MOST_SHORT};
  const mgl_linear_way known = *way;
  bool done = true;
  if (t->weights->shorts == NULL) {
    return true;  // not asked for, or there is no memory for them
  }
  way->short_tokens = way->short_ahead = 0;
  t->measures_shorts = true;
  t->stream_bytes = LONG_STREAM_BYTES;
  for (size_t i = 0; i < sizeof tried / sizeof *tried && done; i++) {
    mgl_linear_way ways[] = {*way, *way, *way};
    ways[0].short_tokens = 0;
    ways[1].short_tokens = ways[2].short_tokens = tried[i];
    ways[2].short_ahead = SHORT_AHEAD;  // only one token fetches as a way says
    done = choose(t, p, ways, tried[i] == 1 ? 3 : 2, tried[i], &ways[0]);
    if (!done || ways[0].short_tokens == 0) {
      break;
    }
    *way = ways[0];
  }
  t->stream_bytes = STREAM_BYTES;
  *way = done ? *way : known;
  return done;
}

static bool is_tiled(const tuner *t) {
  return t->kernels->tiles && t->act == MGL_DTYPE_BF16;
}

// Of a few tokens whose x is not packed.
static bool choose_few(tuner *t, pass *p, mgl_linear_way *way) {
  if (is_tiled(t)) {
    return true;
  }
  static const uint32_t aheads[] = {0, 1, 2, 4};
  mgl_linear_way ways[MOST_WAYS] = {*way};
  uint32_t pack_tokens = way->pack_tokens;
  ways[0].pack_tokens = UINT32_MAX;
  size_t count = 1;
  for (size_t i = 0; i < sizeof aheads / sizeof *aheads; i++, count++) {
    ways[count] = ways[0];
    ways[count].few_ahead = aheads[i];
  }
  bool done = choose(t, p, ways, count, FEW_TOKENS, way);
  way->pack_tokens = pack_tokens;
  return done;
}

// Split or not, and rows of a panel, of `tokens` tokens.
static bool choose_packed(tuner *t, pass *p, uint32_t tokens, mgl_linear_way *way) {
  static const uint32_t rows[] = {0, 8, 16, 32, 64};
  bool splits = t->act == MGL_DTYPE_BF16 && t->kernels->splits();
  bool many = tokens > MGL_LINEAR_SOME;
  if (is_tiled(t) && !many) {
    return true;  // they stream as one does
  }
  mgl_linear_way ways[MOST_WAYS] = {*way};
  uint32_t pack_tokens = way->pack_tokens;
  ways[0].pack_tokens = MGL_LINEAR_LEAST_PACKED;
  ways[0].split = way->split && splits;
  size_t count = 1;
  for (int split = 0; split <= (splits ? 1 : 0); split++) {
    for (size_t i = 0; i < sizeof rows / sizeof *rows && !is_tiled(t); i++) {
      if (!many && (split == 1) != ways[0].split) {
        continue;  // one for all numbers of tokens: that which many have chosen
      }
      ways[count] = ways[0];
      ways[count].split = split == 1;
      *(many ? &ways[count].many_rows : &ways[count].some_rows) = rows[i];
      count++;
    }
  }
  ways[count] = ways[0];
  ways[count++].many_fetch = !way->many_fetch;
  bool done = choose(t, p, ways, count, tokens, way);
  way->pack_tokens = pack_tokens;
  return done;
}

// The number of tokens from which on packing pays.
static bool choose_pack_tokens(tuner *t, pass *p, mgl_linear_way *way) {
  static const uint32_t tokens[] = {16, 8, 6, 4, 2};
  uint32_t least = MGL_LINEAR_SOME;
  for (size_t i = 0; i < sizeof tokens / sizeof *tokens; i++) {
    mgl_linear_way ways[2] = {*way, *way};
    double costs[2];
    ways[0].pack_tokens = UINT32_MAX;
    ways[1].pack_tokens = MGL_LINEAR_LEAST_PACKED;
    if (!measure(t, p, ways, 2, tokens[i], costs)) {
      return false;
    }
    if (costs[1] > costs[0]) {
      break;
    }
    least = tokens[i];
  }
  way->pack_tokens = least;
  return true;
}

// Where one token's integer codes are fetched that come behind the rows at hand: a vector's rows,
// which the nearest cache may have room for or not.
static bool choose_codes(tuner *t, pass *p, mgl_linear_way *way) {
  mgl_linear_way ways[] = {*way, *way};
  ways[0].codes_fetch = MGL_FETCH_L2;
  ways[1].codes_fetch = MGL_FETCH_L1;
  t->measured = &t->codes;
  const bool done = choose(t, p, ways, 2, 1, way);
  t->measured = &t->plain;
  return done;
}

// Bytes of a worker's part of the memory; what the shapes need.
static void size_memory(tuner *t) {
  uint32_t widest = 0;
  size_t most_out = LEAST_ROWS * MOST_TOKENS;
  const shapes *const both[] = {&t->plain, &t->codes};
  for (size_t i = 0; i < 2; i++) {
    for (uint32_t s = 0; s < both[i]->count; s++) {
      const shape *of = &both[i]->all[s];
      size_t out = STREAM_BYTES / of->row_bytes * MOST_TOKENS;  // long streams are of few tokens
      most_out = out > most_out ? out : most_out;
      widest = of->k > widest ? of->k : widest;
    }
  }
  size_t packed = mgl_packed_bytes(MOST_TOKENS, widest, t->act), whole = mgl_whole_bytes(1, widest);
  packed = whole > packed ? whole : packed;
  t->x_bytes = ((size_t)MOST_TOKENS * widest * sizeof(float) + 4095) / 4096 * 4096;
  t->packed_bytes = (packed + 4095) / 4096 * 4096;
  t->worker_bytes = t->x_bytes + t->packed_bytes + (most_out * sizeof(float) + 4095) / 4096 * 4096;
}

static bool measure_plain(tuner *t, pass *p, mgl_linear_way *way) {
  return choose_one_token(t, p, way) && choose_packed(t, p, MOST_TOKENS, way) &&
         choose_packed(t, p, SOME_TOKENS, way) && choose_few(t, p, way) &&
         choose_pack_tokens(t, p, way) && choose_short_tokens(t, p, way);
}

static bool measure_all(tuner *t, mgl_linear_way *way) {
  uint32_t workers = mgl_team_size(t->options->team);
  size_memory(t);
  pass p = {.pieces = mgl_alloc_zeroed(workers, sizeof *p.pieces),
            .ns = mgl_alloc_zeroed(workers, sizeof *p.ns)};
  void *memory = NULL;
  mgl_error ignored = {0};
  bool done = p.pieces != NULL && p.ns != NULL &&
              mgl_pages_map(t->worker_bytes * workers, "choosing how linears walk", &memory,
                            &ignored) == MGL_OK;
  t->memory = memory;
  t->stream_bytes = STREAM_BYTES;
  done = done && (t->plain.bytes < MGL_TUNE_LEAST_BYTES || measure_plain(t, &p, way)) &&
         (t->codes.bytes < MGL_TUNE_LEAST_BYTES || choose_codes(t, &p, way));
  mgl_pages_unmap(memory, t->worker_bytes * workers);
  mgl_free(p.pieces);
  mgl_free(p.ns);
  return done;
}

// --- what is known -------------------------------------------------------------------------------

mgl_linear_way mgl_known_way(mgl_simd simd, const char *processor) {
  mgl_linear_way way = mgl_cpu_kernels_for(simd)->usual;
  const char *level = mgl_simd_name(simd);
  bool is_bf16 = strcmp(level, "avx512_bf16") == 0, is_512 = strncmp(level, "avx512", 6) == 0;
  if (is_bf16 && strncmp(processor, "AuthenticAMD 26.", 16) == 0) {
    way.one.fetch = MGL_FETCH_NONE;  // Zen 5: docs/log/007
  } else if (is_512 && strncmp(processor, "AuthenticAMD 25.", 16) == 0) {
    way.short_tokens = 8;                         // Zen 4: docs/log/305, 312
    way.one = (mgl_single_way){.in_turn = true};  // docs/log/268, 277
    way.one_long = (mgl_single_way){.fetch = MGL_FETCH_L2, .ahead = 48 << 10};
    way.long_k = 8192;
  } else if (is_bf16 && strncmp(processor, "GenuineIntel 6.", 15) == 0) {
    way.split = mgl_cpu_kernels_for(simd)->splits();  // Emerald Rapids: docs/log/185
    way.pack_tokens = 8;
    way.some_rows = 16;
  }
  return way;
}

// What a choice depends on.
static void describe(const tuner *t, const char *processor, mgl_text *out) {
  const mgl_tune_options *o = t->options;
  mgl_text_format(out, "%s, %s, %" PRIu32 " threads, nodes of memory: %" PRIu32 ", weights in %s%s",
                  processor, mgl_simd_name(o->simd), mgl_team_size(o->team),
                  mgl_topology_numa_nodes(o->topology), o->mapped ? "a file" : "memory",
                  o->shorts ? ", short rows" : "");
  const shapes *const both[] = {&t->plain, &t->codes};
  for (size_t i = 0; i < 2; i++) {
    for (uint32_t s = 0; s < both[i]->count; s++) {
      const shape *of = &both[i]->all[s];
      mgl_text_format(out, ", %" PRIu64 " MB of %s rows of %" PRIu32, of->bytes / 1000000,
                      mgl_dtype_name(of->form.dtype), of->k);
    }
  }
  mgl_text_format(out, "; ways %d, compiler " __VERSION__, WAYS_VERSION);
}

mgl_tuned mgl_cpu_tune(mgl_cpu_weights *weights, const mgl_tune_options *options,
                       mgl_linear_way *out) {
  char processor[MGL_PROCESSOR_BYTES];
  mgl_processor_name(processor);
  *out = mgl_known_way(options->simd, processor);
  tuner t = {.weights = weights,
             .options = options,
             .kernels = mgl_cpu_kernels_for(options->simd),
             .act = mgl_graph_act_dtype(weights->graph)};
  collect_shapes(&t);
  if ((t.plain.bytes < MGL_TUNE_LEAST_BYTES && t.codes.bytes < MGL_TUNE_LEAST_BYTES) ||
      options->simd == MGL_SIMD_SCALAR) {
    return MGL_TUNED_KNOWN;
  }
  mgl_text about = {0};
  mgl_error ignored = {0};
  mgl_tuned tuned = MGL_TUNED_KNOWN;
  mgl_linear_way way = *out;
  describe(&t, processor, &about);
  if (mgl_text_check(&about, &ignored) != MGL_OK) {
    mgl_text_free(&about);
    return tuned;
  }
  if (!options->again && options->folder != NULL &&
      mgl_way_cache_read(options->folder, about.data, &way) &&
      (!way.split || t.kernels->splits())) {
    tuned = MGL_TUNED_CACHED;
  } else {
    way = *out;
    if (options->shorts) {
      mgl_cpu_shorts_make(weights, options->simd, options->team, options->topology);
    }
    t.deadline_ns = mgl_clock_ns() + MGL_TUNE_MOST_NS;
    tuned = measure_all(&t, &way) ? MGL_TUNED_MEASURED : MGL_TUNED_PARTLY;
    if (tuned == MGL_TUNED_MEASURED && options->folder != NULL) {
      // A folder that cannot be written to costs the next start the same time again.
      (void)mgl_way_cache_write(options->folder, about.data, &way, &ignored);
    }
  }
  *out = way;
  mgl_text_free(&about);
  return tuned;
}
