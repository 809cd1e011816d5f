// How to undo steps that write to few places of a tensor.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels.h"

namespace thinwire {

// What steps have overwritten in a tensor since the log was cleared.
class UndoLog {
 public:
  void clear();
  void note(SparseList overwritten);
  // Put everything back and clear. False, and nothing happens, if x of n elements has no such places: it is another tensor.
  bool undo(float* x, size_t n);

 private:
  std::vector<uint32_t> index_;
  std::vector<float> value_;
};

}  // namespace thinwire
