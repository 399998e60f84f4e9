// Which settings go together, and what they come to.
#include "device/compilation.h"

#include <stdlib.h>

static bool has(const mgl_compilation *c, mgl_compilation_setting setting) {
  return (c->given >> setting & 1) != 0;
}

static mgl_status refuse(mgl_error *err, const char *what, const char *expected) {
  return mgl_error_set(err, MGL_ERR_ARGUMENT, "%s: expected %s", what, expected);
}

// --- level and graph mode ------------------------------------------------------------------------

static mgl_status check_eager(mgl_compilation *c, mgl_error *err) {
  if (!has(c, MGL_SET_ENFORCE_EAGER) || !c->enforce_eager) {
    return MGL_OK;
  }
  if (has(c, MGL_SET_LEVEL) && c->level != MGL_LEVEL_EAGER) {
    return mgl_error_set(err, MGL_ERR_ARGUMENT,
                         "enforce_eager: expected level 0 beside it, or none, found level %d",
                         (int)c->level);
  }
  if (has(c, MGL_SET_GRAPH_MODE) && c->graph_mode != MGL_GRAPHS_NONE) {
    return mgl_error_set(err, MGL_ERR_ARGUMENT,
                         "enforce_eager: expected graph_mode NONE beside it, or none, found %s",
                         mgl_graph_mode_name(c->graph_mode));
  }
  if (has(c, MGL_SET_PRESET) && c->level != MGL_LEVEL_EAGER) {
    return refuse(err, "enforce_eager", "no preset beside it but debug, which means it");
  }
  c->level = MGL_LEVEL_EAGER;
  c->graph_mode = MGL_GRAPHS_NONE;
  return MGL_OK;
}

// What was left open.
static void derive(mgl_compilation *c) {
  bool modes = has(c, MGL_SET_GRAPH_MODE) || has(c, MGL_SET_PRESET) || c->mode_given;
  if (has(c, MGL_SET_USE_GRAPHS) && !c->use_graphs && !modes) {
    c->graph_mode = MGL_GRAPHS_NONE;
  } else if (!modes && has(c, MGL_SET_LEVEL)) {
    c->graph_mode = c->level == MGL_LEVEL_PIECEWISE ? MGL_GRAPHS_PIECEWISE : MGL_GRAPHS_NONE;
  } else if (!modes &&
             (has(c, MGL_SET_SPLITTING_OPS) || has(c, MGL_SET_CAPTURE_SIZES) ||
              has(c, MGL_SET_GRAPH_SIZES) || has(c, MGL_SET_COMPILE_SIZES)) &&
             c->graph_mode == MGL_GRAPHS_MEGA) {
    c->graph_mode = MGL_GRAPHS_PIECEWISE;
  }
}

static mgl_status check_mode(const mgl_compilation *c, mgl_error *err) {
  if (c->level < MGL_LEVEL_PIECEWISE && c->graph_mode != MGL_GRAPHS_NONE) {
    return mgl_error_set(err, MGL_ERR_ARGUMENT,
                         "graph_mode %s: expected level 3, which alone has graphs, found level %d",
                         mgl_graph_mode_name(c->graph_mode), (int)c->level);
  }
  if (has(c, MGL_SET_USE_GRAPHS) && !c->use_graphs && c->graph_mode != MGL_GRAPHS_NONE) {
    return mgl_error_set(err, MGL_ERR_ARGUMENT,
                         "use_graphs false: expected graph_mode NONE beside it, found %s",
                         mgl_graph_mode_name(c->graph_mode));
  }
  if (has(c, MGL_SET_USE_GRAPHS) && c->use_graphs && c->graph_mode == MGL_GRAPHS_NONE) {
    return mgl_error_set(
        err, MGL_ERR_ARGUMENT,
        "use_graphs true: expected level 3 and a graph_mode other than NONE, found "
        "level %d and NONE",
        (int)c->level);
  }
  return MGL_OK;
}

// --- what belongs to a mode ----------------------------------------------------------------------

// Graphs of sizes: neither op by op nor the megakernel, which has its own.
static bool has_graphs(const mgl_compilation *c) {
  return c->graph_mode != MGL_GRAPHS_NONE && c->graph_mode != MGL_GRAPHS_MEGA;
}

