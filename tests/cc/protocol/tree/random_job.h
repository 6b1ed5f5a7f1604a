#ifndef TFRING_TESTS_CC_PROTOCOL_TREE_RANDOM_JOB_H_
#define TFRING_TESTS_CC_PROTOCOL_TREE_RANDOM_JOB_H_

#include <map>
#include <string>
#include <vector>

#include "ops/runtime/base/config.h"
#include "ops/runtime/protocol/message/request.h"
#include "ops/runtime/protocol/negotiation/process_sets.h"
#include "ops/sim/random.h"
#include "tests/cc/protocol/requests.h"

namespace tfring::testing {

// What the ranks of a random job call: rounds in which most ranks call the same, and some in
// another order, with other shapes, other kinds, or with something that is wrong.
struct Program {
  int size = 0;
  Config config;
  ProcessSets sets{1};
  std::vector<std::vector<std::vector<Request>>> calls;  // by rank and round
};

inline Request RandomCall(const std::string& name, sim::Random* random) {
  Request request = Allreduce(name, {random->Between(1, 3)});
  if (random->Percent(25)) request.kind = CollectiveKind::kAllgather;
  if (random->Percent(15)) request.kind = CollectiveKind::kBroadcast;
  request.call_site = random->Percent(50) ? "train.py:40" : "";
  return request;
}

// How one rank differs from the others, or does not.
inline void MakeDifferent(Rank rank, Request* request, sim::Random* random) {
  if (request->kind == CollectiveKind::kAllgather && random->Percent(50)) {
    request->shapes[0][0] = rank % 3;
  }
  if (!random->Percent(3)) return;
  switch (random->Below(4)) {
    case 0:
      request->shapes[0].push_back(2);
      break;
    case 1:
      request->dtype = DataType::kFloat64;
      break;
    case 2:
      request->kind = CollectiveKind::kBarrier;
      request->shapes.clear();
      break;
    default:
      Refuse(InvalidArgument("rank " + std::to_string(rank) + " is wrong"), request);
  }
}

inline Program RandomProgram(sim::Random* random) {
  Program program;
  program.size = static_cast<int>(random->Between(2, 24));
  program.config.cache_capacity = random->Percent(30) ? random->Between(0, 3) : 1000;
  program.config.fusion_threshold_bytes = random->Percent(50) ? 16 : 1 << 20;
  program.sets = ProcessSets(program.size);
  std::vector<Rank> members;
  for (Rank rank = 0; rank < program.size; ++rank) {
    if (random->Percent(50)) members.push_back(rank);
  }
  const bool with_set = members.size() > 1 && program.sets.Add(1, members).ok();
  std::vector<Request> common;
  for (int64_t n = random->Between(1, 7); n > 0; --n) {
    common.push_back(RandomCall("t" + std::to_string(n), random));
    const bool in_set = with_set && random->Percent(30);
    if (!in_set) continue;
    common.back().process_set = 1;
    common.back().root = members.front();
  }
  program.calls.resize(static_cast<size_t>(program.size));
  const int64_t rounds = random->Between(1, 4);
  for (int64_t round = 0; round < rounds; ++round) {
    for (Rank rank = 0; rank < program.size; ++rank) {
      std::vector<Request> own;
      for (Request request : common) {
        if (!program.sets.Contains(request.process_set, rank)) continue;
        MakeDifferent(rank, &request, random);
        own.push_back(std::move(request));
      }
      if (random->Percent(20)) random->Shuffle(&own);
      program.calls[static_cast<size_t>(rank)].push_back(std::move(own));
    }
  }
  return program;
}

}  // namespace tfring::testing

#endif  // TFRING_TESTS_CC_PROTOCOL_TREE_RANDOM_JOB_H_
