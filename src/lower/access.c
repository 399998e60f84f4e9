// Of task graphs and launches, ops are the program's, and what their units touch task/tile.h says.
// Buffers are tensors; where an op takes over its input's storage the tensors of the chain are one
// buffer, but not by words, where every activation has storage of its own.
//
// In stages ops are cut otherwise, and activations lie in buffers that all layers share. Each op is
// ordered against each other one as a whole, so rectangles are whole buffers, but for tiles of
// tokens that are turned (MGL_WIDE_TURNED), which rows are numbers of; what is there at which time,
// the values say.
#include "lower/access.h"

#include <assert.h>

#include "lower/stages.h"
#include "task/tile.h"
#include "twin/wide_run.h"

// Buffers of stages; K and V of layers follow, by their tensors' numbers.
typedef enum stage_buffer {
  BUFFER_RESIDUAL,
  BUFFER_SQUARES,
  BUFFER_X,
  BUFFER_QKV,
  BUFFER_Q,
  BUFFER_ATTENDED,
  BUFFER_GATED,
  BUFFER_GATHERED,
  BUFFER_LOGITS,
  BUFFER_ANGLES,
  BUFFER_PARTS,
  BUFFER_INBOX,  // of exchanges of even number, and
  BUFFER_INBOX_ODD,
  BUFFER_ROUTER,
  BUFFER_ROUTES,
  BUFFER_SORTED,
  BUFFER_LISTS,
  BUFFER_SLOT_SUMS,
  BUFFER_WIDENED,  // and the other regions of mgl_widened
  BUFFER_WIDENED_LAST = BUFFER_WIDENED + MGL_WIDENED_COUNT - 1,
  BUFFER_COUNT,
} stage_buffer;

static const char *const stage_names[BUFFER_COUNT] = {
    [BUFFER_RESIDUAL] = "residual",
    [BUFFER_SQUARES] = "squares",
    [BUFFER_X] = "x",
    [BUFFER_QKV] = "qkv",
    [BUFFER_Q] = "q",
    [BUFFER_ATTENDED] = "attended",
    [BUFFER_GATED] = "gated",
    [BUFFER_GATHERED] = "gathered",
    [BUFFER_LOGITS] = "logits",
    [BUFFER_ANGLES] = "angles",
    [BUFFER_PARTS] = "parts",
    [BUFFER_INBOX] = "inbox of even exchanges",
    [BUFFER_INBOX_ODD] = "inbox of odd exchanges",
    [BUFFER_ROUTER] = "router's logits",
    [BUFFER_ROUTES] = "routes",
    [BUFFER_SORTED] = "rows sorted by expert",
    [BUFFER_LISTS] = "lists of sorted rows",
    [BUFFER_SLOT_SUMS] = "sums of slots",
    [BUFFER_WIDENED + MGL_WIDENED_QKV] = "widened qkv_proj",
    [BUFFER_WIDENED + MGL_WIDENED_O] = "widened o",
    [BUFFER_WIDENED + MGL_WIDENED_GATE_UP] = "widened gate_up",
    [BUFFER_WIDENED + MGL_WIDENED_DOWN] = "widened down",
};

// Values are tensors of the program, and what stages make beside them, of an op.
typedef enum value_kind {
  VALUE_TENSOR,
  VALUE_NORM,     // the weighed input of op, and its sums of squares
  VALUE_ROTATED,  // queries of attend
  VALUE_PARTS,    // of the sums of a linear_add; `splits` of them
  VALUE_OWN,      // what the steps of an op leave for each other
  VALUE_ROUTES,   // of experts_up: routes, and how many rows of each unit have each expert
  VALUE_SORTED,   // of experts_up: x and lists
  VALUE_SLOTS,    // of experts_down: what is added
  VALUE_WIDENED,  // the weights of an op as bf16
} value_kind;

static uint64_t value_of(value_kind kind, uint32_t splits, uint32_t index) {
  return (uint64_t)kind << 48 | (uint64_t)splits << 32 | index;
}

