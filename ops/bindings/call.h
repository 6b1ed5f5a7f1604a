#ifndef TFRING_OPS_BINDINGS_CALL_H_
#define TFRING_OPS_BINDINGS_CALL_H_

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "ops/runtime/base/status.h"
#include "ops/runtime/base/types.h"
#include "ops/runtime/process/process_runtime.h"
#include "ops/runtime/protocol/message/request.h"

namespace tfring {

struct FreeDeleter {
  void operator()(void* memory) const { std::free(memory); }
};
using Memory = std::unique_ptr<void, FreeDeleter>;

// Null when there is not enough memory.
Memory AllocateMemory(int64_t bytes);

// One collective of a single array, submitted from Python. It owns copies of the data, so that no
// thread of the runtime ever needs the GIL to let go of a Python object, and a caller may give up
// waiting at any time. Thread-safe; lives until the runtime and the Python handle both dropped it.
class Call : public std::enable_shared_from_this<Call> {
 public:
  // Where the result comes from.
  enum class Output {
    kNone,       // this rank gets none
    kInPlace,    // it has the shape of the input
    kAllocated,  // its shape comes with the plan
  };

  // Copies `bytes` from `input`, the data of the request's only shape, and submits. Never blocks.
  // Null: the call has no input.
  static std::shared_ptr<Call> Start(Request request, Output output, const void* input,
                                     int64_t bytes);

  // True when the call has ended.
  bool WaitFor(std::chrono::milliseconds limit);

  // The rest requires that WaitFor returned true.
  const Status& status() const { return status_; }
  const Shape& shape() const { return shape_; }
  const std::vector<int64_t>& values() const { return values_; }  // see LocalCall::announce
  Memory TakeResult() { return std::move(result_); }

 private:
  Call() = default;
  void Submit(Request request, Output output, Memory copy, int64_t bytes);
  Result<void*> AllocateResult(const std::string& name, const Shape& shape, int64_t element_bytes);
  void Finish(const Status& status);

  // Written by the runtime before it calls Finish, read by Python after it.
  Memory input_;
  Memory result_;
  Shape shape_;
  std::vector<int64_t> values_;
  Status status_;

  std::mutex mutex_;  // guards finished_
  std::condition_variable changed_;
  bool finished_ = false;
};

}  // namespace tfring

#endif  // TFRING_OPS_BINDINGS_CALL_H_
