#include "gpu/gpu_twin.h"

#include <string.h>

#include "base/alloc.h"
#include "compile/compile.h"
#include "device/cpu/cpu_tasks.h"
#include "graph/family.h"
#include "task/tile.h"

// Everything behind the canonical program.
static void open_twin(const mgl_graph *canonical, uint32_t tokens, uint32_t page_count,
                      gpu_twin *t) {
  mgl_error err = {0};
  mgl_simd simd = MGL_SIMD_SCALAR;
  gpu_must(mgl_simd_choose(&simd, &err), &err);
  gpu_must(mgl_topology_create(&t->topology, &err), &err);
  gpu_must(mgl_team_create(t->topology, 0, &t->team, &err), &err);
  gpu_must(mgl_cpu_weights_bind(canonical, NULL, MGL_WEIGHTS_DUMMY, GPU_SEED, t->team, t->topology,
                                NULL, &t->weights, &err),
           &err);
  mgl_cpu_memory_options memory = {
      .page_tokens = GPU_PAGE_TOKENS, .page_count = page_count, .workers = mgl_team_size(t->team)};
  gpu_must(mgl_cpu_memory_create(&t->weights, &memory, t->topology, &t->memory, &err), &err);
  gpu_must(mgl_fuse_ops(canonical, &t->fused, &err), &err);
  mgl_compile_options compile = {.tokens = tokens, .workers = 1};
  gpu_must(mgl_compile(t->fused, &compile, &t->graph, NULL, &err), &err);
  mgl_cpu_program_options program = {.simd = simd, .task_graph = t->graph};
  gpu_must(mgl_cpu_program_create(t->fused, t->memory, &program, &t->program, &err), &err);
  t->results = gpu_must_alloc(t->fused->op_count, sizeof *t->results);
  const mgl_dim_values largest = {tokens, tokens, tokens};
  for (size_t i = 0; i < t->fused->op_count; i++) {
    const mgl_tensor *result = &t->fused->tensors[t->fused->ops[i].output];
    t->results[i] = gpu_must_alloc((size_t)mgl_tensor_elements(result, &largest), sizeof(float));
  }
}

void gpu_twin_open(const gpu_model *model, uint32_t tokens, uint32_t page_count, gpu_twin *out) {
  *out = (gpu_twin){0};
  open_twin(model->program, tokens, page_count, out);
}

// A row of a matrix as what it stands for.
static void widen_row(const mgl_tensor *tensor, const void *data, uint32_t row, uint32_t k,
                      float *out) {
  const mgl_form form = mgl_tensor_form(tensor);
  if (form.group == 0) {
    const size_t bytes = (size_t)mgl_dtype_bytes(tensor->dtype);
    mgl_widen_f32(tensor->dtype, (const unsigned char *)data + (size_t)row * k * bytes, k, out);
    return;
  }
  const size_t row_bytes = (size_t)mgl_row_layout_of(form, k).bytes;
  mgl_row_widen(form, k, (const unsigned char *)data + row * row_bytes, out);
}

// Rows of a matrix. to: where the other twin has them, as f32, or rounded to bf16.
static void widen_rows(const mgl_tensor *tensor, uint32_t rows_dim, const void *data,
                       mgl_dtype dtype, const void *to, mgl_cpu_weights *weights) {
  const unsigned char *begin = (const unsigned char *)weights->pages;
  unsigned char *out = (unsigned char *)weights->pages + ((const unsigned char *)to - begin);
  const uint32_t rows = tensor->dims[rows_dim].number, k = tensor->dims[rows_dim + 1].number;
  float *widened = gpu_must_alloc(k, sizeof *widened);
  for (uint32_t row = 0; row < rows; row++) {
    widen_row(tensor, data, row, k, widened);
    if (dtype == MGL_DTYPE_F32) {
      memcpy(out + (size_t)row * k * sizeof *widened, widened, k * sizeof *widened);
    } else {
      mgl_bf16 *rounded = (mgl_bf16 *)(void *)out + (size_t)row * k;
      for (uint32_t i = 0; i < k; i++) {
        rounded[i] = mgl_f32_to_bf16(widened[i]);
      }
    }
  }
  mgl_free(widened);
}

