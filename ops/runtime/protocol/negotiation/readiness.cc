#include "ops/runtime/protocol/negotiation/readiness.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace tfring {

const Request& PendingTensor::AnyRequest() const {
  size_t i = 0;
  while (rank_requests[i].order == 0) ++i;
  return rank_requests[i].common();
}

const std::string& PendingTensor::CallSiteOf(size_t position) const {
  const RankRequest& own = rank_requests[position];
  return own.full ? own.full->call_site : own.cached->CallSiteOf(position);
}

std::vector<std::string> PendingTensor::DifferentCallSites() const {
  bool differ = false;
  for (size_t i = 1; i < members.size() && !differ; ++i) differ = CallSiteOf(i) != CallSiteOf(0);
  std::vector<std::string> sites;
  for (size_t i = 0; differ && i < members.size(); ++i) sites.push_back(CallSiteOf(i));
  return sites;
}

std::vector<Rank> PendingTensor::ReadyRanks() const {
  std::vector<Rank> ranks;
  for (size_t i = 0; i < rank_requests.size(); ++i) {
    if (rank_requests[i].order != 0) ranks.push_back(members[i]);
  }
  return ranks;
}

Rank PendingTensor::LastReady() const {
  size_t last = 0;
  for (size_t i = 1; i < rank_requests.size(); ++i) {
    if (rank_requests[i].order > rank_requests[last].order) last = i;
  }
  return members[last];
}

const Agreement* PendingTensor::CommonAgreement() const {
  const Agreement* common = rank_requests.front().cached.get();
  for (const RankRequest& rank_request : rank_requests) {
    if (rank_request.cached.get() != common) return nullptr;
  }
  return common;
}

std::string SetText(ProcessSetId set) {
  return set == kGlobalProcessSet ? "" : " in process set " + std::to_string(set);
}

std::string Describe(const PendingTensor& pending) {
  return Describe(pending.AnyRequest()) + SetText(pending.process_set);
}

void Readiness::Widen(PendingTensor* pending, const std::vector<Rank>& members) {
  std::vector<Rank> all;
  std::set_union(pending->members.begin(), pending->members.end(), members.begin(), members.end(),
                 std::back_inserter(all));
  std::vector<RankRequest> rank_requests(all.size());
  for (size_t i = 0; i < pending->members.size(); ++i) {
    const auto at = std::lower_bound(all.begin(), all.end(), pending->members[i]) - all.begin();
    rank_requests[static_cast<size_t>(at)] = std::move(pending->rank_requests[i]);
  }
  pending->members = std::move(all);
  pending->rank_requests = std::move(rank_requests);
}

PendingTensor* Readiness::Add(ProcessSetId set, const std::string& name,
                              const std::vector<Rank>& members, Rank from, RankRequest rank_request,
                              TimePoint now) {
  PendingTensor** known = by_name_.Find(set, name);
  PendingTensor* pending = known == nullptr ? nullptr : *known;
  if (pending == nullptr) {
    const uint64_t handle = ++last_handle_;
    pending = &pending_.emplace_hint(pending_.end(), handle, PendingTensor())->second;
    pending->handle = handle;
    pending->process_set = set;
    pending->name = name;
    pending->members = members;
    pending->rank_requests.resize(members.size());
    pending->since = now;
    by_name_.Put(set, name, pending);
  } else if (pending->members != members) {
    Widen(pending, members);
  }
  const auto& all = pending->members;
  RankRequest& slot = pending->rank_requests[static_cast<size_t>(
      std::lower_bound(all.begin(), all.end(), from) - all.begin())];
  if (slot.order != 0) return nullptr;
  slot = std::move(rank_request);
  slot.order = ++last_order_;
  ++pending->ready;
  return pending;
}

PendingTensor* Readiness::Find(uint64_t handle) {
  const auto it = pending_.find(handle);
  return it == pending_.end() ? nullptr : &it->second;
}

void Readiness::ReleaseName(const PendingTensor& pending) {
  PendingTensor** known = by_name_.Find(pending.process_set, pending.name);
  if (known != nullptr && *known == &pending) by_name_.Erase(pending.process_set, pending.name);
}

void Readiness::Erase(uint64_t handle) {
  const auto it = pending_.find(handle);
  if (it == pending_.end()) return;
  ReleaseName(it->second);
  pending_.erase(it);
}

}  // namespace tfring
