// KV caches of 8 bits in programs: which scales of a checkpoint they get, in every spelling, what is
// refused, and the text form.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include <math.h>

#include "graph/kv_cache.h"
#include "model/safetensors.h"
#include "support/programs.h"
#include "support/temp_folder.h"
#include "support/write_safetensors.h"

#define LAYER0 "model.layers.0.self_attn."
#define LAYER1 "model.layers.1.self_attn."

typedef struct stored {
  const char *name;
  mgl_dtype dtype;
  uint64_t count;  // of elements; 0: a scalar
  float value;     // of all
} stored;

// A checkpoint of these tensors, the last of which has no name.
static mgl_checkpoint *checkpoint_of(const temp_folder *folder, const stored *tensors) {
  mgl_checkpoint *checkpoint = NULL;
  safetensors_writer writer;
  safetensors_begin(&writer, folder->path, "model.safetensors");
  for (; tensors->name != NULL; tensors++) {
    uint8_t data[4 * sizeof(float)];
    const uint64_t count = tensors->count == 0 ? 1 : tensors->count;
    for (uint64_t i = 0; i < count; i++) {
      const mgl_bf16 rounded = mgl_f32_to_bf16(tensors->value);
      if (tensors->dtype == MGL_DTYPE_BF16) {
        memcpy(data + i * sizeof rounded, &rounded, sizeof rounded);
      } else {
        memcpy(data + i * sizeof(float), &tensors->value, sizeof(float));
      }
    }
    safetensors_add(&writer, tensors->name, tensors->dtype, tensors->count == 0 ? 0 : 1,
                    &tensors->count, data);
  }
  safetensors_finish(&writer);
  MUST(mgl_checkpoint_open(folder->path, &checkpoint, &err));
  return checkpoint;
}

static const mgl_tensor *cache_of(const mgl_graph *graph, const char *name) {
  const uint32_t at = mgl_graph_find(graph, name);
  assert_int_not_equal(at, MGL_NO_TENSOR);
  return &graph->tensors[at];
}

static mgl_status set_by(mgl_graph *graph, const mgl_quantization *quantization,
                         const stored *tensors, mgl_error *err) {
  temp_folder folder;
  temp_folder_create(&folder);
  mgl_checkpoint *checkpoint = checkpoint_of(&folder, tensors);
  mgl_status status = mgl_graph_set_kv(graph, MGL_KV_FP8, quantization, checkpoint, err);
  mgl_checkpoint_close(checkpoint);
  temp_folder_remove(&folder);
  return status;
}

static void every_spelling_of_scales_is_read(void **state) {
  (void)state;
  static const char *const spellings[][2] = {
      {"k_scale", "v_scale"},
      {"attn.k_scale", "attn.v_scale"},
      {"k_proj.k_scale", "v_proj.v_scale"},
      {"k_proj.output_scale", "v_proj.output_scale"},
      {"kv_scale", "kv_scale"},
  };
  const mgl_config config = small_config(MGL_FAMILY_LLAMA);
  const mgl_quantization none = {0};
  for (size_t i = 0; i < sizeof spellings / sizeof *spellings; i++) {
    char k[128], v[128];
    const bool one = strcmp(spellings[i][0], spellings[i][1]) == 0;
    (void)snprintf(k, sizeof k, LAYER1 "%s", spellings[i][0]);
    (void)snprintf(v, sizeof v, LAYER1 "%s", spellings[i][1]);
    // Layer 0 has none.
    const stored tensors[] = {{k, i % 2 ? MGL_DTYPE_BF16 : MGL_DTYPE_F32, i % 3 ? 0 : 1, 0.5f},
                              {one ? NULL : v, MGL_DTYPE_F32, 0, 0.0123f},
                              {.name = NULL}};
    mgl_graph *graph = build_program(&config);
    assert_false(mgl_graph_has_kv8(graph));
    MUST(set_by(graph, &none, tensors, &err));
    assert_true(mgl_graph_has_kv8(graph));
    assert_int_equal(cache_of(graph, "kv.0")->dtype, MGL_DTYPE_KV8);
    assert_true(cache_of(graph, "kv.0")->k_scale == 1 && cache_of(graph, "kv.0")->v_scale == 1);
    assert_int_equal(cache_of(graph, "kv.1")->dtype, MGL_DTYPE_KV8);
    assert_true(cache_of(graph, "kv.1")->k_scale == 0.5f);
    assert_true(cache_of(graph, "kv.1")->v_scale == (one ? 0.5f : 0.0123f));
    // What is printed is what is read again.
    mgl_text text = {0}, again = {0};
    mgl_graph_print(graph, &text);
    mgl_graph *parsed = parse_program(text.data);
    assert_true(cache_of(parsed, "kv.1")->k_scale == 0.5f);
    mgl_graph_print(parsed, &again);
    assert_string_equal(text.data, again.data);
    assert_non_null(strstr(text.data, "kv kv.0 e4m3[2,32]\n"));
    assert_non_null(strstr(text.data, "kv kv.1 e4m3[2,32] k_scale=0.5 v_scale="));
    mgl_text_free(&text);
    mgl_text_free(&again);
    mgl_graph_destroy(parsed);
    mgl_graph_destroy(graph);
  }
}

