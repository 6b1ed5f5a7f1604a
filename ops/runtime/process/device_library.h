#ifndef TFRING_OPS_RUNTIME_PROCESS_DEVICE_LIBRARY_H_
#define TFRING_OPS_RUNTIME_PROCESS_DEVICE_LIBRARY_H_

#include <memory>

#include "ops/runtime/base/export.h"
#include "ops/runtime/base/status.h"
#include "ops/runtime/interfaces/devices.h"

namespace tfring {

// Loads libtfring_cuda.so, which lies beside the runtime, once in a process. Unavailable says why
// it cannot be used: tfring was built without it, or it is of another build. Thread-safe.
TFRING_EXPORT Result<const DeviceFunctions*> LoadDeviceFunctions();

// Loads the library at the first use, so a process without tensors in device memory does not map
// it.
std::unique_ptr<Devices> LazyDevices(DeviceOptions options);

}  // namespace tfring

#endif  // TFRING_OPS_RUNTIME_PROCESS_DEVICE_LIBRARY_H_
