#ifndef TFRING_OPS_RUNTIME_BASE_TENSOR_BUFFER_H_
#define TFRING_OPS_RUNTIME_BASE_TENSOR_BUFFER_H_

#include <cstdint>
#include <vector>

namespace tfring {

// One tensor of a collective on this rank. `input` and `output` may be the same address (a
// forwarded buffer); they never overlap otherwise. The memory stays valid until the completion. It
// is CPU memory unless a DeviceCall says otherwise.
struct TensorBuffer {
  const void* input = nullptr;
  void* output = nullptr;
  int64_t input_bytes = 0;
  int64_t output_bytes = 0;
};

inline int64_t InputBytes(const std::vector<TensorBuffer>& buffers) {
  int64_t bytes = 0;
  for (const TensorBuffer& buffer : buffers) bytes += buffer.input_bytes;
  return bytes;
}

inline int64_t OutputBytes(const std::vector<TensorBuffer>& buffers) {
  int64_t bytes = 0;
  for (const TensorBuffer& buffer : buffers) bytes += buffer.output_bytes;
  return bytes;
}

}  // namespace tfring

#endif  // TFRING_OPS_RUNTIME_BASE_TENSOR_BUFFER_H_
