// Paged attention of every level: against a double-precision reference, and the numerics contract.
//
// Bound. A score has HD products in one chain and one multiplication by the scale: its error is at
// most ds = (HD + 2) u scale sum|q k|. A weight exp(s - max) then has a relative error of at most
// e = 2 ds (score and maximum) + u |s - max| (the difference) + 4 u (exp, and the rescaling of its
// split). Numerator and denominator are chains of at most 256 terms and a merge per split, 3 u
// each. Together, to first order, |error| <= 2 (e + (256 + 3 splits + 2) u) sum(w |v|) / sum(w).
// The factor 1.1 covers the second order. A cache of codes has scales: one product more in a score,
// and one in a result.
#include "kernel_test.h"

enum { max_sequences = 8 };

// A cache with shuffled pages of several sequences; everything unused is poisoned with NaN.
typedef struct cache {
  mgl_kv_layer kv;
  guarded k, v;
  int32_t *block_tables;
  size_t table_stride, sequence_count;
  size_t lengths[max_sequences];
} cache;

typedef struct shape {
  uint32_t kv_heads, group, head_dim, page_tokens;
  mgl_dtype kv_dtype, out_dtype;
  uint32_t window;     // 0: none
  const float *sinks;  // [kv_heads * group]; NULL: none
} shape;

// Elements before a page of a head: whole blocks of 1024 tokens of all heads, then, in a block of
// as many pages as are left, other heads and pages.
static size_t page_index(const mgl_kv_layer *kv, size_t page, size_t head) {
  size_t whole = 1024 / kv->page_tokens, before = page / whole * whole;
  size_t pages = kv->page_count - before > whole ? whole : kv->page_count - before;
  size_t index = before * kv->kv_head_count + head * pages + page % whole;
  return index * kv->page_tokens * kv->head_dim;
}

static size_t key_index(const mgl_kv_layer *kv, size_t slot, size_t head, size_t i) {
  size_t page = slot / kv->page_tokens, offset = slot % kv->page_tokens;
  return page_index(kv, page, head) + i * kv->page_tokens + offset;
}

static size_t value_index(const mgl_kv_layer *kv, size_t slot, size_t head, size_t i) {
  size_t page = slot / kv->page_tokens, offset = slot % kv->page_tokens;
  return page_index(kv, page, head) + offset * kv->head_dim + i;
}

static size_t cache_slot(const cache *c, size_t s, size_t position) {
  size_t page = (size_t)c->block_tables[s * c->table_stride + position / c->kv.page_tokens];
  return page * c->kv.page_tokens + position % c->kv.page_tokens;
}

static void shuffle(int32_t *pages, size_t count) {
  for (size_t i = count; i > 1; i--) {
    size_t j = random_below((uint32_t)i);
    int32_t page = pages[i - 1];
    pages[i - 1] = pages[j];
    pages[j] = page;
  }
}

static cache cache_create(const shape *sh, const size_t *lengths, size_t sequence_count) {
  cache c = {.sequence_count = sequence_count};
  size_t page_count = 0, per_page = sh->page_tokens;
  for (size_t s = 0; s < sequence_count; s++) {
    size_t pages = (lengths[s] + per_page - 1) / per_page;
    c.lengths[s] = lengths[s];
    page_count += pages;
    c.table_stride = pages > c.table_stride ? pages : c.table_stride;
  }
  page_count += 2;
  size_t elements = page_count * per_page * sh->kv_heads * sh->head_dim;
  c.k = guarded_create(elements * mgl_dtype_bytes(sh->kv_dtype), 0);
  c.v = guarded_create(elements * mgl_dtype_bytes(sh->kv_dtype), 0);
  c.kv = (mgl_kv_layer){c.k.data,     c.v.data, sh->kv_dtype, sh->page_tokens,     sh->kv_heads,
                        sh->head_dim, 0.37f,    0.0019f,      (uint32_t)page_count};
  int32_t *pages = malloc(page_count * sizeof *pages);
  c.block_tables = malloc(sequence_count * c.table_stride * sizeof *c.block_tables);
  for (size_t i = 0; i < page_count; i++) {
    pages[i] = (int32_t)i;
  }
  shuffle(pages, page_count);
  size_t next = 0;
  for (size_t s = 0; s < sequence_count; s++) {
    for (size_t i = 0; i < c.table_stride; i++) {
      bool used = i * per_page < lengths[s];
      c.block_tables[s * c.table_stride + i] = used ? pages[next++] : -1;
    }
    for (size_t p = 0; p < lengths[s]; p++) {
      for (size_t head = 0; head < sh->kv_heads; head++) {
        for (size_t i = 0; i < sh->head_dim; i++) {
          size_t slot = cache_slot(&c, s, p);
          element_store(c.kv.k, sh->kv_dtype, key_index(&c.kv, slot, head, i), random_float());
          element_store(c.kv.v, sh->kv_dtype, value_index(&c.kv, slot, head, i), random_float());
        }
      }
    }
  }
  free(pages);
  return c;
}

