// What the files of the public API share: the objects behind the handles of megalith.h.
//
// An engine and its requests share a hub, which lives until the last of them is gone: so a request
// stays readable after its engine, and neither must ask whether the other is there. The hub's mutex
// guards everything that more than one thread touches, and is never held while the engine computes
// or a callback runs. A request's wishes (enter, leave, pause) reach the thread that computes
// through the hub's inbox, a list of requests that takes no memory; it is emptied before each plan.
#ifndef MGL_API_API_PARTS_H
#define MGL_API_API_PARTS_H

#include <megalith.h>
#include <pthread.h>

#include "api/request_life.h"
#include "api/text_output.h"
#include "compile/overrides.h"
#include "device/compilation.h"
#include "engine/engine.h"
#include "engine/start.h"
#include "grammar/cache.h"
#include "model/model_folder.h"
#include "twin/atomics.h"

struct megalith_model {
  mgl_count references;  // the caller's, and one of each engine
  mgl_model_folder folder;
  mgl_weight_source source;
  bool has_weights;  // else no engine can be created
  uint64_t dummy_seed;
  megalith_model_info info;
  megalith_sampling sampling;  // of generation_config.json
  const char *template_variables[MGL_TEMPLATE_MAX_VARIABLES];
  mgl_grammar_cache *grammars;
};

typedef struct hub {
  pthread_mutex_t lock;
  // All of this under the lock:
  pthread_cond_t wake;         // of the engine's thread: the inbox is not empty, or quit
  uint32_t references;         // the engine's, and one of each request that exists
  megalith_request *speaking;  // whose on_output runs; NULL: none does
  bool tells;                  // on_iteration runs
  pthread_t speaker;           // the thread that either runs on
  bool quit;                   // the engine is being destroyed
  bool stop_run;               // megalith_engine_stop
  uint32_t outstanding;        // requests that have not finished
  uint32_t held;               // of these, those that shall be paused
  megalith_request *inbox;
  megalith_request **inbox_end;
  mgl_engine_statistics statistics;
  megalith_error broken;  // status not OK: the engine can only be destroyed
  // Written before anyone else sees the hub:
  bool has_computer;   // the thread that created the engine computes, too
  pthread_t computer;  // that thread
} hub;

struct megalith_request {
  hub *hub;
  // Set by the submitting thread before anyone else sees the request:
  mgl_token_list prompt;
  int32_t stop_ids[MEGALITH_MAX_STOP_TOKENS];
  unsigned char salt[MEGALITH_MAX_SALT_BYTES];
  mgl_logit_bias *biases;     // [asked.sampling.bias_count]
  int32_t *allowed;           // [asked.sampling.allowed_count]
  mgl_token_list bad_tokens;  // of asked.sampling.bad_runs
  uint32_t *bad_ends;         // [bad_count]
  uint32_t bad_count;
  mgl_request asked;        // its pointers point at those above; it has a reference to its grammar
  uint32_t top_count;       // alternatives of each token
  double *prompt_logprobs;  // [prompt.count], filled by the engine; NULL: not asked for
  mgl_token_logprob *prompt_top;  // [prompt.count, asked.prompt_top_count] the same
  megalith_logprob *prompt_told;  // the same, for the caller
  megalith_output_callback *on_output;
  void *context;
  // Used by the engine's thread only:
  mgl_text_output *output;
  bool entered;    // the engine below knows it by `number`
  bool is_paused;  // in that engine
  uint32_t number;
  // Under the hub's lock:
  mgl_request_life life;  // `finished` changes on the engine's thread only, which may read it
                          // without the lock
  megalith_request *next_in_inbox;
  pthread_cond_t changed;  // there are more outputs
  megalith_finish finish;
  int32_t *tokens;  // [token_count], room for asked.max_new_tokens
  size_t token_count;
  double *logprobs;       // [token_count], like tokens; NULL: not asked for
  megalith_logprob *top;  // [token_count, top_count]
  mgl_text text;          // of all outputs
  size_t *text_ends;      // [output_count] in `text`, room for one more than tokens
  size_t output_count;
  megalith_error error;
  megalith_result result;  // once finished
  // Of the thread that reads outputs:
  size_t read_count;
  mgl_text read_text;
  megalith_output read;
};

// A request that the engine has, by the engine's number.
typedef struct active_request {
  uint32_t number;
  megalith_request *request;  // NULL: it has left
} active_request;

