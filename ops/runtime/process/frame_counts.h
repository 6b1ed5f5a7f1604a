#ifndef TFRING_OPS_RUNTIME_PROCESS_FRAME_COUNTS_H_
#define TFRING_OPS_RUNTIME_PROCESS_FRAME_COUNTS_H_

#include <atomic>
#include <cstdint>
#include <string>

#include "ops/runtime/protocol/message/wire.h"

namespace tfring {

// How many control frames went one way. Heartbeats are counted apart, because they follow the
// clock and the others follow what the program does. Thread-safe.
class FrameCounts {
 public:
  void Add(const std::string& frame) {
    const bool beats = !frame.empty() && static_cast<FrameType>(frame[0]) == FrameType::kHeartbeat;
    (beats ? heartbeats_ : frames_).fetch_add(1, std::memory_order_relaxed);
  }
  int64_t frames() const { return frames_.load(std::memory_order_relaxed); }
  int64_t heartbeats() const { return heartbeats_.load(std::memory_order_relaxed); }

 private:
  std::atomic<int64_t> frames_{0};
  std::atomic<int64_t> heartbeats_{0};
};

}  // namespace tfring

#endif  // TFRING_OPS_RUNTIME_PROCESS_FRAME_COUNTS_H_
