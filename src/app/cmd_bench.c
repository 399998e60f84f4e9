// megalith bench: time per token against what reading memory costs.
//
// Rounds of the modes are interleaved (eager, next mode, eager, ...), and the read ceiling is
// measured before, between and after them, so that a machine that changes its speed does so for
// all. A round is one batch through the engine: B random prompts of P tokens, then G tokens for
// each, never stopped by an end token. The prompts are computed first, so that every decode
// iteration has exactly B tokens.
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "app/app_model.h"
#include "app/commands.h"
#include "app/human.h"
#include "app/output.h"
#include "app/progress.h"
#include "app/statistics.h"
#include "base/alloc.h"
#include "device/cpu/read_ceiling.h"
#include "device/cpu/way_cache.h"
#include "device/cuda/cuda_wide.h"
#include "engine/engine.h"

enum {
  DEFAULT_BATCH = 1,
  DEFAULT_PROMPT = 64,
  DEFAULT_GENERATE = 64,
  DEFAULT_RUNS = 3,
  CEILING_PASSES = 3,  // of each measurement
};

// What the rounds of one mode gave.
typedef struct mode_result {
  mgl_mode mode;
  mgl_statistics statistics;  // decode iterations of all rounds
  double *prompt_ms;          // [runs] time of all prompts of a round
  double *round_ms;           // [runs] median decode iteration of a round
  // Of decode iterations: experts read, and their bytes; iterations times mixtures.
  uint64_t expert_reads, expert_bytes, mixture_runs;
} mode_result;

typedef struct bench {
  const mgl_arguments *arguments;
  mgl_app_model model;
  uint32_t batch;
  uint32_t iteration_tokens;
  uint32_t prompt;
  uint32_t generate;
  uint32_t runs;
  int32_t *prompts;      // [batch, prompt]
  mode_result *results;  // [result_count]
  size_t result_count;
  mgl_runner *runner;
  mgl_output_file trace;
  mgl_read_ceiling ceiling;  // before, between and after the rounds
  mgl_progress progress;
  uint64_t done_tokens;
  uint64_t total_tokens;
  mgl_expert_loads loads;  // as of the latest iteration
} bench;

// What is printed of one mode.
typedef struct figures {
  double ms_per_token;
  double bytes_per_token;
  double rate;   // bytes per second
  double share;  // of the read ceiling; NaN where that is not steady
  double tokens_per_s;
  double prompt_ms;
  double prompt_tokens_per_s;
} figures;

// --- preparation ---------------------------------------------------------------------------------

static mgl_status read_sizes(bench *b, mgl_error *err) {
  const mgl_arguments *arguments = b->arguments;
  uint64_t context = b->model.folder.config.context_tokens;
  b->batch = (uint32_t)mgl_arguments_u64(arguments, "batch", DEFAULT_BATCH);
  b->prompt = (uint32_t)mgl_arguments_u64(arguments, "prompt", DEFAULT_PROMPT);
  b->generate = (uint32_t)mgl_arguments_u64(arguments, "generate", DEFAULT_GENERATE);
  b->runs = (uint32_t)mgl_arguments_u64(arguments, "runs", DEFAULT_RUNS);
  uint64_t tokens = (uint64_t)b->prompt + b->generate;
  if (tokens > context) {
    return mgl_error_set(err, MGL_ERR_LIMIT,
                         "--prompt and --generate: expected %" PRIu64
                         " tokens at most together (the model's context), found %" PRIu64,
                         context, tokens);
  }
  // 0: the usual number, which is no less than this on any device.
  uint64_t least = b->batch > MGL_CUDA_MAX_TOKENS ? b->batch : 0;
  b->iteration_tokens = (uint32_t)mgl_arguments_u64(arguments, "iteration-tokens", least);
  if (b->iteration_tokens != 0 && b->iteration_tokens < b->batch) {
    return mgl_error_set(err, MGL_ERR_ARGUMENT,
                         "--iteration-tokens: expected at least the %" PRIu32
                         " of --batch, which decode together, found %" PRIu32,
                         b->batch, b->iteration_tokens);
  }
  return MGL_OK;
}

