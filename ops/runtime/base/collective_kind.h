#ifndef TFRING_OPS_RUNTIME_BASE_COLLECTIVE_KIND_H_
#define TFRING_OPS_RUNTIME_BASE_COLLECTIVE_KIND_H_

#include <cstddef>
#include <cstdint>

#include "ops/runtime/base/export.h"

namespace tfring {

// Sent as one byte. May be renumbered: all ranks run the same build.
enum class CollectiveKind : uint8_t {
  kAllreduce,
  kAllgather,
  kBroadcast,
  kBarrier,
  kReducescatter,
  kAlltoall,
  kReduce,
  kGather,
  kScatter,
  kSendRecv,       // of two ranks of the process set: one sends, the other receives
  kJoin,           // the caller takes no part in collectives until all ranks have joined
  kAddProcessSet,  // a call of all ranks, like the next
  kRemoveProcessSet,
};
inline constexpr int kNumCollectiveKinds = 13;

// Which of the ranks that take part. The root of a send/recv is its sender.
enum class Who : uint8_t { kNobody, kAll, kRoot, kOthers };

constexpr bool Includes(Who who, bool root) {
  return who == Who::kAll || who == (root ? Who::kRoot : Who::kOthers);
}

// What the runtime has to know about a kind: a row of the table in collective_kind.cc. A new kind
// needs a value above and a row there; what it does to shapes and data is in the switches over all
// kinds (negotiated_values.cc, output_layout.cc, buffer_map.cc, select.cc), where the compiler
// warns of a kind that is missing.
struct KindTraits {
  const char* name = "unknown";  // "allreduce"
  size_t max_tensors = 0;        // in one call; 0: none is needed either
  Who input = Who::kNobody;      // whose input is read
  Who output = Who::kNobody;     // who gets a result
  // Whose outputs are allocated when the plan arrives. Other outputs come with the call.
  Who allocates = Who::kNobody;
  // The backend runs the plans. Those of other kinds only change what the ranks know of each other.
  bool uses_backend = false;
  bool reduces = false;   // has a reduce op and factors
  bool has_rows = false;  // splits tensors, or concatenates them, along the first dimension
  bool fuses = false;     // several requests may share a plan
  // Requests may be sent as cache ids: the request of each member follows from that of one member
  // and the negotiated values.
  bool cacheable = false;
  bool without_joined = false;  // the others can run it when some members have joined

  // One rank is named by the request: the root, or the sender of a send/recv.
  constexpr bool has_root() const { return input == Who::kRoot || output == Who::kRoot; }
  constexpr bool allocates_output() const { return allocates != Who::kNobody; }
  // Members may have different numbers of rows.
  constexpr bool own_rows() const { return has_rows && !reduces; }
};

// For a value that is no kind: the defaults.
TFRING_EXPORT const KindTraits& Traits(CollectiveKind kind);

constexpr bool ChangesProcessSets(CollectiveKind kind) {
  return kind == CollectiveKind::kAddProcessSet || kind == CollectiveKind::kRemoveProcessSet;
}

inline const char* CollectiveKindName(CollectiveKind kind) { return Traits(kind).name; }

}  // namespace tfring

#endif  // TFRING_OPS_RUNTIME_BASE_COLLECTIVE_KIND_H_
