#include "tests/cc/mutations/mutated.h"

#include <cstdlib>
#include <string_view>

namespace tfring::testing {

bool Mutated(const char* name) {
  const char* const chosen = std::getenv("TFRING_MUTATION");
  return chosen != nullptr && std::string_view(chosen) == name;
}

}  // namespace tfring::testing
