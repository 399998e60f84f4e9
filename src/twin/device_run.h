// Host and megakernel share these structs besides descriptors and protocol: bound ops, steps,
// plans, sequences, and the state of one launch. Both compilers read them; the host builds the
// bytes, the device uses them as they are.
//
// The host passes the sizes and some offsets that its compiler gives these structs as
// MGL_HOST_BYTES_* macros, and a device compiler that lays them out otherwise refuses the source
// (layout.def).
//
// Letters: T tokens of an iteration, R sequences, L rows that need logits, HD head dim, P tokens of
// a KV page.
#ifndef MGL_TWIN_DEVICE_RUN_H
#define MGL_TWIN_DEVICE_RUN_H

#include <stdbool.h>
#include <stdint.h>

#include "graph/op.h"
#include "twin/feed.h"
#include "twin/protocol.h"
#include "twin/sampling_rule.h"

enum {
  // A worker's warps: consumers first, so that they form whole warpgroups.
  MGL_CUDA_CONSUMER_WARPS = 8,
  MGL_CUDA_CONSUMERS = MGL_CUDA_CONSUMER_WARPS * 32,
  MGL_CUDA_WARPS = MGL_CUDA_CONSUMER_WARPS + 4,  // controller, loader, storer, scheduler
  MGL_CUDA_THREADS = MGL_CUDA_WARPS * 32,

  // Shared memory of a block: mgl_block, then the scratch of the running task, then the pages.
  MGL_CUDA_BLOCK_BYTES = 1024,
  MGL_CUDA_SCRATCH_BYTES = 34816,
  MGL_CUDA_PAGE_BYTES = 16384,  // an smem page
  MGL_CUDA_MAX_PAGES = 12,
  MGL_CUDA_BLOCK_SCHEDULERS = 4,  // warps of a block of dedicated schedulers
  MGL_CUDA_LONG_PAGES = 12,  // of a task for which the memory, not what it waits for, is the limit

  // Packed weights (see mgl_cuda_op.weights).
  MGL_CUDA_BLOCK_ROWS = 16,  // output features of a row block
  MGL_CUDA_HALF_ROWS = 8,    // of half of one
  MGL_CUDA_PAGE_K = 512,     // elements of a dot product that a page holds of each of its rows
  MGL_CUDA_K_ALIGN = 64,     // rows are padded with zeros to a multiple of so many elements

  // Linears of one token have functions of their own up to these K (page_stream.cuh).
  MGL_ONE_MAX_K = 12288,
  MGL_ONE_NORMED_MAX_K = 4096,

  MGL_CUDA_MAX_TOKENS = 64,  // of an iteration
  MGL_CUDA_MAX_STOP_IDS = 16,
  MGL_CUDA_KV_PAGE_TOKENS = 16,  // P

  // Attention: softmax runs over chunks of absolute positions. A query at position p has
  // chunks of MGL_CUDA_MIN_CHUNK positions, doubled until MGL_CUDA_MAX_CHUNKS of them hold p + 1.
  MGL_CUDA_MIN_CHUNK = 128,
  MGL_CUDA_MAX_CHUNKS = 16,
  MGL_CUDA_QUERY_COLUMNS = 8,  // query tokens of an item times heads of a KV group, at most
  MGL_CUDA_MAX_ITEMS = MGL_CUDA_MAX_TOKENS * MGL_CUDA_MAX_CHUNKS,
  // Of a unit whose items are computed one behind the other (attend_warps.cuh): from so many on
  // that is faster; and of a task, at most.
  MGL_LONE_LEAST_ITEMS = 2,
  MGL_LONE_MOST_ITEMS = 64,
  MGL_CUDA_HEAD_PARTS = 4,  // that a group of query heads is cut into at most
};

// Kinds besides mgl_op_kind: tasks wait and trigger, and do nothing between. For ops that are left
// out (mgl_cuda_program_choose); and tests/gpu/hops.c measures what is left without the work.
enum {
  MGL_CUDA_OP_EMPTY = 1000,
  MGL_CUDA_OP_STREAMED,  // its weights still go through the pages
};

