#include <algorithm>
#include <utility>

#include "ops/runtime/protocol/negotiation/sequencer.h"

// Which tensors have waited too long for some of their ranks, and what to write about them.
namespace tfring {
namespace {

// One report for each stalled tensor, up to so many at one time.
constexpr size_t kMaxStallReports = 8;

}  // namespace

TimePoint Sequencer::next_deadline() const {
  return std::min(stalls_.next_deadline(), CircleDeadline());
}

void Sequencer::PutOff(Duration pause) {
  stalls_.PutOff(pause);
  for (auto& item : last_request_) item.second += pause;
}

Status Sequencer::OnTime(TimePoint now, std::vector<std::string>* warnings) {
  if (const uint64_t* handle = stalls_.Expired(now)) {
    return DeadlineExceeded(StallReport(*readiness_.Find(*handle), now, OldestWaits()) +
                            StallAdvice(stall_shutdown_) + " This time has passed.");
  }
  CheckCircles(now, warnings);
  const std::vector<uint64_t> due = stalls_.TakeWarnings(now);
  if (due.empty()) return OkStatus();
  const std::map<Rank, OldestWait> waits = OldestWaits();
  for (size_t i = 0; i < due.size() && i < kMaxStallReports; ++i) {
    warnings->push_back(StallReport(*readiness_.Find(due[i]), now, waits));
  }
  if (due.size() > kMaxStallReports) {
    warnings->push_back(std::to_string(due.size() - kMaxStallReports) +
                        " more tensors have stalled as well, the last of them " +
                        Describe(*readiness_.Find(due.back())) + ".");
  }
  warnings->back() += StallAdvice(stall_shutdown_);
  return OkStatus();
}

// By rank. Of a rank that is missing from one tensor this shows which other tensor it waits for.
std::map<Rank, Sequencer::OldestWait> Sequencer::OldestWaits() const {
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
std::string Sequencer::StallReport(const PendingTensor& pending, TimePoint now,
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
  return StallMessage(Describe(pending), now - stalls_.Since(pending.watch), views);
}

TimePoint Sequencer::CircleDeadline() const {
  const TimePoint since = stalls_.waiting_since();
  return since == kNever ? kNever : std::max(since + circle_warning_, next_circle_check_);
}

// Ranks that wait for each other never go on by themselves, so they are reported sooner than a
// stall that may be one slow rank. Once for a circle: the reports of its tensors follow anyway.
void Sequencer::CheckCircles(TimePoint now, std::vector<std::string>* warnings) {
  if (now < CircleDeadline()) return;
  next_circle_check_ = now + circle_warning_;
  const std::vector<Rank> ranks = RanksInCircles(IncompleteWaits());
  if (ranks.empty()) return;
  TimePoint latest = 0;
  for (Rank rank : ranks) latest = std::max(latest, last_request_[rank]);
  if (now - latest < circle_warning_) {
    next_circle_check_ = latest + circle_warning_;
    return;
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
  if (oldest == reported_circle_) return;
  reported_circle_ = oldest;
  warnings->push_back(CircleMessage(now - latest, views) + StallAdvice(stall_shutdown_));
}

// Joins are left out: a rank that has joined is absent from the others' calls, not missing.
std::vector<StallWait> Sequencer::IncompleteWaits() const {
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
