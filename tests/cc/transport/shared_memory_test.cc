// Shared memory between ranks of one host: agreement, byte streams, closing, interruption.
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstring>
#include <memory>
#include <random>
#include <thread>
#include <utility>
#include <vector>

#include "ops/runtime/transport/shm_data.h"
#include "ops/runtime/transport/shm_handshake.h"
#include "ops/runtime/transport/shm_segment.h"
#include "tests/cc/test.h"

namespace tfring {
namespace {

// Stands where sockets would serve ranks of other hosts.
class NoTransport final : public DataTransport {
 public:
  bool Connected(Rank) const override { return false; }
  Result<int64_t> TrySend(Rank, const struct iovec*, int) override { return Internal("unused"); }
  Result<int64_t> TryRecv(Rank, const struct iovec*, int) override { return Internal("unused"); }
  void Wait(const std::vector<Rank>&, const std::vector<Rank>&) override {}
  void Interrupt() override {}
  int64_t bytes_sent() const override { return 0; }
  void Close(TimePoint) override {}
};

TimePoint In(Duration d) { return std::chrono::steady_clock::now().time_since_epoch().count() + d; }

struct SocketPair {
  SocketPair() { created = socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, fds) == 0; }
  ~SocketPair() {
    close(fds[0]);
    close(fds[1]);
  }
  int fds[2] = {-1, -1};
  bool created = false;
};

using TransportPair = std::pair<std::unique_ptr<DataTransport>, std::unique_ptr<DataTransport>>;

TransportPair ConnectTwo() {
  SocketPair sockets;
  TransportPair both;
  std::thread other([&] {
    auto made = ShmDataTransport::Connect(true, {{0, sockets.fds[1]}},
                                          std::make_unique<NoTransport>(), In(10 * kSecond));
    if (made.ok()) both.second = std::move(*made);
  });
  auto made = ShmDataTransport::Connect(true, {{1, sockets.fds[0]}},
                                        std::make_unique<NoTransport>(), In(10 * kSecond));
  if (made.ok()) both.first = std::move(*made);
  other.join();
  return both;
}

uint8_t ByteAt(uint64_t position) { return static_cast<uint8_t>((position * 2654435761u) >> 13); }

// Sends `total` bytes of the known pattern in random pieces of random iovecs.
bool Produce(DataTransport* transport, Rank to, uint64_t total, uint32_t seed) {
  std::mt19937 random(seed);
  uint64_t sent = 0;
  std::vector<uint8_t> block;
  while (sent < total) {
    block.resize(std::min<uint64_t>(1 + random() % 70000, total - sent));
    for (size_t i = 0; i < block.size(); ++i) block[i] = ByteAt(sent + i);
    const size_t cut = random() % (block.size() + 1);
    const iovec iov[2] = {{block.data(), cut}, {block.data() + cut, block.size() - cut}};
    Result<int64_t> moved = transport->TrySend(to, iov, 2);
    if (!moved.ok()) return false;
    sent += static_cast<uint64_t>(*moved);
    if (*moved == 0) transport->Wait({}, {to});
  }
  return transport->bytes_sent() == static_cast<int64_t>(total);
}

// Receives it back, by copying or by looking.
bool ConsumeAll(DataTransport* transport, Rank from, uint64_t total, uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<uint8_t> block(65536);
  uint64_t received = 0;
  while (received < total) {
    const uint8_t* data = block.data();
    int64_t n = 0;
    const bool peek = random() % 2 == 0;
    if (peek) {
      Result<struct iovec> view = transport->Peek(from);
      if (!view.ok()) return false;
      data = static_cast<const uint8_t*>(view->iov_base);
      n = static_cast<int64_t>(std::min<size_t>(view->iov_len, 1 + random() % 5000));
    } else {
      const iovec iov{block.data(), 1 + random() % block.size()};
      Result<int64_t> moved = transport->TryRecv(from, &iov, 1);
      if (!moved.ok()) return false;
      n = *moved;
    }
    for (int64_t i = 0; i < n; ++i) {
      if (data[i] != ByteAt(received + static_cast<uint64_t>(i))) return false;
    }
    if (peek && n > 0) transport->Consume(from, n);
    received += static_cast<uint64_t>(n);
    if (n == 0) transport->Wait({from}, {});
  }
  return true;
}

TEST(ShmAgreesWithinOneHost) {
  TransportPair both = ConnectTwo();
  ASSERT_TRUE(both.first != nullptr && both.second != nullptr);
  EXPECT_TRUE(both.first->CanPeek(1));
  EXPECT_TRUE(both.second->CanPeek(0));
  EXPECT_TRUE(both.first->Connected(1));
  EXPECT_TRUE(!both.first->Connected(2));
}

TEST(ShmStreamsBothWaysAtOnce) {
  TransportPair both = ConnectTwo();
  ASSERT_TRUE(both.first != nullptr && both.second != nullptr);
  constexpr uint64_t kTotal = 20u << 20;
  bool sent = false;
  bool received = false;
  std::thread consumer([&] { received = ConsumeAll(both.second.get(), 0, kTotal, 7); });
  sent = Produce(both.first.get(), 1, kTotal, 5);
  consumer.join();
  EXPECT_TRUE(sent);
  EXPECT_TRUE(received);
}

TEST(ShmStreamsBetweenProcesses) {
  SocketPair sockets;
  ASSERT_TRUE(sockets.created);
  constexpr uint64_t kTotal = 30u << 20;
  const pid_t child = fork();
  const int self = child == 0 ? 1 : 0;
  const Rank peer = 1 - self;
  auto made = ShmDataTransport::Connect(true, {{peer, sockets.fds[self]}},
                                        std::make_unique<NoTransport>(), In(10 * kSecond));
  bool ok = made.ok() && (*made)->CanPeek(peer);
  if (child == 0) {
    ok = ok && Produce(made->get(), 0, kTotal, 1) && ConsumeAll(made->get(), 0, kTotal, 2);
    _exit(ok ? 0 : 1);
  }
  ok = ok && ConsumeAll(made->get(), 1, kTotal, 3) && Produce(made->get(), 1, kTotal, 4);
  int status = -1;
  waitpid(child, &status, 0);
  EXPECT_TRUE(ok);
  EXPECT_EQ(status, 0);
}

TEST(ShmCloseDeliversWhatWasWrittenThenBreaks) {
  TransportPair both = ConnectTwo();
  ASSERT_TRUE(both.first != nullptr && both.second != nullptr);
  uint8_t out[3] = {1, 2, 3};
  const iovec iov{out, sizeof(out)};
  ASSERT_EQ(*both.first->TrySend(1, &iov, 1), int64_t{3});
  both.first->Close(0);
  uint8_t in[8] = {};
  const iovec into{in, sizeof(in)};
  ASSERT_EQ(*both.second->TryRecv(0, &into, 1), int64_t{3});
  EXPECT_EQ(std::memcmp(in, out, 3), 0);
  Result<int64_t> more = both.second->TryRecv(0, &into, 1);
  ASSERT_TRUE(!more.ok());
  EXPECT_CONTAINS(more.status().message(), "rank 0");
  EXPECT_TRUE(!both.second->TrySend(0, &iov, 1).ok());
}

TEST(ShmInterruptEndsEveryWait) {
  TransportPair both = ConnectTwo();
  ASSERT_TRUE(both.first != nullptr);
  std::thread waiter([&] { both.first->Wait({1}, {}); });
  both.first->Interrupt();
  waiter.join();
  both.first->Wait({1}, {});  // and later ones return at once
}

TEST(ShmRefusedByOneSideIsUsedByNeither) {
  SocketPair sockets;
  ASSERT_TRUE(sockets.created);
  auto segment = ShmSegment::Create(1, 65536);
  ASSERT_TRUE(segment.ok());
  bool other_has = true;
  std::thread other([&] {
    auto agreed = AgreeOnSharedMemory(nullptr, {{0, sockets.fds[1]}}, In(10 * kSecond));
    other_has = !agreed.ok() || (*agreed)[0].theirs != nullptr;
  });
  auto agreed = AgreeOnSharedMemory(segment->get(), {{1, sockets.fds[0]}}, In(10 * kSecond));
  other.join();
  ASSERT_TRUE(agreed.ok());
  EXPECT_TRUE((*agreed)[0].theirs == nullptr);
  EXPECT_TRUE(!other_has);
}

TEST(ShmOpenRefusesAnotherNonceAndAnotherShape) {
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

TEST(ShmSilentPeerEndsAtTheDeadline) {
  SocketPair sockets;
  ASSERT_TRUE(sockets.created);
  auto agreed = AgreeOnSharedMemory(nullptr, {{4, sockets.fds[0]}}, In(50 * kMillisecond));
  ASSERT_TRUE(!agreed.ok());
  EXPECT_CONTAINS(agreed.status().message(), "rank 4");
}

}  // namespace
}  // namespace tfring

TFRING_TEST_MAIN()
