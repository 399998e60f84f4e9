#include <assert.h>

#include "base/alloc.h"
#include "engine/engine_parts.h"

enum { FIRST_BUCKETS = 64 };

void mgl_sequence_destroy(mgl_sequence *s) {
  if (s != NULL) {
    mgl_sampling_state_reset(&s->sampling);
    mgl_constraint_destroy(s->constraint);
    mgl_free(s->tokens);
    mgl_free(s->keys);
    mgl_free(s);
  }
}

mgl_status mgl_requests_init(mgl_requests *requests, mgl_error *err) {
  *requests = (mgl_requests){.bucket_count = FIRST_BUCKETS};
  requests->buckets = mgl_alloc_zeroed(FIRST_BUCKETS, sizeof(mgl_sequence *));
  return requests->buckets != NULL ? MGL_OK : mgl_error_set(err, MGL_ERR_MEMORY, "out of memory");
}

void mgl_requests_reset(mgl_requests *requests) {
  for (uint32_t i = 0; i < requests->bucket_count && requests->buckets != NULL; i++) {
    mgl_sequence *s = requests->buckets[i];
    while (s != NULL) {
      mgl_sequence *next = s->next_in_bucket;
      mgl_sequence_destroy(s);
      s = next;
    }
  }
  mgl_free(requests->buckets);
  *requests = (mgl_requests){0};
}

static mgl_sequence **bucket_of(mgl_sequence **buckets, uint32_t count, uint32_t request) {
  return &buckets[request & (count - 1)];
}

static mgl_status double_buckets(mgl_requests *requests, mgl_error *err) {
  uint32_t count = requests->bucket_count * 2;
  mgl_sequence **buckets = mgl_alloc_zeroed(count, sizeof *buckets);
  if (buckets == NULL) {
    return mgl_error_set(err, MGL_ERR_MEMORY, "out of memory for %u requests", count);
  }
  for (uint32_t i = 0; i < requests->bucket_count; i++) {
    while (requests->buckets[i] != NULL) {
      mgl_sequence *s = requests->buckets[i];
      mgl_sequence **bucket = bucket_of(buckets, count, s->request);
      requests->buckets[i] = s->next_in_bucket;
      s->next_in_bucket = *bucket;
      *bucket = s;
    }
  }
  mgl_free(requests->buckets);
  requests->buckets = buckets;
  requests->bucket_count = count;
  return MGL_OK;
}

mgl_status mgl_requests_add(mgl_requests *requests, mgl_sequence *s, mgl_error *err) {
  if (requests->count == requests->bucket_count && requests->bucket_count < UINT32_MAX / 2) {
    MGL_TRY(double_buckets(requests, err));
  }
  mgl_sequence **bucket = bucket_of(requests->buckets, requests->bucket_count, s->request);
  s->next_in_bucket = *bucket;
  *bucket = s;
  requests->count++;
  return MGL_OK;
}

mgl_sequence *mgl_requests_find(const mgl_requests *requests, uint32_t request) {
  mgl_sequence *s = *bucket_of(requests->buckets, requests->bucket_count, request);
  while (s != NULL && s->request != request) {
    s = s->next_in_bucket;
  }
  return s;
}

void mgl_requests_remove(mgl_requests *requests, mgl_sequence *s) {
  mgl_sequence **link = bucket_of(requests->buckets, requests->bucket_count, s->request);
  while (*link != s) {
    link = &(*link)->next_in_bucket;
  }
  *link = s->next_in_bucket;
  requests->count--;
  mgl_requests_take(requests, s);
  mgl_sequence_destroy(s);
}

void mgl_requests_insert(mgl_requests *requests, mgl_sequence *s) {
  assert(!s->queued);
  mgl_sequence *before = requests->last;
  while (before != NULL && before->priority > s->priority) {
    before = before->before;
  }
  s->before = before;
  s->after = before == NULL ? requests->first : before->after;
  *(s->before == NULL ? &requests->first : &s->before->after) = s;
  *(s->after == NULL ? &requests->last : &s->after->before) = s;
  requests->queued++;
  s->queued = true;
}

void mgl_requests_prepend(mgl_requests *requests, mgl_sequence *s) {
  assert(!s->queued);
  s->before = NULL;
  s->after = requests->first;
  *(requests->first == NULL ? &requests->last : &requests->first->before) = s;
  requests->first = s;
  requests->queued++;
  s->queued = true;
}

void mgl_requests_take(mgl_requests *requests, mgl_sequence *s) {
  if (s->queued) {
    *(s->before == NULL ? &requests->first : &s->before->after) = s->after;
    *(s->after == NULL ? &requests->last : &s->after->before) = s->before;
    requests->queued--;
    s->queued = false;
  }
}
