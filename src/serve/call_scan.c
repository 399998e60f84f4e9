// Method: the automaton of RFC 8259, with a bit a level for what is open. It is written as one
// dispatch on its state.
#include "serve/call_scan.h"

#include <string.h>

enum {
  AT_START,  // in front of the object
  AT_VALUE,
  AT_VALUE_OR_END,  // behind [
  AT_KEY,
  AT_KEY_OR_END,  // behind {
  AT_COLON,
  AT_COMMA,  // or an end
  IN_KEY,
  IN_STRING,
  IN_ESCAPE,  // the next two return to a string
  IN_HEX,
  IN_LITERAL,
  IN_MINUS,  // numbers: what follows is a digit
  IN_ZERO,
  IN_DIGITS,
  IN_DOT,
  IN_FRACTION,
  IN_EXPONENT,
  IN_SIGN,
  IN_POWER,
  AT_END,
};

enum { MEMBER_OTHER, MEMBER_NAME, MEMBER_ARGUMENTS };

static bool is_blank(char c) {
  return c == ' ' || c == '\t' || c == '\n' || c == '\r';
}

static bool is_digit(char c) {
  return c >= '0' && c <= '9';
}

static bool is_hex(char c) {
  return is_digit(c) || (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F');
}

static bool is_word(const char *text, size_t bytes, const char *word) {
  return bytes == strlen(word) && memcmp(text, word, bytes) == 0;
}

// A key of the outermost object has come, quotes included. False: no call has it.
static bool take_key(mgl_call_scan *s, const char *key, size_t bytes) {
  s->member = MEMBER_OTHER;
  if (s->is_arguments) {
    return true;
  }
  if (is_word(key, bytes, "\"name\"")) {
    s->member = MEMBER_NAME;
    return s->name_bytes == 0;
  }
  if (is_word(key, bytes, "\"arguments\"") || is_word(key, bytes, "\"parameters\"")) {
    s->member = MEMBER_ARGUMENTS;
    return !s->has_arguments;
  }
  return !s->is_strict || is_word(key, bytes, "\"id\"") || is_word(key, bytes, "\"type\"");
}

// A value of the outermost object begins.
static bool begin_member(mgl_call_scan *s, char c) {
  s->value_at = s->at;
  if (s->is_arguments || s->member == MEMBER_OTHER) {
    return true;
  }
  if (s->member == MEMBER_NAME) {
    return c == '"';
  }
  s->has_arguments = c == '{';
  s->arguments_at = s->at;
  return s->has_arguments;
}

// A value ends in front of offset `end`.
static void end_value(mgl_call_scan *s, size_t end) {
  s->state = s->depth == 0 ? AT_END : AT_COMMA;
  if (s->depth == 1 && !s->is_arguments && s->member == MEMBER_NAME) {
    s->name_at = s->value_at;
    s->name_bytes = end - s->value_at;
  } else if (s->depth == 1 && !s->is_arguments && s->member == MEMBER_ARGUMENTS) {
    s->arguments_end = end;
  } else if (s->depth == 0 && s->is_arguments) {
    s->arguments_end = end;
  }
}

static bool open_level(mgl_call_scan *s, bool is_object) {
  if (s->depth == MGL_CALL_SCAN_DEPTH) {
    return false;
  }
  uint64_t bit = UINT64_C(1) << s->depth++;
  s->objects = is_object ? s->objects | bit : s->objects & ~bit;
  s->state = is_object ? AT_KEY_OR_END : AT_VALUE_OR_END;
  return true;
}

static bool in_object(const mgl_call_scan *s) {
  return (s->objects >> (s->depth - 1) & 1) != 0;
}

static bool close_level(mgl_call_scan *s, char c) {
  if (c != (in_object(s) ? '}' : ']')) {
    return false;
  }
  s->depth--;
  end_value(s, s->at + 1);
  return true;
}

static bool begin_value(mgl_call_scan *s, char c) {
  if (s->depth == 1 && in_object(s) && !begin_member(s, c)) {
    return false;
  }
  switch (c) {
    case '{': return open_level(s, true);
    case '[': return open_level(s, false);
    case '"': s->state = IN_STRING; return true;
    case '-': s->state = IN_MINUS; return true;
    case '0': s->state = IN_ZERO; return true;
    case 't': s->literal = "rue"; break;
    case 'f': s->literal = "alse"; break;
    case 'n': s->literal = "ull"; break;
    default: s->state = IN_DIGITS; return c >= '1' && c <= '9';
  }
  s->state = IN_LITERAL;
  return true;
}

static bool read_string(mgl_call_scan *s, const char *object, char c, bool is_key) {
  if (c == '\\') {
    s->left = is_key ? 1 : 0;
    s->state = IN_ESCAPE;
  } else if (c == '"' && is_key) {
    s->state = AT_COLON;
    return s->depth != 1 || take_key(s, object + s->string_at, s->at + 1 - s->string_at);
  } else if (c == '"') {
    end_value(s, s->at + 1);
  }
  return (unsigned char)c >= 0x20;
}

static bool read_escape(mgl_call_scan *s, char c) {
  uint8_t is_key = s->left & 1;
  if (s->state == IN_ESCAPE && c == 'u') {
    s->left = (uint8_t)(is_key | 4 << 1);
    s->state = IN_HEX;
    return true;
  }
  if (s->state == IN_HEX) {
    s->left = (uint8_t)(s->left - 2);
    s->state = s->left >> 1 > 0 ? IN_HEX : is_key ? IN_KEY : IN_STRING;
    return is_hex(c);
  }
  s->state = is_key ? IN_KEY : IN_STRING;
  return c != 0 && strchr("\"\\/bfnrt", c) != NULL;
}

// The state behind c in a number; AT_END: c is no part of it; AT_START: it must not be there.
static int number_state(int state, char c) {
  bool digit = is_digit(c);
  bool exponent = c == 'e' || c == 'E';
  switch (state) {
    case IN_MINUS: return c == '0' ? IN_ZERO : digit ? IN_DIGITS : AT_START;
    case IN_ZERO: return c == '.' ? IN_DOT : exponent ? IN_EXPONENT : digit ? AT_START : AT_END;
    case IN_DIGITS: return digit ? IN_DIGITS : c == '.' ? IN_DOT : exponent ? IN_EXPONENT : AT_END;
    case IN_DOT: return digit ? IN_FRACTION : AT_START;
    case IN_FRACTION: return digit ? IN_FRACTION : exponent ? IN_EXPONENT : AT_END;
    case IN_EXPONENT: return digit ? IN_POWER : c == '+' || c == '-' ? IN_SIGN : AT_START;
    case IN_SIGN: return digit ? IN_POWER : AT_START;
    default: return digit ? IN_POWER : AT_END;
  }
}

static bool read_between(mgl_call_scan *s, char c) {
  switch (s->state) {
    case AT_START: return c == '{' && open_level(s, true);
    case AT_VALUE: return begin_value(s, c);
    case AT_VALUE_OR_END: return c == ']' ? close_level(s, c) : begin_value(s, c);
    case AT_KEY_OR_END:
      if (c == '}') {
        return close_level(s, c);
      }
      // Fall through.
    case AT_KEY:
      s->string_at = s->at;
      s->state = IN_KEY;
      return c == '"';
    case AT_COLON: s->state = AT_VALUE; return c == ':';
    default:
      if (c != ',') {
        return close_level(s, c);
      }
      s->state = in_object(s) ? AT_KEY : AT_VALUE;
      return true;
  }
}

// False: this byte makes it no JSON. A byte behind a number is read a second time.
static bool read_byte(mgl_call_scan *s, const char *object) {
  char c = object[s->at];
  if (s->state >= IN_MINUS && s->state < AT_END) {
    int next = number_state(s->state, c);
    if (next != AT_END) {
      s->state = (uint8_t)next;
      return next != AT_START;
    }
    end_value(s, s->at);
  }
  switch (s->state) {
    case IN_KEY: return read_string(s, object, c, true);
    case IN_STRING: return read_string(s, object, c, false);
    case IN_ESCAPE:
    case IN_HEX: return read_escape(s, c);
    case IN_LITERAL:
      if (c != *s->literal++) {
        return false;
      }
      if (*s->literal == 0) {
        end_value(s, s->at + 1);
      }
      return true;
    default: return is_blank(c) || read_between(s, c);
  }
}

mgl_call_progress mgl_call_scan_read(mgl_call_scan *s, const char *object, size_t bytes) {
  s->has_arguments = s->has_arguments || s->is_arguments;
  for (; s->at < bytes; s->at++) {
    if (s->state == AT_END) {
      break;
    }
    if (!read_byte(s, object)) {
      return MGL_CALL_BAD;
    }
  }
  if (s->state != AT_END) {
    return MGL_CALL_OPEN;
  }
  bool has_all = s->arguments_end > 0 && (s->is_arguments || s->name_bytes > 2);
  return has_all ? MGL_CALL_WHOLE : MGL_CALL_BAD;
}
