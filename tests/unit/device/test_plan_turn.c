// What a turn of the planner puts into a plan is what the host's own plans have: the same rows and
// the same work list of attention, for random workloads, several groups of heads and many tokens;
// and nothing is left in it of the plan that was there before.
#ifndef MGL_POISON_PLANS
#define MGL_POISON_PLANS 1  // as in debug builds
#endif
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/alloc.h"
#include "device/cuda/cuda_plan.h"
#include "twin/plan_turn.h"
#include "twin/wide_chain.h"

enum {
  SLOTS = 40,
  SEQUENCES = 30,
  PAGES = 600,  // of a sequence: contexts beyond the borders where chunks grow
  POOL = 4000,
  TOKENS = PAGES * MGL_CUDA_KV_PAGE_TOKENS,
  COMMANDS = 256,
  TURNS = 400,
  STRIDES = 33,  // of attention
};

typedef struct world {
  mgl_cuda_run *run;
  mgl_feed feed;
  mgl_feed_command commands[COMMANDS];
  mgl_ring_end sent;
  mgl_cuda_sequence *staged;
  int32_t *tokens, *staged_tokens;
  mgl_page_key *staged_keys;
  mgl_feed_iteration iterations[MGL_FEED_ITERATIONS];
  mgl_ring_end heard;
  bool busy[SLOTS];
  uint64_t ended_at[SLOTS];  // commands sent when it was ended; 0: it was not
  uint32_t random;
  uint64_t rows, items;
} world;

static const mgl_lanes one_lane = {.lane = 0, .count = 1};

static uint32_t random_below(world *w, uint32_t below) {
  w->random = w->random * 1664525u + 1013904223u;
  return (w->random >> 8) % below;
}

static void open_world(world *w, uint32_t group, uint32_t iteration_tokens) {
  const mgl_planner_limits limits = {.slots = SLOTS,
                                     .sequences = SEQUENCES,
                                     .iteration_tokens = iteration_tokens,
                                     .page_tokens = MGL_CUDA_KV_PAGE_TOKENS,
                                     .page_count = POOL,
                                     .pages_per_sequence = PAGES,
                                     .prefix_cache = 1,
                                     .late = 1};
  mgl_error err = {0};
  memset(w, 0, sizeof *w);
  mgl_cuda_run *run = mgl_alloc_zeroed(1, sizeof *run);
  w->run = run;
  w->random = group;
  w->staged = mgl_alloc_zeroed(SLOTS, sizeof *w->staged);
  w->tokens = mgl_alloc_zeroed((size_t)SLOTS * TOKENS, sizeof *w->tokens);
  w->staged_tokens = mgl_alloc_zeroed((size_t)SLOTS * TOKENS, sizeof *w->staged_tokens);
  w->staged_keys = mgl_alloc_zeroed((size_t)SLOTS * PAGES, sizeof *w->staged_keys);
  assert_int_equal(mgl_planner_create(&limits, &run->planner, &err), MGL_OK);
  run->protocol.graph_count = 7;
  for (uint32_t i = 0; i < run->protocol.graph_count; i++) {
    run->graphs[i].tokens = 1u << i;
    run->graphs[i].attention_strides = STRIDES;
  }
  run->group = group;
  run->head_parts = 1;
  run->most_iterations = UINT32_MAX;
  run->iteration_tokens = iteration_tokens;
  run->narrow_context = UINT64_MAX;
  run->long_tokens = 0;
  run->sequence_slots = SLOTS;
  run->block_table_stride = PAGES;
  run->token_stride = TOKENS;
  run->sequences = mgl_alloc_zeroed(SLOTS, sizeof *run->sequences);
  run->next_rows = mgl_alloc_zeroed(SLOTS, sizeof *run->next_rows);
  run->places = mgl_alloc_zeroed(SLOTS, sizeof *run->places);
  run->pending = mgl_alloc_zeroed(SLOTS, sizeof *run->pending);
  run->keys = mgl_alloc_zeroed((size_t)SLOTS * PAGES, sizeof *run->keys);
  run->plans = mgl_alloc_zeroed(2, sizeof *run->plans);
  run->iteration_ns = mgl_alloc_zeroed(TURNS + 2, sizeof *run->iteration_ns);
  run->iteration_capacity = TURNS + 2;
  run->feed = &w->feed;
  run->commands = w->commands;
  run->command_mask = COMMANDS - 1;
  run->iterations = w->iterations;
  run->staged_sequences = w->staged;
  run->staged_tokens = w->staged_tokens;
  run->staged_keys = w->staged_keys;
  run->planning.resumed = UINT64_MAX;
}

