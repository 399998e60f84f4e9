// Launches that are timed: what speed and ablations share.
#include <stdio.h>
#include <stdlib.h>

#include "base/alloc.h"
#include "gpu/gpu_bench.h"

// What a job tells while it runs.
typedef struct told {
  uint64_t of[MGL_MAX_SEQUENCES];  // hash of each request's tokens in their order; requests may be
                                   // reported in any
  uint64_t *times;                 // [count] of the iterations in which all sequences decoded
  uint32_t count, capacity;
  uint32_t batch;
} told;

static void on_token(void *context, const mgl_cuda_token *token) {
  uint64_t *hash = &((told *)context)->of[token->request];
  *hash ^= ((uint64_t)(uint32_t)token->token + token->request * UINT64_C(1000003) + 1) *
           UINT64_C(0x9E3779B97F4A7C15);
  *hash = *hash << 1 | *hash >> 63;
}

static void on_progress(void *context, const mgl_cuda_progress *progress) {
  told *t = context;
  if (progress->prompt_tokens == 0 && progress->decode_tokens == t->batch &&
      t->count < t->capacity) {
    t->times[t->count++] = progress->ns;
  }
}

static int compare_times(const void *a, const void *b) {
  uint64_t x = *(const uint64_t *)a;
  uint64_t y = *(const uint64_t *)b;
  return x < y ? -1 : x > y ? 1 : 0;
}

// Keys of the pages of prompts, each of `prompt` tokens, that lie one after the other in one text:
// pages are the same if they begin at the same place of it.
static mgl_page_key *make_keys(const gpu_load *load) {
  uint32_t pages = load->prompt / GPU_PAGE_TOKENS;
  mgl_page_key *keys = gpu_must_alloc((size_t)load->batch * pages + 1, sizeof *keys);
  for (uint32_t i = 0; i < load->batch * pages; i++) {
    uint64_t begin = (uint64_t)(i / pages) * load->prompt;
    uint64_t page = i % pages;
    keys[i] = (mgl_page_key){{((begin << 32) + page + 1) * UINT64_C(0x9E3779B97F4A7C15) >> 16,
                              begin, page, UINT64_C(0x6d656173757265)}};
  }
  return keys;
}

gpu_measured gpu_measure(mgl_cuda_program *program, const gpu_model *model, const gpu_load *load,
                         const mgl_cuda_launch_options *launch) {
  mgl_error err = {0};
  gpu_measured m = {0};
  uint32_t capacity = load->generate + load->batch * load->prompt + 2;
  uint64_t *times = gpu_must_alloc(capacity, sizeof *times);
  told t = {.times = gpu_must_alloc(load->generate, sizeof *t.times),
            .capacity = load->generate,
            .batch = load->batch};
  int32_t *prompts = gpu_must_alloc((size_t)load->batch * load->prompt, sizeof *prompts);
  mgl_cuda_request *requests = gpu_must_alloc(load->batch, sizeof *requests);
  for (uint32_t i = 0; i < load->batch * load->prompt; i++) {
    prompts[i] = gpu_model_token(model, i);
  }
  mgl_page_key *keys = make_keys(load);
  uint32_t key_count = load->cached ? load->prompt / GPU_PAGE_TOKENS : 0;
  for (uint32_t i = 0; i < load->batch; i++) {
    requests[i] = (mgl_cuda_request){.prompt = prompts + (size_t)i * load->prompt,
                                     .prompt_count = load->prompt,
                                     .max_new_tokens = load->generate,
                                     .keys = keys + (size_t)i * key_count,
                                     .key_count = key_count};
  }
  mgl_cuda_outcome outcome = {.iteration_ns = times, .iteration_capacity = capacity};
  mgl_cuda_generate job = {.requests = requests,
                           .request_count = load->batch,
                           .on_token = on_token,
                           .on_progress = on_progress,
                           .context = &t,
                           .prompts_first = true,
                           .launch = *launch,
                           .outcome = &outcome};
  uint64_t planned_ns = mgl_cuda_program_progress(program).planning_ns;
  gpu_must(mgl_cuda_program_generate(program, &job, &err), &err);
  m.iterations = outcome.iterations;
  for (uint32_t i = 0; i < load->batch; i++) {  // as one request's, where there is one
    m.hash = m.hash * UINT64_C(0x9E3779B97F4A7C15) ^ t.of[i];
  }
  planned_ns = mgl_cuda_program_progress(program).planning_ns - planned_ns;
  m.turn_us = m.iterations > 0 ? (double)planned_ns / 1e3 / m.iterations : 0;
  // The last token of each prompt is sampled by the last prompt iteration.
  uint32_t decode = load->generate - 1 < m.iterations ? load->generate - 1 : 0;
  uint32_t first = m.iterations - decode;
  if (decode > 0) {
    m.prompt_ms = (double)(times[first] - times[0]) / 1e6;
  }
  if (t.count > 0) {
    qsort(t.times, t.count, sizeof *t.times, compare_times);
    m.median_ms = (double)t.times[t.count / 2] / 1e6;
    m.least_ms = (double)t.times[0] / 1e6;
  }
  mgl_free(times);
  mgl_free(t.times);
  mgl_free(prompts);
  mgl_free(requests);
  mgl_free(keys);
  return m;
}

void gpu_write_trace(mgl_cuda_program *program, const char *path) {
  mgl_error err = {0};
  mgl_text text = {0};
  gpu_must(mgl_cuda_program_trace_json(program, &text, &err), &err);
  FILE *file = fopen(path, "wb");
  if (file == NULL || fwrite(text.data, 1, text.bytes, file) != text.bytes) {
    printf("the trace cannot be written to %s\n", path);
  }
  if (file != NULL) {
    (void)fclose(file);
  }
  mgl_text_free(&text);
}

static int compare_ms(const void *a, const void *b) {
  double x = *(const double *)a;
  double y = *(const double *)b;
  return x < y ? -1 : x > y ? 1 : 0;
}

double gpu_median(double *values, uint32_t count) {
  qsort(values, count, sizeof *values, compare_ms);
  return values[count / 2];
}
