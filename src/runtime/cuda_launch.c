// Launches: state up, kernel, watching, state back.
//
// While the kernel runs the host only polls: the stream for its end, and pinned memory for tokens,
// which the device stores there one by one. Past the deadline it sets the fault word from outside,
// on a second stream; every role of the kernel looks at that word.
#include <stdatomic.h>
#include <string.h>
#include <time.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "runtime/cuda_program_parts.h"

enum {
  POLL_NS = 20 * 1000,                // between two looks at a running launch
  ABORT_NS = 2 * 1000 * 1000 * 1000,  // a launch that was told to stop must end within this
  DEFAULT_IN_FLIGHT = 4,
  DEFAULT_IN_FLIGHT_AHEAD = 1,
  LARGE_IN_FLIGHT_AHEAD = 2,
  LARGE_STAGE_BYTES = 12 << 20,  // of weights, mean: between Qwen3-0.6B and Qwen3-1.7B
  MOST_STEP_BATCH = 32,
};

// One launch under way.
typedef struct launch {
  mgl_cuda_program *p;
  mgl_cuda_launch_options options;  // defaults filled in
  uint32_t most_iterations;
  const mgl_cuda_generate *job;           // NULL: a single plan
  uint32_t seen[MGL_CUDA_MAX_SEQUENCES];  // tokens of each request that were reported or are prompt
  bool stopped;                           // job->should_stop said so
  uint64_t host_ns;
} launch;

static mgl_status set_defaults(const mgl_cuda_program *p, const mgl_cuda_launch_options *from,
                               uint32_t most_iterations, mgl_cuda_launch_options *out,
                               mgl_error *err) {
  *out = from != NULL ? *from : (mgl_cuda_launch_options){0};
  if (p->lost) {
    return mgl_error_set(err, MGL_ERR_INTERNAL,
                         "an earlier launch did not end; the process must be ended");
  }
  out->stall_ns = out->stall_ns == 0 ? UINT64_C(1000000000) : out->stall_ns;
  if (out->deadline_ns == 0) {
    out->deadline_ns = UINT64_C(10000000000) + most_iterations * UINT64_C(100000000);
  }
  out->in_flight = out->in_flight == 0 ? DEFAULT_IN_FLIGHT : out->in_flight;
  if (out->in_flight_ahead == 0) {
    uint64_t stage_bytes = p->layout.step_bytes / p->program->op_count;
    out->in_flight_ahead =
        stage_bytes >= LARGE_STAGE_BYTES ? LARGE_IN_FLIGHT_AHEAD : DEFAULT_IN_FLIGHT_AHEAD;
  }
  out->step_batch = out->step_batch == 0 ? MOST_STEP_BATCH : out->step_batch;
  if (out->in_flight > p->smem_pages) {
    out->in_flight = p->smem_pages;
  }
  if (out->in_flight_ahead > p->smem_pages) {
    out->in_flight_ahead = p->smem_pages;
  }
  if (out->step_batch > MOST_STEP_BATCH) {
    return mgl_error_set(err, MGL_ERR_ARGUMENT,
                         "descriptors fetched at once: expected 1 to %d, "
                         "found %u",
                         MOST_STEP_BATCH, out->step_batch);
  }
  return MGL_OK;
}

// --- tokens --------------------------------------------------------------------------------------