static void cache_destroy(cache *c) {
  guarded_destroy(&c->k);
  guarded_destroy(&c->v);
  free(c->block_tables);
}

// The cache's K and V in double, as the reference reads them: [position of a sequence, head, dim].
typedef struct exact_cache {
  double *k, *v;
  size_t first[max_sequences];  // position 0 of each sequence
} exact_cache;

static exact_cache exact_create(const cache *c, const shape *sh) {
  const mgl_kv_layer *kv = &c->kv;
  const bool scaled = kv->dtype == MGL_DTYPE_KV8;
  const double k_scale = scaled ? (double)kv->k_scale : 1;
  const double v_scale = scaled ? (double)kv->v_scale : 1;
  exact_cache e = {0};
  size_t positions = 0;
  for (size_t s = 0; s < c->sequence_count; s++) {
    e.first[s] = positions;
    positions += c->lengths[s];
  }
  const size_t elements = positions * sh->kv_heads * sh->head_dim;
  e.k = malloc((elements + 1) * sizeof *e.k);
  e.v = malloc((elements + 1) * sizeof *e.v);
  size_t at = 0;
  for (size_t s = 0; s < c->sequence_count; s++) {
    for (size_t p = 0; p < c->lengths[s]; p++) {
      const size_t slot = cache_slot(c, s, p);
      for (size_t head = 0; head < sh->kv_heads; head++) {
        for (size_t i = 0; i < sh->head_dim; i++, at++) {
          e.k[at] = k_scale * (double)element_load(kv->k, kv->dtype, key_index(kv, slot, head, i));
          e.v[at] =
              v_scale * (double)element_load(kv->v, kv->dtype, value_index(kv, slot, head, i));
        }
      }
    }
  }
  return e;
}

static void exact_destroy(exact_cache *e) {
  free(e->k);
  free(e->v);
}

// What one query row of a token gives, softmax in double, and how far from it a kernel may be: both
// [head_dim]. head: of all query heads.
static void reference_of(const exact_cache *e, const shape *sh, size_t s, size_t position,
                         size_t head, const float *q, double *expected, double *bound) {
  const float scale = 1.0f / sqrtf((float)sh->head_dim);
  const bool scaled = sh->kv_dtype == MGL_DTYPE_KV8;
  const size_t head_dim = sh->head_dim, count = position + 1, kv_head = head / sh->group;
  const size_t first = sh->window != 0 && count > sh->window ? count - sh->window : 0;
  const size_t stride = (size_t)sh->kv_heads * head_dim;
  const double *k = e->k + e->first[s] * stride + kv_head * head_dim;
  const double *v = e->v + e->first[s] * stride + kv_head * head_dim;
  double *scores = malloc(count * sizeof *scores);
  double max = -INFINITY, min = INFINITY, magnitude = 0, sum = 0;
  for (size_t p = first; p < count; p++) {
    double score = 0, absolute = 0;
    for (size_t i = 0; i < head_dim; i++) {
      double product = (double)q[i] * k[p * stride + i];
      score += product;
      absolute += fabs(product);
    }
    scores[p] = score * (double)scale;
    max = fmax(max, scores[p]);
    min = fmin(min, scores[p]);
    magnitude = fmax(magnitude, absolute * (double)scale);
  }
  for (size_t p = first; p < count; p++) {
    scores[p] = exp(scores[p] - max);
    sum += scores[p];
  }
  if (sh->sinks != NULL) {
    double sink = (double)sh->sinks[head];
    sum += exp(sink - max);
    magnitude += isfinite(sink) ? fabs(sink - max) : 0;  // which is rounded, too
  }
  double u = F32_ROUNDOFF, splits = (double)(position / MGL_ATTENTION_SPLIT + 1);
  double weight_error =
      2 * ((double)head_dim + 2 + scaled) * u * magnitude + u * (max - min) + 4 * u;
  double relative = 2.2 * (weight_error + (256 + 3 * splits + 2 + scaled) * u);
  for (size_t i = 0; i < head_dim; i++) {
    expected[i] = bound[i] = 0;
  }
  for (size_t p = first; p < count; p++) {
    for (size_t i = 0; i < head_dim; i++) {
      expected[i] += scores[p] * v[p * stride + i];
      bound[i] += scores[p] * fabs(v[p * stride + i]);
    }
  }
  for (size_t i = 0; i < head_dim; i++) {
    // A sink far above all scores makes the sum infinite where the quotient is no normal number.
    expected[i] /= sum;
    bound[i] = relative * bound[i] / sum + (double)count * 0x1p-126;
  }
  free(scores);
}

