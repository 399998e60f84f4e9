// A chunked bump allocator: many small objects that live and die together (the tree of a parsed
// text, the values of one evaluation).
//
// Memory comes from base/alloc.h in growing chunks and goes back at once in mgl_arena_free; single
// objects are never freed. Not thread-safe: one arena belongs to one computation. Rejected: a
// malloc per object, since every error path of a parser would then need its own clean-up.
#ifndef MGL_BASE_ARENA_H
#define MGL_BASE_ARENA_H

#include <stdbool.h>
#include <stddef.h>

struct mgl_arena_chunk;

// Zero-initialise, set `limit` if wanted; release with mgl_arena_free.
typedef struct mgl_arena {
  struct mgl_arena_chunk *chunks;  // newest first; owned
  char *cursor;                    // next free byte of the newest chunk
  char *end;                       // end of the newest chunk
  size_t bytes;                    // taken from the heap so far
  size_t limit;                    // most bytes to take from the heap; 0 = no limit
  bool over_limit;                 // an allocation was refused because of `limit`
} mgl_arena;

// Uninitialised memory aligned for any type; NULL when memory is out or the limit is reached
// (over_limit tells which). A size of zero gives a valid pointer.
void *mgl_arena_alloc(mgl_arena *arena, size_t bytes);
// Returns zeroed memory; an overflow of count * bytes_each gives NULL.
void *mgl_arena_alloc_zeroed(mgl_arena *arena, size_t count, size_t bytes_each);
// Returns memory without alignment, for text.
char *mgl_arena_alloc_text(mgl_arena *arena, size_t bytes);
// Enlarges the block data[0, bytes) in place by `extra` bytes; false when it is not the newest
// block or its chunk is full (nothing changes then). A chain of appends becomes linear with it.
bool mgl_arena_extend(mgl_arena *arena, const char *data, size_t bytes, size_t extra);

// Frees everything; the arena is empty and usable again, its limit stays.
void mgl_arena_free(mgl_arena *arena);

#endif
