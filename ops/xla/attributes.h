#ifndef TFRING_OPS_XLA_ATTRIBUTES_H_
#define TFRING_OPS_XLA_ATTRIBUTES_H_

namespace tfring::xla_names {

// Custom call targets.
inline constexpr char kCollective[] = "tfring_collective";
inline constexpr char kTopology[] = "tfring_topology";

// What a compiled program says about a call besides its operands; all are attributes of the
// custom call.
inline constexpr char kTensorName[] = "tensor_name";
inline constexpr char kKind[] = "kind";
inline constexpr char kReduceOp[] = "reduce_op";
inline constexpr char kPrescale[] = "prescale";
inline constexpr char kPostscale[] = "postscale";
inline constexpr char kProcessSet[] = "process_set";
inline constexpr char kRoot[] = "root";
inline constexpr char kLayoutHash[] = "layout_hash";
inline constexpr char kGroup[] = "group";
inline constexpr char kSize[] = "size";    // that shapes were computed with; 0: none was
inline constexpr char kField[] = "field";  // of the topology

enum class Field { kRank, kSize, kLocalRank, kLocalSize, kCrossRank, kCrossSize, kIncluded };

}  // namespace tfring::xla_names

#endif  // TFRING_OPS_XLA_ATTRIBUTES_H_
