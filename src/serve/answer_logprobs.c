#include "serve/answer_logprobs.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "request/json_text.h"

enum { TOKEN_BYTES = 512, LEAST_LOGPROB = -9999 };

// The bytes that a token adds to the text; they may be half a character.
static size_t bytes_of(const mgl_answer *answer, int32_t token, char text[TOKEN_BYTES]) {
  size_t bytes = 0;
  text[0] = 0;
  if (answer->ask->shows_token_ids) {
    return (size_t)snprintf(text, TOKEN_BYTES, "token_id:%d", token);
  }
  (void)megalith_model_token_bytes(answer->model, token, text, TOKEN_BYTES, &bytes, NULL);
  return bytes < TOKEN_BYTES ? bytes : TOKEN_BYTES - 1;
}

static void append_logprob(mgl_text *out, double value) {
  // JSON has no infinity.
  mgl_text_format(out, "%.9g", value > LEAST_LOGPROB ? value : LEAST_LOGPROB);
}

static void append_chat_token(const mgl_answer *answer, megalith_logprob item, mgl_text *out) {
  char text[TOKEN_BYTES];
  size_t bytes = bytes_of(answer, item.token, text);
  mgl_text_append_string(out, "{\"token\":");
  mgl_json_append_string(out, text, bytes);
  mgl_text_append_string(out, ",\"logprob\":");
  append_logprob(out, item.logprob);
  mgl_text_append_string(out, ",\"bytes\":[");
  for (size_t i = 0; i < bytes; i++) {
    mgl_text_format(out, i == 0 ? "%u" : ",%u", (unsigned)(unsigned char)text[i]);
  }
  mgl_text_append_string(out, "]");
}

static void add_chat_logprob(const mgl_answer *answer, const megalith_output *output,
                             mgl_text *out) {
  mgl_text_append_string(out, out->bytes == 0 ? "" : ",");
  append_chat_token(answer, (megalith_logprob){output->token, output->logprob}, out);
  mgl_text_append_string(out, ",\"top_logprobs\":[");
  for (uint32_t i = 0; i < output->top_count; i++) {
    mgl_text_append_string(out, i == 0 ? "" : ",");
    append_chat_token(answer, output->top[i], out);
    mgl_text_append_string(out, "}");
  }
  mgl_text_append_string(out, "]}");
}

static size_t count_characters(const char *text, size_t bytes) {
  size_t count = 0;
  for (size_t i = 0; i < bytes; i++) {
    count += ((unsigned char)text[i] & 0xc0) != 0x80 ? 1 : 0;
  }
  return count;
}

// {"text": logprob, ...}. Parts of characters look alike: of tokens with the same text the
// likeliest counts, since a name may stand once in an object.
static void append_tops(const mgl_answer *answer, const megalith_output *output, mgl_text *out) {
  mgl_text names[MEGALITH_MAX_TOP_LOGPROBS] = {{0}};
  mgl_text_append_string(out, "{");
  for (uint32_t i = 0; i < output->top_count; i++) {
    char text[TOKEN_BYTES];
    size_t bytes = bytes_of(answer, output->top[i].token, text);
    mgl_json_append_string(&names[i], text, bytes);
    bool is_new = !names[i].failed;
    for (uint32_t j = 0; is_new && j < i; j++) {
      is_new = names[j].failed || strcmp(names[i].data, names[j].data) != 0;
    }
    out->failed = out->failed || names[i].failed;
    if (is_new) {
      mgl_text_append_string(out, i == 0 ? "" : ",");
      mgl_text_append(out, names[i].data, names[i].bytes);
      mgl_text_append_string(out, ":");
      append_logprob(out, output->top[i].logprob);
    }
  }
  for (uint32_t i = 0; i < output->top_count; i++) {
    mgl_text_free(&names[i]);
  }
  mgl_text_append_string(out, "}");
}

// Of completions. The first token of a prompt has no probability.
static void add_logprob(const mgl_answer *answer, const megalith_output *output,
                        mgl_answer_choice *c) {
  char text[TOKEN_BYTES];
  const char *comma = c->tokens.bytes == 0 ? "" : ",";
  size_t bytes = bytes_of(answer, output->token, text);
  size_t length = count_characters(text, bytes);
  mgl_text_append_string(&c->tokens, comma);
  mgl_json_append_string(&c->tokens, text, bytes);
  mgl_text_append_string(&c->logprobs, comma);
  mgl_text_format(&c->offsets, "%s%zu", comma, c->offset);
  c->offset += length;
  if (isnan(output->logprob)) {
    mgl_text_append_string(&c->logprobs, "null");
    mgl_text_format(&c->tops, "%snull", comma);
    return;
  }
  append_logprob(&c->logprobs, output->logprob);
  mgl_text_append_string(&c->tops, comma);
  append_tops(answer, output, &c->tops);
}

