// A Hugging Face model folder, opened: configuration, generation defaults, tokenizer, chat template
// and checkpoint. Each part is optional for some caller, so the caller says what it needs. A GGUF
// file has all of them too, and is opened as a folder is (gguf_folder.h).
#ifndef MGL_MODEL_MODEL_FOLDER_H
#define MGL_MODEL_MODEL_FOLDER_H

#include "base/status.h"
#include "model/config.h"
#include "model/safetensors.h"
#include "template/chat_template.h"
#include "text/tokenizer.h"

typedef enum mgl_folder_need {
  MGL_NEED_TOKENIZER = 1,      // tokenizer.json and bos_token, eos_token (else they stay NULL)
  MGL_NEED_WEIGHTS = 2,        // safetensors (else checkpoint stays NULL)
  MGL_NEED_CHAT_TEMPLATE = 4,  // an error if the folder has none; implies MGL_NEED_TOKENIZER
  // The same where the folder has them: without a tokenizer.json, tokenizer stays NULL; without a
  // chat template that can be parsed, chat_template does, and no_chat_template says why.
  MGL_WANT_TEXT = 8,
  MGL_WANT_WEIGHTS = 16,  // safetensors, where the folder has a model.safetensors or its index
} mgl_folder_need;

typedef struct mgl_model_folder {
  char *path;
  mgl_config config;
  mgl_generation generation;
  mgl_tokenizer *tokenizer;          // NULL unless asked for
  mgl_chat_template *chat_template;  // NULL unless asked for
  char *no_chat_template;            // with MGL_WANT_TEXT: why it is NULL; else NULL
  char *bos_token;  // text of special tokens from tokenizer_config.json; may be NULL
  char *eos_token;
  mgl_checkpoint *checkpoint;  // NULL unless asked for
} mgl_model_folder;

// What all that a folder's texts become may take of the heap while they are read and afterwards,
// besides MGL_ALLOC_BUDGET_FACTOR bytes for each byte of text: JSON values, tokenizer, template,
// tables of tensors. Weights are mapped and do not count.
enum { MGL_FOLDER_BUDGET_BASE_BYTES = 64 << 20 };

// Opens a folder, or a GGUF file; `needs` is a set of mgl_folder_need. config.json is always read,
// generation_config.json if present. A tokenizer may have ids that the model's vocab_size does not
// cover; the engine refuses a prompt with such an id. Zeroes *out first; on failure nothing is
// held.
mgl_status mgl_model_folder_open(const char *path, unsigned needs, mgl_model_folder *out,
                                 mgl_error *err);
void mgl_model_folder_close(mgl_model_folder *folder);

#endif
