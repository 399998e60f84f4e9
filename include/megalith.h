// megalith.h: run open-weight language models from C or C++.
//
// A *model* is an opened Hugging Face folder or GGUF file. An *engine* is a model made ready on one
// device: weights, KV memory and the threads or the GPU that compute. A *request* is one prompt and
// what is generated for it. An engine computes many requests at once, in one persistent kernel;
// what a request gives does not depend on what else runs.
//
// The shortest program (examples/generate.c has it with its errors checked):
//
//   megalith_model_open(path, NULL, &model, &error);
//   megalith_engine_create(model, NULL, &engine, &error);
//   megalith_request_options ask = {.size = sizeof ask, .text = "Once upon a time"};
//   megalith_engine_submit(engine, &ask, &request, &error);
//   megalith_engine_run(engine, &error);
//   puts(megalith_request_result(request)->text);
//
// STRUCTS. Structs that the caller fills begin with `size`, which must be sizeof the struct: so a
// library that is newer than the header that a program was compiled with knows which fields the
// program has. Set everything else to zero: a zero always means the default that its comment names,
// and a NULL pointer to options means all defaults. Structs that the library hands out are its own
// memory; they may grow at their end. Strings and arrays that a caller passes in are copied.
//
// ERRORS. Functions that can fail return a megalith_status and fill a megalith_error (which may be
// NULL) with one message: what was expected, what was found, where. A failed function has no
// effect and leaves its output NULL. A failure of one request ends that request only. Nothing is
// printed, and no signal handler is installed. A NULL handle where one is needed is a bug of the
// caller, except in the functions that release something.
//
// THREADS. An engine computes either on a thread of its own (`background`), from its creation to
// its destruction, or on the thread that created it, whenever that calls megalith_engine_step or
// _run; then that thread also destroys it, and is pinned to a core in between. Everything else may
// be called from any thread at any time: submitting, cancelling, pausing, waiting, reading results
// and statistics. New requests and cancellations take effect at the next iteration. Two threads may
// not read the outputs of one request at the same time. megalith_engine_destroy and
// megalith_request_release are the last use of their handle: no other call with that handle may
// still be going on. A model may be used by many threads and engines at once.
//
// CALLBACKS run on one of the engine's computing threads, one at a time, and the engine waits for
// them. They may submit, cancel, pause, resume and release, their own request too; the request that
// they are given stays valid until they return. They may not destroy the engine; step and run
// refuse to be called there. THE LIFE OF A REQUEST, below, says when nothing more is called.
//
// FORK. A child that fork made has none of an engine's threads, and finds locks as they happened to
// be: all that it may do is exec or _exit. It may call no function of this header, not even to
// release something. The parent is not affected.
//
// MEMORY. All memory of an engine is planned and checked before any is taken. After that, only a
// request's own arrays are allocated. Limits stand beside what they limit, as MEGALITH_MAX_...;
// what exceeds one is refused with MEGALITH_ERROR_LIMIT, which names the limit and the value.
//
// Linux on x86-64 or aarch64. Link with `pkg-config --cflags --libs megalith`.
#ifndef MEGALITH_H
#define MEGALITH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define MEGALITH_API __attribute__((visibility("default")))

// Of this header; megalith_version() is that of the library. Before 1.0, a new minor version may
// change the interface; the shared library's name changes with it.
#define MEGALITH_VERSION_MAJOR 0
#define MEGALITH_VERSION_MINOR 1
#define MEGALITH_VERSION_PATCH 0

enum {
  MEGALITH_MAX_PROMPT_BYTES = 256 * 1024 * 1024,    // of one text prompt
  MEGALITH_MAX_MESSAGES = 65536,                    // of one chat
  MEGALITH_MAX_CHAT_JSON_BYTES = 16 * 1024 * 1024,  // of messages_json, tools_json, ... each
  MEGALITH_MAX_REQUESTS = 65536,         // of one engine that have not finished, all together
  MEGALITH_MAX_SEQUENCES = 1024,         // requests that run at once
  MEGALITH_MAX_ITERATION_TOKENS = 2048,  // of an engine
  MEGALITH_MAX_THREADS = 1024,           // of an engine on the CPU
  MEGALITH_MAX_RANKS = 8,
  MEGALITH_MAX_STOP_TOKENS = 16,       // of a request, the model's own among them
  MEGALITH_MAX_STOP_TEXTS = 16,        // of a request
  MEGALITH_MAX_STOP_TEXT_BYTES = 256,  // of each
  MEGALITH_MAX_SALT_BYTES = 256,       // of a request's cache_salt
  MEGALITH_MAX_LOGIT_BIASES = 1024,    // of a request
  MEGALITH_MAX_BAD_WORDS = 256,        // of a request
  MEGALITH_MAX_BAD_WORD_BYTES = 256,   // of each
  MEGALITH_MAX_TOP_LOGPROBS = 20,
  MEGALITH_MAX_GRAMMAR_BYTES = 1024 * 1024,  // of a grammar's text
  MEGALITH_ERROR_TEXT_BYTES = 1024,
};

typedef enum megalith_status {
  MEGALITH_OK = 0,
  MEGALITH_ERROR_ARGUMENT = 1,     // a value is out of its stated range
  MEGALITH_ERROR_FORMAT = 2,       // a file's content contradicts its format
  MEGALITH_ERROR_UNSUPPORTED = 3,  // well-formed, but nothing that Megalith can do
  MEGALITH_ERROR_IO = 4,           // the system refused to open, read or map
  MEGALITH_ERROR_MEMORY = 5,       // it would not fit, or an allocation failed
  MEGALITH_ERROR_LIMIT = 6,        // a limit was exceeded
  MEGALITH_ERROR_INTERNAL = 7,     // a fault of Megalith; the engine can only be destroyed
} megalith_status;

