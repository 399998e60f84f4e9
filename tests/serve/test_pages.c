// The server's pages in a real browser: a headless Chromium, driven by its own protocol over a pipe
// (JSON, NUL behind each message), types, presses keys and moves the mouse, and looks at what shows.
// Usage: test_pages PROGRAM DEMO_FOLDER. Skipped (77), with the reason, where there is no Chromium.
#include <fcntl.h>
#include <jansson.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/text.h"

enum { SKIPPED = 77, PATIENCE_SECONDS = 60 };

static const char *program;
static char folder[4096];

// --- the browser ---------------------------------------------------------------------------------

typedef struct browser {
  pid_t pid;
  int in, out;  // commands and answers
  mgl_text received;
  int last_id;
  char session[128];
  const char *site;  // what may be asked for
  uint32_t checks, failures;
} browser;

static void die(const char *what) {
  (void)fprintf(stderr, "FAILED %s\n", what);
  exit(1);
}

static const char *find_browser(void) {
  static const char *const names[] = {"chromium", "chromium-browser", "google-chrome"};
  static char found[4096];
  const char *given = getenv("CHROMIUM");
  if (given != NULL) {
    return given;
  }
  for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
    char command[64];
    (void)snprintf(command, sizeof command, "command -v %s", names[i]);
    FILE *pipe = popen(command, "r");
    bool is_there = pipe != NULL && fgets(found, sizeof found, pipe) != NULL;
    if (pipe != NULL && pclose(pipe) == 0 && is_there) {
      found[strcspn(found, "\n")] = 0;
      return found;
    }
  }
  return NULL;
}

static void start_browser(browser *b, const char *path) {
  int commands[2];
  int answers[2];
  char data[4200];
  (void)snprintf(data, sizeof data, "--user-data-dir=%s/browser", folder);
  if (pipe(commands) != 0 || pipe(answers) != 0) {
    die("pipe");
  }
  b->pid = fork();
  if (b->pid == 0) {
    (void)setpgid(0, 0);  // its own processes end with it
    // Above 4, so that neither is written over.
    int in = fcntl(commands[0], F_DUPFD, 10);
    int out = fcntl(answers[1], F_DUPFD, 10);
    int log = open("/dev/null", O_WRONLY);
    (void)dup2(in, 3);
    (void)dup2(out, 4);
    (void)dup2(log, 2);
    (void)close(commands[1]);
    (void)close(answers[0]);
    (void)setenv("HOME", folder, 1);
    (void)execl(path, path, "--headless=new", "--remote-debugging-pipe", "--disable-gpu",
                "--disable-dev-shm-usage", "--no-first-run", "--disable-background-networking",
                "--disable-component-update", "--window-size=1000,800", data,
                geteuid() == 0 ? "--no-sandbox" : "--disable-sync", "about:blank", (char *)NULL);
    _exit(127);
  }
  (void)close(commands[0]);
  (void)close(answers[1]);
  b->in = commands[1];
  b->out = answers[0];
}

// What the browser says unasked: errors of scripts, refusals of the policy, requests elsewhere.
static void look_at_event(browser *b, const json_t *message) {
  const char *method = json_string_value(json_object_get(message, "method"));
  const json_t *params = json_object_get(message, "params");
  const char *text = NULL;
  if (method == NULL) {
    return;
  }
  if (strcmp(method, "Runtime.exceptionThrown") == 0) {
    text = "an exception";
  } else if (strcmp(method, "Log.entryAdded") == 0) {
    const json_t *entry = json_object_get(params, "entry");
    const char *source = json_string_value(json_object_get(entry, "source"));
    const char *level = json_string_value(json_object_get(entry, "level"));
    bool is_grave = strcmp(level, "error") == 0 || strcmp(level, "warning") == 0;
    // That a request failed is logged too, which some checks want.
    text = !is_grave || strcmp(source, "network") == 0
               ? NULL
               : json_string_value(json_object_get(entry, "text"));
  } else if (strcmp(method, "Network.requestWillBeSent") == 0) {
    const char *url = json_string_value(json_object_get(json_object_get(params, "request"), "url"));
    text =
        strncmp(url, b->site, strlen(b->site)) == 0 || strncmp(url, "about:", 6) == 0 ? NULL : url;
  }
  if (text != NULL) {
    char *all = json_dumps(params, JSON_COMPACT);
    (void)printf("FAILED: the browser tells of %s: %s\n", text, all);
    free(all);
    b->failures++;
  }
}

