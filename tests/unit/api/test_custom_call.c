// What CUDA sources of custom ops see (twin/custom_call.h) is what megalith.h shows: the same
// numbers, and structs of the same layout.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <megalith.h>

static const size_t header[] = {
#define MGL_LAYOUT(type, member) offsetof(type, member), sizeof(((type *)0)->member)
#define MGL_LAYOUTS                                                                            \
  MEGALITH_MAX_TENSOR_DIMS, MEGALITH_MAX_CUSTOM_INPUTS, MEGALITH_MAX_CUSTOM_ATTRIBUTES,        \
      MEGALITH_F32, MEGALITH_BF16, MEGALITH_F16, MEGALITH_I32, MEGALITH_ROWS_FIXED,            \
      MEGALITH_ROWS_TOKENS, MEGALITH_ROWS_LOGITS, sizeof(megalith_tensor_type),                \
      MGL_LAYOUT(megalith_tensor_type, dtype), MGL_LAYOUT(megalith_tensor_type, rows),         \
      MGL_LAYOUT(megalith_tensor_type, rank), MGL_LAYOUT(megalith_tensor_type, dims),          \
      sizeof(megalith_custom_call), MGL_LAYOUT(megalith_custom_call, size),                    \
      MGL_LAYOUT(megalith_custom_call, context), MGL_LAYOUT(megalith_custom_call, attributes), \
      MGL_LAYOUT(megalith_custom_call, input_types), MGL_LAYOUT(megalith_custom_call, inputs), \
      MGL_LAYOUT(megalith_custom_call, output_type), MGL_LAYOUT(megalith_custom_call, output), \
      MGL_LAYOUT(megalith_custom_call, first_row), MGL_LAYOUT(megalith_custom_call, end_row)
    MGL_LAYOUTS};

// From here on the same names are the other's.
#define MEGALITH_MAX_TENSOR_DIMS DEVICE_MAX_TENSOR_DIMS
#define MEGALITH_MAX_CUSTOM_INPUTS DEVICE_MAX_CUSTOM_INPUTS
#define MEGALITH_MAX_CUSTOM_ATTRIBUTES DEVICE_MAX_CUSTOM_ATTRIBUTES
#define MEGALITH_F32 DEVICE_F32
#define MEGALITH_BF16 DEVICE_BF16
#define MEGALITH_F16 DEVICE_F16
#define MEGALITH_I32 DEVICE_I32
#define MEGALITH_ROWS_FIXED DEVICE_ROWS_FIXED
#define MEGALITH_ROWS_TOKENS DEVICE_ROWS_TOKENS
#define MEGALITH_ROWS_LOGITS DEVICE_ROWS_LOGITS
#define megalith_dtype device_dtype
#define megalith_rows device_rows
#define megalith_tensor_type device_tensor_type
#define megalith_custom_call device_custom_call
#include "twin/custom_call.h"

static const size_t device[] = {MGL_LAYOUTS};

static void both_have_the_same_numbers_and_layout(void **state) {
  (void)state;
  assert_int_equal(sizeof device, sizeof header);
  assert_memory_equal(device, header, sizeof header);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(both_have_the_same_numbers_and_layout)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
