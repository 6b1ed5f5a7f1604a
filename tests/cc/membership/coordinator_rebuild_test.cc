// What a coordinator that was started again takes over.

#include <string>
#include <vector>

#include "ops/runtime/membership/coordinator.h"
#include "tests/cc/membership/small_job.h"
#include "tests/cc/test.h"

namespace tfring::membership::coordinator_rebuild_test {
namespace {

using Workers = std::vector<WorkerId>;

constexpr Duration kWait = 5 * kSecond;

// The job of which the coordinator has died: its workers, and a new one.
SmallJob StartedAgain(const SmallJob& before) {
  CoordinatorOptions options = JobOf(3);
  options.rebuild_wait = kWait;
  SmallJob job(options);
  job.now = before.now;
  job.workers = before.workers;
  for (auto& [id, worker] : job.workers) {
    worker.report.host = "h" + std::to_string(id);
    worker.report.slot = 0;
    worker.report.record = before.coordinator.record();
  }
  return job;
}

std::vector<HostSlots> Hosts() { return {{"h1", 1}, {"h2", 1}, {"h3", 1}}; }

TEST(AGenerationThatTrainsGoesOn) {
  const SmallJob before = RunningJob(JobOf(3), 3);
  SmallJob job = StartedAgain(before);
  job.SetHosts(Hosts());
  job.Pass(kWait - 200 * kMillisecond);
  EXPECT_TRUE(job.coordinator.phase() == Phase::kGathering);
  EXPECT_TRUE(job.starts.empty());
  job.Pass(kSecond);
  EXPECT_TRUE(job.Runs(1));
  EXPECT_TRUE(job.Members() == (Workers{1, 2, 3}));
  job.Pass(20 * kSecond, true);
  EXPECT_TRUE(job.Runs(1));
  EXPECT_TRUE(job.kills.empty());
  // It is as good as the first one.
  job.End(2, 137);
  job.Pass(kSecond);
  EXPECT_TRUE(job.Runs(2));
  EXPECT_TRUE(job.Members() == (Workers{1, 3}));
}

TEST(AMemberOfWhichNothingIsHeardIsLost) {
  SmallJob job = StartedAgain(RunningJob(JobOf(3), 3));
  job.workers.at(2).silent = true;
  job.SetHosts(Hosts());
  job.Pass(kWait + kSecond);
  EXPECT_TRUE(job.Runs(2));
  EXPECT_TRUE(job.Members() == (Workers{1, 3}));
  job.Say(2);  // it comes too late
  EXPECT_EQ(job.workers.at(2).excluded, 1);
}

}  // namespace
}  // namespace tfring::membership::coordinator_rebuild_test
