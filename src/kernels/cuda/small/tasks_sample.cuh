// Sampling: the task behind the logits that chooses each sequence's next token.
//
// Steps and order are those of engine/sampler.h, the arithmetic is that of twin/sampling_rule.h:
// from the same bits of logits the host's sampler chooses the same token. A greedy sequence without
// further wishes costs a thread: its token is in the largest key, which the tasks of the logits
// left. Any other takes a row of logits and all threads of a block.
//
// Edits change the row in place, which nothing else reads. They are walked in parallel, each token
// once; the token of the iteration before joins them on the way.
#ifndef MGL_KERNELS_CUDA_SMALL_TASKS_SAMPLE_CUH
#define MGL_KERNELS_CUDA_SMALL_TASKS_SAMPLE_CUH

#include "kernels/cuda/common/worker.cuh"
#include "kernels/cuda/linear/logit_row.cuh"
#include "kernels/cuda/small/tasks_iteration.cuh"

enum {
  MGL_FIRST_REACH = 8,      // of the first list, in temperatures below the largest logit
  MGL_LOGPROBS_REACH = 14,  // the same where the likeliest are listed
};

// --- the choice ----------------------------------------------------------------------------------

// One warp: the sum of the weights of ids [begin, end).
static __device__ uint64_t mgl_range_mass(const mgl_logit_row *row, uint32_t begin, uint32_t end) {
  uint64_t mass = 0;
  uint32_t quad_end = (row->shift + end + 3) / 4;
  for (uint32_t first = (row->shift + begin) / 4 + row->w->lane; first < quad_end;
       first += MGL_LOGIT_QUADS * 32) {
    float4 quads[MGL_LOGIT_QUADS];
    mgl_load_quads(row, first, 32, quads);
#pragma unroll
    for (uint32_t i = 0; i < MGL_LOGIT_QUADS * 4; i++) {
      uint32_t id = mgl_logit_id(row, first + i / 4 * 32, i % 4);
      bool inside = id >= begin && id < end;
      mass += inside ? mgl_weight(row, mgl_quad_part(&quads[i / 4], i % 4)) : 0;
    }
  }
  return mgl_lanes_sum((unsigned long long)mass);
}

// All threads: the choice among all, in ascending order of ids. Each warp sums one of eight parts,
// then the part in which the choice lies is divided again, until it is one id.
static __device__ uint32_t mgl_choose_by_id(const mgl_logit_row *row, double uniform) {
  uint64_t *masses = row->scratch->partial[0];
  uint32_t begin = 0;
  uint32_t end = row->count;
  uint64_t target = 0;  // of the masses from `begin` on; 0: not known yet
  do {
    uint32_t part = (end - begin + MGL_CUDA_CONSUMER_WARPS - 1) / MGL_CUDA_CONSUMER_WARPS;
    uint32_t from = mgl_min(begin + row->w->warp * part, end);
    uint64_t mass = mgl_range_mass(row, from, mgl_min(from + part, end));
    if (row->w->lane == 0) {
      masses[row->w->warp] = mass;
    }
    mgl_sync_consumers();
    if (target == 0) {
      uint64_t whole = 0;
      for (uint32_t i = 0; i < MGL_CUDA_CONSUMER_WARPS; i++) {
        whole += masses[i];
      }
      target = mgl_chosen_sum(uniform, whole);
    }
    uint32_t chosen = 0;
    while (chosen + 1 < MGL_CUDA_CONSUMER_WARPS && masses[chosen] < target) {
      target -= masses[chosen++];
    }
    begin += chosen * part;
    end = mgl_min(begin + part, end);
    mgl_sync_consumers();  // all have read the masses
  } while (end - begin > 1);
  return begin;
}

enum { MGL_STEP_TOP_K, MGL_STEP_TOP_P, MGL_STEP_CHOICE };

