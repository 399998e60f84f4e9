// Reading the container: header, metadata, tensors.
//
// One cursor walks the file from its start; it is the only thing that reads lengths, and it never
// moves past the end. Values stay where they are: an array is walked once to find its end, so that
// later readers need no checks. Rejected: copying metadata into a tree, since the two arrays that
// matter have hundreds of thousands of strings that the tokenizer copies anyway.
#include "model/gguf.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "model/checkpoint.h"

enum {
  DEFAULT_ALIGNMENT = 32,
  MIN_VALUE_BYTES = 13,   // an empty key, a type, a byte
  MIN_TENSOR_BYTES = 24,  // an empty name, no dims, type, offset
  TEXT_OF_A_BYTE = 6,  // a token is a few bytes here, and a JSON value of its own when it is read
};

static const mgl_gguf_type types[] = {
    {0, "F32", 1, 4},         {1, "F16", 1, 2},         {2, "Q4_0", 32, 18},
    {3, "Q4_1", 32, 20},      {6, "Q5_0", 32, 22},      {7, "Q5_1", 32, 24},
    {8, "Q8_0", 32, 34},      {10, "Q2_K", 256, 84},    {11, "Q3_K", 256, 110},
    {12, "Q4_K", 256, 144},   {13, "Q5_K", 256, 176},   {14, "Q6_K", 256, 210},
    {16, "IQ2_XXS", 256, 66}, {17, "IQ2_XS", 256, 74},  {18, "IQ3_XXS", 256, 98},
    {19, "IQ1_S", 256, 50},   {20, "IQ4_NL", 32, 18},   {21, "IQ3_S", 256, 110},
    {22, "IQ2_S", 256, 82},   {23, "IQ4_XS", 256, 136}, {24, "I8", 1, 1},
    {25, "I16", 1, 2},        {26, "I32", 1, 4},        {27, "I64", 1, 8},
    {28, "F64", 1, 8},        {29, "IQ1_M", 256, 56},   {30, "BF16", 1, 2},
    {34, "TQ1_0", 256, 54},   {35, "TQ2_0", 256, 66},   {39, "MXFP4", 32, 17},
};

static const uint8_t kind_bytes[MGL_GGUF_KIND_COUNT] = {
    [MGL_GGUF_U8] = 1,  [MGL_GGUF_I8] = 1,  [MGL_GGUF_U16] = 2, [MGL_GGUF_I16] = 2,
    [MGL_GGUF_U32] = 4, [MGL_GGUF_I32] = 4, [MGL_GGUF_F32] = 4, [MGL_GGUF_BOOL] = 1,
    [MGL_GGUF_U64] = 8, [MGL_GGUF_I64] = 8, [MGL_GGUF_F64] = 8,
};

static const char *const kind_names[MGL_GGUF_KIND_COUNT] = {
    "u8", "i8", "u16", "i16", "u32", "i32", "f32", "bool", "string", "array", "u64", "i64", "f64"};

typedef struct cursor {
  const unsigned char *start, *at, *end;
  const char *where;
  mgl_error *err;
} cursor;

// --- numbers and strings -------------------------------------------------------------------------

static uint64_t integer_of(const unsigned char *data, size_t bytes) {
  uint64_t value = 0;
  for (size_t i = 0; i < bytes; i++) {
    value |= (uint64_t)data[i] << 8 * i;
  }
  return value;
}

static size_t left(const cursor *c) {
  return (size_t)(c->end - c->at);
}

static mgl_status too_short(const cursor *c, const char *what) {
  return mgl_error_set(c->err, MGL_ERR_FORMAT,
                       "%s: expected %s at byte %zu, the file ends at %zu; is the download "
                       "complete?",
                       c->where, what, (size_t)(c->at - c->start), (size_t)(c->end - c->start));
}

static mgl_status take(cursor *c, size_t bytes, const char *what, uint64_t *out) {
  if (left(c) < bytes) {
    return too_short(c, what);
  }
  *out = integer_of(c->at, bytes);
  c->at += bytes;
  return MGL_OK;
}

