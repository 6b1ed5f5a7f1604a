#include "ops/runtime/base/check.h"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <string>

#include "ops/runtime/base/log.h"
#include "tests/cc/death.h"
#include "tests/cc/test.h"

namespace tfring::testing::check_test {
namespace {

TEST(AFalseConditionPrintsAndAborts) {
  const std::string text = AbortMessage([] { TFRING_CHECK(1 + 1 == 3) << "plan " << 7; });
  EXPECT_CONTAINS(text, "check_test.cc");
  EXPECT_CONTAINS(text, "not true: 1 + 1 == 3: plan 7");
}

// The log is flushed first, but a job must end even if nobody reads it.
TEST(AFalseConditionAbortsWhereNobodyReads) {
  int ends[2] = {-1, -1};
  EXPECT_EQ(pipe(ends), 0);
  const pid_t child = fork();
  if (child == 0) {
    signal(SIGABRT, SIG_DFL);
    dup2(ends[1], STDERR_FILENO);
    Log(LogLevel::kError, std::string(1 << 18, '.'));  // more than a pipe holds
    TFRING_CHECK(1 + 1 == 3);
  }
  int status = 0;
  pid_t ended = 0;
  for (int i = 0; i < 3000 && ended == 0; ++i) {
    ended = waitpid(child, &status, WNOHANG);
    if (ended == 0) usleep(10'000);
  }
  EXPECT_EQ(ended, child);
  if (ended == 0) kill(child, SIGKILL);
  EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT);
  close(ends[0]);
  close(ends[1]);
}

}  // namespace
}  // namespace tfring::testing::check_test