// All threads: the choice among what top-k and top-p leave, in descending order.
static __device__ uint32_t mgl_choose_by_rank(const mgl_logit_row *row,
                                              const mgl_sampling_rule *rule, uint64_t best,
                                              double uniform) {
  // Rounding is monotone: what lies above largest - 32 temperatures, as all that has weight does,
  // is not below the rounded difference.
  float temperature = 1 / row->inverse;
  mgl_interval all = {};
  all.low = (uint64_t)mgl_order_float(row->largest - 32 * temperature) << 32;
  all.high = best + 1;
  all.count = row->count;
  float reach = row->largest - MGL_FIRST_REACH * temperature;
  uint64_t middle = (uint64_t)mgl_order_float(reach) << 32;
  mgl_interval list;
  mgl_survey survey = mgl_survey_upper(row, &all, middle, &list);
  all.count = survey.all_count;
  all.mass = survey.all_mass;
  // Each step cuts what the one before left. In a loop, so that there is one search in the code.
  mgl_boundary boundary = {best, all.mass};
#pragma unroll 1
  for (uint32_t step = MGL_STEP_TOP_K; step <= MGL_STEP_CHOICE; step++) {
    uint64_t target = rule->top_k;
    if (step == MGL_STEP_TOP_K ? target == 0 || target >= all.count
                               : step == MGL_STEP_TOP_P && !(rule->top_p < 1)) {
      continue;  // nothing is cut
    }
    if (step != MGL_STEP_TOP_K) {
      target = step == MGL_STEP_TOP_P ? mgl_top_p_sum(rule->top_p, boundary.mass)
                                      : mgl_chosen_sum(uniform, boundary.mass);
    }
    mgl_measure measure = step == MGL_STEP_TOP_K ? MGL_BY_COUNT : MGL_BY_MASS;
    boundary = mgl_find_boundary(row, &all, &list, measure, target);
  }
  return mgl_key_index(boundary.key);
}

// --- edits ---------------------------------------------------------------------------------------

enum { MGL_EDIT_BATCH = 4 };  // edits of a thread at once

// An mgl_sampling_job is what sampling one row works with; all threads have the same values.
struct mgl_sampling_job {
  mgl_cuda_sequence *sequence;
  mgl_logit_row row;
  mgl_sampling_rule rule;
  mgl_logit_edit *edits;
  uint32_t edit_count;
  uint32_t position;  // of the token to choose
  int32_t latest;  // the token before it, where it was generated in this launch and is to join the
                   // edits; else -1
  uint64_t best;   // the largest key
  const uint64_t *mask;  // of the sequence; NULL: all tokens may be chosen
};

static __device__ inline float mgl_read_logit(const float *address) {
  return *(const volatile float *)address;
}

static __device__ inline mgl_logit_edit mgl_edit_of(uint4 v) {
  mgl_logit_edit edit;
  edit.token = (int32_t)v.x;
  edit.marks = v.y;
  edit.bias = __uint_as_float(v.z);
  edit.logit = __uint_as_float(v.w);
  return edit;
}

// Edits a token's logit in the row, and keeps what it was.
static __device__ inline void mgl_apply_edit(const mgl_sampling_job *job, uint32_t idx,
                                             mgl_logit_edit *edit) {
  float *logits = (float *)job->row.logits;
  logits[edit->token] = mgl_edited_logit(&job->rule, edit, job->position, edit->logit);
  *(uint4 *)&job->edits[idx] =
      make_uint4((uint32_t)edit->token, edit->marks, __float_as_uint(edit->bias),
                 __float_as_uint(edit->logit));
}

