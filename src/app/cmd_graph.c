// megalith graph: looks into a task_graph.json, which is too long to read.
//
// The file is loaded and verified as a whole; each view prints what one question needs: a summary,
// one task and the chain that leads to it, the critical path, the load of workers, a picture.
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "app/commands.h"
#include "app/graph_svg.h"
#include "app/human.h"
#include "app/output.h"
#include "app/output_file.h"
#include "base/alloc.h"
#include "base/file.h"
#include "compile/compile.h"
#include "task/analyse.h"

enum {
  BAR_WIDTH = 40,
  NAMES_MAX = 6,  // ops named after one event, before "and N more"
  DEFAULT_HOP_BYTES = 64 << 10,
};

typedef struct view {
  const mgl_arguments *arguments;
  mgl_graph *program;
  mgl_task_graph *graph;
  mgl_analysis *analysis;
} view;

static mgl_status load(view *v, mgl_error *err) {
  const char *path = v->arguments->positional;
  char *text = NULL;
  size_t bytes = 0;
  if (path == NULL) {
    return mgl_error_set(err, MGL_ERR_ARGUMENT,
                         "expected a FILE, as megalith compile -o writes it: see megalith graph "
                         "--help");
  }
  MGL_TRY(mgl_file_read(path, MGL_TASK_GRAPH_JSON_MAX_BYTES, &text, &bytes, err));
  mgl_status status = mgl_task_graph_read_json(text, bytes, path, &v->program, &v->graph, err);
  mgl_free(text);
  MGL_TRY(status);
  uint64_t hop_bytes = mgl_arguments_u64(v->arguments, "hop-bytes", DEFAULT_HOP_BYTES);
  return mgl_analysis_create(v->program, v->graph, hop_bytes, &v->analysis, err);
}

// --- pieces --------------------------------------------------------------------------------------

static void append_size(mgl_text *out, uint64_t bytes) {
  char size[MGL_HUMAN_BYTES];
  mgl_human_size(bytes, size);
  mgl_text_append_string(out, size);
}

static void append_padded_size(mgl_text *out, uint64_t bytes) {
  char size[MGL_HUMAN_BYTES];
  mgl_human_size(bytes, size);
  mgl_text_format(out, " %10s", size);
}

static const char *launch_name(const mgl_task *task) {
  if (task->op == MGL_NO_OP) {
    return "-";
  }
  return (task->flags & MGL_TASK_JIT) != 0 ? "JIT" : "AOT";
}

static uint64_t worker_cost_max(const view *v) {
  uint64_t most = 0;
  for (uint32_t w = 0; w < v->graph->worker_count; w++) {
    uint64_t cost = v->analysis->workers[w].cost;
    most = cost > most ? cost : most;
  }
  return most;
}

static uint64_t worker_cost_total(const view *v) {
  uint64_t sum = 0;
  for (uint32_t w = 0; w < v->graph->worker_count; w++) {
    sum += v->analysis->workers[w].cost;
  }
  return sum;
}

static uint64_t path_cost(const view *v) {
  return v->analysis->last == MGL_NO_TASK ? 0 : v->analysis->finish[v->analysis->last];
}

// --- summary -------------------------------------------------------------------------------------

static void append_row(mgl_text *out, const char *name, const mgl_op_tasks *row,
                       uint64_t total_cost) {
  char units[32];
  const char *launch = row->jit_count == 0                 ? "AOT"
                       : row->jit_count == row->task_count ? "JIT"
                                                           : "both";
  (void)snprintf(units, sizeof units,
                 row->units_min == row->units_max ? "%" PRIu32 : "%" PRIu32 "-%" PRIu32,
                 row->units_min, row->units_max);
  mgl_text_format(out, "%-22.60s %5" PRIu32 " %8" PRIu32 "  %-6s %11s", name, row->op_count,
                  row->task_count, launch, units);
  append_padded_size(out, row->cost);
  append_padded_size(out, row->cost_max);
  mgl_text_format(out, " %5.1f%%\n",
                  total_cost == 0 ? 0 : 100 * (double)row->cost / (double)total_cost);
}

