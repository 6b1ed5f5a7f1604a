#ifndef TFRING_OPS_GPU_CUDA_KEPT_MEMORY_H_
#define TFRING_OPS_GPU_CUDA_KEPT_MEMORY_H_

#include <memory>

#include "ops/gpu/cuda/device.h"

namespace tfring {

// Keeps `memory` alive for a device that missed its deadline and may still use it. Releases it when
// `event` has completed or the device is broken; a thread polls every 100 ms while memory is kept.
// Without an event, keeps it until the process ends. If the thread cannot start, the next call
// tries again. The first call writes an error to the log.
void KeepUntil(std::shared_ptr<CudaEvent> event, std::shared_ptr<void> memory);

// Keeps `kept` until the process ends.
void KeepForever(std::shared_ptr<void> kept);

}  // namespace tfring

#endif  // TFRING_OPS_GPU_CUDA_KEPT_MEMORY_H_
