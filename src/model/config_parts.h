// What the files that read a config.json share: config.c, and config_rope.c for the rotary
// embedding.
#ifndef MGL_MODEL_CONFIG_PARTS_H
#define MGL_MODEL_CONFIG_PARTS_H

#include "base/json.h"
#include "model/config.h"

enum { MGL_PHI3_ORIGINAL_CONTEXT = 4096 };  // where the key is absent

// Reads config->rope and config->rotary_dim, and stretches config->context_tokens where the kind
// does. Needs the family and the sizes.
mgl_status mgl_config_read_rope(mgl_json_object o, mgl_config *config, mgl_error *err);

#endif
