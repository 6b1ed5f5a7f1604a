#include "tests/fakes/cuda/stream.h"

#include <thread>
#include <utility>

#include "tests/fakes/cuda/device.h"
#include "tests/fakes/cuda/settings.h"

namespace fake_cuda {
namespace {

// How often a sleeping stream looks whether it may go on.
constexpr std::chrono::milliseconds kLook{2};

// A number in [0, 1) that depends on all arguments and on nothing else (splitmix64).
double Random(uint64_t seed, uint64_t stream, uint64_t operation) {
  uint64_t z = seed * 0x9E3779B97F4A7C15u + stream * 0xBF58476D1CE4E5B9u + operation;
  for (int round = 0; round < 2; ++round) {
    z += 0x9E3779B97F4A7C15u;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    z ^= z >> 31;
  }
  return static_cast<double>(z >> 11) / static_cast<double>(uint64_t{1} << 53);
}

}  // namespace

void Mark::Set() {
  const std::lock_guard<std::mutex> lock(mutex_);
  value_ = true;
  set_.notify_all();
}

bool Mark::IsSet() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return value_;
}

void Mark::Wait() const {
  std::unique_lock<std::mutex> lock(mutex_);
  set_.wait(lock, [this] { return value_; });
}

bool Mark::WaitFor(std::chrono::milliseconds time) const {
  std::unique_lock<std::mutex> lock(mutex_);
  return set_.wait_for(lock, time, [this] { return value_; });
}

Stream::Stream(Device* device, int priority, unsigned flags)
    : device_(device), priority_(priority), flags_(flags), number_([] {
        static std::atomic<uint64_t> streams{0};
        return ++streams;
      }()) {}

std::shared_ptr<Stream> Stream::Start(Device* device, int priority, unsigned flags) {
  std::shared_ptr<Stream> stream(new Stream(device, priority, flags));
  std::thread([stream] { stream->Loop(); }).detach();
  return stream;
}

void Stream::Push(Work work) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (ended_) {  // somebody who waits for all streams has come too late to this one
    if (work.kind == Work::Kind::kRecord) work.mark->Set();
    return;
  }
  queue_.push_back(std::move(work));
  changed_.notify_all();
}

bool Stream::IsIdle() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return queue_.empty() && !busy_;
}

void Stream::Close() {
  const std::lock_guard<std::mutex> lock(mutex_);
  closed_ = true;
  changed_.notify_all();
}

std::shared_ptr<Mark> Stream::MarkEnd() {
  auto mark = std::make_shared<Mark>();
  Push({Work::Kind::kRecord, nullptr, nullptr, mark});
  return mark;
}

void Stream::Loop() {
  Work work;
  while (Take(&work)) {
    if (device_->error() == kSuccess) Do(work);
    Finish(work);
    work = Work();
  }
}

bool Stream::Take(Work* work) {
  std::unique_lock<std::mutex> lock(mutex_);
  for (;;) {
    if (queue_.empty()) {
      if (closed_) {
        ended_ = true;
        return false;
      }
      changed_.wait(lock);
    } else if (Get(Setting::kHold) != 0 && device_->error() == kSuccess) {
      changed_.wait_for(lock, kLook);
    } else {
      break;
    }
  }
  *work = std::move(queue_.front());
  queue_.pop_front();
  busy_ = true;
  return true;
}

// Who has seen the mark set finds the stream idle, and the other way round. A dropped record is
// set, too: nobody may wait for it for ever.
void Stream::Finish(const Work& work) {
  const std::lock_guard<std::mutex> lock(mutex_);
  busy_ = false;
  if (work.kind == Work::Kind::kRecord) work.mark->Set();
}

void Stream::Do(const Work& work) {
  const bool counts = work.kind == Work::Kind::kTask || work.kind == Work::Kind::kHostFunction;
  if (counts && Strikes(Fault::kSticky, device_->number())) {
    device_->Break(kIllegalAddress);
    return;
  }
  if (work.begin) work.begin();
  Sleep(Delay(work.kind));
  if (work.kind == Work::Kind::kTask && Strikes(Fault::kHang, device_->number())) {
    const long us = Get(Setting::kHangUs);
    Sleep(us == 0 ? -1 : us);
  }
  if (work.kind == Work::Kind::kRecord && Strikes(Fault::kSlowEvent, device_->number())) {
    Sleep(Get(Setting::kSlowEventUs));
  }
  if (work.kind == Work::Kind::kWait) {
    while (device_->error() == kSuccess && !work.mark->WaitFor(kLook)) {
    }
  }
  if (device_->error() != kSuccess || !work.run) return;
  if (work.kind == Work::Kind::kHostFunction) {
    if (Strikes(Fault::kLostHostFunction, device_->number())) return;
    const HostFunctionScope scope;
    work.run();
  } else {
    work.run();
  }
}

// Ends early if the device breaks; a negative time never ends otherwise.
void Stream::Sleep(long us) const {
  const auto end = std::chrono::steady_clock::now() + std::chrono::microseconds(us);
  while (us != 0 && device_->error() == kSuccess) {
    const auto left = end - std::chrono::steady_clock::now();
    if (us > 0 && left <= left.zero()) return;
    std::this_thread::sleep_for(us > 0 && left < kLook ? left : kLook);
  }
}

long Stream::Delay(Work::Kind kind) {
  const long seed = Get(Setting::kSeed);
  const long us = Get(Setting::kDelayUs);
  if (seed == 0) return kind == Work::Kind::kTask ? us : 0;
  // Squared: mostly short, sometimes long.
  const double random = Random(static_cast<uint64_t>(seed), number_, ++operations_);
  return static_cast<long>(random * random * static_cast<double>(us == 0 ? 500 : us));
}

std::shared_ptr<Mark> Event::Last() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return last_;
}

void Event::SetLast(std::shared_ptr<Mark> mark) {
  const std::lock_guard<std::mutex> lock(mutex_);
  last_ = std::move(mark);
}

}  // namespace fake_cuda
