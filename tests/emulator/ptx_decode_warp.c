// Decodes what lanes do together: shuffles, votes, barriers, mbarriers, copies and products beside the
// warp, matrices.
#include <stdio.h>

#include "emulator/ptx_reader.h"

// --- warps and blocks ----------------------------------------------------------------------------

void emu_decode_shfl(emu_reader *r) {
  const emu_slice second = r->operands[0].second;
  emu_need_operands(r, 5, 5);
  const emu_row d = emu_target_row(r, 0, 4);
  const emu_row e = second.length > 0 ? emu_target_word(r, second, 0) : EMU_NO_ROW;
  const emu_row a = emu_operand_row(r, 1, 4), b = emu_operand_row(r, 2, 4),
                c = emu_operand_row(r, 3, 4);
  const uint32_t list = emu_list_begin(r);
  emu_list_add(r, emu_operand_row(r, 4, 4));
  emu_op *op = emu_add_op(r, OP_SHUFFLE);
  op->d = d;
  op->e = e;
  op->a = a;
  op->b = b;
  op->c = c;
  op->list = list;
  op->how = (uint8_t)(emu_part_is(r, 2, "idx")    ? EMU_IDX
                      : emu_part_is(r, 2, "up")   ? EMU_UP
                      : emu_part_is(r, 2, "down") ? EMU_DOWN
                                                  : EMU_BFLY);
}

void emu_decode_vote(emu_reader *r) {
  const bool ballot = emu_part_is(r, 2, "ballot");
  emu_need_operands(r, 3, 3);
  const emu_row d = emu_target_row(r, 0, ballot ? 4 : 0), a = emu_operand_row(r, 1, 0);
  const emu_row b = emu_operand_row(r, 2, 4);
  const bool negated = r->operands[1].negated;
  emu_op *op = emu_add_op(r, OP_VOTE);
  op->d = d;
  op->a = a;
  op->b = b;
  op->width = negated;
  op->how = (uint8_t)(ballot                     ? EMU_BALLOT
                      : emu_part_is(r, 2, "any") ? EMU_ANY
                      : emu_part_is(r, 2, "all") ? EMU_ALL
                                                 : EMU_UNI);
}

void emu_decode_redux(emu_reader *r) {
  const bool is_signed = emu_last_part(r).at[0] == 's';
  emu_need_operands(r, 3, 3);
  const emu_row d = emu_target_row(r, 0, 4), a = emu_operand_row(r, 1, 4),
                b = emu_operand_row(r, 2, 4);
  emu_op *op = emu_add_op(r, OP_REDUX);
  op->d = d;
  op->a = a;
  op->b = b;
  op->how = (uint8_t)(emu_part_is(r, 2, "add")   ? EMU_ADD
                      : emu_part_is(r, 2, "and") ? EMU_AND
                      : emu_part_is(r, 2, "or")  ? EMU_OR
                      : emu_part_is(r, 2, "xor") ? EMU_XOR
                      : emu_part_is(r, 2, "min") ? (is_signed ? EMU_MIN_S : EMU_MIN_U)
                                                 : (is_signed ? EMU_MAX_S : EMU_MAX_U));
}

// bar, barrier: .sync a [, b]; .arrive a, b; .red.OP.pred d, a, [b,] c; .warp.sync mask.
void emu_decode_bar(emu_reader *r) {
  if (emu_part_is(r, 1, "warp")) {
    const emu_row a = emu_operand_row(r, 0, 4);
    emu_add_op(r, OP_WARP_SYNC)->a = a;
    return;
  }
  const bool reduce = emu_has_part(r, "red");
  const uint32_t first = reduce ? 1 : 0, behind = r->operand_count - (reduce ? 1 : 0);
  if (reduce && (!emu_has_part(r, "pred") || emu_has_part(r, "popc"))) {
    emu_refuse(r, "an unknown barrier");
  }
  emu_need_operands(r, 1, 4);
  const emu_row d = reduce ? emu_target_row(r, 0, 0) : EMU_NO_ROW, a = emu_operand_row(r, first, 4);
  const emu_row b = behind > first + 1 ? emu_operand_row(r, first + 1, 4) : EMU_NO_ROW;
  const emu_row c = reduce ? emu_operand_row(r, behind, 0) : EMU_NO_ROW;
  emu_op *op = emu_add_op(r, reduce                      ? OP_BARRIER_REDUCE
                             : emu_has_part(r, "arrive") ? OP_BARRIER_ARRIVE
                                                         : OP_BARRIER);
  op->d = d;
  op->a = a;
  op->b = b;
  op->c = c;
  op->how = emu_has_part(r, "and") ? EMU_ALL : EMU_ANY;
}

