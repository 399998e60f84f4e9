// The host's side of the feed (twin/feed.h): slots, commands, and what comes back.
//
// All memory is taken once. A slot is free, busy from its submission until its last token was seen
// here, or ending: ended by the host, and not used again until the device says that it will not
// write to it any more.
#include <assert.h>
#include <string.h>

#include "base/alloc.h"
#include "device/cuda/cuda_program_parts.h"

enum {
  MOST_SLOTS_AHEAD = 64,   // requests that wait on the device, so that it never waits for one
  COMMANDS_OF_A_SLOT = 7,  // submitted, masked and ended, twice, and what is said of all
};

// --- memory --------------------------------------------------------------------------------------

mgl_status mgl_cuda_feed_limits(mgl_cuda_program *p, uint64_t *out_planner_bytes, mgl_error *err) {
  const mgl_sizes *o = &p->sizes;
  mgl_cuda_feeding *f = &p->feeding;
  uint32_t sequences = o->sequences;  // of which as many sample at once as have rows
  if (p->wide.tokens == 0 && o->logit_rows < o->limits.tokens && o->logit_rows < sequences) {
    sequences = o->logit_rows;
  }
  if (p->wide.tokens > 0 && p->wide.rows < sequences) {
    sequences = p->wide.rows;
  }
  uint32_t ahead = sequences < MOST_SLOTS_AHEAD ? sequences : MOST_SLOTS_AHEAD;
  uint32_t slots = sequences + ahead;
  f->slot_count = slots < MGL_MAX_SEQUENCES ? slots : MGL_MAX_SEQUENCES;
  f->limits = (mgl_planner_limits){
      .slots = f->slot_count,
      .sequences = sequences,
      .iteration_tokens = p->wide.tokens > 0 ? p->wide.tokens : o->limits.tokens,
      .page_tokens = MGL_CUDA_KV_PAGE_TOKENS,
      .page_count = o->page_count,
      .pages_per_sequence = o->limits.pages_per_sequence,
      .prefix_cache = 1,
      .late = 1};
  return mgl_planner_size(&f->limits, out_planner_bytes, err);
}

// Takes `bytes` of the pinned block and returns where they lie.
static uint64_t take(mgl_cuda_feeding *f, uint64_t bytes) {
  uint64_t at = f->bytes;
  f->bytes += (bytes + 63) / 64 * 64;
  return at;
}

static mgl_feed_command *commands_of(const mgl_cuda_feeding *f) {
  return (mgl_feed_command *)(void *)((unsigned char *)f->block + f->commands_at);
}

static mgl_cuda_sequence *sequence_of(const mgl_cuda_feeding *f, uint32_t slot) {
  return (mgl_cuda_sequence *)(void *)((unsigned char *)f->block + f->sequences_at) + slot;
}

static int32_t *tokens_of(const mgl_cuda_program *p, uint32_t slot) {
  const mgl_cuda_feeding *f = &p->feeding;
  return (int32_t *)(void *)((unsigned char *)f->block + f->tokens_at) +
         (size_t)slot * p->layout.tokens_per_sequence;
}

static mgl_page_key *keys_of(const mgl_cuda_program *p, uint32_t slot) {
  const mgl_cuda_feeding *f = &p->feeding;
  return (mgl_page_key *)(void *)((unsigned char *)f->block + f->keys_at) +
         (size_t)slot * p->sizes.limits.pages_per_sequence;
}

// Cells are read and written whole, while the device writes them: a cell is one word.
static mgl_word *cells_of(const mgl_cuda_program *p, uint32_t slot) {
  const mgl_cuda_feeding *f = &p->feeding;
  return (mgl_word *)(void *)((unsigned char *)f->block + f->cells_at) +
         (size_t)slot * p->layout.tokens_per_sequence;
}

_Static_assert(sizeof(mgl_feed_cell) == sizeof(mgl_word), "a cell is one word");

