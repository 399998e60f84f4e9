// Reads the JSON of a call of a tool while it comes, byte by byte: is it still JSON, which name has
// the call, and where are its arguments.
//
// The object is {"name": "...", "arguments": {...}} in any order, with "parameters" as another word
// for arguments; or the arguments alone. It need not be complete: that arguments can be handed on
// while a model writes them is what this is for. (jansson, which reads JSON everywhere else, wants
// all of it.) What is complete here is valid JSON of at most MGL_CALL_SCAN_DEPTH levels.
#ifndef MGL_SERVE_CALL_SCAN_H
#define MGL_SERVE_CALL_SCAN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { MGL_CALL_SCAN_DEPTH = 64 };

typedef enum mgl_call_progress {
  MGL_CALL_OPEN,   // more must come
  MGL_CALL_WHOLE,  // the object is complete
  MGL_CALL_BAD,    // it is no call
} mgl_call_progress;

// Zero-initialise, set the first two. Offsets count from the object's first byte.
typedef struct mgl_call_scan {
  bool is_strict;     // other members than "id" and "type" make it no call
  bool is_arguments;  // the object is the arguments, and there is no name
  size_t at;          // bytes that were read
  size_t name_at;     // with its quotes,
  size_t name_bytes;  // 0: not known yet
  size_t arguments_at;
  size_t arguments_end;  // 0: not known yet
  bool has_arguments;    // they have begun
  // Private:
  uint8_t state, member, depth;
  uint8_t left;      // in an escape: bit 0, of a key; above it, digits that are to come
  uint64_t objects;  // a bit a level: an object, else a list
  const char *literal;
  size_t string_at, value_at;
} mgl_call_scan;

// object: [bytes] all of it so far; bytes below scan->at have been read before. Stops behind the
// object's end.
mgl_call_progress mgl_call_scan_read(mgl_call_scan *scan, const char *object, size_t bytes);

#endif
