// The kernels of the level amx_bf16: those of avx512_bf16 (kernels_vector.inc.h), but linears of
// bf16, which tile registers compute.
#if defined(__x86_64__)

#define LEVEL_HAS_TILES true
#include "kernels/cpu/codes_avx512.h"
#include "kernels/cpu/vector_avx512.h"
// The body is written against the operations above.
#include "kernels/cpu/kernels_vector.inc.h"
#include "kernels/cpu/tiles_amx.h"
// So is this.
#include "kernels/cpu/linear_tiles.inc.h"

static void pack_any(const mgl_pack_args *args) {
  if (args->dtype == MGL_DTYPE_BF16 && !args->whole) {
    pack_tiles(args);
  } else {
    pack(args);
  }
}

static void linear_any(const mgl_linear_args *given, size_t begin, size_t end) {
  mgl_linear_args args = *given;
  args.way = given->way != NULL ? given->way : &usual_way_of_tiles;
  if (args.x_dtype == MGL_DTYPE_BF16 && args.w_dtype == MGL_DTYPE_BF16) {
    linear_tiles(&args, begin, end);
  } else {
    linear(&args, begin, end);
  }
}

const kernel_level mgl_level_amx_bf16 =
    KERNEL_LEVEL_WITH("amx_bf16", pack_any, linear_any, USUAL_WAY_OF_TILES);

#endif