static void close_world(world *w) {
  mgl_cuda_run *run = w->run;
  mgl_planner_destroy(run->planner);
  mgl_free(run->sequences);
  mgl_free(run->next_rows);
  mgl_free(run->places);
  mgl_free(run->pending);
  mgl_free(run->keys);
  mgl_free(run->plans);
  mgl_free(run->iteration_ns);
  mgl_free(w->staged);
  mgl_free(w->tokens);
  mgl_free(w->staged_tokens);
  mgl_free(w->staged_keys);
  mgl_free(run);
}

static void send(world *w, const mgl_feed_command *command) {
  assert_true(mgl_ring_has_room(&w->feed.commands, &w->sent, COMMANDS));
  w->commands[w->sent.own % COMMANDS] = *command;
  mgl_ring_publish(&w->feed.commands, &w->sent);
}

static void submit(world *w, uint32_t slot) {
  uint32_t most = random_below(w, 4) == 0 ? TOKENS : 300;
  uint32_t prompt = 1 + random_below(w, most - 1);
  uint32_t max_tokens = prompt + 1 + random_below(w, most - prompt);
  int32_t *tokens = &w->staged_tokens[(size_t)slot * TOKENS];
  for (uint32_t i = 0; i < prompt; i++) {
    tokens[i] = (int32_t)random_below(w, 1000);
  }
  for (uint32_t i = 0; i < prompt / MGL_CUDA_KV_PAGE_TOKENS; i++) {
    w->staged_keys[(size_t)slot * PAGES + i] =
        (mgl_page_key){{(i + 1) * UINT64_C(0x9E3779B97F4A7C15), i < 5 ? 0 : w->sent.own, i, 1}};
  }
  w->staged[slot] = (mgl_cuda_sequence){.state = MGL_CUDA_SEQUENCE_RUNNING,
                                        .token_count = prompt,
                                        .prompt_count = prompt,
                                        .max_tokens = max_tokens,
                                        .tokens = &w->tokens[(size_t)slot * TOKENS]};
  send(w, &(mgl_feed_command){.call = MGL_FEED_SUBMIT,
                              .slot = slot,
                              .prompt_count = prompt,
                              .max_tokens = max_tokens,
                              .key_count = prompt / MGL_CUDA_KV_PAGE_TOKENS});
  w->busy[slot] = true;
}

static void stir(world *w) {
  uint64_t settled = mgl_load_relaxed(&w->feed.settled);
  for (uint32_t i = 0; i < SLOTS; i++) {
    if (w->busy[i] && w->ended_at[i] == 0 && random_below(w, 60) == 0) {
      send(w, &(mgl_feed_command){.call = MGL_FEED_END, .slot = i});
      w->ended_at[i] = w->sent.own;
    } else if (w->ended_at[i] != 0 && w->ended_at[i] <= settled) {
      w->busy[i] = false;
      w->ended_at[i] = 0;
    } else if (!w->busy[i] && random_below(w, 8) == 0) {
      submit(w, i);
    }
  }
}

// The host's items, which have all heads, as they are where heads are cut: into as many parts as
// leave a stride for every item.
static void cut_heads(const mgl_cuda_run *run, mgl_cuda_plan *plan) {
  static mgl_cuda_plan whole;
  uint32_t parts = 1;
  whole = *plan;
  while (parts < run->head_parts &&
         2 * parts * whole.item_count <= run->graphs[plan->graph].attention_strides) {
    parts *= 2;
  }
  plan->kind = parts > 1 && plan->kind == MGL_PLAN_SHORT ? MGL_PLAN_DECODES : plan->kind;
  plan->item_count = 0;
  for (uint32_t i = 0; i < whole.item_count; i += whole.items[i].chunks) {
    for (uint32_t j = 0; j < parts * whole.items[i].chunks; j++) {
      const uint32_t part = j / whole.items[i].chunks, heads = run->group / parts;
      mgl_cuda_item item = whole.items[i + j % whole.items[i].chunks];
      item.partial = plan->item_count - item.chunk;
      item.heads = part * heads << 8 | heads;
      plan->items[plan->item_count++] = item;
    }
  }
}

