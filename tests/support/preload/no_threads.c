// Preloaded, ends a test that starts a thread: the tests that the thread sanitizer's tree leaves out
// (tests/CMakeLists.txt) because they have one thread only are held to that.
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

int pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*start)(void *),
                   void *context) {
  (void)thread;
  (void)attributes;
  (void)start;
  (void)context;
  (void)fputs(
      "expected a test without threads, found one that starts a thread: take it out of\n"
      "threadless_tests in tests/CMakeLists.txt, so that the thread sanitizer sees it\n",
      stderr);
  abort();
}
