// Jobs: what stands between the thread that does I/O and the engine.
//
// A body becomes a job. A thread of its own reads it and submits or tokenizes it (JSON, templates
// and tokenizers may take long, and the I/O thread must not wait), the engine's thread tells of
// outputs; both leave a note, and an eventfd wakes the I/O thread, which reads the outputs with
// megalith_request_next and hands them to the job's owner. So all but jobs.c runs on one thread,
// and nothing is allocated for an output. Rejected: copies of outputs in a queue, which can run out
// of memory.
#ifndef MGL_SERVE_JOBS_H
#define MGL_SERVE_JOBS_H

#include <event2/event.h>
#include <megalith.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"
#include "base/text.h"
#include "request/ask.h"
#include "serve/output_parser.h"

typedef struct mgl_jobs mgl_jobs;
typedef struct mgl_job mgl_job;
typedef struct mgl_choice mgl_choice;

// A message to the I/O thread, part of what it is about.
typedef struct mgl_note {
  struct mgl_note *next;
  bool is_queued;
  mgl_choice *choice;  // NULL: the job is prepared
  mgl_job *job;
} mgl_note;

struct mgl_choice {
  mgl_job *job;
  uint32_t index;
  void *state;  // the owner's
  // Private:
  mgl_note note;
  megalith_request *request;  // NULL: not submitted
  bool ended;                 // under the lock: the engine has said its last word
  bool is_over;               // and the I/O thread has seen it
};

struct mgl_job {
  mgl_jobs *jobs;
  void *owner;  // the owner's; set by whoever starts it
  mgl_endpoint endpoint;
  mgl_text body;
  bool only_reads;  // nothing is submitted (tokenize)
  // From `prepared` on:
  mgl_text reading;  // the answer to a job that only reads
  mgl_ask ask;
  mgl_choice *choices;  // [choice_count]
  uint32_t choice_count;
  mgl_status status;  // not OK: nothing was submitted
  mgl_error error;
  bool is_overload;       // that is why,
  bool is_unknown_model;  // or this
  // Private:
  mgl_note note;
  mgl_job *next;  // that waits to be prepared
  bool is_prepared;
  atomic_bool is_abandoned;  // by the I/O thread
  uint32_t open_choices;     // not over
  uint32_t counted;          // of `active`
};

// All run on the I/O thread.
typedef struct mgl_job_callbacks {
  void *context;
  void (*prepared)(void *context, mgl_job *job);
  // Not of abandoned jobs.
  void (*output)(void *context, mgl_choice *choice, const megalith_output *output);
  // Nothing comes any more, the job is freed behind it; of every job, abandoned ones too.
  void (*ended)(void *context, mgl_job *job);
} mgl_job_callbacks;

typedef struct mgl_jobs_options {
  megalith_model *model;
  megalith_engine *engine;
  const char *model_name;  // another one is refused
  uint32_t max_active;     // choices that run or wait; more are refused as overload
  mgl_output_syntax syntax;
} mgl_jobs_options;

mgl_status mgl_jobs_create(struct event_base *base, const mgl_jobs_options *options,
                           const mgl_job_callbacks *callbacks, mgl_jobs **out, mgl_error *err);
// There must be no job any more.
void mgl_jobs_destroy(mgl_jobs *jobs);

// Whether one more choice fits.
bool mgl_jobs_has_room(const mgl_jobs *jobs);
uint32_t mgl_jobs_active(const mgl_jobs *jobs);
// Takes over the body. NULL: no memory, and the body is freed.
mgl_job *mgl_jobs_start(mgl_jobs *jobs, mgl_endpoint endpoint, mgl_text body, void *owner);
// Nobody wants the answer any more. `ended` follows.
void mgl_job_abandon(mgl_job *job);
// While its client takes nothing, a job's requests give their KV memory to others.
void mgl_job_pause(mgl_job *job, bool pause);
// Of a choice that has given an output, if the ask wants log probabilities of prompts.
void mgl_choice_prompt(mgl_choice *choice, megalith_prompt *out);
// Of a choice that has ended, else NULL.
const megalith_result *mgl_choice_result(mgl_choice *choice);

#endif
