#include "ops/runtime/protocol/tree/frame_relay.h"

#include <deque>
#include <memory>

#include "ops/sim/random.h"
#include "tests/cc/test.h"

namespace tfring {
namespace {

const std::string kLong(200, 'x');
const std::string kOther(200, 'y');

// The relays of all ranks, and one message at a time between them, the oldest first.
class Tree {
 public:
  Tree(int size, int fan_out, Duration hold) {
    for (Rank rank = 0; rank < size; ++rank) {
      relays_.push_back(std::make_unique<FrameRelay>(TreeTopology(rank, size, fan_out), hold));
    }
  }
  FrameRelay& at(Rank rank) { return *relays_[static_cast<size_t>(rank)]; }

  void Run() {
    do {
      for (size_t rank = 0; rank < relays_.size(); ++rank) Drain(static_cast<Rank>(rank));
      if (network_.empty()) return;
      const auto [from, to, message] = network_.front();
      network_.pop_front();
      ++messages;
      bytes += message.size();
      at(to).OnMessage(from, message, now);
    } while (true);
  }

  void Wait(Duration duration) {
    now += duration;
    for (auto& relay : relays_) relay->OnTime(now);
    Run();
  }

  TimePoint now = 0;
  int messages = 0;
  size_t bytes = 0;
  std::vector<MergedFrame> requests;
  std::vector<std::pair<Rank, std::string>> plans;
  Status fatal;

