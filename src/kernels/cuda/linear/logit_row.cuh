// A row of logits and questions about it, for the whole block: which keys are the largest, and with
// which does a sum over descending keys reach a target.
//
// Sums are of integers (twin/sampling_rule.h), so that answers do not depend on which thread adds
// what first.
#ifndef MGL_KERNELS_CUDA_LINEAR_LOGIT_ROW_CUH
#define MGL_KERNELS_CUDA_LINEAR_LOGIT_ROW_CUH

#include "kernels/cuda/common/worker.cuh"
#include "kernels/cuda/small/tasks_iteration.cuh"

// --- keys ----------------------------------------------------------------------------------------

// Larger floats have larger bits; all zeros are one, and so are all NaNs, the largest.
static __device__ inline uint32_t mgl_order_float(float value) {
  uint32_t bits = value == 0 ? 0 : __float_as_uint(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) {
    return UINT32_MAX;
  }
  return (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
}

static __device__ inline float mgl_float_of_order(uint32_t ordered) {
  return __uint_as_float((ordered & 0x80000000u) != 0 ? ordered ^ 0x80000000u : ~ordered);
}

static __device__ inline bool mgl_is_finite(float value) {
  return (__float_as_uint(value) & 0x7f800000u) != 0x7f800000u;
}

// A logit and its index in one word. The largest word is the largest logit's, the smallest index
// among equals; descending words are the order in which the host's sampler sorts.
static __device__ inline uint64_t mgl_ordered_best(float value, uint32_t index) {
  return (uint64_t)mgl_order_float(value) << 32 | (uint32_t)~index;
}

static __device__ inline float mgl_key_logit(uint64_t key) {
  return mgl_float_of_order((uint32_t)(key >> 32));
}

static __device__ inline uint32_t mgl_key_index(uint64_t key) {
  return ~(uint32_t)key;
}

// --- a row and its list --------------------------------------------------------------------------
//
// "The k-th", "where the sum reaches top_p" and "where the sum passes the random number" are one
// question: with which key does a running sum over descending keys, of ones or of weights, reach a
// target? A list of sorted keys with running sums answers it. It is first made of the keys within a
// few temperatures of the largest logit, where the answer nearly always is. If it is not, or if
// those are too many, passes over the row divide an interval of keys that contains the answer into
// 1024 parts, until what is in the part with the answer fits into a list.
//   Rejected: halving the interval, 20 passes where a large vocabulary has flat logits.

enum {
  MGL_LIST_KEYS = 2048,
  MGL_PARTS = 1024,  // of an interval
  // Shared memory adds 32 bits at once, and 64 only by trying. 2^20 pieces fit into 32 bits.
  MGL_MASS_PIECES = 4,
  MGL_PIECE_BITS = MGL_WEIGHT_BITS / MGL_MASS_PIECES,
  MGL_LOGIT_QUADS = 4,  // 16-byte loads of a thread at once
};

// An interval of keys [low, high), how many with weight are in it and above it, and the same of
// their weights.
struct mgl_interval {
  uint64_t low, high;
  uint64_t count, above_count;
  uint64_t mass, above_mass;
  bool listed;  // the list in scratch is it
};

struct mgl_sampling_scratch {
  union {
    struct {
      uint64_t keys[MGL_LIST_KEYS];
      uint64_t sums[MGL_LIST_KEYS];  // of the weights of keys up to this one
    };
    struct {
      uint32_t part_count[MGL_PARTS];
      uint32_t part_mass[MGL_MASS_PIECES][MGL_PARTS];  // sums of each 10 bits of the weights
    };
  };
  uint64_t partial[2][MGL_CUDA_CONSUMER_WARPS];
  mgl_cuda_logprobs logprobs;
  uint32_t counts[MGL_CUDA_CONSUMER_WARPS];
  uint32_t listed;      // keys that were to be in the list
  uint32_t part;        // that has what was looked for,
  mgl_interval within;  // and its sums
  uint32_t joined;      // not 0: the latest token had an edit
};

static_assert(offsetof(mgl_sampling_scratch, logprobs) % 16 == 0, "sent 16 bytes at once");

static_assert(sizeof(mgl_sampling_scratch) <= MGL_CUDA_SCRATCH_BYTES, "scratch");

// A row of logits, as a thread sees it.
struct mgl_logit_row {
  const mgl_worker *w;
  mgl_sampling_scratch *scratch;
  const float *logits;  // [count], aligned to 4 bytes
  uint32_t count;
  uint32_t shift;  // floats from a multiple of 16 bytes to the first logit
  float largest;
  float inverse;  // of the temperature
  float least;    // what a logit may lie below the largest one, in temperatures, to have weight
};

static __device__ inline uint64_t mgl_weight(const mgl_logit_row *row, float logit) {
  float below = mgl_logit_below(logit, row->largest, row->inverse);
  return below >= row->least ? mgl_logit_weight(below) : 0;
}

// Id of the float `part` of quad number `quad` of the row; at least `count` where it is none of it.
static __device__ inline uint32_t mgl_logit_id(const mgl_logit_row *row, uint32_t quad,
                                               uint32_t part) {
  return quad * 4 + part - row->shift;
}

static __device__ inline uint32_t mgl_quad_count(const mgl_logit_row *row) {
  return (row->shift + row->count + 3) / 4;
}

// Quads first + i * stride. Those behind the row repeat its last one: their ids say so.
static __device__ inline void mgl_load_quads(const mgl_logit_row *row, uint32_t first,
                                             uint32_t stride, float4 quads[MGL_LOGIT_QUADS]) {
  uint32_t last = mgl_quad_count(row) - 1;
  const float *aligned = row->logits - row->shift;
#pragma unroll
  for (uint32_t i = 0; i < MGL_LOGIT_QUADS; i++) {
    const float *from = aligned + (size_t)mgl_min(first + i * stride, last) * 4;
    quads[i] = mgl_floats_of(mgl_load_l2(from));
  }
}

static __device__ inline float mgl_quad_part(const float4 *quad, uint32_t part) {
  return part == 0 ? quad->x : part == 1 ? quad->y : part == 2 ? quad->z : quad->w;
}

template <typename number>
static __device__ inline number mgl_lanes_sum(number value) {
  for (int offset = 16; offset > 0; offset /= 2) {
    value += __shfl_xor_sync(0xffffffffu, value, offset);
  }
  return value;
}

// An mgl_survey is what a pass over the row finds. Logits without weight do not count.
struct mgl_survey {
  uint32_t count;  // of keys in the interval
  uint64_t mass;   // and the sum of their weights
  uint32_t all_count;
  uint64_t all_mass;
};

// All threads: surveys keys [low, high) and puts them into the list, in no order, as far as they
// fit. Begins and ends with barriers.
static __device__ mgl_survey mgl_survey_row(const mgl_logit_row *row, uint64_t low, uint64_t high) {
  mgl_sampling_scratch *scratch = row->scratch;
  uint32_t thread = row->w->thread;
  mgl_sync_consumers();  // the list before has been used
  if (thread == 0) {
    scratch->listed = 0;
  }
  mgl_sync_consumers();
  uint64_t mass = 0, all_mass = 0;
  uint32_t all_count = 0;
  uint32_t quad_count = mgl_quad_count(row);
  for (uint32_t first = thread; first < quad_count; first += MGL_LOGIT_QUADS * MGL_CUDA_CONSUMERS) {
    float4 quads[MGL_LOGIT_QUADS];
    mgl_load_quads(row, first, MGL_CUDA_CONSUMERS, quads);
#pragma unroll
    for (uint32_t i = 0; i < MGL_LOGIT_QUADS * 4; i++) {
      uint32_t id = mgl_logit_id(row, first + i / 4 * MGL_CUDA_CONSUMERS, i % 4);
      float logit = mgl_quad_part(&quads[i / 4], i % 4);
      uint64_t weight = id < row->count ? mgl_weight(row, logit) : 0;
      if (weight == 0) {
        continue;
      }
      all_mass += weight;
      all_count++;
      uint64_t key = mgl_ordered_best(logit, id);
      if (key >= low && key < high) {
        mass += weight;
        uint32_t at = atomicAdd(&scratch->listed, 1u);
        if (at < MGL_LIST_KEYS) {
          scratch->keys[at] = key;
        }
      }
    }
  }
  mass = mgl_lanes_sum((unsigned long long)mass);
  all_mass = mgl_lanes_sum((unsigned long long)all_mass);
  all_count = mgl_lanes_sum(all_count);
  if (row->w->lane == 0) {
    scratch->partial[0][row->w->warp] = mass;
    scratch->partial[1][row->w->warp] = all_mass;
    scratch->counts[row->w->warp] = all_count;
  }
  mgl_sync_consumers();
  mgl_survey survey = {scratch->listed, 0, 0, 0};
  for (uint32_t i = 0; i < MGL_CUDA_CONSUMER_WARPS; i++) {
    survey.mass += scratch->partial[0][i];
    survey.all_mass += scratch->partial[1][i];
    survey.all_count += scratch->counts[i];
  }
  return survey;
}

// All threads: brings the list into descending order (bitonic), `padded` a power of two.
static __device__ void mgl_sort_list(const mgl_logit_row *row, uint32_t count, uint32_t padded) {
  uint64_t *keys = row->scratch->keys;
  uint32_t thread = row->w->thread;
  for (uint32_t i = count + thread; i < padded; i += MGL_CUDA_CONSUMERS) {
    keys[i] = 0;
  }
  mgl_sync_consumers();
  for (uint32_t run = 2; run <= padded; run *= 2) {
    for (uint32_t stride = run / 2; stride > 0; stride /= 2) {
      for (uint32_t i = thread; i < padded / 2; i += MGL_CUDA_CONSUMERS) {
        uint32_t at = 2 * i - (i & (stride - 1));
        uint64_t first = keys[at];
        uint64_t second = keys[at + stride];
        if ((first < second) == ((at & run) == 0)) {
          keys[at] = second;
          keys[at + stride] = first;
        }
      }
      mgl_sync_consumers();
    }
  }
}

// All threads: sorts the list and makes its running sums. Ends with a barrier.
static __device__ void mgl_finish_list(const mgl_logit_row *row, uint32_t count) {
  mgl_sampling_scratch *scratch = row->scratch;
  const mgl_worker *w = row->w;
  uint32_t padded = MGL_CUDA_CONSUMERS;
  while (padded < count) {
    padded *= 2;
  }
  mgl_sort_list(row, count, padded);
  uint32_t each = padded / MGL_CUDA_CONSUMERS;
  uint64_t sum = 0;
  for (uint32_t i = w->thread * each; i < (w->thread + 1) * each; i++) {
    sum += i < count ? mgl_weight(row, mgl_key_logit(scratch->keys[i])) : 0;
    scratch->sums[i] = sum;
  }
  unsigned long long total;
  uint64_t before = mgl_warp_prefix((unsigned long long)sum, w->lane, &total);
  if (w->lane == 0) {
    scratch->partial[0][w->warp] = total;
  }
  mgl_sync_consumers();
  for (uint32_t i = 0; i < w->warp; i++) {
    before += scratch->partial[0][i];
  }
  for (uint32_t i = w->thread * each; i < (w->thread + 1) * each; i++) {
    scratch->sums[i] += before;
  }
  mgl_sync_consumers();
}

// An mgl_measure says what is counted up to a target.
enum mgl_measure { MGL_BY_COUNT, MGL_BY_MASS };

struct mgl_boundary {
  uint64_t key;
  uint64_t mass;  // of all keys down to this one
};

// The boundary in the list, which contains it. All threads search for themselves.
static __device__ mgl_boundary mgl_look_up(const mgl_logit_row *row, const mgl_interval *list,
                                           mgl_measure measure, uint64_t target) {
  const mgl_sampling_scratch *scratch = row->scratch;
  uint32_t at;
  if (measure == MGL_BY_COUNT) {
    at = (uint32_t)(target - list->above_count) - 1;
  } else {
    uint32_t end = (uint32_t)list->count - 1;
    at = 0;
    while (at < end) {
      uint32_t middle = (at + end) / 2;
      if (list->above_mass + scratch->sums[middle] >= target) {
        end = middle;
      } else {
        at = middle + 1;
      }
    }
  }
  mgl_boundary boundary = {scratch->keys[at], list->above_mass + scratch->sums[at]};
  return boundary;
}

static __device__ inline bool mgl_reaches(const mgl_interval *interval, mgl_measure measure,
                                          uint64_t target) {
  return measure == MGL_BY_COUNT ? interval->above_count + interval->count >= target
                                 : interval->above_mass + interval->mass >= target;
}

// Surveys the upper part of `in`, from `middle` on: *upper. It is made a list if it fits.
static __device__ mgl_survey mgl_survey_upper(const mgl_logit_row *row, const mgl_interval *in,
                                              uint64_t middle, mgl_interval *upper) {
  mgl_survey survey = mgl_survey_row(row, middle, in->high);
  *upper = *in;
  upper->low = middle;
  upper->count = survey.count;
  upper->mass = survey.mass;
  upper->listed = survey.count <= MGL_LIST_KEYS;
  if (upper->listed) {
    mgl_finish_list(row, survey.count);
  }
  return survey;
}

// --- dividing an interval ------------------------------------------------------------------------

// How [low, high) is divided: evenly by value, or where it has one value or nearly so, by keys,
// which are ids then. Part 0 has the largest keys.
struct mgl_division {
  uint64_t low, high;
  float largest, scale;
  uint32_t shift;
  bool by_value;
};

static __device__ inline mgl_division mgl_division_of(const mgl_interval *in) {
  mgl_division d;
  d.low = in->low;
  d.high = in->high;
  d.largest = mgl_key_logit(in->high - 1);
  float range = d.largest - mgl_key_logit(in->low);
  d.by_value = range > 1e-30f;  // else the scale might not be finite
  d.scale = d.by_value ? (float)MGL_PARTS / range : 0;
  d.shift = 0;
  while ((in->high - 1 - in->low) >> d.shift >= MGL_PARTS) {
    d.shift++;
  }
  return d;
}

// Monotone: each rounding is.
static __device__ inline uint32_t mgl_part_of(const mgl_division *d, uint64_t key) {
  if (!d->by_value) {
    return (uint32_t)((d->high - 1 - key) >> d->shift);
  }
  float part = (d->largest - mgl_key_logit(key)) * d->scale;
  return part < (float)MGL_PARTS ? (uint32_t)part : MGL_PARTS - 1;
}

// The least key of the interval in parts [0, part].
static __device__ inline uint64_t mgl_part_low(const mgl_division *d, uint32_t part) {
  if (!d->by_value) {
    uint64_t keys = (uint64_t)(part + 1) << d->shift;
    return keys < d->high - d->low ? d->high - keys : d->low;
  }
  uint32_t low = (uint32_t)(d->low >> 32);
  uint32_t high = (uint32_t)((d->high - 1) >> 32);
  while (low < high) {
    uint32_t middle = low + (high - low) / 2;
    if (mgl_part_of(d, (uint64_t)middle << 32) <= part) {
      high = middle;
    } else {
      low = middle + 1;
    }
  }
  uint64_t key = (uint64_t)low << 32;
  return key > d->low ? key : d->low;
}

static __device__ inline void mgl_add_to_part(mgl_sampling_scratch *scratch, uint32_t part,
                                              uint64_t weight) {
  atomicAdd(&scratch->part_count[part], 1u);
#pragma unroll
  for (uint32_t piece = 0; piece < MGL_MASS_PIECES; piece++) {
    uint32_t bits = (uint32_t)(weight >> piece * MGL_PIECE_BITS);
    bits = piece + 1 < MGL_MASS_PIECES ? bits & ((1u << MGL_PIECE_BITS) - 1) : bits;
    if (bits != 0) {
      atomicAdd(&scratch->part_mass[piece][part], bits);
    }
  }
}

static __device__ inline uint64_t mgl_part_mass(const mgl_sampling_scratch *scratch,
                                                uint32_t part) {
  uint64_t mass = 0;
  for (uint32_t piece = 0; piece < MGL_MASS_PIECES; piece++) {
    mass += (uint64_t)scratch->part_mass[piece][part] << piece * MGL_PIECE_BITS;
  }
  return mass;
}

// All threads: counts and sums the keys of each part. Begins and ends with barriers.
static __device__ void mgl_fill_parts(const mgl_logit_row *row, const mgl_division *d) {
  mgl_sampling_scratch *scratch = row->scratch;
  uint32_t thread = row->w->thread;
  mgl_sync_consumers();  // the list before has been used
  for (uint32_t i = thread; i < MGL_PARTS; i += MGL_CUDA_CONSUMERS) {
    scratch->part_count[i] = 0;
    for (uint32_t piece = 0; piece < MGL_MASS_PIECES; piece++) {
      scratch->part_mass[piece][i] = 0;
    }
  }
  mgl_sync_consumers();
  uint32_t quad_count = mgl_quad_count(row);
  for (uint32_t first = thread; first < quad_count; first += MGL_LOGIT_QUADS * MGL_CUDA_CONSUMERS) {
    float4 quads[MGL_LOGIT_QUADS];
    mgl_load_quads(row, first, MGL_CUDA_CONSUMERS, quads);
#pragma unroll
    for (uint32_t i = 0; i < MGL_LOGIT_QUADS * 4; i++) {
      uint32_t id = mgl_logit_id(row, first + i / 4 * MGL_CUDA_CONSUMERS, i % 4);
      float logit = mgl_quad_part(&quads[i / 4], i % 4);
      uint64_t key = mgl_ordered_best(logit, id);
      uint64_t weight =
          id < row->count && key >= d->low && key < d->high ? mgl_weight(row, logit) : 0;
      if (weight != 0) {
        mgl_add_to_part(scratch, mgl_part_of(d, key), weight);
      }
    }
  }
  mgl_sync_consumers();
}

// All threads: narrows the interval, which has the boundary, down to the part that has it.
static __device__ void mgl_narrow(const mgl_logit_row *row, mgl_measure measure, uint64_t target,
                                  mgl_interval *in) {
  enum { EACH = MGL_PARTS / MGL_CUDA_CONSUMERS };
  mgl_sampling_scratch *scratch = row->scratch;
  const mgl_worker *w = row->w;
  mgl_division d = mgl_division_of(in);
  mgl_fill_parts(row, &d);
  uint64_t mass = 0;
  uint32_t count = 0;
  for (uint32_t i = 0; i < EACH; i++) {
    mass += mgl_part_mass(scratch, w->thread * EACH + i);
    count += scratch->part_count[w->thread * EACH + i];
  }
  unsigned long long mass_total;
  uint32_t count_total;
  mgl_interval at = {};
  at.above_mass = in->above_mass + mgl_warp_prefix((unsigned long long)mass, w->lane, &mass_total);
  at.above_count = in->above_count + mgl_warp_prefix(count, w->lane, &count_total);
  if (w->lane == 0) {
    scratch->partial[0][w->warp] = mass_total;
    scratch->counts[w->warp] = count_total;
  }
  mgl_sync_consumers();
  for (uint32_t i = 0; i < w->warp; i++) {
    at.above_mass += scratch->partial[0][i];
    at.above_count += scratch->counts[i];
  }
  for (uint32_t i = 0; i < EACH; i++) {
    at.mass = mgl_part_mass(scratch, w->thread * EACH + i);
    at.count = scratch->part_count[w->thread * EACH + i];
    uint64_t above = measure == MGL_BY_COUNT ? at.above_count : at.above_mass;
    if (above < target && mgl_reaches(&at, measure, target)) {  // of one part only
      scratch->part = w->thread * EACH + i;
      scratch->within = at;
    }
    at.above_mass += at.mass;
    at.above_count += at.count;
  }
  mgl_sync_consumers();
  uint32_t part = scratch->part;
  *in = scratch->within;
  in->low = mgl_part_low(&d, part);
  in->high = part == 0 ? d.high : mgl_part_low(&d, part - 1);
}

// All threads: the key with which the sum reaches the target, which all keys of `all` together
// reach. *list is the present list, or an interval that was too large for one; it changes if the
// boundary is not in a list yet.
static __device__ mgl_boundary mgl_find_boundary(const mgl_logit_row *row, const mgl_interval *all,
                                                 mgl_interval *list, mgl_measure measure,
                                                 uint64_t target) {
  mgl_interval left = *list;
  uint64_t above = measure == MGL_BY_COUNT ? list->above_count : list->above_mass;
  if (target <= above) {
    left.low = list->high;
    left.high = all->high;
    left.count = list->above_count;
    left.mass = list->above_mass;
    left.above_count = left.above_mass = 0;
  } else if (!mgl_reaches(list, measure, target)) {
    left.low = all->low;
    left.high = list->low;
    left.above_count += list->count;
    left.above_mass += list->mass;
    left.count = all->count - left.above_count;
    left.mass = all->mass - left.above_mass;
  } else if (list->listed) {
    return mgl_look_up(row, list, measure, target);
  }
  while (left.count > MGL_LIST_KEYS) {
    mgl_narrow(row, measure, target, &left);
  }
  (void)mgl_survey_upper(row, &left, left.low, list);
  return mgl_look_up(row, list, measure, target);
}

// All threads: the largest key of the row below `limit`.
static __device__ uint64_t mgl_largest_key_below(const mgl_logit_row *row, uint64_t limit) {
  uint32_t quad_count = mgl_quad_count(row);
  uint64_t key = 0;
  for (uint32_t first = row->w->thread; first < quad_count;
       first += MGL_LOGIT_QUADS * MGL_CUDA_CONSUMERS) {
    float4 quads[MGL_LOGIT_QUADS];
    mgl_load_quads(row, first, MGL_CUDA_CONSUMERS, quads);
#pragma unroll
    for (uint32_t i = 0; i < MGL_LOGIT_QUADS * 4; i++) {
      uint32_t id = mgl_logit_id(row, first + i / 4 * MGL_CUDA_CONSUMERS, i % 4);
      uint64_t other = mgl_ordered_best(mgl_quad_part(&quads[i / 4], i % 4), id);
      key = id < row->count && other < limit && other > key ? other : key;
    }
  }
  key = mgl_warp_max(key);
  mgl_sync_consumers();  // what was in scratch has been used
  if (row->w->lane == 0) {
    row->scratch->partial[0][row->w->warp] = key;
  }
  mgl_sync_consumers();
  for (uint32_t i = 0; i < MGL_CUDA_CONSUMER_WARPS; i++) {
    uint64_t other = row->scratch->partial[0][i];
    key = other > key ? other : key;
  }
  return key;
}

static __device__ inline uint64_t mgl_largest_key(const mgl_logit_row *row) {
  return mgl_largest_key_below(row, UINT64_MAX);
}

#endif
