#include "ops/runtime/protocol/negotiation/stall_reports.h"

#include <algorithm>
#include <utility>

#include "ops/runtime/base/text.h"

namespace tfring {
namespace {

// Ranks that wait for each other are reported after this time.
constexpr Duration kCircleWarning = 3 * kSecond;
// The job ends if nothing but eager calls wait for each other for this time.
constexpr Duration kEagerCircleEnd = 45 * kSecond;
// At most this many stalled tensors are reported at one time.
constexpr size_t kMaxStallReports = 8;

}  // namespace

StallReports::StallReports(const Config& config, Readiness* readiness, const Joins* joins)
    : readiness_(*readiness),
      joins_(*joins),
      inspector_(config),
      shutdown_(config.stall_shutdown),
      circle_warning_(std::min(config.stall_warning, kCircleWarning)) {}

void StallReports::Watch(PendingTensor* pending, TimePoint now) {
  if (pending->watched) return;
  pending->watch = inspector_.Watch(pending->handle, now);
  pending->watched = true;
}

void StallReports::Forget(PendingTensor* pending) {
  if (pending->watched) inspector_.Forget(pending->watch);
  pending->watched = false;
}

TimePoint StallReports::next_deadline() const {
  return std::min(inspector_.next_deadline(), CircleDeadline());
}

void StallReports::PutOff(Duration pause) {
  inspector_.PutOff(pause);
  for (auto& item : last_request_) item.second += pause;
}

Status StallReports::OnTime(TimePoint now, std::vector<std::string>* warnings) {
  if (const uint64_t* handle = inspector_.Expired(now)) {
    return DeadlineExceeded(Report(*readiness_.Find(*handle), now, OldestWaits()) +
                            StallAdvice(shutdown_) + " This time has passed.");
  }
  TFRING_RETURN_IF_ERROR(CheckCircles(now, warnings));
  const std::vector<uint64_t> due = inspector_.TakeWarnings(now);
  if (due.empty()) return OkStatus();
  const std::map<Rank, OldestWait> waits = OldestWaits();
  for (size_t i = 0; i < due.size() && i < kMaxStallReports; ++i) {
    warnings->push_back(Report(*readiness_.Find(due[i]), now, waits));
  }
  if (due.size() > kMaxStallReports) {
    warnings->push_back(std::to_string(due.size() - kMaxStallReports) +
                        " more tensors have stalled as well, the last of them " +
                        Describe(*readiness_.Find(due.back())) + ".");
  }
  warnings->back() += StallAdvice(shutdown_);
  return OkStatus();
}

// By rank. Of a rank that is missing from one tensor this shows which other tensor it waits for.
std::map<Rank, StallReports::OldestWait> StallReports::OldestWaits() const {
  std::map<Rank, OldestWait> oldest;
  for (const auto& [handle, pending] : readiness_.all()) {
    if (pending.complete) continue;
    for (size_t i = 0; i < pending.rank_requests.size(); ++i) {
      const uint64_t order = pending.rank_requests[i].order;
      if (order == 0) continue;
      OldestWait& known = oldest[pending.members[i]];
      if (known.pending == nullptr || order < known.order) known = {order, &pending, i};
    }
  }
  return oldest;
}

// The tensor is watched.
std::string StallReports::Report(const PendingTensor& pending, TimePoint now,
                                 const std::map<Rank, OldestWait>& waits) const {
  std::vector<StallView> views;
  for (size_t i = 0; i < pending.rank_requests.size(); ++i) {
    StallView view;
    view.rank = pending.members[i];
    view.ready = pending.rank_requests[i].order != 0;
    view.joined = joins_.Has(pending.process_set, view.rank);
    const auto wait = waits.find(view.rank);
    if (view.ready) {
      view.call_site = pending.CallSiteOf(i);
    } else if (wait != waits.end()) {
      view.waits_for = Describe(*wait->second.pending);
      view.call_site = wait->second.pending->CallSiteOf(wait->second.position);
    }
    views.push_back(std::move(view));
  }
  return StallMessage(Describe(pending), now - inspector_.Since(pending.watch), views);
}

TimePoint StallReports::CircleDeadline() const {
  const TimePoint since = inspector_.waiting_since();
  return since == kNever ? kNever : std::max(since + circle_warning_, next_circle_check_);
}

// Ranks that wait for each other never go on by themselves, so they are reported sooner than a
// stall that may be one slow rank. Once for a circle: the reports of its tensors follow anyway.
Status StallReports::CheckCircles(TimePoint now, std::vector<std::string>* warnings) {
  if (now < CircleDeadline()) return OkStatus();
  next_circle_check_ = now + circle_warning_;
  const std::vector<Rank> ranks = RanksInCircles(IncompleteWaits());
  if (ranks.empty()) return OkStatus();
  TimePoint latest = 0;
  for (Rank rank : ranks) latest = std::max(latest, last_request_[rank]);
  if (now - latest < circle_warning_) {
    next_circle_check_ = latest + circle_warning_;
    return OkStatus();
  }
  const std::map<Rank, OldestWait> waits = OldestWaits();
  std::vector<StallView> views;
  uint64_t oldest = UINT64_MAX;
  for (Rank rank : ranks) {
    const OldestWait& wait = waits.at(rank);
    oldest = std::min(oldest, wait.pending->handle);
    StallView view;
    view.rank = rank;
    view.waits_for = Describe(*wait.pending);
    view.call_site = wait.pending->CallSiteOf(wait.position);
    views.push_back(std::move(view));
  }
  if (shutdown_ > 0 && now - latest >= kEagerCircleEnd && WaitOnlyInEagerCalls(ranks)) {
    return DeadlineExceeded(CircleMessage(now - latest, views) +
                            " Eager calls that wait for each other never end, so the job ends "
                            "after " +
                            SecondsText(kEagerCircleEnd) +
                            ". Every rank has to make the same eager calls in the same order. "
                            "TFRING_STALL_SHUTDOWN_TIME_SECONDS=0 turns this off.");
  }
  if (oldest == reported_circle_) return OkStatus();
  reported_circle_ = oldest;
  warnings->push_back(CircleMessage(now - latest, views) + StallAdvice(shutdown_));
  return OkStatus();
}

// A graph that runs may still make the calls that others wait for, at the end of a long step. A
// thread in an eager call makes no other call before that one is done.
bool StallReports::WaitOnlyInEagerCalls(const std::vector<Rank>& ranks) const {
  for (const auto& [handle, pending] : readiness_.all()) {
    if (!pending.InRun()) continue;
    for (Rank rank : pending.ReadyRanks()) {
      if (std::binary_search(ranks.begin(), ranks.end(), rank)) return false;
    }
  }
  return true;
}

// Joins are left out: a rank that has joined is absent from the others' calls, not missing.
std::vector<StallWait> StallReports::IncompleteWaits() const {
  std::vector<StallWait> waits;
  for (const auto& [handle, pending] : readiness_.all()) {
    if (!pending.watched) continue;
    const std::vector<Rank> absent = joins_.AbsentFrom(pending);
    StallWait wait;
    for (size_t i = 0; i < pending.rank_requests.size(); ++i) {
      const Rank rank = pending.members[i];
      if (pending.rank_requests[i].order != 0) {
        wait.ready.push_back(rank);
      } else if (!std::binary_search(absent.begin(), absent.end(), rank)) {
        wait.missing.push_back(rank);
      }
    }
    waits.push_back(std::move(wait));
  }
  return waits;
}

}  // namespace tfring
