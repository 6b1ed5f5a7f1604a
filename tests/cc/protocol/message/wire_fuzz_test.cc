#include <cstdint>
#include <cstdlib>
#include <string>
#include <utility>
#include <vector>

#include "ops/runtime/protocol/message/wire.h"
#include "ops/runtime/protocol/negotiation/negotiator.h"
#include "tests/cc/fuzzing.h"

// Feeds mutated control frames to the decoder and to negotiators, as tests/cc/fuzzing.h says. With
// TFRING_LIBFUZZER: a libFuzzer entry.

namespace tfring {
namespace {

// Named after its kind, as the calls of Negotiate are.
Request SeedRequest(CollectiveKind kind) {
  Request request;
  request.name = CollectiveKindName(kind);
  request.kind = kind;
  if (Traits(kind).max_tensors > 0) request.shapes = {{3, 2}};
  if (kind == CollectiveKind::kSendRecv) request.peer = 1;
  if (kind == CollectiveKind::kAddProcessSet) request.set_ranks = {0, 2};
  if (kind == CollectiveKind::kRemoveProcessSet) request.removed_set = 1;
  return request;
}

// A negotiator of three ranks in the middle of its work.
void Negotiate(Rank rank, const std::vector<std::string>& frames) {
  ProcessSets sets(3);
  if (!sets.Add(1, {0, 1}).ok()) std::abort();
  Config config;
  config.cache_capacity = 2;
  Negotiator negotiator(rank, 3, config, &sets);
  negotiator.Submit(1, SeedRequest(CollectiveKind::kAllreduce), 0);
  negotiator.Submit(2, SeedRequest(CollectiveKind::kAllgather), 0);
  negotiator.Submit(3, SeedRequest(CollectiveKind::kAlltoall), 0);
  negotiator.Submit(4, SeedRequest(CollectiveKind::kScatter), 0);
  if (rank < 2) negotiator.Submit(5, SeedRequest(CollectiveKind::kSendRecv), 0);
  negotiator.Submit(6, SeedRequest(CollectiveKind::kAddProcessSet), 0);
  negotiator.Submit(7, SeedRequest(CollectiveKind::kJoin), 0);
  TimePoint now = 1;
  for (const std::string& frame : frames) {
    negotiator.OnFrame(rank == 0 ? 1 + static_cast<Rank>(now % 2) : 0, frame, now);
    for (const PlanRun& run : negotiator.Drain().runs) {
      negotiator.OnPlanDone(run.plan.sequence, now);
    }
    negotiator.OnTime(now * 100 * kSecond);
    ++now;
  }
  negotiator.Withdraw(0, 0, "the step of this rank failed", now);
  negotiator.Submit(8, SeedRequest(CollectiveKind::kBarrier), now, 1);
  negotiator.OnDeparted(2, "rank 2 ended with an exception: ValueError", now);
  (void)negotiator.Drain();
}

// What gives the allreduce of rank 1 a cache id, and a lock of it, which rank 1 declines.
std::vector<std::string> WithLock(const std::string& bytes) {
  Frame plans;
  plans.type = FrameType::kPlans;
  plans.plans.resize(1);
  plans.plans[0].sequence = 1;
  plans.plans[0].kind = CollectiveKind::kAllreduce;
  plans.plans[0].dtype = DataType::kFloat32;
  plans.plans[0].items = {{"allreduce", 1, {}}};
  Frame lock;
  lock.type = FrameType::kLock;
  lock.lock.id = 2;
  lock.lock.batches = {{1}};
  return {EncodeFrame(plans), EncodeFrame(lock), bytes};
}

void TryBytes(const std::string& bytes) {
  testing::TryDecoder(bytes, DecodeFrame, EncodeFrame);
  Negotiate(0, {bytes, bytes});
  Negotiate(1, {bytes});
  Negotiate(1, WithLock(bytes));
}

}  // namespace
}  // namespace tfring

#ifdef TFRING_LIBFUZZER

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  tfring::TryBytes(std::string(reinterpret_cast<const char*>(data), size));
  return 0;
}

#else