static mgl_status take_string(cursor *c, const char *what, mgl_gguf_string *out) {
  uint64_t bytes = 0;
  MGL_TRY(take(c, 8, what, &bytes));
  if (bytes > left(c)) {
    return mgl_error_set(c->err, MGL_ERR_FORMAT,
                         "%s: expected %s at byte %zu: its length says %" PRIu64
                         " bytes, the file has %zu left",
                         c->where, what, (size_t)(c->at - c->start), bytes, left(c));
  }
  *out = (mgl_gguf_string){.text = (const char *)c->at, .bytes = (size_t)bytes};
  c->at += bytes;
  return MGL_OK;
}

// A key or a name, which messages show.
static mgl_status take_name(cursor *c, const char *what, size_t most, mgl_gguf_string *out) {
  MGL_TRY(take_string(c, what, out));
  if (out->bytes == 0 || out->bytes > most || memchr(out->text, 0, out->bytes) != NULL) {
    return mgl_error_set(c->err, out->bytes > most ? MGL_ERR_LIMIT : MGL_ERR_FORMAT,
                         "%s: %s at byte %zu: expected 1 to %zu bytes without NUL, found %zu",
                         c->where, what, (size_t)((const unsigned char *)out->text - c->start),
                         most, out->bytes);
  }
  return MGL_OK;
}

// --- metadata ------------------------------------------------------------------------------------

static mgl_status skip_elements(cursor *c, mgl_gguf_value *value) {
  const int shown = (int)value->key.bytes;
  value->data = c->at;
  if (value->kind != MGL_GGUF_STRING) {
    uint64_t bytes = 0;
    if (__builtin_mul_overflow(value->count, (uint64_t)kind_bytes[value->kind], &bytes) ||
        bytes > left(c)) {
      return mgl_error_set(
          c->err, MGL_ERR_FORMAT,
          "%s: key \"%.*s\": expected %" PRIu64 " elements of %s, the file has %zu bytes left",
          c->where, shown, value->key.text, value->count, kind_names[value->kind], left(c));
    }
    c->at += bytes;
    return MGL_OK;
  }
  char what[MGL_GGUF_MAX_KEY_BYTES + 32];
  (void)snprintf(what, sizeof what, "a string of \"%.*s\"", shown, value->key.text);
  for (uint64_t i = 0; i < value->count; i++) {
    mgl_gguf_string ignored;
    MGL_TRY(take_string(c, what, &ignored));
  }
  return MGL_OK;
}

static mgl_status take_value(cursor *c, mgl_gguf_value *out) {
  uint64_t kind = 0;
  *out = (mgl_gguf_value){.count = 1};
  MGL_TRY(take_name(c, "a key", MGL_GGUF_MAX_KEY_BYTES, &out->key));
  MGL_TRY(take(c, 4, "a value's type", &kind));
  if (kind == MGL_GGUF_ARRAY) {
    out->is_array = true;
    MGL_TRY(take(c, 4, "an array's type", &kind));
    MGL_TRY(take(c, 8, "an array's length", &out->count));
  }
  if (kind >= MGL_GGUF_KIND_COUNT || kind == MGL_GGUF_ARRAY) {
    return mgl_error_set(c->err, MGL_ERR_UNSUPPORTED,
                         "%s: key \"%.*s\": expected a type of 0 to %d%s, found %" PRIu64, c->where,
                         (int)out->key.bytes, out->key.text, MGL_GGUF_KIND_COUNT - 1,
                         out->is_array ? " that is no array itself" : "", kind);
  }
  out->kind = (mgl_gguf_kind)kind;
  return skip_elements(c, out);
}

static int compare_strings(mgl_gguf_string a, mgl_gguf_string b) {
  size_t common = a.bytes < b.bytes ? a.bytes : b.bytes;
  int order = common == 0 ? 0 : memcmp(a.text, b.text, common);
  return order != 0 ? order : (a.bytes > b.bytes) - (a.bytes < b.bytes);
}

static int compare_keys(const void *left_value, const void *right_value) {
  const mgl_gguf_value *a = left_value, *b = right_value;
  return compare_strings(a->key, b->key);
}

