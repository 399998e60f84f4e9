// The ring of smem pages that a worker's weights go through, and how its length changes: the loader
// and the consumers keep their places in it by themselves, and stay in step though neither tells
// the other. One source for host and device.
//
// A page has two mbarriers, whose phases are told apart by their parity. In each lap of the ring
// a page is filled once and released once, so one parity does for all of it: that of the lap.
//
// The ring is as long as the graph of a task wants it (mgl_cuda_graph.ring_pages): where an
// iteration has many tokens, pages behind it hold partial sums. Both sides change it at the first
// task that wants another length, with nothing in it. From a page that is cut off they go to the
// begin, in the next lap. A page that was cut off misses laps: `asleep` keeps the parity of its
// next filling. When it joins the ring again in a lap of the other parity, the loader, which comes
// to it first, makes up for a phase of both mbarriers.
//   Rejected: mbarriers of their own for each length, since a block's 1024 bytes are full; and
// making mbarriers anew, which the other side may already wait for.
#ifndef MGL_TWIN_PAGE_RING_H
#define MGL_TWIN_PAGE_RING_H

#include "twin/device_run.h"

// --- partial sums --------------------------------------------------------------------------------

// Of the bodies for 2 to 16 tokens (linear/tasks_linear_rows.cuh): a warp's sums of each row block
// of a batch lie in scratch from here on, up to its end, and then in the pages behind the ring.
enum {
  MGL_ROWS_PARTIAL_AT = 2048,
  MGL_ROWS_TILE_BYTES = 8 * MGL_CUDA_BLOCK_ROWS * 4 * MGL_CUDA_CONSUMER_WARPS,  // of a row tile
};

// Row blocks of a batch whose sums lie in scratch.
MGL_SHARED_FN uint32_t mgl_rows_in_scratch(uint32_t row_tiles) {
  return (MGL_CUDA_SCRATCH_BYTES - MGL_ROWS_PARTIAL_AT) / (row_tiles * MGL_ROWS_TILE_BYTES);
}

// Where the sums of a row block of the batch lie, behind those of the first one.
MGL_SHARED_FN uint32_t mgl_rows_block_at(uint32_t row_tiles, uint32_t block, uint32_t ring_bytes) {
  uint32_t behind = block < mgl_rows_in_scratch(row_tiles) ? 0 : ring_bytes;
  return block * (row_tiles * MGL_ROWS_TILE_BYTES) + behind;
}

// Row blocks of a batch, with so many pages behind the ring. Each batch reads all of x: where a
// norm comes first, of 16 tokens as many bytes as the weights of two row blocks (docs/log/246).
MGL_SHARED_FN uint32_t mgl_rows_batch_blocks(uint32_t row_tiles, uint32_t pages,
                                             uint32_t page_bytes) {
  return mgl_rows_in_scratch(row_tiles) + pages * page_bytes / (row_tiles * MGL_ROWS_TILE_BYTES);
}

// --- the ring ------------------------------------------------------------------------------------

// Goes to the begin of the ring from where it has no page any more.
MGL_SHARED_FN void mgl_page_ring_enter(uint32_t count, uint32_t *page, uint32_t *parity) {
  if (*page >= count) {
    *page = 0;
    *parity ^= 1;
  }
}

// The loader's: makes the ring `wanted` pages long. page, parity: of its next filling. Returns the
// pages, a bit each, that have to make up for a phase.
MGL_SHARED_FN uint32_t mgl_page_ring_resize(uint32_t wanted, uint32_t *count, uint32_t *page,
                                            uint32_t *parity, uint32_t *asleep) {
  uint32_t late = 0;
  for (; *count > wanted; --*count) {
    const uint32_t last = *count - 1;
    const uint32_t next = last < *page ? *parity ^ 1 : *parity;
    *asleep = (*asleep & ~(1u << last)) | next << last;
  }
  mgl_page_ring_enter(*count, page, parity);
  for (; *count < wanted; ++*count) {
    late |= ((*asleep >> *count & 1) ^ *parity) << *count;
  }
  return late;
}

#endif