// The plan as the host makes it from the planner's entries.
static void expect(const world *w, mgl_cuda_plan *plan) {
  const mgl_planner *p = w->run->planner;
  const mgl_plan_entry *entries = mgl_planner_entries(p);
  static int32_t tokens[MGL_CUDA_MAX_TOKENS];
  mgl_cuda_plan_clear(plan);
  for (uint32_t i = 0; i < p->entry_count; i++) {
    const mgl_cuda_sequence *s = &w->run->sequences[entries[i].slot];
    for (uint32_t j = 0; j < entries[i].count; j++) {
      uint32_t position = entries[i].position + j;
      tokens[j] = position < s->token_count ? s->tokens[position] : -1;
    }
    mgl_cuda_plan_add(
        plan, &(mgl_cuda_plan_rows){.tokens = tokens,
                                    .count = entries[i].count,
                                    .slot = entries[i].slot,
                                    .position = entries[i].position,
                                    .samples = (entries[i].flags & MGL_ENTRY_SAMPLES) != 0});
  }
  mgl_cuda_plan_finish(plan, w->run->group);
  cut_heads(w->run, plan);
}

// What a plan has no rows for is what none has, though plan i - 2 had some there.
static void check_poison(const void *first, size_t behind, size_t count, size_t bytes) {
  const uint32_t *words = (const uint32_t *)((const uint8_t *)first + behind * bytes);
  for (size_t i = 0; i < (count - behind) * bytes / sizeof *words; i++) {
    assert_int_equal(words[i], MGL_PLAN_POISON);
  }
}

static void check_plan(const world *w, const mgl_cuda_plan *plan) {
  static mgl_cuda_plan expected;
  expect(w, &expected);
  assert_int_equal(plan->graph, expected.graph);
  assert_int_equal(plan->token_count, expected.token_count);
  assert_int_equal(plan->sequence_count, expected.sequence_count);
  assert_int_equal(plan->logit_row_count, expected.logit_row_count);
  assert_int_equal(plan->item_count, expected.item_count);
  assert_int_equal(plan->kind, expected.kind);
  size_t rows = expected.token_count * sizeof(uint32_t);
  size_t logits = expected.logit_row_count * sizeof(uint32_t);
  assert_memory_equal(plan->tokens, expected.tokens, rows);
  assert_memory_equal(plan->positions, expected.positions, rows);
  assert_memory_equal(plan->slots, expected.slots, rows);
  assert_memory_equal(plan->logit_rows, expected.logit_rows, logits);
  assert_memory_equal(plan->logit_slots, expected.logit_slots, logits);
  assert_memory_equal(plan->items, expected.items, expected.item_count * sizeof *plan->items);
  check_poison(plan->tokens, expected.token_count, MGL_CUDA_MAX_TOKENS, sizeof *plan->tokens);
  check_poison(plan->positions, expected.token_count, MGL_CUDA_MAX_TOKENS, sizeof(uint32_t));
  check_poison(plan->slots, expected.token_count, MGL_CUDA_MAX_TOKENS, sizeof(uint32_t));
  check_poison(plan->logit_slots, expected.logit_row_count, MGL_CUDA_MAX_TOKENS, sizeof(uint32_t));
  check_poison(plan->items, expected.item_count, MGL_CUDA_MAX_ITEMS, sizeof *plan->items);
  uint32_t unknown = 0;
  for (uint32_t i = 0; i < plan->token_count; i++) {
    if (plan->tokens[i] < 0) {
      assert_int_equal(w->run->next_rows[plan->slots[i]], i);
      unknown++;
    }
  }
  for (uint32_t i = 0; i < SLOTS; i++) {
    unknown -= w->run->next_rows[i] != UINT32_MAX ? 1 : 0;
  }
  assert_int_equal(unknown, 0);
}

// As sampling does, when the plan after this one is there.
static void sample(world *w, uint64_t iteration) {
  const mgl_cuda_plan *plan = &w->run->plans[iteration & 1];
  for (uint32_t i = 0; i < plan->logit_row_count; i++) {
    uint32_t slot = plan->logit_slots[i];
    mgl_cuda_sequence *s = &w->run->sequences[slot];
    if (w->run->next_rows[slot] != UINT32_MAX) {
      w->run->plans[(iteration + 1) & 1].tokens[w->run->next_rows[slot]] = 5;
    }
    if (s->state == MGL_CUDA_SEQUENCE_RUNNING) {
      s->tokens[s->token_count++] = 5;
      bool stops = random_below(w, 200) == 0;
      bool ends = stops || s->token_count == s->max_tokens;
      s->state = stops ? MGL_CUDA_SEQUENCE_STOPPED : s->state;
      w->busy[slot] = w->busy[slot] && (!ends || w->ended_at[slot] != 0);
    }
  }
}

