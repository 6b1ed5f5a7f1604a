// What a rank says about NaN and infinities in its part of a sum, through every layer.
#include "ops/runtime/process/value_reports.h"

#include <string>

#include "tests/cc/process/fixture.h"
#include "tests/cc/test.h"

namespace tfring::value_reports_test {
namespace {

std::unique_ptr<Recorder> MakeRecorder() {
  RecordIdentity identity;  // in memory only
  Result<std::unique_ptr<Recorder>> made = Recorder::Create(identity);
  return std::move(*made);
}

std::string LastEvent(Recorder* recorder) {
  const uint64_t number = recorder->header().events.load();
  return number == 0 ? "" : recorder->memory().event(number).text;
}

BadCall CallOf(const std::string& name, std::vector<BadValues> tensors) {
  BadCall call;
  call.name = name;
  call.call_site = "train.py:40";
  call.invocation = 118;
  call.tensors = std::move(tensors);
  return call;
}

TEST(ReportsNameVariablesCountsAndCall) {
  std::unique_ptr<Recorder> recorder = MakeRecorder();
  recorder->MarkStep(117, -1, -1);
  ValueReports reports(2, ValueAction::kWarn, recorder.get());
  NameTensors("grads.1", {{"dense_3/bias", "dense_3/kernel"}, false});
  const BadCall call = CallOf("grads.1", {{1, DataType::kFloat32, 1024, 3, 1}});
  EXPECT_TRUE(reports.Report(call).ok());
  EXPECT_EQ(LastEvent(recorder.get()),
            std::string("rank 2: the gradient of 'dense_3/kernel' holds 3 NaN and 1 Inf in 1024 "
                        "float32 values, before they are added to those of the other ranks. "
                        "Collective 'grads.1' (train.py:40), call 118, step 117. The sum holds "
                        "them on every rank; see `tfring help values`"));
  EXPECT_EQ(recorder->memory().event(1).type, static_cast<int32_t>(EventType::kBadValues));
  EXPECT_EQ(recorder->memory().event(1).value, int64_t{4});
  EXPECT_TRUE(reports.Report(call).ok());
  EXPECT_EQ(recorder->header().events.load(), uint64_t{1});  // once for each name
}

TEST(TensorsWithoutNamesAreNumberedAndManyAreCounted) {
  std::unique_ptr<Recorder> recorder = MakeRecorder();
  ValueReports reports(0, ValueAction::kWarn, recorder.get());
  std::vector<BadValues> tensors;
  for (size_t i = 0; i < 10; ++i) tensors.push_back({i, DataType::kFloat16, 5, 0, 2});
  EXPECT_TRUE(reports.Report(CallOf("mine", tensors)).ok());
  const std::string text = LastEvent(recorder.get());
  EXPECT_TRUE(text.find("tensor 0 holds 2 Inf in 5 float16 values, tensor 1 ") !=
              std::string::npos);
  EXPECT_TRUE(text.find("and 7 more such tensors") != std::string::npos);
}

TEST(ALossScaleMakesNeitherAWarningNorAnError) {
  std::unique_ptr<Recorder> recorder = MakeRecorder();
  ValueReports reports(0, ValueAction::kError, recorder.get());
  NameTensors("scaled.0", {{"dense/kernel"}, true});
  EXPECT_TRUE(reports.Report(CallOf("scaled.0", {{0, DataType::kFloat32, 8, 0, 1}})).ok());
  EXPECT_TRUE(LastEvent(recorder.get()).find("loss scale") != std::string::npos);
}

}  // namespace
}  // namespace tfring::value_reports_test
