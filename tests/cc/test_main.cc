#include <cstdlib>
#include <iostream>
#include <string>

#include "tests/cc/test.h"

// Runs the cases whose name contains argv[1], or all.
int main(int argc, char** argv) {
  using tfring::testing::Case;
  using tfring::testing::Cases;
  using tfring::testing::Failures;
  int ran = 0;
  int failed = 0;
  for (const Case& c : Cases()) {
    if (argc > 1 && c.name.find(argv[1]) == std::string::npos) continue;
    int before = Failures();
    c.body();
    ++ran;
    if (Failures() != before) {
      ++failed;
      std::cerr << "FAILED " << c.name << "\n";
    }
  }
  std::cout << ran - failed << " passed, " << failed << " failed\n";
  return failed == 0 && ran > 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
