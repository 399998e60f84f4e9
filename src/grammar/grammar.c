#include "grammar/grammar.h"

#include <stdatomic.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/json.h"
#include "grammar/ebnf.h"
#include "grammar/json_schema.h"
#include "grammar/parts.h"
#include "grammar/regex.h"

struct mgl_grammar {
  atomic_uint references;
  mgl_automaton *automaton;
  mgl_vocabulary *vocabulary;
  mgl_mask_maker *masks;
};

// --- front ends ----------------------------------------------------------------------------------

static const mgl_expression *expression_of_json(mgl_builder *b, const mgl_grammar_source *source,
                                                const mgl_tokenizer *tokenizer) {
  json_t *json = NULL;
  mgl_json_rules rules;
  const mgl_expression *e = NULL;
  if (mgl_json_parse(source->text, source->bytes, "grammar", &json, &b->error) != MGL_OK) {
    return NULL;
  }
  if (source->kind == MGL_GRAMMAR_CHOICE) {
    e = mgl_choice_expression(b, json);
  } else {
    mgl_json_rules_init(&rules, b);
    e = source->kind == MGL_GRAMMAR_JSON_SCHEMA ? mgl_json_schema_expression(b, &rules, json)
                                                : mgl_parts_expression(b, &rules, tokenizer, json);
  }
  json_decref(json);
  return e;
}

static const mgl_expression *expression_of(mgl_builder *b, const mgl_grammar_source *source,
                                           const mgl_tokenizer *tokenizer) {
  mgl_json_rules rules;
  switch (source->kind) {
    case MGL_GRAMMAR_JSON_SCHEMA:
    case MGL_GRAMMAR_CHOICE:
    case MGL_GRAMMAR_PARTS: return expression_of_json(b, source, tokenizer);
    case MGL_GRAMMAR_JSON_OBJECT: mgl_json_rules_init(&rules, b); return rules.object;
    case MGL_GRAMMAR_REGEX:
      return mgl_regex_parse(b, source->text, source->bytes, (mgl_regex_options){0});
    case MGL_GRAMMAR_EBNF: return mgl_ebnf_parse(b, source->text, source->bytes);
  }
  return NULL;
}

static mgl_status compile(const mgl_grammar_source *source, const mgl_tokenizer *tokenizer,
                          mgl_automaton **out, mgl_error *err) {
  mgl_builder b = {.deadline_ns = mgl_clock_ns() + MGL_GRAMMAR_COMPILE_MS * UINT64_C(1000000)};
  mgl_status status = MGL_OK;
  if (source->bytes > MGL_GRAMMAR_MAX_TEXT_BYTES) {
    return mgl_error_set(err, MGL_ERR_LIMIT, "expected a grammar of at most %d bytes, found %zu",
                         MGL_GRAMMAR_MAX_TEXT_BYTES, source->bytes);
  }
  const mgl_expression *e = expression_of(&b, source, tokenizer);
  uint32_t root = e == NULL ? UINT32_MAX : mgl_rule_add(&b, "root");
  mgl_rule_set(&b, root, e);
  if (b.error.status != MGL_OK) {
    status = mgl_error_set(err, b.error.status, "%s", b.error.text);
  } else {
    status = mgl_automaton_compile(&b, root, out, err);
  }
  mgl_builder_free(&b);
  return status;
}

// Whether a text can begin at all, and in not too many places at once.
static mgl_status check_begin(const mgl_automaton *automaton, mgl_error *err) {
  mgl_matcher matcher;
  MGL_TRY(mgl_matcher_init(&matcher, automaton, err));
  mgl_matcher_reset(&matcher);
  return MGL_OK;
}

// -------------------------------------------------------------------------------------------------

mgl_status mgl_grammar_compile(const mgl_grammar_source *source, mgl_vocabulary *vocabulary,
                               const mgl_tokenizer *tokenizer, mgl_grammar **out, mgl_error *err) {
  mgl_grammar *g = mgl_alloc_zeroed(1, sizeof *g);
  *out = NULL;
  if (g == NULL) {
    return mgl_error_set(err, MGL_ERR_MEMORY, "out of memory for a grammar");
  }
  atomic_init(&g->references, 1);
  mgl_status status = compile(source, tokenizer, &g->automaton, err);
  if (status == MGL_OK) {
    status = check_begin(g->automaton, err);
  }
  if (status == MGL_OK) {
    status = mgl_mask_maker_create(g->automaton, vocabulary, &g->masks, err);
  }
  if (status != MGL_OK) {
    mgl_grammar_release(g);
    return status;
  }
  mgl_mask_warm(g->masks, MGL_GRAMMAR_WARM_MS * UINT64_C(1000000));
  g->vocabulary = vocabulary;
  mgl_vocabulary_keep(vocabulary);
  *out = g;
  return MGL_OK;
}

void mgl_grammar_keep(mgl_grammar *g) {
  // Relaxed: whoever keeps it holds a reference already.
  (void)atomic_fetch_add_explicit(&g->references, 1, memory_order_relaxed);
}

void mgl_grammar_release(mgl_grammar *g) {
  // acq_rel: the last one sees all that others did with it before they let go.
  if (g != NULL && atomic_fetch_sub_explicit(&g->references, 1, memory_order_acq_rel) == 1) {
    mgl_mask_maker_destroy(g->masks);
    mgl_automaton_destroy(g->automaton);
    mgl_vocabulary_release(g->vocabulary);
    mgl_free(g);
  }
}

const mgl_automaton *mgl_grammar_automaton(const mgl_grammar *g) {
  return g->automaton;
}

const mgl_vocabulary *mgl_grammar_vocabulary(const mgl_grammar *g) {
  return g->vocabulary;
}

mgl_mask_maker *mgl_grammar_masks(mgl_grammar *g) {
  return g->masks;
}

size_t mgl_grammar_bytes(const mgl_grammar *g) {
  const mgl_automaton *a = g->automaton;
  return a->state_count * sizeof *a->states + a->byte_edge_count * sizeof *a->byte_edges +
         a->free_edge_count * sizeof *a->free_edges + a->rule_count * sizeof *a->starts;
}
