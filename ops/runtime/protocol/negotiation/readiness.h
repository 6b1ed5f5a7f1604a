#ifndef TFRING_OPS_RUNTIME_PROTOCOL_NEGOTIATION_READINESS_H_
#define TFRING_OPS_RUNTIME_PROTOCOL_NEGOTIATION_READINESS_H_

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "ops/runtime/base/types.h"
#include "ops/runtime/protocol/message/request.h"
#include "ops/runtime/protocol/negotiation/name_table.h"
#include "ops/runtime/protocol/negotiation/response_cache.h"
#include "ops/runtime/protocol/negotiation/stall_inspector.h"

namespace tfring {

// How one member asked for a tensor: by cache id or in full. Exactly one is set.
struct RankRequest {
  std::shared_ptr<const Agreement> cached;
  std::unique_ptr<Request> full;
  uint64_t order = 0;  // ascends over all requests of the generation; 0: has not asked

  const Request& common() const { return full ? *full : cached->request; }
};

// A tensor that at least one member of a process set has asked for and that is not planned yet.
struct Pending {
  uint64_t handle = 0;
  ProcessSetId process_set = kGlobalProcessSet;
  std::string name;
  std::vector<Rank> members;  // between whom it is agreed: the set, or the two of a send/recv
  std::vector<RankRequest> rank_requests;  // by position in `members`
  size_t asked = 0;
  TimePoint since = 0;
  bool watched = false;
  StallInspector::Token watch;
  // Nothing is missing any more; what was agreed on:
  bool complete = false;
  std::vector<Rank> absent;
  std::vector<int64_t> negotiated_values;  // where it is not to be had from the cache

  const Request& AnyRequest() const;
  std::vector<Rank> AskedBy() const;
  Rank LastToAsk() const;
};

// Who has asked for what, in every process set. Control thread of rank 0; lives for one generation.
class Readiness {
 public:
  // Notes that `from`, one of `members`, asked; null if it had asked for this name already. Where
  // the ranks differ about who takes part, all of them do, so that all learn of it.
  Pending* Add(ProcessSetId set, const std::string& name, const std::vector<Rank>& members,
               Rank from, RankRequest rank_request, TimePoint now);

  // The name may be asked for again before `pending` is erased.
  void ReleaseName(const Pending& pending);

  // Null once it was erased.
  Pending* Find(uint64_t handle);
  void Erase(uint64_t handle);

  // All, the oldest first.
  const std::map<uint64_t, Pending>& all() const { return pending_; }

 private:
  static void Widen(Pending* pending, const std::vector<Rank>& members);

  std::map<uint64_t, Pending> pending_;
  NameTable<Pending*> by_name_;
  uint64_t last_handle_ = 0;
  uint64_t last_order_ = 0;
};

}  // namespace tfring

#endif  // TFRING_OPS_RUNTIME_PROTOCOL_NEGOTIATION_READINESS_H_
