// Attention of the wide class against scalar arithmetic: random ragged iterations, with pages in
// any order and NaNs in whatever nobody has written; then what it takes.
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "gpu/wide_world.h"

enum { SAMPLES = 160 };  // rows and heads of a case that are computed again

// Of a row's output, Euclidean: weights and output are bf16. And of an element of Q and K.
#define MOST_ERROR 6e-3
#define MOST_BF16_ERROR (1.0 / 128)

typedef struct wide_case {
  const char *name;
  uint32_t head_dim, group, kv_heads;
  uint32_t decoding, prompts;      // sequences
  uint32_t most_context;           // of each, at most; one has just that
  uint32_t least_rows, most_rows;  // of a prompt's chunk
  bool norms;
} wide_case;

static const wide_case cases[] = {
    {"decode", 128, 4, 8, 64, 0, 700, 0, 0, true},
    {"decode, short", 128, 2, 8, 300, 0, 40, 0, 0, true},
    {"decode, long among short", 128, 4, 2, 20, 0, 16384, 0, 0, false},
    {"prompt", 128, 4, 2, 0, 1, 1, 1000, 1000, true},
    {"prompts", 128, 2, 2, 0, 9, 1, 1, 220, false},
    {"chunks", 128, 4, 2, 0, 5, 3000, 70, 300, true},
    {"long chunk", 128, 8, 1, 0, 1, 16000, 384, 384, false},
    {"mixed", 128, 4, 2, 90, 6, 1500, 1, 200, true},
    {"mixed, small chunks", 128, 2, 2, 40, 60, 300, 1, 12, false},
    {"mixed", 64, 8, 2, 90, 6, 1500, 1, 200, false},
    {"mixed", 64, 1, 4, 90, 6, 1500, 1, 300, true},
    {"mixed", 64, 4, 8, 200, 20, 600, 1, 90, false},
    {"mixed", 32, 8, 2, 70, 6, 900, 1, 200, false},
    {"mixed", 96, 3, 2, 70, 6, 900, 1, 200, true},
};

// --- the scalar twin -----------------------------------------------------------------------------

static double twin_row_factor(const wide_world *w, const uint16_t *x) {
  double sum = 0;
  for (uint32_t e = 0; e < w->head_dim; e++) {
    sum += (double)mgl_f16_to_f32(x[e]) * (double)mgl_f16_to_f32(x[e]);
  }
  return 1.0 / sqrt(sum / w->head_dim + (double)w->op.eps);
}

// Element e of a head of Q or K of a row, normed and rotated.
static double twin_rotated(const wide_world *w, uint32_t row, const uint16_t *x, const float *norm,
                           double factor, uint32_t e) {
  const uint32_t half = w->head_dim / 2, i = e % half;
  const float *angles = w->angles + (size_t)row * w->head_dim + 2 * i;
  double low = (double)mgl_f16_to_f32(x[i]), high = (double)mgl_f16_to_f32(x[i + half]);
  if (w->norms) {
    low *= factor * (double)norm[i];
    high *= factor * (double)norm[i + half];
  }
  return e < half ? low * (double)angles[0] - high * (double)angles[1]
                  : high * (double)angles[0] + low * (double)angles[1];
}

static bool close_to(uint16_t bits, double value) {
  return fabs((double)wide_from_bf16(bits) - value) <= MOST_BF16_ERROR * fabs(value) + 1e-3;
}

// Q, and what the iteration has put into the cache; everything else there is as it was.
static bool check_rope_kv(const wide_world *w, const uint16_t *q, const uint16_t *k,
                          const uint16_t *v) {
  const uint32_t hd = w->head_dim, kv_heads = w->shape.kv_heads;
  const uint32_t heads = kv_heads * w->shape.group;
  const double q_scale = (double)w->op.scale * 1.4426950408889634;
  for (uint32_t row = 0; row < w->rows; row++) {
    const uint16_t *x = w->qkv + (size_t)row * (heads + 2 * kv_heads) * hd;
    const uint32_t p = w->positions[row];
    const int32_t *table = w->tables + (size_t)w->row_slots[row] * w->table_stride;
    for (uint32_t h = 0; h < heads; h++) {
      double factor = twin_row_factor(w, x + h * hd);
      for (uint32_t e = 0; e < hd; e++) {
        if (!close_to(q[((size_t)row * heads + h) * hd + e],
                      q_scale * twin_rotated(w, row, x + h * hd, w->q_norm, factor, e))) {
          return false;
        }
      }
    }
    for (uint32_t h = 0; h < kv_heads; h++) {
      const uint16_t *k_x = x + (heads + h) * hd, *v_x = k_x + kv_heads * hd;
      double factor = twin_row_factor(w, k_x);
      size_t page = ((size_t)table[p / WIDE_P] * kv_heads + h) * WIDE_P * hd;
      for (uint32_t e = 0; e < hd; e++) {
        size_t k_at = page + p % WIDE_P * hd + e, v_at = page + e * WIDE_P + p % WIDE_P;
        if (!close_to(k[k_at], twin_rotated(w, row, k_x, w->k_norm, factor, e)) ||
            v[v_at] != v_x[e]) {
          return false;
        }
        w->k_cache[k_at] = k[k_at];  // what is left must be equal
        w->v_cache[v_at] = v[v_at];
      }
    }
  }
  return memcmp(k, w->k_cache, w->cache_count * sizeof *k) == 0 &&
         memcmp(v, w->v_cache, w->cache_count * sizeof *v) == 0;
}

