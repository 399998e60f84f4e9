// The GPU's logits against those of transformers, on data that tests/gpu/reference.py made.
//
// Rule: over the positions of a group, the mean KL(fp32 reference || ours) is no larger than the
// mean KL(fp32 reference || transformers in bf16). A group is one context length (its last
// positions, or the same position of 64 sequences), or one batch size of ragged sequences that
// decode together: a mean over eight or more positions, so that no lucky one decides. Of
// transformers' two attention implementations the one with the lower mean over all positions is
// the bar.
//
// KV pages are scattered, and the KV cache, activations and partial results begin as NaN. Logits of
// a position that is computed several ways (alone in chunks, in batches of all sizes) must have the
// same bits.
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/json.h"
#include "device/cuda/cuda_program_parts.h"
#include "gpu/gpu_bench.h"
#include "graph/family.h"
#include "model/model_folder.h"

enum {
  CHUNK = MGL_CUDA_MAX_TOKENS,
  MOST_INDEX_BYTES = 1 << 20,
  MOST_SEQUENCES = 65,  // the long one, the ragged ones, and more short ones
  MOST_ROWS = 1 << 12,
  MOST_GROUPS = 64,
  PAGE_STEP = 7919,  // neighbours in a sequence are so many pages apart
};

// Which logits: in the order of reference.bin.
enum { FP32, SDPA, EAGER, KINDS };

typedef struct row {
  uint32_t sequence, position;
} row;

typedef enum group_kind {
  GROUP_EACH,    // the same position of many sequences
  GROUP_LAST,    // the last positions of a context of the long sequence
  GROUP_RAGGED,  // the last positions of one of the others, to be decoded in batches
  GROUP_KINDS,
} group_kind;

typedef struct group {
  group_kind kind;
  uint32_t context;  // tokens up to and with the last position
  uint32_t row_count;
  row rows[CHUNK];
} group;

typedef struct reference {
  json_t *json;
  mgl_file_map data;
  const char *name, *model, *versions;
  uint32_t vocab, sequence_count, row_count, group_count;
  uint32_t lengths[MOST_SEQUENCES];
  const int32_t *tokens[MOST_SEQUENCES];
  const row *rows;  // [row_count], ascending
  const float *logits[KINDS];
  double *log_sums;   // [row_count] log of the sum of exp of the fp32 logits
  double *kl[KINDS];  // [row_count]; of FP32 NULL
  double mean_kl[KINDS];
  bool *flips[KINDS];  // [row_count] another largest logit than fp32's; of FP32 NULL
  int bar;             // SDPA or EAGER
  group groups[MOST_GROUPS];
} reference;

typedef struct measured {
  double ours, theirs[KINDS];  // sums of KL
  uint32_t count, our_flips, their_flips;
} measured;

typedef struct correctness {
  gpu_bench *bench;
  reference r;
  mgl_model_folder folder;
  gpu_model model;
  mgl_cuda_program *program;
  mgl_plan *plan;
  int32_t *pages[MOST_SEQUENCES];
  uint32_t page_counts[MOST_SEQUENCES];
  uint32_t chunk;             // most tokens of an iteration
  float *logits;              // [CHUNK, V]
  uint64_t *hashes;           // [row_count] of our logits when first computed; 0: not yet
  uint32_t compared, unlike;  // rows that were computed again, and those with other bits
  uint32_t iterations;
  uint32_t large, wide;  // of more than CHUNK tokens; computed by the wide class
  double worst;          // ratio of a group
  char worst_name[64];
  uint32_t failed_groups;
} correctness;

// --- numbers -------------------------------------------------------------------------------------

static double log_sum(const float *logits, uint32_t count) {
  double largest = (double)logits[gpu_argmax(logits, count)];
  double sum = 0;
  for (uint32_t i = 0; i < count; i++) {
    sum += exp((double)logits[i] - largest);
  }
  return largest + log(sum);
}

// KL(reference || logits) in nats; infinite where the logits are not finite.
static double divergence(const reference *r, uint32_t index, const float *logits) {
  const float *wanted = r->logits[FP32] + (size_t)index * r->vocab;
  double shift = log_sum(logits, r->vocab) - r->log_sums[index];
  double sum = 0;
  for (uint32_t i = 0; i < r->vocab; i++) {
    double log_p = (double)wanted[i] - r->log_sums[index];
    sum += exp(log_p) * ((double)wanted[i] - (double)logits[i] + shift);
  }
  return isfinite(sum) ? sum : (double)INFINITY;
}

