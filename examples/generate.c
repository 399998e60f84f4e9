// Continues a prompt and streams the text:  generate MODEL_FOLDER [PROMPT]
//
//   cc generate.c $(pkg-config --cflags --libs megalith) -o generate
#include <megalith.h>
#include <stdio.h>

static int fail(const char *what, const megalith_error *error) {
  (void)fprintf(stderr, "%s: %s\n", what, error->text);
  return 1;
}

// Called by the engine for every token, in order.
static void print_text(void *context, megalith_request *request, const megalith_output *output) {
  (void)context;
  (void)request;
  (void)fwrite(output->text, 1, output->text_bytes, stdout);
  (void)fflush(stdout);
}

static int generate(megalith_model *model, const char *prompt) {
  megalith_error error;
  megalith_engine *engine = NULL;
  megalith_request *request = NULL;
  megalith_engine_options options = {.size = sizeof options, .sequences = 1};
  if (megalith_engine_create(model, &options, &engine, &error) != MEGALITH_OK) {
    return fail("engine", &error);
  }
  megalith_message message = {.role = "user", .content = prompt};
  megalith_request_options ask = {.size = sizeof ask, .on_output = print_text};
  if (megalith_model_describe(model)->has_chat_template) {
    ask.messages = &message;
    ask.message_count = 1;
  } else {
    ask.text = prompt;
  }
  int code = 0;
  if (megalith_engine_submit(engine, &ask, &request, &error) != MEGALITH_OK) {
    code = fail("prompt", &error);
  } else if (megalith_engine_run(engine, &error) != MEGALITH_OK) {
    code = fail("run", &error);
  } else {
    const megalith_result *result = megalith_request_result(request);
    (void)printf("\n");
    (void)fprintf(stderr, "%zu tokens behind %zu%s%s\n", result->token_count,
                  result->prompt_token_count, result->error[0] ? ": " : "", result->error);
    code = result->finish == MEGALITH_FINISH_FAILED;
  }
  megalith_request_release(request);
  megalith_engine_destroy(engine);
  return code;
}

int main(int argc, char **argv) {
  megalith_error error;
  megalith_model *model = NULL;
  if (argc < 2) {
    (void)fprintf(stderr, "usage: generate MODEL_FOLDER [PROMPT]\n");
    return 2;
  }
  if (megalith_model_open(argv[1], NULL, &model, &error) != MEGALITH_OK) {
    return fail("model", &error);
  }
  int code = generate(model, argc > 2 ? argv[2] : "What is 137 + 245?");
  megalith_model_close(model);
  return code;
}
