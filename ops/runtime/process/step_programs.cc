#include "ops/runtime/process/step_programs.h"

#include "ops/runtime/process/completions.h"

namespace tfring {

StepPrograms& StepPrograms::Get() {
  static StepPrograms* const meeting = new StepPrograms();
  return *meeting;
}

StepRun StepPrograms::Surrounding() const {
  Steps* const steps = steps_;
  return steps == nullptr ? StepRun() : steps->Surrounding();
}

void StepPrograms::OnProgramFailed(uint64_t run) const {
  Steps* const steps = steps_;
  if (steps != nullptr && run != 0) steps->OnProgramFailed(run);
}

bool StepPrograms::WaitForRun(uint64_t run) const {
  Programs* const programs = programs_;
  if (programs == nullptr) return true;
  if (Completions::IsAny()) return false;
  programs->WaitForRun(run);
  return true;
}

}  // namespace tfring
