// Experts in their files: neither opening, binding nor running a mixture reads the pages of experts
// that no token chose. Those pages are taken away, and everything goes on with the same bits.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/dtype.h"
#include "base/simd.h"
#include "base/topology.h"
#include "device/cpu/cpu_eager.h"
#include "device/cpu/cpu_program.h"
#include "graph/graph_text.h"
#include "model/checkpoint.h"
#include "model/expert_weights.h"
#include "support/must.h"
#include "support/temp_folder.h"
#include "support/write_safetensors.h"

enum { D = 64, F = 256, EXPERTS = 12, SLOTS = 2, TOKENS = 3, VOCABULARY = 32 };

static const char program_text[] =
    "program pages\ninput tokens i32[T]\n"
    "weight table bf16[32,64]\nweight norm bf16[64]\nweight router bf16[12,64]\n"
    "weight l.experts.gate bf16[12,256,64]\nweight l.experts.up bf16[12,256,64]\n"
    "weight l.experts.down bf16[12,64,256]\n"
    "x = embed(tokens, table) : f32[T,64]\n"
    "n = rmsnorm(x, norm) eps=1e-6 : bf16[T,64]\n"
    "logits = linear(n, router) : f32[T,12]\n"
    "routes = route(logits) scale=1 renormalise=1 : f32[T,2,2]\n"
    "h = expert_gate_up(n, routes, l.experts.gate, l.experts.up) : bf16[2T,256]\n"
    "y = expert_down(x, h, routes, l.experts.down) : f32[T,64]\noutput routes\noutput y\n";

static const char *const parts[] = {"l.experts.gate", "l.experts.up", "l.experts.down"};

static void add(safetensors_writer *writer, const char *name, uint64_t rows, uint64_t columns) {
  const uint64_t dims[] = {rows, columns};
  const uint32_t rank = columns == 0 ? 1 : 2;
  uint16_t *values = malloc(rows * (columns == 0 ? 1 : columns) * sizeof *values);
  uint32_t state = (uint32_t)strlen(name) * 2654435761u + (uint32_t)name[strlen(name) / 2];
  assert_non_null(values);
  for (uint64_t i = 0; i < rows * (columns == 0 ? 1 : columns); i++) {
    state = state * 1664525u + 1013904223u;
    values[i] = mgl_f32_to_bf16(columns == 0 ? 1 : (float)((int32_t)state >> 8) / (1 << 25));
  }
  safetensors_add(writer, name, MGL_DTYPE_BF16, rank, dims, values);
  free(values);
}

static void write_model(const temp_folder *folder) {
  safetensors_writer writer;
  safetensors_begin(&writer, folder->path, "model.safetensors");
  add(&writer, "table", VOCABULARY, D);
  add(&writer, "norm", D, 0);
  add(&writer, "router", EXPERTS, D);
  for (uint32_t e = 0; e < EXPERTS; e++) {
    for (int i = 0; i < 3; i++) {
      char name[64];
      mgl_expert_weight_name(parts[i], e, name, sizeof name);
      add(&writer, name, i == 2 ? D : F, i == 2 ? F : D);
    }
  }
  safetensors_finish(&writer);
}

typedef struct answer {
  bool chosen[EXPERTS];
  float y[TOKENS * D];
} answer;

// The whole pages of an expert's matrix in the mapping.
static size_t pages_of(const mgl_checkpoint *checkpoint, uint32_t expert, int part, char **first) {
  const size_t page = (size_t)sysconf(_SC_PAGESIZE);
  const mgl_stored_tensor *stored = NULL;
  char name[64];
  mgl_expert_weight_name(parts[part], expert, name, sizeof name);
  MUST(mgl_checkpoint_find(checkpoint, name, &stored, &err));
  const uintptr_t begin = ((uintptr_t)stored->data + page - 1) / page * page;
  const uintptr_t end = ((uintptr_t)stored->data + stored->bytes) / page * page;
  *first = (char *)begin;
  return end > begin ? (end - begin) / page : 0;
}

