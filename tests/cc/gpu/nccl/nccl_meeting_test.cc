// What ranks find out about each other before they use NCCL, and what they do then.
#include <cstdlib>
#include <cstring>
#include <string>

#include "ops/gpu/nccl/meeting.h"
#include "tests/cc/backend/world.h"
#include "tests/cc/gpu/nccl/gpu_world.h"
#include "tests/cc/test.h"

namespace tfring::testing::nccl_meeting_test {
namespace {

MeetingRecord RecordOf(const std::string& device) {
  MeetingRecord record;
  record.version = 22707;
  record.packs = 1;
  record.has_id = 1;
  device.copy(record.device, sizeof(record.device) - 1);
  return record;
}

std::vector<MeetingRecord> ThreeRecords() {
  return {RecordOf("GPU-a"), RecordOf("GPU-b"), RecordOf("GPU-c")};
}

const std::vector<Rank> kMembers = {1, 4, 6};

TEST(MembersThatAllCanUseNcclDo) {
  std::vector<MeetingRecord> records = ThreeRecords();
  records[0].id.bytes[5] = 77;
  const MeetingResult result = Conclude(records, kMembers);
  EXPECT_TRUE(result.uses_nccl);
  EXPECT_TRUE(result.abilities.packs);
  EXPECT_EQ(result.id.bytes[5], 77);
  records[2].packs = 0;
  EXPECT_TRUE(!Conclude(records, kMembers).abilities.packs);
}

TEST(WhatHindersOneHindersAll) {
  std::vector<MeetingRecord> records = ThreeRecords();
  records[1].version = 0;
  SetReason("there is no NCCL", &records[1]);
  EXPECT_EQ(Conclude(records, kMembers).reason, "rank 4: there is no NCCL");
  EXPECT_TRUE(!Conclude(records, kMembers).insists);
  records[2].insists = 1;
  EXPECT_TRUE(Conclude(records, kMembers).insists);
  // That a peer failed, or did not come, is no reason as long as there is one.
  records[0].version = 0;
  records[0].followed = 1;
  SetReason("a peer is gone", &records[0]);
  EXPECT_EQ(Conclude(records, kMembers).reason, "rank 4: there is no NCCL");
  records[1].version = 22707;
  EXPECT_EQ(Conclude(records, kMembers).reason, "rank 1: a peer is gone");
  records = ThreeRecords();
  records[2].version = 23203;
  EXPECT_EQ(Conclude(records, kMembers).reason,
            "rank 1 has NCCL 2.27.7 and rank 6 has NCCL 2.32.3; install the same version "
            "everywhere");
  records = ThreeRecords();
  records[0].has_id = 0;
  SetReason(std::string(2000, 'x'), &records[0]);
  EXPECT_CONTAINS(Conclude(records, kMembers).reason, "rank 1: xxx");
  records = {RecordOf("GPU-a"), RecordOf("GPU-b"), RecordOf("GPU-a")};
  EXPECT_CONTAINS(Conclude(records, kMembers).reason,
                  "ranks 1 and 6 use the same GPU, GPU-a; give each rank its own");
  EXPECT_CONTAINS(Conclude(records, kMembers).reason, "hvd.local_rank()");
  std::strcpy(records[2].host, "node7");
  EXPECT_CONTAINS(Conclude(records, kMembers).reason, "the same GPU, GPU-a of host node7; give");
}

TEST(MembersShareAGpuIfEachHasAnNcclThatMay) {
  std::vector<MeetingRecord> records = {RecordOf("GPU-a"), RecordOf("GPU-b"), RecordOf("GPU-a")};
  for (MeetingRecord& record : records) record.shares_gpu = 1;
  EXPECT_EQ(Conclude(records, kMembers).reason, "");
  records[1].shares_gpu = 0;  // it has a GPU of its own, but NCCL asks every member
  EXPECT_CONTAINS(Conclude(records, kMembers).reason, "ranks 1 and 6 use the same GPU");
}

MeetingRecord InstanceOf(const std::string& bus, const std::string& machine) {
  static int made = 0;
  MeetingRecord record = RecordOf("MIG-" + std::to_string(made++));
  record.mig = 1;
  bus.copy(record.bus, sizeof(record.bus) - 1);
  machine.copy(record.machine, sizeof(record.machine) - 1);
  return record;
}

// NCCL compares bus ids before 2.30, on each machine.
TEST(InstancesOfOneCardNeedAnNcclThatTellsThemApart) {
  std::vector<MeetingRecord> records = {InstanceOf("0000:07:00.0", "a"),
                                        InstanceOf("0000:08:00.0", "a"),
                                        InstanceOf("0000:07:00.0", "a")};
  std::strcpy(records[2].host, "node7");
  const std::string reason = Conclude(records, kMembers).reason;
  EXPECT_CONTAINS(reason,
                  "ranks 1 and 6 use one card of host node7, PCI bus id 0000:07:00.0, by "
                  "MIG instances; NCCL 2.27.7 takes them for one GPU");
  EXPECT_CONTAINS(reason, "Install NCCL 2.30 or newer");
  for (MeetingRecord& record : records) record.mig = 0;
  EXPECT_CONTAINS(Conclude(records, kMembers).reason, "PCI bus id 0000:07:00.0; NCCL 2.27.7");
  for (MeetingRecord& record : records) record.version = 23007;
  EXPECT_EQ(Conclude(records, kMembers).reason, "");
  records = {InstanceOf("0000:07:00.0", "a"), InstanceOf("0000:07:00.0", "b"), InstanceOf("", "a"),
             InstanceOf("", "a")};
  EXPECT_EQ(Conclude(records, {0, 1, 2, 3}).reason, "");
  EXPECT_EQ(Conclude(records, {0, 1, 2, 3}).of_a_machine, 3);
}

void Begin() {
  Fake().Reset();
  ResetNccl();
}

GpuWorld::Change Library(const std::string& file, GpuOperations operations) {
  return [=](NcclOptions* options) {
    if (options->self == 1) options->config.nccl_library = TFRING_FAKES_DIR + ("/" + file);
    options->config.gpu_operations = operations;
    options->load_limit = 300 * kMillisecond;
    options->id_limit = 300 * kMillisecond;
  };
}

struct Bad {
  const char* file;
  const char* sentence;
};

// Members 1 and 2, so that the first one makes the unique id and fails to.
TEST(ALibraryThatIsOfNoUseIsOneSentence) {
  for (const Bad& bad : {Bad{"libnccl_too_old.so", "is too old: tfring needs 2.18.0 or newer"},
                         Bad{"libnccl_version_fails.so", "cannot say its version"},
                         Bad{"libnccl_version_hangs.so", "did not end within 0.3 s"},
                         Bad{"libnccl_lacks_init.so", "lacks ncclCommInitRankConfig"},
                         Bad{"libnccl_id_fails.so", "rank 1: NCCL 2.27.7: ncclGetUniqueId"},
                         Bad{"libnccl_id_hangs.so", "ncclGetUniqueId"},
                         Bad{"libnccl_no_library.so", "libnccl_no_library.so: "},
                         Bad{"libnccl_that_is_not_there.so", "No such file"}}) {
    Begin();
    GpuWorld world(3, Library(bad.file, GpuOperations::kNccl));
    const std::vector<Rank> members = {1, 2};
    for (uint64_t sequence : {1, 2}) {
      world.SubmitAll(Job(), members, sequence);
      for (Rank rank : members) {
        const Completion completion = world.Wait(rank, sequence);
        EXPECT_EQ(StatusCodeName(completion.status.code()), std::string("Unimplemented"));
        EXPECT_CONTAINS(completion.status.message(), bad.sentence);
        EXPECT_CONTAINS(completion.status.message(), "rank 1: ");
        EXPECT_CONTAINS(completion.status.message(), "TFRING_GPU_OPERATIONS=nccl");
        EXPECT_EQ(world.Count(rank, sequence, CompletionStage::kLaunched), 0);
        world.framework(rank).Wait();  // nothing else has waited for its stream
        world.Free(rank, sequence);
      }
    }
    // Others are not concerned.
    EXPECT_EQ(world.Check(Job(), {0, 2}, 3), "");
  }
}

// NCCL takes two ranks on one GPU from 2.30 on, and only if it is told to.
TEST(TwoRanksOnOneGpuWithAnNcclThatMay) {
  for (const bool told : {true, false}) {
    for (const int version : {23007, 22907}) {
      Begin();
      SetNccl("version", version);
      setenv("NCCL_MULTI_RANK_GPU_ENABLE", told ? "1" : "0", 1);
      GpuWorld world(2, GpuWorld::Change(), {3, 3});
      for (uint64_t sequence : {1, 2}) {
        EXPECT_EQ(world.Check(Job(), FirstRanks(2), sequence), "");
      }
      EXPECT_EQ(CountNccl("kernels"), told && version >= 23000 ? 4 : 0);
    }
  }
  unsetenv("NCCL_MULTI_RANK_GPU_ENABLE");
}

TEST(TwoInstancesOfOneCard) {
  for (const int version : {22707, 23007}) {
    Begin();
    SetNccl("version", version);
    Fake().Set("mig", 1);
    GpuWorld world(2);
    EXPECT_EQ(world.Check(Job(), FirstRanks(2), 1), "");
    EXPECT_EQ(CountNccl("inits"), version < 23000 ? 0 : 2);
  }
  Begin();
}

// A collective that NCCL does not run is staged at its place, before and after the members met.
TEST(WhatNcclHasNotIsStagedAmongTheRest) {
  Begin();
  const auto no_kernels = [](NcclOptions* options) {
    if (options->self == 1) options->pack_images.clear();
  };
  GpuWorld world(2, no_kernels);
  Job half;
  half.dtype = DataType::kFloat16;
  half.op = ReduceOp::kAverage;
  std::vector<Job> jobs = {half, Job(), half, Job(), half, half, Job()};
  for (int round = 0; round < 2; ++round) {
    const uint64_t first = 10 * round + 1;
    for (size_t j = 0; j < jobs.size(); ++j) world.SubmitAll(jobs[j], FirstRanks(2), first + j);
    for (size_t j = 0; j < jobs.size(); ++j) {
      EXPECT_EQ(world.Finish(jobs[j], FirstRanks(2), first + j), "");
    }
  }
  EXPECT_EQ(CountNccl("kernels"), 2 * 3 * 2);
}

}  // namespace
}  // namespace tfring::testing::nccl_meeting_test
