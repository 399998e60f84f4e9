// The planner: its rules one by one, and properties over many random turns in a world that checks
// every read of KV (planner_world.h).
#include "twin/planner.h"

#include <stdlib.h>

#include "planner_world.h"

static mgl_planner *create(const mgl_planner_limits *limits) {
  mgl_planner *p = NULL;
  mgl_error err = {0};
  if (mgl_planner_create(limits, &p, &err) != MGL_OK) {
    fail_msg("%s", err.text);
  }
  return p;
}

static void submit(mgl_planner *p, uint32_t slot, uint32_t prompt, uint32_t answer,
                   const mgl_page_key *keys) {
  mgl_planner_submit(
      p, slot,
      &(mgl_planner_request){.prompt_count = prompt,
                             .max_tokens = prompt + answer,
                             .key_count = keys != NULL ? prompt / p->limits.page_tokens : 0,
                             .keys = keys});
}

static uint32_t turn(mgl_planner *p) {
  mgl_error err = {0};
  mgl_planner_settle(p);
  uint32_t tokens = mgl_planner_plan(p);
  if (mgl_planner_check(p, &err) != MGL_OK) {
    fail_msg("%s", err.text);
  }
  return tokens;
}

static void expect_entry(const mgl_planner *p, uint32_t i, uint32_t slot, uint32_t position,
                         uint32_t count, uint32_t flags) {
  assert_true(i < p->entry_count);
  const mgl_plan_entry *e = &mgl_planner_entries(p)[i];
  assert_int_equal(e->slot, slot);
  assert_int_equal(e->position, position);
  assert_int_equal(e->count, count);
  assert_int_equal(e->flags, flags);
}

static const mgl_planner_limits usual = {.slots = 8,
                                         .sequences = 4,
                                         .iteration_tokens = 16,
                                         .page_tokens = 4,
                                         .page_count = 64,
                                         .pages_per_sequence = 32,
                                         .prefix_cache = 1};

static void limits_are_checked(void **state) {
  (void)state;
  static const struct {
    size_t field;
    uint32_t value;
    const char *text;
  } cases[] = {
      {offsetof(mgl_planner_limits, slots), 0, "requests that the planner knows"},
      {offsetof(mgl_planner_limits, slots), 1025, "expected 1 to 1024, found 1025"},
      {offsetof(mgl_planner_limits, sequences), 9, "expected 1 to 8, found 9"},
      {offsetof(mgl_planner_limits, iteration_tokens), 2049, "expected 1 to 2048, found 2049"},
      {offsetof(mgl_planner_limits, iteration_tokens), 0, "tokens per iteration"},
      {offsetof(mgl_planner_limits, page_tokens), 0, "tokens of a KV page"},
      {offsetof(mgl_planner_limits, page_count), 0, "KV pages"},
      {offsetof(mgl_planner_limits, pages_per_sequence), UINT32_MAX, "KV pages of a sequence"},
  };
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    mgl_planner_limits limits = usual;
    mgl_planner *p = NULL;
    mgl_error err = {0};
    memcpy((char *)&limits + cases[i].field, &cases[i].value, sizeof(uint32_t));
    assert_int_equal(mgl_planner_create(&limits, &p, &err), MGL_ERR_LIMIT);
    assert_null(p);
    assert_non_null(strstr(err.text, cases[i].text));
  }
  mgl_error err = {0};
  mgl_planner_limits small = usual;
  small.page_count = 8;
  assert_int_equal(mgl_planner_check_request(&usual, 100, 28, &err), MGL_OK);
  assert_int_equal(mgl_planner_check_request(&usual, 100, 29, &err), MGL_ERR_LIMIT);
  assert_int_equal(mgl_planner_check_request(&usual, 0, 1, &err), MGL_ERR_ARGUMENT);
  assert_int_equal(mgl_planner_check_request(&usual, 1, 0, &err), MGL_ERR_ARGUMENT);
  assert_int_equal(mgl_planner_check_request(&usual, UINT64_MAX, UINT64_MAX, &err), MGL_ERR_LIMIT);
  assert_int_equal(mgl_planner_check_request(&small, 32, 1, &err), MGL_OK);
  assert_int_equal(mgl_planner_check_request(&small, 32, 2, &err), MGL_ERR_LIMIT);
  assert_non_null(strstr(err.text, "needs 9 KV pages, there are 8"));
}

