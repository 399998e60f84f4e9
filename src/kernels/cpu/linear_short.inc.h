// Linear layers of one token whose weights are short rows (kernels/cpu/short_rows.h): the bits of
// linear_vector.inc.h, for these decode to the weights that it reads, and are summed in its order.
//
// A group's 16 rows go side by side, as many of them at once as accumulators fit into registers; a
// level with fewer registers keeps the others in memory between blocks. Blocks with patches, of
// which there are few, go through a buffer.
//
// Included by linear_packed.inc.h, in front of `linear`, and behind single_bf16_bf16, which takes
// plain groups.

// A block of SHORT_AT_ONCE rows that has no patches. Rows one after the other, where all that is
// read of x stays in registers; else steps.
INLINE void short_rows_block(vec *acc, const char *from, const uint16_t *bases, const char *x) {
  enum { step = 2 * vec_lanes, steps = MGL_SHORT_BLOCK / step };
  if (SHORT_AT_ONCE > linear_rows) {
    vec values[steps];
    UNROLL for (size_t s = 0; s < steps; s++) {
      values[s] = vec_load_pairs(x + s * step * sizeof(mgl_bf16));
    }
    UNROLL for (size_t r = 0; r < SHORT_AT_ONCE; r++) {
      const short_base base = vec_short_base(bases[r]);
      UNROLL for (size_t s = 0; s < steps; s++) {
        vec w = vec_short_pairs(from + r * MGL_SHORT_BLOCK_BYTES, s * step, base);
        acc[r] = vec_dot_pairs(acc[r], values[s], w);
      }
    }
    return;
  }
  UNROLL for (size_t s = 0; s < steps; s++) {
    vec value = vec_load_pairs(x + s * step * sizeof(mgl_bf16));
    UNROLL for (size_t r = 0; r < SHORT_AT_ONCE; r++) {
      const short_base base = vec_short_base(bases[r]);
      vec w = vec_short_pairs(from + r * MGL_SHORT_BLOCK_BYTES, s * step, base);
      acc[r] = vec_dot_pairs(acc[r], value, w);
    }
  }
}

// Any block of all rows, of which K has `count` elements. Returns the patches that are left.
SEPARATE const uint32_t *short_any_block(vec acc[MGL_SHORT_ROWS], const char *from,
                                         const uint16_t *bases, const uint32_t *patches,
                                         const char *x, size_t count) {
  enum { step = 2 * vec_lanes, steps = MGL_SHORT_BLOCK / step };
  for (size_t r = 0; r < MGL_SHORT_ROWS; r++, from += MGL_SHORT_BLOCK_BYTES) {
    const short_base base = vec_short_base((uint16_t)(bases[r] & ~MGL_SHORT_COUNT));
    vec w[steps];
    UNROLL for (size_t s = 0; s < steps; s++) {
      w[s] = vec_short_pairs(from, s * step, base);
    }
    const size_t patched = bases[r] & MGL_SHORT_COUNT;
    if (patched > 0) {
      mgl_bf16 row[MGL_SHORT_BLOCK];
      memcpy(row, w, sizeof row);
      for (size_t i = 0; i < patched; i++, patches++) {
        row[*patches >> 16] = (mgl_bf16)*patches;
      }
      memcpy(w, row, sizeof row);
    }
    vec sum = acc[r];
    if (count == MGL_SHORT_BLOCK) {
      UNROLL for (size_t s = 0; s < steps; s++) {
        sum = vec_dot_pairs(sum, vec_load_pairs(x + s * step * sizeof(mgl_bf16)), w[s]);
      }
    } else {
      for (size_t s = 0; s * step < count; s++) {
        const char *at = x + s * step * sizeof(mgl_bf16);
        const size_t rest = count - s * step;
        vec value = rest < step ? vec_load_pairs_partial(at, rest) : vec_load_pairs(at);
        sum = vec_dot_pairs(sum, value, w[s]);
      }
    }
    acc[r] = sum;
  }
  return patches;
}

