#include "ops/bindings/single_runtime.h"

#include <dlfcn.h>
#include <link.h>

#include <climits>
#include <cstdlib>
#include <vector>

#include "ops/runtime/process/process_runtime.h"

namespace tfring {
namespace {

constexpr char kRuntimeName[] = "libtfring_runtime.so";

std::string RealPath(const char* path) {
  char buffer[PATH_MAX];
  return realpath(path, buffer) != nullptr ? buffer : path;
}

std::string Folder(const std::string& path) {
  const size_t slash = path.rfind('/');
  return slash == std::string::npos ? "." : path.substr(0, slash);
}

std::string PathOf(const void* address) {
  Dl_info info = {};
  if (dladdr(address, &info) == 0 || info.dli_fname == nullptr) return "";
  return RealPath(info.dli_fname);
}

int CollectRuntimes(dl_phdr_info* info, size_t, void* found) {
  const std::string path = info->dlpi_name == nullptr ? "" : info->dlpi_name;
  if (path.substr(path.rfind('/') + 1) == kRuntimeName) {
    static_cast<std::vector<std::string>*>(found)->push_back(RealPath(path.c_str()));
  }
  return 0;
}

}  // namespace

std::string RuntimePath() { return PathOf(reinterpret_cast<const void*>(&ProcessRuntime::Get)); }

std::string CheckSingleRuntime() {
  const std::string own = PathOf(reinterpret_cast<const void*>(&CheckSingleRuntime));
  const std::string runtime = RuntimePath();
  const std::string advice =
      "; one process can use one tfring installation: remove the other one from sys.path and "
      "LD_PRELOAD, and check TFRING_X_LIB_DIR";
  if (Folder(own) != Folder(runtime)) {
    return "the binding " + own + " uses the runtime " + runtime +
           " of another tfring installation, which was loaded before" + advice;
  }
  std::vector<std::string> runtimes;
  dl_iterate_phdr(&CollectRuntimes, &runtimes);
  for (const std::string& other : runtimes) {
    if (other != runtime) {
      return "two copies of the tfring runtime are loaded, " + runtime + " and " + other + advice;
    }
  }
  return "";
}

}  // namespace tfring
