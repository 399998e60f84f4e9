// Weights into device memory: matrices packed by the GPU itself, vectors as f32.
//
// A checkpoint's matrices go through a staging buffer, piece by piece; dummies are drawn where they
// will lie. Copies and kernels share the default stream, so that each piece waits for the one
// before.
#include <string.h>

#include "base/alloc.h"
#include "device/cpu/cpu_loads.h"
#include "device/cpu/cpu_weights.h"
#include "device/cuda/cuda_pack.h"
#include "device/cuda/cuda_program_parts.h"
#include "model/dummy_weights.h"
#include "model/expert_weights.h"

typedef struct uploader {
  mgl_cuda_program *p;
  const mgl_checkpoint *checkpoint;  // NULL: dummies
  mgl_cpu_weights found;             // the checkpoint's, in place; vectors as f32
  void *pack;                        // kernels of weights.cu
  void *pack_codes;
  void *dummy_packed;
  void *dummy_rows;
  uint64_t done_bytes, total_bytes;
} uploader;

static mgl_status launch(const uploader *u, void *kernel, uint64_t blocks, void **parameters,
                         mgl_error *err) {
  const mgl_cuda_driver *driver = &u->p->device->driver;
  uint64_t most = u->p->device->sm_count * UINT64_C(16);
  unsigned grid = (unsigned)(blocks < 1 ? 1 : blocks < most ? blocks : most);
  return MGL_CUDA_CALL(driver, launch, err, kernel, grid, 1, 1, MGL_PACK_THREADS, 1, 1, 0, NULL,
                       parameters, NULL);
}

static void report(uploader *u, uint64_t bytes) {
  const mgl_weights_progress *progress = &u->p->build.progress;
  u->done_bytes += bytes;
  if (progress->report != NULL) {
    progress->report(progress->context, u->done_bytes, u->total_bytes);
  }
}

// --- matrices ------------------------------------------------------------------------------------

// A target says where the rows of a matrix go: row block i becomes packed block first_block + i *
// block_stride.
typedef struct target {
  uint32_t tensor;
  const char *name;     // of the stored matrix: the tensor's, or an expert's
  uint32_t rows, k;     // of the matrix
  uint64_t stored[2];   // rows and columns of the stored one, of which a rank may have a part,
  uint64_t first;       // from this element on
  const uint8_t *from;  // the checkpoint's
  uint32_t first_block, block_stride;
  mgl_cu_ptr packed;
} target;

static uint32_t rank_of(const uploader *u) {
  return u->p->peers.rank;
}

// Of the stored matrix, of which a rank may have a part.
static mgl_dummy_stream dummy_stream(const uploader *u, const char *name, const uint64_t dims[2]) {
  return mgl_dummy_weights_stream(name, u->p->build.seed, 2, dims, 0);
}

static mgl_status draw_matrix(uploader *u, target t, mgl_error *err) {
  mgl_dummy_stream stream = dummy_stream(u, t.name, t.stored);
  uint32_t rows = t.rows;
  uint32_t k = t.k;
  void *parameters[] = {&stream, &t.first,       &t.stored[1],    &rows,
                        &k,      &t.first_block, &t.block_stride, &t.packed};
  MGL_TRY(launch(u, u->dummy_packed, mgl_packed_blocks(rows), parameters, err));
  report(u, (uint64_t)rows * k * sizeof(mgl_bf16));
  return MGL_OK;
}

static mgl_status pack_matrix(uploader *u, target t, mgl_error *err) {
  const mgl_cuda_driver *driver = &u->p->device->driver;
  const unsigned char *from = t.from;
  mgl_cu_ptr staging = u->p->memory[MGL_CUDA_MEMORY_STAGING];
  uint32_t k = t.k;
  uint64_t row_bytes = k * sizeof(mgl_bf16);
  // Whole halves of row blocks.
  uint64_t most = u->p->layout.bytes[MGL_CUDA_MEMORY_STAGING] / row_bytes / MGL_CUDA_HALF_ROWS *
                  MGL_CUDA_HALF_ROWS;
  for (uint64_t row = 0; row < t.rows; row += most) {
    uint64_t left = t.rows - row;
    uint32_t rows = (uint32_t)(left < most ? left : most);
    uint32_t first = t.first_block + (uint32_t)(row / MGL_CUDA_HALF_ROWS) * t.block_stride;
    void *parameters[] = {&staging, &rows, &k, &first, &t.block_stride, &t.packed};
    MGL_CUDA_TRY(driver, copy_to_device, err, staging, from + row * row_bytes,
                 (size_t)(rows * row_bytes));
    MGL_TRY(launch(u, u->pack, mgl_packed_blocks(rows), parameters, err));
    report(u, rows * row_bytes);
  }
  return MGL_OK;
}