typedef struct megalith_error {
  megalith_status status;
  char text[MEGALITH_ERROR_TEXT_BYTES];  // one line, UTF-8, printable, always terminated
} megalith_error;

typedef struct megalith_model megalith_model;
typedef struct megalith_engine megalith_engine;
typedef struct megalith_request megalith_request;
typedef struct megalith_grammar megalith_grammar;

// "0.1.0", of the library that runs.
MEGALITH_API const char *megalith_version(void);

// --- models --------------------------------------------------------------------------------------

typedef enum megalith_weights {
  MEGALITH_WEIGHTS_AUTO = 0,    // what every token reads is copied into huge pages, if that takes
                                // at most half of the memory that is free, and has short rows as
                                // below, if both take at most three eighths; experts are in place
  MEGALITH_WEIGHTS_COPIED = 1,  // copied into huge pages; the files may go away afterwards
  MEGALITH_WEIGHTS_DUMMY = 2,   // drawn from dummy_seed; needs no weights on disk (benchmarks)
  MEGALITH_WEIGHTS_NONE = 3,    // none, on disk neither: for text and tokens; no engine takes it
  MEGALITH_WEIGHTS_MAPPED = 4,  // used in place in the safetensors files
  MEGALITH_WEIGHTS_SHORT = 5,   // in place, and of a large model, where up to 8 tokens are faster
                                // so, bf16 in 12 bits beside, which lose none
} megalith_weights;

typedef struct megalith_model_options {
  size_t size;               // sizeof(megalith_model_options)
  megalith_weights weights;  // of AUTO, COPIED, MAPPED and SHORT a GPU makes no difference
  uint64_t dummy_seed;
  bool needs_tokenizer;      // a model without one is refused, rather than its texts later
  bool needs_chat_template;  // the same, and one that Megalith cannot read; needs_tokenizer too
} megalith_model_options;

// Opens a folder with config.json, safetensors files and, for prompts and outputs that are text,
// tokenizer.json; or a GGUF file, which has all of them. Reads the chat template if there is one.
// Weights go to a device when an engine is
// created. A file that changes while it is in use is the caller's risk, as with any mapped file.
MEGALITH_API megalith_status megalith_model_open(const char *path,
                                                 const megalith_model_options *options,
                                                 megalith_model **out, megalith_error *error);
// Engines that still use the model keep it. NULL is fine.
MEGALITH_API void megalith_model_close(megalith_model *model);

typedef struct megalith_model_info {
  const char *family;       // "qwen3", "llama", ...
  uint32_t vocab_size;      // token ids are below this
  uint32_t context_tokens;  // most tokens of a sequence, prompt and generated together
  bool has_tokenizer;       // text in and out is possible
  bool has_chat_template;   // messages are possible
  // Parts of the model's generation_config.json that Megalith does not apply, with commas between
  // them; "" if there are none.
  const char *unapplied;
  const struct megalith_sampling *sampling;  // what a request without its own gets
  const char *chat_template;                 // its source; "" if there is none
  const char *const *template_variables;  // [template_variable_count] what the chat template takes
  size_t template_variable_count;         // besides messages and what Megalith sets, such as
                                          // "enable_thinking"
  uint32_t tokenizer_size;  // ids of its tokens are below this, which may be more or fewer than the
                            // model's vocab_size; 0: there is no tokenizer
  uint32_t max_new_tokens;  // of its generation_config.json; 0: that says nothing
  double temperature;  // of the same, for who wants to sample; sampling->temperature is 0 where
                       // the model's own way is not to
} megalith_model_info;

// Valid until the model is closed.
MEGALITH_API const megalith_model_info *megalith_model_describe(const megalith_model *model);

// The ids of a text of `bytes` bytes, as a text prompt would have them (with what the model wants
// in front, such as a BOS). *count becomes their number, also when that exceeds `capacity`: then
// only the first `capacity` are written. ids may be NULL if capacity is 0. Bytes that are not UTF-8
// count as U+FFFD.
MEGALITH_API megalith_status megalith_model_tokenize(const megalith_model *model, const char *text,
                                                     size_t bytes, int32_t *ids, size_t capacity,
                                                     size_t *count, megalith_error *error);
// The text of ids of the vocabulary (or of the tokenizer, where that has more), without special
// tokens, in the same way: *bytes becomes its size without the terminating NUL, and as much as fits
// is written to text[0 .. capacity), always terminated if capacity is not 0.
MEGALITH_API megalith_status megalith_model_detokenize(const megalith_model *model,
                                                       const int32_t *ids, size_t count, char *text,
                                                       size_t capacity, size_t *bytes,
                                                       megalith_error *error);

// The same with special tokens, as they are written.
MEGALITH_API megalith_status megalith_model_detokenize_special(const megalith_model *model,
                                                               const int32_t *ids, size_t count,
                                                               char *text, size_t capacity,
                                                               size_t *bytes,
                                                               megalith_error *error);

// The text of one id alone, special tokens too, in the same way. It may be part of a character,
// whose bytes then stand here as U+FFFD.
MEGALITH_API megalith_status megalith_model_token_text(const megalith_model *model, int32_t id,
                                                       char *text, size_t capacity, size_t *bytes,
                                                       megalith_error *error);

