#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <limits>
#include <sstream>
#include <string>
#include <thread>
#include <utility>

#include "ops/runtime/base/config.h"
#include "ops/runtime/base/half.h"
#include "ops/runtime/base/signals.h"
#include "ops/runtime/base/status.h"
#include "ops/runtime/base/text.h"
#include "ops/runtime/base/types.h"
#include "tests/cc/test.h"

namespace tfring::base_test {
namespace {

// An independent definition of what a 16-bit pattern means, in double arithmetic.
double HalfValue(uint16_t half) {
  const int exponent = (half >> 10) & 31;
  const int mantissa = half & 1023;
  const double sign = half & 0x8000 ? -1.0 : 1.0;
  if (exponent == 31) return mantissa ? NAN : sign * INFINITY;
  if (exponent == 0) return sign * std::ldexp(mantissa, -24);
  return sign * std::ldexp(1024 + mantissa, exponent - 25);
}

// The nearest half by search over neighbours, ties to the even pattern.
uint16_t NearestHalf(float value, uint16_t guess) {
  uint16_t best = guess;
  double best_error = INFINITY;
  for (int delta = -2; delta <= 2; ++delta) {
    const int magnitude = (guess & 0x7fff) + delta;
    if (magnitude < 0 || magnitude >= 0x7c00) continue;
    const auto pattern = static_cast<uint16_t>((guess & 0x8000) | magnitude);
    const double error = std::fabs(HalfValue(pattern) - static_cast<double>(value));
    if (error < best_error || (error == best_error && (pattern & 1) == 0)) {
      best = pattern;
      best_error = error;
    }
  }
  return best;
}

TEST(HalfToFloatIsExactForEveryPattern) {
  for (uint32_t pattern = 0; pattern < 65536; ++pattern) {
    const auto half = static_cast<uint16_t>(pattern);
    const double expected = HalfValue(half);
    const float got = HalfToFloat(half);
    if (std::isnan(expected)) {
      EXPECT_TRUE(std::isnan(got));
    } else if (static_cast<double>(got) != expected || std::signbit(got) != (pattern >= 0x8000)) {
      EXPECT_EQ(static_cast<double>(got), expected);
    }
    // NaN patterns come back quiet, everything else unchanged.
    const uint16_t back = FloatToHalf(got);
    EXPECT_EQ(back, std::isnan(expected) ? static_cast<uint16_t>(half | 0x200) : half);
  }
}

TEST(FloatToHalfRoundsToNearestEven) {
  for (uint32_t i = 0; i < 4'000'000; ++i) {
    const float value = FloatFromBits(i * 1073u);  // strides over all exponents and both signs
    const uint16_t got = FloatToHalf(value);
    if (std::isnan(value)) {
      if ((got & 0x7fff) <= 0x7c00) EXPECT_EQ(got, 0x7e00);
    } else if (std::fabs(value) >= 65520.0f) {
      if ((got & 0x7fff) != 0x7c00) EXPECT_EQ(got, 0x7c00);
    } else if (got != NearestHalf(value, got)) {
      EXPECT_EQ(got, NearestHalf(value, got));
    }
    if (std::signbit(value) != (got >= 0x8000)) EXPECT_EQ(got >= 0x8000, std::signbit(value));
  }
}

TEST(FloatToHalfTies) {
  EXPECT_EQ(FloatToHalf(1.0f + std::ldexp(1.0f, -11)), 0x3c00);      // tie, down to even
  EXPECT_EQ(FloatToHalf(1.0f + 3 * std::ldexp(1.0f, -11)), 0x3c02);  // tie, up to even
  EXPECT_EQ(FloatToHalf(std::ldexp(1.0f, -25)), 0x0000);             // half of the smallest
  EXPECT_EQ(FloatToHalf(std::ldexp(1.5f, -25)), 0x0001);
  EXPECT_EQ(FloatToHalf(std::ldexp(3.0f, -25)), 0x0002);
  EXPECT_EQ(FloatToHalf(65504.0f), 0x7bff);
  EXPECT_EQ(FloatToHalf(65519.996f), 0x7bff);
  EXPECT_EQ(FloatToHalf(65520.0f), 0x7c00);
  EXPECT_EQ(FloatToHalf(-INFINITY), 0xfc00);
  EXPECT_EQ(FloatToHalf(std::numeric_limits<float>::denorm_min()), 0x0000);
  EXPECT_EQ(FloatToHalf(-0.0f), 0x8000);
}

TEST(BfloatRoundsToNearestEven) {
  EXPECT_EQ(FloatToBfloat(FloatFromBits(0x3f808000u)), 0x3f80);  // tie, down to even
  EXPECT_EQ(FloatToBfloat(FloatFromBits(0x3f818000u)), 0x3f82);  // tie, up to even
  EXPECT_EQ(FloatToBfloat(FloatFromBits(0x3f808001u)), 0x3f81);
  EXPECT_EQ(FloatToBfloat(FloatFromBits(0x7f7fffffu)), 0x7f80);  // the largest float: infinity
  EXPECT_EQ(FloatToBfloat(FloatFromBits(0x00008000u)), 0x0000);  // subnormal tie
  EXPECT_EQ(FloatToBfloat(FloatFromBits(0x00018000u)), 0x0002);
  EXPECT_EQ(FloatToBfloat(FloatFromBits(0x7f800001u)), 0x7fc0);  // NaN whose payload is cut off
  EXPECT_EQ(FloatToBfloat(FloatFromBits(0xff800000u)), 0xff80);
  for (uint32_t pattern = 0; pattern < 65536; ++pattern) {
    const auto bfloat = static_cast<uint16_t>(pattern);
    const float value = BfloatToFloat(bfloat);
    const uint16_t expected = std::isnan(value) ? static_cast<uint16_t>(bfloat | 0x40) : bfloat;
    if (FloatToBfloat(value) != expected) EXPECT_EQ(FloatToBfloat(value), expected);
  }
}

TEST(TypesHaveNamesAndSizes) {
  EXPECT_EQ(std::string(DataTypeName(DataType::kBfloat16)), "bfloat16");
  EXPECT_EQ(DataTypeSize(DataType::kComplex128), 16);
  EXPECT_EQ(DataTypeSize(static_cast<DataType>(200)), 0);
  EXPECT_EQ(std::string(ReduceOpName(ReduceOp::kProduct)), "Product");
  EXPECT_EQ(std::string(ReduceOpName(static_cast<ReduceOp>(77))), "unknown");
  EXPECT_EQ(std::string(CollectiveKindName(CollectiveKind::kBarrier)), "barrier");
  EXPECT_TRUE(IsReducible(DataType::kFloat16));
  EXPECT_TRUE(!IsReducible(DataType::kBool));
}

TEST(ShapesAndRanks) {
  EXPECT_EQ(NumElements({}), 1);
  EXPECT_EQ(NumElements({2, 3, 4}), 24);
  EXPECT_EQ(NumElements({int64_t{1} << 40, int64_t{1} << 40}), INT64_MAX);
  EXPECT_EQ(NumElements({int64_t{1} << 40, int64_t{1} << 40, 0}), 0);
  EXPECT_EQ(ShapeString({2, 3}), "[2, 3]");
  EXPECT_EQ(ShapeString({}), "[]");
  EXPECT_EQ(RanksString({0, 2, 3, 4, 5}), "0, 2-5");
  EXPECT_EQ(RanksString({1, 2, 7}), "1, 2, 7");
  EXPECT_EQ(RanksString({}), "");
}

TEST(TextsThatSeveralLayersWrite) {
  EXPECT_EQ(RankName(1, {"a", "b"}), "rank 1 (host b)");
  EXPECT_EQ(RankName(2, {"a", "b"}), "rank 2");
  EXPECT_EQ(SecondsText(60 * kSecond), "60 s");
  EXPECT_EQ(SecondsText(kSecond / 2 + 1), "0.5 s");
  EXPECT_EQ(FirstAndMore("x", 1), "'x'");
  EXPECT_EQ(FirstAndMore("x", 4), "'x' and 3 more");
  EXPECT_EQ(After(1, 2), TimePoint{3});
  EXPECT_EQ(After(1, kNever), kNever);
}

TEST(SettingsOfEachKindAreStored) {
  const Result<Config> config = MakeConfig({{"FUSION_THRESHOLD", int64_t{1048576}},
                                            {"STALL_CHECK_TIME_SECONDS", kSecond / 2},
                                            {"DISABLE_GROUP_FUSION", int64_t{1}},
                                            {"CPU_OPERATIONS", int64_t{3}},
                                            {"LOG_FORMAT", int64_t{1}},
                                            {"LOG_LEVEL", int64_t{3}},
                                            {"NCCL_LIBRARY", "/opt/libnccl.so.2"}});
  ASSERT_TRUE(config.ok());
  EXPECT_EQ(config->fusion_threshold_bytes, 1048576);
  EXPECT_EQ(config->stall_warning, kSecond / 2);
  EXPECT_TRUE(config->disable_group_fusion && config->log_json);
  EXPECT_TRUE(config->cpu_operations == CpuOperations::kMpi);
  EXPECT_EQ(config->log_level, 3);
  EXPECT_EQ(config->nccl_library, "/opt/libnccl.so.2");
  EXPECT_EQ(config->cache_capacity, Config().cache_capacity);
  EXPECT_EQ(config->fixed.size(), size_t{7});
  EXPECT_TRUE(MakeConfig({})->fixed.empty());
}

TEST(SettingsThatPythonCannotSendAreRefused) {
  const auto refused = [](const std::string& name, const SettingValue& value) {
    const Result<Config> config = MakeConfig({{name, value}});
    EXPECT_TRUE(config.status().code() == StatusCode::kInvalidArgument);
    EXPECT_CONTAINS(config.status().message(), "TFRING_" + name);
  };
  refused("FUSION_TRESHOLD", int64_t{1});
  refused("FUSION_THRESHOLD", "1");
  refused("NCCL_LIBRARY", int64_t{1});
  refused("CPU_OPERATIONS", int64_t{4});
  refused("CPU_OPERATIONS", int64_t{-1});
  refused("DETERMINISTIC", "1");
}

TEST(ThreadsBlockSignalsButNotThoseOfTheirOwnFaults) {
  sigset_t mask;
  {
    SignalsBlocked blocked;
    pthread_sigmask(SIG_SETMASK, nullptr, &mask);
  }
  for (int number : {SIGINT, SIGTERM, SIGCHLD, SIGPIPE, SIGPROF}) {
    EXPECT_EQ(sigismember(&mask, number), 1);
  }
  for (int number : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT}) {
    EXPECT_EQ(sigismember(&mask, number), 0);
  }
  pthread_sigmask(SIG_SETMASK, nullptr, &mask);
  EXPECT_EQ(sigismember(&mask, SIGINT), 0);
}

TEST(StatusCodesHaveTheNamesOfTensorFlow) {
  const std::pair<StatusCode, const char*> names[] = {
      {StatusCode::kOk, "Ok"},
      {StatusCode::kCancelled, "Cancelled"},
      {StatusCode::kInvalidArgument, "InvalidArgument"},
      {StatusCode::kDeadlineExceeded, "DeadlineExceeded"},
      {StatusCode::kFailedPrecondition, "FailedPrecondition"},
      {StatusCode::kUnimplemented, "Unimplemented"},
      {StatusCode::kInternal, "Internal"},
      {StatusCode::kUnavailable, "Unavailable"},
  };
  for (const auto& [code, name] : names) EXPECT_EQ(std::string(StatusCodeName(code)), name);
}

}  // namespace
}  // namespace tfring::base_test
