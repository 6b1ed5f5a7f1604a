// Every collective on NCCL between ranks of one process, on the fakes of the driver and of NCCL.
#include "ops/gpu/nccl/nccl_backend.h"

#include <string>

#include "tests/cc/backend/world.h"
#include "tests/cc/gpu/nccl/gpu_world.h"
#include "tests/cc/test.h"

namespace tfring::testing::nccl_backend_test {
namespace {

void Begin(long seed = 0) {
  Fake().Reset();
  ResetNccl();
  Fake().Set("seed", seed);
  Fake().Set("delay_us", seed == 0 ? 0 : 200);
}

TEST(EveryJobGivesWhatTheCpuBackendGives) {
  for (int size : {1, 2, 3, 4}) {
    Begin();
    GpuWorld world(size);
    uint64_t sequence = 0;
    for (const Job& job : Sweep(AllJobs(size))) {
      ++sequence;
      ASSERT_EQ(world.Check(job, FirstRanks(size), sequence, sequence % 2 == 0), "");
    }
    EXPECT_EQ(CountNccl("mismatches"), 0);
    EXPECT_EQ(CountNccl("inits"), size == 1 ? 0 : size);
    EXPECT_EQ(Fake().Count("d2h_copies"), 0);
    EXPECT_EQ(Fake().Count("h2d_bytes"), 0);
  }
}

}  // namespace
}  // namespace tfring::testing::nccl_backend_test
