#include "tests/fakes/nccl/driver.h"

#include <dlfcn.h>

#include <cstdlib>

#include "tests/fakes/nccl/settings.h"

namespace fake_nccl {
namespace {

struct Driver {
  int (*stream_get_context)(void*, void**) = nullptr;
  int (*push)(void*) = nullptr;
  int (*pop)(void**) = nullptr;
  int (*get_device)(int*) = nullptr;
  int (*get_uuid)(void*, int) = nullptr;
  int (*get_bus)(char*, int, int) = nullptr;
  void* (*view)(unsigned long long, size_t) = nullptr;
  int (*enqueue)(void*, void (*)(void*), void*) = nullptr;
};

// The driver may have been loaded with its names kept local, by any path: asked for by its SONAME,
// the loader gives the copy that is there.
void* Handle() {
  if (dlsym(RTLD_DEFAULT, "FakeCudaEnqueue") != nullptr) return RTLD_DEFAULT;
  return dlopen("libcuda.so.1", RTLD_NOLOAD | RTLD_LAZY);
}

template <typename Function>
void Find(void* handle, const char* name, Function** function) {
  *function = reinterpret_cast<Function*>(dlsym(handle, name));
  if (*function == nullptr) {
    Say("the driver libcuda.so.1 of this process lacks %s: it is not the fake one", name);
    std::abort();
  }
}

const Driver& TheDriver() {
  static const Driver driver = [] {
    void* handle = Handle();
    if (handle == nullptr && dlsym(RTLD_DEFAULT, "FakeCudaEnqueue") == nullptr) {
      Say("no fake libcuda.so.1 is loaded in this process");
      std::abort();
    }
    Driver found;
    Find(handle, "cuStreamGetCtx", &found.stream_get_context);
    Find(handle, "cuCtxPushCurrent_v2", &found.push);
    Find(handle, "cuCtxPopCurrent_v2", &found.pop);
    Find(handle, "cuCtxGetDevice", &found.get_device);
    Find(handle, "cuDeviceGetUuid_v2", &found.get_uuid);
    Find(handle, "cuDeviceGetPCIBusId", &found.get_bus);
    Find(handle, "FakeCudaView", &found.view);
    Find(handle, "FakeCudaEnqueue", &found.enqueue);
    return found;
  }();
  return driver;
}

}  // namespace

bool CurrentDevice(Device* device) {
  return TheDriver().get_device(&device->ordinal) == 0 &&
         TheDriver().get_uuid(device->uuid.data(), device->ordinal) == 0 &&
         TheDriver().get_bus(device->bus.data(), static_cast<int>(device->bus.size()),
                             device->ordinal) == 0;
}

bool DeviceOfStream(void* stream, int* ordinal) {
  const Driver& driver = TheDriver();
  if (stream == nullptr) return driver.get_device(ordinal) == 0;
  void* context = nullptr;
  if (driver.stream_get_context(stream, &context) != 0 || driver.push(context) != 0) return false;
  const bool found = driver.get_device(ordinal) == 0;
  driver.pop(&context);
  return found;
}

char* View(const void* address, size_t bytes) {
  return static_cast<char*>(TheDriver().view(reinterpret_cast<unsigned long long>(address), bytes));
}

bool Enqueue(void* stream, void (*work)(void*), void* argument) {
  return TheDriver().enqueue(stream, work, argument) == 0;
}

}  // namespace fake_nccl
