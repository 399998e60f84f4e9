// This checks what the protocol relies on in a task graph, before anything runs.
#ifndef MGL_TASK_PROTOCOL_CHECK_H
#define MGL_TASK_PROTOCOL_CHECK_H

#include "base/status.h"
#include "twin/task.h"

// Checks one graph; the message names the first task or event that breaks a rule:
//   - indices are in range; tasks [0, ready_count), and only they, wait for nothing, and none of
//     them is empty; the tasks of an event are [first_task, last_task), and only they wait for it
//   - linear order: a task stands behind those that trigger its event (but for dependent launches)
//   - trigger counts and flags say what the tasks say
//   - the last event is END_OF_TASK_GRAPH or TERMINATE, no other is, and no task waits for it
//   - every task that is not empty leads to it; an empty one does too, or triggers an EMPTY or a
//     LAUNCH_DEPENDENT_TASKS event; nothing else triggers these
//   - no empty task waits for a LAUNCH_DEPENDENT_TASKS event, none for an EMPTY one
//   - every AOT task is in the list of its worker once, the lists ascend, JIT and empty ones are in
//     no list
//   - one activation sets off at most MGL_MAX_PENDING triggers by empty tasks
// MGL_ERR_LIMIT for the last one and for counts beyond ids, else MGL_ERR_FORMAT.
mgl_status mgl_protocol_check(const mgl_task_graph *graph, mgl_error *err);

// Returns the number of the graph's JIT tasks, and leaves them in out (NULL: just counts), in
// linear order: the list of which workers take tickets.
uint32_t mgl_protocol_jit_tasks(const mgl_task_graph *graph, uint32_t *out);

#endif
