// Numbers for people: three significant digits and a unit that fits.
#ifndef MGL_APP_HUMAN_H
#define MGL_APP_HUMAN_H

#include <stdint.h>

enum { MGL_HUMAN_BYTES = 32 };  // room for any of the texts below

void mgl_human_number(double value, char out[MGL_HUMAN_BYTES]);  // "0.123", "12.3", "123", "12345"
void mgl_human_size(uint64_t bytes, char out[MGL_HUMAN_BYTES]);  // "512 B", "12.5 MiB", "1.20 GiB"
void mgl_human_rate(double bytes_per_s, char out[MGL_HUMAN_BYTES]);  // "9.87 GB/s"
void mgl_human_ms(double ms, char out[MGL_HUMAN_BYTES]);             // "0.912 ms", "12.3 s"

#endif