// Modes in the order given, each once; by default that of the settings, or mega and its baselines.
static mgl_status read_modes(bench *b, mgl_error *err) {
  const char *list = mgl_arguments_text(b->arguments, "mode", NULL);
  b->results = mgl_alloc_zeroed(MGL_MODE_COUNT, sizeof *b->results);
  if (b->results == NULL) {
    return mgl_error_set(err, MGL_ERR_MEMORY, "out of memory for the results");
  }
  bool taken[MGL_MODE_COUNT] = {false};
  mgl_compilation compilation;
  bool given = false;
  MGL_TRY(mgl_app_compilation(b->arguments, &compilation, &given, err));
  for (int i = 0; i <= MGL_MODE_FULL && list == NULL && !given; i++) {
    b->results[b->result_count++].mode = (mgl_mode)i;
  }
  if (list == NULL && given) {
    b->results[b->result_count++].mode = compilation.mode;
  }
  for (const char *at = list; at != NULL;) {
    char name[64];
    mgl_mode mode = MGL_MODE_EAGER;
    (void)snprintf(name, sizeof name, "%.*s", (int)strcspn(at, ","), at);
    MGL_TRY(mgl_mode_parse(name, &mode, err));
    if (!taken[mode]) {
      taken[mode] = true;
      b->results[b->result_count++].mode = mode;
    }
    at = strchr(at, ',');
    at = at == NULL ? NULL : at + 1;
  }
  for (size_t i = 0; i < b->result_count; i++) {
    b->results[i].prompt_ms = mgl_alloc_zeroed(b->runs, sizeof *b->results[i].prompt_ms);
    b->results[i].round_ms = mgl_alloc_zeroed(b->runs, sizeof *b->results[i].round_ms);
    if (b->results[i].prompt_ms == NULL || b->results[i].round_ms == NULL) {
      return mgl_error_set(err, MGL_ERR_MEMORY, "out of memory for the results");
    }
  }
  return MGL_OK;
}

static mgl_status open_trace(bench *b, mgl_error *err) {
  bool uses_mega = false;
  for (size_t i = 0; i < b->result_count; i++) {
    uses_mega = uses_mega || b->results[i].mode == MGL_MODE_MEGA;
  }
  return mgl_app_trace_open(b->arguments, uses_mega, &b->trace, err);
}

static mgl_status make_prompts(bench *b, mgl_error *err) {
  size_t count = (size_t)b->batch * b->prompt;
  uint32_t vocab_size = b->model.folder.config.vocab_size;
  b->prompts = mgl_alloc_zeroed(count, sizeof *b->prompts);
  if (b->prompts == NULL) {
    return mgl_error_set(err, MGL_ERR_MEMORY, "out of memory for %zu prompt tokens", count);
  }
  for (size_t i = 0; i < count; i++) {
    b->prompts[i] = (int32_t)(mgl_sampling_uniform(0, i) * vocab_size);
  }
  return MGL_OK;
}

// --- rounds --------------------------------------------------------------------------------------

static bool ignore_token(void *context, const mgl_generated_token *token) {
  (void)context;
  (void)token;
  return true;
}

// One round, as its callbacks see it.
typedef struct bench_round {
  bench *b;
  mode_result *result;
  mgl_status status;
  mgl_error *err;
} bench_round;

// What the iteration's experts were; those of prompts are left out.
static void add_experts(bench *b, mode_result *result, const mgl_iteration *iteration) {
  const mgl_expert_loads before = b->loads;
  mgl_runner_expert_loads(b->runner, &b->loads);
  if (iteration->prompt_tokens == 0) {
    result->expert_reads += b->loads.reads - before.reads;
    result->expert_bytes += b->loads.bytes - before.bytes;
    result->mixture_runs += b->loads.runs - before.runs;
  }
}

