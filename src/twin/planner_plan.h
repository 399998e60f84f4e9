// The turn's second half: admission, who gets how many rows, pages for them, and the plan.
//
// One source for host and device (twin/planner_lanes.h); all lanes call. The rules stand in
// twin/planner.h.
#ifndef MGL_TWIN_PLANNER_PLAN_H
#define MGL_TWIN_PLANNER_PLAN_H

#include "twin/planner_settle.h"

enum { MGL_ROWS_DECODE = 1 << 30 };  // in rows[]: the row decodes

MGL_PLANNER_FN uint32_t mgl_planner_least(uint32_t a, uint32_t b) {
  return a < b ? a : b;
}

// --- admission -----------------------------------------------------------------------------------

// Pages that a sequence will still take: the rest of its prompt's, and as a margin one more if its
// answer may need it. prefill: where its prompt ends. No iteration takes more.
MGL_PLANNER_FN uint32_t mgl_planner_promise(const mgl_planner *p, const mgl_planner_slot *s,
                                            uint32_t prefill, uint32_t page_count) {
  uint32_t pages = mgl_planner_pages_for(p, prefill > s->computed ? prefill : s->computed);
  uint32_t most = mgl_planner_pages_for(p, s->max_tokens - 1);
  return pages - page_count + (pages < most ? 1 : 0);
}

// Returns the pages that all sequences that run will still take (mgl_planner_promise).
MGL_PLANNER_FN uint32_t mgl_planner_promised(mgl_lanes lanes, const mgl_planner *p) {
  const mgl_planner_slot *slots = mgl_planner_slots(p);
  const uint32_t *order = mgl_planner_array(p, p->order_at);
  uint32_t pages = 0;
  for (uint32_t i = lanes.lane; i < p->running; i += lanes.count) {
    const mgl_planner_slot *s = &slots[order[i]];
    pages += mgl_planner_promise(p, s, s->prefill, s->page_count);
  }
  return mgl_lanes_sum(lanes, pages);
}

// Admits the first that waits, with the cached pages in its block table.
MGL_PLANNER_FN void mgl_planner_start(mgl_planner *p, uint32_t slot, uint32_t hits) {
  mgl_planner_slot *s = &mgl_planner_slots(p)[slot];
  mgl_planner_hold(p, slot, hits);
  s->state = MGL_SLOT_RUNNING;
  s->prefill = s->token_count;
  s->page_count = hits;
  s->computed = hits * p->limits.page_tokens;
  p->running++;
  p->counts.prefix_lookup_tokens += p->limits.prefix_cache != 0 ? s->prefill : 0;
  p->counts.prefix_hit_tokens += s->computed;
}

MGL_PLANNER_FN void mgl_planner_admit(mgl_lanes lanes, mgl_planner *p) {
  const uint32_t *order = mgl_planner_array(p, p->order_at);
  uint32_t most = mgl_planner_least(p->limits.sequences, p->count);
  if (p->running >= most) {
    return;
  }
  uint32_t promised = mgl_planner_promised(lanes, p);
  while (p->running < most) {
    uint32_t slot = order[p->running];
    const mgl_planner_slot *s = &mgl_planner_slots(p)[slot];
    uint32_t idle = 0;
    uint32_t hits = mgl_planner_look_up(lanes, p, slot, &idle);
    uint32_t fresh = mgl_planner_pages_for(p, s->token_count) - hits;
    if (p->running > 0 && p->free_count + p->idle_count < promised + fresh + idle) {
      break;
    }
    promised += mgl_planner_promise(p, s, s->token_count, hits);
    mgl_lanes_sync(lanes);
    if (lanes.lane == 0) {
      mgl_planner_start(p, slot, hits);
    }
    mgl_lanes_sync(lanes);
  }
}

// --- rows ----------------------------------------------------------------------------------------

// How the iteration is divided: decoding sequence number k of all, counted from the cursor, gets a
// row if k < decode_rows; a prompt that wants w rows gets the smaller of w and level, and the first
// `extra` of those that want more get one more.
typedef struct mgl_planner_division {
  uint32_t decoding;         // sequences
  uint32_t decoding_before;  // the cursor
  uint32_t decode_rows;
  uint32_t prompt_rows;
  uint32_t level;
  uint32_t extra;
  uint32_t pages;   // to be taken for these rows
  uint32_t cursor;  // at which decoding goes on
} mgl_planner_division;

