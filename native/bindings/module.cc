// The Python face of kernels.h: checks types, contiguity and sizes, and drops the GIL. What is computed is no part of it.
#include <nanobind/nanobind.h>

#include "bindings/families.h"
#include "bindings/tensor.h"

NB_MODULE(_native, m) {
  // Background threads are daemons: what they hold is still there when Python ends.
  nanobind::set_leak_warnings(false);
  thinwire::bind_machine(m);
  thinwire::Torch::instance();
  thinwire::bind_dense(m);
  thinwire::bind_sign(m);
  thinwire::bind_topk(m);
  thinwire::bind_sparse(m);
  thinwire::bind_chunk_topk(m);
  thinwire::bind_dither(m);
  thinwire::bind_adam(m);
}