static mgl_status check_sizes(const mgl_compilation *c, mgl_error *err) {
  static const mgl_compilation_setting lists[] = {MGL_SET_CAPTURE_SIZES, MGL_SET_GRAPH_SIZES,
                                                  MGL_SET_COMPILE_SIZES};
  static const char *const names[] = {"capture_sizes", "graph_sizes", "compile_sizes"};
  for (int i = 0; i < 3; i++) {
    if (has(c, lists[i]) && !has_graphs(c)) {
      return mgl_error_set(
          err, MGL_ERR_ARGUMENT,
          "%s: expected level 3 and graph_mode PIECEWISE, FULL, FULL_DECODE_ONLY or "
          "FULL_AND_PIECEWISE, found level %d and %s, which have no graphs of sizes",
          names[i], (int)c->level, mgl_graph_mode_name(c->graph_mode));
    }
  }
  if (has(c, MGL_SET_CAPTURE_SIZES) && has(c, MGL_SET_GRAPH_SIZES)) {
    return refuse(err, "graph_sizes",
                  "no capture_sizes beside it, which name the sizes themselves");
  }
  if (c->compile_capture_sizes && !has(c, MGL_SET_CAPTURE_SIZES) && !has(c, MGL_SET_GRAPH_SIZES)) {
    return refuse(err, "compile_sizes \"capture_sizes\"", "capture_sizes or graph_sizes beside it");
  }
  return MGL_OK;
}

static mgl_status check_pieces(const mgl_compilation *c, mgl_error *err) {
  bool pieces = mgl_graph_mode_needs_pieces(c->graph_mode);
  if (has(c, MGL_SET_SPLITTING_OPS) && !pieces) {
    return mgl_error_set(
        err, MGL_ERR_ARGUMENT,
        "splitting_ops: expected graph_mode PIECEWISE or FULL_AND_PIECEWISE, found "
        "%s, which has no pieces",
        mgl_graph_mode_name(c->graph_mode));
  }
  if (has(c, MGL_SET_COPY_INPUTS) && c->copy_inputs && !pieces) {
    return mgl_error_set(err, MGL_ERR_ARGUMENT,
                         "copy_inputs: expected graph_mode PIECEWISE or FULL_AND_PIECEWISE, found "
                         "%s, which has no pieces",
                         mgl_graph_mode_name(c->graph_mode));
  }
  return MGL_OK;
}

static mgl_status check_rest(const mgl_compilation *c, mgl_error *err) {
  if (c->check_numbers && c->level == MGL_LEVEL_PIECEWISE && c->graph_mode != MGL_GRAPHS_NONE) {
    return mgl_error_set(err, MGL_ERR_ARGUMENT,
                         "check_numbers: expected level 0, 1 or 2, where every op is launched by "
                         "itself, found level 3 and %s",
                         mgl_graph_mode_name(c->graph_mode));
  }
  if (has(c, MGL_SET_USE_COMPILER) && !c->use_compiler) {
    if (c->level == MGL_LEVEL_CHECK || c->level == MGL_LEVEL_COMPILED) {
      return mgl_error_set(err, MGL_ERR_ARGUMENT,
                           "use_compiler false: expected level 0 or 3, found level %d, which is to "
                           "compile",
                           (int)c->level);
    }
  }
  if (has(c, MGL_SET_USE_COMPILER) && c->use_compiler && c->level == MGL_LEVEL_EAGER) {
    return refuse(err, "use_compiler true",
                  "level 1, 2 or 3, found level 0, which compiles nothing");
  }
  return MGL_OK;
}

// --- the place -----------------------------------------------------------------------------------

static mgl_status check_cpu(const mgl_compilation *c, mgl_error *err) {
  if (has(c, MGL_SET_COPY_INPUTS) && c->copy_inputs) {
    return mgl_error_set(
        err, MGL_ERR_UNSUPPORTED,
        "copy_inputs: on the CPU task graphs read the plan where it lies, so moved "
        "inputs need no copy; expected false");
  }
  if (has(c, MGL_SET_COMPILER_CONFIG)) {
    return mgl_error_set(err, MGL_ERR_UNSUPPORTED,
                         "compiler_config: on the CPU no device code is compiled; it is for a GPU, "
                         "try device cuda");
  }
  return MGL_OK;
}

static mgl_status check_gpu(const mgl_compilation *c, mgl_error *err) {
  bool pieces = has_graphs(c) && c->graph_mode != MGL_GRAPHS_FULL;
  bool plain = has_graphs(c) && c->splitting_op_count > 0;  // of one's own
  if (c->check_numbers && c->level >= MGL_LEVEL_COMPILED) {
    return mgl_error_set(err, MGL_ERR_UNSUPPORTED,
                         "check_numbers: on a GPU expected level 0 or 1, whose plain kernels leave "
                         "what they compute in memory, found level %d",
                         (int)c->level);
  }
  if (has(c, MGL_SET_VARIANT)) {
    return mgl_error_set(err, MGL_ERR_UNSUPPORTED,
                         "variant: a GPU's bodies follow from the shapes of tasks, and `megalith "
                         "compile --target cuda` prints them; it is for the CPU, try device cpu");
  }
  if (has(c, MGL_SET_EXPERT_BALANCE)) {
    return mgl_error_set(err, MGL_ERR_UNSUPPORTED,
                         "expert_balance: a GPU's tasks share chosen experts evenly always; it is "
                         "for the CPU, try device cpu");
  }
  if (has(c, MGL_SET_COMPILE_SIZES)) {
    return mgl_error_set(err, MGL_ERR_UNSUPPORTED,
                         "compile_sizes: a GPU's kernels are compiled for any size; it is for the "
                         "CPU, try device cpu");
  }
  if (has(c, MGL_SET_COPY_INPUTS) && !c->copy_inputs && pieces) {
    return mgl_error_set(err, MGL_ERR_UNSUPPORTED,
                         "copy_inputs false: a plan's inputs are copied to fixed places of the GPU "
                         "before every iteration; expected true");
  }
  if (has(c, MGL_SET_USE_COMPILER) && c->use_compiler && plain) {
    return mgl_error_set(err, MGL_ERR_UNSUPPORTED,
                         "use_compiler true: on a GPU graph_mode %s with splitting ops "
                         "launches plain kernels so far, one for each op that is not fused; "
                         "expected false, or the graph mode alone",
                         mgl_graph_mode_name(c->graph_mode));
  }
  return MGL_OK;
}

