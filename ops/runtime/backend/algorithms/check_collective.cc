#include <string>

#include "ops/runtime/backend/algorithms/select.h"

namespace tfring {
namespace {

using Blocks = std::vector<std::vector<int64_t>>;  // [tensor][member]

Status Wrong(const Collective& collective, const std::string& what) {
  return Internal(std::string(CollectiveKindName(collective.kind)) + " number " +
                  std::to_string(collective.sequence) + ": " + what);
}

std::string Where(size_t tensor) { return "tensor " + std::to_string(tensor); }

// What a kind does with the buffers of this rank.
struct Use {
  bool input = true;
  bool output = true;
  // Where these are set, they are the lists that the input (the output) consists of; else the list
  // of `own`, if set, has it at this rank's position.
  const Blocks* input_blocks = nullptr;
  const Blocks* output_blocks = nullptr;
  const Blocks* own = nullptr;
};

Use UseOf(const Collective& collective) {
  const bool root = collective.self == collective.root;
  const Blocks* blocks = &collective.block_bytes;
  switch (collective.kind) {
    case CollectiveKind::kBroadcast:
      return {root, true};
    case CollectiveKind::kReduce:
      return {true, root};
    case CollectiveKind::kSendRecv:
      return {root, !root};
    case CollectiveKind::kAllgather:
      return {true, true, nullptr, blocks, blocks};
    case CollectiveKind::kGather:
      return {true, root, nullptr, root ? blocks : nullptr, blocks};
    case CollectiveKind::kReducescatter:
      return {true, true, blocks, nullptr, blocks};
    case CollectiveKind::kScatter:
      return {root, true, root ? blocks : nullptr, nullptr, blocks};
    case CollectiveKind::kAlltoall:
      return {true, true, &collective.send_bytes, blocks, nullptr};
    default:
      return {};
  }
}

Status CheckBlocks(const Collective& collective, size_t tensor, const Blocks& of_tensors) {
  const std::vector<int64_t>& blocks = of_tensors[tensor];
  if (blocks.size() != collective.members.size()) {
    return Wrong(collective, Where(tensor) + " has " + std::to_string(blocks.size()) +
                                 " blocks for " + std::to_string(collective.members.size()) +
                                 " ranks");
  }
  for (int64_t block : blocks) {
    if (block < 0) return Wrong(collective, Where(tensor) + " has a block of negative size");
    if (block % DataTypeSize(collective.dtype) != 0) {
      return Wrong(collective, Where(tensor) + " has a block of " + std::to_string(block) +
                                   " bytes, no multiple of the size of " +
                                   DataTypeName(collective.dtype));
    }
  }
  return OkStatus();
}

// `bytes` is the size of the side ("input" or "output") that consists of `all`, or of this rank's
// block in `own`.
Status CheckSide(const Collective& collective, size_t tensor, const char* side, int64_t bytes,
                 const Blocks* all, const Blocks* own) {
  int64_t expected = bytes;
  if (all != nullptr) {
    expected = 0;
    for (int64_t block : (*all)[tensor]) expected += block;
  } else if (own != nullptr) {
    expected = (*own)[tensor][collective.self];
  }
  if (bytes == expected) return OkStatus();
  return Wrong(collective, Where(tensor) + " has blocks of " + std::to_string(expected) +
                               " bytes for an " + side + " of " + std::to_string(bytes));
}

Status CheckMemory(const Collective& collective, size_t tensor, const Use& use) {
  const TensorBuffer& buffer = collective.buffers[tensor];
  for (int64_t bytes : {use.input ? buffer.input_bytes : 0, use.output ? buffer.output_bytes : 0}) {
    if (bytes < 0) return Wrong(collective, Where(tensor) + " has a negative size");
    if (bytes % DataTypeSize(collective.dtype) != 0) {
      return Wrong(collective, Where(tensor) + " has " + std::to_string(bytes) +
                                   " bytes, no multiple of the size of " +
                                   DataTypeName(collective.dtype));
    }
  }
  if ((use.output && buffer.output_bytes > 0 && buffer.output == nullptr) ||
      (use.input && buffer.input_bytes > 0 && buffer.input == nullptr)) {
    return Wrong(collective, Where(tensor) + " has no memory");
  }
  return OkStatus();
}

Status CheckBuffer(const Collective& collective, size_t tensor) {
  const TensorBuffer& buffer = collective.buffers[tensor];
  const Use use = UseOf(collective);
  TFRING_RETURN_IF_ERROR(CheckMemory(collective, tensor, use));
  for (const Blocks* blocks : {use.input_blocks, use.output_blocks, use.own}) {
    if (blocks != nullptr) TFRING_RETURN_IF_ERROR(CheckBlocks(collective, tensor, *blocks));
  }
  if (use.input) {
    TFRING_RETURN_IF_ERROR(
        CheckSide(collective, tensor, "input", buffer.input_bytes, use.input_blocks, use.own));
  }
  if (use.output) {
    TFRING_RETURN_IF_ERROR(
        CheckSide(collective, tensor, "output", buffer.output_bytes, use.output_blocks, use.own));
  }
  const bool blocks = use.input_blocks != nullptr || use.output_blocks != nullptr;
  if (use.input && use.output && !blocks && buffer.input_bytes != buffer.output_bytes) {
    return Wrong(collective, Where(tensor) + " has an input of " +
                                 std::to_string(buffer.input_bytes) + " bytes and an output of " +
                                 std::to_string(buffer.output_bytes));
  }
  if (collective.kind == CollectiveKind::kAlltoall) {
    const int64_t sent = collective.send_bytes[tensor][collective.self];
    const int64_t kept = collective.block_bytes[tensor][collective.self];
    if (sent != kept) {
      return Wrong(collective, Where(tensor) + " has " + std::to_string(sent) +
                                   " bytes for this rank itself, which expects " +
                                   std::to_string(kept));
    }
  }
  return OkStatus();
}

Status CheckLists(const Collective& collective, const Blocks* blocks) {
  if (blocks == nullptr || blocks->size() == collective.buffers.size()) return OkStatus();
  return Wrong(collective, std::to_string(blocks->size()) + " lists of blocks for " +
                               std::to_string(collective.buffers.size()) + " tensors");
}

Status CheckMembers(const Collective& collective) {
  const int size = static_cast<int>(collective.members.size());
  if (collective.self < 0 || collective.self >= size) {
    return Wrong(collective, "position " + std::to_string(collective.self) + " is not one of " +
                                 std::to_string(size));
  }
  for (int i = 1; i < size; ++i) {
    if (collective.members[i] <= collective.members[i - 1]) {
      return Wrong(collective, "the members are not in ascending order");
    }
  }
  if (HasRoot(collective.kind) && (collective.root < 0 || collective.root >= size)) {
    return Wrong(collective, "root " + std::to_string(collective.root) + " is not one of " +
                                 std::to_string(size) + " members");
  }
  if (collective.kind == CollectiveKind::kSendRecv && size != 2) {
    return Wrong(collective, "between " + std::to_string(size) + " ranks instead of 2");
  }
  return OkStatus();
}

}  // namespace

Status CheckCollective(const Collective& collective) {
  if (static_cast<int>(collective.kind) >= kNumCollectiveKinds) {
    return Internal("unknown kind of collective");
  }
  if (!MovesData(collective.kind)) return Wrong(collective, "moves no data");
  if (static_cast<int>(collective.dtype) >= kNumDataTypes) {
    return Wrong(collective, "unknown dtype");
  }
  TFRING_RETURN_IF_ERROR(CheckMembers(collective));
  const Use use = UseOf(collective);
  for (const Blocks* blocks : {use.input_blocks, use.output_blocks, use.own}) {
    TFRING_RETURN_IF_ERROR(CheckLists(collective, blocks));
  }
  for (size_t tensor = 0; tensor < collective.buffers.size(); ++tensor) {
    TFRING_RETURN_IF_ERROR(CheckBuffer(collective, tensor));
  }
  return OkStatus();
}

}  // namespace tfring
