#include "tests/cc/backend/symbolic.h"

#include <algorithm>
#include <deque>
#include <map>
#include <numeric>
#include <random>
#include <utility>

namespace tfring::testing {
namespace {

uint64_t Mix(uint64_t left, uint64_t right) {
  uint64_t h = left * 0x9e3779b97f4a7c15u + (right ^ (right >> 29)) * 0xbf58476d1ce4e5b9u;
  return h ^ (h >> 31);
}

using Symbols = std::vector<Symbol>;

class Player {
 public:
  Player(const std::vector<Schedule>& schedules, int64_t element_bytes, bool in_place,
         uint32_t seed, std::vector<SymbolicRank>* ranks)
      : schedules_(schedules),
        element_(element_bytes),
        in_place_(in_place),
        random_(seed),
        ranks_(*ranks) {
    for (size_t r = 0; r < schedules.size(); ++r) {
      if (in_place_) ranks_[r].output = ranks_[r].input;
      scratch_.emplace_back(static_cast<size_t>(schedules[r].scratch_bytes / element_));
      ended_.emplace_back(schedules[r].steps.size(), false);
      left_.emplace_back(schedules[r].steps.size());
      std::iota(left_.back().begin(), left_.back().end(), 0);
    }
  }

  std::string Play() {
    size_t left = 0;
    for (const Schedule& schedule : schedules_) left += schedule.steps.size();
    while (left > 0 && wrong_.empty()) {
      std::vector<std::pair<int, int>> able = Able();
      if (able.empty()) return "no step can start, " + std::to_string(left) + " are left";
      // Several of them before asking again, which is quicker and no less random.
      std::shuffle(able.begin(), able.end(), random_);
      able.resize(1 + random_() % able.size());
      for (auto [rank, step] : able) {
        if (!CanStart(rank, step)) continue;
        Perform(rank, step);
        ended_[rank][step] = true;
        --left;
      }
    }
    for (const auto& [ends, queue] : streams_) {
      if (!queue.empty()) Wrong("something sent was never received");
    }
    return wrong_;
  }

 private:
  void Wrong(const std::string& what) {
    if (wrong_.empty()) wrong_ = what;
  }

  // The steps (rank, number) that may start: of each stream the first that has not ended.
  std::vector<std::pair<int, int>> Able() {
    std::vector<std::pair<int, int>> able;
    for (size_t r = 0; r < schedules_.size(); ++r) {
      std::vector<bool> seen(2 * schedules_.size());  // by direction and peer
      std::vector<int>& left = left_[r];
      left.erase(std::remove_if(left.begin(), left.end(), [&](int s) { return ended_[r][s]; }),
                 left.end());
      for (int s : left) {
        const Step& step = schedules_[r].steps[s];
        if (IsRemote(step)) {
          if (step.peer < 0 || step.peer >= static_cast<int>(schedules_.size())) {
            Wrong("a peer is no rank");
            return {};
          }
          auto before = seen[2 * step.peer + (IsRecv(step) ? 1 : 0)];
          if (before) continue;
          before = true;
        }
        if (CanStart(static_cast<int>(r), s)) able.emplace_back(static_cast<int>(r), s);
      }
    }
    return able;
  }

  bool CanStart(int r, int s) {
    const Step& step = schedules_[r].steps[s];
    for (int earlier : step.after) {
      if (earlier == kNoStep) continue;
      if (earlier < 0 || earlier >= s) Wrong("a step waits for a later one");
      if (!ended_[r][earlier]) return false;
    }
    return !IsRecv(step) || !streams_[{step.peer, r}].empty();
  }

  Symbol* At(int r, const Range& range) {
    Symbols* symbols = &ranks_[r].output;
    if (range.space == Space::kInput && !in_place_) symbols = &ranks_[r].input;
    if (range.space == Space::kScratch) symbols = &scratch_[r];
    const int64_t end = range.offset + range.bytes;
    if (range.offset < 0 || range.bytes <= 0 || range.offset % element_ != 0 ||
        range.bytes % element_ != 0 || end > static_cast<int64_t>(symbols->size()) * element_) {
      Wrong("a range is empty, out of bounds or cuts an element");
      return nullptr;
    }
    return symbols->data() + range.offset / element_;
  }

  Symbol Add(const Step& step, const Symbol& a, const Symbol& b) {
    if (__builtin_popcountll(a.ranks) != step.summed.left ||
        __builtin_popcountll(b.ranks) != step.summed.right) {
      Wrong("a side of a sum holds the inputs of more or fewer ranks than the step says");
    }
    return Combine(a, b);
  }

  Symbol Combine(const Symbol& a, const Symbol& b) {
    if ((a.ranks & b.ranks) != 0) Wrong("an input was counted twice");
    if (a.ranks == 0 || b.ranks == 0) Wrong("nothing was combined with something");
    if (a.finished + b.finished > 0) Wrong("a finished element was combined further");
    return Combined(a, b);
  }

