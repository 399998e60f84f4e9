// Strings of a schema: lengths, patterns, formats.
#include <string.h>

#include "grammar/json_schema_parts.h"
#include "grammar/regex.h"

// Each as a regular expression of the whole. They allow what their RFCs allow, or less: no leap
// seconds, no comments in addresses, no zones of IPv6, URIs with a host.
#define LABEL "[A-Za-z0-9]([A-Za-z0-9-]{0,60}[A-Za-z0-9])?"
#define HOST LABEL "(\\." LABEL "){0,3}"
#define H4 "[0-9A-Fa-f]{1,4}"
#define BYTE "(25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])"
#define LEAP_YEAR "([0-9]{2}(0[48]|[2468][048]|[13579][26])|(0[48]|[2468][048]|[13579][26])00)"
#define DATE                                                                                     \
  "((000[1-9]|00[1-9][0-9]|0[1-9][0-9]{2}|[1-9][0-9]{3})-((0[13578]|1[02])-(0[1-9]|[12][0-9]|3[" \
  "01])|(0[469]|11)-(0[1-9]|[12][0-9]|30)|02-(0[1-9]|1[0-9]|2[0-8]))|" LEAP_YEAR "-02-29)"
#define HOUR "([01][0-9]|2[0-3])"
#define TIME HOUR ":[0-5][0-9]:[0-5][0-9](\\.[0-9]{1,6})?(Z|[+-]" HOUR ":[0-5][0-9])"
#define TIME_SPAN "T([0-9]{1,6}H([0-9]{1,6}M([0-9]{1,6}S)?)?|[0-9]{1,6}M([0-9]{1,6}S)?|[0-9]{1,6}S)"
#define URI_CHAR "([A-Za-z0-9._~!$&'()*+,;=:@-]|%[0-9A-Fa-f]{2})"

static const struct {
  const char *name;
  const char *regex;
} formats[] = {
    {"date", DATE},
    {"time", TIME},
    {"date-time", DATE "T" TIME},
    {"duration",
     "P([0-9]{1,6}W|([0-9]{1,6}Y([0-9]{1,6}M([0-9]{1,6}D)?)?|[0-9]{1,6}M([0-9]{1,6}D)?|[0-9]{1,6}"
     "D)(" TIME_SPAN ")?|" TIME_SPAN ")"},
    {"email",
     "[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]{1,20}(\\.[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]{1,20}){0,2}@" HOST},
    {"hostname", HOST},
    {"ipv4", BYTE "\\." BYTE "\\." BYTE "\\." BYTE},
    {"ipv6", "((" H4 ":){7}" H4 "|(" H4 ":){1,7}:|(" H4 ":){1,6}:" H4 "|(" H4 ":){1,5}(:" H4
             "){1,2}|(" H4 ":){1,4}(:" H4 "){1,3}|(" H4 ":){1,3}(:" H4 "){1,4}|(" H4 ":){1,2}(:" H4
             "){1,5}|" H4 ":(:" H4 "){1,6}|:(:" H4 "){1,7}|::)"},
    {"uuid", "[0-9A-Fa-f]{8}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{12}"},
    {"uri", "[A-Za-z][A-Za-z0-9+.-]{0,15}://" HOST "(:[0-9]{1,4})?(/" URI_CHAR "*)*(\\?(" URI_CHAR
            "|[/?])*)?(#(" URI_CHAR "|[/?])*)?"},
};

static const mgl_expression *read_format(mgl_schema_reader *r, const json_t *format,
                                         const mgl_schema_place *place) {
  const char *name = json_string_value(format);
  for (size_t i = 0; i < sizeof formats / sizeof *formats && name != NULL; i++) {
    if (strcmp(formats[i].name, name) == 0) {
      return mgl_regex_parse(r->b, formats[i].regex, strlen(formats[i].regex),
                             (mgl_regex_options){.in_json = true});
    }
  }
  return mgl_schema_fail(r, place, MGL_ERR_UNSUPPORTED,
                         "\"format\": expected date, time, date-time, duration, email, hostname, "
                         "ipv4, ipv6, uuid or uri, found %.40s",
                         name == NULL ? "no text" : name);
}

static const mgl_expression *read_pattern(mgl_schema_reader *r, const json_t *pattern,
                                          const mgl_schema_place *place) {
  if (!json_is_string(pattern)) {
    return mgl_schema_fail(r, place, MGL_ERR_ARGUMENT, "\"pattern\": expected a text");
  }
  const mgl_expression *e =
      mgl_regex_parse(r->b, json_string_value(pattern), json_string_length(pattern),
                      (mgl_regex_options){.in_json = true, .searches = true});
  if (e == NULL && strncmp(r->b->error.text, "regex", 5) == 0) {
    mgl_error found = r->b->error;
    r->b->error = (mgl_error){0};
    (void)mgl_schema_fail(r, place, found.status, "\"pattern\": %.400s", found.text);
  }
  return e;
}

const mgl_expression *mgl_schema_string(mgl_schema_reader *r, const json_t *schema,
                                        const mgl_schema_place *place) {
  mgl_builder *b = r->b;
  const json_t *pattern = json_object_get(schema, "pattern");
  const json_t *format = json_object_get(schema, "format");
  uint64_t min = mgl_schema_count(r, schema, "minLength", 0, place);
  uint64_t max = mgl_schema_count(r, schema, "maxLength", MGL_REPEAT_UNBOUNDED, place);
  bool has_length = min > 0 || max != MGL_REPEAT_UNBOUNDED;
  if ((pattern != NULL) + (format != NULL) + has_length > 1) {
    return mgl_schema_fail(r, place, MGL_ERR_UNSUPPORTED,
                           "expected one of \"pattern\", \"format\" and bounds of the length, "
                           "found more: put all into the pattern, as in ^[a-z]{2,8}$");
  }
  const mgl_expression *inside = NULL;
  if (pattern != NULL) {
    inside = read_pattern(r, pattern, place);
  } else if (format != NULL) {
    inside = read_format(r, format, place);
  } else if (!has_length) {
    return r->rules->string;
  } else {
    inside = mgl_expression_repeat(b, r->rules->character, min, max);
  }
  return MGL_SEQUENCE(b, r->rules->quote, inside, r->rules->quote);
}
