#include "compile/split.h"

#include <string.h>

#include "base/alloc.h"
#include "task/tile.h"

static bool has_name(const mgl_graph *program, const mgl_op *op, const char *name) {
  return strcmp(mgl_op_name(op), name) == 0 ||
         strcmp(program->tensors[op->output].name, name) == 0 ||
         (mgl_tile_is_attention(op) && strcmp(name, "attention") == 0);
}

static bool splits(const mgl_graph *program, const mgl_op *op, const mgl_split_options *options) {
  if (options->none || options->every) {
    return options->every;
  }
  bool found = options->count == 0 && mgl_tile_is_attention(op);
  for (uint32_t i = 0; i < options->count && !found; i++) {
    found = has_name(program, op, options->names[i]);
  }
  return found;
}

static mgl_status check_names(const mgl_graph *program, const mgl_split_options *options,
                              mgl_error *err) {
  for (uint32_t i = 0; i < options->count; i++) {
    size_t op = 0;
    while (op < program->op_count && !has_name(program, &program->ops[op], options->names[i])) {
      op++;
    }
    if (op == program->op_count) {
      return mgl_error_set(
          err, MGL_ERR_ARGUMENT,
          "splitting_ops: \"%.64s\" is neither a kind of op of the program nor the "
          "name of one's output; `megalith compile --dump partition` lists them",
          options->names[i]);
    }
  }
  return MGL_OK;
}

mgl_status mgl_split_program(const mgl_graph *program, const mgl_split_options *options,
                             mgl_piece **out, uint32_t *count, mgl_error *err) {
  *out = NULL;
  *count = 0;
  MGL_TRY(check_names(program, options, err));
  mgl_piece *pieces = mgl_alloc_zeroed(program->op_count, sizeof *pieces);
  if (pieces == NULL) {
    return mgl_error_set(err, MGL_ERR_MEMORY, "out of memory for the pieces of a program");
  }
  for (uint32_t i = 0; i < program->op_count; i++) {
    bool alone = splits(program, &program->ops[i], options);
    if (alone || *count == 0 || pieces[*count - 1].splits) {
      pieces[(*count)++] = (mgl_piece){.first = i, .splits = alone};
    }
    pieces[*count - 1].last = i + 1;
  }
  *out = pieces;
  return MGL_OK;
}

mgl_graph mgl_piece_view(const mgl_graph *program, const mgl_piece *piece) {
  mgl_graph view = *program;
  view.ops += piece->first;
  view.op_count = piece->last - piece->first;
  view.op_capacity = 0;
  return view;
}
