#ifndef TFRING_OPS_RUNTIME_PROTOCOL_ENGINE_ENDING_H_
#define TFRING_OPS_RUNTIME_PROTOCOL_ENGINE_ENDING_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "ops/runtime/base/status.h"
#include "ops/runtime/base/types.h"
#include "ops/runtime/protocol/engine/peers.h"

namespace tfring {

// What this rank knows of the end of its generation.
struct GenerationHealth {
  Status error;                // not ok: why collectives of all ranks are no longer possible
  std::vector<Rank> lost;      // the ranks whose loss ended it, ascending
  std::vector<Rank> departed;  // the other ranks that have left, ascending
};

// What has ended on this rank. Three facts, in any order; each is set at most once, by the first
// call of Close, Abort or End, and later calls do nothing:
//   closed:  this rank takes no new calls, and those that wait end (after a shutdown here or of
//            rank 0);
//   aborted: the backend was aborted, because a plan broke or a peer was lost; plans that still
//            arrive are not run;
//   ended:   the generation is over, and the reason is known: every remaining call ends with it.
// A generation that has ended is also closed and aborted at the end of that Step. Plans that the
// backend runs end with their completions, whatever is set. Part of the engine.
class Ending {
 public:
  const Status& closed() const { return closed_; }  // not ok: why new calls are refused
  bool aborted() const { return aborted_; }
  const Status& ended() const { return ended_; }  // not ok: why the generation is over
  bool leaving() const { return leaving_; }       // this rank shuts down

  // This rank wants to shut down after the locked schedule has ended, or at `deadline` in any case.
  // `exception` ends the process; "" for none. Only the first call counts.
  void WantToLeave(const std::string& exception, TimePoint deadline);
  bool wants_to_leave() const { return wanted_.has_value(); }
  TimePoint wanted_deadline() const { return wanted_ ? wanted_->deadline : kNever; }
  // Clears that and returns the exception. Requires wants_to_leave().
  std::string TakeWanted();

  // This rank leaves, and waits for other ranks until `deadline`. False if it was leaving already.
  [[nodiscard]] bool Leave(TimePoint deadline);
  TimePoint leave_deadline() const { return leave_deadline_; }

  // `why` is not ok. From now on plans that run have to move data; `progress` of the backend
  // changes if they do.
  void Close(const Status& why, TimePoint now, int64_t progress);
  // False if it was aborted already.
  [[nodiscard]] bool Abort() { return !std::exchange(aborted_, true); }
  // `why` is not ok. `culprit` was lost, or has left if `why` is Cancelled; kNoRank for no other
  // rank. False if the generation had ended already.
  [[nodiscard]] bool End(const Status& why, Rank culprit);

  // Plans that still run then are aborted, unless data moves.
  TimePoint drain_deadline() const { return drain_deadline_; }
  // Call it at the deadline. If data has moved since the last call, sets a new deadline and returns
  // false.
  bool DrainIsOver(TimePoint now, int64_t progress);

  // This process did not run for `pause`.
  void PutOff(Duration pause);

  void AddDeparted(Rank rank);

  // Call it at the end of a Step. Null if nothing has changed since the last call.
  std::shared_ptr<const GenerationHealth> TakeHealth(const PeerTexts& texts, Rank first_departed);

 private:
  struct Wanted {
    std::string exception;
    TimePoint deadline;
  };

  std::optional<Wanted> wanted_;
  bool leaving_ = false;
  bool aborted_ = false;
  Status closed_;
  Status ended_;
  TimePoint leave_deadline_ = kNever;
  TimePoint drain_deadline_ = kNever;
  int64_t drain_progress_ = 0;  // of the backend, when drain_deadline_ was set
  std::set<Rank> lost_;
  std::set<Rank> departed_;
  bool changed_ = false;  // since the last TakeHealth
};

}  // namespace tfring

#endif  // TFRING_OPS_RUNTIME_PROTOCOL_ENGINE_ENDING_H_