typedef struct access_list {
  const mgl_graph *program;
  const mgl_schedule *schedule;
  mgl_access *out;
  uint32_t count;
  uint32_t row_begin, row_end;  // of an op of stages: tiles of tokens
} access_list;

static void add(access_list *list, bool writes, uint32_t buffer, uint64_t value) {
  assert(list->count < MGL_ACCESS_MAX);
  list->out[list->count++] = (mgl_access){.buffer = buffer,
                                          .row_begin = list->row_begin,
                                          .row_end = list->row_end,
                                          .column_end = 1,
                                          .writes = writes,
                                          .value = value};
}

static void add_read(access_list *list, uint32_t buffer, uint64_t value) {
  add(list, false, buffer, value);
}

static void add_write(access_list *list, uint32_t buffer, uint64_t value) {
  add(list, true, buffer, value);
}

// --- ops of the program --------------------------------------------------------------------------

// The tensor whose storage `tensor` has.
static uint32_t root_of(const access_list *list, uint32_t tensor) {
  const mgl_graph *program = list->program;
  if (list->schedule->lowering == MGL_LOWER_WORDS) {
    return tensor;
  }
  for (size_t i = program->op_count; i-- > 0;) {
    const mgl_op *op = &program->ops[i];
    if (op->output == tensor && mgl_op_info_of(op->kind)->in_place) {
      tensor = op->inputs[0];
    }
  }
  return tensor;
}

static void add_region(access_list *list, const mgl_region *r, bool writes, uint64_t value) {
  assert(list->count < MGL_ACCESS_MAX);
  list->out[list->count++] = (mgl_access){.buffer = root_of(list, r->tensor),
                                          .row_begin = r->row_begin,
                                          .row_end = r->row_end,
                                          .column_begin = r->column_begin,
                                          .column_end = r->column_end,
                                          .writes = writes,
                                          .value = value};
}

static void add_tile(access_list *list, uint32_t op_idx, uint32_t begin, uint32_t end) {
  const mgl_op *op = &list->program->ops[op_idx];
  mgl_tile_access tile;
  mgl_tile_regions(list->program, op, list->schedule->tokens, list->schedule->strides, begin, end,
                   &tile);
  for (uint32_t i = 0; i < tile.read_count; i++) {
    add_region(list, &tile.reads[i], false, tile.reads[i].tensor);
  }
  for (uint32_t i = 0; i < tile.write_count; i++) {
    uint32_t tensor = tile.writes[i].tensor;
    bool taken_over = tensor != op->output &&
                      list->program->tensors[tensor].placement != (mgl_placement)MGL_PLACE_KV;
    if (!taken_over || list->schedule->lowering != MGL_LOWER_WORDS) {
      add_region(list, &tile.writes[i], true, taken_over ? op->output : tensor);
    }
  }
}

// --- stages --------------------------------------------------------------------------------------

// The op that computes a tensor.
static const mgl_op *producer_of(const mgl_graph *program, uint32_t tensor) {
  for (size_t i = 0; i < program->op_count; i++) {
    if (program->ops[i].output == tensor) {
      return &program->ops[i];
    }
  }
  return NULL;
}

static uint32_t index_of(const access_list *list, const mgl_op *op) {
  return (uint32_t)(op - list->program->ops);
}

// Where a linear_add leaves parts: beyond one rank in an inbox, which exchanges use in turn.
static uint32_t parts_of(const access_list *list, const mgl_op *linear_add) {
  uint32_t number = 0;
  for (const mgl_op *op = list->program->ops; op < linear_add; op++) {
    number += mgl_stages_ranks(list->program, op) > 1 && op->kind == MGL_OP_LINEAR_ADD ? 1 : 0;
  }
  return mgl_stages_ranks(list->program, linear_add) == 1 ? (uint32_t)BUFFER_PARTS
                                                          : BUFFER_INBOX + number % 2;
}

