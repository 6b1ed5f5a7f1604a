#include "ops/runtime/protocol/tree/tree_message.h"

#include <utility>

namespace tfring {
namespace {

// First byte of a message.
constexpr uint8_t kUp = 1;
constexpr uint8_t kDown = 2;

void WriteMerged(const MergedFrame& frame, RankRange subtree, WireWriter* out) {
  frame.ranks.Write(subtree, out);
  out->Byte(frame.bytes != nullptr ? 1 : 0);
  if (frame.bytes != nullptr) {
    out->String(*frame.bytes);
  } else {
    out->Word(frame.digest.low);
    out->Word(frame.digest.high);
  }
}

FrameBytes ReadBytes(WireReader* in) { return std::make_shared<const std::string>(in->String()); }

MergedFrame ReadMerged(RankRange subtree, WireReader* in) {
  MergedFrame frame;
  frame.ranks = RankSet::Read(subtree, in);
  if (in->Enum(2) == 1) {
    frame.bytes = ReadBytes(in);
    frame.digest = DigestOf(*frame.bytes);
  } else {
    frame.digest.low = in->Word();
    frame.digest.high = in->Word();
  }
  return frame;
}

void WriteNumbers(const std::vector<uint64_t>& numbers, WireWriter* out) {
  out->Unsigned(numbers.size());
  for (uint64_t number : numbers) out->Unsigned(number);
}

std::vector<uint64_t> ReadNumbers(WireReader* in) {
  std::vector<uint64_t> numbers(in->Count(1));
  for (uint64_t& number : numbers) number = in->Unsigned();
  return numbers;
}

void ReadUp(RankRange subtree, WireReader* in, TreeMessage* message) {
  const size_t merged = in->Count(3);
  for (size_t i = 0; i < merged && in->ok(); ++i) {
    message->merged.push_back(ReadMerged(subtree, in));
  }
  const size_t wanted = in->Count(2);
  for (size_t i = 0; i < wanted && in->ok(); ++i) {
    const uint64_t number = in->Unsigned();
    message->wanted_bytes.emplace_back(number, ReadBytes(in));
  }
}

void ReadDown(RankRange subtree, WireReader* in, TreeMessage* message) {
  const size_t plans = in->Count(2);
  for (size_t i = 0; i < plans && in->ok(); ++i) {
    PlanFrame frame;
    frame.ranks = RankSet::Read(subtree, in);
    frame.bytes = ReadBytes(in);
    message->plans.push_back(std::move(frame));
  }
  message->wanted = ReadNumbers(in);
  message->released = ReadNumbers(in);
}

}  // namespace

std::string EncodeTreeMessage(const TreeMessage& message, RankRange subtree) {
  WireWriter out;
  if (!message.merged.empty() || !message.wanted_bytes.empty()) {
    out.Byte(kUp);
    out.Unsigned(message.merged.size());
    for (const MergedFrame& frame : message.merged) WriteMerged(frame, subtree, &out);
    out.Unsigned(message.wanted_bytes.size());
    for (const auto& [number, bytes] : message.wanted_bytes) {
      out.Unsigned(number);
      out.String(*bytes);
    }
  } else {
    out.Byte(kDown);
    out.Unsigned(message.plans.size());
    for (const PlanFrame& frame : message.plans) {
      frame.ranks.Write(subtree, &out);
      out.String(*frame.bytes);
    }
    WriteNumbers(message.wanted, &out);
    WriteNumbers(message.released, &out);
  }
  return out.Take();
}

Result<TreeMessage> DecodeTreeMessage(std::string_view bytes, RankRange subtree, bool from_child) {
  WireReader in(bytes);
  TreeMessage message;
  if (in.Byte() != (from_child ? kUp : kDown)) in.Fail();
  if (from_child) {
    ReadUp(subtree, &in, &message);
  } else {
    ReadDown(subtree, &in, &message);
  }
  if (!in.ok() || in.remaining() != 0) {
    return Internal("a message of the control tree of " + std::to_string(bytes.size()) +
                    " bytes cannot be read; do all ranks run the same version?");
  }
  return message;
}

}  // namespace tfring
