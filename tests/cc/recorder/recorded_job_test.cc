// What ranks that work together write into their records, and when a record's file stays.
#include <unistd.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "ops/runtime/process/process_runtime.h"
#include "ops/runtime/recorder/recorder.h"
#include "tests/cc/process/fixture.h"
#include "tests/cc/recorder/folder.h"
#include "tests/cc/test.h"

namespace tfring::recorded_job_test {
namespace {

// A job whose ranks record to files of `folder`.
struct RecordedJob {
  explicit RecordedJob(int size, bool keep = false, Rank mute = kNoRank, Link link = Link::kTcp,
                       const Config& config = Config())
      : job(size, link, config, mute, [&](RankRuntimeParts* parts) {
          RecordIdentity identity;
          identity.rank = parts->engine.rank;
          identity.size = size;
          identity.path = Path(identity.rank);
          Result<std::unique_ptr<Recorder>> made = Recorder::Create(identity);
          if (!made.ok()) return;
          records[identity.rank] = made->get();
          parts->recorder = std::move(*made);
          parts->keep_record = keep;
        }) {}

  std::string Path(Rank rank) const {
    return folder.File("rank-" + std::to_string(rank) + ".record");
  }
  const CallRecord& call(Rank rank, uint64_t number) {
    return records.at(rank)->memory().call(number);
  }
  RankState State(Rank rank) {
    return static_cast<RankState>(records.at(rank)->header().state.load());
  }

