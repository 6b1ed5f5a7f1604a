#ifndef TFRING_OPS_GPU_STAGING_CPU_COPY_H_
#define TFRING_OPS_GPU_STAGING_CPU_COPY_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "ops/runtime/interfaces/collective_backend.h"

namespace tfring {

// One tensor's memory on the device, and where it is in the CPU memory of the collective.
struct StagedCopy {
  size_t call = 0;  // index in Collective::device_calls
  void* device = nullptr;
  int64_t at = 0;
  int64_t bytes = 0;
};

// Where a tensor of the collective is in its CPU memory; -1: nowhere.
struct StagedBuffer {
  size_t buffer = 0;  // index in Collective::buffers
  int64_t input = -1;
  int64_t output = -1;
};

// How a collective with tensors in device memory is run on the CPU: what is copied there before,
// and what is copied back. Nothing else is: no input that only the root needs, nothing of 0 bytes.
struct StagingLayout {
  int64_t bytes = 0;  // of CPU memory
  std::vector<StagedCopy> in;
  std::vector<StagedCopy> out;
  std::vector<StagedBuffer> buffers;
};

StagingLayout LayOut(const Collective& collective);

// Turns the collective into one of CPU memory, at `memory` of layout.bytes bytes. It has no device
// calls afterwards.
void MoveToCpu(const StagingLayout& layout, char* memory, Collective* collective);

}  // namespace tfring

#endif  // TFRING_OPS_GPU_STAGING_CPU_COPY_H_