// Over which the sums are that a norm adds.
static uint32_t ranks_of_norm(const access_list *list, const mgl_schedule_op *norm) {
  const mgl_op *op = &list->program->ops[norm->op];
  return mgl_stages_ranks(list->program, producer_of(list->program, op->inputs[0]));
}

// The norm of linear `op_idx`: it reads its residual stream, of which `parts` parts are still to be
// added where the linear before left them.
static void add_norm(access_list *list, uint32_t op_idx, uint32_t parts) {
  const mgl_op *op = &list->program->ops[op_idx];
  const mgl_op *before = producer_of(list->program, op->inputs[0]);
  bool gathers = op->kind == MGL_OP_LOGITS;
  uint64_t norm = value_of(VALUE_NORM, 0, op_idx);
  if (parts > 1 && before != NULL && before->kind == MGL_OP_LINEAR_ADD) {
    add_read(list, BUFFER_RESIDUAL, before->inputs[0]);
    add_read(list, parts_of(list, before), value_of(VALUE_PARTS, parts, index_of(list, before)));
    // Of the rows that are gathered; nothing reads the others any more.
    add_write(list, BUFFER_RESIDUAL, op->inputs[0]);
  } else {
    add_read(list, BUFFER_RESIDUAL, op->inputs[0]);
  }
  add_write(list, gathers ? BUFFER_GATHERED : BUFFER_X, norm);
  add_write(list, BUFFER_SQUARES, norm);
}

static void add_rotation(access_list *list, uint32_t attend_idx) {
  const mgl_op *attend = &list->program->ops[attend_idx];
  add_read(list, BUFFER_ANGLES, attend->inputs[2]);
  add_write(list, BUFFER_Q, value_of(VALUE_ROTATED, 0, attend_idx));
  add_write(list, BUFFER_COUNT + attend->inputs[1], attend->inputs[1]);
}

static void add_linear_add(access_list *list, const mgl_schedule_op *s) {
  const mgl_op *op = &list->program->ops[s->op];
  bool attended = list->program->tensors[op->inputs[1]].rank == 3;
  add_read(list, attended ? BUFFER_ATTENDED : BUFFER_GATED, op->inputs[1]);
  const uint32_t ranks = mgl_stages_ranks(list->program, op);
  if (ranks > 1 && (s->flags & MGL_WIDE_WEIGHS) == 0) {  // others' come from the same ops of theirs
    add_write(list, parts_of(list, op), value_of(VALUE_PARTS, ranks * s->splits, s->op));
  } else if (s->splits == 1) {
    add_read(list, BUFFER_RESIDUAL, op->inputs[0]);
    add_write(list, BUFFER_RESIDUAL, op->output);
    if (s->first_shared != MGL_NOT_SHARED) {
      add_write(list, BUFFER_PARTS, value_of(VALUE_OWN, 0, s->op));
    }
  } else if ((s->flags & MGL_WIDE_WEIGHS) == 0) {
    add_write(list, BUFFER_PARTS, value_of(VALUE_PARTS, s->splits, s->op));
  } else {
    add_read(list, BUFFER_RESIDUAL, op->inputs[0]);
    add_write(list, BUFFER_PARTS, value_of(VALUE_OWN, 0, s->op));
    if (ranks > 1) {
      add_write(list, parts_of(list, op), value_of(VALUE_OWN, 0, s->op));
    }
    add_write(list, BUFFER_RESIDUAL, op->output);
    add_write(list, BUFFER_X, value_of(VALUE_NORM, 0, s->with));
    add_write(list, BUFFER_SQUARES, value_of(VALUE_NORM, 0, s->with));
  }
}

