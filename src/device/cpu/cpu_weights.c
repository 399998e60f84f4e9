#include "device/cpu/cpu_weights.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/file.h"
#include "device/cpu/cpu_shorts.h"
#include "model/dummy_weights.h"
#include "model/expert_weights.h"
#include "model/packed_weights.h"
#include "model/quantize_row.h"

enum {
  MATRIX_ALIGNMENT = 4096,            // a matrix starts on a page, so that it can be placed alone
  FILL_CHUNK_BYTES = 8 * 1024 * 1024  // unit of work and of progress when matrices are made
};

static bool is_weight(const mgl_tensor *tensor) {
  return tensor->placement == MGL_PLACE_WEIGHT;
}

static bool is_cut_by_columns(const mgl_tensor *tensor) {
  return tensor->slice.whole != 0 && tensor->rank > 1 && tensor->slice.dim == tensor->rank - 1;
}

// Whether its rows are made wherever the others are.
static bool is_made(const mgl_tensor *tensor) {
  return tensor->group != 0 || tensor->made || is_cut_by_columns(tensor);
}

static size_t elements_of(const mgl_tensor *tensor) {
  static const mgl_dim_values none = {0};
  return (size_t)mgl_tensor_elements(tensor, &none);
}

// A matrix, or those of all experts, each of which is padded.
static size_t padded_bytes(const mgl_tensor *tensor) {
  const uint32_t experts = mgl_tensor_experts(tensor);
  size_t bytes = (experts != 0 ? 1 : tensor->dims[0].number) * mgl_tensor_row_bytes(tensor);
  bytes = (bytes + MATRIX_ALIGNMENT - 1) / MATRIX_ALIGNMENT * MATRIX_ALIGNMENT;
  return bytes * (experts != 0 ? experts : 1);
}

static mgl_status check_shape(const mgl_tensor *tensor, const mgl_stored_tensor *stored,
                              mgl_error *err) {
  bool same = stored->rank == tensor->rank;
  for (uint32_t i = 0; same && i < tensor->rank; i++) {
    same = stored->dims[i] == mgl_stored_dim(tensor, i);
  }
  if (same) {
    return MGL_OK;
  }
  char found[128] = "a scalar";
  size_t used = 0;
  for (uint32_t i = 0; i < stored->rank && used < sizeof found; i++) {
    used += (size_t)snprintf(found + used, sizeof found - used, "%s%" PRIu64, i == 0 ? "[" : ", ",
                             stored->dims[i]);
  }
  char expected[64];
  if (tensor->rank == 2) {
    (void)snprintf(expected, sizeof expected, "[%" PRIu64 ", %" PRIu64 "]",
                   mgl_stored_dim(tensor, 0), mgl_stored_dim(tensor, 1));
  } else {
    (void)snprintf(expected, sizeof expected, "[%" PRIu64 "]", mgl_stored_dim(tensor, 0));
  }
  return mgl_error_set(err, MGL_ERR_FORMAT,
                       "weight \"%s\": the configuration expects shape %s, the file has %s%s",
                       tensor->name, expected, found, stored->rank > 0 ? "]" : "");
}

// The matrices of all experts of a weight are stored alike: the program has one form for them.
static mgl_status check_form(const mgl_tensor *tensor, const mgl_stored_tensor *stored,
                             mgl_error *err) {
  const mgl_form found =
      stored->packed != NULL ? stored->packed->form : mgl_form_plain(stored->dtype);
  char names[2][MGL_FORM_NAME_BYTES];
  if (mgl_form_same(found, mgl_tensor_form(tensor))) {
    return MGL_OK;
  }
  mgl_form_name(mgl_tensor_form(tensor), names[0]);
  mgl_form_name(found, names[1]);
  return mgl_error_set(err, MGL_ERR_UNSUPPORTED,
                       "weight \"%s\": expected %s as the layer's other experts, found %s",
                       tensor->name, names[0], names[1]);
}

