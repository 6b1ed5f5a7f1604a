#ifndef TFRING_OPS_GPU_STAGING_STAGING_H_
#define TFRING_OPS_GPU_STAGING_STAGING_H_

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "ops/gpu/cuda/device_progress.h"
#include "ops/gpu/cuda/device_waiter.h"
#include "ops/gpu/cuda/pinned_memory.h"
#include "ops/gpu/staging/cpu_copy.h"
#include "ops/runtime/base/config.h"
#include "ops/runtime/interfaces/collective_backend.h"
#include "ops/runtime/interfaces/devices.h"

namespace tfring {

struct StagingOptions {
  // Limit of CPU memory in use. A collective that needs more runs when it is the first.
  int64_t most_bytes = int64_t{1} << 30;
  Duration patience = Config().heartbeat_timeout;  // see DeviceProgress
};

// Copies the inputs to pinned memory, has the CPU backend run the collective there, and copies the
// outputs back. The thread puts copies on our streams, one for each direction, and never waits for
// a device. A DeviceWaiter tells when the copies are done.
class Staging final : public DeviceStaging {
 public:
  // Starts the thread. Throws std::system_error if the system cannot start one.
  Staging(CpuQueue cpu, CompletionSink sink, const StagingOptions& options = {});
  ~Staging() override;
  Staging(const Staging&) = delete;
  Staging& operator=(const Staging&) = delete;

  void Submit(uint64_t place, Collective collective) override;
  void Abort(const Status& why) override;
  int64_t progress() const override { return progress_.value(); }
  int64_t wakeups() const override;

 private:
  // The streams and the waiter of one device.
  struct Lane {
    Lane(std::shared_ptr<CudaDevice> of, int64_t kept_bytes);
    Status Start();

    const std::shared_ptr<CudaDevice> device;
    CuStream in = nullptr;   // from the device to the CPU
    CuStream out = nullptr;  // back
    const std::shared_ptr<PinnedMemory> pinned;
    DeviceWaiter waiter;
  };
  using Direction = CuStream Lane::*;

  // A collective in flight. One thread at a time uses it, except the last three fields.
  struct Job {
    uint64_t place = 0;
    uint64_t sequence = 0;
    Collective collective;
    std::string who;  // "rank 1: allreduce of 'x'"
    std::vector<DeviceCall> calls;
    StagingLayout layout;
    std::shared_ptr<void> memory;       // on the CPU
    std::vector<BadValues> bad_values;  // for the first completion
    std::mutex mutex;                   // guards the two below
    Status status;                      // the first error
    int waits = 0;                      // lanes that have not answered
  };
  using JobPtr = std::shared_ptr<Job>;
  using Then = void (Staging::*)(const JobPtr&);

  void StartWaiting();
  void Forget(const JobPtr& job);
  void Begin(const JobPtr& job);
  void OnCpu(const JobPtr& job);
  void OnRun(const JobPtr& job, Completion completion);
  void Finish(const JobPtr& job);
  void End(const JobPtr& job);
  void Report(const JobPtr& job, Completion completion);

  void Try(const JobPtr& job, const std::function<Status()>& copy);
  Status CopyIn(const JobPtr& job, std::vector<Lane*>* used);
  Status CopyOut(const JobPtr& job, std::vector<Lane*>* used);
  void AfterAll(const JobPtr& job, const std::vector<Lane*>& lanes, Direction stream, Then then);
  Result<Lane*> LaneOf(const Job& job, size_t call);

  void Post(std::function<void()> task);
  void Loop();
  Status aborted() const;
  void Explain(Job* job) const;

  const CpuQueue cpu_;
  const CompletionSink sink_;
  const StagingOptions options_;
  DeviceProgress progress_;
  std::atomic<int64_t> wakeups_{0};

  // Staging thread only.
  std::map<uint64_t, JobPtr> waiting_;   // for CPU memory, by place
  std::map<uint64_t, int64_t> started_;  // bytes by place

  mutable std::mutex mutex_;  // guards the five below
  std::condition_variable changed_;
  std::deque<std::function<void()>> tasks_;
  bool stopping_ = false;
  Status aborted_;
  std::optional<TimePoint> limit_;  // for copies after Abort
  std::map<CudaDevice*, std::unique_ptr<Lane>> lanes_;

  std::thread thread_;  // last, because the thread uses the rest
};

}  // namespace tfring

#endif  // TFRING_OPS_GPU_STAGING_STAGING_H_