void emu_decode_mbarrier(emu_reader *r) {
  int64_t offset = 0;
  if (emu_part_is(r, 1, "init")) {
    const emu_row a = emu_shared_address(r, 0, &offset), b = emu_operand_row(r, 1, 4);
    emu_op *op = emu_add_op(r, OP_MBARRIER_INIT);
    op->a = a;
    op->b = b;
    op->imm = offset;
  } else if (emu_part_is(r, 1, "arrive")) {
    const bool expects = emu_part_is(r, 2, "expect_tx");
    if (!emu_slice_is(r->operands[0].word, "_") || r->operand_count > 3) {
      emu_refuse(r, "a state");
    }
    const emu_row a = emu_shared_address(r, 1, &offset);
    const emu_row b = r->operand_count > 2 ? emu_operand_row(r, 2, 4) : EMU_NO_ROW;
    emu_op *op = emu_add_op(r, OP_MBARRIER_ARRIVE);
    op->a = a;
    *(expects ? &op->b : &op->c) = b;
    op->imm = offset;
  } else if (emu_part_is(r, 1, "expect_tx")) {
    const emu_row a = emu_shared_address(r, 0, &offset), b = emu_operand_row(r, 1, 4);
    emu_op *op = emu_add_op(r, OP_MBARRIER_EXPECT);
    op->a = a;
    op->b = b;
    op->imm = offset;
  } else if (emu_part_is(r, 2, "parity")) {
    const emu_row d = emu_target_row(r, 0, 0), a = emu_shared_address(r, 1, &offset);
    const emu_row b = emu_operand_row(r, 2, 4);
    emu_op *op = emu_add_op(r, emu_part_is(r, 1, "try_wait") ? OP_MBARRIER_TRY : OP_MBARRIER_TEST);
    op->d = d;
    op->a = a;
    op->b = b;
    op->imm = offset;
  } else if (emu_part_is(r, 1, "inval")) {
    (void)emu_add_op(r, OP_NOTHING);
  } else {
    emu_refuse(r, "an unknown instruction");
  }
}

// --- what is asynchronous ------------------------------------------------------------------------

static void decode_bulk(emu_reader *r) {
  int64_t to = 0, from = 0, at = 0;
  uint8_t bytes = 0;
  if (emu_part_is(r, 3, "prefetch")) {
    (void)emu_add_op(r, OP_NOTHING);
  } else if (emu_part_is(r, 3, "commit_group")) {
    (void)emu_add_op(r, OP_BULK_COMMIT);
  } else if (emu_part_is(r, 3, "wait_group")) {
    uint64_t groups = 0;
    if (!emu_number(r->operands[0].word, &groups)) {
      emu_refuse(r, "a number is expected");
    }
    emu_add_op(r, OP_BULK_WAIT)->imm = (int64_t)groups;
  } else if (emu_part_is(r, 4, "global") && emu_is_shared(r)) {
    const emu_row a = emu_shared_address(r, 0, &to), b = emu_address_row(r, 1, &bytes, &from);
    const emu_row c = emu_operand_row(r, 2, 4), e = emu_shared_address(r, 3, &at);
    emu_op *op = emu_add_op(r, OP_BULK_IN);
    op->a = a;
    op->b = b;
    op->c = c;
    op->e = e;
  } else if (emu_part_is(r, 3, "global") && emu_part_is(r, 5, "bulk_group")) {
    const emu_row a = emu_address_row(r, 0, &bytes, &to), b = emu_shared_address(r, 1, &from);
    const emu_row c = emu_operand_row(r, 2, 4);
    emu_op *op = emu_add_op(r, OP_BULK_OUT);
    op->a = a;
    op->b = b;
    op->c = c;
  } else {
    emu_refuse(r, "an unknown instruction");
  }
  if (to != 0 || from != 0 || at != 0) {
    emu_refuse(r, "an offset of a bulk copy");
  }
}

