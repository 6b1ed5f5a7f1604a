// What TensorFlow's GPU build calls of libcudart.so.12, on the fake driver: its kernels register
// themselves here and are launched as work that does nothing.

#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <string>

#define FAKE_CUDART_API extern "C" __attribute__((visibility("default")))

// The parts of the fake driver that are used here.
extern "C" {
int cuInit(unsigned flags);
int cuCtxGetDevice(int* device);
int cuCtxSetCurrent(void* context);
int cuCtxSynchronize();
int cuDeviceGetAttribute(int* value, int attribute, int device);
int cuDeviceGetCount(int* count);
int cuDeviceTotalMem_v2(size_t* bytes, int device);
int cuDevicePrimaryCtxRetain(void** context, int device);
int cuGetErrorName(int error, const char** name);
int cuGetErrorString(int error, const char** text);
int cuLaunchKernel(void* function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                   unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared_bytes,
                   void* stream, void** parameters, void** extra);
int cuMemcpyAsync(unsigned long long to, unsigned long long from, size_t bytes, void* stream);
int cuMemsetD8Async(unsigned long long to, unsigned char value, size_t count, void* stream);
int cuModuleGetFunction(void** function, void* module, const char* name);
int cuStreamQuery(void* stream);
int cuStreamSynchronize(void* stream);
}

namespace {

constexpr int kVersion = 12080;

struct Size3 {
  unsigned x, y, z;
};

// Kernels by the address of the function that stands for them on the host.
class Kernels {
 public:
  static Kernels& Get() {
    static auto* kernels = new Kernels;
    return *kernels;
  }

  void Add(const void* host_function, const char* name) {
    const std::lock_guard<std::mutex> lock(mutex_);
    names_[host_function] = name;
  }

  int Find(const void* host_function, void** function) {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto found = names_.find(host_function);
    if (found == names_.end()) return 98;  // cudaErrorInvalidDeviceFunction
    return cuModuleGetFunction(function, nullptr, found->second.c_str());
  }

 private:
  std::mutex mutex_;
  std::map<const void*, std::string> names_;  // guarded by mutex_
};

struct LaunchCall {
  Size3 grid, block;
  size_t shared_bytes;
  void* stream;
};
thread_local LaunchCall launch_call;

// The beginning of cudaLaunchConfig_t.
struct LaunchConfig {
  Size3 grid, block;
  size_t shared_bytes;
  void* stream;
};

int Launch(const void* host_function, Size3 grid, Size3 block, void** parameters, size_t shared,
           void* stream) {
  void* function = nullptr;
  const int result = Kernels::Get().Find(host_function, &function);
  if (result != 0) return result;
  return cuLaunchKernel(function, grid.x, grid.y, grid.z, block.x, block.y, block.z,
                        static_cast<unsigned>(shared), stream, parameters, nullptr);
}

int Attribute(int attribute, int device) {
  int value = 0;
  cuDeviceGetAttribute(&value, attribute, device);
  return value;
}

template <typename T>
void Put(void* structure, size_t offset, T value) {
  std::memcpy(static_cast<char*>(structure) + offset, &value, sizeof(value));
}

}  // namespace

FAKE_CUDART_API void** __cudaRegisterFatBinary(void* binary) {
  static void* handle = nullptr;
  handle = binary;
  return &handle;
}
FAKE_CUDART_API void __cudaRegisterFatBinaryEnd(void**) {}
FAKE_CUDART_API void __cudaUnregisterFatBinary(void**) {}
FAKE_CUDART_API void __cudaRegisterFunction(void**, const char* host_function, char*,
                                            const char* name, int, void*, void*, void*, void*,
                                            int*) {
  Kernels::Get().Add(host_function, name);
}
FAKE_CUDART_API void __cudaRegisterVar(void**, char*, char*, const char*, int, size_t, int, int) {}
FAKE_CUDART_API char __cudaInitModule(void**) { return 0; }

FAKE_CUDART_API unsigned __cudaPushCallConfiguration(Size3 grid, Size3 block, size_t shared_bytes,
                                                     void* stream) {
  launch_call = {grid, block, shared_bytes, stream};
  return 0;
}

FAKE_CUDART_API int __cudaPopCallConfiguration(Size3* grid, Size3* block, size_t* shared_bytes,
                                               void* stream) {
  *grid = launch_call.grid;
  *block = launch_call.block;
  *shared_bytes = launch_call.shared_bytes;
  *static_cast<void**>(stream) = launch_call.stream;
  return 0;
}

FAKE_CUDART_API int cudaLaunchKernel(const void* function, Size3 grid, Size3 block,
                                     void** parameters, size_t shared_bytes, void* stream) {
  return Launch(function, grid, block, parameters, shared_bytes, stream);
}

FAKE_CUDART_API int cudaLaunchKernelExC(const LaunchConfig* config, const void* function,
                                        void** parameters) {
  return Launch(function, config->grid, config->block, parameters, config->shared_bytes,
                config->stream);
}

