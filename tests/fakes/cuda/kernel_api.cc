// The driver API's functions about modules and kernels. A module is whatever its image is: its
// functions are found by name, and run what FakeCudaRegisterKernel said.

#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "tests/fakes/cuda/device.h"
#include "tests/fakes/cuda/driver_types.h"
#include "tests/fakes/cuda/fake_cuda.h"
#include "tests/fakes/cuda/memory.h"
#include "tests/fakes/cuda/settings.h"
#include "tests/fakes/cuda/stream.h"

using fake_cuda::Address;
using fake_cuda::Count;
using fake_cuda::Counter;
using fake_cuda::Device;
using fake_cuda::Gate;
using fake_cuda::Handle;
using fake_cuda::Result;
using fake_cuda::Stream;
using fake_cuda::Work;

namespace {

using fake_cuda::kSuccess;

using Twin = void (*)(void** parameters, unsigned grid, unsigned block);

struct Kernel {
  std::string name;
  Twin twin = nullptr;
  bool sized = false;
  std::vector<size_t> sizes;
};

// Kernels by name. A CUfunction is the address of a kernel; kernels stay for ever.
class Kernels {
 public:
  static Kernels& Get() {
    static auto* kernels = new Kernels;
    return *kernels;
  }

  Kernel* Find(const std::string& name) {
    const std::lock_guard<std::mutex> lock(mutex_);
    std::unique_ptr<Kernel>& kernel = kernels_[name];
    if (kernel == nullptr) kernel = std::make_unique<Kernel>(Kernel{name, nullptr, false, {}});
    return kernel.get();
  }

  // A function of a module of this device.
  void Found(const Device* device, Handle module, Handle function) {
    const std::lock_guard<std::mutex> lock(mutex_);
    modules_[{device, module}].insert(function);
  }
  // A launch on this device, until the result is destroyed.
  std::shared_ptr<void> Begin(const Device* device, Handle function) {
    const std::lock_guard<std::mutex> lock(mutex_);
    ++open_[{device, function}];
    return std::shared_ptr<void>(nullptr, [this, device, function](void*) {
      const std::lock_guard<std::mutex> lock(mutex_);
      --open_[{device, function}];
    });
  }
  // The name of a kernel of the module that has been launched and not ended, or "".
  std::string OpenKernelOf(const Device* device, Handle module) {
    const std::lock_guard<std::mutex> lock(mutex_);
    for (Handle function : modules_[{device, module}]) {
      if (open_[{device, function}] > 0) return static_cast<Kernel*>(function)->name;
    }
    return "";
  }

  void SetTwin(const char* name, Twin twin) {
    Kernel* kernel = Find(name);
    const std::lock_guard<std::mutex> lock(mutex_);
    kernel->twin = twin;
  }

  void SetSizes(const char* name, const size_t* sizes, int count) {
    Kernel* kernel = Find(name);
    const std::lock_guard<std::mutex> lock(mutex_);
    kernel->sized = true;
    kernel->sizes.assign(sizes, sizes + count);
  }

  Kernel Copy(Handle function) {
    const std::lock_guard<std::mutex> lock(mutex_);
    return *static_cast<Kernel*>(function);
  }

 private:
  std::mutex mutex_;  // guards the rest
  std::map<std::string, std::unique_ptr<Kernel>> kernels_;
  std::map<std::pair<const Device*, Handle>, std::set<Handle>> modules_;  // their functions
  std::map<std::pair<const Device*, Handle>, long> open_;                 // launches of functions
};

// Copies of a launch's parameters: the launching thread may change or free its own after the call.
class Parameters {
 public:
  Parameters(const Kernel& kernel, void** parameters) {
    for (size_t i = 0; i < kernel.sizes.size(); ++i) {
      const char* value = static_cast<const char*>(parameters[i]);
      // As parts of 16 bytes, which are aligned for every type.
      values_.emplace_back((kernel.sizes[i] + sizeof(Part) - 1) / sizeof(Part));
      std::memcpy(values_.back().data(), value, kernel.sizes[i]);
    }
    for (auto& value : values_) pointers_.push_back(value.data());
  }

  void** pointers() { return pointers_.data(); }

 private:
  struct alignas(16) Part {
    char bytes[16];
  };
  std::vector<std::vector<Part>> values_;
  std::vector<void*> pointers_;
};

Result Launch(Handle function, unsigned grid, unsigned block, Handle handle, void** parameters) {
  std::shared_ptr<Stream> stream;
  const Result result = fake_cuda::FindStream(handle, "cuLaunchKernel", &stream);
  if (result != kSuccess) return result;
  if (function == nullptr) return fake_cuda::kInvalidHandle;
  const Kernel kernel = Kernels::Get().Copy(function);
  fake_cuda::Log("launch of %s on stream %p", kernel.name.c_str(), handle);
  auto open = Kernels::Get().Begin(stream->device(), function);
  if (kernel.twin == nullptr) {
    auto run = [open = std::move(open)]() mutable {
      Count(Counter::kLaunches);
      open.reset();
    };
    stream->Push({Work::Kind::kTask, nullptr, std::move(run), nullptr});
    return kSuccess;
  }
  if (!kernel.sized) {
    fake_cuda::Die(
        "kernel %s has a twin, but FakeCudaKernelParameters has not said the sizes of "
        "its parameters",
        kernel.name.c_str());
  }
  const auto copies = std::make_shared<Parameters>(kernel, parameters);
  auto run = [copies, twin = kernel.twin, grid, block, open = std::move(open)]() mutable {
    Count(Counter::kLaunches);
    twin(copies->pointers(), grid, block);
    open.reset();
  };
  stream->Push({Work::Kind::kTask, nullptr, std::move(run), nullptr});
  return kSuccess;
}

// The global variables of modules, made when somebody asks for them.
class Globals {
 public:
  static constexpr size_t kBytes = 256;

