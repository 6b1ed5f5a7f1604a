#include "ops/runtime/protocol/negotiation/join.h"

#include <algorithm>

namespace tfring {
bool Joins::In(ProcessSetId set, Rank rank) const {
  const auto it = joined_.find(set);
  return it != joined_.end() && it->second.ranks.count(rank) > 0;
}

bool Joins::Has(ProcessSetId set, Rank rank) const {
  if (joined_.empty()) return false;
  return In(set, rank) || In(kGlobalProcessSet, rank);
}

Status Joins::Join(ProcessSetId set, const std::string& name, Rank rank) {
  Joined& joined = joined_[set];
  if (joined.ranks.empty()) joined.name = name;
  if (joined.name != name) {
    return FailedPrecondition(
        "rank " + std::to_string(rank) + " joins process set " + std::to_string(set) + " as '" +
        name + "', but " +
        RanksString(std::vector<Rank>(joined.ranks.begin(), joined.ranks.end())) +
        " joined it as '" + joined.name + "'; all ranks have to use one name");
  }
  joined.ranks.insert(rank);
  return OkStatus();
}

void Joins::Leave(ProcessSetId set, Rank rank) {
  const auto it = joined_.find(set);
  if (it == joined_.end()) return;
  it->second.ranks.erase(rank);
  if (it->second.ranks.empty()) joined_.erase(it);
}

std::vector<Rank> Joins::AbsentFrom(const PendingTensor& pending) const {
  std::vector<Rank> absent;
  if (joined_.empty()) return absent;
  // A join waits for all members of its set; only those that joined the global set are absent.
  const bool join = pending.AnyRequest().kind == CollectiveKind::kJoin;
  if (join && pending.process_set == kGlobalProcessSet) return absent;
  for (size_t i = 0; i < pending.members.size(); ++i) {
    const Rank rank = pending.members[i];
    if (pending.rank_requests[i].order != 0) continue;
    if (join ? In(kGlobalProcessSet, rank) : Has(pending.process_set, rank)) absent.push_back(rank);
  }
  return absent;
}

Status CheckAbsent(const Request& request, const std::vector<Rank>& absent) {
  if (absent.empty()) return OkStatus();
  const std::string joined =
      RanksText(absent) + (absent.size() == 1 ? " has" : " have") + " joined";
  if (!Traits(request.kind).without_joined) {
    return FailedPrecondition(Describe(request) + " is not possible now: " + joined +
                              ", and it needs all its ranks; call it before join, or after all "
                              "ranks have joined");
  }
  if (Traits(request.kind).has_root() &&
      std::binary_search(absent.begin(), absent.end(), request.root)) {
    return FailedPrecondition(Describe(request) + " is not possible now: " + joined +
                              ", and rank " + std::to_string(request.root) +
                              " is its root; choose a root that has not joined");
  }
  return OkStatus();
}

}  // namespace tfring
