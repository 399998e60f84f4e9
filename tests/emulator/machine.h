// What the emulator's parts share: a module as it was decoded, and the state of what runs.
//
// A warp runs in lockstep: a register is a row of 32 values, one of each lane, in the frame of the
// function that has it. Lanes that branched apart are groups, each with its own place in the code;
// of those that can run, the one deepest in calls and earliest in the code does, so that they meet
// again where their ways do. What needs several lanes (shfl, bar, mma) waits until all of them are
// there. Rejected: a stack of reconvergence points, with which a lane that spins for another lane
// of its warp would wait for ever.
#ifndef TESTS_EMULATOR_MACHINE_H
#define TESTS_EMULATOR_MACHINE_H

#include <setjmp.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "emulator/emulator.h"
#include "emulator/matrix.h"

enum { EMU_COUNTED_WARPS = 16 };

// --- code ----------------------------------------------------------------------------------------

#define LANE1(name, D, A, result) OP_##name,
#define LANE2(name, D, A, B, result) OP_##name,
#define LANE3(name, D, A, B, C, result) OP_##name,
#define TEST(name, A, result) OP_##name,
typedef enum emu_code {
#include "emulator/lanes.def"
  OP_LANES,            // behind the last of them
  OP_JOIN = OP_LANES,  // a label: lanes that were apart may meet
  OP_BRANCH,           // imm: where
  OP_CALL,             // imm: where
  OP_RETURN,
  OP_EXIT,
  OP_TRAP,
  OP_NOTHING,
  OP_MOV_PRED,
  OP_NOT_PRED,
  OP_AND_PRED,
  OP_OR_PRED,
  OP_XOR_PRED,
  OP_SELECT_32,  // d a b, predicate c
  OP_SELECT_64,
  OP_BFI_32,  // d a b, c, e: position and length
  OP_BFI_64,
  OP_CLOCK,       // d; count: bytes
  OP_LOCAL,       // d: the address of this function's local memory + imm
  OP_PARAMETERS,  // d: the address of the kernel's parameters + imm
  OP_TO_SHARED,   // cvta.to.shared: d a
  OP_FROM_SHARED,
  OP_PACK,       // mov of list to d; bytes: of an element
  OP_UNPACK,     // mov of a to list
  OP_LOAD,       // list; [a + imm]
  OP_STORE,      // [a + imm]; list
  OP_LOAD_CALL,  // list; rows of words at imm of the frame behind this function's
  OP_STORE_CALL,
  OP_ATOMIC,     // d (or no row), [a + imm], b, c
  OP_SHUFFLE,    // d, predicate e or none; a b c, mask list[0]
  OP_VOTE,       // d, predicate a, mask b
  OP_ELECT,      // predicate d, mask a
  OP_REDUX,      // d a, mask b
  OP_ACTIVE,     // d
  OP_WARP_SYNC,  // mask a
  OP_BARRIER,    // a: which, b: threads or none
  OP_BARRIER_ARRIVE,
  OP_BARRIER_REDUCE,   // predicate d, predicate c
  OP_MBARRIER_INIT,    // [a + imm], b
  OP_MBARRIER_ARRIVE,  // [a + imm]; b: bytes that are expected, or none; c: arrivals, or one
  OP_MBARRIER_EXPECT,  // [a + imm], b
  OP_MBARRIER_TEST,    // predicate d, [a + imm], parity b
  OP_MBARRIER_TRY,
  OP_COPY,  // cp.async [a], [b], count; c: bytes of the source or none
  OP_COPY_COMMIT,
  OP_COPY_WAIT,    // imm: groups that may be under way
  OP_COPY_ARRIVE,  // [a]
  OP_BULK_IN,      // [a], [b], c bytes, mbarrier [e]
  OP_BULK_OUT,     // [a], [b], c bytes
  OP_BULK_COMMIT,
  OP_BULK_WAIT,  // imm
  OP_SLEEP,
  OP_WAIT_LAUNCH,  // griddepcontrol.wait
  OP_LET_LAUNCH,
  OP_MMA,       // list: d, a, b, c; imm: what of emu_products
  OP_LDMATRIX,  // list; [a + imm]; count, how: transposed
  OP_STMATRIX,
  OP_MOVMATRIX,  // d a
  OP_WGMMA,      // list: d, then a's registers; a: descriptor or none; b; predicate c
  OP_WGMMA_COMMIT,
  OP_WGMMA_WAIT,  // imm
  OP_COUNT
} emu_code;
#undef LANE1
#undef LANE2
#undef LANE3
#undef TEST

typedef enum emu_product {
  EMU_MMA_BF16,
  EMU_MMA_F16,
  EMU_MMA_BF16_K8,
  EMU_MMA_F16_K8,
  EMU_MMA_S8
} emu_product;

typedef enum emu_space { EMU_GENERIC, EMU_SHARED } emu_space;

