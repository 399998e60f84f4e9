// The toolkit's command as a compiler: the embedded sources are written to a folder of their own
// under TMPDIR, compiled there, and removed.
//
// It has no option that makes unmarked functions device code, as NVRTC has; all of ours are inline,
// so a file that comes first makes `inline` say that. Its own headers stand where NVRTC needs
// substitutes.
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/cache_folder.h"
#include "base/file.h"
#include "device/cuda/cuda_compiler.h"

enum {
  WAIT_MS = 300 * 1000,
  PATH_BYTES = 1024,
  MAX_ARGUMENTS = MGL_CUDA_MAX_OPTIONS + 16,
  MAX_LOG_BYTES = 16 << 20,
  MAX_WALK_FILES = 16,  // that a removal of the folder has open
};

extern char **environ;

static const char first_file[] =
    "#include <stdbool.h>\n#include <stddef.h>\n#include <stdint.h>\n#include <string.h>\n"
    "#define _Static_assert static_assert\n#define _Alignas alignas\n"
    "#define inline inline __device__\n";

static const char *command(void) {
  static const char usual[] = "/usr/local/cuda/bin/nvcc";
  return access(usual, X_OK) == 0 ? usual : "nvcc";  // else by PATH
}

// Runs it; what it prints goes to the file `log`. False: it could not be started, or failed.
static bool run(const char *const *arguments, const char *log) {
  posix_spawn_file_actions_t files;
  pid_t pid = 0;
  int result = 1;
  if (posix_spawn_file_actions_init(&files) != 0) {
    return false;
  }
  int code = posix_spawn_file_actions_addopen(&files, STDOUT_FILENO, log,
                                              O_WRONLY | O_CREAT | O_TRUNC, 0600);
  code = code != 0 ? code : posix_spawn_file_actions_adddup2(&files, STDOUT_FILENO, STDERR_FILENO);
  code = code != 0
             ? code
             : posix_spawnp(&pid, arguments[0], &files, NULL, (char *const *)arguments, environ);
  (void)posix_spawn_file_actions_destroy(&files);
  while (code == 0 && waitpid(pid, &result, 0) < 0) {
    code = errno == EINTR ? 0 : errno;
  }
  return code == 0 && WIFEXITED(result) && WEXITSTATUS(result) == 0;
}

// --- a folder for one compilation ----------------------------------------------------------------

static mgl_status make_folder(char out[PATH_BYTES], mgl_error *err) {
  const char *parent = getenv("TMPDIR");
  parent = parent != NULL && parent[0] == '/' && strlen(parent) < PATH_BYTES / 2 ? parent : "/tmp";
  (void)snprintf(out, PATH_BYTES, "%.500s/megalith-nvcc-XXXXXX", parent);
  return mkdtemp(out) != NULL
             ? MGL_OK
             : mgl_error_set(err, MGL_ERR_IO, "cannot create a folder for nvcc in %s: %s", parent,
                             strerror(errno));
}

static int remove_entry(const char *path, const struct stat *info, int kind, struct FTW *walk) {
  (void)info;
  (void)kind;
  (void)walk;
  (void)remove(path);
  return 0;
}

static void remove_folder(const char *folder) {
  (void)nftw(folder, remove_entry, MAX_WALK_FILES, FTW_DEPTH | FTW_PHYS);
}

static mgl_status write_file(const char *folder, const char *name, const char *text,
                             mgl_error *err) {
  char path[PATH_BYTES];
  (void)snprintf(path, sizeof path, "%.600s/%.300s", folder, name);
  char *slash = strrchr(path, '/');
  *slash = 0;
  MGL_TRY(mgl_cache_folder_make(path, err));
  *slash = '/';
  FILE *file = fopen(path, "we");
  bool written = file != NULL && fputs(text, file) >= 0;
  written = file != NULL && fclose(file) == 0 && written;
  return written ? MGL_OK
                 : mgl_error_set(err, MGL_ERR_IO, "cannot write %s: %s", path, strerror(errno));
}

static mgl_status write_sources(const char *folder, const mgl_cuda_shape *shape, mgl_error *err) {
  MGL_TRY(write_file(folder, "first.h", first_file, err));
  for (const mgl_cuda_source *at = mgl_cuda_sources; at->name != NULL; at++) {
    if (strchr(at->name, '/') != NULL) {  // the others stand for C headers, which NVRTC lacks
      MGL_TRY(write_file(folder, at->name, mgl_cuda_source_text(at, shape), err));
    }
  }
  return MGL_OK;
}

// --- the table -----------------------------------------------------------------------------------