MGL_PLANNER_FN uint32_t mgl_planner_wants(const mgl_planner *p, const mgl_planner_slot *s) {
  if (s->state != MGL_SLOT_RUNNING || s->token_count >= s->masked_to) {
    return 0;
  }
  if (s->computed >= s->prefill) {
    return MGL_ROWS_DECODE | 1;
  }
  uint32_t rows = mgl_planner_least(s->prefill - s->computed, p->limits.iteration_tokens);
  return p->limits.chunk_tokens != 0 ? mgl_planner_least(rows, p->limits.chunk_tokens) : rows;
}

// The largest level at which the prompts' rows do not exceed `rows`; *out_left: what it leaves.
MGL_PLANNER_FN uint32_t mgl_planner_level(mgl_lanes lanes, const mgl_planner *p, uint32_t rows,
                                          uint32_t *out_left) {
  const uint32_t *wants = mgl_planner_array(p, p->rows_at);
  uint32_t low = 0, high = rows;
  *out_left = rows;
  while (low < high) {
    uint32_t middle = low + (high - low + 1) / 2;
    uint32_t sum = 0;
    for (uint32_t i = lanes.lane; i < p->running; i += lanes.count) {
      sum += wants[i] < MGL_ROWS_DECODE ? mgl_planner_least(wants[i], middle) : 0;
    }
    sum = mgl_lanes_sum(lanes, sum);
    if (sum <= rows) {
      low = middle;
      *out_left = rows - sum;
    } else {
      high = middle - 1;
    }
  }
  return low;
}

// Rows that decoding leaves to prompts.
MGL_PLANNER_FN uint32_t mgl_planner_kept_rows(const mgl_planner *p) {
  uint32_t rows = p->limits.iteration_tokens / MGL_PLANNER_DECODE_SHARE;
  return rows > 0 ? rows : p->limits.iteration_tokens > 1 ? 1 : p->step & 1;
}

// Fills rows[] with what each that runs wants, and divides the iteration among them.
MGL_PLANNER_FN mgl_planner_division mgl_planner_divide(mgl_lanes lanes, mgl_planner *p) {
  const mgl_planner_slot *slots = mgl_planner_slots(p);
  const uint32_t *order = mgl_planner_array(p, p->order_at);
  uint32_t *wants = mgl_planner_array(p, p->rows_at);
  mgl_planner_division d = {0, 0, 0, 0, 0, 0, 0, 0};
  uint32_t prompt_wants = 0;
  for (uint32_t i = lanes.lane; i < p->running; i += lanes.count) {
    wants[i] = mgl_planner_wants(p, &slots[order[i]]);
    if (wants[i] >= MGL_ROWS_DECODE) {
      d.decoding++;
      d.decoding_before += i < p->cursor ? 1 : 0;
    } else {
      prompt_wants += wants[i];
    }
  }
  d.decoding = mgl_lanes_sum(lanes, d.decoding);
  d.decoding_before = mgl_lanes_sum(lanes, d.decoding_before);
  prompt_wants = mgl_lanes_sum(lanes, prompt_wants);
  uint32_t rows = p->limits.iteration_tokens;
  uint32_t kept = mgl_planner_least(mgl_planner_kept_rows(p), prompt_wants);
  bool only_prompts = p->limits.prompts_first != 0 && prompt_wants > 0;
  d.decode_rows = only_prompts ? 0 : mgl_planner_least(d.decoding, rows - kept);
  d.level = rows;
  d.prompt_rows = mgl_planner_least(prompt_wants, rows - d.decode_rows);
  if (d.prompt_rows < prompt_wants) {
    d.level = mgl_planner_level(lanes, p, d.prompt_rows, &d.extra);
  }
  return d;
}