// A router of dummy weights that makes other choices than random ones: the host draws it.
static mgl_status upload_routed(uploader *u, target t, mgl_error *err) {
  const mgl_build *build = &u->p->build;
  uint16_t *rows = mgl_alloc((size_t)t.rows * t.k * sizeof *rows);
  MGL_TRY(mgl_alloc_check(rows, err, "the router \"%s\"", t.name));
  mgl_dummy_weights_fill(t.name, build->seed, MGL_DTYPE_BF16, 2, t.stored, 0, (size_t)t.rows * t.k,
                         rows);
  mgl_cpu_route_dummy_rows(build->routing, MGL_DTYPE_BF16, t.rows, t.k, rows);
  t.from = (const uint8_t *)rows;
  mgl_status status = pack_matrix(u, t, err);
  mgl_free(rows);
  return status;
}

// Zero points are whole numbers of scales.
static mgl_status check_zeros(const mgl_tensor *tensor, target t, mgl_error *err) {
  const mgl_row_layout layout = mgl_row_layout_of(mgl_tensor_form(tensor), t.k);
  for (uint64_t row = 0; tensor->offsets && row < t.rows; row++) {
    for (uint32_t g = 0; g < layout.groups; g++) {
      const unsigned char *at = t.from + row * layout.bytes + g * sizeof(float);
      float scale, offset;
      memcpy(&scale, at + layout.scales, sizeof scale);
      memcpy(&offset, at + layout.offsets, sizeof offset);
      if (mgl_zero_of(scale, offset) == MGL_NO_ZERO) {
        return mgl_error_set(err, MGL_ERR_UNSUPPORTED,
                             "weight \"%s\", row %llu, group %u: expected an offset that is a "
                             "whole number of scales (up to %d), found %g for a scale of %g; run "
                             "it on the CPU",
                             t.name, (unsigned long long)row, g, MGL_MOST_ZERO, (double)offset,
                             (double)scale);
      }
    }
  }
  return MGL_OK;
}

// Scales of E2M1 are bf16 in panels: powers of two are, as all published formats have them.
static mgl_status check_bf16_scales(const mgl_tensor *tensor, target t, mgl_error *err) {
  const mgl_row_layout layout = mgl_row_layout_of(mgl_tensor_form(tensor), t.k);
  for (uint64_t row = 0; row < t.rows; row++) {
    const unsigned char *scales = t.from + row * layout.bytes + layout.scales;
    for (uint32_t g = 0; g < layout.groups; g++) {
      uint32_t bits;
      memcpy(&bits, scales + g * sizeof bits, sizeof bits);
      if ((bits & 0xffffu) != 0) {
        float scale;
        memcpy(&scale, &bits, sizeof scale);
        return mgl_error_set(err, MGL_ERR_UNSUPPORTED,
                             "weight \"%s\", row %llu, group %u: expected a scale that bf16 has, "
                             "found %.9g; run it on the CPU",
                             t.name, (unsigned long long)row, g, (double)scale);
      }
    }
  }
  return MGL_OK;
}

// Of codes, whose rows the host has made (mgl_cpu_weights).
static mgl_status pack_codes(uploader *u, target t, mgl_packed_matrices m, mgl_error *err) {
  const mgl_cuda_driver *driver = &u->p->device->driver;
  const mgl_tensor *tensor = &u->p->program->tensors[t.tensor];
  mgl_cu_ptr staging = u->p->memory[MGL_CUDA_MEMORY_STAGING];
  const mgl_row_layout row = mgl_row_layout_of(mgl_tensor_form(tensor), m.k);
  uint32_t packing = m.packing;
  MGL_TRY(check_zeros(tensor, t, err));
  if (m.packing == MGL_PACKING_MX4) {
    MGL_TRY(check_bf16_scales(tensor, t, err));
  }
  uint64_t most = u->p->layout.bytes[MGL_CUDA_MEMORY_STAGING] / row.bytes / MGL_CUDA_HALF_ROWS *
                  MGL_CUDA_HALF_ROWS;
  for (uint64_t begin = 0; begin < t.rows; begin += most) {
    uint64_t left = t.rows - begin;
    mgl_code_rows rows = {.rows = mgl_cuda_pointer(staging),
                          .row_count = (uint32_t)(left < most ? left : most),
                          .row_bytes = (uint32_t)row.bytes,
                          .scales = (uint32_t)row.scales,
                          .offsets = (uint32_t)row.offsets,
                          .k = m.k,
                          .group = tensor->group};
    uint32_t first = t.first_block + (uint32_t)(begin / MGL_CUDA_HALF_ROWS) * t.block_stride;
    MGL_CUDA_TRY(driver, copy_to_device, err, staging, t.from + begin * row.bytes,
                 (size_t)(rows.row_count * row.bytes));
    for (uint32_t half = 0; half < 2; half++) {
      void *parameters[] = {&rows, &packing, &half, &first, &t.block_stride, &t.packed};
      MGL_TRY(launch(u, u->pack_codes, mgl_packed_blocks(rows.row_count) * mgl_panels_of(m.k),
                     parameters, err));
    }
    report(u, rows.row_count * row.bytes);
  }
  return MGL_OK;
}

