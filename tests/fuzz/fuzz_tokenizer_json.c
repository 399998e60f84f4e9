// Fuzzes the reading of tokenizer.json; what parses must also encode and decode without a fault.
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "text/tokenizer.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  static const char TEXT[] = "Ab 12 it's\xff e\xcc\x81\r\n  <s>\xe2\x96\x81\xf0\x9f\x99\x82";
  int64_t live = mgl_alloc_live();
  mgl_error err;
  mgl_tokenizer *tokenizer = NULL;
  if (mgl_tokenizer_parse((const char *)data, size, "fuzz", &tokenizer, &err) == MGL_OK) {
    mgl_token_list list = {0};
    mgl_text out = {0};
    mgl_encode_options options = {.add_special = size % 2 == 0};
    if (mgl_tokenizer_encode(tokenizer, TEXT, strlen(TEXT), options, &list, &err) == MGL_OK) {
      for (size_t i = 0; i < list.count; i++) {
        if (list.ids[i] < 0 || (uint32_t)list.ids[i] >= mgl_tokenizer_vocab_size(tokenizer)) {
          abort();
        }
      }
      (void)mgl_tokenizer_decode(tokenizer, list.ids, list.count, size % 3 == 0, &out, &err);
    }
    mgl_token_list_free(&list);
    mgl_text_free(&out);
    mgl_tokenizer_close(tokenizer);
  }
  if (mgl_alloc_live() != live) {
    abort();
  }
  return 0;
}
