// The emulated driver, by the product's own table of it: order of streams, launches that wait for the
// host, graphs, launches that begin before the one before them ends, and faults. Kernels are PTX
// written here.
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

#include "device/cuda/cuda_driver.h"
#include "support/must.h"

// add: block after block adds `by` to *to. wait: until *flag is 1, then *to = *from. first: releases
// what follows, waits until *flag is 1, and then sets *to. second: sets *flag, waits for the first
// one, and adds *from to *to. wild: writes behind what is at *to.
static const char ptx[] =
    "//\n"
    ".version 8.0\n"
    ".target sm_90a\n"
    ".address_size 64\n"
    ".visible .entry add(.param .u64 add_param_0, .param .u32 add_param_1)\n"
    "{\n"
    "\t.reg .b32 \t%r<4>;\n"
    "\t.reg .b64 \t%rd<4>;\n"
    "\tld.param.u64 \t%rd1, [add_param_0];\n"
    "\tld.param.u32 \t%r1, [add_param_1];\n"
    "\tcvta.to.global.u64 \t%rd2, %rd1;\n"
    "\tatom.global.add.u32 \t%r2, [%rd2], %r1;\n"
    "\tret;\n"
    "}\n"
    ".visible .entry wait(.param .u64 wait_param_0, .param .u64 wait_param_1, "
    ".param .u64 wait_param_2)\n"
    "{\n"
    "\t.reg .pred \t%p<2>;\n"
    "\t.reg .b32 \t%r<4>;\n"
    "\t.reg .b64 \t%rd<6>;\n"
    "\tld.param.u64 \t%rd1, [wait_param_0];\n"
    "\tld.param.u64 \t%rd2, [wait_param_1];\n"
    "\tld.param.u64 \t%rd3, [wait_param_2];\n"
    "$L__BB1_1:\n"
    "\tld.acquire.sys.u64 %rd4, [%rd1];\n"
    "\tsetp.ne.s64 \t%p1, %rd4, 1;\n"
    "\t@%p1 bra \t$L__BB1_1;\n"
    "\tld.u32 \t%r1, [%rd2];\n"
    "\tst.u32 \t[%rd3], %r1;\n"
    "\tret;\n"
    "}\n"
    ".visible .entry first(.param .u64 first_param_0, .param .u64 first_param_1)\n"
    "{\n"
    "\t.reg .pred \t%p<2>;\n"
    "\t.reg .b64 \t%rd<6>;\n"
    "\tld.param.u64 \t%rd1, [first_param_0];\n"
    "\tld.param.u64 \t%rd2, [first_param_1];\n"
    "\tgriddepcontrol.launch_dependents;\n"
    "$L__BB2_1:\n"
    "\tld.acquire.gpu.u64 %rd3, [%rd1];\n"
    "\tsetp.ne.s64 \t%p1, %rd3, 1;\n"
    "\t@%p1 bra \t$L__BB2_1;\n"
    "\tst.u64 \t[%rd2], 40;\n"
    "\tret;\n"
    "}\n"
    ".visible .entry second(.param .u64 second_param_0, .param .u64 second_param_1)\n"
    "{\n"
    "\t.reg .b64 \t%rd<6>;\n"
    "\tld.param.u64 \t%rd1, [second_param_0];\n"
    "\tld.param.u64 \t%rd2, [second_param_1];\n"
    "\tmov.u64 \t%rd3, 1;\n"
    "\tst.release.gpu.u64 [%rd1], %rd3;\n"
    "\tgriddepcontrol.wait;\n"
    "\tld.u64 \t%rd4, [%rd2];\n"
    "\tadd.s64 \t%rd4, %rd4, 2;\n"
    "\tst.u64 \t[%rd2], %rd4;\n"
    "\tret;\n"
    "}\n"
    ".visible .entry wild(.param .u64 wild_param_0)\n"
    "{\n"
    "\t.reg .b32 \t%r<4>;\n"
    "\t.reg .b64 \t%rd<4>;\n"
    "\tld.param.u64 \t%rd1, [wild_param_0];\n"
    "\tmov.u32 \t%r1, 7;\n"
    "\tst.u32 \t[%rd1+256], %r1;\n"
    "\tret;\n"
    "}\n";

