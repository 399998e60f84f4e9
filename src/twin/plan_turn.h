// A turn of the planner in the megakernel: commands in, the plan of an iteration out.
//
// One source for host and device, as the planner's own: by the lanes of twin/planner_lanes.h, a
// warp on a GPU (role_planner.cuh), one lane in tests. Everything is sized by the fields of
// mgl_cuda_run: nothing here bounds sequences or tokens.
//
// Turn i makes plan i while iteration i - 1 runs. It knows what iterations up to i - 2 sampled: so
// a sequence that stops in iteration i - 1 has a row in iteration i for nothing, and the token that
// iteration i - 1 samples is put into plan i by sampling (run->next_rows).
#ifndef MGL_TWIN_PLAN_TURN_H
#define MGL_TWIN_PLAN_TURN_H

#include "twin/device_run.h"
#include "twin/planner_requests.h"

#ifndef __CUDACC__
#include <string.h>
#endif

enum {
  // Positions after which chunks of attention grow are multiples of this.
  MGL_CHUNKED_POSITIONS = MGL_CUDA_MIN_CHUNK * MGL_CUDA_MAX_CHUNKS,
};

_Static_assert((int)MGL_MAX_ITERATION_TOKENS <= (int)MGL_CHUNKED_POSITIONS,
               "an entry crosses one such multiple at most");

// --- commands ------------------------------------------------------------------------------------

#ifdef __CUDACC__

// All lanes: 16-byte pieces from pinned memory, several on their way at once; rounds up.
MGL_PLANNER_FN void mgl_turn_copy(mgl_lanes lanes, void *to, const void *from, uint64_t bytes) {
  enum { BATCH = 4 };
  uint4 *out = (uint4 *)to;
  const uint4 *in = (const uint4 *)from;
  uint64_t count = (bytes + 15) / 16;
  for (uint64_t base = lanes.lane; base < count; base += (uint64_t)BATCH * lanes.count) {
    uint4 pieces[BATCH];
#pragma unroll
    for (uint32_t i = 0; i < BATCH; i++) {  // behind the end, the first again
      uint64_t at = base + i * lanes.count;
      pieces[i] = in[at < count ? at : base];
    }
#pragma unroll
    for (uint32_t i = 0; i < BATCH; i++) {
      uint64_t at = base + i * lanes.count;
      if (at < count) {
        out[at] = pieces[i];
      }
    }
  }
}

#else

MGL_PLANNER_FN void mgl_turn_copy(mgl_lanes lanes, void *to, const void *from, uint64_t bytes) {
  if (lanes.lane == 0 && bytes > 0) {
    memcpy(to, from, (size_t)bytes);
  }
}

#endif

// One lane: ends the request in the slot; where it still waits for its slot, it never begins.
MGL_PLANNER_FN void mgl_turn_end(mgl_cuda_run *run, uint32_t slot) {
  const mgl_cuda_planning *planning = &run->planning;
  for (uint32_t i = 0; i < planning->pending_count; i++) {
    uint32_t at = (planning->pending_first + i) % run->sequence_slots;
    if (run->pending[at].slot == slot && run->pending[at].call == MGL_FEED_SUBMIT) {
      run->pending[at].call = MGL_FEED_END;
      return;
    }
  }
  mgl_planner_wish_on(run->planner, slot, MGL_WISH_END);
}

// --- several ranks -------------------------------------------------------------------------------
//
// Every rank has all commands, in a ring of its own which its host fills at its own pace. Turn n of
// rank 0 reads what is there; turn n of the others reads as many, and waits for them. Rank 0 writes
// the word of turn n when all others have read that of turn n - 2, which was at the same place.

// One lane: whether rank 0 has made the turn that comes next here.
MGL_PLANNER_FN bool mgl_turn_is_led(const mgl_cuda_run *run) {
  const uint64_t turn = run->planning.turns;
  // Acquire, so that nothing behind it is done before.
  return mgl_load_acquire_system(&run->rank_words->turns[turn & 1]) >> 32 == (uint32_t)(turn + 1);
}

MGL_PLANNER_FN mgl_rank_words *mgl_turn_words_of(const mgl_cuda_run *run, uint32_t rank) {
  return (mgl_rank_words *)((uint8_t *)run->rank_words + run->peers[rank]);
}

MGL_PLANNER_FN bool mgl_turn_has_failed(const mgl_cuda_run *run) {
  return mgl_load_relaxed(&run->protocol.fault) != MGL_FAULT_NONE;
}

