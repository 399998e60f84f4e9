// Short rows of weights (kernels/cpu/short_rows.h), made beside the plain ones, for few tokens.
//
// They are made of bf16 matrices of linears, embeddings that are an output projection among them,
// of models that are too large for caches, on levels whose kernels read them; not of experts, which
// stay in their files. A matrix of which more than a MGL_SHORT_MOST_PLAIN-th of the groups would
// stay plain has none. Making them reads each weight once: about what three tokens take.
//
// Who makes them: the engine, behind binding and before there are programs, where memory allows,
// and where this machine is faster with them (cpu_tune.h).
#ifndef MGL_DEVICE_CPU_CPU_SHORTS_H
#define MGL_DEVICE_CPU_CPU_SHORTS_H

#include <stddef.h>

#include "base/simd.h"
#include "device/cpu/cpu_weights.h"
#include "device/cpu/team.h"

// A group that stays plain is read at the plain pace behind a jump to other memory: with a 16th of
// them most of what is left still gains.
enum { MGL_SHORT_MOST_PLAIN = 16 };

// Bytes of the short rows of a program's weights; 0: it gets none.
size_t mgl_cpu_shorts_bytes(const mgl_graph *graph, mgl_simd simd);

// As many of these bytes as weights of a source that is settled (cpu_weights.h) get: all with
// MGL_WEIGHTS_SHORT; with MGL_WEIGHTS_AUTO all, if with the copies they take at most three eighths
// of the memory that is free, for the KV cache needs of the half that a model takes; else 0.
size_t mgl_cpu_shorts_settle(const mgl_graph *graph, mgl_weight_source source, size_t short_bytes,
                             uint64_t free_bytes);

// Makes them, unless they are there. Without memory there are none, and no harm is done. Called by
// the team's creator.
void mgl_cpu_shorts_make(mgl_cpu_weights *weights, mgl_simd simd, mgl_team *team,
                         const mgl_topology *topology);
void mgl_cpu_shorts_release(mgl_cpu_weights *weights);

// Of the bytes that one iteration reads, what it reads less with them.
uint64_t mgl_cpu_shorts_saved(const mgl_cpu_weights *weights);

#endif
