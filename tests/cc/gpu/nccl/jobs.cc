#include "tests/cc/gpu/nccl/jobs.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "ops/gpu/nccl/nccl_program.h"
#include "tests/cc/backend/values.h"
#include "tests/cc/backend/world.h"

namespace tfring::testing {
namespace {

using Blocks = std::vector<int64_t>;

constexpr DataType kAllTypes[] = {DataType::kBool,    DataType::kUint8,     DataType::kInt8,
                                  DataType::kUint16,  DataType::kInt16,     DataType::kUint32,
                                  DataType::kInt32,   DataType::kUint64,    DataType::kInt64,
                                  DataType::kFloat16, DataType::kBfloat16,  DataType::kFloat32,
                                  DataType::kFloat64, DataType::kComplex64, DataType::kComplex128};

bool HasBlocks(CollectiveKind kind) {
  return Traits(kind).has_rows && kind != CollectiveKind::kAlltoall;
}

// Bytes by member of what member `of` sends in an alltoall, or of the blocks of a tensor.
Blocks BlocksOf(const Job& job, size_t t, int size, int of = 0) {
  Blocks blocks;
  for (int m = 0; m < size; ++m) {
    blocks.push_back((job.elements[t] + job.uneven * (m + of)) * DataTypeSize(job.dtype));
  }
  return blocks;
}

int64_t Total(const Blocks& blocks) {
  return std::accumulate(blocks.begin(), blocks.end(), int64_t{0});
}

struct Sizes {
  int64_t input = 0;
  int64_t output = 0;
};

Sizes SizesOf(const Job& job, size_t t, int size, int self) {
  const Blocks blocks = BlocksOf(job, t, size);
  const int64_t whole = job.elements[t] * DataTypeSize(job.dtype);
  switch (job.kind) {
    case CollectiveKind::kAllgather:
    case CollectiveKind::kGather:
      return {blocks[self], Total(blocks)};
    case CollectiveKind::kReducescatter:
    case CollectiveKind::kScatter:
      return {Total(blocks), blocks[self]};
    case CollectiveKind::kAlltoall: {
      const int64_t sent = Total(BlocksOf(job, t, size, self));
      return {sent, sent};  // the matrix is symmetric
    }
    default:
      return {whole, whole};
  }
}

std::vector<char> InputOf(const Job& job, Rank rank, size_t t, int64_t bytes) {
  const int64_t element = DataTypeSize(job.dtype);
  std::vector<char> input(bytes);
  const bool numbers = Traits(job.kind).reduces;
  for (int64_t i = 0; numbers && i < bytes / element; ++i) {
    const int varied = Value(job.op, rank, i + 100 * static_cast<int64_t>(t));
    Store(job.dtype, input.data() + i * element, job.value != 0 ? job.value : varied);
  }
  for (int64_t i = 0; !numbers && i < bytes; ++i) {
    input[i] = static_cast<char>(rank * 37 + static_cast<int64_t>(t) * 11 + i + i / 256);
  }
  return input;
}

// Averages of float16 whose sums are not finite.
void AddLargeHalves(CollectiveKind kind, int root, std::vector<Job>* jobs) {
  const DataType half = DataType::kFloat16;
  const std::vector<Blocks> tensors = {{33}, {5, 6}, {kNcclDirectBytes / 2, 7}};
  for (const Blocks& elements : tensors) {
    for (int64_t uneven = 0; uneven <= (HasBlocks(kind) ? 1 : 0); ++uneven) {
      jobs->push_back({kind, half, ReduceOp::kAverage, 1, 1, root, false, elements, uneven, 60000});
    }
    jobs->push_back({kind, half, ReduceOp::kSum, 0.5, 0.25, root, false, elements, 0, 60000});
  }
}

}  // namespace

std::string Job::Text() const {
  std::string text = std::string(CollectiveKindName(kind)) + " " + ReduceOpName(op) + " of " +
                     DataTypeName(dtype) + " [";
  for (int64_t count : elements) text += std::to_string(count) + " ";
  return text + "] uneven " + std::to_string(uneven) + " root " + std::to_string(root) +
         " factors " + std::to_string(prescale) + " " + std::to_string(postscale) +
         (value != 0 ? " of " + std::to_string(value) : "") + (in_place ? " in place" : "");
}

Collective MakeJob(const Job& job, const std::vector<Rank>& members, int self, uint64_t sequence,
                   JobMemory* memory) {
  Collective c;
  c.sequence = sequence;
  c.what = CollectiveKindName(job.kind);
  c.kind = job.kind;
  c.dtype = job.dtype;
  c.op = job.op;
  c.prescale = job.prescale;
  c.postscale = job.postscale;
  c.root = Traits(job.kind).has_root() ? job.root : 0;
  c.self = self;
  c.members = members;
  const bool root = self == c.root;
  const int size = static_cast<int>(members.size());
  memory->inputs.assign(job.elements.size(), {});
  memory->outputs.assign(job.elements.size(), {});
  for (size_t t = 0; t < job.elements.size(); ++t) {
    const Sizes sizes = SizesOf(job, t, size, self);
    TensorBuffer buffer;
    if (Includes(Traits(job.kind).input, root)) {
      memory->inputs[t] = InputOf(job, members[self], t, sizes.input);
      buffer.input = memory->inputs[t].data();
      buffer.input_bytes = sizes.input;
    }
    if (Includes(Traits(job.kind).output, root)) {
      const bool shared = job.in_place && buffer.input != nullptr;
      if (!shared) memory->outputs[t].assign(sizes.output, 0x55);
      buffer.output = shared ? memory->inputs[t].data() : memory->outputs[t].data();
      buffer.output_bytes = sizes.output;
    }
    c.buffers.push_back(buffer);
    if (HasBlocks(job.kind)) c.block_bytes.push_back(BlocksOf(job, t, size));
    if (job.kind != CollectiveKind::kAlltoall) continue;
    c.block_bytes.push_back(BlocksOf(job, t, size, self));
    c.send_bytes.push_back(BlocksOf(job, t, size, self));
  }
  return c;
}

std::vector<std::vector<std::vector<char>>> CpuResults(const Job& job,
                                                       const std::vector<Rank>& members) {
  World world(members.back() + 1, SmallConfig());
  std::vector<JobMemory> memory(members.size());
  for (size_t m = 0; m < members.size(); ++m) {
    world.backend(members[m]).Submit(MakeJob(job, members, static_cast<int>(m), 1, &memory[m]));
  }
  std::vector<std::vector<std::vector<char>>> results(members.size());
  for (size_t m = 0; m < members.size(); ++m) {
    (void)world.Wait(members[m], 1);
    for (size_t t = 0; t < job.elements.size(); ++t) {
      const bool root = static_cast<int>(m) == job.root || !Traits(job.kind).has_root();
      const bool has = Includes(Traits(job.kind).output, root);
      const bool shared = job.in_place && Includes(Traits(job.kind).input, root);
      const std::vector<char> none;
      results[m].push_back(!has ? none : shared ? memory[m].inputs[t] : memory[m].outputs[t]);
    }
  }
  return results;
}

bool SameResult(const Job& job, const std::vector<char>& result,
                const std::vector<char>& expected) {
  if (result.size() != expected.size()) return false;
  const bool wide = job.dtype == DataType::kFloat32 || job.dtype == DataType::kFloat64;
  if (!wide || job.op != ReduceOp::kAverage) return result == expected;
  const int64_t element = DataTypeSize(job.dtype);
  const double precision = job.dtype == DataType::kFloat32 ? 1.0 / (1 << 22) : 1e-15;
  for (size_t at = 0; at < result.size(); at += element) {
    const double wanted = Read(job.dtype, expected.data() + at);
    const double error = std::abs(Read(job.dtype, result.data() + at) - wanted);
    if (!(error <= precision * std::max(1.0, std::abs(wanted)))) return false;
  }
  return true;
}

std::vector<Job> AllJobs(int size) {
  const int last = size - 1;
  const std::vector<int64_t> large = {kNcclDirectBytes / 8 + 3, 7};
  std::vector<Job> jobs;
  for (CollectiveKind kind : {CollectiveKind::kAllreduce, CollectiveKind::kReduce}) {
    const bool in_place_allowed = true;
    for (DataType dtype : kReducibleTypes) {
      for (ReduceOp op : {ReduceOp::kAverage, ReduceOp::kSum, ReduceOp::kMin, ReduceOp::kMax,
                          ReduceOp::kProduct}) {
        if (!NcclRuns(kind, dtype, op)) continue;
        const bool in_place = in_place_allowed && jobs.size() % 2 == 0;
        jobs.push_back({kind, dtype, op, 1, 1, last, in_place, {1001}, 0});
        jobs.push_back({kind, dtype, op, 1, 1, 0, !in_place, {3, 0, 1, 257}, 0});
      }
    }
    jobs.push_back({kind, DataType::kFloat32, ReduceOp::kSum, 0.5, 4, 0, true, {9, 10}, 0});
    jobs.push_back({kind, DataType::kFloat64, ReduceOp::kSum, 0.5, 1, last, false, large, 0});
    jobs.push_back({kind, DataType::kFloat64, ReduceOp::kMax, 2, 0.25, last, false, large, 0});
    jobs.push_back({kind, DataType::kFloat16, ReduceOp::kSum, 0.5, 4, 0, true, {9, 10}, 0});
    jobs.push_back({kind, DataType::kBfloat16, ReduceOp::kSum, 1, 0.5, last, false, {11}, 0});
    AddLargeHalves(kind, last, &jobs);
  }
  for (DataType dtype : kReducibleTypes) {
    for (int64_t uneven : {0, 1}) {
      const CollectiveKind kind = CollectiveKind::kReducescatter;
      jobs.push_back({kind, dtype, ReduceOp::kSum, 1, 1, 0, false, {0, 2, 5}, uneven});
      jobs.push_back({kind, dtype, ReduceOp::kMax, 1, 1, 0, false, {33}, uneven});
    }
  }
  for (int64_t uneven : {0, 1}) {
    const CollectiveKind kind = CollectiveKind::kReducescatter;
    jobs.push_back({kind, DataType::kFloat32, ReduceOp::kAverage, 2, 1, 0, false, large, uneven});
    jobs.push_back({kind, DataType::kFloat16, ReduceOp::kMin, 2, 0.5, 0, false, {5, 6}, uneven});
  }
  AddLargeHalves(CollectiveKind::kReducescatter, 0, &jobs);
  for (DataType dtype : kAllTypes) {
    for (CollectiveKind kind :
         {CollectiveKind::kBroadcast, CollectiveKind::kAllgather, CollectiveKind::kGather,
          CollectiveKind::kScatter, CollectiveKind::kAlltoall, CollectiveKind::kSendRecv}) {
      if (kind == CollectiveKind::kSendRecv && size != 2) continue;
      const bool blocks = Traits(kind).has_rows;
      const bool in_place = kind == CollectiveKind::kBroadcast && jobs.size() % 2 == 0;
      const ReduceOp op = ReduceOp::kSum;
      jobs.push_back({kind, dtype, op, 1, 1, last, in_place, {0}, blocks ? 2 : 0});
      jobs.push_back({kind, dtype, op, 1, 1, 0, in_place, {35}, 0});
      if (Traits(kind).max_tensors == 1) continue;
      jobs.push_back({kind, dtype, op, 1, 1, last, !in_place && !blocks, {1, 0, 77}, 0});
      jobs.push_back({kind, dtype, op, 1, 1, 0, false, {1, 0, 77}, blocks ? 1 : 0});
    }
  }
  for (CollectiveKind kind : {CollectiveKind::kBroadcast, CollectiveKind::kAllgather}) {
    const bool blocks = Traits(kind).has_rows;
    const DataType dtype = DataType::kFloat64;
    jobs.push_back({kind, dtype, ReduceOp::kSum, 1, 1, 0, false, large, 0});
    jobs.push_back({kind, dtype, ReduceOp::kSum, 1, 1, 0, false, large, blocks ? 1 : 0});
  }
  return jobs;
}

}  // namespace tfring::testing
