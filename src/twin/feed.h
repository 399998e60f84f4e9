// The feed of a launch: how requests come to the megakernel while it runs, and what it tells the
// host. All of it lies in pinned host memory. Read by both compilers.
//
// A request lives in a slot: of the planner (twin/planner.h), of the sequences, and of the arrays
// here. The host chooses the slot and owns its arrays until it sends MGL_FEED_SUBMIT; the device
// then owns them until the request's last token was seen by the host, or, where the host ends it
// early, until `settled` says that the command has had its effect. Commands are never held up: a
// slot that is not free yet for the planner (it becomes free an iteration after the host could see
// the last token) makes the request wait on the device.
//
// A request whose every token needs a mask of its own (a grammar's) is not planned until the host
// has written it: it is `masked_to` so many tokens. The mask for the first is there when it is
// submitted; each token that comes lets the host make the next. No other request waits for it.
#ifndef MGL_TWIN_FEED_H
#define MGL_TWIN_FEED_H

#include "twin/planner.h"
#include "twin/ring.h"

enum {
  MGL_FEED_ITERATIONS = 1024,  // entries of the ring of iterations
  MGL_FEED_NO_TOKEN = -1,      // of a cell: nothing yet
  MGL_FEED_NOT_FINITE = -2,    // the sequence's logits are NaN or infinite: it has ended
};

typedef enum mgl_feed_end {
  MGL_FEED_OPEN,    // the device waits for commands when there is nothing to do
  MGL_FEED_CLOSED,  // no commands follow: the launch ends when nothing is left to do
  MGL_FEED_LEAVE,   // it ends behind the iteration that runs
} mgl_feed_end;

typedef enum mgl_feed_call {
  MGL_FEED_SUBMIT,
  MGL_FEED_END,    // pages become free before the next plan; its tokens go on for an iteration
  MGL_FEED_MASK,   // the mask of the slot's next token is there: `masked_to`
  MGL_FEED_CLOSE,  // `slot` is an mgl_feed_end, above any that was sent before
} mgl_feed_call;

typedef struct mgl_feed_command {
  uint32_t call;  // mgl_feed_call
  uint32_t slot;
  uint32_t prompt_count;  // of SUBMIT, as in mgl_planner_request
  uint32_t max_tokens;
  uint32_t key_count;
  uint32_t edit_count;
  uint32_t masked_to;  // of SUBMIT and MASK, as in mgl_planner_request
  uint32_t padding;
} mgl_feed_command;

// A generated token, one store of eight bytes.
typedef struct mgl_feed_cell {
  int32_t token;
  uint32_t ns;  // low half of the device's global timer when it was sampled
} mgl_feed_cell;

// An iteration that has ended. All tokens that it sampled are in their cells.
typedef struct mgl_feed_iteration {
  uint64_t iteration;
  uint64_t ns;  // from its begin to the next one's, or to its end where none followed
  uint32_t prompt_tokens, decode_tokens;
  uint64_t kv_tokens;  // context that the sequences that decoded read, each its own
  // At the moment when this is told, since the planner was made:
  mgl_planner_counts counts;
  uint64_t planning_ns;
  uint32_t running, waiting;
  uint32_t pages_used, pages_used_most;
} mgl_feed_iteration;

typedef struct mgl_feed {
  mgl_ring commands;    // host to device: [command_mask + 1]
  mgl_ring iterations;  // device to host: [MGL_FEED_ITERATIONS]; full: some are not told
  mgl_word settled;     // commands whose slots the device will not touch any more for their old
                        // requests; written by the device
  uint8_t padding_after_settled[56];
  mgl_word wide;  // by each turn between iterations of the wide class (mgl_wide_word_make)
  uint8_t padding_after_wide[56];
} mgl_feed;

#endif
