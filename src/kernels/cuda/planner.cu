// The planner alone, as a kernel of one warp: the same calls give the same bytes here and on the
// host. The megakernel includes the planner's headers itself.
#include "twin/atomics.h"
#include "twin/planner_requests.h"

static_assert(sizeof(mgl_planner_slot) == 56 && sizeof(mgl_planner_page) == 64 &&
                  sizeof(mgl_planner_command) == 32 && sizeof(mgl_planner_limits) == 44,
              "as the host lays them out");

extern "C" __global__ void __launch_bounds__(32)
    mgl_planner_run(mgl_planner *planner, const mgl_planner_command *commands, uint32_t count) {
  mgl_lanes lanes = {threadIdx.x, 32};
  for (uint32_t i = 0; i < count; i++) {
    mgl_planner_obey(lanes, planner, &commands[i]);
  }
}

// Answers the host's questions with the global timer, to bring its clock and the host's together.
// words, in pinned memory: the number of the question, that of the answer, the time.
extern "C" __global__ void mgl_answer_clock(mgl_word *words, uint32_t rounds) {
  for (uint64_t i = 1; i <= rounds; i++) {
    while (mgl_load_acquire_system(&words[0]) != i) {
    }
    unsigned long long now;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
    words[2].value = now;
    mgl_store_release_system(&words[1], i);
  }
}
