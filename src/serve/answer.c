#include "serve/answer.h"

#include <inttypes.h>
#include <sodium.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/alloc.h"
#include "request/json_text.h"
#include "serve/answer_logprobs.h"
#include "serve/responses.h"

static bool is_chat(const mgl_answer *answer) {
  return answer->ask->endpoint == MGL_ENDPOINT_CHAT;
}

static void append_quoted(mgl_text *out, const char *text) {
  mgl_json_append_string(out, text, strlen(text));
}

// --- errors --------------------------------------------------------------------------------------

void mgl_answer_append_error(mgl_text *out, int status, const char *message, const char *parameter,
                             const char *code) {
  const char *type = status == 401   ? "authentication_error"
                     : status == 429 ? "rate_limit_error"
                     : status >= 500 ? "server_error"
                                     : "invalid_request_error";
  mgl_text_append_string(out, "{\"error\":{\"message\":");
  append_quoted(out, message);
  mgl_text_format(out, ",\"type\":\"%s\",\"param\":", type);
  if (parameter == NULL || parameter[0] == 0) {
    mgl_text_append_string(out, "null");
  } else {
    append_quoted(out, parameter);
  }
  mgl_text_append_string(out, ",\"code\":");
  if (code == NULL) {
    mgl_text_append_string(out, "null");
  } else {
    append_quoted(out, code);
  }
  mgl_text_append_string(out, "}}");
}

void mgl_answer_append_error_event(mgl_text *out, const char *message) {
  mgl_text_append_string(out, "data: ");
  mgl_answer_append_error(out, 500, message, NULL, NULL);
  mgl_text_append_string(out, "\n\n");
}

// --- pieces --------------------------------------------------------------------------------------

static void append_head(const mgl_answer *answer, bool is_event, mgl_text *out) {
  static const char *const objects[2][2] = {{"text_completion", "text_completion"},
                                            {"chat.completion", "chat.completion.chunk"}};
  mgl_text_append_string(out, "{\"id\":");
  append_quoted(out, answer->id);
  mgl_text_format(out, ",\"object\":\"%s\",\"created\":%" PRId64 ",\"model\":",
                  objects[is_chat(answer)][is_event], answer->created);
  append_quoted(out, answer->model_name);
}

static void append_finish(const mgl_answer_choice *c, mgl_text *out) {
  bool calls = c->finish == MEGALITH_FINISH_STOP && c->call_count > 0;
  const char *word = calls                                 ? "\"tool_calls\""
                     : c->finish == MEGALITH_FINISH_LENGTH ? "\"length\""
                     : c->finish == MEGALITH_FINISH_NONE   ? "null"
                                                           : "\"stop\"";
  mgl_text_format(out, ",\"finish_reason\":%s", word);
}

static void append_token_ids(const mgl_answer *answer, const mgl_answer_choice *c, mgl_text *out) {
  if (answer->ask->return_token_ids) {
    mgl_text_append_string(out, ",");
    mgl_answer_append_list("token_ids", &c->token_ids, out);
  }
}

// Of completions, in each choice.
static void append_prompt_logprobs(const mgl_answer *answer, uint32_t index, mgl_text *out) {
  if (answer->ask->has_prompt_logprobs) {
    mgl_text_append_string(out, ",");
    mgl_answer_append_list("prompt_logprobs", &answer->choices[index].prompt, out);
    out->failed = out->failed || answer->choices[index].prompt.failed;
  }
}

static void append_usage(const mgl_answer *answer, mgl_text *out) {
  uint64_t generated = 0;
  for (uint32_t i = 0; i < answer->choice_count; i++) {
    generated += answer->choices[i].token_count;
  }
  mgl_text_format(out,
                  "\"usage\":{\"prompt_tokens\":%" PRIu64 ",\"completion_tokens\":%" PRIu64
                  ",\"total_tokens\":%" PRIu64 "}",
                  answer->prompt_tokens, generated, answer->prompt_tokens + generated);
}

// The prompt of a choice as text, for echo.
static void append_echo(const mgl_answer *answer, uint32_t index, mgl_text *out) {
  const mgl_ask_prompt *prompt = &answer->ask->prompts[index / answer->ask->n];
  size_t bytes = 0;
  if (prompt->text != NULL) {
    mgl_text_append(out, prompt->text, prompt->text_bytes);
    return;
  }
  (void)megalith_model_detokenize(answer->model, prompt->tokens, prompt->token_count, NULL, 0,
                                  &bytes, NULL);
  char *text = mgl_alloc(bytes + 1);
  if (text == NULL) {
    out->failed = true;
  } else if (megalith_model_detokenize(answer->model, prompt->tokens, prompt->token_count, text,
                                       bytes + 1, &bytes, NULL) == MEGALITH_OK) {
    mgl_text_append(out, text, bytes);
  }
  mgl_free(text);
}

