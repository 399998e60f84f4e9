#include "device/compilation.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/file.h"
#include "base/json.h"
#include "base/words.h"

typedef enum value_kind {
  KIND_PRESET,
  KIND_LEVEL,
  KIND_MODE,
  KIND_BOOL,
  KIND_SIZES,
  KIND_NAMES,
  KIND_COMPILE_SIZES,
  KIND_PATH,
  KIND_COMPILER,
  KIND_BALANCE,
  KIND_VARIANTS,
} value_kind;

static const struct {
  const char *name, *alias;
  value_kind kind;
} settings[MGL_SET_COUNT] = {
#define MGL_SETTING(enum_name, name, alias, kind) {name, alias, KIND_##kind},
#include "device/compilation.def"
};

static const char *const compilers[MGL_COMPILER_COUNT] = {"nvrtc", "nvcc"};

// The leaves of the question what a run is for.
static const struct {
  const char *name;
  mgl_compile_level level;
  mgl_graph_mode graphs;
} presets[] = {
    {"debug", MGL_LEVEL_EAGER, MGL_GRAPHS_NONE},
    {"check", MGL_LEVEL_CHECK, MGL_GRAPHS_NONE},
    {"compiled", MGL_LEVEL_COMPILED, MGL_GRAPHS_NONE},
    {"serving", MGL_LEVEL_PIECEWISE, MGL_GRAPHS_PIECEWISE},
    {"uniform", MGL_LEVEL_PIECEWISE, MGL_GRAPHS_FULL},
    {"decode-instance", MGL_LEVEL_PIECEWISE, MGL_GRAPHS_FULL_DECODE_ONLY},
    {"fastest-graphs", MGL_LEVEL_PIECEWISE, MGL_GRAPHS_FULL_AND_PIECEWISE},
    {"fastest", MGL_LEVEL_PIECEWISE, MGL_GRAPHS_MEGA},
};

enum { PRESETS = sizeof presets / sizeof *presets };

const char *mgl_preset_name(uint32_t index) {
  return index < PRESETS ? presets[index].name : NULL;
}

void mgl_compilation_init(mgl_compilation *c) {
  *c = (mgl_compilation){.use_graphs = true,
                         .use_compiler = true,
                         .level = MGL_LEVEL_PIECEWISE,
                         .graph_mode = MGL_GRAPHS_MEGA};
}

static bool has(const mgl_compilation *c, mgl_compilation_setting setting) {
  return (c->given >> setting & 1) != 0;
}

// --- one value -----------------------------------------------------------------------------------

static mgl_status read_bool(const char *text, bool *out, mgl_error *err) {
  *out = strcmp(text, "true") == 0;
  return *out || strcmp(text, "false") == 0
             ? MGL_OK
             : mgl_error_set(err, MGL_ERR_ARGUMENT, "expected true or false, found \"%.40s\"",
                             text);
}

static mgl_status read_number(const char *text, size_t bytes, const char *what, uint32_t most,
                              uint32_t *out, mgl_error *err) {
  char digits[16] = "";
  size_t i = 0;
  while (i < bytes && isdigit((unsigned char)text[i])) {
    i++;
  }
  if (i == bytes && bytes > 0 && bytes < sizeof digits) {
    memcpy(digits, text, bytes);
  }
  unsigned long long value = strtoull(digits, NULL, 10);
  if (digits[0] == 0 || value > most) {
    return mgl_error_set(err, MGL_ERR_ARGUMENT, "expected %s to %u, found \"%.*s\"", what, most,
                         (int)(bytes < 40 ? bytes : 40), text);
  }
  *out = (uint32_t)value;
  return MGL_OK;
}

