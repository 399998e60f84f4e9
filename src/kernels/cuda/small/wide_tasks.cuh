// The small tasks of the wide class: embed, rope_angles and the norms. A unit of embed and of norms
// is eight tokens, which lie together in the residual stream; lane 4 g + t has tokens 2 t and 2 t +
// 1 of them, as in the sums of a product (wide_layout.h).
#ifndef MGL_KERNELS_CUDA_SMALL_WIDE_TASKS_CUH
#define MGL_KERNELS_CUDA_SMALL_WIDE_TASKS_CUH

#include "kernels/cuda/roles/wide_ranks.cuh"
#include "kernels/cuda/roles/wide_worker.cuh"

// Columns of 16 features of eight tokens: where this lane's are.
MGL_DEVICE uint64_t mgl_wide_column(uint32_t tokens, uint32_t unit, uint32_t column,
                                    uint32_t lane) {
  return ((uint64_t)column * (tokens / 8) + unit) * 32 + lane;
}

// --- embed and rope_angles -----------------------------------------------------------------------

MGL_DEVICE float mgl_wide_table_value(const mgl_cuda_op *op, int32_t token, uint32_t feature) {
  const uint16_t *table = (const uint16_t *)op->weights;
  return feature < op->n
             ? mgl_widen_bf16(__ldg(table + (uint64_t)(uint32_t)token * op->n + feature))
             : 0;
}

MGL_DEVICE void mgl_wide_task_embed(const mgl_wide_worker *w, const mgl_wide_slot *slot) {
  const mgl_cuda_op *op = &slot->op;
  const mgl_wide_plan *plan = w->run->plan;
  uint32_t g = w->lane / 4;
  for (uint32_t unit = slot->step.begin; unit < slot->step.end; unit++) {
    uint32_t row = unit * 8 + w->lane % 4 * 2;
    int32_t first = row < plan->token_count ? plan->tokens[row] : 0;
    int32_t second = row + 1 < plan->token_count ? plan->tokens[row + 1] : 0;
#pragma unroll 4
    for (uint32_t column = w->warp; column * 16 < op->n; column += MGL_WIDE_CONSUMER_WARPS) {
      uint32_t feature = column * 16 + g;
      ((float4 *)op->out)[mgl_wide_column(op->tokens, unit, column, w->lane)] = make_float4(
          mgl_wide_table_value(op, first, feature), mgl_wide_table_value(op, second, feature),
          mgl_wide_table_value(op, first, feature + 8),
          mgl_wide_table_value(op, second, feature + 8));
    }
  }
}

// Units are rows: [HD / 2] pairs of cosine and sine of position times frequency.
MGL_DEVICE void mgl_wide_task_angles(const mgl_wide_worker *w, const mgl_wide_slot *slot) {
  const uint32_t half = MGL_HEAD_DIM / 2;
  const mgl_wide_plan *plan = w->run->plan;
  uint32_t end = mgl_wide_least(slot->step.end, plan->token_count);
  for (uint32_t i = slot->step.begin * half + w->warp * 32 + w->lane; i < end * half;
       i += MGL_WIDE_CONSUMERS) {
    float angle = (float)plan->positions[i / half] * __ldg(slot->op.angles + i % half);
    float2 pair;
    sincosf(angle, &pair.y, &pair.x);
    ((float2 *)slot->op.out)[i] = pair;
  }
}

// --- norms ---------------------------------------------------------------------------------------
//
// A norm is cut in two. Its own task weighs the residual stream with the norm's weights, as the x
// of the linear behind it, and leaves the sum of squares of every range of features; the linear
// multiplies its sums by the rows' factors. So a norm has many small units without a barrier.

// A column of 16 features of the unit's tokens, 0 beyond the last feature. gather: of any rows.
template <bool gather>
MGL_DEVICE float4 mgl_wide_load_column(const mgl_cuda_op *op, const void *stream, uint32_t unit,
                                       const uint32_t rows[2], uint32_t column, uint32_t lane) {
  uint32_t feature = column * 16 + lane / 4;
  float4 v = make_float4(0, 0, 0, 0);
  if (column * 16 >= op->k) {
    return v;
  }
  if (gather) {
    const uint8_t *first =
        (const uint8_t *)stream + mgl_wide_residual_offset(op->tokens, rows[0], feature);
    const uint8_t *second =
        (const uint8_t *)stream + mgl_wide_residual_offset(op->tokens, rows[1], feature);
    v = make_float4(*(const float *)first, *(const float *)second, *(const float *)(first + 8),
                    *(const float *)(second + 8));
  } else {
    v = ((const float4 *)stream)[mgl_wide_column(op->tokens, unit, column, lane)];
  }
  if (feature + 8 >= op->k) {  // k is a multiple of 8
    v.z = 0;
    v.w = 0;
  }
  return v;
}

