#ifndef TFRING_TESTS_CC_GPU_STAGING_STAGING_OF_H_
#define TFRING_TESTS_CC_GPU_STAGING_STAGING_OF_H_

#include <memory>
#include <utility>

#include "ops/gpu/staging/staging.h"
#include "ops/runtime/backend/routing_backend.h"

namespace tfring::testing {

// What a RoutingBackend is given to make its staging.
inline RoutingBackend::MakeStaging StagingOf(const StagingOptions& options = {}) {
  return [options](DeviceStaging::CpuQueue cpu, CompletionSink sink) {
    return Result<std::unique_ptr<DeviceStaging>>(
        std::make_unique<Staging>(std::move(cpu), std::move(sink), options));
  };
}

}  // namespace tfring::testing

#endif  // TFRING_TESTS_CC_GPU_STAGING_STAGING_OF_H_
