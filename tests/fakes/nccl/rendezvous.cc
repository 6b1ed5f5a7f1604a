#include "tests/fakes/nccl/rendezvous.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <new>
#include <random>
#include <set>

#include "tests/fakes/nccl/settings.h"
#include "tests/fakes/nccl/values.h"

namespace fake_nccl {
namespace {

constexpr size_t kHeaderBytes = sizeof(Slot) * kMaxRanks;
constexpr const char* kFunctions[] = {"allreduce", "broadcast", "reduce", "allgather",
                                      "reducescatter"};

// Ids that this process made and nobody may ever have used: their files go with the process.
struct Made {
  std::mutex mutex;  // guards paths
  std::set<std::string> paths;
  pid_t owner = getpid();  // a forked child removes nothing of its parent's
  ~Made() {
    if (owner != getpid()) return;
    for (const std::string& path : paths) unlink(path.c_str());
  }
};
Made& MadeHere() {
  static Made made;
  return made;
}

bool MayShareDevices() {
  const char* text = std::getenv("NCCL_MULTI_RANK_GPU_ENABLE");
  return Setting("version") >= 23000 && text != nullptr && std::atoi(text) != 0;
}

// Before 2.30 NCCL compares bus ids, so that two MIG instances of one card are one GPU to it.
bool SameGpu(const Slot& a, const Slot& b) {
  return a.uuid == b.uuid || (Setting("version") < 23000 && a.bus == b.bus);
}

std::string ErrnoText(const std::string& what) { return what + ": " + std::strerror(errno); }

}  // namespace

std::string Describe(const Signature& s) {
  char text[200];
  std::snprintf(text, sizeof(text), "%s of %llu %s, op %s, root %d, call %d of %d of its group",
                kFunctions[s.function], static_cast<unsigned long long>(s.count),
                DataTypeName(s.dtype), OperatorName(s.op), s.root, s.position + 1, s.of);
  return text;
}

bool Rendezvous::MakeId(ncclUniqueId* id, std::string* why) {
  std::random_device random;
  *id = {};
  const bool shm = access("/dev/shm", W_OK) == 0;
  std::snprintf(id->internal, sizeof(id->internal), "%s/tfring_fake_nccl_%d_%08x%08x",
                shm ? "/dev/shm" : "/tmp", getpid(), random(), random());
  const int file = open(id->internal, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  if (file < 0 || ftruncate(file, kHeaderBytes) != 0) {
    *why = ErrnoText(id->internal);
    if (file >= 0) close(file);
    return false;
  }
  close(file);
  Made& made = MadeHere();
  const std::lock_guard<std::mutex> lock(made.mutex);
  made.paths.insert(id->internal);
  return true;
}

Rendezvous::~Rendezvous() {
  Leave(Presence::kLeft);
  for (const int file : files_) {
    if (file >= 0) close(file);
  }
  if (slots_ != nullptr) munmap(slots_, kHeaderBytes);
}

std::string Rendezvous::DataPath(int rank) const {
  return std::string(id_.internal) + "." + std::to_string(rank);
}

bool Rendezvous::Open(std::string* why) {
  const int file = open(id_.internal, O_RDWR | O_CLOEXEC);
  if (file < 0) {
    *why = ErrnoText("no such unique id: " + std::string(id_.internal, strnlen(id_.internal, 120)));
    return false;
  }
  void* memory = mmap(nullptr, kHeaderBytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  close(file);
  if (memory == MAP_FAILED) {
    *why = ErrnoText("mmap");
    return false;
  }
  slots_ = static_cast<Slot*>(memory);
  files_.assign(static_cast<size_t>(nranks_), -1);
  const int data = open(DataPath(rank_).c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  if (data < 0 || flock(data, LOCK_EX | LOCK_NB) != 0) {
    *why = ErrnoText("rank " + std::to_string(rank_) + " is there twice, or " + DataPath(rank_));
    if (data >= 0) close(data);
    return false;
  }
  files_[static_cast<size_t>(rank_)] = data;
  return true;
}

bool Rendezvous::OpenPeer(int rank) {
  int& file = files_[static_cast<size_t>(rank)];
  if (file < 0) file = open(DataPath(rank).c_str(), O_RDWR | O_CLOEXEC);
  return file >= 0;
}

bool Rendezvous::All(Presence least) const {
  for (int r = 0; r < nranks_; ++r) {
    if (slots_[r].presence.load() < static_cast<int>(least)) return false;
  }
  return true;
}

ncclResult_t Rendezvous::Check(std::string* why) const {
  for (int r = 0; r < nranks_; ++r) {
    if (slots_[r].nranks != nranks_) {
      *why = "rank " + std::to_string(rank_) + " says " + std::to_string(nranks_) +
             " ranks, rank " + std::to_string(r) + " says " + std::to_string(slots_[r].nranks);
      return ncclInvalidArgument;
    }
    for (int other = 0; other < r && !MayShareDevices(); ++other) {
      if (!SameGpu(slots_[r], slots_[other])) continue;
      *why = "Duplicate GPU detected : rank " + std::to_string(other) + " and rank " +
             std::to_string(r) + " both on one CUDA device";
      return ncclInvalidUsage;
    }
  }
  return ncclSuccess;
}

ncclResult_t Rendezvous::WaitForAll(Presence least, const std::function<bool()>& go_on,
                                    std::string* why) {
  const auto limit = std::chrono::steady_clock::now() + std::chrono::minutes(2);
  Pause pause;
  for (bool all = false; !all; pause()) {
    all = All(least);
    for (int r = 0; r < nranks_; ++r) {
      // Shows who dies. Whose file is not locked yet has not arrived.
      if (slots_[r].presence.load() != static_cast<int>(Presence::kAbsent)) OpenPeer(r);
    }
    if (!go_on()) {
      *why = "aborted";
      return ncclInternalError;
    }
    const int lost = all ? -1 : LostPeer();
    if (lost >= 0 && Setting("remote_error") != 0) {
      *why = "rank " + std::to_string(lost) + " went away during init";
      return ncclRemoteError;
    }
    if (std::chrono::steady_clock::now() > limit) {
      *why = "the other ranks did not come";
      return ncclSystemError;
    }
  }
  return ncclSuccess;
}

ncclResult_t Rendezvous::Attach(const Device& device, const std::function<bool()>& go_on,
                                std::string* why) {
  if (!Open(why)) return ncclInvalidUsage;
  Slot& own = slots_[rank_];
  own.nranks = nranks_;
  own.uuid = device.uuid;
  own.bus = device.bus;
  own.presence = static_cast<int>(Presence::kArrived);
  ncclResult_t result = WaitForAll(Presence::kArrived, go_on, why);
  if (result == ncclSuccess) result = Check(why);
  if (result != ncclSuccess) {
    // The others may still have to read what this rank said: they find out by themselves.
    Leave(result == ncclInternalError ? Presence::kAborted : Presence::kLeft);
    Unlink();
    return result;
  }
  for (int r = 0; r < nranks_; ++r) {
    if (OpenPeer(r)) continue;
    *why = "rank " + std::to_string(r) + " went away during init";
    return ncclRemoteError;
  }
  own.presence = static_cast<int>(Presence::kAttached);
  result = WaitForAll(Presence::kAttached, go_on, why);
  Unlink();
  return result;
}

void Rendezvous::Unlink() {
  unlink(DataPath(rank_).c_str());
  unlink(id_.internal);
  Made& made = MadeHere();
  const std::lock_guard<std::mutex> lock(made.mutex);
  made.paths.erase(id_.internal);
}

void Rendezvous::Leave(Presence how) {
  if (slots_ == nullptr) return;
  std::atomic<int>& presence = slots_[rank_].presence;
  if (presence.load() < static_cast<int>(Presence::kLeft)) presence = static_cast<int>(how);
}

void Rendezvous::PlayDead() {
  if (slots_ != nullptr) flock(files_[static_cast<size_t>(rank_)], LOCK_UN);
}

int Rendezvous::LostPeer() {
  for (int r = 0; r < nranks_; ++r) {
    const int presence = slots_[r].presence.load();
    if (r == rank_ || presence == static_cast<int>(Presence::kLeft)) continue;
    if (presence == static_cast<int>(Presence::kAborted)) return r;
    const int file = files_[static_cast<size_t>(r)];
    if (file < 0) continue;
    if (flock(file, LOCK_SH | LOCK_NB) != 0) continue;  // its owner holds the lock
    flock(file, LOCK_UN);
    if (slots_[r].presence.load() != static_cast<int>(Presence::kLeft)) return r;
  }
  return -1;
}

bool Rendezvous::Write(const char* data, size_t bytes, uint64_t offset) {
  const int file = files_[static_cast<size_t>(rank_)];
  while (bytes > 0) {
    const ssize_t n = pwrite(file, data, bytes, static_cast<off_t>(offset));
    if (n <= 0) return false;
    data += n;
    bytes -= static_cast<size_t>(n);
    offset += static_cast<uint64_t>(n);
  }
  return true;
}

bool Rendezvous::Read(int rank, char* data, size_t bytes, uint64_t offset) {
  const int file = files_[static_cast<size_t>(rank)];
  while (bytes > 0) {
    const ssize_t n = pread(file, data, bytes, static_cast<off_t>(offset));
    if (n <= 0) return false;
    data += n;
    bytes -= static_cast<size_t>(n);
    offset += static_cast<uint64_t>(n);
  }
  return true;
}

}  // namespace fake_nccl
