// The CPU kernels: one table of functions per instruction set, chosen at run time.
//
// Every kernel computes a range [begin, end) of *units* of one op; units are independent, so that
// any worker may compute any range. What a unit is stands with each argument struct. The numerics
// contract (ARCHITECTURE.md): the bits of a unit's result depend on nothing but its own inputs; not
// on the range it came in, on the number of tokens in the call, or on the other rows. So every dot
// product has one accumulator order per kernel table, whatever the blocking around it.
//
// Dtypes: "act" is the activation dtype of the program: bf16 when all linear weights are bf16, else
// f32. The residual stream, Q, K, V before the cache, gate, up and logits are f32. All accumulation
// is f32. Dimension letters: T tokens, D hidden, H heads, HKV KV heads, HD head dim, P page tokens.
#ifndef MGL_KERNELS_CPU_CPU_KERNELS_H
#define MGL_KERNELS_CPU_CPU_KERNELS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/dtype.h"
#include "base/form.h"
#include "base/simd.h"
#include "graph/formulas.h"

// Embedding lookup: out[t][:] = table[tokens[t]][:]. Unit: a token t.
typedef struct mgl_embed_args {
  const int32_t *tokens;  // [T], each in [0, V)
  const void *table;      // [V, D] of table_dtype
  mgl_dtype table_dtype;  // f32, f16, bf16, or a code of base/form.h
  mgl_form table_form;    // with a code
  uint32_t width;         // D
  float *out;             // [T, D]
} mgl_embed_args;

// RMS norm of rows: out = x / sqrt(mean(x^2) + eps) * weight. Unit: a row. The layer norm has the
// same arguments: out = (x - mean(x)) / sqrt(mean((x - mean(x))^2) + eps) * weight + shift. With
// x_row_index, row r reads x[x_row_index[r]] (gather of the rows that need logits).
typedef struct mgl_rmsnorm_args {
  const float *x;               // [rows, width]
  const uint32_t *x_row_index;  // [rows] or NULL
  const float *weight;          // [width]
  uint32_t width;
  float eps;
  void *out;            // [rows, width] of out_dtype
  mgl_dtype out_dtype;  // bf16 or f32
  const float *shift;   // [width], of the layer norm only
} mgl_rmsnorm_args;

// How linears walk over their operands. What a processor is fast with differs, and so is chosen on
// the machine (device/cpu/cpu_tune.h); results are the same bits in every way.
typedef enum mgl_fetch { MGL_FETCH_NONE, MGL_FETCH_L1, MGL_FETCH_L2, MGL_FETCH_COUNT } mgl_fetch;

// Of one token: four rows of weights side by side, or one after the other; and what is fetched that
// is read `ahead` bytes later, side by side in whole blocks of four rows.
typedef struct mgl_single_way {
  bool in_turn;
  mgl_fetch fetch;
  uint32_t ahead;  // at most MGL_LINEAR_MOST_AHEAD
} mgl_single_way;

typedef struct mgl_linear_way {
  // One token; rows of `long_k` elements and more have a way of their own. 0: no rows are so long.
  mgl_single_way one, one_long;
  uint32_t long_k;
  // A few tokens: blocks of four rows between a fetch and its use; 0: nothing is fetched.
  uint32_t few_ahead;
  // Many tokens: from which number on x is packed; whether bf16 is packed as f32, odd and even
  // elements apart, for processors whose instruction for pairs is slower than two for f32; whether
  // the next rows are fetched into L2; and how many rows stay in a cache while the tokens pass, up
  // to MGL_LINEAR_SOME of them, and more.
  uint32_t pack_tokens;  // at least MGL_LINEAR_LEAST_PACKED
  bool split;
  bool many_fetch;
  uint32_t some_rows, many_rows;  // at least 4; 0: as many as are 256 KiB
  // Up to so many tokens read short rows, where there are some; at most MGL_LINEAR_MOST_SHORT. How
  // many bytes ahead of a row one token fetches into L1, at most MGL_LINEAR_MOST_AHEAD; 0: nothing.
  uint32_t short_tokens, short_ahead;
  // Where one token's integer codes are fetched that come behind the rows at hand.
  mgl_fetch codes_fetch;
} mgl_linear_way;

static inline const mgl_single_way *mgl_linear_single(const mgl_linear_way *way, uint32_t k) {
  return way->long_k == 0 || k < way->long_k ? &way->one : &way->one_long;
}

