#include "ops/runtime/transport/framing.h"

namespace tfring {
namespace {

size_t ReadLength(std::string_view bytes) {
  size_t length = 0;
  for (size_t i = 0; i < kFrameHeaderBytes; ++i) {
    length |= static_cast<size_t>(static_cast<unsigned char>(bytes[i])) << (8 * i);
  }
  return length;
}

}  // namespace

std::array<char, kFrameHeaderBytes> FrameHeader(size_t frame_bytes) {
  std::array<char, kFrameHeaderBytes> header;
  for (size_t i = 0; i < kFrameHeaderBytes; ++i) {
    header[i] = static_cast<char>((frame_bytes >> (8 * i)) & 0xff);
  }
  return header;
}

Status FrameReader::Cut(std::string_view* bytes,
                        const std::function<void(std::string)>& sink) const {
  while (bytes->size() >= kFrameHeaderBytes) {
    const size_t length = ReadLength(*bytes);
    if (length > max_) {
      return InvalidArgument("it sent a frame of " + std::to_string(length) +
                             " bytes; the limit is " + std::to_string(max_));
    }
    if (bytes->size() - kFrameHeaderBytes < length) break;
    sink(std::string(bytes->substr(kFrameHeaderBytes, length)));
    bytes->remove_prefix(kFrameHeaderBytes + length);
  }
  return OkStatus();
}

Status FrameReader::Feed(std::string_view bytes, const std::function<void(std::string)>& sink) {
  if (partial_.empty()) {
    TFRING_RETURN_IF_ERROR(Cut(&bytes, sink));
    partial_.assign(bytes);
    return OkStatus();
  }
  partial_.append(bytes);
  std::string_view rest = partial_;
  TFRING_RETURN_IF_ERROR(Cut(&rest, sink));
  partial_.erase(0, partial_.size() - rest.size());
  if (partial_.empty()) partial_.shrink_to_fit();
  return OkStatus();
}

}  // namespace tfring
