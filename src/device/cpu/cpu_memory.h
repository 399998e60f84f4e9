// Memory that all programs of one model share on the CPU, whatever their modes: KV cache,
// activations, scratch.
//
// There is one model, but several programs of it: the canonical one for mode eager, and a fused one
// for each token count that has a task graph. They run one at a time, so one block of activations,
// as large as the largest program needs, serves them all; the KV cache must be one, since a
// sequence's tokens go through several programs. Weights and KV tensors are found by name, as the
// tensor indices of the programs differ.
//
// Owned by the creating thread; while an iteration runs, workers read the struct and write to the
// memory behind it, and nothing may grow.
#ifndef MGL_DEVICE_CPU_CPU_MEMORY_H
#define MGL_DEVICE_CPU_CPU_MEMORY_H

#include <stddef.h>
#include <stdint.h>

#include "base/status.h"
#include "base/topology.h"
#include "batch/plan.h"
#include "device/cpu/cpu_loads.h"
#include "device/cpu/cpu_weights.h"
#include "graph/graph.h"
#include "kernels/cpu/cpu_kernels.h"
#include "twin/atomics.h"

typedef struct mgl_cpu_memory_options {
  uint32_t page_tokens;  // P of a KV page
  uint32_t page_count;   // KV pages
  uint32_t workers;      // at least 1; each gets its own scratch
  // How programs walk over linears, copied into each: NULL, the usual way of their kernels.
  const mgl_linear_way *way;
  const mgl_cpu_kernels *kernels;  // of all programs; NULL: those of their level
  // Of several ranks: each one's block of activations, shared_bytes long, in memory that all have.
  // Rank 0 of 0: there are no others.
  uint32_t rank, rank_count;
  unsigned char *shared[MGL_MAX_RANKS];
  size_t shared_bytes;
  uint64_t shared_counters;  // of events, likewise of each rank
} mgl_cpu_memory_options;

// An mgl_logit_note is what one worker knows of one row of logits: the largest of its columns
// (cpu_argmax.h).
typedef struct mgl_logit_note {
  uint64_t iteration;  // that the rest is of; of another one, nothing is known yet
  float logit;
  uint32_t index;
} mgl_logit_note;

typedef struct mgl_cpu_memory {
  mgl_cpu_memory_options options;
  const mgl_cpu_weights *weights;  // borrowed, with the program that they were bound for
  mgl_kv_layer *kv;                // [tensor_count of that program], set for KV tensors
  void *kv_pages;
  size_t kv_bytes;
  unsigned char *activations;  // offsets of each program's activations count from here
  size_t activation_bytes;
  unsigned char *scratch;       // [workers][scratch_bytes]
  size_t scratch_bytes;         // a multiple of 4096
  uint32_t logit_rows;          // most of an iteration of any program
  mgl_logit_note *logit_notes;  // [workers][logit_rows], each worker writes its own
  uint32_t *best_logits;        // [logit_rows] combined from them
  mgl_word *pulses;             // [workers][MGL_CPU_PULSE_WORDS], the first of each counts
  mgl_cpu_loads loads;          // of experts
  uint64_t iteration;           // of any program, counted by mgl_cpu_program_set_plan from 1
} mgl_cpu_memory;

enum {
  MGL_CPU_SCRATCH_ALIGNMENT =
      4096,                  // workers' scratches share no page, so each lies near its worker
  MGL_CPU_PULSE_WORDS = 16,  // two cache lines: workers do not share one
};

// Maps the KV cache of the program that `weights` was bound for; weights and that program must
// outlive *out. Activations and scratch come with the programs.
mgl_status mgl_cpu_memory_create(const mgl_cpu_weights *weights,
                                 const mgl_cpu_memory_options *options,
                                 const mgl_topology *topology, mgl_cpu_memory **out,
                                 mgl_error *err);
void mgl_cpu_memory_destroy(mgl_cpu_memory *memory);  // NULL is fine; after all its programs

// Makes activations, each worker's scratch and the notes of logits at least this large
// (mgl_cpu_program_create calls it). Contents are lost. On failure the present sizes stay good.
mgl_status mgl_cpu_memory_reserve(mgl_cpu_memory *memory, size_t activation_bytes,
                                  size_t scratch_bytes, uint32_t logit_rows, mgl_error *err);

// The weight or the KV layer that `tensor` of any program names. An error if there is none, or if
// it has another shape or dtype.
mgl_status mgl_cpu_memory_find_weight(const mgl_cpu_memory *memory, const mgl_tensor *tensor,
                                      const void **out, mgl_error *err);
// The short rows of a weight that was found; NULL: it has none.
const void *mgl_cpu_memory_find_short(const mgl_cpu_memory *memory, const mgl_tensor *tensor);
mgl_status mgl_cpu_memory_find_kv(const mgl_cpu_memory *memory, const mgl_tensor *tensor,
                                  mgl_kv_layer *out, mgl_error *err);

// A worker in the middle of a long task tells that it is at work; any thread may ask how often all
// workers have done so.
static inline void mgl_cpu_memory_pulse(mgl_cpu_memory *memory, uint32_t worker) {
  mgl_word *word = &memory->pulses[(size_t)worker * MGL_CPU_PULSE_WORDS];
  mgl_store_relaxed(word, mgl_load_relaxed(word) + 1);
}
uint64_t mgl_cpu_memory_pulses(const mgl_cpu_memory *memory);

// KV bytes of one token over all layers.
uint64_t mgl_graph_kv_bytes_per_token(const mgl_graph *graph);

#endif
