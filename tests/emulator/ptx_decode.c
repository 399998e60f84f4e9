// Makes an op of each PTX instruction. Those that every lane does for itself are in lanes.def, found
// by their mnemonics; all others are here, a function for a family. Hints (caches, policies,
// prefetches, register counts) are dropped.
#include <stdio.h>
#include <string.h>

#include "emulator/ptx_reader.h"

// --- operands ------------------------------------------------------------------------------------

emu_slice emu_last_part(const emu_reader *r) {
  return r->parts[r->part_count - 1];
}

bool emu_part_is(const emu_reader *r, uint32_t i, const char *text) {
  return i < r->part_count && emu_slice_is(r->parts[i], text);
}

bool emu_has_part(const emu_reader *r, const char *text) {
  for (uint32_t i = 1; i < r->part_count; i++) {
    if (emu_slice_is(r->parts[i], text)) {
      return true;
    }
  }
  return false;
}

void emu_need_operands(emu_reader *r, uint32_t least, uint32_t most) {
  if (r->operand_count < least || r->operand_count > most) {
    emu_refuse(r, "%u operands", r->operand_count);
  }
}

// Bits of a type's name.
uint32_t emu_type_bytes(emu_reader *r, emu_slice type) {
  static const struct {
    const char *name;
    uint32_t bytes;
  } types[] = {{"b8", 1},  {"u8", 1},  {"s8", 1},    {"b16", 2},    {"u16", 2},
               {"s16", 2}, {"f16", 2}, {"bf16", 2},  {"b32", 4},    {"u32", 4},
               {"s32", 4}, {"f32", 4}, {"f16x2", 4}, {"bf16x2", 4}, {"b64", 8},
               {"u64", 8}, {"s64", 8}, {"f64", 8},   {"b128", 16}};
  for (size_t i = 0; i < sizeof types / sizeof types[0]; i++) {
    if (emu_slice_is(type, types[i].name)) {
      return types[i].bytes;
    }
  }
  emu_refuse(r, "an unknown type, %.*s", (int)type.length, type.at);
}

static bool special_row(emu_slice w, emu_row *out) {
  static const struct {
    const char *name;
    uint32_t row;
  } names[] = {{"%tid.x", EMU_TID},
               {"%tid.y", EMU_TID + 1},
               {"%tid.z", EMU_TID + 2},
               {"%ntid.x", EMU_NTID},
               {"%ntid.y", EMU_NTID + 1},
               {"%ntid.z", EMU_NTID + 2},
               {"%ctaid.x", EMU_CTAID},
               {"%ctaid.y", EMU_CTAID + 1},
               {"%ctaid.z", EMU_CTAID + 2},
               {"%nctaid.x", EMU_NCTAID},
               {"%nctaid.y", EMU_NCTAID + 1},
               {"%nctaid.z", EMU_NCTAID + 2},
               {"%laneid", EMU_LANEID},
               {"%warpid", EMU_WARPID},
               {"%nwarpid", EMU_NWARPID},
               {"%smid", EMU_SMID},
               {"%nsmid", EMU_NSMID},
               {"%lanemask_eq", EMU_LANEMASK_EQ},
               {"%lanemask_le", EMU_LANEMASK_LE},
               {"%lanemask_lt", EMU_LANEMASK_LT},
               {"%lanemask_ge", EMU_LANEMASK_GE},
               {"%lanemask_gt", EMU_LANEMASK_GT},
               {"%dynamic_smem_size", EMU_DYNAMIC_BYTES},
               {"%total_smem_size", EMU_TOTAL_BYTES}};
  for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
    if (emu_slice_is(w, names[i].name)) {
      *out = names[i].row * 128 | EMU_SPECIALS;
      return true;
    }
  }
  return false;
}

static emu_row constant_row(emu_reader *r, uint64_t value, uint32_t bytes) {
  return emu_constant(r, value) + (bytes <= 4 ? 256 : 0);
}

