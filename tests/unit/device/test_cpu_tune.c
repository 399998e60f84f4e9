// How linears walk, chosen on the machine: found again, within its time, and no file in the cache
// folder can do more than cost time.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "device/cpu/cpu_tune.h"
#include "device/cpu/way_cache.h"
#include "graph/graph_text.h"
#include "support/must.h"
#include "support/temp_folder.h"

enum { ATTEMPTS = 8 };  // on a busy machine one may run out of time

static const char about[] = "a processor, 2 threads";

static const mgl_linear_way some_way = {.one = {true, MGL_FETCH_L2, 12345},
                                        .one_long = {false, MGL_FETCH_L1, 54321},
                                        .long_k = 7000,
                                        .few_ahead = 3,
                                        .pack_tokens = 9,
                                        .split = true,
                                        .many_fetch = true,
                                        .some_rows = 16,
                                        .many_rows = 64,
                                        .short_tokens = 7,
                                        .short_ahead = 777,
                                        .codes_fetch = MGL_FETCH_L1};

static bool same_single(const mgl_single_way *a, const mgl_single_way *b) {
  return a->in_turn == b->in_turn && a->fetch == b->fetch && a->ahead == b->ahead;
}

static bool same(const mgl_linear_way *a, const mgl_linear_way *b) {
  return same_single(&a->one, &b->one) && same_single(&a->one_long, &b->one_long) &&
         a->long_k == b->long_k && a->few_ahead == b->few_ahead &&
         a->pack_tokens == b->pack_tokens && a->split == b->split &&
         a->many_fetch == b->many_fetch && a->some_rows == b->some_rows &&
         a->many_rows == b->many_rows && a->short_tokens == b->short_tokens &&
         a->short_ahead == b->short_ahead && a->codes_fetch == b->codes_fetch;
}

// --- the cache -----------------------------------------------------------------------------------

typedef struct listing {
  uint32_t count;
  char about[200];
} listing;

static void note(void *context, const char *found, const mgl_linear_way *way) {
  listing *l = context;
  l->count++;
  (void)snprintf(l->about, sizeof l->about, "%s", found);
  assert_true(same(way, &some_way));
}

static void what_was_written_is_found(void **state) {
  (void)state;
  temp_folder folder;
  char below[TEMP_PATH_BYTES];
  mgl_linear_way way = {0};
  listing l = {0};
  temp_folder_create(&folder);
  temp_folder_path(&folder, "made", below);
  assert_false(mgl_way_cache_read(below, about, &way));
  mgl_way_cache_list(below, note, &l);
  assert_int_equal(l.count, 0);
  MUST(mgl_way_cache_write(below, about, &some_way, &err));
  assert_true(mgl_way_cache_read(below, about, &way));
  assert_true(same(&way, &some_way));
  assert_false(mgl_way_cache_read(below, "another processor", &way));
  mgl_way_cache_list(below, note, &l);
  assert_int_equal(l.count, 1);
  assert_string_equal(l.about, about);
  char command[TEMP_PATH_BYTES + 20];
  (void)snprintf(command, sizeof command, "rm -r '%s'", below);
  assert_int_equal(system(command), 0);
  temp_folder_remove(&folder);
}

// The name that the entry of `about` has.
static void find_name(const char *folder, char out[200]) {
  char command[TEMP_PATH_BYTES + 50];
  (void)snprintf(command, sizeof command, "ls '%s'", folder);
  FILE *names = popen(command, "r");
  assert_non_null(names);
  assert_non_null(fgets(out, 200, names));
  out[strcspn(out, "\n")] = 0;
  assert_int_equal(pclose(names), 0);
}

#define TEXT(about, fetch, ahead, long_fetch, long_ahead, pack_tokens, short_tokens, short_ahead,  \
             codes_fetch)                                                                          \
  "{\"about\": \"" about "\", \"one_in_turn\": 0, \"one_fetch\": " fetch ", \"one_ahead\": " ahead \
  ", \"long_in_turn\": 0, \"long_fetch\": " long_fetch ", \"long_ahead\": " long_ahead             \
  ", \"long_k\": 0, \"few_ahead\": 0, \"pack_tokens\": " pack_tokens                               \
  ", \"split\": 0, \"many_fetch\": 0, \"some_rows\": 0, \"many_rows\": 0, "                        \
  "\"short_tokens\": " short_tokens ", \"short_ahead\": " short_ahead                              \
  ", \"codes_fetch\": " codes_fetch "}"

