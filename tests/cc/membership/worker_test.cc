#include "ops/runtime/membership/worker.h"

#include <string>
#include <utility>

#include "tests/cc/test.h"

namespace tfring::membership::worker_test {
namespace {

constexpr WorkerId kSelf = 7;

Command Proposal(Generation generation) {
  Command command;
  command.kind = CommandKind::kPropose;
  command.record.generation = generation;
  command.record.nonce = 99;
  command.record.members = {{kSelf, "h", 0}, {8, "h", 1}};
  return command;
}

// A worker whose coordinator and program say what a test wants.
struct Fixture {
  Fixture() : worker(Options()) {}
  static WorkerOptions Options() {
    WorkerOptions options;
    options.worker = kSelf;
    options.host = "h";
    return options;
  }
  WorkerEffects Program(WorkerEvents events) { return worker.Step(now, std::move(events)); }
  WorkerEffects Tell(Command command) {
    WorkerEvents events;
    events.commands.push_back(std::move(command));
    return Program(std::move(events));
  }
  WorkerEffects Tell(CommandKind kind, Generation generation) {
    Command command;
    command.kind = kind;
    command.generation = generation;
    return Tell(std::move(command));
  }
  WorkerEffects Ready() {
    WorkerEvents events;
    events.ready = true;
    return Program(std::move(events));
  }
  WorkerEffects Stop(Generation generation, Position position) {
    WorkerEvents events;
    events.stopped = WorkerEvents::Stopped{generation, position, false, false};
    return Program(std::move(events));
  }
  void Run(Generation generation) {
    Tell(Proposal(generation));
    WorkerEvents events;
    events.connected = generation;
    Program(std::move(events));
    Tell(CommandKind::kGo, generation);
    WorkerEvents synced;
    synced.synced = WorkerEvents::Synced{generation, {3, 3}};
    Program(std::move(synced));
  }
  void Answer(const Report& report, Generation generation) {
    Command answer;
    answer.generation = generation;
    answer.sequence = report.sequence;
    answer.sent_at = report.sent_at;
    Tell(std::move(answer));
  }

  // Steps each 200 ms; returns the effects of the last one.
  WorkerEffects Pass(Duration duration) {
    WorkerEffects effects;
    for (const TimePoint end = now + duration; now < end && !effects.exit;) {
      now += 200 * kMillisecond;
      effects = Program({});
    }
    return effects;
  }

  TimePoint now = 100 * kSecond;
  Worker worker;
};

TEST(AWorkerIntroducesItselfToANewCoordinator) {
  Fixture fixture;
  fixture.Ready();
  Command answer;
  answer.sequence = 1;
  fixture.Tell(answer);
  fixture.Tell(Proposal(3));
  WorkerEvents events;
  events.attached = true;
  const WorkerEffects effects = fixture.Program(events);
  ASSERT_TRUE(effects.reports.size() == 1);
  EXPECT_EQ(effects.reports[0].record.generation, Generation{3});
  EXPECT_EQ(effects.reports[0].host, std::string("h"));
  answer.sequence = effects.reports[0].sequence;
  fixture.Tell(answer);
  fixture.now += kSecond;
  EXPECT_EQ(fixture.Program({}).reports.at(0).record.generation, Generation{0});
}

TEST(OnlyWhoIsAnsweredInTimeMayPublish) {
  Fixture f;
  f.Ready();
  f.Run(4);
  EXPECT_TRUE(!f.worker.MayPublish(f.now));
  f.now += kSecond;
  const WorkerEffects effects = f.Program({});
  ASSERT_EQ(effects.reports.size(), 1u);
  const TimePoint sent = f.now;
  f.now += 2 * kSecond;
  f.Answer(effects.reports[0], 3);
  EXPECT_TRUE(!f.worker.MayPublish(f.now));  // another generation trains
  f.Answer(effects.reports[0], 4);
  EXPECT_TRUE(f.worker.MayPublish(f.now));
  EXPECT_TRUE(f.worker.MayPublish(sent + 4499 * kMillisecond));
  EXPECT_TRUE(!f.worker.MayPublish(sent + 4500 * kMillisecond));
}

TEST(AnExcludedWorkerLeavesAndSaysNothing) {
  Fixture f;
  f.Ready();
  f.Run(4);
  const WorkerEffects effects = f.Tell(CommandKind::kExcluded, 4);
  ASSERT_TRUE(effects.exit.has_value());
  EXPECT_EQ(effects.exit->code, kExitTryAgain);
  EXPECT_TRUE(effects.abandon == Generation{4});
  EXPECT_TRUE(effects.reports.empty() && !f.worker.MayPublish(f.now));
  f.now += kSecond;
  EXPECT_TRUE(f.Program({}).reports.empty());
  EXPECT_EQ(f.worker.next_deadline(), kNever);
}

TEST(OnlyAWorkerThatTrainsNeedsNoAnswers) {
  Fixture f;
  f.Ready();
  f.Run(4);
  f.now += 3600 * kSecond;
  EXPECT_TRUE(!f.Program({}).exit);
  f.Stop(4, {3, 3});
  EXPECT_TRUE(!f.Pass(9 * kSecond).exit);
  const WorkerEffects effects = f.Pass(kSecond);
  ASSERT_TRUE(effects.exit.has_value());
  EXPECT_EQ(effects.exit->code, kExitTryAgain);
  EXPECT_CONTAINS(effects.exit->reason, "has not answered worker 7 for 10 s");
}

TEST(WhileAWorkerDoesNotRunItCannotHearAnswers) {
  Fixture f;
  f.Ready();
  f.Run(4);
  f.Stop(4, {3, 3});
  EXPECT_TRUE(!f.Pass(5 * kSecond).exit);
  f.now += 60 * kSecond;  // a call keeps Python's lock
  EXPECT_TRUE(!f.Program({}).exit);
  EXPECT_TRUE(!f.Pass(4 * kSecond).exit);
  EXPECT_TRUE(f.Pass(kSecond).exit.has_value());
}

}  // namespace
}  // namespace tfring::membership::worker_test
