#ifndef TFRING_OPS_GPU_NCCL_NCCL_API_H_
#define TFRING_OPS_GPU_NCCL_NCCL_API_H_

#include <climits>
#include <cstddef>

// The part of NCCL's C interface that tfring uses, declared here because the build needs no NCCL.
// Layouts and numbers are those of NCCL 2.18; later versions accept them.
namespace tfring {

inline constexpr int kOldestNccl = 21800;        // 2.18.0
inline constexpr int kFirstToShareGpus = 23000;  // and to tell instances of a card apart

struct NcclCommHandle;  // only the pointer is used
using NcclComm = NcclCommHandle*;
using CudaStreamHandle = void*;  // a CUstream; NCCL calls it cudaStream_t

struct NcclUniqueId {
  char bytes[128];
};

enum class NcclResult : int {
  kSuccess = 0,
  kUnhandledCudaError = 1,
  kSystemError = 2,
  kInternalError = 3,
  kInvalidArgument = 4,
  kInvalidUsage = 5,
  kRemoteError = 6,
  kInProgress = 7,
};

enum class NcclType : int {
  kInt8 = 0,
  kUint8 = 1,
  kInt32 = 2,
  kInt64 = 4,
  kFloat16 = 6,
  kFloat32 = 7,
  kFloat64 = 8,
  kBfloat16 = 9,
};

enum class NcclOp : int { kSum = 0, kProd = 1, kMax = 2, kMin = 3 };

struct NcclConfig {
  size_t size = sizeof(NcclConfig);
  unsigned magic = 0xcafebeef;
  unsigned version = kOldestNccl;  // of this layout
  int blocking = INT_MIN;          // INT_MIN, null: NCCL decides
  int cga_cluster_size = INT_MIN;
  int min_ctas = INT_MIN;
  int max_ctas = INT_MIN;
  const char* net_name = nullptr;
  int split_share = INT_MIN;
};
static_assert(sizeof(NcclConfig) == 48, "ncclConfig_t of 2.18");

// The required functions of a library: X(name, parameters), for "nccl" + name.
#define TFRING_NCCL_FUNCTIONS(X)                                                                  \
  X(GetVersion, (int* version))                                                                   \
  X(GetUniqueId, (NcclUniqueId * id))                                                             \
  X(CommInitRankConfig, (NcclComm * comm, int size, NcclUniqueId id, int self, NcclConfig*))      \
  X(CommGetAsyncError, (NcclComm comm, NcclResult * error))                                       \
  X(CommFinalize, (NcclComm comm))                                                                \
  X(CommDestroy, (NcclComm comm))                                                                 \
  X(CommAbort, (NcclComm comm))                                                                   \
  X(GroupStart, ())                                                                               \
  X(GroupEnd, ())                                                                                 \
  X(AllReduce, (const void* from, void* to, size_t count, int type, int op, NcclComm comm,        \
                CudaStreamHandle stream))                                                         \
  X(Reduce, (const void* from, void* to, size_t count, int type, int op, int root, NcclComm comm, \
             CudaStreamHandle stream))                                                            \
  X(Broadcast, (const void* from, void* to, size_t count, int type, int root, NcclComm comm,      \
                CudaStreamHandle stream))                                                         \
  X(AllGather, (const void* from, void* to, size_t count_of_one, int type, NcclComm comm,         \
                CudaStreamHandle stream))                                                         \
  X(ReduceScatter, (const void* from, void* to, size_t count_of_one, int type, int op,            \
                    NcclComm comm, CudaStreamHandle stream))                                      \
  X(Send,                                                                                         \
    (const void* from, size_t count, int type, int peer, NcclComm comm, CudaStreamHandle stream)) \
  X(Recv, (void* to, size_t count, int type, int peer, NcclComm comm, CudaStreamHandle stream))

// Pointers to these functions, and to the two that return text.
struct NcclFunctions {
// NOLINTNEXTLINE(bugprone-macro-parentheses): a name and a list of parameters
#define TFRING_NCCL_POINTER(name, parameters) NcclResult(*name) parameters = nullptr;
  TFRING_NCCL_FUNCTIONS(TFRING_NCCL_POINTER)
#undef TFRING_NCCL_POINTER
  const char* (*GetErrorString)(NcclResult result) = nullptr;
  const char* (*GetLastError)(NcclComm comm) = nullptr;
};

}  // namespace tfring

#endif  // TFRING_OPS_GPU_NCCL_NCCL_API_H_
