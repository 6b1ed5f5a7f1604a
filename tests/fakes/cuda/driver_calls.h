#ifndef TFRING_TESTS_FAKES_CUDA_DRIVER_CALLS_H_
#define TFRING_TESTS_FAKES_CUDA_DRIVER_CALLS_H_

#include <dlfcn.h>

#include <cstddef>
#include <cstdio>
#include <cstdlib>

#include "tests/fakes/cuda/fake_cuda.h"

// The driver API as tests call it: CU(cuInit)(0) finds cuInit in the fake driver of the build.
// There are no CUDA headers, so that the functions are declared here.

extern "C" {
int cuInit(unsigned flags);
int cuDeviceGetCount(int* count);
int cuDeviceGet(int* device, int number);
int cuDeviceGetUuid_v2(void* uuid, int device);
int cuDevicePrimaryCtxRetain(void** context, int device);
int cuCtxSetCurrent(void* context);
int cuCtxGetCurrent(void** context);
int cuCtxPushCurrent_v2(void* context);
int cuCtxPopCurrent_v2(void** context);
int cuCtxGetDevice(int* device);
int cuCtxSynchronize();
int cuMemAlloc_v2(unsigned long long* address, size_t bytes);
int cuMemFree_v2(unsigned long long address);
int cuMemHostAlloc(void** data, size_t bytes, unsigned flags);
int cuMemFreeHost(void* data);
int cuMemcpyHtoD_v2(unsigned long long to, const void* from, size_t bytes);
int cuMemcpyDtoH_v2(void* to, unsigned long long from, size_t bytes);
int cuMemcpyHtoDAsync_v2(unsigned long long to, const void* from, size_t bytes, void* stream);
int cuMemcpyDtoHAsync_v2(void* to, unsigned long long from, size_t bytes, void* stream);
int cuMemcpyDtoDAsync_v2(unsigned long long to, unsigned long long from, size_t bytes,
                         void* stream);
int cuMemsetD8Async(unsigned long long to, unsigned char value, size_t count, void* stream);
int cuMemsetD32Async(unsigned long long to, unsigned value, size_t count, void* stream);
int cuPointerGetAttribute(void* value, int attribute, unsigned long long address);
int cuStreamCreateWithPriority(void** stream, unsigned flags, int priority);
int cuStreamDestroy_v2(void* stream);
int cuStreamGetCtx(void* stream, void** context);
int cuStreamGetPriority(void* stream, int* priority);
int cuStreamQuery(void* stream);
int cuStreamSynchronize(void* stream);
int cuStreamWaitEvent(void* stream, void* event, unsigned flags);
int cuEventCreate(void** event, unsigned flags);
int cuEventDestroy_v2(void* event);
int cuEventRecord(void* event, void* stream);
int cuEventQuery(void* event);
int cuEventSynchronize(void* event);
int cuLaunchHostFunc(void* stream, void (*function)(void*), void* argument);
int cuModuleLoadData(void** module, const void* image);
int cuModuleGetFunction(void** function, void* module, const char* name);
int cuLaunchKernel(void* function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                   unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared_bytes,
                   void* stream, void** parameters, void** extra);
}

namespace fake_cuda {

inline void* Library() {
  static void* library = dlopen(TFRING_FAKE_CUDA, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    std::fprintf(stderr, "%s\n", dlerror());
    std::abort();
  }
  return library;
}

template <typename Function>
Function Find(const char* name) {
  auto* function = reinterpret_cast<Function>(dlsym(Library(), name));
  if (function == nullptr) {
    std::fprintf(stderr, "the fake driver has no %s\n", name);
    std::abort();
  }
  return function;
}

}  // namespace fake_cuda

#define CU(name) (::fake_cuda::Find<decltype(&name)>(#name))

#endif  // TFRING_TESTS_FAKES_CUDA_DRIVER_CALLS_H_
