#ifndef TFRING_OPS_GPU_CUDA_KEPT_MEMORY_H_
#define TFRING_OPS_GPU_CUDA_KEPT_MEMORY_H_

#include <memory>

#include "ops/gpu/cuda/device.h"

namespace tfring {

// What a device may still use after the time that was left to it: lets go of `memory` once `event`
// has happened or the device is broken. Asks every 100 ms, on a thread that is there while
// something is kept. Without an event, and without a thread, it is kept until the process ends.
// Says in the log, once, that memory is kept.
void KeepUntil(std::shared_ptr<CudaEvent> event, std::shared_ptr<void> memory);

// Keeps it until the process ends.
void KeepForever(std::shared_ptr<void> kept);

}  // namespace tfring

#endif  // TFRING_OPS_GPU_CUDA_KEPT_MEMORY_H_