// Reports what has arrived since the last look.
static void report_tokens(launch *l) {
  const mgl_cuda_generate *job = l->job;
  for (uint32_t i = 0; job != NULL && i < job->request_count; i++) {
    const mgl_cuda_request *request = &job->requests[i];
    uint32_t most = request->prompt_count + request->max_new_tokens;
    // Written by the device while this reads: volatile.
    const volatile int32_t *tokens =
        l->p->host_tokens + (size_t)i * l->p->layout.tokens_per_sequence;
    while (l->seen[i] < most) {
      int32_t token = tokens[l->seen[i]];
      if (token < 0) {
        break;
      }
      // Of the token's log probabilities, which the device wrote before it.
      atomic_thread_fence(memory_order_acquire);
      mgl_cuda_token heard = {.request = i, .token = token, .state = MGL_CUDA_SEQUENCE_RUNNING};
      if ((request->rule.flags & MGL_SAMPLING_LOGPROBS) != 0) {
        heard.logprobs =
            &l->p->logprobs[l->p->first_logprobs[i] + l->seen[i] - request->prompt_count];
      }
      l->seen[i]++;
      heard.state = l->seen[i] == most ? MGL_CUDA_SEQUENCE_LENGTH : MGL_CUDA_SEQUENCE_RUNNING;
      for (uint32_t j = 0; j < request->stop_count; j++) {
        heard.state = request->stop_ids[j] == token ? MGL_CUDA_SEQUENCE_STOPPED : heard.state;
      }
      if (job->on_token != NULL) {
        job->on_token(job->context, &heard);
      }
    }
  }
}

// --- the kernel ----------------------------------------------------------------------------------

// may_stop: also until the job is to be stopped.
static mgl_status wait_until(launch *l, uint64_t end_ns, bool may_stop, bool *ended,
                             mgl_error *err) {
  const mgl_cuda_driver *driver = &l->p->device->driver;
  for (;;) {
    mgl_cu_result code = driver->stream_query(l->p->stream);
    report_tokens(l);
    if (code != MGL_CU_NOT_READY) {
      *ended = true;
      if (code != 0) {
        l->p->lost = true;  // an illegal access and the like: the context is of no more use
      }
      mgl_status status = mgl_cuda_check(driver, code, "launch", err);
      if (status != MGL_OK) {
        mgl_error_prefix(err,
                         "the GPU was lost while it computed; the process must be started anew");
      }
      return status;
    }
    l->stopped = l->stopped || (l->job != NULL && l->job->should_stop != NULL &&
                                l->job->should_stop(l->job->context));
    if (mgl_clock_ns() > end_ns || (l->stopped && may_stop)) {
      *ended = false;
      return MGL_OK;
    }
    (void)nanosleep(&(struct timespec){.tv_nsec = POLL_NS}, NULL);
  }
}

// Waits for the launch; past its deadline, or when it is to be stopped, raises the fault from
// outside and waits once more.
static mgl_status wait_for_end(launch *l, mgl_error *err) {
  mgl_cuda_program *p = l->p;
  bool ended = false;
  MGL_TRY(wait_until(l, mgl_clock_ns() + l->options.deadline_ns, true, &ended, err));
  if (ended) {
    return MGL_OK;
  }
  *p->fault_word = MGL_FAULT_STUCK;
  uint64_t fault =
      p->layout.state.run + offsetof(mgl_cuda_run, protocol) + offsetof(mgl_protocol, fault);
  MGL_CUDA_TRY(&p->device->driver, copy_to_device_async, err, mgl_cuda_state_at(p, fault),
               p->fault_word, sizeof *p->fault_word, p->abort_stream);
  MGL_TRY(wait_until(l, mgl_clock_ns() + (uint64_t)ABORT_NS, false, &ended, err));
  if (!ended) {
    p->lost = true;
    return mgl_error_set(err, MGL_ERR_INTERNAL,
                         "the megakernel did not end after %.1f s and does not answer; the process "
                         "must be ended",
                         (double)l->options.deadline_ns / 1e9);
  }
  return MGL_OK;
}