// Tokens of a call: the last `counts[s]` positions of each sequence, sequences one after another.
typedef struct batch {
  size_t tokens, item_count;
  uint32_t *positions, *sequences;
  mgl_attention_item *items;
  float *q;
} batch;

static batch batch_create(const cache *c, const shape *sh, const size_t *counts, size_t tile) {
  batch b = {0};
  for (size_t s = 0; s < c->sequence_count; s++) {
    b.tokens += counts[s];
  }
  b.positions = malloc(b.tokens * sizeof *b.positions);
  b.sequences = malloc(b.tokens * sizeof *b.sequences);
  b.items = malloc(b.tokens * sizeof *b.items);
  size_t row = (size_t)sh->kv_heads * sh->group * sh->head_dim;
  b.q = malloc(b.tokens * row * sizeof *b.q);
  fill_random(b.q, MGL_DTYPE_F32, b.tokens * row);
  size_t t = 0;
  for (size_t s = 0; s < c->sequence_count; s++) {
    for (size_t done = 0, step; done < counts[s]; done += step) {
      step = counts[s] - done < tile ? counts[s] - done : tile;
      b.items[b.item_count++] = (mgl_attention_item){(uint32_t)s, (uint32_t)t, (uint32_t)step};
      for (size_t i = 0; i < step; i++, t++) {
        b.positions[t] = (uint32_t)(c->lengths[s] - counts[s] + done + i);
        b.sequences[t] = (uint32_t)s;
      }
    }
  }
  return b;
}

static void batch_destroy(batch *b) {
  free(b->positions);
  free(b->sequences);
  free(b->items);
  free(b->q);
}

static mgl_attention_args run_args(const cache *c, const shape *sh, const batch *b,
                                   const guarded *out) {
  return (mgl_attention_args){
      .q = b->q,
      .q_stride = (size_t)sh->kv_heads * sh->group * sh->head_dim,
      .items = b->items,
      .positions = b->positions,
      .block_tables = c->block_tables,
      .block_table_stride = (uint32_t)c->table_stride,
      .kv = c->kv,
      .head_count = sh->kv_heads * sh->group,
      .window = sh->window,
      .scale = 1.0f / sqrtf((float)sh->head_dim),
      .sinks = sh->sinks,
      .out = out->data,
      .out_dtype = sh->out_dtype,
  };
}

static void run(size_t l, const cache *c, const shape *sh, const batch *b, const guarded *out) {
  mgl_attention_args args = run_args(c, sh, b, out);
  size_t bytes = mgl_attention_scratch_bytes(args.head_count, sh->kv_heads, sh->head_dim);
  guarded scratch = guarded_create(bytes, 0);
  size_t units = b->item_count * sh->kv_heads;
  for (size_t unit = 0, end; unit < units; unit = end) {
    end = unit + 1 + random_below((uint32_t)(units - unit));
    level(l)->attention(&args, scratch.data, unit, end);
  }
  guarded_destroy(&scratch);
}

