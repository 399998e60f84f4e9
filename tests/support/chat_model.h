// The demo model with another chat template: its own knows neither tools nor thoughts.
#ifndef MGL_TESTS_SUPPORT_CHAT_MODEL_H
#define MGL_TESTS_SUPPORT_CHAT_MODEL_H

#include <megalith.h>
#include <stdio.h>
#include <unistd.h>

#include "support/temp_folder.h"

// A template that takes tools and variables, and writes calls as Hermes models do. With `bomb`, it
// does more than any template may.
#define CHAT_MODEL_TEMPLATE                                                                       \
  "{%- for tool in tools or [] %}{{ tool | tojson }}\n{% endfor %}"                               \
  "{%- for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>" \
  "\n{% endfor %}"                                                                                \
  "{% for i in range(bomb | default(0)) %}{% for j in range(bomb) %}{% endfor %}{% endfor %}"     \
  "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"                              \
  "{% if enable_thinking %}<think>\n{% endif %}"

// A folder like the demo's, but for the template; the caller removes it.
static inline void make_chat_folder(const char *demo, const char *chat_template,
                                    temp_folder *folder) {
  static const char *const shared[] = {"config.json", "generation_config.json", "tokenizer.json",
                                       "tokenizer_config.json", "model.safetensors"};
  temp_folder_create(folder);
  for (size_t i = 0; i < sizeof shared / sizeof *shared; i++) {
    char from[TEMP_PATH_BYTES];
    char to[TEMP_PATH_BYTES];
    (void)snprintf(from, sizeof from, "%s/%s", demo, shared[i]);
    temp_folder_path(folder, shared[i], to);
    if (symlink(from, to) != 0) {
      perror(to);
    }
  }
  temp_folder_write_text(folder, "chat_template.jinja", chat_template);
}

static inline megalith_model *open_chat_model(const char *demo, const char *chat_template) {
  temp_folder folder;
  megalith_model *opened = NULL;
  megalith_error error = {0};
  make_chat_folder(demo, chat_template, &folder);
  if (megalith_model_open(folder.path, NULL, &opened, &error) != MEGALITH_OK) {
    (void)fprintf(stderr, "%s\n", error.text);
  }
  temp_folder_remove(&folder);  // what is mapped stays
  return opened;
}

#endif
