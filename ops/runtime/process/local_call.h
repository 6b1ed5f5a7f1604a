#ifndef TFRING_OPS_RUNTIME_PROCESS_LOCAL_CALL_H_
#define TFRING_OPS_RUNTIME_PROCESS_LOCAL_CALL_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "ops/runtime/base/status.h"
#include "ops/runtime/base/tensor_buffer.h"
#include "ops/runtime/base/types.h"
#include "ops/runtime/interfaces/device_stream.h"

namespace tfring {

// The part of a call that stays on this rank; the Request goes to the others. `buffers` has one
// element per shape of the Request. For kinds with allocates_output, `allocate` is called once per
// tensor with its final shape and returns the memory; not on the sender of a send/recv. `announce`
// may be empty; it is called before `done`, and only if a plan came, with the rows received from
// each member (alltoall), the rank that joined last (join) or the id (adding or removing a process
// set). Both run on the control thread and must not block. `done` is called exactly once, whatever
// happens, on a thread that the runtime does not need to make progress, with no lock held; it may
// call Enqueue.
//
// `run` is the execution of a TensorFlow graph that makes the call (its step id), or 0 for none, as
// in an eager call. See RankRuntime::FailRun. An eager op that TensorFlow runs as a separate graph
// has a number as well.
//
// `stream` is the device stream of the tensors, or null if they are in CPU memory. RunsOnDevice of
// the stream overwrites the path of the Request. With `early`, a collective that runs on the device
// calls `done` with OK as soon as the device has all of its work; the caller calls the stream's
// WaitForResults before it uses the results. A failure after that ends the calls that follow.
// `keeps` holds the memory of the buffers. A thread of the runtime releases it when nothing uses
// that memory any more, which with `early` may be long after `done`.
//
// `compiled`: an XLA program makes the call, and its thread waits. For the record only.
struct LocalCall {
  uint64_t run = 0;
  std::vector<TensorBuffer> buffers;
  std::shared_ptr<DeviceStream> stream;
  bool early = false;
  bool compiled = false;
  std::shared_ptr<void> keeps;
  std::function<Result<void*>(int tensor, const Shape& shape)> allocate;
  std::function<void(const std::vector<int64_t>& values)> announce;
  std::function<void(const Status&)> done;
};

}  // namespace tfring

#endif  // TFRING_OPS_RUNTIME_PROCESS_LOCAL_CALL_H_