static mgl_status add_size(mgl_size_list *list, const char *text, size_t bytes, mgl_error *err) {
  uint32_t size = 0;
  MGL_TRY(read_number(text, bytes, "sizes in tokens, each a whole number of 1",
                      MGL_MAX_ITERATION_TOKENS, &size, err));
  if (size == 0) {
    return mgl_error_set(err, MGL_ERR_ARGUMENT,
                         "expected sizes in tokens, each a whole number of 1 to %d, found 0",
                         MGL_MAX_ITERATION_TOKENS);
  }
  for (uint32_t i = 0; i < list->count; i++) {
    if (list->items[i] == size) {
      return mgl_error_set(err, MGL_ERR_ARGUMENT, "expected each size once, found %u twice", size);
    }
  }
  if (list->count == MGL_MAX_GRAPH_SIZES) {
    return mgl_error_set(err, MGL_ERR_LIMIT, "expected at most %d sizes", MGL_MAX_GRAPH_SIZES);
  }
  list->items[list->count++] = size;
  return MGL_OK;
}

static mgl_status add_name(mgl_compilation *c, const char *text, size_t bytes, mgl_error *err) {
  if (bytes == 0 || bytes >= MGL_MAX_OP_NAME_BYTES) {
    return mgl_error_set(err, MGL_ERR_ARGUMENT,
                         "expected names of ops of 1 to %d bytes, found \"%.*s\"",
                         MGL_MAX_OP_NAME_BYTES - 1, (int)(bytes < 40 ? bytes : 40), text);
  }
  if (c->splitting_op_count == MGL_MAX_SPLITTING_OPS) {
    return mgl_error_set(err, MGL_ERR_LIMIT, "expected at most %d names", MGL_MAX_SPLITTING_OPS);
  }
  for (uint32_t i = 0; i < c->splitting_op_count; i++) {
    if (strlen(c->splitting_ops[i]) == bytes && memcmp(c->splitting_ops[i], text, bytes) == 0) {
      return mgl_error_set(err, MGL_ERR_ARGUMENT, "expected each op once, found \"%.*s\" twice",
                           (int)bytes, text);
    }
  }
  memcpy(c->splitting_ops[c->splitting_op_count], text, bytes);
  c->splitting_ops[c->splitting_op_count++][bytes] = 0;
  return MGL_OK;
}

static bool is_word(const char *text, size_t bytes, const char *word) {
  return strlen(word) == bytes && memcmp(text, word, bytes) == 0;
}

static mgl_status add_compiler(mgl_compilation *c, const char *text, size_t bytes, mgl_error *err) {
  static const char key[] = "compiler=", tune[] = "max_autotune=";
  for (int i = 0; i < MGL_COMPILER_COUNT; i++) {
    if (bytes > sizeof key - 1 && memcmp(text, key, sizeof key - 1) == 0 &&
        is_word(text + sizeof key - 1, bytes - (sizeof key - 1), compilers[i])) {
      c->compiler = (mgl_device_compiler)i;
      return MGL_OK;
    }
  }
  if (bytes >= sizeof tune - 1 && memcmp(text, tune, sizeof tune - 1) == 0) {
    return is_word(text, bytes, "max_autotune=false")
               ? MGL_OK
               : mgl_error_set(
                     err, MGL_ERR_UNSUPPORTED,
                     "max_autotune: sizes of tiles are constants of the kernels, measured "
                     "beforehand; expected false, or leave it out");
  }
  return mgl_error_set(err, MGL_ERR_ARGUMENT,
                       "expected \"compiler\": \"nvrtc\" or \"nvcc\", found \"%.*s\"",
                       (int)(bytes < 60 ? bytes : 60), text);
}

static mgl_status add_compile_size(mgl_compilation *c, const char *text, size_t bytes,
                                   mgl_error *err) {
  if (is_word(text, bytes, "capture_sizes") || is_word(text, bytes, "cudagraph_capture_sizes")) {
    c->compile_capture_sizes = true;
    return MGL_OK;
  }
  return add_size(&c->compile_sizes, text, bytes, err);
}

