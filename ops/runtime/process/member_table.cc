#include "ops/runtime/process/member_table.h"

#include <string>
#include <utility>

namespace tfring {

MemberTable::MemberTable(int size) : size_(size) {
  sets_[kGlobalProcessSet] =
      std::make_shared<const std::vector<Rank>>(*ProcessSets(size).Find(kGlobalProcessSet));
}

MemberTable::Members MemberTable::Find(ProcessSetId id) const {
  std::lock_guard<std::mutex> lock(mutex_);
  const auto it = sets_.find(id);
  return it == sets_.end() ? nullptr : it->second;
}

std::map<ProcessSetId, std::vector<Rank>> MemberTable::All() const {
  std::map<ProcessSetId, std::vector<Rank>> all;
  std::lock_guard<std::mutex> lock(mutex_);
  for (const auto& [id, members] : sets_) all[id] = *members;
  return all;
}

Status MemberTable::Add(ProcessSetId id, std::vector<Rank> ranks) {
  ProcessSets checked(size_);
  TFRING_RETURN_IF_ERROR(checked.Add(id, std::move(ranks)));
  auto members = std::make_shared<const std::vector<Rank>>(*checked.Find(id));
  std::lock_guard<std::mutex> lock(mutex_);
  if (!sets_.emplace(id, std::move(members)).second) {
    return InvalidArgument("process set " + std::to_string(id) + " exists already");
  }
  return OkStatus();
}

void MemberTable::Remove(ProcessSetId id) {
  std::lock_guard<std::mutex> lock(mutex_);
  sets_.erase(id);
}

}  // namespace tfring
