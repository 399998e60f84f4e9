// The compiler: tensor program to task graph. compile.c is the visible list of passes, one file per
// pass.
//
// Each pass file states what it requires and ensures; its result can be dumped by name; the
// verifier checks the contracts between passes in debug builds and in tests. A compiled task graph
// is plain data (twin/task.h) for one token count and one number of workers.
#ifndef MGL_COMPILE_COMPILE_H
#define MGL_COMPILE_COMPILE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/limits.h"
#include "base/status.h"
#include "base/text.h"
#include "graph/graph.h"
#include "twin/task.h"

enum {
  MGL_COMPILE_MAX_WORKERS = 4096,
  MGL_COMPILE_MAX_STRIDES = 64,              // attention tasks per KV head
  MGL_COMPILE_MAX_TASKS = 1 << 24,           // of one task graph, empty ones included
  MGL_COMPILE_MAX_ROW_ELEMENTS = 1 << 25,    // of a tensor: all dims but the first
  MGL_TASK_GRAPH_JSON_MAX_BYTES = 128 << 20  // an 8B model at 132 workers takes 18 MiB
};

typedef enum mgl_launch {
  MGL_LAUNCH_AUTO,  // the label pass decides
  MGL_LAUNCH_AOT,
  MGL_LAUNCH_JIT,
} mgl_launch;

// Overrides for all ops of one kind ("gate_up") or for one op by its output's name ("3.gate_up").
typedef struct mgl_compile_override {
  const char *op;
  // Tasks along tile units (x), attention strides (y; 1 for other ops), 1 (z: reductions are not
  // split); all 0: no partition override. Where units or strides grow with the token count, x and y
  // are checked against the largest graph and cut to what this one has, so that one override serves
  // all graphs of a model.
  uint32_t grid[3];
  mgl_launch launch;  // MGL_LAUNCH_AUTO: no launch override
} mgl_compile_override;

typedef struct mgl_compile_options {
  // CPU (0) or CUDA: grain (mgl_tile_grain), cuts of embed and rope_angles, and
  // attention strides, which on CUDA are workers / KV heads even for one token. See task/tile.h.
  mgl_target target;
  uint32_t tokens;  // 1 to MGL_MAX_ITERATION_TOKENS: the graph serves iterations of up to that many
  uint32_t logit_rows;  // most of them that need logits, 1 to tokens; 0: all
  uint32_t workers;     // 1 to MGL_COMPILE_MAX_WORKERS
  mgl_launch launch;    // for everything that no override names
  const mgl_compile_override *overrides;
  uint32_t override_count;
  bool coarse;      // one event per pair of ops instead of exact dependencies (an ablation)
  bool exact;       // no task waits for more than its regions ask for (see widen.c)
  bool verify;      // check each pass's contract, and the result with mgl_task_graph_verify
  float imbalance;  // label: longest over mean context of the sequences of an iteration; 0: 4
  // Where activations lie, of a piece of a program (compile/split.h), and the size of their block;
  // NULL: the compiler decides.
  const uint64_t *offsets;  // [tensor_count]
  uint64_t offset_bytes;
  const char *dump;  // name of a pass whose result goes to dump_text, MGL_ALL_PASSES: of all of
                     // them, one behind the other; NULL: none
  mgl_text *dump_text;
} mgl_compile_options;

#define MGL_ALL_PASSES "all"

// The report says what each pass did.
typedef struct mgl_compile_report {
  uint32_t op_count, stage_count, chain_length;  // chain: longest path of dependent stages
  uint32_t task_count;                           // of ops, without empty ones
  uint64_t dependent_pairs;  // events before fusion: one for every pair of tasks that overlap
  uint32_t fused_events;     // events after fusion
  uint64_t pruned_pairs;   // of these: not implied by others (widened ops count all they wait for)
  uint32_t pruned_events;  // events after fusion of what pruning left
  uint32_t widened_ops;    // that wait for all producers of all their tasks
  uint32_t final_events;   // that normalisation began with
  uint32_t empty_tasks, added_events;  // by normalisation
  uint32_t jit_tasks;
  uint64_t descriptor_bytes;                      // tasks, events and AOT lists
  uint64_t weight_bytes;                          // read per iteration
  uint64_t worker_bytes_max, worker_bytes_total;  // placement: bytes of AOT tasks per worker
  uint64_t activation_bytes;                      // after layout
  double ms;                                      // compile time
} mgl_compile_report;

