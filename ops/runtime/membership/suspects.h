#ifndef TFRING_OPS_RUNTIME_MEMBERSHIP_SUSPECTS_H_
#define TFRING_OPS_RUNTIME_MEMBERSHIP_SUSPECTS_H_

#include <algorithm>
#include <set>
#include <utility>
#include <vector>

#include "ops/runtime/membership/messages.h"

namespace tfring::membership {

// Pairs of workers that cannot reach each other although the coordinator hears both. A pair that
// fails in two generations in a row cannot be in one generation. Accusations of a worker that
// stopped by choice do not count: it has closed its connections. Used by one thread.
class Suspects {
 public:
  // In the generation that ends. A worker that stopped although nothing was broken names itself.
  void Accuse(WorkerId accuser, WorkerId suspect) {
    if (suspect == accuser) {
      willing_.insert(accuser);
    } else if (suspect != kNobody) {
      now_.insert(std::minmax(accuser, suspect));
    }
  }
  // A generation has made a step, so its members can reach each other.
  void Clear() {
    before_.clear();
    now_.clear();
    willing_.clear();
  }
  // Ends the generation; `workers` are left, in the order in which they came. Returns the workers
  // to exclude, so that no pair that failed in two generations in a row is left. Excludes few: the
  // worker in most pairs first, and of two the one that came last.
  std::vector<WorkerId> EndOfGeneration(const std::vector<WorkerId>& workers);

 private:
  using Pairs = std::set<std::pair<WorkerId, WorkerId>>;
  Pairs before_;  // of the last generation that ended
  Pairs now_;
  std::set<WorkerId> willing_;  // stopped by choice in the generation that ends
};

}  // namespace tfring::membership

#endif  // TFRING_OPS_RUNTIME_MEMBERSHIP_SUSPECTS_H_
