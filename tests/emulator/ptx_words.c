// Words of a PTX text, and what a reader keeps of them: symbols, registers' rows, constants, ops.
#include <ctype.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "emulator/ptx_reader.h"

void emu_refuse(emu_reader *r, const char *format, ...) {
  char text[512];
  va_list arguments;
  va_start(arguments, format);
  (void)vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  const char *begin = r->at, *end = r->at;
  while (begin > r->module->text && begin[-1] != '\n') {
    begin--;
  }
  end += strcspn(end, "\n");
  (void)snprintf(r->why, r->why_bytes, "PTX line %u: %s: %.*s", r->line, text,
                 (int)(end - begin < 200 ? end - begin : 200), begin);
  longjmp(r->failed, 1);
}

void *emu_grow(emu_reader *r, void *array, uint32_t count, uint32_t *capacity, size_t bytes) {
  if (count < *capacity) {
    return array;
  }
  *capacity = *capacity == 0 ? 64 : *capacity * 2;
  void *larger = realloc(array, *capacity * bytes);
  if (larger == NULL) {
    emu_refuse(r, "out of memory");
  }
  return larger;
}

// --- tokens --------------------------------------------------------------------------------------

void emu_skip_space(emu_reader *r) {
  for (;;) {
    if (*r->at == '\n') {
      r->line++;
      r->at++;
    } else if (isspace((unsigned char)*r->at)) {
      r->at++;
    } else if (r->at[0] == '/' && r->at[1] == '/') {
      r->at += strcspn(r->at, "\n");
    } else {
      return;
    }
  }
}

static bool in_word(const char *at) {
  return isalnum((unsigned char)*at) || *at == '_' || *at == '$' || *at == '%' || *at == '.' ||
         (at[0] == ':' && at[1] == ':') || (at[0] == ':' && at[-1] == ':');
}

emu_slice emu_read_word(emu_reader *r) {
  emu_skip_space(r);
  const char *begin = r->at;
  if (*r->at == '-') {
    r->at++;
  }
  while (in_word(r->at)) {
    r->at++;
  }
  if (r->at == begin) {
    emu_refuse(r, "a word is expected");
  }
  return (emu_slice){begin, (uint32_t)(r->at - begin)};
}

bool emu_accept(emu_reader *r, char c) {
  emu_skip_space(r);
  if (*r->at != c) {
    return false;
  }
  r->at++;
  return true;
}

void emu_expect(emu_reader *r, char c) {
  if (!emu_accept(r, c)) {
    emu_refuse(r, "'%c' is expected", c);
  }
}

bool emu_slice_is(emu_slice slice, const char *text) {
  return strlen(text) == slice.length && memcmp(slice.at, text, slice.length) == 0;
}

bool emu_slice_begins(emu_slice slice, const char *text) {
  return strlen(text) <= slice.length && memcmp(slice.at, text, strlen(text)) == 0;
}

bool emu_number(emu_slice w, uint64_t *out) {
  char text[64], *end = NULL;
  const bool negative = w.at[0] == '-';
  if (!isdigit((unsigned char)w.at[negative ? 1 : 0]) || w.length >= sizeof text) {
    return false;
  }
  memcpy(text, w.at, w.length);
  text[w.length] = 0;
  if (text[0] == '0' && (text[1] == 'f' || text[1] == 'd' || text[1] == 'F' || text[1] == 'D')) {
    *out = strtoull(text + 2, &end, 16);
  } else if (strchr(text, '.') != NULL) {
    const float value = strtof(text, &end);
    *out = emu_bits_of(value);
  } else {
    *out = strtoull(text + (negative ? 1 : 0), &end, 0);
    *out = negative ? 0 - *out : *out;
    end += *end == 'U' ? 1 : 0;
  }
  return *end == 0;
}

uint32_t emu_small_number(emu_reader *r) {
  uint64_t value = 0;
  if (!emu_number(emu_read_word(r), &value)) {
    emu_refuse(r, "a number is expected");
  }
  return (uint32_t)value;
}

// --- symbols -------------------------------------------------------------------------------------

void emu_add_symbol(emu_reader *r, emu_symbol symbol) {
  r->symbols = emu_grow(r, r->symbols, r->symbol_count, &r->symbol_capacity, sizeof *r->symbols);
  r->symbols[r->symbol_count++] = symbol;
}

const emu_symbol *emu_symbol_find(const emu_reader *r, emu_slice name, uint64_t *value) {
  uint32_t digits = 0, number = 0;
  while (digits < name.length && digits < 9 &&
         isdigit((unsigned char)name.at[name.length - digits - 1])) {
    digits++;
  }
  for (uint32_t i = name.length - digits; i < name.length; i++) {
    number = number * 10 + (uint32_t)(name.at[i] - '0');
  }
  for (uint32_t i = r->symbol_count; i-- > 0;) {
    const emu_symbol *s = &r->symbols[i];
    const uint32_t length = s->count > 0 ? name.length - digits : name.length;
    if (s->name.length != length || memcmp(s->name.at, name.at, length) != 0) {
      continue;
    }
    if (s->count == 0) {
      *value = s->value;
      return s;
    }
    if (digits > 0 && number < s->count) {
      const uint32_t row = s->bytes == 0 ? 4 : s->bytes <= 4 ? EMU_ROW_BYTES : s->bytes * 32;
      *value = s->value + (uint64_t)number * row;
      return s;
    }
  }
  return NULL;
}

void emu_open_scope(emu_reader *r) {
  if (r->scope_count == EMU_MAX_SCOPES) {
    emu_refuse(r, "too many nested scopes");
  }
  r->scopes[r->scope_count++] = r->symbol_count;
  r->call_bytes = EMU_RETURN_BYTES;
}

