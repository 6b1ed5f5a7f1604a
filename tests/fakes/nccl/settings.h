#ifndef TFRING_TESTS_FAKES_NCCL_SETTINGS_H_
#define TFRING_TESTS_FAKES_NCCL_SETTINGS_H_

namespace fake_nccl {

// The settings and counters of fake_nccl.h by name. Any thread. A name that there is not ends the
// process: a typo in a test must not be ignored.
long Setting(const char* what);
void Count(const char* what, long by = 1);

// Whether this is the call on which the fault `what` strikes: counts it down. `rank`: see
// only_rank.
bool Strikes(const char* what, int rank);

// Writes "fake NCCL: " and the text to stderr.
void Say(const char* format, ...) __attribute__((format(printf, 1, 2)));

// Between two looks at something that another thread or process changes.
class Pause {
 public:
  void operator()();

 private:
  int looks_ = 0;
};

}  // namespace fake_nccl

#endif  // TFRING_TESTS_FAKES_NCCL_SETTINGS_H_