// Where the result of a norm of gathered rows goes, of MGL_WIDE_SCATTERS: to all ranks, and of the
// lane's two tokens those that are this rank's. (The rows of MGL_WIDE_TURNED are sent later.) Of
// others over is NULL.
struct mgl_wide_reach {
  const mgl_wide_block *over;
  bool own[2];
};

template <typename type>
MGL_DEVICE void mgl_wide_put(const mgl_wide_reach *reach, uint32_t token, type *to, type value) {
  if (MGL_RANKS == 1 || reach->over == nullptr) {
    *to = value;
    return;
  }
  if (reach->own[token]) {
#pragma unroll
    for (uint32_t rank = 0; rank < MGL_RANKS; rank++) {
      *mgl_at_peer(to, reach->over->peers[rank]) = value;
    }
  }
}

// 32 features of the tokens as a chunk of x for each lane: those of even g take the first token,
// those of odd g the second. x: of so many rows; weights: the norm's, of features g + 8 i.
MGL_DEVICE void mgl_wide_store_chunk(const mgl_wide_reach *reach, uint8_t *x, uint32_t rows,
                                     uint32_t unit, uint32_t group, uint32_t lane, float4 low,
                                     float4 high, const float weights[4]) {
  const float first[4] = {low.x, low.z, high.x, high.z};
  const float second[4] = {low.y, low.w, high.y, high.w};
  bool odd = lane / 4 % 2 != 0;
  float keep[4];
  float give[4];
#pragma unroll
  for (int i = 0; i < 4; i++) {
    keep[i] = (odd ? second[i] : first[i]) * weights[i];
    give[i] = (odd ? first[i] : second[i]) * weights[i];
  }
  uint32_t words[4];
#pragma unroll
  for (int i = 0; i < 2; i++) {
    uint32_t own = mgl_pack_bf16(keep[2 * i], keep[2 * i + 1]);
    uint32_t got = __shfl_xor_sync(0xffffffffu, mgl_pack_bf16(give[2 * i], give[2 * i + 1]), 4);
    uint32_t even_g = odd ? got : own;
    uint32_t odd_g = odd ? own : got;
    words[2 * i] = __byte_perm(even_g, odd_g, 0x5410);
    words[2 * i + 1] = __byte_perm(even_g, odd_g, 0x7632);
  }
  uint32_t token = unit * 8 + lane % 4 * 2 + (odd ? 1 : 0);
  uint64_t at = mgl_wide_x_chunk(rows, token, group * 4 + lane / 8);
  mgl_wide_put(reach, odd ? 1 : 0, (uint4 *)(x + at),
               make_uint4(words[0], words[1], words[2], words[3]));
}

MGL_DEVICE void mgl_wide_store_weighed(const mgl_wide_reach *reach, const mgl_cuda_op *op,
                                       uint32_t unit, uint32_t group, uint32_t lane, float4 low,
                                       float4 high) {
  const float *norm = op->norm + group * 32 + lane / 4;
  float weights[4];
#pragma unroll
  for (int i = 0; i < 4; i++) {
    bool there = group * 32 + lane / 4 + 8 * i < op->k;
    weights[i] = there ? __ldg(norm + 8 * i) : 0;
  }
  mgl_wide_store_chunk(reach, (uint8_t *)op->out, op->row_tiles, unit, group, lane, low, high,
                       weights);
}

