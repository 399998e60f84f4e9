// Encoding: text to token ids.
//
// The text is cut and transformed from the outside in: added tokens of the raw text, then between
// them the normaliser, added tokens of the normalised text, the pre-tokeniser stages one inside the
// other, and BPE on what is left. Each part works on borrowed pieces; only what changes the text
// (normaliser, Metaspace, a prefix space) writes to a buffer of its own, so the whole is linear.
// Rejected: the library's lists of pieces with offsets, which nobody here asks for.
#include "text/tokenizer.h"

#include <string.h>

#include "text/tokenizer_parts.h"
#include "text/unicode.h"

typedef struct encoder {
  const mgl_tokenizer *tokenizer;
  bool plain_special;
  bool byte_level;  // the last stage is ByteLevel
  mgl_token_list *out;
  mgl_bpe_scratch scratch;
  mgl_text clean;                            // the text as valid UTF-8, if it was not
  mgl_text normal[2];                        // for the normaliser
  mgl_text staged[MGL_TOKENIZER_MAX_STEPS];  // for the stage of that index
} encoder;

// A part of the text on its way to the next stage.
typedef struct piece {
  const char *text;
  size_t bytes;
  bool first;  // it starts where the original text starts
} piece;

static mgl_status run_stage(encoder *e, size_t index, piece whole, mgl_error *err);

// The part of `whole` from start to end, to the next stage.
static mgl_status pass_on(encoder *e, size_t index, piece whole, size_t start, size_t end,
                          mgl_error *err) {
  piece part = {whole.text + start, end - start, whole.first && start == 0};
  return run_stage(e, index + 1, part, err);
}

// A part of the text that is a match of a pattern, or lies between two.
typedef struct segment {
  size_t start;
  size_t end;
  bool match;
} segment;

// Whether neighbours belong together; `before` is as it was found, without what merged into it.
static bool merges(mgl_split_behavior behavior, bool before, bool match) {
  switch (behavior) {
    case MGL_SPLIT_ISOLATED:
    case MGL_SPLIT_REMOVED: return false;
    case MGL_SPLIT_MERGED_WITH_PREVIOUS: return match && !before;
    case MGL_SPLIT_MERGED_WITH_NEXT: return before && !match;
    case MGL_SPLIT_CONTIGUOUS: return before == match;
  }
  return false;
}

static mgl_status hand_on(encoder *e, size_t index, piece whole, segment done, mgl_error *err) {
  const mgl_stage *stage = &e->tokenizer->pretokenizer.stages[index];
  bool removed = stage->behavior == MGL_SPLIT_REMOVED && done.match;
  return removed ? MGL_OK : pass_on(e, index, whole, done.start, done.end, err);
}

// Hands on *pending, which `next` then replaces, unless they merge.
static mgl_status add_segment(encoder *e, size_t index, piece whole, segment *pending, segment next,
                              mgl_error *err) {
  const mgl_stage *stage = &e->tokenizer->pretokenizer.stages[index];
  if (next.start == next.end) {
    return MGL_OK;
  }
  next.match ^= stage->invert;
  segment done = *pending;
  *pending = next;
  if (done.end > done.start && merges(stage->behavior, done.match, next.match)) {
    pending->start = done.start;
    return MGL_OK;
  }
  return hand_on(e, index, whole, done, err);
}

static mgl_status run_split(encoder *e, size_t index, piece whole, mgl_error *err) {
  const mgl_split_pattern *pattern = &e->tokenizer->pretokenizer.stages[index].pattern;
  segment pending = {0};
  segment match = {.match = true};
  for (size_t at = 0; at < whole.bytes; at = match.end) {
    if (!mgl_split_next(pattern, whole.text, whole.bytes, at, &match.start, &match.end)) {
      match.start = match.end = whole.bytes;
    }
    segment between = {at, match.start, false};
    MGL_TRY(add_segment(e, index, whole, &pending, between, err));
    MGL_TRY(add_segment(e, index, whole, &pending, match, err));
  }
  return hand_on(e, index, whole, pending, err);
}