mgl_status mgl_cuda_feed_create(mgl_cuda_program *p, mgl_error *err) {
  const mgl_cuda_driver *driver = &p->device->driver;
  mgl_cuda_feeding *f = &p->feeding;
  size_t slots = f->slot_count;
  uint64_t commands = mgl_power_of_two_at_least(slots * COMMANDS_OF_A_SLOT);
  f->bytes = sizeof(mgl_feed);
  f->command_mask = commands - 1;
  f->commands_at = take(f, commands * sizeof(mgl_feed_command));
  f->iterations_at = take(f, MGL_FEED_ITERATIONS * sizeof(mgl_feed_iteration));
  f->sequences_at = take(f, slots * sizeof(mgl_cuda_sequence));
  f->tokens_at = take(f, slots * p->layout.tokens_per_sequence * sizeof(int32_t));
  f->keys_at = take(f, slots * p->sizes.limits.pages_per_sequence * sizeof(mgl_page_key));
  f->cells_at = take(f, slots * p->layout.tokens_per_sequence * sizeof(mgl_feed_cell));
  unsigned flags = MGL_CU_HOST_ALLOC_PORTABLE | MGL_CU_HOST_ALLOC_MAPPED;
  MGL_CUDA_TRY(driver, host_alloc, err, &f->block, (size_t)f->bytes, flags);
  MGL_CUDA_TRY(driver, host_address, err, &f->at, f->block, 0);
  if (p->ranks != NULL && f->bytes > MGL_CUDA_LOG_BYTES - MGL_CUDA_LOG_FEED) {
    return mgl_error_set(err, MGL_ERR_LIMIT,
                         "requests of several ranks: expected at most %llu bytes for all that can "
                         "be there at once, found %llu; allow fewer sequences or a shorter context",
                         (unsigned long long)(MGL_CUDA_LOG_BYTES - MGL_CUDA_LOG_FEED),
                         (unsigned long long)f->bytes);
  }
  f->feed = f->block;
  f->planner_lost = true;
  f->slots = mgl_alloc_zeroed(slots, sizeof *f->slots);
  return mgl_alloc_check(f->slots, err, "%zu slots", slots);
}

void mgl_cuda_feed_destroy(mgl_cuda_program *p) {
  MGL_CUDA_RELEASE(&p->device->driver, host_free, p->feeding.block);
}

// --- before a launch -----------------------------------------------------------------------------

// An empty planner on the device, which goes on counting.
static mgl_status make_planner(mgl_cuda_program *p, mgl_error *err) {
  mgl_cuda_feeding *f = &p->feeding;
  mgl_planner *planner = NULL;
  MGL_TRY(mgl_planner_create(&f->limits, &planner, err));
  planner->counts = f->latest.counts;
  f->tables_at = planner->tables_at;
  mgl_status status =
      MGL_CUDA_CALL(&p->device->driver, copy_to_device, err, p->memory[MGL_CUDA_MEMORY_PLANNER],
                    planner, (size_t)planner->bytes);
  mgl_planner_destroy(planner);
  f->planner_lost = status != MGL_OK;
  memset(f->slots, 0, f->slot_count * sizeof *f->slots);
  f->busy = 0;
  f->ending = 0;
  return status;
}

static void set_pointers(mgl_cuda_program *p) {
  const mgl_cuda_feeding *f = &p->feeding;
  const mgl_cuda_state_layout *state = &p->layout.state;
  mgl_cuda_run *run = mgl_cuda_image_run(p);
  mgl_cu_ptr planner = p->memory[MGL_CUDA_MEMORY_PLANNER];
  run->planner = mgl_cuda_pointer(planner);
  run->block_tables = mgl_cuda_pointer(planner + f->tables_at);
  run->keys = mgl_cuda_pointer(mgl_cuda_state_at(p, state->keys));
  run->pending = mgl_cuda_pointer(mgl_cuda_state_at(p, state->pending));
  run->places = mgl_cuda_pointer(mgl_cuda_state_at(p, state->places));
  run->token_stride = p->layout.tokens_per_sequence;
  run->edit_stride = f->edit_capacity;
  run->feed = mgl_cuda_pointer(f->at);
  run->commands = mgl_cuda_pointer(f->at + f->commands_at);
  run->command_mask = f->command_mask;
  run->iterations = mgl_cuda_pointer(f->at + f->iterations_at);
  run->staged_sequences = mgl_cuda_pointer(f->at + f->sequences_at);
  run->staged_tokens = mgl_cuda_pointer(f->at + f->tokens_at);
  run->staged_keys = mgl_cuda_pointer(f->at + f->keys_at);
  run->staged_edits = mgl_cuda_pointer(f->staged_edits_at);
  run->planning.planning_ns = f->latest.planning_ns;
}

