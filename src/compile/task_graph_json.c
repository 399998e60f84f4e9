// task_graph.json: the schema of MPK, written and loaded.
//
// MPK's keys keep their names and meanings:
//   task_type      the number of the op's kind (mgl_op_kind); 65535 for an empty task
//   inputs, outputs  one entry for each rectangle that the task touches: base_ptr (tensor name),
//                  offset in bytes from the tensor's beginning, dims, strides in elements,
//                  data_type (mgl_dtype). A KV tensor is given as [KV heads, HD] although pages lie
//                  elsewhere: where, block tables say at run time. They follow from op, begin and
//                  end; a file that says otherwise is refused.
//   trigger_event, dependent_event  event ids, tag:16 | rank:16 | index:32; with one rank the
//   index;
//                  -1: none
//   request_id, expert_offset, kv_idx, merge_task_offset, task_offset  -1: attention tasks stride
//                  through the plan's work list, the others do not use them
//   first_tasks    the tasks that wait for nothing
// Added keys let it be loaded and verified: of the graph "format", "program" (text form),
// "target" ("cpu" if absent), "tokens", "logit_rows" (as many as tokens if absent), "workers",
// "attention_strides", "activation_bytes", "activation_offsets" (by name); of tasks "op", "begin",
// "end", "flags", "worker", "cost"; of events "flags". AOT lists follow from workers and order.
// What was loaded passes the verifier, or is refused.
#include <inttypes.h>
#include <string.h>

#include "base/alloc.h"
#include "base/json.h"
#include "compile/tgraph.h"
#include "graph/graph_text.h"

static const char format_name[] = "megalith task graph 1";

// --- writing -------------------------------------------------------------------------------------

// A JSON string of a text; the program's has lines, names are plain.
static void write_string(const char *text, mgl_text *out) {
  mgl_text_append_string(out, "\"");
  for (const char *at = text; *at != 0;) {
    size_t plain = strcspn(at, "\"\\\n\t\r");
    mgl_text_append(out, at, plain);
    at += plain;
    if (*at != 0) {
      const char escape[] = {'\\', *at == '\n' ? 'n' : *at == '\t' ? 't' : *at == '\r' ? 'r' : *at};
      mgl_text_append(out, escape, sizeof escape);
      at++;
    }
  }
  mgl_text_append_string(out, "\"");
}

// An operand_view is what is said of one rectangle.
typedef struct operand_view {
  const char *base_ptr;
  uint64_t offset;
  uint64_t dims[2];
  uint64_t strides[2];
  mgl_dtype data_type;
} operand_view;

static operand_view view_of(const mgl_graph *program, const mgl_region *region) {
  const mgl_tensor *tensor = &program->tensors[region->tensor];
  uint64_t stride = mgl_tensor_row_elements(tensor);
  bool kv = tensor->placement == MGL_PLACE_KV;
  return (operand_view){
      .base_ptr = tensor->name,
      .offset = tensor->group != 0  // of codes: whole rows
                    ? region->row_begin * mgl_tensor_row_bytes(tensor)
                    : (region->row_begin * stride + region->column_begin) *
                          mgl_dtype_bytes(tensor->dtype),
      .dims = {region->row_end - region->row_begin,
               kv ? stride : (uint64_t)(region->column_end - region->column_begin)},
      .strides = {stride, 1},
      .data_type = tensor->dtype};
}

static void write_operand(const mgl_graph *program, const mgl_region *region, mgl_text *out) {
  operand_view v = view_of(program, region);
  mgl_text_format(out,
                  "{\"base_ptr\":\"%s\",\"offset\":%" PRIu64 ",\"dims\":[%" PRIu64 ",%" PRIu64
                  "],\"strides\":[%" PRIu64 ",%" PRIu64 "],\"data_type\":%d}",
                  v.base_ptr, v.offset, v.dims[0], v.dims[1], v.strides[0], v.strides[1],
                  (int)v.data_type);
}

