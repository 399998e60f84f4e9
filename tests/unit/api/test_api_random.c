// Random requests on random engines, from several threads: every field of a request and of an
// engine is drawn, impossible combinations too; requests are paused, cancelled and read at random
// while they run, and other calls of megalith.h (text, tokens, grammars, chats, models opened and
// closed, engines and requests that are refused) come between them.
//
// Expected is what each request gives by itself on an engine that does nothing but that, op by op
// with one thread: the same tokens, text, log probabilities and refusals, whatever else is there. A
// request that was cancelled gave a beginning of it. test_api_storm asks for one kind of request as
// fast as it goes; here it is what is asked for that differs.
// MGL_TEST_SEED, MGL_TEST_ROUNDS and MGL_TEST_THREADS choose.
#include <math.h>
#include <pthread.h>
#include <stdatomic.h>

#include "base/alloc.h"
#include "unit/api/api_bed.h"

// Not under the thread sanitizer: it wants no threads in the child of a process that had several.
#if defined(MGL_TEST_SANITIZED) && !defined(__SANITIZE_ADDRESS__)
enum { CAN_FORK_BESIDE = false };
#else
enum { CAN_FORK_BESIDE = true };
#endif

#if defined(MGL_TEST_SANITIZED)
enum { USUAL_ROUNDS = 8, LONG_ROUNDS = 100 };
#else
enum { USUAL_ROUNDS = 20, LONG_ROUNDS = 400 };
#endif

enum {
  USUAL_THREADS = 4,
  MAX_THREADS = 16,
  SPECS = 64,           // requests whose results are known
  MOST_AT_ONCE = 12,    // of them on an engine
  PROMPT_TOKENS = 160,  // most, of ids
  LIST = 40,            // entries of lists of tokens
  PATIENCE_MS = 120000,
  VOCABULARY = 1024,
};

// A request and all that its options point to.
typedef struct spec {
  megalith_request_options options;
  megalith_sampling sampling;
  int32_t tokens[PROMPT_TOKENS];
  int32_t stop_tokens[LIST], allowed[LIST];
  megalith_logit_bias biases[LIST];
  megalith_message messages[3];
  // What it gives alone; `status` other than MEGALITH_OK: it is refused.
  megalith_status status;
  char error[MEGALITH_ERROR_TEXT_BYTES];
  const megalith_result *expected;  // of `request`
  megalith_request *request;
} spec;

// What a callback notes of one request; the engine's threads write it, readers wait for the end.
typedef struct listener {
  char text[8192];
  size_t text_bytes, outputs, last_calls;
} listener;

static spec specs[SPECS];
static megalith_grammar *grammars[5];
static uint32_t rank_count;  // of every engine
static atomic_ullong compared, cancelled, refused, engines;

// xorshift64*; 0 to below.
static uint32_t draw(uint64_t *random, uint32_t below) {
  *random ^= *random >> 12;
  *random ^= *random << 25;
  *random ^= *random >> 27;
  return (uint32_t)((*random * 0x2545f4914f6cdd1du) >> 33) % below;
}

// One in `of`.
static bool chance(uint64_t *random, uint32_t of) {
  return draw(random, of) == 0;
}

// Not cmocka's: this may be on any thread.
static void must(bool holds, const char *what, const char *detail) {
  if (!holds) {
    (void)fprintf(stderr, "test_api_random: %s: %s\n", what, detail);
    abort();
  }
}

// --- requests ------------------------------------------------------------------------------------

static const char *const texts[] = {
    "What is 137 + 245?",
    "Once upon a time",
    "",
    "a",
    "\xf0\x9f\x98\x80\xf0\x9f\x98\x80 \xe6\x97\xa5\xe6\x9c\xac",
    "not \xff\xfe UTF-8",
    "<|im_start|>user\nWhat is 2 + 3?<|im_end|>\n<|im_start|>assistant\n",
    "the quick brown fox the quick brown fox the quick brown fox the quick brown fox the quick"};
