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

// What a process exits with that has to leave before the training is done: its host is taken away,
// it was taken for dead, or nobody answers it.
inline constexpr int kExitTryAgain = 76;

struct WorkerOptions {
  WorkerId worker = kNobody;
  std::string host;
  int32_t slot = 0;
  Duration beat = 200 * kMillisecond;
  Duration lease = 5 * kSecond;  // as the coordinator's
  // How long a worker that does not train waits for an answer before it leaves. One that trains,
  // or takes the state, goes on without answers.
  Duration patience = 10 * kSecond;
};

// What happened since the last Step. The commands are handled first.
struct WorkerEvents {
  std::vector<Command> commands;
  bool attached = false;  // to a coordinator that may know nothing of this worker
  bool ready = false;     // the program has built its model: the coordinator may hear of it
  std::optional<Generation> connected;  // with all members of it
  struct Synced {
    Generation generation = 0;
    Position position;
  };
  std::optional<Synced> synced;  // has the state of the root, and trains from now on
  std::optional<Position> committed;
  std::optional<int64_t> step;  // done
  struct Failure {
    Generation generation = 0;
    WorkerId suspect = kNobody;  // as in a Report
  };
  std::optional<Failure> failed;  // a collective, connecting or taking the state
  struct Stopped {
    Generation generation = 0;
    Position position;  // what a restore gives: this is what the next generation can take
    bool boundary = false;
    bool done = false;
  };
  // No step of this generation is applied any more. After `failed` or an order to abandon; by
  // itself at the commit at which all members stop, and at the end of the training.
  std::optional<Stopped> stopped;
  bool leave = false;  // from now on, leave after the next commit
};

// What has to be done now, in the order of the fields.
struct WorkerEffects {
  // Every call of this generation ends; report `stopped` when the program has noticed.
  std::optional<Generation> abandon;
  std::optional<Record> connect;  // with these members; then report `connected` or `failed`
  std::optional<Record> sync;     // all are connected: take the root's state
  bool announce_change = false;   // rank 0: the next data plan tells all that a change is pending
  std::vector<Report> reports;
  struct Exit {
    int code = 0;
    std::string reason;
  };
  std::optional<Exit> exit;  // once; nothing follows
};

// One process of an elastic job, as a state machine without thread, socket or clock: it takes
// events (commands of the coordinator, what the program did, the time) and says what is to be done.
// Any failure in a generation, whether it connects, takes the state or trains, has one way on:
// stop, say where, wait for the next number. One thread; lives as long as the process.
class TFRING_EXPORT Worker {
 public:
  explicit Worker(WorkerOptions options);

  WorkerEffects Step(TimePoint now, WorkerEvents events);

  // When Step wants to be called again even if nothing happens.
  TimePoint next_deadline() const;

  WorkerState state() const { return state_; }
  Generation generation() const { return record_.generation; }
  const Record& record() const { return record_; }

  // Whether a connection that shows this generation and nonce belongs to the generation that this
  // worker connects for.
  bool Admits(Generation generation, uint64_t nonce) const;
  // Whether results of this generation may be applied.
  bool Runs(Generation generation) const;
  // Whether a checkpoint of the present generation may be published: no newer one exists, and none
  // will for as long as the coordinator's last answer holds. One that was written in an older
  // generation than generation() may not.
  bool MayPublish(TimePoint now) const;

 private:
  void Handle(TimePoint now, Command command, WorkerEffects* effects);
  void HandleProgram(TimePoint now, const WorkerEvents& events, WorkerEffects* effects);
  void HandleStopped(TimePoint now, const WorkerEvents::Stopped& stopped);
  void Abandon(WorkerEffects* effects);
  void Enter(TimePoint now, WorkerState state);
  void Leave(WorkerState state, int code, std::string reason, WorkerEffects* effects);
  bool InGeneration() const;  // has been proposed one, and has not stopped
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
  bool news_ = false;                // the coordinator is to hear of it at once
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
