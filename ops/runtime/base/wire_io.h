#ifndef TFRING_OPS_RUNTIME_BASE_WIRE_IO_H_
#define TFRING_OPS_RUNTIME_BASE_WIRE_IO_H_

#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <utility>

namespace tfring {

// Appends primitive values to a message: variable-length integers (7 bits per byte, low bits
// first), zigzag for signed ones, little-endian words. Used by one thread, for one message.
class WireWriter {
 public:
  void Byte(uint8_t value) { bytes_.push_back(static_cast<char>(value)); }

  void Unsigned(uint64_t value) {
    while (value >= 0x80) {
      Byte(static_cast<uint8_t>(value | 0x80));
      value >>= 7;
    }
    Byte(static_cast<uint8_t>(value));
  }

  void Signed(int64_t value) {
    Unsigned((static_cast<uint64_t>(value) << 1) ^ static_cast<uint64_t>(value >> 63));
  }

  void Word(uint64_t value) {
    for (int i = 0; i < 8; ++i) Byte(static_cast<uint8_t>(value >> (8 * i)));
  }

  void Double(double value) {
    uint64_t bits;
    std::memcpy(&bits, &value, sizeof(bits));
    Word(bits);
  }

  void String(const std::string& value) {
    Unsigned(value.size());
    bytes_ += value;
  }

  std::string Take() { return std::move(bytes_); }

 private:
  std::string bytes_;
};

// Reads what WireWriter wrote out of hostile bytes. After the first failure ok() is false and every
// later value is 0 or empty, so that callers may check once per element. Used by one thread; the
// bytes must outlive it.
class WireReader {
 public:
  // Of all elements and texts of a message together, as they lie in memory: an element of a few
  // bytes may have some hundred there. The largest messages that are sent, of 16 MiB, need half of
  // it.
  static constexpr size_t kMaxMemory = 128u << 20;

  explicit WireReader(std::string_view bytes) : left_(bytes) {}

  bool ok() const { return ok_; }
  size_t remaining() const { return left_.size(); }
  void Fail() {
    ok_ = false;
    left_ = {};
  }

  uint8_t Byte() {
    if (left_.empty()) {
      Fail();
      return 0;
    }
    const auto value = static_cast<uint8_t>(left_.front());
    left_.remove_prefix(1);
    return value;
  }

  // Refuses overlong and overflowing forms: every value has one encoding.
  uint64_t Unsigned() {
    uint64_t value = 0;
    for (int shift = 0; shift < 64; shift += 7) {
      const uint8_t byte = Byte();
      if (!ok_ || (shift == 63 && byte > 1) || (shift > 0 && byte == 0)) break;
      value |= static_cast<uint64_t>(byte & 0x7f) << shift;
      if (byte < 0x80) return value;
    }
    Fail();
    return 0;
  }

  uint32_t Unsigned32() {
    const uint64_t value = Unsigned();
    if (value > UINT32_MAX) Fail();
    return ok_ ? static_cast<uint32_t>(value) : 0;
  }

  int64_t Signed() {
    const uint64_t value = Unsigned();
    return static_cast<int64_t>((value >> 1) ^ (0 - (value & 1)));
  }

  int32_t Signed32() {
    const int64_t value = Signed();
    if (value < INT32_MIN || value > INT32_MAX) {
      Fail();
      return 0;
    }
    return static_cast<int32_t>(value);
  }

  uint64_t Word() {
    if (left_.size() < 8) {
      Fail();
      return 0;
    }
    uint64_t value = 0;
    for (int i = 0; i < 8; ++i) value |= static_cast<uint64_t>(Byte()) << (8 * i);
    return value;
  }

  double Double() {
    const uint64_t bits = Word();
    double value;
    std::memcpy(&value, &bits, sizeof(value));
    return value;
  }

  // The number of elements of type T that follow, which take at least `min_bytes` each: fails for
  // more than the rest of the input can hold, or than one message may take of memory.
  template <typename T>
  size_t Count(size_t min_bytes) {
    const uint64_t count = Unsigned();
    if (count > left_.size() / min_bytes || count > memory_ / sizeof(T)) Fail();
    if (!ok_) return 0;
    memory_ -= static_cast<size_t>(count) * sizeof(T);
    return static_cast<size_t>(count);
  }

  // A byte that is below `limit`.
  uint8_t Enum(int limit) {
    const uint8_t value = Byte();
    if (value >= limit) {
      Fail();
      return 0;
    }
    return value;
  }

  std::string String() {
    const size_t size = Count<char>(1);
    std::string value(left_.substr(0, size));
    left_.remove_prefix(size);
    return value;
  }

 private:
  std::string_view left_;
  size_t memory_ = kMaxMemory;  // that elements may still take
  bool ok_ = true;
};

}  // namespace tfring

#endif  // TFRING_OPS_RUNTIME_BASE_WIRE_IO_H_
