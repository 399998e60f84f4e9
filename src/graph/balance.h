// How the tasks of a mixture's ops share its experts: attribute `balance` of expert_gate_up and
// expert_down (graph/op.def).
//
// The weights that expert_gate_up may read lie on a line, the columns of one expert behind those of
// the one before. Where the experts are those of the model, a task's share of the line is known
// when the program is compiled (static), and a task whose experts nobody chose has nothing to do.
// Where they are those that some token chose, every task finds its share when the routes are there,
// and all shares are equal whatever the routes are (hybrid): nothing is exchanged between workers
// for it, since each counts the experts itself. A third way is to take pieces of that line one by
// one from a counter that all workers share (dynamic). And a task can have some columns of every
// expert, which needs no line at all (columns).
//
// Columns are the default: equal work for every worker whatever the routes are, known beforehand,
// and nothing to count; static shares stand still where routes are skewed, dynamic ones pay for the
// counter and for two more hops. bench/expert_balance.sh prints all four beside each other.
//
// Each element of the result is computed by one task in one order of summation, so bits do not
// depend on the balance. expert_down adds experts in order into each column, so its tasks are
// columns always; dynamic ones are taken by tickets.
#ifndef MGL_GRAPH_BALANCE_H
#define MGL_GRAPH_BALANCE_H

#include "graph/graph.h"

typedef enum mgl_balance {
  MGL_BALANCE_COLUMNS,  // the same columns of every chosen expert
  MGL_BALANCE_STATIC,   // a fixed share of all experts
  MGL_BALANCE_DYNAMIC,  // whoever is free takes the next piece of the chosen experts; JIT
  MGL_BALANCE_HYBRID,   // an equal share of the chosen experts
  MGL_BALANCE_COUNT,
} mgl_balance;

const char *mgl_balance_name(uint32_t index);  // NULL behind the last one
mgl_status mgl_balance_parse(const char *name, mgl_balance *out, mgl_error *err);

mgl_balance mgl_op_balance(const mgl_op *op);
// Whether data decide which part of its result a tile of the op computes: any, seen from here.
bool mgl_op_shares_by_data(const mgl_op *op);
// Sets it for all ops of experts; MGL_ERR_ARGUMENT where there are none.
mgl_status mgl_graph_set_balance(mgl_graph *graph, mgl_balance balance, mgl_error *err);

enum { MGL_SHARE_GRAIN = 16 };  // columns that stay together

// Columns of one matrix.
typedef struct mgl_expert_share {
  uint32_t begin, end;
} mgl_expert_share;

// What the tile units [begin, end) of `columns` have of the place-th of `count` matrices that lie
// on the line; of an op with balance columns, of any of them. Tiles that cut the units cut the
// line.
mgl_expert_share mgl_expert_share_of(mgl_balance balance, uint32_t columns, uint32_t begin,
                                     uint32_t end, uint32_t place, uint32_t count);

#endif
