// The device code compiles for every architecture that Megalith supports, without a GPU, and stays
// under its ceilings: no spills, and registers that let the block be resident. One architecture
// takes minutes: with MGL_TEST_ARCHITECTURE only that one is compiled, and ctest runs three.
//
// Then only sm_90a has all kernels whole, and sm_80 those whose products no other has, unless
// MGL_TEST_LONG is set. All else is compiled in a tenth of the time, without optimisation: that
// proves that the source compiles and every instruction exists there, and leaves the ceilings.
//
// What the compiler said is kept in the folder MGL_TEST_CACHE by a hash of sources and options, as
// ccache keeps what another one said, and checked again each time. MGL_TEST_LONG compiles anew.
#include <limits.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/alloc.h"
#include "base/file.h"
#include "device/cuda/cuda_driver.h"
#include "device/cuda/cuda_jit.h"
#include "support/must.h"
#include "twin/device_run.h"
#include "twin/op_launch.h"
#include "twin/packing.h"
#include "twin/plain_op.h"
#include "twin/wide_run.h"
#include "unit/device/open_nvrtc.h"

// Bodies that know k are compiled, too: Qwen3-0.6B's.
static const mgl_cuda_shape shape = {
    .head_dim = 128,
    .group = 2,
    .trace = true,
    .extras.k = {
        [MGL_KNOWN_NORMED] = 1024, [MGL_KNOWN_ADDED_1] = 2048, [MGL_KNOWN_ADDED_2] = 3072}};
// All packings of codes, with the most scales.
static const mgl_cuda_shape shape_of_codes = {.head_dim = 128,
                                              .group = 2,
                                              .packings = (1u << MGL_PACKING_COUNT) - 1,
                                              .groups_of_32 = true,
                                              .page_bytes = 24576,
                                              .extras.k = {[MGL_KNOWN_CODED_NORMED] = 4096,
                                                           [MGL_KNOWN_CODED_ADDED_1] = 4096,
                                                           [MGL_KNOWN_CODED_ADDED_2] = 12288}};
// Of the most GPUs.
static const mgl_cuda_shape shape_of_ranks = {.head_dim = 128, .group = 4, .ranks = MGL_MAX_RANKS};
static const char *const architectures[] = {"sm_80", "sm_90a", "sm_100a"};
enum { ARCHITECTURES = sizeof architectures / sizeof architectures[0] };

// Spills of every function. A task's function saves its return address, and sampling from all
// logits, which is rare, keeps a little more; where consumers cannot be given more registers than
// others (before sm_90), tasks of many tokens spill too.
static void check_spills(const char *log, const char *architecture) {
  static const struct {
    const char *name;  // part of the function's name
    unsigned ceiling, ceiling_sm_80;
  } ceilings[] = {{"mgl_task_sample", 160, 160},
                  {"mgl_task_linearILi4", 320, 320},
                  {"mgl_task_linear_rows", 24, 96},  // that keep all of x in registers (log 309)
                  {"mgl_task_linear", 16, 96},
                  {"mgl_task_attend_warps", 24, 72},  // between items, not in its loops over tiles
                  {"mgl_task_attend_decode", 16, 36},
                  {"mgl_task_", 16, 16},
                  {"mgl_megakernel", 128, 128}};
  bool old = strcmp(architecture, "sm_80") == 0;
  const char *at = log;
  unsigned functions = 0;
  while ((at = strstr(at, "Function properties for ")) != NULL) {
    const char *end = strchr(at, '\n');
    const char *bytes = strstr(at, " bytes spill stores");
    assert_true(end != NULL && bytes != NULL);
    while (bytes[-1] >= '0' && bytes[-1] <= '9') {
      bytes--;
    }
    char name[256];
    (void)snprintf(name, sizeof name, "%.*s", (int)(end - at), at);
    unsigned spilled = (unsigned)strtoul(bytes, NULL, 10);
    size_t i = 0;
    while (i < sizeof ceilings / sizeof ceilings[0] && strstr(name, ceilings[i].name) == NULL) {
      i++;
    }
    unsigned ceiling = i == sizeof ceilings / sizeof ceilings[0] ? 0
                       : old                                     ? ceilings[i].ceiling_sm_80
                                                                 : ceilings[i].ceiling;
    if (spilled > ceiling) {
      fail_msg("%s: %u bytes spilled, at most %u are accepted: %s", architecture, spilled, ceiling,
               name);
    }
    functions++;
    at = end;
  }
  assert_true(functions >= 10);
}