// --- streams -------------------------------------------------------------------------------------

// An event with a member of a delta, `"content":"..."`, or a text of completions; "" is a delta
// without members.
static void append_event(mgl_answer *answer, uint32_t index, const char *member, const char *text,
                         size_t bytes, mgl_text *out) {
  mgl_answer_choice *c = &answer->choices[index];
  mgl_text_append_string(out, "data: ");
  append_head(answer, true, out);
  mgl_text_format(out, ",\"choices\":[{\"index\":%u,", index);
  if (is_chat(answer)) {
    mgl_text_append_string(out, "\"delta\":{");
    mgl_text_append_string(out, c->is_begun ? "" : "\"role\":\"assistant\"");
    mgl_text_append_string(out, c->is_begun || member[0] == 0 ? "" : ",");
  }
  if (strcmp(member, "tool_calls") == 0) {
    mgl_text_append_string(out, "\"tool_calls\":[");
    mgl_text_append(out, text, bytes);
    mgl_text_append_string(out, "]");
  } else if (member[0] != 0) {
    mgl_text_format(out, "\"%s\":", member);
    mgl_json_append_string(out, text, bytes);
  }
  mgl_text_append_string(out, is_chat(answer) ? "}" : "");
  mgl_answer_append_logprobs(answer, c, out);
  append_finish(c, out);
  append_token_ids(answer, c, out);
  mgl_text_append_string(out, answer->ask->include_usage ? "}],\"usage\":null}\n\n" : "}]}\n\n");
  c->is_begun = true;
  mgl_answer_clear_logprobs(c);
}

// Of completions.
static void stream_output(mgl_answer *answer, uint32_t index, const megalith_output *output,
                          mgl_text *events) {
  mgl_answer_choice *c = &answer->choices[index];
  bool tells = output->text_bytes > 0 || output->finish != MEGALITH_FINISH_NONE ||
               answer->ask->return_token_ids || answer->ask->sampling.logprobs;
  bool echoes = !c->is_begun && answer->ask->echo;
  if (!tells && c->is_begun) {
    return;
  }
  if (!echoes) {
    append_event(answer, index, "text", output->text, output->text_bytes, events);
    return;
  }
  mgl_text first = {0};
  append_echo(answer, index, &first);
  mgl_text_append(&first, output->text, output->text_bytes);
  events->failed = events->failed || first.failed;
  append_event(answer, index, "text", first.data == NULL ? "" : first.data, first.bytes, events);
  mgl_text_free(&first);
}

// --- chats ---------------------------------------------------------------------------------------

// Where what the parser finds in one output goes.
typedef struct chat_output {
  mgl_answer *answer;
  uint32_t index;
  mgl_text *events;
} chat_output;

static void tell(chat_output *o, const char *member, mgl_text *whole, const char *text,
                 size_t bytes) {
  if (o->answer->ask->stream) {
    append_event(o->answer, o->index, member, text, bytes, o->events);
  } else {
    mgl_text_append(whole, text, bytes);
  }
}

static void on_said(void *context, const char *text, size_t bytes) {
  chat_output *o = context;
  tell(o, "content", &o->answer->choices[o->index].text, text, bytes);
}

static void on_thought(void *context, const char *text, size_t bytes) {
  chat_output *o = context;
  if (o->answer->ask->hides_thoughts) {
    return;
  }
  tell(o, "reasoning_content", &o->answer->choices[o->index].thoughts, text, bytes);
}

// Calls beyond the first are for nobody if one alone is wanted.
static bool is_wanted(const chat_output *o) {
  const mgl_answer_choice *c = &o->answer->choices[o->index];
  return c->call_count <= 1 || o->answer->ask->parallel_tool_calls;
}

// A call begins: in streams with no arguments yet, else up to where they go.
static void on_called(void *context, const char *name) {
  chat_output *o = context;
  mgl_answer_choice *c = &o->answer->choices[o->index];
  unsigned char random[12];
  char id[2 * sizeof random + 1];
  mgl_text call = {0};
  bool streams = o->answer->ask->stream;
  uint32_t number = c->call_count++;
  if (!is_wanted(o)) {
    return;
  }
  randombytes_buf(random, sizeof random);
  (void)sodium_bin2hex(id, sizeof id, random, sizeof random);
  mgl_text_append_string(&call, number > 0 && !streams ? ",{" : "{");
  if (streams) {
    mgl_text_format(&call, "\"index\":%u,", number);
  }
  mgl_text_format(&call, "\"id\":\"call_%s\",\"type\":\"function\",\"function\":{\"name\":", id);
  append_quoted(&call, name);
  mgl_text_append_string(&call, streams ? ",\"arguments\":\"\"}}" : ",\"arguments\":");
  o->events->failed = o->events->failed || call.failed;
  tell(o, "tool_calls", &c->calls, call.data, call.bytes);
  mgl_text_free(&call);
}

