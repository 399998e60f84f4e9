// Programs of the models in bench/configs.
#ifndef MGL_TESTS_SUPPORT_BENCH_MODEL_H
#define MGL_TESTS_SUPPORT_BENCH_MODEL_H

#include <stdio.h>

#include "compile/compile.h"
#include "compile/shard.h"
#include "support/must.h"
#include "support/programs.h"

#define BENCH_CONFIGS MGL_TEST_DATA "/../../bench/configs"

static inline mgl_graph *bench_model(const char *name) {
  char path[512];
  static char json[1 << 14];
  (void)snprintf(path, sizeof path, "%s/%s/config.json", BENCH_CONFIGS, name);
  FILE *file = fopen(path, "r");
  assert_non_null(file);
  size_t bytes = fread(json, 1, sizeof json, file);
  (void)fclose(file);
  return parsed_model(json, bytes, name);
}

static inline mgl_graph *fused_model(const char *name) {
  mgl_graph *canonical = bench_model(name);
  mgl_graph *program = NULL;
  MUST(mgl_fuse_ops_cuda(canonical, &program, &err));
  mgl_graph_destroy(canonical);
  return program;
}

// A rank's part of a program that is not fused.
static inline mgl_graph *fused_part(const mgl_graph *canonical, uint32_t ranks) {
  mgl_graph *cut = NULL;
  mgl_graph *program = NULL;
  MUST(mgl_shard_program(canonical, ranks, &cut, &err));
  MUST(mgl_fuse_ops_cuda(cut, &program, &err));
  mgl_graph_destroy(cut);
  return program;
}

#endif
