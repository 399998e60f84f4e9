// Paged attention of a vector level. A unit is one item (up to 12 consecutive tokens of a sequence)
// and one KV head; its *pairs* are (token, query head of the group). For each split of absolute
// positions: scores of all pairs, softmax weights, weighted V; then the split is merged.
//
// K and V are loaded, and made f32, once for up to 12 pairs: register tiles of pairs x position
// vectors for the scores (K has the position fastest, so that no score needs a horizontal sum) and
// of pairs x head-dim vectors for V. Every score and every element of the result is one chain of
// FMAs, over the head dim or over the positions in ascending order, whatever the tile: the bits of
// a query do not depend on the other queries of its item.
//
// Positions after a query's own, and before its window, are masked by selection or not visited: the
// memory of unused positions may hold anything, NaN too.
//
// Included by kernels_vector.inc.h.

enum {
  split_vectors = MGL_ATTENTION_SPLIT / vec_lanes,
#if defined(__AVX512F__)
  tile_pairs = 12,
#else
  tile_pairs = 8,
#endif
  tile_vectors = 8,                        // at most
  split_pages = MGL_ATTENTION_SPLIT / 16,  // at most, with the smallest page
};

// What one unit works on. `pair` counts over token * group + head in the group.
typedef struct attention_unit {
  const mgl_attention_args *args;
  const uint32_t *positions;   // of the item's tokens
  const int32_t *block_table;  // of the item's sequence
  size_t first_token;          // row of q
  size_t first_head;           // first query head of the group
  size_t kv_head;
  size_t group;  // G
  size_t pairs;  // item tokens * G
  attention_layout layout;
  float *query_columns, *weights, *split_out, *merged_out;
  float *split_max, *split_sum, *merged_max, *merged_sum;
} attention_unit;

// One split of a unit: the pairs that reach it and the memory of its pages.
typedef struct attention_split {
  size_t begin;                        // absolute position
  size_t first_pair;                   // pairs before it end before the split
  size_t end_pair;                     // windows of pairs from it on begin behind the split
  size_t first_vector;                 // of the first position that some pair attends to
  size_t shared_begin, shared_end;     // positions that all these pairs attend to; empty: both 0
  size_t length;                       // end of the positions that some pair attends to
  const char *keys[split_vectors];     // element (d = 0) of each vector of positions
  const char *values[split_pages];     // row of the first position of each page
  const char *next_keys[split_pages];  // K of the split that comes next
  size_t next_pages;                   // of that
  size_t page_bytes;                   // of a KV head
} attention_split;

// What is fetched while something else is computed, from the first of some pages to the last, so
// that the memory is never idle and sees one ascending stream a page: while scores are computed
// from K most of this split's V, the rest of it while they become weights; while V is read most of
// the next split's K, and the rest while splits are merged. Pages lie anywhere, and a processor's
// own prefetchers stop at the end of each (docs/log/189, 260).
typedef struct attention_fetcher {
  const char *at, *end;     // of the present page; both NULL behind the last
  const char *const *next;  // the pages behind it
  size_t pages;             // of these
  size_t page_bytes;
} attention_fetcher;

enum {
  fetch_line = 64,
  fetch_lines_between = 4,  // while little is computed
  fetch_pause = 8,          // of so many steps of a tile one fetches nothing
};

// Where a register tile stands: its first pair, and its first position vector (scores) or element
// of the head dim (V, over the positions [begin, end) of the split).
typedef struct attention_tile {
  size_t pair, first, begin, end;
  attention_fetcher *fetcher;  // of the first pairs; NULL: of the others, which read K or V again
} attention_tile;

// mgl_dtype_bytes, as a constant.
INLINE size_t kv_bytes_of(mgl_dtype dtype) {
  return dtype == MGL_DTYPE_KV8 ? 1 : dtype == MGL_DTYPE_BF16 ? 2 : 4;
}

static size_t smaller(size_t a, size_t b) {
  return a < b ? a : b;
}

static attention_fetcher fetch_pages(const char *const *pages, size_t count, size_t page_bytes) {
  attention_fetcher f = {.next = pages, .pages = count, .page_bytes = page_bytes};
  return f;
}