// Arguments: in streams a piece, else all of them (the parser holds calls).
static void on_argued(void *context, const char *text, size_t bytes) {
  chat_output *o = context;
  mgl_answer_choice *c = &o->answer->choices[o->index];
  mgl_text piece = {0};
  if (!is_wanted(o)) {
    return;
  }
  if (o->answer->ask->stream) {
    mgl_text_format(&piece, "{\"index\":%u,\"function\":{\"arguments\":", c->call_count - 1);
  }
  mgl_json_append_string(&piece, text, bytes);
  mgl_text_append_string(&piece, "}}");
  o->events->failed = o->events->failed || piece.failed;
  tell(o, "tool_calls", &c->calls, piece.data, piece.bytes);
  mgl_text_free(&piece);
}

static void add_chat_output(mgl_answer *answer, uint32_t index, const megalith_output *output,
                            mgl_text *events) {
  mgl_answer_choice *c = &answer->choices[index];
  chat_output o = {.answer = answer, .index = index, .events = events};
  mgl_output_sink sink = {.context = &o,
                          .said = on_said,
                          .thought = on_thought,
                          .called = on_called,
                          .argued = on_argued};
  size_t before = events->bytes;
  c->finish = MEGALITH_FINISH_NONE;  // for the events before the last one
  mgl_output_parser_push(&c->parser, output->text, output->text_bytes, &sink);
  if (output->finish != MEGALITH_FINISH_NONE) {
    mgl_output_parser_finish(&c->parser, &sink);
  }
  c->finish = output->finish;
  events->failed = events->failed || c->parser.held.failed;
  bool tells = output->finish != MEGALITH_FINISH_NONE || !c->is_begun ||
               (events->bytes == before &&
                (answer->ask->return_token_ids || answer->ask->sampling.logprobs));
  if (answer->ask->stream && tells) {
    append_event(answer, index, c->is_begun ? "" : "content", "", 0, events);
  }
}

// -------------------------------------------------------------------------------------------------

void mgl_answer_output(mgl_answer *answer, uint32_t choice, const megalith_output *given,
                       mgl_text *events) {
  mgl_answer_choice *c = &answer->choices[choice];
  const megalith_output nothing = {.token = -1, .finish = given->finish, .text = ""};
  const megalith_output *output = answer->ask->hides_answer ? &nothing : given;
  if (output->token >= 0) {
    c->token_count++;
    if (answer->ask->return_token_ids) {
      mgl_text_format(&c->token_ids, c->token_ids.bytes == 0 ? "%d" : ",%d", output->token);
    }
    mgl_answer_add_logprob(answer, output, c);
  }
  c->finish = output->finish;
  if (answer->ask->endpoint == MGL_ENDPOINT_RESPONSES) {
    mgl_responses_output(answer, output, events);
  } else if (is_chat(answer)) {
    add_chat_output(answer, choice, output, events);
  } else if (answer->ask->stream) {
    stream_output(answer, choice, output, events);
  } else {
    mgl_text_append(&c->text, output->text, output->text_bytes);
  }
}

// --- whole answers -------------------------------------------------------------------------------

static void append_message(const mgl_answer_choice *c, mgl_text *out) {
  size_t blanks = c->text.bytes == 0 ? 0 : strspn(c->text.data, " \t\r\n");
  mgl_text_append_string(out, "\"message\":{\"role\":\"assistant\",\"content\":");
  if (c->call_count > 0 && blanks == c->text.bytes) {
    mgl_text_append_string(out, "null");
  } else {
    mgl_json_append_string(out, c->text.data == NULL ? "" : c->text.data, c->text.bytes);
  }
  mgl_text_append_string(out, ",\"refusal\":null");
  if (c->thoughts.bytes > 0) {
    mgl_text_append_string(out, ",\"reasoning_content\":");
    mgl_json_append_string(out, c->thoughts.data, c->thoughts.bytes);
  }
  if (c->call_count > 0) {
    mgl_text_append_string(out, ",");
    mgl_answer_append_list("tool_calls", &c->calls, out);
  }
  out->failed = out->failed || c->thoughts.failed || c->calls.failed;
  mgl_text_append_string(out, "}");
}