// Where the log of a compilation is kept; false: nowhere.
static bool kept_path(const mgl_nvrtc *nvrtc, const char *source, const char *architecture,
                      const mgl_cuda_shape *of, char out[PATH_MAX]) {
  const char *folder = getenv("MGL_TEST_CACHE");
  char text[MGL_HASH_TEXT_BYTES];
  mgl_hash hash;
  int major = 0;
  int minor = 0;
  if (folder == NULL || getenv("MGL_TEST_LONG") != NULL || nvrtc->version(&major, &minor) != 0) {
    return false;
  }
  MUST(mgl_cuda_source_hash(source, architecture, of, &hash, &err));
  mgl_hash_text(hash, text);
  (void)mkdir(folder, 0777);
  return snprintf(out, PATH_MAX, "%s/%s-%d.%d.said", folder, text, major, minor) < PATH_MAX;
}

static bool read_kept(const char *path, mgl_text *log) {
  enum { MOST_BYTES = 64 << 20 };
  mgl_error err = {0};
  char *data = NULL;
  size_t bytes = 0;
  if (mgl_file_read(path, MOST_BYTES, &data, &bytes, &err) != MGL_OK) {
    return false;
  }
  mgl_text_append(log, data, bytes);
  mgl_free(data);
  return !log->failed;
}

// As a whole or not at all: others may look for it.
static void keep(const char *path, const mgl_text *log) {
  char temporary[PATH_MAX + 16];
  (void)snprintf(temporary, sizeof temporary, "%s.%ld", path, (long)getpid());
  FILE *file = fopen(temporary, "w");
  if (file != NULL) {
    bool is_whole_text = fwrite(log->data, 1, log->bytes, file) == log->bytes;
    if (fclose(file) != 0 || !is_whole_text || rename(temporary, path) != 0) {
      (void)remove(temporary);
    }
  }
}

// stderr while a compiler runs, which says some of it there alone since it has threads.
typedef struct diverted {
  int before;
  FILE *file;
} diverted;

static diverted divert_errors(void) {
  const diverted d = {.before = dup(STDERR_FILENO), .file = tmpfile()};
  assert_true(d.before >= 0 && d.file != NULL);
  (void)fflush(stderr);
  assert_true(dup2(fileno(d.file), STDERR_FILENO) >= 0);
  return d;
}

static void end_diverted(const diverted *d, mgl_text *log) {
  char buffer[4096];
  (void)fflush(stderr);
  assert_true(dup2(d->before, STDERR_FILENO) >= 0);
  (void)close(d->before);
  rewind(d->file);
  for (size_t bytes; (bytes = fread(buffer, 1, sizeof buffer, d->file)) > 0;) {
    mgl_text_append(log, buffer, bytes);
  }
  (void)fclose(d->file);
}

// Compiles a source for one architecture; the log is freed by the caller.
static void compile_for(const mgl_nvrtc *nvrtc, const char *source, const char *architecture,
                        const mgl_cuda_shape *of, mgl_text *log) {
  mgl_error err = {0};
  void *cubin = NULL;
  size_t bytes = 0;
  char path[PATH_MAX];
  *log = (mgl_text){0};
  const bool is_kept = kept_path(nvrtc, source, architecture, of, path);
  if (is_kept && read_kept(path, log)) {
    return;
  }
  const diverted errors = divert_errors();
  const mgl_status status =
      mgl_cuda_compile(nvrtc, source, architecture, of, &cubin, &bytes, log, &err);
  end_diverted(&errors, log);
  if (status != MGL_OK) {
    fail_msg("%s", log->data != NULL ? log->data : err.text);
  }
  assert_true(bytes > 0);
  mgl_free(cubin);
  if (is_kept) {
    keep(path, log);
  }
}