static bool on_iteration(void *context, const mgl_iteration *iteration) {
  bench_round *r = context;
  bench *b = r->b;
  add_experts(b, r->result, iteration);
  const megalith_iteration told = {.prompt_tokens = iteration->prompt_tokens,
                                   .generated = iteration->decode_tokens,
                                   .context_tokens = iteration->kv_tokens,
                                   .ns = iteration->ns};
  r->status = mgl_statistics_add(&r->result->statistics, &told, r->err);
  b->done_tokens += iteration->prompt_tokens + iteration->decode_tokens;
  mgl_progress_update(&b->progress, b->done_tokens, b->total_tokens);
  return r->status == MGL_OK;
}

static mgl_status run_engine(bench *b, mgl_engine *engine, mode_result *result, uint32_t round,
                             mgl_error *err) {
  for (uint32_t i = 0; i < b->batch; i++) {
    mgl_request request = {.prompt = b->prompts + (size_t)i * b->prompt,
                           .prompt_count = b->prompt,
                           .max_new_tokens = b->generate,
                           .sampling = {.top_p = 1}};
    uint32_t number = 0;
    MGL_TRY(mgl_engine_submit(engine, &request, &number, err));
  }
  mgl_statistics *s = &result->statistics;
  uint64_t prompt_ns = s->prompt_ns;
  size_t steps = s->step_count;
  bench_round r = {.b = b, .result = result, .status = MGL_OK, .err = err};
  MGL_TRY(mgl_engine_run(engine, ignore_token, on_iteration, &r, err));
  MGL_TRY(r.status);
  result->prompt_ms[round] = (double)(s->prompt_ns - prompt_ns) / 1e6;
  result->round_ms[round] = mgl_median(s->step_ms + steps, s->step_count - steps);
  return MGL_OK;
}

static mgl_status run_round(bench *b, mode_result *result, uint32_t round, mgl_error *err) {
  mgl_engine *engine = NULL;
  mgl_engine_options options = {
      .mode = result->mode,
      .chunk_tokens = (uint32_t)mgl_arguments_u64(b->arguments, "chunk", 0),
      .prompts_first = true};
  MGL_TRY(mgl_engine_create(b->runner, &options, &engine, err));
  mgl_status status = run_engine(b, engine, result, round, err);
  mgl_engine_destroy(engine);
  return status;
}

static mgl_status measure_ceiling(bench *b, mgl_error *err) {
  double rate = 0;
  MGL_TRY(mgl_runner_read_ceiling(b->runner, CEILING_PASSES, &rate, err));
  mgl_read_ceiling_add(&b->ceiling, rate);
  return MGL_OK;
}

static const char *launch_choice(uint32_t index) {
  static const char *const names[] = {"auto", "aot", "jit"};
  return index < sizeof names / sizeof *names ? names[index] : NULL;
}

// Of all modes, when none was asked for, those of the device; on the CPU mega and eager.
static void keep_modes(bench *b) {
  bool asked = mgl_arguments_has(b->arguments, "mode");
  bool on_gpu = mgl_runner_device(b->runner) != NULL;
  size_t count = 0;
  for (size_t i = 0; i < b->result_count; i++) {
    bool usual = asked || on_gpu || b->result_count == 1 || b->results[i].mode != MGL_MODE_FULL;
    if (usual && mgl_runner_has_mode(b->runner, b->results[i].mode)) {
      mode_result kept = b->results[i];
      b->results[i] = b->results[count];
      b->results[count++] = kept;
    }
  }
  b->result_count = count;
}

