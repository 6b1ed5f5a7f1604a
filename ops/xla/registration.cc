#include "ops/runtime/base/export.h"
#include "ops/xla/handlers.h"

namespace {

// Runs when the library is loaded, because XLA looks for a function at compile time.
const bool registered = tfring::RegisterCpuHandlers() && tfring::RegisterDeviceHandlers();

}  // namespace

// Returns whether XLA accepted the handlers. Python calls it through ctypes after loading.
extern "C" TFRING_EXPORT int TfringXlaRegistered() { return registered ? 1 : 0; }
