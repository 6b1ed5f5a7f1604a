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

// The thread that runs plans tells it how many bytes they send to each rank.
class TrafficSink {
 public:
  virtual ~TrafficSink() = default;
  virtual void SentTo(Rank to, int64_t bytes) = 0;
};

// The buffers of one call in device memory, consecutive in the collective.
struct DeviceCall {
  std::shared_ptr<DeviceStream> stream;
  size_t first = 0;  // buffers [first, first + count) of the collective
  size_t count = 0;
  bool early = false;  // after kLaunched the stream may wait for the results
  // Holds the memory of the buffers. A backend that reports kEnded while an unresponsive device may
  // still use the memory keeps a reference until the device has finished.
  std::shared_ptr<void> keeps;
};

// What a backend runs: a Plan with this rank's buffers.
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
  // A batch of a lock: first the members tell each other whether they enter it. A member that does
  // not enter has no buffers, and the collective is then recalled on all.
  bool locked = false;
  bool is_void = false;   // this rank does not enter it
  TimePoint entered = 0;  // when this rank entered it, by the host's clock; 0: unknown
  // What the members must exchange before they run the plan of the same sequence; it goes ahead of
  // the plan in the same order on all.
  bool prepares = false;
  PlanMarks* marks = nullptr;      // if not null, the CPU backend notes its progress here
  TrafficSink* traffic = nullptr;  // the same for bytes between ranks
};

// An input of a sum with elements that are not finite, and how many.
struct BadValues {
  size_t buffer = 0;  // of the collective
  DataType dtype = DataType::kFloat32;
  int64_t elements = 0;
  int64_t nans = 0;
  int64_t infinities = 0;
};

// kLaunched: a device has all work of the collective, in order; others may follow, and streams may
// use the results of calls with `early`. kEnded: the results are there or never will be, and the
// memory of the collective is free.
enum class CompletionStage : uint8_t { kLaunched, kEnded };
struct Completion {
  uint64_t sequence = 0;
  Status status;           // kLaunched: ok
  Rank suspect = kNoRank;  // the peer whose stream broke, if that is the cause
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
// Whether the calls of the collective may end without an error.
inline bool Succeeded(const Completion& completion) {
  return completion.status.ok() && !completion.recalled;
}
// Called on a thread of the backend or in Submit; must not block. Each submitted collective gets
// kEnded exactly once, and before that kLaunched at most once. Collectives of device memory may be
// launched, and end, in a different order than they were submitted.
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

  // The process set of exactly these members is removed: the backend may release what it keeps for
  // them once earlier collectives have ended. All ranks call it at the same place among the plans,
  // on the thread of Submit.
  virtual void Disband(const std::vector<Rank>& members) { (void)members; }

  // Ends all collectives, later ones too, with `why`. Asynchronous.
  virtual void Abort(Status why) = 0;

  // Bytes sent to peers so far.
  virtual int64_t bytes_sent() const = 0;
  // Grows while data moves in either direction, and for a limited time while a device has other
  // work to do first. Any thread.
  virtual int64_t progress() const { return bytes_sent(); }
  // Bytes of the buffers on the host in which it moves tensors. Any thread.
  virtual int64_t memory() const { return 0; }
  // How often a thread of the backend woke from sleep.
  virtual int64_t wakeups() const = 0;
};

}  // namespace tfring

#endif  // TFRING_OPS_RUNTIME_INTERFACES_COLLECTIVE_BACKEND_H_
