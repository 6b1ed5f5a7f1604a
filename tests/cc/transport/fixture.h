#ifndef TFRING_TESTS_CC_TRANSPORT_FIXTURE_H_
#define TFRING_TESTS_CC_TRANSPORT_FIXTURE_H_

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <map>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "ops/runtime/base/clock.h"
#include "ops/runtime/transport/mpi_data.h"
#include "ops/runtime/transport/shm_data.h"
#include "ops/runtime/transport/tcp_control.h"
#include "ops/runtime/transport/tcp_data.h"
#include "tests/cc/transport/fake_mpi.h"

// Connected sockets and transports over them, for tests.
namespace tfring {

enum class Link { kInProcess, kUnix, kTcp, kSharedMemory, kMpi };

// Two ends of one connection, or {-1, -1}. Shared memory is agreed upon over a unix socket.
inline std::pair<int, int> ConnectedSockets(Link link) {
  int fds[2] = {-1, -1};
  if (link != Link::kTcp) {
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds) != 0) return {-1, -1};
    return {fds[0], fds[1]};
  }
  const int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof(address);
  auto* any = reinterpret_cast<sockaddr*>(&address);
  if (bind(listener, any, length) == 0 && listen(listener, 1) == 0 &&
      getsockname(listener, any, &length) == 0) {
    fds[0] = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (connect(fds[0], any, length) == 0) {
      fds[1] = accept4(listener, nullptr, nullptr, SOCK_CLOEXEC);
    }
  }
  close(listener);
  return {fds[0], fds[1]};
}

// Null if a descriptor is no socket.
inline std::unique_ptr<TcpControlTransport> ControlOver(std::map<Rank, int> fds,
                                                        std::map<Rank, int64_t> pids = {}) {
  std::vector<TcpControlTransport::Peer> peers;
  for (auto [rank, fd] : fds) {
    peers.push_back({rank, UniqueFd(fd), pids.count(rank) != 0 ? pids[rank] : 0, "", ""});
  }
  auto made = TcpControlTransport::Create(std::move(peers));
  return made.ok() ? std::move(*made) : nullptr;
}

inline std::unique_ptr<TcpDataTransport> DataOver(std::map<Rank, int> fds) {
  std::map<Rank, UniqueFd> sockets;
  for (auto [rank, fd] : fds) sockets.emplace(rank, UniqueFd(fd));
  auto made = TcpDataTransport::Create(std::move(sockets));
  return made.ok() ? std::move(*made) : nullptr;
}

// One end of shared memory between this rank and `peer`, which has the other end of socket `fd` and
// must do the same at the same time.
inline std::unique_ptr<DataTransport> SharedMemoryOver(Rank peer, int fd) {
  auto made = ShmDataTransport::Connect(ShmUse::kWherePossible, {{peer, fd}},
                                        DataOver({{peer, fd}}), MonotonicNow() + 10 * kSecond);
  return made.ok() ? std::move(*made) : nullptr;
}

inline TimePoint In(Duration wait) { return MonotonicNow() + wait; }

// Waits until `count` events have come, besides signs of life, at most 20 s.
inline std::vector<ControlEvent> Collect(ControlTransport* transport, size_t count) {
  std::vector<ControlEvent> events;
  const TimePoint deadline = In(20 * kSecond);
  while (events.size() < count && MonotonicNow() < deadline) {
    transport->Wait(deadline, &events);
    const auto alive = [](const ControlEvent& e) { return e.kind == ControlEvent::Kind::kAlive; };
    events.erase(std::remove_if(events.begin(), events.end(), alive), events.end());
  }
  return events;
}

struct DataPair {
  std::unique_ptr<DataTransport> a;  // rank 0
  std::unique_ptr<DataTransport> b;  // rank 1
};

// One end of the streams of a world of FakeMpi.
inline std::unique_ptr<DataTransport> MpiOver(int world, Rank self, int size) {
  auto made = MpiDataTransport::Create(FakeMpi(), FakeMpiHandle(world, self), self, size);
  return made.ok() ? std::move(*made) : nullptr;
}

// Connected data transports, but for kInProcess.
inline DataPair ConnectedData(Link link) {
  if (link == Link::kMpi) {
    const int world = NewFakeMpiWorld(2);
    return {MpiOver(world, 0, 2), MpiOver(world, 1, 2)};
  }
  auto [a, b] = ConnectedSockets(link);
  if (link != Link::kSharedMemory) return {DataOver({{1, a}}), DataOver({{0, b}})};
  DataPair pair;
  std::thread other([&pair, fd = b] { pair.b = SharedMemoryOver(0, fd); });
  pair.a = SharedMemoryOver(1, a);
  other.join();
  return pair;
}

}  // namespace tfring

#endif  // TFRING_TESTS_CC_TRANSPORT_FIXTURE_H_