static void write_operands(const mgl_graph *program, const mgl_task_graph *graph,
                           const mgl_task *task, mgl_text *out) {
  mgl_tile_operand operands[MGL_TILE_MAX_OPERANDS];
  const mgl_op *op = &program->ops[task->op];
  uint32_t count = mgl_tile_operands(program, op, graph->tokens, graph->attention_strides,
                                     task->begin, task->end, operands);
  for (int outputs = 0; outputs < 2; outputs++) {
    mgl_text_append_string(out, outputs == 0 ? ",\"inputs\":[" : "],\"outputs\":[");
    bool first = true;
    for (uint32_t i = 0; i < count; i++) {
      if ((operands[i].input == MGL_TILE_OUTPUT) == (outputs == 1)) {
        mgl_text_append_string(out, first ? "" : ",");
        write_operand(program, &operands[i].region, out);
        first = false;
      }
    }
  }
  mgl_text_append_string(out, "]");
}

static int64_t id_of(uint32_t index, uint32_t none) {
  return index == none ? -1 : (int64_t)index;
}

static void write_task(const mgl_graph *program, const mgl_task_graph *graph, const mgl_task *task,
                       mgl_text *out) {
  mgl_text_format(out, "{\"task_type\":%u,\"variant_id\":%u", task->type, task->variant);
  if (task->op == MGL_NO_OP) {
    mgl_text_append_string(out, ",\"inputs\":[],\"outputs\":[]");
  } else {
    write_operands(program, graph, task, out);
  }
  mgl_text_format(out,
                  ",\"trigger_event\":%" PRId64 ",\"dependent_event\":%" PRId64
                  ",\"request_id\":-1,\"expert_offset\":-1,\"kv_idx\":-1,"
                  "\"merge_task_offset\":-1,\"task_offset\":-1",
                  id_of(task->trigger_event, MGL_NO_EVENT),
                  id_of(task->dependent_event, MGL_NO_EVENT));
  mgl_text_format(out,
                  ",\"op\":%" PRId64 ",\"begin\":%u,\"end\":%u,\"flags\":%u,\"worker\":%" PRId64
                  ",\"cost\":%u}",
                  id_of(task->op, MGL_NO_OP), task->begin, task->end, task->flags,
                  id_of(task->worker, MGL_NO_WORKER), task->cost);
}

static void write_offsets(const mgl_graph *program, const mgl_task_graph *graph, mgl_text *out) {
  bool first = true;
  for (uint32_t i = 0; i < graph->tensor_count; i++) {
    if (program->tensors[i].placement == MGL_PLACE_ACTIVATION) {
      mgl_text_format(out, "%s\"%s\":%" PRIu64, first ? "" : ",", program->tensors[i].name,
                      graph->activation_offsets[i]);
      first = false;
    }
  }
}

mgl_status mgl_task_graph_write_json(const mgl_graph *program, const mgl_task_graph *graph,
                                     mgl_text *out, mgl_error *err) {
  mgl_text text = {0};
  mgl_graph_print(program, &text);
  mgl_status status = mgl_text_check(&text, err);
  if (status != MGL_OK) {
    mgl_text_free(&text);
    return status;
  }
  mgl_text_format(out, "{\"format\":\"%s\",\n\"program\":", format_name);
  write_string(text.data == NULL ? "" : text.data, out);
  mgl_text_free(&text);
  mgl_text_format(out,
                  ",\n\"target\":\"%s\",\"tokens\":%u,\"logit_rows\":%u,\"workers\":%u,"
                  "\"attention_strides\":%u,\"activation_bytes\":%" PRIu64
                  ",\n\"activation_offsets\":{",
                  mgl_target_name(graph->target), graph->tokens, graph->logit_rows,
                  graph->worker_count, graph->attention_strides, graph->activation_bytes);
  write_offsets(program, graph, out);
  mgl_text_append_string(out, "},\n\"all_tasks\":[");
  for (uint32_t i = 0; i < graph->task_count; i++) {
    mgl_text_append_string(out, i == 0 ? "\n" : ",\n");
    write_task(program, graph, &graph->tasks[i], out);
  }
  mgl_text_append_string(out, "],\n\"all_events\":[");
  for (uint32_t i = 0; i < graph->event_count; i++) {
    const mgl_event *e = &graph->events[i];
    mgl_text_format(out,
                    "%s{\"event_type\":%u,\"num_triggers\":%u,\"first_task_id\":%u,"
                    "\"last_task_id\":%u,\"flags\":%u}",
                    i == 0 ? "\n" : ",\n", e->type, e->trigger_count, e->first_task, e->last_task,
                    e->flags);
  }
  mgl_text_append_string(out, "],\n\"first_tasks\":[");
  for (uint32_t i = 0; i < graph->ready_count; i++) {
    mgl_text_format(out, "%s%u", i == 0 ? "" : ",", i);
  }
  mgl_text_append_string(out, "]}\n");
  return mgl_text_check(out, err);
}

