#ifndef TFRING_OPS_RUNTIME_BACKEND_STALL_TEXT_H_
#define TFRING_OPS_RUNTIME_BACKEND_STALL_TEXT_H_

#include <string>
#include <vector>

#include "ops/runtime/backend/schedule/runner.h"
#include "ops/runtime/interfaces/collective_backend.h"

namespace tfring {

// "plan 17, allreduce of 'x', has made no progress for 60 s: rank 3 (host b) waits for 400 bytes
// from rank 2 (host a); 3 probes have had no answer. ...". If the path to some ranks has trouble,
// it names only those: the other ranks that this one waits for are waiting themselves.
std::string StallText(const Collective& collective, Rank self,
                      const std::vector<std::string>& hosts,
                      const std::vector<ScheduleRunner::Wait>& waits, Duration quiet);

}  // namespace tfring

#endif  // TFRING_OPS_RUNTIME_BACKEND_STALL_TEXT_H_
