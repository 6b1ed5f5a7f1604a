// Every kind of collective between several ranks in one process, through every layer.
#include <functional>
#include <string>
#include <vector>

#include "tests/cc/process/fixture.h"
#include "tests/cc/test.h"

namespace tfring::kinds_test {
namespace {

// As by functions that were traced when each rank was the other one.
TEST(ARankThatSendsWhereItReceivesIsToldSo) {
  Job job(2, Link::kTcp);
  Calls calls;
  for (Rank r = 0; r < 2; ++r) {
    calls.push_back(Bare(CollectiveKind::kSendRecv, "m"));
    Call& call = *calls.back();
    call.request.root = 0;
    call.request.peer = 1;
    if (r == 1) call.Tensor({3}, 1.0f);
    LocalCall local = call.MakeLocalCall();
    if (r == 1) local.allocate = nullptr;
    job[r].Enqueue(call.request, std::move(local));
  }
  for (auto& call : calls) {
    const Status status = call->Wait();
    EXPECT_TRUE(status.code() == StatusCode::kInvalidArgument);
    EXPECT_CONTAINS(status.message(), "trace it again");
  }
}

// A refused call ends on all ranks, with the reason and the rank, and the next one works.
TEST(ARefusalIsHeardByAll) {
  for (Link link : {Link::kInProcess, Link::kTcp}) {
    Job job(3, link);
    const std::function<void(Call*)> spoil[] = {
        [](Call* call) { call->request.splits = {1, 1}; },
        [](Call* call) { call->request.splits = {4, 0, 0}; },
        [](Call* call) { call->request.shapes = {Shape{}}; },
        [](Call* call) { call->request.shapes = {{7}}; },
        [](Call* call) { call->request.shapes = {{6}}; },
        [](Call* call) { call->request.refusal = "no such tensor today"; },
    };
    const char* reasons[] = {"2 splits", "4",           "scalar",
                             "7 rows",   "12 bytes in", "no such tensor today"};
    for (int odd = 0; odd < 3; ++odd) {
      for (size_t i = 0; i < std::size(spoil); ++i) {
        Calls calls = StartAll(&job, [&](int r) {
          auto call = Single(CollectiveKind::kAlltoall, "x", {3}, 1.0f);
          if (r == odd) spoil[i](call.get());
          return call;
        });
        for (auto& call : calls) {
          Status status = call->Wait();
          EXPECT_TRUE(status.code() == StatusCode::kInvalidArgument);
          EXPECT_CONTAINS(status.message(), "invalid on rank " + std::to_string(odd) + ": ");
          EXPECT_CONTAINS(status.message(), reasons[i]);
        }
        RunAll(&job, [](int) { return Single(CollectiveKind::kAlltoall, "x", {3}, 1.0f); });
      }
    }
  }
}

// What nobody else can be waiting for ends here, at once.
TEST(SomeCallsAreRefusedHere) {
  Job job(3, Link::kInProcess);
  const std::function<void(Request*)> spoil[] = {
      [](Request* request) { request->name.clear(); },
      [](Request* request) { request->kind = static_cast<CollectiveKind>(99); },
      [](Request* request) { request->process_set = 5; },
      [](Request* request) { request->peer = 0; },
      [](Request* request) { request->peer = 3; },
      [](Request* request) { request->root = 2; },
  };
  for (const auto& change : spoil) {
    auto call = Single(CollectiveKind::kSendRecv, "m", {3}, 1.0f);
    call->request.peer = 1;
    change(&call->request);
    call->Start(&job[0]);
    EXPECT_TRUE(call->Wait().code() == StatusCode::kInvalidArgument);
  }
}

// Its peers must not wait for it, and what they receive is whole.
TEST(ARankWithoutMemoryFailsAlone) {
  Job job(3, Link::kTcp);
  for (CollectiveKind kind :
       {CollectiveKind::kReducescatter, CollectiveKind::kAlltoall, CollectiveKind::kGather,
        CollectiveKind::kScatter, CollectiveKind::kAllgather}) {
    Calls calls = StartAll(&job, [&](int r) {
      auto call = Single(kind, "x", {3}, 1.0f);
      call->refuse_memory = r == 1;
      return call;
    });
    EXPECT_TRUE(calls[0]->Wait().ok() && calls[2]->Wait().ok());
    EXPECT_CONTAINS(calls[1]->Wait().message(), "no memory for test");
    if (kind == CollectiveKind::kAllgather) EXPECT_EQ(calls[2]->outputs[0].size(), size_t{9});
  }
  RunAll(&job, [](int) { return Allreduce("next", {1}, 1.0f); });
}

}  // namespace
}  // namespace tfring::kinds_test
