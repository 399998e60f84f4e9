#include "support/mixed_requests.h"

#include <assert.h>

static uint32_t next_random(uint64_t *state, uint32_t below) {
  *state = *state * 6364136223846793005u + 1442695040888963407u;
  return (uint32_t)(*state >> 33) % below;
}

static bool on_token(void *context, const mgl_generated_token *token) {
  mixed_served *s = context;
  mixed_answers *a = &s->answers;
  uint32_t at = a->counts[token->request]++;
  if (at >= MIXED_MOST_NEW || !(token->logprob <= 0)) {
    s->failed = true;
    return false;
  }
  a->tokens[token->request][at] = token->token;
  a->logprobs[token->request][at] = token->logprob;
  return true;
}

static bool on_iteration(void *context, const mgl_iteration *iteration) {
  mixed_served *s = context;
  bool prompt = iteration->prompt_tokens > 0, decode = iteration->decode_tokens > 0;
  s->prompts += prompt && !decode;
  s->decodes += decode && !prompt;
  s->both += prompt && decode;
  return true;
}

mgl_status mixed_requests_run(mgl_engine *engine, uint32_t count, uint32_t vocab, mixed_served *out,
                              mgl_error *err) {
  uint64_t state = 11;
  assert(count <= MIXED_MOST_REQUESTS);
  for (uint32_t i = 0; i < count; i++) {
    int32_t prompt[100];
    uint32_t number = 0;
    size_t prompt_count = 1 + next_random(&state, i % 5 == 0 ? 100 : 20);
    for (size_t j = 0; j < prompt_count; j++) {
      prompt[j] = (int32_t)next_random(&state, vocab);
    }
    const mgl_request request = {
        .prompt = prompt,
        .prompt_count = prompt_count,
        .max_new_tokens = 1 + next_random(&state, MIXED_MOST_NEW),
        .sampling = {.temperature = i % 2, .top_p = 1, .seed = i, .logprobs = true}};
    mgl_status status = mgl_engine_submit(engine, &request, &number, err);
    if (status != MGL_OK) {
      return status;
    }
    assert(number == i);
  }
  return mgl_engine_run(engine, on_token, on_iteration, out, err);
}
