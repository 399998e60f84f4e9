#include "serve/metrics.h"

#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

// vLLM's bounds, so that its dashboards fit.
static const double second_bounds[MGL_HISTOGRAM_BUCKETS] = {
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75,
    1.0,   2.5,   5.0,  7.5,  10,   20,   40,   80,  160,  640, 2560};

static const double token_bounds[MGL_HISTOGRAM_BUCKETS] = {
    1,    2,     5,     10,    20,     50,     100,    200,     500,     1000,    2000,
    5000, 10000, 20000, 50000, 100000, 200000, 500000, 1000000, 2000000, 5000000, 10000000};

static void add(mgl_histogram *histogram, const double *bounds, double value) {
  size_t i = 0;
  while (i < MGL_HISTOGRAM_BUCKETS && value > bounds[i]) {
    i++;
  }
  histogram->counts[i]++;
  histogram->count++;
  histogram->sum += value;
}

void mgl_histogram_add(mgl_histogram *histogram, double seconds) {
  add(histogram, second_bounds, seconds);
}

void mgl_histogram_add_tokens(mgl_histogram *histogram, uint64_t tokens) {
  add(histogram, token_bounds, (double)tokens);
}

// The value of a label, quoted.
static void append_label(const char *value, mgl_text *out) {
  mgl_text_append_string(out, "\"");
  for (; *value != 0; value++) {
    bool escapes = *value == '"' || *value == '\\' || *value == '\n';
    mgl_text_append_string(out, escapes ? "\\" : "");
    mgl_text_append(out, *value == '\n' ? "n" : value, 1);
  }
  mgl_text_append_string(out, "\"");
}

// A sample under its own name and, if it has one, under vLLM's.
typedef struct sample {
  const char *name;       // behind "megalith_"
  const char *vllm_name;  // behind "vllm:", NULL: none
  const char *type, *help;
} sample;

static void append_type(const char *prefix, const char *name, const sample *s, mgl_text *out) {
  mgl_text_format(out, "# HELP %s%s %s\n# TYPE %s%s %s\n", prefix, name, s->help, prefix, name,
                  s->type);
}

static void append_number(const mgl_metrics_sources *from, sample s, double value, mgl_text *out) {
  append_type("megalith_", s.name, &s, out);
  mgl_text_format(out, "megalith_%s %.17g\n", s.name, value);
  if (s.vllm_name != NULL) {
    append_type("vllm:", s.vllm_name, &s, out);
    mgl_text_format(out, "vllm:%s{model_name=", s.vllm_name);
    append_label(from->model_name, out);
    mgl_text_format(out, "} %.17g\n", value);
  }
}

static void append_buckets(const char *prefix, const char *name, const char *label,
                           const mgl_histogram *h, const double *bounds, mgl_text *out) {
  uint64_t below = 0;
  const char *comma = label[0] == 0 ? "" : ",";
  for (size_t i = 0; i < MGL_HISTOGRAM_BUCKETS; i++) {
    below += h->counts[i];
    mgl_text_format(out, "%s%s_bucket{%s%sle=\"%g\"} %" PRIu64 "\n", prefix, name, label, comma,
                    bounds[i], below);
  }
  mgl_text_format(out, "%s%s_bucket{%s%sle=\"+Inf\"} %" PRIu64 "\n", prefix, name, label, comma,
                  h->count);
  const char *open = label[0] == 0 ? "" : "{";
  const char *close = label[0] == 0 ? "" : "}";
  mgl_text_format(out, "%s%s_sum%s%s%s %.17g\n%s%s_count%s%s%s %" PRIu64 "\n", prefix, name, open,
                  label, close, h->sum, prefix, name, open, label, close, h->count);
}