struct megalith_engine {
  megalith_model *model;
  hub *hub;
  megalith_engine_info info;
  uint32_t default_new_tokens;
  bool scoring;
  megalith_progress_callback *on_progress;
  void *progress_context;
  megalith_iteration_callback *on_iteration;
  void *iteration_context;
  // Used by the thread that computes only:
  mgl_site site;
  mgl_overrides overrides;
  mgl_compilation compilation;  // of the options that name one
  mgl_given_graph *given;       // [given_count]
  uint32_t given_count;
  mgl_mode mode;
  mgl_runner *runner;
  mgl_engine *engine;
  active_request *active;  // ascending numbers
  size_t active_count, active_capacity;
  size_t gone_count;  // entries of requests that have left
  // Background:
  bool background;
  mgl_crew *crew;      // of ranks that others have started; NULL: there is none
  bool watches_ranks;  // of several, whether they live; until one does not
  pthread_t thread;
};

// --- api_model.c ---------------------------------------------------------------------------------

// Copies an options struct of an older or newer caller over zeros of what this library knows. NULL
// gives all zeros. Refused: no size, or something set that this library does not know.
mgl_status mgl_api_read_options(const void *given, size_t known_bytes, const char *what, void *out,
                                mgl_error *err);

// The public form of a status and its error, which may be NULL both.
megalith_status mgl_api_report(mgl_status status, const mgl_error *err, megalith_error *out);

// The end of a function that hands out a text: to the caller its size and as much of it as fits, or
// what went wrong, with no bytes. Frees the text.
megalith_status mgl_api_give_text(mgl_status status, mgl_text *all, char *text, size_t capacity,
                                  size_t *bytes, mgl_error *err, megalith_error *error);

// Refuses ids that the model does not have; `what` names one in the message.
mgl_status mgl_api_check_ids(const megalith_model *model, const char *what, const int32_t *ids,
                             size_t count, mgl_error *err);

void mgl_api_keep_model(megalith_model *model);  // megalith_model_close is its opposite

// --- api_submit.c --------------------------------------------------------------------------------

// The tokens of the prompt that the options name, all of them.
mgl_status mgl_api_encode_prompt(const mgl_model_folder *folder,
                                 const megalith_request_options *options, mgl_token_list *out,
                                 mgl_error *err);

// --- api_chat.c ----------------------------------------------------------------------------------

// The tokens of messages or messages_json, with what belongs to them.
mgl_status mgl_api_encode_chat(const mgl_model_folder *folder,
                               const megalith_request_options *options, mgl_token_list *out,
                               mgl_error *err);

// --- api_grammar.c -------------------------------------------------------------------------------

mgl_grammar *mgl_api_grammar(megalith_grammar *grammar);

// --- api_request.c -------------------------------------------------------------------------------

// Frees a request that nobody has, and its reference to the hub.
void mgl_api_destroy_request(megalith_request *request);
void mgl_api_drop_hub(hub *h);
// Links a request at the inbox's end, which mgl_life_... told the caller to do; under the lock.
void mgl_api_append_inbox(megalith_request *request);
// Whether the calling thread runs a callback of this engine; under the lock.
bool mgl_api_is_in_callback(const hub *h);

// By the engine's thread. A token as the engine hands it out; does nothing once the
// request has finished. True: a stop text ended it, so the engine below must still let it go.
bool mgl_api_accept_token(megalith_request *request, const mgl_generated_token *token);
// Ends a request without a token: cancelled, or failed with *err. Does nothing to a finished one.
void mgl_api_end_request(megalith_request *request, megalith_finish finish, const mgl_error *err);

// --- api_engine.c: by the thread that computes ---------------------------------------------------

// Between iterations, on a GPU while the next one is computed: takes in what the inbox has.
void mgl_api_before_plan(void *engine);
// A request's logits mean nothing, and the engine below has thrown it out.
void mgl_api_on_failure(void *engine, uint32_t number, const mgl_error *err);
// Asked while a launch runs on a GPU: it ends early.
bool mgl_api_should_stop(void *engine);
// Without work: whether all ranks live. If not, it is the engine's end.
void mgl_api_check_ranks(megalith_engine *engine);
// Whether the calling thread may compute now.
mgl_status mgl_api_may_drive(const megalith_engine *engine, mgl_error *err);
// Computes until there is nothing to do or it shall stop.
mgl_status mgl_api_drive(megalith_engine *engine, mgl_error *err);
// Ends every request that the engine has or that waits to enter. No more may be submitted by then.
void mgl_api_end_all(megalith_engine *engine, megalith_finish finish, const mgl_error *err);

#endif
