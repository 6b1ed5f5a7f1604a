#include "ops/runtime/backend/algorithms/hierarchical_allreduce.h"

#include <algorithm>
#include <set>
#include <utility>
#include <vector>

#include "ops/runtime/backend/algorithms/canonical_sum.h"
#include "ops/runtime/base/check.h"

namespace tfring {
namespace {

// A stage of a piece is listed so many pieces after the stage before it. Streams keep to the order
// of the list: so long a piece may take between hosts before others have to wait for it.
constexpr int64_t kStageLag = 8;
// Several pieces are on their way to be added up at the same time, so that a sum is made from the
// cache while others travel.
constexpr size_t kWindow = 3;
// Pieces are smaller than those of a ring: several of them are in scratch at a time, and of each
// part of the data in two phases one travels at a time.
constexpr int64_t kPiecesPerPiece = 2;
constexpr int64_t kPiecesPerPieceOfPhases = 4;

// A part of the data with one worker on each host.
struct Segment {
  int64_t begin = 0;  // in bytes
  int64_t bytes = 0;
  std::vector<int> workers;  // positions, by host
};

std::vector<Segment> CutSegments(const ReduceShape& shape, const HostLayout& layout,
                                 int max_workers) {
  std::vector<Slices> by_host;
  std::set<int64_t> cuts;
  for (int host = 0; host < layout.hosts(); ++host) {
    const int here = static_cast<int>(layout.PositionsOn(host).size());
    by_host.push_back({shape.elements, shape.element_bytes, std::min(here, max_workers)});
    for (int part = 0; part <= by_host.back().parts; ++part)
      cuts.insert(by_host.back().Begin(part));
  }
  std::vector<Segment> segments;
  for (auto cut = cuts.begin(); std::next(cut) != cuts.end(); ++cut) {
    Segment segment{*cut, *std::next(cut) - *cut, {}};
    for (int host = 0; host < layout.hosts(); ++host) {
      int part = 0;
      while (by_host[host].Begin(part + 1) <= segment.begin) ++part;
      segment.workers.push_back(layout.PositionsOn(host)[part]);
    }
    segments.push_back(std::move(segment));
  }
  return segments;
}

// Scratch memory for what is received in order to be added up, used again when that has been done.
class SumWindow {
 public:
  SumWindow(ScheduleBuilder* builder, int64_t piece_bytes)
      : builder_(*builder), piece_bytes_(piece_bytes) {}

  // Adds up what the positions `from`, of which `self` is one, contribute to a piece: what this
  // rank does is `own`.
  Contribution Add(const std::vector<int>& from, int self, const Contribution& own, Range dst,
                   bool finish, int before_output) {
    // One pass over memory less.
    if (from.size() == 2 && from[0] == self) {
      const int sum =
          builder_.RecvReduce(from[1], own.range, dst, finish, {own.ready, before_output});
      return {dst, sum};
    }
    const size_t place = sums_.size() % kWindow;
    const auto others = static_cast<int64_t>(from.size()) - 1;
    if (sums_.size() < kWindow) slots_.push_back(builder_.AddScratch(others * piece_bytes_));
    const int freed = sums_.size() < kWindow ? kNoStep : sums_[sums_.size() - kWindow];
    std::vector<Contribution> contributions;
    int64_t slot = slots_[place];
    for (int peer : from) {
      if (peer == self) {
        contributions.push_back(own);
        continue;
      }
      const Range range{Space::kScratch, slot, dst.bytes};
      contributions.push_back({range, builder_.Recv(peer, range, {freed})});
      slot += piece_bytes_;
    }
    sums_.push_back(
        AppendCanonicalSum(&builder_, std::move(contributions), dst, before_output, finish));
    return {dst, sums_.back()};
  }

 private:
  ScheduleBuilder& builder_;
  const int64_t piece_bytes_;
  std::vector<int64_t> slots_;
  std::vector<int> sums_;  // the steps that make them
};

// Lists the stages of all pieces, in the same order for all members, and of them the steps of one.
class Weaver {
 public:
  Weaver(const ReduceShape& shape, const HostLayout& layout, const HierarchicalPlan& plan)
      : self_(shape.self),
        host_(layout.HostOf(shape.self)),
        shape_(shape),
        locals_(layout.PositionsOn(host_)),
        exchange_(plan.between == BetweenHosts::kExchange),
        builder_(exchange_ ? "hierarchical_exchange" : "hierarchical_allreduce"),
        within_(&builder_, PieceBytes()),
        between_(&builder_, PieceBytes()) {
    const int parts = exchange_ ? 1 : layout.hosts();
    for (Segment& segment : CutSegments(shape, layout, plan.workers)) {
      const Slices slices{segment.bytes / shape.element_bytes, shape.element_bytes, parts};
      for (int part = 0; part < parts; ++part) {
        const int64_t begin = segment.begin + slices.Begin(part);
        lines_.push_back({segment.workers,
                          part,
                          begin,
                          Pieces(slices.Bytes(part), shape.element_bytes, PieceBytes()),
                          {}});
      }
    }
  }

