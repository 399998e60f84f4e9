// megalith bench throughput: many requests of random lengths through one engine.
//
// Lengths and token ids come from a seed, so that two programs can be compared on the same work.
// Nothing stops a request before its length. With an arrival rate, requests come one by one with
// random gaps (a Poisson process), and the time to the first token counts from the arrival; without
// one, all are there at the start, as in the benchmarks of other engines.
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "app/app_model.h"
#include "app/commands.h"
#include "app/human.h"
#include "app/interrupt.h"
#include "app/output.h"
#include "app/progress.h"
#include "app/random_work.h"
#include "app/statistics.h"
#include "base/alloc.h"
#include "base/clock.h"
#include "engine/engine.h"

// When the tokens of a request came, from the start.
typedef struct times {
  uint32_t generated;
  uint64_t first_ns, last_ns;
} times;

// What iterations of one kind took.
typedef struct phase {
  uint64_t iterations, ns;
  uint64_t tokens;  // rows
  double bytes;     // of weights and KV, read by what decodes
} phase;

typedef struct throughput {
  const mgl_arguments *arguments;
  mgl_app_model model;
  mgl_random_work work;  // numbered as the engine numbers its requests
  times *times;          // [work.count]
  int32_t *prompt;       // [longest input] of the request that is being submitted
  double *gaps_ms;       // [gap_count] between tokens of a request
  size_t gap_count;
  mgl_runner *runner;
  mgl_engine *engine;
  mgl_progress progress;
  uint64_t done_tokens;
  mgl_expert_loads loads;        // as of the latest iteration
  phase with_prompts, decoding;  // iterations with prompt tokens, and without
  uint64_t start_ns;
  uint64_t end_ns;  // of the last token
  uint32_t submitted;
  mgl_status status;  // the first failure inside a callback
  mgl_error *err;
} throughput;

// What is reported.
typedef struct figures {
  double seconds;
  double first_ms[2], gap_ms[2];  // median, 99th percentile
  mgl_engine_statistics engine;
} figures;

// --- the work ------------------------------------------------------------------------------------

static mgl_status make_work(throughput *t, mgl_error *err) {
  MGL_TRY(mgl_random_work_make(t->arguments, t->model.folder.config.context_tokens, &t->work, err));
  t->times = mgl_alloc_zeroed(t->work.count, sizeof *t->times);
  t->prompt = mgl_alloc_zeroed(t->work.longest_input, sizeof *t->prompt);
  t->gaps_ms = mgl_alloc_zeroed((size_t)t->work.output_tokens, sizeof *t->gaps_ms);
  if (t->times == NULL || t->prompt == NULL || t->gaps_ms == NULL) {
    return mgl_error_set(err, MGL_ERR_MEMORY, "out of memory for the times of %" PRIu64 " tokens",
                         t->work.output_tokens);
  }
  return MGL_OK;
}

// --- the run -------------------------------------------------------------------------------------

static mgl_status submit(throughput *t, uint32_t index, mgl_error *err) {
  const mgl_work_item *w = &t->work.items[index];
  uint32_t number = 0;
  mgl_random_work_prompt(&t->work, index, mgl_runner_vocab_size(t->runner), t->prompt);
  mgl_request request = {
      .prompt = t->prompt,
      .prompt_count = w->input,
      .max_new_tokens = w->output,
      .sampling = {.temperature = mgl_arguments_real(t->arguments, "temperature", 0),
                   .top_p = 1,
                   .seed = index}};
  return mgl_engine_submit(t->engine, &request, &number, err);
}

// Submits what has arrived.
static void before_plan(void *context) {
  throughput *t = context;
  uint64_t now_ns = mgl_clock_ns() - t->start_ns;
  while (t->status == MGL_OK && t->submitted < t->work.count &&
         t->work.items[t->submitted].arrival_ns <= now_ns) {
    t->status = submit(t, t->submitted++, t->err);
  }
}

static bool interrupted(void *context) {
  (void)context;
  return mgl_interrupt_seen();
}

