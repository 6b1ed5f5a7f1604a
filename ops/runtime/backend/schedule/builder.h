#ifndef TFRING_OPS_RUNTIME_BACKEND_SCHEDULE_BUILDER_H_
#define TFRING_OPS_RUNTIME_BACKEND_SCHEDULE_BUILDER_H_

#include <cstdint>
#include <initializer_list>
#include <utility>
#include <vector>

#include "ops/runtime/backend/schedule/schedule.h"

namespace tfring {

// Appends steps to a schedule. Every function that adds a step returns its number, for the `after`
// of later steps; see StepKind for what the steps do. One algorithm builds one schedule with it.
class ScheduleBuilder {
 public:
  explicit ScheduleBuilder(const char* algorithm) { schedule_.algorithm = algorithm; }

  using After = std::initializer_list<int>;
  int Send(int peer, Range src, After after = {});
  int Recv(int peer, Range dst, After after = {});
  int RecvReduce(int peer, Range src, Range dst, Summed summed, bool finish, After after = {});
  int Reduce(Range src, Range src2, Range dst, Summed summed, bool finish, After after = {});
  int Copy(Range src, Range dst, bool finish, After after = {});
  // A copy as several steps, which no other step can wait for.
  void CopyInPieces(Range src, Range dst, int64_t piece_bytes);
  // One step that ends when all of `steps` have; kNoStep for none.
  int Join(const std::vector<int>& steps);

  int AdasumDots(Range src, Range src2, int64_t dots, After after);
  int AdasumAdd(Range src, Range src2, Range dst, After after);
  int AdasumCombine(Range src, Range src2, Range dst, int64_t dots, bool finish, After after);

  // Space for `bytes` more bytes of scratch; returns their offset.
  int64_t AddScratch(int64_t bytes);
  // The same, zero at the start: before all other scratch.
  int64_t AddZeroedScratch(int64_t bytes);

  Schedule Take() { return std::move(schedule_); }

 private:
  int Add(StepKind kind, int peer, Range src, Range src2, Range dst, bool finish, After after);
  Schedule schedule_;
};

// Scratch memory for pieces that a rank receives and sends on: a few slots, each of which is used
// again once its piece has been sent, so that long data passes through little memory.
class ScratchWindow {
 public:
  ScratchWindow(ScheduleBuilder* builder, int64_t slot_bytes)
      : builder_(*builder), slot_bytes_(slot_bytes) {}

  // The slot of the next piece, and the step that has to end before anything is written there.
  Range Next(int64_t bytes);
  int FreedBy() const;
  // The piece is sent by this step.
  void SentBy(int step) { sent_.push_back(step); }

 private:
  ScheduleBuilder& builder_;
  const int64_t slot_bytes_;
  std::vector<int64_t> slots_;
  std::vector<int> sent_;  // by piece
};

// Cuts an array of elements into `parts` parts whose sizes differ by at most one element.
struct Slices {
  int64_t elements = 0;
  int64_t element_bytes = 1;
  int parts = 1;

  int64_t Begin(int part) const;  // in bytes
  int64_t Bytes(int part) const { return Begin(part + 1) - Begin(part); }
  std::vector<int64_t> All() const;  // Bytes of every part
};

// Cuts `bytes` into pieces of `piece` bytes, rounded down to whole elements (at least one).
struct Pieces {
  Pieces(int64_t bytes, int64_t element_bytes, int64_t piece_bytes);
  int64_t Begin(int64_t i) const { return i * piece; }
  int64_t Bytes(int64_t i) const { return total - Begin(i) < piece ? total - Begin(i) : piece; }

  int64_t total;
  int64_t piece;
  int64_t count;
};

}  // namespace tfring

#endif  // TFRING_OPS_RUNTIME_BACKEND_SCHEDULE_BUILDER_H_
