// JSON Schemas of parameters that are more than a number or a text; parameters.c names them. What a
// schema cannot say (that two parameters exclude each other, how many bytes a text has) is checked
// by the readers alone.
#ifndef MGL_REQUEST_VALUE_SCHEMAS_H
#define MGL_REQUEST_VALUE_SCHEMAS_H

#define SCHEMA_RANGE(least, most) \
  "{\"type\":\"integer\",\"minimum\":" least ",\"maximum\":" most "}"
#define SCHEMA_TEXT "{\"type\":\"string\",\"minLength\":1}"
#define SCHEMA_LAST_ID "\"last id\""  // stands for the vocabulary's
#define SCHEMA_ID SCHEMA_RANGE("0", SCHEMA_LAST_ID)
#define SCHEMA_IDS "{\"type\":\"array\",\"minItems\":1,\"items\":" SCHEMA_ID "}"
#define SCHEMA_PROMPTS                                                                      \
  "{\"anyOf\":[" SCHEMA_TEXT "," SCHEMA_IDS                                                 \
  ",{\"type\":\"array\",\"minItems\":1,\"maxItems\":128,\"items\":{\"anyOf\":[" SCHEMA_TEXT \
  "," SCHEMA_IDS "]}}]}"
#define SCHEMA_STOP_TEXT                                    \
  "{\"type\":\"string\",\"minLength\":1,\"maxLength\":256," \
  "\"pattern\":\"^[^\\\\u0000]*$\"}"
#define SCHEMA_STOP               \
  "{\"anyOf\":[" SCHEMA_STOP_TEXT \
  ",{\"type\":\"array\",\"maxItems\":16,\"items\":" SCHEMA_STOP_TEXT "}]}"
#define SCHEMA_BAD_WORDS "{\"type\":\"array\",\"maxItems\":256,\"items\":" SCHEMA_STOP_TEXT "}"
#define SCHEMA_STOP_IDS "{\"type\":\"array\",\"maxItems\":16,\"items\":" SCHEMA_ID "}"
#define SCHEMA_BIASES                                 \
  "{\"type\":\"object\",\"maxProperties\":1024,"      \
  "\"propertyNames\":{\"pattern\":\"^[0-9]{1,9}$\"}," \
  "\"additionalProperties\":{\"type\":\"number\",\"minimum\":-100,\"maximum\":100}}"
#define SCHEMA_STREAM                                                                   \
  "{\"type\":\"object\",\"additionalProperties\":false,\"properties\":{"                \
  "\"include_usage\":{\"type\":\"boolean\"},\"include_obfuscation\":{\"const\":false}," \
  "\"continuous_usage_stats\":{\"const\":false}}}"
#define SCHEMA_EFFORT "{\"enum\":[\"none\",\"minimal\",\"low\",\"medium\",\"high\",\"xhigh\"]}"
#define SCHEMA_PLAIN_FORMAT                                                      \
  "{\"type\":\"object\",\"required\":[\"type\"],\"additionalProperties\":false," \
  "\"properties\":{\"type\":{\"enum\":[\"text\",\"json_object\"]}}}"
#define SCHEMA_JSON_SCHEMA(members)                                                      \
  "{\"type\":\"object\",\"required\":[" members                                          \
  "\"name\",\"schema\"],"                                                                \
  "\"additionalProperties\":false,\"properties\":{\"type\":{\"const\":\"json_schema\"}," \
  "\"name\":{\"type\":\"string\"},\"description\":{\"type\":\"string\"},"                \
  "\"strict\":{\"type\":[\"boolean\",\"null\"]},\"schema\":{\"type\":[\"object\",\"boolean\"]}}}"
#define SCHEMA_FORMAT                                                                    \
  "{\"anyOf\":[" SCHEMA_PLAIN_FORMAT                                                     \
  ",{\"type\":\"object\",\"required\":[\"type\","                                        \
  "\"json_schema\"],\"additionalProperties\":false,\"properties\":{\"type\":{\"const\":" \
  "\"json_schema\"},\"json_schema\":" SCHEMA_JSON_SCHEMA("") "}}]}"