FAKE_CUDART_API int cudaGetFuncBySymbol(void** function, const void* symbol) {
  return Kernels::Get().Find(symbol, function);
}

FAKE_CUDART_API int cudaGetLastError() { return 0; }
FAKE_CUDART_API int cudaPeekAtLastError() { return 0; }

FAKE_CUDART_API const char* cudaGetErrorString(int error) {
  const char* text = nullptr;
  cuGetErrorString(error, &text);
  return text;
}

FAKE_CUDART_API const char* cudaGetErrorName(int error) {
  const char* name = nullptr;
  cuGetErrorName(error, &name);
  return name;
}

FAKE_CUDART_API int cudaGetDevice(int* device) {
  if (cuCtxGetDevice(device) != 0) *device = 0;  // before the first use of a device
  return 0;
}

FAKE_CUDART_API int cudaSetDevice(int device) {
  cuInit(0);
  void* context = nullptr;
  const int result = cuDevicePrimaryCtxRetain(&context, device);
  return result != 0 ? result : cuCtxSetCurrent(context);
}

FAKE_CUDART_API int cudaGetDeviceCount(int* count) {
  cuInit(0);
  return cuDeviceGetCount(count);
}

FAKE_CUDART_API int cudaDriverGetVersion(int* version) {
  *version = kVersion;
  return 0;
}

FAKE_CUDART_API int cudaRuntimeGetVersion(int* version) {
  *version = kVersion;
  return 0;
}

FAKE_CUDART_API int cudaDeviceGetAttribute(int* value, int attribute, int device) {
  return cuDeviceGetAttribute(value, attribute, device);
}

// The offsets are those of cudaDeviceProp in CUDA 12; the size is at least that of 12.0.
FAKE_CUDART_API int cudaGetDeviceProperties_v2(void* properties, int device) {
  std::memset(properties, 0, 1032);
  size_t memory = 0;
  cuDeviceTotalMem_v2(&memory, device);
  std::strcpy(static_cast<char*>(properties), "Fake GPU");
  Put(properties, 288, memory);                // totalGlobalMem
  Put(properties, 296, size_t{49152});         // sharedMemPerBlock
  Put(properties, 304, 65536);                 // regsPerBlock
  Put(properties, 308, 32);                    // warpSize
  Put(properties, 312, size_t{2147483647});    // memPitch
  Put(properties, 320, Attribute(1, device));  // maxThreadsPerBlock
  for (int i = 0; i < 3; ++i) {
    Put(properties, 324 + 4 * i, Attribute(2 + i, device));  // maxThreadsDim
    Put(properties, 336 + 4 * i, Attribute(5 + i, device));  // maxGridSize
  }
  Put(properties, 348, Attribute(13, device));  // clockRate
  Put(properties, 352, size_t{65536});          // totalConstMem
  Put(properties, 360, Attribute(75, device));  // major
  Put(properties, 364, Attribute(76, device));  // minor
  Put(properties, 388, Attribute(16, device));  // multiProcessorCount
  Put(properties, 624, Attribute(39, device));  // maxThreadsPerMultiProcessor
  return 0;
}

// cudaFuncAttributes: maxThreadsPerBlock is its seventh int.
FAKE_CUDART_API int cudaFuncGetAttributes(void* attributes, const void*) {
  std::memset(attributes, 0, 128);
  Put(attributes, 6 * sizeof(int), 1024);
  return 0;
}

FAKE_CUDART_API int cudaFuncSetAttribute(const void*, int, int) { return 0; }
FAKE_CUDART_API int cudaFuncSetCacheConfig(const void*, int) { return 0; }

FAKE_CUDART_API int cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, const void*, int,
                                                                  size_t) {
  *blocks = 2;
  return 0;
}

FAKE_CUDART_API int cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int* blocks, const void*,
                                                                           int, size_t, unsigned) {
  *blocks = 2;
  return 0;
}

FAKE_CUDART_API int cudaMemcpyAsync(void* to, const void* from, size_t bytes, int, void* stream) {
  return cuMemcpyAsync(reinterpret_cast<unsigned long long>(to),
                       reinterpret_cast<unsigned long long>(from), bytes, stream);
}

FAKE_CUDART_API int cudaMemsetAsync(void* to, int value, size_t bytes, void* stream) {
  return cuMemsetD8Async(reinterpret_cast<unsigned long long>(to),
                         static_cast<unsigned char>(value), bytes, stream);
}

FAKE_CUDART_API int cudaStreamQuery(void* stream) { return cuStreamQuery(stream); }
FAKE_CUDART_API int cudaStreamSynchronize(void* stream) { return cuStreamSynchronize(stream); }
FAKE_CUDART_API int cudaDeviceSynchronize() { return cuCtxSynchronize(); }