// The sums of squares of a range, from those of the lane's two tokens.
MGL_DEVICE void mgl_wide_store_squares(const mgl_wide_reach *reach, float *out, uint32_t rows,
                                       uint32_t unit, uint32_t range, uint32_t lane,
                                       float sums[2]) {
  for (int offset = 4; offset < 32; offset *= 2) {
    sums[0] += __shfl_xor_sync(0xffffffffu, sums[0], offset);
    sums[1] += __shfl_xor_sync(0xffffffffu, sums[1], offset);
  }
  if (lane < 4) {
    float *squares = out + (size_t)range * rows + unit * 8 + lane * 2;
    if (MGL_RANKS == 1 || reach->over == nullptr) {
      *(float2 *)squares = make_float2(sums[0], sums[1]);
    } else {
      mgl_wide_put(reach, 0, squares, sums[0]);
      mgl_wide_put(reach, 1, squares + 1, sums[1]);
    }
  }
}

MGL_DEVICE float4 mgl_wide_plus(float4 a, float4 b) {
  return make_float4(a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w);
}

// One range of features of eight tokens, by one warp. Where the linear before was split along k,
// its parts are added first, and the residual stream becomes that (unless rows are gathered, which
// are the last to read it).
template <bool gather>
MGL_DEVICE void mgl_wide_weigh(const mgl_wide_reach *reach, const mgl_cuda_op *op, uint32_t unit,
                               uint32_t range, const uint32_t rows[2], uint32_t lane) {
  constexpr int batch = 4;      // columns at once
  constexpr uint32_t more = 4;  // and parts of them
  const uint32_t columns = MGL_WIDE_NORM_RANGE / 16;
  const uint32_t parts = op->bias != nullptr ? op->passes : 0;
  float sums[2] = {0, 0};
#pragma unroll 1
  for (uint32_t at = 0; at < columns; at += batch) {
    const uint32_t first = range * columns + at;
    float4 v[batch];
#pragma unroll
    for (int i = 0; i < batch; i++) {
      v[i] = mgl_wide_load_column<gather>(op, op->x, unit, rows, first + i, lane);
    }
#pragma unroll 1
    for (uint32_t part = 0; part < parts; part += more) {
      float4 p[more][batch];
#pragma unroll
      for (uint32_t j = 0; j < more; j++) {
        const uint8_t *from = (const uint8_t *)op->bias + (part + j) * op->copy_bytes;
#pragma unroll
        for (int i = 0; i < batch; i++) {
          p[j][i] = make_float4(0, 0, 0, 0);
          if (part + j < parts) {
            p[j][i] = mgl_wide_load_column<gather>(op, from, unit, rows, first + i, lane);
          }
        }
      }
#pragma unroll
      for (uint32_t j = 0; j < more; j++) {
#pragma unroll
        for (int i = 0; i < batch; i++) {
          v[i] = mgl_wide_plus(v[i], p[j][i]);
        }
      }
    }
#pragma unroll
    for (int i = 0; i < batch; i++) {
      sums[0] += v[i].x * v[i].x + v[i].z * v[i].z;
      sums[1] += v[i].y * v[i].y + v[i].w * v[i].w;
      if (!gather && parts > 0 && (first + i) * 16 < op->k) {
        ((float4 *)op->x)[mgl_wide_column(op->tokens, unit, first + i, lane)] = v[i];
      }
    }
#pragma unroll
    for (int i = 0; i < batch; i += 2) {
      if ((first + i) * 16 < op->k_padded) {
        mgl_wide_store_weighed(reach, op, unit, (first + i) / 2, lane, v[i], v[i + 1]);
      }
    }
  }
  mgl_wide_store_squares(reach, (float *)op->residual, op->row_tiles, unit, range, lane, sums);
}

