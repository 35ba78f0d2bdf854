// The Python module, its checks, and the choice of device.

#include <torch/extension.h>

#include "dwconv.h"

namespace {

void check(const at::Tensor& data, const at::Tensor& weight, const at::Tensor& neigh) {
  TORCH_CHECK(data.dim() == 2 && weight.dim() == 2 && neigh.dim() == 2, "expected matrices");
  TORCH_CHECK(data.size(1) == weight.size(1), "data and weight differ in channels");
  TORCH_CHECK(neigh.size(1) == weight.size(0), "neighbours and weight differ in number");
  TORCH_CHECK(neigh.scalar_type() == at::kLong, "neighbours are int64");
  TORCH_CHECK(data.device() == weight.device() && data.device() == neigh.device(), "tensors on different devices");
}

at::Tensor forward(const at::Tensor& data, const at::Tensor& weight, const at::Tensor& neigh) {
  check(data, weight, neigh);
  return (data.is_cuda() ? dwconv_forward_cuda : dwconv_forward_cpu)(data, weight, neigh);
}

at::Tensor backward_data(const at::Tensor& grad, const at::Tensor& weight, const at::Tensor& neigh, int64_t rows) {
  check(grad, weight, neigh);
  return (grad.is_cuda() ? dwconv_data_cuda : dwconv_data_cpu)(grad, weight, neigh, rows);
}

at::Tensor backward_weight(const at::Tensor& grad, const at::Tensor& data, const at::Tensor& neigh) {
  TORCH_CHECK(grad.size(1) == data.size(1) && grad.size(0) == neigh.size(0), "gradient of another shape");
  return (grad.is_cuda() ? dwconv_weight_cuda : dwconv_weight_cpu)(grad, data, neigh);
}

}  // namespace

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  m.def("forward", &forward);
  m.def("backward_data", &backward_data);
  m.def("backward_weight", &backward_weight);
}