static const char *const chats[] = {"[{\"role\": \"user\", \"content\": \"What is 20 + 21?\"}]",
                                    "[{\"role\": \"user\", \"content\": [{\"type\": \"text\", "
                                    "\"text\": \"Hi\"}]}, {\"role\": \"assistant\", "
                                    "\"content\": \"The\"}]",
                                    "[{\"role\": \"user\"", "[]", "[{\"role\": 7}]"};
static const char *const stop_texts[] = {"e",      " = ", ".", "\n", "12", "\xf0\x9f\x98\x80",
                                         "the qu", ""};
static const char *const bad_words[] = {"the", "answer", "1", " ", ""};

static void draw_prompt(spec *s, uint64_t *random) {
  megalith_request_options *o = &s->options;
  switch (draw(random, 5)) {
    case 0: o->text = texts[draw(random, sizeof texts / sizeof *texts)]; break;
    case 1:
      o->messages_json = chats[draw(random, chance(random, 4) ? sizeof chats / sizeof *chats : 2)];
      o->continue_final_message = chance(random, 3);
      break;
    case 2:
      s->messages[0] = (megalith_message){.role = "system", .content = "Be brief."};
      s->messages[1] = (megalith_message){
          .role = "user", .content = texts[draw(random, sizeof texts / sizeof *texts)]};
      o->messages = s->messages + draw(random, 2);
      o->message_count = (size_t)(s->messages + 2 - o->messages);
      break;
    default:
      // Those of the same length class begin alike, so that they share pages.
      o->token_count = 1 + draw(random, chance(random, 2) ? 20 : PROMPT_TOKENS);
      for (size_t i = 0; i < o->token_count; i++) {
        s->tokens[i] = (int32_t)(i < 64 ? (i * 37 + 11) % 900 : draw(random, 900));
      }
      if (chance(random, 30)) {
        s->tokens[draw(random, (uint32_t)o->token_count)] = chance(random, 2) ? -1 : VOCABULARY;
      }
      o->tokens = s->tokens;
      break;
  }
  if (chance(random, 30)) {
    o->text = "a second prompt";
  }
  o->max_prompt_tokens = chance(random, 6) ? 1 + draw(random, 40) : 0;
  o->max_prompt_tokens = chance(random, 20) ? UINT32_MAX : o->max_prompt_tokens;
  o->plain_special = chance(random, 4);
  o->without_special = chance(random, 4);
}

static void draw_sampling(spec *s, uint64_t *random) {
  static const double temperatures[] = {0, 0, 0.3, 1, 3, 100, -1, INFINITY};
  megalith_sampling *p = &s->sampling;
  p->size = sizeof *p;
  p->temperature = temperatures[draw(random, chance(random, 12) ? 8 : 6)];
  p->top_k = chance(random, 3) ? 1 + draw(random, 60) : 0;
  p->top_p = chance(random, 3) ? 0.1 * (1 + draw(random, 10)) : 0;
  p->min_p = chance(random, 4) ? 0.05 * draw(random, 21) : 0;
  p->repetition_penalty = chance(random, 4) ? 0.5 + 0.1 * draw(random, 10) : 0;
  p->presence_penalty = chance(random, 4) ? -2.0 + 0.5 * draw(random, 9) : 0;
  p->frequency_penalty = chance(random, 4) ? -2.0 + 0.5 * draw(random, 9) : 0;
  if (chance(random, 4)) {
    p->biases = s->biases;
    p->bias_count = 1 + draw(random, LIST);
    for (uint32_t i = 0; i < p->bias_count; i++) {
      s->biases[i] = (megalith_logit_bias){.token = (int32_t)(draw(random, 20) + 25 * i),
                                           .value = (float)draw(random, 201) - 100};
    }
  }
  if (chance(random, 6)) {
    p->allowed = s->allowed;
    p->allowed_count = 1 + draw(random, LIST);
    for (uint32_t i = 0; i < p->allowed_count; i++) {
      s->allowed[i] = (int32_t)draw(random, chance(random, 100) ? 1100 : VOCABULARY);
    }
  }
  p->min_new_tokens = chance(random, 4) ? draw(random, 12) : 0;
  p->logprobs = chance(random, 2);
  p->top_logprobs = p->logprobs ? draw(random, 6) : 0;
  p->seed = draw(random, 1000);
  p->prompt_logprobs = chance(random, 8);
  p->prompt_top_logprobs = p->prompt_logprobs ? draw(random, 4) : 0;
  s->options.sampling = p;
}

