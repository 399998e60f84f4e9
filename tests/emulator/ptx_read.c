// Reads a PTX text: variables get memory, registers get rows of their function's frame, and labels
// places in the code; what an instruction means is ptx_decode.c's. It knows what NVRTC writes and
// what our inline assembly says, and refuses the rest by its line.
//
// Every virtual register has a row of its own: a frame is large, but what a loop touches is not,
// and pages that nobody touches cost nothing. Rejected: allocation by live ranges.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "emulator/ptx_reader.h"

// --- variables -----------------------------------------------------------------------------------

static uint32_t align_up(uint32_t at, uint32_t to) {
  return (at + to - 1) / to * to;
}

// [.align N] TYPE name [count]: what parameters and variables have in common. No brackets: 1;
// empty ones: 0.
typedef struct declaration {
  emu_slice name;
  uint32_t align, bytes, count;
} declaration;

static declaration read_declaration(emu_reader *r) {
  declaration d = {.count = 1};
  emu_slice w = emu_read_word(r);
  if (emu_slice_is(w, ".align")) {
    d.align = emu_small_number(r);
    w = emu_read_word(r);
  }
  d.bytes = emu_declared_bytes(r, w);
  w = emu_read_word(r);
  while (w.at[0] == '.') {  // .ptr .align N of a parameter
    if (emu_slice_is(w, ".align")) {
      (void)emu_small_number(r);
    }
    w = emu_read_word(r);
  }
  d.name = w;
  if (emu_accept(r, '[')) {
    emu_skip_space(r);
    d.count = *r->at == ']' ? 0 : emu_small_number(r);
    emu_expect(r, ']');
  }
  d.align = d.align != 0 ? d.align : d.bytes;
  return d;
}

static void read_initial(emu_reader *r, const declaration *d, uint8_t *out) {
  uint32_t i = 0;
  const bool braces = emu_accept(r, '{');
  do {
    uint64_t value = 0;
    if (i == d->count || !emu_number(emu_read_word(r), &value)) {
      emu_refuse(r, "an initial value that is no number");
    }
    memcpy(out + (size_t)i++ * d->bytes, &value, d->bytes < 8 ? d->bytes : 8);
  } while (braces && emu_accept(r, ','));
  if (braces) {
    emu_expect(r, '}');
  }
}

static void read_global(emu_reader *r) {
  const declaration d = read_declaration(r);
  emu_global *g = calloc(1, sizeof *g);
  if (g == NULL) {
    emu_refuse(r, "out of memory");
  }
  g->next = r->module->globals;
  r->module->globals = g;
  g->bytes = (size_t)d.bytes * d.count;
  g->name = strndup(d.name.at, d.name.length);
  g->memory = aligned_alloc(256, (g->bytes + 255) / 256 * 256 + 256);
  if (g->name == NULL || g->memory == NULL) {
    emu_refuse(r, "out of memory");
  }
  memset(g->memory, 0, g->bytes);
  if (emu_accept(r, '=')) {
    read_initial(r, &d, g->memory);
  }
  emu_expect(r, ';');
  emu_memory_add(g->memory, g->bytes);
  emu_add_symbol(
      r, (emu_symbol){.name = d.name, .kind = EMU_GLOBAL_AT, .value = (uintptr_t)g->memory});
}

// Dynamic shared memory begins behind all static one, once that is known: its variables stand at
// an address until then that no other constant has.
static const uint64_t DYNAMIC_AT = 0x5eedd00d00000000;

static void read_shared(emu_reader *r, bool external) {
  const declaration d = read_declaration(r);
  emu_module *m = r->module;
  emu_expect(r, ';');
  if (external) {
    m->dynamic_align = d.align > m->dynamic_align ? d.align : m->dynamic_align;
    emu_add_symbol(r, (emu_symbol){.name = d.name, .kind = EMU_SHARED_AT, .value = DYNAMIC_AT});
    return;
  }
  const uint32_t at = align_up(m->shared_bytes, d.align);
  m->shared_bytes = at + d.bytes * d.count;
  emu_add_symbol(
      r, (emu_symbol){.name = d.name, .kind = EMU_SHARED_AT, .value = EMU_SHARED_BASE + at});
}

