// The cut follows the program once, in order: what is known of an op's inputs says how the op is
// cut, and that what is known of its output. Only of linears of whole rows one has to look at who
// reads them: heads, inner features and logits are worth cutting, a router's scores are not.
#include "compile/shard.h"

#include <stdio.h>
#include <string.h>

#include "base/alloc.h"

// What a rank has of an activation or a KV tensor.
typedef enum extent {
  WHOLE,    // all of it, as every other rank
  CUT,      // some of its heads or columns
  PARTIAL,  // all elements, each a part of a sum over the ranks
} extent;

typedef struct sharder {
  const mgl_graph *in;
  mgl_graph *out;
  uint32_t ranks;
  const mgl_shard_options *options;
  extent *extents;   // [tensors] of activations and KV tensors
  uint32_t *shares;  // [tensors] of those that are cut: ranks that have the same part
  uint32_t *map;     // [tensors] index in `out`, or MGL_NO_TENSOR
  uint32_t *parts;   // [tensors] likewise, of the rank's rows of a table that two ops read
  mgl_error *err;
} sharder;

static const mgl_tensor *tensor_of(const sharder *s, uint32_t tensor) {
  return &s->in->tensors[tensor];
}

static mgl_status refuse(const sharder *s, uint32_t tensor, const char *why) {
  return mgl_error_set(s->err, MGL_ERR_UNSUPPORTED, "%u ranks: \"%s\": %s", s->ranks,
                       tensor_of(s, tensor)->name, why);
}

// --- declaring -----------------------------------------------------------------------------------

// Declares a tensor with dim `dim` as a rank has it: `count` elements of it.
static uint32_t declare(sharder *s, uint32_t tensor, const char *name, uint32_t dim,
                        uint32_t count) {
  const mgl_tensor *t = tensor_of(s, tensor);
  mgl_dim dims[MGL_GRAPH_MAX_RANK];
  memcpy(dims, t->dims, sizeof dims);
  dims[dim].number = count;
  uint32_t made =
      mgl_graph_form_tensor(s->out, name, t->placement, mgl_tensor_form(t), t->rank, dims);
  if (made != MGL_NO_TENSOR) {
    s->out->tensors[made].made = t->made;
    s->out->tensors[made].k_scale = t->k_scale;
    s->out->tensors[made].v_scale = t->v_scale;
  }
  return made;
}

// An input that every rank has as it is.
static uint32_t whole(sharder *s, uint32_t tensor) {
  if (s->map[tensor] == MGL_NO_TENSOR) {
    const mgl_tensor *t = tensor_of(s, tensor);
    s->map[tensor] = declare(s, tensor, t->name, 0, t->dims[0].number);
  }
  return s->map[tensor];
}

// A weight of which each rank has a part, under a name of its own where others read all of it.
static mgl_status cut_weight(sharder *s, uint32_t tensor, uint32_t dim, uint32_t share,
                             uint32_t *out) {
  const mgl_tensor *t = tensor_of(s, tensor);
  const uint32_t all = t->dims[dim].number;
  char name[MGL_GRAPH_MAX_NAME_BYTES + sizeof MGL_PART_SUFFIX];
  const uint32_t part = (uint32_t)((uint64_t)all * share / s->ranks);
  if ((uint64_t)all * share % s->ranks != 0) {
    return mgl_error_set(s->err, MGL_ERR_UNSUPPORTED,
                         "%u ranks: \"%s\": its %u %s cannot be cut into %u equal parts", s->ranks,
                         t->name, all, dim + 1 < t->rank || t->rank == 1 ? "rows" : "columns",
                         s->ranks / share);
  }
  if (dim + 1 == t->rank && t->group != 0 && t->group < all && part % t->group != 0) {
    return mgl_error_set(s->err, MGL_ERR_UNSUPPORTED,
                         "%u ranks: \"%s\": parts of %u columns would cut its groups of %u, which "
                         "have a scale each",
                         s->ranks, t->name, part, t->group);
  }
  uint32_t readers = 0;
  for (size_t i = 0; i < s->in->op_count; i++) {
    for (uint32_t j = 0; j < s->in->ops[i].input_count; j++) {
      readers += s->in->ops[i].inputs[j] == tensor;
    }
  }
  const bool renamed = readers > 1;
  (void)snprintf(name, sizeof name, "%s%s", t->name, renamed ? MGL_PART_SUFFIX : "");
  if (s->parts[tensor] != MGL_NO_TENSOR) {
    *out = s->parts[tensor];
    return MGL_OK;
  }
  *out = declare(s, tensor, name, dim, part);
  if (*out != MGL_NO_TENSOR) {
    s->out->tensors[*out].slice =
        (mgl_weight_slice){.whole = all, .dim = dim, .share = share, .renamed = renamed};
  }
  return MGL_OK;
}