// Nothing is left allocated when memory is out.
static void memory_may_be_out(void **state) {
  (void)state;
  int64_t live = mgl_alloc_live();
  mgl_planner *p = NULL;
  mgl_error err = {0};
  mgl_alloc_fail_nth(1);
  assert_int_equal(mgl_planner_create(&usual, &p, &err), MGL_ERR_MEMORY);
  mgl_alloc_fail_nth(0);
  assert_int_equal(mgl_alloc_live(), live);
}

static void decoding_comes_first_and_prompts_share_the_rest(void **state) {
  (void)state;
  mgl_planner *p = create(&usual);
  submit(p, 5, 3, 10, NULL);
  assert_int_equal(turn(p), 3);
  expect_entry(p, 0, 5, 0, 3, MGL_ENTRY_SAMPLES);
  submit(p, 0, 100, 4, NULL);  // long
  submit(p, 1, 2, 4, NULL);    // short
  submit(p, 2, 50, 4, NULL);   // long
  submit(p, 3, 5, 4, NULL);    // has no place
  assert_int_equal(turn(p), 16);
  assert_int_equal(p->entry_count, 4);
  assert_int_equal(p->decode_entry_count, 1);
  expect_entry(p, 0, 5, 3, 1, MGL_ENTRY_SAMPLES | MGL_ENTRY_DECODES);
  expect_entry(p, 1, 0, 0, 7, 0);
  expect_entry(p, 2, 1, 0, 2, MGL_ENTRY_SAMPLES);
  expect_entry(p, 3, 2, 0, 6, 0);
  assert_int_equal(turn(p), 16);
  expect_entry(p, 1, 1, 2, 1, MGL_ENTRY_SAMPLES | MGL_ENTRY_DECODES);
  expect_entry(p, 2, 0, 7, 7, 0);
  expect_entry(p, 3, 2, 6, 7, 0);
  assert_int_equal(mgl_planner_slot_of(p, 3)->state, MGL_SLOT_WAITING);
  mgl_planner_destroy(p);
}

static void a_chunk_has_a_limit_of_its_own(void **state) {
  (void)state;
  mgl_planner_limits limits = usual;
  limits.chunk_tokens = 3;
  mgl_planner *p = create(&limits);
  submit(p, 0, 7, 1, NULL);
  submit(p, 1, 1, 1, NULL);
  assert_int_equal(turn(p), 4);
  expect_entry(p, 0, 0, 0, 3, 0);
  expect_entry(p, 1, 1, 0, 1, MGL_ENTRY_SAMPLES);
  assert_int_equal(turn(p), 3);
  assert_int_equal(mgl_planner_slot_of(p, 1)->state, MGL_SLOT_FREE);  // its only token was sampled
  assert_int_equal(turn(p), 1);
  expect_entry(p, 0, 0, 6, 1, MGL_ENTRY_SAMPLES);
  assert_int_equal(turn(p), 0);
  assert_int_equal(mgl_planner_pages_used(p), 0);
  mgl_planner_destroy(p);
}

static void prompts_first_holds_decoding_back(void **state) {
  (void)state;
  mgl_planner_limits limits = usual;
  limits.prompts_first = 1;
  mgl_planner *p = create(&limits);
  submit(p, 0, 2, 9, NULL);
  submit(p, 1, 20, 9, NULL);
  assert_int_equal(turn(p), 16);
  assert_int_equal(turn(p), 6);
  assert_int_equal(p->decode_entry_count, 0);
  assert_int_equal(turn(p), 2);
  assert_int_equal(p->decode_entry_count, 2);
  mgl_planner_destroy(p);
}

