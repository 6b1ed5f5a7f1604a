#include "ops/runtime/membership/messages.h"

#include <utility>

#include "ops/runtime/base/wire_io.h"

namespace tfring::membership {
namespace {

constexpr uint8_t kBoundary = 1;
constexpr uint8_t kDone = 2;
constexpr uint8_t kLeaving = 4;
constexpr uint8_t kAnnounced = 8;
constexpr uint8_t kIntroduced = 16;
constexpr uint8_t kRecord = 32;
constexpr int kReportFlags = 64;  // one more than all of them together
// The fewest bytes of a member in a message: bounds the number of members, and so allocation.
constexpr size_t kMinMemberBytes = 3;

void WriteText(const std::string& text, WireWriter* out) { out->String(text.substr(0, kMaxText)); }

std::string ReadText(WireReader* in) {
  std::string text = in->String();
  if (text.size() > kMaxText) in->Fail();
  return text;
}

void WritePosition(const Position& position, WireWriter* out) {
  out->Signed(position.commit);
  out->Signed(position.step);
}

Position ReadPosition(WireReader* in) {
  Position position;
  position.commit = in->Signed();
  position.step = in->Signed();
  if (position.commit < 0 || position.step < 0) in->Fail();
  return position;
}

void WriteRecord(const Record& record, WireWriter* out) {
  out->Unsigned(record.generation);
  out->Word(record.nonce);
  out->Signed(record.root);
  WritePosition(record.position, out);
  out->Unsigned(record.members.size());
  for (const Member& member : record.members) {
    out->Unsigned(member.worker);
    WriteText(member.host, out);
    out->Signed(member.slot);
  }
}

Record ReadRecord(WireReader* in) {
  Record record;
  record.generation = in->Unsigned();
  record.nonce = in->Word();
  record.root = in->Signed32();
  record.position = ReadPosition(in);
  const size_t count = in->Count<Member>(kMinMemberBytes);
  if (count > kMaxMembers) in->Fail();
  if (in->ok()) record.members.reserve(count);
  for (size_t i = 0; i < count && in->ok(); ++i) {
    Member member;
    member.worker = in->Unsigned();
    member.host = ReadText(in);
    member.slot = in->Signed32();
    record.members.push_back(std::move(member));
  }
  if (record.root < 0 || static_cast<size_t>(record.root) >= record.members.size()) in->Fail();
  return record;
}

template <typename Message>
Result<Message> Finish(Message message, const WireReader& in, const char* what) {
  if (in.ok() && in.remaining() == 0) return message;
  return InvalidArgument(std::string("a message of ") + what +
                         " cannot be read: it is cut short, too long or of another version");
}

}  // namespace

std::string PositionText(const Position& position) {
  return "commit " + std::to_string(position.commit) + " (step " + std::to_string(position.step) +
         ")";
}

const char* WorkerStateName(WorkerState state) {
  static const char* const kNames[kNumWorkerStates] = {"idle",     "waiting", "joining",  "mesh",
                                                       "sync",     "running", "stopping", "broken",
                                                       "excluded", "exited"};
  return kNames[static_cast<int>(state)];
}

Rank RankOf(const Record& record, WorkerId worker) {
  for (size_t i = 0; i < record.members.size(); ++i) {
    if (record.members[i].worker == worker) return static_cast<Rank>(i);
  }
  return kNoRank;
}

std::string EncodeReport(const Report& report) {
  const bool introduced = report.slot >= 0;
  const bool has_record = report.record.generation != 0;
  WireWriter out;
  out.Unsigned(report.worker);
  out.Unsigned(report.sequence);
  out.Signed(report.sent_at);
  out.Byte(static_cast<uint8_t>(report.state));
  out.Unsigned(report.generation);
  WritePosition(report.position, &out);
  out.Signed(report.step);
  out.Byte(static_cast<uint8_t>((report.boundary ? kBoundary : 0) | (report.done ? kDone : 0) |
                                (report.leaving ? kLeaving : 0) |
                                (report.announced ? kAnnounced : 0) |
                                (introduced ? kIntroduced : 0) | (has_record ? kRecord : 0)));
  out.Unsigned(report.suspect);
  if (introduced) {
    WriteText(report.host, &out);
    out.Signed(report.slot);
  }
  if (has_record) WriteRecord(report.record, &out);
  return out.Take();
}

Result<Report> DecodeReport(std::string_view bytes) {
  WireReader in(bytes);
  Report report;
  report.worker = in.Unsigned();
  report.sequence = in.Unsigned();
  report.sent_at = in.Signed();
  report.state = static_cast<WorkerState>(in.Enum(kNumWorkerStates));
  report.generation = in.Unsigned();
  report.position = ReadPosition(&in);
  report.step = in.Signed();
  const uint8_t flags = in.Enum(kReportFlags);
  report.boundary = (flags & kBoundary) != 0;
  report.done = (flags & kDone) != 0;
  report.leaving = (flags & kLeaving) != 0;
  report.announced = (flags & kAnnounced) != 0;
  report.suspect = in.Unsigned();
  if (flags & kIntroduced) {
    report.host = ReadText(&in);
    report.slot = in.Signed32();
    if (report.slot < 0) in.Fail();
  }
  if (flags & kRecord) {
    report.record = ReadRecord(&in);
    if (report.record.generation == 0) in.Fail();
  }
  if (report.worker == kNobody) in.Fail();
  return Finish(std::move(report), in, "a worker");
}

std::string EncodeCommand(const Command& command) {
  WireWriter out;
  out.Byte(static_cast<uint8_t>(command.kind));
  switch (command.kind) {
    case CommandKind::kAnswer:
      out.Unsigned(command.generation);
      out.Unsigned(command.sequence);
      out.Signed(command.sent_at);
      break;
    case CommandKind::kPropose:
      WriteRecord(command.record, &out);
      break;
    case CommandKind::kGo:
    case CommandKind::kChangePending:
      out.Unsigned(command.generation);
      break;
    case CommandKind::kEnd:
      out.Unsigned(command.generation);
      WriteText(command.reason, &out);
      break;
    case CommandKind::kExcluded:
      WriteText(command.reason, &out);
      break;
    case CommandKind::kExit:
      out.Signed(command.exit_code);
      WriteText(command.reason, &out);
      break;
  }
  return out.Take();
}

Result<Command> DecodeCommand(std::string_view bytes) {
  WireReader in(bytes);
  Command command;
  command.kind = static_cast<CommandKind>(in.Enum(kNumCommandKinds));
  switch (command.kind) {
    case CommandKind::kAnswer:
      command.generation = in.Unsigned();
      command.sequence = in.Unsigned();
      command.sent_at = in.Signed();
      break;
    case CommandKind::kPropose:
      command.record = ReadRecord(&in);
      break;
    case CommandKind::kGo:
    case CommandKind::kChangePending:
      command.generation = in.Unsigned();
      break;
    case CommandKind::kEnd:
      command.generation = in.Unsigned();
      command.reason = ReadText(&in);
      break;
    case CommandKind::kExcluded:
      command.reason = ReadText(&in);
      break;
    case CommandKind::kExit:
      command.exit_code = in.Signed32();
      command.reason = ReadText(&in);
      break;
  }
  return Finish(std::move(command), in, "the coordinator");
}

}  // namespace tfring::membership