static void read_local(emu_reader *r) {
  const declaration d = read_declaration(r);
  const uint32_t at = align_up(r->local_bytes, d.align > 16 ? d.align : 16);
  emu_expect(r, ';');
  r->local_bytes = align_up(at + d.bytes * d.count, 16);
  emu_add_symbol(r, (emu_symbol){.name = d.name, .kind = EMU_LOCAL_AT, .value = at});
}

// What a call in this scope passes, in order, and what it returns.
static void read_call_parameter(emu_reader *r) {
  const declaration d = read_declaration(r);
  const bool returned = emu_slice_begins(d.name, "retval");
  emu_expect(r, ';');
  const uint32_t at = returned ? 0 : align_up(r->call_bytes, d.align);
  if (!returned) {
    r->call_bytes = at + d.bytes * d.count;
  } else if (d.bytes * d.count > EMU_RETURN_BYTES) {
    emu_refuse(r, "too large a result");
  }
  emu_add_symbol(r, (emu_symbol){.name = d.name, .kind = EMU_CALL_PARAMETER, .value = at});
}

// --- functions -----------------------------------------------------------------------------------

static void read_parameters(emu_reader *r, emu_function_code *f, bool entry) {
  uint32_t at = entry ? 0 : EMU_RETURN_BYTES;
  if (emu_accept(r, ')')) {
    return;
  }
  do {
    if (!emu_slice_is(emu_read_word(r), ".param")) {
      emu_refuse(r, "a parameter is expected");
    }
    const declaration d = read_declaration(r);
    at = align_up(at, d.align);
    emu_add_symbol(r, (emu_symbol){.name = d.name,
                                   .kind = entry ? EMU_ENTRY_PARAMETER : EMU_OWN_PARAMETER,
                                   .value = at});
    f->parameter_at = realloc(f->parameter_at, (f->parameter_count + 1) * sizeof(uint32_t));
    f->parameter_size = realloc(f->parameter_size, (f->parameter_count + 1) * sizeof(uint32_t));
    if (f->parameter_at == NULL || f->parameter_size == NULL) {
      emu_refuse(r, "out of memory");
    }
    f->parameter_at[f->parameter_count] = at;
    f->parameter_size[f->parameter_count++] = d.bytes * d.count;
    at += d.bytes * d.count;
  } while (emu_accept(r, ','));
  emu_expect(r, ')');
  f->parameter_bytes = at;
}

static uint32_t function_index(emu_reader *r, emu_slice name) {
  uint64_t index = 0;
  const emu_symbol *known = emu_symbol_find(r, name, &index);
  if (known != NULL && known->kind == EMU_FUNCTION) {
    return (uint32_t)index;
  }
  r->functions =
      emu_grow(r, r->functions, r->function_count, &r->function_capacity, sizeof *r->functions);
  r->functions[r->function_count] = (emu_function_code){.entry = UINT32_MAX};
  emu_add_symbol(r, (emu_symbol){.name = name, .kind = EMU_FUNCTION, .value = r->function_count});
  return r->function_count++;
}

static void add_label(emu_reader *r, emu_slice name) {
  const emu_row guard = r->guard;
  r->guard = EMU_NO_ROW;
  r->labels = emu_grow(r, r->labels, r->label_count, &r->label_capacity, sizeof *r->labels);
  r->labels[r->label_count++].name = name;
  r->labels[r->label_count - 1].pc = (uint32_t)r->module->op_count;
  (void)emu_add_op(r, OP_JOIN);
  r->guard = guard;
}

// call[.uni] [(result),] function [, (parameters)];
static void read_call(emu_reader *r) {
  if (emu_accept(r, '(')) {
    (void)emu_read_word(r);
    emu_expect(r, ')');
    emu_expect(r, ',');
  }
  const emu_slice name = emu_read_word(r);
  uint64_t index = 0;
  const emu_symbol *function = emu_symbol_find(r, name, &index);
  if (function == NULL || function->kind != EMU_FUNCTION) {
    emu_refuse(r, "a call of no function that is known");
  }
  while (*r->at != ';' && *r->at != 0) {
    r->line += *r->at == '\n' ? 1 : 0;
    r->at++;
  }
  emu_expect(r, ';');
  emu_op *op = emu_add_op(r, OP_CALL);
  op->imm = (int64_t)index;
}

