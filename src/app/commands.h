// The commands of `megalith`, one file each. A name of two words is that of a subcommand, which
// stands behind the command of its first word: `megalith bench throughput`; a model folder of that
// name is ./throughput.
#ifndef MGL_APP_COMMANDS_H
#define MGL_APP_COMMANDS_H

#include "app/options.h"

extern const mgl_command mgl_command_run;          // cmd_run.c
extern const mgl_command mgl_command_score;        // cmd_score.c
extern const mgl_command mgl_command_serve;        // cmd_serve.c
extern const mgl_command mgl_command_tokenize;     // cmd_tokenize.c
extern const mgl_command mgl_command_template;     // cmd_template.c
extern const mgl_command mgl_command_bench;        // cmd_bench.c
extern const mgl_command mgl_command_throughput;   // cmd_throughput.c
extern const mgl_command mgl_command_bench_serve;  // cmd_bench_serve.c
extern const mgl_command mgl_command_plan;         // cmd_plan.c
extern const mgl_command mgl_command_compile;      // cmd_compile.c
extern const mgl_command mgl_command_graph;        // cmd_graph.c
extern const mgl_command mgl_command_test;         // cmd_test.c
extern const mgl_command mgl_command_trace;        // cmd_trace.c
extern const mgl_command mgl_command_quantize;     // cmd_quantize.c
extern const mgl_command mgl_command_info;         // cmd_info.c
extern const mgl_command mgl_command_completion;   // cmd_completion.c

// Of a process that a launcher has started, which is not rank 0: computes what that one's command
// wants, to its end. Returns with errors only (app_model.c).
mgl_status mgl_app_follow(const mgl_arguments *arguments, mgl_error *err);

// All of them, in the order of the help (main.c).
const mgl_command *const *mgl_commands(size_t *out_count);

#endif
