// The CPU as a device: a team, weights and KV in memory, all modes.
#include <assert.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/cache_folder.h"
#include "base/hash.h"
#include "device/compilation.h"
#include "device/cpu/cpu_eager.h"
#include "device/cpu/cpu_look.h"
#include "device/cpu/cpu_program.h"
#include "device/cpu/cpu_ranks.h"
#include "device/cpu/cpu_shorts.h"
#include "device/cpu/cpu_tune.h"
#include "device/cpu/cpu_weights.h"
#include "device/cpu/read_ceiling.h"
#include "device/cpu/team.h"
#include "device/debug_dump.h"
#include "engine/device_table.h"
#include "engine/engine_parts.h"
#include "engine/mega_mode.h"
#include "engine/piece_mode.h"
#include "graph/graph_text.h"

enum {
  // Results do not depend on it; twice as many compute prompts 13% faster and cost others 50 ms of
  // waiting on two cores (docs/log/102).
  USUAL_ITERATION_TOKENS = 128,
};
#define USUAL_SHARE 0.5

typedef struct cpu_model {
  mgl_topology *topology;
  mgl_team *team;
  mgl_simd simd;
  mgl_device_job job;
  mgl_weight_source source;  // the build's, settled
  bool gets_shorts;          // if they are faster here (cpu_shorts.h)
  mgl_cpu_weights weights;
  mgl_linear_way way;
  mgl_cpu_kernels kernels;
  mgl_cpu_memory *memory;
  mgl_cpu_program *program;  // of mode eager
  mgl_ranks *ranks;          // NULL: there is one
  uint32_t crew_cores;       // that each of a crew's ranks has; 0: there is no crew
  bool own_processors;       // of a crew: other ranks have others
  mgl_build build;           // of a crew, but for rank 0: what is built, and
  mgl_sizes sizes;           // how large, as rank 0 has said
  mgl_mega_mode *mega;       // NULL until mode mega is first used
  mgl_piece_mode *pieces;    // NULL until a mode between these two is
  // Where parts of an iteration are looked at: the mode, and of mode eager the ops that run.
  mgl_mode looked;
  uint32_t first, last;
  char note[MGL_SIZES_NOTE_BYTES];
} cpu_model;

// What rank 0 tells a crew before all build the same.
typedef struct orders {
  mgl_build build;  // its pointers mean nothing to others
  mgl_sizes sizes;
  mgl_weight_source source;
  uint32_t cores;  // that each rank has
  bool own_processors;
  mgl_hash program;  // of its text
} orders;

static uint32_t rank_count(const mgl_build *build) {
  return build->ranks > 1 ? build->ranks : 1;
}

// What each rank of a crew may use, which rank 0 alone knows until it tells the others.
static mgl_status gather(cpu_model *m, const mgl_build *build, mgl_error *err) {
  mgl_crew_place place;
  MGL_TRY(mgl_crew_gather(build->crew, mgl_topology_cores(m->topology), &place, err));
  const uint32_t cores = place.least_cores / (place.own_processors ? 1 : rank_count(build));
  m->crew_cores = cores > 0 ? cores : 1;
  m->own_processors = place.own_processors;
  return MGL_OK;
}

static mgl_status cpu_open(const mgl_build *build, void **out, mgl_error *err) {
  cpu_model *m = mgl_alloc_zeroed(1, sizeof *m);
  if (m == NULL) {
    return mgl_error_set(err, MGL_ERR_MEMORY, "out of memory for a model runner");
  }
  *out = m;
  m->looked = MGL_MODE_MEGA;
  MGL_TRY(mgl_topology_create(&m->topology, err));
  return build->crew != NULL ? gather(m, build, err) : MGL_OK;
}

// Of a rank.
static uint64_t worker_count(const cpu_model *m, const mgl_build *build) {
  uint32_t cores =
      m->crew_cores != 0 ? m->crew_cores : mgl_topology_cores(m->topology) / rank_count(build);
  return build->threads != 0 ? build->threads : cores > 0 ? cores : 1;
}

