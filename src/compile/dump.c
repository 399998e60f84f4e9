// Dumps: what a pass made, as text for people and for tests. One line an op (or an event, a worker,
// a tensor), at most MAX_LINES of them; the same program gives the same text.
#include <inttypes.h>
#include <string.h>

#include "compile/tgraph.h"

enum { MAX_LINES = 400, MAX_SPANS = 6 };

static void print_set(mgl_task_set set, mgl_text *out) {
  mgl_text_append_string(out, "{");
  for (uint32_t i = 0; i < set.span_count && i < MAX_SPANS; i++) {
    mgl_text_format(out, "%s%u", i == 0 ? "" : " ", set.spans[i].first);
    if (set.spans[i].last - set.spans[i].first > 1) {
      mgl_text_format(out, "-%u", set.spans[i].last - 1);
    }
  }
  mgl_text_append_string(out, set.span_count > MAX_SPANS ? " ...}" : "}");
}

static const char *output_name(const mgl_tgraph *tg, uint32_t op) {
  return tg->program->tensors[tg->program->ops[op].output].name;
}

static void begin_op(const mgl_tgraph *tg, uint32_t op, mgl_text *out) {
  mgl_text_format(out, "  %s %s tasks %u-%u:", mgl_op_name(&tg->program->ops[op]),
                  output_name(tg, op), tg->op_first[op], tg->op_first[op + 1] - 1);
}

// How many of `count` lines are printed; says so when it is not all.
static uint32_t lines_of(uint32_t count, mgl_text *out) {
  if (count > MAX_LINES) {
    mgl_text_format(out, "  (the first %d of %u)\n", MAX_LINES, count);
    return MAX_LINES;
  }
  return count;
}

static void dump_partition(const mgl_tgraph *tg, mgl_text *out) {
  mgl_text_format(out, "partition: %u tasks of %u ops, %u attention strides\n", tg->task_count,
                  tg->report.op_count, tg->strides);
  uint32_t count = lines_of(tg->report.op_count, out);
  for (uint32_t op = 0; op < count; op++) {
    uint64_t least = UINT64_MAX;
    uint64_t most = 0;
    for (uint32_t task = tg->op_first[op]; task < tg->op_first[op + 1]; task++) {
      least = tg->tasks[task].cost < least ? tg->tasks[task].cost : least;
      most = tg->tasks[task].cost > most ? tg->tasks[task].cost : most;
    }
    begin_op(tg, op, out);
    mgl_text_format(
        out, " %u units at multiples of %u, %" PRIu64 " to %" PRIu64 " bytes\n",
        mgl_tile_units(tg->program, &tg->program->ops[op], tg->options->tokens, tg->strides),
        mgl_tile_grain(&tg->program->ops[op], tg->options->target), least, most);
  }
}

// Producers of the first task of each op, and of the last where they differ.
static void dump_depend(const mgl_tgraph *tg, mgl_text *out) {
  mgl_text_format(out, "depend: %" PRIu64 " pairs, chain of %u of %u stages\n",
                  tg->report.dependent_pairs, tg->report.chain_length, tg->report.stage_count);
  uint32_t count = lines_of(tg->report.op_count, out);
  for (uint32_t op = 0; op < count; op++) {
    uint32_t first = tg->op_first[op];
    uint32_t last = tg->op_first[op + 1] - 1;
    begin_op(tg, op, out);
    mgl_text_append_string(out, " first after ");
    print_set(tg->producers[first], out);
    if (!mgl_task_set_equal(tg->producers[first], tg->producers[last])) {
      mgl_text_append_string(out, ", last after ");
      print_set(tg->producers[last], out);
    }
    mgl_text_append_string(out, "\n");
  }
}

static void dump_events(const mgl_tgraph *tg, const char *pass, mgl_text *out) {
  mgl_text_format(out, "%s: %u events\n", pass, tg->event_count);
  uint32_t count = lines_of(tg->event_count, out);
  for (uint32_t event = 0; event < count; event++) {
    mgl_text_format(out, "  e%u: ", event);
    print_set(tg->events[event].in, out);
    mgl_text_append_string(out, " -> ");
    print_set(tg->events[event].out, out);
    mgl_text_append_string(out, "\n");
  }
}

