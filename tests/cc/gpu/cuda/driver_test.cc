// The table of driver functions, devices and streams, on the fake driver.
#include "ops/gpu/cuda/driver.h"

#include <string>
#include <vector>

#include "ops/gpu/cuda/pinned_memory.h"
#include "ops/gpu/cuda/stream.h"
#include "tests/cc/gpu/cuda/fake_gpu.h"
#include "tests/cc/test.h"

namespace tfring::testing::driver_test {
namespace {

std::shared_ptr<CudaStream> Wrap(CudaDevices* devices, const Framework& framework) {
  Result<std::shared_ptr<DeviceStream>> wrapped = devices->Wrap(framework.stream());
  EXPECT_EQ(wrapped.status().ToString(), OkStatus().ToString());
  return wrapped.ok() ? std::static_pointer_cast<CudaStream>(*wrapped) : nullptr;
}

TEST(ADriverThatIsMissingOrIncompleteIsOneSentence) {
  const Status missing = CudaDriver::Load("libnone_such.so.1").status();
  EXPECT_EQ(static_cast<int>(missing.code()), static_cast<int>(StatusCode::kUnavailable));
  EXPECT_CONTAINS(missing.message(), "libnone_such.so.1 cannot be loaded");
  const Status incomplete = CudaDriver::Load("libm.so.6").status();
  EXPECT_EQ(static_cast<int>(incomplete.code()), static_cast<int>(StatusCode::kUnavailable));
  EXPECT_CONTAINS(incomplete.message(), "has no cuInit");
  CudaDevices devices("libnone_such.so.1", DeviceRule());
  EXPECT_EQ(devices.Wrap(nullptr).status().message(), missing.message());
}

TEST(ErrorsHaveNameNumberAndType) {
  Cu();
  auto driver = CudaDriver::Load(FakeDriver());
  ASSERT_TRUE(driver.ok());
  EXPECT_TRUE((*driver)->Check(kCudaSuccess, "x").ok());
  const Status memory = (*driver)->Check(kCudaOutOfMemory, "allocating");
  EXPECT_EQ(static_cast<int>(memory.code()), static_cast<int>(StatusCode::kResourceExhausted));
  EXPECT_CONTAINS(memory.message(), "allocating failed: CUDA_ERROR_OUT_OF_MEMORY (2)");
  const Status address = (*driver)->Check(700, "copying");
  EXPECT_EQ(static_cast<int>(address.code()), static_cast<int>(StatusCode::kInternal));
  EXPECT_CONTAINS(address.message(), "start the job again");
  EXPECT_TRUE(CudaDriver::Sticky(700));
  EXPECT_TRUE(!CudaDriver::Sticky(kCudaOutOfMemory));
  EXPECT_TRUE(!CudaDriver::Sticky(kCudaNotReady));
}

TEST(ADeviceIsKnownByItsUuidAndSharedByItsStreams) {
  Framework first(0);
  Framework same(0);
  Framework other(1);
  CudaDevices devices(FakeDriver(), DeviceRule());
  const auto a = Wrap(&devices, first);
  const auto b = Wrap(&devices, same);
  const auto c = Wrap(&devices, other);
  EXPECT_TRUE(a->device() == b->device());
  EXPECT_TRUE(a->device() != c->device());
  EXPECT_TRUE(a->device()->uuid() != c->device()->uuid());
  EXPECT_EQ(a->device()->uuid().size(), size_t{40});
  EXPECT_EQ(a->device()->ordinal(), 0);
  EXPECT_EQ(c->device()->ordinal(), 1);
  EXPECT_EQ(static_cast<long>(a->device()->compute_capability()), Fake().Get("capability"));
  EXPECT_TRUE(a->device()->multiprocessors() > 0);
  EXPECT_TRUE(!a->device()->name().empty());
}

TEST(OnlyTheFirstDeviceOfARankRunsCollectives) {
  Framework own(1);
  Framework same(1);
  Framework other(0);
  CudaDevices devices(FakeDriver(), [](CollectiveKind, DataType, ReduceOp) { return true; });
  const auto runs = [&](const Framework& framework) {
    return Wrap(&devices, framework)
        ->RunsOnDevice(CollectiveKind::kAllreduce, DataType::kFloat32, ReduceOp::kSum);
  };
  EXPECT_TRUE(runs(own));
  EXPECT_TRUE(!runs(other));
  EXPECT_TRUE(runs(same));
}

TEST(ThreadsKeepTheContextThatTheyHad) {
  Framework mine(1);
  Framework theirs(0);
  CudaDevices devices(FakeDriver(), DeviceRule());
  ASSERT_EQ(Cu().CtxPushCurrent(mine.context()), kCudaSuccess);
  {
    const auto stream = Wrap(&devices, theirs);
    EXPECT_TRUE(stream->MarkReady().ok());
    EXPECT_TRUE(stream->AllocateScratch(100).ok());
    auto ours = stream->device()->MakeStream();
    ASSERT_TRUE(ours.ok());
    EXPECT_TRUE(stream->LetWait(*ours).ok());
    auto event = stream->device()->Record(*ours);
    ASSERT_TRUE(event.ok());
    stream->SetResults(*event);
    EXPECT_TRUE(stream->WaitForResults().ok());
  }
  CuDevice current = -1;
  EXPECT_EQ(Cu().CtxGetDevice(&current), kCudaSuccess);
  EXPECT_EQ(current, 1);
  CuContext popped = nullptr;
  EXPECT_EQ(Cu().CtxPopCurrent(&popped), kCudaSuccess);
  EXPECT_TRUE(popped == mine.context());
}

TEST(ANumberIsWrittenInOrderWithTheStream) {
  Framework framework(0);
  CudaDevices devices(FakeDriver(), DeviceRule());
  const auto stream = Wrap(&devices, framework);
  const CuDevicePtr memory = framework.Allocate(std::vector<char>(8, 1));
  auto* const number = reinterpret_cast<char*>(memory) + 4;
  EXPECT_TRUE(stream->Write(number, 5).ok());
  EXPECT_TRUE(stream->Write(number, -7).ok());
  const auto fetched = framework.Fetch(memory, 8);
  framework.Wait();
  EXPECT_TRUE(*fetched == std::vector<char>({1, 1, 1, 1, -7, -1, -1, -1}));
  framework.Free(memory);
}

TEST(OneEventIsMarkedAgainAndEventsAreUsedAgain) {
  Framework framework(0);
  CudaDevices devices(FakeDriver(), DeviceRule());
  EXPECT_TRUE(Wrap(&devices, framework)->MarkReady().ok());
  const long before = Fake().Count("live_events");
  for (int i = 0; i < 20; ++i) {
    const auto stream = Wrap(&devices, framework);
    EXPECT_TRUE(stream->MarkReady().ok());
    EXPECT_TRUE(stream->MarkReady().ok());
  }
  EXPECT_EQ(Fake().Count("live_events"), before);
}

TEST(PinnedMemoryIsUsedAgainAndFreedWhereItGetsTooMuch) {
  Framework framework(0);
  CudaDevices devices(FakeDriver(), DeviceRule());
  const long before = Fake().Count("live_pinned");
  {
    auto pool = std::make_shared<PinnedMemory>(Wrap(&devices, framework)->device(), 64 << 10);
    void* first = nullptr;
    {
      auto block = pool->Take(5000);
      ASSERT_TRUE(block.ok());
      first = block->get();
    }
    EXPECT_EQ(pool->allocated(), int64_t{8192});
    auto again = pool->Take(8192);
    ASSERT_TRUE(again.ok());
    EXPECT_TRUE(again->get() == first);
    auto large = pool->Take(60 << 10);  // beyond the limit, as the first one is in use
    ASSERT_TRUE(large.ok());
    EXPECT_EQ(pool->allocated(), int64_t{68 << 10});
    large->reset();
    auto other = pool->Take(20 << 10);  // the unused one makes room
    ASSERT_TRUE(other.ok());
    EXPECT_EQ(pool->allocated(), int64_t{28 << 10});
    EXPECT_EQ(Fake().Count("live_pinned") - before, 2L);
  }
  EXPECT_EQ(Fake().Count("live_pinned"), before);
}

TEST(PinnedMemoryThatRunsOutIsTriedAgainWithoutWhatIsUnused) {
  Framework framework(0);
  CudaDevices devices(FakeDriver(), DeviceRule());
  auto pool = std::make_shared<PinnedMemory>(Wrap(&devices, framework)->device(), 64 << 10);
  EXPECT_TRUE(pool->Take(5000).ok());
  Fake().Inject("out_of_memory", 1);
  EXPECT_TRUE(pool->Take(100).ok());
  EXPECT_EQ(pool->allocated(), int64_t{4096});
  auto used = pool->Take(100);
  Fake().Inject("out_of_memory", 1);
  const Status status = pool->Take(5000).status();
  EXPECT_EQ(static_cast<int>(status.code()), static_cast<int>(StatusCode::kResourceExhausted));
  EXPECT_CONTAINS(status.message(), "allocating 8192 bytes of pinned CPU memory failed");
}

}  // namespace
}  // namespace tfring::testing::driver_test
