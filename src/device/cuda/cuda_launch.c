// Launches: state up, kernel, watching, state back.
//
// While the kernel runs the host only polls: the stream for its end, and pinned memory for tokens,
// which the device stores there one by one; and hands over requests (cuda_feed.c). A launch that
// gives no sign of life gets a fault from outside, on a second stream; every role of the kernel
// looks at that word.
#include <string.h>
#include <sys/prctl.h>
#include <time.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "device/cuda/cuda_program_parts.h"

enum {
  POLL_NS = 20 * 1000,                // between two looks at a running launch
  SLACK_NS = 1000,                    // of that, while it runs
  ABORT_NS = 2 * 1000 * 1000 * 1000,  // a launch that was told to stop must end within this
  MOST_STEP_BATCH = 32,
};

// One launch under way.
typedef struct launch {
  mgl_cuda_program *p;
  mgl_cuda_launch_options options;  // defaults filled in
  uint32_t most_iterations;
  const mgl_cuda_generate *job;  // NULL: a single plan
  uint32_t next;                 // of the job's list of requests
  mgl_cuda_request listed;       // the latest one of it
  uint32_t iterations;           // that have ended
  bool closed;                   // no more requests are given to it
  bool left;                     // it was told to end behind the present iteration
  bool killed;                   // and then by a fault
  bool wide;                     // a chain of iterations of the wide class runs
  bool planner_lost;             // of several ranks: planners are made anew
  bool follows;                  // of a rank other than 0: it has what rank 0 sends
  bool led;                      // of several ranks: all know of it
  uint64_t host_ns;
} launch;