static mgl_status check_stored(const uploader *u, const char *name, mgl_error *err) {
  const mgl_stored_tensor *stored = NULL;
  MGL_TRY(mgl_checkpoint_find(u->checkpoint, name, &stored, err));
  if (stored->dtype != MGL_DTYPE_BF16) {
    return mgl_error_set(err, MGL_ERR_UNSUPPORTED,
                         "weight \"%s\" is stored as %s; matrices on the GPU must be bf16", name,
                         mgl_dtype_name(stored->dtype));
  }
  return MGL_OK;
}

static mgl_status upload_matrix(uploader *u, target t, mgl_packed_matrices m, mgl_error *err) {
  if (m.packing != MGL_PACKING_BF16) {
    return pack_codes(u, t, m, err);
  }
  if (u->checkpoint == NULL) {
    return draw_matrix(u, t, err);
  }
  MGL_TRY(check_stored(u, t.name, err));
  return pack_matrix(u, t, err);
}

// The matrices of all experts, each expert's row blocks behind those of the one before.
static mgl_status upload_experts(uploader *u, target t, mgl_packed_matrices m, mgl_error *err) {
  const mgl_tensor *tensor = &u->p->program->tensors[t.tensor];
  const void *const *matrices = u->found.data == NULL ? NULL : u->found.data[t.tensor];
  const uint64_t expert_bytes = m.row_blocks / m.experts * mgl_packed_row_block_bytes(&m);
  for (uint32_t e = 0; e < m.experts; e++) {
    char name[MGL_GRAPH_MAX_NAME_BYTES];
    mgl_expert_weight_name(tensor->name, e, name, sizeof name);
    t.name = name;
    t.from = matrices == NULL ? NULL : matrices[e];
    MGL_TRY(upload_matrix(u, t, m, err));
    t.packed += expert_bytes;
  }
  return MGL_OK;
}

static mgl_status upload_matrices(uploader *u, uint32_t op_idx, mgl_error *err) {
  const mgl_graph *program = u->p->program;
  const mgl_op *op = &program->ops[op_idx];
  mgl_packed_matrices m = mgl_packed_matrices_of(program, op);
  uint32_t block = 0;
  for (uint32_t i = 0; i < m.count; i++) {
    bool interleaved = mgl_op_info_of(op->kind)->cuda_grain == MGL_CUDA_HALF_ROWS;
    const mgl_tensor *tensor = &program->tensors[op->inputs[m.first + i]];
    const uint32_t rows_dim = m.experts != 0 ? 1 : 0;
    char name[MGL_GRAPH_MAX_NAME_BYTES];
    const uint64_t begin = mgl_slice_begin(tensor, rank_of(u));
    const uint64_t columns = mgl_stored_dim(tensor, rows_dim + 1);
    target t = {.tensor = op->inputs[m.first + i],
                .name = mgl_stored_name(tensor, name),
                .rows = tensor->dims[rows_dim].number,
                .k = tensor->dims[rows_dim + 1].number,
                .stored = {mgl_stored_dim(tensor, rows_dim), columns},
                .first = tensor->slice.dim == 0 ? begin * columns : begin,
                .from = u->found.data == NULL ? NULL : u->found.data[op->inputs[m.first + i]],
                .first_block = interleaved ? i : block,
                .block_stride = interleaved ? 2 : 1,
                .packed = u->p->memory[MGL_CUDA_MEMORY_WEIGHTS] + u->p->layout.matrices[op_idx]};
    block += mgl_packed_blocks(t.rows);
    if (op->kind == MGL_OP_ROUTER && u->checkpoint == NULL &&
        u->p->build.routing != MGL_ROUTING_UNIFORM) {
      MGL_TRY(upload_routed(u, t, err));
      continue;
    }
    MGL_TRY(m.experts != 0 ? upload_experts(u, t, m, err) : upload_matrix(u, t, m, err));
  }
  return MGL_OK;
}

