#ifndef TFRING_OPS_RUNTIME_PROTOCOL_ENGINE_ENDING_H_
#define TFRING_OPS_RUNTIME_PROTOCOL_ENGINE_ENDING_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "ops/runtime/base/status.h"
#include "ops/runtime/base/types.h"
#include "ops/runtime/protocol/engine/peer_texts.h"

namespace tfring {

// What this rank knows of the end of its generation.
struct GenerationHealth {
  Status error;            // not ok: collectives of all ranks are not possible any more, and why
  std::vector<Rank> lost;  // the ranks whose loss ended it, ascending
  std::vector<Rank> departed;  // the other ranks that have left, ascending
};

// How far the generation has come to its end on this rank. It ends in three stages, each at most
// once and in this order:
//   closed:  no new calls, and those that wait end (after a shutdown here or on rank 0);
//   aborted: the backend was aborted, because a plan broke or a peer was lost; plans that still
//            arrive are not run;
//   ended:   the generation is over, and it is known why: every call that remains ends with that.
// The end of the generation includes the other two. Plans that the backend has end with their
// completions in any stage. Part of the engine.
class Ending {
 public:
  const Status& closed() const { return closed_; }  // not ok: why new calls are refused
  bool aborted() const { return aborted_; }
  const Status& ended() const { return ended_; }  // not ok: why the generation is over
  bool leaving() const { return leaving_; }       // this rank shuts down

  // This rank wants to shut down, but a locked schedule has to end first, at the latest then.
  // `exception` ends the process; "" for none.
  void WantToLeave(const std::string& exception, TimePoint deadline);
  bool wants_to_leave() const { return wanted_.has_value(); }
  TimePoint wanted_deadline() const { return wanted_ ? wanted_->deadline : kNever; }
  // Forgets that, and returns the exception.
  std::string TakeWanted();

  // This rank leaves, and waits for other ranks until `deadline`.
  void Leave(TimePoint deadline);
  TimePoint leave_deadline() const { return leave_deadline_; }

  // From now on plans that run have to move data; `progress` of the backend differs if they do.
  void Close(const Status& why, TimePoint now, int64_t progress);
  void Abort() { aborted_ = true; }
  // `culprit` was lost, or has left if `why` is Cancelled; kNoRank for no other rank.
  void End(const Status& why, Rank culprit);

  // Plans that still run then are aborted, unless data moves.
  TimePoint drain_deadline() const { return drain_deadline_; }
  // At the deadline: false if data has moved since the last time, and there is a new deadline.
  bool DrainIsOver(TimePoint now, int64_t progress);

  // This process did not run for `pause`.
  void PutOff(Duration pause);

  void AddDeparted(Rank rank);

  // Null if nothing has changed since the last time.
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
