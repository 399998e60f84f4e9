// What attention of the wide class takes: sequences that decode, in bytes of keys and values a
// second, and prompts, in operations that count (below the diagonal) a second.
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "gpu/wide_world.h"

enum { ROUNDS = 5, LAUNCHES = 12 };

typedef struct speed_case {
  const char *name;
  uint32_t head_dim, group, kv_heads;
  uint32_t decoding, context;      // sequences, and positions that each sees
  uint32_t spread;                 // contexts differ by up to so much, both ways
  uint32_t prompts, rows, before;  // chunks of so many rows behind so many positions
} speed_case;

static const speed_case cases[] = {
    {"8B decode 1 @ 1: a launch", 128, 4, 8, 1, 1, 0, 0, 0, 0},
    {"8B decode 64 @ 1024", 128, 4, 8, 64, 1024, 0, 0, 0, 0},
    {"8B decode 256 @ 1024", 128, 4, 8, 256, 1024, 0, 0, 0, 0},
    {"0.6B decode 64 @ 1024", 128, 2, 8, 64, 1024, 0, 0, 0, 0},
    {"0.6B decode 256 @ 1024", 128, 2, 8, 256, 1024, 0, 0, 0, 0},
    {"8B decode 256 @ 100 to 2000", 128, 4, 8, 256, 1050, 950, 0, 0, 0},
    {"8B decode 1024 @ 200", 128, 4, 8, 1024, 200, 0, 0, 0, 0},
    {"8B decode 65 @ 16384", 128, 4, 8, 65, 16384, 0, 0, 0, 0},
    {"8B prompt of 2048", 128, 4, 8, 0, 0, 0, 1, 2048, 0},
    {"0.6B prompt of 2048", 128, 2, 8, 0, 0, 0, 1, 2048, 0},
    {"8B 2 prompts of 1024", 128, 4, 8, 0, 0, 0, 2, 1024, 0},
    {"8B 8 prompts of 256", 128, 4, 8, 0, 0, 0, 8, 256, 0},
    {"8B chunk of 512 behind 8192", 128, 4, 8, 0, 0, 0, 1, 512, 8192},
    {"8B chunk of 2048 behind 14336", 128, 4, 8, 0, 0, 0, 1, 2048, 14336},
    {"8B decode 256 @ 1024, prompt of 512", 128, 4, 8, 256, 1024, 0, 1, 512, 0},
    {"Llama-1B prompt of 2048", 64, 4, 8, 0, 0, 0, 1, 2048, 0},
};

// Milliseconds of one launch: the least and the median of rounds.
static double time_launches(wide_world *w, void (*launch)(wide_world *w, uint32_t layer),
                            double *out_least) {
  const mgl_cuda_driver *driver = &w->bench->device.driver;
  double rounds[ROUNDS];
  void *begin, *end;
  wide_world_must(w, driver->event_create(&begin, 0), "event_create");
  wide_world_must(w, driver->event_create(&end, 0), "event_create");
  launch(w, 0);
  for (uint32_t i = 0; i < ROUNDS; i++) {
    float ms = 0;
    wide_world_must(w, driver->event_record(begin, NULL), "event_record");
    for (uint32_t k = 0; k < LAUNCHES; k++) {
      launch(w, k % w->layers);
    }
    wide_world_must(w, driver->event_record(end, NULL), "event_record");
    wide_world_must(w, driver->event_synchronize(end), "event_synchronize");
    wide_world_must(w, driver->event_elapsed(&ms, begin, end), "event_elapsed");
    rounds[i] = (double)ms / LAUNCHES;
  }
  wide_world_must(w, driver->event_destroy(begin), "event_destroy");
  wide_world_must(w, driver->event_destroy(end), "event_destroy");
  double median = gpu_median(rounds, ROUNDS);
  *out_least = rounds[0];
  return median;
}

static void time_case(gpu_bench *bench, const speed_case *c) {
  wide_world *w = gpu_must_alloc(1, sizeof *w);
  w->bench = bench;
  w->head_dim = c->head_dim;
  w->shape = (mgl_wide_shape){
      .kv_heads = c->kv_heads, .group = c->group, .workers = bench->device.sm_count};
  w->norms = true;
  w->random = 5;
  double bytes = 0, operations = 0;
  const double heads = (double)(c->kv_heads * c->group) * c->head_dim;
  for (uint32_t i = 0; i < c->decoding; i++) {
    uint32_t context = c->context - c->spread + wide_world_random(w, 2 * c->spread + 1);
    wide_world_add(w, context - 1, 1);
    bytes += 4.0 * context * c->kv_heads * c->head_dim;
  }
  for (uint32_t i = 0; i < c->prompts; i++) {
    wide_world_add(w, c->before, c->rows);
    operations += 4.0 * heads * c->rows * (c->before + (c->rows + 1) / 2.0);
  }
  w->layers = bytes < 1e7 ? 1 : (uint32_t)(1e9 / bytes) + 1;
  wide_world_open(w, false);
  double least;
  double build = time_launches(w, wide_world_build, &least);
  double rope = time_launches(w, wide_world_rope_kv, &least);
  double attend = time_launches(w, wide_world_attend, &least);
  printf("| %s | %.1f | %.1f | %.1f | %.1f |", c->name, build * 1e3, rope * 1e3, attend * 1e3,
         least * 1e3);
  if (bytes > 0) {
    printf(" %.0f GB/s |", bytes / (attend * 1e6));
  }
  if (operations > 0) {
    printf(" %.0f TFLOP/s |", operations / (attend * 1e9));
  }
  printf("\n");
  (void)fflush(stdout);
  wide_world_close(w);
  mgl_free(w);
}

void gpu_wide_speed_run(gpu_bench *bench, int count, char **arguments) {
  printf(
      "\n## Speed of attention of the wide class\n\nMedians of %d rounds of %d launches.\n\n"
      "| case | work list, us | rope_kv | attend | least | |\n|---|---|---|---|---|---|\n",
      ROUNDS, LAUNCHES);
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    if (count == 0 || strstr(cases[i].name, arguments[0]) != NULL) {
      time_case(bench, &cases[i]);
    }
  }
}