static void append_histogram(const mgl_metrics_sources *from, sample s, const mgl_histogram *h,
                             const double *bounds, mgl_text *out) {
  mgl_text label = {0};
  mgl_text_append_string(&label, "model_name=");
  append_label(from->model_name, &label);
  out->failed = out->failed || label.failed;
  append_type("megalith_", s.name, &s, out);
  append_buckets("megalith_", s.name, "", h, bounds, out);
  append_type("vllm:", s.vllm_name, &s, out);
  append_buckets("vllm:", s.vllm_name, label.data == NULL ? "" : label.data, h, bounds, out);
  mgl_text_free(&label);
}

static void append_finishes(const mgl_metrics_sources *from, mgl_text *out) {
  static const struct {
    megalith_finish finish;
    const char *word;
  } words[] = {{MEGALITH_FINISH_STOP, "stop"},
               {MEGALITH_FINISH_LENGTH, "length"},
               {MEGALITH_FINISH_CANCELLED, "abort"},
               {MEGALITH_FINISH_FAILED, "error"}};
  static const sample s = {"requests_finished_total", "request_success_total", "counter",
                           "Choices that have ended, by their reason."};
  append_type("megalith_", s.name, &s, out);
  append_type("vllm:", s.vllm_name, &s, out);
  for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
    uint64_t count = from->metrics->finished[words[i].finish];
    mgl_text_format(out, "megalith_%s{reason=\"%s\"} %" PRIu64 "\n", s.name, words[i].word, count);
    mgl_text_format(out, "vllm:%s{finished_reason=\"%s\",model_name=", s.vllm_name, words[i].word);
    append_label(from->model_name, out);
    mgl_text_format(out, "} %" PRIu64 "\n", count);
  }
}

static void append_statuses(const mgl_metrics *m, mgl_text *out) {
  static const sample s = {"http_responses_total", NULL, "counter", "Answers, by their status."};
  append_type("megalith_", s.name, &s, out);
  for (unsigned i = 1; i < sizeof m->requests / sizeof *m->requests; i++) {
    mgl_text_format(out, "megalith_%s{status=\"%uxx\"} %" PRIu64 "\n", s.name, i, m->requests[i]);
  }
}

static void append_histograms(const mgl_metrics_sources *from, mgl_text *out) {
  const mgl_metrics *m = from->metrics;
  const struct {
    sample s;
    const mgl_histogram *histogram;
    const double *bounds;
  } all[] = {
      {{"time_to_first_token_seconds", "time_to_first_token_seconds", "histogram",
        "From the request's last byte to its first token."},
       &m->first_token,
       second_bounds},
      {{"inter_token_latency_seconds", "inter_token_latency_seconds", "histogram",
        "Between tokens of a choice."},
       &m->inter_token,
       second_bounds},
      {{"request_latency_seconds", "e2e_request_latency_seconds", "histogram",
        "From the request's last byte to its last token."},
       &m->end_to_end,
       second_bounds},
      {{"request_prompt_tokens", "request_prompt_tokens", "histogram", "Tokens of a prompt."},
       &m->prompt_sizes,
       token_bounds},
      {{"request_generated_tokens", "request_generation_tokens", "histogram",
        "Tokens generated for a choice."},
       &m->answer_sizes,
       token_bounds},
  };
  for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
    append_histogram(from, all[i].s, all[i].histogram, all[i].bounds, out);
  }
}

// What routers compute the free KV memory from.
static void append_cache_config(const mgl_metrics_sources *from, mgl_text *out) {
  static const sample s = {NULL, "cache_config_info", "gauge", "The KV memory's pages."};
  append_type("vllm:", s.vllm_name, &s, out);
  mgl_text_format(out, "vllm:%s{block_size=\"%u\",num_gpu_blocks=\"%u\",model_name=", s.vllm_name,
                  from->page_tokens, from->engine->pages);
  append_label(from->model_name, out);
  mgl_text_append_string(out, "} 1\n");
}