static void read_operand(emu_reader *r, emu_operand *o) {
  *o = (emu_operand){.kind = EMU_WORD};
  if (emu_accept(r, '{')) {
    o->kind = EMU_VECTOR;
    o->first = r->word_count;
    do {
      if (r->word_count == EMU_MAX_WORDS) {
        emu_refuse(r, "too many registers");
      }
      r->words[r->word_count++] = emu_read_word(r);
    } while (emu_accept(r, ','));
    emu_expect(r, '}');
    o->count = r->word_count - o->first;
  } else if (emu_accept(r, '[')) {
    uint64_t value = 0;
    o->kind = EMU_ADDRESS;
    o->word = emu_read_word(r);
    if (emu_accept(r, '+')) {
      if (!emu_number(emu_read_word(r), &value)) {
        emu_refuse(r, "an offset is expected");
      }
      o->offset = (int64_t)value;
    }
    emu_expect(r, ']');
  } else {
    o->negated = emu_accept(r, '!');
    o->word = emu_read_word(r);
    if (emu_accept(r, '|')) {
      o->second = emu_read_word(r);
    }
  }
}

static void read_operands(emu_reader *r) {
  r->operand_count = 0;
  r->word_count = 0;
  if (emu_accept(r, ';')) {
    return;
  }
  do {
    if (r->operand_count == EMU_MAX_OPERANDS) {
      emu_refuse(r, "too many operands");
    }
    read_operand(r, &r->operands[r->operand_count++]);
  } while (emu_accept(r, ','));
  emu_skip_space(r);
  if (*r->at != ';') {
    emu_refuse(r, "';' is expected");
  }
}

static void split(emu_reader *r, emu_slice mnemonic) {
  r->part_count = 0;
  for (uint32_t begin = 0, i = 0; i <= mnemonic.length; i++) {
    if (i == mnemonic.length || mnemonic.at[i] == '.') {
      if (r->part_count == EMU_MAX_PARTS) {
        emu_refuse(r, "too long a mnemonic");
      }
      r->parts[r->part_count++] = (emu_slice){mnemonic.at + begin, i - begin};
      begin = i + 1;
    }
  }
}

static void read_guard(emu_reader *r) {
  uint64_t value = 0;
  r->guard = EMU_NO_ROW;
  r->guard_not = false;
  if (!emu_accept(r, '@')) {
    return;
  }
  r->guard_not = emu_accept(r, '!');
  const emu_symbol *s = emu_symbol_find(r, emu_read_word(r), &value);
  if (s == NULL || s->kind != EMU_REGISTER || s->bytes != 0) {
    emu_refuse(r, "a predicate is expected");
  }
  r->guard = (emu_row)value;
}

static void read_statement(emu_reader *r) {
  read_guard(r);
  const emu_slice w = emu_read_word(r);
  if (r->guard == EMU_NO_ROW && *r->at == ':') {
    r->at++;
    add_label(r, w);
  } else if (emu_slice_is(w, ".reg")) {
    emu_read_registers(r);
  } else if (emu_slice_is(w, ".local")) {
    read_local(r);
  } else if (emu_slice_is(w, ".shared")) {
    read_shared(r, false);
  } else if (emu_slice_is(w, ".param")) {
    read_call_parameter(r);
  } else if (emu_slice_is(w, ".pragma") || emu_slice_is(w, ".loc")) {
    while (*r->at != ';' && *r->at != '\n') {
      r->at++;
    }
    (void)emu_accept(r, ';');
  } else if (emu_slice_is(w, "call.uni") || emu_slice_is(w, "call")) {
    read_call(r);
  } else {
    split(r, w);
    read_operands(r);
    emu_decode(r);
    r->at += *r->at == ';' ? 1 : 0;
  }
}

// Jumps get their places; calls and what they pass, the size of this function's frame.
static int by_name(const void *left, const void *right) {
  const struct emu_label *a = left, *b = right;
  const uint32_t least = a->name.length < b->name.length ? a->name.length : b->name.length;
  const int order = memcmp(a->name.at, b->name.at, least);
  return order != 0 ? order : (a->name.length > b->name.length) - (a->name.length < b->name.length);
}

