#ifndef TFRING_OPS_RUNTIME_PROCESS_START_RUNTIME_H_
#define TFRING_OPS_RUNTIME_PROCESS_START_RUNTIME_H_

#include <memory>

#include "ops/runtime/base/status.h"
#include "ops/runtime/process/factory.h"
#include "ops/runtime/process/process_runtime.h"
#include "ops/runtime/process/rank_runtime.h"

namespace tfring {

// The runtime of a new generation, with what its settings ask for: log, record, transports,
// backend. Uses up `options`. InvalidArgument for settings or connections that make no sense;
// Unavailable names a peer that was lost meanwhile.
Result<std::shared_ptr<RankRuntime>> StartRuntime(InitOptions* options, Connections connections);

}  // namespace tfring

#endif  // TFRING_OPS_RUNTIME_PROCESS_START_RUNTIME_H_
