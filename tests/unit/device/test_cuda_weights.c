// Where the GPU's weights lie: what the host packs is what ops read, from a checkpoint and made up.
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "base/alloc.h"
#include "device/cpu/cpu_weights.h"
#include "device/cpu/team.h"
#include "device/cuda/cuda_pack.h"
#include "graph/family.h"
#include "model/dummy_weights.h"
#include "support/fake_cuda.h"
#include "support/fake_model.h"
#include "support/write_safetensors.h"

static void write_checkpoint(const char *folder) {
  mgl_graph *graph = fake_model_graph(NULL);
  safetensors_writer writer;
  safetensors_begin(&writer, folder, "model.safetensors");
  for (size_t i = 0; i < graph->tensor_count; i++) {
    const mgl_tensor *t = &graph->tensors[i];
    if (t->placement != MGL_PLACE_WEIGHT) {
      continue;
    }
    uint64_t dims[2] = {t->dims[0].number, t->rank == 2 ? t->dims[1].number : 1};
    size_t count = (size_t)(dims[0] * dims[1]);
    void *data = mgl_alloc(count * 2);
    mgl_dummy_weights_fill(t->name, FAKE_MODEL_SEED, MGL_DTYPE_BF16, t->rank, dims, 0, count, data);
    safetensors_add(&writer, t->name, MGL_DTYPE_BF16, t->rank, dims, data);
    mgl_free(data);
  }
  safetensors_finish(&writer);
  mgl_graph_destroy(graph);
}

// A row of the packed weights of a linear op as the kernels would read it.
static void check_packed(const mgl_cuda_op *op, uint32_t first_block, uint32_t stride,
                         const char *name, uint32_t rows) {
  uint64_t dims[] = {rows, op->k};
  uint16_t *wanted = mgl_alloc((size_t)rows * op->k * 2);
  uint16_t *found = mgl_alloc((size_t)rows * op->k * 2);
  mgl_dummy_weights_fill(name, FAKE_MODEL_SEED, MGL_DTYPE_BF16, 2, dims, 0, (size_t)rows * op->k,
                         wanted);
  mgl_cuda_unpack_rows(op->weights, rows, op->k, first_block, stride, found);
  assert_memory_equal(found, wanted, (size_t)rows * op->k * 2);
  mgl_free(wanted);
  mgl_free(found);
}

static void check_vector(const float *found, const char *name, uint32_t count) {
  uint64_t dims[] = {count};
  for (uint32_t i = 0; i < count; i++) {
    mgl_bf16 stored;
    mgl_dummy_weights_fill(name, FAKE_MODEL_SEED, MGL_DTYPE_BF16, 1, dims, i, i + 1, &stored);
    assert_true(found[i] == mgl_bf16_to_f32(stored));
  }
}

static void check_layer_0(const mgl_cuda_run *run, uint32_t graph) {
  for (uint32_t i = 0, seen = 0; seen < 5; i++) {
    const mgl_cuda_op *op = &run->graphs[graph].ops[i];
    switch (op->kind) {
      case MGL_OP_QKV_PROJ:
        assert_int_equal(op->n, (8 + 2 + 2) * 32);
        assert_int_equal(op->flags, MGL_CUDA_X_NORMED | MGL_CUDA_CARRIED);
        check_packed(op, 0, 1, "model.layers.0.self_attn.q_proj.weight", 256);
        check_packed(op, 32, 1, "model.layers.0.self_attn.k_proj.weight", 64);
        check_packed(op, 40, 1, "model.layers.0.self_attn.v_proj.weight", 64);
        check_vector(op->norm, "model.layers.0.input_layernorm.weight", 256);
        check_vector(op->bias, "model.layers.0.self_attn.q_proj.bias", 256);
        check_vector(op->bias + 256, "model.layers.0.self_attn.k_proj.bias", 64);
        check_vector(op->bias + 320, "model.layers.0.self_attn.v_proj.bias", 64);
        break;
      case MGL_OP_GATE_UP:
        assert_int_equal(op->k, 256);
        assert_int_equal(op->n, 200);
        check_packed(op, 0, 2, "model.layers.0.mlp.gate_proj.weight", 200);
        check_packed(op, 1, 2, "model.layers.0.mlp.up_proj.weight", 200);
        break;
      case MGL_OP_ATTEND:
        assert_true(op->v_cache > op->k_cache);
        assert_null(op->q_norm);
        assert_int_equal(op->x_stride, 384);
        break;
      case MGL_OP_LINEAR_ADD:
        assert_int_equal(op->k, seen < 3 ? 256 : 200);
        assert_int_equal(op->k_padded, 256);
        assert_ptr_not_equal(op->residual, op->out);  // a carrying graph: nothing in place
        check_packed(op, 0, 1,
                     seen < 3 ? "model.layers.0.self_attn.o_proj.weight"
                              : "model.layers.0.mlp.down_proj.weight",
                     256);
        break;
      default: continue;
    }
    seen++;
  }
}