enum {
  MGL_LINEAR_MOST_AHEAD = 1 << 20,
  MGL_LINEAR_MOST_BLOCKS = 64,
  MGL_LINEAR_LEAST_PACKED = 2,
  MGL_LINEAR_SOME = 24,
  MGL_LINEAR_MOST_SHORT = 8,
};

// Linear: out[t][n] = sum_k x[t][k] * w[n][k] (+ bias[n]), or residual[t][n] + that sum, rounded in
// between as a linear and an add would. Unit: an output feature n.
// Supported (x, w) dtypes: (bf16, bf16), (f32, bf16), (f32, f16), (f32, f32), and both with codes.
typedef struct mgl_linear_args {
  const void *x;  // [T, K] of x_dtype, rows contiguous; or what `pack` made of them
  mgl_dtype x_dtype;
  bool packed;    // the latter: for many tokens and rows that is faster (mgl_linear_packs); never
                  // where weights are codes of floats, and always, as whole numbers, where they are
                  // integers
  bool split;     // as it was packed
  const void *w;  // [N, K] of w_dtype, row-major, as stored: aligned to its element only
  mgl_dtype w_dtype;
  uint32_t w_group;  // of codes, whose rows lie as base/form.h says; else 0
  bool w_offsets;
  // One token, or up to MGL_LINEAR_MOST_SHORT packed ones, x and w bf16: the matrix that w is of as
  // short rows (kernels/cpu/short_rows.h), and which of its rows is w's first. NULL: w is read.
  // Only where the table reads them (`shorts`).
  const void *w_short;
  size_t short_first;
  const float *bias;      // [N] or NULL
  const float *residual;  // [T, out_stride] or NULL; may be out itself
  uint32_t token_count;   // T >= 1; not packed, more than 64 in several passes over the weights
  uint32_t k;             // K, any value >= 1
  float *out;             // [T, out_stride]
  uint32_t out_stride;    // >= N
  // With packed x, rows [next_rows, K] of w_dtype that the caller will read next: they are fetched
  // meanwhile. NULL and 0: none.
  const void *next_w;
  uint32_t next_rows;
  const mgl_linear_way *way;  // NULL: the table's usual one
} mgl_linear_args;

static inline mgl_form mgl_linear_form(const mgl_linear_args *args) {
  return (mgl_form){.dtype = args->w_dtype, .group = args->w_group, .offsets = args->w_offsets};
}

// Rearranges rows of x as `linear` of the same table reads them.
typedef struct mgl_pack_args {
  const void *x;    // [T, K] of dtype, rows contiguous
  mgl_dtype dtype;  // bf16 or f32
  bool split;       // only of bf16: see mgl_linear_way
  bool whole;       // for weights that are integer codes: as whole numbers (kernels/cpu/whole.h)
  uint32_t token_count;
  uint32_t k;
  void *out;  // mgl_packed_bytes, or mgl_whole_bytes; aligned to 64
} mgl_pack_args;

// Of any table and way.
size_t mgl_packed_bytes(uint32_t token_count, uint32_t k, mgl_dtype dtype);
// As whole numbers.
size_t mgl_whole_bytes(uint32_t token_count, uint32_t k);

// Whether packing x pays for a linear of so many tokens and output features in one call; of short
// rows, more than one token must be packed.
bool mgl_linear_packs(const mgl_linear_way *way, uint32_t token_count, size_t features);

// Whether so many tokens read short rows, where there are some.
static inline bool mgl_linear_reads_shorts(const mgl_linear_way *way, uint32_t token_count) {
  return token_count <= way->short_tokens;
}

// Rotary angles of one iteration: out[t][i] = amplitude * (cos, sin)(positions[t] * frequency[i]),
// the product with the frequency rounded to f32 first, as the Hugging Face reference does. Rows
// whose length is above `original` have other frequencies: those behind the others, or, with a
// theta, those of the base that grows (graph/rope.h). Unit: a token t.
typedef struct mgl_rope_angles_args {
  const uint32_t *positions;  // [T]
  const uint32_t *lengths;    // [T]; NULL where frequencies do not depend on them
  const float *inv_freq;      // [RD/2], or [2 * RD/2] with lengths and no theta
  uint32_t half_dim;          // RD/2
  float amplitude;
  double original, theta, factor;  // with lengths
  float *out;                      // [T, RD/2, 2]: cos, sin
} mgl_rope_angles_args;

