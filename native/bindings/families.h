// The functions of each family, put into the module.
//
// Tensors are flat float32 CPU arrays and are never converted or copied. Encoders write to the front of `out`, which must
// have room for the largest payload and may not overlap what they read, and return the bytes written, or None where the
// input holds an inf or a nan. Readers return None, or a sentence that says why the payload is refused. Steps read their
// state from one tensor and write it `..._to` another, which may be the same, and also return the sum of squares of the
// gradient.
#pragma once

#include <nanobind/nanobind.h>

namespace thinwire {

void bind_dense(nanobind::module_& m);
void bind_sign(nanobind::module_& m);
void bind_topk(nanobind::module_& m);
void bind_sparse(nanobind::module_& m);
void bind_chunk_topk(nanobind::module_& m);
void bind_dither(nanobind::module_& m);
// These write to the tensors they are given, and return nothing.
void bind_adam(nanobind::module_& m);
// How kernels run: instruction set, threads, memory. At first as the environment says.
void bind_machine(nanobind::module_& m);

}  // namespace thinwire