// --- reading -------------------------------------------------------------------------------------

// A required integer in [min, max]; where min is -1, that stands for `none`.
static mgl_status read_int(const json_t *object, const char *where, const char *key, int64_t min,
                           uint32_t max, uint32_t none, uint32_t *out, mgl_error *err) {
  const json_t *value = json_object_get(object, key);
  if (!json_is_integer(value) || json_integer_value(value) < min ||
      json_integer_value(value) > (json_int_t)max) {
    return mgl_error_set(err, MGL_ERR_FORMAT,
                         "%s: expected an integer from %" PRId64 " to %u as %s", where, min, max,
                         key);
  }
  *out = json_integer_value(value) < 0 ? none : (uint32_t)json_integer_value(value);
  return MGL_OK;
}

static mgl_status read_array(const json_t *root, const char *where, const char *key, size_t max,
                             const json_t **out, mgl_error *err) {
  *out = json_object_get(root, key);
  if (!json_is_array(*out) || json_array_size(*out) > max) {
    return mgl_error_set(err, MGL_ERR_FORMAT, "%s: expected an array of at most %zu as %s", where,
                         max, key);
  }
  return MGL_OK;
}

static mgl_status read_task(const json_t *object, const char *where, mgl_task *out,
                            mgl_error *err) {
  uint32_t type = 0;
  uint32_t variant = 0;
  uint32_t flags = 0;
  uint32_t worker = 0;
  MGL_TRY(read_int(object, where, "task_type", 0, UINT16_MAX, 0, &type, err));
  MGL_TRY(read_int(object, where, "variant_id", 0, UINT16_MAX, 0, &variant, err));
  MGL_TRY(read_int(object, where, "trigger_event", -1, MGL_NO_EVENT - 1, MGL_NO_EVENT,
                   &out->trigger_event, err));
  MGL_TRY(read_int(object, where, "dependent_event", -1, MGL_NO_EVENT - 1, MGL_NO_EVENT,
                   &out->dependent_event, err));
  MGL_TRY(read_int(object, where, "op", -1, MGL_NO_OP - 1, MGL_NO_OP, &out->op, err));
  MGL_TRY(read_int(object, where, "begin", 0, UINT32_MAX, 0, &out->begin, err));
  MGL_TRY(read_int(object, where, "end", 0, UINT32_MAX, 0, &out->end, err));
  MGL_TRY(read_int(object, where, "flags", 0, UINT16_MAX, 0, &flags, err));
  MGL_TRY(read_int(object, where, "worker", -1, MGL_NO_WORKER - 1, MGL_NO_WORKER, &worker, err));
  MGL_TRY(read_int(object, where, "cost", 0, UINT32_MAX, 0, &out->cost, err));
  out->type = (uint16_t)type;
  out->variant = (uint16_t)variant;
  out->flags = (uint16_t)flags;
  out->worker = (uint16_t)worker;
  return MGL_OK;
}

static mgl_status read_event(const json_t *object, const char *where, mgl_event *out,
                             mgl_error *err) {
  uint32_t type = 0;
  uint32_t flags = 0;
  MGL_TRY(read_int(object, where, "event_type", 0, UINT16_MAX, 0, &type, err));
  MGL_TRY(read_int(object, where, "flags", 0, UINT16_MAX, 0, &flags, err));
  MGL_TRY(read_int(object, where, "num_triggers", 0, UINT32_MAX, 0, &out->trigger_count, err));
  MGL_TRY(read_int(object, where, "first_task_id", 0, UINT32_MAX, 0, &out->first_task, err));
  MGL_TRY(read_int(object, where, "last_task_id", 0, UINT32_MAX, 0, &out->last_task, err));
  out->type = (uint16_t)type;
  out->flags = (uint16_t)flags;
  return MGL_OK;
}

