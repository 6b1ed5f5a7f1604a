#include "ops/runtime/membership/messages.h"

#include <string>

#include "tests/cc/test.h"

namespace tfring::membership::messages_test {
namespace {

Report FullReport() {
  Report report;
  report.worker = 7;
  report.sequence = 300;
  report.sent_at = -5 * kSecond;
  report.state = WorkerState::kBroken;
  report.generation = 4;
  report.position = {12, 36};
  report.step = 38;
  report.boundary = report.leaving = true;
  report.suspect = 3;
  report.host = "h1";
  report.slot = 2;
  return report;
}

Command Proposal() {
  Command command;
  command.kind = CommandKind::kPropose;
  command.record.generation = 5;
  command.record.nonce = ~0ull;
  command.record.members = {{7, "h1", 0}, {9, "h2", 1}};
  command.record.root = 1;
  command.record.position = {12, 36};
  return command;
}

// A part of a message, or one with more at its end, is no message.
template <typename Decode>
void ExpectOnlyTheWhole(const std::string& bytes, Decode decode) {
  EXPECT_TRUE(decode(bytes).ok());
  for (size_t size = 0; size < bytes.size(); ++size) {
    EXPECT_TRUE(!decode(std::string_view(bytes).substr(0, size)).ok());
  }
  EXPECT_TRUE(!decode(bytes + '\0').ok());
}

TEST(AReportComesBack) {
  const std::string bytes = EncodeReport(FullReport());
  const Result<Report> report = DecodeReport(bytes);
  ASSERT_TRUE(report.ok());
  EXPECT_EQ(EncodeReport(*report), bytes);
  EXPECT_EQ(report->worker, 7u);
  EXPECT_EQ(report->sent_at, -5 * kSecond);
  EXPECT_TRUE(report->state == WorkerState::kBroken);
  EXPECT_TRUE(report->position == (Position{12, 36}));
  EXPECT_EQ(report->step, int64_t{38});
  EXPECT_TRUE(report->boundary && report->leaving && !report->done && !report->announced);
  EXPECT_EQ(report->suspect, 3u);
  EXPECT_EQ(report->host, std::string("h1"));
  ExpectOnlyTheWhole(bytes, DecodeReport);
}

TEST(CommandsComeBack) {
  for (int kind = 0; kind < kNumCommandKinds; ++kind) {
    Command command = Proposal();
    command.kind = static_cast<CommandKind>(kind);
    command.generation = 5;
    command.exit_code = -3;
    command.reason = "why";
    const std::string bytes = EncodeCommand(command);
    const Result<Command> decoded = DecodeCommand(bytes);
    ASSERT_TRUE(decoded.ok());
    EXPECT_EQ(EncodeCommand(*decoded), bytes);
    ExpectOnlyTheWhole(bytes, DecodeCommand);
  }
}

TEST(ARecordWithoutItsRootIsRefused) {
  Command command = Proposal();
  command.record.root = 2;
  EXPECT_TRUE(!DecodeCommand(EncodeCommand(command)).ok());
  command.record.root = -1;
  EXPECT_TRUE(!DecodeCommand(EncodeCommand(command)).ok());
}

TEST(ALongTextIsCut) {
  Command command;
  command.kind = CommandKind::kExcluded;
  command.reason = std::string(kMaxText + 100, 'x');
  const Result<Command> decoded = DecodeCommand(EncodeCommand(command));
  ASSERT_TRUE(decoded.ok());
  EXPECT_EQ(decoded->reason.size(), kMaxText);
}

}  // namespace
}  // namespace tfring::membership::messages_test
