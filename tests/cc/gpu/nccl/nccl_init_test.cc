// Communicators that cannot be made: all members stage, or all raise, and the job goes on.
#include <string>
#include <vector>

#include "tests/cc/backend/world.h"
#include "tests/cc/gpu/nccl/gpu_world.h"
#include "tests/cc/test.h"

namespace tfring::testing::nccl_init_test {
namespace {

void Begin() {
  Fake().Reset();
  ResetNccl();
}

GpuWorld::Change Operations(GpuOperations operations) {
  return [=](NcclOptions* options) { options->config.gpu_operations = operations; };
}

// The first collective of each of the members, and a later one, are an error with these parts.
void ExpectUnimplemented(GpuWorld* world, const std::vector<std::string>& parts) {
  const std::vector<Rank> members = FirstRanks(world->size());
  for (uint64_t sequence : {1, 2}) {
    world->SubmitAll(Job(), members, sequence);
    for (Rank rank : members) {
      const Status status = world->Wait(rank, sequence).status;
      EXPECT_EQ(StatusCodeName(status.code()), std::string("Unimplemented"));
      for (const std::string& part : parts) EXPECT_CONTAINS(status.message(), part);
      world->framework(rank).Wait();  // nothing else has waited for its stream
      world->Free(rank, sequence);
    }
  }
}

// A driver that is too old for NCCL's CUDA lets it say its version, and fails at the first init.
TEST(ARankWhoseNcclCannotInitializeSaysSoBeforeTheOthersWait) {
  Begin();
  SetNccl("fail_alone", 1);
  SetNccl("error_code", 1);
  {
    GpuWorld world(3);
    EXPECT_EQ(world.Check(Job(), FirstRanks(3), 1), "");
    EXPECT_EQ(world.Check(Job(), {0, 2}, 2), "");  // the others are not concerned
    EXPECT_EQ(CountNccl("inits"), 2);
    EXPECT_EQ(CountNccl("alone"), 3);  // once a rank
    EXPECT_EQ(CountNccl("communicators"), 2);
  }
  GpuWorld insists(2, Operations(GpuOperations::kNccl));
  ExpectUnimplemented(&insists, {"rank 1: NCCL 2.27.7: a communicator of this rank alone",
                                 "unhandled cuda error", "tfring doctor"});
  Begin();
}

// Rank 1 of three cannot make the communicator: before it has met the others, who wait for it until
// the limit, or when theirs is made.
void LetRank1Fail(const char* how) {
  Begin();
  SetNccl("only_rank", 1);
  SetNccl("error_code", 3);
  SetNccl(how, 1);
}

GpuWorld::Change Soon(GpuOperations operations) {
  return [=](NcclOptions* options) {
    options->config.gpu_operations = operations;
    options->init_limit = options->abort_limit = 300 * kMillisecond;
  };
}

TEST(WhereOneInitFailsAllMembersStage) {
  for (const char* how : {"fail_init", "fail_late"}) {
    LetRank1Fail(how);
    GpuWorld world(3, Soon(GpuOperations::kAuto));
    for (uint64_t sequence = 1; sequence <= 6; ++sequence) {
      world.SubmitAll(Job(), FirstRanks(3), sequence, sequence % 2 == 0);
    }
    for (uint64_t sequence = 1; sequence <= 6; ++sequence) {
      EXPECT_EQ(world.Finish(Job(), FirstRanks(3), sequence, sequence % 2 == 0), "");
    }
    EXPECT_EQ(CountNccl("inits"), 3);  // nobody tries again
    EXPECT_EQ(CountNccl("kernels"), 0);
    EXPECT_EQ(CountNccl("communicators"), 0);
    // Another list of members has a communicator of its own.
    EXPECT_EQ(world.Check(Job(), {0, 2}, 7), "");
    EXPECT_EQ(CountNccl("communicators"), 2);
  }
  Begin();
}

TEST(WhereOneInitFailsAllMembersRaiseItsReason) {
  for (const char* how : {"fail_init", "fail_late"}) {
    LetRank1Fail(how);
    GpuWorld world(3, Soon(GpuOperations::kNccl));
    ExpectUnimplemented(&world,
                        {"TFRING_GPU_OPERATIONS=nccl allows nothing else: rank 1: NCCL 2.27.7: "
                         "ncclCommInitRankConfig of ranks 0-2: internal error",
                         how});
    EXPECT_EQ(CountNccl("communicators"), 0);
    EXPECT_EQ(world.Check(Job(), {0, 2}, 7), "");
  }
  Begin();
}

TEST(ACommunicatorThatIsNeverMadeHasALimit) {
  for (const GpuOperations operations : {GpuOperations::kAuto, GpuOperations::kNccl}) {
    Begin();
    SetNccl("hang_init", 1);
    GpuWorld world(2, Soon(operations));
    if (operations == GpuOperations::kAuto) {
      EXPECT_EQ(world.Check(Job(), FirstRanks(2), 1), "");
    } else {
      ExpectUnimplemented(&world, {"rank 0: NCCL made no communicator of ranks 0, 1 within 0.3 s"});
    }
    EXPECT_EQ(CountNccl("communicators"), 0);
  }
  Begin();
}

// NCCL says no more than that the system failed.
TEST(ASmallDevShmIsNamed) {
  for (const int64_t per_rank : {int64_t{1} << 50, int64_t{0}}) {
    LetRank1Fail("fail_init");
    GpuWorld world(3, [=](NcclOptions* options) {
      Soon(GpuOperations::kNccl)(options);
      options->shm_per_rank = per_rank;
    });
    world.SubmitAll(Job(), FirstRanks(3), 1);
    for (Rank rank = 0; rank < 3; ++rank) {
      const std::string message = world.Wait(rank, 1).status.message();
      if (per_rank == 0) {
        EXPECT_TRUE(message.find("/dev/shm") == std::string::npos);
        continue;
      }
      EXPECT_CONTAINS(message, "fail_init); probably /dev/shm is too small: it has ");
      EXPECT_CONTAINS(message,
                      " MiB free, and NCCL takes up to 3221225472 MiB for 3 ranks of a "
                      "host. Give it more, in a container with docker run --shm-size=1g");
    }
  }
  Begin();
}

}  // namespace
}  // namespace tfring::testing::nccl_init_test