static void append_row_heading(mgl_text *out, const char *what) {
  mgl_text_format(out, "\n%-22s %5s %8s  %-6s %11s %10s %10s %6s\n", what, "ops", "tasks", "launch",
                  "units/task", "bytes", "max/task", "share");
}

// Where the name behind "12." begins; NULL for an op of no layer.
static const char *name_in_layer(const char *name) {
  size_t digits = strspn(name, "0123456789");
  return digits > 0 && name[digits] == '.' ? name + digits + 1 : NULL;
}

static const char *op_name(const view *v, size_t op) {
  return v->program->tensors[v->program->ops[op].output].name;
}

// One op, for sorting those together that are the same but for their layer.
typedef struct layer_op {
  const char *name;  // behind the layer's number; NULL: in no layer, or all are to be listed
  mgl_op_kind kind;
  uint32_t index;
} layer_op;

static bool is_same_in_layer(const layer_op *a, const layer_op *b) {
  return a->name != NULL && b->name != NULL && strcmp(a->name, b->name) == 0 && a->kind == b->kind;
}

static int by_name_in_layer(const void *left, const void *right) {
  const layer_op *a = left;
  const layer_op *b = right;
  int order = strcmp(a->name == NULL ? "" : a->name, b->name == NULL ? "" : b->name);
  if (order == 0 && a->kind != b->kind) {
    order = a->kind < b->kind ? -1 : 1;
  }
  return order != 0 ? order : (a->index > b->index) - (a->index < b->index);
}

static void merge_row(mgl_op_tasks *into, const mgl_op_tasks *row) {
  into->op_count += row->op_count;
  into->task_count += row->task_count;
  into->jit_count += row->jit_count;
  into->units_min = row->units_min < into->units_min ? row->units_min : into->units_min;
  into->units_max = row->units_max > into->units_max ? row->units_max : into->units_max;
  into->cost_max = row->cost_max > into->cost_max ? row->cost_max : into->cost_max;
  into->cost += row->cost;
}

// Adds up the ops that differ in their layer only, in the row of the first; the others' rows become
// empty.
static void merge_layers(const view *v, layer_op *sorted, mgl_op_tasks *rows) {
  size_t count = v->program->op_count;
  bool lists_all = mgl_arguments_has(v->arguments, "ops");
  for (size_t i = 0; i < count; i++) {
    sorted[i] = (layer_op){.name = lists_all ? NULL : name_in_layer(op_name(v, i)),
                           .kind = v->program->ops[i].kind,
                           .index = (uint32_t)i};
    rows[i] = v->analysis->ops[i];
  }
  qsort(sorted, count, sizeof *sorted, by_name_in_layer);
  for (size_t i = 0, first = 0; i < count; i++) {
    if (i > first && is_same_in_layer(&sorted[first], &sorted[i])) {
      merge_row(&rows[sorted[first].index], &rows[sorted[i].index]);
      rows[sorted[i].index] = (mgl_op_tasks){0};
    } else {
      first = i;
    }
  }
}

// All layers have the same ops, so these become one row, at the place of the first: "*.gate_up".
static mgl_status append_ops(const view *v, mgl_text *out, mgl_error *err) {
  size_t count = v->program->op_count;
  layer_op *sorted = mgl_alloc_zeroed(count, sizeof *sorted);
  mgl_op_tasks *rows = mgl_alloc_zeroed(count, sizeof *rows);
  if (sorted == NULL || rows == NULL) {
    mgl_free(sorted);
    mgl_free(rows);
    return mgl_error_set(err, MGL_ERR_MEMORY, "out of memory for %zu ops", count);
  }
  merge_layers(v, sorted, rows);
  append_row_heading(out, "op");
  for (size_t i = 0; i < count; i++) {
    char shown[MGL_GRAPH_MAX_NAME_BYTES + 2];
    bool is_merged = rows[i].op_count > 1;
    const char *name = op_name(v, i);
    (void)snprintf(shown, sizeof shown, "%s%s", is_merged ? "*." : "",
                   is_merged ? name_in_layer(name) : name);
    if (rows[i].task_count > 0) {
      append_row(out, shown, &rows[i], v->analysis->cost);
    }
  }
  mgl_free(sorted);
  mgl_free(rows);
  return MGL_OK;
}

