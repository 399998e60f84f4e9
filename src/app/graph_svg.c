#include "app/graph_svg.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "app/human.h"
#include "base/alloc.h"

#define NOT_SHOWN UINT32_MAX

// In pixels.
enum {
  BOX_WIDTH = 184,
  BOX_HEIGHT = 36,
  ROW_PITCH = 46,
  GAP_WIDTH = 120,  // between columns, where events stand
  COLUMN_PITCH = BOX_WIDTH + GAP_WIDTH,
  EVENT_RADIUS = 10,
  EVENT_PITCH = 44,
  MARGIN = 24,
  HEADER_HEIGHT = 128,
  LEGEND_PITCH = 160,
  MIN_WIDTH = 1000,
  NAME_CHARACTERS = 22,  // of a box
};

// One box or one circle.
typedef struct node {
  uint32_t index;   // of the task or event
  uint32_t column;  // of a task; of an event: the gap in front of that column
  double wanted;    // y that the neighbours to the left suggest
  double x, y;      // of the centre
} node;

typedef struct picture {
  const mgl_graph *program;
  const mgl_task_graph *graph;
  const mgl_analysis *analysis;
  node *tasks;            // [task_count]; by column and row once laid out
  node *events;           // [event_count]; likewise
  uint32_t *task_place;   // [graph->task_count] index in tasks, or NOT_SHOWN
  uint32_t *event_place;  // [graph->event_count]
  bool *is_critical;      // [graph->task_count]
  uint32_t task_count, event_count;
  uint32_t column_count;
  double width, height;
} picture;

// --- what is shown -------------------------------------------------------------------------------

static bool is_in_layer(const char *name, uint32_t layer) {
  char prefix[16];
  char kv[16];
  (void)snprintf(prefix, sizeof prefix, "%" PRIu32 ".", layer);
  (void)snprintf(kv, sizeof kv, "kv.%" PRIu32, layer);
  return strncmp(name, prefix, strlen(prefix)) == 0 || strcmp(name, kv) == 0;
}

// An empty task belongs to a layer when the tasks that wait for its event do.
static bool is_shown(const picture *p, uint32_t index, uint32_t layer) {
  const mgl_task *task = &p->graph->tasks[index];
  if (layer == MGL_GRAPH_SVG_ALL) {
    return true;
  }
  while (task->op == MGL_NO_OP) {
    const mgl_event *event =
        task->trigger_event == MGL_NO_EVENT ? NULL : &p->graph->events[task->trigger_event];
    if (event == NULL || event->first_task >= event->last_task || event->first_task <= index) {
      return false;
    }
    index = event->first_task;
    task = &p->graph->tasks[index];
  }
  return is_in_layer(mgl_task_op_name(p->program, task), layer);
}

static mgl_status count_tasks(picture *p, uint32_t layer, mgl_error *err) {
  for (uint32_t t = 0; t < p->graph->task_count; t++) {
    p->task_count += is_shown(p, t, layer);
  }
  if (p->task_count == 0) {
    return mgl_error_set(err, MGL_ERR_ARGUMENT,
                         "--layer: expected the number of a layer, found no op whose name begins "
                         "with \"%" PRIu32 ".\"",
                         layer);
  }
  if (p->task_count > MGL_GRAPH_SVG_MAX_TASKS) {
    return mgl_error_set(err, MGL_ERR_LIMIT,
                         "expected at most %d tasks in a picture, found %" PRIu32 ": %s",
                         MGL_GRAPH_SVG_MAX_TASKS, p->task_count,
                         layer == MGL_GRAPH_SVG_ALL ? "choose one layer with --layer"
                                                    : "compile for fewer workers or coarser "
                                                      "partitions");
  }
  return MGL_OK;
}

static void show_event(picture *p, uint32_t event) {
  if (event != MGL_NO_EVENT && p->event_place[event] == NOT_SHOWN) {
    p->event_place[event] = p->event_count;
    p->events[p->event_count++] = (node){.index = event};
  }
}