// Weighs a range that has all its features, to the same bits as mgl_wide_weigh, without a branch
// between loads: each branch costs more than the load (docs/log/131).
MGL_DEVICE void mgl_wide_weigh_whole(const mgl_wide_reach *reach, const mgl_cuda_op *op,
                                     uint32_t unit, uint32_t range, uint32_t lane) {
  constexpr int batch = 4;  // columns at once
  // And parts of them. Of two ranks large iterations have two.
  constexpr uint32_t more = MGL_RANKS == 2 && !MGL_WIDE_FEW ? 2 : 4;
  constexpr uint32_t columns = MGL_WIDE_NORM_RANGE / 16;
  const uint32_t count = op->bias != nullptr ? op->passes : 0, rows = op->row_tiles;
  const uint64_t column = (uint64_t)(op->tokens / 8) * 32;  // from a column to the next
  const uint64_t first = mgl_wide_column(op->tokens, unit, range * columns, lane);
  const uint64_t of_part = op->copy_bytes / sizeof(float4);
  float4 *stream = (float4 *)op->x + first;
  const float4 *parts = (const float4 *)op->bias + first;
  uint8_t *x = (uint8_t *)op->out;
  const float *norm = op->norm + range * MGL_WIDE_NORM_RANGE + lane / 4;
  float weights[2 * columns];
  float sums[2] = {0, 0};
#pragma unroll
  for (uint32_t i = 0; i < 2 * columns; i++) {
    weights[i] = __ldg(norm + 8 * i);
  }
#pragma unroll
  for (uint32_t at = 0; at < columns; at += batch) {
    float4 v[batch];
#pragma unroll
    for (int i = 0; i < batch; i++) {
      v[i] = stream[(at + i) * column];
    }
#pragma unroll 1
    for (uint32_t part = 0; part < count; part += more) {
      float4 p[more][batch];
#pragma unroll
      for (uint32_t j = 0; j < more; j++) {
        const uint32_t number = mgl_wide_least(part + j, count - 1);
#pragma unroll
        for (int i = 0; i < batch; i++) {
          p[j][i] = parts[number * of_part + (at + i) * column];
        }
      }
#pragma unroll
      for (uint32_t j = 0; j < more; j++) {
#pragma unroll
        for (int i = 0; i < batch; i++) {
          v[i] = mgl_wide_plus(v[i], part + j < count ? p[j][i] : make_float4(0, 0, 0, 0));
        }
      }
    }
#pragma unroll
    for (int i = 0; i < batch; i++) {
      sums[0] += v[i].x * v[i].x + v[i].z * v[i].z;
      sums[1] += v[i].y * v[i].y + v[i].w * v[i].w;
      if (count > 0) {
        stream[(at + i) * column] = v[i];
      }
    }
#pragma unroll
    for (int i = 0; i < batch; i += 2) {
      mgl_wide_store_chunk(reach, x, rows, unit, (range * columns + at + i) / 2, lane, v[i],
                           v[i + 1], weights + 2 * (at + i));
    }
  }
  mgl_wide_store_squares(reach, (float *)op->residual, op->row_tiles, unit, range, lane, sums);
}

// A quarter of a range that has all its features, of eight tokens, by one of four warps, where
// those who made the sums do the norm: all that it adds is asked for at once. sums: of squares, in
// lanes 0 to 3, of the lane's two tokens.
MGL_DEVICE void mgl_wide_weigh_quarter(const mgl_cuda_op *op, uint32_t unit, uint32_t range,
                                       uint32_t quarter, uint32_t lane, float sums[2]) {
  constexpr uint32_t more = 8;                                          // parts at once
  const uint32_t group = range * (MGL_WIDE_NORM_RANGE / 32) + quarter;  // of 32 features
  const uint64_t first = mgl_wide_column(op->tokens, unit, group * 2, lane);
  const uint64_t column = (uint64_t)(op->tokens / 8) * 32;
  const uint64_t of_part = op->copy_bytes / sizeof(float4);
  float4 *stream = (float4 *)op->x + first;
  const float4 *parts = (const float4 *)op->bias + first;
  const mgl_wide_reach here = {nullptr, {true, true}};
  float4 v[2] = {stream[0], stream[column]};
  float weights[4];
#pragma unroll
  for (uint32_t i = 0; i < 4; i++) {
    weights[i] = __ldg(op->norm + group * 32 + lane / 4 + 8 * i);
  }
#pragma unroll 1
  for (uint32_t part = 0; part < op->passes; part += more) {
    float4 p[more][2];
#pragma unroll
    for (uint32_t j = 0; j < more; j++) {
      const uint64_t at = mgl_wide_least(part + j, op->passes - 1) * of_part;
      p[j][0] = parts[at];
      p[j][1] = parts[at + column];
    }
#pragma unroll
    for (uint32_t j = 0; j < more; j++) {
      const bool there = part + j < op->passes;
      v[0] = mgl_wide_plus(v[0], there ? p[j][0] : make_float4(0, 0, 0, 0));
      v[1] = mgl_wide_plus(v[1], there ? p[j][1] : make_float4(0, 0, 0, 0));
    }
  }
  stream[0] = v[0];
  stream[column] = v[1];
  mgl_wide_store_chunk(&here, (uint8_t *)op->out, op->row_tiles, unit, group, lane, v[0], v[1],
                       weights);
  sums[0] = v[0].x * v[0].x + v[0].z * v[0].z + v[1].x * v[1].x + v[1].z * v[1].z;
  sums[1] = v[0].y * v[0].y + v[0].w * v[0].w + v[1].y * v[1].y + v[1].w * v[1].w;
#pragma unroll
  for (int offset = 4; offset < 32; offset *= 2) {
    sums[0] += __shfl_xor_sync(0xffffffffu, sums[0], offset);
    sums[1] += __shfl_xor_sync(0xffffffffu, sums[1], offset);
  }
}

