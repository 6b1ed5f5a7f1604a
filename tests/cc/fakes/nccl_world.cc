#include "tests/cc/fakes/nccl_world.h"

#include <dlfcn.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <thread>

#include "tests/cc/test.h"

namespace tfring::testing {
namespace {

constexpr int kDevices = 4;
constexpr unsigned kNonBlockingStream = 1;

void* Open(const char* path) {
  void* handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) {
    std::fprintf(stderr, "%s\n", dlerror());
    std::abort();
  }
  return handle;
}

template <typename Function>
void Find(void* handle, const std::string& name, Function* function) {
  *function = reinterpret_cast<Function>(dlsym(handle, name.c_str()));
  if (*function == nullptr) {
    std::fprintf(stderr, "the library lacks %s\n", name.c_str());
    std::abort();
  }
}

// What of the driver a test needs to play the framework.
struct Driver {
  int (*init)(unsigned);
  int (*retain)(void**, int);
  int (*set_context)(void*);
  int (*new_stream)(void**, unsigned, int);
  int (*end_stream)(void*);
  int (*query)(void*);
  int (*synchronize)(void*);
  int (*allocate)(unsigned long long*, size_t);
  int (*release)(unsigned long long);
  int (*to_device)(unsigned long long, const void*, size_t);
  int (*to_host)(void*, unsigned long long, size_t);
  void (*set)(const char*, long);
};

const Driver& TheDriver() {
  static const Driver driver = [] {
    void* handle = Open(TFRING_FAKE_CUDA);
    Driver d;
    Find(handle, "cuInit", &d.init);
    Find(handle, "cuDevicePrimaryCtxRetain", &d.retain);
    Find(handle, "cuCtxSetCurrent", &d.set_context);
    Find(handle, "cuStreamCreateWithPriority", &d.new_stream);
    Find(handle, "cuStreamDestroy_v2", &d.end_stream);
    Find(handle, "cuStreamQuery", &d.query);
    Find(handle, "cuStreamSynchronize", &d.synchronize);
    Find(handle, "cuMemAlloc_v2", &d.allocate);
    Find(handle, "cuMemFree_v2", &d.release);
    Find(handle, "cuMemcpyHtoD_v2", &d.to_device);
    Find(handle, "cuMemcpyDtoH_v2", &d.to_host);
    Find(handle, "FakeCudaSet", &d.set);
    d.set("devices", kDevices);
    d.init(0);
    return d;
  }();
  return driver;
}

unsigned long long Address(const void* pointer) {
  return reinterpret_cast<unsigned long long>(pointer);
}

}  // namespace

const FakeNccl& FakeNccl::Get() {
  static const FakeNccl table = [] {
    TheDriver();
    void* handle = Open(TFRING_FAKE_NCCL);
    FakeNccl t;
    Find(handle, "ncclGetVersion", &t.GetVersion);
    Find(handle, "ncclGetUniqueId", &t.GetUniqueId);
    Find(handle, "ncclCommInitRankConfig", &t.CommInitRankConfig);
    Find(handle, "ncclCommFinalize", &t.CommFinalize);
    Find(handle, "ncclCommDestroy", &t.CommDestroy);
    Find(handle, "ncclCommAbort", &t.CommAbort);
    Find(handle, "ncclCommGetAsyncError", &t.CommGetAsyncError);
    Find(handle, "ncclGetLastError", &t.GetLastError);
    Find(handle, "ncclCommUserRank", &t.CommUserRank);
    Find(handle, "ncclGroupStart", &t.GroupStart);
    Find(handle, "ncclGroupEnd", &t.GroupEnd);
    Find(handle, "ncclAllReduce", &t.AllReduce);
    Find(handle, "ncclReduce", &t.Reduce);
    Find(handle, "ncclReduceScatter", &t.ReduceScatter);
    Find(handle, "ncclBroadcast", &t.Broadcast);
    Find(handle, "ncclAllGather", &t.AllGather);
    Find(handle, "ncclSend", &t.Send);
    Find(handle, "ncclRecv", &t.Recv);
    Find(handle, "FakeNcclSet", &t.Set);
    Find(handle, "FakeNcclReset", &t.Reset);
    Find(handle, "FakeNcclCount", &t.Count);
    return t;
  }();
  return table;
}