// Each part between commas.
static mgl_status read_list(mgl_compilation *c, mgl_compilation_setting setting, const char *text,
                            mgl_error *err) {
  mgl_size_list *sizes = setting == MGL_SET_CAPTURE_SIZES ? &c->capture_sizes : &c->graph_sizes;
  switch (settings[setting].kind) {
    case KIND_SIZES: sizes->count = 0; break;
    case KIND_NAMES: c->splitting_op_count = 0; break;
    case KIND_COMPILE_SIZES:
      c->compile_sizes.count = 0;
      c->compile_capture_sizes = false;
      break;
    case KIND_VARIANTS: c->variants = (mgl_cpu_variants){0}; break;
    default: break;
  }
  if (text[0] == 0) {
    return mgl_error_set(err, MGL_ERR_ARGUMENT, "expected at least one value, found none");
  }
  for (const char *at = text;; at++) {
    size_t bytes = strcspn(at, ",");
    switch (settings[setting].kind) {
      case KIND_SIZES: MGL_TRY(add_size(sizes, at, bytes, err)); break;
      case KIND_NAMES: MGL_TRY(add_name(c, at, bytes, err)); break;
      case KIND_COMPILER: MGL_TRY(add_compiler(c, at, bytes, err)); break;
      case KIND_VARIANTS: MGL_TRY(mgl_cpu_variants_set(&c->variants, at, bytes, err)); break;
      default: MGL_TRY(add_compile_size(c, at, bytes, err)); break;
    }
    at += bytes;
    if (*at == 0) {
      return MGL_OK;
    }
  }
}

static mgl_status read_path(const char *text, char out[MGL_COMPILATION_PATH_BYTES],
                            mgl_error *err) {
  size_t bytes = strlen(text);
  if (bytes == 0 || bytes >= MGL_COMPILATION_PATH_BYTES) {
    return mgl_error_set(err, MGL_ERR_ARGUMENT,
                         "expected the path of a folder, of 1 to %d bytes, found %zu bytes",
                         MGL_COMPILATION_PATH_BYTES - 1, bytes);
  }
  memcpy(out, text, bytes + 1);
  return MGL_OK;
}

static mgl_status read_preset(mgl_compilation *c, const char *text, mgl_error *err) {
  for (size_t i = 0; i < PRESETS; i++) {
    if (strcmp(presets[i].name, text) == 0) {
      // What is said beside the preset counts, before or behind it.
      c->level = has(c, MGL_SET_LEVEL) ? c->level : presets[i].level;
      c->graph_mode = has(c, MGL_SET_GRAPH_MODE) ? c->graph_mode : presets[i].graphs;
      return MGL_OK;
    }
  }
  return mgl_error_set(err, MGL_ERR_ARGUMENT,
                       "expected debug, check, compiled, serving, uniform, decode-instance, "
                       "fastest-graphs or fastest, found \"%.40s\"",
                       text);
}

static mgl_status read_value(mgl_compilation *c, mgl_compilation_setting setting, const char *text,
                             mgl_error *err) {
  bool *flag = setting == MGL_SET_USE_GRAPHS      ? &c->use_graphs
               : setting == MGL_SET_COPY_INPUTS   ? &c->copy_inputs
               : setting == MGL_SET_USE_COMPILER  ? &c->use_compiler
               : setting == MGL_SET_ENFORCE_EAGER ? &c->enforce_eager
                                                  : &c->check_numbers;
  uint32_t level = 0;
  switch (settings[setting].kind) {
    case KIND_PRESET: return read_preset(c, text, err);
    case KIND_LEVEL:
      MGL_TRY(read_number(text, strlen(text), "a level of 0", MGL_LEVEL_COUNT - 1, &level, err));
      c->level = (mgl_compile_level)level;
      return MGL_OK;
    case KIND_MODE: return mgl_graph_mode_parse(text, &c->graph_mode, err);
    case KIND_BALANCE: return mgl_balance_parse(text, &c->expert_balance, err);
    case KIND_BOOL: return read_bool(text, flag, err);
    case KIND_PATH:
      return read_path(text, setting == MGL_SET_CACHE_DIR ? c->cache_dir : c->debug_dump_path, err);
    default: return read_list(c, setting, text, err);
  }
}

// --- settings by name ----------------------------------------------------------------------------