// A linear with a norm, whose input it reads weighed.
static void add_normed_linear(access_list *list, const mgl_schedule_op *s) {
  const mgl_op *op = &list->program->ops[s->op];
  uint64_t norm = value_of(VALUE_NORM, 0, s->op);
  add_read(list, op->kind == MGL_OP_LOGITS ? BUFFER_GATHERED : BUFFER_X, norm);
  add_read(list, BUFFER_SQUARES, norm);
  if (s->first_shared != MGL_NOT_SHARED) {
    add_write(list, BUFFER_PARTS, value_of(VALUE_OWN, 0, s->op));
  }
  if ((s->flags & MGL_WIDE_ROTATES) != 0) {
    add_rotation(list, s->with);
    return;
  }
  add_write(list,
            op->kind == MGL_OP_QKV_PROJ  ? BUFFER_QKV
            : op->kind == MGL_OP_GATE_UP ? BUFFER_GATED
            : op->kind == MGL_OP_ROUTER  ? BUFFER_ROUTER
                                         : BUFFER_LOGITS,
            op->output);
}

// An op of experts, or a part of it.
static void add_experts(access_list *list, const mgl_schedule_op *s) {
  const mgl_op *op = &list->program->ops[s->op];
  const bool up = mgl_stages_mixture_of(list->program, op).up;
  const bool around = s->kind != (uint32_t)op->kind;
  const uint32_t of_up = index_of(list, up ? op : producer_of(list->program, op->inputs[1]));
  const uint64_t routes = value_of(VALUE_ROUTES, 0, of_up);
  const uint64_t sorted = value_of(VALUE_SORTED, 0, of_up);
  const uint64_t slots = value_of(VALUE_SLOTS, 0, s->op);
  if (around && up && (s->flags & MGL_WIDE_GATHERS) == 0) {
    add_read(list, BUFFER_ROUTER, mgl_op_input(op, MGL_ROLE_ROUTER));
    add_write(list, BUFFER_ROUTES, routes);
    return;
  }
  if (around && up) {
    const mgl_op *router = mgl_stages_router_of(list->program, op);
    const uint64_t norm = value_of(VALUE_NORM, 0, index_of(list, router));
    add_read(list, BUFFER_ROUTES, routes);
    add_read(list, BUFFER_X, norm);
    add_read(list, BUFFER_SQUARES, norm);
    add_write(list, BUFFER_SORTED, sorted);
    add_write(list, BUFFER_LISTS, sorted);
    return;
  }
  add_read(list, BUFFER_LISTS, sorted);
  if (around) {
    add_read(list, BUFFER_SLOT_SUMS, slots);
    add_read(list, BUFFER_RESIDUAL, op->inputs[0]);
    add_write(list, BUFFER_RESIDUAL, op->output);
    if ((s->flags & MGL_WIDE_WEIGHS) != 0) {
      add_write(list, BUFFER_X, value_of(VALUE_NORM, 0, s->with));
      add_write(list, BUFFER_SQUARES, value_of(VALUE_NORM, 0, s->with));
    }
  } else if (up) {
    add_read(list, BUFFER_SORTED, sorted);
    add_write(list, BUFFER_GATED, op->output);
  } else {
    add_read(list, BUFFER_GATED, op->inputs[1]);
    add_write(list, BUFFER_SLOT_SUMS, slots);
  }
}

// Where the bf16 of an op's codes lies.
static uint32_t widened_of(const access_list *list, uint32_t op_idx) {
  return (uint32_t)BUFFER_WIDENED +
         (uint32_t)mgl_stages_widened(list->program, &list->program->ops[op_idx]);
}

// The tiles of tokens of units [begin, end): of a turned linear the one that they are stages of, of
// a turned rotation those that have the rows; of a turned norm those of all ranks among which its
// own one is, since the others' steps write there.
static void set_rows(access_list *list, const mgl_schedule_op *s, uint32_t begin, uint32_t end) {
  const uint32_t tile_tokens = list->schedule->tile_tokens;
  list->row_begin = 0;
  list->row_end = list->schedule->tokens / tile_tokens;
  if ((s->flags & MGL_WIDE_TURNED) == 0 || end - begin == s->units) {
    return;
  }
  if (s->kind == MGL_OP_RMSNORM) {
    const uint32_t ranks = ranks_of_norm(list, s);
    const uint32_t units = s->units / (s->rows / tile_tokens / ranks);  // of an own tile
    list->row_begin = begin / units * ranks;
    list->row_end = ((end - 1) / units + 1) * ranks;
  } else if (s->kind == MGL_OP_ATTEND) {
    const uint32_t middle = s->units / 2, half = list->row_end / 2;
    list->row_begin = begin > middle ? half : 0;
    list->row_end = end <= middle + 1 ? half : list->row_end;
  } else if (s->kind == MGL_OP_KV_WRITE) {
    list->row_begin = begin / tile_tokens;
    list->row_end = (end - 1) / tile_tokens + 1;
  } else {
    list->row_begin = begin / (s->units / s->tiles) % (s->rows / tile_tokens);
    list->row_end = list->row_begin + 1;
  }
}