static mgl_cuda_device device;
static const mgl_cuda_driver *d = &device.driver;
static void *module, *add, *wait_for_flag, *first, *second, *wild;

static int open_all(void **unused) {
  (void)unused;
  assert_int_equal(setenv("EMULATED_GPUS", "2", 1), 0);
  MUST(mgl_cuda_device_open(0, &device, &err));
  assert_int_equal(d->module_load(&module, ptx), 0);
  assert_int_equal(d->module_function(&add, module, "add"), 0);
  assert_int_equal(d->module_function(&wait_for_flag, module, "wait"), 0);
  assert_int_equal(d->module_function(&first, module, "first"), 0);
  assert_int_equal(d->module_function(&second, module, "second"), 0);
  assert_int_equal(d->module_function(&wild, module, "wild"), 0);
  return 0;
}

static mgl_cu_ptr new_word(uint64_t value) {
  mgl_cu_ptr out = 0;
  assert_int_equal(d->memory_alloc(&out, sizeof value), 0);
  assert_int_equal(d->copy_to_device(out, &value, sizeof value), 0);
  return out;
}

static uint64_t read_word(mgl_cu_ptr at) {
  uint64_t value = 0;
  assert_int_equal(d->copy_to_host(&value, at, sizeof value), 0);
  return value;
}

static void launch_add(mgl_cu_ptr to, uint32_t by, unsigned blocks, void *stream) {
  void *parameters[] = {&to, &by};
  assert_int_equal(d->launch(add, blocks, 1, 1, 1, 1, 1, 0, stream, parameters, NULL), 0);
}

static void launch_wait(mgl_cu_ptr flag, mgl_cu_ptr from, mgl_cu_ptr to, void *stream) {
  void *parameters[] = {&flag, &from, &to};
  assert_int_equal(d->launch(wait_for_flag, 1, 1, 1, 1, 1, 1, 0, stream, parameters, NULL), 0);
}

static uint64_t *new_flag(void) {
  void *memory = NULL;
  mgl_cu_ptr address = 0;
  assert_int_equal(d->host_alloc(&memory, sizeof(uint64_t), MGL_CU_HOST_ALLOC_MAPPED), 0);
  assert_int_equal(d->host_address(&address, memory, 0), 0);
  assert_int_equal(address, (uintptr_t)memory);
  memset(memory, 0, sizeof(uint64_t));
  return memory;
}

static void raise_flag(uint64_t *flag) {
  __atomic_store_n(flag, 1, __ATOMIC_RELEASE);
}

static void test_device(void **unused) {
  (void)unused;
  assert_int_equal(device.major, 9);
  assert_int_equal(mgl_cuda_device_count(), 2);
  assert_int_equal(device.kernels, MGL_CUDA_KERNELS_WGMMA);
}

static void test_memory(void **unused) {
  size_t before = 0, after = 0, total = 0;
  mgl_cu_ptr memory = 0;
  uint8_t bytes[100];
  (void)unused;
  assert_int_equal(d->memory_info(&before, &total), 0);
  assert_int_equal(d->memory_alloc(&memory, 1 << 20), 0);
  assert_int_equal(d->memory_info(&after, &total), 0);
  assert_int_equal(before - after, 1 << 20);
  assert_int_equal(memory % 256, 0);
  assert_int_equal(d->copy_to_host(bytes, memory + 1000, sizeof bytes), 0);
  assert_true(bytes[0] == 0xff && bytes[99] == 0xff);  // what nobody wrote is NaN
  assert_int_equal(d->memory_set(memory + 1001, 3, 2), 0);
  assert_int_equal(d->copy_to_host(bytes, memory + 1000, sizeof bytes), 0);
  assert_true(bytes[0] == 0xff && bytes[1] == 3 && bytes[2] == 3 && bytes[3] == 0xff);
  assert_int_equal(d->memory_free(memory), 0);
  assert_int_not_equal(d->memory_free(memory), 0);
  assert_int_equal(d->memory_info(&after, &total), 0);
  assert_int_equal(before, after);
  assert_int_not_equal(d->memory_alloc(&memory, total + 1), 0);
}

