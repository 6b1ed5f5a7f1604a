#ifndef TFRING_OPS_RUNTIME_MEMBERSHIP_COORDINATOR_STATE_H_
#define TFRING_OPS_RUNTIME_MEMBERSHIP_COORDINATOR_STATE_H_

#include <cstdint>
#include <deque>
#include <optional>
#include <string>

#include "ops/runtime/base/types.h"
#include "ops/runtime/membership/hosts.h"
#include "ops/runtime/membership/messages.h"

// What a Coordinator remembers, by subject. Shift(pause) moves the times that the coordinator
// compares with limits: it was stopped for `pause`, which is nobody's delay.
namespace tfring::membership::coordinator_state {

struct Process {
  Place place;
  uint64_t arrival = 0;     // its place in the order in which workers registered
  TimePoint heard = 0;      // of its last report; before the first, of its start
  TimePoint told = 0;       // of the last command to it that was no answer
  Generation lost_in = 0;   // the last generation in which a member named it as suspect
  bool started = false;     // by our order: its launcher reports its end
  bool registered = false;  // has sent a report
  bool cut_off = false;     // its connection has ended since its last report
  bool leaving = false;     // must leave, or wants to (last.leaving)
  Report last;

  void Shift(Duration pause) { heard += pause; }
};

// A worker that must not come back, while its process may still be there.
struct Ending {
  Place place;
  TimePoint since = 0;

  void Shift(Duration pause) { since += pause; }
};

// The phases: entering one makes its struct anew.

// Too few workers are ready for a generation.
struct Shortage {
  TimePoint since = 0;
  bool noted = false;  // in the log

  void Shift(Duration pause) { since += pause; }
};

struct Gathering {
  TimePoint since = 0;
  bool ends_sent = false;  // the members were told to stop
  bool failed = false;     // a failure has ended the last generation
  std::optional<Shortage> shortage = std::nullopt;

  void Shift(Duration pause) {
    since += pause;
    if (shortage) shortage->Shift(pause);
  }
};

struct Forming {
  TimePoint since = 0;

  void Shift(Duration pause) { since += pause; }
};

struct Running {
  int64_t best_step = 0;        // the highest step that a member has reported
  TimePoint advanced_at = 0;    // when best_step last grew
  bool change_pending = false;  // rank 0 was told that members shall stop at the next commit

  void Shift(Duration pause) { advanced_at += pause; }
};

struct Over {
  int code = 0;
  std::string reason;

  void Shift(Duration /*pause*/) {}
};

// When Step compares times with limits.
struct Ticks {
  TimePoint first = kNever;  // the first Step
  TimePoint next = 0;
  bool forgave = false;  // the last Step found that the coordinator had been stopped

  void Shift(Duration pause) { first += pause; }
};

// The coordinator listens to what an earlier one has left, and decides nothing.
struct Rebuilding {
  TimePoint until = kNever;  // set by the first message

  void Shift(Duration pause) {
    if (until != kNever) until += pause;
  }
};

// How the state gets to workers that stay if all workers that have it must leave.
struct Handover {
  WorkerId giver = kNobody;  // a member that leaves as soon as another one has its state
  bool in_record = false;    // record_ has a giver
};

// Changes of members are limited in number by the time for which workers train. They also train
// while the coordinator is stopped: there is no Shift.
struct Changes {
  TimePoint last_join = -kSecond * 1000;
  std::deque<TimePoint> resets;  // in reset_window
};

// The last error that ended a worker, if it keeps coming back at one commit.
struct RepeatedError {
  std::string text;           // without its numbers
  Position at;                // the first time
  Generation generation = 0;  // the last one with a member that had it
  int times = 0;
};

}  // namespace tfring::membership::coordinator_state

#endif  // TFRING_OPS_RUNTIME_MEMBERSHIP_COORDINATOR_STATE_H_
