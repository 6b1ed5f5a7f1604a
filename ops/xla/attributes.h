#ifndef TFRING_OPS_XLA_ATTRIBUTES_H_
#define TFRING_OPS_XLA_ATTRIBUTES_H_

namespace tfring::xla_names {

// Custom call targets.
inline constexpr char kCollective[] = "tfring_collective";
inline constexpr char kTopology[] = "tfring_topology";
// For GPUs only: a collective in two calls.
inline constexpr char kStart[] = "tfring_start";
inline constexpr char kDone[] = "tfring_done";

// The attributes of the custom calls. xla_kernels.cc writes them when XLA compiles an op. The
// handlers read them when the compiled program runs.
inline constexpr char kTensorName[] = "tensor_name";
inline constexpr char kKind[] = "kind";
inline constexpr char kDataType[] = "data_type";
inline constexpr char kReduceOp[] = "reduce_op";
inline constexpr char kPrescale[] = "prescale";
inline constexpr char kPostscale[] = "postscale";
inline constexpr char kProcessSet[] = "process_set";
inline constexpr char kRoot[] = "root";
inline constexpr char kLayoutHash[] = "layout_hash";
inline constexpr char kGroup[] = "group";
inline constexpr char kCallSite[] = "call_site";
inline constexpr char kSize[] = "size";    // ranks for which the result's shape was computed, or 0
inline constexpr char kField[] = "field";  // a TopologyField

}  // namespace tfring::xla_names

#endif  // TFRING_OPS_XLA_ATTRIBUTES_H_
