#include "app/client.h"

#include <stdio.h>
#include <string.h>

#include "app/compile_options.h"
#include "app/model_path.h"
#include "base/alloc.h"

enum { USUAL_TEXT_BYTES = 1 << 16 };

mgl_status mgl_client_status(megalith_status status, const megalith_error *error, mgl_error *err) {
  return status == MEGALITH_OK ? MGL_OK : mgl_error_set(err, (mgl_status)status, "%s", error->text);
}

megalith_weights mgl_client_weights(const mgl_arguments *arguments) {
  const mgl_argument *format = mgl_arguments_find(arguments, "load-format");
  const char *name = format == NULL ? "auto" : format->text;
  return strcmp(name, "dummy") == 0    ? MEGALITH_WEIGHTS_DUMMY
         : strcmp(name, "copied") == 0 ? MEGALITH_WEIGHTS_COPIED
         : strcmp(name, "mapped") == 0 ? MEGALITH_WEIGHTS_MAPPED
         : strcmp(name, "short") == 0  ? MEGALITH_WEIGHTS_SHORT
                                       : MEGALITH_WEIGHTS_AUTO;
}

mgl_status mgl_client_open(const mgl_arguments *arguments, const megalith_model_options *options,
                           megalith_model **out, char **name, mgl_error *err) {
  char *path = NULL;
  char *own_name = NULL;
  megalith_error error = {0};
  *out = NULL;
  MGL_TRY(mgl_app_model_path(arguments, &path, name != NULL ? name : &own_name, err));
  mgl_status status =
      mgl_client_status(megalith_model_open(path, options, out, &error), &error, err);
  if (status != MGL_OK && arguments->positional != NULL) {
    mgl_model_path_explain(arguments, err);
  }
  mgl_free(path);
  mgl_free(own_name);
  return status;
}

// --- ids and texts -------------------------------------------------------------------------------

// A text has at most as many ids as bytes, and a few in front.
enum { IDS_IN_FRONT = 64 };

mgl_status mgl_client_encode(const megalith_model *model, const megalith_request_options *options,
                             mgl_ids *out, mgl_error *err) {
  megalith_error error = {0};
  mgl_status status = MGL_OK;
  out->count = options->text_bytes + IDS_IN_FRONT;
  while (status == MGL_OK && out->count > out->capacity) {
    out->capacity = out->count;
    mgl_free(out->ids);
    out->ids = mgl_alloc(out->capacity * sizeof *out->ids);
    status = out->ids == NULL
                 ? mgl_error_set(err, MGL_ERR_MEMORY, "out of memory for %zu token ids", out->count)
                 : mgl_client_status(megalith_model_encode(model, options, out->ids, out->capacity,
                                                           &out->count, &error),
                                     &error, err);
  }
  return status;
}

typedef struct one_token {
  const megalith_model *model;
  int32_t token;
} one_token;

static megalith_status get_token_text(const void *context, char *text, size_t capacity,
                                      size_t *bytes, megalith_error *error) {
  const one_token *one = context;
  return megalith_model_token_text(one->model, one->token, text, capacity, bytes, error);
}

mgl_status mgl_client_append_token(const megalith_model *model, int32_t token, mgl_text *out,
                                   mgl_error *err) {
  return mgl_client_append(get_token_text, &(one_token){model, token}, out, err);
}

mgl_status mgl_client_append(mgl_client_text *get, const void *context, mgl_text *out,
                             mgl_error *err) {
  megalith_error error = {0};
  mgl_status status = MGL_OK;
  size_t bytes = USUAL_TEXT_BYTES;  // of what is there to be written to, then of the text
  size_t capacity = 0;
  char *text = NULL;
  while (status == MGL_OK && bytes >= capacity) {  // twice where it is longer than usual
    capacity = bytes + 1;
    mgl_free(text);
    text = mgl_alloc(capacity);
    status =
        text == NULL
            ? mgl_error_set(err, MGL_ERR_MEMORY, "out of memory for a text of %zu bytes", bytes)
            : mgl_client_status(get(context, text, capacity, &bytes, &error), &error, err);
  }
  if (status == MGL_OK) {
    mgl_text_append(out, text, bytes);
    status = mgl_text_check(out, err);
  }
  mgl_free(text);
  return status;
}

// --- engines -------------------------------------------------------------------------------------

static const char *text_of(const mgl_arguments *arguments, const char *name) {
  const mgl_argument *argument = mgl_arguments_find(arguments, name);
  return argument == NULL ? NULL : argument->text;
}

static uint64_t number_of(const mgl_arguments *arguments, const char *name) {
  const mgl_argument *argument = mgl_arguments_find(arguments, name);
  return argument == NULL ? 0 : argument->u64;
}

// --memory-share and --kv-tokens.
static mgl_status choose_memory(const mgl_arguments *arguments, megalith_engine_options *options,
                                mgl_error *err) {
  const mgl_argument *share = mgl_arguments_find(arguments, "memory-share");
  const mgl_argument *tokens = mgl_arguments_find(arguments, "kv-tokens");
  if (share != NULL && tokens != NULL) {
    return mgl_error_set(err, MGL_ERR_ARGUMENT,
                         "expected one of --memory-share and --kv-tokens, found both");
  }
  options->memory_share = share == NULL ? 0 : share->real;
  options->kv_tokens = tokens == NULL ? 0 : tokens->u64;
  return MGL_OK;
}

