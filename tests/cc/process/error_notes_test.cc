#include "ops/runtime/process/error_notes.h"

#include <string>

#include "tests/cc/test.h"

namespace tfring::error_notes_test {
namespace {

std::string Said(const ErrorNotes& notes, Status status) {
  return notes.Added(std::move(status)).message();
}

TEST(WithoutNotesErrorsStayAsTheyAre) {
  const ErrorNotes notes;
  EXPECT_EQ(Said(notes, Unavailable("rank 1 was lost")), "rank 1 was lost");
}

TEST(ErrorsOfSeveralRanksSayWhereToReadMore) {
  ErrorNotes notes;
  notes.Set("`look` says more.", "");
  EXPECT_EQ(Said(notes, Unavailable("rank 1 was lost")), "rank 1 was lost. `look` says more.");
  EXPECT_EQ(Said(notes, FailedPrecondition("They differ.")), "They differ. `look` says more.");
  EXPECT_EQ(Said(notes, FailedPrecondition("Do they differ?")),
            "Do they differ? `look` says more.");
  EXPECT_EQ(Said(notes, InvalidArgument("bad splits")), "bad splits");
  EXPECT_EQ(Said(notes, Aborted("the step of rank 1 failed")), "the step of rank 1 failed");
  EXPECT_TRUE(notes.Added(OkStatus()).ok());
  EXPECT_TRUE(notes.Added(Unavailable("")).code() == StatusCode::kUnavailable);
}

TEST(OnlyErrorsOfStallsSayWhatTheStallComesFrom) {
  ErrorNotes notes;
  notes.Set("`look` says more.", "Rank 2 sleeps.");
  EXPECT_EQ(Said(notes, DeadlineExceeded("'x' has waited 9 s.")),
            "'x' has waited 9 s. Rank 2 sleeps. `look` says more.");
  EXPECT_EQ(Said(notes, Unavailable("lost")), "lost. `look` says more.");
  notes.Set("`look` says more.", "");
  EXPECT_EQ(Said(notes, DeadlineExceeded("'x'")), "'x'. `look` says more.");
}

}  // namespace
}  // namespace tfring::error_notes_test