// Makes the elements of a vector that the file has in another order.
static mgl_status make_vector(const mgl_stored_tensor *stored, size_t first, size_t count,
                              float *out, mgl_error *err) {
  unsigned char some[MGL_PACKED_ROWS * sizeof(float)];
  for (size_t done = 0, step; done < count; done += step) {
    step = count - done < MGL_PACKED_ROWS ? count - done : MGL_PACKED_ROWS;
    MGL_TRY(mgl_packed_rows(stored, first + done, (uint32_t)step, some, err));
    mgl_widen_f32(stored->dtype, some, step, out + done);
  }
  return MGL_OK;
}

// Converts or draws elements [first, first + count) of a vector to f32.
static mgl_status fill_piece(const mgl_tensor *tensor, const mgl_stored_tensor *stored,
                             uint64_t seed, size_t first, size_t count, float *out,
                             mgl_error *err) {
  if (stored == NULL) {
    char buffer[MGL_GRAPH_MAX_NAME_BYTES];
    const char *name = mgl_stored_name(tensor, buffer);
    uint64_t dims[] = {mgl_stored_dim(tensor, 0)};
    // Drawn in the tensor's own dtype and widened, so that dummy and stored vectors round alike.
    unsigned char element[4];
    for (size_t i = 0; i < count; i++) {
      mgl_dummy_weights_fill(name, seed, tensor->dtype, 1, dims, first + i, first + i + 1, element);
      mgl_widen_f32(tensor->dtype, element, 1, &out[i]);
    }
    return MGL_OK;
  }
  if (stored->packed != NULL) {
    return make_vector(stored, first, count, out, err);
  }
  mgl_widen_f32(stored->dtype,
                (const unsigned char *)stored->data + first * mgl_dtype_bytes(stored->dtype), count,
                out);
  return MGL_OK;
}

// The rank's part of a vector.
static mgl_status fill_vector(const mgl_tensor *tensor, const mgl_stored_tensor *stored,
                              uint64_t seed, uint32_t rank, float *out, mgl_error *err) {
  const size_t pieces = tensor->slice.pieces == 0 ? 1 : tensor->slice.pieces;
  const size_t count = elements_of(tensor) / pieces;
  if (tensor->slice.only_first && rank != 0) {
    memset(out, 0, pieces * count * sizeof *out);
    return MGL_OK;
  }
  const size_t step = tensor->slice.whole / pieces;  // where there are several
  const size_t first = mgl_slice_begin(tensor, rank);
  for (size_t i = 0; i < pieces; i++) {
    MGL_TRY(fill_piece(tensor, stored, seed, i * step + first, count, out + i * count, err));
  }
  return MGL_OK;
}

// --- making matrices with the team ---------------------------------------------------------------

typedef struct matrix {
  const mgl_tensor *tensor;
  const mgl_stored_tensor *stored;  // NULL: dummy
  unsigned char *out;
  uint32_t rank;  // whose part of it
} matrix;

typedef struct fill_job {
  const matrix *item;
  uint64_t seed;
  mgl_team *team;
  size_t begin, end;  // elements of this step; of codes: rows
  mgl_error *errors;  // [workers]; of codes
} fill_job;

// Elements [from, from + count) of the stored matrix into the rank's from `to` on.
static void fill_run(const matrix *m, uint64_t seed, size_t from, size_t count, size_t to) {
  const size_t element_bytes = mgl_dtype_bytes(m->tensor->dtype);
  unsigned char *out = m->out + to * element_bytes;
  if (m->stored != NULL) {
    const unsigned char *stored = (const unsigned char *)m->stored->data + from * element_bytes;
    memcpy(out, stored, count * element_bytes);
    mgl_file_map_forget(stored, count * element_bytes);
    return;
  }
  char buffer[MGL_GRAPH_MAX_NAME_BYTES];
  uint64_t dims[] = {mgl_stored_dim(m->tensor, 0), mgl_stored_dim(m->tensor, 1)};
  mgl_dummy_weights_fill(mgl_stored_name(m->tensor, buffer), seed, m->tensor->dtype, 2, dims, from,
                         from + count, out);
}