typedef enum mgl_cuda_op_flags {
  MGL_CUDA_X_NORMED = 1,  // x is f32 and goes through an RMS norm; else x is bf16
  MGL_CUDA_CARRIED = 2,   // the op's graph is a carrying one, and x is an activation
  // attend, in a carrying graph: no worker has two units of a KV head, and heads come in ascending
  // order. So a task may wait for items before its own: nobody waits in a circle.
  MGL_CUDA_UNITS_APART = 4,
  // gate_up or linear_add of a mixture: of each token by itself, over the features of its S slots,
  // one slot behind the other. Weights are those of the experts that the token's logits choose.
  MGL_CUDA_EXPERTS = 8,
  MGL_CUDA_CUSTOM_LOGITS = 16,  // a custom op whose output is sampled
} mgl_cuda_op_flags;

// Carrying graphs. In the graphs for few tokens, an activation carries its own readiness: a 32-bit
// word that is not written yet is MGL_CUDA_OPEN, a NaN that no computation makes, and who needs it
// asks until it is not. So between two ops stands one store and one load, and no fence, counter or
// poll of a counter. Each activation has two copies, which the runs of its graph take in turn; who
// writes a word of one makes that of the other open again, for the run after. That is ordered
// before its use by the events between two iterations, of which every worker triggers one behind
// all that it has written (mgl_words_carry, lower/words.h). What the logits are read
// from is carried, logits are not.
#define MGL_CUDA_OPEN 0xffffffffu
enum { MGL_CUDA_CARRIED_TOKENS = 16 };  // graphs for at most so many tokens may be carrying ones

// An op bound to device memory, for one task graph. 16-byte pieces are copied to shared memory.
//
// Packed weights of the linears, those of codes in panels (twin/packing.h), others as bf16: row
// block b holds 16 output features, which are [16 b, 16 b + 16)
// (of qkv_proj: of Q, K and V one after the other), or for gate_up [8 b, 8 b + 8) of gate, then of
// up. Rows are padded with zeros to k_padded elements. A row block is ceil(k_padded / 512) pages
// one after the other; page c holds elements [512 c, 512 c + kr) of its rows, kr = min(512,
// k_padded - 512 c), in 32 kr bytes: for every 16 elements 512 bytes, 16 for each lane of a warp,
// which are the lane's operand of the tensor cores (mgl_mma). Elements 32 j + 8 t + 4 s + 2 h + i
// of row g + 8 u (t: 0 to 3; g: 0 to 7; s, h, i, u: 0 or 1) lie at 1024 j + 512 s + 16 (4 g + t) +
// 4 (2 h + u) + 2 i: the elements of a k-step are not neighbours, but the activations' are the same
// ones.
// (What few models have stands in fields that their ops have no other use for, under the names of
// functions below: in unions, loads would be in another order in all models' kernels.)
typedef struct mgl_cuda_op {
  uint32_t kind;       // mgl_op_kind
  uint32_t flags;      // mgl_cuda_op_flags; of linears their packing too (mgl_op_packing)
  uint32_t k;          // elements that a dot product or a norm runs over
  uint32_t k_padded;   // attend: its window (mgl_op_window)
  uint32_t n;          // elements of an output row
  uint32_t row_tiles;  // tiles of 8 tokens that one pass over the weights computes: 1, 2 or 4
  uint32_t passes;  // over the weights, each for the next row_tiles; attend: most units of a task
  float eps;
  float scale;             // attend: factor of the scores
  uint32_t x_stride;       // elements from a row of x to the next
  uint32_t tokens;         // most tokens of the graph
  uint32_t zero;           // 0, which the device's compiler does not know (mgl_loads_arrived)
  uint64_t copy_bytes;     // from an activation's first copy to its second; 0: there is one
  const uint8_t *weights;  // packed (above); embed: the table, bf16 row by row
  const void *x;           // input rows; attend: qkv f32 [T, H + 2 HKV, HD]
  const float *norm;       // [k] of the RMS norm
  const float *bias;       // [n] or NULL; of experts: of all of them, of gate alone;
                           // attend: mgl_op_sinks
  const float *residual;   // [T, n]; gate and up of experts: mgl_op_up_bias
  void *out;               // embed, linear, qkv_proj, linear_add, logits: f32; else bf16
  const float *angles;     // attend: [T, HD / 2, 2] cos and sin; rope_angles: [HD / 2] frequencies;
                           // of experts: [T, E] the router's logits
  union {
    const float *q_norm;  // attend: [HD] or NULL
    uint64_t exchange;  // linear_add over several ranks: which of those of the program, from 1 on;
                        // other linears: 0
  };
  const float *k_norm;
  uint16_t *k_cache;  // attend: bf16 [pages, HKV, P, HD]
  uint16_t *v_cache;  // attend: bf16 [pages, HKV, HD, P]
} mgl_cuda_op;

