// Scalar kernels: the reference that the vector kernels are tested against, and the fallback of
// processors without AVX2.
//
// Written for reading: one loop per formula, f32 accumulation in ascending order, exp/sin/cos of
// libm. Linears and scores compute several such sums side by side. Nothing here is shared with the
// vector kernels except what has no vector form (rope_angles), so that an error in one shows as a
// difference from the other.
#include <assert.h>
#include <math.h>
#include <stdbool.h>
#include <string.h>

#include "graph/rope.h"
#include "kernels/cpu/kernel_tables.h"
#include "kernels/cpu/short_rows.h"
#include "kernels/cpu/whole.h"

static float load(const void *data, mgl_dtype dtype, size_t index) {
  switch (dtype) {
    case MGL_DTYPE_F32: {
      float value;  // weights are aligned to nothing: safetensors data starts anywhere
      memcpy(&value, (const char *)data + index * sizeof value, sizeof value);
      return value;
    }
    case MGL_DTYPE_F16: {
      mgl_f16 value;
      memcpy(&value, (const char *)data + index * sizeof value, sizeof value);
      return mgl_f16_to_f32(value);
    }
    case MGL_DTYPE_BF16: {
      mgl_bf16 value;
      memcpy(&value, (const char *)data + index * sizeof value, sizeof value);
      return mgl_bf16_to_f32(value);
    }
    case MGL_DTYPE_KV8: return mgl_e4m3_to_f32(((const uint8_t *)data)[index]);  // of a KV cache
    default: assert(false && "dtype of a kernel operand"); return 0;
  }
}

// Elements side by side, at once.
static void widen(const void *data, mgl_dtype dtype, size_t index, size_t count, float *out) {
  mgl_widen_f32(dtype, (const char *)data + index * mgl_dtype_bytes(dtype), count, out);
}

static void store(void *data, mgl_dtype dtype, size_t index, float value) {
  if (dtype == MGL_DTYPE_BF16) {
    ((mgl_bf16 *)data)[index] = mgl_f32_to_bf16(value);
  } else if (dtype == MGL_DTYPE_KV8) {
    ((uint8_t *)data)[index] = mgl_f32_to_e4m3(value);
  } else {
    ((float *)data)[index] = value;
  }
}

void mgl_scalar_embed(const mgl_embed_args *args, size_t begin, size_t end) {
  for (size_t t = begin; t < end; t++) {
    if (mgl_dtype_is_code(args->table_dtype)) {
      size_t bytes = mgl_row_layout_of(args->table_form, args->width).bytes;
      mgl_row_widen(args->table_form, args->width,
                    (const char *)args->table + (size_t)args->tokens[t] * bytes,
                    args->out + t * args->width);
      continue;
    }
    size_t row = (size_t)args->tokens[t] * args->width;
    for (size_t i = 0; i < args->width; i++) {
      args->out[t * args->width + i] = load(args->table, args->table_dtype, row + i);
    }
  }
}

static void rmsnorm(const mgl_rmsnorm_args *args, size_t begin, size_t end) {
  for (size_t row = begin; row < end; row++) {
    size_t source = args->x_row_index != NULL ? args->x_row_index[row] : row;
    const float *x = args->x + source * args->width;
    float squares = 0;
    for (size_t i = 0; i < args->width; i++) {
      squares += x[i] * x[i];
    }
    float inverse = 1.0f / sqrtf(squares / (float)args->width + args->eps);
    for (size_t i = 0; i < args->width; i++) {
      store(args->out, args->out_dtype, row * args->width + i, x[i] * inverse * args->weight[i]);
    }
  }
}

static void layernorm(const mgl_rmsnorm_args *args, size_t begin, size_t end) {
  for (size_t row = begin; row < end; row++) {
    size_t source = args->x_row_index != NULL ? args->x_row_index[row] : row;
    const float *x = args->x + source * args->width;
    float sum = 0, squares = 0;
    for (size_t i = 0; i < args->width; i++) {
      sum += x[i];
    }
    float mean = sum / (float)args->width;
    for (size_t i = 0; i < args->width; i++) {
      squares += (x[i] - mean) * (x[i] - mean);
    }
    float inverse = 1.0f / sqrtf(squares / (float)args->width + args->eps);
    for (size_t i = 0; i < args->width; i++) {
      store(args->out, args->out_dtype, row * args->width + i,
            (x[i] - mean) * inverse * args->weight[i] + args->shift[i]);
    }
  }
}