static void next_page(attention_fetcher *f) {
  f->at = f->end = NULL;
  if (f->pages > 0) {
    f->at = *f->next++;
    f->end = f->at + f->page_bytes;
    f->pages--;
  }
}

// The next `bytes` bytes; at a page's end there may be fewer left.
INLINE void fetch_more(attention_fetcher *f, size_t bytes) {
  if (f->at >= f->end) {
    next_page(f);
  }
  if (f->at != NULL) {
    UNROLL for (size_t i = 0; i < bytes; i += fetch_line) {
      FETCH_L2(f->at + i);
    }
    f->at += bytes;
  }
}

static void fetch_rest(attention_fetcher *f) {
  while (f->at < f->end || f->pages > 0) {
    fetch_more(f, fetch_line);
  }
}

// The largest power of two up to both count and limit (a power of two).
static size_t tile_size(size_t count, size_t limit) {
  size_t size = limit;
  while (size > count) {
    size /= 2;
  }
  return size;
}

// Pairs of a tile when `count` are left; and how many vectors it may have then.
static size_t pairs_of_tile(size_t count) {
  return count >= tile_pairs ? (size_t)tile_pairs : tile_size(count, 8);
}

static size_t vectors_of_tile(size_t pairs) {
  return pairs > 8 ? 2 : smaller(tile_vectors, vec_accumulators / pairs);
}

// The positions of the split that a pair attends to end here,
static size_t pair_length(const attention_unit *unit, const attention_split *split, size_t pair) {
  size_t count = (size_t)unit->positions[pair / unit->group] + 1 - split->begin;
  return smaller(count, MGL_ATTENTION_SPLIT);
}

// and begin here.
static size_t pair_begin(const attention_unit *unit, const attention_split *split, size_t pair) {
  size_t first = mgl_attention_first(unit->args, unit->positions[pair / unit->group]);
  return first > split->begin ? first - split->begin : 0;
}

static attention_unit unit_start(const mgl_attention_args *args, float *scratch, size_t index) {
  size_t kv_heads = args->kv.kv_head_count, group = args->head_count / kv_heads;
  const mgl_attention_item *item = &args->items[index / kv_heads];
  attention_layout layout = mgl_attention_layout((uint32_t)group, args->kv.head_dim);
  attention_unit unit = {
      .args = args,
      .positions = args->positions + item->query_begin,
      .block_table = args->block_tables + (size_t)item->sequence * args->block_table_stride,
      .first_token = item->query_begin,
      .first_head = index % kv_heads * group,
      .kv_head = index % kv_heads,
      .group = group,
      .pairs = item->query_count * group,
      .layout = layout,
      .query_columns = scratch + layout.query_columns,
      .weights = scratch + layout.weights,
      .split_out = scratch + layout.split_out,
      .merged_out = scratch + layout.merged_out,
      .split_max = scratch + layout.split_max,
      .split_sum = scratch + layout.split_sum,
      .merged_max = scratch + layout.merged_max,
      .merged_sum = scratch + layout.merged_sum,
  };
  return unit;
}

// Token and head of a pair as a row of out.
static size_t pair_row(const attention_unit *unit, size_t pair) {
  size_t token = unit->first_token + pair / unit->group;
  return token * unit->args->head_count + unit->first_head + pair % unit->group;
}

static const float *query_of(const attention_unit *unit, size_t pair) {
  size_t head = unit->first_head - unit->args->q_head_begin + pair % unit->group;
  return unit->args->q + (unit->first_token + pair / unit->group) * unit->args->q_stride +
         head * unit->args->kv.head_dim;
}