// The bias of a weight of experts [E, N, K]: of each expert's the rank's rows.
static mgl_status cut_expert_bias(sharder *s, uint32_t tensor, uint32_t experts, uint32_t *out) {
  const mgl_tensor *t = tensor_of(s, tensor);
  const uint32_t all = t->dims[0].number;
  if (all / experts % s->ranks != 0) {
    return mgl_error_set(
        s->err, MGL_ERR_UNSUPPORTED,
        "%u ranks: \"%s\": its %u elements an expert cannot be cut into equal parts", s->ranks,
        t->name, all / experts);
  }
  *out = declare(s, tensor, t->name, 0, all / s->ranks);
  if (*out != MGL_NO_TENSOR) {
    s->out->tensors[*out].slice = (mgl_weight_slice){.whole = all, .share = 1, .pieces = experts};
  }
  return MGL_OK;
}

// A bias that is to be added once: all of it, of which others than rank 0 have zeros.
static uint32_t first_alone(sharder *s, uint32_t tensor) {
  const uint32_t made = whole(s, tensor);
  if (made != MGL_NO_TENSOR) {
    mgl_tensor *bias = &s->out->tensors[made];
    bias->slice =
        (mgl_weight_slice){.whole = bias->dims[0].number, .share = s->ranks, .only_first = true};
  }
  return made;
}

// Appends the op with inputs of `out`; its result is `output` under that name, with `count`
// elements in dim `dim`.
static void append(sharder *s, mgl_op op, uint32_t output, const char *name, uint32_t dim,
                   uint32_t count) {
  op.output = declare(s, output, name, dim, count);
  if (op.output == MGL_NO_TENSOR) {
    return;  // the graph's sticky error says why
  }
  s->map[output] = op.output;
  mgl_graph_op(s->out, op);
}

// --- ops -----------------------------------------------------------------------------------------

// The same op on what the rank has of its input, with the weights as they are.
static mgl_status keep(sharder *s, const mgl_op *op, extent is, uint32_t share) {
  mgl_op copy = *op;
  const mgl_tensor *t = tensor_of(s, op->output);
  for (uint32_t i = 0; i < op->input_count; i++) {
    if (is == CUT && mgl_op_role(op, i) == MGL_ROLE_SINKS) {  // of the heads that the rank has
      MGL_TRY(cut_weight(s, op->inputs[i], 0, share, &copy.inputs[i]));
    } else {
      copy.inputs[i] = whole(s, op->inputs[i]);
    }
    if (copy.inputs[i] == MGL_NO_TENSOR) {
      return MGL_OK;
    }
  }
  const bool is_kv = t->placement == MGL_PLACE_KV;
  const uint32_t dim = is_kv ? 0 : 1;  // heads, or columns
  uint32_t count = t->dims[dim].number;
  count = is == CUT ? (uint32_t)((uint64_t)count * share / s->ranks) : count;
  s->extents[op->output] = is;
  s->shares[op->output] = share;
  append(s, copy, op->output, t->name, t->rank == 1 ? 0 : dim, count);
  if (t->is_output && s->map[op->output] != MGL_NO_TENSOR) {
    mgl_graph_mark_output(s->out, s->map[op->output]);
  }
  return MGL_OK;
}