// The bytes that one id adds to a text behind other tokens, special tokens as they are written, in
// the same way: also where it is part of a character, and with the blank in front of a word that
// some tokenizers drop where a text begins.
MEGALITH_API megalith_status megalith_model_token_bytes(const megalith_model *model, int32_t id,
                                                        char *bytes, size_t capacity, size_t *count,
                                                        megalith_error *error);

// --- grammars ------------------------------------------------------------------------------------

typedef enum megalith_grammar_kind {
  MEGALITH_GRAMMAR_JSON_SCHEMA = 1,  // JSON that is valid by a JSON Schema
  MEGALITH_GRAMMAR_JSON_OBJECT = 2,  // any JSON object; needs no text
  MEGALITH_GRAMMAR_REGEX = 3,        // what a regular expression matches as a whole
  MEGALITH_GRAMMAR_CHOICE = 4,       // one of the texts of a JSON array
  MEGALITH_GRAMMAR_EBNF = 5,         // what the rule `root` stands for
  MEGALITH_GRAMMAR_PARTS = 6,  // these put together, and special tokens: a JSON object, such as
                               // {"sequence": [{"text": "<call>"}, {"schema": {}}]}
} megalith_grammar_kind;

typedef struct megalith_grammar_options {
  size_t size;  // sizeof(megalith_grammar_options)
  megalith_grammar_kind kind;
  const char *text;   // UTF-8, to MEGALITH_MAX_GRAMMAR_BYTES; docs/grammars.md has the syntax
  size_t text_bytes;  // 0: to its NUL
} megalith_grammar_options;

// Compiles a grammar for requests to this model (megalith_request_options.grammar), on the calling
// thread; up to some hundred milliseconds, the model's first one longer. The same grammar again is
// found in a cache. What is not supported is refused, with its place in the text:
// MEGALITH_ERROR_ARGUMENT, _UNSUPPORTED or _LIMIT. Needs the model's tokenizer.
MEGALITH_API megalith_status megalith_grammar_create(const megalith_model *model,
                                                     const megalith_grammar_options *options,
                                                     megalith_grammar **out, megalith_error *error);
// Requests that still use it keep it; before or after the model is closed. NULL is fine.
MEGALITH_API void megalith_grammar_release(megalith_grammar *grammar);

// --- programs and custom ops ---------------------------------------------------------------------

// The text of the tensor program of a model, a statement a line, as megalith_model_detokenize hands
// out texts:
//   input tokens i32[T]                                    T: tokens of an iteration, L: those that
//   weight model.norm.weight bf16[1024]                    need logits
//   normed = rmsnorm(x, model.norm.weight, logit_rows) eps=1e-06 : bf16[L,1024]
//   logits = linear(normed, lm_head.weight) : f32[L,32000]
//   output logits
// Changed, and with ops of one's own in it, an engine takes it as megalith_engine_options.program.
MEGALITH_API megalith_status megalith_model_program(const megalith_model *model, char *text,
                                                    size_t capacity, size_t *bytes,
                                                    megalith_error *error);

enum {
  MEGALITH_MAX_TENSOR_DIMS = 4,
  MEGALITH_MAX_CUSTOM_INPUTS = 8,
  MEGALITH_MAX_CUSTOM_ATTRIBUTES = 4,
};

typedef enum megalith_dtype {
  MEGALITH_F32 = 0,
  MEGALITH_BF16 = 1,
  MEGALITH_F16 = 2,  // of weights only
  MEGALITH_I32 = 3,  // of inputs of the plan only
} megalith_dtype;

typedef enum megalith_rows {
  MEGALITH_ROWS_FIXED = 0,   // dims[0] says how many
  MEGALITH_ROWS_TOKENS = 1,  // a row a token of the iteration: T
  MEGALITH_ROWS_LOGITS = 2,  // a row a token that needs logits: L
} megalith_rows;

typedef struct megalith_tensor_type {
  megalith_dtype dtype;
  megalith_rows rows;
  uint32_t rank;                            // 1 to MEGALITH_MAX_TENSOR_DIMS
  uint32_t dims[MEGALITH_MAX_TENSOR_DIMS];  // dims[0] of T and L: 0 in a shape function, in a call
                                            // the iteration's
} megalith_tensor_type;

// Says what the output is, for the inputs and attributes of one op of a program: true, and *output,
// which comes as that of input 0. False: they do not fit, and error->text may say why.
typedef bool megalith_custom_shape(void *context, const megalith_tensor_type *inputs,
                                   const double *attributes, megalith_tensor_type *output,
                                   megalith_error *error);

// What a share of one op is computed from. Valid during the call. Tensors are whole, row-major and
// dense; weights of one dim are f32, whatever their file has.
typedef struct megalith_custom_call {
  size_t size;               // of what the library knows
  void *context;             // megalith_custom_op.context
  const double *attributes;  // in the order of megalith_custom_op.attributes
  const megalith_tensor_type *input_types;
  const void *const *inputs;
  const megalith_tensor_type *output_type;
  void *output;
  uint32_t first_row, end_row;  // rows of the output to compute
} megalith_custom_call;

// Computes rows [first_row, end_row) of the output from the same rows of activations and of inputs
// of the plan, and from whole weights. Computing threads call it, several at once for other rows;
// it must not depend on which rows come together, nor wait for anything.
typedef void megalith_custom_cpu(const megalith_custom_call *call);