// Four pairs at a time, in squares of four elements.
static void gather_four_queries(const attention_unit *unit, size_t pair) {
  size_t head_dim = unit->args->kv.head_dim, i = 0;
  const float *q[4];
  for (size_t j = 0; j < 4; j++) {
    q[j] = query_of(unit, pair + j);
  }
  float *out = unit->query_columns + pair;
  for (; i + 4 <= head_dim; i += 4) {
    vec4 a = vec4_load(q[0] + i), b = vec4_load(q[1] + i);
    vec4 c = vec4_load(q[2] + i), d = vec4_load(q[3] + i);
    UNROLL for (size_t j = 0; j < 4; j++) {
      vec4_store(out + (i + j) * unit->pairs, (vec4){a[j], b[j], c[j], d[j]});
    }
  }
  for (; i < head_dim; i++) {
    for (size_t j = 0; j < 4; j++) {
      out[i * unit->pairs + j] = q[j][i];
    }
  }
}

static void gather_queries(const attention_unit *unit) {
  size_t pair = 0;
  for (; pair + 4 <= unit->pairs; pair += 4) {
    gather_four_queries(unit, pair);
  }
  for (; pair < unit->pairs; pair++) {
    const float *q = query_of(unit, pair);
    for (size_t i = 0; i < unit->args->kv.head_dim; i++) {
      unit->query_columns[i * unit->pairs + pair] = q[i];
    }
  }
}

// Where K of a page of one KV head begins; V has the same layout of pages and heads.
INLINE size_t block_of(const mgl_kv_layer *kv, size_t page, size_t kv_head) {
  return mgl_kv_block(kv, page, kv_head) * mgl_dtype_bytes(kv->dtype);
}

static void list_next(const mgl_kv_layer *kv, const mgl_attention_range *next,
                      attention_split *split) {
  size_t end = next->begin / MGL_ATTENTION_SPLIT * MGL_ATTENTION_SPLIT + MGL_ATTENTION_SPLIT;
  end = smaller(next->end, end);
  for (size_t p = next->begin / kv->page_tokens * kv->page_tokens; p < end; p += kv->page_tokens) {
    size_t page = (size_t)next->block_table[p / kv->page_tokens];
    split->next_keys[split->next_pages++] = (const char *)kv->k + block_of(kv, page, next->kv_head);
  }
}

// Which pairs reach the split, and which positions they attend to.
static void find_pairs(const attention_unit *unit, attention_split *split) {
  size_t token = 0, tokens = unit->pairs / unit->group;
  while (unit->positions[token] < split->begin) {
    token++;
  }
  split->first_pair = token * unit->group;
  while (token < tokens && mgl_attention_first(unit->args, unit->positions[token]) <
                               split->begin + MGL_ATTENTION_SPLIT) {
    token++;
  }
  split->end_pair = token * unit->group;
  split->first_vector = pair_begin(unit, split, split->first_pair) / vec_lanes;
  split->shared_begin = pair_begin(unit, split, split->end_pair - 1);
  split->shared_end = pair_length(unit, split, split->first_pair);
  split->length = pair_length(unit, split, split->end_pair - 1);
  if (split->shared_begin >= split->shared_end) {  // of a short window
    split->shared_begin = split->shared_end = 0;
  }
}

// `after`: what comes behind this unit.
static attention_split split_start(const attention_unit *unit, size_t begin,
                                   const mgl_attention_range *after) {
  const mgl_kv_layer *kv = &unit->args->kv;
  attention_split split = {.begin = begin};
  split.page_bytes = (size_t)kv->page_tokens * kv->head_dim * mgl_dtype_bytes(kv->dtype);
  find_pairs(unit, &split);
  size_t bytes = mgl_dtype_bytes(kv->dtype), page_tokens = kv->page_tokens;
  size_t first = split.first_vector * vec_lanes / page_tokens * page_tokens;
  for (size_t p = first; p < split.length; p += page_tokens) {
    size_t block =
        block_of(kv, (size_t)unit->block_table[(begin + p) / page_tokens], unit->kv_head);
    split.values[p / page_tokens] = (const char *)kv->v + block;
    const char *keys = (const char *)kv->k + block;
    for (size_t offset = 0; offset < page_tokens; offset += vec_lanes) {
      split.keys[(p + offset) / vec_lanes] = keys + offset * bytes;
    }
  }
  size_t next = begin + MGL_ATTENTION_SPLIT;
  size_t last = (size_t)unit->positions[(unit->pairs - 1) / unit->group] + 1;
  if (next < last) {
    mgl_attention_range rest = {unit->block_table, (uint32_t)unit->kv_head, next, last};
    list_next(kv, &rest, &split);
  } else if (after->block_table != NULL) {
    list_next(kv, after, &split);
  }
  return split;
}