 private:
  struct Message {
    Rank from;
    Rank to;
    std::string bytes;
  };
  void Drain(Rank rank) {
    FrameRelay::Output out = at(rank).Drain();
    for (auto& [to, bytes] : out.messages) network_.push_back({rank, to, std::move(bytes)});
    for (const FrameBytes& bytes : out.plans) plans.emplace_back(rank, *bytes);
    for (MergedFrame& frame : out.requests) requests.push_back(std::move(frame));
    if (!out.fatal.ok()) fatal = out.fatal;
  }
  std::vector<std::unique_ptr<FrameRelay>> relays_;
  std::deque<Message> network_;
};

TEST(EqualFramesOfASubtreeArriveAsOne) {
  Tree tree(13, 3, kSecond);
  tree.at(0).Know(kLong, 0);
  for (Rank rank = 1; rank < 13; ++rank) tree.at(rank).Send(kLong, 0);
  tree.Run();
  EXPECT_EQ(tree.requests.size(), 3u);  // one from each child of rank 0
  for (const MergedFrame& frame : tree.requests) {
    EXPECT_EQ(frame.ranks.size(), 4);
    EXPECT_EQ(*frame.bytes, kLong);
  }
  EXPECT_EQ(tree.messages, 12);               // one per connection
  EXPECT_TRUE(tree.bytes < 12 * size_t{40});  // digests
}

TEST(RankZeroNeedNotAskForWhatItLearnsMeanwhile) {
  Tree tree(13, 3, kSecond);
  for (Rank rank = 1; rank < 12; ++rank) tree.at(rank).Send(kLong, 0);
  tree.Run();
  EXPECT_EQ(tree.at(0).next_deadline(), kSecond);
  tree.at(0).Know(kOther, 0);
  tree.Run();
  EXPECT_TRUE(tree.requests.empty());
  tree.at(0).Know(kLong, 0);
  tree.Run();
  EXPECT_EQ(tree.requests.size(), 1u);
  EXPECT_EQ(tree.requests[0].ranks.size(), 8);  // the subtree of rank 12 waits for it
  EXPECT_EQ(tree.at(0).next_deadline(), kNever);
  EXPECT_EQ(tree.messages, 8 + 2);
}

TEST(AFrameWaitsNoLongerThanTheHold) {
  Tree tree(4, 2, 100);  // rank 2 is below rank 1
  tree.at(2).Send(kLong, 0);
  tree.Run();
  EXPECT_TRUE(tree.at(2).next_deadline() == kNever);  // it has nobody to wait for
  EXPECT_EQ(tree.at(1).next_deadline(), 100);
  tree.Wait(99);
  EXPECT_EQ(tree.messages, 1);
  tree.Wait(1);  // rank 1 passes it on, and rank 0 may wait for the bytes
  EXPECT_EQ(tree.messages, 2);
  EXPECT_EQ(tree.at(0).next_deadline(), 200);
  tree.Wait(100);
  EXPECT_EQ(tree.requests.size(), 1u);
  EXPECT_TRUE(tree.requests[0].ranks == RankSet(2));
}

TEST(ARankThatIsLateDoesNotHoldUpTheOthersForEver) {
  Tree tree(8, 2, 100);
  for (Rank rank = 1; rank < 7; ++rank) tree.at(rank).Send(kLong, 0);
  tree.Run();
  for (int i = 0; i < 4; ++i) tree.Wait(100);
  int64_t ranks = 0;
  for (const MergedFrame& frame : tree.requests) ranks += frame.ranks.size();
  EXPECT_EQ(ranks, 6);
}

TEST(BytesThatOneRankAloneHasAreAskedFor) {
  Tree tree(40, 3, 100);
  for (Rank rank = 1; rank < 40; ++rank) tree.at(rank).Send(rank == 39 ? kOther : kLong, 0);
  tree.Run();
  tree.Wait(100);
  EXPECT_TRUE(tree.fatal.ok());
  int64_t ranks = 0;
  for (const MergedFrame& frame : tree.requests) ranks += frame.ranks.size();
  EXPECT_EQ(ranks, 39);
  for (const MergedFrame& frame : tree.requests) {
    EXPECT_EQ(*frame.bytes, frame.ranks.Contains(39) ? kOther : kLong);
  }
}

TEST(NothingIsKeptOnceAPlanWasSent) {
  Tree tree(40, 3, 100);
  for (Rank rank = 1; rank < 40; ++rank) tree.at(rank).Send(rank % 5 == 0 ? kOther : kLong, 0);
  tree.Run();
  for (int i = 0; i < 8; ++i) tree.Wait(100);
  std::vector<std::pair<Rank, std::string>> plans;
  for (Rank rank = 1; rank < 40; ++rank) plans.emplace_back(rank, "plan");
  tree.at(0).SendPlans(plans);
  tree.Run();
  for (Rank rank = 0; rank < 40; ++rank) EXPECT_EQ(tree.at(rank).announced(), 0u);
}

TEST(WhatRankZeroHasSeenIsNotAskedForAgain) {
  Tree tree(40, 3, 100);
  for (int round = 0; round < 2; ++round) {
    tree.messages = 0;
    for (Rank rank = 1; rank < 40; ++rank) {
      tree.at(rank).Send(rank == 39 ? kOther : kLong, tree.now);
    }
    tree.Run();
    tree.Wait(100);
    EXPECT_EQ(tree.messages > 39, round == 0);
  }
}

TEST(FramesOfRankZeroGoOnceOverEachConnection) {
  Tree tree(40, 3, 100);
  std::vector<std::pair<Rank, std::string>> plans;
  for (Rank rank = 1; rank < 40; ++rank) plans.emplace_back(rank, "first");
  for (Rank rank : {5, 17, 39}) plans.emplace_back(rank, "second");
  tree.at(0).SendPlans(plans);
  tree.Run();
  EXPECT_EQ(tree.plans.size(), 42u);
  EXPECT_EQ(tree.messages, 39);
  std::vector<std::string> of_17;
  for (const auto& [rank, bytes] : tree.plans) {
    if (rank == 17) of_17.push_back(bytes);
  }
  EXPECT_TRUE(of_17 == std::vector<std::string>({"first", "second"}));
}

TEST(TheFramesOfARankKeepTheirOrder) {
  // A frame like an earlier one is not merged with it when another stands between them.
  Tree tree(3, 2, 100);
  for (const char* name : {"a", "b", "a"}) tree.at(1).Send(kLong + name, 0);
  for (const char* name : {"b", "a", "a"}) tree.at(2).Send(kLong + name, 0);
  tree.Run();
  tree.Wait(100);
  std::string orders[3];
  for (const MergedFrame& frame : tree.requests) {
    for (Rank rank : {1, 2}) {
      if (frame.ranks.Contains(rank)) orders[rank] += frame.bytes->back();
    }
  }
  EXPECT_EQ(orders[1], "aba");
  EXPECT_EQ(orders[2], "baa");
}

TEST(WhatNoRightNeighbourSendsEndsTheJob) {
  const TreeTopology topology(1, 7, 2);  // its children are 2 and 3
  const auto fatal = [&](Rank from, const std::string& message) {
    FrameRelay relay(topology, 100);
    relay.OnMessage(from, message, 0);
    return relay.Drain().fatal.message();
  };
  const auto contains = [](const std::string& text, const std::string& part) {
    return text.find(part) != std::string::npos;
  };
  TreeMessage up;
  up.merged.push_back({RankSet(2), DigestOf(kLong), nullptr});
  const std::string good = EncodeTreeMessage(up, {2, 3});
  EXPECT_EQ(fatal(2, good), "");
  EXPECT_TRUE(contains(fatal(5, good), "neither its parent nor its child"));
  EXPECT_TRUE(contains(fatal(0, good), "cannot be read"));
  EXPECT_TRUE(contains(fatal(2, good + "x"), "cannot be read"));
  TreeMessage bytes;
  bytes.wanted_bytes.emplace_back(1, std::make_shared<const std::string>(kLong));
  EXPECT_TRUE(contains(fatal(2, EncodeTreeMessage(bytes, {2, 3})), "nobody asked for"));
  TreeMessage down;
  down.wanted = {1};
  EXPECT_TRUE(contains(fatal(0, EncodeTreeMessage(down, topology.subtree())), "not announced"));
  TreeMessage release;
  release.released = {1};
  EXPECT_TRUE(contains(fatal(0, EncodeTreeMessage(release, topology.subtree())), "not announced"));
}

TEST(BytesWithAnotherDigestAreRefused) {
  FrameRelay root(TreeTopology(0, 3, 2), 100);
  TreeMessage up;
  up.merged.push_back({RankSet(2), DigestOf(kLong), nullptr});
  root.OnMessage(2, EncodeTreeMessage(up, {2, 3}), 0);
  root.OnTime(100);
  EXPECT_EQ(root.Drain().messages.size(), 1u);
  TreeMessage bytes;
  bytes.wanted_bytes.emplace_back(1, std::make_shared<const std::string>(kOther));
  root.OnMessage(2, EncodeTreeMessage(bytes, {2, 3}), 100);
  EXPECT_TRUE(root.Drain().fatal.message().find("another digest") != std::string::npos);
}

// Messages of a parent and two children with bytes changed, dropped or repeated: they are refused,
// or taken, and nothing else happens.
TEST(ChangedMessagesDoNoHarm) {
  sim::Random random(7);
  size_t refused = 0;
  TreeMessage up;
  up.merged.push_back({RankSet(2), DigestOf(kLong), nullptr});
  up.merged.push_back({RankSet(2), {}, std::make_shared<const std::string>("short")});
  up.wanted_bytes.emplace_back(1, std::make_shared<const std::string>(kLong));
  TreeMessage down;
  down.plans.push_back({RankSet(RankRange{2, 4}), std::make_shared<const std::string>("plan")});
  down.wanted = {1};
  down.released = {2};
  for (int round = 0; round < 3000; ++round) {
    FrameRelay relay(TreeTopology(1, 7, 2), 100);  // the parent is 0, the children are 2 and 3
    relay.Send(kLong, 0);
    for (TimePoint now = 0; now < 400; now += 50) {
      const auto from = static_cast<Rank>(random.Pick(std::vector<int>{0, 2, 3}));
      const TreeMessage& seed = from == 0 ? down : up;
      std::string bytes = EncodeTreeMessage(seed, from == 0 ? RankRange{1, 4} : RankRange{2, 4});
      for (int64_t n = random.Below(3); n > 0; --n) {
        const auto at = static_cast<size_t>(random.Below(static_cast<int64_t>(bytes.size())));
        if (random.Percent(70)) bytes[at] = static_cast<char>(random.Below(256));
        if (random.Percent(10)) bytes.resize(at + 1);
        if (random.Percent(10)) bytes.insert(at, bytes.substr(at));
      }
      relay.OnMessage(from, bytes, now);
      relay.OnTime(now);
      const FrameRelay::Output out = relay.Drain();
      for (const auto& [to, message] : out.messages) EXPECT_TRUE(to >= 0 && to <= 3 && to != 1);
      if (!out.fatal.ok()) ++refused;
    }
  }
  EXPECT_TRUE(refused > 1000);
}

}  // namespace
}  // namespace tfring
