// The memory in which ranks of a host meet: its seals, and who has it.
#include "ops/runtime/transport/shm_segment.h"

#include <fcntl.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>

#include "ops/runtime/interfaces/host_memory.h"
#include "tests/cc/test.h"

namespace tfring::shm_segment_test {
namespace {

TEST(OpenRefusesAnotherNonceAndAnotherShape) {
  auto segment = ShmSegment::Create(2, 65536);
  ASSERT_TRUE(segment.ok());
  ShmNonce nonce = (*segment)->header()->nonce;
  const int fd = (*segment)->fd();
  EXPECT_TRUE(ShmSegment::Open(getpid(), fd, nonce, 2, 65536).ok());
  EXPECT_TRUE(!ShmSegment::Open(getpid(), fd, nonce, 3, 65536).ok());
  nonce[0] ^= 1;
  EXPECT_TRUE(!ShmSegment::Open(getpid(), fd, nonce, 2, 65536).ok());
  EXPECT_TRUE(!ShmSegment::Open(getpid(), 0, nonce, 2, 65536).ok());
}

// A peer can write to the header; what it says there must not lead out of the segment.
TEST(PlacesInASegmentDoNotFollowItsHeader) {
  auto own = ShmSegment::Create(2, 65536, 4096);
  ASSERT_TRUE(own.ok());
  const ShmSegment& segment = **own;
  uint8_t* const data = segment.data(1);
  char* const part = segment.part();
  segment.header()->rings = 1u << 30;
  segment.header()->ring_bytes = uint64_t{1} << 40;
  EXPECT_TRUE(segment.data(1) == data && segment.part() == part);
  EXPECT_EQ(segment.ring_bytes(), uint64_t{65536});
}

// Whether this process holds or maps a segment, its own or one of a peer.
bool HasSegment() {
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    if (line.find("memfd:tfring") != std::string::npos) return true;
  }
  for (const auto& fd : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code gone;
    const std::string target = std::filesystem::read_symlink(fd.path(), gone).string();
    if (target.find("memfd:tfring") != std::string::npos) return true;
  }
  return false;
}

TEST(ChildrenKeepNoSegmentAliveWhetherForkedOrStarted) {
  auto own = ShmSegment::Create(1, 65536, HostMemory::kPartBytes);
  ASSERT_TRUE(own.ok());
  const ShmSegment& segment = **own;
  auto peers = ShmSegment::Open(getpid(), segment.fd(), segment.header()->nonce, 1, 65536,
                                HostMemory::kPartBytes);
  ASSERT_TRUE(peers.ok());
  EXPECT_TRUE(HasSegment());
  const pid_t forked = fork();
  if (forked == 0) _exit(HasSegment() ? 1 : 0);
  int status = -1;
  EXPECT_EQ(waitpid(forked, &status, 0), forked);
  EXPECT_EQ(status, 0);
  // As Python's subprocess does: no handler of fork runs in such a child.
  const char* const look =
      "! grep -q memfd:tfring /proc/self/maps && ! ls -l /proc/self/fd | grep -q memfd:tfring";
  const char* const arguments[] = {"sh", "-c", look, nullptr};
  pid_t started = -1;
  ASSERT_EQ(posix_spawn(&started, "/bin/sh", nullptr, nullptr, const_cast<char* const*>(arguments),
                        environ),
            0);
  EXPECT_EQ(waitpid(started, &status, 0), started);
  EXPECT_EQ(status, 0);
}

// Else a rank that makes its segment smaller kills the ranks that read it, with SIGBUS.
TEST(ASegmentCannotChangeItsSize) {
  auto segment = ShmSegment::Create(1, 65536);
  ASSERT_TRUE(segment.ok());
  const int fd = (*segment)->fd();
  struct stat info;
  ASSERT_EQ(fstat(fd, &info), 0);
  for (const off_t size : {off_t{0}, info.st_size - 4096, info.st_size + 4096}) {
    EXPECT_TRUE(ftruncate(fd, size) == -1 && errno == EPERM);
  }
  EXPECT_TRUE(fallocate(fd, 0, info.st_size, 4096) == -1 && errno == EPERM);
  EXPECT_TRUE(fcntl(fd, F_ADD_SEALS, F_SEAL_WRITE) == -1 && errno == EPERM);
  EXPECT_EQ(fcntl(fd, F_GET_SEALS), F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL);
  EXPECT_EQ(info.st_blocks * 512, info.st_size);  // all of it is there: no access can fail later
}

TEST(OpenRefusesASegmentThatIsNotSealed) {
  auto segment = ShmSegment::Create(1, 65536);
  ASSERT_TRUE(segment.ok());
  struct stat info;
  ASSERT_EQ(fstat((*segment)->fd(), &info), 0);
  const auto bytes = static_cast<size_t>(info.st_size);
  const ShmNonce nonce = (*segment)->header()->nonce;
  for (const int seals : {F_SEAL_GROW | F_SEAL_SEAL, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL}) {
    const UniqueFd copy(memfd_create("copy", MFD_CLOEXEC | MFD_ALLOW_SEALING));
    ASSERT_TRUE(copy.valid());
    ASSERT_EQ(write(copy.get(), (*segment)->header(), bytes), static_cast<ssize_t>(bytes));
    ASSERT_EQ(fcntl(copy.get(), F_ADD_SEALS, seals), 0);
    const bool sealed = (seals & F_SEAL_SHRINK) != 0;
    EXPECT_EQ(ShmSegment::Open(getpid(), copy.get(), nonce, 1, 65536).ok(), sealed);
  }
}

}  // namespace
}  // namespace tfring::shm_segment_test
