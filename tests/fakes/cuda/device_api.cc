// The driver API's functions about GPUs, contexts and errors.

#include <algorithm>
#include <cstdio>
#include <cstring>

#include "tests/fakes/cuda/device.h"
#include "tests/fakes/cuda/driver_types.h"
#include "tests/fakes/cuda/memory.h"
#include "tests/fakes/cuda/settings.h"

using fake_cuda::ContextStack;
using fake_cuda::Device;
using fake_cuda::Gate;
using fake_cuda::Get;
using fake_cuda::GetDevice;
using fake_cuda::Handle;
using fake_cuda::Result;
using fake_cuda::Setting;

namespace {

using fake_cuda::kSuccess;

// Gate, and whether a GPU of this number exists.
Result GateDevice(int device) {
  const Result result = Gate();
  if (result != kSuccess) return result;
  return device >= 0 && device < fake_cuda::Devices() ? kSuccess : fake_cuda::kInvalidDevice;
}

// An H100's numbers (CUdevice_attribute); what is not here is 0.
int Attribute(int attribute, int device) {
  const int capability = static_cast<int>(Get(Setting::kCapability));
  switch (attribute) {
    case 1:
      return 1024;  // MAX_THREADS_PER_BLOCK
    case 2:         // MAX_BLOCK_DIM_X
    case 3:
      return 1024;  // MAX_BLOCK_DIM_Y
    case 4:
      return 64;  // MAX_BLOCK_DIM_Z
    case 5:
      return 2147483647;  // MAX_GRID_DIM_X
    case 6:               // MAX_GRID_DIM_Y
    case 7:
      return 65535;  // MAX_GRID_DIM_Z
    case 8:
      return 49152;  // MAX_SHARED_MEMORY_PER_BLOCK
    case 10:
      return 32;  // WARP_SIZE
    case 12:
      return 65536;  // MAX_REGISTERS_PER_BLOCK
    case 13:
      return 1700000;  // CLOCK_RATE in kHz
    case 16:
      return 132;  // MULTIPROCESSOR_COUNT
    case 34:
      return device + 4;  // PCI_DEVICE_ID
    case 36:
      return 2600000;  // MEMORY_CLOCK_RATE in kHz
    case 37:
      return 5120;  // GLOBAL_MEMORY_BUS_WIDTH
    case 38:
      return 50 << 20;  // L2_CACHE_SIZE
    case 39:
      return 2048;  // MAX_THREADS_PER_MULTIPROCESSOR
    case 40:
      return 3;  // ASYNC_ENGINE_COUNT
    case 41:
      return 1;  // UNIFIED_ADDRESSING
    case 75:
      return capability / 10;
    case 76:
      return capability % 10;
    case 78:
      return 1;  // STREAM_PRIORITIES_SUPPORTED
    case 81:
      return 233472;  // MAX_SHARED_MEMORY_PER_MULTIPROCESSOR
    case 82:
      return 65536;  // MAX_REGISTERS_PER_MULTIPROCESSOR
    case 97:
      return 232448;  // MAX_SHARED_MEMORY_PER_BLOCK_OPTIN
    case 106:
      return 32;  // MAX_BLOCKS_PER_MULTIPROCESSOR
    default:
      return 0;
  }
}

}  // namespace

FAKE_CUDA_API Result cuInit(unsigned) {
  if (fake_cuda::Devices() == 0) return fake_cuda::kNoDevice;
  fake_cuda::Initialize();
  return kSuccess;
}

FAKE_CUDA_API Result cuDriverGetVersion(int* version) {
  *version = fake_cuda::kDriverVersion;
  return kSuccess;
}

FAKE_CUDA_API Result cuDeviceGetCount(int* count) {
  *count = fake_cuda::Devices();
  return Gate();
}

FAKE_CUDA_API Result cuDeviceGet(int* device, int number) {
  *device = number;
  return GateDevice(number);
}

FAKE_CUDA_API Result cuDeviceGetName(char* name, int bytes, int device) {
  const char* kind = Get(Setting::kMig) != 0 ? "Fake GPU MIG 1g.10gb" : "Fake GPU";
  std::snprintf(name, static_cast<size_t>(bytes), "%s", kind);
  return GateDevice(device);
}

