// Adds an op of one's own to a model, and runs it everywhere:
//
//   custom_op MODEL_FOLDER [PROMPT [DEVICE]]
//
// The op caps logits softly, cap * tanh(logit / cap): the order of tokens stays, so greedy text
// stays too, and their probabilities come closer. The model's program is taken as text, its line
// "logits = ..." gets another name, and a line with the new op follows. Every mode then has to give
// the same tokens with the same log probabilities, and other ones than the model without the op. On
// a GPU (DEVICE cuda) the op's CUDA source computes it; there the last bits of log probabilities
// differ between the megakernel and plain kernels, which run all other modes.
//
//   cc custom_op.c $(pkg-config --cflags --libs megalith) -lm -o custom_op
#include <math.h>
#include <megalith.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_TOKENS = 24, LINE_BYTES = 512 };

static const double cap = 8;

static void soft_cap(const megalith_custom_call *call) {
  const float most = (float)call->attributes[0];
  const size_t columns = call->output_type->dims[1];
  const float *logits = call->inputs[0];
  float *out = call->output;
  for (size_t i = call->first_row * columns; i < call->end_row * columns; i++) {
    out[i] = most * tanhf(logits[i] / most);
  }
}

// The same on a GPU: the threads of a block share the rows of a call.
static const char cuda_source[] =
    "__device__ void logit_soft_cap(const megalith_custom_call *call) {\n"
    "  const float most = (float)call->attributes[0];\n"
    "  const uint32_t columns = call->output_type->dims[1];\n"
    "  for (uint32_t row = call->first_row; row < call->end_row; row++) {\n"
    "    const float *logits = (const float *)call->inputs[0] + (size_t)row * columns;\n"
    "    float *out = (float *)call->output + (size_t)row * columns;\n"
    "    for (uint32_t i = threadIdx.x; i < columns; i += blockDim.x) {\n"
    "      out[i] = most * tanhf(logits[i] / most);\n"
    "    }\n"
    "  }\n"
    "}\n";

// The output is as the input, [L,V].
static bool check_soft_cap(void *context, const megalith_tensor_type *inputs,
                           const double *attributes, megalith_tensor_type *output,
                           megalith_error *error) {
  (void)context;
  (void)output;
  if (inputs[0].dtype == MEGALITH_F32 && inputs[0].rank == 2 && attributes[0] > 0) {
    return true;
  }
  (void)snprintf(error->text, sizeof error->text, "expected f32[L,V] and a cap above 0");
  return false;
}

static int fail(const char *what, const megalith_error *error) {
  (void)fprintf(stderr, "%s: %s\n", what, error->text);
  return 1;
}

static int register_soft_cap(void) {
  static const char *const attributes[] = {"cap"};
  megalith_error error;
  const megalith_custom_op op = {.size = sizeof op,
                                 .name = "logit_soft_cap",
                                 .input_count = 1,
                                 .attributes = attributes,
                                 .attribute_count = 1,
                                 .shape = check_soft_cap,
                                 .cpu = soft_cap,
                                 .cuda_source = cuda_source,
                                 .cuda_tile_rows = 1};
  return megalith_custom_op_register(&op, &error) == MEGALITH_OK ? 0 : fail("custom op", &error);
}

// The model's program with the op behind its logits; freed by the caller. NULL: it says why.
static char *change_program(const megalith_model *model) {
  megalith_error error;
  size_t bytes = 0;
  if (megalith_model_program(model, NULL, 0, &bytes, &error) != MEGALITH_OK) {
    (void)fail("program", &error);
    return NULL;
  }
  char *text = malloc(bytes + 1);
  char *changed = malloc(bytes + LINE_BYTES);
  if (text == NULL || changed == NULL ||
      megalith_model_program(model, text, bytes + 1, &bytes, &error) != MEGALITH_OK) {
    free(text);
    free(changed);
    return NULL;
  }
  char *line = strstr(text, "\nlogits = ");
  char *type = line != NULL ? strstr(line, " : ") : NULL;
  char *end = type != NULL ? strchr(type, '\n') : NULL;
  if (end == NULL) {
    (void)fprintf(stderr, "the program has no line \"logits = ...\"\n");
    free(text);
    free(changed);
    return NULL;
  }
  (void)snprintf(changed, bytes + LINE_BYTES,
                 "%.*s\nuncapped%.*s\nlogits = logit_soft_cap(uncapped) cap=%g%.*s%s",
                 (int)(line - text), text, (int)(end - line) - 7, line + 7, cap, (int)(end - type),
                 type, end);
  free(text);
  return changed;
}

typedef struct answer {
  size_t token_count;
  int32_t tokens[MAX_TOKENS];
  double logprobs[MAX_TOKENS];
} answer;