static bool flips(const reference *r, uint32_t index, const float *logits) {
  const float *wanted = r->logits[FP32] + (size_t)index * r->vocab;
  return gpu_argmax(wanted, r->vocab) != gpu_argmax(logits, r->vocab);
}

static uint64_t hash_of(const float *values, size_t count) {
  uint64_t hash = UINT64_C(0xcbf29ce484222325);
  for (size_t i = 0; i < count; i++) {
    uint32_t bits;
    memcpy(&bits, &values[i], sizeof bits);
    hash = (hash ^ bits) * UINT64_C(0x100000001b3);
  }
  return hash == 0 ? 1 : hash;
}

// --- the file ------------------------------------------------------------------------------------

static void refuse(const char *path, const char *what) {
  mgl_error err = {0};
  gpu_must(mgl_error_set(&err, MGL_ERR_FORMAT, "%s: %s: made by another tests/gpu/reference.py?",
                         path, what),
           &err);
}

static uint32_t number(const json_t *value, uint32_t most, const char *path) {
  json_int_t found = json_is_integer(value) ? json_integer_value(value) : -1;
  if (found < 0 || found > (json_int_t)most) {
    refuse(path, "a number is missing or out of range");
  }
  return (uint32_t)found;
}

static void read_group(const json_t *from, const reference *r, const char *path, group *out) {
  static const char *const kinds[] = {"each", "last", "ragged"};
  const json_t *rows = json_object_get(from, "rows");
  const char *kind = json_string_value(json_object_get(from, "kind"));
  while (kind != NULL && out->kind < GROUP_KINDS && strcmp(kind, kinds[out->kind]) != 0) {
    out->kind++;
  }
  if (kind == NULL || out->kind == GROUP_KINDS || json_array_size(rows) < 1 ||
      json_array_size(rows) > CHUNK) {
    refuse(path, "a group has no such kind, or more rows than an iteration");
    return;
  }
  out->context = number(json_object_get(from, "context"), UINT32_MAX, path);
  out->row_count = (uint32_t)json_array_size(rows);
  for (uint32_t i = 0; i < out->row_count; i++) {
    const json_t *at = json_array_get(rows, i);
    out->rows[i].sequence = number(json_array_get(at, 0), r->sequence_count - 1, path);
    out->rows[i].position =
        number(json_array_get(at, 1), r->lengths[out->rows[i].sequence] - 1, path);
  }
}

static void read_index(const char *path, reference *r) {
  mgl_error err = {0};
  gpu_must(mgl_json_read(path, MOST_INDEX_BYTES, &r->json, &err), &err);
  const json_t *sequences = json_object_get(r->json, "sequences");
  const json_t *groups = json_object_get(r->json, "groups");
  r->name = json_string_value(json_object_get(r->json, "name"));
  r->model = json_string_value(json_object_get(r->json, "model"));
  r->versions = json_string_value(json_object_get(r->json, "versions"));
  r->vocab = number(json_object_get(r->json, "vocab"), 1 << 20, path);
  r->row_count = number(json_object_get(r->json, "row_count"), MOST_ROWS, path);
  r->sequence_count = (uint32_t)json_array_size(sequences);
  r->group_count = (uint32_t)json_array_size(groups);
  if (r->name == NULL || r->model == NULL || r->versions == NULL || r->vocab < 1 ||
      r->sequence_count < 2 || r->sequence_count > MOST_SEQUENCES || r->group_count > MOST_GROUPS) {
    refuse(path, "a key is missing or a count out of range");
    return;
  }
  for (uint32_t i = 0; i < r->sequence_count; i++) {
    r->lengths[i] = number(json_array_get(sequences, i), 1 << 24, path);
  }
  for (uint32_t i = 0; i < r->group_count; i++) {
    read_group(json_array_get(groups, i), r, path, &r->groups[i]);
  }
}

