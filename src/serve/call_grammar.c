// Method: parts (docs/grammars.md) as JSON. jansson's functions take over what they are given and
// answer NULL where something was NULL, so memory is checked once, at the end.
#include "serve/call_grammar.h"

#include <jansson.h>
#include <string.h>

#include "base/alloc.h"

static json_t *text_part(const char *text) {
  return json_pack("{s:s}", "text", text);
}

// A call's `{"name": "f", KEY: `, with what stands in front.
static json_t *opening(const char *before, const char *name, const char *key) {
  json_t *quoted = json_string(name);
  char *dumped = quoted == NULL ? NULL : json_dumps(quoted, JSON_ENCODE_ANY);
  json_t *part = dumped == NULL
                     ? NULL
                     : json_pack("{s:o}", "text",
                                 json_sprintf("%s{\"name\": %s, \"%s\": ", before, dumped, key));
  json_decref(quoted);
  mgl_free(dumped);
  return part;
}

// The arguments of a function, always an object.
static json_t *arguments_part(const json_t *function) {
  const json_t *given = json_object_get(function, "parameters");
  if (json_object_size(given) == 0) {
    return text_part("{}");
  }
  json_t *schema = json_copy((json_t *)(uintptr_t)given);
  if (json_object_get(schema, "type") == NULL) {
    (void)json_object_set_new(schema, "type", json_string("object"));
  }
  return json_pack("{s:o}", "schema", schema);
}

static json_t *sequence_of(json_t *items) {
  return json_pack("{s:o}", "sequence", items);
}

// One call of a function; is_plain: Mistral's NAME[ARGS]{...}.
static json_t *call_part(mgl_tool_format tools, const json_t *function, bool is_plain) {
  const char *name = json_string_value(json_object_get(function, "name"));
  json_t *arguments = arguments_part(function);
  if (is_plain) {
    return sequence_of(json_pack("[{s:s}, o, {s:s}, o]", "token", "[TOOL_CALLS]", text_part(name),
                                 "token", "[ARGS]", arguments));
  }
  const char *before = tools == MGL_TOOLS_HERMES ? "<tool_call>\n" : "";
  const char *after = tools == MGL_TOOLS_HERMES ? "}\n</tool_call>" : "}";
  const char *key = tools == MGL_TOOLS_LLAMA3 ? "parameters" : "arguments";
  return sequence_of(
      json_pack("[o, o, o]", opening(before, name, key), arguments, text_part(after)));
}

// A call of any function that may be called.
static json_t *any_call(const mgl_ask *ask, mgl_tool_format tools, bool is_plain) {
  json_t *list = json_array();
  size_t i = 0;
  json_t *tool = NULL;
  json_array_foreach((json_t *)(uintptr_t)ask->tools, i, tool) {
    const json_t *function = json_object_get(tool, "function");
    const char *name = json_string_value(json_object_get(function, "name"));
    if (ask->called_function == NULL || strcmp(ask->called_function, name) == 0) {
      if (json_array_append_new(list, call_part(tools, function, is_plain)) != 0) {
        json_decref(list);
        return NULL;
      }
    }
  }
  return json_pack("{s:o}", "any_of", list);
}

// One call, and more of them behind `between` if several are wanted.
static json_t *calls_part(const mgl_ask *ask, mgl_tool_format tools, bool is_plain,
                          const char *between) {
  json_t *first = any_call(ask, tools, is_plain);
  if (!ask->parallel_tool_calls || ask->called_function != NULL) {
    return first;
  }
  json_t *more =
      sequence_of(json_pack("[o, o]", text_part(between), any_call(ask, tools, is_plain)));
  return sequence_of(json_pack("[o, {s:o}]", first, "repeat", more));
}

static json_t *answer_part(const mgl_ask *ask, mgl_tool_format tools, const char *chat_template) {
  if (tools == MGL_TOOLS_MISTRAL && strstr(chat_template, "[ARGS]") != NULL) {
    return calls_part(ask, tools, true, "");
  }
  if (tools == MGL_TOOLS_MISTRAL) {
    return sequence_of(json_pack("[{s:s}, o, o, o]", "token", "[TOOL_CALLS]", text_part("["),
                                 calls_part(ask, tools, false, ", "), text_part("]")));
  }
  return calls_part(ask, tools, false, tools == MGL_TOOLS_HERMES ? "\n" : "; ");
}

// The answer behind a thought that the prompt has opened, or that the model may open.
static json_t *behind_thought(const mgl_ask *ask, json_t *answer) {
  json_t *thought = json_pack("[{s:s}, {s:s}, {s:s}]", "text_without", "</think>", "text",
                              "</think>", "regex", "[ \\n]{0,4}");
  if (ask->starts_in_thought) {
    return json_array_append_new(thought, answer) == 0 ? sequence_of(thought) : NULL;
  }
  json_t *opened = json_array();
  (void)json_array_append_new(opened, text_part("<think>"));
  (void)json_array_extend(opened, thought);
  json_decref(thought);
  return sequence_of(
      json_pack("[{s:o, s:i, s:i}, o]", "repeat", sequence_of(opened), "min", 0, "max", 1, answer));
}

mgl_status mgl_call_grammar_compile(const megalith_model *model, mgl_output_syntax syntax,
                                    mgl_ask *ask, mgl_error *err) {
  megalith_error error = {0};
  const char *chat_template = megalith_model_describe(model)->chat_template;
  if (syntax.tools == MGL_TOOLS_NONE) {
    return mgl_error_set(err, MGL_ERR_UNSUPPORTED,
                         "\"tool_choice\": expected auto or none: how this model writes calls is "
                         "not known (--tool-parser)");
  }
  json_t *root = answer_part(ask, syntax.tools, chat_template);
  root = syntax.finds_thoughts ? behind_thought(ask, root) : root;
  char *text = root == NULL ? NULL : json_dumps(root, JSON_COMPACT);
  json_decref(root);
  if (text == NULL) {
    return mgl_error_set(err, MGL_ERR_MEMORY, "out of memory for the grammar of calls");
  }
  megalith_grammar_options options = {
      .size = sizeof options, .kind = MEGALITH_GRAMMAR_PARTS, .text = text};
  megalith_status status = megalith_grammar_create(model, &options, &ask->grammar, &error);
  mgl_free(text);
  return status == MEGALITH_OK
             ? MGL_OK
             : mgl_error_set(err, (mgl_status)status, "\"tools\": %s", error.text);
}
