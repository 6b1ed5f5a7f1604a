#ifndef TFRING_TESTS_CC_GPU_NCCL_JOBS_H_
#define TFRING_TESTS_CC_GPU_NCCL_JOBS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "ops/runtime/interfaces/collective_backend.h"

namespace tfring::testing {

// A collective as a test writes it: what every member's tensors hold follows from it.
struct Job {
  CollectiveKind kind = CollectiveKind::kAllreduce;
  DataType dtype = DataType::kFloat32;
  ReduceOp op = ReduceOp::kSum;
  double prescale = 1.0;
  double postscale = 1.0;
  int root = 0;
  bool in_place = false;  // kinds with an input and an output of one size
  // By tensor: its number of elements; where there are blocks, of the block of the first member,
  // and `uneven` is added for each further member.
  std::vector<int64_t> elements = {5};
  int64_t uneven = 0;
  double value = 0.0;  // of all elements that are reduced, unless it is 0

  std::string Text() const;
};

// The memory of one member.
struct JobMemory {
  std::vector<std::vector<char>> inputs;  // by tensor; empty: it has none
  std::vector<std::vector<char>> outputs;
};

// The collective of the member at `self` on CPU memory, which `memory` keeps; outputs hold 0x55.
Collective MakeJob(const Job& job, const std::vector<Rank>& members, int self, uint64_t sequence,
                   JobMemory* memory);

// What the CPU backend leaves in the outputs, by member and tensor.
std::vector<std::vector<std::vector<char>>> CpuResults(const Job& job,
                                                       const std::vector<Rank>& members);

// Whether a result is what the CPU backend gave. NCCL multiplies every float32 and float64 before
// it adds, the CPU backend once at the end: there, each product may be rounded otherwise.
bool SameResult(const Job& job, const std::vector<char>& result, const std::vector<char>& expected);

// Every kind with every dtype and op that NCCL runs, of one and several tensors, uneven, in place,
// of sizes 0, 1, odd and more than what is packed.
std::vector<Job> AllJobs(int size);

}  // namespace tfring::testing

#endif  // TFRING_TESTS_CC_GPU_NCCL_JOBS_H_
