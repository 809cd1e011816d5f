// The table of one instruction set, from its register type.
#pragma once

#include "kernels/adam.h"
#include "kernels/chunk.h"
#include "kernels/collect.h"
#include "kernels/dense.h"
#include "kernels/dither.h"
#include "kernels/reduce.h"
#include "kernels/sign.h"
#include "table.h"

namespace thinwire {

template <class V>
constexpr Kernels make_kernels(const char* name) {
  return {name,
          max_magnitude_kernel<V>,
          sum_kernel<V>,
          clear_kernel<V>,
          float32_add_kernel<V>,
          float32_sum_kernel<V>,
          half_encode_kernel<V>,
          half_decode_kernel<V>,
          half_add_kernel<V>,
          sign_encode_kernel<V>,
          sign_step_kernel<V>,
          sign_sum_step_kernel<V>,
          sign_decode_kernel<V>,
          sign_add_kernel<V>,
          sign_sum_kernel<V>,
          sign_settle_kernel<V>,
          collect_kernel<V>,
          collect_residual_kernel<V>,
          collect_dgc_kernel<V>,
          chunk_encode_kernel<V>,
          chunk_step_kernel<V>,
          adam_kernel<V>,
          adam_momentum_kernel<V>,
          dither_planes_kernel<V>,
          dither_codes_kernel<V>,
          dither_decode_kernel<V>,
          dither_add_kernel<V>};
}

}  // namespace thinwire
