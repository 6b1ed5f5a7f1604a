#include "ops/gpu/nccl/flight_table.h"

#include <utility>

#include "ops/gpu/cuda/kept_memory.h"

namespace tfring {

void FlightTable::Add(const Collective& collective) {
  std::lock_guard<std::mutex> lock(mutex_);
  flights_[collective.sequence].calls = collective.device_calls;
  progress_.Begin();
  if (abandoned_) EndLocked(collective.sequence, *failure_);
}

bool FlightTable::Release(uint64_t sequence) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (flights_.erase(sequence) == 0) return false;
  progress_.End();
  return true;
}

void FlightTable::Launched(uint64_t sequence) {
  std::lock_guard<std::mutex> lock(mutex_);
  const auto it = flights_.find(sequence);
  if (it == flights_.end() || failure_) return;
  it->second.launched = true;
  ++launched_;
  progress_.Step();
  Completion completion;
  completion.sequence = sequence;
  completion.stage = CompletionStage::kLaunched;
  sink_(std::move(completion));
}

void FlightTable::EndLocked(uint64_t sequence, Completion completion) {
  const auto it = flights_.find(sequence);
  if (it == flights_.end()) return;
  if (it->second.launched) --launched_;
  flights_.erase(it);
  progress_.End();
  completion.sequence = sequence;
  completion.stage = CompletionStage::kEnded;
  sink_(std::move(completion));
}

void FlightTable::End(uint64_t sequence, Completion completion) {
  std::lock_guard<std::mutex> lock(mutex_);
  EndLocked(sequence, failure_ ? *failure_ : std::move(completion));
}

void FlightTable::Fail(Completion failure, bool abort) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (aborted_ || (failure_ && !abort)) return;
  aborted_ = abort;
  failure_ = std::move(failure);
}

void FlightTable::EndAll() {
  std::lock_guard<std::mutex> lock(mutex_);
  abandoned_ = true;
  if (!failure_) failure_ = Completion{0, Cancelled("the backend was closed")};
  while (!flights_.empty()) EndLocked(flights_.begin()->first, *failure_);
}

void FlightTable::Abandon(uint64_t sequence) {
  std::lock_guard<std::mutex> lock(mutex_);
  const auto it = flights_.find(sequence);
  if (it == flights_.end()) return;
  for (const DeviceCall& call : it->second.calls) KeepForever(call.keeps);
  EndLocked(sequence, *failure_);
}

bool FlightTable::flying() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return !flights_.empty();
}

int FlightTable::launched() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return launched_;
}

std::optional<Completion> FlightTable::failure() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return failure_;
}

}  // namespace tfring