static mgl_status find_setting(const char *where, const char *name, mgl_compilation_setting *out,
                               mgl_error *err) {
  const char *names[MGL_SET_COUNT];
  char meant[MGL_MEANT_BYTES];
  for (int i = 0; i < MGL_SET_COUNT; i++) {
    names[i] = settings[i].name;
    if (strcmp(name, settings[i].name) == 0 ||
        (settings[i].alias[0] != 0 && strcmp(name, settings[i].alias) == 0)) {
      *out = (mgl_compilation_setting)i;
      return MGL_OK;
    }
  }
  if (strcmp(name, "graph_bs") == 0) {
    return mgl_error_set(err, MGL_ERR_ARGUMENT,
                         "%sgraph_bs is what capture_sizes and graph_sizes come to: expected one "
                         "of these",
                         where);
  }
  mgl_words_ask("", name, names, MGL_SET_COUNT, meant);
  return mgl_error_set(err, MGL_ERR_ARGUMENT, "%sunknown setting \"%.40s\"%s", where, name, meant);
}

mgl_status mgl_compilation_set(mgl_compilation *c, const char *where, const char *name,
                               const char *text, mgl_error *err) {
  mgl_compilation_setting setting = MGL_SET_COUNT;
  MGL_TRY(find_setting(where, name, &setting, err));
  mgl_status status = read_value(c, setting, text, err);
  if (status != MGL_OK) {
    mgl_error_prefix(err, "%s%s", where, name);
    return status;
  }
  c->given |= 1u << setting;
  return MGL_OK;
}

mgl_status mgl_compilation_set_mode(mgl_compilation *c, mgl_mode mode, mgl_error *err) {
  if (has(c, MGL_SET_LEVEL) || has(c, MGL_SET_GRAPH_MODE) || has(c, MGL_SET_PRESET) ||
      has(c, MGL_SET_ENFORCE_EAGER)) {
    return mgl_error_set(err, MGL_ERR_ARGUMENT,
                         "mode %s: expected it alone, found level, graph_mode, preset or "
                         "enforce_eager beside it, which say the same",
                         mgl_mode_name(mode));
  }
  c->mode_given = true;
  c->graph_mode = mgl_mode_graphs(mode);
  c->level = mode == MGL_MODE_EAGER      ? MGL_LEVEL_EAGER
             : mode == MGL_MODE_COMPILED ? MGL_LEVEL_COMPILED
                                         : MGL_LEVEL_PIECEWISE;
  return MGL_OK;
}

// --- JSON ----------------------------------------------------------------------------------------

// A value that is no list or object, as text.
static mgl_status add_plain(const json_t *value, mgl_text *out, mgl_error *err) {
  const char *string = mgl_json_plain_string(value);
  if (json_is_integer(value)) {
    mgl_text_format(out, "%lld", (long long)json_integer_value(value));
  } else if (json_is_boolean(value)) {
    mgl_text_append_string(out, json_is_true(value) ? "true" : "false");
  } else if (string != NULL) {
    mgl_text_append_string(out, string);
  } else {
    return mgl_error_set(err, MGL_ERR_FORMAT,
                         "expected a whole number, a string, true, false or a list of them");
  }
  return mgl_text_check(out, err);
}

static mgl_status text_of(const json_t *value, mgl_text *out, mgl_error *err) {
  const char *key = NULL;
  json_t *item = NULL;
  size_t index = 0;
  if (json_is_array(value)) {
    json_array_foreach((json_t *)value, index, item) {
      mgl_text_append_string(out, index == 0 ? "" : ",");
      MGL_TRY(add_plain(item, out, err));
    }
    return mgl_text_check(out, err);
  }
  if (json_is_object(value)) {
    json_object_foreach((json_t *)value, key, item) {
      mgl_text_format(out, "%s%s=", index++ == 0 ? "" : ",", key);
      MGL_TRY(add_plain(item, out, err));
    }
    return mgl_text_check(out, err);
  }
  return add_plain(value, out, err);
}

