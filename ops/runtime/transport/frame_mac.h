#ifndef TFRING_OPS_RUNTIME_TRANSPORT_FRAME_MAC_H_
#define TFRING_OPS_RUNTIME_TRANSPORT_FRAME_MAC_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace tfring {

inline constexpr size_t kMacKeyBytes = 32;
inline constexpr size_t kMacBytes = 16;

// BLAKE2b (RFC 7693) with a key and a short output: a MAC. Python's hashlib.blake2b is the same
// function. A value; used by one thread at a time.
class Blake2b {
 public:
  // `key` has at most 64 bytes.
  Blake2b(std::string_view key, size_t output_bytes);

  void Update(std::string_view bytes);
  // Hashes a full block that waits: only if more bytes will follow.
  void HashFullBlock();
  // Ends the hash: call it once.
  std::string Finish();

 private:
  void Compress(bool last);

  std::array<uint64_t, 8> state_;
  std::array<unsigned char, 128> block_{};
  size_t filled_ = 0;
  uint64_t hashed_ = 0;
  size_t output_bytes_;
};

// The MACs of one direction of one connection. Each covers the bytes of a frame and its place in
// the stream, so that no frame can be changed, left out, repeated or moved unnoticed. Used by one
// thread; lives as long as its connection. Without a key there are no MACs.
class FrameMac {
 public:
  // `key` has kMacKeyBytes, or is empty.
  explicit FrameMac(std::string_view key);

  // The bytes that a MAC adds to every frame.
  size_t bytes() const { return enabled_ ? kMacBytes : 0; }

  // The MAC of the next frame of this direction; empty without a key.
  std::string Next(std::string_view frame);

  // Removes the MAC from the front of the next frame. False if it is wrong.
  bool Check(std::string* frame);

 private:
  bool enabled_;
  Blake2b keyed_;  // with the key's block hashed already
  uint64_t number_ = 0;
};

}  // namespace tfring

#endif  // TFRING_OPS_RUNTIME_TRANSPORT_FRAME_MAC_H_
