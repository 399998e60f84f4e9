// The team: every worker runs once, barriers order memory, shares cover all units, idle threads
// sleep.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

#include "base/alloc.h"
#include "device/cpu/team.h"

enum { STEPS = 200, MOST = 9 };

typedef struct job {
  mgl_team *team;
  uint32_t size;
  uint64_t
      cells[MOST];  // plain memory: TSan and the sums below see a barrier that does not order it
  uint64_t wrong;
} job;

// Each worker writes its cell, and after a barrier checks everybody's.
static void step_together(void *context, uint32_t index) {
  job *j = context;
  for (uint64_t step = 1; step <= STEPS; step++) {
    j->cells[index] = step * (index + 1);
    mgl_team_barrier(j->team);
    uint64_t sum = 0;
    for (uint32_t i = 0; i < j->size; i++) {
      sum += j->cells[i];
    }
    mgl_team_barrier(j->team);
    if (sum != step * j->size * (j->size + 1) / 2) {
      j->wrong++;
    }
  }
}

static void barriers_order_memory(void **state) {
  (void)state;
  mgl_topology *topology = NULL;
  mgl_error err = {0};
  int64_t live = mgl_alloc_live();
  assert_int_equal(mgl_topology_create(&topology, &err), MGL_OK);
  for (uint32_t size = 1; size <= MOST; size++) {
    mgl_team *team = NULL;
    assert_int_equal(mgl_team_create(topology, size, &team, &err), MGL_OK);
    assert_int_equal(mgl_team_size(team), size);
    job j = {.team = team, .size = size};
    for (int run = 0; run < 3; run++) {
      mgl_team_run(team, step_together, &j);
      assert_int_equal(j.wrong, 0);
    }
    mgl_team_destroy(team);
  }
  mgl_topology_destroy(topology);
  assert_int_equal(mgl_alloc_live(), live);
}

static void shares_cover_all_units_once(void **state) {
  (void)state;
  static const size_t units[] = {0, 1, 15, 16, 17, 100, 1000, 151936};
  static const size_t grains[] = {1, 16, 512};
  for (size_t u = 0; u < sizeof units / sizeof *units; u++) {
    for (size_t g = 0; g < sizeof grains / sizeof *grains; g++) {
      for (uint32_t size = 1; size <= 13; size++) {
        size_t expected = 0;
        for (uint32_t index = 0; index < size; index++) {
          size_t begin = 99;
          size_t end = 99;
          mgl_team_share(index, size, units[u], grains[g], &begin, &end);
          assert_int_equal(begin, expected);
          assert_true(end >= begin && (end % grains[g] == 0 || end == units[u]));
          expected = end;
        }
        assert_int_equal(expected, units[u]);
      }
    }
  }
}

static void idle_teams_sleep(void **state) {
  (void)state;
  mgl_topology *topology = NULL;
  mgl_team *team = NULL;
  mgl_error err = {0};
  assert_int_equal(mgl_topology_create(&topology, &err), MGL_OK);
  assert_int_equal(mgl_team_create(topology, 2, &team, &err), MGL_OK);
  job j = {.team = team, .size = 2};
  mgl_team_run(team, step_together, &j);
  struct timespec before;
  struct timespec after;
  struct timespec pause = {.tv_nsec = 300 * 1000 * 1000};
  assert_int_equal(clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &before), 0);
  (void)nanosleep(&pause, NULL);
  assert_int_equal(clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &after), 0);
  double used_s =
      (double)(after.tv_sec - before.tv_sec) + 1e-9 * (double)(after.tv_nsec - before.tv_nsec);
  assert_true(used_s < 0.02 * 0.3 + 0.002);  // under 2% of a core, and the final spin
  mgl_team_destroy(team);
  mgl_topology_destroy(topology);
}

static void absurd_sizes_are_refused(void **state) {
  (void)state;
  mgl_topology *topology = NULL;
  mgl_team *team = NULL;
  mgl_error err = {0};
  assert_int_equal(mgl_topology_create(&topology, &err), MGL_OK);
  assert_int_equal(mgl_team_create(topology, 1000000000, &team, &err), MGL_ERR_LIMIT);
  assert_null(team);
  assert_non_null(strstr(err.text, "found 1000000000"));
  assert_int_equal(mgl_team_create(topology, 0, &team, &err), MGL_OK);
  assert_int_equal(mgl_team_size(team), mgl_topology_cores(topology));
  mgl_team_destroy(team);
  mgl_topology_destroy(topology);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(barriers_order_memory),
      cmocka_unit_test(shares_cover_all_units_once),
      cmocka_unit_test(idle_teams_sleep),
      cmocka_unit_test(absurd_sizes_are_refused),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
