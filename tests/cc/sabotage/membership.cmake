# The simulator of elastic jobs with a mistake built in, which its runs have to find: one source of
# the machines is changed with sed and takes the place of the right one.
set(catch ${CMAKE_CURRENT_SOURCE_DIR}/must_catch.sh)
add_library(sabotage_membership_main OBJECT ${CMAKE_SOURCE_DIR}/ops/sim/membership/main.cc)
target_link_libraries(sabotage_membership_main PRIVATE tfring_membership_sim_objects)

# add_membership_sabotage(NAME FILE EXPRESSION SEEDS TEXT), FILE below ops/runtime/membership/. The
# runs have to fail with TEXT; an expression that changes nothing fails the build.
function(add_membership_sabotage name file expression seeds text)
  set(in ${CMAKE_SOURCE_DIR}/ops/runtime/membership/${file})
  set(out ${CMAKE_CURRENT_BINARY_DIR}/${name}_${file})
  add_custom_command(OUTPUT ${out} DEPENDS ${in} VERBATIM
    COMMAND sed -E "${expression}" ${in} > ${out}
    COMMAND sh -c "! cmp -s ${in} ${out} || { rm ${out}; echo ${file} was not changed; exit 1; }")
  add_executable(sabotage_${name} ${out} $<TARGET_OBJECTS:sabotage_membership_main>)
  target_link_libraries(sabotage_${name} PRIVATE tfring_membership_sim_objects)
  add_test(NAME sabotage_${name}
    COMMAND ${catch} ${text} $<TARGET_FILE:sabotage_${name}> --seeds=${seeds})
endfunction()

# The state is taken from rank 0, not from the member that is ahead.
add_membership_sabotage(root_is_rank_0 coordinator_rounds.cc
  [[s/^( *)record\.root = .*/\1record.root = 0;/]] 300 "the record says")
# A number comes twice if the generation that had it did not train.
add_membership_sabotage(number_reused coordinator_rounds.cc
  [[s/^  \+\+number_;/  if (number_ == 0 || ran_) ++number_, ran_ = false;/]] 150 "another record of")
# A member is stopped at once when workers come or go.
add_membership_sabotage(join_at_once coordinator_rounds.cc
  [[s/^  pending_ = true;/  return StartRound("a change", true);/]] 150 "ends without a failure")
# Whoever has to leave does, with whatever state.
add_membership_sabotage(state_leaves coordinator_rounds.cc
  [[s/^  kept_ = AheadOfAllThatStay.*/  kept_ = kNobody;/]] 150 "has to leave with commit")
# Leases are judged by the time that reports show, which is of the members' clocks.
add_membership_sabotage(members_clock coordinator.cc
  [[s/process\.heard = now_/process.heard = report.sent_at/]] 20 "is taken for dead, although")
# Whatever comes is applied.
add_membership_sabotage(stale_result worker.cc
  [[s/return state_ == WorkerState::kRunning && generation == record_.generation;/return state_ == WorkerState::kRunning;/]]
  800 "applies a result of generation")
# A worker that was taken for dead stays.
add_membership_sabotage(fence_ignored worker.cc
  [[s/^      Leave\(WorkerState::kFenced.*/      (void)effects;/]] 150 "goes on although it was fenced")
# A worker publishes without a lease.
add_membership_sabotage(publish_without_lease worker.cc
  [[s/now < lease_end_/now < kNever/]] 300 "publishes for generation")

# Mistakes in what uses the machines.
add_test(NAME sabotage_no_gate COMMAND ${catch} "has other weights at the end"
  $<TARGET_FILE:tfring_membership_sim> --seeds=100 --sabotage=no-gate)
add_test(NAME sabotage_keep_cursor COMMAND ${catch} "goes on with sample"
  $<TARGET_FILE:tfring_membership_sim> --seeds=100 --sabotage=keep-cursor)