// The next message, which the caller frees.
static json_t *receive(browser *b) {
  uint64_t end = mgl_clock_ns() + (uint64_t)PATIENCE_SECONDS * 1000000000u;
  for (;;) {
    char *stop = b->received.bytes == 0 ? NULL : memchr(b->received.data, 0, b->received.bytes);
    if (stop != NULL) {
      json_t *message = json_loads(b->received.data, 0, NULL);
      size_t used = (size_t)(stop - b->received.data) + 1;
      memmove(b->received.data, stop + 1, b->received.bytes - used);
      b->received.bytes -= used;
      return message;
    }
    char part[65536];
    struct pollfd wait = {.fd = b->out, .events = POLLIN};
    if (mgl_clock_ns() > end || poll(&wait, 1, 1000) < 0) {
      die("the browser does not answer");
    }
    ssize_t bytes = (wait.revents & (POLLIN | POLLHUP)) != 0 ? read(b->out, part, sizeof part) : -1;
    if (bytes == 0) {
      die("the browser has ended");
    }
    mgl_text_append(&b->received, part, bytes > 0 ? (size_t)bytes : 0);
  }
}

// Sends a command and waits for its result, which the caller frees. params: JSON.
static json_t *command(browser *b, const char *method, const char *params) {
  mgl_text text = {0};
  int id = ++b->last_id;
  mgl_text_format(&text, "{\"id\":%d,\"method\":\"%s\",\"params\":%s", id, method, params);
  if (b->session[0] != 0) {
    mgl_text_format(&text, ",\"sessionId\":\"%s\"", b->session);
  }
  mgl_text_append_string(&text, "}");
  if (write(b->in, text.data, text.bytes + 1) != (ssize_t)text.bytes + 1) {
    die("the browser takes no commands");
  }
  mgl_text_free(&text);
  for (;;) {
    json_t *message = receive(b);
    const json_t *found = json_object_get(message, "id");
    if (json_is_integer(found) && json_integer_value(found) == id) {
      return message;
    }
    look_at_event(b, message);
    json_decref(message);
  }
}

