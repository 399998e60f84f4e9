// Cases: weights, task graphs and traces, and what is broken in the same way wherever it lies.
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "hostile/hostile.h"

static void repeat(FILE *out, const char *text, size_t count) {
  for (size_t i = 0; i < count; i++) {
    (void)fputs(text, out);
  }
}

// --- safetensors ---------------------------------------------------------------------------------

static void write_length(FILE *out, uint64_t bytes) {
  for (int i = 0; i < 8; i++) {
    (void)fputc((int)(bytes >> (8 * i) & 255), out);
  }
}

// A file with this header, and data_bytes of zeros behind it.
static FILE *write_weights(const char *name, const char *header, uint64_t data_bytes) {
  FILE *out = hostile_create(name);
  write_length(out, strlen(header));
  (void)fputs(header, out);
  (void)fflush(out);
  if (ftruncate(fileno(out), (off_t)(8 + strlen(header) + data_bytes)) != 0) {
    abort();
  }
  return out;
}

#define T(dtype, shape, offsets) \
  "{\"dtype\":" dtype ",\"shape\":" shape ",\"data_offsets\":" offsets "}"

static void headers(void) {
  static const struct {
    const char *header;
    uint64_t data_bytes;
  } cases[] = {
      {"", 0},
      {"{}", 0},  // no tensor that the model needs
      {"{}", 8},
      {"{} ", 0},
      {"[]", 0},
      {"{\"a\":5}", 0},
      {"{\"a\":[]}", 0},
      {"{\"a\":{}}", 0},
      {"{\"a\":" T("5", "[1]", "[0,4]") "}", 4},
      {"{\"a\":" T("\"F33\"", "[1]", "[0,4]") "}", 4},
      {"{\"a\":" T("\"F32\\u0000\"", "[1]", "[0,4]") "}", 4},
      {"{\"a\":" T("\"F32\"", "1", "[0,4]") "}", 4},
      {"{\"a\":" T("\"F32\"", "[-1]", "[0,4]") "}", 4},
      {"{\"a\":" T("\"F32\"", "[1.0]", "[0,4]") "}", 4},
      {"{\"a\":" T("\"F32\"", "[1,1,1,1,1,1,1,1,1]", "[0,4]") "}", 4},
      {"{\"a\":" T("\"F32\"", "[4294967296,4294967296]", "[0,4]") "}", 4},
      {"{\"a\":" T("\"F32\"", "[4611686018427387904]", "[0,4]") "}", 4},
      {"{\"a\":" T("\"F32\"", "[9223372036854775807,2]", "[0,4]") "}", 4},
      {"{\"a\":" T("\"F32\"", "[99999999999999999999]", "[0,4]") "}", 4},
      {"{\"a\":" T("\"F32\"", "[1]", "[0]") "}", 4},
      {"{\"a\":" T("\"F32\"", "[1]", "{}") "}", 4},
      {"{\"a\":" T("\"F32\"", "[1]", "[4,0]") "}", 4},
      {"{\"a\":" T("\"F32\"", "[1]", "[-4,0]") "}", 4},
      {"{\"a\":" T("\"F32\"", "[1]", "[0,8]") "}", 8},
      {"{\"a\":" T("\"F32\"", "[1]", "[0,4]") "}", 3},
      {"{\"a\":" T("\"F32\"", "[1]", "[4,8]") "}", 8},
      {"{\"a\":" T("\"F32\"", "[1]", "[0,9223372036854775807]") "}", 4},
      {"{\"a\":" T("\"F32\"", "[1]", "[9223372036854775804,9223372036854775807]") "}", 4},
      {"{\"a\":" T("\"F32\"", "[1]", "[0,4]") ",\"b\":" T("\"F32\"", "[1]", "[0,4]") "}", 4},
      {"{\"a\":" T("\"F32\"", "[1]", "[0,4]") ",\"b\":" T("\"F32\"", "[1]", "[2,6]") "}", 6},
      {"{\"a\":" T("\"F32\"", "[1]", "[0,4]") ",\"b\":" T("\"F32\"", "[1]", "[8,12]") "}", 12},
      {"{\"a\":" T("\"F32\"", "[1]", "[0,4]") ",\"a\":" T("\"F32\"", "[1]", "[4,8]") "}", 8},
      {"{\"a\":" T("\"F32\"", "[1]", "[0,4]") "}", 5},
      {"{\"\":" T("\"F32\"", "[1]", "[0,4]") "}", 4},
      {"{\"a\\u0000\":" T("\"F32\"", "[1]", "[0,4]") "}", 4},
      {"{\"\377\":" T("\"F32\"", "[1]", "[0,4]") "}", 4},
      {"{\"__metadata__\":5}", 0},
      {"{\"__metadata__\":{\"a\":5}}", 0},
      {"{\"model.embed_tokens.weight\":" T("\"F32\"", "[1024,256]", "[0,1048576]") "}", 1048576},
      {"{\"model.embed_tokens.weight\":" T("\"BF16\"", "[256,1024]", "[0,524288]") "}", 524288},
      {"{\"model.embed_tokens.weight\":" T("\"I8\"", "[1024,256]", "[0,262144]") "}", 262144},
  };
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    FILE *out = write_weights("model.safetensors", cases[i].header, cases[i].data_bytes);
    hostile_refused(out, HOSTILE_SCORE, "header %zu: %.100s", i, cases[i].header);
  }
  static const uint64_t lengths[] = {
      0,          1,          9,          100000001,      1ULL << 31,
      1ULL << 32, 1ULL << 62, 1ULL << 63, UINT64_MAX - 8, UINT64_MAX - 7,
      UINT64_MAX};
  for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
    FILE *out = hostile_create("model.safetensors");
    write_length(out, lengths[i]);
    (void)fputs("{}      ", out);
    hostile_refused(out, HOSTILE_SCORE, "a header of %llu bytes", (unsigned long long)lengths[i]);
  }
  FILE *out = hostile_create("model.safetensors");
  write_length(out, 99999999);
  if (fflush(out) != 0 || ftruncate(fileno(out), (off_t)1 << 40) != 0) {
    (void)printf("a file of a tebibyte is left out: the file system has none\n");
  }
  hostile_refused(out, HOSTILE_SCORE, "a sparse file of a tebibyte");
}