static mgl_cuda_usage usage_of(const mgl_text *log, const char *kernel, const char *architecture) {
  mgl_cuda_usage usage = {0};
  if (!mgl_cuda_usage_find(log->data, kernel, &usage)) {
    fail_msg("no resources of %s in the log:\n%s", kernel, log->data);
  }
  print_message("%-8s %s: %u registers, %u bytes static shared, %u stack, %u spilled\n",
                architecture, kernel, usage.registers, usage.static_smem_bytes, usage.stack_bytes,
                usage.spill_bytes);
  return usage;
}

typedef void check_function(const mgl_text *log, const char *architecture);

static double cpu_seconds(void) {
  struct rusage u;
  (void)getrusage(RUSAGE_SELF, &u);
  return (double)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) +
         (double)(u.ru_utime.tv_usec + u.ru_stime.tv_usec) / 1e6;
}

// Must a kernel be compiled with all optimisations, as it is shipped? The alternative is known to
// NVRTC since 12.8.
static bool is_whole(const mgl_nvrtc *nvrtc, const char *source, const char *architecture,
                     const mgl_cuda_shape *of) {
  static const char *const of_sm_80[] = {"megakernel.cu", "wide_kernel.cu", "wide_attention.cu"};
  const char *only = getenv("MGL_TEST_ARCHITECTURE");
  int major = 0;
  int minor = 0;
  bool whole = getenv("MGL_TEST_LONG") != NULL || only == NULL || strcmp(only, "sm_90a") == 0 ||
               nvrtc->version(&major, &minor) != 0 || major * 100 + minor < 1208;
  for (size_t i = 0; i < sizeof of_sm_80 / sizeof of_sm_80[0]; i++) {
    whole = whole || (strcmp(architecture, "sm_80") == 0 && of == &shape &&
                      strstr(source, of_sm_80[i]) != NULL);
  }
  return whole;
}

// Compiles a source with the options that are shipped, but for optimisation.
static void compile_quickly(const mgl_nvrtc *nvrtc, const char *source, const char *architecture,
                            const mgl_cuda_shape *of) {
  enum { MOST_SOURCES = 256 };
  const char *texts[MOST_SOURCES];
  const char *names[MOST_SOURCES];
  const char *text = NULL;
  int count = 0;
  for (const mgl_cuda_source *at = mgl_cuda_sources; at->name != NULL; at++) {
    assert_true(count < MOST_SOURCES);
    if (strcmp(at->name, source) == 0) {
      text = at->text;
    } else {
      texts[count] = mgl_cuda_source_text(at, of);
      names[count++] = at->name;
    }
  }
  assert_non_null(text);
  char made[MGL_CUDA_MAX_OPTIONS][MGL_CUDA_OPTION_BYTES];
  const char *options[MGL_CUDA_MAX_OPTIONS + 1];
  int option_count = mgl_cuda_options_make(architecture, of, made);
  for (int i = 0; i < option_count; i++) {
    options[i] = made[i];
  }
  options[option_count++] = "--Ofast-compile=max";
  void *program = NULL;
  assert_int_equal(nvrtc->create(&program, text, source, count, texts, names), 0);
  int code = nvrtc->compile(program, option_count, options);
  size_t bytes = 0;
  if (code != 0) {
    assert_int_equal(nvrtc->log_bytes(program, &bytes), 0);
    char *log = calloc(bytes + 1, 1);
    assert_non_null(log);
    (void)nvrtc->log(program, log);
    fail_msg("%s does not compile for %s: %s\n%s", source, architecture, nvrtc->error_string(code),
             log);
  }
  assert_int_equal(nvrtc->cubin_bytes(program, &bytes), 0);
  assert_true(bytes > 0);
  assert_int_equal(nvrtc->destroy(&program), 0);
}

