#include "ops/runtime/protocol/message/text.h"

#include "ops/runtime/base/text.h"

namespace tfring {
namespace {

constexpr std::string_view kEllipsis = " ...";

}  // namespace

bool IsUtf8(std::string_view text) {
  while (!text.empty()) {
    const size_t size = Utf8Size(text);
    if (size == 0) return false;
    text.remove_prefix(size);
  }
  return true;
}

std::string Shortened(std::string_view text, size_t max_bytes) {
  std::string result;
  size_t end = 0;  // of what there is room for if the ellipsis has to follow
  while (!text.empty()) {
    const size_t size = Utf8Size(text);
    const std::string_view character = size == 0 ? "?" : text.substr(0, size);
    if (result.size() + character.size() > max_bytes) {
      result.resize(end);
      return result.append(kEllipsis);
    }
    result += character;
    if (result.size() + kEllipsis.size() <= max_bytes) end = result.size();
    text.remove_prefix(size == 0 ? 1 : size);
  }
  return result;
}

}  // namespace tfring
