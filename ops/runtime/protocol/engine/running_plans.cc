#include "ops/runtime/protocol/engine/running_plans.h"

#include <iterator>

#include "ops/runtime/base/check.h"

namespace tfring {

RunningPlans::Plan& RunningPlans::At(uint64_t sequence) {
  const auto it = plans_.find(sequence);
  TFRING_CHECK(it != plans_.end()) << "plan " << sequence << " ended without running";
  return it->second;
}

RunningPlans::Plan RunningPlans::Take(uint64_t sequence) {
  Plan plan = std::move(At(sequence));
  plans_.erase(sequence);
  return plan;
}

size_t RunningPlans::in_flight() const {
  size_t count = held_.size() + delayed_.size();
  for (const auto& item : plans_) count += item.second.calls.size();
  return count;
}

void RunningPlans::EndCalls(const std::vector<CallId>& calls, const Status& status) {
  for (CallId id : calls) {
    auto& results = busy_.count(id) > 0 ? delayed_ : results_;
    results.emplace_back(id, status);
  }
}

void RunningPlans::Hold(const std::vector<CallId>& calls) {
  if (!over_.ok()) return EndCalls(calls, over_);
  held_.insert(held_.end(), calls.begin(), calls.end());
}

void RunningPlans::EndHeld(const Status& why) {
  over_ = why;
  EndCalls(std::exchange(held_, {}), why);
}

void RunningPlans::Park(uint64_t sequence, Plan plan) {
  plan.state = PlanState::kParked;
  plans_[sequence] = std::move(plan);
}

void RunningPlans::Recall(const std::vector<uint64_t>& sequences) {
  for (uint64_t sequence : sequences) {
    const auto it = plans_.find(sequence);
    if (it == plans_.end()) continue;
    if (it->second.state == PlanState::kParked) {
      plans_.erase(it);
      continue;
    }
    for (CallId id : it->second.calls) busy_[id] = sequence;
    it->second.calls.clear();
    it->second.state = PlanState::kVoid;
  }
  for (auto it = plans_.begin(); it != plans_.end();) {
    const bool parked = it->second.state == PlanState::kParked;
    if (parked) Hold(it->second.calls);
    it = parked ? plans_.erase(it) : std::next(it);
  }
}

void RunningPlans::Release(uint64_t sequence) {
  for (auto it = busy_.begin(); it != busy_.end();) {
    it = it->second == sequence ? busy_.erase(it) : std::next(it);
  }
  for (auto& [id, status] : std::exchange(delayed_, {})) EndCalls({id}, status);
}

void RunningPlans::EndParked(const Status& why) {
  for (auto it = plans_.begin(); it != plans_.end();) {
    const bool parked = it->second.state == PlanState::kParked;
    if (parked) EndCalls(it->second.calls, why);
    it = parked ? plans_.erase(it) : std::next(it);
  }
}

}  // namespace tfring