// The demo's weights, cut off or with one byte of the header changed.
static void damaged_weights(void) {
  const mgl_text *original = hostile_original("model.safetensors");
  for (int i = 0; i < 12; i++) {
    FILE *out = hostile_create("model.safetensors");
    (void)fwrite(original->data, 1, hostile_random((uint32_t)original->bytes), out);
    hostile_refused(out, HOSTILE_SCORE, "weights cut off, %d", i);
  }
  for (int i = 0; i < 20; i++) {
    FILE *out = hostile_create("model.safetensors");
    uint32_t at = hostile_random(9000);
    (void)fwrite(original->data, 1, at, out);
    (void)fputc((int)hostile_random(256), out);
    (void)fwrite(original->data + at + 1, 1, original->bytes - at - 1, out);
    if (fflush(out) != 0 || ftruncate(fileno(out), 13127624) != 0) {
      abort();
    }
    hostile_survived(out, HOSTILE_SCORE, "weights with byte %u changed", at);
  }
}

static void write_many_tensors(FILE *out, size_t count, const char *entry) {
  char name[64];
  mgl_text header = {0};
  (void)fseek(out, 8, SEEK_SET);
  (void)fputc('{', out);
  for (size_t i = 0; i < count; i++) {
    (void)snprintf(name, sizeof name, "%s\"tensor.%zu\":", i == 0 ? "" : ",", i);
    (void)fputs(name, out);
    (void)fputs(entry, out);
  }
  (void)fputc('}', out);
  long end = ftell(out);
  (void)fseek(out, 0, SEEK_SET);
  write_length(out, (uint64_t)end - 8);
  mgl_text_free(&header);
}

