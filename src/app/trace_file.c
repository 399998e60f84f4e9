#include "app/trace_file.h"

#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/file.h"
#include "base/json.h"

struct mgl_trace_track {
  uint64_t tid;
  uint32_t worker;
  mgl_trace_role role;
};

// --- the text ------------------------------------------------------------------------------------

// A place in the text. What is skipped is checked only as far as is needed to find its end; events
// are parsed whole.
typedef struct cursor {
  const char *path;
  const char *begin, *at, *end;
} cursor;

static mgl_status broken(const cursor *c, const char *expected, mgl_error *err) {
  return mgl_error_set(err, MGL_ERR_FORMAT, "%s: byte %zu: expected %s", c->path,
                       (size_t)(c->at - c->begin), expected);
}

static char look(cursor *c) {
  while (c->at < c->end && (*c->at == ' ' || *c->at == '\n' || *c->at == '\t' || *c->at == '\r')) {
    c->at++;
  }
  return c->at < c->end ? *c->at : 0;
}

static mgl_status take(cursor *c, char wanted, const char *expected, mgl_error *err) {
  if (look(c) != wanted) {
    return broken(c, expected, err);
  }
  c->at++;
  return MGL_OK;
}

static mgl_status skip_string(cursor *c, mgl_error *err) {
  MGL_TRY(take(c, '"', "a string", err));
  while (c->at < c->end && *c->at != '"' && (unsigned char)*c->at >= 0x20) {
    c->at += *c->at == '\\' && c->at + 1 < c->end ? 2 : 1;
  }
  return take(c, '"', "the end of a string", err);
}

static mgl_status skip_value(cursor *c, mgl_error *err) {
  size_t depth = 0;
  do {
    char next = look(c);
    if (next == '"') {
      MGL_TRY(skip_string(c, err));
    } else if (next == 0) {
      return broken(c, "a value, found the end", err);
    } else {
      depth += next == '{' || next == '[' ? 1 : 0;
      if (next == '}' || next == ']') {
        if (depth == 0) {
          return broken(c, "a value", err);
        }
        depth--;
      }
      c->at++;
      // A number or a word ends where something else begins.
      while (depth == 0 && next != '}' && next != ']' && c->at < c->end &&
             strchr(",]} \n\t\r", *c->at) == NULL) {
        c->at++;
      }
    }
  } while (depth > 0);
  return MGL_OK;
}

// --- names ---------------------------------------------------------------------------------------

// A file chooses its names and tracks, and their order: a lookup must not cost a pass over all.
// Rejected: a hash table, of which a file can make a list.
typedef struct name_index {
  uint32_t sorted[MGL_TRACE_MAX_NAMES];  // [count of names], by their text
  uint32_t last;                         // that was found; the next one is often it or behind it
} name_index;

static bool is_name(const mgl_trace_name *names, size_t count, size_t at, const char *text) {
  return at < count && strcmp(names[at].text, text) == 0;
}

// index->last becomes that of a name, which is added if it is new.
static mgl_status intern(mgl_trace_name **names, size_t *count, size_t *capacity, const char *text,
                         size_t bytes, name_index *index, mgl_error *err) {
  mgl_trace_name name = {{0}};
  void *items = *names;
  memcpy(name.text, text, bytes < sizeof name.text ? bytes : sizeof name.text - 1);
  mgl_string_make_printable(name.text);
  for (uint32_t i = 0; i < 2; i++) {
    if (is_name(*names, *count, (size_t)index->last + i, name.text)) {
      index->last += i;
      return MGL_OK;
    }
  }
  size_t begin = 0;
  for (size_t end = *count; begin < end;) {
    size_t middle = (begin + end) / 2;
    bool before = strcmp((*names)[index->sorted[middle]].text, name.text) < 0;
    begin = before ? middle + 1 : begin;
    end = before ? end : middle;
  }
  if (begin < *count && is_name(*names, *count, index->sorted[begin], name.text)) {
    index->last = index->sorted[begin];
    return MGL_OK;
  }
  if (*count == MGL_TRACE_MAX_NAMES) {
    return mgl_error_set(err, MGL_ERR_LIMIT, "expected at most %d ops and workers, found more",
                         MGL_TRACE_MAX_NAMES);
  }
  MGL_TRY(mgl_grow(&items, capacity, *count + 1, sizeof name, err));
  *names = items;
  (*names)[*count] = name;
  memmove(index->sorted + begin + 1, index->sorted + begin,
          (*count - begin) * sizeof *index->sorted);
  index->sorted[begin] = (uint32_t)*count;
  index->last = (uint32_t)(*count)++;
  return MGL_OK;
}

// --- events --------------------------------------------------------------------------------------

typedef struct reader {
  mgl_trace *trace;
  const char *path;
  size_t event;  // number of the present one
  name_index ops, workers;
  uint32_t sorted_tracks[MGL_TRACE_MAX_TRACKS];  // by their tid
} reader;

static mgl_status no_event(const reader *r, const char *expected, mgl_error *err) {
  return mgl_error_set(err, MGL_ERR_FORMAT, "%s: event %zu: expected %s", r->path, r->event,
                       expected);
}

