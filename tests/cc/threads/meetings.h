#ifndef TFRING_TESTS_CC_THREADS_MEETINGS_H_
#define TFRING_TESTS_CC_THREADS_MEETINGS_H_

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "ops/runtime/interfaces/collective_backend.h"
#include "ops/runtime/interfaces/control_transport.h"
#include "ops/runtime/protocol/message/wire.h"
#include "ops/runtime/thread_pool/thread_pool.h"

// Where the ranks of a simulated job meet for their collectives, and the rules for these: all ranks
// run the same ones in the same order, each once, and none of a lock that is over. A rule that is
// broken ends the process. See scheduler.h.
namespace tfring::threads {

class Meetings {
 public:
  explicit Meetings(int size) : ranks_(static_cast<size_t>(size)) {}

  // For RankRuntimeParts: a backend that adds up float32, with a CollectiveQueue as that of the
  // host, and a transport that tells what the ranks say of locks.
  std::unique_ptr<CollectiveBackend> Backend(Rank rank, CompletionSink sink, ThreadPool* pool);
  std::unique_ptr<ControlTransport> Watched(Rank rank, std::unique_ptr<ControlTransport> control);

  // From now on no collective in which `rank` takes part ends well.
  void Lose(Rank rank);

  // Blocks until a rank has begun `count` batches of locks, or Stop.
  void WaitForBatches(Rank rank, int count);
  void Stop();
  // Whether a lock of `rank` has begun and is not over.
  bool InLock(Rank rank);
  // Batches of locks that had several calls.
  int64_t fused() const { return fused_; }

 private:
  class MeetingBackend;
  class WatchedControl;
  struct Meeting {
    std::string what;
    std::vector<std::vector<float>> sums;  // by buffer
    std::set<Rank> members;
    std::set<Rank> arrived;
    bool recalled = false;
  };
  struct OfRank {
    uint64_t submitted = 0;        // the last plan; plans have numbers from 1
    std::deque<uint64_t> waiting;  // plans that were submitted and have not begun
    uint64_t left = 0;             // the plan that waits to be called again
    bool running = false;
    bool lost = false;
    int batches = 0;
    uint64_t lock = 0;             // the last lock, 0 for none
    uint64_t enters = UINT64_MAX;  // at most so many of its batches
  };

  void OnSubmit(Rank rank, const Collective& collective);
  void OnFrame(Rank rank, const std::string& bytes, bool sent);
  void Begin(Rank rank, const Collective& collective);
  std::optional<Completion> Meet(Rank rank, const Collective& collective, TimePoint until,
                                 const std::atomic<bool>& aborted);

  std::mutex mutex_;  // guards all below
  std::condition_variable changed_;
  std::vector<OfRank> ranks_;
  std::map<uint64_t, Meeting> meetings_;  // by number of the plan
  bool stopped_ = false;
  int64_t fused_ = 0;
};

}  // namespace tfring::threads

#endif  // TFRING_TESTS_CC_THREADS_MEETINGS_H_