// Calls `check` with the compiler's log for each architecture that is to be compiled whole.
static void for_shape(const char *source, const mgl_cuda_shape *of, check_function *check) {
  const char *only = getenv("MGL_TEST_ARCHITECTURE");
  unsigned compiled = 0;
  mgl_nvrtc nvrtc;
  if (!open_nvrtc(&nvrtc)) {
    skip();
  }
  for (size_t i = 0; i < ARCHITECTURES; i++) {
    if (only == NULL || strcmp(only, architectures[i]) == 0) {
      mgl_text log = {0};
      const bool whole = is_whole(&nvrtc, source, architectures[i], of);
      const double begun = cpu_seconds();
      if (whole) {
        compile_for(&nvrtc, source, architectures[i], of, &log);
      } else {
        compile_quickly(&nvrtc, source, architectures[i], of);
      }
      print_message("%-8s %s: compiled %s in %.1f CPU seconds\n", architectures[i], source,
                    whole ? "whole" : "quickly", cpu_seconds() - begun);
      if (whole) {
        check(&log, architectures[i]);
        mgl_text_free(&log);
      }
      compiled++;
    }
  }
  assert_true(compiled > 0);
}

static void for_architectures(const char *source, check_function *check) {
  for_shape(source, &shape, check);
}

static void check_megakernel(const mgl_text *log, const char *architecture) {
  mgl_cuda_usage usage = usage_of(log, "mgl_megakernel", architecture);
  assert_true(usage.registers * MGL_CUDA_THREADS <= 65536);
  check_spills(log->data, architecture);
}

static void protocol_and_tasks_compile_for_all_architectures(void **state) {
  (void)state;
  for_architectures("kernels/cuda/megakernel.cu", check_megakernel);
}

// Its roles spill a little more, at what they do once an iteration, and tasks of 16 tokens where
// registers cannot move between warps.
static void check_coded(const mgl_text *log, const char *architecture) {
  mgl_cuda_usage usage = usage_of(log, "mgl_megakernel", architecture);
  assert_true(usage.registers * MGL_CUDA_THREADS <= 65536);
  const char *at = log->data;
  unsigned functions = 0;
  while ((at = strstr(at, "EL11mgl_packing")) != NULL) {
    const char *stores = strstr(at, " bytes spill stores");
    assert_non_null(stores);
    while (stores[-1] >= '0' && stores[-1] <= '9') {
      stores--;
    }
    unsigned most = strcmp(architecture, "sm_80") == 0 ? 192 : 32;
    if (strtoul(stores, NULL, 10) > most) {
      fail_msg("%s: more than %u bytes spilled: %.160s", architecture, most, at);
    }
    functions++;
    at = stores;
  }
  assert_true(functions >= (MGL_PACKING_MX4 - 1) * 6);  // dense matrices are none of E2M1
}

static void linears_of_codes_compile_for_all_architectures(void **state) {
  (void)state;
  for_shape("kernels/cuda/megakernel.cu", &shape_of_codes, check_coded);
}

static void several_ranks_compile_for_all_architectures(void **state) {
  (void)state;
  for_shape("kernels/cuda/megakernel.cu", &shape_of_ranks, check_megakernel);
}

static void check_planner(const mgl_text *log, const char *architecture) {
  assert_int_equal(usage_of(log, "mgl_planner_run", architecture).spill_bytes, 0);
}