// One lane, not of rank 0: how many commands will have been read behind this turn.
MGL_PLANNER_FN uint64_t mgl_turn_follow(mgl_cuda_run *run) {
  mgl_cuda_planning *planning = &run->planning;
  const uint64_t own = planning->commands.own;
  while (!mgl_turn_is_led(run)) {
    if (mgl_turn_has_failed(run)) {
      return own;
    }
    mgl_relax();
  }
  const uint64_t word = mgl_load_acquire_system(&run->rank_words->turns[planning->turns & 1]);
  planning->turns++;
  mgl_store_release_system(&mgl_turn_words_of(run, 0)->seen[run->protocol.rank], planning->turns);
  return own + (uint32_t)((uint32_t)word - (uint32_t)own);
}

// One lane of rank 0: says how many commands this turn has read.
MGL_PLANNER_FN void mgl_turn_lead(mgl_cuda_run *run) {
  mgl_cuda_planning *planning = &run->planning;
  const uint64_t turn = planning->turns++;
  for (uint32_t rank = 1; rank < run->protocol.rank_count; rank++) {
    while (turn >= 2 && mgl_load_acquire_system(&run->rank_words->seen[rank]) < turn - 1 &&
           !mgl_turn_has_failed(run)) {
      mgl_relax();
    }
    mgl_store_release_system(&mgl_turn_words_of(run, rank)->turns[turn & 1],
                             (turn + 1) << 32 | (uint32_t)planning->commands.own);
  }
}

// One lane: whether there is a command that this turn reads; not of rank 0, it comes for sure.
MGL_PLANNER_FN bool mgl_turn_has_command(mgl_cuda_run *run, uint64_t last) {
  mgl_cuda_planning *planning = &run->planning;
  mgl_ring *ring = &run->feed->commands;
  if (planning->commands.own == last) {
    return false;
  }
  while (run->protocol.rank != 0 && !mgl_ring_has_entry(ring, &planning->commands) &&
         !mgl_turn_has_failed(run)) {
    mgl_relax();
  }
  return mgl_ring_has_entry(ring, &planning->commands);
}

// One lane: takes in all commands that are there. A slot has one request that waits for it at most,
// and one that never begins: `pending` has room for them, as the host does not use a slot again
// before the device has settled.
MGL_PLANNER_FN void mgl_turn_read_commands(mgl_cuda_run *run) {
  mgl_cuda_planning *planning = &run->planning;
  mgl_ring *ring = &run->feed->commands;
  const uint64_t last = run->protocol.rank != 0 ? mgl_turn_follow(run) : UINT64_MAX;
  bool any = false;
  while (planning->pending_count < run->sequence_slots && mgl_turn_has_command(run, last)) {
    mgl_feed_command command = run->commands[planning->commands.own & run->command_mask];
    mgl_ring_take(&planning->commands);
    any = true;
    if (command.call == MGL_FEED_CLOSE) {
      planning->end = command.slot;
    } else if (command.call == MGL_FEED_END) {
      mgl_turn_end(run, command.slot);
    } else if (command.call == MGL_FEED_MASK) {
      mgl_planner_mask_on(run->planner, command.slot, command.masked_to);
    } else {
      uint32_t at = planning->pending_first + planning->pending_count++;
      run->pending[at % run->sequence_slots] = command;
    }
  }
  if (any) {
    mgl_ring_tell(ring, &planning->commands);
  }
  if (run->protocol.rank == 0 && run->protocol.rank_count > 1) {
    mgl_turn_lead(run);
  }
}

// --- requests ------------------------------------------------------------------------------------

// All lanes: the sequences that produced a stop token, or have no finite logits, end.
MGL_PLANNER_FN void mgl_turn_end_stopped(mgl_lanes lanes, mgl_cuda_run *run) {
  mgl_planner *p = run->planner;
  mgl_planner_slot *slots = mgl_planner_slots(p);
  const uint32_t *order = mgl_planner_array(p, p->order_at);
  uint32_t ended = 0;
  for (uint32_t i = lanes.lane; i < p->count; i += lanes.count) {
    uint32_t state = run->sequences[order[i]].state;
    if (state == MGL_CUDA_SEQUENCE_STOPPED || state == MGL_CUDA_SEQUENCE_NOT_FINITE) {
      slots[order[i]].wishes |= (uint32_t)MGL_WISH_END;
      ended++;
    }
  }
  ended = mgl_lanes_sum(lanes, ended);
  if (lanes.lane == 0) {
    p->changes += ended;
  }
  mgl_lanes_sync(lanes);
}