typedef struct megalith_custom_op {
  size_t size;                    // sizeof(megalith_custom_op)
  const char *name;               // in programs: small letters, digits and '_', no other op's
  uint32_t input_count;           // 1 to MEGALITH_MAX_CUSTOM_INPUTS; the first is an activation
  uint32_t mutated_inputs;        // bit i: the op writes input i. So far only 1: the output has the
                                  // storage of the first input, which nothing may read afterwards
  const char *const *attributes;  // [attribute_count] names of numbers that each op carries
  size_t attribute_count;         // to MEGALITH_MAX_CUSTOM_ATTRIBUTES
  megalith_custom_shape *shape;   // NULL: the output is as input 0
  megalith_custom_cpu *cpu;       // needed
  void *context;                  // given to both; stays valid to the end of the process
  const char *cuda_source;        // for GPUs, which refuse the op without it. NULL: there is none
  uint32_t cuda_tile_rows;        // rows that a block computes at once; with cuda_source
} megalith_custom_op;

// CUDA SOURCE defines a function of the op's name, and whatever that needs:
//
//   __device__ void logit_soft_cap(const megalith_custom_call *call) {
//     const float most = (float)call->attributes[0];
//     const uint32_t columns = call->output_type->dims[1];
//     const float *in = (const float *)call->inputs[0];
//     for (uint32_t row = call->first_row; row < call->end_row; row++)
//       for (uint32_t i = threadIdx.x; i < columns; i += blockDim.x)
//         ((float *)call->output)[row * columns + i] = most * tanhf(in[row * columns + i] / most);
//   }
//
// 256 threads call it together, number threadIdx.x of blockDim.x, for up to cuda_tile_rows rows at
// a time, which they share; it may have static shared memory, and __syncthreads() between them, but
// no other barrier of a block, and asks for nothing else of its launch: in the megakernel these are
// some of a block's threads. Inputs are not for __ldg, since others write them in the same launch.
// The types of this section are there, and <stdint.h>, <stddef.h> and <stdbool.h>; context is NULL.
// Each op's source is a namespace of its own. It is compiled as C++17
// without contraction of products and sums, when an engine is created, and kept by a hash of it; a
// source that does not compile is refused then, with what the compiler says.
//
// Makes an op known to all programs of the process, to its end. From any thread. It runs at every
// level and in every mode, and may be one of the splitting ops: in the megakernel as tasks of rows,
// compiled with it, where fused kernels cover the rest of the program and the op reads activations,
// weights of one dim, tokens and positions, in iterations of up to 64 tokens; in all other modes of
// a GPU as a kernel of its own, and all other ops run by plain kernels, whose last bits differ.
// Several ranks refuse programs that have one.
MEGALITH_API megalith_status megalith_custom_op_register(const megalith_custom_op *op,
                                                         megalith_error *error);

// --- engines -------------------------------------------------------------------------------------

typedef enum megalith_progress {
  MEGALITH_PROGRESS_WEIGHTS = 1,  // bytes that are loaded or made
  MEGALITH_PROGRESS_GRAPHS = 2,   // sizes of iterations whose CUDA graphs are captured
} megalith_progress;

// Called while an engine is created, on the thread that will compute.
typedef void megalith_progress_callback(void *context, megalith_progress what, uint64_t done,
                                        uint64_t total);

typedef struct megalith_iteration {
  uint32_t prompt_tokens;   // computed
  uint32_t generated;       // requests that it generated a token for behind their first
  uint64_t context_tokens;  // that these requests had, together
  uint64_t ns;              // that planning and computing it took
} megalith_iteration;

// Called behind each iteration and its outputs; a callback as CALLBACKS says.
typedef void megalith_iteration_callback(void *context, megalith_engine *engine,
                                         const megalith_iteration *iteration);

