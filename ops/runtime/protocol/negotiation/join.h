#ifndef TFRING_OPS_RUNTIME_PROTOCOL_NEGOTIATION_JOIN_H_
#define TFRING_OPS_RUNTIME_PROTOCOL_NEGOTIATION_JOIN_H_

#include <map>
#include <set>
#include <string>
#include <vector>

#include "ops/runtime/base/status.h"
#include "ops/runtime/base/types.h"
#include "ops/runtime/protocol/negotiation/readiness.h"

namespace tfring {

// Which ranks have joined which process set. A rank that has joined sends no requests for the set
// until all its members have joined, and the others continue without it. A rank that has joined the
// global set is absent from every set. Part of the Sequencer.
class Joins {
 public:
  bool Has(ProcessSetId set, Rank rank) const;
  bool empty() const { return joined_.empty(); }

  // `rank` joins. FailedPrecondition if others have joined this set under another name: neither
  // join could ever be complete.
  Status Join(ProcessSetId set, const std::string& name, Rank rank);

  // The join of `rank` ended with an error.
  void Leave(ProcessSetId set, Rank rank);

  // All have joined: from here on all take part again.
  void Clear(ProcessSetId set) { joined_.erase(set); }

  // The members that `pending` need not wait for: those that have joined, and sent no request for
  // it before.
  std::vector<Rank> AbsentFrom(const PendingTensor& pending) const;

 private:
  struct Joined {
    std::string name;
    std::set<Rank> ranks;
  };
  bool In(ProcessSetId set, Rank rank) const;

  std::map<ProcessSetId, Joined> joined_;  // no element is empty
};

// FailedPrecondition if the collective of `request` is not possible without the ranks `absent`.
Status CheckAbsent(const Request& request, const std::vector<Rank>& absent);

}  // namespace tfring

#endif  // TFRING_OPS_RUNTIME_PROTOCOL_NEGOTIATION_JOIN_H_
