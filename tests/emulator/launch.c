// A launch: blocks begin as others end, warps take turns in an order of chance, and what waits is
// passed over. Copies under way end when their time has come, or when nothing else can go on.
//
// Who waits without a barrier polls: a poll that finds nothing new, a failed mbarrier or a nanosleep
// makes its warp sleep for some steps of others. Sleep is a hint: if all sleep, one is woken. So a
// launch that waits for its host goes on polling, and its clock runs with its steps (docs/log/265).
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "emulator/machine.h"

enum { LOCALS_BYTES = 32 * EMU_LOCAL_BYTES, SHARED_MAP_BYTES = 512 << 10, MOST_SLICE = 256 };

// --- warps and blocks, kept for later launches ---------------------------------------------------

static emu_warp *free_warps;

static void *map(size_t bytes) {
  void *memory =
      mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) {
    abort();
  }
  return memory;
}

static emu_warp *take_warp(void) {
  emu_warp *w = free_warps;
  if (w != NULL) {
    free_warps = w->next;
    return w;
  }
  w = aligned_alloc(128, (sizeof *w + 127) / 128 * 128);
  if (w == NULL) {
    abort();
  }
  memset(w, 0, sizeof *w);
  w->frames = map(EMU_FRAMES_BYTES);
  w->locals = map(LOCALS_BYTES);
  return w;
}

static void give_warp(emu_warp *w) {
  w->next = free_warps;
  free_warps = w;
}

static void fill_specials(emu_warp *w, uint32_t first_thread, uint32_t warps) {
  const emu_launch *l = w->block->launch;
  const uint32_t shared = l->kernel->module->shared_bytes + l->dynamic_bytes;
  for (uint32_t lane = 0; lane < 32; lane++) {
    const uint32_t thread = first_thread + lane;
    const uint32_t values[EMU_SPECIAL_COUNT] = {[EMU_TID] = thread % l->block[0],
                                                [EMU_TID + 1] = thread / l->block[0] % l->block[1],
                                                [EMU_TID + 2] = thread / l->block[0] / l->block[1],
                                                [EMU_NTID] = l->block[0],
                                                [EMU_NTID + 1] = l->block[1],
                                                [EMU_NTID + 2] = l->block[2],
                                                [EMU_CTAID] = w->block->id[0],
                                                [EMU_CTAID + 1] = w->block->id[1],
                                                [EMU_CTAID + 2] = w->block->id[2],
                                                [EMU_NCTAID] = l->grid[0],
                                                [EMU_NCTAID + 1] = l->grid[1],
                                                [EMU_NCTAID + 2] = l->grid[2],
                                                [EMU_LANEID] = lane,
                                                [EMU_WARPID] = w->index,
                                                [EMU_NWARPID] = warps,
                                                [EMU_SMID] = w->block->id[0],
                                                [EMU_NSMID] = l->grid[0],
                                                [EMU_LANEMASK_EQ] = 1u << lane,
                                                [EMU_LANEMASK_LE] = (2u << lane) - 1,
                                                [EMU_LANEMASK_LT] = (1u << lane) - 1,
                                                [EMU_LANEMASK_GE] = UINT32_MAX << lane,
                                                [EMU_LANEMASK_GT] = (UINT32_MAX << lane) << 1,
                                                [EMU_DYNAMIC_BYTES] = l->dynamic_bytes,
                                                [EMU_TOTAL_BYTES] = shared};
    for (uint32_t i = 0; i < EMU_SPECIAL_COUNT; i++) {
      w->specials[i][lane] = values[i];
    }
  }
}

static void begin_warp(emu_launch *l, emu_block *b, uint32_t index) {
  emu_warp *w = take_warp();
  const uint32_t threads = l->block[0] * l->block[1] * l->block[2];
  const uint32_t lanes = threads - index * 32 < 32 ? threads - index * 32 : 32;
  w->block = b;
  w->index = index;
  w->live = lanes == 32 ? UINT32_MAX : (1u << lanes) - 1;
  w->waiting = 0;
  for (uint32_t lane = 0; lane < 32; lane++) {
    w->pc[lane] = l->kernel->code.entry;
    w->frame[lane] = w->depth[lane] = w->bulk_group[lane] = 0;
    // The entry's own local memory is the first; calls move behind it.
    w->local[lane] = 0;
  }
  w->blocked = EMU_RUNS;
  w->asleep_until = 0;
  w->released = w->tried = false;
  w->poll_pc = UINT32_MAX;
  w->copy_first = w->copy_count = w->copy_group = 0;
  w->product_first = w->product_count = w->product_group = 0;
  w->near = (emu_range){0, 0};
  fill_specials(w, index * 32, b->warp_count);
  b->warps[index] = w;
  if (l->warp_count == l->warp_capacity) {
    l->warp_capacity = l->warp_capacity == 0 ? 64 : l->warp_capacity * 2;
    l->warps = realloc(l->warps, l->warp_capacity * sizeof *l->warps);
    if (l->warps == NULL) {
      abort();
    }
  }
  l->warps[l->warp_count++] = w;
}

