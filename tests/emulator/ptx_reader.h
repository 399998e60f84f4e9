// The reader of PTX: what ptx_read.c (the text's frame: variables, functions, registers, labels) and
// ptx_decode.c (instructions) share. Names are slices of the text, which the module keeps.
#ifndef TESTS_EMULATOR_PTX_READER_H
#define TESTS_EMULATOR_PTX_READER_H

#include <setjmp.h>

#include "emulator/machine.h"

typedef struct emu_slice {
  const char *at;
  uint32_t length;
} emu_slice;

typedef enum emu_symbol_kind {
  EMU_REGISTER,   // value: offset in the frame, of the first of count
  EMU_SHARED_AT,  // value: offset from the block's shared memory
  EMU_GLOBAL_AT,  // value: address
  EMU_LOCAL_AT,   // value: offset in the function's local memory
  EMU_ENTRY_PARAMETER,
  EMU_OWN_PARAMETER,  // value: offset among the words that a call passes
  EMU_CALL_PARAMETER,
  EMU_FUNCTION,  // value: its index
} emu_symbol_kind;

typedef struct emu_symbol {
  emu_slice name;
  emu_symbol_kind kind;
  uint32_t count;  // of a range of registers: name with a number; 0: the name itself
  uint32_t bytes;  // of a register; 0: a predicate
  uint64_t value;
} emu_symbol;

typedef enum emu_operand_kind { EMU_WORD, EMU_VECTOR, EMU_ADDRESS } emu_operand_kind;

typedef struct emu_operand {
  emu_operand_kind kind;
  emu_slice word;         // or an address' base
  emu_slice second;       // behind |
  bool negated;           // by !
  int64_t offset;         // of an address
  uint32_t first, count;  // of a vector: in reader.words
} emu_operand;

enum {
  EMU_ROW_BYTES = 128,
  EMU_RETURN_BYTES = 16,  // in front of a function's parameters, for what it returns
  EMU_CONSTANT_SLOTS = 1 << 16,
  EMU_CONSTANT_BYTES = 64 << 20,
};

enum { EMU_MAX_OPERANDS = 12, EMU_MAX_WORDS = 512, EMU_MAX_PARTS = 24, EMU_MAX_SCOPES = 16 };

typedef struct emu_reader {
  emu_module *module;
  const char *at;
  uint32_t line;
  char *why;
  size_t why_bytes;
  jmp_buf failed;
  emu_symbol *symbols;
  uint32_t symbol_count, symbol_capacity;
  uint32_t scopes[EMU_MAX_SCOPES], scope_count;  // symbols at their begins
  uint32_t call_bytes;                           // of parameters that this scope's call passes
  // The function that is read.
  bool in_entry;
  emu_function_code *function;
  uint32_t function_begin;  // its first op
  uint32_t frame_bytes, local_bytes, predicates_left;
  uint64_t predicates_at;
  struct emu_label {
    emu_slice name;
    uint32_t pc;
  } * labels, *jumps;  // jumps: pc of the op whose imm becomes the label's
  uint32_t label_count, label_capacity, jump_count, jump_capacity;
  emu_function_code *functions;
  uint32_t function_count, function_capacity;
  // The instruction that is read.
  emu_slice parts[EMU_MAX_PARTS];
  uint32_t part_count;
  emu_operand operands[EMU_MAX_OPERANDS];
  uint32_t operand_count;
  emu_slice words[EMU_MAX_WORDS];
  uint32_t word_count;
  emu_row guard;
  bool guard_not;
} emu_reader;

_Noreturn void emu_refuse(emu_reader *r, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
// Room for one more.
void *emu_grow(emu_reader *r, void *array, uint32_t count, uint32_t *capacity, size_t bytes);
const emu_symbol *emu_symbol_find(const emu_reader *r, emu_slice name, uint64_t *value);
bool emu_slice_is(emu_slice slice, const char *text);
// A number's bits; false: it is none.
bool emu_number(emu_slice word, uint64_t *out);
emu_row emu_constant(emu_reader *r, uint64_t value);
emu_row emu_new_row(emu_reader *r, uint32_t bytes);
emu_op *emu_add_op(emu_reader *r, emu_code code);
uint32_t emu_list_begin(const emu_reader *r);
void emu_list_add(emu_reader *r, emu_row row);
// Words and declarations of the text.
void emu_skip_space(emu_reader *r);
emu_slice emu_read_word(emu_reader *r);
bool emu_accept(emu_reader *r, char c);
void emu_expect(emu_reader *r, char c);
bool emu_slice_begins(emu_slice slice, const char *text);
uint32_t emu_small_number(emu_reader *r);
void emu_add_symbol(emu_reader *r, emu_symbol symbol);
void emu_open_scope(emu_reader *r);
void emu_close_scope(emu_reader *r);
uint32_t emu_declared_bytes(emu_reader *r, emu_slice type);
void emu_read_registers(emu_reader *r);
// Parts of the mnemonic, and operands as rows; bytes: of a register, 0: a predicate.
emu_slice emu_last_part(const emu_reader *r);
bool emu_part_is(const emu_reader *r, uint32_t i, const char *text);
bool emu_has_part(const emu_reader *r, const char *text);
void emu_need_operands(emu_reader *r, uint32_t least, uint32_t most);
uint32_t emu_type_bytes(emu_reader *r, emu_slice type);
emu_row emu_operand_row(emu_reader *r, uint32_t i, uint32_t bytes);
emu_row emu_target_row(emu_reader *r, uint32_t i, uint32_t bytes);
emu_row emu_target_word(emu_reader *r, emu_slice w, uint32_t bytes);
emu_row emu_address_row(emu_reader *r, uint32_t i, uint8_t *bytes, int64_t *offset);
emu_row emu_shared_address(emu_reader *r, uint32_t i, int64_t *offset);
void emu_add_list(emu_reader *r, uint32_t operand, uint32_t bytes, bool written);
bool emu_is_shared(const emu_reader *r);
void emu_decode_shfl(emu_reader *r);
void emu_decode_vote(emu_reader *r);
void emu_decode_redux(emu_reader *r);
void emu_decode_bar(emu_reader *r);
void emu_decode_mbarrier(emu_reader *r);
void emu_decode_copy(emu_reader *r);
void emu_decode_mma(emu_reader *r);
void emu_decode_ldmatrix(emu_reader *r, bool load);
void emu_decode_wgmma(emu_reader *r);
// The instruction in parts and operands becomes an op.
void emu_decode(emu_reader *r);

#endif