static void cpu_defaults(const void *model, const mgl_build *build, const mgl_graph *program,
                         mgl_device_defaults *out) {
  (void)program;
  *out = (mgl_device_defaults){.where = "the CPU",
                               .iteration_tokens = USUAL_ITERATION_TOKENS,
                               .most_tokens = MGL_MAX_ITERATION_TOKENS,
                               .sequences = MGL_USUAL_SEQUENCES,
                               .workers = (uint32_t)worker_count(model, build),
                               .share = USUAL_SHARE};
}

// --- what it takes -------------------------------------------------------------------------------

static uint64_t descriptor_bytes(const mgl_task_graph *graph) {
  return graph->task_count * sizeof *graph->tasks + graph->event_count * sizeof *graph->events +
         graph->aot_start[graph->worker_count] * sizeof *graph->aot_tasks;
}

static mgl_cpu_program_options eager_options(mgl_simd simd, const mgl_sizes *sizes) {
  return (mgl_cpu_program_options){.simd = simd,
                                   .largest = {.tokens = sizes->limits.tokens,
                                               .logit_rows = sizes->logit_rows,
                                               .sequences = sizes->limits.sequences}};
}

// Activations and scratch are shared by all programs of a model: the largest of each counts. Task
// graphs for fewer tokens need no more than the one for the most.
static mgl_status measure_programs(const mgl_device_job *job, const mgl_graph *fused,
                                   const mgl_task_graph *tasks, mgl_sizes *sizes, size_t *block,
                                   mgl_error *err) {
  mgl_cpu_program_options eager = eager_options((mgl_simd)0, sizes);
  mgl_cpu_program_options mega = {.task_graph = tasks};
  const mgl_compilation *c = job->build->compilation;
  mgl_cpu_program_sizes of[3] = {0};
  MGL_TRY(mgl_cpu_program_measure(job->program, &eager, &of[0], err));
  MGL_TRY(mgl_cpu_program_measure(fused, &mega, &of[1], err));
  if (c != NULL && mgl_graph_mode_needs_pieces(c->graph_mode)) {
    MGL_TRY(mgl_piece_mode_measure(job, fused, &of[2], err));
  }
  size_t activations = 0, scratch = 0;
  for (int i = 0; i < 3; i++) {
    activations = of[i].activation_bytes > activations ? of[i].activation_bytes : activations;
    scratch = of[i].scratch_bytes > scratch ? of[i].scratch_bytes : scratch;
  }
  uint64_t threads = (uint64_t)sizes->workers + job->build->schedulers;
  sizes->activation_bytes = activations + scratch * threads;
  *block = activations;
  return MGL_OK;
}

// *shared: what the ranks of several share.
static mgl_status measure_graphs(const mgl_device_job *job, mgl_sizes *sizes,
                                 mgl_ranks_options *shared, mgl_error *err) {
  mgl_graph *fused = NULL;
  mgl_task_graph *tasks = NULL;
  uint32_t graphs = 1;
  uint32_t tokens = 1;
  for (; tokens < sizes->limits.tokens; tokens *= 2) {
    graphs++;
  }
  mgl_compile_options compile = mgl_build_compile(job->build, sizes, MGL_TARGET_CPU, tokens);
  mgl_status status = job->build->plain ? MGL_OK : mgl_fuse_ops(job->program, &fused, err);
  const mgl_graph *program = fused != NULL ? fused : job->program;
  if (status == MGL_OK) {
    status = mgl_compile(program, &compile, &tasks, NULL, err);
  }
  if (status == MGL_OK) {
    status = measure_programs(job, program, tasks, sizes, &shared->activation_bytes, err);
  }
  if (status == MGL_OK) {
    sizes->other_bytes = graphs * descriptor_bytes(tasks);
    // Graphs for fewer tokens are cut otherwise; the runtime checks that theirs fit.
    shared->counters = (uint64_t)graphs * 2 * (tasks->event_count + MGL_MAX_RANKS);
  }
  mgl_task_graph_destroy(tasks);
  mgl_graph_destroy(fused);
  return status;
}

