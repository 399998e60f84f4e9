#include "graph/family.h"

#include "graph/decoder.h"

static void (*const builders[MGL_FAMILY_COUNT])(mgl_decoder *) = {
    [MGL_FAMILY_QWEN3] = mgl_family_build_qwen3,
    [MGL_FAMILY_QWEN2] = mgl_family_build_qwen2,
    [MGL_FAMILY_LLAMA] = mgl_family_build_llama,
    [MGL_FAMILY_MISTRAL] = mgl_family_build_mistral,
    [MGL_FAMILY_PHI3] = mgl_family_build_phi3,
    [MGL_FAMILY_PHI] = mgl_family_build_phi,
    // Their layers' feed-forward parts are what the config says (mgl_decoder_feed_forward).
    [MGL_FAMILY_QWEN3_MOE] = mgl_family_build_qwen3,
    [MGL_FAMILY_QWEN2_MOE] = mgl_family_build_llama,
    [MGL_FAMILY_MIXTRAL] = mgl_family_build_llama,
    [MGL_FAMILY_OLMOE] = mgl_family_build_qwen3,
    [MGL_FAMILY_GLM4_MOE] = mgl_family_build_llama,
    [MGL_FAMILY_GPT_OSS] = mgl_family_build_llama,
};

mgl_status mgl_family_build(const mgl_config *config, const mgl_checkpoint *checkpoint,
                            mgl_graph **out, mgl_error *err) {
  *out = NULL;
  // Most models are bf16 throughout. One that is not shows it at its first linear weight, and is
  // built again with f32 activations: simpler than asking for all dtypes before the names are
  // known.
  for (mgl_dtype act = MGL_DTYPE_BF16;; act = MGL_DTYPE_F32) {
    mgl_graph *graph = NULL;
    MGL_TRY(mgl_graph_create(mgl_family_name(config->family), &graph, err));
    mgl_decoder decoder = {.graph = graph,
                           .config = config,
                           .checkpoint = checkpoint,
                           .act = act,
                           .act_fits = true,
                           .output_name = "self_attn.o_proj"};
    builders[config->family](&decoder);
    if (!decoder.act_fits) {
      mgl_graph_destroy(graph);
      continue;
    }
    mgl_status status = mgl_graph_finish(graph, err);
    if (status != MGL_OK) {
      mgl_graph_destroy(graph);
      return status;
    }
    *out = graph;
    return MGL_OK;
  }
}
