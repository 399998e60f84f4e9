// An mgl_iteration is what one iteration computed, for statistics.
#ifndef MGL_ENGINE_ITERATION_H
#define MGL_ENGINE_ITERATION_H

#include <stdbool.h>
#include <stdint.h>

typedef struct mgl_iteration {
  uint32_t prompt_tokens;
  uint32_t decode_tokens;
  uint64_t kv_tokens;  // context that the sequences that decoded read, each its own
  uint64_t ns;         // planning, running and committing
} mgl_iteration;

// Called after an iteration, once its tokens were reported; false ends the run.
typedef bool mgl_iteration_callback(void *context, const mgl_iteration *iteration);

#endif