static mgl_status upload_state(launch *l, mgl_error *err) {
  mgl_cuda_program *p = l->p;
  const mgl_cuda_driver *driver = &p->device->driver;
  const mgl_cuda_state_layout *state = &p->layout.state;
  MGL_CUDA_TRY(driver, copy_to_device, err, mgl_cuda_state_at(p, 0), p->image,
               (size_t)state->image_bytes);
  if (p->layout.bytes[MGL_CUDA_MEMORY_CARRIED] > 0 && !p->chosen) {  // MGL_CUDA_OPEN everywhere
    MGL_CUDA_TRY(driver, memory_set, err, p->memory[MGL_CUDA_MEMORY_CARRIED], 0xff,
                 (size_t)p->layout.bytes[MGL_CUDA_MEMORY_CARRIED]);
  }
  MGL_CUDA_TRY(driver, memory_set, err, mgl_cuda_state_at(p, state->iteration_ns), 0,
               (l->most_iterations + (size_t)1) * sizeof(uint64_t));
  if (p->options.trace_spans > 0) {
    MGL_CUDA_TRY(driver, memory_set, err, mgl_cuda_state_at(p, state->traces), 0,
                 p->workers * sizeof(mgl_cuda_trace));
  }
  return mgl_cuda_check(driver, driver->context_synchronize(), "upload", err);
}

// The whole state where the launch failed, else only what is looked at.
static mgl_status download_state(launch *l, mgl_error *err) {
  mgl_cuda_program *p = l->p;
  const mgl_cuda_driver *driver = &p->device->driver;
  const mgl_cuda_state_layout *state = &p->layout.state;
  MGL_CUDA_TRY(driver, copy_to_host, err, mgl_cuda_image_run(p), mgl_cuda_state_at(p, state->run),
               sizeof(mgl_cuda_run));
  if (mgl_load_relaxed(&mgl_cuda_image_run(p)->protocol.fault) != MGL_FAULT_NONE) {
    MGL_CUDA_TRY(driver, copy_to_host, err, p->image, mgl_cuda_state_at(p, 0),
                 (size_t)state->image_bytes);
  } else if (l->job != NULL) {
    MGL_CUDA_TRY(driver, copy_to_host, err, mgl_cuda_image_sequences(p),
                 mgl_cuda_state_at(p, state->sequences),
                 p->options.sequences * sizeof(mgl_cuda_sequence));
  }
  return l->stopped ? MGL_OK : mgl_cuda_describe_fault(p, &l->options, err);
}

// The image is complete: plan, sequences and tables are in it.
static mgl_status run_launch(launch *l, mgl_error *err) {
  mgl_cuda_program *p = l->p;
  const mgl_cuda_driver *driver = &p->device->driver;
  mgl_cuda_run *run = mgl_cuda_image_run(p);
  run->first_graph = mgl_cuda_image_plan(p)->graph;
  mgl_store_relaxed(&run->announced[0], UINT64_C(1) << 8 | run->first_graph);
  if (l->most_iterations == 1) {  // nothing follows, whatever its plan says
    mgl_store_relaxed(&run->announced[1], UINT64_C(2) << 8 | 255);
  }
  MGL_TRY(upload_state(l, err));
  unsigned blocks = p->workers + (p->options.scheduler_warps ? 0 : p->options.schedulers);
  unsigned smem =
      MGL_CUDA_BLOCK_BYTES + MGL_CUDA_SCRATCH_BYTES + p->smem_pages * MGL_CUDA_PAGE_BYTES;
  mgl_cu_ptr at = mgl_cuda_state_at(p, p->layout.state.run);
  void *parameters[] = {&at};
  uint64_t start = mgl_clock_ns();
  MGL_CUDA_TRY(driver, launch_cooperative, err, p->kernel, blocks, 1, 1, MGL_CUDA_THREADS, 1, 1,
               smem, p->stream, parameters);
  mgl_status status = wait_for_end(l, err);
  l->host_ns = mgl_clock_ns() - start;
  return status != MGL_OK ? status : download_state(l, err);
}

// --- a single plan -------------------------------------------------------------------------------

