// Readers of parameters whose values are more than a number or a text; parameters.c names them.
#ifndef MGL_REQUEST_READ_VALUES_H
#define MGL_REQUEST_READ_VALUES_H

#include "base/json.h"
#include "request/parameters.h"

mgl_parameter_read mgl_read_prompt, mgl_read_messages, mgl_read_input, mgl_read_instructions;
mgl_parameter_read mgl_read_stop, mgl_read_stop_token_ids, mgl_read_top_k, mgl_read_logit_bias;
mgl_parameter_read mgl_read_seed, mgl_read_stream_options, mgl_read_logprobs;
mgl_parameter_read mgl_read_prompt_logprobs, mgl_read_allowed, mgl_read_priority;
mgl_parameter_read mgl_read_max_tokens, mgl_read_skip_special, mgl_read_bad_words;
mgl_parameter_read mgl_read_truncate, mgl_read_add_special, mgl_read_include_reasoning;
mgl_parameter_read mgl_read_tools, mgl_read_tool_choice, mgl_read_template_kwargs;
mgl_parameter_read mgl_read_reasoning_effort, mgl_read_generation_prompt;

#endif