static mgl_status append_summary(const view *v, mgl_text *out, mgl_error *err) {
  const mgl_analysis *a = v->analysis;
  const mgl_task_graph *g = v->graph;
  uint32_t workers = g->worker_count;
  mgl_text_format(
      out, "program     %s: %zu ops, %" PRIu32 " token%s an iteration, %" PRIu32 " worker%s%s\n",
      v->program->name, v->program->op_count, g->tokens, g->tokens == 1 ? "" : "s", workers,
      workers == 1 ? "" : "s", g->target == MGL_TARGET_CUDA ? ", for cuda" : "");
  mgl_text_format(out,
                  "tasks       %" PRIu32 " (%" PRIu32 " AOT, %" PRIu32 " JIT, %" PRIu32
                  " empty), %" PRIu32 " ready at once, longest chain %" PRIu32
                  "\nevents      %" PRIu32,
                  g->task_count, a->aot_count, a->jit_count, a->empty_count, g->ready_count,
                  a->depth_count, g->event_count);
  const char *separator = " (";
  for (uint32_t type = 0; type < MGL_EVENT_TYPE_COUNT; type++) {
    if (a->events_by_type[type] > 0) {
      mgl_text_format(out, "%s%" PRIu32 " %s", separator, a->events_by_type[type],
                      mgl_event_type_name((mgl_event_type)type));
      separator = ", ";
    }
  }
  mgl_text_append_string(out, ")\nbytes       ");
  append_size(out, a->cost);
  mgl_text_append_string(out, " moved by tasks, ");
  append_size(out, g->activation_bytes);
  mgl_text_append_string(out, " of activations\nper worker  ");
  append_size(out, worker_cost_max(v));
  mgl_text_append_string(out, " at most of AOT tasks, ");
  append_size(out, worker_cost_total(v) / workers);
  mgl_text_append_string(out, " on average\npath        ");
  append_size(out, path_cost(v));
  mgl_text_format(out, " on the most expensive chain, %" PRIu32 " tasks (a hop is ",
                  mgl_analysis_chain_length(a, a->last));
  append_size(out, a->hop_bytes);
  mgl_text_append_string(out, ")\n");
  append_row_heading(out, "kind of op");
  for (uint32_t kind = 0; kind < MGL_OP_COUNT; kind++) {
    if (a->kinds[kind].task_count > 0) {
      append_row(out, mgl_op_info_of((mgl_op_kind)kind)->name, &a->kinds[kind], a->cost);
    }
  }
  return append_ops(v, out, err);
}

// --- the summary as JSON -------------------------------------------------------------------------

static void append_json_row(mgl_text *out, const mgl_op_tasks *row) {
  mgl_text_format(
      out,
      "\"tasks\": %" PRIu32 ", \"jit\": %" PRIu32 ", \"units_min\": %" PRIu32
      ", \"units_max\": %" PRIu32 ", \"bytes\": %" PRIu64 ", \"task_bytes_max\": %" PRIu32 "}",
      row->task_count, row->jit_count, row->units_min, row->units_max, row->cost, row->cost_max);
}