static void scales_that_make_no_sense_are_refused(void **state) {
  (void)state;
  static const struct {
    stored tensors[3];
    const char *message;
  } cases[] = {
      {{{LAYER0 "k_scale", MGL_DTYPE_F32, 0, 1}, {.name = NULL}},
       "\"" LAYER0 "k_scale\": expected \"" LAYER0 "v_scale\" with it"},
      {{{LAYER1 "v_scale", MGL_DTYPE_F32, 0, 1}, {.name = NULL}},
       "expected \"" LAYER1 "k_scale\" with it"},
      {{{LAYER0 "k_scale", MGL_DTYPE_F32, 2, 1}, {LAYER0 "v_scale", MGL_DTYPE_F32, 2, 1}},
       "expected one scale for the layer's KV cache, found F32 of 1 dims and 8 bytes"},
      {{{LAYER0 "k_scale", MGL_DTYPE_F32, 0, -1}, {LAYER0 "v_scale", MGL_DTYPE_F32, 0, 1}},
       "k_scale\": expected a positive scale, found -1"},
      {{{LAYER0 "k_scale", MGL_DTYPE_F32, 0, 1}, {LAYER0 "v_scale", MGL_DTYPE_F32, 0, 0}},
       "v_scale\": expected a positive scale, found 0"},
      {{{LAYER1 "k_scale", MGL_DTYPE_F32, 1, NAN}, {LAYER1 "v_scale", MGL_DTYPE_F32, 0, 1}},
       "expected a positive scale, found nan"},
      {{{LAYER1 "k_scale", MGL_DTYPE_F32, 1, INFINITY}, {LAYER1 "v_scale", MGL_DTYPE_F32, 0, 1}},
       "expected a positive scale, found inf"},
      {{{LAYER1 "k_scale", MGL_DTYPE_I32, 1, 1}, {LAYER1 "v_scale", MGL_DTYPE_F32, 0, 1}},
       "k_scale\""},
      {{{LAYER0 "v_zero_point", MGL_DTYPE_F32, 1, 1}, {.name = NULL}},
       "a KV cache with zero points is not supported"},
  };
  const mgl_config config = small_config(MGL_FAMILY_LLAMA);
  const mgl_quantization none = {0};
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    mgl_graph *graph = build_program(&config);
    mgl_error err = {0};
    assert_int_not_equal(set_by(graph, &none, cases[i].tensors, &err), MGL_OK);
    if (strstr(err.text, cases[i].message) == NULL) {
      fail_msg("expected \"%s\", found \"%s\"", cases[i].message, err.text);
    }
    mgl_graph_destroy(graph);
  }
}

