#ifndef TFRING_TESTS_CC_PROCESS_HELD_BACKEND_H_
#define TFRING_TESTS_CC_PROCESS_HELD_BACKEND_H_

#include <atomic>
#include <cstdint>
#include <mutex>
#include <utility>
#include <vector>

#include "ops/runtime/interfaces/collective_backend.h"

namespace tfring {

// Holds its collectives until it is told to let them end, or is aborted.
class HeldBackend final : public CollectiveBackend {
 public:
  explicit HeldBackend(CompletionSink sink) : sink_(std::move(sink)) {}
  const char* name() const override { return "held"; }
  void Submit(Collective collective) override {
    std::lock_guard<std::mutex> lock(mutex_);
    held_.push_back(collective.sequence);
    ++submitted_;
  }
  void Abort(Status why) override { End(std::move(why)); }
  int64_t bytes_sent() const override { return 0; }
  int64_t wakeups() const override { return 0; }

  // Since the beginning.
  int submitted() const { return submitted_; }
  void End(const Status& status) {
    std::vector<uint64_t> ending;
    {
      std::lock_guard<std::mutex> lock(mutex_);
      ending.swap(held_);
    }
    for (uint64_t sequence : ending) sink_({sequence, status, kNoRank});
  }

 private:
  const CompletionSink sink_;
  std::mutex mutex_;  // guards held_
  std::vector<uint64_t> held_;
  std::atomic<int> submitted_{0};
};

}  // namespace tfring

#endif  // TFRING_TESTS_CC_PROCESS_HELD_BACKEND_H_