INLINE bool short_has_patches(const uint16_t *bases) {
  uint64_t all[MGL_SHORT_ROWS * sizeof *bases / sizeof(uint64_t)];
  uint64_t any = 0;
  memcpy(all, bases, sizeof all);
  UNROLL for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
    any |= all[i];
  }
  return (any & UINT64_C(0x0001000100010001) * MGL_SHORT_COUNT) != 0;
}

INLINE void short_group(vec acc[MGL_SHORT_ROWS], const char *group, const mgl_short_layout *layout,
                        const char *x, size_t k) {
  const uint16_t *bases = (const uint16_t *)(const void *)group;
  const uint32_t *patches = mgl_short_patches(group, layout);
  const char *from = group + layout->elements;
  UNROLL for (size_t r = 0; r < MGL_SHORT_ROWS; r++) {
    acc[r] = vec_zero();
  }
  for (size_t i = 0; i < k; i += MGL_SHORT_BLOCK) {
    if (__builtin_expect(short_has_patches(bases) || k - i < MGL_SHORT_BLOCK, 0)) {
      vec state[MGL_SHORT_ROWS];  // so that the accumulators have no address
      UNROLL for (size_t r = 0; r < MGL_SHORT_ROWS; r++) {
        state[r] = acc[r];
      }
      patches = short_any_block(state, from, bases, patches, x,
                                k - i < MGL_SHORT_BLOCK ? k - i : MGL_SHORT_BLOCK);
      UNROLL for (size_t r = 0; r < MGL_SHORT_ROWS; r++) {
        acc[r] = state[r];
      }
    } else {
      UNROLL for (size_t r = 0; r < MGL_SHORT_ROWS; r += SHORT_AT_ONCE) {
        short_rows_block(acc + r, from + r * MGL_SHORT_BLOCK_BYTES, bases + r, x);
      }
    }
    from += (size_t)MGL_SHORT_ROWS * MGL_SHORT_BLOCK_BYTES;
    bases += MGL_SHORT_ROWS;
    x += MGL_SHORT_BLOCK * sizeof(mgl_bf16);
  }
}

// Features n to n + 3 of the matrix, of which [begin, end) are asked for.
INLINE void short_store(const mgl_linear_args *args, size_t n, size_t begin, size_t end,
                        vec4 sums) {
  const size_t first = args->short_first;
  if (n >= begin && n < end) {
    store_sums(args, 0, n - first, end - first, sums);
  } else if (n < begin) {
    float values[4];
    vec4_store(values, sums);
    for (size_t r = begin; r < n + 4 && r < end; r++) {
      store_sums(args, 0, r - first, r - first + 1, (vec4){values[r - n]});
    }
  }
}

SEPARATE void linear_short(const mgl_linear_args *args, size_t begin, size_t end) {
  const mgl_short_layout layout = mgl_short_layout_of(args->k);
  begin += args->short_first;
  end += args->short_first;
  for (size_t n = begin / MGL_SHORT_ROWS * MGL_SHORT_ROWS; n < end; n += MGL_SHORT_ROWS) {
    const char *group = (const char *)args->w_short + n / MGL_SHORT_ROWS * layout.bytes;
    const size_t first = n < begin ? begin : n;
    const size_t last = n + MGL_SHORT_ROWS < end ? n + MGL_SHORT_ROWS : end;
    if (mgl_short_base(group, 0, 0) == MGL_SHORT_PLAIN) {
      single_bf16_bf16(args, first - args->short_first, last - args->short_first);
      continue;
    }
    vec acc[MGL_SHORT_ROWS];
    short_group(acc, group, &layout, args->x, args->k);
    UNROLL for (size_t r = 0; r < MGL_SHORT_ROWS; r += 4) {
      short_store(args, n + r, first, last, vec_sum4(acc[r], acc[r + 1], acc[r + 2], acc[r + 3]));
    }
  }
}
