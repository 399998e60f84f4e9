// megalith plan: what a model takes of a device's memory, and what fits into the rest.
//
// The figures are those by which a runner allocates (engine/memory_plan.h). Weights need not be on
// disk: config.json is enough.
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "app/app_model.h"
#include "app/commands.h"
#include "app/human.h"
#include "app/output.h"
#include "engine/engine.h"

typedef struct planning {
  const mgl_arguments *arguments;
  mgl_app_model model;
  mgl_build options;
  mgl_sizes plan;
  const char *device;
} planning;

static uint64_t kv_tokens(const planning *p) {
  return (uint64_t)p->plan.page_count * p->plan.limits.page_tokens;
}

// Sequences of so many tokens that fit, each in pages of its own.
static uint64_t sequences_of(const planning *p, uint64_t tokens) {
  return p->plan.page_count /
         ((tokens + p->plan.limits.page_tokens - 1) / p->plan.limits.page_tokens);
}

// The longest of so many sequences that fit.
static uint64_t longest_of(const planning *p, uint64_t sequences) {
  uint64_t tokens = p->plan.page_count / sequences * p->plan.limits.page_tokens;
  return tokens < p->options.sequence_tokens ? tokens : p->options.sequence_tokens;
}

// --- output --------------------------------------------------------------------------------------

static void append_part(mgl_text *out, const char *name, uint64_t bytes, const char *note) {
  char size[MGL_HUMAN_BYTES];
  mgl_human_size(bytes, size);
  mgl_text_format(out, "%-24s %12s%s%s\n", name, size, note[0] != 0 ? "   " : "", note);
}

static const char *weights_note(const planning *p) {
  const bool is_quantised = p->model.folder.config.quantization.method != MGL_QUANT_NONE;
  if (p->options.cuda != NULL || p->plan.source == MGL_WEIGHTS_DUMMY) {
    return "";
  }
  if (p->plan.mapped_bytes == 0) {
    return is_quantised ? "in memory" : "copied into memory (--load-format mapped: in their files)";
  }
  if (p->plan.source == MGL_WEIGHTS_AUTO) {
    return "copied into memory, but for experts, which stay in their files";
  }
  if (p->options.weights == MGL_WEIGHTS_AUTO) {
    return "in their files; copies would take more than half of what is free";
  }
  return is_quantised ? "quantised ones in memory, others in their files"
                      : "in their files (--load-format auto: in memory)";
}

// "so many sequences of so many tokens" for lengths that halve, until all places are taken.
static void append_fits(const planning *p, mgl_text *out) {
  uint64_t tokens = p->options.sequence_tokens;
  uint64_t least = p->plan.limits.page_tokens;
  mgl_text_append_string(out, "\nrequests that run at once, by their length:\n");
  bool more = true;
  while (more && tokens >= least) {
    uint64_t fit = sequences_of(p, tokens);
    uint64_t shown = fit < p->plan.sequences ? fit : p->plan.sequences;
    mgl_text_format(out, "%10" PRIu64 " tokens %8" PRIu64 "%s\n", tokens, shown,
                    fit > p->plan.sequences ? " (--sequences)" : "");
    more = fit < p->plan.sequences;
    tokens /= 2;
  }
}

enum { EXPECTED_ROWS = 8 };  // iterations of 1, 2, 4 ... 128 tokens

// Experts of a layer that so many tokens are expected to hit, where each chooses its own at random.
static double expected_experts(const mgl_mixture *m, uint32_t tokens) {
  return m->expert_count * (1 - pow(1 - (double)m->slots / m->expert_count, tokens));
}

// Weights that an iteration of so many tokens reads then.
static uint64_t expected_bytes(const planning *p, uint32_t tokens) {
  const mgl_mixture *m = &p->model.folder.config.mixture;
  const double of_experts = (double)p->plan.expert_bytes / m->expert_count;
  return p->plan.step_bytes +
         (uint64_t)(of_experts * (expected_experts(m, tokens) - expected_experts(m, 1)));
}

static bool counts_experts(const planning *p) {
  return p->plan.expert_bytes != 0 && p->plan.step_bytes != 0;
}

static void append_expected(const planning *p, mgl_text *out) {
  const mgl_mixture *m = &p->model.folder.config.mixture;
  if (!counts_experts(p)) {
    return;
  }
  mgl_text_append_string(out, "\nweights read by an iteration, if all experts are as likely:\n");
  for (uint32_t i = 0; i < EXPECTED_ROWS; i++) {
    char size[MGL_HUMAN_BYTES];
    mgl_human_size(expected_bytes(p, 1u << i), size);
    mgl_text_format(out, "%10u tokens %12s, %.1f of %" PRIu32 " experts\n", 1u << i, size,
                    expected_experts(m, 1u << i), m->expert_count);
  }
}

