// What the fake CUDA driver promises in tests/fakes/cuda/fake_cuda.h, but for what aborts.

#include "tests/fakes/cuda/fake_cuda.h"

#include <atomic>
#include <chrono>
#include <cstring>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "tests/cc/test.h"
#include "tests/fakes/cuda/driver_calls.h"

namespace tfring::testing::fake_cuda_test {
namespace {

constexpr int kNotReady = 600;
constexpr int kIllegalAddress = 700;
constexpr unsigned kNonBlocking = 1;

const FakeCudaApi& Fake() {
  static const FakeCudaApi api(fake_cuda::Library());
  return api;
}

// Two GPUs in their first state; the first is the calling thread's.
struct Gpu {
  Gpu() {
    Fake().Reset();
    Fake().Set("devices", 2);
    EXPECT_EQ(CU(cuInit)(0), 0);
    for (int i = 0; i < 2; ++i) EXPECT_EQ(CU(cuDevicePrimaryCtxRetain)(&contexts[i], i), 0);
    EXPECT_EQ(CU(cuCtxSetCurrent)(contexts[0]), 0);
    stream = NewStream();
    other = NewStream();
    EXPECT_EQ(CU(cuEventCreate)(&event, 2), 0);
  }
  ~Gpu() {
    Fake().Reset();
    EXPECT_EQ(CU(cuStreamDestroy_v2)(stream), 0);
    EXPECT_EQ(CU(cuStreamDestroy_v2)(other), 0);
    EXPECT_EQ(CU(cuEventDestroy_v2)(event), 0);
    for (unsigned long long address : memory) EXPECT_EQ(CU(cuMemFree_v2)(address), 0);
    for (void* data : pinned) EXPECT_EQ(CU(cuMemFreeHost)(data), 0);
    EXPECT_EQ(CU(cuCtxSetCurrent)(nullptr), 0);
  }

  static void* NewStream() {
    void* made = nullptr;
    EXPECT_EQ(CU(cuStreamCreateWithPriority)(&made, kNonBlocking, -5), 0);
    return made;
  }
  unsigned long long Allocate(size_t bytes) {
    memory.push_back(0);
    EXPECT_EQ(CU(cuMemAlloc_v2)(&memory.back(), bytes), 0);
    return memory.back();
  }
  template <typename T>
  T* Pinned(size_t count) {
    pinned.push_back(nullptr);
    EXPECT_EQ(CU(cuMemHostAlloc)(&pinned.back(), count * sizeof(T), 0), 0);
    return static_cast<T*>(pinned.back());
  }

