#ifndef TFRING_OPS_RUNTIME_PROTOCOL_NEGOTIATION_RESPONSE_CACHE_H_
#define TFRING_OPS_RUNTIME_PROTOCOL_NEGOTIATION_RESPONSE_CACHE_H_

#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "ops/runtime/base/types.h"
#include "ops/runtime/protocol/message/request.h"
#include "ops/runtime/protocol/negotiation/name_table.h"

namespace tfring {

// What the members of a process set agreed on under one cache id. Immutable and shared, because
// requests that came as the id may still wait when it is evicted.
struct Agreement {
  uint32_t id = 0;
  Request request;                         // of the member at position 0
  std::vector<int64_t> negotiated_values;  // only of kinds with own_rows; as in PlanItem
  std::vector<std::string> call_sites;     // by position; empty if all are that of `request`
  std::vector<DataPath> paths = {};        // the same

  // The request of the member at `position`.
  Request RequestOf(int position) const;
  const std::string& CallSiteOf(size_t position) const {
    return call_sites.empty() ? request.call_site : call_sites.at(position);
  }
  DataPath PathOf(size_t position) const {
    return paths.empty() ? request.path : paths.at(position);
  }
};

// The sequencer's response cache, for kinds that are cacheable: the agreement of each cache id. Ids
// ascend and are never used twice in a generation, so an id that crosses its own eviction cannot be
// mistaken for another request. A full cache evicts the least recently planned agreement. Part of
// the Planner.
class ResponseCache {
 public:
  explicit ResponseCache(int64_t capacity) : capacity_(capacity) {}

  // The agreement, or null when it was evicted or never was. (See Issued().)
  std::shared_ptr<const Agreement> Find(uint32_t id) const;

  // True if `id` has ever been handed out.
  bool Issued(uint32_t id) const { return id != 0 && id <= last_id_; }

  // Makes `id`, which is in the cache, the most recently used.
  void Touch(uint32_t id);

  // Stores the agreement under a new id, replacing one of the same name. 0, and nothing stored, if
  // the cache is disabled or has run out of ids.
  uint32_t Insert(Agreement agreement);

  // Hands over the ids of the set that were evicted since the last call.
  std::vector<uint32_t> TakeEvicted(ProcessSetId set);
  // Whether there are any, of any set.
  bool has_evicted() const { return !evicted_.empty(); }

  // The set was removed. Its ids need no announcement: the plan that removes the set drops them on
  // every rank.
  void DropSet(ProcessSetId set);

  size_t size() const { return by_id_.size(); }

 private:
  struct Slot {
    std::shared_ptr<const Agreement> agreement;
    std::list<uint32_t>::iterator use;
  };
  void Evict(uint32_t id);

  int64_t capacity_;
  uint32_t last_id_ = 0;
  std::unordered_map<uint32_t, Slot> by_id_;
  NameTable<uint32_t> by_name_;
  std::list<uint32_t> uses_;  // the latest at the back
  std::map<ProcessSetId, std::vector<uint32_t>> evicted_;
};

// The same on each member: this rank's own request for each cache id, learned from plans. Part of
// the Participant.
class KnownIds {
 public:
  struct Known {
    uint32_t id = 0;
    Request request;                         // this rank's own
    std::vector<int64_t> negotiated_values;  // as in PlanItem
  };

  // The id of exactly this request, call site included, or 0: a stall report names the line from
  // which a call is made now.
  uint32_t IdFor(const Request& request);

  const Known* Find(uint32_t id) const;

  // From now on `id` means `request`; an older id of the same name is forgotten.
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
