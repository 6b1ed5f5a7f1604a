#ifndef TFRING_OPS_GPU_STAGING_CPU_COPY_H_
#define TFRING_OPS_GPU_STAGING_CPU_COPY_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "ops/runtime/interfaces/collective_backend.h"

namespace tfring {

// One tensor's device memory, and its place in the CPU memory of the collective.
struct StagedCopy {
  size_t call = 0;  // index in Collective::device_calls
  void* device = nullptr;
  int64_t at = 0;
  int64_t bytes = 0;
};

// The place of a tensor in the CPU memory of the collective; -1: none.
struct StagedBuffer {
  size_t buffer = 0;  // index in Collective::buffers
  int64_t input = -1;
  int64_t output = -1;
};

// How a collective with tensors in device memory runs on the CPU: the copies before and after.
// Copies no input that only the root needs, and nothing of 0 bytes.
struct StagingLayout {
  int64_t bytes = 0;  // of CPU memory
  std::vector<StagedCopy> in;
  std::vector<StagedCopy> out;
  std::vector<StagedBuffer> buffers;
};

StagingLayout LayOut(const Collective& collective);

// Turns the collective into one on CPU memory, at `memory` with layout.bytes bytes. It has no
// device calls afterwards.
void MoveToCpu(const StagingLayout& layout, char* memory, Collective* collective);

}  // namespace tfring

#endif  // TFRING_OPS_GPU_STAGING_CPU_COPY_H_
