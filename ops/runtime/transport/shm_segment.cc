#include "ops/runtime/transport/shm_segment.h"

#include <fcntl.h>
#include <linux/futex.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <climits>
#include <fstream>
#include <new>
#include <string>

#include "ops/runtime/transport/socket_util.h"

namespace tfring {
namespace {

constexpr uint64_t kPage = 4096;
constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;

uint64_t SegmentBytes(uint32_t rings, uint64_t ring_bytes) {
  uint64_t headers = sizeof(ShmHeader) + rings * sizeof(ShmRing);
  return (headers + kPage - 1) / kPage * kPage + rings * ring_bytes;
}

// How many bytes the memory cgroup of this process still allows; UINT64_MAX if it has no limit. To
// allocate more would not fail, but get the process killed.
uint64_t CgroupHeadroom() {
  std::string line;
  std::string path;
  std::ifstream cgroup("/proc/self/cgroup");
  while (std::getline(cgroup, line)) {
    if (line.rfind("0::", 0) == 0) path = "/sys/fs/cgroup" + line.substr(3);
  }
  if (path.empty()) return UINT64_MAX;
  uint64_t limit = 0;
  uint64_t used = 0;
  std::ifstream max_file(path + "/memory.max");
  if (!(max_file >> limit)) return UINT64_MAX;  // no such file, or the word "max"
  std::ifstream current_file(path + "/memory.current");
  if (!(current_file >> used)) return UINT64_MAX;
  return limit > used ? limit - used : 0;
}

Status Errno(const char* what) {
  return Unavailable(std::string("shared memory: ") + what + ": " + ErrnoText(errno));
}

}  // namespace

Result<std::unique_ptr<ShmSegment>> ShmSegment::Map(int fd, uint64_t bytes) {
  void* base = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (base == MAP_FAILED) return Errno("mmap");
  madvise(base, bytes, MADV_DONTFORK);
  return std::unique_ptr<ShmSegment>(new ShmSegment(fd, base, bytes));
}

Result<std::unique_ptr<ShmSegment>> ShmSegment::Create(uint32_t rings, uint64_t ring_bytes) {
  const uint64_t bytes = SegmentBytes(rings, ring_bytes);
  if (bytes > CgroupHeadroom() / 2) {
    return Unavailable("shared memory: the memory cgroup leaves too little for " +
                       std::to_string(bytes) + " bytes");
  }
  int fd = memfd_create("tfring", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (fd < 0) return Errno("memfd_create");
  // fallocate, not ftruncate: missing memory must be an error now and not a SIGBUS later.
  if (fallocate(fd, 0, 0, static_cast<off_t>(bytes)) != 0 || fcntl(fd, F_ADD_SEALS, kSeals) != 0) {
    Status status = Errno("fallocate");
    close(fd);
    return status;
  }
  Result<std::unique_ptr<ShmSegment>> segment = Map(fd, bytes);
  if (!segment.ok()) {
    close(fd);
    return segment;
  }
  auto* header = new ((*segment)->base_) ShmHeader;
  header->rings = rings;
  header->ring_bytes = ring_bytes;
  for (uint32_t i = 0; i < rings; ++i) new ((*segment)->ring(i)) ShmRing;
  if (getrandom(header->nonce.data(), header->nonce.size(), 0) !=
      static_cast<ssize_t>(header->nonce.size())) {
    return Errno("getrandom");
  }
  return segment;
}

Result<std::unique_ptr<ShmSegment>> ShmSegment::Open(pid_t pid, int fd, const ShmNonce& nonce,
                                                     uint32_t rings, uint64_t ring_bytes) {
  const std::string path = "/proc/" + std::to_string(pid) + "/fd/" + std::to_string(fd);
  int mine = open(path.c_str(), O_RDWR | O_CLOEXEC);
  if (mine < 0) return Errno(("open " + path).c_str());
  const uint64_t bytes = SegmentBytes(rings, ring_bytes);
  struct stat info;
  const int seals = fcntl(mine, F_GET_SEALS);
  const bool shape_ok = seals >= 0 && (seals & kSeals) == kSeals && fstat(mine, &info) == 0 &&
                        info.st_size == static_cast<off_t>(bytes);
  if (!shape_ok) {
    close(mine);
    return Unavailable("shared memory: " + path + " is not the segment that was announced");
  }
  Result<std::unique_ptr<ShmSegment>> segment = Map(mine, bytes);
  close(mine);
  if (!segment.ok()) return segment;
  (*segment)->fd_ = -1;
  const ShmHeader* header = (*segment)->header();
  if (header->nonce != nonce || header->rings != rings || header->ring_bytes != ring_bytes) {
    return Unavailable("shared memory: " + path + " has another nonce");
  }
  return segment;
}

ShmSegment::~ShmSegment() {
  munmap(base_, bytes_);
  if (fd_ >= 0) close(fd_);
}

ShmRing* ShmSegment::ring(uint32_t index) const {
  auto* first = reinterpret_cast<ShmRing*>(static_cast<uint8_t*>(base_) + sizeof(ShmHeader));
  return first + index;
}

uint8_t* ShmSegment::data(uint32_t index) const {
  const ShmHeader* h = header();
  return static_cast<uint8_t*>(base_) + (bytes_ - (h->rings - index) * h->ring_bytes);
}

void ShmSegment::WakeOwner() const {
  ShmHeader* h = header();
  h->doorbell.fetch_add(1, std::memory_order_seq_cst);
  if (h->sleeping.load(std::memory_order_seq_cst) != 0) {
    syscall(SYS_futex, &h->doorbell, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
  }
}

}  // namespace tfring