static void check_ends(const mgl_cuda_run *run, uint32_t graph, uint32_t op_count) {
  for (uint32_t i = 0; i < op_count; i++) {
    const mgl_cuda_op *op = &run->graphs[graph].ops[i];
    if (op->kind == MGL_OP_LOGITS) {
      check_packed(op, 0, 1, "model.embed_tokens.weight", 512);
      check_vector(op->norm, "model.norm.weight", 256);
      assert_int_equal(op->n, 512);
    } else if (op->kind == MGL_OP_EMBED) {
      uint64_t dims[] = {512, 256};
      uint16_t *wanted = mgl_alloc(512 * 256 * 2);
      mgl_dummy_weights_fill("model.embed_tokens.weight", FAKE_MODEL_SEED, MGL_DTYPE_BF16, 2, dims,
                             0, 512 * 256, wanted);
      assert_memory_equal(op->weights, wanted, 512 * 256 * 2);
      mgl_free(wanted);
    } else if (op->kind == MGL_OP_ROPE_ANGLES) {
      assert_true(op->angles[0] == 1.0f && op->angles[15] < 1e-3f);
    } else if (op->kind == MGL_OP_SAMPLE) {
      assert_int_equal(op->n, 512);
      assert_non_null(op->x);
    }
  }
}

static void weights_lie_where_ops_read_them(void **state) {
  (void)state;
  mgl_error err = {0};
  temp_folder folder;
  mgl_checkpoint *checkpoint = NULL;
  temp_folder_create(&folder);
  write_checkpoint(folder.path);
  assert_int_equal(mgl_checkpoint_open(folder.path, &checkpoint, &err), MGL_OK);
  mgl_cuda_device device = fake_cuda_device();
  const int32_t prompt[] = {1, 2, 3};
  mgl_cuda_request request = {.prompt = prompt, .prompt_count = 3, .max_new_tokens = 6};
  mgl_cuda_generate job = {.requests = &request, .request_count = 1};
  for (int stored = 0; stored < 2; stored++) {
    mgl_cuda_program_options options = {.sizes.limits.tokens = 16,
                                        .sizes.sequences = 4,
                                        .sizes.limits.pages_per_sequence = 8,
                                        .checkpoint = stored != 0 ? checkpoint : NULL};
    mgl_cuda_program *program = fake_model_program(&device, options);
    assert_int_equal(mgl_cuda_program_generate(program, &job, &err), MGL_OK);
    uint32_t ops = (uint32_t)mgl_cuda_program_fused(program)->op_count;
    for (uint32_t graph = 0; graph < 5; graph++) {
      check_layer_0(fake.run, graph);
      check_ends(fake.run, graph, ops);
      assert_int_equal(fake.run->graphs[graph].tokens, 1u << graph);
    }
    mgl_cuda_program_destroy(program);
    assert_int_equal(fake.live, 0);
  }
  mgl_checkpoint_close(checkpoint);
  temp_folder_remove(&folder);
}

// --- experts -------------------------------------------------------------------------------------

enum { EXPERTS = 24, SLOTS = 8, INNER = 128, WIDTH = 1024 };

static const char mixture_json[] =
    "{\"architectures\":[\"Qwen3MoeForCausalLM\"],\"model_type\":\"qwen3_moe\",\"vocab_size\":512,"
    "\"hidden_size\":1024,\"intermediate_size\":640,\"moe_intermediate_size\":128,"
    "\"num_experts\":24,\"num_experts_per_tok\":8,\"norm_topk_prob\":true,\"decoder_sparse_step\":"
    "1,"
    "\"mlp_only_layers\":[],\"num_hidden_layers\":1,\"num_attention_heads\":4,"
    "\"num_key_value_heads\":2,\"head_dim\":32,\"max_position_embeddings\":1024,"
    "\"rms_norm_eps\":1e-6,\"rope_theta\":10000,\"tie_word_embeddings\":true,"
    "\"torch_dtype\":\"bfloat16\",\"hidden_act\":\"silu\"}";

static const char coded_json[] =
    "{\"architectures\":[\"Qwen3MoeForCausalLM\"],\"model_type\":\"qwen3_moe\",\"vocab_size\":512,"
    "\"hidden_size\":1024,\"intermediate_size\":640,\"moe_intermediate_size\":128,"
    "\"num_experts\":24,\"num_experts_per_tok\":8,\"norm_topk_prob\":true,\"decoder_sparse_step\":"
    "1,"
    "\"mlp_only_layers\":[],\"num_hidden_layers\":1,\"num_attention_heads\":4,"
    "\"num_key_value_heads\":2,\"head_dim\":32,\"max_position_embeddings\":1024,"
    "\"rms_norm_eps\":1e-6,\"rope_theta\":10000,\"tie_word_embeddings\":true,"
    "\"torch_dtype\":\"bfloat16\",\"hidden_act\":\"silu\",\"quantization_config\":{"
    "\"quant_method\":\"fp8\",\"weight_block_size\":[128,128]}}";

