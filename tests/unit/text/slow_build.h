// Whether this build is slowed down by sanitizers or the lack of optimisation, and the time that a
// linear pass over a megabyte may take in it.
#ifndef MGL_TESTS_TEXT_SLOW_BUILD_H
#define MGL_TESTS_TEXT_SLOW_BUILD_H

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__) || !defined(__OPTIMIZE__)
#define SLOW_BUILD 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer) || \
    __has_feature(memory_sanitizer) || __has_feature(undefined_behavior_sanitizer)
#define SLOW_BUILD 1
#endif
#endif
#ifndef SLOW_BUILD
#define SLOW_BUILD 0
#endif

#define LINEAR_SECONDS (SLOW_BUILD ? 60.0 : 2.0)

#endif
