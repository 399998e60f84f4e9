// The planner on the host: one lane. Memory and limits; the decisions are in planner_*.h.
#include "twin/planner.h"

#include <assert.h>
#include <string.h>

#include "base/alloc.h"
#include "twin/planner_requests.h"

// kernels/cuda/planner.cu expects structs of these sizes.
_Static_assert(sizeof(mgl_planner_slot) == 56 && sizeof(mgl_planner_page) == 64 &&
                   sizeof(mgl_planner_command) == 32 && sizeof(mgl_planner_limits) == 44,
               "one layout for host and device");

static const mgl_lanes one_lane = {.lane = 0, .count = 1};

static mgl_status check_range(const char *name, uint64_t value, uint64_t least, uint64_t most,
                              mgl_error *err) {
  if (value < least || value > most) {
    return mgl_error_set(err, MGL_ERR_LIMIT, "%s: expected %llu to %llu, found %llu", name,
                         (unsigned long long)least, (unsigned long long)most,
                         (unsigned long long)value);
  }
  return MGL_OK;
}

static mgl_status check_limits(const mgl_planner_limits *l, mgl_error *err) {
  MGL_TRY(check_range("requests that the planner knows", l->slots, 1, MGL_MAX_SEQUENCES, err));
  MGL_TRY(check_range("sequences that run at once", l->sequences, 1, l->slots, err));
  MGL_TRY(
      check_range("tokens per iteration", l->iteration_tokens, 1, MGL_MAX_ITERATION_TOKENS, err));
  MGL_TRY(check_range("tokens of a KV page", l->page_tokens, 1, MGL_MAX_CONTEXT, err));
  MGL_TRY(check_range("KV pages", l->page_count, 1, MGL_PLANNER_MAX_PAGES, err));
  return check_range("KV pages of a sequence", l->pages_per_sequence, 1,
                     MGL_MAX_CONTEXT / l->page_tokens, err);
}

// The offset of an array of `count` elements behind *end, which moves behind it.
static uint64_t place(uint64_t *end, uint64_t count, uint64_t bytes_each) {
  uint64_t at = *end;
  *end = (at + count * bytes_each + 63) / 64 * 64;
  return at;
}

static uint32_t entry_capacity(const mgl_planner_limits *l) {
  return l->iteration_tokens < l->sequences ? l->iteration_tokens : l->sequences;
}

// Sets the offsets and sizes of a planner with these limits.
static void lay_out(mgl_planner *p, const mgl_planner_limits *limits) {
  uint32_t buckets = 1;
  while (limits->prefix_cache != 0 && buckets < limits->page_count) {
    buckets *= 2;
  }
  uint64_t end = (sizeof *p + 63) / 64 * 64;
  p->limits = *limits;
  p->bucket_mask = buckets - 1;
  p->table_stride = limits->pages_per_sequence;
  p->slots_at = place(&end, limits->slots, sizeof(mgl_planner_slot));
  p->entries_at = place(&end, entry_capacity(limits), sizeof(mgl_plan_entry));
  p->order_at = place(&end, limits->slots, sizeof(uint32_t));
  p->rows_at = place(&end, limits->slots, sizeof(uint32_t));
  p->leaving_at = place(&end, limits->slots, sizeof(uint32_t));
  p->idle_at = place(&end, limits->pages_per_sequence, sizeof(uint32_t));
  p->tables_at = place(&end, (uint64_t)limits->slots * limits->pages_per_sequence, sizeof(int32_t));
  p->pages_at = place(&end, limits->page_count, sizeof(mgl_planner_page));
  p->free_at = place(&end, limits->page_count, sizeof(uint32_t));
  p->buckets_at = place(&end, buckets, sizeof(uint32_t));
  p->bytes = end;
}

mgl_status mgl_planner_size(const mgl_planner_limits *limits, uint64_t *out_bytes, mgl_error *err) {
  mgl_planner head = {0};
  *out_bytes = 0;
  MGL_TRY(check_limits(limits, err));
  lay_out(&head, limits);
  *out_bytes = head.bytes;
  return MGL_OK;
}

// All pages are free, the lowest numbers on top, and none is cached.
static void empty_pages(mgl_planner *p) {
  memset(mgl_planner_array(p, p->buckets_at), 0xff,
         ((size_t)p->bucket_mask + 1) * sizeof(uint32_t));
  memset(mgl_planner_pages(p), 0, (size_t)p->limits.page_count * sizeof(mgl_planner_page));
  for (uint32_t i = 0; i < p->limits.page_count; i++) {
    mgl_planner_put_free(p, i, p->limits.page_count - 1 - i);
  }
  p->free_count = p->limits.page_count;
  p->idle_count = 0;
  p->cached_count = 0;
  p->oldest = MGL_NO_PAGE;
  p->newest = MGL_NO_PAGE;
}

void mgl_planner_init(mgl_planner *planner, const mgl_planner_limits *limits) {
  lay_out(planner, limits);
  empty_pages(planner);
  for (uint32_t i = 0; i < limits->slots; i++) {
    mgl_planner_slots(planner)[i].freed_step = UINT32_MAX;  // free at once
  }
}

