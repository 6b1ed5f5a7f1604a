#ifndef TFRING_OPS_RUNTIME_BACKEND_LOCAL_BACKEND_H_
#define TFRING_OPS_RUNTIME_BACKEND_LOCAL_BACKEND_H_

#include <atomic>

#include "ops/runtime/backend/collective_queue.h"
#include "ops/runtime/base/config.h"
#include "ops/runtime/interfaces/collective_backend.h"

namespace tfring {

// Collectives of a world of one rank, which copy the input to the output and scale it. Threads and
// lifetime as CollectiveBackend says.
class LocalBackend final : public CollectiveBackend {
 public:
  // `pool` as for CollectiveQueue.
  LocalBackend(const Config& config, CompletionSink sink, ThreadPool* pool = nullptr);
  ~LocalBackend() override;

  const char* name() const override { return "local"; }
  void Submit(Collective collective) override { queue_.Submit(std::move(collective)); }
  void Abort(Status why) override { queue_.Abort(std::move(why)); }
  int64_t bytes_sent() const override { return 0; }
  int64_t wakeups() const override { return queue_.wakeups(); }

 private:
  std::atomic<bool> poison_{false};
  CollectiveQueue queue_;  // last, because it uses poison_
};

}  // namespace tfring

#endif  // TFRING_OPS_RUNTIME_BACKEND_LOCAL_BACKEND_H_
