#include "ops/runtime/transport/socket_util.h"

#include <fcntl.h>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstddef>
#include <cstdlib>
#include <cstring>

namespace tfring {

int MillisecondsUntil(TimePoint deadline, TimePoint now) {
  if (deadline == kNever) return -1;
  if (deadline <= now) return 0;
  const Duration wait = deadline - now;
  const Duration milliseconds = wait / kMillisecond + (wait % kMillisecond != 0 ? 1 : 0);
  return milliseconds > INT_MAX ? INT_MAX : static_cast<int>(milliseconds);
}

std::string ErrnoText(int error) {
  char buffer[128] = "";
  // The GNU form returns the text, which need not lie in `buffer`.
  const char* text = strerror_r(error, buffer, sizeof(buffer));
  const char* name = strerrorname_np(error);
  return std::string(text) + " (" + (name != nullptr ? name : std::to_string(error).c_str()) + ")";
}

Status PrepareSocket(int fd) {
  struct stat info;
  if (fstat(fd, &info) != 0 || !S_ISSOCK(info.st_mode)) {
    return InvalidArgument("descriptor " + std::to_string(fd) + " is not an open socket");
  }
  const int flags = fcntl(fd, F_GETFL);
  if (flags < 0 || fcntl(fd, F_SETFL, flags | O_NONBLOCK) != 0 ||
      fcntl(fd, F_SETFD, FD_CLOEXEC) != 0) {
    return Internal("descriptor " + std::to_string(fd) + ": fcntl: " + ErrnoText(errno));
  }
  const int on = 1;  // fails on sockets that are not TCP, which have no such delay
  (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
  return OkStatus();
}

void WidenBuffers(int fd, int bytes) {
  for (int option : {SO_SNDBUF, SO_RCVBUF}) {
    const char* limit_file =
        option == SO_SNDBUF ? "/proc/sys/net/core/wmem_max" : "/proc/sys/net/core/rmem_max";
    char text[32] = "";
    const int limit = open(limit_file, O_RDONLY | O_CLOEXEC);
    if (limit < 0) continue;
    const ssize_t n = read(limit, text, sizeof(text) - 1);
    close(limit);
    if (n <= 0 || std::strtoll(text, nullptr, 10) < bytes) continue;
    (void)setsockopt(fd, SOL_SOCKET, option, &bytes, sizeof(bytes));
  }
}

void KeepAlive(int fd, Duration interval) {
  const int on = 1;
  const int seconds = static_cast<int>(std::max<Duration>(1, interval / kSecond));
  const int probes = 6;
  if (setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &seconds, sizeof(seconds)) != 0) return;
  (void)setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &seconds, sizeof(seconds));
  (void)setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &probes, sizeof(probes));
  (void)setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof(on));
}

Result<UniqueFd> NewEventFd() {
  const int fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (fd < 0) return Internal("eventfd: " + ErrnoText(errno));
  return UniqueFd(fd);
}

void SignalEventFd(const UniqueFd& fd) {
  const uint64_t one = 1;
  // Fails only when the counter is full, and then the reader has been woken already.
  ssize_t n = write(fd.get(), &one, sizeof(one));
  (void)n;
}

UniqueFd OpenPidFd(int64_t pid) {
#ifdef SYS_pidfd_open
  if (pid > 0) return UniqueFd(static_cast<int>(syscall(SYS_pidfd_open, pid, 0)));
#endif
  return UniqueFd();
}

}  // namespace tfring