static void begin_block(emu_launch *l) {
  enum { POISON = 0xff };
  const uint32_t threads = l->block[0] * l->block[1] * l->block[2], warps = (threads + 31) / 32;
  const uint64_t n = l->next_block++;
  emu_block *b = calloc(1, sizeof *b);
  if (b == NULL) {
    abort();
  }
  b->launch = l;
  b->id[0] = (uint32_t)(n % l->grid[0]);
  b->id[1] = (uint32_t)(n / l->grid[0] % l->grid[1]);
  b->id[2] = (uint32_t)(n / l->grid[0] / l->grid[1]);
  b->shared_end = EMU_SHARED_BASE + l->kernel->module->shared_bytes + l->dynamic_bytes;
  b->shared = aligned_alloc(1024, (b->shared_end + 1023) / 1024 * 1024);
  b->warps = calloc(warps, sizeof(emu_warp *));
  if (b->shared == NULL || b->warps == NULL || warps > 32) {
    abort();
  }
  memset(b->shared, POISON, b->shared_end);
  b->warp_count = b->live_warps = warps;
  l->live_blocks++;
  for (uint32_t i = 0; i < warps; i++) {
    begin_warp(l, b, i);
  }
}

static void end_block(emu_launch *l, emu_block *b) {
  // Nothing that is under way may reach into memory that is gone.
  for (uint32_t i = 0; i < l->bulk_count;) {
    if (l->bulks[i].block == b) {
      emu_bulk_finish(l, i);
    } else {
      i++;
    }
  }
  for (uint32_t i = 0; i < b->warp_count; i++) {
    give_warp(b->warps[i]);
  }
  if (!b->lets_launch) {
    l->lets++;
  }
  free(b->warps);
  free(b->shared);
  free(b);
  l->live_blocks--;
}

static void forget_warp(emu_launch *l, uint32_t i) {
  emu_block *b = l->warps[i]->block;
  l->warps[i] = l->warps[--l->warp_count];
  b->live_warps--;
  for (uint32_t id = 0; id < EMU_NAMED_BARRIERS && b->live_warps > 0; id++) {
    if (b->barriers[id].arrived > 0) {
      emu_barrier_try(b, id);
    }
  }
  if (b->live_warps == 0) {
    end_block(l, b);
  }
}

void emu_barrier_try(emu_block *b, uint32_t id) {
  emu_named_barrier *at = &b->barriers[id];
  const uint32_t expected = at->expected != 0 ? at->expected : b->live_warps * 32;
  if (at->arrived < expected) {
    return;
  }
  for (uint32_t left = at->warps; left != 0; left &= left - 1) {
    emu_warp *w = b->warps[__builtin_ctz(left)];
    w->blocked = EMU_RUNS;
    w->released = true;
    w->barrier_result = at->result_is_all ? at->all : at->any;
  }
  *at = (emu_named_barrier){0};
}

// --- launches ------------------------------------------------------------------------------------

emu_launch *emu_launch_begin(const emu_kernel *k, const unsigned grid[3], const unsigned block[3],
                             unsigned dynamic_shared_bytes, void **params, uint64_t seed) {
  emu_launch *l = calloc(1, sizeof *l);
  if (l == NULL) {
    abort();
  }
  l->kernel = k;
  l->dynamic_bytes = dynamic_shared_bytes;
  for (uint32_t i = 0; i < 3; i++) {
    l->grid[i] = grid[i];
    l->block[i] = block[i];
  }
  l->block_count = (uint64_t)grid[0] * grid[1] * grid[2];
  l->parameters = aligned_alloc(64, (k->code.parameter_bytes + 63) / 64 * 64 + 64);
  if (l->parameters == NULL) {
    abort();
  }
  for (uint32_t i = 0; i < k->code.parameter_count; i++) {
    memcpy(l->parameters + k->code.parameter_at[i], params[i], k->code.parameter_size[i]);
  }
  l->random = (seed + 1) * 0x9e3779b97f4a7c15u;
  l->random = l->random != 0 ? l->random : 1;
  return l;
}

void emu_launch_limit(emu_launch *l, uint32_t blocks) {
  l->limit = blocks;
}

const char *emu_launch_fault(const emu_launch *l) {
  return l->fault[0] != 0 ? l->fault : NULL;
}

void emu_launch_hold(emu_launch *l, bool held) {
  l->held = held;
}

bool emu_launch_released(const emu_launch *l) {
  return l->ended || l->lets == l->block_count;
}

void emu_launch_destroy(emu_launch *l) {
  l->bulk_count = 0;  // of a launch that was ended
  while (l->warp_count > 0) {
    emu_block *b = l->warps[0]->block;
    uint32_t kept = 0;
    for (uint32_t i = 0; i < l->warp_count; i++) {
      if (l->warps[i]->block != b) {
        l->warps[kept++] = l->warps[i];
      }
    }
    l->warp_count = kept;
    end_block(l, b);
  }
  free(l->warps);
  free(l->bulks);
  free(l->ranges);
  free(l->parameters);
  free(l);
}

