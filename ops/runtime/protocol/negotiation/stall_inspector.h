#ifndef TFRING_OPS_RUNTIME_PROTOCOL_NEGOTIATION_STALL_INSPECTOR_H_
#define TFRING_OPS_RUNTIME_PROTOCOL_NEGOTIATION_STALL_INSPECTOR_H_

#include <cstdint>
#include <list>
#include <string>
#include <vector>

#include "ops/runtime/base/config.h"
#include "ops/runtime/base/types.h"

namespace tfring {

// Measures how long each incomplete tensor has waited, and says when to warn: after stall_warning,
// and again each time as much has passed. After stall_shutdown the tensor is expired. Times passed
// in must not go backwards. Constant work per tensor. Part of the Sequencer.
class StallInspector {
 private:
  struct Watched {
    uint64_t handle;
    TimePoint since;
    TimePoint next_warning;
    std::list<Watched*>::iterator turn;
  };

 public:
  using Token = std::list<Watched>::iterator;

  explicit StallInspector(const Config& config)
      : warning_(config.stall_warning), shutdown_(config.stall_shutdown) {}

  Token Watch(uint64_t handle, TimePoint now);
  void Forget(Token token);

  // Since when it has waited.
  static TimePoint Since(Token token) { return token->since; }

  // All that is watched counts as younger by `pause`.
  void PutOff(Duration pause);

  TimePoint next_deadline() const;

  // Since when the oldest tensor has waited; kNever if there is none or no warning is wanted.
  TimePoint waiting_since() const {
    return warning_ > 0 && !by_age_.empty() ? by_age_.front().since : kNever;
  }

  // The tensors to warn about now; their next warning is one stall_warning away.
  std::vector<uint64_t> TakeWarnings(TimePoint now);

  // A tensor that has passed stall_shutdown, or null. Valid until the next call.
  const uint64_t* Expired(TimePoint now) const;

 private:
  Duration warning_;
  Duration shutdown_;
  std::list<Watched> by_age_;
  // By next_warning: new ones and repeated ones are both due one warning_ after the present, so the
  // back of the list is always right.
  std::list<Watched*> turns_;
};

// One rank in a stall report.
struct StallView {
  Rank rank = 0;
  bool ready = false;
  bool joined = false;    // takes no part; the others do not wait for it
  std::string waits_for;  // of a missing rank: the tensor that it waits for, "" for none
  std::string call_site;  // of that call, or of this one if it is ready; empty where unknown
};

// "allreduce of tensor 'a' has waited 60 s: ranks 0, 2 wait at train.py:40; rank 1 is missing and
// waits at train.py:57 (allreduce of tensor 'b')."
std::string StallMessage(const std::string& what, Duration waited,
                         const std::vector<StallView>& ranks);

// What ranks that wait for each other wait for; `ready` and `joined` mean nothing here.
// "these ranks wait for each other, for 3 s now: rank 0 waits at train.py:40 (...); rank 1 ..."
std::string CircleMessage(Duration waited, const std::vector<StallView>& ranks);

// What users can do about a stall, and which setting ends it. `shutdown` is its value.
std::string StallAdvice(Duration shutdown);

// A tensor that cannot be complete before its missing ranks ask for it.
struct StallWait {
  std::vector<Rank> ready;
  std::vector<Rank> missing;
};

// The ranks that wait for each other: every call of theirs needs another of them, which waits as
// well. Ascending; empty where each wait can end by itself. A rank that has called nothing is not
// among them, because it may still come.
std::vector<Rank> RanksInCircles(const std::vector<StallWait>& waits);

}  // namespace tfring

#endif  // TFRING_OPS_RUNTIME_PROTOCOL_NEGOTIATION_STALL_INSPECTOR_H_
