#include <functional>
#include <string>

#include "ops/runtime/protocol/message/wire.h"
#include "ops/runtime/protocol/negotiation/negotiator.h"
#include "tests/cc/protocol/negotiation/cluster.h"
#include "tests/cc/test.h"

namespace tfring::testing::hostile_messages_test {
namespace {

// A peer that sends `frame` to `rank` of three, where {0, 1} is process set 1: the generation is
// over, the message names the peer, and nothing that is sent later revives it.
void ExpectFatal(Rank rank, Rank from, const std::string& frame, const std::string& part,
                 const std::function<void(Negotiator*)>& before = nullptr) {
  ProcessSets sets(3);
  EXPECT_TRUE(sets.Add(1, {0, 1}).ok());
  Negotiator negotiator(rank, 3, Config(), &sets);
  if (before) before(&negotiator);
  EXPECT_EQ(negotiator.Drain().fatal.ToString(), "Ok");
  negotiator.OnFrame(from, frame, 1);
  const Status fatal = negotiator.Drain().fatal;
  EXPECT_TRUE(fatal.code() == StatusCode::kInternal);
  EXPECT_CONTAINS(fatal.message(), "rank " + std::to_string(from) + " broke the negotiation");
  EXPECT_CONTAINS(fatal.message(), part);
  negotiator.OnFrame(from, frame, 2);
  negotiator.Submit(99, Allreduce("later"), 2);
  negotiator.OnPlanDone(1, 2);
  negotiator.OnDeparted(1, "", 2);
  negotiator.OnTime(kNever - 1);
  const Negotiator::Output after = negotiator.Drain();
  EXPECT_TRUE(after.frames.empty() && after.runs.empty() && after.fatal.ok());
}

std::string Requests(std::vector<Request> requests, std::vector<uint32_t> ids = {}) {
  Frame frame;
  frame.type = FrameType::kRequests;
  frame.requests = std::move(requests);
  frame.cache_ids = std::move(ids);
  return EncodeFrame(frame);
}

std::string Plans(std::vector<Plan> plans) {
  Frame frame;
  frame.type = FrameType::kPlans;
  frame.plans = std::move(plans);
  return EncodeFrame(frame);
}

Plan PlanOf(const std::string& name, uint64_t sequence = 1) {
  Plan plan;
  plan.sequence = sequence;
  plan.kind = CollectiveKind::kAllreduce;
  plan.dtype = DataType::kFloat32;
  plan.items = {{name, 0, {}}};
  return plan;
}

void SubmitX(Negotiator* negotiator) { negotiator->Submit(1, Allreduce("x"), 0); }

TEST(BytesThatAreNoFrame) {
  ExpectFatal(0, 1, "", "0 bytes");
  ExpectFatal(0, 1, "\x01\x7f", "cannot be read");
  ExpectFatal(2, 0, "\x63", "type 99");
}

TEST(FramesFromTheWrongSide) {
  ExpectFatal(1, 2, Plans({PlanOf("x")}), "does not go from rank 2 to rank 1", SubmitX);
  ExpectFatal(0, 1, Plans({PlanOf("x")}), "does not go from rank 1 to rank 0", SubmitX);
  ExpectFatal(1, 0, Requests({Allreduce("x")}), "does not go from rank 0 to rank 1");
  ExpectFatal(1, 1, Plans({PlanOf("x")}), "no such peer", SubmitX);
  ExpectFatal(1, 3, Plans({PlanOf("x")}), "no such peer", SubmitX);
  ExpectFatal(1, -1, Plans({PlanOf("x")}), "no such peer", SubmitX);
  ExpectFatal(1, 0, EncodeFrame(Frame()), "not part of the negotiation");
}

TEST(ImpossibleRequests) {
  ExpectFatal(0, 2, Requests({Allreduce("x", {4}, 1)}), "no member of process set 1");
  ExpectFatal(0, 1, Requests({Allreduce("x"), Allreduce("x")}), "asked twice for tensor 'x'");
  ExpectFatal(0, 1, Requests({Allreduce("x", {-4})}), "negative dimension");
  ExpectFatal(0, 1, Requests({Allreduce("")}), "needs a name");
  ExpectFatal(0, 1, Requests({}, {1}), "cache id 1 stands for no request");
}

TEST(IdsOfOtherPeoplesSets) {
  const auto learn = [](Negotiator* negotiator) {
    negotiator->Submit(1, Allreduce("x", {4}, 1), 0);
    negotiator->OnFrame(1, Requests({Allreduce("x", {4}, 1)}), 0);
    const Negotiator::Output out = negotiator->Drain();
    EXPECT_EQ(out.runs.at(0).plan.items.at(0).cache_id, 1u);
  };
  ExpectFatal(0, 2, Requests({}, {1}), "no member", learn);
  ExpectFatal(0, 1, Requests({}, {1, 1}), "asked twice", learn);
}

TEST(ImpossiblePlans) {
  Plan plan = PlanOf("x");
  plan.process_set = 9;
  ExpectFatal(1, 0, Plans({plan}), "process set 9", SubmitX);
  plan.process_set = 1;
  ExpectFatal(2, 0, Plans({plan}), "no member", SubmitX);
  ExpectFatal(1, 0, Plans({PlanOf("y")}), "has not asked for", SubmitX);
  ExpectFatal(1, 0, Plans({PlanOf("x"), PlanOf("x", 2)}), "has not asked for", SubmitX);
  ExpectFatal(1, 0, Plans({PlanOf("x", 0)}), "came after", SubmitX);
  plan = PlanOf("x");
  plan.items.clear();
  ExpectFatal(1, 0, Plans({plan}), "no items", SubmitX);
  plan = PlanOf("");
  plan.items[0].cache_id = 4;
  ExpectFatal(1, 0, Plans({plan}), "unknown cache id 4", SubmitX);
  const auto submit_two = [](Negotiator* negotiator) {
    SubmitX(negotiator);
    negotiator->Submit(2, Allreduce("y"), 0);
  };
  ExpectFatal(1, 0, Plans({PlanOf("x", 7), PlanOf("y", 7)}), "plan 7 came after plan 7",
              submit_two);
  plan = PlanOf("x");
  plan.items = {{"x", 4, {}}, {"y", 4, {}}};
  ExpectFatal(1, 0, Plans({plan}), "cache id 4 again", submit_two);
}

std::string Withdraws(ProcessSetId set, Status cause) {
  Frame frame;
  frame.type = FrameType::kWithdraw;
  frame.process_set = set;
  frame.status = std::move(cause);
  return EncodeFrame(frame);
}

TEST(ImpossibleWithdrawals) {
  const Status cause = Aborted("the step of rank 1 failed");
  ExpectFatal(1, 0, Withdraws(0, cause), "does not go from rank 0 to rank 1");
  ExpectFatal(0, 1, Withdraws(2, cause), "there is no process set 2");
  ExpectFatal(0, 1, Withdraws(-1, cause), "there is no process set -1");
  ExpectFatal(0, 2, Withdraws(1, cause), "process set 1, of which it is no member");
  ExpectFatal(0, 1, Withdraws(0, OkStatus()), "process set 0 that has failed nowhere");
  // Once rank 2 has failed, rank 1 may follow, but only once.
  ExpectFatal(0, 1, Withdraws(0, OkStatus()), "failed nowhere", [&](Negotiator* negotiator) {
    negotiator->OnFrame(2, Withdraws(0, cause), 0);
    negotiator->OnFrame(1, Withdraws(0, OkStatus()), 0);
  });
}

// The engine ends the calls that it never saw in a plan: none may be lost with the wrong frame.
TEST(AWrongPlanLosesNoCall) {
  ProcessSets sets(3);
  Negotiator negotiator(1, 3, Config(), &sets);
  for (CallId id : {3, 2, 1}) negotiator.Submit(id, Allreduce("x" + std::to_string(id)), 0);
  EXPECT_EQ(negotiator.participant().waiting(), size_t{3});
  Plan wrong = PlanOf("x2", 2);
  wrong.items.push_back({"x2", 0, {}});
  negotiator.OnFrame(0, Plans({PlanOf("x1"), wrong, PlanOf("x3", 3)}), 1);
  negotiator.Submit(4, Allreduce("later"), 2);
  EXPECT_EQ(negotiator.TakeCalls(), (std::vector<CallId>{1, 2, 3, 4}));
  const Negotiator::Output out = negotiator.Drain();
  EXPECT_TRUE(out.runs.empty());
  EXPECT_CONTAINS(out.fatal.message(), "plan 2 holds tensor 'x2', which rank 1 has not asked for");
}

TEST(PlansThatAreNotTheCall) {
  const auto differs = [](const std::function<void(Plan*)>& change) {
    Plan plan = PlanOf("x");
    change(&plan);
    ExpectFatal(1, 0, Plans({plan}), "'x'", SubmitX);
  };
  differs([](Plan* plan) { plan->dtype = DataType::kFloat64; });
  differs([](Plan* plan) { plan->kind = CollectiveKind::kBroadcast; });
  differs([](Plan* plan) { plan->op = ReduceOp::kMax; });
  differs([](Plan* plan) { plan->prescale = 2; });
  differs([](Plan* plan) { plan->postscale = 2; });
  differs([](Plan* plan) { plan->items[0].negotiated_values = {1, 2, 3}; });
}

}  // namespace
}  // namespace tfring::testing::hostile_messages_test
