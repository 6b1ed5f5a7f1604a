#ifndef TFRING_OPS_RUNTIME_BACKEND_CPU_BACKEND_H_
#define TFRING_OPS_RUNTIME_BACKEND_CPU_BACKEND_H_

#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "ops/runtime/backend/algorithms/select.h"
#include "ops/runtime/backend/arena/arena_runner.h"
#include "ops/runtime/backend/collective_queue.h"
#include "ops/runtime/backend/schedule/runner.h"
#include "ops/runtime/backend/schedule/step_executor.h"
#include "ops/runtime/base/config.h"
#include "ops/runtime/interfaces/collective_backend.h"
#include "ops/runtime/interfaces/data_transport.h"

namespace tfring {

// Runs collectives of CPU memory over a DataTransport. For each one it selects an algorithm, which
// makes this rank's schedule, and runs the schedule. Many collectives within a host go through the
// arenas of its ranks instead. Owns the transport; only the thread that runs a collective uses it.
// Threads and lifetime as in CollectiveBackend. The destructor ends the remaining collectives and
// closes the transport. It waits at most 2 s for the peers to do the same, and not at all after an
// abort with Unavailable.
class CpuBackend final : public CollectiveBackend {
 public:
  // `hosts`, by rank, are named in messages, and tell which members share a host. `pool` as for
  // CollectiveQueue.
  CpuBackend(Rank self, const Config& config, std::unique_ptr<DataTransport> transport,
             CompletionSink sink, std::vector<std::string> hosts = {}, ThreadPool* pool = nullptr);
  ~CpuBackend() override;

  const char* name() const override { return "cpu"; }
  void Submit(Collective collective) override { queue_->Submit(std::move(collective)); }
  void Abort(Status why) override;
  int64_t progress() const override;
  int64_t bytes_sent() const override;
  int64_t memory() const override;
  int64_t wakeups() const override;

 private:
  std::optional<Completion> Run(const Collective& collective, TimePoint until);
  Result<bool> Execute(const Collective& collective, TimePoint until, Completion* completion);
  void Begin(const Collective& collective);
  Status CheckEntry(const Collective& collective, bool* recalled);
  Status RunSchedule(const Collective& collective);
  HostLayout LayoutOf(const std::vector<Rank>& members) const;
  Status OnQuiet(ProgressWatch::Verdict verdict, Duration quiet);

  const Rank self_;
  const Config config_;
  const std::unique_ptr<DataTransport> transport_;
  const std::vector<std::string> hosts_;
  const std::vector<int> host_numbers_;  // by rank; empty if all are on one host, or nobody knows
  std::atomic<bool> poison_{false};
  // Used by the thread that runs a collective.
  ScheduleRunner runner_;
  StepExecutor executor_;
  std::optional<ArenaRunner> arena_;  // where ranks of this host share memory
  bool in_arena_ = false;             // the current collective enters its arenas
  bool moves_in_arena_ = false;       // its data goes through them
  const Collective* running_ = nullptr;
  bool begun_ = false;  // running_ has begun in its arena, and continues with the next Run
  std::vector<BadValues> bad_values_;  // in this rank's input of running_

  std::atomic<int64_t> scratch_{0};  // bytes that the executor keeps
  std::atomic<bool> peer_lost_{false};
  std::unique_ptr<CollectiveQueue> queue_;
};

}  // namespace tfring

#endif  // TFRING_OPS_RUNTIME_BACKEND_CPU_BACKEND_H_