static void map_data(const char *path, reference *r) {
  mgl_error err = {0};
  size_t tokens = 0;
  size_t matrix = (size_t)r->row_count * r->vocab;
  for (uint32_t i = 0; i < r->sequence_count; i++) {
    tokens += r->lengths[i];
  }
  gpu_must(mgl_file_map_open(path, &r->data, &err), &err);
  if (r->data.bytes !=
      tokens * sizeof(int32_t) + r->row_count * sizeof(row) + KINDS * matrix * sizeof(float)) {
    refuse(path, "not of the size that its index says");
  }
  const int32_t *at = (const int32_t *)(const void *)r->data.data;
  for (uint32_t i = 0; i < r->sequence_count; i++) {
    r->tokens[i] = at;
    at += r->lengths[i];
  }
  r->rows = (const row *)(const void *)at;
  const float *logits = (const float *)(const void *)(r->rows + r->row_count);
  for (int kind = 0; kind < KINDS; kind++) {
    r->logits[kind] = logits + (size_t)kind * matrix;
  }
}

static void measure_theirs(reference *r) {
  r->log_sums = gpu_must_alloc(r->row_count, sizeof *r->log_sums);
  for (uint32_t i = 0; i < r->row_count; i++) {
    r->log_sums[i] = log_sum(r->logits[FP32] + (size_t)i * r->vocab, r->vocab);
  }
  for (int kind = SDPA; kind < KINDS; kind++) {
    r->kl[kind] = gpu_must_alloc(r->row_count, sizeof *r->kl[kind]);
    r->flips[kind] = gpu_must_alloc(r->row_count, sizeof *r->flips[kind]);
    for (uint32_t i = 0; i < r->row_count; i++) {
      const float *logits = r->logits[kind] + (size_t)i * r->vocab;
      r->kl[kind][i] = divergence(r, i, logits);
      r->flips[kind][i] = flips(r, i, logits);
      r->mean_kl[kind] += r->kl[kind][i] / r->row_count;
    }
  }
  r->bar = r->mean_kl[EAGER] < r->mean_kl[SDPA] ? EAGER : SDPA;
}

static void open_reference(const char *folder, reference *r) {
  mgl_error err = {0};
  char *path = NULL;
  gpu_must(mgl_path_join(folder, "reference.json", &path, &err), &err);
  read_index(path, r);
  mgl_free(path);
  gpu_must(mgl_path_join(folder, "reference.bin", &path, &err), &err);
  map_data(path, r);
  mgl_free(path);
  measure_theirs(r);
}

static void close_reference(reference *r) {
  for (int kind = SDPA; kind < KINDS; kind++) {
    mgl_free(r->kl[kind]);
    mgl_free(r->flips[kind]);
  }
  mgl_free(r->log_sums);
  mgl_file_map_close(&r->data);
  json_decref(r->json);
}

static uint32_t find_row(const reference *r, row wanted) {
  for (uint32_t i = 0; i < r->row_count; i++) {
    if (r->rows[i].sequence == wanted.sequence && r->rows[i].position == wanted.position) {
      return i;
    }
  }
  refuse(r->name, "a group names a row that is not there");
  return 0;
}

// --- our side ------------------------------------------------------------------------------------

static void open_program(correctness *c) {
  mgl_error err = {0};
  const reference *r = &c->r;
  gpu_must(mgl_model_folder_open(r->model, MGL_NEED_WEIGHTS, &c->folder, &err), &err);
  c->model = (gpu_model){.name = r->name, .config = c->folder.config};
  gpu_must(mgl_family_build(&c->model.config, c->folder.checkpoint, &c->model.program, &err), &err);
  if (c->model.config.vocab_size != r->vocab) {
    refuse(r->model, "another vocabulary than the reference's");
  }
  uint32_t total = 1;
  uint32_t most = 0;
  for (uint32_t i = 0; i < r->sequence_count; i++) {
    c->page_counts[i] = (r->lengths[i] + GPU_PAGE_TOKENS - 1) / GPU_PAGE_TOKENS;
    c->pages[i] = gpu_must_alloc(c->page_counts[i], sizeof *c->pages[i]);
    total += c->page_counts[i];
    most = c->page_counts[i] > most ? c->page_counts[i] : most;
  }
  total += total % PAGE_STEP == 0 ? 1 : 0;  // PAGE_STEP is prime
  uint64_t page = 0;
  for (uint32_t i = 0; i < r->sequence_count; i++) {
    for (uint32_t j = 0; j < c->page_counts[i]; j++) {
      c->pages[i][j] = (int32_t)(page++ * PAGE_STEP % total);
    }
  }
  uint32_t sequences = r->sequence_count - 1;
  c->program = gpu_program(c->bench, &c->model,
                           (mgl_cuda_program_options){.checkpoint = c->folder.checkpoint,
                                                      .sizes.limits.tokens = c->chunk,
                                                      .sizes.sequences = sequences,
                                                      .sizes.limits.pages_per_sequence = most,
                                                      .sizes.page_count = total,
                                                      .sizes.logit_rows = CHUNK,
                                                      .poison = true});
  mgl_plan_limits limits = {.tokens = c->chunk,
                            .sequences = sequences,
                            .pages_per_sequence = most,
                            .page_tokens = GPU_PAGE_TOKENS};
  gpu_must(mgl_plan_create(&limits, &c->plan, &err), &err);
  c->logits = gpu_must_alloc((size_t)CHUNK * r->vocab, sizeof *c->logits);
  c->hashes = gpu_must_alloc(r->row_count, sizeof *c->hashes);
}

