#include "ops/runtime/transport/mpi_library.h"

#include <dlfcn.h>

#include <string>

namespace tfring {
namespace {

std::string LoaderError(const std::string& path) {
  const char* error = dlerror();
  return error != nullptr ? error : path + " cannot be loaded";
}

}  // namespace

Result<const MpiFunctions*> LoadMpi(const MpiUse& use) {
  // Python loads an extension module, and with it MPI, with local symbols. This makes them global.
  if (dlopen(use.module.c_str(), RTLD_NOW | RTLD_NOLOAD | RTLD_GLOBAL) == nullptr) {
    return FailedPrecondition("no MPI is loaded by " + use.module + " (" + LoaderError(use.module) +
                              ")");
  }
  void* handle = dlopen(use.plugin.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) {
    return FailedPrecondition("the plug-in for the MPI of " + use.module +
                              " cannot be loaded: " + LoaderError(use.plugin));
  }
  const auto get = reinterpret_cast<GetMpiFunctions>(dlsym(handle, kMpiFunctionsSymbol));
  if (get == nullptr || get()->layout != kMpiFunctionsLayout) {
    return FailedPrecondition(use.plugin +
                              " belongs to another version of tfring: build both from "
                              "the same source");
  }
  return get();
}

}  // namespace tfring
