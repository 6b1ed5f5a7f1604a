// Connections that ranks open when they first need them.
#include "ops/runtime/transport/peer_connector.h"

#include <sys/resource.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>
#include <memory>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "ops/runtime/transport/tcp_data.h"
#include "tests/cc/test.h"
#include "tests/cc/transport/fixture.h"
#include "tests/cc/transport/strangers.h"

namespace tfring::peer_connector_test {
namespace {

// Moves one byte, as a ScheduleRunner does.
Status Move(DataTransport* transport, Rank peer, bool sends, char* byte,
            TimePoint deadline = In(20 * kSecond)) {
  const iovec iov{byte, 1};
  while (MonotonicNow() < deadline) {
    const Result<int64_t> moved =
        sends ? transport->TrySend(peer, &iov, 1) : transport->TryRecv(peer, &iov, 1);
    if (!moved.ok()) return moved.status();
    if (*moved == 1) return OkStatus();
    WaitSet what;
    (sends ? what.writable : what.readable).push_back(peer);
    what.deadline = deadline;
    (void)transport->Wait(what);
  }
  return DeadlineExceeded("nothing moved");
}

TEST(RanksConnectWhenTheyFirstSendOrReceive) {
  const int size = 5;
  Strangers job(size);
  EXPECT_TRUE(job.ranks[0]->Connected(4) && !job.ranks[0]->Connected(0));
  EXPECT_TRUE(!job.ranks[0]->Connected(5));
  std::vector<std::thread> threads;
  for (Rank self = 0; self < size; ++self) {
    threads.emplace_back([&job, self] {
      // In an order in which some wait for others that wait for others; both directions.
      for (int step = 1; step < size; ++step) {
        const Rank to = (self + step) % size;
        const Rank from = (self + size - step) % size;
        char out = static_cast<char>(10 * self + to);
        char in = 0;
        EXPECT_TRUE(Move(job.ranks[self].get(), to, true, &out).ok());
        EXPECT_TRUE(Move(job.ranks[self].get(), from, false, &in).ok());
        EXPECT_EQ(in, static_cast<char>(10 * from + self));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST(AHigherRankWaitsUntilTheLowerOneNeedsTheConnection) {
  Strangers job(2);
  char out = 7;
  EXPECT_TRUE(Move(job.ranks[1].get(), 0, true, &out, In(50 * kMillisecond)).code() ==
              StatusCode::kDeadlineExceeded);
  EXPECT_EQ(job.ranks[1]->PathTrouble(0), "");  // its kernel has answered
  std::thread lower([&job] {
    char in = 0;
    EXPECT_TRUE(Move(job.ranks[0].get(), 1, false, &in).ok());
    EXPECT_EQ(in, 7);
  });
  EXPECT_TRUE(Move(job.ranks[1].get(), 0, true, &out).ok());
  lower.join();
}

TEST(ARankThatCannotBeReachedIsNamedWithItsAddress) {
  Strangers job(2, {}, 300 * kMillisecond);
  job.ranks[0].reset();
  char out = 0;
  const Status status = Move(job.ranks[1].get(), 0, true, &out);
  EXPECT_TRUE(status.code() == StatusCode::kUnavailable);
  EXPECT_CONTAINS(status.message(), "rank 1 cannot connect to rank 0 at 127.0.0.1 port " +
                                        std::to_string(job.ports[0]));
  EXPECT_CONTAINS(status.message(), "Connection refused");
  EXPECT_CONTAINS(status.message(), "TFRING_INTERFACE");
  EXPECT_CONTAINS(job.ranks[1]->PathTrouble(0), "nothing answers at 127.0.0.1");
}

TEST(WhoHasAnotherKeyIsNotAccepted) {
  Strangers job(2, {kKey, std::string(32, 'x')}, 300 * kMillisecond);
  std::thread lower([&job] {
    char in = 0;
    EXPECT_TRUE(Move(job.ranks[0].get(), 1, false, &in, In(kSecond)).code() ==
                StatusCode::kDeadlineExceeded);
  });
  char out = 0;
  const Status status = Move(job.ranks[1].get(), 0, true, &out);
  EXPECT_TRUE(status.code() == StatusCode::kUnavailable);
  EXPECT_CONTAINS(status.message(), "closed the connection");
  lower.join();
}

void Connect(int fd, int port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  EXPECT_EQ(connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
}

int ConnectTo(int port) {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  Connect(fd, port);
  return fd;
}

// Whether the other side has not closed it; takes what it has said.
bool IsOpen(const UniqueFd& socket) {
  char bytes[256];
  ssize_t n = 0;
  do {
    n = recv(socket.get(), bytes, sizeof(bytes), MSG_DONTWAIT);
  } while (n > 0);
  return n < 0 && errno == EAGAIN;
}

// Some that say nothing, some that say anything, and more of them than may wait.
TEST(StrangersDelayNobody) {
  Strangers job(2, {}, 60 * kSecond, 4);
  std::vector<UniqueFd> strangers;
  for (int i = 0; i < 40; ++i) {
    strangers.emplace_back(ConnectTo(job.ports[0]));
    const std::string noise(200, static_cast<char>(i));
    if (i % 2 == 0) send(strangers.back().get(), noise.data(), noise.size(), MSG_NOSIGNAL);
  }
  std::thread lower([&job] {
    char in = 0;
    EXPECT_TRUE(Move(job.ranks[0].get(), 1, false, &in).ok());
  });
  char out = 1;
  EXPECT_TRUE(Move(job.ranks[1].get(), 0, true, &out).ok());
  lower.join();
  int kept = 0;
  for (const UniqueFd& stranger : strangers) kept += IsOpen(stranger) ? 1 : 0;
  EXPECT_TRUE(kept <= 6);  // one for each rank, and four
}

std::unique_ptr<PeerConnector> ConnectorOf(Rank self, UniqueFd listener, std::vector<int> ports,
                                           Duration limit, size_t strangers = 256,
                                           Duration hello_limit = 60 * kSecond) {
  PeerAddresses addresses{self, std::move(listener), {}, kKey, limit, strangers, hello_limit};
  for (const int port : ports) addresses.endpoints.emplace_back("127.0.0.1", port);
  auto made = PeerConnector::Create(std::move(addresses));
  EXPECT_TRUE(made.ok());
  return std::move(*made);
}

// Advances until `done`.
template <typename Done>
Status AdvanceUntil(PeerConnector* connector, Rank peer, Done done) {
  const TimePoint deadline = In(20 * kSecond);
  while (MonotonicNow() < deadline) {
    TFRING_RETURN_IF_ERROR(connector->Advance(peer));
    if (done()) return OkStatus();
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return DeadlineExceeded("nothing happened");
}

bool HasChallenge(const UniqueFd& stranger) {
  char byte;
  return recv(stranger.get(), &byte, 1, MSG_DONTWAIT | MSG_PEEK) == 1;
}

TEST(AConnectionThatIsLostAfterALongWaitIsTriedAgain) {
  Listening lower = Listen();
  const std::vector<int> ports{lower.port, 1};
  auto higher = ConnectorOf(1, Listen().socket, ports, 300 * kMillisecond);
  const auto answered = [&higher] { return higher->Trouble(0).empty(); };
  ASSERT_TRUE(AdvanceUntil(higher.get(), 0, answered).ok());
  std::this_thread::sleep_for(std::chrono::milliseconds(400));
  UniqueFd(accept4(lower.socket.get(), nullptr, nullptr, SOCK_CLOEXEC)).Reset();
  auto accepting = ConnectorOf(0, std::move(lower.socket), ports, 60 * kSecond);
  bool accepted = false;
  const Status status = AdvanceUntil(higher.get(), 0, [&] {
    EXPECT_TRUE(accepting->Advance(1).ok());
    accepted |= !accepting->TakeReady().empty();
    return !higher->TakeReady().empty();
  });
  EXPECT_EQ(status.message(), "");
  EXPECT_TRUE(accepted);
}

TEST(StrangersTakeNoConnectionThatThisRankHasBegun) {
  const Listening lower = Listen();
  Listening own = Listen();
  const std::vector<int> ports{lower.port, own.port};
  auto connector = ConnectorOf(1, std::move(own.socket), ports, 60 * kSecond, 0);
  const auto answered = [&connector] { return connector->Trouble(0).empty(); };
  ASSERT_TRUE(AdvanceUntil(connector.get(), 0, answered).ok());
  std::vector<UniqueFd> strangers;
  for (int i = 0; i < 40; ++i) strangers.emplace_back(ConnectTo(own.port));
  const auto all_came = [&strangers] { return HasChallenge(strangers.back()); };
  ASSERT_TRUE(AdvanceUntil(connector.get(), 0, all_came).ok());
  EXPECT_TRUE(IsOpen(UniqueFd(accept4(lower.socket.get(), nullptr, nullptr, SOCK_CLOEXEC))));
}

TEST(AStrangerThatSaysNothingIsDropped) {
  Listening own = Listen();
  auto connector =
      ConnectorOf(0, std::move(own.socket), {own.port, 1}, 60 * kSecond, 256, 50 * kMillisecond);
  const UniqueFd stranger(ConnectTo(own.port));
  const auto came = [&stranger] { return HasChallenge(stranger); };
  ASSERT_TRUE(AdvanceUntil(connector.get(), 1, came).ok());
  const auto dropped = [&stranger] { return !IsOpen(stranger); };
  EXPECT_TRUE(AdvanceUntil(connector.get(), 1, dropped).ok());
}

TEST(AStrangerGivesItsDescriptorToTheNext) {
  Listening own = Listen();
  auto connector = ConnectorOf(0, std::move(own.socket), {own.port, 1}, 60 * kSecond);
  const UniqueFd stranger(ConnectTo(own.port));
  const UniqueFd next(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const auto came = [&stranger] { return HasChallenge(stranger); };
  ASSERT_TRUE(AdvanceUntil(connector.get(), 1, came).ok());
  Connect(next.get(), own.port);
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  rlimit full = before;
  full.rlim_cur = static_cast<rlim_t>(UniqueFd(dup(next.get())).get());  // all below are open
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &full), 0);
  const auto next_came = [&next] { return HasChallenge(next); };
  const Status status = AdvanceUntil(connector.get(), 1, next_came);
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
  EXPECT_EQ(status.message(), "");
  EXPECT_TRUE(!IsOpen(stranger));
}

// Another process has the port of rank 0, and answers as it likes.
TEST(AListenerWithoutTheKeyIsNotTrusted) {
  const Listening other = Listen();
  PeerAddresses addresses{
      1, Listen().socket, {{"127.0.0.1", other.port}, {"127.0.0.1", 1}}, kKey, 300 * kMillisecond};
  auto connector = PeerConnector::Create(std::move(addresses));
  ASSERT_TRUE(connector.ok());
  std::thread impostor([&other] {
    for (;;) {
      const UniqueFd peer(accept4(other.socket.get(), nullptr, nullptr, SOCK_CLOEXEC));
      if (!peer.valid()) return;  // the test is over
      const std::string challenge = "TFRDATA1" + std::string(32, 'n');
      send(peer.get(), challenge.data(), challenge.size(), MSG_NOSIGNAL);
      char hello[80];
      if (recv(peer.get(), hello, sizeof(hello), MSG_WAITALL) != sizeof(hello)) continue;
      // What it was told itself is no proof.
      send(peer.get(), hello + 48, 32, MSG_NOSIGNAL);
      (void)recv(peer.get(), hello, 1, MSG_WAITALL);
    }
  });
  Status status = OkStatus();
  const TimePoint deadline = In(20 * kSecond);
  while (status.ok() && MonotonicNow() < deadline) {
    status = (*connector)->Advance(0);
    EXPECT_TRUE((*connector)->TakeReady().empty());
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  EXPECT_CONTAINS(status.message(), "is of another job");
  connector->reset();  // the impostor may wait for what its last connection says
  shutdown(other.socket.get(), SHUT_RDWR);
  impostor.join();
}

TEST(TooFewDescriptorsAreNamed) {
  Strangers job(2);
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  rlimit none = before;
  none.rlim_cur = 0;
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &none), 0);
  char out = 0;
  const Status status = Move(job.ranks[1].get(), 0, true, &out);
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
  EXPECT_TRUE(status.code() == StatusCode::kInternal);
  EXPECT_CONTAINS(status.message(), "rank 1 cannot connect to rank 0: Too many open files");
  EXPECT_CONTAINS(status.message(), "ulimit");
}

}  // namespace
}  // namespace tfring::peer_connector_test
