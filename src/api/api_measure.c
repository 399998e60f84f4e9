// What an engine without work tells of itself: how fast it can read, when its tasks ran, and what
// probability its model gives to a text.
#include "api/api_parts.h"
#include "engine/score.h"

enum { CEILING_PASSES = 2 };

static mgl_status check_idle(const megalith_engine *engine, mgl_error *err) {
  MGL_TRY(mgl_api_may_drive(engine, err));
  return megalith_engine_has_work(engine)
             ? mgl_error_set(err, MGL_ERR_ARGUMENT, "expected an engine without work")
             : MGL_OK;
}

megalith_status megalith_engine_read_ceiling(megalith_engine *engine, double *bytes_per_s,
                                             megalith_error *error) {
  mgl_error err = {0};
  *bytes_per_s = 0;
  mgl_status status = check_idle(engine, &err);
  if (status == MGL_OK) {
    status = mgl_runner_read_ceiling(engine->runner, CEILING_PASSES, bytes_per_s, &err);
  }
  return mgl_api_report(status, &err, error);
}

megalith_status megalith_engine_trace(megalith_engine *engine, char *text, size_t capacity,
                                      size_t *bytes, megalith_error *error) {
  mgl_error err = {0};
  mgl_text all = {0};
  mgl_status status = check_idle(engine, &err);
  if (status == MGL_OK) {
    status = mgl_runner_trace(engine->runner, &all, &err);
  }
  return mgl_api_give_text(status, &all, text, capacity, bytes, &err, error);
}

// --- scores --------------------------------------------------------------------------------------

typedef struct listener {
  megalith_logits_callback *on_logits;
  void *context;
} listener;

static mgl_status hand_out(void *context, size_t position, const float *logits, mgl_error *err) {
  const listener *l = context;
  megalith_error error = {0};
  const megalith_status status = l->on_logits(l->context, position, logits, &error);
  return status == MEGALITH_OK ? MGL_OK : mgl_error_set(err, (mgl_status)status, "%s", error.text);
}

static mgl_status score(const megalith_engine *engine, const int32_t *tokens, size_t count,
                        double *logprobs, listener *to, mgl_error *err) {
  const mgl_score_request request = {.mode = engine->mode,
                                     .tokens = tokens,
                                     .count = count,
                                     .on_logits = to->on_logits != NULL ? hand_out : NULL,
                                     .context = to};
  MGL_TRY(check_idle(engine, err));
  if (!engine->scoring) {
    return mgl_error_set(err, MGL_ERR_ARGUMENT, "score: expected an engine created with scoring");
  }
  return mgl_score(engine->runner, &request, logprobs, err);
}

megalith_status megalith_engine_score(megalith_engine *engine, const int32_t *tokens, size_t count,
                                      double *logprobs, megalith_logits_callback *on_logits,
                                      void *context, megalith_error *error) {
  mgl_error err = {0};
  listener to = {.on_logits = on_logits, .context = context};
  return mgl_api_report(score(engine, tokens, count, logprobs, &to, &err), &err, error);
}
