#include "ops/sim/random_calls.h"

#include <algorithm>
#include <numeric>
#include <string>
#include <utility>

namespace tfring::sim {

namespace {

const std::vector<DataType> kFloats = {DataType::kFloat16, DataType::kBfloat16, DataType::kFloat32,
                                       DataType::kFloat64};
const std::vector<ReduceOp> kRandomOps = {ReduceOp::kAverage, ReduceOp::kSum, ReduceOp::kMin,
                                          ReduceOp::kMax};

// With more ranks the simulator takes only the first kinds: some of the others have a step for each
// pair of ranks.
constexpr size_t kManyRanks = 64;
constexpr int kFirstKinds = 4;

// Returns the kinds that use the backend and are possible for this number of ranks.
std::vector<CollectiveKind> KindsFor(size_t ranks) {
  std::vector<CollectiveKind> kinds;
  for (int i = 0; i < (ranks > kManyRanks ? kFirstKinds : kNumCollectiveKinds); ++i) {
    const auto kind = static_cast<CollectiveKind>(i);
    const bool possible = ranks > 1 || kind != CollectiveKind::kSendRecv;
    if (Traits(kind).uses_backend && possible) kinds.push_back(kind);
  }
  return kinds;
}

// Returns whether the collective can run on the present ranks when the others have joined.
bool PossibleFor(const RandomOp& op, const std::vector<Rank>& present) {
  if (present == op.participants) return true;
  switch (op.request.kind) {
    case CollectiveKind::kAllreduce:
    case CollectiveKind::kAllgather:
    case CollectiveKind::kBarrier:
      return true;
    case CollectiveKind::kBroadcast:
    case CollectiveKind::kReduce:
    case CollectiveKind::kGather:
      return std::binary_search(present.begin(), present.end(), op.request.root);
    default:
      return false;
  }
}

}  // namespace

RandomOp RandomCalls::Make(ProcessSetId set, const std::vector<Rank>& members, int64_t number) {
  RandomOp op;
  op.request.process_set = set;
  op.request.name = "op" + std::to_string(number);
  op.request.kind = random_.Pick(KindsFor(members.size()));
  op.request.group = random_.Percent(20);
  op.set = members;
  op.participants = members;
  op.paths = RandomPaths(ranks_, &random_);
  Fill(&op);
  return op;
}

const RandomOp& RandomCalls::Usual(ProcessSetId set, const std::vector<Rank>& members,
                                   int64_t number) {
  const auto known = usual_.find({set, number});
  if (known != usual_.end()) return known->second;
  return usual_.emplace(std::pair(set, number), Make(set, members, number)).first->second;
}

void RandomCalls::Fill(RandomOp* op) {
  Request& request = op->request;
  if (request.kind == CollectiveKind::kBarrier) return;
  request.dtype = random_.Pick(kFloats);
  request.shapes = {RandomShape(&random_)};
  const bool list = Traits(request.kind).max_tensors > 1;
  while (list && random_.Percent(30)) request.shapes.push_back(RandomShape(&random_));
  if (Traits(request.kind).has_root()) request.root = random_.Pick(op->set);
  if (Traits(request.kind).reduces) {
    request.op = random_.Pick(kRandomOps);
    if (random_.Percent(20)) request.postscale = 0.5;
    if (request.kind == CollectiveKind::kAllreduce && random_.Percent(10)) {
      request.op = ReduceOp::kAdasum;
    }
  }
  if (request.kind == CollectiveKind::kScatter) {
    op->rows.resize(op->set.size());
    op->equal_parts = FillRows(&op->rows);
  }
  if (request.kind != CollectiveKind::kSendRecv) return;
  while (request.peer == kNoRank || request.peer == request.root) {
    request.peer = random_.Pick(op->set);
  }
  op->participants = {std::min(request.root, request.peer), std::max(request.root, request.peer)};
  request.name += "." + std::to_string(request.root) + "to" + std::to_string(request.peer);
}

// Returns whether the parts are equal.
bool RandomCalls::FillRows(std::vector<int64_t>* rows) {
  const bool equal_parts = random_.Percent(50);
  std::fill(rows->begin(), rows->end(), random_.Below(4));
  if (equal_parts) return true;
  for (int64_t& count : *rows) count = random_.Below(4);
  return false;
}

Request RandomCalls::OnRank(const RandomOp& op, Rank rank) {
  Request request = op.request;
  request.path = RandomPath(op.paths, rank, &random_);
  std::vector<int64_t> rows = op.rows;
  bool equal_parts = op.equal_parts;
  switch (request.kind) {
    case CollectiveKind::kAllgather:
    case CollectiveKind::kGather:
      for (Shape& shape : request.shapes) shape[0] = random_.Below(5);
      break;
    case CollectiveKind::kAlltoall:
      rows.resize(op.set.size());
      equal_parts = FillRows(&rows);
      break;
    case CollectiveKind::kScatter:
      if (rank != request.root) request.shapes[0][0] = random_.Below(2);
      break;
    case CollectiveKind::kSendRecv:
      if (rank == request.peer) LeaveShapeOpen(&request);
      break;
    default:
      break;
  }
  const bool cuts = request.kind == CollectiveKind::kAlltoall ||
                    (request.kind == CollectiveKind::kScatter && rank == request.root);
  if (!cuts) return request;
  request.shapes[0][0] = std::accumulate(rows.begin(), rows.end(), int64_t{0});
  if (!equal_parts) request.splits = std::move(rows);
  return request;
}

// A receiver may know the whole shape, a part of it, or nothing.
void RandomCalls::LeaveShapeOpen(Request* request) {
  if (random_.Percent(30)) {
    request->shapes.clear();
    return;
  }
  for (int64_t& dim : request->shapes[0]) {
    if (random_.Percent(50)) dim = -1;
  }
}

std::vector<std::pair<Rank, Call>> RandomCalls::Calls(const RandomOp& op,
                                                      const std::vector<Rank>& present, Flaw flaw) {
  std::vector<std::pair<Rank, Call>> calls;
  if (present.empty()) return calls;
  if (flaw == Flaw::kMismatch && present.size() == 1) flaw = Flaw::kNone;
  const Rank odd = flaw == Flaw::kNone ? kNoRank : random_.Pick(present);
  StatusCode expected = StatusCode::kOk;
  if (flaw == Flaw::kRefusal) expected = StatusCode::kInvalidArgument;
  if (flaw == Flaw::kMismatch || !PossibleFor(op, present)) {
    expected = StatusCode::kFailedPrecondition;
  }
  for (Rank rank : present) {
    Call call;
    call.request = OnRank(op, rank);
    call.early = random_.Percent(50);
    call.expected = expected;
    call.participants = present;
    if (rank == odd && flaw == Flaw::kMismatch) Disagree(op, &call.request);
    if (rank == odd && flaw == Flaw::kRefusal) MakeInvalid(op, rank, &call.request);
    calls.emplace_back(rank, std::move(call));
  }
  return calls;
}

void RandomCalls::Disagree(const RandomOp& op, Request* request) {
  if (request->kind == CollectiveKind::kBarrier) {
    request->kind = CollectiveKind::kBroadcast;
    request->shapes = {{1}};
    request->root = op.set[0];
  } else if (Traits(request->kind).reduces && random_.Percent(30)) {
    request->op = ReduceOp::kProduct;
  } else if (request->kind == CollectiveKind::kBroadcast && random_.Percent(30)) {
    request->root = *std::find_if(op.set.begin(), op.set.end(),
                                  [&](Rank rank) { return rank != op.request.root; });
  } else if (request->kind != CollectiveKind::kSendRecv && random_.Percent(50)) {
    request->shapes[0].push_back(2);
  } else {
    request->dtype = request->dtype == DataType::kFloat32 ? DataType::kFloat64 : DataType::kFloat32;
  }
}

void RandomCalls::MakeInvalid(const RandomOp& op, Rank rank, Request* request) {
  if (request->kind == CollectiveKind::kBarrier) {
    request->shapes = {{1}};
  } else if (Traits(request->kind).reduces) {
    request->dtype = DataType::kBool;
  } else if (request->kind == CollectiveKind::kSendRecv) {
    request->shapes.assign(2, {-2});
  } else if (Traits(request->kind).has_root() && random_.Percent(50)) {
    request->root = ranks_ + 3;
  } else if (request->kind == CollectiveKind::kAlltoall ||
             (request->kind == CollectiveKind::kScatter && rank == request->root)) {
    request->splits.assign(op.set.size(), 100);
  } else {
    request->shapes[0] = {-1};
  }
}

}  // namespace tfring::sim
