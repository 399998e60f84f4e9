#include "request/compile_settings.h"

#include <string.h>

#include "device/compilation.h"

_Static_assert((int)MGL_MOST_COMPILE_LEVEL == (int)MGL_LEVEL_COUNT - 1, "one limit");

static const char all_settings[] = "compilation-config";

const char *mgl_preset_choice(uint32_t index) {
  return mgl_preset_name(index);
}

const char *mgl_balance_choice(uint32_t index) {
  return mgl_balance_name(index);
}

const char *mgl_mode_choice(uint32_t index) {
  return index < MGL_MODE_COUNT ? mgl_mode_name((mgl_mode)index) : NULL;
}

static mgl_status set(const mgl_compile_option *option, mgl_compilation *out, mgl_error *err) {
  char name[MGL_MAX_OP_NAME_BYTES] = "";
  for (size_t i = 0; option->name[i] != 0 && i + 1 < sizeof name; i++) {
    name[i] = (char)(option->name[i] == '-' ? '_' : option->name[i]);
  }
  mgl_status status = mgl_compilation_set(out, "--", name, option->text, err);
  for (size_t i = 0; status != MGL_OK && err->text[i] != 0 && err->text[i] != ':'; i++) {
    err->text[i] = (char)(err->text[i] == '_' ? '-' : err->text[i]);  // as the option is written
  }
  return status;
}

static mgl_status set_all(const mgl_compile_option *options, size_t count, mgl_compilation *out,
                          mgl_error *err) {
  for (size_t i = 0; i < count; i++) {  // the object first
    if (strcmp(options[i].name, all_settings) == 0) {
      MGL_TRY(mgl_compilation_read(out, "--compilation-config", options[i].text, err));
    }
  }
  for (size_t i = 0; i < count; i++) {
    if (strcmp(options[i].name, all_settings) != 0) {
      MGL_TRY(set(&options[i], out, err));
    }
  }
  return MGL_OK;
}

// The only one or the first of several.
static mgl_status read_mode(const char *text, mgl_mode *out, mgl_error *err) {
  char name[64];
  size_t bytes = strcspn(text, ",");
  bytes = bytes < sizeof name ? bytes : sizeof name - 1;
  memcpy(name, text, bytes);
  name[bytes] = 0;
  return mgl_mode_parse(name, out, err);
}

mgl_status mgl_compile_settings_read(const mgl_compile_option *options, size_t count,
                                     const char *mode_text, mgl_compile_settings *out,
                                     mgl_error *err) {
  mgl_compilation c;
  mgl_mode mode = MGL_MODE_MEGA;
  *out = (mgl_compile_settings){.is_mega = true};
  mgl_compilation_init(&c);
  MGL_TRY(set_all(options, count, &c, err));
  if (count > 0) {
    mgl_compilation_print(&c, &out->json);
    MGL_TRY(mgl_text_check(&out->json, err));
  }
  if (mode_text != NULL) {
    MGL_TRY(read_mode(mode_text, &mode, err));
  }
  if (count > 0 && mode_text != NULL) {
    MGL_TRY(mgl_compilation_set_mode(&c, mode, err));
  }
  if (count > 0) {
    MGL_TRY(mgl_compilation_check(&c, NULL, err));
    mode = c.mode;
  }
  out->is_mega = mode == MGL_MODE_MEGA;
  return MGL_OK;
}
