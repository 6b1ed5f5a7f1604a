// What the libraries of TensorFlow's ops and of XLA's programs know of each other. They are all
// that the runtime calls upwards.
#include "ops/runtime/process/step_programs.h"

#include <cstdint>

#include "tests/cc/test.h"

namespace tfring::step_programs_test {
namespace {

struct FakeSteps : Steps {
  StepRun Surrounding() override { return surrounding; }
  void OnProgramFailed(uint64_t run) override { failed = run; }
  StepRun surrounding;
  uint64_t failed = 0;
};

struct FakePrograms : Programs {
  void WaitForRun(uint64_t run) override { waited = run; }
  uint64_t waited = 0;
};

TEST(ARunSurroundsProgramsWhereTheStepsAreKnown) {
  StepPrograms meeting;
  EXPECT_EQ(meeting.Surrounding().number, uint64_t{0});
  EXPECT_EQ(meeting.Surrounding().generation, uint64_t{0});
  meeting.OnProgramFailed(7);
  FakeSteps steps;
  steps.surrounding = {7, 2};
  meeting.SetSteps(&steps);
  EXPECT_EQ(meeting.Surrounding().number, uint64_t{7});
  EXPECT_EQ(meeting.Surrounding().generation, uint64_t{2});
  meeting.OnProgramFailed(7);
  EXPECT_EQ(steps.failed, uint64_t{7});
}

TEST(ARunIsWaitedForWhereItsProgramsAreKnown) {
  StepPrograms meeting;
  EXPECT_TRUE(meeting.WaitForRun(7));
  FakePrograms programs;
  meeting.SetPrograms(&programs);
  EXPECT_TRUE(meeting.WaitForRun(7));
  EXPECT_EQ(programs.waited, uint64_t{7});
}

}  // namespace
}  // namespace tfring::step_programs_test
