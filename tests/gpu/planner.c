// The planner on the device: after every turn of random workloads its state has the same bytes as
// the host's. Then what a plan takes there, one warp on an idle GPU.
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "device/cuda/cuda_code.h"
#include "gpu/gpu_bench.h"
#include "twin/planner.h"

enum { FAMILIES = 8, KEYS = 64, MOST_COMMANDS = 4096, WORLDS = 20, TURNS = 300 };

typedef struct planners {
  gpu_bench *bench;
  void *module, *function;
  mgl_planner *host;
  mgl_planner *copy;  // of the device's, read back
  mgl_cu_ptr device;
  mgl_cu_ptr device_commands, device_keys;
  mgl_page_key keys[FAMILIES][KEYS];            // the host's
  mgl_planner_command commands[MOST_COMMANDS];  // of the turn, with the device's keys
  uint32_t command_count;
  uint32_t random;
} planners;

static uint32_t next_random(planners *p, uint32_t below) {
  p->random = p->random * 1664525u + 1013904223u;
  return (p->random >> 8) % below;
}

static void must(const planners *p, mgl_cu_result code, const char *what) {
  mgl_error err = {0};
  gpu_must(mgl_cuda_check(&p->bench->device.driver, code, what, &err), &err);
}

static void open_planners(planners *p, gpu_bench *bench) {
  const mgl_cuda_shape shape = {.head_dim = 128, .group = 1};
  const mgl_cuda_driver *driver = &bench->device.driver;
  mgl_cuda_code code;
  mgl_error err = {0};
  p->bench = bench;
  gpu_must(mgl_cuda_code_get(&bench->device, "kernels/cuda/planner.cu", &shape, "mgl_planner_run",
                             &code, &err),
           &err);
  must(p, driver->module_load(&p->module, code.cubin), "module_load");
  must(p, driver->module_function(&p->function, p->module, "mgl_planner_run"), "module_function");
  mgl_free(code.cubin);
  // Families have their first pages in common.
  for (uint32_t f = 0; f < FAMILIES; f++) {
    for (uint32_t k = 0; k < KEYS; k++) {
      uint64_t owner = k < f % 4 * 3 ? 0 : f + 1;
      p->keys[f][k] = (mgl_page_key){{(owner * 1000 + k) * 0x9E3779B97F4A7C15u, owner, k, 7}};
    }
  }
  must(p, driver->memory_alloc(&p->device_keys, sizeof p->keys), "memory_alloc");
  must(p, driver->memory_alloc(&p->device_commands, sizeof p->commands), "memory_alloc");
  must(p, driver->copy_to_device(p->device_keys, p->keys, sizeof p->keys), "copy_to_device");
}

static void close_planners(planners *p) {
  const mgl_cuda_driver *driver = &p->bench->device.driver;
  must(p, driver->memory_free(p->device_keys), "memory_free");
  must(p, driver->memory_free(p->device_commands), "memory_free");
  must(p, driver->module_unload(p->module), "module_unload");
}

static void begin_world(planners *p, const mgl_planner_limits *limits) {
  const mgl_cuda_driver *driver = &p->bench->device.driver;
  mgl_error err = {0};
  gpu_must(mgl_planner_create(limits, &p->host, &err), &err);
  p->copy = gpu_must_alloc(1, (size_t)p->host->bytes);
  must(p, driver->memory_alloc(&p->device, (size_t)p->host->bytes), "memory_alloc");
  must(p, driver->copy_to_device(p->device, p->host, (size_t)p->host->bytes), "copy_to_device");
  p->command_count = 0;
}

static void end_world(planners *p) {
  must(p, p->bench->device.driver.memory_free(p->device), "memory_free");
  mgl_free(p->copy);
  mgl_planner_destroy(p->host);
}

static void add_command(planners *p, mgl_planner_call call, uint32_t slot) {
  p->commands[p->command_count++] = (mgl_planner_command){.call = (uint32_t)call, .slot = slot};
}

