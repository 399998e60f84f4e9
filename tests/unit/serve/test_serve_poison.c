// Requests that cannot be answered, while others run: each fails alone, and the tokens of the others
// keep their bits.
#include "serve_bed.h"

#include <stdatomic.h>

#include "support/chat_model.h"
#include "support/poisoned_model.h"

enum { CLIENTS = 16, ROUNDS = 2, POISONERS = 3, DEEP = 60000, TOKENS = 24 };

// What is asked that cannot be answered, and how it ends.
typedef struct poison {
  const char *path;
  char *body;
  int status;
  const char *part;  // of the answer
} poison;

typedef struct crowd {
  const bed *b;
  const char *prompt;  // of the sound clients; %u is replaced by their number
  const poison *poisons;
  size_t poison_count;
  atomic_bool done;
  atomic_uint tried;  // poisons
  pthread_mutex_t lock;
  char failure[1024];  // the first one; cmocka's checks are for the main thread only
} crowd;

static void note_failure(crowd *all, const char *what, int expected, const char *part,
                         const reply *r) {
  (void)pthread_mutex_lock(&all->lock);
  if (all->failure[0] == 0) {
    (void)snprintf(all->failure, sizeof all->failure,
                   "%.90s: expected %d and \"%s\", found %d and %.600s", what, expected, part,
                   r->status, r->body.data == NULL ? "" : r->body.data);
  }
  (void)pthread_mutex_unlock(&all->lock);
}

typedef struct client {
  crowd *crowd;
  unsigned index;
  char *found;  // the ids of all rounds
  pthread_t thread;
} client;

// The ids of all "token_ids" in a text, with commas.
static void append_ids(const char *text, mgl_text *ids) {
  static const char key[] = "\"token_ids\":[";
  while ((text = strstr(text, key)) != NULL) {
    text += sizeof key - 1;
    mgl_text_append(ids, text, strcspn(text, "]"));
    mgl_text_append(ids, ",", 1);
  }
}

// Asks on a connection of its own; status 0 where the answer broke off.
static reply try_ask(const bed *b, const char *path, const char *body) {
  reply r = {0};
  int fd = connect_client(b);
  send_post(fd, path, body);
  r.status = read_reply(fd, &r) ? r.status : 0;
  (void)close(fd);
  return r;
}

static void *run_client(void *context) {
  client *c = context;
  mgl_text ids = {0};
  for (unsigned round = 0; round < ROUNDS; round++) {
    char body[512];
    char prompt[128];
    (void)snprintf(prompt, sizeof prompt, c->crowd->prompt, 1 + c->index % 5, 1 + c->index % 3);
    (void)snprintf(body, sizeof body,
                   "{\"prompt\":%s,\"max_tokens\":%d,\"seed\":%u,\"temperature\":%s,"
                   "\"ignore_eos\":true,\"return_token_ids\":true,\"stream\":%s}",
                   prompt, TOKENS, c->index, c->index % 2 == 0 ? "0" : "1.5",
                   c->index % 3 == 0 ? "true" : "false");
    reply r = try_ask(c->crowd->b, "/v1/completions", body);
    if (r.status != 200 || strstr(r.body.data, "\"error\"") != NULL) {
      note_failure(c->crowd, body, 200, "", &r);
    }
    append_ids(r.body.data == NULL ? "" : r.body.data, &ids);
    mgl_text_free(&r.body);
  }
  c->found = ids.data == NULL ? strdup("") : ids.data;
  return NULL;
}

static void *run_poisoner(void *context) {
  crowd *all = context;
  for (size_t i = 0; !atomic_load(&all->done); i++) {
    const poison *p = &all->poisons[i % all->poison_count];
    reply r = try_ask(all->b, p->path, p->body);
    const char *answer = r.body.data == NULL ? "" : r.body.data;
    if (r.status != p->status || strstr(answer, p->part) == NULL ||
        strstr(answer, "[DONE]") != NULL) {
      note_failure(all, p->body, p->status, p->part, &r);
    }
    mgl_text_free(&r.body);
    atomic_fetch_add(&all->tried, 1);
  }
  return NULL;
}

static void run_clients(crowd *all, client clients[CLIENTS]) {
  for (unsigned i = 0; i < CLIENTS; i++) {
    clients[i] = (client){.crowd = all, .index = i};
    assert_int_equal(0, pthread_create(&clients[i].thread, NULL, run_client, &clients[i]));
  }
  for (unsigned i = 0; i < CLIENTS; i++) {
    (void)pthread_join(clients[i].thread, NULL);
  }
}

