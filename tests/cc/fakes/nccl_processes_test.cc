// The fake NCCL between processes: this program runs itself once per rank.
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "tests/cc/fakes/nccl_world.h"
#include "tests/cc/test.h"

namespace tfring::testing::nccl_processes_test {
namespace {

constexpr int kRanks = 3;
constexpr const char* kRankVariable = "TFRING_TEST_RANK";
constexpr const char* kIdVariable = "TFRING_TEST_ID";
constexpr const char* kVictimVariable = "TFRING_TEST_VICTIM";

// One rank: the sum of all ranks; then the victim ends itself, and the others look for the error.
int RunRank(int r) {
  const FakeNccl& nccl = FakeNccl::Get();
  ncclUniqueId id{};
  std::snprintf(id.internal, sizeof(id.internal), "%s", std::getenv(kIdVariable));
  const int victim = std::atoi(std::getenv(kVictimVariable));
  nccl.Set("remote_error", 1);
  GpuRank rank(r, kRanks, r);
  if (rank.Init(id, false) != ncclSuccess) return 2;
  void* data = rank.Put(std::vector<int32_t>(70001, r + 1));
  const auto sum = [&] {
    return nccl.AllReduce(data, data, 70001, ncclInt32, ncclSum, rank.comm, rank.stream);
  };
  if (sum() != ncclInProgress || rank.Poll() != ncclSuccess) return 3;
  if (rank.Get<int32_t>(data, 70001) != std::vector<int32_t>(70001, 6)) return 4;
  if (r == victim) kill(getpid(), SIGKILL);
  if (victim < 0) return nccl.CommDestroy(rank.comm) == ncclSuccess ? 0 : 5;
  if (sum() == ncclInProgress) {
    for (int i = 0; i < 20000 && rank.Poll() == ncclSuccess; ++i) usleep(1000);
  }
  if (rank.Poll() != ncclRemoteError) return 6;
  return nccl.CommAbort(rank.comm) == ncclSuccess && rank.Idle() ? 0 : 7;
}

pid_t Start(int rank, const ncclUniqueId& id, int victim) {
  const std::string number = std::to_string(rank);
  const std::string who = std::to_string(victim);
  const pid_t child = fork();
  if (child != 0) return child;
  setenv(kRankVariable, number.c_str(), 1);
  setenv(kIdVariable, id.internal, 1);
  setenv(kVictimVariable, who.c_str(), 1);
  execl("/proc/self/exe", "nccl_processes_test", static_cast<char*>(nullptr));
  _exit(127);
}

void RunJob(int victim) {
  ncclUniqueId id;
  EXPECT_EQ(FakeNccl::Get().GetUniqueId(&id), ncclSuccess);
  std::vector<pid_t> children;
  for (int r = 0; r < kRanks; ++r) children.push_back(Start(r, id, victim));
  // The victim is not waited for until the others are through: a process that nobody waited for
  // still has its number.
  for (int r = 0; r < kRanks; ++r) {
    int status = 0;
    if (r == victim) continue;
    waitpid(children[static_cast<size_t>(r)], &status, 0);
    EXPECT_TRUE(WIFEXITED(status));
    EXPECT_EQ(WEXITSTATUS(status), 0);
  }
  if (victim >= 0) waitpid(children[static_cast<size_t>(victim)], nullptr, 0);
  EXPECT_TRUE(access(id.internal, F_OK) != 0);
}

TEST(ProcessesMeetAndSum) { RunJob(-1); }
TEST(AKilledProcessIsARemoteErrorForTheOthers) { RunJob(1); }

// Before main's cases: the processes that RunJob starts are ranks.
const bool is_rank = [] {
  const char* rank = std::getenv(kRankVariable);
  if (rank != nullptr) _exit(RunRank(std::atoi(rank)));
  return false;
}();

}  // namespace
}  // namespace tfring::testing::nccl_processes_test
