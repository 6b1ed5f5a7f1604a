// What only the shared memory transport has: the agreement, peeking, other processes. The rest is
// in conformance_test.cc.
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <random>
#include <thread>
#include <vector>

#include "ops/runtime/base/clock.h"
#include "ops/runtime/transport/shm_handshake.h"
#include "ops/runtime/transport/shm_segment.h"
#include "tests/cc/test.h"
#include "tests/cc/transport/fixture.h"
#include "tests/cc/transport/shared_host.h"

namespace tfring::shared_memory_test {
namespace {

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
    if (*moved == 0) transport->Wait({{}, {to}});
  }
  return transport->bytes_sent() == static_cast<int64_t>(total);
}

// Receives the bytes of Produce, some with TryRecv and some with Peek.
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
    if (n == 0) transport->Wait({{from}, {}});
  }
  return true;
}

TEST(ShmStreamsBetweenProcesses) {
  auto [a, b] = ConnectedSockets(Link::kUnix);
  constexpr uint64_t kTotal = 30u << 20;
  const pid_t child = fork();
  const Rank peer = child == 0 ? 0 : 1;
  const std::unique_ptr<DataTransport> made = SharedMemoryOver(peer, child == 0 ? b : a);
  bool ok = made != nullptr && made->CanPeek(peer);
  if (child == 0) {
    ok = ok && Produce(made.get(), 0, kTotal, 1) && ConsumeAll(made.get(), 0, kTotal, 2);
    _exit(ok ? 0 : 1);
  }
  ok = ok && ConsumeAll(made.get(), 1, kTotal, 3) && Produce(made.get(), 1, kTotal, 4);
  int status = -1;
  waitpid(child, &status, 0);
  close(b);
  EXPECT_TRUE(ok);
  EXPECT_EQ(status, 0);
}

TEST(ShmRefusedByOneSideIsUsedByNeither) {
  auto [a, b] = ConnectedSockets(Link::kUnix);
  const UniqueFd ours(a);
  const UniqueFd theirs(b);
  auto segment = ShmSegment::Create(1, 65536);
  ASSERT_TRUE(segment.ok());
  bool other_has = true;
  std::thread other([&] {
    auto agreed = AgreeOnSharedMemory(nullptr, {{0, theirs.get()}}, In(10 * kSecond));
    other_has = !agreed.ok() || (*agreed)[0].theirs != nullptr;
  });
  auto agreed = AgreeOnSharedMemory(segment->get(), {{1, ours.get()}}, In(10 * kSecond));
  other.join();
  ASSERT_TRUE(agreed.ok());
  EXPECT_TRUE((*agreed)[0].theirs == nullptr);
  EXPECT_TRUE(!other_has);
}

TEST(ShmThatIsRequiredAndNotThereIsAnErrorOfBoth) {
  const auto connect = [](ShmUse use, Rank peer, int fd) {
    return ShmDataTransport::Connect(use, {{peer, fd}}, DataOver({{peer, fd}}), In(10 * kSecond));
  };
  auto [a, b] = ConnectedSockets(Link::kUnix);
  Status of_other;
  std::thread other([&, fd = b] { of_other = connect(ShmUse::kNever, 0, fd).status(); });
  const Status of_this = connect(ShmUse::kRequired, 1, a).status();
  other.join();
  EXPECT_TRUE(of_other.ok());
  EXPECT_TRUE(of_this.code() == StatusCode::kFailedPrecondition);
  EXPECT_CONTAINS(of_this.message(), "no shared memory with rank 1");
  EXPECT_CONTAINS(of_this.message(), "TFRING_CPU_OPERATIONS=auto");
}

// Blocks until the owner of the transport sleeps as often as it will without a wake-up.
void Settle() { std::this_thread::sleep_for(std::chrono::milliseconds(150)); }

TEST(ShmSleepsWithoutPollingAlsoWhenSocketsAreWaitedForToo) {
  // Rank 0 shares memory with rank 1 and has a socket to rank 2.
  auto [a, b] = ConnectedSockets(Link::kUnix);
  auto [c, d] = ConnectedSockets(Link::kTcp);
  std::unique_ptr<DataTransport> one;
  std::thread other([&one, fd = b] { one = SharedMemoryOver(0, fd); });
  auto made = ShmDataTransport::Connect(ShmUse::kWherePossible, {{1, a}},
                                        DataOver({{1, a}, {2, c}}), In(10 * kSecond));
  other.join();
  ASSERT_TRUE(made.ok() && one != nullptr);
  DataTransport* zero = made->get();
  const std::unique_ptr<DataTransport> two = DataOver({{0, d}});
  ASSERT_TRUE(zero->CanPeek(1) && !zero->CanPeek(2));
  char sent = 1;
  char received = 0;
  const iovec from{&sent, 1};
  const iovec into{&received, 1};
  const std::vector<WaitSet> sets = {
      {{1, 2}, {}, {}, kNever}, {{1}, {}, {2}, kNever}, {{1}, {}, {}, kNever}};
  for (const WaitSet& set : sets) {
    std::atomic<int> returns{0};
    int64_t moved = 0;
    std::thread sleeper([&] {
      while (moved == 0) {
        zero->Wait(set);
        ++returns;
        moved = *zero->TryRecv(1, &into, 1);
      }
    });
    Settle();
    const int before = returns;
    EXPECT_EQ(*one->TrySend(0, &from, 1), 1);
    sleeper.join();
    // A byte that was left in the pipe may cost one wake-up, polling would cost one a moment.
    EXPECT_TRUE(before <= 1);
    EXPECT_TRUE(returns <= before + 2);
  }
  // From the socket, and by the deadline.
  std::thread sender([&] {
    Settle();
    EXPECT_EQ(*two->TrySend(0, &from, 1), 1);
  });
  int returns = 0;
  while (*zero->TryRecv(2, &into, 1) == 0) {
    zero->Wait(sets[0]);
    ++returns;
  }
  sender.join();
  EXPECT_TRUE(returns <= 2);
  for (WaitSet set : sets) {
    set.deadline = In(20 * kMillisecond);
    while (MonotonicNow() < set.deadline) zero->Wait(set);
  }
  // Interrupt ends all later waits.
  zero->Interrupt();
  for (const WaitSet& set : sets) zero->Wait(set);
}

