// NCCL's functions for versions, ids, communicators and errors.
#include <cstring>
#include <string>

#include "tests/fakes/nccl/communicator.h"
#include "tests/fakes/nccl/driver.h"
#include "tests/fakes/nccl/nccl_api.h"
#include "tests/fakes/nccl/settings.h"

#define FAKE_NCCL_API extern "C" __attribute__((visibility("default")))

namespace fake_nccl {
namespace {

ncclResult_t Refuse(ncclResult_t error, const std::string& why) {
  SetLastError(why);
  return error;
}

// NCCL's own checks of a configuration: one filled with zeros is refused.
ncclResult_t CheckConfig(const ncclConfig_t& config) {
  if (config.magic != kConfigMagic || config.size < sizeof(ncclConfig_t) || config.size > 256) {
    return Refuse(ncclInvalidArgument, "ncclConfig_t argument not initialized");
  }
  const bool fine =
      (config.blocking == kUndefined || config.blocking == 0 || config.blocking == 1) &&
      (config.cgaClusterSize == kUndefined ||
       (config.cgaClusterSize >= 0 && config.cgaClusterSize <= 8)) &&
      (config.minCTAs == kUndefined || config.minCTAs > 0) &&
      (config.maxCTAs == kUndefined || config.maxCTAs > 0) &&
      (config.splitShare == kUndefined || config.splitShare == 0 || config.splitShare == 1);
  return fine ? ncclSuccess : Refuse(ncclInvalidArgument, "a field of ncclConfig_t is invalid");
}

ncclResult_t InitRank(ncclComm_t* out, int nranks, const ncclUniqueId& id, int rank,
                      bool blocking) {
  if (out == nullptr) return Refuse(ncclInvalidArgument, "comm is null");
  *out = nullptr;
  if (nranks < 1 || nranks > kMaxRanks || rank < 0 || rank >= nranks) {
    return Refuse(ncclInvalidArgument, "Invalid rank requested : " + std::to_string(rank) + "/" +
                                           std::to_string(nranks));
  }
  if (InGroup()) return Refuse(ncclInvalidUsage, "init in a group: the fake does not do that");
  Device device;
  if (!CurrentDevice(&device)) return Refuse(ncclUnhandledCudaError, "no current context");
  auto communicator = std::make_shared<Communicator>(id, nranks, rank, blocking, device);
  *out = Communicators::Add(communicator);
  const ncclResult_t result = communicator->Init();
  if (result == ncclSuccess || result == ncclInProgress) return result;
  Communicators::Remove(*out);
  *out = nullptr;
  return result;
}

}  // namespace
}  // namespace fake_nccl

using fake_nccl::Communicators;

FAKE_NCCL_API ncclResult_t ncclGetVersion(int* version) {
  if (version == nullptr) return ncclInvalidArgument;
  *version = static_cast<int>(fake_nccl::Setting("version"));
  return ncclSuccess;
}

FAKE_NCCL_API ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  if (id == nullptr) return ncclInvalidArgument;
  std::string why;
  if (fake_nccl::Rendezvous::MakeId(id, &why)) return ncclSuccess;
  return fake_nccl::Refuse(ncclSystemError, why);
}

FAKE_NCCL_API ncclResult_t ncclCommInitRankConfig(ncclComm_t* comm, int nranks, ncclUniqueId id,
                                                  int rank, ncclConfig_t* config) {
  if (config == nullptr) return fake_nccl::InitRank(comm, nranks, id, rank, true);
  const ncclResult_t checked = fake_nccl::CheckConfig(*config);
  if (checked != ncclSuccess) return checked;
  return fake_nccl::InitRank(comm, nranks, id, rank, config->blocking != 0);
}

FAKE_NCCL_API ncclResult_t ncclCommFinalize(ncclComm_t comm) {
  const auto found = Communicators::Find(comm);
  return found == nullptr ? ncclInvalidArgument : found->Finalize();
}

FAKE_NCCL_API ncclResult_t ncclCommDestroy(ncclComm_t comm) {
  if (comm == nullptr) return ncclSuccess;
  const auto found = Communicators::Find(comm);
  if (found == nullptr) return ncclInvalidArgument;
  const ncclResult_t result = found->Destroy();
  Communicators::Remove(comm);
  return result;
}

FAKE_NCCL_API ncclResult_t ncclCommAbort(ncclComm_t comm) {
  if (comm == nullptr) return ncclSuccess;
  const auto found = Communicators::Find(comm);
  if (found == nullptr) return ncclInvalidArgument;
  found->Abort();
  Communicators::Remove(comm);
  return ncclSuccess;
}

FAKE_NCCL_API ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* error) {
  const auto found = Communicators::Find(comm);
  if (found == nullptr || error == nullptr) return ncclInvalidArgument;
  return found->AsyncError(error);
}

FAKE_NCCL_API const char* ncclGetErrorString(ncclResult_t result) {
  switch (result) {
    case ncclSuccess:
      return "no error";
    case ncclUnhandledCudaError:
      return "unhandled cuda error (run with NCCL_DEBUG=INFO for details)";
    case ncclSystemError:
      return "unhandled system error (run with NCCL_DEBUG=INFO for details)";
    case ncclInternalError:
      return "internal error - please report this issue to the NCCL developers";
    case ncclInvalidArgument:
      return "invalid argument (run with NCCL_DEBUG=WARN for details)";
    case ncclInvalidUsage:
      return "invalid usage (run with NCCL_DEBUG=WARN for details)";
    case ncclRemoteError:
      return "remote process exited or there was a network error";
    case ncclInProgress:
      return "NCCL operation in progress";
  }
  return "unknown result code";
}

FAKE_NCCL_API const char* ncclGetLastError(ncclComm_t) {
  thread_local std::string text;  // valid until this thread asks again
  text = fake_nccl::LastError();
  return text.c_str();
}
