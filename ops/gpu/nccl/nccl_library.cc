#include "ops/gpu/nccl/nccl_library.h"

#include <dlfcn.h>
#include <link.h>

#include <cstdlib>
#include <mutex>
#include <utility>

#include "ops/gpu/cuda/expendable_thread.h"

namespace tfring {
namespace {

using Loaded = Result<std::shared_ptr<const NcclLibrary>>;

constexpr const char* kName = "libnccl.so.2";

std::string FileOf(void* handle, const std::string& name) {
  struct link_map* map = nullptr;
  if (dlinfo(handle, RTLD_DI_LINKMAP, static_cast<void*>(&map)) != 0 || map == nullptr) return name;
  return map->l_name != nullptr && map->l_name[0] != '\0' ? map->l_name : name;
}

// Parses the environment variable as NCCL does.
bool MayShareGpus(int version) {
  const char* text = std::getenv("NCCL_MULTI_RANK_GPU_ENABLE");
  return version >= kFirstToShareGpus && text != nullptr && std::strtoll(text, nullptr, 0) != 0;
}

template <typename Function>
void Find(void* handle, const char* name, Function* function, std::string* missing) {
  *function = reinterpret_cast<Function>(dlsym(handle, name));
  if (*function == nullptr) *missing += std::string(missing->empty() ? "" : ", ") + name;
}

std::string FindAll(void* handle, NcclFunctions* call) {
  std::string missing;
#define TFRING_NCCL_FIND(name, parameters) Find(handle, "nccl" #name, &call->name, &missing);
  TFRING_NCCL_FUNCTIONS(TFRING_NCCL_FIND)
#undef TFRING_NCCL_FIND
  Find(handle, "ncclGetErrorString", &call->GetErrorString, &missing);
  Find(handle, "ncclGetLastError", &call->GetLastError, &missing);
  return missing;
}

// Inspects an open library. Checks the version first: an old library also lacks functions, but the
// message should name its age.
Loaded Inspect(void* handle, const std::string& path) {
  auto library = std::make_shared<NcclLibrary>();
  library->path = path;
  const std::string missing = FindAll(handle, &library->call);
  if (library->call.GetVersion == nullptr) {
    return Unavailable(library->path + " is not NCCL: it has no ncclGetVersion");
  }
  const NcclResult result = library->call.GetVersion(&library->version);
  if (result != NcclResult::kSuccess) {
    return Unavailable(library->path + " cannot say its version: ncclGetVersion returned " +
                       std::to_string(static_cast<int>(result)));
  }
  const std::string what = "NCCL " + NcclVersionText(library->version) + " in " + library->path;
  if (library->version < kOldestNccl) {
    return Unavailable(what + " is too old: tfring needs " + NcclVersionText(kOldestNccl) +
                       " or newer (pip install nvidia-nccl-cu12)");
  }
  if (!missing.empty()) return Unavailable(what + " lacks " + missing);
  library->shares_gpu = MayShareGpus(library->version);
  return std::shared_ptr<const NcclLibrary>(std::move(library));
}

Loaded Open(const std::string& name) {
  void* handle = nullptr;
  std::string path;
  {
    // The loader's lock covers only the first of the two calls.
    static std::mutex mutex;
    std::lock_guard<std::mutex> lock(mutex);
    handle = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (handle == nullptr) {
      const char* error = dlerror();
      return Unavailable(error != nullptr ? error : name + " cannot be loaded");
    }
    path = FileOf(handle, name);
  }
  return Inspect(handle, path);
}

Loaded Search(const std::string& file) {
  Loaded found = Open(file.empty() ? kName : file);
  if (found.ok()) return found;
  if (!file.empty()) {
    return Unavailable("NCCL cannot be used: " + found.status().message() +
                       "; TFRING_NCCL_LIBRARY is the path of libnccl.so.2, and need not be set "
                       "where `pip install nvidia-nccl-cu12` has installed it");
  }
  return Unavailable("there is no NCCL that can be used (" + found.status().message() +
                     "); install it with `pip install nvidia-nccl-cu12`, or set "
                     "TFRING_NCCL_LIBRARY to the path of libnccl.so.2");
}

bool MayBeAPeer(NcclResult result) {
  return result == NcclResult::kRemoteError || result == NcclResult::kSystemError;
}

}  // namespace

Loaded LoadNccl(const std::string& file, Duration limit) {
  auto found = std::make_shared<Loaded>(Unavailable("not searched"));
  Status ended = RunWithin(limit, "loading NCCL" + (file.empty() ? "" : " from " + file),
                           [=] { *found = Search(file); });
  if (!ended.ok()) return ended;
  return *found;
}

std::string NcclVersionText(int version) {
  if (version < 10000) {  // up to 2.8
    return std::to_string(version / 1000) + "." + std::to_string(version / 100 % 10) + "." +
           std::to_string(version % 100);
  }
  return std::to_string(version / 10000) + "." + std::to_string(version / 100 % 100) + "." +
         std::to_string(version % 100);
}

Status NcclStatus(const NcclLibrary& library, NcclResult result, const std::string& what,
                  NcclComm comm) {
  if (result == NcclResult::kSuccess || result == NcclResult::kInProgress) return OkStatus();
  std::string text = "NCCL " + NcclVersionText(library.version) + ": " + what + ": ";
  const char* meaning = library.call.GetErrorString(result);
  text += meaning != nullptr ? meaning : "error " + std::to_string(static_cast<int>(result));
  const char* last = library.call.GetLastError(comm);
  if (last != nullptr && last[0] != '\0') text += std::string(" (") + last + ")";
  return MayBeAPeer(result) ? Unavailable(text) : Internal(text);
}

Result<NcclUniqueId> MakeNcclUniqueId(std::shared_ptr<const NcclLibrary> library, Duration limit) {
  struct Made {
    NcclUniqueId id = {};
    NcclResult result = NcclResult::kInternalError;
  };
  auto made = std::make_shared<Made>();
  TFRING_RETURN_IF_ERROR(RunWithin(limit, "ncclGetUniqueId of " + library->path, [library, made] {
    made->result = library->call.GetUniqueId(&made->id);
  }));
  Status status = NcclStatus(*library, made->result, "ncclGetUniqueId", nullptr);
  if (!status.ok()) return status;
  return made->id;
}

}  // namespace tfring
