#include "dispatch.h"

#include <atomic>
#include <cstring>

namespace thinwire {
namespace {

const Kernels* find(const char* name) {
#if defined(__x86_64__)
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("f16c") &&
                    __builtin_cpu_supports("bmi") && __builtin_cpu_supports("bmi2");
  if (std::strcmp(name, "avx512") == 0) {
    const bool avx512 = avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
    return avx512 ? &avx512_kernels() : nullptr;
  }
  if (std::strcmp(name, "avx2") == 0) return avx2 ? &avx2_kernels() : nullptr;
#elif defined(__aarch64__)
  if (std::strcmp(name, "neon") == 0) return &neon_kernels();  // every processor of this kind has it
#endif
  return std::strcmp(name, "scalar") == 0 ? &scalar_kernels() : nullptr;
}

const Kernels* best() {
  const Kernels* last = &scalar_kernels();
  for (const char* name : kInstructionSets) {
    if (const Kernels* found = find(name)) last = found;
  }
  return last;
}

std::atomic<const Kernels*>& chosen() {
  static std::atomic<const Kernels*> table{best()};
  return table;
}

}  // namespace

const Kernels& kernels() { return *chosen().load(std::memory_order_relaxed); }

bool choose_kernels(const char* name) {
  const Kernels* found = find(name);
  if (found != nullptr) chosen().store(found);
  return found != nullptr;
}

bool can_run(const char* name) { return find(name) != nullptr; }

bool portable_only() { return &kernels() == &scalar_kernels(); }

}  // namespace thinwire