// More sequences decode than an iteration has rows: they take turns, and a prompt still comes in.
static void decoding_rotates_and_prompts_keep_a_share(void **state) {
  (void)state;
  mgl_planner_limits limits = usual;
  limits.slots = 16;
  limits.sequences = 12;
  limits.iteration_tokens = 5;
  mgl_planner *p = create(&limits);
  uint32_t rows[16] = {0};
  for (uint32_t i = 0; i < 11; i++) {
    submit(p, i, 1, 100, NULL);
  }
  for (int i = 0; i < 20; i++) {  // all have begun to decode
    turn(p);
  }
  submit(p, 11, 10, 1, NULL);
  for (uint32_t t = 0; t < 10; t++) {  // a row of each iteration is the prompt's
    assert_int_equal(turn(p), 5);
    assert_int_equal(p->decode_entry_count, 4);
    expect_entry(p, 4, 11, t, 1, t == 9 ? MGL_ENTRY_SAMPLES : 0);
  }
  turn(p);
  memset(rows, 0, sizeof rows);
  for (int t = 0; t < 11; t++) {  // 55 rows for 11 sequences: 5 for each
    assert_int_equal(turn(p), 5);
    for (uint32_t i = 0; i < 5; i++) {
      rows[mgl_planner_entries(p)[i].slot]++;
    }
  }
  for (uint32_t i = 0; i < 11; i++) {
    assert_int_equal(rows[i], 5);
  }
  mgl_planner_destroy(p);
}

static void one_row_goes_to_prompts_and_decoding_in_turn(void **state) {
  (void)state;
  mgl_planner_limits limits = usual;
  limits.iteration_tokens = 1;
  mgl_planner *p = create(&limits);
  uint32_t rows[2] = {0};
  submit(p, 0, 1, 50, NULL);
  turn(p);
  submit(p, 1, 50, 50, NULL);
  for (int i = 0; i < 20; i++) {
    assert_int_equal(turn(p), 1);
    rows[mgl_planner_entries(p)[0].slot]++;
  }
  assert_int_equal(rows[0], 10);
  assert_int_equal(rows[1], 10);
  mgl_planner_destroy(p);
}

static void admission_needs_pages_for_the_prompt_and_a_margin(void **state) {
  (void)state;
  mgl_planner_limits limits = usual;
  limits.page_count = 10;
  mgl_planner *p = create(&limits);
  submit(p, 0, 16, 8, NULL);  // 4 pages
  submit(p, 1, 24, 4, NULL);  // 6 pages and a margin of 1 do not fit beside them
  submit(p, 2, 1, 1, NULL);   // fits, but is not first
  assert_int_equal(turn(p), 16);
  assert_int_equal(p->entry_count, 1);
  mgl_planner_end(p, 0);
  turn(p);
  assert_int_equal(p->entry_count, 2);
  expect_entry(p, 0, 1, 0, 15, 0);
  expect_entry(p, 1, 2, 0, 1, MGL_ENTRY_SAMPLES);
  mgl_planner_destroy(p);
}

// Two sequences outgrow the pool: the one admitted last goes, waits in front, and comes back.
static void the_last_one_is_preempted_and_recomputed(void **state) {
  (void)state;
  mgl_planner_limits limits = usual;
  limits.page_count = 8;
  mgl_planner *p = create(&limits);
  submit(p, 0, 4, 20, NULL);
  submit(p, 1, 4, 20, NULL);
  submit(p, 2, 24, 1, NULL);
  while (p->counts.preemptions == 0) {
    assert_true(turn(p) > 0);
  }
  // 16 tokens each fill the pool; the 17th of slot 0 takes a page of slot 1.
  assert_int_equal(p->entry_count, 1);
  expect_entry(p, 0, 0, 16, 1, MGL_ENTRY_SAMPLES | MGL_ENTRY_DECODES);
  assert_int_equal(mgl_planner_slot_of(p, 1)->state, MGL_SLOT_WAITING);
  assert_int_equal(mgl_planner_pages_used(p), 5);
  while (mgl_planner_slot_of(p, 1)->state == MGL_SLOT_WAITING) {
    assert_int_equal(mgl_planner_slot_of(p, 2)->state, MGL_SLOT_WAITING);
    turn(p);
  }
  // Its 17 tokens are computed again like a prompt.
  expect_entry(p, p->entry_count - 1, 1, 0, 16, 0);
  turn(p);
  expect_entry(p, 0, 1, 16, 1, MGL_ENTRY_SAMPLES);
  assert_int_equal(p->counts.preemptions, 1);
  mgl_planner_destroy(p);
}

