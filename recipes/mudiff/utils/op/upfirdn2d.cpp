// The Python module of upfirdn2d_kernel.cu and its checks.

#include <torch/extension.h>

torch::Tensor upfirdn2d_cuda(const torch::Tensor& x, const torch::Tensor& kernel, int up, int down, int x0, int x1, int y0, int y1);

static torch::Tensor upfirdn2d(const torch::Tensor& x, const torch::Tensor& kernel, int up, int down, int x0, int x1, int y0,
                               int y1) {
  TORCH_CHECK(x.is_cuda() && kernel.is_cuda(), "input and kernel must be CUDA tensors");
  TORCH_CHECK(x.dim() == 4 && kernel.dim() == 2, "expected an input of 4 and a kernel of 2 dimensions");
  TORCH_CHECK(x.is_contiguous() && kernel.is_contiguous(), "input and kernel must be contiguous");
  TORCH_CHECK(up >= 1 && down >= 1, "factors must be positive");
  return upfirdn2d_cuda(x, kernel, up, down, x0, x1, y0, y1);
}

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) { m.def("upfirdn2d", &upfirdn2d, "upsample by zeros, filter, downsample"); }
