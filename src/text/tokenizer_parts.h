// The inside of a tokenizer: what tokenizer_load*.c fill and tokenizer.c and detokenizer.c read.
//
// A text passes the parts in this order: added tokens of the raw text, normaliser, added tokens of
// the normalised text, pre-tokeniser stages, BPE, post-processor. Ids come back through the
// decoder.
#ifndef MGL_TEXT_TOKENIZER_PARTS_H
#define MGL_TEXT_TOKENIZER_PARTS_H

#include "base/json.h"
#include "text/added_tokens.h"
#include "text/bpe.h"
#include "text/pretokenize.h"
#include "text/tokenizer.h"

enum {
  MGL_TOKENIZER_MAX_STEPS = 8,   // of each of normaliser, pre-tokeniser, decoder
  MGL_TOKENIZER_MAX_AFFIX = 64,  // special tokens before or behind a sequence
  // Pattern and content of a Replace or Prepend.
  MGL_REWRITE_MAX_BYTES = MGL_SPLIT_MAX_LITERAL_BYTES,
  MGL_NORMALIZED_MAX_GROWTH = 16,  // a normaliser may make a text longer by this factor
};

// Replaces each occurrence of a string.
typedef struct mgl_rewrite {
  char pattern[MGL_REWRITE_MAX_BYTES];
  size_t pattern_bytes;
  char content[MGL_REWRITE_MAX_BYTES];
  size_t content_bytes;
} mgl_rewrite;

typedef enum mgl_normal_kind {
  MGL_NORMAL_NFC,
  MGL_NORMAL_PREPEND,  // rewrite.content goes in front of a non-empty text
  MGL_NORMAL_REPLACE,
} mgl_normal_kind;

typedef struct mgl_normal_step {
  mgl_normal_kind kind;
  mgl_rewrite rewrite;
} mgl_normal_step;

typedef struct mgl_normalizer {
  mgl_normal_step steps[MGL_TOKENIZER_MAX_STEPS];
  size_t step_count;
} mgl_normalizer;

typedef enum mgl_stage_kind {
  MGL_STAGE_SPLIT,
  MGL_STAGE_DIGITS,
  MGL_STAGE_METASPACE,   // always the last stage
  MGL_STAGE_BYTE_LEVEL,  // always the last stage
} mgl_stage_kind;

// What becomes of the matches of a Split; text between them is a match in its place if inverted.
typedef enum mgl_split_behavior {
  MGL_SPLIT_ISOLATED,              // matches and what stands between them are pieces
  MGL_SPLIT_REMOVED,               // only what stands between them
  MGL_SPLIT_MERGED_WITH_PREVIOUS,  // a match ends the piece before it
  MGL_SPLIT_MERGED_WITH_NEXT,      // a match starts the piece behind it
  MGL_SPLIT_CONTIGUOUS,            // matches side by side are one piece
} mgl_split_behavior;

typedef enum mgl_prepend_scheme {
  MGL_PREPEND_ALWAYS,
  MGL_PREPEND_FIRST,  // only to the piece with which the text starts
  MGL_PREPEND_NEVER,
} mgl_prepend_scheme;

// One step of the pre-tokeniser; which fields count depends on the kind.
typedef struct mgl_stage {
  mgl_stage_kind kind;
  mgl_split_pattern pattern;    // split
  mgl_split_behavior behavior;  // split
  bool invert;                  // split
  bool split;                   // byte-level: by GPT-2's pattern; metaspace: at each replacement;
                                // digits: each digit on its own
  bool prefix_space;            // byte-level: a space goes in front of a piece that has none
  char replacement[4];          // metaspace: one character instead of each space
  size_t replacement_bytes;
  mgl_prepend_scheme scheme;  // metaspace
} mgl_stage;

typedef struct mgl_pretokenizer {
  mgl_stage stages[MGL_TOKENIZER_MAX_STEPS];
  size_t stage_count;
} mgl_pretokenizer;

typedef enum mgl_decoder_kind {
  MGL_DECODER_JOIN,  // none in the file: tokens with a space between them
  MGL_DECODER_BYTE_LEVEL,
  MGL_DECODER_METASPACE,
  MGL_DECODER_STEPS,  // replace, then byte fallback, then strip, each optional
} mgl_decoder_kind;

typedef struct mgl_decoder {
  mgl_decoder_kind kind;
  mgl_rewrite replace[MGL_TOKENIZER_MAX_STEPS];
  size_t replace_count;
  bool byte_fallback;
  bool fuse;
  uint32_t character;  // metaspace: the replacement; strip: what is stripped
  bool drop_first;     // metaspace: the first token's replacements vanish
  uint64_t strip;      // at most so many characters at the start of the text
} mgl_decoder;

typedef struct mgl_affix {
  int32_t ids[MGL_TOKENIZER_MAX_AFFIX];
  size_t count;
} mgl_affix;

struct mgl_tokenizer {
  mgl_added_tokens added;
  mgl_normalizer normalizer;
  mgl_pretokenizer pretokenizer;
  mgl_bpe bpe;
  mgl_affix prefix;  // of the post-processor
  mgl_affix suffix;
  mgl_decoder decoder;
  uint32_t vocab_size;
  int32_t *added_index;  // [vocab_size] id -> index in `added`, or -1
  bool *skippable;       // [vocab_size] decode leaves it out when special tokens are skipped
};

// normalize.c: the whole normaliser; *out is borrowed from `text` or one of the two buffers.
mgl_status mgl_normalizer_apply(const mgl_normalizer *normalizer, const char *text, size_t bytes,
                                mgl_text buffers[2], const char **out, size_t *out_bytes,
                                mgl_error *err);
// Appends the text with each occurrence replaced; MGL_ERR_LIMIT when *out gets longer than `limit`.
mgl_status mgl_rewrite_append(const mgl_rewrite *rewrite, const char *text, size_t bytes,
                              size_t limit, mgl_text *out, mgl_error *err);
// How long the result of rewriting `bytes` of text may be.
size_t mgl_rewrite_limit(size_t bytes);

// tokenizer_load_stages.c: each reads one member of tokenizer.json, which may be absent.
mgl_status mgl_normalizer_load(mgl_json_object file, mgl_normalizer *out, mgl_error *err);
mgl_status mgl_pretokenizer_load(mgl_json_object file, mgl_pretokenizer *out, mgl_error *err);
mgl_status mgl_decoder_load(mgl_json_object file, mgl_decoder *out, mgl_error *err);
mgl_status mgl_postprocessor_load(mgl_json_object file, mgl_affix *prefix, mgl_affix *suffix,
                                  mgl_error *err);
// Like mgl_json_opt_string, but the member must be there.
mgl_status mgl_json_string(mgl_json_object o, const char *key, const char **out, mgl_error *err);

#endif
