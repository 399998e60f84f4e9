#include "device/build.h"

uint64_t mgl_sizes_kv_bytes(const mgl_sizes *sizes) {
  return (uint64_t)sizes->page_count * sizes->limits.page_tokens * sizes->kv_bytes_per_token;
}

// All but the KV pages.
static uint64_t fixed_bytes(const mgl_sizes *sizes) {
  return sizes->weight_bytes + sizes->mapped_bytes + sizes->activation_bytes + sizes->other_bytes;
}

uint64_t mgl_sizes_total(const mgl_sizes *sizes) {
  return fixed_bytes(sizes) + mgl_sizes_kv_bytes(sizes);
}

static double mib(double bytes) {
  return bytes / (1 << 20);
}

mgl_status mgl_sizes_share(mgl_sizes *sizes, double share, mgl_error *err) {
  double page_bytes = (double)sizes->kv_bytes_per_token * sizes->limits.page_tokens;
  double fixed = (double)fixed_bytes(sizes);
  double wanted = (double)sizes->free_bytes * share;
  double while_loading = (double)sizes->free_bytes - (double)sizes->loading_bytes;
  double budget = (wanted < while_loading ? wanted : while_loading) - fixed;
  double pages = budget / page_bytes;
  if (!(pages >= 1)) {
    return mgl_error_set(err, MGL_ERR_MEMORY,
                         "no memory for a KV page: weights take %.0f MiB, activations and the rest "
                         "%.0f MiB, a page %.2f MiB, and %.0f MiB are %.3g of what is free; a "
                         "larger memory share or fewer sequences may help",
                         mib((double)(sizes->weight_bytes + sizes->mapped_bytes)),
                         mib((double)(sizes->activation_bytes + sizes->other_bytes)),
                         mib(page_bytes), mib(wanted), share);
  }
  if (pages < sizes->page_count) {
    sizes->page_count = (uint32_t)pages;
  }
  return MGL_OK;
}

mgl_compile_options mgl_build_compile(const mgl_build *build, const mgl_sizes *sizes,
                                      mgl_target target, uint32_t tokens) {
  uint32_t rows = tokens < sizes->logit_rows ? tokens : sizes->logit_rows;
  return (mgl_compile_options){.target = target,
                               .tokens = tokens,
                               .logit_rows = target == MGL_TARGET_CPU ? rows : 0,
                               .workers = sizes->workers,
                               .launch = build->launch,
                               .overrides = build->overrides,
                               .override_count = build->override_count,
                               .coarse = build->coarse};
}
