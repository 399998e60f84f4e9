#include "lower/packed.h"

#include "base/form.h"
#include "twin/device_run.h"

static mgl_packing packing_of(const mgl_tensor *tensor) {
  switch (tensor->dtype) {
    case MGL_DTYPE_E4M3: return MGL_PACKING_E4M3;
    case MGL_DTYPE_I8: return MGL_PACKING_I8;
    case MGL_DTYPE_I4: return tensor->offsets ? MGL_PACKING_Z4 : MGL_PACKING_I4;
    case MGL_DTYPE_E2M1: return MGL_PACKING_MX4;
    default: return MGL_PACKING_BF16;
  }
}

mgl_packed_matrices mgl_packed_matrices_of(const mgl_graph *program, const mgl_op *op) {
  mgl_op_range inputs = mgl_op_inputs(op, MGL_ROLE_MATRIX);
  bool experts = inputs.count == 0 && mgl_op_is_linear(op);
  inputs = experts ? mgl_op_inputs(op, MGL_ROLE_EXPERTS) : inputs;
  mgl_packed_matrices m = {.first = inputs.first, .count = inputs.count};
  if (m.count == 0) {
    return (mgl_packed_matrices){0};
  }
  uint32_t halves = 0;
  m.experts = experts ? program->tensors[op->inputs[m.first]].dims[0].number : 0;
  m.k = program->tensors[op->inputs[m.first]].dims[experts ? 2 : 1].number;
  m.k_padded = (m.k + MGL_CUDA_K_ALIGN - 1) / MGL_CUDA_K_ALIGN * MGL_CUDA_K_ALIGN;
  const mgl_tensor *first = &program->tensors[op->inputs[m.first]];
  m.packing = packing_of(first);
  m.group = first->group < MGL_PANEL_K ? first->group : (uint32_t)MGL_PANEL_K;
  for (uint32_t i = 0; i < m.count; i++) {
    uint32_t rows = program->tensors[op->inputs[m.first + i]].dims[experts ? 1 : 0].number;
    halves += (rows + MGL_CUDA_HALF_ROWS - 1) / MGL_CUDA_HALF_ROWS;
  }
  m.row_blocks = (halves + 1) / 2 * (experts ? m.experts : 1);
  return m;
}

uint32_t mgl_packed_flags(const mgl_packed_matrices *matrices) {
  uint32_t group_shift = 0;
  while (1u << group_shift < matrices->group) {
    group_shift++;
  }
  return mgl_packing_flags(matrices->packing, group_shift);
}

uint64_t mgl_packed_row_block_bytes(const mgl_packed_matrices *matrices) {
  if (matrices->packing == MGL_PACKING_BF16) {
    return (uint64_t)matrices->k_padded * MGL_CUDA_BLOCK_ROWS * 2;
  }
  return (uint64_t)mgl_panels_of(matrices->k) * mgl_panel_bytes(matrices->packing, matrices->group);
}

mgl_packed_matrices mgl_packed_widened(const mgl_packed_matrices *matrices) {
  mgl_packed_matrices widened = *matrices;
  widened.packing = MGL_PACKING_BF16;
  widened.group = 0;
  return widened;
}

uint64_t mgl_packed_program_bytes(const mgl_graph *program) {
  uint64_t bytes = 0;
  for (size_t i = 0; i < program->op_count; i++) {
    mgl_packed_matrices m = mgl_packed_matrices_of(program, &program->ops[i]);
    bytes += m.row_blocks * mgl_packed_row_block_bytes(&m);
  }
  return bytes;
}

// Whether rows of `k` elements become panels. Of experts, whose down is read as one row over all
// slots, groups do not go over the end of an expert's row either: panels are put together from
// several (roles/loader_experts.cuh).
static bool becomes_panels(const mgl_tensor *w, mgl_form form, uint32_t k, bool of_experts) {
  const mgl_packing packing = packing_of(w);
  bool power = form.group >= MGL_PANEL_LEAST_GROUP && form.group <= MGL_PANEL_K &&
               (form.group & (form.group - 1)) == 0;
  bool groups =
      of_experts && k % MGL_PANEL_K != 0 ? power && k % form.group == 0 : power || form.group >= k;
  return packing != MGL_PACKING_BF16 &&
         (packing != MGL_PACKING_MX4 || (of_experts && form.group == MGL_MX4_GROUP)) &&
         (!form.offsets || packing == MGL_PACKING_Z4) && groups && k % MGL_PANEL_COLUMNS == 0;
}

