#ifndef TFRING_OPS_RUNTIME_PROTOCOL_NEGOTIATION_RESPONSE_CACHE_H_
#define TFRING_OPS_RUNTIME_PROTOCOL_NEGOTIATION_RESPONSE_CACHE_H_

#include <cstdint>
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
// requests that came as the id may still wait when it is replaced.
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
// ascend and are never used twice in a generation. A full cache gives no more ids. Its second half
// is for names that come again, because a program may give each call a name of its own, as
// "loss_17". An agreement is replaced only by a plan that all members of the set take, so no rank
// sends the old id after it. Part of the Planner.
class ResponseCache {
 public:
  explicit ResponseCache(int64_t capacity) : capacity_(capacity) {}

  // The agreement, or null when it was replaced or never was.
  std::shared_ptr<const Agreement> Find(uint32_t id) const;

  // Stores the agreement under a new id, replacing one of the same name. 0, and nothing stored, if
  // the cache is disabled, full, or has run out of ids.
  uint32_t Insert(Agreement agreement);

  // The set was removed. A rank that does not know that yet may still send the ids, so they stay.
  void DropSet(ProcessSetId set) {
    by_name_.EraseSet(set);
    seen_once_.EraseSet(set);
  }

 private:
  bool HasRoomFor(ProcessSetId set, const std::string& name);

  const int64_t capacity_;
  uint32_t last_id_ = 0;
  std::unordered_map<uint32_t, std::shared_ptr<const Agreement>> by_id_;
  NameTable<uint32_t> by_name_;  // of sets that are there
  NameTable<bool> seen_once_;    // the same; at most `capacity_` of them
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

  // All ids of the set.
  void ForgetSet(ProcessSetId set);

 private:
  std::unordered_map<uint32_t, Known> by_id_;
  NameTable<uint32_t> by_name_;
};

}  // namespace tfring

#endif  // TFRING_OPS_RUNTIME_PROTOCOL_NEGOTIATION_RESPONSE_CACHE_H_
