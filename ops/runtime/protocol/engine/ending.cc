#include "ops/runtime/protocol/engine/ending.h"

#include <utility>

#include "ops/runtime/protocol/engine/limits.h"

namespace tfring {

void Ending::WantToLeave(const std::string& exception, TimePoint deadline) {
  wanted_ = Wanted{exception, deadline};
}

std::string Ending::TakeWanted() { return std::exchange(wanted_, std::nullopt)->exception; }

void Ending::Leave(TimePoint deadline) {
  leaving_ = true;
  leave_deadline_ = deadline;
}

void Ending::Close(const Status& why, TimePoint now, int64_t progress) {
  if (!closed_.ok()) return;
  closed_ = why;
  changed_ = true;
  drain_deadline_ = now + kDrainLimit;
  drain_progress_ = progress;
}

void Ending::End(const Status& why, Rank culprit) {
  ended_ = why;
  changed_ = true;
  if (culprit == kNoRank) return;
  (why.code() == StatusCode::kCancelled ? departed_ : lost_).insert(culprit);
}

bool Ending::DrainIsOver(TimePoint now, int64_t progress) {
  if (progress == drain_progress_) return true;
  drain_progress_ = progress;
  drain_deadline_ = now + kDrainLimit;
  return false;
}

void Ending::PutOff(Duration pause) {
  if (drain_deadline_ != kNever) drain_deadline_ += pause;
  if (leave_deadline_ != kNever) leave_deadline_ += pause;
}

void Ending::AddDeparted(Rank rank) {
  departed_.insert(rank);
  changed_ = true;
}

std::shared_ptr<const GenerationHealth> Ending::TakeHealth(const PeerTexts& texts,
                                                           Rank first_departed) {
  if (!std::exchange(changed_, false)) return nullptr;
  auto health = std::make_shared<GenerationHealth>();
  health->lost.assign(lost_.begin(), lost_.end());
  health->departed.assign(departed_.begin(), departed_.end());
  if (!ended_.ok()) {
    health->error = ended_;
  } else if (!closed_.ok() && !leaving_) {
    health->error = closed_;
  } else if (!departed_.empty()) {
    health->error = texts.Left(first_departed);
  }
  return health;
}

}  // namespace tfring
