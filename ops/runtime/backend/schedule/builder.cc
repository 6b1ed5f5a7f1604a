#include "ops/runtime/backend/schedule/builder.h"

#include <algorithm>

namespace tfring {
namespace {

constexpr size_t kWindowSlots = 4;

}  // namespace

int ScheduleBuilder::Add(StepKind kind, int peer, Range src, Range src2, Range dst, bool finish,
                         After after) {
  Step step;
  step.kind = kind;
  step.finish = finish;
  step.peer = peer;
  step.src = src;
  step.src2 = src2;
  step.dst = dst;
  int i = 0;
  for (int earlier : after) {
    if (earlier != kNoStep) step.after[i++] = earlier;
  }
  schedule_.steps.push_back(step);
  return static_cast<int>(schedule_.steps.size()) - 1;
}

int ScheduleBuilder::Send(int peer, Range src, After after) {
  return Add(StepKind::kSend, peer, src, {}, {}, false, after);
}

int ScheduleBuilder::Recv(int peer, Range dst, After after) {
  return Add(StepKind::kRecv, peer, {}, {}, dst, false, after);
}

int ScheduleBuilder::RecvReduce(int peer, Range src, Range dst, Summed summed, bool finish,
                                After after) {
  const int step = Add(StepKind::kRecvReduce, peer, src, {}, dst, finish, after);
  schedule_.steps.back().summed = summed;
  return step;
}

int ScheduleBuilder::Reduce(Range src, Range src2, Range dst, Summed summed, bool finish,
                            After after) {
  const int step = Add(StepKind::kReduce, 0, src, src2, dst, finish, after);
  schedule_.steps.back().summed = summed;
  return step;
}

int ScheduleBuilder::Copy(Range src, Range dst, bool finish, After after) {
  return Add(StepKind::kCopy, 0, src, {}, dst, finish, after);
}

void ScheduleBuilder::CopyInPieces(Range src, Range dst, int64_t piece_bytes) {
  const Pieces pieces(src.bytes, 1, piece_bytes);
  for (int64_t i = 0; i < pieces.count; ++i) {
    Copy({src.space, src.offset + pieces.Begin(i), pieces.Bytes(i)},
         {dst.space, dst.offset + pieces.Begin(i), pieces.Bytes(i)}, false);
  }
}

int ScheduleBuilder::Join(const std::vector<int>& steps) {
  if (steps.empty()) return kNoStep;
  int joined = steps[0];
  for (size_t i = 1; i < steps.size(); i += kMaxAfter - 1) {
    joined = Add(StepKind::kJoin, 0, {}, {}, {}, false,
                 {joined, steps[i], i + 1 < steps.size() ? steps[i + 1] : kNoStep});
  }
  return joined;
}

int ScheduleBuilder::AdasumDots(Range src, Range src2, int64_t dots, After after) {
  const Range dst{Space::kScratch, dots, kAdasumDotsBytes};
  return Add(StepKind::kAdasumDots, 0, src, src2, dst, false, after);
}

int ScheduleBuilder::AdasumAdd(Range src, Range src2, Range dst, After after) {
  return Add(StepKind::kAdasumAdd, 0, src, src2, dst, false, after);
}

int ScheduleBuilder::AdasumCombine(Range src, Range src2, Range dst, int64_t dots, bool finish,
                                   After after) {
  const int step = Add(StepKind::kAdasumCombine, 0, src, src2, dst, finish, after);
  schedule_.steps.back().dots = dots;
  return step;
}

int64_t ScheduleBuilder::AddZeroedScratch(int64_t bytes) {
  schedule_.zeroed_bytes += bytes;
  return AddScratch(bytes);
}

int64_t ScheduleBuilder::AddScratch(int64_t bytes) {
  int64_t offset = schedule_.scratch_bytes;
  schedule_.scratch_bytes += bytes;
  return offset;
}

Range ScratchWindow::Next(int64_t bytes) {
  const size_t piece = sent_.size();
  if (piece < kWindowSlots) slots_.push_back(builder_.AddScratch(slot_bytes_));
  return {Space::kScratch, slots_[piece % kWindowSlots], bytes};
}

int ScratchWindow::FreedBy() const {
  return sent_.size() < kWindowSlots ? kNoStep : sent_[sent_.size() - kWindowSlots];
}

int64_t Slices::Begin(int part) const {
  int64_t base = elements / parts;
  int64_t larger = std::min<int64_t>(part, elements % parts);
  return (part * base + larger) * element_bytes;
}

std::vector<int64_t> Slices::All() const {
  std::vector<int64_t> bytes;
  for (int part = 0; part < parts; ++part) bytes.push_back(Bytes(part));
  return bytes;
}

Pieces::Pieces(int64_t bytes, int64_t element_bytes, int64_t piece_bytes)
    : total(bytes), piece(std::max(piece_bytes / element_bytes, int64_t{1}) * element_bytes) {
  count = (total + piece - 1) / piece;
}

}  // namespace tfring
