#include "ops/runtime/protocol/message/wire.h"

#include <cmath>
#include <string>
#include <vector>

#include "ops/runtime/base/wire_io.h"
#include "ops/runtime/protocol/message/text.h"
#include "tests/cc/protocol/negotiation/cluster.h"
#include "tests/cc/test.h"

namespace tfring::testing::wire_test {
namespace {

Frame RequestsFrame() {
  Frame frame;
  frame.type = FrameType::kRequests;
  frame.requests.push_back(Allreduce("model/dense_1/kernel", {128, 0, 1'000'000'000'000}));
  Request& odd = frame.requests.emplace_back(Allgather("", {}));
  odd.dtype = DataType::kBfloat16;
  odd.op = ReduceOp::kProduct;
  odd.prescale = 1.0 / 3;
  odd.postscale = -0.0;
  odd.process_set = INT32_MIN;
  odd.root = INT32_MAX;
  odd.layout_hash = 0x8000'0000'0000'0001;
  odd.group = true;
  odd.shapes = {{}, {-1, INT64_MIN, INT64_MAX}, {7}};
  odd.peer = 3;
  odd.splits = {0, -1, INT64_MAX};
  odd.refusal = "a scalar";
  odd.unnamed = true;
  odd.in_run = true;
  odd.path = DataPath::kDevice;
  odd.call_site = "train.py:40";
  odd.layout = "Dhead/kernel\t(float32)";
  frame.requests.emplace_back().path = DataPath::kStaged;
  Request& add = frame.requests.emplace_back();
  add.kind = CollectiveKind::kAddProcessSet;
  add.set_ranks = {0, 7, INT32_MAX};
  Request& remove = frame.requests.emplace_back();
  remove.kind = CollectiveKind::kRemoveProcessSet;
  remove.removed_set = 5;
  frame.cache_ids = {1, 127, 128, UINT32_MAX};
  return frame;
}

Frame PlansFrame() {
  Frame frame;
  frame.type = FrameType::kPlans;
  Plan plan;
  plan.sequence = UINT64_MAX;
  plan.process_set = -3;
  plan.kind = CollectiveKind::kBroadcast;
  plan.dtype = DataType::kComplex128;
  plan.op = ReduceOp::kMin;
  plan.prescale = 0.5;
  plan.postscale = INFINITY;
  plan.root = 9;
  plan.items = {{"a", 0, {}}, {"", 300, {1, 2, -5}}};
  frame.plans.push_back(plan);
  frame.plans.back().path = DataPath::kDevice;
  plan.error = FailedPrecondition("the ranks disagree");
  plan.peer = 4;
  plan.absent = {1, 5};
  frame.plans.push_back(plan);
  plan.ends_attempt = true;
  frame.plans.push_back(plan);
  frame.plans.push_back(Plan());
  return frame;
}

std::vector<Frame> AllFrames() {
  std::vector<Frame> frames = {RequestsFrame(), PlansFrame()};
  frames.emplace_back();  // heartbeat
  Frame frame;
  frame.type = FrameType::kAbort;
  frame.rank = 2;
  frame.status = Unavailable("rank 2 was lost");
  frames.push_back(frame);
  frame.type = FrameType::kFault;
  frames.push_back(frame);
  frame = Frame();
  frame.type = FrameType::kGoodbye;
  frame.departures = {{1, "ValueError: \xe2\x82\xac"}, {1000, ""}};
  frames.push_back(frame);
  frame = Frame();
  frame.type = FrameType::kWithdraw;
  frame.process_set = 7;
  frame.status = Aborted("the step of rank 1 failed");
  frames.push_back(frame);
  frame = Frame();
  frame.type = FrameType::kLock;
  frame.lock.id = UINT64_MAX;
  frame.lock.attempt = 3;
  frame.lock.batches = {{1, UINT32_MAX}, {300}};
  frames.push_back(frame);
  frame.lock = LockMessage();
  frame.type = FrameType::kStop;
  frame.lock.id = 70000;
  frames.push_back(frame);
  frame.type = FrameType::kFrozen;
  frame.lock.declined = true;
  frame.lock.reason = {UnlockCause::kShutdown, ""};
  frames.push_back(frame);
  frame.lock = LockMessage();
  frame.type = FrameType::kUnlock;
  frame.lock.entered = 5;
  frame.lock.high = UINT64_MAX;
  frame.lock.rank = 70000;
  frame.lock.reason = {UnlockCause::kOtherCall, "metric \xe2\x82\xac"};
  frames.push_back(frame);
  return frames;
}

bool SamePlan(const Plan& a, const Plan& b) {
  if (a.items.size() != b.items.size()) return false;
  for (size_t i = 0; i < a.items.size(); ++i) {
    if (a.items[i].name != b.items[i].name || a.items[i].cache_id != b.items[i].cache_id ||
        a.items[i].negotiated_values != b.items[i].negotiated_values) {
      return false;
    }
  }
  return a.sequence == b.sequence && a.process_set == b.process_set && a.kind == b.kind &&
         a.dtype == b.dtype && a.op == b.op && a.prescale == b.prescale &&
         a.postscale == b.postscale && a.root == b.root && a.error.code() == b.error.code() &&
         a.error.message() == b.error.message() && a.peer == b.peer && a.absent == b.absent &&
         a.path == b.path && a.ends_attempt == b.ends_attempt;
}

TEST(ALockThatMakesNoSenseIsRefused) {
  Frame frame;
  frame.type = FrameType::kLock;
  EXPECT_TRUE(!DecodeFrame(EncodeFrame(frame)).ok());
  frame.lock.batches = {{1}, {}};
  EXPECT_TRUE(!DecodeFrame(EncodeFrame(frame)).ok());
  frame.lock.batches = {{1}, {2}};
  EXPECT_TRUE(DecodeFrame(EncodeFrame(frame)).ok());
  frame.type = FrameType::kFrozen;
  frame.lock.entered = 1;
  EXPECT_TRUE(DecodeFrame(EncodeFrame(frame)).ok());
  frame.lock.declined = true;
  EXPECT_TRUE(!DecodeFrame(EncodeFrame(frame)).ok());
  frame.type = FrameType::kUnlock;
  frame.lock.reason.cause = UnlockCause::kJoin;
  EXPECT_TRUE(!DecodeFrame(EncodeFrame(frame)).ok());
}

TEST(AFrozenRankSaysWhichCallsCameEarly) {
  Frame frame;
  frame.type = FrameType::kFrozen;
  for (UnlockCause cause : {UnlockCause::kApart, UnlockCause::kIncomplete, UnlockCause::kWaited}) {
    frame.lock.reason = {cause, "y", {7, UINT32_MAX}};
    const Result<Frame> decoded = DecodeFrame(EncodeFrame(frame));
    ASSERT_TRUE(decoded.ok());
    if (cause == UnlockCause::kWaited) frame.lock.reason.early.clear();
    EXPECT_TRUE(decoded->lock == frame.lock);
  }
}

TEST(AnUnlockSaysWhichRankEndedTheLockAndWhy) {
  Frame frame;
  frame.type = FrameType::kUnlock;
  const auto decodes = [&] { return DecodeFrame(EncodeFrame(frame)).ok(); };
  EXPECT_TRUE(!decodes());
  for (int cause = 1; cause < kUnlockCauses; ++cause) {
    frame.lock.reason = {static_cast<UnlockCause>(cause), "x"};
    EXPECT_TRUE(decodes());
  }
  frame.lock.reason.cause = static_cast<UnlockCause>(kUnlockCauses);
  EXPECT_TRUE(!decodes());
  frame.lock.reason = {UnlockCause::kOtherCall, std::string(kMaxUnlockTextBytes, 'x')};
  EXPECT_TRUE(decodes());
  frame.lock.rank = -1;
  EXPECT_TRUE(!decodes());
  frame.lock.rank = 0;
  frame.lock.reason.text += "x";
  EXPECT_TRUE(!decodes());
  frame.lock.reason.text = "\xff";
  EXPECT_TRUE(!decodes());
  // Who follows another rank has nothing to add.
  frame.type = FrameType::kFrozen;
  frame.lock.reason = {};
  EXPECT_TRUE(decodes());
  frame.lock.reason.text = "x";
  EXPECT_TRUE(!decodes());
}

TEST(EveryFrameTypeComesBack) {
  EXPECT_EQ(AllFrames().size(), size_t{kMaxFrameType});
  for (const Frame& frame : AllFrames()) {
    const Result<Frame> back = DecodeFrame(EncodeFrame(frame));
    ASSERT_TRUE(back.ok());
    EXPECT_TRUE(back->type == frame.type);
    EXPECT_TRUE(back->requests == frame.requests);
    for (size_t i = 0; i < frame.requests.size(); ++i) {  // which == leaves out
      EXPECT_EQ(back->requests[i].layout, frame.requests[i].layout);
    }
    EXPECT_TRUE(back->cache_ids == frame.cache_ids);
    EXPECT_EQ(back->rank, frame.rank);
    EXPECT_TRUE(back->lock == frame.lock);
    ASSERT_EQ(back->departures.size(), frame.departures.size());
    for (size_t i = 0; i < frame.departures.size(); ++i) {
      EXPECT_EQ(back->departures[i].rank, frame.departures[i].rank);
      EXPECT_EQ(back->departures[i].error, frame.departures[i].error);
    }
    EXPECT_EQ(back->process_set, frame.process_set);
    EXPECT_EQ(back->status.ToString(), frame.status.ToString());
    ASSERT_EQ(back->plans.size(), frame.plans.size());
    for (size_t i = 0; i < frame.plans.size(); ++i) {
      EXPECT_TRUE(SamePlan(back->plans[i], frame.plans[i]));
    }
    EXPECT_TRUE(EncodeFrame(*back) == EncodeFrame(frame));
  }
}

TEST(EveryTruncationAndExtensionIsRefused) {
  for (const Frame& frame : AllFrames()) {
    const std::string bytes = EncodeFrame(frame);
    for (size_t size = 0; size < bytes.size(); ++size) {
      EXPECT_TRUE(!DecodeFrame(std::string_view(bytes).substr(0, size)).ok());
    }
    EXPECT_TRUE(!DecodeFrame(bytes + '\0').ok());
  }
}

TEST(UnknownValuesAreRefused) {
  EXPECT_TRUE(!DecodeFrame(std::string_view("\x00", 1)).ok());
  EXPECT_TRUE(!DecodeFrame(std::string(1, kMaxFrameType + 1)).ok());
  EXPECT_TRUE(DecodeFrame("\x03").ok());
  Frame frame;
  frame.type = FrameType::kRequests;
  frame.requests.push_back(Allreduce("x"));
  // Name length, name; then kind, dtype, op and flags.
  for (size_t at : {size_t{4}, size_t{5}, size_t{6}, size_t{7}}) {
    std::string bytes = EncodeFrame(frame);
    bytes[at] = '\x7f';
    EXPECT_TRUE(!DecodeFrame(bytes).ok());
  }
  frame = Frame();
  frame.type = FrameType::kAbort;
  std::string bytes = EncodeFrame(frame);
  bytes[2] = 2;  // no status has this code
  EXPECT_TRUE(!DecodeFrame(bytes).ok());
}

TEST(GoodbyesAreBoundedAndUtf8) {
  const auto decoded = [](const std::string& error) {
    Frame frame;
    frame.type = FrameType::kGoodbye;
    frame.departures = {{3, error}};
    return DecodeFrame(EncodeFrame(frame)).ok();
  };
  EXPECT_TRUE(decoded(std::string(kMaxDepartureError, 'x')));
  EXPECT_TRUE(!decoded(std::string(kMaxDepartureError + 1, 'x')));
  EXPECT_TRUE(decoded("\xf0\x9f\x98\x80"));
  // A byte of the middle, one that is missing, an overlong form, a surrogate, beyond the last.
  for (const char* text : {"\x80", "\xe2\x82", "\xc0\xaf", "\xe0\x80\xaf", "\xed\xa0\x80",
                           "\xf4\x90\x80\x80", "\xff"}) {
    EXPECT_TRUE(!decoded(text));
    EXPECT_TRUE(IsUtf8(Shortened(text)));
  }
  EXPECT_TRUE(!DecodeFrame(std::string("\x05\x00", 2)).ok());  // of nobody
}

TEST(TextsAreCutBetweenCharacters) {
  EXPECT_EQ(Shortened("short"), "short");
  EXPECT_EQ(Shortened("12345678", 8), "12345678");
  EXPECT_EQ(Shortened("123456789", 8), "1234 ...");
  EXPECT_EQ(Shortened("123\xe2\x82\xac"
                      "456",
                      8),
            "123 ...");
  EXPECT_EQ(Shortened("a\xff\xe2z"), "a??z");
  for (size_t size = 8; size < 40; ++size) {
    std::string text;
    while (text.size() < 64) text += "x\xf0\x9f\x98\x80\xc3\xa9";
    const std::string cut = Shortened(text, size);
    EXPECT_TRUE(IsUtf8(cut) && cut.size() <= size && cut.size() + 8 > size);
  }
}

TEST(OverlongAndHugeNumbersAreRefused) {
  EXPECT_TRUE(DecodeFrame(std::string_view("\x01\x00\x01\x05", 4)).ok());
  EXPECT_TRUE(!DecodeFrame(std::string_view("\x01\x00\x01\x85\x00", 5)).ok());  // 5 in two bytes
  EXPECT_TRUE(!DecodeFrame(std::string_view("\x01\x00\xff\xff\xff\xff\x0f", 7)).ok());
  for (const char* last : {"\x01", "\x7f"}) {  // 2^64 - 1 as an id, and more
    const std::string id = std::string(9, '\xff') + last;
    EXPECT_TRUE(!DecodeFrame(std::string("\x01\x00\x01", 3) + id).ok());
  }
}

// Well-formed frames below kMaxFrameBytes, of elements that are all zeros, would take up to 37
// times as much memory.
TEST(FramesOfManySmallElementsAreRefused) {
  const auto frame = [](uint8_t type, std::vector<uint64_t> counts, const std::string& element) {
    WireWriter out;
    out.Byte(type);
    for (uint64_t count : counts) out.Unsigned(count);
    std::string bytes = out.Take();
    for (uint64_t i = 0; i < counts.back(); ++i) bytes += element;
    return bytes;
  };
  const auto type = [](FrameType value) { return static_cast<uint8_t>(value); };
  const std::string requests = frame(type(FrameType::kRequests), {6'000'000}, std::string(9, 0));
  EXPECT_TRUE(!DecodeFrame(requests + '\0').ok());
  const std::string plans = frame(type(FrameType::kPlans), {7'000'000}, std::string(8, 0));
  EXPECT_TRUE(!DecodeFrame(plans).ok());
  const std::string batches = frame(type(FrameType::kLock), {0, 0, 30'000'000}, {1, 0});
  EXPECT_TRUE(!DecodeFrame(batches).ok());
  // Shapes of all requests together.
  const std::string shapes = std::string(8, 0) + frame(0, {12'000'000}, {0}).substr(1);
  EXPECT_TRUE(!DecodeFrame(frame(type(FrameType::kRequests), {5}, shapes) + '\0').ok());
  EXPECT_TRUE(
      DecodeFrame(frame(type(FrameType::kRequests), {100'000}, std::string(9, 0)) + '\0').ok());
}

TEST(DefaultsAreNotSentExplicitly) {
  Frame frame;
  frame.type = FrameType::kRequests;
  frame.requests.push_back(Allreduce("x"));
  frame.requests[0].prescale = 2.0;
  std::string bytes = EncodeFrame(frame);
  ASSERT_TRUE(DecodeFrame(bytes).ok());
  bytes.replace(bytes.find('\x40'), 1, "\x3f");  // the high byte of 2.0; now some other number
  EXPECT_TRUE(DecodeFrame(bytes).ok());
  bytes.replace(bytes.find('\x3f') - 1, 2, "\xf0\x3f");  // 1.0
  EXPECT_TRUE(!DecodeFrame(bytes).ok());
}

TEST(APlainRequestStaysSmall) {
  Frame frame;
  frame.type = FrameType::kRequests;
  frame.requests.push_back(Allreduce("x", {4}));
  // Type, count, name, kind, dtype, op, flags, set, root, shapes, no ids.
  EXPECT_EQ(EncodeFrame(frame).size(), size_t{2 + 2 + 5 + 2 + 3 + 1});
}

TEST(BoundsOfSizesHold) {
  for (const Frame& frame : AllFrames()) {
    size_t bound = 64 + 5 * frame.cache_ids.size() + frame.status.message().size();
    for (const Departure& departure : frame.departures) bound += 10 + departure.error.size();
    for (const Request& request : frame.requests) bound += MaxEncodedBytes(request);
    for (const Plan& plan : frame.plans) bound += MaxEncodedBytes(plan);
    EXPECT_TRUE(EncodeFrame(frame).size() <= bound);
  }
}

TEST(LargeBatchesAreSplitIntoFrames) {
  Cluster cluster(2, Config());
  for (int i = 0; i < 8; ++i) {
    Request request = Allreduce("x" + std::to_string(i));
    request.shapes.assign(60000, Shape(15, 1));
    cluster.Submit(0, request);
    cluster.Submit(1, request);
  }
  cluster.Run();
  EXPECT_TRUE(cluster.frames_of_type[static_cast<int>(FrameType::kRequests)] >= 4);
  size_t planned = 0;
  for (const Plan& plan : cluster.log(1)) planned += plan.items.size();
  EXPECT_EQ(planned, size_t{8});
  EXPECT_EQ(cluster.fatal.ToString(), "Ok");
}

}  // namespace
}  // namespace tfring::testing::wire_test
