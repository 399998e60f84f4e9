// KV pages of the planner: the pool, references, the table of cached pages, eviction.
//
// One source for host and device (twin/planner_lanes.h). Functions that take lanes are called by
// all of them; the others look something up, or are called by one lane alone.
//
// A page is free (on the stack), held (references > 0) or idle (cached and held by nobody). Idle
// pages form a list in order of release; pages are evicted from its old end. Cached pages lie in
// chains, one for each bucket of the hash table: the keys are hashes already, so their first word
// chooses the bucket.
#ifndef MGL_TWIN_PLANNER_PAGES_H
#define MGL_TWIN_PLANNER_PAGES_H

#include "twin/planner.h"
#include "twin/planner_lanes.h"

// --- the arrays of the block ---------------------------------------------------------------------

MGL_PLANNER_FN void *mgl_planner_at(const mgl_planner *p, uint64_t offset) {
  return (void *)((uintptr_t)p + (uintptr_t)offset);
}

MGL_PLANNER_FN mgl_planner_slot *mgl_planner_slots(const mgl_planner *p) {
  return (mgl_planner_slot *)mgl_planner_at(p, p->slots_at);
}

MGL_PLANNER_FN mgl_planner_page *mgl_planner_pages(const mgl_planner *p) {
  return (mgl_planner_page *)mgl_planner_at(p, p->pages_at);
}

MGL_PLANNER_FN uint32_t *mgl_planner_array(const mgl_planner *p, uint64_t offset) {
  return (uint32_t *)mgl_planner_at(p, offset);
}

MGL_PLANNER_FN int32_t *mgl_planner_table(const mgl_planner *p, uint32_t slot) {
  return (int32_t *)mgl_planner_at(p, p->tables_at) + (uint64_t)slot * p->table_stride;
}

// Pages that so many tokens need.
MGL_PLANNER_FN uint32_t mgl_planner_pages_for(const mgl_planner *p, uint32_t tokens) {
  return (tokens + p->limits.page_tokens - 1) / p->limits.page_tokens;
}

// Puts a page onto the stack of free ones.
MGL_PLANNER_FN void mgl_planner_put_free(mgl_planner *p, uint32_t index, uint32_t page) {
  mgl_planner_array(p, p->free_at)[index] = page;
#ifndef __CUDACC__
  if (p->limits.runs != 0) {
    mgl_planner_pages(p)[page].free_index = index;
  }
#endif
}

// --- idle pages (one lane) -----------------------------------------------------------------------

MGL_PLANNER_FN void mgl_planner_idle_append(mgl_planner *p, uint32_t page) {
  mgl_planner_page *pages = mgl_planner_pages(p);
  pages[page].older = p->newest;
  pages[page].newer = MGL_NO_PAGE;
  if (p->newest == MGL_NO_PAGE) {
    p->oldest = page;
  } else {
    pages[p->newest].newer = page;
  }
  p->newest = page;
  p->idle_count++;
}

MGL_PLANNER_FN void mgl_planner_idle_remove(mgl_planner *p, uint32_t page) {
  mgl_planner_page *pages = mgl_planner_pages(p);
  uint32_t older = pages[page].older;
  uint32_t newer = pages[page].newer;
  *(older == MGL_NO_PAGE ? &p->oldest : &pages[older].newer) = newer;
  *(newer == MGL_NO_PAGE ? &p->newest : &pages[newer].older) = older;
  p->idle_count--;
}

// --- cached pages --------------------------------------------------------------------------------

MGL_PLANNER_FN bool mgl_page_key_equal(const mgl_page_key *a, const mgl_page_key *b) {
  uint64_t differs = 0;
  for (uint32_t i = 0; i < MGL_PAGE_KEY_WORDS; i++) {
    differs |= a->words[i] ^ b->words[i];
  }
  return differs == 0;
}

MGL_PLANNER_FN uint32_t *mgl_planner_bucket(const mgl_planner *p, const mgl_page_key *key) {
  return mgl_planner_array(p, p->buckets_at) + ((uint32_t)key->words[0] & p->bucket_mask);
}

// The page that is cached under the key, or MGL_NO_PAGE.
MGL_PLANNER_FN uint32_t mgl_planner_find(const mgl_planner *p, const mgl_page_key *key) {
  const mgl_planner_page *pages = mgl_planner_pages(p);
  uint32_t page = *mgl_planner_bucket(p, key);
  while (page != MGL_NO_PAGE && !mgl_page_key_equal(&pages[page].key, key)) {
    page = pages[page].next;
  }
  return page;
}

// One lane: enters a held page under a key that no page has.
MGL_PLANNER_FN void mgl_planner_cache_add(mgl_planner *p, uint32_t page, const mgl_page_key *key) {
  mgl_planner_page *entry = &mgl_planner_pages(p)[page];
  uint32_t *bucket = mgl_planner_bucket(p, key);
  entry->key = *key;
  entry->cached = 1;
  entry->next = *bucket;
  *bucket = page;
  p->cached_count++;
}