static mgl_status find_track(reader *r, uint64_t tid, struct mgl_trace_track **out,
                             mgl_error *err) {
  mgl_trace *t = r->trace;
  void *items = t->tracks;
  size_t begin = 0;
  for (size_t end = t->track_count; begin < end;) {
    size_t middle = (begin + end) / 2;
    bool before = t->tracks[r->sorted_tracks[middle]].tid < tid;
    begin = before ? middle + 1 : begin;
    end = before ? end : middle;
  }
  if (begin < t->track_count && t->tracks[r->sorted_tracks[begin]].tid == tid) {
    *out = &t->tracks[r->sorted_tracks[begin]];
    return MGL_OK;
  }
  if (t->track_count == MGL_TRACE_MAX_TRACKS) {
    return mgl_error_set(err, MGL_ERR_LIMIT, "%s: expected at most %d tracks, found more", r->path,
                         MGL_TRACE_MAX_TRACKS);
  }
  MGL_TRY(mgl_grow(&items, &t->track_capacity, t->track_count + 1, sizeof *t->tracks, err));
  t->tracks = items;
  memmove(r->sorted_tracks + begin + 1, r->sorted_tracks + begin,
          (t->track_count - begin) * sizeof *r->sorted_tracks);
  r->sorted_tracks[begin] = (uint32_t)t->track_count;
  *out = &t->tracks[t->track_count++];
  **out = (struct mgl_trace_track){.tid = tid, .worker = UINT32_MAX};
  return MGL_OK;
}

// "SM 3 load" and "worker 3".
static mgl_status name_track(reader *r, struct mgl_trace_track *track, const char *name,
                             mgl_error *err) {
  static const char *const roles[MGL_TRACE_ROLES] = {
      [MGL_TRACE_COMPUTE] = " compute",
      [MGL_TRACE_WAIT] = " wait",
      [MGL_TRACE_LOAD] = " load",
      [MGL_TRACE_TRIGGER] = " trigger",
  };
  mgl_trace *t = r->trace;
  size_t bytes = strlen(name);
  for (uint32_t i = 0; i < MGL_TRACE_ROLES; i++) {
    size_t tail = strlen(roles[i]);
    if (bytes > tail && strcmp(name + bytes - tail, roles[i]) == 0) {
      track->role = (mgl_trace_role)i;
      bytes -= tail;
      break;
    }
  }
  if (strncmp(name, "SM ", 3) == 0 && bytes == strlen(name)) {  // a role of a later version
    track->role = MGL_TRACE_ROLES;
  }
  if (track->role == MGL_TRACE_ROLES) {
    return MGL_OK;
  }
  MGL_TRY(
      intern(&t->workers, &t->worker_count, &t->worker_capacity, name, bytes, &r->workers, err));
  track->worker = r->workers.last;
  return MGL_OK;
}

static mgl_status add_span(reader *r, const mgl_trace_span *span, mgl_error *err) {
  mgl_trace *t = r->trace;
  void *items = t->spans;
  MGL_TRY(mgl_grow(&items, &t->span_capacity, t->span_count + 1, sizeof *t->spans, err));
  t->spans = items;
  t->spans[t->span_count++] = *span;
  return MGL_OK;
}

static mgl_status add_task(reader *r, mgl_json_object o, const char *name, mgl_error *err) {
  struct mgl_trace_track *track = NULL;
  uint64_t tid = 0;
  uint64_t iteration = 0;
  uint64_t graph = 0;
  double begin = 0;
  double duration = 0;
  double wait = 0;
  double stream = 0;
  mgl_json_object args;
  MGL_TRY(mgl_json_u64(o, "tid", 0, UINT32_MAX, &tid, err));
  MGL_TRY(mgl_json_opt_double(o, "ts", -1e15, 1e15, &begin, err));
  MGL_TRY(mgl_json_opt_double(o, "dur", 0, 1e15, &duration, err));
  MGL_TRY(mgl_json_opt_object(o, "args", &args, err));
  if (name == NULL || args.object == NULL || !mgl_json_has(o, "ts") || !mgl_json_has(o, "dur")) {
    return no_event(r, "a name, ts, dur and args of a task", err);
  }
  MGL_TRY(mgl_json_u64(args, "iteration", 0, UINT32_MAX, &iteration, err));
  MGL_TRY(mgl_json_opt_u64(args, "graph", 0, UINT32_MAX, &graph, err));
  MGL_TRY(mgl_json_opt_double(args, "wait_us", 0, 1e15, &wait, err));
  MGL_TRY(mgl_json_opt_double(args, "stream_us", 0, 1e15, &stream, err));
  MGL_TRY(find_track(r, tid, &track, err));
  if (track->role == MGL_TRACE_ROLES) {
    return MGL_OK;
  }
  if (track->worker == UINT32_MAX) {
    MGL_TRY(name_track(r, track, "worker", err));
  }
  mgl_trace *t = r->trace;
  MGL_TRY(intern(&t->ops, &t->op_count, &t->op_capacity, name, strcspn(name, " "), &r->ops, err));
  mgl_trace_span span = {.begin_us = begin,
                         .end_us = begin + duration,
                         .stream_us = stream < duration ? stream : duration,
                         .iteration = (uint32_t)iteration,
                         .graph = (uint32_t)graph,
                         .op = r->ops.last,
                         .worker = track->worker,
                         .role = (uint32_t)track->role};
  MGL_TRY(add_span(r, &span, err));
  if (wait > 0) {  // the CPU tells its waiting with the task
    span.begin_us = begin - wait;
    span.end_us = begin;
    span.stream_us = 0;
    span.role = MGL_TRACE_WAIT;
    return add_span(r, &span, err);
  }
  return MGL_OK;
}

