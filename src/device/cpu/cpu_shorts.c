#include "device/cpu/cpu_shorts.h"

#include "base/alloc.h"
#include "graph/act_dtype.h"
#include "kernels/cpu/cpu_kernels.h"
#include "kernels/cpu/short_rows.h"

enum {
  LEAST_ROWS = 64,
  LEAST_BYTES = 64 << 20,  // of plain matrices that short rows could stand for
  ALIGNMENT = 4096,
};

static size_t plain_bytes(const mgl_tensor *w) {
  return (size_t)w->dims[0].number * w->dims[1].number * sizeof(mgl_bf16);
}

static size_t short_bytes(const mgl_tensor *w) {
  const size_t bytes = mgl_short_bytes(w->dims[0].number, w->dims[1].number);
  return (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
}

// Whether a tensor gets short rows: a matrix of a linear. (Asked of each tensor, so that one that
// two ops have counts once.)
static bool has_shorts(const mgl_graph *graph, uint32_t tensor) {
  const mgl_tensor *w = &graph->tensors[tensor];
  bool has = false;
  if (w->placement != MGL_PLACE_WEIGHT || w->rank != 2 || w->dtype != MGL_DTYPE_BF16 ||
      w->group != 0 || w->dims[0].number < LEAST_ROWS ||
      (double)short_bytes(w) > MGL_SHORT_WORTH * (double)plain_bytes(w)) {
    return false;
  }
  for (size_t i = 0; i < graph->op_count && !has; i++) {
    const mgl_op *op = &graph->ops[i];
    const mgl_op_range matrices = mgl_op_inputs(op, MGL_ROLE_MATRIX);
    for (uint32_t j = 0; j < matrices.count && mgl_op_is_linear(op); j++) {
      has = has || op->inputs[matrices.first + j] == tensor;
    }
  }
  return has;
}

size_t mgl_cpu_shorts_bytes(const mgl_graph *graph, mgl_simd simd) {
  size_t bytes = 0;
  size_t plain = 0;
  if (simd == MGL_SIMD_SCALAR || !mgl_cpu_kernels_for(simd)->shorts ||
      mgl_graph_act_dtype(graph) != MGL_DTYPE_BF16) {
    return 0;
  }
  for (uint32_t i = 0; i < graph->tensor_count; i++) {
    if (has_shorts(graph, i)) {
      bytes += short_bytes(&graph->tensors[i]);
      plain += plain_bytes(&graph->tensors[i]);
    }
  }
  return plain < LEAST_BYTES ? 0 : bytes;
}

size_t mgl_cpu_shorts_settle(const mgl_graph *graph, mgl_weight_source source, size_t short_bytes,
                             uint64_t free_bytes) {
  const mgl_cpu_weight_sizes sizes = mgl_cpu_weights_measure(graph);
  const uint64_t all = mgl_cpu_weights_page_bytes(&sizes, source) + short_bytes;
  const bool fits = source == MGL_WEIGHTS_AUTO && all <= free_bytes / 8 * 3;
  return fits || source == MGL_WEIGHTS_SHORT ? short_bytes : 0;
}

typedef struct pack_job {
  const mgl_bf16 *w;
  const mgl_tensor *tensor;
  unsigned char *out;
  mgl_team *team;
  size_t *plain;  // [workers] groups
} pack_job;

static void pack_share(void *context, uint32_t index) {
  const pack_job *job = context;
  const uint32_t rows = job->tensor->dims[0].number;
  const uint32_t k = job->tensor->dims[1].number;
  size_t begin = 0;
  size_t end = 0;
  mgl_team_share(index, mgl_team_size(job->team), mgl_short_groups(rows), 1, &begin, &end);
  job->plain[index] = mgl_short_pack(job->w, rows, k, begin, end, job->out);
}

// Whether few enough of its groups stay plain.
static bool pack(pack_job *job) {
  const uint32_t workers = mgl_team_size(job->team);
  size_t plain = 0;
  mgl_team_run(job->team, pack_share, job);
  for (uint32_t i = 0; i < workers; i++) {
    plain += job->plain[i];
  }
  return plain * MGL_SHORT_MOST_PLAIN <= mgl_short_groups(job->tensor->dims[0].number);
}

void mgl_cpu_shorts_make(mgl_cpu_weights *weights, mgl_simd simd, mgl_team *team,
                         const mgl_topology *topology) {
  const mgl_graph *graph = weights->graph;
  const size_t bytes = weights->shorts == NULL ? mgl_cpu_shorts_bytes(graph, simd) : 0;
  mgl_error ignored = {0};
  if (bytes == 0) {
    return;
  }
  size_t *plain = mgl_alloc_zeroed(mgl_team_size(team), sizeof *plain);
  weights->shorts = mgl_alloc_zeroed(graph->tensor_count, sizeof *weights->shorts);
  if (plain == NULL || weights->shorts == NULL ||
      mgl_pages_map(bytes, "short rows", &weights->short_pages, &ignored) != MGL_OK) {
    mgl_cpu_shorts_release(weights);
    mgl_free(plain);
    return;
  }
  weights->short_bytes = bytes;
  if (topology != NULL) {
    mgl_topology_interleave(topology, weights->short_pages, bytes);
  }
  unsigned char *at = weights->short_pages;
  for (uint32_t i = 0; i < graph->tensor_count; i++) {
    if (has_shorts(graph, i)) {
      const mgl_tensor *tensor = &graph->tensors[i];
      pack_job job = {
          .w = weights->data[i], .tensor = tensor, .out = at, .team = team, .plain = plain};
      weights->shorts[i] = pack(&job) ? at : NULL;
      at += short_bytes(tensor);
    }
  }
  mgl_free(plain);
}

void mgl_cpu_shorts_release(mgl_cpu_weights *weights) {
  mgl_free(weights->shorts);
  mgl_pages_unmap(weights->short_pages, weights->short_bytes);
  weights->shorts = NULL;
  weights->short_pages = NULL;
  weights->short_bytes = 0;
}

uint64_t mgl_cpu_shorts_saved(const mgl_cpu_weights *weights) {
  uint64_t bytes = 0;
  for (size_t i = 0; weights->shorts != NULL && i < weights->graph->tensor_count; i++) {
    const mgl_tensor *tensor = &weights->graph->tensors[i];
    bytes += weights->shorts[i] != NULL ? plain_bytes(tensor) - short_bytes(tensor) : 0;
  }
  return bytes;
}