static void append_text(const planning *p, mgl_text *out) {
  const mgl_sizes *plan = &p->plan;
  char size[MGL_HUMAN_BYTES];
  char note[64];
  mgl_human_size(plan->free_bytes, size);
  const mgl_config *config = &p->model.folder.config;
  mgl_text_format(out, "%s (%s%s%s) on %s, %" PRIu32 " workers; %s are free\n\n", p->model.name,
                  mgl_family_name(config->family), config->quantization.format[0] != 0 ? ", " : "",
                  config->quantization.format, p->device, plan->workers, size);
  if (p->options.ranks > 1) {
    mgl_text_format(out, "each of %" PRIu32 " ranks:\n", p->options.ranks);
  }
  if (plan->note[0] != 0) {
    mgl_text_format(out, "%s\n\n", plan->note);
  }
  append_part(out, "weights", plan->weight_bytes + plan->mapped_bytes, weights_note(p));
  if (plan->short_bytes != 0) {
    append_part(out, "  in 12 bits, of bf16", plan->short_bytes,
                "beside, for up to 8 tokens, if these are faster so");
  }
  if (config->mixture.expert_count != 0 && plan->step_bytes != 0) {
    (void)snprintf(note, sizeof note, "%" PRIu32 " of %" PRIu32 " experts of a layer",
                   config->mixture.slots, config->mixture.expert_count);
    append_part(out, "  read for a token", plan->step_bytes, note);
  }
  append_part(out, "activations", plan->activation_bytes, "");
  append_part(out, "other", plan->other_bytes, "");
  mgl_human_size(plan->kv_bytes_per_token, size);
  (void)snprintf(note, sizeof note, "%s a token%s", size,
                 p->options.kv_dtype == MGL_KV_FP8 ? ", in fp8" : "");
  append_part(out, "KV memory", mgl_sizes_kv_bytes(plan), note);
  (void)snprintf(note, sizeof note, "%.1f%% of what is free",
                 100 * (double)mgl_sizes_total(plan) / (double)plan->free_bytes);
  append_part(out, "in all", mgl_sizes_total(plan), note);
  if (plan->cold_bytes > 0) {
    const uint64_t others = mgl_sizes_total(plan) - plan->mapped_bytes;
    append_part(out, "page cache, least", plan->mapped_bytes - plan->cold_bytes,
                "what every token reads, and one token's experts");
    append_part(out, "page cache, all experts", plan->mapped_bytes,
                others + plan->mapped_bytes <= plan->free_bytes
                    ? "fits"
                    : "does not fit: experts that are not there are read when they are chosen");
  }
  if (plan->loading_bytes > 0) {
    append_part(out, "while loading", plan->loading_bytes, "more");
  }
  mgl_text_format(out,
                  "\nKV memory holds %" PRIu64 " tokens in %" PRIu32 " pages of %" PRIu32
                  ": %" PRIu32 " sequences of %" PRIu64 "\n",
                  kv_tokens(p), plan->page_count, plan->limits.page_tokens, p->plan.sequences,
                  longest_of(p, p->plan.sequences));
  append_fits(p, out);
  append_expected(p, out);
}