static size_t out_bytes(const shape *sh, const batch *b) {
  return b->tokens * sh->kv_heads * sh->group * sh->head_dim * mgl_dtype_bytes(sh->out_dtype);
}

// Every level's output against a reference that is computed once, which takes longest.
static void check_shape(const shape *sh, const size_t *lengths, const size_t *counts,
                        size_t sequence_count) {
  if (!takes_case()) {
    return;
  }
  cache c = cache_create(sh, lengths, sequence_count);
  batch b = batch_create(&c, sh, counts, 1 + random_below(MGL_ATTENTION_QUERY_TILE));
  exact_cache exact = exact_create(&c, sh);
  const size_t heads = (size_t)sh->kv_heads * sh->group, rows = b.tokens * heads;
  double *expected = malloc(rows * sh->head_dim * sizeof *expected);
  double *bound = malloc(rows * sh->head_dim * sizeof *bound);
  for (size_t row = 0; row < rows; row++) {
    const size_t t = row / heads, at = row * sh->head_dim;
    reference_of(&exact, sh, b.sequences[t], b.positions[t], row % heads, b.q + at, expected + at,
                 bound + at);
  }
  for (size_t l = 0; l < level_count(); l++) {
    guarded out = guarded_create(out_bytes(sh, &b), 0);
    run(l, &c, sh, &b, &out);
    for (size_t i = 0; i < rows * sh->head_dim; i++) {
      check_close(element_load(out.data, sh->out_dtype, i), expected[i], bound[i], sh->out_dtype);
    }
    guarded_destroy(&out);
  }
  free(expected);
  free(bound);
  exact_destroy(&exact);
  batch_destroy(&b);
  cache_destroy(&c);
}

static void attention_matches_reference(void **state) {
  (void)state;
  static const uint32_t head_dims[] = {2, 30, 64, 80, 128, 512};
  static const uint32_t groups[] = {1, 2, 3, 4, 5, 7, 8, 12};
  for (size_t i = 0; i < sizeof head_dims / sizeof *head_dims; i++) {
    for (size_t j = 0; j < sizeof groups / sizeof *groups; j++) {
      mgl_dtype kv_dtype = random_kv_dtype();
      mgl_dtype out_dtype = random_below(2) ? MGL_DTYPE_BF16 : MGL_DTYPE_F32;
      shape sh = {1 + random_below(2), groups[j], head_dims[i], 16u << random_below(3), kv_dtype,
                  out_dtype,           0,         NULL};
      size_t lengths[] = {1 + random_below(40), 17};
      size_t counts[] = {1 + random_below((uint32_t)lengths[0]), 1};
      check_shape(&sh, lengths, counts, 2);
    }
  }
}

// Around the ends of vectors, pages and splits; as decode and as prefill that ends there.
static void attention_matches_reference_at_positions(void **state) {
  (void)state;
  static const size_t positions[] = {0, 1, 7, 8, 15, 16, 31, 254, 255, 256, 257, 511, 512, 1000};
  for (size_t i = 0; i < sizeof positions / sizeof *positions; i++) {
    for (size_t count = 1; count <= 13; count += 2) {
      const mgl_dtype kv_dtype = count % 4 == 1 ? MGL_DTYPE_BF16 : MGL_DTYPE_KV8;
      shape sh = {2, 2,   64, count % 4 == 1 && count != 5 ? 16 : 32, kv_dtype, MGL_DTYPE_F32,
                  0, NULL};
      size_t length = positions[i] + 1;
      size_t tokens = count < length ? count : length;
      check_shape(&sh, &length, &tokens, 1);
    }
  }
}