// Rotary embedding, in place, of the pairs (i, i + RD/2) of the first RD elements of every head.
// Unit: a token t.
typedef struct mgl_rope_args {
  float *x;             // [T, heads, HD]
  const float *angles;  // [T, RD/2, 2]
  uint32_t head_count;
  uint32_t head_dim;
  uint32_t rotary_dim;  // RD
} mgl_rope_args;

// The KV cache of one layer. K is stored with the position fastest inside a page, so that a vector
// of scores needs no horizontal sum; V with the head dim fastest.
//   K: [blocks, HKV, B, HD, P]   V: [blocks, HKV, B, P, HD]   both of dtype bf16, f32 or e4m3
// A block is B = MGL_KV_BLOCK_TOKENS / P pages with consecutive numbers, the last one those that
// are left. So pages of a sequence that follow each other are one stream of each head, which a
// processor reads faster than pages that lie apart (docs/log/304); and a sequence of few tokens
// touches little memory, which one of all pages of a head would not.
// E4M3 elements are what a value over its scale rounds to (mgl_f32_to_e4m3); the scales are
// multiplied in behind the sums, onto the scores and the results.
typedef struct mgl_kv_layer {
  void *k;
  void *v;
  mgl_dtype dtype;
  uint32_t page_tokens;  // P: a multiple of 16 that divides MGL_ATTENTION_SPLIT
  uint32_t kv_head_count;
  uint32_t head_dim;
  float k_scale, v_scale;  // of e4m3; other dtypes have none
  uint32_t page_count;     // of all sequences
} mgl_kv_layer;

enum { MGL_KV_BLOCK_TOKENS = 1024 };

// Elements of K, or of V, in front of those of one head in a page.
static inline size_t mgl_kv_block(const mgl_kv_layer *kv, size_t page, size_t kv_head) {
  size_t pages = MGL_KV_BLOCK_TOKENS / kv->page_tokens, first = page / pages * pages;
  pages = kv->page_count - first < pages ? kv->page_count - first : pages;
  return (first * kv->kv_head_count + kv_head * pages + page - first) * kv->page_tokens *
         kv->head_dim;
}

static inline float mgl_kv_k_scale(const mgl_kv_layer *kv) {
  return kv->dtype == MGL_DTYPE_KV8 ? kv->k_scale : 1;
}

static inline float mgl_kv_v_scale(const mgl_kv_layer *kv) {
  return kv->dtype == MGL_DTYPE_KV8 ? kv->v_scale : 1;
}

// Writes new K and V rows of some KV heads into the cache. Unit: a token t. slot = page * P +
// offset in the page.
typedef struct mgl_kv_write_args {
  const float *k;   // row of head_begin of token t at k + t * k_stride, the next heads behind it
  const float *v;   // the same with v_stride
  size_t k_stride;  // floats from a token to the next; HKV * HD where all heads stand together
  size_t v_stride;
  uint32_t head_begin;    // heads [head_begin, head_end) are written
  uint32_t head_end;      // at most HKV
  const uint32_t *slots;  // [T]
  mgl_kv_layer kv;
} mgl_kv_write_args;

// Softmax runs over splits of this many absolute positions: [0, 256), [256, 512) ... Each split
// gives (max, sum, weighted V); splits are merged in ascending order. So the bits do not depend on
// how a prompt was chunked, nor on whether one worker or several compute the splits of one query.
enum { MGL_ATTENTION_SPLIT = 256, MGL_ATTENTION_QUERY_TILE = 12 };

// One entry of the attention work list: consecutive tokens of one sequence, positions ascending.
typedef struct mgl_attention_item {
  uint32_t sequence;     // index into block_tables
  uint32_t query_begin;  // first token (row of q)
  uint32_t query_count;  // 1 to MGL_ATTENTION_QUERY_TILE
} mgl_attention_item;

// Positions [begin, end) of one KV head of a sequence.
typedef struct mgl_attention_range {
  const int32_t *block_table;  // of the sequence
  uint32_t kv_head;
  size_t begin, end;
} mgl_attention_range;

