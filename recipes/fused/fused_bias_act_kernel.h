// What fused_bias_act_kernel.cu launches, for double, float, c10::Half and c10::BFloat16; all pointers are of the device.

#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

template <typename scalar_t>
void launch_forward(const scalar_t* x, const scalar_t* bias, scalar_t* y, int64_t count, int64_t plane, int64_t channels,
                    double slope, double gain, cudaStream_t stream);

template <typename scalar_t>
void launch_backward(const scalar_t* grad, const scalar_t* y, scalar_t* gx, int64_t count, double slope, double gain,
                     cudaStream_t stream);