// A launch that waits for the host holds up what is behind it on its stream, and nothing else.
static void test_streams(void **unused) {
  void *streams[2];
  uint64_t *flag = new_flag();
  const mgl_cu_ptr from = new_word(5), to = new_word(0), other = new_word(1);
  (void)unused;
  assert_int_equal(d->stream_create(&streams[0], MGL_CU_STREAM_NON_BLOCKING), 0);
  assert_int_equal(d->stream_create(&streams[1], MGL_CU_STREAM_NON_BLOCKING), 0);
  launch_wait((uintptr_t)flag, from, to, streams[0]);
  launch_add(to, 10, 3, streams[0]);
  launch_add(other, 2, 7, streams[1]);
  assert_int_equal(d->stream_synchronize(streams[1]), 0);
  assert_int_equal(read_word(other), 15);
  assert_int_equal(d->stream_query(streams[0]), MGL_CU_NOT_READY);
  assert_int_equal(read_word(to), 0);
  const uint64_t six = 6;
  assert_int_equal(d->copy_to_device(from, &six, sizeof six), 0);
  raise_flag(flag);
  assert_int_equal(d->stream_synchronize(streams[0]), 0);
  assert_int_equal(d->stream_query(streams[0]), 0);
  assert_int_equal(read_word(to), 36);
  assert_int_equal(d->stream_destroy(streams[0]), 0);
  assert_int_equal(d->stream_destroy(streams[1]), 0);
  assert_int_equal(d->host_free(flag), 0);
}

static void *raise_later(void *flag) {
  (void)nanosleep(&(struct timespec){.tv_nsec = 30 * 1000 * 1000}, NULL);
  raise_flag(flag);
  return NULL;
}

// What is done on the NULL stream waits for streams that block, and they for it.
static void test_null_stream(void **unused) {
  void *stream = NULL;
  uint64_t *flag = new_flag();
  pthread_t thread;
  const mgl_cu_ptr from = new_word(5), to = new_word(0);
  (void)unused;
  assert_int_equal(d->stream_create(&stream, 0), 0);
  launch_wait((uintptr_t)flag, from, to, stream);
  launch_add(to, 1, 1, NULL);
  launch_add(to, 2, 1, stream);
  assert_int_equal(pthread_create(&thread, NULL, raise_later, flag), 0);
  assert_int_equal(read_word(to), 8);
  assert_int_equal(pthread_join(thread, NULL), 0);
  assert_int_equal(d->stream_destroy(stream), 0);
  assert_int_equal(d->host_free(flag), 0);
}

// Pinned memory is read when the stream comes to the copy, other memory at once.
static void test_copies(void **unused) {
  void *stream = NULL;
  uint64_t *flag = new_flag(), *pinned = new_flag();
  uint64_t own = 3;
  const mgl_cu_ptr from = new_word(5), to = new_word(0), a = new_word(0), b = new_word(0);
  (void)unused;
  assert_int_equal(d->stream_create(&stream, MGL_CU_STREAM_NON_BLOCKING), 0);
  launch_wait((uintptr_t)flag, from, to, stream);
  assert_int_equal(d->copy_to_device_async(a, &own, sizeof own, stream), 0);
  assert_int_equal(d->copy_to_device_async(b, pinned, sizeof own, stream), 0);
  own = *pinned = 4;
  raise_flag(flag);
  assert_int_equal(d->copy_to_host_async(pinned + 0, a, sizeof own, stream), 0);
  assert_int_equal(d->stream_synchronize(stream), 0);
  assert_int_equal(*pinned, 3);
  assert_int_equal(read_word(a), 3);
  assert_int_equal(read_word(b), 4);
  assert_int_equal(d->stream_destroy(stream), 0);
}

