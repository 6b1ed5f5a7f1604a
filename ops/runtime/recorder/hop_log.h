#ifndef TFRING_OPS_RUNTIME_RECORDER_HOP_LOG_H_
#define TFRING_OPS_RUNTIME_RECORDER_HOP_LOG_H_

#include <atomic>
#include <cstddef>
#include <mutex>
#include <vector>

#include "ops/runtime/interfaces/hops.h"

namespace tfring {

// The hops of this rank since they were last taken, while somebody takes them: a timeline does. Not
// in the record, because a large plan has hundreds. Thread-safe.
class HopLog final : public HopSink {
 public:
  // What comes beyond that before it is taken is lost.
  static constexpr size_t kMost = 1 << 16;

  // Null while nobody takes hops: there is nothing to note then.
  HopSink* sink() { return on_.load(std::memory_order_relaxed) ? this : nullptr; }
  void Add(const Hop& hop) override;

  // Returns what has come. The first call switches this on, one without `go_on` off.
  std::vector<Hop> Take(bool go_on);

 private:
  std::atomic<bool> on_{false};
  std::mutex mutex_;       // guards hops_
  std::vector<Hop> hops_;  // has memory for kMost while this is on
};

}  // namespace tfring

#endif  // TFRING_OPS_RUNTIME_RECORDER_HOP_LOG_H_