void emu_close_scope(emu_reader *r) {
  r->symbol_count = r->scopes[--r->scope_count];
}

emu_row emu_new_row(emu_reader *r, uint32_t bytes) {
  const uint32_t at = r->frame_bytes;
  r->frame_bytes += bytes <= 4 ? EMU_ROW_BYTES : bytes * 32;
  if (r->frame_bytes > EMU_FRAMES_BYTES / 2) {
    emu_refuse(r, "too many registers");
  }
  return at;
}

// Predicates are words: 32 of them to a row.
static uint64_t new_predicates(emu_reader *r, uint32_t count) {
  if (count > r->predicates_left) {
    const uint32_t rows = (count + 31) / 32;
    r->predicates_at = r->frame_bytes;
    r->frame_bytes += rows * EMU_ROW_BYTES;
    r->predicates_left = rows * 32;
  }
  const uint64_t at = r->predicates_at;
  r->predicates_at += (uint64_t)count * 4;
  r->predicates_left -= count;
  return at;
}

// Bytes of ".b32" and its like; of .pred 0.
uint32_t emu_declared_bytes(emu_reader *r, emu_slice type) {
  uint32_t bits = 0;
  if (emu_slice_is(type, ".pred")) {
    return 0;
  }
  for (uint32_t i = 2; i < type.length; i++) {
    bits = bits * 10 + (uint32_t)(type.at[i] - '0');
  }
  if (type.length < 3 || (bits != 8 && bits != 16 && bits != 32 && bits != 64 && bits != 128)) {
    emu_refuse(r, "an unknown type, %.*s", (int)type.length, type.at);
  }
  return bits / 8;
}

// .reg TYPE name, name<count>, ...;
void emu_read_registers(emu_reader *r) {
  const uint32_t bytes = emu_declared_bytes(r, emu_read_word(r));
  do {
    emu_symbol s = {.name = emu_read_word(r), .kind = EMU_REGISTER, .bytes = bytes};
    if (emu_accept(r, '<')) {
      s.count = emu_small_number(r);
      emu_expect(r, '>');
    }
    const uint32_t count = s.count > 0 ? s.count : 1;
    if (bytes == 0) {
      s.value = new_predicates(r, count);
    } else {
      s.value = emu_new_row(r, bytes);
      for (uint32_t i = 1; i < count; i++) {
        (void)emu_new_row(r, bytes);
      }
    }
    emu_add_symbol(r, s);
  } while (emu_accept(r, ','));
  emu_expect(r, ';');
}

emu_row emu_constant(emu_reader *r, uint64_t value) {
  emu_module *m = r->module;
  uint32_t slot = (uint32_t)(value * 0x9e3779b97f4a7c15u >> 48) % EMU_CONSTANT_SLOTS;
  uint64_t kept = 0;
  for (; m->constant_table[slot] != 0; slot = (slot + 1) % EMU_CONSTANT_SLOTS) {
    const uint32_t at = m->constant_table[slot] - 1;
    memcpy(&kept, m->constants + at, sizeof kept);
    if (kept == value) {
      return at | EMU_CONSTANTS;
    }
  }
  // As 64 bits and, behind them, as 32: words of the first are not what a row of words is.
  const uint32_t at = (uint32_t)m->constant_bytes;
  if (at + 3 * EMU_ROW_BYTES > EMU_CONSTANT_BYTES ||
      at / (3 * EMU_ROW_BYTES) > EMU_CONSTANT_SLOTS / 2) {
    emu_refuse(r, "too many constants");
  }
  m->constant_table[slot] = at + 1;
  for (uint32_t lane = 0; lane < 32; lane++) {
    const uint32_t low = (uint32_t)value;
    memcpy(m->constants + at + lane * 8, &value, 8);
    memcpy(m->constants + at + 2 * EMU_ROW_BYTES + lane * 4, &low, 4);
  }
  m->constant_bytes += (size_t)3 * EMU_ROW_BYTES;
  return at | EMU_CONSTANTS;
}

emu_op *emu_add_op(emu_reader *r, emu_code code) {
  emu_module *m = r->module;
  if (m->op_count == m->op_capacity) {
    m->op_capacity = m->op_capacity == 0 ? 4096 : m->op_capacity * 2;
    m->ops = realloc(m->ops, m->op_capacity * sizeof *m->ops);
    if (m->ops == NULL) {
      m->op_count = 0;
      emu_refuse(r, "out of memory");
    }
  }
  emu_op *op = &m->ops[m->op_count++];
  *op = (emu_op){.code = (uint16_t)code,
                 .guard = r->guard,
                 .guard_not = r->guard_not,
                 .d = EMU_NO_ROW,
                 .a = EMU_NO_ROW,
                 .b = EMU_NO_ROW,
                 .c = EMU_NO_ROW,
                 .e = EMU_NO_ROW,
                 .list = (uint32_t)m->list_count,
                 .line = r->line};
  return op;
}

uint32_t emu_list_begin(const emu_reader *r) {
  return (uint32_t)r->module->list_count;
}

void emu_list_add(emu_reader *r, emu_row row) {
  emu_module *m = r->module;
  if (m->list_count == m->list_capacity) {
    m->list_capacity = m->list_capacity == 0 ? 4096 : m->list_capacity * 2;
    m->lists = realloc(m->lists, m->list_capacity * sizeof *m->lists);
    if (m->lists == NULL) {
      m->list_count = 0;
      emu_refuse(r, "out of memory");
    }
  }
  m->lists[m->list_count++] = row;
}