// --- several ranks -------------------------------------------------------------------------------

// A part of the pinned block in the log, and the other way round.
static void copy_part(unsigned char *to, const unsigned char *from, uint64_t at, uint64_t step,
                      uint32_t slot, uint64_t bytes) {
  at += slot * step;
  memcpy(to + at, from + at, (size_t)bytes);
}

// What a command of a slot speaks of.
static void copy_request(const mgl_cuda_program *p, const mgl_feed_command *command,
                         unsigned char *to, const unsigned char *from) {
  const mgl_cuda_feeding *f = &p->feeding;
  const uint64_t tokens = p->layout.tokens_per_sequence * sizeof(int32_t);
  const uint64_t keys = p->sizes.limits.pages_per_sequence * sizeof(mgl_page_key);
  const uint32_t slot = command->slot;
  copy_part(to, from, f->sequences_at, sizeof(mgl_cuda_sequence), slot, sizeof(mgl_cuda_sequence));
  copy_part(to, from, f->tokens_at, tokens, slot, command->prompt_count * sizeof(int32_t));
  copy_part(to, from, f->keys_at, keys, slot, command->key_count * sizeof(mgl_page_key));
}

// Rank 0: the command for the others, who have handed on what was at its place.
static void log_command(const mgl_cuda_program *p, const mgl_feed_command *command) {
  const mgl_cuda_feeding *f = &p->feeding;
  unsigned char *feed = mgl_cuda_log_feed(p->ranks);
  mgl_cuda_log *log = mgl_cuda_log_of(p->ranks);
  const uint64_t at = mgl_load_relaxed(&log->commands);
  if (command->call == MGL_FEED_SUBMIT) {
    copy_request(p, command, feed, f->block);
  }
  if (command->call == MGL_FEED_SUBMIT || command->call == MGL_FEED_MASK) {
    mgl_cuda_sampling_log(p, command, sequence_of(f, command->slot)->mask != NULL);
  }
  mgl_feed_command *commands = (mgl_feed_command *)(void *)(feed + f->commands_at);
  commands[at & f->command_mask] = *command;
  // Release, paired with the acquire in mgl_cuda_feed_follow.
  mgl_store_release(&log->commands, at + 1);
}

// A request as this rank's device sees it: memory is this one's, and nobody here wants to know more
// than the tokens, and those only of requests that wait for masks.
static void adopt_sequence(mgl_cuda_program *p, const mgl_feed_command *command) {
  const mgl_cuda_feeding *f = &p->feeding;
  const uint32_t slot = command->slot;
  const uint64_t first = (uint64_t)slot * p->layout.tokens_per_sequence;
  mgl_cuda_sequence *s = sequence_of(f, slot);
  s->cells = mgl_cuda_pointer(f->at + f->cells_at + first * sizeof(mgl_feed_cell));
  s->tokens = mgl_cuda_pointer(p->memory[MGL_CUDA_MEMORY_TOKENS] + first * sizeof(int32_t));
  s->host_logprobs = NULL;
  s->rule.flags &= ~(uint32_t)MGL_SAMPLING_LOGPROBS;
  mgl_cuda_sampling_adopt(p, command, s);
  for (uint32_t i = command->prompt_count; command->masked_to > 0 && i < command->max_tokens; i++) {
    mgl_store_relaxed(&cells_of(p, slot)[i], (uint32_t)MGL_FEED_NO_TOKEN);
  }
}

// Whether this rank's device is done with the mask before: its token is there, as it is on rank 0,
// whose host has made the next mask of it. It comes, since no turn of the planner that waits for
// this command stands before it.
static bool may_take_mask(const mgl_cuda_program *p, const mgl_feed_command *command) {
  const uint32_t latest = command->masked_to - 2;
  // Acquire: the device read the mask before.
  const uint64_t word = mgl_load_acquire_system(&cells_of(p, command->slot)[latest]);
  return (int32_t)(uint32_t)word != MGL_FEED_NO_TOKEN;
}