// Workers' lists: counting sort of the tasks by worker. Refuses workers that the graph has not.
static mgl_status make_aot_lists(mgl_task_graph *graph, const char *where, mgl_error *err) {
  for (uint32_t i = 0; i < graph->task_count; i++) {
    uint16_t worker = graph->tasks[i].worker;
    if (worker == MGL_NO_WORKER) {
      continue;
    }
    if (worker >= graph->worker_count) {
      return mgl_error_set(err, MGL_ERR_FORMAT, "%s: task %u has worker %u of %u", where, i, worker,
                           graph->worker_count);
    }
    graph->aot_start[worker + 1]++;
  }
  mgl_fill_aot_lists(graph);
  return MGL_OK;
}

static mgl_status read_lists(const json_t *root, const char *where, mgl_task_graph *graph,
                             mgl_error *err) {
  const json_t *tasks = NULL;
  const json_t *events = NULL;
  const json_t *first = NULL;
  MGL_TRY(read_array(root, where, "all_tasks", MGL_COMPILE_MAX_TASKS, &tasks, err));
  MGL_TRY(read_array(root, where, "all_events", json_array_size(tasks) + 1, &events, err));
  MGL_TRY(read_array(root, where, "first_tasks", json_array_size(tasks), &first, err));
  graph->task_count = (uint32_t)json_array_size(tasks);
  graph->event_count = (uint32_t)json_array_size(events);
  graph->ready_count = (uint32_t)json_array_size(first);
  graph->tasks = mgl_alloc_zeroed(graph->task_count, sizeof *graph->tasks);
  graph->events = mgl_alloc_zeroed(graph->event_count, sizeof *graph->events);
  graph->aot_start = mgl_alloc_zeroed((size_t)graph->worker_count + 1, sizeof *graph->aot_start);
  graph->aot_tasks = mgl_alloc_zeroed(graph->task_count, sizeof *graph->aot_tasks);
  if (graph->tasks == NULL || graph->events == NULL || graph->aot_start == NULL ||
      graph->aot_tasks == NULL) {
    return mgl_error_set(err, MGL_ERR_MEMORY, "%s: out of memory", where);
  }
  for (uint32_t i = 0; i < graph->task_count; i++) {
    MGL_TRY(read_task(json_array_get(tasks, i), where, &graph->tasks[i], err));
  }
  for (uint32_t i = 0; i < graph->event_count; i++) {
    MGL_TRY(read_event(json_array_get(events, i), where, &graph->events[i], err));
  }
  for (uint32_t i = 0; i < graph->ready_count; i++) {
    const json_t *task = json_array_get(first, i);
    if (!json_is_integer(task) || json_integer_value(task) != (json_int_t)i) {
      return mgl_error_set(err, MGL_ERR_FORMAT, "%s: first_tasks must be 0, 1, ... in order",
                           where);
    }
  }
  return make_aot_lists(graph, where, err);
}

static mgl_status read_offsets(const json_t *root, const char *where, const mgl_graph *program,
                               mgl_task_graph *graph, mgl_error *err) {
  const json_t *offsets = json_object_get(root, "activation_offsets");
  graph->tensor_count = (uint32_t)program->tensor_count;
  graph->activation_offsets =
      mgl_alloc_zeroed(program->tensor_count, sizeof *graph->activation_offsets);
  if (graph->activation_offsets == NULL) {
    return mgl_error_set(err, MGL_ERR_MEMORY, "%s: out of memory", where);
  }
  size_t count = 0;
  for (uint32_t i = 0; i < graph->tensor_count; i++) {
    const mgl_tensor *tensor = &program->tensors[i];
    if (tensor->placement != MGL_PLACE_ACTIVATION) {
      continue;
    }
    const json_t *value = json_object_get(offsets, tensor->name);
    if (!json_is_integer(value) || json_integer_value(value) < 0) {
      return mgl_error_set(err, MGL_ERR_FORMAT,
                           "%s: expected the offset of \"%s\" in activation_offsets", where,
                           tensor->name);
    }
    graph->activation_offsets[i] = (uint64_t)json_integer_value(value);
    count++;
  }
  return json_object_size(offsets) == count
             ? MGL_OK
             : mgl_error_set(err, MGL_ERR_FORMAT,
                             "%s: activation_offsets names %zu tensors, the program has %zu "
                             "activations",
                             where, json_object_size(offsets), count);
}

