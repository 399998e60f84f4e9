// Arbitrary bytes as a task_graph.json: what loads has passed the verifier, and must be written to
// a text that loads again to the same text.
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "compile/compile.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  mgl_graph *program = NULL;
  mgl_graph *program2 = NULL;
  mgl_task_graph *graph = NULL;
  mgl_task_graph *graph2 = NULL;
  mgl_text first = {0};
  mgl_text second = {0};
  mgl_error err = {0};
  if (mgl_task_graph_read_json((const char *)data, size, "fuzz", &program, &graph, &err) !=
      MGL_OK) {
    return 0;
  }
  if (mgl_task_graph_write_json(program, graph, &first, &err) != MGL_OK ||
      mgl_task_graph_read_json(first.data, first.bytes, "written", &program2, &graph2, &err) !=
          MGL_OK ||
      mgl_task_graph_write_json(program2, graph2, &second, &err) != MGL_OK ||
      first.bytes != second.bytes || memcmp(first.data, second.data, first.bytes) != 0) {
    abort();
  }
  mgl_text_free(&first);
  mgl_text_free(&second);
  mgl_graph_destroy(program);
  mgl_graph_destroy(program2);
  mgl_task_graph_destroy(graph);
  mgl_task_graph_destroy(graph2);
  return 0;
}