// A setting's value must be a list exactly where the setting is one.
static mgl_status check_shape(mgl_compilation_setting setting, const json_t *value,
                              mgl_error *err) {
  value_kind kind = settings[setting].kind;
  bool is_list = kind == KIND_SIZES || kind == KIND_NAMES || kind == KIND_COMPILE_SIZES;
  bool is_object = kind == KIND_COMPILER || kind == KIND_VARIANTS;
  if (is_object != json_is_object(value)) {
    return mgl_error_set(err, MGL_ERR_FORMAT, "expected %s", is_object ? "an object" : "no object");
  }
  if (is_list != json_is_array(value) && !is_object) {
    return mgl_error_set(err, MGL_ERR_FORMAT, "expected %s", is_list ? "a list" : "no list");
  }
  bool wants_number = kind == KIND_LEVEL;
  if (wants_number && !json_is_integer(value)) {
    return mgl_error_set(err, MGL_ERR_FORMAT, "expected a whole number");
  }
  if (kind == KIND_BOOL && !json_is_boolean(value)) {
    return mgl_error_set(err, MGL_ERR_FORMAT, "expected true or false");
  }
  bool wants_string =
      kind == KIND_MODE || kind == KIND_PATH || kind == KIND_PRESET || kind == KIND_BALANCE;
  return wants_string && !json_is_string(value)
             ? mgl_error_set(err, MGL_ERR_FORMAT, "expected a string")
             : MGL_OK;
}

static mgl_status set_member(mgl_compilation *c, const char *where, const char *name,
                             const json_t *value, mgl_error *err) {
  mgl_compilation_setting setting = MGL_SET_COUNT;
  mgl_text text = {0};
  if (json_is_null(value)) {
    return MGL_OK;  // as if it were not there
  }
  MGL_TRY(find_setting(where, name, &setting, err));
  mgl_status status = check_shape(setting, value, err);
  if (status == MGL_OK) {
    status = text_of(value, &text, err);
  }
  if (status != MGL_OK) {
    mgl_error_prefix(err, "%s%s", where, name);
  } else {
    status = mgl_compilation_set(c, where, name, text.data == NULL ? "" : text.data, err);
  }
  mgl_text_free(&text);
  return status;
}

mgl_status mgl_compilation_read(mgl_compilation *c, const char *where, const char *text,
                                mgl_error *err) {
  char prefix[MGL_COMPILATION_PATH_BYTES + 4];
  char *file = NULL;
  size_t bytes = strlen(text);
  json_t *root = NULL;
  const char *name = NULL;
  json_t *value = NULL;
  const char *start = text + strspn(text, " \t\r\n");
  const char *from = *start == '{' ? where : text;
  if (*start == 0) {
    return mgl_error_set(
        err, MGL_ERR_ARGUMENT,
        "%s: expected a JSON object or the path of a file with one, found an empty "
        "text",
        where);
  }
  if (*start != '{') {
    MGL_TRY(mgl_file_read(text, MGL_COMPILATION_MAX_BYTES, &file, &bytes, err));
    text = file;
  } else if (bytes > MGL_COMPILATION_MAX_BYTES) {
    return mgl_error_set(err, MGL_ERR_LIMIT, "%s: expected at most %d bytes, found %zu", where,
                         MGL_COMPILATION_MAX_BYTES, bytes);
  }
  mgl_status status = mgl_json_parse(text, bytes, from, &root, err);
  if (status == MGL_OK && !json_is_object(root)) {
    status = mgl_error_set(err, MGL_ERR_FORMAT, "%s: expected a JSON object", from);
  }
  (void)snprintf(prefix, sizeof prefix, "%s: ", from);
  if (status == MGL_OK) {
    json_object_foreach(root, name, value) {
      status = set_member(c, prefix, name, value, err);
      if (status != MGL_OK) {
        break;
      }
    }
  }
  json_decref(root);
  mgl_free(file);
  return status;
}

static void print_sizes(const mgl_size_list *list, mgl_text *out) {
  for (uint32_t i = 0; i < list->count; i++) {
    mgl_text_format(out, "%s%u", i == 0 ? "" : ", ", list->items[i]);
  }
}

static void print_string(const char *string, mgl_text *out) {
  mgl_text_append_string(out, "\"");
  for (const char *c = string; *c != 0; c++) {
    if (*c == '"' || *c == '\\' || (unsigned char)*c < ' ') {
      mgl_text_format(out, "\\u%04x", (unsigned)(unsigned char)*c);
    } else {
      mgl_text_append(out, c, 1);
    }
  }
  mgl_text_append_string(out, "\"");
}

