// Reading a checkpoint tensor by tensor and writing model.safetensors, config.json and copies.
//
// The file is written once from front to back: the codes of all matrices first, made one matrix at
// a time by the whole team, then shapes, copies and scales, which were kept until then. In that
// order every tensor is aligned for its elements, as long as K is a multiple of 8.
#include "engine/quantize_model.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "base/alloc.h"
#include "base/file.h"
#include "base/json.h"
#include "base/new_file.h"
#include "base/text.h"
#include "model/model_folder.h"
#include "model/quantize_row.h"

enum { MAX_COPIED_BYTES = 256 * 1024 * 1024, MAX_CONFIG_BYTES = 4 * 1024 * 1024 };

static const char *const names[MGL_QUANTISE_COUNT] = {"fp8", "int8", "int4"};
static const mgl_dtype codes_of[MGL_QUANTISE_COUNT] = {MGL_DTYPE_E4M3, MGL_DTYPE_I8, MGL_DTYPE_I4};

const char *mgl_quantise_to_name(uint32_t index) {
  return index < MGL_QUANTISE_COUNT ? names[index] : NULL;
}

// A matrix that is quantised, and its scales once it was.
typedef struct quantised {
  const mgl_stored_tensor *from;
  uint32_t rows, k, groups;
  mgl_bf16 *scales;  // [rows, groups]
} quantised;

typedef struct writer {
  const mgl_quantise_options *options;
  mgl_checkpoint *checkpoint;
  quantised *matrices;
  size_t matrix_count;
  mgl_text header;
  mgl_new_file file;
  uint64_t offset;       // of the tensor that the header describes next
  uint64_t written;      // bytes of tensors
  unsigned char *codes;  // of the matrix at hand, as stored
  mgl_error *err;
} writer;

static mgl_form form_of(const writer *w, uint32_t k) {
  uint32_t group = w->options->group;
  return (mgl_form){.dtype = codes_of[w->options->to],
                    .group = group == 0 || group > k ? k : group};
}

static bool ends_with(const char *name, const char *suffix) {
  size_t bytes = strlen(name), suffix_bytes = strlen(suffix);
  return bytes > suffix_bytes && strcmp(name + bytes - suffix_bytes, suffix) == 0;
}

// Attention's matrices and those of feed-forward parts and experts: by Llama's names, Mixtral's and
// Phi's. Routers and gates stay as they are.
static bool is_quantised(const mgl_stored_tensor *tensor) {
  static const char *const suffixes[] = {"_proj.weight", ".w1.weight",  ".w2.weight",
                                         ".w3.weight",   ".fc1.weight", ".fc2.weight",
                                         ".dense.weight"};
  bool found = false;
  for (size_t i = 0; i < sizeof suffixes / sizeof *suffixes; i++) {
    found = found || ends_with(tensor->name, suffixes[i]);
  }
  return found && tensor->rank == 2;
}

// The modules that others would take for quantised ones: matrices that stay, and the output
// projection, also where it is the embedding.
static json_t *list_ignored(const writer *w) {
  static const char weight[] = ".weight";
  json_t *ignored = json_pack("[s]", "lm_head");
  for (size_t i = 0; i < mgl_checkpoint_tensor_count(w->checkpoint); i++) {
    const mgl_stored_tensor *t = mgl_checkpoint_at(w->checkpoint, i);
    if (t->rank == 2 && !is_quantised(t) && ends_with(t->name, weight) &&
        !ends_with(t->name, "embed_tokens.weight") && strcmp(t->name, "lm_head.weight") != 0) {
      json_array_append_new(ignored, json_stringn(t->name, strlen(t->name) - (sizeof weight - 1)));
    }
  }
  return ignored;
}

static mgl_status find_matrices(writer *w) {
  size_t count = mgl_checkpoint_tensor_count(w->checkpoint);
  w->matrices = mgl_alloc_zeroed(count, sizeof *w->matrices);
  if (w->matrices == NULL) {
    return mgl_error_set(w->err, MGL_ERR_MEMORY, "out of memory for %zu tensors", count);
  }
  for (size_t i = 0; i < count; i++) {
    const mgl_stored_tensor *tensor = mgl_checkpoint_at(w->checkpoint, i);
    if (!is_quantised(tensor)) {
      continue;
    }
    quantised *m = &w->matrices[w->matrix_count];
    uint32_t group = w->options->group;
    // Refuses dtypes that are not plain.
    MGL_TRY(mgl_checkpoint_find(w->checkpoint, tensor->name, &m->from, w->err));
    if (tensor->dims[0] > INT32_MAX || tensor->dims[1] > INT32_MAX || tensor->dims[1] % 8 != 0 ||
        (group != 0 && tensor->dims[1] % group != 0)) {
      return mgl_error_set(w->err, MGL_ERR_UNSUPPORTED,
                           "weight \"%s\" [%" PRIu64 ", %" PRIu64
                           "]: expected columns that are a multiple of 8 and of the group (%u): "
                           "another --group may fit",
                           tensor->name, tensor->dims[0], tensor->dims[1], group);
    }
    m->rows = (uint32_t)tensor->dims[0];
    m->k = (uint32_t)tensor->dims[1];
    MGL_TRY(mgl_form_check(form_of(w, m->k), m->k, w->err));
    m->groups = mgl_row_layout_of(form_of(w, m->k), m->k).groups;
    w->matrix_count++;
  }
  return MGL_OK;
}

