// The interface of libtfring_cuda.so for the runtime.
#include <memory>
#include <string>
#include <system_error>
#include <utility>

#include "ops/gpu/cuda/stream.h"
#include "ops/gpu/nccl/nccl_backend.h"
#include "ops/gpu/nccl/nccl_library.h"
#include "ops/gpu/pack/pack_images.h"
#include "ops/gpu/staging/staging.h"
#include "ops/runtime/interfaces/devices.h"

namespace tfring {
namespace {

// Loads the driver with the first stream, and NCCL with the first collective for it.
class GpuDevices final : public Devices {
 public:
  explicit GpuDevices(const DeviceOptions& options)
      : options_(options),
        devices_(options.config.cuda_driver,
                 [config = options.config](CollectiveKind kind, DataType dtype, ReduceOp op) {
                   return NcclBackend::Runs(config, kind, dtype, op);
                 }) {}

  Result<std::shared_ptr<DeviceStream>> Wrap(void* stream) override {
    return devices_.Wrap(stream);
  }
  Result<std::unique_ptr<CollectiveBackend>> MakeBackend(CpuOrder* order,
                                                         CompletionSink sink) override {
    NcclOptions options;
    options.self = options_.self;
    options.host_name = options_.host_name;
    options.config = options_.config;
    options.cpu_order = order;
    return std::unique_ptr<CollectiveBackend>(
        std::make_unique<NcclBackend>(std::move(options), std::move(sink)));
  }
  Result<std::unique_ptr<DeviceStaging>> MakeStaging(DeviceStaging::CpuQueue cpu,
                                                     CompletionSink sink) override {
    StagingOptions options;
    options.patience = options_.config.heartbeat_timeout;
    try {
      return std::unique_ptr<DeviceStaging>(
          std::make_unique<Staging>(std::move(cpu), std::move(sink), options));
    } catch (const std::system_error& error) {
      return Internal(std::string("cannot start the thread that copies from and to GPUs (") +
                      error.what() + ")");
    }
  }

 private:
  const DeviceOptions options_;
  CudaDevices devices_;
};

std::unique_ptr<Devices> Make(const DeviceOptions& options) {
  return std::make_unique<GpuDevices>(options);
}

Result<FoundNccl> FindNccl(const std::string& file) {
  const Result<std::shared_ptr<const NcclLibrary>> library = LoadNccl(file);
  if (!library.ok()) return library.status();
  return FoundNccl{(*library)->path, (*library)->version};
}

}  // namespace

const DeviceFunctions* tfring_device_functions() {
  static constexpr DeviceFunctions functions = {kDeviceFunctionsLayout, Make, PackImagesText,
                                                FindNccl};
  return &functions;
}

}  // namespace tfring
