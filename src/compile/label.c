// Pass 7, label launch: which ops are launched just in time (MPK, 5.2).
//
// Requires: depend and prune. Ensures: op_jit[] for every op; all tasks of an op share the mode.
//
// Attention over several tokens takes a time that depends on data, and so does what follows it
// until a global barrier: an event for which all tasks of that attention must be done. These ops
// are candidates. A candidate becomes JIT where the imbalance that it is modelled to have, and that
// tickets could even out, costs more than two hops. With at most one task a worker, which the
// default partition makes, nothing can be evened out: the longest task takes as long wherever it
// runs. So default graphs are AOT throughout. A finer partition of attention (--partition
// attend=x,y,1) may be labelled JIT; where that was measured, it took as long as the same cut AOT,
// and both longer than the default (docs/log/021). For a GPU nothing is labelled: a graph with a
// JIT task cannot carry words of activations there.
//
// Ops that read other ranks' parts are AOT always. Ops of experts are JIT where they ask for it.
//
// options->launch decides for all ops, an override for those that it names; the last one counts.
#include <math.h>
#include <string.h>

#include "compile/tgraph.h"
#include "graph/balance.h"

// The model's constants, in one place; they count for the CPU only. The hop is between the 1.15 us
// of a dependency and the 1.6 us of a queue that MPK has on GPUs, which is far more than a ticket
// costs, so that what is labelled JIT has much to gain. Memory: a core's share is between 5 and 20
// GB/s.
static const double hop_ns = 1300;
static const double extra_hops = 2;
static const double ns_per_byte = 0.05;
static const double default_imbalance = 4;  // longest over mean context of a batch

// Nanoseconds that tickets are modelled to save over a static placement of this op.
static double modelled_gain_ns(const mgl_tgraph *tg, uint32_t op_idx) {
  uint32_t first = tg->op_first[op_idx];
  uint32_t tasks = tg->op_first[op_idx + 1] - first;
  if (tasks <= tg->options->workers || tg->strides == 1 || tg->options->target == MGL_TARGET_CUDA) {
    return 0;  // one task a worker; or all take as long: every one has all sequences, or (CUDA)
               // chunks of all of them
  }
  double total = 0;
  for (uint32_t i = 0; i < tasks; i++) {
    total += (double)tg->tasks[first + i].cost;
  }
  double mean = total / tasks;
  double ratio = tg->options->imbalance > 0 ? (double)tg->options->imbalance : default_imbalance;
  double sequences = ceil((double)tg->options->tokens / tg->strides);  // of one task
  double longest = (sequences - 1 + ratio) / sequences;                // in means
  double per_worker = ceil((double)tasks / tg->options->workers);
  double fixed = per_worker - 1 + longest;
  double even = (double)tasks / tg->options->workers;
  double dynamic = longest > even ? longest : even;
  return (fixed - dynamic) * mean * ns_per_byte;
}

// True if some task of `op` depends on a task of `source` without waiting for all of them.
static bool follows_without_barrier(const mgl_tgraph *tg, uint32_t op, uint32_t source) {
  uint32_t first = tg->op_first[source];
  uint32_t last = tg->op_first[source + 1];
  for (uint32_t task = tg->op_first[op]; task < tg->op_first[op + 1]; task++) {
    mgl_task_set before = tg->ancestors[task];
    if (task > tg->op_first[op] && before.spans == tg->ancestors[task - 1].spans) {
      continue;
    }
    bool some = false;
    for (uint32_t i = 0; i < before.span_count; i++) {
      some |= before.spans[i].first < last && before.spans[i].last > first;
    }
    if (some && !mgl_task_set_contains(before, first, last)) {
      return true;
    }
  }
  return false;
}

// Labels what follows the JIT op `source` until a barrier. The walk ends where all that is left
// comes after all of `source` anyway.
static void label_followers(mgl_tgraph *tg, uint32_t source) {
  for (uint32_t op = source + 1;
       op < tg->program->op_count && tg->settled[op] < tg->op_first[source + 1]; op++) {
    if (follows_without_barrier(tg, op, source)) {
      tg->op_jit[op] = 1;
    }
  }
}

static void apply(mgl_tgraph *tg, uint32_t op, mgl_launch launch) {
  if (launch != MGL_LAUNCH_AUTO) {
    tg->op_jit[op] = launch == MGL_LAUNCH_JIT;
  }
}

static void apply_overrides(mgl_tgraph *tg) {
  const mgl_compile_options *options = tg->options;
  for (uint32_t op = 0; op < tg->program->op_count; op++) {
    const mgl_op *o = &tg->program->ops[op];
    apply(tg, op, options->launch);
    for (uint32_t i = 0; i < options->override_count; i++) {
      const char *name = options->overrides[i].op;
      if (strcmp(name, mgl_op_info_of(o->kind)->name) == 0 ||
          strcmp(name, tg->program->tensors[o->output].name) == 0) {
        apply(tg, op, options->overrides[i].launch);
      }
    }
    if (mgl_op_kind_is_exchange(o->kind)) {
      tg->op_jit[op] = 0;  // a trigger of another rank can wake a worker, but queue nothing here
    }
    if (tg->op_jit[op] != 0) {
      tg->report.jit_tasks += tg->op_first[op + 1] - tg->op_first[op];
    }
  }
}

// Ops of experts whose program asks for it (graph/balance.h). All their tasks wait for all routes,
// and whoever reads their results waits for all of them, so no label spreads.
static void label_experts(mgl_tgraph *tg) {
  for (uint32_t op = 0; op < tg->program->op_count; op++) {
    const mgl_op *o = &tg->program->ops[op];
    tg->op_jit[op] |= mgl_op_info_of(o->kind)->unit == MGL_UNIT_EXPERT &&
                      mgl_op_balance(o) == MGL_BALANCE_DYNAMIC;
  }
}

mgl_status mgl_pass_label(mgl_tgraph *tg, mgl_error *err) {
  tg->op_jit = mgl_arena_alloc_zeroed(&tg->arena, tg->program->op_count, 1);
  if (tg->op_jit == NULL) {
    return mgl_out_of_memory(err);
  }
  for (uint32_t op = 0; op < tg->program->op_count; op++) {
    if (mgl_tile_is_attention(&tg->program->ops[op]) && tg->options->tokens > 1 &&
        modelled_gain_ns(tg, op) > extra_hops * hop_ns) {
      tg->op_jit[op] = 1;
      label_followers(tg, op);
    }
  }
  label_experts(tg);
  apply_overrides(tg);
  return MGL_OK;
}
