// Printer and parser of the text form. The parser goes through the same constructors as the
// families, so that a program from a file has passed the same checks.
#include "graph/graph_text.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "graph/custom_op.h"
#include "graph/kv_cache.h"

static const char symbol_letters[] = {[MGL_DIM_NUMBER] = 0,
                                      [MGL_DIM_TOKENS] = 'T',
                                      [MGL_DIM_LOGIT_ROWS] = 'L',
                                      [MGL_DIM_SEQUENCES] = 'R'};

static const char *const placement_words[] = {[MGL_PLACE_INPUT] = "input",
                                              [MGL_PLACE_WEIGHT] = "weight",
                                              [MGL_PLACE_KV] = "kv",
                                              [MGL_PLACE_ACTIVATION] = NULL};

// --- printing ------------------------------------------------------------------------------------

static void print_type(const mgl_tensor *tensor, mgl_text *out) {
  char form[MGL_FORM_NAME_BYTES];
  mgl_form_name(mgl_tensor_form(tensor), form);
  mgl_text_append_string(out, form);
  for (uint32_t i = 0; i < tensor->rank; i++) {
    mgl_text_append_string(out, i == 0 ? "[" : ",");
    if (tensor->dims[i].symbol == MGL_DIM_NUMBER) {
      mgl_text_format(out, "%" PRIu32, tensor->dims[i].number);
    } else {
      if (tensor->dims[i].number > 1) {  // so many rows a token
        mgl_text_format(out, "%" PRIu32, tensor->dims[i].number);
      }
      mgl_text_append(out, &symbol_letters[tensor->dims[i].symbol], 1);
    }
  }
  mgl_text_append_string(out, "]");
}

// Those that are not 1. (Weights may have the same dtype.)
static void print_kv_scales(const mgl_tensor *tensor, mgl_text *out) {
  if (tensor->placement != MGL_PLACE_KV || tensor->dtype != MGL_DTYPE_KV8) {
    return;
  }
  if (tensor->k_scale != 1) {
    mgl_text_format(out, " k_scale=%.9g", (double)tensor->k_scale);
  }
  if (tensor->v_scale != 1) {
    mgl_text_format(out, " v_scale=%.9g", (double)tensor->v_scale);
  }
}

static void print_op(const mgl_graph *graph, const mgl_op *op, mgl_text *out) {
  const mgl_op_info *info = mgl_op_info_of(op->kind);
  const mgl_tensor *output = &graph->tensors[op->output];
  mgl_text_format(out, "%s = %s(", output->name, mgl_op_name(op));
  for (uint32_t i = 0; i < op->input_count; i++) {
    mgl_text_format(out, "%s%s", i == 0 ? "" : ", ", graph->tensors[op->inputs[i]].name);
  }
  mgl_text_append_string(out, ")");
  for (int attr = 0; attr < MGL_ATTR_COUNT; attr++) {
    bool absent = mgl_attr_is_optional((mgl_attr)attr) && op->attrs[attr] == 0;
    if ((info->attributes >> attr & 1) != 0 && !absent) {
      mgl_text_format(out, " %s=%.17g", mgl_attr_name((mgl_attr)attr), op->attrs[attr]);
    }
  }
  for (uint32_t i = 0; op->custom != NULL && i < op->custom->attr_count; i++) {
    mgl_text_format(out, " %s=%.17g", op->custom->attr_names[i], op->custom_attrs[i]);
  }
  for (uint32_t i = 0; i < op->value_count; i++) {
    mgl_text_format(out, "%s%.9g", i == 0 ? " values=[" : ",", (double)op->values[i]);
  }
  mgl_text_append_string(out, op->value_count > 0 ? "]" : "");
  if (output->placement == MGL_PLACE_ACTIVATION) {
    mgl_text_append_string(out, " : ");
    print_type(output, out);
  }
  mgl_text_append_string(out, "\n");
}