static bool on_token(void *context, const mgl_generated_token *token) {
  throughput *t = context;
  times *w = &t->times[token->request];
  uint64_t now_ns = mgl_clock_ns() - t->start_ns;
  if (w->generated++ == 0) {
    w->first_ns = now_ns;
  } else {
    t->gaps_ms[t->gap_count++] = (double)(now_ns - w->last_ns) / 1e6;
  }
  w->last_ns = now_ns;
  t->end_ns = now_ns;
  return true;
}

static bool on_iteration(void *context, const mgl_iteration *iteration) {
  throughput *t = context;
  uint32_t tokens = iteration->prompt_tokens + iteration->decode_tokens;
  phase *at = iteration->prompt_tokens > 0 ? &t->with_prompts : &t->decoding;
  at->iterations++;
  at->ns += iteration->ns;
  at->tokens += tokens;
  const mgl_expert_loads before = t->loads;
  mgl_runner_expert_loads(t->runner, &t->loads);
  at->bytes += (double)mgl_runner_step_bytes(t->runner) - (double)t->loads.step_bytes +
               (double)(t->loads.bytes - before.bytes) +
               (double)iteration->kv_tokens * (double)mgl_runner_kv_bytes_per_token(t->runner);
  t->done_tokens += tokens;
  mgl_progress_update(&t->progress, t->done_tokens, t->work.input_tokens + t->work.output_tokens);
  return t->status == MGL_OK && !mgl_interrupt_seen();
}

static void wait_until(uint64_t ns) {
  struct timespec until = {.tv_sec = (time_t)(ns / 1000000000), .tv_nsec = (long)(ns % 1000000000)};
  (void)clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, NULL);  // a signal ends it
}

static mgl_status generate(throughput *t, mgl_error *err) {
  t->err = err;
  mgl_interrupt_watch();
  mgl_progress_start(&t->progress, "generating", MGL_PROGRESS_COUNT);
  mgl_status status = MGL_OK;
  t->start_ns = mgl_clock_ns();
  while (status == MGL_OK && !mgl_interrupt_seen() &&
         (t->submitted < t->work.count || mgl_engine_has_work(t->engine))) {
    if (!mgl_engine_has_work(t->engine)) {
      wait_until(t->start_ns + t->work.items[t->submitted].arrival_ns);
    }
    status = mgl_engine_run(t->engine, on_token, on_iteration, t, err);
    status = status == MGL_OK ? t->status : status;
  }
  mgl_progress_finish(&t->progress);
  return status;
}

static mgl_status start(throughput *t, mgl_error *err) {
  uint32_t places = (uint32_t)mgl_arguments_u64(t->arguments, "sequences", 0);
  mgl_build options = {.sequences = places < t->work.count ? places : t->work.count,
                       .requests = t->work.count,
                       .sequence_tokens = t->work.longest,
                       .memory_share = MGL_USUAL_SHARE};
  MGL_TRY(mgl_app_model_start(&t->model, t->arguments, &options, &t->runner, err));
  mgl_engine_options engine = {
      .mode = mgl_app_mode_of(t->arguments, t->runner),
      .chunk_tokens = (uint32_t)mgl_arguments_u64(t->arguments, "chunk", 0),
      .prefix_cache = !mgl_arguments_has(t->arguments, "no-prefix-cache"),
      .before_plan = before_plan,
      .should_stop = interrupted,
      .context = t};
  MGL_TRY(mgl_runner_prepare(t->runner, engine.mode, err));
  return mgl_engine_create(t->runner, &engine, &t->engine, err);
}

// --- results -------------------------------------------------------------------------------------

// Reorders the values.
static void median_and_p99(double *values, size_t count, double out[2]) {
  out[0] = mgl_median(values, count);
  out[1] = mgl_percentile(values, count, 99);
}