// On a GPU, what is set for the narrow class where the wide one decodes.
static void note_idle_options(const bench *b) {
  static const char *const of_narrow[] = {
      "launch",     "schedulers",      "scheduler-warps", "in-flight", "no-prefetch",
      "step-batch", "in-flight-ahead", "coarse",          "events",    "partition"};
  bool is_wide = false;  // only mode mega has that class
  for (size_t i = 0; i < b->result_count; i++) {
    is_wide = is_wide || b->results[i].mode == MGL_MODE_MEGA;
  }
  is_wide = is_wide && mgl_runner_device(b->runner) != NULL && b->batch > MGL_NARROW_TOKENS &&
            mgl_runner_limits(b->runner)->tokens > MGL_CUDA_MAX_TOKENS;
  for (size_t i = 0; is_wide && i < sizeof of_narrow / sizeof *of_narrow; i++) {
    if (mgl_arguments_has(b->arguments, of_narrow[i])) {
      (void)fprintf(
          stderr,
          "megalith: note: --%s is for iterations of up to %d tokens, or of up to %d with "
          "--iteration-tokens %d, and the batch has %" PRIu32 "\n",
          of_narrow[i], MGL_NARROW_TOKENS, MGL_CUDA_MAX_TOKENS, MGL_CUDA_MAX_TOKENS, b->batch);
    }
  }
}

static const char *routing_choice(uint32_t index) {
  static const char *const names[] = {"uniform", "skewed", "one"};
  return index < sizeof names / sizeof *names ? names[index] : NULL;
}

static mgl_status read_routing(const bench *b, mgl_routing *out, mgl_error *err) {
  const char *name = mgl_arguments_text(b->arguments, "routing", routing_choice(0));
  const bool is_given = mgl_arguments_has(b->arguments, "routing");
  if (is_given && b->model.folder.config.mixture.expert_count == 0) {
    return mgl_error_set(err, MGL_ERR_ARGUMENT,
                         "--routing: expected a mixture of experts, %s has none", b->model.name);
  }
  if (is_given && b->model.source != MGL_WEIGHTS_DUMMY) {
    return mgl_error_set(err, MGL_ERR_ARGUMENT,
                         "--routing: expected --load-format dummy with it: the routers of real "
                         "weights stay as they are");
  }
  uint32_t i = 0;
  while (strcmp(routing_choice(i), name) != 0) {
    i++;
  }
  *out = (mgl_routing)i;
  return MGL_OK;
}

static mgl_status measure(bench *b, mgl_error *err) {
  static const mgl_launch launches[] = {MGL_LAUNCH_AUTO, MGL_LAUNCH_AOT, MGL_LAUNCH_JIT};
  uint32_t launch = 0;
  const char *name = mgl_arguments_text(b->arguments, "launch", launch_choice(0));
  while (strcmp(launch_choice(launch), name) != 0) {
    launch++;
  }
  mgl_build options = {.iteration_tokens = b->iteration_tokens,
                       .sequences = b->batch,
                       .sequence_tokens = b->prompt + b->generate,
                       .page_tokens = (uint32_t)mgl_arguments_u64(b->arguments, "page-tokens", 0),
                       .launch = launches[launch],
                       .schedulers = (uint32_t)mgl_arguments_u64(b->arguments, "schedulers", 0)};
  MGL_TRY(read_routing(b, &options.routing, err));
  MGL_TRY(mgl_app_model_start(&b->model, b->arguments, &options, &b->runner, err));
  mgl_runner_expert_loads(b->runner, &b->loads);
  keep_modes(b);
  note_idle_options(b);
  b->total_tokens = (uint64_t)b->batch * (b->prompt + b->generate - 1) * b->runs * b->result_count;
  mgl_progress_start(&b->progress, "measuring", MGL_PROGRESS_COUNT);
  mgl_status status = measure_ceiling(b, err);
  for (uint32_t round = 0; status == MGL_OK && round < b->runs; round++) {
    for (size_t i = 0; status == MGL_OK && i < b->result_count; i++) {
      status = run_round(b, &b->results[i], round, err);
    }
    if (status == MGL_OK) {
      status = measure_ceiling(b, err);
    }
  }
  mgl_progress_finish(&b->progress);
  return status;
}

// --- output --------------------------------------------------------------------------------------

