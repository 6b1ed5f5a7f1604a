#include "ops/runtime/process/device_library.h"

#include <dlfcn.h>

#include <mutex>
#include <string>
#include <utility>

namespace tfring {
namespace {

constexpr char kLibrary[] = "libtfring_cuda.so";

// The linker looks in the folder of the runtime first, which is its RUNPATH.
Result<const DeviceFunctions*> Load() {
  void* handle = dlopen(kLibrary, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
  if (handle == nullptr) {
    const char* error = dlerror();
    return Unavailable(
        std::string("tfring's code for GPUs cannot be loaded (") +
        (error != nullptr ? error : kLibrary) +
        "): install a tfring that was built with it, or keep tensors on the CPU with "
        "tf.device('CPU:0') or CUDA_VISIBLE_DEVICES=");
  }
  const auto get = reinterpret_cast<GetDeviceFunctions>(dlsym(handle, kDeviceFunctionsSymbol));
  if (get == nullptr || get()->layout != kDeviceFunctionsLayout) {
    return Unavailable(std::string(kLibrary) +
                       " belongs to another version of tfring: build both from the same source");
  }
  return get();
}

class Lazy final : public Devices {
 public:
  explicit Lazy(DeviceOptions options) : options_(std::move(options)) {}

  Result<std::shared_ptr<DeviceStream>> Wrap(void* stream) override {
    const Result<Devices*> loaded = Loaded();
    if (!loaded.ok()) return loaded.status();
    return (*loaded)->Wrap(stream);
  }
  Result<std::unique_ptr<CollectiveBackend>> MakeBackend(CpuOrder* order,
                                                         CompletionSink sink) override {
    const Result<Devices*> loaded = Loaded();
    if (!loaded.ok()) return loaded.status();
    return (*loaded)->MakeBackend(order, std::move(sink));
  }
  Result<std::unique_ptr<DeviceStaging>> MakeStaging(DeviceStaging::CpuQueue cpu,
                                                     CompletionSink sink) override {
    const Result<Devices*> loaded = Loaded();
    if (!loaded.ok()) return loaded.status();
    return (*loaded)->MakeStaging(std::move(cpu), std::move(sink));
  }

 private:
  Result<Devices*> Loaded() {
    std::lock_guard<std::mutex> lock(mutex_);
    if (devices_ != nullptr) return devices_.get();
    const Result<const DeviceFunctions*> functions = LoadDeviceFunctions();
    if (!functions.ok()) return functions.status();
    devices_ = (*functions)->make(options_);
    return devices_.get();
  }

  const DeviceOptions options_;
  std::mutex mutex_;  // guards devices_
  std::unique_ptr<Devices> devices_;
};

}  // namespace

Result<const DeviceFunctions*> LoadDeviceFunctions() {
  static const Result<const DeviceFunctions*> loaded = Load();
  return loaded;
}

std::unique_ptr<Devices> LazyDevices(DeviceOptions options) {
  return std::make_unique<Lazy>(std::move(options));
}

}  // namespace tfring
