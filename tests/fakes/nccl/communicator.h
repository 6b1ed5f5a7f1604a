#ifndef TFRING_TESTS_FAKES_NCCL_COMMUNICATOR_H_
#define TFRING_TESTS_FAKES_NCCL_COMMUNICATOR_H_

#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "tests/fakes/nccl/nccl_api.h"
#include "tests/fakes/nccl/rendezvous.h"
#include "tests/fakes/nccl/values.h"

namespace fake_nccl {

enum Function : int {
  kAllReduce,
  kBroadcast,
  kReduce,
  kAllGather,
  kReduceScatter,
  kSend,
  kReceive
};

// One call of a collective, or of a side of a transfer, as NCCL got it.
struct Call {
  Function function = kAllReduce;
  const void* send = nullptr;
  void* receive = nullptr;
  size_t count = 0;
  int dtype = 0;
  int op = -1;
  int root = -1;  // or the peer
  void* stream = nullptr;
};

// One rank of an NCCL communicator. NCCL's calls for it come from one thread at a time, but for
// Abort; kernels run on the driver's stream threads and keep the object alive; init of a
// non-blocking communicator runs on a thread of its own.
class Communicator : public std::enable_shared_from_this<Communicator> {
 public:
  Communicator(const ncclUniqueId& id, int nranks, int rank, bool blocking, const Device& device);

  ncclResult_t Init();
  ncclResult_t AsyncError(ncclResult_t* error);
  // The calls of one group, in order. Checks them, and enqueues a kernel, now or at a later poll.
  ncclResult_t Launch(std::vector<Call> calls);
  ncclResult_t Finalize();
  // Waits for the kernels.
  ncclResult_t Destroy();
  // Ends the kernels, and waits for all, also for those that wait on the stream for other work; and
  // for init.
  void Abort();
  void PlayDead();

  int rank() const { return rank_; }
  int nranks() const { return nranks_; }
  const Device& device() const { return device_; }
  bool blocking() const { return blocking_; }

  // For kernels. False when the communicator was aborted. Looks after the peers at times.
  bool GoOn();
  // Returns when the communicator was aborted.
  void Spin();
  void SetError(ncclResult_t error, const std::string& why);
  Rendezvous& rendezvous() { return rendezvous_; }
  uint64_t NextRound() { return ++round_; }

 private:
  enum class Job { kNone, kInit, kGroup, kFinalize };
  friend void RunKernel(void* argument);

  ncclResult_t RunInit();
  ncclResult_t Ready();
  ncclResult_t Check(Call* call);
  ncclResult_t Enqueue(std::vector<Call> calls);
  ncclResult_t Fail(ncclResult_t error, const std::string& why);
  ncclResult_t Progress();
  void LookAtPeers();

  const int nranks_;
  const int rank_;
  const bool blocking_;
  const Device device_;
  Rendezvous rendezvous_;     // of the init thread, then of the kernels, one at a time
  std::mutex running_mutex_;  // held by the kernel that runs; guards rendezvous_ but for its slots
  uint64_t round_ = 0;        // by the running kernel
  std::atomic<bool> aborted_{false};
  std::atomic<bool> dead_{false};
  std::atomic<bool> attached_{false};
  std::atomic<long> running_{0};
  std::atomic<long> queued_{0};         // kernels that have not ended, running ones too
  std::atomic<void*> stream_{nullptr};  // of the newest kernel
  std::atomic<bool> in_init_{false};    // its thread runs, and keeps the object alive

  std::mutex mutex_;  // guards all below
  Job job_ = Job::kNone;
  bool init_done_ = false;
  long polls_left_ = 0;
  ncclResult_t error_ = ncclSuccess;
  std::vector<std::vector<Call>> waiting_;  // groups of a non-blocking communicator
};

// All communicators of this process by their handle. Any thread.
class Communicators {
 public:
  static ncclComm_t Add(std::shared_ptr<Communicator> communicator);
  // Null and a line on stderr if there is no such communicator (any more).
  static std::shared_ptr<Communicator> Find(const ncclComm* handle);
  static void Remove(const ncclComm* handle);
  static long Alive();
  static void Kill(int rank);
};

// Whether the calling thread is in a group of calls (ncclGroupStart to ncclGroupEnd).
bool InGroup();

// The text for ncclGetLastError.
void SetLastError(const std::string& text);
std::string LastError();

}  // namespace fake_nccl

#endif  // TFRING_TESTS_FAKES_NCCL_COMMUNICATOR_H_