// Of short rows, at the level that this machine will run.
static size_t short_bytes_of(const mgl_device_job *job) {
  mgl_simd simd = MGL_SIMD_SCALAR;
  mgl_error ignored = {0};
  return mgl_simd_choose(&simd, &ignored) == MGL_OK ? mgl_cpu_shorts_bytes(job->program, simd) : 0;
}

static mgl_status cpu_measure(void *model, const mgl_device_job *job, mgl_sizes *sizes,
                              mgl_error *err) {
  cpu_model *m = model;
  MGL_TRY(mgl_team_check(m->topology, job->build->threads, err));
  mgl_cpu_weight_sizes weights = mgl_cpu_weights_measure(job->program);
  sizes->free_bytes = mgl_memory_available() / rank_count(job->build);
  sizes->source = mgl_cpu_weights_settle(job->program, job->build->weights, sizes->free_bytes);
  const size_t page_bytes = mgl_cpu_weights_page_bytes(&weights, sizes->source);
  sizes->short_bytes =
      mgl_cpu_shorts_settle(job->program, sizes->source, short_bytes_of(job), sizes->free_bytes);
  sizes->weight_bytes = weights.vector_bytes + page_bytes + sizes->short_bytes;
  sizes->mapped_bytes = weights.matrix_bytes - page_bytes;
  sizes->cold_bytes = mgl_cpu_weights_cold_bytes(job->program, sizes->source);
  sizes->kv_bytes_per_token = mgl_graph_kv_bytes_per_token(job->program);
  sizes->step_bytes = mgl_cpu_weights_step_bytes(job->program);
  sizes->expert_bytes = mgl_cpu_weights_expert_bytes(job->program);
  mgl_ranks_options shared;
  return measure_graphs(job, sizes, &shared, err);
}

// --- making it -----------------------------------------------------------------------------------

static mgl_status tell_crew(cpu_model *m, mgl_error *err) {
  orders o;
  memset(&o, 0, sizeof o);
  o.build = *m->job.build;
  o.sizes = *m->job.sizes;
  o.source = m->source;
  o.cores = m->crew_cores;
  o.own_processors = m->own_processors;
  MGL_TRY(mgl_graph_hash(m->job.program, &o.program, err));
  return mgl_crew_tell(m->job.build->crew, &o, sizeof o, -1, err);
}

static mgl_status hear_first(cpu_model *m, mgl_error *err) {
  orders o;
  int none = -1;
  const mgl_build own = *m->job.build;
  mgl_hash program;
  MGL_TRY(mgl_crew_hear(own.crew, &o, sizeof o, &none, err));
  MGL_TRY(mgl_graph_hash(m->job.program, &program, err));
  if (program.low != o.program.low || program.high != o.program.high) {
    return mgl_error_set(err, MGL_ERR_ARGUMENT, "expected rank 0's model, found another");
  }
  if (o.build.weights != MGL_WEIGHTS_DUMMY && m->job.checkpoint == NULL) {
    return mgl_error_set(err, MGL_ERR_ARGUMENT,
                         "rank %u of %u: expected the model to have weights, as rank 0's has",
                         mgl_crew_rank(own.crew), own.ranks);
  }
  m->build = mgl_build_of_first(&o.build, &own);
  m->sizes = o.sizes;
  m->source = o.source;
  m->job.build = &m->build;
  m->job.sizes = &m->sizes;
  m->crew_cores = o.cores;
  m->own_processors = o.own_processors;
  return MGL_OK;
}

static mgl_status start_ranks(cpu_model *m, mgl_ranks_options *shared, mgl_error *err) {
  mgl_crew *crew = m->job.build->crew;
  if (m->job.build->ranks < 2) {
    return MGL_OK;
  }
  if (crew != NULL) {
    MGL_TRY(mgl_crew_rank(crew) == 0 ? tell_crew(m, err) : hear_first(m, err));
  }
  const mgl_build *build = m->job.build;
  mgl_sizes sizes = *m->job.sizes;
  MGL_TRY(measure_graphs(&m->job, &sizes, shared, err));
  shared->count = build->ranks;
  shared->crew = crew;
  shared->limits = sizes.limits;
  shared->logit_rows = sizes.logit_rows;
  shared->crowded =
      (worker_count(m, build) + build->schedulers) * (m->own_processors ? 1 : shared->count) >
      mgl_topology_threads(m->topology);
  return mgl_ranks_start(shared, &m->ranks, err);
}

