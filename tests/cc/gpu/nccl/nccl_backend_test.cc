// Every collective on NCCL between ranks of one process, on the fakes of the driver and of NCCL.
#include "ops/gpu/nccl/nccl_backend.h"

#include <string>

#include "tests/cc/backend/world.h"
#include "tests/cc/gpu/nccl/gpu_world.h"
#include "tests/cc/test.h"

namespace tfring::testing::nccl_backend_test {
namespace {

void Begin() {
  Fake().Reset();
  ResetNccl();
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

// Without kernels that pack, NCCL has each tensor where it is; what they would multiply is staged.
TEST(EveryJobIsRightWithoutKernelsThatPack) {
  Begin();
  GpuWorld world(2, [](NcclOptions* options) { options->pack_images.clear(); });
  uint64_t sequence = 0;
  for (const Job& job : Sweep(AllJobs(2))) {
    ASSERT_EQ(world.Check(job, FirstRanks(2), ++sequence), "");
  }
  EXPECT_TRUE(CountNccl("kernels") > 0);
  EXPECT_TRUE(Fake().Count("d2h_copies") > 0);
}

}  // namespace
}  // namespace tfring::testing::nccl_backend_test
