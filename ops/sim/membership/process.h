#ifndef TFRING_OPS_SIM_MEMBERSHIP_PROCESS_H_
#define TFRING_OPS_SIM_MEMBERSHIP_PROCESS_H_

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "ops/runtime/membership/worker.h"
#include "ops/sim/membership/training.h"
#include "ops/sim/random.h"

namespace tfring::sim {

class Job;

// One process of a simulated elastic job: the real Worker and a model of its program, which
// connects to the other members, takes the root's state, and trains. Lives for one run; used by one
// thread.
class Process {
 public:
  Process(Job* job, membership::WorkerId id, membership::Place place, Random random);

  membership::WorkerId id() const { return id_; }
  const membership::Place& place() const { return place_; }
  const membership::Worker& worker() const { return worker_; }
  bool alive() const { return alive_; }
  bool stopped() const { return stopped_; }
  bool holds() const { return stopped_ && holds_; }
  bool trains() const { return runs_ != 0; }  // or may still apply a step
  bool at_boundary() const { return boundary_; }
  const Training& training() const { return training_; }

  void Start();
  void Kill();
  void Stop() { stopped_ = true, holds_ = false; }
  void Hold() { stopped_ = holds_ = true; }
  void Wake();
  void OnLeave();
  void OnAttached();  // to a restarted coordinator
  void OnCommand(const std::string& bytes);
  void OnPeerGone(membership::Generation generation, membership::WorkerId suspect);
  // Runs the action in this process: later if the process is stopped, never if it is dead.
  void Deliver(std::function<void()> action);

 private:
  struct Result {
    membership::Generation generation = 0;
    int64_t step = 0;
    int bucket = 0;
    Batch batch;
    bool change = false;
  };
  struct Part {
    Batch batch;
    std::set<membership::WorkerId> members;
  };

  // process.cc
  TimePoint Clock() const;
  void Later(Duration delay, std::function<void()> action);
  void Send(membership::WorkerId to, std::function<void(Process*)> action);
  void StepWorker(membership::WorkerEvents events);
  void Act(membership::WorkerEffects effects);
  void PlanTimer();
  void Halt(membership::Generation generation, bool boundary, bool done);

  // process_mesh.cc: connecting and taking the state.
  void Connect();
  std::set<membership::WorkerId> Peers(Rank rank) const;
  void OnHello(membership::WorkerId from, membership::Generation generation, uint64_t nonce);
  void OnAccepted(membership::WorkerId from, membership::Generation generation);
  void Reached(membership::WorkerId peer);
  void FailGeneration(membership::WorkerId suspect);
  void Sync();
  void OnAsk(membership::WorkerId from, membership::Generation generation,
             membership::Position position);
  void AnswerAsks();
  void OnState(membership::Generation generation, const std::optional<TrainState>& state);
  void Synced();

  // process_steps.cc: training.
  void BeginStep();
  void OnPart(membership::WorkerId from, membership::Generation generation, int64_t step,
              int bucket, const Batch& batch);
  void OnResult(const Result& result);
  void AfterStep();
  void Publish(membership::Generation generation);

  Job* const job_;
  const membership::WorkerId id_;
  const membership::Place place_;
  Random random_;
  const Duration clock_offset_;  // of this host
  membership::Worker worker_;
  Training training_;
  bool alive_ = true;
  bool stopped_ = false;
  bool holds_ = false;                       // stopped_, but its runtime and kernel continue
  std::vector<std::function<void()>> held_;  // while it is stopped
  uint64_t timer_ = 0;                       // the last planned timer

  membership::Generation runs_ = 0;     // the generation whose steps may still be applied, or 0
  membership::Generation halting_ = 0;  // the program is about to notice the end of this generation
  std::set<membership::WorkerId> unreached_;
  std::map<membership::Generation, std::vector<std::pair<membership::WorkerId, uint64_t>>> backlog_;
  std::map<membership::WorkerId, membership::Position> asks_;
  bool sync_order_ = false;  // may take or give the state
  bool announce_ = false;    // rank 0: announce the pending change in the next results
  bool change_ = false;      // stop at the next commit
  bool boundary_ = false;    // the last stop was at a common commit
  Batch batch_;
  std::map<std::pair<int64_t, int>, Part> parts_;  // rank 0: by step and bucket
};

}  // namespace tfring::sim

#endif  // TFRING_OPS_SIM_MEMBERSHIP_PROCESS_H_
