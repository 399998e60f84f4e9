// The planner: which sequences compute how many tokens in the next iteration, and in which KV
// pages.
//
// One source for host and device. The decision code is the headers batch/planner_*.h, which use no
// library and run as `lanes` lanes (twin/planner_lanes.h): one on the host, a warp on a GPU. The
// decisions are the same for any number of lanes. The state is one block of bytes without pointers
// into itself, so the host builds it and copies it to where it is used; each call below is made by
// one caller at a time.
//
// It works on counts: no token's value is needed to plan. So iteration i + 1 is planned while
// iteration i computes; what comes of an iteration (a stop token) is told by mgl_planner_end when
// it is known, and a sequence that ended one iteration late had one row for nothing.
//
// A turn, once for every iteration:
//   1. mgl_planner_end, _pause, _resume   for what was sampled, cancelled and wished
//   2. mgl_planner_settle                 carries those out: pages and slots become free
//   3. mgl_planner_submit                 into free slots
//   4. mgl_planner_plan                   the next iteration: entries[0 .. entry_count)
// The caller expands the entries into rows and calls what it likes; the planner counts them as
// computed, since iterations run in the order in which they were planned.
//
// Order. order[] lists all requests but paused ones: first those that run, in order of admission,
// then those that wait, in order of arrival. All moves keep that order: admission moves the border
// behind the first that waits, preemption moves it before the last that runs; a resumed request
// goes to the front of those that wait. So nothing is ever overtaken for good, and the first one
// always makes progress.
//
// Rows. Sequences that decode get one each, then chunks of prompts share what is left of
// iteration_tokens: each gets as much as the others (water-filling), but no more than its rest and
// chunk_tokens. While any prompt is to be computed, a sixteenth of the iteration (at least a row;
// of an iteration of one row, every other) is kept from decoding; if that or the limit leaves too
// few rows to decode, sequences take turns. A sequence whose next token needs a mask that is not
// there (masked_to) gets none; it keeps its pages.
//
// Admission. The first that waits is admitted when a place is free and the pages that are free or
// can be evicted suffice for: the pages of its tokens that no cached page holds, the rest of all
// prompts that run, and as a margin one page for each sequence that runs and may need more. So a
// plan that admits never preempts. With nothing running it is admitted always.
//
// Pages are taken as sequences grow. When they run out, the sequence admitted last gives all of its
// pages back and waits in front; its tokens are computed again later. One sequence alone always has
// enough (mgl_planner_check_request).
//
// With `runs` a sequence takes the page behind its last one, if that is free; else it goes on, or
// begins, with the first free page whose number is a multiple of `runs`; else with any page. So
// what a sequence holds lies together, which a CPU reads faster (docs/log/304).
//
// Prefix cache. The full pages of a prompt have keys (batch/page_key.h). When rows that fill such a
// page are planned, the page is entered under its key, for plans after this one; a request that is
// admitted takes over the pages at the beginning of its prompt that it finds, but computes at least
// its last token. Pages that no sequence holds any more stay, and the least recently released ones
// are evicted when pages are needed; of one sequence, its later pages first.
//
// Rejected: admission by the pages of the longest possible answer (what the engine did before: most
// of the pool was idle), and swapping pages out in place of recomputation (a second memory, a
// second path; prompts are computed far faster than they decode).
#ifndef MGL_TWIN_PLANNER_H
#define MGL_TWIN_PLANNER_H

#include <stdbool.h>
#include <stdint.h>

#include "base/limits.h"

enum {
  MGL_PLANNER_MAX_PAGES = 1 << 26,  // of the pool
  MGL_PLANNER_DECODE_SHARE = 16,    // prompts keep one row of so many
  MGL_PAGE_KEY_WORDS = 4,
  MGL_RUN_TOKENS = 512,  // longer runs are not read faster, and short sequences touch more memory
};

#define MGL_NO_PAGE UINT32_MAX

// A cached page is found by its key: a hash of all tokens up to the page's end, and of the salt.
typedef struct mgl_page_key {
  uint64_t words[MGL_PAGE_KEY_WORDS];
} mgl_page_key;

typedef struct mgl_planner_limits {
  uint32_t slots;               // requests that it knows at once: 1 to MGL_MAX_SEQUENCES
  uint32_t sequences;           // that run at once: 1 to slots
  uint32_t iteration_tokens;    // 1 to MGL_MAX_ITERATION_TOKENS
  uint32_t chunk_tokens;        // most rows of one prompt in an iteration; 0: no limit of its own
  uint32_t page_tokens;         // P, at least 1
  uint32_t page_count;          // 1 to MGL_PLANNER_MAX_PAGES
  uint32_t pages_per_sequence;  // at least 1; times P at most MGL_MAX_CONTEXT
  uint32_t prompts_first;       // 1: sequences decode only while none computes its prompt
  uint32_t prefix_cache;        // 1: on
  uint32_t late;  // 1: results come up to one iteration after the next plan (on a GPU), so a slot
                  // that a settle freed takes no new request before the next turn
  uint32_t runs;  // of so many pages a sequence gets, if they are free; 0: any (on a device always)
} mgl_planner_limits;

