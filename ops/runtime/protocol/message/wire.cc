#include "ops/runtime/protocol/message/wire.h"

#include <type_traits>
#include <utility>

#include "ops/runtime/base/config.h"
#include "ops/runtime/base/wire_io.h"
#include "ops/runtime/protocol/message/text.h"

namespace tfring {
namespace {

constexpr size_t kMinDepartureBytes = 2;  // bounds counts, and so allocation

void WriteDepartures(const std::vector<Departure>& departures, WireWriter* out) {
  out->Unsigned(departures.size());
  for (const Departure& departure : departures) {
    out->Signed(departure.rank);
    out->String(departure.error);
  }
}

// Texts of exceptions come from outside of the runtime, and go into errors that Python reads.
std::vector<Departure> ReadDepartures(WireReader* in) {
  std::vector<Departure> departures;
  const size_t count = in->Count<Departure>(kMinDepartureBytes);
  if (count == 0) in->Fail();
  departures.reserve(count);
  for (size_t i = 0; i < count && in->ok(); ++i) {
    Departure departure;
    departure.rank = in->Signed32();
    departure.error = in->String();
    if (departure.error.size() > kMaxDepartureError || !IsUtf8(departure.error)) in->Fail();
    departures.push_back(std::move(departure));
  }
  return departures;
}

// Flags that say which optional parts of a Request or a Plan follow.
constexpr uint8_t kHasPrescale = 1;
constexpr uint8_t kHasPostscale = 2;
constexpr uint8_t kHasLayoutHash = 4;
constexpr uint8_t kIsGroup = 8;
constexpr uint8_t kHasSplits = 16;
constexpr uint8_t kHasRefusal = 32;
constexpr uint8_t kHasPeer = 64;
constexpr uint8_t kRequestFlags =
    kHasPrescale | kHasPostscale | kHasLayoutHash | kIsGroup | kHasSplits | kHasRefusal | kHasPeer;
// Those of the second byte of a Request.
constexpr uint8_t kHasCallSite = 1;
constexpr uint8_t kIsUnnamed = 2;
constexpr uint8_t kIsInRun = 4;
constexpr uint8_t kAsksForDevice = 8;
constexpr uint8_t kHasLayout = 16;
constexpr uint8_t kIsStaged = 32;
constexpr uint8_t kMoreRequestFlags =
    kHasCallSite | kIsUnnamed | kIsInRun | kAsksForDevice | kHasLayout | kIsStaged;
constexpr uint8_t kHasError = 4;
constexpr uint8_t kHasAbsent = 16;
constexpr uint8_t kEndsAttempt = 32;
constexpr uint8_t kRunsOnDevice = 128;
constexpr uint8_t kPlanFlags =
    kHasPrescale | kHasPostscale | kHasError | kHasAbsent | kEndsAttempt | kHasPeer | kRunsOnDevice;

// The fewest bytes that one element takes: bounds counts, and so allocation.
constexpr size_t kMinRequestBytes = 9;
constexpr size_t kMinPlanBytes = 8;
constexpr size_t kMinItemBytes = 3;

template <typename T>
void WriteList(const std::vector<T>& values, WireWriter* out) {
  out->Unsigned(values.size());
  for (T value : values) {
    if constexpr (std::is_signed_v<T>) {
      out->Signed(value);
    } else {
      out->Unsigned(value);
    }
  }
}

template <typename T>
std::vector<T> ReadList(T (WireReader::*read)(), WireReader* in) {
  std::vector<T> values;
  const size_t count = in->Count<T>(1);
  values.reserve(count);
  for (size_t i = 0; i < count && in->ok(); ++i) values.push_back((in->*read)());
  return values;
}

std::vector<uint32_t> ReadIds(WireReader* in) { return ReadList(&WireReader::Unsigned32, in); }
std::vector<int64_t> ReadSignedNumbers(WireReader* in) { return ReadList(&WireReader::Signed, in); }
std::vector<Rank> ReadRanks(WireReader* in) { return ReadList(&WireReader::Signed32, in); }

// The receiver of a send/recv, where there is one.
Rank ReadPeer(uint8_t flags, WireReader* in) {
  if ((flags & kHasPeer) == 0) return kNoRank;
  const Rank peer = in->Signed32();
  if (peer == kNoRank) in->Fail();
  return peer;
}

void WriteStatus(const Status& status, WireWriter* out) {
  out->Byte(static_cast<uint8_t>(status.code()));
  out->String(status.message());
}

Status ReadStatus(WireReader* in) {
  const auto code = static_cast<StatusCode>(in->Byte());
  std::string message = in->String();
  switch (code) {
    case StatusCode::kOk:
    case StatusCode::kCancelled:
    case StatusCode::kInvalidArgument:
    case StatusCode::kDeadlineExceeded:
    case StatusCode::kResourceExhausted:
    case StatusCode::kFailedPrecondition:
    case StatusCode::kAborted:
    case StatusCode::kUnimplemented:
    case StatusCode::kInternal:
    case StatusCode::kUnavailable:
      return Status(code, std::move(message));
  }
  in->Fail();
  return OkStatus();
}

void WriteScales(uint8_t flags, double prescale, double postscale, WireWriter* out) {
  if (flags & kHasPrescale) out->Double(prescale);
  if (flags & kHasPostscale) out->Double(postscale);
}

uint8_t ScaleFlags(double prescale, double postscale) {
  return static_cast<uint8_t>((prescale != 1.0 ? kHasPrescale : 0) |
                              (postscale != 1.0 ? kHasPostscale : 0));
}

// An optional part is never sent with its default value: every frame has one encoding.
void ReadScales(uint8_t flags, double* prescale, double* postscale, WireReader* in) {
  if (flags & kHasPrescale) *prescale = in->Double();
  if (flags & kHasPostscale) *postscale = in->Double();
  if ((flags & (kHasPrescale | kHasPostscale)) != ScaleFlags(*prescale, *postscale)) in->Fail();
}

uint8_t ReadFlags(uint8_t known, WireReader* in) {
  const uint8_t flags = in->Byte();
  if (flags & ~known) in->Fail();
  return flags;
}

uint8_t PathFlag(DataPath path) {
  if (path == DataPath::kCpu) return 0;
  return path == DataPath::kDevice ? kAsksForDevice : kIsStaged;
}

DataPath ReadPath(uint8_t flags, WireReader* in) {
  const bool on_device = (flags & kAsksForDevice) != 0;
  const bool staged = (flags & kIsStaged) != 0;
  if (on_device && staged) in->Fail();
  if (on_device) return DataPath::kDevice;
  return staged ? DataPath::kStaged : DataPath::kCpu;
}

void WriteRequest(const Request& request, WireWriter* out) {
  auto flags = ScaleFlags(request.prescale, request.postscale);
  if (request.layout_hash != 0) flags |= kHasLayoutHash;
  if (request.group) flags |= kIsGroup;
  if (!request.splits.empty()) flags |= kHasSplits;
  if (!request.refusal.empty()) flags |= kHasRefusal;
  if (request.peer != kNoRank) flags |= kHasPeer;
  out->String(request.name);
  out->Byte(static_cast<uint8_t>(request.kind));
  out->Byte(static_cast<uint8_t>(request.dtype));
  out->Byte(static_cast<uint8_t>(request.op));
  out->Byte(flags);
  out->Byte(
      static_cast<uint8_t>((request.call_site.empty() ? 0 : kHasCallSite) |
                           (request.unnamed ? kIsUnnamed : 0) | (request.in_run ? kIsInRun : 0) |
                           (request.layout.empty() ? 0 : kHasLayout) | PathFlag(request.path)));
  out->Signed(request.process_set);
  out->Signed(request.root);
  if (flags & kHasPeer) out->Signed(request.peer);
  WriteScales(flags, request.prescale, request.postscale, out);
  if (flags & kHasLayoutHash) out->Word(request.layout_hash);
  if (flags & kHasSplits) WriteList(request.splits, out);
  if (flags & kHasRefusal) out->String(request.refusal);
  if (!request.call_site.empty()) out->String(request.call_site);
  if (!request.layout.empty()) out->String(request.layout);
  if (request.kind == CollectiveKind::kAddProcessSet) WriteList(request.set_ranks, out);
  if (request.kind == CollectiveKind::kRemoveProcessSet) out->Signed(request.removed_set);
  out->Unsigned(request.shapes.size());
  for (const Shape& shape : request.shapes) WriteList(shape, out);
}

Request ReadRequest(WireReader* in) {
  Request request;
  request.name = in->String();
  request.kind = static_cast<CollectiveKind>(in->Enum(kNumCollectiveKinds));
  request.dtype = static_cast<DataType>(in->Enum(kNumDataTypes));
  request.op = static_cast<ReduceOp>(in->Enum(kNumReduceOps));
  const uint8_t flags = ReadFlags(kRequestFlags, in);
  const uint8_t more = ReadFlags(kMoreRequestFlags, in);
  request.group = (flags & kIsGroup) != 0;
  request.unnamed = (more & kIsUnnamed) != 0;
  request.in_run = (more & kIsInRun) != 0;
  request.path = ReadPath(more, in);
  request.process_set = in->Signed32();
  request.root = in->Signed32();
  request.peer = ReadPeer(flags, in);
  ReadScales(flags, &request.prescale, &request.postscale, in);
  if (flags & kHasLayoutHash) {
    request.layout_hash = in->Word();
    if (request.layout_hash == 0) in->Fail();
  }
  if (flags & kHasSplits) {
    request.splits = ReadSignedNumbers(in);
    if (request.splits.empty()) in->Fail();
  }
  if (flags & kHasRefusal) {
    request.refusal = in->String();
    if (request.refusal.empty()) in->Fail();
  }
  if (more & kHasCallSite) {
    request.call_site = in->String();
    if (request.call_site.empty()) in->Fail();
  }
  if (more & kHasLayout) {
    request.layout = in->String();
    if (request.layout.empty()) in->Fail();
  }
  if (request.kind == CollectiveKind::kAddProcessSet) request.set_ranks = ReadRanks(in);
  if (request.kind == CollectiveKind::kRemoveProcessSet) request.removed_set = in->Signed32();
  const size_t shapes = in->Count<Shape>(1);
  request.shapes.reserve(shapes);
  for (size_t i = 0; i < shapes && in->ok(); ++i) request.shapes.push_back(ReadSignedNumbers(in));
  return request;
}

void WritePlan(const Plan& plan, WireWriter* out) {
  auto flags = ScaleFlags(plan.prescale, plan.postscale);
  if (!plan.error.ok()) flags |= kHasError;
  if (plan.ends_attempt) flags |= kEndsAttempt;
  if (!plan.absent.empty()) flags |= kHasAbsent;
  if (plan.peer != kNoRank) flags |= kHasPeer;
  if (plan.path == DataPath::kDevice) flags |= kRunsOnDevice;
  out->Unsigned(plan.sequence);
  out->Signed(plan.process_set);
  out->Byte(static_cast<uint8_t>(plan.kind));
  out->Byte(static_cast<uint8_t>(plan.dtype));
  out->Byte(static_cast<uint8_t>(plan.op));
  out->Byte(flags);
  out->Signed(plan.root);
  if (flags & kHasPeer) out->Signed(plan.peer);
  WriteScales(flags, plan.prescale, plan.postscale, out);
  if (flags & kHasError) WriteStatus(plan.error, out);
  if (flags & kHasAbsent) WriteList(plan.absent, out);
  out->Unsigned(plan.items.size());
  for (const PlanItem& item : plan.items) {
    out->String(item.name);
    out->Unsigned(item.cache_id);
    WriteList(item.negotiated_values, out);
  }
}

Plan ReadPlan(WireReader* in) {
  Plan plan;
  plan.sequence = in->Unsigned();
  plan.process_set = in->Signed32();
  plan.kind = static_cast<CollectiveKind>(in->Enum(kNumCollectiveKinds));
  plan.dtype = static_cast<DataType>(in->Enum(kNumDataTypes));
  plan.op = static_cast<ReduceOp>(in->Enum(kNumReduceOps));
  const uint8_t flags = ReadFlags(kPlanFlags, in);
  plan.root = in->Signed32();
  plan.peer = ReadPeer(flags, in);
  ReadScales(flags, &plan.prescale, &plan.postscale, in);
  plan.path = (flags & kRunsOnDevice) != 0 ? DataPath::kDevice : DataPath::kCpu;
  plan.ends_attempt = (flags & kEndsAttempt) != 0;
  if (plan.ends_attempt && (flags & kHasError) == 0) in->Fail();
  if (flags & kHasError) {
    plan.error = ReadStatus(in);
    if (plan.error.ok()) in->Fail();
  }
  if (flags & kHasAbsent) {
    plan.absent = ReadRanks(in);
    if (plan.absent.empty()) in->Fail();
  }
  const size_t items = in->Count<PlanItem>(kMinItemBytes);
  plan.items.reserve(items);
  for (size_t i = 0; i < items && in->ok(); ++i) {
    PlanItem item;
    item.name = in->String();
    item.cache_id = in->Unsigned32();
    item.negotiated_values = ReadSignedNumbers(in);
    plan.items.push_back(std::move(item));
  }
  return plan;
}

void ReadRequests(WireReader* in, Frame* frame) {
  const size_t count = in->Count<Request>(kMinRequestBytes);
  frame->requests.reserve(count);
  for (size_t i = 0; i < count && in->ok(); ++i) frame->requests.push_back(ReadRequest(in));
  frame->cache_ids = ReadIds(in);
}

void ReadPlans(WireReader* in, Frame* frame) {
  const size_t count = in->Count<Plan>(kMinPlanBytes);
  frame->plans.reserve(count);
  for (size_t i = 0; i < count && in->ok(); ++i) frame->plans.push_back(ReadPlan(in));
}

}  // namespace

std::string EncodeFrame(const Frame& frame) {
  WireWriter out;
  out.Byte(static_cast<uint8_t>(frame.type));
  switch (frame.type) {
    case FrameType::kRequests:
      out.Unsigned(frame.requests.size());
      for (const Request& request : frame.requests) WriteRequest(request, &out);
      WriteList(frame.cache_ids, &out);
      break;
    case FrameType::kPlans:
      out.Unsigned(frame.plans.size());
      for (const Plan& plan : frame.plans) WritePlan(plan, &out);
      break;
    case FrameType::kHeartbeat:
      break;
    case FrameType::kAbort:
    case FrameType::kFault:
      out.Signed(frame.rank);
      WriteStatus(frame.status, &out);
      break;
    case FrameType::kGoodbye:
      WriteDepartures(frame.departures, &out);
      break;
    case FrameType::kWithdraw:
      out.Signed(frame.process_set);
      WriteStatus(frame.status, &out);
      break;
    case FrameType::kLock:
    case FrameType::kStop:
    case FrameType::kFrozen:
    case FrameType::kUnlock:
      WriteLockMessage(frame.type, frame.lock, &out);
  }
  return out.Take();
}

Result<Frame> DecodeFrame(std::string_view bytes) {
  WireReader in(bytes);
  Frame frame;
  frame.type = static_cast<FrameType>(in.Byte());
  switch (frame.type) {
    case FrameType::kRequests:
      ReadRequests(&in, &frame);
      break;
    case FrameType::kPlans:
      ReadPlans(&in, &frame);
      break;
    case FrameType::kHeartbeat:
      break;
    case FrameType::kAbort:
    case FrameType::kFault:
      frame.rank = in.Signed32();
      frame.status = ReadStatus(&in);
      break;
    case FrameType::kGoodbye:
      frame.departures = ReadDepartures(&in);
      break;
    case FrameType::kWithdraw:
      frame.process_set = in.Signed32();
      frame.status = ReadStatus(&in);
      break;
    case FrameType::kLock:
    case FrameType::kStop:
    case FrameType::kFrozen:
    case FrameType::kUnlock:
      frame.lock = ReadLockMessage(frame.type, &in);
      break;
    default:
      in.Fail();
  }
  if (!in.ok() || in.remaining() != 0) {
    const int type = bytes.empty() ? 0 : static_cast<uint8_t>(bytes.front());
    return Internal("a control frame of " + std::to_string(bytes.size()) + " bytes and type " +
                    std::to_string(type) + " cannot be read; do all ranks run the same version?");
  }
  return frame;
}

size_t MaxEncodedBytes(const Request& request) {
  size_t bytes = 96 + request.name.size() + 10 * request.splits.size() +
                 5 * request.set_ranks.size() + request.refusal.size() + request.call_site.size() +
                 request.layout.size();
  for (const Shape& shape : request.shapes) bytes += 5 + 10 * shape.size();
  return bytes;
}

size_t MaxEncodedBytes(const Plan& plan) {
  size_t bytes = 80 + plan.error.message().size() + 5 * plan.absent.size();
  for (const PlanItem& item : plan.items) {
    bytes += 15 + item.name.size() + 10 * item.negotiated_values.size();
  }
  return bytes;
}

void AddNonce(uint64_t nonce, std::string* frame) {
  if (nonce == 0) return;
  for (size_t i = 0; i < kNonceBytes; ++i) frame->push_back(static_cast<char>(nonce >> (8 * i)));
}

Status TakeNonce(uint64_t nonce, std::string_view* frame) {
  if (nonce == 0) return OkStatus();
  uint64_t theirs = 0;
  const bool has_one = frame->size() > kNonceBytes;
  for (size_t i = 0; has_one && i < kNonceBytes; ++i) {
    const auto byte = static_cast<uint8_t>((*frame)[frame->size() - kNonceBytes + i]);
    theirs |= uint64_t{byte} << (8 * i);
  }
  if (!has_one || theirs != nonce) {
    return FailedPrecondition("it sent a frame of another generation of the job (nonce " +
                              std::to_string(theirs) + "; here it is " + std::to_string(nonce) +
                              "): all ranks have to call init() for the same generation");
  }
  frame->remove_suffix(kNonceBytes);
  return OkStatus();
}

}  // namespace tfring
