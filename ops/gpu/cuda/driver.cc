#include "ops/gpu/cuda/driver.h"

#include <dlfcn.h>

#include <string>

namespace tfring {
namespace {

// Looks up symbols of one library until one is missing.
class Symbols {
 public:
  explicit Symbols(void* handle) : handle_(handle) {}

  template <typename Function>
  Symbols& Get(const char* name, Function* function) {
    void* symbol = dlsym(handle_, name);
    if (symbol == nullptr && missing_.empty()) missing_ = name;
    *function = reinterpret_cast<Function>(symbol);
    return *this;
  }

  const std::string& missing() const { return missing_; }

 private:
  void* const handle_;
  std::string missing_;
};

std::string FindAll(void* handle, CudaFunctions* cu) {
  Symbols symbols(handle);
  symbols.Get("cuInit", &cu->Init)
      .Get("cuDriverGetVersion", &cu->DriverGetVersion)
      .Get("cuGetErrorName", &cu->GetErrorName)
      .Get("cuGetErrorString", &cu->GetErrorString)
      .Get("cuDeviceGetCount", &cu->DeviceGetCount)
      .Get("cuDeviceGet", &cu->DeviceGet)
      .Get("cuDeviceGetName", &cu->DeviceGetName)
      .Get("cuDeviceGetUuid_v2", &cu->DeviceGetUuid)
      .Get("cuDeviceGetPCIBusId", &cu->DeviceGetPCIBusId)
      .Get("cuDeviceGetAttribute", &cu->DeviceGetAttribute)
      .Get("cuDevicePrimaryCtxRetain", &cu->DevicePrimaryCtxRetain)
      .Get("cuCtxPushCurrent_v2", &cu->CtxPushCurrent)
      .Get("cuCtxPopCurrent_v2", &cu->CtxPopCurrent)
      .Get("cuCtxGetDevice", &cu->CtxGetDevice)
      .Get("cuCtxGetStreamPriorityRange", &cu->CtxGetStreamPriorityRange)
      .Get("cuStreamCreateWithPriority", &cu->StreamCreateWithPriority)
      .Get("cuStreamDestroy_v2", &cu->StreamDestroy)
      .Get("cuStreamGetCtx", &cu->StreamGetCtx)
      .Get("cuStreamWaitEvent", &cu->StreamWaitEvent)
      .Get("cuLaunchHostFunc", &cu->LaunchHostFunc)
      .Get("cuEventCreate", &cu->EventCreate)
      .Get("cuEventDestroy_v2", &cu->EventDestroy)
      .Get("cuEventRecord", &cu->EventRecord)
      .Get("cuEventQuery", &cu->EventQuery)
      .Get("cuMemAlloc_v2", &cu->MemAlloc)
      .Get("cuMemFree_v2", &cu->MemFree)
      .Get("cuMemHostAlloc", &cu->MemHostAlloc)
      .Get("cuMemFreeHost", &cu->MemFreeHost)
      .Get("cuMemcpyHtoDAsync_v2", &cu->MemcpyHtoDAsync)
      .Get("cuMemcpyDtoHAsync_v2", &cu->MemcpyDtoHAsync)
      .Get("cuMemcpyDtoDAsync_v2", &cu->MemcpyDtoDAsync)
      .Get("cuMemsetD8Async", &cu->MemsetD8Async)
      .Get("cuMemsetD32Async", &cu->MemsetD32Async)
      .Get("cuModuleLoadData", &cu->ModuleLoadData)
      .Get("cuModuleUnload", &cu->ModuleUnload)
      .Get("cuModuleGetFunction", &cu->ModuleGetFunction)
      .Get("cuLaunchKernel", &cu->LaunchKernel);
  return symbols.missing();
}

}  // namespace

Result<std::shared_ptr<const CudaDriver>> CudaDriver::Load(const std::string& library) {
  void* handle = dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
  if (handle == nullptr) {
    const char* why = dlerror();
    return Unavailable("the CUDA driver " + library + " cannot be loaded (" +
                       (why == nullptr ? "no reason given" : why) +
                       "): install the NVIDIA driver, or keep the tensors in CPU memory");
  }
  std::shared_ptr<CudaDriver> driver(new CudaDriver());
  const std::string missing = FindAll(handle, &driver->functions_);
  if (!missing.empty()) {
    return Unavailable("the CUDA driver " + library + " has no " + missing +
                       ": it is older than CUDA 11.4; install a newer one");
  }
  const Status started = driver->Check(driver->functions_.Init(0), "starting the CUDA driver");
  if (!started.ok()) return Unavailable(started.message() + " (" + library + ")");
  return std::shared_ptr<const CudaDriver>(std::move(driver));
}

Status CudaDriver::Check(CuResult result, const char* doing, const std::string& where) const {
  if (result == kCudaSuccess) return OkStatus();
  const char* name = nullptr;
  const char* text = nullptr;
  functions_.GetErrorName(result, &name);
  functions_.GetErrorString(result, &text);
  std::string message = std::string(doing) + " failed: " + (name == nullptr ? "error" : name) +
                        " (" + std::to_string(result) + ")";
  if (text != nullptr) message += std::string(": ") + text;
  message += where;
  if (Sticky(result)) {
    message +=
        "; the GPU cannot be used any more by this process: look for the kernel that failed, then "
        "start the job again";
  }
  if (result == kCudaOutOfMemory) return ResourceExhausted(std::move(message));
  return Internal(std::move(message));
}

bool CudaDriver::Sticky(CuResult result) {
  switch (result) {
    case 4:    // deinitialized
    case 214:  // uncorrectable memory error
    case 220:  // uncorrectable NVLink error
    case 226:  // the GPU contained an error by ending the context
    case 700:  // illegal address
    case 702:  // a kernel ran into the time limit
    case 709:  // context destroyed
    case 710:  // assertion in a kernel
    case 714:  // hardware stack error
    case 715:  // illegal instruction
    case 716:  // misaligned address
    case 717:  // invalid address space
    case 718:  // invalid program counter
    case 719:  // a kernel failed
    case 999:  // unknown
      return true;
    default:
      return false;
  }
}

}  // namespace tfring
