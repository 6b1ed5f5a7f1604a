#ifndef TFRING_TESTS_CC_PROCESS_FAKE_STREAM_H_
#define TFRING_TESTS_CC_PROCESS_FAKE_STREAM_H_

#include <cstdint>
#include <memory>
#include <string>

#include "ops/runtime/interfaces/device_stream.h"

namespace tfring {

// Says what it is told to, and counts. Its scratch memory is the host's.
struct FakeStream : DeviceStream {
  bool RunsOnDevice(CollectiveKind, DataType, ReduceOp) const override { return on_device; }
  Status MarkReady() override {
    ++marked;
    return ready;
  }
  Status WaitForResults() override { return OkStatus(); }
  Result<std::shared_ptr<void>> AllocateScratch(int64_t bytes) override {
    if (!has_scratch) return ResourceExhausted("the device is full");
    scratch = std::make_shared<std::string>(static_cast<size_t>(bytes), '\0');
    return std::shared_ptr<void>(scratch, scratch->data());
  }
  Status Write(void* memory, int32_t value) override {
    *static_cast<int32_t*>(memory) = value;
    return OkStatus();
  }

  bool on_device = true;
  bool has_scratch = true;
  Status ready;
  int marked = 0;
  std::shared_ptr<std::string> scratch;  // the last
};

}  // namespace tfring

#endif  // TFRING_TESTS_CC_PROCESS_FAKE_STREAM_H_
