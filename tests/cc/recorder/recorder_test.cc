// One record: what its slots hold, what is overwritten and what is not, and where the file can go.
#include "ops/runtime/recorder/recorder.h"

#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstring>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "tests/cc/recorder/folder.h"
#include "tests/cc/test.h"

namespace tfring::recorder_test {
namespace {

std::unique_ptr<Recorder> InMemory(int size = 2) {
  RecordIdentity identity;
  identity.size = size;
  Result<std::unique_ptr<Recorder>> made = Recorder::Create(identity);
  return made.ok() ? std::move(*made) : nullptr;
}

Request Named(std::string name) {
  Request request;
  request.name = std::move(name);
  request.shapes = {{4}};
  return request;
}

uint64_t Submit(Recorder* recorder, const std::string& name) {
  return recorder->Submitted(Named(name), 16, 0, 0, 1);
}

// A field that need not end with a zero byte.
template <size_t kSize>
std::string Text(const char (&field)[kSize]) {
  return std::string(field, strnlen(field, kSize));
}

TEST(APausedRecordKeepsWhatItHasAndTakesNothingMore) {
  auto recorder = InMemory();
  EXPECT_TRUE(Recording(nullptr) == nullptr);
  EXPECT_TRUE(Recording(recorder.get()) == recorder.get());
  const uint64_t before = Submit(recorder.get(), "before");
  recorder->Pause(true);
  EXPECT_TRUE(Recording(recorder.get()) == nullptr);
  // What began while it was paused has number 0, and ends when it is no longer.
  recorder->Pause(false);
  recorder->Planned(0, 5, AskTimes(), 2);
  recorder->Ended(0, StatusCode::kOk, 3);
  EXPECT_EQ(recorder->OriginOf(0).invocation, 0u);
  EXPECT_EQ(recorder->header().ended.load(), 0);
  EXPECT_EQ(recorder->memory().call(0).ended.load(), 0);
  EXPECT_EQ(recorder->memory().call(before).ended.load(), 0);
  EXPECT_EQ(Submit(recorder.get(), "after"), before + 1);
}

TEST(ACallHasWhatWasRequested) {
  auto recorder = InMemory();
  Request request = Named("x");
  request.kind = CollectiveKind::kBroadcast;
  request.dtype = DataType::kFloat64;
  request.op = ReduceOp::kMax;
  request.process_set = 3;
  request.root = 1;
  request.layout_hash = 7;
  request.unnamed = true;
  request.call_site = "train.py:40";
  request.shapes = {{2, 3}, {}, {5}};
  const uint64_t number = recorder->Submitted(request, 96, CallRecord::kEarly, 5, 1000);
  EXPECT_EQ(number, uint64_t{1});
  const CallRecord& call = recorder->memory().call(number);
  EXPECT_EQ(call.number.load(), number);
  EXPECT_EQ(call.submitted, int64_t{1000});
  EXPECT_EQ(call.attempt, uint64_t{5});
  EXPECT_EQ(call.bytes, int64_t{96});
  EXPECT_EQ(call.tensors, uint32_t{3});
  EXPECT_EQ(call.process_set, 3);
  EXPECT_EQ(call.root, 1);
  EXPECT_EQ(call.invocation, uint32_t{1});
  EXPECT_EQ(call.kind, static_cast<uint8_t>(CollectiveKind::kBroadcast));
  EXPECT_EQ(call.dtype, static_cast<uint8_t>(DataType::kFloat64));
  EXPECT_EQ(call.op, static_cast<uint8_t>(ReduceOp::kMax));
  EXPECT_EQ(call.flags, CallRecord::kBucket | CallRecord::kUnnamed | CallRecord::kEarly);
  EXPECT_EQ(Text(call.name), "x");
  EXPECT_EQ(Text(call.call_site), "train.py:40");
  const std::vector<int32_t> shapes(call.shapes, call.shapes + 7);
  EXPECT_TRUE(shapes == (std::vector<int32_t>{2, 2, 3, 0, 1, 5, -1}));
  EXPECT_EQ(call.planned.load() + call.ended.load(), int64_t{0});
  EXPECT_EQ(recorder->header().calls.load(), uint64_t{1});
}

TEST(ACallThatEndedCountsItsBytesOnlyIfItEndedWell) {
  auto recorder = InMemory();
  const uint64_t well = Submit(recorder.get(), "well");
  const uint64_t badly = Submit(recorder.get(), "badly");
  recorder->Planned(well, 9, AskTimes(), 5);
  recorder->Ended(well, StatusCode::kOk, 6);
  recorder->Ended(badly, StatusCode::kAborted, 7);
  const CallRecord& first = recorder->memory().call(well);
  EXPECT_EQ(first.sequence.load(), uint64_t{9});
  EXPECT_EQ(first.planned.load(), int64_t{5});
  EXPECT_EQ(first.ended.load(), int64_t{6});
  const uint8_t status = recorder->memory().call(badly).status;
  EXPECT_EQ(status, static_cast<uint8_t>(StatusCode::kAborted));
  EXPECT_EQ(recorder->header().bytes.load(), int64_t{16});
  EXPECT_EQ(recorder->header().ended.load(), int64_t{2});
  EXPECT_EQ(recorder->header().failed.load(), int64_t{1});
}

TEST(WhoCameLastIsCounted) {
  auto recorder = InMemory(3);
  AskTimes asked;
  asked.Add(2, 100);
  asked.Add(0, 110);
  asked.Add(1, 150);
  recorder->Planned(Submit(recorder.get(), "x"), 1, asked, 160);
  const CallRecord& call = recorder->memory().call(1);
  EXPECT_EQ(call.first_asked, int64_t{100});
  EXPECT_EQ(call.second_last_asked, int64_t{110});
  EXPECT_EQ(call.last_asked, int64_t{150});
  EXPECT_EQ(call.last_rank, 1);
  EXPECT_EQ(recorder->memory().rank(1).late.load(), int64_t{40});
  EXPECT_EQ(recorder->memory().rank(1).times.load(), int64_t{1});
  EXPECT_EQ(recorder->memory().rank(0).times.load(), int64_t{0});
}

// In a lock that is known when the plan has run. Ranks may be told in any order.
TEST(WhoEnteredABatchLastIsCounted) {
  auto recorder = InMemory(3);
  AskTimes asked;
  asked.Add(1, 150);
  asked.Add(0, 110);
  asked.Add(2, 100);
  std::vector<uint64_t> numbers;
  for (const char* name : {"x", "y", "z"}) {
    numbers.push_back(Submit(recorder.get(), name));
    recorder->Planned(numbers.back(), 1, AskTimes(), 110);
  }
  EXPECT_EQ(recorder->memory().call(1).last_rank, kNoRank);
  recorder->Entered(numbers, asked);
  for (const uint64_t number : numbers) {
    const CallRecord& call = recorder->memory().call(number);
    EXPECT_EQ(call.first_asked, int64_t{100});
    EXPECT_EQ(call.second_last_asked, int64_t{110});
    EXPECT_EQ(call.last_asked, int64_t{150});
    EXPECT_EQ(call.last_rank, 1);
  }
  // The others waited once for all three.
  EXPECT_EQ(recorder->memory().rank(1).late.load(), int64_t{40});
  EXPECT_EQ(recorder->memory().rank(1).times.load(), int64_t{1});
  EXPECT_EQ(recorder->memory().rank(2).times.load(), int64_t{0});
}

TEST(TheNewestCallsAreKept) {
  auto recorder = InMemory();
  for (uint64_t i = 1; i <= kCallSlots + 5; ++i) {
    ASSERT_EQ(Submit(recorder.get(), "call " + std::to_string(i)), i);
    recorder->Ended(i, StatusCode::kOk, 2);
  }
  EXPECT_EQ(Text(recorder->memory().call(5).name), "call " + std::to_string(kCallSlots + 5));
  EXPECT_EQ(recorder->memory().call(6).number.load(), uint64_t{6});
  EXPECT_EQ(recorder->header().overwritten.load(), uint64_t{0});
}

TEST(NothingIsLeftOfTheNameThatASlotHadBefore) {
  auto recorder = InMemory();
  for (uint64_t i = 1; i <= kCallSlots; ++i) {
    recorder->Ended(Submit(recorder.get(), "a longer name"), StatusCode::kOk, 2);
  }
  const auto& name = recorder->memory().call(Submit(recorder.get(), "x")).name;
  EXPECT_EQ(std::string(name, sizeof(name)), "x" + std::string(sizeof(name) - 1, '\0'));
}

TEST(AnOpenCallKeepsItsSlotUntilItEnds) {
  auto recorder = InMemory();
  const uint64_t open = Submit(recorder.get(), "hangs");
  uint64_t last = open;
  for (size_t i = 0; i < 3 * kCallSlots; ++i) {
    last = Submit(recorder.get(), "goes on");
    recorder->Ended(last, StatusCode::kOk, 2);
  }
  EXPECT_EQ(Text(recorder->memory().call(open).name), "hangs");
  EXPECT_EQ(recorder->memory().call(open).number.load(), open);
  recorder->Ended(open, StatusCode::kOk, 3);
  for (size_t i = 0; i < kCallSlots; ++i) {
    last = Submit(recorder.get(), "goes on");
    recorder->Ended(last, StatusCode::kOk, 2);
  }
  EXPECT_EQ(Text(recorder->memory().call(open).name), "goes on");
  EXPECT_EQ(recorder->header().overwritten.load(), uint64_t{0});
}

TEST(WhereAllCallsAreOpenOneIsOverwrittenAndSaidSo) {
  auto recorder = InMemory();
  for (size_t i = 0; i < kCallSlots; ++i) Submit(recorder.get(), "open");
  const uint64_t more = Submit(recorder.get(), "one more");
  EXPECT_EQ(more, kCallSlots + 1);
  EXPECT_EQ(recorder->header().overwritten.load(), uint64_t{1});
  // What becomes of the call that lost its slot is counted, and leaves the slot alone.
  recorder->Planned(1, 77, AskTimes(), 5);
  recorder->Ended(1, StatusCode::kInternal, 6);
  const CallRecord& slot = recorder->memory().call(more);
  EXPECT_EQ(slot.number.load(), more);
  EXPECT_EQ(slot.sequence.load(), uint64_t{0});
  EXPECT_EQ(slot.ended.load(), int64_t{0});
  EXPECT_EQ(recorder->header().failed.load(), int64_t{1});
}

TEST(OfLongTextsBeginningAndEndAreKept) {
  auto recorder = InMemory();
  const std::string exact(sizeof(CallRecord::name), 'e');
  Submit(recorder.get(), exact);
  EXPECT_EQ(Text(recorder->memory().call(1).name), exact);
  Submit(recorder.get(), "first" + std::string(300, '-') + "last");
  const std::string cut = Text(recorder->memory().call(2).name);
  EXPECT_EQ(cut.size(), sizeof(CallRecord::name));
  EXPECT_EQ(cut.substr(0, 5), "first");
  EXPECT_EQ(cut.substr(cut.size() - 4), "last");
  EXPECT_CONTAINS(cut, "...");
  recorder->Event(EventType::kWarning, StatusCode::kOk, 0, std::string(10000, 'w'));
  EXPECT_EQ(Text(recorder->memory().event(1).text).size(), sizeof(EventRecord::text));
}

TEST(OfManyShapesTheFirstAreKept) {
  auto recorder = InMemory();
  Request request = Named("x");
  request.shapes = {{1, 2, 3}, {int64_t{1} << 40}, {7, 8}, {9, 10, 11}};
  recorder->Submitted(request, 0, 0, 0, 1);
  const int32_t* found = recorder->memory().call(1).shapes;
  EXPECT_TRUE(std::vector<int32_t>(found, found + 10) ==
              (std::vector<int32_t>{3, 1, 2, 3, 1, INT32_MAX, 2, 7, 8, -1}));
  EXPECT_EQ(recorder->memory().call(1).tensors, uint32_t{4});
}

TEST(CallsOfANameAreCountedPerProcessSet) {
  auto recorder = InMemory();
  Request request = Named("x");
  for (uint32_t i = 1; i <= 3; ++i) {
    const uint64_t number = recorder->Submitted(request, 0, 0, 0, 1);
    EXPECT_EQ(recorder->memory().call(number).invocation, i);
  }
  request.process_set = 1;
  const uint64_t number = recorder->Submitted(request, 0, 0, 0, 1);
  EXPECT_EQ(recorder->memory().call(number).invocation, uint32_t{1});
}

TEST(NamesBeyondTheRoomAreNotCounted) {
  auto counts = std::make_unique<Invocations>();
  std::vector<bool> counted;
  size_t known = 0;
  for (int i = 0; i < 20000; ++i) {
    const uint32_t first = counts->Next(0, "tensor " + std::to_string(i));
    ASSERT_TRUE(first <= 1);
    counted.push_back(first == 1);
    known += first;
  }
  EXPECT_TRUE(known >= 10000 && known < 16384);
  for (int i = 0; i < 20000; ++i) {
    const uint32_t second = counts->Next(0, "tensor " + std::to_string(i));
    ASSERT_EQ(second, counted[i] ? 2u : 0u);
  }
}

TEST(PlansAndEventsKeepTheNewest) {
  auto recorder = InMemory();
  PlanRun run;
  run.members = {0, 1};
  run.calls = {1, 2};
  run.plan.sequence = 1;
  recorder->PlanQueued(run, 3, 64, 10);
  run.plan.sequence = 1 + kPlanSlots;
  PlanMarks* marks = recorder->PlanQueued(run, 3, 64, 20);
  marks->started = 21;
  recorder->PlanLaunched(1, 30);  // too late: it has no slot any more
  recorder->PlanEnded(1, StatusCode::kInternal, 30);
  const PlanRecord& plan = recorder->memory().plan(1 + kPlanSlots);
  EXPECT_EQ(plan.sequence.load(), 1 + kPlanSlots);
  EXPECT_EQ(plan.queued, int64_t{20});
  EXPECT_EQ(plan.marks.started.load(), int64_t{21});
  EXPECT_EQ(plan.marks.ended.load() + plan.marks.launched.load(), int64_t{0});
  EXPECT_EQ(plan.members, 2u);
  EXPECT_EQ(plan.tensors, 3u);
  recorder->PlanEnded(1 + kPlanSlots, StatusCode::kOk, 40);
  EXPECT_EQ(plan.marks.ended.load(), int64_t{40});
  for (size_t i = 1; i <= kEventSlots + 1; ++i) {
    recorder->Event(EventType::kMark, StatusCode::kOk, static_cast<int64_t>(i), "");
  }
  EXPECT_EQ(recorder->memory().event(1).value, static_cast<int64_t>(kEventSlots + 1));
  EXPECT_EQ(recorder->memory().event(2).value, int64_t{2});
}

TEST(EventsOfSeveralThreadsAreAllThere) {
  auto recorder = InMemory();
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&recorder, t] {
      for (int i = 0; i < 50; ++i) {
        recorder->Event(EventType::kMark, StatusCode::kOk, t * 50 + i, "from a thread");
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  std::vector<bool> seen(200);
  for (uint64_t n = 1; n <= 200; ++n) {
    EXPECT_EQ(recorder->memory().event(n).number.load(), n);
    seen[static_cast<size_t>(recorder->memory().event(n).value)] = true;
  }
  for (bool one : seen) EXPECT_TRUE(one);
}

TEST(WhatTheProgramSaysOfItself) {
  auto recorder = InMemory();
  EXPECT_EQ(recorder->header().step.load(), int64_t{-1});
  recorder->MarkStep(4, 128, -1);
  recorder->MarkStep(-1, -1, 99);
  EXPECT_EQ(recorder->header().step.load(), int64_t{4});
  EXPECT_EQ(recorder->header().samples.load(), int64_t{128});
  EXPECT_EQ(recorder->header().input_time.load(), int64_t{99});
  EXPECT_TRUE(recorder->header().step_began.load() > 0);
}

TEST(WhatFitSaysOfItself) {
  auto recorder = InMemory();
  EXPECT_EQ(recorder->header().has_loss.load(), int64_t{0});
  recorder->MarkFit({3, 10, 700, 0.25, 99});
  EXPECT_EQ(recorder->header().epoch.load(), int64_t{3});
  EXPECT_EQ(recorder->header().epochs.load(), int64_t{10});
  EXPECT_EQ(recorder->header().last_step.load(), int64_t{700});
  EXPECT_EQ(recorder->header().has_loss.load(), int64_t{1});
  EXPECT_EQ(recorder->header().loss.load(), 0.25);
  EXPECT_EQ(recorder->header().callback_time.load(), int64_t{99});
  recorder->MarkFit({1, 2, 0, std::nullopt, 100});
  EXPECT_EQ(recorder->header().has_loss.load(), int64_t{0});
}

TEST(WhatOptimizersAndBuffersHold) {
  auto recorder = InMemory();
  recorder->MarkMemory({400, 800, 50});
  recorder->Buffers(7);
  EXPECT_EQ(recorder->header().weights_memory.load(), int64_t{400});
  EXPECT_EQ(recorder->header().states_memory.load(), int64_t{800});
  EXPECT_EQ(recorder->header().copies_memory.load(), int64_t{50});
  EXPECT_EQ(recorder->header().buckets_memory.load(), int64_t{7});
}

TEST(TheFileIsTheMemoryAndItsOwnersAlone) {
  const Folder folder;
  RecordIdentity identity;
  identity.path = folder.File("rank-1.record");
  identity.rank = 1;
  identity.size = 2;
  identity.job = "a job";
  identity.stall_shutdown = 77;
  identity.heartbeat_timeout = 60;
  Result<std::unique_ptr<Recorder>> made = Recorder::Create(identity);
  ASSERT_TRUE(made.ok());
  EXPECT_EQ((*made)->header().stall_shutdown, int64_t{77});
  EXPECT_EQ((*made)->header().heartbeat_timeout, int64_t{60});
  Submit(made->get(), "a name to be found");
  struct stat status{};
  ASSERT_EQ(stat(identity.path.c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777, mode_t{0600});
  EXPECT_EQ(static_cast<size_t>(status.st_size), (*made)->memory().bytes());
  EXPECT_TRUE(static_cast<size_t>(status.st_blocks) * 512 >= (*made)->memory().bytes());
  EXPECT_EQ(ReadFile(identity.path).substr(0, 8), std::string(kRecordMagic, 8));
  EXPECT_CONTAINS(ReadFile(identity.path), "a name to be found");
  made->reset();
  EXPECT_CONTAINS(ReadFile(identity.path), "a name to be found");
}

TEST(ARecordTakesAtMostFourMebibytes) {
  auto recorder = InMemory(256);
  EXPECT_TRUE(recorder->memory().bytes() + sizeof(Recorder) <= size_t{4} << 20);
}

TEST(ALinkIsReplacedAndNotFollowed) {
  const Folder folder;
  const std::string target = folder.File("target");
  std::ofstream(target) << "keep me";
  RecordIdentity identity;
  identity.path = folder.File("rank-0.record");
  ASSERT_EQ(symlink(target.c_str(), identity.path.c_str()), 0);
  Result<std::unique_ptr<Recorder>> made = Recorder::Create(identity);
  ASSERT_TRUE(made.ok());
  Submit(made->get(), "x");
  EXPECT_EQ(ReadFile(target), "keep me");
}

TEST(AFileWithoutRoomIsAnErrorAndIsNotLeftBehind) {
  const Folder folder;
  RecordIdentity identity;
  identity.path = folder.File("rank-0.record");
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  const auto handler = signal(SIGXFSZ, SIG_IGN);
  const rlimit small{64 << 10, before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
  Result<std::unique_ptr<Recorder>> made = Recorder::Create(identity);
  setrlimit(RLIMIT_FSIZE, &before);
  signal(SIGXFSZ, handler);
  ASSERT_TRUE(!made.ok());
  EXPECT_TRUE(made.status().code() == StatusCode::kUnavailable);
  EXPECT_CONTAINS(made.status().message(), identity.path);
  EXPECT_CONTAINS(made.status().message(), "no room");
  EXPECT_TRUE(!Exists(identity.path));
}

TEST(AFolderThatIsNotThereIsAnError) {
  RecordIdentity identity;
  identity.path = "/nonexistent/rank-0.record";
  Result<std::unique_ptr<Recorder>> made = Recorder::Create(identity);
  ASSERT_TRUE(!made.ok());
  EXPECT_CONTAINS(made.status().message(), "/nonexistent/rank-0.record");
}

}  // namespace
}  // namespace tfring::recorder_test