// Graphs written before there were targets are the CPU's.
static mgl_status read_target(mgl_json_object o, mgl_target *out, mgl_error *err) {
  const char *name = NULL;
  *out = MGL_TARGET_CPU;
  MGL_TRY(mgl_json_opt_string(o, "target", &name, err));
  if (name != NULL && !mgl_target_parse(name, out)) {
    return mgl_error_set(err, MGL_ERR_FORMAT, "%s: expected \"cpu\" or \"cuda\" as target",
                         o.where);
  }
  return MGL_OK;
}

static mgl_status read_header(const json_t *root, const char *where, mgl_graph **program,
                              mgl_task_graph *graph, mgl_error *err) {
  mgl_json_object o = {root, where};
  const char *format = NULL;
  const char *text = NULL;
  if (!json_is_object(root)) {
    return mgl_error_set(err, MGL_ERR_FORMAT, "%s: expected an object", where);
  }
  MGL_TRY(mgl_json_opt_string(o, "format", &format, err));
  MGL_TRY(mgl_json_opt_string(o, "program", &text, err));
  if (format == NULL || strcmp(format, format_name) != 0 || text == NULL) {
    return mgl_error_set(err, MGL_ERR_FORMAT, "%s: expected \"format\": \"%s\" and a \"program\"",
                         where, format_name);
  }
  MGL_TRY(read_target(o, &graph->target, err));
  MGL_TRY(read_int(root, where, "tokens", 1, MGL_MAX_ITERATION_TOKENS, 0, &graph->tokens, err));
  graph->logit_rows = graph->tokens;
  if (json_object_get(root, "logit_rows") != NULL) {
    MGL_TRY(read_int(root, where, "logit_rows", 1, graph->tokens, 0, &graph->logit_rows, err));
  }
  MGL_TRY(
      read_int(root, where, "workers", 1, MGL_COMPILE_MAX_WORKERS, 0, &graph->worker_count, err));
  MGL_TRY(read_int(root, where, "attention_strides", 1, MGL_COMPILE_MAX_STRIDES, 0,
                   &graph->attention_strides, err));
  MGL_TRY(mgl_json_u64(o, "activation_bytes", 0, INT64_MAX, &graph->activation_bytes, err));
  return mgl_graph_parse(text, strlen(text), where, program, err);
}

static bool is_number(const json_t *value, uint64_t expected) {
  return json_is_integer(value) && json_integer_value(value) >= 0 &&
         (uint64_t)json_integer_value(value) == expected;
}

static bool is_pair(const json_t *value, const uint64_t expected[2]) {
  return json_array_size(value) == 2 && is_number(json_array_get(value, 0), expected[0]) &&
         is_number(json_array_get(value, 1), expected[1]);
}

static bool is_operand(const json_t *value, const operand_view *expected) {
  const char *name = mgl_json_plain_string(json_object_get(value, "base_ptr"));
  return name != NULL && strcmp(name, expected->base_ptr) == 0 &&
         is_number(json_object_get(value, "offset"), expected->offset) &&
         is_pair(json_object_get(value, "dims"), expected->dims) &&
         is_pair(json_object_get(value, "strides"), expected->strides) &&
         is_number(json_object_get(value, "data_type"), (uint64_t)expected->data_type);
}