// Elements [begin, end) of the rank's matrix: in one piece, or row by row.
static void fill_elements(const matrix *m, uint64_t seed, size_t begin, size_t end) {
  const size_t first = mgl_slice_begin(m->tensor, m->rank);
  const size_t columns = m->tensor->dims[1].number;
  if (!is_cut_by_columns(m->tensor)) {
    fill_run(m, seed, first * columns + begin, end - begin, begin);
    return;
  }
  for (size_t at = begin, count; at < end; at += count) {
    size_t column = at % columns;
    count = columns - column < end - at ? columns - column : end - at;
    fill_run(m, seed, at / columns * m->tensor->slice.whole + first + column, count, at);
  }
}

static void fill_share(void *context, uint32_t index) {
  const fill_job *job = context;
  const matrix *m = job->item;
  size_t begin = 0;
  size_t end = 0;
  mgl_team_share(index, mgl_team_size(job->team), job->end - job->begin, 4096, &begin, &end);
  begin += job->begin;
  end += job->begin;
  fill_elements(m, job->seed, begin, end);
}

// A row's part that the rank has, out of the codes, scales and offsets of all of it.
static void write_part(const matrix *m, const uint8_t *codes, const float *scales,
                       const float *offsets, unsigned char *out) {
  const mgl_form form = mgl_tensor_form(m->tensor);
  const size_t first = is_cut_by_columns(m->tensor) ? mgl_slice_begin(m->tensor, m->rank) : 0;
  const size_t group = form.group < mgl_stored_dim(m->tensor, 1) ? first / form.group : 0;
  mgl_row_write(form, m->tensor->dims[1].number, codes + first, scales + group,
                form.offsets ? offsets + group : NULL, out);
}

// Draws a row's values and rounds them to codes.
static mgl_status draw_codes(const matrix *m, uint64_t seed, size_t begin, size_t end,
                             mgl_error *err) {
  const mgl_form form = mgl_tensor_form(m->tensor);
  const uint32_t k = (uint32_t)mgl_stored_dim(m->tensor, 1);
  const uint64_t dims[] = {mgl_stored_dim(m->tensor, 0), k};
  const size_t first = is_cut_by_columns(m->tensor) ? 0 : mgl_slice_begin(m->tensor, m->rank);
  size_t row_bytes = mgl_tensor_row_bytes(m->tensor);
  char buffer[MGL_GRAPH_MAX_NAME_BYTES];
  const char *name = mgl_stored_name(m->tensor, buffer);
  mgl_row_quantiser q;
  MGL_TRY(mgl_row_quantiser_create(form, k, &q, err));
  for (size_t row = begin; row < end; row++) {
    mgl_dummy_weights_fill(name, seed, MGL_DTYPE_F32, 2, dims, (first + row) * k,
                           (first + row + 1) * k, q.values);
    mgl_row_quantise(&q, MGL_QUANTISE_RANGE);
    write_part(m, q.codes, q.scales, q.offsets, m->out + row * row_bytes);
  }
  mgl_row_quantiser_destroy(&q);
  return MGL_OK;
}

// The rank's columns of a whole row as it lies in memory.
static void cut_row(const matrix *m, const unsigned char *row, uint8_t *codes, unsigned char *out) {
  const mgl_form form = mgl_tensor_form(m->tensor);
  const size_t first = mgl_slice_begin(m->tensor, m->rank);
  const size_t count = m->tensor->dims[1].number;
  if (form.group == 0) {
    const size_t bytes = mgl_dtype_bytes(form.dtype);
    memcpy(out, row + first * bytes, count * bytes);
    return;
  }
  const mgl_row_layout layout = mgl_row_layout_of(form, (uint32_t)mgl_stored_dim(m->tensor, 1));
  for (size_t i = first; i < first + count; i++) {
    codes[i] = (uint8_t)mgl_row_code(form.dtype, row, (uint32_t)i);
  }
  write_part(m, codes, (const float *)(const void *)(row + layout.scales),
             (const float *)(const void *)(row + layout.offsets), out);
}

