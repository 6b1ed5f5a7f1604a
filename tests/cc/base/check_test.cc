#include "ops/runtime/base/check.h"

#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <string>

#include "tests/cc/test.h"

namespace tfring {
namespace {

TEST(ATrueConditionEvaluatesNoMessage) {
  int evaluated = 0;
  TFRING_CHECK(1 + 1 == 2) << ++evaluated;
  EXPECT_EQ(evaluated, 0);
}

TEST(AFalseConditionPrintsAndAborts) {
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  const pid_t child = fork();
  if (child == 0) {
    dup2(ends[1], STDERR_FILENO);
    TFRING_CHECK(1 + 1 == 3) << "plan " << 7;
    _exit(0);
  }
  close(ends[1]);
  std::string text(1000, ' ');
  text.resize(static_cast<size_t>(read(ends[0], text.data(), text.size())));
  close(ends[0]);
  int status = 0;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT);
  EXPECT_CONTAINS(text, "check_test.cc");
  EXPECT_CONTAINS(text, "not true: 1 + 1 == 3: plan 7");
}

}  // namespace
}  // namespace tfring

TFRING_TEST_MAIN()