// --- the header ----------------------------------------------------------------------------------

static void describe(writer *w, const char *stem, const char *suffix, const char *dtype,
                     uint32_t rank, const uint64_t *dims, uint64_t bytes) {
  mgl_text_format(&w->header, "%s\"%s%s\":{\"dtype\":\"%s\",\"shape\":[",
                  w->header.bytes == 1 ? "" : ",", stem, suffix, dtype);
  for (uint32_t i = 0; i < rank; i++) {
    mgl_text_format(&w->header, "%s%" PRIu64, i == 0 ? "" : ",", dims[i]);
  }
  mgl_text_format(&w->header, "],\"data_offsets\":[%" PRIu64 ",%" PRIu64 "]}", w->offset,
                  w->offset + bytes);
  w->offset += bytes;
}

static uint64_t code_bytes(const writer *w, const quantised *m) {
  return (uint64_t)m->rows * m->k / (w->options->to == MGL_QUANTISE_INT4 ? 2 : 1);
}

static void describe_matrix(writer *w, const quantised *m, int part) {
  static const char *const suffixes[] = {"_packed", "_shape", "_scale"};
  bool packs = w->options->to != MGL_QUANTISE_FP8;
  uint64_t bytes = code_bytes(w, m);
  const uint64_t codes[] = {m->rows, packs ? bytes / m->rows / 4 : m->k}, two = 2;
  const uint64_t scales[] = {m->rows, m->groups};
  if (part == 0) {
    describe(w, m->from->name, packs ? suffixes[0] : "", packs ? "I32" : "F8_E4M3", 2, codes,
             bytes);
  } else if (part == 1 && packs) {
    describe(w, m->from->name, suffixes[1], "I64", 1, &two, 2 * sizeof(uint64_t));
  } else if (part == 2) {
    describe(w, m->from->name, suffixes[2], "BF16", 2, scales,
             (uint64_t)m->rows * m->groups * sizeof(mgl_bf16));
  }
}

// Tensors that are copied, those of the larger elements first.
static void describe_copies(writer *w) {
  for (size_t bytes = 4; bytes >= 2; bytes -= 2) {
    for (size_t i = 0; i < mgl_checkpoint_tensor_count(w->checkpoint); i++) {
      const mgl_stored_tensor *t = mgl_checkpoint_at(w->checkpoint, i);
      if (!is_quantised(t) && mgl_dtype_bytes(t->dtype) == bytes) {
        describe(w, t->name, "", t->stored_dtype, t->rank, t->dims, t->bytes);
      }
    }
  }
}

static mgl_status write_header(writer *w) {
  mgl_text_append_string(&w->header, "{");
  for (int part = 0; part < 3; part++) {
    for (size_t i = 0; i < w->matrix_count; i++) {
      describe_matrix(w, &w->matrices[i], part);
    }
    if (part == 1) {
      describe_copies(w);
    }
  }
  mgl_text_append_string(&w->header, ",\"__metadata__\":{\"format\":\"pt\"}}");
  while (w->header.bytes % 8 != 0) {
    mgl_text_append_string(&w->header, " ");
  }
  MGL_TRY(mgl_text_check(&w->header, w->err));
  unsigned char length[8];
  for (int i = 0; i < 8; i++) {
    length[i] = (unsigned char)((uint64_t)w->header.bytes >> 8 * i);
  }
  MGL_TRY(mgl_new_file_write(&w->file, length, sizeof length, w->err));
  return mgl_new_file_write(&w->file, w->header.data, w->header.bytes, w->err);
}

// --- tensors -------------------------------------------------------------------------------------

