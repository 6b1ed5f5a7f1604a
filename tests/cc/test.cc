#include "tests/cc/test.h"

#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <iostream>
#include <set>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

namespace tfring::testing {
namespace {

int failures = 0;

std::vector<Case>& Cases() {
  static std::vector<Case> cases;
  return cases;
}

std::string Text(const Shown& shown) {
  std::ostringstream out;
  shown.print(out, shown.value);
  return out.str();
}

constexpr int kNoCase = 2;

// Runs the cases whose names contain `filter`. The exit status: 0 if all pass, kNoCase if there is
// none.
int Run(const std::string& filter) {
  int ran = 0;
  int failed = 0;
  for (const Case& each : Cases()) {
    if (each.name.find(filter) == std::string::npos) continue;
    const int before = failures;
    each.body();
    ++ran;
    if (failures != before) {
      ++failed;
      std::cerr << "FAILED " << each.name << "\n";
    }
  }
  if (ran == 0) {
    std::cerr << "No case contains '" << filter << "'. --list prints all names.\n";
    return kNoCase;
  }
  std::cout << ran - failed << " passed, " << failed << " failed\n";
  return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}

// Runs each file in a process of its own, as ctest does.
int RunFiles() {
  std::set<std::string> files;
  for (const Case& each : Cases()) files.insert(each.name.substr(0, each.name.rfind('.') + 1));
  int failed = 0;
  for (const std::string& file : files) {
    std::cout << file << std::endl;
    const pid_t child = fork();
    if (child == 0) {
      execl("/proc/self/exe", "tests", file.c_str(), static_cast<char*>(nullptr));
      _exit(127);
    }
    int status = 0;
    const bool waited = child > 0 && waitpid(child, &status, 0) == child;
    if (waited && status == 0) continue;
    std::cerr << "FAILED " << file << " with the status " << status << "\n";
    ++failed;
  }
  return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}

}  // namespace

Registrar::Registrar(const char* file, const char* name, void (*body)()) {
  const std::string folder = "tests/cc/";
  std::string full = file;
  full.erase(0, full.rfind(folder) + folder.size());
  full.erase(full.rfind('.') + 1);
  Cases().push_back({full + name, body});
}

int Failures() { return failures; }

void Fail(const char* file, int line, const std::string& what) {
  ++failures;
  std::cerr << file << ":" << line << ": " << what << "\n";
}

void FailEq(const Shown& a, const Shown& b, const char* text, const char* file, int line) {
  Fail(file, line, std::string(text) + ": " + Text(a) + " is not " + Text(b));
}

void CheckContains(std::string_view text, std::string_view part, const char* file, int line) {
  if (text.find(part) == std::string_view::npos) {
    Fail(file, line, "\"" + std::string(text) + "\" lacks \"" + std::string(part) + "\"");
  }
}

int Main(int argc, char** argv) {
  if (argc < 2) return RunFiles();
  const std::string argument = argv[1];
  if (argument != "--list") return Run(argument);
  for (const Case& each : Cases()) std::cout << each.name << "\n";
  return EXIT_SUCCESS;
}

}  // namespace tfring::testing