static figures figures_of(const bench *b, const mode_result *result) {
  const mgl_statistics *s = &result->statistics;
  // One decode iteration reads the weights once and the context of every sequence.
  double kv_tokens = (double)s->kv_tokens / (double)s->step_count;
  // Of experts, those that were hit.
  double experts = b->loads.mixtures == 0 ? 0
                                          : (double)result->expert_bytes / (double)s->step_count -
                                                (double)b->loads.step_bytes;
  figures f = {
      .ms_per_token = mgl_median(s->step_ms, s->step_count),
      .bytes_per_token =
          (double)(mgl_runner_step_bytes(b->runner) - mgl_runner_short_saved(b->runner, b->batch)) +
          experts + (double)mgl_runner_kv_bytes_per_token(b->runner) * kv_tokens,
      .prompt_ms = mgl_median(result->prompt_ms, b->runs),
  };
  f.rate = f.bytes_per_token * 1e3 / f.ms_per_token;
  f.share = mgl_read_ceiling_is_steady(&b->ceiling) ? f.rate / b->ceiling.most : (double)NAN;
  f.tokens_per_s = b->batch * 1e3 / f.ms_per_token;
  f.prompt_tokens_per_s = (double)b->batch * b->prompt * 1e3 / f.prompt_ms;
  return f;
}

static const char *source_name(const bench *b) {
  switch (b->model.source) {
    case MGL_WEIGHTS_AUTO: return "auto";
    case MGL_WEIGHTS_MAPPED: return "mapped";
    case MGL_WEIGHTS_COPIED: return "copied";
    case MGL_WEIGHTS_DUMMY: return "dummy";
    case MGL_WEIGHTS_SHORT: return "short";
  }
  return "unknown";
}

static void append_host(const bench *b, mgl_text *out) {
  char processor[MGL_PROCESSOR_BYTES];
  mgl_text way = {0};
  mgl_processor_name(processor);
  mgl_way_append(mgl_runner_way(b->runner), &way);
  mgl_text_append_string(out, ", \"processor\": ");
  mgl_json_append_string(out, processor, strlen(processor));
  mgl_text_format(out, ", \"threads\": %" PRIu32 ", \"simd\": \"%s\"",
                  mgl_runner_threads(b->runner), mgl_simd_name(mgl_runner_simd(b->runner)));
  mgl_text_append_string(out, ", \"linears\": ");
  mgl_json_append_string(out, way.data, way.bytes);
  mgl_text_free(&way);
}

// Experts that an iteration of the decode phase read, of a layer.
static double experts_hit(const mode_result *result) {
  return result->mixture_runs == 0 ? 0
                                   : (double)result->expert_reads / (double)result->mixture_runs;
}

static const char *routing_of(const bench *b) {
  return b->model.source == MGL_WEIGHTS_DUMMY
             ? mgl_arguments_text(b->arguments, "routing", routing_choice(0))
             : "real";
}

static void append_json(const bench *b, mgl_text *out) {
  const mgl_cuda_device *device = mgl_runner_device(b->runner);
  for (size_t i = 0; i < b->result_count; i++) {
    figures f = figures_of(b, &b->results[i]);
    mgl_text_format(out, "{\"mode\": \"%s\"", mgl_mode_name(b->results[i].mode));
    mgl_text_format(out, ", \"ms_per_token\": %.6g, \"bytes_per_token\": %.0f", f.ms_per_token,
                    f.bytes_per_token);
    mgl_text_format(out, ", \"gbps\": %.6g, \"ceiling_gbps\": %.6g, \"ceiling_spread\": %.6g",
                    f.rate / 1e9, b->ceiling.most / 1e9, mgl_read_ceiling_spread(&b->ceiling));
    mgl_text_append_string(out, ", \"share\": ");
    mgl_json_append_double(out, f.share);
    mgl_text_format(out, ", \"tokens_per_s\": %.6g, \"prompt_ms\": %.6g", f.tokens_per_s,
                    f.prompt_ms);
    mgl_text_format(out, ", \"prompt_tokens_per_s\": %.6g, \"batch\": %" PRIu32,
                    f.prompt_tokens_per_s, b->batch);
    mgl_text_format(out, ", \"prompt\": %" PRIu32 ", \"generate\": %" PRIu32 ", \"runs\": %" PRIu32,
                    b->prompt, b->generate, b->runs);
    if (device != NULL) {
      mgl_text_append_string(out, ", \"device\": ");
      mgl_json_append_string(out, device->name, strlen(device->name));
      mgl_text_format(out, ", \"workers\": %" PRIu32, mgl_runner_threads(b->runner));
    } else {
      append_host(b, out);
    }
    if (b->loads.mixtures != 0) {
      mgl_text_format(out, ", \"experts_read\": %.6g, \"experts\": %" PRIu32,
                      experts_hit(&b->results[i]), b->loads.experts);
      mgl_text_format(out, ", \"expert_load_largest_over_mean\": %.6g, \"routing\": \"%s\"",
                      b->loads.largest_over_mean, routing_of(b));
    }
    mgl_text_format(out, ", \"load_format\": \"%s\"", source_name(b));
    mgl_text_append_string(out, ", \"model\": ");
    mgl_json_append_string(out, b->model.name, strlen(b->model.name));
    for (uint32_t round = 0; round < b->runs; round++) {
      mgl_text_append_string(out, round == 0 ? ", \"round_ms\": [" : ", ");
      mgl_json_append_double(out, b->results[i].round_ms[round]);
    }
    mgl_text_append_string(out, "]}\n");
  }
}