static mgl_status upload_table(uploader *u, uint32_t op_idx, mgl_error *err) {
  uint32_t idx = mgl_op_input(&u->p->program->ops[op_idx], MGL_ROLE_TABLE);
  const mgl_tensor *tensor = &u->p->program->tensors[idx];
  mgl_cu_ptr to = u->p->memory[MGL_CUDA_MEMORY_TABLE] + u->p->layout.matrices[op_idx];
  uint64_t count = (uint64_t)tensor->dims[0].number * tensor->dims[1].number;
  if (u->checkpoint == NULL) {
    const uint64_t dims[] = {tensor->dims[0].number, tensor->dims[1].number};
    mgl_dummy_stream stream = dummy_stream(u, tensor->name, dims);
    void *parameters[] = {&stream, &count, &to};
    MGL_TRY(launch(u, u->dummy_rows, count / MGL_PACK_THREADS, parameters, err));
  } else {
    MGL_TRY(check_stored(u, tensor->name, err));
    MGL_CUDA_TRY(&u->p->device->driver, copy_to_device, err, to, u->found.data[idx],
                 (size_t)(count * sizeof(mgl_bf16)));
  }
  report(u, count * sizeof(mgl_bf16));
  return MGL_OK;
}

// --- vectors -------------------------------------------------------------------------------------

static uint32_t length_of(const mgl_tensor *tensor) {
  return tensor->dims[0].number;
}

// A weight vector as f32: dummies are drawn in the tensor's own dtype and widened, as on the CPU.
static void fill_vector(const uploader *u, uint32_t idx, float *out) {
  const mgl_tensor *tensor = &u->p->program->tensors[idx];
  uint32_t count = length_of(tensor);
  if (u->checkpoint != NULL) {
    memcpy(out, u->found.data[idx], count * sizeof *out);
    return;
  }
  char name[MGL_GRAPH_MAX_NAME_BYTES];
  const uint64_t dims[] = {mgl_stored_dim(tensor, 0)};
  const size_t first = mgl_slice_begin(tensor, rank_of(u));
  (void)mgl_stored_name(tensor, name);
  for (uint32_t i = 0; i < count; i++) {
    unsigned char element[4];
    mgl_dummy_weights_fill(name, u->p->build.seed, tensor->dtype, 1, dims, first + i, first + i + 1,
                           element);
    mgl_widen_f32(tensor->dtype, element, 1, &out[i]);
  }
}

static mgl_status put_vector(const uploader *u, uint64_t offset, const float *from, uint32_t count,
                             mgl_error *err) {
  return MGL_CUDA_CALL(&u->p->device->driver, copy_to_device, err,
                       u->p->memory[MGL_CUDA_MEMORY_VECTORS] + offset, from, count * sizeof *from);
}

static mgl_status upload_vectors(const uploader *u, float *buffer, mgl_error *err) {
  const mgl_graph *program = u->p->program;
  const mgl_cuda_layout *layout = &u->p->layout;
  for (uint32_t i = 0; i < program->tensor_count; i++) {
    if (layout->vectors[i] != MGL_CUDA_NOWHERE) {
      fill_vector(u, i, buffer);
      MGL_TRY(put_vector(u, layout->vectors[i], buffer, length_of(&program->tensors[i]), err));
    }
  }
  for (uint32_t i = 0; i < program->op_count; i++) {
    const mgl_op *op = &program->ops[i];
    if (layout->extras[i] == MGL_CUDA_NOWHERE) {
      continue;
    }
    uint32_t count = 0;
    if (op->kind == MGL_OP_ROPE_ANGLES) {
      count = program->tensors[op->output].dims[1].number;
      memcpy(buffer, op->values, count * sizeof *buffer);
    }
    mgl_op_range biases = mgl_op_inputs(op, MGL_ROLE_BIAS);
    for (uint32_t j = biases.first; j < biases.first + biases.count; j++) {
      fill_vector(u, op->inputs[j], buffer + count);
      count += length_of(&program->tensors[op->inputs[j]]);
    }
    MGL_TRY(put_vector(u, layout->extras[i], buffer, count, err));
  }
  return MGL_OK;
}

