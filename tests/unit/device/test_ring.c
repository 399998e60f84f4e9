// The ring of one producer and one consumer: what is read is what was written, in order and whole,
// whatever the size and whoever is ahead (two threads; the thread sanitizer runs it too).
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "twin/ring.h"

enum { MOST_SIZE = 64, ENTRIES = 20000, WORDS = 5 };

typedef struct entry {
  uint64_t words[WORDS];  // plain memory
} entry;

typedef struct channel {
  mgl_ring ring;
  uint64_t size;
  entry entries[MOST_SIZE];
  uint64_t wrong, batches;
} channel;

static void *produce(void *context) {
  channel *c = context;
  mgl_ring_end end = {0};
  for (uint64_t i = 0; i < ENTRIES; i++) {
    while (!mgl_ring_has_room(&c->ring, &end, c->size)) {
      mgl_relax();
    }
    for (uint32_t w = 0; w < WORDS; w++) {
      c->entries[end.own % c->size].words[w] = i * WORDS + w;
    }
    mgl_ring_publish(&c->ring, &end);
  }
  return NULL;
}

// Reads several before it tells, as a device does.
static void *consume(void *context) {
  channel *c = context;
  mgl_ring_end end = {0};
  while (end.own < ENTRIES) {
    bool any = false;
    while (mgl_ring_has_entry(&c->ring, &end) && (end.own % 7 != 0 || !any)) {
      for (uint32_t w = 0; w < WORDS; w++) {
        c->wrong += c->entries[end.own % c->size].words[w] != end.own * WORDS + w;
      }
      mgl_ring_take(&end);
      any = true;
    }
    if (any) {
      mgl_ring_tell(&c->ring, &end);
      c->batches++;
    } else {
      mgl_relax();
    }
  }
  return NULL;
}

static void two_threads_pass_entries(void **state) {
  (void)state;
  static channel c;
  for (uint64_t size = 1; size <= MOST_SIZE; size *= 4) {
    pthread_t threads[2];
    memset(&c, 0, sizeof c);
    c.size = size;
    mgl_ring_init(&c.ring);
    assert_int_equal(pthread_create(&threads[0], NULL, produce, &c), 0);
    assert_int_equal(pthread_create(&threads[1], NULL, consume, &c), 0);
    assert_int_equal(pthread_join(threads[0], NULL), 0);
    assert_int_equal(pthread_join(threads[1], NULL), 0);
    assert_int_equal(c.wrong, 0);
    assert_true(c.batches > 0);
    assert_int_equal(mgl_load_relaxed(&c.ring.head), ENTRIES);
    assert_int_equal(mgl_load_relaxed(&c.ring.tail), ENTRIES);
  }
}

static void a_ring_is_full_and_empty(void **state) {
  (void)state;
  mgl_ring ring;
  mgl_ring_end writer = {0};
  mgl_ring_end reader = {0};
  mgl_ring_init(&ring);
  for (int round = 0; round < 3; round++) {
    assert_false(mgl_ring_has_entry(&ring, &reader));
    for (int i = 0; i < 4; i++) {
      assert_true(mgl_ring_has_room(&ring, &writer, 4));
      mgl_ring_publish(&ring, &writer);
    }
    assert_false(mgl_ring_has_room(&ring, &writer, 4));
    for (int i = 0; i < 4; i++) {
      assert_true(mgl_ring_has_entry(&ring, &reader));
      mgl_ring_take(&reader);
    }
    assert_false(mgl_ring_has_entry(&ring, &reader));
    assert_false(mgl_ring_has_room(&ring, &writer, 4));  // it was not told
    mgl_ring_tell(&ring, &reader);
    assert_true(mgl_ring_has_room(&ring, &writer, 4));
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(a_ring_is_full_and_empty),
      cmocka_unit_test(two_threads_pass_entries),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