// Whether the columns of a linear of whole rows are worth cutting.
static bool is_worth_cutting(const sharder *s, const mgl_op *linear) {
  const mgl_tensor *t = tensor_of(s, linear->output);
  bool reads = t->rank == 3 || t->is_output;
  for (size_t i = 0; i < s->in->op_count; i++) {
    const mgl_op *op = &s->in->ops[i];
    bool takes =
        op->inputs[0] == linear->output || (op->input_count > 1 && op->inputs[1] == linear->output);
    reads |= takes && (op->kind == MGL_OP_SILU_MUL || op->kind == MGL_OP_GELU);
  }
  return reads;
}

// A rank has some of the columns: heads, inner features or logits.
static mgl_status cut_rows(sharder *s, const mgl_op *op) {
  const mgl_tensor *t = tensor_of(s, op->output);
  const uint32_t units = t->dims[1].number;
  const uint32_t share =
      t->rank == 3 && units < s->ranks && s->ranks % units == 0 ? s->ranks / units : 1;
  if ((uint64_t)units * share % s->ranks != 0) {
    return mgl_error_set(s->err, MGL_ERR_UNSUPPORTED,
                         "%u ranks: \"%s\": its %u %s cannot be cut into %u equal parts", s->ranks,
                         t->name, units, t->rank == 3 ? "heads" : "columns", s->ranks);
  }
  mgl_op copy = *op;
  copy.inputs[0] = s->map[op->inputs[0]];
  for (uint32_t i = 1; i < op->input_count; i++) {
    MGL_TRY(cut_weight(s, op->inputs[i], 0, share, &copy.inputs[i]));
    if (copy.inputs[i] == MGL_NO_TENSOR) {
      return MGL_OK;
    }
  }
  char name[MGL_GRAPH_MAX_NAME_BYTES + sizeof MGL_PART_SUFFIX];
  (void)snprintf(name, sizeof name, "%s%s", t->name, t->is_output ? MGL_PART_SUFFIX : "");
  append(s, copy, op->output, name, 1, (uint32_t)((uint64_t)units * share / s->ranks));
  s->extents[op->output] = CUT;
  s->shares[op->output] = share;
  if (t->is_output && s->map[op->output] != MGL_NO_TENSOR) {
    uint32_t all = mgl_graph_all_gather(s->out, t->name, s->map[op->output], s->ranks);
    if (all != MGL_NO_TENSOR) {
      mgl_graph_mark_output(s->out, all);
    }
    s->map[op->output] = all;
    s->extents[op->output] = WHOLE;
  }
  return MGL_OK;
}

// A rank has some of the columns of x, so some of the matrix: the results are parts of a sum.
static mgl_status cut_columns(sharder *s, const mgl_op *op) {
  if (s->shares[op->inputs[0]] != 1) {
    return refuse(s, op->inputs[0], "has fewer query heads than there are ranks");
  }
  mgl_op copy = *op;
  copy.inputs[0] = s->map[op->inputs[0]];
  MGL_TRY(cut_weight(s, op->inputs[1], 1, 1, &copy.inputs[1]));
  for (uint32_t i = 2; i < op->input_count; i++) {
    copy.inputs[i] = first_alone(s, op->inputs[i]);
  }
  if (copy.inputs[1] != MGL_NO_TENSOR && copy.inputs[op->input_count - 1] != MGL_NO_TENSOR) {
    const mgl_tensor *t = tensor_of(s, op->output);
    append(s, copy, op->output, t->name, 1, t->dims[1].number);
    s->extents[op->output] = PARTIAL;
  }
  return MGL_OK;
}