mgl_status mgl_planner_create(const mgl_planner_limits *limits, mgl_planner **out, mgl_error *err) {
  uint64_t bytes;
  *out = NULL;
  MGL_TRY(mgl_planner_size(limits, &bytes, err));
  mgl_planner *planner = mgl_alloc_zeroed(1, (size_t)bytes);
  if (planner == NULL) {
    return mgl_error_set(err, MGL_ERR_MEMORY,
                         "out of memory for planning %u requests in %u KV pages: %llu bytes",
                         limits->slots, limits->page_count, (unsigned long long)bytes);
  }
  mgl_planner_init(planner, limits);
  *out = planner;
  return MGL_OK;
}

void mgl_planner_destroy(mgl_planner *planner) {
  mgl_free(planner);
}

mgl_status mgl_planner_check_request(const mgl_planner_limits *limits, uint64_t prompt_count,
                                     uint64_t new_tokens, mgl_error *err) {
  uint64_t most = (uint64_t)limits->pages_per_sequence * limits->page_tokens;
  if (prompt_count < 1 || new_tokens < 1) {
    return mgl_error_set(err, MGL_ERR_ARGUMENT,
                         "expected at least 1 prompt token and 1 new token, found %llu and %llu",
                         (unsigned long long)prompt_count, (unsigned long long)new_tokens);
  }
  if (prompt_count > most || new_tokens > most - prompt_count) {
    return mgl_error_set(err, MGL_ERR_LIMIT,
                         "a prompt of %llu tokens and %llu new ones do not fit into sequences of "
                         "%llu",
                         (unsigned long long)prompt_count, (unsigned long long)new_tokens,
                         (unsigned long long)most);
  }
  uint64_t pages = (prompt_count + new_tokens - 1 + limits->page_tokens - 1) / limits->page_tokens;
  if (pages > limits->page_count) {
    return mgl_error_set(err, MGL_ERR_LIMIT,
                         "a sequence of %llu tokens needs %llu KV pages, there are %u",
                         (unsigned long long)(prompt_count + new_tokens), (unsigned long long)pages,
                         limits->page_count);
  }
  return MGL_OK;
}

bool mgl_planner_is_free(const mgl_planner *planner, uint32_t slot) {
  assert(slot < planner->limits.slots);
  return mgl_planner_is_free_on(planner, slot);
}

void mgl_planner_submit(mgl_planner *planner, uint32_t slot, const mgl_planner_request *request) {
  assert(mgl_planner_is_free(planner, slot));
  assert(request->key_count <= request->prompt_count / planner->limits.page_tokens);
  assert(mgl_planner_check_request(&planner->limits, request->prompt_count,
                                   request->max_tokens - request->prompt_count, NULL) == MGL_OK);
  mgl_planner_submit_on(planner, slot, request);
}

void mgl_planner_end(mgl_planner *planner, uint32_t slot) {
  assert(slot < planner->limits.slots);
  mgl_planner_wish_on(planner, slot, MGL_WISH_END);
}

void mgl_planner_pause(mgl_planner *planner, uint32_t slot) {
  assert(slot < planner->limits.slots);
  mgl_planner_wish_on(planner, slot, MGL_WISH_PAUSE);
}

void mgl_planner_resume(mgl_planner *planner, uint32_t slot) {
  assert(slot < planner->limits.slots);
  mgl_planner_resume_on(planner, slot);
}

void mgl_planner_mask(mgl_planner *planner, uint32_t slot, uint32_t masked_to) {
  mgl_planner_mask_on(planner, slot, masked_to);
}

void mgl_planner_settle(mgl_planner *planner) {
  mgl_planner_settle_on(one_lane, planner);
}

uint32_t mgl_planner_plan(mgl_planner *planner) {
  return mgl_planner_plan_on(one_lane, planner);
}

void mgl_planner_rewind(mgl_planner *planner) {
  const uint32_t *order = mgl_planner_array(planner, planner->order_at);
  for (uint32_t i = 0; i < planner->running; i++) {
    mgl_planner_slot *s = &mgl_planner_slots(planner)[order[i]];
    s->page_count = 0;
    s->computed = 0;
    s->state = s->state == MGL_SLOT_RUNNING ? MGL_SLOT_WAITING : s->state;
  }
  planner->running = 0;
  empty_pages(planner);
}

const mgl_plan_entry *mgl_planner_entries(const mgl_planner *planner) {
  return mgl_planner_at(planner, planner->entries_at);
}

uint32_t mgl_planner_order(const mgl_planner *planner, uint32_t index) {
  assert(index < planner->count);
  return mgl_planner_array(planner, planner->order_at)[index];
}

const mgl_planner_slot *mgl_planner_slot_of(const mgl_planner *planner, uint32_t slot) {
  assert(slot < planner->limits.slots);
  return &mgl_planner_slots(planner)[slot];
}

const int32_t *mgl_planner_pages_of(const mgl_planner *planner, uint32_t slot) {
  assert(slot < planner->limits.slots);
  return mgl_planner_table(planner, slot);
}

uint32_t mgl_planner_pages_used(const mgl_planner *planner) {
  return planner->limits.page_count - planner->free_count - planner->idle_count;
}
