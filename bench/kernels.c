// Microbenchmark of the CPU kernels on the shapes of Qwen3-0.6B: read ceiling, linear at several
// batch sizes, attention, and the small ops, per SIMD level.
//
//   bench_kernels [SECONDS [LEVEL...]]       levels by name; all that the processor has by default
//
// Every line is the best of many passes within SECONDS (machines are shared and noisy; the best is
// what the hardware can do). Ceiling and linear passes alternate, so that a slow phase of the
// machine hits both; the ceiling of each third of the time is told apart, and where these differ too
// much there are no shares of it ("-"). Weights lie in huge pages or in a file mapped from the page cache.
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "device/cpu/read_ceiling.h"
#include "kernels/cpu/cpu_kernels.h"

enum { hidden = 1024, heads = 16, kv_heads = 8, head_dim = 128, ffn = 3072, max_tokens = 256 };
enum { max_threads = 2, layers = 3 };
enum { PARTS = 3 };  // of the time; each measures the ceiling by itself

// The linears of one layer; the weights of `layers` layers are read in turn, so that none stays in
// a cache.
typedef struct shape {
  const char *name;
  uint32_t n, k;
} shape;

static const shape shapes[] = {
    {"qkv", (heads + 2 * kv_heads) * head_dim, hidden},
    {"o", hidden, heads *head_dim},
    {"gate_up", 2 * ffn, hidden},
    {"down", hidden, ffn},
};
enum { shape_count = sizeof shapes / sizeof *shapes };

// Of a thread.
static const size_t packed_bytes = (size_t)max_tokens * ffn * sizeof(mgl_bf16);

static size_t shape_bytes(const shape *s) {
  return (size_t)s->n * s->k * sizeof(mgl_bf16);
}

static size_t layer_bytes(void) {
  size_t bytes = 0;
  for (size_t i = 0; i < shape_count; i++) {
    bytes += shape_bytes(&shapes[i]);
  }
  return bytes;
}

static double now(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return (double)time.tv_sec + (double)time.tv_nsec * 1e-9;
}

static void fail(const char *what) {
  perror(what);
  exit(1);
}

// What the threads do together: worker `index` of `count` takes its part of every linear. They
// start together and do not wait for each other in between: waiting is the runtime's subject.
typedef struct job {
  const mgl_cpu_kernels *kernels;
  mgl_simd simd;
  const char *weights;
  const void *x;
  mgl_dtype x_dtype;
  float *out;
  uint32_t token_count;
  bool packs;         // x is packed first, into `packed`
  char *packed;       // [count][packed_bytes]
  size_t only_shape;  // shape_count: all
  bool read_only;     // the ceiling: reads the same bytes
  atomic_uint *ready;
  double *start;  // [count]: when each saw that all are there
  unsigned index, count;
} job;

static volatile uint64_t sink;

static void run_linear(const job *j, const shape *s, const char *w) {
  mgl_linear_args args = {
      .x = j->x,
      .x_dtype = j->x_dtype,
      .w = w,
      .w_dtype = MGL_DTYPE_BF16,
      .token_count = j->token_count,
      .k = s->k,
      .out = j->out,
      .out_stride = s->n,
  };
  size_t begin = s->n * (size_t)j->index / j->count, end = s->n * (size_t)(j->index + 1) / j->count;
  if (j->packs) {
    mgl_pack_args pack = {.x = j->x,
                          .dtype = j->x_dtype,
                          .token_count = j->token_count,
                          .k = s->k,
                          .out = j->packed + j->index * packed_bytes};
    j->kernels->pack(&pack);
    args.x = pack.out;
    args.packed = true;
  }
  j->kernels->linear(&args, begin, end);
}

static void *run_job(void *argument) {
  const job *j = argument;
  if (j->count > 1) {  // else two threads may find themselves on one processor
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(j->index, &set);
    (void)sched_setaffinity(0, sizeof set, &set);
  }
  atomic_fetch_add(j->ready, 1);
  while (atomic_load(j->ready) < j->count) {
  }
  j->start[j->index] = now();
  if (j->read_only) {
    size_t part = layer_bytes() * layers / j->count;
    sink += mgl_cpu_read_stream(j->simd, j->weights + part * j->index, part);
    return NULL;
  }
  const char *w = j->weights;
  for (int layer = 0; layer < layers; layer++) {
    for (size_t i = 0; i < shape_count; i++) {
      if (j->only_shape == shape_count || j->only_shape == i) {
        run_linear(j, &shapes[i], w);
      }
      w += shape_bytes(&shapes[i]);
    }
  }
  return NULL;
}

