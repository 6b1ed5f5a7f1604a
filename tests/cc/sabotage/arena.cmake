# The test of random collectives in arenas, with a mistake built into one source each, which it has
# to find.
set(arena_test ${CMAKE_SOURCE_DIR}/tests/cc/backend/arena/arena_collective_test.cc)
add_library(sabotage_arena_test OBJECT ${arena_test})
target_link_libraries(sabotage_arena_test PRIVATE tfring_testing)

# add_arena_sabotage(NAME FILE EXPRESSION), FILE below ops/runtime/backend/arena/. An expression
# that changes nothing fails the build.
function(add_arena_sabotage name file expression)
  set(in ${CMAKE_SOURCE_DIR}/ops/runtime/backend/arena/${file})
  set(out ${CMAKE_CURRENT_BINARY_DIR}/arena_${name}.cc)
  add_custom_command(OUTPUT ${out} DEPENDS ${in} VERBATIM
    COMMAND sed -E "${expression}" ${in} > ${out}
    COMMAND sh -c "! cmp -s ${in} ${out} || { rm ${out}; echo ${file} was not changed; exit 1; }")
  add_executable(sabotage_arena_${name} ${out} $<TARGET_OBJECTS:sabotage_arena_test>)
  target_link_libraries(sabotage_arena_${name} PRIVATE tfring_testing)
  add_test(NAME sabotage_arena_${name} COMMAND ${catch} "FAILED Random"
    $<TARGET_FILE:sabotage_arena_${name}> RandomPlansOfRandomMembersGiveTheRightBits)
endfunction()

# A rank stages a round although its readers have not read what had the place before.
add_arena_sabotage(stages_too_early arena_exchange.cc
  [[s/staged_ - flows_\.depth;$/-1;/]])
# A rank looks one round too short back for what had the place.
add_arena_sabotage(one_round_more_under_way arena_exchange.cc
  [[s/staged_ - flows_\.depth;$/staged_ - flows_.depth - 1;/]])
# A reader does not show what it has read.
add_arena_sabotage(read_is_not_shown arena_exchange.cc
  [[s/group_\.ShowProgress\(&ArenaProgress::read, read_\)/(void)0/]])
# A writer waits for readers of earlier rounds, which show nothing more.
add_arena_sabotage(waits_for_those_who_are_through arena_exchange.cc
  [[s/\(flows_\.sends\[member\]\.bytes\) > staged_/(flows_.sends[member].bytes) > before/]])
# A rank waits for what is further ahead, which may wait for it.
add_arena_sabotage(awaits_the_later_round arena_exchange.cc
  [[s/\(staged_ <= read_ \|\| read_ == rounds_in_\)/staged_ > read_/]])
# A rank reads a round before it is staged.
add_arena_sabotage(reads_too_early arena_exchange.cc
  [[s/read_ == 0 \|\|$/read_ >= 0 ||/]])
# The last but one round counts as there when the last but two is.
add_arena_sabotage(reads_a_round_too_early arena_exchange.cc
  [[s/ArenaProgress::staged, read_ \+ 1\)/ArenaProgress::staged, read_)/]])
# The reader of a lane looks into that of its neighbour.
add_arena_sabotage(wrong_lane arena_exchange.cc
  [[s/flows_\.LaneOf\(m, self\)/0/]])
# A small part lies in the slot, and its reader looks for it in the header of another plan.
add_arena_sabotage(wrong_side arena_exchange.cc
  [[s/arena\.slot\(number\)/arena.slot(group_.number())/]])
# A rank does not wait until the readers of an earlier plan have left the slot, or the blocks, or
# the rounds.
add_arena_sabotage(takes_the_slot arena_collective.cc
  [[s/if \(Needs\(user\)\) ranks/if (false) ranks/]])
add_arena_sabotage(takes_the_blocks arena_collective.cc
  [[s/UsesStaging\(\) && Needs\(user\)/false/]])
add_arena_sabotage(forgets_rounds arena_collective.cc
  [[s/exchange_\.stages_rounds\(\)/false/]])
# The headers of some members are not looked for.
add_arena_sabotage(meets_too_few arena_collective.cc
  [[s/mover_->BytesFrom\(member\) > 0/mover_->BytesFrom(member) > 40/]])
# A rank does not wait for members that it gives something to, before it uses the place again.
add_arena_sabotage(forgets_readers arena_collective.cc
  [[s/mover_->BytesTo\(member\) > 0/mover_->BytesTo(member) > 40/]])
# A rank that changes something wakes nobody.
add_arena_sabotage(wakes_nobody arena_group.cc
  [[s/memory_->Notify\(rank\)/(void)rank/]])
# A large allreduce adds up a slice, or takes one, before it is there.
add_arena_sabotage(adds_too_early arena_allreduce.cc
  [[s/staged, reduced_ \+ 1\);$/staged, reduced_);/]])
add_arena_sabotage(copies_too_early arena_allreduce.cc
  [[s/reduced, copied_ \+ 1\);$/reduced, copied_);/]])
add_arena_sabotage(uses_blocks_too_early arena_allreduce.cc
  [[s/copied_ \+ kArenaDepth/reduced_ + kArenaDepth/]])
# Inputs are added up from the first to the last.
add_arena_sabotage(another_order arena_data.cc
  [[s/while \(left \* 2 < count\) left \*= 2/left = count - 1/]])
