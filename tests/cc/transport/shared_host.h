#ifndef TFRING_TESTS_CC_TRANSPORT_SHARED_HOST_H_
#define TFRING_TESTS_CC_TRANSPORT_SHARED_HOST_H_

#include <memory>
#include <utility>
#include <vector>

#include "ops/runtime/interfaces/data_transport.h"

namespace tfring {

// Transports of the ranks 0 to size - 1 of one host, which share memory: threads of one test.
// `separate`: two ranks that use a socket between them. A null where something failed.
std::vector<std::unique_ptr<DataTransport>> SharedHost(int size,
                                                       std::pair<Rank, Rank> separate = {});

}  // namespace tfring

#endif  // TFRING_TESTS_CC_TRANSPORT_SHARED_HOST_H_
