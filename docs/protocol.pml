/* The runtime protocol (src/twin/protocol.h, src/device/cpu/cpu_wait.c) as a model for spin.
 *
 * What it has: event counters that are never reset, tickets for JIT tasks, which are not reset
 * either, AOT and JIT tasks merged in linear order, the board with one live iteration and how it is
 * read, the scheduler's bounded queue with sequence numbers, END_OF_TASK_GRAPH, termination, and
 * the sleep and wake handshake step by step. What it leaves out: weak memory, empty tasks, several
 * graphs; for those see tests/unit/device.
 *
 * Bounds: 2 workers; one task graph; ITERATIONS runs of it.
 *   task 0            AOT on worker 0, ready              triggers the event
 *   tasks 1 .. JITS   JIT, wait for the event             trigger the end
 *   task JITS + 1     AOT on worker 1, waits for event    triggers the end
 * Default: one dedicated scheduler begins iterations. With -DEMBEDDED: whoever makes the last
 * trigger does. With -DLOST_TICKET a worker forgets the ticket that it has at the end of an
 * iteration, which is a fault that must be found.
 *
 * Checked by tools/check_protocol_model.sh: assertions and invalid end states (a lost wakeup or a
 * deadlock is one); and under weak fairness, that every published iteration ends and all leave.
 */
#ifndef ITERATIONS
#define ITERATIONS 2
#endif
#define SIZE 2 /* of the scheduler's queue */
#ifdef EMBEDDED
#define JITS 3
#define ACTORS 2
#else
#define JITS 2
#define ACTORS 3
#endif
#define TASKS (2 + JITS)
#define EVENT_TRIGGERS 1
#define END_TRIGGERS (1 + JITS)
#define THE_END 1 /* the id in the scheduler's queue */
#define NOTHING 99

byte head, tail; /* of the scheduler's queue of ends */
byte sequence[SIZE];
byte value[SIZE];

byte event_count; /* counters, monotonic */
byte end_count;
byte tickets;     /* that were taken */
byte published;   /* iteration + 1; 0 while the rest of the board is written */
byte before;      /* JIT tasks of the iterations before */
bool stopping;
byte sleepers;
bool woken[ACTORS]; /* the generation has moved since this actor's ticket */

byte live;       /* ghosts: the live iteration + 1 */
byte ran[TASKS]; /* how often each task ran */
byte ended;      /* iterations that have ended */
byte left;       /* actors that have left */

/* Store what is waited for, (fence), look for sleepers. */
inline notify() {
  if
  :: sleepers > 0 -> d_step { woken[0] = true; woken[1] = true; woken[ACTORS - 1] = true }
  :: else
  fi
}

#ifndef EMBEDDED
/* The position is taken by a compare-and-swap; the slot is written after. (Variables that are no
 * longer needed are set to 0: fewer states.) */
inline push_end() {
  do
  :: position = tail;
     seen = sequence[position % SIZE];
     assert(seen >= position); /* never full */
     if
     :: seen == position ->
        d_step {
          if
          :: tail == position -> tail = position + 1; ok = true
          :: else -> ok = false
          fi
        }
        if
        :: ok ->
           value[position % SIZE] = THE_END;
           d_step { sequence[position % SIZE] = position + 1; position = 0; seen = 0; ok = false }
           break
        :: else
        fi
     :: else
     fi
  od
}

/* The queue has one consumer. */
inline pop_end() {
  atomic { position = head; ok = (sequence[position % SIZE] == position + 1) }
  if
  :: ok ->
     d_step {
       assert(value[position % SIZE] == THE_END);
       value[position % SIZE] = 0;
       head = position + 1;
       sequence[position % SIZE] = position + SIZE;
       position = 0
     }
  :: else -> position = 0
  fi
}
#endif

/* Publishes the iteration behind `live`, or the stop. */
inline begin_iteration() {
  assert(ended == live);
  published = 0;
  atomic { before = JITS * live; stopping = (live == ITERATIONS) };
  atomic { live++; published = live };
  notify()
}

/* The end of the iteration: everything has run once in each. */
inline check_iteration() {
  d_step {
    i = 0;
    do
    :: i < TASKS -> assert(ran[i] == live); i++
    :: else -> break
    od;
    ended++;
    i = 0
  }
}

