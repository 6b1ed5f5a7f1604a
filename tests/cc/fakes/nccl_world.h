#ifndef TFRING_TESTS_CC_FAKES_NCCL_WORLD_H_
#define TFRING_TESTS_CC_FAKES_NCCL_WORLD_H_

#include <cstddef>
#include <functional>
#include <string>
#include <vector>

#include "tests/fakes/nccl/nccl_api.h"

// Ranks that call the fake NCCL directly, as threads of this process or one in each of several,
// each on its own GPU of the fake driver.
namespace tfring::testing {

// The functions of the fake NCCL and of the fake driver, opened once by path.
struct FakeNccl {
  static const FakeNccl& Get();

  ncclResult_t (*GetVersion)(int*);
  ncclResult_t (*GetUniqueId)(ncclUniqueId*);
  ncclResult_t (*CommInitRankConfig)(ncclComm_t*, int, ncclUniqueId, int, ncclConfig_t*);
  ncclResult_t (*CommFinalize)(ncclComm_t);
  ncclResult_t (*CommDestroy)(ncclComm_t);
  ncclResult_t (*CommAbort)(ncclComm_t);
  ncclResult_t (*CommGetAsyncError)(ncclComm_t, ncclResult_t*);
  const char* (*GetLastError)(ncclComm_t);
  ncclResult_t (*CommUserRank)(ncclComm_t, int*);
  ncclResult_t (*GroupStart)();
  ncclResult_t (*GroupEnd)();
  ncclResult_t (*AllReduce)(const void*, void*, size_t, ncclDataType_t, ncclRedOp_t, ncclComm_t,
                            void*);
  ncclResult_t (*Reduce)(const void*, void*, size_t, ncclDataType_t, ncclRedOp_t, int, ncclComm_t,
                         void*);
  ncclResult_t (*ReduceScatter)(const void*, void*, size_t, ncclDataType_t, ncclRedOp_t, ncclComm_t,
                                void*);
  ncclResult_t (*Broadcast)(const void*, void*, size_t, ncclDataType_t, int, ncclComm_t, void*);
  ncclResult_t (*AllGather)(const void*, void*, size_t, ncclDataType_t, ncclComm_t, void*);
  ncclResult_t (*Send)(const void*, size_t, ncclDataType_t, int, ncclComm_t, void*);
  ncclResult_t (*Recv)(void*, size_t, ncclDataType_t, int, ncclComm_t, void*);
  void (*Set)(const char*, long);
  void (*Reset)();
  long (*Count)(const char*);
};

// A configuration as NCCL_CONFIG_INITIALIZER makes it.
ncclConfig_t NcclConfig(bool blocking);

// One rank: a GPU, a stream, memory. Used by one thread.
class GpuRank {
 public:
  // `device`: of the fake driver's GPUs.
  GpuRank(int rank, int nranks, int device);
  ~GpuRank();
  GpuRank(const GpuRank&) = delete;
  GpuRank& operator=(const GpuRank&) = delete;

  ncclResult_t Init(const ncclUniqueId& id, bool blocking);
  // Polls until the communicator is through with what it was asked for.
  ncclResult_t Poll();
  // Whether the stream becomes idle within some seconds.
  bool Idle(int seconds = 20) const;

  void* Allocate(size_t bytes);
  void* Put(const void* data, size_t bytes);
  void Get(const void* from, void* to, size_t bytes) const;
  template <typename T>
  T* Put(const std::vector<T>& data) {
    return static_cast<T*>(Put(data.data(), data.size() * sizeof(T)));
  }
  template <typename T>
  std::vector<T> Get(const void* from, size_t count) const {
    std::vector<T> data(count);
    Get(from, data.data(), count * sizeof(T));
    return data;
  }
  void* NewStream();

  const int rank;
  const int nranks;
  void* stream = nullptr;
  ncclComm_t comm = nullptr;

 private:
  std::vector<void*> memory_;
  std::vector<void*> streams_;
};

// Runs body on `n` ranks, each with a communicator of all; ends with destroy, if body left it.
void RunNcclRanks(int n, bool blocking, const std::function<void(GpuRank&)>& body);
// Without a communicator.
void RunGpuRanks(int n, const std::function<void(GpuRank&)>& body);

}  // namespace tfring::testing

#endif  // TFRING_TESTS_CC_FAKES_NCCL_WORLD_H_