typedef struct megalith_engine_options {
  size_t size;         // sizeof(megalith_engine_options)
  const char *device;  // "cpu"; "cuda" or "cuda:N"; "auto": the first GPU if it can run the model,
                       // else the CPU. NULL: what MEGALITH_DEVICE says in the environment, or auto
  uint32_t threads;    // on the CPU, to MEGALITH_MAX_THREADS; 0: one per core. Others than 0 are
                       // refused on a GPU, and make "auto" the CPU
  uint32_t sequences;  // most requests that run together, to MEGALITH_MAX_SEQUENCES; 0: 64, on GPUs
      // 256, or as many as iteration_tokens if these are fewer. If there are more than
      // an iteration has tokens, they take turns; those beyond `sequences` wait
  uint32_t context_tokens;  // most tokens of one request, prompt and generated together; 0: the
                            // model's context, or as much of it as the KV memory holds
  uint64_t kv_tokens;       // tokens that the KV memory of all requests holds; 0: by memory_share
  double memory_share;  // of the memory that is free when the engine is created: as much of it as
                        // weights, activations and KV memory may take together, above 0 to 1; never
                        // more than `sequences` times `context_tokens` can use. 0: 0.9 of a GPU's,
                        // 0.5 of the host's memory
  uint32_t page_tokens;       // tokens of a KV page: 16, 32, 64, 128 or 256, on a GPU 16; 0: 16
  uint32_t iteration_tokens;  // most tokens of one iteration, to MEGALITH_MAX_ITERATION_TOKENS, on
                              // GPUs of more than 192 multiprocessors to 64; 0: 128, on other GPUs
                              // 2048, on these 64. Larger ones compute prompts faster, but the
                              // requests that generate meanwhile wait longer for a token
  uint32_t chunk_tokens;   // most prompt tokens of one request in an iteration; 0: no limit of its
                           // own. Smaller chunks make others wait less behind long prompts
  bool no_prefix_cache;    // prompts that begin alike do not share KV memory. Results are the same
  bool background;         // compute on a thread of the engine's own (see THREADS)
  bool prompt_logprobs;    // requests may set prompt_logprobs; takes memory for the logits of all
                           // tokens of an iteration. Means nothing on a GPU
  const char *partitions;  // how many tasks ops become, "gate_up=16 attend=4,2": of a kind of op or
                           // of one ("3.gate_up"), along its columns or rows, and of attention per
                           // KV head. Results are the same. NULL: the compiler decides
  const char *compilation;  // how ops are compiled and launched: a JSON object, such as
                            // {"level": 3, "graph_mode": "PIECEWISE"}, or the path of a file with
                            // one; docs/modes.md has all settings. Results are the same. NULL: the
                            // usual way
  const char *program;      // the text of a tensor program that runs in place of the model's own
      // (megalith_model_program), with its inputs, its KV caches and its output
      // "logits"; custom ops too. On one rank. NULL: the model's own
  uint32_t ranks;  // processes that run the model together, to MEGALITH_MAX_RANKS, each with its
      // part of the weights: on the CPU, each with `threads` of its own, or with device
      // "cuda:N" on GPUs N, N + 1, ... of this host; 0 and 1: this one alone. The others
      // are forked when the engine is created: no other thread may use this library, or
      // hold a lock that allocating needs, meanwhile, and for GPUs the process has not
      // used CUDA yet. When one ends, the engine has failed (megalith_engine_check)
  const char *meeting;  // the processes of `ranks` have been started by others on this host (MPI,
                        // Slurm): each gives the same text here, which no others have, its own
  uint32_t rank;        // rank, and otherwise the same. Rank 0 gets the engine; in the others
                        // megalith_engine_create returns errors only, and the process ends with
                        // rank 0's engine. On GPUs a process that sees one only takes that,
                        // and two on the same one are refused. NULL: they are forked
  const char
      *kv_dtype;        // of the KV cache: "fp8" takes half of the memory of bf16, on the CPU: E4M3
                        // with the checkpoint's k_scale and v_scale, or 1; values beyond 448 times
                        // the scale become that. NULL or "auto": as the activations, bf16 or f32
  const char *mode;     // how ops are launched, in one word: "mega", "eager", "full", "compiled",
                        // "piecewise", "full-decode-only" or "full-and-piecewise"; `compilation`
                        // then has neither level nor graph_mode. Results are the same. NULL: mega,
                        // where fused kernels cover the model
  bool tune;            // on the CPU: measure again which way of reading weights is fastest here,
                        // which the first engine did and noted
  bool vocab_parallel;  // with `ranks` on the CPU: each has its rows of the embedding, too
  bool
      reduce_scatter;  // with `ranks` on the CPU: each adds up its columns of a sum, and all gather
                       // them
  bool trace;          // keep when the latest tasks of each worker ran, for megalith_engine_trace
  bool scoring;        // megalith_engine_score may be called; takes memory for the logits of all
                       // tokens of an iteration, which are 64 or as many as iteration_tokens says,
                       // to 1024. For nothing else: such an engine takes no requests
  uint32_t requests;   // that there will be in all; then there is KV memory for all that run at
                       // once, unless kv_tokens or memory_share says how much; and context_tokens
                       // that this cannot hold are refused with a request. 0: not known
  const char *const *task_graphs;  // [task_graph_count] files that `megalith compile -o` wrote for
  uint32_t task_graph_count;       // this device and as many workers: they run in place of the
                                   // library's own, in mode mega, for as many tokens as they say
  megalith_progress_callback *on_progress;    // NULL: none
  void *progress_context;                     // its first argument
  megalith_iteration_callback *on_iteration;  // NULL: none
  void *iteration_context;                    // its first argument; valid as long as the engine
} megalith_engine_options;

// MEGALITH_OK if `device` is written as megalith_engine_options.device is, so that a program can
// refuse its own options before it opens a model; NULL: of what MEGALITH_DEVICE says. Whether that
// device is there, and can run a model, is found when an engine is created.
MEGALITH_API megalith_status megalith_device_check(const char *device, megalith_error *error);

MEGALITH_API megalith_status megalith_engine_create(megalith_model *model,
                                                    const megalith_engine_options *options,
                                                    megalith_engine **out, megalith_error *error);
// Ends what runs at the present iteration. Requests that have not finished end as cancelled, and
// all stay readable until they are released. All callbacks have returned. NULL is fine.
MEGALITH_API void megalith_engine_destroy(megalith_engine *engine);

typedef struct megalith_engine_info {
  const char *device;  // "cpu", or the GPU's name
  uint32_t workers;    // threads, or multiprocessors, that compute
  uint32_t sequences;
  uint32_t context_tokens;
  uint64_t kv_tokens;
  uint32_t page_tokens;
  const char *note;             // what a user should know, such as why no GPU is used; or ""
  uint64_t step_bytes;          // of weights that an iteration reads which computes one token
  uint64_t kv_bytes_per_token;  // and of KV memory, for each token of its request's context
} megalith_engine_info;

// What the options came to. Valid until the engine is destroyed.
MEGALITH_API const megalith_engine_info *megalith_engine_describe(const megalith_engine *engine);