// Scores of `pairs` pairs at `vectors` vectors of positions; the last ones of a page may be those
// of unused positions.
INLINE void score_tile(const attention_unit *unit, const attention_split *split, attention_tile at,
                       size_t pairs, size_t vectors, mgl_dtype dtype) {
  size_t head_dim = unit->args->kv.head_dim;
  size_t page_tokens = unit->args->kv.page_tokens, bytes = kv_bytes_of(dtype);
  size_t key_stride = page_tokens * bytes;
  attention_fetcher f = at.fetcher != NULL ? *at.fetcher : fetch_pages(NULL, 0, 0);
  vec acc[tile_pairs][tile_vectors];
  UNROLL for (size_t j = 0; j < pairs; j++) {
    UNROLL for (size_t v = 0; v < vectors; v++) {
      acc[j][v] = vec_zero();
    }
  }
  const float *q = unit->query_columns + at.pair;
  for (size_t i = 0; i < head_dim; i++, q += unit->pairs) {
    vec keys[tile_vectors];
    if (i % fetch_pause > 0) {
      fetch_more(&f, vectors * vec_lanes * bytes);
    }
    UNROLL for (size_t v = 0; v < vectors; v++) {
      keys[v] = kv_load(split->keys[at.first + v] + i * key_stride, dtype);
    }
    UNROLL for (size_t j = 0; j < pairs; j++) {
      vec query = vec_set(q[j]);
      UNROLL for (size_t v = 0; v < vectors; v++) {
        acc[j][v] = vec_fma(query, keys[v], acc[j][v]);
      }
    }
  }
  if (at.fetcher != NULL) {
    *at.fetcher = f;
  }
  const float key_scale = mgl_kv_k_scale(&unit->args->kv) * kv_unit(dtype);
  vec scale = vec_set(unit->args->scale * key_scale);
  UNROLL for (size_t j = 0; j < pairs; j++) {
    float *out = unit->weights + (at.pair + j) * MGL_ATTENTION_SPLIT + at.first * vec_lanes;
    UNROLL for (size_t v = 0; v < vectors; v++) {
      vec_store(out + v * vec_lanes, vec_mul(acc[j][v], scale));
    }
  }
}

// Adds weight * V to split_out; with one vector, the last elements may be partial.
INLINE void value_tile(const attention_unit *unit, const attention_split *split, attention_tile at,
                       size_t pairs, size_t vectors, mgl_dtype dtype) {
  size_t bytes = kv_bytes_of(dtype), head_dim = unit->args->kv.head_dim;
  size_t page_tokens = unit->args->kv.page_tokens, width = unit->layout.width;
  size_t row_bytes = head_dim * bytes;
  vec acc[tile_pairs][tile_vectors];
  float *out = unit->split_out + at.pair * width + at.first;
  UNROLL for (size_t j = 0; j < pairs; j++) {
    UNROLL for (size_t v = 0; v < vectors; v++) {
      acc[j][v] = vec_load(out + j * width + v * vec_lanes);
    }
  }
  const float *weights = unit->weights + at.pair * MGL_ATTENTION_SPLIT;
  attention_fetcher f = at.fetcher != NULL ? *at.fetcher : fetch_pages(NULL, 0, 0);
  for (size_t p = at.begin; p < at.end;) {
    size_t page = p / page_tokens, offset = p % page_tokens * row_bytes + at.first * bytes;
    const char *row = split->values[page] + offset;
    size_t page_end = smaller(at.end, (page + 1) * page_tokens);
    for (; p < page_end; p++, row += row_bytes) {
      vec values[tile_vectors];
      if (p % fetch_pause > 0) {
        fetch_more(&f, vectors * vec_lanes * bytes);
      }
      UNROLL for (size_t v = 0; v < vectors; v++) {
        values[v] = vectors > 1 ? kv_load(row + v * vec_lanes * bytes, dtype)
                                : kv_load_up_to(row, dtype, head_dim - at.first);
      }
      UNROLL for (size_t j = 0; j < pairs; j++) {
        vec weight = vec_set(weights[j * MGL_ATTENTION_SPLIT + p]);
        UNROLL for (size_t v = 0; v < vectors; v++) {
          acc[j][v] = vec_fma(weight, values[v], acc[j][v]);
        }
      }
    }
  }
  if (at.fetcher != NULL) {
    *at.fetcher = f;
  }
  UNROLL for (size_t j = 0; j < pairs; j++) {
    UNROLL for (size_t v = 0; v < vectors; v++) {
      vec_store(out + j * width + v * vec_lanes, acc[j][v]);
    }
  }
}

