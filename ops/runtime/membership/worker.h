#ifndef TFRING_OPS_RUNTIME_MEMBERSHIP_WORKER_H_
#define TFRING_OPS_RUNTIME_MEMBERSHIP_WORKER_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "ops/runtime/base/export.h"
#include "ops/runtime/base/types.h"
#include "ops/runtime/membership/messages.h"

namespace tfring::membership {

// The exit code of a process that has to leave before the training is done: its host is taken away,
// the process was taken for dead, or nobody answers it.
inline constexpr int kExitTryAgain = 76;

struct WorkerOptions {
  WorkerId worker = kNobody;
  std::string host;
  int32_t slot = 0;
  Duration beat = 200 * kMillisecond;
  Duration lease = 5 * kSecond;  // as the coordinator's
  // A worker that does not train waits this long for an answer before it leaves. A worker that
  // trains or takes the state continues without answers.
  Duration patience = 10 * kSecond;
};

// The events since the last Step. Commands are handled first.
struct WorkerEvents {
  std::vector<Command> commands;
  bool attached = false;                // to a coordinator that may not know this worker
  bool ready = false;                   // the program has built its model: the worker may register
  std::optional<Generation> connected;  // to all members of it
  struct Synced {
    Generation generation = 0;
    Position position;
  };
  std::optional<Synced> synced;  // has the root's state and trains from now on
  std::optional<Position> committed;
  std::optional<int64_t> step;  // completed
  struct Failure {
    Generation generation = 0;
    WorkerId suspect = kNobody;  // as in a Report
  };
  std::optional<Failure> failed;  // a collective, connecting or taking the state has failed
  struct Stopped {
    Generation generation = 0;
    Position position;  // the state that a restore gives, which the next generation can take
    bool boundary = false;
    bool done = false;
  };
  // No step of this generation is applied any more. Comes after `failed` or `abandon`; without them
  // at the commit at which all members stop, and at the end of the training.
  std::optional<Stopped> stopped;
  bool leave = false;  // leave after the next commit
};

// The actions to take now, in the order of the fields.
struct WorkerEffects {
  // End all calls of this generation; report `stopped` when the program has noticed.
  std::optional<Generation> abandon;
  std::optional<Record> connect;  // to these members; then report `connected` or `failed`
  std::optional<Record> sync;     // all are connected: take the root's state
  bool announce_change = false;   // rank 0: announce the pending change in the next data plan
  std::vector<Report> reports;
  struct Exit {
    int code = 0;
    std::string reason;
  };
  std::optional<Exit> exit;  // once; nothing follows
};

// One process of an elastic job, as a state machine without thread, socket or clock. It takes
// events (commands of the coordinator, events of the program, the time) and returns the actions to
// take. After any failure in a generation, in any state, the worker does the same: it stops,
// reports its position, and waits for the next generation. Used by one thread; lives as long as the
// process.
class TFRING_EXPORT Worker {
 public:
  explicit Worker(WorkerOptions options);

  WorkerEffects Step(TimePoint now, WorkerEvents events);

  // The time at which to call Step again even without an event.
  TimePoint next_deadline() const;

  WorkerState state() const { return state_; }
  Generation generation() const { return record_.generation; }
  const Record& record() const { return record_; }

  // Returns whether a connection with this generation and nonce belongs to the generation for which
  // this worker connects.
  bool Admits(Generation generation, uint64_t nonce) const;
  // Returns whether results of this generation may be applied.
  bool Runs(Generation generation) const;
  // Returns whether a checkpoint of the present generation may be published: no newer generation
  // exists, and none will while the coordinator's last answer holds. A checkpoint written in a
  // generation older than generation() may not be published.
  bool MayPublish(TimePoint now) const;

 private:
  void Handle(TimePoint now, Command command, WorkerEffects* effects);
  void HandleProgram(TimePoint now, const WorkerEvents& events, WorkerEffects* effects);
  void HandleStopped(TimePoint now, const WorkerEvents::Stopped& stopped);
  void Abandon(WorkerEffects* effects);
  void Enter(TimePoint now, WorkerState state);
  void Leave(WorkerState state, int code, std::string reason, WorkerEffects* effects);
  bool InGeneration() const;  // has a proposed generation and has not stopped
  bool WaitsForAnswers() const;
  Report MakeReport(TimePoint now);

  const WorkerOptions options_;
  WorkerState state_ = WorkerState::kIdle;
  Record record_;  // the last proposed
  Position position_;
  int64_t step_ = 0;
  bool boundary_ = false;
  bool done_ = false;
  bool leaving_ = false;
  bool announced_ = false;
  WorkerId suspect_ = kNobody;
  bool news_ = false;                // report to the coordinator at once
  uint64_t sequence_ = 0;            // of the last report
  uint64_t introduced_ = 0;          // the first report with the present state
  uint64_t attached_ = 0;            // the first report to the present coordinator
  uint64_t answered_ = 0;            // the newest report that the coordinator has answered
  TimePoint next_beat_ = kNever;     // kNever before the program is ready
  TimePoint waits_since_ = kNever;   // for answers; kNever while it trains, or may
  TimePoint lease_end_ = INT64_MIN;  // by this worker's clock
};

}  // namespace tfring::membership

#endif  // TFRING_OPS_RUNTIME_MEMBERSHIP_WORKER_H_