// Products must not be serialised, which the compiler does, and says, when it finds too few
// registers. What spills does so in attention's loops over tiles; most of it where a kernel has all
// packings of codes at once, as no model does (2056 bytes; of FP8 alone 1576).
static void check_wide(const mgl_text *log, const char *kernel, const char *architecture) {
  bool wgmma = strcmp(architecture, "sm_90a") == 0;
  mgl_cuda_usage usage = usage_of(log, kernel, architecture);
  assert_null(strstr(log->data, "serialized"));
  assert_true(usage.registers * (wgmma ? MGL_WIDE_THREADS : MGL_WIDE_MMA_THREADS) <= 65536);
  assert_true(usage.registers > MGL_WIDE_TILE_TOKENS / 2);  // it is there: a tile's sums
  assert_int_equal(usage.static_smem_bytes, 0);
  assert_true(usage.spill_bytes <= (wgmma ? 2056u : 1024u));
}

static void check_wide_kernel(const mgl_text *log, const char *architecture) {
  check_wide(log, "mgl_wide_kernel", architecture);
}

// Only where there is wgmma.
static void check_wide_64(const mgl_text *log, const char *architecture) {
  if (strcmp(architecture, "sm_90a") == 0) {
    check_wide(log, "mgl_wide_kernel_64", architecture);
  }
}

static void check_wide_128(const mgl_text *log, const char *architecture) {
  if (strcmp(architecture, "sm_90a") == 0) {
    check_wide(log, "mgl_wide_kernel_128", architecture);
  }
}

static void check_wide_192(const mgl_text *log, const char *architecture) {
  if (strcmp(architecture, "sm_90a") == 0) {
    check_wide(log, "mgl_wide_kernel_192", architecture);
  }
}

static void check_wide_plan(const mgl_text *log, const char *architecture) {
  (void)usage_of(log, "mgl_wide_sample_run", architecture);
}

// Attention alone, with about the registers that its consumers have. With heads of 128 some values
// wait in local memory at the borders of parts, more of them where the products are mma.sync's.
static void check_wide_attention(const mgl_text *log, const char *architecture) {
  mgl_cuda_usage usage = usage_of(log, "mgl_wide_attend_run", architecture);
  assert_true(usage.registers <= 216);
  assert_true(usage.spill_bytes <= (strcmp(architecture, "sm_80") == 0 ? 192u : 64u));
}

static void the_wide_class_compiles_for_all_architectures(void **state) {
  (void)state;
  for_architectures("kernels/cuda/wide_kernel.cu", check_wide_kernel);
  for_architectures("kernels/cuda/wide_64.cu", check_wide_64);
  for_architectures("kernels/cuda/wide_128.cu", check_wide_128);
  for_architectures("kernels/cuda/wide_192.cu", check_wide_192);
  for_architectures("kernels/cuda/wide_plan.cu", check_wide_plan);
  for_architectures("kernels/cuda/wide_attention.cu", check_wide_attention);
}

// Codes besides: with groups of 128 or more, and with smaller ones, of which a stage has several.
static void the_wide_class_of_codes_compiles(void **state) {
  (void)state;
  const char *only = getenv("MGL_TEST_ARCHITECTURE");
  mgl_cuda_shape large = shape_of_codes;
  large.groups_of_32 = false;
  // Those that widen have the codes of one model: a service warp has registers for no more.
  mgl_cuda_shape bytes = large, nibbles = shape_of_codes;
  bytes.packings = 1u << MGL_PACKING_BF16 | 1u << MGL_PACKING_E4M3;
  nibbles.packings = 1u << MGL_PACKING_BF16 | 1u << MGL_PACKING_Z4;
  if (only != NULL && strcmp(only, "sm_90a") != 0) {
    skip();
  }
  mgl_nvrtc nvrtc;
  if (!open_nvrtc(&nvrtc)) {
    skip();
  }
  const struct {
    const char *source;
    const mgl_cuda_shape *shape;
    void (*check)(const mgl_text *log, const char *architecture);
  } kernels[] = {{"kernels/cuda/wide_64.cu", &large, check_wide_64},
                 {"kernels/cuda/wide_128.cu", &shape_of_codes, check_wide_128},
                 {"kernels/cuda/wide_kernel.cu", &bytes, check_wide_kernel},
                 {"kernels/cuda/wide_kernel.cu", &nibbles, check_wide_kernel}};
  for (size_t i = 0; i < sizeof kernels / sizeof kernels[0]; i++) {
    mgl_text log;
    compile_for(&nvrtc, kernels[i].source, "sm_90a", kernels[i].shape, &log);
    kernels[i].check(&log, "sm_90a");
    mgl_text_free(&log);
  }
}