// What the host hears adds up to what was planned.
static void hear(world *w, uint64_t *rows) {
  while (mgl_ring_has_entry(&w->feed.iterations, &w->heard)) {
    const mgl_feed_iteration *i = &w->iterations[w->heard.own % MGL_FEED_ITERATIONS];
    *rows += i->prompt_tokens + i->decode_tokens;
    assert_int_equal(i->iteration, w->heard.own);
    assert_int_equal(i->ns, 100);
    mgl_ring_take(&w->heard);
    mgl_ring_tell(&w->feed.iterations, &w->heard);
  }
}

static void turns_make_the_hosts_plans(void **state) {
  (void)state;
  static world w;
  static const uint32_t tokens[] = {1, 5, 16, 33, 64};
  uint32_t kinds = 0;  // of plans, a bit for each that there was
  uint32_t cuts = 0;
  for (uint32_t i = 1; i <= 8 + 5; i++) {  // behind the groups, cuts of the largest one's heads
    const uint32_t group = i < 8 ? i : 8;
    open_world(&w, group, tokens[i % 5]);
    mgl_cuda_run *run = w.run;
    run->head_parts = i <= 8 ? 1 : MGL_CUDA_HEAD_PARTS;
    mgl_cuda_planning *planning = &run->planning;
    uint64_t heard_rows = 0;
    uint64_t iteration = 0;
    for (uint32_t turn = 0; turn < TURNS; turn++) {
      mgl_error err = {0};
      stir(&w);
      mgl_turn_tell_iterations(run, iteration > 0 ? iteration - 1 : 0);
      mgl_turn_settle(run, planning->commands_before);
      uint32_t rows = mgl_plan_turn(one_lane, run, iteration);
      assert_int_equal(mgl_planner_check(run->planner, &err), MGL_OK);
      planning->commands_before = planning->commands.own;
      if (rows > 0) {
        check_plan(&w, &run->plans[iteration & 1]);
        w.rows += rows;
        w.items += run->plans[iteration & 1].item_count;
        kinds |= 1u << run->plans[iteration & 1].kind;
        cuts += run->plans[iteration & 1].items[0].heads != group ? 1 : 0;
      }
      if (iteration > 0) {
        sample(&w, iteration - 1);
      }
      run->iteration_ns[iteration] = 100 * (iteration + 1);
      if (rows == 0 && iteration > 0) {  // nothing runs: its end is that of the one before
        run->plans[(iteration - 1) & 1].logit_row_count = 0;
      }
      iteration += rows > 0 ? 1 : 0;
      hear(&w, &heard_rows);
    }
    assert_true(w.rows > TURNS / 2 && w.items >= w.rows / 8);
    assert_true(heard_rows > 0 && heard_rows <= w.rows);
    assert_true(i > 8 || cuts == 0);
    close_world(&w);
  }
  assert_true((kinds & 1u << MGL_PLAN_ANY) != 0 && (kinds & 1u << MGL_PLAN_SHORT) != 0);
  assert_true(cuts > TURNS / 2);
}

// --- the wide class ------------------------------------------------------------------------------

enum {
  WIDE_TOKENS = 700,
  NARROW_TOKENS = 32,
  LONG_CONTEXT = 6000,
  WORKERS = 20,
  MOST_STIRRED = 300
};

