// Method: an automaton over what is held. A part reads as far as it can, then either waits for more
// text, or hands on and drops what it has read and leaves the rest to the next part.
#include "serve/output_parser.h"

#include <string.h>

#include "base/alloc.h"
#include "base/json.h"

typedef enum mgl_output_part {
  PART_SAID,
  PART_THOUGHT,
  PART_MAYBE_CALL,  // llama3: at the beginning, behind the tag, and behind a call
  PART_MARKED,      // mistral: behind [TOOL_CALLS]
  PART_LIST,        // mistral: between calls of a list
  PART_NAME,        // mistral: in NAME[ARGS]
  PART_BLANKS,      // hermes: behind <tool_call>
  PART_CALL,
  PART_CLOSING,  // hermes: behind a call, in front of </tool_call>
} mgl_output_part;

static const char think[] = "<think>", end_think[] = "</think>";
static const char tool_call[] = "<tool_call>", end_tool_call[] = "</tool_call>";
static const char python_tag[] = "<|python_tag|>";
static const char tool_calls[] = "[TOOL_CALLS]", call_id[] = "[CALL_ID]", args[] = "[ARGS]";

enum { MAX_NAME_BYTES = 256 };

// --- what is held --------------------------------------------------------------------------------

static void drop(mgl_output_parser *p, size_t bytes) {
  if (bytes > 0) {
    memmove(p->held.data, p->held.data + bytes, p->held.bytes - bytes + 1);
    p->held.bytes -= bytes;
  }
  p->at = 0;
  p->mark_bytes = 0;
}

static void say(mgl_output_parser *p, size_t bytes, const mgl_output_sink *sink) {
  if (bytes > 0) {
    (p->part == PART_THOUGHT ? sink->thought : sink->said)(sink->context, p->held.data, bytes);
  }
  drop(p, bytes);
}

// The part was nothing: its mark is text, and what follows is looked at anew.
static void give_up(mgl_output_parser *p, const mgl_output_sink *sink) {
  p->part = PART_SAID;
  say(p, p->mark_bytes, sink);
}

static bool is_blank(char c) {
  return c == ' ' || c == '\t' || c == '\n' || c == '\r';
}

// Whether what is held goes on with a mark: 1, it does; 0, that is still open; -1, it does not.
static int goes_on_with(const mgl_output_parser *p, const char *mark) {
  size_t left = p->held.bytes - p->at;
  size_t bytes = strlen(mark);
  if (memcmp(p->held.data + p->at, mark, left < bytes ? left : bytes) != 0) {
    return -1;
  }
  return left >= bytes ? 1 : 0;
}

// Reads over blanks and, if there is one, a separator. False: nothing more is there.
static bool skip(mgl_output_parser *p, char separator) {
  while (p->at < p->held.bytes &&
         (is_blank(p->held.data[p->at]) || (separator != 0 && p->held.data[p->at] == separator))) {
    p->at++;
  }
  return p->at < p->held.bytes;
}

// --- marks ---------------------------------------------------------------------------------------

typedef struct mark {
  const char *text;
  mgl_output_part begins;
} mark;

// Those that end a thought, or what is said. Returns how many.
static size_t list_marks(const mgl_output_parser *p, mark out[2]) {
  size_t count = 0;
  if (p->part == PART_THOUGHT) {
    out[count++] = (mark){end_think, p->tools == MGL_TOOLS_LLAMA3 ? PART_MAYBE_CALL : PART_SAID};
    return count;
  }
  if (p->finds_thoughts) {
    out[count++] = (mark){think, PART_THOUGHT};
  }
  switch (p->tools) {
    case MGL_TOOLS_HERMES: out[count++] = (mark){tool_call, PART_BLANKS}; break;
    case MGL_TOOLS_LLAMA3: out[count++] = (mark){python_tag, PART_MAYBE_CALL}; break;
    case MGL_TOOLS_MISTRAL: out[count++] = (mark){tool_calls, PART_MARKED}; break;
    case MGL_TOOLS_NONE: break;
  }
  return count;
}

