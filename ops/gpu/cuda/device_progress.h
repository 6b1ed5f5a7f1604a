#ifndef TFRING_OPS_GPU_CUDA_DEVICE_PROGRESS_H_
#define TFRING_OPS_GPU_CUDA_DEVICE_PROGRESS_H_

#include <algorithm>
#include <cstdint>
#include <mutex>

#include "ops/runtime/base/clock.h"
#include "ops/runtime/base/types.h"

namespace tfring {

// What a backend that works on devices says as CollectiveBackend::progress. Grows with each step
// and, while collectives are open, with the time since the last step, for at most `patience`: a
// device shows nothing while it computes what the framework gave it before, here or on a peer, and
// nothing when it hangs. Thread-safe.
class DeviceProgress {
 public:
  explicit DeviceProgress(Duration patience) : patience_(patience) {}

  void Begin() { Count(1); }  // one more collective is open
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