// Rows, and rows with logits, are those of the planner's entries, one behind the other.
static void check_wide_plan(const world *w, const mgl_wide_plan *plan, const mgl_wide_work *work) {
  const mgl_planner *p = w->run->planner;
  const mgl_plan_entry *entries = mgl_planner_entries(p);
  uint32_t row = 0;
  uint32_t logit = 0;
  assert_int_equal(plan->token_count, p->token_count);
  assert_int_equal(plan->sequence_count, p->entry_count);
  for (uint32_t i = 0; i < p->entry_count; i++) {
    const mgl_cuda_sequence *s = &w->run->sequences[entries[i].slot];
    for (uint32_t j = 0; j < entries[i].count; j++, row++) {
      uint32_t position = entries[i].position + j;
      assert_int_equal(plan->positions[row], position);
      assert_int_equal(plan->slots[row], entries[i].slot);
      assert_true(position < s->token_count);  // the launch before has ended
      assert_int_equal(plan->tokens[row], s->tokens[position]);
    }
    if ((entries[i].flags & MGL_ENTRY_SAMPLES) != 0) {
      assert_int_equal(plan->logit_rows[logit], row - 1);
      assert_int_equal(plan->logit_slots[logit++], entries[i].slot);
    }
  }
  assert_int_equal(plan->token_count, row);
  assert_int_equal(plan->logit_row_count, logit);
  assert_int_equal(plan->note.decode_tokens + plan->note.prompt_tokens, row);
  assert_true(work->item_count >= p->entry_count);
}

// What the wide class samples.
static void sample_wide(world *w, const mgl_wide_plan *plan) {
  for (uint32_t i = 0; i < plan->logit_row_count; i++) {
    mgl_cuda_sequence *s = &w->run->sequences[plan->logit_slots[i]];
    assert_int_equal(w->run->next_rows[plan->logit_slots[i]], UINT32_MAX);
    if (s->state == MGL_CUDA_SEQUENCE_RUNNING) {
      s->tokens[s->token_count++] = 5;
      bool ends = s->token_count == s->max_tokens;
      w->busy[plan->logit_slots[i]] =
          w->busy[plan->logit_slots[i]] && (!ends || w->ended_at[plan->logit_slots[i]] != 0);
    }
  }
}

// The memory of the wide class, and what its chain tells.
typedef struct wide_world {
  mgl_wide_chain chain;
  mgl_wide_run run;
  mgl_wide_plan plan;
  mgl_wide_work work;
  uint64_t zeros[7];
  mgl_cuda_step steps[3];
  uint64_t now_ns;
  uint64_t turns;       // of the chain that runs
  uint32_t iterations;  // of all chains
  uint32_t few;         // of those with no more tokens than the narrow class takes
} wide_world;

static void open_wide(wide_world *wide) {
  memset(wide, 0, sizeof *wide);
  wide->chain = (mgl_wide_chain){.run = &wide->run,
                                 .plan = &wide->plan,
                                 .work = &wide->work,
                                 .zeros = wide->zeros,
                                 .zero_count = 7,
                                 .shape = {2, 4, WORKERS},
                                 .list_count = 3,
                                 .lists = {{64, 64, 0, &wide->steps[0], NULL, NULL},
                                           {256, 256, 0, &wide->steps[1], NULL, NULL},
                                           {WIDE_TOKENS, 256, 0, &wide->steps[2], NULL, NULL}}};
}

// Whether the plan that waits in the planner is one for the wide class: by its tokens, or by what
// they attend to.
static bool is_large(const mgl_cuda_run *run) {
  const mgl_planner *p = run->planner;
  const mgl_plan_entry *entries = (const mgl_plan_entry *)mgl_planner_at(p, p->entries_at);
  uint64_t context = 0;
  for (uint32_t i = 0; i < p->entry_count; i++) {
    context += entries[i].position + entries[i].count;
  }
  return p->token_count > run->iteration_tokens || context > run->narrow_context;
}