static mgl_status put(writer *w, const void *data, uint64_t bytes) {
  MGL_TRY(mgl_new_file_write(&w->file, data, (size_t)bytes, w->err));
  w->written += bytes;
  if (w->options->report != NULL) {
    w->options->report(w->options->context, w->written, w->offset);
  }
  return MGL_OK;
}

// A row's codes as compressed-tensors has them: integers with 2^(bits - 1) added.
static void store_codes(mgl_quantise_to to, uint32_t k, const uint8_t *codes, unsigned char *out) {
  for (uint32_t i = 0; i < k; i++) {
    if (to == MGL_QUANTISE_INT4) {
      out[i / 2] = (unsigned char)(i % 2 == 0 ? codes[i] : out[i / 2] | codes[i] << 4);
    } else {
      out[i] = to == MGL_QUANTISE_INT8 ? codes[i] ^ 0x80 : codes[i];
    }
  }
}

typedef struct rows_job {
  const writer *w;
  const quantised *m;
  mgl_error *errors;  // [workers]
} rows_job;

static mgl_status quantise_rows(const rows_job *job, size_t begin, size_t end, mgl_error *err) {
  const quantised *m = job->m;
  const mgl_quantise_to to = job->w->options->to;
  size_t row_bytes = (size_t)(code_bytes(job->w, m) / m->rows);
  size_t from_bytes = m->k * mgl_dtype_bytes(m->from->dtype);
  mgl_row_quantiser q;
  mgl_status status = MGL_OK;
  MGL_TRY(mgl_row_quantiser_create(form_of(job->w, m->k), m->k, &q, err));
  for (size_t row = begin; row < end && status == MGL_OK; row++) {
    mgl_widen_f32(m->from->dtype, (const char *)m->from->data + row * from_bytes, m->k, q.values);
    for (uint32_t i = 0; i < m->k && status == MGL_OK; i++) {
      if (!isfinite(q.values[i])) {
        status = mgl_error_set(err, MGL_ERR_FORMAT,
                               "weight \"%s\": row %zu, column %u: expected a number, found %g",
                               m->from->name, row, i, (double)q.values[i]);
      }
    }
    mgl_row_quantise(&q, MGL_QUANTISE_ERROR);
    store_codes(to, m->k, q.codes, job->w->codes + row * row_bytes);
    for (uint32_t g = 0; g < m->groups; g++) {
      m->scales[row * m->groups + g] = mgl_f32_to_bf16(q.scales[g]);
    }
  }
  mgl_row_quantiser_destroy(&q);
  return status;
}

static void quantise_share(void *context, uint32_t index) {
  const rows_job *job = context;
  size_t begin = 0, end = 0;
  mgl_team_share(index, mgl_team_size(job->w->options->team), job->m->rows, 1, &begin, &end);
  (void)quantise_rows(job, begin, end, &job->errors[index]);
}

static mgl_status write_codes(writer *w, quantised *m) {
  uint32_t workers = mgl_team_size(w->options->team);
  rows_job job = {.w = w, .m = m, .errors = mgl_alloc_zeroed(workers, sizeof *job.errors)};
  m->scales = mgl_alloc_zeroed((size_t)m->rows * m->groups, sizeof *m->scales);
  w->codes = mgl_alloc((size_t)code_bytes(w, m));
  mgl_status status = MGL_OK;
  if (job.errors == NULL || m->scales == NULL || w->codes == NULL) {
    status = mgl_error_set(w->err, MGL_ERR_MEMORY, "out of memory for \"%s\"", m->from->name);
  } else {
    mgl_team_run(w->options->team, quantise_share, &job);
  }
  for (uint32_t i = 0; status == MGL_OK && i < workers; i++) {
    if (job.errors[i].status != MGL_OK) {
      status = mgl_error_set(w->err, job.errors[i].status, "%s", job.errors[i].text);
    }
  }
  if (status == MGL_OK) {
    status = put(w, w->codes, code_bytes(w, m));
  }
  mgl_free(job.errors);
  mgl_free(w->codes);
  w->codes = NULL;
  return status;
}

static mgl_status write_copies(writer *w) {
  for (size_t bytes = 4; bytes >= 2; bytes -= 2) {
    for (size_t i = 0; i < mgl_checkpoint_tensor_count(w->checkpoint); i++) {
      const mgl_stored_tensor *t = mgl_checkpoint_at(w->checkpoint, i);
      if (!is_quantised(t) && mgl_dtype_bytes(t->dtype) == bytes) {
        MGL_TRY(put(w, t->data, t->bytes));
      }
    }
  }
  return MGL_OK;
}