static void submit(planners *p, uint32_t slot, uint32_t prompt, uint32_t max_tokens) {
  uint32_t family = next_random(p, FAMILIES);
  uint32_t keys = prompt / p->host->limits.page_tokens;
  mgl_planner_request request = {.prompt_count = prompt,
                                 .max_tokens = max_tokens,
                                 .key_count = keys < KEYS ? keys : KEYS,
                                 .keys = p->keys[family]};
  mgl_planner_submit(p->host, slot, &request);
  uintptr_t offset = (uintptr_t)p->keys[family] - (uintptr_t)p->keys;
  request.keys = (const mgl_page_key *)((uintptr_t)p->device_keys + offset);
  add_command(p, MGL_CALL_SUBMIT, slot);
  p->commands[p->command_count - 1].request = request;
}

static void wish(planners *p, uint32_t slot) {
  switch (next_random(p, 3)) {
    case 0:
      mgl_planner_end(p->host, slot);
      add_command(p, MGL_CALL_END, slot);
      return;
    case 1:
      mgl_planner_pause(p->host, slot);
      add_command(p, MGL_CALL_PAUSE, slot);
      return;
    default: mgl_planner_resume(p->host, slot); add_command(p, MGL_CALL_RESUME, slot);
  }
}

// A random turn on the host, and the commands for the device.
static void make_turn(planners *p) {
  const mgl_planner_limits *l = &p->host->limits;
  uint32_t most = l->pages_per_sequence < l->page_count ? l->pages_per_sequence : l->page_count;
  most *= l->page_tokens;
  for (uint32_t i = 0; i < l->slots; i++) {
    if (next_random(p, 40) == 0) {
      wish(p, i);
    }
  }
  mgl_planner_settle(p->host);
  add_command(p, MGL_CALL_SETTLE, 0);
  for (uint32_t i = 0; i < l->slots; i++) {
    if (mgl_planner_is_free(p->host, i) && next_random(p, 3) == 0) {
      uint32_t prompt = 1 + next_random(p, most - 1);
      prompt = next_random(p, 2) == 0 ? 1 + prompt / 8 : prompt;
      submit(p, i, prompt, prompt + 1 + next_random(p, most - prompt));
    }
  }
  (void)mgl_planner_plan(p->host);
  add_command(p, MGL_CALL_PLAN, 0);
}

static void launch(planners *p) {
  const mgl_cuda_driver *driver = &p->bench->device.driver;
  void *parameters[] = {&p->device, &p->device_commands, &p->command_count};
  must(p,
       driver->copy_to_device(p->device_commands, p->commands,
                              p->command_count * sizeof *p->commands),
       "copy_to_device");
  must(p, driver->launch(p->function, 1, 1, 1, 32, 1, 1, 0, NULL, parameters, NULL), "launch");
}

// Runs the turn on the device; true if both states are the same.
static bool same_turn(planners *p) {
  const mgl_cuda_driver *driver = &p->bench->device.driver;
  launch(p);
  must(p, driver->context_synchronize(), "context_synchronize");
  must(p, driver->copy_to_host(p->copy, p->device, (size_t)p->host->bytes), "copy_to_host");
  p->command_count = 0;
  mgl_planner_slot *slots = (mgl_planner_slot *)((uintptr_t)p->copy + (uintptr_t)p->host->slots_at);
  for (uint32_t i = 0; i < p->host->limits.slots; i++) {
    if (slots[i].keys != NULL) {
      uintptr_t offset = (uintptr_t)slots[i].keys - (uintptr_t)p->device_keys;
      slots[i].keys = (const mgl_page_key *)((uintptr_t)p->keys + offset);
    }
  }
  return memcmp(p->copy, p->host, (size_t)p->host->bytes) == 0;
}

