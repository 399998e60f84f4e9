// A row of logits and questions about it, for the whole block: which keys are the largest, and with
// which does a sum over descending keys reach a target.
//
// Sums are of integers (batch/sampling_rule.h), so that answers do not depend on which thread adds
// what first.
#ifndef MGL_KERNELS_CUDA_LOGIT_ROW_CUH
#define MGL_KERNELS_CUDA_LOGIT_ROW_CUH

#include "kernels/cuda/tasks_iteration.cuh"
#include "kernels/cuda/worker.cuh"

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
// those are too many, passes over the row narrow down an interval of keys that contains the answer,
// until what is in it fits into a list.

enum {
  MGL_LIST_KEYS = 2048,
  MGL_LOGIT_QUADS = 4,  // 16-byte loads of a thread at once
};

struct mgl_sampling_scratch {
  uint64_t keys[MGL_LIST_KEYS];
  uint64_t sums[MGL_LIST_KEYS];  // of the weights of keys up to this one
  uint64_t partial[2][MGL_CUDA_CONSUMER_WARPS];
  mgl_cuda_logprobs logprobs;
  uint32_t counts[MGL_CUDA_CONSUMER_WARPS];
  uint32_t listed;  // keys that were to be in the list
  uint32_t joined;  // not 0: the latest token had an edit
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
    uint4 v = mgl_load_l2(aligned + (size_t)mgl_min(first + i * stride, last) * 4);
    quads[i].x = __uint_as_float(v.x);
    quads[i].y = __uint_as_float(v.y);
    quads[i].z = __uint_as_float(v.z);
    quads[i].w = __uint_as_float(v.w);
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

// What a pass over the row finds. Logits without weight do not count.
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

// An interval of keys [low, high), how many are in it and above it, and the same of their weights.
// `mass` is that of the keys in it, or unknown where the interval is not a list.
struct mgl_interval {
  uint64_t low, high;
  uint64_t count, above_count;
  uint64_t mass, above_mass;
  bool listed;  // the list in scratch is it
};

// What is counted up to a target.
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

// A key to divide [low, high) at, itself the least of the upper part: of the value in the middle,
// or the middle key where the ends have one value.
static __device__ inline uint64_t mgl_middle_key(uint64_t low, uint64_t high) {
  float smallest = mgl_key_logit(low);
  float middle = smallest + (mgl_key_logit(high - 1) - smallest) * 0.5f;
  uint64_t key = (uint64_t)mgl_order_float(middle) << 32;
  return key > low && key < high ? key : low + (high - low) / 2;
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

// All threads: the key with which the sum reaches the target, which all keys of `all` together
// reach. *list is the present list, or an interval that was too large for one; it changes if the
// boundary is not in a list yet.
static __device__ mgl_boundary mgl_find_boundary(const mgl_logit_row *row, const mgl_interval *all,
                                                 mgl_interval *list, mgl_measure measure,
                                                 uint64_t target) {
  mgl_interval left = *all;
  uint64_t above = measure == MGL_BY_COUNT ? list->above_count : list->above_mass;
  if (target > above && mgl_reaches(list, measure, target)) {
    if (list->listed) {
      return mgl_look_up(row, list, measure, target);
    }
    left = *list;
  }
  while (left.low < left.high) {
    bool fits = left.count <= MGL_LIST_KEYS;
    uint64_t middle = fits ? left.low : mgl_middle_key(left.low, left.high);
    mgl_interval upper;
    (void)mgl_survey_upper(row, &left, middle, &upper);
    if (mgl_reaches(&upper, measure, target)) {
      *list = upper;
      if (upper.listed) {
        return mgl_look_up(row, list, measure, target);
      }
      left = upper;
    } else {
      left.above_count += upper.count;
      left.above_mass += upper.mass;
      left.count -= upper.count;
      left.high = middle;
    }
  }
  mgl_boundary none = {0, 0};  // never: the target was reached by all
  return none;
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