// All threads: applies every edit to the row. The latest token's gets its mark, or is added.
static __device__ void mgl_edit_row(const mgl_sampling_job *job) {
  mgl_sampling_scratch *scratch = job->row.scratch;
  uint32_t thread = job->row.w->thread;
  if (thread == 0) {
    scratch->joined = 0;
  }
  mgl_sync_consumers();
  for (uint32_t first = thread; first < job->edit_count;
       first += MGL_EDIT_BATCH * MGL_CUDA_CONSUMERS) {
    mgl_logit_edit edits[MGL_EDIT_BATCH];
#pragma unroll
    for (uint32_t i = 0; i < MGL_EDIT_BATCH; i++) {  // behind the end, the last one again
      uint32_t idx = mgl_min(first + i * MGL_CUDA_CONSUMERS, job->edit_count - 1);
      edits[i] = mgl_edit_of(mgl_load_l2(&job->edits[idx]));
    }
#pragma unroll
    for (uint32_t i = 0; i < MGL_EDIT_BATCH; i++) {
      edits[i].logit = mgl_read_logit(job->row.logits + edits[i].token);
    }
#pragma unroll
    for (uint32_t i = 0; i < MGL_EDIT_BATCH; i++) {
      uint32_t idx = first + i * MGL_CUDA_CONSUMERS;
      if (idx >= job->edit_count) {
        continue;
      }
      if (edits[i].token == job->latest) {
        edits[i].marks += MGL_EDIT_GENERATED;
        scratch->joined = 1;
      }
      mgl_apply_edit(job, idx, &edits[i]);
    }
  }
  mgl_sync_consumers();
  if (thread == 0 && job->latest >= 0 && scratch->joined == 0) {
    mgl_logit_edit edit;
    edit.token = job->latest;
    edit.marks = MGL_EDIT_GENERATED;
    edit.bias = 0;
    edit.logit = mgl_read_logit(job->row.logits + edit.token);
    mgl_apply_edit(job, job->edit_count, &edit);
    job->sequence->edit_count = job->edit_count + 1;
  }
  mgl_sync_consumers();
}

// All threads: the model's logit of a token of a row that was edited, into scratch.
static __device__ void mgl_find_unedited(const mgl_sampling_job *job, uint32_t token) {
  mgl_sampling_scratch *scratch = job->row.scratch;
  uint32_t added = job->latest >= 0 && scratch->joined == 0 ? 1 : 0;
  for (uint32_t i = job->row.w->thread; i < job->edit_count + added; i += MGL_CUDA_CONSUMERS) {
    mgl_logit_edit edit = mgl_edit_of(mgl_load_l2(&job->edits[i]));
    if (edit.token == (int32_t)token) {
      scratch->logprobs.logit = edit.logit;
    }
  }
}

// --- masks ---------------------------------------------------------------------------------------

enum { MGL_MASK_BATCH = 4 };  // words of a thread on their way at once

// All threads: takes out of the row what the mask does not allow. Words come from host memory, a
// batch of them for each wait.
static __device__ void mgl_mask_row(const mgl_sampling_job *job) {
  const volatile uint64_t *words = job->mask + 1;  // volatile: the host writes them between tokens
  float *logits = (float *)job->row.logits;
  uint32_t lane = job->row.w->lane;
  uint32_t word_count = (job->row.count + 63) / 64;
  for (uint32_t base = job->row.w->warp * 32; base < word_count;
       base += MGL_MASK_BATCH * MGL_CUDA_CONSUMERS) {
    uint64_t own[MGL_MASK_BATCH];
#pragma unroll
    for (uint32_t i = 0; i < MGL_MASK_BATCH; i++) {
      uint32_t at = base + i * MGL_CUDA_CONSUMERS + lane;
      own[i] = at < word_count ? words[at] : UINT64_MAX;
    }
#pragma unroll
    for (uint32_t i = 0; i < MGL_MASK_BATCH; i++) {
      for (uint32_t j = 0; j < 32; j++) {
        uint64_t word = __shfl_sync(0xffffffffu, own[i], (int)j);
        uint32_t first = (base + i * MGL_CUDA_CONSUMERS + j) * 64;
        for (uint32_t bit = lane; bit < 64 && word != UINT64_MAX; bit += 32) {
          if ((word >> bit & 1) == 0 && first + bit < job->row.count) {
            logits[first + bit] = MGL_LOGIT_OUT;
          }
        }
      }
    }
  }
  mgl_sync_consumers();
}

