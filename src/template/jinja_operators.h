// Operators on values: arithmetic, membership, attributes, subscripts and slices, as Python has
// them and with Jinja's fallbacks (a missing attribute or item is undefined, not an error).
#ifndef MGL_TEMPLATE_JINJA_OPERATORS_H
#define MGL_TEMPLATE_JINJA_OPERATORS_H

#include "template/jinja_value.h"

// op as in jinja_parse.h. Integers beyond 64 bits are refused, never wrapped.
mgl_status mgl_jinja_binary(mgl_jinja_runtime *runtime, char op, mgl_jinja_value a,
                            mgl_jinja_value b, mgl_jinja_value *out);
mgl_status mgl_jinja_unary(mgl_jinja_runtime *runtime, char op, mgl_jinja_value a,
                           mgl_jinja_value *out);
mgl_status mgl_jinja_compare(mgl_jinja_runtime *runtime, char op, mgl_jinja_value a,
                             mgl_jinja_value b, bool *out);

// object.name and object[key]. On an undefined object both are errors.
mgl_status mgl_jinja_get_attribute(mgl_jinja_runtime *runtime, mgl_jinja_value object,
                                   mgl_jinja_string name, mgl_jinja_value *out);
mgl_status mgl_jinja_get_item(mgl_jinja_runtime *runtime, mgl_jinja_value object,
                              mgl_jinja_value key, mgl_jinja_value *out);
// object[bounds[0]:bounds[1]:bounds[2]], none for a bound that is left out.
mgl_status mgl_jinja_slice(mgl_jinja_runtime *runtime, mgl_jinja_value object,
                           const mgl_jinja_value *bounds, mgl_jinja_value *out);

// jinja_loop.c: the fields of `loop`, *known is false for a name that it has not; its repr.
mgl_status mgl_jinja_loop_attribute(mgl_jinja_runtime *runtime, struct mgl_jinja_loop *loop,
                                    mgl_jinja_string name, mgl_jinja_value *out, bool *known);
mgl_status mgl_jinja_loop_text(mgl_jinja_runtime *runtime, struct mgl_jinja_loop *loop,
                               mgl_jinja_builder *builder);

// An error unless the value is defined: "'x' is undefined".
mgl_status mgl_jinja_require_defined(mgl_jinja_runtime *runtime, mgl_jinja_value value);

#endif
