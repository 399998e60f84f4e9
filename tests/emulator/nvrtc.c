// A libnvrtc that hands out PTX where machine code is asked for: it forwards to the real one, with
// the virtual architecture (compute_90a for sm_90a) and without what only ptxas understands. Of a
// kernel's resources the log says what PTX says: static shared memory, and registers as many as its
// launch bounds leave; nothing spills, since no registers are allocated.
//
// The real one is the file that EMULATED_NVRTC names, or one of the usual places. An absolute path,
// since a name would lead here again.
#include <dlfcn.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CALL __attribute__((visibility("default")))

enum { INTERNAL_ERROR = 11, MOST_OPTIONS = 128, OPTION_BYTES = 256 };

typedef struct program {
  void *real;
  char *ptx, *log;
  size_t ptx_bytes, log_bytes;  // with the NUL
  size_t log_capacity;
} program;

static struct {
  int (*version)(int *major, int *minor);
  const char *(*error_string)(int code);
  int (*create)(void **out, const char *source, const char *name, int count,
                const char *const *headers, const char *const *names);
  int (*destroy)(void **which);
  int (*compile)(void *which, int count, const char *const *options);
  int (*log_bytes)(void *which, size_t *bytes);
  int (*log)(void *which, char *out);
  int (*ptx_bytes)(void *which, size_t *bytes);
  int (*ptx)(void *which, char *out);
} real;

static const char *const names[] = {
    "nvrtcVersion",        "nvrtcGetErrorString", "nvrtcCreateProgram",
    "nvrtcDestroyProgram", "nvrtcCompileProgram", "nvrtcGetProgramLogSize",
    "nvrtcGetProgramLog",  "nvrtcGetPTXSize",     "nvrtcGetPTX"};

// Called when this library is opened, before anybody calls into it.
__attribute__((constructor)) static void open_real(void) {
  const char *const files[] = {getenv("EMULATED_NVRTC"), "/usr/local/cuda/lib64/libnvrtc.so.13",
                               "/usr/local/cuda/lib64/libnvrtc.so.12",
                               "/usr/lib/x86_64-linux-gnu/libnvrtc.so.13",
                               "/usr/lib/x86_64-linux-gnu/libnvrtc.so.12"};
  void *const members[] = {&real.version, &real.error_string, &real.create,
                           &real.destroy, &real.compile,      &real.log_bytes,
                           &real.log,     &real.ptx_bytes,    &real.ptx};
  void *library = NULL;
  for (size_t i = 0; i < sizeof files / sizeof files[0] && library == NULL; i++) {
    library = files[i] != NULL ? dlopen(files[i], RTLD_NOW | RTLD_LOCAL) : NULL;
  }
  for (size_t i = 0; library != NULL && i < sizeof names / sizeof names[0]; i++) {
    void *symbol = dlsym(library, names[i]);
    memcpy(members[i], &symbol, sizeof symbol);
  }
}

CALL int nvrtcVersion(int *major, int *minor) {
  return real.version != NULL ? real.version(major, minor) : INTERNAL_ERROR;
}

CALL const char *nvrtcGetErrorString(int code) {
  return real.error_string != NULL ? real.error_string(code)
                                   : "the emulator finds no real libnvrtc (EMULATED_NVRTC)";
}

CALL int nvrtcCreateProgram(void **out, const char *source, const char *name, int count,
                            const char *const *headers, const char *const *header_names) {
  program *p = calloc(1, sizeof *p);
  if (p == NULL || real.create == NULL) {
    free(p);
    return INTERNAL_ERROR;
  }
  *out = p;
  return real.create(&p->real, source, name, count, headers, header_names);
}

CALL int nvrtcDestroyProgram(void **which) {
  program *p = *which;
  int result = real.destroy(&p->real);
  free(p->ptx);
  free(p->log);
  free(p);
  *which = NULL;
  return result;
}

// --- the log -------------------------------------------------------------------------------------

__attribute__((format(printf, 2, 3))) static void add(program *p, const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  if (p->log_bytes < p->log_capacity) {
    int length =
        vsnprintf(p->log + p->log_bytes - 1, p->log_capacity - p->log_bytes + 1, format, arguments);
    p->log_bytes += length > 0 ? (size_t)length : 0;
    p->log_bytes = p->log_bytes < p->log_capacity ? p->log_bytes : p->log_capacity;
  }
  va_end(arguments);
}

static uint32_t number_behind(const char *from, const char *end, const char *word) {
  const char *at = strstr(from, word);
  return at != NULL && at < end ? (uint32_t)strtoul(at + strlen(word), NULL, 10) : 0;
}