static void paused_requests_hold_no_pages_and_come_back_in_front(void **state) {
  (void)state;
  mgl_planner *p = create(&usual);
  submit(p, 0, 10, 10, NULL);
  submit(p, 1, 10, 10, NULL);
  turn(p);
  mgl_planner_pause(p, 0);
  turn(p);
  assert_int_equal(p->entry_count, 1);
  expect_entry(p, 0, 1, 8, 2, MGL_ENTRY_SAMPLES);
  assert_int_equal(mgl_planner_pages_used(p), 3);
  assert_int_equal(mgl_planner_slot_of(p, 0)->state, MGL_SLOT_PAUSED);
  mgl_planner_pause(p, 1);
  mgl_planner_resume(p, 1);  // taken back in time
  submit(p, 2, 1, 9, NULL);
  mgl_planner_resume(p, 0);
  turn(p);
  expect_entry(p, 0, 1, 10, 1, MGL_ENTRY_SAMPLES | MGL_ENTRY_DECODES);
  expect_entry(p, 1, 0, 0, 10, MGL_ENTRY_SAMPLES);
  expect_entry(p, 2, 2, 0, 1, MGL_ENTRY_SAMPLES);
  mgl_planner_pause(p, 0);
  turn(p);
  mgl_planner_end(p, 0);  // while paused
  mgl_planner_settle(p);
  assert_true(mgl_planner_is_free(p, 0));
  assert_int_equal(p->paused, 0);
  mgl_planner_destroy(p);
}

static void a_slot_waits_a_turn_where_results_are_late(void **state) {
  (void)state;
  mgl_planner_limits limits = usual;
  limits.late = 1;
  mgl_planner *p = create(&limits);
  submit(p, 0, 1, 1, NULL);
  turn(p);
  assert_false(mgl_planner_is_free(p, 0));
  mgl_planner_settle(p);
  assert_int_equal(mgl_planner_slot_of(p, 0)->state, MGL_SLOT_FREE);
  assert_false(mgl_planner_is_free(p, 0));
  mgl_planner_plan(p);
  assert_true(mgl_planner_is_free(p, 0));
  mgl_planner_destroy(p);
}

static void keys_of(const int32_t *tokens, uint32_t count, mgl_page_key *keys) {
  mgl_page_keys_compute(tokens, count, usual.page_tokens, NULL, 0, keys);
}

static void prefixes_are_found_from_the_next_plan_on(void **state) {
  (void)state;
  mgl_planner *p = create(&usual);
  int32_t tokens[16];
  mgl_page_key keys[4], others[4];
  for (int i = 0; i < 16; i++) {
    tokens[i] = i;
  }
  keys_of(tokens, 16, keys);
  tokens[9] = 99;
  keys_of(tokens, 16, others);
  submit(p, 0, 16, 2, keys);
  submit(p, 1, 16, 2, keys);  // planned with it: finds nothing
  turn(p);
  expect_entry(p, 1, 1, 0, 8, 0);
  assert_int_equal(p->counts.prefix_hit_tokens, 0);
  submit(p, 2, 16, 2, keys);  // finds two pages, computed by slot 0
  turn(p);
  expect_entry(p, 2, 2, 8, 5, 0);
  assert_memory_equal(mgl_planner_pages_of(p, 2), mgl_planner_pages_of(p, 0), 8);
  assert_int_equal(p->counts.prefix_hit_tokens, 8);
  for (int i = 0; i < 9; i++) {
    turn(p);
  }
  assert_int_equal(mgl_planner_pages_used(p), 0);
  // All four pages are there; the last token is computed all the same, and with it its page.
  submit(p, 3, 16, 2, keys);
  submit(p, 4, 16, 2, others);  // differs in its third page
  turn(p);
  expect_entry(p, 0, 3, 12, 4, MGL_ENTRY_SAMPLES);
  expect_entry(p, 1, 4, 8, 8, MGL_ENTRY_SAMPLES);
  assert_int_equal(p->counts.prefix_hit_tokens, 8 + 12 + 8);
  assert_int_equal(p->counts.prefix_lookup_tokens, 5 * 16);
  mgl_planner_destroy(p);
}