// How many bytes at the end of what is held may be the beginning of a mark.
static size_t count_waiting(const mgl_output_parser *p, const char *text) {
  size_t most = strlen(text) - 1;
  size_t n = most < p->held.bytes ? most : p->held.bytes;
  while (n > 0 && memcmp(p->held.data + p->held.bytes - n, text, n) != 0) {
    n--;
  }
  return n;
}

// What is said or thought, up to the next mark. False: more text is needed.
static bool read_plain(mgl_output_parser *p, const mgl_output_sink *sink) {
  mark marks[2];
  const mark *found = NULL;
  size_t at = p->held.bytes;
  size_t waiting = 0;
  size_t count = list_marks(p, marks);
  for (size_t i = 0; i < count; i++) {
    const char *place = memmem(p->held.data, p->held.bytes, marks[i].text, strlen(marks[i].text));
    size_t waits = count_waiting(p, marks[i].text);
    waiting = waits > waiting ? waits : waiting;
    if (place != NULL && (size_t)(place - p->held.data) < at) {
      found = &marks[i];
      at = (size_t)(place - p->held.data);
    }
  }
  if (found == NULL) {
    say(p, p->held.bytes - waiting, sink);
    return false;
  }
  say(p, at, sink);
  bool is_thought = p->part == PART_THOUGHT || found->begins == PART_THOUGHT;
  p->part = (int)found->begins;
  p->mark_bytes = is_thought ? 0 : strlen(found->text);
  p->at = p->mark_bytes;
  if (is_thought) {
    drop(p, strlen(found->text));
  }
  return true;
}

// --- calls ---------------------------------------------------------------------------------------

static void begin_call(mgl_output_parser *p, bool is_arguments) {
  p->part = PART_CALL;
  p->is_told = false;
  p->told = 0;
  p->object_at = p->at;
  p->scan =
      (mgl_call_scan){.is_arguments = is_arguments, .is_strict = p->tools == MGL_TOOLS_LLAMA3};
}

// Tells the name of a call, of which the object has the JSON, with quotes. False: it is no text.
static bool tell_name(const mgl_output_parser *p, const mgl_output_sink *sink) {
  mgl_text list = {0};
  json_t *root = NULL;
  mgl_text_append_string(&list, "[");
  mgl_text_append(&list, p->held.data + p->object_at + p->scan.name_at, p->scan.name_bytes);
  mgl_text_append_string(&list, "]");
  bool is_text =
      !list.failed && mgl_json_parse(list.data, list.bytes, "name", &root, NULL) == MGL_OK;
  const char *name = json_string_value(json_array_get(root, 0));
  is_text = is_text && name != NULL && strlen(name) <= MAX_NAME_BYTES;
  if (is_text) {
    sink->called(sink->context, name);
  }
  json_decref(root);
  mgl_text_free(&list);
  return is_text;
}

// Of NAME[ARGS]{...}, whose name stands behind the mark.
static void tell_plain_name(mgl_output_parser *p, const mgl_output_sink *sink) {
  char name[MAX_NAME_BYTES + 1];
  size_t begin = p->mark_bytes;
  while (is_blank(p->held.data[begin])) {
    begin++;
  }
  size_t bytes = strcspn(p->held.data + begin, "[{ \t\r\n");
  memcpy(name, p->held.data + begin, bytes);
  name[bytes] = 0;
  sink->called(sink->context, name);
}

static bool tell_call(mgl_output_parser *p, const mgl_output_sink *sink) {
  const mgl_call_scan *s = &p->scan;
  if (!p->is_told && s->is_arguments) {
    tell_plain_name(p, sink);
  } else if (!p->is_told && !tell_name(p, sink)) {
    return false;
  }
  p->is_told = true;
  size_t end = s->arguments_end > 0 ? s->arguments_end : s->at;
  size_t begin = p->told > s->arguments_at ? p->told : s->arguments_at;
  if (end > begin) {
    sink->argued(sink->context, p->held.data + p->object_at + begin, end - begin);
    p->told = end;
  }
  return true;
}

static int part_behind(const mgl_output_parser *p) {
  bool is_list = p->tools == MGL_TOOLS_MISTRAL && !p->scan.is_arguments;
  return p->tools == MGL_TOOLS_HERMES   ? PART_CLOSING
         : p->tools == MGL_TOOLS_LLAMA3 ? PART_MAYBE_CALL
         : is_list                      ? PART_LIST
                                        : PART_SAID;
}