static void append_table(const bench *b, mgl_text *out) {
  char cells[7][MGL_HUMAN_BYTES];
  mgl_human_size(mgl_runner_step_bytes(b->runner), cells[0]);
  const mgl_cuda_device *device = mgl_runner_device(b->runner);
  mgl_text_format(out, "%s: %s of weights a token, %s, %" PRIu32 " %s, %s\n", b->model.name,
                  cells[0], source_name(b), mgl_runner_threads(b->runner),
                  device != NULL ? "workers" : "threads",
                  device != NULL ? device->name : mgl_simd_name(mgl_runner_simd(b->runner)));
  mgl_text_format(out,
                  "batch %" PRIu32 ", prompt %" PRIu32 ", generate %" PRIu32 ", %" PRIu32
                  " runs of each mode, medians\n\n",
                  b->batch, b->prompt, b->generate, b->runs);
  mgl_text_append_string(out,
                         "mode        ms/token   tokens/s  bytes/token      GB/s   ceiling  share"
                         "   prompt ms  prompt tokens/s\n");
  for (size_t i = 0; i < b->result_count; i++) {
    figures f = figures_of(b, &b->results[i]);
    mgl_human_number(f.ms_per_token, cells[0]);
    mgl_human_number(f.tokens_per_s, cells[1]);
    mgl_human_size((uint64_t)f.bytes_per_token, cells[2]);
    mgl_human_number(f.rate / 1e9, cells[3]);
    mgl_human_number(b->ceiling.most / 1e9, cells[4]);
    mgl_human_number(f.prompt_ms, cells[5]);
    mgl_human_number(f.prompt_tokens_per_s, cells[6]);
    char share[MGL_HUMAN_BYTES] = "-";
    if (isfinite(f.share)) {
      (void)snprintf(share, sizeof share, "%.0f%%", f.share * 100);
    }
    mgl_text_format(out, "%-10s %9s %10s %12s %9s %9s %6s %11s %16s\n",
                    mgl_mode_name(b->results[i].mode), cells[0], cells[1], cells[2], cells[3],
                    cells[4], share, cells[5], cells[6]);
  }
  for (size_t i = 0; i < b->result_count && b->loads.mixtures != 0; i++) {
    mgl_text_format(out, "%s%s: %.1f of %" PRIu32 " experts of a layer read an iteration",
                    i == 0 ? "\n" : "", mgl_mode_name(b->results[i].mode),
                    experts_hit(&b->results[i]), b->loads.experts);
    mgl_text_format(out, " (routing: %s)\n", routing_of(b));
  }
  if (b->loads.mixtures != 0) {
    mgl_text_format(out,
                    "busiest expert of a layer: %.2f times the mean, %.2f in the worst layer\n",
                    b->loads.largest_over_mean, b->loads.most_over_mean);
  }
  mgl_text_append_string(out, "\nread ceiling: ");
  mgl_read_ceiling_append(&b->ceiling, out);
  mgl_read_ceiling_append_refusal(&b->ceiling, out);
  mgl_text_append_string(out, "\n");
}

