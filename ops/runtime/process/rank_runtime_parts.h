#ifndef TFRING_OPS_RUNTIME_PROCESS_RANK_RUNTIME_PARTS_H_
#define TFRING_OPS_RUNTIME_PROCESS_RANK_RUNTIME_PARTS_H_

#include <cstdint>
#include <functional>
#include <memory>

#include "ops/runtime/interfaces/collective_backend.h"
#include "ops/runtime/interfaces/control_transport.h"
#include "ops/runtime/process/rank_runtime.h"
#include "ops/runtime/protocol/engine/engine.h"
#include "ops/runtime/recorder/recorder.h"
#include "ops/runtime/thread_pool/thread_pool.h"

namespace tfring {

// What a RankRuntime is made of; the factory chooses, tests choose otherwise.
struct RankRuntimeParts {
  uint64_t generation = 0;
  EngineOptions engine;
  std::unique_ptr<ControlTransport> control;
  // The pool outlives the backend, which may have one task of it.
  std::function<std::unique_ptr<CollectiveBackend>(CompletionSink, ThreadPool*)> make_backend;
  std::unique_ptr<Recorder> recorder;  // null: nothing is recorded
  bool keep_record = false;            // also after an end without an error
  // What RankRuntime::WrapStream returns; empty where only CPU memory is used.
  std::function<Result<std::shared_ptr<DeviceStream>>(void* stream)> wrap_stream;
};

}  // namespace tfring

#endif  // TFRING_OPS_RUNTIME_PROCESS_RANK_RUNTIME_PARTS_H_