static mgl_status take_metadata(cursor *c, mgl_gguf *out) {
  for (size_t i = 0; i < out->value_count; i++) {
    MGL_TRY(take_value(c, &out->values[i]));
  }
  if (out->value_count != 0) {
    qsort(out->values, out->value_count, sizeof *out->values, compare_keys);
  }
  for (size_t i = 1; i < out->value_count; i++) {
    mgl_gguf_string key = out->values[i].key;
    if (compare_keys(&out->values[i - 1], &out->values[i]) == 0) {
      return mgl_error_set(c->err, MGL_ERR_FORMAT, "%s: key \"%.*s\" is there twice", c->where,
                           (int)key.bytes, key.text);
    }
  }
  return MGL_OK;
}

// --- tensors -------------------------------------------------------------------------------------

static mgl_status find_type(const cursor *c, const mgl_gguf_tensor *tensor, uint64_t number,
                            const mgl_gguf_type **out) {
  for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
    if (types[i].number == number) {
      *out = &types[i];
      return MGL_OK;
    }
  }
  return mgl_error_set(c->err, MGL_ERR_UNSUPPORTED,
                       "%s: tensor \"%.*s\": its type %" PRIu64 " is not known", c->where,
                       (int)tensor->name.bytes, tensor->name.text, number);
}

// Rows are whole blocks; the product of all sizes fits.
static mgl_status count_bytes(const cursor *c, mgl_gguf_tensor *tensor) {
  const mgl_gguf_type *type = tensor->type;
  uint64_t row = tensor->rank == 0 ? 1 : tensor->dims[tensor->rank - 1];
  uint64_t elements = 1;
  bool fits = true;
  for (uint32_t i = 0; i < tensor->rank; i++) {
    fits = fits && !__builtin_mul_overflow(elements, tensor->dims[i], &elements);
  }
  if (!fits || row % type->block != 0 ||
      __builtin_mul_overflow(elements / type->block, (uint64_t)type->block_bytes, &tensor->bytes)) {
    return mgl_error_set(
        c->err, MGL_ERR_FORMAT,
        "%s: tensor \"%.*s\": expected rows of a multiple of %u elements (%s), and "
        "a number of elements below 2^64, found rows of %" PRIu64,
        c->where, (int)tensor->name.bytes, tensor->name.text, type->block, type->name, row);
  }
  return MGL_OK;
}

static mgl_status take_tensor(cursor *c, mgl_gguf_tensor *out) {
  uint64_t rank = 0, type = 0;
  *out = (mgl_gguf_tensor){0};
  MGL_TRY(take_name(c, "a tensor's name", MGL_GGUF_MAX_NAME_BYTES, &out->name));
  MGL_TRY(take(c, 4, "a tensor's rank", &rank));
  if (rank > MGL_GGUF_MAX_RANK) {
    return mgl_error_set(c->err, MGL_ERR_LIMIT,
                         "%s: tensor \"%.*s\": expected at most %d dimensions, found %" PRIu64,
                         c->where, (int)out->name.bytes, out->name.text, MGL_GGUF_MAX_RANK, rank);
  }
  out->rank = (uint32_t)rank;
  for (uint32_t i = 0; i < out->rank; i++) {
    MGL_TRY(take(c, 8, "a tensor's size", &out->dims[out->rank - 1 - i]));
  }
  MGL_TRY(take(c, 4, "a tensor's type", &type));
  MGL_TRY(take(c, 8, "a tensor's offset", &out->begin));
  MGL_TRY(find_type(c, out, type, &out->type));
  return count_bytes(c, out);
}

static int compare_tensor_names(const void *left_tensor, const void *right_tensor) {
  const mgl_gguf_tensor *a = left_tensor, *b = right_tensor;
  return compare_strings(a->name, b->name);
}

static int compare_begins(const void *left_tensor, const void *right_tensor) {
  const mgl_gguf_tensor *a = left_tensor, *b = right_tensor;
  if (a->begin != b->begin) {
    return a->begin < b->begin ? -1 : 1;
  }
  return (a->bytes > b->bytes) - (a->bytes < b->bytes);
}