static void draw_spec(spec *s, uint64_t *random) {
  megalith_request_options *o = &s->options;
  o->size = sizeof *o;
  draw_prompt(s, random);
  o->max_new_tokens = 1 + draw(random, chance(random, 2) ? 8 : 40);
  if (!chance(random, 4)) {
    draw_sampling(s, random);
  }
  if (chance(random, 6)) {
    o->stop_tokens = s->stop_tokens;
    o->stop_token_count = 1 + draw(random, chance(random, 8) ? 17 : 8);
    for (uint32_t i = 0; i < o->stop_token_count; i++) {
      s->stop_tokens[i] = (int32_t)draw(random, chance(random, 40) ? 1030 : VOCABULARY);
    }
  }
  if (chance(random, 4)) {
    o->stop_texts = stop_texts + draw(random, 6);
    o->stop_text_count = 1 + draw(random, chance(random, 10) ? 3 : 2);
    o->stop_text_count -= o->stop_texts + o->stop_text_count > stop_texts + 8 ? 1 : 0;
  }
  o->ignore_model_stops = chance(random, 4);
  o->keep_special = chance(random, 4);
  o->keep_stop_text = chance(random, 3);
  o->priority = (int32_t)draw(random, 7) - 3;
  if (chance(random, 4)) {
    o->cache_salt = "salt";
    o->cache_salt_bytes = 1 + draw(random, 4);
  }
  if (chance(random, 8)) {
    o->bad_words = bad_words;
    o->bad_word_count = 1 + draw(random, chance(random, 8) ? 5 : 3);
  }
  if (chance(random, 4)) {
    o->grammar = grammars[draw(random, sizeof grammars / sizeof *grammars)];
  }
}

static void create_grammars(void) {
  static const megalith_grammar_options options[] = {
      {.kind = MEGALITH_GRAMMAR_REGEX, .text = "[a-c]{1,5}(x|yy)?"},
      {.kind = MEGALITH_GRAMMAR_JSON_OBJECT},
      {.kind = MEGALITH_GRAMMAR_CHOICE, .text = "[\"yes\", \"no\", \"yesterday\"]"},
      {.kind = MEGALITH_GRAMMAR_EBNF, .text = "root ::= \"a\" root | \"b\""},
      {.kind = MEGALITH_GRAMMAR_JSON_SCHEMA,
       .text = "{\"type\": \"object\", \"properties\": {\"n\": {\"type\": \"integer\"},"
               " \"s\": {\"type\": \"string\", \"maxLength\": 5}}, \"required\": [\"n\", \"s\"]}"}};
  megalith_error error = {0};
  for (size_t i = 0; i < sizeof grammars / sizeof *grammars; i++) {
    megalith_grammar_options o = options[i];
    o.size = sizeof o;
    must(megalith_grammar_create(model, &o, &grammars[i], &error) == MEGALITH_OK, "a grammar",
         error.text);
  }
}

static megalith_status submit_spec(megalith_engine *engine, const spec *s, listener *l,
                                   megalith_request **out, megalith_error *error);

