#include "pool.h"

#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <thread>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace thinwire {
namespace {

// Elements below which a second thread costs more than it brings.
constexpr size_t kWorthAThread = 2 * 65536;

// More parts than threads, so that one which is held up by something else does not hold up the rest.
constexpr size_t kPartsPerThread = 4;

struct Job {
  size_t n, granule, parts;
  size_t helpers;  // threads that may work on it beside the calling one
  RangeBody body;
  void* context;
};

void run_part(const Job& job, size_t part) {
  const size_t granules = (job.n + job.granule - 1) / job.granule;
  const size_t begin = granules * part / job.parts * job.granule;
  const size_t end = granules * (part + 1) / job.parts * job.granule;
  job.body(job.context, {begin, end < job.n ? end : job.n, part});
}

class Pool {
 public:
  // False if another job is running.
  bool try_run(const Job& job) {
    std::unique_lock<std::mutex> turn(turn_, std::try_to_lock);
    if (!turn.owns_lock()) return false;
    {
      std::lock_guard<std::mutex> lock(mutex_);
      for (; threads_ < job.helpers; ++threads_) {
        std::thread([this, index = threads_, seen = generation_] { serve(index, seen); }).detach();
      }
      job_ = job;
      next_.store(0);
      left_ = threads_;
      ++generation_;
    }
    work_.notify_all();
    take_parts(job);
    std::unique_lock<std::mutex> lock(mutex_);
    done_.wait(lock, [this] { return left_ == 0; });
    return true;
  }

 private:
  void serve(size_t index, size_t seen) {
    DefaultFloatMode mode;
    for (;;) {
      Job job;
      {
        std::unique_lock<std::mutex> lock(mutex_);
        work_.wait(lock, [&] { return generation_ != seen; });
        seen = generation_;
        job = job_;
      }
      if (index < job.helpers) take_parts(job);
      std::lock_guard<std::mutex> lock(mutex_);
      if (--left_ == 0) done_.notify_one();
    }
  }

  void take_parts(const Job& job) {
    for (size_t part = next_.fetch_add(1); part < job.parts; part = next_.fetch_add(1)) run_part(job, part);
  }

  std::mutex turn_;
  std::mutex mutex_;
  std::condition_variable work_, done_;
  Job job_{};
  std::atomic<size_t> next_{0};
  size_t threads_ = 0, left_ = 0, generation_ = 0;
};

std::atomic<Pool*>& pool() {
  static std::atomic<Pool*> current{nullptr};
  return current;
}

std::atomic<size_t>& threads_setting() {
  static std::atomic<size_t> count{1};
  return count;
}

// Threads do not survive a fork: the child leaves its copy of the pool alone and makes another when it needs one.
void forget_pool() { pool().store(nullptr); }

Pool& current_pool() {
  static const int registered = pthread_atfork(nullptr, nullptr, forget_pool);
  static_cast<void>(registered);
  Pool* found = pool().load();
  if (found != nullptr) return *found;
  Pool* fresh = new Pool;  // never deleted: its threads run until the process ends
  if (pool().compare_exchange_strong(found, fresh)) return *fresh;
  delete fresh;
  return *found;
}

#if defined(__aarch64__)
unsigned float_control() {
  uint64_t control;
  asm volatile("mrs %0, fpcr" : "=r"(control));
  return static_cast<unsigned>(control);  // the upper half is reserved
}

void set_float_control(unsigned control) { asm volatile("msr fpcr, %0" : : "r"(uint64_t{control})); }
#endif

}  // namespace

size_t thread_count() { return threads_setting().load(); }

void set_thread_count(size_t count) { threads_setting().store(count == 0 ? 1 : count); }

size_t count_parts(size_t n, size_t granule) {
  const size_t threads = thread_count();
  if (threads == 1) return 1;
  const size_t useful = n / (granule < kWorthAThread ? kWorthAThread : granule);
  const size_t most = threads * kPartsPerThread;
  return useful == 0 ? 1 : (useful < most ? useful : most);
}

void run_parts(size_t n, size_t granule, size_t parts, RangeBody body, void* context) {
  const Job job{n, granule, parts, std::min(parts, thread_count()) - 1, body, context};
  if (job.helpers > 0 && current_pool().try_run(job)) return;
  for (size_t part = 0; part < parts; ++part) run_part(job, part);
}

#if defined(__x86_64__)
DefaultFloatMode::DefaultFloatMode() : saved_(_mm_getcsr()) { _mm_setcsr(0x1f80); }
DefaultFloatMode::~DefaultFloatMode() { _mm_setcsr(saved_); }
#elif defined(__aarch64__)
DefaultFloatMode::DefaultFloatMode() : saved_(float_control()) { set_float_control(0); }
DefaultFloatMode::~DefaultFloatMode() { set_float_control(saved_); }
#else
DefaultFloatMode::DefaultFloatMode() : saved_(0) {}
DefaultFloatMode::~DefaultFloatMode() = default;
#endif

}  // namespace thinwire
