// The GPU side of fused_bias_act.cpp; both tensors are contiguous and checked there.

#include <ATen/Dispatch.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty_like.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include "fused_bias_act_kernel.h"

at::Tensor forward_cuda(const at::Tensor& x, const at::Tensor& bias, double slope, double gain) {
  const c10::cuda::CUDAGuard guard(x.device());
  at::Tensor y = at::empty_like(x);
  const int64_t count = x.numel();
  if (count == 0) return y;
  const int64_t channels = bias.numel();
  const int64_t plane = count / (x.size(0) * channels);
  AT_DISPATCH_FLOATING_TYPES_AND2(at::kHalf, at::kBFloat16, x.scalar_type(), "fused_forward_cuda", [&] {
    launch_forward<scalar_t>(x.data_ptr<scalar_t>(), bias.data_ptr<scalar_t>(), y.data_ptr<scalar_t>(), count, plane, channels,
                             slope, gain, c10::cuda::getCurrentCUDAStream());
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
    launch_backward<scalar_t>(grad.data_ptr<scalar_t>(), y.data_ptr<scalar_t>(), gx.data_ptr<scalar_t>(), count, slope, gain,
                              c10::cuda::getCurrentCUDAStream());
  });
  C10_CUDA_KERNEL_LAUNCH_CHECK();
  return gx;
}
