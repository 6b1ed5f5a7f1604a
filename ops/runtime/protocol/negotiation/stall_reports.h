#ifndef TFRING_OPS_RUNTIME_PROTOCOL_NEGOTIATION_STALL_REPORTS_H_
#define TFRING_OPS_RUNTIME_PROTOCOL_NEGOTIATION_STALL_REPORTS_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "ops/runtime/base/config.h"
#include "ops/runtime/base/status.h"
#include "ops/runtime/base/types.h"
#include "ops/runtime/protocol/negotiation/join.h"
#include "ops/runtime/protocol/negotiation/readiness.h"
#include "ops/runtime/protocol/negotiation/stall_inspector.h"

namespace tfring {

// Finds tensors that have waited too long for some of their ranks, and ranks that wait for each
// other, and writes the warnings about them. Part of the Sequencer.
class StallReports {
 public:
  StallReports(const Config& config, Readiness* readiness, const Joins* joins);

  // The rank has requested something.
  void OnRequest(Rank rank, TimePoint now) { last_request_[rank] = now; }

  // The tensor waits for some of its ranks from now on, unless it does already; or no longer.
  void Watch(PendingTensor* pending, TimePoint now);
  void Forget(PendingTensor* pending);

  // This process did not run for `pause`: no stall is judged by that time.
  void PutOff(Duration pause);

  TimePoint next_deadline() const;

  // Appends the warnings that are due. DeadlineExceeded when a tensor has stalled for too long.
  Status OnTime(TimePoint now, std::vector<std::string>* warnings);

 private:
  struct OldestWait {  // of one rank: its oldest request that waits for other ranks
    uint64_t order = 0;
    const PendingTensor* pending = nullptr;
    size_t position = 0;  // of the rank among the members
  };
  std::map<Rank, OldestWait> OldestWaits() const;
  std::string Report(const PendingTensor& pending, TimePoint now,
                     const std::map<Rank, OldestWait>& waits) const;
  TimePoint CircleDeadline() const;
  // DeadlineExceeded when ranks wait for each other in eager calls for too long.
  Status CheckCircles(TimePoint now, std::vector<std::string>* warnings);
  bool WaitOnlyInEagerCalls(const std::vector<Rank>& ranks) const;
  std::vector<StallWait> IncompleteWaits() const;

  Readiness& readiness_;
  const Joins& joins_;
  StallInspector inspector_;
  const Duration shutdown_;
  const Duration circle_warning_;           // ranks may wait this long for each other
  std::map<Rank, TimePoint> last_request_;  // when a rank last asked for anything
  TimePoint next_circle_check_ = 0;         // not before
  uint64_t reported_circle_ = 0;            // handle of its oldest tensor
};

}  // namespace tfring

#endif  // TFRING_OPS_RUNTIME_PROTOCOL_NEGOTIATION_STALL_REPORTS_H_
