// The kernels of fused_bias_act_cuda.cpp, and how they are launched. Of torch it needs the half types alone: with a header
// that knows tensors, nvcc's two passes would read all of ATen, which takes many times what the kernels take.

#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>

#include <algorithm>
#include <cstdint>

#include "fused_bias_act_kernel.h"

namespace {

constexpr int kThreads = 256;
constexpr int64_t kMostBlocks = 65535;  // the loop inside the kernels covers what is left

int blocks_for(int64_t count) {
  return static_cast<int>(std::min((count + kThreads - 1) / kThreads, kMostBlocks));
}

// Half types are computed in float.
template <typename scalar_t>
struct Computed {
  using type = scalar_t;
};
template <>
struct Computed<c10::Half> {
  using type = float;
};
template <>
struct Computed<c10::BFloat16> {
  using type = float;
};

// `plane` values that share a bias lie one after the other.
template <typename scalar_t, typename op_t>
__global__ void forward_kernel(const scalar_t* __restrict__ x, const scalar_t* __restrict__ bias, scalar_t* __restrict__ y,
                               int64_t count, int64_t plane, int64_t channels, op_t up, op_t down) {
  const int64_t stride = static_cast<int64_t>(gridDim.x) * blockDim.x;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < count; i += stride) {
    const op_t value = static_cast<op_t>(x[i]) + static_cast<op_t>(bias[(i / plane) % channels]);
    y[i] = static_cast<scalar_t>(value * (value > op_t(0) ? up : down));
  }
}

template <typename scalar_t, typename op_t>
__global__ void backward_kernel(const scalar_t* __restrict__ grad, const scalar_t* __restrict__ y, scalar_t* __restrict__ gx,
                                int64_t count, op_t up, op_t down) {
  const int64_t stride = static_cast<int64_t>(gridDim.x) * blockDim.x;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < count; i += stride) {
    gx[i] = static_cast<scalar_t>(static_cast<op_t>(grad[i]) * (static_cast<op_t>(y[i]) > op_t(0) ? up : down));
  }
}

}  // namespace

template <typename scalar_t>
void launch_forward(const scalar_t* x, const scalar_t* bias, scalar_t* y, int64_t count, int64_t plane, int64_t channels,
                    double slope, double gain, cudaStream_t stream) {
  using op_t = typename Computed<scalar_t>::type;
  forward_kernel<scalar_t, op_t><<<blocks_for(count), kThreads, 0, stream>>>(
      x, bias, y, count, plane, channels, static_cast<op_t>(gain), static_cast<op_t>(gain * slope));
}

template <typename scalar_t>
void launch_backward(const scalar_t* grad, const scalar_t* y, scalar_t* gx, int64_t count, double slope, double gain,
                     cudaStream_t stream) {
  using op_t = typename Computed<scalar_t>::type;
  backward_kernel<scalar_t, op_t><<<blocks_for(count), kThreads, 0, stream>>>(
      grad, y, gx, count, static_cast<op_t>(gain), static_cast<op_t>(gain * slope));
}

#define FUSED_FOR(scalar_t)                                                                                              \
  template void launch_forward(const scalar_t*, const scalar_t*, scalar_t*, int64_t, int64_t, int64_t, double, double,   \
                               cudaStream_t);                                                                            \
  template void launch_backward(const scalar_t*, const scalar_t*, scalar_t*, int64_t, double, double, cudaStream_t);
FUSED_FOR(double)
FUSED_FOR(float)
FUSED_FOR(c10::Half)
FUSED_FOR(c10::BFloat16)
