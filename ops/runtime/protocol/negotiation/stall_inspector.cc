#include "ops/runtime/protocol/negotiation/stall_inspector.h"

#include <algorithm>
#include <sstream>
#include <utility>

namespace tfring {
namespace {

TimePoint After(TimePoint start, Duration wait) {
  return start > kNever - wait ? kNever : start + wait;
}

}  // namespace

StallInspector::Token StallInspector::Watch(uint64_t handle, TimePoint now) {
  const TimePoint next = warning_ > 0 ? After(now, warning_) : kNever;
  const Token token = by_age_.insert(by_age_.end(), {handle, now, next, turns_.end()});
  token->turn = turns_.insert(turns_.end(), &*token);
  return token;
}

void StallInspector::Forget(Token token) {
  turns_.erase(token->turn);
  by_age_.erase(token);
}

TimePoint StallInspector::next_deadline() const {
  if (by_age_.empty()) return kNever;
  const TimePoint end = shutdown_ > 0 ? After(by_age_.front().since, shutdown_) : kNever;
  return std::min(turns_.front()->next_warning, end);
}

std::vector<uint64_t> StallInspector::TakeWarnings(TimePoint now) {
  std::vector<uint64_t> due;
  if (warning_ <= 0) return due;
  while (!turns_.empty() && turns_.front()->next_warning <= now) {
    Watched* watched = turns_.front();
    due.push_back(watched->handle);
    watched->next_warning = After(now, warning_);
    turns_.splice(turns_.end(), turns_, turns_.begin());
  }
  return due;
}

const uint64_t* StallInspector::Expired(TimePoint now) const {
  if (shutdown_ <= 0 || by_age_.empty()) return nullptr;
  const Watched& oldest = by_age_.front();
  return now >= After(oldest.since, shutdown_) ? &oldest.handle : nullptr;
}

std::string StallMessage(const std::string& what, Duration waited,
                         const std::vector<StallView>& ranks) {
  std::vector<Rank> ready;
  std::vector<Rank> joined;
  std::map<std::string, std::vector<Rank>> missing;
  for (const StallView& view : ranks) {
    (view.ready ? ready : view.joined ? joined : missing[view.waits_for]).push_back(view.rank);
  }
  std::ostringstream text;
  text << what << " has waited " << static_cast<double>(waited) / static_cast<double>(kSecond)
       << " s: ready on " << RanksText(ready);
  if (!joined.empty()) text << "; joined, and not waited for: " << RanksText(joined);
  for (const auto& [other, at] : missing) {
    text << "; missing on " << RanksText(at);
    if (other.empty()) {
      text << ", which " << (at.size() == 1 ? "has" : "have") << " asked for nothing else";
    } else {
      text << ", waiting for " << other << " instead";
    }
  }
  text << ". Every rank has to call the same collectives, and eager calls in the same order: look "
          "for a rank that took another branch, ran out of data or hangs.";
  return text.str();
}

}  // namespace tfring
