#include "ops/runtime/protocol/message/nonce.h"

namespace tfring {

void AddNonce(uint64_t nonce, std::string* frame) {
  if (nonce == 0) return;
  for (size_t i = 0; i < kNonceBytes; ++i) frame->push_back(static_cast<char>(nonce >> (8 * i)));
}

Status TakeNonce(uint64_t nonce, std::string_view* frame) {
  if (nonce == 0) return OkStatus();
  uint64_t theirs = 0;
  const bool has_one = frame->size() > kNonceBytes;
  for (size_t i = 0; has_one && i < kNonceBytes; ++i) {
    const auto byte = static_cast<uint8_t>((*frame)[frame->size() - kNonceBytes + i]);
    theirs |= uint64_t{byte} << (8 * i);
  }
  if (!has_one || theirs != nonce) {
    return FailedPrecondition("it sent a frame of another generation of the job (nonce " +
                              std::to_string(theirs) + "; here it is " + std::to_string(nonce) +
                              "): all ranks have to call init() for the same generation");
  }
  frame->remove_suffix(kNonceBytes);
  return OkStatus();
}

}  // namespace tfring
