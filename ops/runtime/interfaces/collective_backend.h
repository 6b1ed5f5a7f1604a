#ifndef TFRING_OPS_RUNTIME_INTERFACES_COLLECTIVE_BACKEND_H_
#define TFRING_OPS_RUNTIME_INTERFACES_COLLECTIVE_BACKEND_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "ops/runtime/base/status.h"
#include "ops/runtime/base/tensor_buffer.h"
#include "ops/runtime/base/types.h"
#include "ops/runtime/interfaces/device_stream.h"

namespace tfring {

struct PlanMarks;

// Is told by the thread that runs plans how much they send to each rank.
class TrafficSink {
 public:
  virtual ~TrafficSink() = default;
  virtual void SentTo(Rank to, int64_t bytes) = 0;
};

// Consecutive buffers of a collective that are in device memory: those of one call.
struct DeviceCall {
  std::shared_ptr<DeviceStream> stream;
  size_t first = 0;  // buffers [first, first + count) of the collective
  size_t count = 0;
  bool early = false;  // from kLaunched on the stream can be made to wait for the results
  // Holds the memory of the buffers. A backend that has to report kEnded while a device that does
  // not answer may still use the memory keeps a reference to this until the device has finished.
  std::shared_ptr<void> keeps;
};

// What a backend runs: a Plan together with this rank's buffers.
struct Collective {
  uint64_t sequence = 0;
  DataPath path = DataPath::kCpu;  // kDevice: all buffers of all members are in device memory
  std::string what;                // for messages: "allreduce of 'x' and 3 more"
  CollectiveKind kind = CollectiveKind::kBarrier;
  DataType dtype = DataType::kUint8;
  ReduceOp op = ReduceOp::kSum;
  double prescale = 1.0;
  double postscale = 1.0;
  int root = 0;               // see KindTraits::has_root: position of the root in `members`
  int self = 0;               // position of this rank in `members`
  std::vector<Rank> members;  // world ranks that take part, ascending; send/recv: the two
  // Reduce: output is null on all ranks but the root; gather: 0 bytes there. Scatter: input is used
  // on the root only. Send/recv: the source has no output, the other no input.
  std::vector<TensorBuffer> buffers;
  std::vector<DeviceCall> device_calls;  // by `first`; buffers of none of them are in CPU memory
  // block_bytes[t][m], of buffer t. Allgather, gather: what member m contributes. Reducescatter,
  // scatter: what member m gets. Alltoall: what this rank gets from member m. All are consecutive,
  // in order of the members.
  std::vector<std::vector<int64_t>> block_bytes;
  // Alltoall: what this rank sends to member m of buffer t.
  std::vector<std::vector<int64_t>> send_bytes;
  // A batch of a lock: before anything else the members tell each other whether they enter it. A
  // member that does not has no buffers; if there is one, the collective is recalled on all.
  bool locked = false;
  bool is_void = false;   // this rank does not enter it
  TimePoint entered = 0;  // when this rank has entered it, by the clock of the host; 0: not told
  // What the members have to know before they can run the plan, whose sequence it has, too: goes
  // ahead of it in the same order on all.
  bool prepares = false;
  PlanMarks* marks = nullptr;      // not null: where the CPU backend notes how far it is
  TrafficSink* traffic = nullptr;  // the same for bytes between ranks
};

// Of one input of a collective that adds: how many of its elements are not finite, where any are.
struct BadValues {
  size_t buffer = 0;  // of the collective
  DataType dtype = DataType::kFloat32;
  int64_t elements = 0;
  int64_t nans = 0;
  int64_t infinities = 0;
};

// How far a submitted collective is. kLaunched: a device has all of its work, in order, and other
// collectives may follow; the results of calls with `early` may be used by their streams. kEnded:
// the results are there, or there will be none, and no memory of the collective is used any more.
enum class CompletionStage : uint8_t { kLaunched, kEnded };
struct Completion {
  uint64_t sequence = 0;
  Status status;           // kLaunched: ok
  Rank suspect = kNoRank;  // the peer whose stream broke, where that is the cause
  // The failure shows that a peer may be gone, but not which one.
  bool suspects_unknown_peer = false;
  CompletionStage stage = CompletionStage::kEnded;
  // A batch of a lock that not all members have entered: nothing was read or written.
  bool recalled = false;
  // Of a batch of a lock that ended well: when its members entered it, where a backend knows.
  AskTimes entered = {};
  // By buffer, where the backend looked for them; in the first completion of the collective, while
  // all of its calls still wait.
  std::vector<BadValues> bad_values = {};
};
// Whether the collective has done what it is for, so that its calls may end.
inline bool Succeeded(const Completion& completion) {
  return completion.status.ok() && !completion.recalled;
}
// Called on a thread of the backend, or in Submit; must not block. For every submitted collective
// exactly once with kEnded; before that at most once with kLaunched. Those of device memory may be
// launched, and end, in another order than they were submitted.
using CompletionSink = std::function<void(Completion)>;

// Moves data. Collectives run in the order of Submit. Submit and Abort return at once and may be
// called from the control thread while the backend works; both are thread-safe. Lives from init to
// shutdown; the destructor joins its threads and requires that Abort was called or nothing is in
// flight.
class CollectiveBackend {
 public:
  virtual ~CollectiveBackend() = default;
  virtual const char* name() const = 0;

  // Takes the collective; the completion comes through the sink given at construction.
  virtual void Submit(Collective collective) = 0;

  // The process set of exactly these members is removed: what the backend keeps for them may go
  // once what was submitted before has ended. All ranks are told at the same place among the plans.
  // From the thread of Submit.
  virtual void Disband(const std::vector<Rank>& members) { (void)members; }

  // Ends everything in flight, and everything submitted later, with `why`. Asynchronous.
  virtual void Abort(Status why) = 0;

  // Bytes sent to peers so far.
  virtual int64_t bytes_sent() const = 0;
  // A number that grows while data moves, in either direction, and for a limited time while a
  // device has work to do first. Any thread.
  virtual int64_t progress() const { return bytes_sent(); }
  // How often a thread of the backend woke from sleep.
  virtual int64_t wakeups() const = 0;
};

}  // namespace tfring

#endif  // TFRING_OPS_RUNTIME_INTERFACES_COLLECTIVE_BACKEND_H_