// Windows shorter and longer than pages, splits, query tiles and the sequence.
static void windowed_attention_matches_reference(void **state) {
  (void)state;
  static const uint32_t windows[] = {1, 2, 7, 8, 15, 16, 17, 33, 100, 255, 256, 257, 300, 600};
  static const size_t lengths[] = {1, 9, 40, 256, 262, 300, 520, 777};
  for (size_t i = 0; i < sizeof windows / sizeof *windows; i++) {
    for (size_t j = 0; j < sizeof lengths / sizeof *lengths; j++) {
      mgl_dtype kv_dtype = random_kv_dtype();
      shape sh = {2,
                  1 + random_below(3),
                  30 + 2 * random_below(20),
                  16u << random_below(3),
                  kv_dtype,
                  MGL_DTYPE_F32,
                  windows[i],
                  NULL};
      size_t count = 1 + random_below(lengths[j] < 30 ? (uint32_t)lengths[j] : 30);
      check_shape(&sh, &lengths[j], &count, 1);
    }
  }
}

// Sinks below, among and far above the scores, of heads that differ; with windows and splits.
static void attention_with_sinks_matches_reference(void **state) {
  (void)state;
  static const float sinks[] = {-INFINITY, -3, 0, 0.5f, 4, 30, 80, -90, 1, 2, 3, 200};
  static const size_t lengths[] = {1, 9, 40, 257, 600};
  for (size_t i = 0; i < 3; i++) {
    for (size_t j = 0; j < sizeof lengths / sizeof *lengths; j++) {
      shape sh = {.kv_heads = i == 1 ? 1 : 3,
                  .group = 4,
                  .head_dim = 64,
                  .page_tokens = 16,
                  .kv_dtype = random_kv_dtype(),
                  .out_dtype = MGL_DTYPE_F32,
                  .window = i == 2 ? 20 : 0,
                  .sinks = sinks};
      size_t count = 1 + random_below(lengths[j] < 30 ? (uint32_t)lengths[j] : 30);
      check_shape(&sh, &lengths[j], &count, 1);
    }
  }
}

// Eight sequences in one call against each alone, with other query tiles, other tokens beside it
// and another layout of pages: the same bits.
static void attention_bits_do_not_depend_on_the_batch(void **state) {
  (void)state;
  static const size_t lengths[] = {1, 16, 255, 256, 257, 300, 520, 700};
  static const size_t counts[] = {1, 16, 1, 3, 64, 1, 40, 7};
  static const uint32_t head_dims[] = {64, 80, 128};
  for (size_t l = 0; l < level_count(); l++) {
    for (size_t i = 0; i < 18; i++) {
      if (!takes_case()) {
        continue;
      }
      static const uint32_t windows[] = {5, 16, 100, 256, 300, 513};
      mgl_dtype kv_dtype = i >= 12 ? MGL_DTYPE_KV8 : i % 2 ? MGL_DTYPE_BF16 : MGL_DTYPE_F32;
      shape sh = {2,
                  1 + (uint32_t)i % 6,
                  head_dims[i % 3],
                  16,
                  kv_dtype,
                  MGL_DTYPE_F32,
                  i < 6 || i == 12 ? 0 : windows[i % 6],
                  NULL};
      cache c = cache_create(&sh, lengths, 8);
      batch b = batch_create(&c, &sh, counts, MGL_ATTENTION_QUERY_TILE);
      guarded together = guarded_create(out_bytes(&sh, &b), 0);
      run(l, &c, &sh, &b, &together);
      for (size_t tile = 1; tile <= 7; tile += 3) {
        batch other = batch_create(&c, &sh, counts, tile);
        memcpy(other.q, b.q, b.tokens * sh.kv_heads * sh.group * sh.head_dim * sizeof(float));
        guarded parts = guarded_create(out_bytes(&sh, &b), 0);
        for (size_t item = 0; item < other.item_count; item++) {
          batch single = other;  // one item of one sequence in a call of its own
          single.items = other.items + item;
          single.item_count = 1;
          run(l, &c, &sh, &single, &parts);
        }
        assert_memory_equal(together.data, parts.data, together.bytes);
        guarded_destroy(&parts);
        batch_destroy(&other);
      }
      guarded_destroy(&together);
      batch_destroy(&b);
      cache_destroy(&c);
    }
  }
}