static void append_json(const view *v, mgl_text *out) {
  const mgl_analysis *a = v->analysis;
  const mgl_task_graph *g = v->graph;
  mgl_text_append_string(out, "{\"program\": ");
  mgl_json_append_string(out, v->program->name, strlen(v->program->name));
  mgl_text_format(
      out,
      ", \"target\": \"%s\", \"tokens\": %" PRIu32 ", \"worker_count\": %" PRIu32
      ", \"tasks\": %" PRIu32 ", \"aot\": %" PRIu32 ", \"jit\": %" PRIu32 ", \"empty\": %" PRIu32
      ", \"ready\": %" PRIu32 ", \"chain\": %" PRIu32 ", \"events\": %" PRIu32
      ", \"bytes\": %" PRIu64 ", \"activation_bytes\": %" PRIu64 ", \"hop_bytes\": %" PRIu64
      ", \"path_bytes\": %" PRIu64 ", \"path_tasks\": %" PRIu32 ", \"events_by_type\": {",
      mgl_target_name(g->target), g->tokens, g->worker_count, g->task_count, a->aot_count,
      a->jit_count, a->empty_count, g->ready_count, a->depth_count, g->event_count, a->cost,
      g->activation_bytes, a->hop_bytes, path_cost(v), mgl_analysis_chain_length(a, a->last));
  for (uint32_t type = 0; type < MGL_EVENT_TYPE_COUNT; type++) {
    mgl_text_format(out, "%s\"%s\": %" PRIu32, type == 0 ? "" : ", ",
                    mgl_event_type_name((mgl_event_type)type), a->events_by_type[type]);
  }
  mgl_text_append_string(out, "}, \"kinds\": [");
  const char *separator = "";
  for (uint32_t kind = 0; kind < MGL_OP_COUNT; kind++) {
    if (a->kinds[kind].task_count > 0) {
      mgl_text_format(out, "%s{\"kind\": \"%s\", \"ops\": %" PRIu32 ", ", separator,
                      mgl_op_info_of((mgl_op_kind)kind)->name, a->kinds[kind].op_count);
      append_json_row(out, &a->kinds[kind]);
      separator = ", ";
    }
  }
  mgl_text_append_string(out, "], \"ops\": [");
  for (size_t i = 0; i < v->program->op_count; i++) {
    mgl_text_append_string(out, i == 0 ? "{\"op\": " : ", {\"op\": ");
    mgl_json_append_string(out, op_name(v, i), strlen(op_name(v, i)));
    mgl_text_format(out, ", \"kind\": \"%s\", ", mgl_op_info_of(v->program->ops[i].kind)->name);
    append_json_row(out, &a->ops[i]);
  }
  mgl_text_append_string(out, "], \"workers\": [");
  for (uint32_t w = 0; w < g->worker_count; w++) {
    mgl_text_format(out, "%s{\"tasks\": %" PRIu32 ", \"bytes\": %" PRIu64 "}", w == 0 ? "" : ", ",
                    a->workers[w].task_count, a->workers[w].cost);
  }
  mgl_text_append_string(out, "]}\n");
}

// --- one task, and chains ------------------------------------------------------------------------

// "4 x 0.qkv, 1 x 0.attend": the tasks of a list by op, in order. Task i is list[i], or first + i
// when list is NULL.
static void append_task_ops(const view *v, const uint32_t *list, uint32_t first, uint32_t count,
                            mgl_text *out) {
  uint32_t names = 0;
  for (uint32_t i = 0; i < count;) {
    uint32_t from = i;
    uint32_t op = v->graph->tasks[list == NULL ? first + i : list[i]].op;
    while (i < count && v->graph->tasks[list == NULL ? first + i : list[i]].op == op) {
      i++;
    }
    if (names++ == NAMES_MAX) {
      mgl_text_format(out, ", and %" PRIu32 " more tasks", count - from);
      return;
    }
    mgl_text_format(out, "%s%" PRIu32 " x %s", from == 0 ? "" : ", ", i - from,
                    op == MGL_NO_OP ? "empty" : op_name(v, op));
  }
}