// Calls CALL(pairs, vectors, dtype) with constants: pairs * vectors is at most vec_accumulators, or
// 24.
#define TILE_CASE(pairs, vectors, CALL)     \
  case (pairs)*16 + (vectors):              \
    if (dtype == MGL_DTYPE_BF16) {          \
      CALL(pairs, vectors, MGL_DTYPE_BF16); \
    } else if (dtype == MGL_DTYPE_KV8) {    \
      CALL(pairs, vectors, MGL_DTYPE_KV8);  \
    } else {                                \
      CALL(pairs, vectors, MGL_DTYPE_F32);  \
    }                                       \
    break
#if defined(__AVX512F__)
#define WIDE_TILE_CASES(CALL) \
  TILE_CASE(12, 2, CALL);     \
  TILE_CASE(12, 1, CALL);     \
  TILE_CASE(8, 2, CALL);      \
  TILE_CASE(4, 4, CALL);      \
  TILE_CASE(2, 8, CALL)
#else
#define WIDE_TILE_CASES(CALL)
#endif
#define TILE_SWITCH(pairs, vectors, CALL)  \
  switch ((pairs)*16 + (vectors)) {        \
    WIDE_TILE_CASES(CALL);                 \
    TILE_CASE(8, 1, CALL);                 \
    TILE_CASE(4, 2, CALL);                 \
    TILE_CASE(4, 1, CALL);                 \
    TILE_CASE(2, 4, CALL);                 \
    TILE_CASE(2, 2, CALL);                 \
    TILE_CASE(2, 1, CALL);                 \
    TILE_CASE(1, 8, CALL);                 \
    TILE_CASE(1, 4, CALL);                 \
    TILE_CASE(1, 2, CALL);                 \
    TILE_CASE(1, 1, CALL);                 \
    default: assert(false && "tile size"); \
  }

static void split_scores(const attention_unit *unit, const attention_split *split,
                         attention_fetcher *fetcher) {
  const mgl_dtype dtype = unit->args->kv.dtype;
  size_t vector_count = (split->length + vec_lanes - 1) / vec_lanes;
  for (size_t pair = split->first_pair, pairs; pair < split->end_pair; pair += pairs) {
    pairs = pairs_of_tile(split->end_pair - pair);
    size_t limit = vectors_of_tile(pairs);
    for (size_t vector = split->first_vector, vectors; vector < vector_count; vector += vectors) {
      vectors = tile_size(vector_count - vector, limit);
      attention_tile at = {.pair = pair, .first = vector};
      at.fetcher = pair == split->first_pair ? fetcher : NULL;
#define SCORE_TILE(pairs_, vectors_, dtype_) score_tile(unit, split, at, pairs_, vectors_, dtype_)
      TILE_SWITCH(pairs, vectors, SCORE_TILE)
    }
  }
}

