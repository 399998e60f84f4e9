// Hostile folders and files, and the real command on each of them in a child of its own.
//
// A case is a folder that is the demo model's but for one file. The command must end by itself,
// with a status that is not zero, nothing on standard output and exactly one line on standard
// error, within HOSTILE_SECONDS and HOSTILE_MIB beyond what it takes for the demo model, or for a
// valid one as large as the case. Both are measured (wait4), and the worst is printed at the end.
// Seconds are the processor's, since those of the wall depend on what else runs; the wall's end a
// case that hangs.
#ifndef MGL_TESTS_HOSTILE_H
#define MGL_TESTS_HOSTILE_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "base/text.h"

enum {
  HOSTILE_SECONDS = 2,
  HOSTILE_MIB = 512,
  HOSTILE_PATH_BYTES = 4096,
};

typedef enum hostile_command {
  HOSTILE_RUN,  // a chat: reads every file of a folder
  HOSTILE_SCORE,
  HOSTILE_TOKENIZE,
  HOSTILE_PLAN,
  HOSTILE_COMPILE,
  HOSTILE_GRAPH,      // graph.json of the folder
  HOSTILE_TRACE,      // trace.json of the folder
  HOSTILE_GGUF,       // model.gguf of the folder: its tokenizer
  HOSTILE_GGUF_PLAN,  // the same: its weights
  HOSTILE_COMMANDS,
} hostile_command;

// Makes the folder of the next case, without `file` (NULL: with all of them), and returns the path
// at which a case puts its own; valid until the next call.
const char *hostile_folder(const char *file);
// The same, and opens it.
FILE *hostile_create(const char *file);
// The path of another name in the folder, in static memory.
const char *hostile_path(const char *name);

// Closes `file` (NULL: none), runs the command and demands that it refuses the folder.
void hostile_refused(FILE *file, hostile_command command, const char *name, ...)
    __attribute__((format(printf, 3, 4)));
// The same, but the folder may be fine: then the status is zero.
void hostile_survived(FILE *file, hostile_command command, const char *name, ...)
    __attribute__((format(printf, 3, 4)));
// Demands that the folder is accepted, and allows cases until the next call to take as much as it
// did, besides HOSTILE_MIB. `file` may be NULL; the name NULL: back to the demo model's.
void hostile_valid(FILE *file, hostile_command command, const char *name);

// Whether cases of tens of megabytes run: not under a sanitizer, whose memory says nothing.
bool hostile_large(void);

// The text of a demo model's file, or of graph.json and trace.json as the command wrote them.
const mgl_text *hostile_original(const char *file);
// The bytes of a sound GGUF file: the demo model's tokenizer.
const mgl_text *hostile_gguf(void);
// The text with the value of the first "key" replaced, or (if there is none, or `key` is NULL) with
// `value` put behind the first brace. In static memory, valid until the next call.
const char *hostile_edit(const char *text, const char *key, const char *value);

// The same numbers every time.
uint32_t hostile_random(uint32_t below);

void hostile_configs(void);
void hostile_tokenizers(void);
void hostile_templates(void);
void hostile_weights(void);
void hostile_mixtures(void);
void hostile_quantised(void);
void hostile_graphs(void);
void hostile_ggufs(void);
// Broken JSON, and things that are no files, in the place of every file.
void hostile_everywhere(void);

#endif