// Rows as whole numbers: see whole.h.
static void pack_whole(const mgl_pack_args *args) {
  const mgl_whole_layout layout = mgl_whole_layout_of(args->k);
  for (size_t t = 0; t < args->token_count; t++) {
    char *row = (char *)args->out + t * layout.bytes;
    int16_t *values = (int16_t *)(void *)row;
    for (uint32_t first = 0; first < args->k; first += MGL_CODE_BLOCK) {
      const uint32_t left = args->k - first;
      const uint32_t count = left < MGL_CODE_BLOCK ? left : MGL_CODE_BLOCK;
      float block[MGL_CODE_BLOCK] = {0};
      float largest = 0;
      bool finite = true;
      for (uint32_t i = 0; i < count; i++) {
        block[i] = load(args->x, args->dtype, t * args->k + first + i);
        finite = finite && isfinite(block[i]);
        largest = fabsf(block[i]) > largest ? fabsf(block[i]) : largest;
      }
      const uint32_t exponent = mgl_whole_exponent(finite ? largest : 0);
      const float scale = finite ? mgl_whole_scale(exponent) : NAN;
      for (uint32_t i = 0; i < MGL_CODE_BLOCK; i++) {
        const float value = finite ? rintf(block[i] * mgl_whole_inverse(exponent)) : 0;
        values[first + i] = (int16_t)(value > INT16_MAX ? INT16_MAX : value);
      }
      const uint32_t b = first / MGL_CODE_BLOCK;
      memcpy(row + layout.scales + b * sizeof scale, &scale, sizeof scale);
      mgl_whole_sum(values + first, scale,
                    (float *)(void *)(row + layout.sums) + b * (MGL_CODE_BLOCK / MGL_WHOLE_UNIT));
    }
  }
}

// Other packed rows are rows as they are, split or not.
static bool splits(void) {
  return true;
}

static void pack(const mgl_pack_args *args) {
  if (args->whole) {
    pack_whole(args);
    return;
  }
  memcpy(args->out, args->x, (size_t)args->token_count * args->k * mgl_dtype_bytes(args->dtype));
}

// Element i of a row of whole numbers: exact in f32.
static float load_whole(const mgl_linear_args *args, size_t t, uint32_t i) {
  const mgl_whole_layout layout = mgl_whole_layout_of(args->k);
  const char *row = (const char *)args->x + t * layout.bytes;
  int16_t value;
  memcpy(&value, row + i * sizeof value, sizeof value);
  return (float)value * load(row + layout.scales, MGL_DTYPE_F32, i / MGL_CODE_BLOCK);
}

// A row of x times a row of codes: group by group, the sum times the scale; offsets take away sums
// of x.
static float dot_codes(const mgl_linear_args *args, size_t t, const char *row,
                       const mgl_row_layout *layout) {
  float total = 0;
  for (uint32_t group = 0; group < layout->groups; group++) {
    float sum = 0, x_sum = 0;
    uint32_t begin = group * args->w_group;
    uint32_t end = args->k - begin < args->w_group ? args->k : begin + args->w_group;
    for (uint32_t i = begin; i < end; i++) {
      float x =
          args->packed ? load_whole(args, t, i) : load(args->x, args->x_dtype, t * args->k + i);
      sum += x * mgl_code_value(args->w_dtype, mgl_row_code(args->w_dtype, row, i));
      x_sum += x;
    }
    total += sum * load(row + layout->scales, MGL_DTYPE_F32, group);
    if (args->w_offsets) {
      total -= x_sum * load(row + layout->offsets, MGL_DTYPE_F32, group);
    }
  }
  return total;
}