// Where the usual copies cannot be had after all (a limit of address space does not show in what is
// free), weights stay in their files.
static mgl_status bind_weights(cpu_model *m, const mgl_device_job *job, uint32_t rank,
                               mgl_error *err) {
  const mgl_build *build = job->build;
  const mgl_weights_progress *progress = rank == 0 ? &build->progress : NULL;
  mgl_status status =
      mgl_cpu_weights_bind_rank(job->program, job->checkpoint, m->source, build->seed, m->team,
                                m->topology, rank, progress, &m->weights, err);
  if (status != MGL_ERR_MEMORY || m->source != MGL_WEIGHTS_AUTO) {
    return status;
  }
  if (m->note[0] == 0) {
    (void)snprintf(m->note, sizeof m->note, "weights stay in their files: %.400s", err->text);
  }
  m->source = MGL_WEIGHTS_MAPPED;
  return mgl_cpu_weights_bind_rank(job->program, job->checkpoint, m->source, build->seed, m->team,
                                   m->topology, rank, progress, &m->weights, err);
}

static mgl_status make(cpu_model *m, const mgl_device_job *job, const mgl_ranks_options *shared,
                       mgl_error *err) {
  const mgl_build *build = job->build;
  const mgl_sizes *sizes = job->sizes;
  const uint32_t rank = m->ranks != NULL ? mgl_ranks_rank(m->ranks) : 0;
  MGL_TRY(mgl_simd_choose(&m->simd, err));
  // A thread for each worker, and for each dedicated scheduler.
  const uint32_t threads = (uint32_t)worker_count(m, build) + build->schedulers;
  uint32_t part = m->own_processors ? 0 : rank;
  uint32_t parts = m->own_processors ? 1 : rank_count(build);
  (void)mgl_topology_take_part(m->topology, threads, &part, &parts);
  MGL_TRY(mgl_team_create_part(m->topology, threads, part, parts, &m->team, err));
  MGL_TRY(bind_weights(m, job, rank, err));
  if (build->weights == MGL_WEIGHTS_DUMMY) {
    mgl_cpu_route_dummies(&m->weights, build->routing);
  }
  char usual[MGL_CACHE_FOLDER_BYTES];
  const char *folder = build->compilation != NULL && build->compilation->cache_dir[0] != 0
                           ? build->compilation->cache_dir
                       : mgl_cache_folder(usual) ? usual
                                                 : NULL;
  mgl_tune_options tune_options = {
      .team = m->team,
      .topology = m->topology,
      .simd = m->simd,
      .mapped = m->source == MGL_WEIGHTS_MAPPED || m->source == MGL_WEIGHTS_SHORT,
      .shorts = m->gets_shorts && m->source != MGL_WEIGHTS_MAPPED,
      .again = build->tune,
      .folder = folder};
  (void)mgl_cpu_tune(&m->weights, &tune_options, &m->way);
  m->way.short_tokens = tune_options.shorts ? m->way.short_tokens : 0;
  if (m->way.short_tokens > 0) {
    mgl_cpu_shorts_make(&m->weights, m->simd, m->team, m->topology);
  } else {
    mgl_cpu_shorts_release(&m->weights);
  }
  const mgl_cpu_variants none = {0};
  m->kernels = mgl_cpu_variants_apply(
      build->compilation != NULL ? &build->compilation->variants : &none, m->simd);
  mgl_cpu_memory_options memory_options = {
      .way = &m->way,
      .kernels = &m->kernels,
      .page_tokens = sizes->limits.page_tokens,
      .page_count = sizes->page_count,
      .workers = mgl_team_size(m->team),
  };
  if (m->ranks != NULL) {
    memory_options.rank = rank;
    memory_options.rank_count = shared->count;
    memory_options.shared_bytes = shared->activation_bytes;
    memory_options.shared_counters = shared->counters;
    for (uint32_t i = 0; i < shared->count; i++) {
      memory_options.shared[i] = mgl_ranks_activations(m->ranks, i);
    }
  }
  mgl_cpu_program_options program_options = eager_options(m->simd, sizes);
  MGL_TRY(mgl_cpu_memory_create(&m->weights, &memory_options, m->topology, &m->memory, err));
  return mgl_cpu_program_create(job->program, m->memory, &program_options, &m->program, err);
}