// Rows read keys and values of all rows before them. The steps between two phases have no rows; the
// second one says that keys and values of the first phase's are there.
static void add_attend(access_list *list, const mgl_schedule_op *s, uint32_t begin, uint32_t end) {
  const mgl_op *op = &list->program->ops[s->op];
  const bool turned = (s->flags & MGL_WIDE_TURNED) != 0;
  const bool tells = turned && begin == s->units / 2 && end == begin + 1;
  const bool waits = turned && begin + 1 == s->units / 2 && end == begin + 1;
  if (waits) {
    return;
  }
  const uint32_t first = list->row_begin;
  list->row_begin = 0;
  add_read(list, BUFFER_COUNT + op->inputs[1], op->inputs[1]);
  list->row_begin = first;
  if (!tells) {
    add_read(list, BUFFER_Q, value_of(VALUE_ROTATED, 0, s->op));
    add_write(list, BUFFER_ATTENDED, op->output);
  }
}

static void add_stage_op(access_list *list, const mgl_schedule_op *s, uint32_t begin,
                         uint32_t end) {
  const mgl_op *op = &list->program->ops[s->op];
  if (mgl_stages_mixture_of(list->program, op).experts != 0 && s->kind != MGL_OP_RMSNORM) {
    add_experts(list, s);
    return;
  }
  if (mgl_op_kind_is_exchange((mgl_op_kind)s->kind)) {  // the ranks' logits, in one row
    add_read(list, BUFFER_LOGITS, op->inputs[0]);
    add_write(list, BUFFER_LOGITS, op->output);
    return;
  }
  if ((s->flags & MGL_WIDE_WIDENED) != 0) {
    add_read(list, widened_of(list, s->op), value_of(VALUE_WIDENED, 0, s->op));
  }
  switch (s->kind) {
    case MGL_WIDE_WIDEN:
      add_write(list, widened_of(list, s->op), value_of(VALUE_WIDENED, 0, s->op));
      break;
    case MGL_OP_EMBED: add_write(list, BUFFER_RESIDUAL, op->output); break;
    case MGL_OP_ROPE_ANGLES: add_write(list, BUFFER_ANGLES, op->output); break;
    case MGL_OP_RMSNORM: add_norm(list, s->op, s->splits); break;
    case MGL_OP_KV_WRITE:
      add_read(list, BUFFER_QKV, op->inputs[0]);
      add_rotation(list, s->op);
      break;
    case MGL_OP_ATTEND: add_attend(list, s, begin, end); break;
    case MGL_OP_LINEAR_ADD: add_linear_add(list, s); break;
    default: add_normed_linear(list, s); break;
  }
}

// -------------------------------------------------------------------------------------------------

uint32_t mgl_schedule_accesses(const mgl_graph *program, const mgl_schedule *schedule,
                               uint32_t op_idx, uint32_t begin, uint32_t end,
                               mgl_access out[MGL_ACCESS_MAX]) {
  access_list list = {.program = program, .schedule = schedule, .out = out};
  const mgl_schedule_op *s = &schedule->ops[op_idx];
  if (schedule->lowering == MGL_LOWER_STAGES) {
    set_rows(&list, s, begin, end);
    add_stage_op(&list, s, begin, end);
    return list.count;
  }
  add_tile(&list, s->op, begin, end);
  if (s->with != MGL_NO_OP) {
    add_tile(&list, s->with, 0,
             mgl_tile_units(program, &program->ops[s->with], schedule->tokens, schedule->strides));
  }
  return list.count;
}