static void test_events(void **unused) {
  void *events[2], *stream = NULL;
  const mgl_cu_ptr to = new_word(0);
  float ms = -1;
  (void)unused;
  assert_int_equal(d->stream_create(&stream, MGL_CU_STREAM_NON_BLOCKING), 0);
  assert_int_equal(d->event_create(&events[0], 0), 0);
  assert_int_equal(d->event_create(&events[1], 0), 0);
  assert_int_equal(d->event_record(events[0], stream), 0);
  launch_add(to, 1, 100, stream);
  assert_int_equal(d->event_record(events[1], stream), 0);
  assert_int_equal(d->event_synchronize(events[1]), 0);
  assert_int_equal(read_word(to), 100);
  assert_int_equal(d->event_elapsed(&ms, events[0], events[1]), 0);
  assert_true(ms > 0);
  assert_int_equal(d->event_destroy(events[0]), 0);
  assert_int_equal(d->event_destroy(events[1]), 0);
  assert_int_equal(d->stream_destroy(stream), 0);
}

static void test_graph(void **unused) {
  void *stream = NULL, *graph = NULL, *executable = NULL;
  const mgl_cu_ptr to = new_word(0);
  (void)unused;
  assert_int_equal(d->stream_create(&stream, MGL_CU_STREAM_NON_BLOCKING), 0);
  assert_int_equal(d->capture_begin(stream, MGL_CU_CAPTURE_RELAXED), 0);
  for (uint32_t i = 1; i <= 3; i++) {
    launch_add(to, i, i, stream);  // the graph keeps what parameters were then
  }
  assert_int_equal(d->capture_end(stream, &graph), 0);
  assert_int_equal(read_word(to), 0);
  assert_int_equal(d->graph_instantiate(&executable, graph, 0), 0);
  assert_int_equal(d->graph_destroy(graph), 0);
  assert_int_equal(d->graph_launch(executable, stream), 0);
  assert_int_equal(d->graph_launch(executable, stream), 0);
  assert_int_equal(d->graph_release(executable), 0);
  assert_int_equal(d->stream_synchronize(stream), 0);
  assert_int_equal(read_word(to), 2 * (1 + 4 + 9));
  assert_int_equal(d->stream_destroy(stream), 0);
}

// Were the second one not begun before the first one ends, the first one would wait for ever; did it
// not wait for its end, 2 would be overwritten.
static void test_programmatic(void **unused) {
  void *stream = NULL;
  mgl_cu_ptr flag = new_word(0), to = new_word(0);
  void *parameters[] = {&flag, &to};
  mgl_cu_launch_attribute dependent = {.id = MGL_CU_LAUNCH_PROGRAMMATIC, .value = 1};
  mgl_cu_launch_config how = {1, 1, 1, 1, 1, 1, 0, NULL, &dependent, 1};
  (void)unused;
  assert_int_equal(d->stream_create(&stream, MGL_CU_STREAM_NON_BLOCKING), 0);
  how.stream = stream;
  assert_int_equal(d->launch(first, 1, 1, 1, 1, 1, 1, 0, stream, parameters, NULL), 0);
  assert_int_equal(d->launch_config(&how, second, parameters, NULL), 0);
  assert_int_equal(d->stream_synchronize(stream), 0);
  assert_int_equal(read_word(to), 42);
  assert_int_equal(d->stream_destroy(stream), 0);
}

static void test_limits(void **unused) {
  int blocks = 0;
  mgl_cu_ptr to = new_word(0);
  uint32_t by = 1;
  void *parameters[] = {&to, &by};
  const size_t half = 100 * 1024;
  (void)unused;
  assert_int_equal(d->blocks_per_sm(&blocks, add, 256, half), 0);
  assert_int_equal(blocks, 0);  // more than 48 KiB has to be asked for
  assert_int_not_equal(d->launch(add, 1, 1, 1, 1, 1, 1, (unsigned)half, NULL, parameters, NULL), 0);
  assert_int_equal(d->function_set(add, MGL_CU_FUNC_MAX_DYNAMIC_SMEM, (int)half), 0);
  assert_int_equal(d->blocks_per_sm(&blocks, add, 256, half), 0);
  assert_int_equal(blocks, 2);
  assert_int_not_equal(d->function_set(add, MGL_CU_FUNC_MAX_DYNAMIC_SMEM, 1 << 20), 0);
  const unsigned most = 2 * device.sm_count;
  assert_int_equal(
      d->launch_cooperative(add, most, 1, 1, 256, 1, 1, (unsigned)half, NULL, parameters), 0);
  assert_int_equal(read_word(to), 256 * most);
  assert_int_not_equal(
      d->launch_cooperative(add, most + 1, 1, 1, 256, 1, 1, (unsigned)half, NULL, parameters), 0);
}

