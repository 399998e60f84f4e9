#include "graph/given_program.h"

#include <string.h>

#include "graph/graph_text.h"

static bool same_type(const mgl_tensor *a, const mgl_tensor *b) {
  return a->placement == b->placement && mgl_form_same(mgl_tensor_form(a), mgl_tensor_form(b)) &&
         mgl_tensor_same_shape(a, b);
}

static mgl_status check_tensor(const mgl_graph *own, mgl_tensor *tensor, mgl_error *err) {
  uint32_t at = mgl_graph_find(own, tensor->name);
  const mgl_tensor *known = at != MGL_NO_TENSOR ? &own->tensors[at] : NULL;
  const bool is_logits = strcmp(tensor->name, "logits") == 0;
  if (tensor->placement == MGL_PLACE_ACTIVATION && !is_logits) {
    return MGL_OK;
  }
  if (known == NULL && tensor->placement == MGL_PLACE_WEIGHT) {
    return MGL_OK;
  }
  if (known == NULL) {
    return mgl_error_set(err, MGL_ERR_ARGUMENT,
                         "program: \"%s\": expected inputs and KV caches of the model's own "
                         "program, which has none of that name",
                         tensor->name);
  }
  if (!same_type(known, tensor)) {
    return mgl_error_set(err, MGL_ERR_ARGUMENT,
                         "program: \"%s\": expected the type that it has in the model's own "
                         "program, found another",
                         tensor->name);
  }
  if (is_logits && !tensor->is_output) {
    return mgl_error_set(err, MGL_ERR_ARGUMENT,
                         "program: \"logits\": expected the line \"output logits\"");
  }
  tensor->made = known->made;  // what the text does not say
  tensor->slice = known->slice;
  return MGL_OK;
}

mgl_status mgl_given_program(const mgl_graph *own, const char *text, mgl_graph **out,
                             mgl_error *err) {
  mgl_graph *graph = NULL;
  *out = NULL;
  MGL_TRY(mgl_graph_parse(text, strlen(text), "program", &graph, err));
  mgl_status status = MGL_OK;
  if (mgl_graph_find(graph, "logits") == MGL_NO_TENSOR) {
    status = mgl_error_set(err, MGL_ERR_ARGUMENT,
                           "program: expected an output \"logits\", found none of that name");
  }
  for (size_t i = 0; i < graph->tensor_count && status == MGL_OK; i++) {
    status = check_tensor(own, &graph->tensors[i], err);
  }
  if (status != MGL_OK) {
    mgl_graph_destroy(graph);
    return status;
  }
  *out = graph;
  return MGL_OK;
}
