#include <ATen/Dispatch.h>
#include <ATen/cuda/CUDAContext.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>

#include "dwconv.h"

namespace {

constexpr int kThreads = 256;

unsigned blocks(int64_t count) { return static_cast<unsigned>((count + kThreads - 1) / kThreads); }

template <typename scalar_t>
__global__ void forward_kernel(const scalar_t* data, const scalar_t* weight, const int64_t* near, scalar_t* out, int64_t total,
                               int64_t count, int64_t channels) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i >= total) return;
  const int64_t n = i / channels, c = i % channels;
  scalar_t sum = 0;
  for (int64_t k = 0; k < count; ++k) {
    const int64_t row = near[n * count + k];
    if (row >= 0) sum += weight[k * channels + c] * data[row * channels + c];
  }
  out[i] = sum;
}

template <typename scalar_t>
__global__ void data_kernel(const scalar_t* grad, const scalar_t* weight, const int64_t* near, scalar_t* out, int64_t total,
                            int64_t count, int64_t channels) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i >= total) return;
  const int64_t n = i / channels, c = i % channels;
  for (int64_t k = 0; k < count; ++k) {
    const int64_t row = near[n * count + k];
    if (row >= 0) atomicAdd(&out[row * channels + c], weight[k * channels + c] * grad[i]);
  }
}

// One thread for each weight: no atomics, and the same sum each time.
template <typename scalar_t>
__global__ void weight_kernel(const scalar_t* grad, const scalar_t* data, const int64_t* near, scalar_t* out, int64_t nodes,
                              int64_t count, int64_t channels) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i >= count * channels) return;
  const int64_t k = i / channels, c = i % channels;
  scalar_t sum = 0;
  for (int64_t n = 0; n < nodes; ++n) {
    const int64_t row = near[n * count + k];
    if (row >= 0) sum += grad[n * channels + c] * data[row * channels + c];
  }
  out[i] = sum;
}

}  // namespace

at::Tensor dwconv_forward_cuda(const at::Tensor& data, const at::Tensor& weight, const at::Tensor& neigh) {
  const c10::cuda::CUDAGuard guard(data.device());
  at::Tensor out = at::zeros({neigh.size(0), data.size(1)}, data.options());
  if (out.numel() == 0) return out;
  AT_DISPATCH_FLOATING_TYPES(data.scalar_type(), "dwconv_forward", [&] {
    forward_kernel<scalar_t><<<blocks(out.numel()), kThreads, 0, at::cuda::getCurrentCUDAStream()>>>(
        data.data_ptr<scalar_t>(), weight.data_ptr<scalar_t>(), neigh.data_ptr<int64_t>(), out.data_ptr<scalar_t>(), out.numel(),
        neigh.size(1), data.size(1));
  });
  C10_CUDA_KERNEL_LAUNCH_CHECK();
  return out;
}

at::Tensor dwconv_data_cuda(const at::Tensor& grad, const at::Tensor& weight, const at::Tensor& neigh, int64_t rows) {
  const c10::cuda::CUDAGuard guard(grad.device());
  at::Tensor out = at::zeros({rows, grad.size(1)}, grad.options());
  if (grad.numel() == 0) return out;
  AT_DISPATCH_FLOATING_TYPES(grad.scalar_type(), "dwconv_data", [&] {
    data_kernel<scalar_t><<<blocks(grad.numel()), kThreads, 0, at::cuda::getCurrentCUDAStream()>>>(
        grad.data_ptr<scalar_t>(), weight.data_ptr<scalar_t>(), neigh.data_ptr<int64_t>(), out.data_ptr<scalar_t>(), grad.numel(),
        neigh.size(1), grad.size(1));
  });
  C10_CUDA_KERNEL_LAUNCH_CHECK();
  return out;
}

at::Tensor dwconv_weight_cuda(const at::Tensor& grad, const at::Tensor& data, const at::Tensor& neigh) {
  const c10::cuda::CUDAGuard guard(grad.device());
  at::Tensor out = at::zeros({neigh.size(1), grad.size(1)}, grad.options());
  if (out.numel() == 0) return out;
  AT_DISPATCH_FLOATING_TYPES(grad.scalar_type(), "dwconv_weight", [&] {
    weight_kernel<scalar_t><<<blocks(out.numel()), kThreads, 0, at::cuda::getCurrentCUDAStream()>>>(
        grad.data_ptr<scalar_t>(), data.data_ptr<scalar_t>(), neigh.data_ptr<int64_t>(), out.data_ptr<scalar_t>(), neigh.size(0),
        neigh.size(1), grad.size(1));
  });
  C10_CUDA_KERNEL_LAUNCH_CHECK();
  return out;
}
