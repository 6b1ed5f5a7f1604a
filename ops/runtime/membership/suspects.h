#ifndef TFRING_OPS_RUNTIME_MEMBERSHIP_SUSPECTS_H_
#define TFRING_OPS_RUNTIME_MEMBERSHIP_SUSPECTS_H_

#include <algorithm>
#include <set>
#include <utility>
#include <vector>

#include "ops/runtime/membership/messages.h"

namespace tfring::membership {

// Which workers say of each other that they cannot be reached, although the coordinator hears both:
// a pair that does so in two generations in a row cannot be in one generation. What is said of one
// that has stopped by its own wish does not count: it has closed its connections. One thread.
class Suspects {
 public:
  // In the generation that ends now. Who names itself has stopped although nothing was broken.
  void Accuse(WorkerId accuser, WorkerId suspect) {
    if (suspect == accuser) {
      willing_.insert(accuser);
    } else if (suspect != kNobody) {
      now_.insert(std::minmax(accuser, suspect));
    }
  }
  // A generation has made a step: its members can reach each other.
  void Clear() {
    before_.clear();
    now_.clear();
    willing_.clear();
  }
  // The generation has ended, `workers` are left, in the order in which they came. Returns whom to
  // do without, so that no pair of two generations in a row is left: the fewest that can be found
  // by taking the one in most pairs first, and of two the one that came last.
  std::vector<WorkerId> EndOfGeneration(const std::vector<WorkerId>& workers);

 private:
  using Pairs = std::set<std::pair<WorkerId, WorkerId>>;
  Pairs before_;  // in the last generation that ended
  Pairs now_;
  std::set<WorkerId> willing_;  // who has stopped by its own wish in the generation that ends now
};

}  // namespace tfring::membership

#endif  // TFRING_OPS_RUNTIME_MEMBERSHIP_SUSPECTS_H_
