#ifndef TFRING_OPS_GPU_CUDA_DRIVER_H_
#define TFRING_OPS_GPU_CUDA_DRIVER_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "ops/runtime/base/status.h"

namespace tfring {

// The part of the CUDA driver API that tfring uses. The build has no CUDA headers.
using CuResult = int;
using CuDevice = int;
using CuContext = struct CuContextObject*;
using CuStream = struct CuStreamObject*;
using CuEvent = struct CuEventObject*;
using CuModule = struct CuModuleObject*;
using CuFunction = struct CuFunctionObject*;
using CuDevicePtr = unsigned long long;
using CuHostFunction = void (*)(void*);
struct CuUuid {
  unsigned char bytes[16];
};

inline constexpr CuResult kCudaSuccess = 0;
inline constexpr CuResult kCudaOutOfMemory = 2;
inline constexpr CuResult kCudaNotReady = 600;

// The functions of the driver, with the driver's names without "cu" and version suffix.
struct CudaFunctions {
  CuResult (*Init)(unsigned flags);
  CuResult (*DriverGetVersion)(int* version);
  CuResult (*GetErrorName)(CuResult, const char** name);
  CuResult (*GetErrorString)(CuResult, const char** text);
  CuResult (*DeviceGetCount)(int* count);
  CuResult (*DeviceGet)(CuDevice*, int ordinal);
  CuResult (*DeviceGetName)(char* name, int length, CuDevice);
  CuResult (*DeviceGetUuid)(CuUuid*, CuDevice);
  CuResult (*DeviceGetPCIBusId)(char* text, int length, CuDevice);
  CuResult (*DeviceGetAttribute)(int* value, int attribute, CuDevice);
  CuResult (*DevicePrimaryCtxRetain)(CuContext*, CuDevice);
  CuResult (*CtxPushCurrent)(CuContext);
  CuResult (*CtxPopCurrent)(CuContext*);
  CuResult (*CtxGetDevice)(CuDevice*);
  CuResult (*CtxGetStreamPriorityRange)(int* least, int* greatest);
  CuResult (*StreamCreateWithPriority)(CuStream*, unsigned flags, int priority);
  CuResult (*StreamDestroy)(CuStream);
  CuResult (*StreamGetCtx)(CuStream, CuContext*);
  CuResult (*StreamWaitEvent)(CuStream, CuEvent, unsigned flags);
  CuResult (*LaunchHostFunc)(CuStream, CuHostFunction, void* argument);
  CuResult (*EventCreate)(CuEvent*, unsigned flags);
  CuResult (*EventDestroy)(CuEvent);
  CuResult (*EventRecord)(CuEvent, CuStream);
  CuResult (*EventQuery)(CuEvent);
  CuResult (*MemAlloc)(CuDevicePtr*, size_t bytes);
  CuResult (*MemFree)(CuDevicePtr);
  CuResult (*MemHostAlloc)(void** memory, size_t bytes, unsigned flags);
  CuResult (*MemFreeHost)(void*);
  CuResult (*MemcpyHtoDAsync)(CuDevicePtr, const void*, size_t bytes, CuStream);
  CuResult (*MemcpyDtoHAsync)(void*, CuDevicePtr, size_t bytes, CuStream);
  CuResult (*MemcpyDtoDAsync)(CuDevicePtr to, CuDevicePtr from, size_t bytes, CuStream);
  CuResult (*MemsetD8Async)(CuDevicePtr, unsigned char value, size_t bytes, CuStream);
  CuResult (*MemsetD32Async)(CuDevicePtr, unsigned value, size_t count, CuStream);
  CuResult (*ModuleLoadData)(CuModule*, const void* image);
  CuResult (*ModuleUnload)(CuModule);
  CuResult (*ModuleGetFunction)(CuFunction*, CuModule, const char* name);
  CuResult (*LaunchKernel)(CuFunction, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                           unsigned block_x, unsigned block_y, unsigned block_z,
                           unsigned shared_bytes, CuStream, void** parameters, void** extra);
};

// The CUDA driver, found at run time, so that machines without it run the same build. Immutable and
// thread-safe. The library stays loaded until the process ends, because its threads may still run.
class CudaDriver {
 public:
  // `library` is the argument of dlopen. Unavailable, with one sentence, if there is no such
  // library, if it lacks a function, or if it cannot be initialized (without a GPU, for example).
  static Result<std::shared_ptr<const CudaDriver>> Load(const std::string& library);

  const CudaFunctions& cu() const { return functions_; }

  // Ok for success, ResourceExhausted if memory ran out, Internal for all other results: "copying
  // from the GPU failed: CUDA_ERROR_ILLEGAL_ADDRESS (700): an illegal ...". `doing` is "copying
  // from the GPU"; `where` names the GPU or is empty. After a sticky error the text says that this
  // process has to end.
  Status Check(CuResult result, const char* doing, const std::string& where = "") const;

  // Returns whether the error ends the context: all its work is lost, and every later call fails.
  static bool Sticky(CuResult result);

 private:
  CudaDriver() = default;
  CudaFunctions functions_ = {};
};

}  // namespace tfring

#endif  // TFRING_OPS_GPU_CUDA_DRIVER_H_
