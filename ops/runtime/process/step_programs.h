#ifndef TFRING_OPS_RUNTIME_PROCESS_STEP_PROGRAMS_H_
#define TFRING_OPS_RUNTIME_PROCESS_STEP_PROGRAMS_H_

#include <atomic>
#include <cstdint>

#include "ops/runtime/base/export.h"

namespace tfring {

// An execution of a TensorFlow graph, and the generation in which it began.
struct StepRun {
  uint64_t number = 0;      // see LocalCall::run
  uint64_t generation = 0;  // 0: none in particular
};

// Knows the steps of this process: the library of TensorFlow's ops. Thread-safe.
class Steps {
 public:
  virtual ~Steps() = default;
  // The run that calls of compiled programs belong to; number 0 for none, or several at a time.
  // With number 0 a call of a step that has failed already is not refused, but belongs to the next
  // attempt.
  virtual StepRun Surrounding() = 0;
  // A call that belonged to the run has failed. The step may be over when the next program runs, so
  // from now on the run surrounds no program.
  virtual void OnProgramFailed(uint64_t run) = 0;
};

// Knows the calls of compiled programs: the library of XLA's custom calls. Thread-safe.
class Programs {
 public:
  virtual ~Programs() = default;
  // The run has failed: blocks until none of its calls uses memory that XLA frees.
  virtual void WaitForRun(uint64_t run) = 0;
};

// Where the two libraries meet: they do not link to each other, and either may be missing. A
// program that XLA has compiled learns nothing of the step that it is part of, and a step nothing
// of its programs. Created on first use, never destroyed. Thread-safe.
class TFRING_EXPORT StepPrograms {
 public:
  static StepPrograms& Get();

  // Each lives as long as the process.
  void SetSteps(Steps* steps) { steps_ = steps; }
  void SetPrograms(Programs* programs) { programs_ = programs; }

  // As Steps and Programs. WaitForRun returns false at once in a `done`: those calls need others.
  StepRun Surrounding() const;
  void OnProgramFailed(uint64_t run) const;
  bool WaitForRun(uint64_t run) const;

 private:
  std::atomic<Steps*> steps_{nullptr};
  std::atomic<Programs*> programs_{nullptr};
};

}  // namespace tfring

#endif  // TFRING_OPS_RUNTIME_PROCESS_STEP_PROGRAMS_H_