// Chooses tasks and events, and the column of each. Tasks are met in topological order.
static void choose(picture *p, uint32_t layer) {
  uint32_t shown = 0;
  memset(p->task_place, 0xff, p->graph->task_count * sizeof *p->task_place);
  memset(p->event_place, 0xff, p->graph->event_count * sizeof *p->event_place);
  for (uint32_t t = 0; t < p->graph->task_count; t++) {
    if (!is_shown(p, t, layer)) {
      continue;
    }
    const mgl_task *task = &p->graph->tasks[t];
    node box = {.index = t};
    show_event(p, task->dependent_event);
    show_event(p, task->trigger_event);
    if (mgl_task_waits(p->graph, task)) {
      box.column = p->events[p->event_place[task->dependent_event]].column;
    }
    if (task->trigger_event != MGL_NO_EVENT) {
      node *event = &p->events[p->event_place[task->trigger_event]];
      event->column = box.column + 1 > event->column ? box.column + 1 : event->column;
    }
    p->column_count = box.column + 1 > p->column_count ? box.column + 1 : p->column_count;
    p->task_place[t] = shown;
    p->tasks[shown++] = box;
  }
}

// --- layout --------------------------------------------------------------------------------------

static int by_column_and_height(const void *left, const void *right) {
  const node *a = left;
  const node *b = right;
  if (a->column != b->column) {
    return a->column < b->column ? -1 : 1;
  }
  if (a->wanted < b->wanted || a->wanted > b->wanted) {
    return a->wanted < b->wanted ? -1 : 1;
  }
  return a->index < b->index ? -1 : 1;
}

static void sort_nodes(node *nodes, uint32_t count, uint32_t *place) {
  qsort(nodes, count, sizeof *nodes, by_column_and_height);
  for (uint32_t i = 0; i < count; i++) {
    place[nodes[i].index] = i;
  }
}

// Mean height of the shown tasks that trigger an event and, where both sides are placed or it has
// no such tasks, of those that wait for it.
static double mean_height(const picture *p, const node *circle, bool with_waiting) {
  const mgl_analysis *a = p->analysis;
  const mgl_event *event = &p->graph->events[circle->index];
  double before = 0;
  double behind = 0;
  uint32_t before_count = 0;
  uint32_t behind_count = 0;
  for (uint32_t i = a->producer_start[circle->index]; i < a->producer_start[circle->index + 1];
       i++) {
    uint32_t place = p->task_place[a->producers[i]];
    before += place == NOT_SHOWN ? 0 : p->tasks[place].y;
    before_count += place != NOT_SHOWN;
  }
  for (uint32_t t = event->first_task; t < event->last_task; t++) {
    uint32_t place = p->task_place[t];
    behind += place == NOT_SHOWN ? 0 : p->tasks[place].y;
    behind_count += place != NOT_SHOWN;
  }
  if (before_count == 0) {
    return behind_count == 0 ? 0 : behind / behind_count;
  }
  before /= before_count;
  return with_waiting && behind_count > 0 ? (before + behind / behind_count) / 2 : before;
}

// Spreads the boxes [from, to) of one column evenly around the middle, and the circles of one gap
// near their wanted heights but apart.
static void place_boxes(picture *p, uint32_t from, uint32_t to) {
  double y = p->height / 2 + HEADER_HEIGHT / 2.0 - (to - from - 1) * ROW_PITCH / 2.0;
  for (uint32_t i = from; i < to; i++, y += ROW_PITCH) {
    p->tasks[i].x =
        MARGIN + GAP_WIDTH + p->tasks[i].column * (double)COLUMN_PITCH + BOX_WIDTH / 2.0;
    p->tasks[i].y = y;
  }
}

static void place_circles(picture *p, uint32_t from, uint32_t to) {
  double excess = 0;
  for (uint32_t i = from; i < to; i++) {
    node *circle = &p->events[i];
    circle->x = MARGIN + GAP_WIDTH / 2.0 + circle->column * (double)COLUMN_PITCH;
    circle->y = circle->wanted;
    if (i > from && circle->y < p->events[i - 1].y + EVENT_PITCH) {
      circle->y = p->events[i - 1].y + EVENT_PITCH;
    }
    excess += circle->y - circle->wanted;
  }
  for (uint32_t i = from; i < to; i++) {
    p->events[i].y -= excess / (to - from);
  }
}

static uint32_t column_end(const node *nodes, uint32_t count, uint32_t from) {
  uint32_t to = from;
  while (to < count && nodes[to].column == nodes[from].column) {
    to++;
  }
  return to;
}