// The row of a word of so many bytes (0: a predicate): a register, a number, a variable's address.
static emu_row word_row(emu_reader *r, emu_slice w, uint32_t bytes) {
  uint64_t value = 0;
  emu_row row = 0;
  if (emu_number(w, &value)) {
    return bytes == 0 ? constant_row(r, value != 0 ? UINT64_MAX : 0, 4)
                      : constant_row(r, value, bytes);
  }
  if (special_row(w, &row)) {
    return row;
  }
  const emu_symbol *s = emu_symbol_find(r, w, &value);
  if (s == NULL) {
    emu_refuse(r, "unknown: %.*s", (int)w.length, w.at);
  }
  if (s->kind == EMU_SHARED_AT || s->kind == EMU_GLOBAL_AT) {
    return constant_row(r, value, bytes);
  }
  if (s->kind != EMU_REGISTER) {
    emu_refuse(r, "%.*s is no register", (int)w.length, w.at);
  }
  // 16 and 32 bits have the same rows.
  const uint32_t own = s->bytes == 1 || s->bytes == 2 ? 4 : s->bytes;
  if (own != (bytes == 1 || bytes == 2 ? 4 : bytes)) {
    emu_refuse(r, "%.*s has %u bytes, not %u", (int)w.length, w.at, s->bytes, bytes);
  }
  return (emu_row)value;
}

emu_row emu_operand_row(emu_reader *r, uint32_t i, uint32_t bytes) {
  const emu_operand *o = &r->operands[i];
  if (i >= r->operand_count || o->kind != EMU_WORD) {
    emu_refuse(r, "operand %u is no register", i + 1);
  }
  return word_row(r, o->word, bytes);
}

// Where a result goes: "_" is nowhere, a row of its own.
emu_row emu_target_word(emu_reader *r, emu_slice w, uint32_t bytes) {
  if (emu_slice_is(w, "_")) {
    return emu_new_row(r, bytes == 0 ? 4 : bytes);
  }
  const emu_row row = word_row(r, w, bytes);
  if ((row & 3) != EMU_FRAME) {
    emu_refuse(r, "%.*s cannot be written", (int)w.length, w.at);
  }
  return row;
}

emu_row emu_target_row(emu_reader *r, uint32_t i, uint32_t bytes) {
  if (i >= r->operand_count || r->operands[i].kind != EMU_WORD) {
    emu_refuse(r, "operand %u is no register", i + 1);
  }
  return emu_target_word(r, r->operands[i].word, bytes);
}

// An address: *bytes tells how wide its register is.
emu_row emu_address_row(emu_reader *r, uint32_t i, uint8_t *bytes, int64_t *offset) {
  const emu_operand *o = &r->operands[i];
  uint64_t value = 0;
  if (i >= r->operand_count || o->kind != EMU_ADDRESS) {
    emu_refuse(r, "operand %u is no address", i + 1);
  }
  const emu_symbol *s = emu_symbol_find(r, o->word, &value);
  *bytes = s != NULL && s->kind == EMU_REGISTER ? (uint8_t)s->bytes : 8;
  *offset = o->offset;
  return word_row(r, o->word, *bytes);
}

emu_row emu_shared_address(emu_reader *r, uint32_t i, int64_t *offset) {
  uint8_t bytes = 0;
  emu_row row = emu_address_row(r, i, &bytes, offset);
  if (bytes == 8) {  // the low words of 64 bits are no row of words
    if ((row & 3) != EMU_CONSTANTS) {
      emu_refuse(r, "a shared address of 64 bits");
    }
    row += 256;
  }
  return row;
}

// --- regular ones --------------------------------------------------------------------------------

enum {
  BYTES_u16 = 2,
  BYTES_s16 = 2,
  BYTES_u32 = 4,
  BYTES_s32 = 4,
  BYTES_f32 = 4,
  BYTES_u64 = 8,
  BYTES_s64 = 8,
  BYTES_f64 = 8
};

typedef struct lane_code {
  const char *name;
  uint8_t d, a, b, c;
} lane_code;

static const lane_code lane_codes[] = {
#define LANE1(name, D, A, result) {#name, BYTES_##D, BYTES_##A, 0, 0},
#define LANE2(name, D, A, B, result) {#name, BYTES_##D, BYTES_##A, BYTES_##B, 0},
#define LANE3(name, D, A, B, C, result) {#name, BYTES_##D, BYTES_##A, BYTES_##B, BYTES_##C},
#define TEST(name, A, result) {#name, 0, BYTES_##A, BYTES_##A, 0},
#include "emulator/lanes.def"
#undef LANE1
#undef LANE2
#undef LANE3
#undef TEST
};

enum { SLOTS = 2048 };