static void finish_function(emu_reader *r, emu_function_code *f) {
  emu_module *m = r->module;
  r->guard = EMU_NO_ROW;
  (void)emu_add_op(r, r->in_entry ? OP_EXIT : OP_RETURN);  // behind the last instruction
  if (r->label_count > 0) {
    qsort(r->labels, r->label_count, sizeof *r->labels, by_name);
  }
  for (uint32_t i = 0; i < r->jump_count; i++) {
    const struct emu_label *found =
        r->label_count == 0
            ? NULL
            : bsearch(&r->jumps[i], r->labels, r->label_count, sizeof *r->labels, by_name);
    if (found == NULL) {
      emu_refuse(r, "no label %.*s", (int)r->jumps[i].name.length, r->jumps[i].name.at);
    }
    m->ops[r->jumps[i].pc].imm = found->pc;
  }
  f->frame_bytes = r->frame_bytes;
  f->local_bytes = r->local_bytes;
  for (size_t i = r->function_begin; i < m->op_count; i++) {
    emu_op *op = &m->ops[i];
    if (op->code == OP_CALL) {
      op->d = f->frame_bytes;
      op->a = f->local_bytes;
    } else if ((op->code == OP_LOAD_CALL || op->code == OP_STORE_CALL) && op->e != 0) {
      op->e = f->frame_bytes;
    }
  }
}

static void read_body(emu_reader *r, emu_function_code *f, bool entry) {
  const uint32_t outer = r->scope_count;
  r->function = f;
  r->in_entry = entry;
  r->function_begin = (uint32_t)r->module->op_count;
  r->frame_bytes = entry ? 0 : align_up(f->parameter_bytes, 4) / 4 * EMU_ROW_BYTES;
  if (!entry && r->frame_bytes < EMU_RETURN_BYTES / 4 * EMU_ROW_BYTES) {
    r->frame_bytes = EMU_RETURN_BYTES / 4 * EMU_ROW_BYTES;
  }
  r->local_bytes = r->predicates_left = 0;
  r->label_count = r->jump_count = 0;
  f->entry = r->function_begin;
  emu_open_scope(r);
  while (r->scope_count > outer) {
    if (emu_accept(r, '{')) {
      emu_open_scope(r);
    } else if (emu_accept(r, '}')) {
      emu_close_scope(r);
    } else {
      read_statement(r);
    }
  }
  finish_function(r, f);
}

static void read_entry(emu_reader *r) {
  emu_kernel *k = calloc(1, sizeof *k);
  if (k == NULL) {
    emu_refuse(r, "out of memory");
  }
  k->next = r->module->kernels;
  k->module = r->module;
  r->module->kernels = k;
  const emu_slice name = emu_read_word(r);
  const uint32_t symbols = r->symbol_count;
  k->code.name = strndup(name.at, name.length);
  emu_expect(r, '(');
  read_parameters(r, &k->code, true);
  while (!emu_accept(r, '{')) {
    const emu_slice w = emu_read_word(r);
    if (emu_slice_is(w, ".maxntid")) {
      k->threads = emu_small_number(r);
      while (emu_accept(r, ',')) {
        k->threads *= emu_small_number(r);
      }
    } else if (emu_slice_is(w, ".minnctapersm")) {
      k->blocks = emu_small_number(r);
    } else if (emu_slice_is(w, ".maxnreg")) {
      (void)emu_small_number(r);
    } else {
      emu_refuse(r, "an unknown directive, %.*s", (int)w.length, w.at);
    }
  }
  read_body(r, &k->code, true);
  r->symbol_count = symbols;
}

