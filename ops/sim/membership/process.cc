#include "ops/sim/membership/process.h"

#include <utility>

#include "ops/sim/membership/job.h"

namespace tfring::sim {

using membership::Generation;
using membership::WorkerEffects;
using membership::WorkerEvents;
using membership::WorkerId;
using membership::WorkerState;

namespace {

membership::WorkerOptions OptionsOf(const Scenario& scenario, WorkerId id,
                                    const membership::Place& place) {
  membership::WorkerOptions options = scenario.worker;
  options.worker = id;
  options.host = place.first;
  options.slot = place.second;
  return options;
}

}  // namespace

Process::Process(Job* job, WorkerId id, membership::Place place, Random random)
    : job_(job),
      id_(id),
      place_(std::move(place)),
      random_(random),
      clock_offset_(random_.Between(-100000, 100000) * kSecond),
      worker_(OptionsOf(job->scenario(), id, place_)),
      training_(&job->scenario()) {}

TimePoint Process::Clock() const { return job_->now() + clock_offset_; }

void Process::Start() {
  Later(random_.Between(300, 2500) * kMillisecond, [this] {
    WorkerEvents events;
    events.ready = true;
    StepWorker(std::move(events));
  });
}

void Process::Kill() {
  alive_ = false;
  held_.clear();
}

void Process::Wake() {
  stopped_ = false;
  std::vector<std::function<void()>> held = std::move(held_);
  held_.clear();
  for (auto& action : held) Deliver(std::move(action));
}

void Process::Deliver(std::function<void()> action) {
  if (!alive_) return;
  if (stopped_) {
    held_.push_back(std::move(action));
  } else {
    action();
  }
}

void Process::Later(Duration delay, std::function<void()> action) {
  job_->After(delay, [this, action = std::move(action)] { Deliver(action); });
}

void Process::Send(WorkerId to, std::function<void(Process*)> action) {
  job_->SendToPeer(id_, to, std::move(action));
}

void Process::OnLeave() {
  WorkerEvents events;
  events.leave = true;
  StepWorker(std::move(events));
}

void Process::OnAttached() {
  WorkerEvents events;
  events.attached = true;
  StepWorker(std::move(events));
}

void Process::OnCommand(const std::string& bytes) {
  auto command = membership::DecodeCommand(bytes);
  if (!command.ok()) {
    job_->checker()->Fail(command.status().message());
    return;
  }
  const bool excluded = command->kind == membership::CommandKind::kExcluded;
  WorkerEvents events;
  events.commands.push_back(std::move(*command));
  StepWorker(std::move(events));
  if (excluded && alive_) {
    job_->checker()->Fail("worker " + std::to_string(id_) + " goes on although it was excluded");
  }
}

void Process::OnPeerGone(Generation generation, WorkerId suspect) {
  if (generation != worker_.generation()) return;
  FailGeneration(suspect);
}

void Process::FailGeneration(WorkerId suspect) {
  WorkerEvents events;
  events.failed = WorkerEvents::Failure{worker_.generation(), suspect};
  StepWorker(std::move(events));
}

void Process::StepWorker(WorkerEvents events) {
  const WorkerState before = worker_.state();
  WorkerEffects effects = worker_.Step(Clock(), std::move(events));
  if (worker_.state() != before) {
    job_->Trace("worker " + std::to_string(id_) + " is " + WorkerStateName(worker_.state()) +
                " in generation " + std::to_string(worker_.generation()));
    if (job_->OnState(id_, worker_.state())) return;  // killed
  }
  Act(std::move(effects));
  if (alive_) PlanTimer();
}

void Process::Act(WorkerEffects effects) {
  for (const membership::Report& report : effects.reports) job_->SendReport(id_, report);
  if (effects.abandon) {
    const Generation generation = *effects.abandon;
    job_->OnBroken(generation, id_, membership::kNobody);
    halting_ = generation;
    // Until then a real process may still apply a result that has already come. The gate of
    // Worker::Runs refuses it.
    const Duration notice = random_.Percent(90) ? random_.Between(0, 50) : random_.Between(0, 1500);
    Later(notice * kMillisecond, [this, generation] {
      if (halting_ == generation) Halt(generation, false, false);
    });
  }
  if (effects.connect) Connect();
  if (effects.sync) {
    sync_order_ = true;
    Sync();
  }
  if (effects.announce_change) announce_ = true;
  if (effects.exit) {
    job_->Trace("worker " + std::to_string(id_) + " exits with " +
                std::to_string(effects.exit->code) + ": " + effects.exit->reason);
    job_->OnExit(id_, effects.exit->code);
  }
}

// The training has stopped. Reports the position that a restore gives.
void Process::Halt(Generation generation, bool boundary, bool done) {
  halting_ = 0;
  runs_ = 0;
  sync_order_ = announce_ = change_ = false;
  boundary_ = boundary;
  if (!boundary && !done) training_.Restore();
  WorkerEvents events;
  WorkerEvents::Stopped stopped;
  stopped.generation = generation;
  stopped.position = training_.committed().position;
  stopped.boundary = boundary;
  stopped.done = done;
  events.stopped = stopped;
  StepWorker(std::move(events));
}

void Process::PlanTimer() {
  const TimePoint when = worker_.next_deadline();
  if (when == kNever) return;
  const uint64_t timer = ++timer_;
  Later(std::max<Duration>(0, when - Clock()), [this, timer] {
    if (timer == timer_) StepWorker({});
  });
}

}  // namespace tfring::sim
