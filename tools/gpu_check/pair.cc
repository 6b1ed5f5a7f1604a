#include "tools/gpu_check/pair.h"

#include <sys/socket.h>

#include <algorithm>
#include <cstring>

#include "ops/gpu/nccl/nccl_program.h"
#include "tests/cc/backend/world.h"

namespace tfring::gpu_check {
namespace {

// All tensors of a check of kinds; more than the largest of them need together.
constexpr int64_t kKindsBytes = 64 << 20;

bool HasKernels(const Options& options, const Gpu& gpu) {
  return options.fakes ||
         ChoosePackImage(BuiltPackImages(), gpu.device()->compute_capability()) != nullptr;
}

}  // namespace

bool SendAll(int socket, const void* data, size_t bytes) {
  const char* at = static_cast<const char*>(data);
  while (bytes > 0) {
    const ssize_t sent = send(socket, at, bytes, MSG_NOSIGNAL);
    if (sent <= 0) return false;
    at += sent;
    bytes -= static_cast<size_t>(sent);
  }
  return true;
}

bool ReceiveAll(int socket, void* data, size_t bytes) {
  return recv(socket, data, bytes, MSG_WAITALL) == static_cast<ssize_t>(bytes);
}

class SocketOrder::Place final : public CpuPlace {
 public:
  explicit Place(SocketOrder* order) : order_(order) {}

  void Run(Collective collective, std::function<void(Completion)> ended) override {
    order_->threads_.emplace_back(
        [order = order_, collective = std::move(collective), ended = std::move(ended)] {
          order->Exchange(collective, ended);
        });
  }

  void Stage(Collective collective) override {
    Completion completion;
    completion.sequence = collective.sequence;
    completion.status = Unimplemented(collective.what + " would be staged, not run by NCCL");
    order_->sink_(std::move(completion));
  }

 private:
  SocketOrder* const order_;
};

SocketOrder::~SocketOrder() {
  if (socket_ >= 0) shutdown(socket_, SHUT_RDWR);
  for (std::thread& thread : threads_) thread.join();
}

std::unique_ptr<CpuPlace> SocketOrder::Reserve() { return std::make_unique<Place>(this); }

void SocketOrder::Exchange(const Collective& collective,
                           const std::function<void(Completion)>& ended) {
  Completion completion;
  completion.sequence = collective.sequence;
  for (size_t t = 0; t < collective.buffers.size(); ++t) {
    const TensorBuffer& buffer = collective.buffers[t];
    char* output = static_cast<char*>(buffer.output);
    const char* input = static_cast<const char*>(buffer.input);
    const size_t bytes = static_cast<size_t>(buffer.input_bytes);
    if (socket_ >= 0 && !SendAll(socket_, input, bytes)) {
      completion.status = Unavailable("the other rank is gone");
    }
    for (size_t m = 0; m < collective.members.size(); ++m) {
      const size_t block = static_cast<size_t>(collective.block_bytes[t][m]);
      if (static_cast<int>(m) == collective.self) {
        std::memcpy(output, input, block);
      } else if (!ReceiveAll(socket_, output, block)) {
        completion.status = Unavailable("the other rank is gone");
      }
      output += block;
    }
  }
  ended(completion);
}

GpuRank::GpuRank(const Options& options, Rank self, int size, int gpu, int socket)
    : self_(self),
      size_(size),
      gpu_(options, gpu),
      packs_(HasKernels(options, gpu_)),
      memory_bytes_(std::max(LargestBytes(options) + 64, kKindsBytes)),
      memory_(gpu_.Allocate(memory_bytes_)),
      order_(socket, [this](Completion completion) { Ended(std::move(completion)); }) {
  static const unsigned char text[] = "an image for the fake driver";
  NcclOptions made;
  made.self = self;
  made.config.gpu_operations = GpuOperations::kNccl;
  made.config.nccl_library = options.nccl;
  made.cpu_order = &order_;
  if (options.fakes) made.pack_images = {{0, text, sizeof(text)}};
  backend_ = std::make_unique<NcclBackend>(
      std::move(made), [this](Completion completion) { Ended(std::move(completion)); });
}

GpuRank::~GpuRank() {
  bool in_flight;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    in_flight = ended_.size() < sequence_;
  }
  if (in_flight) backend_->Abort(Cancelled("the check is over"));
  backend_.reset();
}

void GpuRank::Ended(Completion completion) {
  std::lock_guard<std::mutex> lock(mutex_);
  launched_ = std::max(launched_, completion.sequence);  // launched in their order
  if (completion.stage == CompletionStage::kEnded) {
    ended_[completion.sequence] = std::move(completion);
  }
  changed_.notify_all();
}

uint64_t GpuRank::SubmitOnDevice(Collective collective, bool early) {
  collective.sequence = ++sequence_;
  collective.path = DataPath::kDevice;
  auto stream = std::make_shared<CudaStream>(
      gpu_.device(), gpu_.stream(), [](CollectiveKind, DataType, ReduceOp) { return true; });
  Require(stream->MarkReady());
  auto keeps = std::make_shared<int>();
  last_stream_ = stream;
  last_call_ = keeps;
  collective.device_calls.push_back(
      {std::move(stream), 0, collective.buffers.size(), early, std::move(keeps)});
  backend_->Submit(std::move(collective));
  return sequence_;
}

