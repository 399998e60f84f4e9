// The ring of smem pages while its length changes: a loader and a consumer that keep their places by
// themselves, and mbarriers that are only told apart by parity. Each page that is consumed is the
// one that was loaded for it, nobody waits for ever, and pages behind the ring are left alone. And
// where partial sums lie, which have those pages meanwhile.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "twin/page_ring.h"

enum { PAGES = 12, TASKS = 40000, QUEUE = 64 };

typedef struct task {
  uint32_t ring, pages;
} task;

typedef struct bed {
  uint32_t full[PAGES], released[PAGES];  // phases that have ended
  uint32_t holds[PAGES];                  // number of the page of weights
  uint32_t random;
  // The loader's, which has loaded `loaded` pages; tasks before `load_task` are loaded.
  uint32_t count, page, parity, asleep, load_task, load_left, loaded;
  // The consumer's.
  uint32_t at, at_parity, task, left, consumed;
} bed;

static uint32_t draw(bed *b, uint32_t below) {
  b->random = b->random * UINT32_C(1664525) + UINT32_C(1013904223);
  return (b->random >> 8) % below;
}

// As mbarrier.test_wait.parity: the phase before the present one had that parity.
static bool has_ended(uint32_t phases, uint32_t parity) {
  return phases % 2 != parity;
}

// As much of the loader as can go on: false if it waits.
static bool load(bed *b, const task *tasks) {
  const task *t = &tasks[b->load_task];
  if (t->pages == 0 || b->load_task == TASKS) {
    return false;
  }
  if (b->load_left == 0) {  // it begins with the task
    if (t->ring > b->count && b->task < b->load_task) {
      return false;  // partial sums of tasks before are behind the ring
    }
    uint32_t late = mgl_page_ring_resize(t->ring, &b->count, &b->page, &b->parity, &b->asleep);
    for (uint32_t page = 0; page < PAGES; page++) {
      b->full[page] += late >> page & 1;
      b->released[page] += late >> page & 1;
    }
    b->load_left = t->pages;
  }
  if (!has_ended(b->released[b->page], b->parity ^ 1)) {
    return false;
  }
  assert_int_equal(b->full[b->page], b->released[b->page]);  // nothing unread is overwritten
  b->holds[b->page] = b->loaded++;
  b->full[b->page]++;
  if (++b->page == b->count) {
    b->page = 0;
    b->parity ^= 1;
  }
  b->load_task += --b->load_left == 0 ? 1 : 0;
  return true;
}

static bool consume(bed *b, const task *tasks) {
  const task *t = &tasks[b->task];
  if (b->left == 0) {
    mgl_page_ring_enter(t->ring, &b->at, &b->at_parity);
    for (uint32_t page = t->ring; page < PAGES; page++) {  // partial sums may lie there
      assert_int_equal(b->full[page], b->released[page]);
    }
    b->left = t->pages;
  }
  if (!has_ended(b->full[b->at], b->at_parity)) {
    return false;
  }
  assert_int_equal(b->holds[b->at], b->consumed);
  assert_true(b->at < t->ring);
  b->consumed++;
  b->released[b->at]++;
  if (++b->at == t->ring) {
    b->at = 0;
    b->at_parity ^= 1;
  }
  b->task += --b->left == 0 ? 1 : 0;
  return true;
}

static void run(uint32_t seed, const uint32_t *lengths, uint32_t length_count) {
  static task tasks[TASKS + 1];
  bed b = {.random = seed, .count = PAGES};
  for (uint32_t i = 0, ring = PAGES; i < TASKS; i++) {
    ring = draw(&b, 3) == 0 ? lengths[draw(&b, length_count)] : ring;
    tasks[i] = (task){.ring = ring, .pages = 1 + draw(&b, 30)};
  }
  tasks[TASKS] = (task){0};
  uint32_t stuck = 0;
  while (b.task < TASKS && stuck < QUEUE) {
    bool loads = draw(&b, 2) == 0;
    stuck = (loads ? load(&b, tasks) : consume(&b, tasks)) ? 0 : stuck + 1;
  }
  assert_int_equal(b.task, TASKS);
  assert_int_equal(b.consumed, b.loaded);
}

static void test_two_lengths(void **state) {
  (void)state;
  for (uint32_t seed = 1; seed <= 4; seed++) {
    run(seed, (const uint32_t[]){PAGES, 8}, 2);
  }
}

static void test_many_lengths(void **state) {
  (void)state;
  for (uint32_t seed = 1; seed <= 4; seed++) {
    run(seed, (const uint32_t[]){PAGES, 11, 10, 8, 7, 2, 1}, 7);
  }
}

static void test_one_length(void **state) {
  (void)state;
  run(9, (const uint32_t[]){PAGES}, 1);
}

// Sums of the row blocks of a batch lie in scratch and behind the ring, one behind the other, and
// nowhere else.
static void test_sums_beside_the_ring(void **state) {
  (void)state;
  const uint32_t bytes_of_page[] = {MGL_CUDA_PAGE_BYTES, MGL_CUDA_PAGE_BYTES + 64,
                                    MGL_CUDA_PAGE_BYTES + 2048};
  for (uint32_t i = 0; i < 3; i++) {
    for (uint32_t tiles = 1; tiles <= 2; tiles++) {
      for (uint32_t ring = 2; ring <= PAGES; ring++) {
        uint32_t block_bytes = tiles * MGL_ROWS_TILE_BYTES;
        uint32_t ring_bytes = ring * bytes_of_page[i];
        uint32_t behind = MGL_CUDA_SCRATCH_BYTES + ring_bytes;
        uint32_t end = MGL_CUDA_SCRATCH_BYTES + PAGES * bytes_of_page[i];
        uint32_t blocks = mgl_rows_batch_blocks(tiles, PAGES - ring, bytes_of_page[i]);
        uint32_t free_at = MGL_ROWS_PARTIAL_AT;
        for (uint32_t block = 0; block < blocks; block++) {
          uint32_t at = MGL_ROWS_PARTIAL_AT + mgl_rows_block_at(tiles, block, ring_bytes);
          assert_int_equal(at % 16, 0);
          assert_true(at >= free_at);
          free_at = at + block_bytes;
          assert_true(free_at <= MGL_CUDA_SCRATCH_BYTES || (at >= behind && free_at <= end));
        }
        assert_true(end - free_at < block_bytes || ring == PAGES);  // no room is left
      }
    }
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_one_length),
      cmocka_unit_test(test_two_lengths),
      cmocka_unit_test(test_many_lengths),
      cmocka_unit_test(test_sums_beside_the_ring),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
