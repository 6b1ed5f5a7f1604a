#include "ops/runtime/process/past_generations.h"

#include <chrono>

namespace tfring {
namespace {

// A run that was never ended, which should not happen, is forgotten when there are many newer ones.
constexpr size_t kMaxRuns = 4096;

}  // namespace

void PastGenerations::AddRuns(const std::vector<uint64_t>& runs) {
  std::lock_guard<std::mutex> lock(mutex_);
  for (uint64_t run : runs) {
    if (runs_.insert(run).second) order_.push_back(run);
  }
  while (order_.size() > kMaxRuns) {
    runs_.erase(order_.front());
    order_.pop_front();
  }
  run_count_ = runs_.size();
}

bool PastGenerations::HasRun(uint64_t run) const {
  if (run_count_ == 0) return false;
  std::lock_guard<std::mutex> lock(mutex_);
  return runs_.count(run) > 0;
}

Status PastGenerations::Admit(uint64_t run, const std::string& name) const {
  if (!HasRun(run)) return OkStatus();
  return FailedPrecondition("tensor '" + name +
                            "': this step began before the present init(), in a generation that "
                            "is over: run the step again");
}

bool PastGenerations::EndRun(uint64_t run) {
  if (run_count_ == 0) return false;
  std::lock_guard<std::mutex> lock(mutex_);
  const bool known = runs_.erase(run) > 0;
  if (runs_.empty()) order_.clear();
  run_count_ = runs_.size();
  return known;
}

const Topology* PastGenerations::Remember(const Topology& topology) {
  std::lock_guard<std::mutex> lock(mutex_);
  for (const std::unique_ptr<const Topology>& known : topologies_) {
    if (*known == topology) return known.get();
  }
  topologies_.push_back(std::make_unique<const Topology>(topology));
  return topologies_.back().get();
}

void PastGenerations::Abandoned() {
  std::lock_guard<std::mutex> lock(mutex_);
  ++ending_;
}

void PastGenerations::Ended() {
  std::lock_guard<std::mutex> lock(mutex_);
  --ending_;
  changed_.notify_all();
}

int PastGenerations::ending() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return ending_;
}

bool PastGenerations::WaitUntilEnded(TimePoint deadline) {
  const auto until = std::chrono::steady_clock::time_point(std::chrono::nanoseconds(deadline));
  std::unique_lock<std::mutex> lock(mutex_);
  return changed_.wait_until(lock, until, [this] { return ending_ == 0; });
}

}  // namespace tfring
