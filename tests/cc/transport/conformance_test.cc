// What every control and data transport promises: the in-process ones, sockets and shared memory.
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "ops/runtime/base/clock.h"
#include "tests/cc/test.h"
#include "tests/cc/transport/fixture.h"
#include "tests/cc/transport/in_process.h"

namespace tfring::conformance_test {
namespace {

using Events = std::vector<ControlEvent>;
using Kind = ControlEvent::Kind;

struct ControlPair {
  std::unique_ptr<ControlTransport> a;  // rank 0
  std::unique_ptr<ControlTransport> b;  // rank 1
};

ControlPair MakeControl(Link link) {
  if (link == Link::kInProcess) {
    InProcessControlHub hub(2);
    return {hub.Endpoint(0), hub.Endpoint(1)};
  }
  auto [a, b] = ConnectedSockets(link);
  return {ControlOver({{1, a}}), ControlOver({{0, b}})};
}

DataPair MakeData(Link link) {
  if (link == Link::kInProcess) {
    InProcessDataHub::Options options;
    options.capacity = 4096;
    InProcessDataHub hub(2, options);
    return {hub.Endpoint(0), hub.Endpoint(1)};
  }
  return ConnectedData(link);
}

const Link kControlLinks[] = {Link::kInProcess, Link::kUnix, Link::kTcp};
const Link kDataLinks[] = {Link::kInProcess, Link::kUnix, Link::kTcp, Link::kSharedMemory,
                           Link::kMpi};

// What a rank does that has nothing else to do.
void SendAll(DataTransport* transport) {
  while (transport->Sending()) {
    WaitSet what;
    what.sent = true;
    transport->Wait(what);
  }
}

struct iovec Part(const void* data, size_t bytes) { return {const_cast<void*>(data), bytes}; }

TEST(ControlFramesArriveWholeAndInOrder) {
  for (Link link : kControlLinks) {
    ControlPair pair = MakeControl(link);
    for (int i = 0; i < 500; ++i) {
      pair.a->Send(1, std::string(static_cast<size_t>(i % 7) * 31, 'x') + std::to_string(i));
    }
    pair.a->Send(1, "");
    Events events;
    const TimePoint deadline = In(20 * kSecond);
    while (events.size() < 501 && MonotonicNow() < deadline) {
      pair.a->Wait(0, &events);  // pushes out what the socket did not take
      pair.b->Wait(In(kMillisecond), &events);
    }
    ASSERT_EQ(events.size(), size_t{501});
    for (size_t i = 0; i < 500; ++i) {
      EXPECT_TRUE(events[i].kind == Kind::kFrame && events[i].peer == 0);
      EXPECT_EQ(events[i].frame, std::string((i % 7) * 31, 'x') + std::to_string(i));
    }
    EXPECT_EQ(events[500].frame, std::string());
  }
}

TEST(ControlSendsLargeFramesInPartsWithoutBlocking) {
  for (Link link : kControlLinks) {
    ControlPair pair = MakeControl(link);
    std::string large(24 << 20, 'a');
    for (size_t i = 0; i < large.size(); i += 977) large[i] = static_cast<char>('a' + i % 26);
    pair.a->Send(1, large);  // nobody reads yet: it must return all the same
    pair.a->Send(1, "after");
    std::atomic<bool> stop{false};
    std::thread sender([&] {
      Events ignored;
      while (!stop) pair.a->Wait(In(20 * kSecond), &ignored);
    });
    Events events = Collect(pair.b.get(), 2);
    stop = true;
    pair.a->Wake();
    sender.join();
    ASSERT_EQ(events.size(), size_t{2});
    EXPECT_TRUE(events[0].frame == large);
    EXPECT_EQ(events[1].frame, std::string("after"));
  }
}

TEST(ControlDeliversEarlierFramesBeforeTheLoss) {
  for (Link link : kControlLinks) {
    ControlPair pair = MakeControl(link);
    for (int i = 0; i < 50; ++i) pair.a->Send(1, "frame " + std::to_string(i));
    pair.a.reset();  // as a process that dies
    Events events = Collect(pair.b.get(), 51);
    ASSERT_EQ(events.size(), size_t{51});
    for (size_t i = 0; i < 50; ++i) EXPECT_EQ(events[i].frame, "frame " + std::to_string(i));
    EXPECT_TRUE(events[50].kind == Kind::kPeerLost && events[50].peer == 0);
    EXPECT_CONTAINS(events[50].reason, "connection closed");
    pair.b->Send(0, "to nobody");
    Events more;
    pair.b->Wait(In(kMillisecond), &more);
    EXPECT_TRUE(more.empty());
  }
}

TEST(ControlWaitKeepsItsDeadline) {
  for (Link link : kControlLinks) {
    ControlPair pair = MakeControl(link);
    Events events;
    const TimePoint deadline = In(3 * kMillisecond + 1);
    pair.a->Wait(deadline, &events);
    EXPECT_TRUE(MonotonicNow() >= deadline);
    EXPECT_TRUE(events.empty());
    EXPECT_TRUE(pair.a->wakeups() <= 2);
    pair.b->Send(0, "x");
    EXPECT_EQ(Collect(pair.a.get(), 1).size(), size_t{1});
    pair.b->Send(0, "y");
    pair.a->Wait(0, &events);  // a deadline in the past looks, but does not sleep
    EXPECT_EQ(events.size(), size_t{1});
  }
}

TEST(ControlWakeEndsAWaitFromAnyThread) {
  for (Link link : kControlLinks) {
    ControlPair pair = MakeControl(link);
    Events events;
    for (int i = 0; i < 20; ++i) {
      std::thread waker([&] { pair.a->Wake(); });
      pair.a->Wait(kNever, &events);
      waker.join();
    }
    pair.a->Wake();  // before the wait
    pair.a->Wait(kNever, &events);
    EXPECT_TRUE(events.empty());
  }
}

TEST(ControlCloseDeliversWhatWasSent) {
  for (Link link : kControlLinks) {
    ControlPair pair = MakeControl(link);
    const std::string large(8 << 20, 'z');
    std::thread closer([&] {
      pair.a->Send(1, large);
      pair.a->Send(1, "goodbye");
      pair.a->Close(In(20 * kSecond));
    });
    Events events = Collect(pair.b.get(), 3);
    pair.b->Close(In(20 * kSecond));
    closer.join();
    ASSERT_EQ(events.size(), size_t{3});
    EXPECT_TRUE(events[0].frame == large);
    EXPECT_EQ(events[1].frame, std::string("goodbye"));
    EXPECT_TRUE(events[2].kind == Kind::kPeerLost);
  }
}

TEST(DataMovesPartsAndKeepsOrder) {
  for (Link link : kDataLinks) {
    DataPair pair = MakeData(link);
    EXPECT_TRUE(pair.a->Connected(1) && !pair.a->Connected(0) && !pair.a->Connected(7));
    std::vector<uint32_t> sent(1 << 20);
    for (size_t i = 0; i < sent.size(); ++i) sent[i] = static_cast<uint32_t>(i * 2654435761u);
    std::vector<uint32_t> received(sent.size());
    const size_t total = sent.size() * 4;
    bool send_ok = true;
    std::thread sender([&] {
      size_t done = 0;
      while (done < total && send_ok) {
        const char* at = reinterpret_cast<const char*>(sent.data()) + done;
        const size_t first = std::min<size_t>(total - done, 1000);
        struct iovec parts[2] = {Part(at, first), Part(at + first, total - done - first)};
        Result<int64_t> n = pair.a->TrySend(1, parts, 2);
        send_ok = n.ok();
        if (n.ok() && *n == 0) pair.a->Wait({{}, {1}});
        if (n.ok()) done += static_cast<size_t>(*n);
      }
      SendAll(pair.a.get());
    });
    size_t done = 0;
    while (done < total) {
      struct iovec part = Part(reinterpret_cast<char*>(received.data()) + done, total - done);
      Result<int64_t> n = pair.b->TryRecv(0, &part, 1);
      ASSERT_TRUE(n.ok());
      if (*n == 0) pair.b->Wait({{0}, {}});
      done += static_cast<size_t>(*n);
    }
    sender.join();
    EXPECT_TRUE(send_ok && sent == received);
    EXPECT_EQ(pair.a->bytes_sent(), static_cast<int64_t>(total));
    EXPECT_EQ(pair.b->bytes_sent(), int64_t{0});
  }
}

uint8_t PatternAt(size_t message, size_t i) {
  return static_cast<uint8_t>(((message * 7919 + i) * 2654435761u) >> 13);
}

// Sizes of no pattern, some of which fill a ring in shared memory to its last cache line.
size_t AlignedMessageBytes(size_t message) {
  if (message % 7 == 3) return (1 << 20) + message % 100 - 50;
  return 1 + message * 104729 % 3000;
}

TEST(DataGoesOnWhereBothEndsHaveAligned) {
  for (Link link : kDataLinks) {
    DataPair pair = MakeData(link);
    const size_t messages = 60;
    bool send_ok = true;
    std::thread sender([&] {
      for (size_t message = 0; message < messages && send_ok; ++message) {
        std::vector<uint8_t> sent(AlignedMessageBytes(message));
        for (size_t i = 0; i < sent.size(); ++i) sent[i] = PatternAt(message, i);
        pair.a->AlignSend(1);
        for (size_t done = 0; done < sent.size() && send_ok;) {
          struct iovec part = Part(sent.data() + done, sent.size() - done);
          Result<int64_t> n = pair.a->TrySend(1, &part, 1);
          send_ok = n.ok();
          if (n.ok() && *n == 0) pair.a->Wait({{}, {1}});
          if (n.ok()) done += static_cast<size_t>(*n);
        }
      }
      SendAll(pair.a.get());
    });
    for (size_t message = 0; message < messages; ++message) {
      std::vector<uint8_t> received(AlignedMessageBytes(message));
      pair.b->AlignRecv(0);
      for (size_t done = 0; done < received.size();) {
        struct iovec part = Part(received.data() + done, received.size() - done);
        Result<int64_t> n = pair.b->TryRecv(0, &part, 1);
        ASSERT_TRUE(n.ok());
        if (*n == 0) pair.b->Wait({{0}, {}});
        done += static_cast<size_t>(*n);
      }
      bool right = true;
      for (size_t i = 0; i < received.size(); ++i) right &= received[i] == PatternAt(message, i);
      EXPECT_TRUE(right);
    }
    sender.join();
    EXPECT_TRUE(send_ok);
  }
}

TEST(DataSendsOnlyWhatFits) {
  for (Link link : kDataLinks) {
    DataPair pair = MakeData(link);
    const std::string block(1 << 20, 'q');
    struct iovec part = Part(block.data(), block.size());
    int64_t accepted = 0;
    for (;;) {  // nobody reads: it must say 0 in the end, never block
      Result<int64_t> n = pair.a->TrySend(1, &part, 1);
      ASSERT_TRUE(n.ok());
      if (*n == 0) break;
      accepted += *n;
    }
    std::thread sender([&] { SendAll(pair.a.get()); });
    std::vector<char> got(1 << 20);
    int64_t received = 0;
    while (received < accepted) {
      struct iovec into = Part(got.data(), got.size());
      Result<int64_t> n = pair.b->TryRecv(0, &into, 1);
      ASSERT_TRUE(n.ok());
      if (*n == 0) pair.b->Wait({{0}, {}});
      received += *n;
    }
    sender.join();
    EXPECT_EQ(received, accepted);
    pair.a->Wait({{}, {1}});  // room again
  }
}

TEST(DataEndOfStreamComesAfterTheData) {
  for (Link link : kDataLinks) {
    if (link == Link::kMpi) continue;  // MPI does not tell that a peer has gone
    DataPair pair = MakeData(link);
    struct iovec hello = Part("hello", 5);
    Result<int64_t> sent = pair.a->TrySend(1, &hello, 1);
    ASSERT_TRUE(sent.ok() && *sent == 5);
    // Shared memory outlives a process that dies, so that only a closed end can be seen.
    if (link == Link::kSharedMemory) pair.a->Close(0);
    pair.a.reset();
    char got[8] = "";
    struct iovec into = Part(got, sizeof(got));
    pair.b->Wait({{0}, {}});
    Result<int64_t> n = pair.b->TryRecv(0, &into, 1);
    ASSERT_TRUE(n.ok());
    EXPECT_EQ(std::string(got, static_cast<size_t>(*n)), std::string("hello"));
    pair.b->Wait({{0}, {}});
    n = pair.b->TryRecv(0, &into, 1);
    ASSERT_TRUE(!n.ok());
    EXPECT_TRUE(n.status().code() == StatusCode::kUnavailable);
    EXPECT_CONTAINS(n.status().message(), "rank 0");
    // Sockets accept a few bytes before the closed end refuses them.
    n = pair.b->TrySend(0, &hello, 1);
    for (int i = 0; i < 1000 && n.ok(); ++i) n = pair.b->TrySend(0, &hello, 1);
    EXPECT_TRUE(!n.ok());
  }
}

TEST(DataInterruptEndsThisAndLaterWaits) {
  for (Link link : kDataLinks) {
    DataPair pair = MakeData(link);
    std::thread interrupter([&] { pair.a->Interrupt(); });
    pair.a->Wait({{1}, {}});
    interrupter.join();
    pair.a->Wait({{1}, {}});
    pair.a->Wait({{}, {}});
    char byte = 0;
    struct iovec into = Part(&byte, 1);
    Result<int64_t> n = pair.a->TryRecv(1, &into, 1);
    EXPECT_TRUE(n.ok() && *n == 0);
  }
}

TEST(DataCloseLosesNothing) {
  for (Link link : kDataLinks) {
    DataPair pair = MakeData(link);
    const std::string block(3000, 'c');
    struct iovec part = Part(block.data(), block.size());
    Result<int64_t> sent = pair.a->TrySend(1, &part, 1);
    ASSERT_TRUE(sent.ok() && *sent == 3000);
    struct iovec unread = Part("unread", 6);  // would turn into a reset that drops our bytes
    ASSERT_TRUE(pair.b->TrySend(0, &unread, 1).ok());
    std::thread closer([&] { pair.a->Close(In(20 * kSecond)); });
    std::vector<char> got(4000);
    int64_t received = 0;
    while (received < 3000) {
      struct iovec into = Part(got.data(), got.size());
      Result<int64_t> n = pair.b->TryRecv(0, &into, 1);
      ASSERT_TRUE(n.ok());
      if (*n == 0) pair.b->Wait({{0}, {}});
      received += *n;
    }
    closer.join();
    EXPECT_EQ(received, int64_t{3000});
    // MPI waits for what nobody reads.
    pair.b->Close(In(link == Link::kMpi ? kMillisecond : 20 * kSecond));
  }
}

}  // namespace
}  // namespace tfring::conformance_test
