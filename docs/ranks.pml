/* How ranks of one model meet, as a model for spin: a remote event, and with -DWORDS words that say
 * themselves that they are there. What happens within a rank is in protocol.pml.
 *
 * A remote event (src/twin/protocol.h, src/device/cpu/cpu_ranks.c). Two ranks of two workers each
 * run ITERATIONS iterations of
 *   task 0   makes the rank's part of a sum                triggers the event of all ranks
 *   task 1   waits for the event, reads all ranks' parts   ends the iteration
 * Every rank has a counter of the event, to which all add; a place to sleep, which others wake; and
 * asks for the next plan, which rank 0 posts when the other is done with the one before.
 *
 * Words (src/twin/device_run.h). Two ranks of two workers sum EXCHANGES vectors of two tiles. Who
 * has a tile sends its word to both ranks' inboxes, and takes the words of both out of its own. A
 * word says which exchange it is of; two inboxes are used in turn, and nothing is opened or cleared.
 * Before it sends, a worker has seen all tiles of the sum before, as norms of whole rows do. Which
 * worker has which tile changes from exchange to exchange.
 *
 * Ghosts say what has been read, so what is written over too early is an assertion; what never
 * comes is an invalid end state. Each fault that can be made on purpose must be found
 * (tools/check_protocol_model.sh):
 *   LOST_TRIGGER  a trigger does not reach the other rank's counter
 *   LOST_WAKE     who makes the last trigger there does not wake the other rank
 *   OWN_TRIGGERS  the triggers of one rank activate the event
 *   EARLY_PLAN    rank 0 posts the next plan before the other has ended the iteration
 *   ONE_INBOX     all exchanges use the same one
 *   OWN_TILE      a worker sends once its own tile of the sum before is there
 */
#ifndef WORDS

#ifndef ITERATIONS
#define ITERATIONS 2
#endif
#ifdef OWN_TRIGGERS
#define TRIGGERS 1
#else
#define TRIGGERS 2 /* of an iteration, at each rank */
#endif

byte counter[2];   /* of the event; monotonic */
byte published[2]; /* iterations that have begun */
byte posted;       /* plans of rank 0 */
byte done;         /* plans that rank 1 is done with, and one */
byte part[2];      /* the iteration that it is of */
byte sleepers[2];
bool woken[4]; /* [2 * rank + worker] the generation has moved since its ticket */
byte read[2];  /* ghost: iterations whose parts the rank has read */

/* Store what is waited for, (fence), look for sleepers. */
inline notify(rank) {
  if
  :: sleepers[rank] > 0 -> d_step { woken[2 * (rank)] = true; woken[2 * (rank) + 1] = true }
  :: else
  fi
}

/* Polls; announces that it will sleep, polls again, and sleeps. */
inline await(condition) {
  do
  :: condition -> break
  :: else ->
     sleepers[me / 2]++;
     woken[me] = false;
     if
     :: condition -> sleepers[me / 2]--; break
     :: else -> woken[me]; sleepers[me / 2]--
     fi
  od
}

inline trigger(rank) {
  atomic { counter[rank]++; last = (counter[rank] == TRIGGERS * k) }
  if
#ifdef LOST_WAKE
  :: last && rank == me / 2 -> notify(rank)
#else
  :: last -> notify(rank)
#endif
  :: else
  fi
}

proctype Maker(byte me) {
  byte k;
  bool last;
  do
  :: k == ITERATIONS -> break
  :: else ->
     await(published[me / 2] > k);
     k++;
     assert(read[0] >= k - 1 && read[1] >= k - 1);
     part[me / 2] = k;
#ifndef LOST_TRIGGER
     trigger(1 - me / 2);
#endif
     trigger(me / 2)
  od
}

inline next_plan() {
  if
  :: me / 2 == 0 ->
#ifndef EARLY_PLAN
     await(done == posted + 1);
#endif
     posted++;
     notify(1)
  :: else ->
     done++;
     notify(0);
     await(posted == done)
  fi
}

proctype Reader(byte me) {
  byte k;
  do
  :: next_plan();
     if
     :: k == ITERATIONS -> break
     :: else
     fi;
     published[me / 2]++;
     notify(me / 2);
     k++;
     await(counter[me / 2] >= TRIGGERS * k);
     assert(part[0] == k);
     assert(part[1] == k);
     read[me / 2] = k
  od
}

init {
  atomic { run Maker(0); run Reader(1); run Maker(2); run Reader(3) }
}

#else /* WORDS */

#ifndef EXCHANGES
#define EXCHANGES 5
#endif
#ifdef ONE_INBOX
#define INBOXES 1
#else
#define INBOXES 2
#endif
#define WORD(exchange, at, from, tile) word[(((exchange) % INBOXES * 2 + (at)) * 2 + (from)) * 2 + (tile)]
#define TAKEN(at, from, tile) taken[((at) * 2 + (from)) * 2 + (tile)]
#define SUM(rank, tile) sums[(rank) * 2 + (tile)]

byte word[INBOXES * 8]; /* the exchange that it is of; 0: nobody has written it */
byte sums[4];           /* the exchange whose sum of the tile the rank has */
byte taken[8];          /* ghost: the exchange whose word was taken last */

/* The stores of one word; nobody may need what lay there. */
inline send(to) {
  d_step {
    assert(e <= INBOXES || TAKEN(to, rank, tile) >= e - INBOXES);
    WORD(e, to, rank, tile) = e
  }
}

proctype Worker(byte rank; byte worker) {
  byte e = 1;
  byte tile;
  do
  :: e > EXCHANGES -> break
  :: else ->
#ifndef OWN_TILE
     SUM(rank, 0) >= e - 1;
     SUM(rank, 1) >= e - 1;
#endif
     tile = ((e % 4) / 2 + worker) % 2;
     send(1 - rank);
     send(rank);
     d_step { WORD(e, rank, 0, tile) == e; TAKEN(rank, 0, tile) = e }
     d_step { WORD(e, rank, 1, tile) == e; TAKEN(rank, 1, tile) = e }
     SUM(rank, tile) = e;
     e++
  od
}

init {
  atomic { run Worker(0, 0); run Worker(0, 1); run Worker(1, 0); run Worker(1, 1) }
}

#endif
