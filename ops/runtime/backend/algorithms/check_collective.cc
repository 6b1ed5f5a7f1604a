#include "ops/runtime/backend/algorithms/check_collective.h"

#include <numeric>
#include <vector>

#include "ops/runtime/backend/schedule/buffer_map.h"

namespace tfring {
namespace {

std::string NotWhole(const Collective& collective, int64_t bytes) {
  if (bytes < 0) return " of negative size";
  if (bytes % DataTypeSize(collective.dtype) == 0) return "";
  return " of " + std::to_string(bytes) + " bytes, no multiple of the size of " +
         DataTypeName(collective.dtype);
}

// Checks one of the lists that give a side its size.
std::string CheckBlocks(const Collective& collective, const std::vector<int64_t>& blocks) {
  if (blocks.size() != collective.members.size()) {
    return std::to_string(blocks.size()) + " blocks for " +
           std::to_string(collective.members.size()) + " ranks";
  }
  for (int64_t block : blocks) {
    const std::string wrong = NotWhole(collective, block);
    if (!wrong.empty()) return "a block" + wrong;
  }
  return "";
}

// Checks the input or the output of one tensor.
std::string CheckSide(const Collective& collective, size_t tensor, const SideLayout& layout,
                      const std::string& side, const void* data, int64_t bytes) {
  if (!layout.used) return "";
  std::string wrong = NotWhole(collective, bytes);
  if (!wrong.empty()) return "an " + side + wrong;
  if (bytes > 0 && data == nullptr) return "no memory for its " + side;
  const SideLayout::Blocks* lists = layout.blocks != nullptr ? layout.blocks : layout.own;
  if (lists == nullptr) return "";
  const std::vector<int64_t>& blocks = (*lists)[tensor];
  wrong = CheckBlocks(collective, blocks);
  if (!wrong.empty()) return wrong;
  const int64_t expected = layout.blocks != nullptr
                               ? std::accumulate(blocks.begin(), blocks.end(), int64_t{0})
                               : blocks[collective.self];
  if (bytes == expected) return "";
  return "blocks of " + std::to_string(expected) + " bytes for an " + side + " of " +
         std::to_string(bytes);
}

std::string CheckTensor(const Collective& collective, size_t tensor) {
  const TensorBuffer& buffer = collective.buffers[tensor];
  const auto [input, output] = SidesOf(collective);
  std::string wrong =
      CheckSide(collective, tensor, input, "input", buffer.input, buffer.input_bytes);
  if (!wrong.empty()) return wrong;
  wrong = CheckSide(collective, tensor, output, "output", buffer.output, buffer.output_bytes);
  if (!wrong.empty()) return wrong;
  const bool one_size = input.blocks == nullptr && output.blocks == nullptr;
  if (input.used && output.used && one_size && buffer.input_bytes != buffer.output_bytes) {
    return "an input of " + std::to_string(buffer.input_bytes) + " bytes and an output of " +
           std::to_string(buffer.output_bytes);
  }
  if (collective.kind != CollectiveKind::kAlltoall) return "";
  const int64_t sent = collective.send_bytes[tensor][collective.self];
  const int64_t kept = collective.block_bytes[tensor][collective.self];
  if (sent == kept) return "";
  return std::to_string(sent) + " bytes for this rank itself, which expects " +
         std::to_string(kept);
}

std::string CheckLists(const Collective& collective) {
  const Sides sides = SidesOf(collective);
  for (const SideLayout& layout : {sides.input, sides.output}) {
    const SideLayout::Blocks* lists = layout.blocks != nullptr ? layout.blocks : layout.own;
    if (layout.used && lists != nullptr && lists->size() != collective.buffers.size()) {
      return std::to_string(lists->size()) + " lists of blocks for " +
             std::to_string(collective.buffers.size()) + " tensors";
    }
  }
  return "";
}

std::string CheckMembers(const Collective& collective) {
  const int size = static_cast<int>(collective.members.size());
  if (collective.self < 0 || collective.self >= size) {
    return "position " + std::to_string(collective.self) + " is not one of " + std::to_string(size);
  }
  for (int i = 1; i < size; ++i) {
    if (collective.members[i] <= collective.members[i - 1]) {
      return "the members are not in ascending order";
    }
  }
  if (Traits(collective.kind).has_root() && (collective.root < 0 || collective.root >= size)) {
    return "root " + std::to_string(collective.root) + " is not one of " + std::to_string(size) +
           " members";
  }
  if (collective.kind == CollectiveKind::kSendRecv && size != 2) {
    return "between " + std::to_string(size) + " ranks instead of 2";
  }
  return "";
}

std::string Check(const Collective& collective) {
  if (!Traits(collective.kind).uses_backend) return "moves no data";
  if (static_cast<int>(collective.dtype) >= kNumDataTypes) return "unknown dtype";
  std::string wrong = CheckMembers(collective);
  if (wrong.empty()) wrong = CheckLists(collective);
  for (size_t tensor = 0; wrong.empty() && tensor < collective.buffers.size(); ++tensor) {
    wrong = CheckTensor(collective, tensor);
    if (!wrong.empty()) wrong = "tensor " + std::to_string(tensor) + " has " + wrong;
  }
  return wrong;
}

}  // namespace

std::string FindContradiction(const Collective& collective) {
  if (static_cast<int>(collective.kind) >= kNumCollectiveKinds) return "unknown kind of collective";
  const std::string wrong = Check(collective);
  if (wrong.empty()) return "";
  return std::string(CollectiveKindName(collective.kind)) + " number " +
         std::to_string(collective.sequence) + ": " + wrong;
}

}  // namespace tfring