// Weighted V of pairs [first, end) over positions [from, to) of the split.
static void split_values(const attention_unit *unit, const attention_split *split, size_t first,
                         size_t end, size_t from, size_t to, attention_fetcher *fetcher) {
  const mgl_dtype dtype = unit->args->kv.dtype;
  size_t head_dim = unit->args->kv.head_dim;
  for (size_t pair = first, pairs; pair < end; pair += pairs) {
    pairs = pairs_of_tile(end - pair);
    size_t limit = vectors_of_tile(pairs);
    for (size_t i = 0, vectors; i < head_dim; i += vectors * vec_lanes) {
      vectors = tile_size((head_dim - i + vec_lanes - 1) / vec_lanes, limit);
      if (vectors > 1 && i + vectors * vec_lanes > head_dim) {
        vectors /= 2;  // the partial vector stands alone
      }
      attention_tile at = {.pair = pair, .first = i, .begin = from, .end = to};
      at.fetcher = pair == first ? fetcher : NULL;
#define VALUE_TILE(pairs_, vectors_, dtype_) value_tile(unit, split, at, pairs_, vectors_, dtype_)
      TILE_SWITCH(pairs, vectors, VALUE_TILE)
    }
  }
}

static float max_lane(vec a) {
  float lanes[vec_lanes];
  vec_store(lanes, a);
  float max = lanes[0];
  for (int i = 1; i < vec_lanes; i++) {
    max = lanes[i] > max ? lanes[i] : max;
  }
  return max;
}

// Scores of a pair at the positions [begin, end) to weights exp(score - max), zero up to the ends
// of their vectors. Returns their sum.
static float softmax(float *weights, size_t begin, size_t end, attention_fetcher *fetcher,
                     float *max_out) {
  vec minus_infinity = vec_set(-INFINITY), max = minus_infinity, sum = vec_zero();
  size_t first = begin / vec_lanes * vec_lanes;
  for (size_t p = first; p < end; p += vec_lanes) {
    vec score = vec_load(weights + p);
    if (end - p < vec_lanes || p < begin) {
      score = end - p < vec_lanes ? vec_select(end - p, score, minus_infinity) : score;
      score = p < begin ? vec_select(begin - p, minus_infinity, score) : score;
      vec_store(weights + p, score);
    }
    max = vec_max(max, score);
  }
  *max_out = max_lane(max);
  vec offset = vec_set(*max_out);
  for (size_t p = first; p < end; p += vec_lanes) {
    fetch_more(fetcher, fetch_lines_between * fetch_line);
    vec weight = vec_exp(vec_sub(vec_load(weights + p), offset));
    vec_store(weights + p, weight);
    sum = vec_add(sum, weight);
  }
  return sum_lanes(sum);
}

static float exp_of(float x) {
  return sum_lanes(vec_select(1, vec_exp(vec_set(x)), vec_zero()));
}

// Merges the split's (max, sum, weighted V) of a pair into what came before.
static void merge(const attention_unit *unit, const attention_split *split, size_t pair,
                  attention_fetcher *fetcher) {
  float max = unit->split_max[pair], sum = unit->split_sum[pair];
  size_t width = unit->layout.width;
  float *merged = unit->merged_out + pair * width, *split_out = unit->split_out + pair * width;
  if (mgl_attention_first(unit->args, unit->positions[pair / unit->group]) >= split->begin) {
    memcpy(merged, split_out, width * sizeof *merged);
    unit->merged_max[pair] = max;
    unit->merged_sum[pair] = sum;
    return;
  }
  float old_max = unit->merged_max[pair], new_max = old_max > max ? old_max : max;
  float old_scale = exp_of(old_max - new_max), split_scale = exp_of(max - new_max);
  for (size_t i = 0; i < width; i += vec_lanes) {
    fetch_more(fetcher, fetch_lines_between * fetch_line);
    vec old = vec_mul(vec_load(merged + i), vec_set(old_scale));
    vec_store(merged + i, vec_fma(vec_load(split_out + i), vec_set(split_scale), old));
  }
  unit->merged_max[pair] = new_max;
  unit->merged_sum[pair] = unit->merged_sum[pair] * old_scale + sum * split_scale;
}