// Copied from the other twin, not drawn: the weights are the same whatever the drawing does.
static void widen_weights(const mgl_cpu_weights *from, mgl_cpu_weights *to) {
  static const mgl_dim_values none = {0};
  mgl_error err = {0};
  for (uint32_t i = 0; i < to->graph->tensor_count; i++) {
    const mgl_tensor *tensor = &to->graph->tensors[i];
    uint32_t same = mgl_graph_find(from->graph, tensor->name);
    size_t count = (size_t)mgl_tensor_elements(tensor, &none);
    if (to->data[i] == NULL) {
      continue;
    }
    const bool known = tensor->dtype == MGL_DTYPE_F32 || tensor->dtype == MGL_DTYPE_BF16;
    if (same == MGL_NO_TENSOR || from->data[same] == NULL || !known ||
        mgl_tensor_elements(&from->graph->tensors[same], &none) != count) {
      gpu_must(mgl_error_set(&err, MGL_ERR_INTERNAL, "the other twin's \"%s\" is another weight",
                             tensor->name),
               &err);
    }
    const mgl_tensor *have = &from->graph->tensors[same];
    if (tensor->rank == 1) {  // f32 in both
      const float *vector = to->data[i];
      memcpy(to->vectors + (vector - to->vectors), from->data[same], count * sizeof *vector);
    } else if (mgl_tensor_experts(tensor) == 0) {
      widen_rows(have, 0, from->data[same], tensor->dtype, to->data[i], to);
    }
    for (uint32_t e = 0; e < mgl_tensor_experts(tensor); e++) {
      widen_rows(have, 1, ((const void *const *)from->data[same])[e], tensor->dtype,
                 ((const void *const *)to->data[i])[e], to);
    }
  }
}

// A twin whose weights are those of `cpu` in another dtype.
static void open_as(const gpu_model *model, const gpu_twin *cpu, mgl_dtype dtype, gpu_twin *out) {
  mgl_error err = {0};
  mgl_config config = model->config;
  config.dtype = dtype;
  config.quantization = (mgl_quantization){0};
  *out = (gpu_twin){0};
  gpu_must(mgl_family_build(&config, NULL, &out->widened, &err), &err);
  open_twin(out->widened, (uint32_t)cpu->graph->tokens, cpu->memory->options.page_count, out);
  widen_weights(&cpu->weights, &out->weights);
  bool same = out->fused->op_count == cpu->fused->op_count && out->program->act == dtype;
  for (uint32_t i = 0; same && i < cpu->fused->op_count; i++) {
    same = strcmp(out->fused->tensors[out->fused->ops[i].output].name,
                  cpu->fused->tensors[cpu->fused->ops[i].output].name) == 0;
  }
  if (!same) {
    gpu_must(mgl_error_set(&err, MGL_ERR_INTERNAL, "the other twin has other ops"), &err);
  }
}

void gpu_twin_open_exact(const gpu_model *model, const gpu_twin *cpu, gpu_twin *out) {
  open_as(model, cpu, MGL_DTYPE_F32, out);
}

void gpu_twin_open_rounded(const gpu_model *model, const gpu_twin *cpu, gpu_twin *out) {
  open_as(model, cpu, MGL_DTYPE_BF16, out);
}

void gpu_twin_close(gpu_twin *t) {
  for (size_t i = 0; i < t->fused->op_count; i++) {
    mgl_free(t->results[i]);
  }
  mgl_free(t->results);
  mgl_cpu_program_destroy(t->program);
  mgl_task_graph_destroy(t->graph);
  mgl_graph_destroy(t->fused);
  mgl_cpu_memory_destroy(t->memory);
  mgl_cpu_weights_release(&t->weights);
  mgl_graph_destroy(t->widened);
  mgl_team_destroy(t->team);
  mgl_topology_destroy(t->topology);
}

typedef struct twin_share {
  const gpu_twin *twin;
  uint32_t op;
} twin_share;

static void run_share(void *context, uint32_t worker) {
  const twin_share *share = context;
  const gpu_twin *t = share->twin;
  const mgl_op *op = &t->fused->ops[share->op];
  size_t begin = 0;
  size_t end = 0;
  mgl_team_share(worker, mgl_team_size(t->team),
                 mgl_tile_units(t->fused, op, t->graph->tokens, t->graph->attention_strides),
                 mgl_tile_grain(op, MGL_TARGET_CPU), &begin, &end);
  if (begin < end) {
    mgl_cpu_task_run(t->program, worker, share->op, (uint32_t)begin, (uint32_t)end);
  }
}

void gpu_twin_run(gpu_twin *t, const mgl_plan *plan, uint32_t first, uint32_t last) {
  mgl_cpu_program_set_plan(t->program, plan);
  for (uint32_t i = first; i < t->fused->op_count && i <= last; i++) {
    uint32_t output = t->fused->ops[i].output;
    mgl_team_run(t->team, run_share, &(twin_share){.twin = t, .op = i});
    mgl_widen_f32(t->fused->tensors[output].dtype, mgl_cpu_program_tensor(t->program, output),
                  gpu_twin_elements(t, i), t->results[i]);
  }
}

size_t gpu_twin_elements(const gpu_twin *t, uint32_t op) {
  return (size_t)mgl_cpu_program_elements(t->program, t->fused->ops[op].output);
}

uint32_t gpu_twin_producer(const gpu_twin *t, uint32_t tensor) {
  for (uint32_t i = 0; i < t->fused->op_count; i++) {
    if (t->fused->ops[i].output == tensor) {
      return i;
    }
  }
  return UINT32_MAX;
}
