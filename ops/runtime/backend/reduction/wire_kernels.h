#ifndef TFRING_OPS_RUNTIME_BACKEND_REDUCTION_WIRE_KERNELS_H_
#define TFRING_OPS_RUNTIME_BACKEND_REDUCTION_WIRE_KERNELS_H_

#include <cstdint>

namespace tfring {

// Between float32 and one 16-bit float: to the nearest, ties to even; what is too large becomes
// infinite, NaN stays NaN. Addresses need no alignment, counts are elements. Thread-safe.
struct WireKernels {
  using ConvertFn = void (*)(void* dst, const void* src, int64_t count);

  ConvertFn narrow = nullptr;  // dst: 16 bits, src: float32
  ConvertFn widen = nullptr;   // dst: float32, src: 16 bits
  // Both are float32, and may be the same memory: what narrow and then widen would give.
  ConvertFn round = nullptr;
};

}  // namespace tfring

#endif  // TFRING_OPS_RUNTIME_BACKEND_REDUCTION_WIRE_KERNELS_H_