// Turns what each wants into what it gets, and counts the pages that it takes.
MGL_PLANNER_FN void mgl_planner_give_rows(mgl_lanes lanes, mgl_planner *p,
                                          mgl_planner_division *d) {
  const mgl_planner_slot *slots = mgl_planner_slots(p);
  const uint32_t *order = mgl_planner_array(p, p->order_at);
  uint32_t *rows = mgl_planner_array(p, p->rows_at);
  uint32_t decoding = 0, above = 0, pages = 0, cursor = UINT32_MAX;
  for (uint32_t base = 0; base < p->running; base += lanes.count) {
    uint32_t i = base + lanes.lane;
    uint32_t wants = i < p->running ? rows[i] : 0;
    bool decodes = wants >= MGL_ROWS_DECODE;
    bool is_above = !decodes && wants > d->level;
    uint32_t total_decoding, total_above;
    uint32_t number = decoding + mgl_lanes_prefix(lanes, decodes ? 1 : 0, &total_decoding);
    uint32_t rank = above + mgl_lanes_prefix(lanes, is_above ? 1 : 0, &total_above);
    uint32_t gets = mgl_planner_least(wants, d->level) + (is_above && rank < d->extra ? 1 : 0);
    if (decodes) {  // number, counted from the cursor on and round
      number += number < d->decoding_before ? d->decoding : 0;
      number -= d->decoding_before;
      gets = number < d->decode_rows ? wants : 0;
      cursor = number + 1 == d->decode_rows ? i + 1 : cursor;
    }
    if (i < p->running) {
      const mgl_planner_slot *s = &slots[order[i]];
      uint32_t end = s->computed + gets % MGL_ROWS_DECODE;
      rows[i] = gets;
      pages += gets > 0 ? mgl_planner_pages_for(p, end) - s->page_count : 0;
    }
    decoding += total_decoding;
    above += total_above;
  }
  d->pages = mgl_lanes_sum(lanes, pages);
  cursor = mgl_lanes_min(lanes, cursor);
  d->cursor = d->decode_rows < d->decoding && cursor != UINT32_MAX ? cursor : p->cursor;
}

// --- pages ---------------------------------------------------------------------------------------

// The one that was admitted last waits again, without pages.
MGL_PLANNER_FN void mgl_planner_preempt(mgl_lanes lanes, mgl_planner *p) {
  const uint32_t *order = mgl_planner_array(p, p->order_at);
  uint32_t slot = order[p->running - 1];
  mgl_planner_release(lanes, p, slot);
  if (lanes.lane == 0) {
    mgl_planner_slots(p)[slot].state = MGL_SLOT_WAITING;
    p->running--;
    p->counts.preemptions++;
  }
  mgl_lanes_sync(lanes);
}

#ifndef __CUDACC__

MGL_PLANNER_FN bool mgl_planner_page_is_free(const mgl_planner *p, uint64_t page) {
  const mgl_planner_page *pages = mgl_planner_pages(p);
  return page < p->limits.page_count && pages[page].references == 0 && pages[page].cached == 0;
}

// Which free page is to be number `index` of a slot: limits.runs.
MGL_PLANNER_FN uint32_t mgl_planner_next_page(const mgl_planner *p, uint32_t slot, uint32_t index) {
  const int32_t *table = mgl_planner_table(p, slot);
  if (index > 0 && mgl_planner_page_is_free(p, (uint64_t)table[index - 1] + 1)) {
    return (uint32_t)table[index - 1] + 1;
  }
  for (uint64_t page = 0; page < p->limits.page_count; page += p->limits.runs) {
    if (mgl_planner_page_is_free(p, page)) {
      return (uint32_t)page;
    }
  }
  return mgl_planner_array(p, p->free_at)[p->free_count - 1];
}