void mgl_graph_print(const mgl_graph *graph, mgl_text *out) {
  mgl_text_format(out, "program %s\n", graph->name);
  for (size_t i = 0; i < graph->tensor_count; i++) {
    const mgl_tensor *tensor = &graph->tensors[i];
    if (placement_words[tensor->placement] != NULL) {
      mgl_text_format(out, "%s %s ", placement_words[tensor->placement], tensor->name);
      print_type(tensor, out);
      print_kv_scales(tensor, out);
      mgl_text_append_string(out, "\n");
    }
  }
  for (size_t i = 0; i < graph->op_count; i++) {
    print_op(graph, &graph->ops[i], out);
  }
  for (size_t i = 0; i < graph->tensor_count; i++) {
    if (graph->tensors[i].is_output) {
      mgl_text_format(out, "output %s\n", graph->tensors[i].name);
    }
  }
}

mgl_status mgl_graph_hash(const mgl_graph *graph, mgl_hash *out, mgl_error *err) {
  mgl_text text = {0};
  mgl_graph_print(graph, &text);
  mgl_status status = mgl_text_check(&text, err);
  if (status == MGL_OK) {
    *out = mgl_hash_bytes(text.data, text.bytes);
  }
  mgl_text_free(&text);
  return status;
}

// --- parsing -------------------------------------------------------------------------------------

// A cursor over one line, which is a NUL-terminated copy.
typedef struct parser {
  const char *at;
  size_t line;
  const char *where;
  mgl_graph *graph;
  mgl_error *err;
  float values[MGL_GRAPH_MAX_VALUES];  // of the op at hand
} parser;

typedef struct word {
  char text[MGL_GRAPH_MAX_NAME_BYTES];
} word;

static mgl_status expected(parser *p, const char *what) {
  return mgl_error_set(p->err, MGL_ERR_FORMAT, "%s line %zu: expected %s, found \"%.40s\"",
                       p->where, p->line, what, p->at);
}

static void skip_blanks(parser *p) {
  p->at += strspn(p->at, " \t\r");
}