mgl_status mgl_cuda_program_run_plan(mgl_cuda_program *p, const mgl_plan *plan,
                                     const mgl_cuda_launch_options *options, float *logits,
                                     mgl_error *err) {
  if (plan->token_count > p->options.iteration_tokens && p->options.wide_tokens > 0) {
    return mgl_cuda_wide_run_plan(p, plan, options, logits, err);
  }
  launch l = {.p = p, .most_iterations = 1};
  mgl_cuda_plan_limits limits = {.iteration_tokens = p->options.iteration_tokens,
                                 .logit_rows = p->options.logit_rows,
                                 .slots = p->options.sequences,
                                 .stride = p->options.pages_per_sequence,
                                 .page_count = p->options.page_count,
                                 .vocab = p->model.vocab,
                                 .group = p->model.group};
  MGL_TRY(set_defaults(p, options, 1, &l.options, err));
  mgl_cuda_make_image(p, &(mgl_cuda_start){.launch = &l.options, .most_iterations = 1});
  MGL_TRY(mgl_cuda_plan_from(plan, &limits, mgl_cuda_image_plan(p), mgl_cuda_image_tables(p), err));
  uint32_t graph = mgl_cuda_image_plan(p)->graph;
  MGL_TRY(run_launch(&l, err));
  if (logits == NULL || plan->logit_row_count == 0) {
    return MGL_OK;
  }
  return mgl_cuda_program_read(p, graph, "logits", logits,
                               (size_t)plan->logit_row_count * p->model.vocab, err);
}

// --- a job ---------------------------------------------------------------------------------------

static uint32_t max_tokens(const mgl_cuda_request *request) {
  return request->prompt_count + request->max_new_tokens;
}

// The last token is never fed back.
static uint32_t pages_of(const mgl_cuda_request *request) {
  return (max_tokens(request) - 1 + MGL_CUDA_KV_PAGE_TOKENS - 1) / MGL_CUDA_KV_PAGE_TOKENS;
}

static mgl_status check_request(const mgl_cuda_program *p, uint32_t index,
                                const mgl_cuda_request *r, mgl_error *err) {
  uint64_t most = p->layout.tokens_per_sequence;
  if (r->prompt_count < 1 || r->max_new_tokens < 1 || r->prompt_count > most ||
      r->max_new_tokens > most - r->prompt_count) {
    return mgl_error_set(err, MGL_ERR_LIMIT,
                         "request %u: a prompt of %u tokens and %u new ones: expected at least 1 "
                         "each and %llu together at most",
                         index, r->prompt_count, r->max_new_tokens, (unsigned long long)most);
  }
  if (r->stop_count > MGL_CUDA_MAX_STOP_IDS) {
    return mgl_error_set(err, MGL_ERR_LIMIT,
                         "request %u: expected at most %d stop tokens, found %u", index,
                         MGL_CUDA_MAX_STOP_IDS, r->stop_count);
  }
  for (uint32_t i = 0; i < r->edit_count; i++) {
    if (r->edits[i].token < 0 || (uint32_t)r->edits[i].token >= p->model.vocab) {
      return mgl_error_set(err, MGL_ERR_ARGUMENT,
                           "request %u: expected edits of tokens of 0 to %u, found %d", index,
                           p->model.vocab - 1, r->edits[i].token);
    }
  }
  if (r->rule.top_logprobs > MGL_MAX_TOP_LOGPROBS) {
    return mgl_error_set(err, MGL_ERR_LIMIT,
                         "request %u: expected log probabilities of at most %d, found %u", index,
                         MGL_MAX_TOP_LOGPROBS, r->rule.top_logprobs);
  }
  for (uint32_t i = 0; i < r->prompt_count; i++) {
    if (r->prompt[i] < 0 || (uint32_t)r->prompt[i] >= p->model.vocab) {
      return mgl_error_set(err, MGL_ERR_ARGUMENT,
                           "request %u, token %u: expected an id of 0 to %u, found %d", index, i,
                           p->model.vocab - 1, r->prompt[i]);
    }
  }
  return MGL_OK;
}

