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

// The messages between workers and the coordinator of an elastic job. Any message may be lost, come
// twice or come late. So a report holds the whole state of its worker, and the coordinator repeats
// a command when a report shows that the worker missed it.
namespace tfring::membership {

// The id of one process of the job. Never used twice; 0 is nobody.
using WorkerId = uint64_t;
// The number of a generation. Numbers ascend and are never used twice; 0 is none.
using Generation = uint64_t;

inline constexpr WorkerId kNobody = 0;

// If a step comes this late, the process was stopped or a call kept Python's lock.
inline constexpr Duration kPause = kSecond;

// How far a state is: commits, and the steps that they hold. More commits is ahead.
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
  kIdle,      // has started; the coordinator has not heard of it
  kWaiting,   // ready, and waits for a generation
  kJoining,   // leaves its last generation and connects to the next one's members
  kMesh,      // connected to all members, and waits until all members are
  kSync,      // takes the state of the root
  kRunning,   // trains
  kStopping,  // its generation is over; the program has not reported its position yet
  kBroken,    // has reported its position, and waits for the next generation
  kExcluded,  // was taken for dead: leaves and publishes nothing
  kExited,    // was told to leave, or gave up
};
inline constexpr int kNumWorkerStates = 10;

TFRING_EXPORT const char* WorkerStateName(WorkerState state);  // "waiting"

struct Member {
  WorkerId worker = kNobody;
  std::string host;
  int32_t slot = -1;
};

// A generation, the same on all processes. Rank r is members[r].
struct Record {
  Generation generation = 0;
  uint64_t nonce = 0;  // proves that a connection belongs to the generation
  std::vector<Member> members;
  Rank root = 0;      // the first member that is furthest ahead: the others take its state
  Position position;  // of root
};

// From a worker. Its state gives the meaning of the report: kWaiting registers the worker, kMesh
// says that it is connected, kBroken says where it stopped. All other states are signs of life.
struct Report {
  WorkerId worker = kNobody;
  uint64_t sequence = 0;  // ascends; the coordinator ignores a lower number than the last
  TimePoint sent_at = 0;  // by the worker's clock; the coordinator only returns it
  WorkerState state = WorkerState::kIdle;
  Generation generation = 0;  // the last proposed one; 0 before the first
  Position position;          // of its last commit
  int64_t step = 0;           // all steps so far, including those after the last commit
  bool boundary = false;      // stopped together with all members for a pending change
  bool done = false;          // stopped because the training is over
  bool leaving = false;       // wants to leave after the next commit
  bool announced = false;     // rank 0: has announced the pending change
  // After a failure: the worker to blame, as this worker sees it; itself if nothing was broken.
  WorkerId suspect = kNobody;
  // Empty in a report that repeats an answered one.
  std::string host;
  int32_t slot = -1;  // on its host, constant
  // The record of its last generation. Empty once a coordinator that may not know it has answered.
  Record record;
};

// kNoRank if the worker is not a member.
TFRING_EXPORT Rank RankOf(const Record& record, WorkerId worker);

enum class CommandKind : uint8_t {
  kAnswer,         // the report has arrived
  kPropose,        // connect to these members
  kGo,             // all members are connected
  kEnd,            // stop: the generation is over
  kChangePending,  // to rank 0: all members are to stop at the same commit
  kExcluded,       // you were taken for dead
  kExit,           // leave
};
inline constexpr int kNumCommandKinds = 7;

// From the coordinator to one worker. Only the fields of its kind are sent.
struct Command {
  CommandKind kind = CommandKind::kAnswer;
  Generation generation = 0;  // kAnswer: the one that trains, or 0; kGo, kEnd, kChangePending
  uint64_t sequence = 0;      // kAnswer: of the report
  TimePoint sent_at = 0;      // kAnswer: of the report
  Record record;              // kPropose
  int32_t exit_code = 0;      // kExit
  std::string reason;         // kEnd, kExcluded, kExit
};

// The longest host name and reason. Senders cut longer texts; receivers refuse longer fields.
inline constexpr size_t kMaxText = 1024;
inline constexpr size_t kMaxMembers = 65536;

TFRING_EXPORT std::string EncodeReport(const Report& report);
TFRING_EXPORT std::string EncodeCommand(const Command& command);
// InvalidArgument for bytes that no encoder writes.
TFRING_EXPORT Result<Report> DecodeReport(std::string_view bytes);
TFRING_EXPORT Result<Command> DecodeCommand(std::string_view bytes);

}  // namespace tfring::membership

#endif  // TFRING_OPS_RUNTIME_MEMBERSHIP_MESSAGES_H_
