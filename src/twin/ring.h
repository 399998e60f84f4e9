// A ring of entries from one producer to one consumer, of which one may be a GPU. One source for
// host and device.
//
// Both counters only grow and have 64 bits: `head` counts what was written, `tail` what was read,
// and entry n lies at n modulo the size, a power of two. Each side writes its own counter and reads
// the other's only when what it remembers of it does not suffice, since over PCIe that takes a
// microsecond. What an entry holds is plain memory: the consumer sees it since it has acquired a
// head that was released behind it, and the producer overwrites it since it has acquired a tail
// that was released behind the reading.
//   Rejected: slots with sequence numbers, as in protocol.h, for one producer and one consumer need
// nothing of it; and overwriting what was not read, after which a reader cannot tell what it
// missed.
#ifndef MGL_TWIN_RING_H
#define MGL_TWIN_RING_H

#include "twin/atomics.h"

// Shared. Counters stand apart, so that one side's stores do not slow the other's.
typedef struct mgl_ring {
  mgl_word head;
  uint8_t padding_before_tail[56];
  mgl_word tail;
  uint8_t padding_after_tail[56];
} mgl_ring;

// An mgl_ring_end is what one side knows by itself. It is zeros for a ring that was just made.
typedef struct mgl_ring_end {
  uint64_t own;    // entries that it has written, or read
  uint64_t other;  // of the other side, when it last looked
} mgl_ring_end;

// Before anyone else sees the ring.
MGL_SHARED_FN void mgl_ring_init(mgl_ring *ring) {
  mgl_store_relaxed(&ring->head, 0);
  mgl_store_relaxed(&ring->tail, 0);
}

// Producer: true if entry number end->own may be written.
MGL_SHARED_FN bool mgl_ring_has_room(const mgl_ring *ring, mgl_ring_end *end, uint64_t size) {
  if (end->own - end->other == size) {
    // Acquire, paired with the release of `tail`: the consumer is done with what it has read.
    end->other = mgl_load_acquire_system(&ring->tail);
  }
  return end->own - end->other < size;
}

// Producer: entry number end->own is complete.
MGL_SHARED_FN void mgl_ring_publish(mgl_ring *ring, mgl_ring_end *end) {
  mgl_store_release_system(&ring->head, ++end->own);
}

// Consumer: true if entry number end->own can be read.
MGL_SHARED_FN bool mgl_ring_has_entry(const mgl_ring *ring, mgl_ring_end *end) {
  if (end->own == end->other) {
    // Acquire, paired with the release of `head`: the entries before it are complete.
    end->other = mgl_load_acquire_system(&ring->head);
  }
  return end->own != end->other;
}

// Consumer: entry number end->own was read. It may be overwritten once that is told.
MGL_SHARED_FN void mgl_ring_take(mgl_ring_end *end) {
  end->own++;
}

// Consumer: tells how much it has read.
MGL_SHARED_FN void mgl_ring_tell(mgl_ring *ring, const mgl_ring_end *end) {
  mgl_store_release_system(&ring->tail, end->own);
}

#endif