// Once all boxes stand: circles between those before and those behind them.
static void place_between(picture *p) {
  for (uint32_t i = 0; i < p->event_count; i++) {
    p->events[i].wanted = mean_height(p, &p->events[i], true);
  }
  sort_nodes(p->events, p->event_count, p->event_place);
  for (uint32_t i = 0; i < p->event_count;) {
    uint32_t to = column_end(p->events, p->event_count, i);
    place_circles(p, i, to);
    i = to;
  }
}

// Columns from left to right: what stands left of a column says in which order it stands.
static void lay_out(picture *p) {
  uint32_t most = 1;
  sort_nodes(p->tasks, p->task_count, p->task_place);
  sort_nodes(p->events, p->event_count, p->event_place);
  for (uint32_t i = 0; i < p->task_count; i = column_end(p->tasks, p->task_count, i)) {
    uint32_t rows = column_end(p->tasks, p->task_count, i) - i;
    most = rows > most ? rows : most;
  }
  for (uint32_t i = 0; i < p->event_count; i = column_end(p->events, p->event_count, i)) {
    uint32_t rows = column_end(p->events, p->event_count, i) - i;
    most = rows > most ? rows : most;
  }
  p->width = 2 * MARGIN + GAP_WIDTH + p->column_count * (double)COLUMN_PITCH;
  p->width = p->width < MIN_WIDTH ? MIN_WIDTH : p->width;
  p->height = HEADER_HEIGHT + MARGIN + (most + 1) * (double)ROW_PITCH;
  uint32_t task = 0;
  uint32_t event = 0;
  for (uint32_t column = 0; column <= p->column_count; column++) {
    uint32_t task_to = task;
    uint32_t event_to = event;
    for (; event_to < p->event_count && p->events[event_to].column == column; event_to++) {
      p->events[event_to].wanted = mean_height(p, &p->events[event_to], false);
    }
    sort_nodes(p->events, p->event_count, p->event_place);
    place_circles(p, event, event_to);
    for (; task_to < p->task_count && p->tasks[task_to].column == column; task_to++) {
      uint32_t waits_for = p->graph->tasks[p->tasks[task_to].index].dependent_event;
      p->tasks[task_to].wanted =
          waits_for == MGL_NO_EVENT ? 0 : p->events[p->event_place[waits_for]].y;
    }
    sort_nodes(p->tasks, p->task_count, p->task_place);
    place_boxes(p, task, task_to);
    task = task_to;
    event = event_to;
  }
  place_between(p);
}

// --- drawing -------------------------------------------------------------------------------------

static const char *colour_of(const mgl_task *task) {
  static const char *const palette[] = {
      "#dbe9f6", "#cfe8cf", "#ffd9a8", "#e3d4f0", "#f6cfd3", "#d9d0c3", "#c8ecec", "#f3eaa9",
      "#d5d9e2", "#a9cdf2", "#f9b9a0", "#b5dea0", "#ffe08a", "#c9b5e8", "#9fdccb", "#f2bfe0",
  };
  return task->op == MGL_NO_OP ? "#ffffff"
                               : palette[task->type % (sizeof palette / sizeof *palette)];
}

static void append_escaped(mgl_text *out, const char *text, size_t max_bytes) {
  for (size_t i = 0; text[i] != 0 && i < max_bytes; i++) {
    switch (text[i]) {
      case '<': mgl_text_append_string(out, "&lt;"); break;
      case '>': mgl_text_append_string(out, "&gt;"); break;
      case '&': mgl_text_append_string(out, "&amp;"); break;
      default: mgl_text_append(out, text + i, 1); break;
    }
  }
  mgl_text_append_string(out, strlen(text) > max_bytes ? "…" : "");
}

static void append_edge(mgl_text *out, double x0, double y0, double x1, double y1,
                        bool is_critical) {
  double bend = fabs(x1 - x0) / 2;
  mgl_text_format(out, "<path class=\"%s\" d=\"M%.0f %.1f C%.0f %.1f %.0f %.1f %.0f %.1f\"/>\n",
                  is_critical ? "hot" : "edge", x0, y0, x0 + bend, y0, x1 - bend, y1, x1, y1);
}