// Each alone, op by op.
static void find_expected(uint64_t *random) {
  megalith_engine *engine =
      create((megalith_engine_options){.threads = 1,
                                       .mode = rank_count == 1 ? "eager" : "mega",
                                       .sequences = 1,
                                       .no_prefix_cache = true,
                                       .prompt_logprobs = true,
                                       .ranks = rank_count,
                                       .kv_tokens = 512});
  for (size_t i = 0; i < SPECS; i++) {
    megalith_error error = {0};
    specs[i] = (spec){0};
    draw_spec(&specs[i], random);
    specs[i].status = submit_spec(engine, &specs[i], NULL, &specs[i].request, &error);
    (void)snprintf(specs[i].error, sizeof specs[i].error, "%s", error.text);
    run(engine);
    if (specs[i].status == MEGALITH_OK) {
      specs[i].expected = megalith_request_result(specs[i].request);
      assert_non_null(specs[i].expected);
      assert_int_not_equal(specs[i].expected->finish, MEGALITH_FINISH_CANCELLED);
    }
  }
  megalith_engine_destroy(engine);
}

// --- engines -------------------------------------------------------------------------------------

static void on_output(void *context, megalith_request *request, const megalith_output *output) {
  listener *l = context;
  (void)request;
  must(l->last_calls == 0, "a callback", "after the last one");
  must(l->text_bytes + output->text_bytes < sizeof l->text, "a callback", "too much text");
  memcpy(l->text + l->text_bytes, output->text, output->text_bytes + 1);
  l->text_bytes += output->text_bytes;
  l->outputs += output->token >= 0 ? 1 : 0;
  l->last_calls += output->finish == MEGALITH_FINISH_NONE ? 0 : 1;
}

static megalith_status submit_spec(megalith_engine *engine, const spec *s, listener *l,
                                   megalith_request **out, megalith_error *error) {
  megalith_request_options options = s->options;
  options.on_output = l == NULL ? NULL : on_output;
  options.context = l;
  return megalith_engine_submit(engine, &options, out, error);
}

// False: an engine of these options need not be possible.
static bool draw_engine(megalith_engine_options *o, uint64_t *random) {
  static const char *const modes[] = {"mega",
                                      "mega",
                                      "eager",
                                      "full",
                                      "compiled",
                                      "piecewise",
                                      "full-decode-only",
                                      "full-and-piecewise"};
  static const char *const compilations[] = {
      "{\"capture_sizes\": [1, 3, 7]}",
      "{\"compile_sizes\": [5]}",
      "{\"level\": 1}",
      "{\"preset\": \"serving\", \"splitting_ops\": [\"attention\"]}",
      "{\"level\": 7}",
      "{"};
  static const uint32_t iterations[] = {1, 2, 3, 7, 16, 33, 64, 128, 0};
  bool is_sound = true;
  *o = (megalith_engine_options){.size = sizeof *o, .prompt_logprobs = true};
  o->mode = modes[draw(random, sizeof modes / sizeof *modes)];
  o->threads = 1 + draw(random, 3);
  o->sequences = 1 + draw(random, 9);
  o->kv_tokens = 512 + 256 * draw(random, 4);
  o->page_tokens = chance(random, 2) ? 0 : 16u << draw(random, 4);
  o->iteration_tokens = iterations[draw(random, sizeof iterations / sizeof *iterations)];
  o->chunk_tokens = chance(random, 3) ? 1 + draw(random, 40) : 0;
  o->no_prefix_cache = chance(random, 3);
  o->background = chance(random, 2);
  o->trace = chance(random, 8);
  if (rank_count > 1) {
    o->ranks = rank_count;
    o->threads = 1;
    is_sound = !chance(random, 8);
    o->mode = is_sound ? "mega" : "eager";  // which ranks do not have
    o->reduce_scatter = chance(random, 2);
    o->vocab_parallel = chance(random, 2);
    o->background = o->background && CAN_FORK_BESIDE;
  } else if (chance(random, 5)) {
    o->mode = NULL;
    o->compilation = compilations[draw(random, sizeof compilations / sizeof *compilations)];
    is_sound = false;
  }
  if (chance(random, 12)) {
    o->partitions = chance(random, 2) ? "attend=1,2" : "nothing=7";
    is_sound = false;
  }
  if (chance(random, 20)) {
    o->page_tokens = 17;
    is_sound = false;
  }
  return is_sound;
}

static bool same_double(double a, double b) {
  return a == b || (isnan(a) && isnan(b));
}