static void large_weights(void) {
  static const char empty[] = T("\"F16\"", "[0]", "[0,0]");
  if (!hostile_large()) {
    return;
  }
  FILE *out = hostile_create("model.safetensors");
  write_many_tensors(out, 1100000, empty);
  hostile_refused(out, HOSTILE_SCORE, "1.1 million tensors");
  out = hostile_create("model.safetensors");
  write_many_tensors(out, 262145, empty);
  hostile_refused(out, HOSTILE_SCORE, "262145 tensors");
  out = hostile_create("model.safetensors");
  write_many_tensors(out, 20 << 20, "{}");
  hostile_refused(out, HOSTILE_SCORE, "a header that says less than it has");
  out = hostile_create("model.safetensors");
  (void)fseek(out, 8, SEEK_SET);
  (void)fputs("{\"a\":[{}", out);
  repeat(out, ",{}", 20 << 20);
  (void)fputs("]}", out);
  long end = ftell(out);
  (void)fseek(out, 0, SEEK_SET);
  write_length(out, (uint64_t)end - 8);
  hostile_refused(out, HOSTILE_SCORE, "a header of 60 MB of {}");
}

// --- the index -----------------------------------------------------------------------------------

// A folder with an index instead of one file.
static FILE *create_index(void) {
  char weights[HOSTILE_PATH_BYTES];
  (void)hostile_folder("model.safetensors");
  (void)snprintf(weights, sizeof weights, "%s", hostile_path("tokenizer.json"));
  FILE *out = fopen(hostile_path("model.safetensors.index.json"), "wb");
  if (out == NULL) {
    abort();
  }
  return out;
}

static void indexes(void) {
  static const char *const cases[] = {
      "{}",
      "[]",
      "5",
      "{\"weight_map\":{}}",
      "{\"weight_map\":[]}",
      "{\"weight_map\":5}",
      "{\"weight_map\":null}",
      "{\"weight_map\":{\"a\":5}}",
      "{\"weight_map\":{\"a\":\"\"}}",
      "{\"weight_map\":{\"a\":\".\"}}",
      "{\"weight_map\":{\"a\":\"..\"}}",
      "{\"weight_map\":{\"a\":\"/etc/passwd\"}}",
      "{\"weight_map\":{\"a\":\"../config.json\"}}",
      "{\"weight_map\":{\"a\":\"x\\\\y\"}}",
      "{\"weight_map\":{\"a\":\"x\\u0000y\"}}",
      "{\"weight_map\":{\"a\":\"absent.safetensors\"}}",
      "{\"weight_map\":{\"a\":\"config.json\"}}",
      "{\"weight_map\":{\"a\":\"model.safetensors.index.json\"}}",
      "{\"weight_map\":{\"a\":\"tokenizer.json\",\"b\":\"config.json\"}}",
      "{\"weight_map\":{\"a\":\"x.safetensors\",\"a\":\"x.safetensors\"}}",
  };
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    FILE *out = create_index();
    (void)fputs(cases[i], out);
    hostile_refused(out, HOSTILE_SCORE, "index: %.100s", cases[i]);
  }
  FILE *out = create_index();
  (void)fputs("{\"weight_map\":{\"a\":\"s.safetensors\"}}", out);
  (void)mkfifo(hostile_path("s.safetensors"), 0600);
  hostile_refused(out, HOSTILE_SCORE, "index: a shard that is a pipe");
  out = create_index();
  (void)fputs("{\"weight_map\":{\"a\":\"s.safetensors\"}}", out);
  (void)symlink("s.safetensors", hostile_path("s.safetensors"));
  hostile_refused(out, HOSTILE_SCORE, "index: a shard that is a link to itself");
  out = create_index();
  (void)fputs("{\"weight_map\":{\"a\":\"s0\"", out);
  for (int i = 1; i < 5000; i++) {
    (void)fprintf(out, ",\"a%d\":\"s%d\"", i, i);
  }
  (void)fputs("}}", out);
  hostile_refused(out, HOSTILE_SCORE, "index: 5000 files");
  if (hostile_large()) {
    out = create_index();
    (void)fputs("{\"weight_map\":[{}", out);
    repeat(out, ",{}", 10 << 20);
    (void)fputs("]}", out);
    hostile_refused(out, HOSTILE_SCORE, "index: 30 MB of {}");
    out = create_index();
    (void)fputs("{\"metadata\":[{}", out);
    repeat(out, ",{}", 300000);
    (void)fputs("],\"weight_map\":{\"a\":\"s.safetensors\"}}", out);
    FILE *shard = fopen(hostile_path("s.safetensors"), "wb");
    if (shard == NULL) {
      abort();
    }
    write_length(shard, strlen("{\"a\":[{}]}") + 3 * 300000);
    (void)fputs("{\"a\":[{}", shard);
    repeat(shard, ",{}", 300000);
    (void)fputs("]}", shard);
    (void)fclose(shard);
    hostile_refused(out, HOSTILE_SCORE, "index and shard: each dense and small");
  }
}