// One form of all matrices of an op.
static mgl_status check_op(const mgl_graph *program, const mgl_op *op, mgl_error *err) {
  const mgl_packed_matrices m = mgl_packed_matrices_of(program, op);
  for (uint32_t i = 0; i < m.count; i++) {
    const mgl_tensor *w = &program->tensors[op->inputs[m.first + i]];
    const mgl_tensor *first = &program->tensors[op->inputs[m.first]];
    const mgl_form form = mgl_tensor_form(w);
    const uint32_t rows_dim = m.experts != 0 ? 1 : 0;
    char names[2][MGL_FORM_NAME_BYTES];
    mgl_form_name(form, names[0]);
    mgl_form_name(mgl_tensor_form(first), names[1]);
    if (!mgl_form_same(form, mgl_tensor_form(first))) {
      return mgl_error_set(err, MGL_ERR_UNSUPPORTED,
                           "weight \"%s\" is %s and \"%s\" %s; matrices that are multiplied "
                           "together must be alike",
                           w->name, names[0], first->name, names[1]);
    }
    if (m.packing == MGL_PACKING_MX4 && mgl_op_slots(program, op) > MGL_MX4_MOST_SLOTS) {
      return mgl_error_set(err, MGL_ERR_UNSUPPORTED,
                           "weight \"%s\" is %s; with such the tasks of a GPU choose up to %d "
                           "experts for a token, found %u",
                           w->name, names[0], MGL_MX4_MOST_SLOTS, mgl_op_slots(program, op));
    }
    if (form.group != 0 && !becomes_panels(w, form, m.k, m.experts != 0)) {
      return mgl_error_set(err, MGL_ERR_UNSUPPORTED,
                           "weight \"%s\" is %s [%u, %u]; the tasks of a GPU have e4m3, i8 and i4, "
                           "of experts e2m1 in groups of 32, with groups of 32 to 1024 (powers of "
                           "two) or whole rows, "
                           "with offsets only i4, in rows of a multiple of %d%s",
                           w->name, names[0], w->dims[rows_dim].number, m.k, MGL_PANEL_COLUMNS,
                           m.experts != 0 ? ", of experts whole groups" : "");
    }
  }
  return MGL_OK;
}

mgl_status mgl_packed_check(const mgl_graph *program, mgl_error *err) {
  for (size_t i = 0; i < program->op_count; i++) {
    MGL_TRY(check_op(program, &program->ops[i], err));
    const mgl_tensor *table = mgl_graph_input(program, &program->ops[i], MGL_ROLE_TABLE);
    if (table != NULL && table->group != 0) {
      return mgl_error_set(err, MGL_ERR_UNSUPPORTED,
                           "the table \"%s\" is quantised, and the tasks of a GPU want it in bf16",
                           table->name);
    }
  }
  return MGL_OK;
}

uint32_t mgl_packed_kinds(const mgl_graph *program) {
  uint32_t kinds = 0;
  for (size_t i = 0; i < program->op_count; i++) {
    mgl_packed_matrices m = mgl_packed_matrices_of(program, &program->ops[i]);
    kinds |= m.count > 0 ? 1u << m.packing : 0;
  }
  return kinds;
}

bool mgl_packed_has_codes(const mgl_graph *program) {
  return mgl_packed_kinds(program) >> 1 != 0;
}

bool mgl_packed_has_group(const mgl_graph *program, uint32_t group) {
  for (size_t i = 0; i < program->op_count; i++) {
    mgl_packed_matrices m = mgl_packed_matrices_of(program, &program->ops[i]);
    if (m.count > 0 && m.packing != MGL_PACKING_BF16 && m.group == group) {
      return true;
    }
  }
  return false;
}

uint32_t mgl_packed_page_bytes(const mgl_graph *program) {
  uint32_t most = MGL_CUDA_PAGE_BYTES;
  for (size_t i = 0; i < program->op_count; i++) {
    mgl_packed_matrices m = mgl_packed_matrices_of(program, &program->ops[i]);
    if (m.count > 0 && m.packing != MGL_PACKING_BF16) {
      uint32_t bytes = mgl_packing_panels(m.packing) * mgl_panel_bytes(m.packing, m.group);
      most = bytes > most ? bytes : most;
    }
  }
  return most;
}
