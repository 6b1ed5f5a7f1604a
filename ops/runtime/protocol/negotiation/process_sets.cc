#include "ops/runtime/protocol/negotiation/process_sets.h"

#include <algorithm>
#include <numeric>
#include <string>
#include <utility>

namespace tfring {

ProcessSets::ProcessSets(int size, ProcessSetId last_id) : size_(size), last_id_(last_id) {
  std::vector<Rank> all(static_cast<size_t>(size));
  std::iota(all.begin(), all.end(), 0);
  sets_[kGlobalProcessSet] = std::move(all);
}

Status ProcessSets::Add(ProcessSetId id, std::vector<Rank> ranks) {
  const std::string name = "process set " + std::to_string(id);
  if (sets_.count(id) > 0) return InvalidArgument(name + " exists already");
  if (ranks.empty()) return InvalidArgument(name + " has no ranks");
  std::sort(ranks.begin(), ranks.end());
  for (size_t i = 0; i < ranks.size(); ++i) {
    if (ranks[i] < 0 || ranks[i] >= size_) {
      return InvalidArgument(name + " names rank " + std::to_string(ranks[i]) +
                             ", but ranks go from " + "0 to " + std::to_string(size_ - 1));
    }
    if (i > 0 && ranks[i] == ranks[i - 1]) {
      return InvalidArgument(name + " names rank " + std::to_string(ranks[i]) + " twice");
    }
  }
  sets_[id] = std::move(ranks);
  last_id_ = std::max(last_id_, id);
  return OkStatus();
}

Status ProcessSets::Remove(ProcessSetId id) {
  if (id == kGlobalProcessSet) return InvalidArgument("the global process set cannot be removed");
  if (sets_.erase(id) > 0) return OkStatus();
  return InvalidArgument("there is no process set " + std::to_string(id) +
                         ": it was never added, or it was removed before");
}

ProcessSetId ProcessSets::FindEqual(const std::vector<Rank>& ranks) const {
  for (const auto& [id, members] : sets_) {
    if (members == ranks) return id;
  }
  return -1;
}

const std::vector<Rank>* ProcessSets::Find(ProcessSetId id) const {
  const auto it = sets_.find(id);
  return it == sets_.end() ? nullptr : &it->second;
}

bool ProcessSets::Contains(ProcessSetId id, Rank rank) const {
  const std::vector<Rank>* members = Find(id);
  return members != nullptr && std::binary_search(members->begin(), members->end(), rank);
}

std::string NoSuchSet(ProcessSetId id) {
  return "there is no process set " + std::to_string(id) +
         ": add it on every rank before its use, and do not use it once it is removed. A function "
         "that was traced with the sets of an earlier init() has to be traced again";
}

Status SetWasRemoved(const Request& request) {
  return FailedPrecondition(Describe(request) + " in process set " +
                            std::to_string(request.process_set) +
                            ": the process set was removed before all its ranks had made the call; "
                            "remove a process set when all its collectives have ended");
}

Status AdmitRequest(const ProcessSets& sets, Rank self, const CallMemory* memory,
                    Request* request) {
  const std::string tensor = "tensor '" + request->name + "'";
  const std::vector<Rank>* members = sets.Find(request->process_set);
  if (members == nullptr) return InvalidArgument(tensor + ": " + NoSuchSet(request->process_set));
  if (!sets.Contains(request->process_set, self)) {
    return InvalidArgument(tensor + " was called on rank " + std::to_string(self) +
                           ", but process set " + std::to_string(request->process_set) +
                           " has only the ranks " + RanksString(*members) +
                           "; call it on those ranks only");
  }
  TFRING_RETURN_IF_ERROR(CheckRouting(*request, *members, self));
  if (!request->refusal.empty()) return OkStatus();
  const Status valid = CheckContent(*request, *members, self, memory);
  if (!valid.ok()) Refuse(valid, request);
  return OkStatus();
}

}  // namespace tfring
