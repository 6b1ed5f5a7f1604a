#include "tests/cc/gpu/cuda/fake_gpu.h"

#include <dlfcn.h>

#include <chrono>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>

#include "ops/runtime/base/check.h"

namespace tfring::testing {
namespace {

void Must(CuResult result, const char* what) {
  TFRING_CHECK(result == kCudaSuccess) << what << " gave " << result;
}

class InContext {
 public:
  explicit InContext(CuContext context) { Must(Cu().CtxPushCurrent(context), "push"); }
  ~InContext() {
    CuContext popped = nullptr;
    Cu().CtxPopCurrent(&popped);
  }
};

}  // namespace

std::string FakeDriver() { return TFRING_FAKE_CUDA; }

const FakeCudaApi& Fake() {
  static const FakeCudaApi api(dlopen(TFRING_FAKE_CUDA, RTLD_NOW | RTLD_LOCAL));
  TFRING_CHECK(api.View != nullptr) << TFRING_FAKE_CUDA << " is not the fake driver";
  return api;
}

const CudaFunctions& Cu() {
  static const std::shared_ptr<const CudaDriver> driver = [] {
    Fake().Set("devices", 8);  // before the driver is started
    Result<std::shared_ptr<const CudaDriver>> loaded = CudaDriver::Load(TFRING_FAKE_CUDA);
    TFRING_CHECK(loaded.ok()) << loaded.status().ToString();
    return std::move(*loaded);
  }();
  return driver->cu();
}

Framework::Framework(int ordinal) {
  CuDevice device = 0;
  Must(Cu().DeviceGet(&device, ordinal), "device");
  Must(Cu().DevicePrimaryCtxRetain(&context_, device), "context");
  const InContext current(context_);
  Must(Cu().StreamCreateWithPriority(&stream_, 1, 0), "stream");
}

namespace {

using Work = std::function<void()>;

// What streams have not run yet. A stream that ends with an error drops its work: it stays here.
// Never destroyed, because streams run until the process ends.
struct OpenWorks {
  std::mutex mutex;  // guards `by_key`
  std::map<void*, std::unique_ptr<Work>> by_key;
};
OpenWorks& Open() {
  static OpenWorks* const works = new OpenWorks();
  return *works;
}

void* OpenWork(Work work) {
  auto owned = std::make_unique<Work>(std::move(work));
  void* const key = owned.get();
  std::lock_guard<std::mutex> lock(Open().mutex);
  Open().by_key.emplace(key, std::move(owned));
  return key;
}

void RunWork(void* key) {
  std::unique_ptr<Work> work;
  {
    std::lock_guard<std::mutex> lock(Open().mutex);
    const auto found = Open().by_key.find(key);
    work = std::move(found->second);
    Open().by_key.erase(found);
  }
  (*work)();
}

}  // namespace

CuDevicePtr Framework::Allocate(const std::vector<char>& fill) {
  if (fill.empty()) return 0;
  const InContext current(context_);
  CuDevicePtr memory = 0;
  Must(Cu().MemAlloc(&memory, fill.size()), "memory");
  // As a kernel of the framework would: late.
  Must(Fake().Enqueue(stream_, &RunWork, OpenWork([memory, fill] {
                        std::memcpy(Fake().View(memory, fill.size()), fill.data(), fill.size());
                      })),
       "kernel");
  return memory;
}

void Framework::Free(CuDevicePtr memory) {
  const InContext current(context_);
  if (memory != 0) Must(Cu().MemFree(memory), "free");
}

std::shared_ptr<std::vector<char>> Framework::Fetch(CuDevicePtr memory, size_t bytes) {
  auto result = std::make_shared<std::vector<char>>(bytes);
  if (bytes == 0) return result;
  const InContext current(context_);
  Must(Fake().Enqueue(stream_, &RunWork, OpenWork([memory, result] {
                        std::memcpy(result->data(), Fake().View(memory, result->size()),
                                    result->size());
                      })),
       "kernel");
  return result;
}

void Framework::Wait() {
  const InContext current(context_);
  CuEvent event = nullptr;
  Must(Cu().EventCreate(&event, 2), "event");
  Must(Cu().EventRecord(event, stream_), "record");
  while (Cu().EventQuery(event) == kCudaNotReady) {
    std::this_thread::sleep_for(std::chrono::microseconds(50));
  }
  Cu().EventDestroy(event);
}

}  // namespace tfring::testing
