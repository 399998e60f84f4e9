// Experts in large iterations: what the steps of a mixture's ops leave for each other, for the host
// and the kernel.
//
// Rows are sorted by expert, so an expert's matrices are multiplied by tiles of all rows that
// have it. Which rows these are only the iteration knows; so a step is a worker's share of the
// tiles that it finds in a list: unit i of W has tiles i, i + W, and so on, of which tiles of
// features vary fastest, so that those who read the same rows do so together. Behind the router,
// which is a linear, come these, each a stage:
//   route          a unit is MGL_WIDE_ROUTED rows: each row's experts and their weights, and how
//                  many of the unit's rows have each expert
//   route, MGL_WIDE_GATHERS
//                  the same units: where each slot's row lies among those that are sorted, by
//                  expert and then by token; its copy there; and, by the first unit, the list of
//                  tiles
//   experts_up     a tile's products times the norm's factors of its rows; silu(gate) * up, times
//                  the weight of the row's slot
//   experts_down   a tile's products, rounded to bf16
//   add            each token's S rows of these, in the order of its slots, onto the residual
//                  stream; MGL_WIDE_WEIGHS: and the norm behind, with op.norm's weights
// An expert's rows begin at a multiple of eight, where the form of x does (wide_layout.h).
#ifndef MGL_TWIN_WIDE_EXPERTS_H
#define MGL_TWIN_WIDE_EXPERTS_H

#include <stdint.h>

#include "twin/atomics.h"

enum {
  MGL_WIDE_ROUTED = 16,         // rows of a unit of route
  MGL_WIDE_MOST_EXPERTS = 512,  // of a layer
  MGL_WIDE_MOST_SLOTS = 16,     // of a token
};

typedef struct mgl_wide_route {
  uint32_t expert;
  float weight;
} mgl_wide_route;

typedef enum mgl_wide_expert_flags {
  MGL_WIDE_EXPERT_ALONE = 1,  // the expert has no other tile, so nobody reads its weights again
  MGL_WIDE_EXPERT_MORE = 2,   // to whom the tile is handed: others of the same step follow
} mgl_wide_expert_flags;

// Consecutive rows of one expert; rows 0: nothing is to be done.
typedef struct mgl_wide_expert_tile {
  uint32_t expert, row, rows, flags;
} mgl_wide_expert_tile;

// A sorted row: the norm's factor of its token, and the weight of its slot.
typedef struct mgl_wide_slot_row {
  float factor, weight;
} mgl_wide_slot_row;

typedef struct mgl_wide_experts {
  mgl_wide_route *routes;       // [T, S]
  uint32_t *counts;             // [T / MGL_WIDE_ROUTED, E]
  uint32_t *places;             // [T, S]: the sorted row of each slot
  mgl_wide_expert_tile *tiles;  // [most_tiles], by expert
  uint32_t *tile_count;         // that there are
  mgl_wide_slot_row *rows;      // [sorted rows]
  float *squares;               // of the norm in front
  uint8_t *x;                   // and its result; add: of the norm behind it
  uint32_t sorted_rows;         // that there can be, a multiple of 8
} mgl_wide_experts;

MGL_SHARED_FN uint32_t mgl_wide_sorted_rows(uint32_t tokens, uint32_t experts, uint32_t slots) {
  return tokens * slots + 8 * experts;
}

MGL_SHARED_FN uint32_t mgl_wide_most_tiles(uint32_t tokens, uint32_t experts, uint32_t slots,
                                           uint32_t tile_tokens) {
  return tokens * slots / tile_tokens + experts;
}

#endif
