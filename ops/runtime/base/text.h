#ifndef TFRING_OPS_RUNTIME_BASE_TEXT_H_
#define TFRING_OPS_RUNTIME_BASE_TEXT_H_

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "ops/runtime/base/export.h"
#include "ops/runtime/base/types.h"

// Parts of messages that several layers write.
namespace tfring {

// "rank 2 (host h)"; "rank 2" if `hosts`, which are by rank, do not say.
std::string RankName(Rank rank, const std::vector<std::string>& hosts);

// "60 s", "0.5 s".
TFRING_EXPORT std::string SecondsText(Duration duration);

// The bytes of the UTF-8 character at the beginning of `text`, which is not empty; 0 if there is
// none: no overlong forms, no surrogates (RFC 3629).
size_t Utf8Size(std::string_view text);

// "'x'", or "'x' and 3 more": of `count` tensors, the first of which is named `first`.
std::string FirstAndMore(const std::string& first, size_t count);

}  // namespace tfring

#endif  // TFRING_OPS_RUNTIME_BASE_TEXT_H_