// The clients alone, then with the poisoners.
static void compare(crowd *all) {
  client alone[CLIENTS];
  client together[CLIENTS];
  pthread_t poisoners[POISONERS];
  run_clients(all, alone);
  for (unsigned i = 0; i < POISONERS; i++) {
    assert_int_equal(0, pthread_create(&poisoners[i], NULL, run_poisoner, all));
  }
  run_clients(all, together);
  atomic_store(&all->done, true);
  for (unsigned i = 0; i < POISONERS; i++) {
    (void)pthread_join(poisoners[i], NULL);
  }
  if (all->failure[0] != 0) {
    fail_msg("%s", all->failure);
  }
  for (unsigned i = 0; i < CLIENTS; i++) {
    if (strcmp(alone[i].found, together[i].found) != 0) {
      fail_msg("client %u: expected %s, found %s", i, alone[i].found, together[i].found);
    }
    free(alone[i].found);
    free(together[i].found);
  }
  printf("%u poisoned requests beside %d of others\n", atomic_load(&all->tried), CLIENTS * ROUNDS);
  wait_for_metric(all->b, "megalith_requests_active", 0);
  wait_for_metric(all->b, "megalith_kv_pages_used", 0);
  reply r = ask_server(all->b, "/health", NULL);
  assert_int_equal(200, r.status);
  mgl_text_free(&r.body);
}

// Weights of which some are not numbers.
static void test_damaged_weights(void **state) {
  temp_folder folder;
  bed b;
  megalith_engine_options options = {
      .size = sizeof options, .device = "cpu", .threads = 1, .kv_tokens = 8192, .background = true};
  (void)state;
  poisoned_model_write(MGL_TEST_DATA, &folder);
  assert_int_equal(MEGALITH_OK, megalith_model_open(folder.path, NULL, &model, NULL));
  assert_int_equal(MEGALITH_OK, megalith_engine_create(model, &options, &engine, NULL));
  start_server(&b, (mgl_server_options){0});
  poison poisons[] = {
      {"/v1/completions", "{\"prompt\":[1,7,3],\"max_tokens\":8}", 500, "not finite"},
      {"/v1/completions", "{\"prompt\":[1,7,3],\"max_tokens\":8,\"stream\":true}", 200,
       "{\"error\":{\"message\":\"the model's logits are not finite"},
      {"/v1/completions", "{\"prompt\":[[1,2],[7]],\"n\":3,\"max_tokens\":8}", 500, "not finite"},
  };
  crowd all = {.b = &b,
               .lock = PTHREAD_MUTEX_INITIALIZER,
               .prompt = "[1,2,3,%u,%u]",
               .poisons = poisons,
               .poison_count = sizeof poisons / sizeof *poisons};
  compare(&all);
  stop_server(&b);
  megalith_engine_destroy(engine);
  megalith_model_close(model);
  temp_folder_remove(&folder);
}

static char *deep_body(const char *begin, const char *end) {
  mgl_text text = {0};
  mgl_text_append_string(&text, begin);
  for (int i = 0; i < DEEP; i++) {
    mgl_text_append_string(&text, "{\"properties\":");
  }
  mgl_text_append_string(&text, "1");
  for (int i = 0; i < DEEP; i++) {
    mgl_text_append_string(&text, "}");
  }
  mgl_text_append_string(&text, end);
  return text.data;
}

// A template that does more than it may, and bodies nested deeper than any stack.
static void test_bombs(void **state) {
  bed b;
  megalith_engine_options options = {
      .size = sizeof options, .device = "cpu", .threads = 1, .kv_tokens = 8192, .background = true};
  (void)state;
  model = open_chat_model(MGL_DEMO_FOLDER, CHAT_MODEL_TEMPLATE);
  assert_int_equal(MEGALITH_OK, megalith_engine_create(model, &options, &engine, NULL));
  start_server(&b, (mgl_server_options){.syntax.finds_thoughts = true});
  poison poisons[] = {
      {"/v1/chat/completions",
       "{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],"
       "\"chat_template_kwargs\":{\"bomb\":100000}}",
       400, "the template needs more than"},
      {"/tokenize",
       "{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],"
       "\"chat_template_kwargs\":{\"bomb\":100000}}",
       400, "the template needs more than"},
      {"/v1/chat/completions",
       deep_body("{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],\"tools\":[{\"type\":"
                 "\"function\",\"function\":{\"name\":\"f\",\"parameters\":",
                 "}}]}"),
       400, "nested deeper than 64"},
      {"/v1/completions", deep_body("{\"prompt\":\"x\",\"structured_outputs\":{\"json\":", "}}"),
       400, "nested deeper than 64"},
  };
  crowd all = {.b = &b,
               .lock = PTHREAD_MUTEX_INITIALIZER,
               .prompt = "\"What is %u + %u?\"",
               .poisons = poisons,
               .poison_count = sizeof poisons / sizeof *poisons};
  compare(&all);
  free(poisons[2].body);
  free(poisons[3].body);
  stop_server(&b);
  megalith_engine_destroy(engine);
  megalith_model_close(model);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_damaged_weights),
                                     cmocka_unit_test(test_bombs)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