static mgl_status check_job(const mgl_cuda_program *p, const mgl_cuda_generate *job,
                            uint64_t *iterations, mgl_error *err) {
  const mgl_cuda_program_options *o = &p->options;
  uint32_t rows =
      job->request_count < o->iteration_tokens ? job->request_count : o->iteration_tokens;
  if (job->request_count < 1 || job->request_count > o->sequences || rows > o->logit_rows) {
    return mgl_error_set(err, MGL_ERR_LIMIT,
                         "requests: expected 1 to %u with up to %u rows of logits, found %u",
                         o->sequences, o->logit_rows, job->request_count);
  }
  uint64_t pages = 0;
  *iterations = 1;
  for (uint32_t i = 0; i < job->request_count; i++) {
    MGL_TRY(check_request(p, i, &job->requests[i], err));
    pages += pages_of(&job->requests[i]);
    // Each iteration computes a token at least; one more may run for a sequence that has stopped.
    *iterations += max_tokens(&job->requests[i]) + UINT64_C(1);
  }
  if (pages > o->page_count) {
    return mgl_error_set(err, MGL_ERR_LIMIT, "the requests need %llu KV pages, there are %u",
                         (unsigned long long)pages, o->page_count);
  }
  if (*iterations > p->layout.most_iterations) {
    *iterations = p->layout.most_iterations;
  }
  if (job->most_iterations > 0 && job->most_iterations < *iterations) {
    *iterations = job->most_iterations;
  }
  return MGL_OK;
}

static void set_sequence(mgl_cuda_program *p, uint32_t slot, const mgl_cuda_request *r) {
  size_t at = (size_t)slot * p->layout.tokens_per_sequence;
  mgl_cuda_sequence *s = &mgl_cuda_image_sequences(p)[slot];
  *s = (mgl_cuda_sequence){
      .state = MGL_CUDA_SEQUENCE_RUNNING,
      .token_count = r->prompt_count,
      .prompt_count = r->prompt_count,
      .max_tokens = max_tokens(r),
      .tokens = mgl_cuda_pointer(p->memory[MGL_CUDA_MEMORY_TOKENS] + at * sizeof(int32_t)),
      .host_tokens = mgl_cuda_pointer(p->host_tokens_at + at * sizeof(int32_t)),
      .stop_count = r->stop_count};
  if (r->stop_count > 0) {
    memcpy(s->stop_ids, r->stop_ids, r->stop_count * sizeof *s->stop_ids);
  }
  memcpy(p->staged + at, r->prompt, r->prompt_count * sizeof *p->staged);
  memset(p->host_tokens + at, 0xff, max_tokens(r) * sizeof *p->host_tokens);
}

// Sequences, their pages and the first plan.
static mgl_status set_job(launch *l, mgl_error *err) {
  mgl_cuda_program *p = l->p;
  const mgl_cuda_program_options *o = &p->options;
  const int32_t *tokens[MGL_CUDA_MAX_SEQUENCES];
  int32_t *tables = mgl_cuda_image_tables(p);
  uint32_t page = 0;
  for (uint32_t i = 0; i < o->sequences; i++) {
    size_t at = (size_t)i * p->layout.tokens_per_sequence;
    uint32_t pages = 0;
    tokens[i] = p->staged + at;
    if (i < l->job->request_count) {
      const mgl_cuda_request *r = &l->job->requests[i];
      set_sequence(p, i, r);
      l->seen[i] = r->prompt_count;
      pages = pages_of(r);
      MGL_CUDA_TRY(&p->device->driver, copy_to_device, err,
                   p->memory[MGL_CUDA_MEMORY_TOKENS] + at * sizeof(int32_t), p->staged + at,
                   r->prompt_count * sizeof(int32_t));
    }
    for (uint32_t j = 0; j < o->pages_per_sequence; j++) {
      tables[(size_t)i * o->pages_per_sequence + j] =
          (int32_t)(j < pages ? page++ : o->page_count);  // the spare one
    }
  }
  MGL_TRY(mgl_cuda_sampling_prepare(p, l->job, err));
  mgl_cuda_plan_rules rules = {
      .iteration_tokens = o->iteration_tokens,
      .chunk_tokens = l->job->chunk_tokens > 0 ? l->job->chunk_tokens : o->iteration_tokens,
      .prompts_first = l->job->prompts_first,
      .group = p->model.group};
  (void)mgl_cuda_plan_next(&rules, mgl_cuda_image_sequences(p), o->sequences, tokens,
                           mgl_cuda_image_plan(p));
  return MGL_OK;
}