static void append_json(const planning *p, mgl_text *out) {
  const mgl_sizes *plan = &p->plan;
  mgl_text_append_string(out, "{\"model\": ");
  mgl_json_append_string(out, p->model.name, strlen(p->model.name));
  mgl_text_append_string(out, ", \"device\": ");
  mgl_json_append_string(out, p->device, strlen(p->device));
  mgl_text_format(out, ", \"ranks\": %" PRIu32, p->options.ranks);
  mgl_text_format(out, ", \"workers\": %" PRIu32 ", \"free_bytes\": %" PRIu64, plan->workers,
                  plan->free_bytes);
  mgl_text_format(out,
                  ", \"weight_bytes\": %" PRIu64 ", \"mapped_weight_bytes\": %" PRIu64
                  ", \"short_weight_bytes\": %" PRIu64,
                  plan->weight_bytes + plan->mapped_bytes, plan->mapped_bytes, plan->short_bytes);
  if (plan->cold_bytes != 0) {
    mgl_text_format(out, ", \"page_cache_least_bytes\": %" PRIu64,
                    plan->mapped_bytes - plan->cold_bytes);
  }
  if (plan->step_bytes != 0) {
    mgl_text_format(out, ", \"active_weight_bytes\": %" PRIu64, plan->step_bytes);
  }
  for (uint32_t i = 0; counts_experts(p) && i < EXPECTED_ROWS; i++) {
    mgl_text_format(out, "%s[%u, %" PRIu64 "]%s", i == 0 ? ", \"expected_weight_bytes\": [" : ", ",
                    1u << i, expected_bytes(p, 1u << i), i + 1 == EXPECTED_ROWS ? "]" : "");
  }
  mgl_text_format(out, ", \"activation_bytes\": %" PRIu64 ", \"other_bytes\": %" PRIu64,
                  plan->activation_bytes, plan->other_bytes);
  mgl_text_format(out, ", \"kv_bytes\": %" PRIu64 ", \"kv_bytes_per_token\": %" PRIu64,
                  mgl_sizes_kv_bytes(plan), plan->kv_bytes_per_token);
  mgl_text_format(out, ", \"total_bytes\": %" PRIu64 ", \"loading_bytes\": %" PRIu64,
                  mgl_sizes_total(plan), plan->loading_bytes);
  mgl_text_format(out, ", \"kv_tokens\": %" PRIu64 ", \"page_tokens\": %" PRIu32, kv_tokens(p),
                  plan->limits.page_tokens);
  mgl_text_format(out, ", \"sequences\": %" PRIu32 ", \"context\": %" PRIu32, p->plan.sequences,
                  p->options.sequence_tokens);
  mgl_text_format(out, ", \"sequences_of_context\": %" PRIu64 ", \"tokens_of_sequences\": %" PRIu64,
                  sequences_of(p, p->options.sequence_tokens), longest_of(p, p->plan.sequences));
  mgl_text_append_string(out, ", \"note\": ");
  mgl_json_append_string(out, plan->note, strlen(plan->note));
  mgl_text_append_string(out, "}\n");
}

// -------------------------------------------------------------------------------------------------

static mgl_status print(const planning *p, mgl_error *err) {
  mgl_text out = {0};
  if (mgl_arguments_has(p->arguments, "json")) {
    append_json(p, &out);
  } else {
    append_text(p, &out);
  }
  mgl_status status = mgl_output_text(&out, err);
  mgl_text_free(&out);
  return status;
}

static mgl_status plan_command(const mgl_arguments *arguments, mgl_error *err) {
  planning p = {.arguments = arguments};
  MGL_TRY(mgl_app_model_open(arguments, MGL_WANT_WEIGHTS, &p.model, err));
  uint32_t context = p.model.folder.config.context_tokens;
  p.options =
      (mgl_build){.sequences = (uint32_t)mgl_arguments_u64(arguments, "sequences", 0),
                  .sequence_tokens = (uint32_t)mgl_arguments_u64(arguments, "context", context),
                  .memory_share = MGL_USUAL_SHARE};
  mgl_status status = mgl_app_model_plan(&p.model, arguments, &p.options, &p.plan, &p.device, err);
  if (status == MGL_OK) {
    status = print(&p, err);
  }
  mgl_app_model_close(&p.model);
  return status;
}

static const mgl_option options[] = {
    {.name = "sequences",
     .value_name = "N",
     .type = MGL_OPTION_U64,
     .u64_min = 1,
     .u64_max = MGL_MAX_SEQUENCES,
     .help = "requests that run at once, at most [64, on GPUs 256]"},
    {.name = "context",
     .value_name = "N",
     .type = MGL_OPTION_U64,
     .u64_min = 1,
     .u64_max = MGL_MAX_CONTEXT,
     .help = "tokens of the longest request [the model's context]"},
    {.name = "json", .type = MGL_OPTION_FLAG, .help = "print one JSON object"},
    MGL_ROW_ITERATION_TOKENS,
    MGL_ROW_TENSOR_PARALLEL,
    MGL_ROW_VOCAB_PARALLEL,
    MGL_ROW_REDUCE_SCATTER,
};

static const mgl_option_group *const groups[] = {&mgl_memory_options, &mgl_place_options, NULL};

const mgl_command mgl_command_plan = {
    .name = "plan",
    .summary = "memory that a model takes, and how many tokens of how many requests fit",
    .positional = "MODEL",
    .description =
        "Says what weights, activations and KV memory take of a device, by the sizes by which the\n"
        "engine allocates, and how many requests of which length fit. Nothing is loaded:\n"
        "config.json is enough. KV memory is never larger than --sequences times --context.",
    .examples =
        "megalith plan path/to/model\n"
        "megalith plan path/to/model --device cuda --memory-share 0.95 --context 8192\n"
        "megalith plan folder/with/config --kv-tokens 100000 --json",
    .options = options,
    .option_count = sizeof options / sizeof *options,
    .groups = groups,
    .run = plan_command,
};