  void Perform(int r, int s) {
    const Step& step = schedules_[r].steps[s];
    if (step.kind == StepKind::kJoin) return;
    const bool has_src = step.kind != StepKind::kRecv;
    const Symbol* src = has_src ? At(r, step.src) : nullptr;
    const bool has_src2 = step.kind == StepKind::kReduce;
    const Symbol* src2 = has_src2 ? At(r, step.src2) : nullptr;
    Symbol* dst = step.kind == StepKind::kSend ? nullptr : At(r, step.dst);
    if (dst != nullptr && step.dst.space == Space::kInput) Wrong("a step writes to the input");
    if (!wrong_.empty()) return;
    if (step.kind == StepKind::kSend) {
      streams_[{r, step.peer}].emplace_back(src, src + step.src.bytes / element_);
      return;
    }
    const size_t count = static_cast<size_t>(step.dst.bytes / element_);
    Symbols received;
    if (IsRecv(step)) {
      received = std::move(streams_[{step.peer, r}].front());
      streams_[{step.peer, r}].pop_front();
      if (received.size() != count) return Wrong("a send and its receive differ in size");
    }
    for (size_t i = 0; i < count; ++i) {
      Symbol value;
      if (step.kind == StepKind::kRecv) value = received[i];
      if (step.kind == StepKind::kRecvReduce) value = Add(step, src[i], received[i]);
      if (step.kind == StepKind::kReduce) value = Add(step, src[i], src2[i]);
      if (step.kind == StepKind::kCopy) value = src[i];
      value.finished += step.finish ? 1 : 0;
      dst[i] = value;
    }
  }

  const std::vector<Schedule>& schedules_;
  const int64_t element_;
  const bool in_place_;
  std::mt19937 random_;
  std::vector<SymbolicRank>& ranks_;
  std::vector<Symbols> scratch_;
  std::vector<std::vector<bool>> ended_;
  std::vector<std::vector<int>> left_;  // by rank, ascending; those that have ended go in Able
  std::map<std::pair<int, int>, std::deque<Symbols>> streams_;
  std::string wrong_;
};

}  // namespace

std::string PlaySymbolically(const std::vector<Schedule>& schedules, int64_t element_bytes,
                             bool in_place, uint32_t seed, std::vector<SymbolicRank>* ranks) {
  return Player(schedules, element_bytes, in_place, seed, ranks).Play();
}

Symbol Leaf(int r, int64_t i) {
  return {uint64_t{1} << r, Mix(static_cast<uint64_t>(r) + 1, static_cast<uint64_t>(i) + 1), 0};
}

Symbol Combined(const Symbol& left, const Symbol& right) {
  return {left.ranks | right.ranks, Mix(left.tree, right.tree), 0};
}

std::vector<SymbolicRank> Inputs(int size, int64_t elements) {
  std::vector<SymbolicRank> ranks(size);
  for (int r = 0; r < size; ++r) {
    for (int64_t i = 0; i < elements; ++i) ranks[r].input.push_back(Leaf(r, i));
  }
  return ranks;
}

Symbol SumOf(Order order, int size, int owner, int64_t i) {
  std::vector<Symbol> level;
  for (int r = 0; r < size; ++r) level.push_back(Leaf(r, i));
  while (order == Order::kCanonical && level.size() > 1) {
    std::vector<Symbol> above;
    for (size_t k = 0; k + 1 < level.size(); k += 2) {
      above.push_back(Combined(level[k], level[k + 1]));
    }
    if (level.size() % 2 == 1) above.push_back(level.back());
    level = std::move(above);
  }
  if (order == Order::kCanonical) return level[0];
  Symbol sum = level[(owner + 1) % size];
  for (int hop = 2; hop <= size; ++hop) sum = Combined(level[(owner + hop) % size], sum);
  return sum;
}

bool IsFinished(const Symbol& actual, const Symbol& expected) {
  return actual.ranks == expected.ranks && actual.tree == expected.tree && actual.finished == 1;
}

int64_t Sum(const Blocks& blocks) {
  return std::accumulate(blocks.begin(), blocks.end(), int64_t{0});
}

std::vector<Blocks> BlockCases(int size, int64_t unit) {
  std::vector<Blocks> cases(5, Blocks(size, 0));
  for (int m = 0; m < size; ++m) {
    cases[0][m] = unit * (1 + m * 7 % 5 * 11);
    cases[1][m] = unit * 33;
    cases[2][m] = unit * (m * 7 % 3 * 40);
  }
  cases[4][size / 2] = unit * 300;
  return cases;
}

std::string PlayAllgather(const std::vector<Schedule>& schedules, const Blocks& blocks) {
  std::vector<SymbolicRank> ranks(blocks.size());
  std::vector<Symbol> expected;
  for (size_t r = 0; r < blocks.size(); ++r) {
    for (int64_t i = 0; i < blocks[r]; ++i) ranks[r].input.push_back(Leaf(static_cast<int>(r), i));
    expected.insert(expected.end(), ranks[r].input.begin(), ranks[r].input.end());
  }
  for (SymbolicRank& rank : ranks) rank.output.resize(expected.size());
  const std::string wrong = PlaySymbolically(schedules, 1, false, 3, &ranks);
  if (!wrong.empty()) return wrong;
  for (const SymbolicRank& rank : ranks) {
    for (size_t i = 0; i < expected.size(); ++i) {
      if (rank.output[i].tree != expected[i].tree) return "a wrong block arrived";
    }
  }
  return "";
}

int64_t BytesSent(const Schedule& schedule) {
  int64_t bytes = 0;
  for (const Step& step : schedule.steps) {
    if (step.kind == StepKind::kSend) bytes += step.src.bytes;
  }
  return bytes;
}

sim::LinkModel TextbookLinks() {
  sim::LinkModel links;
  links.latency = 1000;
  links.bytes_per_second = 1e9;
  links.reduce_bytes_per_second = 1e15;
  return links;
}

}  // namespace tfring::testing