// Computes one iteration if there is anything to compute. Only without `background`, and only on
// the thread that created the engine, outside callbacks (elsewhere: MEGALITH_ERROR_ARGUMENT, and
// nothing has changed); so too the next one. Any other error means that the engine can only be
// destroyed; all its requests have failed with that error.
MEGALITH_API megalith_status megalith_engine_step(megalith_engine *engine, megalith_error *error);
// Computes until every request has finished or is paused, those included that other threads and
// callbacks submit meanwhile, or until megalith_engine_stop. Without leaving the kernel in between.
MEGALITH_API megalith_status megalith_engine_run(megalith_engine *engine, megalith_error *error);
// Makes the megalith_engine_run that is going on return after its iteration; without one, the next
// one returns at once. Nothing is lost. Does nothing with `background`.
MEGALITH_API void megalith_engine_stop(megalith_engine *engine);
// MEGALITH_OK, or why the engine has failed: its requests have ended so, new ones are refused, and
// it can only be destroyed. With `background` told within a second, even while there is no work.
MEGALITH_API megalith_status megalith_engine_check(const megalith_engine *engine,
                                                   megalith_error *error);
// Whether some request is neither over (THE LIFE OF A REQUEST) nor paused, or something that was
// asked for, such as a pause or the cancellation of a paused request, waits for the next iteration.
MEGALITH_API bool megalith_engine_has_work(const megalith_engine *engine);

typedef struct megalith_statistics {
  size_t size;  // sizeof(megalith_statistics), set by the caller
  uint64_t iterations;
  uint64_t prompt_tokens;         // computed
  uint64_t generated_tokens;      // computed beyond the first of each request
  uint64_t prefix_hit_tokens;     // of prompts, found in KV memory instead of computed
  uint64_t prefix_lookup_tokens;  // of prompts that were looked up
  uint64_t preemptions;  // times that a request gave its pages to older ones and was computed again
  uint64_t planning_ns;  // spent choosing what to compute; part of total_ns
  uint64_t total_ns;     // spent in iterations
  uint32_t pages, pages_used, pages_used_most;  // of KV memory
  uint32_t running, waiting, paused;            // requests
  // Of mixtures of experts, on the CPU; else 0. Rows that experts computed, in all layers; how
  // often an expert's weights were read; rows of a layer's busiest expert over the mean of its
  // experts, as the mean of all layers.
  uint64_t expert_rows, expert_reads;
  double expert_largest_over_mean;
} megalith_statistics;

// As of the latest iteration.
MEGALITH_API megalith_status megalith_engine_get_statistics(const megalith_engine *engine,
                                                            megalith_statistics *out,
                                                            megalith_error *error);

// How fast this engine can read memory, in bytes per second: plain loads of its weights by those
// who compute, the fastest of two passes. No token comes faster than its step_bytes at that speed.
// One measurement; others use the machine, too, so it takes several to know. When and where
// megalith_engine_step may be called, and only without work.
MEGALITH_API megalith_status megalith_engine_read_ceiling(megalith_engine *engine,
                                                          double *bytes_per_s,
                                                          megalith_error *error);

// When each of the latest tasks ran, as JSON for chrome://tracing or ui.perfetto.dev, in the manner
// of megalith_model_detokenize. Of engines with `trace`, in mode mega; when and where
// megalith_engine_step may be called, and only without work.
MEGALITH_API megalith_status megalith_engine_trace(megalith_engine *engine, char *text,
                                                   size_t capacity, size_t *bytes,
                                                   megalith_error *error);

// The logits of the tokens that may follow `position`, one for each id of the vocabulary; valid
// during the call. Anything but MEGALITH_OK ends the scoring with that and *error.
typedef megalith_status megalith_logits_callback(void *context, size_t position,
                                                 const float *logits, megalith_error *error);

// What probability the model gives to a text: logprobs[0 .. count) become the natural logarithms of
// the probability of each token behind those before it, NaN for the first. on_logits (NULL: none)
// is called for every position in order. Of engines with `scoring`, not in the background, on the
// thread that created it.
MEGALITH_API megalith_status megalith_engine_score(megalith_engine *engine, const int32_t *tokens,
                                                   size_t count, double *logprobs,
                                                   megalith_logits_callback *on_logits,
                                                   void *context, megalith_error *error);

// --- requests ------------------------------------------------------------------------------------

// THE LIFE OF A REQUEST
//
//   state      from                                     references       wishes   result
//   open       submit                                   caller, engine   count    none yet
//   last call  its last output is made, and on_output   caller, engine   ignored  in on_output only
//              is called with it
//   over       that call has returned (at once if       caller           ignored  for everyone
//              there is no on_output)
//   gone       it is over, and released                 none             -        -
//
// Wishes are megalith_request_cancel, _pause and _resume. Any thread may call any function of a
// request in any state but "gone"; only one at a time megalith_request_next. The caller's reference
// is the handle, from submit to release (none if submit's `out` was NULL); the engine's ends
// without the caller noticing. Releasing an open request also cancels it.
//
// Each request that was submitted gets exactly one call of on_output whose `finish` is not
// MEGALITH_FINISH_NONE, whatever ends it, and none after it. So `context` may be freed
//   - in that call, by on_output itself, or
//   - by whoever knows that the request is over: megalith_request_wait has returned true,
//     megalith_request_next has given the last output, megalith_request_result is not NULL,
//     megalith_engine_has_work is false while nothing is paused, or megalith_engine_destroy has
//     returned.
// That megalith_request_release has returned says nothing: it does not wait, so that it may be
// called under locks that on_output takes, and the last call of a request that was open is still to
// come.

typedef struct megalith_logit_bias {
  int32_t token;  // at most once in a list
  float value;    // -100 to 100
} megalith_logit_bias;

