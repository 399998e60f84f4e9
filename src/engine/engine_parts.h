// The engine's files share this: engine.c (requests, iterations), engine_requests.c (which requests
// there are), serve_planned.c and serve_fed.c (how a device serves them).
#ifndef MGL_ENGINE_ENGINE_PARTS_H
#define MGL_ENGINE_ENGINE_PARTS_H

#include "engine/constraint.h"
#include "engine/engine.h"
#include "twin/planner.h"

enum { MGL_NO_SLOT = UINT32_MAX };

// A request and its sequence. It is queued, in a slot of the planner, or paused.
typedef struct mgl_sequence {
  struct mgl_sequence *next_in_bucket;
  struct mgl_sequence *before, *after;  // in the queue
  bool queued;
  bool served;    // a launch on a GPU has it
  bool parked;    // it waits for its mask, outside of the queue
  bool unmasked;  // served, and the launch waits for the mask of its next token
  uint32_t slot;  // of the planner, or MGL_NO_SLOT
  uint32_t request;
  int32_t *tokens;  // prompt and what was generated, room for max_tokens
  uint32_t token_count;
  uint32_t prompt_count;
  uint32_t
      rope_count;  // of tokens whose length is that of the prompt (graph/rope.h): prompt_count,
                   // and more once the whole was computed again
  uint32_t max_tokens;
  mgl_page_key *keys;  // [key_count] of the prompt's full pages
  uint32_t key_count;
  mgl_sampling_state sampling;
  int32_t stop_ids[MGL_MAX_EOS_IDS];
  uint32_t stop_count;
  int32_t priority;
  double *prompt_logprobs;  // as in mgl_request
  mgl_token_logprob *prompt_top;
  uint32_t prompt_top_count;
  uint32_t prompt_known;       // tokens of the prompt whose log probability is there
  mgl_constraint *constraint;  // NULL: no grammar
  bool is_complete;            // the grammar's text is whole, and nothing can follow
} mgl_sequence;

// All requests that have not ended: found by number, and those that wait for a slot of the planner
// in order. Every operation takes constant time; memory follows the largest number of requests at
// once.
typedef struct mgl_requests {
  mgl_sequence **buckets;  // [bucket_count] chains, by the low bits of the request's number
  uint32_t bucket_count;   // a power of two
  uint32_t count;
  uint32_t queued;
  mgl_sequence *first, *last;  // of the queue
} mgl_requests;

mgl_status mgl_requests_init(mgl_requests *requests, mgl_error *err);
void mgl_requests_reset(mgl_requests *requests);  // destroys all

// Takes over the sequence, which has a number. Fails only for lack of memory.
mgl_status mgl_requests_add(mgl_requests *requests, mgl_sequence *s, mgl_error *err);
mgl_sequence *mgl_requests_find(const mgl_requests *requests, uint32_t request);  // NULL: none
void mgl_requests_remove(mgl_requests *requests, mgl_sequence *s);                // destroys it

// Into the queue, behind all whose priority is not more.
void mgl_requests_insert(mgl_requests *requests, mgl_sequence *s);
void mgl_requests_prepend(mgl_requests *requests, mgl_sequence *s);  // in front of it
void mgl_requests_take(mgl_requests *requests, mgl_sequence *s);     // out of it, if it is there

void mgl_sequence_destroy(mgl_sequence *s);  // NULL is fine

typedef struct mgl_device_run mgl_device_run;

struct mgl_engine {
  mgl_runner *runner;
  mgl_engine_options options;
  mgl_plan *plan;
  mgl_sampler *sampler;
  mgl_planner *planner;
  mgl_sequence **slots;  // [planner's slots] who is in each; NULL: nobody any more
  uint32_t active;       // that are not NULL
  mgl_requests requests;
  mgl_constraints *constraints;  // NULL: no request has had a grammar
  mgl_sequence *parked;          // linked by `after`
  uint32_t parked_count;
  uint32_t request_count;            // the next one's number
  mgl_engine_statistics statistics;  // what counts up
  mgl_device_run *device_run;        // the launch that runs on a GPU; NULL: none
};