// Of attend: tokens that a query attends to, itself included; 0: all.
MGL_SHARED_FN uint32_t mgl_op_window(const mgl_cuda_op *op) {
  return op->k_padded;
}

// Of attend: [H], scores that have no value, or NULL.
MGL_SHARED_FN const float *mgl_op_sinks(const mgl_cuda_op *op) {
  return op->bias;
}

// Of gate and up of experts that have biases: those of up.
MGL_SHARED_FN const float *mgl_op_up_bias(const mgl_cuda_op *op) {
  return op->residual;
}

// A task as its worker's warps see it. Linears: begin and end are row blocks.
typedef struct mgl_cuda_step {
  uint32_t task;  // index in the task graph
  uint32_t op;
  uint32_t begin, end;
  uint32_t wait_event;     // MGL_NO_EVENT: none
  uint32_t wait_count;     // triggers that activate it, each run
  uint32_t trigger_event;  // MGL_NO_EVENT: its outputs are their own sign
  uint32_t trigger_kind;   // event type << 16 | event flags
} mgl_cuda_step;

typedef struct mgl_cuda_graph {
  const mgl_cuda_step *steps;  // every worker's list, one after the other, then the JIT tasks
  const uint32_t *step_start;  // [workers + 1]
  const mgl_cuda_op *ops;      // [op_count]
  const uint32_t *jit_below;   // [step_start[workers]] JIT tasks that come before a step, if any do
  uint32_t jit_count;
  uint32_t tokens;  // most tokens of an iteration
  uint32_t attention_strides;
  uint32_t in_flight;        // pages on their way, at most, for tasks that may run
  uint32_t in_flight_long;   // and that have MGL_CUDA_LONG_PAGES pages and more
  uint32_t in_flight_ahead;  // for tasks without inputs
  uint32_t ring_pages;       // of the smem pages; those behind hold partial sums (page_stream.cuh)
} mgl_cuda_graph;

// One entry of the attention work list: consecutive tokens of one sequence and a chunk of the
// positions that they see, for some of the query heads of every KV head. Query tokens times these
// heads are at most MGL_CUDA_QUERY_COLUMNS, and all its tokens have chunks of one size.
typedef struct mgl_cuda_item {
  uint32_t slot;       // row of the block tables
  uint32_t row;        // of the first token, in this iteration
  uint32_t count;      // tokens
  uint32_t position;   // of the first token
  uint32_t fresh_row;  // row of the sequence's first token of this iteration
  uint32_t fresh;      // and its position: rows of K and V from there on are not in the cache yet
  uint32_t kv_begin;   // positions [kv_begin, kv_end), a chunk or what the last token sees of it
  uint32_t kv_end;
  uint32_t chunk;    // number of the chunk
  uint32_t chunks;   // that the last token sees: with 1 nothing is merged
  uint32_t partial;  // where this item's partial result lies: partials[partial + chunk], and the
                     // counter of the chunks done: run->merges[partial * HKV + kv_head]
  uint32_t heads;    // of a KV head's query heads: first << 8 | count
} mgl_cuda_item;

