#include "ops/runtime/base/export.h"
#include "ops/xla/handlers.h"

namespace {

// When the library is loaded: XLA looks for a function when it compiles.
const bool registered = tfring::RegisterCpuHandlers() && tfring::RegisterDeviceHandlers();

}  // namespace

// Whether XLA accepted the handlers; Python calls it through ctypes after loading.
extern "C" TFRING_EXPORT int TfringXlaRegistered() { return registered ? 1 : 0; }