static mgl_status write_tensors(writer *w) {
  for (size_t i = 0; i < w->matrix_count; i++) {
    MGL_TRY(write_codes(w, &w->matrices[i]));
  }
  for (size_t i = 0; w->options->to != MGL_QUANTISE_FP8 && i < w->matrix_count; i++) {
    unsigned char shape[16];
    for (int b = 0; b < 8; b++) {
      shape[b] = (unsigned char)((uint64_t)w->matrices[i].rows >> 8 * b);
      shape[8 + b] = (unsigned char)((uint64_t)w->matrices[i].k >> 8 * b);
    }
    MGL_TRY(put(w, shape, sizeof shape));
  }
  MGL_TRY(write_copies(w));
  for (size_t i = 0; i < w->matrix_count; i++) {
    const quantised *m = &w->matrices[i];
    MGL_TRY(put(w, m->scales, (uint64_t)m->rows * m->groups * sizeof *m->scales));
  }
  return MGL_OK;
}

// --- the other files -----------------------------------------------------------------------------

// A temporary file is private; a model's files have the usual rights.
static void set_rights(const mgl_new_file *file) {
  mode_t mask = umask(0);
  (void)umask(mask);
  (void)fchmod(file->fd, 0666 & ~mask);
}

// Writes the file NAME of the new folder whole.
static mgl_status save(const mgl_quantise_options *options, const char *name, const char *data,
                       size_t bytes, mgl_error *err) {
  char *path = NULL;
  mgl_new_file file = {.fd = -1};
  MGL_TRY(mgl_path_join(options->to_folder, name, &path, err));
  mgl_status status = mgl_new_file_create(path, &file, err);
  if (status == MGL_OK) {
    set_rights(&file);
    status = mgl_new_file_write(&file, data, bytes, err);
  }
  if (status == MGL_OK) {
    status = mgl_new_file_commit(&file, err);
  }
  mgl_new_file_close(&file);
  mgl_free(path);
  return status;
}

// Copies a file if the old folder has it.
static mgl_status copy_file(const mgl_quantise_options *options, const char *name, mgl_error *err) {
  char *path = NULL, *data = NULL;
  size_t bytes = 0;
  mgl_file_kind kind = MGL_FILE_ABSENT;
  MGL_TRY(mgl_path_join(options->from, name, &path, err));
  mgl_status status = mgl_file_find(path, &kind, err);
  if (status == MGL_OK && kind != MGL_FILE_ABSENT) {
    status = mgl_file_read(path, MAX_COPIED_BYTES, &data, &bytes, err);
    if (status == MGL_OK) {
      status = save(options, name, data, bytes, err);
    }
  }
  mgl_free(data);
  mgl_free(path);
  return status;
}

static json_t *make_quantization_config(const writer *w) {
  const mgl_quantise_options *options = w->options;
  bool is_float = options->to == MGL_QUANTISE_FP8;
  json_t *weights =
      json_pack("{s:i,s:s,s:b,s:s,s:b}", "num_bits", options->to == MGL_QUANTISE_INT4 ? 4 : 8,
                "type", is_float ? "float" : "int", "symmetric", 1, "strategy",
                options->group != 0 ? "group" : "channel", "dynamic", 0);
  if (options->group != 0) {
    json_object_set_new(weights, "group_size", json_integer(options->group));
  }
  return json_pack("{s:s,s:s,s:s,s:o,s:{s:{s:[s],s:o,s:n,s:n}}}", "quant_method",
                   "compressed-tensors", "format", is_float ? "float-quantized" : "pack-quantized",
                   "quantization_status", "compressed", "ignore", list_ignored(w), "config_groups",
                   "group_0", "targets", "Linear", "weights", weights, "input_activations",
                   "output_activations");
}

static mgl_status write_config(const writer *w, mgl_error *err) {
  const mgl_quantise_options *options = w->options;
  char *path = NULL, *text = NULL;
  json_t *config = NULL;
  MGL_TRY(mgl_path_join(options->from, "config.json", &path, err));
  mgl_status status = mgl_json_read(path, MAX_CONFIG_BYTES, &config, err);
  if (status == MGL_OK) {
    json_t *quantization = make_quantization_config(w);
    if (json_object_set_new(config, "quantization_config", quantization) == 0) {
      text = json_dumps(config, JSON_INDENT(2));
    }
    status = text == NULL ? mgl_error_set(err, MGL_ERR_MEMORY, "out of memory for config.json")
                          : save(options, "config.json", text, strlen(text), err);
  }
  mgl_free(text);
  json_decref(config);
  mgl_free(path);
  return status;
}