// What all items of a plan are like, so that attention has a shorter way.
typedef enum mgl_plan_kind {
  MGL_PLAN_ANY,      // nothing is known
  MGL_PLAN_DECODES,  // of one token, which sees no other token of this iteration
  MGL_PLAN_SHORT,    // besides their chunks have MGL_CUDA_MIN_CHUNK positions
} mgl_plan_kind;

// The plan of an iteration. Tokens are filled in by sampling, all else before.
//   With MGL_POISON_PLANS, which debug builds have, a plan lasts as long as its iteration: when
// plan i + 2 begins to be made in its place, plan i becomes what no plan has. Who reads behind an
// iteration's end, or more than a plan has, does not find another one's rows: there are no such
// tokens, pages and counts; and an iteration that begins with such a plan ends the launch.
typedef struct mgl_cuda_plan {
  uint32_t graph;  // the task graph to run; UINT32_MAX: none, the launch ends
  uint32_t token_count;
  uint32_t sequence_count;
  uint32_t logit_row_count;
  uint32_t item_count;
  uint32_t kind;  // mgl_plan_kind
  uint32_t padding[2];
  int32_t tokens[MGL_CUDA_MAX_TOKENS];
  uint32_t positions[MGL_CUDA_MAX_TOKENS];
  uint32_t slots[MGL_CUDA_MAX_TOKENS];       // sequence slot of each token
  uint32_t logit_rows[MGL_CUDA_MAX_TOKENS];  // [L] rows whose logits are wanted
  uint32_t
      logit_slots[MGL_CUDA_MAX_TOKENS];  // [L] sequence slots to sample for; UINT32_MAX: do not
  mgl_cuda_item items[MGL_CUDA_MAX_ITEMS];
} mgl_cuda_plan;

#define MGL_PLAN_POISON 0xa5a5a5a5u  // each word of a plan that is over

typedef enum mgl_cuda_sequence_state {
  MGL_CUDA_SEQUENCE_NONE,
  MGL_CUDA_SEQUENCE_RUNNING,
  MGL_CUDA_SEQUENCE_STOPPED,     // produced a stop token
  MGL_CUDA_SEQUENCE_LENGTH,      // reached max_tokens
  MGL_CUDA_SEQUENCE_NOT_FINITE,  // its logits are NaN or infinite
} mgl_cuda_sequence_state;

// How likely the model finds a token and its alternatives, in pinned host memory: logits, and the
// sum of all weights at temperature 1 (mgl_logprob).
typedef struct mgl_cuda_logprobs {
  uint64_t mass;
  float largest;  // of all logits
  float logit;    // of the token
  struct {
    int32_t token;
    float logit;
  } top[MGL_MAX_TOP_LOGPROBS];  // the likeliest, most likely first; as many as the rule asks for
} mgl_cuda_logprobs;

// A sequence slot: what sampling knows of it. What of it is computed, and where, the planner knows.
typedef struct mgl_cuda_sequence {
  uint32_t state;        // mgl_cuda_sequence_state
  uint32_t token_count;  // prompt and what was sampled
  uint32_t padding;
  uint32_t prompt_count;
  uint32_t max_tokens;
  uint32_t takes_row;   // not 0: its token is not just the largest logit, or is wanted with more
  uint32_t edit_count;  // tokens that were generated in this launch join, but for the latest one
  uint32_t stop_count;
  mgl_feed_cell
      *cells;       // [max_tokens] in pinned host memory, of which generated tokens are written
  int32_t *tokens;  // [max_tokens] in device memory
  mgl_sampling_rule rule;
  mgl_logit_edit *edits;             // [edit_count], with room for all that may join; or NULL
  mgl_cuda_logprobs *host_logprobs;  // [max_tokens - prompt_count] of generated tokens, in pinned
      // host memory, each complete before its token is there; or NULL
  const uint64_t *mask;  // [1 + ceil(V / 64)] of the next token, in pinned host memory; or NULL.
      // Word 0: not 0, the rule is not applied; bit t % 64 of word 1 + t / 64: token t may come
  uint64_t more_padding;
  int32_t stop_ids[MGL_CUDA_MAX_STOP_IDS];
} mgl_cuda_sequence;

