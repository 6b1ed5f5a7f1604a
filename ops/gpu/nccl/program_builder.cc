#include "ops/gpu/nccl/program_builder.h"

#include <algorithm>
#include <numeric>
#include <utility>

namespace tfring {
namespace {

using Kind = NcclCall::Kind;
using Space = NcclPlace::Space;

int64_t Aligned(int64_t bytes) { return (bytes + 15) / 16 * 16; }

NcclPlace Input(size_t tensor, int64_t offset = 0) { return {Space::kInput, tensor, offset}; }
NcclPlace Output(size_t tensor, int64_t offset = 0) { return {Space::kOutput, tensor, offset}; }
NcclPlace Scratch(int64_t offset) { return {Space::kScratch, 0, offset}; }

NcclPlace Behind(NcclPlace place, int64_t bytes) {
  place.offset += bytes;
  return place;
}

// Returns the size of the side that is the same on all members.
int64_t BytesOf(const Collective& collective, size_t t) {
  if (t < collective.block_bytes.size()) {
    const std::vector<int64_t>& blocks = collective.block_bytes[t];
    return std::accumulate(blocks.begin(), blocks.end(), int64_t{0});
  }
  return std::max(collective.buffers[t].input_bytes, collective.buffers[t].output_bytes);
}

bool IsEven(const Collective& collective, size_t t) {
  if (t >= collective.block_bytes.size()) return true;
  const std::vector<int64_t>& blocks = collective.block_bytes[t];
  return std::all_of(blocks.begin(), blocks.end(), [&](int64_t b) { return b == blocks[0]; });
}

bool IsSmall(int64_t bytes) { return bytes > 0 && bytes < kNcclDirectBytes; }

}  // namespace

ProgramBuilder::ProgramBuilder(const Collective& collective, const NcclAbilities& abilities,
                               NcclProgram* program)
    : collective_(collective),
      abilities_(abilities),
      program_(program),
      element_bytes_(Traits(collective.kind).reduces ? DataTypeSize(collective.dtype) : 1),
      size_(static_cast<int>(collective.members.size())) {
  int small = 0;
  for (size_t t = 0; t < collective.buffers.size(); ++t) {
    small += IsSmall(BytesOf(collective, t)) ? 1 : 0;
  }
  several_small_ = small > 1;
}

// One small tensor with equal blocks can stay in place.
bool ProgramBuilder::IsPacked(size_t t) const {
  return abilities_.packs && IsSmall(BytesOf(collective_, t)) &&
         (several_small_ || !IsEven(collective_, t));
}

NcclPlace ProgramBuilder::ReserveScratch(int64_t bytes) {
  const int64_t begin = program_->scratch_bytes;
  program_->scratch_bytes += Aligned(bytes);
  return Scratch(begin);
}

void ProgramBuilder::Copy(std::vector<NcclCopy>* list, NcclPlace from, NcclPlace to,
                          int64_t bytes) const {
  if (bytes > 0) list->push_back({from, to, bytes});
}

void ProgramBuilder::Call(Kind kind, NcclPlace from, NcclPlace to, int64_t bytes, int peer) {
  if (bytes > 0) program_->calls.push_back({kind, from, to, bytes / element_bytes_, peer});
}

// Returns the input of an unpacked tensor, multiplied by the factor of the first list.
NcclPlace ProgramBuilder::ScaledInput(size_t t, int64_t bytes) {
  if (program_->before_scale.identity() || bytes == 0) return Input(t);
  const bool fits = collective_.kind == CollectiveKind::kAllreduce;
  const NcclPlace place = fits ? Output(t) : ReserveScratch(bytes);
  Copy(&program_->before, Input(t), place, bytes);
  return place;
}

void ProgramBuilder::ScaleOutput(size_t t, int64_t bytes) {
  if (!program_->after_scale.identity()) Copy(&program_->after, Output(t), Output(t), bytes);
}

void ProgramBuilder::CopyAll() {
  if (program_->before_scale.identity()) {
    std::swap(program_->before_scale, program_->after_scale);
  }
  for (size_t t = 0; t < collective_.buffers.size(); ++t) {
    const TensorBuffer& buffer = collective_.buffers[t];
    const bool there = buffer.input == buffer.output && program_->before_scale.identity();
    if (!there) Copy(&program_->before, Input(t), Output(t), buffer.output_bytes);
    ScaleOutput(t, buffer.output_bytes);
  }
}

void ProgramBuilder::ReduceTensor(size_t t, Kind kind) {
  const int64_t bytes = BytesOf(collective_, t);
  const NcclPlace from = ScaledInput(t, bytes);
  const bool result = kind == Kind::kAllReduce || collective_.self == collective_.root;
  Call(kind, from, result ? Output(t) : from, bytes, collective_.root);
  if (result) ScaleOutput(t, bytes);
}

void ProgramBuilder::Allreduce() {
  const int64_t begin = program_->scratch_bytes;
  for (size_t t = 0; t < collective_.buffers.size(); ++t) {
    if (!IsPacked(t)) continue;
    const int64_t bytes = BytesOf(collective_, t);
    const NcclPlace place = ReserveScratch(bytes);
    Copy(&program_->before, Input(t), place, bytes);
    Copy(&program_->after, place, Output(t), bytes);
  }
  Call(Kind::kAllReduce, Scratch(begin), Scratch(begin), program_->scratch_bytes - begin);
  for (size_t t = 0; t < collective_.buffers.size(); ++t) {
    if (!IsPacked(t)) ReduceTensor(t, Kind::kAllReduce);
  }
}

void ProgramBuilder::Reduce() {
  const int64_t begin = program_->scratch_bytes;
  const bool result = collective_.self == collective_.root;
  for (size_t t = 0; t < collective_.buffers.size(); ++t) {
    if (!IsPacked(t)) continue;
    const int64_t bytes = BytesOf(collective_, t);
    const NcclPlace place = ReserveScratch(bytes);
    Copy(&program_->before, Input(t), place, bytes);
    if (result) Copy(&program_->after, place, Output(t), bytes);
  }
  Call(Kind::kReduce, Scratch(begin), Scratch(begin), program_->scratch_bytes - begin,
       collective_.root);
  for (size_t t = 0; t < collective_.buffers.size(); ++t) {
    if (!IsPacked(t)) ReduceTensor(t, Kind::kReduce);
  }
}

ProgramBuilder::Segments ProgramBuilder::PackBlocks() {
  Segments segments;
  Blocks filled(size_, 0);
  for (size_t t = 0; t < collective_.buffers.size(); ++t) {
    if (!IsPacked(t)) continue;
    segments.tensors.push_back(t);
    segments.offsets.push_back(filled);
    for (int m = 0; m < size_; ++m) filled[m] += Aligned(collective_.block_bytes[t][m]);
  }
  segments.bytes = *std::max_element(filled.begin(), filled.end());
  segments.begin = ReserveScratch(segments.bytes * size_).offset;
  return segments;
}

void ProgramBuilder::Reducescatter() {
  const Segments segments = PackBlocks();
  const int64_t own = segments.begin + collective_.self * segments.bytes;
  for (size_t i = 0; i < segments.tensors.size(); ++i) {
    const size_t t = segments.tensors[i];
    const Blocks& blocks = collective_.block_bytes[t];
    int64_t at = 0;
    for (int m = 0; m < size_; at += blocks[m++]) {
      const int64_t to = segments.begin + m * segments.bytes + segments.offsets[i][m];
      Copy(&program_->before, Input(t, at), Scratch(to), blocks[m]);
    }
    Copy(&program_->after, Scratch(own + segments.offsets[i][collective_.self]), Output(t),
         blocks[collective_.self]);
  }
  Call(Kind::kReduceScatter, Scratch(segments.begin), Scratch(own), segments.bytes);
  for (size_t t = 0; t < collective_.buffers.size(); ++t) {
    if (!IsPacked(t)) ReduceBlocks(t);
  }
}

// NCCL's reduce-scatter needs equal blocks; unequal ones become one reduce each.
void ProgramBuilder::ReduceBlocks(size_t t) {
  const Blocks& blocks = collective_.block_bytes[t];
  const NcclPlace from = ScaledInput(t, BytesOf(collective_, t));
  if (IsEven(collective_, t)) {
    Call(Kind::kReduceScatter, from, Output(t), blocks[0]);
  } else {
    int64_t at = 0;
    for (int m = 0; m < size_; at += blocks[m++]) {
      const NcclPlace block = Behind(from, at);
      Call(Kind::kReduce, block, m == collective_.self ? Output(t) : block, blocks[m], m);
    }
  }
  ScaleOutput(t, blocks[collective_.self]);
}

void ProgramBuilder::Broadcast() {
  const int64_t begin = program_->scratch_bytes;
  const bool root = collective_.self == collective_.root;
  for (size_t t = 0; t < collective_.buffers.size(); ++t) {
    if (!IsPacked(t)) continue;
    const TensorBuffer& buffer = collective_.buffers[t];
    const int64_t bytes = BytesOf(collective_, t);
    const NcclPlace place = ReserveScratch(bytes);
    if (root) Copy(&program_->before, Input(t), place, bytes);
    if (!root || buffer.input != buffer.output) Copy(&program_->after, place, Output(t), bytes);
  }
  Call(Kind::kBroadcast, Scratch(begin), Scratch(begin), program_->scratch_bytes - begin,
       collective_.root);
  for (size_t t = 0; t < collective_.buffers.size(); ++t) {
    if (IsPacked(t)) continue;
    Call(Kind::kBroadcast, root ? Input(t) : Output(t), Output(t), BytesOf(collective_, t),
         collective_.root);
  }
}

void ProgramBuilder::Allgather() {
  const Segments segments = PackBlocks();
  const int64_t own = segments.begin + collective_.self * segments.bytes;
  for (size_t i = 0; i < segments.tensors.size(); ++i) {
    const size_t t = segments.tensors[i];
    const Blocks& blocks = collective_.block_bytes[t];
    Copy(&program_->before, Input(t), Scratch(own + segments.offsets[i][collective_.self]),
         blocks[collective_.self]);
    int64_t at = 0;
    for (int m = 0; m < size_; at += blocks[m++]) {
      const int64_t from = segments.begin + m * segments.bytes + segments.offsets[i][m];
      Copy(&program_->after, Scratch(from), Output(t, at), blocks[m]);
    }
  }
  Call(Kind::kAllGather, Scratch(own), Scratch(segments.begin), segments.bytes);
  for (size_t t = 0; t < collective_.buffers.size(); ++t) {
    if (IsPacked(t)) continue;
    const Blocks& blocks = collective_.block_bytes[t];
    if (IsEven(collective_, t)) {
      Call(Kind::kAllGather, Input(t), Output(t), blocks[0]);
      continue;
    }
    int64_t at = 0;
    for (int m = 0; m < size_; at += blocks[m++]) {
      const NcclPlace to = Output(t, at);
      Call(Kind::kBroadcast, m == collective_.self ? Input(t) : to, to, blocks[m], m);
    }
  }
}

void ProgramBuilder::KeepOwnBlock(size_t t, int64_t from, int64_t to, int64_t bytes) {
  Copy(&program_->before, Input(t, from), Output(t, to), bytes);
}

void ProgramBuilder::Gather() {
  const bool root = collective_.self == collective_.root;
  for (size_t t = 0; t < collective_.buffers.size(); ++t) {
    const Blocks& blocks = collective_.block_bytes[t];
    if (!root) {
      Call(Kind::kSend, Input(t), {}, blocks[collective_.self], collective_.root);
      continue;
    }
    int64_t at = 0;
    for (int m = 0; m < size_; at += blocks[m++]) {
      if (m == collective_.self) {
        KeepOwnBlock(t, 0, at, blocks[m]);
      } else {
        Call(Kind::kRecv, {}, Output(t, at), blocks[m], m);
      }
    }
  }
}

void ProgramBuilder::Scatter() {
  const bool root = collective_.self == collective_.root;
  for (size_t t = 0; t < collective_.buffers.size(); ++t) {
    const Blocks& blocks = collective_.block_bytes[t];
    if (!root) {
      Call(Kind::kRecv, {}, Output(t), blocks[collective_.self], collective_.root);
      continue;
    }
    int64_t at = 0;
    for (int m = 0; m < size_; at += blocks[m++]) {
      if (m == collective_.self) {
        KeepOwnBlock(t, at, 0, blocks[m]);
      } else {
        Call(Kind::kSend, Input(t, at), {}, blocks[m], m);
      }
    }
  }
}

void ProgramBuilder::Alltoall() {
  for (size_t t = 0; t < collective_.buffers.size(); ++t) {
    const Blocks& sends = collective_.send_bytes[t];
    const Blocks& blocks = collective_.block_bytes[t];
    int64_t from = 0;
    int64_t to = 0;
    for (int m = 0; m < size_; from += sends[m], to += blocks[m], ++m) {
      if (m == collective_.self) {
        KeepOwnBlock(t, from, to, blocks[m]);
      } else {
        Call(Kind::kSend, Input(t, from), {}, sends[m], m);
        Call(Kind::kRecv, {}, Output(t, to), blocks[m], m);
      }
    }
  }
}

void ProgramBuilder::SendRecv() {
  const int other = 1 - collective_.self;
  for (size_t t = 0; t < collective_.buffers.size(); ++t) {
    const int64_t bytes = BytesOf(collective_, t);
    if (collective_.self == collective_.root) {
      Call(Kind::kSend, Input(t), {}, bytes, other);
    } else {
      Call(Kind::kRecv, {}, Output(t), bytes, other);
    }
  }
}

}  // namespace tfring