// All lanes: a request whose slot is free enters.
MGL_PLANNER_FN void mgl_turn_submit(mgl_lanes lanes, mgl_cuda_run *run,
                                    const mgl_feed_command *command) {
  uint64_t slot = command->slot;
  mgl_cuda_sequence *sequence = &run->sequences[slot];
  mgl_page_key *keys = run->keys + slot * run->block_table_stride;
  mgl_turn_copy(lanes, sequence, &run->staged_sequences[slot], sizeof *sequence);
  mgl_turn_copy(lanes, keys, run->staged_keys + slot * run->block_table_stride,
                command->key_count * sizeof *keys);
  mgl_lanes_sync(lanes);
  mgl_turn_copy(lanes, sequence->tokens, run->staged_tokens + slot * run->token_stride,
                command->prompt_count * sizeof *sequence->tokens);
  if (command->edit_count > 0) {
    mgl_turn_copy(lanes, sequence->edits, run->staged_edits + slot * run->edit_stride,
                  command->edit_count * sizeof *sequence->edits);
  }
  if (lanes.lane == 0) {
    mgl_planner_request request;
    request.prompt_count = command->prompt_count;
    request.max_tokens = command->max_tokens;
    request.key_count = command->key_count;
    request.masked_to = command->masked_to;
    request.keys = keys;
    mgl_planner_submit_on(run->planner, command->slot, &request);
  }
  mgl_lanes_sync(lanes);
}

// All lanes: requests enter in the order in which they came.
MGL_PLANNER_FN void mgl_turn_submit_pending(mgl_lanes lanes, mgl_cuda_run *run) {
  mgl_cuda_planning *planning = &run->planning;
  while (planning->pending_count > 0) {
    const mgl_feed_command *command = &run->pending[planning->pending_first];
    bool enters = command->call == MGL_FEED_SUBMIT;
    if (enters && !mgl_planner_is_free_on(run->planner, command->slot)) {
      break;
    }
    mgl_lanes_sync(lanes);
    if (enters) {
      mgl_turn_submit(lanes, run, command);
    }
    if (lanes.lane == 0) {
      planning->pending_first = (planning->pending_first + 1) % run->sequence_slots;
      planning->pending_count--;
    }
    mgl_lanes_sync(lanes);
  }
}

// --- the plan ------------------------------------------------------------------------------------

// An entry's tokens are cut into tiles of attention, and each tile into chunks of positions.
//
// Bits do not depend on the cut. The chunks of a token are pieces of absolute positions, whose size
// follows from the token's own position p: MGL_CUDA_MIN_CHUNK doubled until MGL_CUDA_MAX_CHUNKS of
// them hold p + 1. It grows at p = 2048, 4096, 8192, and so on, all multiples of
// MGL_CHUNKED_POSITIONS, which no tile crosses, so all tokens of a tile have the size that the last
// one has. Chunks that only later tokens of the tile see add nothing to an earlier one.
typedef struct mgl_turn_tile {
  uint32_t position;  // of the first token
  uint32_t count;
  uint32_t shift;  // binary logarithm of its chunks' size
  uint32_t chunks;
} mgl_turn_tile;

// Tiles up to the first multiple of MGL_CHUNKED_POSITIONS behind the entry's first token.
MGL_PLANNER_FN uint32_t mgl_turn_first_tokens(const mgl_plan_entry *entry) {
  uint32_t border = (entry->position / MGL_CHUNKED_POSITIONS + 1) * MGL_CHUNKED_POSITIONS;
  return mgl_planner_least(entry->count, border - entry->position);
}

MGL_PLANNER_FN uint32_t mgl_turn_tiles(const mgl_plan_entry *entry, uint32_t tile_tokens) {
  uint32_t first = mgl_turn_first_tokens(entry);
  return (first + tile_tokens - 1) / tile_tokens +
         (entry->count - first + tile_tokens - 1) / tile_tokens;
}

