// How a process exits that has left threads alone in NCCL. The case runs in a child of its own,
// which starts the streams.
#include <cstdio>
#include <cstdlib>

#include "ops/gpu/nccl/nccl_backend.h"
#include "tests/cc/death.h"
#include "tests/cc/gpu/nccl/hostile.h"
#include "tests/cc/test.h"

namespace tfring::testing::nccl_exit_test {
namespace {

// The fake NCCL aborts the process if static destructors run while an abort hangs in it.
TEST(AProcessExitsWhileNcclHangs) {
  const ChildEnd end = InChild([] {
    alarm(60);
    BeginHostile(0, 0);
    {
      GpuWorld world(2, [](NcclOptions* options) { options->abort_limit = 300 * kMillisecond; });
      SetNccl("hang_kernel", 1);
      SetNccl("hang_abort", 1);
      world.SubmitAll(SmallSum(), FirstRanks(2), 1);
      for (Rank r = 0; r < 2; ++r) (void)world.Wait(r, 1, CompletionStage::kLaunched);
      world.AbortAll(LostRank());
      for (Rank r = 0; r < 2; ++r) (void)EndOf(world, r, 1, 10);
    }
    std::printf("the errors were reported\n");  // into the buffer of stdio
    std::exit(3);
  });
  EXPECT_TRUE(WIFEXITED(end.status));
  EXPECT_EQ(WEXITSTATUS(end.status), 3);
  if (end.status != 3 << 8) std::printf("%s\n", end.text.c_str());  // what a sanitizer said
  EXPECT_CONTAINS(end.text, "the errors were reported");
  EXPECT_CONTAINS(end.text, "ncclCommAbort did not end");
}

}  // namespace
}  // namespace tfring::testing::nccl_exit_test