// Of a config that says that scales are for something else, as far as a cache in FP8 is asked for.
static void schemes_of_another_kind_are_refused(void **state) {
  (void)state;
  static const struct {
    const char *scheme;
    bool is_other;
  } cases[] = {
      {"", false},
      {"\"kv_cache_scheme\": null, ", false},
      {"\"kv_cache_scheme\": {\"num_bits\": 8, \"type\": \"float\", \"strategy\": \"tensor\"}, ",
       false},
      {"\"kv_cache_scheme\": {\"num_bits\": 8, \"type\": \"float\", \"dynamic\": false}, ", false},
      {"\"kv_cache_quant_algo\": \"FP8\", ", false},
      {"\"kv_cache_scheme\": {\"num_bits\": 8, \"type\": \"int\"}, ", true},
      {"\"kv_cache_scheme\": {\"num_bits\": 4, \"type\": \"float\"}, ", true},
      {"\"kv_cache_scheme\": {\"num_bits\": 8, \"strategy\": \"attn_head\"}, ", true},
      {"\"kv_cache_quant_algo\": \"NVFP4\", ", true},
      {"\"kv_cache_scheme\": \"NVFP4\", ", true},
  };
  const mgl_config config = small_config(MGL_FAMILY_LLAMA);
  const stored none[] = {{.name = "other", .dtype = MGL_DTYPE_F32}, {.name = NULL}};
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    char text[256];
    mgl_quantization quantization = {0};
    json_t *root = NULL;
    (void)snprintf(text, sizeof text,
                   "{\"quantization_config\": {%s\"quant_method\": \"modelopt\"}}",
                   cases[i].scheme);
    MUST(mgl_json_parse(text, strlen(text), "config.json", &root, &err));
    const mgl_json_object o = {.object = root, .where = "config.json"};
    MUST(mgl_quantization_read(o, &quantization, &err));
    json_decref(root);
    assert_int_equal(quantization.kv_of_another_kind, cases[i].is_other);
    mgl_graph *graph = build_program(&config);
    mgl_error err = {0};
    mgl_status status = set_by(graph, &quantization, none, &err);
    assert_int_equal(status, cases[i].is_other ? MGL_ERR_UNSUPPORTED : MGL_OK);
    assert_true(!cases[i].is_other || strstr(err.text, "leave --kv-dtype out") != NULL);
    mgl_graph_destroy(graph);
  }
}

static void the_text_form_takes_scales_of_such_caches_only(void **state) {
  (void)state;
  static const char *const wrong[] = {
      "program p\nkv kv.0 e4m3[2,32] k_scale=0\n",
      "program p\nkv kv.0 e4m3[2,32] k_scale=-1\n",
      "program p\nkv kv.0 e4m3[2,32] k_scale=nan\n",
      "program p\nkv kv.0 e4m3[2,32] v_scale=inf\n",
      "program p\nkv kv.0 e4m3[2,32] v_scale=\n",
      "program p\nkv kv.0 e4m3[2,32] v_scale=1 k_scale=1\n",
      "program p\nkv kv.0 bf16[2,32] k_scale=1\n",
      "program p\nkv kv.0 e4m3.32[2,32]\n",
      "program p\nkv kv.0 i8[2,32]\n",
      "program p\nweight w e4m3[2,32]\n",
      "program p\ninput x e4m3[T]\n",
  };
  for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
    mgl_graph *graph = NULL;
    mgl_error err = {0};
    if (mgl_graph_parse(wrong[i], strlen(wrong[i]), "test", &graph, &err) == MGL_OK) {
      fail_msg("accepted: %s", wrong[i]);
    }
    assert_non_null(strstr(err.text, "test line 2: "));
  }
}

static void names_are_parsed(void **state) {
  (void)state;
  mgl_kv_dtype dtype = MGL_KV_DTYPE_COUNT;
  MUST(mgl_kv_dtype_parse("auto", &dtype, &err));
  assert_int_equal(dtype, MGL_KV_AUTO);
  MUST(mgl_kv_dtype_parse("fp8", &dtype, &err));
  assert_int_equal(dtype, MGL_KV_FP8);
  MUST(mgl_kv_dtype_parse("fp8_e4m3", &dtype, &err));
  assert_int_equal(dtype, MGL_KV_FP8);
  mgl_error err = {0};
  assert_int_equal(mgl_kv_dtype_parse("fp8_e5m2", &dtype, &err), MGL_ERR_ARGUMENT);
  assert_non_null(strstr(err.text, "expected \"auto\" or \"fp8\" (E4M3), found \"fp8_e5m2\""));
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(every_spelling_of_scales_is_read),
      cmocka_unit_test(scales_that_make_no_sense_are_refused),
      cmocka_unit_test(schemes_of_another_kind_are_refused),
      cmocka_unit_test(the_text_form_takes_scales_of_such_caches_only),
      cmocka_unit_test(names_are_parsed),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