// What all ranks have parts of, added up and onto the residual.
static uint32_t add_up(sharder *s, const char *name, uint32_t residual, uint32_t part) {
  char scattered[MGL_GRAPH_MAX_NAME_BYTES];
  char gathered[MGL_GRAPH_MAX_NAME_BYTES];
  if (part == MGL_NO_TENSOR || !s->options->reduce_scatter ||
      s->out->tensors[part].dims[1].number % s->ranks != 0) {
    return mgl_graph_all_reduce(s->out, name, residual, part, s->ranks);
  }
  (void)snprintf(scattered, sizeof scattered, "%s.share", name);
  (void)snprintf(gathered, sizeof gathered, "%s.sum", name);
  const uint32_t share = mgl_graph_reduce_scatter(s->out, scattered, part, s->ranks);
  const uint32_t sum = share == MGL_NO_TENSOR
                           ? MGL_NO_TENSOR
                           : mgl_graph_all_gather(s->out, gathered, share, s->ranks);
  return sum == MGL_NO_TENSOR ? MGL_NO_TENSOR : mgl_graph_add(s->out, name, residual, sum);
}

// The rows of the tokens that the rank has, and zeros for those of others; then their sum, of which
// each rank makes its columns. (An all_reduce would need zeros to add to.)
static mgl_status cut_table(sharder *s, const mgl_op *op) {
  const mgl_tensor *t = tensor_of(s, op->output);
  const uint32_t table = mgl_op_input(op, MGL_ROLE_TABLE);
  char name[MGL_GRAPH_MAX_NAME_BYTES + sizeof MGL_PART_SUFFIX];
  char share[MGL_GRAPH_MAX_NAME_BYTES + sizeof MGL_PART_SUFFIX];
  mgl_op copy = *op;
  for (uint32_t i = 0; i < op->input_count; i++) {
    if (op->inputs[i] == table) {
      MGL_TRY(cut_weight(s, table, 0, 1, &copy.inputs[i]));
      s->parts[table] = copy.inputs[i];
    } else {
      copy.inputs[i] = whole(s, op->inputs[i]);
    }
    if (copy.inputs[i] == MGL_NO_TENSOR) {
      return MGL_OK;
    }
  }
  copy.attrs[MGL_ATTR_OVER] = s->ranks;
  (void)snprintf(name, sizeof name, "%s" MGL_PART_SUFFIX, t->name);
  (void)snprintf(share, sizeof share, "%s.share", t->name);
  append(s, copy, op->output, name, 1, t->dims[1].number);
  if (s->map[op->output] != MGL_NO_TENSOR) {
    s->map[op->output] = mgl_graph_reduce_scatter(s->out, share, s->map[op->output], s->ranks);
  }
  if (s->map[op->output] != MGL_NO_TENSOR) {
    s->map[op->output] = mgl_graph_all_gather(s->out, t->name, s->map[op->output], s->ranks);
  }
  s->extents[op->output] = WHOLE;
  return MGL_OK;
}

// --- mixtures of experts: a rank has the same inner features of every expert ---------------------

// What an op of experts reads of activations must be there as a whole, but for `cut`.
static mgl_status check_experts(const sharder *s, const mgl_op *op, mgl_role cut) {
  for (uint32_t i = 0; i < op->input_count; i++) {
    const extent expected = cut != MGL_ROLE_NONE && mgl_op_role(op, i) == cut ? CUT : WHOLE;
    if (tensor_of(s, op->inputs[i])->placement == MGL_PLACE_ACTIVATION &&
        (s->extents[op->inputs[i]] != expected || s->shares[op->inputs[i]] != 1)) {
      return refuse(s, op->inputs[i], "is cut in another way than experts need it");
    }
  }
  return MGL_OK;
}

static mgl_status cut_experts(sharder *s, const mgl_op *op) {
  const mgl_tensor *t = tensor_of(s, op->output);
  mgl_op copy = *op;
  MGL_TRY(check_experts(s, op, MGL_ROLE_NONE));
  for (uint32_t i = 0; i < op->input_count; i++) {
    const mgl_role role = mgl_op_role(op, i);
    if (role == MGL_ROLE_EXPERTS) {
      MGL_TRY(cut_weight(s, op->inputs[i], 1, 1, &copy.inputs[i]));
    } else if (role == MGL_ROLE_EXPERT_BIAS) {
      const uint32_t experts = mgl_graph_input(s->in, op, MGL_ROLE_EXPERTS)->dims[0].number;
      MGL_TRY(cut_expert_bias(s, op->inputs[i], experts, &copy.inputs[i]));
    } else {
      copy.inputs[i] = whole(s, op->inputs[i]);
    }
    if (copy.inputs[i] == MGL_NO_TENSOR) {
      return MGL_OK;
    }
  }
  append(s, copy, op->output, t->name, 1, t->dims[1].number / s->ranks);
  s->extents[op->output] = CUT;
  return MGL_OK;
}

