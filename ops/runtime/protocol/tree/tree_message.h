#ifndef TFRING_OPS_RUNTIME_PROTOCOL_TREE_TREE_MESSAGE_H_
#define TFRING_OPS_RUNTIME_PROTOCOL_TREE_TREE_MESSAGE_H_

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "ops/runtime/base/status.h"
#include "ops/runtime/protocol/tree/digest.h"
#include "ops/runtime/protocol/tree/rank_set.h"

namespace tfring {

// The bytes of a control frame, which several places keep.
using FrameBytes = std::shared_ptr<const std::string>;

// A frame that ranks of one subtree have sent to rank 0, all of them the same.
struct MergedFrame {
  RankSet ranks;
  Digest digest;     // not sent with the bytes
  FrameBytes bytes;  // null: the parent asks for them if it has to
};

// A frame of rank 0 for ranks of one subtree.
struct PlanFrame {
  RankSet ranks;
  FrameBytes bytes;
};

// What two neighbours in the tree send each other. Frames that go up as a digest are *announced*:
// both ends number them from 1, and each number is answered once, released or wanted.
struct TreeMessage {
  // From a child.
  std::vector<MergedFrame> merged;
  std::vector<std::pair<uint64_t, FrameBytes>> wanted_bytes;
  // From a parent.
  std::vector<PlanFrame> plans;
  std::vector<uint64_t> wanted;    // send the bytes of these
  std::vector<uint64_t> released;  // nobody needs the bytes of these any more
};

// `subtree` is that of the child.
std::string EncodeTreeMessage(const TreeMessage& message, RankRange subtree);

// Treats every byte as hostile, as DecodeFrame does. `from_child`: of what is for the other
// direction nothing may be there.
Result<TreeMessage> DecodeTreeMessage(std::string_view bytes, RankRange subtree, bool from_child);

}  // namespace tfring

#endif  // TFRING_OPS_RUNTIME_PROTOCOL_TREE_TREE_MESSAGE_H_