// An expert's matrix where the loader looks for it: behind those of the experts before.
static void check_expert(const mgl_cuda_op *op, uint32_t expert, uint32_t rows, uint32_t k,
                         uint32_t half, bool paired, const char *matrix) {
  char name[96];
  const uint64_t bytes = (uint64_t)rows * k * 2 * (paired ? 2 : 1);
  mgl_cuda_op one = *op;
  one.k = k;
  one.weights = op->weights + expert * bytes;
  (void)snprintf(name, sizeof name, "model.layers.0.mlp.experts.%u.%s.weight", expert, matrix);
  check_packed(&one, half, paired ? 2 : 1, name, rows);
}

static void check_experts(const mgl_cuda_run *run, uint32_t graph, uint32_t op_count) {
  uint32_t seen = 0;
  for (uint32_t i = 0; i < op_count; i++) {
    const mgl_cuda_op *op = &run->graphs[graph].ops[i];
    if ((op->flags & MGL_CUDA_EXPERTS) == 0) {
      continue;
    }
    const bool up = op->kind == MGL_OP_GATE_UP;
    assert_int_equal(op->kind, up ? MGL_OP_GATE_UP : MGL_OP_LINEAR_ADD);
    assert_int_equal(op->k, up ? WIDTH : SLOTS * INNER);
    assert_int_equal(op->n, up ? SLOTS * INNER : WIDTH);
    assert_ptr_equal(op->angles, run->graphs[graph].ops[i - (up ? 1 : 2)].out);
    for (uint32_t expert = 0; expert < EXPERTS; expert += 23) {
      if (up) {
        check_expert(op, expert, INNER, WIDTH, 0, true, "gate_proj");
        check_expert(op, expert, INNER, WIDTH, 1, true, "up_proj");
      } else {
        check_expert(op, expert, WIDTH, INNER, 0, false, "down_proj");
      }
    }
    seen++;
  }
  assert_int_equal(seen, 2);
}

// The panels of an expert, from the rows that the host makes of it.
static void check_expert_panels(const mgl_cuda_program *program, const mgl_cuda_op *op,
                                const mgl_cpu_weights *weights, const char *matrix, uint32_t expert,
                                uint32_t half, bool paired) {
  const mgl_graph *fused = mgl_cuda_program_fused(program);
  char name[96];
  (void)snprintf(name, sizeof name, "model.layers.0.mlp.experts.%s.weight", matrix);
  const uint32_t tensor = mgl_graph_find(fused, name);
  const mgl_tensor *w = &fused->tensors[tensor];
  const uint32_t rows = w->dims[1].number, k = w->dims[2].number;
  const mgl_row_layout layout = mgl_row_layout_of(mgl_tensor_form(w), k);
  const void *const *table = weights->data[tensor];
  const mgl_code_rows m = {.rows = table[expert],
                           .row_count = rows,
                           .row_bytes = (uint32_t)layout.bytes,
                           .scales = (uint32_t)layout.scales,
                           .k = k,
                           .group = w->group};
  const size_t bytes = (size_t)rows / 16 * (paired ? 2 : 1) * mgl_op_panel_bytes(op);
  assert_int_equal(mgl_op_packing(op), MGL_PACKING_E4M3);
  assert_int_equal(mgl_panels_of(k), 1);
  uint8_t *wanted = mgl_alloc(bytes);
  assert_non_null(wanted);
  memcpy(wanted, op->weights + expert * bytes, bytes);  // of gate and up, one half is the other's
  for (uint32_t u = 0; u < 2; u++) {
    mgl_pack_codes_share((mgl_place){0, 1, 0, 1}, MGL_PACKING_E4M3, m, u, half, paired ? 2 : 1,
                         wanted);
  }
  assert_memory_equal(op->weights + expert * bytes, wanted, bytes);
  mgl_free(wanted);
}

