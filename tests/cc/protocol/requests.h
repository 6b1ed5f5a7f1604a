#ifndef TFRING_TESTS_CC_PROTOCOL_REQUESTS_H_
#define TFRING_TESTS_CC_PROTOCOL_REQUESTS_H_

#include <string>
#include <utility>
#include <vector>

#include "ops/runtime/protocol/message/request.h"

// Requests as the ranks of a test make them: float32, named "x" where no name is given.
namespace tfring::testing {

inline Request Allreduce(const std::string& name, Shape shape = {4},
                         ProcessSetId set = kGlobalProcessSet) {
  Request request;
  request.name = name;
  request.process_set = set;
  request.shapes = {std::move(shape)};
  return request;
}

inline Request Allgather(const std::string& name, Shape shape) {
  Request request = Allreduce(name, std::move(shape));
  request.kind = CollectiveKind::kAllgather;
  return request;
}

inline Request Of(CollectiveKind kind, Shape shape, std::vector<int64_t> splits = {}) {
  Request request = Allreduce("x", std::move(shape));
  request.kind = kind;
  request.splits = std::move(splits);
  return request;
}

// From rank `from` to rank `to`.
inline Request Send(Rank from, Rank to, Shape shape = {4}) {
  Request request = Of(CollectiveKind::kSendRecv, std::move(shape));
  request.root = from;
  request.peer = to;
  return request;
}

inline Request Join(ProcessSetId set = kGlobalProcessSet, const std::string& name = "join") {
  Request request;
  request.name = name;
  request.kind = CollectiveKind::kJoin;
  request.process_set = set;
  return request;
}

inline Request AddSet(std::vector<Rank> ranks) {
  Request request;
  request.name = "add";
  request.kind = CollectiveKind::kAddProcessSet;
  request.set_ranks = std::move(ranks);
  return request;
}

inline Request RemoveSet(ProcessSetId id) {
  Request request;
  request.name = "remove";
  request.kind = CollectiveKind::kRemoveProcessSet;
  request.removed_set = id;
  return request;
}

}  // namespace tfring::testing

#endif  // TFRING_TESTS_CC_PROTOCOL_REQUESTS_H_