void mgl_answer_add_logprob(const mgl_answer *answer, const megalith_output *output,
                            mgl_answer_choice *c) {
  if (answer->ask->sampling.logprobs && answer->ask->endpoint == MGL_ENDPOINT_CHAT) {
    add_chat_logprob(answer, output, &c->tokens);
  } else if (answer->ask->sampling.logprobs) {
    add_logprob(answer, output, c);
  }
}

// --- prompts -------------------------------------------------------------------------------------

// "7":{"logprob":...,"rank":...,"decoded_token":...}; rank 0: not among the likeliest that were
// asked for, so it is not known.
static void append_ranked(const mgl_answer *answer, megalith_logprob item, uint32_t rank,
                          mgl_text *out) {
  char text[TOKEN_BYTES];
  size_t bytes = bytes_of(answer, item.token, text);
  mgl_text_format(out, "\"%d\":{\"logprob\":", item.token);
  append_logprob(out, item.logprob);
  mgl_text_format(out, rank == 0 ? ",\"rank\":null" : ",\"rank\":%u", rank);
  mgl_text_append_string(out, ",\"decoded_token\":");
  mgl_json_append_string(out, text, bytes);
  mgl_text_append_string(out, "}");
}

// As vLLM has it: of each token but the first, it and the likeliest ones in its place.
static void add_ranked_prompt(const mgl_answer *answer, const megalith_prompt *prompt,
                              mgl_text *out) {
  mgl_text_append_string(out, "null");
  for (size_t i = 1; i < prompt->token_count; i++) {
    const megalith_logprob *top = prompt->top + i * prompt->top_count;
    uint32_t shown = answer->ask->prompt_logprobs;
    uint32_t rank = 0;
    shown = shown < prompt->top_count ? shown : prompt->top_count;
    for (uint32_t j = 0; j < prompt->top_count; j++) {
      rank = top[j].token == prompt->tokens[i] ? j + 1 : rank;
    }
    mgl_text_append_string(out, ",{");
    append_ranked(answer, (megalith_logprob){prompt->tokens[i], prompt->logprobs[i]}, rank, out);
    for (uint32_t j = 0; j < shown; j++) {
      if (j + 1 != rank) {
        mgl_text_append_string(out, ",");
        append_ranked(answer, top[j], j + 1, out);
      }
    }
    mgl_text_append_string(out, "}");
  }
}

void mgl_answer_add_prompt(mgl_answer *answer, uint32_t choice, const megalith_prompt *prompt) {
  mgl_answer_choice *c = &answer->choices[choice];
  bool echoes = answer->ask->echo && answer->ask->sampling.logprobs;
  uint32_t tops = answer->ask->sampling.top_logprobs;
  if (answer->ask->has_prompt_logprobs) {
    add_ranked_prompt(answer, prompt, &c->prompt);
  }
  for (size_t i = 0; echoes && i < prompt->token_count; i++) {
    megalith_output output = {.token = prompt->tokens[i],
                              .logprob = prompt->logprobs[i],
                              .top = prompt->top + i * prompt->top_count,
                              .top_count = tops < prompt->top_count ? tops : prompt->top_count};
    add_logprob(answer, &output, c);
  }
}

// -------------------------------------------------------------------------------------------------

void mgl_answer_append_list(const char *name, const mgl_text *items, mgl_text *out) {
  mgl_text_format(out, "\"%s\":[", name);
  mgl_text_append(out, items->data, items->bytes);
  mgl_text_append_string(out, "]");
}

void mgl_answer_append_logprobs(const mgl_answer *answer, const mgl_answer_choice *c,
                                mgl_text *out) {
  mgl_text_append_string(out, ",\"logprobs\":");
  if (!answer->ask->sampling.logprobs) {
    mgl_text_append_string(out, "null");
  } else if (answer->ask->endpoint == MGL_ENDPOINT_CHAT) {
    mgl_text_append_string(out, "{");
    mgl_answer_append_list("content", &c->tokens, out);
    mgl_text_append_string(out, ",\"refusal\":null}");
  } else {
    mgl_text_append_string(out, "{");
    mgl_answer_append_list("tokens", &c->tokens, out);
    mgl_text_append_string(out, ",");
    mgl_answer_append_list("token_logprobs", &c->logprobs, out);
    mgl_text_append_string(out, ",");
    mgl_answer_append_list("top_logprobs", &c->tops, out);
    mgl_text_append_string(out, ",");
    mgl_answer_append_list("text_offset", &c->offsets, out);
    mgl_text_append_string(out, "}");
  }
}

void mgl_answer_clear_logprobs(mgl_answer_choice *c) {
  mgl_text_clear(&c->tokens);
  mgl_text_clear(&c->logprobs);
  mgl_text_clear(&c->tops);
  mgl_text_clear(&c->offsets);
  mgl_text_clear(&c->token_ids);
}