MGL_PLANNER_FN void mgl_planner_cache_remove(mgl_planner *p, uint32_t page) {
  mgl_planner_page *pages = mgl_planner_pages(p);
  uint32_t *link = mgl_planner_bucket(p, &pages[page].key);
  while (*link != page) {
    link = &pages[*link].next;
  }
  *link = pages[page].next;
  pages[page].cached = 0;
  p->cached_count--;
}

// One lane: gives up idle pages, the least recently released first, until `wanted` pages are free.
// There are enough.
MGL_PLANNER_FN void mgl_planner_evict(mgl_planner *p, uint32_t wanted) {
  while (p->free_count < wanted) {
    uint32_t page = p->oldest;
    mgl_planner_idle_remove(p, page);
    mgl_planner_cache_remove(p, page);
    mgl_planner_put_free(p, p->free_count++, page);
    p->counts.evictions++;
  }
}

// --- a slot's pages (all lanes) ------------------------------------------------------------------

// Gives back all pages of a slot, the last one first: so of those that stay idle, the later ones
// are evicted before those that they continue.
MGL_PLANNER_FN void mgl_planner_release(mgl_lanes lanes, mgl_planner *p, uint32_t slot) {
  mgl_planner_slot *s = &mgl_planner_slots(p)[slot];
  mgl_planner_page *pages = mgl_planner_pages(p);
  const int32_t *table = mgl_planner_table(p, slot);
  uint32_t *idle = mgl_planner_array(p, p->idle_at);
  uint32_t count = s->page_count;
  uint32_t freed = p->free_count;
  uint32_t idled = 0;
  for (uint32_t base = 0; base < count; base += lanes.count) {
    uint32_t i = base + lanes.lane;
    uint32_t page = i < count ? (uint32_t)table[count - 1 - i] : MGL_NO_PAGE;
    bool unheld = page != MGL_NO_PAGE && --pages[page].references == 0;
    bool stays = unheld && pages[page].cached != 0;
    bool goes = unheld && !stays;
    uint32_t total_stays, total_goes;
    uint32_t stays_before = mgl_lanes_prefix(lanes, stays ? 1 : 0, &total_stays);
    uint32_t goes_before = mgl_lanes_prefix(lanes, goes ? 1 : 0, &total_goes);
    if (stays) {
      idle[idled + stays_before] = page;
    } else if (goes) {
      mgl_planner_put_free(p, freed + goes_before, page);
    }
    idled += total_stays;
    freed += total_goes;
  }
  mgl_lanes_sync(lanes);
  if (lanes.lane == 0) {
    for (uint32_t i = 0; i < idled; i++) {
      mgl_planner_idle_append(p, idle[i]);
    }
    p->free_count = freed;
    s->page_count = 0;
    s->computed = 0;
  }
  mgl_lanes_sync(lanes);
}

// The cached pages with which the prompt of a slot without pages begins, put into its block table
// but not held yet. Returns how many; *out_idle: how many of them are idle.
MGL_PLANNER_FN uint32_t mgl_planner_look_up(mgl_lanes lanes, const mgl_planner *p, uint32_t slot,
                                            uint32_t *out_idle) {
  const mgl_planner_slot *s = &mgl_planner_slots(p)[slot];
  const mgl_planner_page *pages = mgl_planner_pages(p);
  int32_t *table = mgl_planner_table(p, slot);
  // The last token is always computed: its logits are wanted.
  uint32_t most = (s->token_count - 1) / p->limits.page_tokens;
  most = most < s->key_count ? most : s->key_count;
  uint32_t hits = 0;
  *out_idle = 0;
  while (hits < most) {
    uint32_t i = hits + lanes.lane;
    uint32_t page = i < most ? mgl_planner_find(p, &s->keys[i]) : MGL_NO_PAGE;
    uint32_t end = hits + lanes.count < most ? hits + lanes.count : most;
    uint32_t miss = mgl_lanes_min(lanes, page == MGL_NO_PAGE && i < end ? i : end);
    bool hit = i < miss;
    if (hit) {
      table[i] = (int32_t)page;
    }
    *out_idle += mgl_lanes_sum(lanes, hit && pages[page].references == 0 ? 1 : 0);
    hits = miss;
    if (miss < end) {
      break;
    }
  }
  mgl_lanes_sync(lanes);
  return hits;
}

// One lane: the slot holds the first `count` pages of its block table, which are cached.
MGL_PLANNER_FN void mgl_planner_hold(mgl_planner *p, uint32_t slot, uint32_t count) {
  mgl_planner_page *pages = mgl_planner_pages(p);
  const int32_t *table = mgl_planner_table(p, slot);
  for (uint32_t i = 0; i < count; i++) {
    uint32_t page = (uint32_t)table[i];
    if (pages[page].references++ == 0) {
      mgl_planner_idle_remove(p, page);
    }
  }
}

#endif
