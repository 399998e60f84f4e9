// The options that commands with a model share, as rows and groups for their tables.
#ifndef MGL_APP_MODEL_OPTIONS_H
#define MGL_APP_MODEL_OPTIONS_H

#include "app/options.h"
#include "base/limits.h"
#include "request/compile_settings.h"

mgl_choice_name mgl_device_choice_name;
mgl_choice_name mgl_load_format_choice;
mgl_choice_name mgl_kv_dtype_choice;

#define MGL_ROW_DEVICE                                                                      \
  {                                                                                         \
    .name = "device", .value_name = "DEVICE", .type = MGL_OPTION_DEVICE,                    \
    .choices = mgl_device_choice_name,                                                      \
    .help =                                                                                 \
        "where the model runs: cpu; cuda or cuda:N, GPU N; auto, the first GPU if it can, " \
        "else the CPU [MEGALITH_DEVICE, or auto]"                                           \
  }

#define MGL_ROW_TASK_GRAPH                                                                        \
  {                                                                                               \
    .name = "task-graph", .value_name = "FILE", .type = MGL_OPTION_TEXT, .repeatable = true,      \
    .help =                                                                                       \
        "run this task graph, which megalith compile -o wrote for as many workers, in the place " \
        "of the compiler's for so many tokens, on the device that it is for; in mode mega"        \
  }
#define MGL_ROW_PARTITION                                                                         \
  {                                                                                               \
    .name = "partition", .value_name = "OP=X,Y,Z", .type = MGL_OPTION_TEXT, .repeatable = true,   \
    .help =                                                                                       \
        "how many tasks an op becomes: X along its columns or rows, Y per KV head of attention, " \
        "Z is 1; OP is a kind (gate_up) or a name (3.gate_up)"                                    \
  }
#define MGL_ROW_KV_DTYPE                                                                      \
  {                                                                                           \
    .name = "kv-dtype", .alias = "kv-cache-dtype", .value_name = "DTYPE",                     \
    .type = MGL_OPTION_CHOICE, .choices = mgl_kv_dtype_choice,                                \
    .help =                                                                                   \
        "elements of the KV cache: auto, those of the activations (bf16, or f32), or fp8 on " \
        "the CPU: E4M3, with the checkpoint's k_scale and v_scale or 1 [auto]"                \
  }
#define MGL_ROW_MODE                                                                             \
  {                                                                                              \
    .name = "mode", .value_name = "MODE", .type = MGL_OPTION_CHOICE, .choices = mgl_mode_choice, \
    .help =                                                                                      \
        "how the model's ops are launched: mega, one megakernel; eager, op by op; full, one "    \
        "graph an iteration; compiled, piecewise, full-decode-only, full-and-piecewise: "        \
        "docs/modes.md [mega, where fused tasks cover the model]"                                \
  }
// For commands with an engine on whose iterations the row has a say; the runner checks the limit of
// the device. usual: the default, in words.
#define MGL_ROW_TENSOR_PARALLEL                                                          \
  {                                                                                      \
    .name = "tensor-parallel", .alias = "tp", .value_name = "N", .type = MGL_OPTION_U64, \
    .u64_min = 1, .u64_max = MGL_MAX_RANKS,                                              \
    .help =                                                                              \
        "processes that run the model together, each with its part: on the CPU, or "     \
        "with --device cuda on as many GPUs, from that one on; of one host mpirun, "     \
        "srun or torchrun may start them [1]"                                            \
  }

// How the ranks of the CPU cut the model (compile/shard.h).
#define MGL_ROW_VOCAB_PARALLEL                                                 \
  {                                                                            \
    .name = "vocab-parallel", .type = MGL_OPTION_FLAG,                         \
    .help =                                                                    \
        "with --tensor-parallel on the CPU: each process has its rows of the " \
        "embedding, too"                                                       \
  }
#define MGL_ROW_REDUCE_SCATTER                                                           \
  {                                                                                      \
    .name = "reduce-scatter", .type = MGL_OPTION_FLAG,                                   \
    .help =                                                                              \
        "with --tensor-parallel on the CPU: each process adds up its columns of a sum, " \
        "and all gather them: fewer reads with many processes, one wait more"            \
  }

#define MGL_ROW_ITERATION_TOKENS_OF(usual)                                               \
  {                                                                                      \
    .name = "iteration-tokens", .alias = "max-num-batched-tokens", .value_name = "N",    \
    .type = MGL_OPTION_U64, .u64_min = 1, .u64_max = MGL_MAX_ITERATION_TOKENS,           \
    .help =                                                                              \
        "tokens of an iteration at most, to 2048: larger ones "                          \
        "compute prompts faster and take more memory, and others wait longer meanwhile " \
        "[" usual "]"                                                                    \
  }
#define MGL_ROW_ITERATION_TOKENS MGL_ROW_ITERATION_TOKENS_OF("128, on GPUs 2048")
#define MGL_ROW_TRACE                                                                         \
  {                                                                                           \
    .name = "trace", .value_name = "FILE", .type = MGL_OPTION_FILE,                           \
    .help = "write when each task ran to a JSON file for chrome://tracing or ui.perfetto.dev" \
  }

extern const mgl_option_group mgl_place_options;   // where model and weights lie
extern const mgl_option_group mgl_memory_options;  // of commands with an engine

#endif
