// What only the socket transports have: hostile bytes, process watching, descriptors and forks.
#include <fcntl.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <string>
#include <vector>

#include "ops/runtime/base/clock.h"
#include "ops/runtime/transport/fork_guard.h"
#include "ops/runtime/transport/framing.h"
#include "ops/runtime/transport/socket_util.h"
#include "tests/cc/test.h"
#include "tests/cc/transport/fixture.h"

namespace tfring::sockets_test {
namespace {

using Kind = ControlEvent::Kind;

TEST(FrameReaderCutsAnyStream) {
  std::string stream;
  std::vector<std::string> frames = {"", "a", std::string(300, 'b'), "c", ""};
  for (const std::string& frame : frames) {
    const auto header = FrameHeader(frame.size());
    stream.append(header.data(), header.size());
    stream += frame;
  }
  for (size_t step = 1; step <= stream.size(); ++step) {
    FrameReader reader;
    std::vector<std::string> got;
    for (size_t at = 0; at < stream.size(); at += step) {
      Status fed = reader.Feed(std::string_view(stream).substr(at, step),
                               [&](std::string frame) { got.push_back(std::move(frame)); });
      EXPECT_TRUE(fed.ok());
    }
    EXPECT_TRUE(got == frames);
    EXPECT_EQ(reader.pending(), size_t{0});
  }
}

TEST(FrameReaderRefusesLongFrames) {
  FrameReader reader(100);
  const auto header = FrameHeader(101);
  Status fed = reader.Feed({header.data(), header.size()}, [](std::string) {});
  EXPECT_TRUE(fed.code() == StatusCode::kInvalidArgument);
  EXPECT_CONTAINS(fed.message(), "101");
}

TEST(AWatchedStreamThatBreaksEndsTheWait) {
  auto [a, b] = ConnectedSockets(Link::kTcp);
  auto [c, d] = ConnectedSockets(Link::kTcp);
  auto transport = DataOver({{1, a}, {2, c}});
  int probes = 0;
  socklen_t size = sizeof(probes);
  EXPECT_EQ(getsockopt(c, SOL_SOCKET, SO_KEEPALIVE, &probes, &size), 0);
  EXPECT_EQ(probes, 1);
  EXPECT_EQ(transport->PathTrouble(2), "");
  char byte = 1;
  const iovec iov{&byte, 1};
  EXPECT_EQ(*transport->TrySend(2, &iov, 1), 1);
  // Rank 2 has not read it and closes: a reset. Rank 1 only keeps the wait busy.
  close(d);
  const std::optional<BrokenStream> broken = transport->Wait({{1}, {}, {2}, In(20 * kSecond)});
  ASSERT_TRUE(broken.has_value());
  EXPECT_EQ(broken->peer, 2);
  EXPECT_TRUE(broken->status.code() == StatusCode::kUnavailable);
  EXPECT_CONTAINS(broken->status.message(), "rank 2 broke: Connection reset by peer");
  close(b);
}

TEST(AHostileLengthLosesThePeer) {
  auto [ours, theirs] = ConnectedSockets(Link::kTcp);
  auto transport = ControlOver({{3, ours}});
  const std::string bytes("\x02\x00\x00\x00ok\xff\xff\xff\xff and more", 19);
  EXPECT_EQ(send(theirs, bytes.data(), bytes.size(), 0), static_cast<ssize_t>(bytes.size()));
  std::vector<ControlEvent> events = Collect(transport.get(), 2);
  ASSERT_EQ(events.size(), size_t{2});
  EXPECT_EQ(events[0].frame, std::string("ok"));
  EXPECT_TRUE(events[1].kind == Kind::kPeerLost && events[1].peer == 3);
  EXPECT_CONTAINS(events[1].reason, "4294967295");
  close(theirs);
}

TEST(ABrokenPipeIsALossAndNoSignal) {
  auto [ours, theirs] = ConnectedSockets(Link::kTcp);
  auto transport = ControlOver({{1, ours}});
  close(theirs);
  std::vector<ControlEvent> events;
  for (int i = 0; i < 100 && events.empty(); ++i) {
    transport->Send(1, std::string(1000, 'x'));
    transport->Wait(MonotonicNow() + kMillisecond, &events);
  }
  ASSERT_EQ(events.size(), size_t{1});
  EXPECT_TRUE(events[0].kind == Kind::kPeerLost);
}

// A child of the peer still holds its socket, so that no end of file comes.
TEST(TheEndOfAProcessIsSeenBesideItsSocket) {
  auto [ours, theirs] = ConnectedSockets(Link::kTcp);
  const pid_t child = fork();
  if (child == 0) {
    const auto header = FrameHeader(4);
    const std::string last = std::string(header.data(), header.size()) + "last";
    (void)!write(theirs, last.data(), last.size());
    pause();
    _exit(0);
  }
  auto transport = ControlOver({{1, ours}}, {{1, child}});
  std::vector<ControlEvent> events = Collect(transport.get(), 1);
  kill(child, SIGKILL);
  if (!OpenPidFd(child).valid()) close(theirs);  // a kernel without pidfd
  while (events.size() < 2) {
    std::vector<ControlEvent> more = Collect(transport.get(), 1);
    if (more.empty()) break;
    events.insert(events.end(), more.begin(), more.end());
  }
  ASSERT_EQ(events.size(), size_t{2});
  EXPECT_EQ(events[0].frame, std::string("last"));
  EXPECT_TRUE(events[1].kind == Kind::kPeerLost);
  EXPECT_CONTAINS(events[1].reason, "process " + std::to_string(child));
  waitpid(child, nullptr, 0);
}

TEST(DescriptorsAreCheckedAndClosedOnExec) {
  auto [ours, theirs] = ConnectedSockets(Link::kTcp);
  fcntl(ours, F_SETFD, 0);
  auto transport = DataOver({{1, ours}});
  EXPECT_TRUE((fcntl(ours, F_GETFD) & FD_CLOEXEC) != 0);
  EXPECT_TRUE((fcntl(ours, F_GETFL) & O_NONBLOCK) != 0);
  close(theirs);
  const int file = open("/dev/null", O_RDONLY);
  std::map<Rank, UniqueFd> sockets;
  sockets.emplace(4, UniqueFd(file));
  auto refused = TcpDataTransport::Create(std::move(sockets));
  ASSERT_TRUE(!refused.ok());
  EXPECT_CONTAINS(refused.status().message(), "rank 4");
  EXPECT_EQ(fcntl(file, F_GETFD), -1);
}

TEST(AForkedChildHasNoSockets) {
  auto [ours, theirs] = ConnectedSockets(Link::kTcp);
  auto transport = ControlOver({{1, ours}});
  EXPECT_TRUE(!ForkGuard::InForkedChild());
  for (bool running : {false, true}) {
    if (running) ForkGuard::RuntimeStarts();
    const pid_t child = fork();
    if (child == 0) {
      const bool closed = fcntl(ours, F_GETFD) == -1 && fcntl(theirs, F_GETFD) != -1;
      _exit(closed && ForkGuard::InForkedChild() == running ? 0 : 1);
    }
    int status = -1;
    waitpid(child, &status, 0);
    EXPECT_EQ(status, 0);
    if (running) ForkGuard::RuntimeEnded();
  }
  EXPECT_TRUE(!ForkGuard::InForkedChild());
  close(theirs);
}

TEST(ADeadlineIsNeverRoundedDown) {
  EXPECT_EQ(MillisecondsUntil(kNever, 5), -1);
  EXPECT_EQ(MillisecondsUntil(5, 5), 0);
  EXPECT_EQ(MillisecondsUntil(4, 5), 0);
  EXPECT_EQ(MillisecondsUntil(6, 5), 1);
  EXPECT_EQ(MillisecondsUntil(5 + kMillisecond, 5), 1);
  EXPECT_EQ(MillisecondsUntil(6 + kMillisecond, 5), 2);
}

}  // namespace
}  // namespace tfring::sockets_test