// --- turns ---------------------------------------------------------------------------------------

static bool can_run(const emu_launch *l, emu_warp *w) {
  switch (w->blocked) {
    case EMU_RUNS: return w->asleep_until <= emu_steps;
    case EMU_AT_MBARRIER:
      if (emu_mbarrier_passed(w->mbarrier, w->parity) || w->tries_until <= emu_steps) {
        w->blocked = EMU_RUNS;
        return true;
      }
      return false;
    case EMU_AT_LAUNCH:
      if (!l->held) {
        w->blocked = EMU_RUNS;
        return true;
      }
      return false;
    default: return false;
  }
}

// Copies of lanes that nobody waits for by name but an mbarrier: they end, too.
static bool end_a_copy(emu_launch *l) {
  uint32_t earliest = 0;
  for (uint32_t i = 0; i < l->warp_count; i++) {
    if (l->warps[i]->copy_first < l->warps[i]->copy_count) {
      emu_copies_finish(l->warps[i], UINT32_MAX, 0);
      return true;
    }
  }
  if (l->bulk_count == 0) {
    return false;
  }
  for (uint32_t i = 1; i < l->bulk_count; i++) {
    earliest = l->bulks[i].due < l->bulks[earliest].due ? i : earliest;
  }
  emu_bulk_finish(l, earliest);
  return true;
}

static uint32_t wake_a_sleeper(const emu_launch *l) {
  uint32_t best = UINT32_MAX;
  uint64_t best_until = UINT64_MAX;
  for (uint32_t i = 0; i < l->warp_count; i++) {
    const emu_warp *w = l->warps[i];
    const uint64_t until = w->blocked == EMU_RUNS          ? w->asleep_until
                           : w->blocked == EMU_AT_MBARRIER ? w->tries_until
                                                           : UINT64_MAX;
    if (until < best_until) {
      best = i;
      best_until = until;
    }
  }
  if (best != UINT32_MAX) {
    l->warps[best]->blocked = EMU_RUNS;
  }
  return best;
}

static _Noreturn void tell_deadlock(emu_launch *l) {
  char text[400] = "";
  size_t at = 0;
  for (uint32_t i = 0; i < l->warp_count && at + 60 < sizeof text; i++) {
    const emu_warp *w = l->warps[i];
    const uint32_t pc = w->pc[__builtin_ctz(w->live)];
    at += (size_t)snprintf(text + at, sizeof text - at, "%s block %u warp %u at PTX line %u",
                           i > 0 ? "," : "", w->block->id[0], w->index,
                           l->kernel->module->ops[pc].line);
  }
  emu_fault(l, NULL, 0, "no warp can go on:%s", text);
}

// The index of a warp that runs now; UINT32_MAX: all wait for another launch.
static uint32_t choose_warp(emu_launch *l) {
  for (;;) {
    const uint32_t first = (uint32_t)(emu_random(l) % l->warp_count);
    bool launch = false;
    for (uint32_t i = 0; i < l->warp_count; i++) {
      const uint32_t at = first + i < l->warp_count ? first + i : first + i - l->warp_count;
      if (can_run(l, l->warps[at])) {
        return at;
      }
      launch = launch || l->warps[at]->blocked == EMU_AT_LAUNCH;
    }
    if (!end_a_copy(l)) {
      const uint32_t woken = wake_a_sleeper(l);
      if (woken == UINT32_MAX && !launch) {
        tell_deadlock(l);
      }
      return woken;
    }
  }
}

static void run(emu_launch *l, uint64_t steps) {
  const uint64_t end = emu_steps + steps;
  while (!l->ended && emu_steps < end) {
    while (l->next_block < l->block_count && (l->limit == 0 || l->live_blocks < l->limit)) {
      begin_block(l);
    }
    for (uint32_t i = 0; i < l->bulk_count;) {
      if (l->bulks[i].due <= emu_steps) {
        emu_bulk_finish(l, i);
      } else {
        i++;
      }
    }
    const uint32_t at = choose_warp(l);
    if (at == UINT32_MAX) {
      return;
    }
    emu_warp *w = l->warps[at];
    emu_steps += emu_warp_run(w, 1 + (uint32_t)(emu_random(l) % MOST_SLICE)) + 1;
    if (w->blocked == EMU_ENDED) {
      forget_warp(l, at);
      l->ended = l->warp_count == 0 && l->next_block == l->block_count;
    }
  }
}

bool emu_launch_step(emu_launch *l, uint64_t warp_steps) {
  if (l->ended) {
    return true;
  }
  emu_memory_refresh(l);
  if (setjmp(l->at_fault) != 0) {
    l->ended = true;
    return true;
  }
  run(l, warp_steps);
  return l->ended;
}