static void dump_normalise(const mgl_tgraph *tg, mgl_text *out) {
  mgl_text_format(out, "normalise: %u empty tasks, %u events more\n", tg->empty_count,
                  tg->report.added_events);
  uint32_t count = lines_of(tg->empty_count, out);
  for (uint32_t i = tg->task_count; i < tg->task_count + count; i++) {
    mgl_text_format(out, "  empty task %u: e%u -> e%u\n", i, tg->dependent[i], tg->trigger[i]);
  }
}

static void dump_linearise(const mgl_tgraph *tg, mgl_text *out) {
  mgl_text_format(out, "linearise: %u tasks, %u of them ready\n", tg->task_count + tg->empty_count,
                  tg->ready_count);
  uint32_t count = lines_of(tg->graph_event_count, out);
  for (uint32_t i = 0; i < count; i++) {
    mgl_text_format(out, "  event %u (e%u): %u triggers, positions [%u, %u)\n", i,
                    tg->event_order[i], tg->trigger_count[tg->event_order[i]], tg->event_first[i],
                    tg->event_first[i + 1]);
  }
}

static void dump_label(const mgl_tgraph *tg, mgl_text *out) {
  mgl_text_format(out, "label: %u tasks JIT, %u AOT\n", tg->report.jit_tasks,
                  tg->task_count - tg->report.jit_tasks);
  uint32_t count = lines_of(tg->report.op_count, out);
  for (uint32_t op = 0; op < count; op++) {
    if (tg->op_jit[op] != 0) {
      begin_op(tg, op, out);
      mgl_text_append_string(out, " JIT\n");
    }
  }
}

static void dump_place(const mgl_tgraph *tg, mgl_text *out) {
  mgl_text_format(out, "place: %" PRIu64 " bytes, %" PRIu64 " at most on one of %u workers\n",
                  tg->report.worker_bytes_total, tg->report.worker_bytes_max, tg->options->workers);
  uint32_t count = lines_of(tg->options->workers, out);
  for (uint32_t worker = 0; worker < count; worker++) {
    uint64_t bytes = 0;
    uint32_t tasks = 0;
    for (uint32_t task = 0; task < tg->task_count; task++) {
      if (tg->worker[task] == worker) {
        bytes += tg->tasks[task].cost;
        tasks++;
      }
    }
    mgl_text_format(out, "  worker %u: %u tasks, %" PRIu64 " bytes\n", worker, tasks, bytes);
  }
}

static void dump_lay_out(const mgl_tgraph *tg, mgl_text *out) {
  const mgl_dim_values dims = mgl_compile_dims(tg->options);
  mgl_text_format(out, "lay_out: %" PRIu64 " bytes\n", tg->activation_bytes);
  uint32_t left = MAX_LINES;
  for (uint32_t i = 0; i < tg->program->tensor_count && left > 0; i++) {
    const mgl_tensor *tensor = &tg->program->tensors[i];
    if (tensor->placement == MGL_PLACE_ACTIVATION) {
      uint64_t bytes = mgl_tensor_elements(tensor, &dims) * mgl_dtype_bytes(tensor->dtype);
      mgl_text_format(out, "  %s: [%" PRIu64 ", %" PRIu64 ")\n", tensor->name, tg->offsets[i],
                      tg->offsets[i] + bytes);
      left--;
    }
  }
}

void mgl_dump_pass(const mgl_tgraph *tg, const char *pass, mgl_text *out) {
  if (strcmp(pass, "partition") == 0) {
    dump_partition(tg, out);
  } else if (strcmp(pass, "depend") == 0) {
    dump_depend(tg, out);
  } else if (strcmp(pass, "fuse_events") == 0 || strcmp(pass, "prune") == 0 ||
             strcmp(pass, "fuse_pruned") == 0 || strcmp(pass, "widen") == 0) {
    dump_events(tg, pass, out);
  } else if (strcmp(pass, "normalise") == 0) {
    dump_normalise(tg, out);
  } else if (strcmp(pass, "linearise") == 0) {
    dump_linearise(tg, out);
  } else if (strcmp(pass, "label") == 0) {
    dump_label(tg, out);
  } else if (strcmp(pass, "place") == 0) {
    dump_place(tg, out);
  } else if (strcmp(pass, "lay_out") == 0) {
    dump_lay_out(tg, out);
  } else {
    mgl_text_format(out, "emit: %u tasks, %u events, %" PRIu64 " bytes of descriptors\n",
                    tg->task_count + tg->empty_count, tg->graph_event_count,
                    tg->report.descriptor_bytes);
  }
}
