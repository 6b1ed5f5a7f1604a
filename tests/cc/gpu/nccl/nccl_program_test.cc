// The calls and copies of a collective. nccl_backend_test compares the results.
#include "ops/gpu/nccl/nccl_program.h"

#include "tests/cc/backend/world.h"
#include "tests/cc/gpu/nccl/jobs.h"
#include "tests/cc/test.h"

namespace tfring::testing::nccl_program_test {
namespace {

NcclProgram ProgramOf(const Job& job, int size, bool packs, int self = 0) {
  JobMemory memory;
  const Collective collective = MakeJob(job, FirstRanks(size), self, 1, &memory);
  Result<NcclProgram> program = MakeNcclProgram(collective, {packs});
  return program.ok() ? std::move(*program) : NcclProgram();
}

TEST(ManySmallTensorsAreOneCall) {
  Job job;
  job.elements.assign(300, 11);
  const NcclProgram program = ProgramOf(job, 4, true);
  EXPECT_EQ(program.calls.size(), 1u);
  EXPECT_EQ(program.before.size(), 300u);
  EXPECT_EQ(program.after.size(), 300u);
  EXPECT_EQ(program.scratch_bytes, 300 * 48);
  EXPECT_EQ(ProgramOf(job, 4, false).calls.size(), 300u);
}

TEST(LargeTensorsStayWhereTheyAre) {
  Job job;
  job.elements = {kNcclDirectBytes / 4, 3, kNcclDirectBytes / 4, 4};
  const NcclProgram program = ProgramOf(job, 2, true);
  EXPECT_EQ(program.calls.size(), 3u);
  EXPECT_EQ(program.before.size(), 2u);
  EXPECT_EQ(program.scratch_bytes, 32);
}

TEST(AveragesAreSumsThatTheCopiesMultiply) {
  Job job;
  job.op = ReduceOp::kAverage;
  for (const DataType dtype : {DataType::kFloat32, DataType::kFloat64, DataType::kBfloat16}) {
    job.dtype = dtype;
    const NcclProgram program = ProgramOf(job, 4, true);
    EXPECT_TRUE(program.op == NcclOp::kSum);
    EXPECT_EQ(program.after_scale.factor, 0.25);
    EXPECT_EQ(program.after.size(), 1u);
  }
}

// By a power of two, so that no sum of three is out of range.
TEST(Float16IsMultipliedBeforeItIsAdded) {
  Job job;
  job.op = ReduceOp::kAverage;
  job.dtype = DataType::kFloat16;
  const NcclProgram three = ProgramOf(job, 3, true);
  EXPECT_EQ(three.before_scale.factor, 0.25);
  EXPECT_EQ(three.after_scale.factor, 4.0 / 3);
  const NcclProgram four = ProgramOf(job, 4, true);
  EXPECT_EQ(four.before_scale.factor, 0.25);
  EXPECT_EQ(four.before.size(), 1u);
  EXPECT_TRUE(four.after.empty());
}

// What all members must decide alike, whichever of them has a GPU with kernels.
TEST(WhatHasToBeStaged) {
  JobMemory memory;
  auto text = [&](Job job, bool packs) {
    return MakeNcclProgram(MakeJob(job, FirstRanks(2), 0, 1, &memory), {packs}).status().ToString();
  };
  Job job;
  job.dtype = DataType::kInt32;
  job.postscale = 2.0;
  EXPECT_CONTAINS(text(job, false), "no kernels that multiply int32");
  EXPECT_EQ(text(job, true), OkStatus().ToString());
  job.postscale = 1.0;
  job.op = ReduceOp::kAverage;
  EXPECT_CONTAINS(text(job, false), "no kernels that multiply int32");
  EXPECT_EQ(text(job, true), OkStatus().ToString());
  job.dtype = DataType::kFloat32;
  EXPECT_CONTAINS(text(job, false), "no kernels that multiply float32");
  EXPECT_TRUE(!NcclRuns(CollectiveKind::kAllreduce, DataType::kFloat32, ReduceOp::kAdasum));
  EXPECT_TRUE(!NcclRuns(CollectiveKind::kAllreduce, DataType::kBool, ReduceOp::kSum));
  EXPECT_TRUE(!NcclRuns(CollectiveKind::kJoin, DataType::kFloat32, ReduceOp::kSum));
  EXPECT_TRUE(NcclRuns(CollectiveKind::kBroadcast, DataType::kComplex128, ReduceOp::kSum));
}

}  // namespace
}  // namespace tfring::testing::nccl_program_test