// The bytes that `uuid` sets first, zeros, and the number of the GPU last.
FAKE_CUDA_API Result cuDeviceGetUuid_v2(void* uuid, int device) {
  unsigned char bytes[16] = {};
  const auto base = static_cast<unsigned long>(Get(Setting::kUuid));
  for (size_t i = 0; i < 8; ++i) bytes[i] = static_cast<unsigned char>(base >> (56 - 8 * i));
  bytes[14] = 0xFA;
  bytes[15] = static_cast<unsigned char>(device);
  std::memcpy(uuid, bytes, sizeof(bytes));
  return GateDevice(device);
}

FAKE_CUDA_API Result cuDeviceGetUuid(void* uuid, int device) {
  return cuDeviceGetUuid_v2(uuid, device);
}

FAKE_CUDA_API Result cuDeviceGetPCIBusId(char* text, int bytes, int device) {
  const int card = Get(Setting::kMig) != 0 ? 0 : device;
  std::snprintf(text, static_cast<size_t>(bytes), "%04lx:00:%02x.0",
                static_cast<unsigned long>(Get(Setting::kUuid)) & 0xffff,
                static_cast<unsigned>(Attribute(34, card)));
  return GateDevice(device);
}

FAKE_CUDA_API Result cuDeviceGetByPCIBusId(int* device, const char* text) {
  unsigned number = 0;
  if (std::sscanf(text, "%*x:%*x:%x", &number) != 1 || number < 4) return fake_cuda::kInvalidValue;
  *device = static_cast<int>(number) - 4;
  return GateDevice(*device);
}

FAKE_CUDA_API Result cuDeviceGetAttribute(int* value, int attribute, int device) {
  *value = Attribute(attribute, device);
  return GateDevice(device);
}

FAKE_CUDA_API Result cuDeviceComputeCapability(int* major, int* minor, int device) {
  *major = Attribute(75, device);
  *minor = Attribute(76, device);
  return GateDevice(device);
}

FAKE_CUDA_API Result cuDeviceTotalMem_v2(size_t* bytes, int device) {
  *bytes = fake_cuda::Memory::TotalBytes();
  return GateDevice(device);
}

FAKE_CUDA_API Result cuDeviceCanAccessPeer(int* can, int device, int peer) {
  *can = device != peer && Get(Setting::kPeerAccess) != 0;
  const Result result = GateDevice(device);
  return result != kSuccess ? result : GateDevice(peer);
}

FAKE_CUDA_API Result cuDevicePrimaryCtxRetain(Handle* context, int device) {
  const Result result = GateDevice(device);
  if (result != kSuccess) return result;
  *context = GetDevice(device).context();
  return GetDevice(device).error();
}

FAKE_CUDA_API Result cuDevicePrimaryCtxRelease_v2(int device) { return GateDevice(device); }

FAKE_CUDA_API Result cuDevicePrimaryCtxGetState(int device, unsigned* flags, int* active) {
  *flags = 0;
  *active = 1;
  return GateDevice(device);
}

FAKE_CUDA_API Result cuDevicePrimaryCtxSetFlags_v2(int device, unsigned) {
  return GateDevice(device);
}

FAKE_CUDA_API Result cuCtxGetCurrent(Handle* context) {
  *context = ContextStack().empty() ? nullptr : ContextStack().back();
  return Gate();
}

FAKE_CUDA_API Result cuCtxSetCurrent(Handle context) {
  const Result result = Gate();
  if (result != kSuccess) return result;
  if (context != nullptr && fake_cuda::DeviceOfContext(context) == nullptr) {
    return fake_cuda::kInvalidContext;
  }
  if (!ContextStack().empty()) ContextStack().pop_back();
  if (context != nullptr) ContextStack().push_back(context);
  return kSuccess;
}

FAKE_CUDA_API Result cuCtxPushCurrent_v2(Handle context) {
  const Result result = Gate();
  if (result != kSuccess) return result;
  if (fake_cuda::DeviceOfContext(context) == nullptr) return fake_cuda::kInvalidContext;
  ContextStack().push_back(context);
  return kSuccess;
}