  Schedule Weave() {
    int64_t most = 0;
    for (Line& line : lines_) {
      most = std::max(most, line.pieces.count);
      line.made.resize(static_cast<size_t>(line.pieces.count));
    }
    const int64_t last_stage = exchange_ ? 2 : 3;
    for (int64_t turn = 0; turn < most + last_stage * kStageLag; ++turn) {
      for (int stage = 0; stage <= last_stage; ++stage) {
        const int64_t piece = turn - stage * kStageLag;
        for (Line& line : lines_) {
          if (piece >= 0 && piece < line.pieces.count) Do(stage, &line, piece);
        }
      }
    }
    return builder_.Take();
  }

 private:
  // Consecutive pieces of one segment whose sums are made on one host (or, exchanged, on all).
  struct Line {
    std::vector<int> workers;  // by host
    int target = 0;            // the host
    int64_t begin = 0;
    Pieces pieces;
    // By piece: what this rank, as a worker, has made of it so far.
    std::vector<Contribution> made;
  };

  int64_t PieceBytes() const {
    const int64_t smaller = exchange_ ? kPiecesPerPiece : kPiecesPerPieceOfPhases;
    return Pieces(0, shape_.element_bytes, shape_.piece_bytes / smaller).piece;
  }

  Range At(Space space, const Line& line, int64_t piece) const {
    return {space, line.begin + line.pieces.Begin(piece), line.pieces.Bytes(piece)};
  }

  void Do(int stage, Line* line, int64_t piece) {
    const bool works = line->workers[host_] == self_;
    if (stage == 0) Gather(line, piece, works);
    if (stage == 1 && works) exchange_ ? Exchange(line, piece) : Combine(line, piece);
    if (stage == 2 && works && !exchange_) Return(line, piece);
    if (stage == (exchange_ ? 2 : 3)) Spread(*line, piece, works);
  }

  // Within the host: the inputs go to the worker, which adds them up. The sum may be where the
  // output is: this part of the input has no other reader.
  void Gather(Line* line, int64_t piece, bool works) {
    const Range input = At(Space::kInput, *line, piece);
    if (!works) {
      builder_.Send(line->workers[host_], input);
    } else if (locals_.size() == 1) {
      line->made[piece] = {input, kNoStep};
    } else {
      line->made[piece] = within_.Add(locals_, self_, {input, kNoStep},
                                      At(Space::kOutput, *line, piece), false, kNoStep);
    }
  }

  // Between hosts: the sums go to all other workers, and all add them up.
  void Exchange(Line* line, int64_t piece) {
    Contribution& made = line->made[piece];
    if (shape_.rounds_parts) {
      const Range output = At(Space::kOutput, *line, piece);
      made = {output, builder_.Round(made.range, output, {made.ready})};
    }
    std::vector<int> sends;
    for (int worker : line->workers) {
      if (worker != self_) sends.push_back(builder_.Send(worker, made.range, {made.ready}));
    }
    // The result is written where the sum may be that is sent.
    made = between_.Add(line->workers, self_, made, At(Space::kOutput, *line, piece), true,
                        builder_.Join(sends));
  }

  // Between hosts: the sums go to the worker of one host, which adds them up.
  void Combine(Line* line, int64_t piece) {
    Contribution& made = line->made[piece];
    if (line->target == host_) {
      made =
          between_.Add(line->workers, self_, made, At(Space::kOutput, *line, piece), true, kNoStep);
    } else {
      builder_.Send(line->workers[line->target], made.range, {made.ready});
    }
  }

  // Between hosts: the result goes to the other workers.
  void Return(Line* line, int64_t piece) {
    const Range output = At(Space::kOutput, *line, piece);
    Contribution& made = line->made[piece];
    if (line->target != host_) {
      made = {output, builder_.Recv(line->workers[line->target], output)};
      return;
    }
    for (int worker : line->workers) {
      if (worker != self_) builder_.Send(worker, output, {made.ready});
    }
  }

  // Within the host: the result goes from the worker to all others.
  void Spread(const Line& line, int64_t piece, bool works) {
    const Range output = At(Space::kOutput, line, piece);
    if (!works) {
      builder_.Recv(line.workers[host_], output);
      return;
    }
    for (int local : locals_) {
      if (local != self_) builder_.Send(local, output, {line.made[piece].ready});
    }
  }

  const int self_;
  const int host_;
  const ReduceShape& shape_;
  const std::vector<int>& locals_;
  const bool exchange_;
  ScheduleBuilder builder_;
  SumWindow within_;
  SumWindow between_;
  std::vector<Line> lines_;
};

}  // namespace

Schedule HierarchicalAllreduce(const ReduceShape& shape, const HostLayout& layout,
                               const HierarchicalPlan& plan) {
  TFRING_CHECK(layout.hosts() >= 2 && plan.workers >= 1)
      << layout.hosts() << " hosts with " << plan.workers << " workers make no hierarchy";
  return Weaver(shape, layout, plan).Weave();
}

}  // namespace tfring
