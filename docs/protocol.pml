/* The runtime protocol (src/twin/protocol.h, src/device/cpu/cpu_wait.c) as a model for spin.
 *
 * What it has: the bounded queue with sequence numbers, event counters that are never reset, the
 * last trigger handing its event over, JIT tasks going to either worker, AOT tasks waiting for
 * their event, the board with one live iteration, END_OF_TASK_GRAPH, termination, and the sleep and
 * wake handshake step by step. What it leaves out: weak memory, empty tasks, several graphs; for
 * those see tests/unit/runtime.
 *
 * Bounds: 2 workers; one task graph; ITERATIONS runs of it.
 *   task 0    AOT on worker 0, ready              triggers the event
 *   task 1    AOT on worker 1, waits for event    triggers the end
 *   JIT tasks 2 .. 1 + JITS, wait for the event   trigger the end
 * Default: one dedicated scheduler that gives the 3 JIT tasks to worker 1, whose queue has 2 slots,
 * so that it fills and wraps. With -DEMBEDDED: 2 JIT tasks go to either worker; no scheduler: whoever makes the last trigger queues; JIT queues of 4 slots
 * hold all JIT tasks of an iteration, as mgl_protocol_queue_sizes demands.
 *
 * Checked by tools/check_protocol_model.sh: assertions and invalid end states (a lost wakeup or a
 * deadlock is one); and under weak fairness, that every published iteration ends and all leave.
 */
#ifndef ITERATIONS
#define ITERATIONS 2
#endif
#ifdef EMBEDDED
#define SIZE 4
#define JITS 2
#define ACTORS 2
#else
#define SIZE 2
#define JITS 3
#define ACTORS 3
#endif
#define EVENT_TRIGGERS 1
#define END_TRIGGERS (1 + JITS)
#define THE_EVENT 1 /* ids in the scheduler's queue */
#define THE_END 2

typedef queue {
  byte head;
  byte tail;
  byte sequence[SIZE];
  byte value[SIZE]
};

queue queues[ACTORS]; /* JIT of workers 0 and 1; events of the scheduler */
byte event_count;     /* counters, monotonic */
byte end_count;
byte published; /* iteration + 1 */
bool stopping;  /* of the published iteration; written before it */
byte sleepers;
bool woken[ACTORS]; /* the generation has moved since this actor's ticket */

byte ran[2 + JITS]; /* ghosts: how often each task ran */
byte ended;         /* iterations that have ended */
byte left;          /* actors that have left */

/* Store what is waited for, (fence), look for sleepers. */
inline notify() {
  if
  :: sleepers > 0 -> d_step { woken[0] = true; woken[1] = true; woken[ACTORS - 1] = true }
  :: else
  fi
}

/* ok: pushed. The position is taken by a compare-and-swap; the slot is written after. (Variables
 * that are no longer needed are set to 0: fewer states.) */
inline push(q, what, ok) {
  do
  :: position = queues[q].tail;
     seen = queues[q].sequence[position % SIZE];
     if
     :: seen == position ->
        d_step {
          if
          :: queues[q].tail == position -> queues[q].tail = position + 1; ok = true
          :: else -> ok = false
          fi
        }
        if
        :: ok ->
           queues[q].value[position % SIZE] = what;
           d_step { queues[q].sequence[position % SIZE] = position + 1; position = 0; seen = 0 }
           break
        :: else
        fi
     :: seen < position -> d_step { ok = false; position = 0; seen = 0 }; break
     :: else
     fi
  od
}

/* Each queue has one consumer, the only one that reads or writes its head. */
inline pop(q, what, ok) {
  atomic { position = queues[q].head; ok = (queues[q].sequence[position % SIZE] == position + 1) }
  if
  :: ok ->
     what = queues[q].value[position % SIZE];
     d_step {
       assert(what != 0);
       queues[q].value[position % SIZE] = 0;
       queues[q].head = position + 1;
       queues[q].sequence[position % SIZE] = position + SIZE;
       position = 0
     }
  :: else -> position = 0
  fi
}

/* Publishes the iteration behind `published`, or the stop. */
inline begin_iteration() {
  assert(ended == published);
  if
  :: published == ITERATIONS -> stopping = true
  :: else
  fi;
  published++;
  notify()
}