static uint64_t round_up(uint64_t value, uint64_t alignment) {
  return (value + alignment - 1) / alignment * alignment;
}

// Each tensor begins at the first border behind the one before; sorts them so.
static mgl_status place_tensors(const cursor *c, uint64_t alignment, mgl_gguf *out) {
  const unsigned char *data = c->at;
  uint64_t covered = 0;
  qsort(out->tensors, out->tensor_count, sizeof *out->tensors, compare_begins);
  for (size_t i = 0; i < out->tensor_count; i++) {
    mgl_gguf_tensor *tensor = &out->tensors[i];
    uint64_t expected = round_up(covered, alignment);
    const int shown = (int)tensor->name.bytes;
    if (tensor->begin != expected) {
      return mgl_error_set(c->err, MGL_ERR_FORMAT,
                           "%s: tensor \"%.*s\": expected to begin at byte %" PRIu64
                           " of the data, found %" PRIu64 " (%s)",
                           c->where, shown, tensor->name.text, expected, tensor->begin,
                           tensor->begin < expected ? "tensors overlap" : "there is a hole");
    }
    if (expected > out->data_bytes || tensor->bytes > out->data_bytes - expected) {
      return mgl_error_set(c->err, MGL_ERR_FORMAT,
                           "%s: tensor \"%.*s\": expected %" PRIu64 " bytes from byte %" PRIu64
                           " of the data on, which has %" PRIu64 "; is the download complete?",
                           c->where, shown, tensor->name.text, tensor->bytes, expected,
                           out->data_bytes);
    }
    tensor->data = data + expected;
    covered = expected + tensor->bytes;
  }
  if (out->data_bytes > round_up(covered, alignment)) {
    return mgl_error_set(c->err, MGL_ERR_FORMAT,
                         "%s: the tensors take %" PRIu64 " bytes of data, found %" PRIu64, c->where,
                         covered, out->data_bytes);
  }
  return MGL_OK;
}

static mgl_status take_tensors(cursor *c, mgl_gguf *out) {
  for (size_t i = 0; i < out->tensor_count; i++) {
    MGL_TRY(take_tensor(c, &out->tensors[i]));
  }
  if (out->tensor_count != 0) {
    qsort(out->tensors, out->tensor_count, sizeof *out->tensors, compare_tensor_names);
  }
  for (size_t i = 1; i < out->tensor_count; i++) {
    mgl_gguf_string name = out->tensors[i].name;
    if (compare_strings(out->tensors[i - 1].name, name) == 0) {
      return mgl_error_set(c->err, MGL_ERR_FORMAT, "%s: tensor \"%.*s\" is there twice", c->where,
                           (int)name.bytes, name.text);
    }
  }
  return MGL_OK;
}

// Moves to the data, which begins at a border.
static mgl_status find_data(cursor *c, mgl_gguf *out) {
  static const char key[] = "general.alignment";
  uint64_t alignment = DEFAULT_ALIGNMENT;
  MGL_TRY(mgl_gguf_u64(out, key, &alignment, c->err));
  if (alignment == 0 || alignment > MGL_GGUF_MAX_ALIGNMENT || (alignment & (alignment - 1)) != 0) {
    return mgl_error_set(c->err, MGL_ERR_FORMAT,
                         "%s: \"%s\": expected a power of two of at most %d, found %" PRIu64,
                         c->where, key, MGL_GGUF_MAX_ALIGNMENT, alignment);
  }
  if (out->tensor_count == 0) {
    return MGL_OK;  // a vocabulary alone may end without filling up
  }
  uint64_t begin = round_up((uint64_t)(c->at - c->start), alignment);
  if (begin > (uint64_t)(c->end - c->start)) {
    return too_short(c, "the tensors' data");
  }
  c->at = c->start + begin;
  out->data_bytes = left(c);
  return place_tensors(c, alignment, out);
}

// --- the file ------------------------------------------------------------------------------------