void emu_decode_copy(emu_reader *r) {
  int64_t to = 0, from = 0;
  uint8_t bytes = 0;
  uint64_t value = 0;
  if (emu_part_is(r, 2, "bulk")) {
    decode_bulk(r);
  } else if (emu_part_is(r, 2, "commit_group")) {
    (void)emu_add_op(r, OP_COPY_COMMIT);
  } else if (emu_part_is(r, 2, "wait_group")) {
    if (!emu_number(r->operands[0].word, &value)) {
      emu_refuse(r, "a number is expected");
    }
    emu_add_op(r, OP_COPY_WAIT)->imm = (int64_t)value;
  } else if (emu_part_is(r, 2, "wait_all")) {
    emu_add_op(r, OP_COPY_WAIT)->imm = -1;
  } else if (emu_part_is(r, 2, "mbarrier") && emu_part_is(r, 4, "noinc")) {
    const emu_row a = emu_shared_address(r, 0, &to);
    emu_op *op = emu_add_op(r, OP_COPY_ARRIVE);
    op->a = a;
    op->imm = to;
  } else if (emu_part_is(r, 2, "ca") || emu_part_is(r, 2, "cg")) {
    const bool policy = emu_has_part(r, "L2::cache_hint");
    const uint32_t left = r->operand_count - (policy ? 1 : 0);
    const emu_row a = emu_shared_address(r, 0, &to), b = emu_address_row(r, 1, &bytes, &from);
    const emu_row c = left > 3 ? emu_operand_row(r, 3, 4) : EMU_NO_ROW;
    if (left < 3 || left > 4 || !emu_number(r->operands[2].word, &value) || value > 16) {
      emu_refuse(r, "a copy of no known size");
    }
    if (from != 0) {
      emu_refuse(r, "an offset of the source");
    }
    emu_op *op = emu_add_op(r, OP_COPY);
    op->a = a;
    op->b = b;
    op->c = c;
    op->imm = to;
    op->bytes = (uint8_t)value;
  } else {
    emu_refuse(r, "an unknown instruction");
  }
}

// --- matrices ------------------------------------------------------------------------------------

void emu_decode_mma(emu_reader *r) {
  const bool k16 = emu_part_is(r, 3, "m16n8k16"), k8 = emu_part_is(r, 3, "m16n8k8");
  const bool bf16 = emu_part_is(r, 7, "bf16"), f16 = emu_part_is(r, 7, "f16");
  const bool s8 =
      emu_part_is(r, 3, "m16n8k32") && emu_part_is(r, 7, "s8") && emu_part_is(r, 8, "s8");
  if (emu_part_is(r, 2, "aligned") == false || !(s8 || ((k16 || k8) && (bf16 || f16))) ||
      (!s8 && !emu_part_is(r, 6, "f32"))) {
    emu_refuse(r, "an unknown product");
  }
  const uint32_t counts[4] = {4, k8 ? 2 : 4, k8 ? 1 : 2, 4};
  const uint32_t list = emu_list_begin(r);
  for (uint32_t i = 0; i < 4; i++) {
    const uint32_t before = emu_list_begin(r);
    emu_add_list(r, i, 4, i == 0);
    if (emu_list_begin(r) - before != counts[i]) {
      emu_refuse(r, "a product of %u registers", emu_list_begin(r) - before);
    }
  }
  emu_op *op = emu_add_op(r, OP_MMA);
  op->list = list;
  op->imm = s8            ? EMU_MMA_S8
            : k16 && bf16 ? EMU_MMA_BF16
            : k16         ? EMU_MMA_F16
            : bf16        ? EMU_MMA_BF16_K8
                          : EMU_MMA_F16_K8;
}

