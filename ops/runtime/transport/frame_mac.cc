#include "ops/runtime/transport/frame_mac.h"

#include <algorithm>
#include <cstring>

namespace tfring {
namespace {

constexpr std::array<uint64_t, 8> kInitial = {
    0x6a09e667f3bcc908, 0xbb67ae8584caa73b, 0x3c6ef372fe94f82b, 0xa54ff53a5f1d36f1,
    0x510e527fade682d1, 0x9b05688c2b3e6c1f, 0x1f83d9abfb41bd6b, 0x5be0cd19137e2179};

// Rounds 10 and 11 use the first two rows again.
constexpr unsigned char kOrder[10][16] = {{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15},
                                          {14, 10, 4, 8, 9, 15, 13, 6, 1, 12, 0, 2, 11, 7, 5, 3},
                                          {11, 8, 12, 0, 5, 2, 15, 13, 10, 14, 3, 6, 7, 1, 9, 4},
                                          {7, 9, 3, 1, 13, 12, 11, 14, 2, 6, 5, 10, 4, 0, 15, 8},
                                          {9, 0, 5, 7, 2, 4, 10, 15, 14, 1, 11, 12, 6, 8, 3, 13},
                                          {2, 12, 6, 10, 0, 11, 8, 3, 4, 13, 7, 5, 15, 14, 1, 9},
                                          {12, 5, 1, 15, 14, 13, 4, 10, 0, 7, 6, 3, 9, 2, 8, 11},
                                          {13, 11, 7, 14, 12, 1, 3, 9, 5, 0, 15, 4, 8, 6, 2, 10},
                                          {6, 15, 14, 9, 11, 3, 0, 8, 12, 2, 13, 7, 1, 4, 10, 5},
                                          {10, 2, 8, 4, 7, 6, 1, 5, 15, 11, 9, 14, 3, 12, 13, 0}};

uint64_t RotateRight(uint64_t x, int bits) { return (x >> bits) | (x << (64 - bits)); }

uint64_t ReadWord(const unsigned char* bytes) {
  uint64_t word = 0;
#pragma GCC unroll 8
  for (int i = 7; i >= 0; --i) word = (word << 8) | bytes[i];
  return word;
}

void WriteWord(uint64_t word, char* bytes) {
  for (int i = 0; i < 8; ++i) bytes[i] = static_cast<char>((word >> (8 * i)) & 0xff);
}

inline __attribute__((always_inline)) void Mix(uint64_t* v, int a, int b, int c, int d, uint64_t x,
                                               uint64_t y) {
  v[a] += v[b] + x;
  v[d] = RotateRight(v[d] ^ v[a], 32);
  v[c] += v[d];
  v[b] = RotateRight(v[b] ^ v[c], 24);
  v[a] += v[b] + y;
  v[d] = RotateRight(v[d] ^ v[a], 16);
  v[c] += v[d];
  v[b] = RotateRight(v[b] ^ v[c], 63);
}

}  // namespace

Blake2b::Blake2b(std::string_view key, size_t output_bytes)
    : state_(kInitial), output_bytes_(output_bytes) {
  state_[0] ^= 0x01010000 ^ (static_cast<uint64_t>(key.size()) << 8) ^ output_bytes;
  if (key.empty()) return;
  std::memcpy(block_.data(), key.data(), key.size());
  filled_ = block_.size();
}

void Blake2b::Compress(bool last) {
  hashed_ += filled_;
  uint64_t words[16];
  for (int i = 0; i < 16; ++i) words[i] = ReadWord(block_.data() + 8 * i);
  uint64_t v[16];
  std::copy(state_.begin(), state_.end(), v);
  std::copy(kInitial.begin(), kInitial.end(), v + 8);
  v[12] ^= hashed_;
  if (last) v[14] = ~v[14];
  // With constant indices this is twice as fast.
#pragma GCC unroll 12
  for (int round = 0; round < 12; ++round) {
    const unsigned char* s = kOrder[round % 10];
    Mix(v, 0, 4, 8, 12, words[s[0]], words[s[1]]);
    Mix(v, 1, 5, 9, 13, words[s[2]], words[s[3]]);
    Mix(v, 2, 6, 10, 14, words[s[4]], words[s[5]]);
    Mix(v, 3, 7, 11, 15, words[s[6]], words[s[7]]);
    Mix(v, 0, 5, 10, 15, words[s[8]], words[s[9]]);
    Mix(v, 1, 6, 11, 12, words[s[10]], words[s[11]]);
    Mix(v, 2, 7, 8, 13, words[s[12]], words[s[13]]);
    Mix(v, 3, 4, 9, 14, words[s[14]], words[s[15]]);
  }
  for (size_t i = 0; i < state_.size(); ++i) state_[i] ^= v[i] ^ v[i + 8];
  filled_ = 0;
}

void Blake2b::Update(std::string_view bytes) {
  while (!bytes.empty()) {
    // A full block waits until more comes, because the last block is hashed in another way.
    HashFullBlock();
    const size_t count = std::min(bytes.size(), block_.size() - filled_);
    std::memcpy(block_.data() + filled_, bytes.data(), count);
    filled_ += count;
    bytes.remove_prefix(count);
  }
}

void Blake2b::HashFullBlock() {
  if (filled_ == block_.size()) Compress(false);
}

std::string Blake2b::Finish() {
  std::fill(block_.begin() + static_cast<std::ptrdiff_t>(filled_), block_.end(), 0);
  Compress(true);
  std::string output(8 * state_.size(), '\0');
  for (size_t i = 0; i < state_.size(); ++i) WriteWord(state_[i], output.data() + 8 * i);
  output.resize(output_bytes_);
  return output;
}

FrameMac::FrameMac(std::string_view key) : enabled_(!key.empty()), keyed_(key, kMacBytes) {
  keyed_.HashFullBlock();
}

std::string FrameMac::Next(std::string_view frame) {
  if (!enabled_) return "";
  std::array<char, 8> number;
  WriteWord(number_++, number.data());
  Blake2b mac = keyed_;
  mac.Update({number.data(), number.size()});
  mac.Update(frame);
  return mac.Finish();
}

bool FrameMac::Check(std::string* frame) {
  if (!enabled_) return true;
  if (frame->size() < kMacBytes) return false;
  const std::string right = Next(std::string_view(*frame).substr(kMacBytes));
  // In constant time, so that a guess cannot be made byte by byte.
  unsigned char differs = 0;
  for (size_t i = 0; i < kMacBytes; ++i) {
    differs = static_cast<unsigned char>(differs | (right[i] ^ (*frame)[i]));
  }
  frame->erase(0, kMacBytes);
  return differs == 0;
}

}  // namespace tfring