// All threads: the first token that the mask allows, for where all of them are out by the model's
// own logits.
static __device__ uint32_t mgl_first_allowed(const mgl_sampling_job *job) {
  const volatile uint64_t *words = job->mask + 1;
  uint32_t i = 0;
  while (i + 1 < (job->row.count + 63) / 64 && words[i] == 0) {
    i++;
  }
  uint64_t word = words[i];
  return i * 64 + (word != 0 ? (uint32_t)__ffsll((long long)word) - 1 : 0);
}

// --- log probabilities ---------------------------------------------------------------------------

// All threads: the largest keys of the row into the list, `wanted` of them or as many as have
// weight. Returns how many; *mass: the sum of all weights.
static __device__ uint32_t mgl_list_largest(const mgl_logit_row *row, uint64_t best,
                                            uint32_t wanted, uint64_t *mass) {
  mgl_interval all = {};
  all.low = (uint64_t)mgl_order_float(row->largest - 32) << 32;
  all.high = best + 1;
  all.count = row->count;
  mgl_interval list;
  if (wanted == 0) {
    *mass = mgl_survey_row(row, all.high, all.high).all_mass;
    return 0;
  }
  uint64_t middle = (uint64_t)mgl_order_float(row->largest - MGL_LOGPROBS_REACH) << 32;
  mgl_survey survey = mgl_survey_upper(row, &all, middle, &list);
  *mass = survey.all_mass;
  uint32_t count = mgl_min(wanted, survey.all_count);
  if (list.listed && list.count >= count) {
    return count;
  }
  all.count = survey.all_count;
  all.mass = survey.all_mass;
  uint64_t last = mgl_find_boundary(row, &all, &list, MGL_BY_COUNT, count).key;
  survey = mgl_survey_row(row, last, all.high);
  mgl_finish_list(row, survey.count);
  return count;
}

// All threads: what is asked of the model's own logits, into scratch. Those so far below the
// largest that they have no weight are looked for one by one.
static __device__ void mgl_note_logprobs(const mgl_sampling_job *job) {
  mgl_logit_row row = job->row;
  row.inverse = 1;
  row.least = -(float)MGL_WEIGHT_REACH;
  mgl_cuda_logprobs *to = &row.scratch->logprobs;
  uint32_t wanted = mgl_min(job->rule.top_logprobs, row.count);
  uint64_t mass;
  uint32_t count = mgl_list_largest(&row, job->best, wanted, &mass);
  uint64_t key = count != 0 ? row.scratch->keys[count - 1] : job->best;
  if (row.w->thread < count) {
    uint64_t own = row.scratch->keys[row.w->thread];
    to->top[row.w->thread].token = (int32_t)mgl_key_index(own);
    to->top[row.w->thread].logit = mgl_key_logit(own);
  }
  for (; count < wanted; count++) {
    key = mgl_largest_key_below(&row, key);
    if (row.w->thread == 0) {
      to->top[count].token = (int32_t)mgl_key_index(key);
      to->top[count].logit = mgl_key_logit(key);
    }
  }
  if (row.w->thread == 0) {
    to->mass = mass;
    to->largest = row.largest;
  }
  mgl_sync_consumers();
}

// --- sample --------------------------------------------------------------------------------------

static_assert(sizeof(mgl_cuda_sequence) % 16 == 0 &&
                  offsetof(mgl_cuda_sequence, max_tokens) == 16 &&
                  offsetof(mgl_cuda_sequence, cells) == 32 &&
                  offsetof(mgl_cuda_sequence, rule) == 48,
              "state and counts, limits, and tokens are a 16-byte load each");
static_assert(sizeof(mgl_feed_cell) == 8, "one store");

// A logit row, as its thread keeps it. Read before the task may run, but for `best` and what of the
// sequence changes.
struct mgl_sampled {
  mgl_cuda_sequence *sequence;  // NULL: nothing is sampled for the row
  mgl_cuda_sequence copy;       // of it; stop ids that are not set are -1
  const uint32_t *next_row_at;
  uint32_t next_row;
  uint32_t vocab;
  uint64_t best;
};

