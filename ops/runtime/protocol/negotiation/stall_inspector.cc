#include "ops/runtime/protocol/negotiation/stall_inspector.h"

#include <algorithm>
#include <set>
#include <utility>

#include "ops/runtime/base/text.h"

namespace tfring {
namespace {

// A report names at most this many different places of the program.
constexpr size_t kMaxPlaces = 16;

// " at train.py:40 (allreduce of tensor 'a')", or the part of it that is known.
std::string PlaceText(const std::string& call_site, const std::string& what) {
  if (call_site.empty()) return what.empty() ? "" : " in " + what;
  return " at " + call_site + (what.empty() ? "" : " (" + what + ")");
}

// "ranks 0, 3 wait at train.py:40; rank 1 waits at ...": one part for each place. With `also`, what
// else the ranks are: "rank 1 is missing and waits ...".
std::string PlacesText(const std::vector<StallView>& views, const std::string& also) {
  std::vector<std::pair<std::string, std::vector<Rank>>> groups;  // by place, in order of rank
  for (const StallView& view : views) {
    const std::string place = PlaceText(view.call_site, view.waits_for);
    auto group = std::find_if(groups.begin(), groups.end(),
                              [&place](const auto& known) { return known.first == place; });
    if (group == groups.end()) group = groups.insert(group, {place, {}});
    group->second.push_back(view.rank);
  }
  std::string text;
  for (size_t i = 0; i < groups.size() && i < kMaxPlaces; ++i) {
    const auto& [place, ranks] = groups[i];
    const bool one = ranks.size() == 1;
    text += (i == 0 ? "" : "; ") + RanksText(ranks);
    if (!also.empty()) text += (one ? " is " : " are ") + also;
    text +=
        (one ? " waits" : " wait") + (place.empty() && !also.empty() ? " in no collective" : place);
  }
  if (groups.size() > kMaxPlaces) {
    text += "; others in " + std::to_string(groups.size() - kMaxPlaces) + " more places";
  }
  return text;
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

void StallInspector::PutOff(Duration pause) {
  for (Watched& watched : by_age_) {
    watched.since += pause;
    watched.next_warning = After(watched.next_warning, pause);
  }
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
  std::vector<StallView> ready, missing;
  std::vector<Rank> joined;
  for (const StallView& view : ranks) {
    if (!view.ready && view.joined) {
      joined.push_back(view.rank);
    } else {
      (view.ready ? ready : missing).push_back(view);
    }
  }
  std::string text = what + " has waited " + SecondsText(waited) + ": " + PlacesText(ready, "");
  if (!missing.empty()) text += "; " + PlacesText(missing, "missing and");
  if (!joined.empty()) text += "; not waited for, as joined: " + RanksText(joined);
  return text + ".";
}

std::string CircleMessage(Duration waited, const std::vector<StallView>& ranks) {
  return "these ranks wait for each other, for " + SecondsText(waited) +
         " now: " + PlacesText(ranks, "") + ".";
}

std::string StallAdvice(Duration shutdown) {
  std::string text =
      " Every rank has to call the same collectives, eager ones in the same order, and to run the "
      "same number of steps: look for a rank that took another branch, ran out of data (an equal "
      "number of steps on all ranks, JoinCallback or join() mend that) or hangs. ";
  if (shutdown > 0) {
    return text + "The job ends with an error once a tensor has waited " + SecondsText(shutdown) +
           " (TFRING_STALL_SHUTDOWN_TIME_SECONDS; 0: never).";
  }
  return text +
         "The job goes on waiting; TFRING_STALL_SHUTDOWN_TIME_SECONDS=60 would end it with an "
         "error after 60 s.";
}

std::vector<Rank> RanksInCircles(const std::vector<StallWait>& waits) {
  std::set<Rank> stuck;
  for (const StallWait& wait : waits) stuck.insert(wait.ready.begin(), wait.ready.end());
  // A tensor may still become complete if none of its missing ranks is stuck; then those that wait
  // for it may go on, and so on.
  for (bool changed = true; changed;) {
    changed = false;
    for (const StallWait& wait : waits) {
      const bool blocked = std::any_of(wait.missing.begin(), wait.missing.end(),
                                       [&](Rank rank) { return stuck.count(rank) > 0; });
      if (blocked) continue;
      for (Rank rank : wait.ready) changed = stuck.erase(rank) > 0 || changed;
    }
  }
  return std::vector<Rank>(stuck.begin(), stuck.end());
}

}  // namespace tfring