static void what_is_not_whole_is_absent(void **state) {
  (void)state;
  static const char *const texts[] = {
      "",
      "{",
      "[]",
      "{\"about\": 7}",
      "{\"about\": \"a processor, 2 threads\"}",
      // Of another processor under this one's name; then numbers beyond what kernels take.
      TEXT("x", "0", "0", "0", "0", "4", "0", "0", "2"),
      TEXT("a processor, 2 threads", "3", "0", "0", "0", "4", "0", "0", "2"),
      TEXT("a processor, 2 threads", "0", "1048577", "0", "0", "4", "0", "0", "2"),
      TEXT("a processor, 2 threads", "0", "0", "3", "0", "4", "0", "0", "2"),
      TEXT("a processor, 2 threads", "0", "0", "0", "1048577", "4", "0", "0", "2"),
      TEXT("a processor, 2 threads", "0", "0", "0", "0", "1", "0", "0", "2"),
      TEXT("a processor, 2 threads", "0", "0", "0", "0", "4", "9", "0", "2"),
      TEXT("a processor, 2 threads", "0", "0", "0", "0", "4", "8", "1048577", "2"),
      TEXT("a processor, 2 threads", "0", "0", "0", "0", "4", "8", "0", "3"),
  };
  temp_folder folder;
  char name[200];
  mgl_linear_way way = some_way;
  temp_folder_create(&folder);
  MUST(mgl_way_cache_write(folder.path, about, &some_way, &err));
  find_name(folder.path, name);
  for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
    temp_folder_write_text(&folder, name, texts[i]);
    assert_false(mgl_way_cache_read(folder.path, about, &way));
    assert_true(same(&way, &some_way));
  }
  temp_folder_write_text(&folder, name,
                         TEXT("a processor, 2 threads", "0", "0", "0", "0", "4", "0", "0", "2"));
  assert_true(mgl_way_cache_read(folder.path, about, &way));
  MUST(mgl_way_cache_write(folder.path, about, &some_way, &err));
  assert_true(mgl_way_cache_read(folder.path, about, &way));
  assert_true(same(&way, &some_way));
  temp_folder_remove(&folder);
}

// --- measuring -----------------------------------------------------------------------------------

typedef struct world {
  mgl_graph *graph;
  const void **data;
  void *matrix;
  size_t bytes;  // of it
  mgl_topology *topology;
  mgl_team *team;
  mgl_cpu_weights weights;
  mgl_tune_options options;
  temp_folder folder;
} world;

// A program of one linear with `rows` rows of 1024 of that form, of `row_bytes` each, all zeros.
static void world_create_of(world *w, const char *form, size_t row_bytes, uint32_t rows) {
  char text[500];
  *w = (world){0};
  (void)snprintf(text, sizeof text,
                 "program tune\ninput tokens i32[T]\n"
                 "weight table bf16[16,1024]\nweight norm bf16[1024]\nweight head %s[%u,1024]\n"
                 "x0 = embed(tokens, table) : f32[T,1024]\n"
                 "x1 = rmsnorm(x0, norm) eps=1e-06 : bf16[T,1024]\n"
                 "logits = linear(x1, head) : f32[T,%u]\noutput logits\n",
                 form, rows, rows);
  MUST(mgl_graph_parse(text, strlen(text), "test", &w->graph, &err));
  w->bytes = rows * row_bytes;
  MUST(mgl_pages_map(w->bytes, "matrix", &w->matrix, &err));
  w->data = calloc(w->graph->tensor_count, sizeof *w->data);
  assert_non_null(w->data);
  w->data[mgl_graph_find(w->graph, "head")] = w->matrix;
  w->weights = (mgl_cpu_weights){.graph = w->graph, .data = w->data};
  MUST(mgl_topology_create(&w->topology, &err));
  MUST(mgl_team_create(w->topology, 0, &w->team, &err));
  temp_folder_create(&w->folder);
  w->options = (mgl_tune_options){.team = w->team,
                                  .topology = w->topology,
                                  .simd = mgl_simd_detected(),
                                  .mapped = true,
                                  .folder = w->folder.path};
}

static void world_create(world *w, uint32_t rows) {
  world_create_of(w, "bf16", 2048, rows);
}

static void world_destroy(world *w) {
  mgl_team_destroy(w->team);
  mgl_topology_destroy(w->topology);
  mgl_pages_unmap(w->matrix, w->bytes);
  free(w->data);
  mgl_graph_destroy(w->graph);
  temp_folder_remove(&w->folder);
}

// Of this processor, before anything is measured.
static mgl_linear_way known_way(const world *w) {
  char processor[MGL_PROCESSOR_BYTES];
  mgl_processor_name(processor);
  return mgl_known_way(w->options.simd, processor);
}

