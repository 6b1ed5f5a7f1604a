#include "ops/gpu/nccl/launcher.h"

#include <algorithm>
#include <utility>

#include "ops/gpu/cuda/pinned_memory.h"
#include "ops/gpu/cuda/stream.h"

namespace tfring {
namespace {

constexpr int64_t kPinnedBytes = 4 << 20;  // for lists of tensors to pack

}  // namespace

Result<std::unique_ptr<NcclLauncher>> NcclLauncher::Make(std::shared_ptr<CudaDevice> device,
                                                         const std::vector<PackImage>& images) {
  Result<CuStream> stream = device->MakeStream();
  if (!stream.ok()) return stream.status();
  return std::unique_ptr<NcclLauncher>(new NcclLauncher(std::move(device), *stream, images));
}

NcclLauncher::NcclLauncher(std::shared_ptr<CudaDevice> device, CuStream stream,
                           const std::vector<PackImage>& images)
    : device_(std::move(device)),
      stream_(stream),
      pack_(device_, std::make_shared<PinnedMemory>(device_, kPinnedBytes), images) {}

// Earlier launches still use the old memory, and they hold it.
Status NcclLauncher::ReserveScratch(int64_t bytes) {
  if (bytes <= scratch_bytes_) return OkStatus();
  Result<std::shared_ptr<void>> memory = device_->Scratch(bytes);
  if (!memory.ok()) {
    return Status(memory.status().code(),
                  memory.status().message() +
                      "; leave more of the GPU's memory free (TensorFlow takes nearly all of it "
                      "without tf.config.experimental.set_memory_growth), or lower "
                      "TFRING_FUSION_THRESHOLD");
  }
  scratch_ = std::move(*memory);
  scratch_bytes_ = bytes;
  return OkStatus();
}

Status NcclLauncher::Copy(const std::vector<NcclCopy>& copies, DataType dtype, const Scale& scale,
                          const PlaceResolver& at) {
  if (copies.empty()) return OkStatus();
  const DataType type = scale.identity() ? DataType::kUint8 : dtype;
  std::vector<PackItem> items;
  items.reserve(copies.size());
  for (const NcclCopy& copy : copies) {
    items.push_back({at(copy.from), at(copy.to), copy.bytes / DataTypeSize(type)});
  }
  return pack_.Launch(stream_, items, type, scale);
}

Status NcclLauncher::SetResults(const Collective& collective) {
  const auto& calls = collective.device_calls;
  if (std::none_of(calls.begin(), calls.end(), [](const DeviceCall& c) { return c.early; })) {
    return OkStatus();
  }
  Result<std::shared_ptr<CudaEvent>> event = device_->Record(stream_);
  if (!event.ok()) return event.status();
  for (const DeviceCall& call : calls) {
    if (call.early) CudaStream::Of(call).SetResults(*event);
  }
  return OkStatus();
}

Status NcclLauncher::Launch(const Collective& collective, const NcclProgram& program,
                            NcclCommunicator* communicator) {
  const ScopedContext current(device_.get());
  TFRING_RETURN_IF_ERROR(current.status());
  TFRING_RETURN_IF_ERROR(ReserveScratch(program.scratch_bytes));
  for (const DeviceCall& call : collective.device_calls) {
    const CudaStream& stream = CudaStream::Of(call);
    if (stream.device().get() != device_.get()) {
      return Internal(collective.what + " has tensors on " + stream.device()->uuid() +
                      ", and earlier ones were on " + device_->uuid() +
                      "; a rank has to keep to one GPU");
    }
    TFRING_RETURN_IF_ERROR(stream.LetWait(stream_));
  }
  const PlaceResolver at = [&](const NcclPlace& place) -> void* {
    if (place.space == NcclPlace::Space::kScratch) {
      return static_cast<char*>(scratch_.get()) + place.offset;
    }
    const TensorBuffer& buffer = collective.buffers[place.tensor];
    if (place.space == NcclPlace::Space::kOutput) {
      return static_cast<char*>(buffer.output) + place.offset;
    }
    return static_cast<char*>(const_cast<void*>(buffer.input)) + place.offset;
  };
  TFRING_RETURN_IF_ERROR(Copy(program.before, collective.dtype, program.before_scale, at));
  if (!program.calls.empty()) {
    TFRING_RETURN_IF_ERROR(communicator->Enqueue(program, at, stream_));
  }
  TFRING_RETURN_IF_ERROR(Copy(program.after, collective.dtype, program.after_scale, at));
  return SetResults(collective);
}

}  // namespace tfring
