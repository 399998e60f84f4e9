// What a GGUF file's metadata say, in the words of a folder: config.json, generation_config.json,
// tokenizer.json. One reader of each then does all the checking.
#ifndef MGL_MODEL_GGUF_CONFIG_H
#define MGL_MODEL_GGUF_CONFIG_H

#include "base/json.h"
#include "model/gguf.h"

// Architectures: llama, qwen2, qwen3. A key that changes the arithmetic in a way that is not
// supported is refused by its name. Free *out with json_decref.
mgl_status mgl_gguf_config(const mgl_gguf *gguf, json_t **out, mgl_error *err);

// The sampling defaults, as a generation_config.json.
mgl_status mgl_gguf_generation(const mgl_gguf *gguf, json_t **out, mgl_error *err);

#endif