// What op.how says, of those ops that have a `how`.
enum {
  EMU_SIGNED = 1,  // loads
  EMU_STRONG = 2,  // volatile, relaxed, acquire, release: in one piece, and perhaps a poll
  EMU_TRANSPOSED = 1,
};

typedef enum emu_atomic {
  EMU_ADD,
  EMU_EXCH,
  EMU_CAS,
  EMU_AND,
  EMU_OR,
  EMU_XOR,
  EMU_INC,
  EMU_DEC,
  EMU_MIN_U,
  EMU_MAX_U,
  EMU_MIN_S,
  EMU_MAX_S,
  EMU_ADD_F32
} emu_atomic;

typedef enum emu_shuffle { EMU_IDX, EMU_UP, EMU_DOWN, EMU_BFLY } emu_shuffle;
typedef enum emu_vote { EMU_ANY, EMU_ALL, EMU_UNI, EMU_BALLOT } emu_vote;

// A row: an offset, and in its two lowest bits what from. Rows begin at multiples of 128, of 4
// those of predicates, which are one word: bit n is lane n's.
typedef uint32_t emu_row;
enum { EMU_FRAME, EMU_CONSTANTS, EMU_SPECIALS, EMU_BASES };
#define EMU_NO_ROW UINT32_MAX

typedef struct emu_op {
  uint16_t code;
  uint8_t how, count, bytes, space, width;  // width: of a row that is loaded, if not bytes
  bool guard_not;
  emu_row guard;  // a predicate or none
  emu_row d, a, b, c, e;
  uint32_t list;  // index of the first row in the module's lists
  uint32_t line;
  int64_t imm;
} emu_op;

typedef struct emu_function_code {
  const char *name;
  uint32_t entry;        // of its first op
  uint32_t frame_bytes;  // rows of one warp
  uint32_t local_bytes;  // of a lane
  uint32_t parameter_count, parameter_bytes;
  uint32_t *parameter_at, *parameter_size;
} emu_function_code;

struct emu_kernel {
  struct emu_kernel *next;
  const emu_module *module;
  emu_function_code code;
  uint32_t threads, blocks;
};

typedef struct emu_global {
  struct emu_global *next;
  char *name;
  uint8_t *memory;
  size_t bytes;
} emu_global;

struct emu_module {
  char *text;
  emu_op *ops;
  size_t op_count, op_capacity;
  emu_row *lists;
  size_t list_count, list_capacity;
  uint8_t *constants;  // rows, each value 32 times
  size_t constant_bytes, constant_capacity;
  uint32_t *constant_table;  // offsets + 1, by hash
  emu_kernel *kernels;
  emu_global *globals;
  uint32_t shared_bytes;   // static
  uint32_t dynamic_align;  // of the dynamic part
  uint64_t *counts;        // [EMU_COUNTED_WARPS][op_count], or NULL: how often each op ran
};

// --- what runs -----------------------------------------------------------------------------------

enum {
  EMU_MAX_DEPTH = 24,
  EMU_SHARED_BASE = 1024,  // addresses below it are no variables'
  EMU_NAMED_BARRIERS = 16,
  EMU_FRAMES_BYTES = 48 << 20,
  EMU_LOCAL_BYTES = 64 << 10,  // of a lane
  EMU_FAULT_BYTES = 1024,
  // Rows of a warp's special registers.
  EMU_TID = 0,
  EMU_NTID = 3,
  EMU_CTAID = 6,
  EMU_NCTAID = 9,
  EMU_LANEID = 12,
  EMU_WARPID,
  EMU_NWARPID,
  EMU_SMID,
  EMU_NSMID,
  EMU_GRIDID,
  EMU_LANEMASK_EQ,
  EMU_LANEMASK_LE,
  EMU_LANEMASK_LT,
  EMU_LANEMASK_GE,
  EMU_LANEMASK_GT,
  EMU_DYNAMIC_BYTES,
  EMU_TOTAL_BYTES,
  EMU_SPECIAL_COUNT,
};

typedef struct emu_range {
  uintptr_t begin, end;
} emu_range;

typedef enum emu_blocked {
  EMU_RUNS,
  EMU_AT_BARRIER,
  EMU_AT_MBARRIER,
  EMU_AT_LAUNCH,
  EMU_ENDED
} emu_blocked;

typedef struct emu_return {
  uint32_t pc, frame, local;
} emu_return;

// cp.async: what is under way, in order.
typedef struct emu_copy {
  bool arrives;  // at to[lane], instead of copying
  uint32_t lanes, bytes, group;
  uint32_t from_bytes[32];
  uint8_t *to[32];
  const uint8_t *from[32];
} emu_copy;

// wgmma: likewise.
typedef struct emu_product_due {
  const emu_op *op;
  uint32_t pc, frame, group;
  uint64_t a, b;  // descriptors
  bool add;
} emu_product_due;