static uint32_t most_of(const mgl_size_list *list) {
  uint32_t most = 0;
  for (uint32_t i = 0; i < list->count; i++) {
    most = list->items[i] > most ? list->items[i] : most;
  }
  return most;
}

static mgl_status check_limits(const mgl_compilation *c, const mgl_compilation_place *place,
                               mgl_error *err) {
  // Graphs of decoding iterations have a token a sequence; pieces may be those of prompts.
  bool decodes =
      !mgl_graph_mode_needs_pieces(c->graph_mode) && c->graph_mode == MGL_GRAPHS_FULL_DECODE_ONLY;
  uint32_t most = decodes ? place->sequences : place->tokens;
  const char *what = decodes ? "sequences that may run" : "tokens of an iteration";
  uint32_t size = most_of(&c->capture_sizes);
  if (most != 0 && size > most) {
    return mgl_error_set(err, MGL_ERR_LIMIT, "capture_sizes: expected at most the %u %s, found %u",
                         most, what, size);
  }
  size = c->graph_sizes.count > 1 ? most_of(&c->graph_sizes) : 0;
  if (most != 0 && size > most) {
    return mgl_error_set(err, MGL_ERR_LIMIT, "graph_sizes: expected at most the %u %s, found %u",
                         most, what, size);
  }
  size = most_of(&c->compile_sizes);
  if (place->tokens != 0 && size > place->tokens) {
    return mgl_error_set(err, MGL_ERR_LIMIT,
                         "compile_sizes: expected at most the %u tokens of an iteration, found %u",
                         place->tokens, size);
  }
  return MGL_OK;
}

static mgl_status check_place(const mgl_compilation *c, const mgl_compilation_place *place,
                              mgl_error *err) {
  if (place->ranks > 1 && c->mode != MGL_MODE_MEGA) {
    return mgl_error_set(err, MGL_ERR_UNSUPPORTED,
                         "mode %s: expected mega, which alone runs on several ranks",
                         mgl_mode_name(c->mode));
  }
  if (place->ranks > 1 && has(c, MGL_SET_USE_COMPILER) && !c->use_compiler) {
    return mgl_error_set(err, MGL_ERR_UNSUPPORTED,
                         "use_compiler false: ops of several ranks are fused; expected true");
  }
  MGL_TRY(place->gpu ? check_gpu(c, err) : check_cpu(c, err));
  return check_limits(c, place, err);
}

mgl_status mgl_compilation_check(mgl_compilation *c, const mgl_compilation_place *place,
                                 mgl_error *err) {
  MGL_TRY(check_eager(c, err));
  if (!has(c, MGL_SET_ENFORCE_EAGER) || !c->enforce_eager) {
    derive(c);
  }
  MGL_TRY(check_mode(c, err));
  MGL_TRY(check_sizes(c, err));
  MGL_TRY(check_pieces(c, err));
  MGL_TRY(check_rest(c, err));
  c->mode = mgl_mode_of(c->level, c->graph_mode);
  return place == NULL ? MGL_OK : check_place(c, place, err);
}

// --- sizes ---------------------------------------------------------------------------------------

static int compare(const void *a, const void *b) {
  uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
  return (x > y) - (x < y);
}

void mgl_compilation_sizes(const mgl_compilation *c, uint32_t most, mgl_size_list *out) {
  mgl_size_list all = c->capture_sizes.count > 0 ? c->capture_sizes : c->graph_sizes;
  if (c->capture_sizes.count == 0 && all.count == 1) {
    uint32_t limit = all.items[0];
    all.count = 0;
    for (uint32_t size = 1; size <= limit;
         size += size < MGL_GRAPH_SIZES_STEP ? size : MGL_GRAPH_SIZES_STEP) {
      all.items[all.count++] = size;
    }
  }
  qsort(all.items, all.count, sizeof *all.items, compare);
  *out = all;
  while (out->count > 0 && out->items[out->count - 1] > most) {
    out->count--;
  }
}