// Experts besides, in kernels of few tokens a tile.
static void the_wide_class_of_experts_compiles(void **state) {
  (void)state;
  mgl_cuda_shape of_experts = shape;
  of_experts.experts = (mgl_cuda_experts){
      .count = 128, .slots = 8, .features = 768, .width = 2048, .renormalise = true, .scale = 1};
  for_shape("kernels/cuda/wide_64.cu", &of_experts, check_wide_64);
  for_shape("kernels/cuda/wide_128.cu", &of_experts, check_wide_128);
  for_shape("kernels/cuda/wide_192.cu", &of_experts, check_wide_192);
}

// Of several ranks, whose fourth service warp has no more registers than the others.
static void the_wide_class_of_ranks_compiles(void **state) {
  (void)state;
  for_shape("kernels/cuda/wide_kernel.cu", &shape_of_ranks, check_wide_kernel);
}

// The planner's source is the host's; on a device it keeps everything in registers.
static void the_planner_compiles_for_the_device(void **state) {
  (void)state;
  for_architectures("kernels/cuda/planner.cu", check_planner);
}

// The kernels of mode full. Those of which two blocks share a multiprocessor have 96 registers a
// thread, attention 128; what does not fit there spills, but not in the loops over pages.
static void check_op_kernels(const mgl_text *log, const char *architecture) {
  bool old = strcmp(architecture, "sm_80") == 0;  // kernels do not overlap there
  const struct {
    const char *name;
    uint32_t registers, spilled;  // at most; bytes
  } kernels[] = {{"mgl_op_embed", 64, 0},
                 {"mgl_op_attend", old ? 168 : 128, old ? 0 : 192},
                 {"mgl_op_attend_long", 232, 0},
                 {"mgl_op_attend_any", 232, 0},
                 {"mgl_op_sample", 168, 0},
                 {"mgl_op_plan", 168, 0},
                 {"mgl_op_note", 168, 0},
                 {"mgl_op_linear_1_normed", 96, 96},
                 {"mgl_op_linear_1", 96, 0},
                 {"mgl_op_linear_8_shared_normed", 96, 400},
                 {"mgl_op_linear_8_shared", 96, 128},
                 {"mgl_op_linear_8_normed", 168, 0},
                 {"mgl_op_linear_8", 168, 0},
                 {"mgl_op_linear_8_any", 168, 0},
                 {"mgl_op_linear_16_normed", 168, 32},
                 {"mgl_op_linear_16", 168, 0},
                 {"mgl_op_linear_16_any", 168, 0},
                 {"mgl_op_linear_32_any", 168, 480}};
  for (size_t i = 0; i < sizeof kernels / sizeof kernels[0]; i++) {
    mgl_cuda_usage usage = usage_of(log, kernels[i].name, architecture);
    if (usage.registers > kernels[i].registers || usage.spill_bytes > kernels[i].spilled) {
      fail_msg("%s: %s has %u registers and spills %u bytes, at most %u and %u are accepted",
               architecture, kernels[i].name, usage.registers, usage.spill_bytes,
               kernels[i].registers, kernels[i].spilled);
    }
  }
}

static void op_kernels_compile_for_all_architectures(void **state) {
  (void)state;
  for_architectures("kernels/cuda/op_kernels.cu", check_op_kernels);
}

