// The planner's decisions do not depend on the number of lanes: a planner that many lanes run in
// turns (support/lanes_model.h) has, after every call, the same bytes as one that a single lane
// runs, in random worlds (planner_world.h).
#define MGL_PLANNER_LANES_MODEL
#include "planner_world.h"

#include "twin/planner_requests.h"

typedef struct many_lanes {
  mgl_planner *planner;
  const mgl_planner *other;  // of one lane
  uint32_t lanes;
  const mgl_planner_command *command;
  uint64_t calls;
} many_lanes;

static void obey_lane(mgl_lanes lanes, void *context) {
  const many_lanes *m = context;
  mgl_planner_obey(lanes, m->planner, m->command);
}

static void obey(many_lanes *m, const mgl_planner_command *command) {
  m->command = command;
  m->calls++;
  lanes_model_run(m->lanes, obey_lane, m);
  assert_memory_equal(m->planner, m->other, m->other->bytes);
}

static void mirror_submit(void *context, uint32_t slot, const mgl_planner_request *request) {
  many_lanes *m = context;
  assert_true(mgl_planner_is_free_on(m->planner, slot));
  obey(m, &(mgl_planner_command){.call = MGL_CALL_SUBMIT, .slot = slot, .request = *request});
}

static void mirror_wish(void *context, uint32_t slot, int wish) {
  static const mgl_planner_call calls[] = {MGL_CALL_END, MGL_CALL_PAUSE, MGL_CALL_RESUME};
  obey(context, &(mgl_planner_command){.call = calls[wish], .slot = slot});
}

static void mirror_mask(void *context, uint32_t slot, uint32_t masked_to) {
  obey(context,
       &(mgl_planner_command){.call = MGL_CALL_MASK, .slot = slot, .request.masked_to = masked_to});
}

static void mirror_settle(void *context) {
  obey(context, &(mgl_planner_command){.call = MGL_CALL_SETTLE});
}

static void mirror_plan(void *context) {
  obey(context, &(mgl_planner_command){.call = MGL_CALL_PLAN});
}

static void run_world(const mgl_planner_limits *limits, uint64_t seed, uint32_t lanes,
                      uint32_t turns, many_lanes *m) {
  world w;
  world_init(&w, limits, seed);
  mgl_error err = {0};
  assert_int_equal(mgl_planner_create(limits, &m->planner, &err), MGL_OK);
  m->other = w.planner;
  m->lanes = lanes;
  lanes_model.random = (uint32_t)seed;
  const world_mirror mirror = {.submit = mirror_submit,
                               .wish = mirror_wish,
                               .mask = mirror_mask,
                               .settle = mirror_settle,
                               .plan = mirror_plan,
                               .context = m};
  w.mirror = &mirror;
  w.families = 4;
  w.arrive_percent = 60;
  w.cancel_permille = 5;
  w.pause_permille = 10;
  w.stop_percent = 20;
  w.mask_percent = seed % 2 == 0 ? 30 : 0;
  for (uint32_t t = 0; t < turns; t++) {
    world_turn(&w, true);
  }
  assert_true(w.planner->counts.decode_tokens > 0);
  mgl_planner_destroy(m->planner);
  world_free(&w);
}

static void many_lanes_decide_as_one(void **state) {
  (void)state;
  static const uint32_t lanes[] = {1, 2, 3, 8, 32, 64};
  const uint32_t turns = 300;
  many_lanes m = {0};
  for (uint32_t i = 0; i < 24; i++) {
    mgl_planner_limits limits = {.slots = i % 4 == 0 ? 100 : 3 + i,
                                 .sequences = i % 4 == 0 ? 80 : 2 + i / 2,
                                 .iteration_tokens = i % 3 == 0 ? 300 : 5 + i,
                                 .chunk_tokens = i % 2 == 0 ? 7 : 0,
                                 .page_tokens = 1 + i % 4,
                                 .page_count = i % 4 == 0 ? 400 : 40 + i,
                                 .pages_per_sequence = 30,
                                 .prefix_cache = i % 5 != 0,
                                 .late = i % 2,
                                 .runs = i / 2 % 2 * (1 + i % 7)};
    run_world(&limits, 100 + i, lanes[i % 6], turns, &m);
  }
  print_message("%llu calls compared\n", (unsigned long long)m.calls);
  lanes_model_free();
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(many_lanes_decide_as_one)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
