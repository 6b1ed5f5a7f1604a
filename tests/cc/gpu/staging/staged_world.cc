#include "tests/cc/gpu/staging/staged_world.h"

#include <algorithm>
#include <numeric>
#include <string>

#include "ops/runtime/backend/local_backend.h"
#include "tests/cc/backend/values.h"
#include "tests/cc/gpu/staging/staging_of.h"
#include "tests/cc/test.h"

namespace tfring::testing {
namespace {

using BlocksByRank = std::vector<std::vector<int64_t>>;

StreamOptions RandomStreams() {
  StreamOptions options;
  options.seed = 1;
  return options;
}

constexpr CollectiveKind kStagedKinds[] = {
    CollectiveKind::kAllreduce, CollectiveKind::kAllgather,     CollectiveKind::kBroadcast,
    CollectiveKind::kBarrier,   CollectiveKind::kReducescatter, CollectiveKind::kAlltoall,
    CollectiveKind::kReduce,    CollectiveKind::kGather,        CollectiveKind::kScatter,
    CollectiveKind::kSendRecv};
constexpr ReduceOp kOps[] = {ReduceOp::kSum, ReduceOp::kAverage, ReduceOp::kMin,
                             ReduceOp::kMax, ReduceOp::kProduct, ReduceOp::kAdasum};

template <typename List>
auto OneOf(const List& list, std::mt19937* random) {
  return list[(*random)() % std::size(list)];
}

// Of tensor `t` on member `self`.
struct StagedSizes {
  int64_t input = 0;
  int64_t output = 0;
  std::vector<int64_t> blocks, sends;
};

StagedSizes SizesOf(const Spec& spec, size_t t, int self) {
  const BlocksByRank& e = spec.elements[t];
  const bool root = self == spec.root;
  StagedSizes sizes;
  for (int m = 0; m < spec.size; ++m) {
    const bool alltoall = spec.kind == CollectiveKind::kAlltoall;
    sizes.blocks.push_back(alltoall ? e[m][self] : e[m][0]);
    if (alltoall) sizes.sends.push_back(e[self][m]);
  }
  const int64_t all = std::accumulate(sizes.blocks.begin(), sizes.blocks.end(), int64_t{0});
  const int64_t own = sizes.blocks[self];
  switch (spec.kind) {
    case CollectiveKind::kAllgather:
      return sizes.input = own, sizes.output = all, sizes;
    case CollectiveKind::kGather:
      return sizes.input = own, sizes.output = root ? all : 0, sizes;
    case CollectiveKind::kReducescatter:
      return sizes.input = all, sizes.output = own, sizes;
    case CollectiveKind::kScatter:
      return sizes.input = root ? all : 0, sizes.output = own, sizes;
    case CollectiveKind::kAlltoall:
      sizes.input = std::accumulate(sizes.sends.begin(), sizes.sends.end(), int64_t{0});
      return sizes.output = all, sizes;
    default:
      break;
  }
  const bool reads = Includes(Traits(spec.kind).input, root);
  const bool writes = Includes(Traits(spec.kind).output, root);
  sizes.blocks.clear();
  sizes.input = reads || spec.kind == CollectiveKind::kBroadcast ? e[0][0] : 0;
  sizes.output = writes ? e[0][0] : 0;
  return sizes;
}

}  // namespace

Spec RandomSpec(int size, std::mt19937* random) {
  Spec spec;
  spec.size = size;
  do {
    spec.kind = OneOf(kStagedKinds, random);
  } while (spec.kind == CollectiveKind::kSendRecv && size != 2);
  spec.dtype = OneOf(kReducibleTypes, random);
  const KindTraits& traits = Traits(spec.kind);
  if (traits.reduces) spec.op = OneOf(kOps, random);
  if (spec.op == ReduceOp::kAdasum) {
    spec.dtype = DataType::kFloat32;
    if (spec.kind != CollectiveKind::kAllreduce || (size & (size - 1)) != 0) {
      spec.op = ReduceOp::kSum;
    }
  }
  if (traits.reduces && spec.op != ReduceOp::kAdasum && (*random)() % 4 == 0) spec.prescale = 2.0;
  if (!traits.reduces && (*random)() % 3 == 0) {
    spec.dtype = (*random)() % 2 == 0 ? DataType::kBool : DataType::kComplex64;
  }
  spec.root = static_cast<int>((*random)() % static_cast<unsigned>(size));
  spec.in_place = !traits.allocates_output() && (*random)() % 2 == 0;
  const size_t most = traits.max_tensors == 1 ? 1 : 5;
  const size_t tensors = traits.max_tensors == 0 ? 0 : 1 + (*random)() % most;
  for (size_t t = 0; t < tensors; ++t) {
    const int64_t unit = OneOf(std::vector<int64_t>{0, 1, 7, 400}, random);
    BlocksByRank from_to(size, std::vector<int64_t>(size));
    for (auto& row : from_to) {
      for (int64_t& block : row) block = unit * static_cast<int64_t>((*random)() % 4);
    }
    spec.elements.push_back(from_to);
  }
  return spec;
}

std::string Text(const Spec& spec) {
  return std::string(CollectiveKindName(spec.kind)) + ", " + ReduceOpName(spec.op) + " of " +
         std::to_string(spec.elements.size()) + " " + DataTypeName(spec.dtype) + " on " +
         std::to_string(spec.size) + (spec.in_place ? ", in place" : "");
}

Part MakePart(const Spec& spec, int self, uint64_t sequence) {
  Part part;
  Collective& c = part.collective;
  c.sequence = sequence;
  c.what = std::string(CollectiveKindName(spec.kind)) + " of 'x'";
  c.kind = spec.kind;
  c.dtype = spec.dtype;
  c.op = spec.op;
  c.prescale = spec.prescale;
  c.self = self;
  c.root = spec.root;
  c.members = FirstRanks(spec.size);
  const int64_t width = DataTypeSize(spec.dtype);
  for (size_t t = 0; t < spec.elements.size(); ++t) {
    StagedSizes sizes = SizesOf(spec, t, self);
    for (int64_t& block : sizes.blocks) block *= width;
    for (int64_t& block : sizes.sends) block *= width;
    if (!sizes.blocks.empty()) c.block_bytes.push_back(sizes.blocks);
    if (!sizes.sends.empty()) c.send_bytes.push_back(sizes.sends);
    TensorBuffer buffer;
    buffer.input_bytes = sizes.input * width;
    buffer.output_bytes = sizes.output * width;
    c.buffers.push_back(buffer);
    std::vector<char> input(static_cast<size_t>(buffer.input_bytes));
    for (int64_t i = 0; i < sizes.input; ++i) {
      char* const to = input.data() + i * width;
      const int value = Value(spec.op, self, i + static_cast<int64_t>(t) * 17);
      if (width == 1 && spec.dtype == DataType::kBool) {
        *to = static_cast<char>(value % 2);
      } else if (spec.dtype == DataType::kComplex64) {
        Store(DataType::kFloat32, to, value);
        Store(DataType::kFloat32, to + 4, -value);
      } else {
        Store(spec.dtype, to, value);
      }
    }
    part.inputs.push_back(std::move(input));
  }
  return part;
}

void CpuMemory::Attach(Part* part, bool in_place) {
  inputs = part->inputs;
  for (size_t t = 0; t < inputs.size(); ++t) {
    TensorBuffer& buffer = part->collective.buffers[t];
    const bool shared = in_place && buffer.input_bytes == buffer.output_bytes;
    outputs.emplace_back(static_cast<size_t>(shared ? 0 : buffer.output_bytes), 0x55);
    buffer.input = inputs[t].empty() ? nullptr : inputs[t].data();
    buffer.output = shared ? inputs[t].data() : outputs[t].data();
    if (buffer.output_bytes == 0) buffer.output = nullptr;
  }
}

std::vector<std::vector<char>> CpuMemory::Results(const Collective& collective) const {
  std::vector<std::vector<char>> results;
  for (const TensorBuffer& buffer : collective.buffers) {
    const char* const from = static_cast<const char*>(buffer.output);
    results.emplace_back();
    if (from != nullptr) results.back().assign(from, from + buffer.output_bytes);
  }
  return results;
}

StagedWorld::StagedWorld(int size, const Config& config, const StagingOptions& staging)
    : devices_(FakeDriver(), DeviceRule()), streams_(size, RandomStreams()) {
  for (Rank rank = 0; rank < size; ++rank) {
    gpus_.push_back(std::make_unique<Framework>(rank));
    auto sink = [this, rank](Completion completion) {
      if (on_completion) on_completion(rank, completion);
      std::lock_guard<std::mutex> lock(mutex_);
      completions_[{rank, completion.sequence}].push_back(completion);
      changed_.notify_all();
    };
    auto make_cpu = [&](CompletionSink inner) -> std::unique_ptr<CollectiveBackend> {
      if (size == 1) return std::make_unique<LocalBackend>(config, std::move(inner));
      return std::make_unique<CpuBackend>(rank, config, streams_.Endpoint(rank), std::move(inner));
    };
    backends_.push_back(
        std::make_unique<RoutingBackend>(make_cpu, StagingOf(staging), nullptr, sink));
  }
}

StagedWorld::~StagedWorld() {
  for (auto& backend : backends_) backend->Abort(Cancelled("the test is over"));
  backends_.clear();
}

std::shared_ptr<CudaStream> StagedWorld::Stream(Rank rank) {
  auto wrapped = devices_.Wrap(gpus_[rank]->stream());
  return wrapped.ok() ? std::static_pointer_cast<CudaStream>(*wrapped) : nullptr;
}

Completion StagedWorld::Wait(Rank rank, uint64_t sequence) {
  std::unique_lock<std::mutex> lock(mutex_);
  std::vector<Completion>& list = completions_[{rank, sequence}];
  changed_.wait(lock,
                [&] { return !list.empty() && list.back().stage == CompletionStage::kEnded; });
  return list.back();
}

bool StagedWorld::Launched(Rank rank, uint64_t sequence) {
  std::lock_guard<std::mutex> lock(mutex_);
  const std::vector<Completion>& list = completions_[{rank, sequence}];
  return !list.empty() && list.front().stage == CompletionStage::kLaunched;
}

int StagedWorld::Ends(Rank rank, uint64_t sequence) {
  std::lock_guard<std::mutex> lock(mutex_);
  int ends = 0;
  for (const Completion& completion : completions_[{rank, sequence}]) {
    if (completion.stage == CompletionStage::kEnded) ++ends;
  }
  return ends;
}

DevicePart::DevicePart(StagedWorld* world, Rank rank, Part part, bool in_place,
                       const std::vector<bool>& on_device, bool early)
    : world_(world),
      rank_(rank),
      early_(early && std::find(on_device.begin(), on_device.end(), false) == on_device.end()) {
  cpu_.Attach(&part, in_place);
  collective_ = std::move(part.collective);
  const size_t tensors = collective_.buffers.size();
  Framework& gpu = world->gpu(rank);
  inputs_.assign(tensors, 0);
  outputs_.assign(tensors, 0);
  for (size_t t = 0; t < tensors; ++t) {
    if (!on_device[t]) continue;
    TensorBuffer& buffer = collective_.buffers[t];
    const bool shared = buffer.output != nullptr && buffer.output == buffer.input;
    auto stream = world->Stream(rank);
    inputs_[t] = gpu.Allocate(cpu_.inputs[t]);
    // The inputs are there before the outputs have memory.
    EXPECT_TRUE(stream->MarkReady().ok());
    if (!shared) outputs_[t] = gpu.Allocate(cpu_.outputs[t]);
    EXPECT_TRUE(stream->MarkReady().ok());
    buffer.input = reinterpret_cast<void*>(inputs_[t]);
    if (buffer.output != nullptr) {
      buffer.output = reinterpret_cast<void*>(shared ? inputs_[t] : outputs_[t]);
    }
    DeviceCall call;
    call.stream = stream;
    call.first = t;
    call.count = 1;
    call.early = early;
    collective_.device_calls.push_back(call);
  }
}

DevicePart::~DevicePart() { Free(); }

void DevicePart::Submit() { world_->backend(rank_).Submit(collective_); }

void DevicePart::ReadResults() {
  for (const DeviceCall& call : collective_.device_calls) {
    EXPECT_TRUE(call.stream->WaitForResults().ok());
  }
  for (const TensorBuffer& buffer : collective_.buffers) {
    const auto t = static_cast<size_t>(&buffer - collective_.buffers.data());
    const bool device = inputs_[t] != 0 || outputs_[t] != 0;
    read_.push_back(nullptr);
    if (!device || buffer.output == nullptr) continue;
    read_.back() = world_->gpu(rank_).Fetch(reinterpret_cast<CuDevicePtr>(buffer.output),
                                            static_cast<size_t>(buffer.output_bytes));
  }
}

std::vector<std::vector<char>> DevicePart::Results() {
  if (read_.empty()) ReadResults();
  world_->gpu(rank_).Wait();
  std::vector<std::vector<char>> results;
  for (size_t t = 0; t < collective_.buffers.size(); ++t) {
    const TensorBuffer& buffer = collective_.buffers[t];
    const char* const from = static_cast<const char*>(buffer.output);
    results.emplace_back();
    if (read_[t] != nullptr) {
      results.back() = *read_[t];
    } else if (from != nullptr) {
      results.back().assign(from, from + buffer.output_bytes);
    }
  }
  return results;
}

std::vector<std::vector<char>> DevicePart::ResultsInMemory() const {
  std::vector<std::vector<char>> results;
  for (const TensorBuffer& buffer : collective_.buffers) {
    results.emplace_back();
    if (buffer.output == nullptr || buffer.output_bytes == 0) continue;
    const auto bytes = static_cast<size_t>(buffer.output_bytes);
    const auto address = reinterpret_cast<CuDevicePtr>(buffer.output);
    const char* const from = static_cast<const char*>(Fake().View(address, bytes));
    results.back().assign(from, from + bytes);
  }
  return results;
}

void DevicePart::Free() {
  collective_.device_calls.clear();
  for (std::vector<CuDevicePtr>* list : {&inputs_, &outputs_}) {
    for (CuDevicePtr memory : *list) world_->gpu(rank_).Free(memory);
    list->clear();
  }
}

}  // namespace tfring::testing