static int find_lane_code(const char *name) {
  static uint16_t table[SLOTS];
  static bool filled;
  for (int pass = filled ? 1 : 0; pass < 2; pass++) {
    for (uint32_t i = 0; i < OP_LANES; i++) {
      const char *text = pass == 0 ? lane_codes[i].name : name;
      uint32_t slot = 5381;
      for (const char *at = text; *at != 0; at++) {
        slot = slot * 33 + (uint8_t)*at;
      }
      for (slot %= SLOTS; table[slot] != 0; slot = (slot + 1) % SLOTS) {
        if (pass == 1 && strcmp(lane_codes[table[slot] - 1].name, name) == 0) {
          return table[slot] - 1;
        }
      }
      if (pass == 1) {
        return -1;
      }
      table[slot] = (uint16_t)(i + 1);
    }
    filled = true;
  }
  return -1;
}

// Of instructions that do the same for any type of a size, the one of the unsigned type is known.
static void normalise_types(emu_reader *r, char *name) {
  static const char *const any_sign[] = {"add", "sub",  "mul",  "mad", "neg",  "and",
                                         "or",  "xor",  "not",  "shl", "mov",  "popc",
                                         "clz", "brev", "prmt", "shf", "bfind"};
  char *type = strrchr(name, '_');
  bool any = false;
  for (size_t i = 0; i < sizeof any_sign / sizeof any_sign[0]; i++) {
    any = any || emu_slice_is(r->parts[0], any_sign[i]);
  }
  any = any && !emu_part_is(r, 1, "wide") && !emu_part_is(r, 1, "hi");
  any = any ||
        (emu_slice_is(r->parts[0], "setp") && (emu_part_is(r, 1, "eq") || emu_part_is(r, 1, "ne")));
  if (type != NULL && ((any && (type[1] == 's' || type[1] == 'b')) ||
                       (type[1] == 'b' && emu_slice_is(r->parts[0], "shr")) ||
                       (type[1] == 'f' && emu_slice_is(r->parts[0], "mov")))) {
    type[1] = 'u';
  }
  // Between integers: what the source is decides how it is extended.
  char to[8] = "", from[8] = "";
  if (sscanf(name, "cvt_%7[us0-9]_%7[us0-9]", to, from) == 2) {
    const uint32_t to_bytes = emu_type_bytes(r, r->parts[1]),
                   from_bytes = emu_type_bytes(r, r->parts[2]);
    const char sign = to_bytes > from_bytes ? from[0] : 'u';
    (void)sprintf(name, "cvt_%c%u_%c%u", sign, to_bytes * 8, sign, from_bytes * 8);
    if (to_bytes == from_bytes) {
      (void)sprintf(name, "mov_u%u", to_bytes * 8);
    }
  }
}

static bool decode_lanes(emu_reader *r) {
  char name[128] = "";
  size_t at = 0;
  for (uint32_t i = 0; i < r->part_count; i++) {
    const emu_slice part = r->parts[i];
    if (at + part.length + 2 > sizeof name - 16) {
      return false;
    }
    at += (size_t)sprintf(name + at, "%s%.*s", i > 0 ? "_" : "", (int)part.length, part.at);
  }
  normalise_types(r, name);
  const int code = find_lane_code(name);
  if (code < 0) {
    return false;
  }
  const lane_code *l = &lane_codes[code];
  emu_need_operands(r, l->c != 0 ? 4 : l->b != 0 ? 3 : 2, 4);
  const emu_row d = emu_target_row(r, 0, l->d), a = emu_operand_row(r, 1, l->a);
  const emu_row b = l->b != 0 ? emu_operand_row(r, 2, l->b) : EMU_NO_ROW;
  const emu_row c = l->c != 0 ? emu_operand_row(r, 3, l->c) : EMU_NO_ROW;
  emu_op *op = emu_add_op(r, (emu_code)code);
  op->d = d;
  op->a = a;
  op->b = b;
  op->c = c;
  return true;
}

// --- moving --------------------------------------------------------------------------------------

void emu_add_list(emu_reader *r, uint32_t operand, uint32_t bytes, bool written) {
  const emu_operand *o = &r->operands[operand];
  if (operand >= r->operand_count || o->kind == EMU_ADDRESS) {
    emu_refuse(r, "operand %u is no register", operand + 1);
  }
  const uint32_t count = o->kind == EMU_VECTOR ? o->count : 1;
  for (uint32_t i = 0; i < count; i++) {
    const emu_slice w = o->kind == EMU_VECTOR ? r->words[o->first + i] : o->word;
    emu_list_add(r, written ? emu_target_word(r, w, bytes) : word_row(r, w, bytes));
  }
}

