#include "device/cpu/read_ceiling.h"

#include <string.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "kernels/cpu/cpu_kernels.h"

typedef struct read_job {
  mgl_team *team;
  mgl_simd simd;
  const unsigned char *memory;
  unsigned char *own;  // the same memory when it is ours to fill
  size_t bytes;
  uint64_t *checksums;  // [team size]; keeps the loads from being removed
} read_job;

static void share_of(const read_job *job, uint32_t index, size_t *begin, size_t *end) {
  mgl_team_share(index, mgl_team_size(job->team), job->bytes, 4096, begin, end);
}

static void read_share(void *context, uint32_t index) {
  read_job *job = context;
  size_t begin = 0;
  size_t end = 0;
  share_of(job, index, &begin, &end);
  job->checksums[index] = mgl_cpu_read_stream(job->simd, job->memory + begin, end - begin);
}

// Untouched pages would all be one page of zeros. The reader fills its own share, so that the pages
// lie on its NUMA node.
static void fill_share(void *context, uint32_t index) {
  read_job *job = context;
  size_t begin = 0;
  size_t end = 0;
  share_of(job, index, &begin, &end);
  memset(job->own + begin, 1, end - begin);
}

mgl_status mgl_read_ceiling_measure(mgl_team *team, mgl_simd simd, const void *memory, size_t bytes,
                                    uint32_t passes, double *out_bytes_per_s, mgl_error *err) {
  read_job job = {.team = team, .simd = simd, .memory = memory, .bytes = bytes};
  *out_bytes_per_s = 0;
  size_t most = memory == NULL ? MGL_READ_CEILING_BYTES : MGL_READ_CEILING_MAX_BYTES;
  job.bytes = bytes < most ? bytes : most;
  if (memory == NULL) {
    void *own = NULL;
    MGL_TRY(mgl_pages_map(job.bytes, "buffer of the read ceiling", &own, err));
    job.own = own;
    job.memory = own;
  }
  mgl_status status = MGL_OK;
  job.checksums = mgl_alloc_zeroed(mgl_team_size(team), sizeof *job.checksums);
  if (job.checksums == NULL) {
    status = mgl_error_set(err, MGL_ERR_MEMORY, "out of memory measuring the read ceiling");
  } else if (job.own != NULL) {
    mgl_team_run(team, fill_share, &job);
  }
  uint64_t begin_ns = mgl_clock_ns();
  uint64_t start_ns = begin_ns;
  for (uint32_t pass = 0;
       status == MGL_OK && (pass < passes || start_ns - begin_ns < MGL_READ_CEILING_LEAST_NS);
       pass++) {
    mgl_team_run(team, read_share, &job);
    uint64_t end_ns = mgl_clock_ns();
    double rate = (double)job.bytes * 1e9 / (double)(end_ns - start_ns);
    start_ns = end_ns;
    *out_bytes_per_s = rate > *out_bytes_per_s ? rate : *out_bytes_per_s;
  }
  mgl_free(job.checksums);
  mgl_pages_unmap(job.own, job.bytes);
  return status;
}
