#include "app/statistics.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "app/human.h"
#include "base/alloc.h"

mgl_status mgl_statistics_add(mgl_statistics *statistics, const megalith_iteration *iteration,
                              mgl_error *err) {
  if (iteration->prompt_tokens > 0) {
    statistics->prompt_tokens += iteration->prompt_tokens;
    statistics->prompt_ns += iteration->ns;
    return MGL_OK;
  }
  void *items = statistics->step_ms;
  MGL_TRY(mgl_grow(&items, &statistics->step_capacity, statistics->step_count + 1,
                   sizeof *statistics->step_ms, err));
  statistics->step_ms = items;
  statistics->step_ms[statistics->step_count++] = (double)iteration->ns / 1e6;
  statistics->decode_tokens += iteration->generated;
  statistics->decode_ns += iteration->ns;
  statistics->kv_tokens += iteration->context_tokens;
  return MGL_OK;
}

static int compare_doubles(const void *a, const void *b) {
  double x = *(const double *)a;
  double y = *(const double *)b;
  return (x > y) - (x < y);
}

double mgl_median(double *values, size_t count) {
  if (count == 0) {
    return 0;
  }
  qsort(values, count, sizeof *values, compare_doubles);
  return count % 2 == 1 ? values[count / 2] : (values[count / 2 - 1] + values[count / 2]) / 2;
}

double mgl_percentile(double *values, size_t count, unsigned percent) {
  if (count == 0) {
    return 0;
  }
  qsort(values, count, sizeof *values, compare_doubles);
  return values[(count * percent + 99) / 100 - 1];
}

// "18% of the read ceiling of 136 GB/s in 3 measurements, 2% apart", or why there is no share.
static void append_share(double rate, const mgl_read_ceiling *ceiling, const char *no_ceiling,
                         mgl_text *out) {
  if (ceiling->count == 0) {
    mgl_text_format(out, "share of the read ceiling unknown (%s)", no_ceiling);
    return;
  }
  if (mgl_read_ceiling_is_steady(ceiling)) {
    mgl_text_format(out, "%.0f%% of the read ceiling of ", rate * 100 / ceiling->most);
  } else {
    mgl_text_append_string(out, "share of the read ceiling unknown: ");
  }
  mgl_read_ceiling_append(ceiling, out);
  mgl_read_ceiling_append_refusal(ceiling, out);
}

void mgl_statistics_print(const mgl_statistics *statistics, uint64_t generated_tokens,
                          const megalith_engine_info *engine, const mgl_read_ceiling *ceiling,
                          const char *no_ceiling) {
  const mgl_statistics *s = statistics;
  mgl_text out = {0};
  char number[MGL_HUMAN_BYTES];
  mgl_human_number(s->prompt_ns == 0 ? 0 : (double)s->prompt_tokens * 1e9 / (double)s->prompt_ns,
                   number);
  mgl_text_format(&out, "prompt: %" PRIu64 " tokens, %s tokens/s; generated: %" PRIu64 " tokens",
                  s->prompt_tokens, number, generated_tokens);
  if (s->step_count > 0) {
    double bytes = (double)engine->step_bytes * (double)s->step_count +
                   (double)engine->kv_bytes_per_token * (double)s->kv_tokens;
    double rate = bytes * 1e9 / (double)s->decode_ns;
    char rate_text[MGL_HUMAN_BYTES];
    char ms_text[MGL_HUMAN_BYTES];
    mgl_human_number((double)s->decode_tokens * 1e9 / (double)s->decode_ns, number);
    mgl_human_ms(mgl_median(s->step_ms, s->step_count), ms_text);
    mgl_human_rate(rate, rate_text);
    mgl_text_format(&out, ", %s per token (median), %s tokens/s; %s of weights and KV, ", ms_text,
                    number, rate_text);
    append_share(rate, ceiling, no_ceiling, &out);
  }
  (void)fprintf(stderr, "%s\n", out.data == NULL ? "" : out.data);
  mgl_text_free(&out);
}

void mgl_statistics_free(mgl_statistics *statistics) {
  mgl_free(statistics->step_ms);
  *statistics = (mgl_statistics){0};
}
