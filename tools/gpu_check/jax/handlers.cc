// The custom calls of ops/xla and the runtime, for a program of JAX without TensorFlow. Instead of
// giving the handlers to XLA, this library keeps them for Python, which gives them to JAX.

#include "ops/xla/handlers.h"

#include <map>
#include <string>
#include <utility>

#include "ops/runtime/process/process_runtime.h"
#include "xla/ffi/api/ffi.h"

namespace tfring {
namespace {

// By target and platform.
std::map<std::pair<std::string, std::string>, XLA_FFI_Handler*> handlers;

XLA_FFI_Error* Keep(XLA_FFI_Handler_Register_Args* args) {
  const std::string target(args->name.ptr, args->name.len);
  handlers[{target, std::string(args->platform.ptr, args->platform.len)}] = args->bundle.execute;
  return nullptr;
}

}  // namespace
}  // namespace tfring

namespace xla::ffi {

// What TensorFlow's library has for ops/xla/custom_call.cc.
const XLA_FFI_Api* GetXlaFfiApi() {
  static const XLA_FFI_Api api = [] {
    XLA_FFI_Api made{};
    made.XLA_FFI_Handler_Register = tfring::Keep;
    return made;
  }();
  return &api;
}

}  // namespace xla::ffi

#define EXPORTED extern "C" __attribute__((visibility("default")))

// The handler of a custom call, null if there is none.
EXPORTED void* tfring_handler(const char* target, const char* platform) {
  static const bool registered = tfring::RegisterCpuHandlers() && tfring::RegisterDeviceHandlers();
  const auto found = tfring::handlers.find({target, platform});
  return registered && found != tfring::handlers.end() ? reinterpret_cast<void*>(found->second)
                                                       : nullptr;
}

// One of two ranks on this host, with a socket of each kind to the other one, and NCCL for their
// tensors. `settings`: names and paths by turns, and null. Returns "" or what went wrong.
EXPORTED const char* tfring_init(int rank, int control, int data, const char* const* settings) {
  tfring::InitOptions options;
  options.topology = {rank, 2, rank, 2, 0, 1};
  options.hosts = {"localhost", "localhost"};
  options.control_fds[1 - rank] = control;
  options.data_fds[1 - rank] = data;
  static std::string error;
  tfring::SettingValues values;
  for (; *settings != nullptr; settings += 2) values[settings[0]] = std::string(settings[1]);
  values["GPU_OPERATIONS"] = static_cast<int64_t>(tfring::GpuOperations::kNccl);
  tfring::Result<tfring::Config> config = tfring::MakeConfig(values);
  if (!config.ok()) {
    error = config.status().ToString();
    return error.c_str();
  }
  options.config = *config;
  error = tfring::ProcessRuntime::Get().Init(std::move(options)).ToString();
  return error.c_str();
}

EXPORTED void tfring_shutdown() { tfring::ProcessRuntime::Get().Shutdown(); }
