#include "ops/runtime/backend/cpu_places.h"

#include <utility>

#include "ops/runtime/base/check.h"

namespace tfring {

void CpuPlaces::SetBackend(CollectiveBackend* backend) {
  std::lock_guard<std::mutex> lock(mutex_);
  backend_ = backend;
}

void CpuPlaces::Submit(Collective collective) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (waiting_.empty() || open_) {
    submitted_.emplace_back();
    backend_->Submit(std::move(collective));
    return;
  }
  waiting_.push_back({0, State::kReady, std::move(collective), {}});
}

uint64_t CpuPlaces::Take() {
  std::lock_guard<std::mutex> lock(mutex_);
  waiting_.push_back({++last_, State::kTaken, {}, {}});
  return last_;
}

void CpuPlaces::Run(uint64_t place, Collective collective, Ended ended) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    Place* const taken = Find(place);
    if (backend_ != nullptr) {
      taken->state = State::kReady;
      taken->collective = std::move(collective);
      taken->ended = std::move(ended);
      return Advance();
    }
  }
  Completion closed;
  closed.sequence = collective.sequence;
  closed.status = Cancelled("the backend was closed");
  ended(std::move(closed));
}

void CpuPlaces::GiveUp(uint64_t place) {
  std::lock_guard<std::mutex> lock(mutex_);
  Find(place)->state = State::kGivenUp;
  Advance();
}

void CpuPlaces::Open() {
  std::lock_guard<std::mutex> lock(mutex_);
  open_ = true;
  Advance();
}

void CpuPlaces::OnCompletion(Completion completion) {
  Ended ended;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    TFRING_CHECK(!submitted_.empty()) << "plan " << completion.sequence << " ended twice";
    ended = std::move(submitted_.front());
    submitted_.pop_front();
  }
  if (ended) {
    ended(std::move(completion));
  } else {
    sink_(std::move(completion));
  }
}

CpuPlaces::Place* CpuPlaces::Find(uint64_t number) {
  for (Place& place : waiting_) {
    if (place.number == number && place.state == State::kTaken) return &place;
  }
  TFRING_CHECK(false) << "place " << number << " was used twice";
  return nullptr;
}

// Hands over what may run now.
void CpuPlaces::Advance() {
  for (auto it = waiting_.begin(); it != waiting_.end();) {
    if (it->state == State::kTaken) {
      if (!open_) return;
      ++it;
      continue;
    }
    Start(&*it);
    it = waiting_.erase(it);
  }
}

void CpuPlaces::Start(Place* place) {
  if (place->state != State::kReady || backend_ == nullptr) return;
  submitted_.push_back(std::move(place->ended));
  backend_->Submit(std::move(place->collective));
}

}  // namespace tfring
