// Runs that fail on one rank: what their calls and those of the other ranks end with, and that the
// next run works. On real threads and sockets.
#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "ops/runtime/process/run_table.h"
#include "tests/cc/process/fixture.h"
#include "tests/cc/test.h"

namespace tfring::runs_test {
namespace {

const Status kNan = InvalidArgument("NaN in 'loss'");

std::unique_ptr<Call> Start(Job* job, int rank, uint64_t run, const std::string& name,
                            float value = 1.0f) {
  auto call = Allreduce(name, {64}, value);
  LocalCall local = call->MakeLocalCall();
  local.run = run;
  (*job)[rank].Enqueue(call->request, std::move(local));
  return call;
}

void ExpectAborted(Call* call, const std::string& why) {
  const Status status = call->Wait();
  EXPECT_EQ(std::string(StatusCodeName(status.code())), std::string("Aborted"));
  EXPECT_CONTAINS(status.message(), why);
}

void ExpectWorks(Job* job, uint64_t run, const std::string& name = "works") {
  Calls calls;
  for (int r = 0; r < job->size(); ++r) calls.push_back(Start(job, r, run, name));
  for (auto& call : calls) {
    EXPECT_EQ(call->Wait().ToString(), OkStatus().ToString());
    EXPECT_TRUE(AllEqual(call->outputs[0], static_cast<float>(job->size())));
  }
}

TEST(LaterCallsOfAFailedRunAreRefused) {
  Job job(2, Link::kTcp);
  job[0].BeginRun(1, kGlobalProcessSet);
  job[0].FailRun(1, kNan);
  job[0].FailRun(1, Internal("not the first"));
  ExpectAborted(Start(&job, 0, 1, "x").get(), "the step of this rank failed: InvalidArgument: NaN");
  auto next = Start(&job, 0, 2, "x");
  ExpectAborted(Start(&job, 1, 1, "x").get(), "the step of rank 0 (host host0) failed");
  ExpectAborted(Start(&job, 1, 1, "y").get(), "the step of rank 0 (host host0) failed");
  EXPECT_TRUE(!next->Ended());  // not with the x of the run that failed
  auto same = Start(&job, 1, 2, "x", 3.0f);
  for (Call* call : {same.get(), next.get()}) {
    EXPECT_EQ(call->Wait().ToString(), OkStatus().ToString());
  }
  EXPECT_TRUE(AllEqual(next->outputs[0], 4.0f));
}

// Rank 0 is in a run, rank 1 makes eager calls: one error for each, then both go on.
TEST(ADisagreementBetweenARunAndAnEagerCall) {
  Job job(2, Link::kTcp);
  for (uint64_t run = 1; run <= 20; ++run) {
    const bool block = run % 2 == 0;  // of eager calls, which begins a run of its own
    if (block) job[0].BeginRun(run, kGlobalProcessSet);
    auto wrong = Allreduce("x", {7}, 1.0f);
    LocalCall local = wrong->MakeLocalCall();
    local.run = block ? run + 1000 : run;
    wrong->request.in_run = !block;
    job[0].Enqueue(wrong->request, std::move(local));
    auto eager = Start(&job, 1, 0, "x");
    for (Call* call : {wrong.get(), eager.get()}) {
      const Status status = call->Wait();
      EXPECT_EQ(std::string(StatusCodeName(status.code())), std::string("FailedPrecondition"));
    }
    auto next = Start(&job, 1, 0, "next");  // before or after rank 0's run fails
    job[0].FailRun(run, kNan);
    job[0].EndRun(run);
    auto same = Start(&job, 0, 0, "next");
    for (Call* call : {next.get(), same.get()}) {
      EXPECT_EQ(call->Wait().ToString(), OkStatus().ToString());
    }
  }
}

// Which of its collectives TensorFlow reports is a matter of time.
TEST(ALaterCallOfARunGetsTheErrorOfItsDisagreement) {
  Job job(2, Link::kTcp);
  std::vector<std::shared_ptr<Call>> calls;
  for (Rank rank : {0, 1}) {
    job[rank].BeginRun(1, kGlobalProcessSet);
    calls.push_back(Allreduce("x", {4 + rank}, 1.0f));
    LocalCall local = calls.back()->MakeLocalCall();
    local.run = 1;
    job[rank].Enqueue(calls.back()->request, std::move(local));
  }
  for (Rank rank : {0, 1}) {
    const Status status = calls[rank]->Wait();
    EXPECT_TRUE(status.code() == StatusCode::kFailedPrecondition);
    EXPECT_EQ(Start(&job, rank, 1, "later")->Wait().ToString(), status.ToString());
    job[rank].FailRun(1, status);
    job[rank].EndRun(1);
  }
  ExpectWorks(&job, 2);
}

TEST(CancelledCallsEndOnAllRanks) {
  Job job(3, Link::kTcp);
  Calls calls;
  for (int r = 0; r < 3; ++r) calls.push_back(Start(&job, r, 0, "x" + std::to_string(r)));
  job[2].CancelCalls(Cancelled("interrupted by the user"));
  ExpectAborted(calls[2].get(), "the step of rank 2 (host host2) failed: Cancelled: interrupted");
  for (int r = 0; r < 2; ++r) ExpectAborted(calls[r].get(), "the step of rank 2");
  job[2].CancelCalls(Cancelled("nothing to cancel"));
  ExpectWorks(&job, 0);
  // A second Ctrl-C, while the calls of the first are still waiting for their answer.
  auto alone = Start(&job, 2, 0, "alone");
  for (int i = 0; i < 3; ++i) job[2].CancelCalls(Cancelled("interrupted again"));
  ExpectAborted(alone.get(), "interrupted again");
  for (int r = 0; r < 2; ++r) {
    ExpectAborted(Start(&job, r, 0, "late").get(), "interrupted again");
  }
  ExpectWorks(&job, 0);
  ExpectWorks(&job, 0);
}

// Threads enqueue calls of a run while another fails it, on all ranks: each call ends once (a
// second outcome would throw in the promise), none is paired with one of the next run.
TEST(FailuresWhileThreadsEnqueue) {
  Job job(2, Link::kTcp);
  for (uint64_t run = 1; run <= 60; ++run) {
    std::vector<Calls> calls(2);
    std::vector<std::thread> threads;
    for (int r = 0; r < 2; ++r) {
      calls[r].resize(8);
      for (int t = 0; t < 2; ++t) {
        threads.emplace_back([&, r, t] {
          for (int i = t; i < 8; i += 2) {
            const int name = r == 0 ? i : 7 - i;
            calls[r][i] = Start(&job, r, run, "x" + std::to_string(name), static_cast<float>(run));
          }
        });
      }
    }
    job[static_cast<int>(run % 2)].FailRun(run, kNan);
    for (std::thread& thread : threads) thread.join();
    for (int r = 0; r < 2; ++r) {
      for (auto& call : calls[r]) {
        const Status status = call->Wait();
        if (status.ok()) EXPECT_TRUE(AllEqual(call->outputs[0], 2.0f * static_cast<float>(run)));
        EXPECT_TRUE(status.ok() || status.code() == StatusCode::kAborted);
      }
      job[r].FailRun(run, kNan);
      job[r].EndRun(run);
    }
    if (run % 20 == 0) ExpectWorks(&job, 1000 + run);
  }
}

TEST(ARunConcernsTheSetsThatItBeganToUse) {
  RunTable runs;
  EXPECT_TRUE(!runs.InRun(0));
  EXPECT_TRUE(runs.Admit(1, 0).ok());  // an eager op
  EXPECT_TRUE(!runs.InRun(0));
  runs.Begin(2, 3);
  EXPECT_TRUE(runs.InRun(3) && !runs.InRun(0));
  runs.Fail(2, kNan);
  runs.Begin(2, 3);
  EXPECT_TRUE(!runs.InRun(3));
  runs.Begin(4, 0);
  EXPECT_TRUE(runs.InRun(0));
  runs.End(4);
  EXPECT_TRUE(!runs.InRun(0));
}

TEST(TheTableOfRunsStaysSmall) {
  RunTable runs;
  std::vector<Withdrawal> withdrawals;
  for (uint64_t run = 1; run <= 10000; ++run) {
    EXPECT_EQ(*runs.Admit(run, 0), run - 1);
    EXPECT_TRUE(runs.Fail(run, kNan));
    EXPECT_TRUE(!runs.Fail(run, kNan));
    EXPECT_TRUE(!runs.Admit(run, 0).ok());
    runs.Drain(&withdrawals);
    EXPECT_EQ(withdrawals.back().attempt, run - 1);
    if (run % 2 == 0) runs.End(run);
  }
  EXPECT_TRUE(runs.size() <= 256);
  EXPECT_TRUE(!runs.HasWithdrawals());
}

TEST(AFailureAnotherRankHasReportedIsNoSecondOne) {
  RunTable runs;
  runs.Begin(1, 3);
  runs.Begin(1, 4);
  runs.OnLeft({3, 0, Aborted("the step of rank 2 failed")});
  runs.OnLeft({3, 0, Aborted("again")});
  EXPECT_EQ(*runs.Admit(0, 3), 1u);
  EXPECT_CONTAINS(runs.Admit(1, 3).status().message(), "the step of rank 2 failed");
  EXPECT_TRUE(runs.Fail(1, kNan));
  std::vector<Withdrawal> withdrawals;
  runs.Drain(&withdrawals);
  ASSERT_EQ(withdrawals.size(), size_t{1});
  EXPECT_EQ(withdrawals[0].process_set, 4);
  runs.Begin(2, 3);
  EXPECT_EQ(*runs.Admit(2, 3), 1u);
  // The members of a set that the run comes to only after its failure wait for it as well.
  EXPECT_TRUE(runs.Begin(1, 5));
  EXPECT_TRUE(!runs.Begin(1, 5));
  EXPECT_EQ(*runs.Admit(2, 5), 1u);
  runs.KeepOnly(ProcessSets(2));
  EXPECT_EQ(*runs.Admit(0, 4), 0u);
  EXPECT_TRUE(runs.Admit(2, 3).ok());  // of the set that was removed: the engine ends it
}

}  // namespace
}  // namespace tfring::runs_test