// The edges of one box; critical ones in a second pass, so that they lie on top.
static void append_edges(const picture *p, const node *box, bool critical_pass, mgl_text *out) {
  const mgl_task *task = &p->graph->tasks[box->index];
  const mgl_analysis *a = p->analysis;
  if (task->dependent_event != MGL_NO_EVENT) {
    const node *event = &p->events[p->event_place[task->dependent_event]];
    bool is_critical = p->is_critical[box->index] && a->before[box->index] != MGL_NO_TASK;
    if (is_critical == critical_pass) {
      append_edge(out, event->x + EVENT_RADIUS, event->y, box->x - BOX_WIDTH / 2.0, box->y,
                  is_critical);
    }
  }
  if (task->trigger_event != MGL_NO_EVENT) {
    const node *event = &p->events[p->event_place[task->trigger_event]];
    bool is_critical = p->is_critical[box->index];
    if (is_critical == critical_pass) {
      append_edge(out, box->x + BOX_WIDTH / 2.0, box->y, event->x - EVENT_RADIUS, event->y,
                  is_critical);
    }
  }
}

static void append_box(const picture *p, const node *box, mgl_text *out) {
  const mgl_task *task = &p->graph->tasks[box->index];
  const char *name = mgl_task_op_name(p->program, task);
  const char *kind = mgl_task_kind_name(task);
  bool is_jit = (task->flags & MGL_TASK_JIT) != 0;
  char where[16] = "JIT";
  char cost[MGL_HUMAN_BYTES];
  mgl_human_size(task->cost, cost);
  if (!is_jit && task->op != MGL_NO_OP) {
    (void)snprintf(where, sizeof where, "w%u", task->worker);
  }
  mgl_text_format(out, "<g transform=\"translate(%.0f %.1f)\"><title>task %" PRIu32 ": ", box->x,
                  box->y, box->index);
  append_escaped(out, name, MGL_GRAPH_MAX_NAME_BYTES);
  mgl_text_format(out, " (%s), units [%" PRIu32 ", %" PRIu32 "), %s, %s</title>\n", kind,
                  task->begin, task->end, cost, task->op == MGL_NO_OP ? "no work" : where);
  char shape[96];
  (void)snprintf(shape, sizeof shape, "x=\"%d\" y=\"%d\" width=\"%d\" height=\"%d\" rx=\"%d\"",
                 -BOX_WIDTH / 2, -BOX_HEIGHT / 2, BOX_WIDTH, BOX_HEIGHT,
                 task->op == MGL_NO_OP ? BOX_HEIGHT / 2 : 4);
  mgl_text_format(out, "<rect %s fill=\"%s\"/>", shape, colour_of(task));
  if (is_jit) {
    mgl_text_format(out, "<rect %s fill=\"url(#jit)\"/>", shape);
  }
  mgl_text_format(out, "<rect %s class=\"%s%s\"/>\n", shape,
                  p->is_critical[box->index] ? "box hotbox" : "box", is_jit ? " jit" : "");
  if (task->op == MGL_NO_OP) {
    mgl_text_append_string(out, "<text y=\"4\">empty</text></g>\n");
    return;
  }
  mgl_text_append_string(out, "<text y=\"-3\"><tspan class=\"name\">");
  append_escaped(out, name, NAME_CHARACTERS);
  mgl_text_append_string(out, "</tspan>");
  if (strlen(name) + strlen(kind) < NAME_CHARACTERS) {  // else the colour has to tell
    mgl_text_format(out, " %s", kind);
  }
  mgl_text_format(
      out, "</text><text y=\"11\" class=\"tile\">[%" PRIu32 ", %" PRIu32 ") · %s · %s</text></g>\n",
      task->begin, task->end, where, cost);
}