  static Globals& Get() {
    static auto* globals = new Globals;
    return *globals;
  }

  Result Find(const Device* device, Handle module, const std::string& name, Address* address) {
    const std::lock_guard<std::mutex> lock(mutex_);
    std::map<std::string, Address>& known = modules_[{device, module}];
    const auto found = known.find(name);
    if (found != known.end()) {
      *address = found->second;
      return kSuccess;
    }
    const Result result = fake_cuda::Memory::Get().Allocate(device->number(), kBytes, address);
    if (result == kSuccess) known[name] = *address;
    return result;
  }
  void Free(const Device* device, Handle module) {
    const std::lock_guard<std::mutex> lock(mutex_);
    for (const auto& [name, address] : modules_[{device, module}]) {
      fake_cuda::Memory::Get().Free(address);
    }
    modules_.erase({device, module});
  }

 private:
  std::mutex mutex_;
  std::map<std::pair<const Device*, Handle>, std::map<std::string, Address>> modules_;
};

}  // namespace

FAKE_CUDA_API void FakeCudaRegisterKernel(const char* name, Twin twin) {
  Kernels::Get().SetTwin(name, twin);
}

FAKE_CUDA_API void FakeCudaKernelParameters(const char* name, const size_t* sizes, int count) {
  Kernels::Get().SetSizes(name, sizes, count);
}

FAKE_CUDA_API Result cuModuleLoadData(Handle* module, const void* image) {
  Device* device = nullptr;
  const Result result = Gate(&device);
  if (result != kSuccess) return result;
  if (image == nullptr) return fake_cuda::kInvalidValue;
  *module = const_cast<void*>(image);
  return kSuccess;
}

FAKE_CUDA_API Result cuModuleLoadDataEx(Handle* module, const void* image, unsigned, void*, void*) {
  return cuModuleLoadData(module, image);
}

FAKE_CUDA_API Result cuModuleLoadFatBinary(Handle* module, const void* image) {
  return cuModuleLoadData(module, image);
}

FAKE_CUDA_API Result cuModuleUnload(Handle module) {
  Device* device = nullptr;
  const Result result = Gate(&device);
  if (result != kSuccess) return result;
  const std::string open = Kernels::Get().OpenKernelOf(device, module);
  if (!open.empty()) {
    fake_cuda::Die("a module is unloaded while its kernel %s has not ended", open.c_str());
  }
  Globals::Get().Free(device, module);
  return kSuccess;
}

FAKE_CUDA_API Result cuModuleGetFunction(Handle* function, Handle module, const char* name) {
  Device* device = nullptr;
  const Result result = Gate(&device);
  if (result != kSuccess) return result;
  *function = Kernels::Get().Find(name);
  Kernels::Get().Found(device, module, *function);
  return result;
}

// Any name is that of a global variable, because the fake does not read images. XLA has small
// constants there; what they are is as unknown as what its kernels compute.
FAKE_CUDA_API Result cuModuleGetGlobal_v2(Address* address, size_t* bytes, Handle module,
                                          const char* name) {
  Device* device = nullptr;
  Result result = Gate(&device);
  if (result != kSuccess) return result;
  Address found = 0;
  result = Globals::Get().Find(device, module, name, &found);
  if (result != kSuccess) return result;
  if (address != nullptr) *address = found;
  if (bytes != nullptr) *bytes = Globals::kBytes;
  return kSuccess;
}

FAKE_CUDA_API Result cuFuncGetAttribute(int* value, int attribute, Handle) {
  *value = attribute == 0 ? 1024 : 0;  // MAX_THREADS_PER_BLOCK
  return Gate();
}

FAKE_CUDA_API Result cuFuncSetAttribute(Handle, int, int) { return Gate(); }

FAKE_CUDA_API Result cuFuncSetCacheConfig(Handle, int) { return Gate(); }

FAKE_CUDA_API Result cuOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, Handle, int, size_t) {
  *blocks = 2;
  return Gate();
}

FAKE_CUDA_API Result cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int* blocks, Handle, int,
                                                                          size_t, unsigned) {
  *blocks = 2;
  return Gate();
}

FAKE_CUDA_API Result cuOccupancyMaxPotentialBlockSize(int* grid, int* block, Handle, void*, size_t,
                                                      int) {
  *grid = 264;
  *block = 256;
  return Gate();
}

FAKE_CUDA_API Result cuLaunchKernel(Handle function, unsigned grid_x, unsigned, unsigned,
                                    unsigned block_x, unsigned, unsigned, unsigned, Handle stream,
                                    void** parameters, void**) {
  return Launch(function, grid_x, block_x, stream, parameters);
}

// The beginning of CUlaunchConfig.
struct LaunchConfig {
  unsigned grid[3];
  unsigned block[3];
  unsigned shared_bytes;
  Handle stream;
};

FAKE_CUDA_API Result cuLaunchKernelEx(const LaunchConfig* config, Handle function,
                                      void** parameters, void**) {
  return Launch(function, config->grid[0], config->block[0], config->stream, parameters);
}