// Makes whole rows, and keeps the rank's columns of them.
static mgl_status cut_stored_rows(const matrix *m, size_t begin, size_t end, mgl_error *err) {
  mgl_tensor whole = *m->tensor;
  whole.dims[1].number = m->tensor->slice.whole;
  const size_t whole_bytes = mgl_tensor_row_bytes(&whole);
  const size_t row_bytes = mgl_tensor_row_bytes(m->tensor);
  mgl_status status = MGL_OK;
  unsigned char *rows = mgl_alloc(MGL_PACKED_ROWS * whole_bytes);
  uint8_t *codes = mgl_alloc(whole.dims[1].number);
  if (rows == NULL || codes == NULL) {
    status = mgl_error_set(err, MGL_ERR_MEMORY, "out of memory for \"%s\"", m->tensor->name);
  }
  for (size_t row = begin, count; status == MGL_OK && row < end; row += count) {
    count = end - row < MGL_PACKED_ROWS ? end - row : MGL_PACKED_ROWS;
    status = mgl_packed_rows(m->stored, row, (uint32_t)count, rows, err);
    for (size_t i = 0; status == MGL_OK && i < count; i++) {
      cut_row(m, rows + i * whole_bytes, codes, m->out + (row + i) * row_bytes);
    }
  }
  mgl_free(rows);
  mgl_free(codes);
  return status;
}

static void fill_code_range(const fill_job *job, size_t begin, size_t end, mgl_error *err) {
  const matrix *m = job->item;
  if (m->stored == NULL) {
    (void)draw_codes(m, job->seed, begin, end, err);
  } else if (is_cut_by_columns(m->tensor)) {
    (void)cut_stored_rows(m, begin, end, err);
  } else {
    (void)mgl_packed_rows(m->stored, mgl_slice_begin(m->tensor, m->rank) + begin,
                          (uint32_t)(end - begin), m->out + begin * mgl_tensor_row_bytes(m->tensor),
                          err);
  }
}

static void fill_code_share(void *context, uint32_t index) {
  const fill_job *job = context;
  size_t begin = 0;
  size_t end = 0;
  mgl_team_share(index, mgl_team_size(job->team), job->end - job->begin, MGL_PACKED_ROWS, &begin,
                 &end);
  fill_code_range(job, begin + job->begin, end + job->begin, &job->errors[index]);
}

static void report_fill(const mgl_weights_progress *progress, uint64_t done, uint64_t total) {
  if (progress != NULL && progress->report != NULL) {
    progress->report(progress->context, done, total);
  }
}

static mgl_status fill_codes(const matrix *m, uint64_t seed, mgl_team *team, uint64_t total_bytes,
                             uint64_t *done_bytes, const mgl_weights_progress *progress,
                             mgl_error *err) {
  size_t row_bytes = mgl_tensor_row_bytes(m->tensor), rows = m->tensor->dims[0].number;
  size_t step = FILL_CHUNK_BYTES / row_bytes + 1;
  mgl_status status = MGL_OK;
  const uint32_t workers = team != NULL ? mgl_team_size(team) : 1;
  mgl_error *errors = mgl_alloc_zeroed(workers, sizeof *errors);
  if (errors == NULL) {
    return mgl_error_set(err, MGL_ERR_MEMORY, "out of memory for \"%s\"", m->tensor->name);
  }
  for (size_t begin = 0; begin < rows && status == MGL_OK; begin += step) {
    fill_job job = {.item = m,
                    .seed = seed,
                    .team = team,
                    .begin = begin,
                    .end = rows - begin < step ? rows : begin + step,
                    .errors = errors};
    if (team != NULL) {
      mgl_team_run(team, fill_code_share, &job);
    } else {
      fill_code_range(&job, begin, job.end, &errors[0]);
    }
    for (uint32_t i = 0; i < workers && status == MGL_OK; i++) {
      if (errors[i].status != MGL_OK) {
        status = mgl_error_set(err, errors[i].status, "%s", errors[i].text);
      }
    }
    *done_bytes += (job.end - job.begin) * row_bytes;
    report_fill(progress, *done_bytes, total_bytes);
  }
  mgl_free(errors);
  return status;
}

