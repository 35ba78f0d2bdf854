// The GPU side of fused_bias_act.cpp; both tensors are contiguous and checked there.

#include <ATen/Dispatch.h>
#include <ATen/OpMathType.h>
#include <ATen/core/Tensor.h>
#include <ATen/cuda/CUDAContext.h>
#include <ATen/ops/empty_like.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>

#include <algorithm>
#include <cstdint>

namespace {

constexpr int kThreads = 256;
constexpr int64_t kMostBlocks = 65535;  // the loop inside the kernels covers what is left

int blocks_for(int64_t count) {
  return static_cast<int>(std::min((count + kThreads - 1) / kThreads, kMostBlocks));
}

// `plane` values that share a bias lie one after the other. Half types are computed in float.
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

at::Tensor forward_cuda(const at::Tensor& x, const at::Tensor& bias, double slope, double gain) {
  const c10::cuda::CUDAGuard guard(x.device());
  at::Tensor y = at::empty_like(x);
  const int64_t count = x.numel();
  if (count == 0) return y;
  const int64_t channels = bias.numel();
  const int64_t plane = count / (x.size(0) * channels);
  AT_DISPATCH_FLOATING_TYPES_AND2(at::kHalf, at::kBFloat16, x.scalar_type(), "fused_forward_cuda", [&] {
    using op_t = at::opmath_type<scalar_t>;
    forward_kernel<scalar_t, op_t><<<blocks_for(count), kThreads, 0, at::cuda::getCurrentCUDAStream()>>>(
        x.data_ptr<scalar_t>(), bias.data_ptr<scalar_t>(), y.data_ptr<scalar_t>(), count, plane, channels,
        static_cast<op_t>(gain), static_cast<op_t>(gain * slope));
  });
  C10_CUDA_KERNEL_LAUNCH_CHECK();
  return y;
}

at::Tensor backward_cuda(const at::Tensor& grad, const at::Tensor& y, double slope, double gain) {
  const c10::cuda::CUDAGuard guard(grad.device());
  at::Tensor gx = at::empty_like(grad);
  const int64_t count = grad.numel();
  if (count == 0) return gx;
  AT_DISPATCH_FLOATING_TYPES_AND2(at::kHalf, at::kBFloat16, grad.scalar_type(), "fused_backward_cuda", [&] {
    using op_t = at::opmath_type<scalar_t>;
    backward_kernel<scalar_t, op_t><<<blocks_for(count), kThreads, 0, at::cuda::getCurrentCUDAStream()>>>(
        grad.data_ptr<scalar_t>(), y.data_ptr<scalar_t>(), gx.data_ptr<scalar_t>(), count, static_cast<op_t>(gain),
        static_cast<op_t>(gain * slope));
  });
  C10_CUDA_KERNEL_LAUNCH_CHECK();
  return gx;
}