inline trigger_event() {
  atomic { event_count++; last = (event_count == EVENT_TRIGGERS * live) }
  if
  :: last -> last = false; notify() /* whoever has a task behind it may sleep */
  :: else
  fi
}

inline trigger_end() {
  atomic { end_count++; last = (end_count == END_TRIGGERS * live) }
  if
  :: last ->
     last = false;
#ifdef EMBEDDED
     check_iteration();
     begin_iteration()
#else
     push_end();
     notify()
#endif
  :: else
  fi
}

/* Polls found nothing twice, the second time after announcing: sleep until notified. */
inline wait_or_sleep() {
  if
  :: !intent -> sleepers++; d_step { intent = true; woken[me] = false }
  :: else -> woken[me]; d_step { sleepers--; intent = false }
  fi
}

inline found_something() {
  if
  :: intent -> d_step { sleepers--; intent = false }
  :: else
  fi
}

/* Reads the board: `entered` is the live iteration if it is one that the worker has not been in. */
inline read_board() {
  seen = published;
  if
  :: seen > entered ->
     first = before;
     if
     :: published == seen -> d_step { entered = seen; inside = true; has_aot = true }
     :: else
     fi
  :: else
  fi;
  seen = 0
}

/* The worker's next task in linear order. Worker 0's AOT task comes before all JIT tasks, worker
 * 1's behind them. */
inline choose() {
  below = ((has_aot && me == 0) -> 0 : JITS);
  if
  :: ticket == 0 && has_aot ->
     seen = tickets;
     if
     :: seen - first < below -> atomic { tickets++; ticket = tickets }
     :: else
     fi;
     seen = 0
  :: ticket == 0 && !has_aot -> atomic { tickets++; ticket = tickets }
  :: else
  fi;
  d_step {
    if
    :: ticket != 0 && ticket - 1 - first < below -> next = ticket - first; ticket = 0
    :: else ->
       if
       :: has_aot -> next = (me == 0 -> 0 : JITS + 1); has_aot = false
       :: else -> inside = false
       fi
    fi;
    below = 0
  }
#ifdef LOST_TICKET
  if
  :: !inside -> ticket = 0
  :: else
  fi
#endif
}

proctype Worker(byte me) {
  byte entered; /* iterations entered, so the one that it is in + 1 */
  byte first;   /* `before` of that one */
  byte ticket;  /* number + 1 of its JIT task, of all iterations; 0: none */
  byte next = NOTHING;
  byte below, position, seen, i;
  bool inside, has_aot, ok, last, intent;
#ifdef EMBEDDED
  if
  :: me == 0 -> begin_iteration()
  :: else
  fi;
#endif
  do
  :: next == NOTHING && !inside ->
     read_board();
     if
     :: inside && stopping -> break
     :: inside && !stopping
     :: !inside -> wait_or_sleep()
     fi
  :: next == NOTHING && inside -> choose()
  :: next != NOTHING ->
     if
     :: next == 0 || event_count >= EVENT_TRIGGERS * entered ->
        found_something();
        d_step {
          assert(entered == live);
          assert(next == 0 || ran[0] == live);
          ran[next]++;
          assert(ran[next] == live)
        }
        if
        :: next == 0 -> next = NOTHING; trigger_event()
        :: else -> next = NOTHING; trigger_end()
        fi
     :: else -> wait_or_sleep()
     fi
  od;
  found_something();
  left++
}

#ifndef EMBEDDED
proctype Scheduler(byte me) {
  byte position, i;
  bool ok, intent;
  begin_iteration();
  do
  :: pop_end();
     if
     :: ok -> ok = false; found_something(); check_iteration(); begin_iteration()
     :: !ok && stopping && published == ITERATIONS + 1 -> break
     :: else -> wait_or_sleep()
     fi
  od;
  found_something();
  left++
}
#endif

init {
  atomic {
    sequence[1] = 1;
    run Worker(0);
    run Worker(1);
#ifndef EMBEDDED
    run Scheduler(2)
#endif
  }
}

/* Every published iteration ends, and everybody leaves. */
ltl goes_on { ([] ((live == 1) -> <> (ended >= 1))) && ([] ((live == 2) -> <> (ended >= 2 || stopping))) && (<> (left == ACTORS)) }
