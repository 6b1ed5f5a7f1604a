#ifndef TFRING_TESTS_CC_DEATH_H_
#define TFRING_TESTS_CC_DEATH_H_

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <functional>
#include <string>

namespace tfring::testing {

// What `body` writes to stderr before it aborts; empty if it does not abort. Runs it in a forked
// child, so that no other thread may run here.
inline std::string AbortMessage(const std::function<void()>& body) {
  int ends[2] = {-1, -1};
  if (pipe(ends) != 0) return "";
  const pid_t child = fork();
  if (child == 0) {
    signal(SIGABRT, SIG_DFL);
    dup2(ends[1], STDERR_FILENO);
    body();
    _exit(0);
  }
  close(ends[1]);
  std::string text;
  char buffer[512];
  for (ssize_t n = 0; (n = read(ends[0], buffer, sizeof(buffer))) > 0;) {
    text.append(buffer, static_cast<size_t>(n));
  }
  close(ends[0]);
  int status = 0;
  waitpid(child, &status, 0);
  return WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT ? text : "";
}

}  // namespace tfring::testing

#endif  // TFRING_TESTS_CC_DEATH_H_