static void append_circle(const picture *p, const node *circle, mgl_text *out) {
  const mgl_event *event = &p->graph->events[circle->index];
  const mgl_analysis *a = p->analysis;
  uint32_t hidden_in = 0;
  uint32_t hidden_out = 0;
  for (uint32_t i = a->producer_start[circle->index]; i < a->producer_start[circle->index + 1];
       i++) {
    hidden_in += p->task_place[a->producers[i]] == NOT_SHOWN;
  }
  for (uint32_t t = event->first_task; t < event->last_task; t++) {
    hidden_out += p->task_place[t] == NOT_SHOWN;
  }
  mgl_text_format(
      out,
      "<g transform=\"translate(%.0f %.1f)\"><title>event %" PRIu32 ": %s, %" PRIu32
      " triggers, tasks [%" PRIu32 ", %" PRIu32 ") wait</title><circle r=\"%d\" class=\"event\"/>",
      circle->x, circle->y, circle->index, mgl_event_type_name((mgl_event_type)event->type),
      event->trigger_count, event->first_task, event->last_task, EVENT_RADIUS);
  if (event->type == MGL_EVENT_END_OF_TASK_GRAPH) {
    mgl_text_format(out, "<circle r=\"%d\" class=\"event\"/>", EVENT_RADIUS - 3);
  }
  mgl_text_format(out, "<text y=\"4\">%" PRIu32 "</text><text y=\"%d\" class=\"small\">",
                  event->trigger_count, EVENT_RADIUS + 11);
  if (event->type == MGL_EVENT_END_OF_TASK_GRAPH) {
    mgl_text_append_string(out, "end");
  } else {
    mgl_text_format(out, "e%" PRIu32, circle->index);
  }
  mgl_text_append_string(out, "</text>");
  if (hidden_in > 0) {
    mgl_text_format(out, "<text x=\"%d\" y=\"4\" class=\"left small\">%" PRIu32 " in →</text>",
                    -EVENT_RADIUS - 4, hidden_in);
  }
  if (hidden_out > 0) {
    mgl_text_format(out, "<text x=\"%d\" y=\"4\" class=\"right small\">→ %" PRIu32 " out</text>",
                    EVENT_RADIUS + 4, hidden_out);
  }
  mgl_text_append_string(out, "</g>\n");
}

// --- header --------------------------------------------------------------------------------------

static void append_sample(mgl_text *out, double x, double y, const char *fill, const char *classes,
                          const char *label) {
  mgl_text_format(out,
                  "<rect x=\"%.0f\" y=\"%.0f\" width=\"22\" height=\"14\" rx=\"3\" fill=\"%s\"/>"
                  "<rect x=\"%.0f\" y=\"%.0f\" width=\"22\" height=\"14\" rx=\"3\" class=\"%s\"/>"
                  "<text x=\"%.0f\" y=\"%.0f\" class=\"right\">%s</text>\n",
                  x, y, fill, x, y, classes, x + 28, y + 11, label);
}

static void append_legend(const picture *p, mgl_text *out) {
  double x = MARGIN;
  double y = 56;
  for (uint32_t kind = 0; kind < MGL_OP_COUNT; kind++) {
    mgl_task sample = {.type = (uint16_t)kind};
    uint32_t count = 0;
    char label[64];
    for (uint32_t i = 0; i < p->task_count; i++) {
      const mgl_task *task = &p->graph->tasks[p->tasks[i].index];
      count += task->op != MGL_NO_OP && task->type == kind;
    }
    if (count == 0) {
      continue;
    }
    if (x + LEGEND_PITCH > p->width) {
      x = MARGIN;
      y += 20;
    }
    (void)snprintf(label, sizeof label, "%s × %" PRIu32, mgl_task_kind_name(&sample), count);
    append_sample(out, x, y, colour_of(&sample), "box", label);
    x += LEGEND_PITCH;
  }
  y += 24;
  append_sample(out, MARGIN, y, "#ffffff", "box", "AOT: on worker w");
  append_sample(out, MARGIN + LEGEND_PITCH, y, "url(#jit)", "box jit", "JIT: any worker");
  append_sample(out, MARGIN + 2 * LEGEND_PITCH, y, "#ffffff", "box hotbox", "on the critical path");
  mgl_text_format(out,
                  "<circle cx=\"%d\" cy=\"%.0f\" r=\"9\" class=\"event\"/><text x=\"%d\" "
                  "y=\"%.0f\">n</text><text x=\"%d\" y=\"%.0f\" class=\"right\">event that n "
                  "triggers activate; in and out: tasks that are not shown</text>\n",
                  MARGIN + 3 * LEGEND_PITCH + 20, y + 7, MARGIN + 3 * LEGEND_PITCH + 20, y + 11,
                  MARGIN + 3 * LEGEND_PITCH + 36, y + 11);
}