static mgl_status parse_word(parser *p, const char *what, word *out) {
  skip_blanks(p);
  size_t bytes = strspn(p->at, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.-");
  if (bytes == 0 || bytes >= sizeof out->text) {
    return expected(p, what);
  }
  memcpy(out->text, p->at, bytes);
  out->text[bytes] = 0;
  p->at += bytes;
  return MGL_OK;
}

static bool take(parser *p, char c) {
  skip_blanks(p);
  if (*p->at != c) {
    return false;
  }
  p->at++;
  return true;
}

static mgl_status parse_dim(parser *p, mgl_dim *out) {
  word text;
  MGL_TRY(parse_word(p, "a dim: T, L, R or a number", &text));
  for (int symbol = MGL_DIM_TOKENS; symbol <= MGL_DIM_SEQUENCES; symbol++) {
    if (text.text[0] == symbol_letters[symbol] && text.text[1] == 0) {
      *out = (mgl_dim){(mgl_dim_symbol)symbol, 0};
      return MGL_OK;
    }
  }
  char *end = NULL;
  unsigned long value = strtoul(text.text, &end, 10);
  bool times = end[0] == symbol_letters[MGL_DIM_TOKENS] && end[1] == 0;
  if (text.text[0] < '0' || text.text[0] > '9' || (*end != 0 && !times) || value < 1 ||
      value > (times ? (unsigned long)MGL_MAX_EXPERTS : INT32_MAX)) {
    return mgl_error_set(p->err, MGL_ERR_FORMAT,
                         "%s line %zu: expected a dim T, L, R, 1 to %d, or 1T to %dT, found "
                         "\"%.40s\"",
                         p->where, p->line, INT32_MAX, MGL_MAX_EXPERTS, text.text);
  }
  *out = times ? MGL_DIM_T_TIMES((uint32_t)value) : MGL_DIM((uint32_t)value);
  return MGL_OK;
}

typedef struct tensor_type {
  mgl_form form;
  uint32_t rank;
  mgl_dim dims[MGL_GRAPH_MAX_RANK];
} tensor_type;

static mgl_status parse_type(parser *p, tensor_type *out) {
  word dtype;
  MGL_TRY(parse_word(p, "a type like f32[T,64]", &dtype));
  *out = (tensor_type){0};
  if (!mgl_form_parse(dtype.text, &out->form) || !take(p, '[')) {
    return mgl_error_set(
        p->err, MGL_ERR_FORMAT,
        "%s line %zu: expected f32[...], f16[...], bf16[...], i32[...] or a form of codes like "
        "i4.128[...], found "
        "\"%.40s\"",
        p->where, p->line, dtype.text);
  }
  do {
    if (out->rank == MGL_GRAPH_MAX_RANK) {
      return expected(p, "']': at most 4 dims");
    }
    MGL_TRY(parse_dim(p, &out->dims[out->rank]));
    // Only the first dim may be a symbol: rows of a tensor have a fixed size.
    if (out->rank > 0 && out->dims[out->rank].symbol != MGL_DIM_NUMBER) {
      return expected(p, "a number: only the first dim may be T, L or R, before");
    }
    out->rank++;
  } while (take(p, ','));
  return take(p, ']') ? MGL_OK : expected(p, "']'");
}

// The graph's sticky error, with the line in front.
static mgl_status forward_graph_error(parser *p) {
  if (p->graph->error.status == MGL_OK) {
    return MGL_OK;
  }
  return mgl_error_set(p->err, p->graph->error.status, "%s line %zu: %s", p->where, p->line,
                       p->graph->error.text);
}

// "k_scale=X" and "v_scale=X", each of which may be left out.
static mgl_status parse_kv_scales(parser *p, mgl_tensor *kv) {
  for (int i = 0; i < 2; i++) {
    char *end = NULL;
    skip_blanks(p);
    if (strncmp(p->at, i == 0 ? "k_scale=" : "v_scale=", 8) != 0) {
      continue;
    }
    p->at += 8;
    float scale = strtof(p->at, &end);
    if (end == p->at || !mgl_kv_scale_is_valid(scale)) {
      return expected(p, "a positive, finite scale");
    }
    *(i == 0 ? &kv->k_scale : &kv->v_scale) = scale;
    p->at = end;
  }
  return MGL_OK;
}

static mgl_status parse_declaration(parser *p, mgl_placement placement) {
  word name;
  tensor_type type;
  MGL_TRY(parse_word(p, "a tensor name", &name));
  MGL_TRY(parse_type(p, &type));
  for (uint32_t i = 0; i < type.rank; i++) {
    if (placement != MGL_PLACE_INPUT && type.dims[i].symbol != MGL_DIM_NUMBER) {
      return expected(p, "numbers only in the dims of a weight or kv, before");
    }
  }
  uint32_t made =
      mgl_graph_form_tensor(p->graph, name.text, placement, type.form, type.rank, type.dims);
  MGL_TRY(forward_graph_error(p));
  mgl_tensor *tensor = &p->graph->tensors[made];
  return placement == MGL_PLACE_KV && tensor->dtype == MGL_DTYPE_KV8 ? parse_kv_scales(p, tensor)
                                                                     : MGL_OK;
}

static mgl_status parse_arguments(parser *p, mgl_op *op) {
  if (!take(p, '(')) {
    return expected(p, "'('");
  }
  do {
    word name;
    MGL_TRY(parse_word(p, "a tensor name", &name));
    uint32_t tensor = mgl_graph_find(p->graph, name.text);
    if (tensor == MGL_NO_TENSOR) {
      return mgl_error_set(p->err, MGL_ERR_FORMAT, "%s line %zu: unknown tensor \"%.64s\"",
                           p->where, p->line, name.text);
    }
    if (op->input_count == MGL_OP_MAX_INPUTS) {
      return expected(p, "')': at most 8 inputs");
    }
    op->inputs[op->input_count++] = tensor;
  } while (take(p, ','));
  return take(p, ')') ? MGL_OK : expected(p, "')' or ','");
}

// "=[NUMBER,NUMBER...]" into p->values.
static mgl_status parse_values(parser *p, mgl_op *op) {
  if (op->kind != MGL_OP_ROPE_ANGLES || op->value_count != 0) {
    return expected(p, "values of rope_angles only, once, before");
  }
  if (*p->at++ != '=' || *p->at++ != '[') {
    p->at--;
    return expected(p, "'=' and '['");
  }
  do {
    char *end = NULL;
    if (op->value_count == MGL_GRAPH_MAX_VALUES) {
      return expected(p, "']': at most 512 values");
    }
    skip_blanks(p);
    p->values[op->value_count++] = strtof(p->at, &end);
    if (end == p->at) {
      return expected(p, "a number");
    }
    p->at = end;
  } while (take(p, ','));
  op->values = p->values;
  return take(p, ']') ? MGL_OK : expected(p, "']' or ','");
}

static uint32_t attribute_count(const mgl_op *op) {
  return op->custom != NULL ? op->custom->attr_count : MGL_ATTR_COUNT;
}

static const char *attribute_name(const mgl_op *op, uint32_t attr) {
  return op->custom != NULL ? op->custom->attr_names[attr] : mgl_attr_name((mgl_attr)attr);
}

static mgl_status parse_attributes(parser *p, mgl_op *op) {
  const uint32_t count = attribute_count(op);
  double *attrs = op->custom != NULL ? op->custom_attrs : op->attrs;
  uint32_t allowed = op->custom != NULL ? (1u << count) - 1 : mgl_op_info_of(op->kind)->attributes;
  uint32_t seen = 0;
  skip_blanks(p);
  while (*p->at != 0 && *p->at != ':') {
    word name;
    MGL_TRY(parse_word(p, "an attribute name", &name));
    if (strcmp(name.text, "values") == 0) {
      MGL_TRY(parse_values(p, op));
      skip_blanks(p);
      continue;
    }
    uint32_t attr = 0;
    while (attr < count && strcmp(name.text, attribute_name(op, attr)) != 0) {
      attr++;
    }
    if (attr == count || (allowed >> attr & 1) == 0 || (seen >> attr & 1) != 0) {
      return mgl_error_set(p->err, MGL_ERR_FORMAT,
                           "%s line %zu: attribute \"%.40s\" is unknown here or given twice",
                           p->where, p->line, name.text);
    }
    char *end = NULL;
    if (*p->at++ != '=' || (attrs[attr] = strtod(p->at, &end), end == p->at) ||
        !isfinite(attrs[attr])) {
      p->at--;
      return expected(p, "'=' and a finite number");
    }
    seen |= 1u << attr;
    p->at = end;
    skip_blanks(p);
  }
  for (uint32_t attr = 0; attr < count; attr++) {
    bool optional = op->custom == NULL && mgl_attr_is_optional((mgl_attr)attr);
    if (((allowed & ~seen) >> attr & 1) != 0 && !optional) {
      return expected(p, "all attributes of the op");
    }
  }
  return MGL_OK;
}

static mgl_status parse_op(parser *p, const char *name) {
  word kind;
  mgl_op op = {0};
  MGL_TRY(parse_word(p, "an op name", &kind));
  int i = 0;
  while (i < MGL_OP_CUSTOM && strcmp(kind.text, mgl_op_info_of((mgl_op_kind)i)->name) != 0) {
    i++;
  }
  op.custom = i < MGL_OP_CUSTOM ? NULL : mgl_custom_op_find(kind.text);
  if (i == MGL_OP_CUSTOM && op.custom == NULL) {
    return mgl_error_set(p->err, MGL_ERR_FORMAT, "%s line %zu: unknown op \"%.40s\"", p->where,
                         p->line, kind.text);
  }
  op.kind = op.custom != NULL && op.custom->updates ? MGL_OP_CUSTOM_UPDATE : (mgl_op_kind)i;
  MGL_TRY(parse_arguments(p, &op));
  MGL_TRY(parse_attributes(p, &op));
  if (take(p, ':')) {
    tensor_type type;
    MGL_TRY(parse_type(p, &type));
    op.output = mgl_graph_form_tensor(p->graph, name, MGL_PLACE_ACTIVATION, type.form, type.rank,
                                      type.dims);
    MGL_TRY(forward_graph_error(p));
  } else {
    op.output = mgl_graph_find(p->graph, name);
    if (op.output == MGL_NO_TENSOR || p->graph->tensors[op.output].placement != MGL_PLACE_KV) {
      return expected(p, "': TYPE' (only a kv tensor is updated without one)");
    }
  }
  mgl_graph_op(p->graph, op);
  return forward_graph_error(p);
}

static mgl_status parse_statement(parser *p) {
  word first;
  skip_blanks(p);
  if (*p->at == 0) {
    return MGL_OK;
  }
  MGL_TRY(parse_word(p, "a statement", &first));
  for (int placement = MGL_PLACE_INPUT; placement <= MGL_PLACE_KV; placement++) {
    if (strcmp(first.text, placement_words[placement]) == 0) {
      MGL_TRY(parse_declaration(p, (mgl_placement)placement));
      goto end_of_line;
    }
  }
  if (strcmp(first.text, "output") == 0) {
    word name;
    MGL_TRY(parse_word(p, "a tensor name", &name));
    uint32_t tensor = mgl_graph_find(p->graph, name.text);
    if (tensor == MGL_NO_TENSOR || p->graph->tensors[tensor].placement != MGL_PLACE_ACTIVATION) {
      return mgl_error_set(p->err, MGL_ERR_FORMAT, "%s line %zu: \"%.64s\" is not an activation",
                           p->where, p->line, name.text);
    }
    mgl_graph_mark_output(p->graph, tensor);
  } else if (take(p, '=')) {
    MGL_TRY(parse_op(p, first.text));
  } else {
    return expected(p, "input, weight, kv, output or NAME = OP(...)");
  }
end_of_line:
  skip_blanks(p);
  return *p->at == 0 ? MGL_OK : expected(p, "the end of the line");
}

// Copies the line that starts at *text into *line, without its comment, and moves *text behind it.
static void next_line(const char **text, const char *end, mgl_text *line) {
  const char *newline = memchr(*text, '\n', (size_t)(end - *text));
  const char *line_end = newline == NULL ? end : newline;
  const char *comment = memchr(*text, '#', (size_t)(line_end - *text));
  const char *content_end = comment == NULL ? line_end : comment;
  mgl_text_clear(line);
  mgl_text_append(line, *text, (size_t)(content_end - *text));
  *text = newline == NULL ? end : newline + 1;
}

static mgl_status parse_lines(parser *p, const char *text, size_t bytes, mgl_text *line) {
  const char *end = text + bytes;
  while (text < end) {
    next_line(&text, end, line);
    p->line++;
    MGL_TRY(mgl_text_check(line, p->err));
    p->at = line->data;
    if (strlen(line->data) != line->bytes) {
      return expected(p, "text without NUL bytes");
    }
    skip_blanks(p);
    if (p->graph != NULL) {
      MGL_TRY(parse_statement(p));
      continue;
    }
    if (*p->at == 0) {
      continue;
    }
    word keyword;
    word name;
    MGL_TRY(parse_word(p, "\"program NAME\"", &keyword));
    if (strcmp(keyword.text, "program") != 0) {
      return expected(p, "\"program NAME\" first, before");
    }
    MGL_TRY(parse_word(p, "a program name", &name));
    skip_blanks(p);
    if (*p->at != 0) {
      return expected(p, "the end of the line");
    }
    MGL_TRY(mgl_graph_create(name.text, &p->graph, p->err));
  }
  return p->graph != NULL ? MGL_OK : expected(p, "\"program NAME\"");
}

mgl_status mgl_graph_parse(const char *text, size_t bytes, const char *where, mgl_graph **out,
                           mgl_error *err) {
  parser p = {.at = "", .where = where, .err = err};
  mgl_text line = {0};
  *out = NULL;
  if (bytes > MGL_GRAPH_TEXT_MAX_BYTES) {
    return mgl_error_set(err, MGL_ERR_LIMIT, "%s: %zu bytes, at most %d are read", where, bytes,
                         MGL_GRAPH_TEXT_MAX_BYTES);
  }
  mgl_status status = parse_lines(&p, text, bytes, &line);
  mgl_text_free(&line);
  if (status == MGL_OK) {
    status = mgl_graph_finish(p.graph, err);
    if (status != MGL_OK) {
      mgl_error_prefix(err, "%s", where);
    }
  }
  if (status != MGL_OK) {
    mgl_graph_destroy(p.graph);
    return status;
  }
  *out = p.graph;
  return MGL_OK;
}