void emu_decode_ldmatrix(emu_reader *r, bool load) {
  int64_t offset = 0;
  const uint32_t count = emu_has_part(r, "x4") ? 4 : emu_has_part(r, "x2") ? 2 : 1;
  if (!emu_has_part(r, "m8n8") || !emu_has_part(r, "b16")) {
    emu_refuse(r, "an unknown shape");
  }
  const emu_row a = emu_shared_address(r, load ? 1 : 0, &offset);
  const uint32_t list = emu_list_begin(r);
  emu_add_list(r, load ? 0 : 1, 4, load);
  emu_op *op = emu_add_op(r, load ? OP_LDMATRIX : OP_STMATRIX);
  op->a = a;
  op->list = list;
  op->count = (uint8_t)count;
  op->how = emu_has_part(r, "trans") ? EMU_TRANSPOSED : 0;
  op->imm = offset;
}

// wgmma.mma_async.sync.aligned.m64nNk16.f32.K.K d, a, b, scale-d, imm-scale-a, imm-scale-b
// [, trans-a], trans-b
void emu_decode_wgmma(emu_reader *r) {
  uint32_t n = 0;
  uint64_t numbers[4] = {1, 1, 0, 0};
  if (emu_part_is(r, 1, "fence")) {
    (void)emu_add_op(r, OP_NOTHING);
    return;
  }
  if (emu_part_is(r, 1, "commit_group")) {
    (void)emu_add_op(r, OP_WGMMA_COMMIT);
    return;
  }
  if (emu_part_is(r, 1, "wait_group")) {
    if (!emu_number(r->operands[0].word, &numbers[0])) {
      emu_refuse(r, "a number is expected");
    }
    emu_add_op(r, OP_WGMMA_WAIT)->imm = (int64_t)numbers[0];
    return;
  }
  const bool bf16 = emu_part_is(r, 6, "bf16") && emu_part_is(r, 7, "bf16");
  if (!emu_part_is(r, 1, "mma_async") || sscanf(r->parts[4].at, "m64n%uk16", &n) != 1 ||
      !emu_part_is(r, 5, "f32") ||
      !(bf16 || (emu_part_is(r, 6, "f16") && emu_part_is(r, 7, "f16")))) {
    emu_refuse(r, "an unknown product");
  }
  const bool in_registers = r->operands[1].kind == EMU_VECTOR;
  const uint32_t list = emu_list_begin(r);
  emu_add_list(r, 0, 4, true);
  if (emu_list_begin(r) - list != n / 2) {
    emu_refuse(r, "a product of %u sums", emu_list_begin(r) - list);
  }
  if (in_registers) {
    emu_add_list(r, 1, 4, false);
  }
  const emu_row a = in_registers ? EMU_NO_ROW : emu_operand_row(r, 1, 8),
                b = emu_operand_row(r, 2, 8);
  const emu_row c = emu_operand_row(r, 3, 0);
  for (uint32_t i = 4; i < r->operand_count && i < 8; i++) {
    if (!emu_number(r->operands[i].word, &numbers[i - 4])) {
      emu_refuse(r, "a number is expected");
    }
  }
  if (numbers[0] != 1 || numbers[1] != 1 || numbers[2] != 0 || numbers[3] != 0) {
    emu_refuse(r, "a negated or transposed matrix");
  }
  emu_op *op = emu_add_op(r, OP_WGMMA);
  op->list = list;
  op->a = a;
  op->b = b;
  op->c = c;
  op->imm = n;
  op->how = (uint8_t)(bf16 ? EMU_BF16 : EMU_F16);
}