static void close_program(correctness *c) {
  mgl_plan_destroy(c->plan);
  mgl_cuda_program_destroy(c->program);
  mgl_model_folder_close(&c->folder);
  gpu_model_close(&c->model);
  for (uint32_t i = 0; i < c->r.sequence_count; i++) {
    mgl_free(c->pages[i]);
  }
  mgl_free(c->logits);
  mgl_free(c->hashes);
}

static void add(correctness *c, uint32_t sequence, uint32_t position, uint32_t count,
                mgl_plan_logits logits) {
  mgl_plan_add(c->plan, &(mgl_plan_chunk){.tokens = c->r.tokens[sequence] + position,
                                          .token_count = count,
                                          .position = position,
                                          .pages = c->pages[sequence],
                                          .page_count = c->page_counts[sequence],
                                          .logits = logits});
}

static void run(correctness *c) {
  mgl_error err = {0};
  float *logits = c->plan->logit_row_count > 0 ? c->logits : NULL;
  c->program->wide.host_ns = 0;  // set by launches of the wide class
  gpu_must(mgl_cuda_program_run_plan(c->program, c->plan, NULL, logits, &err), &err);
  c->iterations++;
  c->large += c->plan->token_count > CHUNK ? 1 : 0;
  c->wide += c->program->wide.host_ns != 0 ? 1 : 0;
  mgl_plan_clear(c->plan);
}

// Alone, in the largest chunks, without logits.
static void advance(correctness *c, uint32_t sequence, uint32_t from, uint32_t to) {
  for (uint32_t at = from; at < to; at += c->chunk) {
    add(c, sequence, at, to - at < c->chunk ? to - at : c->chunk, MGL_LOGITS_NONE);
    run(c);
  }
}

static void judge(correctness *c, row at, const float *logits, measured *m) {
  const reference *r = &c->r;
  uint32_t index = find_row(r, at);
  uint64_t hash = hash_of(logits, r->vocab);
  m->ours += divergence(r, index, logits);
  m->our_flips += flips(r, index, logits) ? 1 : 0;
  m->their_flips += r->flips[r->bar][index] ? 1 : 0;
  for (int kind = SDPA; kind < KINDS; kind++) {
    m->theirs[kind] += r->kl[kind][index];
  }
  m->count++;
  c->compared += c->hashes[index] != 0 ? 1 : 0;
  c->unlike += c->hashes[index] != 0 && c->hashes[index] != hash ? 1 : 0;
  c->hashes[index] = c->hashes[index] == 0 ? hash : c->hashes[index];
}

// --- report --------------------------------------------------------------------------------------

static void print_header(const correctness *c, double seconds) {
  mgl_cuda_program_info info = mgl_cuda_program_describe(c->program);
  printf(
      "\n%.2f GiB of weights loaded in %.1f s (compiling included); %u workers. Reference: %s; the "
      "bar is its bf16 with %s attention.\n\n",
      (double)info.memory[MGL_CUDA_MEMORY_WEIGHTS] / (1 << 30), seconds, info.workers,
      c->r.versions, c->r.bar == SDPA ? "sdpa" : "eager");
  printf(
      "| %s | positions | KL, ours | KL, transformers bf16: sdpa | eager | ours / bar | largest "
      "logit differs: ours | bar's |\n|---|---|---|---|---|---|---|---|\n",
      c->r.name);
}

