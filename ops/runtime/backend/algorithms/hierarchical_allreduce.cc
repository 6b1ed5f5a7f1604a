#include "ops/runtime/backend/algorithms/hierarchical_allreduce.h"

#include <algorithm>
#include <set>
#include <utility>
#include <vector>

#include "ops/runtime/backend/algorithms/canonical_sum.h"
#include "ops/runtime/base/check.h"

namespace tfring {
namespace {

// A stage of a piece is listed this many pieces after the piece's previous stage. Streams keep the
// order of the list, so a piece has this time between hosts before other pieces have to wait for
// it.
constexpr int64_t kStageLag = 8;
// Several pieces are received for summation at the same time, so a sum is made from the cache while
// other pieces travel.
constexpr size_t kSumsInFlight = 3;
// Pieces are smaller than those of a ring: several are in scratch at a time, and in two phases one
// piece of each part travels at a time.
constexpr int64_t kPiecesPerPiece = 2;
constexpr int64_t kPiecesPerPieceOfPhases = 4;

int StagesBetween(BetweenHosts between, int hosts) {
  if (between == BetweenHosts::kExchange) return 1;
  if (between == BetweenHosts::kTwoPhases) return 2;
  return PairingRounds(hosts);
}

// A part of the data, with one worker on each host.
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

// Scratch memory for received contributions, reused when they are added up.
class SumWindow {
 public:
  SumWindow(ScheduleBuilder* builder, int64_t piece_bytes)
      : builder_(*builder), piece_bytes_(piece_bytes) {}

  // Adds up the contributions of `from` to a piece. `self` is one of `from`; its contribution is
  // `own`.
  Contribution Add(const std::vector<Source>& from, int self, const Contribution& own, Range dst,
                   bool finish, int before_output) {
    // Saves one pass over memory.
    if (from.size() == 2 && from[0].peer == self) {
      const int sum =
          builder_.RecvReduce(from[1].peer, own.range, dst, {own.members, from[1].members}, finish,
                              {own.ready, before_output});
      return {dst, sum, own.members + from[1].members};
    }
    const size_t place = sums_.size() % kSumsInFlight;
    const auto others = static_cast<int64_t>(from.size()) - 1;
    if (sums_.size() < kSumsInFlight) slots_.push_back(builder_.AddScratch(others * piece_bytes_));
    const int freed = sums_.size() < kSumsInFlight ? kNoStep : sums_[sums_.size() - kSumsInFlight];
    std::vector<Contribution> contributions;
    int64_t slot = slots_[place];
    int members = 0;
    for (const Source& source : from) {
      members += source.members;
      if (source.peer == self) {
        contributions.push_back(own);
        continue;
      }
      const Range range{Space::kScratch, slot, dst.bytes};
      const int received = builder_.Recv(source.peer, range, {freed});
      contributions.push_back({range, received, source.members});
      slot += piece_bytes_;
    }
    sums_.push_back(
        AppendCanonicalSum(&builder_, std::move(contributions), dst, before_output, finish));
    return {dst, sums_.back(), members};
  }

 private:
  ScheduleBuilder& builder_;
  const int64_t piece_bytes_;
  std::vector<int64_t> slots_;
  std::vector<int> sums_;  // the steps that make them
};

// Lists the stages of all pieces in the same order for all members, and emits this rank's steps.
class Weaver {
 public:
  Weaver(const ReduceShape& shape, const HostLayout& layout, const HierarchicalPlan& plan)
      : self_(shape.self),
        host_(layout.HostOf(shape.self)),
        shape_(shape),
        layout_(layout),
        hosts_(layout.hosts()),
        plan_(plan),
        stages_(StagesBetween(plan.between, layout.hosts())),
        builder_(NameOf(plan.between)),
        within_(&builder_, PieceBytes()),
        between_(&builder_, PieceBytes()) {
    for (int position : layout.PositionsOn(host_)) locals_.push_back({position});
    const int parts = plan.between == BetweenHosts::kTwoPhases ? layout.hosts() : 1;
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
    const int last = stages_ + 1;
    for (int64_t turn = 0; turn < most + last * kStageLag; ++turn) {
      for (int stage = 0; stage <= last; ++stage) {
        const int64_t piece = turn - stage * kStageLag;
        for (Line& line : lines_) {
          if (piece >= 0 && piece < line.pieces.count) Do(stage, &line, piece);
        }
      }
    }
    return builder_.Take();
  }

 private:
  // Consecutive pieces of one segment. In two phases one host makes their sums.
  struct Line {
    std::vector<int> workers;  // by host
    int target = 0;            // the host that makes the sums
    int64_t begin = 0;
    Pieces pieces;
    // By piece: this rank's result so far, if it is a worker.
    std::vector<Contribution> made;
  };

  int64_t PieceBytes() const {
    const bool phases = plan_.between == BetweenHosts::kTwoPhases;
    const int64_t smaller = phases ? kPiecesPerPieceOfPhases : kPiecesPerPiece;
    return Pieces(0, shape_.element_bytes, shape_.piece_bytes / smaller).piece;
  }