// The output of a head of a row: [HD].
static void twin_attend(const wide_world *w, const uint16_t *q, uint32_t row, uint32_t head,
                        double *weights, double *out) {
  const uint32_t hd = w->head_dim, kv_heads = w->shape.kv_heads;
  const uint32_t count = w->positions[row] + 1;
  const int32_t *table = w->tables + (size_t)w->row_slots[row] * w->table_stride;
  const uint16_t *x = q + ((size_t)row * kv_heads * w->shape.group + head) * hd;
  double most = -INFINITY, sum = 0;
  for (uint32_t p = 0; p < count; p++) {
    const uint16_t *k =
        w->k_cache + ((size_t)table[p / WIDE_P] * kv_heads + head / w->shape.group) * WIDE_P * hd +
        p % WIDE_P * hd;
    double score = 0;
    for (uint32_t e = 0; e < hd; e++) {
      score += (double)wide_from_bf16(x[e]) * (double)wide_from_bf16(k[e]);
    }
    weights[p] = score;
    most = score > most ? score : most;
  }
  memset(out, 0, hd * sizeof *out);
  for (uint32_t p = 0; p < count; p++) {
    const uint16_t *v =
        w->v_cache + ((size_t)table[p / WIDE_P] * kv_heads + head / w->shape.group) * WIDE_P * hd +
        p % WIDE_P;
    double weight = exp2(weights[p] - most);
    sum += weight;
    for (uint32_t e = 0; e < hd; e++) {
      out[e] += weight * (double)wide_from_bf16(v[(size_t)e * WIDE_P]);
    }
  }
  for (uint32_t e = 0; e < hd; e++) {
    out[e] /= sum;
  }
}

static uint16_t out_element(const wide_world *w, const uint8_t *out, uint32_t row,
                            uint32_t element) {
  uint16_t bits;
  memcpy(&bits, out + mgl_wide_x_offset(w->tokens, row, element), sizeof bits);
  return bits;
}

static double row_error(const wide_world *w, const uint8_t *out, uint32_t row, uint32_t head,
                        const double *twin) {
  double error = 0, norm = 0;
  for (uint32_t e = 0; e < w->head_dim; e++) {
    double value = (double)wide_from_bf16(out_element(w, out, row, head * w->head_dim + e));
    error += (value - twin[e]) * (value - twin[e]);
    norm += twin[e] * twin[e];
  }
  return isfinite(error) ? sqrt(error / norm) : (double)INFINITY;
}

// --- a case --------------------------------------------------------------------------------------

static void add_entries(wide_world *w, const wide_case *c) {
  for (uint32_t i = 0; i < c->decoding; i++) {
    uint32_t most = c->most_context;
    wide_world_add(w, i == c->decoding / 2 ? most - 1 : wide_world_random(w, most / (1 + i % 3)),
                   1);
  }
  for (uint32_t i = 0; i < c->prompts; i++) {
    uint32_t count = c->least_rows + wide_world_random(w, c->most_rows - c->least_rows + 1);
    uint32_t position = wide_world_random(w, c->most_context) / (i % 2 == 0 ? 1 : 16) * 1;
    wide_world_add(w, i % 3 == 1 ? position / WIDE_P * WIDE_P : position, count);
  }
}

static bool all_written(const wide_world *w, const uint8_t *out) {
  const uint32_t n = w->shape.kv_heads * w->shape.group * w->head_dim;
  for (uint32_t row = 0; row < w->tokens; row++) {
    for (uint32_t e = 0; e < n; e++) {
      uint16_t bits = out_element(w, out, row, e);
      if ((row < w->rows) != ((bits & 0x7f80) != 0x7f80)) {
        return false;
      }
    }
  }
  return true;
}

static bool all_are(const uint32_t *words, size_t count, uint32_t value) {
  for (size_t i = 0; i < count; i++) {
    if (words[i] != value) {
      return false;
    }
  }
  return true;
}

// What attention finds between layers: counters of tiles are 0, partial results of streams all
// ones.
static bool left_clear(const wide_world *w) {
  const size_t bytes = mgl_wide_stream_partial_bytes(w->shape.workers, w->head_dim);
  uint32_t *merges = gpu_must_alloc(w->merge_count, sizeof *merges);
  uint32_t *partials = gpu_must_alloc(1, bytes);
  wide_world_read(w, merges, w->op.merges, w->merge_count * sizeof *merges);
  wide_world_read(w, partials, w->op.stream_partials, bytes);
  bool clear =
      all_are(merges, w->merge_count, 0) && all_are(partials, bytes / sizeof *partials, UINT32_MAX);
  mgl_free(merges);
  mgl_free(partials);
  return clear;
}