static void report(correctness *c, const measured *m, const char *name) {
  double count = m->count > 0 ? (double)m->count : 1;
  double bar = m->theirs[c->r.bar] / count;
  double ours = m->ours / count;
  double ratio = bar > 0 ? ours / bar : (double)INFINITY;
  bool ok = m->count > 0 && ours <= bar;
  const char *mark = ok ? "" : "**";
  printf("| %s | %u | %.3e | %.3e | %.3e | %s%.2f%s | %u | %u |\n", name, m->count, ours,
         m->theirs[SDPA] / count, m->theirs[EAGER] / count, mark, ratio, mark, m->our_flips,
         m->their_flips);
  (void)fflush(stdout);
  c->failed_groups += ok ? 0 : 1;
  if (!(ratio <= c->worst)) {
    c->worst = ratio;
    (void)snprintf(c->worst_name, sizeof c->worst_name, "%s", name);
  }
}

// --- contexts ------------------------------------------------------------------------------------

// The same position of many sequences, each alone: in chunks, the last one with its logits.
static void short_context(correctness *c, const group *g, measured *m) {
  for (uint32_t i = 0; i < g->row_count; i++) {
    row at = g->rows[i];
    uint32_t begin = at.position / c->chunk * c->chunk;
    advance(c, at.sequence, 0, begin);
    add(c, at.sequence, begin, at.position - begin + 1, MGL_LOGITS_LAST);
    run(c);
    judge(c, at, c->logits, m);
  }
}

// The last positions of one sequence, behind what earlier calls computed of it (`done` tokens).
static uint32_t long_context(correctness *c, const group *g, uint32_t done, measured *m) {
  row first = g->rows[0];
  uint32_t end = first.position + g->row_count;
  uint32_t begin = end - done > c->chunk ? end - c->chunk : done;  // of a chunk that ends in them
  begin = c->chunk > CHUNK && begin < first.position ? begin : first.position;
  if (done < begin) {
    advance(c, first.sequence, done, begin);
  }
  add(c, first.sequence, begin, end - begin, MGL_LOGITS_NONE);
  c->plan->logit_row_count = g->row_count;
  for (uint32_t i = 0; i < g->row_count; i++) {
    c->plan->logit_rows[i] = first.position - begin + i;
  }
  run(c);
  for (uint32_t i = 0; i < g->row_count; i++) {
    judge(c, g->rows[i], c->logits + (size_t)i * c->r.vocab, m);
  }
  return first.position + g->row_count;
}

static void compare_contexts(correctness *c) {
  uint32_t done = 0;
  char name[64];
  for (uint32_t i = 0; i < c->r.group_count; i++) {
    const group *g = &c->r.groups[i];
    measured m = {0};
    if (g->kind == GROUP_RAGGED) {
      continue;
    }
    if (g->kind == GROUP_EACH) {
      short_context(c, g, &m);
    } else {
      done = long_context(c, g, done, &m);
    }
    (void)snprintf(name, sizeof name, "context %u", g->context);
    report(c, &m, name);
  }
}

// --- batches -------------------------------------------------------------------------------------

typedef struct batches {
  const group *groups[MOST_SEQUENCES];
  uint32_t count;
  uint32_t steps;  // of decoding
} batches;

// All prompts up to the first row, as many sequences in an iteration as have any left.
static void prefill_together(correctness *c, const batches *b) {
  uint32_t done[MOST_SEQUENCES] = {0};
  uint32_t active = 1;
  while (active > 0) {
    uint32_t room = c->chunk;
    active = 0;
    for (uint32_t i = 0; i < b->count; i++) {
      active += done[i] < b->groups[i]->rows[0].position ? 1 : 0;
    }
    uint32_t share = active > 0 ? (c->chunk + active - 1) / active : 0;
    for (uint32_t i = 0; i < b->count && room > 0; i++) {
      row first = b->groups[i]->rows[0];
      uint32_t count = first.position - done[i];
      count = count < share ? count : share;
      count = count < room ? count : room;
      if (count > 0) {
        add(c, first.sequence, done[i], count, MGL_LOGITS_NONE);
        done[i] += count;
        room -= count;
      }
    }
    if (active > 0) {
      run(c);
    }
  }
}