typedef enum mgl_slot_state {
  MGL_SLOT_FREE,     // holds no request
  MGL_SLOT_WAITING,  // has no pages
  MGL_SLOT_RUNNING,
  MGL_SLOT_LAST,  // its last token was planned; the next settle frees pages and slot
  MGL_SLOT_PAUSED,
} mgl_slot_state;

typedef enum mgl_slot_wish {
  MGL_WISH_END = 1,
  MGL_WISH_PAUSE = 2,
} mgl_slot_wish;

// A place for a request. Counts are those after all planned iterations.
typedef struct mgl_planner_slot {
  uint32_t state;         // mgl_slot_state
  uint32_t wishes;        // mgl_slot_wish, carried out by the next settle
  uint32_t prompt_count;  // tokens of the prompt, at least 1
  uint32_t max_tokens;    // prompt and answer, above prompt_count
  uint32_t token_count;   // prompt and what was sampled
  uint32_t computed;      // tokens whose KV is in pages
  uint32_t prefill;       // token_count at admission: up to here tokens count as a prompt's
  uint32_t page_count;    // pages that it holds: block table [0, page_count)
  uint32_t key_count;     // keys of full prompt pages
  uint32_t freed_step;    // `step` of the planner when the slot became free
  uint32_t masked_to;     // with so many tokens it gets no rows, until a mask for the next one is
                          // there; UINT32_MAX: it needs none
  const mgl_page_key *keys;  // [key_count], where the planner runs; borrowed until the slot is free
} mgl_planner_slot;

// Rows of one sequence in the planned iteration: tokens [position, position + count).
typedef struct mgl_plan_entry {
  uint32_t slot;
  uint32_t position;
  uint32_t count;
  uint32_t flags;  // mgl_plan_entry_flags
} mgl_plan_entry;

typedef enum mgl_plan_entry_flags {
  MGL_ENTRY_SAMPLES = 1,  // the token behind the last row is to be sampled
  MGL_ENTRY_DECODES = 2,  // one row that decodes; else a chunk of a prompt or of a recomputation
} mgl_plan_entry_flags;

// A page of the pool. A page is free (on the free stack), held (references > 0) or idle (cached,
// and held by nobody: in the list of the least recently used).
typedef struct mgl_planner_page {
  mgl_page_key key;     // if cached
  uint32_t references;  // sequences that hold it
  uint32_t cached;      // 1: in the table of cached pages
  uint32_t next;        // cached page of the same bucket, or MGL_NO_PAGE
  uint32_t older;       // idle: neighbours in order of release, or MGL_NO_PAGE
  uint32_t newer;
  uint32_t free_index;  // with runs, of a free page: its index on the stack
  uint32_t padding[2];
} mgl_planner_page;

typedef struct mgl_planner_counts {
  uint64_t prompt_tokens;         // rows of prompts, recomputed ones included
  uint64_t decode_tokens;         // rows that decoded
  uint64_t prefix_lookup_tokens;  // tokens to compute of requests when they were admitted
  uint64_t prefix_hit_tokens;     // of those, held by cached pages
  uint64_t preemptions;
  uint64_t evictions;  // cached pages given up
} mgl_planner_counts;

// The state's head; arrays follow in the same block, each at its offset from the head.
typedef struct mgl_planner {
  mgl_planner_limits limits;
  uint32_t step;     // iterations planned, modulo 2^32
  uint32_t count;    // requests in order[]
  uint32_t running;  // order[0 .. running) run
  uint32_t paused;
  uint32_t changes;  // slots that the next settle has to look for
  uint32_t cursor;   // index in order[] at which decoding goes on when sequences take turns
  uint32_t free_count;
  uint32_t idle_count;
  uint32_t cached_count;
  uint32_t oldest;  // idle page released first, or MGL_NO_PAGE
  uint32_t newest;
  uint32_t pages_used_most;  // held at once, so far

  // The latest plan.
  uint32_t entry_count;         // at most min(iteration_tokens, sequences)
  uint32_t decode_entry_count;  // those come first
  uint32_t token_count;
  uint32_t sample_count;

  mgl_planner_counts counts;

  uint32_t bucket_mask;   // buckets - 1
  uint32_t table_stride;  // pages_per_sequence
  uint64_t bytes;         // of the whole block
  uint64_t slots_at;      // mgl_planner_slot [slots]
  uint64_t entries_at;    // mgl_plan_entry [min(iteration_tokens, sequences)]
  uint64_t order_at;      // uint32_t [slots]
  uint64_t rows_at;       // uint32_t [slots] scratch, by index in order[]
  uint64_t leaving_at;    // uint32_t [slots] scratch
  uint64_t idle_at;       // uint32_t [pages_per_sequence] scratch
  uint64_t tables_at;     // int32_t [slots, table_stride] pages of each slot
  uint64_t pages_at;      // mgl_planner_page [page_count]
  uint64_t free_at;       // uint32_t [page_count] stack of free pages
  uint64_t buckets_at;    // uint32_t [bucket_mask + 1] first page of each, or MGL_NO_PAGE
} mgl_planner;