static mgl_status print_results(const bench *b, mgl_error *err) {
  mgl_text out = {0};
  if (mgl_arguments_has(b->arguments, "json")) {
    append_json(b, &out);
  } else {
    append_table(b, &out);
  }
  mgl_status status = mgl_output_text(&out, err);
  mgl_text_free(&out);
  return status;
}

static void release(bench *b) {
  for (size_t i = 0; i < MGL_MODE_COUNT && b->results != NULL; i++) {
    mgl_statistics_free(&b->results[i].statistics);
    mgl_free(b->results[i].prompt_ms);
    mgl_free(b->results[i].round_ms);
  }
  mgl_free(b->results);
  mgl_free(b->prompts);
  mgl_output_file_close(&b->trace);
  mgl_runner_destroy(b->runner);
  mgl_app_model_close(&b->model);
}

static mgl_status bench_command(const mgl_arguments *arguments, mgl_error *err) {
  bench b = {.arguments = arguments, .trace = {.fd = -1}};
  mgl_status status = MGL_OK;
  if ((status = mgl_app_model_open(arguments, MGL_NEED_WEIGHTS, &b.model, err)) == MGL_OK &&
      (status = read_sizes(&b, err)) == MGL_OK && (status = read_modes(&b, err)) == MGL_OK &&
      (status = open_trace(&b, err)) == MGL_OK && (status = make_prompts(&b, err)) == MGL_OK &&
      (status = measure(&b, err)) == MGL_OK &&
      (status = mgl_app_trace_write(&b.trace, b.runner, err)) == MGL_OK) {
    status = print_results(&b, err);
  }
  release(&b);
  return status;
}

