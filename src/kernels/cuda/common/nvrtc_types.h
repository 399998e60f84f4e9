// NVRTC has no <stdint.h>, <stdbool.h>, <stddef.h> or <string.h>, so the compiler at run time is
// given this file under those four names (cmake/embed_device_sources.cmake); nothing else includes
// it. Sizes equal the host's, so that structs of the protocol have one layout.
#ifndef MGL_KERNELS_CUDA_COMMON_NVRTC_TYPES_H
#define MGL_KERNELS_CUDA_COMMON_NVRTC_TYPES_H

typedef signed char int8_t;
typedef unsigned char uint8_t;
typedef short int16_t;
typedef unsigned short uint16_t;
typedef int int32_t;
typedef unsigned int uint32_t;
typedef long long int64_t;
typedef unsigned long long uint64_t;
typedef unsigned long long uintptr_t;

#define UINT16_MAX 0xffff
#define UINT32_MAX 0xffffffffu
#define UINT64_MAX 0xffffffffffffffffull
#define INT32_MAX 0x7fffffff
#define UINT64_C(value) value##ull

#define offsetof(type, member) __INTADDR__(&((type *)0)->member)  // the front end's own form

// C11 spelling in the headers that both compilers read.
#define _Static_assert static_assert
#define _Alignas alignas

static_assert(sizeof(uint64_t) == 8 && sizeof(void *) == 8, "the host's sizes");

#endif