static void fill_matrix(const matrix *m, uint64_t seed, mgl_team *team, uint64_t total_bytes,
                        uint64_t *done_bytes, const mgl_weights_progress *progress) {
  size_t element_bytes = mgl_dtype_bytes(m->tensor->dtype);
  size_t step = FILL_CHUNK_BYTES / element_bytes;
  size_t count = elements_of(m->tensor);
  for (size_t begin = 0; begin < count; begin += step) {
    fill_job job = {.item = m,
                    .seed = seed,
                    .team = team,
                    .begin = begin,
                    .end = count - begin < step ? count : begin + step};
    mgl_team_run(team, fill_share, &job);
    *done_bytes += (job.end - job.begin) * element_bytes;
    report_fill(progress, *done_bytes, total_bytes);
  }
}

// -----------------------------------------------------------------------------------------------

uint64_t mgl_cpu_weights_step_bytes(const mgl_graph *graph) {
  uint64_t bytes = 0;
  for (size_t i = 0; i < graph->op_count; i++) {
    mgl_op_range matrices = mgl_op_inputs(&graph->ops[i], MGL_ROLE_MATRIX);
    for (uint32_t j = matrices.first; j < matrices.first + matrices.count; j++) {
      const mgl_tensor *w = &graph->tensors[graph->ops[i].inputs[j]];
      bytes += w->dims[0].number * mgl_tensor_row_bytes(w);
    }
    mgl_op_range experts = mgl_op_inputs(&graph->ops[i], MGL_ROLE_EXPERTS);
    for (uint32_t j = experts.first; j < experts.first + experts.count; j++) {
      const mgl_tensor *w = &graph->tensors[graph->ops[i].inputs[j]];
      bytes += mgl_op_slots(graph, &graph->ops[i]) * mgl_tensor_row_bytes(w);
    }
  }
  return bytes;
}

uint64_t mgl_cpu_weights_expert_bytes(const mgl_graph *graph) {
  uint64_t bytes = 0;
  for (size_t i = 0; i < graph->tensor_count; i++) {
    const uint32_t experts = mgl_tensor_experts(&graph->tensors[i]);
    bytes += experts > 1 ? experts * mgl_tensor_row_bytes(&graph->tensors[i]) : 0;
  }
  return bytes;
}

// Whether a matrix that need not be made, of an expert or not, is used where the file is mapped.
static bool is_in_place(mgl_weight_source source, bool expert) {
  return source == MGL_WEIGHTS_MAPPED || source == MGL_WEIGHTS_SHORT ||
         (source == MGL_WEIGHTS_AUTO && expert);
}

uint64_t mgl_cpu_weights_cold_bytes(const mgl_graph *graph, mgl_weight_source source) {
  uint64_t bytes = 0;
  for (size_t i = 0; i < graph->op_count; i++) {
    const mgl_op *op = &graph->ops[i];
    const mgl_op_range experts = mgl_op_inputs(op, MGL_ROLE_EXPERTS);
    for (uint32_t j = experts.first; j < experts.first + experts.count; j++) {
      const mgl_tensor *w = &graph->tensors[op->inputs[j]];
      bytes += is_made(w) || !is_in_place(source, true)
                   ? 0
                   : (mgl_tensor_experts(w) - mgl_op_slots(graph, op)) * mgl_tensor_row_bytes(w);
    }
  }
  return bytes;
}

typedef struct binder {
  const mgl_graph *graph;
  const mgl_checkpoint *checkpoint;
  mgl_weight_source source;
  uint64_t seed;
  mgl_team *team;
  const mgl_weights_progress *progress;
  uint32_t rank;
  mgl_cpu_weights *out;
} binder;

// Binds one matrix: where it is stored, or at *matrix_at, behind which the next one begins.
static mgl_status bind_matrix(const binder *b, const mgl_tensor *tensor, bool expert,
                              const mgl_stored_tensor *stored, unsigned char **matrix_at,
                              const void **out, uint64_t *done_bytes, mgl_error *err) {
  if (is_in_place(b->source, expert) && !is_made(tensor)) {
    *out = (const unsigned char *)stored->data +
           mgl_slice_begin(tensor, b->rank) * mgl_tensor_row_bytes(tensor);
    return MGL_OK;
  }
  matrix m = {.tensor = tensor, .stored = stored, .out = *matrix_at, .rank = b->rank};
  if (tensor->group != 0 || tensor->made) {
    MGL_TRY(fill_codes(&m, b->seed, b->team, b->out->pages_bytes, done_bytes, b->progress, err));
  } else {
    fill_matrix(&m, b->seed, b->team, b->out->pages_bytes, done_bytes, b->progress);
  }
  *out = *matrix_at;
  *matrix_at += padded_bytes(tensor);
  return MGL_OK;
}

