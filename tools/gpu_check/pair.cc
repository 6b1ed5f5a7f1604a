#include "tools/gpu_check/pair.h"

#include <sys/socket.h>

#include <cstring>

namespace tfring::gpu_check {
namespace {

bool SendAll(int socket, const char* data, size_t bytes) {
  while (bytes > 0) {
    const ssize_t sent = send(socket, data, bytes, MSG_NOSIGNAL);
    if (sent <= 0) return false;
    data += sent;
    bytes -= static_cast<size_t>(sent);
  }
  return true;
}

}  // namespace

class SocketOrder::Place final : public HostPlace {
 public:
  explicit Place(SocketOrder* order) : order_(order) {}

  void Run(Collective collective, std::function<void(Completion)> ended) override {
    order_->threads_.emplace_back(
        [order = order_, collective = std::move(collective), ended = std::move(ended)] {
          order->Exchange(collective, ended);
        });
  }

  void Stage(Collective collective) override {
    std::fprintf(stderr, "%s cannot be run by NCCL here\n", collective.what.c_str());
    std::abort();
  }

 private:
  SocketOrder* const order_;
};

SocketOrder::~SocketOrder() {
  if (socket_ >= 0) shutdown(socket_, SHUT_RDWR);
  for (std::thread& thread : threads_) thread.join();
}

std::unique_ptr<HostPlace> SocketOrder::Reserve() { return std::make_unique<Place>(this); }

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
      } else if (recv(socket_, output, block, MSG_WAITALL) != static_cast<ssize_t>(block)) {
        completion.status = Unavailable("the other rank is gone");
      }
      output += block;
    }
  }
  ended(completion);
}

GpuRank::GpuRank(const Options& options, Rank self, int size, int gpu, int socket)
    : self_(self), size_(size), gpu_(options, gpu), order_(socket) {
  static const unsigned char text[] = "an image for the driver's double";
  NcclOptions made;
  made.self = self;
  made.config.gpu_operations = GpuOperations::kNccl;
  made.config.nccl_library = options.nccl;
  made.host = &order_;
  if (options.doubles) made.pack_images = {{0, text, sizeof(text)}};
  backend_ = std::make_unique<NcclBackend>(std::move(made), [this](Completion completion) {
    if (completion.stage != CompletionStage::kEnded) return;
    std::lock_guard<std::mutex> lock(mutex_);
    ended_[completion.sequence] = std::move(completion);
    changed_.notify_all();
  });
}

GpuRank::~GpuRank() {
  backend_->Abort(Cancelled("the check is over"));
  backend_.reset();
}

uint64_t GpuRank::Submit(char* memory, int64_t count) {
  Collective collective;
  collective.sequence = ++sequence_;
  collective.path = DataPath::kDevice;
  collective.what = "allreduce of " + std::to_string(4 * count) + " bytes";
  collective.kind = CollectiveKind::kAllreduce;
  collective.dtype = DataType::kFloat32;
  collective.op = ReduceOp::kSum;
  collective.self = self_;
  for (Rank rank = 0; rank < size_; ++rank) collective.members.push_back(rank);
  collective.buffers = {{memory, memory, 4 * count, 4 * count}};
  auto stream = std::make_shared<CudaStream>(
      gpu_.device(), gpu_.stream(), [](CollectiveKind, DataType, ReduceOp) { return true; });
  Require(stream->MarkReady());
  collective.device_calls.push_back({stream, 0, 1, false, nullptr});
  backend_->Submit(std::move(collective));
  return sequence_;
}

Completion GpuRank::Wait(uint64_t sequence) {
  std::unique_lock<std::mutex> lock(mutex_);
  changed_.wait(lock, [&] { return ended_.count(sequence) != 0; });
  return ended_[sequence];
}

void GpuRank::CheckSum(int64_t count) {
  std::vector<char> bytes(static_cast<size_t>(4 * count));
  const float mine = static_cast<float>(self_ + 1);
  for (int64_t i = 0; i < count; ++i) std::memcpy(bytes.data() + 4 * i, &mine, 4);
  char* memory = gpu_.Allocate(4 * count);
  gpu_.Upload(memory, bytes);
  Require(Wait(Submit(memory, count)).status);
  bytes = gpu_.Download(memory, 4 * count);
  const float expected = static_cast<float>(size_ * (size_ + 1)) / 2;
  for (int64_t i = 0; i < count; ++i) {
    float got = 0.0f;
    std::memcpy(&got, bytes.data() + 4 * i, 4);
    Require(got == expected, "element " + std::to_string(i) + " of " + std::to_string(count) +
                                 " is " + std::to_string(got) + ", not " +
                                 std::to_string(expected));
  }
  gpu_.Free(memory);
}

double GpuRank::TimeOf(int64_t count, int times) {
  char* memory = gpu_.Allocate(4 * count);
  gpu_.Upload(memory, std::vector<char>(static_cast<size_t>(4 * count)));
  Require(Wait(Submit(memory, count)).status);
  const double start = Seconds();
  uint64_t last = 0;
  for (int i = 0; i < times; ++i) last = Submit(memory, count);
  Require(Wait(last).status);
  const double seconds = (Seconds() - start) / times;
  gpu_.Free(memory);
  return seconds;
}

}  // namespace tfring::gpu_check