// What a command speaks of, for this rank's device. False: not yet.
static bool adopt(mgl_cuda_program *p, const mgl_feed_command *command) {
  mgl_cuda_feeding *f = &p->feeding;
  if (command->call == MGL_FEED_MASK) {
    if (!may_take_mask(p, command)) {
      return false;
    }
    mgl_cuda_sequence ignored = {0};  // the device has its address
    mgl_cuda_sampling_adopt(p, command, &ignored);
  } else if (command->call == MGL_FEED_SUBMIT) {
    copy_request(p, command, f->block, mgl_cuda_log_feed(p->ranks));
    adopt_sequence(p, command);
  }
  return true;
}

void mgl_cuda_feed_follow(mgl_cuda_program *p) {
  mgl_cuda_feeding *f = &p->feeding;
  mgl_cuda_log *log = mgl_cuda_log_of(p->ranks);
  const unsigned char *feed = mgl_cuda_log_feed(p->ranks);
  const mgl_feed_command *commands =
      (const mgl_feed_command *)(const void *)(feed + f->commands_at);
  // Acquire, paired with the release in log_command.
  while (f->log_base + f->commands.own < mgl_load_acquire(&log->commands) &&
         mgl_ring_has_room(&f->feed->commands, &f->commands, f->command_mask + 1)) {
    const mgl_feed_command command = commands[(f->log_base + f->commands.own) & f->command_mask];
    if (!adopt(p, &command)) {
      return;
    }
    commands_of(f)[f->commands.own & f->command_mask] = command;
    mgl_ring_publish(&f->feed->commands, &f->commands);
    mgl_store_release(&log->copied[mgl_ranks_rank(p->ranks)].count, f->log_base + f->commands.own);
  }
}

// -------------------------------------------------------------------------------------------------

static void send(mgl_cuda_program *p, const mgl_feed_command *command) {
  mgl_cuda_feeding *f = &p->feeding;
  bool room = mgl_ring_has_room(&f->feed->commands, &f->commands, f->command_mask + 1);
  assert(room);  // COMMANDS_OF_A_SLOT
  (void)room;
  commands_of(f)[f->commands.own & f->command_mask] = *command;
  mgl_ring_publish(&f->feed->commands, &f->commands);
  if (p->ranks != NULL) {
    log_command(p, command);
  }
}

static void end_slot(mgl_cuda_program *p, uint32_t slot) {
  mgl_cuda_feeding *f = &p->feeding;
  send(p, &(mgl_feed_command){.call = MGL_FEED_END, .slot = slot});
  f->slots[slot].state = MGL_CUDA_SLOT_ENDING;
  f->slots[slot].ended_at = f->commands.own;
  f->busy--;
  f->ending++;
}

mgl_status mgl_cuda_feed_begin(mgl_cuda_program *p, const mgl_cuda_generate *job, mgl_error *err) {
  mgl_cuda_feeding *f = &p->feeding;
  f->limits.chunk_tokens = job->chunk_tokens;
  f->limits.prompts_first = job->prompts_first ? 1 : 0;
  if (f->planner_lost) {
    MGL_TRY(make_planner(p, err));
  }
  mgl_planner_limits limits = f->limits;
  if (job->launch.full) {  // which has no kernels for more
    limits.iteration_tokens = p->sizes.limits.tokens;
  }
  MGL_CUDA_TRY(&p->device->driver, copy_to_device, err,
               p->memory[MGL_CUDA_MEMORY_PLANNER] + offsetof(mgl_planner, limits), &limits,
               sizeof limits);
  memset(f->feed, 0, sizeof *f->feed);
  mgl_ring_init(&f->feed->commands);
  mgl_ring_init(&f->feed->iterations);
  f->commands = (mgl_ring_end){0};
  f->iterations = (mgl_ring_end){0};
  f->end = MGL_FEED_OPEN;
  f->failed = false;
  if (p->ranks != NULL && p->peers.rank == 0) {
    f->log_base = mgl_load_relaxed(&mgl_cuda_log_of(p->ranks)->commands);
  }
  set_pointers(p);
  for (uint32_t i = 0; i < f->slot_count; i++) {  // what a launch left
    if (f->slots[i].state == MGL_CUDA_SLOT_ENDING) {
      f->slots[i].state = MGL_CUDA_SLOT_BUSY;
      f->ending--;
      f->busy++;
    }
    if (f->slots[i].state == MGL_CUDA_SLOT_BUSY) {
      end_slot(p, i);
    }
  }
  return MGL_OK;
}

