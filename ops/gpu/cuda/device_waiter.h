#ifndef TFRING_OPS_GPU_CUDA_DEVICE_WAITER_H_
#define TFRING_OPS_GPU_CUDA_DEVICE_WAITER_H_

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
#include <vector>

#include "ops/gpu/cuda/device.h"
#include "ops/runtime/base/status.h"
#include "ops/runtime/base/types.h"

namespace tfring {

// How a wait for a device has ended. If `in_use`, the device may still read and write the memory of
// the work, and nobody may use it again.
struct DeviceOutcome {
  Status status;
  bool in_use = false;
};

// Calls functions when work on streams of a device is done; no thread blocks on the device. Each
// stream has a side stream, which waits for the same event and then runs a host function that wakes
// our thread, so the stream itself is not held up. Host functions do not run after a sticky error
// and may be lost, so the thread also polls every 100 ms while a wait is open. A sticky error ends
// all waits. Thread-safe. The destructor gives open waits 5 s, then ends them as EndBy does.
class DeviceWaiter {
 public:
  using Then = std::function<void(const DeviceOutcome&)>;

  // Starts the thread. Throws std::system_error if the system cannot start one.
  explicit DeviceWaiter(std::shared_ptr<CudaDevice> device);
  ~DeviceWaiter();
  DeviceWaiter(const DeviceWaiter&) = delete;
  DeviceWaiter& operator=(const DeviceWaiter&) = delete;

  // Calls `then` when the present work on `stream` is done: exactly once, on the waiter's thread,
  // even if this call fails. `then` must not block. Use each stream from one thread at a time. The
  // device uses the memory `keeps`. It is released before `then`, or when the device has finished
  // with it, even after this waiter's end.
  void After(CuStream stream, Then then, std::shared_ptr<void> keeps = nullptr);
  // As above, for an event that was just recorded on `stream`.
  void After(CuStream stream, std::shared_ptr<CudaEvent> event, Then then);

  // Ends waits that are open at `deadline`, and later ones, with `why` and DeviceOutcome::in_use.
  // Only the first call has an effect.
  void EndBy(TimePoint deadline, Status why);

  // Returns how often the thread woke from sleep.
  int64_t wakeups() const { return wakeups_.load(std::memory_order_relaxed); }

 private:
  struct Wait {
    std::shared_ptr<CudaEvent> event;  // null: not recorded, because of `failure`
    Status failure;
    Then then;
    std::shared_ptr<void> keeps;
  };
  struct Lane {
    CuStream side = nullptr;
    std::deque<Wait> waits;  // in the order in which their events happen
  };
  struct Ended {
    Wait wait;
    DeviceOutcome outcome;
  };
  // Shared with the host functions, which may run after the waiter's end.
  struct Wakeup {
    std::mutex mutex;  // guards the rest
    std::condition_variable changed;
    bool set = false;
    int64_t expected = 0;  // launched host functions that have not run
  };

  void Add(CuStream stream, Wait wait);
  void Wake();
  static void OnDevice(void* wakeup);
  Status LaunchWakeup(CuStream stream, const CudaEvent& event);
  Result<CuStream> SideOf(CuStream stream);
  void Loop();
  void Sleep();
  std::vector<Ended> Collect();
  bool Finished(const Wait& wait, DeviceOutcome* outcome);

  const std::shared_ptr<CudaDevice> device_;
  const std::shared_ptr<Wakeup> wakeup_;
  std::atomic<int64_t> wakeups_{0};

  std::mutex mutex_;  // guards the four below
  std::map<CuStream, Lane> lanes_;
  int64_t open_ = 0;
  std::optional<std::pair<TimePoint, Status>> limit_;
  bool stopping_ = false;

  std::thread thread_;  // last, because the thread uses the rest
};

}  // namespace tfring

#endif  // TFRING_OPS_GPU_CUDA_DEVICE_WAITER_H_