// mgl_planner_take_pages with limits.runs, by one lane.
MGL_PLANNER_FN void mgl_planner_take_runs(mgl_planner *p) {
  const uint32_t *order = mgl_planner_array(p, p->order_at);
  const uint32_t *rows = mgl_planner_array(p, p->rows_at);
  mgl_planner_page *pages = mgl_planner_pages(p);
  for (uint32_t i = 0; i < p->running; i++) {
    mgl_planner_slot *s = &mgl_planner_slots(p)[order[i]];
    uint32_t gets = rows[i] % MGL_ROWS_DECODE;
    uint32_t end = gets > 0 ? mgl_planner_pages_for(p, s->computed + gets) : 0;
    for (; s->page_count < end; s->page_count++) {
      uint32_t page = mgl_planner_next_page(p, order[i], s->page_count);
      uint32_t top = mgl_planner_array(p, p->free_at)[--p->free_count];
      mgl_planner_put_free(p, pages[page].free_index, top);
      mgl_planner_table(p, order[i])[s->page_count] = (int32_t)page;
      pages[page].references = 1;
    }
  }
}

#endif

// mgl_planner_take_pages from the top of the stack; free_count is left to the caller.
MGL_PLANNER_FN void mgl_planner_take_top(mgl_lanes lanes, mgl_planner *p) {
  mgl_planner_slot *slots = mgl_planner_slots(p);
  mgl_planner_page *pages = mgl_planner_pages(p);
  const uint32_t *order = mgl_planner_array(p, p->order_at);
  const uint32_t *rows = mgl_planner_array(p, p->rows_at);
  const uint32_t *free_pages = mgl_planner_array(p, p->free_at);
  uint32_t top = p->free_count;
  for (uint32_t base = 0; base < p->running; base += lanes.count) {
    uint32_t i = base + lanes.lane;
    uint32_t slot = i < p->running ? order[i] : 0;
    uint32_t gets = i < p->running ? rows[i] % MGL_ROWS_DECODE : 0;
    mgl_planner_slot *s = &slots[slot];
    uint32_t wanted = gets > 0 ? mgl_planner_pages_for(p, s->computed + gets) - s->page_count : 0;
    uint32_t total;
    uint32_t from = top - mgl_lanes_prefix(lanes, wanted, &total);
    int32_t *table = mgl_planner_table(p, slot) + s->page_count;
    for (uint32_t k = 0; k < wanted; k++) {
      uint32_t page = free_pages[--from];
      table[k] = (int32_t)page;
      pages[page].references = 1;
    }
    if (wanted > 0) {
      s->page_count += wanted;
    }
    top -= total;
  }
}

// Takes the pages for rows[], `count` in all; as many are free.
MGL_PLANNER_FN void mgl_planner_take_pages(mgl_lanes lanes, mgl_planner *p, uint32_t count) {
  uint32_t left = p->free_count - count;
#ifndef __CUDACC__
  if (p->limits.runs != 0) {
    if (lanes.lane == 0) {
      mgl_planner_take_runs(p);
    }
  } else
#endif
  {
    mgl_planner_take_top(lanes, p);
  }
  mgl_lanes_sync(lanes);
  if (lanes.lane == 0) {
    uint32_t used = p->limits.page_count - p->idle_count;
    p->free_count = left;
    used -= p->free_count;
    p->pages_used_most = used > p->pages_used_most ? used : p->pages_used_most;
  }
  mgl_lanes_sync(lanes);
}

// --- the plan ------------------------------------------------------------------------------------

// Writes the entry of a sequence and counts its rows as computed; returns whether it samples.
MGL_PLANNER_FN bool mgl_planner_enter(mgl_planner_slot *s, uint32_t slot, uint32_t rows,
                                      mgl_plan_entry *entry) {
  uint32_t count = rows % MGL_ROWS_DECODE;
  bool samples = s->computed + count == s->token_count;
  entry->slot = slot;
  entry->position = s->computed;
  entry->count = count;
  entry->flags = (samples ? (uint32_t)MGL_ENTRY_SAMPLES : 0) |
                 (rows >= MGL_ROWS_DECODE ? (uint32_t)MGL_ENTRY_DECODES : 0);
  s->computed += count;
  if (samples) {
    s->token_count++;
    if (s->token_count == s->max_tokens) {
      s->state = MGL_SLOT_LAST;
    }
  }
  return samples;
}

