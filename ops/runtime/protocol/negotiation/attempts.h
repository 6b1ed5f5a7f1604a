#ifndef TFRING_OPS_RUNTIME_PROTOCOL_NEGOTIATION_ATTEMPTS_H_
#define TFRING_OPS_RUNTIME_PROTOCOL_NEGOTIATION_ATTEMPTS_H_

#include <cstdint>
#include <map>
#include <string>
#include <utility>

#include "ops/runtime/base/status.h"
#include "ops/runtime/base/types.h"

namespace tfring {

// This rank leaves its attempt of the process set, because its step failed.
struct Withdrawal {
  ProcessSetId process_set = kGlobalProcessSet;
  uint64_t attempt = 0;  // counted on this rank; nothing happens if it was left before
  Status cause;          // not ok
};

// This rank has left the attempt, because of what rank 0 has answered to one of its calls.
struct AttemptEnd {
  ProcessSetId process_set = kGlobalProcessSet;
  uint64_t attempt = 0;  // counted on this rank
  Status error;          // of the calls of this attempt that are still made
};

// Aborted: `what` ("allreduce of tensor 'x'") has come to nothing, because a step failed; `why`
// names the rank and the cause.
Status StepFailed(const std::string& what, const std::string& why);

// Rank 0's knowledge of the attempts of each process set. All ranks begin in attempt 0. A rank
// whose step fails leaves its attempt. When the first rank leaves, or when ranks disagree in a
// step, the attempt is over for all of them, and each leaves it when it learns that. Ranks report
// this in order with their requests, so rank 0 always knows to which attempt a request belongs.
// Attempts are counted one by one: a rank that is several attempts behind fails as often as the
// others did, until all are in the same attempt. Sets without a failure take no memory. Part of the
// Sequencer.
class Attempts {
 public:
  // Ends the current attempt of the set. Ranks that are still in it get `why` as their error.
  void End(ProcessSetId set, const std::string& why);

  // `rank` leaves its attempt, which has ended.
  void Leave(ProcessSetId set, Rank rank);

  // How many attempts of the set are over.
  uint64_t Over(ProcessSetId set) const;

  // Why the attempt of `rank` is over; null while it is not.
  const std::string* WhyOver(ProcessSetId set, Rank rank) const;

  void DropSet(ProcessSetId set) { sets_.erase(set); }

 private:
  struct OfSet {
    uint64_t over = 0;                        // how many attempts
    std::map<Rank, uint64_t> left;            // how many each rank has left
    std::map<uint64_t, std::string> reasons;  // of the latest attempts that are over
  };
  std::map<ProcessSetId, OfSet> sets_;
};

}  // namespace tfring

#endif  // TFRING_OPS_RUNTIME_PROTOCOL_NEGOTIATION_ATTEMPTS_H_
