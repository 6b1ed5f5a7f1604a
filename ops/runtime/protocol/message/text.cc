#include "ops/runtime/protocol/message/text.h"

#include <cstdint>

namespace tfring {
namespace {

constexpr std::string_view kEllipsis = " ...";

// The bytes of the character at the beginning of `text`, which is not empty; 0 if there is none.
size_t CharacterSize(std::string_view text) {
  const auto byte = [&](size_t i) { return static_cast<uint8_t>(text[i]); };
  const uint8_t lead = byte(0);
  if (lead < 0x80) return 1;
  const size_t size = lead < 0xc2 ? 0 : lead < 0xe0 ? 2 : lead < 0xf0 ? 3 : lead < 0xf5 ? 4 : 0;
  if (size == 0 || text.size() < size) return 0;
  for (size_t i = 1; i < size; ++i) {
    if ((byte(i) & 0xc0) != 0x80) return 0;
  }
  const bool overlong = (lead == 0xe0 && byte(1) < 0xa0) || (lead == 0xf0 && byte(1) < 0x90);
  const bool surrogate = lead == 0xed && byte(1) >= 0xa0;
  const bool too_high = lead == 0xf4 && byte(1) >= 0x90;
  return overlong || surrogate || too_high ? 0 : size;
}

}  // namespace

bool IsUtf8(std::string_view text) {
  while (!text.empty()) {
    const size_t size = CharacterSize(text);
    if (size == 0) return false;
    text.remove_prefix(size);
  }
  return true;
}

std::string Shortened(std::string_view text, size_t max_bytes) {
  std::string result;
  size_t end = 0;  // of what there is room for if the ellipsis has to follow
  while (!text.empty()) {
    const size_t size = CharacterSize(text);
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