// Of all threads of the process: a busy machine does not count.
static uint64_t processor_ns(void) {
  struct timespec now;
  assert_int_equal(0, clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now));
  return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static void a_large_model_is_measured_once(void **state) {
  (void)state;
  enum { ROWS = 33000 };
  world w;
  mgl_linear_way way = {0}, again = {0};
  world_create(&w, ROWS);
  if (w.options.simd == MGL_SIMD_SCALAR) {
    print_message("skipped: scalar kernels have one way\n");
    world_destroy(&w);
    return;
  }
  mgl_tuned tuned = MGL_TUNED_PARTLY;
  uint64_t threads = (uint64_t)sysconf(_SC_NPROCESSORS_ONLN);
  for (int i = 0; i < ATTEMPTS && tuned == MGL_TUNED_PARTLY; i++) {
    uint64_t begin_ns = processor_ns();
    tuned = mgl_cpu_tune(&w.weights, &w.options, &way);
    // A round that began in time may end behind it, in sanitized builds long behind.
    assert_true(processor_ns() - begin_ns < 3 * threads * (uint64_t)MGL_TUNE_MOST_NS);
    assert_true(way.pack_tokens >= MGL_LINEAR_LEAST_PACKED);
  }
  if (tuned == MGL_TUNED_PARTLY) {
    print_message("not shown that it is kept: the machine is too busy to measure\n");
  } else {
    assert_int_equal(tuned, MGL_TUNED_MEASURED);
    assert_int_equal(mgl_cpu_tune(&w.weights, &w.options, &again), MGL_TUNED_CACHED);
    assert_true(same(&way, &again));
    w.options.mapped = false;  // another thing to choose for
    assert_int_not_equal(mgl_cpu_tune(&w.weights, &w.options, &again), MGL_TUNED_CACHED);
    w.options.mapped = true;
    w.options.again = true;
    assert_int_not_equal(mgl_cpu_tune(&w.weights, &w.options, &again), MGL_TUNED_CACHED);
  }
  world_destroy(&w);
}

// Of integer codes only where they are fetched is measured; all else stays as it is known.
static void integer_codes_are_measured(void **state) {
  (void)state;
  enum { ROWS = 64000 };
  world w;
  mgl_linear_way way = {0};
  world_create_of(&w, "i8.128", 1024 + 8 * sizeof(float), ROWS);
  mgl_linear_way known = known_way(&w);
  const mgl_tuned tuned = mgl_cpu_tune(&w.weights, &w.options, &way);
  if (w.options.simd == MGL_SIMD_SCALAR) {
    assert_int_equal(tuned, MGL_TUNED_KNOWN);
  } else {
    assert_true(tuned == MGL_TUNED_MEASURED || tuned == MGL_TUNED_PARTLY);
    assert_true(way.codes_fetch == MGL_FETCH_L1 || way.codes_fetch == MGL_FETCH_L2);
  }
  known.codes_fetch = way.codes_fetch;
  assert_true(same(&way, &known));
  world_destroy(&w);
}

static void a_small_model_is_not(void **state) {
  (void)state;
  enum { ROWS = 32000 };
  world w;
  mgl_linear_way way = {0};
  world_create(&w, ROWS);
  const mgl_linear_way known = known_way(&w);
  assert_int_equal(mgl_cpu_tune(&w.weights, &w.options, &way), MGL_TUNED_KNOWN);
  assert_true(same(&way, &known));
  world_destroy(&w);
}

// Without memory the known way is good, and nothing leaks.
static void no_memory_is_no_failure(void **state) {
  (void)state;
  enum { ROWS = 33000, ALLOCATIONS = 5 };
  world w;
  mgl_linear_way way = {0};
  world_create(&w, ROWS);
  w.options.folder = NULL;
  int64_t live = mgl_alloc_live();
  for (uint64_t n = 1; n <= ALLOCATIONS; n++) {
    mgl_alloc_fail_nth(n);
    (void)mgl_cpu_tune(&w.weights, &w.options, &way);
    mgl_alloc_fail_nth(0);
    assert_int_equal(mgl_alloc_live(), live);
  }
  world_destroy(&w);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(what_was_written_is_found),
      cmocka_unit_test(what_is_not_whole_is_absent),
      cmocka_unit_test(a_large_model_is_measured_once),
      cmocka_unit_test(integer_codes_are_measured),
      cmocka_unit_test(a_small_model_is_not),
      cmocka_unit_test(no_memory_is_no_failure),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