  Range At(Space space, const Line& line, int64_t piece) const {
    return {space, line.begin + line.pieces.Begin(piece), line.pieces.Bytes(piece)};
  }

  void Do(int stage, Line* line, int64_t piece) {
    const bool works = line->workers[host_] == self_;
    if (stage == 0) return Gather(line, piece, works);
    if (stage > stages_) return Spread(*line, piece, works);
    if (works) Between(stage - 1, line, piece);
  }

  void Between(int stage, Line* line, int64_t piece) {
    switch (plan_.between) {
      case BetweenHosts::kExchange:
        return Exchange(line, piece, WorkersOf(*line), true);
      case BetweenHosts::kTwoPhases:
        return stage == 0 ? Combine(line, piece) : Return(line, piece);
      case BetweenHosts::kDoubling:
        return Exchange(line, piece, Pair(*line, stage), stage + 1 == stages_);
    }
  }

  // Returns the worker of a host, with the sum of the hosts that `rounds` rounds have paired.
  Source WorkerOf(const Line& line, int host, int rounds) const {
    Source source{line.workers[host], 0};
    const int first = host >> rounds << rounds;
    for (int paired = first; paired < first + (1 << rounds); ++paired) {
      source.members += static_cast<int>(layout_.PositionsOn(paired).size());
    }
    return source;
  }

  std::vector<Source> WorkersOf(const Line& line) const {
    std::vector<Source> workers;
    for (int host = 0; host < hosts_; ++host) workers.push_back(WorkerOf(line, host, 0));
    return workers;
  }

  // Returns this rank and its partner, in the order of their hosts.
  std::vector<Source> Pair(const Line& line, int round) const {
    const int other = host_ ^ (1 << round);
    return {WorkerOf(line, std::min(host_, other), round),
            WorkerOf(line, std::max(host_, other), round)};
  }

  // Within the host: the inputs go to the worker, which adds them up. The sum may overwrite the
  // output's memory: this part of the input has no other reader.
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

  // Between hosts: each worker sends its sum to all the other workers, and all of them add up.
  void Exchange(Line* line, int64_t piece, const std::vector<Source>& workers, bool finish) {
    Contribution& made = line->made[piece];
    std::vector<int> sends;
    for (const Source& worker : workers) {
      if (worker.peer == self_) continue;
      sends.push_back(builder_.Send(worker.peer, made.range, {made.ready}));
    }
    // The result may overwrite the sum that is sent.
    made = between_.Add(workers, self_, made, At(Space::kOutput, *line, piece), finish,
                        builder_.Join(sends));
  }

  // Between hosts: the sums go to the worker of one host, which adds them up.
  void Combine(Line* line, int64_t piece) {
    Contribution& made = line->made[piece];
    if (line->target == host_) {
      made = between_.Add(WorkersOf(*line), self_, made, At(Space::kOutput, *line, piece), true,
                          kNoStep);
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

  // Within the host: the worker sends the result to all other ranks.
  void Spread(const Line& line, int64_t piece, bool works) {
    const Range output = At(Space::kOutput, line, piece);
    if (!works) {
      builder_.Recv(line.workers[host_], output);
      return;
    }
    for (const Source& local : locals_) {
      if (local.peer == self_) continue;
      builder_.Send(local.peer, output, {line.made[piece].ready});
    }
  }

  const int self_;
  const int host_;
  const ReduceShape& shape_;
  const HostLayout& layout_;
  std::vector<Source> locals_;
  const int hosts_;
  const HierarchicalPlan plan_;
  const int stages_;  // between the stages within the hosts
  ScheduleBuilder builder_;
  SumWindow within_;
  SumWindow between_;
  std::vector<Line> lines_;
};

}  // namespace

const char* NameOf(BetweenHosts between) {
  switch (between) {
    case BetweenHosts::kExchange:
      return "hierarchical_exchange";
    case BetweenHosts::kDoubling:
      return "hierarchical_doubling";
    case BetweenHosts::kTwoPhases:
      break;
  }
  return "hierarchical_allreduce";
}

int PairingRounds(int hosts) {
  int rounds = 0;
  while ((2 << rounds) <= hosts) ++rounds;
  return rounds;
}

bool CanPair(int hosts) { return 1 << PairingRounds(hosts) == hosts; }

Schedule HierarchicalAllreduce(const ReduceShape& shape, const HostLayout& layout,
                               const HierarchicalPlan& plan) {
  TFRING_CHECK(layout.hosts() >= 2 && plan.workers >= 1)
      << layout.hosts() << " hosts with " << plan.workers << " workers make no hierarchy";
  TFRING_CHECK(plan.between != BetweenHosts::kDoubling || CanPair(layout.hosts()))
      << layout.hosts() << " hosts cannot be paired: their number is no power of two";
  return Weaver(shape, layout, plan).Weave();
}

}  // namespace tfring