static mgl_status add_up(throughput *t, figures *out, mgl_error *err) {
  double *first_ms = mgl_alloc_zeroed(t->work.count, sizeof *first_ms);
  if (first_ms == NULL) {
    return mgl_error_set(err, MGL_ERR_MEMORY, "out of memory for the results");
  }
  for (uint32_t i = 0; i < t->work.count; i++) {
    first_ms[i] = (double)(t->times[i].first_ns - t->work.items[i].arrival_ns) / 1e6;
  }
  *out = (figures){.seconds = (double)t->end_ns / 1e9};
  median_and_p99(first_ms, t->work.count, out->first_ms);
  median_and_p99(t->gaps_ms, t->gap_count, out->gap_ms);
  mgl_engine_get_statistics(t->engine, &out->engine);
  mgl_free(first_ms);
  return MGL_OK;
}

static double share(uint64_t part, uint64_t whole) {
  return whole == 0 ? 0 : (double)part / (double)whole;
}

// Of weights and KV memory, as if each sequence read its own.
static double bytes_per_s(const phase *p) {
  return p->ns == 0 ? 0 : p->bytes / ((double)p->ns / 1e9);
}

static void append_json(const throughput *t, const figures *f, mgl_text *out) {
  const mgl_engine_statistics *s = &f->engine;
  const mgl_cuda_device *device = mgl_runner_device(t->runner);
  mgl_text_format(out, "{\"requests\": %" PRIu32 ", \"input_tokens\": %" PRIu64, t->work.count,
                  t->work.input_tokens);
  mgl_text_format(out, ", \"output_tokens\": %" PRIu64 ", \"seconds\": %.6g", t->work.output_tokens,
                  f->seconds);
  mgl_text_format(out, ", \"output_tokens_per_s\": %.6g, \"total_tokens_per_s\": %.6g",
                  (double)t->work.output_tokens / f->seconds,
                  (double)(t->work.input_tokens + t->work.output_tokens) / f->seconds);
  mgl_text_format(out, ", \"first_token_ms\": {\"median\": %.6g, \"p99\": %.6g}", f->first_ms[0],
                  f->first_ms[1]);
  mgl_text_format(out, ", \"inter_token_ms\": {\"median\": %.6g, \"p99\": %.6g}", f->gap_ms[0],
                  f->gap_ms[1]);
  mgl_text_format(out, ", \"kv_tokens\": %" PRIu64 ", \"kv_use\": %.6g",
                  (uint64_t)s->pages * mgl_runner_limits(t->runner)->page_tokens,
                  share(s->pages_used_most, s->pages));
  mgl_text_format(out, ", \"prefix_hits\": %.6g, \"preemptions\": %" PRIu64,
                  share(s->prefix_hit_tokens, s->prefix_lookup_tokens), s->preemptions);
  mgl_text_format(out, ", \"iterations\": %" PRIu64 ", \"planning_share\": %.6g", s->iterations,
                  share(s->planning_ns, s->total_ns));
  mgl_text_format(
      out,
      ", \"prompt_iterations\": {\"count\": %" PRIu64 ", \"tokens\": %" PRIu64 ", \"ms\": %.6g}",
      t->with_prompts.iterations, t->with_prompts.tokens, (double)t->with_prompts.ns / 1e6);
  mgl_text_format(out,
                  ", \"decode_iterations\": {\"count\": %" PRIu64 ", \"tokens\": %" PRIu64
                  ", \"ms\": %.6g",
                  t->decoding.iterations, t->decoding.tokens, (double)t->decoding.ns / 1e6);
  mgl_text_format(out, ", \"bytes_per_s\": %.6g}", bytes_per_s(&t->decoding));
  if (t->loads.mixtures != 0) {
    mgl_text_format(out, ", \"experts\": %" PRIu32 ", \"experts_read\": %.6g", t->loads.experts,
                    share(t->loads.reads, t->loads.runs));
    mgl_text_format(out, ", \"expert_rows\": %" PRIu64, t->loads.rows);
    mgl_text_format(out, ", \"expert_load_largest_over_mean\": {\"mean\": %.6g, \"most\": %.6g}",
                    t->loads.largest_over_mean, t->loads.most_over_mean);
  }
  mgl_text_format(out, ", \"sequences\": %" PRIu32 ", \"seed\": %" PRIu64 ", \"mode\": \"%s\"",
                  mgl_runner_sequences(t->runner), t->work.seed,
                  mgl_mode_name(mgl_app_mode_of(t->arguments, t->runner)));
  mgl_text_append_string(out, ", \"device\": ");
  const char *name = device != NULL ? device->name : mgl_simd_name(mgl_runner_simd(t->runner));
  mgl_json_append_string(out, name, strlen(name));
  mgl_text_format(out, ", \"workers\": %" PRIu32 ", \"model\": ", mgl_runner_threads(t->runner));
  mgl_json_append_string(out, t->model.name, strlen(t->model.name));
  mgl_text_append_string(out, "}\n");
}