static mgl_status read_outcome(launch *l, mgl_error *err) {
  mgl_cuda_program *p = l->p;
  mgl_cuda_outcome *outcome = l->job->outcome;
  if (outcome == NULL) {
    return MGL_OK;
  }
  const mgl_protocol *protocol = &mgl_cuda_image_run(p)->protocol;
  uint64_t published = mgl_load_relaxed(&protocol->published);
  bool stopped = (mgl_load_relaxed(&protocol->info) & 1) != 0;
  outcome->host_ns = l->host_ns;
  outcome->iterations = (uint32_t)(published > 0 && stopped ? published - 1 : published);
  size_t count = outcome->iterations + (size_t)1;
  count = count < outcome->iteration_capacity ? count : outcome->iteration_capacity;
  if (count > 0 && outcome->iteration_ns != NULL) {
    MGL_CUDA_TRY(&p->device->driver, copy_to_host, err, outcome->iteration_ns,
                 mgl_cuda_state_at(p, p->layout.state.iteration_ns), count * sizeof(uint64_t));
  }
  return MGL_OK;
}

// Every sequence ended as it should, and all that it sampled was reported.
static mgl_status check_sequences(const launch *l, mgl_error *err) {
  const mgl_cuda_sequence *sequences = mgl_cuda_image_sequences(l->p);
  for (uint32_t i = 0; i < l->job->request_count; i++) {
    const mgl_cuda_sequence *s = &sequences[i];
    if (s->state == MGL_CUDA_SEQUENCE_NOT_FINITE) {
      if (l->job->outcome != NULL) {
        l->job->outcome->failed_request = i;
      }
      return mgl_error_set(err, MGL_ERR_FORMAT,
                           "the model's logits are not finite (NaN or infinity) at position %u of "
                           "request %u: damaged weights?",
                           s->token_count - 1, i);
    }
    if (s->token_count != l->seen[i]) {
      return mgl_error_set(err, MGL_ERR_INTERNAL,
                           "request %u has %u tokens on the GPU, and %u arrived on the host", i,
                           s->token_count, l->seen[i]);
    }
    if (s->state == MGL_CUDA_SEQUENCE_RUNNING && l->job->most_iterations == 0) {
      return mgl_error_set(err, MGL_ERR_INTERNAL,
                           "the launch ended and request %u did not: %u of up to %u tokens", i,
                           s->token_count, s->max_tokens);
    }
  }
  return MGL_OK;
}

mgl_status mgl_cuda_program_generate(mgl_cuda_program *p, const mgl_cuda_generate *job,
                                     mgl_error *err) {
  launch l = {.p = p, .job = job};
  uint64_t iterations = 0;
  if (job->outcome != NULL) {
    job->outcome->iterations = 0;
    job->outcome->host_ns = 0;
  }
  MGL_TRY(check_job(p, job, &iterations, err));
  l.most_iterations = (uint32_t)iterations;
  MGL_TRY(set_defaults(p, &job->launch, l.most_iterations, &l.options, err));
  mgl_cuda_make_image(p, &(mgl_cuda_start){.launch = &l.options,
                                           .most_iterations = l.most_iterations,
                                           .chunk_tokens = job->chunk_tokens,
                                           .prompts_first = job->prompts_first});
  MGL_TRY(set_job(&l, err));
  mgl_status status = run_launch(&l, err);
  if (job->outcome != NULL) {
    job->outcome->host_ns = l.host_ns;
    job->outcome->stopped = l.stopped;
  }
  MGL_TRY(status);
  report_tokens(&l);
  MGL_TRY(read_outcome(&l, err));
  return l.stopped ? MGL_OK : check_sequences(&l, err);
}