static mgl_status cpu_prepare(void *model, mgl_mode mode, mgl_error *err);

// What a rank other than 0 does for the rest of its life.
static _Noreturn void follow(cpu_model *m, mgl_status status, mgl_error *err) {
  if (status == MGL_OK) {
    status = cpu_prepare(m, MGL_MODE_MEGA, err);
  }
  if (status == MGL_OK) {
    status = mgl_mega_mode_follow(m->mega, err);
  }
  mgl_ranks_leave(m->ranks, status == MGL_OK ? NULL : err);
}

// Level 1: says what would not compile. Names of splitting ops are checked before weights are read.
static mgl_status check_level(cpu_model *m, const mgl_device_job *job, mgl_error *err) {
  const mgl_compilation *c = job->build->compilation;
  mgl_error why = {0};
  if (c == NULL || c->level != MGL_LEVEL_CHECK) {
    return c == NULL || c->splitting_op_count == 0 ? MGL_OK : mgl_piece_mode_check_names(job, err);
  }
  mgl_status status = mgl_piece_mode_check(job, &why);
  if (status == MGL_ERR_MEMORY) {
    return mgl_error_set(err, status, "%s", why.text);
  }
  (void)snprintf(m->note, sizeof m->note, "level 1: %s%.400s",
                 status == MGL_OK ? "all pieces and the whole program compile, and are verified"
                                  : "does not compile: ",
                 why.text);
  return MGL_OK;
}

static mgl_status cpu_create(void *model, const mgl_device_job *job, mgl_error *err) {
  cpu_model *m = model;
  mgl_ranks_options shared = {0};
  m->job = *job;
  // Before others take memory, so that all ranks do the same.
  const uint64_t free_bytes = mgl_memory_available() / rank_count(job->build);
  m->source = mgl_cpu_weights_settle(job->program, job->build->weights, free_bytes);
  m->gets_shorts =
      mgl_cpu_shorts_settle(job->program, m->source, short_bytes_of(job), free_bytes) != 0;
  MGL_TRY(start_ranks(m, &shared, err));  // before there are threads
  job = &m->job;
  mgl_status status = check_level(m, job, err);
  mgl_debug_dump_rank(m->ranks != NULL ? mgl_ranks_rank(m->ranks) : 0);
  if (status == MGL_OK) {  // a folder that cannot be written is told before weights are read
    status = mgl_debug_dump_program(job->build, "program.txt", job->program, err);
  }
  if (status == MGL_OK) {
    status = make(m, job, &shared, err);
  }
  if (m->ranks != NULL && mgl_ranks_rank(m->ranks) != 0) {
    follow(m, status, err);
  }
  return status;
}

static void cpu_destroy(void *model) {
  cpu_model *m = model;
  mgl_mega_mode_destroy(m->mega);
  mgl_piece_mode_destroy(m->pieces);
  mgl_ranks_stop(m->ranks);
  mgl_cpu_program_destroy(m->program);
  mgl_cpu_memory_destroy(m->memory);
  mgl_cpu_weights_release(&m->weights);
  mgl_team_destroy(m->team);
  mgl_topology_destroy(m->topology);
  mgl_free(m);
}

static mgl_status cpu_check(const void *model, mgl_error *err) {
  const cpu_model *m = model;
  return m->ranks == NULL ? MGL_OK : mgl_ranks_check(m->ranks, err);
}

