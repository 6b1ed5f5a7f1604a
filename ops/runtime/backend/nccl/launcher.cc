#include "ops/runtime/backend/nccl/launcher.h"

#include <algorithm>
#include <utility>

#include "ops/runtime/backend/cuda/stream.h"
#include "ops/runtime/base/check.h"

namespace tfring {

Result<std::unique_ptr<NcclLauncher>> NcclLauncher::Make(std::shared_ptr<CudaDevice> device) {
  Result<CuStream> stream = device->MakeStream();
  if (!stream.ok()) return stream.status();
  return std::unique_ptr<NcclLauncher>(new NcclLauncher(std::move(device), *stream));
}

NcclLauncher::NcclLauncher(std::shared_ptr<CudaDevice> device, CuStream stream)
    : device_(std::move(device)), stream_(stream) {}

// The memory that is replaced is still used by what was launched before, which holds it.
Status NcclLauncher::ReserveScratch(int64_t bytes) {
  if (bytes <= scratch_bytes_) return OkStatus();
  Result<std::shared_ptr<void>> memory = device_->Scratch(bytes);
  if (!memory.ok()) return memory.status();
  scratch_ = std::move(*memory);
  scratch_bytes_ = bytes;
  return OkStatus();
}

Status NcclLauncher::Copy(const std::vector<NcclCopy>& copies, const Scale& scale,
                          const PlaceResolver& at) {
  TFRING_CHECK(scale.identity()) << "a program that multiplies, on a rank that cannot";
  for (const NcclCopy& copy : copies) {
    const CuDevicePtr from = reinterpret_cast<CuDevicePtr>(at(copy.from));
    const CuDevicePtr to = reinterpret_cast<CuDevicePtr>(at(copy.to));
    TFRING_RETURN_IF_ERROR(device_->Check(
        device_->cu().MemcpyDtoDAsync(to, from, static_cast<size_t>(copy.bytes), stream_),
        "copying within the GPU"));
  }
  return OkStatus();
}

Status NcclLauncher::LetCallsFollow(const Collective& collective) {
  const auto& calls = collective.device_calls;
  if (std::none_of(calls.begin(), calls.end(), [](const DeviceCall& c) { return c.early; })) {
    return OkStatus();
  }
  Result<std::shared_ptr<CudaEvent>> event = device_->Record(stream_);
  if (!event.ok()) return event.status();
  for (const DeviceCall& call : calls) {
    if (call.early) TFRING_RETURN_IF_ERROR(CudaStream::Of(call).WaitFor(**event));
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
  TFRING_RETURN_IF_ERROR(Copy(program.before, program.before_scale, at));
  if (!program.calls.empty()) {
    TFRING_RETURN_IF_ERROR(communicator->Enqueue(program, at, stream_));
  }
  TFRING_RETURN_IF_ERROR(Copy(program.after, program.after_scale, at));
  return LetCallsFollow(collective);
}

}  // namespace tfring