// Causal attention over paged KV: token t attends to positions 0..positions[t] of its sequence,
// with a window w to the last w of these; pages without any of them are not read. Unit: item * HKV
// + kv_head; it computes all H/HKV query heads of that KV head.
typedef struct mgl_attention_args {
  const float *q;         // row of head h of token t at q + t * q_stride + (h - q_head_begin) * HD
  size_t q_stride;        // floats from a token to the next; H * HD where all heads are there
  uint32_t q_head_begin;  // first head that q holds; 0 where all are there
  const mgl_attention_item *items;  // [item_count]
  const uint32_t *positions;        // [T] absolute position of each token
  const int32_t *block_tables;      // [sequences, block_table_stride] page numbers, -1 = unused
  uint32_t block_table_stride;
  mgl_kv_layer kv;
  uint32_t head_count;  // H
  uint32_t window;      // tokens; 0: all
  float scale;          // 1/sqrt(HD)
  const float *sinks;  // [H], or NULL: exp of them joins the sums of the softmax, behind all splits
  void *out;           // [T, H, HD] of out_dtype
  mgl_dtype out_dtype;  // bf16 or f32
  // What the caller attends to behind these units, in a call of its own: the first of it is fetched
  // meanwhile. Without a block table: nothing.
  mgl_attention_range next;
} mgl_attention_args;

// Bytes of 64-byte aligned scratch that one worker needs for attention.
size_t mgl_attention_scratch_bytes(uint32_t head_count, uint32_t kv_head_count, uint32_t head_dim);

// Gated activation: out = silu(gate) * up, silu(x) = x / (1 + exp(-x)). Unit: one element of [T *
// F].
typedef struct mgl_silu_mul_args {
  const float *gate;  // [T, F]
  const float *up;    // [T, F]
  void *out;          // [T, F] of out_dtype
  mgl_dtype out_dtype;
} mgl_silu_mul_args;

// Activation: out = x / (1 + exp(-2 sqrt(2 / pi) (x + 0.044715 x^3))). Unit: an element of [T * F].
typedef struct mgl_gelu_args {
  const float *x;  // [T, F]
  void *out;       // [T, F] of out_dtype
  mgl_dtype out_dtype;
} mgl_gelu_args;

// x += y. Unit: one element.
typedef struct mgl_add_args {
  float *x;
  const float *y;
} mgl_add_args;

typedef struct mgl_cpu_kernels {
  const char *name;  // "scalar", "avx2", "avx512", "avx512_bf16", "amx_bf16"
  void (*embed)(const mgl_embed_args *args, size_t begin, size_t end);
  void (*rmsnorm)(const mgl_rmsnorm_args *args, size_t begin, size_t end);
  void (*layernorm)(const mgl_rmsnorm_args *args, size_t begin, size_t end);
  void (*pack)(const mgl_pack_args *args);
  void (*linear)(const mgl_linear_args *args, size_t begin, size_t end);
  void (*rope_angles)(const mgl_rope_angles_args *args, size_t begin, size_t end);
  void (*rope)(const mgl_rope_args *args, size_t begin, size_t end);
  void (*kv_write)(const mgl_kv_write_args *args, size_t begin, size_t end);
  void (*attention)(const mgl_attention_args *args, void *scratch, size_t begin, size_t end);
  void (*silu_mul)(const mgl_silu_mul_args *args, size_t begin, size_t end);
  void (*gelu)(const mgl_gelu_args *args, size_t begin, size_t end);
  void (*add)(const mgl_add_args *args, size_t begin, size_t end);
  // The largest of count >= 1 elements, of equal ones (0 and -0) any; a NaN if one of them is.
  float (*largest)(const float *x, size_t count);
  // Whether this processor computes split operands to the bits of pairs. Where not, no way may
  // split. Takes microseconds.
  bool (*splits)(void);
  // Linears of bf16 go by tile registers: of a way, only one_*, pack_tokens and many_fetch count.
  bool tiles;
  bool shorts;           // `linear` reads short rows
  mgl_linear_way usual;  // of linears on a processor that nothing is known of
} mgl_cpu_kernels;

// The table of a SIMD level that this processor has (base/cpu.h); asserts that it was compiled in.
const mgl_cpu_kernels *mgl_cpu_kernels_for(mgl_simd simd);

// Reads `bytes` bytes of memory as fast as this table's widest loads can and returns the sum of its
// 8-byte words, the last one filled up with zeros (so that the loads are not removed). The read
// ceiling of `megalith bench` is the best of several such passes.
uint64_t mgl_cpu_read_stream(mgl_simd simd, const void *memory, size_t bytes);

#endif
