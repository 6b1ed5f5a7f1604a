// How the fake CUDA driver ends a program that has made a mistake. Each case runs in a child of its
// own, which starts the streams.

#include <signal.h>

#include <functional>
#include <string>

#include "tests/cc/death.h"
#include "tests/cc/test.h"
#include "tests/fakes/cuda/driver_calls.h"
#include "tests/fakes/cuda/fake_cuda.h"

namespace tfring::testing::fake_cuda_death_test {
namespace {

using ::tfring::testing::AbortMessage;

// What a child writes that has a context and 8 bytes of device memory.
std::string MessageOf(const std::function<void(unsigned long long there, void* stream)>& body) {
  return AbortMessage([&] {
    void *context = nullptr, *stream = nullptr;
    unsigned long long there = 0;
    CU(cuInit)(0);
    CU(cuDevicePrimaryCtxRetain)(&context, 0);
    CU(cuCtxSetCurrent)(context);
    CU(cuStreamCreateWithPriority)(&stream, 1, 0);
    CU(cuMemAlloc_v2)(&there, 8);
    body(there, stream);
  });
}

void* Pinned() {
  void* data = nullptr;
  CU(cuMemHostAlloc)(&data, 8, 0);
  return data;
}

}  // namespace

TEST(TheHostCannotTouchDeviceMemory) {
  fake_cuda::Library();
  for (const bool freed : {false, true}) {
    const std::string message = MessageOf([&](unsigned long long there, void*) {
      if (freed) CU(cuMemFree_v2)(there);
      signal(SIGSEGV, [](int) { abort(); });
      fprintf(stderr, "reading\n");
      fprintf(stderr, "read %d\n", *reinterpret_cast<volatile int*>(there));
    });
    EXPECT_EQ(message, "reading\n");
  }
}

TEST(FreedMemoryIsNotUsed) {
  EXPECT_CONTAINS(MessageOf([](unsigned long long there, void* stream) {
                    CU(cuMemFree_v2)(there);
                    CU(cuMemsetD8Async)(there, 0, 8, stream);
                  }),
                  "has been freed");
  EXPECT_CONTAINS(MessageOf([](unsigned long long there, void* stream) {
                    void* data = Pinned();
                    CU(FakeCudaSet)("hold", 1);
                    CU(cuMemcpyHtoDAsync_v2)(there, data, 8, stream);
                    CU(cuMemFree_v2)(there);
                    CU(FakeCudaSet)("hold", 0);
                    CU(cuStreamSynchronize)(stream);
                  }),
                  "a write of 8 bytes");
  EXPECT_CONTAINS(MessageOf([](unsigned long long there, void* stream) {
                    void* data = Pinned();
                    CU(FakeCudaSet)("hold", 1);
                    CU(cuMemcpyDtoHAsync_v2)(data, there, 8, stream);
                    CU(cuMemFreeHost)(data);
                    CU(FakeCudaSet)("hold", 0);
                    CU(cuStreamSynchronize)(stream);
                  }),
                  "this pinned memory has been freed");
  EXPECT_CONTAINS(MessageOf([](unsigned long long there, void*) {
                    CU(cuMemFree_v2)(there);
                    CU(cuMemFree_v2)(there);
                  }),
                  "is freed twice");
}

TEST(FreeWaitsIfItIsToldTo) {
  EXPECT_EQ(MessageOf([](unsigned long long there, void* stream) {
              void* data = Pinned();
              CU(FakeCudaSet)("free_waits", 1);
              CU(FakeCudaSet)("delay_us", 20000);
              CU(cuMemcpyDtoHAsync_v2)(data, there, 8, stream);
              CU(cuMemFree_v2)(there);
              CU(cuStreamSynchronize)(stream);
            }),
            "");
}

TEST(MemoryEndsWhereItEnds) {
  EXPECT_CONTAINS(MessageOf([](unsigned long long there, void* stream) {
                    CU(cuMemsetD8Async)(there + 4, 0, 5, stream);
                  }),
                  "reaches beyond its device memory (8 bytes at");
  EXPECT_CONTAINS(MessageOf([](unsigned long long there, void*) { CU(FakeCudaView)(there, 9); }),
                  "reaches beyond its device memory");
}

TEST(DestroyedHandlesAreNotUsed) {
  EXPECT_CONTAINS(MessageOf([](unsigned long long, void* stream) {
                    CU(cuStreamDestroy_v2)(stream);
                    CU(cuStreamQuery)(stream);
                  }),
                  "cuStreamQuery of stream");
  EXPECT_CONTAINS(MessageOf([](unsigned long long, void* stream) {
                    void* event = nullptr;
                    CU(cuEventCreate)(&event, 0);
                    CU(cuEventDestroy_v2)(event);
                    CU(cuStreamWaitEvent)(stream, event, 0);
                  }),
                  "which has been destroyed");
}

TEST(UnknownNamesAreTold) {
  EXPECT_CONTAINS(MessageOf([](unsigned long long, void*) { CU(FakeCudaSet)("speed", 1); }),
                  "there is no setting \"speed\"; there are: seed, delay_us");
  EXPECT_CONTAINS(MessageOf([](unsigned long long, void*) { CU(FakeCudaCount)("speed"); }),
                  "there is no counter \"speed\"");
  EXPECT_CONTAINS(MessageOf([](unsigned long long, void*) { CU(FakeCudaInject)("speed", 1); }),
                  "there is no fault \"speed\"");
}

TEST(AKernelsParametersHaveSizes) {
  EXPECT_CONTAINS(MessageOf([](unsigned long long, void* stream) {
                    void* function = nullptr;
                    CU(FakeCudaRegisterKernel)("unsized", [](void**, unsigned, unsigned) {});
                    CU(cuModuleGetFunction)(&function, nullptr, "unsized");
                    CU(cuLaunchKernel)(function, 1, 1, 1, 1, 1, 1, 0, stream, nullptr, nullptr);
                  }),
                  "kernel unsized has a twin");
}
}  // namespace tfring::testing::fake_cuda_death_test