#define SCHEMA_TEXT_OPTIONS                                                                       \
  "{\"type\":\"object\",\"additionalProperties\":false,\"properties\":{\"verbosity\":{\"const\":" \
  "\"medium\"},\"format\":{\"anyOf\":[{\"type\":\"null\"}," SCHEMA_PLAIN_FORMAT                   \
  "," SCHEMA_JSON_SCHEMA("\"type\",") "]}}}"
#define SCHEMA_STRUCTURED                                                                    \
  "{\"type\":\"object\",\"minProperties\":1,\"properties\":{\"json\":{\"type\":[\"object\"," \
  "\"boolean\",\"string\"]},\"regex\":" SCHEMA_TEXT ",\"grammar\":" SCHEMA_TEXT              \
  ",\"choice\":{\"type\":\"array\",\"minItems\":1,\"items\":{\"type\":\"string\"}},"         \
  "\"json_object\":{\"type\":\"boolean\"}}}"
#define SCHEMA_TOOLS                                                                        \
  "{\"type\":\"array\",\"maxItems\":1024,\"items\":{\"type\":\"object\","                   \
  "\"required\":[\"type\",\"function\"],\"properties\":{\"type\":{\"const\":\"function\"}," \
  "\"function\":{\"type\":\"object\",\"required\":[\"name\"],\"properties\":{"              \
  "\"name\":{\"type\":\"string\",\"minLength\":1,\"maxLength\":256},"                       \
  "\"description\":{\"type\":[\"string\",\"null\"]},"                                       \
  "\"parameters\":{\"type\":[\"object\",\"null\"]},"                                        \
  "\"strict\":{\"type\":[\"boolean\",\"null\"]}}}}}}"
#define SCHEMA_TOOL_CHOICE                                                                         \
  "{\"anyOf\":[{\"enum\":[\"auto\",\"none\",\"required\"]},{\"type\":\"object\",\"required\":"     \
  "[\"type\",\"function\"],\"properties\":{\"type\":{\"const\":\"function\"},\"function\":"        \
  "{\"type\":\"object\",\"required\":[\"name\"],\"properties\":{\"name\":{\"type\":\"string\"}}}}" \
  "}]}"
#define SCHEMA_CONTENT(types)                                                        \
  "{\"anyOf\":[{\"type\":[\"string\",\"null\"]},{\"type\":\"array\",\"items\":"      \
  "{\"type\":\"object\",\"required\":[\"type\",\"text\"],\"properties\":{\"type\":{" \
  "\"enum\":" types "},\"text\":{\"type\":\"string\"}}}}]}"
#define SCHEMA_MESSAGES \
  "{\"type\":\"array\",\"minItems\":1,\"maxItems\":65536,\"items\":{\"type\":\"object\","       \
  "\"required\":[\"role\"],\"properties\":{\"role\":{\"type\":\"string\",\"minLength\":1},"     \
  "\"content\":" SCHEMA_CONTENT("[\"text\"]") ",\"name\":{\"type\":[\"string\",\"null\"]},"    \
  "\"tool_call_id\":{\"type\":[\"string\",\"null\"]},\"tool_calls\":{\"type\":"               \
  "[\"array\",\"null\"],\"items\":{\"type\":\"object\",\"required\":[\"function\"],"          \
  "\"properties\":{\"function\":{\"type\":\"object\"}}}}}}}"
#define SCHEMA_INPUT                                                                         \
  "{\"anyOf\":[{\"type\":\"string\"},{\"type\":\"array\",\"minItems\":1,\"maxItems\":65536," \
  "\"items\":{\"type\":\"object\",\"required\":[\"role\",\"content\"],\"properties\":{"      \
  "\"role\":{\"type\":\"string\",\"minLength\":1},\"type\":{\"const\":\"message\"},"         \
  "\"content\":" SCHEMA_CONTENT("[\"input_text\",\"output_text\",\"text\"]") "}}}]}"

#endif