// .func [(result)] name (parameters) [{ body }]
static void read_function(emu_reader *r) {
  emu_slice result = {NULL, 0};
  if (emu_accept(r, '(')) {
    (void)emu_read_word(r);
    const declaration d = read_declaration(r);
    result = d.name;
    emu_expect(r, ')');
    if (d.bytes * d.count > EMU_RETURN_BYTES) {
      emu_refuse(r, "too large a result");
    }
  }
  const emu_slice name = emu_read_word(r);
  const uint32_t index = function_index(r, name);
  const uint32_t symbols = r->symbol_count;
  emu_function_code f = {.name = NULL};
  if (emu_accept(r, '(')) {
    read_parameters(r, &f, false);
  }
  if (result.at != NULL) {
    emu_add_symbol(r, (emu_symbol){.name = result, .kind = EMU_OWN_PARAMETER, .value = 0});
  }
  emu_skip_space(r);
  while (*r->at == '.') {  // .noreturn and the like
    (void)emu_read_word(r);
    emu_skip_space(r);
  }
  if (emu_accept(r, '{')) {
    read_body(r, &f, false);
    free(r->functions[index].parameter_at);
    free(r->functions[index].parameter_size);
    r->functions[index] = f;
  } else {
    emu_expect(r, ';');
    free(f.parameter_at);
    free(f.parameter_size);
  }
  r->symbol_count = symbols;
}

static void read_module(emu_reader *r) {
  bool external = false;
  for (emu_skip_space(r); *r->at != 0; emu_skip_space(r)) {
    const emu_slice w = emu_read_word(r);
    if (emu_slice_is(w, ".version") || emu_slice_is(w, ".target") ||
        emu_slice_is(w, ".address_size")) {
      r->at += strcspn(r->at, "\n");
    } else if (emu_slice_is(w, ".file") || emu_slice_is(w, ".section")) {
      r->at += strlen(r->at);  // what follows is for debuggers
    } else if (emu_slice_is(w, ".extern")) {
      external = true;
      continue;
    } else if (emu_slice_is(w, ".visible") || emu_slice_is(w, ".weak")) {
      continue;
    } else if (emu_slice_is(w, ".global") || emu_slice_is(w, ".const")) {
      read_global(r);
    } else if (emu_slice_is(w, ".shared")) {
      read_shared(r, external);
    } else if (emu_slice_is(w, ".entry")) {
      read_entry(r);
    } else if (emu_slice_is(w, ".func")) {
      read_function(r);
    } else {
      emu_refuse(r, "an unknown directive, %.*s", (int)w.length, w.at);
    }
    external = false;
  }
}

// Behind the last function: calls find theirs, and dynamic shared memory its place.
static void link_module(emu_reader *r) {
  emu_module *m = r->module;
  const uint32_t align = m->dynamic_align > 16 ? m->dynamic_align : 16;
  const uint32_t dynamic_at = EMU_SHARED_BASE + align_up(m->shared_bytes, align);
  if (m->dynamic_align != 0) {
    m->shared_bytes = dynamic_at - EMU_SHARED_BASE;
  }
  for (size_t i = 0; i < m->op_count; i++) {
    emu_op *op = &m->ops[i];
    if (op->code == OP_CALL) {
      const emu_function_code *f = &r->functions[op->imm];
      if (f->entry == UINT32_MAX) {
        r->line = op->line;
        emu_refuse(r, "a call of a function without a body");
      }
      op->imm = f->entry;
      op->c = f->frame_bytes;
      op->e = f->local_bytes;
    }
  }
  // Addresses of dynamic memory are constants, moved as a whole with what is added to them.
  for (size_t at = 0; at < m->constant_bytes; at += 3 * EMU_ROW_BYTES) {
    uint64_t value = 0;
    memcpy(&value, m->constants + at, sizeof value);
    if (value == DYNAMIC_AT) {
      value = dynamic_at;
      for (uint32_t lane = 0; lane < 32; lane++) {
        const uint32_t low = (uint32_t)value;
        memcpy(m->constants + at + lane * 8, &value, 8);
        memcpy(m->constants + at + 2 * EMU_ROW_BYTES + lane * 4, &low, 4);
      }
    }
  }
}

// --- modules -------------------------------------------------------------------------------------

static bool read_all(emu_reader *r) {
  if (setjmp(r->failed) != 0) {
    return false;
  }
  read_module(r);
  link_module(r);
  return true;
}

static void free_reader(emu_reader *r) {
  for (uint32_t i = 0; i < r->function_count; i++) {
    free(r->functions[i].parameter_at);
    free(r->functions[i].parameter_size);
  }
  free(r->functions);
  free(r->symbols);
  free(r->labels);
  free(r->jumps);
  free(r);
}