// Compiles an (already op-fused) program. *report may be NULL.
mgl_status mgl_compile(const mgl_graph *program, const mgl_compile_options *options,
                       mgl_task_graph **out, mgl_compile_report *report, mgl_error *err);

// Pass 1 on its own: patterns of ops become one (graph/op.def lists the fused ops). The result
// names its activations after the op that it replaces last; weights, inputs, KV tensors and outputs
// keep their names.
mgl_status mgl_fuse_ops(const mgl_graph *program, mgl_graph **out, mgl_error *err);
// The same with what the tasks of a GPU have besides: ops of mixtures, as far as their experts fit,
// and a linear with the all_reduce behind it, which becomes a linear_add over the ranks.
mgl_status mgl_fuse_ops_for_gpu(const mgl_graph *program, mgl_graph **out, mgl_error *err);

// Fuses for the GPU: the result has the ops of mgl_fuse_ops, before them next_plan (it waits for
// nothing and is the program's first op; result "next_plan" i32[1]), behind them sample (inputs:
// logits, next_plan; result "sampled" i32[L], an output; logits stays an output if it was one).
// Inputs of all ops are as in graph/op.def, in that order.
//
// Refuses with MGL_ERR_UNSUPPORTED what the GPU's kernels do not have: any op besides embed,
// rope_angles, qkv_proj, attend, linear_add, gate_up, with one embed and one logits; a matrix, KV
// cache or activation between linears that is not bf16; a head dim that is not a multiple of 32 or
// above MGL_FUSE_CUDA_MAX_HEAD_DIM; more than MGL_FUSE_CUDA_MAX_GROUP query heads per KV head;
// features (N) or reduced features (K) of a linear that are not multiples of 8.
enum {
  MGL_FUSE_CUDA_HEAD_DIM_STEP = 32,
  MGL_FUSE_CUDA_MAX_HEAD_DIM = 128,
  MGL_FUSE_CUDA_MAX_GROUP = 8,
  MGL_FUSE_CUDA_FEATURE_STEP = 8,
  MGL_FUSE_CUDA_MAX_EXPERTS = 512,  // of a layer, and of a token
  MGL_FUSE_CUDA_MAX_SLOTS = 32,
};
mgl_status mgl_fuse_ops_cuda(const mgl_graph *program, mgl_graph **out, mgl_error *err);

// mgl_fuse_ops or mgl_fuse_ops_cuda.
mgl_status mgl_fuse_ops_for(mgl_target target, const mgl_graph *program, mgl_graph **out,
                            mgl_error *err);

// Names of the passes in order, NULL behind the last one; for --dump.
const char *mgl_pass_name(uint32_t index);

// task_graph.json in the schema of MPK (all_tasks, all_events, first_tasks), with additional
// keys that let it be loaded and verified: "program" (text form), "tokens", "workers", and per
// task "op", "begin", "end", "flags", "worker". Loading verifies everything that running relies on.
mgl_status mgl_task_graph_write_json(const mgl_graph *program, const mgl_task_graph *graph,
                                     mgl_text *out, mgl_error *err);
mgl_status mgl_task_graph_read_json(const char *text, size_t bytes, const char *where,
                                    mgl_graph **out_program, mgl_task_graph **out_graph,
                                    mgl_error *err);

// Checks a task graph against its program: everything that the protocol and the memory layout rely
// on (at most one dependent and trigger event, consecutive tasks, topological order, counts, AOT
// lists, liveness bounds of twin/protocol.h, and that every conflicting pair of accesses is
// ordered).
mgl_status mgl_task_graph_verify(const mgl_graph *program, const mgl_task_graph *graph,
                                 mgl_error *err);

#endif
