#include <algorithm>

#include "ops/sim/checker.h"

// The checks of locks that begin and end.
namespace tfring::sim {

void Checker::OnLockNews(Rank rank, const LockNews& news) {
  const std::string who = "rank " + std::to_string(rank) + ", lock " + std::to_string(news.id);
  uint64_t& present = ranks_[rank].lock;
  if (present != (news.over ? news.id : 0)) {
    Fail(who + (news.over ? " ends" : " begins") + " in lock " + std::to_string(present));
  }
  present = news.over ? 0 : news.id;
  const std::string text = NewsText(news);
  std::string& seen = lock_news_[{news.id, news.over}];
  if (seen.empty()) seen = text;
  if (seen != text) Fail(who + ": " + text + "; another rank has: " + seen);
  if (news.over && !IsTrue(news.rank, news.reason)) Fail(who + ": it is not true that " + text);
}

// Returns whether the rank has done what the reason says.
bool Checker::IsTrue(Rank rank, const UnlockReason& reason) const {
  const auto called = [&](const auto& matches) {
    return std::any_of(ranks_[rank].calls.begin(), ranks_[rank].calls.end(),
                       [&](const auto& item) { return matches(item.second.call); });
  };
  switch (reason.cause) {
    case UnlockCause::kOtherCall:
    case UnlockCause::kChangedCall:
    case UnlockCause::kWaited:
      return called([&](const Call& call) { return call.request.name == reason.text; });
    case UnlockCause::kIncomplete:
    case UnlockCause::kApart:
      return !reason.text.empty();
    case UnlockCause::kJoin:
      return called([](const Call& call) { return call.request.kind == CollectiveKind::kJoin; });
    case UnlockCause::kProcessSets:
      return called([](const Call& call) { return ChangesProcessSets(call.request.kind); });
    case UnlockCause::kStepFailed:
      return reason.text.empty()
                 ? !failures_of_steps_.empty()
                 : reason.text.find("the step of rank " + std::to_string(rank)) == 0;
    case UnlockCause::kShutdown:
      return ranks_[rank].shut_down;
    case UnlockCause::kFollows:
      break;
  }
  return false;
}

}  // namespace tfring::sim