static void append_choice(const mgl_answer *answer, uint32_t index, mgl_text *out) {
  const mgl_answer_choice *c = &answer->choices[index];
  mgl_text text = {0};
  mgl_text_format(out, "%s{\"index\":%u,", index == 0 ? "" : ",", index);
  if (answer->ask->echo) {
    append_echo(answer, index, &text);
  }
  mgl_text_append(&text, c->text.data, c->text.bytes);
  out->failed = out->failed || text.failed || c->text.failed || c->tokens.failed ||
                c->logprobs.failed || c->tops.failed || c->offsets.failed || c->token_ids.failed;
  if (is_chat(answer)) {
    append_message(c, out);
  } else {
    mgl_text_append_string(out, "\"text\":");
    mgl_json_append_string(out, text.data == NULL ? "" : text.data, text.bytes);
  }
  mgl_answer_append_logprobs(answer, c, out);
  append_finish(c, out);
  append_token_ids(answer, c, out);
  if (!is_chat(answer)) {
    append_prompt_logprobs(answer, index, out);
  }
  mgl_text_append_string(out, "}");
  mgl_text_free(&text);
}

void mgl_answer_end(mgl_answer *answer, mgl_text *out) {
  if (answer->ask->endpoint == MGL_ENDPOINT_RESPONSES) {
    mgl_responses_end(answer, out);
    return;
  }
  if (answer->ask->stream) {
    if (answer->ask->include_usage) {
      mgl_text_append_string(out, "data: ");
      append_head(answer, true, out);
      mgl_text_append_string(out, ",\"choices\":[],");
      append_usage(answer, out);
      mgl_text_append_string(out, "}\n\n");
    }
    mgl_text_append_string(out, "data: [DONE]\n\n");
    return;
  }
  append_head(answer, false, out);
  mgl_text_append_string(out, ",\"choices\":[");
  for (uint32_t i = 0; i < answer->choice_count; i++) {
    append_choice(answer, i, out);
  }
  mgl_text_append_string(out, "],");
  append_usage(answer, out);
  if (is_chat(answer)) {
    append_prompt_logprobs(answer, 0, out);
  }
  mgl_text_append_string(out, "}");
}

// -------------------------------------------------------------------------------------------------

mgl_status mgl_answer_init(const megalith_model *model, const char *model_name, const mgl_ask *ask,
                           uint32_t choice_count, mgl_output_syntax syntax, mgl_answer *out,
                           mgl_error *err) {
  unsigned char random[12];
  char drawn[2 * sizeof random + 1];
  randombytes_buf(random, sizeof random);
  (void)sodium_bin2hex(drawn, sizeof drawn, random, sizeof random);
  *out = (mgl_answer){.model = model,
                      .model_name = model_name,
                      .ask = ask,
                      .created = (int64_t)time(NULL),
                      .choice_count = choice_count};
  (void)snprintf(out->id, sizeof out->id, "%s-%s",
                 ask->endpoint == MGL_ENDPOINT_RESPONSES ? "resp"
                 : is_chat(out)                          ? "chatcmpl"
                                                         : "cmpl",
                 ask->request_id == NULL ? drawn : ask->request_id);
  out->choices = mgl_alloc_zeroed(choice_count, sizeof *out->choices);
  for (uint32_t i = 0; out->choices != NULL && is_chat(out) && i < choice_count; i++) {
    out->choices[i].parser =
        (mgl_output_parser){.tools = ask->tools_json != NULL ? syntax.tools : MGL_TOOLS_NONE,
                            .finds_thoughts = syntax.finds_thoughts,
                            .starts_in_thought = syntax.finds_thoughts && ask->starts_in_thought,
                            .holds_calls = !ask->stream};
  }
  return out->choices != NULL
             ? MGL_OK
             : mgl_error_set(err, MGL_ERR_MEMORY, "out of memory for %u choices", choice_count);
}

void mgl_answer_free(mgl_answer *answer) {
  for (uint32_t i = 0; answer->choices != NULL && i < answer->choice_count; i++) {
    mgl_answer_choice *c = &answer->choices[i];
    mgl_output_parser_free(&c->parser);
    mgl_text_free(&c->text);
    mgl_text_free(&c->thoughts);
    mgl_text_free(&c->calls);
    mgl_text_free(&c->token_ids);
    mgl_text_free(&c->prompt);
    mgl_text_free(&c->tokens);
    mgl_text_free(&c->logprobs);
    mgl_text_free(&c->tops);
    mgl_text_free(&c->offsets);
  }
  mgl_free(answer->choices);
  *answer = (mgl_answer){0};
}