  Folder folder;
  std::map<Rank, Recorder*> records;  // valid as long as `job`
  Job job;
};

TEST(EveryRankRecordsItsCallsAndPlans) {
  RecordedJob recorded(2);
  Job& job = recorded.job;
  // Rank 1 asks for "x" before "y", and rank 0 for "x" after "y" has ended.
  auto early = Allreduce("x", {8}, 1.0f);
  early->Start(&job[1]);
  RunAll(&job, [&](int) { return Allreduce("y", {4}, 1.0f); });
  auto late = Allreduce("x", {8}, 1.0f);
  late->Start(&job[0]);
  EXPECT_TRUE(late->Wait().ok());
  EXPECT_TRUE(early->Wait().ok());

  const CallRecord& at_0 = recorded.call(0, 2);
  const CallRecord& at_1 = recorded.call(1, 1);
  for (const CallRecord* call : {&at_0, &at_1}) {
    EXPECT_EQ(std::string(call->name), "x");
    EXPECT_EQ(call->bytes, int64_t{32});
    EXPECT_TRUE(call->submitted > 0 && call->submitted <= call->planned.load());
    EXPECT_TRUE(call->planned.load() <= call->ended.load());
    EXPECT_EQ(call->status.load(), uint8_t{0});
  }
  EXPECT_EQ(at_0.sequence.load(), at_1.sequence.load());
  // Only rank 0 knows when the ranks asked.
  EXPECT_EQ(at_0.last_rank, 0);
  EXPECT_TRUE(at_1.submitted <= at_0.first_asked);
  EXPECT_EQ(at_0.first_asked, at_0.second_last_asked);
  EXPECT_TRUE(at_0.first_asked < at_0.last_asked && at_0.last_asked <= at_0.planned.load());
  EXPECT_EQ(at_1.last_rank, kNoRank);
  EXPECT_EQ(at_1.first_asked, int64_t{0});

  for (Rank rank : {0, 1}) {
    const PlanRecord& plan = recorded.records.at(rank)->memory().plan(at_0.sequence);
    EXPECT_EQ(plan.sequence.load(), at_0.sequence.load());
    EXPECT_EQ(plan.bytes, int64_t{32});
    EXPECT_EQ(plan.members, 2u);
    EXPECT_EQ(plan.calls, 1u);
    EXPECT_TRUE(plan.queued <= plan.marks.started.load());
    EXPECT_TRUE(plan.marks.started.load() <= plan.marks.ended.load());
    EXPECT_EQ(plan.marks.waits_since.load(), int64_t{0});
    const RecordHeader& header = recorded.records.at(rank)->header();
    EXPECT_EQ(header.calls.load(), uint64_t{2});
    EXPECT_EQ(header.plans.load(), uint64_t{2});
    EXPECT_EQ(header.ended.load(), int64_t{2});
    EXPECT_EQ(header.bytes.load(), int64_t{48});
    EXPECT_TRUE(header.awake.load() > 0);
  }
}

// In a lock nobody asks rank 0, but all members tell when they have entered a batch. Rank 1 calls
// when the others have entered.
TEST(WhoIsLateInALockIsInTheRecord) {
  constexpr int kRounds = 40;
  Config config;
  config.lock_schedule = true;
  RecordedJob recorded(3, false, kNoRank, Link::kSharedMemory, config);
  const auto entered = [&](Rank rank, uint64_t number) {
    return recorded.call(rank, number).planned.load() != 0;
  };
  uint64_t locked = 0;
  for (uint64_t number = 1; number <= kRounds; ++number) {
    Calls calls;
    for (int rank : {0, 2, 1}) {
      const bool in_lock = recorded.job[rank].Counters()["locks"] > 0 && number > 10;
      for (int tries = 0; rank == 1 && in_lock && tries < 50; ++tries) {
        if (entered(0, number) && entered(2, number)) break;
        usleep(1000);
      }
      calls.push_back(Allreduce("x", {8}, 1.0f));
      calls.back()->Start(&recorded.job[rank]);
    }
    for (auto& call : calls) EXPECT_TRUE(call->Wait().ok());
    const CallRecord& call = recorded.call(0, number);
    if (call.planned.load() >= call.last_asked) continue;  // rank 0 was answered
    ++locked;
    EXPECT_EQ(call.last_rank, 1);
    EXPECT_TRUE(call.first_asked <= call.second_last_asked);
    EXPECT_TRUE(call.second_last_asked < call.last_asked);
    EXPECT_TRUE(call.last_asked / 1000 <= call.ended.load() / 1000);
    EXPECT_EQ(recorded.call(2, number).last_rank, kNoRank);
  }
  EXPECT_TRUE(locked > kRounds / 2);
  RankRecord& late = recorded.records.at(0)->memory().rank(1);
  EXPECT_TRUE(late.times >= static_cast<int64_t>(locked));
  EXPECT_TRUE(late.late > 0);
}

// The last plan's bytes too: they are sent after it has begun.
TEST(TheBytesSentAreThoseOfAllPlans) {
  RecordedJob recorded(2);
  RunAll(&recorded.job, [&](int) { return Allreduce("x", {1000}, 1.0f); });
  for (Rank rank : {0, 1}) {
    const int64_t sent = recorded.job[rank].Counters()["bytes_sent"];
    EXPECT_TRUE(sent >= 2000);
    const auto written = [&] { return recorded.records.at(rank)->header().bytes_sent.load(); };
    for (int tries = 0; tries < 300 && written() != sent; ++tries) usleep(100'000);
    EXPECT_EQ(written(), sent);
    // Beside the data there is a header for each message.
    RecordMemory& memory = recorded.records.at(rank)->memory();
    const int64_t to_other = memory.rank(1 - rank).sent;
    EXPECT_TRUE(to_other >= 2000 && to_other <= sent);
    EXPECT_EQ(memory.rank(rank).sent.load(), int64_t{0});
  }
}

TEST(ACallThatFailsIsInTheRecordWithItsText) {
  RecordedJob recorded(2);
  Calls calls = StartAll(&recorded.job, [](int r) { return Allreduce("x", {2 + r}, 1.0f); });
  for (auto& call : calls) EXPECT_TRUE(!call->Wait().ok());
  recorded.job.ShutdownAll();
  for (Rank rank : {0, 1}) {
    RecordMemory& memory = recorded.records.at(rank)->memory();
    EXPECT_EQ(memory.header().failed.load(), int64_t{1});
    EXPECT_EQ(memory.call(1).planned.load(), int64_t{0});
    const uint8_t status = memory.call(1).status;
    EXPECT_EQ(status, static_cast<uint8_t>(StatusCode::kFailedPrecondition));
    EXPECT_EQ(memory.event(1).type, static_cast<int32_t>(EventType::kInit));
    EXPECT_EQ(memory.event(2).type, static_cast<int32_t>(EventType::kCallFailed));
    EXPECT_CONTAINS(memory.event(2).text, "tensor 'x'");
    EXPECT_EQ(memory.event(3).type, static_cast<int32_t>(EventType::kShutdown));
    // The program caught the error and ended well.
    EXPECT_TRUE(recorded.State(rank) == RankState::kLeft);
    EXPECT_TRUE(!Exists(recorded.Path(rank)));
  }
}

TEST(TheFileStaysWhereItIsToBeKept) {
  RecordedJob recorded(2, true);
  RunAll(&recorded.job, [](int) { return Allreduce("x", {2}, 1.0f); });
  EXPECT_TRUE(recorded.State(0) == RankState::kRunning);
  recorded.job.ShutdownAll();
  for (Rank rank : {0, 1}) {
    EXPECT_TRUE(recorded.State(rank) == RankState::kLeft);
    EXPECT_TRUE(Exists(recorded.Path(rank)));
  }
}

TEST(TheFileStaysAfterAProgramFailed) {
  RecordedJob recorded(2);
  RunAll(&recorded.job, [](int) { return Allreduce("x", {2}, 1.0f); });
  recorded.job[1].Shutdown("ValueError: of the program");
  EXPECT_TRUE(recorded.State(1) == RankState::kFailed);
  EXPECT_TRUE(Exists(recorded.Path(1)));
}

TEST(TheFileStaysAfterARankWasLost) {
  RecordedJob recorded(3, false, 2);
  Calls waiting =
      StartAll(&recorded.job, [](int r) { return r == 2 ? nullptr : Allreduce("x", {4}, 1.0f); });
  recorded.job.Cut(2);
  for (auto& call : waiting) {
    if (call) EXPECT_TRUE(!call->Wait().ok());
  }
  recorded.job.ShutdownAll();
  for (Rank rank : {0, 1}) {
    EXPECT_TRUE(recorded.State(rank) == RankState::kFailed);
    EXPECT_TRUE(Exists(recorded.Path(rank)));
    bool aborted = false;
    for (uint64_t n = 1; n <= recorded.records.at(rank)->header().events.load(); ++n) {
      const EventRecord& event = recorded.records.at(rank)->memory().event(n);
      if (event.type != static_cast<int32_t>(EventType::kAbort)) continue;
      aborted = true;
      EXPECT_CONTAINS(event.text, "rank 2");
    }
    EXPECT_TRUE(aborted);
  }
}

TEST(AJobRunsWithoutAFileWhereNoneCanBeMade) {
  InitOptions options;
  options.record.enabled = true;
  options.record.path = "/nonexistent/rank-0.record";
  ASSERT_TRUE(ProcessRuntime::Get().Init(std::move(options)).ok());
  auto call = Allreduce("alone", {3}, 2.5f);
  EnqueueIn(0, call->request, call->MakeLocalCall());
  EXPECT_TRUE(call->Wait().ok());
  const std::shared_ptr<RankRuntime> runtime = *ProcessRuntime::Get().Current();
  runtime->MarkStep(1, 2, 3);
  runtime->Mark("a line");
  ProcessRuntime::Get().Shutdown();
}

}  // namespace
}  // namespace tfring::recorded_job_test