// Another device has memory of its own, which both may map; a fault is one device's, which the other
// one does not notice.
static void test_faults(void **unused) {
  void *contexts[2];
  mgl_cu_ptr to = new_word(0);
  void *parameters[] = {&to};
  const char *text = NULL;
  (void)unused;
  assert_int_equal(d->context_retain(&contexts[0], 0), 0);
  assert_int_equal(d->context_retain(&contexts[1], 1), 0);
  assert_int_equal(d->context_set(contexts[1]), 0);
  assert_int_equal(d->launch(wild, 1, 1, 1, 1, 1, 1, 0, NULL, parameters, NULL), 0);
  const mgl_cu_result fault = d->context_synchronize();
  assert_int_not_equal(fault, 0);
  assert_int_equal(d->error_string(fault, &text), 0);
  assert_non_null(strstr(text, "emulator"));
  assert_int_not_equal(d->launch(wild, 1, 1, 1, 1, 1, 1, 0, NULL, parameters, NULL), 0);
  assert_int_equal(d->context_set(contexts[0]), 0);
  launch_add(to, 9, 1, NULL);
  assert_int_equal(read_word(to), 9);
}

static void test_shared_memory(void **unused) {
  const mgl_cu_allocation how = {.type = MGL_CU_MEMORY_PINNED, .handle_types = MGL_CU_HANDLE_FD};
  const mgl_cu_access access = {{MGL_CU_LOCATION_DEVICE, 0}, MGL_CU_ACCESS_READ_WRITE};
  uint64_t handles[2];
  mgl_cu_ptr at[2];
  size_t bytes = 0;
  int fd = -1;
  (void)unused;
  assert_int_equal(d->memory_granularity(&bytes, &how, MGL_CU_GRANULARITY_RECOMMENDED), 0);
  assert_int_equal(d->memory_create(&handles[0], bytes, &how, 0), 0);
  assert_int_equal(d->memory_export(&fd, handles[0], MGL_CU_HANDLE_FD, 0), 0);
  const intptr_t given = fd;
  void *from = NULL;
  memcpy(&from, &given, sizeof from);
  assert_int_equal(d->memory_import(&handles[1], from, MGL_CU_HANDLE_FD), 0);
  for (int i = 0; i < 2; i++) {
    assert_int_equal(d->address_reserve(&at[i], bytes, 0, 0, 0), 0);
    assert_int_equal(d->memory_map(at[i], bytes, 0, handles[i], 0), 0);
    assert_int_equal(d->memory_access(at[i], bytes, &access, 1), 0);
  }
  assert_int_equal(d->memory_set(at[0], 0, bytes), 0);
  launch_add(at[1] + 8, 11, 2, NULL);
  assert_int_equal(read_word(at[0] + 8), 22);
  for (int i = 0; i < 2; i++) {
    assert_int_equal(d->memory_unmap(at[i], bytes), 0);
    assert_int_equal(d->address_free(at[i], bytes), 0);
    assert_int_equal(d->memory_release(handles[i]), 0);
  }
}

static void test_unknown_code(void **unused) {
  void *other = NULL;
  (void)unused;
  assert_int_not_equal(d->module_load(&other, "\177ELF"), 0);
  assert_int_not_equal(d->module_load(&other,
                                      "//\n.version 8.0\n.target sm_90\n"
                                      ".visible .entry f()\n{\n\tfrobnicate.u32 1;\n}\n"),
                       0);
  assert_int_not_equal(d->module_function(&other, module, "nothing"), 0);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_device),        cmocka_unit_test(test_memory),
      cmocka_unit_test(test_streams),       cmocka_unit_test(test_null_stream),
      cmocka_unit_test(test_copies),        cmocka_unit_test(test_events),
      cmocka_unit_test(test_graph),         cmocka_unit_test(test_programmatic),
      cmocka_unit_test(test_limits),        cmocka_unit_test(test_faults),
      cmocka_unit_test(test_shared_memory), cmocka_unit_test(test_unknown_code)};
  return cmocka_run_group_tests(tests, open_all, NULL);
}