// How a task of the launch is made to fail, to test the fault path.
typedef enum mgl_cuda_injection {
  MGL_INJECT_NONE,
  MGL_INJECT_HANG,  // the task never ends
  MGL_INJECT_LOSE,  // the task ends and does not trigger its event
} mgl_cuda_injection;

// An mgl_cuda_stall is what the device found when it raised MGL_FAULT_STUCK. It lies in
// mgl_cuda_run.stall, with the worker in bits 32 to 47 and the task's index in its graph
// (mgl_id_index and graph of an id) below.
typedef enum mgl_cuda_stall {
  MGL_CUDA_STALL_NONE,     // the device raised nothing
  MGL_CUDA_STALL_RUNNING,  // that task runs and does not end
  MGL_CUDA_STALL_WAITING,  // that task waits for an event, and nothing runs
  MGL_CUDA_STALL_IDLE,     // nothing runs and the finder has nothing to wait for
} mgl_cuda_stall;

// The trace: tracks of spans, one for each worker and role.
typedef enum mgl_cuda_trace_role {
  MGL_CUDA_TRACE_WAIT,     // controller: from the task before to the activation of its event
  MGL_CUDA_TRACE_COMPUTE,  // storer: from the consumers' seeing the activation to the last output
  MGL_CUDA_TRACE_LOAD,     // loader: from the first page asked for to the last one asked for
  MGL_CUDA_TRACE_TRIGGER,  // storer: from the last output to the trigger
  MGL_CUDA_TRACE_ROLES,
} mgl_cuda_trace_role;

// A span of the trace is what one store writes. Its times are the low halves of the
// multiprocessor's clock, which takes a few cycles to read where the global timer takes 0.25 to 0.5
// us; cuda_trace.c makes nanoseconds of them.
typedef struct mgl_cuda_span {
  uint32_t begin, end;
  // The iteration's low half. Of TRIGGER, whose n-th span is of the same task as the n-th of
  // COMPUTE: clocks of that one in which the consumers waited for weights.
  uint32_t note;
  uint32_t id;  // graph << MGL_ID_INDEX_BITS | task
} mgl_cuda_span;

// The global timer and a multiprocessor's clock at the same time. Each worker takes such a pair
// every few microseconds: each part of the GPU has a clock of its own, whose frequency follows the
// load (docs/log/048).
typedef struct mgl_cuda_mark {
  uint64_t ns, clock;
} mgl_cuda_mark;

enum { MGL_CUDA_TRACE_MARKS = 8192 };  // that stay of each worker: some 65 ms

// A worker writes its mgl_cuda_trace when it ends: the counts of what it has recorded, also of what
// was overwritten.
typedef struct mgl_cuda_trace {
  uint32_t span_counts[MGL_CUDA_TRACE_ROLES];
  uint32_t mark_count;
} mgl_cuda_trace;

// An mgl_cuda_entry_place says where a planned entry's parts begin in the plan that is being made.
typedef struct mgl_cuda_entry_place {
  uint32_t row, item;
} mgl_cuda_entry_place;

