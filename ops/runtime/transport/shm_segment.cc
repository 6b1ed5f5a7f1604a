#include "ops/runtime/transport/shm_segment.h"

#include <fcntl.h>
#include <linux/futex.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <new>
#include <string>
#include <utility>

#include "ops/runtime/base/clock.h"
#include "ops/runtime/transport/socket_util.h"

namespace tfring {
namespace {

constexpr uint64_t kPage = 4096;
constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;

uint64_t PagesOf(uint64_t bytes) { return (bytes + kPage - 1) / kPage * kPage; }

uint64_t HeaderBytes(uint32_t rings) {
  return PagesOf(sizeof(ShmHeader) + rings * sizeof(ShmRing));
}

Status Errno(const char* what) {
  return Unavailable(std::string("shared memory: ") + what + ": " + ErrnoText(errno));
}

}  // namespace

uint64_t ShmSegment::Shape::bytes() const {
  return HeaderBytes(rings) + PagesOf(part_bytes) + rings * ring_bytes;
}

Result<std::unique_ptr<ShmSegment>> ShmSegment::Map(int fd, const Shape& shape) {
  void* base = mmap(nullptr, shape.bytes(), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (base == MAP_FAILED) return Errno("mmap");
  madvise(base, shape.bytes(), MADV_DONTFORK);
  return std::unique_ptr<ShmSegment>(new ShmSegment(base, shape));
}

Result<std::unique_ptr<ShmSegment>> ShmSegment::Create(uint32_t rings, uint64_t ring_bytes,
                                                       uint64_t part_bytes) {
  const Shape shape{rings, ring_bytes, part_bytes};
  const uint64_t bytes = shape.bytes();
  UniqueFd fd(memfd_create("tfring", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!fd.valid()) return Errno("memfd_create");
  // fallocate, not ftruncate: missing memory must be an error now, not a SIGBUS later.
  if (fallocate(fd.get(), 0, 0, static_cast<off_t>(bytes)) != 0 ||
      fcntl(fd.get(), F_ADD_SEALS, kSeals) != 0) {
    return Errno("fallocate");
  }
  Result<std::unique_ptr<ShmSegment>> segment = Map(fd.get(), shape);
  if (!segment.ok()) return segment;
  (*segment)->fd_ = std::move(fd);
  auto* header = new ((*segment)->base_) ShmHeader;
  header->rings = rings;
  header->ring_bytes = ring_bytes;
  header->part_bytes = part_bytes;
  for (uint32_t i = 0; i < rings; ++i) new ((*segment)->ring(i)) ShmRing;
  if (getrandom(header->nonce.data(), header->nonce.size(), 0) !=
      static_cast<ssize_t>(header->nonce.size())) {
    return Errno("getrandom");
  }
  TFRING_RETURN_IF_ERROR((*segment)->MakePipe());
  return segment;
}

// A pipe and not an eventfd: peers open the segment and the pipe in /proc, and /proc cannot open an
// eventfd. So no channel that passes descriptors is needed.
Status ShmSegment::MakePipe() {
  int ends[2] = {-1, -1};
  if (pipe2(ends, O_CLOEXEC | O_NONBLOCK) != 0) return Errno("pipe2");
  pipe_read_ = UniqueFd(ends[0]);
  pipe_write_ = UniqueFd(ends[1]);
  header()->pipe = ends[1];
  return OkStatus();
}

Status ShmSegment::OpenPipe(pid_t owner) {
  const std::string path =
      "/proc/" + std::to_string(owner) + "/fd/" + std::to_string(header()->pipe);
  // Open both ends, or a write would raise SIGPIPE once the owner has ended.
  pipe_write_ = UniqueFd(open(path.c_str(), O_RDWR | O_CLOEXEC | O_NONBLOCK));
  struct stat info;
  if (!pipe_write_.valid()) return Errno(("open " + path).c_str());
  if (fstat(pipe_write_.get(), &info) != 0 || !S_ISFIFO(info.st_mode)) {
    return Unavailable("shared memory: " + path + " is not the pipe that was announced");
  }
  return OkStatus();
}

Result<std::unique_ptr<ShmSegment>> ShmSegment::Open(pid_t pid, int fd, const ShmNonce& nonce,
                                                     uint32_t rings, uint64_t ring_bytes,
                                                     uint64_t part_bytes) {
  const std::string path = "/proc/" + std::to_string(pid) + "/fd/" + std::to_string(fd);
  const UniqueFd mine(open(path.c_str(), O_RDWR | O_CLOEXEC));
  if (!mine.valid()) return Errno(("open " + path).c_str());
  const Shape shape{rings, ring_bytes, part_bytes};
  struct stat info;
  const int seals = fcntl(mine.get(), F_GET_SEALS);
  const bool shape_ok = seals >= 0 && (seals & kSeals) == kSeals && fstat(mine.get(), &info) == 0 &&
                        info.st_size == static_cast<off_t>(shape.bytes());
  if (!shape_ok) {
    return Unavailable("shared memory: " + path + " is not the segment that was announced");
  }
  Result<std::unique_ptr<ShmSegment>> segment = Map(mine.get(), shape);
  if (!segment.ok()) return segment;
  const ShmHeader* header = (*segment)->header();
  if (header->nonce != nonce || header->rings != rings || header->ring_bytes != ring_bytes ||
      header->part_bytes != part_bytes) {
    return Unavailable("shared memory: " + path + " has another nonce");
  }
  TFRING_RETURN_IF_ERROR((*segment)->OpenPipe(pid));
  return segment;
}

ShmSegment::~ShmSegment() { munmap(base_, shape_.bytes()); }

ShmRing* ShmSegment::ring(uint32_t index) const {
  auto* first = reinterpret_cast<ShmRing*>(static_cast<uint8_t*>(base_) + sizeof(ShmHeader));
  return first + index;
}

uint8_t* ShmSegment::data(uint32_t index) const {
  return static_cast<uint8_t*>(base_) + (shape_.bytes() - (rings() - index) * ring_bytes());
}

char* ShmSegment::part() const { return static_cast<char*>(base_) + HeaderBytes(rings()); }

void ShmSegment::WakeOwner(Rank from) const {
  ShmHeader* h = header();
  const ShmSleep sleep = h->sleep.load(std::memory_order_seq_cst);
  if (sleep == ShmSleep::kAwake) return;
  const Rank awaited = h->awaited.load(std::memory_order_seq_cst);
  if (from != kNoRank && awaited != kNoRank && awaited != from) return;
  h->doorbell.fetch_add(1, std::memory_order_seq_cst);
  if (sleep == ShmSleep::kOnFutex) {
    syscall(SYS_futex, &h->doorbell, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
  } else if (sleep == ShmSleep::kInPoll) {
    // A write fails only when the pipe is full, and then the owner is already awake.
    const char byte = 0;
    const ssize_t n = write(pipe_write_.get(), &byte, 1);
    (void)n;
  }
}

void ShmSegment::SleepOnFutex(uint32_t seen, TimePoint deadline) const {
  timespec limit{};
  if (deadline != kNever) {
    const Duration wait = std::max<Duration>(0, deadline - MonotonicNow());
    limit.tv_sec = wait / kSecond;
    limit.tv_nsec = wait % kSecond;
  }
  syscall(SYS_futex, &header()->doorbell, FUTEX_WAIT, seen, deadline == kNever ? nullptr : &limit,
          nullptr, 0);
}

void ShmSegment::EmptyPipe() const {
  char sink[64];
  while (read(pipe_read_.get(), sink, sizeof(sink)) == static_cast<ssize_t>(sizeof(sink))) {
  }
}

}  // namespace tfring
