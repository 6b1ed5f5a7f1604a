// What a rank knows of the end of its generation, and frames of another one.
#include <string>
#include <vector>

#include "tests/cc/protocol/engine/fixture.h"
#include "tests/cc/test.h"

namespace tfring::testing::health_test {
namespace {

using Ranks = std::vector<Rank>;

TEST(ALostRankIsKnownWhenItsCallsEnd) {
  for (Rank victim = 0; victim < 3; ++victim) {
    Engines world(3);
    for (Rank rank = 0; rank < 3; ++rank) {
      if (rank != victim) world.Submit(rank, 1, Allreduce("x"));
    }
    world.Deliver();
    world.mute.insert(victim);
    for (Rank rank = 0; rank < 3; ++rank) {
      if (rank == victim || (rank != 0 && victim != 0)) continue;  // the others hear of it
      world.Lose(rank, victim);
    }
    world.Deliver();
    for (Rank rank = 0; rank < 3; ++rank) {
      if (rank == victim) continue;
      const GenerationHealth& known = world.KnownThen(rank, 1);
      EXPECT_TRUE(known.lost == Ranks{victim});
      EXPECT_TRUE(known.departed.empty());
      EXPECT_CONTAINS(known.error.message(), "rank " + std::to_string(victim) + " (host h");
    }
  }
}

// The error of a call that waits for a rank that leaves must not come before the goodbye.
TEST(ADepartureIsKnownWhenCallsEndBecauseOfIt) {
  for (bool waits : {true, false}) {
    Engines world(4);
    if (waits) world.Submit(1, 1, Allreduce("x"));
    world.Deliver();
    world.Shutdown(3);
    world.Shutdown(2);  // the second goodbye is not passed on at once
    world.Deliver();
    if (!waits) {  // refused by rank 0, which has not passed on what rank 2 said
      world.Submit(1, 1, Allreduce("x"));
      world.Deliver();
    }
    EXPECT_EQ(world.Code(1, 1), StatusCode::kCancelled);
    const GenerationHealth& known = world.KnownThen(1, 1);
    EXPECT_TRUE(!known.departed.empty() && known.departed.back() == 3);
    EXPECT_TRUE(known.lost.empty());
    EXPECT_CONTAINS(known.error.message(), "rank 3 (host h3) has shut down");
    EXPECT_TRUE(world.health(1).departed == (Ranks{2, 3}) || waits);
  }
}

TEST(ARankThatReportsItsOwnFaultIsNotLost) {
  Engines world(3);
  world.SubmitOnAll(1, "x");
  world.Complete(1, world.runs(1)[0].plan.sequence, Internal("no memory"));
  world.Deliver();
  for (Rank rank = 0; rank < 3; ++rank) {
    EXPECT_CONTAINS(world.health(rank).error.message(), "rank 1 (host h1) could not run");
    EXPECT_TRUE(world.health(rank).lost.empty() && world.health(rank).departed.empty());
  }
}

// Engines of two ranks, whose generations have these nonces; rank 1 calls, and rank 0 gets that.
Status FirstFrame(uint64_t of_zero, uint64_t of_one, std::string* frame) {
  EngineOptions options;
  options.size = 2;
  options.config = QuietConfig();
  options.nonce = of_zero;
  Engine zero(options);
  options.rank = 1;
  options.nonce = of_one;
  Engine one(options);
  Request request = Allreduce("x");
  EXPECT_TRUE(AdmitRequest(one.process_sets(), 1, nullptr, &request).ok());
  zero.Step(kSecond, {});
  EngineEvents calls;
  calls.submissions.emplace_back(1, std::move(request));
  EngineEffects sent = one.Step(kSecond, std::move(calls));
  EXPECT_EQ(sent.frames.size(), size_t{1});
  *frame = sent.frames[0].second;
  EngineEvents arrives;
  arrives.control.push_back({ControlEvent::Kind::kFrame, 1, *frame, ""});
  const EngineEffects effects = zero.Step(kSecond, std::move(arrives));
  return effects.health == nullptr ? OkStatus() : effects.health->error;
}

TEST(AFrameOfAnotherGenerationIsRefused) {
  std::string frame;
  EXPECT_TRUE(FirstFrame(7, 7, &frame).ok());
  EXPECT_TRUE(!DecodeFrame(frame).ok());  // it has the nonce behind it
  EXPECT_TRUE(FirstFrame(0, 0, &frame).ok());
  EXPECT_TRUE(DecodeFrame(frame).ok());
  for (uint64_t other : {uint64_t{8}, uint64_t{7} << 56, uint64_t{0}}) {
    const Status refused = FirstFrame(7, other, &frame);
    EXPECT_TRUE(refused.code() == StatusCode::kUnavailable);
    EXPECT_CONTAINS(refused.message(), "rank 1 was lost: it sent a frame of another generation");
    EXPECT_CONTAINS(refused.message(), "here it is 7");
  }
}

}  // namespace
}  // namespace tfring::testing::health_test