FAKE_CUDA_API Result cuCtxPopCurrent_v2(Handle* context) {
  const Result result = Gate();
  if (result != kSuccess) return result;
  if (ContextStack().empty()) return fake_cuda::kInvalidContext;
  if (context != nullptr) *context = ContextStack().back();
  ContextStack().pop_back();
  return kSuccess;
}

FAKE_CUDA_API Result cuCtxGetDevice(int* number) {
  const Result result = Gate();
  if (result != kSuccess) return result;
  Device* device =
      ContextStack().empty() ? nullptr : fake_cuda::DeviceOfContext(ContextStack().back());
  if (device == nullptr) return fake_cuda::kInvalidContext;
  *number = device->number();
  return kSuccess;
}

FAKE_CUDA_API Result cuCtxGetApiVersion(Handle, unsigned* version) {
  *version = fake_cuda::kDriverVersion;
  return Gate();
}

FAKE_CUDA_API Result cuCtxGetStreamPriorityRange(int* least, int* greatest) {
  *least = 0;
  *greatest = -5;
  Device* device = nullptr;
  return Gate(&device);
}

FAKE_CUDA_API Result cuCtxGetSharedMemConfig(int* config) {
  *config = 0;
  return Gate();
}

FAKE_CUDA_API Result cuCtxEnablePeerAccess(Handle context, unsigned) {
  Device* device = nullptr;
  const Result result = Gate(&device);
  if (result != kSuccess) return result;
  if (fake_cuda::DeviceOfContext(context) == nullptr) return fake_cuda::kInvalidContext;
  return Get(Setting::kPeerAccess) != 0 ? kSuccess : fake_cuda::kInvalidDevice;
}

FAKE_CUDA_API Result cuCtxSynchronize() {
  Device* device = nullptr;
  const Result result = Gate(&device);
  if (result != kSuccess) return result;
  device->Synchronize();
  return device->error();
}

FAKE_CUDA_API Result cuGetErrorName(Result error, const char** name) {
  switch (error) {
    case kSuccess:
      *name = "CUDA_SUCCESS";
      break;
    case fake_cuda::kInvalidValue:
      *name = "CUDA_ERROR_INVALID_VALUE";
      break;
    case fake_cuda::kOutOfMemory:
      *name = "CUDA_ERROR_OUT_OF_MEMORY";
      break;
    case fake_cuda::kNotInitialized:
      *name = "CUDA_ERROR_NOT_INITIALIZED";
      break;
    case fake_cuda::kNoDevice:
      *name = "CUDA_ERROR_NO_DEVICE";
      break;
    case fake_cuda::kInvalidDevice:
      *name = "CUDA_ERROR_INVALID_DEVICE";
      break;
    case fake_cuda::kInvalidContext:
      *name = "CUDA_ERROR_INVALID_CONTEXT";
      break;
    case fake_cuda::kInvalidHandle:
      *name = "CUDA_ERROR_INVALID_HANDLE";
      break;
    case fake_cuda::kNotFound:
      *name = "CUDA_ERROR_NOT_FOUND";
      break;
    case fake_cuda::kNotReady:
      *name = "CUDA_ERROR_NOT_READY";
      break;
    case fake_cuda::kIllegalAddress:
      *name = "CUDA_ERROR_ILLEGAL_ADDRESS";
      break;
    case fake_cuda::kNotPermitted:
      *name = "CUDA_ERROR_NOT_PERMITTED";
      break;
    case fake_cuda::kNotSupported:
      *name = "CUDA_ERROR_NOT_SUPPORTED";
      break;
    default:
      *name = "CUDA_ERROR_UNKNOWN";
      break;
  }
  return kSuccess;
}

FAKE_CUDA_API Result cuGetErrorString(Result error, const char** text) {
  const Result result = cuGetErrorName(error, text);
  if (error == fake_cuda::kIllegalAddress) *text = "an illegal memory access was encountered";
  if (error == fake_cuda::kOutOfMemory) *text = "out of memory";
  return result;
}
