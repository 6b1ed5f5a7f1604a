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

// Memory from malloc: a numpy array that takes it over frees it with free.
struct FreeDeleter {
  void operator()(void* memory) const { std::free(memory); }
};
using Memory = std::unique_ptr<void, FreeDeleter>;

// Null when there is not enough memory.
Memory AllocateMemory(int64_t bytes);

// One collective of at most one array, submitted from Python. It owns copies of the data, not
// Python objects, so the runtime's threads need no GIL and Python may stop waiting at any time.
// These threads write the result and then call Finish. Python may read the result after WaitFor has
// returned true. Lives until the runtime and the Python handle have dropped it.
class Call : public std::enable_shared_from_this<Call> {
 public:
  // The memory of the result.
  enum class Output {
    kNone,       // this rank gets no result
    kInPlace,    // shape of the input
    kAllocated,  // shape known when all ranks have sent their requests
  };

  // Copies `bytes` from `input`, which has the request's only shape, and submits the call. `input`
  // is null if the call has none. Does not wait for other ranks.
  static std::shared_ptr<Call> Start(Request request, Output output, const void* input,
                                     int64_t bytes);

  // Waits at most `limit`. Returns true when the call has ended.
  bool WaitFor(std::chrono::milliseconds limit);

  // Only after WaitFor has returned true.
  const Status& status() const { return status_; }
  const Shape& shape() const { return shape_; }
  const std::vector<int64_t>& values() const { return values_; }  // see LocalCall::announce
  Memory TakeResult() { return std::move(result_); }

 private:
  Call() = default;
  void Submit(Request request, Output output, Memory copy, int64_t bytes);
  Result<void*> AllocateResult(const std::string& name, const Shape& shape, int64_t element_bytes);
  void Finish(const Status& status);

  // The runtime's threads write these before they set finished_; Python reads them after that.
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
