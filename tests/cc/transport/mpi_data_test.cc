// What only the transport over MPI has: messages that need further calls, and an MPI that cannot be
// used, fails or ends. The rest is in conformance_test.cc.
#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "ops/runtime/backend/cpu_backend.h"
#include "ops/runtime/base/clock.h"
#include "tests/cc/test.h"
#include "tests/cc/transport/fixture.h"

namespace tfring::mpi_data_test {
namespace {

struct iovec Part(const void* data, size_t bytes) { return {const_cast<void*>(data), bytes}; }

// Sets the state and, at the end, back.
struct WithState {
  explicit WithState(MpiFunctions::State state) { SetFakeMpiState(state); }
  ~WithState() { SetFakeMpiState(MpiFunctions::kReady); }
};

TEST(SaysWhyMpiCannotBeUsed) {
  const int world = NewFakeMpiWorld(2);
  const auto refusal = [&](MpiFunctions::State state) {
    const WithState with(state);
    auto made = MpiDataTransport::Create(FakeMpi(), FakeMpiHandle(world, 0), 0, 2);
    EXPECT_TRUE(!made.ok() && made.status().code() == StatusCode::kFailedPrecondition);
    return made.status().message();
  };
  EXPECT_CONTAINS(refusal(MpiFunctions::kNotStarted), "has not been started");
  EXPECT_CONTAINS(refusal(MpiFunctions::kEnded), "finalised");
  EXPECT_CONTAINS(refusal(MpiFunctions::kOneThread), "MPI_THREAD_MULTIPLE");
  auto none = MpiDataTransport::Create(FakeMpi(), FakeMpiHandle(world + 1, 0), 0, 2);
  EXPECT_CONTAINS(none.status().message(), "no communicator");
  auto other = MpiDataTransport::Create(FakeMpi(), FakeMpiHandle(world, 0), 1, 2);
  EXPECT_CONTAINS(other.status().message(), "rank 1 of 2 is rank 0 of 2");
}

TEST(FreesTheCommunicatorWhereNothingIsLeft) {
  const int communicators = OpenFakeMpiCommunicators();
  const int requests = OpenFakeMpiRequests();
  DataPair pair = ConnectedData(Link::kMpi);
  EXPECT_EQ(OpenFakeMpiCommunicators(), communicators + 2);
  char byte = 0;
  struct iovec into = Part(&byte, 1);
  Result<int64_t> none = pair.b->TryRecv(0, &into, 1);  // leaves receives that wait
  ASSERT_TRUE(none.ok() && *none == 0);
  EXPECT_TRUE(OpenFakeMpiRequests() > requests);
  pair.a->Close(In(20 * kSecond));
  pair.b->Close(In(20 * kSecond));
  EXPECT_EQ(OpenFakeMpiCommunicators(), communicators);
  EXPECT_EQ(OpenFakeMpiRequests(), requests);
}

TEST(GivesUpWhatNobodyTakes) {
  const int communicators = OpenFakeMpiCommunicators();
  DataPair pair = ConnectedData(Link::kMpi);
  struct iovec part = Part("lost", 4);
  ASSERT_TRUE(pair.a->TrySend(1, &part, 1).ok());
  pair.b->Close(0);
  pair.a->Close(In(kMillisecond));
  EXPECT_EQ(OpenFakeMpiCommunicators(), communicators + 1);
}

TEST(ErrorsNameThePeer) {
  DataPair pair = ConnectedData(Link::kMpi);
  struct iovec part = Part("bytes", 5);
  ASSERT_TRUE(pair.a->TrySend(1, &part, 1).ok());
  BreakFakeMpi(true);
  WaitSet what;
  what.sent = true;
  const std::optional<BrokenStream> broken = pair.a->Wait(what);
  const Result<int64_t> sent = pair.a->TrySend(1, &part, 1);
  char byte = 0;
  struct iovec into = Part(&byte, 1);
  const Result<int64_t> received = pair.b->TryRecv(0, &into, 1);
  BreakFakeMpi(false);
  ASSERT_TRUE(broken.has_value() && broken->peer == 1);
  EXPECT_CONTAINS(broken->status.message(), "sending to rank 1: fake error 17");
  ASSERT_TRUE(!sent.ok() && sent.status().code() == StatusCode::kUnavailable);
  ASSERT_TRUE(!received.ok() && received.status().code() == StatusCode::kUnavailable);
  EXPECT_CONTAINS(received.status().message(), "receiving from rank 0: fake error 17");
}

TEST(NothingHangsAfterMpiHasEnded) {
  DataPair pair = ConnectedData(Link::kMpi);
  struct iovec part = Part("bytes", 5);
  ASSERT_TRUE(pair.a->TrySend(1, &part, 1).ok());
  const WithState ended(MpiFunctions::kEnded);
  EXPECT_TRUE(!pair.a->Sending());
  pair.b->Wait({{0}, {}});
  struct iovec into = Part("     ", 5);
  Result<int64_t> received = pair.b->TryRecv(0, &into, 1);
  ASSERT_TRUE(!received.ok());
  EXPECT_CONTAINS(received.status().message(), "finalised");
  EXPECT_TRUE(!pair.a->TrySend(1, &part, 1).ok());
  pair.a->Close(In(20 * kSecond));
}

// Rank 0 shares memory with rank 1 and uses MPI to rank 2. Rank 1 sends once rank 2 has what rank 0
// sent it before, which needs calls of rank 0.
TEST(WhatIsSentGetsOnWhileMemoryIsWaitedFor) {
  auto [a, b] = ConnectedSockets(Link::kUnix);
  const int world = NewFakeMpiWorld(3);
  std::unique_ptr<DataTransport> one;
  std::thread other([&one, fd = b] { one = SharedMemoryOver(0, fd); });
  auto made = ShmDataTransport::Connect(ShmUse::kRequired, {{1, a}}, MpiOver(world, 0, 3),
                                        In(10 * kSecond));
  other.join();
  ASSERT_TRUE(made.ok() && one != nullptr);
  DataTransport* zero = made->get();
  const std::unique_ptr<DataTransport> two = MpiOver(world, 2, 3);
  const char sent = 's';
  const struct iovec from = Part(&sent, 1);
  ASSERT_TRUE(zero->TrySend(2, &from, 1).ok());
  std::thread others([&] {
    char byte = 0;
    const struct iovec into = Part(&byte, 1);
    while (*two->TryRecv(0, &into, 1) == 0) two->Wait({{0}, {}});
    EXPECT_EQ(*one->TrySend(0, &from, 1), int64_t{1});
  });
  char byte = 0;
  const struct iovec into = Part(&byte, 1);
  const TimePoint deadline = In(20 * kSecond);
  while (*zero->TryRecv(1, &into, 1) == 0 && MonotonicNow() < deadline) {
    zero->Wait({{1}, {}, {}, deadline});
  }
  EXPECT_EQ(byte, sent);
  others.join();
}

// The root has sent all that it has long before the others have it.
TEST(ABroadcastEndsWhenTheOthersHaveIt) {
  constexpr int kRanks = 3;
  const int world = NewFakeMpiWorld(kRanks);
  std::vector<std::vector<char>> data(kRanks, std::vector<char>(3 << 20));
  data[0].assign(data[0].size(), 'd');
  std::atomic<int> ended{0};
  std::vector<std::unique_ptr<CpuBackend>> backends;
  for (Rank rank = 0; rank < kRanks; ++rank) {
    const auto sink = [&ended](Completion completion) {
      EXPECT_TRUE(completion.status.ok());
      ++ended;
    };
    backends.push_back(
        std::make_unique<CpuBackend>(rank, Config(), MpiOver(world, rank, kRanks), sink));
  }
  for (Rank rank = 0; rank < kRanks; ++rank) {
    Collective broadcast;
    broadcast.sequence = 1;
    broadcast.kind = CollectiveKind::kBroadcast;
    broadcast.members = {0, 1, 2};
    broadcast.self = rank;
    const auto bytes = static_cast<int64_t>(data[rank].size());
    broadcast.buffers = {{data[rank].data(), data[rank].data(), bytes, bytes}};
    backends[rank]->Submit(std::move(broadcast));
  }
  const TimePoint deadline = In(20 * kSecond);
  while (ended < kRanks && MonotonicNow() < deadline) std::this_thread::yield();
  EXPECT_EQ(ended.load(), kRanks);
  EXPECT_TRUE(data[1] == data[0] && data[2] == data[0]);
}

}  // namespace
}  // namespace tfring::mpi_data_test