  void* contexts[2] = {};
  void* stream = nullptr;
  void* other = nullptr;
  void* event = nullptr;
  std::vector<unsigned long long> memory;
  std::vector<void*> pinned;
};

// One bit per call of a host function or enqueued work.
void AddOne(void* counter) { ++*static_cast<std::atomic<int>*>(counter); }

}  // namespace

TEST(CopiesGoThereAndBack) {
  Gpu gpu;
  const unsigned long long there = gpu.Allocate(64), further = gpu.Allocate(64);
  auto* data = gpu.Pinned<int>(16);
  auto* back = gpu.Pinned<int>(16);
  for (int i = 0; i < 16; ++i) data[i] = i;
  EXPECT_EQ(CU(cuMemcpyHtoDAsync_v2)(there, data, 64, gpu.stream), 0);
  EXPECT_EQ(CU(cuMemcpyDtoDAsync_v2)(further, there, 64, gpu.stream), 0);
  EXPECT_EQ(CU(cuMemcpyDtoHAsync_v2)(back, further + 8, 56, gpu.stream), 0);
  EXPECT_EQ(CU(cuStreamSynchronize)(gpu.stream), 0);
  for (int i = 0; i < 14; ++i) EXPECT_EQ(back[i], i + 2);
  EXPECT_EQ(Fake().Count("h2d_bytes"), 64);
  EXPECT_EQ(Fake().Count("d2d_bytes"), 64);
  EXPECT_EQ(Fake().Count("d2h_copies"), 1);
  EXPECT_EQ(Fake().Count("d2h_bytes"), 56);
  EXPECT_EQ(Fake().Count("pageable_copies"), 0);
  EXPECT_EQ(CU(cuMemsetD32Async)(there, 7, 16, gpu.stream), 0);
  int plain[16] = {};
  EXPECT_EQ(CU(cuMemcpyDtoHAsync_v2)(plain, there, 64, gpu.stream), 0);  // waits: not pinned
  EXPECT_EQ(plain[15], 7);
  EXPECT_EQ(Fake().Count("pageable_copies"), 1);
}

TEST(NewMemoryIsPoisonedAndViewsSeeIt) {
  Gpu gpu;
  const unsigned long long there = gpu.Allocate(100);
  EXPECT_EQ(static_cast<unsigned char*>(Fake().View(there + 99, 1))[0], 0xA5);
  unsigned char* pinned = gpu.Pinned<unsigned char>(8);
  EXPECT_EQ(pinned[7], 0xA5);
  EXPECT_EQ(Fake().View(reinterpret_cast<unsigned long long>(pinned), 8), pinned);
  unsigned type = 0;
  EXPECT_EQ(CU(cuPointerGetAttribute)(&type, 2, there + 5), 0);
  EXPECT_EQ(type, 2u);
  EXPECT_EQ(CU(cuPointerGetAttribute)(&type, 2, reinterpret_cast<unsigned long long>(pinned)), 0);
  EXPECT_EQ(type, 1u);
  int plain = 0;
  EXPECT_EQ(CU(cuPointerGetAttribute)(&type, 2, reinterpret_cast<unsigned long long>(&plain)), 1);
}

TEST(AResultThatIsReadTooEarlyIsPoison) {
  Gpu gpu;
  const unsigned long long there = gpu.Allocate(4);
  auto* data = gpu.Pinned<unsigned>(1);
  *data = 0;
  EXPECT_EQ(CU(cuMemsetD32Async)(there, 9, 1, gpu.stream), 0);
  EXPECT_EQ(CU(cuStreamSynchronize)(gpu.stream), 0);
  Fake().Set("hold", 1);
  EXPECT_EQ(CU(cuMemcpyDtoHAsync_v2)(data, there, 4, gpu.stream), 0);
  EXPECT_EQ(*data, 0xC3C3C3C3u);
  EXPECT_EQ(CU(cuStreamQuery)(gpu.stream), kNotReady);
  Fake().Set("hold", 0);
  EXPECT_EQ(CU(cuStreamSynchronize)(gpu.stream), 0);
  EXPECT_EQ(*data, 9u);
}

TEST(WhatOtherWorkStillReadsIsNotPoisonedAtTheCall) {
  Gpu gpu;
  const unsigned long long first = gpu.Allocate(4), second = gpu.Allocate(4);
  EXPECT_EQ(CU(cuMemsetD32Async)(first, 1, 1, gpu.stream), 0);
  EXPECT_EQ(CU(cuStreamSynchronize)(gpu.stream), 0);
  Fake().Set("hold", 1);
  EXPECT_EQ(CU(cuMemcpyDtoDAsync_v2)(second, first, 4, gpu.stream), 0);
  EXPECT_EQ(CU(cuMemsetD32Async)(first, 2, 1, gpu.stream), 0);
  Fake().Set("hold", 0);
  EXPECT_EQ(CU(cuStreamSynchronize)(gpu.stream), 0);
  EXPECT_EQ(*static_cast<int*>(Fake().View(second, 4)), 1);
  EXPECT_EQ(*static_cast<int*>(Fake().View(first, 4)), 2);
}

TEST(StreamsWaitForEvents) {
  for (long seed = 1; seed <= 50; ++seed) {
    Gpu gpu;
    Fake().Set("seed", seed);
    const unsigned long long there = gpu.Allocate(4), copy = gpu.Allocate(4);
    EXPECT_EQ(CU(cuMemsetD32Async)(there, 5, 1, gpu.stream), 0);
    EXPECT_EQ(CU(cuEventRecord)(gpu.event, gpu.stream), 0);
    EXPECT_EQ(CU(cuStreamWaitEvent)(gpu.other, gpu.event, 0), 0);
    EXPECT_EQ(CU(cuMemcpyDtoDAsync_v2)(copy, there, 4, gpu.other), 0);
    // A later record does not change what the other stream waits for.
    EXPECT_EQ(CU(cuEventRecord)(gpu.event, gpu.stream), 0);
    EXPECT_EQ(CU(cuStreamSynchronize)(gpu.other), 0);
    EXPECT_EQ(*static_cast<int*>(Fake().View(copy, 4)), 5);
    EXPECT_EQ(CU(cuEventSynchronize)(gpu.event), 0);
    EXPECT_EQ(CU(cuEventQuery)(gpu.event), 0);
  }
}

TEST(AnEventThatWasNeverRecordedIsDone) {
  Gpu gpu;
  std::atomic<int> calls{0};
  EXPECT_EQ(CU(cuEventQuery)(gpu.event), 0);
  EXPECT_EQ(CU(cuEventSynchronize)(gpu.event), 0);
  EXPECT_EQ(CU(cuStreamWaitEvent)(gpu.stream, gpu.event, 0), 0);
  EXPECT_EQ(CU(cuLaunchHostFunc)(gpu.stream, AddOne, &calls), 0);
  EXPECT_EQ(CU(cuStreamSynchronize)(gpu.stream), 0);
  EXPECT_EQ(calls.load(), 1);
}

TEST(StreamsRunLateAndCallsReturnAtOnce) {
  Gpu gpu;
  Fake().Set("delay_us", 20000);
  const auto begin = std::chrono::steady_clock::now();
  std::atomic<int> calls{0};
  EXPECT_EQ(Fake().Enqueue(gpu.stream, AddOne, &calls), 0);
  EXPECT_EQ(CU(cuEventRecord)(gpu.event, gpu.stream), 0);
  EXPECT_EQ(CU(cuEventQuery)(gpu.event), kNotReady);
  EXPECT_EQ(calls.load(), 0);
  EXPECT_EQ(CU(cuEventSynchronize)(gpu.event), 0);
  EXPECT_EQ(calls.load(), 1);
  EXPECT_TRUE(std::chrono::steady_clock::now() - begin >= std::chrono::milliseconds(20));
}

TEST(DevicesHaveTheirOwnContextsAndUuids) {
  Gpu gpu;
  int count = 0, device = -1;
  EXPECT_EQ(CU(cuDeviceGetCount)(&count), 0);
  EXPECT_EQ(count, 2);
  std::set<std::string> uuids;
  for (long uuid : {0L, 0x1234L}) {
    Fake().Set("uuid", uuid);
    for (int i = 0; i < 2; ++i) {
      char bytes[16];
      EXPECT_EQ(CU(cuDeviceGetUuid_v2)(bytes, i), 0);
      uuids.insert(std::string(bytes, 16));
    }
  }
  EXPECT_EQ(uuids.size(), 4u);

  EXPECT_EQ(CU(cuCtxPushCurrent_v2)(gpu.contexts[1]), 0);
  EXPECT_EQ(CU(cuCtxGetDevice)(&device), 0);
  EXPECT_EQ(device, 1);
  void* second = Gpu::NewStream();
  void* popped = nullptr;
  EXPECT_EQ(CU(cuCtxPopCurrent_v2)(&popped), 0);
  EXPECT_EQ(popped, gpu.contexts[1]);
  EXPECT_EQ(CU(cuCtxGetDevice)(&device), 0);
  EXPECT_EQ(device, 0);
  void* context = nullptr;
  EXPECT_EQ(CU(cuStreamGetCtx)(second, &context), 0);
  EXPECT_EQ(context, gpu.contexts[1]);
  EXPECT_EQ(CU(cuEventRecord)(gpu.event, second), 400);  // of the other GPU
  EXPECT_EQ(CU(cuStreamDestroy_v2)(second), 0);
  std::thread([] {
    unsigned long long address = 0;
    EXPECT_EQ(CU(cuMemAlloc_v2)(&address, 8), 201);  // this thread has no context
  }).join();
}

TEST(KernelsRunTheirTwinsWithTheParametersOfTheLaunch) {
  Gpu gpu;
  const auto twin = [](void** parameters, unsigned grid, unsigned block) {
    auto* data = static_cast<int*>(
        Fake().View(*static_cast<unsigned long long*>(parameters[0]), sizeof(int)));
    *data = *static_cast<int*>(parameters[1]) + static_cast<int>(grid * block);
  };
  const size_t sizes[] = {sizeof(unsigned long long), sizeof(int)};
  Fake().RegisterKernel("add", twin);
  Fake().KernelParameters("add", sizes, 2);
  void *module = nullptr, *function = nullptr, *unknown = nullptr;
  EXPECT_EQ(CU(cuModuleLoadData)(&module, "image"), 0);
  EXPECT_EQ(CU(cuModuleGetFunction)(&function, module, "add"), 0);
  EXPECT_EQ(CU(cuModuleGetFunction)(&unknown, module, "of_tensorflow"), 0);
  unsigned long long there = gpu.Allocate(4);
  int value = 1;
  void* parameters[] = {&there, &value};
  Fake().Set("hold", 1);
  EXPECT_EQ(CU(cuLaunchKernel)(function, 4, 1, 1, 5, 1, 1, 0, gpu.stream, parameters, nullptr), 0);
  EXPECT_EQ(CU(cuLaunchKernel)(unknown, 4, 1, 1, 5, 1, 1, 0, gpu.stream, nullptr, nullptr), 0);
  value = 100;  // the launch has its own
  Fake().Set("hold", 0);
  EXPECT_EQ(CU(cuStreamSynchronize)(gpu.stream), 0);
  EXPECT_EQ(*static_cast<int*>(Fake().View(there, 4)), 21);
  EXPECT_EQ(Fake().Count("launches"), 2);
}

TEST(AHostFunctionMayNotCallCuda) {
  Gpu gpu;
  std::atomic<int> result{-1};
  const auto function = [](void* to) {
    int count = 0;
    *static_cast<std::atomic<int>*>(to) = CU(cuDeviceGetCount)(&count);
  };
  EXPECT_EQ(CU(cuLaunchHostFunc)(gpu.stream, function, &result), 0);
  EXPECT_EQ(CU(cuStreamSynchronize)(gpu.stream), 0);
  EXPECT_EQ(result.load(), 800);
  EXPECT_EQ(Fake().Count("host_functions"), 1);
}

TEST(AStickyErrorEndsEverythingOnItsGpu) {
  Gpu gpu;
  std::atomic<int> calls{0};
  EXPECT_EQ(CU(cuCtxPushCurrent_v2)(gpu.contexts[1]), 0);
  void* second = Gpu::NewStream();
  EXPECT_EQ(CU(cuCtxPopCurrent_v2)(nullptr), 0);
  const unsigned long long there = gpu.Allocate(4);
  Fake().Set("fault_device", 0);
  Fake().Inject("sticky", 3);
  for (int i = 0; i < 4; ++i) EXPECT_EQ(Fake().Enqueue(second, AddOne, &calls), 0);
  EXPECT_EQ(CU(cuStreamSynchronize)(second), 0);
  EXPECT_EQ(calls.load(), 4);
  Fake().Set("hold", 1);
  for (int i = 0; i < 2; ++i) EXPECT_EQ(Fake().Enqueue(gpu.stream, AddOne, &calls), 0);
  EXPECT_EQ(CU(cuLaunchHostFunc)(gpu.stream, AddOne, &calls), 0);  // the third
  EXPECT_EQ(CU(cuLaunchHostFunc)(gpu.stream, AddOne, &calls), 0);
  EXPECT_EQ(CU(cuEventRecord)(gpu.event, gpu.stream), 0);
  EXPECT_EQ(CU(cuStreamWaitEvent)(gpu.other, gpu.event, 0), 0);
  Fake().Set("hold", 0);
  EXPECT_EQ(CU(cuStreamSynchronize)(gpu.stream), kIllegalAddress);
  EXPECT_EQ(calls.load(), 6);
  EXPECT_EQ(CU(cuEventQuery)(gpu.event), kIllegalAddress);
  EXPECT_EQ(CU(cuEventSynchronize)(gpu.event), kIllegalAddress);
  EXPECT_EQ(CU(cuStreamQuery)(gpu.other), kIllegalAddress);
  EXPECT_EQ(CU(cuMemFree_v2)(there), kIllegalAddress);
  unsigned long long address = 0;
  EXPECT_EQ(CU(cuMemAlloc_v2)(&address, 8), kIllegalAddress);
  EXPECT_EQ(CU(cuStreamSynchronize)(second), 0);
  EXPECT_EQ(CU(cuStreamDestroy_v2)(second), 0);
}

TEST(HostFunctionsGetLost) {
  Gpu gpu;
  std::atomic<int> calls{0};
  Fake().Inject("lost_host_function", 2);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(CU(cuLaunchHostFunc)(gpu.stream, AddOne, &calls), 0);
  EXPECT_EQ(CU(cuStreamSynchronize)(gpu.stream), 0);
  EXPECT_EQ(calls.load(), 2);
}

TEST(MemoryRunsOut) {
  Gpu gpu;
  unsigned long long address = 0;
  void* data = nullptr;
  Fake().Inject("out_of_memory", 2);
  gpu.Allocate(8);
  EXPECT_EQ(CU(cuMemAlloc_v2)(&address, 8), 2);
  Fake().Inject("out_of_memory", 1);
  EXPECT_EQ(CU(cuMemHostAlloc)(&data, 8, 0), 2);
  Fake().Set("memory_mib", 1);
  EXPECT_EQ(CU(cuMemAlloc_v2)(&address, 1 << 20), 2);  // eight bytes are used already
  gpu.Allocate(1 << 19);
}

TEST(EventsAreSlowAndKernelsHang) {
  Gpu gpu;
  std::atomic<int> calls{0};
  Fake().Set("slow_event_us", 50000);
  Fake().Inject("slow_event", 1);
  EXPECT_EQ(Fake().Enqueue(gpu.stream, AddOne, &calls), 0);
  EXPECT_EQ(CU(cuEventRecord)(gpu.event, gpu.stream), 0);
  while (calls.load() == 0) std::this_thread::yield();
  EXPECT_EQ(CU(cuEventQuery)(gpu.event), kNotReady);
  EXPECT_EQ(CU(cuEventSynchronize)(gpu.event), 0);

  Fake().Inject("hang", 1);
  EXPECT_EQ(Fake().Enqueue(gpu.stream, AddOne, &calls), 0);
  EXPECT_EQ(CU(cuEventRecord)(gpu.event, gpu.stream), 0);
  EXPECT_EQ(CU(cuStreamWaitEvent)(gpu.other, gpu.event, 0), 0);
  EXPECT_EQ(Fake().Enqueue(gpu.other, AddOne, &calls), 0);
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  EXPECT_EQ(CU(cuEventQuery)(gpu.event), kNotReady);
  EXPECT_EQ(calls.load(), 1);
  Fake().Reset();  // the only thing that ends it
  EXPECT_EQ(CU(cuStreamSynchronize)(gpu.other), 0);
  EXPECT_EQ(calls.load(), 1);
}

TEST(WorkOfADestroyedStreamIsStillDone) {
  Gpu gpu;
  std::atomic<int> calls{0};
  void* stream = Gpu::NewStream();
  Fake().Set("hold", 1);
  EXPECT_EQ(Fake().Enqueue(stream, AddOne, &calls), 0);
  EXPECT_EQ(CU(cuEventRecord)(gpu.event, stream), 0);
  EXPECT_EQ(CU(cuStreamDestroy_v2)(stream), 0);
  Fake().Set("hold", 0);
  EXPECT_EQ(CU(cuEventSynchronize)(gpu.event), 0);
  EXPECT_EQ(calls.load(), 1);
}

TEST(NothingIsLeft) {
  EXPECT_EQ(Fake().Count("live_streams"), 0);
  EXPECT_EQ(Fake().Count("live_events"), 0);
  EXPECT_EQ(Fake().Count("live_allocations"), 0);
  EXPECT_EQ(Fake().Count("live_bytes"), 0);
  EXPECT_EQ(Fake().Count("live_pinned"), 0);
}
}  // namespace tfring::testing::fake_cuda_test