static void append_times(mgl_text *out, const char *label, const double ms[2]) {
  char cells[2][MGL_HUMAN_BYTES];
  mgl_human_ms(ms[0], cells[0]);
  mgl_human_ms(ms[1], cells[1]);
  mgl_text_format(out, "%-22s %s median, %s p99\n", label, cells[0], cells[1]);
}

static void append_phase(mgl_text *out, const char *label, const throughput *t, const phase *p,
                         double seconds) {
  char ms[MGL_HUMAN_BYTES];
  mgl_human_ms(p->iterations == 0 ? 0 : (double)p->ns / 1e6 / (double)p->iterations, ms);
  mgl_text_format(out, "%-22s %" PRIu64 ", %.1f%% of the time, %s and %.0f tokens each", label,
                  p->iterations, 100 * (double)p->ns / 1e9 / seconds, ms,
                  p->iterations == 0 ? 0.0 : (double)p->tokens / (double)p->iterations);
  if (p == &t->decoding) {
    mgl_text_format(out, ", %.0f GB/s", bytes_per_s(p) / 1e9);
  }
  mgl_text_append_string(out, "\n");
}

static void append_table(const throughput *t, const figures *f, mgl_text *out) {
  const mgl_engine_statistics *s = &f->engine;
  const mgl_cuda_device *device = mgl_runner_device(t->runner);
  char cells[2][MGL_HUMAN_BYTES];
  mgl_text_format(out,
                  "%s: %" PRIu32 " requests, %" PRIu64 " tokens in, %" PRIu64 " out, up to %" PRIu32
                  " at once, %" PRIu32 " %s, %s\n\n",
                  t->model.name, t->work.count, t->work.input_tokens, t->work.output_tokens,
                  mgl_runner_sequences(t->runner), mgl_runner_threads(t->runner),
                  device != NULL ? "workers" : "threads",
                  device != NULL ? device->name : mgl_simd_name(mgl_runner_simd(t->runner)));
  mgl_human_number((double)t->work.output_tokens / f->seconds, cells[0]);
  mgl_human_number((double)(t->work.input_tokens + t->work.output_tokens) / f->seconds, cells[1]);
  mgl_text_format(out, "%-22s %s output, %s total\n", "tokens/s", cells[0], cells[1]);
  mgl_human_ms(f->seconds * 1e3, cells[0]);
  mgl_text_format(out, "%-22s %s, %" PRIu64 " iterations\n", "time", cells[0], s->iterations);
  append_phase(out, "  with prompts", t, &t->with_prompts, f->seconds);
  append_phase(out, "  that only decode", t, &t->decoding, f->seconds);
  append_times(out, "time to first token", f->first_ms);
  append_times(out, "inter-token latency", f->gap_ms);
  mgl_text_format(out, "%-22s %" PRIu64 " tokens, %.1f%% used at most\n", "KV memory",
                  (uint64_t)s->pages * mgl_runner_limits(t->runner)->page_tokens,
                  100 * share(s->pages_used_most, s->pages));
  mgl_text_format(out, "%-22s %.1f%% of the tokens looked up\n", "prefix hits",
                  100 * share(s->prefix_hit_tokens, s->prefix_lookup_tokens));
  mgl_text_format(out, "%-22s %" PRIu64 "\n", "preemptions", s->preemptions);
  if (t->loads.mixtures != 0) {
    mgl_text_format(out,
                    "%-22s %.1f of %" PRIu32
                    " of a layer read an iteration; the busiest has %.2f "
                    "times the mean, %.2f in the worst layer\n",
                    "experts", share(t->loads.reads, t->loads.runs), t->loads.experts,
                    t->loads.largest_over_mean, t->loads.most_over_mean);
  }
  mgl_text_format(out, "%-22s %.2f%% of the iterations' time\n", "planning",
                  100 * share(s->planning_ns, s->total_ns));
}

