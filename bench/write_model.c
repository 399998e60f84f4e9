// Writes model.safetensors with dummy weights into a folder that holds config.json, so that
// benchmarks can read a model of real size from disk:  bench_write_model FOLDER
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
#include "model/model_folder.h"

enum { CHUNK_ELEMENTS = 4 << 20 };

static _Noreturn void die(const char *message) {
  (void)fprintf(stderr, "bench_write_model: %s\n", message);
  exit(1);
}

static const char *const stored_names[MGL_DTYPE_COUNT] = {"F32", "F16", "BF16", "I32"};

static uint64_t element_count(const mgl_tensor *tensor, uint64_t *dims) {
  uint64_t count = 1;
  for (uint32_t i = 0; i < tensor->rank; i++) {
    dims[i] = tensor->dims[i].number;
    count *= dims[i];
  }
  return count;
}

static void write_header(const mgl_graph *graph, FILE *file) {
  mgl_text header = {0};
  uint64_t offset = 0;
  for (size_t i = 0; i < graph->tensor_count; i++) {
    const mgl_tensor *tensor = &graph->tensors[i];
    uint64_t dims[MGL_GRAPH_MAX_RANK];
    if (tensor->placement != MGL_PLACE_WEIGHT) {
      continue;
    }
    uint64_t end = offset + element_count(tensor, dims) * mgl_dtype_bytes(tensor->dtype);
    mgl_text_format(&header, "%s\"%s\":{\"dtype\":\"%s\",\"shape\":[%" PRIu64,
                    offset == 0 ? "{" : ",", tensor->name, stored_names[tensor->dtype], dims[0]);
    if (tensor->rank == 2) {
      mgl_text_format(&header, ",%" PRIu64, dims[1]);
    }
    mgl_text_format(&header, "],\"data_offsets\":[%" PRIu64 ",%" PRIu64 "]}", offset, end);
    offset = end;
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

static void write_tensor(const mgl_tensor *tensor, void *buffer, FILE *file) {
  uint64_t dims[MGL_GRAPH_MAX_RANK];
  uint64_t count = element_count(tensor, dims);
  for (uint64_t begin = 0; begin < count; begin += CHUNK_ELEMENTS) {
    uint64_t end = count - begin < CHUNK_ELEMENTS ? count : begin + CHUNK_ELEMENTS;
    mgl_dummy_weights_fill(tensor->name, 0, tensor->dtype, tensor->rank, dims, begin, end, buffer);
    if (fwrite(buffer, mgl_dtype_bytes(tensor->dtype), end - begin, file) != end - begin) {
      die("cannot write the weights (disk full?)");
    }
  }
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
    if (graph->tensors[i].placement == MGL_PLACE_WEIGHT) {
      write_tensor(&graph->tensors[i], buffer, file);
    }
  }
  // The page cache has what was just written in small pages, and what is read from the disk in huge
  // ones where the processor and the file system can: benchmarks shall map it as users' models are.
  if (fflush(file) != 0 || fsync(fileno(file)) != 0 ||
      posix_fadvise(fileno(file), 0, 0, POSIX_FADV_DONTNEED) != 0 || fclose(file) != 0) {
    die("cannot write the weights (disk full?)");
  }
  mgl_free(buffer);
  mgl_free(path);
  mgl_graph_destroy(graph);
  return 0;
}