static mgl_status read_event(reader *r, const json_t *event, mgl_error *err) {
  char where[64];
  (void)snprintf(where, sizeof where, "event %zu", r->event);
  mgl_json_object o = {event, where};
  const char *phase = NULL;
  const char *name = NULL;
  if (!json_is_object(event)) {
    return no_event(r, "an object", err);
  }
  MGL_TRY(mgl_json_opt_string(o, "ph", &phase, err));
  MGL_TRY(mgl_json_opt_string(o, "name", &name, err));
  if (phase != NULL && strcmp(phase, "X") == 0) {
    return add_task(r, o, name, err);
  }
  if (phase != NULL && strcmp(phase, "M") == 0 && name != NULL &&
      strcmp(name, "thread_name") == 0) {
    struct mgl_trace_track *track = NULL;
    mgl_json_object args;
    const char *text = NULL;
    uint64_t tid = 0;
    MGL_TRY(mgl_json_u64(o, "tid", 0, UINT32_MAX, &tid, err));
    MGL_TRY(mgl_json_opt_object(o, "args", &args, err));
    if (args.object != NULL) {
      MGL_TRY(mgl_json_opt_string(args, "name", &text, err));
    }
    MGL_TRY(find_track(r, tid, &track, err));
    return text != NULL ? name_track(r, track, text, err) : MGL_OK;
  }
  return MGL_OK;
}

static mgl_status read_events(reader *r, cursor *c, mgl_error *err) {
  MGL_TRY(take(c, '[', "[, the events", err));
  while (look(c) != ']') {
    json_t *event = NULL;
    const char *from = c->at;
    MGL_TRY(skip_value(c, err));
    MGL_TRY(mgl_json_parse(from, (size_t)(c->at - from), r->path, &event, err));
    mgl_status status = read_event(r, event, err);
    json_decref(event);
    MGL_TRY(status);
    r->event++;
    if (look(c) != ']') {
      MGL_TRY(take(c, ',', "a comma or ] behind an event", err));
    }
  }
  c->at++;
  return MGL_OK;
}

// The object with the events among its members.
static mgl_status read_members(reader *r, cursor *c, mgl_error *err) {
  static const char wanted[] = "\"traceEvents\"";
  bool found = false;
  MGL_TRY(take(c, '{', "{, the object of a trace", err));
  while (look(c) != '}') {
    const char *key = c->at;
    MGL_TRY(skip_string(c, err));
    size_t bytes = (size_t)(c->at - key);
    MGL_TRY(take(c, ':', "a colon", err));
    if (bytes == sizeof wanted - 1 && memcmp(key, wanted, bytes) == 0) {
      found = true;
      MGL_TRY(read_events(r, c, err));
    } else {
      MGL_TRY(skip_value(c, err));
    }
    if (look(c) != '}') {
      MGL_TRY(take(c, ',', "a comma or } behind a member", err));
    }
  }
  c->at++;
  if (look(c) != 0 || c->at < c->end) {
    return broken(c, "the end", err);
  }
  return found ? MGL_OK
               : mgl_error_set(err, MGL_ERR_FORMAT,
                               "%s: expected a member \"traceEvents\", as --trace writes it, found "
                               "none",
                               r->path);
}

mgl_status mgl_trace_read(const char *path, mgl_trace *out, mgl_error *err) {
  mgl_file_map map;
  *out = (mgl_trace){0};
  MGL_TRY(mgl_file_map_open(path, &map, err));
  const char *text = map.data != NULL ? (const char *)map.data : "";
  cursor c = {.path = path, .begin = text, .at = text, .end = text + map.bytes};
  reader *r = mgl_alloc_zeroed(1, sizeof *r);
  mgl_status status = MGL_OK;
  if (r == NULL) {
    status = mgl_error_set(err, MGL_ERR_MEMORY, "out of memory reading %s", path);
  } else {
    r->trace = out;
    r->path = path;
    status = read_members(r, &c, err);
  }
  mgl_free(r);
  mgl_file_map_close(&map);
  if (status != MGL_OK) {
    mgl_trace_free(out);
  }
  return status;
}

void mgl_trace_free(mgl_trace *trace) {
  mgl_free(trace->spans);
  mgl_free(trace->ops);
  mgl_free(trace->workers);
  mgl_free(trace->tracks);
  *trace = (mgl_trace){0};
}