static void tell(browser *b, const char *method, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
static void tell(browser *b, const char *method, const char *format, ...) {
  char params[4096];
  va_list arguments;
  va_start(arguments, format);
  (void)vsnprintf(params, sizeof params, format, arguments);
  va_end(arguments);
  json_t *answer = command(b, method, params);
  if (json_object_get(answer, "error") != NULL) {
    char *all = json_dumps(answer, 0);
    (void)fprintf(stderr, "%s %s: %s\n", method, params, all);
    die("a command of the browser");
  }
  json_decref(answer);
}

// What an expression gives in the page, as text; static memory.
static const char *evaluate(browser *b, const char *expression) {
  static char value[65536];
  json_t *params = json_pack("{s:s, s:b}", "expression", expression, "returnByValue", 1);
  char *text = json_dumps(params, JSON_COMPACT);
  json_t *answer = command(b, "Runtime.evaluate", text);
  const json_t *result = json_object_get(json_object_get(answer, "result"), "result");
  const json_t *found = json_object_get(result, "value");
  char *dumped = found == NULL || json_is_string(found) ? NULL : json_dumps(found, JSON_ENCODE_ANY);
  (void)snprintf(value, sizeof value, "%s",
                 json_is_string(found) ? json_string_value(found)
                 : dumped != NULL      ? dumped
                                       : "undefined");
  free(dumped);
  free(text);
  json_decref(params);
  json_decref(answer);
  return value;
}

static void check(browser *b, const char *what, const char *expression) {
  b->checks++;
  const char *found = evaluate(b, expression);
  if (strcmp(found, "true") != 0) {
    b->failures++;
    (void)printf("FAILED %s: %s gives %s; the page says: ", what, expression, found);
    (void)printf(
        "%.400s\n",
        evaluate(b, "document.getElementById('chat').innerText + JSON.stringify(settings)"));
  }
}

// The same, when it has become true.
static void expect(browser *b, const char *what, const char *expression) {
  uint64_t end = mgl_clock_ns() + (uint64_t)PATIENCE_SECONDS * 1000000000u;
  while (strcmp(evaluate(b, expression), "true") != 0 && mgl_clock_ns() < end) {
    (void)usleep(20000);
  }
  check(b, what, expression);
}

// --- hands ---------------------------------------------------------------------------------------

enum { ALT = 1, SHIFT = 8 };

static void press(browser *b, const char *key, const char *code, int number, int modifiers,
                  const char *text) {
  tell(b, "Input.dispatchKeyEvent",
       "{\"type\":\"keyDown\",\"key\":\"%s\",\"code\":\"%s\",\"windowsVirtualKeyCode\":%d,"
       "\"modifiers\":%d%s%s%s}",
       key, code, number, modifiers, text == NULL ? "" : ",\"text\":\"", text == NULL ? "" : text,
       text == NULL ? "" : "\"");
  tell(b, "Input.dispatchKeyEvent",
       "{\"type\":\"keyUp\",\"key\":\"%s\",\"code\":\"%s\",\"windowsVirtualKeyCode\":%d,"
       "\"modifiers\":%d}",
       key, code, number, modifiers);
}

static void press_enter(browser *b) {
  press(b, "Enter", "Enter", 13, 0, "\\r");
}

static void type(browser *b, const char *text) {
  tell(b, "Input.insertText", "{\"text\":\"%s\"}", text);
}

static void move_mouse(browser *b, double x, double y) {
  tell(b, "Input.dispatchMouseEvent", "{\"type\":\"mouseMoved\",\"x\":%f,\"y\":%f}", x, y);
}

static void open_page(browser *b, const char *path) {
  tell(b, "Page.navigate", "{\"url\":\"%s%s\"}", b->site, path);
  expect(b, "the page is there",
         "document.readyState === 'complete' && location.href !== 'about:blank'");
}

// --- the server ----------------------------------------------------------------------------------

typedef struct server {
  pid_t pid;
  char address[256];
} server;

static void start_server(server *s, const char *keys) {
  int errors[2];
  char line[1024] = "";
  if (pipe(errors) != 0) {
    die("pipe");
  }
  s->pid = fork();
  if (s->pid == 0) {
    (void)dup2(errors[1], 2);
    (void)execl(program, program, "serve", "--port", "0", "--device", "cpu",
                keys == NULL ? (char *)NULL : "--api-keys", keys, (char *)NULL);
    _exit(127);
  }
  (void)close(errors[1]);
  FILE *in = fdopen(errors[0], "r");
  while (fgets(line, sizeof line, in) != NULL && strstr(line, " at http") == NULL) {
  }
  const char *found = strstr(line, " at http");
  if (found == NULL) {
    die("the server has no address");
  }
  (void)snprintf(s->address, sizeof s->address, "%.*s", (int)strcspn(found + 4, "\n"), found + 4);
}

static void stop_server(server *s) {
  int status = 0;
  (void)kill(s->pid, SIGTERM);
  (void)waitpid(s->pid, &status, 0);
}

// --- checks --------------------------------------------------------------------------------------

#define LAST "document.querySelector('article:last-child')"
#define LAST_TEXT LAST ".querySelector('.text:not(.thought)').textContent"
#define IDLE "document.getElementById('stop').hidden"
#define NOTE LAST ".querySelector('.note').textContent"

static void test_chat(browser *b) {
  open_page(b, "/");
  expect(b, "the model's name", "document.getElementById('title').textContent === 'demo'");
  check(b, "the input has the focus", "document.activeElement.id === 'input'");
  type(b, "What is 137 + 245?");
  press_enter(b);
  expect(b, "an answer", IDLE " && " LAST_TEXT " === '137 + 245 = 382.'");
  check(b, "its speed",
        "/^11 tokens, [0-9.]+ tokens\\/s, first after [0-9]+ ms$/.test(" NOTE
        ")"
        " || /^[0-9]+ tokens, [0-9.]+ tokens\\/s, first after [0-9]+ ms$/.test(" NOTE ")");
  check(b, "tokens", LAST ".querySelectorAll('.token').length > 5");
  check(b, "no probability shows yet", "document.getElementById('tip').hidden");
  double x = atof(evaluate(b, LAST ".querySelector('.token').getBoundingClientRect().x + 2"));
  double y = atof(evaluate(b, LAST ".querySelector('.token').getBoundingClientRect().y + 5"));
  move_mouse(b, x, y);
  expect(b, "probabilities on hover",
         "!document.getElementById('tip').hidden &&"
         " document.getElementById('tip').textContent.split('\\n').length === 6 &&"
         " document.getElementById('tip').textContent.includes('%')");
  move_mouse(b, 2, 400);
  expect(b, "they go", "document.getElementById('tip').hidden");
  // By keys: Tab goes from token to token.
  (void)evaluate(b, LAST ".querySelector('.token').focus()");
  press(b, "Tab", "Tab", 9, 0, NULL);
  expect(b, "probabilities by Tab",
         "document.activeElement === " LAST
         ".querySelectorAll('.token')[1] &&"
         " !document.getElementById('tip').hidden");
}

static void test_edit_and_retry(browser *b) {
  (void)evaluate(b, "document.querySelector('article.user button').click()");
  expect(b, "edit: the text is back",
         "document.getElementById('input').value === 'What is 137 + 245?'"
         " && document.querySelectorAll('article').length === 0");
  (void)evaluate(b, "document.getElementById('input').select()");
  type(b, "What is 12 + 7?");
  press_enter(b);
  expect(b, "edit: another answer", IDLE " && " LAST_TEXT " === '12 + 7 = 19.'");
  check(b, "edit: in place of the first", "document.querySelectorAll('article').length === 2");
  (void)evaluate(b, LAST ".querySelector('button').click()");
  expect(b, "retry",
         IDLE " && " LAST_TEXT
              " === '12 + 7 = 19.' &&"
              " document.querySelectorAll('article').length === 2");
  // Shift and Enter make a line; markup stays text.
  type(b, "<img src=x onerror=alert(1)>");
  press(b, "Enter", "Enter", 13, SHIFT, "\\r");
  check(b, "a new line", "document.getElementById('input').value.endsWith('\\n')");
  press_enter(b);
  expect(b, "an answer to markup", IDLE " && document.querySelectorAll('article').length === 4");
  check(b, "markup is text",
        "document.querySelector('img') === null &&"
        " document.querySelectorAll('article')[2].textContent.includes('<img')");
  press(b, "n", "KeyN", 78, ALT, NULL);
  expect(b, "a new chat", "document.querySelectorAll('article').length === 0");
}

static void set(browser *b, const char *name, const char *value) {
  char expression[256];
  (void)snprintf(expression, sizeof expression,
                 "document.querySelector('[data-setting=%s]').value = '%s'", name, value);
  (void)evaluate(b, expression);
}

// "Done", and what is set counts.
static void close_settings(browser *b, const char *name, const char *value) {
  char expression[256];
  (void)evaluate(b, "document.getElementById('close-settings').click()");
  (void)snprintf(expression, sizeof expression, "settings.%s === '%s'", name, value);
  expect(b, "settings: done", expression);
}

static void test_settings(browser *b) {
  press(b, "s", "KeyS", 83, ALT, NULL);
  expect(b, "settings by keys", "document.getElementById('settings').open");
  set(b, "max_completion_tokens", "3");
  set(b, "system", "You are a calculator.");
  set(b, "seed", "5");
  set(b, "key", "secret");
  close_settings(b, "key", "secret");
  expect(b, "settings: closed", "!document.getElementById('settings').open");
  check(b, "settings are kept, but no key",
        "JSON.parse(localStorage.megalith).seed === '5' && !('key' in "
        "JSON.parse(localStorage.megalith))");
  (void)evaluate(b, "document.getElementById('input').focus()");
  type(b, "What is 1 + 1?");
  press_enter(b);
  expect(b, "settings count", IDLE " && " NOTE ".startsWith('3 tokens')");
  press(b, "s", "KeyS", 83, ALT, NULL);
  set(b, "top_p", "5");
  (void)evaluate(b, "document.getElementById('close-settings').click()");
  check(b, "settings: out of range", "document.getElementById('settings').open");
  set(b, "top_p", "");
  set(b, "max_completion_tokens", "99999999");
  close_settings(b, "max_completion_tokens", "99999999");
  (void)evaluate(b, LAST ".querySelector('button').click()");
  expect(b, "an error shows",
         "document.querySelector('article.error') !== null &&"
         " " LAST ".textContent.includes('max_completion_tokens')");
}

// Text that would go on for long is stopped by Escape, and the server knows.
static void test_stop(browser *b) {
  press(b, "s", "KeyS", 83, ALT, NULL);
  set(b, "top_p", "");
  set(b, "system", "");
  set(b, "temperature", "50");
  set(b, "max_completion_tokens", "480");
  close_settings(b, "max_completion_tokens", "480");
  bool stopped = false;
  // The text is random: once in a while it ends by itself before a key is pressed.
  for (int i = 0; i < 20 && !stopped; i++) {
    press(b, "n", "KeyN", 78, ALT, NULL);
    type(b, "Tell me everything.");
    press_enter(b);
    expect(b, "the first tokens", IDLE " || document.querySelectorAll('.token').length > 1");
    press(b, "Escape", "Escape", 27, 0, NULL);
    expect(b, "stopped", IDLE);
    stopped = strcmp(evaluate(b, NOTE ".endsWith('stopped')"), "true") == 0;
  }
  check(b, "an answer was stopped", NOTE ".endsWith('stopped')");
  (void)evaluate(b,
                 "window.gone = 0; setInterval(() => fetch('metrics').then(r => r.text()).then(t =>"
                 " { gone = Number(/\\nmegalith_clients_gone_total (\\d+)/.exec(t)[1]); }), 100)");
  expect(b, "the server knows", "window.gone >= 1");
}

static void test_phone(browser *b) {
  tell(b, "Emulation.setDeviceMetricsOverride",
       "{\"width\":360,\"height\":640,\"deviceScaleFactor\":2,\"mobile\":true}");
  open_page(b, "/");
  type(b, "What is 137 + 245?");
  (void)evaluate(b, "document.getElementById('send').click()");
  expect(b, "phone: an answer", IDLE " && document.querySelectorAll('article').length === 2");
  check(b, "phone: nothing to the right", "document.documentElement.scrollWidth <= innerWidth");
  check(b, "phone: the input shows",
        "document.getElementById('input').getBoundingClientRect().bottom"
        " <= innerHeight");
  check(b, "phone: fingers can hit buttons",
        "[...document.querySelectorAll('header button, form button:not([hidden])')].every("
        "e => e.closest('dialog') || e.getBoundingClientRect().height >= 34)");
  check(b, "phone: settings fit",
        "(document.getElementById('open-settings').click(),"
        " document.getElementById('settings').getBoundingClientRect().right <= innerWidth)");
  tell(b, "Emulation.clearDeviceMetricsOverride", "{}");
}

static void test_dashboard(browser *b) {
  open_page(b, "/dashboard");
  expect(b, "dashboard: live", "document.getElementById('state').textContent === 'live'");
  expect(b, "dashboard: plots",
         "document.querySelectorAll('figure').length === 12 &&"
         " document.querySelector('polyline').getAttribute('points').length > 5");
  check(b, "dashboard: figures",
        "[...document.querySelectorAll('figcaption b')].every("
        "e => /^(-|[0-9.]+)/.test(e.textContent))");
  check(b, "dashboard: the connection is seen",
        "Number(document.querySelectorAll('figcaption b')[9].textContent) >= 1");
}

// With keys the page is there, says what is missing, and works once it has one.
static void test_keys(browser *b) {
  server s;
  char path[4200];
  (void)snprintf(path, sizeof path, "%s/keys", folder);
  FILE *keys = fopen(path, "w");
  (void)fputs("page-key\n", keys);
  (void)fclose(keys);
  start_server(&s, path);
  b->site = s.address;
  open_page(b, "/");
  type(b, "What is 12 + 7?");
  press_enter(b);
  expect(b, "keys: the page says what is missing",
         "document.querySelector('article.error') !== null && " LAST
         ".textContent.includes('API key')");
  press(b, "s", "KeyS", 83, ALT, NULL);
  set(b, "key", "page-key");
  close_settings(b, "key", "page-key");
  expect(b, "keys: the model's name", "document.getElementById('title').textContent === 'demo'");
  (void)evaluate(b, LAST ".querySelector('button').click()");
  expect(b, "keys: an answer", IDLE " && " LAST_TEXT " === '12 + 7 = 19.'");
  open_page(b, "/dashboard");
  expect(b, "keys: the dashboard asks for one",
         "!document.getElementById('key-row').hidden &&"
         " document.getElementById('state').textContent !== 'live'");
  (void)evaluate(b, "document.getElementById('key').value = 'page-key'");
  expect(b, "keys: the dashboard", "document.getElementById('state').textContent === 'live'");
  stop_server(&s);
}

static void open_tab(browser *b) {
  char params[256];
  json_t *answer = command(b, "Target.createTarget", "{\"url\":\"about:blank\"}");
  (void)snprintf(params, sizeof params, "{\"targetId\":\"%s\",\"flatten\":true}",
                 json_string_value(json_object_get(json_object_get(answer, "result"), "targetId")));
  json_decref(answer);
  answer = command(b, "Target.attachToTarget", params);
  (void)snprintf(
      b->session, sizeof b->session, "%s",
      json_string_value(json_object_get(json_object_get(answer, "result"), "sessionId")));
  json_decref(answer);
  tell(b, "Page.enable", "{}");
  tell(b, "Runtime.enable", "{}");
  tell(b, "Log.enable", "{}");
  tell(b, "Network.enable", "{}");
}

// What the browser's processes that are just ending still write there comes late.
static void remove_folder(browser *b) {
  enum { TRIES = 50, PAUSE_NS = 100 * 1000 * 1000 };
  const struct timespec pause = {.tv_nsec = PAUSE_NS};
  char remove[4300];
  (void)snprintf(remove, sizeof remove, "rm -rf '%s' 2>/dev/null", folder);
  for (int i = 0; i < TRIES; i++) {
    if (system(remove) == 0) {
      return;
    }
    (void)nanosleep(&pause, NULL);
  }
  (void)printf("%s cannot be removed\n", folder);
  b->failures++;
}

int main(int argc, char **argv) {
  server s;
  browser b = {.site = s.address};
  const char *path = find_browser();
  if (argc != 3) {
    die("usage: test_pages PROGRAM DEMO_FOLDER");
  }
  if (path == NULL) {
    (void)printf("skipped: there is no chromium (the package chromium has it)\n");
    return SKIPPED;
  }
  program = argv[1];
  (void)setenv("MEGALITH_DEMO", argv[2], 1);
  (void)signal(SIGPIPE, SIG_IGN);
  (void)snprintf(folder, sizeof folder, "/tmp/test-pages-XXXXXX");
  if (mkdtemp(folder) == NULL) {
    die("mkdtemp");
  }
  start_server(&s, NULL);
  start_browser(&b, path);
  open_tab(&b);
  test_chat(&b);
  test_edit_and_retry(&b);
  test_settings(&b);
  test_stop(&b);
  test_phone(&b);
  test_dashboard(&b);
  test_keys(&b);
  stop_server(&s);
  (void)kill(-b.pid, SIGKILL);
  (void)waitpid(b.pid, NULL, 0);
  mgl_text_free(&b.received);
  remove_folder(&b);
  (void)printf("%u checks in %s, %u failed\n", b.checks, path, b.failures);
  return b.failures == 0 ? 0 : 1;
}
