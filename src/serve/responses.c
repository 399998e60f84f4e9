#include "serve/responses.h"

#include <inttypes.h>
#include <string.h>

#include "base/alloc.h"
#include "request/json_text.h"

static void append_quoted(mgl_text *out, const char *text) {
  mgl_json_append_string(out, text, strlen(text));
}

static void append_text(const mgl_answer *answer, mgl_text *out) {
  const mgl_text *text = &answer->choices[0].text;
  out->failed = out->failed || text->failed;
  mgl_json_append_string(out, text->data == NULL ? "" : text->data, text->bytes);
}

static bool is_cut(const mgl_answer *answer) {
  return answer->choices[0].finish == MEGALITH_FINISH_LENGTH;
}

static void append_part(const mgl_answer *answer, bool is_whole, mgl_text *out) {
  mgl_text_append_string(out,
                         "{\"type\":\"output_text\",\"annotations\":[],\"logprobs\":[],\"text\":");
  if (is_whole) {
    append_text(answer, out);
  } else {
    mgl_text_append_string(out, "\"\"");
  }
  mgl_text_append_string(out, "}");
}

static void append_item(const mgl_answer *answer, bool is_whole, mgl_text *out) {
  mgl_text_format(
      out, "{\"type\":\"message\",\"id\":\"msg-%s\",\"role\":\"assistant\",\"status\":\"%s\",",
      answer->id + strlen("resp-"),
      !is_whole        ? "in_progress"
      : is_cut(answer) ? "incomplete"
                       : "completed");
  mgl_text_append_string(out, "\"content\":[");
  if (is_whole) {
    append_part(answer, true, out);
  }
  mgl_text_append_string(out, "]}");
}

static void append_usage(const mgl_answer *answer, mgl_text *out) {
  uint64_t generated = answer->choices[0].token_count;
  mgl_text_format(out,
                  "{\"input_tokens\":%" PRIu64
                  ",\"input_tokens_details\":{\"cached_tokens\":0},\"output_tokens\":%" PRIu64
                  ",\"output_tokens_details\":{\"reasoning_tokens\":0},\"total_tokens\":%" PRIu64
                  "}",
                  answer->prompt_tokens, generated, answer->prompt_tokens + generated);
}

// The format as it was asked for.
static void append_format(const json_t *text, mgl_text *out) {
  char *asked = json_object_get(text, "format") == NULL ? NULL : json_dumps(text, JSON_COMPACT);
  mgl_text_append_string(out, asked == NULL ? "{\"format\":{\"type\":\"text\"}}" : asked);
  mgl_free(asked);
}

static void append_response(const mgl_answer *answer, bool is_whole, mgl_text *out) {
  const mgl_ask *ask = answer->ask;
  const char *status = !is_whole ? "in_progress" : is_cut(answer) ? "incomplete" : "completed";
  mgl_text_append_string(out, "{\"id\":");
  append_quoted(out, answer->id);
  mgl_text_format(out, ",\"object\":\"response\",\"created_at\":%" PRId64 ",\"status\":\"%s\",",
                  answer->created, status);
  mgl_text_append_string(out, "\"error\":null,\"incomplete_details\":");
  mgl_text_append_string(
      out, is_whole && is_cut(answer) ? "{\"reason\":\"max_output_tokens\"}" : "null");
  mgl_text_append_string(out, ",\"instructions\":");
  if (ask->instructions == NULL) {
    mgl_text_append_string(out, "null");
  } else {
    mgl_json_append_string(out, json_string_value(ask->instructions),
                           json_string_length(ask->instructions));
  }
  mgl_text_append_string(out, ",\"max_output_tokens\":");
  mgl_text_format(out, ask->max_tokens == 0 ? "null" : "%u", ask->max_tokens);
  mgl_text_append_string(out, ",\"model\":");
  append_quoted(out, answer->model_name);
  mgl_text_append_string(out, ",\"output\":[");
  if (is_whole) {
    append_item(answer, true, out);
  }
  mgl_text_append_string(out, "],\"parallel_tool_calls\":true,\"previous_response_id\":null,");
  mgl_text_format(out, "\"store\":false,\"temperature\":%.17g,\"top_p\":%.17g,",
                  ask->sampling.temperature, ask->sampling.top_p == 0 ? 1 : ask->sampling.top_p);
  mgl_text_append_string(out, "\"text\":");
  append_format(json_object_get(ask->root, "text"), out);
  mgl_text_append_string(out,
                         ",\"tool_choice\":\"auto\",\"tools\":[],\"truncation\":\"disabled\","
                         "\"metadata\":{},\"usage\":");
  if (is_whole) {
    append_usage(answer, out);
  } else {
    mgl_text_append_string(out, "null");
  }
  mgl_text_append_string(out, "}");
}