void hostile_weights(void) {
  headers();
  damaged_weights();
  large_weights();
  indexes();
}

// --- task graphs and traces ----------------------------------------------------------------------

static void replace_in(FILE *out, const char *text, const char *from, const char *to) {
  const char *at = strstr(text, from);
  if (at == NULL) {
    (void)fprintf(stderr, "hostile: no %s in the original\n", from);
    abort();
  }
  (void)fwrite(text, 1, (size_t)(at - text), out);
  (void)fputs(to, out);
  (void)fputs(at + strlen(from), out);
}

// As many names and tracks as there may be, asked for in the order that helps a reader least.
static void large_traces(void) {
  if (!hostile_large()) {
    return;
  }
  for (int end = 0; end < 2; end++) {
    FILE *out = hostile_create("trace.json");
    (void)fputs("{\"traceEvents\":[", out);
    for (int i = 0; i < 150000; i++) {
      int at = i < 16384 ? i : 16383 - i % 16384;
      (void)fprintf(out,
                    "%s{\"ph\":\"X\",\"name\":\"op%d\",\"tid\":%d,\"ts\":%d,\"dur\":1,"
                    "\"args\":{\"iteration\":%d}}",
                    i == 0 ? "" : ",", at, at, i, i % 3);
    }
    (void)fputs(end == 0 ? "]" : "]}", out);
    if (end == 0) {
      hostile_refused(out, HOSTILE_TRACE, "trace: 16384 names and tracks, backwards, no end");
    } else {
      hostile_survived(out, HOSTILE_TRACE, "trace: 16384 names and tracks, backwards");
    }
  }
}

void hostile_graphs(void) {
  static const struct {
    const char *key, *values[8];
  } edits[] = {
      {"format", {"5", "\"x\"", "\"megalith task graph 2\"", "null"}},
      {"program", {"5", "\"\"", "\"x\"", "\"program a\\noutput b\\n\"", "\"a\\u0000\""}},
      {"target", {"\"gpu\"", "5", "[]"}},
      {"tokens", {"0", "-1", "4096", "\"1\"", "1.5", "null", "4294967297"}},
      {"workers", {"0", "-1", "99999", "\"2\"", "1"}},
      {"attention_strides", {"0", "65", "-1", "\"1\"", "7"}},
      {"activation_bytes", {"-1", "\"1\"", "0", "1"}},
      {"activation_offsets", {"{}", "[]", "5", "{\"x\":0}"}},
      {"all_tasks", {"[]", "5", "[5]", "[{}]", "{}"}},
      {"all_events", {"[]", "5", "[5]", "[{}]"}},
      {"first_tasks", {"[]", "5", "[1]", "[\"0\"]"}},
      {"task_type", {"99", "-1", "\"0\"", "65536"}},
      {"trigger_event", {"-2", "4294967295", "999999", "\"0\"", "281474976710656"}},
      {"dependent_event", {"999999", "\"0\"", "1"}},
      {"op", {"99999", "-2", "4294967296"}},
      {"begin", {"1", "-1", "4294967296"}},
      {"end", {"0", "4294967295"}},
      {"worker", {"2", "-2", "65536"}},
      {"inputs", {"[]", "5", "[{}]", "[[]]"}},
      {"outputs", {"[]", "5", "[{}]", "[[]]"}},
      {"base_ptr", {"\"q\"", "5"}},
      {"offset", {"4", "-1", "\"0\""}},
      {"dims", {"[]", "[1]", "[1,2]", "5"}},
      {"num_triggers", {"0", "4294967295", "-1"}},
      {"first_task_id", {"4294967295", "-1"}},
      {"last_task_id", {"0", "4294967295"}},
  };
  const char *graph = hostile_original("graph.json")->data;
  for (size_t i = 0; i < sizeof edits / sizeof *edits; i++) {
    for (const char *const *value = edits[i].values; *value != NULL; value++) {
      FILE *out = hostile_create("graph.json");
      (void)fputs(hostile_edit(graph, edits[i].key, *value), out);
      hostile_refused(out, HOSTILE_GRAPH, "graph: \"%s\": %s", edits[i].key, *value);
    }
  }
  static const char *const programs[][2] = {
      {"bf16[1024,256]", "bf16[4294967296,256]"},
      {"bf16[1024,256]", "bf16[0,256]"},
      {"bf16[1024,256]", "bf16[-1,256]"},
      {"bf16[1024,256]", "bf16[4294967295,4294967295]"},
      {"input tokens", "input tokenz"},
      {"eps=", "eps=-"},
      {"= embed(", "= embedded("},
      {"output ", "output no."},
  };
  for (size_t i = 0; i < sizeof programs / sizeof *programs; i++) {
    FILE *out = hostile_create("graph.json");
    replace_in(out, graph, programs[i][0], programs[i][1]);
    hostile_refused(out, HOSTILE_GRAPH, "program: %s for %s", programs[i][1], programs[i][0]);
  }
  static const char *const traces[] = {
      "{\"traceEvents\":[]}",
      "{\"traceEvents\":5}",
      "{\"traceEvents\":{}}",
      "{\"traceEvents\":[5]}",
      "{\"traceEvents\":[{\"ph\":5}]}",
      "{\"traceEvents\":[{\"ph\":\"X\"}]}",
      "{\"traceEvents\":[{\"ph\":\"X\",\"tid\":-1}]}",
      "{\"traceEvents\":[{\"ph\":\"X\",\"name\":\"a\",\"tid\":0,\"ts\":-1e300,\"dur\":1e300}]}",
      "{\"traceEvents\":[{\"ph\":\"X\",\"name\":\"a\",\"tid\":0,\"ts\":0,\"dur\":-1}]}",
      "{\"other\":[]}",
      "{\"traceEvents\":[],}",
      "{\"traceEvents\":[{}{}]}",
      "{\"traceEvents\"}",
      "{\"traceEvents\":[",
  };
  for (size_t i = 0; i < sizeof traces / sizeof *traces; i++) {
    FILE *out = hostile_create("trace.json");
    (void)fputs(traces[i], out);
    hostile_refused(out, HOSTILE_TRACE, "trace: %s", traces[i]);
  }
  large_traces();
}

