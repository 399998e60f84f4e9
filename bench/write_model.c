// Writes model.safetensors with dummy weights into a folder that holds config.json, so that
// benchmarks can read a model of real size from disk, of a mixture with each expert's matrices by
// themselves:  bench_write_model FOLDER
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/file.h"
#include "base/text.h"
#include "graph/family.h"
#include "model/dummy_weights.h"
#include "model/expert_weights.h"
#include "model/model_folder.h"

enum { CHUNK_ELEMENTS = 4 << 20 };

static _Noreturn void die(const char *message) {
  (void)fprintf(stderr, "bench_write_model: %s\n", message);
  exit(1);
}

static const char *const stored_names[MGL_DTYPE_COUNT] = {"F32", "F16", "BF16", "I32"};

// A matrix or vector of the file: a weight of the program, or one expert's part of it.
typedef struct part {
  char name[MGL_GRAPH_MAX_NAME_BYTES];
  mgl_dtype dtype;
  uint32_t rank;
  uint64_t dims[2];
} part;

static uint32_t part_count(const mgl_tensor *tensor) {
  const uint32_t experts = mgl_tensor_experts(tensor);
  return tensor->placement != MGL_PLACE_WEIGHT ? 0 : experts != 0 ? experts : 1;
}

static part part_of(const mgl_tensor *tensor, uint32_t number) {
  const bool is_expert = mgl_tensor_experts(tensor) != 0;
  part p = {.dtype = tensor->dtype, .rank = is_expert ? 2 : tensor->rank, .dims = {1, 1}};
  if (is_expert) {
    mgl_expert_weight_name(tensor->name, number, p.name, sizeof p.name);
  } else {
    (void)snprintf(p.name, sizeof p.name, "%s", tensor->name);
  }
  for (uint32_t i = 0; i < p.rank; i++) {
    p.dims[i] = tensor->dims[i + (is_expert ? 1 : 0)].number;
  }
  return p;
}

static void name_part(const part *p, uint64_t *offset, mgl_text *header) {
  const uint64_t end = *offset + p->dims[0] * p->dims[1] * mgl_dtype_bytes(p->dtype);
  mgl_text_format(header, "%s\"%s\":{\"dtype\":\"%s\",\"shape\":[%" PRIu64,
                  *offset == 0 ? "{" : ",", p->name, stored_names[p->dtype], p->dims[0]);
  if (p->rank == 2) {
    mgl_text_format(header, ",%" PRIu64, p->dims[1]);
  }
  mgl_text_format(header, "],\"data_offsets\":[%" PRIu64 ",%" PRIu64 "]}", *offset, end);
  *offset = end;
}

static void write_header(const mgl_graph *graph, FILE *file) {
  mgl_text header = {0};
  uint64_t offset = 0;
  for (size_t i = 0; i < graph->tensor_count; i++) {
    for (uint32_t j = 0; j < part_count(&graph->tensors[i]); j++) {
      const part p = part_of(&graph->tensors[i], j);
      name_part(&p, &offset, &header);
    }
  }
  mgl_text_append_string(&header, "}");
  while (header.bytes % 8 != 0) {
    mgl_text_append_string(&header, " ");
  }
  uint64_t bytes = header.bytes;
  if (header.failed || fwrite(&bytes, sizeof bytes, 1, file) != 1 ||
      fwrite(header.data, 1, header.bytes, file) != header.bytes) {
    die("cannot write the header");
  }
  mgl_text_free(&header);
}

static void write_part(const part *p, void *buffer, FILE *file) {
  const uint64_t count = p->dims[0] * p->dims[1];
  for (uint64_t begin = 0; begin < count; begin += CHUNK_ELEMENTS) {
    uint64_t end = count - begin < CHUNK_ELEMENTS ? count : begin + CHUNK_ELEMENTS;
    mgl_dummy_weights_fill(p->name, 0, p->dtype, p->rank, p->dims, begin, end, buffer);
    if (fwrite(buffer, mgl_dtype_bytes(p->dtype), end - begin, file) != end - begin) {
      die("cannot write the weights (disk full?)");
    }
  }
}

// Refuses what readers of such a folder do not find, since its files have it in another form (as
// Phi-3's, which have one tensor where the program has several).
static void check_folder(const char *folder) {
  mgl_error err = {0};
  mgl_model_folder model;
  mgl_graph *graph = NULL;
  if (mgl_model_folder_open(folder, MGL_NEED_WEIGHTS, &model, &err) != MGL_OK ||
      mgl_family_build(&model.config, model.checkpoint, &graph, &err) != MGL_OK) {
    die(err.text);
  }
  for (size_t i = 0; i < graph->tensor_count; i++) {
    for (uint32_t j = 0; j < part_count(&graph->tensors[i]); j++) {
      const mgl_stored_tensor *found = NULL;
      const part p = part_of(&graph->tensors[i], j);
      if (mgl_checkpoint_find(model.checkpoint, p.name, &found, &err) != MGL_OK) {
        die(err.text);
      }
    }
  }
  mgl_graph_destroy(graph);
  mgl_model_folder_close(&model);
}

int main(int argc, char **argv) {
  mgl_error err = {0};
  char *path = NULL;
  mgl_model_folder model;
  mgl_graph *graph = NULL;
  if (argc != 2) {
    die("usage: bench_write_model FOLDER (with a config.json)");
  }
  if (mgl_model_folder_open(argv[1], 0, &model, &err) != MGL_OK ||
      mgl_family_build(&model.config, NULL, &graph, &err) != MGL_OK) {
    die(err.text);
  }
  mgl_model_folder_close(&model);
  if (mgl_path_join(argv[1], "model.safetensors", &path, &err) != MGL_OK) {
    die(err.text);
  }
  FILE *file = fopen(path, "wbe");
  void *buffer = mgl_alloc(CHUNK_ELEMENTS * sizeof(float));
  if (file == NULL || buffer == NULL) {
    die("cannot create model.safetensors");
  }
  write_header(graph, file);
  for (size_t i = 0; i < graph->tensor_count; i++) {
    for (uint32_t j = 0; j < part_count(&graph->tensors[i]); j++) {
      const part p = part_of(&graph->tensors[i], j);
      write_part(&p, buffer, file);
    }
  }
  // The page cache has what was just written in small pages, and what is read from the disk in huge
  // ones where the processor and the file system can: benchmarks shall map it as users' models are.
  if (fflush(file) != 0 || fsync(fileno(file)) != 0 ||
      posix_fadvise(fileno(file), 0, 0, POSIX_FADV_DONTNEED) != 0 || fclose(file) != 0) {
    die("cannot write the weights (disk full?)");
  }
  check_folder(argv[1]);
  mgl_free(buffer);
  mgl_free(path);
  mgl_graph_destroy(graph);
  return 0;
}
