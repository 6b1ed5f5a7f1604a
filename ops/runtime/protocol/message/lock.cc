#include "ops/runtime/protocol/message/lock.h"

#include <utility>

#include "ops/runtime/base/wire_io.h"
#include "ops/runtime/protocol/message/text.h"
#include "ops/runtime/protocol/message/wire.h"

namespace tfring {
namespace {

bool HasEarly(UnlockCause cause) {
  return cause == UnlockCause::kApart || cause == UnlockCause::kIncomplete;
}

void WriteBatch(const LockedBatch& batch, WireWriter* out) {
  out->Unsigned(batch.size());
  for (uint32_t id : batch) out->Unsigned(id);
}

LockedBatch ReadBatch(WireReader* in) {
  LockedBatch batch;
  const size_t ids = in->Count<uint32_t>(1);
  for (size_t i = 0; i < ids && in->ok(); ++i) batch.push_back(in->Unsigned32());
  return batch;
}

void WriteReason(const UnlockReason& reason, WireWriter* out) {
  out->Byte(static_cast<uint8_t>(reason.cause));
  out->String(reason.text);
}

UnlockReason ReadReason(WireReader* in) {
  UnlockReason reason;
  reason.cause = static_cast<UnlockCause>(in->Enum(kUnlockCauses));
  reason.text = in->String();
  const bool follows = reason.cause == UnlockCause::kFollows;
  if (reason.text.size() > kMaxUnlockTextBytes || !IsUtf8(reason.text) ||
      (follows && !reason.text.empty())) {
    in->Fail();
  }
  return reason;
}

}  // namespace

bool operator==(const UnlockReason& a, const UnlockReason& b) {
  return a.cause == b.cause && a.text == b.text && a.early == b.early;
}

bool operator==(const LockMessage& a, const LockMessage& b) {
  return a.id == b.id && a.attempt == b.attempt && a.batches == b.batches &&
         a.entered == b.entered && a.high == b.high && a.declined == b.declined &&
         a.reason == b.reason && a.rank == b.rank;
}

void WriteLockMessage(FrameType type, const LockMessage& message, WireWriter* out) {
  out->Unsigned(message.id);
  if (type == FrameType::kLock) {
    out->Unsigned(message.attempt);
    out->Unsigned(message.batches.size());
    for (const LockedBatch& batch : message.batches) WriteBatch(batch, out);
  } else if (type == FrameType::kFrozen) {
    out->Unsigned(message.entered);
    out->Byte(message.declined ? 1 : 0);
    WriteReason(message.reason, out);
    if (HasEarly(message.reason.cause)) WriteBatch(message.reason.early, out);
  } else if (type == FrameType::kUnlock) {
    out->Unsigned(message.entered);
    out->Unsigned(message.high);
    out->Signed(message.rank);
    WriteReason(message.reason, out);
  }
}

LockMessage ReadLockMessage(FrameType type, WireReader* in) {
  LockMessage message;
  message.id = in->Unsigned();
  if (type == FrameType::kLock) {
    message.attempt = in->Unsigned();
    const size_t batches = in->Count<LockedBatch>(2);
    if (batches == 0) in->Fail();
    for (size_t i = 0; i < batches && in->ok(); ++i) {
      message.batches.push_back(ReadBatch(in));
      if (message.batches.back().empty()) in->Fail();
    }
  } else if (type == FrameType::kFrozen) {
    message.entered = in->Unsigned();
    message.declined = in->Enum(2) != 0;
    if (message.declined && message.entered > 0) in->Fail();
    message.reason = ReadReason(in);
    if (HasEarly(message.reason.cause)) message.reason.early = ReadBatch(in);
  } else if (type == FrameType::kUnlock) {
    message.entered = in->Unsigned();
    message.high = in->Unsigned();
    if (message.high < message.entered) in->Fail();
    message.rank = in->Signed32();
    message.reason = ReadReason(in);
    if (message.rank < 0 || message.reason.cause == UnlockCause::kFollows) in->Fail();
  }
  return message;
}

namespace {

std::string Count(uint64_t count, const std::string& one, const std::string& many) {
  return std::to_string(count) + " " + (count == 1 ? one : many);
}

std::string ReasonText(Rank rank, const UnlockReason& reason) {
  const std::string who = "rank " + std::to_string(rank);
  const std::string tensor = "'" + reason.text + "'";
  switch (reason.cause) {
    case UnlockCause::kOtherCall:
      return who + " called " + tensor + ", which is not in it";
    case UnlockCause::kChangedCall:
      return who + " called " + tensor + " with another shape or from another line than in it";
    case UnlockCause::kJoin:
      return who + " joined";
    case UnlockCause::kProcessSets:
      return who + " changed the process sets";
    case UnlockCause::kStepFailed:
      return reason.text.empty() ? "a step failed on " + who : reason.text;
    case UnlockCause::kShutdown:
      return who + " shuts down";
    case UnlockCause::kWaited:
      return who + " waited with " + tensor + " for other ranks for 100 ms or longer";
    case UnlockCause::kIncomplete:
      return who + " had not called " + tensor +
             " 100 ms or longer after its call of another tensor";
    case UnlockCause::kApart:
      return who + " called " + tensor +
             " 5 ms or longer after another tensor of its batch, in 5 rounds in a row";
    case UnlockCause::kFollows:
      break;
  }
  return who + " gave no cause";
}

}  // namespace

const char* UnlockCauseName(UnlockCause cause) {
  switch (cause) {
    case UnlockCause::kFollows:
      return "follows";
    case UnlockCause::kOtherCall:
      return "other_call";
    case UnlockCause::kChangedCall:
      return "changed_call";
    case UnlockCause::kJoin:
      return "join";
    case UnlockCause::kProcessSets:
      return "process_sets";
    case UnlockCause::kStepFailed:
      return "step_failed";
    case UnlockCause::kShutdown:
      return "shutdown";
    case UnlockCause::kWaited:
      return "waited";
    case UnlockCause::kIncomplete:
      return "incomplete";
    case UnlockCause::kApart:
      return "apart";
  }
  return "unknown";
}

std::string NewsText(const LockNews& news) {
  if (!news.over) {
    return "the schedule of " + Count(news.batches, "batch", "batches") + ", " +
           Count(news.tensors, "tensor", "tensors") + " is locked";
  }
  return "the lock of " + Count(news.tensors, "tensor", "tensors") + " ended after " +
         Count(news.rounds, "round", "rounds") + ": " + ReasonText(news.rank, news.reason);
}

}  // namespace tfring
