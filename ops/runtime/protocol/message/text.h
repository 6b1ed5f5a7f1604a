#ifndef TFRING_OPS_RUNTIME_PROTOCOL_MESSAGE_TEXT_H_
#define TFRING_OPS_RUNTIME_PROTOCOL_MESSAGE_TEXT_H_

#include <cstddef>
#include <string>
#include <string_view>

namespace tfring {

// The length of a text that one rank tells all others.
inline constexpr size_t kMaxReasonBytes = 1024;

// The end of errors after which collectives of all ranks are no longer possible.
inline constexpr char kWhatToDo[] = "unless the job is elastic, it must be started again";

// Whether Python can decode it: no bytes that are not UTF-8, no overlong forms, no surrogates.
bool IsUtf8(std::string_view text);

// The text as UTF-8 of at most `max_bytes`, which is at least 8. Bytes that are not UTF-8 become
// "?". A longer text is cut between two characters and ends with " ...".
std::string Shortened(std::string_view text, size_t max_bytes = kMaxReasonBytes);

}  // namespace tfring

#endif  // TFRING_OPS_RUNTIME_PROTOCOL_MESSAGE_TEXT_H_