// Seconds of one pass.
static double run_pass(const job *base, unsigned threads) {
  pthread_t handles[max_threads];
  job jobs[max_threads];
  atomic_uint ready = 0;
  double start[max_threads];
  for (unsigned i = 0; i < threads; i++) {
    jobs[i] = *base;
    jobs[i].ready = &ready;
    jobs[i].start = start;
    jobs[i].index = i;
    jobs[i].count = threads;
    if (i > 0 && pthread_create(&handles[i], NULL, run_job, &jobs[i]) != 0) {
      fail("pthread_create");
    }
  }
  run_job(&jobs[0]);
  for (unsigned i = 1; i < threads; i++) {
    pthread_join(handles[i], NULL);
  }
  double end = now(), first = start[0];
  for (unsigned i = 1; i < threads; i++) {
    first = start[i] < first ? start[i] : first;
  }
  return end - first;
}

static char *huge_pages(size_t bytes) {
  char *memory = aligned_alloc(1u << 21, (bytes + (1u << 21) - 1) >> 21 << 21);
  if (memory == NULL) {
    fail("aligned_alloc");
  }
  madvise(memory, bytes, MADV_HUGEPAGE);
  return memory;
}

// bf16 numbers of about 1.
static void fill(char *memory, size_t bytes) {
  uint64_t state = 1;
  for (size_t i = 0; i + 2 <= bytes; i += 2) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    mgl_bf16 value = (mgl_bf16)(0x3f00u | (state >> 48 & 0x80ffu));
    memcpy(memory + i, &value, sizeof value);
  }
}

static const char *mapped_file(const char *from, size_t bytes) {
  char path[] = "/tmp/bench_kernels_XXXXXX";
  int file = mkstemp(path);
  if (file < 0) {
    fail(path);
  }
  unlink(path);
  for (size_t done = 0; done < bytes;) {
    ssize_t count = write(file, from + done, bytes - done);
    if (count <= 0) {
      fail("write");
    }
    done += (size_t)count;
  }
  void *memory = mmap(NULL, bytes, PROT_READ, MAP_SHARED | MAP_POPULATE, file, 0);
  if (memory == MAP_FAILED) {
    fail("mmap");
  }
  return memory;
}

static void no_times(double *best, size_t count) {
  for (size_t i = 0; i < count; i++) {
    best[i] = 1e30;
  }
}

// Alternates the jobs for `seconds`; best times become those of these passes where they are better.
static void run_best(const job *jobs, size_t count, unsigned threads, double seconds,
                     double *best) {
  double end = now() + seconds;
  do {
    for (size_t i = 0; i < count; i++) {
      double time = run_pass(&jobs[i], threads);
      best[i] = time < best[i] ? time : best[i];
    }
  } while (now() < end);
}

// The same in PARTS parts, each with its own best pass of jobs[0], which is the ceiling.
static void run_parts(const job *jobs, size_t count, unsigned threads, double seconds, double *best,
                      mgl_read_ceiling *ceiling) {
  double bytes = (double)(layer_bytes() * layers);
  double most = 1e30;
  for (int part = 0; part < PARTS; part++) {
    best[0] = 1e30;
    run_best(jobs, count, threads, seconds / PARTS, best);
    mgl_read_ceiling_add(ceiling, bytes / best[0]);
    most = best[0] < most ? best[0] : most;
  }
  best[0] = most;
}

static void report_linears(mgl_simd simd, const char *where, const char *weights, const void *x,
                           char *packed, float *out, unsigned threads, double seconds) {
  static const struct {
    uint32_t tokens;
    bool packs;
  } ways[] = {{1, false},  {2, false},  {4, false},  {8, false},   {8, true},
              {12, false}, {12, true},  {16, false}, {16, true},   {24, false},
              {24, true},  {64, false}, {64, true},  {256, false}, {256, true}};
  enum { way_count = sizeof ways / sizeof *ways, count = way_count + 1 };
  job jobs[count];
  double best[count];
  job base = {
      .kernels = mgl_cpu_kernels_for(simd),
      .simd = simd,
      .weights = weights,
      .x = x,
      .x_dtype = MGL_DTYPE_BF16,
      .packed = packed,
      .out = out,
      .only_shape = shape_count,
  };
  jobs[0] = base;
  jobs[0].read_only = true;
  for (size_t i = 0; i < way_count; i++) {
    jobs[i + 1] = base;
    jobs[i + 1].token_count = ways[i].tokens;
    jobs[i + 1].packs = ways[i].packs;
  }
  mgl_read_ceiling ceiling = {0};
  no_times(best, count);
  run_parts(jobs, count, threads, seconds, best, &ceiling);
  double bytes = (double)(layer_bytes() * layers);
  bool is_steady = mgl_read_ceiling_is_steady(&ceiling);
  printf("%-11s %-6s %u threads  ceiling %5.1f GB/s, %.0f%% apart |", mgl_simd_name(simd), where,
         threads, bytes / best[0] * 1e-9, 100 * mgl_read_ceiling_spread(&ceiling));
  for (size_t i = 1; i < count; i++) {
    uint32_t tokens = ways[i - 1].tokens;
    char share[16] = "-";
    if (is_steady) {
      (void)snprintf(share, sizeof share, "%.2f", best[0] / best[i]);
    }
    printf(" T=%u%s %5.1f GB/s (%s) %4.0f GF", tokens, ways[i - 1].packs ? " packed" : "",
           bytes / best[i] * 1e-9, share, bytes * tokens / best[i] * 1e-9);
  }
  printf("\n");
}