// Runs of digits and of anything else; with `each`, every digit on its own.
static mgl_status run_digits(encoder *e, size_t index, bool each, piece whole, mgl_error *err) {
  size_t start = 0;
  bool in_digits = false;
  for (size_t at = 0; at < whole.bytes;) {
    size_t next = at;
    bool digit = mgl_char_is_numeric(mgl_utf8_next(whole.text, &next));
    if (at > start && (digit != in_digits || (digit && each))) {
      MGL_TRY(pass_on(e, index, whole, start, at, err));
      start = at;
    }
    in_digits = digit;
    at = next;
  }
  return pass_on(e, index, whole, start, whole.bytes, err);
}

static bool starts_with(const char *text, size_t bytes, const char *start, size_t start_bytes) {
  return bytes >= start_bytes && memcmp(text, start, start_bytes) == 0;
}

// Writes the text with its spaces replaced, and the replacement in front where the scheme says so.
static mgl_status replace_spaces(const mgl_stage *stage, piece whole, mgl_text *out,
                                 mgl_error *err) {
  mgl_text_clear(out);
  bool starts = whole.text[0] == ' ' ||
                starts_with(whole.text, whole.bytes, stage->replacement, stage->replacement_bytes);
  if (!starts && (stage->scheme == MGL_PREPEND_ALWAYS ||
                  (stage->scheme == MGL_PREPEND_FIRST && whole.first))) {
    mgl_text_append(out, stage->replacement, stage->replacement_bytes);
  }
  for (size_t at = 0; at < whole.bytes;) {
    const char *space = memchr(whole.text + at, ' ', whole.bytes - at);
    size_t plain = space == NULL ? whole.bytes - at : (size_t)(space - whole.text) - at;
    mgl_text_append(out, whole.text + at, plain);
    at += plain;
    if (space != NULL) {
      mgl_text_append(out, stage->replacement, stage->replacement_bytes);
      at++;
    }
  }
  return mgl_text_check(out, err);
}

static mgl_status run_metaspace(encoder *e, size_t index, const mgl_stage *stage, piece whole,
                                mgl_error *err) {
  mgl_text *buffer = &e->staged[index];
  MGL_TRY(replace_spaces(stage, whole, buffer, err));
  piece replaced = {buffer->data, buffer->bytes, whole.first};
  size_t start = 0;
  if (stage->split) {
    // Each replacement starts a new piece.
    for (size_t at = 0; at < replaced.bytes;) {
      if (at > start && starts_with(replaced.text + at, replaced.bytes - at, stage->replacement,
                                    stage->replacement_bytes)) {
        MGL_TRY(pass_on(e, index, replaced, start, at, err));
        start = at;
      }
      (void)mgl_utf8_next(replaced.text, &at);
    }
  }
  return pass_on(e, index, replaced, start, replaced.bytes, err);
}

static mgl_status run_byte_level(encoder *e, size_t index, const mgl_stage *stage, piece whole,
                                 mgl_error *err) {
  if (stage->prefix_space && whole.text[0] != ' ') {
    mgl_text *buffer = &e->staged[index];
    mgl_text_clear(buffer);
    mgl_text_append(buffer, " ", 1);
    mgl_text_append(buffer, whole.text, whole.bytes);
    MGL_TRY(mgl_text_check(buffer, err));
    whole = (piece){buffer->data, buffer->bytes, whole.first};
  }
  return stage->split ? run_split(e, index, whole, err)
                      : pass_on(e, index, whole, 0, whole.bytes, err);
}

// The recursion is as deep as there are stages.
static mgl_status run_stage(encoder *e, size_t index, piece whole, mgl_error *err) {
  if (whole.bytes == 0) {
    return MGL_OK;
  }
  const mgl_pretokenizer *pretokenizer = &e->tokenizer->pretokenizer;
  if (index == pretokenizer->stage_count) {
    return mgl_bpe_encode(&e->tokenizer->bpe, e->byte_level, whole.text, whole.bytes, &e->scratch,
                          e->out, err);
  }
  const mgl_stage *stage = &pretokenizer->stages[index];
  switch (stage->kind) {
    case MGL_STAGE_SPLIT: return run_split(e, index, whole, err);
    case MGL_STAGE_DIGITS: return run_digits(e, index, stage->split, whole, err);
    case MGL_STAGE_METASPACE: return run_metaspace(e, index, stage, whole, err);
    case MGL_STAGE_BYTE_LEVEL: return run_byte_level(e, index, stage, whole, err);
  }
  return MGL_OK;
}