typedef struct emu_warp {
  struct emu_warp *next;  // of those that nobody uses
  struct emu_block *block;
  uint32_t index;          // in its block
  uint32_t live, waiting;  // lanes
  uint32_t pc[32], frame[32], local[32], depth[32];
  emu_return returns[32][EMU_MAX_DEPTH];
  uint8_t *frames, *locals;
  _Alignas(128) uint32_t specials[EMU_SPECIAL_COUNT][32];
  emu_blocked blocked;
  uint64_t asleep_until;  // a hint, in steps
  // At a barrier of the block:
  uint32_t barrier;
  bool released, barrier_result;
  // At an mbarrier:
  const uint64_t *mbarrier;
  uint32_t parity;
  uint64_t tries_until;
  bool tried;
  // The last load that might be a poll.
  uint32_t poll_pc;
  uint64_t poll_value;
  uintptr_t poll_at;
  // Under way.
  emu_copy *copies;
  uint32_t copy_first, copy_count, copy_capacity, copy_group;
  emu_product_due *products;
  uint32_t product_first, product_count, product_capacity, product_group;
  uint32_t bulk_group[32];
  emu_range near;  // where the last access was
} emu_warp;

typedef struct emu_named_barrier {
  uint32_t arrived, expected, warps;  // threads; warps that wait: bits
  bool any, all, result_is_all;
} emu_named_barrier;

typedef struct emu_block {
  struct emu_launch *launch;
  uint32_t id[3];
  uint8_t *shared;  // .shared addresses count from here; EMU_SHARED_BASE bytes are nobody's
  uint32_t shared_end;
  emu_warp **warps;
  uint32_t warp_count, live_warps;
  bool lets_launch;
  emu_named_barrier barriers[EMU_NAMED_BARRIERS];
} emu_block;

typedef struct emu_bulk {
  uint64_t due;
  uint8_t *to;
  const uint8_t *from;
  uint32_t bytes;
  uint64_t *mbarrier;  // NULL: a group's
  emu_block *block;
  emu_warp *warp;
  uint32_t lane, group;
} emu_bulk;

struct emu_launch {
  const emu_kernel *kernel;
  uint32_t grid[3], block[3], dynamic_bytes;
  uint8_t *parameters;
  uint64_t random;
  uint32_t limit;
  uint64_t next_block, block_count, lets;  // lets: blocks that let dependent launches begin
  emu_warp **warps;                        // live ones
  uint32_t warp_count, warp_capacity;
  uint32_t live_blocks;
  bool held, ended;
  emu_bulk *bulks;
  uint32_t bulk_count, bulk_capacity;
  char fault[EMU_FAULT_BYTES];
  jmp_buf at_fault;
  // Memory that may be touched, as of when this step began.
  emu_range *ranges;
  size_t range_count;
  uint64_t generation;
};

// memory.c
extern uint64_t emu_steps;  // of all launches: the clock
uint64_t emu_random(emu_launch *launch);
_Noreturn void emu_fault(emu_launch *launch, const emu_warp *warp, uint32_t pc, const char *format,
                         ...) __attribute__((format(printf, 4, 5)));
// Takes the table of memory as it is now.
void emu_memory_refresh(emu_launch *launch);
// The range that has [at, at + bytes); false: none has.
bool emu_memory_find(emu_launch *launch, uintptr_t at, size_t bytes, emu_range *out);

// async.c: mbarriers of shared memory; what is wrong with a call, or NULL.
const char *emu_mbarrier_init(uint64_t *barrier, uint32_t count);
const char *emu_mbarrier_arrive(uint64_t *barrier, uint32_t count, uint32_t expected_bytes);
const char *emu_mbarrier_complete(uint64_t *barrier, uint32_t bytes);
const char *emu_mbarrier_check(const uint64_t *barrier);
bool emu_mbarrier_passed(const uint64_t *barrier, uint32_t parity);
// What is under way: of groups before `group`, or the first `count` of all.
emu_copy *emu_copy_add(emu_warp *warp);
void emu_copies_finish(emu_warp *warp, uint32_t group, uint32_t count);
emu_product_due *emu_product_add(emu_warp *warp);
void emu_products_finish(emu_warp *warp, uint32_t group, uint32_t count);
emu_bulk *emu_bulk_add(emu_launch *launch);
void emu_bulk_finish(emu_launch *launch, uint32_t index);
void emu_bulks_finish(emu_launch *launch, const emu_warp *warp, uint32_t lane, uint32_t group);

// warp.c: runs at most so many steps; returns how many.
uint32_t emu_warp_run(emu_warp *warp, uint32_t steps);
// launch.c: warps have come to a barrier of their block, or have ended.
void emu_barrier_try(emu_block *block, uint32_t barrier);

#endif