ncclConfig_t NcclConfig(bool blocking) {
  ncclConfig_t config{sizeof(ncclConfig_t), kConfigMagic, 21800,   kUndefined, kUndefined,
                      kUndefined,           kUndefined,   nullptr, kUndefined};
  config.blocking = blocking ? 1 : 0;
  return config;
}

GpuRank::GpuRank(int rank, int nranks, int device) : rank(rank), nranks(nranks) {
  void* context = nullptr;
  EXPECT_EQ(TheDriver().retain(&context, device), 0);
  EXPECT_EQ(TheDriver().set_context(context), 0);
  stream = NewStream();
}

GpuRank::~GpuRank() {
  const bool idle = Idle();
  EXPECT_TRUE(idle);
  for (void* address : memory_) TheDriver().release(Address(address));
  for (void* one : streams_) TheDriver().end_stream(one);
}

ncclResult_t GpuRank::Init(const ncclUniqueId& id, bool blocking) {
  ncclConfig_t config = NcclConfig(blocking);
  const ncclResult_t result = FakeNccl::Get().CommInitRankConfig(&comm, nranks, id, rank, &config);
  return result == ncclInProgress ? Poll() : result;
}

ncclResult_t GpuRank::Poll() {
  for (;;) {
    ncclResult_t error = ncclSuccess;
    const ncclResult_t result = FakeNccl::Get().CommGetAsyncError(comm, &error);
    if (result != ncclSuccess) return result;
    if (error != ncclInProgress) return error;
    std::this_thread::sleep_for(std::chrono::microseconds(200));
  }
}

bool GpuRank::Idle(int seconds) const {
  const auto limit = std::chrono::steady_clock::now() + std::chrono::seconds(seconds);
  for (void* one : streams_) {
    while (TheDriver().query(one) != 0) {
      if (std::chrono::steady_clock::now() > limit) return false;
      std::this_thread::sleep_for(std::chrono::microseconds(200));
    }
  }
  return true;
}

void* GpuRank::NewStream() {
  void* made = nullptr;
  EXPECT_EQ(TheDriver().new_stream(&made, kNonBlockingStream, 0), 0);
  streams_.push_back(made);
  return made;
}

void* GpuRank::Allocate(size_t bytes) {
  unsigned long long address = 0;
  EXPECT_EQ(TheDriver().allocate(&address, bytes == 0 ? 1 : bytes), 0);
  memory_.push_back(reinterpret_cast<void*>(address));
  return memory_.back();
}

void* GpuRank::Put(const void* data, size_t bytes) {
  void* to = Allocate(bytes);
  if (bytes > 0) EXPECT_EQ(TheDriver().to_device(Address(to), data, bytes), 0);
  return to;
}

void GpuRank::Get(const void* from, void* to, size_t bytes) const {
  EXPECT_TRUE(Idle());
  if (bytes > 0) EXPECT_EQ(TheDriver().to_host(to, Address(from), bytes), 0);
}

void RunGpuRanks(int n, const std::function<void(GpuRank&)>& body) {
  TheDriver();
  std::vector<std::thread> threads;
  for (int r = 0; r < n; ++r) {
    threads.emplace_back([&, r] {
      GpuRank rank(r, n, r);
      body(rank);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

void RunNcclRanks(int n, bool blocking, const std::function<void(GpuRank&)>& body) {
  const FakeNccl& nccl = FakeNccl::Get();
  ncclUniqueId id;
  EXPECT_EQ(nccl.GetUniqueId(&id), ncclSuccess);
  RunGpuRanks(n, [&](GpuRank& rank) {
    const ncclResult_t result = rank.Init(id, blocking);
    EXPECT_EQ(result, ncclSuccess);
    if (result != ncclSuccess) return;
    body(rank);
    if (rank.comm != nullptr) EXPECT_EQ(nccl.CommDestroy(rank.comm), ncclSuccess);
  });
}

}  // namespace tfring::testing
