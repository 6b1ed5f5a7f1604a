#ifndef TFRING_TESTS_CC_MUTATIONS_MUTATED_H_
#define TFRING_TESTS_CC_MUTATIONS_MUTATED_H_

// What mutations.py writes into copies of the runtime's sources.

namespace tfring::testing {

// Whether TFRING_MUTATION has this name.
bool Mutated(const char* name);

}  // namespace tfring::testing

#define MUTATED(name)                                           \
  ([] {                                                         \
    static const bool here = ::tfring::testing::Mutated(#name); \
    return here;                                                \
  }())

#endif  // TFRING_TESTS_CC_MUTATIONS_MUTATED_H_
