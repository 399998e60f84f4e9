// Mode mega on the CPU: the model's task graphs, one for each power-of-two token count, bound to
// memory, and the megakernel that runs them. Made at the first use of the mode; the runner owns it.
#ifndef MGL_ENGINE_MEGA_MODE_H
#define MGL_ENGINE_MEGA_MODE_H

#include "base/simd.h"
#include "base/status.h"
#include "device/cpu/cpu_memory.h"
#include "device/cpu/cpu_program.h"
#include "device/cpu/cpu_ranks.h"
#include "device/cpu/team.h"
#include "engine/device_table.h"

typedef struct mgl_mega_mode mgl_mega_mode;

// The logits of the iteration that a program has just run.
mgl_logits mgl_logits_of(const mgl_cpu_program *program);

// Fuses, compiles and binds. Memory, team and ranks (NULL: there is one) must outlive *out.
mgl_status mgl_mega_mode_create(const mgl_device_job *job, mgl_cpu_memory *memory, mgl_team *team,
                                mgl_simd simd, mgl_ranks *ranks, mgl_mega_mode **out,
                                mgl_error *err);
void mgl_mega_mode_destroy(mgl_mega_mode *mode);  // NULL is fine

// Runs iterations until `next` returns NULL, in one run of the megakernel.
mgl_status mgl_mega_mode_run(mgl_mega_mode *mode, mgl_next_plan_callback *next, void *context,
                             mgl_error *err);

// Of ranks other than 0: runs what that one posts, until it lets them quit.
mgl_status mgl_mega_mode_follow(mgl_mega_mode *mode, mgl_error *err);

// The program whose ops are the task graphs'; and the binding of the one for so many tokens.
const mgl_graph *mgl_mega_mode_program(const mgl_mega_mode *mode);
mgl_cpu_program *mgl_mega_mode_binding(const mgl_mega_mode *mode, uint32_t tokens);

// From now on tasks of ops other than [first, last] do nothing; the logits that `next` gets are
// then NULL if theirs is another op. Activations become NaN.
void mgl_mega_mode_choose(mgl_mega_mode *mode, uint32_t first, uint32_t last);

// Chrome trace of the latest run.
mgl_status mgl_mega_mode_trace(const mgl_mega_mode *mode, mgl_text *out, mgl_error *err);

#endif