typedef mgl_status (*piece_reader)(encoder *e, piece part, mgl_error *err);

// Cuts out the added tokens that the trie knows and hands what stands between them to `read`.
static mgl_status cut_added(encoder *e, const mgl_token_trie *trie, piece whole, piece_reader read,
                            mgl_error *err) {
  const mgl_added_tokens *added = &e->tokenizer->added;
  mgl_added_cursor cursor = {0};
  for (;;) {
    size_t done = cursor.done;
    size_t start = 0;
    size_t end = 0;
    int32_t index = mgl_added_tokens_next(added, trie, whole.text, whole.bytes, e->plain_special,
                                          &cursor, &start, &end);
    size_t plain_end = index < 0 ? whole.bytes : start;
    if (done < plain_end) {
      piece part = {whole.text + done, plain_end - done, whole.first && done == 0};
      MGL_TRY(read(e, part, err));
    }
    if (index < 0) {
      return MGL_OK;
    }
    MGL_TRY(mgl_token_list_append(e->out, added->tokens[index].id, err));
  }
}

static mgl_status read_normal(encoder *e, piece part, mgl_error *err) {
  return run_stage(e, 0, part, err);
}

static mgl_status read_raw(encoder *e, piece part, mgl_error *err) {
  piece normal = {.first = part.first};
  MGL_TRY(mgl_normalizer_apply(&e->tokenizer->normalizer, part.text, part.bytes, e->normal,
                               &normal.text, &normal.bytes, err));
  return cut_added(e, &e->tokenizer->added.normal, normal, read_normal, err);
}

static mgl_status append_affix(mgl_token_list *out, const mgl_affix *affix, mgl_error *err) {
  for (size_t i = 0; i < affix->count; i++) {
    MGL_TRY(mgl_token_list_append(out, affix->ids[i], err));
  }
  return MGL_OK;
}

static mgl_status encode(encoder *e, const char *text, size_t bytes, bool add_special,
                         mgl_error *err) {
  if (bytes > MGL_TOKENIZER_MAX_TEXT_BYTES) {
    return mgl_error_set(err, MGL_ERR_LIMIT, "a text of %zu bytes: the limit is %d", bytes,
                         MGL_TOKENIZER_MAX_TEXT_BYTES);
  }
  if (mgl_utf8_valid_prefix(text, bytes) < bytes) {
    mgl_utf8_append_lossy(&e->clean, text, bytes);
    MGL_TRY(mgl_text_check(&e->clean, err));
    text = e->clean.data;
    bytes = e->clean.bytes;
  }
  if (add_special) {
    MGL_TRY(append_affix(e->out, &e->tokenizer->prefix, err));
  }
  piece whole = {text, bytes, true};
  MGL_TRY(cut_added(e, &e->tokenizer->added.raw, whole, read_raw, err));
  return add_special ? append_affix(e->out, &e->tokenizer->suffix, err) : MGL_OK;
}

mgl_status mgl_tokenizer_encode(const mgl_tokenizer *tokenizer, const char *text, size_t bytes,
                                mgl_encode_options options, mgl_token_list *out, mgl_error *err) {
  const mgl_pretokenizer *pretokenizer = &tokenizer->pretokenizer;
  encoder e = {.tokenizer = tokenizer, .plain_special = options.plain_special, .out = out};
  for (size_t i = 0; i < pretokenizer->stage_count; i++) {
    e.byte_level = pretokenizer->stages[i].kind == MGL_STAGE_BYTE_LEVEL;
  }
  size_t count = out->count;
  mgl_status status = encode(&e, text, bytes, options.add_special, err);
  if (status != MGL_OK) {
    out->count = count;
  }
  mgl_bpe_scratch_free(&e.scratch);
  mgl_text_free(&e.clean);
  mgl_text_free(&e.normal[0]);
  mgl_text_free(&e.normal[1]);
  for (size_t i = 0; i < MGL_TOKENIZER_MAX_STEPS; i++) {
    mgl_text_free(&e.staged[i]);
  }
  return status;
}
