// Waiting for a device without a thread that waits for it, on the fake driver.
#include "ops/gpu/cuda/device_waiter.h"

#include <chrono>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "ops/runtime/base/clock.h"
#include "tests/cc/gpu/cuda/fake_gpu.h"
#include "tests/cc/test.h"

namespace tfring::testing::device_waiter_test {
namespace {

std::shared_ptr<CudaDevice> Device(const Framework& framework) {
  auto driver = CudaDriver::Load(FakeDriver());
  return *CudaDevice::Of(*driver, framework.context());
}

void Work(CuStream stream) {
  EXPECT_EQ(Fake().Enqueue(stream, [](void*) {}, nullptr), kCudaSuccess);
}

struct Outcome {
  std::promise<DeviceOutcome> promise;
  std::future<DeviceOutcome> future = promise.get_future();

  DeviceWaiter::Then Then() {
    return [this](const DeviceOutcome& outcome) { promise.set_value(outcome); };
  }
  bool Here() const {
    return future.wait_for(std::chrono::seconds(0)) == std::future_status::ready;
  }
  DeviceOutcome Get() {
    if (future.wait_for(std::chrono::seconds(30)) != std::future_status::ready) {
      return {Internal("timed out"), false};
    }
    return future.get();
  }
};

TEST(TellsOfWorkOnceItIsDoneAndNotBefore) {
  Fake().Reset();
  Framework framework(0);
  DeviceWaiter waiter(Device(framework));
  Fake().Set("hold", 1);
  Outcome outcome;
  Work(framework.stream());
  waiter.After(framework.stream(), outcome.Then());
  std::this_thread::sleep_for(std::chrono::milliseconds(250));  // the watchdog asks meanwhile
  EXPECT_TRUE(!outcome.Here());
  Fake().Set("hold", 0);
  const DeviceOutcome got = outcome.Get();
  EXPECT_EQ(got.status.ToString(), OkStatus().ToString());
  EXPECT_TRUE(!got.in_use);
  EXPECT_EQ(Fake().Count("blocking_calls"), 0L);
}

TEST(KeepsTheOrderOfAStreamAndTheStreamsApart) {
  Fake().Reset();
  Fake().Set("seed", 7);
  Framework a(0);
  Framework b(0);
  std::vector<int> order;
  std::promise<void> all;
  Outcome other;
  {
    DeviceWaiter waiter(Device(a));
    Fake().Inject("hang", 1);
    Fake().Set("hang_us", 300 * 1000);
    Work(a.stream());
    for (int i = 0; i < 50; ++i) {
      Work(a.stream());
      waiter.After(a.stream(), [&order, &all, i](const DeviceOutcome& outcome) {
        EXPECT_TRUE(outcome.status.ok());
        order.push_back(i);
        if (i == 49) all.set_value();
      });
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    Work(b.stream());
    waiter.After(b.stream(), other.Then());
    EXPECT_TRUE(other.Get().status.ok());  // though the first stream hangs
    all.get_future().wait();
  }
  ASSERT_EQ(order.size(), size_t{50});
  for (int i = 0; i < 50; ++i) EXPECT_EQ(order[i], i);
}

TEST(ALostHostFunctionIsFoundByTheWatchdog) {
  Fake().Reset();
  Framework framework(0);
  DeviceWaiter waiter(Device(framework));
  Fake().Inject("lost_host_function", 1);
  Fake().Set("delay_us", 20 * 1000);
  Outcome outcome;
  Work(framework.stream());
  waiter.After(framework.stream(), outcome.Then());
  EXPECT_TRUE(outcome.Get().status.ok());
  EXPECT_TRUE(Fake().Count("event_queries") > 0);
}

TEST(AStickyErrorEndsAllWaitsWithATypedError) {
  Fake().Reset();
  Framework framework(0);
  auto device = Device(framework);
  {
    DeviceWaiter waiter(device);
    Fake().Set("delay_us", 5 * 1000);
    Fake().Inject("sticky", 2);
    Outcome outcomes[3];
    for (Outcome& outcome : outcomes) {
      Work(framework.stream());
      waiter.After(framework.stream(), outcome.Then());
    }
    for (int i = 1; i < 3; ++i) {
      const DeviceOutcome got = outcomes[i].Get();
      EXPECT_EQ(static_cast<int>(got.status.code()), static_cast<int>(StatusCode::kInternal));
      EXPECT_CONTAINS(got.status.message(), "CUDA_ERROR_ILLEGAL_ADDRESS (700)");
      EXPECT_CONTAINS(got.status.message(), device->uuid());
      EXPECT_TRUE(!got.in_use);
    }
    outcomes[0].Get();
    Outcome later;
    waiter.After(framework.stream(), later.Then());
    EXPECT_TRUE(!later.Get().status.ok());
  }
  EXPECT_TRUE(!device->broken().ok());
  Fake().Reset();
}

TEST(ADeviceThatHangsIsGivenUpAtTheLimitAndItsMemoryStaysInUse) {
  Fake().Reset();
  Framework framework(0);
  DeviceWaiter waiter(Device(framework));
  Fake().Inject("hang", 1);
  Fake().Set("hang_us", 3 * 1000 * 1000);
  Outcome outcome;
  Work(framework.stream());
  waiter.After(framework.stream(), outcome.Then());
  waiter.EndBy(MonotonicNow() + 50 * kMillisecond, Unavailable("rank 1 was lost"));
  const DeviceOutcome got = outcome.Get();
  EXPECT_EQ(got.status.ToString(), Unavailable("rank 1 was lost").ToString());
  EXPECT_TRUE(got.in_use);
  Outcome later;
  waiter.After(framework.stream(), later.Then());
  EXPECT_TRUE(later.Get().in_use);
}

TEST(SleepsWhileMoreIsOpened) {
  Fake().Reset();
  Framework framework(0);
  std::vector<Outcome> outcomes(50);
  DeviceWaiter waiter(Device(framework));
  Fake().Set("hold", 1);
  for (Outcome& outcome : outcomes) {
    Work(framework.stream());
    waiter.After(framework.stream(), outcome.Then());
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  EXPECT_TRUE(waiter.wakeups() < 25);  // once for the first, and each 100 ms
  Fake().Set("hold", 0);
  for (Outcome& outcome : outcomes) EXPECT_TRUE(outcome.Get().status.ok());
}

TEST(SleepsWhileNothingIsOpen) {
  Fake().Reset();
  Framework framework(0);
  DeviceWaiter waiter(Device(framework));
  Outcome outcome;
  Work(framework.stream());
  waiter.After(framework.stream(), outcome.Then());
  EXPECT_TRUE(outcome.Get().status.ok());
  std::this_thread::sleep_for(std::chrono::milliseconds(150));
  const int64_t before = waiter.wakeups();
  const long queries = Fake().Count("event_queries");
  std::this_thread::sleep_for(std::chrono::milliseconds(350));
  EXPECT_EQ(waiter.wakeups(), before);
  EXPECT_EQ(Fake().Count("event_queries"), queries);
}

}  // namespace
}  // namespace tfring::testing::device_waiter_test
