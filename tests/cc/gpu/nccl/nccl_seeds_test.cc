// Random collectives on late streams with a random fault, on NCCL and staged, seed after seed.
// TFRING_NCCL_SEEDS says how many seeds, TFRING_NCCL_FIRST_SEED with which to begin; a failure
// names its seed.
#include <cstdlib>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "ops/gpu/nccl/nccl_backend.h"
#include "tests/cc/backend/world.h"
#include "tests/cc/gpu/nccl/hostile.h"
#include "tests/cc/test.h"

namespace tfring::testing::nccl_seeds_test {
namespace {

enum class Fault {
  kNone,
  kSticky,
  kLostHostFunction,
  kSlowEvent,
  kFailCall,
  kError,
  kHang,
  kDeath
};

struct Planned {
  Job job;
  std::vector<Rank> members;
  bool early = false;
};

long FromEnvironment(const char* name, long otherwise) {
  const char* text = std::getenv(name);
  return text == nullptr ? otherwise : std::atol(text);
}

class SeedRun {
 public:
  SeedRun(long seed, bool staged)
      : random_(static_cast<unsigned>(seed)), seed_(seed), staged_(staged) {}

  void operator()() {
    BeginHostile(seed_, Below(2) == 0 ? 50 : 400);
    SetNccl("in_progress_polls", Below(4));
    SetNccl("kernel_slots", Below(2));
    const int size = 2 + Below(2);
    const int faults = staged_ ? 3 : 7;  // the first three are those of the device
    const Fault fault = Below(2) == 0 ? Fault::kNone : static_cast<Fault>(1 + Below(faults));
    const std::vector<Planned> plan = Plan(size, fault == Fault::kNone);
    {
      const auto change = [](NcclOptions* options) { options->abort_limit = kSecond; };
      const auto made = staged_ ? std::make_unique<GpuWorld>(size, StagingOptions())
                                : std::make_unique<GpuWorld>(size, change);
      GpuWorld& world = *made;
      // With streams that do not start yet, the CPU is ahead of the device as far as it may be.
      const bool hold = fault == Fault::kSticky || Below(2) == 0;
      if (hold) Fake().Set("hold", 1);
      if (!hold) Inject(fault, size);
      for (size_t i = 0; i < plan.size(); ++i) {
        const Planned& one = plan[i];
        const bool mixed = staged_ && !one.early && Below(2) == 0;
        for (size_t m = 0; m < one.members.size(); ++m) {
          world.backend(one.members[m])
              .Submit(world.Prepare(one.job, one.members, static_cast<int>(m), i + 1, one.early,
                                    mixed));
        }
      }
      if (hold) Inject(fault, size);
      Fake().Set("hold", 0);
      if (fault == Fault::kNone) {
        ExpectAllRight(&world, plan);
      } else {
        ExpectAllEnded(&world, plan);
      }
    }
    Fake().Reset();
    const long left = CountNccl("communicators");
    if (left != 0) Complain(std::to_string(left) + " communicators are left");
    if (CountNccl("bad_handles") != 0) Complain("a communicator was used after its end");
    if (CountNccl("early_calls") != 0) Complain("a call came while another was in progress");
    if (CountNccl("mismatches") != 0) Complain("ranks called different things");
  }

 private:
  int Below(int n) { return static_cast<int>(random_() % static_cast<unsigned>(n)); }

  void Complain(const std::string& what) const {
    Fail(__FILE__, __LINE__, "seed " + std::to_string(seed_) + ": " + what);
  }