// The planner of a launch knows this besides mgl_planner. It alone writes it, but where said
// otherwise.
typedef struct mgl_cuda_planning {
  // By next_plan's task of iteration i, which then lets its worker go on: plan i + 1 is wanted, and
  // whoever makes it triggers the task's event.
  mgl_word wanted;    // i + 1; the rest of them is written before
  mgl_word *trigger;  // the event's counter, where only workers that poll it wait; or NULL
  uint64_t run;
  uint32_t graph;
  uint32_t event;  // MGL_NO_EVENT: nothing is to be triggered
  // By whoever waits for a plan that is not there yet: so many iterations have ended.
  mgl_word ended;
  uint64_t resumed, resumed_ns;  // the latest iteration of which that is so, and when it began
  mgl_word idle;                 // 1: there is nothing to do, and the planner waits for commands
  mgl_ring_end commands, iterations;
  uint64_t commands_before;               // that were read when the plan before was made
  uint64_t settled;                       // commands that the host knows to have had their effects
  uint32_t pending_first, pending_count;  // of run->pending
  uint32_t leaves;                        // 1: no more plans are made
  uint32_t end;                           // mgl_feed_end
  // Tokens of a plan that is made and too large for this kernel: the launch ends, and the wide
  // class computes it (wide_chain.h). 0: there is none.
  uint32_t wide_tokens;
  // Tokens of a plan that was made behind an iteration of the wide class and waits for this kernel.
  uint32_t narrow_tokens;
  uint32_t wide_runs;  // 1: the iteration of wide_tokens runs
  uint32_t padding;
  uint64_t wide_ns;            // the global timer when it began
  uint64_t wide_turns;         // of the chain
  uint64_t told;               // iterations of which the host was told
  uint64_t planning_ns;        // of all turns
  uint64_t turns;              // that have read commands
  mgl_feed_iteration rows[2];  // [i & 1] what iteration i computes
} mgl_cuda_planning;

// Several ranks, a GPU each. All run the same launches of the same task graphs, and what they write
// to each other lies at the same offsets of one block of memory on each GPU, which all have mapped.
//
// A linear_add over ranks sends the words of its partial sums to every rank's inbox, and adds up
// what all ranks sent: (part of rank 0 + part of rank 1 + ...), so all have the same bits. A word
// says itself which exchange it is of, in its upper half: so inboxes need no opening and no flags.
//
// Two inboxes, which exchanges take in turn, are enough. A rank sends row t of exchange e + 2 after
// it has row t of exchange e + 1 whole. All parts of that depend on whole rows of exchange e on the
// rank that sent them, since what stands between two exchanges reads whole rows (norms). So all
// ranks have taken exchange e out of the inbox that is written again. From an iteration to the next
// the same holds, as an iteration ends when all its tasks have.
//
// Logits of a rank are loaded by the others behind an event that counts the triggers of all ranks;
// they are written again in the next iteration, behind exchanges with ranks that have loaded them.
//
// Planners make the same plans from the same commands: rank 0's says how many commands each of its
// turns has read, and the others read as many (twin/plan_turn.h).
typedef struct mgl_rank_words {
  mgl_word turns[2];             // [n & 1] by rank 0: (n + 1) << 32 | commands read by turn n
  mgl_word seen[MGL_MAX_RANKS];  // of rank 0; by each other: turns that it has read of
  uint8_t padding[48];
} mgl_rank_words;