// True if the sequence's token is not just the largest logit.
static __device__ inline bool mgl_takes_row(const mgl_cuda_run *run, uint32_t slot) {
  return slot != UINT32_MAX && mgl_load_l2(&run->sequences[slot].max_tokens).y != 0;
}

// Reads those fields of a sequence that are constant in a launch.
static __device__ inline void mgl_read_sequence(mgl_cuda_run *run, uint32_t slot,
                                                mgl_sampled *sampled) {
  mgl_cuda_sequence *from = &run->sequences[slot];
  mgl_cuda_sequence *to = &sampled->copy;
  uint4 limits = mgl_load_l2(&from->max_tokens);
  uint4 tokens = mgl_load_l2(&from->cells);
  to->max_tokens = limits.x;
  to->cells = (mgl_feed_cell *)((uint64_t)tokens.y << 32 | tokens.x);
  to->tokens = (int32_t *)((uint64_t)tokens.w << 32 | tokens.z);
  uint32_t stop_count = limits.w;
#pragma unroll
  for (uint32_t i = 0; i < MGL_CUDA_MAX_STOP_IDS; i++) {
    to->stop_ids[i] = i < stop_count ? from->stop_ids[i] : -1;  // which is no token
  }
  sampled->sequence = from;
  sampled->next_row_at = &run->next_rows[slot];
  sampled->vocab = run->vocab;
}

// Reads what other tasks wrote, all in one go.
static __device__ inline void mgl_read_sampled(const uint64_t *best, mgl_sampled *sampled) {
  sampled->best = *(const volatile uint64_t *)best;
  if (sampled->sequence != nullptr) {
    uint4 counts = mgl_load_l2(sampled->sequence);
    sampled->next_row = mgl_read_word(sampled->next_row_at);
    sampled->copy.state = counts.x;
    sampled->copy.token_count = counts.y;
  }
}

// To the host, which polls: one store of eight bytes. (Volatile is relaxed at system scope.)
static __device__ inline void mgl_send_token(const mgl_cuda_sequence *copy, int32_t token) {
  uint64_t cell = mgl_global_ns() << 32 | (uint32_t)token;
  ((volatile uint64_t *)copy->cells)[copy->token_count] = cell;
}

// Hands the token on. Also a sequence that ends here may have a row in the next plan: it needs some
// valid token. One that ended before has none.
static __device__ inline void mgl_append_token(mgl_cuda_plan *next, const mgl_sampled *sampled,
                                               uint32_t token) {
  const mgl_cuda_sequence *copy = &sampled->copy;
  if (sampled->next_row != UINT32_MAX) {
    next->tokens[sampled->next_row] = token < sampled->vocab ? (int32_t)token : 0;
  }
  if (copy->state != MGL_CUDA_SEQUENCE_RUNNING) {
    return;
  }
  mgl_cuda_sequence *sequence = sampled->sequence;
  if (!mgl_is_finite(mgl_key_logit(sampled->best))) {
    sequence->state = MGL_CUDA_SEQUENCE_NOT_FINITE;
    mgl_send_token(copy, MGL_FEED_NOT_FINITE);
    return;
  }
  copy->tokens[copy->token_count] = (int32_t)token;
  mgl_send_token(copy, (int32_t)token);
  uint32_t stops = 0;  // without branches: few cycles
#pragma unroll
  for (uint32_t i = 0; i < MGL_CUDA_MAX_STOP_IDS; i++) {
    stops |= copy->stop_ids[i] == (int32_t)token ? 1 : 0;
  }
  sequence->token_count = copy->token_count + 1;
  if (stops != 0) {
    sequence->state = MGL_CUDA_SEQUENCE_STOPPED;
  } else if (copy->token_count + 1 == copy->max_tokens) {
    sequence->state = MGL_CUDA_SEQUENCE_LENGTH;
  }
}