static mgl_status take_count(cursor *c, const char *what, size_t most, size_t bytes_each,
                             size_t *out) {
  uint64_t count = 0;
  MGL_TRY(take(c, 8, what, &count));
  if (count > most || count > left(c) / bytes_each) {
    return mgl_error_set(c->err, count > most ? MGL_ERR_LIMIT : MGL_ERR_FORMAT,
                         "%s: expected %s of at most %zu, which the file has room for, found "
                         "%" PRIu64,
                         c->where, what, most, count);
  }
  *out = (size_t)count;
  return MGL_OK;
}

static mgl_status parse(cursor *c, mgl_gguf *out) {
  uint64_t magic = 0, version = 0;
  MGL_TRY(take(c, 4, "\"GGUF\"", &magic));
  MGL_TRY(take(c, 4, "a version", &version));
  if (!mgl_gguf_is(c->start, 4) || (version != 2 && version != 3)) {
    const char *hint = (version & 0xffff) == 0 ? " (of a big-endian machine?)" : "";
    return mgl_error_set(c->err, MGL_ERR_UNSUPPORTED,
                         "%s: expected a GGUF file of version 2 or 3, found version %" PRIu64 "%s",
                         c->where, version, hint);
  }
  MGL_TRY(take_count(c, "a number of tensors", MGL_CHECKPOINT_MAX_TENSORS, MIN_TENSOR_BYTES,
                     &out->tensor_count));
  MGL_TRY(
      take_count(c, "a number of keys", MGL_GGUF_MAX_VALUES, MIN_VALUE_BYTES, &out->value_count));
  out->values = mgl_alloc_zeroed(out->value_count, sizeof *out->values);
  out->tensors = mgl_alloc_zeroed(out->tensor_count, sizeof *out->tensors);
  if (out->values == NULL || out->tensors == NULL) {
    return mgl_error_set(c->err, MGL_ERR_MEMORY, "%s: out of memory for its tables", c->where);
  }
  MGL_TRY(take_metadata(c, out));
  MGL_TRY(take_tensors(c, out));
  mgl_alloc_budget_earn((uint64_t)(c->at - c->start) * TEXT_OF_A_BYTE);
  return find_data(c, out);
}

bool mgl_gguf_is(const void *data, size_t bytes) {
  return bytes >= 4 && memcmp(data, "GGUF", 4) == 0;
}

mgl_status mgl_gguf_parse(const void *data, size_t bytes, const char *where, mgl_gguf *out,
                          mgl_error *err) {
  cursor c = {.start = data, .at = data, .where = where, .err = err};
  c.end = bytes == 0 ? c.start : c.start + bytes;
  *out = (mgl_gguf){.where = where};
  mgl_status status = parse(&c, out);
  if (status != MGL_OK) {
    mgl_gguf_free(out);
  }
  return status;
}

void mgl_gguf_free(mgl_gguf *gguf) {
  mgl_free(gguf->values);
  mgl_free(gguf->tensors);
  *gguf = (mgl_gguf){0};
}

// --- looking up ----------------------------------------------------------------------------------

const mgl_gguf_value *mgl_gguf_find(const mgl_gguf *gguf, const char *key) {
  mgl_gguf_value wanted = {.key = {.text = key, .bytes = strlen(key)}};
  return gguf->value_count == 0 ? NULL
                                : bsearch(&wanted, gguf->values, gguf->value_count,
                                          sizeof *gguf->values, compare_keys);
}

const mgl_gguf_tensor *mgl_gguf_find_tensor(const mgl_gguf *gguf, const char *name) {
  for (size_t i = 0; i < gguf->tensor_count; i++) {
    if (mgl_gguf_string_is(gguf->tensors[i].name, name)) {
      return &gguf->tensors[i];
    }
  }
  return NULL;
}

static mgl_status wrong_kind(const mgl_gguf *gguf, const mgl_gguf_value *value,
                             const char *expected, mgl_error *err) {
  return mgl_error_set(err, MGL_ERR_FORMAT, "%s: \"%.*s\": expected %s, found %s%s", gguf->where,
                       (int)value->key.bytes, value->key.text, expected,
                       value->is_array ? "an array of " : "", kind_names[value->kind]);
}