static mgl_status write_other_files(const writer *w, mgl_error *err) {
  static const char *const copied[] = {"tokenizer.json", "tokenizer_config.json",
                                       "generation_config.json", "chat_template.jinja",
                                       "special_tokens_map.json"};
  for (size_t i = 0; i < sizeof copied / sizeof *copied; i++) {
    MGL_TRY(copy_file(w->options, copied[i], err));
  }
  return write_config(w, err);
}

// --- all of it -----------------------------------------------------------------------------------

// Refuses what is quantised already, and a target that has a model.
static mgl_status check_folders(const mgl_quantise_options *options, mgl_error *err) {
  mgl_model_folder folder;
  char *path = NULL;
  mgl_file_kind kind = MGL_FILE_ABSENT;
  MGL_TRY(mgl_model_folder_open(options->from, 0, &folder, err));
  bool is_plain = folder.config.quantization.method == MGL_QUANT_NONE;
  bool is_gpt_oss = folder.config.family == MGL_FAMILY_GPT_OSS;
  mgl_model_folder_close(&folder);
  MGL_TRY(mgl_file_find(options->from, &kind, err));
  if (kind != MGL_FILE_FOLDER) {
    return mgl_error_set(err, MGL_ERR_ARGUMENT,
                         "%s is a GGUF file: expected a model folder, whose files go along",
                         options->from);
  }
  if (!is_plain) {
    return mgl_error_set(err, MGL_ERR_ARGUMENT,
                         "%s is quantised already: expected a model in bf16, f16 or f32",
                         options->from);
  }
  if (is_gpt_oss) {
    return mgl_error_set(err, MGL_ERR_UNSUPPORTED,
                         "%s is a gpt-oss model: nothing reads its experts, which are one tensor, "
                         "in %s",
                         options->from, names[options->to]);
  }
  if (mkdir(options->to_folder, 0777) != 0 && errno != EEXIST) {
    return mgl_error_set(err, MGL_ERR_IO, "cannot make the folder %s: %s", options->to_folder,
                         strerror(errno));
  }
  MGL_TRY(mgl_path_join(options->to_folder, "config.json", &path, err));
  mgl_status status = mgl_file_find(path, &kind, err);
  if (status == MGL_OK && kind != MGL_FILE_ABSENT) {
    status =
        mgl_error_set(err, MGL_ERR_ARGUMENT,
                      "%s is there already: expected a new folder, or one without a model", path);
  }
  mgl_free(path);
  return status;
}

static mgl_status write_model(writer *w) {
  char *path = NULL;
  MGL_TRY(mgl_path_join(w->options->to_folder, "model.safetensors", &path, w->err));
  mgl_status status = mgl_new_file_create(path, &w->file, w->err);
  mgl_free(path);
  if (status == MGL_OK) {
    set_rights(&w->file);
    status = write_header(w);
  }
  if (status == MGL_OK) {
    status = write_tensors(w);
  }
  return status == MGL_OK ? mgl_new_file_commit(&w->file, w->err) : status;
}

mgl_status mgl_quantise_model(const mgl_quantise_options *given, mgl_quantise_result *out,
                              mgl_error *err) {
  mgl_quantise_options options = *given;
  if (options.to == MGL_QUANTISE_INT4 && options.group == 0) {
    options.group = MGL_QUANTISE_INT4_GROUP;
  }
  if (options.to == MGL_QUANTISE_FP8 && options.group != 0) {
    return mgl_error_set(err, MGL_ERR_ARGUMENT, "fp8 has a scale for each row: expected no group");
  }
  MGL_TRY(check_folders(&options, err));
  writer w = {.options = &options, .file = {.fd = -1}, .err = err};
  mgl_status status = mgl_checkpoint_open(options.from, &w.checkpoint, err);
  if (status == MGL_OK) {
    status = find_matrices(&w);
  }
  if (status == MGL_OK) {
    status = write_model(&w);
  }
  if (status == MGL_OK) {
    status = write_other_files(&w, err);  // config.json last: with it the folder is a model
  }
  if (status == MGL_OK) {
    *out = (mgl_quantise_result){.from_bytes = mgl_checkpoint_bytes(w.checkpoint),
                                 .to_bytes = w.written,
                                 .matrices = (uint32_t)w.matrix_count};
  }
  for (size_t i = 0; w.matrices != NULL && i < w.matrix_count; i++) {
    mgl_free(w.matrices[i].scales);
  }
  mgl_free(w.matrices);
  mgl_new_file_close(&w.file);
  mgl_text_free(&w.header);
  mgl_checkpoint_close(w.checkpoint);
  return status;
}