static bool read_call(mgl_output_parser *p, const mgl_output_sink *sink) {
  mgl_call_scan *s = &p->scan;
  mgl_call_progress progress =
      mgl_call_scan_read(s, p->held.data + p->object_at, p->held.bytes - p->object_at);
  bool is_known = (s->is_arguments || s->name_bytes > 2) && s->has_arguments;
  bool tells = is_known && (progress == MGL_CALL_WHOLE || !p->holds_calls);
  if (p->held.bytes > MGL_MAX_TOOL_CALL_BYTES && progress == MGL_CALL_OPEN) {
    progress = MGL_CALL_BAD;
  }
  if (tells && !tell_call(p, sink)) {
    progress = MGL_CALL_BAD;
  }
  if (progress == MGL_CALL_OPEN) {
    return false;
  }
  if (progress == MGL_CALL_WHOLE) {
    drop(p, p->object_at + s->at);
    p->part = part_behind(p);
  } else if (p->is_told) {  // what has gone out cannot be taken back
    drop(p, p->object_at + (p->told > 0 ? p->told : s->at));
    p->part = PART_SAID;
  } else {
    give_up(p, sink);
  }
  return true;
}

// --- what stands around calls --------------------------------------------------------------------

static bool read_blanks(mgl_output_parser *p, const mgl_output_sink *sink) {
  if (!skip(p, 0)) {
    return false;
  }
  if (p->held.data[p->at] == '{') {
    begin_call(p, false);
  } else {
    give_up(p, sink);
  }
  return true;
}

static bool read_closing(mgl_output_parser *p) {
  if (!skip(p, 0)) {
    return false;
  }
  int found = goes_on_with(p, end_tool_call);
  if (found == 0) {
    return false;
  }
  if (found > 0) {
    drop(p, p->at + strlen(end_tool_call));
  }
  p->at = 0;
  p->part = PART_SAID;
  return true;
}

static bool read_maybe_call(mgl_output_parser *p, const mgl_output_sink *sink) {
  if (!skip(p, ';')) {
    return false;
  }
  if (p->held.data[p->at] == '{') {
    begin_call(p, false);
    return true;
  }
  int found = p->mark_bytes == 0 ? goes_on_with(p, python_tag) : -1;
  if (found == 0) {
    return false;
  }
  if (found > 0) {  // the blanks in front of it are its
    p->at += strlen(python_tag);
    p->mark_bytes = p->at;
  } else {
    give_up(p, sink);
  }
  return true;
}

static bool read_marked(mgl_output_parser *p, const mgl_output_sink *sink) {
  if (!skip(p, 0)) {
    return false;
  }
  char c = p->held.data[p->at];
  if (c == '[') {
    p->at++;
    p->part = PART_LIST;
  } else if (c == '{') {
    begin_call(p, false);
  } else if (c == ']' || c == '"') {
    give_up(p, sink);
  } else {
    p->part = PART_NAME;
  }
  return true;
}

static bool read_list(mgl_output_parser *p, const mgl_output_sink *sink) {
  if (!skip(p, ',')) {
    return false;
  }
  char c = p->held.data[p->at];
  if (c == '{') {
    begin_call(p, false);
  } else if (c == ']' && p->mark_bytes == 0) {
    drop(p, p->at + 1);
    p->part = PART_SAID;
  } else {
    give_up(p, sink);
  }
  return true;
}

static bool is_name(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
         c == '-' || c == '.' || c == '/' || c == ':';
}

