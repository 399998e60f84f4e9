// Proof that a planner's state is consistent, from the state alone.
#include <string.h>

#include "base/alloc.h"
#include "twin/planner.h"
#include "twin/planner_pages.h"

// The page_facts of a page are what the block tables and lists say of it.
typedef struct page_facts {
  uint32_t references;
  uint32_t lists;  // times on the free stack or in the list of idle pages
} page_facts;

static mgl_status broken(mgl_error *err, const char *what, uint32_t which) {
  return mgl_error_set(err, MGL_ERR_INTERNAL, "planner: %s (%u)", what, which);
}

// A slot's counts fit its state, and its pages exist and are its own or cached under its keys.
static mgl_status check_slot(const mgl_planner *p, uint32_t slot, page_facts *facts,
                             mgl_error *err) {
  const mgl_planner_slot *s = &mgl_planner_slots(p)[slot];
  const mgl_planner_page *pages = mgl_planner_pages(p);
  const int32_t *table = mgl_planner_table(p, slot);
  if (s->state == MGL_SLOT_FREE) {
    return s->page_count == 0 && s->wishes == 0 ? MGL_OK
                                                : broken(err, "a free slot holds pages", slot);
  }
  bool runs = s->state == MGL_SLOT_RUNNING || s->state == MGL_SLOT_LAST;
  if (!runs && (s->page_count != 0 || s->computed != 0)) {
    return broken(err, "a slot that does not run holds pages", slot);
  }
  if (s->token_count < s->prompt_count || s->token_count > s->max_tokens ||
      (s->token_count == s->max_tokens && s->state != MGL_SLOT_LAST)) {
    return broken(err, "tokens of a slot are out of its limits", slot);
  }
  if (runs && (s->computed >= s->token_count || s->prefill > s->token_count ||
               s->page_count != mgl_planner_pages_for(p, s->computed))) {
    return broken(err, "a slot's pages are not those of its computed tokens", slot);
  }
  for (uint32_t i = 0; i < s->page_count; i++) {
    if (table[i] < 0 || (uint32_t)table[i] >= p->limits.page_count) {
      return broken(err, "a block table names a page that does not exist", slot);
    }
    const mgl_planner_page *page = &pages[table[i]];
    facts[table[i]].references++;
    if (page->cached != 0 && (i >= s->key_count || !mgl_page_key_equal(&page->key, &s->keys[i]))) {
      return broken(err, "a slot holds a page that is cached under another key", slot);
    }
  }
  return MGL_OK;
}

// order[] names each slot once that runs or waits, those that run first.
static mgl_status check_order(const mgl_planner *p, uint32_t *seen, mgl_error *err) {
  const mgl_planner_slot *slots = mgl_planner_slots(p);
  const uint32_t *order = mgl_planner_array(p, p->order_at);
  uint32_t listed = 0, paused = 0;
  if (p->running > p->count || p->running > p->limits.sequences) {
    return broken(err, "more sequences run than may", p->running);
  }
  for (uint32_t i = 0; i < p->count; i++) {
    bool runs = slots[order[i]].state == MGL_SLOT_RUNNING || slots[order[i]].state == MGL_SLOT_LAST;
    bool fits = i < p->running ? runs : slots[order[i]].state == MGL_SLOT_WAITING;
    if (seen[order[i]]++ != 0 || !fits) {
      return broken(err, "the order names a slot twice or in a wrong state", order[i]);
    }
  }
  for (uint32_t i = 0; i < p->limits.slots; i++) {
    listed += slots[i].state != MGL_SLOT_FREE && slots[i].state != MGL_SLOT_PAUSED ? 1 : 0;
    paused += slots[i].state == MGL_SLOT_PAUSED ? 1 : 0;
  }
  return listed == p->count && paused == p->paused ? MGL_OK
                                                   : broken(err, "a slot is missing", listed);
}

static mgl_status count_lists(const mgl_planner *p, page_facts *facts, mgl_error *err) {
  const mgl_planner_page *pages = mgl_planner_pages(p);
  const uint32_t *free_pages = mgl_planner_array(p, p->free_at);
  uint32_t idle = 0, newest = MGL_NO_PAGE;
  for (uint32_t i = 0; i < p->free_count; i++) {
    if (pages[free_pages[i]].cached != 0) {
      return broken(err, "a free page is cached", free_pages[i]);
    }
    if (p->limits.runs != 0 && pages[free_pages[i]].free_index != i) {
      return broken(err, "a free page is not where it says", free_pages[i]);
    }
    facts[free_pages[i]].lists++;
  }
  for (uint32_t page = p->oldest; page != MGL_NO_PAGE; page = pages[page].newer) {
    if (pages[page].cached == 0 || pages[page].older != newest || idle++ > p->limits.page_count) {
      return broken(err, "the list of idle pages is broken", page);
    }
    facts[page].lists++;
    newest = page;
  }
  return idle == p->idle_count && newest == p->newest
             ? MGL_OK
             : broken(err, "idle pages are miscounted", idle);
}

static mgl_status check_pages(const mgl_planner *p, const page_facts *facts, mgl_error *err) {
  const mgl_planner_page *pages = mgl_planner_pages(p);
  uint32_t cached = 0;
  for (uint32_t i = 0; i < p->limits.page_count; i++) {
    if (pages[i].references != facts[i].references) {
      return broken(err, "a page's references are miscounted", i);
    }
    if (facts[i].lists != (facts[i].references == 0 ? 1 : 0)) {
      return broken(err, "a page is lost, or held and free at once", i);
    }
    if (facts[i].references > 1 && pages[i].cached == 0) {
      return broken(err, "a page that is not cached is shared", i);
    }
    if (pages[i].cached != 0 && mgl_planner_find(p, &pages[i].key) != i) {
      return broken(err, "a cached page is not found under its key", i);
    }
    cached += pages[i].cached;
  }
  return cached == p->cached_count ? MGL_OK : broken(err, "cached pages are miscounted", cached);
}

mgl_status mgl_planner_check(const mgl_planner *planner, mgl_error *err) {
  page_facts *facts = mgl_alloc_zeroed(planner->limits.page_count, sizeof *facts);
  uint32_t *seen = mgl_alloc_zeroed(planner->limits.slots, sizeof *seen);
  mgl_status status = MGL_OK;
  if (facts == NULL || seen == NULL) {
    status = mgl_error_set(err, MGL_ERR_MEMORY, "out of memory for checking a planner");
  }
  for (uint32_t i = 0; status == MGL_OK && i < planner->limits.slots; i++) {
    status = check_slot(planner, i, facts, err);
  }
  status = status == MGL_OK ? check_order(planner, seen, err) : status;
  status = status == MGL_OK ? count_lists(planner, facts, err) : status;
  status = status == MGL_OK ? check_pages(planner, facts, err) : status;
  mgl_free(facts);
  mgl_free(seen);
  return status;
}