static void append_event(const view *v, uint32_t index, bool is_trigger, mgl_text *out) {
  const mgl_analysis *a = v->analysis;
  const char *label = is_trigger ? "triggers" : "waits for";
  if (index == MGL_NO_EVENT) {
    mgl_text_format(out, "%-11s %s\n", label,
                    is_trigger ? "nothing" : "nothing: ready when the iteration starts");
    return;
  }
  const mgl_event *event = &v->graph->events[index];
  mgl_text_format(out, "%-11s event %" PRIu32 " (%s, %" PRIu32 " triggers)", label, index,
                  mgl_event_type_name((mgl_event_type)event->type), event->trigger_count);
  uint32_t start = a->producer_start[index];
  uint32_t count = a->producer_start[index + 1] - start;
  if (is_trigger) {
    start = event->first_task;
    count = event->last_task > start ? event->last_task - start : 0;
  }
  if (count == 0) {
    mgl_text_append_string(out, is_trigger ? ", for which no task waits\n" : "\n");
    return;
  }
  mgl_text_append_string(out, is_trigger ? ", for which wait: " : ", triggered by: ");
  append_task_ops(v, is_trigger ? NULL : a->producers + start, start, count, out);
  mgl_text_append_string(out, "\n");
}

static mgl_status append_chain(const view *v, uint32_t last, mgl_text *out, mgl_error *err) {
  uint32_t count = mgl_analysis_chain_length(v->analysis, last);
  uint32_t *chain = mgl_alloc(count * sizeof *chain);
  if (chain == NULL) {
    return mgl_error_set(err, MGL_ERR_MEMORY, "out of memory for a chain of %" PRIu32 " tasks",
                         count);
  }
  mgl_analysis_chain(v->analysis, last, chain);
  mgl_text_format(out, "%8s %-22s %-14s %15s %-7s %8s %10s %10s\n", "task", "op", "kind", "units",
                  "worker", "event", "bytes", "sum");
  for (uint32_t i = 0; i < count; i++) {
    const mgl_task *task = &v->graph->tasks[chain[i]];
    char units[32];
    char worker[16] = "-";
    char event[16] = "-";
    (void)snprintf(units, sizeof units, "[%" PRIu32 ", %" PRIu32 ")", task->begin, task->end);
    if (task->op != MGL_NO_OP) {
      (void)snprintf(worker, sizeof worker, "w%u", task->worker);
    }
    if (task->dependent_event != MGL_NO_EVENT) {
      (void)snprintf(event, sizeof event, "%" PRIu32, task->dependent_event);
    }
    mgl_text_format(out, "%8" PRIu32 " %-22.60s %-14s %15s %-7s %8s", chain[i],
                    mgl_task_op_name(v->program, task), mgl_task_kind_name(task), units,
                    (task->flags & MGL_TASK_JIT) != 0 ? "JIT" : worker, event);
    append_padded_size(out, task->cost);
    append_padded_size(out, v->analysis->finish[chain[i]]);
    mgl_text_append_string(out, "\n");
  }
  mgl_free(chain);
  return MGL_OK;
}

static mgl_status append_task(const view *v, mgl_text *out, mgl_error *err) {
  uint64_t index = mgl_arguments_u64(v->arguments, "task", 0);
  if (index >= v->graph->task_count) {
    return mgl_error_set(err, MGL_ERR_ARGUMENT, "--task: expected 0 to %" PRIu32 ", found %" PRIu64,
                         v->graph->task_count - 1, index);
  }
  const mgl_task *task = &v->graph->tasks[index];
  mgl_text_format(out, "task        %" PRIu64 ": %s (%s)\n", index,
                  mgl_task_op_name(v->program, task), mgl_task_kind_name(task));
  if (task->op != MGL_NO_OP) {
    mgl_text_format(out, "tile        units [%" PRIu32 ", %" PRIu32 "), ", task->begin, task->end);
    append_size(out, task->cost);
    mgl_text_format(out, "\nlaunch      %s", launch_name(task));
    if (task->worker != MGL_NO_WORKER) {
      mgl_text_format(out, " on worker %u", task->worker);
    }
    mgl_text_format(out, ", variant %u\n", task->variant);
  }
  append_event(v, task->dependent_event, false, out);
  append_event(v, task->trigger_event, true, out);
  mgl_text_append_string(out, "\nmost expensive chain to it:\n");
  return append_chain(v, (uint32_t)index, out, err);
}

