#include <ATen/ATen.h>
#include <ATen/cuda/CUDAContext.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>

namespace {

constexpr int kThreads = 256;

template <typename scalar_t>
__global__ void forward_kernel(const scalar_t* x, const scalar_t* bias, scalar_t* out, int64_t count, int64_t plane,
                               int64_t channels, float slope, float gain) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i >= count) return;
  const float value = static_cast<float>(x[i]) + static_cast<float>(bias[(i / plane) % channels]);
  out[i] = static_cast<scalar_t>(gain * (value > 0 ? value : slope * value));
}

template <typename scalar_t>
__global__ void backward_kernel(const scalar_t* grad, const scalar_t* out, scalar_t* gx, int64_t count, float slope, float gain) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i >= count) return;
  gx[i] = static_cast<scalar_t>(gain * (static_cast<float>(out[i]) > 0 ? 1.f : slope) * static_cast<float>(grad[i]));
}

unsigned blocks(int64_t count) { return static_cast<unsigned>((count + kThreads - 1) / kThreads); }

}  // namespace

at::Tensor fused_forward(const at::Tensor& x, const at::Tensor& bias, double slope, double gain) {
  const c10::cuda::CUDAGuard guard(x.device());
  at::Tensor out = at::empty_like(x);
  const int64_t count = x.numel();
  if (count == 0) return out;
  const int64_t plane = count / (x.size(0) * x.size(1));
  AT_DISPATCH_FLOATING_TYPES_AND_HALF(x.scalar_type(), "fused_forward", [&] {
    forward_kernel<scalar_t><<<blocks(count), kThreads, 0, at::cuda::getCurrentCUDAStream()>>>(
        x.data_ptr<scalar_t>(), bias.data_ptr<scalar_t>(), out.data_ptr<scalar_t>(), count, plane, x.size(1),
        static_cast<float>(slope), static_cast<float>(gain));
  });
  C10_CUDA_KERNEL_LAUNCH_CHECK();
  return out;
}

at::Tensor fused_backward(const at::Tensor& grad, const at::Tensor& out, double slope, double gain) {
  const c10::cuda::CUDAGuard guard(grad.device());
  at::Tensor gx = at::empty_like(grad);
  const int64_t count = grad.numel();
  if (count == 0) return gx;
  AT_DISPATCH_FLOATING_TYPES_AND_HALF(grad.scalar_type(), "fused_backward", [&] {
    backward_kernel<scalar_t><<<blocks(count), kThreads, 0, at::cuda::getCurrentCUDAStream()>>>(
        grad.data_ptr<scalar_t>(), out.data_ptr<scalar_t>(), gx.data_ptr<scalar_t>(), count, static_cast<float>(slope),
        static_cast<float>(gain));
  });
  C10_CUDA_KERNEL_LAUNCH_CHECK();
  return gx;
}
