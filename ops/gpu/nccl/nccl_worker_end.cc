// How an NcclWorker ends: after a failure, and in an orderly shutdown.
#include <algorithm>
#include <chrono>
#include <functional>
#include <utility>

#include "ops/gpu/cuda/expendable_thread.h"
#include "ops/gpu/cuda/kept_memory.h"
#include "ops/gpu/nccl/nccl_worker.h"
#include "ops/runtime/base/clock.h"
#include "ops/runtime/base/log.h"

namespace tfring {
namespace {

constexpr Duration kParkPatience = kSecond;

std::chrono::steady_clock::time_point At(TimePoint time) {
  return std::chrono::steady_clock::time_point(std::chrono::nanoseconds(time));
}

}  // namespace

void NcclWorker::Abort(Status why) {
  // A shutdown with nothing in flight: Close ends the communicators in order.
  const bool idle = why.code() == StatusCode::kCancelled && !table_.flying();
  Completion failure;
  failure.status = std::move(why);
  if (idle) return table_.Fail(std::move(failure), true);
  Fail(std::move(failure), true);
}

// The first failure stops the device; an abort only replaces its name.
void NcclWorker::Fail(Completion failure, bool abort) {
  const Status why = failure.status;
  table_.Fail(std::move(failure), abort);
  if (stop_.exchange(true, std::memory_order_acq_rel)) return;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (waiter_ != nullptr) waiter_->EndBy(MonotonicNow() + options_.abort_limit, why);
    device_stops_ = StartExpendable([self = shared_from_this()] { self->StopDevice(); }).ok();
    if (device_stops_) {
      changed_.notify_all();
      return;
    }
  }
  changed_.notify_all();
  table_.EndAll();
}

// Runs on a separate thread, because these NCCL calls may take any time.
void NcclWorker::StopDevice() {
  const TimePoint deadline = MonotonicNow() + options_.abort_limit;
  {
    std::unique_lock<std::mutex> lock(mutex_);
    // If the launch thread hangs in NCCL, only an abort may free it.
    changed_.wait_until(lock, At(MonotonicNow() + kParkPatience),
                        [this] { return parked_ || !started_; });
  }
  AbortCommunicators(deadline);
  std::unique_lock<std::mutex> lock(mutex_);
  const bool through =
      changed_.wait_until(lock, At(deadline), [this] { return parked_ && queue_.empty(); });
  lock.unlock();
  // The waiter ends launched collectives, the launch thread the others.
  if (!through) table_.EndAll();
  lock.lock();
  device_stops_ = false;
  changed_.notify_all();
}

void NcclWorker::AbortCommunicators(TimePoint deadline) {
  std::vector<std::shared_ptr<NcclCommunicator>> communicators;
  std::shared_ptr<CudaDevice> device;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    communicators = communicators_;
    device = device_;
  }
  AbortAll(communicators, device, deadline - MonotonicNow());
}

// Aborts all at once: an abort waits until the stream reaches the last kernel of its communicator.
// Kernels of another communicator may come first and spin until that one is aborted.
void NcclWorker::AbortAll(const std::vector<std::shared_ptr<NcclCommunicator>>& communicators,
                          const std::shared_ptr<CudaDevice>& device, Duration limit) {
  std::vector<std::function<void()>> aborts;
  for (const auto& communicator : communicators) {
    aborts.emplace_back([communicator, device] {
      const ScopedContext current(device.get());
      communicator->Abort();
    });
  }
  const Status ended = RunAllWithin(limit, "ncclCommAbort", std::move(aborts));
  if (!ended.ok()) Log(LogLevel::kWarning, ended.message() + "; it is left alone");
}

// Runs on the launch thread. All members do this at about the same time.
void NcclWorker::DestroyCommunicators() {
  const TimePoint deadline = MonotonicNow() + options_.destroy_limit;
  for (const auto& communicator : communicators_) {
    const ScopedContext current(device_.get());
    if (!communicator->Destroy(deadline).ok()) communicator->Abort();
  }
}

// Runs on the launch thread when all work of the group is launched. NCCL waits for the group's last
// collective and for the other members, which do this at the same place in the order. So the work
// that each member waits for comes earlier on the others. After a failure the communicator is
// aborted with the others.
Status NcclWorker::Destroy(Group* group) {
  const std::shared_ptr<NcclCommunicator> communicator = std::move(group->communicator);
  if (communicator == nullptr || stopping()) return OkStatus();
  const ScopedContext current(device_.get());
  TFRING_RETURN_IF_ERROR(communicator->Destroy(kNever));
  Forget(communicator);
  return OkStatus();
}

void NcclWorker::Forget(const std::shared_ptr<NcclCommunicator>& communicator) {
  std::lock_guard<std::mutex> lock(mutex_);
  const auto at = std::find(communicators_.begin(), communicators_.end(), communicator);
  if (at != communicators_.end()) communicators_.erase(at);
}

void NcclWorker::Close() {
  if (table_.flying()) Abort(Cancelled("the backend was closed"));
  {
    std::lock_guard<std::mutex> lock(mutex_);
    closing_ = true;
  }
  changed_.notify_all();
  const Duration limit = options_.abort_limit + options_.destroy_limit + kSecond;
  bool ended = false;
  std::unique_ptr<DeviceWaiter> waiter;
  std::deque<Item> dropped;  // releases its places without the lock
  {
    std::unique_lock<std::mutex> lock(mutex_);
    // Aborts end first: a process that exits meanwhile would run destructors beside them.
    ended = changed_.wait_until(lock, At(MonotonicNow() + limit),
                                [this] { return (ended_ || !started_) && !device_stops_; });
    if (ended) waiter = std::move(waiter_);
    dropped.swap(queue_);
  }
  dropped.clear();
  waiter.reset();  // ends the device's remaining work
  table_.EndAll();
  if (ended) return;
  LeaveAlone();
  Log(LogLevel::kWarning, "NCCL did not return; its thread is left alone");
  // The waiter's own thread must not hold the last reference.
  KeepForever(shared_from_this());
}

int64_t NcclWorker::wakeups() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return wakeups_.load(std::memory_order_relaxed) + (waiter_ != nullptr ? waiter_->wakeups() : 0);
}

}  // namespace tfring