// What a sum of products becomes in the output.
static void put_linear(const mgl_linear_args *args, size_t t, size_t n, float sum) {
  size_t at = t * args->out_stride + n;
  sum = args->bias != NULL ? sum + args->bias[n] : sum;
  args->out[at] = args->residual != NULL ? args->residual[at] + sum : sum;
}

static void linear_codes(const mgl_linear_args *args, size_t begin, size_t end) {
  assert(args->packed == mgl_code_is_integer(args->w_dtype));
  mgl_row_layout layout = mgl_row_layout_of(mgl_linear_form(args), args->k);
  for (size_t n = begin; n < end; n++) {
    for (size_t t = 0; t < args->token_count; t++) {
      put_linear(args, t, n, dot_codes(args, t, (const char *)args->w + n * layout.bytes, &layout));
    }
  }
}

// A linear computes so many outputs at once: each is one chain of additions in ascending order, in
// which an addition waits for the one before, and most of the tests' time is spent here.
enum { TILE_ROWS = 16, TILE_TOKENS = 8, TILE_DEPTH = 128 };

// Adds the products of one row of weights to the sums of all tokens of a tile. Unrolled before it
// is vectorised, the inner loop would become one of vectors along k, whose parts gcc adds one by
// one.
static void add_products(const float x[][TILE_TOKENS], const float *w, size_t depth, float *sums) {
  float chains[TILE_TOKENS];
  memcpy(chains, sums, sizeof chains);
  for (size_t i = 0; i < depth; i++) {
#pragma GCC unroll 1
    for (size_t t = 0; t < TILE_TOKENS; t++) {
      chains[t] += x[i][t] * w[i];
    }
  }
  memcpy(sums, chains, sizeof chains);
}

static void linear_tile(const mgl_linear_args *args, size_t row, size_t rows, size_t token,
                        size_t tokens) {
  float x[TILE_DEPTH][TILE_TOKENS] = {0};  // of tokens that are not there: zeros
  float w[TILE_DEPTH];
  float sums[TILE_ROWS][TILE_TOKENS] = {0};
  for (size_t begin = 0, depth; begin < args->k; begin += depth) {
    depth = args->k - begin < TILE_DEPTH ? args->k - begin : TILE_DEPTH;
    for (size_t t = 0; t < tokens; t++) {
      for (size_t i = 0; i < depth; i++) {
        x[i][t] = load(args->x, args->x_dtype, (token + t) * args->k + begin + i);
      }
    }
    for (size_t n = 0; n < rows; n++) {
      widen(args->w, args->w_dtype, (row + n) * args->k + begin, depth, w);
      add_products(x, w, depth, sums[n]);
    }
  }
  for (size_t n = 0; n < rows; n++) {
    for (size_t t = 0; t < tokens; t++) {
      put_linear(args, token + t, row + n, sums[n][t]);
    }
  }
}

// Tokens whose weights are short rows: a group at a time, block after block.
static void linear_short(const mgl_linear_args *args, size_t begin, size_t end, size_t token,
                         size_t tokens) {
  _Static_assert((int)TILE_DEPTH == (int)MGL_SHORT_BLOCK && (int)TILE_ROWS == (int)MGL_SHORT_ROWS,
                 "a tile is a block");
  const mgl_short_layout layout = mgl_short_layout_of(args->k);
  for (size_t n = begin, n_end; n < end; n = n_end) {
    const size_t group_idx = (args->short_first + n) / MGL_SHORT_ROWS;
    const size_t row = (args->short_first + n) % MGL_SHORT_ROWS;
    const char *group = (const char *)args->w_short + group_idx * layout.bytes;
    const uint32_t *patches = mgl_short_patches(group, &layout);
    float x[TILE_DEPTH][TILE_TOKENS] = {0};
    float sums[TILE_ROWS][TILE_TOKENS] = {0};
    n_end = end - n < MGL_SHORT_ROWS - row ? end : n + MGL_SHORT_ROWS - row;
    if (mgl_short_base(group, 0, 0) == MGL_SHORT_PLAIN) {
      linear_tile(args, n, n_end - n, token, tokens);
      continue;
    }
    for (uint32_t b = 0; b < layout.blocks; b++) {
      const size_t first = (size_t)b * TILE_DEPTH;
      const size_t depth = args->k - first < TILE_DEPTH ? args->k - first : TILE_DEPTH;
      for (size_t t = 0; t < tokens; t++) {
        for (size_t i = 0; i < depth; i++) {
          x[i][t] = load(args->x, args->x_dtype, (token + t) * args->k + first + i);
        }
      }
      for (uint32_t r = 0; r < MGL_SHORT_ROWS; r++) {
        mgl_bf16 elements[TILE_DEPTH];
        float w[TILE_DEPTH];
        mgl_short_unpack(group, &layout, b, r, &patches, elements);
        mgl_widen_f32(MGL_DTYPE_BF16, elements, depth, w);
        add_products(x, w, depth, sums[r]);
      }
    }
    for (size_t r = n; r < n_end; r++) {
      for (size_t t = 0; t < tokens; t++) {
        put_linear(args, token + t, r, sums[row + r - n][t]);
      }
    }
  }
}