// --- events --------------------------------------------------------------------------------------

static void begin_event(mgl_answer *answer, const char *type, mgl_text *out) {
  mgl_text_format(out, "event: %s\ndata: {\"type\":\"%s\",\"sequence_number\":%u", type, type,
                  answer->event_count++);
}

static void end_event(mgl_text *out) {
  mgl_text_append_string(out, "}\n\n");
}

// "item_id" and where it stands; of a part, the part's place too.
static void append_place(const mgl_answer *answer, bool is_part, mgl_text *out) {
  mgl_text_format(out, ",\"item_id\":\"msg-%s\",\"output_index\":0%s", answer->id + strlen("resp-"),
                  is_part ? ",\"content_index\":0" : "");
}

static void append_response_event(mgl_answer *answer, const char *type, bool is_whole,
                                  mgl_text *out) {
  begin_event(answer, type, out);
  mgl_text_append_string(out, ",\"response\":");
  append_response(answer, is_whole, out);
  end_event(out);
}

static void append_item_event(mgl_answer *answer, const char *type, bool is_whole, mgl_text *out) {
  begin_event(answer, type, out);
  mgl_text_append_string(out, ",\"output_index\":0,\"item\":");
  append_item(answer, is_whole, out);
  end_event(out);
}

static void append_part_event(mgl_answer *answer, const char *type, bool is_whole, mgl_text *out) {
  begin_event(answer, type, out);
  append_place(answer, true, out);
  mgl_text_append_string(out, ",\"part\":");
  append_part(answer, is_whole, out);
  end_event(out);
}

static void begin_stream(mgl_answer *answer, mgl_text *out) {
  append_response_event(answer, "response.created", false, out);
  append_response_event(answer, "response.in_progress", false, out);
  append_item_event(answer, "response.output_item.added", false, out);
  append_part_event(answer, "response.content_part.added", false, out);
}

void mgl_responses_output(mgl_answer *answer, const megalith_output *output, mgl_text *events) {
  mgl_answer_choice *c = &answer->choices[0];
  mgl_text_append(&c->text, output->text, output->text_bytes);
  if (!answer->ask->stream) {
    return;
  }
  if (!c->is_begun) {
    c->is_begun = true;
    begin_stream(answer, events);
  }
  if (output->text_bytes > 0) {
    begin_event(answer, "response.output_text.delta", events);
    append_place(answer, true, events);
    mgl_text_append_string(events, ",\"logprobs\":[],\"delta\":");
    mgl_json_append_string(events, output->text, output->text_bytes);
    end_event(events);
  }
}

void mgl_responses_end(mgl_answer *answer, mgl_text *out) {
  if (!answer->ask->stream) {
    append_response(answer, true, out);
    return;
  }
  begin_event(answer, "response.output_text.done", out);
  append_place(answer, true, out);
  mgl_text_append_string(out, ",\"logprobs\":[],\"text\":");
  append_text(answer, out);
  end_event(out);
  append_part_event(answer, "response.content_part.done", true, out);
  append_item_event(answer, "response.output_item.done", true, out);
  append_response_event(answer, is_cut(answer) ? "response.incomplete" : "response.completed", true,
                        out);
}