void mgl_cuda_feed_resume(mgl_cuda_program *p, const mgl_cuda_planning *kept) {
  mgl_cuda_feeding *f = &p->feeding;
  mgl_cuda_planning *planning = &mgl_cuda_image_run(p)->planning;
  set_pointers(p);
  planning->commands = kept->commands;
  planning->iterations = kept->iterations;
  planning->pending_first = kept->pending_first;
  planning->pending_count = kept->pending_count;
  planning->planning_ns = kept->planning_ns;
  planning->end = kept->end;
  planning->narrow_tokens = kept->narrow_tokens;
  planning->turns = kept->turns;
  planning->commands_before = kept->commands.own;
  planning->settled = kept->commands.own;
  mgl_store_release_system(&f->feed->settled, kept->commands.own);
  if (p->ranks != NULL) {  // what the others have seen, or write there now
    mgl_rank_words *words = (mgl_rank_words *)(void *)(p->image + p->layout.state.rank_words);
    for (uint32_t rank = 0; rank < p->peers.count; rank++) {
      mgl_store_relaxed(&words->seen[rank], kept->turns);
    }
  }
}

// --- while it runs -------------------------------------------------------------------------------

uint32_t mgl_cuda_feed_busy(const mgl_cuda_program *p) {
  return p->feeding.busy;
}

void mgl_cuda_feed_set_end(mgl_cuda_program *p, mgl_feed_end end) {
  mgl_cuda_feeding *f = &p->feeding;
  if (f->end < end) {
    f->end = end;
    send(p, &(mgl_feed_command){.call = MGL_FEED_CLOSE, .slot = (uint32_t)end});
  }
}

// Ended slots become free.
static void settle(mgl_cuda_program *p) {
  mgl_cuda_feeding *f = &p->feeding;
  // Acquire, paired with the release in mgl_turn_settle: the device's last cells are there.
  uint64_t settled = f->ending > 0 ? mgl_load_acquire_system(&f->feed->settled) : 0;
  if (f->ending > 0 && p->ranks != NULL) {  // and what the others have to read of
    uint64_t copied = mgl_cuda_log_copied(p->ranks, p->peers.count);
    copied = copied > f->log_base ? copied - f->log_base : 0;
    settled = copied < settled ? copied : settled;
  }
  for (uint32_t i = 0; i < f->slot_count && f->ending > 0; i++) {
    if (f->slots[i].state == MGL_CUDA_SLOT_ENDING && f->slots[i].ended_at <= settled) {
      f->slots[i].state = MGL_CUDA_SLOT_FREE;
      f->ending--;
    }
  }
}

uint32_t mgl_cuda_feed_free_slot(mgl_cuda_program *p) {
  mgl_cuda_feeding *f = &p->feeding;
  settle(p);
  if (f->busy + f->ending == f->slot_count) {
    return UINT32_MAX;
  }
  while (f->slots[f->next_slot].state != MGL_CUDA_SLOT_FREE) {
    f->next_slot = (f->next_slot + 1) % f->slot_count;
  }
  return f->next_slot;
}

static void stage_sequence(mgl_cuda_program *p, uint32_t slot, const mgl_cuda_request *r) {
  const mgl_cuda_feeding *f = &p->feeding;
  uint64_t first = (uint64_t)slot * p->layout.tokens_per_sequence;
  uint64_t tokens = (uint64_t)slot * p->layout.tokens_per_sequence * sizeof(int32_t);
  uint64_t edits = (uint64_t)slot * f->edit_capacity * sizeof(mgl_logit_edit);
  uint64_t logprobs = (uint64_t)slot * f->logprob_capacity * sizeof(mgl_cuda_logprobs);
  mgl_cuda_sequence *s = sequence_of(f, slot);
  *s = (mgl_cuda_sequence){
      .state = MGL_CUDA_SEQUENCE_RUNNING,
      .token_count = r->prompt_count,
      .prompt_count = r->prompt_count,
      .max_tokens = r->prompt_count + r->max_new_tokens,
      .edit_count = r->edit_count,
      .stop_count = r->stop_count,
      .cells = mgl_cuda_pointer(f->at + f->cells_at + first * sizeof(mgl_feed_cell)),
      .tokens = mgl_cuda_pointer(p->memory[MGL_CUDA_MEMORY_TOKENS] + tokens),
      .rule = r->rule};
  if (mgl_cuda_request_edits(r) > 0) {
    s->edits = mgl_cuda_pointer(f->edits + edits);
  }
  if (mgl_cuda_request_logprobs(r) > 0) {
    s->host_logprobs = mgl_cuda_pointer(f->logprobs_at + logprobs);
  }
  s->mask = mgl_cuda_sampling_mask(p, slot, &r->mask);
  s->rule.flags |= s->mask != NULL ? (uint32_t)MGL_SAMPLING_MASKED : 0;
  s->takes_row = s->rule.flags;
  if (r->stop_count > 0) {
    memcpy(s->stop_ids, r->stop_ids, r->stop_count * sizeof *s->stop_ids);
  }
}