uint32_t mgl_access_buffers(const mgl_graph *program, const mgl_schedule *schedule) {
  uint32_t own = schedule->lowering == MGL_LOWER_STAGES ? BUFFER_COUNT : 0;
  return own + (uint32_t)program->tensor_count;
}

uint64_t mgl_access_first_value(const mgl_graph *program, const mgl_schedule *schedule,
                                uint32_t buffer) {
  if (schedule->lowering == MGL_LOWER_STAGES) {
    if (buffer < BUFFER_COUNT) {
      return MGL_ACCESS_NOTHING;
    }
    buffer -= BUFFER_COUNT;
  }
  return program->tensors[buffer].placement == MGL_PLACE_KV ? buffer : MGL_ACCESS_NOTHING;
}

const char *mgl_access_buffer_name(const mgl_graph *program, const mgl_schedule *schedule,
                                   uint32_t buffer) {
  if (schedule->lowering == MGL_LOWER_STAGES) {
    if (buffer < BUFFER_COUNT) {
      return stage_names[buffer];
    }
    buffer -= BUFFER_COUNT;
  }
  return program->tensors[buffer].name;
}

// --- ranks, and what a step takes ----------------------------------------------------------------

uint32_t mgl_stages_ranks(const mgl_graph *program, const mgl_op *op) {
  uint32_t ranks = op->kind == MGL_OP_LINEAR_ADD ? (uint32_t)op->attrs[MGL_ATTR_OVER] : (uint32_t)0;
  for (size_t i = 0; op->kind == MGL_OP_LOGITS && i < program->op_count; i++) {
    const mgl_op *gather = &program->ops[i];
    if (mgl_op_kind_is_exchange(gather->kind) && gather->inputs[0] == op->output) {
      ranks = (uint32_t)gather->attrs[MGL_ATTR_RANKS];
    }
  }
  return ranks > 1 ? ranks : 1;
}

uint32_t mgl_stages_others(const mgl_schedule_op *op, uint32_t trigger) {
  if ((op->flags & (MGL_WIDE_OVER | MGL_WIDE_WEIGHS)) != MGL_WIDE_OVER) {
    return MGL_NO_EVENT;
  }
  const bool apart = op->kind == MGL_OP_RMSNORM && (op->flags & MGL_WIDE_TURNED) != 0;
  return apart ? trigger + 1 : trigger;
}

uint32_t mgl_stages_ranks_of_sums(const mgl_graph *program) {
  uint32_t ranks = 1;
  for (size_t i = 0; i < program->op_count && ranks == 1; i++) {
    const mgl_op *op = &program->ops[i];
    ranks = op->kind == MGL_OP_LINEAR_ADD ? mgl_stages_ranks(program, op) : ranks;
  }
  return ranks;
}

bool mgl_stages_has_ranks(const mgl_graph *program) {
  bool any = false;
  for (size_t i = 0; i < program->op_count; i++) {
    any = any || mgl_stages_ranks(program, &program->ops[i]) > 1;
  }
  return any;
}

enum {               // times, in parts of what a stage of k takes (docs/log/289, 301)
  STAGE = 1024,      // of a tile of MGL_WIDE_MOST_TILE tokens
  TILE = 2800,       // of a tile, besides
  TASK = 5000,       // of any other step, besides its units
  NORM_UNIT = 1577,  // of a warp
};

// Of a step of a linear: whether its tile is of other ranks' tokens.
static bool is_of_others(const mgl_schedule *s, const mgl_schedule_step *step, uint32_t ranks) {
  const mgl_schedule_op *op = &s->ops[step->op];
  const uint32_t tile = op->tiles == 0 ? 0 : step->begin / (op->units / op->tiles);
  return op->tiles > 0 && tile % (op->rows / s->tile_tokens) % ranks != 0;
}

