#include <algorithm>
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

// A plan of one call on each of two ranks, which asked for these paths.
std::vector<std::string> FailuresOf(DataPath plan, DataPath first, DataPath second,
                                    DataPath other_plan) {
  Checker checker(2);
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
  Checker checker(2);
  Call call;
  call.request.name = "x";
  checker.OnSubmit(0, 1, call);
  checker.OnResult(0, 1, Unavailable("rank 1 (host h1) was lost: connection closed"));
  EXPECT_TRUE(AnyContains(checker.failures(), "nobody was lost"));
}

TEST(TheWrongNameOfALostRankIsDetected) {
  Checker checker(3);
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
  Checker checker(2);
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
  Checker checker(2);
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

TEST(UnknownWorkloadsAreRefused) {
  EXPECT_CONTAINS(MakeWorkload("circle", 3, Random(1)).status().message(),
                  "there is no workload 'circle'");
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