  std::vector<Planned> Plan(int size, bool may_be_early) {
    static const std::vector<Job> two = AllJobs(2);
    static const std::vector<Job> three = AllJobs(3);
    std::vector<Planned> plan;
    const int count = 3 + Below(8);
    for (int i = 0; i < count; ++i) {
      Planned one;
      one.members = FirstRanks(size);
      if (size == 3 && Below(2) == 0) one.members.erase(one.members.begin() + Below(3));
      const std::vector<Job>& jobs = one.members.size() == 2 ? two : three;
      one.job = jobs[static_cast<size_t>(Below(static_cast<int>(jobs.size())))];
      if (one.job.elements[0] > 100000) one.job.elements[0] = 100003;
      one.early = may_be_early && Below(2) == 0;
      plan.push_back(one);
    }
    return plan;
  }

  void Inject(Fault fault, int size) {
    const int n = 1 + Below(6);
    SetNccl("only_rank", Below(2) == 0 ? -1 : Below(size));
    if (fault == Fault::kSticky) Fake().Inject("sticky", n);
    if (fault == Fault::kLostHostFunction) Fake().Inject("lost_host_function", n);
    if (fault == Fault::kSlowEvent) {
      Fake().Set("slow_event_us", 20000);
      Fake().Inject("slow_event", n);
    }
    if (fault == Fault::kFailCall) SetNccl("fail_call", n);
    if (fault == Fault::kError) SetNccl("error_at_kernel", n);
    if (fault == Fault::kHang) SetNccl("hang_kernel", n);
    if (fault == Fault::kDeath) {
      std::this_thread::sleep_for(std::chrono::milliseconds(Below(6)));
      SetNccl("kill_rank", Below(size));
    }
  }

  void ExpectAllRight(GpuWorld* world, const std::vector<Planned>& plan) {
    for (size_t i = 0; i < plan.size(); ++i) {
      for (const Rank r : plan[i].members) (void)EndOf(*world, r, i + 1);
      const std::string wrong = world->Finish(plan[i].job, plan[i].members, i + 1, plan[i].early);
      if (!wrong.empty()) Complain(wrong);
    }
  }

  // Plays the control plane: the first error, or a second without progress, ends all ranks.
  void ExpectAllEnded(GpuWorld* world, const std::vector<Planned>& plan) {
    const auto limit = std::chrono::steady_clock::now() + std::chrono::milliseconds(400);
    bool through = false;
    bool failed = false;
    while (!through && !failed && std::chrono::steady_clock::now() < limit) {
      through = true;
      for (size_t i = 0; i < plan.size(); ++i) {
        for (const Rank r : plan[i].members) {
          const bool ended = world->Has(r, i + 1, CompletionStage::kEnded);
          through = through && ended;
          failed = failed || (ended && !world->Wait(r, i + 1).status.ok());
        }
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    if (!through) world->AbortAll(LostRank());
    for (size_t i = 0; i < plan.size(); ++i) Judge(world, plan[i], i + 1);
  }

  void Judge(GpuWorld* world, const Planned& one, uint64_t sequence) {
    const auto expected = CpuResults(one.job, one.members);
    for (size_t m = 0; m < one.members.size(); ++m) {
      const Rank r = one.members[m];
      const Completion ended = EndOf(*world, r, sequence, 10);
      if (world->Count(r, sequence, CompletionStage::kEnded) != 1) Complain("ended twice");
      if (!ended.status.ok()) continue;
      const auto outputs = world->Outputs(r, sequence);
      for (size_t t = 0; t < outputs.size(); ++t) {
        if (expected[m][t].empty() || SameResult(one.job, outputs[t], expected[m][t])) continue;
        Complain("said to be right, and is wrong: " + one.job.Text());
      }
    }
  }

  std::mt19937 random_;
  const long seed_;
  const bool staged_;
};

TEST(Seeds) {
  const long first = FromEnvironment("TFRING_NCCL_FIRST_SEED", 1);
  const long count = FromEnvironment("TFRING_NCCL_SEEDS", 60);
  for (long seed = first; seed < first + count && Failures() == 0; ++seed) {
    SeedRun(seed, false)();
    SeedRun(seed, true)();
  }
}

}  // namespace
}  // namespace tfring::testing::nccl_seeds_test
