#include "ops/runtime/protocol/negotiation/admission.h"

namespace tfring {

std::string NoSuchSet(ProcessSetId id) {
  return "there is no process set " + std::to_string(id) +
         ": add it on every rank before its use, and do not use it once it is removed. A function "
         "that was traced with the sets of an earlier init() has to be traced again";
}

Status SetWasRemoved(const Request& request) {
  return FailedPrecondition(Describe(request) + " in process set " +
                            std::to_string(request.process_set) +
                            ": the process set was removed before all its ranks had made the call; "
                            "remove a process set when all its collectives have ended");
}

Status AdmitRequest(const ProcessSets& sets, Rank self, const CallMemory* memory,
                    Request* request) {
  const std::string tensor = "tensor '" + request->name + "'";
  const std::vector<Rank>* members = sets.Find(request->process_set);
  if (members == nullptr) return InvalidArgument(tensor + ": " + NoSuchSet(request->process_set));
  if (!sets.Contains(request->process_set, self)) {
    return InvalidArgument(tensor + " was called on rank " + std::to_string(self) +
                           ", but process set " + std::to_string(request->process_set) +
                           " has only the ranks " + RanksString(*members) +
                           "; call it on those ranks only");
  }
  TFRING_RETURN_IF_ERROR(CheckRouting(*request, *members, self));
  if (!request->refusal.empty()) return OkStatus();
  const Status valid = CheckContent(*request, *members, self, memory);
  if (!valid.ok()) Refuse(valid, request);
  return OkStatus();
}

}  // namespace tfring