MGL_PLANNER_FN mgl_turn_tile mgl_turn_tile_of(const mgl_plan_entry *entry, uint32_t tile_tokens,
                                              uint32_t number) {
  uint32_t first = mgl_turn_first_tokens(entry);
  uint32_t first_tiles = (first + tile_tokens - 1) / tile_tokens;
  bool behind = number >= first_tiles;
  uint32_t at = behind ? first + (number - first_tiles) * tile_tokens : number * tile_tokens;
  mgl_turn_tile tile;
  tile.position = entry->position + at;
  tile.count = mgl_planner_least(tile_tokens, (behind ? entry->count : first) - at);
  uint32_t last = tile.position + tile.count - 1;
  tile.shift = 0;
  while (1u << tile.shift < MGL_CUDA_MIN_CHUNK || last >> tile.shift >= MGL_CUDA_MAX_CHUNKS) {
    tile.shift++;
  }
  tile.chunks = (last >> tile.shift) + 1;
  return tile;
}

// How attention's work is cut: tokens of a tile, and into how many parts the query heads of a KV
// head are cut, each of so many heads.
typedef struct mgl_turn_cut {
  uint32_t tile_tokens, parts, heads;
} mgl_turn_cut;

// One lane: the items of a tile, part after part. first_row: of the entry.
MGL_PLANNER_FN void mgl_turn_add_items(mgl_cuda_plan *plan, const mgl_plan_entry *entry,
                                       const mgl_turn_tile *tile, const mgl_turn_cut *cut,
                                       uint32_t first_row, uint32_t first) {
  for (uint32_t i = 0; i < tile->chunks * cut->parts; i++) {
    uint32_t part = i / tile->chunks, chunk = i % tile->chunks;
    uint32_t kv_begin = chunk << tile->shift;
    mgl_cuda_item item;
    item.slot = entry->slot;
    item.row = first_row + tile->position - entry->position;
    item.count = tile->count;
    item.position = tile->position;
    item.fresh_row = first_row;
    item.fresh = entry->position;
    item.kv_begin = kv_begin;
    item.kv_end = mgl_planner_least(tile->position + tile->count, kv_begin + (1u << tile->shift));
    item.chunk = chunk;
    item.chunks = tile->chunks;
    item.partial = first + part * tile->chunks;
    item.heads = (part * cut->heads) << 8 | cut->heads;
    plan->items[first + i] = item;
  }
}

// One lane: a row. A token that is not sampled yet is -1.
MGL_PLANNER_FN void mgl_turn_add_row(const mgl_cuda_run *run, mgl_cuda_plan *plan,
                                     const mgl_plan_entry *entry, uint32_t row, uint32_t number) {
  const mgl_cuda_sequence *s = &run->sequences[entry->slot];
  uint32_t position = entry->position + number;
  bool known = position < s->token_count;
  plan->tokens[row] = known ? s->tokens[position] : -1;
  plan->positions[row] = position;
  plan->slots[row] = entry->slot;
  if (!known) {
    run->next_rows[entry->slot] = row;
  }
}

// The mgl_turn_sums of an entry count what all entries up to it have.
typedef struct mgl_turn_sums {
  uint32_t rows, items, logits;
  uint32_t longer;  // of one row each, those whose chunks are longer than the shortest
} mgl_turn_sums;

// All lanes: one entry each, its place among all; those of one row at once.
MGL_PLANNER_FN void mgl_turn_place(mgl_lanes lanes, const mgl_cuda_run *run, mgl_cuda_plan *plan,
                                   uint32_t idx, const mgl_turn_cut *cut, mgl_turn_sums *sums) {
  const mgl_planner *p = run->planner;
  const mgl_plan_entry *entry = (const mgl_plan_entry *)mgl_planner_at(p, p->entries_at) + idx;
  bool there = idx < p->entry_count;
  bool samples = there && (entry->flags & MGL_ENTRY_SAMPLES) != 0;
  uint32_t count = there ? entry->count : 0;
  uint32_t items = 0;
  mgl_turn_tile tile = {0, 0, 0, 0};
  for (uint32_t i = 0; there && i < mgl_turn_tiles(entry, cut->tile_tokens); i++) {
    tile = mgl_turn_tile_of(entry, cut->tile_tokens, i);
    items += tile.chunks * cut->parts;
  }
  uint32_t all_rows, all_items, all_logits;
  uint32_t row = sums->rows + mgl_lanes_prefix(lanes, count, &all_rows);
  uint32_t item = sums->items + mgl_lanes_prefix(lanes, items, &all_items);
  uint32_t logit = sums->logits + mgl_lanes_prefix(lanes, samples ? 1 : 0, &all_logits);
  if (there) {
    run->places[idx].row = row;
    run->places[idx].item = item;
  }
  if (samples) {
    plan->logit_rows[logit] = row + count - 1;
    plan->logit_slots[logit] = entry->slot;
  }
  if (count == 1) {
    mgl_turn_add_row(run, plan, entry, row, 0);
    mgl_turn_add_items(plan, entry, &tile, cut, row, item);
  }
  bool longer = count == 1 && 1u << tile.shift > MGL_CUDA_MIN_CHUNK;
  sums->longer += mgl_lanes_sum(lanes, longer ? 1 : 0);
  sums->rows += all_rows;
  sums->items += all_items;
  sums->logits += all_logits;
}

