#ifndef TFRING_OPS_RUNTIME_TRANSPORT_FRAMING_H_
#define TFRING_OPS_RUNTIME_TRANSPORT_FRAMING_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "ops/runtime/base/status.h"

namespace tfring {

// A frame on a stream is its length in four bytes, lowest first, and then its bytes.
inline constexpr size_t kFrameHeaderBytes = 4;
inline constexpr size_t kMaxStreamFrameBytes = 64u << 20;

std::array<char, kFrameHeaderBytes> FrameHeader(size_t frame_bytes);

// Cuts a byte stream into frames. It keeps only bytes that have arrived and allocates nothing
// because of a length alone, so that a wrong length cannot exhaust the memory. Used by one thread;
// lives as long as its connection.
class FrameReader {
 public:
  explicit FrameReader(size_t max_frame_bytes = kMaxStreamFrameBytes) : max_(max_frame_bytes) {}

  // Takes the next bytes of the stream and hands every complete frame to `sink`. InvalidArgument
  // when a length is over the limit: the stream cannot be used any more.
  Status Feed(std::string_view bytes, const std::function<void(std::string)>& sink);

  // The size of the incomplete frame at the end of what was fed.
  size_t pending() const { return partial_.size(); }

 private:
  // Removes the complete frames at the front of `bytes`.
  Status Cut(std::string_view* bytes, const std::function<void(std::string)>& sink) const;

  size_t max_;
  std::string partial_;
};

}  // namespace tfring

#endif  // TFRING_OPS_RUNTIME_TRANSPORT_FRAMING_H_
