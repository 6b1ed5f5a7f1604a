#ifndef TFRING_OPS_GPU_NCCL_NCCL_WORKER_H_
#define TFRING_OPS_GPU_NCCL_NCCL_WORKER_H_

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "ops/gpu/cuda/device_waiter.h"
#include "ops/gpu/nccl/communicator.h"
#include "ops/gpu/nccl/flight_table.h"
#include "ops/gpu/nccl/launcher.h"
#include "ops/gpu/nccl/meeting.h"
#include "ops/gpu/nccl/nccl_library.h"
#include "ops/gpu/nccl/nccl_program.h"
#include "ops/runtime/base/config.h"
#include "ops/runtime/interfaces/collective_backend.h"
#include "ops/runtime/interfaces/cpu_order.h"

namespace tfring {

// The options of an NcclBackend.
struct NcclOptions {
  Rank self = 0;
  std::string host_name;  // of this rank, for messages; may be empty
  Config config;
  CpuOrder* cpu_order = nullptr;  // outlives the backend
  std::vector<PackImage> pack_images = BuiltPackImages();
  Duration load_limit = kNcclLoadLimit;
  Duration id_limit = 10 * kSecond;      // for a unique id
  Duration init_limit = 120 * kSecond;   // for a communicator
  Duration abort_limit = 3 * kSecond;    // for collectives in flight to end after a failure
  int64_t shm_per_rank = 32 << 20;       // that NCCL may take from /dev/shm
  Duration destroy_limit = 2 * kSecond;  // for all communicators to end in order
};

// The state of an NcclBackend, shared with its threads, which are left behind if NCCL does not
// return. The launch thread makes all NCCL calls, in the order of Submit: it has the members of a
// new list meet, makes their communicator, and enqueues programs. While a collective is in flight
// it asks every 100 ms whether NCCL or the device noticed an error. When a process set is removed
// it destroys the communicator of its members. At the first failure another thread aborts the
// communicators. No call waits for the CPU backend's collectives, except for meetings, which have
// lower sequence numbers than the collectives that wait for them.
class NcclWorker : public std::enable_shared_from_this<NcclWorker> {
 public:
  NcclWorker(NcclOptions options, CompletionSink sink);

  Status Start();  // starts the launch thread
  void Submit(Collective collective);
  void Disband(const std::vector<Rank>& members);  // from the thread of Submit
  void Abort(Status why);
  // Ends all. The sink gets nothing afterwards.
  void Close();

  int64_t bytes() const { return bytes_.load(std::memory_order_relaxed); }
  int64_t progress() const { return table_.progress(); }
  int64_t wakeups() const;

 private:
  // The collectives of one list of members.
  struct Group {
    enum class State : uint8_t { kOpen, kNccl, kCpu };
    std::vector<Rank> members;
    MeetingResult result;  // written by the launch thread before `state`
    std::atomic<State> state{State::kOpen};
    std::shared_ptr<NcclCommunicator> communicator;  // launch thread only
  };
  struct Item {
    Collective collective;
    std::shared_ptr<Group> group;
    bool disbands = false;  // not a collective: the group ends
    std::optional<NcclProgram> program;
    // Place of the meeting for the first collective, before and after the communicator is made.
    std::unique_ptr<CpuPlace> meeting;
    std::unique_ptr<CpuPlace> confirmation;
    std::unique_ptr<CpuPlace> staging;  // submitted before the path was known
  };

  void Push(Item item);
  void Loop();
  bool Next(Item* item);
  void Watch();
  Status CauseOf(Status status);
  void Handle(Item* item);
  void KeepPlaces(Item* item);
  Status Prepare(const Collective& collective);
  Status Meet(Item* item);
  Result<MeetingResult> MeetOthers(Item* item);
  Result<MeetingResult> Exchange(CpuPlace* place, const MeetingRecord& own, const Item& item);
  Status LoadAndTry();
  MeetingRecord OwnRecord(bool with_id);
  void Settle(Group* group, MeetingResult result);
  void EndWithout(Item* item);
  Status Connect(Group* group, const MeetingResult& met, int self, MeetingRecord* record);
  void Disconnect(Group* group);
  Status Destroy(Group* group);
  void Forget(const std::shared_ptr<NcclCommunicator>& communicator);
  bool WaitForRoom();
  void Launch(Item* item);
  void Fail(Completion failure, bool abort);
  void StopDevice();
  void AbortCommunicators(TimePoint deadline);
  static void AbortAll(const std::vector<std::shared_ptr<NcclCommunicator>>& communicators,
                       const std::shared_ptr<CudaDevice>& device, Duration limit);
  void DestroyCommunicators();
  bool stopping() const { return stop_.load(std::memory_order_acquire); }

  const NcclOptions options_;
  FlightTable table_;
  std::atomic<bool> stop_{false};  // after a failure: the launch thread leaves NCCL
  std::atomic<int64_t> bytes_{0};
  std::atomic<int64_t> wakeups_{0};
  std::map<std::vector<Rank>, std::shared_ptr<Group>> groups_;  // Submit and Disband only

  // Launch thread only.
  std::shared_ptr<const NcclLibrary> library_;
  Status no_library_;                                   // why NCCL is not loaded
  std::shared_ptr<NcclLauncher> launcher_;              // lives on with its launches
  std::vector<std::unique_ptr<CpuPlace>> kept_places_;  // after a failure

  mutable std::mutex mutex_;  // guards the rest
  std::condition_variable changed_;
  std::deque<Item> queue_;
  bool started_ = false;
  bool closing_ = false;
  bool parked_ = false;        // the launch thread uses no communicator any more
  bool ended_ = false;         // the launch thread uses nothing any more
  bool device_stops_ = false;  // a thread runs StopDevice, which aborts communicators
  std::vector<std::shared_ptr<NcclCommunicator>> communicators_;
  std::shared_ptr<CudaDevice> device_;
  std::unique_ptr<DeviceWaiter> waiter_;
};

}  // namespace tfring

#endif  // TFRING_OPS_GPU_NCCL_NCCL_WORKER_H_