static mgl_status initialise_cache(const char *cache, mgl_cuda_cache_key *key, mgl_error *err) {
  char folder[PATH_BYTES];
  char log[PATH_BYTES + 16];
  char *text = NULL;
  size_t bytes = 0;
  const char *const arguments[] = {command(), "--version", NULL};
  (void)cache;
  MGL_TRY(make_folder(folder, err));
  (void)snprintf(log, sizeof log, "%s/log", folder);
  bool ran =
      run(arguments, log) && mgl_file_read(log, MAX_LOG_BYTES, &text, &bytes, NULL) == MGL_OK;
  const char *release = ran ? strstr(text, "release ") : NULL;
  bool told = release != NULL && sscanf(release, "release %d.%d", &key->major, &key->minor) == 2;
  mgl_free(text);
  remove_folder(folder);
  if (!told || key->major < 12) {
    key->major = key->minor = 0;
    return mgl_error_set(
        err, MGL_ERR_UNSUPPORTED,
        "there is no nvcc of CUDA 12 or 13 in /usr/local/cuda/bin or PATH; install "
        "it, or leave out \"compiler\": \"nvcc\"");
  }
  return MGL_OK;
}

static mgl_status compute_hash(const mgl_cuda_job *job, mgl_hash *out, mgl_error *err) {
  struct {
    mgl_hash sources, first;
  } both;
  both.first = mgl_hash_bytes(first_file, sizeof first_file);
  MGL_TRY(mgl_cuda_source_hash(job->name, job->architecture, job->shape, &both.sources, err));
  *out = mgl_hash_bytes(&both, sizeof both);
  return MGL_OK;
}

static mgl_status run_compiler(const mgl_cuda_job *job, const char *folder, mgl_cuda_code *out,
                               mgl_error *err) {
  char options[MGL_CUDA_MAX_OPTIONS][MGL_CUDA_OPTION_BYTES];
  const char *arguments[MAX_ARGUMENTS];
  char source[PATH_BYTES + 320], cubin[PATH_BYTES + 16], log[PATH_BYTES + 16],
      first[PATH_BYTES + 16];
  int count = 0;
  char *words = NULL;
  size_t bytes = 0;
  (void)snprintf(source, sizeof source, "%s/%.300s", folder, job->name);
  (void)snprintf(cubin, sizeof cubin, "%s/cubin", folder);
  (void)snprintf(log, sizeof log, "%s/log", folder);
  (void)snprintf(first, sizeof first, "%s/first.h", folder);
  const char *const fixed[] = {
      command(), "-cubin", "--expt-relaxed-constexpr", "-include", first, "-I", folder, "-o",
      cubin,     source};
  for (size_t i = 0; i < sizeof fixed / sizeof *fixed; i++) {
    arguments[count++] = fixed[i];
  }
  int option_count = mgl_cuda_options_make(job->architecture, job->shape, options);
  for (int i = 0; i < option_count; i++) {
    if (strcmp(options[i], MGL_NVRTC_DEVICE_OPTION) != 0) {
      arguments[count++] = options[i];
    }
  }
  arguments[count] = NULL;
  bool ran = run(arguments, log);
  (void)mgl_file_read(log, MAX_LOG_BYTES, &words, &bytes, NULL);
  if (!ran) {
    (void)mgl_error_set(err, MGL_ERR_INTERNAL, "%s does not compile for %s by nvcc: %s", job->name,
                        job->architecture, words != NULL ? words : "it left no words");
    mgl_free(words);
    return MGL_ERR_INTERNAL;
  }
  (void)mgl_cuda_usage_find(words != NULL ? words : "", job->kernel, &out->usage);
  mgl_free(words);
  char *code = NULL;
  MGL_TRY(mgl_file_read(cubin, MGL_CUDA_CACHE_MAX_BYTES, &code, &out->bytes, err));
  out->cubin = code;
  return MGL_OK;
}

static mgl_status compile(const mgl_cuda_job *job, mgl_cuda_code *out, mgl_error *err) {
  char folder[PATH_BYTES];
  MGL_TRY(make_folder(folder, err));
  mgl_status status = write_sources(folder, job->shape, err);
  if (status == MGL_OK) {
    status = run_compiler(job, folder, out, err);
  }
  remove_folder(folder);
  return status;
}

const mgl_cuda_compiler mgl_cuda_compiler_nvcc = {.name = "nvcc",
                                                  .wait_ms = WAIT_MS,
                                                  .initialise_cache = initialise_cache,
                                                  .compute_hash = compute_hash,
                                                  .compile = compile,
                                                  .load = mgl_cuda_compiler_load};