static void check_result(const spec *s, megalith_request *request, const listener *l,
                         bool may_be_cut) {
  const megalith_result *r = megalith_request_result(request), *e = s->expected;
  must(r != NULL, "a request", "is over and has no result");
  if (r->finish == MEGALITH_FINISH_CANCELLED) {
    must(may_be_cut, "a request", "ended as cancelled");
    must(r->token_count <= e->token_count, "a cancelled request", "has more tokens");
    atomic_fetch_add(&cancelled, 1);
  } else {
    must(r->finish == e->finish && r->status == e->status, "another end", r->error);
    must(r->token_count == e->token_count, r->text, e->text);
    must(r->text_bytes == e->text_bytes && strcmp(r->text, e->text) == 0, r->text, e->text);
    atomic_fetch_add(&compared, 1);
  }
  must(memcmp(r->tokens, e->tokens, r->token_count * sizeof *r->tokens) == 0, r->text, e->text);
  must((r->logprobs == NULL) == (e->logprobs == NULL) || r->token_count == 0, "logprobs", r->text);
  for (size_t i = 0; e->logprobs != NULL && i < r->token_count; i++) {
    must(same_double(r->logprobs[i], e->logprobs[i]), "another log probability", r->text);
    for (uint32_t k = 0; k < e->top_count; k++) {
      const megalith_logprob *a = &r->top[i * r->top_count + k], *b = &e->top[i * e->top_count + k];
      must(a->token == b->token && same_double(a->logprob, b->logprob), "another top token",
           r->text);
    }
  }
  must(l->last_calls == 1, "a request", "is over without its last call, or had two");
  must(l->outputs == r->token_count, "callbacks", "not one for each token");
  must(l->text_bytes == r->text_bytes && strcmp(l->text, r->text) == 0, l->text, r->text);
}

static void check_prompt(const spec *s, megalith_request *request) {
  megalith_prompt a = {0}, b = {0};
  megalith_request_prompt(request, &a);
  megalith_request_prompt(s->request, &b);
  must(a.token_count == b.token_count, "another prompt", s->expected->text);
  if (a.logprobs == NULL || b.logprobs == NULL) {
    return;  // cancelled before it gave a token
  }
  for (size_t i = 0; i < a.token_count; i++) {
    must(a.tokens[i] == b.tokens[i] && same_double(a.logprobs[i], b.logprobs[i]),
         "another log probability of a prompt", s->expected->text);
  }
}

// Of the model, while others use it.
static void use_model(uint64_t *random) {
  megalith_error error = {0};
  size_t count = 0, bytes = 0;
  int32_t ids[8];
  char text[16];
  const spec *s = &specs[draw(random, SPECS)];
  switch (draw(random, 6)) {
    case 0:
      must(megalith_model_tokenize(model, texts[1], strlen(texts[1]), ids, draw(random, 9), &count,
                                   &error) == MEGALITH_OK,
           "tokenize", error.text);
      break;
    case 1:
      must(megalith_model_detokenize(model, (const int32_t[]){5, 6, 7}, 3, text, draw(random, 17),
                                     &bytes, &error) == MEGALITH_OK,
           "detokenize", error.text);
      must(megalith_model_token_text(model, -1, text, sizeof text, &bytes, &error) ==
               MEGALITH_ERROR_ARGUMENT,
           "token_text", "of -1");
      break;
    case 2: (void)megalith_model_encode(model, &s->options, NULL, 0, &count, &error); break;
    case 3:
      (void)megalith_model_render(model, &s->options, text, sizeof text, &bytes, &error);
      break;
    case 4: {
      char regex[32];
      megalith_grammar *g = NULL;
      (void)snprintf(regex, sizeof regex, "a{%u}%s", draw(random, 30),
                     chance(random, 4) ? "(" : "");
      const megalith_grammar_options o = {
          .size = sizeof o, .kind = MEGALITH_GRAMMAR_REGEX, .text = regex};
      megalith_status status = megalith_grammar_create(model, &o, &g, &error);
      must((status == MEGALITH_OK) == (strchr(regex, '(') == NULL), "a grammar", error.text);
      megalith_grammar_release(g);
      break;
    }
    default: {
      megalith_model *other = NULL;
      if (chance(random, 4)) {
        must(megalith_model_open(MGL_DEMO_FOLDER, NULL, &other, &error) == MEGALITH_OK, "open",
             error.text);
      }
      megalith_model_close(other);
      break;
    }
  }
}

