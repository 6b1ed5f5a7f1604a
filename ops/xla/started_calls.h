#ifndef TFRING_OPS_XLA_STARTED_CALLS_H_
#define TFRING_OPS_XLA_STARTED_CALLS_H_

#include <cstdint>
#include <future>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "ops/runtime/base/status.h"
#include "ops/runtime/base/types.h"
#include "ops/runtime/process/process_runtime.h"
#include "ops/runtime/process/step_programs.h"
#include "ops/runtime/protocol/message/request.h"

namespace tfring {

// A collective that a compiled program has handed to the runtime. XLA owns its memory, and nobody
// can hold that: if the collective fails, the program must not end while the device may use the
// memory. A copy is the same call. Use each copy from one thread at a time; it may be destroyed at
// any time.
class StartedCall {
 public:
  // `launched` gives the outcome of the call; `unused` is set when nothing uses its memory.
  StartedCall(std::string what, uint64_t run, std::shared_ptr<DeviceStream> stream,
              std::shared_future<Status> launched, std::shared_future<void> unused);

  // Enqueues the call, whose tensors lie in device memory and belong to `stream` (a CUstream). If
  // the stream cannot be used, the call ends with the reason on all ranks.
  static StartedCall Enqueue(void* stream, Request request, LocalCall call);

  // Blocks until the whole collective is enqueued on the device or has failed. After a success,
  // makes its stream wait for the results; work that is already on the stream runs meanwhile.
  Status WaitForLaunch() const;
  // Call this after an error: blocks until nothing uses the memory. Aborts the process after
  // `limit`, because XLA gives the memory to other tensors.
  void WaitForMemory(Duration limit = kMemoryLimit) const;
  // Does both, whatever the outcome: work enqueued afterwards may use the memory.
  void WaitUntilSafe() const;

  // The addresses of the results.
  const std::vector<void*>& outputs() const { return outputs_; }
  // The run of the call; 0 if unknown.
  uint64_t run() const { return run_; }

 private:
  // The backend gives up a device that has not answered after 5 s, and then `unused` never comes.
  static constexpr Duration kMemoryLimit = 10 * kSecond;

  StartedCall() = default;

  std::string what_;
  uint64_t run_ = 0;
  std::vector<void*> outputs_;
  std::shared_ptr<DeviceStream> stream_;
  std::shared_future<Status> launched_;
  std::shared_future<void> unused_;
};

// The calls of this process between their start and their done: two custom calls of one program, on
// one thread. Programs of several threads may share a stream. Thread-safe; never destroyed.
class StartedCalls final : public Programs {
 public:
  static StartedCalls& Get();

  // Run this before a call of that name. If an earlier program on this thread started a call and
  // never took it, that program has failed: waits for all its started calls.
  void AbandonEarlier(void* stream, ProcessSetId process_set, const std::string& name);

  void Add(void* stream, ProcessSetId process_set, const std::string& name, StartedCall call);

  // Returns the call and forgets it. Null if there is none.
  std::unique_ptr<StartedCall> Take(void* stream, ProcessSetId process_set,
                                    const std::string& name);

  // This thread's program on the stream is about to fail: waits for all its started calls.
  void AbandonAll(void* stream);

  // Waits for all calls that the run's programs started, on any thread. They may still take them.
  void WaitForRun(uint64_t run) override;

 private:
  StartedCalls() = default;

  using Place = std::pair<void*, std::thread::id>;  // a stream, and the thread of the program
  using Key = std::tuple<Place, ProcessSetId, std::string>;

  static Place Here(void* stream) { return {stream, std::this_thread::get_id()}; }

  std::mutex mutex_;  // guards calls_
  std::map<Key, StartedCall> calls_;
};

}  // namespace tfring

#endif  // TFRING_OPS_XLA_STARTED_CALLS_H_