// All lanes: an entry of several rows.
MGL_PLANNER_FN void mgl_turn_fill(mgl_lanes lanes, const mgl_cuda_run *run, mgl_cuda_plan *plan,
                                  const mgl_plan_entry *entry, mgl_cuda_entry_place place,
                                  const mgl_turn_cut *cut) {
  uint32_t tiles = mgl_turn_tiles(entry, cut->tile_tokens);
  uint32_t item = place.item;
  for (uint32_t i = lanes.lane; i < entry->count; i += lanes.count) {
    mgl_turn_add_row(run, plan, entry, place.row + i, i);
  }
  for (uint32_t base = 0; base < tiles; base += lanes.count) {
    uint32_t number = base + lanes.lane;
    mgl_turn_tile tile = {0, 0, 0, 0};
    if (number < tiles) {
      tile = mgl_turn_tile_of(entry, cut->tile_tokens, number);
    }
    uint32_t total;
    uint32_t before = mgl_lanes_prefix(lanes, tile.chunks * cut->parts, &total);
    if (number < tiles) {
      mgl_turn_add_items(plan, entry, &tile, cut, place.row, item + before);
    }
    item += total;
  }
}

MGL_PLANNER_FN uint32_t mgl_turn_graph(const mgl_cuda_run *run, uint32_t rows) {
  uint32_t graph = 0;
  while (run->graphs[graph].tokens < rows) {
    graph++;
  }
  return graph;
}

// All lanes: how this iteration's attention is cut. Bits do not depend on it: a query head's sums
// are its own. Heads are cut while that leaves a worker for every item: a short context has few
// chunks, and what a worker does behind its chunk takes as long as it has heads (docs/log/204).
MGL_PLANNER_FN mgl_turn_cut mgl_turn_choose_cut(mgl_lanes lanes, const mgl_cuda_run *run) {
  const mgl_planner *p = run->planner;
  const mgl_plan_entry *entries = (const mgl_plan_entry *)mgl_planner_at(p, p->entries_at);
  const uint32_t columns = MGL_CUDA_QUERY_COLUMNS;
  mgl_turn_cut cut = {run->group < columns ? columns / run->group : 1, 1, run->group};
  uint32_t items = 0;
  if (run->head_parts <= 1) {
    return cut;
  }
  for (uint32_t base = 0; base < p->entry_count; base += lanes.count) {
    uint32_t idx = base + lanes.lane, mine = 0;
    for (uint32_t i = 0; idx < p->entry_count && i < mgl_turn_tiles(&entries[idx], cut.tile_tokens);
         i++) {
      mine += mgl_turn_tile_of(&entries[idx], cut.tile_tokens, i).chunks;
    }
    items += mgl_lanes_sum(lanes, mine);
  }
  const uint32_t most = run->graphs[mgl_turn_graph(run, p->token_count)].attention_strides;
  while (cut.parts < run->head_parts && 2 * cut.parts * items <= most) {
    cut.parts *= 2;
    cut.heads /= 2;
  }
  return cut;
}

// One lane: what the host will be told of the iteration.
MGL_PLANNER_FN void mgl_turn_note(mgl_cuda_run *run, uint64_t iteration, uint64_t kv_tokens) {
  mgl_feed_iteration *note = &run->planning.rows[iteration & 1];
  note->iteration = iteration;
  note->decode_tokens = run->planner->decode_entry_count;
  note->prompt_tokens = run->planner->token_count - run->planner->decode_entry_count;
  note->kv_tokens = kv_tokens;
}