typedef struct flight {
  const spec *spec;
  megalith_request *request;
  listener listener;
  bool is_cancelled, is_read;
  size_t read_bytes;
} flight;

static void use_flight(flight *f, uint64_t *random) {
  switch (draw(random, 8)) {
    case 0:
      if (chance(random, 4)) {
        megalith_request_cancel(f->request);
        f->is_cancelled = true;
      }
      break;
    case 1: megalith_request_pause(f->request); break;
    case 2:
    case 3: megalith_request_resume(f->request); break;
    case 4: (void)megalith_request_wait(f->request, (int)draw(random, 2)); break;
    default: {
      const megalith_output *o = megalith_request_next(f->request, (int)draw(random, 2));
      f->is_read = f->is_read || (o != NULL && o->finish != MEGALITH_FINISH_NONE);
      f->read_bytes += o == NULL ? 0 : o->text_bytes;
      break;
    }
  }
}

static void end_flight(megalith_engine *engine, flight *f, bool background) {
  megalith_error error = {0};
  megalith_request_resume(f->request);
  if (!background) {
    must(megalith_engine_run(engine, &error) == MEGALITH_OK, "run", error.text);
  }
  must(megalith_request_wait(f->request, PATIENCE_MS), "a request", "does not end");
  for (const megalith_output *o = megalith_request_next(f->request, 0); o != NULL;
       o = megalith_request_next(f->request, 0)) {
    must(!f->is_read, "an output", "behind the last one");
    f->is_read = o->finish != MEGALITH_FINISH_NONE;
    f->read_bytes += o->text_bytes;
  }
  must(f->is_read, "the last output", "did not come");
  must(f->read_bytes == f->listener.text_bytes, "outputs", "that were read lack text");
  check_result(f->spec, f->request, &f->listener, f->is_cancelled);
  check_prompt(f->spec, f->request);
  megalith_request_release(f->request);
}

static void fly(megalith_engine *engine, const megalith_engine_options *options, uint64_t *random) {
  flight *flights = mgl_alloc_zeroed(MOST_AT_ONCE, sizeof *flights);
  must(flights != NULL, "out", "of memory");
  uint32_t count = 1 + draw(random, MOST_AT_ONCE), in_air = 0;
  for (uint32_t i = 0; i < count; i++) {
    megalith_error error = {0};
    flight *f = &flights[in_air];
    f->spec = &specs[draw(random, SPECS)];
    megalith_status status = submit_spec(engine, f->spec, &f->listener, &f->request, &error);
    must(status == f->spec->status, f->spec->error, error.text);
    must(status == MEGALITH_OK || strcmp(error.text, f->spec->error) == 0, f->spec->error,
         error.text);
    in_air += status == MEGALITH_OK ? 1 : 0;
    atomic_fetch_add(&refused, status == MEGALITH_OK ? 0 : 1);
    for (uint32_t k = in_air == 0 ? 0 : draw(random, 6); k > 0; k--) {
      use_flight(&flights[draw(random, in_air)], random);
    }
    if (!options->background && chance(random, 2)) {
      must(megalith_engine_step(engine, &error) == MEGALITH_OK, "step", error.text);
    }
    if (chance(random, 4)) {
      use_model(random);
    }
  }
  for (uint32_t i = 0; i < in_air; i++) {
    end_flight(engine, &flights[i], options->background);
  }
  megalith_statistics statistics = {.size = sizeof statistics};
  must(megalith_engine_get_statistics(engine, &statistics, NULL) == MEGALITH_OK, "statistics", "");
  mgl_free(flights);
}

typedef struct worker {
  pthread_t thread;
  uint64_t random;
  uint64_t rounds;
} worker;