static mgl_status cpu_prepare(void *model, mgl_mode mode, mgl_error *err) {
  cpu_model *m = model;
  if (mode != MGL_MODE_MEGA && mode != MGL_MODE_EAGER) {
    if (m->pieces == NULL) {
      MGL_TRY(mgl_piece_mode_create(&m->job, m->memory, m->team, m->simd, &m->pieces, err));
    }
    return mgl_piece_mode_prepare(m->pieces, mode, err);
  }
  if (m->mega != NULL || mode != MGL_MODE_MEGA) {
    return MGL_OK;
  }
  return mgl_mega_mode_create(&m->job, m->memory, m->team, m->simd, m->ranks, &m->mega, err);
}

// --- using it ------------------------------------------------------------------------------------

// Of parts of an iteration in mode eager: whether the logits are among them.
static bool makes_logits(const cpu_model *m) {
  const mgl_graph *program = m->program->graph;
  const uint32_t logits = mgl_graph_find(program, "logits");
  bool found = !m->job.build->look || m->looked != MGL_MODE_EAGER;
  for (uint32_t i = m->first; i <= m->last && !found; i++) {
    found = program->ops[i].output == logits;
  }
  return found;
}

static mgl_status cpu_run_plans(void *model, mgl_mode mode, mgl_next_plan_callback *next,
                                void *context, mgl_error *err) {
  cpu_model *m = model;
  if (mode == MGL_MODE_MEGA) {
    MGL_TRY(cpu_prepare(m, mode, err));
    return mgl_mega_mode_run(m->mega, next, context, err);
  }
  assert(m->ranks == NULL);
  if (mode != MGL_MODE_EAGER) {
    MGL_TRY(cpu_prepare(m, mode, err));
    return mgl_piece_mode_run(m->pieces, mode, next, context, err);
  }
  const mgl_compilation *c = m->job.build->compilation;
  const mgl_plan *plan = next(context, NULL);
  while (plan != NULL) {
    if (c != NULL && c->check_numbers) {
      MGL_TRY(mgl_cpu_eager_run_checked(m->program, m->team, plan, err));
    } else if (m->job.build->look && m->looked == MGL_MODE_EAGER) {
      mgl_cpu_eager_run_ops(m->program, m->team, plan, m->first, m->last);
    } else {
      mgl_cpu_eager_run(m->program, m->team, plan);
    }
    mgl_logits logits = {0};
    if (makes_logits(m)) {
      logits = mgl_logits_of(m->program);
    }
    plan = next(context, &logits);
  }
  return MGL_OK;
}

// Over the memory of the weights where that is large and its own, else over a buffer.
static mgl_status cpu_read_ceiling(void *model, uint32_t passes, double *out_bytes_per_s,
                                   mgl_error *err) {
  const cpu_model *m = model;
  const mgl_cpu_weights *weights = &m->weights;
  bool use_pages = weights->pages_bytes >= MGL_READ_CEILING_BYTES;
  return mgl_read_ceiling_measure(m->team, m->simd, use_pages ? weights->pages : NULL,
                                  use_pages ? weights->pages_bytes : weights->step_bytes, passes,
                                  out_bytes_per_s, err);
}

static void cpu_expert_loads(const void *model, mgl_expert_loads *out) {
  mgl_cpu_loads_read(&((const cpu_model *)model)->memory->loads, out);
}

static mgl_status cpu_trace(const void *model, mgl_text *out, mgl_error *err) {
  const cpu_model *m = model;
  if (m->mega == NULL || m->job.build->trace_tasks == 0) {
    return mgl_error_set(err, MGL_ERR_ARGUMENT, "there is a trace in mode mega only, if asked for");
  }
  return mgl_mega_mode_trace(m->mega, out, err);
}

static void cpu_describe(const void *model, mgl_device_info *out) {
  const cpu_model *m = model;
  *out = (mgl_device_info){.workers = m->job.sizes->workers,
                           .simd = m->simd,
                           .step_bytes = m->weights.step_bytes,
                           .short_saved = mgl_cpu_shorts_saved(&m->weights),
                           .short_tokens = m->way.short_tokens,
                           .kv_bytes_per_token = mgl_graph_kv_bytes_per_token(m->job.program),
                           .note = m->note,
                           .way = &m->way};
  if (m->pieces != NULL) {
    out->launches = mgl_piece_mode_counts(m->pieces);
  }
}

