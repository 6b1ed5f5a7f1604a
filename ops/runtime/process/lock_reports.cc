#include "ops/runtime/process/lock_reports.h"

#include "ops/runtime/base/log.h"

namespace tfring {

void LockReports::Report(const LockNews& news) {
  std::atomic<int64_t>& count =
      news.over ? unlocks_[static_cast<size_t>(news.reason.cause)] : locks_;
  const int64_t number = count.fetch_add(1, std::memory_order_relaxed) + 1;
  if (recorder_ != nullptr) recorder_->Locked(!news.over);
  const bool power_of_two = (number & (number - 1)) == 0;
  if (power_of_two) Tell(news, number);
}

void LockReports::Tell(const LockNews& news, int64_t number) {
  std::string text = NewsText(news);
  if (number > 1) {
    text += " (number " + std::to_string(number) +
            (news.over ? " that ended in this way)" : " of this generation)");
  }
  if (recorder_ != nullptr) {
    const auto value = static_cast<int64_t>(news.over ? news.rounds : news.tensors);
    recorder_->Event(news.over ? EventType::kUnlock : EventType::kLock, StatusCode::kOk, value,
                     text);
  }
  if (rank_ != 0) return;
  TFRING_LOG(kDebug) << text;
}

void LockReports::Rounds(uint64_t rounds) {
  const auto count = static_cast<int64_t>(rounds);
  if (rounds_.load(std::memory_order_relaxed) >= count) return;
  rounds_.store(count, std::memory_order_relaxed);
  if (recorder_ != nullptr) recorder_->LockRounds(count);
}

std::map<std::string, int64_t> LockReports::Counts() const {
  std::map<std::string, int64_t> counts = {
      {"locks", locks_.load(std::memory_order_relaxed)},
      {"lock_rounds", rounds_.load(std::memory_order_relaxed)},
  };
  for (int cause = 1; cause < kUnlockCauses; ++cause) {
    counts[std::string("unlocks_") + UnlockCauseName(static_cast<UnlockCause>(cause))] =
        unlocks_[static_cast<size_t>(cause)].load(std::memory_order_relaxed);
  }
  return counts;
}

}  // namespace tfring
