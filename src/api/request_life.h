// The life of a request: which steps there are, and who has a reference, as pure functions.
//
// All of it is read and written under the hub's lock; each function is one step there. Everything
// that decides when a request may be freed and when its last output may be seen stands here, so
// that tests/unit/api/test_request_life.c can try every order in which threads may take these
// steps, with this very source. The table in megalith.h says the same to users.
//
//   open      in the inbox, or in the engine below            not finished
//   last call its last output is made, on_output has it       finished, not over
//   over      on_output has returned, or there is none        finished and over
//   left      the engine has given up its reference           over, not in the inbox
//   gone      nobody has it: it is freed                      no holder
//
// Rejected: a count of references. Two drops by the same holder look like one drop each of two.
#ifndef MGL_API_REQUEST_LIFE_H
#define MGL_API_REQUEST_LIFE_H

#include <assert.h>
#include <stdbool.h>

enum {
  MGL_HELD_BY_CALLER = 1,  // the handle, until megalith_request_release
  MGL_HELD_BY_ENGINE = 2,  // until the request has left
};

typedef struct mgl_request_life {
  unsigned char holders;  // set of the above; the request is freed when it becomes empty
  bool in_inbox;          // the engine's thread shall look at it
  bool cancelled;         // wishes, for that look
  bool shall_pause;
  bool finished;  // its last output is made; no wish has an effect any more
  bool over;      // the last output may be seen by everyone: nothing more is called
} mgl_request_life;

// What the engine's thread finds when it takes a request out of the inbox.
typedef struct mgl_request_wishes {
  bool cancelled;
  bool shall_pause;
} mgl_request_wishes;

// A request that was just submitted; it is in the inbox.
static inline mgl_request_life mgl_life_begin(bool has_handle) {
  unsigned char holders = MGL_HELD_BY_ENGINE;
  holders |= has_handle ? MGL_HELD_BY_CALLER : 0;
  return (mgl_request_life){.holders = holders, .in_inbox = true};
}

// --- by any thread -------------------------------------------------------------------------------

// True: the caller appends the request to the inbox.
static inline bool mgl_life_enqueue(mgl_request_life *life) {
  bool is_new = !life->in_inbox;
  life->in_inbox = true;
  return is_new;
}

// True as above.
static inline bool mgl_life_cancel(mgl_request_life *life) {
  if (life->finished) {
    return false;
  }
  life->cancelled = true;
  return mgl_life_enqueue(life);
}

// *changed: the wish is a new one. True as above.
static inline bool mgl_life_pause(mgl_request_life *life, bool shall_pause, bool *changed) {
  *changed = !life->finished && life->shall_pause != shall_pause;
  if (!*changed) {
    return false;
  }
  life->shall_pause = shall_pause;
  return mgl_life_enqueue(life);
}

// Takes a reference back; true: it was the last, and who called frees the request.
static inline bool mgl_life_drop(mgl_request_life *life, unsigned char holder) {
  assert((life->holders & holder) != 0);
  life->holders = (unsigned char)(life->holders & ~holder);
  return life->holders == 0;
}

// --- by the engine's thread ----------------------------------------------------------------------

static inline mgl_request_wishes mgl_life_take(mgl_request_life *life) {
  assert(life->in_inbox && life->holders != 0);
  life->in_inbox = false;
  return (mgl_request_wishes){.cancelled = life->cancelled, .shall_pause = life->shall_pause};
}

// Its last output is made. Where nothing is called, that is all; else mgl_life_called follows.
static inline void mgl_life_finish(mgl_request_life *life, bool has_callback) {
  assert(!life->finished);
  life->finished = true;
  life->over = !has_callback;
}

// The callback has returned. True: that was the last call, and those who wait may know.
static inline bool mgl_life_called(mgl_request_life *life) {
  life->over = life->finished;
  return life->over;
}

// Gives up the engine's reference to a finished request that the engine below names no more, if it
// is time: one in the inbox stays, since the inbox is a list through the requests, until it is
// taken out there. A finished one does not get in again. True: it has left.
static inline bool mgl_life_leave(mgl_request_life *life, bool *is_last) {
  bool leaves = life->over && !life->in_inbox;
  *is_last = leaves && mgl_life_drop(life, MGL_HELD_BY_ENGINE);
  return leaves;
}

#endif
