// Device code has the host's layouts (twin/layout.def). A source defines the macros of those rows
// whose headers it includes as MGL_SAME_LAYOUT, and includes the table.
#ifndef MGL_KERNELS_CUDA_COMMON_LAYOUT_H
#define MGL_KERNELS_CUDA_COMMON_LAYOUT_H

#define MGL_SAME_LAYOUT(NAME, ...) \
  static_assert((__VA_ARGS__) == MGL_HOST_BYTES_##NAME, "the host's layout: " #NAME);

#endif