namespace tfring {
namespace {

std::string WithdrawFrame() {
  Frame frame;
  frame.type = FrameType::kWithdraw;
  frame.status = Aborted("the step of rank 1 failed");
  return EncodeFrame(frame);
}

// Ends the allreduce and the attempt.
std::string AbortedFrame() {
  Plan plan;
  plan.sequence = 1;
  plan.kind = CollectiveKind::kAllreduce;
  plan.dtype = DataType::kFloat32;
  plan.items = {{"allreduce", 0, {}}};
  plan.error = Aborted("the step of rank 1 failed");
  Frame frame;
  frame.type = FrameType::kPlans;
  frame.plans = {plan};
  return EncodeFrame(frame);
}

std::vector<Frame> OtherFrames() {
  Frame fault;
  fault.type = FrameType::kFault;
  fault.rank = 1;
  fault.status = Unavailable("gone");
  Frame goodbye;
  goodbye.type = FrameType::kGoodbye;
  goodbye.departures = {{2, ""}, {1, "ValueError: \xc3\xa9"}, {0, ""}};
  std::vector<Frame> frames = {fault, goodbye};
  Frame frame;
  frame.type = FrameType::kLock;
  frame.lock.id = 2;
  frame.lock.batches = {{1}, {2, 300}};
  frames.push_back(frame);
  for (FrameType type : {FrameType::kStop, FrameType::kFrozen, FrameType::kUnlock}) {
    frame.type = type;
    frame.lock.reason = {UnlockCause::kOtherCall, "a metric \xc3\xa9"};
    frames.push_back(frame);
  }
  frame.type = FrameType::kFrozen;
  frame.lock.reason = {UnlockCause::kApart, "y", {1, 300}};
  frames.push_back(frame);
  return frames;
}

std::vector<std::string> Corpus() {
  Frame requests;
  requests.type = FrameType::kRequests;
  for (int kind = 0; kind < kNumCollectiveKinds; ++kind) {
    requests.requests.push_back(SeedRequest(static_cast<CollectiveKind>(kind)));
  }
  requests.requests[0].prescale = 0.5;
  requests.requests.push_back(SeedRequest(CollectiveKind::kBroadcast));
  requests.requests.back().name = "a rather long name of a variable";
  requests.requests.back().layout_hash = 77;
  requests.requests.push_back(SeedRequest(CollectiveKind::kAllreduce));
  Refuse(InvalidArgument("a scalar"), &requests.requests.back());
  requests.cache_ids = {1, 2, 300};
  Frame plans;
  plans.type = FrameType::kPlans;
  Plan plan;
  plan.sequence = 1;
  plan.kind = CollectiveKind::kAllreduce;
  plan.dtype = DataType::kFloat32;
  plan.items = {{"allreduce", 1, {}}};
  plans.plans.push_back(plan);
  plan.sequence = 2;
  plan.kind = CollectiveKind::kAllgather;
  plan.items = {{"allgather", 2, {3, 3, 3}}};
  plans.plans.push_back(plan);
  const auto add = [&](CollectiveKind kind, std::vector<int64_t> dims) {
    ++plan.sequence;
    plan.kind = kind;
    plan.dtype = DataType::kFloat32;
    plan.items = {{CollectiveKindName(kind), 0, std::move(dims)}};
    plan.peer = kind == CollectiveKind::kSendRecv ? 1 : kNoRank;
    plans.plans.push_back(plan);
  };
  add(CollectiveKind::kAlltoall, {1, 1, 1, 1, 1, 1});
  add(CollectiveKind::kScatter, {1, 1, 1});
  add(CollectiveKind::kSendRecv, {3, 2});
  add(CollectiveKind::kAddProcessSet, {2, 0, 2});
  add(CollectiveKind::kJoin, {2});
  plan.absent = {2};
  add(CollectiveKind::kAllreduce, {});
  plan.absent.clear();
  plan.error = FailedPrecondition("the ranks disagree");
  plans.plans.push_back(plan);
  std::vector<std::string> corpus = {EncodeFrame(requests), EncodeFrame(plans), WithdrawFrame(),
                                     AbortedFrame()};
  for (const Frame& frame : OtherFrames()) corpus.push_back(EncodeFrame(frame));
  return corpus;
}

}  // namespace
}  // namespace tfring

int main(int argc, char** argv) {
  return tfring::testing::Fuzz(
      argc, argv, tfring::Corpus(), tfring::TryBytes,
      [](const std::string& bytes) { return tfring::DecodeFrame(bytes).ok(); });
}

#endif  // TFRING_LIBFUZZER