// One range of features of eight tokens, of all rows.
MGL_DEVICE void mgl_wide_weigh_rows(const mgl_wide_reach *reach, const mgl_cuda_op *op,
                                    uint32_t unit, uint32_t range, uint32_t lane) {
  const uint32_t rows[2] = {0, 0};
  if ((range + 1) * MGL_WIDE_NORM_RANGE <= op->k) {
    mgl_wide_weigh_whole(reach, op, unit, range, lane);
  } else {
    mgl_wide_weigh<false>(reach, op, unit, range, rows, lane);
  }
}

// The eight tokens with number `eight` among those of tiles with wanted rows.
MGL_DEVICE uint32_t mgl_wide_wanted_eight(const mgl_wide_worker *w, uint32_t eight) {
  constexpr uint32_t of_tile = MGL_WIDE_TILE_TOKENS / 8;
  return w->block->wanted[eight / of_tile] * of_tile + eight % of_tile;
}

// Units are ranges of features of eight tokens, tokens fastest; of MGL_WIDE_TURNED, of this rank's
// own tokens, tile by tile, so that a chain's units follow each other. op.tokens: rows of the
// residual stream; op.row_tiles: of the result.
MGL_DEVICE void mgl_wide_task_norm(const mgl_wide_worker *w, const mgl_wide_slot *slot) {
  const mgl_wide_plan *plan = w->run->plan;
  const mgl_cuda_op *op = &slot->op;
  bool gathers = (op->flags & MGL_WIDE_GATHERS) != 0;
  uint32_t count = gathers ? plan->logit_row_count : plan->token_count;
  uint32_t of_range = op->row_tiles / 8;
  const bool scatters = MGL_RANKS > 1 && (op->flags & MGL_WIDE_SCATTERS) != 0;
  const uint32_t rank = w->block->rank;
  const bool turned = MGL_RANKS > 1 && (op->flags & MGL_WIDE_TURNED) != 0;
  const bool picks = (op->flags & MGL_WIDE_WANTED) != 0;
  mgl_wide_reach reach = {scatters && gathers ? w->block : nullptr, {true, true}};
  uint32_t begin = slot->step.begin, end = slot->step.end;
  if (MGL_RANKS == 1 && picks) {  // equal shares of the units that are wanted
    const uint32_t there = w->block->wanted_count * (MGL_WIDE_TILE_TOKENS / 8);
    begin = begin * there / of_range;
    end = end * there / of_range;
    of_range = there;
  }
  for (uint32_t i = begin + w->warp; i < end; i += MGL_WIDE_CONSUMER_WARPS) {
    const mgl_wide_own_unit own = mgl_wide_own_unit_of(op, i, rank);
    uint32_t unit = turned ? own.eight : i % of_range;
    if (MGL_RANKS == 1 && picks) {
      unit = mgl_wide_wanted_eight(w, unit);
    }
    uint32_t row = unit * 8 + w->lane % 4 * 2;
    uint32_t rows[2] = {0, 0};
    if (unit * 8 >= count || !mgl_wide_is_wanted(w->block, op, unit * 8)) {
      continue;
    }
    if (gathers) {
      rows[0] = row < count ? plan->logit_rows[row] : 0;
      rows[1] = row + 1 < count ? plan->logit_rows[row + 1] : 0;
      if (scatters) {
        reach.own[0] = mgl_wide_owner(rows[0]) == rank;
        reach.own[1] = mgl_wide_owner(rows[1]) == rank;
      }
      mgl_wide_weigh<true>(&reach, op, unit, i / of_range, rows, w->lane);
    } else {
      mgl_wide_weigh_rows(&reach, op, unit, turned ? own.range : i / of_range, w->lane);
    }
  }
}

#endif