// Each rank adds what its features come to, to zeros; the sum over the ranks goes to the residual.
static mgl_status add_experts(sharder *s, const mgl_op *op) {
  const mgl_tensor *t = tensor_of(s, op->output);
  mgl_op copy = *op;
  char name[MGL_GRAPH_MAX_NAME_BYTES + sizeof MGL_PART_SUFFIX];
  MGL_TRY(check_experts(s, op, MGL_ROLE_X));
  const uint32_t residual = whole(s, mgl_op_input(op, MGL_ROLE_RESIDUAL));
  if (residual == MGL_NO_TENSOR) {
    return MGL_OK;
  }
  (void)snprintf(name, sizeof name, "%s.zeros", t->name);
  const uint32_t zeros = mgl_graph_zeros(s->out, name, residual);
  for (uint32_t i = 0; i < op->input_count; i++) {
    const mgl_role role = mgl_op_role(op, i);
    if (role == MGL_ROLE_EXPERTS) {
      MGL_TRY(cut_weight(s, op->inputs[i], 2, 1, &copy.inputs[i]));
    } else {
      copy.inputs[i] = role == MGL_ROLE_RESIDUAL      ? zeros
                       : role == MGL_ROLE_EXPERT_BIAS ? first_alone(s, op->inputs[i])
                                                      : whole(s, op->inputs[i]);
    }
    if (copy.inputs[i] == MGL_NO_TENSOR) {
      return MGL_OK;
    }
  }
  (void)snprintf(name, sizeof name, "%s" MGL_PART_SUFFIX, t->name);
  append(s, copy, op->output, name, 1, t->dims[1].number);
  if (s->map[op->output] != MGL_NO_TENSOR) {
    s->map[op->output] = add_up(s, t->name, residual, s->map[op->output]);
  }
  s->extents[op->output] = WHOLE;
  return MGL_OK;
}

// -------------------------------------------------------------------------------------------------

static mgl_status reduce(sharder *s, const mgl_op *add) {
  if (s->extents[add->inputs[0]] != WHOLE || tensor_of(s, add->output)->is_output) {
    return refuse(s, add->output, "expected to add a sum over the ranks to what all ranks have");
  }
  s->map[add->output] =
      add_up(s, tensor_of(s, add->output)->name, s->map[add->inputs[0]], s->map[add->inputs[1]]);
  s->extents[add->output] = WHOLE;
  return MGL_OK;
}

// What the rank has of the op's first input, which the others must agree with.
static mgl_status find_extent(const sharder *s, const mgl_op *op, extent *is, uint32_t *share) {
  *is = s->extents[op->inputs[0]];
  *share = s->shares[op->inputs[0]];
  for (uint32_t i = 0; i < op->input_count; i++) {
    const mgl_role role = mgl_op_role(op, i);
    const mgl_placement placement = tensor_of(s, op->inputs[i])->placement;
    if ((placement != MGL_PLACE_ACTIVATION && placement != MGL_PLACE_KV) ||
        role == MGL_ROLE_ANGLES) {
      continue;
    }
    if (s->extents[op->inputs[i]] == PARTIAL) {
      return refuse(s, op->inputs[i], "a sum over the ranks is read by more than an add");
    }
    if (s->extents[op->inputs[i]] != *is ||
        (s->shares[op->inputs[i]] != *share && role != MGL_ROLE_KV)) {
      return refuse(s, op->inputs[i], "is cut in another way than what it meets");
    }
  }
  return MGL_OK;
}