bool mgl_gguf_is_integer(const mgl_gguf_value *value) {
  return value->kind != MGL_GGUF_F32 && value->kind != MGL_GGUF_F64 &&
         value->kind != MGL_GGUF_STRING && value->kind != MGL_GGUF_BOOL;
}

mgl_status mgl_gguf_u64(const mgl_gguf *gguf, const char *key, uint64_t *out, mgl_error *err) {
  const mgl_gguf_value *value = mgl_gguf_find(gguf, key);
  if (value == NULL) {
    return MGL_OK;
  }
  int64_t number = mgl_gguf_is_integer(value) && !value->is_array ? mgl_gguf_integer(value, 0) : -1;
  if (number < 0) {
    return wrong_kind(gguf, value, "an integer of 0 to 2^63 - 1", err);
  }
  *out = (uint64_t)number;
  return MGL_OK;
}

mgl_status mgl_gguf_bool(const mgl_gguf *gguf, const char *key, bool *out, mgl_error *err) {
  const mgl_gguf_value *value = mgl_gguf_find(gguf, key);
  if (value == NULL) {
    return MGL_OK;
  }
  if (value->kind != MGL_GGUF_BOOL || value->is_array) {
    return wrong_kind(gguf, value, "a bool", err);
  }
  *out = value->data[0] != 0;
  return MGL_OK;
}

mgl_status mgl_gguf_text(const mgl_gguf *gguf, const char *key, mgl_gguf_string *out,
                         mgl_error *err) {
  const mgl_gguf_value *value = mgl_gguf_find(gguf, key);
  if (value == NULL) {
    return MGL_OK;
  }
  if (value->kind != MGL_GGUF_STRING || value->is_array) {
    return wrong_kind(gguf, value, "a string", err);
  }
  const unsigned char *at = value->data;
  *out = mgl_gguf_next_string(&at);
  return MGL_OK;
}

mgl_status mgl_gguf_array(const mgl_gguf *gguf, const char *key, mgl_gguf_kind kind,
                          const mgl_gguf_value **out, mgl_error *err) {
  const mgl_gguf_value *value = mgl_gguf_find(gguf, key);
  *out = value;
  if (value != NULL && (!value->is_array || value->kind != kind)) {
    char expected[32] = "an array of ";
    (void)strncat(expected, kind_names[kind], sizeof expected - sizeof "an array of ");
    return wrong_kind(gguf, value, expected, err);
  }
  return MGL_OK;
}

// --- elements ------------------------------------------------------------------------------------

mgl_gguf_string mgl_gguf_next_string(const unsigned char **at) {
  mgl_gguf_string result = {.text = (const char *)*at + 8, .bytes = (size_t)integer_of(*at, 8)};
  *at += 8 + result.bytes;
  return result;
}

int64_t mgl_gguf_integer(const mgl_gguf_value *value, uint64_t i) {
  size_t bytes = kind_bytes[value->kind];
  uint64_t bits = integer_of(value->data + i * bytes, bytes);
  switch (value->kind) {
    case MGL_GGUF_I8: return (int8_t)bits;
    case MGL_GGUF_I16: return (int16_t)bits;
    case MGL_GGUF_I32: return (int32_t)bits;
    case MGL_GGUF_I64: return (int64_t)bits;
    default: return bits > INT64_MAX ? INT64_MAX : (int64_t)bits;
  }
}

double mgl_gguf_number(const mgl_gguf_value *value, uint64_t i) {
  if (value->kind == MGL_GGUF_F32) {
    uint32_t bits = (uint32_t)integer_of(value->data + 4 * i, 4);
    float number;
    memcpy(&number, &bits, sizeof number);
    return (double)number;
  }
  if (value->kind == MGL_GGUF_F64) {
    uint64_t bits = integer_of(value->data + 8 * i, 8);
    double number;
    memcpy(&number, &bits, sizeof number);
    return number;
  }
  return (double)mgl_gguf_integer(value, i);
}

bool mgl_gguf_string_is(mgl_gguf_string string, const char *text) {
  return string.bytes == strlen(text) && memcmp(string.text, text, string.bytes) == 0;
}