static void *be_worker(void *context) {
  worker *w = context;
  for (uint64_t i = 0; i < w->rounds; i++) {
    megalith_engine_options options;
    megalith_engine *engine = NULL;
    megalith_error error = {0};
    bool is_sound = draw_engine(&options, &w->random);
    megalith_status status = megalith_engine_create(model, &options, &engine, &error);
    must(status == MEGALITH_OK || !is_sound, "an engine is refused", error.text);
    if (status != MEGALITH_OK) {
      must(engine == NULL && error.status == status && error.text[0] != 0, "a refusal", error.text);
      continue;
    }
    atomic_fetch_add(&engines, 1);
    for (uint32_t k = 1 + draw(&w->random, 3); k > 0; k--) {
      fly(engine, &options, &w->random);
    }
    megalith_engine_destroy(engine);
  }
  return NULL;
}

static uint64_t number_of(const char *variable, uint64_t usual) {
  const char *text = getenv(variable);
  return text == NULL || *text == 0 ? usual : strtoull(text, NULL, 10);
}

static void release_expected(void) {
  for (size_t i = 0; i < SPECS; i++) {
    megalith_request_release(specs[i].request);
  }
  for (size_t i = 0; i < sizeof grammars / sizeof *grammars; i++) {
    megalith_grammar_release(grammars[i]);
  }
}

static void print_figures(uint64_t seed) {
  (void)printf(
      "MGL_TEST_SEED=%llu: %llu engines, %llu results compared, %llu cancelled, %llu refused\n",
      (unsigned long long)seed, (unsigned long long)engines, (unsigned long long)compared,
      (unsigned long long)cancelled, (unsigned long long)refused);
  assert_true(engines > 0 && compared > 0 && cancelled > 0 && refused > 0);
  engines = compared = cancelled = refused = 0;
}

static void random_requests_give_what_they_give_alone(void **state) {
  const bool is_long = getenv("MGL_TEST_LONG") != NULL;
  const uint64_t seed = number_of("MGL_TEST_SEED", 1);
  const uint64_t rounds = number_of("MGL_TEST_ROUNDS", is_long ? LONG_ROUNDS : USUAL_ROUNDS);
  const uint64_t threads = number_of("MGL_TEST_THREADS", USUAL_THREADS);
  uint64_t random = seed * 0x9e3779b97f4a7c15u | 1;
  worker workers[MAX_THREADS];
  (void)state;
  assert_in_range(threads, 1, MAX_THREADS);
  rank_count = 1;
  create_grammars();
  find_expected(&random);
  for (uint64_t i = 0; i < threads; i++) {
    workers[i] = (worker){.random = (random + i) * 0x9e3779b97f4a7c15u | 1, .rounds = rounds};
    must(pthread_create(&workers[i].thread, NULL, be_worker, &workers[i]) == 0, "no", "thread");
  }
  for (uint64_t i = 0; i < threads; i++) {
    (void)pthread_join(workers[i].thread, NULL);
  }
  release_expected();
  print_figures(seed);
}

// The same of two processes, on this thread alone, since they are forked. Sums have other last bits
// than those of one process, but the same ones whatever else is there.
static void so_do_those_of_two_ranks(void **state) {
  const bool is_long = getenv("MGL_TEST_LONG") != NULL;
  const uint64_t seed = number_of("MGL_TEST_SEED", 1);
  uint64_t random = (seed + 1000) * 0x9e3779b97f4a7c15u | 1;
  (void)state;
  rank_count = 2;
  create_grammars();
  find_expected(&random);
  worker self = {.random = random,
                 .rounds = number_of("MGL_TEST_ROUNDS", is_long ? LONG_ROUNDS : USUAL_ROUNDS) / 2};
  (void)be_worker(&self);
  release_expected();
  print_figures(seed);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(random_requests_give_what_they_give_alone),
      cmocka_unit_test(so_do_those_of_two_ranks),
  };
  return cmocka_run_group_tests(tests, open_model, close_model);
}
