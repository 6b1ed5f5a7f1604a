#ifndef TFRING_TESTS_FAKES_NCCL_RENDEZVOUS_H_
#define TFRING_TESTS_FAKES_NCCL_RENDEZVOUS_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "tests/fakes/nccl/driver.h"
#include "tests/fakes/nccl/nccl_api.h"

namespace fake_nccl {

constexpr int kMaxRanks = 32;

// What a rank calls; compared between the ranks.
struct Signature {
  int32_t function = -1;
  int32_t dtype = -1;
  int32_t op = -1;
  int32_t root = -1;
  uint64_t count = 0;
  int32_t position = 0;  // of the call in its group, among `of` collectives
  int32_t of = 1;
};
std::string Describe(const Signature& signature);

enum class Presence : int { kAbsent, kArrived, kAttached, kLeft, kAborted };

// One direction between two ranks. The sender fills it when received == sent, then raises `sent`.
struct Channel {
  std::atomic<uint64_t> sent{0};
  std::atomic<uint64_t> received{0};
  uint64_t total_bytes = 0;  // of the whole message
  int32_t dtype = -1;
};

// One rank's part of the shared memory. Only that rank writes it, but for Channel::received.
struct alignas(64) Slot {
  std::atomic<int> presence{0};
  int nranks = 0;
  Uuid uuid{};
  Uuid bus{};
  std::atomic<uint64_t> posted{0};  // rounds for which signature and data are there
  std::atomic<uint64_t> taken{0};   // rounds of which all data has been read
  Signature signature;
  Channel to[kMaxRanks];
};

// The ranks of a communicator, as threads or processes: a shared memory file named by the unique
// id, and one file of data per rank, whose lock shows whether the rank's process lives. All files
// are unlinked as soon as all ranks have opened them. One thread at a time.
class Rendezvous {
 public:
  // Makes the file for a new communicator. Removed at the process's end if it was never used.
  static bool MakeId(ncclUniqueId* id, std::string* why);

  Rendezvous(const ncclUniqueId& id, int nranks, int rank)
      : id_(id), nranks_(nranks), rank_(rank) {}
  ~Rendezvous();
  Rendezvous(const Rendezvous&) = delete;
  Rendezvous& operator=(const Rendezvous&) = delete;

  // Meets the others. `go_on` is asked while waiting. ncclSuccess, or what went wrong and why.
  ncclResult_t Attach(const Device& device, const std::function<bool()>& go_on, std::string* why);

  // Tells the others that this rank goes.
  void Leave(Presence how);
  // From here on this rank looks as if its process had died.
  void PlayDead();

  Slot& slot(int rank) { return slots_[rank]; }
  bool attached() const { return slots_ != nullptr; }
  int nranks() const { return nranks_; }
  int rank() const { return rank_; }

  // A peer that is dead or has aborted; -1: none.
  int LostPeer();

  // The data of a rank, at an offset. False: no room, or the file is shorter.
  bool Write(const char* data, size_t bytes, uint64_t offset);
  bool Read(int rank, char* data, size_t bytes, uint64_t offset);

 private:
  std::string DataPath(int rank) const;
  bool Open(std::string* why);
  bool OpenPeer(int rank);
  bool All(Presence least) const;
  ncclResult_t Check(std::string* why) const;
  ncclResult_t WaitForAll(Presence least, const std::function<bool()>& go_on, std::string* why);
  void Unlink();

  const ncclUniqueId id_;
  const int nranks_;
  const int rank_;
  Slot* slots_ = nullptr;
  std::vector<int> files_;  // of data, by rank; -1: not open yet
};

}  // namespace fake_nccl

#endif  // TFRING_TESTS_FAKES_NCCL_RENDEZVOUS_H_