/* Queues JIT tasks from `next` on; stops where the queue is full. */
inline launch() {
  do
  :: next < 2 + JITS ->
#ifdef EMBEDDED
     if
     :: target = 0
     :: target = 1
     fi;
#else
     target = 1;
#endif
     push(target, next, ok);
     target = 0;
     if
     :: ok -> atomic { ok = false; next++ }; notify()
     :: else -> break
     fi
  :: else -> break
  od
}

/* The end of the iteration: everything has run once in each. */
inline check_iteration() {
  d_step {
    i = 0;
    do
    :: i < 2 + JITS -> assert(ran[i] == published); i++
    :: else -> break
    od;
    ended++;
    i = 0
  }
}

inline trigger_event() {
  atomic { event_count++; last = (event_count == EVENT_TRIGGERS * published) }
  if
  :: last ->
     notify(); /* worker 1 may sleep for it */
#ifdef EMBEDDED
     next = 2;
     launch();
     assert(next == 2 + JITS); /* a queue holds a whole iteration */
     next = 0
#else
     push(2, THE_EVENT, ok);
     atomic { assert(ok); ok = false; last = false };
     notify()
#endif
  :: else
  fi
}

inline trigger_end() {
  atomic { end_count++; last = (end_count == END_TRIGGERS * published) }
  if
  :: last ->
#ifdef EMBEDDED
     check_iteration();
     begin_iteration()
#else
     push(2, THE_END, ok);
     atomic { assert(ok); ok = false; last = false };
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

proctype Worker(byte me) {
  byte entered; /* iterations entered, so the one that it is in + 1 */
  byte task, position, seen, next, target, i;
  bool waits; /* for its AOT task of that iteration */
  bool ok, last, intent;
#ifdef EMBEDDED
  if
  :: me == 0 -> begin_iteration()
  :: else
  fi;
#endif
  do
  :: pop(me, task, ok);
     if
     :: ok ->
        ok = false;
        found_something();
#ifndef EMBEDDED
        notify(); /* the scheduler may wait for room */
#endif
        assert(event_count >= EVENT_TRIGGERS * published);
        d_step { ran[task]++; assert(ran[task] == published); task = 0 }
        trigger_end()
     :: else ->
        if
        :: !waits && published > entered ->
           entered = published;
           if
           :: stopping -> break
           :: else -> waits = true
           fi
        :: else
        fi;
        if
        :: waits && me == 0 ->
           found_something();
           d_step { waits = false; ran[0]++; assert(ran[0] == entered) }
           trigger_event()
        :: waits && me == 1 && event_count >= EVENT_TRIGGERS * entered ->
           found_something();
           d_step { waits = false; assert(ran[0] == entered); ran[1]++; assert(ran[1] == entered) }
           trigger_end()
        :: else -> wait_or_sleep()
        fi
     fi
  od;
  found_something();
  left++
}

#ifndef EMBEDDED
proctype Scheduler(byte me) {
  byte id, position, seen, target, i;
  byte next = 2 + JITS; /* nothing to queue */
  bool ok, intent;
  begin_iteration();
  do
  :: next < 2 + JITS ->
     i = next;
     launch();
     if
     :: next > i -> i = 0; found_something()
     :: else -> i = 0; wait_or_sleep() /* all queues are full */
     fi
  :: else ->
     pop(2, id, ok);
     if
     :: ok && id == THE_EVENT -> atomic { ok = false; id = 0 }; found_something(); next = 2
     :: ok && id == THE_END -> atomic { ok = false; id = 0 }; found_something(); check_iteration(); begin_iteration()
     :: !ok && stopping && published == ITERATIONS + 1 -> break
     :: else -> wait_or_sleep()
     fi
  od;
  found_something();
  left++
}
#endif

init {
  byte q, slot;
  atomic {
    do
    :: q < ACTORS ->
       slot = 0;
       do
       :: slot < SIZE -> queues[q].sequence[slot] = slot; slot++
       :: else -> break
       od;
       q++
    :: else -> break
    od;
    run Worker(0);
    run Worker(1);
#ifndef EMBEDDED
    run Scheduler(2)
#endif
  }
}

/* Every published iteration ends, and everybody leaves. */
ltl live { ([] ((published == 1) -> <> (ended >= 1))) && ([] ((published == 2) -> <> (ended >= 2 || stopping))) && (<> (left == ACTORS)) }
