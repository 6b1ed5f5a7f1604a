#include "ops/gpu/nccl/nccl_program.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <string>

#include "ops/gpu/nccl/program_builder.h"
#include "ops/runtime/backend/reduction/reduction.h"
#include "ops/runtime/base/check.h"

namespace tfring {
namespace {

std::optional<NcclType> TypeOf(DataType dtype) {
  switch (dtype) {
    case DataType::kInt8:
      return NcclType::kInt8;
    case DataType::kUint8:
      return NcclType::kUint8;
    case DataType::kInt32:
      return NcclType::kInt32;
    case DataType::kInt64:
      return NcclType::kInt64;
    case DataType::kFloat16:
      return NcclType::kFloat16;
    case DataType::kBfloat16:
      return NcclType::kBfloat16;
    case DataType::kFloat32:
      return NcclType::kFloat32;
    case DataType::kFloat64:
      return NcclType::kFloat64;
    default:
      return std::nullopt;
  }
}

std::optional<NcclOp> OpOf(ReduceOp op) {
  switch (op) {
    case ReduceOp::kAverage:
    case ReduceOp::kSum:
      return NcclOp::kSum;
    case ReduceOp::kMin:
      return NcclOp::kMin;
    case ReduceOp::kMax:
      return NcclOp::kMax;
    case ReduceOp::kProduct:
      return NcclOp::kProd;
    case ReduceOp::kAdasum:
      break;
  }
  return std::nullopt;
}

Status Staged(const Collective& collective, const std::string& why) {
  return Unimplemented(collective.what + ": NCCL cannot run it: " + why);
}

// The copies before and after the NCCL calls scale the values. NCCL could do it, too (PreMulSum),
// but it has NVLink SHARP and its fastest kernels only for plain sums.
Status SetReduction(const Collective& collective, const NcclAbilities& abilities,
                    NcclProgram* program) {
  const std::string dtype = DataTypeName(collective.dtype);
  if (!NcclRuns(collective.kind, collective.dtype, collective.op)) {
    return Staged(collective, std::string("it has no ") + ReduceOpName(collective.op) + " of " +
                                  dtype + " as the CPU backend has");
  }
  program->type = *TypeOf(collective.dtype);
  program->op = *OpOf(collective.op);
  Reduction reduction = ResolveReduction(collective);
  // NCCL halves no intermediate sums, so the inputs are halved for all of them.
  const int halvings = reduction.Halvings(static_cast<int>(collective.members.size()));
  reduction.before.factor = std::ldexp(reduction.before.factor, -halvings);
  reduction.after.factor = std::ldexp(reduction.after.factor, halvings);
  if (reduction.before.identity() && reduction.after.identity()) return OkStatus();
  if (!abilities.packs) {
    return Staged(collective, "a rank has no kernels that multiply " + dtype);
  }
  program->before_scale = reduction.before;
  program->after_scale = reduction.after;
  return OkStatus();
}

void AddCalls(ProgramBuilder* builder, CollectiveKind kind) {
  switch (kind) {
    case CollectiveKind::kAllreduce:
      return builder->Allreduce();
    case CollectiveKind::kReduce:
      return builder->Reduce();
    case CollectiveKind::kReducescatter:
      return builder->Reducescatter();
    case CollectiveKind::kBroadcast:
      return builder->Broadcast();
    case CollectiveKind::kAllgather:
      return builder->Allgather();
    case CollectiveKind::kGather:
      return builder->Gather();
    case CollectiveKind::kScatter:
      return builder->Scatter();
    case CollectiveKind::kAlltoall:
      return builder->Alltoall();
    case CollectiveKind::kSendRecv:
      return builder->SendRecv();
    case CollectiveKind::kBarrier:  // no work is left when the plan comes
      return;
    case CollectiveKind::kJoin:
    case CollectiveKind::kAddProcessSet:
    case CollectiveKind::kRemoveProcessSet:
      break;
  }
  TFRING_CHECK(false) << CollectiveKindName(kind) << " moves no data";
}

}  // namespace

bool NcclRuns(CollectiveKind kind, DataType dtype, ReduceOp op) {
  const KindTraits& traits = Traits(kind);
  if (!traits.uses_backend) return false;
  if (!traits.reduces) return true;  // as bytes
  return TypeOf(dtype).has_value() && OpOf(op).has_value();
}

Result<NcclProgram> MakeNcclProgram(const Collective& collective, const NcclAbilities& abilities) {
  NcclProgram program;
  if (Traits(collective.kind).reduces) {
    TFRING_RETURN_IF_ERROR(SetReduction(collective, abilities, &program));
  }
  ProgramBuilder builder(collective, abilities, &program);
  if (collective.members.size() == 1) {
    builder.CopyAll();
  } else {
    AddCalls(&builder, collective.kind);
  }
  return program;
}

}  // namespace tfring