// How tokens are chosen. The steps and their order are vLLM's: stop tokens wait for min_new_tokens,
// biases, penalties (repetition, frequency, presence), the grammar, temperature, min_p, top_k,
// top_p.
typedef struct megalith_sampling {
  size_t size;         // sizeof(megalith_sampling)
  double temperature;  // 0: always the likeliest token; to 100
  uint32_t top_k;      // only the k likeliest tokens; 0: all
  double top_p;  // only the likeliest tokens that together reach this probability, to 1; 0: all
  double min_p;  // only tokens at least this times as likely as the likeliest, to 1; 0: all
  double repetition_penalty;  // 0.01 to 100; above 1, tokens that prompt or answer have come again
                              // less often; 0 (and 1): off
  double presence_penalty;    // -2 to 2, subtracted from logits of tokens that were generated
  double frequency_penalty;   // -2 to 2, subtracted as often as the token was generated
  const megalith_logit_bias *biases;  // [bias_count] added to logits
  uint32_t bias_count;                // to MEGALITH_MAX_LOGIT_BIASES
  uint32_t min_new_tokens;            // no stop token before so many; at most max_new_tokens
  bool logprobs;                      // outputs tell how likely the model finds each token,
  uint32_t top_logprobs;              // and so many of the likeliest; to MEGALITH_MAX_TOP_LOGPROBS
  uint64_t seed;                      // the same seed, prompt and parameters give the same text
  const int32_t *allowed;  // [allowed_count] only these tokens are chosen; with 0 all may be
  uint32_t allowed_count;
  bool prompt_logprobs;  // megalith_request_prompt tells how likely the model finds each token
  uint32_t
      prompt_top_logprobs;  // of the prompt, and so many of the likeliest. On the CPU only, and
                            // only if the engine's options say so
} megalith_sampling;

// MEGALITH_OK if all of it is in its range, so that a program can refuse its own options before it
// creates an engine. Ids of tokens, and what depends on a request, are checked with that.
MEGALITH_API megalith_status megalith_sampling_check(const megalith_sampling *sampling,
                                                     megalith_error *error);

typedef struct megalith_message {
  const char *role;     // "system", "user", "assistant", or what else the model's template knows
  const char *content;  // UTF-8
} megalith_message;

typedef enum megalith_finish {
  MEGALITH_FINISH_NONE = 0,       // more will come
  MEGALITH_FINISH_STOP = 1,       // a stop token, a stop text, or the end of what a grammar allows
  MEGALITH_FINISH_LENGTH = 2,     // max_new_tokens
  MEGALITH_FINISH_CANCELLED = 3,  // by megalith_request_cancel, or the engine's end
  MEGALITH_FINISH_FAILED = 4,     // megalith_result.error says why
} megalith_finish;

// A token and the natural logarithm of the probability that the model gives it, before biases,
// penalties and temperature.
typedef struct megalith_logprob {
  int32_t token;
  double logprob;
} megalith_logprob;

// What one token brings.
typedef struct megalith_output {
  int32_t token;           // -1: none (the request ended for another reason than a token)
  megalith_finish finish;  // not NONE: this is the request's last output
  const char *text;        // that became certain with this token, terminated; often "", since a
                           // character may take several tokens, and what may be the beginning of a
                           // stop text waits. Stop tokens do not appear in it, and stop texts
                           // only by keep_stop_text. A blank between it and the prompt is part of
                           // it, but in the answer to a chat, which is a text of its own
  size_t text_bytes;
  double logprob;               // of the token; NaN unless asked for
  const megalith_logprob *top;  // [top_count] the likeliest tokens, most likely first
  uint32_t top_count;
} megalith_output;

typedef void megalith_output_callback(void *context, megalith_request *request,
                                      const megalith_output *output);

typedef struct megalith_request_options {
  size_t size;  // sizeof(megalith_request_options)
  // The prompt, exactly one of four; the fourth is messages_json, below:
  const char *text;       // UTF-8; what is not becomes U+FFFD
  size_t text_bytes;      // 0: to its NUL
  const int32_t *tokens;  // [token_count] ids
  size_t token_count;
  const megalith_message *messages;  // [message_count] put into the model's chat template
  size_t message_count;
  const void
      *cache_salt;  // [cache_salt_bytes] prompts share KV memory only under the same salt, so
  size_t cache_salt_bytes;  // that no tenant can tell by the time what another one asked; may be 0
  bool plain_special;       // special tokens that are written in `text` are text (untrusted input)

  uint32_t max_new_tokens;  // 0: the model's default, else 256; as far as the context allows
  const megalith_sampling *sampling;  // NULL: as the model's generation_config.json has it
  const int32_t *stop_tokens;  // [stop_token_count] of the vocabulary, besides the model's own
  uint32_t stop_token_count;
  bool ignore_model_stops;        // the model's own stop tokens do not end this request
  const char *const *stop_texts;  // [stop_text_count] that end the request where they are completed
  uint32_t stop_text_count;

  megalith_output_callback *on_output;  // called for every output in order; NULL: none
  void *context;                        // of on_output; THE LIFE OF A REQUEST says for how long

  // Of a chat, all UTF-8, up to MEGALITH_MAX_CHAT_JSON_BYTES each. The template gets messages as
  // transformers gives them, with two changes: content that is an array of parts becomes one string
  // (with newlines between the parts), unless the template looks into parts; and the arguments of
  // tool calls become an object where they are the JSON text of one.
  const char *messages_json;  // a JSON array of messages as the OpenAI API has them: role, content
                              // (a string, or an array of parts of type "text"; null in calls of
                              // tools), tool_calls, tool_call_id, name, reasoning_content; other
                              // keys are handed to the template
  const char *tools_json;     // a JSON array of objects, the template's variable `tools`
  const char *chat_variables_json;  // a JSON object of more variables, such as
                                    // {"enable_thinking": false}. Refused: names that Megalith sets
                                    // (messages, tools, add_generation_prompt, bos_token,
                                    // eos_token)
  bool continue_final_message;      // the last message is not closed: generation goes on inside it

  int32_t priority;   // of the requests that wait, those with less begin first; else in their order
  bool keep_special;  // special tokens that are generated appear in the text, but not stop tokens
  // What is generated matches this grammar; NULL: anything. Stop tokens are allowed where the text
  // may end, and where nothing can follow the request ends by itself (MEGALITH_FINISH_STOP), before
  // min_new_tokens too. What max_new_tokens, a stop text or a cancellation cuts off is the
  // beginning of a text that matches. Of this model; kept.
  megalith_grammar *grammar;
  bool without_special;  // `text` gets nothing in front that the tokenizer puts there, such as a
                         // BOS; chats never do, since templates write it
  bool keep_stop_text;   // the stop text that ends the request is the end of its text
  uint32_t max_prompt_tokens;  // of a longer prompt only so many tokens at its end count; 0: all,
                               // UINT32_MAX: as many as fit beside max_new_tokens, or beside the
                               // usual number of these, at most half the context
  const char *const
      *bad_words;           // [bad_word_count] texts that are not generated, neither as they are
  uint32_t bad_word_count;  // nor behind a blank: the last token of the tokens that each
                            // becomes is never chosen behind those before it. (Other tokens may
                            // spell it.) Up to MEGALITH_MAX_BAD_WORDS; not with a grammar or
                            // allowed tokens
} megalith_request_options;