// All lanes: what the planner decided, as the tasks of the iteration read it.
MGL_PLANNER_FN void mgl_turn_expand(mgl_lanes lanes, mgl_cuda_run *run, uint64_t iteration) {
  const mgl_planner *p = run->planner;
  mgl_cuda_plan *plan = &run->plans[iteration & 1];
  const mgl_plan_entry *entries = (const mgl_plan_entry *)mgl_planner_at(p, p->entries_at);
  const mgl_turn_cut cut = mgl_turn_choose_cut(lanes, run);
  for (uint32_t i = lanes.lane; i < run->sequence_slots; i += lanes.count) {
    run->next_rows[i] = UINT32_MAX;
  }
  mgl_lanes_sync(lanes);
  mgl_turn_sums sums = {0, 0, 0, 0};
  uint64_t kv_tokens = 0;
  for (uint32_t base = 0; base < p->entry_count; base += lanes.count) {
    uint32_t idx = base + lanes.lane;
    mgl_turn_place(lanes, run, plan, idx, &cut, &sums);
    bool decodes = idx < p->decode_entry_count;
    kv_tokens += mgl_lanes_sum(lanes, decodes ? entries[idx].position + 1 : 0);
  }
  mgl_lanes_sync(lanes);
  for (uint32_t i = p->decode_entry_count; i < p->entry_count; i++) {
    if (entries[i].count > 1) {
      mgl_turn_fill(lanes, run, plan, &entries[i], run->places[i], &cut);
    }
  }
  if (lanes.lane == 0) {
    plan->graph = mgl_turn_graph(run, sums.rows);
    plan->token_count = sums.rows;
    plan->sequence_count = p->entry_count;
    plan->logit_row_count = sums.logits;
    plan->item_count = sums.items;
    // The shortest way knows nothing of items that have some of a group's heads.
    plan->kind = sums.rows != p->entry_count        ? MGL_PLAN_ANY
                 : sums.longer > 0 || cut.parts > 1 ? MGL_PLAN_DECODES
                                                    : MGL_PLAN_SHORT;
    mgl_turn_note(run, iteration, kv_tokens);
  }
  mgl_lanes_sync(lanes);
}

// All lanes: the plan waits in the planner for the wide class. What this iteration samples only
// joins its sequences.
MGL_PLANNER_FN void mgl_turn_leave_to_wide(mgl_lanes lanes, mgl_cuda_run *run, uint32_t tokens) {
  for (uint32_t i = lanes.lane; i < run->sequence_slots; i += lanes.count) {
    run->next_rows[i] = UINT32_MAX;
  }
  if (lanes.lane == 0) {
    run->planning.wide_tokens = tokens;
  }
  mgl_lanes_sync(lanes);
}

// --- the turn ------------------------------------------------------------------------------------

// All lanes: takes in commands and decides plan `iteration`, which then waits in the planner.
// Returns its tokens; 0: there is no such plan now, or ever where planning.leaves.
MGL_PLANNER_FN uint32_t mgl_turn_decide(mgl_lanes lanes, mgl_cuda_run *run, uint64_t iteration) {
  mgl_planner *p = run->planner;
  if (lanes.lane == 0) {
    mgl_turn_read_commands(run);
    bool leaves = run->planning.end == MGL_FEED_LEAVE || iteration >= run->most_iterations;
    run->planning.leaves = leaves ? 1 : 0;
  }
  mgl_lanes_sync(lanes);
  if (run->planning.leaves != 0) {
    return 0;
  }
  mgl_turn_end_stopped(lanes, run);
  mgl_planner_settle_on(lanes, p);
  mgl_turn_submit_pending(lanes, run);
  return mgl_planner_plan_on(lanes, p);
}

// All lanes: whether the plan that waits in the planner, of `tokens`, is one for the wide class. It
// is if it has more tokens than the narrow class takes, or some and much context: then attention of
// the narrow class takes longer than all that the wide class adds (docs/log/197).
MGL_PLANNER_FN bool mgl_turn_is_wide(mgl_lanes lanes, const mgl_cuda_run *run, uint32_t tokens) {
  if (tokens > run->iteration_tokens || run->narrow_context == UINT64_MAX ||
      tokens <= run->long_tokens) {
    return tokens > run->iteration_tokens;
  }
  const mgl_planner *p = run->planner;
  const mgl_plan_entry *entries = (const mgl_plan_entry *)mgl_planner_at(p, p->entries_at);
  uint64_t context = 0;
  for (uint32_t base = 0; base < p->entry_count; base += lanes.count) {
    uint32_t idx = base + lanes.lane;
    uint32_t end = idx < p->entry_count ? entries[idx].position + entries[idx].count : 0;
    context += mgl_lanes_sum(lanes, end);
  }
  return context > run->narrow_context;
}