static void linear(const mgl_linear_args *args, size_t begin, size_t end) {
  if (args->w_short != NULL) {
    for (size_t t = 0, tokens; t < args->token_count; t += tokens) {
      tokens = args->token_count - t < TILE_TOKENS ? args->token_count - t : TILE_TOKENS;
      linear_short(args, begin, end, t, tokens);
    }
    return;
  }
  if (mgl_dtype_is_code(args->w_dtype)) {
    linear_codes(args, begin, end);
    return;
  }
  for (size_t n = begin, rows; n < end; n += rows) {
    rows = end - n < TILE_ROWS ? end - n : TILE_ROWS;
    for (size_t t = 0, tokens; t < args->token_count; t += tokens) {
      tokens = args->token_count - t < TILE_TOKENS ? args->token_count - t : TILE_TOKENS;
      linear_tile(args, n, rows, t, tokens);
    }
  }
}

// The frequencies of a row; `grown` has room for them.
static const float *frequencies_of(const mgl_rope_angles_args *args, size_t t, float *grown) {
  if (args->lengths == NULL || args->lengths[t] <= args->original) {
    return args->inv_freq;
  }
  if (args->theta == 0) {
    return args->inv_freq + args->half_dim;
  }
  float base = mgl_rope_grown_base(args->theta, args->factor, args->original, args->lengths[t],
                                   args->half_dim);
  for (uint32_t i = 0; i < args->half_dim; i++) {
    grown[i] = mgl_rope_frequency(base, i, args->half_dim);
  }
  return grown;
}

// libm reduces the argument exactly, so that large positions keep their precision.
void mgl_scalar_rope_angles(const mgl_rope_angles_args *args, size_t begin, size_t end) {
  float grown[MGL_MAX_HEAD_DIM / 2];
  for (size_t t = begin; t < end; t++) {
    const float *inv_freq = frequencies_of(args, t, grown);
    float *out = args->out + t * args->half_dim * 2;
    for (size_t i = 0; i < args->half_dim; i++) {
      float angle = (float)args->positions[t] * inv_freq[i];
      out[2 * i] = cosf(angle) * args->amplitude;
      out[2 * i + 1] = sinf(angle) * args->amplitude;
    }
  }
}

static void rope(const mgl_rope_args *args, size_t begin, size_t end) {
  size_t half = args->rotary_dim / 2;
  for (size_t t = begin; t < end; t++) {
    const float *angles = args->angles + t * half * 2;
    for (size_t head = 0; head < args->head_count; head++) {
      float *x = args->x + (t * args->head_count + head) * args->head_dim;
      for (size_t i = 0; i < half; i++) {
        float cosine = angles[2 * i], sine = angles[2 * i + 1];
        float low = x[i], high = x[i + half];
        x[i] = low * cosine - high * sine;
        x[i + half] = high * cosine + low * sine;
      }
    }
  }
}

static size_t key_index(const mgl_kv_layer *kv, size_t page, size_t head, size_t i, size_t offset) {
  return mgl_kv_block(kv, page, head) + i * kv->page_tokens + offset;
}