// Queries of one KV head's group alone, in rows of another width: the same bits.
static void attention_takes_the_queries_of_one_group(void **state) {
  (void)state;
  static const size_t lengths[] = {40, 300}, counts[] = {11, 3};
  shape sh = {3, 2, 80, 16, MGL_DTYPE_BF16, MGL_DTYPE_F32, 0, NULL};
  size_t group_floats = (size_t)sh.group * sh.head_dim, row = sh.kv_heads * group_floats;
  size_t stride = group_floats + 5;
  cache c = cache_create(&sh, lengths, 2);
  batch b = batch_create(&c, &sh, counts, 5);
  for (size_t l = 0; l < level_count(); l++) {
    guarded whole = guarded_create(out_bytes(&sh, &b), 0), parts = guarded_create(whole.bytes, 0);
    guarded q = guarded_create(b.tokens * stride * sizeof(float), 4);
    guarded scratch = guarded_create(
        mgl_attention_scratch_bytes(sh.kv_heads * sh.group, sh.kv_heads, sh.head_dim), 0);
    run(l, &c, &sh, &b, &whole);
    for (size_t head = 0; head < sh.kv_heads; head++) {
      for (size_t t = 0; t < b.tokens; t++) {
        memcpy((float *)q.data + t * stride, b.q + t * row + head * group_floats,
               group_floats * sizeof(float));
      }
      mgl_attention_args args = run_args(&c, &sh, &b, &parts);
      args.q = q.data;
      args.q_stride = stride;
      args.q_head_begin = (uint32_t)head * sh.group;
      for (size_t item = 0; item < b.item_count; item++) {
        size_t unit = item * sh.kv_heads + head;
        level(l)->attention(&args, scratch.data, unit, unit + 1);
      }
    }
    assert_memory_equal(whole.data, parts.data, whole.bytes);
    guarded_destroy(&whole);
    guarded_destroy(&parts);
    guarded_destroy(&q);
    guarded_destroy(&scratch);
  }
  batch_destroy(&b);
  cache_destroy(&c);
}

// Pages before the window of every query are not read (they have no number here), and what its page
// holds before the window has no influence.
static void attention_reads_nothing_before_the_window(void **state) {
  (void)state;
  static const size_t length = 700, count = 12;
  static const uint32_t windows[] = {1, 20, 256, 300, 20, 300};
  for (size_t w = 0; w < sizeof windows / sizeof *windows; w++) {
    const mgl_dtype kv_dtype = w >= 4 ? MGL_DTYPE_KV8 : w % 2 ? MGL_DTYPE_BF16 : MGL_DTYPE_F32;
    shape sh = {2, 2, 64, 16, kv_dtype, MGL_DTYPE_F32, windows[w], NULL};
    cache c = cache_create(&sh, &length, 1);
    batch b = batch_create(&c, &sh, &count, count);
    size_t first = length - count + 1 - sh.window;
    guarded before[8], after = {0};
    for (size_t l = 0; l < level_count(); l++) {
      before[l] = guarded_create(out_bytes(&sh, &b), 0);
      run(l, &c, &sh, &b, &before[l]);
    }
    for (size_t p = first / 16 * 16; p < first; p++) {
      for (size_t j = 0; j < (size_t)sh.kv_heads * sh.head_dim; j++) {
        size_t slot = cache_slot(&c, 0, p), head = j / sh.head_dim, d = j % sh.head_dim;
        element_store(c.kv.k, sh.kv_dtype, key_index(&c.kv, slot, head, d), NAN);
        element_store(c.kv.v, sh.kv_dtype, value_index(&c.kv, slot, head, d), NAN);
      }
    }
    for (size_t page = 0; page < first / 16; page++) {
      c.block_tables[page] = INT32_MAX / 2;
    }
    for (size_t l = 0; l < level_count(); l++) {
      after = guarded_create(out_bytes(&sh, &b), 0);
      run(l, &c, &sh, &b, &after);
      assert_memory_equal(before[l].data, after.data, after.bytes);
      guarded_destroy(&before[l]);
      guarded_destroy(&after);
    }
    batch_destroy(&b);
    cache_destroy(&c);
  }
}