// Besides, the megakernel's bodies of experts and of codes.
static void check_op_tasks(const mgl_text *log, const char *architecture) {
  const mgl_cuda_usage usage = usage_of(log, "mgl_op_task", architecture);
  assert_true(usage.registers * MGL_OP_LINEAR_THREADS <= 65536);
  check_op_kernels(log, architecture);
}

static void op_kernels_of_experts_and_codes_compile(void **state) {
  (void)state;
  mgl_cuda_shape both = shape;
  both.packings = 1u << MGL_PACKING_BF16 | 1u << MGL_PACKING_E4M3 | 1u << MGL_PACKING_MX4;
  both.groups_of_32 = true;
  both.page_bytes = shape_of_codes.page_bytes;
  both.experts = (mgl_cuda_experts){
      .count = 128, .slots = 8, .features = 768, .width = 2048, .renormalise = true, .scale = 1};
  for_shape("kernels/cuda/op_kernels.cu", &both, check_op_tasks);
}

// Blocks of MGL_PLAIN_THREADS, two on a multiprocessor; what they keep fits into registers.
static void check_plain(const mgl_text *log, const char *architecture) {
  static const char *const kernels[] = {
#define MGL_PLAIN(enum_name, name) "mgl_plain_kernel_" #name,
#include "twin/plain.def"
  };
  for (size_t i = 0; i < sizeof kernels / sizeof kernels[0]; i++) {
    mgl_cuda_usage usage = usage_of(log, kernels[i], architecture);
    assert_true(2 * usage.registers * MGL_PLAIN_THREADS <= 65536);
    assert_int_equal(usage.spill_bytes, 0);
  }
}

static void plain_kernels_compile_for_all_architectures(void **state) {
  (void)state;
  for_architectures("kernels/cuda/plain.cu", check_plain);
}

static void a_broken_request_is_explained(void **state) {
  (void)state;
  mgl_nvrtc nvrtc;
  if (!open_nvrtc(&nvrtc)) {
    skip();
  }
  mgl_error err = {0};
  mgl_text log = {0};
  void *cubin = NULL;
  size_t bytes = 0;
  assert_int_equal(mgl_cuda_compile(&nvrtc, "kernels/cuda/none.cu", "sm_90a", &shape, &cubin,
                                    &bytes, &log, &err),
                   MGL_ERR_ARGUMENT);
  assert_non_null(strstr(err.text, "none.cu"));
  assert_int_equal(mgl_cuda_compile(&nvrtc, "kernels/cuda/megakernel.cu", "sm_1", &shape, &cubin,
                                    &bytes, &log, &err),
                   MGL_ERR_INTERNAL);
  assert_non_null(strstr(err.text, "sm_1"));
  assert_null(cubin);
  mgl_text_free(&log);
}

static void resources_are_read_from_a_log(void **state) {
  (void)state;
  static const char log[] =
      "ptxas info    : 0 bytes gmem\n"
      "ptxas info    : Compiling entry function 'a' for 'sm_90a'\n"
      "ptxas info    : Function properties for a\n"
      "    8 bytes stack frame, 4 bytes spill stores, 12 bytes spill loads\n"
      "ptxas info    : Used 40 registers, used 4 barriers, 96 bytes smem\n"
      "ptxas info    : Compiling entry function 'b' for 'sm_90a'\n"
      "ptxas info    : Function properties for b\n"
      "    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads\n"
      "ptxas info    : Used 255 registers, used 1 barriers\n";
  mgl_cuda_usage usage = {0};
  assert_true(mgl_cuda_usage_find(log, "a", &usage));
  assert_int_equal(usage.registers, 40);
  assert_int_equal(usage.stack_bytes, 8);
  assert_int_equal(usage.spill_bytes, 16);
  assert_int_equal(usage.static_smem_bytes, 96);
  assert_true(mgl_cuda_usage_find(log, "b", &usage));
  assert_int_equal(usage.registers, 255);
  assert_int_equal(usage.static_smem_bytes, 0);
  assert_false(mgl_cuda_usage_find(log, "c", &usage));
}