static mgl_status append_path(const view *v, mgl_text *out, mgl_error *err) {
  const mgl_analysis *a = v->analysis;
  uint32_t hops = 0;
  uint64_t cost = path_cost(v);
  for (uint32_t t = a->last; t != MGL_NO_TASK; t = a->before[t]) {
    const mgl_task *task = &v->graph->tasks[t];
    hops += task->op != MGL_NO_OP && mgl_task_waits(v->graph, task);
  }
  mgl_text_append_string(out, "critical path: ");
  append_size(out, cost);
  mgl_text_format(out, ", of which %" PRIu32 " hops of ", hops);
  append_size(out, a->hop_bytes);
  mgl_text_append_string(out, "; all tasks over all workers: ");
  append_size(out, a->cost / v->graph->worker_count);
  mgl_text_append_string(out, "\n");
  return append_chain(v, a->last, out, err);
}

// --- workers -------------------------------------------------------------------------------------

static void append_workers(const view *v, mgl_text *out) {
  uint64_t most = worker_cost_max(v);
  double mean = (double)worker_cost_total(v) / v->graph->worker_count;
  mgl_text_append_string(out, "AOT bytes per worker: ");
  append_size(out, most);
  mgl_text_append_string(out, " at most, ");
  append_size(out, (uint64_t)mean);
  mgl_text_format(out, " on average, max/mean %.3f", mean > 0 ? (double)most / mean : 1);
  if (v->analysis->jit_count > 0) {
    mgl_text_append_string(out, "; ");
    append_size(out, v->analysis->cost - worker_cost_total(v));
    mgl_text_format(out, " in %" PRIu32 " JIT tasks go where there is time",
                    v->analysis->jit_count);
  }
  mgl_text_format(out, "\n%8s %8s %10s\n", "worker", "tasks", "bytes");
  for (uint32_t w = 0; w < v->graph->worker_count; w++) {
    const mgl_worker_load *load = &v->analysis->workers[w];
    int bar = most == 0 ? 0 : (int)(BAR_WIDTH * (double)load->cost / (double)most + 0.5);
    mgl_text_format(out, "%8" PRIu32 " %8" PRIu32, w, load->task_count);
    append_padded_size(out, load->cost);
    mgl_text_append_string(out, "  ");
    for (int i = 0; i < bar; i++) {
      mgl_text_append(out, "#", 1);
    }
    mgl_text_append_string(out, "\n");
  }
}

// --- picture -------------------------------------------------------------------------------------

static mgl_status save_picture(const view *v, mgl_text *out, mgl_error *err) {
  const char *path = mgl_arguments_text(v->arguments, "svg", NULL);
  uint32_t layer = (uint32_t)mgl_arguments_u64(v->arguments, "layer", MGL_GRAPH_SVG_ALL);
  mgl_text svg = {0};
  mgl_status status = mgl_graph_svg_append(v->program, v->graph, v->analysis, layer, &svg, err);
  if (status == MGL_OK) {
    status = mgl_output_file_save(path, &svg, err);
  }
  if (status == MGL_OK) {
    mgl_text_format(out, "wrote %s, %zu bytes\n", path, svg.bytes);
  }
  mgl_text_free(&svg);
  return status;
}

// -------------------------------------------------------------------------------------------------

// Each view in turn, with an empty line between them; the summary when none was asked for.
static mgl_status append_views(const view *v, mgl_text *out, mgl_error *err) {
  bool wants_task = mgl_arguments_has(v->arguments, "task");
  bool wants_path = mgl_arguments_has(v->arguments, "path");
  bool wants_workers = mgl_arguments_has(v->arguments, "workers");
  bool wants_svg = mgl_arguments_has(v->arguments, "svg");
  if (mgl_arguments_has(v->arguments, "ops") ||
      !(wants_task || wants_path || wants_workers || wants_svg)) {
    MGL_TRY(append_summary(v, out, err));
  }
  if (wants_task) {
    mgl_text_append_string(out, out->bytes > 0 ? "\n" : "");
    MGL_TRY(append_task(v, out, err));
  }
  if (wants_path) {
    mgl_text_append_string(out, out->bytes > 0 ? "\n" : "");
    MGL_TRY(append_path(v, out, err));
  }
  if (wants_workers) {
    mgl_text_append_string(out, out->bytes > 0 ? "\n" : "");
    append_workers(v, out);
  }
  if (wants_svg) {
    mgl_text_append_string(out, out->bytes > 0 ? "\n" : "");
    MGL_TRY(save_picture(v, out, err));
  }
  return MGL_OK;
}

