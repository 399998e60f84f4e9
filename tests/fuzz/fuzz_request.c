// Fuzzes the bodies of requests: the first byte chooses the endpoint, the rest is the JSON. What is
// read must give options for each choice; what is refused must say why.
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "fuzz_model.h"
#include "request/ask.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(int condition) {
  if (!condition) {
    abort();
  }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  static const mgl_endpoint endpoints[] = {MGL_ENDPOINT_COMPLETIONS, MGL_ENDPOINT_CHAT,
                                           MGL_ENDPOINT_RESPONSES, MGL_ENDPOINT_TOKENIZE,
                                           MGL_ENDPOINT_DETOKENIZE};
  mgl_ask ask;
  mgl_error err = {0};
  if (size == 0) {
    return 0;
  }
  mgl_endpoint endpoint = endpoints[data[0] % (sizeof endpoints / sizeof *endpoints)];
  mgl_status status =
      mgl_ask_read(&fuzz_model, endpoint, (const char *)data + 1, size - 1, &ask, &err);
  require((status == MGL_OK) == (err.text[0] == 0));
  size_t choices = status == MGL_OK ? (ask.is_chat ? 1 : ask.prompt_count) * ask.n : 0;
  require(choices <= MGL_ASK_MAX_CHOICES);
  for (size_t i = 0; i < choices; i++) {
    megalith_sampling sampling;
    megalith_request_options options;
    mgl_ask_options(&ask, i, &sampling, &options);
    require((options.text != NULL) + (options.tokens != NULL) + (options.messages_json != NULL) ==
            1);
  }
  mgl_ask_free(&ask);
  return 0;
}
