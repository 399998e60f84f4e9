#include "lower/choose.h"

#include "lower/packed.h"
#include "lower/stages.h"
#include "lower/words.h"
#include "twin/device_run.h"
#include "twin/wide_run.h"

static bool has_small_layers(const mgl_graph *program, uint64_t step_bytes) {
  uint64_t layers = 0;
  for (size_t i = 0; i < program->op_count; i++) {
    layers += program->ops[i].kind == MGL_OP_ATTEND ? 1 : 0;
  }
  return step_bytes <= layers * MGL_SMALL_LAYER_BYTES;
}

uint32_t mgl_narrow_tokens(const mgl_graph *program, uint64_t step_bytes, bool few) {
  return has_small_layers(program, step_bytes) && !few ? MGL_NARROW_TOKENS_SMALL
                                                       : MGL_NARROW_TOKENS;
}

uint64_t mgl_narrow_context(const mgl_graph *program, uint64_t step_bytes) {
  if (mgl_packed_has_codes(program)) {
    return MGL_NARROW_CONTEXT_CODED;
  }
  return has_small_layers(program, step_bytes) ? MGL_NARROW_CONTEXT_SMALL : MGL_NARROW_CONTEXT;
}

// Number of the graph of so many tokens, at least, and behind so many others, and its tokens. Where
// rows are shared out over ranks or sorted by expert these are powers of two: others were not
// tried.
static uint32_t find_graph(const mgl_graph *program, const mgl_stages_graphs *of, uint32_t least,
                           uint32_t number, uint32_t *out_tokens) {
  const bool middle = mgl_stages_has_middle(program, of);
  const bool plain = !mgl_stages_has_ranks(program) && !mgl_stages_has_experts(program);
  uint32_t tokens = of->few ? MGL_WIDE_LEAST_TILE : MGL_WIDE_MOST_TILE, graph = 0;
  for (; tokens < least || graph < number; graph++) {
    if (tokens == MGL_WIDE_MIDDLE_TILE) {
      tokens = MGL_WIDE_MOST_TILE;
    } else if (middle && tokens < MGL_WIDE_MIDDLE_TILE && 2 * tokens > MGL_WIDE_MIDDLE_TILE) {
      tokens = MGL_WIDE_MIDDLE_TILE;
    } else {
      tokens += plain && tokens >= MGL_WIDE_MOST_TILE ? (uint32_t)MGL_WIDE_MOST_TILE : tokens;
    }
  }
  *out_tokens = tokens;
  return graph;
}

uint32_t mgl_stages_graph_for(const mgl_graph *program, const mgl_stages_graphs *of,
                              uint32_t tokens) {
  uint32_t has;
  return find_graph(program, of, tokens, 0, &has);
}

mgl_stages_options mgl_stages_options_of(const mgl_graph *program, const mgl_stages_graphs *of,
                                         uint32_t graph) {
  uint32_t tokens;
  (void)find_graph(program, of, 0, graph, &tokens);
  bool codes =
      mgl_packed_has_codes(program) && !(of->few && mgl_stages_widen_program(program, tokens));
  uint32_t most = codes ? MGL_WIDE_MOST_CODED_TILE : MGL_WIDE_MOST_TILE;
  return (mgl_stages_options){
      .tokens = tokens,
      .tile_tokens = of->few ? mgl_stages_tile_tokens(program, tokens, most, of) : most,
      .logit_rows = of->logit_rows,
      .workers = of->workers};
}

uint32_t mgl_kernels_strides(const mgl_task_graph *graph, bool long_context) {
  const uint32_t few = MGL_KERNELS_LONG_CONTEXT / MGL_CUDA_MIN_CHUNK;
  const bool is_short = graph->tokens == 1 && !long_context;
  return is_short && graph->attention_strides > few ? few : graph->attention_strides;
}

// The task graph, and its schedule.
static mgl_status lower_graph(const mgl_graph *program, const mgl_iteration_options *options,
                              mgl_schedule **out, mgl_error *err) {
  mgl_compile_options compile = options->compile;
  mgl_task_graph *graph = NULL;
  uint32_t tokens = 1;
  while (tokens < compile.tokens) {
    tokens *= 2;
  }
  compile.tokens = tokens;
  MGL_TRY(mgl_compile(program, &compile, &graph, NULL, err));
  mgl_status status = MGL_OK;
  if (options->kernels) {
    const mgl_kernels_options kernels = {.tokens = tokens,
                                         .logit_rows = graph->logit_rows,
                                         .workers = compile.workers,
                                         .strides = mgl_kernels_strides(graph, false)};
    status = mgl_lower_kernels(program, &kernels, out, err);
  } else {
    bool words = compile.target == MGL_TARGET_CUDA && mgl_words_carry(program, graph);
    status = mgl_lower_graph(program, graph, words ? MGL_LOWER_WORDS : MGL_LOWER_TASKS, out, err);
  }
  mgl_task_graph_destroy(graph);
  return status;
}

bool mgl_stages_run(const mgl_graph *program, bool few) {
  return mgl_stages_cover(program) &&
         (few || !(mgl_stages_has_experts(program) || mgl_packed_has_codes(program)));
}

mgl_status mgl_lower_iteration(const mgl_graph *program, const mgl_iteration_options *options,
                               mgl_schedule **out, mgl_error *err) {
  const mgl_compile_options *compile = &options->compile;
  bool cuda = compile->target == MGL_TARGET_CUDA;
  if (cuda && !options->kernels && !mgl_stages_run(program, options->few)) {
    return compile->tokens <= MGL_CUDA_MAX_TOKENS
               ? lower_graph(program, options, out, err)
               : mgl_error_set(err, MGL_ERR_UNSUPPORTED,
                               "cuda: expected iterations of at most %d tokens, since larger ones "
                               "have no kernels for this model's %s, found %u",
                               MGL_CUDA_MAX_TOKENS, mgl_stages_cover(program) ? "weights" : "ops",
                               compile->tokens);
  }
  bool narrow =
      !cuda || compile->tokens <=
                   mgl_narrow_tokens(program, mgl_packed_program_bytes(program), options->few);
  if (narrow || options->kernels) {
    return lower_graph(program, options, out, err);
  }
  uint32_t rows = compile->logit_rows == 0 ? MGL_STAGES_USUAL_ROWS : compile->logit_rows;
  rows = rows < MGL_MAX_SEQUENCES ? rows : (uint32_t)MGL_MAX_SEQUENCES;
  const mgl_stages_graphs of = {options->few, rows, compile->workers};
  const mgl_stages_options stages =
      mgl_stages_options_of(program, &of, mgl_stages_graph_for(program, &of, compile->tokens));
  return mgl_lower_stages(program, &stages, out, err);
}