// A task's "inputs" and "outputs" must be what its op, begin and end touch. The graph is verified,
// so that these are in range.
static mgl_status check_operands(const json_t *object, const char *where, const mgl_graph *program,
                                 const mgl_task_graph *graph, uint32_t task_idx, mgl_error *err) {
  static const char *const keys[] = {"inputs", "outputs"};
  const mgl_task *task = &graph->tasks[task_idx];
  mgl_tile_operand operands[MGL_TILE_MAX_OPERANDS];
  uint32_t count = 0;
  if (task->op != MGL_NO_OP) {
    count = mgl_tile_operands(program, &program->ops[task->op], graph->tokens,
                              graph->attention_strides, task->begin, task->end, operands);
  }
  size_t found[2] = {0, 0};
  for (uint32_t i = 0; i < count; i++) {
    size_t side = operands[i].input == MGL_TILE_OUTPUT ? 1 : 0;
    operand_view expected = view_of(program, &operands[i].region);
    const json_t *value = json_array_get(json_object_get(object, keys[side]), found[side]);
    if (!is_operand(value, &expected)) {
      return mgl_error_set(err, MGL_ERR_FORMAT,
                           "%s: task %u: \"%s\", entry %zu: expected \"%s\", offset %" PRIu64
                           ", dims [%" PRIu64 ", %" PRIu64
                           "], as its op, begin and end say, found something else",
                           where, task_idx, keys[side], found[side], expected.base_ptr,
                           expected.offset, expected.dims[0], expected.dims[1]);
    }
    found[side]++;
  }
  for (size_t side = 0; side < 2; side++) {
    const json_t *list = json_object_get(object, keys[side]);
    if (!json_is_array(list) || json_array_size(list) != found[side]) {
      return mgl_error_set(err, MGL_ERR_FORMAT,
                           "%s: task %u: \"%s\": expected an array of %zu, as its op says", where,
                           task_idx, keys[side], found[side]);
    }
  }
  return MGL_OK;
}

static mgl_status check_all_operands(const json_t *root, const char *where,
                                     const mgl_graph *program, const mgl_task_graph *graph,
                                     mgl_error *err) {
  const json_t *tasks = json_object_get(root, "all_tasks");
  for (uint32_t i = 0; i < graph->task_count; i++) {
    MGL_TRY(check_operands(json_array_get(tasks, i), where, program, graph, i, err));
  }
  return MGL_OK;
}

static mgl_status read_root(const json_t *root, const char *where, mgl_graph **program,
                            mgl_task_graph *graph, mgl_error *err) {
  MGL_TRY(read_header(root, where, program, graph, err));
  MGL_TRY(read_lists(root, where, graph, err));
  MGL_TRY(read_offsets(root, where, *program, graph, err));
  mgl_status status = mgl_task_graph_verify(*program, graph, err);
  if (status != MGL_OK) {
    mgl_error_prefix(err, "%s", where);
    return status;
  }
  return check_all_operands(root, where, *program, graph, err);
}

mgl_status mgl_task_graph_read_json(const char *text, size_t bytes, const char *where,
                                    mgl_graph **out_program, mgl_task_graph **out_graph,
                                    mgl_error *err) {
  json_t *root = NULL;
  *out_program = NULL;
  *out_graph = NULL;
  if (bytes > MGL_TASK_GRAPH_JSON_MAX_BYTES) {
    return mgl_error_set(err, MGL_ERR_LIMIT, "%s: %zu bytes, at most %d are read", where, bytes,
                         MGL_TASK_GRAPH_JSON_MAX_BYTES);
  }
  MGL_TRY(mgl_json_parse(text, bytes, where, &root, err));
  mgl_task_graph *graph = mgl_alloc_zeroed(1, sizeof *graph);
  mgl_graph *program = NULL;
  mgl_status status = graph == NULL ? mgl_error_set(err, MGL_ERR_MEMORY, "%s: out of memory", where)
                                    : read_root(root, where, &program, graph, err);
  json_decref(root);
  if (status != MGL_OK) {
    mgl_task_graph_destroy(graph);
    mgl_graph_destroy(program);
    return status;
  }
  *out_program = program;
  *out_graph = graph;
  return MGL_OK;
}
