// What /metrics tells, in Prometheus's text format: under own names, and under those of vLLM that
// routers and dashboards read.
//
// Counted on the I/O thread from what outputs tell; what only the engine knows comes from its
// statistics when somebody asks.
#ifndef MGL_SERVE_METRICS_H
#define MGL_SERVE_METRICS_H

#include <megalith.h>
#include <stdint.h>

#include "base/text.h"
#include "serve/http_server.h"

enum { MGL_HISTOGRAM_BUCKETS = 22 };

// Of seconds, or of tokens; each has bounds of its own.
typedef struct mgl_histogram {
  uint64_t counts[MGL_HISTOGRAM_BUCKETS + 1];  // the last one beyond all bounds
  uint64_t count;
  double sum;
} mgl_histogram;

typedef struct mgl_metrics {
  uint64_t requests[6];  // by hundreds of the status
  uint64_t overloads;    // answered with 429
  uint64_t finished[MEGALITH_FINISH_FAILED + 1];
  uint64_t prompt_tokens, generated_tokens;
  uint64_t cancelled_by_clients;
  mgl_histogram first_token, inter_token, end_to_end;  // seconds
  mgl_histogram prompt_sizes, answer_sizes;            // tokens, of a choice
} mgl_metrics;

void mgl_histogram_add(mgl_histogram *histogram, double seconds);
void mgl_histogram_add_tokens(mgl_histogram *histogram, uint64_t tokens);

typedef struct mgl_metrics_sources {
  const mgl_metrics *metrics;
  const mgl_http_counters *connections;
  const megalith_statistics *engine;
  const char *model_name;
  uint32_t page_tokens;
  uint32_t active;  // choices that the server has
} mgl_metrics_sources;

// On the I/O thread, whose processor time is among the figures.
void mgl_metrics_append(const mgl_metrics_sources *sources, mgl_text *out);

#endif