// A turn of the chain. Returns whether an iteration of the wide class runs behind it.
static bool chain_turn(world *w, wide_world *wide) {
  mgl_cuda_run *run = w->run;
  uint64_t told = run->planning.told;
  uint64_t heard = run->planning.iterations.own;
  bool ran = run->planning.wide_runs != 0;
  uint64_t began_ns = run->planning.wide_ns;
  memset(wide->zeros, 1, sizeof wide->zeros);
  wide->now_ns += 1000 + random_below(w, 1000);
  mgl_wide_chain_turn(one_lane, run, &wide->chain, wide->now_ns);
  mgl_wide_chain_cut(one_lane, &wide->chain);
  uint64_t word = mgl_load_relaxed(&w->feed.wide);
  assert_int_equal(mgl_wide_word_turns(word), ++wide->turns);
  assert_int_equal(run->planning.told, told + (ran ? 1 : 0));
  if (ran) {  // and what was read of commands before it has settled
    const mgl_feed_iteration *note = &w->iterations[heard % MGL_FEED_ITERATIONS];
    assert_int_equal(run->planning.iterations.own, heard + 1);
    assert_int_equal(note->ns, wide->now_ns - began_ns);
    assert_true(run->narrow_context != UINT64_MAX ||
                note->prompt_tokens + note->decode_tokens > NARROW_TOKENS);
    w->heard.own = w->heard.other = heard + 1;
    mgl_ring_tell(&w->feed.iterations, &w->heard);
  }
  bool runs = run->planning.wide_runs != 0;
  assert_true(runs != mgl_wide_word_over(word));
  assert_true(runs == (wide->run.steps != NULL));
  if (runs) {
    uint32_t tokens = run->planning.wide_tokens;
    assert_true(is_large(run) && run->planning.narrow_tokens == 0);
    assert_int_equal(wide->plan.token_count, tokens);
    assert_ptr_equal(wide->run.steps, &wide->steps[tokens <= 64 ? 0 : tokens <= 256 ? 1 : 2]);
    assert_int_equal(wide->run.tile_tokens, tokens <= 64 ? 64 : 256);
    assert_ptr_equal(wide->run.block_tables, run->block_tables);
    assert_int_equal(wide->zeros[6], 0);
    check_wide_plan(w, &wide->plan, &wide->work);
    wide->iterations++;
    wide->few += tokens <= NARROW_TOKENS ? 1 : 0;
  } else {
    assert_int_equal(run->planning.wide_tokens, 0);
    assert_int_equal(wide->plan.logit_row_count, 0);
    assert_true(run->planning.narrow_tokens == 0 || !is_large(run));
  }
  return runs;
}

// A chain from the plan that the narrow class has left to its end; what is queued behind that does
// nothing.
static void run_chain(world *w, wide_world *wide, bool stirs) {
  mgl_cuda_planning *planning = &w->run->planning;
  wide->turns = 0;
  planning->wide_turns = 0;
  while (chain_turn(w, wide)) {
    sample_wide(w, &wide->plan);
    if (stirs && wide->turns < MOST_STIRRED) {
      stir(w);
    }
  }
  const mgl_cuda_planning kept = *planning;
  assert_false(chain_turn(w, wide));
  assert_int_equal(planning->narrow_tokens, kept.narrow_tokens);
  assert_int_equal(planning->commands.own, kept.commands.own);
}

// Plans of more tokens or context than the narrow class takes stay in the planner, and become plans
// of the wide class when what was running has ended; the first one that is small enough stays there
// too, and becomes one of the narrow class.
static void check_large_plans(uint64_t narrow_context) {
  static world w;
  static wide_world wide;
  memset(&w, 0, sizeof w);
  memset(&wide, 0, sizeof wide);
  uint32_t chains = 0;
  uint32_t narrow = 0;
  uint32_t left = 0;  // that a chain has left to the narrow class
  open_world(&w, 4, WIDE_TOKENS);
  open_wide(&wide);
  mgl_cuda_run *run = w.run;
  run->iteration_tokens = NARROW_TOKENS;
  run->narrow_context = narrow_context;
  bool runs = false;  // iteration `iteration - 1` of the narrow class has not sampled yet
  uint64_t iteration = 0;
  for (uint32_t turn = 0; turn < TURNS; turn++) {
    if (turn % 100 < 10) {  // then prompts come to their ends, and only what decodes is left
      stir(&w);
    }
    uint32_t waits = run->planning.narrow_tokens;
    uint32_t rows = mgl_plan_turn(one_lane, run, iteration);
    assert_int_equal(run->planning.narrow_tokens, 0);
    if (waits != 0) {
      assert_int_equal(rows, waits);
      left++;
    }
    if (runs) {
      sample(&w, iteration - 1);
    }
    runs = rows > 0;
    iteration += rows > 0 ? 1 : 0;
    narrow += rows > 0 ? 1 : 0;
    run->planning.commands_before = run->planning.commands.own;
    mgl_turn_settle(run, run->planning.commands_before);
    if (run->planning.wide_tokens != 0) {
      assert_int_equal(rows, 0);
      assert_true(is_large(run));
      run_chain(&w, &wide, turn % 100 < 10);
      chains++;
    } else {
      assert_true(rows == 0 || !is_large(run));
    }
  }
  assert_true(wide.iterations > 20 && chains > 4 && narrow > 20 && left > 2);
  assert_true((wide.few > 4) == (narrow_context != UINT64_MAX));
  close_world(&w);
}