static void check_coded_experts(const mgl_cuda_program *program, uint32_t op_count) {
  mgl_topology *topology = NULL;
  mgl_team *team = NULL;
  mgl_cpu_weights weights = {0};
  mgl_error err = {0};
  uint32_t seen = 0;
  assert_int_equal(mgl_topology_create(&topology, &err), MGL_OK);
  assert_int_equal(mgl_team_create(topology, 1, &team, &err), MGL_OK);
  assert_int_equal(mgl_cpu_weights_bind(mgl_cuda_program_fused(program), NULL, MGL_WEIGHTS_DUMMY,
                                        FAKE_MODEL_SEED, team, NULL, NULL, &weights, &err),
                   MGL_OK);
  for (uint32_t i = 0; i < op_count; i++) {
    const mgl_cuda_op *op = &fake.run->graphs[0].ops[i];
    if ((op->flags & MGL_CUDA_EXPERTS) == 0) {
      continue;
    }
    for (uint32_t expert = 0; expert < EXPERTS; expert += 23) {
      if (op->kind == MGL_OP_GATE_UP) {
        check_expert_panels(program, op, &weights, "gate_proj", expert, 0, true);
        check_expert_panels(program, op, &weights, "up_proj", expert, 1, true);
      } else {
        check_expert_panels(program, op, &weights, "down_proj", expert, 0, false);
      }
    }
    seen++;
  }
  mgl_cpu_weights_release(&weights);
  mgl_team_destroy(team);
  mgl_topology_destroy(topology);
  assert_int_equal(seen, 2);
}

// Rows of the router are those that are drawn, times what the routing says.
static void check_router(uint32_t op_count, mgl_routing routing) {
  const char *name = "model.layers.0.mlp.gate.weight";
  const uint64_t dims[] = {EXPERTS, WIDTH};
  const size_t count = (size_t)EXPERTS * WIDTH;
  uint16_t *drawn = mgl_alloc(count * sizeof *drawn), *found = mgl_alloc(count * sizeof *found);
  uint32_t router = 0;
  assert_true(drawn != NULL && found != NULL);
  while (router + 1 < op_count &&
         (fake.run->graphs[0].ops[router + 1].flags & MGL_CUDA_EXPERTS) == 0) {
    router++;
  }
  mgl_dummy_weights_fill(name, FAKE_MODEL_SEED, MGL_DTYPE_BF16, 2, dims, 0, count, drawn);
  mgl_cuda_unpack_rows(fake.run->graphs[0].ops[router].weights, EXPERTS, WIDTH, 0, 1, found);
  for (size_t i = 0; i < count; i++) {
    const float factor = routing == MGL_ROUTING_UNIFORM ? 1
                         : routing == MGL_ROUTING_ONE
                             ? 0
                             : 1 / (1 + 8 * (float)(i / WIDTH) / (float)EXPERTS);
    const float wanted = mgl_bf16_to_f32(drawn[i]) * factor;
    assert_true(fabsf(mgl_bf16_to_f32(found[i]) - wanted) <= fabsf(wanted) * 0x1p-8f);
  }
  mgl_free(drawn);
  mgl_free(found);
}

static void check_mixture(const char *json, mgl_routing routing, bool coded) {
  fake.codes = coded;
  mgl_error err = {0};
  mgl_config config;
  mgl_generation generation;
  mgl_graph *graph = NULL;
  mgl_cuda_program *program = NULL;
  mgl_cuda_device device = fake_cuda_device();
  const int32_t prompt[] = {1, 2, 3};
  mgl_cuda_request request = {.prompt = prompt, .prompt_count = 3, .max_new_tokens = 3};
  mgl_cuda_generate job = {.requests = &request, .request_count = 1};
  assert_int_equal(mgl_config_parse(json, strlen(json), "test", &config, &generation, &err),
                   MGL_OK);
  assert_int_equal(mgl_family_build(&config, NULL, &graph, &err), MGL_OK);
  const mgl_cuda_program_options options = {.program = graph,
                                            .build.seed = FAKE_MODEL_SEED,
                                            .build.routing = routing,
                                            .get_code = fake_cuda_code,
                                            .sizes.limits.tokens = 16,
                                            .sizes.sequences = 2,
                                            .sizes.limits.pages_per_sequence = 4};
  if (mgl_cuda_program_create(&device, &options, &program, &err) != MGL_OK) {
    fail_msg("%s", err.text);
  }
  assert_int_equal(mgl_cuda_program_generate(program, &job, &err), MGL_OK);
  uint32_t ops = (uint32_t)mgl_cuda_program_fused(program)->op_count;
  check_router(ops, routing);
  if (coded) {
    check_coded_experts(program, ops);
  } else {
    check_experts(fake.run, 0, ops);
    check_experts(fake.run, 4, ops);
  }
  mgl_cuda_program_destroy(program);
  mgl_graph_destroy(graph);
  assert_int_equal(fake.live, 0);
}

static void experts_lie_one_behind_the_other(void **state) {
  (void)state;
  check_mixture(mixture_json, MGL_ROUTING_UNIFORM, false);
  check_mixture(mixture_json, MGL_ROUTING_ONE, false);
  check_mixture(coded_json, MGL_ROUTING_SKEWED, true);
  fake.codes = false;
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(weights_lie_where_ops_read_them),
                                     cmocka_unit_test(experts_lie_one_behind_the_other)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
