# The simulator with a mistake built into locks or the autotuner, which its runs have to find: one source of the
# protocol is changed with sed and takes the place of the right one.
add_library(sabotage_sim_main OBJECT ${CMAKE_SOURCE_DIR}/ops/sim/main.cc)
target_link_libraries(sabotage_sim_main PRIVATE tfring_sim_objects)

# add_lock_sabotage(NAME FILE EXPRESSION TEXT [ARGUMENT]...), FILE below ops/runtime/protocol/. The
# runs have to fail with TEXT; an expression that changes nothing fails the build.
function(add_lock_sabotage name file expression text)
  set(in ${CMAKE_SOURCE_DIR}/ops/runtime/protocol/${file})
  set(out ${CMAKE_CURRENT_BINARY_DIR}/${name}.cc)
  add_custom_command(OUTPUT ${out} DEPENDS ${in} VERBATIM
    COMMAND sed -E "${expression}" ${in} > ${out}
    COMMAND sh -c "! cmp -s ${in} ${out} || { rm ${out}; echo ${file} was not changed; exit 1; }")
  add_executable(sabotage_${name} ${out} $<TARGET_OBJECTS:sabotage_sim_main>)
  target_link_libraries(sabotage_${name} PRIVATE tfring_sim_objects)
  add_test(NAME sabotage_${name} COMMAND ${catch} ${text} $<TARGET_FILE:sabotage_${name}>
    --workload=locked --ranks=3 ${ARGN})
endfunction()

# A lock ends at the greatest number of batches that a rank has entered.
add_lock_sabotage(lock_cut_at_the_greatest locked/lock_coordinator.cc
  [[s/std::min\(unlock/std::max(unlock/; s/entered = UINT64_MAX/entered = 0/]]
  "FAILED" --seeds=100)
# Calls of batches that are recalled are no requests.
add_lock_sabotage(lock_forgets_recalled_calls negotiation/sequencer_lock.cc
  [[s/number < ranks\.entered\(rank\)/number < unlock.entered/]] "deadlock" --seeds=100)
# Requests that were under way when the lock was made count although their calls were entered.
add_lock_sabotage(lock_reads_early_requests engine/engine_lock.cc
  [[s/kept\.early/false/]] "FAILED" --seeds=150)
# A rank takes a lock of another attempt.
add_lock_sabotage(lock_of_another_attempt negotiation/participant_lock.cc
  [[s/lock\.attempt != AttemptOf\(kGlobalProcessSet\)/false/]] "FAILED" --ranks=2 --seeds=2500)
# A rank does not say that it does not enter a batch.
add_lock_sabotage(lock_without_voids negotiation/participant_lock.cc
  [[s/number < unlock\.high/number < entered/]] "deadlock" --seeds=100)
# A call that was recalled ends while the backend has its memory.
add_lock_sabotage(lock_frees_memory engine/engine.cc
  [[s/busy_\.count\(id\) > 0/false/]] "ended while its memory is used" --seeds=400)
# Nothing ends a lock in which ranks wait.
add_lock_sabotage(lock_without_timer locked/locked_schedule.cc
  [[s/waits = lock != nullptr/waits = false/]] "deadlock" --seeds=300)
# A goodbye is answered before the lock is over.
add_lock_sabotage(lock_answers_goodbyes engine/engine_lock.cc
  [[s/type != FrameType::kGoodbye\)/true)/]] "FAILED" --seeds=1000 --fault=goodbye)

# Rank 0 does not follow its own change of the pieces.
add_lock_sabotage(tuning_leaves_rank_0_out negotiation/negotiator.cc
  [[s/piece_bytes_ = \*tuning\.piece_bytes;//; s/frame\.piece_bytes = piece_bytes_/frame.piece_bytes = *tuning.piece_bytes/]]
  "differs from what another member runs" --workload=tuned --seeds=100)
# New pieces come before the plans that were numbered with the old ones.
add_lock_sabotage(tuning_before_its_plans negotiation/negotiator.cc
  [[s/out_\.frames\.emplace_back\(rank, bytes\);/out_.frames.emplace(out_.frames.begin(), rank, bytes);/]]
  "differs from what another member runs" --workload=tuned --seeds=100)
# The search goes on in a lock.
add_lock_sabotage(tuning_in_a_lock negotiation/sequencer_lock.cc
  [[s/tuner_\.active\(\) \|\| !\(tuner_\.values\(\) == tuned_\)/false/]]
  "FAILED" --workload=tuned --seeds=400)