static mgl_status report(throughput *t, mgl_error *err) {
  figures f;
  mgl_text out = {0};
  MGL_TRY(add_up(t, &f, err));
  if (mgl_arguments_has(t->arguments, "json")) {
    append_json(t, &f, &out);
  } else {
    append_table(t, &f, &out);
  }
  mgl_status status = mgl_output_text(&out, err);
  mgl_text_free(&out);
  return status;
}

static mgl_status throughput_command(const mgl_arguments *arguments, mgl_error *err) {
  throughput t = {.arguments = arguments, .status = MGL_OK};
  mgl_status status = mgl_app_model_open(arguments, MGL_NEED_WEIGHTS, &t.model, err);
  if (status == MGL_OK && (status = make_work(&t, err)) == MGL_OK &&
      (status = start(&t, err)) == MGL_OK && (status = generate(&t, err)) == MGL_OK &&
      !mgl_interrupt_seen()) {
    status = report(&t, err);
  }
  mgl_engine_destroy(t.engine);
  mgl_runner_destroy(t.runner);
  mgl_random_work_free(&t.work);
  mgl_free(t.times);
  mgl_free(t.prompt);
  mgl_free(t.gaps_ms);
  mgl_app_model_close(&t.model);
  return status;
}

static const mgl_option options[] = {
    {.name = "sequences",
     .value_name = "N",
     .type = MGL_OPTION_U64,
     .u64_min = 1,
     .u64_max = MGL_MAX_SEQUENCES,
     .help = "requests that run at once, at most [64, on GPUs 256]"},
    MGL_ROW_ITERATION_TOKENS,
    {.name = "chunk",
     .value_name = "N",
     .type = MGL_OPTION_U64,
     .u64_min = 1,
     .u64_max = MGL_MAX_ITERATION_TOKENS,
     .help = "prompt tokens of one request in an iteration at most [those of an iteration]"},
    {.name = "no-prefix-cache",
     .type = MGL_OPTION_FLAG,
     .help = "prompts that begin alike do not share KV memory"},
    MGL_ROW_MODE,
    MGL_ROW_TENSOR_PARALLEL,
    MGL_ROW_VOCAB_PARALLEL,
    MGL_ROW_REDUCE_SCATTER,
};

static const mgl_option_group *const groups[] = {
    &mgl_work_options, &mgl_memory_options, &mgl_place_options, &mgl_compile_options_group, NULL};

const mgl_command mgl_command_throughput = {
    .name = "bench throughput",
    .summary = "tokens per second and latencies of many requests",
    .positional = "MODEL",
    .description =
        "Runs many requests of random tokens and lengths through one engine and reports output\n"
        "and total tokens per second, the time to the first token and between tokens, and what\n"
        "the engine did. Stop tokens are ignored: every request gets its length.",
    .examples =
        "megalith bench throughput path/to/model\n"
        "megalith bench throughput --requests 16 --input 64 --output 128 --json\n"
        "megalith bench throughput path/to/model --arrival-rate 4 --seed 7",
    .options = options,
    .option_count = sizeof options / sizeof *options,
    .groups = groups,
    .run = throughput_command,
};
