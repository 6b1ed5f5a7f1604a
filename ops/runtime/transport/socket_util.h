#ifndef TFRING_OPS_RUNTIME_TRANSPORT_SOCKET_UTIL_H_
#define TFRING_OPS_RUNTIME_TRANSPORT_SOCKET_UTIL_H_

#include <string>

#include "ops/runtime/base/status.h"
#include "ops/runtime/base/types.h"
#include "ops/runtime/transport/unique_fd.h"

namespace tfring {

// For poll and epoll: rounded up, so that a wait does not end before its deadline; -1 for kNever.
int MillisecondsUntil(TimePoint deadline, TimePoint now);

// "Connection reset by peer (ECONNRESET)" without the static buffer of strerror.
std::string ErrnoText(int error);

// Makes a connected stream socket non-blocking, closed on exec and, for TCP, without Nagle's delay.
// InvalidArgument if the descriptor is not a socket.
Status PrepareSocket(int fd);

// Sets the sizes of the socket's buffers to `bytes`, where the system allows that much. A smaller
// fixed size would be worse than the kernel's own tuning, which ends when a size is set.
void WidenBuffers(int fd, int bytes);

// Has the kernel ask the peer's kernel for a sign of life after so much silence, at least a second,
// and break the connection after several probes without an answer. It does not depend on the peer's
// process. Does nothing on sockets that are not TCP.
void KeepAlive(int fd, Duration interval);

// A non-blocking eventfd.
Result<UniqueFd> NewEventFd();
void SignalEventFd(const UniqueFd& fd);

// A descriptor that becomes readable when the process ends; not valid if the kernel has none.
UniqueFd OpenPidFd(int64_t pid);

}  // namespace tfring

#endif  // TFRING_OPS_RUNTIME_TRANSPORT_SOCKET_UTIL_H_
