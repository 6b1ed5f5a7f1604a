// How the members of a list find out whether they use NCCL, and make their communicator.
#include <sys/statvfs.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <fstream>
#include <utility>

#include "ops/gpu/cuda/expendable_thread.h"
#include "ops/gpu/nccl/nccl_worker.h"
#include "ops/runtime/base/log.h"
#include "ops/runtime/base/text.h"

namespace tfring {
namespace {

constexpr auto kStopPeriod = std::chrono::milliseconds(100);  // until a failure is noticed

// NCCL's rule for the ranks that share a machine.
std::string MachineText() {
  const char* given = std::getenv("NCCL_HOSTID");
  if (given != nullptr) return given;
  char name[65] = {};
  (void)gethostname(name, sizeof(name) - 1);
  std::string boot;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> boot;
  return name + boot;
}

// Returns an error text if /dev/shm is too small for the exchange between ranks of one machine,
// else "". A container has 64 MiB by default, and NCCL says only that the system failed.
std::string SmallShmText(int64_t bytes_per_rank, int ranks) {
  struct statvfs shm = {};
  if (ranks < 2 || statvfs("/dev/shm", &shm) != 0) return "";
  const int64_t mib = int64_t{1} << 20;
  const int64_t free = static_cast<int64_t>(shm.f_bavail * shm.f_frsize) / mib;
  const int64_t needed = bytes_per_rank / mib * ranks;
  if (free > needed) return "";
  return "; probably /dev/shm is too small: it has " + std::to_string(free) +
         " MiB free, and NCCL takes up to " + std::to_string(needed) + " MiB for " +
         std::to_string(ranks) +
         " ranks of a host. Give it more, in a container with docker run --shm-size=1g";
}

// Makes a communicator of one rank. Only this shows a driver that is too old for NCCL's CUDA.
Status TryNccl(const std::shared_ptr<const NcclLibrary>& library,
               const std::shared_ptr<CudaDevice>& device, const NcclUniqueId& id, Duration limit) {
  const std::string what = "a communicator of this rank alone";
  auto tried = std::make_shared<Status>();
  Status status = RunWithin(limit, "NCCL: " + what, [=] {
    const ScopedContext current(device.get());
    *tried = current.status();
    if (!tried->ok()) return;
    NcclConfig config;
    config.blocking = 1;
    NcclComm handle = nullptr;
    *tried = NcclStatus(*library, library->call.CommInitRankConfig(&handle, 1, id, 0, &config),
                        what, nullptr);
    if (tried->ok()) (void)library->call.CommDestroy(handle);
  });
  if (status.ok()) status = *tried;
  if (status.ok()) return status;
  return Unavailable(status.message() + "; `tfring doctor` shows the driver and the NCCL of a " +
                     "host, NCCL_DEBUG=INFO what NCCL does");
}

}  // namespace

// A new runtime in this process tries again: its GPU may have failed since.
Status NcclWorker::LoadAndTry() {
  auto loaded = LoadNccl(options_.config.nccl_library, options_.load_limit);
  if (!loaded.ok()) return loaded.status();
  const Result<NcclUniqueId> id = MakeNcclUniqueId(*loaded, options_.id_limit);
  if (!id.ok()) return id.status();
  TFRING_RETURN_IF_ERROR(TryNccl(*loaded, device_, *id, options_.load_limit));
  library_ = std::move(*loaded);
  return OkStatus();
}

MeetingRecord NcclWorker::OwnRecord(bool with_id) {
  MeetingRecord record;
  record.insists = options_.config.gpu_operations == GpuOperations::kNccl ? 1 : 0;
  record.packs = launcher_->abilities().packs ? 1 : 0;
  device_->uuid().copy(record.device, sizeof(record.device) - 1);
  device_->bus_id().copy(record.bus, sizeof(record.bus) - 1);
  record.mig = device_->mig() ? 1 : 0;
  MachineText().copy(record.machine, sizeof(record.machine) - 1);
  options_.host_name.copy(record.host, sizeof(record.host) - 1);
  // Load once: a library that does not return takes the whole limit, and a thread.
  if (library_ == nullptr && no_library_.ok()) no_library_ = LoadAndTry();
  if (library_ == nullptr) {
    SetReason(no_library_.message(), &record);
    return record;
  }
  record.version = library_->version;
  record.shares_gpu = library_->shares_gpu ? 1 : 0;
  if (!with_id) return record;
  Result<NcclUniqueId> id = MakeNcclUniqueId(library_, options_.id_limit);
  record.has_id = id.ok() ? 1 : 0;
  if (id.ok()) {
    record.id = *id;
  } else {
    SetReason(id.status().message(), &record);
  }
  return record;
}

// The memory of an exchange, kept until its collective on the CPU has ended.
struct Meeting {
  MeetingRecord own;
  std::vector<MeetingRecord> all;
  std::mutex mutex;  // guards the two below
  std::condition_variable changed;
  std::optional<Completion> ended;
};

// Exchanges the records of all members and returns their conclusion.
Result<MeetingResult> NcclWorker::Exchange(CpuPlace* place, const MeetingRecord& own,
                                           const Item& item) {
  const std::vector<Rank>& members = item.group->members;
  if (place == nullptr) return Internal("the members did not meet");
  auto meeting = std::make_shared<Meeting>();
  meeting->own = own;
  meeting->all.resize(members.size());
  const int64_t bytes = sizeof(MeetingRecord);
  Collective gather;
  gather.sequence = item.collective.sequence;
  gather.prepares = true;
  gather.what = "preparation of " + item.collective.what;
  gather.kind = CollectiveKind::kAllgather;
  gather.self = item.collective.self;
  gather.members = members;
  const int64_t size = static_cast<int64_t>(members.size());
  gather.buffers = {{&meeting->own, meeting->all.data(), bytes, bytes * size}};
  gather.block_bytes = {std::vector<int64_t>(members.size(), bytes)};
  place->Run(std::move(gather), [meeting](Completion completion) {
    std::lock_guard<std::mutex> lock(meeting->mutex);
    meeting->ended = std::move(completion);
    meeting->changed.notify_all();
  });
  std::unique_lock<std::mutex> lock(meeting->mutex);
  while (!meeting->ended && !stopping()) meeting->changed.wait_for(lock, kStopPeriod);
  if (!meeting->ended) return Cancelled("stopped");
  const Completion& ended = *meeting->ended;
  if (ended.status.code() == StatusCode::kUnimplemented) {
    MeetingResult apart;
    apart.reason = ended.status.message();
    return apart;
  }
  if (!ended.status.ok()) {
    Fail(ended, false);
    return ended.status;
  }
  return Conclude(meeting->all, members);
}

Result<MeetingResult> NcclWorker::MeetOthers(Item* item) {
  Group* const group = item->group.get();
  const int self = item->collective.self;
  MeetingRecord own = OwnRecord(self == 0);
  Result<MeetingResult> before = Exchange(item->meeting.get(), own, *item);
  if (!before.ok() || !before->uses_nccl) return before;
  TFRING_RETURN_IF_ERROR(Connect(group, *before, self, &own));
  Result<MeetingResult> after = Exchange(item->confirmation.get(), own, *item);
  if (after.ok() && !after->uses_nccl) Disconnect(group);
  return after;
}

Status NcclWorker::Meet(Item* item) {
  Group* const group = item->group.get();
  MeetingResult result;
  if (group->members.size() == 1) {
    result.uses_nccl = true;
    result.abilities = launcher_->abilities();
  } else {
    Result<MeetingResult> met = MeetOthers(item);
    if (!met.ok()) return met.status();
    result = std::move(*met);
  }
  Settle(group, std::move(result));
  return OkStatus();
}

void NcclWorker::Settle(Group* group, MeetingResult result) {
  if (!result.uses_nccl && !result.insists) {
    const bool first = group->members.front() == options_.self;
    Log(first ? LogLevel::kWarning : LogLevel::kDebug,
        RanksText(group->members) +
            " copy tensors through CPU memory, without NCCL: " + result.reason);
  }
  group->result = std::move(result);
  const bool uses = group->result.uses_nccl;
  group->state.store(uses ? Group::State::kNccl : Group::State::kCpu, std::memory_order_release);
}

// Makes the communicator, or notes the reason in the record. An error if this rank has failed.
Status NcclWorker::Connect(Group* group, const MeetingResult& met, int self,
                           MeetingRecord* record) {
  auto communicator = std::make_shared<NcclCommunicator>(library_, group->members, &stop_);
  {
    std::lock_guard<std::mutex> lock(mutex_);
    communicators_.push_back(communicator);
  }
  group->communicator = communicator;
  const ScopedContext current(device_.get());
  TFRING_RETURN_IF_ERROR(current.status());
  const Status status = communicator->Init(met.id, self, options_.init_limit);
  if (status.ok()) return status;
  if (stopping()) return Cancelled("stopped");
  const Status cause = CauseOf(status);
  if (!device_->broken().ok()) return cause;
  record->version = 0;
  record->followed =
      communicator->lost_peer() || status.code() == StatusCode::kDeadlineExceeded ? 1 : 0;
  const std::string shm =
      record->followed != 0 ? "" : SmallShmText(options_.shm_per_rank, met.of_a_machine);
  SetReason(status.message() + shm, record);
  // Disconnect at once: this tells the members that still wait in NCCL for this one.
  Disconnect(group);
  return OkStatus();
}

void NcclWorker::Disconnect(Group* group) {
  const std::shared_ptr<NcclCommunicator> communicator = std::move(group->communicator);
  if (communicator == nullptr) return;
  Forget(communicator);
  AbortAll({communicator}, device_, options_.abort_limit);
}

}  // namespace tfring