// Behind the name: [CALL_ID] and an id, [ARGS], and the arguments.
static bool read_name(mgl_output_parser *p, const mgl_output_sink *sink) {
  size_t begin = p->at;
  while (p->at < p->held.bytes && is_name(p->held.data[p->at])) {
    p->at++;
  }
  size_t bytes = p->at - begin;
  size_t name_end = p->at;
  if (p->at < p->held.bytes && goes_on_with(p, call_id) > 0) {
    p->at += strlen(call_id);
    while (p->at < p->held.bytes && is_name(p->held.data[p->at])) {
      p->at++;
    }
  }
  bool is_open = !skip(p, 0) || goes_on_with(p, args) == 0 ||
                 (p->at == name_end && goes_on_with(p, call_id) == 0);
  if (!is_open && goes_on_with(p, args) > 0) {
    p->at += strlen(args);
    is_open = !skip(p, 0);
  }
  if (bytes == 0 || bytes > MAX_NAME_BYTES) {
    give_up(p, sink);
    return true;
  }
  if (is_open) {
    p->at = begin;  // from the name on, when there is more
    return false;
  }
  if (p->held.data[p->at] != '{') {
    give_up(p, sink);
    return true;
  }
  begin_call(p, true);
  return true;
}

// -------------------------------------------------------------------------------------------------

// Does one step. False: more text is needed.
static bool step(mgl_output_parser *p, const mgl_output_sink *sink) {
  switch ((mgl_output_part)p->part) {
    case PART_SAID:
    case PART_THOUGHT: return read_plain(p, sink);
    case PART_MAYBE_CALL: return read_maybe_call(p, sink);
    case PART_MARKED: return read_marked(p, sink);
    case PART_LIST: return read_list(p, sink);
    case PART_NAME: return read_name(p, sink);
    case PART_BLANKS: return read_blanks(p, sink);
    case PART_CALL: return read_call(p, sink);
    case PART_CLOSING: return read_closing(p);
  }
  return false;
}

static void advance(mgl_output_parser *p, const mgl_output_sink *sink) {
  while (!p->held.failed && p->held.bytes > 0 && step(p, sink)) {
  }
}

void mgl_output_parser_push(mgl_output_parser *parser, const char *text, size_t bytes,
                            const mgl_output_sink *sink) {
  mgl_output_parser *p = parser;
  if (!p->is_started) {
    p->is_started = true;
    p->part = p->starts_in_thought           ? PART_THOUGHT
              : p->tools == MGL_TOOLS_LLAMA3 ? PART_MAYBE_CALL
                                             : PART_SAID;
  }
  mgl_text_append(&p->held, text, bytes);
  advance(p, sink);
  if (p->held.bytes > MGL_MAX_TOOL_CALL_BYTES) {  // of blanks
    give_up(p, sink);
    advance(p, sink);
  }
}

void mgl_output_parser_finish(mgl_output_parser *parser, const mgl_output_sink *sink) {
  mgl_output_parser *p = parser;
  if (p->part == PART_CALL && p->is_told) {
    drop(p, p->object_at + (p->told > 0 ? p->told : p->scan.at));
  }
  if (p->part != PART_THOUGHT) {
    p->part = PART_SAID;
  }
  say(p, p->held.bytes, sink);
  p->part = PART_SAID;
}

void mgl_output_parser_free(mgl_output_parser *parser) {
  mgl_text_free(&parser->held);
}

// --- templates -----------------------------------------------------------------------------------

mgl_tool_format mgl_tool_format_of_template(const char *chat_template) {
  static const struct {
    const char *text;
    mgl_tool_format format;
  } signs[] = {
      {"[TOOL_CALLS]", MGL_TOOLS_MISTRAL},  {"[AVAILABLE_TOOLS]", MGL_TOOLS_MISTRAL},
      {"<|python_tag|>", MGL_TOOLS_LLAMA3}, {"Environment: ipython", MGL_TOOLS_LLAMA3},
      {"<tool_call>", MGL_TOOLS_HERMES},
  };
  for (size_t i = 0; i < sizeof signs / sizeof *signs; i++) {
    if (strstr(chat_template, signs[i].text) != NULL) {
      return signs[i].format;
    }
  }
  return MGL_TOOLS_NONE;
}

bool mgl_template_thinks(const char *chat_template) {
  return strstr(chat_template, think) != NULL || strstr(chat_template, end_think) != NULL;
}

bool mgl_prompt_is_in_thought(const char *prompt, size_t bytes) {
  while (bytes > 0 && is_blank(prompt[bytes - 1])) {
    bytes--;
  }
  size_t wanted = strlen(think);
  return bytes >= wanted && memcmp(prompt + bytes - wanted, think, wanted) == 0;
}
