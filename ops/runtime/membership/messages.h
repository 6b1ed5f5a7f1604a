#ifndef TFRING_OPS_RUNTIME_MEMBERSHIP_MESSAGES_H_
#define TFRING_OPS_RUNTIME_MEMBERSHIP_MESSAGES_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include "ops/runtime/base/export.h"
#include "ops/runtime/base/status.h"
#include "ops/runtime/base/types.h"

// What workers and the coordinator of an elastic job say to each other. Any message may be lost,
// come twice or come late: a report says the whole state of its worker, and what a worker lacks is
// said again when its reports show it.
namespace tfring::membership {

// One life of one process. Never used twice in a job; 0 is nobody.
using WorkerId = uint64_t;
// The number of a generation. They ascend, and none is used twice; 0 is none.
using Generation = uint64_t;

inline constexpr WorkerId kNobody = 0;

// A step that comes this much too late: this process was stopped, or a call kept Python's lock.
inline constexpr Duration kPause = kSecond;

// How far a state is: commits, and the steps that they hold. The one with more commits is ahead.
struct Position {
  int64_t commit = 0;
  int64_t step = 0;
  friend bool operator==(const Position& a, const Position& b) {
    return a.commit == b.commit && a.step == b.step;
  }
  friend bool operator!=(const Position& a, const Position& b) { return !(a == b); }
  friend bool operator<(const Position& a, const Position& b) {
    return std::tie(a.commit, a.step) < std::tie(b.commit, b.step);
  }
};

TFRING_EXPORT std::string PositionText(const Position& position);  // "commit 4 (step 12)"

enum class WorkerState : uint8_t {
  kIdle,      // starts; the coordinator has not heard of it
  kWaiting,   // ready, and waits to be taken into a generation
  kJoining,   // lets go of its last generation and connects with the members of the next one
  kMesh,      // connected with all members, and waits until all are
  kSync,      // takes the state of the member that is ahead
  kRunning,   // trains
  kStopping,  // its generation is over; the program has not said yet where it stopped
  kBroken,    // stopped, has said where, and waits for the next generation
  kExcluded,  // was taken for dead: leaves, and publishes nothing
  kExited,    // was told to leave, or gave up
};
inline constexpr int kNumWorkerStates = 10;

TFRING_EXPORT const char* WorkerStateName(WorkerState state);  // "waiting"

struct Member {
  WorkerId worker = kNobody;
  std::string host;
  int32_t slot = -1;
};

// A generation: the same everywhere. Rank r is members[r].
struct Record {
  Generation generation = 0;
  uint64_t nonce = 0;  // connections of the generation prove that they know it
  std::vector<Member> members;
  Rank root = 0;      // the first member that is ahead of all others: its state is taken
  Position position;  // of root
};

// From a worker. Its state says what the report is: kWaiting registers it, kMesh says that it is
// connected, kBroken says where it stopped; all others are signs of life.
struct Report {
  WorkerId worker = kNobody;
  uint64_t sequence = 0;  // ascends; an older one than the last that came is ignored
  TimePoint sent_at = 0;  // by the worker's clock; the coordinator only sends it back
  WorkerState state = WorkerState::kIdle;
  Generation generation = 0;  // the last that it was proposed; 0 before the first
  Position position;          // of its last commit
  int64_t step = 0;           // steps done so far, after that commit too
  bool boundary = false;      // stopped together with all members, because a change was pending
  bool done = false;          // stopped because the training is over
  bool leaving = false;       // wants to leave after the next commit
  bool announced = false;     // rank 0: has passed on that a change is pending
  // Who was to blame, as seen from here, if a failure stopped it; itself: nothing was broken.
  WorkerId suspect = kNobody;
  // Empty in a report that repeats what has been answered.
  std::string host;
  int32_t slot = -1;  // on its host, for life
  // Of its last generation, until a coordinator that may not know it has answered; else empty.
  Record record;
};

// kNoRank if it is no member.
TFRING_EXPORT Rank RankOf(const Record& record, WorkerId worker);

enum class CommandKind : uint8_t {
  kAnswer,         // the report came
  kPropose,        // connect with these members
  kGo,             // all members are connected
  kEnd,            // stop: the generation is over
  kChangePending,  // to rank 0: let all members stop at the same commit
  kExcluded,       // you were taken for dead
  kExit,           // leave
};
inline constexpr int kNumCommandKinds = 7;

// From the coordinator to one worker. Only the fields of its kind are sent.
struct Command {
  CommandKind kind = CommandKind::kAnswer;
  Generation generation = 0;  // kAnswer: the one that trains now, or 0; kGo, kEnd, kChangePending
  uint64_t sequence = 0;      // kAnswer: of the report
  TimePoint sent_at = 0;      // kAnswer: of the report
  Record record;              // kPropose
  int32_t exit_code = 0;      // kExit
  std::string reason;         // kEnd, kExcluded, kExit
};

// The longest host name and reason: longer ones are cut on sending where they are text,
// and refused on receiving.
inline constexpr size_t kMaxText = 1024;
inline constexpr size_t kMaxMembers = 65536;

TFRING_EXPORT std::string EncodeReport(const Report& report);
TFRING_EXPORT std::string EncodeCommand(const Command& command);
// InvalidArgument for bytes that no encoder writes.
TFRING_EXPORT Result<Report> DecodeReport(std::string_view bytes);
TFRING_EXPORT Result<Command> DecodeCommand(std::string_view bytes);

}  // namespace tfring::membership

#endif  // TFRING_OPS_RUNTIME_MEMBERSHIP_MESSAGES_H_
