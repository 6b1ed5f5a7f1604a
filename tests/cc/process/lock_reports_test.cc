// What a rank tells of locks of the schedule.
#include "ops/runtime/process/lock_reports.h"

#include <memory>
#include <string>
#include <vector>

#include "tests/cc/test.h"

namespace tfring::lock_reports_test {
namespace {

std::unique_ptr<Recorder> MadeRecorder() {
  RecordIdentity identity;
  identity.job = "a-job";
  Result<std::unique_ptr<Recorder>> made = Recorder::Create(identity);
  EXPECT_TRUE(made.ok());
  return std::move(*made);
}

LockNews News(bool over, UnlockCause cause = UnlockCause::kFollows, const std::string& text = "") {
  LockNews news;
  news.over = over;
  news.batches = 3;
  news.tensors = 161;
  news.rounds = over ? 40 : 0;
  news.rank = 1;
  news.reason = {cause, text};
  return news;
}

// The texts of the events of a type, in their order.
std::vector<std::string> Events(Recorder* recorder, EventType type) {
  std::vector<std::string> texts;
  for (uint64_t number = 1; number <= kEventSlots; ++number) {
    const EventRecord& event = recorder->memory().event(number);
    if (event.number.load() > 0 && event.type == static_cast<int32_t>(type)) {
      texts.emplace_back(event.text);
    }
  }
  return texts;
}

TEST(EachCauseIsCountedAndToldNowAndThen) {
  const std::unique_ptr<Recorder> recorder = MadeRecorder();
  LockReports reports(0, recorder.get());
  for (int i = 0; i < 5; ++i) {
    reports.Report(News(false));
    reports.Report(News(true, UnlockCause::kOtherCall, "metric"));
  }
  reports.Report(News(false));
  reports.Report(News(true, UnlockCause::kJoin));
  reports.Report(News(false));
  auto counts = reports.Counts();
  EXPECT_EQ(counts.at("locks"), int64_t{7});
  EXPECT_EQ(counts.at("unlocks_other_call"), int64_t{5});
  EXPECT_EQ(counts.at("unlocks_join"), int64_t{1});
  EXPECT_EQ(counts.at("unlocks_waited"), int64_t{0});
  EXPECT_EQ(recorder->header().locks.load(), int64_t{7});
  EXPECT_EQ(recorder->header().unlocks.load(), int64_t{6});
  const std::vector<std::string> locks = Events(recorder.get(), EventType::kLock);
  ASSERT_EQ(locks.size(), size_t{3});
  EXPECT_EQ(locks[0], "the schedule of 3 batches, 161 tensors is locked");
  EXPECT_EQ(locks[2], locks[0] + " (number 4 of this generation)");
  const std::vector<std::string> ends = Events(recorder.get(), EventType::kUnlock);
  ASSERT_EQ(ends.size(), size_t{4});
  EXPECT_EQ(
      ends[0],
      "the lock of 161 tensors ended after 40 rounds: rank 1 called 'metric', which is not in "
      "it");
  EXPECT_EQ(ends[2], ends[0] + " (number 4 that ended in this way)");
  EXPECT_EQ(ends[3], "the lock of 161 tensors ended after 40 rounds: rank 1 joined");
}

}  // namespace
}  // namespace tfring::lock_reports_test