static void large_plans_are_left_to_the_wide_class(void **state) {
  (void)state;
  check_large_plans(UINT64_MAX);
}

static void long_contexts_are_left_to_the_wide_class(void **state) {
  (void)state;
  check_large_plans(LONG_CONTEXT);
}

// A chain whose iteration the host has ended plans no more.
static void a_chain_ends_at_a_fault(void **state) {
  (void)state;
  static world w;
  static wide_world wide;
  open_world(&w, 4, WIDE_TOKENS);
  open_wide(&wide);
  w.run->iteration_tokens = NARROW_TOKENS;
  while (w.run->planning.wide_tokens == 0) {
    stir(&w);
    (void)mgl_plan_turn(one_lane, w.run, 0);
  }
  assert_true(chain_turn(&w, &wide));
  mgl_store_relaxed(&wide.run.fault, MGL_WIDE_FAULT_HOST);
  uint64_t told = w.run->planning.told;
  mgl_wide_chain_turn(one_lane, w.run, &wide.chain, 5);
  mgl_wide_chain_cut(one_lane, &wide.chain);
  assert_true(mgl_wide_word_over(mgl_load_relaxed(&w.feed.wide)));
  assert_int_equal(w.run->planning.told, told);
  assert_null(wide.run.steps);
  close_world(&w);
}

static void close_feed(world *w, mgl_feed_end end) {
  send(w, &(mgl_feed_command){.call = MGL_FEED_CLOSE, .slot = (uint32_t)end});
}

static void a_launch_is_over_when_nothing_can_come(void **state) {
  (void)state;
  static world w;
  open_world(&w, 2, 16);
  assert_int_equal(mgl_plan_turn(one_lane, w.run, 0), 0);
  assert_false(mgl_turn_is_over(w.run) || mgl_turn_has_news(w.run));
  submit(&w, 3);
  close_feed(&w, MGL_FEED_CLOSED);
  assert_true(mgl_turn_has_news(w.run));
  assert_true(mgl_plan_turn(one_lane, w.run, 0) > 0);
  assert_true(mgl_turn_is_over(w.run));  // as soon as a plan is empty
  send(&w, &(mgl_feed_command){.call = MGL_FEED_END, .slot = 3});
  assert_int_equal(mgl_plan_turn(one_lane, w.run, 1), 0);
  assert_int_equal(mgl_planner_pages_used(w.run->planner), 0);
  close_world(&w);
  // A request whose slot becomes free with the next turn.
  open_world(&w, 2, 16);
  submit(&w, 3);
  assert_true(mgl_plan_turn(one_lane, w.run, 0) > 0);
  send(&w, &(mgl_feed_command){.call = MGL_FEED_END, .slot = 3});
  submit(&w, 3);
  close_feed(&w, MGL_FEED_CLOSED);
  assert_int_equal(mgl_plan_turn(one_lane, w.run, 1), 0);
  assert_true(mgl_turn_has_news(w.run) && !mgl_turn_is_over(w.run));
  assert_true(mgl_plan_turn(one_lane, w.run, 1) > 0);
  // One that ends before it has begun.
  submit(&w, 5);
  send(&w, &(mgl_feed_command){.call = MGL_FEED_END, .slot = 5});
  assert_true(mgl_plan_turn(one_lane, w.run, 2) > 0);
  assert_int_equal(mgl_planner_slot_of(w.run->planner, 5)->state, MGL_SLOT_FREE);
  // Behind the last iteration, and when the host wants it to leave.
  w.run->most_iterations = 3;
  assert_int_equal(mgl_plan_turn(one_lane, w.run, 3), 0);
  assert_true(mgl_turn_is_over(w.run));
  w.run->most_iterations = 5;
  assert_true(mgl_plan_turn(one_lane, w.run, 3) > 0);
  close_feed(&w, MGL_FEED_LEAVE);
  assert_int_equal(mgl_plan_turn(one_lane, w.run, 4), 0);
  assert_true(mgl_turn_is_over(w.run));
  close_world(&w);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(turns_make_the_hosts_plans),
      cmocka_unit_test(large_plans_are_left_to_the_wide_class),
      cmocka_unit_test(long_contexts_are_left_to_the_wide_class),
      cmocka_unit_test(a_chain_ends_at_a_fault),
      cmocka_unit_test(a_launch_is_over_when_nothing_can_come),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