static mgl_status shard_op(sharder *s, const mgl_op *op) {
  extent is = WHOLE;
  uint32_t share = 1;
  if (op->kind == MGL_OP_ADD && s->extents[op->inputs[1]] == PARTIAL) {
    return reduce(s, op);
  }
  if (mgl_op_info_of(op->kind)->unit == MGL_UNIT_EXPERT) {
    return mgl_op_input(op, MGL_ROLE_RESIDUAL) == MGL_NO_TENSOR ? cut_experts(s, op)
                                                                : add_experts(s, op);
  }
  MGL_TRY(find_extent(s, op, &is, &share));
  const mgl_unit unit = mgl_op_info_of(op->kind)->unit;
  if (op->kind == MGL_OP_LINEAR) {
    return is == CUT                 ? cut_columns(s, op)
           : is_worth_cutting(s, op) ? cut_rows(s, op)
                                     : keep(s, op, WHOLE, 1);
  }
  const uint32_t table = mgl_op_input(op, MGL_ROLE_TABLE);
  if (table != MGL_NO_TENSOR && s->options->vocab_parallel &&
      tensor_of(s, table)->dims[0].number % s->ranks == 0 &&
      tensor_of(s, op->output)->dims[1].number % s->ranks == 0) {
    return cut_table(s, op);
  }
  if (unit == MGL_UNIT_COLUMN || mgl_op_kind_is_exchange(op->kind)) {
    return mgl_error_set(s->err, MGL_ERR_UNSUPPORTED,
                         "%u ranks: \"%s\": the op %s runs on one rank so far", s->ranks,
                         tensor_of(s, op->output)->name, mgl_op_info_of(op->kind)->name);
  }
  if (unit == MGL_UNIT_VECTOR && is == CUT &&
      mgl_op_vector_elements(s->in, op) != tensor_of(s, op->output)->dims[2].number) {
    return refuse(s, op->output, "a norm over all heads together runs on one rank so far");
  }
  return keep(s, op, is, share);
}

static mgl_status shard_ops(sharder *s) {
  for (size_t i = 0; i < s->in->op_count && s->out->error.status == MGL_OK; i++) {
    MGL_TRY(shard_op(s, &s->in->ops[i]));
  }
  return mgl_graph_finish(s->out, s->err);
}

mgl_status mgl_shard_program(const mgl_graph *program, uint32_t ranks, mgl_graph **out,
                             mgl_error *err) {
  return mgl_shard_program_by(program, &(mgl_shard_options){.ranks = ranks}, out, err);
}

mgl_status mgl_shard_program_by(const mgl_graph *program, const mgl_shard_options *options,
                                mgl_graph **out, mgl_error *err) {
  const uint32_t ranks = options->ranks;
  *out = NULL;
  if (ranks < 2 || ranks > MGL_MAX_RANKS) {
    return mgl_error_set(err, MGL_ERR_ARGUMENT, "ranks: expected 2 to %d, found %u", MGL_MAX_RANKS,
                         ranks);
  }
  const size_t tensors = program->tensor_count;
  sharder s = {.in = program, .ranks = ranks, .options = options, .err = err};
  MGL_TRY(mgl_graph_create(program->name, &s.out, err));
  s.extents = mgl_alloc_zeroed(tensors, sizeof *s.extents);
  s.shares = mgl_alloc_zeroed(tensors, sizeof *s.shares);
  s.map = mgl_alloc_zeroed(tensors, sizeof *s.map);
  s.parts = mgl_alloc_zeroed(tensors, sizeof *s.parts);
  mgl_status status = MGL_OK;
  if (s.extents == NULL || s.shares == NULL || s.map == NULL || s.parts == NULL) {
    status = mgl_error_set(err, MGL_ERR_MEMORY, "out of memory cutting %zu tensors", tensors);
  } else {
    for (size_t i = 0; i < tensors; i++) {
      s.shares[i] = 1;
      s.map[i] = MGL_NO_TENSOR;
      s.parts[i] = MGL_NO_TENSOR;
    }
    status = shard_ops(&s);
  }
  mgl_free(s.extents);
  mgl_free(s.shares);
  mgl_free(s.map);
  mgl_free(s.parts);
  if (status != MGL_OK) {
    mgl_graph_destroy(s.out);
    return status;
  }
  *out = s.out;
  return MGL_OK;
}