// All threads: what is needed to choose from a row.
static __device__ inline void mgl_read_job(const mgl_worker *w, uint32_t row_idx, uint4 counts,
                                           mgl_sampling_job *job) {
  const mgl_cuda_op *op = &mgl_task_slot(w)->op;
  const mgl_cuda_sequence *from = job->sequence;
  uint4 limits = mgl_load_l2(&from->max_tokens);
  uint4 tokens = mgl_load_l2(&from->cells);
  uint4 *rule = (uint4 *)&job->rule;
#pragma unroll
  for (uint32_t i = 0; i < sizeof(mgl_sampling_rule) / 16; i++) {
    rule[i] = mgl_load_l2((const uint4 *)&from->rule + i);
  }
  job->edits = from->edits;
  job->edit_count = limits.z;
  job->mask = (job->rule.flags & MGL_SAMPLING_MASKED) != 0 ? from->mask : nullptr;
  job->position = counts.y;
  job->latest = -1;
  if ((job->rule.flags & MGL_SAMPLING_COUNTS) != 0 && counts.y > counts.w) {
    const int32_t *all = (const int32_t *)((uint64_t)tokens.w << 32 | tokens.z);
    job->latest = (int32_t)mgl_read_word((const uint32_t *)&all[counts.y - 1]);
  }
  job->row.w = w;
  job->row.scratch = (mgl_sampling_scratch *)w->scratch;
  job->row.logits = (const float *)op->x + (size_t)row_idx * op->x_stride;
  job->row.count = op->n;
  job->row.shift = (uint32_t)((uint64_t)job->row.logits / 4 % 4);
  job->row.largest = mgl_key_logit(job->best);
  job->row.inverse = job->rule.inverse;
  job->row.least = job->rule.least;
}

// All threads: a token for a row with a finite largest logit.
static __device__ uint32_t mgl_choose(mgl_sampling_job *job) {
  bool masked = job->mask != nullptr;
  bool plain = masked && *(const volatile uint64_t *)job->mask != 0;
  bool edited = mgl_edits_apply(&job->rule, job->position) && !plain;
  if ((job->rule.flags & MGL_SAMPLING_LOGPROBS) != 0) {
    mgl_note_logprobs(job);
  }
  if (edited) {
    mgl_edit_row(job);
  }
  if (masked) {
    mgl_mask_row(job);
  }
  if (edited || masked) {
    job->best = mgl_largest_key(&job->row);
    job->row.largest = mgl_key_logit(job->best);
  }
  bool any = mgl_is_finite(job->row.largest);
  uint32_t token = masked && !any ? mgl_first_allowed(job) : mgl_key_index(job->best);
  if ((job->rule.flags & MGL_SAMPLING_DRAWS) != 0 && any && !plain) {
    double uniform = mgl_sampling_uniform(job->rule.seed, job->position);
    token = mgl_sampling_ranks(&job->rule, job->row.count)
                ? mgl_choose_by_rank(&job->row, &job->rule, job->best, uniform)
                : mgl_choose_by_id(&job->row, uniform);
  }
  if ((job->rule.flags & MGL_SAMPLING_LOGPROBS) != 0) {
    if (job->row.w->thread == 0) {
      job->row.scratch->logprobs.logit = mgl_read_logit(job->row.logits + token);
    }
    mgl_sync_consumers();
    if (edited) {
      mgl_find_unedited(job, token);
      mgl_sync_consumers();
    }
  }
  return token;
}

// One thread: the log probabilities of a token to the host. They are there before the token is.
static __device__ inline void mgl_send_logprobs(const mgl_sampling_job *job,
                                                uint32_t prompt_count) {
  static_assert(sizeof(mgl_cuda_logprobs) % 16 == 0, "16 bytes at once");
  mgl_cuda_logprobs *all = job->sequence->host_logprobs;
  uint4 *to = (uint4 *)&all[job->position - prompt_count];
  const uint4 *from = (const uint4 *)&job->row.scratch->logprobs;
  uint32_t count = (16 + 8 * job->rule.top_logprobs + 15) / 16;
  for (uint32_t i = 0; i < count; i++) {
    to[i] = from[i];
  }
  mgl_fence_system();
}