// The largest error of some rows and heads; the first and last row of every entry are among them
// sooner or later.
static double worst_error(wide_world *w, const uint16_t *q, const uint8_t *out) {
  double *weights = gpu_must_alloc((size_t)w->table_stride * WIDE_P, sizeof *weights);
  double twin[128], worst = 0;
  uint32_t *starts = gpu_must_alloc(w->entry_count + 1, sizeof *starts);
  for (uint32_t i = 0; i < w->entry_count; i++) {
    starts[i + 1] = starts[i] + w->entries[i].count;
  }
  for (uint32_t i = 0; i < SAMPLES; i++) {
    uint32_t entry = wide_world_random(w, w->entry_count);
    uint32_t row = starts[entry] + wide_world_random(w, w->entries[entry].count);
    row = i % 4 == 0 ? starts[entry] : i % 4 == 1 ? starts[entry + 1] - 1 : row;
    uint32_t head = wide_world_random(w, w->shape.kv_heads * w->shape.group);
    twin_attend(w, q, row, head, weights, twin);
    double error = row_error(w, out, row, head, twin);
    worst = error > worst ? error : worst;
  }
  mgl_free(starts);
  mgl_free(weights);
  return worst;
}

// The work list of the device is the host's.
static bool same_work(wide_world *w) {
  mgl_wide_work *host = gpu_must_alloc(1, sizeof *host), *device = gpu_must_alloc(1, sizeof *host);
  wide_world_fill(w, (void *)(uintptr_t)w->op.work, 0, sizeof *host);
  wide_world_build(w, 0);
  mgl_wide_build((mgl_lanes){.count = 1}, &w->shape, w->entries, w->entry_count, host);
  wide_world_read(w, device, w->op.work, sizeof *device);
  bool same = memcmp(host, device, sizeof *host) == 0;
  mgl_free(host);
  mgl_free(device);
  return same;
}

static void check_case(gpu_bench *bench, const wide_case *c, uint32_t workers) {
  wide_world *w = gpu_must_alloc(1, sizeof *w);
  w->bench = bench;
  w->head_dim = c->head_dim;
  w->shape = (mgl_wide_shape){.kv_heads = c->kv_heads, .group = c->group, .workers = workers};
  w->norms = c->norms;
  w->layers = 1;
  w->random = 77 + c->head_dim + workers;
  add_entries(w, c);
  wide_world_open(w, true);
  uint16_t *q = gpu_must_alloc(w->q_count, sizeof *q);
  uint16_t *k = gpu_must_alloc(w->cache_count, sizeof *k);
  uint16_t *v = gpu_must_alloc(w->cache_count, sizeof *v);
  uint8_t *out[2] = {gpu_must_alloc(1, w->out_bytes), gpu_must_alloc(1, w->out_bytes)};
  bool same = same_work(w);
  wide_world_rope_kv(w, 0);
  wide_world_read(w, q, w->op.q, w->q_count * sizeof *q);
  wide_world_read(w, k, w->op.k_cache, w->cache_count * sizeof *k);
  wide_world_read(w, v, w->op.v_cache, w->cache_count * sizeof *v);
  bool rope_kv = check_rope_kv(w, q, k, v);
  wide_world_attend(w, 0);
  wide_world_read(w, out[0], w->op.out, w->out_bytes);
  wide_world_fill(w, w->op.out, 0xff, w->out_bytes);
  for (uint32_t i = 0; i < 3; i++) {
    wide_world_attend(w, 0);
  }
  wide_world_read(w, out[1], w->op.out, w->out_bytes);
  double error = worst_error(w, q, out[0]);
  bool again = memcmp(out[0], out[1], w->out_bytes) == 0;
  bool written = all_written(w, out[0]), cleared = left_clear(w);
  gpu_check(bench, same && rope_kv && again && written && cleared && error < MOST_ERROR,
            "%s: %u sequences, %u rows, HD %u, group %u, %u workers: error %.1e%s%s%s%s%s", c->name,
            w->entry_count, w->rows, w->head_dim, w->shape.group, workers, error,
            same ? "" : ", another work list", rope_kv ? "" : ", Q, K or V differ",
            again ? "" : ", other bits in the next run", written ? "" : ", rows not written",
            cleared ? "" : ", counters or partial results not cleared");
  void *const memory[] = {q, k, v, out[0], out[1]};
  for (size_t i = 0; i < sizeof memory / sizeof memory[0]; i++) {
    mgl_free(memory[i]);
  }
  wide_world_close(w);
  mgl_free(w);
}

void gpu_wide_attend_run(gpu_bench *bench, int count, char **arguments) {
  printf("\n## Attention of the wide class\n\n");
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    if (count > 0 && strstr(cases[i].name, arguments[0]) == NULL) {
      continue;
    }
    check_case(bench, &cases[i], bench->device.sm_count);
    if (i % 3 == 0) {
      check_case(bench, &cases[i], 7);
    }
  }
}