static mgl_status set_defaults(const mgl_cuda_program *p, const mgl_cuda_launch_options *from,
                               mgl_cuda_launch_options *out, mgl_error *err) {
  *out = from != NULL ? *from : (mgl_cuda_launch_options){0};
  if (p->lost) {
    return mgl_error_set(err, MGL_ERR_INTERNAL,
                         "an earlier launch did not end; the process must be ended");
  }
  out->stall_ns = out->stall_ns == 0 ? UINT64_C(1000000000) : out->stall_ns;
  out->deadline_ns = out->deadline_ns == 0 ? UINT64_C(10000000000) : out->deadline_ns;
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

// --- requests -----------------------------------------------------------------------------------

// A list of requests as a source.
static const mgl_cuda_request *next_request(launch *l) {
  const mgl_cuda_generate *job = l->job;
  if (job->source != NULL) {
    return job->source->next(job->context);
  }
  if (l->next == job->request_count) {
    return NULL;
  }
  l->listed = job->requests[l->next];
  l->listed.number = l->next++;
  return &l->listed;
}

static mgl_feed_end tend(launch *l) {
  const mgl_cuda_generate *job = l->job;
  if (job->should_stop != NULL && job->should_stop(job->context)) {
    return MGL_FEED_LEAVE;
  }
  if (job->source != NULL) {
    return job->source->tend(job->context);
  }
  return l->next < job->request_count ? MGL_FEED_OPEN : MGL_FEED_CLOSED;
}

// Tells the device what it must know: requests into free slots, and how the launch goes on. Once
// the feed is closed it takes no more.
static void feed(launch *l) {
  mgl_cuda_program *p = l->p;
  if (l->job == NULL || l->left) {
    return;
  }
  mgl_feed_end end = p->feeding.failed ? MGL_FEED_LEAVE : tend(l);
  while (end != MGL_FEED_LEAVE && !l->closed) {
    uint32_t slot = mgl_cuda_feed_free_slot(p);
    const mgl_cuda_request *request = slot != UINT32_MAX ? next_request(l) : NULL;
    if (request == NULL) {
      break;
    }
    mgl_cuda_feed_submit(p, slot, request);
  }
  l->closed = l->closed || end == MGL_FEED_CLOSED;
  l->left = end == MGL_FEED_LEAVE;
  mgl_cuda_feed_set_end(p, end);
}

// --- the kernel ----------------------------------------------------------------------------------

// Kernels that the host has to queue while they run. *state: ENDED where all that is queued is all.
static mgl_status queue_more(launch *l, bool idle, mgl_cuda_full_state *state, mgl_error *err) {
  bool over = true;
  *state = MGL_CUDA_FULL_ENDED;
  if (l->killed || (!l->options.full && !l->wide)) {
    return MGL_OK;
  }
  if (!l->wide) {
    return mgl_cuda_full_queue(l->p, idle, state, err);
  }
  MGL_TRY(mgl_cuda_wide_queue(l->p, &over, err));
  *state = over ? MGL_CUDA_FULL_ENDED : MGL_CUDA_FULL_RUNS;
  return MGL_OK;
}

static bool a_rank_has_failed(const mgl_cuda_program *p) {
  mgl_error ignored = {0};
  return p->ranks != NULL && mgl_ranks_check(p->ranks, &ignored) != MGL_OK;
}

mgl_status mgl_cuda_launch_ended(mgl_cuda_program *p, mgl_cu_result code, mgl_error *err) {
  p->lost = p->lost || code != 0;  // an illegal access and the like: the context is of no more use
  const mgl_status status = mgl_cuda_check(&p->device->driver, code, "launch", err);
  if (status != MGL_OK) {
    mgl_error_prefix(err, "the GPU was lost while it computed; the process must be started anew");
  }
  return status;
}

// Waits as wait_until does, and feeds the launch meanwhile.
static mgl_status watch(launch *l, uint64_t patience_ns, bool *ended, mgl_error *err) {
  const mgl_cuda_driver *driver = &l->p->device->driver;
  uint64_t since_ns = mgl_clock_ns();
  for (;;) {
    mgl_cu_result code = driver->stream_query(l->p->stream);
    bool alive = l->job != NULL && !l->follows && mgl_cuda_feed_report(l->p, l->job);
    mgl_cuda_full_state state = MGL_CUDA_FULL_ENDED;
    if (l->follows) {
      mgl_cuda_feed_follow(l->p);
      alive = true;  // rank 0 decides how long it has patience
    } else {
      feed(l);
    }
    if (code == 0 || code == MGL_CU_NOT_READY) {
      mgl_status status = queue_more(l, code == 0, &state, err);
      if (status != MGL_OK) {
        (void)driver->stream_synchronize(l->p->stream);  // what was queued before ends by itself
        return status;
      }
    }
    if (code != MGL_CU_NOT_READY && state == MGL_CUDA_FULL_ENDED) {
      *ended = true;
      return mgl_cuda_launch_ended(l->p, code, err);
    }
    uint64_t now_ns = mgl_clock_ns();
    bool idle = l->job != NULL && !l->left && mgl_cuda_feed_busy(l->p) == 0;
    since_ns = alive || idle ? now_ns : since_ns;
    if (now_ns - since_ns > patience_ns || (!l->killed && a_rank_has_failed(l->p))) {
      *ended = false;
      return MGL_OK;
    }
    if (state != MGL_CUDA_FULL_SOON) {
      (void)nanosleep(&(struct timespec){.tv_nsec = POLL_NS}, NULL);
    }
  }
}

// Until the launch ends, or has given no sign of life for that long while there is something to do.
static mgl_status wait_until(launch *l, uint64_t patience_ns, bool *ended, mgl_error *err) {
  // Sleeps would last 50 us longer than they are asked to.
  int slack = prctl(PR_GET_TIMERSLACK);
  (void)prctl(PR_SET_TIMERSLACK, (unsigned long)SLACK_NS);
  mgl_status status = watch(l, patience_ns, ended, err);
  (void)prctl(PR_SET_TIMERSLACK, (unsigned long)(slack > 0 ? slack : 0));
  return status;
}

// Waits for the launch; one that gives no sign of life gets a fault from outside, and is waited for
// once more.
static mgl_status wait_for_end(launch *l, mgl_error *err) {
  mgl_cuda_program *p = l->p;
  bool ended = false;
  MGL_TRY(wait_until(l, l->options.deadline_ns, &ended, err));
  if (ended) {
    return MGL_OK;
  }
  l->killed = true;
  *p->fault_word = MGL_FAULT_STUCK;
  uint64_t fault =
      p->layout.state.run + offsetof(mgl_cuda_run, protocol) + offsetof(mgl_protocol, fault);
  MGL_CUDA_TRY(&p->device->driver, copy_to_device_async, err, mgl_cuda_state_at(p, fault),
               p->fault_word, sizeof *p->fault_word, p->abort_stream);
  MGL_TRY(wait_until(l, (uint64_t)ABORT_NS, &ended, err));
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
  if (p->layout.bytes[MGL_CUDA_MEMORY_INBOX] > 0) {  // no tag of this launch
    MGL_CUDA_TRY(driver, memory_set, err, p->memory[MGL_CUDA_MEMORY_INBOX], 0,
                 (size_t)p->layout.bytes[MGL_CUDA_MEMORY_INBOX]);
  }
  if (p->layout.bytes[MGL_CUDA_MEMORY_CARRIED] > 0 && !p->chosen) {  // MGL_CUDA_OPEN everywhere
    MGL_CUDA_TRY(driver, memory_set, err, p->memory[MGL_CUDA_MEMORY_CARRIED], 0xff,
                 (size_t)p->layout.bytes[MGL_CUDA_MEMORY_CARRIED]);
  }
  MGL_CUDA_TRY(driver, memory_set, err, mgl_cuda_state_at(p, state->iteration_ns), 0,
               p->layout.iteration_capacity * sizeof(uint64_t));
  if (p->trace_spans > 0 && !l->options.full) {  // of the latest launch that has one
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
  }
  return mgl_cuda_describe_fault(p, &l->options, err);
}

// Of several ranks: nobody begins before all have uploaded their state, to which the others write.
static mgl_status meet(const mgl_cuda_program *p, mgl_error *err) {
  uint64_t least = 0;
  return p->ranks == NULL ? MGL_OK : mgl_ranks_meet(p->ranks, 0, &least, err);
}

static mgl_status launch_megakernel(mgl_cuda_program *p, mgl_error *err) {
  unsigned blocks = p->workers + mgl_cuda_scheduler_blocks(p);
  unsigned smem = MGL_CUDA_BLOCK_BYTES + MGL_CUDA_SCRATCH_BYTES + p->smem_pages * p->page_bytes;
  mgl_cu_ptr at = mgl_cuda_state_at(p, p->layout.state.run);
  void *parameters[] = {&at};
  return MGL_CUDA_CALL(&p->device->driver, launch_cooperative, err, p->kernel, blocks, 1, 1,
                       MGL_CUDA_THREADS, 1, 1, smem, p->stream, parameters);
}

// Rank 0: tells the others of the launch, all of which have ended the one before.
static mgl_status lead(const launch *l, mgl_error *err) {
  mgl_ranks *ranks = l->p->ranks;
  MGL_TRY(mgl_ranks_wait(ranks, err));
  mgl_cuda_log_of(ranks)->launch =
      (mgl_cuda_ranks_launch){.first_command = l->p->feeding.log_base,
                              .options = l->options,
                              .most_iterations = l->most_iterations,
                              .chunk_tokens = l->job->chunk_tokens,
                              .prompts_first = l->job->prompts_first ? 1 : 0,
                              .edit_capacity = l->p->feeding.edit_capacity,
                              .has_masks = l->p->feeding.masks != NULL ? 1 : 0,
                              .planner_lost = l->planner_lost ? 1 : 0};
  return mgl_ranks_post(ranks, MGL_RANK_RUN, NULL, err);
}

// The image is complete: plan, sequences and tables are in it.
static mgl_status run_launch(launch *l, mgl_error *err) {
  mgl_cuda_program *p = l->p;
  mgl_cuda_run *run = mgl_cuda_image_run(p);
  if (l->job == NULL) {  // the only plan
    mgl_store_relaxed(&run->announced[0], UINT64_C(1) << 8 | mgl_cuda_image_plan(p)->graph);
    mgl_store_relaxed(&run->announced[1], UINT64_C(2) << 8 | 255);
  }
  p->ran_full = l->options.full;
  if (l->options.full) {  // queues its kernels while it waits
    MGL_TRY(mgl_cuda_full_begin(p, &l->options, l->most_iterations, l->job == NULL, err));
  }
  if (p->ranks != NULL && !l->follows && !l->led) {
    MGL_TRY(lead(l, err));
    l->led = true;
  }
  MGL_TRY(upload_state(l, err));
  MGL_TRY(meet(p, err));
  uint64_t start = mgl_clock_ns();
  if (!l->options.full) {
    MGL_TRY(launch_megakernel(p, err));
  }
  mgl_status status = wait_for_end(l, err);
  l->host_ns += mgl_clock_ns() - start;
  if (status == MGL_OK && p->ranks != NULL) {
    status = mgl_ranks_check(p->ranks, err);  // which says more than what it led to here
  }
  return status != MGL_OK ? status : download_state(l, err);
}

// --- a single plan -------------------------------------------------------------------------------

mgl_status mgl_cuda_program_run_plan(mgl_cuda_program *p, const mgl_plan *plan,
                                     const mgl_cuda_launch_options *options, float *logits,
                                     mgl_error *err) {
  if (p->ranks != NULL) {
    return mgl_error_set(err, MGL_ERR_UNSUPPORTED,
                         "single iterations (scores, logits) run on one GPU so far; leave out "
                         "--tensor-parallel");
  }
  if (plan->token_count > p->sizes.limits.tokens && p->wide.tokens > 0) {
    return mgl_cuda_wide_run_plan(p, plan, options, logits, err);
  }
  launch l = {.p = p, .most_iterations = 1};
  mgl_cuda_plan_limits limits = {.iteration_tokens = p->sizes.limits.tokens,
                                 .logit_rows = p->sizes.logit_rows,
                                 .slots = p->sizes.sequences < p->sizes.limits.tokens
                                              ? p->sizes.sequences
                                              : p->sizes.limits.tokens,
                                 .stride = p->sizes.limits.pages_per_sequence,
                                 .page_count = p->sizes.page_count,
                                 .vocab = p->model.vocab,
                                 .group = p->model.group};
  MGL_TRY(set_defaults(p, options, &l.options, err));
  mgl_cuda_make_image(p, &(mgl_cuda_start){.launch = &l.options, .most_iterations = 1});
  p->feeding.planner_lost = true;  // its cached pages may be overwritten
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

mgl_status mgl_cuda_program_check(const mgl_cuda_program *p, const mgl_cuda_request *r,
                                  mgl_error *err) {
  MGL_TRY(mgl_planner_check_request(&p->feeding.limits, r->prompt_count, r->max_new_tokens, err));
  if (r->stop_count > MGL_CUDA_MAX_STOP_IDS) {
    return mgl_error_set(err, MGL_ERR_LIMIT, "expected at most %d stop tokens, found %u",
                         MGL_CUDA_MAX_STOP_IDS, r->stop_count);
  }
  if (r->key_count > r->prompt_count / MGL_CUDA_KV_PAGE_TOKENS) {
    return mgl_error_set(err, MGL_ERR_ARGUMENT, "expected keys of at most %u pages, found %u",
                         r->prompt_count / MGL_CUDA_KV_PAGE_TOKENS, r->key_count);
  }
  for (uint32_t i = 0; i < r->edit_count; i++) {
    if (r->edits[i].token < 0 || (uint32_t)r->edits[i].token >= p->model.vocab) {
      return mgl_error_set(err, MGL_ERR_ARGUMENT, "expected edits of tokens of 0 to %u, found %d",
                           p->model.vocab - 1, r->edits[i].token);
    }
  }
  if (r->rule.top_logprobs > MGL_MAX_TOP_LOGPROBS) {
    return mgl_error_set(err, MGL_ERR_LIMIT, "expected log probabilities of at most %d, found %u",
                         MGL_MAX_TOP_LOGPROBS, r->rule.top_logprobs);
  }
  for (uint32_t i = 0; i < r->prompt_count; i++) {
    if (r->prompt[i] < 0 || (uint32_t)r->prompt[i] >= p->model.vocab) {
      return mgl_error_set(err, MGL_ERR_ARGUMENT, "token %u: expected an id of 0 to %u, found %d",
                           i, p->model.vocab - 1, r->prompt[i]);
    }
  }
  return MGL_OK;
}

static mgl_status check_job(launch *l, mgl_error *err) {
  const mgl_cuda_generate *job = l->job;
  uint32_t edits = job->most_edits;
  uint32_t logprobs = job->most_logprobs;
  bool has_masks = job->has_masks;
  if (job->source == NULL && job->request_count < 1) {
    return mgl_error_set(err, MGL_ERR_LIMIT, "requests: expected at least 1, found 0");
  }
  for (uint32_t i = 0; job->source == NULL && i < job->request_count; i++) {
    const mgl_cuda_request *r = &job->requests[i];
    mgl_status status = mgl_cuda_program_check(l->p, r, err);
    if (status != MGL_OK) {
      mgl_error_prefix(err, "request %u", i);
      return status;
    }
    uint32_t e = mgl_cuda_request_edits(r);
    uint32_t p = mgl_cuda_request_logprobs(r);
    edits = e > edits ? e : edits;
    logprobs = p > logprobs ? p : logprobs;
    has_masks = has_masks || r->mask.words != NULL;
  }
  return mgl_cuda_sampling_reserve(l->p, edits, logprobs, has_masks, err);
}

// Counts the iterations of the launch that has ended, and keeps when they began.
static mgl_status count_iterations(launch *l, mgl_error *err) {
  mgl_cuda_program *p = l->p;
  mgl_cuda_outcome *outcome = l->job->outcome;
  const mgl_protocol *protocol = &mgl_cuda_image_run(p)->protocol;
  uint64_t published = mgl_load_relaxed(&protocol->published);
  bool stopped = (mgl_load_relaxed(&protocol->info) & 1) != 0;
  uint32_t before = l->iterations;
  uint32_t more = (uint32_t)(published > 0 && stopped ? published - 1 : published);
  l->iterations += more;
  if (outcome == NULL) {
    return MGL_OK;
  }
  outcome->iterations = l->iterations;
  if (outcome->iteration_ns == NULL || before >= outcome->iteration_capacity) {
    return MGL_OK;
  }
  size_t count = more + (size_t)1;
  size_t room = outcome->iteration_capacity - before;
  count = count < room ? count : room;
  if (count <= p->layout.iteration_capacity) {
    MGL_CUDA_TRY(&p->device->driver, copy_to_host, err, outcome->iteration_ns + before,
                 mgl_cuda_state_at(p, p->layout.state.iteration_ns), count * sizeof(uint64_t));
  }
  return MGL_OK;
}

// Every request ended as it should.
static mgl_status check_ends(launch *l, mgl_error *err) {
  const mgl_cuda_feeding *f = &l->p->feeding;
  if (f->failed) {
    const mgl_cuda_slot *s = &f->slots[f->failed_slot];
    if (l->job->outcome != NULL) {
      l->job->outcome->failed_request = s->number;
    }
    return mgl_error_set(err, MGL_ERR_FORMAT,
                         "the model's logits are not finite (NaN or infinity) at position %u of "
                         "request %u: damaged weights?",
                         s->seen - 1, s->number);
  }
  for (uint32_t i = 0; i < f->slot_count && !l->left && l->job->most_iterations == 0; i++) {
    const mgl_cuda_slot *s = &f->slots[i];
    if (s->state == MGL_CUDA_SLOT_BUSY) {
      return mgl_error_set(err, MGL_ERR_INTERNAL,
                           "the launch ended and request %u did not: %u of up to %u tokens",
                           s->number, s->seen, s->max_tokens);
    }
  }
  return MGL_OK;
}

// Iterations of the wide class, the first of which the planner has planned, until it plans one that
// is not.
static mgl_status run_wide(launch *l, mgl_error *err) {
  mgl_cuda_program *p = l->p;
  const mgl_cuda_planning *planning = &mgl_cuda_image_run(p)->planning;
  uint64_t told = planning->told;
  bool ended = false;
  uint64_t start = mgl_clock_ns();
  MGL_TRY(mgl_cuda_wide_begin(p, err));
  l->wide = true;
  MGL_TRY(wait_until(l, l->options.deadline_ns, &ended, err));
  if (!ended) {
    l->killed = true;
    MGL_TRY(mgl_cuda_wide_abort(p, err));
    MGL_TRY(wait_until(l, (uint64_t)ABORT_NS, &ended, err));
    p->lost = !ended;
    MGL_TRY(p->ranks == NULL ? MGL_OK : mgl_ranks_check(p->ranks, err));  // which says why
    return mgl_error_set(err, MGL_ERR_INTERNAL,
                         "an iteration of more than %u tokens did not end after %.1f s",
                         p->sizes.limits.tokens, (double)l->options.deadline_ns / 1e9);
  }
  l->wide = false;
  MGL_TRY(mgl_cuda_wide_end(p, err));
  l->iterations += (uint32_t)(planning->told - told);
  l->host_ns += mgl_clock_ns() - start;
  return MGL_OK;
}

// The narrow class goes on where iterations of the wide one have ended.
static void resume(launch *l) {
  mgl_cuda_program *p = l->p;
  const mgl_cuda_planning kept = mgl_cuda_image_run(p)->planning;
  uint32_t left = l->most_iterations > l->iterations ? l->most_iterations - l->iterations : 0;
  mgl_cuda_make_image(p, &(mgl_cuda_start){.launch = &l->options, .most_iterations = left});
  mgl_cuda_feed_resume(p, &kept);
}

// Launches of the narrow class and chains of the wide one, as the planner has it.
static mgl_status run_launches(launch *l, mgl_error *err) {
  const mgl_cuda_run *run = mgl_cuda_image_run(l->p);
  MGL_TRY(run_launch(l, err));
  MGL_TRY(count_iterations(l, err));
  while (run->planning.wide_tokens != 0 && !l->killed) {
    MGL_TRY(run_wide(l, err));
    resume(l);
    MGL_TRY(run_launch(l, err));
    MGL_TRY(count_iterations(l, err));
  }
  return MGL_OK;
}

static mgl_status run_job(launch *l, mgl_error *err) {
  mgl_cuda_program *p = l->p;
  l->planner_lost = p->feeding.planner_lost;
  MGL_TRY(mgl_cuda_feed_begin(p, l->job, err));
  feed(l);
  if (l->left || (mgl_cuda_feed_busy(p) == 0 && p->feeding.end != MGL_FEED_OPEN)) {
    return MGL_OK;  // there is nothing to do
  }
  p->feeding.planner_lost = true;  // unless all goes well
  mgl_status status = run_launches(l, err);
  if (l->job->outcome != NULL) {
    l->job->outcome->host_ns = l->host_ns;
  }
  MGL_TRY(status);
  while (mgl_cuda_feed_report(p, l->job)) {
  }
  p->feeding.planner_lost = l->killed;
  return check_ends(l, err);
}

mgl_status mgl_cuda_program_generate(mgl_cuda_program *p, const mgl_cuda_generate *job,
                                     mgl_error *err) {
  launch l = {.p = p, .job = job};
  if (job->outcome != NULL) {
    job->outcome->iterations = 0;
    job->outcome->host_ns = 0;
    job->outcome->stopped = false;
  }
  MGL_TRY(check_job(&l, err));
  l.most_iterations = job->most_iterations > 0 ? job->most_iterations : UINT32_MAX;
  MGL_TRY(set_defaults(p, &job->launch, &l.options, err));
  mgl_cuda_make_image(
      p, &(mgl_cuda_start){.launch = &l.options, .most_iterations = l.most_iterations});
  mgl_status status = run_job(&l, err);
  if (job->outcome != NULL) {
    job->outcome->stopped = l.left;
  }
  return status;
}

// --- other ranks ---------------------------------------------------------------------------------

static mgl_status follow_launch(mgl_cuda_program *p, mgl_error *err) {
  const mgl_cuda_ranks_launch *from = &mgl_cuda_log_of(p->ranks)->launch;
  const mgl_cuda_generate job = {.chunk_tokens = from->chunk_tokens,
                                 .prompts_first = from->prompts_first != 0};
  launch l = {.p = p,
              .job = &job,
              .follows = true,
              .most_iterations = from->most_iterations,
              .options = from->options};
  l.options.injection = MGL_INJECT_NONE;  // rank 0's alone
  MGL_TRY(mgl_cuda_sampling_reserve(p, from->edit_capacity, 0, from->has_masks != 0, err));
  p->feeding.planner_lost = from->planner_lost != 0;
  p->feeding.log_base = from->first_command;
  mgl_cuda_make_image(
      p, &(mgl_cuda_start){.launch = &l.options, .most_iterations = l.most_iterations});
  MGL_TRY(mgl_cuda_feed_begin(p, &job, err));
  return run_launches(&l, err);
}

mgl_status mgl_cuda_program_follow_until(mgl_cuda_program *p, mgl_rank_command *out,
                                         mgl_error *err) {
  const mgl_plan *unused = NULL;
  while ((*out = mgl_ranks_take(p->ranks, &unused)) == MGL_RANK_RUN) {
    MGL_TRY(follow_launch(p, err));
  }
  return MGL_OK;
}

mgl_status mgl_cuda_program_follow(mgl_cuda_program *p, mgl_error *err) {
  mgl_rank_command command = MGL_RANK_NONE;
  return mgl_cuda_program_follow_until(p, &command, err);
}