// Bytes of ".shared .align 16 .b8 name[1024];" and ".shared .align 4 .u32 name;" up to `end`.
static uint32_t shared_bytes(const char *at, const char *end) {
  uint32_t all = 0;
  while ((at = strstr(at, ".shared .align ")) != NULL && at < end) {
    const char *type = strchr(at + strlen(".shared .align "), '.');
    const char *stop = strchr(at, ';'), *count = strchr(at, '[');
    const uint32_t bits = type != NULL ? (uint32_t)strtoul(type + 2, NULL, 10) : 0;
    all += bits / 8 * (count != NULL && count < stop ? (uint32_t)strtoul(count + 1, NULL, 10) : 1);
    at = stop;
  }
  return all;
}

// As ptxas writes it (cuda_jit.c reads it).
static void tell_kernels(program *p, const char *architecture) {
  const char *entry = ".entry ", *at = strstr(p->ptx, entry);
  // Variables stand in front of the first function, or in the one that has them.
  const uint32_t of_all = at != NULL ? shared_bytes(p->ptx, at) : 0;
  while (at != NULL) {
    const char *name = at + strlen(entry), *next = strstr(name, entry);
    const char *end = next != NULL ? next : name + strlen(name);
    const char *body = strchr(name, '{');
    body = body != NULL && body < end ? body : end;
    const uint32_t threads = number_behind(name, body, ".maxntid ");
    const uint32_t blocks = number_behind(name, body, ".minnctapersm ");
    uint32_t registers = threads == 0 ? 255 : 65536 / (threads * (blocks > 0 ? blocks : 1)) / 8 * 8;
    registers = registers < 255 ? registers : 255;
    const int length = (int)strcspn(name, "(");
    add(p, "ptxas info    : Compiling entry function '%.*s' for '%s'\n", length, name,
        architecture);
    add(p, "ptxas info    : Function properties for %.*s\n", length, name);
    add(p, "    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads\n");
    add(p, "ptxas info    : Used %u registers, used 1 barriers, %u bytes smem\n", registers,
        of_all + shared_bytes(body, end));
    at = next;
  }
}

// --- compiling -----------------------------------------------------------------------------------

static int fetch(program *p, int compiled, const char *architecture) {
  size_t bytes = 0;
  int result = real.log_bytes(p->real, &bytes);
  p->log_capacity = bytes + (1 << 16);
  p->log = calloc(1, p->log_capacity + 1);
  if (result != 0 || p->log == NULL || real.log(p->real, p->log) != 0) {
    return INTERNAL_ERROR;
  }
  p->log_bytes = strlen(p->log) + 1;
  if (compiled != 0) {
    return compiled;
  }
  result = real.ptx_bytes(p->real, &p->ptx_bytes);
  p->ptx = result == 0 ? malloc(p->ptx_bytes) : NULL;
  if (p->ptx == NULL || real.ptx(p->real, p->ptx) != 0) {
    return INTERNAL_ERROR;
  }
  tell_kernels(p, architecture);
  return 0;
}

CALL int nvrtcCompileProgram(void *which, int count, const char *const *options) {
  static const char real_architecture[] = "--gpu-architecture=sm_";
  program *p = which;
  const char *passed[MOST_OPTIONS], *architecture = "";
  char own[OPTION_BYTES];
  int kept = 0;
  for (int i = 0; i < count && kept < MOST_OPTIONS; i++) {
    if (strncmp(options[i], real_architecture, strlen(real_architecture)) == 0) {
      architecture = options[i] + strlen("--gpu-architecture=");
      (void)snprintf(own, sizeof own, "--gpu-architecture=compute_%s", architecture + 3);
      passed[kept++] = own;
    } else if (strncmp(options[i], "--ptxas-options=", 16) != 0) {
      passed[kept++] = options[i];
    }
  }
  if (getenv("EMULATED_LINES") != NULL) {
    passed[kept++] = "-lineinfo";
  }
  return fetch(p, real.compile(p->real, kept, passed), architecture);
}

CALL int nvrtcGetProgramLogSize(void *which, size_t *bytes) {
  *bytes = ((program *)which)->log_bytes;
  return 0;
}

CALL int nvrtcGetProgramLog(void *which, char *out) {
  const program *p = which;
  memcpy(out, p->log, p->log_bytes);
  return 0;
}

CALL int nvrtcGetCUBINSize(void *which, size_t *bytes) {
  *bytes = ((program *)which)->ptx_bytes;
  return ((program *)which)->ptx != NULL ? 0 : INTERNAL_ERROR;
}

CALL int nvrtcGetCUBIN(void *which, char *out) {
  const program *p = which;
  memcpy(out, p->ptx, p->ptx_bytes);
  return 0;
}

CALL int nvrtcGetPTXSize(void *which, size_t *bytes) {
  return nvrtcGetCUBINSize(which, bytes);
}

CALL int nvrtcGetPTX(void *which, char *out) {
  return nvrtcGetCUBIN(which, out);
}
