#include "grammar/cache.h"

#include <pthread.h>
#include <string.h>

#include "base/alloc.h"
#include "base/hash.h"

typedef struct entry {
  mgl_grammar *grammar;  // NULL: free
  mgl_grammar_kind kind;
  mgl_hash hash;
  char *text;
  size_t text_bytes;
  size_t bytes;
  uint64_t used;  // when
} entry;

struct mgl_grammar_cache {
  const mgl_tokenizer *tokenizer;
  uint32_t token_count;
  pthread_mutex_t lock;
  // Under the lock:
  mgl_vocabulary *vocabulary;
  entry entries[MGL_GRAMMAR_CACHE_ENTRIES];
  size_t bytes;
  uint64_t time;
};

mgl_status mgl_grammar_cache_create(const mgl_tokenizer *tokenizer, uint32_t token_count,
                                    mgl_grammar_cache **out, mgl_error *err) {
  mgl_grammar_cache *cache = mgl_alloc_zeroed(1, sizeof *cache);
  *out = cache;
  if (cache == NULL) {
    return mgl_error_set(err, MGL_ERR_MEMORY, "out of memory for grammars");
  }
  cache->tokenizer = tokenizer;
  cache->token_count = token_count;
  (void)pthread_mutex_init(&cache->lock, NULL);
  return MGL_OK;
}

static void drop(mgl_grammar_cache *cache, entry *e) {
  mgl_grammar_release(e->grammar);
  mgl_free(e->text);
  cache->bytes -= e->bytes;
  *e = (entry){0};
}

void mgl_grammar_cache_destroy(mgl_grammar_cache *cache) {
  if (cache != NULL) {
    for (int i = 0; i < MGL_GRAMMAR_CACHE_ENTRIES; i++) {
      drop(cache, &cache->entries[i]);
    }
    mgl_vocabulary_release(cache->vocabulary);
    (void)pthread_mutex_destroy(&cache->lock);
    mgl_free(cache);
  }
}

// Under the lock.
static entry *find(mgl_grammar_cache *cache, const mgl_grammar_source *source, mgl_hash hash) {
  for (int i = 0; i < MGL_GRAMMAR_CACHE_ENTRIES; i++) {
    entry *e = &cache->entries[i];
    if (e->grammar != NULL && e->kind == source->kind && e->hash.low == hash.low &&
        e->hash.high == hash.high && e->text_bytes == source->bytes &&
        memcmp(e->text, source->text, source->bytes) == 0) {
      return e;
    }
  }
  return NULL;
}

// An entry to fill: a free one, or the one that was used longest ago, until all fits. Under the
// lock.
static entry *make_room(mgl_grammar_cache *cache, size_t bytes) {
  entry *oldest = NULL;
  entry *free_one = NULL;
  do {
    oldest = free_one = NULL;
    for (int i = 0; i < MGL_GRAMMAR_CACHE_ENTRIES; i++) {
      entry *e = &cache->entries[i];
      free_one = e->grammar == NULL ? e : free_one;
      oldest = e->grammar != NULL && (oldest == NULL || e->used < oldest->used) ? e : oldest;
    }
    if (free_one != NULL && (cache->bytes + bytes <= MGL_GRAMMAR_CACHE_BYTES || oldest == NULL)) {
      return free_one;
    }
    drop(cache, oldest);
  } while (true);
}

static void keep(mgl_grammar_cache *cache, const mgl_grammar_source *source, mgl_hash hash,
                 mgl_grammar *grammar) {
  size_t bytes = source->bytes + mgl_grammar_bytes(grammar);
  char *text = mgl_strndup(source->text == NULL ? "" : source->text, source->bytes);
  (void)pthread_mutex_lock(&cache->lock);
  if (text == NULL || find(cache, source, hash) != NULL) {
    mgl_free(text);  // without memory, and where somebody was faster, it is not kept
  } else {
    entry *e = make_room(cache, bytes);
    mgl_grammar_keep(grammar);
    cache->bytes += bytes;
    *e = (entry){.grammar = grammar,
                 .kind = source->kind,
                 .hash = hash,
                 .text = text,
                 .text_bytes = source->bytes,
                 .bytes = bytes,
                 .used = ++cache->time};
  }
  (void)pthread_mutex_unlock(&cache->lock);
}

mgl_status mgl_grammar_cache_get(mgl_grammar_cache *cache, const mgl_grammar_source *source,
                                 mgl_grammar **out, mgl_error *err) {
  mgl_status status = MGL_OK;
  mgl_hash hash = mgl_hash_bytes(source->text == NULL ? "" : source->text, source->bytes);
  *out = NULL;
  (void)pthread_mutex_lock(&cache->lock);
  entry *e = find(cache, source, hash);
  if (e != NULL) {
    e->used = ++cache->time;
    *out = e->grammar;
    mgl_grammar_keep(*out);
  } else if (cache->vocabulary == NULL) {
    status = mgl_vocabulary_of(cache->tokenizer, cache->token_count, &cache->vocabulary, err);
  }
  (void)pthread_mutex_unlock(&cache->lock);
  if (status != MGL_OK || *out != NULL) {
    return status;
  }
  MGL_TRY(mgl_grammar_compile(source, cache->vocabulary, cache->tokenizer, out, err));
  keep(cache, source, hash, *out);
  return MGL_OK;
}