static size_t value_index(const mgl_kv_layer *kv, size_t page, size_t head, size_t offset,
                          size_t i) {
  return mgl_kv_block(kv, page, head) + offset * kv->head_dim + i;
}

static void kv_write(const mgl_kv_write_args *args, size_t begin, size_t end) {
  const mgl_kv_layer *kv = &args->kv;
  float k_scale = mgl_kv_k_scale(kv), v_scale = mgl_kv_v_scale(kv);
  for (size_t t = begin; t < end; t++) {
    size_t page = args->slots[t] / kv->page_tokens, offset = args->slots[t] % kv->page_tokens;
    for (size_t head = args->head_begin; head < args->head_end; head++) {
      size_t row = (head - args->head_begin) * kv->head_dim;
      const float *k = args->k + t * args->k_stride + row;
      const float *v = args->v + t * args->v_stride + row;
      for (size_t i = 0; i < kv->head_dim; i++) {
        store(kv->k, kv->dtype, key_index(kv, page, head, i, offset), k[i] / k_scale);
        store(kv->v, kv->dtype, value_index(kv, page, head, offset, i), v[i] / v_scale);
      }
    }
  }
}

// q · k of the positions [from, length) of the split that begins at `begin`, each summed in
// ascending order. The keys of a page lie side by side, element after element.
static void scores_of(const mgl_kv_layer *kv, const int32_t *block_table, size_t kv_head,
                      const float *q, size_t begin, size_t from, size_t length, float *scores) {
  float keys[MGL_ATTENTION_SPLIT];
  for (size_t p = from, count; p < length; p += count) {
    size_t page = (size_t)block_table[(begin + p) / kv->page_tokens];
    size_t offset = (begin + p) % kv->page_tokens;
    count = kv->page_tokens - offset < length - p ? kv->page_tokens - offset : length - p;
    memset(scores + p, 0, count * sizeof *scores);
    for (size_t i = 0; i < kv->head_dim; i++) {
      widen(kv->k, kv->dtype, key_index(kv, page, kv_head, i, offset), count, keys);
      for (size_t j = 0; j < count; j++) {
        scores[p + j] += q[i] * keys[j];
      }
    }
  }
}

// One query head of one token: position by position, split by split. `split_out` and `merged_out`
// are scratch of HD floats, `weights` of MGL_ATTENTION_SPLIT.
static void attend(const mgl_attention_args *args, const int32_t *block_table, size_t t,
                   size_t head, float *weights, float *split_out, float *merged_out) {
  const mgl_kv_layer *kv = &args->kv;
  size_t head_dim = kv->head_dim, count = (size_t)args->positions[t] + 1;
  size_t first = mgl_attention_first(args, args->positions[t]);
  size_t kv_head = head / (args->head_count / kv->kv_head_count);
  const float *q = args->q + t * args->q_stride + (head - args->q_head_begin) * head_dim;
  float merged_max = -INFINITY, merged_sum = 0;
  float values[MGL_MAX_HEAD_DIM];
  for (size_t begin = first / MGL_ATTENTION_SPLIT * MGL_ATTENTION_SPLIT; begin < count;
       begin += MGL_ATTENTION_SPLIT) {
    bool is_first = begin <= first;
    size_t from = is_first ? first - begin : 0;
    size_t length = count - begin < MGL_ATTENTION_SPLIT ? count - begin : MGL_ATTENTION_SPLIT;
    float max = -INFINITY, sum = 0;
    scores_of(kv, block_table, kv_head, q, begin, from, length, weights);
    for (size_t p = from; p < length; p++) {
      weights[p] *= args->scale * mgl_kv_k_scale(kv);
      max = fmaxf(max, weights[p]);
    }
    memset(split_out, 0, head_dim * sizeof(float));
    for (size_t p = from; p < length; p++) {
      size_t page = (size_t)block_table[(begin + p) / kv->page_tokens];
      size_t offset = (begin + p) % kv->page_tokens;
      float weight = expf(weights[p] - max);
      sum += weight;
      widen(kv->v, kv->dtype, value_index(kv, page, kv_head, offset, 0), head_dim, values);
      for (size_t i = 0; i < head_dim; i++) {
        split_out[i] += weight * values[i];
      }
    }
    float max_of_both = fmaxf(merged_max, max);
    float old_scale = is_first ? 0 : expf(merged_max - max_of_both);
    float new_scale = expf(max - max_of_both);
    for (size_t i = 0; i < head_dim; i++) {
      float old = is_first ? 0 : merged_out[i] * old_scale;
      merged_out[i] = old + split_out[i] * new_scale;
    }
    merged_sum = merged_sum * old_scale + sum * new_scale;
    merged_max = max_of_both;
  }
  if (args->sinks != NULL) {  // of one far above all scores: infinite, and the result is 0
    merged_sum += expf(args->sinks[head] - merged_max);
  }
  for (size_t i = 0; i < head_dim; i++) {
    store(args->out, args->out_dtype, (t * args->head_count + head) * head_dim + i,
          merged_out[i] * mgl_kv_v_scale(kv) / merged_sum);
  }
}

