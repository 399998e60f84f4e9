// Arbitrary bytes as a tensor program: what parses must print to a text that parses to the same
// text.
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "graph/graph_text.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  mgl_graph *graph = NULL;
  mgl_graph *again = NULL;
  mgl_error err = {0};
  if (mgl_graph_parse((const char *)data, size, "fuzz", &graph, &err) != MGL_OK) {
    return 0;
  }
  mgl_text first = {0};
  mgl_text second = {0};
  mgl_graph_print(graph, &first);
  if (mgl_graph_parse(first.data, first.bytes, "printed", &again, &err) != MGL_OK) {
    abort();
  }
  mgl_graph_print(again, &second);
  if (first.bytes != second.bytes || memcmp(first.data, second.data, first.bytes) != 0) {
    abort();
  }
  mgl_text_free(&first);
  mgl_text_free(&second);
  mgl_graph_destroy(graph);
  mgl_graph_destroy(again);
  return 0;
}