static void print_variants(const mgl_cpu_variants *v, mgl_text *out) {
  const char *comma = "";
  mgl_text_append_string(out, "{");
  for (uint32_t i = 0; i < MGL_CPU_VARIANT_COUNT; i++) {
    if (v->asked[i] != 0) {
      mgl_text_format(out, "%s\"%s\": \"%s\"", comma, mgl_cpu_variant_name(i),
                      mgl_simd_name((mgl_simd)(v->asked[i] - 1)));
      comma = ", ";
    }
  }
  mgl_text_append_string(out, "}");
}

static void print_value(const mgl_compilation *c, mgl_compilation_setting setting, mgl_text *out) {
  switch (setting) {
    case MGL_SET_LEVEL: mgl_text_format(out, "%d", (int)c->level); return;
    case MGL_SET_GRAPH_MODE: print_string(mgl_graph_mode_name(c->graph_mode), out); return;
    case MGL_SET_VARIANT: print_variants(&c->variants, out); return;
    case MGL_SET_EXPERT_BALANCE:
      print_string(mgl_balance_name((uint32_t)c->expert_balance), out);
      return;
    case MGL_SET_DEBUG_DUMP_PATH: print_string(c->debug_dump_path, out); return;
    case MGL_SET_CACHE_DIR: print_string(c->cache_dir, out); return;
    case MGL_SET_COMPILER_CONFIG:
      mgl_text_format(out, "{\"compiler\": \"%s\"}", compilers[c->compiler]);
      return;
    case MGL_SET_USE_GRAPHS:
    case MGL_SET_COPY_INPUTS:
    case MGL_SET_USE_COMPILER:
    case MGL_SET_ENFORCE_EAGER:
    case MGL_SET_CHECK_NUMBERS: {
      bool value = setting == MGL_SET_USE_GRAPHS      ? c->use_graphs
                   : setting == MGL_SET_COPY_INPUTS   ? c->copy_inputs
                   : setting == MGL_SET_USE_COMPILER  ? c->use_compiler
                   : setting == MGL_SET_ENFORCE_EAGER ? c->enforce_eager
                                                      : c->check_numbers;
      mgl_text_append_string(out, value ? "true" : "false");
      return;
    }
    default: break;
  }
  mgl_text_append_string(out, "[");
  if (setting == MGL_SET_CAPTURE_SIZES || setting == MGL_SET_GRAPH_SIZES) {
    print_sizes(setting == MGL_SET_CAPTURE_SIZES ? &c->capture_sizes : &c->graph_sizes, out);
  } else if (setting == MGL_SET_COMPILE_SIZES) {
    print_sizes(&c->compile_sizes, out);
    const char *comma = c->compile_sizes.count > 0 ? ", " : "";
    mgl_text_format(out, "%s", c->compile_capture_sizes ? comma : "");
    mgl_text_append_string(out, c->compile_capture_sizes ? "\"capture_sizes\"" : "");
  } else {
    for (uint32_t i = 0; i < c->splitting_op_count; i++) {
      mgl_text_append_string(out, i == 0 ? "" : ", ");
      print_string(c->splitting_ops[i], out);
    }
  }
  mgl_text_append_string(out, "]");
}

void mgl_compilation_print(const mgl_compilation *c, mgl_text *out) {
  uint32_t given = c->given;
  const char *comma = "";
  if (has(c, MGL_SET_PRESET) || c->mode_given) {  // as what they come to
    given = (given & ~(1u << MGL_SET_PRESET)) | 1u << MGL_SET_LEVEL | 1u << MGL_SET_GRAPH_MODE;
  }
  mgl_text_append_string(out, "{");
  for (int i = 0; i < MGL_SET_COUNT; i++) {
    if ((given >> i & 1) != 0) {
      mgl_text_format(out, "%s\"%s\": ", comma, settings[i].name);
      print_value(c, (mgl_compilation_setting)i, out);
      comma = ", ";
    }
  }
  mgl_text_append_string(out, "}");
}
