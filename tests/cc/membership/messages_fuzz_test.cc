#include <string>
#include <vector>

#include "ops/runtime/membership/messages.h"
#include "tests/cc/fuzzing.h"

// Feeds mutated reports and commands of elastic jobs to their decoders, as tests/cc/fuzzing.h says.

namespace tfring::membership {
namespace {

void TryBytes(const std::string& bytes) {
  testing::TryDecoder(bytes, DecodeReport, EncodeReport);
  testing::TryDecoder(bytes, DecodeCommand, EncodeCommand);
}

bool Accepts(const std::string& bytes) {
  return DecodeReport(bytes).ok() || DecodeCommand(bytes).ok();
}

std::vector<std::string> Corpus() {
  Report report;
  report.worker = 7;
  report.sequence = 300;
  report.sent_at = -5 * kSecond;
  report.state = WorkerState::kBroken;
  report.generation = 4;
  report.position = {12, 36};
  report.step = 38;
  report.suspect = 3;
  std::vector<std::string> corpus = {EncodeReport(report)};
  report.host = "a-host.example.com";
  report.slot = 2;
  report.boundary = report.done = report.leaving = report.announced = true;
  corpus.push_back(EncodeReport(report));
  Command command;
  command.generation = 5;
  command.sequence = 300;
  command.sent_at = 7 * kSecond;
  command.record.generation = 5;
  command.record.nonce = ~uint64_t{0};
  command.record.members = {{7, "h1", 0}, {9, "h2", 1}, {300, "", 0}};
  command.record.root = 1;
  command.record.position = {12, 36};
  command.exit_code = 75;
  command.reason = "worker 3 was silent for 5.1 s";
  for (int kind = 0; kind < kNumCommandKinds; ++kind) {
    command.kind = static_cast<CommandKind>(kind);
    corpus.push_back(EncodeCommand(command));
  }
  return corpus;
}

}  // namespace
}  // namespace tfring::membership

int main(int argc, char** argv) {
  using namespace tfring;
  return testing::Fuzz(argc, argv, membership::Corpus(), membership::TryBytes, membership::Accepts);
}
