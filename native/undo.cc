#include "undo.h"

#include <algorithm>

namespace thinwire {

void UndoLog::clear() {
  index_.clear();
  value_.clear();
}

void UndoLog::note(SparseList overwritten) {
  index_.insert(index_.end(), overwritten.index, overwritten.index + overwritten.count);
  value_.insert(value_.end(), overwritten.value, overwritten.value + overwritten.count);
}

bool UndoLog::undo(float* x, size_t n) {
  if (!std::all_of(index_.begin(), index_.end(), [n](uint32_t i) { return i < n; })) return false;
  // The newest first: a place may be there twice.
  for (size_t i = index_.size(); i-- > 0;) x[index_[i]] = value_[i];
  clear();
  return true;
}

}  // namespace thinwire
