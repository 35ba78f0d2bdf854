__global__ void own_kernel(float* data, int count, float factor) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < count) data[i] *= factor;
}

extern "C" int own_twice(int value) { return 2 * value; }

extern "C" int own_scale(float* data, int count, float factor) {
  own_kernel<<<(count + 255) / 256, 256>>>(data, count, factor);
  return static_cast<int>(cudaGetLastError());
}
