#include "ops/runtime/protocol/engine/pending_calls.h"

namespace tfring {

bool PendingCalls::Add(uint64_t id, const Request& request) {
  if (by_name_.Find(request.process_set, request.name) != nullptr) return false;
  by_name_.Put(request.process_set, request.name, id);
  entries_.emplace(id, Open{request.process_set, request.name, false});
  return true;
}

std::optional<uint64_t> PendingCalls::FindWaiting(ProcessSetId set, const std::string& name) {
  const uint64_t* id = by_name_.Find(set, name);
  if (id == nullptr || entries_.at(*id).running) return std::nullopt;
  return *id;
}

void PendingCalls::Remove(uint64_t id) {
  auto it = entries_.find(id);
  if (it == entries_.end()) return;
  by_name_.Erase(it->second.set, it->second.name);
  entries_.erase(it);
}

void PendingCalls::HandOver(uint64_t sequence, std::vector<uint64_t> ids) {
  for (uint64_t id : ids) entries_.at(id).running = true;
  running_.emplace(sequence, std::move(ids));
}

std::vector<uint64_t> PendingCalls::TakeRunning(uint64_t sequence) {
  auto it = running_.find(sequence);
  if (it == running_.end()) return {};
  std::vector<uint64_t> ids = std::move(it->second);
  running_.erase(it);
  for (uint64_t id : ids) Remove(id);
  return ids;
}

std::vector<uint64_t> PendingCalls::TakeWaiting() {
  std::vector<uint64_t> ids;
  for (const auto& [id, open] : entries_) {
    if (!open.running) ids.push_back(id);
  }
  for (uint64_t id : ids) Remove(id);
  return ids;
}

std::string PendingCalls::Describe(uint64_t sequence) const {
  auto it = running_.find(sequence);
  if (it == running_.end() || it->second.empty()) return "a collective";
  std::string text = "'" + entries_.at(it->second.front()).name + "'";
  if (it->second.size() > 1) text += " and " + std::to_string(it->second.size() - 1) + " more";
  return text;
}

std::string PendingCalls::DescribeOldest() const {
  return Describe(running_.empty() ? 0 : running_.begin()->first);
}

}  // namespace tfring
