#include "ops/runtime/protocol/engine/ending.h"

#include <utility>

#include "ops/runtime/base/check.h"
#include "ops/runtime/protocol/engine/limits.h"

namespace tfring {

void Ending::WantToLeave(const std::string& exception, TimePoint deadline) {
  if (!wanted_) wanted_ = Wanted{exception, deadline};
}

std::string Ending::TakeWanted() {
  TFRING_CHECK(wanted_.has_value()) << "this rank does not want to leave";
  return std::exchange(wanted_, std::nullopt)->exception;
}

bool Ending::Leave(TimePoint deadline) {
  if (std::exchange(leaving_, true)) return false;
  leave_deadline_ = deadline;
  return true;
}

void Ending::Close(const Status& why, TimePoint now, int64_t progress) {
  TFRING_CHECK(!why.ok()) << "closed without a reason";
  if (!closed_.ok()) return;
  closed_ = why;
  changed_ = true;
  drain_deadline_ = now + kDrainLimit;
  drain_progress_ = progress;
}

bool Ending::End(const Status& why, Rank culprit) {
  TFRING_CHECK(!why.ok()) << "the generation ended without a reason";
  if (!ended_.ok()) return false;
  ended_ = why;
  changed_ = true;
  if (culprit != kNoRank) {
    (why.code() == StatusCode::kCancelled ? departed_ : lost_).insert(culprit);
  }
  return true;
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
  TFRING_CHECK(ended_.ok() || (aborted_ && !closed_.ok()))
      << "the generation has ended, but is not closed and aborted";
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
