#include "app/model_options.h"

#include <megalith.h>

const char *mgl_device_choice_name(uint32_t index) {
  static const char *const names[] = {"auto", "cpu", "cuda"};
  return index < sizeof names / sizeof *names ? names[index] : NULL;
}

const char *mgl_load_format_choice(uint32_t index) {
  static const char *const names[] = {"auto", "mapped", "copied", "dummy", "short"};
  return index < sizeof names / sizeof *names ? names[index] : NULL;
}

const char *mgl_kv_dtype_choice(uint32_t index) {
  static const char *const names[] = {"auto", "fp8"};
  return index < sizeof names / sizeof *names ? names[index] : NULL;
}

static const mgl_option place_options[] = {
    MGL_ROW_DEVICE,
    {.name = "threads",
     .short_name = 't',
     .value_name = "N",
     .type = MGL_OPTION_U64,
     .u64_min = 1,
     .u64_max = MEGALITH_MAX_THREADS,
     .help = "worker threads [one per core]"},
    {.name = "load-format",
     .value_name = "FORMAT",
     .type = MGL_OPTION_CHOICE,
     .choices = mgl_load_format_choice,
     .help = "where a CPU's weights lie: mapped (in the file), copied (into huge pages), short "
             "(mapped, and 12 bits each in huge pages, no bit lost, for up to 8 tokens, where that "
             "is faster), auto (copied, but for experts, where that takes at most half of the "
             "free memory, and short where both take three eighths, else mapped); dummy (made in "
             "memory; needs only config.json) [auto]"},
    {.name = "tune",
     .type = MGL_OPTION_FLAG,
     .help = "CPU: measure again which way of reading weights is fastest here, which the first "
             "start did"},
};

const mgl_option_group mgl_place_options = {place_options,
                                            sizeof place_options / sizeof *place_options};

static const mgl_option memory_options[] = {
    {.name = "memory-share",
     .value_name = "X",
     .type = MGL_OPTION_REAL,
     .min = 1e-6,
     .max = 1,
     .help = "of the memory that is free, what weights, activations and KV memory may take "
             "together, above 0 to 1 [of run as much as all prompts can use together, else 0.9 of "
             "a GPU's, 0.5 of the host's]"},
    {.name = "kv-tokens",
     .value_name = "N",
     .type = MGL_OPTION_U64,
     .u64_min = 1,
     .u64_max = INT32_MAX,
     .help = "tokens that the KV memory holds [by the memory share]"},
    MGL_ROW_KV_DTYPE,
    {.name = "page-tokens",
     .alias = "block-size",
     .value_name = "N",
     .type = MGL_OPTION_U64,
     .u64_min = 16,
     .u64_max = 256,
     .help = "tokens of a KV page on the CPU: 16, 32, 64, 128 or 256 [16]"},
};

const mgl_option_group mgl_memory_options = {memory_options,
                                             sizeof memory_options / sizeof *memory_options};