// Binds the matrices of all experts, which have names and files of their own.
static mgl_status bind_experts(const binder *b, const mgl_tensor *tensor, const void **table,
                               unsigned char **matrix_at, uint64_t *done_bytes, mgl_error *err) {
  for (uint32_t e = 0; e < tensor->dims[0].number; e++) {
    char name[MGL_GRAPH_MAX_NAME_BYTES];
    const mgl_stored_tensor *stored = NULL;
    mgl_tensor one = *tensor;
    mgl_expert_weight_name(tensor->name, e, name, sizeof name);
    one.name = name;
    one.rank = 2;
    one.dims[0] = tensor->dims[1];
    one.dims[1] = tensor->dims[2];
    one.slice.dim -= tensor->slice.whole != 0 ? 1 : 0;
    if (b->source != MGL_WEIGHTS_DUMMY) {
      MGL_TRY(mgl_checkpoint_find(b->checkpoint, name, &stored, err));
      MGL_TRY(check_shape(&one, stored, err));
      MGL_TRY(check_form(&one, stored, err));
    }
    MGL_TRY(bind_matrix(b, &one, true, stored, matrix_at, &table[e], done_bytes, err));
  }
  return MGL_OK;
}

static mgl_status bind_one(const binder *b, size_t tensor_idx, unsigned char **matrix_at,
                           float **vector_at, const void ***table_at, uint64_t *done_bytes,
                           mgl_error *err) {
  const mgl_tensor *tensor = &b->graph->tensors[tensor_idx];
  if (mgl_tensor_experts(tensor) != 0) {
    const void **table = *table_at;
    b->out->data[tensor_idx] = table;
    *table_at += mgl_tensor_experts(tensor);
    return bind_experts(b, tensor, table, matrix_at, done_bytes, err);
  }
  const mgl_stored_tensor *stored = NULL;
  if (b->source != MGL_WEIGHTS_DUMMY) {
    char buffer[MGL_GRAPH_MAX_NAME_BYTES];
    MGL_TRY(mgl_checkpoint_find(b->checkpoint, mgl_stored_name(tensor, buffer), &stored, err));
    MGL_TRY(check_shape(tensor, stored, err));
  }
  if (tensor->rank == 1) {
    MGL_TRY(fill_vector(tensor, stored, b->seed, b->rank, *vector_at, err));
    b->out->data[tensor_idx] = *vector_at;
    *vector_at += elements_of(tensor);
    return MGL_OK;
  }
  return bind_matrix(b, tensor, false, stored, matrix_at, &b->out->data[tensor_idx], done_bytes,
                     err);
}

mgl_cpu_weight_sizes mgl_cpu_weights_measure(const mgl_graph *graph) {
  mgl_cpu_weight_sizes sizes = {0};
  for (size_t i = 0; i < graph->tensor_count; i++) {
    const mgl_tensor *tensor = &graph->tensors[i];
    if (is_weight(tensor) && tensor->rank == 1) {
      sizes.vector_bytes += elements_of(tensor) * sizeof(float);
    } else if (is_weight(tensor)) {
      sizes.matrix_bytes += padded_bytes(tensor);
      sizes.made_bytes += is_made(tensor) ? padded_bytes(tensor) : 0;
      sizes.expert_bytes +=
          mgl_tensor_experts(tensor) != 0 && !is_made(tensor) ? padded_bytes(tensor) : 0;
    }
  }
  return sizes;
}

