// The only place that makes threads.
//
// A job is cut into ranges of whole granules and run by a pool that is made on first use and made anew after a fork.
// A second job that arrives while the pool is busy runs on its own thread alone: nothing ever waits for the pool.
#pragma once

#include <cstddef>

namespace thinwire {

struct Range {
  size_t begin;
  size_t end;
  size_t part;
};

// How many threads a job may use, the calling one included. At least 1.
size_t thread_count();
void set_thread_count(size_t count);

// Into how many ranges a job on n elements is cut, so that each is worth a thread.
size_t count_parts(size_t n, size_t granule);

using RangeBody = void (*)(void* context, Range range);
void run_parts(size_t n, size_t granule, size_t parts, RangeBody body, void* context);

// Calls body(Range) for every part and returns when all are done.
template <class Body>
void parallel(size_t n, size_t granule, size_t parts, Body body) {
  run_parts(n, granule, parts, [](void* context, Range range) { (*static_cast<Body*>(context))(range); }, &body);
}

// The processor's default rounding and subnormal handling while this lives: a program may have set "flush to zero"
// for its own threads, and results must not depend on which thread did the work.
class DefaultFloatMode {
 public:
  DefaultFloatMode();
  ~DefaultFloatMode();
  DefaultFloatMode(const DefaultFloatMode&) = delete;
  DefaultFloatMode& operator=(const DefaultFloatMode&) = delete;

 private:
  unsigned saved_;
};

}  // namespace thinwire
