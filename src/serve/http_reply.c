#include "serve/http_reply.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>

static void fail(mgl_http_reply *r) {
  r->state = MGL_REPLY_MALFORMED;
}

// Appends to a line up to its end; returns the bytes used, *whole where the end was among them.
static size_t take_line(mgl_http_reply *r, mgl_text *line, const char *data, size_t bytes,
                        bool *whole) {
  const char *end = memchr(data, '\n', bytes);
  size_t used = end == NULL ? bytes : (size_t)(end - data) + 1;
  *whole = end != NULL;
  mgl_text_append(line, data, end == NULL ? used : used - 1);
  if (line->failed || line->bytes > MGL_REPLY_LINE_BYTES) {
    fail(r);
  } else if (*whole && line->bytes > 0 && line->data[line->bytes - 1] == '\r') {
    line->data[--line->bytes] = 0;
  }
  return used;
}

// --- the head ------------------------------------------------------------------------------------

static void read_status(mgl_http_reply *r) {
  const char *line = r->line.data == NULL ? "" : r->line.data;
  r->has_status = true;
  r->keep_alive = strncmp(line, "HTTP/1.1 ", 9) == 0;
  r->status = strncmp(line, "HTTP/1.", 7) == 0 && strlen(line) >= 12 ? atoi(line + 9) : 0;
  if (r->status < 100 || r->status > 599) {
    fail(r);
  }
}

static void read_header(mgl_http_reply *r) {
  char *colon = strchr(r->line.data, ':');
  if (colon == NULL) {
    fail(r);
    return;
  }
  *colon = 0;
  const char *name = r->line.data;
  const char *value = colon + 1 + strspn(colon + 1, " \t");
  if (strcasecmp(name, "Content-Length") == 0) {
    r->has_length = true;
    r->left = strtoull(value, NULL, 10);
  } else if (strcasecmp(name, "Transfer-Encoding") == 0) {
    r->chunked = strcasecmp(value, "chunked") == 0;
  } else if (strcasecmp(name, "Connection") == 0) {
    r->keep_alive = strcasecmp(value, "close") != 0;
  } else if (strcasecmp(name, "Content-Type") == 0) {
    r->is_events = strncasecmp(value, "text/event-stream", 17) == 0;
  }
}

static void end_head(mgl_http_reply *r) {
  bool has_none = r->status == 204 || r->status == 304;
  if (r->status < 200) {  // another head follows
    r->has_status = false;
    return;
  }
  r->state = MGL_REPLY_BODY;
  r->keep_alive = r->keep_alive && (r->chunked || r->has_length || has_none);
  if (has_none || (r->has_length && !r->chunked && r->left == 0)) {
    r->state = MGL_REPLY_COMPLETE;
  }
  r->left = r->chunked ? 0 : r->left;
}

static size_t read_head(mgl_http_reply *r, const char *data, size_t bytes) {
  bool whole = false;
  size_t used = take_line(r, &r->line, data, bytes, &whole);
  if (whole && r->state == MGL_REPLY_HEAD) {
    if (!r->has_status) {
      read_status(r);
    } else if (r->line.bytes == 0) {
      end_head(r);
    } else {
      read_header(r);
    }
    mgl_text_clear(&r->line);
  }
  return used;
}

// --- the body ------------------------------------------------------------------------------------

static void take_content(mgl_http_reply *r, const char *data, size_t bytes,
                         mgl_event_callback *on_event, void *context) {
  if (!r->is_events) {
    mgl_text_append(&r->body, data, bytes);
    if (r->body.failed || r->body.bytes > MGL_REPLY_BODY_BYTES) {
      fail(r);
    }
    return;
  }
  for (size_t used = 0; used < bytes && r->state == MGL_REPLY_BODY;) {
    bool whole = false;
    used += take_line(r, &r->event_line, data + used, bytes - used, &whole);
    if (!whole) {
      return;
    }
    if (r->event_line.bytes > 5 && strncmp(r->event_line.data, "data:", 5) == 0) {
      size_t start = r->event_line.data[5] == ' ' ? 6 : 5;
      on_event(context, r->event_line.data + start, r->event_line.bytes - start);
    }
    mgl_text_clear(&r->event_line);
  }
}

// A line of chunked coding: a chunk's size, or the end of one.
static size_t read_chunk_line(mgl_http_reply *r, const char *data, size_t bytes) {
  bool whole = false;
  size_t used = take_line(r, &r->line, data, bytes, &whole);
  if (!whole || r->state != MGL_REPLY_BODY) {
    return used;
  }
  const char *line = r->line.data == NULL ? "" : r->line.data;
  if (r->in_data && r->line.bytes == 0) {  // the empty line behind a chunk
    r->in_data = false;
    r->state = r->is_last ? MGL_REPLY_COMPLETE : MGL_REPLY_BODY;
  } else if (!r->in_data) {
    char *end = NULL;
    r->left = strtoull(line, &end, 16);
    if (end == line || (*end != 0 && *end != ';')) {
      fail(r);
    }
    r->in_data = true;
    r->is_last = r->left == 0;
  } else if (!r->is_last) {  // else it is a trailer
    fail(r);
  }
  mgl_text_clear(&r->line);
  return used;
}

size_t mgl_http_reply_read(mgl_http_reply *reply, const char *data, size_t bytes,
                           mgl_event_callback *on_event, void *context) {
  mgl_http_reply *r = reply;
  size_t used = 0;
  while (used < bytes && (r->state == MGL_REPLY_HEAD || r->state == MGL_REPLY_BODY)) {
    if (r->state == MGL_REPLY_HEAD) {
      used += read_head(r, data + used, bytes - used);
    } else if (r->chunked && r->left == 0) {
      used += read_chunk_line(r, data + used, bytes - used);
    } else {
      bool counts = r->chunked || r->has_length;
      size_t part = counts && r->left < bytes - used ? (size_t)r->left : bytes - used;
      take_content(r, data + used, part, on_event, context);
      used += part;
      r->left -= counts ? part : 0;
      if (r->state == MGL_REPLY_BODY && counts && !r->chunked && r->left == 0) {
        r->state = MGL_REPLY_COMPLETE;
      }
    }
  }
  return used;
}

void mgl_http_reply_end(mgl_http_reply *reply) {
  if (reply->state == MGL_REPLY_BODY && !reply->chunked && !reply->has_length) {
    reply->state = MGL_REPLY_COMPLETE;
  } else if (reply->state != MGL_REPLY_COMPLETE) {
    fail(reply);
  }
}

void mgl_http_reply_next(mgl_http_reply *reply) {
  mgl_text body = reply->body;
  mgl_text line = reply->line;
  mgl_text event_line = reply->event_line;
  mgl_text_clear(&body);
  mgl_text_clear(&line);
  mgl_text_clear(&event_line);
  *reply = (mgl_http_reply){.body = body, .line = line, .event_line = event_line};
}

void mgl_http_reply_free(mgl_http_reply *reply) {
  mgl_text_free(&reply->body);
  mgl_text_free(&reply->line);
  mgl_text_free(&reply->event_line);
}