typedef struct mgl_planner_request {
  uint32_t prompt_count;
  uint32_t max_tokens;
  uint32_t key_count;  // at most prompt_count / P; 0 without a prefix cache
  uint32_t masked_to;  // as that of a slot; 0: it needs no masks
  const mgl_page_key *keys;
} mgl_planner_request;

// A call of the planner as data, for whoever makes it elsewhere: mgl_planner_obey of
// twin/planner_requests.h.
typedef enum mgl_planner_call {
  MGL_CALL_SUBMIT,
  MGL_CALL_END,
  MGL_CALL_PAUSE,
  MGL_CALL_RESUME,
  MGL_CALL_MASK,  // `masked_to` of `request`
  MGL_CALL_SETTLE,
  MGL_CALL_PLAN,
} mgl_planner_call;

typedef struct mgl_planner_command {
  uint32_t call;  // mgl_planner_call
  uint32_t slot;
  mgl_planner_request request;  // of MGL_CALL_SUBMIT
} mgl_planner_command;

#ifndef __CUDACC__

#include "base/status.h"

// Checks the limits; errors name the one that is broken. *out_bytes: of the block.
mgl_status mgl_planner_size(const mgl_planner_limits *limits, uint64_t *out_bytes, mgl_error *err);

// Fills a zeroed block of that size, aligned to 16 bytes.
void mgl_planner_init(mgl_planner *planner, const mgl_planner_limits *limits);

mgl_status mgl_planner_create(const mgl_planner_limits *limits, mgl_planner **out, mgl_error *err);
void mgl_planner_destroy(mgl_planner *planner);  // NULL is fine

// A request that could not run even alone is an MGL_ERR_LIMIT: the last token is sampled but never
// fed back, so max_tokens - 1 tokens need pages.
mgl_status mgl_planner_check_request(const mgl_planner_limits *limits, uint64_t prompt_count,
                                     uint64_t new_tokens, mgl_error *err);

// True where a request may be put.
bool mgl_planner_is_free(const mgl_planner *planner, uint32_t slot);

// Puts a request that passed the check into a free slot, behind all others.
void mgl_planner_submit(mgl_planner *planner, uint32_t slot, const mgl_planner_request *request);

// The request in the slot ends at the next settle: a stop token, or cancelled. Free slots and ones
// that end anyway are fine.
void mgl_planner_end(mgl_planner *planner, uint32_t slot);

// From the next settle on the request holds no pages and is not planned, until it is resumed.
void mgl_planner_pause(mgl_planner *planner, uint32_t slot);
void mgl_planner_resume(mgl_planner *planner, uint32_t slot);

// A mask for the next token of the request in the slot is there, which holds to so many tokens.
void mgl_planner_mask(mgl_planner *planner, uint32_t slot, uint32_t masked_to);

void mgl_planner_settle(mgl_planner *planner);

// Plans an iteration; returns its tokens, 0: nothing can be computed now.
uint32_t mgl_planner_plan(mgl_planner *planner);

// All that runs waits again, in the same order, and the prefix cache is empty: for when what pages
// hold was lost.
void mgl_planner_rewind(mgl_planner *planner);

// Views of the state; valid as long as it.
const mgl_plan_entry *mgl_planner_entries(const mgl_planner *planner);
uint32_t mgl_planner_order(const mgl_planner *planner, uint32_t index);  // slot; index < count
const mgl_planner_slot *mgl_planner_slot_of(const mgl_planner *planner, uint32_t slot);
const int32_t *mgl_planner_pages_of(const mgl_planner *planner, uint32_t slot);
uint32_t mgl_planner_pages_used(const mgl_planner *planner);  // held by sequences

// Proves that the whole state is consistent: every page free, idle or held exactly as the block
// tables say, shared only if cached; slots, order and counts. Linear in pages and table entries;
// for tests and debugging. MGL_ERR_INTERNAL names the first contradiction.
mgl_status mgl_planner_check(const mgl_planner *planner, mgl_error *err);

#endif
#endif