// mov of a vector to a register, or back.
static void decode_pack(emu_reader *r) {
  const uint32_t bytes = emu_type_bytes(r, emu_last_part(r));
  const bool unpack = r->operands[0].kind == EMU_VECTOR;
  const uint32_t count = r->operands[unpack ? 0 : 1].count;
  const uint32_t part = bytes / count;
  const emu_row whole = unpack ? emu_operand_row(r, 1, bytes) : emu_target_row(r, 0, bytes);
  const uint32_t list = emu_list_begin(r);
  emu_add_list(r, unpack ? 0 : 1, part, unpack);
  emu_op *op = emu_add_op(r, unpack ? OP_UNPACK : OP_PACK);
  op->list = list;
  op->count = (uint8_t)count;
  op->bytes = (uint8_t)part;
  op->width = (uint8_t)bytes;
  *(unpack ? &op->a : &op->d) = whole;
}

static void decode_mov(emu_reader *r) {
  uint64_t value = 0;
  emu_need_operands(r, 2, 2);
  if (r->operands[0].kind == EMU_VECTOR || r->operands[1].kind == EMU_VECTOR) {
    decode_pack(r);
    return;
  }
  const emu_slice from = r->operands[1].word;
  if (emu_part_is(r, 1, "pred")) {
    const emu_row d = emu_target_row(r, 0, 0), a = emu_operand_row(r, 1, 0);
    emu_op *op = emu_add_op(r, OP_MOV_PRED);
    op->d = d;
    op->a = a;
    return;
  }
  const uint32_t bytes = emu_type_bytes(r, emu_last_part(r));
  if (emu_slice_is(from, "%clock") || emu_slice_is(from, "%clock64") ||
      emu_slice_is(from, "%globaltimer") || emu_slice_is(from, "%globaltimer_lo")) {
    const emu_row d = emu_target_row(r, 0, bytes);
    emu_op *op = emu_add_op(r, OP_CLOCK);
    op->d = d;
    op->bytes = (uint8_t)bytes;
    return;
  }
  const emu_symbol *s = emu_symbol_find(r, from, &value);
  if (s != NULL && (s->kind == EMU_LOCAL_AT || s->kind == EMU_ENTRY_PARAMETER)) {
    const emu_row d = emu_target_row(r, 0, 8);
    emu_op *op = emu_add_op(r, s->kind == EMU_LOCAL_AT ? OP_LOCAL : OP_PARAMETERS);
    op->d = d;
    op->imm = (int64_t)value;
    return;
  }
  if (!decode_lanes(r)) {
    emu_refuse(r, "an unknown instruction");
  }
}

static void decode_cvta(emu_reader *r) {
  const bool to = emu_part_is(r, 1, "to"), shared = emu_part_is(r, to ? 2 : 1, "shared");
  emu_need_operands(r, 2, 2);
  const emu_row d = emu_target_row(r, 0, 8), a = emu_operand_row(r, 1, 8);
  emu_op *op = emu_add_op(r, !shared ? OP_mov_u64 : to ? OP_TO_SHARED : OP_FROM_SHARED);
  op->d = d;
  op->a = a;
}

static void decode_selp(emu_reader *r) {
  const uint32_t bytes = emu_type_bytes(r, emu_last_part(r));
  emu_need_operands(r, 4, 4);
  const emu_row d = emu_target_row(r, 0, bytes), a = emu_operand_row(r, 1, bytes);
  const emu_row b = emu_operand_row(r, 2, bytes), c = emu_operand_row(r, 3, 0);
  emu_op *op = emu_add_op(r, bytes == 8 ? OP_SELECT_64 : OP_SELECT_32);
  op->d = d;
  op->a = a;
  op->b = b;
  op->c = c;
}

