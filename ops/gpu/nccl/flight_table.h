#ifndef TFRING_OPS_GPU_NCCL_FLIGHT_TABLE_H_
#define TFRING_OPS_GPU_NCCL_FLIGHT_TABLE_H_

#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "ops/gpu/cuda/device_progress.h"
#include "ops/runtime/interfaces/collective_backend.h"

namespace tfring {

// The collectives in flight. Each ends once, by the launch thread, by the waiter for the device, or
// by an abort that cannot wait for either. After a failure all end with it. `patience` as in
// DeviceProgress. Thread-safe; calls the sink with its lock held.
class FlightTable {
 public:
  FlightTable(CompletionSink sink, Duration patience)
      : sink_(std::move(sink)), progress_(patience) {}

  void Add(const Collective& collective);
  // Another component reports its end from now on. False if it has ended.
  bool Release(uint64_t sequence);
  void Launched(uint64_t sequence);
  // Has no effect if it has ended.
  void End(uint64_t sequence, Completion completion);

  // Makes all later ends use `failure`. The first failure counts, but `abort` replaces another.
  void Fail(Completion failure, bool abort);
  // Ends the collective although the device may still work on it. Nobody waits for the device, so
  // the memory of its calls is kept for ever.
  void Abandon(uint64_t sequence);
  // Ends all collectives in flight, and all later ones, with the failure. The launch thread or the
  // waiter for the device still holds the memory of the calls.
  void EndAll();

  bool flying() const;   // some collective has not ended
  int launched() const;  // launched and not ended
  int64_t progress() const { return progress_.value(); }
  std::optional<Completion> failure() const;

 private:
  struct Flight {
    std::vector<DeviceCall> calls;
    bool launched = false;
  };
  void EndLocked(uint64_t sequence, Completion completion);

  mutable std::mutex mutex_;  // guards the rest
  const CompletionSink sink_;
  std::map<uint64_t, Flight> flights_;
  std::optional<Completion> failure_;
  bool aborted_ = false;
  bool abandoned_ = false;
  int launched_ = 0;
  DeviceProgress progress_;
};

}  // namespace tfring

#endif  // TFRING_OPS_GPU_NCCL_FLIGHT_TABLE_H_
