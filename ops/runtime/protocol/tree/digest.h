#ifndef TFRING_OPS_RUNTIME_PROTOCOL_TREE_DIGEST_H_
#define TFRING_OPS_RUNTIME_PROTOCOL_TREE_DIGEST_H_

#include <cstdint>
#include <string_view>

namespace tfring {

// Stands for the bytes of a frame: frames with equal digests are taken for equal. 128 bits, so that
// two frames of a job have the same by accident once in more than 10^30. It does not withstand
// somebody who looks for such frames: only ranks that have the job's key make any.
struct Digest {
  uint64_t low = 0;
  uint64_t high = 0;
};
inline bool operator==(const Digest& a, const Digest& b) {
  return a.low == b.low && a.high == b.high;
}

Digest DigestOf(std::string_view bytes);

}  // namespace tfring

#endif  // TFRING_OPS_RUNTIME_PROTOCOL_TREE_DIGEST_H_