static void decode_bfi(emu_reader *r) {
  const uint32_t bytes = emu_type_bytes(r, emu_last_part(r));
  emu_need_operands(r, 5, 5);
  const emu_row d = emu_target_row(r, 0, bytes), a = emu_operand_row(r, 1, bytes);
  const emu_row b = emu_operand_row(r, 2, bytes), c = emu_operand_row(r, 3, 4),
                e = emu_operand_row(r, 4, 4);
  emu_op *op = emu_add_op(r, bytes == 8 ? OP_BFI_64 : OP_BFI_32);
  op->d = d;
  op->a = a;
  op->b = b;
  op->c = c;
  op->e = e;
}

static void decode_pred(emu_reader *r, emu_code code) {
  const emu_row d = emu_target_row(r, 0, 0), a = emu_operand_row(r, 1, 0);
  const emu_row b = code != OP_NOT_PRED ? emu_operand_row(r, 2, 0) : EMU_NO_ROW;
  emu_op *op = emu_add_op(r, code);
  op->d = d;
  op->a = a;
  op->b = b;
}

// --- memory --------------------------------------------------------------------------------------

static uint32_t vector_length(const emu_reader *r) {
  return emu_has_part(r, "v2") ? 2 : emu_has_part(r, "v4") ? 4 : emu_has_part(r, "v8") ? 8 : 1;
}

static bool is_strong(const emu_reader *r) {
  return emu_has_part(r, "volatile") || emu_has_part(r, "relaxed") || emu_has_part(r, "acquire") ||
         emu_has_part(r, "release");
}

bool emu_is_shared(const emu_reader *r) {
  return emu_has_part(r, "shared") || emu_has_part(r, "shared::cta") ||
         emu_has_part(r, "shared::cluster");
}

// How wide the registers of operand i are.
static uint32_t register_bytes(emu_reader *r, uint32_t i, uint32_t bytes) {
  const emu_operand *o = &r->operands[i];
  const emu_slice w = o->kind == EMU_VECTOR ? r->words[o->first] : o->word;
  uint64_t value = 0;
  const emu_symbol *s = emu_symbol_find(r, w, &value);
  return s != NULL && s->kind == EMU_REGISTER ? s->bytes : bytes;
}

// Loads and stores of what a call passes, and of a kernel's parameters by name. False: it is not
// named.
static bool decode_named(emu_reader *r, bool load, uint32_t bytes, uint32_t count) {
  const emu_operand *o = &r->operands[load ? 1 : 0];
  uint64_t value = 0;
  const emu_symbol *s = emu_symbol_find(r, o->word, &value);
  if (s == NULL || s->kind < EMU_ENTRY_PARAMETER || s->kind > EMU_CALL_PARAMETER) {
    return false;
  }
  const uint32_t width = register_bytes(r, load ? 0 : 1, bytes);
  const uint32_t list = emu_list_begin(r);
  const bool is_entry = s->kind == EMU_ENTRY_PARAMETER, is_call = s->kind == EMU_CALL_PARAMETER;
  emu_add_list(r, load ? 0 : 1, width, load);
  emu_row address = EMU_NO_ROW;
  if (is_entry) {
    address = emu_new_row(r, 8);
    emu_op *at = emu_add_op(r, OP_PARAMETERS);
    at->d = address;
    at->imm = (int64_t)value;
  } else if (bytes < 4 && !load) {
    emu_refuse(r, "a parameter of less than a word");
  }
  emu_op *op = emu_add_op(r, is_entry ? OP_LOAD : load ? OP_LOAD_CALL : OP_STORE_CALL);
  op->list = list;
  op->count = (uint8_t)count;
  op->bytes = (uint8_t)bytes;
  op->width = (uint8_t)width;
  op->how = emu_last_part(r).at[0] == 's' ? EMU_SIGNED : 0;
  op->a = address;
  op->e = is_call ? 1 : 0;
  op->imm = o->offset + (is_entry ? 0 : (int64_t)value);
  return true;
}