// All threads: the row of a sequence that takes one; its largest logit is *best, which becomes 0.
MGL_DEVICE void mgl_sample_row(const mgl_worker *w, uint32_t row_idx, uint32_t sequence_slot,
                               uint64_t *best, mgl_cuda_plan *next) {
  mgl_cuda_run *run = w->run;
  mgl_sampling_job job;
  job.sequence = &run->sequences[sequence_slot];
  job.best = *(const volatile uint64_t *)best;
  uint4 counts = mgl_load_l2(job.sequence);
  mgl_read_job(w, row_idx, counts, &job);
  uint32_t token = mgl_key_index(job.best);
  bool chooses = counts.x == MGL_CUDA_SEQUENCE_RUNNING && mgl_is_finite(job.row.largest);
  mgl_sync_consumers();  // all have read what changes here, and scratch is free
  if (chooses) {
    token = mgl_choose(&job);
  }
  if (w->thread == 0) {
    mgl_sampled sampled;
    mgl_read_sequence(run, sequence_slot, &sampled);
    mgl_read_sampled(best, &sampled);
    if (chooses && (job.rule.flags & MGL_SAMPLING_LOGPROBS) != 0) {
      mgl_send_logprobs(&job, counts.w);
    }
    mgl_append_token(next, &sampled, token);
    *best = 0;
  }
}

// Samples one row of the task in a slot. It is a function of its own, so that it costs those that
// do not take rows nothing; what it gets are numbers (see mgl_call).
static __device__ __noinline__ void mgl_task_sample_row(mgl_cuda_run *run, mgl_block *block,
                                                        uint32_t slot_idx, uint32_t row_idx) {
  mgl_worker w;
  mgl_worker_enter(&w, run, block, 0);
  w.slot = slot_idx;
  const mgl_slot *slot = mgl_task_slot(&w);
  mgl_sample_row(&w, row_idx, mgl_read_word(&slot->plan->logit_slots[row_idx]), &run->best[row_idx],
                 &run->plans[(slot->iteration + 1) & 1]);
}

// Logit rows [begin, end): a thread each where the token is the largest logit, and all threads one
// after the other where a row is taken. Runs after this iteration's logits and the next one's plan.
static __device__ inline void mgl_task_sample(mgl_worker *w) {
  mgl_cuda_run *run = w->run;
  const mgl_slot *slot = mgl_task_slot(w);
  const mgl_cuda_plan *plan = slot->plan;
  mgl_cuda_plan *next = &run->plans[(slot->iteration + 1) & 1];
  uint32_t begin = slot->begin;
  uint32_t end = mgl_min(slot->end, mgl_read_word(&plan->logit_row_count));
  static_assert(MGL_CUDA_MAX_TOKENS == 64, "a lane looks at two rows");
  uint64_t rows = 0;                       // bit i: row begin + i is taken
  for (uint32_t i = 0; i < 64; i += 32) {  // in every warp, so that all know without a barrier
    uint32_t row = begin + i + w->lane;
    bool taken = row < end && mgl_takes_row(run, mgl_read_word(&plan->logit_slots[row]));
    rows |= (uint64_t)__ballot_sync(0xffffffffu, taken) << i;
  }
  mgl_sampled sampled;
  sampled.sequence = nullptr;
  uint32_t row = begin + w->thread;
  if (row < end) {
    uint32_t sequence_slot = mgl_read_word(&plan->logit_slots[row]);
    if (sequence_slot != UINT32_MAX) {
      mgl_read_sequence(run, sequence_slot, &sampled);
    }
  }
  if (!mgl_task_begin(w)) {
    return;
  }
  if (row < end && (rows >> w->thread & 1) == 0) {
    mgl_read_sampled(&run->best[row], &sampled);
    if (sampled.sequence != nullptr) {
      mgl_append_token(next, &sampled, mgl_key_index(sampled.best));
    }
    run->best[row] = 0;
  }
  for (; rows != 0; rows &= rows - 1) {
    mgl_task_sample_row(run, w->block, w->slot, begin + (uint32_t)__ffsll((long long)rows) - 1);
  }
}

#endif
