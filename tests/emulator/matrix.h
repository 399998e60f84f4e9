// What a warp does with matrices (mma, wgmma, ldmatrix, stmatrix, movmatrix), and conversions of
// small floats, as the PTX ISA 9.0 says, for the interpreter.
//
// A register is a vector of 32 words, one of each lane; an operand is an array of pointers to such
// vectors, so that the interpreter passes its register file's rows as they are. Outputs may be the
// same registers as inputs.
//
// Order of sums. A GPU does not say how its tensor cores add; here every product of f16 or bf16 is
// exact, and is added to the sum in f32, rounded to nearest, k after k from 0 on, beginning with c:
// the same for mma and for wgmma, whose products of 16 elements are those of m16n8k16. Of s8 sums
// are exact.
#ifndef TESTS_EMULATOR_MATRIX_H
#define TESTS_EMULATOR_MATRIX_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { EMU_LANES = 32 };

typedef enum emu_half { EMU_BF16, EMU_F16 } emu_half;

// --- conversions ---------------------------------------------------------------------------------

float emu_float_of(uint32_t bits);
uint32_t emu_bits_of(float value);
float emu_from_bf16(uint16_t bits);
float emu_from_f16(uint16_t bits);
float emu_from_half(emu_half kind, uint16_t bits);

// How a value that is none of the target's is rounded: to nearest, ties to even; to zero.
typedef enum emu_rounding { EMU_NEAREST, EMU_TO_ZERO } emu_rounding;

// cvt.{rn,rz}[.relu][.satfinite].{bf16,f16}.f32. NaN becomes 0x7fff; saturate: what is beyond the
// largest finite value, infinities too, becomes that, and NaN stays NaN.
uint16_t emu_to_half(emu_half kind, float value, emu_rounding rounding, bool saturate, bool relu);

// cvt.rn.satfinite[.relu].{e4m3x2,e5m2x2}.f32 of one value: beyond the largest finite value (448,
// 57344) it is that; NaN becomes 0x7f. And back, exactly: cvt.rn.f16x2.{e4m3x2,e5m2x2}.
typedef enum emu_eight { EMU_E4M3, EMU_E5M2 } emu_eight;
uint8_t emu_to_eight(emu_eight kind, float value, bool relu);
float emu_from_eight(emu_eight kind, uint8_t bits);

// --- products ------------------------------------------------------------------------------------

// mma.sync.aligned.m16n8k16.row.col.f32.KIND.KIND.f32: d[4] = a[4] b[2] + c[4].
void emu_mma_m16n8k16(emu_half kind, uint32_t *const d[4], const uint32_t *const a[4],
                      const uint32_t *const b[2], const uint32_t *const c[4]);
// The same of m16n8k8: a[2], b[1].
void emu_mma_m16n8k8(emu_half kind, uint32_t *const d[4], const uint32_t *const a[2],
                     const uint32_t *const b[1], const uint32_t *const c[4]);
// mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32. Sums wrap round.
void emu_mma_m16n8k32_s8(uint32_t *const d[4], const uint32_t *const a[4],
                         const uint32_t *const b[2], const uint32_t *const c[4]);

// wgmma.mma_async.sync.aligned.m64nNk16.f32.KIND.KIND, the 16 rows of one of its four warps: when
// the interpreter likes, between the instruction and the wait for its group. Matrices in shared
// memory have k contiguous (trans-a and trans-b 0).
typedef struct emu_wgmma {
  emu_half kind;
  uint32_t n;                // 8 to 256, a multiple of 8
  uint32_t warp;             // of the four
  const uint32_t *const *a;  // [4] registers of this warp, or NULL: a_descriptor
  uint64_t a_descriptor, b_descriptor;
  bool add;                 // scale-d
  bool negate_a, negate_b;  // imm-scale-a, imm-scale-b
  const uint8_t *shared;    // the block's shared memory
  size_t shared_bytes;      // of it
} emu_wgmma;

// d: n / 2 registers. False: it reads behind shared memory's end, which *why describes, or d is not
// written.
bool emu_wgmma_warp(const emu_wgmma *what, uint32_t *const *d, char *why, size_t why_bytes);

// --- moving --------------------------------------------------------------------------------------

// ldmatrix.sync.aligned.m8n8.xCOUNT[.trans].shared.b16: rows[lane]: 16 bytes at the host's address
// that lane names; lanes 0 to 8 count - 1 do.
void emu_ldmatrix(uint32_t count, bool transpose, uint32_t *const *d,
                  const uint8_t *const rows[32]);
void emu_stmatrix(uint32_t count, bool transpose, uint8_t *const rows[32],
                  const uint32_t *const *a);
// movmatrix.sync.aligned.m8n8.trans.b16.
void emu_movmatrix(uint32_t *d, const uint32_t *a);

#endif
