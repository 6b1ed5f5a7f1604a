#ifndef TFRING_OPS_RUNTIME_PROTOCOL_MESSAGE_NONCE_H_
#define TFRING_OPS_RUNTIME_PROTOCOL_MESSAGE_NONCE_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "ops/runtime/base/status.h"

namespace tfring {

inline constexpr size_t kNonceBytes = sizeof(uint64_t);

// Adds to an encoded frame the nonce of the generation that it belongs to; 0: adds nothing.
void AddNonce(uint64_t nonce, std::string* frame);

// Takes the nonce off. FailedPrecondition if there is none, or that of another generation.
Status TakeNonce(uint64_t nonce, std::string_view* frame);

}  // namespace tfring

#endif  // TFRING_OPS_RUNTIME_PROTOCOL_MESSAGE_NONCE_H_