// What unused slots hold has no influence, nor has what later positions of the sequence hold: NaN
// (as the cache is created), infinity, and numbers give the same bits.
static void attention_bits_do_not_depend_on_unused_slots(void **state) {
  (void)state;
  static const size_t length = 300, count = 29;
  for (size_t l = 0; l < 2 * level_count(); l++) {
    const mgl_dtype kv_dtype = l % 2 == 0 ? MGL_DTYPE_BF16 : MGL_DTYPE_KV8;
    shape sh = {2, 2, 64, 16, kv_dtype, MGL_DTYPE_BF16, 0, NULL};
    cache c = cache_create(&sh, &length, 1);
    c.lengths[0] = 270;  // so positions 241 to 269 are asked for, 270 to 299 are of the future
    batch b = batch_create(&c, &sh, &count, 5);
    guarded first = guarded_create(out_bytes(&sh, &b), 0);
    run(l / 2, &c, &sh, &b, &first);
    static const float values[] = {NAN, INFINITY, -INFINITY, 3e38f};
    for (size_t i = 0; i < 4; i++) {
      for (size_t p = 270; p < 304; p++) {
        for (size_t j = 0; j < (size_t)sh.kv_heads * sh.head_dim; j++) {
          size_t slot = cache_slot(&c, 0, p), head = j / sh.head_dim, d = j % sh.head_dim;
          element_store(c.kv.k, sh.kv_dtype, key_index(&c.kv, slot, head, d), values[i]);
          element_store(c.kv.v, sh.kv_dtype, value_index(&c.kv, slot, head, d), values[i]);
        }
      }
      guarded second = guarded_create(out_bytes(&sh, &b), 0);
      run(l / 2, &c, &sh, &b, &second);
      assert_memory_equal(first.data, second.data, first.bytes);
      guarded_destroy(&second);
    }
    guarded_destroy(&first);
    batch_destroy(&b);
    cache_destroy(&c);
  }
}

// A NaN in the last position of an item reaches the tokens at that position only.
static void attention_keeps_tokens_of_an_item_apart(void **state) {
  (void)state;
  static const size_t length = 260, count = 8;
  for (size_t l = 0; l < 2 * level_count(); l++) {
    const mgl_dtype kv_dtype = l % 2 == 0 ? MGL_DTYPE_F32 : MGL_DTYPE_KV8;
    shape sh = {1, 3, 64, 16, kv_dtype, MGL_DTYPE_F32, 0, NULL};
    cache c = cache_create(&sh, &length, 1);
    batch b = batch_create(&c, &sh, &count, MGL_ATTENTION_QUERY_TILE);
    guarded first = guarded_create(out_bytes(&sh, &b), 0);
    run(l / 2, &c, &sh, &b, &first);
    guarded second = guarded_create(out_bytes(&sh, &b), 0);
    element_store(c.kv.v, sh.kv_dtype, value_index(&c.kv, cache_slot(&c, 0, 259), 0, 5), NAN);
    element_store(c.kv.k, sh.kv_dtype, key_index(&c.kv, cache_slot(&c, 0, 258), 0, 5), NAN);
    run(l / 2, &c, &sh, &b, &second);
    size_t token_floats = (size_t)sh.group * sh.head_dim;
    assert_memory_equal(first.data, second.data, 6 * token_floats * sizeof(float));
    for (size_t i = 6 * token_floats; i < 8 * token_floats; i++) {
      assert_true(isnan(((float *)second.data)[i]));
    }
    guarded_destroy(&first);
    guarded_destroy(&second);
    batch_destroy(&b);
    cache_destroy(&c);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(attention_matches_reference),
      cmocka_unit_test(attention_matches_reference_at_positions),
      cmocka_unit_test(windowed_attention_matches_reference),
      cmocka_unit_test(attention_with_sinks_matches_reference),
      cmocka_unit_test(attention_reads_nothing_before_the_window),
      cmocka_unit_test(attention_bits_do_not_depend_on_the_batch),
      cmocka_unit_test(attention_takes_the_queries_of_one_group),
      cmocka_unit_test(attention_bits_do_not_depend_on_unused_slots),
      cmocka_unit_test(attention_keeps_tokens_of_an_item_apart),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
