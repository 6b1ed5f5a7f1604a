#include "ops/runtime/protocol/negotiation/response_cache.h"

#include <iterator>
#include <utility>

#include "ops/runtime/base/check.h"

namespace tfring {

Request Agreement::RequestOf(int position) const {
  Request own = request;
  own.call_site = CallSiteOf(static_cast<size_t>(position));
  own.path = PathOf(static_cast<size_t>(position));
  const bool by_tensor = Traits(own.kind).own_rows();
  TFRING_CHECK(Traits(own.kind).cacheable && by_tensor != negotiated_values.empty())
      << Describe(own) << ": " << negotiated_values.size() << " negotiated values";
  if (!by_tensor) return own;
  const size_t members = negotiated_values.size() / own.shapes.size();
  for (size_t t = 0; t < own.shapes.size(); ++t) {
    own.shapes[t][0] = negotiated_values[t * members + static_cast<size_t>(position)];
  }
  return own;
}

std::shared_ptr<const Agreement> ResponseCache::Find(uint32_t id) const {
  const auto it = by_id_.find(id);
  return it == by_id_.end() ? nullptr : it->second;
}

uint32_t ResponseCache::Insert(Agreement agreement) {
  const ProcessSetId set = agreement.request.process_set;
  const std::string name = agreement.request.name;
  const uint32_t* old = by_name_.Find(set, name);
  if (old == nullptr && !HasRoomFor(set, name)) return 0;
  if (last_id_ == UINT32_MAX) return 0;
  if (old != nullptr) by_id_.erase(*old);
  agreement.id = ++last_id_;
  by_name_.Put(set, name, last_id_);
  by_id_[last_id_] = std::make_shared<const Agreement>(std::move(agreement));
  return last_id_;
}

bool ResponseCache::HasRoomFor(ProcessSetId set, const std::string& name) {
  const int64_t taken = static_cast<int64_t>(by_name_.size());
  if (taken >= capacity_) return false;
  if (2 * taken < capacity_) return true;
  if (seen_once_.Find(set, name) != nullptr) return true;
  if (static_cast<int64_t>(seen_once_.size()) >= capacity_) seen_once_ = {};
  seen_once_.Put(set, name, true);
  return false;
}

uint32_t KnownIds::IdFor(const Request& request) {
  const uint32_t* id = by_name_.Find(request.process_set, request.name);
  if (id == nullptr || !(by_id_.at(*id).request == request)) return 0;
  return *id;
}

const KnownIds::Known* KnownIds::Find(uint32_t id) const {
  const auto it = by_id_.find(id);
  return it == by_id_.end() ? nullptr : &it->second;
}

void KnownIds::Learn(uint32_t id, const Request& request,
                     const std::vector<int64_t>& negotiated_values) {
  if (const uint32_t* old = by_name_.Find(request.process_set, request.name)) by_id_.erase(*old);
  by_name_.Put(request.process_set, request.name, id);
  by_id_[id] = {id, request, negotiated_values};
}

void KnownIds::ForgetSet(ProcessSetId set) {
  by_name_.EraseSet(set);
  for (auto it = by_id_.begin(); it != by_id_.end();) {
    it = it->second.request.process_set == set ? by_id_.erase(it) : std::next(it);
  }
}

}  // namespace tfring