// --- everywhere ----------------------------------------------------------------------------------

static const struct place {
  const char *file;
  hostile_command command;
} places[] = {
    {"config.json", HOSTILE_PLAN},        {"generation_config.json", HOSTILE_PLAN},
    {"tokenizer.json", HOSTILE_TOKENIZE}, {"tokenizer_config.json", HOSTILE_RUN},
    {"chat_template.jinja", HOSTILE_RUN}, {"model.safetensors", HOSTILE_SCORE},
    {"graph.json", HOSTILE_GRAPH},        {"trace.json", HOSTILE_TRACE},
};

// What is there but is no file that could be read to its end.
static void no_files(const struct place *p) {
  const char *at = hostile_folder(p->file);
  struct sockaddr_un address = {.sun_family = AF_UNIX};
  (void)mkdir(at, 0700);
  hostile_refused(NULL, p->command, "%s: a folder", p->file);
  (void)mkfifo(hostile_folder(p->file), 0600);
  hostile_refused(NULL, p->command, "%s: a pipe", p->file);
  static const char *const targets[] = {"/dev/zero",      "/dev/null",       "/dev/tty",
                                        "/proc/self/mem", "/no/such/target", "self",
                                        "/dev/full"};
  for (size_t i = 0; i < sizeof targets / sizeof *targets; i++) {
    const char *target = strcmp(targets[i], "self") == 0 ? p->file : targets[i];
    (void)symlink(target, hostile_folder(p->file));
    hostile_refused(NULL, p->command, "%s: a link to %s", p->file, target);
  }
  at = hostile_folder(p->file);
  int fd = socket(AF_UNIX, SOCK_STREAM, 0);
  if (strlen(at) < sizeof address.sun_path) {
    memcpy(address.sun_path, at, strlen(at) + 1);
    (void)bind(fd, (const struct sockaddr *)&address, sizeof address);
    hostile_refused(NULL, p->command, "%s: a socket", p->file);
  }
  (void)close(fd);
  if (geteuid() != 0) {
    FILE *out = hostile_create(p->file);
    (void)fputs("{}", out);
    (void)chmod(hostile_path(p->file), 0);
    hostile_refused(out, p->command, "%s: unreadable", p->file);
  }
}