void mgl_cuda_feed_submit(mgl_cuda_program *p, uint32_t slot, const mgl_cuda_request *r) {
  mgl_cuda_feeding *f = &p->feeding;
  mgl_cuda_slot *s = &f->slots[slot];
  uint32_t max_tokens = r->prompt_count + r->max_new_tokens;
  mgl_word *cells = cells_of(p, slot);
  assert(s->state == MGL_CUDA_SLOT_FREE);
  *s = (mgl_cuda_slot){.state = MGL_CUDA_SLOT_BUSY,
                       .number = r->number,
                       .prompt_count = r->prompt_count,
                       .max_tokens = max_tokens,
                       .seen = r->prompt_count,
                       .logprobs = mgl_cuda_request_logprobs(r) > 0,
                       .stop_count = r->stop_count};
  f->busy++;
  stage_sequence(p, slot, r);
  memcpy(s->stop_ids, sequence_of(f, slot)->stop_ids, sizeof s->stop_ids);
  memcpy(tokens_of(p, slot), r->prompt, r->prompt_count * sizeof *r->prompt);
  if (r->key_count > 0) {
    memcpy(keys_of(p, slot), r->keys, r->key_count * sizeof *r->keys);
  }
  if (r->edit_count > 0) {
    memcpy(f->staged_edits + (size_t)slot * f->edit_capacity, r->edits,
           r->edit_count * sizeof *r->edits);
  }
  for (uint32_t i = r->prompt_count; i < max_tokens; i++) {
    mgl_store_relaxed(&cells[i], (uint32_t)MGL_FEED_NO_TOKEN);
  }
  send(p, &(mgl_feed_command){.call = MGL_FEED_SUBMIT,
                              .slot = slot,
                              .prompt_count = r->prompt_count,
                              .max_tokens = max_tokens,
                              .key_count = r->key_count,
                              .edit_count = r->edit_count,
                              .masked_to = r->masks_all ? r->prompt_count + 1 : 0});
}

// The slot of a request that has not ended; slot_count: none.
static uint32_t find_slot(const mgl_cuda_feeding *f, uint32_t number) {
  uint32_t slot = f->busy > 0 ? 0 : f->slot_count;
  while (slot < f->slot_count &&
         (f->slots[slot].state != MGL_CUDA_SLOT_BUSY || f->slots[slot].number != number)) {
    slot++;
  }
  return slot;
}

void mgl_cuda_program_end(mgl_cuda_program *p, uint32_t number) {
  uint32_t slot = find_slot(&p->feeding, number);
  if (slot < p->feeding.slot_count) {
    end_slot(p, slot);
  }
}

void mgl_cuda_program_mask(mgl_cuda_program *p, uint32_t number, const mgl_cuda_mask *mask,
                           uint32_t token_count) {
  uint32_t slot = find_slot(&p->feeding, number);
  if (slot < p->feeding.slot_count) {
    (void)mgl_cuda_sampling_mask(p, slot, mask);
    send(p, &(mgl_feed_command){.call = MGL_FEED_MASK, .slot = slot, .masked_to = token_count + 1});
  }
}

// --- what comes back -----------------------------------------------------------------------------

