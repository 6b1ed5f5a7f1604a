#ifndef TFRING_OPS_RUNTIME_BASE_TYPES_H_
#define TFRING_OPS_RUNTIME_BASE_TYPES_H_

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "ops/runtime/base/collective_kind.h"
#include "ops/runtime/base/export.h"
#include "ops/runtime/base/status.h"

namespace tfring {

using Rank = int32_t;
using ProcessSetId = int32_t;
using Shape = std::vector<int64_t>;
// Nanoseconds of CLOCK_MONOTONIC, in the simulator of virtual time; only differences and
// comparisons mean anything.
using TimePoint = int64_t;
using Duration = int64_t;

inline constexpr Rank kNoRank = -1;
inline constexpr ProcessSetId kGlobalProcessSet = 0;
inline constexpr TimePoint kNever = INT64_MAX;
inline constexpr Duration kMicrosecond = 1'000;
inline constexpr Duration kMillisecond = 1'000'000;
inline constexpr Duration kSecond = 1'000'000'000;

// kNever where the sum does not fit.
inline TimePoint After(TimePoint start, Duration wait) {
  return start > kNever - wait ? kNever : start + wait;
}

// When ranks asked for a tensor: the first, the last but one (0 if only one rank had to ask) and
// the last, after which it was complete. Without a lock, when rank 0 got the requests; in a lock,
// where nobody asks, when the ranks entered the batch.
struct AskTimes {
  TimePoint first = 0;
  TimePoint second_last = 0;
  TimePoint last = 0;
  Rank last_rank = kNoRank;

  // Of different ranks, in any order.
  void Add(Rank rank, TimePoint time) {
    if (last_rank == kNoRank || time < first) first = time;
    if (last_rank != kNoRank && time < last) {
      second_last = std::max(second_last, time);
      return;
    }
    second_last = last;
    last = time;
    last_rank = rank;
  }
};

// Sent as one byte. May be renumbered: all ranks run the same build.
enum class DataType : uint8_t {
  kBool = 0,
  kUint8,
  kInt8,
  kUint16,
  kInt16,
  kUint32,
  kInt32,
  kUint64,
  kInt64,
  kFloat16,
  kBfloat16,
  kFloat32,
  kFloat64,
  kComplex64,
  kComplex128,
};
inline constexpr int kNumDataTypes = 15;

// Horovod's numbers: scripts pass them as integers.
enum class ReduceOp : uint8_t {
  kAverage = 0,
  kSum = 1,
  kAdasum = 2,
  kMin = 3,
  kMax = 4,
  kProduct = 5
};
inline constexpr int kNumReduceOps = 6;

// Where a collective runs: on tensors in CPU memory, or on devices without a copy to the CPU. Of
// a request also kStaged: its tensors are in device memory and have to be copied to the CPU.
enum class DataPath : uint8_t { kCpu = 0, kDevice = 1, kStaged = 2 };
inline constexpr int kNumDataPaths = 3;

TFRING_EXPORT int64_t DataTypeSize(DataType dtype);
TFRING_EXPORT const char* DataTypeName(DataType dtype);  // "float32"
TFRING_EXPORT const char* ReduceOpName(ReduceOp op);     // "Sum"
TFRING_EXPORT bool IsReducible(DataType dtype);          // has Sum, Min, Max and Product here

TFRING_EXPORT int64_t NumElements(const Shape& shape);      // INT64_MAX when it does not fit
int64_t RowBytes(const Shape& shape, DataType dtype);       // the same; not for scalars
TFRING_EXPORT std::string ShapeString(const Shape& shape);  // "[2, 3]"
TFRING_EXPORT std::string RanksString(const std::vector<Rank>& ranks);  // "0, 2-5"
// "rank 0", "ranks 0, 2-5"
TFRING_EXPORT std::string RanksText(const std::vector<Rank>& ranks);

}  // namespace tfring

#endif  // TFRING_OPS_RUNTIME_BASE_TYPES_H_
