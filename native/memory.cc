#include "memory.h"

#include <cstdint>
#include <new>
#include <vector>

#if defined(__linux__)
#include <sys/mman.h>
#endif

namespace thinwire {
namespace {

// A kept block has slack, in which a sanitizer sees no overrun: under one, every block is new and exact.
#if defined(__SANITIZE_ADDRESS__)
constexpr bool kKeeps = false;
#elif defined(__has_feature)
constexpr bool kKeeps = !__has_feature(address_sanitizer);
#else
constexpr bool kKeeps = true;
#endif

constexpr size_t kLeastKept = size_t{1} << 12;  // malloc has smaller ones at hand
constexpr size_t kMostKept = size_t{1} << 25;   // larger ones are not for pieces of gradients, and would stay for nothing

// The power of two that holds nbytes.
unsigned size_class(size_t nbytes) { return 64 - static_cast<unsigned>(__builtin_clzll(nbytes - 1)); }

bool is_kept(size_t nbytes) { return kKeeps && nbytes >= kLeastKept && nbytes <= kMostKept; }

// The blocks of one thread that are not in use, by size class. What calls nest decides how many there are.
class Shelf {
 public:
  Shelf() = default;
  Shelf(const Shelf&) = delete;
  Shelf& operator=(const Shelf&) = delete;
  ~Shelf() {
    for (const auto& blocks : free_) {
      for (void* block : blocks) ::operator delete(block);
    }
  }
  void* take(unsigned size) {
    std::vector<void*>& blocks = free_[size];
    if (blocks.empty()) return ::operator new(size_t{1} << size);
    void* block = blocks.back();
    blocks.pop_back();
    return block;
  }
  void give(void* block, unsigned size) { free_[size].push_back(block); }

 private:
  std::vector<void*> free_[26];
};

// Per thread, so that nobody waits for anybody: decoders have no object that could own it.
thread_local Shelf shelf;

}  // namespace

void prefer_huge_pages(void* data, size_t nbytes) {
#if defined(__linux__)
  constexpr uintptr_t kHuge = uintptr_t{2} << 20;
  const auto begin = (reinterpret_cast<uintptr_t>(data) + kHuge - 1) / kHuge * kHuge;
  const auto end = (reinterpret_cast<uintptr_t>(data) + nbytes) / kHuge * kHuge;
  if (end <= begin) return;
  madvise(reinterpret_cast<void*>(begin), end - begin, MADV_HUGEPAGE);  // for what is not there yet
#if !defined(MADV_COLLAPSE)
  constexpr int MADV_COLLAPSE = 25;  // of Linux 6.1, which headers may be older than
#endif
  madvise(reinterpret_cast<void*>(begin), end - begin, MADV_COLLAPSE);
#else
  static_cast<void>(data);
  static_cast<void>(nbytes);
#endif
}

void* take_scratch(size_t nbytes) {
  if (nbytes == 0) return nullptr;
  return is_kept(nbytes) ? shelf.take(size_class(nbytes)) : ::operator new(nbytes);
}

void give_scratch(void* data, size_t nbytes) {
  if (data == nullptr) return;
  is_kept(nbytes) ? shelf.give(data, size_class(nbytes)) : ::operator delete(data);
}

}  // namespace thinwire