typedef struct question {
  const char *prompt, *device;
} question;

static int ask(megalith_model *model, const question *asked, const char *program,
               const char *compilation, answer *out) {
  megalith_error error;
  megalith_engine *engine = NULL;
  megalith_request *request = NULL;
  const megalith_engine_options options = {.size = sizeof options,
                                           .device = asked->device,
                                           .sequences = 2,
                                           .compilation = compilation,
                                           .program = program};
  const megalith_sampling greedy = {.size = sizeof greedy, .logprobs = true};
  const megalith_request_options wish = {.size = sizeof wish,
                                         .text = asked->prompt,
                                         .sampling = &greedy,
                                         .max_new_tokens = MAX_TOKENS};
  if (megalith_engine_create(model, &options, &engine, &error) != MEGALITH_OK) {
    return fail("engine", &error);
  }
  int code = 1;
  if (megalith_engine_submit(engine, &wish, &request, &error) != MEGALITH_OK ||
      megalith_engine_run(engine, &error) != MEGALITH_OK) {
    code = fail("run", &error);
  } else {
    const megalith_result *result = megalith_request_result(request);
    code = result->finish == MEGALITH_FINISH_FAILED;
    out->token_count = result->token_count < MAX_TOKENS ? result->token_count : MAX_TOKENS;
    memcpy(out->tokens, result->tokens, out->token_count * sizeof *out->tokens);
    for (size_t i = 0; i < out->token_count; i++) {
      out->logprobs[i] = result->logprobs[i];
    }
  }
  megalith_request_release(request);
  megalith_engine_destroy(engine);
  return code;
}

static int run_everywhere(megalith_model *model, const question *asked, const char *program) {
  // A chain of fused kernels of a GPU does not know the op.
  static const char compiled[] = "{\"preset\": \"compiled\"}";
  static const char fastest[] = "{\"preset\": \"fastest\"}";
  static const char *const ways[] = {
      "{\"preset\": \"debug\"}",
      "{\"preset\": \"check\"}",
      compiled,
      "{\"preset\": \"serving\"}",
      "{\"preset\": \"uniform\"}",
      "{\"preset\": \"decode-instance\"}",
      fastest,
      "{\"preset\": \"fastest-graphs\"}",
      "{\"graph_mode\": \"PIECEWISE\", \"splitting_ops\": [\"logit_soft_cap\", \"attention\"]}",
  };
  static answer without, first, plain;  // plain: of a GPU's modes other than mega
  const bool gpu = strcmp(asked->device, "cpu") != 0;
  if (ask(model, asked, NULL, NULL, &without) != 0 ||
      ask(model, asked, program, NULL, &first) != 0) {
    return 1;
  }
  if (first.token_count == 0 || first.tokens[0] != without.tokens[0] ||
      !(first.logprobs[0] < without.logprobs[0])) {
    (void)fprintf(stderr, "expected the same token, less probable with the cap\n");
    return 1;
  }
  (void)printf("%-60s logprob of the first token %.6f\n", "without the op", without.logprobs[0]);
  for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
    static answer found;
    if (ways[i] == compiled && gpu) {
      continue;
    }
    if (ask(model, asked, program, ways[i], &found) != 0) {
      return 1;
    }
    const bool is_plain = gpu && ways[i] != fastest;
    if (is_plain && plain.token_count == 0) {
      plain = found;
    }
    const answer *same = is_plain ? &plain : &first;
    (void)printf("%-60.60s %zu tokens, %.6f\n", ways[i], found.token_count, found.logprobs[0]);
    if (found.token_count != first.token_count ||
        memcmp(found.tokens, first.tokens, first.token_count * sizeof *first.tokens) != 0 ||
        memcmp(found.logprobs, same->logprobs, same->token_count * sizeof *same->logprobs) != 0) {
      (void)fprintf(stderr, "%s: expected the tokens and log probabilities of the others\n",
                    ways[i]);
      return 1;
    }
  }
  return 0;
}

int main(int argc, char **argv) {
  megalith_error error;
  megalith_model *model = NULL;
  if (argc < 2) {
    (void)fprintf(stderr, "usage: custom_op MODEL_FOLDER [PROMPT [DEVICE]]\n");
    return 2;
  }
  if (register_soft_cap() != 0) {
    return 1;
  }
  if (megalith_model_open(argv[1], NULL, &model, &error) != MEGALITH_OK) {
    return fail("model", &error);
  }
  const question asked = {.prompt = argc > 2 ? argv[2] : "What is 137 + 245?",
                          .device = argc > 3 ? argv[3] : "cpu"};
  char *program = change_program(model);
  int code = program == NULL || run_everywhere(model, &asked, program) != 0;
  free(program);
  megalith_model_close(model);
  return code;
}
