#ifndef TFRING_OPS_RUNTIME_PROTOCOL_NEGOTIATION_RESPONSE_CACHE_H_
#define TFRING_OPS_RUNTIME_PROTOCOL_NEGOTIATION_RESPONSE_CACHE_H_

#include <cstdint>
#include <list>
#include <memory>
#include <unordered_map>
#include <utility>
#include <vector>

#include "ops/runtime/base/types.h"
#include "ops/runtime/protocol/message/request.h"
#include "ops/runtime/protocol/negotiation/name_table.h"

namespace tfring {

// Whether an id can stand for a request of this kind: what each member asked for has to follow from
// the request of one and the first dimensions of all.
constexpr bool Cacheable(CollectiveKind kind) {
  return kind == CollectiveKind::kAllreduce || kind == CollectiveKind::kAllgather ||
         kind == CollectiveKind::kBroadcast || kind == CollectiveKind::kBarrier ||
         kind == CollectiveKind::kReducescatter || kind == CollectiveKind::kReduce ||
         kind == CollectiveKind::kGather;
}

// What the members of a process set agreed on under one cache id. Immutable; whoever still needs it
// after an eviction holds on to it.
struct Agreement {
  uint32_t id = 0;
  Request request;                         // of the member at position 0
  std::vector<int64_t> negotiated_values;  // allgather and gather only, as in PlanItem

  // What the member at `position` asked for.
  Request RequestOf(int position) const;
};

// The sequencer's response cache: which agreement an id stands for. Ids ascend and are never used
// twice in a generation; the least recently planned agreement goes when the cache is full. Control
// thread of rank 0; lives for one generation.
class ResponseCache {
 public:
  using Evicted = std::vector<std::pair<ProcessSetId, uint32_t>>;

  explicit ResponseCache(int64_t capacity) : capacity_(capacity) {}

  // The agreement, or null when it was evicted or never was. (See Issued().)
  std::shared_ptr<const Agreement> Find(uint32_t id) const;

  // True if `id` has ever been handed out.
  bool Issued(uint32_t id) const { return id != 0 && id <= last_id_; }

  // Counts as the latest use of `id`, which must be in the cache.
  void Touch(uint32_t id);

  // Stores an agreement under a new id, instead of an older one of this name; appends what went
  // for it to `evicted`. 0, and nothing stored, if the cache is disabled or has run out of ids.
  uint32_t Insert(const Request& request, std::vector<int64_t> negotiated_values, Evicted* evicted);

  // The set is gone. Nobody has to be told of the ids: all see it go.
  void DropSet(ProcessSetId set);

  size_t size() const { return by_id_.size(); }

 private:
  struct Slot {
    std::shared_ptr<const Agreement> agreement;
    std::list<uint32_t>::iterator use;
  };
  void Evict(uint32_t id, Evicted* evicted);

  int64_t capacity_;
  uint32_t last_id_ = 0;
  std::unordered_map<uint32_t, Slot> by_id_;
  NameTable<uint32_t> by_name_;
  std::list<uint32_t> uses_;  // the latest at the back
};

// A member's view of the same: what an id stands for here, fed from the plan stream. Control
// thread; lives for one generation.
class KnownIds {
 public:
  struct Known {
    uint32_t id = 0;
    Request request;                         // this rank's own
    std::vector<int64_t> negotiated_values;  // as in PlanItem
  };

  // The id that stands for exactly this request on this rank, or 0.
  uint32_t IdFor(const Request& request);

  const Known* Find(uint32_t id) const;

  // From now on `id` stands for `request`, and an older id of that name for nothing.
  void Learn(uint32_t id, const Request& request, const std::vector<int64_t>& negotiated_values);

  // Does nothing for an id that is forgotten already.
  void Forget(uint32_t id);

  // All ids of the set.
  void ForgetSet(ProcessSetId set);

  size_t size() const { return by_id_.size(); }

 private:
  std::unordered_map<uint32_t, Known> by_id_;
  NameTable<uint32_t> by_name_;
};

}  // namespace tfring

#endif  // TFRING_OPS_RUNTIME_PROTOCOL_NEGOTIATION_RESPONSE_CACHE_H_