// Opens, binds and runs. Where `forbidden` is given, pages of experts that it did not choose are
// taken away behind opening; the number of them goes to *taken.
static void run(const temp_folder *folder, const answer *forbidden, uint32_t *taken, answer *out) {
  static const int32_t pages[] = {0};
  static const int32_t tokens[TOKENS] = {3, 9, 30};
  const mgl_plan_limits limits = {
      .tokens = TOKENS, .sequences = TOKENS, .pages_per_sequence = 1, .page_tokens = 16};
  const mgl_cpu_memory_options memory_options = {.page_tokens = 16, .page_count = 1, .workers = 1};
  const mgl_cpu_program_options options = {.simd = mgl_simd_detected(),
                                           .largest = {TOKENS, TOKENS, TOKENS}};
  mgl_checkpoint *checkpoint = NULL;
  mgl_graph *graph = NULL;
  mgl_topology *topology = NULL;
  mgl_team *team = NULL;
  mgl_cpu_weights weights;
  mgl_cpu_memory *memory = NULL;
  mgl_cpu_program *program = NULL;
  mgl_plan *plan = NULL;
  MUST(mgl_checkpoint_open(folder->path, &checkpoint, &err));
  for (uint32_t e = 0; forbidden != NULL && e < EXPERTS; e++) {
    for (int i = 0; !forbidden->chosen[e] && i < 3; i++) {
      char *first = NULL;
      const size_t count = pages_of(checkpoint, e, i, &first);
      assert_true(count > 0);
      assert_int_equal(mprotect(first, count * (size_t)sysconf(_SC_PAGESIZE), PROT_NONE), 0);
      *taken += (uint32_t)count;
    }
  }
  MUST(mgl_graph_parse(program_text, strlen(program_text), "text", &graph, &err));
  MUST(mgl_topology_create(&topology, &err));
  MUST(mgl_team_create(topology, 1, &team, &err));
  MUST(mgl_cpu_weights_bind(graph, checkpoint, MGL_WEIGHTS_MAPPED, 0, team, topology, NULL,
                            &weights, &err));
  MUST(mgl_cpu_memory_create(&weights, &memory_options, topology, &memory, &err));
  MUST(mgl_cpu_program_create(graph, memory, &options, &program, &err));
  MUST(mgl_plan_create(&limits, &plan, &err));
  for (uint32_t t = 0; t < TOKENS; t++) {
    mgl_plan_add(plan, &(mgl_plan_chunk){.tokens = &tokens[t],
                                         .token_count = 1,
                                         .pages = pages,
                                         .page_count = 1,
                                         .logits = MGL_LOGITS_NONE});
  }
  mgl_cpu_eager_run(program, team, plan);
  const float *routes = mgl_cpu_program_tensor(program, mgl_graph_find(graph, "routes"));
  memset(out->chosen, 0, sizeof out->chosen);
  for (uint32_t row = 0; row < TOKENS * SLOTS; row++) {
    out->chosen[(uint32_t)routes[2 * row]] = true;
  }
  memcpy(out->y, mgl_cpu_program_tensor(program, mgl_graph_find(graph, "y")), sizeof out->y);
  mgl_plan_destroy(plan);
  mgl_cpu_program_destroy(program);
  mgl_cpu_memory_destroy(memory);
  mgl_cpu_weights_release(&weights);
  mgl_team_destroy(team);
  mgl_topology_destroy(topology);
  mgl_graph_destroy(graph);
  mgl_checkpoint_close(checkpoint);
}

static void pages_of_others_are_not_touched(void **state) {
  (void)state;
  temp_folder folder;
  answer expected, found;
  uint32_t taken = 0, chosen = 0;
  temp_folder_create(&folder);
  write_model(&folder);
  run(&folder, NULL, NULL, &expected);
  for (uint32_t e = 0; e < EXPERTS; e++) {
    chosen += expected.chosen[e];
  }
  assert_true(chosen >= SLOTS && chosen <= TOKENS * SLOTS);
  run(&folder, &expected, &taken, &found);
  assert_memory_equal(expected.y, found.y, sizeof found.y);
  // 32 KiB a matrix: all but the pages at its two ends.
  assert_true(taken >= (EXPERTS - chosen) * 3 * (32768 / (uint32_t)sysconf(_SC_PAGESIZE) - 1));
  temp_folder_remove(&folder);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(pages_of_others_are_not_touched)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
