#pragma once

#include <ATen/ATen.h>

at::Tensor dwconv_forward_cpu(const at::Tensor& data, const at::Tensor& weight, const at::Tensor& neigh);
at::Tensor dwconv_data_cpu(const at::Tensor& grad, const at::Tensor& weight, const at::Tensor& neigh, int64_t rows);
at::Tensor dwconv_weight_cpu(const at::Tensor& grad, const at::Tensor& data, const at::Tensor& neigh);

at::Tensor dwconv_forward_cuda(const at::Tensor& data, const at::Tensor& weight, const at::Tensor& neigh);
at::Tensor dwconv_data_cuda(const at::Tensor& grad, const at::Tensor& weight, const at::Tensor& neigh, int64_t rows);
at::Tensor dwconv_weight_cuda(const at::Tensor& grad, const at::Tensor& data, const at::Tensor& neigh);