static void decode_memory(emu_reader *r, bool load) {
  const uint32_t bytes = emu_type_bytes(r, emu_last_part(r)), count = vector_length(r);
  const uint32_t data = load ? 0 : 1, place = load ? 1 : 0;
  emu_need_operands(r, 2, 3);
  if (emu_has_part(r, "param") && decode_named(r, load, bytes, count)) {
    return;
  }
  const bool shared = emu_is_shared(r);
  int64_t offset = 0;
  uint8_t address_bytes = 0;
  const emu_row a = shared ? EMU_NO_ROW : emu_address_row(r, place, &address_bytes, &offset);
  emu_row shared_row = EMU_NO_ROW;
  uint8_t shared_bytes = 0;
  if (shared) {
    shared_row = emu_address_row(r, place, &shared_bytes, &offset);
  } else if (address_bytes != 8) {
    emu_refuse(r, "an address of 32 bits");
  }
  const uint32_t width = register_bytes(r, data, bytes);
  const uint32_t list = emu_list_begin(r);
  emu_add_list(r, data, width, load);
  emu_op *op = emu_add_op(r, load ? OP_LOAD : OP_STORE);
  op->a = shared ? shared_row : a;
  op->list = list;
  op->count = (uint8_t)count;
  op->bytes = (uint8_t)bytes;
  op->width = (uint8_t)width;
  op->space = (uint8_t)(shared ? EMU_SHARED : EMU_GENERIC);
  op->e = shared && shared_bytes == 8 ? 8 : 4;  // bytes of a shared address' register
  op->how =
      (uint8_t)((emu_last_part(r).at[0] == 's' ? EMU_SIGNED : 0) | (is_strong(r) ? EMU_STRONG : 0));
  op->imm = offset;
  if (shared && shared_bytes == 8 && (shared_row & 3) == EMU_CONSTANTS) {
    op->a = shared_row + 256;
    op->e = 4;
  }
}

static void decode_atomic(emu_reader *r, bool result) {
  static const struct {
    const char *name;
    emu_atomic what;
  } names[] = {{"add", EMU_ADD},   {"exch", EMU_EXCH}, {"cas", EMU_CAS}, {"and", EMU_AND},
               {"or", EMU_OR},     {"xor", EMU_XOR},   {"inc", EMU_INC}, {"dec", EMU_DEC},
               {"min", EMU_MIN_U}, {"max", EMU_MAX_U}};
  const emu_slice type = emu_last_part(r);
  const uint32_t bytes = emu_type_bytes(r, type), first = result ? 1 : 0;
  size_t i = 0;
  while (i < sizeof names / sizeof names[0] && !emu_has_part(r, names[i].name)) {
    i++;
  }
  if (i == sizeof names / sizeof names[0] || bytes < 4 || bytes > 8) {
    emu_refuse(r, "an unknown atomic operation");
  }
  uint32_t what = names[i].what;
  if (type.at[0] == 's') {
    what = what == EMU_MIN_U ? EMU_MIN_S : what == EMU_MAX_U ? EMU_MAX_S : what;
  } else if (type.at[0] == 'f') {
    if (what != EMU_ADD || bytes != 4) {
      emu_refuse(r, "an unknown atomic operation");
    }
    what = EMU_ADD_F32;
  }
  int64_t offset = 0;
  uint8_t address_bytes = 0;
  emu_row a = emu_address_row(r, first, &address_bytes, &offset);
  const bool shared = emu_is_shared(r);
  const emu_row d = result ? emu_target_row(r, 0, bytes) : EMU_NO_ROW;
  const emu_row b = emu_operand_row(r, first + 1, bytes);
  const emu_row c = what == EMU_CAS ? emu_operand_row(r, first + 2, bytes) : EMU_NO_ROW;
  emu_op *op = emu_add_op(r, OP_ATOMIC);
  if (shared && address_bytes == 8 && (a & 3) == EMU_CONSTANTS) {
    a += 256;
    address_bytes = 4;
  }
  op->d = d;
  op->a = a;
  op->b = b;
  op->c = c;
  op->e = address_bytes;
  op->how = (uint8_t)what;
  op->bytes = (uint8_t)bytes;
  op->space = (uint8_t)(shared ? EMU_SHARED : EMU_GENERIC);
  op->imm = offset;
}

// --- all -----------------------------------------------------------------------------------------

static void decode_branch(emu_reader *r) {
  emu_need_operands(r, 1, 1);
  r->jumps = emu_grow(r, r->jumps, r->jump_count, &r->jump_capacity, sizeof *r->jumps);
  r->jumps[r->jump_count].name = r->operands[0].word;
  r->jumps[r->jump_count++].pc = (uint32_t)r->module->op_count;
  (void)emu_add_op(r, OP_BRANCH);
}

static void decode_one_row(emu_reader *r, emu_code code, uint32_t bytes) {
  const emu_row d = emu_target_row(r, 0, bytes);
  emu_add_op(r, code)->d = d;
}

