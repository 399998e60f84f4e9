#include "device/graph_mode.h"

#include <assert.h>
#include <ctype.h>
#include <string.h>

// --- graph modes ---------------------------------------------------------------------------------

static const struct {
  const char *name;
  mgl_graph_mode decode, mixed;
} graph_modes[MGL_GRAPHS_COUNT] = {
    [MGL_GRAPHS_NONE] = {"NONE", MGL_GRAPHS_NONE, MGL_GRAPHS_NONE},
    [MGL_GRAPHS_PIECEWISE] = {"PIECEWISE", MGL_GRAPHS_PIECEWISE, MGL_GRAPHS_PIECEWISE},
    [MGL_GRAPHS_FULL] = {"FULL", MGL_GRAPHS_FULL, MGL_GRAPHS_FULL},
    [MGL_GRAPHS_MEGA] = {"MEGA", MGL_GRAPHS_MEGA, MGL_GRAPHS_MEGA},
    [MGL_GRAPHS_FULL_DECODE_ONLY] = {"FULL_DECODE_ONLY", MGL_GRAPHS_FULL, MGL_GRAPHS_NONE},
    [MGL_GRAPHS_FULL_AND_PIECEWISE] = {"FULL_AND_PIECEWISE", MGL_GRAPHS_FULL, MGL_GRAPHS_PIECEWISE},
};

const char *mgl_graph_mode_name(mgl_graph_mode mode) {
  return graph_modes[mode].name;
}

static bool is_same(const char *given, const char *name) {
  size_t i = 0;
  for (; name[i] != 0; i++) {
    if ((given[i] == '-' ? '_' : toupper((unsigned char)given[i])) != name[i]) {
      return false;
    }
  }
  return given[i] == 0;
}

mgl_status mgl_graph_mode_parse(const char *name, mgl_graph_mode *out, mgl_error *err) {
  for (int mode = 0; mode < MGL_GRAPHS_COUNT; mode++) {
    if (is_same(name, graph_modes[mode].name)) {
      *out = (mgl_graph_mode)mode;
      return MGL_OK;
    }
  }
  return mgl_error_set(err, MGL_ERR_ARGUMENT,
                       "expected NONE, PIECEWISE, FULL, FULL_DECODE_ONLY, "
                       "FULL_AND_PIECEWISE or MEGA, found \"%.40s\"",
                       name);
}

mgl_graph_mode mgl_graph_mode_decode(mgl_graph_mode mode) {
  return graph_modes[mode].decode;
}

mgl_graph_mode mgl_graph_mode_mixed(mgl_graph_mode mode) {
  return graph_modes[mode].mixed;
}

bool mgl_graph_mode_is_separate(mgl_graph_mode mode) {
  return graph_modes[mode].decode != graph_modes[mode].mixed;
}

bool mgl_graph_mode_has_full(mgl_graph_mode mode) {
  return graph_modes[mode].decode == MGL_GRAPHS_FULL || graph_modes[mode].mixed == MGL_GRAPHS_FULL;
}

bool mgl_graph_mode_needs_pieces(mgl_graph_mode mode) {
  return graph_modes[mode].decode == MGL_GRAPHS_PIECEWISE ||
         graph_modes[mode].mixed == MGL_GRAPHS_PIECEWISE;
}

mgl_graph_mode mgl_graph_mode_max(mgl_graph_mode mode) {
  mgl_graph_mode decode = graph_modes[mode].decode, mixed = graph_modes[mode].mixed;
  return decode > mixed ? decode : mixed;
}

// --- modes ---------------------------------------------------------------------------------------

static const struct {
  const char *name;
  mgl_graph_mode graphs;
} modes[MGL_MODE_COUNT] = {
    [MGL_MODE_MEGA] = {"mega", MGL_GRAPHS_MEGA},
    [MGL_MODE_EAGER] = {"eager", MGL_GRAPHS_NONE},
    [MGL_MODE_FULL] = {"full", MGL_GRAPHS_FULL},
    [MGL_MODE_COMPILED] = {"compiled", MGL_GRAPHS_NONE},
    [MGL_MODE_PIECEWISE] = {"piecewise", MGL_GRAPHS_PIECEWISE},
    [MGL_MODE_FULL_DECODE_ONLY] = {"full-decode-only", MGL_GRAPHS_FULL_DECODE_ONLY},
    [MGL_MODE_FULL_AND_PIECEWISE] = {"full-and-piecewise", MGL_GRAPHS_FULL_AND_PIECEWISE},
};

const char *mgl_mode_name(mgl_mode mode) {
  return modes[mode].name;
}

mgl_status mgl_mode_parse(const char *name, mgl_mode *out, mgl_error *err) {
  for (int mode = 0; mode < MGL_MODE_COUNT; mode++) {
    if (strcmp(name, modes[mode].name) == 0) {
      *out = (mgl_mode)mode;
      return MGL_OK;
    }
  }
  return mgl_error_set(err, MGL_ERR_ARGUMENT,
                       "mode: expected mega, eager, full, compiled, piecewise, full-decode-only or "
                       "full-and-piecewise, found \"%.40s\"",
                       name);
}

bool mgl_mode_is_fused(mgl_mode mode) {
  return mode == MGL_MODE_MEGA || mode == MGL_MODE_FULL;
}

mgl_mode mgl_mode_of(mgl_compile_level level, mgl_graph_mode graphs) {
  if (level < MGL_LEVEL_COMPILED) {
    return MGL_MODE_EAGER;
  }
  if (level == MGL_LEVEL_COMPILED || graphs == MGL_GRAPHS_NONE) {
    return MGL_MODE_COMPILED;
  }
  int mode = 0;
  while (modes[mode].graphs != graphs) {
    mode++;
  }
  assert(mode < MGL_MODE_COUNT);
  return (mgl_mode)mode;
}

mgl_graph_mode mgl_mode_graphs(mgl_mode mode) {
  return modes[mode].graphs;
}