// T=1 per shape: which one falls short of the ceiling.
static void report_shapes(mgl_simd simd, const char *weights, const void *x, char *packed,
                          float *out, unsigned threads, double seconds) {
  for (uint32_t tokens = 1; tokens <= 64; tokens *= 8) {
    job jobs[shape_count];
    double best[shape_count];
    for (size_t i = 0; i < shape_count; i++) {
      jobs[i] = (job){
          .kernels = mgl_cpu_kernels_for(simd),
          .simd = simd,
          .weights = weights,
          .x = x,
          .x_dtype = MGL_DTYPE_BF16,
          .out = out,
          .token_count = tokens,
          .packs = tokens == 64,
          .packed = packed,
          .only_shape = i,
      };
    }
    no_times(best, shape_count);
    run_best(jobs, shape_count, threads, seconds, best);
    printf("%-11s T=%-2u %u threads ", mgl_simd_name(simd), tokens, threads);
    for (size_t i = 0; i < shape_count; i++) {
      double bytes = (double)(shape_bytes(&shapes[i]) * layers);
      printf("  %s %.1f GB/s %.0f GF", shapes[i].name, bytes / best[i] * 1e-9,
             bytes * tokens / best[i] * 1e-9);
    }
    printf("\n");
  }
}

// One thread: attention of 1 and 64 tokens at the end of a context, microseconds of all heads.
static void report_attention(mgl_simd simd, double seconds) {
  enum { context = 2048, page_tokens = 16, pages = context / page_tokens, row = heads * head_dim };
  size_t cache_bytes = (size_t)context * kv_heads * head_dim * sizeof(mgl_bf16);
  char *cache = huge_pages(2 * cache_bytes);
  fill(cache, 2 * cache_bytes);
  float *q = calloc((size_t)max_tokens * row, sizeof *q);
  float *out = calloc((size_t)max_tokens * row, sizeof *out);
  void *scratch = huge_pages(mgl_attention_scratch_bytes(heads, kv_heads, head_dim));
  int32_t table[pages];
  uint32_t positions[max_tokens];
  mgl_attention_item items[max_tokens / MGL_ATTENTION_QUERY_TILE];
  for (int32_t i = 0; i < pages; i++) {
    table[i] = i * 37 % pages;
  }
  printf("%-11s attention", mgl_simd_name(simd));
  for (uint32_t length = 128; length <= context; length *= 4) {
    for (uint32_t tokens = 1; tokens <= max_tokens; tokens *= 8) {
      uint32_t item_count = 0;
      for (uint32_t t = 0; t < tokens; t++) {
        positions[t] = length - tokens + t;
        if (t % MGL_ATTENTION_QUERY_TILE == 0) {
          uint32_t rest =
              tokens - t < MGL_ATTENTION_QUERY_TILE ? tokens - t : MGL_ATTENTION_QUERY_TILE;
          items[item_count++] = (mgl_attention_item){0, t, rest};
        }
      }
      mgl_attention_args args = {
          .q = q,
          .q_stride = (size_t)heads * head_dim,
          .items = items,
          .positions = positions,
          .block_tables = table,
          .block_table_stride = pages,
          .kv = {.k = cache,
                 .v = cache + cache_bytes,
                 .dtype = MGL_DTYPE_BF16,
                 .page_tokens = page_tokens,
                 .kv_head_count = kv_heads,
                 .head_dim = head_dim,
                 .page_count = pages},
          .head_count = heads,
          .scale = 0.088f,
          .out = out,
          .out_dtype = MGL_DTYPE_BF16,
      };
      double best = 1e30, end = now() + seconds;
      do {
        double start = now();
        mgl_cpu_kernels_for(simd)->attention(&args, scratch, 0, item_count * kv_heads);
        best = now() - start < best ? now() - start : best;
      } while (now() < end);
      double flops = 4.0 * tokens * length * row;
      printf("  %u@%u %.0f us %.0f GF", tokens, length, best * 1e6, flops / best * 1e-9);
    }
  }
  printf("\n");
  free(cache);
  free(q);
  free(out);
  free(scratch);
}

