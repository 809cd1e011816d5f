// Memory that is large enough to care how it is mapped, and how often it is allocated.
#pragma once

#include <cstddef>
#include <type_traits>
#include <utility>

namespace thinwire {

// Ask for huge pages for the part of [data, data + nbytes) that they fit in; what is there already is moved into them
// where the kernel can do that. Only a wish: streams of many megabytes then cost far fewer page faults and address look-ups.
void prefer_huge_pages(void* data, size_t nbytes);

// Memory for the length of a call, which the thread keeps for its next one. Null for no bytes.
void* take_scratch(size_t nbytes);
void give_scratch(void* data, size_t nbytes);

// An array with nothing meaningful in it, for the length of a call: in the steady state of training it is there already.
// Whichever thread made it must also end it.
template <class T>
class Scratch {
  static_assert(std::is_trivial_v<T>, "nothing is constructed");

 public:
  Scratch() = default;
  explicit Scratch(size_t count) : data_(static_cast<T*>(take_scratch(count * sizeof(T)))), count_(count) {}
  ~Scratch() { give_scratch(data_, count_ * sizeof(T)); }
  Scratch(Scratch&& other) noexcept { swap(other); }
  Scratch& operator=(Scratch&& other) noexcept {
    swap(other);
    return *this;
  }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;

  T* data() { return data_; }
  const T* data() const { return data_; }
  size_t size() const { return count_; }
  T& operator[](size_t i) { return data_[i]; }
  const T& operator[](size_t i) const { return data_[i]; }

 private:
  void swap(Scratch& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(count_, other.count_);
  }

  T* data_ = nullptr;
  size_t count_ = 0;
};

}  // namespace thinwire