static const mgl_option options[] = {
    {.name = "batch",
     .short_name = 'b',
     .value_name = "B",
     .type = MGL_OPTION_U64,
     .u64_min = 1,
     .u64_max = MGL_MAX_SEQUENCES,
     .help = "sequences that decode together [1]"},
    {.name = "prompt",
     .short_name = 'p',
     .value_name = "P",
     .type = MGL_OPTION_U64,
     .u64_min = 1,
     .u64_max = MGL_MAX_CONTEXT,
     .help = "random prompt tokens of each sequence [64]"},
    {.name = "generate",
     .short_name = 'g',
     .value_name = "G",
     .type = MGL_OPTION_U64,
     .u64_min = 2,
     .u64_max = MGL_MAX_CONTEXT,
     .help =
         "tokens to generate for each sequence, 2 at least: the first comes with the prompt [64]"},
    {.name = "runs",
     .value_name = "N",
     .type = MGL_OPTION_U64,
     .u64_min = 1,
     .u64_max = 1000,
     .help = "rounds of each mode, interleaved [3]"},
    {.name = "chunk",
     .value_name = "N",
     .type = MGL_OPTION_U64,
     .u64_min = 1,
     .u64_max = MGL_MAX_ITERATION_TOKENS,
     .help = "prompt tokens of one sequence in an iteration at most [those of an iteration]"},
    MGL_ROW_ITERATION_TOKENS,
    MGL_ROW_PARTITION,
    {.name = "json",
     .type = MGL_OPTION_FLAG,
     .help = "print one JSON object for each mode, a line each"},
    {.name = "mode",
     .value_name = "MODES",
     .type = MGL_OPTION_LIST,
     .choices = mgl_mode_choice,
     .help = "modes to compare, with commas between them [mega; CPU: and eager; GPU: and full]"},
    MGL_ROW_TRACE,
    {.name = "launch",
     .value_name = "WHEN",
     .type = MGL_OPTION_CHOICE,
     .choices = launch_choice,
     .help =
         "of mode mega: place all tasks ahead of time (aot), or let workers take them as they go "
         "(jit); auto: the compiler decides [auto]"},
    {.name = "routing",
     .value_name = "HOW",
     .type = MGL_OPTION_CHOICE,
     .choices = routing_choice,
     .help = "of a mixture of experts in dummy weights: routers as they are drawn (uniform), with "
             "rows whose logits spread less and less (skewed), or of zeros, with which all tokens "
             "choose the same experts (one); on the CPU what was hit is printed [uniform]"},
    {.name = "schedulers",
     .value_name = "N",
     .type = MGL_OPTION_U64,
     .u64_min = 0,
     .u64_max = 64,
     .help = "of mode mega: threads, or warps of a GPU, up to four a block, that only begin "
             "iterations; 0: whoever activates an iteration's end does [0]"},
    MGL_ROW_KV_DTYPE,
    {.name = "page-tokens",
     .value_name = "N",
     .type = MGL_OPTION_U64,
     .u64_min = 16,
     .u64_max = 256,
     .help = "tokens of a KV page on the CPU: 16, 32, 64, 128 or 256 [16]"},
    {.name = "scheduler-warps",
     .type = MGL_OPTION_FLAG,
     .help = "GPU: schedulers are warps of worker blocks, not blocks of their own"},
    {.name = "in-flight",
     .value_name = "N",
     .type = MGL_OPTION_U64,
     .u64_min = 1,
     .u64_max = MGL_CUDA_MAX_PAGES,
     .help =
         "GPU: pages of weights on their way for tasks that may run, at most [8 where weights "
         "stream, "
         "else 4; of 16 tokens as many as cover the memory's latency, 2 on an H100, 3 on an H200]"},
    {.name = "in-flight-ahead",
     .value_name = "N",
     .type = MGL_OPTION_U64,
     .u64_min = 1,
     .u64_max = MGL_CUDA_MAX_PAGES,
     .help =
         "GPU: the same for tasks that still wait for their inputs [as many as cover the memory's "
         "latency; one more where weights stream]"},
    {.name = "no-prefetch",
     .type = MGL_OPTION_FLAG,
     .help = "GPU: load weights only for tasks that may run"},
    {.name = "step-batch",
     .value_name = "N",
     .type = MGL_OPTION_U64,
     .u64_min = 1,
     .u64_max = 32,
     .help = "GPU: task descriptors that are fetched at once [32]"},
    {.name = "coarse",
     .type = MGL_OPTION_FLAG,
     .help = "GPU: one event between two ops instead of exact dependencies"},
    {.name = "events",
     .type = MGL_OPTION_FLAG,
     .help = "GPU: tasks wait for events, not for the words that they read"},
    MGL_ROW_TENSOR_PARALLEL,
    MGL_ROW_VOCAB_PARALLEL,
    MGL_ROW_REDUCE_SCATTER,
};

static const mgl_option_group *const groups[] = {&mgl_place_options, &mgl_compile_options_group,
                                                 NULL};

const mgl_command mgl_command_bench = {
    .name = "bench",
    .summary = "time per token, and its share of the read ceiling",
    .positional = "MODEL",
    .description =
        "Measures decoding: median time of an iteration that gives each of B sequences one token,\n"
        "the bytes it must read (the weights once, of experts those that were hit, and the\n"
        "context of each sequence), the rate\n"
        "that follows, and its share of the read ceiling, the rate of plain loads by the same\n"
        "threads before, between and after the rounds. Where these measurements lie more than 15%\n"
        "apart, no share is told (null in JSON). Weights that fit into the caches can exceed the\n"
        "ceiling. Of a GPU, --launch, --schedulers and the options that begin with \"GPU:\" are "
        "for\n"
        "iterations of up to 16 tokens, or of up to 64 with --iteration-tokens 64: larger ones "
        "have\n"
        "a kernel of their own.",
    .examples =
        "megalith bench\n"
        "megalith bench path/to/model --batch 8 --prompt 128 --generate 128 --json\n"
        "megalith bench folder/with/config --load-format dummy",
    .options = options,
    .takes_launchers = true,
    .option_count = sizeof options / sizeof *options,
    .groups = groups,
    .run = bench_command,
};