// Fills the entries from rows[], those that decode first.
MGL_PLANNER_FN void mgl_planner_enter_all(mgl_lanes lanes, mgl_planner *p,
                                          const mgl_planner_division *d) {
  mgl_planner_slot *slots = mgl_planner_slots(p);
  mgl_plan_entry *entries = (mgl_plan_entry *)mgl_planner_at(p, p->entries_at);
  const uint32_t *order = mgl_planner_array(p, p->order_at);
  const uint32_t *rows = mgl_planner_array(p, p->rows_at);
  uint32_t decodes_at = 0, prompts_at = d->decode_rows;
  uint32_t samples = 0, last = 0;
  for (uint32_t base = 0; base < p->running; base += lanes.count) {
    uint32_t i = base + lanes.lane;
    uint32_t gets = i < p->running ? rows[i] : 0;
    bool decodes = gets >= MGL_ROWS_DECODE;
    bool is_prompt = !decodes && gets > 0;
    uint32_t total_decodes, total_prompts;
    uint32_t decodes_before = mgl_lanes_prefix(lanes, decodes ? 1 : 0, &total_decodes);
    uint32_t prompts_before = mgl_lanes_prefix(lanes, is_prompt ? 1 : 0, &total_prompts);
    if (gets > 0) {
      uint32_t at = decodes ? decodes_at + decodes_before : prompts_at + prompts_before;
      mgl_planner_slot *s = &slots[order[i]];
      samples += mgl_planner_enter(s, order[i], gets, &entries[at]) ? 1 : 0;
      last += s->state == MGL_SLOT_LAST ? 1 : 0;
    }
    decodes_at += total_decodes;
    prompts_at += total_prompts;
  }
  samples = mgl_lanes_sum(lanes, samples);
  last = mgl_lanes_sum(lanes, last);
  if (lanes.lane == 0) {
    p->entry_count = prompts_at;
    p->decode_entry_count = d->decode_rows;
    p->token_count = d->decode_rows + d->prompt_rows;
    p->sample_count = samples;
    p->cursor = d->cursor;
    p->changes += last;
    p->counts.decode_tokens += d->decode_rows;
    p->counts.prompt_tokens += d->prompt_rows;
  }
  mgl_lanes_sync(lanes);
}

// One lane: the prompt pages that the plan fills are found from the next plan on. Of two that are
// the same, one stays private.
MGL_PLANNER_FN void mgl_planner_publish(mgl_planner *p) {
  const mgl_planner_slot *slots = mgl_planner_slots(p);
  const mgl_plan_entry *entries = (const mgl_plan_entry *)mgl_planner_at(p, p->entries_at);
  for (uint32_t i = p->decode_entry_count; i < p->entry_count; i++) {
    const mgl_planner_slot *s = &slots[entries[i].slot];
    const int32_t *table = mgl_planner_table(p, entries[i].slot);
    uint32_t end = (entries[i].position + entries[i].count) / p->limits.page_tokens;
    end = mgl_planner_least(end, s->key_count);
    for (uint32_t k = entries[i].position / p->limits.page_tokens; k < end; k++) {
      if (mgl_planner_find(p, &s->keys[k]) == MGL_NO_PAGE) {
        mgl_planner_cache_add(p, (uint32_t)table[k], &s->keys[k]);
      }
    }
  }
}

MGL_PLANNER_FN uint32_t mgl_planner_plan_on(mgl_lanes lanes, mgl_planner *p) {
  mgl_planner_admit(lanes, p);
  mgl_planner_division d = mgl_planner_divide(lanes, p);
  mgl_planner_give_rows(lanes, p, &d);
  while (d.pages > p->free_count + p->idle_count) {
    mgl_planner_preempt(lanes, p);
    d = mgl_planner_divide(lanes, p);
    mgl_planner_give_rows(lanes, p, &d);
  }
  mgl_lanes_sync(lanes);
  if (lanes.lane == 0) {
    mgl_planner_evict(p, d.pages);
  }
  mgl_lanes_sync(lanes);
  mgl_planner_take_pages(lanes, p, d.pages);
  mgl_planner_enter_all(lanes, p, &d);
  if (lanes.lane == 0) {
    mgl_planner_publish(p);
    p->step++;
  }
  mgl_lanes_sync(lanes);
  return p->token_count;
}

#endif
