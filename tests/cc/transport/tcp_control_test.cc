// What the control transport tells the engine about life and death of its peers.
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <string>
#include <utility>
#include <vector>

#include "ops/runtime/transport/framing.h"
#include "ops/runtime/transport/socket_util.h"
#include "tests/cc/test.h"
#include "tests/cc/transport/fixture.h"

namespace tfring::tcp_control_test {
namespace {

std::string FramedBytes(const std::string& frame) {
  const auto header = FrameHeader(frame.size());
  return std::string(header.data(), header.size()) + frame;
}

TEST(TheEndOfAProcessIsSeenWithoutAConnectionToIt) {
  const pid_t child = fork();
  if (child == 0) {
    pause();
    _exit(0);
  }
  std::vector<TcpControlTransport::Peer> peers;
  const auto fds = ConnectedSockets(Link::kUnix);
  peers.push_back({0, UniqueFd(fds.first), 0, "", ""});
  UniqueFd other(fds.second);
  auto made = TcpControlTransport::Create(std::move(peers), {{0, getpid()}, {2, child}});
  ASSERT_TRUE(made.ok());
  std::vector<ControlEvent> events;
  (*made)->Wait(In(kSecond / 100), &events);
  EXPECT_TRUE(events.empty());
  kill(child, SIGKILL);
  events = Collect(made->get(), 1);
  ASSERT_EQ(events.size(), size_t{1});
  EXPECT_TRUE(events[0].kind == ControlEvent::Kind::kPeerLost);
  EXPECT_EQ(events[0].peer, 2);
  EXPECT_EQ(events[0].reason, "process " + std::to_string(child) + " on this host ended");
  events.clear();
  (*made)->Wait(In(kSecond / 100), &events);
  EXPECT_TRUE(events.empty());  // once
  waitpid(child, nullptr, 0);
}

TEST(OneWaitReadsAllPeers) {
  constexpr int kPeers = 200;
  std::map<Rank, int> fds;
  std::vector<UniqueFd> others;
  const std::string frame = FramedBytes("hello");
  for (Rank rank = 1; rank <= kPeers; ++rank) {
    const auto ends = ConnectedSockets(Link::kUnix);
    fds[rank] = ends.first;
    others.emplace_back(ends.second);
    ASSERT_EQ(send(ends.second, frame.data(), frame.size(), 0), static_cast<ssize_t>(frame.size()));
  }
  auto transport = ControlOver(fds);
  std::vector<ControlEvent> events;
  transport->Wait(In(10 * kSecond), &events);
  EXPECT_EQ(events.size(), size_t{kPeers});
}

TEST(PartOfAFrameIsASignOfLife) {
  const auto ends = ConnectedSockets(Link::kUnix);
  auto transport = ControlOver({{1, ends.first}});
  UniqueFd other(ends.second);
  const std::string frame = FramedBytes("hello");
  ASSERT_EQ(send(other.get(), frame.data(), frame.size() - 1, 0),
            static_cast<ssize_t>(frame.size() - 1));
  std::vector<ControlEvent> events;
  transport->Wait(In(10 * kSecond), &events);
  ASSERT_EQ(events.size(), size_t{1});
  EXPECT_TRUE(events[0].kind == ControlEvent::Kind::kAlive);
  ASSERT_EQ(send(other.get(), frame.data() + frame.size() - 1, 1, 0), ssize_t{1});
  events.clear();
  transport->Wait(In(10 * kSecond), &events);
  ASSERT_EQ(events.size(), size_t{1});
  EXPECT_EQ(events[0].frame, "hello");
}

}  // namespace
}  // namespace tfring::tcp_control_test