// EMULATED_COUNTS names a prefix of files: PREFIX.ptx is the text of the module that has the
// megakernel, PREFIX.counts has "line warp count" for each op and warp of a block that ran it.
static void count_begin(emu_module *m, const char *ptx) {
  const char *prefix = getenv("EMULATED_COUNTS");
  if (prefix == NULL || emu_module_kernel(m, "mgl_megakernel") == NULL) {
    return;
  }
  char name[512];
  (void)snprintf(name, sizeof name, "%s.ptx", prefix);
  FILE *file = fopen(name, "w");
  if (file != NULL) {
    (void)fputs(ptx, file);
    (void)fclose(file);
  }
  m->counts = calloc(EMU_COUNTED_WARPS * m->op_count, sizeof *m->counts);
}

static void count_end(emu_module *m) {
  if (m->counts == NULL) {
    return;
  }
  char name[512];
  (void)snprintf(name, sizeof name, "%s.counts", getenv("EMULATED_COUNTS"));
  FILE *file = fopen(name, "w");
  for (size_t warp = 0; file != NULL && warp < EMU_COUNTED_WARPS; warp++) {
    for (size_t op = 0; op < m->op_count; op++) {
      if (m->counts[warp * m->op_count + op] != 0) {
        (void)fprintf(file, "%u %zu %llu\n", m->ops[op].line, warp,
                      (unsigned long long)m->counts[warp * m->op_count + op]);
      }
    }
  }
  if (file != NULL) {
    (void)fclose(file);
  }
  free(m->counts);
}

emu_module *emu_module_load(const char *ptx, char *why, size_t why_bytes) {
  emu_reader *r = calloc(1, sizeof *r);
  emu_module *m = calloc(1, sizeof *m);
  (void)snprintf(why, why_bytes, "out of memory");
  if (r == NULL || m == NULL) {
    free(r);
    free(m);
    return NULL;
  }
  m->text = strdup(ptx);
  m->constants = aligned_alloc(EMU_ROW_BYTES, EMU_CONSTANT_BYTES);
  m->constant_table = calloc(EMU_CONSTANT_SLOTS, sizeof *m->constant_table);
  *r = (emu_reader){.module = m, .at = m->text, .line = 1, .guard = EMU_NO_ROW, .why = why};
  r->why_bytes = why_bytes;
  const bool loaded =
      m->text != NULL && m->constants != NULL && m->constant_table != NULL && read_all(r);
  free_reader(r);
  if (!loaded) {
    emu_module_destroy(m);
    return NULL;
  }
  count_begin(m, ptx);
  return m;
}

void emu_module_destroy(emu_module *m) {
  count_end(m);
  while (m->globals != NULL) {
    emu_global *next = m->globals->next;
    if (m->globals->memory != NULL) {
      emu_memory_remove(m->globals->memory);
    }
    free(m->globals->memory);
    free(m->globals->name);
    free(m->globals);
    m->globals = next;
  }
  while (m->kernels != NULL) {
    emu_kernel *next = m->kernels->next;
    free((char *)m->kernels->code.name);
    free(m->kernels->code.parameter_at);
    free(m->kernels->code.parameter_size);
    free(m->kernels);
    m->kernels = next;
  }
  free(m->text);
  free(m->ops);
  free(m->lists);
  free(m->constants);
  free(m->constant_table);
  free(m);
}

const emu_kernel *emu_module_kernel(const emu_module *m, const char *name) {
  const emu_kernel *k = m->kernels;
  while (k != NULL && strcmp(k->code.name, name) != 0) {
    k = k->next;
  }
  return k;
}

void *emu_module_global(emu_module *m, const char *name, size_t *bytes) {
  emu_global *g = m->globals;
  while (g != NULL && strcmp(g->name, name) != 0) {
    g = g->next;
  }
  if (g == NULL) {
    return NULL;
  }
  *bytes = g->bytes;
  return g->memory;
}

emu_kernel_facts emu_kernel_describe(const emu_kernel *k) {
  return (emu_kernel_facts){.name = k->code.name,
                            .threads = k->threads,
                            .blocks = k->blocks,
                            .shared_bytes = k->module->shared_bytes,
                            .parameter_count = k->code.parameter_count};
}

size_t emu_kernel_parameter_bytes(const emu_kernel *k, uint32_t index) {
  return k->code.parameter_size[index];
}