// Bytes of the process in memory; 0 where the system does not tell.
static uint64_t resident_bytes(void) {
  char text[64] = "";
  unsigned long long pages[2] = {0, 0};
  int fd = open("/proc/self/statm", O_RDONLY | O_CLOEXEC);
  if (fd >= 0) {
    (void)!read(fd, text, sizeof text - 1);
    (void)close(fd);
  }
  (void)sscanf(text, "%llu %llu", &pages[0], &pages[1]);
  return (uint64_t)pages[1] * (uint64_t)sysconf(_SC_PAGESIZE);
}

static double thread_seconds(void) {
  struct timespec now = {0};
  (void)clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

void mgl_metrics_append(const mgl_metrics_sources *sources, mgl_text *out) {
  const mgl_metrics_sources *from = sources;
  const mgl_metrics *m = from->metrics;
  const megalith_statistics *e = from->engine;
  const mgl_http_counters *c = from->connections;
  double used = e->pages == 0 ? 0 : (double)e->pages_used / (double)e->pages;
#define GAUGE(name, vllm_name, help, value) \
  append_number(from, (sample){name, vllm_name, "gauge", help}, (double)(value), out)
#define COUNTER(name, vllm_name, help, value) \
  append_number(from, (sample){name, vllm_name, "counter", help}, (double)(value), out)
  GAUGE("requests_running", "num_requests_running", "Requests in the batch.", e->running);
  GAUGE("requests_waiting", "num_requests_waiting", "Requests that wait for a place.", e->waiting);
  GAUGE("requests_paused", NULL, "Requests whose clients take nothing.", e->paused);
  GAUGE("requests_active", NULL, "Choices that the server works on.", from->active);
  GAUGE("kv_used_ratio", "kv_cache_usage_perc", "Used part of the KV memory, 0 to 1.", used);
  GAUGE("kv_pages", NULL, "Pages of KV memory.", e->pages);
  GAUGE("kv_pages_used", NULL, "Pages of KV memory that requests hold.", e->pages_used);
  COUNTER("iterations_total", NULL, "Iterations of the engine.", e->iterations);
  COUNTER("preemptions_total", "num_preemptions_total", "Times a request gave its pages away.",
          e->preemptions);
  COUNTER("prefix_lookup_tokens_total", "prefix_cache_queries_total",
          "Prompt tokens looked up in KV memory.", e->prefix_lookup_tokens);
  COUNTER("prefix_hit_tokens_total", "prefix_cache_hits_total", "Prompt tokens found there.",
          e->prefix_hit_tokens);
  if (e->expert_rows != 0) {
    COUNTER("expert_rows_total", NULL, "Rows that experts computed, in all layers.",
            e->expert_rows);
    COUNTER("expert_reads_total", NULL, "Times that an expert's weights were read.",
            e->expert_reads);
    GAUGE("expert_load_largest_over_mean", NULL,
          "Rows of a layer's busiest expert over the mean of its experts, mean of the layers.",
          e->expert_largest_over_mean);
  }
  COUNTER("prompt_tokens_total", "prompt_tokens_total", "Tokens of prompts of ended requests.",
          m->prompt_tokens);
  COUNTER("generated_tokens_total", "generation_tokens_total", "Tokens generated.",
          m->generated_tokens);
  append_finishes(from, out);
  append_histograms(from, out);
  append_statuses(m, out);
  COUNTER("overload_responses_total", NULL, "Requests that were refused with 429.", m->overloads);
  COUNTER("clients_gone_total", NULL, "Clients that left before the end of their answer.", c->gone);
  COUNTER("http_refused_total", NULL, "Requests that are no strict HTTP.", c->refused);
  COUNTER("http_timeouts_total", NULL, "Connections closed at a deadline.", c->timed_out);
  COUNTER("connections_total", NULL, "Connections accepted.", c->accepted);
  append_cache_config(from, out);
  GAUGE("resident_memory_bytes", NULL, "Memory of the process.", resident_bytes());
  COUNTER("io_thread_seconds_total", NULL, "Processor time of the thread that does I/O.",
          thread_seconds());
  GAUGE("connections_open", NULL, "Connections that are open.", c->open);
#undef GAUGE
#undef COUNTER
}