static const char *architecture_of(uint32_t major, uint32_t minor) {
  static char name[MGL_ARCHITECTURE_BYTES];
  mgl_cuda_device device = {.major = major, .minor = minor};
  mgl_error err = {0};
  assert_int_equal(mgl_cuda_kernels_choose(major, minor, &device.kernels, &err), MGL_OK);
  mgl_cuda_architecture(&device, name);
  return name;
}

static void architectures_have_their_names(void **state) {
  (void)state;
  static const char *const usual[] = {"auto", "", NULL};
  for (size_t i = 0; i < 3; i++) {
    assert_int_equal(
        usual[i] != NULL ? setenv("MEGALITH_KERNELS", usual[i], 1) : unsetenv("MEGALITH_KERNELS"),
        0);
    assert_string_equal(architecture_of(8, 0), "sm_80");
    assert_string_equal(architecture_of(8, 9), "sm_89");
    assert_string_equal(architecture_of(9, 0), "sm_90a");
    assert_string_equal(architecture_of(10, 0), "sm_100a");
    assert_string_equal(architecture_of(10, 3), "sm_103");
    assert_string_equal(architecture_of(12, 0), "sm_120");
  }
}

static void portable_kernels_can_be_asked_for(void **state) {
  (void)state;
  mgl_cuda_kernels kernels = MGL_CUDA_KERNELS_PORTABLE;
  mgl_error err = {0};
  assert_int_equal(mgl_cuda_kernels_choose(9, 0, &kernels, &err), MGL_OK);
  assert_int_equal(kernels, MGL_CUDA_KERNELS_WGMMA);
  assert_int_equal(setenv("MEGALITH_KERNELS", "portable", 1), 0);
  assert_string_equal(architecture_of(8, 0), "sm_80");
  assert_string_equal(architecture_of(9, 0), "sm_90");
  assert_string_equal(architecture_of(10, 0), "sm_100");
  assert_int_equal(setenv("MEGALITH_KERNELS", "fast", 1), 0);
  assert_int_equal(mgl_cuda_kernels_choose(9, 0, &kernels, &err), MGL_ERR_ARGUMENT);
  assert_non_null(strstr(err.text, "found \"fast\""));
  assert_int_equal(unsetenv("MEGALITH_KERNELS"), 0);
}

// Without a driver the binary still starts, and says what is missing.
static void a_missing_driver_is_explained(void **state) {
  (void)state;
  mgl_cuda_driver driver;
  mgl_error err = {0};
  mgl_status status = mgl_cuda_driver_open(&driver, &err);
  if (status == MGL_OK) {
    print_message("skipped: this machine has a driver\n");
    skip();
  }
  assert_int_equal(status, MGL_ERR_UNSUPPORTED);
  assert_non_null(strstr(err.text, "libcuda.so.1"));
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(protocol_and_tasks_compile_for_all_architectures),
      cmocka_unit_test(linears_of_codes_compile_for_all_architectures),
      cmocka_unit_test(several_ranks_compile_for_all_architectures),
      cmocka_unit_test(the_planner_compiles_for_the_device),
      cmocka_unit_test(op_kernels_compile_for_all_architectures),
      cmocka_unit_test(op_kernels_of_experts_and_codes_compile),
      cmocka_unit_test(plain_kernels_compile_for_all_architectures),
      cmocka_unit_test(the_wide_class_compiles_for_all_architectures),
      cmocka_unit_test(the_wide_class_of_codes_compiles),
      cmocka_unit_test(the_wide_class_of_experts_compiles),
      cmocka_unit_test(the_wide_class_of_ranks_compiles),
      cmocka_unit_test(a_broken_request_is_explained),
      cmocka_unit_test(resources_are_read_from_a_log),
      cmocka_unit_test(architectures_have_their_names),
      cmocka_unit_test(portable_kernels_can_be_asked_for),
      cmocka_unit_test(a_missing_driver_is_explained),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
