// The text form of a tensor program: printed for people and tests, parsed from whoever writes one.
//
// One statement a line; '#' starts a comment. What is printed parses to an equal program.
//   program NAME
//   input  tokens i32[T]
//   weight model.norm.weight bf16[1024]
//   kv     kv.0 bf16[8,128]        # or e4m3[8,128] k_scale=0.5 v_scale=0.25; without them 1
//   x = embed(tokens, model.embed_tokens.weight) : f32[T,1024]
//   n = rmsnorm(x, model.norm.weight) eps=9.9999999999999995e-07 : bf16[T,1024]
//   kv.0 = kv_write(k, v, slots)
//   output logits
#ifndef MGL_GRAPH_GRAPH_TEXT_H
#define MGL_GRAPH_GRAPH_TEXT_H

#include <stddef.h>

#include "base/hash.h"
#include "base/status.h"
#include "base/text.h"
#include "graph/graph.h"

enum { MGL_GRAPH_TEXT_MAX_BYTES = 64 << 20 };

void mgl_graph_print(const mgl_graph *graph, mgl_text *out);
// Of what is printed.
mgl_status mgl_graph_hash(const mgl_graph *graph, mgl_hash *out, mgl_error *err);

// Errors name the line. `where` names the source.
mgl_status mgl_graph_parse(const char *text, size_t bytes, const char *where, mgl_graph **out,
                           mgl_error *err);

#endif
