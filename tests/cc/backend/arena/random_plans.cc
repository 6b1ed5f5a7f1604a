#include "tests/cc/backend/arena/random_plans.h"

#include <algorithm>
#include <numeric>

#include "tests/cc/backend/values.h"

namespace tfring::testing {
namespace {

constexpr CollectiveKind kKinds[] = {CollectiveKind::kAllreduce,     CollectiveKind::kAllgather,
                                     CollectiveKind::kBroadcast,     CollectiveKind::kBarrier,
                                     CollectiveKind::kReducescatter, CollectiveKind::kReduce};

std::vector<Rank> RandomMembers(int size, Random* random) {
  std::vector<Rank> ranks;
  while (ranks.size() < 2) {
    ranks.clear();
    const bool all = Below(random, 3) > 0;
    for (Rank rank = 0; rank < size; ++rank) {
      if (all || Below(random, 2) == 0) ranks.push_back(rank);
    }
  }
  return ranks;
}

// Neighbours first, an odd one out moves up.
float CanonicalSum(float* level, size_t count) {
  while (count > 1) {
    for (size_t m = 0; m + 1 < count; m += 2) level[m / 2] = level[m] + level[m + 1];
    if (count % 2 == 1) level[count / 2] = level[count - 1];
    count = (count + 1) / 2;
  }
  return level[0];
}

bool IsWhole(CollectiveKind kind) {
  return kind == CollectiveKind::kAllreduce || kind == CollectiveKind::kReduce ||
         kind == CollectiveKind::kBroadcast;
}

// Divides `total` at random, now and then very unevenly.
std::vector<int64_t> Divide(int64_t total, size_t parts, Random* random) {
  if (Below(random, 3) == 0) {
    std::vector<int64_t> even(parts, total / static_cast<int64_t>(parts));
    even[0] += total % static_cast<int64_t>(parts);
    return even;
  }
  std::vector<int64_t> cuts = {0, total};
  while (cuts.size() < parts + 1) cuts.push_back(Below(random, total + 1));
  std::sort(cuts.begin(), cuts.end());
  std::vector<int64_t> sizes;
  for (size_t i = 0; i < parts; ++i) sizes.push_back(cuts[i + 1] - cuts[i]);
  return sizes;
}

}  // namespace

RandomPlan::RandomPlan(int size, uint64_t sequence, bool large, Random* random) {
  of_all_.sequence = sequence;
  Choose(size, random);
  if (of_all_.kind != CollectiveKind::kBarrier) ChooseSizes(large, random);
  FillInputs(random);
  FillExpected();
  MakeParts(random);
}

void RandomPlan::Choose(int size, Random* random) {
  Collective& c = of_all_;
  c.kind =
      Below(random, 4) == 0 ? CollectiveKind::kAllreduce : kKinds[Below(random, std::size(kKinds))];
  c.what = std::string(CollectiveKindName(c.kind)) + " of 'x'";
  c.members = RandomMembers(size, random);
  c.root = static_cast<int>(Below(random, static_cast<int64_t>(c.members.size())));
  c.dtype = Below(random, 2) == 0 ? DataType::kFloat32
                                  : kReducibleTypes[Below(random, std::size(kReducibleTypes))];
  element_ = DataTypeSize(c.dtype);
  reduces_ = Traits(c.kind).reduces;
  if (reduces_ && c.dtype != DataType::kFloat32) {
    const ReduceOp ops[] = {ReduceOp::kSum, ReduceOp::kMin, ReduceOp::kMax, ReduceOp::kProduct};
    c.op = ops[Below(random, 4)];
    if (c.op == ReduceOp::kSum && c.dtype != DataType::kInt8) c.prescale = 2;
  } else if (reduces_) {
    c.postscale = Below(random, 2) == 0 ? 1.0 : 0.5;
  }
  c.locked = Below(random, 4) == 0;
  for (size_t m = 0; m < c.members.size(); ++m) {
    voids_.push_back(c.locked && Below(random, 6) == 0);
  }
}

void RandomPlan::ChooseSizes(bool large, Random* random) {
  const size_t members = of_all_.members.size();
  elements_.resize(static_cast<size_t>(1 + Below(random, 3)));
  const int64_t most[] = {4, 64, 1000, 40000, 400000, 1200000};
  const int64_t limit =
      most[Below(random, large ? 2 : 30) == 0 ? 4 + Below(random, 2) : Below(random, 4)];
  for (auto& of_tensor : elements_) {
    const int64_t total = Below(random, limit + 1);
    const std::vector<int64_t> blocks = Divide(total, members, random);
    for (size_t giver = 0; giver < members; ++giver) {
      if (IsWhole(of_all_.kind)) {
        of_tensor.push_back(std::vector<int64_t>(members, total));
      } else if (of_all_.kind == CollectiveKind::kAllgather) {
        of_tensor.push_back(std::vector<int64_t>(members, blocks[giver]));
      } else {
        of_tensor.push_back(blocks);
      }
    }
  }
}

int64_t RandomPlan::Before(size_t tensor, int from, int to) const {
  const std::vector<int64_t>& sizes = elements_[tensor][from];
  return std::accumulate(sizes.begin(), sizes.begin() + to, int64_t{0});
}

int64_t RandomPlan::InputElements(size_t tensor, int member) const {
  if (!Includes(Traits(of_all_.kind).input, member == of_all_.root)) return 0;
  if (of_all_.kind != CollectiveKind::kReducescatter) return elements_[tensor][member][0];
  return Before(tensor, member, static_cast<int>(of_all_.members.size()));
}

double RandomPlan::ValueAt(size_t tensor, int member, int64_t i) const {
  return Value(of_all_.op, static_cast<Rank>(member), static_cast<int64_t>(tensor) * 1009 + i);
}

void RandomPlan::FillInputs(Random* random) {
  const bool exact = of_all_.dtype != DataType::kFloat32;
  for (int m = 0; m < static_cast<int>(of_all_.members.size()); ++m) {
    Tensors tensors;
    for (size_t t = 0; t < elements_.size(); ++t) {
      const int64_t count = InputElements(t, m);
      std::vector<char> input(static_cast<size_t>(count * element_));
      for (int64_t i = 0; i < count; ++i) {
        const double value =
            exact ? ValueAt(t, m, i) : static_cast<double>((*random)()) / 1e6 - 2000;
        Store(of_all_.dtype, input.data() + i * element_, value);
      }
      tensors.push_back(std::move(input));
    }
    inputs_.push_back(std::move(tensors));
  }
}

// What all members have in a tensor, combined.
std::vector<char> RandomPlan::Sum(size_t tensor) const {
  const int64_t count = InputElements(tensor, 0);
  std::vector<char> sums(static_cast<size_t>(count * element_));
  std::vector<Rank> positions(inputs_.size());
  std::iota(positions.begin(), positions.end(), 0);
  std::vector<float> level(inputs_.size());
  for (int64_t i = 0; i < count; ++i) {
    double value = 0;
    if (of_all_.dtype == DataType::kFloat32) {
      for (size_t m = 0; m < inputs_.size(); ++m) {
        level[m] = Get<float>(inputs_[m][tensor].data() + i * 4);
      }
      value = CanonicalSum(level.data(), level.size()) * static_cast<float>(of_all_.postscale);
    } else {
      const int64_t at = static_cast<int64_t>(tensor) * 1009 + i;
      value = Expected(of_all_.op, positions, at) * of_all_.prescale;
    }
    Store(of_all_.dtype, sums.data() + i * element_, value);
  }
  return sums;
}

// What a member gets of a tensor where nothing is combined.
std::vector<char> RandomPlan::Moved(size_t tensor, int member) const {
  std::vector<char> result;
  for (int from = 0; from < static_cast<int>(inputs_.size()); ++from) {
    if (Traits(of_all_.kind).input == Who::kRoot && from != of_all_.root) continue;
    const char* begin = inputs_[from][tensor].data();
    result.insert(result.end(), begin, begin + elements_[tensor][from][member] * element_);
  }
  return result;
}

void RandomPlan::FillExpected() {
  expected_.resize(inputs_.size());
  for (size_t t = 0; t < elements_.size(); ++t) {
    const std::vector<char> sum = reduces_ ? Sum(t) : std::vector<char>();
    for (int m = 0; m < static_cast<int>(inputs_.size()); ++m) {
      std::vector<char> result;
      if (!Includes(Traits(of_all_.kind).output, m == of_all_.root)) {
      } else if (of_all_.kind == CollectiveKind::kReducescatter) {
        const char* begin = sum.data() + Before(t, m, m) * element_;
        result.assign(begin, begin + elements_[t][m][m] * element_);
      } else {
        result = reduces_ ? sum : Moved(t, m);
      }
      expected_[m].push_back(std::move(result));
    }
  }
}

void RandomPlan::MakeParts(Random* random) {
  const size_t members = inputs_.size();
  const bool wants_in_place = Below(random, 2) == 0;
  given_ = inputs_;
  outputs_.resize(members);
  for (size_t m = 0; m < members; ++m) {
    Collective part = of_all_;
    part.self = static_cast<int>(m);
    part.is_void = voids_[m];
    // Near the moment at which a ShortTime begins again at 0.
    if (part.locked && !part.is_void) {
      part.entered = ((uint64_t{5} << 32) - 50'000 + Below(random, 100'000)) * kMicrosecond;
    }
    in_place_.push_back(wants_in_place && IsWhole(of_all_.kind) &&
                        inputs_[m].size() == expected_[m].size());
    for (size_t t = 0; t < elements_.size() && in_place_[m]; ++t) {
      in_place_[m] = inputs_[m][t].size() == expected_[m][t].size();
    }
    for (size_t t = 0; t < elements_.size(); ++t) {
      outputs_[m].push_back(std::vector<char>(expected_[m][t].size() + 1, '\x55'));
      std::vector<char>& in = given_[m][t];
      char* out = in_place_[m] ? in.data() : outputs_[m][t].data();
      if (part.is_void) continue;
      part.buffers.push_back({in.data(), out, static_cast<int64_t>(in.size()),
                              static_cast<int64_t>(expected_[m][t].size())});
      part.block_bytes.emplace_back();
      const bool gathers = part.kind == CollectiveKind::kAllgather;
      for (size_t other = 0; other < members; ++other) {
        const auto& sizes = elements_[t];
        part.block_bytes[t].push_back((gathers ? sizes[other][m] : sizes[m][other]) * element_);
      }
    }
    parts_.push_back(std::move(part));
  }
}

bool RandomPlan::recalled() const {
  return std::find(voids_.begin(), voids_.end(), true) != voids_.end();
}

std::string RandomPlan::Wrong(int member, bool untouched) const {
  for (size_t t = 0; t < elements_.size(); ++t) {
    const std::vector<char>& in = given_[member][t];
    const std::vector<char>& out = outputs_[member][t];
    const std::vector<char>& expected = expected_[member][t];
    const std::string where = of_all_.what + ", tensor " + std::to_string(t) + " of " +
                              std::to_string(expected.size()) + " bytes: ";
    if (out.back() != '\x55') return where + "wrote behind its output";
    if (in_place_[member]) {
      if (in != (untouched ? inputs_[member][t] : expected)) return where + "wrong in place";
      continue;
    }
    if (in != inputs_[member][t]) return where + "wrote to its input";
    const std::vector<char> nothing(expected.size(), '\x55');
    const std::vector<char>& right = untouched ? nothing : expected;
    const auto at = std::mismatch(right.begin(), right.end(), out.begin()).first;
    if (at != right.end()) return where + "wrong at byte " + std::to_string(at - right.begin());
  }
  return "";
}

}  // namespace tfring::testing