// Elements of the longest vector, biases of a layer taken together.
static size_t longest_vector(const mgl_graph *program) {
  size_t longest = 1;
  for (size_t i = 0; i < program->tensor_count; i++) {
    const mgl_tensor *tensor = &program->tensors[i];
    if (tensor->placement == MGL_PLACE_WEIGHT && tensor->rank == 1 && length_of(tensor) > longest) {
      longest = length_of(tensor);
    }
  }
  for (size_t i = 0; i < program->op_count; i++) {
    uint32_t values = program->ops[i].value_count;
    longest = values > longest ? values : longest;
  }
  return 3 * longest;
}

// -------------------------------------------------------------------------------------------------

// The checkpoint's weights, or dummies of codes: the host makes rows of codes, with all its cores.
static mgl_status find_weights(uploader *u, mgl_error *err) {
  const mgl_build *build = &u->p->build;
  const mgl_weight_source source = u->checkpoint == NULL ? MGL_WEIGHTS_DUMMY : MGL_WEIGHTS_MAPPED;
  mgl_topology *topology = NULL;
  mgl_team *team = NULL;
  mgl_status status = MGL_OK;
  if (u->p->packings >> 1 != 0 || u->p->ranks != NULL) {  // columns of a rank are made, too
    status = mgl_topology_create(&topology, err);
    if (status == MGL_OK) {
      status = mgl_team_create(topology, build->threads, &team, err);
    }
  }
  if (status == MGL_OK) {
    status = mgl_cpu_weights_bind_rank(u->p->program, u->checkpoint, source, build->seed, team,
                                       NULL, rank_of(u), NULL, &u->found, err);
  }
  mgl_team_destroy(team);
  mgl_topology_destroy(topology);
  return status;
}

static mgl_status upload(uploader *u, mgl_error *err) {
  mgl_cuda_program *p = u->p;
  const mgl_cuda_driver *driver = &p->device->driver;
  MGL_CUDA_TRY(driver, module_function, err, &u->pack, p->weights_module, "mgl_pack_weights");
  MGL_CUDA_TRY(driver, module_function, err, &u->pack_codes, p->weights_module, "mgl_pack_codes");
  MGL_CUDA_TRY(driver, module_function, err, &u->dummy_packed, p->weights_module,
               "mgl_dummy_packed");
  MGL_CUDA_TRY(driver, module_function, err, &u->dummy_rows, p->weights_module, "mgl_dummy_rows");
  if (u->checkpoint != NULL || p->packings >> 1 != 0) {
    MGL_TRY(find_weights(u, err));
  }
  for (uint32_t i = 0; i < p->program->op_count; i++) {
    if (mgl_op_input(&p->program->ops[i], MGL_ROLE_TABLE) != MGL_NO_TENSOR) {
      MGL_TRY(upload_table(u, i, err));
    }
    MGL_TRY(upload_matrices(u, i, err));
  }
  float *buffer = mgl_alloc_zeroed(longest_vector(p->program), sizeof *buffer);
  MGL_TRY(mgl_alloc_check(buffer, err, "norms and biases"));
  mgl_status status = upload_vectors(u, buffer, err);
  mgl_free(buffer);
  MGL_TRY(status);
  // Also shows what a kernel above ran into.
  return mgl_cuda_check(driver, driver->context_synchronize(), "weights", err);
}

mgl_status mgl_cuda_upload_weights(mgl_cuda_program *p, const mgl_checkpoint *checkpoint,
                                   mgl_error *err) {
  uploader u = {.p = p, .checkpoint = checkpoint};
  for (uint32_t i = 0; i < p->program->op_count; i++) {
    const mgl_op *op = &p->program->ops[i];
    for (uint32_t j = 0; j < op->input_count; j++) {
      const mgl_tensor *w = &p->program->tensors[op->inputs[j]];
      mgl_role role = mgl_op_role(op, j);
      if (role == MGL_ROLE_MATRIX || role == MGL_ROLE_TABLE || role == MGL_ROLE_EXPERTS) {
        u.total_bytes += w->dims[0].number * (uint64_t)mgl_tensor_row_bytes(w);
      }
    }
  }
  mgl_status status = upload(&u, err);
  mgl_cpu_weights_release(&u.found);
  return status;
}