// What is taken first of a layer, of what may run: what is short and awaited by all, then what is
// sent, then what leads to attention.
static uint32_t turn_of(const mgl_schedule *s, const mgl_schedule_step *step, uint32_t ranks) {
  const bool others = is_of_others(s, step, ranks);
  switch (s->ops[step->op].kind) {
    case MGL_OP_KV_WRITE: return 0;
    case MGL_OP_RMSNORM: return 1;
    case MGL_OP_LINEAR_ADD: return others ? 2 : 3;
    case MGL_OP_QKV_PROJ: return others ? 4 : 5;
    case MGL_OP_ATTEND: return 6;
    default: return 7;
  }
}

// Of all steps of attention's two phases, those of one: a prompt that has come from its begin on.
static uint64_t attend_cost(const mgl_graph *program, const mgl_schedule *s,
                            const mgl_schedule_op *op, bool second) {
  const mgl_op *of = &program->ops[op->op];
  const uint64_t head_dim = program->tensors[of->inputs[1]].dims[1].number;
  const uint64_t row = mgl_tensor_row_elements(&program->tensors[of->output]);
  const uint64_t tokens = s->tokens;
  const uint64_t tiles = tokens / 2 * (row / head_dim) / MGL_WIDE_TILE_ROWS;
  const uint64_t steps =
      tokens * (second ? 3 : 1) / 4 / MGL_WIDE_TILE_STEP + MGL_WIDE_TILE_EXTRA;  // of each, mean
  return tiles * steps * head_dim * 21 / s->worker_count;
}

static uint64_t cost_of(const mgl_graph *program, const mgl_schedule *s,
                        const mgl_schedule_step *step) {
  const mgl_schedule_op *op = &s->ops[step->op];
  const mgl_op *of = &program->ops[op->op];
  const uint64_t units = step->end - step->begin;
  if (op->tiles > 0) {
    return TILE + units * STAGE * s->tile_tokens / MGL_WIDE_MOST_TILE;
  }
  switch (op->kind) {
    case MGL_OP_RMSNORM:
      return TASK + (units + MGL_WIDE_CONSUMER_WARPS - 1) / MGL_WIDE_CONSUMER_WARPS * NORM_UNIT;
    case MGL_OP_KV_WRITE:
      return TASK + units * mgl_tensor_row_elements(&program->tensors[of->inputs[0]]) / 2;
    case MGL_OP_ATTEND: {
      const uint32_t middle = op->units / 2;
      const bool has_rows = step->begin != middle && step->begin + 1 != middle;
      return has_rows ? TASK + attend_cost(program, s, op, step->begin > middle) : TASK;
    }
    default: return TASK;
  }
}

// Bytes that a step sends to each other rank.
static uint64_t sent_bytes(const mgl_graph *program, const mgl_schedule *s,
                           const mgl_schedule_step *step) {
  const mgl_schedule_op *op = &s->ops[step->op];
  if (op->kind == MGL_OP_LINEAR_ADD) {
    return is_of_others(s, step, mgl_stages_ranks_of_sums(program))
               ? (uint64_t)MGL_WIDE_FEATURES * s->tile_tokens * sizeof(float)
               : 0;
  }
  return (uint64_t)(step->end - step->begin) * 8 * MGL_WIDE_NORM_RANGE * 2;  // of x, bf16
}

mgl_step_pace mgl_schedule_pace(const mgl_graph *program, const mgl_schedule *schedule,
                                const mgl_schedule_step *step) {
  const uint32_t kind = schedule->ops[step->op].kind;
  const uint32_t ranks = mgl_stages_ranks_of_sums(program);
  return (mgl_step_pace){.turn = turn_of(schedule, step, ranks),
                         .time = cost_of(program, schedule, step),
                         .bytes = sent_bytes(program, schedule, step),
                         .opens = kind == MGL_OP_QKV_PROJ,
                         .backwards = kind == MGL_OP_ATTEND};
}
