#include "ops/runtime/backend/algorithms/check_collective.h"

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "tests/cc/test.h"

namespace tfring::check_collective_test {
namespace {

// Makes an allreduce of one tensor of 40 bytes on one rank wrong in one way, and expects the
// contradiction to be named.
template <typename Change>
void ExpectFound(Change change, const std::string& text) {
  float data[10] = {};
  Collective c;
  c.sequence = 1;
  c.kind = CollectiveKind::kAllreduce;
  c.dtype = DataType::kFloat32;
  c.members = {0};
  c.buffers.push_back({data, data, 40, 40});
  EXPECT_EQ(FindContradiction(c), "");
  change(&c);
  EXPECT_CONTAINS(FindContradiction(c), text);
}

TEST(ContradictingSizesAreFound) {
  ExpectFound([](Collective* c) { c->buffers[0].output_bytes = 36; }, "input of 40 bytes");
  ExpectFound([](Collective* c) { c->buffers[0].input_bytes = c->buffers[0].output_bytes = 39; },
              "no multiple");
  ExpectFound([](Collective* c) { c->buffers[0].input_bytes = c->buffers[0].output_bytes = -4; },
              "negative");
  ExpectFound([](Collective* c) { c->buffers[0].output = nullptr; }, "no memory");
  ExpectFound([](Collective* c) { c->buffers[0].input = nullptr; }, "no memory");
  ExpectFound([](Collective* c) { c->self = 1; }, "position 1");
  ExpectFound([](Collective* c) { c->members = {0, 0}; }, "ascending");
  ExpectFound([](Collective* c) { c->dtype = static_cast<DataType>(99); }, "unknown dtype");
  ExpectFound([](Collective* c) { c->kind = static_cast<CollectiveKind>(99); }, "unknown kind");
  ExpectFound(
      [](Collective* c) {
        c->kind = CollectiveKind::kBroadcast;
        c->root = 3;
      },
      "root 3");
  ExpectFound([](Collective* c) { c->kind = CollectiveKind::kAllgather; }, "0 lists");
  ExpectFound(
      [](Collective* c) {
        c->kind = CollectiveKind::kAllgather;
        c->block_bytes = {{40, 3}};
      },
      "2 blocks for 1");
  ExpectFound(
      [](Collective* c) {
        c->kind = CollectiveKind::kAllgather;
        c->block_bytes = {{44}};
      },
      "blocks of 44 bytes");
}

TEST(ContradictingBlocksAreFound) {
  auto of_kind = [](CollectiveKind kind, std::vector<std::vector<int64_t>> blocks,
                    const char* text) {
    ExpectFound(
        [&](Collective* c) {
          c->kind = kind;
          c->block_bytes = std::move(blocks);
        },
        text);
  };
  of_kind(CollectiveKind::kReducescatter, {}, "0 lists");
  of_kind(CollectiveKind::kReducescatter, {{44}}, "blocks of 44 bytes for an input of 40");
  of_kind(CollectiveKind::kReducescatter, {{-4}}, "negative size");
  of_kind(CollectiveKind::kReducescatter, {{38}}, "a block of 38 bytes");
  of_kind(CollectiveKind::kGather, {{36}}, "blocks of 36 bytes");
  of_kind(CollectiveKind::kScatter, {{36}}, "blocks of 36 bytes");
  of_kind(CollectiveKind::kScatter, {{40, 0}}, "2 blocks for 1");
  of_kind(CollectiveKind::kAlltoall, {{40}}, "0 lists");
  of_kind(CollectiveKind::kSendRecv, {}, "between 1 ranks");
  of_kind(CollectiveKind::kJoin, {}, "moves no data");
  for (auto kind : {CollectiveKind::kReduce, CollectiveKind::kGather, CollectiveKind::kScatter}) {
    ExpectFound(
        [kind](Collective* c) {
          c->kind = kind;
          c->root = -1;
        },
        "root -1");
  }
  ExpectFound(
      [](Collective* c) {
        c->kind = CollectiveKind::kReduce;
        c->buffers[0].output_bytes = 0;
      },
      "output of 0");
  ExpectFound(
      [](Collective* c) {
        c->kind = CollectiveKind::kAlltoall;
        c->members = {0, 7};
        c->block_bytes = {{16, 24}};
        c->send_bytes = {{12, 28}};
      },
      "12 bytes for this rank itself, which expects 16");
}

}  // namespace
}  // namespace tfring::check_collective_test
