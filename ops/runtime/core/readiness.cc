#include "ops/runtime/core/readiness.h"

#include <utility>

namespace tfring {

const Request& Pending::AnyRequest() const {
  size_t i = 0;
  while (asks[i].order == 0) ++i;
  return asks[i].common();
}

std::vector<Rank> Pending::AskedBy() const {
  std::vector<Rank> ranks;
  for (size_t i = 0; i < asks.size(); ++i) {
    if (asks[i].order != 0) ranks.push_back(members[i]);
  }
  return ranks;
}

Pending* Readiness::Add(ProcessSetId set, const std::string& name, const std::vector<Rank>& members,
                        int position, Ask ask, TimePoint now) {
  Pending** known = by_name_.Find(set, name);
  Pending* pending = known == nullptr ? nullptr : *known;
  if (pending == nullptr) {
    const uint64_t handle = ++last_handle_;
    pending = &pending_.emplace_hint(pending_.end(), handle, Pending())->second;
    pending->handle = handle;
    pending->process_set = set;
    pending->name = name;
    pending->members = members;
    pending->asks.resize(members.size());
    pending->since = now;
    by_name_.Put(set, name, pending);
  }
  Ask& slot = pending->asks[static_cast<size_t>(position)];
  if (slot.order != 0) return nullptr;
  slot = std::move(ask);
  slot.order = ++last_order_;
  ++pending->asked;
  return pending;
}

Pending* Readiness::Find(uint64_t handle) {
  const auto it = pending_.find(handle);
  return it == pending_.end() ? nullptr : &it->second;
}

void Readiness::Erase(uint64_t handle) {
  const auto it = pending_.find(handle);
  if (it == pending_.end()) return;
  by_name_.Erase(it->second.process_set, it->second.name);
  pending_.erase(it);
}

}  // namespace tfring