static void the_least_recently_released_pages_are_evicted(void **state) {
  (void)state;
  mgl_planner_limits limits = usual;
  limits.page_count = 8;
  mgl_planner *p = create(&limits);
  int32_t tokens[2][12];
  mgl_page_key keys[2][3];
  for (int i = 0; i < 12; i++) {
    tokens[0][i] = i;
    tokens[1][i] = 100 + i;
  }
  for (uint32_t i = 0; i < 2; i++) {
    keys_of(tokens[i], 12, keys[i]);
    submit(p, i, 12, 1, keys[i]);
    turn(p);
    turn(p);
  }
  assert_int_equal(p->cached_count, 6);
  assert_int_equal(p->idle_count, 6);
  submit(p, 2, 16, 1, NULL);  // 4 pages: 2 free ones, and the last two of slot 0's prompt
  turn(p);
  turn(p);
  assert_int_equal(p->counts.evictions, 2);
  assert_int_equal(p->cached_count, 4);
  submit(p, 0, 12, 1, keys[0]);
  submit(p, 1, 12, 1, keys[1]);
  turn(p);
  expect_entry(p, 0, 0, 4, 8, MGL_ENTRY_SAMPLES);
  expect_entry(p, 1, 1, 8, 4, MGL_ENTRY_SAMPLES);
  mgl_planner_destroy(p);
}

static void expect_pages(const mgl_planner *p, uint32_t slot, uint32_t first, uint32_t count,
                         int32_t page) {
  assert_true(first + count <= mgl_planner_slot_of(p, slot)->page_count);
  for (uint32_t i = 0; i < count; i++) {
    assert_int_equal(mgl_planner_pages_of(p, slot)[first + i], page + (int32_t)i);
  }
}

// Runs of 16 pages of 64.
static void pages_of_a_sequence_follow_each_other(void **state) {
  (void)state;
  mgl_planner_limits limits = usual;
  limits.runs = 16;
  mgl_planner *p = create(&limits);
  submit(p, 0, 60, 60, NULL);
  submit(p, 1, 4, 60, NULL);
  submit(p, 2, 4, 60, NULL);
  for (int i = 0; i < 20; i++) {
    turn(p);
  }
  expect_pages(p, 0, 0, 16, 0);
  expect_pages(p, 0, 16, 2, 48);  // page 16 is slot 1's
  expect_pages(p, 1, 0, 5, 16);
  expect_pages(p, 2, 0, 5, 32);
  submit(p, 3, 4, 60, NULL);  // where no run begins
  turn(p);
  assert_int_equal(mgl_planner_slot_of(p, 3)->page_count, 1);
  mgl_planner_destroy(p);
}

static void all_can_begin_anew(void **state) {
  (void)state;
  mgl_planner *p = create(&usual);
  int32_t tokens[16] = {0};
  mgl_page_key keys[4];
  keys_of(tokens, 16, keys);
  submit(p, 0, 16, 9, keys);
  submit(p, 1, 5, 9, NULL);
  turn(p);
  turn(p);
  mgl_planner_rewind(p);
  assert_int_equal(mgl_planner_pages_used(p), 0);
  assert_int_equal(p->cached_count, 0);
  turn(p);
  expect_entry(p, 0, 0, 0, 9, 0);
  expect_entry(p, 1, 1, 0, 7, MGL_ENTRY_SAMPLES);
  mgl_planner_destroy(p);
}

// --- properties ----------------------------------------------------------------------------------

static mgl_planner_limits random_limits(world *w) {
  static const uint32_t pages[] = {1, 2, 3, 4, 8, 16};
  mgl_planner_limits l = {.slots = 1 + world_random(w, 24)};
  l.sequences = 1 + world_random(w, l.slots);
  l.iteration_tokens = 1 + world_random(w, world_chance(w, 30) ? 4 : 64);
  l.chunk_tokens = world_chance(w, 50) ? 1 + world_random(w, 20) : 0;
  l.page_tokens = pages[world_random(w, 6)];
  l.pages_per_sequence = 2 + world_random(w, 24);
  l.page_count = 1 + world_random(w, l.pages_per_sequence * (world_chance(w, 60) ? 2 : l.slots));
  l.prompts_first = world_chance(w, 10);
  l.prefix_cache = world_chance(w, 60);
  l.late = world_chance(w, 50);
  l.runs = world_chance(w, 50) ? 1 + world_random(w, 8) : 0;
  return l;
}

// Rows that the sequence in a slot has in the latest plan.
static uint32_t rows_of(const world *w, uint32_t slot) {
  const mgl_plan_entry *entries = mgl_planner_entries(w->planner);
  for (uint32_t i = 0; i < w->planner->entry_count; i++) {
    if (entries[i].slot == slot) {
      return entries[i].count;
    }
  }
  return 0;
}