static void report_token(mgl_cuda_program *p, const mgl_cuda_generate *job, uint32_t slot,
                         mgl_feed_cell cell) {
  mgl_cuda_feeding *f = &p->feeding;
  mgl_cuda_slot *s = &f->slots[slot];
  mgl_cuda_token heard = {.request = s->number,
                          .token = cell.token,
                          .state = MGL_CUDA_SEQUENCE_RUNNING,
                          .sampled_ns = cell.ns};
  if (s->logprobs) {
    heard.logprobs = &f->logprobs[(size_t)slot * f->logprob_capacity + s->seen - s->prompt_count];
  }
  s->seen++;
  heard.state = s->seen == s->max_tokens ? MGL_CUDA_SEQUENCE_LENGTH : MGL_CUDA_SEQUENCE_RUNNING;
  for (uint32_t i = 0; i < s->stop_count; i++) {
    heard.state = s->stop_ids[i] == cell.token ? MGL_CUDA_SEQUENCE_STOPPED : heard.state;
  }
  if (heard.state != MGL_CUDA_SEQUENCE_RUNNING) {
    s->state = MGL_CUDA_SLOT_FREE;
    f->busy--;
  }
  if (job->on_token != NULL) {
    job->on_token(job->context, &heard);
  }
}

// All that has arrived in a slot. The callback may end its request.
static bool report_slot(mgl_cuda_program *p, const mgl_cuda_generate *job, uint32_t slot) {
  mgl_cuda_feeding *f = &p->feeding;
  mgl_cuda_slot *s = &f->slots[slot];
  bool any = false;
  while (s->state == MGL_CUDA_SLOT_BUSY) {
    // Acquire: the device wrote the token's log probabilities before it.
    uint64_t word = mgl_load_acquire_system(&cells_of(p, slot)[s->seen]);
    mgl_feed_cell cell = {.token = (int32_t)(uint32_t)word, .ns = (uint32_t)(word >> 32)};
    if (cell.token == MGL_FEED_NO_TOKEN) {
      break;
    }
    any = true;
    if (cell.token == MGL_FEED_NOT_FINITE) {
      f->failed_slot = f->failed && f->failed_slot < slot ? f->failed_slot : slot;
      f->failed = true;
      s->state = MGL_CUDA_SLOT_FREE;
      f->busy--;
      break;
    }
    report_token(p, job, slot, cell);
  }
  return any;
}

static bool report_iterations(mgl_cuda_program *p, const mgl_cuda_generate *job) {
  mgl_cuda_feeding *f = &p->feeding;
  const mgl_feed_iteration *ring =
      (const mgl_feed_iteration *)(const void *)((unsigned char *)f->block + f->iterations_at);
  bool any = false;
  while (f->iterations.own != f->iterations.other) {
    f->latest = ring[f->iterations.own & (MGL_FEED_ITERATIONS - 1)];
    mgl_ring_take(&f->iterations);
    mgl_ring_tell(&f->feed->iterations, &f->iterations);
    any = true;
    if (job->on_progress != NULL) {
      job->on_progress(job->context, &f->latest);
    }
  }
  return any;
}

// Cells that the device has written are not in the caches, and each is on a page of its own; so all
// are asked for before the first is read.
static void prefetch_cells(const mgl_cuda_program *p) {
  const mgl_cuda_feeding *f = &p->feeding;
  uint32_t left = f->busy;
  for (uint32_t i = 0; i < f->slot_count && left > 0; i++) {
    if (f->slots[i].state == MGL_CUDA_SLOT_BUSY) {
      __builtin_prefetch((const void *)&cells_of(p, i)[f->slots[i].seen]);
      left--;
    }
  }
}

bool mgl_cuda_feed_report(mgl_cuda_program *p, const mgl_cuda_generate *job) {
  mgl_cuda_feeding *f = &p->feeding;
  bool any = false;
  uint32_t left = f->busy;
  prefetch_cells(p);
  // First, so that the tokens of these iterations are reported before them.
  (void)mgl_ring_has_entry(&f->feed->iterations, &f->iterations);
  for (uint32_t i = 0; i < f->slot_count && left > 0; i++) {
    if (f->slots[i].state == MGL_CUDA_SLOT_BUSY) {
      any = report_slot(p, job, i) || any;
      left--;
    }
  }
  return report_iterations(p, job) || any;
}

mgl_cuda_progress mgl_cuda_program_progress(const mgl_cuda_program *p) {
  return p->feeding.latest;
}
