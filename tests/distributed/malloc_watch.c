/* Sees every large allocation of a process: torch, Python, C++ and all else end in these functions.
 *
 * Preloaded before any of them. Counts while watching, in all threads, and keeps the sizes and call stacks of the first
 * few, so that a failed test says who it was. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <execinfo.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

enum { kSeen = 16, kDepth = 24 };

extern void* __libc_malloc(size_t);
extern void* __libc_calloc(size_t, size_t);
extern void* __libc_realloc(void*, size_t);
extern void* __libc_memalign(size_t, size_t);

static atomic_size_t least_nbytes = SIZE_MAX;
static atomic_size_t seen_count;
static size_t seen_nbytes[kSeen];
static int seen_depth[kSeen];
static void* seen_stack[kSeen][kDepth];

static void note(size_t nbytes) {
  if (nbytes < atomic_load(&least_nbytes)) return;
  const size_t number = atomic_fetch_add(&seen_count, 1);
  if (number >= kSeen) return;
  seen_nbytes[number] = nbytes;
  seen_depth[number] = backtrace(seen_stack[number], kDepth);
}

void malloc_watch_begin(size_t least) {
  void* warm[1];
  backtrace(warm, 1); /* its first call loads a library */
  atomic_store(&seen_count, 0);
  atomic_store(&least_nbytes, least);
}

size_t malloc_watch_end(void) {
  atomic_store(&least_nbytes, SIZE_MAX);
  return atomic_load(&seen_count);
}

/* Of the allocation with this number: its size, or 0 if it was not kept; its stack goes to the file descriptor. */
size_t malloc_watch_show(size_t number, int descriptor) {
  if (number >= kSeen || number >= atomic_load(&seen_count)) return 0;
  backtrace_symbols_fd(seen_stack[number], seen_depth[number], descriptor);
  return seen_nbytes[number];
}

void* malloc(size_t nbytes) {
  note(nbytes);
  return __libc_malloc(nbytes);
}

void* calloc(size_t count, size_t size) {
  note(size != 0 && count > SIZE_MAX / size ? SIZE_MAX : count * size);
  return __libc_calloc(count, size);
}

void* realloc(void* old, size_t nbytes) {
  note(nbytes);
  return __libc_realloc(old, nbytes);
}

void* memalign(size_t alignment, size_t nbytes) {
  note(nbytes);
  return __libc_memalign(alignment, nbytes);
}

void* aligned_alloc(size_t alignment, size_t nbytes) {
  note(nbytes);
  return __libc_memalign(alignment, nbytes);
}

int posix_memalign(void** out, size_t alignment, size_t nbytes) {
  note(nbytes);
  void* found = __libc_memalign(alignment, nbytes);
  if (found == NULL) return ENOMEM;
  *out = found;
  return 0;
}