static mgl_status check_arguments(const mgl_arguments *arguments, mgl_error *err) {
  static const char *const others[] = {"task", "path", "workers", "svg", "ops"};
  for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
    if (mgl_arguments_has(arguments, "json") && mgl_arguments_has(arguments, others[i])) {
      return mgl_error_set(err, MGL_ERR_ARGUMENT,
                           "--json prints the summary: expected no --%s with it", others[i]);
    }
  }
  if (mgl_arguments_has(arguments, "layer") && !mgl_arguments_has(arguments, "svg")) {
    return mgl_error_set(err, MGL_ERR_ARGUMENT, "--layer chooses what --svg draws: expected both");
  }
  return MGL_OK;
}

static mgl_status graph_command(const mgl_arguments *arguments, mgl_error *err) {
  view v = {.arguments = arguments};
  mgl_text out = {0};
  mgl_status status = check_arguments(arguments, err);
  if (status == MGL_OK) {
    status = load(&v, err);
  }
  if (status == MGL_OK && mgl_arguments_has(arguments, "json")) {
    append_json(&v, &out);
  } else if (status == MGL_OK) {
    status = append_views(&v, &out, err);
  }
  if (status == MGL_OK) {
    status = mgl_output_text(&out, err);
  }
  mgl_text_free(&out);
  mgl_analysis_destroy(v.analysis);
  mgl_task_graph_destroy(v.graph);
  mgl_graph_destroy(v.program);
  return status;
}

static const mgl_option options[] = {
    {.name = "ops",
     .type = MGL_OPTION_FLAG,
     .help = "a summary with every op of every layer instead of one row for all layers"},
    {.name = "task",
     .value_name = "N",
     .type = MGL_OPTION_U64,
     .u64_max = UINT32_MAX - 1,
     .help = "one task: tile, launch, events, and the most expensive chain of tasks to it"},
    {.name = "path",
     .type = MGL_OPTION_FLAG,
     .help = "the critical path: tasks take their bytes, and one that waits a hop more"},
    {.name = "hop-bytes",
     .value_name = "N",
     .type = MGL_OPTION_U64,
     .u64_max = UINT64_C(1) << 40,
     .help = "what a hop costs, in the bytes that could be read meanwhile [65536]"},
    {.name = "workers", .type = MGL_OPTION_FLAG, .help = "AOT tasks and bytes of every worker"},
    {.name = "svg",
     .value_name = "FILE",
     .type = MGL_OPTION_FILE,
     .help = "draw the graph, of at most 400 tasks, or one layer of it"},
    {.name = "layer",
     .value_name = "L",
     .type = MGL_OPTION_U64,
     .u64_max = 1 << 20,
     .help = "with --svg: draw the ops of layer L, and how many tasks outside they meet"},
    {.name = "json", .type = MGL_OPTION_FLAG, .help = "print the summary as an object"},
};

const mgl_command mgl_command_graph = {
    .name = "graph",
    .summary = "look into a task graph: summary, one task, critical path, workers, a picture",
    .positional = "FILE",
    .takes_file = true,
    .description =
        "Analyses FILE, a task graph that megalith compile -o wrote. Without options, prints\n"
        "counts and bytes by kind of op and by op. The file is verified as if it were to run.",
    .examples =
        "megalith compile -o task_graph.json && megalith graph task_graph.json\n"
        "megalith graph task_graph.json --task 40 --path --workers\n"
        "megalith graph task_graph.json --svg layer0.svg --layer 0",
    .options = options,
    .option_count = sizeof options / sizeof *options,
    .run = graph_command,
};