uint64_t GpuRank::Submit(int64_t count, bool early) {
  Collective collective;
  collective.what = "allreduce of " + std::to_string(4 * count) + " bytes";
  collective.kind = CollectiveKind::kAllreduce;
  collective.dtype = DataType::kFloat32;
  collective.op = ReduceOp::kSum;
  collective.self = self_;
  collective.members = testing::FirstRanks(size_);
  collective.buffers = {{memory_, memory_, 4 * count, 4 * count}};
  return SubmitOnDevice(std::move(collective), early);
}

Completion GpuRank::Wait(uint64_t sequence) {
  std::unique_lock<std::mutex> lock(mutex_);
  changed_.wait(lock, [&] { return ended_.count(sequence) != 0; });
  return ended_[sequence];
}

void GpuRank::WaitLaunched(uint64_t sequence) {
  std::unique_lock<std::mutex> lock(mutex_);
  changed_.wait(lock, [&] { return launched_ >= sequence; });
}

void GpuRank::Follow() {
  WaitLaunched(sequence_);
  Require(last_stream_->WaitForResults());
}

void GpuRank::Fill(int64_t count) {
  std::vector<char> bytes(static_cast<size_t>(4 * count));
  const float mine = static_cast<float>(self_ + 1);
  for (int64_t i = 0; i < count; ++i) std::memcpy(bytes.data() + 4 * i, &mine, 4);
  gpu_.Upload(memory_, bytes);
}

void GpuRank::CheckSum(int64_t count) {
  Fill(count);
  Require(Wait(Submit(count)).status);
  CheckSums(count);
}

void GpuRank::CheckSums(int64_t count) {
  const std::vector<char> bytes = gpu_.Download(memory_, 4 * count);
  const float expected = static_cast<float>(size_ * (size_ + 1)) / 2;
  for (int64_t i = 0; i < count; ++i) {
    float got = 0.0f;
    std::memcpy(&got, bytes.data() + 4 * i, 4);
    if (got == expected) continue;  // no text for each of millions
    Require(false, "element " + std::to_string(i) + " of " + std::to_string(count) + " is " +
                       std::to_string(got) + ", not " + std::to_string(expected));
  }
}

// A copy of `bytes` in the device's memory behind what is used of it.
char* GpuRank::Place(const std::vector<char>& bytes, int64_t* used) {
  if (bytes.empty()) return nullptr;
  char* const place = memory_ + *used;
  *used += (static_cast<int64_t>(bytes.size()) + 255) / 256 * 256;
  Require(*used <= memory_bytes_, "the check has too little memory on the GPU");
  gpu_.Upload(place, bytes);
  return place;
}

void GpuRank::CheckJob(const testing::Job& job) {
  testing::JobMemory memory;
  const std::vector<Rank> members = testing::FirstRanks(size_);
  Collective collective = testing::MakeJob(job, members, self_, 0, &memory);
  collective.what = job.Text();
  int64_t used = 0;
  for (size_t t = 0; t < collective.buffers.size(); ++t) {
    TensorBuffer& buffer = collective.buffers[t];
    const bool shared = buffer.output != nullptr && buffer.input == buffer.output;
    char* const input = Place(memory.inputs[t], &used);
    buffer.output = shared ? input : Place(memory.outputs[t], &used);
    buffer.input = input;
  }
  const std::vector<TensorBuffer> buffers = collective.buffers;
  Require(Wait(SubmitOnDevice(std::move(collective), false)).status);
  const auto expected = testing::CpuResults(job, members)[static_cast<size_t>(self_)];
  for (size_t t = 0; t < buffers.size(); ++t) {
    const auto got = gpu_.Download(buffers[t].output, static_cast<int64_t>(expected[t].size()));
    Require(testing::SameResult(job, got, expected[t]),
            job.Text() + ": tensor " + std::to_string(t) + " of rank " + std::to_string(self_) +
                " is not what the CPU gives");
  }
}

int GpuRank::CheckKinds() {
  int checked = 0;
  for (const testing::Job& job : testing::AllJobs(size_)) {
    testing::JobMemory memory;
    const Collective collective =
        testing::MakeJob(job, testing::FirstRanks(size_), self_, 0, &memory);
    if (!MakeNcclProgram(collective, {packs_}).ok()) continue;  // it would be staged
    CheckJob(job);
    ++checked;
  }
  return checked;
}

CallTimes GpuRank::TimeOf(int64_t count, int times) {
  gpu_.Upload(memory_, std::vector<char>(static_cast<size_t>(4 * count)));
  Require(Wait(Submit(count)).status);
  CallTimes result;
  uint64_t last = 0;
  result.device = gpu_.DeviceTimeOf([&] {
    const double start = Seconds();
    for (int i = 1; i <= times; ++i) last = Submit(count, i == times);
    result.host = (Seconds() - start) / times;
    WaitLaunched(last);
    result.launched = (Seconds() - start) / times;
    Follow();  // the results of the last one, and so those of all before
  });
  result.device /= times;
  Require(Wait(last).status);
  return result;
}

}  // namespace tfring::gpu_check