static void attention(const mgl_attention_args *args, void *scratch, size_t begin, size_t end) {
  size_t kv_heads = args->kv.kv_head_count, group = args->head_count / kv_heads;
  attention_layout layout = mgl_attention_layout((uint32_t)group, args->kv.head_dim);
  float *base = scratch;
  for (size_t unit = begin; unit < end; unit++) {
    const mgl_attention_item *item = &args->items[unit / kv_heads];
    const int32_t *table = args->block_tables + (size_t)item->sequence * args->block_table_stride;
    for (size_t pair = 0; pair < item->query_count * group; pair++) {
      attend(args, table, item->query_begin + pair / group, unit % kv_heads * group + pair % group,
             base + layout.weights, base + layout.split_out, base + layout.merged_out);
    }
  }
}

// exp(-x) is infinite below -88.7: the quotient is then -0, as it should be.
static void silu_mul(const mgl_silu_mul_args *args, size_t begin, size_t end) {
  for (size_t i = begin; i < end; i++) {
    float gate = args->gate[i];
    store(args->out, args->out_dtype, i, gate / (1.0f + expf(-gate)) * args->up[i]);
  }
}

static void gelu(const mgl_gelu_args *args, size_t begin, size_t end) {
  for (size_t i = begin; i < end; i++) {
    float x = args->x[i];
    float inner = MGL_GELU_SLOPE * (x + MGL_GELU_CUBE * x * x * x);
    store(args->out, args->out_dtype, i, x / (1.0f + expf(-inner)));
  }
}

static void add(const mgl_add_args *args, size_t begin, size_t end) {
  for (size_t i = begin; i < end; i++) {
    args->x[i] += args->y[i];
  }
}

float mgl_scalar_largest(const float *x, size_t count) {
  float largest = x[0];
  for (size_t i = 1; i < count && !isnan(largest); i++) {
    if (!(x[i] <= largest)) {
      largest = x[i];
    }
  }
  return largest;
}

// The sum of the 8-byte words, the last one filled up with zeros.
uint64_t mgl_scalar_read_stream(const void *memory, size_t bytes) {
  const char *data = memory;
  uint64_t sum = 0;
  for (; bytes >= 8; bytes -= 8, data += 8) {
    uint64_t word;
    memcpy(&word, data, sizeof word);
    sum += word;
  }
  uint64_t rest = 0;
  memcpy(&rest, data, bytes);
  return sum + rest;
}

const kernel_level mgl_level_scalar = {
    .kernels =
        {
            .name = "scalar",
            .embed = mgl_scalar_embed,
            .rmsnorm = rmsnorm,
            .layernorm = layernorm,
            .pack = pack,
            .linear = linear,
            .shorts = true,
            .rope_angles = mgl_scalar_rope_angles,
            .rope = rope,
            .kv_write = kv_write,
            .attention = attention,
            .silu_mul = silu_mul,
            .gelu = gelu,
            .add = add,
            .largest = mgl_scalar_largest,
            .splits = splits,
            .usual = {.pack_tokens = 20},
        },
    .read_stream = mgl_scalar_read_stream,
};
