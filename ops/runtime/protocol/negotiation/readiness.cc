#include "ops/runtime/protocol/negotiation/readiness.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "ops/runtime/protocol/message/wire.h"

namespace tfring {

const RankRequest& RankRequests::None() {
  static const RankRequest none;
  return none;
}

void RankRequests::Set(size_t position, RankRequest rank_request) {
  auto& block = blocks_[position / kBlock];
  if (block == nullptr) {
    block = std::make_unique<std::array<RankRequest, kBlock>>();
    bytes_ += sizeof(*block);
  }
  if (rank_request.full && last_full_ && *rank_request.full == *last_full_) {
    rank_request.full = last_full_;
  } else if (rank_request.full) {
    bytes_ += sizeof(Request) + MaxEncodedBytes(*rank_request.full);
    last_full_ = rank_request.full;
  }
  (*block)[position % kBlock] = std::move(rank_request);
}

RankRequest RankRequests::Take(size_t position) {
  auto& block = blocks_[position / kBlock];
  return block == nullptr ? RankRequest() : std::exchange((*block)[position % kBlock], {});
}

size_t PendingTensor::bytes() const {
  return sizeof(*this) + 2 * name.size() + members.capacity() * sizeof(Rank) +
         rank_requests.bytes();
}

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

DataPath PendingTensor::PathOf(size_t position) const {
  const RankRequest& own = rank_requests[position];
  return own.full ? own.full->path : own.cached->PathOf(position);
}

std::vector<DataPath> PendingTensor::DifferentPaths() const {
  bool differ = false;
  for (size_t i = 1; i < members.size() && !differ; ++i) differ = PathOf(i) != PathOf(0);
  std::vector<DataPath> paths;
  for (size_t i = 0; differ && i < members.size(); ++i) paths.push_back(PathOf(i));
  return paths;
}

DataPath PendingTensor::CommonPath() const {
  if (ready < members.size() || !Traits(AnyRequest().kind).uses_backend) return DataPath::kCpu;
  for (size_t i = 0; i < members.size(); ++i) {
    if (PathOf(i) != DataPath::kDevice) return DataPath::kCpu;
  }
  return DataPath::kDevice;
}

bool PendingTensor::InRun(bool in_run) const {
  for (size_t i = 0; i < rank_requests.size(); ++i) {
    if (rank_requests[i].order != 0 && rank_requests[i].common().in_run == in_run) return true;
  }
  return false;
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
  for (size_t i = 1; i < rank_requests.size(); ++i) {
    if (rank_requests[i].cached.get() != common) return nullptr;
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
  if (members == pending->members) return;
  std::vector<Rank> all;
  std::set_union(pending->members.begin(), pending->members.end(), members.begin(), members.end(),
                 std::back_inserter(all));
  RankRequests rank_requests;
  rank_requests.Resize(all.size());
  for (size_t i = 0; i < pending->members.size(); ++i) {
    RankRequest moved = pending->rank_requests.Take(i);
    if (moved.order == 0) continue;
    const auto at = std::lower_bound(all.begin(), all.end(), pending->members[i]) - all.begin();
    rank_requests.Set(static_cast<size_t>(at), std::move(moved));
  }
  pending->members = std::move(all);
  pending->rank_requests = std::move(rank_requests);
}

PendingTensor* Readiness::Add(ProcessSetId set, const std::string& name,
                              const std::vector<Rank>& of_set, Rank from,
                              RankRequest rank_request) {
  PendingTensor* pending = FindByName(set, name);
  if (pending == nullptr) {
    const uint64_t handle = ++last_handle_;
    pending = &pending_.emplace_hint(pending_.end(), handle, PendingTensor())->second;
    pending->handle = handle;
    pending->process_set = set;
    pending->name = name;
    pending->members = RanksOf(rank_request.common(), of_set);
    pending->rank_requests.Resize(pending->members.size());
    by_name_.Put(set, name, pending);
  } else if (pending->members.size() < of_set.size()) {
    Widen(pending, RanksOf(rank_request.common(), of_set));
  }
  const auto& all = pending->members;
  const auto position =
      static_cast<size_t>(std::lower_bound(all.begin(), all.end(), from) - all.begin());
  if (pending->rank_requests[position].order != 0) return nullptr;
  rank_request.order = ++last_order_;
  pending->rank_requests.Set(position, std::move(rank_request));
  ++pending->ready;
  bytes_ -= pending->recorded_bytes;
  pending->recorded_bytes = pending->bytes();
  bytes_ += pending->recorded_bytes;
  return pending;
}

PendingTensor* Readiness::Find(uint64_t handle) {
  const auto it = pending_.find(handle);
  return it == pending_.end() ? nullptr : &it->second;
}

PendingTensor* Readiness::FindByName(ProcessSetId set, const std::string& name) {
  PendingTensor** known = by_name_.Find(set, name);
  return known == nullptr ? nullptr : *known;
}

void Readiness::ReleaseName(const PendingTensor& pending) {
  PendingTensor** known = by_name_.Find(pending.process_set, pending.name);
  if (known != nullptr && *known == &pending) by_name_.Erase(pending.process_set, pending.name);
}

void Readiness::Erase(uint64_t handle) {
  const auto it = pending_.find(handle);
  if (it == pending_.end()) return;
  ReleaseName(it->second);
  bytes_ -= it->second.recorded_bytes;
  pending_.erase(it);
}

}  // namespace tfring
