// Programs run by an interpreter on CPU memory: all members make the same calls, and the results
// are those of the CPU backend.
#include "ops/gpu/nccl/nccl_program.h"

#include <cstring>

#include "ops/runtime/backend/reduction/reduce_kernels.h"
#include "tests/cc/backend/world.h"
#include "tests/cc/gpu/nccl/jobs.h"
#include "tests/cc/test.h"

namespace tfring::testing::nccl_program_test {
namespace {

using Kind = NcclCall::Kind;

bool IsPairwise(CollectiveKind kind) {
  return kind == CollectiveKind::kGather || kind == CollectiveKind::kScatter ||
         kind == CollectiveKind::kAlltoall || kind == CollectiveKind::kSendRecv;
}

// All members of one collective, run step by step.
struct Run {
  Job job;
  std::vector<JobMemory> memory;
  std::vector<Collective> collectives;
  std::vector<NcclProgram> programs;
  std::vector<std::vector<char>> scratch;

  int size() const { return static_cast<int>(collectives.size()); }
  int64_t element() const { return Traits(job.kind).reduces ? DataTypeSize(job.dtype) : 1; }

  char* At(int m, const NcclPlace& place) {
    const TensorBuffer* buffer =
        place.space == NcclPlace::Space::kScratch ? nullptr : &collectives[m].buffers[place.tensor];
    if (buffer == nullptr) return scratch[m].data() + place.offset;
    if (place.space == NcclPlace::Space::kOutput) {
      return static_cast<char*>(buffer->output) + place.offset;
    }
    return static_cast<char*>(const_cast<void*>(buffer->input)) + place.offset;
  }

  void Copies(int m, const std::vector<NcclCopy>& copies, Scale scale) {
    for (const NcclCopy& copy : copies) {
      char* to = At(m, copy.to);
      const char* from = At(m, copy.from);
      if (!scale.identity()) {
        FindReduceKernels(job.dtype)->scale(to, from, copy.bytes / element(), scale);
      } else {
        std::memmove(to, from, copy.bytes);
      }
    }
  }

  std::vector<char> Reduced(size_t call, int64_t bytes) {
    std::vector<char> sum;
    for (int m = 0; m < size(); ++m) {
      const char* from = At(m, programs[m].calls[call].from);
      std::vector<char> own(from, from + bytes);
      const ReduceKernels* kernels = FindReduceKernels(job.dtype);
      const int64_t count = bytes / element();
      const ReduceOp op = job.op == ReduceOp::kAverage ? ReduceOp::kSum : job.op;
      if (m > 0) kernels->For(op)(sum.data(), sum.data(), own.data(), count, Scale());
      if (m == 0) sum = own;
    }
    return sum;
  }

  void Collect(size_t call) {
    const NcclCall& first = programs[0].calls[call];
    const int64_t bytes = first.count * element();
    std::vector<char> all;
    if (first.kind == Kind::kAllGather) {
      for (int m = 0; m < size(); ++m) {
        const char* from = At(m, programs[m].calls[call].from);
        all.insert(all.end(), from, from + bytes);
      }
    } else if (first.kind == Kind::kBroadcast) {
      const char* from = At(first.peer, programs[first.peer].calls[call].from);
      all.assign(from, from + bytes);
    } else {
      all = Reduced(call, first.kind == Kind::kReduceScatter ? bytes * size() : bytes);
    }
    for (int m = 0; m < size(); ++m) {
      const NcclCall& own = programs[m].calls[call];
      EXPECT_EQ(static_cast<int>(own.kind), static_cast<int>(first.kind));
      EXPECT_EQ(own.count, first.count);
      EXPECT_EQ(own.peer, first.peer);
      if (own.kind == Kind::kReduce && own.peer != m) continue;
      const int64_t skip = own.kind == Kind::kReduceScatter ? m * bytes : 0;
      const int64_t size = own.kind == Kind::kReduceScatter ? bytes : all.size();
      std::memcpy(At(m, own.to), all.data() + skip, size);
    }
  }

  // The n-th send from one member to another goes into its n-th receive.
  void Pair(int from, int to) {
    std::vector<const NcclCall*> sends;
    std::vector<const NcclCall*> receives;
    for (const NcclCall& call : programs[from].calls) {
      if (call.kind == Kind::kSend && call.peer == to) sends.push_back(&call);
    }
    for (const NcclCall& call : programs[to].calls) {
      if (call.kind == Kind::kRecv && call.peer == from) receives.push_back(&call);
    }
    ASSERT_EQ(sends.size(), receives.size());
    for (size_t i = 0; i < sends.size(); ++i) {
      ASSERT_EQ(sends[i]->count, receives[i]->count);
      std::memcpy(At(to, receives[i]->to), At(from, sends[i]->from), sends[i]->count);
    }
  }

  void Execute() {
    for (int m = 0; m < size(); ++m) {
      scratch.emplace_back(programs[m].scratch_bytes, 0x7f);
      Copies(m, programs[m].before, programs[m].before_scale);
    }
    if (IsPairwise(job.kind)) {
      for (int from = 0; from < size(); ++from) {
        for (int to = 0; to < size(); ++to) Pair(from, to);
      }
    } else {
      for (const NcclProgram& program : programs) {
        ASSERT_EQ(program.calls.size(), programs[0].calls.size());
      }
      for (size_t c = 0; c < programs[0].calls.size(); ++c) Collect(c);
    }
    for (int m = 0; m < size(); ++m) Copies(m, programs[m].after, programs[m].after_scale);
  }
};

void Check(const Job& job, int size, const NcclAbilities& abilities) {
  const std::vector<Rank> members = FirstRanks(size);
  Run run;
  run.job = job;
  run.memory.resize(size);
  for (int m = 0; m < size; ++m) {
    run.collectives.push_back(MakeJob(job, members, m, 1, &run.memory[m]));
    Result<NcclProgram> program = MakeNcclProgram(run.collectives[m], abilities);
    if (!program.ok()) {
      ASSERT_EQ(job.Text() + StatusCodeName(program.status().code()),
                job.Text() + StatusCodeName(StatusCode::kUnimplemented));
      ASSERT_TRUE(!abilities.packs);
      return;
    }
    run.programs.push_back(std::move(*program));
  }
  run.Execute();
  const auto expected = CpuResults(job, members);
  for (int m = 0; m < size; ++m) {
    for (size_t t = 0; t < job.elements.size(); ++t) {
      const TensorBuffer& buffer = run.collectives[m].buffers[t];
      const char* output = static_cast<const char*>(buffer.output);
      const bool same = expected[m][t].empty() ||
                        std::memcmp(output, expected[m][t].data(), expected[m][t].size()) == 0;
      ASSERT_EQ(job.Text() + (same ? "" : " is wrong"), job.Text());
    }
  }
}

TEST(AllJobsWithAndWithoutKernelsThatPack) {
  for (int size : {1, 2, 4}) {
    for (const Job& job : Sweep(AllJobs(size))) {
      for (bool packs : {true, false}) Check(job, size, {packs});
    }
  }
}

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