TEST(ShmHostMemoryIsSeenByAllRanksOfAHost) {
  const std::vector<std::unique_ptr<DataTransport>> ends = SharedHost(3);
  for (Rank rank = 0; rank < 3; ++rank) {
    ASSERT_TRUE(ends[rank] != nullptr && ends[rank]->host_memory() != nullptr);
    HostMemory* memory = ends[rank]->host_memory();
    EXPECT_TRUE(memory->ranks() == (std::vector<Rank>{0, 1, 2}));
    EXPECT_EQ(memory->PartOf(rank)[HostMemory::kPartBytes - 1], 0);
    memory->PartOf(rank)[HostMemory::kPartBytes - 1] = static_cast<char>(rank + 1);
  }
  for (Rank rank = 0; rank < 3; ++rank) {
    for (Rank other = 0; other < 3; ++other) {
      EXPECT_EQ(ends[rank]->host_memory()->PartOf(other)[HostMemory::kPartBytes - 1], other + 1);
      EXPECT_TRUE(!ends[rank]->host_memory()->Closed(other));
    }
  }
  ends[1]->Close(MonotonicNow());
  EXPECT_TRUE(ends[0]->host_memory()->Closed(1) && !ends[0]->host_memory()->Closed(2));
}

TEST(ShmHostMemorySleepEndsWithTheAwaitedRankADeadlineOrAnInterrupt) {
  const std::vector<std::unique_ptr<DataTransport>> ends = SharedHost(3);
  HostMemory* zero = ends[0]->host_memory();
  ASSERT_TRUE(zero != nullptr);
  std::atomic<bool> ready{false};
  std::atomic<int> looks{0};
  const auto look = [&] {
    ++looks;
    return ready.load();
  };
  const TimePoint deadline = In(10 * kMillisecond);
  while (MonotonicNow() < deadline) zero->Sleep(2, look, deadline);
  EXPECT_TRUE(looks > 0);
  looks = 0;
  std::thread sleeper([&] {
    while (!ready) zero->Sleep(2, look, kNever);
  });
  Settle();
  const int before = looks;
  ends[1]->host_memory()->Notify(0);  // not the awaited one
  Settle();
  EXPECT_EQ(looks.load(), before);
  ready = true;
  ends[2]->host_memory()->Notify(0);
  sleeper.join();
  ready = false;
  std::thread any([&] {
    while (!ready) zero->Sleep(kNoRank, look, kNever);
  });
  Settle();
  ready = true;
  ends[1]->host_memory()->Notify(0);
  any.join();
  ready = false;
  std::thread interrupted([&] { zero->Sleep(1, look, kNever); });
  Settle();
  ends[0]->Interrupt();
  interrupted.join();
  zero->Sleep(1, look, kNever);  // and every later one
}

TEST(ShmHostMemoryNeedsThatAllShareWithAll) {
  const std::vector<std::unique_ptr<DataTransport>> ends = SharedHost(3, {0, 2});
  for (const auto& end : ends) {
    ASSERT_TRUE(end != nullptr);
    EXPECT_TRUE(end->host_memory() == nullptr);
  }
  EXPECT_TRUE(ends[0]->CanPeek(1) && !ends[0]->CanPeek(2));
}

// Whether the two ends of a connection between ranks 100 and 5000 agree, from what each can see.
std::pair<bool, bool> Agree(const std::vector<Rank>& one, const std::vector<Rank>& other) {
  auto [a, b] = ConnectedSockets(Link::kUnix);
  const UniqueFd lower(a);
  const UniqueFd upper(b);
  std::pair<bool, bool> agreed;
  std::thread thread([&] {
    const auto result = AgreeOnGroup(one, {{5000, lower.get()}}, In(20 * kSecond));
    agreed.first = result.ok() && *result;
  });
  const auto result = AgreeOnGroup(other, {{100, upper.get()}}, In(20 * kSecond));
  agreed.second = result.ok() && *result;
  thread.join();
  return agreed;
}

TEST(GroupsOfAnyRanksAreCompared) {
  EXPECT_TRUE(Agree({100, 5000}, {5000, 100}) == std::make_pair(true, true));
  EXPECT_TRUE(Agree({100, 5000}, {64, 100, 5000}) == std::make_pair(false, false));
  EXPECT_TRUE(Agree({100, 5000}, {}) == std::make_pair(false, false));
}

TEST(ShmSilentPeerEndsAtTheDeadline) {
  auto [a, b] = ConnectedSockets(Link::kUnix);
  const UniqueFd ours(a);
  const UniqueFd theirs(b);
  auto agreed = AgreeOnSharedMemory(nullptr, {{4, ours.get()}}, In(50 * kMillisecond));
  ASSERT_TRUE(!agreed.ok());
  EXPECT_CONTAINS(agreed.status().message(), "rank 4");
}

}  // namespace
}  // namespace tfring::shared_memory_test