#ifdef MGL_POISON_PLANS
// All lanes: what the plan had is over.
MGL_PLANNER_FN void mgl_turn_poison(mgl_lanes lanes, mgl_cuda_plan *plan) {
#ifdef __CUDACC__
  for (uint32_t i = lanes.lane; i < sizeof *plan / sizeof(uint32_t); i += lanes.count) {
    ((uint32_t *)plan)[i] = MGL_PLAN_POISON;
  }
#else
  if (lanes.lane == 0) {
    memset(plan, MGL_PLAN_POISON & 0xff, sizeof *plan);
  }
#endif
  mgl_lanes_sync(lanes);
}
#endif

// All lanes: makes plan `iteration`. Returns its tokens; 0: there is no such plan now, or ever
// where planning.leaves, or it is one for the wide class (planning.wide_tokens).
MGL_PLANNER_FN uint32_t mgl_plan_turn(mgl_lanes lanes, mgl_cuda_run *run, uint64_t iteration) {
  uint32_t tokens = run->planning.narrow_tokens;
  mgl_lanes_sync(lanes);  // all lanes have read it
#ifdef MGL_POISON_PLANS
  mgl_turn_poison(lanes, &run->plans[iteration & 1]);
#endif
  if (tokens == 0) {
    tokens = mgl_turn_decide(lanes, run, iteration);
  } else if (lanes.lane == 0) {
    run->planning.narrow_tokens = 0;
  }
  if (mgl_turn_is_wide(lanes, run, tokens)) {
    mgl_turn_leave_to_wide(lanes, run, tokens);
    return 0;
  }
  if (tokens > 0) {
    mgl_turn_expand(lanes, run, iteration);
  }
  return tokens;
}

// One lane: nothing is left to do for a launch whose plan would be empty, and nothing will come.
MGL_PLANNER_FN bool mgl_turn_is_over(const mgl_cuda_run *run) {
  const mgl_cuda_planning *planning = &run->planning;
  bool closed = planning->end != MGL_FEED_OPEN && planning->pending_count == 0;
  return planning->leaves != 0 || closed;
}

// One lane: another turn may find something to do.
MGL_PLANNER_FN bool mgl_turn_has_news(mgl_cuda_run *run) {
  mgl_cuda_planning *planning = &run->planning;
  if (run->protocol.rank != 0) {
    return mgl_turn_is_led(run);
  }
  return planning->pending_count > 0 ||
         mgl_ring_has_entry(&run->feed->commands, &planning->commands);
}

// --- what the host is told -----------------------------------------------------------------------

// One lane: tells the host of iterations before `count`, which have ended: iteration_ns[count] is
// known. What the ring has no room for is not told.
MGL_PLANNER_FN void mgl_turn_tell_iterations(mgl_cuda_run *run, uint64_t count) {
  mgl_cuda_planning *planning = &run->planning;
  const mgl_planner *p = run->planner;
  while (planning->told < count) {
    uint64_t i = planning->told++;
    if (!mgl_ring_has_room(&run->feed->iterations, &planning->iterations, MGL_FEED_ITERATIONS)) {
      continue;
    }
    mgl_feed_iteration *to = &run->iterations[planning->iterations.own & (MGL_FEED_ITERATIONS - 1)];
    *to = planning->rows[i & 1];
    uint64_t begin_ns = i == planning->resumed ? planning->resumed_ns
                                               : run->iteration_ns[i % run->iteration_capacity];
    to->ns = run->iteration_ns[(i + 1) % run->iteration_capacity] - begin_ns;
    to->counts = p->counts;
    to->planning_ns = planning->planning_ns;
    to->running = p->running;
    to->waiting = p->count - p->running;
    to->pages_used = p->limits.page_count - p->free_count - p->idle_count;
    to->pages_used_most = p->pages_used_most;
    mgl_ring_publish(&run->feed->iterations, &planning->iterations);
  }
}

// One lane: tells the host which commands have had all their effects.
MGL_PLANNER_FN void mgl_turn_settle(mgl_cuda_run *run, uint64_t commands) {
  if (run->planning.settled != commands) {
    run->planning.settled = commands;
    mgl_store_release_system(&run->feed->settled, commands);
  }
}

#endif