static void decode_elect(emu_reader *r) {
  emu_need_operands(r, 2, 2);
  const emu_row d = emu_target_word(r, r->operands[0].second, 0), a = emu_operand_row(r, 1, 4);
  emu_op *op = emu_add_op(r, OP_ELECT);
  op->d = d;
  op->a = a;
  if (!emu_slice_is(r->operands[0].word, "_")) {
    emu_refuse(r, "who was elected is not known here");
  }
}

static void decode_movmatrix(emu_reader *r) {
  const emu_row d = emu_target_row(r, 0, 4), a = emu_operand_row(r, 1, 4);
  emu_op *op = emu_add_op(r, OP_MOVMATRIX);
  op->d = d;
  op->a = a;
}

void emu_decode(emu_reader *r) {
  const emu_slice base = r->parts[0];
  static const char *const hints[] = {"prefetch",   "fence",        "membar",
                                      "setmaxnreg", "createpolicy", "discard"};
  for (size_t i = 0; i < sizeof hints / sizeof hints[0]; i++) {
    if (emu_slice_is(base, hints[i])) {
      (void)emu_add_op(r, OP_NOTHING);
      return;
    }
  }
  if (emu_slice_is(base, "mov")) {
    decode_mov(r);
  } else if (emu_part_is(r, 1, "pred")) {
    decode_pred(r, emu_slice_is(base, "not")   ? OP_NOT_PRED
                   : emu_slice_is(base, "and") ? OP_AND_PRED
                   : emu_slice_is(base, "or")  ? OP_OR_PRED
                                               : OP_XOR_PRED);
  } else if (emu_slice_is(base, "bra")) {
    decode_branch(r);
  } else if (emu_slice_is(base, "ld") || emu_slice_is(base, "st")) {
    decode_memory(r, emu_slice_is(base, "ld"));
  } else if (emu_slice_is(base, "selp")) {
    decode_selp(r);
  } else if (emu_slice_is(base, "bfi")) {
    decode_bfi(r);
  } else if (emu_slice_is(base, "cvta")) {
    decode_cvta(r);
  } else if (emu_slice_is(base, "atom") || emu_slice_is(base, "red")) {
    decode_atomic(r, emu_slice_is(base, "atom"));
  } else if (emu_slice_is(base, "shfl")) {
    emu_decode_shfl(r);
  } else if (emu_slice_is(base, "vote")) {
    emu_decode_vote(r);
  } else if (emu_slice_is(base, "redux")) {
    emu_decode_redux(r);
  } else if (emu_slice_is(base, "activemask")) {
    decode_one_row(r, OP_ACTIVE, 4);
  } else if (emu_slice_is(base, "elect")) {
    decode_elect(r);
  } else if (emu_slice_is(base, "bar") || emu_slice_is(base, "barrier")) {
    emu_decode_bar(r);
  } else if (emu_slice_is(base, "mbarrier")) {
    emu_decode_mbarrier(r);
  } else if (emu_slice_is(base, "cp")) {
    emu_decode_copy(r);
  } else if (emu_slice_is(base, "mma")) {
    emu_decode_mma(r);
  } else if (emu_slice_is(base, "ldmatrix") || emu_slice_is(base, "stmatrix")) {
    emu_decode_ldmatrix(r, emu_slice_is(base, "ldmatrix"));
  } else if (emu_slice_is(base, "movmatrix")) {
    decode_movmatrix(r);
  } else if (emu_slice_is(base, "wgmma")) {
    emu_decode_wgmma(r);
  } else if (emu_slice_is(base, "nanosleep")) {
    (void)emu_add_op(r, OP_SLEEP);
  } else if (emu_slice_is(base, "griddepcontrol")) {
    (void)emu_add_op(r, emu_part_is(r, 1, "wait") ? OP_WAIT_LAUNCH : OP_LET_LAUNCH);
  } else if (emu_slice_is(base, "trap")) {
    (void)emu_add_op(r, OP_TRAP);
  } else if (emu_slice_is(base, "exit")) {
    (void)emu_add_op(r, OP_EXIT);
  } else if (emu_slice_is(base, "ret")) {
    (void)emu_add_op(r, r->in_entry ? OP_EXIT : OP_RETURN);
  } else if (!decode_lanes(r)) {
    emu_refuse(r, "an unknown instruction");
  }
}
