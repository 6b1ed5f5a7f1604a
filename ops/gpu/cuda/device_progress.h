#ifndef TFRING_OPS_GPU_CUDA_DEVICE_PROGRESS_H_
#define TFRING_OPS_GPU_CUDA_DEVICE_PROGRESS_H_

#include <algorithm>
#include <cstdint>
#include <mutex>

#include "ops/runtime/base/clock.h"
#include "ops/runtime/base/types.h"

namespace tfring {

// CollectiveBackend::progress of a backend on devices. The value grows with each step. While
// collectives are open it also grows with the time since the last step, for at most `patience`: a
// device that first runs earlier work of the framework, here or on a peer, looks like a hanging
// one. Thread-safe.
class DeviceProgress {
 public:
  explicit DeviceProgress(Duration patience) : patience_(patience) {}

  void Begin() { Count(1); }  // a collective begins
  void Step() { Count(0); }
  void End() { Count(-1); }

  int64_t value() const {
    std::lock_guard<std::mutex> lock(mutex_);
    const Duration quiet = open_ > 0 ? std::min(MonotonicNow() - last_, patience_) : 0;
    return steps_ * (patience_ / kTick + 1) + quiet / kTick;
  }

 private:
  static constexpr Duration kTick = 100 * kMillisecond;

  void Count(int opened) {
    std::lock_guard<std::mutex> lock(mutex_);
    open_ += opened;
    ++steps_;
    last_ = MonotonicNow();
  }

  const Duration patience_;
  mutable std::mutex mutex_;  // guards the rest
  int open_ = 0;
  int64_t steps_ = 0;
  TimePoint last_ = 0;
};

}  // namespace tfring

#endif  // TFRING_OPS_GPU_CUDA_DEVICE_PROGRESS_H_