// Weighted V of all pairs. The positions are taken in ascending order whatever the other pairs of
// the item attend to: those that only earlier tokens do, those that all do, the others.
static void attend_values(const attention_unit *unit, const attention_split *split,
                          attention_fetcher *fetcher) {
  const size_t begin = split->shared_begin, end = split->shared_end;
  for (size_t pair = split->first_pair; pair < split->end_pair; pair += unit->group) {
    size_t first = pair_begin(unit, split, pair);
    size_t last = begin < end ? begin : pair_length(unit, split, pair);
    if (first < last) {
      split_values(unit, split, pair, pair + unit->group, first, last, fetcher);
    }
  }
  if (begin == end) {
    return;
  }
  split_values(unit, split, split->first_pair, split->end_pair, begin, end, fetcher);
  for (size_t pair = split->first_pair; pair < split->end_pair; pair += unit->group) {
    size_t last = pair_length(unit, split, pair);
    if (last > end) {
      split_values(unit, split, pair, pair + unit->group, end, last, fetcher);
    }
  }
}

static void attend_split(const attention_unit *unit, const attention_split *split) {
  size_t first = split->first_pair, end = split->end_pair, width = unit->layout.width;
  size_t first_page = split->first_vector * vec_lanes / unit->args->kv.page_tokens;
  size_t page_end = (split->length - 1) / unit->args->kv.page_tokens + 1;
  attention_fetcher fetcher =
      fetch_pages(split->values + first_page, page_end - first_page, split->page_bytes);
  split_scores(unit, split, &fetcher);
  for (size_t pair = first; pair < end; pair++) {
    unit->split_sum[pair] =
        softmax(unit->weights + pair * MGL_ATTENTION_SPLIT, pair_begin(unit, split, pair),
                pair_length(unit, split, pair), &fetcher, &unit->split_max[pair]);
  }
  fetch_rest(&fetcher);
  memset(unit->split_out + first * width, 0, (end - first) * width * sizeof(float));
  fetcher = fetch_pages(split->next_keys, split->next_pages, split->page_bytes);
  attend_values(unit, split, &fetcher);
  for (size_t pair = first; pair < end; pair++) {
    merge(unit, split, pair, &fetcher);
  }
  fetch_rest(&fetcher);
}

// What unit `index` attends to.
static mgl_attention_range range_of(const mgl_attention_args *args, size_t index) {
  const mgl_attention_item *item = &args->items[index / args->kv.kv_head_count];
  const uint32_t *positions = args->positions + item->query_begin;
  return (mgl_attention_range){
      .block_table = args->block_tables + (size_t)item->sequence * args->block_table_stride,
      .kv_head = (uint32_t)(index % args->kv.kv_head_count),
      .begin = mgl_attention_first(args, positions[0]),
      .end = (size_t)positions[item->query_count - 1] + 1,
  };
}

static void attention(const mgl_attention_args *args, void *scratch, size_t begin, size_t end) {
  size_t head_dim = args->kv.head_dim;
  vec scale = vec_set(mgl_kv_v_scale(&args->kv) * kv_unit(args->kv.dtype));
  for (size_t index = begin; index < end; index++) {
    attention_unit unit = unit_start(args, scratch, index);
    mgl_attention_range range = range_of(args, index);
    mgl_attention_range after = index + 1 < end ? range_of(args, index + 1) : args->next;
    gather_queries(&unit);
    for (size_t position = range.begin / MGL_ATTENTION_SPLIT * MGL_ATTENTION_SPLIT;
         position < range.end; position += MGL_ATTENTION_SPLIT) {
      attention_split split = split_start(&unit, position, &after);
      attend_split(&unit, &split);
    }
    for (size_t pair = 0; pair < unit.pairs; pair++) {
      const float *merged = unit.merged_out + pair * unit.layout.width;
      size_t row = pair_row(&unit, pair) * head_dim;
      float all = unit.merged_sum[pair];
      if (args->sinks != NULL) {  // of one far above all scores: infinite, and the result is 0
        all += exp_of(args->sinks[unit.first_head + pair % unit.group] - unit.merged_max[pair]);
      }
      vec sum = vec_set(all);
      for (size_t i = 0; i < head_dim; i += vec_lanes) {
        store_up_to(args->out, args->out_dtype, row + i, head_dim - i,
                    vec_div(vec_mul(vec_load(merged + i), scale), sum));
      }
    }
  }
}
