#ifndef TFRING_TESTS_FAKES_NCCL_NCCL_API_H_
#define TFRING_TESTS_FAKES_NCCL_NCCL_API_H_

#include <climits>
#include <cstddef>

// What the fake implements of NCCL's interface: names, numbers and layouts are those of NCCL 2.18
// (later versions only add to them). Declared here anew, so that a mistake in the runtime's own
// declarations shows.
extern "C" {

struct ncclComm;
using ncclComm_t = ncclComm*;
using NcclStream = void*;  // a CUstream

struct ncclUniqueId {
  char internal[128];
};

enum ncclResult_t : int {
  ncclSuccess = 0,
  ncclUnhandledCudaError = 1,
  ncclSystemError = 2,
  ncclInternalError = 3,
  ncclInvalidArgument = 4,
  ncclInvalidUsage = 5,
  ncclRemoteError = 6,
  ncclInProgress = 7,
};

enum ncclDataType_t : int {
  ncclInt8 = 0,
  ncclUint8 = 1,
  ncclInt32 = 2,
  ncclUint32 = 3,
  ncclInt64 = 4,
  ncclUint64 = 5,
  ncclFloat16 = 6,
  ncclFloat32 = 7,
  ncclFloat64 = 8,
  ncclBfloat16 = 9,
};

using ncclRedOp_t = int;
constexpr ncclRedOp_t ncclSum = 0;
constexpr ncclRedOp_t ncclProd = 1;
constexpr ncclRedOp_t ncclMax = 2;
constexpr ncclRedOp_t ncclMin = 3;

constexpr int kUndefined = INT_MIN;
constexpr unsigned kConfigMagic = 0xcafebeef;
struct ncclConfig_t {
  size_t size;
  unsigned magic;
  unsigned version;
  int blocking;
  int cgaClusterSize;
  int minCTAs;
  int maxCTAs;
  const char* netName;
  int splitShare;
};

}  // extern "C"

#endif  // TFRING_TESTS_FAKES_NCCL_NCCL_API_H_
