// Where workers run on machines that hwloc simulates (HWLOC_SYNTHETIC), as there are none with
// several nodes of memory among those that run tests.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#include "base/topology.h"

enum { most_threads = 64 };

static mgl_topology *simulate(const char *machine) {
  mgl_topology *topology = NULL;
  mgl_error err = {0};
  assert_int_equal(setenv("HWLOC_SYNTHETIC", machine, 1), 0);
  if (mgl_topology_create(&topology, &err) != MGL_OK) {
    fail_msg("%s", err.text);
  }
  assert_int_equal(unsetenv("HWLOC_SYNTHETIC"), 0);
  return topology;
}

// The places of all workers of a team; *taken has the processors of teams before.
static void place_all(const mgl_topology *topology, uint32_t size, uint32_t part, uint32_t parts,
                      bool taken[most_threads], uint32_t *nodes) {
  for (uint32_t i = 0; i < size; i++) {
    mgl_processor place;
    assert_true(mgl_topology_find(topology, part * size + i, parts * size, &place));
    assert_true(place.index < most_threads);
    assert_false(taken[place.index]);
    taken[place.index] = true;
    *nodes |= 1u << place.node;
  }
}

static uint32_t bits(uint32_t word) {
  return word == 0 ? 0 : (word & 1) + bits(word >> 1);
}

// `parts` teams of `size` workers: each on `nodes_each` nodes (0: any), all of them on `nodes`.
static void check_teams(const char *machine, uint32_t size, uint32_t parts, bool restricted,
                        uint32_t nodes_each, uint32_t nodes) {
  bool taken[most_threads] = {false};
  uint32_t all = 0;
  for (uint32_t rank = 0; rank < parts; rank++) {
    mgl_topology *topology = simulate(machine);
    uint32_t part = rank, count = parts, mine = 0;
    uint32_t cores = mgl_topology_cores(topology);
    assert_int_equal(mgl_topology_take_part(topology, size, &part, &count), restricted);
    assert_true(part < count);
    if (restricted) {  // what is touched first lies on the one node there is
      assert_int_equal(mgl_topology_numa_nodes(topology), 1);
      assert_int_equal(mgl_topology_cores(topology), cores / nodes);
    } else {
      assert_int_equal(mgl_topology_numa_nodes(topology), nodes);
      assert_int_equal(part, rank);
      assert_int_equal(count, parts);
    }
    place_all(topology, size, part, count, taken, &mine);
    if (nodes_each != 0) {
      assert_int_equal(bits(mine), nodes_each);
    }
    all |= mine;
    mgl_topology_destroy(topology);
  }
  assert_int_equal(bits(all), nodes);
}

static const char two_nodes[] = "pack:2 [numa] core:4 pu:2";
static const char four_nodes[] = "pack:2 numa:2 core:4 pu:1";

static void a_machine_is_counted(void **state) {
  (void)state;
  mgl_topology *topology = simulate(two_nodes);
  assert_int_equal(mgl_topology_numa_nodes(topology), 2);
  assert_int_equal(mgl_topology_cores(topology), 8);
  assert_int_equal(mgl_topology_threads(topology), 16);
  mgl_topology_destroy(topology);
}

static void a_team_has_a_core_a_worker_and_all_nodes(void **state) {
  (void)state;
  for (uint32_t workers = 2; workers <= 8; workers++) {
    mgl_topology *topology = simulate(two_nodes);
    bool taken[most_threads] = {false};
    uint32_t nodes = 0, per_node[2] = {0};
    place_all(topology, workers, 0, 1, taken, &nodes);
    assert_int_equal(nodes, 3);
    for (uint32_t i = 0; i < workers; i++) {
      mgl_processor place;
      assert_true(mgl_topology_find(topology, i, workers, &place));
      assert_int_equal(place.index % 2, 0);  // a core of its own
      per_node[place.node]++;
    }
    assert_true(per_node[0] - per_node[1] <= 1);
    mgl_topology_destroy(topology);
  }
}

static void a_rank_has_a_node(void **state) {
  (void)state;
  check_teams(two_nodes, 4, 2, true, 1, 2);
  check_teams(two_nodes, 8, 2, true, 1, 2);  // both threads of each core
  check_teams(two_nodes, 3, 2, true, 1, 2);
  check_teams(two_nodes, 2, 4, true, 1, 2);  // two ranks a node
  check_teams(two_nodes, 1, 8, true, 1, 2);
  check_teams(four_nodes, 4, 4, true, 1, 4);
  check_teams(four_nodes, 1, 8, true, 1, 4);
}

static void ranks_that_do_not_come_out_even_take_the_machine(void **state) {
  (void)state;
  check_teams(two_nodes, 5, 3, false, 0, 2);
  check_teams("pack:1 [numa] core:8 pu:1", 4, 2, false, 1, 1);
  check_teams(four_nodes, 8, 2, false, 2, 4);  // of two nodes each
}

// Two kinds of memory that all processors share are no two nodes of processors.
static void shared_memory_is_not_cut(void **state) {
  (void)state;
  mgl_topology *topology = simulate("[numa] [numa] core:8 pu:1");
  uint32_t part = 1, parts = 2;
  assert_int_equal(mgl_topology_numa_nodes(topology), 2);
  assert_false(mgl_topology_take_part(topology, 4, &part, &parts));
  assert_int_equal(mgl_topology_threads(topology), 8);
  mgl_topology_destroy(topology);
}

static void more_workers_than_threads_are_not_pinned(void **state) {
  (void)state;
  mgl_topology *topology = simulate(two_nodes);
  uint32_t part = 1, parts = 2;
  mgl_processor place;
  assert_false(mgl_topology_take_part(topology, 9, &part, &parts));
  assert_int_equal(part, 1);
  assert_int_equal(parts, 2);
  assert_false(mgl_topology_find(topology, 0, 17, &place));
  assert_true(mgl_topology_find(topology, 0, 16, &place));
  mgl_topology_destroy(topology);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(a_machine_is_counted),
      cmocka_unit_test(a_team_has_a_core_a_worker_and_all_nodes),
      cmocka_unit_test(a_rank_has_a_node),
      cmocka_unit_test(ranks_that_do_not_come_out_even_take_the_machine),
      cmocka_unit_test(shared_memory_is_not_cut),
      cmocka_unit_test(more_workers_than_threads_are_not_pinned),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
