// Every kind of collective between several ranks in one process, through every layer.
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "tests/cc/process/fixture.h"
#include "tests/cc/test.h"

namespace tfring::kinds_test {
namespace {

void ForEveryJob(const std::function<void(Job*)>& body) {
  for (Link link : {Link::kInProcess, Link::kTcp}) {
    for (int size = 1; size <= 4; ++size) {
      Job job(size, link);
      body(&job);
    }
  }
}

TEST(ReducescatterOfUnevenRows) {
  ForEveryJob([](Job* job) {
    const int size = job->size();
    Calls calls = RunAll(job, [](int r) {
      auto call = Single(CollectiveKind::kReducescatter, "x", {6, 3}, static_cast<float>(r + 1));
      call->Tensor({1}, 2.0f);
      return call;
    });
    for (int r = 0; r < size; ++r) {
      const int64_t rows = 6 / size + (r < 6 % size ? 1 : 0);
      EXPECT_TRUE((calls[r]->output_shapes == std::vector<Shape>{{rows, 3}, {r == 0 ? 1 : 0}}));
      EXPECT_TRUE(AllEqual(calls[r]->outputs[0], static_cast<float>(size * (size + 1) / 2)));
      EXPECT_TRUE(calls[r]->outputs[1] ==
                  std::vector<float>(r == 0 ? 1 : 0, static_cast<float>(2 * size)));
    }
  });
}

// Rank s sends d rows to each rank d, so that rank d gets d rows from everybody.
TEST(AlltoallOfUnevenRows) {
  ForEveryJob([](Job* job) {
    const int size = job->size();
    Calls calls = RunAll(job, [size](int r) {
      auto call =
          Single(CollectiveKind::kAlltoall, "x", {size * (size - 1) / 2, 2}, static_cast<float>(r));
      for (int d = 0; d < size; ++d) call->request.splits.push_back(d);
      return call;
    });
    for (int r = 0; r < size; ++r) {
      EXPECT_TRUE((calls[r]->output_shapes == std::vector<Shape>{{size * r, 2}}));
      EXPECT_TRUE((calls[r]->values == std::vector<int64_t>(size, r)));
      std::vector<float> expected;
      for (int s = 0; s < size; ++s) expected.insert(expected.end(), 2 * r, static_cast<float>(s));
      EXPECT_TRUE(calls[r]->outputs[0] == expected);
    }
  });
}

TEST(ReduceGatherAndScatterForEveryRoot) {
  ForEveryJob([](Job* job) {
    const int size = job->size();
    for (int root = 0; root < size; ++root) {
      const auto rooted = [root](std::unique_ptr<Call> call) {
        call->request.root = root;
        return call;
      };
      Calls reduce = RunAll(job, [&](int r) {
        return rooted(Single(CollectiveKind::kReduce, "r", {5}, static_cast<float>(r + 1)));
      });
      Calls gather = RunAll(job, [&](int r) {
        return rooted(Single(CollectiveKind::kGather, "g", {r, 2}, static_cast<float>(r)));
      });
      Calls scatter = RunAll(job, [&](int r) {
        const bool gives = r == root;
        auto call = rooted(Single(CollectiveKind::kScatter, "s", {gives ? 3 * size : 0, 2}, 4.0f));
        return call;
      });
      for (int r = 0; r < size; ++r) {
        const auto sum = static_cast<float>(size * (size + 1) / 2);
        EXPECT_TRUE(AllEqual(reduce[r]->outputs[0], r == root ? sum : -1.0f));
        const int64_t rows = r == root ? size * (size - 1) / 2 : 0;
        EXPECT_TRUE((gather[r]->output_shapes == std::vector<Shape>{{rows, 2}}));
        EXPECT_TRUE((scatter[r]->output_shapes == std::vector<Shape>{{3, 2}}));
        EXPECT_TRUE(AllEqual(scatter[r]->outputs[0], 4.0f));
      }
    }
  });
}

// Only the two are asked; the others are free for something else.
TEST(SendAndReceive) {
  for (int size = 2; size <= 4; ++size) {
    Job job(size, Link::kTcp);
    for (int from = 0; from < size; ++from) {
      for (int to = 0; to < size; ++to) {
        if (from == to) continue;
        Calls calls = RunAll(&job, [&](int r) -> std::unique_ptr<Call> {
          if (r != from && r != to) return nullptr;
          auto call = Bare(CollectiveKind::kSendRecv, "m." + std::to_string(from));
          if (r == from) call->Tensor({3, to + 1}, static_cast<float>(from));
          call->request.root = from;
          call->request.peer = to;
          return call;
        });
        EXPECT_TRUE((calls[to]->output_shapes == std::vector<Shape>{{3, to + 1}}));
        EXPECT_TRUE(AllEqual(calls[to]->outputs[0], static_cast<float>(from)));
        EXPECT_TRUE(calls[from]->output_shapes.empty());
      }
    }
  }
}

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
