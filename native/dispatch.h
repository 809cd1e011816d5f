// Which instruction set the kernels use.
#pragma once

#include "table.h"

namespace thinwire {

const Kernels& scalar_kernels();
#if defined(__x86_64__)
const Kernels& avx2_kernels();
const Kernels& avx512_kernels();
#elif defined(__aarch64__)
const Kernels& neon_kernels();
#endif

// The names of all sets, a better one after those it replaces.
constexpr const char* kInstructionSets[] = {"scalar", "avx2", "avx512", "neon"};

// The kernels in use: those last chosen, at first the best that this processor has.
const Kernels& kernels();
// Use the named set, one of kInstructionSets. False if this build or this processor does not have it.
bool choose_kernels(const char* name);
// Whether this processor can run the named set.
bool can_run(const char* name);
// Whether the plain version was chosen, also by parts that have no table, such as CRC32C.
bool portable_only();

}  // namespace thinwire
