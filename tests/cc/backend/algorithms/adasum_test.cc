#include <cmath>
#include <cstring>
#include <string>

#include "tests/cc/backend/values.h"
#include "tests/cc/backend/world.h"
#include "tests/cc/test.h"

namespace tfring::testing::adasum_test {
namespace {

// Combines the gradients of one tensor along the tree.
template <typename Gradient, typename Pair>
Gradient Tree(std::vector<Gradient> level, Pair pair) {
  while (level.size() > 1) {
    std::vector<Gradient> above;
    for (size_t i = 0; i + 1 < level.size(); i += 2) above.push_back(pair(level[i], level[i + 1]));
    if (level.size() % 2 == 1) above.push_back(level.back());
    level = std::move(above);
  }
  return level[0];
}

const std::vector<int64_t> kTensorCases[] = {
    {}, {0}, {1}, {2, 0, 1}, {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1}, {1000}, {3, 700, 0, 40, 1, 90},
};

using Vector = std::vector<double>;

Vector Adasum(const Vector& a, const Vector& b) {
  double ab = 0, aa = 0, bb = 0;
  for (size_t i = 0; i < a.size(); ++i) ab += a[i] * b[i], aa += a[i] * a[i], bb += b[i] * b[i];
  const double of_a = aa == 0 ? 1 : 1 - ab / (2 * aa);
  const double of_b = bb == 0 ? 1 : 1 - ab / (2 * bb);
  Vector out;
  for (size_t i = 0; i < a.size(); ++i) out.push_back(of_a * a[i] + of_b * b[i]);
  return out;
}

struct Case {
  DataType dtype = DataType::kFloat32;
  std::vector<int64_t> tensors;
  int zero_rank = -1;  // whose gradients are zero; -2: everybody's
  double prescale = 1.0;
  double postscale = 1.0;
  bool in_place = false;
};

// Exact in all dtypes.
double Element(const Case& c, Rank rank, size_t tensor, int64_t i) {
  if (c.zero_rank == -2 || c.zero_rank == rank) return 0.0;
  return static_cast<double>((rank * 37 + static_cast<int>(tensor) * 11 + i * (rank + 3)) % 17 - 5);
}

using Memory = std::vector<std::vector<char>>;

Collective Prepare(const Case& c, const std::vector<Rank>& members, int self, Memory* in,
                   Memory* out) {
  Collective collective;
  collective.kind = CollectiveKind::kAllreduce;
  collective.dtype = c.dtype;
  collective.op = ReduceOp::kAdasum;
  collective.prescale = c.prescale;
  collective.postscale = c.postscale;
  collective.self = self;
  collective.members = members;
  const int64_t size = DataTypeSize(c.dtype);
  for (size_t t = 0; t < c.tensors.size(); ++t) {
    in->emplace_back(static_cast<size_t>(c.tensors[t] * size + 1));
    out->emplace_back(in->back().size(), 0x55);
    for (int64_t i = 0; i < c.tensors[t]; ++i) {
      Store(c.dtype, in->back().data() + i * size, Element(c, members[self], t, i));
    }
  }
  for (size_t t = 0; t < c.tensors.size(); ++t) {
    char* input = (*in)[t].data();
    const int64_t bytes = c.tensors[t] * size;
    collective.buffers.push_back({input, c.in_place ? input : (*out)[t].data(), bytes, bytes});
  }
  return collective;
}

std::string Wrong(const Case& c, const std::vector<Rank>& members, const Memory& results) {
  const int64_t size = DataTypeSize(c.dtype);
  const bool half = c.dtype == DataType::kFloat16;
  double precision = half ? 2e-3 : 1e-2;  // of an element, about, on each level
  if (c.dtype == DataType::kFloat32) precision = 1e-6;
  if (c.dtype == DataType::kFloat64) precision = 1e-14;
  for (size_t t = 0; t < c.tensors.size(); ++t) {
    std::vector<Vector> gradients;
    for (Rank rank : members) {
      gradients.emplace_back();
      for (int64_t i = 0; i < c.tensors[t]; ++i) {
        gradients.back().push_back(Element(c, rank, t, i) * c.prescale);
      }
    }
    const Vector expected = Tree(gradients, Adasum);
    double largest = 0;
    for (double value : expected) largest = std::max(largest, std::abs(value * c.postscale));
    for (int64_t i = 0; i < c.tensors[t]; ++i) {
      const double actual = Read(c.dtype, results[t].data() + i * size);
      if (!(std::abs(actual - expected[i] * c.postscale) <= 10 * precision * largest)) {
        return "element " + std::to_string(i) + " of tensor " + std::to_string(t) + " is " +
               std::to_string(actual) + " and not " + std::to_string(expected[i] * c.postscale);
      }
    }
  }
  return "";
}

void RunCases(World* world, const std::vector<Rank>& members, const std::vector<Case>& cases) {
  const size_t n = members.size();
  std::vector<Memory> in(cases.size() * n), out(cases.size() * n);
  for (size_t m = 0; m < n; ++m) {
    for (size_t c = 0; c < cases.size(); ++c) {
      Collective collective =
          Prepare(cases[c], members, static_cast<int>(m), &in[c * n + m], &out[c * n + m]);
      collective.sequence = c;
      world->backend(members[m]).Submit(std::move(collective));
    }
  }
  for (size_t c = 0; c < cases.size(); ++c) {
    const std::vector<Memory>& results = cases[c].in_place ? in : out;
    for (size_t m = 0; m < n; ++m) {
      const Completion completion = world->Wait(members[m], c);
      const std::string what = std::to_string(n) + " ranks, " + DataTypeName(cases[c].dtype) +
                               ", case " + std::to_string(c) + ": ";
      ASSERT_EQ(what + completion.status.ToString(), what + OkStatus().ToString());
      ASSERT_EQ(what + Wrong(cases[c], members, results[c * n + m]), what);
      // Bit for bit the same everywhere.
      ASSERT_TRUE(results[c * n + m] == results[c * n]);
    }
  }
}

std::vector<Case> AllCases(int size) {
  std::vector<Case> cases;
  for (DataType dtype :
       {DataType::kFloat16, DataType::kBfloat16, DataType::kFloat32, DataType::kFloat64}) {
    for (const std::vector<int64_t>& tensors : kTensorCases) {
      for (int zero_rank : {-1, -2, 0, size - 1}) {
        cases.push_back({dtype, tensors, zero_rank, 1.0, 1.0, cases.size() % 2 == 0});
      }
      cases.push_back({dtype, tensors, -1, 0.5, 4.0, cases.size() % 2 == 0});
      cases.push_back({dtype, tensors, -1, 2.0, 0.25, cases.size() % 2 == 0});
    }
  }
  return cases;
}

TEST(AdasumOnAnyNumberOfRanksIsThatOfTheFormula) {
  for (int size = 1; size <= 7; ++size) {
    StreamOptions options;
    options.seed = static_cast<uint32_t>(size);
    World world(size, SmallConfig(), options);
    RunCases(&world, FirstRanks(size), AllCases(size));
  }
  World world(6, SmallConfig());
  RunCases(&world, {0, 2, 3, 5}, AllCases(4));
}

}  // namespace
}  // namespace tfring::testing::adasum_test