// What no reader of JSON takes. The weights' own JSON is behind their length.
static void no_json(const struct place *p) {
  static const char *const texts[] = {"",
                                      " ",
                                      "\n\n",
                                      "x",
                                      "nul",
                                      "{",
                                      "}",
                                      "{\"a\"}",
                                      "{\"a\":1,}",
                                      "{\"a\":1}{}",
                                      "\xef\xbb\xbf{}",
                                      "{\"a\":\"\xff\"}",
                                      "{\"a\":\"\xc0\x80\"}",
                                      "{\"a\":01}",
                                      "{'a':1}",
                                      "{\"a\":1,\"a\":2}",
                                      "{\"a\":\"\\ud800\"}",
                                      "[",
                                      "\"",
                                      "-",
                                      "NaN"};
  for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
    FILE *out = hostile_create(p->file);
    (void)fputs(texts[i], out);
    hostile_refused(out, p->command, "%s: %s", p->file, texts[i]);
  }
  static const char *const deep[] = {"[", "{\"a\":", "[{\"a\":["};
  for (size_t i = 0; i < sizeof deep / sizeof *deep; i++) {
    FILE *out = hostile_create(p->file);
    (void)fputs("{\"a\":", out);
    repeat(out, deep[i], 300000);
    hostile_refused(out, p->command, "%s: nested 300000 times: %s", p->file, deep[i]);
  }
  const mgl_text *original = hostile_original(p->file);
  for (int i = 0; i < 6; i++) {
    size_t bytes = hostile_random((uint32_t)original->bytes - 2);
    FILE *out = hostile_create(p->file);
    (void)fwrite(original->data, 1, bytes, out);
    hostile_refused(out, p->command, "%s: cut off after %zu bytes", p->file, bytes);
    out = hostile_create(p->file);
    (void)fwrite(original->data, 1, bytes, out);
    (void)fputc(0, out);
    (void)fputs(original->data + bytes, out);
    hostile_refused(out, p->command, "%s: a NUL byte at %zu", p->file, bytes);
  }
}

// A byte changed here and there: refused or not, but within the bounds.
static void changed(const struct place *p) {
  const mgl_text *original = hostile_original(p->file);
  static const char alphabet[] = "0123456789-,{}[]\":e.\\ax \n\xff";
  for (int i = 0; i < 12; i++) {
    FILE *out = hostile_create(p->file);
    size_t at = hostile_random((uint32_t)original->bytes);
    (void)fwrite(original->data, 1, at, out);
    (void)fputc(alphabet[hostile_random(sizeof alphabet - 1)], out);
    (void)fwrite(original->data + at + 1, 1, original->bytes - at - 1, out);
    hostile_survived(out, p->command, "%s: byte %zu changed", p->file, at);
  }
}

static void large_json(const struct place *p) {
  static const struct {
    const char *name, *begin, *repeated, *end;
  } cases[] = {
      {"{},", "[{}", ",{}", "]"},
      {"[],", "{\"a\":[[]", ",[]", "]}"},
      {"1,", "{\"a\":[1", ",1", "]}"},
      {"spaces", "", "          ", "x"},
      {"a number", "{\"a\":1", "1111111111", "}"},
      {"a string", "\"", "xxxxxxxxxx", "\""},
      {"a string without end", "{\"", "\\\\\\\\\\\\\\\\\\\\", ""},
      {"commas", "{", ",,,,,,,,,,", "}"},
  };
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    FILE *out = hostile_create(p->file);
    (void)fputs(cases[i].begin, out);
    repeat(out, cases[i].repeated, (60 << 20) / strlen(cases[i].repeated));
    (void)fputs(cases[i].end, out);
    hostile_refused(out, p->command, "%s: 60 MiB of %s", p->file, cases[i].name);
  }
}

void hostile_everywhere(void) {
  for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
    const struct place *p = &places[i];
    bool is_json = strstr(p->file, ".json") != NULL;
    no_files(p);
    if (is_json) {
      no_json(p);
      changed(p);
    }
    if (hostile_large() && is_json) {
      large_json(p);
    }
  }
}
