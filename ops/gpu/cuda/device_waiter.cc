#include "ops/gpu/cuda/device_waiter.h"

#include <pthread.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "ops/gpu/cuda/kept_memory.h"
#include "ops/runtime/base/clock.h"
#include "ops/runtime/base/signals.h"

namespace tfring {
namespace {

constexpr Duration kWatchdog = 100 * kMillisecond;
constexpr Duration kLastLimit = 5 * kSecond;

}  // namespace

DeviceWaiter::DeviceWaiter(std::shared_ptr<CudaDevice> device)
    : device_(std::move(device)),
      wakeup_(std::make_shared<Wakeup>()),
      thread_(StartThread([this] { Loop(); })) {}

DeviceWaiter::~DeviceWaiter() {
  EndBy(MonotonicNow() + kLastLimit, Cancelled("the GPU did not finish before the runtime ended"));
  {
    std::lock_guard<std::mutex> lock(mutex_);
    stopping_ = true;
  }
  Wake();
  thread_.join();
  bool all_ran = false;
  {
    std::lock_guard<std::mutex> lock(wakeup_->mutex);
    all_ran = wakeup_->expected == 0;
  }
  if (all_ran) return;
  // A host function may run after the work it waits for, or never.
  if (device_->broken().ok()) KeepForever(device_);
  KeepForever(wakeup_);
}

void DeviceWaiter::After(CuStream stream, Then then, std::shared_ptr<void> keeps) {
  Wait wait;
  wait.then = std::move(then);
  wait.keeps = std::move(keeps);
  Result<std::shared_ptr<CudaEvent>> event = device_->Record(stream);
  wait.failure = event.status();
  if (event.ok()) wait.event = std::move(*event);
  Add(stream, std::move(wait));
}

void DeviceWaiter::After(CuStream stream, std::shared_ptr<CudaEvent> event, Then then) {
  Add(stream, Wait{std::move(event), OkStatus(), std::move(then), nullptr});
}

void DeviceWaiter::Add(CuStream stream, Wait wait) {
  const std::shared_ptr<CudaEvent> event = wait.event;
  bool first = false;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    lanes_[stream].waits.push_back(std::move(wait));
    first = ++open_ == 1;
  }
  const bool launched = event != nullptr && LaunchWakeup(stream, *event).ok();
  // An idle thread sleeps without a limit. Without a wake-up it must poll now.
  if (first || !launched) Wake();
}

Result<CuStream> DeviceWaiter::SideOf(CuStream stream) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (lanes_[stream].side != nullptr) return lanes_[stream].side;
  }
  Result<CuStream> side = device_->MakeStream();
  if (!side.ok()) return side;
  std::lock_guard<std::mutex> lock(mutex_);
  lanes_[stream].side = *side;
  return side;
}

// A failure does not end the wait: the watchdog polls the event.
Status DeviceWaiter::LaunchWakeup(CuStream stream, const CudaEvent& event) {
  Result<CuStream> side = SideOf(stream);
  if (!side.ok()) return side.status();
  const ScopedContext current(device_.get());
  TFRING_RETURN_IF_ERROR(current.status());
  TFRING_RETURN_IF_ERROR(device_->Check(device_->cu().StreamWaitEvent(*side, event.get(), 0),
                                        "waiting on a second stream"));
  {
    std::lock_guard<std::mutex> lock(wakeup_->mutex);
    ++wakeup_->expected;
  }
  const Status launched = device_->Check(
      device_->cu().LaunchHostFunc(*side, &OnDevice, wakeup_.get()), "launching a host function");
  if (launched.ok()) return launched;
  std::lock_guard<std::mutex> lock(wakeup_->mutex);
  --wakeup_->expected;
  return launched;
}

// Runs on a thread of the driver, which must not call CUDA.
void DeviceWaiter::OnDevice(void* wakeup) {
  Wakeup* const self = static_cast<Wakeup*>(wakeup);
  std::lock_guard<std::mutex> lock(self->mutex);
  --self->expected;
  self->set = true;
  self->changed.notify_one();
}

void DeviceWaiter::Wake() {
  std::lock_guard<std::mutex> lock(wakeup_->mutex);
  wakeup_->set = true;
  wakeup_->changed.notify_one();
}

void DeviceWaiter::EndBy(TimePoint deadline, Status why) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (!limit_) limit_.emplace(deadline, std::move(why));
  }
  Wake();
}

void DeviceWaiter::Sleep() {
  bool open = false;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    open = open_ > 0;
  }
  std::unique_lock<std::mutex> lock(wakeup_->mutex);
  const auto set = [this] { return wakeup_->set; };
  if (open) {
    wakeup_->changed.wait_for(lock, std::chrono::nanoseconds(kWatchdog), set);
  } else {
    wakeup_->changed.wait(lock, set);
  }
  wakeup_->set = false;
  wakeups_.fetch_add(1, std::memory_order_relaxed);
}

bool DeviceWaiter::Finished(const Wait& wait, DeviceOutcome* outcome) {
  const Status broken = device_->broken();
  if (!broken.ok()) {
    *outcome = {broken, false};
    return true;
  }
  if (!wait.failure.ok()) {
    // The device may still run the work that came before the failure.
    *outcome = {wait.failure, true};
    return true;
  }
  CuResult result = kCudaSuccess;
  {
    const ScopedContext current(device_.get());
    result = current.status().ok() ? device_->cu().EventQuery(wait.event->get()) : kCudaNotReady;
  }
  if (result != kCudaNotReady) {
    const Status status = device_->Check(result, "work on the GPU");
    *outcome = {status, !status.ok() && device_->broken().ok()};
    return true;
  }
  std::lock_guard<std::mutex> lock(mutex_);
  if (!limit_ || MonotonicNow() < limit_->first) return false;
  *outcome = {limit_->second, true};
  return true;
}

// Only this thread removes waits, so the first wait of each lane stays in place while the thread
// asks the driver without the lock.
std::vector<DeviceWaiter::Ended> DeviceWaiter::Collect() {
  std::vector<CuStream> streams;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    for (const auto& [stream, lane] : lanes_) streams.push_back(stream);
  }
  std::vector<Ended> ended;
  for (CuStream stream : streams) {
    while (true) {
      const Wait* first = nullptr;
      {
        std::lock_guard<std::mutex> lock(mutex_);
        std::deque<Wait>& waits = lanes_[stream].waits;
        if (!waits.empty()) first = &waits.front();
      }
      DeviceOutcome outcome;
      if (first == nullptr || !Finished(*first, &outcome)) break;
      std::lock_guard<std::mutex> lock(mutex_);
      std::deque<Wait>& waits = lanes_[stream].waits;
      ended.push_back({std::move(waits.front()), std::move(outcome)});
      waits.pop_front();
      --open_;
    }
  }
  return ended;
}

void DeviceWaiter::Loop() {
  pthread_setname_np(pthread_self(), "tfring-device");
  while (true) {
    Sleep();
    for (Ended& end : Collect()) {
      // The device may still reach the event, so the event must not be reused yet.
      if (end.outcome.in_use) KeepUntil(std::move(end.wait.event), std::move(end.wait.keeps));
      end.wait.keeps.reset();
      end.wait.then(end.outcome);
    }
    std::lock_guard<std::mutex> lock(mutex_);
    if (stopping_ && open_ == 0) return;
  }
}

}  // namespace tfring