static void compare_worlds(planners *p) {
  uint64_t turns = 0, tokens = 0, preemptions = 0, hits = 0;
  for (uint32_t i = 0; i < WORLDS; i++) {
    const mgl_planner_limits limits = {.slots = i % 4 == 0 ? 1000 : 20 + 10 * i,
                                       .sequences = i % 4 == 0 ? 700 : 10 + 5 * i,
                                       .iteration_tokens = i % 3 == 0 ? 2048 : 20 + 10 * i,
                                       .chunk_tokens = i % 2 == 0 ? 100 : 0,
                                       .page_tokens = i % 5 == 0 ? 16 : 4,
                                       .page_count = i % 4 == 0 ? 6000 : 200 + 10 * i,
                                       .pages_per_sequence = 40,
                                       .prompts_first = i == 7,
                                       .prefix_cache = i % 6 != 0,
                                       .late = i % 2};
    p->random = 77 + i;
    begin_world(p, &limits);
    bool same = true;
    for (uint32_t t = 0; t < TURNS && same; t++, turns++) {
      make_turn(p);
      same = same_turn(p);
      if (!same) {
        gpu_check(p->bench, false, "planner: world %u differs after turn %u", i, t);
      }
    }
    tokens += p->host->counts.prompt_tokens + p->host->counts.decode_tokens;
    preemptions += p->host->counts.preemptions;
    hits += p->host->counts.prefix_hit_tokens;
    end_world(p);
  }
  gpu_check(p->bench, preemptions > 0 && hits > 0,
            "planner: host and device have the same bytes after each of %llu turns (%llu tokens, "
            "%llu preemptions, %llu tokens of prefixes found)",
            (unsigned long long)turns, (unsigned long long)tokens, (unsigned long long)preemptions,
            (unsigned long long)hits);
}

// Time of so many turns in one launch.
static double turns_us(planners *p, uint32_t turns) {
  const mgl_cuda_driver *driver = &p->bench->device.driver;
  void *begin, *end;
  float ms = 0;
  must(p, driver->event_create(&begin, 0), "event_create");
  must(p, driver->event_create(&end, 0), "event_create");
  p->command_count = 0;
  for (uint32_t i = 0; i < turns; i++) {
    add_command(p, MGL_CALL_SETTLE, 0);
    add_command(p, MGL_CALL_PLAN, 0);
  }
  must(p, driver->event_record(begin, NULL), "event_record");
  launch(p);
  must(p, driver->event_record(end, NULL), "event_record");
  must(p, driver->event_synchronize(end), "event_synchronize");
  must(p, driver->event_elapsed(&ms, begin, end), "event_elapsed");
  must(p, driver->event_destroy(begin), "event_destroy");
  must(p, driver->event_destroy(end), "event_destroy");
  p->command_count = 0;
  return (double)ms * 1e3 / turns;
}

// Prompts of 1024 tokens, then all decode.
static void time_plans(planners *p) {
  static const uint32_t sequences[] = {1, 16, 64, 256, 1024};
  printf("\n| sequences | us a plan, prompts of 1024 | us a plan, all decode |\n|---|---|---|\n");
  for (size_t i = 0; i < sizeof sequences / sizeof *sequences; i++) {
    const mgl_planner_limits limits = {.slots = 1024,
                                       .sequences = 1024,
                                       .iteration_tokens = 2048,
                                       .page_tokens = 16,
                                       .page_count = 150000,
                                       .pages_per_sequence = 128,
                                       .prefix_cache = 1,
                                       .late = 1};
    begin_world(p, &limits);
    for (uint32_t slot = 0; slot < sequences[i]; slot++) {
      submit(p, slot, 1024, 2000);
    }
    launch(p);
    uint32_t plans = sequences[i] * 1024 / 2048 + 1;
    double prompts = turns_us(p, plans);
    (void)turns_us(p, 20);
    printf("| %u | %.1f | %.1f |\n", sequences[i], prompts, turns_us(p, 500));
    end_world(p);
  }
}

void gpu_planner_run(gpu_bench *bench, int count, char **arguments) {
  (void)count;
  (void)arguments;
  planners *p = gpu_must_alloc(1, sizeof *p);
  open_planners(p, bench);
  compare_worlds(p);
  time_plans(p);
  close_planners(p);
  mgl_free(p);
}