// --- looking at parts of an iteration ------------------------------------------------------------

static mgl_status cpu_take_mode(void *model, mgl_mode mode, mgl_error *err) {
  cpu_model *m = model;
  if (mode != MGL_MODE_MEGA && mode != MGL_MODE_EAGER) {
    return mgl_error_set(err, MGL_ERR_UNSUPPORTED,
                         "parts of an iteration: expected mode mega or eager on the CPU, found %s, "
                         "whose pieces run whole",
                         mgl_mode_name(mode));
  }
  m->looked = mode;
  m->first = 0;
  m->last = (uint32_t)m->program->graph->op_count - 1;
  return MGL_OK;
}

static const mgl_graph *cpu_program(const void *model) {
  const cpu_model *m = model;
  return m->looked == MGL_MODE_EAGER ? m->program->graph : mgl_mega_mode_program(m->mega);
}

static mgl_status cpu_choose(void *model, uint32_t first, uint32_t last, mgl_error *err) {
  cpu_model *m = model;
  (void)err;
  m->first = first;
  m->last = last;
  if (m->looked == MGL_MODE_EAGER) {
    memset(m->memory->activations, 0xff, m->memory->activation_bytes);  // NaN
  } else {
    mgl_mega_mode_choose(m->mega, first, last);
  }
  return MGL_OK;
}

// What the mode runs for so many tokens.
static mgl_cpu_program *looked_at(const cpu_model *m, uint32_t tokens) {
  return m->looked == MGL_MODE_EAGER ? m->program : mgl_mega_mode_binding(m->mega, tokens);
}

static mgl_status cpu_write(void *model, uint32_t tokens, const char *name, const float *values,
                            size_t count, mgl_error *err) {
  return mgl_cpu_write_activation(looked_at(model, tokens), name, values, count, err);
}

static mgl_status cpu_read(void *model, uint32_t tokens, const char *name, float *out, size_t count,
                           mgl_error *err) {
  return mgl_cpu_read_activation(looked_at(model, tokens), name, out, count, err);
}

static mgl_status cpu_read_rank(void *model, uint32_t rank, uint32_t tokens, const char *name,
                                float *out, size_t count, mgl_error *err) {
  return mgl_cpu_read_rank(looked_at(model, tokens), rank, name, out, count, err);
}

static mgl_status cpu_write_kv(void *model, const char *name, uint32_t page, const float *k,
                               const float *v, mgl_error *err) {
  return mgl_cpu_write_kv(((cpu_model *)model)->program, name, page, k, v, err);
}

static mgl_status cpu_read_kv(void *model, const char *name, uint32_t page, float *k, float *v,
                              mgl_error *err) {
  return mgl_cpu_read_kv(((cpu_model *)model)->program, name, page, k, v, err);
}

const mgl_device_table mgl_cpu_table = {.modes = (1u << MGL_MODE_COUNT) - 1,
                                        .hands_out_logits = true,
                                        .mode_hint = "one of a CPU",
                                        .open = cpu_open,
                                        .defaults = cpu_defaults,
                                        .measure = cpu_measure,
                                        .create = cpu_create,
                                        .destroy = cpu_destroy,
                                        .check = cpu_check,
                                        .prepare = cpu_prepare,
                                        .run_plans = cpu_run_plans,
                                        .serve = mgl_serve_planned,
                                        .read_ceiling = cpu_read_ceiling,
                                        .expert_loads = cpu_expert_loads,
                                        .trace = cpu_trace,
                                        .describe = cpu_describe,
                                        .look = {.take_mode = cpu_take_mode,
                                                 .program = cpu_program,
                                                 .choose = cpu_choose,
                                                 .write = cpu_write,
                                                 .read = cpu_read,
                                                 .read_rank = cpu_read_rank,
                                                 .write_kv = cpu_write_kv,
                                                 .read_kv = cpu_read_kv}};