// `size` of the sequences decode together; which ones differs from size to size.
static void decode_together(correctness *c, const batches *b, uint32_t size, measured *m) {
  for (uint32_t step = 0; step < b->steps; step++) {
    row rows[MOST_SEQUENCES];
    for (uint32_t i = 0; i < size; i++) {
      rows[i] = b->groups[(size * 5 + i) % b->count]->rows[step];
      add(c, rows[i].sequence, rows[i].position, 1, MGL_LOGITS_LAST);
    }
    run(c);
    for (uint32_t i = 0; i < size; i++) {
      judge(c, rows[i], c->logits + (size_t)i * c->r.vocab, m);
    }
  }
}

static void compare_batches(correctness *c) {
  batches b = {.steps = CHUNK};
  char name[64];
  for (uint32_t i = 0; i < c->r.group_count; i++) {
    const group *g = &c->r.groups[i];
    if (g->kind == GROUP_RAGGED && b.count < MOST_SEQUENCES - 1) {
      b.groups[b.count++] = g;
      b.steps = g->row_count < b.steps ? g->row_count : b.steps;
    }
  }
  prefill_together(c, &b);
  for (uint32_t size = 1; size <= b.count; size++) {
    measured m = {0};
    decode_together(c, &b, size, &m);
    (void)snprintf(name, sizeof name, "batch %u, ragged", size);
    report(c, &m, name);
  }
}

// --- the part ------------------------------------------------------------------------------------

// What Python found in the same logits.
static void check_reading(correctness *c) {
  const char *keys[KINDS] = {"", "kl_sdpa", "kl_eager"};
  for (int kind = SDPA; kind < KINDS; kind++) {
    double told = json_real_value(json_object_get(c->r.json, keys[kind]));
    double found = c->r.mean_kl[kind];
    if (!(fabs(told - found) <= 1e-3 * told + 1e-9)) {
      gpu_check(c->bench, false, "%s: %s is %.4e in reference.json and %.4e in its logits",
                c->r.name, keys[kind], told, found);
    }
  }
}

static void compare(gpu_bench *bench, const char *folder, uint32_t chunk) {
  correctness c = {.bench = bench, .chunk = chunk};
  open_reference(folder, &c.r);
  printf("\n## Correctness: %s, chunks of up to %u tokens\n", c.r.name, chunk);
  (void)fflush(stdout);
  check_reading(&c);
  uint64_t start = mgl_clock_ns();
  open_program(&c);
  print_header(&c, (double)(mgl_clock_ns() - start) / 1e9);
  start = mgl_clock_ns();
  compare_contexts(&c);
  compare_batches(&c);
  printf("\n%u iterations, %u of them in the wide class; %.1f s, comparing included.\n\n",
         c.iterations, c.wide, (double)(mgl_clock_ns() - start) / 1e9);
  gpu_check(
      bench, c.failed_groups == 0,
      "%s: KL to transformers in fp32 is no larger than that of transformers in bf16 at every "
      "context and batch size: at most %.2f of it (%s)",
      c.r.name, c.worst, c.worst_name);
  gpu_check(bench, c.wide == c.large && (c.large > 0) == (chunk > CHUNK),
            "%s: the wide class computed the %u iterations of more than %d tokens (chunks of %u)",
            c.r.name, c.large, CHUNK, chunk);
  // Beyond 64 tokens the bits depend on the iteration.
  gpu_check(bench, chunk > CHUNK || (c.unlike == 0 && c.compared > 0),
            "%s: %u logit rows computed again in other chunks and batches, %u with other bits",
            c.r.name, c.compared, c.unlike);
  close_program(&c);
  close_reference(&c.r);
}

void gpu_reference_run(gpu_bench *bench, int count, char **arguments) {
  uint32_t chunk = CHUNK;
  if (count == 0) {
    gpu_check(bench, false, "expected folders that tests/gpu/reference.py made");
  }
  for (int i = 0; i < count; i++) {
    if (strncmp(arguments[i], "chunk=", 6) == 0) {
      chunk = (uint32_t)strtoul(arguments[i] + 6, NULL, 10);
    } else if (chunk > CHUNK && bench->device.sm_count > MGL_WIDE_MAX_WORKERS) {
      printf("\n%s in chunks of %u tokens: skipped, the wide class has %d workers at most\n",
             arguments[i], chunk, MGL_WIDE_MAX_WORKERS);
    } else {
      compare(bench, arguments[i], chunk);
    }
  }
}
