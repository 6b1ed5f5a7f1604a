#ifndef TFRING_TESTS_CC_DEATH_H_
#define TFRING_TESTS_CC_DEATH_H_

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <functional>
#include <string>

namespace tfring::testing {

// What a process has written to stdout and stderr, and how it ended, as waitpid says.
struct ChildEnd {
  std::string text;
  int status = 0;
};

// Runs `body` in a forked child, so that no other thread may run here.
inline ChildEnd InChild(const std::function<void()>& body) {
  int ends[2] = {-1, -1};
  if (pipe(ends) != 0) return {};
  const pid_t child = fork();
  if (child == 0) {
    signal(SIGABRT, SIG_DFL);
    dup2(ends[1], STDOUT_FILENO);
    dup2(ends[1], STDERR_FILENO);
    body();
    _exit(0);
  }
  close(ends[1]);
  ChildEnd end;
  char buffer[512];
  for (ssize_t n = 0; (n = read(ends[0], buffer, sizeof(buffer))) > 0;) {
    end.text.append(buffer, static_cast<size_t>(n));
  }
  close(ends[0]);
  waitpid(child, &end.status, 0);
  return end;
}

// What `body` writes before it aborts; empty if it does not abort.
inline std::string AbortMessage(const std::function<void()>& body) {
  const ChildEnd end = InChild(body);
  return WIFSIGNALED(end.status) && WTERMSIG(end.status) == SIGABRT ? end.text : "";
}

}  // namespace tfring::testing

#endif  // TFRING_TESTS_CC_DEATH_H_