// The callbacks of one mgl_engine_run.
typedef struct mgl_engine_run_context {
  mgl_token_callback *on_token;
  mgl_iteration_callback *on_iteration;
  void *context;
} mgl_engine_run_context;

// --- engine_grammar.c

// Gives a new sequence its constraint, and begins with the first mask.
mgl_status mgl_engine_constrain(mgl_engine *engine, mgl_sequence *s, mgl_grammar *grammar,
                                mgl_error *err);
// Whether a sequence's token can be chosen now; waits a moment for its mask.
bool mgl_engine_has_mask(const mgl_sequence *s);
// The tokens that the sequence may have next, stop tokens included; NULL: all. Fails where there is
// none. *must_stop: only stop tokens are left, whatever holds them back.
mgl_status mgl_engine_mask(const mgl_engine *engine, mgl_sequence *s, const uint64_t **out,
                           bool *must_stop, mgl_error *err);
// Whether a sequence's tokens are chosen by masks where a device chooses them, and whether each has
// a mask of its own. Then they are what grammar, allowed tokens and bad words come to.
bool mgl_engine_is_masked(const mgl_sequence *s);
bool mgl_engine_masks_all(const mgl_sequence *s);
// The mask of the next token, for a device: as mgl_engine_mask. words: [ceil(V / 64)]
mgl_status mgl_engine_fill_mask(const mgl_engine *engine, mgl_sequence *s, uint64_t *words,
                                bool *must_stop, mgl_error *err);
// Follows the sequence's newest token, and begins with the mask of the next.
mgl_status mgl_engine_follow(mgl_sequence *s, mgl_error *err);
// Puts a sequence that is nowhere aside until its mask is made; the queue takes those whose mask
// is.
void mgl_engine_park(mgl_engine *engine, mgl_sequence *s);
void mgl_engine_unpark(mgl_engine *engine, mgl_sequence *s);
void mgl_engine_queue_parked(mgl_engine *engine);
// Asks who is there, until there is something to compute: while all wait for their masks, somebody
// else may come, whom that does not concern. False: the run shall end.
bool mgl_engine_gather(mgl_engine *engine);

// --- engine.c

mgl_finish_reason mgl_sequence_finish_reason(const mgl_sequence *s);

// Ends a request that failed with that status, which err tells of, and says so to who submitted it.
// Where nobody listens it returns the status, and the run ends, too.
mgl_status mgl_engine_fail(mgl_engine *engine, uint32_t request, mgl_status status, mgl_error *err);

// The same for one whose logits mean nothing.
mgl_status mgl_engine_not_finite(mgl_engine *engine, const mgl_sequence *s, mgl_error *err);

// All that have slots go back to the front of the queue, in their order, with the tokens that they
// have; nothing is cached any more if forget.
void mgl_engine_withdraw_all(mgl_engine *engine, bool forget);

void mgl_engine_count_iteration(mgl_engine *engine, const mgl_iteration *iteration);

// Takes a sequence from its slot, the launch that has it, or the queue; a slot is freed before the
// next plan.
void mgl_engine_withdraw(mgl_engine *engine, mgl_sequence *s);

// --- how a device serves (device_table.h): until there are no requests or the run ends -----------

mgl_status mgl_serve_planned(mgl_engine *engine, const mgl_engine_run_context *callbacks,
                             mgl_error *err);
mgl_status mgl_serve_fed(mgl_engine *engine, const mgl_engine_run_context *callbacks,
                         mgl_error *err);

// --- serve_fed.c, while a launch runs (engine->device_run) ---------------------------------------

// Adds what the launch has: running and waiting requests, pages.
void mgl_engine_count_served(const mgl_engine *engine, mgl_engine_statistics *out);

// Takes a sequence from the launch that has it.
void mgl_engine_withdraw_served(mgl_engine *engine, mgl_sequence *s);

#endif