static void append_header(const picture *p, uint32_t layer, mgl_text *out) {
  mgl_text_format(
      out,
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%.0f\" height=\"%.0f\" "
      "viewBox=\"0 0 %.0f %.0f\">\n"
      "<style>text{font:11px sans-serif;text-anchor:middle;fill:#222}"
      ".title{font-size:17px;font-weight:bold;text-anchor:start}.name{font-weight:bold}"
      ".tile{font-size:10px}.small{font-size:10px;fill:#666}.left{text-anchor:end}.right{text-"
      "anchor:start}"
      ".edge{fill:none;stroke:#8a93a0;stroke-opacity:.55}"
      ".hot{fill:none;stroke:#d62728;stroke-width:2}"
      ".box{fill:none;stroke:#59616d}.hotbox{stroke:#d62728;stroke-width:2.5}"
      ".jit{stroke-dasharray:5 3}.event{fill:#fff;stroke:#333}</style>\n"
      "<defs><pattern id=\"jit\" width=\"7\" height=\"7\" patternUnits=\"userSpaceOnUse\" "
      "patternTransform=\"rotate(45)\"><rect width=\"2\" height=\"7\" fill=\"#000\" "
      "fill-opacity=\".13\"/></pattern></defs>\n"
      "<rect width=\"100%%\" height=\"100%%\" fill=\"#fff\"/>\n<text x=\"%d\" y=\"36\" "
      "class=\"title\">",
      p->width, p->height, p->width, p->height, MARGIN);
  append_escaped(out, p->program->name, MGL_GRAPH_MAX_NAME_BYTES);
  if (layer != MGL_GRAPH_SVG_ALL) {
    mgl_text_format(out, ", layer %" PRIu32, layer);
  }
  mgl_text_format(out,
                  ": %" PRIu32 " tasks for iterations of %" PRIu32 " token%s on %" PRIu32
                  " worker%s</text>\n",
                  p->task_count, p->graph->tokens, p->graph->tokens == 1 ? "" : "s",
                  p->graph->worker_count, p->graph->worker_count == 1 ? "" : "s");
  append_legend(p, out);
}

static void draw(const picture *p, uint32_t layer, mgl_text *out) {
  append_header(p, layer, out);
  for (int pass = 0; pass < 2; pass++) {
    for (uint32_t i = 0; i < p->task_count; i++) {
      append_edges(p, &p->tasks[i], pass == 1, out);
    }
  }
  for (uint32_t i = 0; i < p->task_count; i++) {
    append_box(p, &p->tasks[i], out);
  }
  for (uint32_t i = 0; i < p->event_count; i++) {
    append_circle(p, &p->events[i], out);
  }
  mgl_text_append_string(out, "</svg>\n");
}

// -------------------------------------------------------------------------------------------------

static void free_picture(picture *p) {
  mgl_free(p->tasks);
  mgl_free(p->events);
  mgl_free(p->task_place);
  mgl_free(p->event_place);
  mgl_free(p->is_critical);
}

mgl_status mgl_graph_svg_append(const mgl_graph *program, const mgl_task_graph *graph,
                                const mgl_analysis *analysis, uint32_t layer, mgl_text *out,
                                mgl_error *err) {
  picture p = {.program = program, .graph = graph, .analysis = analysis};
  MGL_TRY(count_tasks(&p, layer, err));
  p.tasks = mgl_alloc_zeroed(p.task_count, sizeof *p.tasks);
  p.events = mgl_alloc_zeroed(2 * (size_t)p.task_count, sizeof *p.events);
  p.task_place = mgl_alloc(graph->task_count * sizeof *p.task_place);
  p.event_place = mgl_alloc(graph->event_count * sizeof *p.event_place);
  p.is_critical = mgl_alloc_zeroed(graph->task_count, sizeof *p.is_critical);
  if (p.tasks == NULL || p.events == NULL || p.task_place == NULL || p.event_place == NULL ||
      p.is_critical == NULL) {
    free_picture(&p);
    return mgl_error_set(err, MGL_ERR_MEMORY, "out of memory for a picture of %" PRIu32 " tasks",
                         p.task_count);
  }
  for (uint32_t t = analysis->last; t != MGL_NO_TASK; t = analysis->before[t]) {
    p.is_critical[t] = true;
  }
  choose(&p, layer);
  lay_out(&p);
  draw(&p, layer, out);
  free_picture(&p);
  return mgl_text_check(out, err);
}
