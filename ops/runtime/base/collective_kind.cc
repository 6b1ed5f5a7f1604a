#include "ops/runtime/base/collective_kind.h"

#include <iterator>

namespace tfring {
namespace {

constexpr size_t many = SIZE_MAX;
constexpr Who nobody = Who::kNobody;
constexpr Who all = Who::kAll;
constexpr Who root = Who::kRoot;
constexpr Who others = Who::kOthers;
constexpr bool yes = true;
constexpr bool no = false;

// Rows in the order of CollectiveKind, columns in the order of KindTraits.
// clang-format off
constexpr KindTraits kKinds[] = {
    //                    max_                             uses_         has_             without_
    // name               tensors input   output  allocates backend reduces rows fuses cache. joined
    {"allreduce",          many,  all,    all,    nobody,  yes,    yes,    no,  yes,  yes,    yes},
    {"allgather",          many,  all,    all,    all,     yes,    no,     yes, no,   yes,    yes},
    {"broadcast",          many,  root,   all,    nobody,  yes,    no,     no,  yes,  yes,    yes},
    {"barrier",            0,     nobody, nobody, nobody,  yes,    no,     no,  no,   yes,    yes},
    {"reducescatter",      many,  all,    all,    all,     yes,    yes,    yes, yes,  yes,    no},
    {"alltoall",           1,     all,    all,    all,     yes,    no,     yes, no,   no,     no},
    {"reduce",             many,  all,    root,   nobody,  yes,    yes,    no,  yes,  yes,    yes},
    {"gather",             many,  all,    root,   all,     yes,    no,     yes, no,   yes,    yes},
    {"scatter",            1,     root,   all,    all,     yes,    no,     yes, no,   no,     no},
    {"send/recv",          1,     root,   others, others,  yes,    no,     no,  no,   no,     no},
    {"join",               0,     nobody, nobody, nobody,  no,     no,     no,  no,   no,     yes},
    {"add_process_set",    0,     nobody, nobody, nobody,  no,     no,     no,  no,   no,     no},
    {"remove_process_set", 0,     nobody, nobody, nobody,  no,     no,     no,  no,   no,     no},
};
// clang-format on
static_assert(std::size(kKinds) == kNumCollectiveKinds, "one row for each kind");

constexpr KindTraits kUnknownKind;

}  // namespace

const KindTraits& Traits(CollectiveKind kind) {
  const int index = static_cast<int>(kind);
  return index < kNumCollectiveKinds ? kKinds[index] : kUnknownKind;
}

}  // namespace tfring