// No row is left over while somebody wants one, and no prompt gets less than another but where it
// wants no more.
static void check_shares(world *w) {
  const mgl_planner *p = w->planner;
  const mgl_planner_limits *l = &w->limits;
  uint32_t most = 0, least_wanting = UINT32_MAX, hungry = 0, decoding_hungry = 0;
  for (uint32_t i = 0; i < l->slots; i++) {
    const mgl_planner_slot *s = mgl_planner_slot_of(p, i);
    uint32_t rows = rows_of(w, i);
    if (s->state != MGL_SLOT_RUNNING) {
      continue;
    }
    bool prompt = s->computed - rows < s->prefill;
    bool wants = prompt
                     ? s->computed < s->prefill && (l->chunk_tokens == 0 || rows < l->chunk_tokens)
                     : rows == 0;
    wants = wants && s->token_count < s->masked_to;
    hungry += wants && prompt ? 1 : 0;
    decoding_hungry += wants && !prompt ? 1 : 0;
    if (prompt) {
      most = rows > most ? rows : most;
      least_wanting = wants && rows < least_wanting ? rows : least_wanting;
    }
  }
  assert_true(hungry == 0 || least_wanting + 1 >= most);
  if (p->token_count < l->iteration_tokens) {
    assert_int_equal(hungry, 0);
    assert_true(decoding_hungry == 0 || (l->prompts_first != 0 && p->token_count > 0));
  }
  uint32_t kept = l->iteration_tokens / MGL_PLANNER_DECODE_SHARE;
  kept = kept > 0 ? kept : l->iteration_tokens > 1 ? 1 : 0;
  assert_true(hungry == 0 || p->token_count - p->decode_entry_count >= kept);
}

// The one that was admitted first never waits for longer than all others take to have their turn.
static void check_first(world *w) {
  world_request *first = NULL;
  uint32_t rows = w->limits.iteration_tokens;
  rows -= rows / MGL_PLANNER_DECODE_SHARE > 0 ? rows / MGL_PLANNER_DECODE_SHARE : 1;
  rows = rows > 0 ? rows : 1;
  uint32_t turns = 2 * ((w->limits.sequences + rows - 1) / rows) + 2;
  for (uint32_t i = 0; i < w->limits.slots; i++) {
    world_request *r = &w->requests[i];
    uint32_t slot_state = mgl_planner_slot_of(w->planner, i)->state;
    bool runs = slot_state == MGL_SLOT_RUNNING || slot_state == MGL_SLOT_LAST;
    if (r->tokens != NULL && runs && (first == NULL || r->number < first->number)) {
      first = r;
    }
  }
  for (uint32_t i = 0; i < w->limits.slots; i++) {
    world_request *r = &w->requests[i];
    bool is_idle = rows_of(w, i) == 0 && r->masked_to == 0;  // not if it waits for a mask
    r->idle_turns = r == first && is_idle ? r->idle_turns + 1 : 0;
  }
  if (first != NULL && w->resumed == 0 && w->limits.prompts_first == 0 &&
      first->idle_turns > turns) {
    fail_msg("request %u had no row for %u turns", first->number, first->idle_turns);
  }
}

// Until one is resumed, requests begin in the order in which they came.
static void check_arrival(const world *w) {
  uint32_t last_admitted = 0, first_waiting = UINT32_MAX;
  for (uint32_t i = 0; i < w->limits.slots; i++) {
    const world_request *r = &w->requests[i];
    bool waits = mgl_planner_slot_of(w->planner, i)->state == MGL_SLOT_WAITING;
    if (r->tokens != NULL && r->admitted && r->number > last_admitted) {
      last_admitted = r->number;
    }
    if (r->tokens != NULL && waits && !r->admitted && r->number < first_waiting) {
      first_waiting = r->number;
    }
  }
  assert_true(w->resumed > 0 || first_waiting > last_admitted);
}

static void check_turn(world *w, uint32_t running_before, uint64_t preemptions_before) {
  mgl_error err = {0};
  const mgl_planner *p = w->planner;
  if (mgl_planner_check(p, &err) != MGL_OK) {
    fail_msg("%s", err.text);
  }
  uint32_t preempted = (uint32_t)(p->counts.preemptions - preemptions_before);
  assert_true(preempted == 0 || p->running + preempted <= running_before);
  check_shares(w);
  check_first(w);
  check_arrival(w);
}

