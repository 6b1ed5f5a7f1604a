#include <utility>

#include "ops/runtime/protocol/negotiation/sequencer.h"

// Which tensors have waited too long for some of their ranks, and what to write about them.
namespace tfring {
namespace {

// One report for each stalled tensor, up to so many at one time.
constexpr size_t kMaxStallReports = 8;

}  // namespace

Status Sequencer::OnTime(TimePoint now, std::vector<std::string>* warnings) {
  if (const uint64_t* handle = stalls_.Expired(now)) {
    return DeadlineExceeded(StallReport(*readiness_.Find(*handle), now, OldestWaits()) +
                            " The limit of " + std::to_string(stall_shutdown_ / kSecond) +
                            " s (TFRING_STALL_SHUTDOWN_TIME_SECONDS) has passed.");
  }
  const std::vector<uint64_t> due = stalls_.TakeWarnings(now);
  if (due.empty()) return OkStatus();
  const std::map<Rank, const PendingTensor*> waits = OldestWaits();
  for (size_t i = 0; i < due.size() && i < kMaxStallReports; ++i) {
    warnings->push_back(StallReport(*readiness_.Find(due[i]), now, waits));
  }
  if (due.size() > kMaxStallReports) {
    warnings->push_back(std::to_string(due.size() - kMaxStallReports) +
                        " more tensors have stalled as well, the last of them " +
                        Describe(*readiness_.Find(due.back())));
  }
  return OkStatus();
}

// By rank: the oldest of its requests that still waits for other ranks. Of a rank that is missing
// from one tensor this shows which other tensor it waits for.
std::map<Rank, const PendingTensor*> Sequencer::OldestWaits() const {
  std::map<Rank, std::pair<uint64_t, const PendingTensor*>> oldest;
  for (const auto& [handle, pending] : readiness_.all()) {
    if (pending.complete) continue;
    for (size_t i = 0; i < pending.rank_requests.size(); ++i) {
      const uint64_t order = pending.rank_requests[i].order;
      if (order == 0) continue;
      const auto [it, added] = oldest.try_emplace(pending.members[i], order, &pending);
      if (!added && order < it->second.first) it->second = {order, &pending};
    }
  }
  std::map<Rank, const PendingTensor*> waits;
  for (const auto& [rank, wait] : oldest) waits[rank] = wait.second;
  return waits;
}

std::string Sequencer::StallReport(const PendingTensor& pending, TimePoint now,
                                   const std::map<Rank, const PendingTensor*>& waits) const {
  std::vector<StallView> views;
  for (size_t i = 0; i < pending.rank_requests.size(); ++i) {
    StallView view;
    view.rank = pending.members[i];
    view.ready = pending.rank_requests[i].order != 0;
    view.joined = joins_.Has(pending.process_set, view.rank);
    const auto wait = waits.find(view.rank);
    if (!view.ready && wait != waits.end()) view.waits_for = Describe(*wait->second);
    views.push_back(std::move(view));
  }
  return StallMessage(Describe(pending), now - pending.since, views);
}

}  // namespace tfring