// --partition and --task-graph, each as often as it was given.
static mgl_status collect(const mgl_arguments *arguments, mgl_client_engine *out, mgl_error *err) {
  out->task_graphs = mgl_alloc_zeroed(arguments->count + 1, sizeof *out->task_graphs);
  if (out->task_graphs == NULL) {
    return mgl_error_set(err, MGL_ERR_MEMORY, "out of memory for the options of an engine");
  }
  for (size_t i = 0; i < arguments->count; i++) {
    const mgl_argument *argument = &arguments->items[i];
    if (strcmp(argument->option->name, "partition") == 0) {
      mgl_text_format(&out->partitions, "%s ", argument->text);
    } else if (strcmp(argument->option->name, "task-graph") == 0) {
      out->task_graphs[out->options.task_graph_count++] = argument->text;
    }
  }
  return mgl_text_check(&out->partitions, err);
}

static mgl_status choose_compilation(const mgl_arguments *arguments, mgl_client_engine *out,
                                     mgl_error *err) {
  mgl_compile_settings settings;
  mgl_status status = mgl_app_compile_settings(arguments, &settings, err);
  out->compilation = settings.json;
  out->is_mega = settings.is_mega;
  MGL_TRY(status);
  return out->options.task_graph_count == 0 || out->is_mega
             ? MGL_OK
             : mgl_error_set(
                   err, MGL_ERR_ARGUMENT,
                   "--task-graph: expected --mode mega, since no other mode runs task graphs");
}

mgl_status mgl_client_engine_choose(const mgl_arguments *arguments, mgl_client_engine *out,
                                    mgl_error *err) {
  const mgl_launcher *launcher = &arguments->launcher;
  const bool launched = launcher->name != NULL;
  megalith_engine_options *options = &out->options;
  *out = (mgl_client_engine){.arguments = arguments};
  *options = (megalith_engine_options){
      .size = sizeof *options,
      .device = text_of(arguments, "device"),
      .threads = (uint32_t)number_of(arguments, "threads"),
      .page_tokens = (uint32_t)number_of(arguments, "page-tokens"),
      .iteration_tokens = (uint32_t)number_of(arguments, "iteration-tokens"),
      .kv_dtype = text_of(arguments, "kv-dtype"),
      .mode = text_of(arguments, "mode"),
      .tune = mgl_arguments_find(arguments, "tune") != NULL,
      .ranks = launched ? launcher->size : (uint32_t)number_of(arguments, "tensor-parallel"),
      .meeting = launched ? launcher->meeting : NULL,
      .vocab_parallel = mgl_arguments_find(arguments, "vocab-parallel") != NULL,
      .reduce_scatter = mgl_arguments_find(arguments, "reduce-scatter") != NULL,
      .trace = text_of(arguments, "trace") != NULL,
  };
  MGL_TRY(choose_memory(arguments, options, err));
  MGL_TRY(collect(arguments, out, err));
  MGL_TRY(choose_compilation(arguments, out, err));
  options->partitions = out->partitions.data;
  options->task_graphs = out->task_graphs;
  options->compilation = out->compilation.data;
  return MGL_OK;
}

void mgl_client_engine_free(mgl_client_engine *chosen) {
  mgl_text_free(&chosen->partitions);
  mgl_text_free(&chosen->compilation);
  mgl_free(chosen->task_graphs);
  *chosen = (mgl_client_engine){0};
}

static void on_progress(void *context, megalith_progress what, uint64_t done, uint64_t total) {
  mgl_client_engine *c = context;
  if (what == MEGALITH_PROGRESS_WEIGHTS) {
    mgl_progress_update(&c->weights, done, total);
    return;
  }
  if (c->captures.label == NULL) {
    mgl_progress_finish(&c->weights);
    mgl_progress_start(&c->captures, "capturing graphs", MGL_PROGRESS_COUNT);
  }
  mgl_progress_update(&c->captures, done, total);
}

// What the library says of its own options, said of the command's.
static mgl_status explain(mgl_status status, const megalith_error *error, mgl_error *err) {
  static const struct {
    const char *field, *option;
  } rows[] = {{"partitions:", "--partition:"}, {"threads is", "--threads is"}};
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    const size_t bytes = strlen(rows[i].field);
    if (strncmp(error->text, rows[i].field, bytes) == 0) {
      return mgl_error_set(err, status, "%s%s", rows[i].option, error->text + bytes);
    }
  }
  return mgl_error_set(err, status, "%s", error->text);
}

mgl_status mgl_client_engine_create(mgl_client_engine *chosen, megalith_model *model,
                                    megalith_engine **out, mgl_error *err) {
  megalith_error error = {0};
  megalith_engine_options options = chosen->options;
  const bool is_dummy = mgl_client_weights(chosen->arguments) == MEGALITH_WEIGHTS_DUMMY;
  if (!options.background) {  // a server's log has no bars
    options.on_progress = on_progress;
    options.progress_context = chosen;
    mgl_progress_start(&chosen->weights, is_dummy ? "making weights" : "loading weights",
                       MGL_PROGRESS_BYTES);
  }
  const mgl_status status = (mgl_status)megalith_engine_create(model, &options, out, &error);
  mgl_progress_finish(&chosen->weights);
  mgl_progress_finish(&chosen->captures);
  if (status != MGL_OK) {
    return explain(status, &error, err);
  }
  const char *note = megalith_engine_describe(*out)->note;
  if (note[0] != 0) {
    (void)fprintf(stderr, "megalith: note: %s\n", note);
  }
  return MGL_OK;
}