typedef struct run_totals {
  uint64_t steps, tokens, hits, preemptions, evictions, ended;
} run_totals;

// A world of `turns` turns, and then until nothing is left.
static void run_world(uint64_t seed, uint32_t turns, run_totals *totals) {
  world w = {.random = seed * 77 + 5};
  mgl_planner_limits limits = random_limits(&w);
  world_init(&w, &limits, seed);
  w.families = 1 + world_random(&w, 6);
  w.arrive_percent = 10 + world_random(&w, 80);
  w.cancel_permille = world_random(&w, 3) * 4;
  w.pause_permille = world_random(&w, 3) * 4;
  w.stop_percent = world_random(&w, 60);
  w.mask_percent = world_random(&w, 3) * 25;
  uint64_t bound = (uint64_t)(limits.slots + 1) * limits.pages_per_sequence * limits.page_tokens *
                   (limits.sequences + 2) * 2;
  for (uint64_t t = 0; t < turns || w.ended < w.submitted; t++) {
    uint64_t preemptions = w.planner->counts.preemptions;
    uint32_t running = w.planner->running;
    bool arrive = t < turns;
    w.pause_permille = arrive ? w.pause_permille : 0;
    world_turn(&w, arrive);
    check_turn(&w, running, preemptions);
    totals->steps++;
    assert_true(t < turns + bound);  // everything ends
  }
  assert_int_equal(mgl_planner_pages_used(w.planner), 0);
  assert_int_equal(w.planner->free_count + w.planner->idle_count, limits.page_count);
  totals->tokens += w.planner->counts.prompt_tokens + w.planner->counts.decode_tokens;
  totals->hits += w.planner->counts.prefix_hit_tokens;
  totals->preemptions += w.planner->counts.preemptions;
  totals->evictions += w.planner->counts.evictions;
  totals->ended += w.ended;
  world_free(&w);
}

static void properties_hold_over_random_turns(void **state) {
  (void)state;
#if defined(MGL_TEST_SANITIZED)
  const uint64_t wanted = 100000;
#else
  const uint64_t wanted = getenv("MGL_TEST_LONG") != NULL ? 2000000 : 300000;
#endif
  run_totals totals = {0};
  for (uint64_t seed = 1; totals.steps < wanted; seed++) {
    run_world(seed, 200, &totals);
  }
  print_message(
      "%llu turns, %llu tokens, %llu requests, %llu preemptions, %llu tokens of prefixes "
      "found, %llu pages evicted\n",
      (unsigned long long)totals.steps, (unsigned long long)totals.tokens,
      (unsigned long long)totals.ended, (unsigned long long)totals.preemptions,
      (unsigned long long)totals.hits, (unsigned long long)totals.evictions);
  assert_true(totals.preemptions > wanted / 200 && totals.hits > wanted / 20 &&
              totals.evictions > wanted / 100);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(limits_are_checked),
      cmocka_unit_test(memory_may_be_out),
      cmocka_unit_test(decoding_comes_first_and_prompts_share_the_rest),
      cmocka_unit_test(a_chunk_has_a_limit_of_its_own),
      cmocka_unit_test(prompts_first_holds_decoding_back),
      cmocka_unit_test(decoding_rotates_and_prompts_keep_a_share),
      cmocka_unit_test(one_row_goes_to_prompts_and_decoding_in_turn),
      cmocka_unit_test(admission_needs_pages_for_the_prompt_and_a_margin),
      cmocka_unit_test(the_last_one_is_preempted_and_recomputed),
      cmocka_unit_test(paused_requests_hold_no_pages_and_come_back_in_front),
      cmocka_unit_test(a_slot_waits_a_turn_where_results_are_late),
      cmocka_unit_test(prefixes_are_found_from_the_next_plan_on),
      cmocka_unit_test(the_least_recently_released_pages_are_evicted),
      cmocka_unit_test(pages_of_a_sequence_follow_each_other),
      cmocka_unit_test(all_can_begin_anew),
      cmocka_unit_test(properties_hold_over_random_turns),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