typedef struct mgl_cuda_run {
  mgl_protocol protocol;

  // Read-only while running.
  mgl_cuda_graph graphs[MGL_MAX_GRAPHS];
  uint32_t kv_heads;
  uint32_t page_count;        // smem pages of each worker
  uint32_t prefetch;          // 1: the loader runs ahead of tasks; 0: it waits until one is let go
  uint32_t step_batch;        // descriptors fetched at once, 1 to 32
  uint32_t tells_loader;      // 1: some JIT task of some graph streams weights
  uint32_t scheduler_warps;   // 1: scheduler s is a warp of block s; 0: of a block behind workers'
  uint32_t most_iterations;   // the launch ends after so many
  uint32_t iteration_tokens;  // most tokens of an iteration here; the planner's may have more
  uint32_t long_tokens;       // an iteration of more tokens than these
  uint64_t narrow_context;    // attends to at most so many, those of all its sequences added up;
                              // UINT64_MAX: to any number
  uint32_t sequence_slots;    // of the planner, `sequences`, and all arrays by slot
  uint64_t stall_ns;          // no progress for so long is a fault
  uint32_t injection;         // mgl_cuda_injection
  uint32_t injection_task;
  uint64_t injection_iteration;
  uint32_t delay;            // random delays of up to so many ns before tasks and triggers; 0: none
  uint32_t group;            // query heads of a KV head
  uint32_t head_parts;       // that attention may cut them into, a power of two
  uint32_t op_count;         // of a graph
  uint64_t iterations_past;  // at least those of launches before
  const int32_t *block_tables;  // [sequence_slots, block_table_stride] page numbers
  uint32_t block_table_stride;
  uint32_t vocab;
  mgl_cuda_sequence *sequences;
  // The planner makes plans (twin/plan_turn.h); NULL: the host made the only one.
  mgl_planner *planner;
  mgl_cuda_planning planning;
  uint32_t *next_rows;  // by slot: its row in the latest plan whose token is still to be sampled;
                        // UINT32_MAX: none
  mgl_cuda_entry_place *places;  // [entries of a plan]
  mgl_feed_command *pending;     // [sequence_slots] a ring of requests whose slots are not free yet
  mgl_page_key *keys;            // [sequence_slots, block_table_stride] of prompt pages
  uint32_t token_stride;         // of staged_tokens
  uint32_t edit_stride;          // of staged_edits
  // In pinned host memory.
  mgl_feed *feed;
  const mgl_feed_command *commands;  // [command_mask + 1]
  uint64_t command_mask;
  mgl_feed_iteration *iterations;             // [MGL_FEED_ITERATIONS]
  const mgl_cuda_sequence *staged_sequences;  // by slot, as are these:
  const int32_t *staged_tokens;               // [sequence_slots, token_stride] prompts
  const mgl_page_key *staged_keys;            // [sequence_slots, block_table_stride]
  const mgl_logit_edit *staged_edits;         // [sequence_slots, edit_stride]
  mgl_cuda_plan *plans;  // [2]: iteration i runs plans[i & 1], its plan task makes the other
  // [items, HKV, columns]: [HD] sums of values, each with the tag of its op and iteration (u32),
  // then maximum, sum of weights, tag, 0. So each of these pieces says itself whether it is there.
  uint64_t *partials;
  uint32_t *merges;        // [items, HKV] chunks done; 0 between iterations
  uint64_t *iteration_ns;  // [iteration_capacity], modulo: global timer when each began; NULL: none
  uint64_t iteration_capacity;
  mgl_cuda_span *spans;  // [workers, MGL_CUDA_TRACE_ROLES, span_count]; NULL: no trace
  mgl_cuda_mark *marks;  // [workers, MGL_CUDA_TRACE_MARKS]
  uint32_t span_count;   // a power of two: the latest ones stay

  // Of several ranks, which protocol.rank and rank_count say; else all zero.
  uint64_t *inbox;               // [2, rank_count, inbox_stride]: tag << 32 | f32
  uint32_t inbox_stride;         // words of a rank: rows of inbox_columns
  uint32_t exchange_count;       // of an iteration
  mgl_rank_words *rank_words;    // of this rank
  int64_t peers[MGL_MAX_RANKS];  // bytes from this rank's block to the others'

  // Written by tasks. best: ordered f32 << 32 | ~index, the largest of each logit row; 0 between
  // iterations.
  uint64_t best[MGL_CUDA_MAX_TOKENS];
  mgl_cuda_trace *traces;  // [workers]
  // announced[i & 1]: (i + 1) << 8 | graph of iteration i once its plan is made; graph 255: none
  // follows. Loaders begin with its weights while the iteration before still runs.
  mgl_word announced[2];
  mgl_word stall;  // mgl_cuda_stall << 48 | worker << 32 | graph << 28 | task; the first one stays
} mgl_cuda_run;

#endif
