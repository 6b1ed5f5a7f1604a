#include "ops/runtime/protocol/negotiation/waiting_calls.h"

#include <algorithm>

namespace tfring {

void WaitingCalls::Add(WaitingCall call) {
  const ProcessSetId set = call.request.process_set;
  const std::string name = call.request.name;
  const uint32_t sent_id = call.sent_id;
  WaitingCall* added = by_name_.Put(set, name, std::move(call));
  if (sent_id != 0) by_sent_id_[sent_id] = added;
}

WaitingCall WaitingCalls::Take(WaitingCall* call) {
  WaitingCall taken = std::move(*call);
  if (taken.sent_id != 0) by_sent_id_.erase(taken.sent_id);
  by_name_.Erase(taken.request.process_set, taken.request.name);
  return taken;
}

WaitingCall* WaitingCalls::FindSent(uint32_t cache_id) const {
  const auto found = by_sent_id_.find(cache_id);
  return found == by_sent_id_.end() ? nullptr : found->second;
}

std::vector<uint32_t> WaitingCalls::SentIds() const {
  std::vector<std::pair<CallId, uint32_t>> sent;
  for (const auto& [id, call] : by_sent_id_) sent.emplace_back(call->id, id);
  std::sort(sent.begin(), sent.end());
  std::vector<uint32_t> ids;
  for (const auto& call : sent) ids.push_back(call.second);
  return ids;
}

std::vector<CallId> WaitingCalls::TakeAll() {
  std::vector<CallId> ids;
  ForEach([&ids](const WaitingCall& call) { ids.push_back(call.id); });
  by_name_ = {};
  by_sent_id_.clear();
  std::sort(ids.begin(), ids.end());
  return ids;
}

}  // namespace tfring