// Microseconds of the small ops for one token of one layer.
static void report_small(mgl_simd simd) {
  enum { repeats = 2000 };
  static float x[2 * ffn], y[2 * ffn];
  static mgl_bf16 out[2 * ffn], k[16 * kv_heads * head_dim], v[16 * kv_heads * head_dim];
  const mgl_cpu_kernels *kernels = mgl_cpu_kernels_for(simd);
  static const uint32_t position = 777, slot = 5;
  for (int i = 0; i < 2 * ffn; i++) {
    x[i] = (float)(i % 101 - 50) * 0.1f;
  }
  float inv_freq[head_dim / 2] = {1, 0.5f, 0.25f}, angles[head_dim];
  mgl_rmsnorm_args norm = {
      .x = x, .weight = y, .width = hidden, .eps = 1e-6f, .out = out, .out_dtype = MGL_DTYPE_BF16};
  mgl_rope_angles_args rope_angles = {.positions = &position,
                                      .inv_freq = inv_freq,
                                      .half_dim = head_dim / 2,
                                      .amplitude = 1,
                                      .out = angles};
  mgl_rope_args rope = {x, angles, heads, head_dim, head_dim};
  mgl_kv_write_args write = {.k = x,
                             .v = y,
                             .k_stride = (size_t)kv_heads * head_dim,
                             .v_stride = (size_t)kv_heads * head_dim,
                             .head_end = kv_heads,
                             .slots = &slot,
                             .kv = {.k = k,
                                    .v = v,
                                    .dtype = MGL_DTYPE_BF16,
                                    .page_tokens = 16,
                                    .kv_head_count = kv_heads,
                                    .head_dim = head_dim,
                                    .page_count = 1}};
  mgl_silu_mul_args silu = {x, y, out, MGL_DTYPE_BF16};
  mgl_add_args add = {y, x};
  double times[7] = {now()};
#define REPEAT(slot_, call)           \
  for (int i = 0; i < repeats; i++) { \
    call;                             \
  }                                   \
  times[slot_] = now()
  REPEAT(1, kernels->rmsnorm(&norm, 0, 1));
  REPEAT(2, kernels->rope_angles(&rope_angles, 0, 1));
  REPEAT(3, kernels->rope(&rope, 0, 1));
  REPEAT(4, kernels->kv_write(&write, 0, 1));
  REPEAT(5, kernels->silu_mul(&silu, 0, ffn));
  REPEAT(6, kernels->add(&add, 0, hidden));
  static const char *const names[] = {"rmsnorm", "angles", "rope", "kv_write", "silu_mul", "add"};
  printf("%-11s small ops, us:", mgl_simd_name(simd));
  for (int i = 0; i < 6; i++) {
    printf("  %s %.2f", names[i], (times[i + 1] - times[i]) / repeats * 1e6);
  }
  printf("\n");
}

static bool level_wanted(const char *name, int argc, char **argv) {
  for (int i = 2; i < argc; i++) {
    if (strcmp(argv[i], name) == 0) {
      return true;
    }
  }
  return argc <= 2;
}

int main(int argc, char **argv) {
  double seconds = argc > 1 ? atof(argv[1]) : 2;
  size_t bytes = layer_bytes() * layers;
  char *huge = huge_pages(bytes);
  fill(huge, bytes);
  const char *file = mapped_file(huge, bytes);
  char *x = huge_pages((size_t)max_tokens * ffn * sizeof(float));
  fill(x, (size_t)max_tokens * ffn * sizeof(float));
  float *out = (float *)(void *)huge_pages((size_t)max_tokens * 2 * ffn * sizeof(float));
  memset(out, 0, (size_t)max_tokens * 2 * ffn * sizeof(float));
  char *packed = huge_pages(max_threads * packed_bytes);
  for (int level = (int)mgl_simd_detected(); level >= 0; level--) {
    mgl_simd simd = (mgl_simd)level;
    if (!level_wanted(mgl_simd_name(simd), argc, argv)) {
      continue;
    }
    for (unsigned threads = 1; threads <= max_threads; threads++) {
      report_linears(simd, "huge", huge, x, packed, out, threads, seconds);
      report_linears(simd, "mapped", file, x, packed, out, threads, seconds);
    }
    report_shapes(simd, huge, x, packed, out, 1, seconds / 4);
    report_attention(simd, seconds / 16);
    report_small(simd);
  }
  return 0;
}
