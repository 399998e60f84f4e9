#include "device/cpu/cpu_argmax.h"

#include <assert.h>
#include <math.h>
#include <stdbool.h>

// Columns that are looked at together: their largest is found first, and its index only where it
// goes before what is known.
enum { BLOCK = 1024 };

static bool goes_before(float a, uint32_t a_idx, float b, uint32_t b_idx) {
  if (isnan(a) || isnan(b)) {
    return isnan(a) && (!isnan(b) || a_idx < b_idx);
  }
  return a > b || (a == b && a_idx < b_idx);
}

// The first element that is `value`, a NaN if that is one.
static size_t find(const float *row, size_t begin, float value) {
  size_t i = begin;
  while (isnan(value) ? !isnan(row[i]) : row[i] != value) {
    i++;
  }
  return i;
}

// Puts the largest of columns [begin, end) of `row` into *best, if it goes before what is there.
static void note_row(const mgl_cpu_program *p, const float *row, size_t begin, size_t end,
                     mgl_logit_note *best) {
  for (size_t first = begin, count; first < end; first += count) {
    count = end - first < BLOCK ? end - first : BLOCK;
    float largest = p->kernels->largest(row + first, count);
    bool fresh = best->iteration != p->iteration;
    // The index decides between equal ones, and `first` is the smallest that it can be.
    if (!fresh && !goes_before(largest, (uint32_t)first, best->logit, best->index)) {
      continue;
    }
    uint32_t index = (uint32_t)find(row, first, largest);
    if (fresh || goes_before(largest, index, best->logit, best->index)) {
      *best = (mgl_logit_note){.iteration = p->iteration, .logit = largest, .index = index};
    }
  }
}

// Notes columns [column, column_end) of rows [row, row_end).
static void note_part(const mgl_cpu_program *p, uint32_t worker, size_t row, size_t row_end,
                      size_t column, size_t column_end) {
  assert(worker < p->memory->options.workers);
  mgl_logit_note *notes = p->memory->logit_notes + (size_t)worker * p->memory->logit_rows;
  const float *logits = mgl_cpu_program_tensor(p, p->logits);
  size_t columns = (size_t)mgl_tensor_row_elements(&p->graph->tensors[p->logits]);
  for (; row < row_end; row++) {
    note_row(p, logits + row * columns, column, column_end, &notes[row]);
  }
}

void mgl_cpu_program_note_logits(const mgl_cpu_program *p, uint32_t tensor, uint32_t worker,
                                 size_t begin, size_t end) {
  if (tensor == p->logits) {
    note_part(p, worker, 0, p->dims.logit_rows, begin, end);
  }
}

void mgl_cpu_program_note_logit_rows(const mgl_cpu_program *p, uint32_t tensor, uint32_t worker,
                                     size_t begin, size_t end) {
  if (tensor == p->logits) {
    note_part(p, worker, begin, end, 0,
              (size_t)mgl_tensor_row_elements(&p->graph->tensors[tensor]));
  }
}

const uint32_t *mgl_cpu_program_best_logits(const mgl_cpu_program *p) {
  const mgl_cpu_memory *memory = p->memory;
  for (uint32_t row = 0; row < p->dims.logit_rows; row++) {
    mgl_logit_note best = {0};
    for (uint32_t worker = 0; worker < memory->options.workers; worker++) {
      const mgl_logit_note *note = &memory->logit_notes[(size_t)worker * memory->logit_rows + row];
      if (note->iteration == p->iteration &&
          (best.iteration != p->iteration ||
           goes_before(note->logit, note->index, best.logit, best.index))) {
        best = *note;
      }
    }
    assert(best.iteration == p->iteration);  // the op that makes "logits" notes them
    memory->best_logits[row] = best.index;
  }
  return memory->best_logits;
}