// The tokens that the prompt of `options` becomes, in the manner of megalith_model_tokenize. What
// else the options say does not count; nothing is cut off.
MEGALITH_API megalith_status megalith_model_encode(const megalith_model *model,
                                                   const megalith_request_options *options,
                                                   int32_t *ids, size_t capacity, size_t *count,
                                                   megalith_error *error);

// The text that the messages or messages_json of `options` become, with tools_json and what else
// belongs to a chat, before it is tokens; in the manner of megalith_model_detokenize. What else the
// options say does not count.
MEGALITH_API megalith_status megalith_model_render(const megalith_model *model,
                                                   const megalith_request_options *options,
                                                   char *text, size_t capacity, size_t *bytes,
                                                   megalith_error *error);

// Hands a request to the engine. Everything is checked here; the first tokens come with the next
// iterations. out may be NULL: the request then releases itself when it has finished, and only
// on_output sees it.
MEGALITH_API megalith_status megalith_engine_submit(megalith_engine *engine,
                                                    const megalith_request_options *options,
                                                    megalith_request **out, megalith_error *error);

// Ends a request with MEGALITH_FINISH_CANCELLED, unless it ends otherwise within the present
// iteration. Its KV memory is free by the next one.
MEGALITH_API void megalith_request_cancel(megalith_request *request);
// A paused request keeps its tokens and gives its KV memory and its place to others; resumed, it
// goes on with the same result as if it had never been paused.
MEGALITH_API void megalith_request_pause(megalith_request *request);
MEGALITH_API void megalith_request_resume(megalith_request *request);

// The next output in order, NULL if there is none within timeout_ms (0: do not wait; negative: wait
// for ever), or none any more. Valid until the next call for this request. The thread that steps
// and runs the engine never waits, nor do its callbacks, since nothing would come meanwhile.
// Outputs can be read this way with and without a callback; the last one comes when on_output has
// returned.
MEGALITH_API const megalith_output *megalith_request_next(megalith_request *request,
                                                          int timeout_ms);
// Waits until the request is over; whether it is. The timeout is that of the function above.
MEGALITH_API bool megalith_request_wait(megalith_request *request, int timeout_ms);

typedef struct megalith_result {
  megalith_finish finish;
  const int32_t *tokens;  // [token_count] generated, with the stop token if one ended it
  size_t token_count;
  size_t prompt_token_count;
  const char *text;  // all of it, terminated; "" without a tokenizer
  size_t text_bytes;
  const char *error;  // why it failed; else ""
  megalith_status status;
  const double *logprobs;       // [token_count]; NULL unless asked for
  const megalith_logprob *top;  // [token_count, top_count]
  uint32_t top_count;
} megalith_result;

// All of a request that is over, NULL before; its own on_output has it in its last call. Valid
// until it is released.
MEGALITH_API const megalith_result *megalith_request_result(megalith_request *request);

// The prompt of a request that asked for prompt_logprobs; others have no tokens here. Log
// probabilities are NULL until the request has given its first output with a token.
typedef struct megalith_prompt {
  const int32_t *tokens;  // [token_count]
  size_t token_count;
  const double *logprobs;       // [token_count] of each behind those before it; NaN for the first
  const megalith_logprob *top;  // [token_count, top_count]; the first row means nothing
  uint32_t top_count;
} megalith_prompt;

// Valid until the request is released.
MEGALITH_API void megalith_request_prompt(megalith_request *request, megalith_prompt *out);

// The request's handle is not used any more; if it has not finished, it is cancelled. Before or
// after the engine is destroyed; in callbacks too, where `request` stays valid until they return.
// NULL is fine.
MEGALITH_API void megalith_request_release(megalith_request *request);

#ifdef __cplusplus
}
#endif

#endif
