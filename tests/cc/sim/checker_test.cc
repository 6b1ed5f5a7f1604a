#include <algorithm>
#include <iostream>
#include <string>
#include <vector>

#include "ops/sim/cluster.h"
#include "ops/sim/pricing.h"
#include "ops/sim/virtual_clock.h"
#include "tests/cc/test.h"

// That the simulator repeats itself, and that its checks can fail. The long runs are in
// tests/cc/CMakeLists.txt.
namespace tfring::sim::checker_test {
namespace {

SimOptions Sabotaged(Sabotage sabotage, uint64_t seed) {
  SimOptions options;
  options.ranks = 4;
  options.workload = "global";
  options.sabotage = sabotage;
  options.seed = seed;
  return options;
}

bool AnyContains(const std::vector<std::string>& failures, const std::string& part) {
  return std::any_of(failures.begin(), failures.end(), [&](const std::string& failure) {
    return failure.find(part) != std::string::npos;
  });
}

TEST(EventsRunInOrderOfTimeAndThenOfPlanning) {
  VirtualClock clock;
  std::string order;
  clock.At(20, [&] { order += 'c'; });
  clock.At(10, [&] {
    order += 'a';
    clock.At(5, [&] { order += 'b'; });  // in the past: now
  });
  clock.At(20, [&] { order += 'd'; });
  while (clock.RunOne()) {
  }
  EXPECT_EQ(order, "abcd");
  EXPECT_EQ(clock.Now(), 20);
}

TEST(ASeedRepeatsARun) {
  SimOptions options;
  options.ranks = 6;
  options.workload = "random";
  options.fault = Fault::kGoodbye;
  for (options.seed = 1; options.seed <= 20; ++options.seed) {
    const SimReport first = Cluster(options).Run();
    const SimReport second = Cluster(options).Run();
    EXPECT_EQ(first.events, second.events);
    EXPECT_EQ(first.end, second.end);
    EXPECT_EQ(first.results, second.results);
    EXPECT_TRUE(first.failures.empty());
  }
}

// What the star of control connections costs its centre: for each call at most a request and a plan
// of every other rank, a few frames around them, and at the end each rank's goodbye with its
// answer, the first of them and rank 0's own to all, and perhaps some that came long before the
// others.
TEST(MessagesAtTheBusiestOfTwoThousandRanks) {
  SimOptions options;
  options.ranks = 2048;
  options.workload = "global";
  const SimReport report = Cluster(options).Run();
  EXPECT_TRUE(report.failures.empty());
  const Network::Load& busiest = report.busiest;
  const int64_t others = options.ranks - 1;
  const int64_t calls = report.results / options.ranks;
  std::cout << "rank " << busiest.rank << ": " << busiest.messages << " messages, "
            << busiest.goodbyes << " of them goodbyes, " << busiest.bytes << " bytes for " << calls
            << " calls of each rank\n";
  EXPECT_EQ(busiest.rank, 0);
  const int64_t work = busiest.messages - busiest.goodbyes;
  EXPECT_TRUE(calls > 0 && work >= 2 * others && work <= 2 * others * calls);
  EXPECT_TRUE(busiest.goodbyes >= 2 * others && busiest.goodbyes <= 6 * others);
  EXPECT_TRUE(busiest.bytes <= 100 * work + 32 * busiest.goodbyes);
}

TEST(StepsReallyFailAndASeedRepeatsThat) {
  SimOptions options;
  options.ranks = 4;
  options.workload = "withdrawals";
  int64_t aborted = 0;
  for (options.seed = 1; options.seed <= 20; ++options.seed) {
    const SimReport first = Cluster(options).Run();
    EXPECT_EQ(first.events, Cluster(options).Run().events);
    EXPECT_TRUE(first.failures.empty());
    aborted += first.aborted;
  }
  EXPECT_TRUE(aborted > 200);
}

TEST(DevicesAreReallyUsedAndReallyBreak) {
  SimOptions options;
  options.ranks = 4;
  options.workload = "random";
  options.fault = Fault::kDeath;
  SimReport total;
  for (options.seed = 1; options.seed <= 100; ++options.seed) {
    const SimReport report = Cluster(options).Run();
    EXPECT_TRUE(report.failures.empty());
    total.launched += report.launched;
    total.early += report.early;
    total.broken_groups += report.broken_groups;
  }
  EXPECT_TRUE(total.launched > 500 && total.early > 200 && total.broken_groups > 3);
}

TEST(AFaultIsReallyInjected) {
  int struck = 0;
  SimOptions options;
  options.fault = Fault::kDeath;
  for (options.seed = 1; options.seed <= 50; ++options.seed)
    struck += Cluster(options).Run().faulted;
  EXPECT_TRUE(struck > 10);
}

// Some seeds never have two plans to swap.
void ExpectSwapShowsAs(const std::string& what, bool check_order) {
  int swapped = 0;
  for (uint64_t seed = 1; seed <= 60; ++seed) {
    SimOptions options = Sabotaged(Sabotage::kSwapPlans, seed);
    options.check_order = check_order;
    const SimReport report = Cluster(options).Run();
    swapped += report.sabotaged;
    EXPECT_EQ(AnyContains(report.failures, what), report.sabotaged);
    EXPECT_EQ(report.failures.empty(), !report.sabotaged);
  }
  EXPECT_TRUE(swapped > 20);
}

TEST(AWrongOrderIsDetected) { ExpectSwapShowsAs("runs after plan", true); }

TEST(AWrongOrderShowsAsADeadlockToo) { ExpectSwapShowsAs("deadlock", false); }

void ExpectShowsAs(Sabotage sabotage, const std::string& what) {
  for (uint64_t seed = 1; seed <= 30; ++seed) {
    EXPECT_TRUE(AnyContains(Cluster(Sabotaged(sabotage, seed)).Run().failures, what));
  }
}

TEST(APlanThatDiffersIsDetected) {
  ExpectShowsAs(Sabotage::kAlterPlan, "differs from what another member runs");
}

TEST(AMissingResultIsDetected) { ExpectShowsAs(Sabotage::kDropResult, "never ended"); }

TEST(ADoubleResultIsDetected) { ExpectShowsAs(Sabotage::kRepeatResult, "ended twice"); }

TEST(ALostFrameIsDetected) { ExpectShowsAs(Sabotage::kLoseFrame, ""); }  // in one way or another

// Some seeds launch nothing.
TEST(AnEndAtTheLaunchIsDetected) {
  int sabotaged = 0;
  for (uint64_t seed = 1; seed <= 30; ++seed) {
    const SimReport report = Cluster(Sabotaged(Sabotage::kEndAtLaunch, seed)).Run();
    sabotaged += report.sabotaged;
    EXPECT_EQ(AnyContains(report.failures, "ended while its memory is used"), report.sabotaged);
  }
  EXPECT_TRUE(sabotaged > 15);
}

TEST(LocksReallyBeginAndAreReallyRecalled) {
  SimOptions options;
  options.ranks = 3;
  options.workload = "locked";
  SimReport total;
  for (options.seed = 1; options.seed <= 400; ++options.seed) {
    const SimReport report = Cluster(options).Run();
    EXPECT_TRUE(report.failures.empty());
    total.locks += report.locks;
    total.locked += report.locked;
    total.recalled += report.recalled;
    for (size_t cause = 0; cause < kUnlockCauses; ++cause) {
      total.unlocks[cause] += report.unlocks[cause];
    }
  }
  for (size_t cause = 1; cause < kUnlockCauses; ++cause) EXPECT_TRUE(total.unlocks[cause] > 0);
  EXPECT_TRUE(total.locks > 160 && total.locked > 3200 && total.recalled > 400);
}

TEST(FaultsOfStepsThatRepeatHappenWithinLocks) {
  for (const char* workload : {"steady", "locked"}) {
    for (Fault fault : {Fault::kDeath, Fault::kHang, Fault::kResize, Fault::kGoodbye}) {
      SimOptions options;
      options.workload = workload;
      options.fault = fault;
      int in_lock = 0;
      for (options.seed = 1; options.seed <= 100; ++options.seed) {
        const SimReport report = Cluster(options).Run();
        EXPECT_TRUE(report.failures.empty());
        in_lock += report.in_lock;
      }
      EXPECT_TRUE(in_lock > 25);
    }
  }
}

// Some seeds never have a lock, or none that ends at the wrong moment; and a mistake may come too
// late to do harm.
void ExpectLockShowsAs(Sabotage sabotage, const std::string& what) {
  int sabotaged = 0;
  int found = 0;
  for (uint64_t seed = 1; seed <= 100; ++seed) {
    SimOptions options = Sabotaged(sabotage, seed);
    options.workload = "locked";
    const SimReport report = Cluster(options).Run();
    sabotaged += report.sabotaged;
    found += AnyContains(report.failures, what);
    EXPECT_TRUE(report.failures.empty() || report.sabotaged);
  }
  EXPECT_TRUE(sabotaged > 20);
  EXPECT_TRUE(10 * found >= 8 * sabotaged);
}

TEST(ABatchThatRunsWithoutARankIsDetected) {
  ExpectLockShowsAs(Sabotage::kIgnoreVoid, "has ended, but not all ranks have entered it");
}

TEST(AMissingVoidIsDetected) { ExpectLockShowsAs(Sabotage::kSkipVoid, "deadlock"); }

TEST(ALockThatDiffersIsDetected) {
  ExpectLockShowsAs(Sabotage::kAlterLock, "differs from what another member runs");
}

TEST(ABatchThatIsEnteredLateIsDetected) { ExpectLockShowsAs(Sabotage::kEnterLate, ""); }

TEST(AWrongReasonOfAnEndIsDetected) {
  ExpectLockShowsAs(Sabotage::kBlameOther, "; another rank has: the lock of ");
}

TEST(AWrongEndOfALockIsDetected) { ExpectLockShowsAs(Sabotage::kShiftUnlock, ""); }

// A plan of one call on each of two ranks, which asked for these paths.
std::vector<std::string> FailuresOf(DataPath plan, DataPath first, DataPath second,
                                    DataPath other_plan) {
  Checker checker(2, true);
  PlanRun run;
  run.plan.sequence = 1;
  run.plan.kind = CollectiveKind::kAllreduce;
  run.plan.items = {{"x", 0, {}}};
  run.members = {0, 1};
  for (Rank rank : {0, 1}) {
    Call call;
    call.request.name = "x";
    call.request.path = rank == 0 ? first : second;
    checker.OnSubmit(rank, static_cast<CallId>(rank), call);
    run.calls = {static_cast<CallId>(rank)};
    run.plan.path = rank == 0 ? plan : other_plan;
    checker.OnRun(rank, run);
  }
  return checker.failures();
}

TEST(AWrongPathIsDetected) {
  constexpr DataPath host = DataPath::kCpu;
  constexpr DataPath device = DataPath::kDevice;
  EXPECT_TRUE(FailuresOf(host, device, host, host).empty());
  EXPECT_TRUE(FailuresOf(device, device, device, device).empty());
  EXPECT_TRUE(AnyContains(FailuresOf(device, host, device, device), "not all asked for"));
  EXPECT_TRUE(AnyContains(FailuresOf(device, device, host, device), "not all asked for"));
  EXPECT_TRUE(AnyContains(FailuresOf(host, device, device, host), "but all asked for devices"));
  EXPECT_TRUE(AnyContains(FailuresOf(device, device, device, host), "differs from what another"));
}

TEST(AnUnexpectedLossIsDetected) {
  Checker checker(2, true);
  Call call;
  call.request.name = "x";
  checker.OnSubmit(0, 1, call);
  checker.OnResult(0, 1, Unavailable("rank 1 (host h1) was lost: connection closed"));
  EXPECT_TRUE(AnyContains(checker.failures(), "nobody was lost"));
}

TEST(TheWrongNameOfALostRankIsDetected) {
  Checker checker(3, true);
  AllowedErrors allowed;
  allowed.lost = 2;
  checker.Allow(allowed);
  Call call;
  call.request.name = "x";
  checker.OnSubmit(0, 1, call);
  checker.OnResult(0, 1, Unavailable("rank 1 (host h1) was lost: connection closed"));
  EXPECT_TRUE(AnyContains(checker.failures(), "rank 2 is the lost one"));
  EXPECT_EQ(checker.open(0), 0u);
}

// One call named "x" of each of two ranks; the second is of attempt 1.
void SubmitTwoAttempts(Checker* checker) {
  Call call;
  call.request.name = "x";
  call.may_be_aborted = true;
  checker->OnSubmit(0, 1, call);
  call.attempt = 1;
  checker->OnSubmit(1, 2, call);
}

TEST(APlanOfTwoAttemptsIsDetected) {
  Checker checker(2, true);
  SubmitTwoAttempts(&checker);
  PlanRun run;
  run.plan.sequence = 1;
  run.plan.kind = CollectiveKind::kAllreduce;
  run.plan.items = {{"x", 0, {}}};
  run.members = {0, 1};
  run.calls = {1};
  checker.OnRun(0, run);
  EXPECT_TRUE(checker.failures().empty());
  run.calls = {2};
  checker.OnRun(1, run);
  EXPECT_TRUE(AnyContains(checker.failures(), "combines 'x' of attempt 1 with attempt 0"));
}

TEST(AnAbortThatNamesNoFailedRankIsDetected) {
  Checker checker(2, true);
  SubmitTwoAttempts(&checker);
  checker.OnFailure(1, kGlobalProcessSet, 0);
  const Status error = Aborted("x was given up: the step of rank 1 (host h1) failed: NaN");
  checker.OnResult(0, 1, error);
  EXPECT_TRUE(checker.failures().empty());
  checker.OnResult(1, 2, error);  // it failed in another attempt
  EXPECT_TRUE(AnyContains(checker.failures(), "that is no rank whose step failed"));
  Call call;
  call.request.name = "y";
  checker.OnSubmit(0, 3, call);
  checker.OnResult(0, 3, error);
  EXPECT_TRUE(AnyContains(checker.failures(), "no step failed"));
}

TEST(TheReplayLineNamesEverything) {
  SimOptions options = Sabotaged(Sabotage::kLoseFrame, 17);
  options.fault = Fault::kHang;
  EXPECT_EQ(ReplayLine(options),
            "tfring_sim --ranks=4 --workload=global --fault=hang --sabotage=lose-frame --seed=17 "
            "--seeds=1");
}

TEST(UnknownWorkloadsAreRefused) {
  EXPECT_CONTAINS(MakeWorkload("circle", 3, Random(1)).status().message(), "'circle' is unknown");
  EXPECT_TRUE(!MakeWorkload("triangle", 4, Random(1)).ok());
  SimOptions options;
  options.workload = "circle";
  EXPECT_TRUE(!Cluster(options).Run().failures.empty());
}

TEST(DataCostsWhatTheSchedulesOfTheBackendCost) {
  PlanPrices prices;
  Plan plan;
  plan.kind = CollectiveKind::kAllreduce;
  const int64_t bytes = 64 << 20;
  // The ring's floor: 2(N-1)/N of the bytes through each link, at the model's 1e9 bytes a second.
  const Duration floor = 2 * 3 * bytes / 4;
  const Duration ring = prices.Price(plan, 4, bytes);
  EXPECT_TRUE(ring >= floor && ring < floor + floor / 2);
  EXPECT_TRUE(prices.Price(plan, 4, 4) < kMillisecond);
  plan.op = ReduceOp::kAdasum;
  EXPECT_TRUE(prices.Price(plan, 4, bytes) != ring);
  EXPECT_EQ(prices.Price(plan, 4, bytes), PlanPrices().Price(plan, 4, bytes));
  plan.kind = CollectiveKind::kBarrier;
  EXPECT_EQ(prices.Price(plan, 4, 0), Duration{0});
}

}  // namespace
}  // namespace tfring::sim::checker_test