size_t mgl_cpu_weights_page_bytes(const mgl_cpu_weight_sizes *sizes, mgl_weight_source source) {
  size_t bytes = sizes->made_bytes;
  bytes += is_in_place(source, true) ? 0 : sizes->expert_bytes;
  bytes += is_in_place(source, false)
               ? 0
               : sizes->matrix_bytes - sizes->made_bytes - sizes->expert_bytes;
  return bytes;
}

mgl_weight_source mgl_cpu_weights_settle(const mgl_graph *graph, mgl_weight_source source,
                                         uint64_t free_bytes) {
  const mgl_cpu_weight_sizes sizes = mgl_cpu_weights_measure(graph);
  const bool fits = mgl_cpu_weights_page_bytes(&sizes, source) <= free_bytes / 2;
  return source == MGL_WEIGHTS_AUTO && !fits ? MGL_WEIGHTS_MAPPED : source;
}

mgl_status mgl_cpu_weights_bind_rank(const mgl_graph *graph, const mgl_checkpoint *checkpoint,
                                     mgl_weight_source source, uint64_t seed, mgl_team *team,
                                     const mgl_topology *topology, uint32_t rank,
                                     const mgl_weights_progress *progress, mgl_cpu_weights *out,
                                     mgl_error *err) {
  *out = (mgl_cpu_weights){.graph = graph, .step_bytes = mgl_cpu_weights_step_bytes(graph)};
  binder b = {graph, checkpoint, source, seed, team, progress, rank, out};
  mgl_status status = MGL_OK;
  mgl_cpu_weight_sizes sizes = mgl_cpu_weights_measure(graph);
  size_t vector_elements = sizes.vector_bytes / sizeof *out->vectors;
  size_t matrix_bytes = mgl_cpu_weights_page_bytes(&sizes, source);
  size_t expert_count = 1;  // so that there is something to allocate
  for (size_t i = 0; i < graph->tensor_count; i++) {
    expert_count += mgl_tensor_experts(&graph->tensors[i]);
  }
  out->data = mgl_alloc_zeroed(graph->tensor_count, sizeof *out->data);
  out->experts = mgl_alloc_zeroed(expert_count, sizeof *out->experts);
  out->vectors = mgl_alloc_zeroed(vector_elements, sizeof *out->vectors);
  if (out->data == NULL || out->experts == NULL || out->vectors == NULL) {
    status =
        mgl_error_set(err, MGL_ERR_MEMORY, "out of memory for %zu norm weights", vector_elements);
    goto fail;
  }
  if (matrix_bytes != 0) {
    status = mgl_pages_map(matrix_bytes, "weights", &out->pages, err);
    if (status != MGL_OK) {
      goto fail;
    }
    out->pages_bytes = matrix_bytes;
    if (topology != NULL) {
      mgl_topology_interleave(topology, out->pages, matrix_bytes);
    }
  }
  unsigned char *matrix_at = out->pages;
  float *vector_at = out->vectors;
  const void **table_at = out->experts;
  uint64_t done_bytes = 0;
  for (size_t i = 0; i < graph->tensor_count; i++) {
    if (is_weight(&graph->tensors[i])) {
      status = bind_one(&b, i, &matrix_at, &vector_at, &table_at, &done_bytes, err);
      if (status != MGL_OK) {
        goto fail;
      }
    }
  }
  return MGL_OK;
fail:
  mgl_cpu_weights_release(out);
  return status;
}

mgl_status mgl_cpu_weights_bind(const mgl_graph *graph, const mgl_checkpoint *checkpoint,
                                mgl_weight_source source, uint64_t seed, mgl_team *team,
                                const mgl_topology *topology, const mgl_weights_progress *progress,
                                mgl_cpu_weights *out, mgl_error *err) {
  return mgl_cpu_weights_bind_rank(graph, checkpoint, source, seed, team, topology, 0, progress,
                                   out, err);
}

void mgl_cpu_weights_release(mgl_cpu_weights *weights) {
  mgl_free(weights->data);
  mgl_free(weights->experts);
  mgl_free(weights->vectors);
  mgl_pages_unmap(weights->pages, weights->pages_bytes);
  mgl_cpu_shorts_release(weights);
  *weights = (mgl_cpu_weights){0};
}
